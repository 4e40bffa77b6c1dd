# Lookups of host names, and the options of sockets.
use strict;
use warnings;

use IO::Socket::INET;
use POSIX;
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- host names
# Lookups of host names. A name that does not exist is reported and delays no other
# session.
{
	my $row = 'AS t(a int)';

	make_pool($local, $remote, server => 'named', options => { host => 'localhost' });
	make_pool($local, $remote, server => 'unknown', options => { host => 'no-such-host.invalid', connect_timeout => '8s' });
	make_pool($local, $remote, server => 'several', options => { host => 'no-such-host.invalid,localhost', port => '1,' . $remote->port });

	my $session = PgpxSession->new($local);
	my $lost = PgpxSession->new($local);

	is($session->run("SELECT * FROM pgpool.query('named', 'select 1') $row") . $session->error, '1', 'host name is looked up');
	$lost->start("SELECT pgpool.checkout('unknown', '30 s')");
	is($session->run("SELECT * FROM pgpool.query('named', 'select $_') $row"), $_, 'other pools work during a lookup') foreach 1 .. 5;
	$lost->finish(20);
	$lost->failed('08001', qr/DETAIL:.*no-such-host\.invalid/, 'unknown host name is reported');
	$lost->run("SELECT * FROM pgpool.query('several', 'select 2') $row", 40);
	is($lost->{text}, '2', 'next host of the list is tried') or diag($lost->error);
	is($local->safe_psql('postgres', "SELECT DISTINCT remote_addr FROM pgpool.connections WHERE server = 'named'"),
		'127.0.0.1', 'pgpool.connections shows the address');

	# addresses are not looked up, and libpq reports a wrong combination
	make_pool($local, $remote, server => 'unmatched', options => { host => '127.0.0.1,127.0.0.1,127.0.0.1', port => '1,2' });
	$session->fails("SELECT pgpool.checkout('unmatched')", '08001', qr/could not match 2 port numbers to 3 hosts/, 'mismatched numbers of ports and addresses are reported');

	$_->quit foreach $session, $lost;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- options of sockets
# Options whose effect is not visible in a result: which idle connection is leased first,
# the socket options of the worker (keepalives and tcp_user_timeout, both on
# by default, because either alone leaves a way to hang), and the pauses between failed
# connection attempts (retry_min, retry_max).
{
	# Numbers of system calls on Linux, the same on every architecture since version 5.6.
	use constant { PIDFD_OPEN => 434, PIDFD_GETFD => 438 };
	use constant { SOL_SOCKET => 1, SO_KEEPALIVE => 9, IPPROTO_TCP => 6 };
	my %tcp = (keepalives_idle => 4, keepalives_interval => 5, keepalives_count => 6, tcp_user_timeout => 18);


	# --- free connections: seen by a session that has not used them
	{
		my $first = PgpxSession->new($local);
		my $second = PgpxSession->new($local);

		# without a reset, free connections are idle in the order of their checkin
		make_pool($local, $remote, server => 'lifo', options => { pool_size => 3, reset => 'never' });
		my @leases = map { lease($first, 'lifo') } 1 .. 3;
		my @pids = map { $first->run("SELECT pid FROM pgpool.query($_, 'select pg_backend_pid()') AS t(pid int)") } @leases;
		$first->run("SELECT pgpool.checkin($_)") foreach @leases;
		is($_->run(q{SELECT pid FROM pgpool.query('lifo', 'select pg_backend_pid()') AS t(pid int)}),
			$pids[2], 'connection that was returned last is leased first') foreach $second, $first;
		$_->quit foreach $first, $second;
	}

	# --- sockets: duplicate the worker's socket, which is found by its port
	sub worker_socket
	{
		my ($server) = @_;
		my $pid = worker_pid($local);
		my $remote_pid = $local->safe_psql('postgres', "SELECT remote_pid FROM pgpool.connections WHERE server = '$server'");
		my $port = $remote->safe_psql('postgres', "SELECT client_port FROM pg_stat_activity WHERE pid = $remote_pid");
		my $hex = sprintf ':%04X', $port;

		# other sockets of this machine may use the same port with another address
		my %sockets = map { ('socket:[' . (split)[9] . ']' => 1) } grep { (split)[1] =~ /$hex$/ }
		  split /\n/, slurp_file('/proc/net/tcp');
		my ($fd) = grep { $sockets{ readlink("/proc/$pid/fd/$_") // '' } }
		  map { m{(\d+)$} } glob "/proc/$pid/fd/*";
		my $pidfd = syscall(PIDFD_OPEN, $pid + 0, 0);
		my $copy = $pidfd < 0 ? -1 : syscall(PIDFD_GETFD, $pidfd + 0, $fd + 0, 0);

		POSIX::close($pidfd) if $pidfd >= 0;
		return if $copy < 0;
		open my $socket, '+<&=', $copy or die "could not use the duplicate: $!\n";
		return $socket;
	}

	sub option
	{
		my ($socket, $level, $name) = @_;

		return unpack 'i', getsockopt($socket, $level, $name);
	}

	my %defaults = (keepalives_idle => 30, keepalives_interval => 10, keepalives_count => 3, tcp_user_timeout => 30000);
	my %cases = (
		usual => [ {}, 1, \%defaults ],
		special => [ { keepalives_idle => 7, keepalives_interval => 5, keepalives_count => 4, tcp_user_timeout => 12345 }, 1,
			{ keepalives_idle => 7, keepalives_interval => 5, keepalives_count => 4, tcp_user_timeout => 12345 } ],
		none => [ { keepalives => 0, tcp_user_timeout => 0 }, 0, { tcp_user_timeout => 0 } ]);
	foreach my $server (sort keys %cases)
	{
		my ($options, $keepalive, $values) = @{ $cases{$server} };

		make_pool($local, $remote, server => $server, options => $options);
		is($local->safe_psql('postgres', "SELECT pgpool.exec('$server', 'select 1')"), '1', "$server: connection is open");
	  SKIP:
		{
			my $socket = worker_socket($server);

			skip "worker's sockets cannot be duplicated: $!", 1 + keys %$values unless $socket;
			is(option($socket, SOL_SOCKET, SO_KEEPALIVE), $keepalive, "$server: SO_KEEPALIVE has the option's value");
			is(option($socket, IPPROTO_TCP, $tcp{$_}), $values->{$_}, "$server: socket has the option's $_") foreach sort keys %$values;
		}
	}

	# --- pauses between attempts to connect to a closed port, as shown in pgpool.pools
	my $listener = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die "no listener: $!";
	my $closed_port = $listener->sockport;
	my $session = PgpxSession->new($local);
	close $listener;
	my $pause = 'extract(epoch FROM next_try_at - last_error_at)';

	# each pause is up to a quarter shorter, at random
	make_pool($local, $remote, server => 'slow', options => { port => $closed_port, retry_min => '8s', retry_max => '20s' });
	$session->fails("SELECT pgpool.checkout('slow')", '08001', qr/refused/, 'slow: connection is refused');
	is($local->safe_psql('postgres', "SELECT $pause BETWEEN 5.9 AND 8.1 FROM pgpool.pools WHERE server = 'slow'"),
		't', 'slow: first pause is retry_min')
	  or diag($local->safe_psql('postgres', "SELECT $pause FROM pgpool.pools WHERE server = 'slow'"));
	$session->quit;
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
