# The commit after a scan that ends early receives the rest of a batch for at most 50 ms, and so
# does a rollback inside savepoints for its answer. If all of it arrives, the connection is kept.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my @servers = qw(one two);

$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE SCHEMA app;
CREATE TABLE app.a AS SELECT i AS id, 0 AS v FROM generate_series(1, 10) AS i;
CREATE TABLE app.big AS SELECT i AS id, repeat('x', 100) AS filler FROM generate_series(1, 200000) AS i;
EOT
foreach my $server (@servers)
{
	make_pool($local, $remote, server => $server, options => { pool_size => 1 });
	$local->safe_psql('postgres', <<"EOT");
CREATE SCHEMA $server;
CREATE FOREIGN TABLE $server.a (id int, v int) SERVER $server OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE $server.big (id int, filler text) SERVER $server OPTIONS (schema_name 'app');
EOT
}
my $session = PgpxSession->new($local);
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE app.wide (id int, filler text);
INSERT INTO app.wide SELECT i, repeat('x', 20000) FROM generate_series(1, 2000) AS i;
EOT
$session->run("CREATE FOREIGN TABLE $_.wide (id int, filler text) SERVER $_ OPTIONS (schema_name 'app', async_capable 'true'); ALTER FOREIGN TABLE $_.big OPTIONS (ADD async_capable 'true')") foreach @servers;
my $remote_pids = "SELECT string_agg(remote_pid::text, ' ' ORDER BY server) FROM pgpool.connections WHERE server IN ('one', 'two')";
my @early = (
	[ 'LIMIT above a local filter', 'SELECT count(*) FROM (SELECT filler FROM one.big WHERE random() >= 0 LIMIT %d) AS x', 1, 100, 101, 9000 ],
	[ 'LIMIT, wide rows', 'SELECT count(*) FROM (SELECT filler FROM one.wide WHERE random() >= 0 LIMIT %d) AS x', 1, 101, 501 ],
	[ 'cursor that is closed early', 'BEGIN; DECLARE c CURSOR FOR SELECT * FROM one.big; MOVE %d FROM c; CLOSE c; COMMIT', 1, 9000 ],
	[ 'EXISTS', 'SELECT count(*) FROM generate_series(1, %d) AS g WHERE EXISTS (SELECT FROM one.wide WHERE id > g AND random() >= 0)', 1, 3 ],
	[ 'nested loop', 'SELECT count(*) FROM (SELECT FROM one.a, two.wide WHERE random() >= 0 LIMIT %d) AS x', 1, 3000 ],
	[ 'lateral LIMIT', 'SELECT count(*) FROM generate_series(1, %d) AS g, LATERAL (SELECT FROM one.big WHERE id > g AND random() >= 0 LIMIT 2) AS x', 1, 20 ],
	[ 'Async Append', 'SELECT count(*) FROM (SELECT * FROM one.wide WHERE random() >= 0 UNION ALL SELECT * FROM two.wide WHERE random() >= 0 LIMIT %d) AS x', 1, 500 ],
	[ 'Append on one server', 'SELECT count(*) FROM (SELECT * FROM one.wide WHERE random() >= 0 UNION ALL SELECT * FROM one.big WHERE random() >= 0 LIMIT %d) AS x', 1, 500 ]);
foreach my $case (@early)
{
	my ($name, $sql, @numbers) = @$case;

	foreach my $n (@numbers)
	{
		$session->run('SELECT FROM one.a, two.a LIMIT 1');
		my $before = $local->safe_psql('postgres', $remote_pids);
		$session->run(sprintf $sql, $n);
		is($session->error, '', "$name, $n: statement succeeds");
		$session->run('SELECT FROM one.a, two.a LIMIT 1');
		is($local->safe_psql('postgres', $remote_pids) . $session->error, $before, "$name, $n: connections are kept");
	}
}

my $before = $local->safe_psql('postgres', $remote_pids);
$session->run("BEGIN; UPDATE one.a SET v = 5 WHERE id = 3; SAVEPOINT s; UPDATE one.a SET v = 5 WHERE id = 4; ROLLBACK") foreach 1 .. 20;
is($local->safe_psql('postgres', $remote_pids) . $session->error, $before, 'rollback inside savepoints keeps the connections');

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
