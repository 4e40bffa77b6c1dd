# A distributed lock while sessions contend for other ones, and statements on it that the
# remote server executes late, twice, or after the session has left.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the queue of a lock does not depend on TLS' if over_tls();

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

my $remote = remote_node('remote', start => 0);
my $one = local_node('one', start => 0);
foreach my $node ($remote, $one)
{
	with_clock($node, sub { $node->start });
}
make_pool($one, $remote, server => 'keeper', options => { pool_size => 8 });
$one->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});

# --- notices of the remote server do not appear in the log of this server
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION noise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE WARNING ''hostile % of %'', TG_OP, current_setting(''application_name''); RETURN NEW; END';
CREATE TRIGGER noise BEFORE INSERT OR UPDATE ON pgpool_lock.locks FOR EACH ROW EXECUTE FUNCTION noise();
EOT
make_pool($one, $remote, server => 'noisy', options => { start_commands => q{DO $$ BEGIN RAISE WARNING 'hostile start'; END $$} });
my $holder = PgpxSession->new($one);
my $token = $holder->run(q{SELECT pgpool.lock('noisy', 'noise', '10 s', '1 min')});
like($holder->error, qr/WARNING:.*hostile INSERT of pgpool_ext/, 'session receives the notices of its own statements');
ok(wait_until($one, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't', 10), 'worker pings');
is($holder->run("SELECT pgpool.unlock('noisy', 'noise', $token)"), 't', 'lock is released');
like(slurp_file($remote->logfile), qr/hostile UPDATE of pgpool_ext lock/, 'ping and release caused notices');
is(join("\n", grep { /^\w+: .*hostile/ } split /\n/, slurp_file($one->logfile)), '', 'libpq writes no notices of the remote server to the log');
$remote->safe_psql('remote_db', 'DROP TRIGGER noise ON pgpool_lock.locks');

# --- default_transaction_isolation is serializable for the remote user: a ping that
# waits for a changed row does not fail
$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET default_transaction_isolation = 'serializable'});
make_pool($one, $remote, server => 'strict');
my $changer = PgpxSession->new($remote, dbname => 'remote_db');
$token = $holder->run(q{SELECT pgpool.lock('strict', 'strict', '10 s', '1 min')});
ok(wait_until($one, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't', 10), 'serializable: worker pings');
$changer->run(q{BEGIN; UPDATE pgpool_lock.locks SET contended = NULL WHERE name = 'strict'});
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock' AND wait_event_type = 'Lock'}, '1', 10),
	'serializable: ping waits');
my $changed = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
$changer->run('COMMIT');
ok(wait_until($one, "SELECT last_ping > '$changed' FROM pgpool.locks", 't', 10), 'serializable: ping is answered');
unlike(slurp_file($one->logfile), qr/cannot ping the locks of server "strict"/, 'serializable: ping does not fail');
is($holder->run("SELECT pgpool.unlock('strict', 'strict', $token)"), 't', 'serializable: lock is released');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET default_transaction_isolation');
$changer->quit;

# --- continuous releases do not keep pings from being sent; each release takes so long
# that there is a new one when it is answered
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END';
CREATE TRIGGER slow BEFORE UPDATE OF state ON pgpool_lock.locks EXECUTE FUNCTION slow();
EOT
$one->safe_psql('postgres', 'CREATE TABLE run ()');
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'kept', '10 s', '1 min')});
my @busy = map { PgpxSession->new($one) } 1 .. 8;
foreach my $i (0 .. $#busy)
{
	$busy[$i]->start(<<"EOT");
DO \$\$ BEGIN
	FOR n IN 1 .. 1000000 LOOP
		EXIT WHEN to_regclass('run') IS NULL;
		PERFORM pgpool.try_lock_xact('keeper', 'busy $i ' || n % 10);
		COMMIT;
	END LOOP;
END \$\$
EOT
}
ok(wait_until($remote, sub { $remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.locks WHERE name LIKE 'busy % 1'}) }, 8), 'eight sessions acquire locks');
my $pinged = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
ok(wait_until($one, "SELECT last_ping > '$pinged' FROM pgpool.locks WHERE name = 'kept'"), 'another lock is pinged meanwhile');
$one->safe_psql('postgres', 'DROP TABLE run');
$_->finish foreach @busy;
$remote->safe_psql('remote_db', 'DROP TRIGGER slow ON pgpool_lock.locks');
is(join('', map { $_->error } @busy), '', 'eight sessions acquire and release locks all the time');
is($holder->run("SELECT pgpool.unlock('keeper', 'kept', $token)"), 't', 'another lock is still held');

# --- A session that waits for a lock and also for a connection does not block other
# users: neither a user whose login fails, nor one whose pool is used up.
make_pool($one, $remote, server => 'contended', options => { pool_size => 1, on_unavailable => 'wait' });
$one->safe_psql('postgres', <<'EOT');
CREATE ROLE shut_out LOGIN;
CREATE USER MAPPING FOR shut_out SERVER contended OPTIONS (user 'remote_app', password 'not this one');
GRANT USAGE ON FOREIGN SERVER contended TO shut_out;
EOT
my $waiters = q{SELECT count(*) FROM pgpool.waiters WHERE server = 'contended'};
my $shut_out = PgpxSession->new($one, user => 'shut_out');
$shut_out->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
ok(wait_until($one, $waiters, '1'), 'user with a wrong password waits for a lock and a connection');
my @app = map { PgpxSession->new($one, user => 'app') } 1 .. 3;
$app[0]->run(q{SELECT pgpool.checkout('contended', '1 h')});
is($app[0]->error, '', 'another user has leased all connections of its pool');
$app[1]->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
ok(wait_until($one, $waiters, '2'), 'session of that user waits, too');
$token = $holder->run(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
like($token, qr/^\d+$/, 'third user acquires the lock') or diag($holder->error);
is($holder->run("SELECT pgpool.unlock('contended', 'balancer', $token)"), 't', 'third user releases the lock');
$token = $holder->run(q{SELECT pgpool.try_lock('contended', 'balancer')});
like($token, qr/^\d+$/, 'third user acquires the lock without waiting') or diag($holder->error);

# of the other users, the first waiter of each is granted the lock, in any order
$app[2]->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
$busy[0]->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
$app[0]->run('SELECT pgpool.checkin_all()');
ok(wait_until($one, $waiters, '1'), 'all waiters but one have a connection');
is(scalar(grep { $_->done } @app[ 1, 2 ], $busy[0]), 0, 'waiters wait for the lock only');
my $late = PgpxSession->new($one, user => 'app');
$late->fails(q{SELECT pgpool.lock('contended', 'balancer', '100 ms')}, '55P03', qr/DETAIL:  It is held by PID \d+ of this server/, 'error of a session that never was the first in the queue names the holder');
$late->quit;
$holder->run("SELECT pgpool.unlock('contended', 'balancer', $token)");
my (@waiting, @served) = ($app[1], $app[2], $busy[0]);
while (@waiting && @served < 3)
{
	my ($next) = grep { $_->done } @waiting;

	last unless $next || wait_until($one, sub { ($next) = grep { $_->done } @waiting; $next ? 1 : 0 }, 1, 20);
	my $higher = $next->finish;
	cmp_ok($higher || 0, '>', $token, 'one waiter acquires the lock') or diag($next->error);
	$token = $higher;
	push @served, $next;
	@waiting = grep { $_ != $next } @waiting;
	is(scalar(grep { $_->done } @waiting), 0, 'other waiters still wait');
	is($next->run("SELECT pgpool.unlock('contended', 'balancer', $token)"), 't', 'lock is released');
}
is(scalar(@served), 3, 'all waiters acquired the lock');
is(join(' ', map { $_ == $app[1] ? 'first' : 'second' } grep { $_ != $busy[0] } @served), 'first second', 'waiters of one user acquired the lock in order');
is($one->safe_psql('postgres', $waiters), '1', 'session without a connection still waits');
$one->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $shut_out->pid . ')');
$shut_out->finish;
$shut_out->failed('57014', qr/canceling statement/, 'session without a connection can be cancelled');

# A session that sends a request and is cancelled before the answer does not block other
# sessions either. Its release, which may be unnecessary and does not end, must not delay
# other releases.
$remote->safe_psql('remote_db', <<'EOT');
CREATE ROLE remote_slow LOGIN PASSWORD 'slow' IN ROLE remote_app;
CREATE TABLE awake ();
GRANT SELECT ON awake TO remote_app;
CREATE FUNCTION doze() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN IF session_user = ''remote_slow'' AND NOT EXISTS (SELECT FROM public.awake) THEN PERFORM pg_sleep(60); END IF; RETURN NULL; END';
CREATE TRIGGER doze BEFORE UPDATE ON pgpool_lock.locks EXECUTE FUNCTION doze();
EOT
$one->safe_psql('postgres', q{ALTER USER MAPPING FOR shut_out SERVER contended OPTIONS (SET user 'remote_slow', SET password 'slow')});
$shut_out->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
my $dozes = q{SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = 'remote_slow' AND wait_event = 'PgSleep'};
ok(wait_until($remote, $dozes, 't'), 'request is not answered');
$one->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $shut_out->pid . ')');
$shut_out->finish;
$shut_out->failed('57014', qr/canceling statement/, 'session is cancelled');
ok(wait_until($remote, "$dozes AND application_name = 'pgpool_ext lock'", 't'), 'release is not answered');
$token = $holder->run(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
like($token, qr/^\d+$/, 'other session acquires the lock') or diag($holder->error);
is($one->safe_psql('postgres', q{SELECT string_agg(state, ' ' ORDER BY state) FROM pgpool.locks WHERE name <> 'kept'}) // '', 'held releasing', 'pgpool.locks shows the pending release');
$remote->safe_psql('remote_db', 'INSERT INTO awake DEFAULT VALUES');
$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_slow'});
is($holder->run("SELECT pgpool.unlock('contended', 'balancer', $token)"), 't', 'lock is released by the other session');
ok(wait_until($one, 'SELECT count(*) FROM pgpool.locks', '0'), 'no lock is left');

# --- a session that holds a lease for which the lock's holder may wait must not wait
# for a lock without a timeout
make_pool($one, $remote, server => 'endless', options => { pool_size => 2, checkout_timeout => '0' });
$token = $holder->run(q{SELECT pgpool.lock('endless', 'x')});
foreach my $i (0, 1)
{
	like($busy[$i]->run(q{SELECT pgpool.checkout('endless')}), qr/^\d+$/, 'session has a lease');
	$busy[$i]->start(q{SELECT pgpool.lock('endless', 'x')});
}
$holder->start(q{SELECT a FROM pgpool.query('endless', 'SELECT 42') AS t(a integer)});
foreach my $i (0, 1)
{
	$busy[$i]->finish(20);
	$busy[$i]->failed('40P01', qr/cannot wait without a timeout while this session holds a lease\nDETAIL:  This session holds 1 lease\./,
		'session with a lease cannot wait for a lock without a timeout');
}
$busy[1]->fails(q{SELECT pgpool.lock('endless', 'x', '100 ms')}, '55P03', qr/did not become available within 100 ms/, 'session with a lease can wait for a lock with a timeout');
$busy[0]->run('SELECT pgpool.checkin_all()');
is($holder->finish(20), '42', 'holder is granted a connection');
like($busy[1]->run(q{SELECT pgpool.lock('endless', 'y')}), qr/^\d+$/, 'session with a lease can acquire a free lock') or diag($busy[1]->error);
$_->run('DISCARD ALL') foreach $holder, @busy[ 0, 1 ];

# --- a call without a limit also waits without a limit for a connection
make_pool($one, $remote, server => 'crowded', options => { pool_size => 1, checkout_timeout => '100ms' });
like($busy[0]->run(q{SELECT pgpool.checkout('crowded', '1 min')}), qr/^\d+$/, 'session has the only connection');
$busy[1]->fails(q{SELECT pgpool.lock('crowded', 'z')}, '55P03', qr/no connection to server "crowded" became available/, 'default timeout is that of a checkout');
$holder->start(q{SELECT pgpool.lock('crowded', 'z', '0')});
ok(wait_until($one, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'crowded'}, '1'), 'session waits for a connection');
ok(wait_until($one, q{SELECT deadline IS NULL AND clock_timestamp() > waiting_since + '1 s' FROM pgpool.waiters WHERE server = 'crowded'}, 't'), 'session waits for longer than checkout_timeout');
$busy[0]->run('SELECT pgpool.checkin_all()');
like($holder->finish(20), qr/^\d+$/, 'lock is granted') or diag($holder->error);
$holder->run('DISCARD ALL');

# --- the user mapping is replaced while its user waits for a lock: the lock is acquired in
# the new pool
make_pool($one, $remote, server => 'moving');
my $pools = q{SELECT count(*) FROM pgpool.stats WHERE server = 'moving' AND checkins > 0 AND pool_id};
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'moved', '10 s')});
$app[0]->start(q{SELECT pgpool.lock('moving', 'moved', '1 min')});
ok(wait_until($one, "$pools > 0", '1'), 'lock is requested through the old pool');
my $old = $one->safe_psql('postgres', q{SELECT pool_id FROM pgpool.pools WHERE server = 'moving'});
$one->safe_psql('postgres', q{BEGIN; DROP USER MAPPING FOR app SERVER moving;}
	  . q{ CREATE USER MAPPING FOR app SERVER moving OPTIONS (user 'remote_app', password '} . $REMOTE_APP_PASSWORD . q{'); COMMIT});
ok(wait_until($one, "$pools > $old", '1'), 'lock is requested through the new pool');
$holder->run("SELECT pgpool.unlock('keeper', 'moved', $token)");
$token = $app[0]->finish(20);
like($token, qr/^\d+$/, 'lock is granted') or diag($app[0]->error);
is($app[0]->run("SELECT pgpool.lock_valid('moving', 'moved', $token)"), 't', 'lock is valid');
ok(wait_until($one, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE server = 'moving'}, 't'), 'lock is pinged');
is($app[0]->run("SELECT pgpool.unlock('moving', 'moved', $token)"), 't', 'lock is released');
is($one->safe_psql('postgres', q{SELECT count(*) FROM pgpool.locks WHERE server = 'moving'}), '0', 'no lock is left');
$_->quit foreach @app, $shut_out;

# --- a request is executed a second time, as by a backend that received it before the
# connection was lost: the same statement, read from the remote server's log
$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET log_statement = 'all'});
make_pool($one, $remote, server => 'logged');
my $log = -s $remote->logfile;
$token = $holder->run(q{SELECT pgpool.lock('logged', 'twice', '10 s', '1 min')});
ok(slurp_file($remote->logfile, $log) =~ /execute [^:]*: (SELECT \* FROM pgpool_lock\.acquire.*)\n.*DETAIL:  [Pp]arameters: (.*)/, 'request is in the log');
my ($statement, $list) = ($1, $2);
my $values = join ', ', map { /= (.*)/s } split /, (?=\$\d+ = )/, $list;
my $again = "PREPARE ask AS $statement; EXECUTE ask ($values)";
my $row = q{SELECT token, state, expires > now() + interval '50 s' FROM pgpool_lock.locks WHERE name = 'twice'};
$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET log_statement');
$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET expires = now() + interval '30 s' WHERE name = 'twice'});
like($remote->safe_psql('remote_db', $again), qr/^$token\|/, 'repeated request returns the same token');
is($remote->safe_psql('remote_db', $row), "$token|held|t", 'lock is kept for its holder');
$pinged = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
ok(wait_until($one, "SELECT last_ping > '$pinged' FROM pgpool.locks", 't'), 'lock is still pinged');
is($holder->run("SELECT pgpool.unlock('logged', 'twice', $token)"), 't', 'holder can release the lock');
like($remote->safe_psql('remote_db', $again), qr/^\|.*\|t$/, 'repeated request after the release is refused');
like($remote->safe_psql('remote_db', $row), qr/^$token\|free\|/, 'lock is free');
$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET state = 'held', expires = now() WHERE name = 'twice'});
like($remote->safe_psql('remote_db', $again), qr/^\|.*\|t$/, 'repeated request after the expiry is refused');

# a request that was granted without a reply and then released by force: a new request
# is made
$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET state = 'free', acquisition = acquisition + 1 WHERE name = 'twice'});
my $next = $holder->run(q{SELECT pgpool.try_lock('logged', 'twice')});
cmp_ok($next || 0, '>', $token, 'request that was already granted is replaced by a new one') or diag($holder->error);
is($remote->safe_psql('remote_db', q{SELECT state FROM pgpool_lock.locks WHERE name = 'twice'}), 'held', 'new request is granted');
is($holder->run("SELECT pgpool.unlock('logged', 'twice', $next)"), 't', 'lock is released');

# --- The first answer to a release is lost: its repetition does not report a loss.
# Another transaction has locked the row, so the pinger times out and repeats the
# release on another connection. Both statements are executed in the end.
my $short = PgpxSession->new($one);
$short->run(q{SELECT pgpool.lock('keeper', 'short', '10 s', '3 s')});
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'repeated', '10 s', '1 min')});
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
$blocker->run(q{BEGIN; SELECT FROM pgpool_lock.locks WHERE name = 'repeated' FOR NO KEY UPDATE});
$holder->start("SELECT pgpool.unlock('keeper', 'repeated', $token)");
ok(wait_until($remote, q{SELECT count(*) >= 2 FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'}
	  . q{ AND wait_event_type = 'Lock' AND query LIKE '%pgpool_lock.release%'}, 't', 30), 'release is repeated');
$blocker->run('ROLLBACK');
is($holder->finish(20), 't', 'lock is released');
is($holder->error, '', 'no warning is raised');

# --- a request does not wait for the row on the remote server, however long the ttl
$log = -s $remote->logfile;
$blocker->run(q{BEGIN; SELECT FROM pgpool_lock.locks WHERE name = 'repeated' FOR NO KEY UPDATE});
$busy[0]->start(q{SELECT pgpool.lock('keeper', 'repeated', '1 h', '1 day')});
ok(wait_until($remote, sub { slurp_file($remote->logfile, $log) =~ /canceling statement due to lock timeout/ ? 1 : 0 }, 1, 40), 'request for a locked row ends');
$blocker->run('ROLLBACK');
like($busy[0]->finish(20), qr/^\d+$/, 'request is repeated') or diag($busy[0]->error);
$busy[0]->run('DISCARD ALL');

# --- the options change: lock_valid publishes them to the worker; the start commands
# return many rows
make_pool($one, $remote, server => 'changed');
$token = $holder->run(q{SELECT pgpool.lock('changed', 'changed', '10 s', '1 min')});
ok(wait_until($one, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE server = 'changed'}, 't'), 'lock is pinged');
$one->safe_psql('postgres', q{ALTER SERVER changed OPTIONS (ADD start_commands 'SET application_name = ''changed''; SELECT repeat(''x'', 1000) FROM generate_series(1, 20000)')});
is($holder->run("SELECT pgpool.lock_valid('changed', 'changed', $token)"), 't', 'lock is valid under new options');
ok(wait_until($remote, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'changed' AND query LIKE '%pgpool_lock.ping(%'}, 't', 20), 'lock is pinged under new options');
is($holder->run("SELECT pgpool.unlock('changed', 'changed', $token)"), 't', 'lock is released');

# --- a ping that reaches its row after the lock has expired does not revive the lock
like($short->run(q{SELECT pgpool.lock('keeper', 'over', '10 s', '1 min')}), qr/^\d+$/, 'lock is held');
my $over = sub { return $remote->safe_psql('remote_db', "SELECT $_[0] FROM pgpool_lock.locks WHERE name = 'over'"); };
my $pings = q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'};
$blocker->run(q{BEGIN; UPDATE pgpool_lock.locks SET contended = NULL WHERE name = 'over'});
ok(wait_until($remote, "$pings AND wait_event_type = 'Lock'", 't'), 'ping waits for the row');
my $expires = $over->('expires');
let_time_pass($_, 61) foreach $one, $remote;
ok(wait_until($one, q{SELECT state FROM pgpool.locks WHERE name = 'over'}, 'lost'), 'lock is lost');
ok(wait_until($remote, sub { $over->('expires < clock_timestamp()') }, 't'), 'lock has expired on the remote server');
is($remote->safe_psql('postgres', "$pings AND wait_event_type = 'Lock'"), 't', 'ping still waits');
$blocker->run('COMMIT');
ok(wait_until($remote, "$pings AND state = 'active'", 'f'), 'ping ends');
is($over->('expires'), $expires, 'ping has no effect');
$short->run('DISCARD ALL');

# --- the ttl of a ping counts from when it was sent; on the remote server it counts
# from its execution
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION thoughtful() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.8); RETURN NULL; END';
CREATE TRIGGER thoughtful AFTER UPDATE ON pgpool_lock.locks FOR EACH ROW WHEN (NEW.name = 'asked') EXECUTE FUNCTION thoughtful();
EOT
like($short->run(q{SELECT pgpool.lock('keeper', 'asked', '10 s', '1 min')}), qr/^\d+$/, 'lock with slow pings is held');
ok(wait_until($one, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'asked'}, 't'), 'pings are answered');
$blocker->run(q{BEGIN; SET LOCAL session_replication_role = replica; UPDATE pgpool_lock.locks SET contended = NULL WHERE name = 'asked'});
ok(wait_until($remote, "$pings AND wait_event_type = 'Lock'", 't'), 'next ping waits');
my $until = $short->run(q{SELECT valid_until FROM pgpool.locks WHERE name = 'asked'});
is($remote->safe_psql('remote_db', "SELECT '$until' < expires FROM pgpool_lock.locks WHERE name = 'asked'"), 't', 'lock expires locally before it does on the remote server');
$blocker->run('COMMIT');

# the same for the first grant
$short->run('DISCARD ALL');
ok(wait_until($one, q{SELECT count(*) FROM pgpool.locks WHERE name = 'asked'}, '0'), 'lock is released');
like($short->run(q{SELECT pgpool.lock('keeper', 'asked', '10 s', '1 min')}), qr/^\d+$/, 'lock is granted again slowly');
$until = $short->run(q{SELECT valid_until FROM pgpool.locks WHERE name = 'asked'});
is($remote->safe_psql('remote_db', "SELECT '$until' < expires FROM pgpool_lock.locks WHERE name = 'asked'"), 't', 'newly granted lock expires locally before it does on the remote server');
$remote->safe_psql('remote_db', 'DROP TRIGGER thoughtful ON pgpool_lock.locks');
$short->run('DISCARD ALL');
$_->quit foreach $blocker, $short;

$holder->quit;
$_->quit foreach @busy;
check_invariants($one);
stats_add_up($one);
leak_check($one, $remote);
done_testing();
