# A backend that is killed with -9 makes PostgreSQL start its shared memory anew:
# the server comes back by itself, the pool is empty and works, and no remote
# session of the life before is left.
use strict;
use warnings;

use PgpxTest;
use Test::More;

# The remote notices a closed connection in mid-query only if it looks.
my $remote = remote_node('remote', conf => ["client_connection_check_interval = '200ms'"]);
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
			'1', 60),
		"$what: server and worker come back");
	is($local->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $lived,
		"$what: by themselves");
	ok( wait_until($remote, sub { remote_sessions($remote) }, '0', 20),
		"$what: no remote session of the old life is left");
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.pools'), '0',
		"$what: the pool starts empty");
	my $took = seconds {
		is($local->safe_psql('postgres', "SELECT * FROM pgpool.query('shard1', 'select 1') $row"),
			'1', "$what: the pool works");
	};
	cmp_ok($took, '<', 10, "$what: at once");
	check_invariants($local, "$what: the invariants hold");
	return;
}

my $last; # lease of the lives before
foreach my $round (1 .. 2)
{
	my @sessions = map { PgpxSession->new($local) } 1 .. 6;
	my @leases = map { lease($_, 'shard1') } @sessions[ 0 .. 4 ];
	$last = $leases[-1];

	is($sessions[0]->run("SELECT * FROM pgpool.query($leases[0], 'select 1') $row"), '1', 'a lease is idle');
	$sessions[1]->run("SELECT pgpool.exec($leases[1], 'begin')");
	$sessions[2]->start("SELECT pgpool.exec($leases[2], 'select pg_sleep(300)')");
	$sessions[5]->start("SELECT pgpool.checkout('shard1', '60 s')");
	ok( wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'one is in a query, and one waits');
	is(remote_sessions($remote), 5, 'the remote has five sessions');

	# the one who holds, then the one who waits
	crash($sessions[ $round == 1 ? 2 : 5 ]->pid, $round == 1 ? 'holder killed' : 'waiter killed');
	foreach my $session (@sessions[ 2, 5 ])
	{
		$session->finish;
		# it may have been told of the end of a relay before its own
		$session->run('SELECT 1') unless $session->is_gone;
		ok($session->is_gone, 'a session that was busy has ended');
	}
}

crash(worker_pid($local), 'worker killed');

my $session = PgpxSession->new($local);
my $first = lease($session, 'shard1');
$session->fails("SELECT pgpool.checkin(" . ($first + 1000) . ")", '55000', qr/does not exist/,
	'an id that was not given out is nobody\'s');
cmp_ok($first, '>', $last, 'nor does an id that was kept over a crash become anybody else\'s');
$session->run("SELECT pgpool.checkin($first)");

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
