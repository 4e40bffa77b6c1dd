# A local cancel, and the end of a lease, cancel the statement on the remote server, and no other one.
use strict;
use warnings;

use PgpxFakeServer qw(done ready);
use PgpxFailing 'libpq_cancels';
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- a local cancel
# statement_timeout, a cancel, and an error in the middle of a result end the remote
# query, too. The lease can be used afterwards.
{
	make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

	my $session = PgpxSession->new($local);
	my $row = 'AS t(a int)';
	my $running = "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep|generate_series'"
	  . " AND state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
	my $lease = lease($session, 'one');
	my $remote_pid = $session->run("SELECT * FROM pgpool.query($lease, 'select pg_backend_pid()') $row");

	# A remote server that sends rows may end its query only at the next use of the lease.
	sub usable
	{
		my ($what, $sends_rows) = @_;
		my $ended = sub { ok(wait_until($remote, $running, '0', 10), "$what: remote query has ended") };

		$ended->() unless $sends_rows;
		is($session->run("SELECT * FROM pgpool.query($lease, 'select pg_backend_pid()') $row") . $session->error,
			$remote_pid, "$what: lease stays usable on the same remote session");
		$ended->() if $sends_rows;
		check_invariants($local, "$what: invariants hold");
		return;
	}

	# --- a lease ------------------------------------------------------------------

	$session->fails("SET statement_timeout = '300ms'; SELECT pgpool.exec($lease, 'select pg_sleep(300)')",
		'57014', qr/statement timeout/, 'statement_timeout ends the local query');
	$session->reset_statement_timeout;
	usable('statement_timeout');

	foreach my $sql ("SELECT pgpool.exec($lease, 'select pg_sleep(300)')",
		"SELECT * FROM pgpool.query($lease, 'select 1 from pg_sleep(300)') $row",
		"SELECT count(*) FROM pgpool.query($lease, 'select generate_series(1, 1000000000)') $row",
		"SELECT pgpool.exec($lease, 'select 1; select pg_sleep(300); select 2')")
	{
		$session->start($sql);
		ok(wait_until($remote, $running, '1'), 'query runs on the remote server');
		$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
		$session->finish(10);
		$session->failed('57014', qr/canceling statement/, 'cancel ends the query');
		usable('cancel', $sql =~ /generate_series/);
	}

	# the next statement follows the cancelled one at once
	foreach my $round (1 .. 20)
	{
		$session->run("BEGIN; SET LOCAL statement_timeout = '20ms';\nSELECT pgpool.exec($lease, 'select pg_sleep(300)');\nROLLBACK;");
		is($session->sqlstate, '57014', 'statement is cancelled');
		is($session->run("SELECT * FROM pgpool.query($lease, 'select $round') $row") . $session->error, $round, 'lease can be used at once');
	}

	# in a remote transaction, which fails and can be rolled back
	$session->run("SELECT pgpool.exec($lease, 'begin')");
	cancel_running($local, $session, "SELECT pgpool.exec($lease, 'select pg_sleep(300)')", 'cancel ends a query in a remote transaction');
	$session->fails("SELECT pgpool.exec($lease, 'select 1')", '25P02', qr/current transaction is aborted/, 'remote transaction has failed');
	is($session->run("SELECT pgpool.exec($lease, 'rollback')") . $session->error, '0', 'remote transaction can be rolled back');
	usable('remote transaction');

	# a value that cannot be converted, in the middle of a small and of an endless result
	$session->fails("SELECT * FROM pgpool.query($lease,
		'select case when i = 5 then ''x'' else ''1'' end from generate_series(1, 10) i') $row",
		'22P02', qr/invalid input syntax/, 'local error ends a small result');
	usable('error in the middle of a result');
	$session->fails("SELECT * FROM pgpool.query($lease, 'select ''x'', generate_series(1, 1000000000)') AS t(a int, b int)",
		'22P02', qr/invalid input syntax/, 'local error ends an endless result');
	usable('error in an endless result', 1);

	# pgpool.leases shows a cancel that is not yet complete
	$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
	ok(wait_until($remote, $running, '1'), 'statement runs');
	my $stopped = $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.leases WHERE lease = $lease");
	kill 'STOP', $stopped;
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	ok(wait_until($local, "SELECT state FROM pgpool.leases WHERE lease = $lease", 'cancelling', 30), 'lease is shown as cancelling until the remote statement has ended');
	kill 'CONT', $stopped;
	$session->finish(30);
	$session->failed('57014', qr/canceling statement/, 'cancel ends the statement');
	usable('stopped remote backend');

	# checkin right after a cancel
	$session->run("BEGIN; SET LOCAL statement_timeout = '100ms';\nSELECT pgpool.exec($lease, 'select pg_sleep(300)');\n"
		  . "ROLLBACK; SELECT pgpool.checkin($lease)");
	is($session->sqlstate, '57014', 'statement is cancelled before its lease is returned');
	is($session->run("SELECT * FROM pgpool.query('one', 'select 1') $row") . $session->error, '1', 'pool works after the checkin');
	ok(wait_until($remote, $running, '0', 10), 'remote query has ended after the checkin');

	# The worker is stopped, so it sends the cancel request after the session has ceased to read
	# a long row. The return of the lease ends the query.
	$lease = lease($session, 'one');
	$session->start("SELECT count(*) FROM pgpool.query($lease, 'select repeat(''x'', 50000000) from generate_series(1, 1000)') AS t(a text)");
	ok(wait_until($remote, $running, '1'), 'remote server sends long rows');
	my $worker = worker_pid($local);
	my $cancels = $local->safe_psql('postgres', 'SELECT cancels FROM pgpool.stats');
	kill 'STOP', $worker;
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish(10);
	$session->failed('57014', qr/canceling statement/, 'cancel ends the query while the worker is stopped');
	ok(wait_until($remote, "$running AND wait_event = 'ClientWrite'", '1'), 'remote server waits for its client');
	kill 'CONT', $worker;
	ok(wait_until($local, "SELECT cancels > $cancels FROM pgpool.stats", 't'), 'cancel request is sent');
	is($session->run("SELECT pgpool.checkin($lease)") . $session->error, '', 'lease is returned');
	ok(wait_until($remote, $running, '0', 60), 'remote query has ended after the checkin');

	# --- a call -------------------------------------------------------------------

	$session->fails("SET statement_timeout = '300ms'; SELECT pgpool.exec('one', 'select pg_sleep(300)')",
		'57014', qr/statement timeout/, 'statement_timeout ends a call');
	ok(wait_until($remote, $running, '0', 10), 'remote query of the call has ended');
	$session->reset_statement_timeout;
	is($session->run("SELECT * FROM pgpool.query('one', 'select 2') $row") . $session->error,
		'2', 'pool works after a timeout of a call');

	$session->start("SELECT pgpool.exec('one', 'select pg_sleep(300)')");
	ok(wait_until($remote, $running, '1'), 'call runs');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish(10);
	$session->failed('57014', qr/canceling statement/, 'cancel ends the call');
	ok(wait_until($remote, $running, '0', 10), 'remote query of the cancelled call has ended');
	is($session->run("SELECT * FROM pgpool.query('one', 'select 3') $row") . $session->error, '3', 'pool works after a cancelled call');
	# a statement with a short timeout may not have been sent when it is cancelled
	cmp_ok($local->safe_psql('postgres', 'SELECT cancels FROM pgpool.stats'), '>=', 6, 'cancels of running statements are counted');

	# --- a Unix-domain socket whose directory has another path here than on the remote server
	SKIP:
	{
		skip 'a Unix-domain socket has no TLS', 4 if over_tls();
		my $folder = PostgreSQL::Test::Utils::tempdir_short();
		mkdir "$folder/theirs";
		my $moved = remote_node('moved', conf => [ "unix_socket_directories = '" . $remote->host . ",$folder/theirs'" ]);

		rename "$folder/theirs", "$folder/ours" or die "rename: $!";
		make_pool($local, $moved, server => 'moved', options => { host => "$folder/ours" }, user => 'remote_super', password => $REMOTE_SUPER_PASSWORD);
		is($session->run(q{SELECT pgpool.exec('moved', 'select 1')}) . $session->error, 1, 'connection by a Unix-domain socket is opened');
		$session->fails("SET statement_timeout = '300ms'; SELECT pgpool.exec('moved', 'select pg_sleep(300)')", '57014', qr/statement timeout/, 'statement by a Unix-domain socket is cancelled');
		$session->reset_statement_timeout;
		ok(wait_until($moved, $running, '0', 10), 'remote query by a Unix-domain socket has ended');
		$session->run(q{SELECT pgpool.drain('moved', '30 s')});
		ok(wait_until($moved, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgpool_ext%'", 0, 30), 'no session is left after the drain');
		rename "$folder/ours", "$folder/theirs";
		$moved->stop;
	}

	$session->quit;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- a lease that is revoked
# A lease that is revoked, by terminate or by lease_timeout, also ends its statement on
# the remote server, although the holder keeps the socket and the remote server does not
# check its client connections. The slot is free when the statement has ended.
{
	# Each behaviour writes events to the journal. The statement of "stubborn" ends at the
	# second cancel request. "rude" does not close after Terminate.
	my $journal = PostgreSQL::Test::Utils::tempdir . '/journal';

	sub note_down { append_to_file($journal, "$_[0]\n"); return; }
	sub noted { return -e $journal ? join(' ', split /\n/, slurp_file($journal)) : ''; }

	my $fake = PgpxFakeServer->new(
		stubborn => sub {
			my ($self) = @_;
			my $cancelled = 0;

			local $SIG{USR1} = sub { $cancelled++ };
			note_down('login');
			while (my $sql = $self->receive)
			{
				if ($sql !~ /sleep/)
				{
					$self->send($sql =~ /^select/ ? $self->answer('1') : (done('DISCARD ALL'), ready));
					next;
				}
				note_down('begin');
				select undef, undef, undef, 0.02 until $cancelled > 1;
				note_down('end');
				return;
			}
		},
		rude => sub {
			my ($self) = @_;

			$self->serve(2);
			note_down('served');
			$self->read_to_end;
			note_down('end of stream');
		},
		cancel => sub { kill 'USR1', $_[0] });

	my $row = 'AS t(a int)';
	my %fake_options = (sslmode => PgpxFakeServer::sslmode(), pool_size => 1, operation_timeout => '60s');

	make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
	make_pool($local, $remote, server => 'timed', options => { pool_size => 1 });
	make_pool($local, $fake, server => 'stubborn', remote_dbname => 'stubborn', options => {%fake_options});
	make_pool($local, $fake, server => 'rude', remote_dbname => 'rude', options => {%fake_options});

	my $running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ 'pg_sleep' AND pid <> pg_backend_pid()";
	my ($holder, $next) = map { PgpxSession->new($local) } 1 .. 2;

	foreach my $round (1 .. 5)
	{
		my $lease = lease($holder, 'one');

		$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
		ok(wait_until($remote, $running, '1'), 'statement runs');
		$next->start("SELECT * FROM pgpool.query('one', 'select 1') $row");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), 'session waits');
		is($local->safe_psql('postgres', "SELECT pgpool.terminate($lease)"), 't', 'lease is terminated');
		$holder->finish(30);
		$holder->failed('PX001', qr/was terminated/, 'holder receives the error at once');
		is($next->finish(30) . $next->error, '1', 'waiter is granted a connection');
		is($remote->safe_psql('postgres', $running), '0', 'statement has ended on the remote server before the grant');
		$holder->run('SELECT pgpool.checkin_all()');
	}

	# without a running statement: idle, and in a transaction
	foreach my $sql ('select 1', 'begin')
	{
		my $lease = lease($holder, 'one');

		$holder->run("SELECT pgpool.exec($lease, '$sql')");
		$local->safe_psql('postgres', "SELECT pgpool.terminate($lease)");
		is($next->run("SELECT * FROM pgpool.query('one', 'select 1') $row") . $next->error, '1', "$sql: next session is granted a connection");
		$holder->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX001', qr/was terminated/, "$sql: holder receives the error");
		$holder->run('SELECT pgpool.checkin_all()');
	}

	my $lease = lease($holder, 'timed');
	$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
	ok(wait_until($remote, $running, '1'), 'statement runs on a lease');
	$local->safe_psql('postgres', q{ALTER SERVER timed OPTIONS (ADD lease_timeout '100ms')});
	$holder->finish(30);
	$holder->failed('PX002', qr/has timed out/, 'holder receives the error of the timeout');
	$local->safe_psql('postgres', 'ALTER SERVER timed OPTIONS (DROP lease_timeout)');
	is($next->run("SELECT * FROM pgpool.query('timed', 'select 1') $row") . $next->error, '1', 'next session is granted a connection after the timeout');
	is($remote->safe_psql('postgres', $running), '0', 'timed out statement has ended on the remote server before the grant');
	$holder->run('SELECT pgpool.checkin_all()');

	# a cancel request that is ignored is repeated
	$lease = lease($holder, 'stubborn');
	$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
	ok(wait_until($local, sub { noted() }, 'login begin'), 'stubborn statement runs');
	$local->safe_psql('postgres', "SELECT pgpool.terminate($lease)");
	$holder->finish(30);
	$holder->failed('PX001', qr/was terminated/, 'holder receives the error before the statement has ended');
	is($next->run("SELECT * FROM pgpool.query('stubborn', 'select 1') $row", 40) . $next->error, '1', 'next session is granted a connection after an ignored cancel request');
	is(noted(), 'login begin end login', 'new connection is opened only after the end of the stubborn statement');
	$holder->run('SELECT pgpool.checkin_all()');

	# when a connection closes, the socket that a session has cached is shut down, too
	unlink $journal;
	is($holder->run("SELECT * FROM pgpool.query('rude', 'select 1') $row") . $holder->error, '1', 'session has the socket in its cache');
	ok(wait_until($local, sub { noted() }, 'served'), 'lease was returned');
	$local->safe_psql('postgres', "SELECT pgpool.reconnect('rude')");
	ok(wait_until($local, sub { noted() }, 'served end of stream', 30), 'stream ends when the worker closes the connection');

	$_->quit foreach $holder, $next;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- cancel requests that arrive late
# A cancel request that arrives late could cancel a later statement. Neither a
# statement of the next session nor the next one of the same session may be cancelled.
{
	my $victim = PgpxSession->new($local);
	my $bystander = PgpxSession->new($local);
	my $row = 'AS t(a int)';

	# --- a request that is still in the remote server's accept queue at operation_timeout
	# and is executed later: the remote postmaster is stopped meanwhile, its sessions are
	# not. (libpq 17 and later first negotiates TLS, and sends no request before that.)
	make_pool($local, $remote, server => 'stopped', options => { pool_size => 1, operation_timeout => '300ms', connect_timeout => '100s',
		libpq_cancels() ? (sslmode => 'disable') : () });
	my ($postmaster) = split /\n/, slurp_file($remote->data_dir . '/postmaster.pid');
	my $gate = PgpxSession->new($remote, dbname => 'remote_db');
	my $later = 'select 8 from pg_advisory_xact_lock(7)';

	# A statement that ends by itself although a cancel request for it is under way.
	my $ends_by_itself = sub {
		my ($lease, $name) = @_;

		$gate->run('SELECT pg_advisory_lock(7)');
		is($victim->run("SELECT pgpool.send($lease, 'select 7 from pg_advisory_xact_lock(7)'), pgpool.cancel($lease)"), '|t', "$name: statement is cancelled");
		$gate->run('SELECT pg_advisory_unlock(7)');
		is($victim->run("SELECT * FROM pgpool.result($lease) $row") . $victim->error, '7', "$name: statement ends by itself");
		return;
	};

	END
	{
		kill 'CONT', $postmaster if defined $postmaster;
	}
	foreach my $next ($ENV{PGPX_TEST_TLS} && libpq_cancels() ? () : ('the same lease', 'the next lease', 'the next call'))
	{
		my $lease = lease($victim, 'stopped');
		my $cancels = $local->safe_psql('postgres', "SELECT cancels FROM pgpool.stats WHERE server = 'stopped'");

		kill 'STOP', $postmaster;
		$ends_by_itself->($lease, $next);
		$gate->run('SELECT pg_advisory_lock(7)');
		ok(wait_until($local, "SELECT cancels > $cancels FROM pgpool.stats WHERE server = 'stopped'"), "$next: cancel request has timed out");
		if ($next eq 'the same lease')
		{
			$bystander->start('SELECT 8');
			$victim->start("SELECT * FROM pgpool.query($lease, '$later') $row");
		}
		else
		{
			$victim->start("SELECT pgpool.checkin($lease)");
			$bystander->start($next eq 'the next call' ? "SELECT * FROM pgpool.query('stopped', '$later') $row"
				: "SELECT a FROM pgpool.checkout('stopped') l, pgpool.query(l, '$later') $row");
		}

		# the statement already runs, or waits for another connection, or has failed
		my $under_way = q{SELECT EXISTS (SELECT FROM pgpool.waiters) OR EXISTS (SELECT FROM pgpool.leases WHERE state = 'active')};
		my $failed = sub { $next eq 'the same lease' && $victim->done };
		ok(wait_until($local, sub { $failed->() ? 't' : $local->safe_psql('postgres', $under_way) }), "$next: connection is used again");
		kill 'CONT', $postmaster;

		# the postmaster accepts the cancel request before this session
		$remote->safe_psql('postgres', 'SELECT 1');
		$gate->run('SELECT pg_advisory_unlock(7)');
		$_->finish foreach $victim, $bystander;
		$victim->failed('08006', qr/was lost\nDETAIL:  A cancel request did not end within operation_timeout\./, "$next: lease is unusable")
		  if $next eq 'the same lease';
		is($bystander->{text} . $bystander->error, '8', "$next: statement of the other session is not cancelled");
		$_->run('SELECT pgpool.checkin_all()') foreach $victim, $bystander;
	}

	# --- a lease that is returned while its cancel request is under way: the reset, which
	# the request could cancel, must wait for the end of the request
	make_pool($local, $remote, server => 'under_way', options => { pool_size => 1, operation_timeout => '100s', connect_timeout => '100s' });
	{
		my $lease = lease($victim, 'under_way');
		my $stats = sub { $local->safe_psql('postgres', "SELECT $_[0] FROM pgpool.stats WHERE server = 'under_way'") };
		my $resets = $stats->('resets');

		kill 'STOP', $postmaster;
		$ends_by_itself->($lease, 'cancel under way');
		is($victim->run("SELECT pgpool.checkin($lease)") . $victim->error, '', 'cancel under way: lease is returned');
		is($stats->('resets'), $resets, 'cancel under way: no reset is sent');
		$bystander->start("SELECT * FROM pgpool.query('under_way', 'select 8 from pg_sleep(0.1)') $row");
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'cancel under way: next call waits');
		kill 'CONT', $postmaster;
		$bystander->finish;
		is($bystander->{text} . $bystander->error, '8', 'cancel under way: next call is not cancelled');
		is($stats->('connects'), 1, 'cancel under way: next call uses the same connection');
	}
	$_->quit foreach $victim, $bystander, $gate;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- a real PgBouncer
# Cancel requests do not end PgBouncer. Version 1.18 exits if the client closes a cancel
# connection while the request is being forwarded.
my $bouncer;
SKIP:
{
	my ($port, $log);

	skip 'PgBouncer has no TLS here', 55 if over_tls();
	($bouncer, $port, $log) = start_pgbouncer('remote_app', $REMOTE_APP_PASSWORD, 'remote_db = host=127.0.0.1 port=' . $remote->port)
	  or skip 'PgBouncer is missing (Debian: pgbouncer)', 55;

	make_pool($local, $remote, server => 'bounced', options => { port => $port, pool_size => 2 });

	my $session = PgpxSession->new($local);
	my $holder = PgpxSession->new($local);
	my $closed = "SELECT count(*) FILTER (WHERE cancelling + closing > 0) FROM pgpool.pools WHERE server = 'bounced'";

	is($session->run("SELECT pgpool.exec('bounced', 'select 1')") . $session->error, '1', 'pool works through PgBouncer');
	foreach my $round (1 .. 20)
	{
		cancel_running($local, $session, "SELECT pgpool.exec('bounced', 'select pg_sleep(300)')", 'call through PgBouncer is cancelled');
		last unless $bouncer->pumpable;
	}
	ok($bouncer->pumpable, 'PgBouncer survives cancelled calls');

	# the same on a lease, whose connection stays open
	my $lease = lease($holder, 'bounced');
	foreach my $round (1 .. 20)
	{
		cancel_running($local, $holder, "SELECT pgpool.exec($lease, 'select pg_sleep(300)')", 'statement of a lease through PgBouncer is cancelled');
		last unless $bouncer->pumpable;
	}
	ok($bouncer->pumpable, 'PgBouncer survives cancelled statements of a lease');

	# .. and if the lease is terminated in the middle of a statement, which goes on at the
	# remote server because PgBouncer forgets a client that has disconnected
	foreach my $round (1 .. 3)
	{
		my $held = lease($session, 'bounced');
		my $running = "SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300), $round' AND state = 'active'";

		$session->start("SELECT pgpool.exec($held, 'select pg_sleep(300), $round')");
		ok(wait_until($remote, $running, '1'), 'statement runs');
		$local->safe_psql('postgres', "SELECT pgpool.terminate($held)");
		$session->finish(30);
		ok(wait_until($local, $closed, '0'), 'connection has closed');
	}
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'select pg_sleep(300)%'");
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'select pg_sleep(300)%' AND state = 'active'", '0'), 'statements have ended');
	ok($bouncer->pumpable, 'PgBouncer survives terminated leases');
	unlike(slurp_file($log), qr/FATAL|bad client state/, 'PgBouncer logs no fatal error');
	is($session->run("SELECT pgpool.exec('bounced', 'select 1')") . $session->error, '1', 'pool works');

	$_->quit foreach $session, $holder;
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
$bouncer->kill_kill if $bouncer;
done_testing();
