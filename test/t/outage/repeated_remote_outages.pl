# The remote server ends in the middle of statements: each session receives one error, and
# all slots are free. No session receives another one's answer when the remote server
# crashes. (How soon an outage is reported: see timing/outage.)
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ['restart_after_crash = on']);
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my $row = 'AS t(a int)';
my @sessions = map { PgpxSession->new($local) } 1 .. 10;

make_pool($local, $remote, server => 'busy', options => { pool_size => 10, retry_max => '200 ms' });

# --- ten statements run, on leases and in calls
foreach my $session (@sessions[ 0 .. 4 ])
{
	my $lease = lease($session, 'busy');
	$session->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')");
}
$_->start(q{SELECT pgpool.exec('busy', 'select pg_sleep(300)')}) foreach @sessions[ 5 .. 9 ];
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'}, '10'),
	'in flight: ten statements run');
$remote->stop('immediate');
foreach my $n (0 .. 9)
{
	$sessions[$n]->finish(30);
	$sessions[$n]->failed('08006', qr/connection to server "busy" was lost/, 'in flight: ' . ($n < 5 ? 'a lease' : 'a call') . ' reports the loss');
}
ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'busy'}, 5), 'in flight: slots of the calls are free');
is($local->safe_psql('postgres', q{SELECT leased, total, errors FROM pgpool.pools JOIN pgpool.stats USING (pool_id) WHERE pools.server = 'busy'}),
	'5|5|0', 'in flight: remaining slots are those of unreturned leases');
is($sessions[$_]->run('SELECT pgpool.checkin_all()') . $sessions[$_]->error, '1', 'in flight: lost lease is returned without another error') foreach 0 .. 4;
ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'busy'}, 0), 'in flight: all slots are free');
check_invariants($local, 'in flight: invariants hold');
$remote->start;
ok(wait_until($local, sub { $sessions[0]->run(q{SELECT pgpool.exec('busy', 'select 1')}) }, 1), 'in flight: pool works after the restart');
foreach my $session (@sessions[ 0 .. 9 ])
{
	is($session->run("SELECT a FROM pgpool.query('busy', 'select 7') $row") . $session->error, '7', 'in flight: session works without another error');
}

# --- one remote backend is killed while ten sessions make queries with a random number
# in each
$local->safe_psql('postgres', <<'EOT');
CREATE UNLOGGED TABLE calls (worker int, n int, state text);
CREATE TABLE stop ();
CREATE PROCEDURE ask(me int) LANGUAGE plpgsql AS $$
DECLARE
	nonce int; got int[]; said text;
BEGIN
	FOR n IN 1 .. 1000000 LOOP
		EXIT WHEN to_regclass('stop') IS NULL;
		nonce := (random() * 1e9)::int; said := '00000';
		BEGIN
			SELECT array_agg(a) INTO got FROM pgpool.query('busy', 'select $1::int + g from generate_series(1, 3) g', nonce) AS t(a int);
			IF got IS DISTINCT FROM array[nonce + 1, nonce + 2, nonce + 3] THEN said := 'wrong'; END IF;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS said = RETURNED_SQLSTATE;
		END;
		INSERT INTO calls VALUES (me, n, said);
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
kill 'KILL', $victim;
ok(wait_until($local, q{SELECT count(*) > 0 FROM calls WHERE state <> '00000'}, 't', 30), 'killed: sessions receive errors');
$asleep->finish(60);
is($asleep->sqlstate, '08006', 'killed: long query is reported as lost');
ok( wait_until($local, <<'EOT', '10', 90), 'killed: queries of each session succeed again');
SELECT count(*) FROM (SELECT FROM calls GROUP BY worker
	HAVING max(n) FILTER (WHERE state = '00000') > coalesce(max(n) FILTER (WHERE state <> '00000'), 0) + 20) c
EOT
$local->safe_psql('postgres', 'DROP TABLE stop');
$_->finish(60) foreach @sessions[ 0 .. 9 ];
is($local->safe_psql('postgres', q{SELECT count(*) FROM calls WHERE state = 'wrong'}), '0', 'killed: no answer was wrong');
is($local->safe_psql('postgres', q{SELECT string_agg(DISTINCT state, ' ') FROM calls WHERE state NOT IN ('00000', '08006', '08001')}), '',
	'killed: no query failed with another error');

$_->quit foreach @sessions, $asleep;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
