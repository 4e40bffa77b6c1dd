# Commands of a remote transaction fail: at each message of a scan, of a write and of the
# transaction commands the remote server answers with an error, or START TRANSACTION or
# SAVEPOINT is cancelled. The error is reported with its SQLSTATE and the remote command.
# After START TRANSACTION the local transaction continues after a rollback to its savepoint.
# After another command it fails, so that nothing that was executed before is lost.
#
# The remote server is a fake, because a real one executes these commands too fast to
# be cancelled, and has no error for some messages. Its tables have the ids 1 to 250. It
# checks the order of transaction commands, and journals the INSERTs that a commit makes
# permanent.
use strict;
use warnings;

use PgpxFakeServer qw(message done failure row);
use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir;
my ($plan, $reached, $journal) = map { "$folder/$_" } qw(plan reached journal);

# The behaviour reads the file "plan": "cancel TYPE COMMAND" waits at the message of this
# type (P: Parse, B: Bind, D: Describe, E: Execute, F: Execute of a later batch, C: Close,
# Q: Query) for a cancel request, "fail TYPE COMMAND" lets it fail. The plan is executed
# once.
sub transactions
{
	my ($self) = @_;
	my $cancelled = 0;
	my $state = 'I';
	my @open;	# [savepoint, statements]
	my (%statements, %portals);
	my $answers = '';	# they are sent with ReadyForQuery, at once

	local $SIG{USR1} = sub { $cancelled = 1 };
	while (1)
	{
		my ($type, $length) = unpack 'aN', $self->read_bytes(5);
		my $body = $self->read_bytes($length - 4);
		my ($name, $second) = split /\0/, $body;
		my ($sql, $error, $answer) = ('', '');

		POSIX::_exit(0) if $type eq 'X';
		if ($type eq 'S')
		{
			$self->{failed} = 0;
			$self->send($answers . message('Z', $state));
			$answers = '';
			next;
		}
		next if $self->{failed};
		if ($type eq 'P' && $body =~ /^\0\0/)
		{
			# the marker
			$self->{marker} = substr $body, 2;
			next;
		}
		if ($type eq 'D' && $self->{marker})
		{
			$answers .= $self->echo;
			delete $self->{marker};
			next;
		}

		if ($type eq 'Q')
		{
			$sql = $name;
		}
		elsif ($type eq 'P')
		{
			$sql = $statements{$name} = $second;
			$answer = message('1', '');
		}
		elsif ($type eq 'B')
		{
			# the formats of the result are at the end
			my $binary = $body =~ /\0\x01\0\x01\z/ ? 1 : 0;

			$sql = $statements{$second};
			$portals{$name} = { sql => $sql, binary => $binary, next => 1 };
			$answer = message('2', '');
		}
		elsif ($type eq 'D' || $type eq 'C')
		{
			my $kind = substr $name, 0, 1, '';
			my $portal = $kind eq 'P' ? $portals{$name} : { sql => $statements{$name}, binary => 0 };

			$sql = $portal->{sql};
			$answer = $type eq 'C' ? message('3', '') : $kind eq 'S' ? message('t', pack 'n', 0) : '';
			$answer .= $sql =~ /^SELECT/ ? message('T', pack 'nA*xNnNnNn', 1, 'id', 0, 0, 23, 4, 0xFFFFFFFF, $portal->{binary}) : message('n', '')
			  if $type eq 'D';
		}
		elsif ($type eq 'E')
		{
			$sql = $portals{$name}{sql};
			$type = 'F' if $portals{$name}{next} > 1;
		}

		my $wanted = -e $plan ? slurp_file($plan) : '';
		if ($wanted =~ /^(\w+) (\w) (.+)/ && $2 eq $type && index($sql, $3) == 0)
		{
			my $how = $1;

			unlink $plan;
			# a repeated request for an earlier command may have arrived
			$cancelled = 0;
			append_to_file($reached, $sql);
			select undef, undef, undef, 0.01 until $cancelled || $how ne 'cancel';
			$error = $how eq 'cancel' ? '57014' : '53200';
		}
		$error ||= command($sql, \$state, \@open) if $type =~ /[EQ]/;
		if ($error)
		{
			$self->{failed} = $type ne 'Q';
			$state = 'E' if $state eq 'T';
			$answers .= failure(S => 'ERROR', C => $error, M => "$sql: $error", D => "At message $type.");
		}
		elsif ($type eq 'Q')
		{
			$answers .= done($sql =~ /DISCARD/ ? 'DISCARD ALL' : $sql =~ /^(\w+)/);
		}
		elsif ($type =~ /[EF]/)
		{
			$answers .= $sql =~ /^SELECT/ ? rows($portals{$name}, unpack 'x' . (length($name) + 1) . 'N', $body) :
			  done($sql =~ /^INSERT/ ? 'INSERT 0 1' : $sql);
		}
		else
		{
			$answers .= $answer;
		}
		next if $type ne 'Q';
		$self->send($answers . message('Z', $state));
		$answers = '';
	}
	return;
}

# The answer to an Execute for at most $max rows; 0: all.
sub rows
{
	my ($portal, $max) = @_;
	my $first = $portal->{next};
	my $last = $max && $first + $max - 1 < 250 ? $first + $max - 1 : 250;

	$portal->{next} = $last + 1;
	return join '', map({ row($portal->{binary} ? pack('N', $_) : $_) } $first .. $last),
	  $max && $last == $first + $max - 1 ? message('s', '') : done('SELECT ' . ($last - $first + 1));
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
	append_to_file($plan, "$how E $command");
	$session->start($sql);
	wait_until($local, sub { -s $reached ? 1 : 0 }, '1') or die "not reached: $command";
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')') if $how eq 'cancel';
	$session->finish;
	is($session->sqlstate, $how eq 'cancel' ? '57014' : '53200', "$how at $command: statement fails");
	return;
}

# The tables of the INSERTs that were made permanent since the last call.
sub committed
{
	my $tables = -e $journal ? slurp_file($journal) : '';

	unlink $journal;
	return $tables;
}

# Run further statements. Exactly the INSERTs into these tables must have become permanent
# since the last check.
sub commits
{
	my ($sql, $expected, $name) = @_;

	$session->run($sql);
	is($session->error . committed(), $expected, $name);
	$session->run('SET client_min_messages = error; ROLLBACK; RESET client_min_messages');
	ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0'), "$name: no lease is left");
	return;
}

my $values = 'DEFAULT VALUES';
foreach my $how (qw(cancel fail))
{
	my $sqlstate = $how eq 'cancel' ? '25P02' : '53200';

	fails_at($how, 'START TRANSACTION', "BEGIN; SAVEPOINT s; INSERT INTO a $values");
	commits("ROLLBACK TO s; INSERT INTO b $values; SAVEPOINT t; INSERT INTO c $values; COMMIT",
		'bc', "$how at START TRANSACTION: transaction begins again");
	fails_at($how, 'START TRANSACTION', "BEGIN; SAVEPOINT s; INSERT INTO a $values");
	commits('ROLLBACK TO s; COMMIT', '', "$how at START TRANSACTION: empty transaction commits");

	# after the failure of another command it is not known what can be kept
	foreach my $case (
		[ 'SET LOCAL search_path' => "BEGIN; SAVEPOINT s; INSERT INTO a $values" ],
		[ 'SAVEPOINT s2' => "BEGIN; INSERT INTO a $values; SAVEPOINT s; INSERT INTO b $values" ],
		[ 'SAVEPOINT s3' => "BEGIN; INSERT INTO a $values; SAVEPOINT s; SAVEPOINT t; INSERT INTO b $values" ],
		[ 'RELEASE SAVEPOINT s2' => "BEGIN; SAVEPOINT s; INSERT INTO a $values; SAVEPOINT t; INSERT INTO b $values; RELEASE t; RELEASE s; SAVEPOINT s; INSERT INTO c $values" ])
	{
		my ($command, $sql) = @$case;

		fails_at($how, $command, $sql);
		$session->run('ROLLBACK TO s');
		$session->fails("INSERT INTO c $values", $sqlstate, $how eq 'cancel' ? qr/remote transaction on server "shard" is aborted/ : qr/$command.*: 53200/,
			"$how at $command: next statement reports the failure");
		$session->fails('ROLLBACK TO s; COMMIT', $sqlstate, qr/ERROR/, "$how at $command: commit fails");
		commits('', '', "$how at $command: no INSERT is permanent");
	}
}

# --- an error at each message
sub connects
{
	return $local->safe_psql('postgres', 'SELECT connects FROM pgpool.stats');
}

$session->run('\set SHOW_CONTEXT errors');
my $scan = 'SELECT id FROM a WHERE id + random() < 1000';
my $insert = "INSERT INTO a $values";
my $settings = 'SET LOCAL search_path';
my $of_scan = 'SELECT id FROM public.a';
my $of_insert = 'INSERT INTO public.a';
foreach my $case (
	(map { [ $scan, $_, 'START TRANSACTION', 'START TRANSACTION' ] } qw(P B E)),
	(map { [ $insert, $_, $settings, $settings ] } qw(P B E)),
	(map { [ $scan, $_, $of_scan, $of_scan ] } qw(P B D E F)),
	(map { [ $insert, $_, $of_insert, $of_insert ] } qw(P B E)),
	[ "SELECT id FROM b WHERE random() < 2 LIMIT 1; $insert", 'C', 'SELECT id FROM public.b', $of_insert ],
	[ "$insert; SAVEPOINT s; $insert; RELEASE s; $insert", 'E', 'RELEASE SAVEPOINT s2', 'RELEASE SAVEPOINT s2' ],
	[ "$insert; COMMIT", 'Q', 'COMMIT', 'COMMIT TRANSACTION' ],
	[ 'SELECT id FROM b WHERE id + random() / 2 < 2; COMMIT', 'Q', 'COMMIT', 'COMMIT TRANSACTION' ])
{
	my ($sql, $type, $command, $context) = @$case;
	my $name = "error at $type of $command in \"$sql\"";
	my $before = connects();

	append_to_file($plan, "fail $type $command");
	$session->fails("BEGIN; $sql", '53200', qr/\Q$command\E.*: 53200\nDETAIL:  At message $type\.\nCONTEXT:  remote SQL command: \Q$context\E/, $name);
	ok(!-e $plan, "$name: message that fails was sent");
	$session->fails('SELECT 1', '25P02', qr/transaction is aborted/, "$name: local transaction is aborted") unless $sql =~ /COMMIT/;
	commits('', '', $name);
	is($session->run("SELECT count(*) FROM ($scan) AS ids") . $session->error, '250', "$name: next scan works");
	commits("BEGIN; INSERT INTO b $values; COMMIT", 'b', "$name: next transaction works");

	# DISCARD ALL follows COMMIT, and fails in a transaction that has not ended
	is(connects(), $before + ($sql =~ /COMMIT/ ? 1 : 0), "$name: connection is kept, unless its transaction has not ended");
}

foreach my $next ("INSERT INTO c $values", 'COMMIT')
{
	my $name = "error at ROLLBACK TO SAVEPOINT before \"$next\"";
	my $before = connects();

	append_to_file($plan, 'fail E ROLLBACK TO SAVEPOINT s2');
	$session->fails("BEGIN; $insert; SAVEPOINT s; INSERT INTO b $values; ROLLBACK TO s; $next", '25P02', qr/remote transaction on server "shard" is aborted/, $name);
	ok(!-e $plan, "$name: message that fails was sent");
	commits('', '', $name);
	is(connects(), $before, "$name: connection is kept");
}

# the rollback is sent with the reset
foreach my $case ([ ROLLBACK => "BEGIN; $insert; ROLLBACK; SELECT 1" ], [ 'DISCARD ALL' => "$insert; SELECT 1" ])
{
	my ($command, $sql) = @$case;
	my $before = connects();

	# the last reset must not be the one that fails
	ok(are_idle($local, 'shard'), "error at $command with the reset: last reset has ended");
	append_to_file($plan, "fail Q $command");
	is($session->run($sql) . $session->error, '1', "error at $command with the reset is not raised");
	ok(wait_until($local, sub { -e $plan ? 1 : 0 }, '0'), "error at $command with the reset: message that fails was sent");
	ok(wait_until($local, q{SELECT total FROM pgpool.pools WHERE server = 'shard'}, '0'), "error at $command with the reset: connection is closed");
	is(committed(), $command eq 'DISCARD ALL' ? 'a' : '', "error at $command with the reset: INSERT is permanent only if it was committed");
	commits("BEGIN; INSERT INTO b $values; COMMIT", 'b', "error at $command with the reset: next transaction works");
	is(connects(), $before + 1, "error at $command with the reset: one connection is opened");
}

stats_add_up($local);
check_invariants($local);
$session->quit;
leak_check($local);
done_testing();
