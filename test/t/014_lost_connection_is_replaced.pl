# A remote backend ends: while its connection is idle nobody notices, in use the
# lessee gets 08006, and who waits gets a new connection in its place.
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
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'the remote sessions are gone')
	  if $gone;
	return;
}

# Over TLS a session sees their end when the worker has.
sub seen
{
	return if !over_tls();
	return ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE state IN ('idle', 'reset_pending')}, 0), 'the worker has seen it');
}

# idle
foreach my $round (1 .. 20)
{
	my @others = map { lease($session, 'three') } 1 .. 3;
	$session->run('SELECT pgpool.checkin_all()');
	kill_remote($round % 2);
	seen() if $round % 2;
	my $got = $session->run("SELECT * FROM pgpool.query('three', 'select $round') $row");
	is($got . $session->error, "$round", 'nobody notices what ended while it was idle') if $round % 2;

	# without waiting for the end, a query may still have met the old session
	like($got . $session->sqlstate, qr/^(?:$round|08006)$/, 'an answer or a clear error') unless $round % 2;
}
# The worker sees it end, too; but a session must see it even if the worker has
# not had the time.  Over TLS it cannot: what it sees comes through the worker.
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
	is($session->finish(20) . $session->sqlstate, '08006', 'over TLS: an error, if the worker was slow');
	$session->run("SELECT pgpool.checkin($lease)");
	$lease = lease($session, 'one');
	is($session->run("SELECT * FROM pgpool.query($lease, 'select 1') $row"), '1', 'over TLS: and then another connection');
}
else
{
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1', 5);
	kill 'CONT', $worker;
	$lease = $session->finish(20);
	is($session->run("SELECT * FROM pgpool.query($lease, 'select 1') $row") . $session->error, '1',
		'nobody notices, even if the worker was slow');
}
$session->run('SELECT pgpool.checkin_all()');

$lease = lease($session, 'one');
$session->run("SELECT * FROM pgpool.query($lease, 'select 1') $row; SELECT pgpool.checkin($lease)");
kill_remote(1);
seen();
$lease = lease($session, 'one');
is($session->run("SELECT * FROM pgpool.query($lease, 'select 2') $row") . $session->error, '2',
	'a lease of a connection that had ended is of a new one');

# in use
kill_remote(1);
$session->fails("SELECT * FROM pgpool.query($lease, 'select 3') $row", '08006',
	qr/remote server said: terminating connection/, 'an idle lease fails with the last words of the remote');
$session->fails("SELECT * FROM pgpool.query($lease, 'select 3') $row", '08006', qr/lost/, 'and stays lost');
is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', 'it can be returned');

# in a query, on a lease and in a call
$lease = lease($session, 'one');
foreach my $where ($lease, "'one'")
{
	$session->start("SELECT * FROM pgpool.query($where, 'select 1 from pg_sleep(300)') $row");
	ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE $ours AND query ~ 'pg_sleep' AND state = 'active'", '1'),
		'a query runs');
	kill_remote(0);
	$session->finish(10);
	$session->failed('08006', qr/remote server said: terminating connection/, 'it fails with the last words of the remote');
	$session->run('SELECT pgpool.checkin_all()');
}
is($session->run("SELECT * FROM pgpool.query('one', 'select 4') $row") . $session->error, '4', 'the next one works');

# the same with a remote that has no last words
my $pid = $session->run("SELECT * FROM pgpool.query('one', 'select pg_backend_pid()') $row");
$remote->append_conf('postgresql.conf', 'restart_after_crash = on');
$remote->restart;
$lease = lease($session, 'one');
$pid = $session->run("SELECT * FROM pgpool.query($lease, 'select pg_backend_pid()') $row");
$session->start("SELECT * FROM pgpool.query($lease, 'select 1 from pg_sleep(300)') $row");
ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND query ~ 'pg_sleep' AND state = 'active'", '1'),
	'a query runs');
kill 'KILL', $pid;
$session->finish(10);
$session->failed('08006', qr/lost/, 'a killed remote backend is a lost connection');
$session->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, "SELECT * FROM pgpool.query('one', 'select 5') $row", '5', 30), 'which is replaced when the remote is back');

# while others wait
foreach my $kind (qw(call lease))
{
	my @waiters = map { PgpxSession->new($local) } 1 .. 2;

	$lease = lease($session, 'one') if $kind eq 'lease';
	$session->start('SELECT * FROM pgpool.query('
		  . ($kind eq 'lease' ? $lease : "'one'") . ", 'select 1 from pg_sleep(300)') $row");
	ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE $ours AND query ~ 'pg_sleep' AND state = 'active'", '1'),
		"$kind: one is in a query");
	foreach my $i (0, 1)
	{
		$waiters[$i]->start("SELECT pgpool.checkout('one', '60 s')");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $i + 1), "$kind: another one waits");
	}
	kill_remote(0);
	$session->finish(10);
	$session->failed('08006', qr/lost/, "$kind: the holder gets the error");
	$session->run("SELECT pgpool.checkin($lease)") if $kind eq 'lease';
	like($waiters[0]->finish(20), qr/^\d+$/, "$kind: the first waiter gets a new connection");
	is($waiters[1]->done, 0, "$kind: before the second");
	$waiters[0]->run('SELECT pgpool.checkin_all()');
	like($waiters[1]->finish(20), qr/^\d+$/, "$kind: which gets it then");
	$_->quit foreach @waiters;
	cmp_ok(remote_sessions($remote), '<=', 4, "$kind: no session too many");
}

# --- a connection that is at the place of an ended one whose socket a session has kept
{
	my $other = PgpxSession->new($local);
	my $asks = "SELECT * FROM pgpool.query('one', 'select pg_backend_pid()') $row";

	my $former = $session->run($asks);
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('one')});
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'one'}, '0'), 'a connection is closed');
	my $latter = $other->run($asks);
	isnt($latter, $former, 'another session has a new one');
	is($session->run($asks), $latter, 'and so has the session that has kept the socket of the former: it does not ask by that one');
	$other->quit;
}

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
