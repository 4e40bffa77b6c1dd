# A connection without a reset, as the pool's options permitted, is leased under options
# that require one: the new options apply. No session finds traces of
# another one, nor, with reset 'always', its own.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

my $TRACES = "concat(current_setting('own.trace', true), (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()))";
my $LEAVE = "select set_config('own.trace', 'left', false), pg_advisory_lock(7)";

# In a pool of one connection a holder leaves traces, and a stopped waiter is granted
# the connection. Then the option reset changes from $before to $after, and the waiter
# continues. Returns the traces that it finds.
sub found
{
	my ($before, $after) = @_;
	my $server = "p_$before";
	my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;

	make_pool($local, $remote, server => $server, options => { pool_size => 1, reset => $before });
	$waiter->run("SELECT pgpool.exec('$server', 'select 1')") foreach 1 .. 3;
	my $lease = lease($holder, $server);
	$holder->run("SELECT pgpool.exec($lease, \$\$$LEAVE\$\$)");
	$waiter->start("SELECT pgpool.checkout('$server', '60 s')");
	wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = '$server'", '1') or die 'no waiter';
	kill 'STOP', $waiter->pid;
	$holder->run("SELECT pgpool.checkin($lease)");
	is($local->safe_psql('postgres', "SELECT pid = @{[$waiter->pid]} FROM pgpool.leases WHERE server = '$server'"),
		't', "$before: waiter is granted the connection");
	$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (SET reset '$after')");
	kill 'CONT', $waiter->pid;
	my $own = $waiter->finish;
	my $seen = $waiter->run("SELECT a FROM pgpool.query($own, \$\$select $TRACES\$\$) AS t(a text)");

	$waiter->run("SELECT pgpool.checkin($own)");
	$_->quit foreach $holder, $waiter;
	return $seen;
}

is(found('on_transfer', 'always'), '0', 'change from on_transfer to always: session is clean');
is(found('never', 'always'), '0', 'change from never to always: session is clean');

# --- on_transfer: a session finds its own traces, other sessions find none
sub traces
{
	my ($session, $server) = @_;

	return $session->run("SELECT a FROM pgpool.query('$server', \$\$select $TRACES\$\$) AS t(a text)");
}

my $server = 'mine';
my ($first, $second) = map { PgpxSession->new($local) } 1 .. 2;

make_pool($local, $remote, server => $server, options => { pool_size => 1, reset => 'on_transfer' });
$first->run("SELECT pgpool.exec('$server', 'select 1')") foreach 1 .. 3;
$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
is(traces($first, $server), 'left1', "$server: on_transfer: session finds its own traces");
is(traces($second, $server), '0', "$server: on_transfer: another session finds no traces");
is(traces($first, $server), '0', "$server: on_transfer: traces are removed by another session");
$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
$first->run('DISCARD ALL');
is(traces($first, $server), '0', "$server: on_transfer: traces are removed by a local DISCARD ALL");

$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
$first->run('DISCARD PLANS');
is(traces($first, $server), 'left1', "$server: on_transfer: traces stay after a local DISCARD PLANS");

# a session that was granted the connection and left before it had the socket is not
# recorded as its last user
$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
my $third = PgpxSession->new($local);
my $worker = worker_pid($local);
kill 'STOP', $worker;
$third->start("SELECT pgpool.exec('$server', 'select 1')");
ok(wait_until($local, "SELECT pid = @{[$third->pid]} FROM pgpool.leases WHERE server = '$server'", 't'), "$server: on_transfer: another session is granted the connection");
$local->safe_psql('postgres', "SELECT pg_cancel_backend(@{[$third->pid]})");
$third->finish;
$third->failed('57014', qr/canceling statement/, "$server: on_transfer: other session is cancelled before it has the socket");
kill 'CONT', $worker;
is(traces($third, $server), '0', "$server: on_transfer: other session does not find the traces");
$third->quit;

$first->run("SELECT pgpool.exec('$server', \$\$$LEAVE\$\$)");
$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (SET reset 'always')");
is(traces($first, $server), '0', "$server: always: session does not find its own traces");
$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (SET reset 'on_transfer')");
is(traces($first, $server), '0', "$server: session does not find its own traces after the change back to on_transfer");
$_->quit foreach $first, $second;

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();
