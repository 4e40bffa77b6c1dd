# Operations that are interrupted, and answers that the network damages.
use strict;
use warnings;

use PgpxFakeServer qw(columns done failure message ready row);
use PgpxProxy;
use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- interrupted operations
# Operations that are interrupted, or whose other end closes: sending a statement, a
# reset, a rollback, reading part of an answer, waiting for a socket. The error has the
# reason, nothing is executed that was not sent completely, and the pool works on.
{
	# files that control the fake server
	my ($ended, $whole) = map { PostgreSQL::Test::Utils::tempdir . $_ } '/ended', '/whole';

	# a file that the fake server writes
	my $halved = PostgreSQL::Test::Utils::tempdir . '/halved';
	my $late = message('N', "SNOTICE\0VNOTICE\0C00000\0Mlate\0\0");

	sub said
	{
		select undef, undef, undef, 0.01 until -e $_[0];
		return;
	}

	my $fake = PgpxFakeServer->new(
		# the beginning of a notice behind the answer, and nothing more
		half => sub {
			my ($fake) = @_;

			$fake->receive;
			$fake->send($fake->answer('1'));
			select undef, undef, undef, 0.1;
			$fake->send("N\0\0\0\x40SNOT");
			PostgreSQL::Test::Utils::append_to_file($halved, 'x');
			sleep;
		},
		# the same, in one segment with the answer
		behind => sub { $_[0]->receive; $_[0]->send($_[0]->answer('1') . "N\0\0\0\x40SNOT"); sleep },
		# the same behind a cancelled statement, and later; the rest follows still later
		late => sub {
			my ($fake) = @_;

			$fake->receive;
			$fake->send($fake->described, row('1'));
			said($ended);
			$fake->send(failure(S => 'ERROR', V => 'ERROR', C => '57014', M => 'canceled'), ready(), substr($late, 0, 5));
			said($whole);
			$fake->send(substr $late, 5);
			$fake->serve;
		},
		fatal => sub { $_[0]->receive; $_[0]->send($_[0]->described, failure(S => 'FATAL', V => 'FATAL', C => '57P01', M => 'so long'), ready()); sleep });
	my $proxy = PgpxProxy->new($remote->port);
	my %options = (pool_size => 2, operation_timeout => '500 ms', retry_min => '10 ms', retry_max => '50 ms');
	make_pool($local, $proxy, server => 'far', options => {%options});
	make_pool($local, $proxy, server => 'single', options => { %options, pool_size => 1, operation_timeout => '20 s' });
	make_pool($local, $proxy, server => 'shared', options => { %options, pool_size => 1, operation_timeout => '500 ms', reset => 'never', reset_command => 'select pg_sleep(603)' });
	$local->safe_psql('postgres', "CREATE ROLE other; GRANT USAGE ON FOREIGN SERVER shared TO other; DROP USER MAPPING FOR app SERVER shared; CREATE USER MAPPING FOR PUBLIC SERVER shared OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD')");
	make_pool($local, $fake, server => $_, remote_dbname => $_, options => { %options, sslmode => PgpxFakeServer::sslmode() }) foreach qw(half behind fatal);
	make_pool($local, $fake, server => "patient_$_", remote_dbname => $_, options => { %options, operation_timeout => '20 s', sslmode => PgpxFakeServer::sslmode() }) foreach qw(behind late);
	my ($session, $other) = map { PgpxSession->new($local) } 1 .. 2;

	sub works
	{
		my ($server, $name) = @_;

		return ok(wait_until($local, sub { $other->run("SELECT a FROM pgpool.query('$server', 'select 42') AS t(a int)") }, '42', 30), "$name: pool works")
		  || diag($other->error);
	}

	# Wait until the session waits, which can only be for sending.
	sub sending
	{
		wait_until($local, 'SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = $$Extension$$ AND state = $$active$$ AND pid = ' . $session->pid, 1) or die 'it does not wait';
		return;
	}

	# --- a statement that is too large for the socket buffers of a frozen network is
	# cancelled
	my $big = q{'insert into sent values (1, $b$' || repeat('x', 16000000) || '$b$)'};
	$remote->safe_psql('remote_db', 'CREATE TABLE sent (n int, t text); GRANT ALL ON sent TO remote_app');
	foreach my $call ("pgpool.exec(:lease, $big)", "pgpool.send(:lease, $big)")
	{
		my ($name) = $call =~ /pgpool\.(\w+)/;

		$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
		$session->run(q{SELECT pgpool.exec(:lease, 'select 1')});
		$proxy->command('freeze');
		$session->start("SELECT $call");
		sending();
		$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
		$session->finish(60);
		$session->failed('57014', qr/user request/, "$name: statement is cancelled while it is being sent");
		$proxy->command('pass');
		$session->fails(q{SELECT pgpool.exec(:lease, 'select 1')}, '08006', qr/connection to server "far" was lost.*interrupted while it was being sent/s, "$name: lease reports the interruption") foreach 1 .. 2;
		is($session->run('SELECT pgpool.checkin_all()'), '1', "$name: lease can be returned");
		works('far', $name);
	}
	# when the network continues, the statement is sent, and the connection stays usable
	$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
	$proxy->command('freeze');
	$session->start(q{SELECT pgpool.send(:lease, 'select length($b$' || repeat('x', 16000000) || '$b$)')});
	sending();
	$proxy->command('pass');
	$session->finish(60);
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'select length(%' AND state = 'idle'}, 1), 'statement has waited for the network');
	is($session->run('SELECT pgpool.checkin(:lease); SELECT pgpool.checkout($$far$$) > 0') =~ s/\s//gr, 't', 'lease can be returned, and another one is granted');
	is($session->run('SELECT pgpool.checkin_all()'), '1', 'second lease can be returned');

	foreach my $how (qw(reset half))
	{
		$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
		my $pid = $session->run(q{SELECT a FROM pgpool.query(:lease, 'select pg_backend_pid()') AS t(a int)});
		$proxy->command('freeze');
		$session->start("SELECT pgpool.exec(:lease, $big)");
		sending();
		$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)");
		$proxy->command("$how 0");
		$session->finish(60);
		$session->failed('08006', qr/connection to server "far" was lost/, "$how: connection ends while a statement is being sent");
		$proxy->command('pass');
		$session->run('SELECT pgpool.checkin_all()');
		works('far', $how);
	}
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM sent'), '0', 'no statement was executed');

	# --- a rollback that cannot be sent any more
	{
		$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
		$session->run(q{SELECT pgpool.exec(:lease, 'begin')});
		my $connected = q{SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND application_name ~ 'pgpool_ext'};
		is($remote->safe_psql('postgres', $connected), '1', 'transaction is open');
		$proxy->command('reset 0');
		$remote->safe_psql('postgres', "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE state = 'idle in transaction'");
		ok(wait_until($local, q{SELECT state FROM pgpool.leases WHERE server = 'far'}, 'broken'), 'connection ends');
		$proxy->command('pass');
		is($session->run('SELECT pgpool.checkin_all()'), '1', 'lease is returned');
		like($session->error, qr/WARNING:.*was returned with an open remote transaction/, 'open transaction is reported by a warning');
		works('far', 'rollback');
	}

	# --- a rollback that is not answered: the session does not wait for it
	$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
	$session->run(q{SELECT pgpool.exec(:lease, 'begin')});
	$proxy->command('freeze');
	is($session->run(q{SET statement_timeout = '20 s'; SELECT pgpool.checkin(:lease); RESET statement_timeout}) . $session->sqlstate, '',
		'lease is returned although the rollback is not answered');
	like($session->error, qr/WARNING:.*was returned with an open remote transaction/, 'open transaction is reported by a warning again');
	$proxy->command('pass');
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'no lease is left');
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE state ~ 'in transaction' AND application_name ~ 'pgpool_ext'}, 0), 'no transaction is left');
	works('far', 'rollback without an answer');

	# --- a notification in an answer that the session does not read
	$session->run(q{SELECT pgpool.checkout('far') AS lease \gset});
	$session->run(q{SELECT pgpool.exec(:lease, 'listen x'); SELECT pgpool.send(:lease, 'select pg_notify($$x$$, $$y$$)')});
	ok(wait_until($local, sub { $session->run('SELECT pgpool.wait(:lease)') }, 't'), 'answer with a notification has arrived');
	is($session->run('SELECT pgpool.checkin_all()') . $session->error, '1', 'answer is dropped, and the connection is kept');

	# --- the reset before a lease of another user is not answered: another connection is
	# used
	{
		$session->run(q{SET ROLE app; SELECT pgpool.exec('shared', 'set geqo = off'); RESET ROLE});
		$other->run('SET ROLE other');
		my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query ~ 'pg_sleep.603' AND state = 'active' AND pid <> pg_backend_pid()};

		is($other->run(q{SELECT a FROM pgpool.query('shared', 'show geqo') AS t(a text)}), 'on', 'another connection is used') or diag($other->error);
		is($local->safe_psql('postgres', q{SELECT closed_reset FROM pgpool.stats WHERE server = 'shared'}), '1', 'first connection was closed because of the reset');
		ok(wait_until($remote, $running, 0, 20), 'reset is cancelled');
		$other->run('RESET ROLE');
	}

	# --- a waiter whose pipelined statement already runs waits for the socket while the
	# worker is stopped
	foreach my $how (qw(pg_cancel_backend pg_terminate_backend))
	{
		my $waiter = PgpxSession->new($local);
		my $running = q{SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(601)' AND state = 'active'};
		my $worker = worker_pid($local);
		my $lease = lease($session, 'single');

		$session->run("SELECT pgpool.exec($lease, 'select 1')");
		$waiter->start(q{SELECT pgpool.exec('single', 'SELECT pg_sleep(601)')});
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
		kill 'STOP', $worker;
		$session->run("SELECT pgpool.checkin($lease)");
		SKIP:
		{
			skip 'over TLS a stopped worker relays nothing', 1 if over_tls();
			ok(wait_until($remote, $running, 1), "$how: statement runs before its owner has the socket");
		}
		$local->safe_psql('postgres', "SELECT $how(" . $waiter->pid . ')');
		$waiter->finish(60);
		like($waiter->error, qr/57014|57P01/, "$how: owner receives the error");
		kill 'CONT', $worker;
		ok(wait_until($remote, $running, 0, 30), "$how: statement ends");
		$waiter->quit;
		works('single', $how);
	}

	# --- a cancel request that the worker has not sent when the statement ends
	{
		my $lease = lease($session, 'far');
		my $worker = worker_pid($local);
		my $gate = PgpxSession->new($remote, dbname => 'remote_db');
		my $blocked = q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_advisory_xact_lock(5)' AND state = 'active'};

		$session->run("SELECT pgpool.exec($lease, 'select 1')");
		kill 'STOP', $worker unless over_tls();
		$gate->run('SELECT pg_advisory_lock(5)');
		$session->start("SELECT pgpool.exec($lease, 'select pg_advisory_xact_lock(5)')");
		ok(wait_until($remote, $blocked, 1), 'statement runs');
		$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
		$session->finish(60);
		is($session->sqlstate, '57014', 'statement is cancelled');
		$gate->quit;
		ok(wait_until($remote, $blocked, 0), 'statement ends by itself');
		$session->run("SELECT pgpool.exec($lease, 'select 1')");
		is($session->sqlstate, over_tls() ? '' : '08006', 'next statement is not sent before the late cancel request') or diag($session->error);
		kill 'CONT', $worker;
		$session->run('SELECT pgpool.checkin_all()');
		works('far', 'cancel');
	}

	# --- part of an answer, or of an unsolicited message
	$session->run(q{SELECT pgpool.checkout('half') AS lease \gset});
	is($session->run(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'answer is complete');
	wait_until($local, sub { -e $halved ? 1 : 0 }, 1) or die 'no half notice';

	# over TLS two processes have to relay it
	$session->run('SELECT pg_sleep(5)') if over_tls();
	$session->fails(q{SELECT pgpool.exec(:lease, 'select 1')}, '08006', qr/a message did not end within operation_timeout/i, 'half a notice before a statement is awaited until operation_timeout');
	$session->run('SELECT pgpool.checkin_all()');
	$session->run(q{SELECT pgpool.checkout('behind') AS lease \gset});
	$session->run(q{SELECT pgpool.send(:lease, 'select 1'); SELECT pgpool.wait(:lease)});
	like($session->run('SELECT pgpool.checkin(:lease)') . $session->error, qr/\A\S+ WARNING:  01000: lease \d+ was returned with a statement in flight, which is cancelled\nLOCATION: .*\n\z/,
		'lease with half a notice behind an unread answer can be returned');
	is($local->safe_psql('postgres', q{SELECT count(*) FROM pgpool.connections WHERE server = 'behind' AND state IN ('idle', 'reset_pending')}), '0', 'connection with half a notice is not kept');

	# half a notice behind an answer that is read: the wait for the rest can be cancelled,
	# and no statement is cancelled
	$session->run(q{SELECT pgpool.checkout('patient_behind') AS lease \gset});
	is($session->run(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'answer in front of half a notice is complete');
	$session->fails(q{SET statement_timeout = '200 ms'; SELECT pgpool.exec(:lease, 'select 1')}, '57014', qr/statement timeout/, 'wait for the rest can be cancelled');
	is($local->safe_psql('postgres', q{SELECT state FROM pgpool.leases WHERE server = 'patient_behind'}), 'idle', 'no statement runs that would have to be cancelled');
	$session->reset_statement_timeout;
	$session->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, q{SELECT concat_ws(' ', closed_broken, closed_with_lease, cancels) FROM pgpool.stats WHERE server = 'patient_behind'}, '1 0 0'), 'no cancel request is sent at checkin');

	# half a notice behind the end of a cancelled statement: the wait for the rest can be
	# cancelled
	$session->run(q{SELECT pgpool.checkout('patient_late') AS lease \gset});
	cancel_running($local, $session, q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}, 'statement does not end');
	$session->run(q{SET statement_timeout = '200 ms'});
	PostgreSQL::Test::Utils::append_to_file($ended, 'x');
	$session->fails(q{SELECT pgpool.exec(:lease, 'select 1')}, '57014', qr/statement timeout/, 'wait for the rest of the notice can be cancelled') foreach 1 .. 2;
	PostgreSQL::Test::Utils::append_to_file($whole, 'x');
	$session->reset_statement_timeout;
	is($session->run(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}), '1', 'lease works when the notice is complete')
	  or diag($session->error);
	like($session->error, qr/NOTICE:.*late/, 'late notice is reported');
	$session->run('SELECT pgpool.checkin_all()');
	is($local->safe_psql('postgres', q{SELECT closed_broken + closed_reset + closed_with_lease FROM pgpool.stats WHERE server = 'patient_late'}), '0', 'connection is kept');
	$session->run(q{SELECT pgpool.checkout('fatal') AS lease \gset});
	$session->fails(q{SELECT a FROM pgpool.query(:lease, 'select 1') AS t(a int)}, '08006', qr/The remote server reported: so long/, 'FATAL error followed by ReadyForQuery ends the connection');
	$session->run('SELECT pgpool.checkin_all()');

	# --- a client that does not read the notices of a statement
	my $deaf = PgpxSession->new($local);
	$deaf->start(q{SELECT pgpool.exec('far', 'do $$ begin for i in 1 .. 100000 loop raise notice ''%'', repeat(''x'', 1000); end loop; end $$')});
	ok(wait_until($local, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $deaf->pid, 'ClientWrite'), 'session waits for its client');
	ok(terminate($local, $deaf->pid), 'session that waits for its client can be terminated');
	$deaf->finish;
	works('far', 'end of the session');

	$_->quit foreach $session, $other, $deaf;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- damaged answers
# The network truncates or corrupts an answer at many of its bytes: the session
# receives an error or, if the answer was complete, the right rows, and the pool works
# afterwards. Also:
# delays, no traffic at all, the end of one direction, lost cancel requests.
{
	my $proxy = PgpxProxy->new($remote->port);
	my $session = PgpxSession->new($local);

	make_pool($local, $proxy, server => 'way', options => { pool_size => 2, operation_timeout => '500 ms' });
	make_pool($local, $remote, server => 'other');

	# one statement uses the simple protocol, one the extended protocol
	my %asked = (
		simple => [ q{'select 7, ''aé'' union all select 8, null'}, "7|aé\n8|" ],
		extended => [ q{'select 100 + g, $1 from generate_series(1, 2) g', 'xyz'}, "101|xyz\n102|xyz" ],
	);

	sub query
	{
		my ($where, $sql) = @_;

		return "SELECT * FROM pgpool.query($where, $sql) AS t(a int, b text)";
	}

	# Wait until no connection receives the answer to a reset, whose bytes would count.
	sub are_reset { return wait_until($local, "SELECT count(*) FROM pgpool.pools WHERE server = 'way' AND reset_pending + resetting > 0", 0); }

	# Describe the error of a statement whose answer is damaged, '' for none.
	sub check_fault
	{
		my ($kind, $fault, $complete) = @_;

		are_reset() if $complete;
		my ($sql, $rows) = @{ $asked{$kind} };
		my $lease = lease($session, 'way');
		my $wrong = '';

		$proxy->command($fault);
		my $got = $session->run(query($lease, $sql), 30);
		$wrong .= " got \"$got\"" if $got ne ($complete ? $rows : '');
		# 22021: garbage in a value is found before the missing rest
		$wrong .= ' returned ' . $session->error if $session->sqlstate !~ ($complete ? qr/^$/ : $fault =~ /garbage/ ? qr/^(?:08006|08P01|22021)$/ : qr/^(?:08006|08P01)$/);
		my %detail = (cut => qr/DETAIL:  The remote server closed the connection\./, reset => qr/DETAIL:  The connection was reset by the remote server or the network\./);
		my $detail = $detail{ $fault =~ s/ .*//r };
		$wrong .= ' returned ' . $session->error if !$complete && $detail && $session->error !~ $detail;
		$proxy->command('pass');
		$session->run("SELECT pgpool.checkin($lease)");
		$wrong .= ' checkin: ' . $session->error if $session->error;

		$got = $session->run(query("'way'", $sql), 30);
		$wrong .= " the next got \"$got\"" . $session->error if $got ne $rows;
		return $wrong && "$fault:$wrong\n";
	}

	my $worker = worker_pid($local);
	foreach my $kind (sort keys %asked)
	{
		my ($sql, $rows) = @{ $asked{$kind} };

		are_reset();
		my $lease = lease($session, 'way');
		$session->run(query($lease, $sql));
		$proxy->command('pass');
		is($session->run(query($lease, $sql)), $rows, "$kind: answer is correct");
		my $length = $proxy->command('count');
		$session->run("SELECT pgpool.checkin($lease)");
		cmp_ok($length, '>', 80, "$kind: answer has $length bytes");

		# each third position for one kind of fault; for other kinds some positions; and the end
		my @some = grep { $_ % 17 == 0 || $_ > $length - 7 } 0 .. $length - 1;
		my %where = (cut => $kind eq 'simple' ? \@some : [ grep { $_ % 3 == 0 || $_ > $length - 7 } 0 .. $length - 1 ], reset => \@some, half => \@some, garbage => \@some);

		foreach my $fault (sort keys %where)
		{
			is(join('', map { check_fault($kind, "$fault $_", 0) } @{ $where{$fault} }), '', "$kind, $fault: no row is returned, and the next statement is answered");
			is(check_fault($kind, "$fault $length", 1), '', "$kind, $fault: all rows are returned if the answer was complete") if $fault eq 'cut';
		}
	}
	is(worker_pid($local), $worker, 'worker was not restarted by truncated answers');
	check_invariants($local);

	# one call reads the answer to the previous reset, and that to the statement
	my $check_fault = sub {
		my ($n) = @_;

		$session->run("SELECT pgpool.exec('way', 'select 1')");
		$proxy->command("cut $n");
		my $got = $session->run(query("'way'", $asked{extended}[0]));
		$proxy->command('pass');
		return $got eq $asked{extended}[1] && !$session->error || $got eq '' && $session->sqlstate eq '08006' ? '' : "$n: $got " . $session->error;
	};
	is(join('', map { $check_fault->(10 * $_) } 1 .. 20), '', 'behind a reset: statement returns the right rows or reports a lost connection');

	# a delay is not an error
	$proxy->command('delay 20');
	is($session->run(query("'way'", $asked{$_}[0])), $asked{$_}[1], "delay, $_: rows are right") foreach sort keys %asked;
	$proxy->command('pass');

	# one direction has ended while the statement runs on the remote server
	my $asleep = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app' AND state = 'active'};
	my $sleep = query("'way'", q{'select 1, pg_sleep(600)::text'});
	$session->run("SELECT pgpool.exec('way', 'select 1')");
	wait_until($local, "SELECT idle > 0 AND reset_pending = 0 FROM pgpool.pools WHERE server = 'way'");
	$session->start($sleep);
	ok(wait_until($remote, $asleep, '1'), 'half: statement runs');
	$proxy->command('half 0');
	$remote->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app'});
	$session->finish(30);
	$session->failed('08006', qr/was lost/, 'half: statement fails as lost');
	ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'way' AND state <> 'idle'", '0'), 'half: connection is closed');
	$proxy->command('pass');

	# no byte is passed on
	$proxy->command('freeze');
	$session->fails("SET statement_timeout = '200 ms'; $sleep", '57014', qr/statement timeout/, 'freeze: statement can be cancelled');
	$session->reset_statement_timeout;
	is($session->run(query("'other'", $asked{simple}[0])), $asked{simple}[1], 'freeze: another pool works');
	$proxy->command('pass');
	ok(wait_until($local, "SELECT * FROM pgpool.query('way', 'select 7') AS t(a int)", '7'), 'freeze: pool works again afterwards');
	ok(wait_until($remote, $asleep, '0'), 'freeze: nothing runs on the remote server');

	# Cancel requests are accepted and not passed on. From libpq 17 on they use TLS if the
	# connection does.
	$session->run("SELECT pgpool.exec('way', 'select 1')");
	$proxy->command(over_tls() ? 'hold all' : 'hold');
	$session->fails("SET statement_timeout = '200 ms'; $sleep", '57014', qr/statement timeout/, 'hold: statement times out');
	$session->reset_statement_timeout;
	ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'way' AND state NOT IN ('idle', 'reset_pending')", '0'),
		'hold: slot is free after operation_timeout');
	$proxy->command('pass');
	is($session->run(query("'way'", $asked{simple}[0])) . $session->error, $asked{simple}[1], 'hold: pool works again');
	ok(wait_until($local, 'SELECT sum(descriptors) - ' . descriptors_wanted() . ' FROM pgpool.workers', '0'), 'hold: no file descriptor is left open');
	$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app'});

	# garbage and RST on an idle connection
	foreach my $fault ('garbage 0', 'reset 0')
	{
		$session->run("SELECT pgpool.exec('way', 'select 1')");
		wait_until($local, "SELECT reset_pending FROM pgpool.pools WHERE server = 'way'", '0');
		$proxy->command($fault);
		$remote->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgpool_ext/way'});
		ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'way'", '0'), "$fault while idle: connection is closed");
		$proxy->command('pass');
		is($session->run(query("'way'", $asked{simple}[0])) . $session->error, $asked{simple}[1], "$fault while idle: next call succeeds");
	}

	is(worker_pid($local), $worker, 'worker was not restarted');
	$session->quit;
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
