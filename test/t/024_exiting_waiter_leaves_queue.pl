# A session that ends while it waits, however it ends, leaves the queue, and those
# behind it are served as if it had never been there.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });

my $holder = PgpxSession->new($local);
my $lease = lease($holder, 'one');

# Queue sessions, in this order.
sub queue
{
	my ($n) = @_;
	my @waiters = map { PgpxSession->new($local) } 1 .. $n;

	foreach my $i (0 .. $#waiters)
	{
		$waiters[$i]->start("SELECT pgpool.checkout('one', '60 s')");
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', $i + 1) or die 'no waiter';
	}
	return @waiters;
}

sub order
{
	return $local->safe_psql('postgres', "SELECT string_agg(pid::text, ',' ORDER BY position) FROM pgpool.waiters");
}

my @waiters = queue(6);
is(order(), join(',', map { $_->pid } @waiters), 'six sessions wait in their order');

# the first is terminated, one is cancelled, one's time is up
ok(terminate($local, $waiters[0]->pid), 'the first is terminated');
$waiters[0]->finish(10);
ok($waiters[0]->is_gone, 'its session has ended');
is(order(), join(',', map { $_->pid } @waiters[ 1 .. 5 ]), 'it has left the queue');
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiters[2]->pid . ')');
$waiters[2]->finish(10);
$waiters[2]->failed('57014', qr/canceling statement/, 'the third is cancelled');
is(order(), join(',', map { $_->pid } @waiters[ 1, 3, 4, 5 ]), 'and has left the queue');
ok(terminate($local, $waiters[5]->pid), 'the last is terminated');
is(order(), join(',', map { $_->pid } @waiters[ 1, 3, 4 ]), 'and has left the queue');
check_invariants($local, 'the invariants hold with a queue');

# the holder goes, too: the next one is served at once
my $delay = delay_begin();
my $took = seconds {
	ok(terminate($local, $holder->pid), 'the holder is terminated');
	like($waiters[1]->finish(20), qr/^\d+$/, 'the next waiter is served');
};
cmp_ok($took, '<', 3 + delay_end($delay, 3), 'soon');
is($waiters[3]->done + $waiters[4]->done, 0, 'and nobody else');

# A lease that goes on to one who dies, or has had enough, at the same moment.
$_->run('SELECT pgpool.checkin_all()'), $_->quit foreach @waiters[ 1, 3, 4 ];
$holder = PgpxSession->new($local);
my $next = PgpxSession->new($local);
my $killer = PgpxSession->new($local);
my $served = 0;
my %fate = (served => 0, ended => 0);
foreach my $round (1 .. 100)
{
	my $victim = PgpxSession->new($local);
	my $end = $round % 2 ? 'pg_terminate_backend' : 'pg_cancel_backend';
	my $grant = "SELECT pgpool.checkin_all()";
	my $kill = sprintf 'SELECT %s(%d)', $end, $victim->pid;

	lease($holder, 'one');
	$victim->start("SELECT pgpool.checkout('one', '60 s')");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	$next->start("SELECT pgpool.checkout('one', '60 s')");
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
is($served, 100, 'who is behind a dying one is served');
note "of the dying, $fate{served} were served before";
check_invariants($local, 'the invariants hold');
is($local->safe_psql('postgres', 'SELECT timeouts, failed FROM pgpool.stats'), '0|0', 'nobody waited in vain');

# It waits with a statement, which could go out on the lease that ends with its own
# transaction: it ends, and sends nothing.
make_pool($local, $remote, server => 'two', options => { pool_size => 2 });
$remote->safe_psql('remote_db', 'CREATE TABLE log (n int); GRANT ALL ON log TO remote_app');
lease($holder, 'two');
foreach my $level ('transaction', 'savepoint')
{
	my $victim = PgpxSession->new($local);

	$victim->run('BEGIN');
	$victim->run('SAVEPOINT s') if $level eq 'savepoint';
	is($victim->run("SELECT pgpool.exec(pgpool.checkout_xact('two'), 'select 1')"), '1', "$level: it holds a lease");
	$victim->start(q{SELECT pgpool.exec('two', 'insert into log values (1)')});
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1'), "$level: and waits with a statement");
	ok(terminate($local, $victim->pid), "$level: it is terminated");
	$victim->finish(10);
	ok($victim->is_gone, "$level: its session has ended");
	is($local->safe_psql('postgres', "SELECT checkins, closed_holder_died FROM pgpool.stats WHERE server = 'two'"),
		$level eq 'transaction' ? '1|0' : '2|0', "$level: its lease was returned, with nothing on it");
	ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'active'}, '0'), "$level: nothing runs over there");
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM log'), '0', "$level: and the statement has not run");
}
$holder->run('SELECT pgpool.checkin_all()');

stats_add_up($local);
leak_check($local, $remote);
done_testing();
