# Administrative functions, and the reasons for which connections are closed.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxProxy;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ["client_connection_check_interval = '50ms'", 'log_connections = on' ]);
my $local = local_node('local', conf => ['pgpool_ext.max_connections = 40', 'pgpool_ext.log_connections = on' ]);

# ---------- administrative functions
# Administrative functions: pause, resume, drain, reconnect, prewarm, reset_stats,
# terminate. For privileges see privileges.pl.
{
	my $proxy = PgpxProxy->new($remote->port);
	make_pool($local, $remote, server => 's1', options => { pool_size => 2 });
	make_pool($local, $remote, server => 's2', options => { pool_size => 2 });
	$local->safe_psql('postgres', 'CREATE DATABASE elsewhere');
	make_pool($local, $remote, server => 's1', dbname => 'elsewhere');

	my $row = 'AS t(a int)';
	my $admin = PgpxSession->new($local);
	my @sessions = map { PgpxSession->new($local) } 1 .. 4;
	my $elsewhere = PgpxSession->new($local, dbname => 'elsewhere');

	sub pool
	{
		my ($server, $columns, $database) = @_;

		$database //= 'postgres';
		return $local->safe_psql('postgres',
			"SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server, local_user, database) WHERE server = '$server' AND database = '$database'");
	}

	sub waits
	{
		my ($session, $reason, $name) = @_;
		my $pid = $session->pid;

		$session->start("SELECT pgpool.checkout('s1', '60 s')");
		return ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE pid = $pid", $reason), $name);
	}

	sub call_admin
	{
		my ($call, $expected, $name) = @_;
		my $text = $admin->run("SELECT pgpool.$call", 60);

		return is($text . $admin->error, $expected, $name // $call);
	}

	sub check_in { $_->run('SELECT pgpool.checkin_all()') foreach @_; return; }

	# --- pause
	my $lease = lease($sessions[0], 's1');
	call_admin("pause('s1')", '');
	is($sessions[0]->run("SELECT * FROM pgpool.query($lease, 'select 1') $row"), '1', 'pause: lease stays usable');
	is($sessions[1]->run("SELECT pgpool.try_checkout('s1')") . $sessions[1]->error, '', 'pause: try_checkout returns NULL');
	$sessions[1]->fails("SELECT pgpool.checkout('s1', '200 ms')", '55P03', qr/./, 'pause: timeout applies');
	waits($sessions[$_], 'paused', "session $_ waits, and the reason is shown") foreach 1 .. 3;
	check_in($sessions[0]);
	is(pool('s1', 'state, leased, waiters'), 'paused|0|3', 'pause: returned connection is not granted');
	check_invariants($local, 'pause: invariants hold');
	is($sessions[0]->run("SELECT * FROM pgpool.query('s2', 'select 2') $row"), '2', 'another server is not paused');
	is($elsewhere->run("SELECT * FROM pgpool.query('s1', 'select 3') $row"), '3', 'server of the same name in another database is not paused');
	call_admin("resume('s1')", '');
	like($sessions[$_]->finish(30), qr/^\d+$/, "resume: session $_ is granted a connection") foreach 1, 2;
	is($sessions[3]->done, 0, 'resume: last session still waits');
	check_in(@sessions[ 1, 2 ]);
	like($sessions[3]->finish(30), qr/^\d+$/, 'resume: last session is granted a connection next');
	check_in($sessions[3]);

	# all servers at once, and a server that has no pool yet
	call_admin('pause()', '', 'pause() pauses all servers');
	is(pool($_, 'state'), 'paused', "pause: server $_ is paused") foreach qw(s1 s2);
	call_admin("resume('s2')", '');
	is(pool('s1', 'state') . pool('s2', 'state'), 'pausedready', 'resume: one server is ready, the other stays paused');
	call_admin('resume()', '', 'resume() resumes all servers');
	is($sessions[0]->run("SELECT * FROM pgpool.query('s2', 'select 2') $row"), '2', 'resume: server works again');
	make_pool($local, $remote, server => 'unused', options => { pool_size => 2, min_size => 2 });
	call_admin("pause('unused')", '', 'pause: server without a pool can be paused');
	$sessions[0]->start("SELECT * FROM pgpool.query('unused', 'select 4') $row");
	ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE server = 'unused'", 'paused'), 'pause: first checkout waits');
	is(pool('unused', 'total, connecting'), '0|0', 'pause: no connection is opened');
	call_admin("resume('unused')", '');
	is($sessions[0]->finish(30), '4', 'resume: first checkout succeeds');
	ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'unused'", '2'), 'resume: min_size connections are open');
	call_admin("drain('unused', '30 s')", 't', 'drain: min_size does not keep connections open');
	call_admin("resume('unused')", '');
	ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'unused'", '2'), 'resume: min_size connections are open again');

	# a login that is under way fails during the pause; the next attempt would be an hour later
	make_pool($local, $proxy, server => 'hanging', options => { retry_min => '1h', retry_max => '1h' });
	my $waiting = q{SELECT count(*) FROM pgpool.waiters WHERE server = 'hanging' AND reason = 'paused'};
	my $since = -s $remote->logfile;
	$proxy->command('freeze');
	$sessions[0]->start(q{SELECT pgpool.exec('hanging', 'select 1')});
	ok(wait_until($local, sub { slurp_file($remote->logfile, $since) =~ /connection received: host=127/ ? 1 : 0 }, '1'), 'pause: login is under way');
	call_admin("pause('hanging')", '');
	$proxy->command('cut 1');
	ok(wait_until($local, q{SELECT connects_failed FROM pgpool.stats WHERE server = 'hanging'}, '1'), 'pause: login fails');
	is($local->safe_psql('postgres', $waiting), '1', 'pause: session still waits');
	$sessions[1]->start(q{SELECT pgpool.exec('hanging', 'select 2')});
	ok(wait_until($local, $waiting, '2', 30), 'pause: later session waits, too, although the login has failed') or diag($sessions[1]->error);
	call_admin("resume('hanging')", '');
	is($sessions[$_]->finish(30) . $sessions[$_]->error, '1', "resume: session $_ is granted a connection") foreach 0, 1;

	# --- drain
	call_admin("drain('s1', '1 h')", 't', 'drain: idle pool is drained');
	is(pool('s1', 'state, total'), 'draining|0', 'drain: all connections are closed');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgpool_ext/s%'", '2'),
		'drain: remote sessions have ended, those of other pools remain');
	waits($sessions[0], 'paused', 'drain: checkout waits');
	call_admin("resume('s1')", '', 'resume: drained server accepts checkouts again');
	like($lease = $sessions[0]->finish(30), qr/^\d+$/, 'resume: waiter is granted a connection');
	call_admin("drain('s1', '100 ms')", 'f', 'drain returns false if a connection is leased at the timeout');
	is($sessions[0]->run("SELECT * FROM pgpool.query($lease, 'select 1') $row"), '1', 'drain: lease stays usable');
	$admin->start("SELECT pgpool.drain('s1', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pg_stat_activity WHERE query LIKE $$SELECT pgpool.drain%$$ AND state = $$active$$', '1'),
		'drain: drain waits for the lease');
	check_in($sessions[0]);
	is($admin->finish(30), 't', 'drain: drain succeeds at checkin');
	call_admin("resume('s1')", '');
	$lease = lease($sessions[0], 's1');
	$admin->start("SELECT pgpool.drain('s1')");
	ok(wait_until($local, "SELECT state FROM pgpool.pools WHERE server = 's1' AND database = 'postgres'", 'draining'), 'drain: pool is draining');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $admin->pid . ')');
	$admin->finish;
	$admin->failed('57014', qr/user request/, 'drain can be cancelled');
	is(pool('s1', 'state, leased'), 'draining|1', 'drain: pool is still draining after the cancel');
	check_in($sessions[0]);
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 's1' AND database = 'postgres'", '0'), 'drain: connection closes at checkin');
	cmp_ok(pool('s1', 'closed_stale'), '>=', 2, 'drain: closed connections are counted');
	call_admin("resume('s1')", '');

	# another session ends the drain
	$lease = lease($sessions[0], 's1');
	$admin->start("SELECT pgpool.drain('s1', '1 h')");
	ok(wait_until($local, "SELECT state FROM pgpool.pools WHERE server = 's1' AND database = 'postgres'", 'draining'), 'drain: drain waits again');
	$local->safe_psql('postgres', q{SELECT pgpool.resume('s1')});
	is($admin->finish(30), 'f', 'drain: resume ends it');
	is(pool('s1', 'state, leased'), 'ready|1', 'drain: pool is no longer draining');
	check_in($sessions[0]);

	# --- prewarm
	call_admin("prewarm('s1', 2, '30 s')", '2');
	is(pool('s1', 'total, idle'), '2|2', 'prewarm: connections are open');
	call_admin("prewarm('s1', 9, '30 s')", '2', 'prewarm: number is limited by pool_size');
	call_admin("prewarm('s1', 1, '30 s')", '2', 'prewarm: connections beyond the number are kept');
	call_admin("prewarm('s1', 0)", '2', 'prewarm: 0 opens none');

	# a connection that is being tested is open, but is not one more
	make_pool($local, $remote, server => 'tested', options => { pool_size => 3, test_period => '0' });
	is($admin->run(q{SELECT pgpool.exec('tested', 'select 1')}), '1', 'prewarm: a connection was used');
	ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'tested'}, '1'), 'prewarm: the connection is unused');
	my $stopped = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'tested'});
	kill 'STOP', $stopped;
	call_admin("try_checkout('tested')", '', 'prewarm: test of the connection is not answered');
	call_admin("prewarm('tested', 2, '30 s')", '2', 'prewarm: a second connection is opened while the first is being tested');
	kill 'CONT', $stopped;

	call_admin("pause('unused')", '');
	call_admin("reconnect('unused')", '');
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'unused'", '0'), 'reconnect: idle connections of a paused server close');
	call_admin("prewarm('unused', 2, '300 ms')", '0', 'prewarm: no connection is opened while the server is paused');
	call_admin("resume('unused')", '');

	# a pause also ends prewarm if the pool is unavailable and there is no timeout
	make_pool($local, $remote, server => 'refused', options => { port => 1, retry_min => '1min' });
	$admin->fails(q{SELECT pgpool.checkout('refused')}, '08001', qr/refused/, 'prewarm: server cannot be reached');
	call_admin("pause('refused')", '');
	$admin->run("SET statement_timeout = '20s'");
	call_admin("prewarm('refused', 2)", '0', 'prewarm: a pause ends it while the pool is unavailable');
	$admin->reset_statement_timeout;
	call_admin("resume('refused')", '');

	# --- bad input
	my %bad = (
		"pause('nowhere')" => [ '42704', qr/server "nowhere" does not exist/ ],
		"drain('s1', '-1 s')" => [ '22023', qr/timeout is out of range/ ],
		'prewarm(NULL, 1)' => [ '22004', qr/pool must not be null/ ],
		"prewarm('s1', -1)" => [ '22023', qr/n must not be negative/ ],
		'terminate(NULL)' => [ '22004', qr/lease must not be null/ ]);
	$admin->fails("SELECT pgpool.$_", $bad{$_}[0], $bad{$_}[1], "bad input: $_") foreach sort keys %bad;
	call_admin("terminate($_)", 'f', "terminate: lease $_ does not exist") foreach 0, -1, '9223372036854775807';
	is(pool('s1', 'state'), 'ready', 'bad input: state of the pool is unchanged');

	# --- reconnect
	$lease = lease($sessions[0], 's1');
	my $pids = $local->safe_psql('postgres', "SELECT string_agg(remote_pid::text, ',') FROM pgpool.connections WHERE server = 's1' AND database = 'postgres'");
	my $mine = $sessions[0]->run("SELECT * FROM pgpool.query($lease, 'select pg_backend_pid()') $row");
	call_admin("reconnect('s1')", '');
	ok(wait_until($remote, "SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE pid = ANY ('{$pids}')", $mine),
		'reconnect: idle connection closes at once');
	is($sessions[0]->run("SELECT * FROM pgpool.query($lease, 'select 1') $row"), '1', 'reconnect: lease stays usable');
	check_in($sessions[0]);
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ('{$pids}')", '0'), 'reconnect: leased connection closes at checkin');
	ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE remote_pid = ANY ('{$pids}')", '0'), 'reconnect: slots are free');
	like(my $new = $sessions[0]->run("SELECT * FROM pgpool.query('s1', 'select pg_backend_pid()') $row"), qr/^\d+$/, 'reconnect: pool has a connection again')
	  or diag($sessions[0]->error);
	unlike(",$pids,", qr/,$new,/, 'reconnect: next connection is new');

	# --- reset_stats
	are_idle($local, 's1');
	lease($sessions[0], 's1');
	call_admin("reset_stats('s1')", '');
	is(pool('s1', 'checkouts, checkins, connects, waited, closed_stale, statements'), '1|0|1|0|0|0', 'reset_stats: values of leases in progress are kept');
	cmp_ok(pool('s2', 'checkouts'), '>', 0, 'reset_stats: counters of other servers are kept');
	stats_add_up($local, 'reset_stats: counters add up');
	check_in($sessions[0]);
	is(pool('s1', 'checkouts, checkins'), '1|1', 'reset_stats: counters continue');
	call_admin("reset_stats()", '');
	is(pool('s2', 'checkouts') . pool('s1', "extract(epoch FROM now() - stats_reset) < 60"), '0t', 'reset_stats() resets the counters of all servers');
	cmp_ok(pool('s1', 'checkouts', 'elsewhere'), '>', 0, 'reset_stats: counters of another database are kept');

	# --- terminate
	foreach my $in_query (0, 1)
	{
		my @holders = @sessions[ 0, 1 ];
		my @leases = map { lease($_, 's1') } @holders;

		$pids = $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.leases WHERE lease = $leases[0]");
		$sessions[2]->start("SELECT pgpool.checkout('s1', '60 s')");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'terminate: session waits');
		$holders[0]->start("SELECT pgpool.exec($leases[0], 'select pg_sleep(300)')") if $in_query;
		ok(wait_until($local, "SELECT state FROM pgpool.leases WHERE lease = $leases[0]", $in_query ? 'active' : 'idle'),
			'terminate: lease is ' . ($in_query ? 'executing a query' : 'idle'));
		call_admin("terminate($leases[0])", 't');
		$in_query ? $holders[0]->finish(30) : $holders[0]->run("SELECT pgpool.exec($leases[0], 'select 1')");
		$holders[0]->failed('PX001', qr/./, 'terminate: holder receives the error');
		like($sessions[2]->finish(30), qr/^\d+$/, 'terminate: slot is free');
		is($holders[1]->run("SELECT pgpool.exec($leases[1], 'select 1')"), '1', 'terminate: another lease stays usable');
		ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pids", '0'), 'terminate: remote session has ended');
		call_admin("terminate($leases[0])", 'f', 'terminate: second call returns false');
		check_in(@sessions);
		is($_->error, '', 'terminate: terminated lease can be returned') foreach $holders[0];
	}
	ok(wait_until($local, sub { pool('s1', 'terminated, closed_with_lease') }, '2|2'), 'terminate: terminated leases are counted');
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- close reasons
# Each cause that closes a connection has a counter of its own in pgpool.stats and a
# message in the log, and each reason to wait has a name in pgpool.waiters: one event
# counts exactly once.
{
	# never answers; the kernel accepts the connections
	my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";
	my ($session, $holder, $other) = map { PgpxSession->new($local) } 1 .. 3;
	my @counters = split / /, $local->safe_psql('postgres', <<'EOT');
SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS pgpool_ext;
SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'pgpool.stats'::regclass AND attname ~ '^closed_';
EOT
	my %seen;
	# event => counter and reason in the log
	my $changed = 'The options have changed, or reconnect or drain was called.';
	my %because = (
		idle => [ closed_idle => 'It was idle for longer than idle_timeout.' ],
		lifetime => [ closed_lifetime => 'It was older than max_lifetime.' ],
		overflow => [ closed_overflow => 'The pool had more connections than pool_size.' ],
		evicted => [ closed_evicted => 'It was closed in favor of another pool, or because a cap on the connections of its server had become smaller.' ],
		reset => [ closed_reset => 'Its reset failed or could not be confirmed.' ],
		broken => [ closed_broken => 'It was lost, its protocol stream was invalid, or the remote server had become read-only.' ],
		drained => [ closed_stale => $changed ],
		stale => [ closed_stale => $changed ],
		terminated => [ closed_with_lease => 'Its lease was terminated or exceeded lease_timeout.' ],
		holder_died => [ closed_with_lease => 'Its lease ended in the middle of a statement, or with a transaction that could not be rolled back.' ],
		discarded => [ closed_with_lease => 'Its lease was discarded.' ]);

	# Assert that an event closes the only connection of a pool for the expected cause.
	sub closes_as
	{
		my ($cause, $options, $event) = @_;
		my $server = "s_$cause";
		my ($counter, $because) = @{ $because{$cause} };

		make_pool($local, $remote, server => $server, options => { pool_size => 1, %$options });
		$session->run("SELECT pgpool.exec('$server', 'select 1')");
		$event->($server);
		my $stats = sub {
			return $local->safe_psql('postgres', "SELECT string_agg(key || ' ' || value, ' ' ORDER BY key) FROM pgpool.stats s, jsonb_each_text(to_jsonb(s)) WHERE server = '$server' AND local_user = current_user AND key ~ '^closed_' AND value <> '0'");
		};
		ok(wait_until($local, $stats, "$counter 1", 30), "$cause: $counter is the only counter that increases");
		my $logged = sub { return slurp_file($local->logfile) =~ /closed connection \d+ to server "$server" .*\n.* DETAIL:  (.*)\n/ ? $1 : '' };
		ok(wait_until($local, $logged, $because, 30), "$cause: log has the reason");
		$seen{$counter}++;
		return;
	}

	sub nothing { return; }

	sub sql
	{
		my ($sql) = @_;

		return sub { my $text = $sql =~ s/%/$_[0]/gr; $local->safe_psql('postgres', $text); };
	}

	closes_as('idle', { idle_timeout => '200ms' }, \&nothing);
	closes_as('lifetime', { max_lifetime => '200ms' }, \&nothing);
	closes_as('overflow', { max_overflow => 1, overflow_ttl => '100ms' }, sub {
			my ($server) = @_;

			lease($_, $server) foreach $holder, $other;
			$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
		});
	closes_as('evicted', { max_server_connections => 1 }, sub {
			my $mine = PgpxSession->new($local, user => 'app');

			is($mine->run("SELECT pgpool.exec('$_[0]', 'select 1')", 30) . $mine->error, '1', q{another user's call succeeds});
		});
	closes_as('reset', { reset_command => 'select 1/0' }, \&nothing);
	closes_as('broken', {}, sub {
			wait_until($local, "SELECT state FROM pgpool.connections WHERE server = '$_[0]'", 'idle', 30);
			$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/$_[0]'");
		});
	closes_as('drained', {}, sql("SELECT pgpool.drain('%', '30 s')"));
	closes_as('stale', { pool_size => 2 }, sub {
			# a pool with outdated options is forgotten when its last connection closes
			my ($server) = @_;

			lease($_, $server) foreach $holder, $other;
			$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (ADD application_name 'changed')");
			$holder->run('SELECT pgpool.checkin_all()');
		});
	$other->run('SELECT pgpool.checkin_all()');
	closes_as('terminated', {}, sub { my $lease = lease($holder, $_[0]); $other->run("SELECT pgpool.terminate($lease)"); });
	closes_as('holder_died', {}, sub {
			my $mine = PgpxSession->new($local);
			my $lease = lease($mine, $_[0]);

			$mine->run("SELECT pgpool.send($lease, 'select pg_sleep(600)')");
			$mine->quit;
		});
	closes_as('discarded', {}, sub { my $lease = lease($holder, $_[0]); $holder->run("SELECT pgpool.discard($lease)"); });
	$holder->run('SELECT pgpool.checkin_all()');
	is(join(' ', sort keys %seen), join(' ', sort @counters), 'every counter was tested');

	# --- reasons to wait
	sub waits_for
	{
		my ($reason, $server) = @_;
		my $pid = $session->pid;

		$session->start("SELECT pgpool.checkout('$server', '60 s')");
		ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE pid = $pid", $reason, 30), "waiter shows the reason $reason");
		$local->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
		$session->finish(30);
		return;
	}

	make_pool($local, $remote, server => 'w_full', options => { pool_size => 1 });
	lease($holder, 'w_full');
	waits_for('full', 'w_full');
	make_pool($local, $remote, server => 'w_paused');
	$local->safe_psql('postgres', q{SELECT pgpool.pause('w_paused')});
	waits_for('paused', 'w_paused');
	make_pool($local, $remote, server => 'w_connecting', options => { port => $silent->sockport, connect_timeout => '10min' });
	waits_for('connecting', 'w_connecting');
	$local->safe_psql('postgres', 'DROP SERVER w_connecting CASCADE');
	make_pool($local, $remote, server => 'w_unavailable', remote_dbname => 'no_such_db',
		options => { on_unavailable => 'wait', retry_min => '60s', retry_max => '60s' });
	waits_for('unavailable', 'w_unavailable');
	make_pool($local, $remote, server => 'w_server_cap', options => { max_server_connections => 1 });
	my $mine = PgpxSession->new($local, user => 'app');
	lease($mine, 'w_server_cap');
	waits_for('server_cap', 'w_server_cap');
	make_pool($local, $remote, server => 'w_hog', options => { pool_size => 100 });
	$other->run(q{SELECT pgpool.try_checkout('w_hog') FROM generate_series(1, 100)});
	make_pool($local, $remote, server => 'w_global_cap');
	my $all_are_leased = sub {
		$other->run(q{SELECT pgpool.checkout('w_hog', '300 ms') FROM generate_series(1, 100)});
		return $local->safe_psql('postgres', <<'EOT');
SELECT sum(connections) = current_setting('pgpool_ext.max_connections')::int
	AND NOT EXISTS (SELECT FROM pgpool.connections WHERE state <> 'leased')
FROM pgpool.workers
EOT
	};
	ok(wait_until($local, $all_are_leased, 't', 60), 'one pool has all slots');
	waits_for('global_cap', 'w_global_cap');
	$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach $session, $holder, $other, $mine;
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
