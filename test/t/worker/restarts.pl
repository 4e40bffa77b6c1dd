# The worker restarts, cannot be started for a while, or hangs. The server crashes, is shut down
# in each mode, and its postmaster is killed. A standby of the local server. A dropped database.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => [ "client_connection_check_interval = '50ms'", 'log_min_messages = debug1' ]);
my $local = local_node('local', conf => [ 'restart_after_crash = on', 'max_connections = 90', 'wal_level = replica', 'max_wal_senders = 4', 'hot_standby = on' ]);

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
	# Only with client_connection_check_interval does the remote server notice a closed
	# connection during a query.
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

	my $last; # last lease id of the last round
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
	unlike(substr(slurp_file($remote->logfile), $log), qr{pgpool_ext/spare .*(?:EOF|could not|unexpected)}, 'idle connections end with Terminate');
	$_->finish(10) foreach @waiters;
	is(scalar(grep { !$_->is_gone } @waiters), 0, 'all sessions have ended');

	unlike(slurp_file($local->logfile, $from), qr/PANIC|TRAP|terminated by signal|was terminated by/,
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
	unlike(substr(slurp_file($remote->logfile), $log), qr/EOF|could not|unexpected/, 'idle connection ends with Terminate');

	$local->start;
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- a worker that hangs, a dropped database, a standby, restarts of the server
{
	# a crash must not repair itself
	$local->append_conf('postgresql.conf', 'restart_after_crash = off');
	$local->reload;
	make_pool($local, $remote, server => 'shard1', options => { pool_size => 2 });
	make_pool($local, $remote, server => 'warm', options => { pool_size => 4, min_size => 3 });
	my $row = 'AS t(a int)';
	my $super = $local->safe_psql('postgres', 'SELECT current_user');
	my @sessions = map { PgpxSession->new($local) } 1 .. 4;

	sub query { return "SELECT a FROM pgpool.query('$_[0]', 'select 1') $row"; }

	# A zombie has ended, even if its parent has not reaped it yet.
	sub running
	{
		my ($pid) = @_;

		open my $file, '<', "/proc/$pid/stat" or return 0;
		return (<$file> // ') Z') =~ /\) [^ZX]/ ? 1 : 0;
	}

	sub processes_are_gone
	{
		my ($name, @pids) = @_;

		return ok(wait_until($remote, sub { scalar grep { running($_) } @pids }, 0), $name);
	}

	# --- the worker is stopped, as by a debugger: checkouts time out in time
	is($sessions[0]->run(query('warm')), '1', 'pool with min_size is used');
	ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'warm' AND local_user = '$super'", '3'), 'pool with min_size is open');
	my $worker = worker_pid($local);
	my $kept = lease($sessions[0], 'shard1');
	$sessions[0]->run("SELECT pgpool.exec($kept, 'select 1')");
	kill 'STOP', $worker;
	$sessions[1]->fails("SELECT pgpool.checkout('shard1', '200 ms')", '55P03', qr/became available within 200 ms/, 'stopped: checkout that needs the worker times out');
	is($sessions[1]->run("SELECT pgpool.try_checkout('shard1')") . $sessions[1]->error, '', 'stopped: try_checkout returns NULL');

	# over TLS the worker relays the bytes of a lease
	$sessions[0]->start("SELECT a FROM pgpool.query($kept, 'select 7') $row");
	unless (over_tls())
	{
		is($sessions[0]->finish(30), '7', 'stopped: lease works without the worker');
		$sessions[0]->run("SELECT pgpool.checkin($kept)");
		is($sessions[0]->run(query('shard1')), '1', 'stopped: session can lease its cached connection again');
	}
	$sessions[$_]->start("SELECT pgpool.checkout('shard1', '60 s')") foreach 1, 2;
	# one of them may be granted the free connection, and waits for its socket
	ok(wait_until($local, q{SELECT waiters > 0 FROM pgpool.pools WHERE server = 'shard1'}), 'stopped: a session is in the queue');
	is($sessions[1]->done + $sessions[2]->done, 0, 'stopped: other sessions wait');
	is($sessions[0]->done, 0, 'stopped: over TLS a lease waits, too') if over_tls();
	kill 'CONT', $worker;
	if (over_tls())
	{
		is($sessions[0]->finish(30), '7', 'continued: lease continues');
		$sessions[0]->run("SELECT pgpool.checkin($kept)");
	}
	like($sessions[$_]->finish(30), qr/^\d+$/, 'continued: waiter is granted a connection') foreach 1, 2;
	is(worker_pid($local), $worker, 'continued: worker is the same process');
	is($local->safe_psql('postgres', "SELECT sum(closed_idle + closed_lifetime + closed_broken) FROM pgpool.stats"), '0',
		'continued: no connection is closed because of the missed time');
	check_invariants($local, 'continued: invariants hold');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

	# --- the worker ends, and the server cannot fork for a while
	my $postmaster = $local->{_pid};
	$worker = worker_pid($local);
	$kept = lease($sessions[0], 'shard1');
	my $admin = PgpxSession->new($local);
	my ($limit) = `prlimit --nproc --output SOFT --noheadings --pid $postmaster` =~ /(\S+)/;
	is(system("prlimit --nproc=1: --pid $postmaster"), 0, 'no fork: server cannot fork');
	$admin->run("SELECT pg_terminate_backend($worker)");
	processes_are_gone('no fork: worker has ended', $worker);
	ok( wait_until($local, sub { slurp_file($local->logfile) =~ /could not fork (?:worker|background worker) process/ ? 1 : 0 }, 1),
		'no fork: next worker cannot start');
	$sessions[1]->fails("SELECT pgpool.checkout('shard1', '300 ms')", 'PX003', qr/the pool worker is not running/, 'no fork: checkout reports that no worker runs');
	is($sessions[1]->run('SELECT state, pid IS NULL FROM pgpool.workers'), 'down|t', 'no fork: pgpool.workers shows that no worker runs');
	$sessions[0]->fails("SELECT pgpool.exec($kept, 'select 1')", '08006', qr/worker was restarted/, 'no fork: lease has ended');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	$sessions[2]->start("SELECT pgpool.checkout('shard1', '120 s')");
	$sessions[3]->start("SELECT pgpool.checkout('warm', '120 s')");
	ok(wait_until($local, sub { $admin->run('SELECT count(*) FROM pgpool.waiters') }, '2'), 'no fork: waiters keep waiting');
	is(system("prlimit --nproc=$limit: --pid $postmaster"), 0, 'server can fork again');
	like($sessions[$_]->finish(150), qr/^\d+$/, 'worker starts by itself, and waiter is granted a connection') foreach 2, 3;
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'warm' AND local_user = '$super'", '3'), 'min_size connections are open after the first call');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	$admin->quit;
	stats_add_up($local);
	check_invariants($local);

	# --- DROP DATABASE: its pools are closed and forgotten
	$local->safe_psql('postgres', 'CREATE DATABASE tenant');
	make_pool($local, $remote, server => 'tenants', dbname => 'tenant', options => { pool_size => 3, min_size => 3 });
	is($local->safe_psql('tenant', 'SELECT pgpool.prewarm($$tenants$$, 3, $$30 s$$)'), '3', 'tenant: pool of another database is open');
	$local->safe_psql('tenant', q{SELECT pgpool.pause('tenants')});
	$local->safe_psql('postgres', 'DROP DATABASE tenant');
	ok( wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/tenants'", '0', 10),
		'tenant: connections close with DROP DATABASE');
	ok(wait_until($local, "SELECT count(*) FROM pgpool.pools WHERE database = 'tenant'", '0', 10), 'tenant: pool is forgotten');
	is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.pools WHERE state <> 'ready'"), '0', 'tenant: other pools are not affected');

	# --- a standby of the local server
	$local->backup('base');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($local, 'base', has_streaming => 1);
	$standby->start;
	my @there = map { PgpxSession->new($standby) } 1 .. 3;
	is($there[0]->run('SELECT pg_is_in_recovery()'), 't', 'standby: server is in recovery');
	is($there[0]->run(query('shard1')) . $there[0]->error, '1', 'standby: query uses a pool of its own');
	my $lease = lease($there[0], 'shard1');
	is($there[0]->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'standby: lease works');
	is($there[0]->run("BEGIN; SELECT a FROM pgpool.query(pgpool.checkout_xact('shard1'), 'select 2') $row; COMMIT"), '2',
		'standby: lease of transaction scope works');
	is($there[1]->run(q{SELECT server, leased FROM pgpool.pools WHERE server = 'shard1'}), 'shard1|1', 'standby: views show the pool');
	is($there[1]->run("SELECT pgpool.pause('shard1')") . $there[1]->error, '', 'standby: pause works');
	$there[2]->start(query('shard1'));
	ok(wait_until($standby, 'SELECT reason FROM pgpool.waiters', 'paused'), 'standby: checkout of a paused server waits');
	is($there[1]->run("SELECT pgpool.resume('shard1')") . $there[1]->error, '', 'standby: resume works');
	is($there[2]->finish(30), '1', 'standby: waiter is granted a connection');
	is($there[1]->run("SELECT pgpool.terminate($lease)") . $there[1]->error, 't', 'standby: terminate works');
	$there[0]->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/was terminated/, 'standby: holder receives the error');
	$there[0]->run('SELECT pgpool.checkin_all()');
	is($there[1]->run("SELECT pgpool.drain('shard1', '30 s')") . $there[1]->error, 't', 'standby: drain works');
	$there[1]->run('SELECT pgpool.resume()');
	is($there[1]->run("SELECT pgpool.prewarm('shard1', 2, '30 s')") . $there[1]->error, '2', 'standby: prewarm works');
	is($there[1]->run("SELECT pgpool.reconnect('shard1'), pgpool.reset_stats()") . $there[1]->error, '|', 'standby: reconnect and reset_stats work');

	# changes of the primary are followed
	$local->safe_psql('postgres', "ALTER SERVER shard1 OPTIONS (SET pool_size '1')");
	$local->wait_for_catchup($standby);
	is($there[1]->run(query('shard1')), '1', 'standby: call succeeds after a change of options on the primary');
	is($there[1]->run(q{SELECT pool_size FROM pgpool.pools WHERE server = 'shard1'}), '1', 'standby: new options apply');
	$local->safe_psql('postgres', "ALTER SERVER shard1 OPTIONS (SET pool_size '2')");

	# promotion while the pool is in use
	$lease = lease($there[0], 'shard1');
	$standby->promote;
	is($there[0]->run("SELECT pg_is_in_recovery(), pgpool.exec($lease, 'select 1')"), 'f|1', 'standby: lease survives the promotion');
	$there[0]->run('SELECT pgpool.checkin_all()');
	$_->quit foreach @there;
	stats_add_up($standby, 'standby: counters add up');
	check_invariants($standby, 'standby: invariants hold');
	is(scalar(() = slurp_file($standby->logfile) =~ /PANIC|TRAP|terminated by signal/g), 0, 'standby: no process crashed');
	$standby->stop('fast');

	# --- restarts of the server
	lease($sessions[0], 'shard1');
	foreach my $mode (qw(fast immediate smart))
	{
		$sessions[1]->run("SELECT pgpool.checkout('shard1')");
		my $waiter = PgpxSession->new($local);
		$waiter->start("SELECT pgpool.checkout('shard1', '10 min')");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "$mode: two sessions hold leases, and one waits");
		my @pids = (worker_pid($local), map { $_->pid } @sessions, $waiter);
		if ($mode eq 'smart')
		{
			# the server waits for its sessions, also for the shared one, and then not for the pool
			$local->end_shared_session;
			kill 'TERM', $local->{_pid};
			$_->quit foreach @sessions[ 1 .. 3 ];
			kill 'TERM', $waiter->pid;
			$sessions[0]->quit;
			processes_are_gone("$mode: server ends with the last session", $local->{_pid});
			$local->_update_pid(0);
		}
		else
		{
			$local->stop($mode);
		}
		processes_are_gone("$mode: worker and all sessions have ended", @pids);
		ok(wait_until($remote, sub { remote_sessions($remote) }, '0', 10), "$mode: no session is left on the remote server");
		$local->start;
		@sessions = map { PgpxSession->new($local) } 1 .. 4;
		ok(wait_until($local, q{SELECT string_agg(concat_ws(' ', server, local_user, total), ', ' ORDER BY local_user = 'app') FROM pgpool.pools},
				"warm $super 3, warm app 3"),
			"$mode: pools with min_size are open before their first use, and no others");
		ok(wait_until($remote, sub { remote_sessions($remote) }, '6'), "$mode: no other connection exists");
		is($sessions[2]->run("SELECT pgpool.prewarm('shard1', 2, '30 s')"), '2', "$mode: prewarm opens connections");
		is($sessions[2]->run(query($_)), '1', "$mode: query succeeds") foreach qw(warm shard1);
		ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'warm' AND state = 'idle'", '6'), "$mode: min_size connections are open after the first use");
		lease($sessions[0], 'shard1');
	}

	# --- the postmaster is killed
	my $waiter = PgpxSession->new($local);
	lease($sessions[1], 'shard1');
	$waiter->start("SELECT pgpool.checkout('shard1', '10 min')");
	$sessions[2]->start("SELECT pgpool.exec('warm', 'select pg_sleep(0.2)') FROM generate_series(1, 1000)");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'killed: session waits');
	my @pids = (worker_pid($local), $waiter->pid);
	$postmaster = $local->{_pid};
	$local->kill9;
	processes_are_gone('killed: worker and waiter end with the postmaster', @pids);
	$_->quit foreach @sessions, $waiter;
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0', 30), 'killed: no session is left on the remote server');
	# a new postmaster considers the old processes alive until they have been reaped
	wait_until($local, sub { kill(0, $postmaster, @pids) ? 1 : 0 }, 0, 60);
	ok(wait_until($local, sub { $local->start(fail_ok => 1) }, '1', 60), 'killed: server starts again');
	is($local->safe_psql('postgres', query('shard1')), '1', 'killed: pools work');

	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
