# A distributed lock among sessions that are busy with others, and statements about
# it that the remote executes late, twice, or without anybody who hears the answer.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['fsync = off']);
my $one = local_node('one', conf => ['fsync = off']);
make_pool($one, $remote, server => 'keeper', options => { pool_size => 8 });
$one->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});

# --- what the remote says beside its answers does not get into the log of this server
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION noise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE WARNING ''hostile % of %'', TG_OP, current_setting(''application_name''); RETURN NEW; END';
CREATE TRIGGER noise BEFORE INSERT OR UPDATE ON pgpool_lock.locks FOR EACH ROW EXECUTE FUNCTION noise();
EOT
make_pool($one, $remote, server => 'noisy', options => { start_commands => q{DO $$ BEGIN RAISE WARNING 'hostile start'; END $$} });
my $holder = PgpxSession->new($one);
my $token = $holder->run(q{SELECT pgpool.lock('noisy', 'noise', '10 s', '1 min')});
like($holder->error, qr/WARNING:.*hostile INSERT of pgpool_ext/, 'a session has the notices of its own statements');
ok(wait_until($one, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't', 10), 'the worker pings');
is($holder->run("SELECT pgpool.unlock('noisy', 'noise', $token)"), 't', 'and releases');
like(slurp_file($remote->logfile), qr/hostile UPDATE of pgpool_ext lock/, 'it has caused notices');
is(join("\n", grep { /^\w+: .*hostile/ } split /\n/, slurp_file($one->logfile)), '', 'which are not in the log, as libpq writes them');
$remote->safe_psql('remote_db', 'DROP TRIGGER noise ON pgpool_lock.locks');

# --- a user whose transactions are serializable at the remote: a ping that waits for a
# row which somebody has changed is no error
$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET default_transaction_isolation = 'serializable'});
make_pool($one, $remote, server => 'strict');
my $changer = PgpxSession->new($remote, dbname => 'remote_db');
$token = $holder->run(q{SELECT pgpool.lock('strict', 'strict', '10 s', '1 min')});
ok(wait_until($one, 'SELECT last_ping IS NOT NULL FROM pgpool.locks', 't', 10), 'serializable: the worker pings');
$changer->run(q{BEGIN; UPDATE pgpool_lock.locks SET wanted = NULL WHERE name = 'strict'});
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock' AND wait_event_type = 'Lock'}, '1', 10),
	'serializable: a ping waits');
my $changed = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
$changer->run('COMMIT');
ok(wait_until($one, "SELECT last_ping > '$changed' FROM pgpool.locks", 't', 10), 'serializable: it is answered');
unlike(slurp_file($one->logfile), qr/cannot ping the locks of server "strict"/, 'serializable: without an error');
is($holder->run("SELECT pgpool.unlock('strict', 'strict', $token)"), 't', 'serializable: the lock is released');
$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET default_transaction_isolation');
$changer->quit;

# --- releases without end do not keep pings from being sent; a release takes so long
# that there is a new one when it has been answered
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END';
CREATE TRIGGER slow BEFORE UPDATE OF state ON pgpool_lock.locks EXECUTE FUNCTION slow();
EOT
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'kept', '10 s', '6 s')});
my @busy = map { PgpxSession->new($one) } 1 .. 8;
foreach my $i (0 .. $#busy)
{
	$busy[$i]->start(<<"EOT");
DO \$\$ BEGIN
	FOR n IN 1 .. 1000000 LOOP
		EXIT WHEN clock_timestamp() > statement_timestamp() + interval '8 s';
		PERFORM pgpool.try_lock_xact('keeper', 'busy $i ' || n % 10);
		COMMIT;
	END LOOP;
END \$\$
EOT
}
$_->finish(30) foreach @busy;
$remote->safe_psql('remote_db', 'DROP TRIGGER slow ON pgpool_lock.locks');
is(join('', map { $_->error } @busy), '', 'eight sessions have locked and unlocked all the time');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'kept', $token)"), 't', 'a lock was pinged meanwhile');
is($holder->run("SELECT pgpool.unlock('keeper', 'kept', $token)"), 't', 'and is still held');

# --- who waits for a lock, and for a connection to ask with, keeps no other user from
# it: neither one whom the remote does not let in, nor one whose pool others have used up
make_pool($one, $remote, server => 'contended', options => { pool_size => 1, on_unavailable => 'wait' });
$one->safe_psql('postgres', <<'EOT');
CREATE ROLE shut_out LOGIN;
CREATE USER MAPPING FOR shut_out SERVER contended OPTIONS (user 'remote_app', password 'not this one');
GRANT USAGE ON FOREIGN SERVER contended TO shut_out;
EOT
my $waiters = q{SELECT count(*) FROM pgpool.waiters WHERE server = 'contended'};
my $shut_out = PgpxSession->new($one, user => 'shut_out');
$shut_out->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
ok(wait_until($one, $waiters, '1'), 'a user with a wrong password waits for a lock, and for a connection');
my @app = map { PgpxSession->new($one, user => 'app') } 1 .. 3;
$app[0]->run(q{SELECT pgpool.checkout('contended', '5 s')});
is($app[0]->error, '', 'another one has leased all connections of his pool');
$app[1]->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
ok(wait_until($one, $waiters, '2'), 'and waits, too');
$token = $holder->run(q{SELECT pgpool.lock('contended', 'balancer', '5 s')});
like($token, qr/^\d+$/, 'a third one gets the lock') or diag($holder->error);
is($holder->run("SELECT pgpool.unlock('contended', 'balancer', $token)"), 't', 'and releases it');
$token = $holder->run(q{SELECT pgpool.try_lock('contended', 'balancer')});
like($token, qr/^\d+$/, 'also without waiting') or diag($holder->error);

# of the others each user's first is served, in whichever order
$app[2]->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
$busy[0]->start(q{SELECT pgpool.lock('contended', 'balancer', '1 h')});
$app[0]->run('SELECT pgpool.checkin_all()');
ok(wait_until($one, $waiters, '1'), 'there is a connection for all but one');
is(scalar(grep { $_->done } @app[ 1, 2 ], $busy[0]), 0, 'they wait for the lock alone');
$holder->run("SELECT pgpool.unlock('contended', 'balancer', $token)");
my (@waiting, @served) = ($app[1], $app[2], $busy[0]);
while (@waiting && @served < 3)
{
	my ($next) = grep { $_->done } @waiting;

	last unless $next || wait_until($one, sub { ($next) = grep { $_->done } @waiting; $next ? 1 : 0 }, 1, 20);
	my $higher = $next->finish;
	cmp_ok($higher || 0, '>', $token, 'one of them has it') or diag($next->error);
	$token = $higher;
	push @served, $next;
	@waiting = grep { $_ != $next } @waiting;
	is(scalar(grep { $_->done } @waiting), 0, 'and nobody else');
	is($next->run("SELECT pgpool.unlock('contended', 'balancer', $token)"), 't', 'until it releases it');
}
is(scalar(@served), 3, 'all are served');
is(join(' ', map { $_ == $app[1] ? 'first' : 'second' } grep { $_ != $busy[0] } @served), 'first second', 'those of one user in their order');
is($one->safe_psql('postgres', $waiters), '1', 'but for the one who has no connection');
$one->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $shut_out->pid . ')');
$shut_out->finish;
$shut_out->failed('57014', qr/canceling statement/, 'he can be cancelled');

# nor does one who asks for it, and does not wait for the answer: a release that may be
# for nothing, and does not come to its end, is in nobody's way
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
ok(wait_until($remote, $dozes, 't'), 'a question that is not answered');
$one->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $shut_out->pid . ')');
$shut_out->finish;
$shut_out->failed('57014', qr/canceling statement/, 'is cancelled');
ok(wait_until($remote, "$dozes AND application_name = 'pgpool_ext lock'", 't'), 'a release that is not answered either');
$token = $holder->run(q{SELECT pgpool.lock('contended', 'balancer', '2 s')});
like($token, qr/^\d+$/, 'the lock is free for others') or diag($holder->error);
is($one->safe_psql('postgres', q{SELECT string_agg(state, ' ' ORDER BY state) FROM pgpool.locks WHERE name <> 'kept'}) // '', 'held releasing', 'meanwhile');
$remote->safe_psql('remote_db', 'INSERT INTO awake DEFAULT VALUES');
$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_slow'});
is($holder->run("SELECT pgpool.unlock('contended', 'balancer', $token)"), 't', 'it is released');
ok(wait_until($one, 'SELECT count(*) FROM pgpool.locks', '0'), 'and so is the other one');

# --- without a timeout nobody waits for a lock who holds a lease that its holder may
# wait for
make_pool($one, $remote, server => 'endless', options => { pool_size => 2, checkout_timeout => '0' });
$token = $holder->run(q{SELECT pgpool.lock('endless', 'x')});
foreach my $i (0, 1)
{
	like($busy[$i]->run(q{SELECT pgpool.checkout('endless')}), qr/^\d+$/, 'a session has a lease');
	$busy[$i]->start(q{SELECT pgpool.lock('endless', 'x')});
}
$holder->start(q{SELECT a FROM pgpool.query('endless', 'SELECT 42') AS t(a integer)});
foreach my $i (0, 1)
{
	$busy[$i]->finish(20);
	$busy[$i]->failed('40P01', qr/cannot wait without a timeout while this session holds a lease\nDETAIL:  This session holds 1 lease\./,
		'and does not wait for a lock without a timeout');
}
$busy[1]->fails(q{SELECT pgpool.lock('endless', 'x', '100 ms')}, '55P03', qr/did not come free within 100 ms/, 'but with one');
$busy[0]->run('SELECT pgpool.checkin_all()');
is($holder->finish(20), '42', 'so the holder gets a connection');
like($busy[1]->run(q{SELECT pgpool.lock('endless', 'y')}), qr/^\d+$/, 'a lock that is free is not waited for') or diag($busy[1]->error);
$_->run('DISCARD ALL') foreach $holder, @busy[ 0, 1 ];

# --- the user mapping is made anew while its user waits for a lock: what he gets is the
# new pool's
make_pool($one, $remote, server => 'moving');
my $pools = q{SELECT count(*) FROM pgpool.stats WHERE server = 'moving' AND checkins > 0 AND pool_id};
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'moved', '10 s')});
$app[0]->start(q{SELECT pgpool.lock('moving', 'moved', '1 min')});
ok(wait_until($one, "$pools > 0", '1'), 'it has been asked for in vain');
my $old = $one->safe_psql('postgres', q{SELECT pool_id FROM pgpool.pools WHERE server = 'moving'});
$one->safe_psql('postgres', q{BEGIN; DROP USER MAPPING FOR app SERVER moving;}
	  . q{ CREATE USER MAPPING FOR app SERVER moving OPTIONS (user 'remote_app', password '} . $REMOTE_APP_PASSWORD . q{'); COMMIT});
ok(wait_until($one, "$pools > $old", '1'), 'and then through another pool');
$holder->run("SELECT pgpool.unlock('keeper', 'moved', $token)");
$token = $app[0]->finish(20);
like($token, qr/^\d+$/, 'the lock is granted') or diag($app[0]->error);
is($app[0]->run("SELECT pgpool.lock_valid('moving', 'moved', $token)"), 't', 'it is valid');
ok(wait_until($one, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE server = 'moving'}, 't'), 'and pinged');
is($app[0]->run("SELECT pgpool.unlock('moving', 'moved', $token)"), 't', 'and released');
is($one->safe_psql('postgres', q{SELECT count(*) FROM pgpool.locks WHERE server = 'moving'}), '0', 'and nothing is left');
$_->quit foreach @app, $shut_out;

# --- a question is executed once more, as by a backend that got it before the
# connection was lost: the very statement, from the remote's log
$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET log_statement = 'all'});
make_pool($one, $remote, server => 'logged');
my $log = -s $remote->logfile;
$token = $holder->run(q{SELECT pgpool.lock('logged', 'twice', '10 s', '1 min')});
ok(slurp_file($remote->logfile, $log) =~ /execute [^:]*: (WITH got AS .*)\n.*DETAIL:  [Pp]arameters: (.*)/, 'the question is in the log');
my ($statement, $list) = ($1, $2);
my $values = join ', ', map { /= (.*)/s } split /, (?=\$\d+ = )/, $list;
my $again = "PREPARE ask AS $statement; EXECUTE ask ($values)";
my $row = q{SELECT token, state, expires > now() + interval '50 s' FROM pgpool_lock.locks WHERE name = 'twice'};
$remote->safe_psql('postgres', 'ALTER ROLE remote_app RESET log_statement');
$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET expires = now() + interval '30 s' WHERE name = 'twice'});
like($remote->safe_psql('remote_db', $again), qr/^$token\|/, 'a question that comes twice gets one token');
is($remote->safe_psql('remote_db', $row), "$token|held|t", 'the lock is kept for its holder');
my $pinged = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
ok(wait_until($one, "SELECT last_ping > '$pinged' FROM pgpool.locks", 't'), 'who is alive');
is($holder->run("SELECT pgpool.unlock('logged', 'twice', $token)"), 't', 'and can release it');
like($remote->safe_psql('remote_db', $again), qr/^\|.*\|true$/, 'after that it gets nothing');
like($remote->safe_psql('remote_db', $row), qr/^$token\|free\|/, 'and the lock is free');
$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET state = 'held', expires = now() WHERE name = 'twice'});
like($remote->safe_psql('remote_db', $again), qr/^\|.*\|true$/, 'nor does it after the lock has run out');

# a request that was granted, unheard, and then taken by force: another one is drawn
$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET state = 'free', request = request + 1 WHERE name = 'twice'});
my $next = $holder->run(q{SELECT pgpool.try_lock('logged', 'twice')});
cmp_ok($next || 0, '>', $token, 'a request that is spent is replaced') or diag($holder->error);
is($remote->safe_psql('remote_db', q{SELECT state FROM pgpool_lock.locks WHERE name = 'twice'}), 'held', 'and granted');
is($holder->run("SELECT pgpool.unlock('logged', 'twice', $next)"), 't', 'and released');

# --- the first answer of a release is lost: its repetition is not told of a loss.
# Another transaction has the row, so the pinger gives up and asks again on another
# connection, and both statements are carried out in the end
my $short = PgpxSession->new($one);
$short->run(q{SELECT pgpool.lock('keeper', 'short', '10 s', '1500 ms')});
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'unheard', '10 s', '1 min')});
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
$blocker->run(q{BEGIN; SELECT FROM pgpool_lock.locks WHERE name = 'unheard' FOR NO KEY UPDATE});
$holder->start("SELECT pgpool.unlock('keeper', 'unheard', $token)");
ok(wait_until($remote, q{SELECT count(*) >= 2 FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'}
	  . q{ AND wait_event_type = 'Lock' AND query LIKE '%SET state = ''free''%'}, 't', 10), 'a release is tried again');
$blocker->run('ROLLBACK');
is($holder->finish(20), 't', 'it has released the lock');
is($holder->error, '', 'and there is no warning');

# --- a question does not wait at the remote for the row, however long the ttl
$log = -s $remote->logfile;
$blocker->run(q{BEGIN; SELECT FROM pgpool_lock.locks WHERE name = 'unheard' FOR NO KEY UPDATE});
$busy[0]->start(q{SELECT pgpool.lock('keeper', 'unheard', '1 h', '1 day')});
ok(wait_until($remote, sub { slurp_file($remote->logfile, $log) =~ /canceling statement due to lock timeout/ ? 1 : 0 }, 1, 40), 'a question about a row that is locked comes to its end');
$blocker->run('ROLLBACK');
like($busy[0]->finish(20), qr/^\d+$/, 'and is asked again') or diag($busy[0]->error);
$busy[0]->run('DISCARD ALL');

# --- the options change: who asks whether his lock is valid tells the worker; much may come
# of the start commands
make_pool($one, $remote, server => 'changed');
$token = $holder->run(q{SELECT pgpool.lock('changed', 'changed', '10 s', '1 min')});
ok(wait_until($one, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE server = 'changed'}, 't'), 'a lock is pinged');
$one->safe_psql('postgres', q{ALTER SERVER changed OPTIONS (ADD start_commands 'SET application_name = ''changed''; SELECT repeat(''x'', 1000) FROM generate_series(1, 20000)')});
is($holder->run("SELECT pgpool.lock_valid('changed', 'changed', $token)"), 't', 'it is valid under other options');
ok(wait_until($remote, q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'changed' AND query LIKE '%pgpool_lock.pings%'}, 't', 20), 'and pinged under these');
is($holder->run("SELECT pgpool.unlock('changed', 'changed', $token)"), 't', 'and released');

# --- a server that has kept a lock among its sessions for a while stands back for another
# one that wants it, for a third of a second; here each release is told that one does
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION wants() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.wanted := clock_timestamp(); RETURN NEW; END';
CREATE TRIGGER wants BEFORE UPDATE OF state ON pgpool_lock.locks FOR EACH ROW WHEN (NEW.state = 'free') EXECUTE FUNCTION wants();
EOT
$holder->run(<<'EOT', 60);
DO $$ DECLARE began timestamptz; BEGIN
	LOOP
		began := clock_timestamp();
		IF began > statement_timestamp() + interval '30 s' THEN RAISE 'it never stands back'; END IF;
		PERFORM pgpool.unlock('keeper', 'wanted', pgpool.lock('keeper', 'wanted', '10 s'));
		EXIT WHEN clock_timestamp() > began + interval '0.33 s';
	END LOOP;
END $$
EOT
is($holder->error, '', 'who has had a lock for long stands back for another server');
$remote->safe_psql('remote_db', 'DROP TRIGGER wants ON pgpool_lock.locks');

# --- a remote that takes longer than locks with a short ttl can wait for, and there is
# always one of these: they are lost, and others are not
$token = $holder->run(q{SELECT pgpool.lock('keeper', 'patient', '10 s', '6 s')});
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION sluggish() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.45); RETURN NULL; END';
CREATE TRIGGER sluggish BEFORE UPDATE ON pgpool_lock.locks EXECUTE FUNCTION sluggish();
EOT
foreach my $i (0 .. 2)
{
	$busy[$i]->start(<<"EOT");
DO \$\$ BEGIN
	FOR n IN 1 .. 30 LOOP
		EXIT WHEN clock_timestamp() > statement_timestamp() + interval '8 s';
		PERFORM pgpool.try_lock('keeper', 'short $i ' || n, '1 s');
	END LOOP;
END \$\$
EOT
}
$_->finish(60) foreach @busy[ 0 .. 2 ];
cmp_ok($one->safe_psql('postgres', q{SELECT count(*) FROM pgpool.locks WHERE name LIKE 'short%' AND state = 'lost'}), '>', 2, 'locks are lost whose ttl is too short for a slow remote');
is($one->safe_psql('postgres', q{SELECT state FROM pgpool.locks WHERE name = 'patient'}), 'held', 'one with a longer ttl is pinged');
$_->run('DISCARD ALL') foreach $short, @busy;
$remote->safe_psql('remote_db', 'DROP TRIGGER sluggish ON pgpool_lock.locks');
is($holder->run("SELECT pgpool.lock_valid('keeper', 'patient', $token)"), 't', 'and kept');

# --- a row that somebody has locked for long: pings are tried again, and what is left
# of earlier attempts comes to an end at the remote
$log = -s $remote->logfile;
$blocker->run(q{BEGIN; SELECT FROM pgpool_lock.locks WHERE name = 'patient' FOR NO KEY UPDATE});
$holder->run(q{SELECT pgpool.lock('keeper', 'stuck', '10 s', '1 min')});
ok(wait_until($remote, sub { slurp_file($remote->logfile, $log) =~ /canceling statement due to lock timeout/ ? 1 : 0 }, 1, 40), 'no statement waits for ever at the remote');
$blocker->run('ROLLBACK');
$pinged = $one->safe_psql('postgres', 'SELECT clock_timestamp()');
ok(wait_until($one, "SELECT last_ping > '$pinged' FROM pgpool.locks WHERE name = 'stuck'", 't', 20), 'and then locks are pinged again');
$holder->run('DISCARD ALL');

# --- a ping that comes to its row when the lock has run out does not revive it
like($short->run(q{SELECT pgpool.lock('keeper', 'over', '10 s', '1500 ms')}), qr/^\d+$/, 'a lock with a short ttl');
my $over = sub { return $remote->safe_psql('remote_db', "SELECT $_[0] FROM pgpool_lock.locks WHERE name = 'over'"); };
my $pings = q{SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'};
$blocker->run(q{BEGIN; UPDATE pgpool_lock.locks SET wanted = NULL WHERE name = 'over'});
ok(wait_until($remote, "$pings AND wait_event_type = 'Lock'", 't'), 'a ping waits for the row');
my $expires = $over->('expires');
ok(wait_until($one, q{SELECT state FROM pgpool.locks WHERE name = 'over'}, 'lost'), 'until the lock is lost');
ok(wait_until($remote, sub { $over->('expires < clock_timestamp()') }, 't'), 'and has run out at the remote');
is($remote->safe_psql('postgres', "$pings AND wait_event_type = 'Lock'"), 't', 'it still waits');
$blocker->run('COMMIT');
ok(wait_until($remote, "$pings AND state = 'active'", 'f'), 'then it comes to its end');
is($over->('expires'), $expires, 'without effect');
$short->run('DISCARD ALL');

# --- what a ping grants counts from when it was sent: the remote has counted for a while
# when its answer comes
$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION thoughtful() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.8); RETURN NULL; END';
CREATE TRIGGER thoughtful AFTER UPDATE ON pgpool_lock.locks FOR EACH ROW WHEN (NEW.name = 'asked') EXECUTE FUNCTION thoughtful();
EOT
like($short->run(q{SELECT pgpool.lock('keeper', 'asked', '10 s', '10 s')}), qr/^\d+$/, 'a lock whose pings take long at the remote');
ok(wait_until($one, q{SELECT last_ping IS NOT NULL FROM pgpool.locks WHERE name = 'asked'}, 't'), 'and are answered');
$blocker->run(q{BEGIN; SET LOCAL session_replication_role = replica; UPDATE pgpool_lock.locks SET wanted = NULL WHERE name = 'asked'});
ok(wait_until($remote, "$pings AND wait_event_type = 'Lock'", 't'), 'the next one waits');
my $until = $short->run(q{SELECT valid_until FROM pgpool.locks WHERE name = 'asked'});
is($remote->safe_psql('remote_db', "SELECT '$until' < expires FROM pgpool_lock.locks WHERE name = 'asked'"), 't', 'this server believes in it for less long than the remote');
$blocker->run('COMMIT');

# nor does what is granted at first count from its answer
$short->run('DISCARD ALL');
ok(wait_until($one, q{SELECT count(*) FROM pgpool.locks WHERE name = 'asked'}, '0'), 'it is released');
like($short->run(q{SELECT pgpool.lock('keeper', 'asked', '10 s', '10 s')}), qr/^\d+$/, 'and granted again, which takes long, too');
$until = $short->run(q{SELECT valid_until FROM pgpool.locks WHERE name = 'asked'});
is($remote->safe_psql('remote_db', "SELECT '$until' < expires FROM pgpool_lock.locks WHERE name = 'asked'"), 't', 'in which this server believes for less long as well');
$remote->safe_psql('remote_db', 'DROP TRIGGER thoughtful ON pgpool_lock.locks');
$short->run('DISCARD ALL');
$_->quit foreach $blocker, $short;

$holder->quit;
$_->quit foreach @busy;
check_invariants($one);
stats_add_up($one);
leak_check($one, $remote);
done_testing();
