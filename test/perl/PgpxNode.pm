# A PostgreSQL::Test::Cluster that sends a single statement to the server itself, because
# the start of psql takes longer than most statements.
#
# Each statement has its own session. The functions return when its backend has exited.
# Rows, messages and status are those of psql, with these exceptions: errors have no LINE,
# each message names line 1, a row without columns is an empty line, and the environment
# variables of libpq have no effect. psql still runs several statements, backslash
# commands, COPY, and calls with other arguments than those in %own_arguments.
package PgpxNode;

use strict;
use warnings;

use parent 'PostgreSQL::Test::Cluster';

use File::Basename 'basename';
use IO::Socket::UNIX;

# exit statuses of psql
use constant { CONNECTION_FAILED => 2, STATEMENT_FAILED => 3 };
use constant PROTOCOL_VERSION => 3 << 16;

my %own_arguments = map { $_ => 1 } qw(stdout stderr on_error_die);

sub psql
{
	my ($self, $dbname, $sql, %params) = @_;

	# safe_psql sets on_error_stop, which has no effect on a single statement
	delete $params{on_error_stop} if $params{on_error_stop};
	return $self->SUPER::psql($dbname, $sql, %params)
	  if $sql =~ /\\|;\s*\S|^\s*COPY\b/i || $dbname !~ /^\w+$/ || grep { !$own_arguments{$_} } keys %params;

	my ($status, $rows, $messages) = run_statement($self->host . '/.s.PGSQL.' . $self->port, $dbname, $sql);

	chomp($rows, $messages);
	${ $params{stdout} } = $rows if ref $params{stdout};
	${ $params{stderr} } = $messages if ref $params{stderr};
	print STDERR "$messages\n" if $messages ne '' && !ref $params{stderr} && !wantarray;
	die +($status == CONNECTION_FAILED ? 'connection error' : 'error running SQL') . ": '$messages'\nwhile running '$sql'"
	  if $status != 0 && $params{on_error_die};
	return wantarray ? ($status, $rows, $messages) : $status;
}

# Run a statement in a new session, at the Unix-domain socket $path. Returns psql's
# status, rows and messages.
sub run_statement
{
	my ($path, $dbname, $sql) = @_;
	my $connection_failed = qq{psql: error: connection to server on socket "$path" failed: };
	my $socket = IO::Socket::UNIX->new(Peer => $path) or return (CONNECTION_FAILED, '', "$connection_failed$!\n");
	my $startup = pack 'N(Z*)*x', PROTOCOL_VERSION, user => scalar getpwuid($<), database => $dbname,
	  application_name => basename($0);
	my ($status, $rows, $messages, $connected) = (0, '', '', 0);

	# the server may close the socket while a message is sent
	local $SIG{PIPE} = 'IGNORE';
	utf8::encode($sql) if utf8::is_utf8($sql);
	syswrite $socket, pack('N', 4 + length $startup) . $startup;
	while (my ($type, $body) = read_message($socket))
	{
		if ($type eq 'Z' && !$connected)
		{
			$connected = 1;
			syswrite $socket, pack('aNZ*', 'Q', 5 + length $sql, $sql);
		}
		elsif ($type eq 'Z')
		{
			# send Terminate; the end of the input shows that the backend has exited
			syswrite $socket, pack('aN', 'X', 4);
			while (my ($ignored) = read_message($socket)) { }
			return ($status, $rows, $messages);
		}
		elsif ($type eq 'D')
		{
			$rows .= join('|', values_of($body)) . "\n";
		}
		elsif ($type eq 'E' || $type eq 'N')
		{
			# psql prints no rows of a statement that fails
			($status, $rows) = (STATEMENT_FAILED, '') if $type eq 'E';
			$messages .= ($connected ? 'psql:<stdin>:1: ' : $type eq 'E' ? $connection_failed : '') . text_of($body);
		}
		elsif ($type =~ /[GHW]/)
		{
			die "PgpxNode does not support COPY: $sql";
		}
		elsif ($type eq 'R' && unpack('N', $body) != 0)
		{
			die "the server at $path requires another authentication method than trust";
		}
	}
	return (CONNECTION_FAILED, '', $messages . ($connected ? "server closed the connection unexpectedly\n" : ''));
}

# Read a message. Returns its type and body, or an empty list if the server has closed the
# connection.
sub read_message
{
	my ($socket) = @_;
	my $header = read_bytes($socket, 5) // return;
	my ($type, $length) = unpack 'aN', $header;
	my $body = read_bytes($socket, $length - 4) // return;

	return ($type, $body);
}

# Returns undef if the server has closed the connection. (read continues until it has the
# whole length; sysread does not.)
sub read_bytes
{
	my ($socket, $length) = @_;
	my $bytes = '';

	return (read($socket, $bytes, $length) // 0) == $length ? $bytes : undef;
}

# The values of a DataRow as psql prints them.
sub values_of
{
	my ($row) = @_;
	my $at = 2;

	return map {
		my $length = unpack 'l>', substr $row, $at, 4;
		my $value = $length < 0 ? '' : substr $row, $at + 4, $length;

		$at += 4 + length $value;
		$value;
	} 1 .. unpack 'n', $row;
}

# The text of an ErrorResponse or a NoticeResponse as psql prints it.
sub text_of
{
	my ($fields) = @_;
	my %field = map { substr($_, 0, 1) => substr($_, 1) } split /\0/, $fields;
	my $text = "$field{S}:  $field{M}\n";

	$text .= "DETAIL:  $field{D}\n" if defined $field{D};
	$text .= "HINT:  $field{H}\n" if defined $field{H};
	$text .= "QUERY:  $field{q}\n" if defined $field{q};
	$text .= "CONTEXT:  $field{W}\n" if defined $field{W} && $field{S} =~ /ERROR|FATAL|PANIC/;
	return $text;
}

1;
