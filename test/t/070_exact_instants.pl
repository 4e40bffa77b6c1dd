# What happens at one exact instant: processes are stopped, ended and failed at debug
# points, which only a build of test/points/run has.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'a normal build has no debug points: see test/points/run'
  unless $ENV{PGPX_DEBUG_POINTS};

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['restart_after_crash = on']);
make_pool($local, $remote, server => 'one', options => { pool_size => 1, retry_min => '10 ms' });

sub path { return $local->data_dir . "/pgpool_ext.$_[0].$_[1]"; }

# Has a process come to the point?
sub reached
{
	my ($name) = @_;

	return wait_until($local, sub { -e path($name, 'at') ? 'yes' : 'no' }, 'yes', 30);
}

sub go_on
{
	my ($name) = @_;

	append_to_file(path($name, 'go'), '');
	return;
}

sub disarm
{
	unlink glob $local->data_dir . '/pgpool_ext.*.at ' . $local->data_dir . '/pgpool_ext.*.go';
	return;
}

# For all processes, the worker among them.
sub arm
{
	my ($setting, $value) = @_;

	disarm();
	$local->safe_psql('postgres', "ALTER SYSTEM SET pgpool_ext.$setting = '$value'");
	$local->reload;
	return;
}

sub works
{
	my ($name) = @_;

	return ok(wait_until($local, "SELECT a FROM pgpool.query('one', 'select 42') AS t(a int)", '42', 30), $name);
}

# A session that waits with a point armed, behind a holder; and one behind it.
sub waiting
{
	my ($point, $timeout) = @_;
	my ($holder, $waiter, $next) = map { PgpxSession->new($local) } 1 .. 3;

	disarm();
	lease($holder, 'one');
	$waiter->run("SET pgpool_ext.debug_point = '$point wait'");
	$waiter->start("SELECT pgpool.checkout('one', '$timeout')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';
	return ($holder, $waiter, $next);
}

# The time is up, and in that instant the connection is granted: it is taken.
{
	my ($holder, $waiter, $next) = waiting('timed_out', '100 ms');

	ok(reached('timed_out'), 'the time of a waiter is up');
	$holder->run('SELECT pgpool.checkin_all()');
	is($local->safe_psql('postgres', 'SELECT pid FROM pgpool.leases'), $waiter->pid, 'it is granted before it has left');
	check_invariants($local, 'timeout and grant: the invariants hold in between');
	go_on('timed_out');
	like($waiter->finish, qr/^\d+$/, 'timeout and grant: it is a lease, and no error');
	is($local->safe_psql('postgres', 'SELECT timeouts FROM pgpool.stats'), '0', 'and no timeout');
	$_->quit foreach $holder, $waiter, $next;
}
works('timeout and grant: the pool works');

# Nobody grants: it is a timeout, once.
{
	my ($holder, $waiter, $next) = waiting('timed_out', '100 ms');

	ok(reached('timed_out'), 'the time of a waiter is up, and nothing has come');
	go_on('timed_out');
	$waiter->finish;
	$waiter->failed('55P03', qr/no connection/, 'timeout alone: an error');
	is($local->safe_psql('postgres', 'SELECT timeouts FROM pgpool.stats'), '1', 'and one timeout');
	$_->quit foreach $holder, $waiter, $next;
}

# Interrupted or terminated in the instant of the grant: it is given on.
foreach my $case ([ 'cancelled', 'pg_cancel_backend' ], [ 'exit', 'pg_terminate_backend' ])
{
	my ($point, $function) = @$case;
	my ($holder, $waiter, $next) = waiting($point, '60 s');

	$local->safe_psql('postgres', "SELECT $function(" . $waiter->pid . ')');
	ok(reached($point), "$function of a waiter");
	$holder->run('SELECT pgpool.checkin_all()');
	is($local->safe_psql('postgres', 'SELECT pid FROM pgpool.leases'), $waiter->pid, 'it is granted before it has left');
	$next->start("SELECT pgpool.checkout('one', '60 s')");
	check_invariants($local, "$function: the invariants hold in between");
	go_on($point);
	$waiter->finish;
	like($waiter->error, qr/57014|57P01/, "$function: the caller is told");
	like($next->finish, qr/^\d+$/, "$function: the next one is served");
	$_->quit foreach $holder, $waiter, $next;
}

# Between leaving the queue and giving the grant on, the connection is nobody's to take.
{
	my ($holder, $waiter, $next) = waiting('cancelled', '60 s');

	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	ok(reached('cancelled'), 'a waiter is cancelled');
	$holder->run('SELECT pgpool.checkin_all()');
	$next->run("SET pgpool_ext.debug_point = 'nothing wait'");
	$next->start("SELECT pgpool.checkout('one', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'the next one queues');
	go_on('cancelled');
	like($next->finish, qr/^\d+$/, 'and is served by the one that gives up');
	$waiter->finish;
	$_->quit foreach $holder, $waiter, $next;
}
works('cancel and grant: the pool works');
check_invariants($local);

# A holder is terminated, idle and in mid-query; while its exit callback stands still
# the lease is still its own.
foreach my $sql ("SELECT 1", "SELECT pgpool.exec((SELECT max(lease) FROM pgpool.leases), 'select pg_sleep(60)')")
{
	my ($holder, $next) = map { PgpxSession->new($local) } 1 .. 2;

	disarm();
	$holder->run("SET pgpool_ext.debug_point = 'exit wait'");
	lease($holder, 'one');
	$holder->start($sql);
	wait_until($local, "SELECT count(*) FROM pg_stat_activity WHERE pid = " . $holder->pid . " AND state = 'active' AND wait_event IS NOT NULL", 1)
	  if $sql =~ /sleep/;
	$local->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $holder->pid . ')');
	ok(reached('exit'), 'a holder is terminated');
	$next->start("SELECT pgpool.checkout('one', '60 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1), 'nobody gets its connection before its exit callback');
	check_invariants($local, 'holder ends: the invariants hold');
	go_on('exit');
	like($next->finish, qr/^\d+$/, 'the next one is served');
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()", '0'),
		'and nothing runs on at the remote');
	$_->quit foreach $holder, $next;
}
works('holders end: the pool works');

# The worker ends, or dies, where it could leave something behind.
foreach my $case (
	[ 'worker_starts exit', 0 ], [ 'worker_set_up exit', 0 ], [ 'worker_set_up error', 0 ],
	[ 'worker_connects error', 0 ], [ 'worker_connects exit', 0 ], [ 'granted error', 0 ], [ 'granted exit', 0 ],
	[ 'worker_starts crash', 1 ], [ 'worker_ends crash', 1 ], [ 'worker_connects crash', 1 ])
{
	my ($what, $crash) = @$case;
	my ($point) = $what =~ /^(\w+)/;
	my $worker = worker_pid($local);

	arm(debug_point => $what);
	if ($point =~ /^worker_(?:starts|set_up|ends)$/)
	{
		$local->psql('postgres', "SELECT pg_terminate_backend($worker)");
	}
	else
	{
		$local->psql('postgres', "SELECT pgpool.reconnect('one')");
		$local->psql('postgres', "SELECT pgpool.exec('one', 'select 1')");
	}
	ok(reached($point), "$what: the worker comes there");
	works("$what: the pool works again");
	check_invariants($local, "$what: the invariants hold");
}
arm(debug_point => '');

# No memory, in a session: an error, the lease usable or gone, nothing lost.
my ($failed, $wrong) = (0, '');
foreach my $n (1 .. 30)
{
	my $session = PgpxSession->new($local);

	disarm();
	$session->run("SET pgpool_ext.debug_oom = $n");
	foreach my $sql (
		"SELECT pgpool.checkout('one', '30 s') AS lease \\gset",
		"SELECT * FROM pgpool.query(:lease, 'select \$1::int, repeat(''x'', 100000) from generate_series(1, 10)', 7) AS t(a int, b text)",
		"SELECT pgpool.exec(:lease, 'select 1; select 1/0')",
		"SELECT pgpool.send(:lease, 'select 1')", "SELECT * FROM pgpool.result(:lease) AS t(a int)",
		"SELECT pgpool.checkin(:lease)",
		"SELECT * FROM pgpool.query('one', 'select 1') AS t(a int)")
	{
		$session->run($sql);
		$failed++ if $session->sqlstate eq '53200';
		$wrong .= "$n: $sql: " . $session->error if $session->sqlstate !~ /^(?:|53200|22012|42601|55000)$/;
	}
	$session->run('RESET pgpool_ext.debug_oom; SELECT pgpool.checkin_all()');
	$wrong .= "$n: " . $session->error if $session->error ne '';
	$session->run("SELECT * FROM pgpool.query('one', 'select 1') AS t(a int)");
	$wrong .= "$n: afterwards: " . $session->error if $session->error ne '';
	$session->quit;
}
is($wrong, '', 'no memory in a session: an error, and all is as it was');
cmp_ok($failed, '>=', 10, "that was $failed times");
check_invariants($local);

# .. and in the worker, which ends and starts again.
my $ended = 0;
foreach my $n (1 .. 6, 10)
{
	arm(debug_oom => $n);
	terminate($local, worker_pid($local));
	works("no memory for allocation $n of the worker: the pool works again");
	$ended++ if -e path('oom', 'at');
}
cmp_ok($ended, '>=', 5, "the worker had none $ended times");
arm(debug_oom => 0);

# --- distributed locks
make_pool($local, $remote, server => 'keeper', options => { pool_size => 2 });
$local->safe_psql('postgres', q{SELECT pgpool.lock_setup('keeper')});

# Nothing is left of the lock here, and the remote has it as free.
sub released
{
	my ($name) = @_;
	my $free = q{coalesce(bool_and(state = 'free'), true) FROM pgpool.lock_status('keeper')};

	return wait_until($local, "SELECT (SELECT count(*) FROM pgpool.locks) = 0 AND $free", 't', 10) ? '' : "$name: it is not released\n";
}

# The remote has granted it, and the session ends, or fails, before it has taken that in.
foreach my $action (qw(error exit))
{
	my $session = PgpxSession->new($local);

	disarm();
	$session->run("SET pgpool_ext.debug_point = 'lock_answered $action'");
	$session->run(q{SELECT pgpool.lock('keeper', 'a', '10 s', '1 hour')});
	ok(reached('lock_answered'), "$action: a session has the answer to its question");
	is($remote->safe_psql('remote_db', q{SELECT request > 0 FROM pgpool_lock.locks WHERE name = 'a'}), 't', "$action: it was granted");
	is(released($action), '', "$action: the lock is released");
	$session->quit;
}

# It is lost between the two looks of unlock, which says so.
{
	my $session = PgpxSession->new($local);
	my $lost = $session->run(q{SELECT pgpool.lock('keeper', 'a')});

	disarm();
	$session->run("SET pgpool_ext.debug_point = 'unlock wait'");
	$session->start("SELECT pgpool.unlock('keeper', 'a', $lost)");
	ok(reached('unlock'), 'a session is about to release its lock');
	$local->safe_psql('postgres', q{SELECT pgpool.lock_force_release('keeper', 'a')});
	ok(wait_until($local, 'SELECT state FROM pgpool.locks', 'lost', 10), 'it is lost at this moment');
	go_on('unlock');
	is($session->finish(20), 'f', 'unlock says that it was not held');
	like($session->error, qr/WARNING:.*lock "a" of server "keeper" was lost/, 'since it was lost');
	is(released('unlock'), '', 'and nothing is left of it');
	$session->quit;
}

# No memory, at each allocation in turn: the lock is held, or it is not left behind.
($failed, $wrong) = (0, '');
foreach my $n (1 .. 60)
{
	my $session = PgpxSession->new($local);

	disarm();
	$session->run("SET pgpool_ext.debug_oom = $n");
	my $got = $session->run(q{SELECT pgpool.lock('keeper', 'a', '10 s', '1 hour')});
	my $state = $session->sqlstate;
	$session->run('RESET pgpool_ext.debug_oom');
	$wrong .= "$n: $state $got\n" unless $state eq '53200' || $got =~ /^\d+$/;
	$failed++ if $state eq '53200';
	$session->run("SELECT pgpool.unlock('keeper', 'a', $got)") if $got =~ /^\d+$/;
	$wrong .= released($n);
	$session->quit;
	last if $state eq '' && !-e path('oom', 'at');
}
is($wrong, '', 'no memory for a lock: an error, and it is released');
cmp_ok($failed, '>=', 5, "that was $failed times");

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();
