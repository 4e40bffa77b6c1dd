# 200 sessions share 8 connections: every answer is the right one, and the remote
# never sees a ninth session.
use strict;
use warnings;

use IPC::Run;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $clients = 200;
my $each = 25;
my $remote = remote_node('remote');
my $local = local_node('local', conf => ["max_connections = $clients", 'superuser_reserved_connections = 0',
	'max_connections = 220']);

# the remote would refuse a ninth session, and the pool would count that
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 8');
make_pool($local, $remote, server => 'shard1',
	options => { pool_size => 8, checkout_timeout => '120s' });

# A number of its own in each question: an answer to somebody else's is an error.
my $script = PostgreSQL::Test::Utils::tempdir . '/query.sql';
append_to_file($script, <<'EOT');
\set n random(1, 1000000000)
SELECT 1 / (a = :n)::int FROM pgpool.query('shard1', 'select $1::int', :n) AS t(a int);
EOT

my ($out, $err) = ('', '');
my $bench = IPC::Run::start(
	[
		'pgbench', '-n', '-c', $clients, '-j', 2, '-t', $each, '-f', $script,
		$local->connstr('postgres')
	],
	'>', \$out, '2>', \$err);
my $watch = PgpxSession->new($remote);
my ($samples, $most) = (0, 0);
while ($bench->pumpable)
{
	my $now = $watch->run("SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app'");

	$samples++;
	$most = $now if $now > $most;
	$bench->pump_nb;
	usleep(10_000);
}
$bench->finish;

my $all = $clients * $each;
is($bench->result(0), 0, 'pgbench ends well') or diag($err);
like($out, qr/number of transactions actually processed: $all\/$all/, 'all transactions are done');
unlike($out, qr/failed transactions: [1-9]/, 'none failed');
cmp_ok($most, '<=', 8, "the remote had $most sessions at most, in $samples looks");
cmp_ok($most, '>=', 2, 'and more than one');
is($local->safe_psql('postgres',
		'SELECT checkouts, checkins, statements, rows, errors, connects_failed FROM pgpool.stats'),
	"$all|$all|$all|$all|0|0", 'each is counted once, and no connect was refused');
is($local->safe_psql('postgres', 'SELECT waited - granted, timeouts, cancelled, failed FROM pgpool.stats'),
	'0|0|0|0', 'everyone who waited was served');
is($local->safe_psql('postgres', 'SELECT max(cumulative) = (SELECT granted FROM pgpool.stats) FROM pgpool.wait_histogram'),
	't', 'and is in the histogram');
cmp_ok($local->safe_psql('postgres', 'SELECT waited FROM pgpool.stats'), '>', 0, 'some did wait');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
