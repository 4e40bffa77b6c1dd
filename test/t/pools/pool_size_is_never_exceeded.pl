# 200 sessions share 8 connections. Every answer is correct, and the remote server never
# has a ninth session.
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

# the remote server refuses a ninth session, which the pool would count
$remote->safe_psql('postgres', 'ALTER ROLE remote_app CONNECTION LIMIT 8');
make_pool($local, $remote, server => 'shard1',
	options => { pool_size => 8, checkout_timeout => '120s', connect_timeout => '120s' });

# Each query has a number of its own, so that the answer to another query raises an
# error.
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
is($bench->result(0), 0, 'pgbench succeeds') or diag($err);
like($out, qr/number of transactions actually processed: $all\/$all/, 'all transactions are done');
unlike($out, qr/failed transactions: [1-9]/, 'no transaction failed');
cmp_ok($most, '<=', 8, "remote server had $most sessions at most, in $samples samples");
cmp_ok($most, '>=', 2, 'remote server had more than one session');
is($local->safe_psql('postgres',
		'SELECT checkouts, checkins, statements, rows, errors, connects_failed FROM pgpool.stats'),
	"$all|$all|$all|$all|0|0", 'each call is counted once, and no connection attempt was refused');
is($local->safe_psql('postgres', 'SELECT waited - granted, timeouts, cancelled, failed FROM pgpool.stats'),
	'0|0|0|0', 'every waiter was granted a connection');
is($local->safe_psql('postgres', 'SELECT max(cumulative) = (SELECT granted FROM pgpool.stats) FROM pgpool.wait_histogram'),
	't', 'histogram contains every waiter');
cmp_ok($local->safe_psql('postgres', 'SELECT waited FROM pgpool.stats'), '>', 0, 'some sessions had to wait');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
