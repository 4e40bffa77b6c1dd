# Sessions during an outage of the remote server, and during a failover.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['log_connections = on' ]);
my $local = local_node('local');

# ---------- sessions that call in a loop
# Sessions call in a loop while the remote server stops and starts. Every failed call reports
# the reason, and calls succeed again after the restart. The remote server never has more
# sessions than pool_size, and no burst of connection attempts. A pause between attempts
# causes no attempt, however many sessions call.
{
	my $clients = 20;
	my $size = 5;
	make_pool($local, $remote, server => 'shard1',
		options => { pool_size => $size, checkout_timeout => '5min', retry_min => '20ms', retry_max => '200ms', connect_timeout => '5min' });
	make_pool($local, $remote, server => 'patient',
		options => { pool_size => $size, on_unavailable => 'wait', checkout_timeout => '300ms', connect_timeout => '5min', retry_max => '200ms' });
	make_pool($local, $remote, server => 'warm', options => { pool_size => $size, min_size => 2, retry_max => '200ms', connect_timeout => '5min' });
	$remote->safe_psql('postgres', "ALTER ROLE remote_app CONNECTION LIMIT @{[ $size + $size + 2 ]}");
	is($local->safe_psql('postgres', "SELECT pgpool.exec('warm', 'select 1')"), '1', 'pool with min_size is used');
	ok(wait_until($local, "SELECT idle FROM pgpool.pools WHERE server = 'warm'", '2'), 'pool with min_size is open');

	# for each call: its end, SQLSTATE and detail
	$local->safe_psql('postgres', <<'EOT');
CREATE UNLOGGED TABLE calls (server text, ended timestamptz, state text, detail text);
CREATE TABLE stop ();
CREATE PROCEDURE loop_until_stopped(server text) LANGUAGE plpgsql AS $$
DECLARE
	s text; d text; n int; v int;
BEGIN
	WHILE to_regclass('stop') IS NOT NULL LOOP
		s := '00000'; d := ''; v := NULL;
		n := (random() * 1e9)::int;
		BEGIN
			SELECT a INTO v FROM pgpool.query(server, 'select $1::int from pg_sleep(0.005)', n) AS t(a int);
			IF v IS DISTINCT FROM n THEN s := 'wrong'; END IF;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS s = RETURNED_SQLSTATE, d = PG_EXCEPTION_DETAIL;
			PERFORM pg_sleep(0.005);
		END;
		INSERT INTO calls VALUES (server, clock_timestamp(), s, d);
		COMMIT;
	END LOOP;
END $$;
EOT

	sub calls
	{
		my ($columns, $where, $server) = @_;

		return $local->safe_psql('postgres',
			"SELECT $columns FROM calls WHERE server = '" . ($server // 'shard1') . "' AND " . ($where // 'true'));
	}

	sub now { return $local->safe_psql('postgres', 'SELECT clock_timestamp()'); }

	my @sessions = map { PgpxSession->new($local) } 1 .. $clients;
	$_->start(q{CALL loop_until_stopped('shard1')}) foreach @sessions;
	my @patient = map { PgpxSession->new($local) } 1 .. 5;
	$_->start(q{CALL loop_until_stopped('patient')}) foreach @patient;
	my $endless = PgpxSession->new($local);
	ok(wait_until($local, "SELECT count(*) > 200 FROM calls WHERE state = '00000'", 't'), "$clients sessions make calls");

	my $since = q{SELECT unavailable_since, remote_full_since FROM pgpool.pools WHERE server = 'shard1'};
	is($local->safe_psql('postgres', $since), '|', 'pgpool.pools shows no outage');
	$remote->stop('fast');
	my $gone = now();
	ok(wait_until($local, q{SELECT unavailable_since IS NOT NULL FROM pgpool.pools WHERE server = 'shard1'}, 't', 30), 'pgpool.pools shows since when the remote server is unavailable');
	my $unavailable = $local->safe_psql('postgres', $since);
	my $failed_at = $local->safe_psql('postgres', q{SELECT last_error_at FROM pgpool.pools WHERE server = 'shard1'});
	my $failures = q{SELECT connects_failed FROM pgpool.stats WHERE server = 'shard1'};
	my $failed = $local->safe_psql('postgres', $failures);
	ok(wait_until($local, "SELECT connects_failed > $failed + 3 FROM pgpool.stats WHERE server = 'shard1'"), 'attempts continue');
	ok(wait_until($local, "SELECT count(*) > 200, count(*) FILTER (WHERE server = 'patient') > 10 FROM calls WHERE state = '08001' AND ended > '$gone'", 't|t'), 'calls fail');
	is($local->safe_psql('postgres', "SELECT last_error <> '', next_try_at IS NOT NULL, now() - last_error_at < '1 min' FROM pgpool.pools WHERE server = 'shard1'"),
		't|t|t', 'pgpool.pools shows the error, its time, and the time of the next attempt');
	is($local->safe_psql('postgres', "SELECT last_error_at > '$failed_at' FROM pgpool.pools WHERE server = 'shard1'"), 't', 'further attempts have failed');
	is($local->safe_psql('postgres', $since), $unavailable, 'unavailable_since stays the time of the first failure');
	like($unavailable, qr/^2.*\|$/, 'remote_full_since is not set by an outage');
	check_invariants($local, 'invariants hold during the outage');
	is(scalar(grep { $_->done } @sessions, @patient), 0, 'all sessions are still in their loops');
	$endless->start("SELECT pgpool.exec(pgpool.checkout('patient', '10 min'), 'select 1'), pgpool.checkin_all()");
	ok(wait_until($local, "SELECT reason FROM pgpool.waiters WHERE server = 'patient' AND deadline > now() + '1 min'", 'unavailable', 30),
		'one session waits with a long timeout');
	ok( wait_until($local,
			"SELECT count(*) FROM pgpool.pools WHERE server IN ('shard1', 'patient') AND next_try_at <= now() + interval '200 ms'",
			'2'),
		'next attempt follows within retry_max');

	$remote->start;
	my $back = now();
	ok(wait_until($local, "SELECT count(*) > 200 FROM calls WHERE ended > '$back' AND state = '00000'", 't'), 'calls succeed again');
	ok(wait_until($local, $since, '|', 30), 'pgpool.pools shows that the outage has ended');
	$local->safe_psql('postgres', 'DROP TABLE stop');
	$_->finish(60) foreach @sessions, @patient, $endless;
	is(join('', map { $_->error } @sessions, @patient, $endless), '', 'all sessions end without an error');
	is($endless->{text}, '1|1', 'session with a long timeout was granted a connection');

	# --- evaluation of the calls
	note 'calls by SQLSTATE: ' . $local->safe_psql('postgres', 'SELECT string_agg(s, $$, $$) FROM (SELECT state || $$ $$ || count(*) FROM calls GROUP BY state) AS t(s)');
	is(calls("count(*)", "state NOT IN ('00000', '08001', '08006', '55P03')"), '0', 'no call fails with another SQLSTATE')
	  or diag(calls("string_agg(DISTINCT state || ' ' || detail, '; ')", "state NOT IN ('00000', '08001', '08006', '55P03')"));

	is(calls('count(*)', "state = '55P03'"), '0', 'no call timed out');
	cmp_ok(calls('count(*)', "state = '08001'"), '>', 50, 'many calls report that the remote server cannot be reached');

	# (the last patterns are libpq's messages for an attempt that is in the backlog when the
	# server stops, in plain text and over TLS, and libpq 18's for a TLS connection that is
	# closed)
	my $unknown = q{state = '08001' AND detail !~ 'refused|shutting down|starting up|closed the connection|terminating|}
	  . q{reset by peer|Broken pipe|EOF detected|unexpected eof'};
	is(calls('count(*)', $unknown), '0', 'failed calls have a known reason') or diag(calls("string_agg(DISTINCT detail, '; ')", $unknown));

	is(calls('count(*)', "state NOT IN ('00000', '08001', '08006', '55P03')", 'patient'), '0', 'patient: no call fails with another SQLSTATE');
	is(calls('count(*)', $unknown, 'patient'), '0', 'patient: failed calls have a known reason')
	  or diag(calls("string_agg(DISTINCT detail, '; ')", $unknown, 'patient'));
	# --- the remote server
	is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.pools WHERE total > pool_size"), '0', 'no pool exceeds pool_size');

	foreach my $server (qw(shard1 patient warm))
	{
		my ($too_many, $in) = connects_of($remote, $server);

		is($too_many, 0, "$server: connection attempts start one, two, four at a time");
		cmp_ok($in, '<=', $size, "$server: attempts do not exceed pool_size ($in)");
	}
	ok(wait_until($local, "SELECT idle, unavailable_since IS NULL FROM pgpool.pools WHERE server = 'warm'", '2|t', 60),
		'min_size connections are open again without a call');
	is($local->safe_psql('postgres', "SELECT waited - granted - failed, timeouts, cancelled FROM pgpool.stats WHERE server = 'shard1'"),
		'0|0|0', 'every waiter was granted a connection or received an error');
	is($local->safe_psql('postgres', "SELECT unavailable > 0, connects_failed > 0 FROM pgpool.stats WHERE server = 'shard1'"),
		't|t', 'calls during a pause between attempts fail at once');

	# --- a wrong password: calls report the reason, and succeed again when it is right
	is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '1 min')"), 't', 'pools are drained before the wrong password');
	$local->safe_psql('postgres', 'TRUNCATE calls; CREATE TABLE stop ()');
	$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD 'another'");
	$local->safe_psql('postgres', 'SELECT pgpool.resume()');
	$_->start(q{CALL loop_until_stopped('shard1')}) foreach @sessions;
	ok(wait_until($local, q{SELECT count(*) > 100 FROM calls WHERE state = '08001' AND detail ~ 'password authentication failed for user'}, 't'), 'calls report a wrong password');
	is(calls('count(*)', "state <> '08001'"), '0', 'wrong password: no call fails otherwise');
	$remote->safe_psql('postgres', "ALTER ROLE remote_app PASSWORD '$REMOTE_APP_PASSWORD'");
	ok(wait_until($local, "SELECT count(*) > 0 FROM calls WHERE state = '00000'", 't'), 'wrong password: pool works when the password is right again');
	$local->safe_psql('postgres', 'DROP TABLE stop');
	$_->finish(60) foreach @sessions;

	# --- the remote server accepts no more connections: sessions wait (see also
	# refused_logins)
	$local->safe_psql('postgres', 'SET client_min_messages = error; DROP SERVER warm CASCADE');
	is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'pools are drained before the limit');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'", '0'), 'remote server has no session of the pools');
	$local->safe_psql('postgres', 'SELECT pgpool.resume()');
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 2');
	sub refusals { return scalar(() = slurp_file($remote->logfile) =~ /too many connections for role "remote_app"/g); }
	my $before = refusals();
	my @leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
	$_->start("SELECT pgpool.checkin(pgpool.checkout('shard1', '60 s'))") foreach @sessions[ 2 .. 9 ];
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '8'), 'no room: eight sessions wait');
	ok(wait_until($local, sub { refusals() >= $before + 2 ? 1 : 0 }, 1), 'no room: worker tries to connect');
	is(scalar(grep { $_->done } @sessions[ 2 .. 9 ]), 0, 'no room: sessions wait, and do not fail');
	$sessions[0]->run('SELECT pgpool.checkin_all()');
	$_->finish(30) foreach @sessions[ 2 .. 9 ];
	is(join('', map { $_->error } @sessions[ 2 .. 9 ]), '', 'no room: returned connections are granted to the waiters');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

	# --- the connections are those of another pool of the server: sessions wait, too
	is($local->safe_psql('postgres', "SELECT pgpool.drain(NULL, '30 s')"), 't', 'pools are drained again');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'", '0'), 'remote server again has no session of the pools');
	$local->safe_psql('postgres', 'SELECT pgpool.resume(), pgpool.reconnect()');
	@leases = map { lease($_, 'shard1') } @sessions[ 0, 1 ];
	my $app = PgpxSession->new($local, user => 'app');
	$app->start("SELECT pgpool.checkin(pgpool.checkout('shard1', '60 s'))");
	ok(wait_until($local, 'SELECT reason FROM pgpool.waiters', 'remote_full'), 'no room for another pool: worker tries to connect');
	ok(!$app->done, 'no room for another pool: session waits');
	my $latest = PgpxSession->new($local, user => 'app');
	$latest->fails("SELECT pgpool.checkout('shard1', '200 ms')", '55P03', qr/too many connections for role "remote_app"/,
		'no room for another pool: later session waits until its timeout and reports the reason');
	like($latest->error, qr/FATAL: too many connections for role "remote_app"$/m, q{no room for another pool: error has libpq's message});
	$sessions[0]->run("SELECT pgpool.discard($leases[0])");
	is($app->finish(30) . $app->error, '', 'no room for another pool: session is granted a connection when there is room');
	$_->run('SELECT pgpool.checkin_all()') foreach @sessions;
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT -1');

	# --- simultaneous attempts that fail count as one failure
	my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1') or die "no listener: $!";
	make_pool($local, $remote, server => 'burst',
		options => { port => $listener->sockport, connect_timeout => '10min', pool_size => 8, retry_min => '1min', retry_max => '1d' });
	$_->start(q{SELECT pgpool.checkout('burst', '10 min')}) foreach @sessions[ 0 .. 7 ];
	ok(wait_until($local, q{SELECT connecting FROM pgpool.pools WHERE server = 'burst'}, '8'), 'burst: eight attempts are in progress');
	my $closed_port = $listener->sockport;
	close $listener;
	$_->finish(60) foreach @sessions[ 0 .. 7 ];
	is(scalar(grep { $_->sqlstate eq '08001' } @sessions[ 0 .. 7 ]), 8, 'burst: all sessions receive an error');
	ok(wait_until($local, q{SELECT connects_failed FROM pgpool.stats WHERE server = 'burst'}, '8'), 'burst: all attempts have failed');
	is($local->safe_psql('postgres', q{SELECT next_try_at - last_error_at BETWEEN '30 s' AND '61 s' FROM pgpool.pools WHERE server = 'burst'}), 't', 'burst: pause is that after one failure');

	# --- during a pause calls fail at once, and cause no attempt
	$_->run(q{SELECT pgpool.exec('burst', 'select 1')}) foreach (@sessions[ 0 .. 7 ]) x 3;
	is(scalar(grep { $_->sqlstate eq '08001' } @sessions[ 0 .. 7 ]), 8, 'pause: calls fail');
	is($local->safe_psql('postgres', q{SELECT connects_failed, unavailable >= 24 FROM pgpool.stats WHERE server = 'burst'}), '8|t', 'pause: calls cause no attempt');
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- another server becomes the primary
# A remote server becomes read-only while another one becomes the primary.
{
	my $other = remote_node('other');

	$_->safe_psql('remote_db', 'CREATE TABLE written (n int); GRANT ALL ON written TO remote_app') foreach $remote, $other;
	$other->append_conf('postgresql.conf', 'default_transaction_read_only = on');
	$other->reload;
	ok(wait_until($other, 'SHOW default_transaction_read_only', 'on'), 'one of two remote servers is read-only');
	my %both = (host => '127.0.0.1,127.0.0.1', port => $remote->port . ',' . $other->port, target_session_attrs => 'read-write', pool_size => 2);
	make_pool($local, $remote, server => 'reconnected', options => {%both});
	make_pool($local, $remote, server => 'evicted', options => {%both});
	make_pool($local, $remote, server => 'lifetime', options => { %both, max_lifetime => '2s' });
	my $session = PgpxSession->new($local);
	sub insert { return "SELECT pgpool.exec('$_[0]', 'insert into written values (1)')"; }
	is($session->run(insert($_)) . $session->error, '1', "$_: write is executed by the primary") foreach qw(reconnected lifetime evicted);
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM written'), '3', 'first server is the primary');

	$remote->append_conf('postgresql.conf', 'default_transaction_read_only = on');
	$other->append_conf('postgresql.conf', 'default_transaction_read_only = off');
	$_->reload foreach $remote, $other;
	ok(wait_until($_->[0], 'SHOW default_transaction_read_only', $_->[1]), 'remote servers exchange their roles') foreach [ $remote, 'on' ], [ $other, 'off' ];
	$session->run(insert('reconnected'));
	is($session->sqlstate, '25006', 'reconnected: old primary refuses a write, and the caller receives its SQLSTATE');
	$session->run("SELECT pgpool.reconnect('reconnected')");
	$session->fails(insert('evicted'), '25006', qr/read-only/, 'evicted: another pool receives the error, too');
	is($session->run(insert('evicted')) . $session->error, '1', 'evicted: connection was closed, so the next write is executed by the new primary');
	ok(wait_until($local, "SELECT connects, closed_broken, closed_stale FROM pgpool.stats WHERE server = 'evicted'", '2|1|0'),
		'evicted: connection is closed and replaced without an administrative function');
	is($session->run(insert('reconnected')) . $session->error, '1', 'reconnected: next write after reconnect succeeds');
	ok(wait_until($local, sub { $session->run(insert('lifetime')) }, '1', 20), 'lifetime: write succeeds after max_lifetime');
	is($other->safe_psql('remote_db', 'SELECT count(*) FROM written'), '3', 'writes went to the new primary');

	$session->quit;
	stats_add_up($local);
	check_invariants($local);
	leak_check($local, $remote, $other);
}

done_testing();
