# Restart of the pool worker while leases are held and sessions wait: the leases fail
# with a clear error, the waiters keep their queue positions and are granted connections by
# the next worker, and the counters stay consistent.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'shard1', options => { pool_size => 2 });
make_pool($local, $remote, server => 'shard2', options => { pool_size => 6 });

my $row = "AS t(a int)";
my @holders = map { PgpxSession->new($local) } 1 .. 2;
my @leases = map { lease($_, 'shard1') } @holders;
my @waiters = map { PgpxSession->new($local) } 1 .. 4;
foreach my $i (0 .. $#waiters)
{
	$waiters[$i]->start("SELECT pgpool.checkout('shard1', '10 min')");
	ok( wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $i + 1),
		"session $i waits");
}

# at the end of the worker some leases are idle, and some execute a query
my @busy = map { PgpxSession->new($local) } 1 .. 6;
$_->start('SELECT * FROM pgpool.query(' . lease($_, 'shard2') . ", 'select 1 from pg_sleep(300)') $row") foreach @busy;
ok( wait_until($local,
		"SELECT count(*) FROM pgpool.leases WHERE state = 'active'", '6'),
	'six leases execute a query');
my $old_worker = worker_pid($local);
ok(terminate($local, $old_worker), 'worker exits when it is terminated');

foreach my $session (@busy)
{
	$session->finish(10);
	$session->failed('08006', qr/worker was restarted/,
		'lease with a running query fails and reports the restart of the worker');
	is($session->run('SELECT pgpool.checkin_all()'), '1', 'failed lease can be returned');
}
$holders[0]->fails("SELECT * FROM pgpool.query($leases[0], 'select 1') $row",
	'08006', qr/worker was restarted/, 'idle lease fails at its next use and reports the restart');
$holders[0]->fails("SELECT * FROM pgpool.query($leases[0], 'select 1') $row",
	'08006', qr/worker was restarted/, 'idle lease fails again at the use after that');
$holders[$_]->run("SELECT pgpool.checkin($leases[$_])"), is($holders[$_]->error, '', 'lost lease can be returned')
  foreach 0 .. 1;

ok( wait_until($local,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid <> $old_worker",
		'1'),
	'new worker runs');
ok(wait_until($local, "SELECT state, restarts FROM pgpool.workers", 'running|1'), 'pgpool.workers shows the restart');

like($waiters[$_]->finish(20), qr/^\d+$/, "waiter $_ is granted a connection by the new worker") foreach 0 .. 1;
is($waiters[2]->done + $waiters[3]->done, 0, 'later waiters still wait');
is($local->safe_psql('postgres', 'SELECT string_agg(pid::text, $$,$$ ORDER BY position) FROM pgpool.waiters'),
	join(',', map { $_->pid } @waiters[ 2, 3 ]), 'waiters keep their order');
$waiters[1]->run('SELECT pgpool.checkin_all()');
like($waiters[2]->finish(20), qr/^\d+$/, 'third waiter is granted the next connection');
is($waiters[3]->done, 0, 'fourth waiter still waits');
$waiters[0]->run('SELECT pgpool.checkin_all()');
like($waiters[3]->finish(20), qr/^\d+$/, 'fourth waiter is granted a connection last');
$_->run('SELECT pgpool.checkin_all()') foreach @waiters;

foreach my $session (@holders, @waiters, @busy)
{
	is($session->run("SELECT * FROM pgpool.query('shard1', 'select 7') $row"),
		'7', 'session that was connected before the restart works');
}
ok(wait_until($remote, sub { remote_sessions($remote) <= 2 ? 1 : 0 }, 1), 'remote server has no more sessions than pool_size');
is($local->safe_psql('postgres', "SELECT checkouts, checkins, reclaimed, waited - granted FROM pgpool.stats WHERE server = 'shard1'"),
	'18|16|2|0', 'every lease is counted once');

# Another restart, while no lease is held: the next checkout waits for the new worker.
ok(terminate($local, worker_pid($local)), 'worker can be terminated again');
is($local->safe_psql('postgres', "SELECT * FROM pgpool.query('shard1', 'select 8') $row"),
	'8', 'checkout while no worker runs waits for the next worker');

# --- a single waiter publishes its conninfo to each new worker, while the remote server
# refuses connections
{
	my $alone = PgpxSession->new($local, user => 'app');
	my $tried = q{SELECT pool_id, connects_failed FROM pgpool.stats WHERE server = 'alone' ORDER BY pool_id DESC LIMIT 1};
	my $tries = sub {
		my ($name) = @_;
		my $before = $local->safe_psql('postgres', $tried);

		return ok(wait_until($local, sub { my $now = $local->safe_psql('postgres', $tried); $now ne '' && $now ne $before && $now !~ /\|0$/ ? 1 : 0 }, 1, 30), "alone: $name");
	};

	make_pool($local, $remote, server => 'alone', options => { pool_size => 1, retry_min => '10ms', retry_max => '100ms', checkout_timeout => '60s', on_unavailable => 'wait' });
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 0');
	$alone->start(q{SELECT pgpool.checkout('alone')});
	$tries->('worker has the conninfo and tries to connect');
	ok(terminate($local, worker_pid($local)), 'alone: worker exits');
	$tries->('new worker has the conninfo, too');
	$local->safe_psql('postgres', q{ALTER SERVER alone OPTIONS (ADD application_name 'alone')});
	$tries->('conninfo with changed options is published');
	$local->safe_psql('postgres', q{BEGIN; DROP USER MAPPING FOR app SERVER alone;}
		  . q{ CREATE USER MAPPING FOR app SERVER alone OPTIONS (user 'remote_app', password '} . $REMOTE_APP_PASSWORD . q{'); COMMIT});
	$tries->('conninfo of the new user mapping is published');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');
	like($alone->finish(60), qr/^\d+$/, 'alone: waiter is granted a connection when the remote server accepts one') or diag($alone->error);
	$alone->quit;
}

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
