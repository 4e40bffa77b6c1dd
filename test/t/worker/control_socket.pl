# Requests of sessions for sockets, and a control socket that is full.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- replies
# The worker's reply to a socket request: late, refused, or missing because the
# connection was closed meanwhile; and a session that has reached its limit on open files.
# The session never uses a socket of another connection.
{
	my $first = PgpxSession->new($local);
	my $waits = q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND state = 'active' AND pid = };

	make_pool($local, $remote, server => 'one', options => { pool_size => 1, operation_timeout => '10 min' });
	my $worker = worker_pid($local);

	# A connection is idle, the session has not cached its socket, and the worker is
	# stopped, so the session's request is not answered.
	sub asks
	{
		my ($session, $call, $name) = @_;

		is($first->run(q{SELECT a FROM pgpool.query('one', 'select 1') AS t(a int)}) . $first->error, '1', "$name: connection is open");
		are_idle($local, 'one');
		kill 'STOP', $worker;
		$session->start($call);
		ok(wait_until($local, $waits . $session->pid, 1), "$name: session waits for the reply");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', 1), "$name: session has the lease");
		return;
	}

	sub serves
	{
		my ($session, $name) = @_;

		is($session->run(q{SELECT a FROM pgpool.query('one', 'select 42') AS t(a int)}, 60) . $session->error, '42', "$name: next call of the session succeeds");
		return $session->quit;
	}

	# --- a late reply is not accepted as the reply to the next request
	my $session = PgpxSession->new($local);
	asks($session, q{SELECT pgpool.checkout('one', '60 s')}, 'late');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish(30);
	$session->failed('57014', qr/user request/, 'late: requesting session is cancelled');
	kill 'CONT', $worker;
	serves($session, 'late');

	# --- another request wakes the session while it waits for the reply
	$session = PgpxSession->new($local);
	asks($session, q{SELECT pgpool.checkout('one', '60 s')}, 'woken');
	my $log = -s $local->logfile;
	$local->safe_psql('postgres', 'SELECT pg_log_backend_memory_contexts(' . $session->pid . ')');
	ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ /logging memory contexts of PID/ ? 1 : 0 }, 1), 'woken: session is woken by another request');
	kill 'CONT', $worker;
	like($session->finish(60), qr/^\d+$/, 'woken: session continues to wait and receives the reply') or diag($session->error);
	$session->run('SELECT pgpool.checkin_all()');
	serves($session, 'woken');

	# --- the lease is terminated before the worker has replied: the session is
	# granted another connection
	foreach my $how ('unanswered', 'refused')
	{
		my $closed = $local->safe_psql('postgres', 'SELECT closed_with_lease FROM pgpool.stats');

		$session = PgpxSession->new($local);
		asks($session, q{SELECT pgpool.checkout('one', '60 s')}, $how);
		kill 'STOP', $session->pid if $how eq 'refused';
		is($local->safe_psql('postgres', 'SELECT pgpool.terminate(lease) FROM pgpool.leases'), 't', "$how: lease is terminated");

		# without a reply the session notices the end itself; or the worker replies before
		# the session wakes
		ok(wait_until($local, 'SELECT waiters FROM pgpool.pools', 1, 30), "$how: session waits for another connection") if $how eq 'unanswered';
		kill 'CONT', $worker;
		ok(wait_until($local, 'SELECT closed_with_lease FROM pgpool.stats', $closed + 1), "$how: connection is closed");
		kill 'CONT', $session->pid;
		like($session->finish(60), qr/^\d+$/, "$how: session is granted another connection") or diag($session->error);
		is($session->run('SELECT pgpool.checkin_all()'), '1', "$how: session has no other lease");
		serves($session, $how);
	}

	# --- A pipelined statement was sent, and its owner cannot receive the socket: the statement
	# is not repeated, and the error reports that it may have run.
	make_pool($local, $remote, server => 'sent', options => { pool_size => 1, operation_timeout => '300 ms' });
	{
		my ($holder, $next) = map { PgpxSession->new($local) } 1 .. 2;
		my $lease = lease($holder, 'sent');

		is($holder->run("SELECT pgpool.exec($lease, 'select 1')"), 1, 'sent: lease is used');
		$next->start(q{SELECT pgpool.exec('sent', 'select 2')});
		ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'sent'}, 1), 'sent: another session waits');
		kill 'STOP', $worker;
		is($holder->run("SELECT pgpool.checkin($lease)") . $holder->error, '', 'sent: lease is returned');
		$next->finish(60);
		$next->failed('08006', qr/connection to server "sent" was lost\n.*DETAIL:  The statement was sent, but its answer was lost\. It may have been executed\./, 'sent: owner receives the error');
		kill 'CONT', $worker;
		is($next->run(q{SELECT a FROM pgpool.query('sent', 'select 42') AS t(a int)}, 60) . $next->error, '42', 'sent: next call of the session succeeds');
		$_->quit foreach $holder, $next;
	}

	# --- the answer to a reset is late: no byte of it was read, so the connection stays
	# usable
	make_pool($local, $remote, server => 'late_reset', options => { pool_size => 1, operation_timeout => '10 min' });
	{
		my $own = PgpxSession->new($local);
		my $lease = lease($own, 'late_reset');
		my $pid = $own->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)");

		kill 'STOP', $worker, $pid;
		is($own->run("SELECT pgpool.checkin($lease)") . $own->error, '', 'late_reset: reset is sent');
		$own->fails(q{SELECT pgpool.checkout('late_reset', '500 ms')}, '55P03', qr/no connection to server "late_reset" became available/, 'late_reset: checkout times out before the answer');
		is($local->safe_psql('postgres', q{SELECT state FROM pgpool.connections WHERE server = 'late_reset'}), 'reset_pending', 'late_reset: connection is kept');
		kill 'CONT', $worker, $pid;
		is($own->run(q{SELECT a FROM pgpool.query('late_reset', 'select pg_backend_pid()') AS t(a int)}) . $own->error, $pid, 'late_reset: connection is leased next');
		$own->quit;
	}

	# --- the only connection is being tested: try_checkout waits for a
	# moment and returns NULL
	make_pool($local, $remote, server => 'tested', options => { pool_size => 1, test_period => '0' });
	{
		my $own = PgpxSession->new($local);
		my $pid = $own->run(q{SELECT a FROM pgpool.query('tested', 'select pg_backend_pid()') AS t(a int)});

		ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'tested'}, 'idle'), 'tested: connection is idle');
		kill 'STOP', $worker;
		my ($tried, $state, $waiting) = split /\n/, $own->run(q{SELECT pgpool.try_checkout('tested');
			SELECT state FROM pgpool.connections WHERE server = 'tested'; SELECT count(*) FROM pgpool.waiters});
		is($tried . $own->error, '', 'tested: try_checkout returns NULL');
		is($state, 'checking', 'tested: connection is being tested');
		is($waiting, 0, 'tested: no session waits');
		kill 'CONT', $worker;
		is($own->run(q{SELECT a FROM pgpool.query('tested', 'select pg_backend_pid()') AS t(a int)}) . $own->error, $pid, 'tested: connection is leased after the test');
		$own->quit;
	}

	# --- the session has reached its limit on open files, so it cannot receive the socket: the
	# call fails at once, and the connection stays in its pool
	make_pool($local, $remote, server => 'limited', options => { pool_size => 1, operation_timeout => '10 min', checkout_timeout => '20 min' });
	{
		my $own = PgpxSession->new($local);
		my $call = q{SELECT a FROM pgpool.query('limited', 'select pg_backend_pid()') AS t(a int)};
		my $pid = $first->run($call);
		ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'limited'}, 'idle'), 'limited: connection is idle');
		my $lease = lease($own, 'one');

		# the limit is the lowest free descriptor, so the session cannot open another file
		my %open = map { m{(\d+)$} ? ($1 => 1) : () } glob '/proc/' . $own->pid . '/fd/*';
		my $limit = (grep { !$open{$_} } 0 .. keys %open)[0];

		is(system('prlimit', '--pid', $own->pid, "--nofile=$limit:"), 0, "limited: limit is $limit open files");
		$own->start($call);
		$own->finish(60);
		$own->failed('XX000', qr/Too many open files/, 'limited: error names the reason');
		is($local->safe_psql('postgres', q{SELECT state, remote_pid FROM pgpool.connections WHERE server = 'limited'}), "idle|$pid", 'limited: connection stays in its pool');
		is($own->run("SELECT pgpool.exec($lease, 'select 1')") . $own->error, '1', 'limited: other lease of the session works');
		is(system('prlimit', '--pid', $own->pid, '--nofile=' . ($limit + 20) . ':'), 0, 'limited: limit is raised');
		is($own->run($call, 60) . $own->error, $pid, 'limited: next call of the session succeeds');
		$own->quit;
	}

	is(worker_pid($local), $worker, 'worker was not restarted');
	$first->quit;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- a full socket
# The worker does not read its control socket: sessions request sockets until it is
# full. Each call ends in time, can be cancelled, and returns a granted connection. When
# the worker reads again everything works, and no descriptor is left on either side.
SKIP:
{
	skip 'over TLS a stopped worker relays nothing', 1 if over_tls();

	make_pool($local, $remote, server => 'eight', options => { pool_size => 8 });

	my ($session, @others) = map { PgpxSession->new($local) } 1 .. 8;
	is($session->run(q{SELECT pgpool.prewarm('eight', 8)}) . $session->error, '8', 'connections are open');
	$session->run(<<'EOT');
CREATE FUNCTION try_checkouts(times int) RETURNS TABLE (outcome text, n bigint) LANGUAGE plpgsql AS $f$
BEGIN
	CREATE TEMP TABLE outcomes (outcome text);
	FOR i IN 1 .. times LOOP
		BEGIN
			IF i % 25 > 0 THEN
				PERFORM pgpool.checkout('eight', '1 ms');
				INSERT INTO outcomes VALUES ('a lease');
			ELSE
				INSERT INTO outcomes VALUES (coalesce(pgpool.try_checkout('eight')::text, 'none'));
			END IF;
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO outcomes VALUES (SQLSTATE);
		END;
	END LOOP;
	RETURN QUERY SELECT o.outcome, count(*) FROM outcomes o GROUP BY 1 ORDER BY 1;
	DROP TABLE outcomes;
END $f$;
EOT
	# sockets and epoll sets; other files are those of PostgreSQL
	my $descriptors = sub { return scalar grep { (readlink // '') =~ /^(?:socket:|anon_inode)/ } glob "/proc/$_[0]/fd/*"; };
	my $mine = $descriptors->($session->pid);
	my $worker = worker_pid($local);
	my $its = $descriptors->($worker);

	kill 'STOP', $worker;
	# Linux accepts about 280 messages by default
	$_->start('SELECT * FROM try_checkouts(50)') foreach $session, @others;
	is($_->finish(300) . $_->error, "55P03|48\nnone|2", 'each call times out without an answer') foreach $session, @others;
	is($local->safe_psql('postgres', q{SELECT leased, idle, waiters FROM pgpool.pools WHERE server = 'eight'}), '0|8|0', 'granted connections are returned');
	check_invariants($local);

	# the socket is full now, and a session waits for room
	$session->start("SELECT pgpool.checkout('eight', '10 min')");
	ok(wait_until($local, 'SELECT pid FROM pgpool.leases', $session->pid), 'session waits');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish(60);
	$session->failed('57014', qr/canceling statement/, 'session can be cancelled');
	$session->start("SELECT a FROM pgpool.query('eight', 'select 7') AS t(a int)");
	ok(wait_until($local, 'SELECT pid FROM pgpool.leases', $session->pid), 'session waits again with another call');
	kill 'CONT', $worker;
	is($session->finish(60) . $session->error, '7', 'call succeeds when the worker reads again');
	is(worker_pid($local), $worker, 'worker was not restarted');
	ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0'), 'worker has no superfluous connection descriptor');
	cmp_ok($descriptors->($worker), '<=', $its, 'worker has no descriptor of a request');
	cmp_ok($descriptors->($session->pid), '<=', $mine + 6, 'session has no superfluous descriptor');

	$_->quit foreach $session, @others;
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
