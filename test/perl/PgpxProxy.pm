# A network that can be made to fail: passes bytes on to a server, until it is told
# to do otherwise with those that come from there.
#
#   my $proxy = PgpxProxy->new($remote->port);
#   make_pool($local, $proxy, server => 's');
#   $proxy->tell('cut 1000');     # 1000 bytes more on each connection, then its end
#   $proxy->tell('flip 1000');    # the 1000th byte arrives wrong
#   $proxy->tell('hole');         # nothing goes through, and nobody is told
#   $proxy->tell('mute');         # answers are lost; those connections end after it
#   $proxy->tell('swallow 3000'); # the next answer to a question so long is lost, and
#                                 # with it its connection
#   $proxy->tell('keep 3000');    # .. is kept back: then it is 'kept' until ..
#   $proxy->tell('drop');         # .. it is lost, or ..
#   $proxy->tell('pass');         # all is as it should be
#   $proxy->tell('look');         # returns what it does now
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

# Returns when it is so: what it does now.
sub tell
{
	my ($self, $what) = @_;

	syswrite $self->{write}, "$what\n";
	sysread $self->{answer}, my $got, 100;
	chomp $got;
	return $got;
}

sub loop
{
	my ($listener, $port, $read, $answer) = @_;
	my $select = IO::Select->new($listener, $read);
	my %peer;
	my %from_server;
	my %left;          # bytes before something happens, by the server's end
	my %asked;         # length of the last question, by the server's end
	my %muted;
	my @kept;          # client, server, and what is kept back from it
	my $fault = 'pass';
	my $bytes = 0;
	my $drop = sub {
		foreach my $end (@_)
		{
			$select->remove($end);
			delete $_->{$end} foreach \%peer, \%from_server, \%left, \%asked, \%muted;
			close $end;
		}
	};

	while (1)
	{
		foreach my $ready (($fault eq 'hole' ? IO::Select->new($read) : $select)->can_read)
		{
			if ($ready == $read)
			{
				sysread($read, my $line, 1000) or return;
				if ($line !~ /^look/)
				{
					($fault, $bytes) = $line =~ /^(\w+) ?(\d*)/;
					%left = $fault =~ /^(cut|flip)$/ ? map { $_ => $bytes } keys %from_server : ();
					foreach (@kept)
					{
						my ($client, $server, $data) = @$_;

						next unless defined fileno $server;
						$select->add($server);
						$fault eq 'drop' ? $drop->($client, $server) : syswrite $client, $data;
					}
					@kept = ();
					$fault = 'pass' if $fault eq 'drop';
				}
				syswrite $answer, "$fault\n";
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
				$asked{$other} = $n unless $from_server{$ready};
				if ($from_server{$ready} && $fault =~ /^(swallow|keep)$/ && ($asked{$ready} // 0) >= $bytes)
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
				if ($from_server{$ready} && ($fault eq 'mute' || $muted{$ready}))
				{
					$muted{$ready} = 1;
					$drop->($ready, $other) unless $fault eq 'mute';
					next;
				}
				if (defined $left{$ready})
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
