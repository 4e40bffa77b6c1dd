# A remote server that does not answer: an operation of the pool, a connection attempt.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxClock;
use PgpxFakeServer qw(failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });

# ---------- operations
# operation_timeout bounds the operations of the pool itself on a connection: a reset
# that does not end, an answer that does not arrive, a cancel request that is accepted
# and never executed. The tests use short timeouts instead of the default of ten seconds.
{
	my $row = 'AS t(a text)';

	# The statement never ends, and the cancel connection stays open.
	my $silent = sub {
		my ($fake) = @_;

		$fake->receive;
		sleep 3600;
	};
	# Statements are answered when this file exists.
	my $answers = PostgreSQL::Test::Utils::tempdir . '/answers';
	my $slow = sub {
		my ($fake) = @_;

		while (my $sql = $fake->receive)
		{
			select undef, undef, undef, 0.01 until $sql !~ /^select/ || -e $answers;
			$fake->send($sql =~ /^select/ ? $fake->answer('1') : (PgpxFakeServer::done('DISCARD ALL'), PgpxFakeServer::ready()));
		}
	};
	my $fake = PgpxFakeServer->new(silent => $silent, slow => $slow, cancel => sub { sleep 3600 });
	my $unresponsive = PgpxFakeServer->new(silent => $silent);
	my $endless = PgpxFakeServer->new(silent => $silent, slow => $slow,
		first => sub { my ($fake) = @_; $fake->receive; $fake->send($fake->answer('1')); $fake->receive; sleep 3600 },
		login => { login => sub { sleep 3600 } },
		cancel => sub { sleep 3600 });
	my %fakes = (held => $fake, unresponsive => $unresponsive);
	my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

	# A statement whose cancel request does not end, and which ends by itself.
	my $ends_by_itself = sub {
		my ($lease, $name) = @_;

		unlink $answers;
		is($session->run("SELECT pgpool.send($lease, 'select 1'), pgpool.cancel($lease)"), '|t', "$name: statement is cancelled");
		append_to_file($answers, 'x');
		is($session->run("SELECT * FROM pgpool.result($lease) $row") . $session->error, '1', "$name: statement ends before the cancel request");
		return;
	};

	# --- a connection attempt may last for years if its options allow it (checked at the end)
	make_pool($local, $endless, server => 'years', remote_dbname => 'login', options => { pool_size => 1, sslmode => 'disable', connect_timeout => '3650d' });
	$session->fails("SELECT pgpool.checkout('years', '100 ms')", '55P03', qr/timeout/, 'years: login is not answered');

	# --- a reset that does not end
	make_pool($local, $remote, server => 'reset', options => { pool_size => 1, reset_command => 'select pg_sleep(600)', operation_timeout => '300ms' });
	my $pid = $session->run("SELECT a FROM pgpool.query('reset', 'select pg_backend_pid()') AS t(a int)");
	like($pid, qr/^\d+$/, 'reset: call succeeds') or diag($session->error);
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'reset: remote session ends at operation_timeout');
	$session->run("SELECT pgpool.exec('reset', 'select 1')");
	is($session->run("SELECT pgpool.exec('reset', 'select 1')") . $session->error, '1', 'reset: session during the reset is granted a connection');

	# --- the next statement on a lease after an interrupt, and the next session
	foreach my $server (sort keys %fakes)
	{
		make_pool($local, $fakes{$server}, server => $server, remote_dbname => 'silent',
			options => { pool_size => 1, sslmode => 'disable', operation_timeout => '300ms' });
		my $lease = lease($session, $server);
		my $query = "SELECT * FROM pgpool.query($lease, 'select 1') $row";

		cancel_running($local, $session, $query, "$server: statement is cancelled");
		$other->start("SELECT pgpool.checkout('$server', '60 s')");
		$session->fails($query, '08006', qr/was lost/, "$server: lease is unusable after operation_timeout");
		$session->run("SELECT pgpool.checkin($lease)");
		like($other->finish(60), qr/^\d+$/, "$server: next session is granted a connection");
		$other->run('SELECT pgpool.checkin_all()');

		# a call, whose connection the worker has to abort
		cancel_running($local, $session, "SELECT * FROM pgpool.query('$server', 'select 1') $row", "$server: call is cancelled");
		like(lease($other, $server), qr/^\d+$/, "$server: slot is free at operation_timeout");
		$other->run('SELECT pgpool.checkin_all()');
	}

	# --- a cancel request that does not end, for a statement that ends by itself
	make_pool($local, $fake, server => 'late', remote_dbname => 'slow', options => { pool_size => 1, sslmode => 'disable', operation_timeout => '1s' });
	my $lease = lease($session, 'late');
	$ends_by_itself->($lease, 'late');
	$session->run("SELECT pgpool.checkin($lease)");
	like(lease($other, 'late'), qr/^\d+$/, 'late: connection is not leased while the cancel request could hit the next statement');
	$other->run('SELECT pgpool.checkin_all()');

	# the lease is returned after the cancel request has timed out; it may still be executed
	my $place = "SELECT opened_at FROM pgpool.connections WHERE server = 'late'";
	foreach my $next ('own statement', 'lease', 'call')
	{
		$lease = lease($session, 'late');
		my $opened = $local->safe_psql('postgres', $place);
		my $cancels = $local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 'late'");

		$ends_by_itself->($lease, "next $next");
		ok(wait_until($local, "SELECT cancels FROM pgpool.stats WHERE server = 'late'", $cancels + 1), "next $next: cancel request times out");
		$session->fails("SELECT * FROM pgpool.query($lease, 'select 1') $row", '08006', qr/A cancel request did not end within operation_timeout/, 'lease is unusable after a lost cancel request')
		  if $next eq 'own statement';
		$session->run("SELECT pgpool.checkin($lease)");
		is($other->run($next eq 'call' ? "SELECT * FROM pgpool.query('late', 'select 1') $row"
				: "SELECT a FROM pgpool.checkout('late') l, pgpool.query(l, 'select 1') $row") . $other->error, '1', "next $next: next session is granted a connection");
		isnt($local->safe_psql('postgres', $place), $opened, "next $next: connection is another one");
		$other->run('SELECT pgpool.checkin_all()');
	}

	# --- an operation_timeout of years with a remote server that never answers: the slot is
	# free ten seconds after its server is dropped. An attempt whose slot no session needs
	# continues.
	SKIP:
	{
	skip $CLOCKS_MISSING, 1 unless can_set_clocks();
	my %forever = (cancelling => 'silent', resetting => 'first', asked => 'slow', connecting => 'login', revoked => 'slow');
	foreach my $server (sort keys %forever)
	{
		make_pool($local, $endless, server => $server, remote_dbname => $forever{$server},
			options => { pool_size => 1, sslmode => 'disable', operation_timeout => '3650d', connect_timeout => '3650d' });
	}
	$session->run("SELECT pgpool.send(pgpool.checkout('cancelling'), 'select 1')");
	$lease = lease($session, 'resetting');
	$session->run("SELECT pgpool.exec($lease, 'select 1'), pgpool.checkin($lease)");
	$session->fails("SELECT pgpool.checkout('connecting', '100 ms')", '55P03', qr/timeout/, 'login is not answered');
	foreach my $server (qw(asked revoked))
	{
		$lease = lease($session, $server);
		$ends_by_itself->($lease, $server);
	}

	# a session that waits for the end of the cancel request receives the error of terminate
	$session->start("SELECT * FROM pgpool.query($lease, 'select 1') $row");
	ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension'), 'revoked: next statement waits for the cancel request');
	is($other->run("SELECT pgpool.terminate($lease)"), 't', 'revoked: lease is terminated');
	my $ended = wait_until($local, sub { $session->done }, '1');
	ok($ended, 'revoked: wait for the cancel request ends');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')') if !$ended;
	$session->finish(30);
	$session->failed('PX001', qr/was terminated/, 'revoked: error has the reason');
	$session->quit;
	my $states = q{SELECT string_agg(server || ' ' || state, ', ' ORDER BY server) FROM pgpool.connections WHERE server = ANY ('{asked,cancelling,connecting,resetting,revoked}')};
	ok(wait_until($local, $states, 'asked cancelling, cancelling cancelling, connecting connecting, resetting resetting, revoked cancelling'), 'connections are kept by the long timeout');
	$local->safe_psql('postgres', "DROP SERVER $_ CASCADE") foreach sort keys %forever;
	# a connection whose operation was ended waits for its remote server to close it
	ok(wait_until($local, sub { let_time_pass($local, 11); $local->safe_psql('postgres', "SELECT count(*) FROM pgpool.pools WHERE server IS NULL OR server = ANY ('{asked,cancelling,connecting,resetting,revoked}')") }, '0'), 'connections are closed ten seconds after DROP SERVER');
	$session = PgpxSession->new($local);

	is($local->safe_psql('postgres', q{SELECT clock_timestamp() - state_since > '11 s' FROM pgpool.connections WHERE server = 'years'}), 't', 'years: attempt continues');
	$local->safe_psql('postgres', 'DROP SERVER years CASCADE');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'years' OR server IS NULL}, '0'), 'years: attempt ends with DROP SERVER');
	}

	$_->quit foreach $session, $other;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- attempts
# A remote server accepts connections and never answers, or drops connection attempts: a
# checkout fails at connect_timeout, and other pools work meanwhile.
{
	# The kernel accepts on behalf of a listener that never answers.
	my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1')
	  or die "no listener: $!";

	# A full backlog: the packets of the next connect are dropped.
	my $full = IO::Socket::INET->new(Listen => 0, LocalAddr => '127.0.0.1')
	  or die "no listener: $!";
	my @filling = map {
		IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $full->sockport, Blocking => 0)
	} 1 .. 8;

	make_pool($local, $remote, server => 'good', options => { pool_size => 2 });
	make_pool($local, $remote, server => 'silent',
		options => { port => $silent->sockport, connect_timeout => '1h', pool_size => 3 });
	make_pool($local, $remote, server => 'no_backlog',
		options => { port => $full->sockport, connect_timeout => '1h' });

	my $row = 'AS t(a int)';
	my $session = PgpxSession->new($local);
	my %stuck = map { $_ => PgpxSession->new($local) } qw(silent no_backlog);
	my @more = map { PgpxSession->new($local) } 1 .. 2;

	$stuck{$_}->start("SELECT pgpool.checkout('$_', '1 h')") foreach keys %stuck;
	$_->start("SELECT pgpool.checkout('silent', '1 h')") foreach @more;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '4'), 'four sessions wait for unresponsive servers');

	# the first of these opens a connection, which needs the worker, too
	is($session->run("SELECT * FROM pgpool.query('good', 'select $_') $row") . $session->error,
		$_, 'another pool works') foreach 1 .. 20;
	is($stuck{$_}->done, 0, "$_: session still waits") foreach sort keys %stuck;

	# while a pool is paused, a connection that is being opened would not be granted
	$local->safe_psql('postgres', "SELECT pgpool.pause('silent')");
	is($local->safe_psql('postgres', "SELECT DISTINCT reason FROM pgpool.waiters WHERE server = 'silent'"),
		'paused', 'waiters of a paused pool wait for the end of the pause, not for the attempt');
	$local->safe_psql('postgres', "SELECT pgpool.resume('silent')");

	# a waiter can be cancelled
	my $pid = $more[1]->pid;
	$local->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$more[1]->finish(30);
	$more[1]->failed('57014', qr/canceling statement/, 'cancel ends the wait');

	# the attempts in progress use the new option
	$local->safe_psql('postgres', "ALTER SERVER $_ OPTIONS (SET connect_timeout '300ms')") foreach sort keys %stuck;
	foreach my $pool (sort keys %stuck)
	{
		$stuck{$pool}->finish(30);
		$stuck{$pool}->failed('08001', qr/DETAIL:.*within connect_timeout \(0\.3 s\)/,
			"$pool: checkout fails at connect_timeout");
	}
	$more[0]->finish(30);
	$more[0]->failed('08001', qr/connect_timeout/, 'other waiters of the pool receive the same reason');
	is($session->run("SELECT * FROM pgpool.query('good', 'select 7') $row"), '7', 'other pool still works');
	ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE state = 'connecting'", '0', 30), 'attempts end');
	ok(wait_until($local, 'SELECT descriptors FROM pgpool.workers',
		$local->safe_psql('postgres', 'SELECT ' . descriptors_wanted())),
		'attempts leave no file descriptor open');

	# A session that begins to wait during an attempt fails with that attempt, and does not
	# wait for the next one, which begins after a long pause.
	{
		my $held = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";

		make_pool($local, $remote, server => 'held', options => { port => $held->sockport, sslmode => 'disable', connect_timeout => '600s', pool_size => 1, retry_min => '3600s', retry_max => '3600s' });
		$more[0]->start(q{SELECT pgpool.checkout('held', '600 s')});
		my $attempt = $held->accept;
		$more[1]->start(q{SELECT pgpool.checkout('held', '600 s')});
		ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'held'}, 2), 'held: a second session begins to wait during the attempt');
		close $attempt;
		foreach my $n (0, 1)
		{
			$more[$n]->finish(60);
			$more[$n]->failed('08001', qr/server closed the connection unexpectedly/, "held: session $n fails with the attempt");
		}
		is($local->safe_psql('postgres', q{SELECT connects_failed, failed, timeouts FROM pgpool.stats WHERE server = 'held'}), '1|2|0', 'held: one attempt has failed');
	}

	# a shorter timeout of the call applies first
	make_pool($local, $remote, server => 'hurried', options => { port => $silent->sockport, connect_timeout => '1h', pool_size => 1 });
	$session->fails(q{SELECT pgpool.checkout('hurried', '100 ms')}, '55P03', qr/within 100 ms/, 'shorter timeout of the call applies first');
	$session->run('DROP SERVER hurried CASCADE');

	# --- several hosts: after a failure the next one is tried
	my %two = (host => '127.0.0.1,127.0.0.1', pool_size => 3, connect_timeout => '8s', sslmode => over_tls() ? 'require' : 'disable');
	make_pool($local, $remote, server => 'no_backlog_first', options => { %two, port => $full->sockport . ',' . $remote->port });
	make_pool($local, $remote, server => 'no_standby', options => { %two, target_session_attrs => 'prefer-standby', port => $remote->port . ',' . $full->sockport });
	make_pool($local, $remote, server => 'names', options => { %two, host => 'localhost,localhost', port => $full->sockport . ',' . $remote->port });
	make_pool($local, $remote, server => 'no_backlog_both', options => { %two, port => $full->sockport . ',' . $full->sockport, connect_timeout => '500ms' });
	make_pool($local, $remote, server => 'silent_first', options => { %two, port => $silent->sockport . ',' . $remote->port, connect_timeout => '3s' });
	sub accepted
	{
		my $n = 0;

		$silent->blocking(0);
		$n++ while $silent->accept;
		return $n;
	}
	sub connects { return $local->safe_psql('postgres', "SELECT connects, connects_failed FROM pgpool.stats WHERE server = '$_[0]'"); }

	my %asks = (no_backlog_first => $session, names => $more[0], no_standby => $more[1]);
	$asks{$_}->start("SELECT pgpool.checkout('$_', '60 s')") foreach sort keys %asks;
	foreach my $server (sort keys %asks)
	{
		like($asks{$server}->finish, qr/^\d+$/, "$server: host that drops packets has its share of connect_timeout, then the next host is tried")
		  or diag($asks{$server}->error);
		is(connects($server), '1|0', "$server: both hosts are tried in one attempt");
	}
	$_->run('SELECT pgpool.checkin_all()') foreach values %asks;

	# after the login the start commands may use all remaining time, not only the host's
	# share of a minute
	my $holder = PgpxSession->new($remote, dbname => 'remote_db');

	$holder->run('SELECT pg_advisory_lock(41)');
	make_pool($local, $remote, server => 'slow_start', options => { %two, connect_timeout => '2min', port => $remote->port . ',' . $full->sockport, start_commands => 'select pg_advisory_xact_lock(41)' });
	$session->start(q{SELECT pgpool.checkout('slow_start', '1 h')});
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'}, '1'), 'slow_start: start command waits');
	let_time_pass($local, 61);
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'slow_start' AND state = 'connecting'}, '1'), 'slow_start: attempt continues after the share of the host');
	$holder->quit;
	like($session->finish, qr/^\d+$/, 'slow_start: connection is opened after the start commands') or diag($session->error);
	is(connects('slow_start'), '1|0', 'slow_start: one attempt is made');
	$session->run('SELECT pgpool.checkin_all()');

	$session->fails(q{SELECT pgpool.checkout('no_backlog_both', '60 s')}, '08001', qr/within connect_timeout \(0\.5 s\)/, 'connect_timeout covers all hosts if all of them drop packets');

	accepted();
	$session->fails(q{SELECT pgpool.checkout('silent_first', '60 s')}, '08001', qr/within connect_timeout \(3 s\)/, 'host that accepts and does not answer uses up connect_timeout');
	is(accepted(), 1, 'first host was tried');
	ok(wait_until($local, sub { $session->run(q{SELECT pgpool.checkout('silent_first', '60 s')}) =~ /^\d+$/ ? 1 : 0 }, 1), 'next attempt begins with the next host');
	is(connects('silent_first'), '1|1', 'next attempt succeeds');
	like($session->run(q{SELECT pgpool.checkout('silent_first', '60 s')}), qr/^\d+$/, 'following attempt succeeds, too');
	is(accepted(), 0, 'first host is not tried again');
	$session->run(q{SELECT pgpool.checkin_all(); ALTER SERVER silent_first OPTIONS (SET connect_timeout '400ms', ADD application_name 'changed')});
	$session->fails(q{SELECT pgpool.checkout('silent_first', '60 s')}, '08001', qr/within connect_timeout \(0\.4 s\)/, 'attempt with changed options begins with the first host');
	is(accepted(), 1, 'first host is tried with the changed options');

	$local->safe_psql('postgres', q{SELECT pgpool.lock_setup('no_backlog_first')});
	my $token = $session->run(q{SELECT pgpool.lock('no_backlog_first', 'a', ttl => '1 h')});
	ok(wait_until($local, 'SELECT last_ping IS NOT NULL FROM pgpool.locks'), 'lock is pinged at the host that the pool has found');

	# after a failed ping the next one begins with the first host, which drops packets
	my $failed = qr/cannot ping the locks of server "no_backlog_first"/;
	my $again = qr/pings the locks of server "no_backlog_first" of database "postgres" again/;
	my $log = -s $local->logfile;
	$remote->safe_psql('remote_db', 'ALTER TABLE pgpool_lock.locks RENAME expires TO elapses');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext lock'});
	ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ $failed ? 1 : 0 }, 1), 'ping fails');
	$remote->safe_psql('remote_db', 'ALTER TABLE pgpool_lock.locks RENAME elapses TO expires');
	ok(wait_until($local, sub { slurp_file($local->logfile, $log) =~ $again ? 1 : 0 }, 1), 'ping moves from a host that drops packets to one that answers');
	is($session->run("SELECT pgpool.lock_valid('no_backlog_first', 'a', $token)"), 't', 'ping succeeds before the lock expires');
	is($session->run("SELECT pgpool.unlock('no_backlog_first', 'a', $token)") . $session->error, 't', 'lock is released');
	$session->run('SELECT pgpool.checkin_all()');

	# --- connection attempts with outdated options do not delay sessions and do not occupy
	# slots
	my %long = (port => $silent->sockport, connect_timeout => '3650d', pool_size => 3);
	make_pool($local, $remote, server => 'corrected', options => { %long, pool_size => 1 });
	make_pool($local, $remote, server => 'awaited', options => \%long);
	make_pool($local, $remote, server => 'starting', options => { pool_size => 1, connect_timeout => '3650d', start_commands => 'select pg_sleep(600)' });
	make_pool($local, $remote, server => 'dropped', options => \%long);
	sub connecting { return "SELECT count(*) FROM pgpool.connections WHERE server = '$_[0]' AND state = 'connecting'"; }

	$session->fails("SELECT pgpool.checkout('$_', '100 ms')", '55P03', qr/timeout/, "$_: attempt does not end") foreach qw(corrected starting);
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(600)'}, '1'), 'starting: start commands run');
	$session->run(q{ALTER SERVER corrected OPTIONS (SET port '} . $remote->port . q{'); ALTER SERVER starting OPTIONS (SET start_commands '')});
	foreach my $server (qw(corrected starting))
	{
		like($session->run("SELECT pgpool.checkout('$server', '30 s')"), qr/^\d+$/, "$server: attempt with the new options begins") or diag($session->error);
		is(connects($server), '1|0', "$server: only one attempt is counted");
	}
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(600)'}, '0'), 'starting: outdated start commands are cancelled');

	$stuck{silent}->start(q{SELECT pgpool.checkout('awaited', '60 s')});
	ok(wait_until($local, connecting('awaited'), '1'), 'awaited: session waits for an attempt');
	$session->run(q{ALTER SERVER awaited OPTIONS (SET port '} . $remote->port . q{')});
	like($session->run(q{SELECT pgpool.checkout('awaited', '30 s')}), qr/^\d+$/, 'awaited: attempt with the new options succeeds') or diag($session->error);
	like($stuck{silent}->finish(30), qr/^\d+$/, 'awaited: earlier waiter is granted a connection, too') or diag($stuck{silent}->error);
	is($local->safe_psql('postgres', q{SELECT connects, connects_failed, closed_stale FROM pgpool.stats WHERE server = 'awaited'}), '2|0|0', 'awaited: no superfluous connection is opened');

	$_->start(q{SELECT pgpool.checkout('dropped', '60 s')}) foreach @more, $stuck{no_backlog};
	wait_until($local, connecting('dropped'), '3');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')') foreach @more, $stuck{no_backlog};
	$_->finish(30) foreach @more, $stuck{no_backlog};
	is($local->safe_psql('postgres', connecting('dropped')), '3', 'dropped: three attempts do not end');
	$session->run('DROP SERVER dropped CASCADE');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'dropped'}, '0', 30), 'dropped: attempts end with DROP SERVER');
	$_->run('SELECT pgpool.checkin_all()') foreach $session, $stuck{silent};
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
