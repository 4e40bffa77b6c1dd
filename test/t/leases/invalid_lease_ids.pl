# Invalid lease ids: stale ones, those of other sessions, near and distant numbers. Each
# call fails, the leases of other sessions are not affected, nothing is counted, and
# nothing is left behind.
# PGPX_TEST_GUESSES: number of guesses (default 20000).
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $guesses = $ENV{PGPX_TEST_GUESSES} // 20_000;
my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'three', options => { pool_size => 3 });

my ($holder, $guesser) = (PgpxSession->new($local), PgpxSession->new($local, user => 'app'));
my @leases = map { lease($holder, 'three') } 1 .. 3;
my @pids = map { $holder->run("SELECT * FROM pgpool.query($_, 'SELECT pg_backend_pid()') AS t(a int)") } @leases;
$holder->run("SELECT pgpool.send($leases[1], 'SELECT 42, pg_sleep(0)::text')");

# The guesser had a lease of its own, so its guesses are near valid ids.
my $stats = q{SELECT checkouts, checkins, discards, reclaimed, terminated FROM pgpool.stats WHERE local_user <> 'app'};
my $before = $local->safe_psql('postgres', $stats);
$guesser->run(q{SELECT pgpool.checkout('three') AS own \gset} . "\nSELECT pgpool.checkin(:own);\nSELECT pgpool.checkin(:own)");
is($guesser->sqlstate, '55000', 'second checkin of a lease fails');
my $own = $guesser->run("SELECT :own");
like($own, qr/^\d+$/, 'lease id is a number');

$guesser->run(<<'EOT');
CREATE FUNCTION pg_temp.guess(guesses int, known bigint[]) RETURNS TABLE (what text, outcome text, n bigint) LANGUAGE plpgsql AS $f$
DECLARE
	calls text[] := ARRAY['SELECT pgpool.checkin($1)', 'SELECT pgpool.discard($1)', 'SELECT pgpool.exec($1, ''SELECT 1'')',
		'SELECT a FROM pgpool.query($1, ''SELECT 1'') AS t(a int)', 'SELECT pgpool.send($1, ''SELECT 1'')', 'SELECT pgpool.try_wait($1)',
		'SELECT a FROM pgpool.result($1) AS t(a int)', 'SELECT pgpool.cancel($1)', 'SELECT pgpool.try_wait_any(ARRAY[$1])',
		'SELECT channel FROM pgpool.notifications($1)'];
	call text;
	guess bigint;
BEGIN
	CREATE TEMP TABLE outcomes (what text, outcome text);
	FOR i IN 1 .. guesses LOOP
		call := calls[1 + i % array_length(calls, 1)];
		guess := known[1 + floor(random() * array_length(known, 1))];
		guess := CASE floor(random() * 8)
			WHEN 0 THEN guess
			WHEN 1 THEN guess + floor(random() * 20)::bigint - 10
			WHEN 2 THEN -guess
			WHEN 3 THEN guess # (1::bigint << floor(random() * 64)::int)
			WHEN 4 THEN floor(random() * 100)::bigint
			WHEN 5 THEN -floor(random() * 9.2e18)::bigint - 1
			WHEN 6 THEN 9223372036854775807 - floor(random() * 3)::bigint
			ELSE floor(random() * 9.2e18)::bigint END;
		BEGIN
			EXECUTE call USING guess;
			INSERT INTO outcomes VALUES (call, 'no error with ' || guess);
		EXCEPTION WHEN OTHERS THEN
			IF SQLSTATE NOT IN ('55000', '42501') OR i <= array_length(calls, 1) THEN
				INSERT INTO outcomes VALUES (call, SQLSTATE);
			END IF;
		END;
	END LOOP;
	RETURN QUERY SELECT o.what, o.outcome, count(*) FROM outcomes o WHERE o.outcome NOT IN ('55000', '42501') GROUP BY 1, 2;
END $f$;
EOT
is($guesser->error, '', 'function that guesses is created');
is($guesser->run("SELECT * FROM pg_temp.guess($guesses, ARRAY[$own, " . join(', ', @leases) . '])', 600) . $guesser->error, '', "$guesses guesses fail");
is($guesser->run('SELECT count(DISTINCT what) FROM outcomes'), '10', 'every function is called');

is($local->safe_psql('postgres', $stats), $before, 'leases of the other session are not affected');
is($holder->run("SELECT a FROM pgpool.result($leases[1]) AS t(a int, b text)") . $holder->error, '42', 'statement in flight of the other session is answered');
is(join(' ', map { $holder->run("SELECT * FROM pgpool.query($_, 'SELECT pg_backend_pid()') AS t(a int)") } @leases), "@pids", 'leases have the same remote sessions');

# the right ids in the same session under another role
$holder->run('SET ROLE app');
$holder->fails("SELECT pgpool.exec($leases[0], 'SELECT 1')", '42501', qr/belongs to another user/, 'lease of another user of the same session is refused');
$holder->run('RESET ROLE');
is($holder->run('SELECT pgpool.checkin_all()') . $holder->error, '3', 'leases can be returned');

$_->quit foreach $holder, $guesser;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
