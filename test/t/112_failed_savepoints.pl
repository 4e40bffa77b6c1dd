# START TRANSACTION or SAVEPOINT of a remote transaction is cancelled, or fails. The
# local transaction goes on after a rollback to its savepoint, and nothing that was
# executed before is lost.
#
# The remote server is a fake, because a real one executes these commands too fast to
# be cancelled. It has no data: it only checks the order of transaction commands, and
# journals the statements that a commit makes permanent.
use strict;
use warnings;

use PgpxFakeServer qw(message done failure);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir;
my ($plan, $reached, $journal) = map { "$folder/$_" } qw(plan reached journal);

# The behaviour reads the file "plan": "cancel COMMAND" waits at this command for a
# cancel request, "fail COMMAND" lets it fail. The plan is executed once.
sub transactions
{
	my ($self) = @_;
	my $cancelled = 0;
	my $state = 'I';
	my @open;	# [savepoint, statements]

	local $SIG{USR1} = sub { $cancelled = 1 };
	while (1)
	{
		my ($sql, $failed) = ('', 0);

		while (1)
		{
			my ($type, $length) = unpack 'aN', $self->read_bytes(5);
			my $body = $self->read_bytes($length - 4);

			POSIX::_exit(0) if $type eq 'X';
			if ($type eq 'Q' || $type eq 'S')
			{
				if ($type eq 'Q')
				{
					$sql = $body =~ s/\0.*//sr;
					command($sql, \$state, \@open);
					$self->send(done($sql =~ /DISCARD/ ? 'DISCARD ALL' : 'COMMIT'));
				}
				$self->send(message('Z', $state));
				last;
			}
			next if $failed;
			if ($type eq 'P' && $body =~ /^\0\0/)
			{
				$self->{token} = substr $body, 2;
				$sql = undef;
			}
			elsif ($type eq 'P')
			{
				$sql = (split /\0/, $body)[1];
				$self->send(message('1', ''));
			}
			elsif ($type eq 'D')
			{
				$self->send(defined $sql ? message('n', '') : $self->echo);
			}
			elsif ($type eq 'B')
			{
				$self->send(message('2', ''));
			}
			elsif ($type eq 'E')
			{
				my $wanted = -e $plan ? slurp_file($plan) : '';
				my $error = '';

				if ($wanted =~ /^(\w+) (.+)/ && index($sql, $2) == 0)
				{
					my $how = $1;

					unlink $plan;
					append_to_file($reached, $sql);
					if ($how eq 'cancel')
					{
						select undef, undef, undef, 0.01 until $cancelled;
						$cancelled = 0;
						$error = '57014';
					}
					else
					{
						$error = '53200';
					}
				}
				$error ||= command($sql, \$state, \@open);
				if ($error)
				{
					$failed = 1;
					$state = 'E' if $state eq 'T';
					$self->send(failure(S => 'ERROR', C => $error, M => "$sql: $error"));
				}
				else
				{
					$self->send(done($sql =~ /^INSERT/ ? 'INSERT 0 1' : $sql));
				}
			}
		}
	}
	return;
}

# Execute a command. Returns an SQLSTATE if it fails.
sub command
{
	my ($sql, $state, $open) = @_;

	if ($sql =~ /^(COMMIT|ROLLBACK)(?! TO)/)
	{
		append_to_file($journal, join '', map { @{ $_->[1] } } @$open) if $1 eq 'COMMIT' && $$state eq 'T';
		($$state, @$open) = ('I');
	}
	elsif ($sql =~ /^(ROLLBACK TO|RELEASE) SAVEPOINT (\w+)/)
	{
		my ($command, $name) = ($1, $2);
		my @kept;

		return '25P01' if $$state eq 'I';
		return '25P02' if $$state eq 'E' && $command eq 'RELEASE';
		return '3B001' unless grep { $_->[0] eq $name } @$open;
		unshift @kept, pop @$open while $open->[-1][0] ne $name;
		unshift @kept, pop @$open;
		push @$open, [ $name, [] ] if $command eq 'ROLLBACK TO';
		push @{ $open->[-1][1] }, map { @{ $_->[1] } } @kept if $command eq 'RELEASE';
		$$state = 'T';
	}
	elsif ($$state eq 'E')
	{
		return '25P02';
	}
	elsif ($sql =~ /^START/)
	{
		return '25001' if $$state eq 'T';
		($$state, @$open) = ('T', [ '', [] ]);
	}
	elsif ($sql =~ /^SAVEPOINT (\w+)/)
	{
		return '25P01' if $$state eq 'I';
		push @$open, [ $1, [] ];
	}
	elsif ($sql =~ /^INSERT INTO \w+\.(\w+)/)
	{
		return '25P01' if $$state eq 'I';
		push @{ $open->[-1][1] }, $1;
	}
	return '';
}

my $fake = PgpxFakeServer->new(
	transactions => \&transactions,
	cancel => sub { kill 'USR1', $_[0] });
my $local = local_node('local');
make_pool($local, $fake, server => 'shard', remote_dbname => 'transactions',
	options => { pool_size => 1, sslmode => PgpxFakeServer::sslmode() });
my $session = PgpxSession->new($local);
$session->run("CREATE FOREIGN TABLE $_ (id int) SERVER shard") foreach qw(a b c d);

# Run statements; one of them is cancelled or fails at a remote command.
sub fails_at
{
	my ($how, $command, $sql) = @_;

	unlink $reached;
	append_to_file($plan, "$how $command");
	$session->start($sql);
	wait_until($local, sub { -s $reached ? 1 : 0 }, '1') or die "not reached: $command";
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')') if $how eq 'cancel';
	$session->finish;
	is($session->sqlstate, $how eq 'cancel' ? '57014' : '53200', "$how at $command: statement fails");
	return;
}

# Run the rest; the commit must make exactly these statements permanent.
sub commits
{
	my ($sql, $expected, $name) = @_;

	unlink $journal;
	$session->run($sql);
	is($session->error . (-e $journal ? slurp_file($journal) : ''), $expected, $name);
	$session->run('ROLLBACK');
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0'), "$name: no lease is left");
	return;
}

my $values = 'DEFAULT VALUES';
foreach my $how (qw(cancel fail))
{
	foreach my $command ('START TRANSACTION', 'SET LOCAL search_path', 'SAVEPOINT s2')
	{
		fails_at($how, $command, "BEGIN; SAVEPOINT s; INSERT INTO a $values");
		commits("ROLLBACK TO s; INSERT INTO b $values; SAVEPOINT t; INSERT INTO c $values; COMMIT",
			'bc', "$how at $command: transaction begins again");
	}
	fails_at($how, 'START TRANSACTION', "BEGIN; SAVEPOINT s; INSERT INTO a $values");
	commits('ROLLBACK TO s; COMMIT', '', "$how at START TRANSACTION: empty transaction commits");

	# the first of two new savepoints exists
	fails_at($how, 'SAVEPOINT s3', "BEGIN; INSERT INTO a $values; SAVEPOINT s; SAVEPOINT t; INSERT INTO b $values");
	commits("ROLLBACK TO t; INSERT INTO c $values; COMMIT", 'ac', "$how at the second savepoint: transaction goes on");
	fails_at($how, 'SAVEPOINT s3', "BEGIN; INSERT INTO a $values; SAVEPOINT s; SAVEPOINT t; INSERT INTO b $values");
	commits('ROLLBACK TO t; COMMIT', 'a', "$how at the second savepoint: transaction commits");

	# the only savepoint: what was executed before cannot be kept
	fails_at($how, 'SAVEPOINT s2', "BEGIN; INSERT INTO a $values; SAVEPOINT s; INSERT INTO b $values");
	$session->run('ROLLBACK TO s');
	$session->fails("INSERT INTO c $values", $how eq 'cancel' ? '25P02' : '53200',
		$how eq 'cancel' ? qr/remote transaction on server "shard" is aborted/ : qr/SAVEPOINT s2: 53200/,
		"$how at the only savepoint: next statement reports it");
	$session->fails('ROLLBACK TO s; COMMIT', $how eq 'cancel' ? '25P02' : '53200', qr/ERROR/, "$how at the only savepoint: commit fails");
	commits('', '', "$how at the only savepoint");

	# .. but a rollback to an earlier savepoint can
	fails_at($how, 'SAVEPOINT s3',
		"BEGIN; INSERT INTO a $values; SAVEPOINT s; INSERT INTO b $values; SAVEPOINT t; INSERT INTO c $values");
	commits("ROLLBACK TO t; ROLLBACK TO s; INSERT INTO d $values; COMMIT", 'ad',
		"$how at a later savepoint: rollback to an earlier savepoint");

	# a failed release does not lose the work of released subtransactions
	fails_at($how, 'RELEASE SAVEPOINT s2',
		"BEGIN; INSERT INTO a $values; SAVEPOINT s; INSERT INTO b $values; RELEASE s; SAVEPOINT t; INSERT INTO c $values");
	$session->run('ROLLBACK TO t');
	$session->fails("INSERT INTO c $values", $how eq 'cancel' ? '25P02' : '53200', qr/ERROR/,
		"$how at a release: next statement reports it");
	commits('', '', "$how at a release");
}

check_invariants($local);
$session->quit;
leak_check($local);
done_testing();
