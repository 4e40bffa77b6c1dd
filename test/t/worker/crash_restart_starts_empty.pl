# A backend that is killed by SIGKILL makes PostgreSQL reinitialize shared memory. The
# server restarts by itself, the pool is empty and works, and no earlier remote session
# is left.
use strict;
use warnings;

use PgpxTest;
use Test::More;

# Without this setting the remote server does not notice a closed connection during a
# query.
my $remote = remote_node('remote', conf => ["client_connection_check_interval = '50ms'"]);
my $local = local_node('local', conf => ['restart_after_crash = on']);
make_pool($local, $remote, server => 'shard1', options => { pool_size => 5 });

my $row = 'AS t(a int)';

sub crash
{
	my ($victim, $what) = @_;
	my $lived = $local->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');
	my $worker = worker_pid($local);

	kill 'KILL', $victim;
	ok( wait_until($local,
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid <> $worker",
			'1'),
		"$what: server and worker restart");
	is($local->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $lived,
		"$what: postmaster stays the same");
	ok( wait_until($remote, sub { remote_sessions($remote) }, '0'),
		"$what: no earlier remote session is left");
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.pools'), '0',
		"$what: pool is empty");
	is($local->safe_psql('postgres', "SELECT * FROM pgpool.query('shard1', 'select 1') $row"), '1', "$what: pool works");
	check_invariants($local, "$what: invariants hold");
	return;
}

my $last; # last lease id before the crashes
foreach my $round (1 .. 2)
{
	my @sessions = map { PgpxSession->new($local) } 1 .. 6;
	my @leases = map { lease($_, 'shard1') } @sessions[ 0 .. 4 ];
	$last = $leases[-1];

	is($sessions[0]->run("SELECT * FROM pgpool.query($leases[0], 'select 1') $row"), '1', 'one lease is idle');
	$sessions[1]->run("SELECT pgpool.exec($leases[1], 'begin')");
	$sessions[2]->start("SELECT pgpool.exec($leases[2], 'select pg_sleep(300)')");
	$sessions[5]->start("SELECT pgpool.checkout('shard1', '60 s')");
	ok( wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'one session executes a query, and one waits');
	is(remote_sessions($remote), 5, 'remote server has five sessions');

	# first the holder, then the waiter
	crash($sessions[ $round == 1 ? 2 : 5 ]->pid, $round == 1 ? 'holder killed' : 'waiter killed');
	foreach my $session (@sessions[ 2, 5 ])
	{
		# psql may report a failed write and keep its connection, so the backend is tested
		$session->finish;
		ok(!kill(0, $session->pid), 'busy session has ended');
	}
}

crash(worker_pid($local), 'worker killed');

my $session = PgpxSession->new($local);
my $first = lease($session, 'shard1');
$session->fails("SELECT pgpool.checkin(" . ($first + 1000) . ")", '55000', qr/does not exist/,
	'lease id that was never issued is refused');
cmp_ok($first, '>', $last, 'lease ids are not reused after a crash');
$session->run("SELECT pgpool.checkin($first)");

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
