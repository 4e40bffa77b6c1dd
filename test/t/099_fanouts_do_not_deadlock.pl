# Fan-outs over the same pools of one connection each, whatever the order they name
# them in, wait for each other in turn: all get through, and none waits for one that
# waits for it.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $rounds = 100;
my $remote = remote_node('remote');
my $local = local_node('local');
my @orders = ('a,b,c', 'c,b,a', 'b,c,a', 'c,a,b');

make_pool($local, $remote, server => $_, options => { pool_size => 1, checkout_timeout => '20s' }) foreach qw(a b c);

# with a timeout, and without one
foreach my $timeout (-1, 0)
{
	my @sessions = map { PgpxSession->new($local) } @orders;

	foreach my $i (0 .. $#orders)
	{
		$sessions[$i]->run("SET pgpool_ext.checkout_timeout = $timeout; SET statement_timeout = '60s'");
		$sessions[$i]->start(<<"EOT");
SELECT sum(n) FROM generate_series(1, $rounds) AS i,
	LATERAL (SELECT count(DISTINCT pool) AS n FROM pgpool.fanout('{$orders[$i]}', 'select \$1::int', i) AS t(pool text, a int)) AS f;
EOT
	}
	foreach my $i (0 .. $#orders)
	{
		is($sessions[$i]->finish(120) . $sessions[$i]->error, 3 * $rounds, "{$orders[$i]}, timeout $timeout: all get through");
	}
	$_->quit foreach @sessions;
}
is($local->safe_psql('postgres', "SELECT sum(leased), sum(waiters) FROM pgpool.pools"), '0|0', 'nothing is left');
is($local->safe_psql('postgres', "SELECT bool_and(waited > 0) FROM pgpool.stats WHERE server IN ('a')"), 't', 'they did wait for each other');

check_invariants($local);
leak_check($local, $remote);
done_testing();
