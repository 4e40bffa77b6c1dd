# The size of a pool.
use strict;
use warnings;

use PgpxClock;
use PgpxTest qw(:DEFAULT becomes pool);
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
can_set_clocks() ? with_clock($local, sub { $local->start }) : $local->start;

# ---------- growth and surplus
# A pool grows under load and shrinks without it, as its options specify: pool_size,
# max_overflow and overflow_ttl, idle_timeout, min_size. Changes of the options take
# effect while the pool is in use.
{
	# Wait until $n connections of the pool have been unused for longer than $time.
	sub untouched
	{
		my ($server, $n, $time) = @_;

		return wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = '$server' AND now() - last_used > '$time'", $n);
	}

	sub remote_pids
	{
		my ($server) = @_;

		return $local->safe_psql('postgres',
			"SELECT string_agg(remote_pid::text, ',' ORDER BY remote_pid) FROM pgpool.connections WHERE server = '$server'");
	}

	my @sessions = map { PgpxSession->new($local) } 1 .. 5;

	# --- overflow
	make_pool($local, $remote, server => 'surplus',
		options => { pool_size => 2, max_overflow => 2, overflow_ttl => '100ms' });
	make_pool($local, $remote, server => 'patient',
		options => { pool_size => 2, max_overflow => 2, overflow_ttl => '10min' });
	foreach my $server (qw(patient surplus))
	{
		lease($_, $server) foreach @sessions[ 0 .. 3 ];
		check_invariants($local, "$server: invariants hold with all connections leased");
		is(pool($server, 'total, leased, state'), '4|4|full', "$server: pool grows to pool_size plus max_overflow");
		$sessions[4]->fails("SELECT pgpool.checkout('$server', '300 ms')", '55P03',
			qr/4 of 4 connections are leased/, "$server: pool grows no further");
		check_invariants($local, "$server: invariants hold after the timeout");
		$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	}
	becomes('surplus', 'total, idle', '2|2', 'connections above pool_size close after overflow_ttl');
	ok(untouched('surplus', 2, '300 ms'), 'surplus: remaining connections are unused');
	is(pool('surplus', 'total, closed_overflow, closed_idle'), '2|2|0', 'surplus: remaining connections stay open');
	is(pool('patient', 'total, state, closed_overflow'), '4|overflow|0', 'patient: connections stay open before overflow_ttl');

	# --- overflow while the pool is in use, with the default reset
	# A single session always leases one of the connections that were used last, whether
	# their resets have been answered or not. The other connections age.
	make_pool($local, $remote, server => 'burst', options => { pool_size => 2, max_overflow => 28, overflow_ttl => '300ms' });
	is($sessions[0]->run(q{SELECT count(pgpool.checkout('burst')) FROM generate_series(1, 30)}), '30', 'burst: 30 connections are opened at once');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	is($sessions[0]->run(<<'EOT') . $sessions[0]->error, '', 'burst: one session calls every 10 ms');
	DO $$
	BEGIN
		FOR i IN 1 .. 100000 LOOP
			PERFORM pgpool.exec('burst', 'select 1');
			PERFORM pg_sleep(0.01);
			EXIT WHEN (SELECT total <= 2 FROM pgpool.pools WHERE server = 'burst');
		END LOOP;
	END $$
EOT
	is(pool('burst', 'total, closed_overflow, closed_idle'), '2|28|0', 'burst: pool shrinks to pool_size meanwhile');

	# sessions that call in turn do not each keep a connection
	make_pool($local, $remote, server => 'turns', options => { pool_size => 1, max_overflow => 4, overflow_ttl => '300ms' });
	lease($_, 'turns') foreach @sessions;
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	ok( wait_until($local, sub {
				$_->run(q{SELECT pgpool.exec('turns', 'select 1')}) foreach @sessions;
				return pool('turns', 'total');
			}, '1'),
		'turns: pool shrinks while sessions call one after the other');

	make_pool($local, $remote, server => 'large', options => { pool_size => 40 });
	is($sessions[0]->run(q{SELECT count(pgpool.checkout('large')) FROM generate_series(1, 40)}), '40', 'large: pool has 40 connections');
	$sessions[0]->run(q{SELECT pgpool.checkin(lease) FROM pgpool.leases WHERE server = 'large' ORDER BY lease % 2, lease});
	becomes('large', 'idle', '40', 'all connections are reset');
	check_invariants($local, 'large: connections are in the order of their last use');

	my $call = q{(SELECT pid FROM pgpool.query('large', 'SELECT pg_backend_pid()') AS q(pid int))};
	my $used = lease($sessions[0], 'large');
	my $first = $sessions[0]->run("SELECT pid FROM pgpool.query($used, 'SELECT pg_backend_pid()') AS q(pid int)");
	kill 'STOP', $first;
	$sessions[0]->run("SELECT pgpool.checkin($used)");
	my $second = $sessions[0]->run("SELECT $call");
	kill 'CONT', $first;
	isnt($first, $second, 'large: call does not wait for the reset of the session\'s last connection');
	becomes('large', 'idle', '40', 'both connections are reset');
	is($sessions[0]->run("SELECT $call"), $second, 'large: session returns to its last connection');

	SKIP:
	{
		skip 'over TLS the worker must run', 4 if over_tls();

		becomes('large', 'idle', '40', 'reset of the last connection has ended');
		my $worker = worker_pid($local);
		kill 'STOP', $worker;
		is($sessions[0]->run("SELECT $call"), $second, 'large: session calls while the worker is stopped');
		ok(wait_until($remote, "SELECT state, query, wait_event FROM pg_stat_activity WHERE pid = $second", 'idle|DISCARD ALL|ClientRead'),
			'large: connection is reset, and the worker has not read the answer');
		is($sessions[0]->run("SELECT $call"), $second, 'large: session returns to its last connection once the answer has arrived');
		kill 'CONT', $worker;
	}
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('large')});

	# --- a smaller pool_size
	make_pool($local, $remote, server => 'smaller', options => { pool_size => 4 });
	lease($_, 'smaller') foreach @sessions[ 0 .. 3 ];
	$local->safe_psql('postgres', q{ALTER SERVER smaller OPTIONS (SET pool_size '3')});
	becomes('smaller', 'leased', '4', 'leases stay');
	is($sessions[4]->run(q{SELECT pgpool.try_checkout('smaller')}) . $sessions[4]->error, '', 'smaller: pool is full');
	my $worker = worker_pid($local);
	kill 'STOP', $worker;
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	kill 'CONT', $worker;
	becomes('smaller', 'idle', '3', 'other connections stay open');
	ok(wait_until($local, sub { pool('smaller', 'total, closed_overflow') }, '3|1'), 'smaller: one connection has closed, although it took a moment');

	# --- idle_timeout
	make_pool($local, $remote, server => 'idle',
		options => { pool_size => 4, min_size => 1, idle_timeout => '100ms' });
	lease($_, 'idle') foreach @sessions[ 0 .. 2 ];
	ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = 'idle' AND now() - leased_at > '300 ms'", '3'),
		'idle: three leases are held for longer than idle_timeout');
	is(pool('idle', 'total, leased'), '3|3', 'idle: idle_timeout does not affect leases');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	becomes('idle', 'total, idle', '1|1', 'connections above min_size close after idle_timeout');
	ok(untouched('idle', 1, '300 ms'), 'idle: min_size connections are unused');
	is(pool('idle', 'total, closed_idle, closed_overflow'), '1|2|0', 'idle: min_size connections stay open');

	# --- min_size
	make_pool($local, $remote, server => 'warm',
		options => { pool_size => 5, min_size => 3, retry_min => '100ms', retry_max => '500ms' });
	is(pool('warm', 'count(*)'), '0', 'warm: no connection is opened before the first use');
	is($sessions[0]->run("SELECT pgpool.exec('warm', 'select 1')"), '1', 'warm: first call succeeds');
	becomes('warm', 'total, idle', '3|3', 'min_size connections are opened after the first call');
	my $pids = remote_pids('warm');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(p) FROM unnest('{$pids}'::int[]) p");
	ok( wait_until($local,
			"SELECT count(*) FROM pgpool.connections WHERE server = 'warm' AND state = 'idle' AND remote_pid <> ALL ('{$pids}')", '3'),
		'warm: terminated remote sessions are replaced');
	$pids = remote_pids('warm');
	$local->safe_psql('postgres', "SELECT pgpool.reconnect('warm')");
	ok( wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'warm' AND remote_pid = ANY ('{$pids}')", '0'),
		'warm: reconnect closes all connections');
	is($sessions[0]->run("SELECT pgpool.exec('warm', 'select 1')"), '1', 'warm: call after reconnect succeeds');
	becomes('warm', 'total, idle', '3|3', 'min_size connections are open again after reconnect');
	ok(terminate($local, worker_pid($local)), 'warm: worker is terminated');
	ok(wait_until($local, 'SELECT state FROM pgpool.workers', 'running'), 'warm: new worker runs');
	becomes('warm', 'total, idle', '3|3', 'min_size connections are open again after the restart, without a checkout');

	# --- min_idle
	make_pool($local, $remote, server => 'ready',
		options => { pool_size => 5, max_overflow => 1, min_idle => 2, idle_timeout => '100ms', retry_min => '100ms', retry_max => '500ms' });
	lease($sessions[0], 'ready');
	becomes('ready', 'leased, idle', '1|2', 'two free connections are opened beside the first one leased');
	lease($sessions[1], 'ready');
	becomes('ready', 'leased, idle', '2|2', 'another connection is opened when a free one is leased');
	lease($_, 'ready') foreach @sessions[ 2, 3 ];
	becomes('ready', 'leased, idle', '4|1', 'no free connection is opened beyond pool_size');
	lease($sessions[4], 'ready');
	is(pool('ready', 'leased, idle, connects'), '5|0|5', 'ready: pool does not exceed pool_size even if no connection is free');
	check_invariants($local, 'ready: invariants hold');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	becomes('ready', 'total, idle', '2|2', 'connections above min_idle close after idle_timeout');
	ok(untouched('ready', 2, '300 ms'), 'ready: min_idle connections are unused');
	is(pool('ready', 'total, closed_idle'), '2|3', 'ready: min_idle connections stay open');
	$pids = remote_pids('ready');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(p) FROM unnest('{$pids}'::int[]) p");
	ok( wait_until($local,
			"SELECT count(*) FROM pgpool.connections WHERE server = 'ready' AND state = 'idle' AND remote_pid <> ALL ('{$pids}')", '2'),
		'ready: terminated remote sessions are replaced');

	# The session has cached the socket, so that the checkout does not wake the worker.
	lease($sessions[0], 'ready');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	becomes('ready', 'total, idle', '2|2', 'number of free connections is the same after the lease');
	$worker = worker_pid($local);
	kill 'STOP', $worker;
	lease($sessions[0], 'ready');
	is(pool('ready', 'leased, idle, connecting'), '1|1|1', 'ready: session itself requests another free connection');
	kill 'CONT', $worker;
	becomes('ready', 'leased, idle', '1|2', 'another free connection is opened');
	$sessions[0]->run('SELECT pgpool.checkin_all()');

	# A grant from the queue also reduces the number of free connections, so that min_idle
	# opens another one.
	make_pool($local, $remote, server => 'granted', options => { pool_size => 3, min_idle => 1 });
	$_->start(q{SELECT pgpool.checkout('granted', '60 s')}) foreach @sessions[ 0, 1 ];
	like($_->finish(30), qr/^\d+$/, 'granted: session is granted a connection') foreach @sessions[ 0, 1 ];
	becomes('granted', 'leased, idle', '2|1', 'a free connection is opened after a grant');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	$local->safe_psql('postgres', qq{SELECT pgpool.reconnect('$_')}) foreach qw(ready granted);

	# A change of the conninfo replaces the connections, also without a checkout.
	foreach my $change ([ 'an option of the server', q{ALTER SERVER warm OPTIONS (ADD application_name 'changed')} ],
		[ 'the password', q{ALTER USER MAPPING FOR CURRENT_USER SERVER warm OPTIONS (SET password 'secret of the remote')} ])
	{
		my ($what, $sql) = @$change;

		$pids = remote_pids('warm');
		$local->safe_psql('postgres', $sql);
		ok( wait_until($local,
				"SELECT count(*) FROM pgpool.connections WHERE server = 'warm' AND state = 'idle' AND NOT stale AND remote_pid <> ALL ('{$pids}')", '3'),
			"warm: after a change of $what min_size connections are opened without a checkout");
	}
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'changed'}, '3'), 'warm: new connections have the new options');

	# the first call fails because the role does not exist yet on the remote server
	make_pool($local, $remote, server => 'late', user => 'late_app', password => 'late',
		options => { pool_size => 5, min_size => 3, retry_min => '100ms', retry_max => '500ms' });
	$sessions[0]->fails("SELECT pgpool.exec('late', 'select 1')", '08001', qr/could not connect to server "late"/, 'late: first call fails');
	$remote->safe_psql('postgres', q{CREATE ROLE late_app LOGIN PASSWORD 'late'});
	becomes('late', 'total, idle', '3|3', 'min_size connections are opened when the login succeeds');
	$pids = remote_pids('late');
	$local->safe_psql('postgres', q{ALTER SERVER late OPTIONS (SET min_size '4')});
	becomes('late', 'total, idle', '4|4', 'larger min_size takes effect without another checkout');
	is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.connections WHERE server = 'late' AND remote_pid = ANY ('{$pids}')"), '3', 'late: open connections are kept');

	# --- overflow_ttl 0
	make_pool($local, $remote, server => 'zero', options => { pool_size => 1, max_overflow => 1, overflow_ttl => 0 });
	lease($_, 'zero') foreach @sessions[ 0, 1 ];
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	becomes('zero', 'total, idle', '1|1', 'connection above pool_size closes at once if overflow_ttl is 0');

	# --- changes of pool_size
	make_pool($local, $remote, server => 'resized', options => { pool_size => 1 });
	lease($sessions[0], 'resized');
	$sessions[$_]->start("SELECT pgpool.checkout('resized', '60 s')") foreach 1, 2;
	becomes('resized', 'pool_size, total, waiters', '1|1|2', 'two sessions wait for the only connection');
	$local->safe_psql('postgres', "ALTER SERVER resized OPTIONS (SET pool_size '3')");
	like($sessions[$_]->finish(30), qr/^\d+$/, "resized: larger pool_size grants a connection to waiter $_ at once") foreach 1, 2;
	is(pool('resized', 'pool_size, leased'), '3|3', 'resized: earlier lease is kept');
	$local->safe_psql('postgres', "ALTER SERVER resized OPTIONS (SET pool_size '1')");
	is($_->run('SELECT pgpool.exec(lease, $$select 1$$) FROM pgpool.leases WHERE pid = pg_backend_pid()'), '1',
		'resized: lease is kept when pool_size becomes smaller') foreach @sessions[ 0 .. 2 ];
	$sessions[3]->start("SELECT pgpool.checkout('resized', '60 s')");
	becomes('resized', 'pool_size, leased, waiters', '1|3|1', 'new session waits because the pool is too large');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	becomes('resized', 'leased, total, waiters', '2|2|1', 'connection above pool_size closes at checkin');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions[ 1, 2 ];
	like($sessions[3]->finish(30), qr/^\d+$/, 'resized: waiter is granted a connection when there is room');
	becomes('resized', 'pool_size, leased, total', '1|1|1', 'pool has the new size');
	$sessions[3]->run('SELECT pgpool.checkin_all()');

	# The waiters are woken by a commit whose invalidation messages have not reached them
	# yet. They must read the new options nevertheless.
	lease($sessions[0], 'resized');
	my $served = 0;
	foreach my $round (1 .. 5)
	{
		$sessions[$_]->start("SELECT pgpool.checkin(pgpool.checkout('resized', '10 min'))") foreach 1 .. 3;
		wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = 'resized'", '3');
		$sessions[4]->run("ALTER SERVER resized OPTIONS (SET pool_size '2')");
		$_->finish, $served += $_->error eq '' foreach @sessions[ 1 .. 3 ];
		$sessions[4]->run("ALTER SERVER resized OPTIONS (SET pool_size '1')");
		last if $served != 3 * $round;
	}
	is($served, 3 * 5, 'resized: woken waiters always use the new options');
	$sessions[0]->run('SELECT pgpool.checkin_all()');

	# --- max_waiters: sessions for which connections are being opened do not count
	my $sixth = PgpxSession->new($local);
	make_pool($local, $remote, server => 'cold',
		options => { pool_size => 4, max_waiters => 1, connect_timeout => '60s', start_commands => 'SELECT pg_sleep(0.3)' });
	$_->start("SELECT pgpool.checkout('cold', '60 s')") foreach @sessions;
	becomes('cold', 'leased + waiters', '5', 'four sessions wait for new connections, and one waits for a lease');
	$sixth->fails("SELECT pgpool.checkout('cold', '60 s')", '53300', qr/too many sessions wait for a connection to server "cold"/,
		'cold: one more session is refused');
	like($sixth->error, qr/DETAIL:  1 session waits, and the server's option "max_waiters" is 1/, 'cold: error has the number of sessions that wait for a lease');
	ok(wait_until($local, sub { scalar grep { $_->done } @sessions }, 4), 'cold: four sessions are granted connections');
	foreach my $session (sort { $b->done <=> $a->done } @sessions)
	{
		like($session->finish(30), qr/^\d+$/, 'cold: all five sessions are granted connections') or diag($session->error);
		$session->run('SELECT pgpool.checkin_all()');
	}

	# Connections that close free their slots within a second, and are replaced.
	make_pool($local, $remote, server => 'replaced', options => { pool_size => 4, max_waiters => 1 });
	lease($_, 'replaced') foreach @sessions[ 0 .. 3 ];
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions[ 0 .. 3 ];
	becomes('replaced', 'idle', '4', 'pool has four connections');
	my @backends = split /,/, remote_pids('replaced');
	kill 'STOP', @backends;
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('replaced')});
	$_->start("SELECT pgpool.checkout('replaced', '60 s')") foreach @sessions[ 0 .. 3 ];
	becomes('replaced', 'leased + waiters', '4', 'sessions wait while all connections are replaced');
	kill 'CONT', @backends;
	foreach my $session (@sessions[ 0 .. 3 ])
	{
		like($session->finish(30), qr/^\d+$/, 'replaced: waiting session is granted a connection') or diag($session->error);
	}
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

	# --- settings, for servers that do not set the option
	sub set
	{
		my ($name, $value) = @_;

		$local->append_conf('postgresql.conf', "pgpool_ext.$name = $value");
		$local->reload;
		return;
	}

	# pool_size is the setting's default, so min_size can exceed it
	make_pool($local, $remote, server => 'many', options => { min_size => 12, max_overflow => 4, overflow_ttl => '100ms', connect_timeout => '60s' });
	is($sessions[0]->run("SELECT pgpool.exec('many', 'select 1')"), '1', 'many: first call succeeds');
	becomes('many', 'total, idle', '10|10', 'min_size above pool_size opens pool_size connections');
	ok(untouched('many', 10, '300 ms'), 'many: connections are unused');
	is(pool('many', 'total, connects, closed_overflow'), '10|10|0', 'many: no overflow connection is opened for min_size');
	$local->safe_psql('postgres', "DROP SERVER many CASCADE");

	make_pool($local, $remote, server => 'plain');
	my $lease = lease($sessions[0], 'plain');
	is(pool('plain', 'pool_size'), '10', q{plain: pool_size is the setting's default});
	set('default_pool_size', 1);
	becomes('plain', 'pool_size', '1', 'changed setting takes effect after a reload, without a call');
	$sessions[1]->start("SELECT pgpool.checkout('plain', '60 s')");
	becomes('plain', 'total, waiters', '1|1', 'session waits because the pool is full');
	set('default_max_waiters', 1);
	ok( wait_until($local, sub { $sessions[2]->run("SELECT pgpool.checkout('plain', '200 ms')"); $sessions[2]->sqlstate }, '53300'),
		'plain: session is refused when the queue has a limit');
	set('default_pool_size', 2);
	like($sessions[1]->finish(30), qr/^\d+$/, 'plain: larger default grants a connection to the waiter');
	is($sessions[0]->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'plain: earlier lease is kept');
	is(pool('surplus', 'pool_size'), '2', 'surplus: pool_size of the server takes precedence');
	set('default_pool_size', 1);
	becomes('plain', 'pool_size, leased', '1|2', 'smaller default does not affect leases');
	check_invariants($local, 'plain: invariants hold');
	$sessions[3]->start("SELECT pgpool.checkout('plain', '60 s')");
	becomes('plain', 'leased, waiters', '2|1', 'new session waits because the pool is too large');
	$sessions[1]->run('SELECT pgpool.checkin_all()');
	becomes('plain', 'total, leased, waiters', '1|1|1', 'connection above pool_size closes at checkin although a session waits');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	like($sessions[3]->finish(30), qr/^\d+$/, 'plain: waiter is granted a connection when there is room');
	is(pool('plain', 'total, leased'), '1|1', 'plain: pool has the new size');
	set('default_checkout_timeout', "'150ms'");
	ok( wait_until($local, sub { $sessions[2]->run("SET statement_timeout = '10 s'; SELECT pgpool.checkout('plain')"); $sessions[2]->error =~ /(made in|within) 150 ms|0\.150 s/ ? 1 : $sessions[2]->error }, 1),
		'plain: default_checkout_timeout limits the wait');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- the peak of concurrent leases decides how many connections a pool keeps
# Time passes in steps of half of idle_timeout and of overflow_ttl. Between two steps each
# session uses its own connection, so that no connection is unused for the whole time.
SKIP:
{
	skip $CLOCKS_MISSING, 1 unless can_set_clocks();

	my @sessions = map { PgpxSession->new($local) } 1 .. 5;

	my %period = (checkout_timeout => '60s', max_lifetime => 0, test_period => -1, idle_timeout => '1h', overflow_ttl => '1h');
	my $half = 1801;

	foreach my $case ([ 'idle_pool', { pool_size => 8 }, 1, 'closed_idle' ],
		[ 'surplus_pool', { pool_size => 2, max_overflow => 6, idle_timeout => 0 }, 2, 'closed_overflow' ])
	{
		my ($server, $options, $rest, $reason) = @$case;

		make_pool($local, $remote, server => $server, options => { %period, %$options });
		lease($_, $server) foreach @sessions;
		$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
		is(pool($server, 'total'), 5, "$server: pool has five connections");
		ok( wait_until($local, sub {
					are_idle($local, $server);    # no reset exceeds operation_timeout
					let_time_pass($local, $half);
					$_->run("SELECT pgpool.exec('$server', 'select 1')") foreach @sessions;
					return pool($server, 'total');
				}, $rest),
			"$server: pool shrinks while sessions call one after the other");
		is(pool($server, $reason), 5 - $rest, "$server: connections were closed by the option");
	}

	# A pool with leases opens a connection for a waiter that is older than half the last
	# connect took, which is half an hour here. A younger waiter is granted the next lease.
	my $gate = PgpxSession->new($remote, dbname => 'remote_db');
	my $column = sub { return $local->safe_psql('postgres', "SELECT $_[0] FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server) WHERE server = 'aged'"); };

	make_pool($local, $remote, server => 'aged', options => { pool_size => 2, max_lifetime => 0, idle_timeout => 0,
		connect_timeout => '10h', checkout_timeout => '10h', start_commands => 'SELECT pg_advisory_xact_lock(7)' });
	$gate->run('SELECT pg_advisory_lock(7)');
	$sessions[0]->start(q{SELECT pgpool.checkout('aged')});
	ok(wait_until($remote, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, 1), 'aged: connection is being opened');
	let_time_pass($local, 3600);
	$gate->run('SELECT pg_advisory_unlock(7)');
	like($sessions[0]->finish(30), qr/^\d+$/, 'aged: connect lasted an hour');
	$sessions[1]->start(q{SELECT pgpool.checkout('aged')});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'aged'}, 1), 'aged: session waits');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	like($sessions[1]->finish(30), qr/^\d+$/, 'aged: waiter is granted the next lease');
	is($column->('total'), '1', 'aged: no connection was opened for the young waiter');
	$sessions[0]->start(q{SELECT pgpool.checkout('aged')});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'aged'}, 1), 'aged: session waits again');
	let_time_pass($local, 1801);
	like($sessions[0]->finish(30), qr/^\d+$/, 'aged: waiter is granted a connection of its own');
	is($column->('total, leased'), '2|2', 'aged: pool has grown');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

	# The queue is not empty for longer than half an hour, but no waiter is that old.
	$local->safe_psql('postgres', q{SELECT pgpool.reconnect('aged')});
	ok(wait_until($local, sub { $column->('total') }, 0), 'aged: pool is empty');
	$gate->run('SELECT pg_advisory_lock(7)');
	$sessions[0]->start(q{SELECT pgpool.checkout('aged')});
	ok(wait_until($remote, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, 1), 'aged: connection is being opened again');
	let_time_pass($local, 3600);
	$gate->run('SELECT pg_advisory_unlock(7)');
	like($sessions[0]->finish(30), qr/^\d+$/, 'aged: connect lasted an hour again');
	$sessions[1]->start(q{SELECT pgpool.checkout('aged')});
	my $waiters = q{SELECT count(*) FROM pgpool.waiters WHERE server = 'aged'};
	ok(wait_until($local, $waiters, 1), 'aged: session waits for the new connection');
	let_time_pass($local, 1000);
	$sessions[2]->start(q{SELECT pgpool.checkout('aged')});
	ok(wait_until($local, $waiters, 2), 'aged: two sessions wait');
	is($column->('total'), '1', 'aged: no connection was opened for young waiters');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	like($sessions[1]->finish(30), qr/^\d+$/, 'aged: first waiter is granted the connection');
	let_time_pass($local, 1000);
	$sessions[3]->start(q{SELECT pgpool.checkout('aged')});
	like($sessions[2]->finish(30), qr/^\d+$/, 'aged: waiter is granted a connection because sessions have waited without interruption');
	ok(wait_until($local, sub { $column->('total, leased, waiters') }, '2|2|1'), 'aged: pool has grown by one connection');
	$sessions[1]->run('SELECT pgpool.checkin_all()');
	like($sessions[3]->finish(30), qr/^\d+$/, 'aged: last waiter is granted the next lease');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	$gate->quit;

	# A call in each half: the spare connections stay open. Two leases at the same time in each
	# half: two connections stay open. A connection of the last pool expires when the worker has
	# maintained all pools.
	make_pool($local, $remote, server => 'spare', options => { %period, pool_size => 8, min_idle => 2 });
	make_pool($local, $remote, server => 'peak', options => { %period, pool_size => 8 });
	make_pool($local, $remote, server => 'witness', options => { %period, pool_size => 1, idle_timeout => 0, max_lifetime => '20min' });
	is($sessions[0]->run(q{SELECT pgpool.exec('spare', 'select 1')}), '1', 'spare: call succeeds');
	becomes('spare', 'total, idle', '3|3', 'two free connections were opened beside the leased one');
	foreach my $step (1 .. 6)
	{
		lease($_, 'peak') foreach @sessions[ 0 .. ($step == 1 ? 2 : 1) ];
		$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
		$sessions[0]->run(q{SELECT pgpool.exec('witness', 'select 1')});
		are_idle($local, $_) foreach qw(spare witness);
		let_time_pass($local, $half);
		is($sessions[0]->run(q{SELECT pgpool.exec('spare', 'select 1')}), '1', "spare: call succeeds, step $step");
		ok(wait_until($local, sub { pool('witness', 'closed_lifetime') }, $step), "witness: pools are maintained, step $step");
	}
	is(pool('spare', 'total, closing, connects'), '3|0|3', 'spare: no connection is closed and opened again under light load');
	is(pool('peak', 'total, closing, connects, closed_idle'), '2|0|3|1', 'peak: pool shrinks to the largest number of leases at the same time');
	ok( wait_until($local, sub {
				let_time_pass($local, $half);
				$sessions[0]->run(q{SELECT pgpool.exec('witness', 'select 1')});
				return pool('spare', 'total, idle');
			}, '2|2'),
		'spare: pool shrinks to min_idle without calls');
	$_->quit foreach @sessions;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

leak_check($local, $remote);
done_testing();
