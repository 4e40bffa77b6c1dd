# The worker restarts, the server crashes, the server is shut down.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote', conf => ["client_connection_check_interval = '50ms'", 'log_min_messages = debug1' ]);
my $local = local_node('local', conf => ['restart_after_crash = on', 'max_connections = 90' ]);

# ---------- the worker
# Restart of the pool worker while leases are held and sessions wait: the leases fail
# with a clear error, the waiters keep their queue positions and are granted connections by
# the next worker, and the counters stay consistent.
{
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

	# no waiter leaves the queue to publish the conninfo
	kill 'STOP', map { $_->pid } @waiters;
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

	ok( wait_until($local, sub {
				$holders[0]->run(q{SELECT pgpool.try_checkout('shard1')});
				return $local->safe_psql('postgres', q{SELECT string_agg(pid::text, ',' ORDER BY lease) FROM pgpool.leases});
			}, join ',', map { $_->pid } @waiters[ 0, 1 ]),
		'another session publishes the conninfo, and the new worker opens connections for the first waiters');
	kill 'CONT', map { $_->pid } @waiters;
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
	clean_slate($local, $remote);
}

# ---------- a crash
# A backend that is killed by SIGKILL makes PostgreSQL reinitialize shared memory. The
# server restarts by itself, the pool is empty and works, and no earlier remote session
# is left.
{
	# Without this setting the remote server does not notice a closed connection during a
	# query.
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
		ok(wait_until($remote, sub { remote_sessions($remote) }, 5), 'remote server has five sessions');

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
	clean_slate($local, $remote);
}

# ---------- a shutdown
# A fast or immediate shutdown with holders and many waiters is not delayed by them, and
# leaves no session on the remote server.
{
	make_pool($local, $remote, server => 'shard1', options => { pool_size => 4 });
	make_pool($local, $remote, server => 'spare', options => { pool_size => 2 });

	# Stop the server. PostgreSQL::Test::Cluster fails the test if something blocks the shutdown.
	sub stops
	{
		my ($how, $name) = @_;

		$local->stop($how);
		return pass($name);
	}

	my $from = -s $local->logfile;
	my @holders = map { PgpxSession->new($local) } 1 .. 4;
	my @leases = map { lease($_, 'shard1') } @holders;
	$holders[1]->run("SELECT pgpool.exec($leases[1], 'select 1')");
	$holders[2]->run("SELECT pgpool.exec($leases[2], 'begin')");

	my @waiters = map { PgpxSession->new($local) } 1 .. 40;
	$_->start("SELECT pgpool.checkout('shard1', '10 min')") foreach @waiters;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '40'), '40 sessions wait');
	ok(wait_until($remote, sub { remote_sessions($remote) }, 4), 'remote server has four sessions');
	is($local->safe_psql('postgres', q{SELECT pgpool.exec('spare', 'select 1')}), '1', 'another pool is used');
	ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'spare'}, 'idle'), 'connection of the other pool is idle');
	check_invariants($local);

	my $log = -s $remote->logfile;
	stops('fast', 'fast shutdown ends');
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'no session is left on the remote server');
	unlike(substr(PostgreSQL::Test::Utils::slurp_file($remote->logfile), $log), qr{pgpool_ext/spare .*(?:EOF|could not|unexpected)}, 'idle connections end with Terminate');
	$_->finish(10) foreach @waiters;
	is(scalar(grep { !$_->is_gone } @waiters), 0, 'all sessions have ended');

	unlike(PostgreSQL::Test::Utils::slurp_file($local->logfile, $from), qr/PANIC|TRAP|terminated by signal|was terminated by/,
		'no process crashed');

	# immediate shutdown
	$local->start;
	$_->quit foreach @holders, @waiters;
	@holders = map { PgpxSession->new($local) } 1 .. 4;
	lease($_, 'shard1') foreach @holders;
	@waiters = map { PgpxSession->new($local) } 1 .. 40;
	$_->start("SELECT pgpool.checkout('shard1', '10 min')") foreach @waiters;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '40'), '40 sessions wait again');
	stops('immediate', 'immediate shutdown ends');
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'no session is left on the remote server after an immediate shutdown');
	$_->finish(10) foreach @waiters;
	is(scalar(grep { !$_->is_gone } @waiters), 0, 'all sessions have ended after an immediate shutdown');
	$_->quit foreach @holders, @waiters;

	# fast shutdown while sessions execute remote queries and the worker is busy
	$local->start;
	my @busy = map { PgpxSession->new($local) } 1 .. 20;
	$_->start("SELECT pgpool.exec('shard1', 'select pg_sleep(0.01)') FROM generate_series(1, 100000)") foreach @busy;
	ok(wait_until($local, 'SELECT sum(checkouts) > 50 FROM pgpool.stats', 't'), 'sessions are busy');
	stops('fast', 'fast shutdown of a busy server ends');
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'busy sessions leave no session on the remote server');

	# a smart shutdown waits for the sessions, not for the pool
	$local->start;
	is($local->safe_psql('postgres', "SELECT pgpool.exec('shard1', 'select 1')"), '1', 'connection is open');
	ok(wait_until($local, "SELECT state FROM pgpool.connections WHERE server = 'shard1'", 'idle'), 'connection is idle');
	$log = -s $remote->logfile;
	stops('smart', 'smart shutdown does not wait for idle connections');
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'no session is left on the remote server after a smart shutdown');
	unlike(substr(PostgreSQL::Test::Utils::slurp_file($remote->logfile), $log), qr/EOF|could not|unexpected/, 'idle connection ends with Terminate');

	$local->start;
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
