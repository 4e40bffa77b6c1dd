# A session that stays: a psql of its own, so that a test can hold leases, wait
# and be killed in several sessions at once.
#
#   use PgpxSession;
#
#   my $a = PgpxSession->new($local);                # or user => 'app', dbname => ...
#   is($a->run("SELECT 1"), '1');
#   $a->start("SELECT pgpool.checkout('shard1')");   # does not wait
#   ...
#   ok($a->done);                                    # at this moment
#   like($a->finish, qr/^\d+$/);                     # waits for the end
#   is($a->sqlstate, '');  is($a->error, '');        # of the last run or finish
#   $a->fails('SELECT 1/0', '22012', qr/division/, 'an error is one');
#   $a->calm;                                        # no statement_timeout any more
#   $a->quit;
package PgpxSession;

use strict;
use warnings;

use IO::Select;
use IPC::Open3;
use PostgreSQL::Test::Utils;
use Symbol 'gensym';
use Test::More;
use Time::HiRes qw(time);

# Sessions that a test has not ended are ended with it.
my @sessions;

sub new
{
	my ($class, $node, %args) = @_;
	my $connstr = $node->connstr($args{dbname} // 'postgres');
	my @command = ('psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=never',
		'-d', $connstr . ($args{user} ? " user=$args{user}" : ''), '-f', '-');
	my $self = bless { err => gensym, text => '', error => '', marks => 0 }, $class;

	# a session that was killed is no reason to end the test
	$SIG{PIPE} = 'IGNORE';
	$self->{psql} = open3($self->{in}, $self->{out}, $self->{err}, @command);
	$self->{read} = IO::Select->new($self->{out}, $self->{err});
	$self->{in}->autoflush(1);
	push @sessions, $self;

	$self->{backend} = $self->run('SELECT pg_backend_pid()');
	die "no session: $self->{error}" unless $self->{backend} =~ /^\d+$/;
	return $self;
}

# The process at the server.
sub pid { return $_[0]->{backend}; }

# Send SQL or psql's commands, and do not wait for the end.
sub start
{
	my ($self, $sql) = @_;
	my $mark = sprintf '--- end of %d ---', ++$self->{marks};

	$self->{text} = $self->{error} = '';
	$self->{mark} = $mark;
	syswrite $self->{in}, "$sql\n;\n\\echo '$mark'\n\\warn '$mark'\n";
	return;
}

# Take in what psql has written so far; wait at most so long for more.
sub take_in
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

# Has it come to its end, or psql to its own?
sub done
{
	my ($self) = @_;

	$self->take_in(0) foreach 1 .. 2;
	return $self->is_complete ? 1 : 0;
}

# Wait for the end of what was started: returns its rows.
sub finish
{
	my ($self, $timeout) = @_;
	my $end = time() + ($timeout // $PostgreSQL::Test::Utils::timeout_default);

	$self->take_in(1) until $self->is_complete || time() > $end;
	die "the session did not come to an end in time: $self->{text} $self->{error}"
	  unless $self->is_complete;
	s/^\Q$self->{mark}\E\n//m foreach $self->{text}, $self->{error};
	chomp $self->{text};
	return $self->{text};
}

sub run
{
	my ($self, $sql, $timeout) = @_;

	$self->start($sql);
	return $self->finish($timeout);
}

# What the last run said beside its rows: errors, warnings and notices.
sub error { return $_[0]->{error}; }

# SQLSTATE of its first error, or ''.
sub sqlstate
{
	return $_[0]->{error} =~ /(?:ERROR|FATAL):  (\w{5}):/ ? $1 : '';
}

# One assertion: SQL fails with a SQLSTATE and a text.
sub fails
{
	my ($self, $sql, $sqlstate, $pattern, $name) = @_;

	$self->run($sql);
	return $self->failed($sqlstate, $pattern, $name);
}

# The same for what was finished before.
sub failed
{
	my ($self, $sqlstate, $pattern, $name) = @_;
	my $ok = $self->sqlstate eq $sqlstate && $self->{error} =~ $pattern;

	ok($ok, $name) or diag("wanted: $sqlstate $pattern\ngot: $self->{text}\n$self->{error}");
	return $ok;
}

# No statement_timeout any more.  A short one may hit the statement that lifts it.
sub calm
{
	my ($self) = @_;

	do { $self->run('RESET statement_timeout') } while ($self->sqlstate eq '57014');
	return;
}

# psql has ended: its session was.
sub is_gone { return $_[0]->{read}->count == 0; }

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
