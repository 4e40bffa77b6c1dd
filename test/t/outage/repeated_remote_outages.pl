# Outages of the remote server with the default pauses between connection attempts: how
# soon a checkout reports the outage and how soon one succeeds again; sessions in the
# middle of a statement receive one error each; no session receives another one's answer
# when the remote server crashes.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['restart_after_crash = on']);
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my $row = 'AS t(a int)';
my @sessions = map { PgpxSession->new($local) } 1 .. 10;

make_pool($local, $remote, server => 'idle');
make_pool($local, $remote, server => 'busy', options => { pool_size => 10 });
is($local->safe_psql('postgres', q{SELECT current_setting('pgpool_ext.default_retry_max', true), option_value IS NULL FROM pg_foreign_server LEFT JOIN LATERAL pg_options_to_table(srvoptions) ON option_name ~ 'retry' WHERE srvname = 'idle'}),
	'|t', 'pauses between connection attempts have their defaults');

# by the server's clock: the result and the duration of a checkout, and the time until
# one succeeds
$local->safe_psql('postgres', <<'EOT');
CREATE FUNCTION try(server text, OUT state text, OUT detail text, OUT took float8) LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	state := '00000';
	BEGIN
		PERFORM pgpool.checkin(pgpool.checkout(server, '8 s'));
	EXCEPTION WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL;
	END;
	took := extract(epoch FROM clock_timestamp() - began);
END $$;
CREATE FUNCTION works_after(server text, since timestamptz) RETURNS float8 LANGUAGE plpgsql AS $$
BEGIN
	WHILE (SELECT state FROM try(server)) <> '00000' LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN extract(epoch FROM clock_timestamp() - since);
END $$;
EOT

sub now { return $local->safe_psql('postgres', 'SELECT clock_timestamp()'); }

# --- the pool is idle when the remote server stops
foreach my $mode (qw(fast immediate))
{
	is($sessions[0]->run("SELECT pgpool.exec('idle', 'select 1')") . $sessions[0]->error, '1', "$mode: pool has an idle connection");
	$remote->stop($mode);
	my $delay = delay_begin();
	my ($state, $detail, $took) = split /\|/, $sessions[0]->run(q{SELECT * FROM try('idle')});
	$delay = delay_end($delay);
	is($state, '08001', "$mode: checkout reports the outage");
	like($detail, qr/refused|shutting down|terminating|closed the connection/, "$mode: checkout reports the reason");
	cmp_ok($took, '<', 1 + $delay, "$mode: error follows within a second ($took s)");
	$remote->start;
	my $back = now();
	$delay = delay_begin();
	$took = $sessions[0]->run("SELECT works_after('idle', '$back')");
	$delay = delay_end($delay);
	cmp_ok($took, '<=', 2 + $delay, "$mode: first checkout succeeds within two seconds of the restart ($took s)");
}

# --- ten statements run, on leases and in calls
foreach my $session (@sessions[ 0 .. 4 ])
{
	my $lease = lease($session, 'busy');
	$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
}
$_->start(q{SELECT pgpool.exec('busy', 'select pg_sleep(300)')}) foreach @sessions[ 5 .. 9 ];
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'}, '10'),
	'in flight: ten statements run');
my $start = log_clock($local);
my $delay = delay_begin();
$remote->stop('immediate');
foreach my $n (0 .. 9)
{
	$sessions[$n]->finish(30);
	$sessions[$n]->failed('08006', qr/connection to server "busy" was lost/, 'in flight: ' . ($n < 5 ? 'a lease' : 'a call') . ' reports the loss');
}
my @closed;
ok(wait_until($local, sub { @closed = log_times($local, 'closed connection \d+ to server "busy"'); @closed >= 5 ? 1 : 0 }, 1, 30),
	'in flight: slots of the calls are free');
cmp_ok($closed[4] - $start, '<', 1 + delay_end($delay), 'in flight: slots are free within a second');
is($local->safe_psql('postgres', q{SELECT leased, total, errors FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'busy'}),
	'5|5|0', 'in flight: remaining slots are those of unreturned leases');
$start = log_clock($local);
$delay = delay_begin();
is($sessions[$_]->run('SELECT pgpool.checkin_all()') . $sessions[$_]->error, '1', 'in flight: lost lease is returned without another error') foreach 0 .. 4;
ok(wait_until($local, sub { @closed = log_times($local, 'closed connection \d+ to server "busy"'); scalar @closed }, 10, 30),
	'in flight: all slots are free');
cmp_ok($closed[9] - $start, '<', 1 + delay_end($delay), 'in flight: remaining slots are free within a second');
check_invariants($local, 'in flight: invariants hold');
$remote->start;
ok(wait_until($local, q{SELECT state FROM try('busy')}, '00000', 30), 'in flight: pool works after the restart');
foreach my $session (@sessions[ 0 .. 9 ])
{
	is($session->run("SELECT a FROM pgpool.query('busy', 'select 7') $row") . $session->error, '7', 'in flight: session works without another error');
}

# --- one remote backend is killed while ten sessions make queries with a random number
# in each
$local->safe_psql('postgres', <<'EOT');
CREATE UNLOGGED TABLE calls (worker int, n int, state text, began float8);
CREATE TABLE stop ();
CREATE PROCEDURE ask(me int) LANGUAGE plpgsql AS $$
DECLARE
	nonce int; got int[]; said text; began float8;
BEGIN
	FOR n IN 1 .. 1000000 LOOP
		EXIT WHEN to_regclass('stop') IS NULL;
		nonce := (random() * 1e9)::int; said := '00000';
		began := extract(epoch FROM (clock_timestamp() AT TIME ZONE current_setting('log_timezone'))::time);
		BEGIN
			SELECT array_agg(a) INTO got FROM pgpool.query('busy', 'select $1::int + g from generate_series(1, 3) g', nonce) AS t(a int);
			IF got IS DISTINCT FROM array[nonce + 1, nonce + 2, nonce + 3] THEN said := 'wrong'; END IF;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS said = RETURNED_SQLSTATE;
		END;
		INSERT INTO calls VALUES (me, n, said, began);
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
EOT
$sessions[$_]->start("CALL ask($_)") foreach 0 .. 9;
ok(wait_until($local, q{SELECT count(DISTINCT worker) = 10 AND count(*) > 200 FROM calls}, 't', 60), 'killed: ten sessions make queries');
my $asleep = PgpxSession->new($local);
$asleep->start(q{SELECT a FROM pgpool.query('busy', 'select pg_sleep(600)::text') AS t(a text)});
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'select pg_sleep(600)::text'}, '1'), 'killed: one session executes a long query');
my $victim = $local->safe_psql('postgres', q{SELECT max(remote_pid) FROM pgpool.connections WHERE server = 'busy'});
$delay = delay_begin();
kill 'KILL', $victim;
ok(wait_until($local, q{SELECT count(*) > 0 FROM calls WHERE state <> '00000'}, 't', 30), 'killed: sessions receive errors');
$asleep->finish(60);
is($asleep->sqlstate, '08006', 'killed: long query is reported as lost');
ok( wait_until($local, <<'EOT', '10', 90), 'killed: queries of each session succeed again');
SELECT count(*) FROM (SELECT FROM calls GROUP BY worker
	HAVING max(n) FILTER (WHERE state = '00000') > coalesce(max(n) FILTER (WHERE state <> '00000'), 0) + 20) c
EOT
$delay = delay_end($delay, 1);
$local->safe_psql('postgres', 'DROP TABLE stop');
$_->finish(60) foreach @sessions[ 0 .. 9 ];
is($local->safe_psql('postgres', q{SELECT count(*) FROM calls WHERE state = 'wrong'}), '0', 'killed: no answer was wrong');
is($local->safe_psql('postgres', q{SELECT string_agg(DISTINCT state, ' ') FROM calls WHERE state NOT IN ('00000', '08006', '08001')}), '',
	'killed: no query failed with another error');

# The remote server ends its sessions one after the other, so a call can lose a connection
# that was still there when it began. Over TLS a session notices the end of a connection
# only after the worker has. A session that hands over a connection can lose its processor
# between the test of the socket and the send.
my @ended = log_times($remote, 'all server processes terminated; reinitializing');
my $since = over_tls() ? (log_times($local, 'closed connection \d+ to server "busy"'))[-1] : $ended[-1];
my $lost = "FROM calls WHERE state = '08006' AND began > $since + 0.002 + $delay";
is($local->safe_psql('postgres', "SELECT count(*) $lost"), '0', 'killed: no call begins with a lost connection')
  or diag($local->safe_psql('postgres', "SELECT string_agg(worker || ' ' || n || ' ' || began - $since, ', ' ORDER BY worker, n) $lost"));

$_->quit foreach @sessions, $asleep;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
