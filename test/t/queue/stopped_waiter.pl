# A new worker asks the waiters for the conninfo. A waiter that is stopped and cannot
# publish it is asked once only. A stopped waiter is granted no connection with outdated
# options, and its grant is counted although its lease was revoked. A waiter whose deadline
# has passed is granted no connection.
use strict;
use warnings;

use PgpxClock;
use PgpxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $remote = remote_node('remote');
my $local = local_node('local', start => 0);
can_set_clocks() ? with_clock($local, sub { $local->start }) : $local->start;
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;
lease($holder, 'one');
$waiter->start("SELECT pgpool.checkout('one', '60 s')");
wait_until($local, 'SELECT count(*) FROM pgpool.waiters', 1) or die 'no waiter';

kill 'STOP', $waiter->pid;
my $worker = worker_pid($local);
$local->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
ok( wait_until($local,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'pgpool_ext worker' AND pid <> $worker", '1'),
	'new worker runs');
ok(wait_until($local, 'SELECT connects_requested > 1 FROM pgpool.stats'), 'new worker tries to connect without the conninfo');
usleep(500_000);
cmp_ok($local->safe_psql('postgres', 'SELECT connects_requested FROM pgpool.stats'), '<', 10, 'new worker does not try again and again');

kill 'CONT', $waiter->pid;
like($waiter->finish, qr/^\d+$/, 'waiter is granted a connection when it has published the conninfo');
$waiter->run('SELECT pgpool.checkin_all()');
is($local->safe_psql('postgres', "SELECT a FROM pgpool.query('one', 'select 1') AS t(a int)"), '1', 'pool works');

# The options change meanwhile. For a waiter that has not read them nothing is sent.
$remote->safe_psql('remote_db', 'CREATE TABLE sent (n int); GRANT ALL ON sent TO remote_app');
make_pool($local, $remote, server => 'two', options => { pool_size => 1, retry_min => '10ms' });
my $first = PgpxSession->new($local);
lease($holder, 'two');
my $n = 0;
foreach my $session ($first, $waiter)
{
	$session->start('SELECT pgpool.exec($$two$$, $$INSERT INTO sent VALUES (' . ++$n . ')$$)');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'two'}, $n), "$n waiters have a pending statement");
}
kill 'STOP', $waiter->pid;
$local->safe_psql('postgres', q{ALTER SERVER two OPTIONS (ADD application_name 'two')});
$holder->run('SELECT pgpool.checkin_all()');
is($first->finish . $first->error, '1', 'waiter that has read the new options is granted a connection');
ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'two'}, $waiter->pid), 'waiter that has not read the new options is granted one next');
is($local->safe_psql('postgres', q{SELECT state FROM pgpool.leases WHERE server = 'two'}), 'idle', 'statement of the stopped waiter has not been sent');
is($local->safe_psql('postgres', q{SELECT pipelined FROM pgpool.stats WHERE server = 'two'}), 0, 'no statement was pipelined');
kill 'CONT', $waiter->pid;
is($waiter->finish . $waiter->error, '1', 'stopped waiter sends its statement itself');
is($remote->safe_psql('remote_db', 'SELECT string_agg(n::text, $$ $$) FROM sent'), '1 2', 'statement ran once');

# The options change after a waiter was granted a connection with the old ones, and
# another session has read them.
make_pool($local, $remote, server => 'three', options => { pool_size => 1, retry_min => '10ms' });
my $pid_of = sub {
	my ($session, $lease) = @_;

	like(my $pid = $session->run("SELECT a FROM pgpool.query($lease, 'select pg_backend_pid()') AS t(a int)"), qr/^\d+$/, 'remote session is known')
	  or diag($session->error);
	return $pid;
};
my $old = $pid_of->($holder, lease($holder, 'three'));
$waiter->start(q{SELECT pgpool.checkout('three', '60 s')});
ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'three'}, 1), 'session waits');
kill 'STOP', $waiter->pid;
$holder->run('SELECT pgpool.checkin_all()');
ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'three'}, $waiter->pid), 'stopped session is granted a connection');
$local->safe_psql('postgres', q{ALTER SERVER three OPTIONS (ADD application_name 'three')});
is($first->run(q{SELECT pgpool.try_checkout('three')}) . $first->error, '', 'options change, and another session reads them');
kill 'CONT', $waiter->pid;
my $new = $waiter->finish;
like($new, qr/^\d+$/, 'session is granted a connection') or diag($waiter->error);
isnt($pid_of->($waiter, $new), $old, 'connection has the new options');

# The lease of a stopped waiter is revoked, and the counters are reset, before it has left
# the queue.
make_pool($local, $remote, server => 'four', options => { pool_size => 1 });
foreach my $end (qw(terminated lease_timeouts reclaimed))
{
	lease($holder, 'four');
	$waiter->start(q{SELECT pgpool.checkout('four', '60 s')});
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters WHERE server = 'four'}, 1), "$end: session waits");
	kill 'STOP', $waiter->pid;
	$holder->run('SELECT pgpool.checkin_all()');
	ok(wait_until($local, q{SELECT pid FROM pgpool.leases WHERE server = 'four'}, $waiter->pid), "$end: stopped session is granted a connection");
	$local->safe_psql('postgres', q{ALTER SERVER four OPTIONS (ADD lease_timeout '1ms')}) if $end eq 'lease_timeouts';
	$local->safe_psql('postgres', q{SELECT pgpool.terminate(lease) FROM pgpool.leases WHERE server = 'four'}) if $end eq 'terminated';
	terminate($local, worker_pid($local)) if $end eq 'reclaimed';
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.leases WHERE server = 'four'}, 0), "$end: lease of the stopped session is revoked");
	$local->safe_psql('postgres', q{SELECT pgpool.reset_stats('four')});
	is($local->safe_psql('postgres', "SELECT checkouts, $end FROM pgpool.stats WHERE server = 'four'"), '1|1', "$end: lease is counted after the reset of the counters");
	$local->safe_psql('postgres', q{ALTER SERVER four OPTIONS (DROP lease_timeout)}) if $end eq 'lease_timeouts';
	kill 'CONT', $waiter->pid;
	like($waiter->finish, qr/^\d+$/, "$end: session is granted another lease") or diag($waiter->error);
	check_invariants($local, "$end: invariants hold");
	stats_add_up($local, "$end: counters add up");
	$waiter->run('SELECT pgpool.checkin_all()');
}
# The deadline of a stopped waiter passes. The next waiter is granted the connection, by a
# release and by a hand-over.
SKIP:
{
	skip $CLOCKS_MISSING, 1 unless can_set_clocks();

	foreach my $server (qw(five six))
	{
		my $pipelined = $server eq 'six' ? 1 : 0;
		my $call = $pipelined ? "SELECT pgpool.exec('$server', 'select 1')" : "SELECT pgpool.checkout('$server')";

		make_pool($local, $remote, server => $server, options => { pool_size => 1, checkout_timeout => '1h', max_lifetime => 0 });
		my $lease = lease($holder, $server);
		$holder->run("SELECT pgpool.exec($lease, 'select 1')") if $pipelined;
		$waiter->start($call);
		ok(wait_until($local, "SELECT pid FROM pgpool.waiters WHERE server = '$server'", $waiter->pid), "$server: session waits");
		kill 'STOP', $waiter->pid;
		let_time_pass($local, 7200);
		$first->start($call);
		ok(wait_until($local, "SELECT count(*) FROM pgpool.waiters WHERE server = '$server' AND pid = " . $first->pid, 1), "$server: another session waits");
		$holder->run("SELECT pgpool.checkin($lease)");
		like($first->finish . $first->error, qr/^\d+$/, "$server: session behind one whose deadline has passed is granted the connection");
		is($local->safe_psql('postgres', "SELECT pipelined FROM pgpool.stats WHERE server = '$server'"), $pipelined, "$server: hand-over is pipelined if there is a statement");
		check_invariants($local, "$server: invariants hold before the stopped session has left the queue");
		kill 'CONT', $waiter->pid;
		$waiter->finish;
		$waiter->failed('55P03', qr/no connection to server "$server" became available/, "$server: stopped session receives the error of its timeout");
		is($local->safe_psql('postgres', "SELECT timeouts, granted FROM pgpool.stats WHERE server = '$server'"), '1|2', "$server: one wait is counted as a timeout");
		$first->run('SELECT pgpool.checkin_all()');
	}

	# Two users share the only connection of a server. The stopped session of one of them is next in line for it.
	make_pool($local, $remote, server => 'seven', options => { pool_size => 1, max_server_connections => 1, checkout_timeout => '1h', max_lifetime => 0 });
	$_->run('SET ROLE app') foreach $waiter, $first;
	my $lease = lease($holder, 'seven');
	$waiter->start(q{SELECT pgpool.exec('seven', 'select 1')});
	ok(wait_until($local, q{SELECT reason FROM pgpool.waiters WHERE server = 'seven'}, 'server_cap'), 'seven: session of another user is next in line');
	kill 'STOP', $waiter->pid;
	let_time_pass($local, 7200);
	is($holder->run("SELECT pgpool.checkin($lease)") . $holder->error, '', 'seven: connection is free');
	is($first->run(q{SELECT pgpool.exec('seven', 'select 1')}) . $first->error, '1', 'seven: another session is granted a connection');
	ok(wait_until($local, q{SELECT count(*) FROM pgpool.waiters}, 0), 'seven: stopped session is no longer in the queue');
	kill 'CONT', $waiter->pid;
	$waiter->finish;
	$waiter->failed('55P03', qr/no connection to server "seven" became available/, 'seven: stopped session receives the error of its timeout');
}
$_->quit foreach $holder, $waiter, $first;

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();
