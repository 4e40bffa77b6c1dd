# max_uses and max_lifetime: an expired connection is replaced while it is idle or at
# checkin, never during a lease. Connections of equal age do not expire at the same
# time.
use strict;
use warnings;

use List::Util qw(max min);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the timers of the worker do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.log_connections = on']);
my $session = PgpxSession->new($local);
my $row = 'AS t(pid int)';

sub becomes
{
	my ($server, $columns, $expected, $name) = @_;

	return ok(
		wait_until($local,
			"SELECT $columns FROM pgpool.pools JOIN pgpool.stats USING (pool_id, server) WHERE server = '$server'", $expected),
		"$server: $name");
}

# times in seconds at which connections of servers were opened or closed, according to
# the log
sub log_of
{
	my ($what, $servers) = @_;
	my @times;

	foreach (split /\n/, slurp_file($local->logfile))
	{
		next unless /(\d\d):(\d\d):(\d\d\.\d+) .*pgpool_ext $what .*server "($servers)"/;
		push @times, [ $4, $1 * 3600 + $2 * 60 + $3 ];
	}
	return @times;
}

# --- without other activity: the worker is not woken by a checkin without a reset, and
# must have a timer for the expiry
make_pool($local, $remote, server => 'unused', options => { pool_size => 1, max_lifetime => '1s', idle_timeout => '1h' });
$session->run('SELECT pgpool.checkin(' . lease($session, 'unused') . ')');
becomes('unused', 'closed_lifetime, total', '1|0', 'idle connection closes at max_lifetime');

# --- 20 connections of equal age must not expire together (evaluated at the end)
make_pool($local, $remote, server => 'twins', options => { pool_size => 20, max_lifetime => '40s' });
my $delay = delay_begin();
is($session->run("SELECT pgpool.prewarm('twins', 20, '60 s')"), '20', 'twins: 20 connections are opened');

# the same with connections that are used all the time, which expire at checkin
make_pool($local, $remote, server => 'busy', options => { pool_size => 20, max_lifetime => '40s' });
my @busy = map { PgpxSession->new($local) } 1 .. 20;
is($session->run("SELECT pgpool.prewarm('busy', 20, '60 s')"), '20', 'busy: 20 connections are opened');
my $late = delay_end($delay);
lease($_, 'busy') foreach @busy;
$delay = delay_begin();
$_->start(<<'EOT') foreach @busy;
DO $$
BEGIN
	PERFORM pgpool.checkin_all();
	FOR i IN 1 .. 1000 LOOP
		PERFORM pgpool.checkin(pgpool.checkout('busy'));
		PERFORM pg_sleep(0.1);
		EXIT WHEN (SELECT closed_lifetime >= 20 FROM pgpool.stats WHERE server = 'busy');
	END LOOP;
END $$
EOT

# --- max_uses
make_pool($local, $remote, server => 'used', options => { pool_size => 1, max_uses => 3 });
my @pids = map { $session->run("SELECT pid FROM pgpool.query('used', 'select pg_backend_pid()') $row") } 1 .. 7;
my %uses;
$uses{$_}++ foreach @pids;
is(join(' ', map { $uses{$_} } grep { defined } ($pids[0], $pids[3], $pids[6])), '3 3 1',
	'used: connection is replaced after max_uses leases') or diag("@pids");
becomes('used', 'closed_uses, connects, total', '2|3|1', 'replaced connections are counted');

# --- max_lifetime
make_pool($local, $remote, server => 'aged', options => { pool_size => 1, max_lifetime => '500ms' });
my $lease = lease($session, 'aged');
my $pid = $session->run("SELECT pid FROM pgpool.query($lease, 'select pg_backend_pid()') $row");
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'aged' AND now() - opened_at > '1500 ms'", '1'),
	'aged: lease is held beyond max_lifetime');
is($session->run("SELECT pid FROM pgpool.query($lease, 'select pg_backend_pid()') $row"), $pid, 'aged: lease stays usable');
$session->run("SELECT pgpool.checkin($lease)");
becomes('aged', 'closed_lifetime, total', '1|0', 'connection closes at checkin');
isnt($session->run("SELECT pid FROM pgpool.query('aged', 'select pg_backend_pid()') $row"), $pid, 'aged: connection is replaced');
becomes('aged', 'closed_lifetime, total', '2|0', 'new connection closes while it is idle');

# --- random expiry in pools of one connection each
make_pool($local, $remote, server => "cousin$_", options => { pool_size => 1, max_lifetime => '10s' }) foreach 1 .. 10;
my $standstill = delay_begin();
is($session->run("SELECT pgpool.exec('cousin$_', 'select 1')"), '1', "cousin $_: connection is opened") foreach 1 .. 10;
ok(wait_until($local, "SELECT sum(closed_lifetime) FROM pgpool.stats WHERE server ~ 'cousin'", '10'), 'cousins: all connections expire');
$standstill = delay_end($standstill, 1);
my %born = map { @$_ } log_of('connected to', 'cousin\d+');
my %died = map { @$_ } log_of('closed connection', 'cousin\d+');
my @ages = sort { $a <=> $b } map { $died{$_} - $born{$_} } keys %born;
note "ages: @ages";
cmp_ok($ages[0], '>', 8.9, 'cousins: no connection expires before nine tenths of max_lifetime');
# Connections that expired while the machine did not run are closed at the same time.
cmp_ok(min(@ages[ 5 .. 9 ]) - $ages[0], '>', 0.05 - $standstill, 'cousins: connections expire at different ages');
cmp_ok($ages[0], '<', 10 + $standstill, 'cousins: no connection is older than max_lifetime');

# --- the 20 connections of the beginning
foreach my $server (qw(twins busy))
{
	ok(wait_until($local, "SELECT closed_lifetime >= 20 FROM pgpool.stats WHERE server = '$server'", 't', 120),
		"$server: all connections expire");
}
$delay = delay_end($delay, 1);
foreach my $server (qw(twins busy))
{
	my @opened = (map { $_->[1] } log_of('connected to', $server))[ 0 .. 19 ];
	my @closed = (map { $_->[1] } log_of('closed connection', $server))[ 0 .. 19 ];
	my @gaps = sort { $a <=> $b } map { $closed[$_] - $closed[ $_ - 1 ] } 1 .. 19;
	note sprintf '%s: opened within %.3f s, closed within %.3f s, least gap %.3f s', $server, max(@opened) - min(@opened),
	  max(@closed) - min(@closed), $gaps[0];
	cmp_ok(max(@opened) - min(@opened), '<', 3 + $late, "$server: connections are of equal age");
	cmp_ok($closed[0] - $opened[0], '>', 35.9, "$server: no connection expires before nine tenths of max_lifetime");
	# The worker wakes, decides and closes. Each of these steps may be late.
	cmp_ok($gaps[0], '>', max(0.1, 0.8 - 3 * $delay), "$server: no two connections expire in the same second");
	cmp_ok(max(@closed) - min(@closed), '>', 18.8 - 3 * $delay, "$server: 20 connections need 19 seconds to expire");
}
$_->finish(60), is($_->error, '', 'busy: session ends without an error') foreach @busy;
is($local->safe_psql('postgres', "SELECT timeouts, failed FROM pgpool.stats WHERE server = 'busy'"), '0|0', 'busy: no call timed out or failed');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
