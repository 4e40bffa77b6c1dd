# Limits that several pools share: max_server_connections, and pgpool_ext.max_connections.
use strict;
use warnings;

use IPC::Run;
use PgpxClock;
use PgpxFakeServer;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
plan skip_all => 'limits over several pools do not depend on TLS' if over_tls();
my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });

# ---------- max_server_connections
# max_server_connections limits the pools of all users of a server together. The remote
# server never has more sessions, the connection that was idle longest is evicted, and
# slots are granted by the age of waiters, so that no user starves.
{
	make_pool($local, $remote, server => 'other');
	$local->safe_psql('postgres', join ';', map { "CREATE ROLE u$_ LOGIN" } 1 .. 3);

	# A server with a user mapping, and so a pool, for each role.
	sub make_capped
	{
		my ($name, $options, $fake, $dbname) = @_;
		my $port = ($fake // $remote)->port;

		$dbname //= 'remote_db';

		$local->safe_psql('postgres', <<"EOS");
CREATE SERVER $name FOREIGN DATA WRAPPER pgpool_fdw
	OPTIONS (host '127.0.0.1', port '$port', dbname '$dbname', $options);
${\ join '', map { "CREATE USER MAPPING FOR u$_ SERVER $name OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');\n" } 1 .. 3}GRANT USAGE ON FOREIGN SERVER $name TO PUBLIC;
EOS
		return;
	}

	sub pools
	{
		my ($server, $columns) = @_;

		return $local->safe_psql('postgres',
			"SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server, local_user) WHERE server = '$server' AND total + checkouts > 0 ORDER BY local_user");
	}

	sub waits
	{
		my ($session, $server, $reason, $name) = @_;
		my $pid = $session->pid;

		$session->start("SELECT pgpool.checkout('$server', '10 h')");
		ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE pid = $pid", $reason, 30), $name)
		  or die "session does not wait\n";
		return;
	}

	sub connections
	{
		my ($server, $user) = @_;

		return $local->safe_psql('postgres',
			"SELECT string_agg(state || '|' || n, ' ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM pgpool.connections WHERE server = '$server' AND local_user = '$user' GROUP BY state) c");
	}

	sub idle_pids
	{
		return $local->safe_psql('postgres',
			"SELECT string_agg(remote_pid::text, ' ' ORDER BY last_used) FROM pgpool.connections WHERE server = 'capped' AND state IN ('idle', 'reset_pending')");
	}

	make_capped('capped', "pool_size '3', max_server_connections '3'");
	my @u1 = map { PgpxSession->new($local, user => 'u1') } 1 .. 4;
	my @u2 = map { PgpxSession->new($local, user => 'u2') } 1 .. 2;
	my $u3 = PgpxSession->new($local, user => 'u3');

	# --- one user has all connections
	my @leases = map { lease($_, 'capped') } @u1[ 0 .. 2 ];
	waits($u2[0], 'capped', 'server_cap', q{another user waits because of the server's cap});
	waits($u1[3], 'capped', 'full', 'another session of the first user waits behind it');
	is($u2[1]->run("SELECT pgpool.try_checkout('capped')") . $u2[1]->error, '', 'try_checkout returns NULL');
	$u1[0]->run("SELECT pgpool.checkin($leases[0])");
	like($u2[0]->finish(30), qr/^\d+$/, 'returned connection is evicted for the pool with the oldest waiter');
	is($u1[3]->done, 0, 'younger waiter of the same pool still waits');
	is(pools('capped', 'local_user, leased, total, waiters'), "u1|2|2|1\nu2|1|1|0", 'cap is kept');
	$u2[0]->run('SELECT pgpool.checkin_all()');
	like($u1[3]->finish(30), qr/^\d+$/, 'younger waiter is granted a connection next');
	ok(wait_until($local, sub { remote_sessions($remote) }, '3'), 'remote server has as many sessions as the cap allows');
	is($local->safe_psql('postgres', "SELECT sum(closed_evicted), sum(timeouts) FROM pgpool.stats WHERE server = 'capped'"),
		'2|0', 'two connections were evicted, and no waiter timed out');
	$_->run('SELECT pgpool.checkin_all()') foreach @u1;

	# --- slots are granted by the age of each pool's first waiter
	@leases = map { lease($_, 'capped') } @u1[ 0 .. 2 ];
	waits($u3, 'capped', 'server_cap', 'third user waits');
	waits($u2[0], 'capped', 'server_cap', 'second user waits behind the third');
	waits($u1[3], 'capped', 'full', 'first user waits behind the second');
	$u2[1]->fails("SELECT pgpool.checkout('capped', '100 ms')", '55P03', qr/HINT:  Raise "max_server_connections" or the timeout/, 'error of a timeout names the limit');
	foreach my $case ([ $u1[0], $u3, 'third' ], [ $u1[1], $u2[0], 'second' ], [ $u3, $u1[3], 'first' ])
	{
		my ($returns, $next, $name) = @$case;

		$returns->run('SELECT pgpool.checkin_all()');
		like($next->finish(30), qr/^\d+$/, "free slot is granted to the $name user");
	}
	$_->run('SELECT pgpool.checkin_all()') foreach @u1, $u2[0], $u3;

	# --- a refused pool records what it lacks at once, not the worker later
	@leases = map { lease($_, 'capped') } @u1[ 0 .. 2 ];
	my $worker = worker_pid($local);
	kill 'STOP', $worker;
	waits($u2[0], 'capped', 'server_cap', 'another user waits while the worker is stopped');
	$u1[0]->run("SELECT pgpool.checkin($leases[0])");
	is(connections('capped', 'u1'), 'closing|1 leased|2', 'returned connection closes for the other user');
	is($u1[3]->run("SELECT pgpool.try_checkout('capped')") . $u1[3]->error, '', 'younger session cannot use the slot');
	kill 'CONT', $worker;
	like($u2[0]->finish(30), qr/^\d+$/, 'waiter is granted a connection when the worker continues');
	$_->run('SELECT pgpool.checkin_all()') foreach @u1, $u2[0];

	# --- the connection that was idle longest is evicted, but none of another server
	is($local->safe_psql('postgres', "SELECT pgpool.exec('other', 'select 1')"), '1', 'connection of another server is idle for longest');
	lease($_, 'capped') foreach @u1[ 0, 1 ];
	$u1[1]->run('SELECT pgpool.checkin_all()');
	is($u2[0]->run("SELECT pgpool.exec('capped', 'select 1')"), '1', 'second user opens a connection');
	$u1[0]->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'capped' AND state = 'idle'}, '3'), 'all connections are reset');
	my @before = split / /, idle_pids();
	is(scalar @before, 3, 'three connections of two users are idle');
	like(lease($u3, 'capped'), qr/^\d+$/, 'third user is granted a connection');
	is(idle_pids(), join(' ', @before[ 1, 2 ]), 'connection that was idle longest is evicted');
	is($local->safe_psql('postgres', "SELECT sum(closed_evicted), sum(total) FROM pgpool.stats JOIN pgpool.pools USING (pool_id) WHERE pools.server = 'other'"), '0|1', 'connection of another server is not evicted');
	ok(wait_until($local, sub { remote_sessions($remote) }, '4'), 'remote server has no additional session');
	$local->safe_psql('postgres', "SELECT pgpool.reconnect('other')");

	# --- a session that would wait for itself
	foreach my $session (@u2)
	{
		$session->run("SELECT pgpool.checkin_all()");
	}
	$u3->run("SELECT pgpool.checkout('capped', '30 s'), pgpool.checkout('capped', '30 s')");
	is($u3->error, '', 'session leases all connections of the server');
	$local->safe_psql('postgres', "ALTER SERVER capped OPTIONS (SET pool_size '9')");
	$u3->run('SELECT pgpool.checkin_all()');
	$u3->run("SELECT pgpool.checkout('capped', '30 s')") foreach 1 .. 3;
	$u3->fails("SELECT pgpool.checkout('capped', '1 h')", '40P01', qr/wait for this session itself/,
		'further checkout would wait for its own session and fails at once');
	$u3->run('SELECT pgpool.checkin_all()');

	# --- the cap takes precedence over min_size
	make_capped('small', "pool_size '5', min_size '5', max_server_connections '2'");
	is($_->run("SELECT pgpool.exec('small', 'select 1')"), '1', 'pool whose min_size exceeds the cap works')
	  foreach $u1[0], $u2[0], $u3, $u1[0];
	ok( wait_until($local, "SELECT sum(total), sum(connecting + closing) FROM pgpool.pools WHERE server = 'small'", '2|0'),
		'cap takes precedence over min_size');

	# --- A slot is occupied before the connection attempt begins, and free when the
	# connection has really closed. The fake server writes events to a file, and delays its
	# close.
	my $seen = PostgreSQL::Test::Utils::tempdir . '/seen';
	my $fake = PgpxFakeServer->new(
		dark => { login => sub { append_to_file($seen, "dark\n"); sleep 3600 } },
		lingers => sub {
			my ($self) = @_;

			append_to_file($seen, "comes\n");
			$self->{stays} = 1;
			$self->send($self->answer('1')) while defined $self->receive;
			select undef, undef, undef, 0.2;
			append_to_file($seen, "goes\n");
		});
	append_to_file($seen, '');
	make_capped('dark', "pool_size '1', max_server_connections '1', connect_timeout '1h', retry_min '1h', retry_max '1h', sslmode 'disable'", $fake, 'dark');
	$u1[0]->start("SELECT pgpool.checkout('dark', '10 h')");
	ok(wait_until($local, sub { slurp_file($seen) }, "dark\n"), 'connection attempt is in progress');
	waits($u2[0], 'dark', 'server_cap', 'attempt occupies the slot, so another user waits');
	let_time_pass($local, 3601);
	$u1[0]->finish(30);
	$u1[0]->failed('08001', qr/within connect_timeout/, 'attempt times out');
	ok(wait_until($local, sub { slurp_file($seen) }, "dark\ndark\n"), 'next attempt begins after the timeout');
	let_time_pass($local, 3601);
	$u2[0]->finish(30);
	unlink $seen;
	append_to_file($seen, '');
	make_capped('lingers', "pool_size '1', max_server_connections '1', reset 'never', sslmode 'disable'", $fake, 'lingers');
	$local->safe_psql('postgres', "ALTER USER MAPPING FOR u$_ SERVER lingers OPTIONS (ADD password_required 'false')") foreach 1 .. 3;
	foreach my $session ($u1[0], $u2[0], $u1[0])
	{
		is($session->run("SELECT pgpool.exec('lingers', 'select 1')", 60) . $session->error, '1', 'users are granted the only slot in turn');
	}
	is(slurp_file($seen), "comes\ngoes\n" x 2 . "comes\n", 'connection is opened only after the previous one has closed');

	# --- a waiter whose pool is dropped while it waits for a cap does not block others
	foreach my $round (1 .. 5)
	{
		make_capped('gone', "pool_size '2', max_server_connections '1'");
		lease($u1[0], 'gone');
		$u2[0]->start("SELECT pgpool.checkout('gone', '60 s')");
		ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE server = 'gone'", 'server_cap', 30), "round $round: session waits because of the cap") or last;
		$local->safe_psql('postgres', 'SET client_min_messages = error; DROP SERVER gone CASCADE');
		$u2[0]->finish(30);
		$u1[0]->run('SELECT pgpool.checkin_all()');
		make_capped('gone', "pool_size '2', max_server_connections '1'");
		$u3->run("SELECT pgpool.checkin(pgpool.checkout('gone', '1 min'))");
		$local->safe_psql('postgres', 'SET client_min_messages = error; DROP SERVER gone CASCADE');
		last if $u3->error ne '';
	}
	is($u3->error, '', 'waiter of a dropped pool does not block the cap');

	# --- load: the cap is never exceeded, and no user starves
	make_capped('busy', "pool_size '3', max_server_connections '3', checkout_timeout '10min', connect_timeout '10min'");
	my $script = PostgreSQL::Test::Utils::tempdir . '/query.sql';
	append_to_file($script, "SELECT a FROM pgpool.query('busy', 'select 1, pg_sleep(0.002)') AS t(a int, b text);\n");
	$remote->safe_psql('postgres', "ALTER ROLE remote_app CONNECTION LIMIT 3");
	$local->safe_psql('postgres', "SELECT pgpool.drain(s, '30 s') FROM unnest('{capped,small}'::text[]) s");
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'", '0'), 'other servers are drained');
	my %clients = (u1 => 12, u2 => 1, u3 => 3);
	my $watch = PgpxSession->new($remote);
	my $most = 0;

	# each client has its number of calls, so none may starve
	my (@bench, @out, @err);
	foreach my $user (sort keys %clients)
	{
		push @out, '';
		push @err, '';
		push @bench,
		  IPC::Run::start([ 'pgbench', '-n', '-c', $clients{$user}, '-t', 20, '-f', $script, $local->connstr('postgres') . " user=$user" ],
			'>', \$out[-1], '2>', \$err[-1]);
	}
	while (grep { $_->pumpable } @bench)
	{
		my $now = $watch->run("SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'");

		$most = $now if $now > $most;
		$_->pump_nb foreach grep { $_->pumpable } @bench;
		usleep(10_000);
	}
	foreach my $user (sort keys %clients)
	{
		my $bench = shift @bench;
		my ($out, $err) = (\shift @out, \shift @err);

		$bench->finish;
		is($bench->result(0), 0, "$user: pgbench succeeds") or diag($$err);
		like($$out, qr/transactions actually processed: @{[ 20 * $clients{$user} ]}\b/, "$user: all calls were made");
	}
	cmp_ok($most, '<=', 3, "remote server had $most sessions at most");
	is($local->safe_psql('postgres', "SELECT sum(connects_failed) FROM pgpool.stats WHERE server = 'busy'"),
		'0', 'no connection attempt was refused');
	$local->safe_psql('postgres', 'SELECT pgpool.resume()');
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- pgpool_ext.max_connections
# pgpool_ext.max_connections limits the pools of all servers together. At the limit, the
# connection that has been idle longest, of any pool, is evicted.
{
	my $local = local_node('local2', start => 0, conf => ['pgpool_ext.max_connections = 3']);
	with_clock($local, sub { $local->start });
	make_pool($local, $remote, server => $_, options => { pool_size => 3, reset => 'never' }) foreach qw(a b c);
	my $fake = PgpxFakeServer->new(silent => sub { $_[0]->receive; sleep 3600 }, reset => sub { $_[0]->serve(1); $_[0]->receive; sleep 3600 }, login => { login => sub { sleep 3600 } });
	my @sessions = map { PgpxSession->new($local) } 1 .. 4;

	sub pids
	{
		my ($server) = @_;

		return $local->safe_psql('postgres',
			"SELECT string_agg(remote_pid::text, ',' ORDER BY last_used) FROM pgpool.connections WHERE server = '$server'");
	}

	# a has two idle connections, and b one that was used after them
	my @leases = map { lease($sessions[$_], 'a') } 0, 1;
	$sessions[$_]->run('SELECT pgpool.checkin_all()') foreach 0, 1;
	is($sessions[2]->run("SELECT pgpool.exec('b', 'select 1')"), '1', 'third connection belongs to another server');
	my ($oldest, $other) = split /,/, pids('a');
	my $b = pids('b');

	is($sessions[3]->run("SELECT pgpool.exec('c', 'select 1')"), '1', 'third server opens a connection at the limit');
	is(pids('a'), $other, 'connection that was idle longest is evicted');
	is(pids('b'), $b, 'no other connection is evicted');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $oldest", '0'), 'remote session of the evicted connection has ended');
	is($local->safe_psql('postgres', "SELECT string_agg(server || ' ' || closed_evicted, ', ' ORDER BY server) FROM pgpool.stats"),
		'a 1, b 0, c 0', 'evictions are counted');
	is($local->safe_psql('postgres', 'SELECT sum(connections) FROM pgpool.workers'), '3', 'number of connections equals the limit');

	# no connection is idle: the session waits with the reason shown, and a checkin evicts
	@leases = (lease($sessions[0], 'a'), lease($sessions[1], 'b'), lease($sessions[2], 'c'));
	$sessions[3]->start("SELECT pgpool.exec(pgpool.checkout('c', '60 s'), 'select 1')");
	ok(wait_until($local, 'SELECT server, reason FROM pgpool.waiters', 'c|global_cap'), 'pgpool.waiters shows the limit as the reason of the wait');
	{
		my $late = PgpxSession->new($local);

		$late->fails("SELECT pgpool.checkout('c', '100 ms')", '55P03', qr/HINT:  Raise the setting "pgpool_ext\.max_connections"/, 'error of a timeout names the limit');
		$late->quit;
	}
	$sessions[1]->run('SELECT pgpool.checkin_all()');
	is($sessions[3]->finish(30), '1', 'checkin into another pool frees a slot');
	is($local->safe_psql('postgres', "SELECT string_agg(server || ' ' || closed_evicted, ', ' ORDER BY server) FROM pgpool.stats"),
		'a 1, b 1, c 0', 'returned connection was evicted');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

	# Checkins close as many connections as the waiters of other pools can use, and no more.
	# The worker is stopped, so that the closing connections keep their slots meanwhile.
	my $worker = worker_pid($local);
	foreach my $waiters (1, 2)
	{
		my @waiting = ($sessions[3], PgpxSession->new($local))[ 0 .. $waiters - 1 ];

		lease($sessions[$_], 'a') foreach 0 .. 2;
		my $before = $local->safe_psql('postgres', "SELECT closed_evicted FROM pgpool.stats WHERE server = 'a'");
		foreach my $n (1 .. $waiters)
		{
			$waiting[ $n - 1 ]->start("SELECT pgpool.checkout('c', '60 s')");
			ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'c' AND reason = 'global_cap'}, $n), "session $n of $waiters waits for a slot");
		}
		kill 'STOP', $worker;
		$sessions[$_]->run('SELECT pgpool.checkin_all()') foreach 0 .. 2;
		is($local->safe_psql('postgres', q{SELECT closing, idle FROM pgpool.pools WHERE server = 'a'}), join('|', $waiters, 3 - $waiters), "three checkins close a connection for each of $waiters waiters");
		kill 'CONT', $worker;
		like($_->finish(30), qr/^\d+$/, 'waiter is granted a connection') foreach @waiting;
		is($local->safe_psql('postgres', "SELECT closed_evicted - $before FROM pgpool.stats WHERE server = 'a'"), $waiters, "connections closed for $waiters waiters are counted");
		$_->run('SELECT pgpool.checkin_all()') foreach @waiting;
		$waiting[1]->quit if $waiters > 1;
	}

	# min_size and prewarm evict as well, but not below the min_size of another pool
	sub open_in
	{
		return $local->safe_psql('postgres', q{SELECT string_agg(server || ' ' || total, ', ' ORDER BY server) FROM pgpool.pools WHERE server IN ('f', 'g')});
	}

	lease($sessions[$_], 'a') foreach 0 .. 2;
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	is($local->safe_psql('postgres', q{SELECT total FROM pgpool.pools WHERE server = 'a'}), '3', 'one pool has all connections, idle');
	make_pool($local, $remote, server => 'f', options => { pool_size => 3, min_size => 2, reset => 'never' });
	make_pool($local, $remote, server => 'g', options => { pool_size => 3, reset => 'never' });
	is($sessions[3]->run("SELECT pgpool.exec('f', 'select 1')"), '1', 'checkout evicts a connection');
	ok(wait_until($local, q{SELECT total, idle FROM pgpool.pools WHERE server = 'f'}, '2|2'), 'min_size evicts for the second connection');
	is($sessions[3]->run(q{SELECT pgpool.prewarm('g', 3, '30 s')}), '1', 'prewarm evicts one connection only');
	is(open_in(), 'f 2, g 1', 'prewarm keeps the min_size of another pool');
	is($sessions[3]->run("SELECT pgpool.exec('a', 'select 1')"), '1', 'checkout evicts a connection again');
	is($local->safe_psql('postgres', q{SELECT total, closed_evicted FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'f'}), '2|0', 'checkout keeps the min_size of another pool while there are other connections');
	lease($sessions[$_], 'a') foreach 0 .. 2;
	is($local->safe_psql('postgres', q{SELECT total, closed_evicted FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'f'}), '0|2', 'checkouts evict below min_size if there are no other connections');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	ok(wait_until($local, q{SELECT total, idle FROM pgpool.pools WHERE server = 'f'}, '2|2'), 'min_size evicts again when connections of other pools are idle, without a call');
	$local->safe_psql('postgres', q{ALTER SERVER f OPTIONS (DROP min_size, ADD min_idle '2')});
	is($sessions[3]->run(q{SELECT pgpool.prewarm('g', 3, '30 s')}), '1', 'prewarm evicts one connection only, again');
	is(open_in(), 'f 2, g 1', 'prewarm keeps the min_idle of another pool');
	my $spare = lease($sessions[0], 'f');
	ok(wait_until($local, q{SELECT leased, idle FROM pgpool.pools WHERE server = 'f'}, '1|2'), 'min_idle evicts a connection of another pool when a free one is leased');
	$sessions[0]->run("SELECT pgpool.checkin($spare)");
	$local->safe_psql('postgres', "DROP SERVER $_ CASCADE") foreach qw(f g);
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server IN ('f', 'g')}, '0'), 'connections of dropped servers have closed');

	# min_idle evicts after a failed attempt, too
	$remote->safe_psql('remote_db', q{CREATE ROLE remote_j LOGIN PASSWORD 'j'});
	make_pool($local, $remote, server => 'j', user => 'remote_j', password => 'j', options => { pool_size => 2, min_idle => 1, retry_min => '10ms', retry_max => '50ms' });
	is($sessions[0]->run(q{SELECT pgpool.exec('j', 'select 1')}), '1', 'pool with min_idle is used');
	$remote->safe_psql('remote_db', 'ALTER ROLE remote_j NOLOGIN');
	$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_j'});
	ok(wait_until($local, q{SELECT unavailable_since IS NOT NULL FROM pgpool.pools WHERE server = 'j'}, 't'), 'attempts to connect fail');
	lease($_, 'a') foreach @sessions[ 0 .. 2 ];
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	$remote->safe_psql('remote_db', 'ALTER ROLE remote_j LOGIN');
	ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'j'}, '1', 60), 'min_idle evicts a connection of another pool after failed attempts');
	$local->safe_psql('postgres', 'DROP SERVER j CASCADE');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'j'}, '0'), 'connections of the dropped server have closed');

	# min_size is reached as soon as another pool frees slots
	make_pool($local, $remote, server => 'h', options => { pool_size => 3, min_size => 2, reset => 'never' });
	make_pool($local, $remote, server => 'i', options => { pool_size => 3, reset => 'never', max_lifetime => '1h' });
	is($sessions[0]->run(q{SELECT pgpool.exec('h', 'select 1')}), '1', 'pool with min_size is used');
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'h'}, '2'), 'min_size is reached');
	is($sessions[0]->run(q{SELECT pgpool.drain('h', '30 s')}), 't', 'pool with min_size is drained');
	lease($_, 'i') foreach @sessions[ 0 .. 2 ];
	$local->safe_psql('postgres', q{SELECT pgpool.resume('h')});
	is($local->safe_psql('postgres', q{SELECT total FROM pgpool.pools WHERE server = 'h'}), '0', 'min_size opens no connection while other pools lease all');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'h'}, '2', 60), 'min_size is reached when other pools free slots');

	$local->safe_psql('postgres', 'DROP SERVER h CASCADE; DROP SERVER i CASCADE');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server IN ('h', 'i')}, '0'), 'connections of the other dropped servers have closed');

	# Two connections are abandoned with a running statement, and one is being opened for a
	# session that does not wait any more. Their remote server never answers. The timeouts
	# of their servers do not delay other pools.
	make_pool($local, $fake, server => 'd', remote_dbname => 'silent', options => { pool_size => 3, operation_timeout => '3650d', sslmode => 'disable' });
	make_pool($local, $fake, server => 'e', remote_dbname => 'login', options => { pool_size => 3, connect_timeout => '3650d', sslmode => 'disable' });
	$sessions[0]->run(q{SELECT pgpool.send(pgpool.checkout('d', '60 s'), 'select 1')}) foreach 1 .. 2;
	$sessions[2]->fails(q{SELECT pgpool.checkout('e', '100 ms')}, '55P03', qr/timeout/, 'session does not wait for the unanswered login');
	$sessions[0]->quit;
	ok(wait_until($local, q{SELECT string_agg(server || ' ' || state, ', ' ORDER BY server) FROM pgpool.connections WHERE server IN ('d', 'e')}, 'd cancelling, d cancelling, e connecting'),
		'all slots are occupied by the unresponsive remote server');
	$sessions[1]->start(q{SELECT pgpool.exec(pgpool.checkout('a', '1 h'), 'select 1') FROM generate_series(1, 3)});
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'a'}, 1), 'another pool waits');
	let_time_pass($local, 11);
	is($sessions[1]->finish . $sessions[1]->error, "1\n1\n1", 'another pool is granted all slots');
	like($local->safe_psql('postgres', q{SELECT last_error FROM pgpool.pools WHERE server = 'e'}), qr/did not end within the time limit for an attempt while another pool waits for its slot \(10 s\)/, 'pgpool.pools shows why the attempt was ended');
	$sessions[1]->run('SELECT pgpool.checkin_all()');

	# a reset that has taken operation_timeout is cancelled, and its slot is soon free
	make_pool($local, $fake, server => 'r', remote_dbname => 'reset', options => { pool_size => 1, operation_timeout => '1 h', sslmode => 'disable' });
	is($sessions[1]->run(q{SELECT pgpool.exec('r', 'select 1')}), '1', 'call succeeds before a reset without an answer');
	my $state = q{SELECT state FROM pgpool.connections WHERE server = 'r'};
	ok(wait_until($local, $state, 'resetting'), 'reset has no answer');
	let_time_pass($local, 3601);
	ok(wait_until($local, $state, ''), 'reset is cancelled after operation_timeout, and its slot is free');
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote);
}

# ---------- pgpool_ext.max_connections with several workers
# Slots under pgpool_ext.max_connections are granted by the age of waiters also between
# pools of different workers: a busy pool of one worker does not starve a pool of
# another. The sessions of the busy pool wait without interruption, but each of them for
# less than half the time of a connect, which is an hour.
{
	my $local = local_node('local3', start => 0, conf => [ 'pgpool_ext.workers = 2', 'pgpool_ext.max_connections = 2', 'pgpool_ext.checkout_timeout = 0' ]);
	my %options = (pool_size => 2, max_lifetime => 0, idle_timeout => 0, test_period => -1, connect_timeout => '10h', operation_timeout => '10h');

	with_clock($local, sub { $local->start });
	make_pool($local, $remote, server => 'one', options => \%options);

	# the name of a setting, which a reset keeps, shows that the session is not new
	make_pool($local, $remote, server => 'two', options => { %options, start_commands =>
		q{SELECT set_config('own.opened', pg_advisory_xact_lock(7)::text, false) WHERE current_setting('own.opened', true) IS NULL} });

	# Wait until the busy pool opens a connection, which takes an hour.
	my $gate = PgpxSession->new($remote, dbname => 'remote_db');
	my $opens = sub {
		my ($total) = @_;

		ok(wait_until($local, sub {
			my $connecting = $local->safe_psql('postgres', "SELECT connecting > 0 FROM pgpool.pools WHERE server = 'two'");

			let_time_pass($local, 1801) if $connecting ne 't';
			return $connecting;
		}), 'busy pool opens a connection');
		let_time_pass($local, 3600);
		$gate->run('SELECT pg_advisory_unlock(7)');
		ok(wait_until($local, "SELECT total, connecting FROM pgpool.pools WHERE server = 'two'", "$total|0"), "busy pool has connections: $total");
		$gate->run('SELECT pg_advisory_lock(7)');
	};

	my $first = PgpxSession->new($local);
	is($first->run(q{SELECT pgpool.exec('one', 'SELECT 1')}), '1', 'pool one works');
	$gate->run('SELECT pg_advisory_lock(7)');
	$first->start(q{SELECT pgpool.exec('two', 'SELECT 1')});
	$opens->(1);
	is($first->finish, '1', 'pool two works');
	is($local->safe_psql('postgres', "SELECT count(DISTINCT worker) FROM pgpool.pools WHERE server IN ('one', 'two')"), '2', 'pools are served by different workers');

	my @busy = map { PgpxSession->new($local) } 1 .. 8;
	my $forever = q{SELECT pgpool.exec('two', 'SELECT pg_sleep(0.002)') FROM generate_series(1, 1000000)};
	$_->start($forever) foreach @busy;
	$opens->(2);

	# for each call the busy pool must close a connection, and open it again afterwards
	foreach my $round (1 .. 3)
	{
		is($first->run(q{SELECT pgpool.exec('one', 'SELECT 1')}), '1', 'other pool is granted a slot') or diag($first->error);
		$opens->(2);
	}

	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')'), $_->finish(30) foreach @busy;
	$_->quit foreach @busy, $first, $gate;
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote);
}

leak_check($local, $remote);
done_testing();
