# A psql session that stays connected, so that a test can hold leases, wait, and be
# terminated in several sessions at once.
#
#   use PgpxSession;
#
#   my $a = PgpxSession->new($local);                # or user => 'app', dbname => ...
#   is($a->run("SELECT 1"), '1');
#   $a->start("SELECT pgpool.checkout('shard1')");   # does not wait
#   ...
#   ok($a->done);                                    # has it ended yet?
#   like($a->finish, qr/^\d+$/);                     # waits for the end
#   is($a->sqlstate, '');  is($a->error, '');        # of the last run or finish
#   $a->fails('SELECT 1/0', '22012', qr/division/, 'division by zero fails');
#   $a->reset_statement_timeout;                     # even if a short one cancels the RESET
#   $a->quit;
package PgpxSession;

use strict;
use warnings;

use IO::Select;
use IPC::Open3;
use List::Util 'max';
use PostgreSQL::Test::Utils;
use Symbol 'gensym';
use Test::More;
use Time::HiRes qw(time usleep);

# sessions that END has to terminate unless the test did
my @sessions;

sub new
{
	my ($class, $node, %args) = @_;
	my $connstr = $node->connstr($args{dbname} // 'postgres');
	my @command = ('psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=never',
		'-d', $connstr . ($args{user} ? " user=$args{user}" : ''), '-f', '-');
	my $self = bless { err => gensym, text => '', error => '', marks => 0 }, $class;

	# a session that was killed must not end the test
	$SIG{PIPE} = 'IGNORE';
	$self->{psql} = open3($self->{in}, $self->{out}, $self->{err}, @command);
	$self->{read} = IO::Select->new($self->{out}, $self->{err});
	$self->{in}->autoflush(1);
	push @sessions, $self;

	$self->{backend} = $self->run('SELECT pg_backend_pid()');
	die "no session: $self->{error}" unless $self->{backend} =~ /^\d+$/;
	return $self;
}

# process ID of the backend
sub pid { return $_[0]->{backend}; }

# Send SQL or psql commands without waiting for the end.
sub start
{
	my ($self, $sql) = @_;
	my $mark = sprintf '--- end of %d ---', ++$self->{marks};

	$self->{text} = $self->{error} = '';
	$self->{mark} = $mark;
	syswrite $self->{in}, "$sql\n;\n\\echo '$mark'\n\\warn '$mark'\n";
	return;
}

# Read psql's output so far; wait at most $timeout seconds for more.
sub read_output
{
	my ($self, $timeout) = @_;

	foreach my $handle ($self->{read}->can_read($timeout))
	{
		my $to = $handle == $self->{out} ? \$self->{text} : \$self->{error};

		sysread($handle, $$to, 65536, length $$to)
		  or $self->{read}->remove($handle);
	}
	return;
}

sub is_complete
{
	my ($self) = @_;

	return 1 if $self->{read}->count == 0;
	return $self->{text} =~ /^\Q$self->{mark}\E\n/m && $self->{error} =~ /^\Q$self->{mark}\E\n/m;
}

# True if the statement, or psql itself, has ended.
sub done
{
	my ($self) = @_;

	$self->read_output(0) foreach 1 .. 2;
	return $self->is_complete ? 1 : 0;
}

# Wait for the end of the started statement and return its rows. The timeout is not
# shorter than the default, so that only a hang exceeds it.
sub finish
{
	my ($self, $timeout) = @_;
	my $end = time() + max($timeout // 0, $PostgreSQL::Test::Utils::timeout_default);

	$self->read_output(1) until $self->is_complete || time() > $end;
	die "the statement did not end in time: $self->{text} $self->{error}"
	  unless $self->is_complete;
	s/^\Q$self->{mark}\E\n//m foreach $self->{text}, $self->{error};
	chomp $self->{text};
	$self->{error} .= "psql has ended\n" if $self->{read}->count == 0;
	return $self->{text};
}

sub run
{
	my ($self, $sql, $timeout) = @_;

	$self->start($sql);
	return $self->finish($timeout);
}

# Stderr of the last run: errors, warnings and notices; "psql has ended" if psql has exited.
sub error { return $_[0]->{error}; }

# SQLSTATE of its first error; 'ended' if there is none and psql has exited; otherwise ''.
sub sqlstate
{
	my ($self) = @_;

	return $1 if $self->{error} =~ /(?:ERROR|FATAL):  (\w{5}):/;
	return $self->{read}->count == 0 ? 'ended' : '';
}

# Assert that SQL fails with a SQLSTATE and a message.
sub fails
{
	my ($self, $sql, $sqlstate, $pattern, $name) = @_;

	$self->run($sql);
	return $self->failed($sqlstate, $pattern, $name);
}

# The same for a statement that finish has waited for.
sub failed
{
	my ($self, $sqlstate, $pattern, $name) = @_;
	my $ok = $self->sqlstate eq $sqlstate && $self->{error} =~ $pattern;

	ok($ok, $name) or diag("wanted: $sqlstate $pattern\ngot: $self->{text}\n$self->{error}");
	return $ok;
}

# Reset statement_timeout. A short timeout may cancel the RESET itself, hence the loop. If
# it expires when the RESET has just ended, the server cancels the next statement, with an
# error that names the timeout.
sub reset_statement_timeout
{
	my ($self) = @_;

	do { $self->run('RESET statement_timeout') } while ($self->sqlstate eq '57014');
	return;
}

# True if the session has ended. psql can report a failed write as an error of the
# statement and continue, so the backend counts, which can exist a little longer than
# its connection.
sub is_gone
{
	my ($self) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	return 1 if $self->{read}->count == 0;
	usleep(10_000) while kill(0, $self->{backend}) && time() < $end;
	return !kill(0, $self->{backend});
}

sub quit
{
	my ($self) = @_;

	return unless defined $self->{psql};
	close $self->{in};
	waitpid $self->{psql}, 0;
	delete $self->{psql};
	return;
}

END
{
	my $status = $?;

	foreach my $self (grep { defined $_->{psql} } @sessions)
	{
		kill 'TERM', $self->{psql};
		waitpid $self->{psql}, 0;
	}
	$? = $status;
}

1;
