# A proxy that simulates network faults. It passes bytes to and from a server until a
# fault is set.
#
#   my $proxy = PgpxProxy->new($remote->port);
#   make_pool($local, $proxy, server => 's');
#   $proxy->command('freeze');              # set a fault; returns the fault
#   my $fault = $proxy->command('status');  # the current fault
#   my $bytes = $proxy->command('count');   # bytes from the server since the last command
#
# Faults for data from the server on the existing connections (new ones are not
# affected):
#   cut 1000       close after 1000 more bytes on each connection
#   reset 1000     the same with a RST to both sides
#   half 1000      the same for this direction only
#   garbage 1000   then send bytes that are no message, and close
#   flip 1000      corrupt the 1000th byte
#
# Faults for all connections, until the next command:
#   freeze         forward nothing
#   delay 20       forward everything 20 ms late
#   connect 150    forward the login of each new connection 150 ms late
#   hold           accept cancel requests and do not forward them
#   hold all       the same for all new connections, because over TLS a cancel request is
#                  not recognized
#   mute           lose answers; the connections that have lost one close with the next command
#   swallow 3000   lose the next answer to a message of 3000 bytes or more, and close its
#                 connection; then pass
#   keep 3000      hold such an answer back; the status is 'kept' then
#   drop           lose the answer that is kept back
#   pass           no fault
#
# Works for encrypted connections, too, because only lengths are evaluated.
#
# The proxy is one process, which ends with the test. Make it before the test's
# sessions, whose pipes it would inherit otherwise.
package PgpxProxy;

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Socket qw(IPPROTO_TCP SO_LINGER SOL_SOCKET TCP_NODELAY);
use Time::HiRes qw(time);

my @proxies;

# faults that begin after a number of bytes from the server
my $counted = qr/^(?:cut|reset|half|garbage|flip)$/;

sub new
{
	my ($class, $port) = @_;
	my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1')
	  or die "no listener: $!";
	my $self = bless { port => $listener->sockport }, $class;

	pipe my $read, $self->{write} or die "pipe: $!";
	pipe $self->{answer}, my $answer or die "pipe: $!";
	$_->autoflush(1) foreach $self->{write}, $answer;
	$self->{pid} = fork // die "fork: $!";
	if ($self->{pid} == 0)
	{
		# _exit skips the END blocks of the test
		$SIG{PIPE} = 'IGNORE';
		close $self->{write};
		eval { loop($listener, $port, $read, $answer) };
		POSIX::_exit(0);
	}
	push @proxies, $self;
	return $self;
}

sub port { return $_[0]->{port}; }

# Sends a command. Returns the proxy's reply when the fault is in effect.
sub command
{
	my ($self, $what) = @_;

	syswrite $self->{write}, "$what\n";
	sysread $self->{answer}, my $got, 100;
	chomp $got;
	return $got;
}

sub send_all
{
	my ($to, $data) = @_;

	while (length $data)
	{
		my $sent = syswrite $to, $data or return;

		substr $data, 0, $sent, '';
	}
	return;
}

# Applies a fault to bytes of the server: what is passed on, and what happens then.
sub corrupt
{
	my ($fault, $data, $left) = @_;

	if ($fault eq 'flip')
	{
		substr($data, $left - 1, 1) ^= "\x01";
		return ($data, '');
	}
	# neither a message nor valid UTF-8
	return (substr($data, 0, $left) . ($fault eq 'garbage' ? "\x9F" x 200 : ''), $fault);
}

sub loop
{
	my ($listener, $port, $read, $answer) = @_;
	my $select = IO::Select->new($listener, $read);
	my $few = IO::Select->new($listener, $read);
	my (%peer, %from_server, %fresh);
	my %left;          # bytes before the fault begins, by the server's end
	my %asked;         # length of the client's last message, by the server's end
	my %muted;
	my @late;          # time, destination, data
	my @held;
	my @kept;          # client, server, and the data that is kept back
	my ($fault, $bytes, $delay, $passed) = ('pass', 0, 0, 0);
	my $drop = sub {
		# use copies, because their sources are deleted
		foreach my $end (my @ends = @_)
		{
			$select->remove($end);
			delete $_->{$end} foreach \%peer, \%from_server, \%fresh, \%left, \%asked, \%muted;
			close $end;
		}
	};

	while (1)
	{
		my $ends = $fault eq 'freeze' ? $few : $select;
		my $pause = @late && $fault ne 'freeze' ? $late[0][0] - time : undef;

		foreach my $ready ($ends->can_read(defined $pause && $pause < 0 ? 0 : $pause))
		{
			if ($ready == $read)
			{
				sysread($read, my $line, 1000) or return;
				if ($line !~ /^(?:status|count)/)
				{
					($fault, $bytes) = $line =~ /^(\w+) ?(\w*)/;
					$drop->($_, $peer{$_}) foreach my @ends = (splice(@held), values %muted);
					$delay = $fault eq 'delay' ? $bytes / 1000 : 0;
					%left = $fault =~ $counted ? map { $_ => $bytes } keys %from_server : ();
					foreach (splice @kept)
					{
						my ($client, $server, $data) = @$_;

						next unless defined fileno $server;
						$select->add($server);
						$fault eq 'drop' ? $drop->($client, $server) : send_all($client, $data);
					}
					$fault = 'pass' if $fault eq 'drop';
				}
				syswrite $answer, ($line =~ /^count/ ? $passed : $fault) . "\n";
				$passed = 0;
			}
			elsif ($ready == $listener)
			{
				my $client = $listener->accept;
				my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);

				next unless $client;
				(close $client), next unless $server;
				setsockopt $_, IPPROTO_TCP, TCP_NODELAY, 1 foreach $client, $server;
				@peer{ $client, $server } = ($server, $client);
				$from_server{$server} = 1;
				$fresh{$client} = 1;
				$select->add($client, $server);
			}
			elsif ($peer{$ready})
			{
				my $other = $peer{$ready};
				my $n = sysread $ready, my $data, 65536;
				my $then = '';

				if (!$n)
				{
					@held = grep { $_ != $other } @held;
					push @late, [ time + $delay, $other, '', 'cut' ];
					$select->remove($ready);
					next;
				}
				if ($from_server{$ready})
				{
					$passed += $n;
					if ($fault =~ /^(?:swallow|keep)$/ && ($asked{$ready} // 0) >= $bytes)
					{
						if ($fault eq 'keep')
						{
							push @kept, [ $other, $ready, $data ];
							$select->remove($ready);
							$fault = 'kept';
							next;
						}
						$fault = 'pass';
						$drop->($ready, $other);
						next;
					}
					if ($fault eq 'mute')
					{
						$muted{$ready} = $ready;
						next;
					}
				}
				else { $asked{$other} = $n; }

				# length and code of a cancel request; libpq 17 requests TLS before it
				my $asks_for_tls = $fresh{$ready} && $n == 8 && unpack('x4N', $data) == 80877103;
				my $first = !$asks_for_tls && delete $fresh{$ready};
				if ($first && $fault eq 'hold' && ($bytes eq 'all' || $n == 16 && unpack('x4N', $data) == 80877102))
				{
					$select->remove($ready);
					push @held, $ready;
					next;
				}
				if (defined $left{$ready})
				{
					if ($n < $left{$ready}) { $left{$ready} -= $n; }
					else { ($data, $then) = corrupt($fault, $data, delete $left{$ready}); }
				}
				push @late, [ time + ($first && $fault eq 'connect' ? $bytes / 1000 : $delay), $other, $data, $then ];
				@late = sort { $a->[0] <=> $b->[0] } @late if $fault eq 'connect';
				$select->remove($ready) if $then;
			}
		}
		while ($fault ne 'freeze' && @late && $late[0][0] <= time)
		{
			my (undef, $to, $data, $then) = @{ shift @late };
			my $from = $peer{$to} or next;

			send_all($to, $data);
			if ($then eq 'half') { shutdown $to, 1; }
			elsif ($then)
			{
				setsockopt $_, SOL_SOCKET, SO_LINGER, pack 'll', 1, 0
				  foreach $then eq 'reset' ? ($from, $to) : ();
				$drop->($from, $to);
			}
		}
	}
}

END
{
	my $status = $?;

	foreach (@proxies)
	{
		kill 'TERM', $_->{pid};
		waitpid $_->{pid}, 0;
	}
	$? = $status;
}

1;
