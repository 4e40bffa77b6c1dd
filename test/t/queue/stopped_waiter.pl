# A new worker asks the waiters for the conninfo. A waiter that is stopped and cannot
# publish it is asked once only. A stopped waiter is granted no connection with outdated
# options, and its grant is counted although its lease was revoked.
use strict;
use warnings;

use PgpxTest;
use Test::More;
use Time::HiRes qw(usleep);

my $remote = remote_node('remote');
my $local = local_node('local');
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
$_->quit foreach $holder, $waiter, $first;

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();
