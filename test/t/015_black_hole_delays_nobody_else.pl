# A remote that accepts and never answers, and one that does not even accept:
# a checkout fails at the pool's own deadline, and meanwhile other pools work.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# The kernel accepts on behalf of a listener, who then never says a word.
my $silent = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1')
  or die "no listener: $!";

# A full backlog: the packets of the next connect are dropped.
my $full = IO::Socket::INET->new(Listen => 0, LocalAddr => '127.0.0.1')
  or die "no listener: $!";
my @filling = map {
	IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $full->sockport, Blocking => 0)
} 1 .. 8;

make_pool($local, $remote, server => 'good', options => { pool_size => 2 });
make_pool($local, $remote, server => 'silent',
	options => { port => $silent->sockport, connect_timeout => '4s', pool_size => 3 });
make_pool($local, $remote, server => 'no_backlog',
	options => { port => $full->sockport, connect_timeout => '4s' });

my $row = 'AS t(a int)';
my $session = PgpxSession->new($local);
my %stuck = map { $_ => PgpxSession->new($local) } qw(silent no_backlog);
my @more = map { PgpxSession->new($local) } 1 .. 2;

my $took = seconds {
	$stuck{$_}->start("SELECT pgpool.checkout('$_', '60 s')") foreach keys %stuck;
	$_->start("SELECT pgpool.checkout('silent', '60 s')") foreach @more;
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '4'), 'four sessions wait for a black hole');

	# the first of these opens a connection, which is the worker's work too
	is($session->run("SELECT * FROM pgpool.query('good', 'select $_') $row") . $session->error,
		$_, 'another pool answers') foreach 1 .. 20;
	is($stuck{$_}->done, 0, "while $_ does not") foreach sort keys %stuck;

	# who has had enough can leave
	my $pid = $more[1]->pid;
	$local->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$more[1]->finish(3);
	$more[1]->failed('57014', qr/canceling statement/, 'a cancel ends the wait');

	foreach my $pool (sort keys %stuck)
	{
		$stuck{$pool}->finish(30);
		$stuck{$pool}->failed('08001', qr/DETAIL:.*within connect_timeout \(4 s\)/,
			"$pool: the deadline is the pool's own");
	}
	$more[0]->finish(30);
	$more[0]->failed('08001', qr/connect_timeout/, 'the others of the pool get the reason, too');
};
cmp_ok($took, '>', 3.9, 'not before the deadline');
cmp_ok($took, '<', 15, 'and not much later');

is($session->run("SELECT * FROM pgpool.query('good', 'select 7') $row"), '7', 'the other pool works');
is($local->safe_psql('postgres', 'SELECT descriptors FROM pgpool.workers'),
	$local->safe_psql('postgres', 'SELECT ' . descriptors_wanted()),
	'no descriptor is left of the attempts')
  if wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE state = 'connecting'", '0', 30);

# a timeout of the call that is shorter goes first
$took = seconds {
	$session->run("SELECT pgpool.checkout('silent', '500 ms')");
};
like($session->sqlstate, qr/^(?:55P03|08001)$/, 'a shorter timeout of the call goes first');
cmp_ok($took, '<', 3.5, 'in time');

stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
