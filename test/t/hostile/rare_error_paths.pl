# Rare messages of remote servers, rare states of tables and rare calls: each raises an
# error with a reason, or has no effect.
use strict;
use warnings;

use PgpxFakeServer qw(message greeting backend_key ready done);
use PgpxProxy;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;


# Behaviour: an answer with a message in front of it.
sub behind
{
	my ($message) = @_;

	return sub { my ($self) = @_; $self->receive; $self->send($message, $self->answer('1')); $self->serve };
}

my $fake = PgpxFakeServer->new(
	trailing_notice => sub { $_[0]->receive; $_[0]->send($_[0]->answer('1') . message('N', "SWARNING\0C01000\0Mbehind the answer\0\0")); $_[0]->serve },
	stays => sub { $_[0]->serve(1); sleep },
	notes => behind(join '', map { message('A', $_) } 'x', "\0\0\0\1channel", "\0\0\0\1channel\0payload", "\0\0\0\1\x9F\0\0", "\0\0\0\1channel\0\x9F\0", "\0\0\0\1good\0one\0"),
	reset => sub { my ($self) = @_; $self->serve(1); $self->receive; $self->send(done('DISCARD ALL'), message('S', "DateStyle\0German, DMY\0"), ready()); sleep },
	start => sub { $_[0]->receive },
	within => { login => sub { $_[0]->send(greeting('15.0'), backend_key(), message('Z', 'T')); sleep } },
	no_login => { login => sub { sleep } });
my $remote = remote_node('remote');
my $proxy = PgpxProxy->new($remote->port);
my $local = local_node('local');
my %options = (pool_size => 1, retry_min => '10 ms', retry_max => '50 ms');
make_pool($local, $fake, server => $_, remote_dbname => $_, options => { %options, sslmode => PgpxFakeServer::sslmode(), $_ eq 'start' ? (start_commands => 'select 1') : (), $_ eq 'no_login' ? (connect_timeout => '1min') : () })
  foreach qw(trailing_notice stays notes reset start within no_login);
make_pool($local, $remote, server => 'one', options => { %options, pool_size => 3 });
my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

$session->run(q{SELECT pgpool.checkout('trailing_notice') AS lease \gset});
is($session->run(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'answer in one segment with a notice is correct');
my $notices = $session->error;
$session->run(q{SELECT pgpool.exec(:lease, 'select 1')}); # over TLS the notice may arrive a moment later
like($notices . $session->error, qr/WARNING:.*behind the answer/, 'notice is reported');
$session->run('SELECT pgpool.checkin(:lease)');
$session->run(q{SELECT pgpool.checkout('notes') AS lease \gset});
is($session->run(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'answer behind malformed notifications is correct');
is($session->run('SELECT channel, payload FROM pgpool.notifications(:lease)'), 'good|one', 'only the valid notification is kept');
$session->run('SELECT pgpool.checkin(:lease)');
is($session->run(q{SELECT a FROM pgpool.query('stays', 'select 1') AS t(a int)}), '1', 'query succeeds on a fake server that does not close after Terminate');
is($session->run(q{SELECT pgpool.drain('stays', '20 s')}), 't', 'drain does not wait for a server that does not close after Terminate');
my $first = $session->run(q{SELECT pgpool.checkout('reset')});
is($session->run("SELECT a FROM pgpool.query($first, 'select 1') AS t(a int)"), '1', 'connection is used');
$session->run("SELECT pgpool.checkin($first)");
ok(wait_until($local, q{SELECT closed_reset FROM pgpool.stats WHERE server = 'reset'}, 1), 'connection closes after a reset with another DateStyle');
$session->fails(q{SELECT pgpool.checkout('start')}, '08001', qr/DETAIL:.*closed|DETAIL:.*SSL/, 'end of the remote session in the start commands is reported');
$session->fails(q{SELECT pgpool.checkout('within')}, '08001', qr/DETAIL:.*began inside a transaction/, 'remote session that begins in a transaction is refused');
$other->start(q{SELECT pgpool.checkout('no_login', '1 h')});
ok(wait_until($local, 'SELECT reason FROM pgpool.waiters', 'connecting'), 'waiter shows that a connection is being opened');
{
	# a stopped postmaster starts no worker
	my $ends = worker_pid($local);
	my ($postmaster) = slurp_file($local->data_dir . '/postmaster.pid') =~ /^(\d+)/;

	kill 'STOP', $postmaster;
	kill 'TERM', $ends;
	ok(wait_until($local, sub { $session->run(q{SELECT state FROM pgpool.workers}) }, 'down'), 'no worker runs');
	is($session->run(q{SELECT w.reason, p.total FROM pgpool.waiters w JOIN pgpool.pools p USING (server)}), 'connecting|0', 'waiter for the next worker shows the reason');
	kill 'CONT', $postmaster;
}
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $other->pid . ')');
$other->finish;
$other->failed('57014', qr/canceling statement/, 'waiter can be cancelled');

# --- start commands that change how values are read
foreach my $case ([ client_encoding => 'latin1' ], [ datestyle => 'German, DMY' ], [ intervalstyle => 'iso_8601' ])
{
	my ($name, $value) = @$case;

	make_pool($local, $remote, server => "set_$name", options => { %options, start_commands => "set $name to $value" });
	$session->fails("SELECT pgpool.checkout('set_$name')", '08001', qr/DETAIL:.*runs with $name "$value"/i, "$name: change by start commands is refused");
}

# --- a server is altered while a connection to it is being opened, which is then closed
make_pool($local, $proxy, server => 'slow', options => { %options, connect_timeout => '20 s', operation_timeout => '10 min' });
$proxy->command('freeze');
$other->start(q{SELECT a FROM pgpool.query('slow', 'select current_setting($$geqo$$)') AS t(a text)});
ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'slow'}, 'connecting'), 'connection is being opened');
$local->safe_psql('postgres', q{ALTER SERVER slow OPTIONS (ADD start_commands 'set geqo = off')});
$session->run(q{SELECT pgpool.try_checkout('slow')});
$proxy->command('pass');
is($other->finish(60), 'off', 'waiter is granted a connection with the new options') or diag($other->error);

# --- a cancel request is in progress when the lease is returned, and the server is
# altered or the worker ends
$session->run(q{SELECT pgpool.checkin_all()});
my $gate = PgpxSession->new($remote, dbname => 'remote_db');
my $cancelling = q{SELECT state FROM pgpool.connections WHERE server = 'slow'};
foreach my $how (qw(alter worker))
{
	$session->run(q{SELECT pgpool.checkout('slow', '10 s') AS lease \gset});
	$gate->run('SELECT pg_advisory_lock(5)');
	$session->run(q{SELECT pgpool.send(:lease, 'select pg_advisory_xact_lock(5)')});
	$proxy->command(over_tls() ? 'hold all' : 'hold');
	is($session->run('SELECT pgpool.cancel(:lease)'), 't', "$how: statement is cancelled");
	$gate->run('SELECT pg_advisory_unlock(5)');
	$session->run('SELECT * FROM pgpool.result(:lease) AS t(a text)', 30);
	is($session->run('SELECT pgpool.checkin(:lease)') . $session->error, '', "$how: lease is returned after the end of the statement");
	is($local->safe_psql('postgres', $cancelling), 'cancelling', "$how: cancel request is still in progress");
	if ($how eq 'alter')
	{
		$local->safe_psql('postgres', q{ALTER SERVER slow OPTIONS (SET start_commands 'set geqo = on')});
		$session->run(q{SELECT pgpool.try_checkout('slow')});
	}
	else { terminate($local, worker_pid($local)); }
	$proxy->command('pass');
	ok(wait_until($local, sub { $other->run(q{SELECT a FROM pgpool.query('slow', 'select 42') AS t(a int)}) }, 42, 30), "$how: pool works") or diag($other->error);
	$session->run(q{SELECT pgpool.checkin_all()});
}

# --- a lease whose connection is lost, and a lease of a dropped role
$session->run(q{SELECT pgpool.checkout('one') AS lease \gset});
$session->run(q{SELECT pgpool.exec(:lease, 'select pg_terminate_backend(pg_backend_pid())')});
is($session->sqlstate, '08006', 'connection is lost');
is($session->run('SELECT state FROM pgpool.leases'), 'broken', 'pgpool.leases shows the broken lease');
$session->fails('SELECT * FROM pgpool.notifications(:lease)', '08006', qr/connection to server "one" was lost/, 'broken lease has no notifications');
$session->run(q{SELECT pgpool.checkin_all()});
$local->safe_psql('postgres', q{CREATE ROLE gone SUPERUSER LOGIN; CREATE USER MAPPING FOR gone SERVER one OPTIONS (user 'remote_app', password '} . $REMOTE_APP_PASSWORD . q{')});
my $gone = PgpxSession->new($local, user => 'gone');
lease($gone, 'one');
$local->safe_psql('postgres', 'DROP USER MAPPING FOR gone SERVER one; DROP ROLE gone');
is($session->run(q{SELECT count(*) FROM pgpool.leases WHERE user_name IS NULL}), '1', 'lease of a dropped role is shown without a user');
$gone->quit;

# --- fanout: a function called for a row of one server cannot return the lease of the
# other one
make_pool($local, $remote, server => $_, options => \%options) foreach qw(branch1 branch2);
$session->run(<<'EOT');
CREATE FUNCTION returns_all(int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pgpool.checkin(lease) FROM pgpool.leases WHERE pid = pg_backend_pid() AND scope = 'call' AND state = 'idle';
	RETURN true;
END $$;
CREATE DOMAIN that_returns AS int CHECK (returns_all(VALUE));
EOT
$session->fails(q{SELECT * FROM pgpool.fanout('{branch1,branch2}', 'select 1') AS t(s text, x that_returns)}, '55000', qr/lease \d+ is in use/, 'lease of a fanout cannot be returned');
is($session->run(q{SELECT count(*) FROM pgpool.fanout('{branch1,branch2}', 'select 1') AS t(s text, x int)}), '2', 'next fanout succeeds');
$session->run('DROP DOMAIN that_returns; DROP FUNCTION returns_all');

# a fanout that fails during its wait frees its wait set
my $wait_sets = sub { my $pid = $session->pid; return scalar grep { (readlink // '') =~ /eventpoll/ } glob "/proc/$pid/fd/*"; };
my $had = $wait_sets->();
$session->fails(q{SELECT * FROM pgpool.fanout('{branch1,branch2}', 'select 1 / length(pg_sleep(0.2)::text)') AS t(s text, x int)}, '22012', qr/division by zero/, 'fanout fails during its wait');
is($wait_sets->(), $had, 'fanout leaves no wait set');

# --- a statement can be cancelled when part of its answer has arrived
$session->run(q{SELECT pgpool.checkout('branch1') AS lease \gset});
$session->run(q{SELECT pgpool.send(:lease, 'select generate_series(1, 100000000)')});
is($session->run(q{SELECT pgpool.wait(:lease, '60 s'), pgpool.cancel(:lease)}), 't|t', 'partly received answer can be cancelled');
$session->fails('SELECT count(*) FROM pgpool.result(:lease) AS t(i int)', '57014', qr/canceling statement due to user request/, 'answer ends with the cancel');
is($session->run(q{SELECT pgpool.cancel(:lease), pgpool.checkin(:lease)}), 'f|', 'nothing is left to cancel');

# --- the lease of a call in progress cannot be returned by a function that it calls
$local->safe_psql('postgres', <<'EOT');
CREATE FUNCTION returns_all(int) RETURNS boolean LANGUAGE sql AS 'SELECT pgpool.checkin_all() >= 0';
CREATE DOMAIN kept AS int CHECK (returns_all(VALUE));
EOT
$session->fails(q{SELECT a FROM pgpool.query('one', 'select 7') AS t(a kept)}, '55000', qr/lease \d+ is in use/, 'checkin_all within a query fails');
is($session->run(q{SELECT pgpool.checkin_all()}), '0', 'lease of the query was returned');

# --- fewer slots for pools than pools
{
	# behind another library with the same hooks, if available
	chomp(my $folder = `pg_config --pkglibdir`);
	my $before = -f "$folder/pg_stat_statements.so" ? 'pg_stat_statements, ' : '';
	my $small = local_node('small', preload => 0, conf => [ "shared_preload_libraries = '${before}pgpool_ext'", 'pgpool_ext.max_pools = 2' ]);
	my $user = PgpxSession->new($small);

	make_pool($small, $remote, server => "p$_", options => {%options}) foreach 1 .. 3;
	is($user->run("SELECT pgpool.checkin(pgpool.checkout('p$_', '10 s'))") . $user->error, '', "p$_: pool is used") foreach 1, 2;
	$user->run("SELECT pgpool.drain('$_', '10 s'); SELECT pgpool.resume('$_')") foreach qw(p1 p2);
	is($user->run(q{SELECT pgpool.exec('p3', 'select 1')}) . $user->error, '1', 'pool is used although all slots were in use');
	is($user->run('SELECT string_agg(server, $$ $$ ORDER BY server) FROM pgpool.pools'), 'p2 p3', 'least recently used pool was replaced');
	$user->run(q{SELECT pgpool.checkout('p2', '10 s'); SELECT pgpool.checkout('p3', '10 s')});
	$user->fails(q{SELECT pgpool.checkout('p1', '10 s')}, '53300', qr/too many pools\nDETAIL:  All 2 slots are in use/, 'pool without a slot is refused if all are in use');

	# a lock keeps its pool, although the pool has no connection
	$user->run(q{SELECT pgpool.checkin_all(); SELECT pgpool.lock_setup('p2')});
	my $token = $user->run(q{SELECT pgpool.lock('p2', 'of an empty pool', '10 s')});
	$user->run(q{SELECT pgpool.exec('p3', 'select 1')});
	$user->run("SELECT pgpool.drain('$_', '10 s'); SELECT pgpool.resume('$_')") foreach qw(p2 p3);
	is($user->run(q{SELECT pgpool.exec('p1', 'select 1')}) . $user->error, '1', 'another pool is used while a lock keeps the pool of its server');
	is($user->run('SELECT string_agg(server, $$ $$ ORDER BY server) FROM pgpool.pools'), 'p1 p2', 'pool of a held lock is kept, and a more recently used one was replaced');
	is($user->run("SELECT pgpool.lock_valid('p2', 'of an empty pool', $token), pgpool.unlock('p2', 'of an empty pool', $token)") . $user->error,
		't|t', 'lock is kept');

	$user->quit;
	check_invariants($small);
	$small->stop('fast');
}

# --- locks: triggers make the tables return errors
$session->run(q{SELECT pgpool.lock_setup('one')});
sub trigger
{
	my ($body) = @_;

	$remote->safe_psql('remote_db', <<"EOT");
DROP TRIGGER IF EXISTS raises ON pgpool_lock.locks;
CREATE OR REPLACE FUNCTION raises() RETURNS trigger LANGUAGE plpgsql AS \$f\$ BEGIN $body; RETURN NEW; END \$f\$;
CREATE TRIGGER raises BEFORE INSERT OR UPDATE ON pgpool_lock.locks FOR EACH ROW WHEN (NEW.state = 'held') EXECUTE FUNCTION raises();
EOT
	return;
}
trigger('NEW.token := -1');
$session->run(q{SELECT pgpool.lock('one', 'a', '2 s')});
like($session->error, qr/ERROR: .*token/, 'invalid token is an error') or diag($session->{text});
trigger(q{RAISE EXCEPTION 'try again' USING ERRCODE = '40001'});
$session->fails(q{SELECT pgpool.lock('one', 'b', '700 ms')}, '55P03', qr/lock "b" of server "one" did not become available within 700 ms\nDETAIL:  The last answer of the remote server: try again/, 'transient error is retried until the timeout');

# without a timeout a transient error is retried a few times (counted by a sequence,
# which is not rolled back)
$remote->safe_psql('remote_db', 'CREATE SEQUENCE asked; GRANT USAGE ON SEQUENCE asked TO PUBLIC');
my $asked = sub {
	my $n = $remote->safe_psql('remote_db', 'SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM asked');

	$remote->safe_psql('remote_db', 'ALTER SEQUENCE asked RESTART');
	return $n;
};
trigger(q{PERFORM nextval('public.asked'); RAISE EXCEPTION 'try again' USING ERRCODE = '40001'});
$session->fails(q{SELECT pgpool.try_lock('one', 'b')}, '40001', qr/try again/, 'try_lock does not retry for ever');
is($asked->(), 3, 'try_lock makes three attempts');
trigger(q{RAISE EXCEPTION 'as if lost' USING ERRCODE = '08006'});

is($session->run(q{SELECT pgpool.exec('one', 'select 1')}) . $session->error, '1', 'pool has a connection again');
$session->fails(q{SELECT pgpool.lock('one', 'd', '700 ms')}, '08006', qr/as if lost/, 'unreachable remote server is not reported as a held lock');
$remote->safe_psql('remote_db', 'DROP TRIGGER raises ON pgpool_lock.locks');
$session->run('SET pgpool_ext.checkout_timeout = 0');
like($session->run(q{SELECT pgpool.lock('one', 'e')}), qr/^\d+$/, 'lock without a timeout is granted') or diag($session->error);
$session->run('RESET pgpool_ext.checkout_timeout; DISCARD ALL');

# a lock of transaction scope is lost during its transaction
$session->run(q{BEGIN; SELECT pgpool.lock_xact('one', 'f', ttl => '1 h')});
$remote->safe_psql('remote_db', q{UPDATE pgpool_lock.locks SET state = 'free' WHERE name = 'f'});
ok(wait_until($local, q{SELECT state FROM pgpool.locks WHERE name = 'f'}, 'lost'), 'lock of the transaction is lost');
$session->run('COMMIT');
like($session->error, qr/WARNING:.*lock "f" of server "one" was lost/, 'loss is reported at commit');

# the worker does not answer a release; then the session is cancelled
my $token = $session->run(q{SELECT pgpool.lock('one', 'g', ttl => '1 h')});
my $second = $session->run(q{SELECT pgpool.lock('one', 'h', ttl => '1 h')});
my $worker = worker_pid($local);
$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (ADD operation_timeout '500 ms')});
kill 'STOP', $worker;
is($session->run("SELECT pgpool.unlock('one', 'g', $token)"), '', 'release is not confirmed in time');
like($session->error, qr/WARNING:.*lock "g".*was released, but the remote server has not confirmed it/, 'warning reports the unconfirmed release');
$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (SET operation_timeout '10 min')});
$session->run(q{SET statement_timeout = '100 ms'});
$session->fails("SELECT pgpool.unlock('one', 'h', $second)", '57014', qr/statement timeout/, 'wait for a release can be cancelled');
kill 'CONT', $worker;
$session->reset_statement_timeout;
ok(wait_until($local, 'SELECT count(*) FROM pgpool.locks', 0, 30), 'locks are released later');
is($remote->safe_psql('remote_db', q{SELECT count(*) FROM pgpool_lock.locks WHERE state = 'held'}), '0', 'locks are released on the remote server');
$remote->safe_psql('remote_db', 'DROP SCHEMA pgpool_lock CASCADE');
$session->run(q{SELECT pgpool.lock_force_release('one', 'g')});
like($session->error, qr/ERROR/, 'lock_force_release without tables fails');
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'no lease is left');

$_->quit foreach $session, $other, $gate;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
