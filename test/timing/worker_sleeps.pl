# The worker sleeps while nothing happens: with free connections, with leases, and while sessions
# wait because of a cap. Sessions find answers by busy polling.
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

# --- busy polling
SKIP:
{
	skip 'a machine with a single processor does not poll', 1 if 2 > grep { /^processor\s*:/ } split /\n/, slurp_file('/proc/cpuinfo');
	make_pool($local, $remote, server => 'polled', options => { pool_size => 1 });
	ok(wait_until($local, sub {
		$sessions[0]->run(q{SET pgpool_ext.busy_poll = 1000; SELECT pgpool.exec('polled', 'select 1') FROM generate_series(1, 50)});
		return $local->safe_psql('postgres', q{SELECT polled > 0 FROM pgpool.stats WHERE server = 'polled'});
	}), 'answers are found by polling');
}

if (!over_tls())
{
	my $few = local_node('few', conf => ['max_files_per_process = 250']);

	make_pool($few, $remote, server => 'turn', options => { pool_size => 1, reset => 'never' });
	my $session = PgpxSession->new($few);
	$session->run(qq{CREATE SERVER turn$_ FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'turn')}) foreach 1 .. 80;
	my $turns = sub { return $session->run("SELECT count(pgpool.exec('turn' || i, 'select 1')) FROM generate_series(1, $_[0]), generate_series(1, 80) AS i"); };
	is($turns->(2), '160', 'two calls on each of 80 pools in turn return their results');
	my $worker = worker_pid($few);
	my $wakes = sub { return (slurp_file("/proc/$worker/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m)[0]; };
	my $before = $wakes->();
	$turns->(25);
	cmp_ok($wakes->() - $before, '<', 1500, 'two thousand calls on these pools wake the worker fewer than 1500 times');
	$session->quit;
	check_invariants($few);
	leak_check($few);
}

# --- the relay of TLS connections
my $secret = remote_node('secret', tls => 1);

make_pool($local, $secret, server => 'relayed', options => { sslmode => 'require', pool_size => 2 });
my $lease = lease($sessions[0], 'relayed');
$sessions[0]->run("SELECT pgpool.exec($lease, 'select 1')");
worker_sleeps('idle lease on a relayed connection');
$sessions[0]->run("SELECT pgpool.send($lease, 'select repeat(''x'', 1000) from generate_series(1, 100000)')");
ok(wait_until($local, sub { $sessions[0]->run("SELECT pgpool.try_wait($lease)") }, 't'), 'rows have arrived');
worker_sleeps('100 MB of unread rows');
$sessions[0]->run('SELECT pgpool.checkin_all()');
$_->quit foreach @sessions, $app;

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
