# Leases that are held too long: leak_warning logs a warning once, lease_timeout and
# terminate end the lease. The slot is free at once. The holder's next call reports the
# reason, even if the slot has been leased again. Two sessions never share a
# connection.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ["client_connection_check_interval = '50ms'"]);
my $local = local_node('local', start => 0);
my $row = 'AS t(pid int)';

plan skip_all => $CLOCKS_MISSING unless can_set_clocks();
with_clock($local, sub { $local->start });

# an option that no step reaches unless the clock is set
my $long = '10 min';

sub let_leases_time_out { let_time_pass($local, 601); return; }

my $holder = PgpxSession->new($local);
my ($app, @others) = map { PgpxSession->new($local) } 1 .. 4;

sub stats
{
	my ($server, $columns) = @_;

	return $local->safe_psql('postgres',
		"SELECT $columns FROM pgpool.stats JOIN pgpool.pools USING (pool_id, server, local_user) WHERE server = '$server'");
}

sub logged
{
	my ($pattern) = @_;

	return scalar(() = slurp_file($local->logfile) =~ /$pattern/g);
}

sub remote_pid
{
	my ($session, $lease) = @_;

	like(my $pid = $session->run("SELECT pid FROM pgpool.query($lease, 'select pg_backend_pid()') $row"), qr/^\d+$/, 'remote session is known')
	  or diag($session->error);
	return $pid;
}

# --- leak_warning
make_pool($local, $remote, server => 'leaky', options => { pool_size => 4, leak_warning => $long });
is($holder->run("SELECT pgpool.checkin(pgpool.checkout('leaky'))") . $holder->error, '', 'leaky: lease is returned in time');
my $lease = $holder->run("SELECT pgpool.checkout('leaky', why => 'month report')");
my $pid = $holder->pid;
let_leases_time_out();
ok( wait_until($local, sub { logged("WARNING:  lease $lease on server \"leaky\" has been held for \\d") }, 1),
	'leaky: lease that is held too long is logged');
my $user = $local->safe_psql('postgres', 'SELECT current_user');
like(slurp_file($local->logfile),
	qr/lease $lease .*\n.*DETAIL:  Its holder is PID $pid, user "$user", since \d{4}-.*, why: "month report"\.\n/,
	'leaky: log has the holder, the user, the time and the reason');
my $another = lease($holder, 'leaky');
let_leases_time_out();
ok( wait_until($local, sub { logged("lease $another on server \"leaky\" has been held") }, 1), 'leaky: another lease is logged');
is(logged('has been held for'), 2, 'leaky: each lease is logged once, and the returned lease not at all');
like(remote_pid($holder, $lease), qr/^\d+$/, 'leaky: warning does not end the lease');
is($holder->run('SELECT pgpool.checkin_all()'), '2', 'leaky: leases can be returned');

# --- lease_timeout of an idle lease and of one with a running query
make_pool($local, $remote, server => 'timed', options => { pool_size => 1, lease_timeout => $long });
foreach my $in_query (0, 1)
{
	my $what = $in_query ? 'timed, in a query' : 'timed, idle';

	$lease = lease($holder, 'timed');
	$pid = remote_pid($holder, $lease);
	$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')") if $in_query;
	$others[0]->start("SELECT pgpool.checkout('timed', '1 day')");
	ok(wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'timed'}, 1), "$what: next session waits");
	let_leases_time_out();
	my $next = $others[0]->finish;
	like($next, qr/^\d+$/, "$what: next waiter is granted a connection");
	my $remote_pid = remote_pid($others[0], $next);
	isnt($remote_pid, $pid, "$what: connection is another one");
	$in_query ? $holder->finish(30) : $holder->run("SELECT pgpool.exec($lease, 'select 1')");
	$holder->failed('PX002', qr/lease $lease has timed out/, "$what: holder receives the error");
	$holder->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX002', qr/lease $lease has timed out/, "$what: holder receives the error at each call");
	is(remote_pid($others[0], $next), $remote_pid, "$what: next lease is not affected");
	$holder->run("SELECT pgpool.checkin($lease)");
	is($holder->error, '', "$what: ended lease can be returned");
	is($local->safe_psql('postgres', "SELECT lease FROM pgpool.leases WHERE server = 'timed'"), $next,
		"$what: checkin of the ended lease does not return the new one");
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), "$what: remote session has ended");
	$others[0]->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, sub { logged("LOG:  lease $lease on server \"timed\" was ended after") }, 1), "$what: end of the lease is logged once");
}
ok(wait_until($local, sub { stats('timed', 'lease_timeouts, closed_with_lease, terminated') }, '2|2|0'), 'timed: each timeout is counted');

# a lease of transaction scope, and one whose connection is lost
$holder->run("BEGIN; SELECT pgpool.checkout_xact('timed')");
let_leases_time_out();
ok(wait_until($local, "SELECT lease_timeouts FROM pgpool.stats WHERE server = 'timed'", '3'), 'timed: lease of transaction scope ends, too');
is($holder->run("SELECT 7; COMMIT") . $holder->error, '7', 'timed: transaction continues');
$lease = lease($holder, 'timed');
$pid = remote_pid($holder, $lease);
$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
like(lease($others[0], 'timed'), qr/^\d+$/, 'timed: slot of a lost connection is free although its holder keeps the lease');
$others[0]->run('SELECT pgpool.checkin_all()');
let_leases_time_out();
ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE lease = $lease", '0'), 'timed: lease of the lost connection ends, too');
$holder->fails("SELECT pgpool.exec($lease, 'select 1')", 'PX002', qr/has timed out/, 'timed: holder of the lost connection receives the error');
$_->run('SELECT pgpool.checkin_all()') foreach $holder, $others[0];

# --- lease_timeout does not include the time in the queue, even if the granted
# connection is dead and is replaced
SKIP:
{
	skip 'over TLS the worker must run', 4 if over_tls();
	make_pool($local, $remote, server => 'waited', options => { pool_size => 2 });
	my @used = map { lease($holder, 'waited') } 1 .. 2;
	my @pids = map { remote_pid($holder, $_) } @used;
	my $worker = worker_pid($local);

	# the connection that was returned last is granted first
	foreach my $n (0, 1)
	{
		$holder->run("SELECT pgpool.checkin($used[$n])");
		wait_until($local, q{SELECT count(*) FROM pgpool.connections WHERE server = 'waited' AND state = 'idle'}, $n + 1) or die 'not idle';
	}
	$others[0]->run(q{SELECT pgpool.pause('waited')});
	$holder->start(q{SELECT pgpool.checkout('waited', '1 day')});
	wait_until($local, q{SELECT count(*) FROM pgpool.waiters}, '1') or die 'no waiter';
	kill 'STOP', $worker;
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pids[1], 20000)");
	my $resumed = $others[0]->run('SELECT clock_timestamp()');
	$others[0]->run(q{SELECT pgpool.resume('waited')});
	$lease = $holder->finish(30);
	is(remote_pid($holder, $lease), $pids[0], 'waited: granted connection is dead, and is replaced by the other one');
	is( $others[0]->run("SELECT leased_at >= timestamptz '$resumed' FROM pgpool.leases WHERE lease = $lease"),
		't', 'waited: lease begins when the connection is granted');
	kill 'CONT', $worker;
	$holder->run('SELECT pgpool.checkin_all()');

	# there is no other connection, so the session waits again
	make_pool($local, $remote, server => 'again', options => { pool_size => 1 });
	$lease = lease($holder, 'again');
	$pid = remote_pid($holder, $lease);
	$holder->run("SELECT pgpool.checkin($lease)");
	wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'again'}, 1) or die 'not idle';
	$others[0]->run(q{SELECT pgpool.reset_stats('again'), pgpool.pause('again')});
	$holder->start(q{SELECT pgpool.checkout('again', '1 day')});
	wait_until($local, q{SELECT waiters FROM pgpool.pools WHERE server = 'again'}, 1) or die 'no waiter';
	kill 'STOP', $worker;
	$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)");
	$others[0]->run(q{SELECT pgpool.resume('again')});
	wait_until($local, q{SELECT waited, waiters FROM pgpool.stats JOIN pgpool.pools USING (pool_id, server) WHERE server = 'again'}, '1|1') or die 'no second wait';
	kill 'CONT', $worker;
	isnt(remote_pid($holder, $holder->finish(30)), $pid, 'again: granted connection is dead, and the session waits for another one');
	is( stats('again', 'waited, granted, retried, (SELECT sum(n) FROM unnest(wait_histogram) AS n)'),
		'2|2|1|2', 'again: both waits are counted');
	$holder->run('SELECT pgpool.checkin_all()');
}

# --- terminate; the slot is leased again before the holder's next call
make_pool($local, $remote, server => 'ended', options => { pool_size => 1 });
my @ended;
foreach my $round (1 .. 5)
{
	push @ended, lease($holder, 'ended');
	$pid = remote_pid($holder, $ended[-1]);
	$others[0]->start("SELECT pgpool.checkout('ended', '30 s')");
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "ended $round: session waits");
	is($others[1]->run("SELECT pgpool.terminate($ended[-1])"), 't', "ended $round: lease is terminated");
	my $next = $others[0]->finish(30);
	like($next, qr/^\d+$/, "ended $round: waiter is granted a connection");
	isnt(remote_pid($others[0], $next), $pid, "ended $round: connection is another one");
	$others[0]->run('SELECT pgpool.checkin_all()');
}
$holder->fails("SELECT pgpool.exec($_, 'select 1')", 'PX001', qr/lease $_ was terminated/, "ended: holder of lease $_ receives the error later")
  foreach @ended;
is($holder->run('SELECT pgpool.checkin_all()') . $holder->error, '5', 'ended: all terminated leases can be returned');

# the slot is free at once, also during a query
foreach my $in_query (0, 1)
{
	my $what = $in_query ? 'ended, in a query' : 'ended, idle';

	$lease = lease($holder, 'ended');
	$pid = remote_pid($holder, $lease);
	$holder->start("SELECT pgpool.exec($lease, 'select pg_sleep(300)')") if $in_query;
	$others[0]->start("SELECT pgpool.checkout('ended', '30 s')");
	ok( wait_until($local, "SELECT waiters, (SELECT state FROM pgpool.leases WHERE lease = $lease) FROM pgpool.pools WHERE server = 'ended'",
			'1|' . ($in_query ? 'active' : 'idle')), "$what: session waits");
	is($others[1]->run("SELECT pgpool.terminate($lease)"), 't', "$what: lease is terminated");
	like($others[0]->finish, qr/^\d+$/, "$what: slot is free");
	$in_query ? $holder->finish(30) : $holder->run("SELECT pgpool.exec($lease, 'select 1')");
	$holder->failed('PX001', qr/lease $lease was terminated/, "$what: holder receives the error");
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), "$what: remote session has ended");
	$_->run('SELECT pgpool.checkin_all()') foreach $holder, $others[0];
}

# terminate and checkin at the same time: the lease ends once
foreach my $round (1 .. 40)
{
	$lease = lease($holder, 'ended');
	$holder->start("SELECT pgpool.checkin($lease)");
	$others[1]->run("SELECT pgpool.terminate($lease)");
	$holder->finish(30);
}
is(stats('ended', 'checkouts - checkins - terminated, leased'), '0|0', 'ended: each lease ends once');

# the reasons of a limited number of ended leases are kept
@ended = ();
foreach my $round (1 .. 20)
{
	push @ended, lease($holder, 'ended');
	$others[1]->run("SELECT pgpool.terminate($ended[-1])");
}
$holder->fails("SELECT pgpool.exec($ended[$_], 'select 1')", 'PX001', qr/was terminated/, "ended: reason of lease $_ of twenty is kept") foreach 4, 19;
$holder->fails("SELECT pgpool.exec($ended[0], 'select 1')", '08006', qr/connection of lease $ended[0] was lost/,
	'ended: older leases are reported as lost');
is($holder->run('SELECT pgpool.checkin_all()'), '20', 'ended: all twenty leases can be returned');

# --- DISCARD ALL in the local session
$lease = lease($holder, 'ended');
$holder->run("SELECT pgpool.exec($lease, 'create temp table left_behind ()')");
$holder->run('DISCARD ALL');
is($holder->error, '', 'DISCARD ALL succeeds while a lease is held');
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'DISCARD ALL returns the lease');
$holder->fails("SELECT pgpool.exec($lease, 'select 1')", '55000', qr/lease $lease does not exist/, 'DISCARD ALL: lease does not exist any more');
is($holder->run(q{SELECT a FROM pgpool.query('ended', 'select to_regclass(''left_behind'') is null') AS t(a bool)}),
	't', 'DISCARD ALL: connection was reset');
$lease = lease($holder, 'ended');
$holder->run($_), is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '1', "$_ does not return the lease")
  foreach 'DISCARD PLANS', 'DISCARD TEMP', 'DISCARD SEQUENCES', 'RESET ALL';
$holder->run('SELECT pgpool.checkin_all()');

# --- lease_timeout ends a lease whose connection was lost, too
make_pool($local, $remote, server => 'lost', options => { pool_size => 1, lease_timeout => $long });
$lease = $holder->run(q{SELECT pgpool.checkout('lost')});
$pid = remote_pid($holder, $lease);
$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'lost: remote session has ended');
let_leases_time_out();
ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE server = 'lost'}, '0'), 'lost: lease is ended');
$holder->run('SELECT pgpool.checkin_all()');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
