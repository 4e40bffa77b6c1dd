# The relay of TLS connections, and several workers.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'tested without the option --tls' if over_tls();

my $remote = remote_node('remote', tls => 1);

# ---------- the relay
# The relay is a transparent byte stream: large results and parameters arrive complete,
# in both directions at once. A session that does not read, or a remote server that has
# closed meanwhile, costs the worker nothing. One stream does not block another one.
# Unread data of one session is not read by the next.
{
	my $local = local_node('local1');
	my $row = 'AS t(a text)';

	make_pool($local, $remote, server => 'one', options => { sslmode => 'require', pool_size => 1 });
	make_pool($local, $remote, server => 'late', options => { sslmode => 'require', pool_size => 1, notices => 'ignore' });
	make_pool($local, $remote, server => 'four', options => { sslmode => 'require', pool_size => 4 });
	my $session = PgpxSession->new($local);
	my @others = map { PgpxSession->new($local) } 1 .. 4;
	my $worker = worker_pid($local);
	my $sockets = sub { return scalar grep { (readlink // '') =~ /^socket:/ } glob "/proc/$worker/fd/*"; };
	my $none_open = $sockets->();

	is($session->run("SELECT a FROM pgpool.query('one', 'select 1') $row"), '1', 'pool works');
	is($local->safe_psql('postgres', "SELECT DISTINCT transport FROM pgpool.connections WHERE server = 'one'"), 'relay', 'transport is the relay');

	sub memory
	{
		my ($kb) = slurp_file("/proc/$worker/status") =~ /^VmHWM:\s+(\d+)/m;

		return $kb;
	}

	# --- 40 MB out, in, and in both directions; logins allocate their memory before
	$local->safe_psql('postgres', "SELECT pgpool.prewarm('four', 4)");
	ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'four'", 4), 'all connections are open');
	my $small = memory();
	my $rows = "select md5(g::text) || repeat('x', 968) as a from generate_series(1, 40000) as g";
	my $wanted = $remote->safe_psql('postgres', "select count(*), md5(string_agg(a, '')) from ($rows) as r");
	is($session->run("SELECT count(*), md5(string_agg(a, '')) FROM pgpool.query('one', \$\$$rows\$\$) $row"), $wanted, '40 MB of rows are received');
	is( $session->run("SELECT a FROM pgpool.query('one', 'select md5(\$1)', repeat('0123456789', 4000000)) $row"),
		$session->run("SELECT md5(repeat('0123456789', 4000000))"),
		'40 MB in a parameter are sent');
	$_->start("SELECT count(*) FROM generate_series(1, 3) AS g, LATERAL pgpool.query('four', 'select \$1 || \$1',"
		  . " repeat('0123456789', 200000 + g)) $row WHERE a = repeat('0123456789', 2 * (200000 + g))") foreach @others;
	is($_->finish(1200) . $_->error, '3', 'four sessions at once send 6 MB and receive 12 MB each') foreach @others;
	cmp_ok(memory() - $small, '<', 20 * 1024, 'worker has not grown by more than 20 MB');

	# --- other sessions work during a stream
	$session->start("SELECT pgpool.exec('one', 'select repeat(''x'', 8000) from generate_series(1, 1000000000)')");
	wait_until($local, "SELECT state FROM pgpool.leases WHERE server = 'one'", 'active');
	is(join(' ', map { $others[0]->run("SELECT a FROM pgpool.query('four', 'select $_') $row") } 1 .. 30), "@{[1 .. 30]}", 'other sessions work during a stream');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	$session->failed('57014', qr/canceling statement/, 'stream is cancelled');

	# --- the session does not read
	my $lease = lease($session, 'one');
	$session->run("SELECT pgpool.send($lease, 'select repeat(''x'', 8000) from generate_series(1, 12500)')");
	is($session->run("SELECT count(*), sum(length(a)) FROM pgpool.result($lease) $row") . $session->error, '12500|100000000', 'unread rows are complete when they are read');
	$session->run("SELECT pgpool.send($lease, 'select repeat(''x'', 8000) from generate_series(1, 12500)')");
	wait_until($remote, "SELECT wait_event FROM pg_stat_activity WHERE application_name = 'pgpool_ext/one'", 'ClientWrite');
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/one'");
	wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/one'", '0');
	$session->fails("SELECT count(*) FROM pgpool.result($lease) $row", '08006', qr/was lost/, 'unread rows of a closed connection are reported as lost');
	$session->run("SELECT pgpool.checkin($lease)");

	# --- the remote server does not read
	$lease = lease($session, 'one');
	my $backend = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()::text') $row");
	kill 'STOP', $backend;
	$session->start("SELECT a FROM pgpool.query($lease, 'select md5(\$1)', repeat('x', 10000000)) $row");
	ok(wait_until($local, q{SELECT wait_event_type FROM pg_stat_activity WHERE state = 'active' AND pid = } . $session->pid, 'Extension'), 'session sends more than the remote server reads');
	kill 'CONT', $backend;
	is($session->finish(60) . $session->error, $local->safe_psql('postgres', q{SELECT md5(repeat('x', 10000000))}), 'data is complete when the remote server reads');
	$session->run("SELECT pgpool.checkin($lease)");

	# The end of an answer is inside OpenSSL, where no event reports it. The worker reads a
	# record of 4 kB first, then chunks of which one ends within the last record. (A pool of
	# its own, so that the connection is not the first one with a relay. An advisory lock
	# holds back the answer until the worker is stopped.)
	$remote->safe_psql('remote_db', <<'EOT');
CREATE FUNCTION late(length int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock_shared(7);
	RAISE NOTICE '%', repeat('n', 4000);
	RETURN repeat('x', length);
END $$;
EOT
	my $gate = PgpxSession->new($remote, dbname => 'remote_db');
	is($session->run("SELECT a FROM pgpool.query('one', 'select 2') $row"), '2', 'first connection slot is in use');
	$lease = lease($session, 'late');
	foreach my $length (62_000, 63_000, 64_000)
	{
		$gate->run('SELECT pg_advisory_lock(7)');
		$session->run("SELECT pgpool.send($lease, 'select late($length)')");
		wait_until($remote, "SELECT wait_event_type FROM pg_stat_activity WHERE application_name = 'pgpool_ext/late'", 'Lock');
		kill 'STOP', $worker;
		$gate->run('SELECT pg_advisory_unlock(7)');
		wait_until($remote, "SELECT state FROM pg_stat_activity WHERE application_name = 'pgpool_ext/late'", 'idle');
		kill 'CONT', $worker;
		$session->start("SELECT length(a) FROM pgpool.result($lease) $row");
		is($session->finish(20), $length, "last bytes of $length are received");
	}
	$session->run("SELECT pgpool.checkin($lease)");

	# --- unread data at the end of a lease
	foreach my $way ('pgpool.discard(%s)', 'pgpool.checkin(%s)', 'pg_terminate_backend(pg_backend_pid())')
	{
		my $leaver = PgpxSession->new($local);

		$lease = lease($leaver, 'one');
		$leaver->run("SELECT pgpool.send($lease, 'select ''secret'' from generate_series(1, 1000000)')");
		$leaver->run('SELECT ' . sprintf($way, $lease));
		is($session->run("SELECT a FROM pgpool.query('one', 'select ''mine''') $row") . $session->error, 'mine', "$way: next session receives its own answer");
		$leaver->quit;
	}

	# --- closed connections leave nothing in the worker
	is($local->safe_psql('postgres', "SELECT bool_and(pgpool.drain(s, '60 s')) FROM unnest('{one,late,four}'::text[]) s"), 't', 'all pools are drained');
	ok(wait_until($local, $sockets, $none_open), 'all sockets are closed');
	$local->safe_psql('postgres', 'SELECT pgpool.resume()');

	# --- the worker ends during a stream and an idle lease
	$lease = lease($others[0], 'four');
	$session->start("SELECT pgpool.exec('one', 'select repeat(''x'', 8000) from generate_series(1, 1000000000)')");
	wait_until($local, "SELECT state FROM pgpool.leases WHERE server = 'one'", 'active');
	terminate($local, $worker);
	$session->finish;
	$session->failed('08006', qr/worker was restarted/, 'end of the worker: stream fails');
	$others[0]->fails("SELECT pgpool.exec($lease, 'select 1')", '08006', qr/worker was restarted/, 'end of the worker: idle lease fails');
	ok(wait_until($remote, sub { remote_sessions($remote) }, '0', 20), 'end of the worker: remote sessions end');
	$others[0]->run('SELECT pgpool.checkin_all()');
	is($session->run("SELECT a FROM pgpool.query('one', 'select 7') $row") . $session->error, '7', 'next worker works');

	$_->quit foreach $session, $gate, @others;
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote);
}

# ---------- several workers
# Several workers: the servers are distributed over them, each worker owns the
# connections of its pools, and a stopped or busy worker does not affect the pools of
# another.
{
	my $local = local_node('local2', conf => ['pgpool_ext.workers = 3']);
	my $session = PgpxSession->new($local);
	my $row = 'AS t(a text)';

	sub query { return "SELECT a FROM pgpool.query('$_[0]', 'select $_[1]') $row"; }

	# --- distribution
	foreach my $n (1 .. 6)
	{
		make_pool($local, $remote, server => "s$n", options => { sslmode => $n % 2 ? 'require' : 'prefer', pool_size => 3 });
		is($session->run(query("s$n", $n)) . $session->error, $n, "s$n: pool works");
	}
	$session->run("SET ROLE app; SELECT pgpool.exec('s1', 'select 1'); RESET ROLE");
	my %worker = map { split /\|/ } split /\n/, $local->safe_psql('postgres', "SELECT DISTINCT server, worker FROM pgpool.pools");
	is(join(' ', sort values %worker), '0 0 1 1 2 2', 'six servers are distributed over three workers, all pools of a server are served by one');
	ok( wait_until($local, 'SELECT worker, state, pools, connections, descriptors, pid IS NOT NULL FROM pgpool.workers ORDER BY worker',
		join("\n", map { my $pools = $worker{s1} == $_ ? 3 : 2; "$_|running|$pools|$pools|" . 3 * $pools . '|t' } 0 .. 2)),
		'pgpool.workers shows the pools of each worker');
	is($local->safe_psql('postgres', "SELECT count(DISTINCT w.pid) FROM pgpool.workers w JOIN pg_stat_activity a USING (pid) WHERE a.backend_type = 'pgpool_ext worker'"),
		'3', 'workers are three processes');
	my %pid = map { split /\|/ } split /\n/, $local->safe_psql('postgres', 'SELECT worker, pid FROM pgpool.workers');
	my ($mine) = grep { $worker{$_} == 0 } sort keys %worker;
	my ($theirs) = grep { $worker{$_} == 1 } sort keys %worker;
	my ($last) = grep { $worker{$_} == 2 } sort keys %worker;

	# --- a worker is stopped
	my @stuck = map { PgpxSession->new($local) } 1 .. 3;
	kill 'STOP', $pid{0};
	$_->start("SELECT pgpool.checkout('$mine', '60 s')") foreach @stuck;
	is( join(' ', map { $session->run("SELECT pgpool.checkout('$theirs', '20 s')") =~ /^\d+$/ ? 'lease' : $session->error } 1 .. 3),
		'lease lease lease', 'stopped: pool of another worker grows');
	is($session->run('SELECT pgpool.checkin_all()'), '3', 'stopped: connections of another worker can be returned');
	$session->run("SELECT pgpool.reconnect('$theirs')");
	is($session->run(query($theirs, 1)) . $session->error, '1', 'stopped: another worker opens new connections');
	is($session->run(query($last, 1)) . $session->error, '1', 'stopped: third worker works, too');
	cmp_ok(scalar(grep { !$_->done } @stuck), '>', 0, 'stopped: sessions that need the stopped worker wait');
	kill 'CONT', $pid{0};
	my @ids = map { $_->finish(30) } @stuck;
	like($_, qr/^\d+$/, 'continued: session is granted a connection') foreach @ids;

	# --- a worker relays a large stream
	$stuck[0]->start("SELECT pgpool.exec('$mine', 'select repeat(''x'', 8000) from generate_series(1, 1000000000)')")
	  if $stuck[0]->run('SELECT pgpool.checkin_all()');
	wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE server = '$mine' AND state = 'active'", '1');
	is(join(' ', map { $session->run(query($theirs, $_)) } 1 .. 30), "@{[1 .. 30]}", 'stream: pools of another worker work');
	is($stuck[0]->done, 0, 'stream: stream is still in progress');

	# --- a worker ends
	are_idle($local, $theirs);
	my $theirs_before = $local->safe_psql('postgres', "SELECT connection, opened_at, remote_pid FROM pgpool.connections WHERE server = '$theirs'");
	my $lease = lease($session, $theirs);
	terminate($local, $pid{0});
	$stuck[0]->finish(30);
	$stuck[0]->failed('08006', qr/worker was restarted/, 'ended: active lease of the worker fails');
	$stuck[1]->fails("SELECT pgpool.exec($ids[1], 'select 1')", '08006', qr/worker was restarted/, 'ended: idle lease of the worker fails');
	is($session->run("SELECT a FROM pgpool.query($lease, 'select 5') $row") . $session->error, '5', "ended: lease of another worker stays usable");
	$session->run('SELECT pgpool.checkin_all()');
	is($local->safe_psql('postgres', "SELECT connection, opened_at, remote_pid FROM pgpool.connections WHERE server = '$theirs'"),
		$theirs_before, 'ended: connections of another worker are kept');
	is($session->run(query($mine, 6), 60) . $session->error, '6', 'ended: next worker serves the pools');
	is($local->safe_psql('postgres', 'SELECT worker, state, restarts FROM pgpool.workers ORDER BY worker'),
		"0|running|1\n1|running|0\n2|running|0", 'ended: pgpool.workers shows the restart');

	# --- DROP SERVER while another worker is stopped
	kill 'STOP', $pid{1};
	$session->run("DROP SERVER $last CASCADE");
	is($session->error =~ /ERROR/ ? $session->error : '', '', 'stopped: server of another worker is dropped');
	ok(wait_until($local, "SELECT connections FROM pgpool.workers WHERE worker = 2", '1'), 'stopped: connections of the dropped server close');
	kill 'CONT', $pid{1};

	$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach @stuck, $session;
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote);
}

done_testing();
