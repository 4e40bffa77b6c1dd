# max_uses and max_lifetime: a connection that is used up or old is replaced, while
# it is idle or when it comes back, never under a lease; and connections of one
# age do not all go at once.
use strict;
use warnings;

use List::Util qw(max min);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

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

# When the log says that connections of servers were opened or closed, in seconds.
sub log_times
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

# --- max_uses
make_pool($local, $remote, server => 'used', options => { pool_size => 1, max_uses => 3 });
my @pids = map { $session->run("SELECT pid FROM pgpool.query('used', 'select pg_backend_pid()') $row") } 1 .. 7;
my %uses;
$uses{$_}++ foreach @pids;
is(join(' ', map { $uses{$_} } grep { defined } ($pids[0], $pids[3], $pids[6])), '3 3 1',
	'used: a connection is replaced after max_uses leases') or diag("@pids");
becomes('used', 'closed_uses, connects, total', '2|3|1', 'and counted');

# --- max_lifetime
make_pool($local, $remote, server => 'aged', options => { pool_size => 1, max_lifetime => '500ms' });
my $lease = lease($session, 'aged');
my $pid = $session->run("SELECT pid FROM pgpool.query($lease, 'select pg_backend_pid()') $row");
ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'aged' AND now() - opened_at > '1500 ms'", '1'),
	'aged: a lease is held beyond max_lifetime');
is($session->run("SELECT pid FROM pgpool.query($lease, 'select pg_backend_pid()') $row"), $pid, 'aged: and still works');
$session->run("SELECT pgpool.checkin($lease)");
becomes('aged', 'closed_lifetime, total', '1|0', 'it closes at checkin');
isnt($session->run("SELECT pid FROM pgpool.query('aged', 'select pg_backend_pid()') $row"), $pid, 'aged: and is replaced');
becomes('aged', 'closed_lifetime, total', '2|0', 'which closes while it is idle');

# --- not all at once: in a pool ...
make_pool($local, $remote, server => 'twins', options => { pool_size => 20, max_lifetime => '4s' });
is($session->run("SELECT pgpool.prewarm('twins', 20, '60 s')"), '20', 'twins: 20 connections are opened');
becomes('twins', 'closed_lifetime, total', '20|0', 'all expire');
my @opened = map { $_->[1] } log_times('connected to', 'twins');
my @closed = map { $_->[1] } log_times('closed connection', 'twins');
is(scalar(@closed) . ' ' . scalar(@opened), '20 20', 'twins: the log has each');
note sprintf 'opened within %.3f s, closed within %.3f s', max(@opened) - min(@opened), max(@closed) - min(@closed);
my $busiest = max(map { my $from = $_; scalar grep { $_ >= $from && $_ < $from + 1 } @closed } @closed);
cmp_ok($busiest, '<=', 15, 'twins: but not in the same second');

# ... and by chance: pools of one connection each, which know nothing of each other
make_pool($local, $remote, server => "cousin$_", options => { pool_size => 1, max_lifetime => '10s' }) foreach 1 .. 10;
is($session->run("SELECT pgpool.exec('cousin$_', 'select 1')"), '1', "cousin $_ is opened") foreach 1 .. 10;
ok(wait_until($local, "SELECT sum(closed_lifetime) FROM pgpool.stats WHERE server ~ 'cousin'", '10'), 'cousins: all expire');
my %born = map { @$_ } log_times('connected to', 'cousin\d+');
my %died = map { @$_ } log_times('closed connection', 'cousin\d+');
my @ages = sort { $a <=> $b } map { $died{$_} - $born{$_} } keys %born;
note "ages: @ages";
cmp_ok($ages[0], '>', 8.9, 'cousins: none before nine tenths of max_lifetime');
cmp_ok(min(@ages[ 5 .. 9 ]) - $ages[0], '>', 0.05, 'cousins: at ages that differ');
cmp_ok($ages[0], '<', 10, 'cousins: nor does chance make them older');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
