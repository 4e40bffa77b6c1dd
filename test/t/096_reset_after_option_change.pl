# A connection that was left unreset, as the pool's options wanted it, is lent under
# options that want it reset: they count.  Nobody finds another's traces, nor, where
# every lease is to begin clean, his own.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

my $TRACES = "concat(current_setting('own.trace', true), (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()))";
my $LEAVE = "select set_config('own.trace', 'left', false), pg_advisory_lock(7)";

# Of a pool with one connection, between what "before" and "after" say of the reset:
# a holder leaves traces, a waiter is granted the connection, but is stopped.  Then
# the options change, and it goes on.  What does it find?
sub found
{
	my ($before, $after) = @_;
	my $server = "p_$before";
	my ($holder, $waiter) = map { PgpxSession->new($local) } 1 .. 2;

	make_pool($local, $remote, server => $server, options => { pool_size => 1, reset => $before });
	$waiter->run("SELECT pgpool.exec('$server', 'select 1')");
	my $lease = lease($holder, $server);
	$holder->run("SELECT pgpool.exec($lease, \$\$$LEAVE\$\$)");
	$waiter->start("SELECT pgpool.checkout('$server', '60 s')");
	wait_until($local, "SELECT waiters FROM pgpool.pools WHERE server = '$server'", '1') or die 'no waiter';
	kill 'STOP', $waiter->pid;
	$holder->run("SELECT pgpool.checkin($lease)");
	is($local->safe_psql('postgres', "SELECT pid = @{[$waiter->pid]} FROM pgpool.leases WHERE server = '$server'"),
		't', "$before: the waiter has it");
	$local->safe_psql('postgres', "ALTER SERVER $server OPTIONS (SET reset '$after')");
	kill 'CONT', $waiter->pid;
	my $own = $waiter->finish;
	my $seen = $waiter->run("SELECT a FROM pgpool.query($own, \$\$select $TRACES\$\$) AS t(a text)");

	$waiter->run("SELECT pgpool.checkin($own)");
	$_->quit foreach $holder, $waiter;
	return $seen;
}

is(found('on_transfer', 'always'), '0', 'from on_transfer to always: the session is clean');
is(found('never', 'always'), '0', 'from never to always: so it is');

# --- on_transfer alone: whoever comes back finds his own traces, others none
make_pool($local, $remote, server => 'mine', options => { pool_size => 1, reset => 'on_transfer' });
my ($first, $second) = map { PgpxSession->new($local) } 1 .. 2;

sub traces
{
	my ($session) = @_;

	return $session->run("SELECT a FROM pgpool.query('mine', \$\$select $TRACES\$\$) AS t(a text)");
}

$first->run("SELECT pgpool.exec('mine', \$\$$LEAVE\$\$)");
is(traces($first), 'left1', 'on_transfer: one\'s own traces stay');
is(traces($second), '0', '.. and are not for others');
is(traces($first), '0', '.. after whom they are gone');
$first->run("SELECT pgpool.exec('mine', \$\$$LEAVE\$\$)");
$first->run('DISCARD ALL');
is(traces($first), '0', '.. nor are they one\'s own after a DISCARD ALL, as between two clients of a pooler');

$first->run("SELECT pgpool.exec('mine', \$\$$LEAVE\$\$)");
$first->run('DISCARD PLANS');
is(traces($first), 'left1', '.. but for that they stay');

# who was granted the connection, and gave up before he had its socket, has not become
# the one whose session it holds
$first->run("SELECT pgpool.exec('mine', \$\$$LEAVE\$\$)");
my $third = PgpxSession->new($local);
my $worker = worker_pid($local);
kill 'STOP', $worker;
$third->start("SELECT pgpool.exec('mine', 'select 1')");
ok(wait_until($local, "SELECT pid = @{[$third->pid]} FROM pgpool.leases WHERE server = 'mine'", 't'), 'on_transfer: another one is granted the connection');
$local->safe_psql('postgres', "SELECT pg_cancel_backend(@{[$third->pid]})");
$third->finish;
$third->failed('57014', qr/canceling statement/, '.. and gives up before it has the socket');
kill 'CONT', $worker;
is(traces($third), '0', '.. which does not make the traces its own');
$third->quit;

$first->run("SELECT pgpool.exec('mine', \$\$$LEAVE\$\$)");
$local->safe_psql('postgres', "ALTER SERVER mine OPTIONS (SET reset 'always')");
is(traces($first), '0', 'always: one\'s own traces are gone, too');
$_->quit foreach $first, $second;

check_invariants($local);
stats_add_up($local);
leak_check($local, $remote);
done_testing();
