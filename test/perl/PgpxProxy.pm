# A network that can be made to fail: passes bytes on to a server, until it is told
# to do otherwise.
#
#   my $proxy = PgpxProxy->new($remote->port);
#   make_pool($local, $proxy, server => 's');
#   my $bytes = $proxy->tell('count');  # that have come from there since the last word
#   my $fault = $proxy->tell('look');   # what it does now; so do all others
#
# With what comes from the server on the connections that there are, new ones are
# as they should be:
#   cut 1000       1000 bytes more on each, then its end
#   reset 1000     .. then a RST, to both sides
#   half 1000      .. then that direction ends, the other one goes on
#   garbage 1000   .. then bytes that are no message, and the end
#   flip 1000      the 1000th byte arrives wrong
#
# With all connections, until it is told something else:
#   freeze         nothing is passed on
#   delay 20       all arrives 20 ms late
#   hold           cancel requests are taken in, and no more
#   hold all       .. and all other connections that come, which in TLS look alike
#   mute           answers are lost; those connections end after it
#   swallow 3000   the next answer to a question of so many bytes is lost, and with it
#                  its connection; then all is as it should be
#   keep 3000      .. is kept back: then it is 'kept', until ..
#   drop           .. it is lost, too
#   pass           all is as it should be
#
# What is encrypted passes as well: it looks at lengths alone.
#
# One process, which ends with the test.  Make it before the test's sessions: it
# would hold their ends of the pipes.
package PgpxProxy;

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Socket qw(IPPROTO_TCP SO_LINGER SOL_SOCKET TCP_NODELAY);
use Time::HiRes qw(time);

my @proxies;

# faults that begin after so many bytes of a server
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
		# _exit: what the test does at its end is not to be done here
		$SIG{PIPE} = 'IGNORE';
		close $self->{write};
		eval { loop($listener, $port, $read, $answer) };
		POSIX::_exit(0);
	}
	push @proxies, $self;
	return $self;
}

sub port { return $_[0]->{port}; }

# Returns when it is so.
sub tell
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

# Bytes of a server that fail: what is passed on of them, and what is done then.
sub spoil
{
	my ($fault, $data, $left) = @_;

	if ($fault eq 'flip')
	{
		substr($data, $left - 1, 1) ^= "\x01";
		return ($data, '');
	}
	# neither a message nor a text in UTF-8
	return (substr($data, 0, $left) . ($fault eq 'garbage' ? "\x9F" x 200 : ''), $fault);
}

sub loop
{
	my ($listener, $port, $read, $answer) = @_;
	my $select = IO::Select->new($listener, $read);
	my $few = IO::Select->new($listener, $read);
	my (%peer, %from_server, %fresh);
	my %left;          # bytes before something happens, by the server's end
	my %asked;         # length of the last question, by the server's end
	my %muted;
	my @late;          # when, to whom, what
	my @held;
	my @kept;          # client, server, and what is kept back from it
	my ($fault, $bytes, $delay, $passed) = ('pass', 0, 0, 0);
	my $drop = sub {
		# copies: what they come from is deleted
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
				if ($line !~ /^(?:look|count)/)
				{
					($fault, $bytes) = $line =~ /^(\w+) ?(\w*)/;
					$drop->($_, $peer{$_}) foreach splice @held;
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
					if ($fault eq 'mute' || $muted{$ready})
					{
						$muted{$ready} = 1;
						$drop->($ready, $other) unless $fault eq 'mute';
						next;
					}
				}
				else { $asked{$other} = $n; }

				# length and code of a cancel request; libpq 17 asks for TLS before it
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
					else { ($data, $then) = spoil($fault, $data, delete $left{$ready}); }
				}
				push @late, [ time + $delay, $other, $data, $then ];
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
