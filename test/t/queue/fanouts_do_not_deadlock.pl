# Fan-outs over the same pools of one connection each, in different orders, do not
# deadlock: all succeed. If they fill the cap over all pools, one is refused. A connection
# that is lost while a fan-out waits for the next one is replaced.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $rounds = 100;
my $remote = remote_node('remote');
my $local = local_node('local');
my @orders = ('a,b,c', 'c,b,a', 'b,c,a', 'c,a,b');

make_pool($local, $remote, server => $_, options => { pool_size => 1, checkout_timeout => '20s' }) foreach qw(a b c);

# without and with a timeout
foreach my $timeout (-1, 0)
{
	my @sessions = map { PgpxSession->new($local) } @orders;

	foreach my $i (0 .. $#orders)
	{
		$sessions[$i]->run("SET pgpool_ext.checkout_timeout = $timeout; SET statement_timeout = '10min'");
		$sessions[$i]->start(<<"EOT");
SELECT sum(n) FROM generate_series(1, $rounds) AS i,
	LATERAL (SELECT count(DISTINCT pool) AS n FROM pgpool.fanout('{$orders[$i]}', 'select \$1::int', i) AS t(pool text, a int)) AS f;
EOT
	}
	foreach my $i (0 .. $#orders)
	{
		is($sessions[$i]->finish(660) . $sessions[$i]->error, 3 * $rounds, "{$orders[$i]}, timeout $timeout: all fan-outs succeed");
	}
	$_->quit foreach @sessions;
}
is($local->safe_psql('postgres', "SELECT sum(leased), sum(waiters) FROM pgpool.pools"), '0|0', 'no lease and no waiter is left');
is($local->safe_psql('postgres', "SELECT bool_and(waited > 0) FROM pgpool.stats WHERE server IN ('a')"), 't', 'fan-outs have waited for each other');

# --- the connection to "a" is lost while a fan-out waits for "b"
my ($holder, $waiter) = map { PgpxSession->new($local) } 0, 1;
my $lease = lease($holder, 'b');
$waiter->start(q{SELECT string_agg(pool || n, ',' ORDER BY pool) FROM pgpool.fanout('{a,b,c}', 'select 7') AS t(pool text, n int)});
ok(wait_until($local, q{SELECT server FROM pgpool.waiters}, 'b'), 'fan-out waits for its second connection');
my $pid = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.connections WHERE server = 'a'});
is($remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)"), 't', 'remote session of the first connection is ended');
ok(wait_until($local, q{SELECT state FROM pgpool.leases WHERE server = 'a'}, 'broken'), 'first connection is lost');
$holder->run("SELECT pgpool.checkin($lease)");
is($waiter->finish . $waiter->error, 'a7,b7,c7', 'fan-out replaces the connection that was lost during its wait');
$_->quit foreach $holder, $waiter;

# Two slots for all pools: a fan-out that holds one waits for the other as long as the
# holder of the other may return it. The last of those that wait for each other fails
# with 40P01.
my $small = local_node('small', conf => ['pgpool_ext.max_connections = 2', 'pgpool_ext.checkout_timeout = 0', q{deadlock_timeout = '100ms'}]);
make_pool($small, $remote, server => $_, options => { pool_size => 2 }) foreach qw(a b);
my @holders = map { PgpxSession->new($small) } 0, 1;
my @fanouts = map { PgpxSession->new($small) } 0, 1;
my $waiting = q{SELECT string_agg(server, ',' ORDER BY server) FROM pgpool.waiters};
lease($_, 'a') foreach @holders;
foreach my $i (0, 1)
{
	$fanouts[$i]->run(q{SET statement_timeout = '10min'});
	$fanouts[$i]->start(q{SELECT string_agg(pool || n, ',' ORDER BY pool) FROM pgpool.fanout('{a,b}', 'select 7') AS t(pool text, n int)});
	ok(wait_until($small, $waiting, $i == 0 ? 'a' : 'a,a'), 'fan-out waits for its first connection');
}
$holders[0]->run('SELECT pgpool.checkin_all()');
ok(wait_until($small, $waiting, 'a,b'), 'one fan-out has its first connection, and waits for the second');
$holders[1]->run('SELECT pgpool.checkin_all()');
$fanouts[1]->finish(660);
$fanouts[1]->failed('40P01', qr/deadlock detected while waiting for a connection to server "b"\nDETAIL:  Process \d+ waits for a connection of server "b" within pgpool_ext.max_connections; held by processes/,
	'fan-out that completes the deadlock fails with 40P01');
is($fanouts[0]->finish(660) . $fanouts[0]->error, 'a7,b7', 'other fan-out succeeds');
is($small->safe_psql('postgres', q{SELECT string_agg(server || ' ' || deadlocks, ',' ORDER BY server) FROM pgpool.stats}), 'a 0,b 1', 'deadlock is counted');
is($small->safe_psql('postgres', 'SELECT sum(leased), sum(waiters) FROM pgpool.pools'), '0|0', 'no lease and no waiter is left in the small server');
$_->quit foreach @holders, @fanouts;

stats_add_up($small);
check_invariants($small);
check_invariants($local);
leak_check($small);
leak_check($local, $remote);
done_testing();
