# The worker sleeps while nothing happens: with free connections, with leases, and while sessions
# wait because of a cap.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my @sessions = map { PgpxSession->new($local) } 1 .. 2;

sub ticks
{
	my ($pid) = @_;
	my @stat = split / /, (slurp_file("/proc/$pid/stat") =~ /\) (.*)/)[0];

	return $stat[11] + $stat[12];
}

# Assert that the worker uses almost no CPU in a second without activity.
sub worker_sleeps
{
	my ($what) = @_;
	my $worker = worker_pid($local);
	my $before = ticks($worker);

	$local->safe_psql('postgres', 'SELECT pg_sleep(1)');
	return cmp_ok(ticks($worker) - $before, '<', 20, "$what: worker sleeps");
}

make_pool($local, $remote, server => 'warm', options => { pool_size => 5, min_size => 3 });
is($sessions[0]->run("SELECT pgpool.exec('warm', 'select 1')"), '1', 'warm: call succeeds');
ok(wait_until($local, "SELECT total, idle FROM pgpool.pools WHERE server = 'warm'", '3|3'), 'warm: min_size connections are open');
worker_sleeps('min_size connections');
$local->safe_psql('postgres', "SELECT pgpool.reconnect('warm')");
worker_sleeps('reconnect');
terminate($local, worker_pid($local));
ok(wait_until($local, "SELECT total, idle FROM pgpool.pools WHERE server = 'warm'", '3|3'), 'warm: connections are open again');
worker_sleeps('restart of the worker');
$local->safe_psql('postgres', q{ALTER SERVER warm OPTIONS (ADD application_name 'changed')});
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'changed'}, '3'), 'warm: connections have the new options');
worker_sleeps('change of the conninfo');

make_pool($local, $remote, server => 'ready', options => { pool_size => 5, min_idle => 2 });
lease($sessions[0], 'ready');
ok(wait_until($local, "SELECT leased, idle FROM pgpool.pools WHERE server = 'ready'", '1|2'), 'ready: free connections are opened');
worker_sleeps('min_idle connections');
$sessions[0]->run('SELECT pgpool.checkin_all()');

make_pool($local, $remote, server => 'zero', options => { pool_size => 1, max_overflow => 1, overflow_ttl => 0 });
lease($_, 'zero') foreach @sessions;
worker_sleeps('leases above pool_size');
$_->run('SELECT pgpool.checkin_all()') foreach @sessions;

make_pool($local, $remote, server => 'capped', options => { pool_size => 1, max_server_connections => 1 });
lease($sessions[0], 'capped');
my $app = PgpxSession->new($local, user => 'app');
$app->start("SELECT pgpool.checkout('capped', '10 min')");
ok(wait_until($local, 'SELECT reason FROM pgpool.waiters', 'server_cap'), 'capped: another user waits');
worker_sleeps('wait for a cap');
$sessions[0]->run('SELECT pgpool.checkin_all()');
$app->finish;
$_->quit foreach @sessions, $app;

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
