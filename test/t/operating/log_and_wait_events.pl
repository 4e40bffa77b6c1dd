# Messages in the server's log, and wait events.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- messages in the log
# Messages of pools in the server's log: one line for each event, none for events that are
# switched off, and not one for each call while a remote server is down.
{
	my ($session, $holder) = map { PgpxSession->new($local) } 1 .. 2;
	my %options = (pool_size => 1, retry_min => '50ms', retry_max => '200ms');
	my $start = 0;
	my $size = 10;

	make_pool($local, $remote, server => $_, options => {%options}) foreach qw(quiet noted down);
	make_pool($local, $remote, server => 'sized');
	$session->run(q{SELECT pgpool.exec('sized', 'select 1')});

	# The messages since the last mark() that match, each with its detail.
	sub lines
	{
		my ($pattern) = @_;

		return grep { /$pattern/ } split /^(?=\d{4}-(?!.* (?:DETAIL|HINT|CONTEXT|STATEMENT):  ))/m, substr slurp_file($local->logfile), $start;
	}

	sub mark { $start = -s $local->logfile; return; }

	sub set
	{
		my ($name, $value) = @_;

		$local->safe_psql('postgres', "ALTER SYSTEM SET $name = '$value'");
		$local->safe_psql('postgres', 'ALTER SYSTEM SET pgpool_ext.default_pool_size = ' . ++$size);
		$local->reload;

		# the worker has applied the settings when a pool has the other size
		return wait_until($local, q{SELECT pool_size FROM pgpool.pools WHERE server = 'sized'}, $size)
		  && wait_until($local, sub { $session->run("SHOW $name") }, $value);
	}

	# Let the session wait for the holder's lease for at least $time.
	sub wait_for_lease
	{
		my ($server, $time) = @_;
		my $pid = $session->pid;

		$session->start("SELECT pgpool.checkin(pgpool.checkout('$server', '30 s'))");
		wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE pid = $pid AND now() - waiting_since > '$time'", '1');
		$holder->run('SELECT pgpool.checkin_all()');
		$session->finish(30);
		return;
	}

	# --- defaults
	lease($holder, 'quiet');
	wait_for_lease('quiet', '400 ms');
	$session->run("SELECT pgpool.reconnect('quiet')");
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'quiet'", '0'), 'connection is closed after a checkout, a wait and a reconnect');
	is(join('', lines(qr/quiet/)), '', 'nothing is logged by default');

	# --- log_min_wait. The holder's checkout also waits, for its connection, and may be logged.
	# The log is therefore read from after that checkout.
	ok(set('pgpool_ext.log_min_wait', '1s'), 'log_min_wait is set to 1s');
	lease($holder, 'noted');
	mark();
	wait_for_lease('noted', '1.1 s');
	ok(wait_until($local, sub { scalar lines(qr/waited/) }, 1), 'checkout that waited longer than log_min_wait is logged');
	like((lines(qr/waited/))[0], qr/LOG:  checkout from server "noted" waited for (1[1-9]\d\d|[2-9]\d{3}|\d{5,})\.\d{3} ms\n/, 'message has the duration');
	ok(set('pgpool_ext.log_min_wait', '1min'), 'log_min_wait is set to 1min');
	lease($holder, 'noted');
	mark();
	wait_for_lease('noted', '1.1 s');
	is(scalar lines(qr/waited/), 0, 'shorter wait is not logged');
	ok(set('pgpool_ext.log_min_wait', '-1'), 'log_min_wait is set to -1');

	# --- log_connections
	ok(set('pgpool_ext.log_connections', 'on'), 'log_connections is set to on');
	is($local->safe_psql('postgres', 'SELECT pgpool.drain(NULL, $$10 s$$)'), 't', 'all pools are drained');
	$local->safe_psql('postgres', 'SELECT pgpool.resume()');
	mark();
	is($session->run("SELECT pgpool.exec('noted', 'select 1')"), '1', 'connection is opened') foreach 1 .. 5;
	$session->run("SELECT pgpool.reconnect('noted')");
	ok(wait_until($local, sub { scalar lines(qr/pgpool_ext closed connection/) }, 1), 'connection is closed');
	is(scalar lines(qr/pgpool_ext connected to/), 1, 'one connection is logged once');
	like((lines(qr/connected to/))[0],
		qr/LOG:  pgpool_ext connected to server "noted" of database "postgres" as connection \d+, remote PID \d+, in \d+\.\d{3} ms\n/,
		'message has server, database, connection and PID');
	unlike(slurp_file($local->logfile), qr/\Q$REMOTE_APP_PASSWORD/, 'log contains no password');
	$remote->stop;
	mark();
	my @many = map { PgpxSession->new($local) } 1 .. 8;
	foreach my $round (1 .. 20)
	{
		$_->start("SELECT pgpool.checkout('noted', '10 s')") foreach @many;
		$_->finish(30) foreach @many;
	}
	my $failed = $local->safe_psql('postgres', "SELECT connects_failed FROM pgpool.stats WHERE server = 'noted'");
	my @lines = lines(qr/LOG:  pgpool_ext could not connect to server "noted"/);
	cmp_ok(scalar @lines, '>=', 1, 'failed attempts are logged');
	cmp_ok(scalar @lines, '<=', $failed + 1, "one line is logged for each attempt ($failed), not for each of 160 calls");
	like($lines[0], qr/DETAIL:  .*refused/, 'message has the reason');
	is(scalar lines(qr/cannot connect to server "noted"/), 0, 'outage is not logged in addition');
	$remote->start;
	ok(wait_until($local, sub { $session->run("SELECT pgpool.exec('noted', 'select 1')") }, '1'), 'remote server works again');
	ok(set('pgpool_ext.log_connections', 'off'), 'log_connections is set to off');

	# --- outages, which are always logged
	is($session->run("SELECT pgpool.exec('down', 'select 1')"), '1', 'pool is in use');
	are_idle($local, 'down');
	mark();
	$remote->stop;
	foreach my $round (1 .. 20)
	{
		$_->start("SELECT pgpool.checkout('down', '10 s')") foreach @many;
		$_->finish(30) foreach @many;
	}
	ok( wait_until($local, sub {
				$session->run("SELECT pgpool.checkout('down')");
				$session->run("SELECT connects_failed >= 3 FROM pgpool.stats WHERE server = 'down'");
			}, 't'), 'several attempts fail');
	$remote->start;
	ok(wait_until($local, sub { $session->run("SELECT pgpool.exec('down', 'select 1')") }, '1', 30), 'remote server works again after the outage');
	ok(wait_until($local, sub { scalar(my @again = lines(qr/connects to server "down" .* again/)) }, 1), 'end of the outage is logged');
	@lines = lines(qr/server "down"/);
	@lines = grep { /LOG:/ } @lines;
	is(scalar @lines, 2, 'outage is logged with two lines') or diag("@lines");
	my $user = $local->safe_psql('postgres', 'SELECT current_user');
	like($lines[0], qr/LOG:  pgpool_ext cannot connect to server "down" of database "postgres" for user "$user"\n.*DETAIL:  .*refused/,
		'first line has the reason');
	like($lines[1], qr/LOG:  pgpool_ext connects to server "down" of database "postgres" for user "$user" again, after \d+\.\d{3} s\n/, 'second line has the duration');

	$_->run('SELECT pgpool.checkin_all()') foreach @many, $session;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- wait events
# Wait events in pg_stat_activity: own names from PostgreSQL 17 on, "Extension" before.
{
	# never answers; the kernel accepts the connections
	my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";
	my $silent_port = $silent->sockport;
	make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
	make_pool($local, $remote, server => 'two', options => { pool_size => 2, operation_timeout => '300s' });
	make_pool($local, $remote, server => 'slow',
		options => { pool_size => 1, reset_command => 'select pg_sleep(300)', operation_timeout => '300s' });
	$local->safe_psql('postgres', <<"EOT");
CREATE SERVER hole FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$silent_port',
	dbname 'd', connect_timeout '300s');
CREATE SERVER unknown FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$silent_port',
	dbname 'd', connect_timeout '300s');
CREATE USER MAPPING FOR CURRENT_USER SERVER hole OPTIONS (user 'u', password 'p');
CREATE USER MAPPING FOR CURRENT_USER SERVER unknown OPTIONS (user 'u', password 'p');
SELECT pgpool.lock_setup('two');
EOT

	my $named = $local->safe_psql('postgres', 'SHOW server_version_num') >= 170000;
	my $holder = PgpxSession->new($local);
	my $session = PgpxSession->new($local);

	sub waits
	{
		my ($pid, $name) = @_;
		my $shown = 'Extension/' . ($named ? $name : 'Extension');

		ok(wait_until($local, "SELECT wait_event_type || '/' || wait_event FROM pg_stat_activity WHERE pid = $pid", $shown, 30),
			"wait event $name is shown as $shown");
		return;
	}

	# Assert that SQL waits with this event; a cancel, or $end, ends the wait.
	sub shows
	{
		my ($name, $sql, $end) = @_;

		$session->start($sql);
		waits($session->pid, $name);
		$end ? $end->() : $local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
		return $session->finish(30);
	}

	# the only connection is leased
	my $lease = lease($holder, 'one');
	shows('PgpoolCheckout', q{SELECT pgpool.checkout('one', '300 s')});
	shows('PgpoolDrain', q{SELECT pgpool.drain('one', '300 s')});
	$local->safe_psql('postgres', q{SELECT pgpool.resume('one')});
	$holder->run("SELECT pgpool.checkin($lease)");

	shows('PgpoolQuery', q{SELECT pgpool.exec('one', 'select pg_sleep(300)')});
	shows('PgpoolAnswer', q{SELECT * FROM pgpool.fanout('{one,two}', 'select 1 from pg_sleep(300)') AS t(pool text, a int)});
	shows('PgpoolPrewarm', q{SELECT pgpool.prewarm('hole', 1, '300 s')});

	$lease = lease($session, 'two');
	$session->run("SELECT pgpool.send($lease, 'select pg_sleep(300)')");
	shows('PgpoolAnswer', "SELECT pgpool.wait($lease, '300 s')");
	$session->run("SELECT pgpool.discard($lease)");
	$lease = lease($session, 'two');
	shows('PgpoolNotification', "SELECT * FROM pgpool.wait_notifications($lease, '300 s')");
	$session->run("SELECT pgpool.checkin($lease)");

	# the reset that was sent at checkin is slow, and the worker does not read its answer
	my $worker = worker_pid($local);
	$lease = lease($session, 'slow');
	$session->run("SELECT pgpool.exec($lease, 'select 1')");
	kill 'STOP', $worker;
	shows('PgpoolReset', "SELECT pgpool.checkin($lease); SELECT pgpool.checkout('slow', '300 s')");
	kill 'CONT', $worker;

	my $token = $holder->run(q{SELECT pgpool.lock('two', 'mine')});
	shows('PgpoolLock', q{SELECT pgpool.lock('two', 'mine', '300 s')});

	# an idle worker
	waits($worker, 'PgpoolWorkerMain');
	$lease = lease($holder, 'one');
	$holder->run("SELECT pgpool.exec($lease, 'select 1'); SELECT pgpool.checkin($lease)");
	ok(wait_until($local, q{SELECT state FROM pgpool.connections WHERE server = 'one'}, 'idle'), 'connection is idle');

	# a new session has not cached the socket of the connection
	$session->quit;
	$session = PgpxSession->new($local);
	kill 'STOP', $worker;
	shows('PgpoolSocket', q{SELECT pgpool.checkout('one', '300 s')});
	$holder->start("SELECT pgpool.unlock('two', 'mine', $token)");
	waits($holder->pid, 'PgpoolUnlock');
	kill 'CONT', $worker;
	is($holder->finish(30), 't', 'lock is released when the worker continues');

	# messages to the worker until its control socket is full
	kill 'STOP', $worker;
	$session->run(<<'EOT');
DO $$ BEGIN
	FOR i IN 1 .. 1000 LOOP
		BEGIN PERFORM pgpool.checkout('unknown', '1 ms'); EXCEPTION WHEN OTHERS THEN END;
	END LOOP;
END $$
EOT
	shows('PgpoolControl', q{SELECT pgpool.checkout('unknown', '300 s')});
	kill 'CONT', $worker;

	$_->quit foreach $holder, $session;
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
