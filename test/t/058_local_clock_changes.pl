# The clock of the local server is set, forward and back by an hour, and the worker or
# a holder is stopped meanwhile: no connection is as old as that, nobody waits for less
# or more than his timeout, no lease is held for too long.  Only time that has really
# passed counts.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();

my $remote = remote_node('remote');
my $local = local_node('local', start => 0);

with_clock($local, sub { $local->start });
make_pool($local, $remote, server => 'three', options => { pool_size => 3, min_size => 0, idle_timeout => '5 min', max_lifetime => '10 min',
	lease_timeout => '5 min', leak_warning => '5 min', test_period => '5 min' });
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
		my $what = "clock at $offset" . ($stopped && ", the $stopped stopped meanwhile");
		my $pid = { worker => $worker, holder => $holder->pid }->{$stopped};

		set_clock($local, 0);
		wait_until($local, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time ]}) < 60");
		kill 'STOP', $pid if $pid;
		my $took = seconds {
			$waiter->start(q{SELECT pgpool.checkout('one', '2 s')});
			wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1');
			set_clock($local, $offset);
			$waiter->finish(60);
		};
		$waiter->failed('55P03', qr/no free connection|timeout/, "$what: who waits waits for his timeout");
		cmp_ok($took, '>=', 1.95, "$what: not less");
		ok(wait_until($local, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + $offset ]}) < 60", 't', 20), "$what: it is so");
		kill 'CONT', $pid if $pid;

		# the worker has something to do, and looks at all it has
		is($other->run(q{SELECT pgpool.exec('three', 'SELECT 1')}), '1', "$what: the pool is used");
		wait_until($local, q{SELECT reset_pending FROM pgpool.pools WHERE server = 'three'}, '0');
		is($local->safe_psql('postgres', $there), $pids, "$what: all connections are those of before");
		is($holder->run("SELECT * FROM pgpool.query($leases[2], 'SELECT pg_backend_pid()') AS t(a int)") . $holder->error, $pids[2], "$what: the lease goes on");
	}
}

is($local->safe_psql('postgres', q{SELECT closed_idle, closed_lifetime, lease_timeouts FROM pgpool.stats WHERE server = 'three'}), '0|0|0',
	'none was too old, no lease too long');
unlike(slurp_file($local->logfile), qr/has been held/, 'nor does the log say so');
is(worker_pid($local), $worker, 'and the worker is the same');

$_->run('SELECT pgpool.checkin_all()') foreach $holder, $other;
$_->quit foreach $holder, $waiter, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
