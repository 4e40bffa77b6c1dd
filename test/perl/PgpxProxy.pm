# A network that can be made to fail: passes bytes on to a server, until it is told
# to do otherwise with those that come from there.
#
#   my $proxy = PgpxProxy->new($remote->port);
#   make_pool($local, $proxy, server => 's');
#   $proxy->tell('cut 1000');     # 1000 bytes more on each connection, then its end
#   $proxy->tell('flip 1000');    # the 1000th byte arrives wrong
#   $proxy->tell('pass');         # new connections are as they should be
#
# One process, which ends with the test.  Make it before the test's sessions: it
# would hold their ends of the pipes.
package PgpxProxy;

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Socket qw(IPPROTO_TCP TCP_NODELAY);

my @proxies;

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
	sysread $self->{answer}, my $got, 3;
	return;
}

sub loop
{
	my ($listener, $port, $read, $answer) = @_;
	my $select = IO::Select->new($listener, $read);
	my %peer;
	my %from_server;
	my %left;          # bytes before something happens, by the server's end
	my $fault = '';
	my $drop = sub {
		foreach my $end (@_)
		{
			$select->remove($end);
			delete $_->{$end} foreach \%peer, \%from_server, \%left;
			close $end;
		}
	};

	while (1)
	{
		foreach my $ready ($select->can_read)
		{
			if ($ready == $read)
			{
				sysread($read, my $line, 1000) or return;
				(my $what, my $bytes) = $line =~ /^(\w+) ?(\d*)/;
				$fault = $what eq 'pass' ? '' : $what;
				%left = map { $_ => $bytes } keys %from_server;
				syswrite $answer, "ok\n";
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
				$select->add($client, $server);
			}
			elsif ($peer{$ready})
			{
				my $other = $peer{$ready};
				my $n = sysread $ready, my $data, 65536;

				if (!$n)
				{
					$drop->($ready, $other);
					next;
				}
				if ($fault && defined $left{$ready})
				{
					if ($n < $left{$ready}) { $left{$ready} -= $n; }
					elsif ($fault eq 'cut')
					{
						syswrite $other, substr $data, 0, $left{$ready};
						$drop->($ready, $other);
						next;
					}
					else
					{
						substr($data, $left{$ready} - 1, 1) ^= "\x01";
						delete $left{$ready};
					}
				}
				while (length $data)
				{
					my $sent = syswrite $other, $data;

					last unless $sent;
					substr $data, 0, $sent, '';
				}
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
