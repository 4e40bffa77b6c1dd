# max_uses and max_lifetime: an expired connection is replaced while it is idle or at
# checkin, never during a lease, and never leased again. Connections of equal age do not
# all expire at the same time.
use strict;
use warnings;

use PgpxTest;
use Test::More;

plan skip_all => 'the timers of the worker do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local');
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

# --- without other activity: the worker is not woken by a checkin without a reset, and
# must have a timer for the expiry
make_pool($local, $remote, server => 'unused', options => { pool_size => 1, max_lifetime => '1s', idle_timeout => '1h' });
$session->run('SELECT pgpool.checkin(' . lease($session, 'unused') . ')');
becomes('unused', 'closed_lifetime, total', '1|0', 'idle connection closes at max_lifetime');

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

# --- no free connection is older than max_lifetime. While the worker is stopped, it
# closes none: sessions find the expired ones.
sub stop_worker { kill('STOP', worker_pid($local)) or die "kill: $!"; return; }
sub continue_worker { kill('CONT', worker_pid($local)) or die "kill: $!"; return; }

sub age_of
{
	my ($server, $aggregate) = @_;
	return $local->safe_psql('postgres',
		"SELECT extract(epoch FROM $aggregate(clock_timestamp() - opened_at)) FROM pgpool.connections WHERE server = '$server'");
}

sub states
{
	my ($server) = @_;
	return $local->safe_psql('postgres',
		"SELECT state, count(*) FROM pgpool.connections WHERE server = '$server' GROUP BY state ORDER BY state");
}

make_pool($local, $remote, server => 'bound', options => { pool_size => 20, max_lifetime => '1s' });
is($session->run("SELECT count(pgpool.checkout('bound')) FROM generate_series(1, 20)"), '20', 'bound: 20 connections are leased');
stop_worker();
ok(wait_until($local, sub { age_of('bound', 'min') > 1 ? 1 : 0 }, 1), 'bound: all of them are older than max_lifetime');
$session->run('SELECT pgpool.checkin_all()');
is(states('bound'), 'closing|20', 'bound: all of them close at checkin');
continue_worker();
becomes('bound', 'closed_lifetime, total', '20|0', 'all connections are closed');

$session->run("SELECT count(pgpool.checkout('bound')) FROM generate_series(1, 20)");
stop_worker();
$session->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, sub { age_of('bound', 'min') > 1 ? 1 : 0 }, 1), 'bound: free connections are older than max_lifetime');
is($session->run("SELECT pgpool.try_checkout('bound') IS NULL"), 't', 'bound: none of them is leased');
like(states('bound'), qr/^closing\|20$/m, 'bound: all of them close');
continue_worker();
becomes('bound', 'closed_lifetime', '40', 'all connections are closed');

# Connections of one age do not all expire at the same time. An attempt that takes longer
# than the spread closes all of them, and is repeated.
make_pool($local, $remote, server => 'twins', options => { pool_size => 20, max_lifetime => '1h' });
my $closing = sub {
	$session->run("SELECT count(pgpool.checkout('twins')) FROM generate_series(1, 20)");
	ok(wait_until($local, sub { age_of('twins', 'min') > 3 ? 1 : 0 }, 1), 'twins: connections are older than three seconds');
	stop_worker();
	my $lifetime = int(1000 * age_of('twins', 'min') * 1.05);
	$local->safe_psql('postgres', "ALTER SERVER twins OPTIONS (SET max_lifetime '${lifetime}ms')");
	$session->run('SELECT pgpool.checkin_all()');
	my ($closing) = (states('twins') =~ /closing\|(\d+)/, 0);
	$local->safe_psql('postgres', "ALTER SERVER twins OPTIONS (SET max_lifetime '1h')");
	continue_worker();
	return $closing > 0 && $closing < 20 ? 'some' : $closing;
};
ok(wait_until($local, $closing, 'some'), 'twins: some connections expire, and others of the same age do not yet');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
