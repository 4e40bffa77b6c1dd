# A result larger than the memory of a session: it spills to disk, the session stays
# small, and the query can be cancelled at any time.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ "shared_buffers = '16MB'", "work_mem = '4MB'" ]);
make_pool($local, $remote, server => 's', options => { pool_size => 4 });
my $session = PgpxSession->new($local);

# 200 MB of 1 kB rows, which is several times the memory that the session may use
my $rows = 200_000;
my $sum = $rows * ($rows + 1) / 2;
my $bytes = 1000 * $rows;
my $large = "select i, repeat(''x'', 1000) from generate_series(1, $rows) as i";

# The peak memory of the session in MB.
sub most_memory
{
	my ($session) = @_;
	my $pid = $session->pid;
	my ($kb) = PostgreSQL::Test::Utils::slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m;

	return $kb / 1024;
}

$session->run("SELECT pgpool.exec('s', 'select 1')");
my $before = most_memory($session);
foreach my $round ('as text', 'in binary where possible')
{
	is($session->run("SELECT count(*), sum(i), sum(length(x)) FROM pgpool.query('s', '$large') AS t(i int, x text)"),
		"$rows|$sum|$bytes", "result is received $round");
	my $grown = most_memory($session) - $before;
	cmp_ok($grown, '<', 64, sprintf('%s: session has grown by %.1f MB', $round, $grown));
}
is($session->run("SELECT count(*), sum(length(x)) FROM pgpool.fanout('{s}', '$large') AS t(pool text, i int, x text)"),
	"$rows|$bytes", 'result is received by fanout');
# a scan of a foreign table returns rows as they arrive, and one that is interrupted by another statement is buffered
SKIP:
{
	skip 'postgres_fdw is not installed', 3 if $local->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}) eq '0';
	my $reader = PgpxSession->new($local);

	$remote->safe_psql('remote_db', "CREATE VIEW public.large AS SELECT i, repeat('x', 1000) AS x FROM generate_series(1, $rows) AS i; GRANT SELECT ON large TO PUBLIC");
	$local->safe_psql('postgres', q{CREATE FOREIGN TABLE large (i int, x text) SERVER s OPTIONS (schema_name 'public')});
	$reader->run('SELECT i FROM large LIMIT 1');
	my $small = most_memory($reader);

	is($reader->run('SELECT count(*), sum(i), sum(length(x)) FROM (SELECT * FROM large OFFSET 0) AS t'),
		"$rows|$sum|$bytes", 'result is received from a foreign table');
	is($reader->run(<<'EOT') . $reader->error, "1\n" . ($rows - 101), 'rest of a scan is buffered');
ALTER FOREIGN TABLE large OPTIONS (ADD fetch_size '2147483647');
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM large WHERE random() >= 0;
MOVE 100 IN c;
SELECT i FROM large LIMIT 1;
MOVE 1 IN c;
CREATE FUNCTION pg_temp.rest() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE c refcursor := 'c'; n bigint;
BEGIN
	MOVE FORWARD ALL IN c;
	GET DIAGNOSTICS n = ROW_COUNT;
	RETURN n;
END $$;
SELECT pg_temp.rest();
COMMIT;
EOT
	my $grown = most_memory($reader) - $small;
	cmp_ok($grown, '<', 32, sprintf('foreign table: session has grown by %.1f MB', $grown));
}
my $lease = lease($session, 's');
$session->run("SELECT pgpool.send($lease, '$large')");
is($session->run("SELECT pgpool.wait($lease, '60 s')"), 't', 'send: first rows arrive before the result is complete');
is($session->run("SELECT count(*), sum(length(x)) FROM pgpool.result($lease) AS t(i int, x text)"),
	"$rows|$bytes", 'send: result is received');
my $grown = most_memory($session) - $before;
cmp_ok($grown, '<', 64, sprintf('fanout and result: session has grown by %.1f MB', $grown));

# like any set-returning function
is($session->run("SELECT i FROM pgpool.query($lease, 'select i from generate_series(1, 100000) as i') AS t(i int) LIMIT 3 OFFSET 5"),
	"6\n7\n8", 'LIMIT and OFFSET apply');
is($session->run(<<"EOT"), "1\n2\n100000\n99999", 'cursor moves forward and back');
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT i FROM pgpool.query($lease, 'select i from generate_series(1, 100000) as i') AS t(i int);
FETCH 2 FROM c;
FETCH LAST FROM c;
FETCH PRIOR FROM c;
COMMIT;
EOT
is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease stays usable after large results');

# cancelled in the middle of the result
my $running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%repeat(%' AND state = 'active' AND pid <> pg_backend_pid()";

# Start the query and cancel it.
sub cancel_during_result
{
	my ($name, $from) = @_;

	$session->start("SELECT count(*) FROM $from");
	ok(wait_until($remote, $running, '1'), "$name: rows are being received");
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	is($session->sqlstate, '57014', "$name: query fails in the middle of the result");
	return;
}

foreach my $from ("pgpool.query('s', '$large') AS t(i int, x text)", "pgpool.fanout('{s}', '$large') AS t(pool text, i int, x text)")
{
	my ($name) = $from =~ /^pgpool.(\w+)/;

	cancel_during_result($name, $from);
	ok(wait_until($remote, $running, '0'), "$name: remote query has ended");
}

# A remote server that waits for its client does not process a cancel. After a cancel, a
# session therefore receives rows of a lease for at most 50 ms. It receives the remaining
# rows at the next use of the lease.
cancel_during_result('query on a lease', "pgpool.query($lease, '$large') AS t(i int, x text)");
is($session->run("SELECT pgpool.exec($lease, 'select 1')"), '1', 'lease is usable after a cancel');
ok(wait_until($remote, $running, '0'), 'remote query has ended at the next use of the lease');
is($session->run("SELECT pgpool.exec('s', 'select 1')"), '1', 'pool works after cancels');
$session->run('SELECT pgpool.checkin_all()');
$session->quit;
ok(wait_until($local, 'SELECT count(*) FROM pg_ls_tmpdir()', '0'), 'no temporary file is left');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
