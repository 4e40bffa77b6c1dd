# The wait that pgpool.advice predicts for a larger pool is that of a run with this size, within
# the factors that doc/advice.md states.
use strict;
use warnings;

use FindBin;
use IPC::Run;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @factors = slurp_file("$FindBin::Bin/../../doc/advice.md") =~ /mean\s+agrees\s+with\s+runs\s+of\s+that\s+size\s+within\s+a\s+factor\s+of\s+(\d+),[^.]*\s+within\s+(\d+)\./;
my $folder = PostgreSQL::Test::Utils::tempdir();
my $remote = remote_node('remote');
my $local = local_node('local');

# 60 sessions hold a connection for 10 ms and then do something else for 0 to 80 ms
append_to_file("$folder/calls.sql", <<'EOT');
SELECT pgpool.exec('shard', 'select pg_sleep(0.01)');
\set pause random(0, 80)
\sleep :pause ms
EOT
make_pool($local, $remote, server => 'shard', options => { pool_size => 4 });

foreach my $step (1, 2)
{
	calls();
	my ($evidence, $suggestion) = split /\|/, $local->safe_psql('postgres', 'SELECT evidence, suggestion FROM pgpool.advice()');
	my ($size, @predicted) = ($evidence // '') =~ /With pool_size (\d+) they would wait for ([\d.]+) ms on average, and 1 % for more than ([\d.]+) ms/;

	ok($size, "step $step: advice predicts a wait") or diag($evidence // 'no advice'), last;
	$local->safe_psql('postgres', $suggestion);
	ok(wait_until($local, 'SELECT pool_size FROM pgpool.pools', $size), 'suggestion takes effect');
	$local->safe_psql('postgres', "SELECT pgpool.prewarm('shard', $size)");
	calls();
	my @measured = measured();
	diag("pool_size $size: predicted mean $predicted[0] ms, p99 $predicted[1] ms; measured $measured[0] ms, $measured[1] ms");
	foreach (0, 1)
	{
		my ($what, $factor) = ((qw(mean p99))[$_], $factors[$_]);

		cmp_ok($measured[$_], '<', $predicted[$_] * $factor, "pool_size $size: $what is at most $factor times the predicted one");
		cmp_ok($measured[$_], '>', $predicted[$_] / $factor, "pool_size $size: $what is at least the predicted one divided by $factor");
	}
}

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Run them for longer than two samples, and wait until the last one has been written.
sub calls
{
	$local->safe_psql('postgres', 'SELECT pgpool.reset_stats()');
	my $out;
	ok(IPC::Run::run([ 'pgbench', '-n', '-c', 60, '-j', 2, '-T', 22, '-f', "$folder/calls.sql", $local->connstr('postgres') ], '>', \$out, '2>&1'), 'calls succeed')
	  or diag($out);
	my $end = $local->safe_psql('postgres', 'SELECT clock_timestamp()');
	ok(wait_until($local, "SELECT max(sampled_at) > '$end' FROM pgpool.history"), 'last sample is complete');
	return;
}

# Mean and 99th percentile of the waits of all checkouts, in ms.
sub measured
{
	return split /\|/, $local->safe_psql('postgres', <<'EOT');
SELECT wait_time / (hits + waited), (
	SELECT 2 ^ (n - 1) * (1 - (so_far - 0.99 * (hits + waited)) / waits / 2) / 1000
	FROM (SELECT n, waits, hits + sum(waits) OVER (ORDER BY n) AS so_far FROM unnest(wait_histogram) WITH ORDINALITY AS u(waits, n)) AS h
	WHERE so_far >= 0.99 * (hits + waited) AND waits > 0 ORDER BY n LIMIT 1)
FROM pgpool.stats
EOT
}
