# Sessions that stop or end while they wait do not block others; fanouts do not deadlock.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxClock;
use PgpxTest;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });

# ---------- a session that is stopped
# A new worker asks the waiters for the conninfo. A waiter that is stopped and cannot
# publish it is asked once only. A stopped waiter is granted no connection with outdated
# options, and its grant is counted although its lease was revoked. A waiter whose deadline
# has passed is granted no connection.
{
	make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

	my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
	lease($holder, 'one');
	$waiter->start("SELECT pgpool.checkout('one', '60 s')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';

	kill 'STOP', $waiter->pid;
	my $worker = worker_pid($local);
	$local->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
	ok( wait_until($local,
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid <> $worker", '1'),
		'new worker runs');
	ok(wait_until($local, 'SELECT state FROM pgpool.workers', 'running'), 'new worker does not have the conninfo');

	kill 'CONT', $waiter->pid;
	like($waiter->finish, qr/^\d+$/, 'waiter is granted a connection when it has published the conninfo');
	$waiter->run('SELECT pgpool.checkin_all()');
	is($local->safe_psql('postgres', "SELECT a FROM pgpool.query('one', 'select 1') AS t(a int)"), '1', 'pool works');

	# The options change meanwhile. For a waiter that has not read them nothing is sent.
	$remote->safe_psql('remote_db', 'CREATE TABLE sent (n int); GRANT ALL ON sent TO remote_app');
	make_pool($local, $remote, server => 'two', options => { pool_size => 1, retry_min => '10ms' });
	my $first = PgpxSession->new($local);
	lease($holder, 'two');
	my $n = 0;
	foreach my $session ($first, $waiter)
	{
		$session->start('SELECT pgpool.exec($$two$$, $$INSERT INTO sent VALUES (' . ++$n . ')$$)');
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'two'}, $n), "$n waiters have a pending statement");
	}

	# Another session publishes the new options, so that no waiter leaves the queue to do so. The
	# worker processes its messages in order.
	kill 'STOP', $first->pid, $waiter->pid;
	$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (ADD application_name 'two')});
	is($local->safe_psql('postgres', q{SELECT pgpool.try_checkout('two')}), '', 'another session reads the new options');
	is($local->safe_psql('postgres', "SELECT a FROM pgpool.query('one', 'select 1') AS t(a int)"), '1', 'worker has the new options');
	kill 'CONT', $first->pid;
	$holder->run('SELECT pgpool.checkin_all()');
	is($first->finish . $first->error, '1', 'waiter that reads the new options is granted a connection');
	ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'two'}, $waiter->pid), 'waiter that has not read the new options is granted one next');
	is($local->safe_psql('postgres', q{SELECT state FROM pgpool.leases WHERE server = 'two'}), 'idle', 'statement of the stopped waiter has not been sent');
	is($local->safe_psql('postgres', q{SELECT pipelined FROM pgpool.stats WHERE server = 'two'}), 0, 'no statement was pipelined');
	kill 'CONT', $waiter->pid;
	is($waiter->finish . $waiter->error, '1', 'stopped waiter sends its statement itself');
	is($remote->safe_psql('remote_db', 'SELECT string_agg(n::text, $$ $$) FROM sent'), '1 2', 'statement ran once');

	# The options change after a waiter was granted a connection with the old ones, and
	# another session has read them.
	make_pool($local, $remote, server => 'three', options => { pool_size => 1, retry_min => '10ms' });
	my $pid_of = sub {
		my ($session, $lease) = @_;

		like(my $pid = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)"), qr/^\d+$/, 'remote session is known')
		  or diag($session->error);
		return $pid;
	};
	my $old = $pid_of->($holder, lease($holder, 'three'));
	$waiter->start(q{SELECT pgpool.checkout('three', '60 s')});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'three'}, 1), 'session waits');
	kill 'STOP', $waiter->pid;
	$holder->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'three'}, $waiter->pid), 'stopped session is granted a connection');
	$local->safe_psql('postgres', q{ALTER SERVER three OPTIONS (ADD application_name 'three')});
	is($first->run(q{SELECT pgpool.try_checkout('three')}) . $first->error, '', 'options change, and another session reads them');
	kill 'CONT', $waiter->pid;
	my $new = $waiter->finish;
	like($new, qr/^\d+$/, 'session is granted a connection') or diag($waiter->error);
	isnt($pid_of->($waiter, $new), $old, 'connection has the new options');

	# The lease of a stopped waiter is revoked, and the counters are reset, before it has left
	# the queue. The reset has released the locks of the last holder before.
	make_pool($local, $remote, server => 'four', options => { pool_size => 1 });
	foreach my $end (qw(terminated lease_timeouts reclaimed))
	{
		my $lease = lease($holder, 'four');
		is($holder->run("SELECT pgpool.exec($lease, 'select pg_advisory_lock(7)')"), 1, "$end: holder locks a number on the remote server");
		$waiter->start(q{SELECT pgpool.checkout('four', '60 s')});
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'four'}, 1), "$end: session waits");
		kill 'STOP', $waiter->pid;
		$holder->run('SELECT pgpool.checkin_all()');
		ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'four'}, $waiter->pid), "$end: stopped session is granted a connection");
		ok(wait_until($remote, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}, 0), "$end: lock of the last holder is released before the stopped session continues");
		$local->safe_psql('postgres', q{ALTER SERVER four OPTIONS (ADD lease_timeout '1ms')}) if $end eq 'lease_timeouts';
		$local->safe_psql('postgres', q{SELECT pgpool.terminate(lease) FROM pgpool.leases WHERE server = 'four'}) if $end eq 'terminated';
		terminate($local, worker_pid($local)) if $end eq 'reclaimed';
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE server = 'four'}, 0), "$end: lease of the stopped session is revoked");
		$local->safe_psql('postgres', q{SELECT pgpool.reset_stats('four')});
		is($local->safe_psql('postgres', "SELECT checkouts, $end FROM pgpool.stats WHERE server = 'four'"), '1|1', "$end: lease is counted after the reset of the counters");
		$local->safe_psql('postgres', q{ALTER SERVER four OPTIONS (DROP lease_timeout)}) if $end eq 'lease_timeouts';
		kill 'CONT', $waiter->pid;
		like($waiter->finish, qr/^\d+$/, "$end: session is granted another lease") or diag($waiter->error);
		check_invariants($local, "$end: invariants hold");
		stats_add_up($local, "$end: counters add up");
		$waiter->run('SELECT pgpool.checkin_all()');
	}
	# The deadline of a stopped waiter passes. The next waiter is granted the connection, by a
	# release and by a hand-over.
	SKIP:
	{
		skip $CLOCKS_MISSING, 1 unless can_set_clocks();

		foreach my $server (qw(five six))
		{
			my $pipelined = $server eq 'six' ? 1 : 0;
			my $call = $pipelined ? "SELECT pgpool.exec('$server', 'select 1')" : "SELECT pgpool.checkout('$server')";

			make_pool($local, $remote, server => $server, options => { pool_size => 1, checkout_timeout => '1h', max_lifetime => 0 });
			my $lease = lease($holder, $server);
			$holder->run("SELECT pgpool.exec($lease, 'select 1')") if $pipelined;
			$waiter->start($call);
			ok(wait_until($local, "SELECT pid FROM pgpool.waiters WHERE server = '$server'", $waiter->pid), "$server: session waits");
			kill 'STOP', $waiter->pid;
			let_time_pass($local, 7200);
			$first->start($call);
			ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = '$server' AND pid = " . $first->pid, 1), "$server: another session waits");
			$holder->run("SELECT pgpool.checkin($lease)");
			like($first->finish . $first->error, qr/^\d+$/, "$server: session behind one whose deadline has passed is granted the connection");
			is($local->safe_psql('postgres', "SELECT pipelined FROM pgpool.stats WHERE server = '$server'"), $pipelined, "$server: hand-over is pipelined if there is a statement");
			check_invariants($local, "$server: invariants hold before the stopped session has left the queue");
			kill 'CONT', $waiter->pid;
			$waiter->finish;
			$waiter->failed('55P03', qr/no connection to server "$server" became available/, "$server: stopped session receives the error of its timeout");
			is($local->safe_psql('postgres', "SELECT timeouts, granted FROM pgpool.stats WHERE server = '$server'"), '1|2', "$server: one wait is counted as a timeout");
			$first->run('SELECT pgpool.checkin_all()');
		}

		# Two users share the only connection of a server. The stopped session of one of them is next in line for it.
		make_pool($local, $remote, server => 'seven', options => { pool_size => 1, max_server_connections => 1, checkout_timeout => '1h', max_lifetime => 0 });
		$_->run('SET ROLE app') foreach $waiter, $first;
		my $lease = lease($holder, 'seven');
		$waiter->start(q{SELECT pgpool.exec('seven', 'select 1')});
		ok(wait_until($local, q{SELECT reason FROM pgpool.waiters WHERE server = 'seven'}, 'server_cap'), 'seven: session of another user is next in line');
		kill 'STOP', $waiter->pid;
		let_time_pass($local, 7200);
		is($holder->run("SELECT pgpool.checkin($lease)") . $holder->error, '', 'seven: connection is free');
		is($first->run(q{SELECT pgpool.exec('seven', 'select 1')}) . $first->error, '1', 'seven: another session is granted a connection');
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters}, 0), 'seven: stopped session is no longer in the queue');
		kill 'CONT', $waiter->pid;
		$waiter->finish;
		$waiter->failed('55P03', qr/no connection to server "seven" became available/, 'seven: stopped session receives the error of its timeout');
	}
	$_->quit foreach $holder, $waiter, $first;

	check_invariants($local);
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- the cause of a wait
# The detail and the hint of a timeout, the notice of notice_after and pgpool.waiters show
# why a session waits for a pool whose connections are not all leased.
{
	my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
	my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";
	my %options = (pool_size => 2, checkout_timeout => '1h', max_lifetime => 0, notice_after => '50min', retry_min => '10h', retry_max => '10h');
	my $remote_pid_of = sub { return $holder->run("SELECT a FROM pgpool.query($_[0], 'select pg_backend_pid()') AS t(a int)") };
	my $waits = sub {
		my ($server, $reason) = @_;

		return ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE server = '$server'", $reason), "$server: reason of the wait is $reason");
	};

	# one connection is leased, and the remote server refuses others
	make_pool($local, $remote, server => 'refused', options => \%options);
	lease($holder, 'refused');
	$remote->safe_psql('postgres', q{ALTER ROLE remote_app PASSWORD 'changed'});
	$waiter->start(q{SELECT pgpool.checkout('refused')});
	ok(wait_until($local, q{SELECT connects_failed FROM pgpool.stats WHERE server = 'refused'}, 1), 'refused: attempt fails');
	$waits->('refused', 'unavailable');
	let_time_pass($local, 3100);
	ok(wait_until($local, sub { $waiter->done; $waiter->error =~ /still waiting/ ? 1 : 0 }, 1), 'refused: session receives the notice of notice_after');
	let_time_pass($local, 4000);
	$waiter->finish;
	like($waiter->error, qr/NOTICE:  00000: still waiting[^\n]*\nDETAIL:  [^\n]*The last attempt to connect has failed: [^\n]*password authentication failed/, 'refused: notice has the error of the last attempt');
	$waiter->failed('55P03', qr/ERROR: .*\nDETAIL:  1 of 1 connections are leased[^\n]* The last attempt to connect has failed: [^\n]*password authentication failed[^\n]*\nHINT:  Check the remote server, and the options/, 'refused: detail and hint of the timeout follow from the failed attempt');
	$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$REMOTE_APP_PASSWORD'");
	$holder->run('SELECT pgpool.checkin_all()');

	# the remote server does not answer
	make_pool($local, $remote, server => 'silent', options => { %options, port => $silent->sockport, pool_size => 1, connect_timeout => '10h' });
	$waiter->start(q{SELECT pgpool.checkout('silent')});
	$waits->('silent', 'connecting');
	let_time_pass($local, 7200);
	$waiter->finish;
	$waiter->failed('55P03', qr/Being opened: 1, being tested: 0, being cancelled: 0\.\nHINT:  Raise the timeout, or check why the remote server has not answered/, 'silent: detail and hint name the attempt that has not ended');

	# a connection is tested, and the remote session does not answer a cancel request
	make_pool($local, $remote, server => 'tested', options => { %options, pool_size => 1, test_period => 0, connect_timeout => '10h', operation_timeout => '10h' });
	my $lease = lease($holder, 'tested');
	my $pid = $remote_pid_of->($lease);
	$holder->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'tested'}, 1), 'tested: connection is idle');
	my $worker = worker_pid($local);
	kill 'STOP', $worker;
	$waiter->start(q{SELECT pgpool.checkout('tested')});
	$waits->('tested', 'checking');
	kill 'CONT', $worker;
	like($waiter->finish . $waiter->error, qr/^\d+$/, 'tested: session is granted the connection after the test');
	$waiter->run('SELECT pgpool.checkin_all()');

	$lease = lease($holder, 'tested');
	$pid = $remote_pid_of->($lease);
	$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(600)')");
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'PgSleep'", 1), 'cancelled: statement runs');
	kill 'STOP', $pid;
	$local->safe_psql('postgres', "SELECT pgpool.terminate($lease)");
	$waiter->start(q{SELECT pgpool.checkout('tested')});
	$waits->('tested', 'cancelling');
	kill 'CONT', $pid;
	like($waiter->finish . $waiter->error, qr/^\d+$/, 'cancelled: session is granted another connection');
	$holder->finish;
	$holder->failed('PX001', qr/was terminated/, 'cancelled: holder receives the error');
	$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach $holder, $waiter;
	check_invariants($local);
	stats_add_up($local);
	clean_slate($local, $remote);
}

# ---------- a session that ends
# A session that ends while it waits, in whatever way, leaves the queue. The waiters
# behind it keep their order.
{
	make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

	my $holder = PgpxSession->new($local);
	my $lease = lease($holder, 'one');

	# Enqueue sessions in this order.
	sub queue
	{
		my ($n) = @_;
		my @waiters = map { PgpxSession->new($local) } 1 .. $n;

		foreach my $i (0 .. $#waiters)
		{
			$waiters[$i]->start("SELECT pgpool.checkout('one', '10 min')");
			wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $i + 1) or die 'no waiter';
		}
		return @waiters;
	}

	sub order
	{
		return $local->safe_psql('postgres', "SELECT string_agg(pid::text, ',' ORDER BY position) FROM pgpool.waiters");
	}

	my @waiters = queue(6);
	is(order(), join(',', map { $_->pid } @waiters), 'six sessions wait in order');

	# one waiter is terminated, one is cancelled
	ok(terminate($local, $waiters[0]->pid), 'first waiter is terminated');
	$waiters[0]->finish(10);
	ok($waiters[0]->is_gone, 'session of the first waiter has ended');
	is(order(), join(',', map { $_->pid } @waiters[ 1 .. 5 ]), 'first waiter has left the queue');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiters[2]->pid . ')');
	$waiters[2]->finish(10);
	$waiters[2]->failed('57014', qr/canceling statement/, 'third waiter is cancelled');
	is(order(), join(',', map { $_->pid } @waiters[ 1, 3, 4, 5 ]), 'third waiter has left the queue');
	ok(terminate($local, $waiters[5]->pid), 'last waiter is terminated');
	is(order(), join(',', map { $_->pid } @waiters[ 1, 3, 4 ]), 'last waiter has left the queue');
	check_invariants($local, 'invariants hold with a queue');

	# the holder ends, too: the next waiter is granted the connection at once
	ok(terminate($local, $holder->pid), 'holder is terminated');
	like($waiters[1]->finish, qr/^\d+$/, 'next waiter is granted a connection');
	is($waiters[3]->done + $waiters[4]->done, 0, 'other waiters still wait');

	$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach @waiters[ 1, 3, 4 ];
	$holder = PgpxSession->new($local);
	# A waiter with a pending statement is terminated. Its own lease is returned during its
	# exit, but the pending statement must not be sent on it.
	make_pool($local, $remote, server => 'two', options => { pool_size => 2 });
	$remote->safe_psql('remote_db', 'CREATE TABLE log (n int); GRANT ALL ON log TO remote_app');
	lease($holder, 'two');
	foreach my $level ('transaction', 'savepoint')
	{
		my $victim = PgpxSession->new($local);

		$victim->run('BEGIN');
		$victim->run('SAVEPOINT s') if $level eq 'savepoint';
		is($victim->run("SELECT pgpool.exec(pgpool.checkout_xact('two'), 'select 1')"), '1', "$level: session holds a lease");
		$victim->start(q{SELECT pgpool.exec('two', 'insert into log values (1)')});
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "$level: session waits with a pending statement");
		ok(terminate($local, $victim->pid), "$level: session is terminated");
		$victim->finish(10);
		ok($victim->is_gone, "$level: session has ended");
		is($local->safe_psql('postgres', "SELECT checkins, closed_with_lease FROM pgpool.stats WHERE server = 'two'"),
			$level eq 'transaction' ? '1|0' : '2|0', "$level: lease was returned without a statement on it");
		ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'active'}, '0'), "$level: nothing runs on the remote server");
		is($remote->safe_psql('remote_db', 'SELECT count(*) FROM log'), '0', "$level: pending statement was not executed");
	}
	$holder->run('SELECT pgpool.checkin_all()');
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- fanouts
# Fan-outs over the same pools of one connection each, in different orders, do not
# deadlock: all succeed. If they fill the cap over all pools, one is refused. A connection
# that is lost while a fan-out waits for the next one is replaced.
{
	my $rounds = 100;
	my @orders = ('a,b,c', 'c,b,a', 'b,c,a', 'c,a,b');

	make_pool($local, $remote, server => $_, options => { pool_size => 1, checkout_timeout => '1h' }) foreach qw(a b c);

	# without and with a timeout
	foreach my $timeout (-1, 0)
	{
		my @sessions = map { PgpxSession->new($local) } @orders;

		foreach my $i (0 .. $#orders)
		{
			$sessions[$i]->run("SET pgpool_ext.checkout_timeout = $timeout; SET statement_timeout = '10min'");
			$sessions[$i]->start(<<"EOT");
SELECT sum(n) FROM generate_series(1, $rounds) AS i,
	LATERAL (SELECT count(DISTINCT pool) AS n FROM pgpool.fanout('{$orders[$i]}', 'select \$1::int', i) AS t(pool text, a int)) AS f;
EOT
		}
		foreach my $i (0 .. $#orders)
		{
			is($sessions[$i]->finish(660) . $sessions[$i]->error, 3 * $rounds, "{$orders[$i]}, timeout $timeout: all fan-outs succeed");
		}
		$_->quit foreach @sessions;
	}
	is($local->safe_psql('postgres', "SELECT sum(leased), sum(waiters) FROM pgpool.pools"), '0|0', 'no lease and no waiter is left');

	# --- the connection to "a" is lost while a fan-out waits for "b"
	my ($holder, $waiter) = map { PgpxSession->new($local) } 0, 1;
	my $lease = lease($holder, 'b');
	$waiter->start(q{SELECT string_agg(pool || n, ',' ORDER BY pool) FROM pgpool.fanout('{a,b,c}', 'select 7') AS t(pool text, n int)});
	ok(wait_until($local, q{SELECT server FROM pgpool.waiters}, 'b'), 'fan-out waits for its second connection');
	my $pid = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'a'});
	is($remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)"), 't', 'remote session of the first connection is ended');
	ok(wait_until($local, q{SELECT state FROM pgpool.leases WHERE server = 'a'}, 'broken'), 'first connection is lost');
	$holder->run("SELECT pgpool.checkin($lease)");
	is($waiter->finish . $waiter->error, 'a7,b7,c7', 'fan-out replaces the connection that was lost during its wait');
	$_->quit foreach $holder, $waiter;

	# Two slots for all pools: a fan-out that holds one waits for the other as long as the
	# holder of the other may return it. The last of those that wait for each other fails
	# with 40P01.
	my $small = local_node('small', conf => ['pgpool_ext.max_connections = 2', 'pgpool_ext.checkout_timeout = 0', q{deadlock_timeout = '100ms'}]);
	make_pool($small, $remote, server => $_, options => { pool_size => 2 }) foreach qw(a b);
	my @holders = map { PgpxSession->new($small) } 0, 1;
	my @fanouts = map { PgpxSession->new($small) } 0, 1;
	my $waiting = q{SELECT string_agg(server, ',' ORDER BY server) FROM pgpool.waiters};
	lease($_, 'a') foreach @holders;
	foreach my $i (0, 1)
	{
		$fanouts[$i]->run(q{SET statement_timeout = '10min'});
		$fanouts[$i]->start(q{SELECT string_agg(pool || n, ',' ORDER BY pool) FROM pgpool.fanout('{a,b}', 'select 7') AS t(pool text, n int)});
		ok(wait_until($small, $waiting, $i == 0 ? 'a' : 'a,a'), 'fan-out waits for its first connection');
	}
	$holders[0]->run('SELECT pgpool.checkin_all()');
	ok(wait_until($small, $waiting, 'a,b'), 'one fan-out has its first connection, and waits for the second');
	$holders[1]->run('SELECT pgpool.checkin_all()');
	$fanouts[1]->finish(660);
	$fanouts[1]->failed('40P01', qr/deadlock detected while waiting for a connection to server "b"\nDETAIL:  Process \d+ waits for a connection of server "b" within pgpool_ext.max_connections; held by processes/,
		'fan-out that completes the deadlock fails with 40P01');
	is($fanouts[0]->finish(660) . $fanouts[0]->error, 'a7,b7', 'other fan-out succeeds');
	is($small->safe_psql('postgres', q{SELECT string_agg(server || ' ' || deadlocks, ',' ORDER BY server) FROM pgpool.stats}), 'a 0,b 1', 'deadlock is counted');
	is($small->safe_psql('postgres', 'SELECT sum(leased), sum(waiters) FROM pgpool.pools'), '0|0', 'no lease and no waiter is left in the small server');

	# --- the connection to "a" is lost, and the wait for "b" needs its slot
	$lease = lease($holders[0], 'b');
	$fanouts[0]->start(q{SELECT string_agg(pool || n, ',' ORDER BY pool) FROM pgpool.fanout('{a,b}', 'select 7') AS t(pool text, n int)});
	ok(wait_until($small, $waiting, 'b'), 'fan-out waits for its second connection');
	$pid = $small->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.leases WHERE server = 'a'});
	is($remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)"), 't', 'remote session of the first connection is ended');
	ok(wait_until($small, q{SELECT reclaimed FROM pgpool.stats WHERE server = 'a'}, '1'), 'slot of the lost connection is freed');
	$holders[0]->run("SELECT pgpool.checkin($lease)");
	is($fanouts[0]->finish(660) . $fanouts[0]->error, 'a7,b7', 'fan-out leases the lost connection again');
	$_->quit foreach @holders, @fanouts;

	stats_add_up($small);
	check_invariants($small);
	check_invariants($local);
	leak_check($small);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
