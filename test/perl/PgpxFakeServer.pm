# A fake remote server. It accepts any user without a password, and then behaves as the
# database name in the startup packet selects.
#
#   my $fake = PgpxFakeServer->new(
#      honest => sub { $_[0]->serve },            # answers correctly
#      silent => sub { $_[0]->receive; sleep },   # reads the query, does not answer
#       rude => { login => sub { $_[0]->send('HTTP/1.1 400') } },
#       old => { version => '14.4', do => sub { $_[0]->serve } });
#   make_pool($local, $fake, server => 's', remote_dbname => 'honest');
#
# "login" sends everything itself, for example greeting() and ready(). make_servers
# makes a foreign server s_NAME for each behaviour.
#
# With "folder" the server listens on a Unix-domain socket in that folder, without TLS.
#
# "cancel" is called with the process ID of a cancel request and the socket that received
# it. {startup} has the parameters of the startup packet. {ended}, if set, is called when
# the client has closed the connection while the server sends.
#
# Each connection is served by a process of its own. The server ends with the test.
# Pools set sslmode to PgpxFakeServer::sslmode(): in the suites over TLS each connection
# is accepted by a tls_front.c.
package PgpxFakeServer;

use strict;
use warnings;

use Errno;
use Exporter 'import';
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Socket qw(AF_UNIX IPPROTO_TCP PF_UNSPEC SOCK_STREAM TCP_NODELAY);

our @EXPORT_OK = qw(message greeting backend_key ready done columns row failure);

my @servers;

sub new
{
	my ($class, %behaviours) = @_;
	my $folder = delete $behaviours{folder};
	my $listener = defined $folder ? IO::Socket::UNIX->new(Listen => 64, Local => "$folder/.s.PGSQL.5432") :
	  IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1');
	die "no listener: $!" unless $listener;
	my $self = bless { port => defined $folder ? 5432 : $listener->sockport, names => [ grep { $_ ne 'cancel' } sort keys %behaviours ] }, $class;

	$self->{pid} = fork // die "fork: $!";
	if ($self->{pid} == 0)
	{
		# _exit skips the END blocks of the test
		setpgrp;
		$SIG{CHLD} = 'IGNORE';
		while (my $socket = $listener->accept)
		{
			my $child = fork // POSIX::_exit(1);

			close($socket), next if $child;
			# send at once, as a real server does
			setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1;
			eval { connection($socket, \%behaviours) };
			POSIX::_exit(0);
		}
		POSIX::_exit(0);
	}
	close $listener;
	push @servers, $self;
	return $self;
}

sub port { return $_[0]->{port}; }

sub sslmode { return $ENV{PGPX_TEST_TLS} ? 'require' : 'disable'; }

# Create the server s_NAME of a behaviour, with a pool of one connection, and a user mapping
# for the session's user. Servers whose names begin with "start" have start commands.
sub make_server
{
	my ($self, $session, $name, $timeout) = @_;
	my $start = $name =~ /^start/ ? ", start_commands 'select 1'" : '';

	$session->run(<<"EOT");
CREATE SERVER s_$name FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$self->{port}', dbname '$name',
	sslmode '${\ sslmode() }', pool_size '1', connect_timeout '$timeout', operation_timeout '$timeout'$start);
CREATE USER MAPPING FOR CURRENT_USER SERVER s_$name OPTIONS (user 'any_user', password 'something');
EOT
	die $session->error if $session->error ne '';
	return;
}

# Create the servers of all behaviours.
sub make_servers
{
	my ($self, $session, $timeout) = @_;

	$self->make_server($session, $_, $timeout) foreach @{ $self->{names} };
	return;
}

# After an SSLRequest: from now on the connection's bytes pass through a process that
# does TLS.
sub encrypt
{
	my ($socket) = @_;
	my $folder = $ENV{PGPX_TEST_TLS};

	syswrite $socket, 'S';
	socketpair my $mine, my $plain, AF_UNIX, SOCK_STREAM, PF_UNSPEC or die "socketpair: $!";
	my $child = fork // POSIX::_exit(1);

	if ($child == 0)
	{
		POSIX::dup2(fileno $socket, 0);
		POSIX::dup2(fileno $plain, 1);
		POSIX::close($_) foreach 3 .. 255;
		exec("$folder/tls_front", "$folder/server.crt", "$folder/server.key")
		  or POSIX::_exit(1);
	}
	close $_ foreach $socket, $plain;
	return ($mine, $child);
}

# Serve one connection: log in, then call the behaviour.
sub connection
{
	my ($socket, $behaviours) = @_;
	my $self = bless { socket => $socket }, __PACKAGE__;
	my ($length, $code) = unpack 'NN', $self->read_bytes(8);

	if ($code == 80877103 && $ENV{PGPX_TEST_TLS})
	{
		@$self{qw(socket front)} = encrypt($socket);
		($length, $code) = unpack 'NN', $self->read_bytes(8);
	}
	my $packet = $self->read_bytes($length - 8);

	# a cancel request: call the hook with the process ID
	$behaviours->{cancel}->(unpack('N', $packet), $socket) if $code == 80877102 && $behaviours->{cancel};
	return if $code != 196608;

	my %startup = split /\0/, $packet;
	$self->{startup} = \%startup;
	my $behaviour = $behaviours->{ $startup{database} // '' } or return;

	if (ref $behaviour eq 'HASH' && $behaviour->{login})
	{
		$behaviour->{login}->($self);
		return;
	}
	my $version = '15.0';
	($version, $behaviour) = @$behaviour{qw(version do)} if ref $behaviour eq 'HASH';
	$self->send(greeting($version), backend_key(), ready());
	$behaviour->($self);
	return;
}

sub read_bytes
{
	my ($self, $n) = @_;
	my $bytes = '';

	# a signal may interrupt the read
	while (length $bytes < $n)
	{
		my $read = sysread $self->{socket}, $bytes, $n - length $bytes, length $bytes;

		next if !defined $read && $!{EINTR};
		POSIX::_exit(0) unless $read;
	}
	return $bytes;
}

# Read and discard what the client sends, until it closes the connection.
sub read_to_end
{
	my ($self) = @_;
	my $bytes;

	1 while sysread $self->{socket}, $bytes, 65536;
	return;
}

# Read what the client sends up to a Query or a Sync. The echo of a marker in front of it is
# sent by the next send(), unless {mute} is set. Returns the SQL, and records its protocol,
# simple or extended.
# Terminate ends the process or, if {stays} is set, returns undef.
sub receive
{
	my ($self) = @_;
	my $sql = '';
	my $is_marker = 0;

	while (1)
	{
		my ($type, $length) = unpack 'aN', $self->read_bytes(5);
		my $body = $self->read_bytes($length - 4);

		return if $type eq 'X' && $self->{stays};
		POSIX::_exit(0) if $type eq 'X';
		$sql = $body =~ s/\0.*//sr if $type eq 'Q';
		$sql = (split /\0/, $body)[1] if $type eq 'P';
		$self->{bind} = $body if $type eq 'B';
		$is_marker = $body =~ /^\0\0/ if $type eq 'P';
		$self->{marker} = substr $body, 2 if $type eq 'P' && $is_marker;
		$self->{first} = $self->echo if $type eq 'D' && $is_marker && !$self->{mute};
		next unless $type =~ /[QS]/;
		$self->{extended} = $type eq 'S';
		return $sql;
	}
}

sub send
{
	my ($self, @messages) = @_;

	my $bytes = join '', delete $self->{first} // '', @messages;

	# a signal may interrupt the write
	while (length $bytes)
	{
		my $n = syswrite $self->{socket}, $bytes;

		if (!defined $n && !$!{EINTR})
		{
			$self->{ended}->() if $self->{ended};
			POSIX::_exit(0);
		}
		substr($bytes, 0, $n // 0) = '';
	}
	return;
}

# Over TLS: send some TLS messages that carry no data, in one segment with the next
# data.
sub update_keys { return kill 'USR1', $_[0]{front}; }

# Over TLS: send a flood of such messages. Create the file $begun when the client begins
# to read them, and $ended when it has read them all. The client sends nothing
# meanwhile.
sub flood
{
	my ($self, $begun, $ended) = @_;

	kill 'USR2', $self->{front};
	foreach my $file ($begun, $ended)
	{
		$self->read_bytes(1);
		open my $fh, '>', $file or die "open: $!";
		close $fh;
	}
	return;
}

# Over TLS 1.2: request a renegotiation. The connection ends if the client refuses.
sub renegotiate
{
	my ($self) = @_;

	kill 'HUP', $self->{front};
	return $self->read_bytes(1);
}

# Answer queries as a server would: a SELECT with one row of 1, other commands with the
# tag of DISCARD ALL.
sub serve
{
	my ($self, $times) = @_;

	while (!defined $times || $times-- > 0)
	{
		$self->send($self->receive =~ /^select/ ? $self->answer('1') : (done('DISCARD ALL'), ready()));
	}
	return;
}

# --- messages ---------------------------------------------------------------

sub message
{
	my ($type, $body) = @_;

	return pack('aN', $type, 4 + length $body) . $body;
}

# The messages after the login without a password, up to the BackendKeyData.
sub greeting
{
	my ($version) = @_;

	return message('R', pack 'N', 0) . join '', map { message('S', join("\0", @$_) . "\0") } (
		[ server_version => $version // '15.0' ], [ client_encoding => 'UTF8' ],
		[ DateStyle => 'ISO, MDY' ], [ standard_conforming_strings => 'on' ]);
}

# BackendKeyData, which a cancel request needs.
sub backend_key { return message('K', pack 'NN', $$, 42); }

# The answer to a marker: ParseComplete, ParameterDescription, NoData.
sub echo
{
	my ($self) = @_;

	return message('1', '') . message('t', $self->{marker}) . message('n', '');
}

sub ready { return message('Z', 'I'); }

sub done { return message('C', "$_[0]\0"); }

# The beginning of the answer to a SELECT: one column of type text.
sub described
{
	my ($self) = @_;

	return ($self->{extended} ? message('1', '') . message('2', '') : '') . columns(1);
}

# A RowDescription of $n columns of type text.
sub columns
{
	my ($n) = @_;

	return message('T', pack('n', $n) . ("a\0" . pack 'NnNnNn', 0, 0, 25, 65535, 0xFFFFFFFF, 0) x $n);
}

sub row { return message('D', pack('n', scalar @_) . join '', map { pack('N/a', $_) } @_); }

sub answer
{
	my ($self, @values) = @_;

	return join '', $self->described, row(@values), done('SELECT 1'), ready();
}

# ErrorResponse with these fields: M => 'text', ...
sub failure
{
	my (@fields) = @_;
	my $body = '';

	while (my ($code, $value) = splice @fields, 0, 2)
	{
		$body .= "$code$value\0";
	}
	return message('E', "$body\0");
}

END
{
	my $status = $?;

	kill 'KILL', -$_->{pid} foreach @servers;
	waitpid $_->{pid}, 0 foreach @servers;
	$? = $status;
}

1;
