# Each host of a list has a share of connect_timeout of its own: also the second one if libpq
# itself has continued with it, late in the share of the first one.
use strict;
use warnings;

use IO::Socket::INET;
use PgpxFakeServer qw(failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'the shares of hosts do not depend on TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local');
my $session = PgpxSession->new($local);
my %two = (host => '127.0.0.1,127.0.0.1', pool_size => 3);

# The first host reports, late in its share, that it is starting up. libpq itself
# continues with the second host, which drops one packet. The second host has a share of
# its own, not the rest of the first one's.
{
	my ($starting, $dropping) = map { IO::Socket::INET->new(Listen => $_, LocalAddr => '127.0.0.1') or die "no listener: $!" } 5, 0;
	my ($first_port, $second_port) = map { $_->sockport } $starting, $dropping;
	my $hangs = sprintf ':%04X 02 ', $second_port;

	# (one of the closed connections stays in the backlog)
	$_->close foreach map { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $second_port, Blocking => 0) } 1 .. 8;
	$_->blocking(0) foreach $starting, $dropping;
	make_pool($local, $remote, server => 'starting_first', options => { %two, sslmode => 'disable', port => "$first_port,$second_port", connect_timeout => '12s' });
	$session->start(q{SELECT pgpool.checkout('starting_first', '60 s')});
	my $asked;
	ok(wait_until($local, sub { ($asked = $starting->accept) ? 1 : 0 }, 1, 20), 'host that is starting up is tried');
	usleep(5_200_000);
	$asked->syswrite(failure(S => 'FATAL', V => 'FATAL', C => '57P03', M => 'the database system is starting up'));
	ok(wait_until($local, sub { slurp_file('/proc/net/tcp') =~ /$hangs/ ? 1 : 0 }, 1, 30), 'next host is tried after its answer, and drops a packet');
	1 while $dropping->accept;
	my $second;
	ok(wait_until($local, sub { ($second = $dropping->accept) ? 1 : 0 }, 1, 20), q{second packet arrives within the second host's share});
	close $_ foreach grep { defined } $second, $dropping;
	ok(!$starting->accept, 'first host is not tried again');
	close $starting;
	$session->finish(60);
	$session->failed('08001', qr/port $first_port failed: .*starting up.*port $second_port failed: /s, 'waiter receives the reasons of both hosts');
}

$session->quit;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
