# The slot of a lease is free within a second after its holder or the lease was terminated, and after
# lease_timeout: idle, or during a statement.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my ($other, $next) = map { PgpxSession->new($local) } 1 .. 2;

make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
make_pool($local, $remote, server => 'timed', options => { pool_size => 1, lease_timeout => '1s' });

foreach my $how (qw(pg_terminate_backend pgpool.terminate lease_timeout))
{
	my $server = $how eq 'lease_timeout' ? 'timed' : 'one';

	foreach my $in_query (0, 1)
	{
		my $what = $how . ($in_query ? ', in a query' : ', idle');
		my $holder = PgpxSession->new($local);
		my $lease = lease($holder, $server);
		my $began = $other->run("SELECT leased_at + '1 s' FROM pgpool.leases WHERE lease = $lease");

		$holder->run("SELECT pgpool.exec($lease, 'select 1')");
		$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')") if $in_query;
		ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query = 'select pg_sleep(300)' AND state = 'active'}, 1), "$what: statement runs") if $in_query;
		$next->start("SELECT pgpool.checkout('$server', '1 min')");
		if ($server eq 'one')
		{
			ok(wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = '$server'", 1), "$what: next session waits");
			$began = $other->run('SELECT clock_timestamp() FROM ' . ($how =~ /backend/ ? "$how(" . $holder->pid . ')' : "$how($lease)"));
		}
		my $granted = $next->finish;
		like($granted, qr/^\d+$/, "$what: next session is granted a connection");
		cmp_ok($other->run("SELECT extract(epoch FROM leased_at - '$began') FROM pgpool.leases WHERE lease = $granted"), '<', 1.5, "$what: slot is free within a second");
		$next->run('SELECT pgpool.checkin_all()');
		$holder->finish if $in_query;
		$holder->quit;
	}
}

$_->quit foreach $other, $next;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
