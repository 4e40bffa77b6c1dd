# A session that ends while it waits, in whatever way, leaves the queue. The waiters
# behind it keep their order.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

my $holder = PgpxSession->new($local);
my $lease = lease($holder, 'one');

# Enqueue sessions in this order.
sub queue
{
	my ($n) = @_;
	my @waiters = map { PgpxSession->new($local) } 1 .. $n;

	foreach my $i (0 .. $#waiters)
	{
		$waiters[$i]->start("SELECT pgpool.checkout('one', '10 min')");
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $i + 1) or die 'no waiter';
	}
	return @waiters;
}

sub order
{
	return $local->safe_psql('postgres', "SELECT string_agg(pid::text, ',' ORDER BY position) FROM pgpool.waiters");
}

my @waiters = queue(6);
is(order(), join(',', map { $_->pid } @waiters), 'six sessions wait in order');

# one waiter is terminated, one is cancelled
ok(terminate($local, $waiters[0]->pid), 'first waiter is terminated');
$waiters[0]->finish(10);
ok($waiters[0]->is_gone, 'session of the first waiter has ended');
is(order(), join(',', map { $_->pid } @waiters[ 1 .. 5 ]), 'first waiter has left the queue');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiters[2]->pid . ')');
$waiters[2]->finish(10);
$waiters[2]->failed('57014', qr/canceling statement/, 'third waiter is cancelled');
is(order(), join(',', map { $_->pid } @waiters[ 1, 3, 4, 5 ]), 'third waiter has left the queue');
ok(terminate($local, $waiters[5]->pid), 'last waiter is terminated');
is(order(), join(',', map { $_->pid } @waiters[ 1, 3, 4 ]), 'last waiter has left the queue');
check_invariants($local, 'invariants hold with a queue');

# the holder ends, too: the next waiter is granted the connection at once
ok(terminate($local, $holder->pid), 'holder is terminated');
like($waiters[1]->finish, qr/^\d+$/, 'next waiter is granted a connection');
is($waiters[3]->done + $waiters[4]->done, 0, 'other waiters still wait');

# A grant to a waiter that is terminated or cancelled at the same moment.
$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach @waiters[ 1, 3, 4 ];
$holder = PgpxSession->new($local);
my $next = PgpxSession->new($local);
my $killer = PgpxSession->new($local);
my $served = 0;
my %fate = (served => 0, ended => 0);
foreach my $round (1 .. 30)
{
	my $victim = PgpxSession->new($local);
	my $end = $round % 2 ? 'pg_terminate_backend' : 'pg_cancel_backend';
	my $grant = "SELECT pgpool.checkin_all()";
	my $kill = sprintf 'SELECT %s(%d)', $end, $victim->pid;

	lease($holder, 'one');
	$victim->start("SELECT pgpool.checkout('one', '10 min')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	$next->start("SELECT pgpool.checkout('one', '10 min')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '2') or die 'no waiter';

	($round % 3 ? $holder : $killer)->start($round % 3 ? $grant : $kill);
	($round % 3 ? $killer : $holder)->start($round % 3 ? $kill : $grant);
	$_->finish foreach $killer, $holder;
	$victim->finish(10);
	$fate{ $victim->{text} =~ /^\d/ ? 'served' : 'ended' }++;
	$victim->quit;
	$served++ if $next->finish(20) =~ /^\d+$/;
	$next->run('SELECT pgpool.checkin_all()');
}
is($served, 30, 'waiter behind a session that ends is granted the connection');
note "of the sessions that ended, $fate{served} were granted a connection before";
check_invariants($local, 'invariants hold after the races');
is($local->safe_psql('postgres', 'SELECT timeouts, failed FROM pgpool.stats'), '0|0', 'no waiter timed out or failed');

# A waiter with a pending statement is terminated. Its own lease is returned during its
# exit, but the pending statement must not be sent on it.
make_pool($local, $remote, server => 'two', options => { pool_size => 2 });
$remote->safe_psql('remote_db', 'CREATE TABLE log (n int); GRANT ALL ON log TO remote_app');
lease($holder, 'two');
foreach my $level ('transaction', 'savepoint')
{
	my $victim = PgpxSession->new($local);

	$victim->run('BEGIN');
	$victim->run('SAVEPOINT s') if $level eq 'savepoint';
	is($victim->run("SELECT pgpool.exec(pgpool.checkout_xact('two'), 'select 1')"), '1', "$level: session holds a lease");
	$victim->start(q{SELECT pgpool.exec('two', 'insert into log values (1)')});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "$level: session waits with a pending statement");
	ok(terminate($local, $victim->pid), "$level: session is terminated");
	$victim->finish(10);
	ok($victim->is_gone, "$level: session has ended");
	is($local->safe_psql('postgres', "SELECT checkins, closed_holder_died FROM pgpool.stats WHERE server = 'two'"),
		$level eq 'transaction' ? '1|0' : '2|0', "$level: lease was returned without a statement on it");
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'active'}, '0'), "$level: nothing runs on the remote server");
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM log'), '0', "$level: pending statement was not executed");
}
$holder->run('SELECT pgpool.checkin_all()');

stats_add_up($local);
leak_check($local, $remote);
done_testing();
