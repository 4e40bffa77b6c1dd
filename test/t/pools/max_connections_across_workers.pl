# Slots under pgpool_ext.max_connections are granted by the age of waiters also between
# pools of different workers: a busy pool of one worker does not starve a pool of
# another.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => [ 'pgpool_ext.workers = 2', 'pgpool_ext.max_connections = 2' ]);
make_pool($local, $remote, server => $_, options => { pool_size => 2, checkout_timeout => '60 s' }) foreach qw(one two);

my $first = PgpxSession->new($local);
is($first->run("SELECT pgpool.exec('$_', 'SELECT 1')"), '1', "pool $_ works") foreach qw(one two);
is($local->safe_psql('postgres', "SELECT count(DISTINCT worker) FROM pgpool.pools WHERE server IN ('one', 'two')"), '2', 'pools are served by different workers');

my @busy = map { PgpxSession->new($local) } 1 .. 4;
my $forever = q{SELECT pgpool.exec('two', 'SELECT pg_sleep(0.002)') FROM generate_series(1, 1000000)};
$_->start($forever) foreach @busy;
ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'two'", '2'), 'busy pool has all connections');

# for each call the busy pool must close a connection, and open it again afterwards
foreach my $round (1 .. 10)
{
	is($first->run(q{SELECT pgpool.exec('one', 'SELECT 1')}), '1', 'other pool is granted a slot') or diag($first->error);
	ok(wait_until($local, "SELECT total FROM pgpool.pools WHERE server = 'two'", '2'), 'busy pool is granted the slot back');
}
my $waited = $local->safe_psql('postgres', "SELECT max_wait_time FROM pgpool.stats WHERE server = 'one'");
my $closed = $local->safe_psql('postgres', "SELECT closed_evicted FROM pgpool.stats WHERE server = 'two'");
note "longest wait $waited ms; $closed connections of the busy pool were evicted";
cmp_ok($closed, '<=', 2 * 11, 'at most two connections of the busy pool are evicted each time');

$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $_->pid . ')'), $_->finish(30) foreach @busy;
$_->quit foreach @busy, $first;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
