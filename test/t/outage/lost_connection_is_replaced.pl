# The end of a remote backend. An idle connection is replaced without an error. A lease
# fails with 08006. A waiter is granted a new connection.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
make_pool($local, $remote, server => 'three', options => { pool_size => 3 });

my $row = 'AS t(a int)';
my $session = PgpxSession->new($local);
my $ours = "application_name LIKE 'pgpool_ext%' AND backend_type = 'client backend'";

sub kill_remote
{
	my ($gone) = @_;

	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $ours");
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'remote sessions have ended')
	  if $gone;
	return;
}

# Over TLS a session notices the end only after the worker has.
sub seen
{
	return if !over_tls();
	return ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE state IN ('idle', 'reset_pending')}, 0), 'worker has noticed the end of the remote sessions');
}

# idle connections
foreach my $round (1 .. 20)
{
	my @others = map { lease($session, 'three') } 1 .. 3;
	$session->run('SELECT pgpool.checkin_all()');
	kill_remote($round % 2);
	seen() if $round % 2;
	my $got = $session->run("SELECT * FROM pgpool.query('three', 'select $round') $row");
	is($got . $session->error, "$round", 'connection that ended while idle is replaced without an error') if $round % 2;

	# the query may still have used the session that was about to end
	like($got . $session->sqlstate, qr/^(?:$round|08006)$/, 'query returns a row or fails with 08006') unless $round % 2;
}
# A session must notice the end even before the worker does. Over TLS it cannot, because
# it sees the end only through the worker.
my $lease = lease($session, 'one');
$session->run("SELECT pgpool.checkin($lease)");
my $worker = worker_pid($local);
kill 'STOP', $worker;
kill_remote(1);
$session->start("SELECT pgpool.checkout('one', '30 s')");
if (over_tls())
{
	$lease = $session->finish(20);
	$session->start("SELECT * FROM pgpool.query($lease, 'select 1') $row");
	kill 'CONT', $worker;
	is($session->finish(20) . $session->sqlstate, '08006', 'over TLS: query fails if the worker has not noticed the end');
	$session->run("SELECT pgpool.checkin($lease)");
	$lease = lease($session, 'one');
	is($session->run("SELECT * FROM pgpool.query($lease, 'select 1') $row"), '1', 'over TLS: next lease has a new connection');
}
else
{
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1', 5);
	kill 'CONT', $worker;
	$lease = $session->finish(20);
	is($session->run("SELECT * FROM pgpool.query($lease, 'select 1') $row") . $session->error, '1',
		'session notices the end before the worker');
}
$session->run('SELECT pgpool.checkin_all()');

$lease = lease($session, 'one');
$session->run("SELECT * FROM pgpool.query($lease, 'select 1') $row; SELECT pgpool.checkin($lease)");
kill_remote(1);
seen();
$lease = lease($session, 'one');
is($session->run("SELECT * FROM pgpool.query($lease, 'select 2') $row") . $session->error, '2',
	'lease after the end of the only connection has a new one');

# leased connections
kill_remote(1);
$session->fails("SELECT * FROM pgpool.query($lease, 'select 3') $row", '08006',
	qr/The remote server reported: terminating connection/, 'idle lease fails with the last message of the remote server');
$session->fails("SELECT * FROM pgpool.query($lease, 'select 3') $row", '08006', qr/lost/, 'lease stays lost');
is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', 'lost lease can be returned');

# during a query, on a lease and in a call
$lease = lease($session, 'one');
foreach my $where ($lease, "'one'")
{
	$session->start("SELECT * FROM pgpool.query($where, 'select 1 from pg_sleep(300)') $row");
	ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE $ours AND query ~ 'pg_sleep' AND state = 'active'", '1'),
		'query runs on the remote server');
	kill_remote(0);
	$session->finish(10);
	$session->failed('08006', qr/The remote server reported: terminating connection/, 'query fails with the last message of the remote server');
	$session->run('SELECT pgpool.checkin_all()');
}
is($session->run("SELECT * FROM pgpool.query('one', 'select 4') $row") . $session->error, '4', 'next call works');

# the same if the remote server sends no last message
my $pid = $session->run("SELECT * FROM pgpool.query('one', 'select pg_backend_pid()') $row");
$remote->append_conf('postgresql.conf', 'restart_after_crash = on');
$remote->restart;
seen();
$lease = lease($session, 'one');
$pid = $session->run("SELECT * FROM pgpool.query($lease, 'select pg_backend_pid()') $row");
$session->start("SELECT * FROM pgpool.query($lease, 'select 1 from pg_sleep(300)') $row");
ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND query ~ 'pg_sleep' AND state = 'active'", '1'),
	'query runs on the remote server before SIGKILL');
kill 'KILL', $pid;
$session->finish(10);
$session->failed('08006', qr/lost/, 'SIGKILL of the remote backend is reported as a lost connection');
$session->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, "SELECT * FROM pgpool.query('one', 'select 5') $row", '5', 30), 'connection is replaced when the remote server has recovered');

# while other sessions wait
foreach my $kind (qw(call lease))
{
	my @waiters = map { PgpxSession->new($local) } 1 .. 2;

	$lease = lease($session, 'one') if $kind eq 'lease';
	$session->start('SELECT * FROM pgpool.query('
		  . ($kind eq 'lease' ? $lease : "'one'") . ", 'select 1 from pg_sleep(300)') $row");
	ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE $ours AND query ~ 'pg_sleep' AND state = 'active'", '1'),
		"$kind: one session executes a query");
	foreach my $i (0, 1)
	{
		$waiters[$i]->start("SELECT pgpool.checkout('one', '60 s')");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $i + 1), "$kind: another session waits");
	}
	kill_remote(0);
	$session->finish(10);
	$session->failed('08006', qr/lost/, "$kind: holder receives the error");
	$session->run("SELECT pgpool.checkin($lease)") if $kind eq 'lease';
	like($waiters[0]->finish(20), qr/^\d+$/, "$kind: first waiter is granted a new connection");
	is($waiters[1]->done, 0, "$kind: second waiter still waits");
	$waiters[0]->run('SELECT pgpool.checkin_all()');
	like($waiters[1]->finish(20), qr/^\d+$/, "$kind: second waiter is granted a connection next");
	$_->quit foreach @waiters;
	cmp_ok(remote_sessions($remote), '<=', 4, "$kind: remote server has no more sessions than allowed");
}

# --- a new connection in the slot of a closed one whose socket a session has cached
{
	my $other = PgpxSession->new($local);
	my $asks = "SELECT * FROM pgpool.query('one', 'select pg_backend_pid()') $row";

	like(my $former = $session->run($asks), qr/^\d+$/, 'session has a connection') or diag($session->error);
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('one')});
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'one'}, '0'), 'connection is closed');
	like(my $latter = $other->run($asks), qr/^\d+$/, 'another session has a connection') or diag($other->error);
	isnt($latter, $former, 'another session has a new connection');
	is($session->run($asks), $latter, 'session does not use the cached socket of the closed connection');
	$other->quit;
}

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
