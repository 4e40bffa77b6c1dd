# The clock of the local server is set forward and back by an hour, also while the
# worker or a holder is stopped. No connection expires, no waiter times out early or
# late, and no lease times out. Only time that has really passed counts.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'clocks do not depend on TLS' if over_tls();

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

my $remote = remote_node('remote');
my $local = local_node('local', start => 0);

with_clock($local, sub { $local->start });
make_pool($local, $remote, server => 'three', options => { pool_size => 3, min_size => 0, idle_timeout => '50 min', max_lifetime => '50 min',
	lease_timeout => '50 min', leak_warning => '50 min', test_period => '50 min' });
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

my ($holder, $waiter, $other) = map { PgpxSession->new($local) } 1 .. 3;
my @leases = map { lease($holder, 'three') } 1 .. 3;
my @pids = map { $holder->run("SELECT * FROM pgpool.query($_, 'SELECT pg_backend_pid()') AS t(a int)") } @leases;
$holder->run("SELECT pgpool.checkin($leases[$_])") foreach 0, 1;
my $pids = join ',', sort @pids;
my $there = q{SELECT string_agg(remote_pid::text, ',' ORDER BY remote_pid::text) FROM pgpool.connections WHERE server = 'three'};
my $worker = worker_pid($local);
my $hour = 3600;
my $held = lease($other, 'one');

foreach my $offset ($hour, -$hour)
{
	foreach my $stopped ('', 'worker', 'holder')
	{
		my $what = "clock at $offset" . ($stopped && ", with a stopped $stopped");
		my $pid = { worker => $worker, holder => $holder->pid }->{$stopped};

		set_clock($local, 0);
		wait_until($local, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time ]}) < 60");
		kill 'STOP', $pid if $pid;
		my $took = seconds {
			$waiter->start(q{SELECT pgpool.checkout('one', '5 s')});
			wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1');
			set_clock($local, $offset);
			$waiter->finish(60);
		};
		$waiter->failed('55P03', qr/no free connection|timeout/, "$what: waiter times out");
		cmp_ok($took, '>=', 4.95, "$what: timeout is not too early");
		ok(wait_until($local, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + $offset ]}) < 60", 't', 20), "$what: clock is set");
		kill 'CONT', $pid if $pid;

		# the worker is woken, and checks all its deadlines
		is($other->run(q{SELECT pgpool.exec('three', 'SELECT 1')}), '1', "$what: pool is used");
		wait_until($local, q{SELECT reset_pending FROM pgpool.pools WHERE server = 'three'}, '0');
		is($local->safe_psql('postgres', $there), $pids, "$what: no connection was replaced");
		is($holder->run("SELECT * FROM pgpool.query($leases[2], 'SELECT pg_backend_pid()') AS t(a int)") . $holder->error, $pids[2], "$what: lease stays usable");
	}
}

is($local->safe_psql('postgres', q{SELECT closed_idle, closed_lifetime, lease_timeouts FROM pgpool.stats WHERE server = 'three'}), '0|0|0',
	'no connection expired, and no lease timed out');
unlike(slurp_file($local->logfile), qr/has been held/, 'no long lease is logged');
is(worker_pid($local), $worker, 'worker was not restarted');

$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
$_->quit foreach $holder, $waiter, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
