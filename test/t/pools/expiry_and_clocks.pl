# Connections expire by the time that has passed, whatever the time of day is set to.
use strict;
use warnings;

use PgpxClock;
use PgpxTest qw(:DEFAULT becomes);
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
plan skip_all => 'the timers and clocks do not depend on TLS' if over_tls();
my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
with_clock($local, sub { $local->start });

# ---------- expiry
# max_lifetime: an expired connection is replaced while it is idle or at
# checkin, never during a lease, and never leased again. Connections of equal age do not
# all expire at the same time.
{
	my $session = PgpxSession->new($local);
	my $row = 'AS t(pid int)';

	# --- without other activity: the worker is not woken by a checkin without a reset, and
	# must have a timer for the expiry
	make_pool($local, $remote, server => 'unused', options => { pool_size => 1, max_lifetime => '1s', idle_timeout => '1h' });
	$session->run('SELECT pgpool.checkin(' . lease($session, 'unused') . ')');
	becomes('unused', 'closed_lifetime, total', '1|0', 'idle connection closes at max_lifetime');

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

	# connections of one age do not all expire at the same time
	make_pool($local, $remote, server => 'twins', options => { pool_size => 20, max_lifetime => '1h' });
	$session->run("SELECT count(pgpool.checkout('twins')) FROM generate_series(1, 20)");
	let_time_pass($local, 1000);    # is part of the time below
	stop_worker();
	my $lifetime = int(1.05 * age_of('twins', 'min'));
	$local->safe_psql('postgres', "ALTER SERVER twins OPTIONS (SET max_lifetime '${lifetime}s')");
	$session->run('SELECT pgpool.checkin_all()');
	like(states('twins'), qr/^closing\|\d+\n\w+\|\d+/, 'twins: some connections expire, and others of the same age do not yet');
	$local->safe_psql('postgres', "ALTER SERVER twins OPTIONS (SET max_lifetime '1h')");
	continue_worker();
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- clocks
# The clock of the local server is set forward and back by an hour, also while the
# worker or a holder is stopped. No connection expires, no waiter times out early or
# late, and no lease times out. Only time that has really passed counts.
{
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
			wait_until($local, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + 1000 ]}) < 60");
			kill 'STOP', $pid if $pid;
			# a timeout that the forward move would reach, or one that the backward move would
			# delay by an hour
			$waiter->start(q{SELECT pgpool.checkout('one', '} . ($offset > 0 ? '50 min' : '300 ms') . q{')});
			wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') if $offset > 0;
			my $log = -s $local->logfile;
			set_clock($local, $offset);
			if ($offset > 0)
			{
				# the wait continues after an interrupt, which the log shows
				$local->safe_psql('postgres', 'SELECT pg_log_backend_memory_contexts(' . $waiter->pid . ')');
				is_logged($local, $log, qr/logging memory contexts of PID/, "$what: waiter is interrupted");
				is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.waiters'), '1', "$what: waiter does not time out too early");
				$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
				$waiter->finish;
				$waiter->failed('57014', qr/canceling statement/, "$what: waiter still waits");
			}
			else
			{
				$waiter->finish;
				$waiter->failed('55P03', qr/no free connection|timeout/, "$what: waiter times out");
			}
			ok(wait_until($local, "SELECT abs(extract(epoch FROM clock_timestamp()) - @{[ time + 1000 + $offset ]}) < 60", 't'), "$what: clock is set");
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
}

leak_check($local, $remote);
done_testing();
