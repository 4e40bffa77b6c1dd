# Connections and remote servers that are lost while they are used or idle.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['restart_after_crash = on' ]);
my $local = local_node('local', conf => ['pgpool_ext.max_connections = 20', 'pgpool_ext.log_connections = on' ]);

# ---------- a lease whose connection is lost
# A broken lease, that is, one whose remote session has ended: the views show it,
# another connection takes its slot in the pool, and its holder receives the remote
# server's last message.
{
	my ($holder, $other, $third) = map { PgpxSession->new($local) } 1 .. 3;

	# the only lease of a server, used once, whose remote session is terminated
	sub broken_lease
	{
		my ($session, $server) = @_;
		my $lease = lease($session, $server);
		my $pid = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");

		terminate($remote, $pid);
		ok(wait_until($local, "SELECT state FROM pgpool.leases WHERE lease = $lease", 'broken'), "$server: lease is shown as broken");
		return $lease;
	}

	sub sessions
	{
		return $remote->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND application_name = 'pgpool_ext/$_[0]'");
	}

	sub ends
	{
		my ($session, $lease, $server) = @_;

		$session->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/terminating connection due to administrator command/, "$server: holder receives the last message of the remote server");
		is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', "$server: broken lease can be returned");
		return;
	}

	# --- a new session, a waiter, and the holder itself are granted the slot
	make_pool($local, $remote, server => 'one', options => { pool_size => 1, checkout_timeout => '60s' });
	my $lease = broken_lease($holder, 'one');
	my $new = lease($other, 'one');
	is($other->run("SELECT pgpool.exec($new, 'select 1')"), '1', 'one: another session is granted a new connection');
	is(sessions('one'), 1, 'one: remote server has no more sessions than pool_size');
	check_invariants($local, 'one: invariants hold with a broken lease and another one');
	$third->fails("SELECT pgpool.checkout('one', '200 ms')", '55P03', qr/1 of 1 connections are leased/, 'one: pool is full');
	ends($holder, $lease, 'one');
	$other->run("SELECT pgpool.checkin($new)");
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'one'", 1), 'one: broken connection closes');
	is($local->safe_psql('postgres', "SELECT total, connects FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'one'"), '1|2', 'one: new connection stays open');

	my $pid = $holder->run('SELECT a FROM pgpool.query(' . ($lease = lease($holder, 'one')) . ", 'select pg_backend_pid()') AS t(a int)");
	$other->start(q{SELECT pgpool.checkout('one', '60 s') > 0});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'one'}, 1), 'one: session waits');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	is($other->finish(30) . $other->error, 't', q{one: waiter is granted a connection when the holder's remote session ends});
	ok(wait_until($remote, sub { sessions('one') }, 1), 'one: there is one remote session');
	$other->run('SELECT pgpool.checkin_all()');
	is($holder->run(q{SELECT pgpool.exec('one', 'select 1')}) . $holder->error, '1', 'one: holder of a broken lease can check out again');
	ends($holder, $lease, 'one');

	# --- the cap of the server
	make_pool($local, $remote, server => 'capped', options => { pool_size => 2, max_server_connections => 1 });
	$lease = broken_lease($holder, 'capped');
	$new = lease($other, 'capped');
	is(sessions('capped'), 1, 'capped: there is one remote session');
	$third->fails("SELECT pgpool.checkout('capped', '200 ms')", '55P03', qr/became available within/, 'capped: cap applies');
	check_invariants($local, 'capped: invariants hold');
	ends($holder, $lease, 'capped');
	check_invariants($local, 'capped: invariants hold after checkin');
	$other->run('SELECT pgpool.checkin_all()');

	# --- other ends of a broken lease
	$lease = broken_lease($holder, 'one');
	is($local->safe_psql('postgres', "SELECT pgpool.terminate($lease)"), 't', 'one: broken lease is terminated');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases}, 0), 'one: no lease is left');
	$holder->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/was terminated/, 'one: holder receives the error');
	$lease = broken_lease($third, 'one');
	$third->quit;
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases}, 0), 'one: broken lease ends with its holder');
	is($other->run(q{SELECT pgpool.exec('one', 'select 1')}) . $other->error, '1', 'one: pool works');
	$lease = broken_lease($holder, 'one');
	ok(terminate($local, worker_pid($local)), 'one: worker exits while a lease is broken');
	is($other->run(q{SELECT pgpool.exec('one', 'select 1')}) . $other->error, '1', 'one: pool works with the next worker');
	$holder->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/./, 'one: holder receives the error after the restart');
	check_invariants($local, 'one: invariants hold after the restart');

	# --- all leases of a full pool, repeatedly
	make_pool($local, $remote, server => 'many', options => { pool_size => 4, checkout_timeout => '60s', retry_min => '1ms', retry_max => '1ms' });
	my @sessions = map { PgpxSession->new($local) } 1 .. 8;
	my $most = 0;
	foreach my $round (1 .. 5)
	{
		foreach my $half ([ @sessions[ 0 .. 3 ] ], [ @sessions[ 4 .. 7 ] ])
		{
			lease($_, 'many') foreach @$half;
			my $n = sessions('many');
			$most = $n if $n > $most;
			$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/many'});
			wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE server = 'many' AND state <> 'broken'}, 0);
		}
		$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	}
	is($most, 4, 'many: remote sessions never exceed pool_size');
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'many'}, 0), 'many: no connection is left');

	# --- pgpool_ext.max_connections: broken leases fill all slots
	make_pool($local, $remote, server => 'global', options => { pool_size => 20, checkout_timeout => '60s' });
	my @leases = split /,/, $holder->run(q{SELECT string_agg(pgpool.checkout('global')::text, ',') FROM generate_series(1, 20)});
	is(scalar @leases, 20, 'global: one session leases all connections') or diag($holder->error);
	is($local->safe_psql('postgres', 'SELECT sum(connections) FROM pgpool.workers'), 20, 'global: they are counted');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/global'});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE state = 'broken'}, 20), 'global: leases are broken');
	is($local->safe_psql('postgres', 'SELECT sum(connections) FROM pgpool.workers'), 0, 'global: they are not counted any more');
	is($other->run(q{SELECT pgpool.exec('one', 'select 1')}) . $other->error, '1', 'global: another pool works');
	is($holder->run(q{SELECT pgpool.exec('many', 'select 1')}) . $holder->error, '1', 'global: session with the broken leases is granted another one');
	my %left = map { $_ => 1 } split /\n/, $local->safe_psql('postgres', 'SELECT lease FROM pgpool.leases');
	my @ended = grep { !$left{$_} } @leases;
	is(scalar @ended, 2, 'global: two of the leases have ended');
	$holder->fails("SELECT pgpool.exec($ended[0], 'select 1')", '08006', qr/its slot was needed for another connection/, 'global: holder receives the reason');
	check_invariants($local, 'global: invariants hold');
	is($holder->run('SELECT pgpool.checkin_all() > 0') . $holder->error, 't', 'global: leases can be returned');

	stats_add_up($local);
	check_invariants($local);
	$_->quit foreach $holder, $other, @sessions;
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- a lost connection is replaced
# The end of a remote backend. An idle connection is replaced without an error. A lease
# fails with 08006. A waiter is granted a new connection.
{
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
	clean_slate($local, $remote);
}

# ---------- restarts of the remote server
# Restart of the remote server. While it is down a checkout fails with 08001 and the
# reason. Afterwards checkouts succeed, and the remote server never has more sessions
# than pool_size.
{
	make_pool($local, $remote, server => 'shard1', options => { pool_size => 3, retry_max => '200ms' });

	my $row = 'AS t(a int)';
	my $query = "SELECT * FROM pgpool.query('shard1', 'select 1') $row";

	foreach my $mode (qw(fast immediate))
	{
		my $lost = qr/connection to server "shard1" was lost\nDETAIL:  The remote server reported: terminating connection due to (?:administrator|immediate shutdown) command/;
		my @sessions = map { PgpxSession->new($local) } 1 .. 6;
		my @leases = map { lease($_, 'shard1') } @sessions[ 0 .. 2 ];
		$sessions[$_]->run("SELECT pgpool.exec($leases[$_], 'select 1')") foreach 0 .. 2;
		$sessions[0]->run("SELECT pgpool.checkin($leases[0])");
		$sessions[2]->start("SELECT pgpool.exec($leases[2], 'select pg_sleep(300)')");
		ok( wait_until($remote,
				"SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'",
				'1'),
			"$mode: one connection executes a query");

		$remote->stop($mode);
		$sessions[2]->finish(10);
		$sessions[2]->failed('08006', $lost, "$mode: query fails with the last message of the remote server");
		$sessions[1]->fails("SELECT * FROM pgpool.query($leases[1], 'select 1') $row",
			'08006', $lost, "$mode: idle lease fails with that message at its next use");

		# over TLS a session notices the end only after the worker has
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE state IN ('idle', 'reset_pending')}, 0), "$mode: worker has noticed the end of the idle connection")
		  if over_tls();
		$sessions[0]->fails("SELECT pgpool.checkout('shard1', '1 h')", '08001', qr/DETAIL:.*(?:refused|shutting down)/, "$mode: checkout reports the reason");
		$sessions[$_]->run("SELECT pgpool.checkin($leases[$_])"), is($sessions[$_]->error, '', "$mode: lost lease can be returned")
		  foreach 1, 2;

		# concurrent calls: each reports the reason, whether it waited or failed at once
		$_->start($query) foreach @sessions;
		$_->finish(30), $_->failed('08001', qr/DETAIL:.*refused/, "$mode: every session reports the reason") foreach @sessions;
		check_invariants($local, "$mode: invariants hold while the remote server is down");
		is($local->safe_psql('postgres', 'SELECT unavailable_since IS NOT NULL FROM pgpool.pools'),
			't', "$mode: pgpool.pools shows since when the remote server is unavailable");

		$remote->start;
		ok(wait_until($local, $query, '1'), "$mode: checkout succeeds after the restart");
		$_->start($query) foreach @sessions;
		is($_->finish(30), '1', "$mode: query of every session succeeds") foreach @sessions;
		cmp_ok(remote_sessions($remote), '<=', 3, "$mode: remote server has no more sessions than pool_size");
		is($local->safe_psql('postgres', 'SELECT unavailable_since IS NULL FROM pgpool.pools'),
			't', "$mode: pgpool.pools shows the remote server as available");
		$_->quit foreach @sessions;
	}

	# The same for a remote server that was down from the start.
	$remote->stop;
	my $early = PgpxSession->new($local);
	make_pool($local, $remote, server => 'shard2');
	$early->fails("SELECT pgpool.checkout('shard2')", '08001', qr/DETAIL:.*refused/, 'first checkout of a pool reports the reason');
	$remote->start;
	ok(wait_until($local, "SELECT * FROM pgpool.query('shard2', 'select 2') $row", '2'), 'pool works when the remote server has started');
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- crashes of the remote server
# The remote server ends in the middle of statements: each session receives one error, and
# all slots are free. No session receives another one's answer when the remote server
# crashes.
{
	my $row = 'AS t(a int)';
	my @sessions = map { PgpxSession->new($local) } 1 .. 10;

	make_pool($local, $remote, server => 'busy', options => { pool_size => 10, retry_max => '200 ms' });

	# --- ten statements run, on leases and in calls
	foreach my $session (@sessions[ 0 .. 4 ])
	{
		my $lease = lease($session, 'busy');
		$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
	}
	$_->start(q{SELECT pgpool.exec('busy', 'select pg_sleep(300)')}) foreach @sessions[ 5 .. 9 ];
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'}, '10'),
		'in flight: ten statements run');
	$remote->stop('immediate');
	foreach my $n (0 .. 9)
	{
		$sessions[$n]->finish(30);
		$sessions[$n]->failed('08006', qr/connection to server "busy" was lost/, 'in flight: ' . ($n < 5 ? 'a lease' : 'a call') . ' reports the loss');
	}
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'busy'}, 5), 'in flight: slots of the calls are free');
	is($local->safe_psql('postgres', q{SELECT leased, total, errors FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'busy'}),
		'5|5|0', 'in flight: remaining slots are those of unreturned leases');
	is($sessions[$_]->run('SELECT pgpool.checkin_all()') . $sessions[$_]->error, '1', 'in flight: lost lease is returned without another error') foreach 0 .. 4;
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'busy'}, 0), 'in flight: all slots are free');
	check_invariants($local, 'in flight: invariants hold');
	$remote->start;
	ok(wait_until($local, sub { $sessions[0]->run(q{SELECT pgpool.exec('busy', 'select 1')}) }, 1), 'in flight: pool works after the restart');
	foreach my $session (@sessions[ 0 .. 9 ])
	{
		is($session->run("SELECT a FROM pgpool.query('busy', 'select 7') $row") . $session->error, '7', 'in flight: session works without another error');
	}

	$_->quit foreach @sessions;
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
