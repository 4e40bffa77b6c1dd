# A PostgreSQL::Test::Cluster that sends a single statement to the server itself, because
# the start of psql takes longer than most statements.
#
# Each statement has its own session. Its backend has exited when the function returns.
# Queries of views that show the state of the server are an exception: they share a
# session, because the start of a backend takes longer than such a query.
#
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

# Queries that can share a session read only these views, and call only these functions.
# Queries that look for processes of the extension do not share a session: a postmaster of
# version 15 can miss the exit of a worker, and then notices it when a client connects.
my $view = qr/pgpool\.(?:connections|leases|locks|pools|stats|waiters)|pg_stat_activity|pg_locks/;
my $function = qr/array_agg|avg|bool_and|bool_or|coalesce|count|max|min|now|pg_backend_pid|round|string_agg|sum/;

sub can_share_session
{
	my ($sql) = @_;

	return $sql =~ /^\s*SELECT\b.*\bFROM\b/is
	  && $sql !~ /\bFROM(?!\s+$view\b)/i
	  && $sql !~ /\bFROM\s+\S+(?:\s+AS)?(?:\s+\w+)?\s*,/i
	  && $sql !~ /\b(?:JOIN|INTO|FOR)\b|\bbackend_type\s*\S+\s*'pgpool/i
	  && $sql !~ /\b(?!$function\b|(?:AND|AS|BY|FILTER|FROM|IN|NOT|OR|SELECT|WHERE)\b)\w+\s*\(/i;
}

sub psql
{
	my ($self, $dbname, $sql, %params) = @_;

	# safe_psql sets on_error_stop, which has no effect on a single statement
	delete $params{on_error_stop} if $params{on_error_stop};
	return $self->SUPER::psql($dbname, $sql, %params)
	  if $sql =~ /\\|;\s*\S|^\s*COPY\b/i || $dbname !~ /^\w+$/ || grep { !$own_arguments{$_} } keys %params;

	my ($status, $rows, $messages) =
		$dbname eq 'postgres' && can_share_session($sql)
	  ? $self->run_in_shared_session($sql)
	  : run_statement($self->socket_path, $dbname, $sql);

	chomp($rows, $messages);
	${ $params{stdout} } = $rows if ref $params{stdout};
	${ $params{stderr} } = $messages if ref $params{stderr};
	print STDERR "$messages\n" if $messages ne '' && !ref $params{stderr} && !wantarray;
	die +($status == CONNECTION_FAILED ? 'connection error' : 'error running SQL') . ": '$messages'\nwhile running '$sql'"
	  if $status != 0 && $params{on_error_die};
	return wantarray ? ($status, $rows, $messages) : $status;
}

sub socket_path
{
	my ($self) = @_;

	return $self->host . '/.s.PGSQL.' . $self->port;
}

sub stop
{
	my ($self, @args) = @_;

	# do not wait for its backend, which a test may have suspended
	$self->terminate_shared_session;
	return $self->SUPER::stop(@args);
}

# Sends Terminate and does not wait. Returns the session, or nothing if there is none.
sub terminate_shared_session
{
	my ($self) = @_;
	my $shared = delete $self->{shared_session};

	return unless $shared && $shared->{process} == $$;
	send_message($shared, 'X', '');
	return $shared;
}

# Ends the shared session, and waits until its backend has exited. Tests call this before a
# smart shutdown, which waits for idle sessions, and before a change in another database
# that no session may apply: an idle session is interrupted to apply it.
sub end_shared_session
{
	my ($self) = @_;
	my $shared = $self->terminate_shared_session;

	wait_for_exit($shared) if $shared;
	return;
}

# Run a query in the shared session. The query is rolled back, because the extension
# applies changes of catalogs at a commit.
sub run_in_shared_session
{
	my ($self, $sql) = @_;
	my $shared = delete $self->{shared_session};
	my $transaction = "BEGIN; $sql\n; ROLLBACK";
	my @result = (CONNECTION_FAILED);

	# a forked child must not use the socket of its parent
	@result = query($shared, $transaction) if $shared && $shared->{process} == $$;

	# connect again if the server has closed it: the query has no effects
	if ($result[0] == CONNECTION_FAILED)
	{
		($shared, my $message) = new_session($self->socket_path, 'postgres');
		return (CONNECTION_FAILED, '', $message) unless $shared;
		@result = query($shared, $transaction);
	}

	# a query that fails leaves its transaction open
	$self->{shared_session} = $shared if $result[0] == 0;
	return @result;
}

# Run a statement in a new session, at the Unix-domain socket $path. Returns psql's
# status, rows and messages.
sub run_statement
{
	my ($path, $dbname, $sql) = @_;
	my ($session, $message) = new_session($path, $dbname);

	return (CONNECTION_FAILED, '', $message) unless $session;
	my ($status, $rows, $messages) = query($session, $sql);
	if ($status != CONNECTION_FAILED)
	{
		send_message($session, 'X', '');
		wait_for_exit($session);
	}
	return ($status, $rows, $session->{notices} . $messages);
}

# Connect. Returns the session, or undef and psql's message.
sub new_session
{
	my ($path, $dbname) = @_;
	my $connection_failed = qq{psql: error: connection to server on socket "$path" failed: };
	my $socket = IO::Socket::UNIX->new(Peer => $path) or return (undef, "$connection_failed$!\n");
	my $startup = pack 'N(Z*)*x', PROTOCOL_VERSION, user => scalar getpwuid($<), database => $dbname,
	  application_name => basename($0);
	my $messages = '';

	# the server may close the socket while a message is sent
	local $SIG{PIPE} = 'IGNORE';
	syswrite $socket, pack('N', 4 + length $startup) . $startup;
	while (my ($type, $body) = read_message($socket))
	{
		return { socket => $socket, process => $$, notices => $messages } if $type eq 'Z';
		$messages .= ($type eq 'E' ? $connection_failed : '') . text_of($body) if $type =~ /[EN]/;
		die "the server at $path requires another authentication method than trust"
		  if $type eq 'R' && unpack('N', $body) != 0;
	}
	return (undef, $messages);
}

# Run a statement in a session. Returns psql's status, rows and messages.
sub query
{
	my ($session, $sql) = @_;
	my ($status, $rows, $messages) = (0, '', '');

	utf8::encode($sql) if utf8::is_utf8($sql);
	send_message($session, 'Q', "$sql\0");
	while (my ($type, $body) = read_message($session->{socket}))
	{
		return ($status, $rows, $messages) if $type eq 'Z';
		if ($type eq 'D')
		{
			$rows .= join('|', values_of($body)) . "\n";
		}
		elsif ($type eq 'E' || $type eq 'N')
		{
			# psql prints no rows of a statement that fails
			($status, $rows) = (STATEMENT_FAILED, '') if $type eq 'E';
			$messages .= 'psql:<stdin>:1: ' . text_of($body);
		}
		elsif ($type =~ /[GHW]/)
		{
			die "PgpxNode does not support COPY: $sql";
		}
	}
	return (CONNECTION_FAILED, '', "${messages}server closed the connection unexpectedly\n");
}

# The backend has exited when its output ends.
sub wait_for_exit
{
	my ($session) = @_;

	while (my ($ignored) = read_message($session->{socket})) { }
	return;
}

sub send_message
{
	my ($session, $type, $body) = @_;

	# the server may have closed the socket
	local $SIG{PIPE} = 'IGNORE';
	syswrite $session->{socket}, pack('aN', $type, 4 + length $body) . $body;
	return;
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
