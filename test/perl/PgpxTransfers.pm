# Transfers between two shards, each with a row in a local ledger, for tests of one commit
# on several servers.
#
#   use PgpxTransfers;
#
#   my @shards = map { shard_node($_) } qw(one two);
#   my $local = local_node('local', conf => [...]);
#   make_shards($local, \@shards);                   # servers shard1 and shard2
#   my $session = PgpxSession->new($local, user => 'app');
#   $session->run(transfer(1));
#   all_agree($local, \@shards, 'commit', 1);
#
#   my $gate = close_gate($shards[1]);               # PREPARE blocks there
#   $session->start(transfer(2, note => 'gate'));
#   is_at_gate($shards[1]);
#   $gate->quit;                                     # opens it
#
# Transfer n has the same number in the table transfers of both shards and in the ledger.
package PgpxTransfers;

use strict;
use warnings;

use Exporter 'import';
use PgpxProcesses;
use PgpxSession;
use PgpxTest;
use Test::More;

our @EXPORT = qw(shard_node make_shards make_shard transfer close_gate is_at_gate all_agree differences read_rows
  prepared_on ids_on has_visited nothing_is_prepared kill_all start_again commits_synchronously commits_wait commit_waits);

# the parts on a remote server, of all installations
my $are_parts = q{gid LIKE 'pgpx\_%' AND owner = 'remote_app' AND database = 'remote_db'};
my $parts = "SELECT count(*) FROM pg_prepared_xacts WHERE $are_parts";

# A remote server with table transfers. Rows with the note 'gate' block PREPARE while a test
# has closed the gate, and those with 'fails' fail it.
sub shard_node
{
	my ($name, %args) = @_;
	my $node = remote_node($name, %args,
		conf => [ 'max_prepared_transactions = 100', @{ $args{conf} // [] } ]);

	$node->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE transfers (n bigint PRIMARY KEY, amount int NOT NULL, note text);
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);
INSERT INTO accounts SELECT i, 0 FROM generate_series(1, 100) AS i;
-- SET CONSTRAINTS ALL IMMEDIATE fires this trigger, and PREPARE or COMMIT the next one
CREATE TABLE gates (note text);
CREATE FUNCTION before_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	SET CONSTRAINTS public.at_gate DEFERRED;
	INSERT INTO public.gates VALUES (NEW.note);
	RETURN NULL;
END $$;
CREATE FUNCTION at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.note = 'gate' THEN
		PERFORM pg_advisory_xact_lock_shared(50);
	ELSIF NEW.note = 'fails' THEN
		RAISE EXCEPTION 'the shard refuses' USING ERRCODE = 'XX123';
	END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER before_gate AFTER INSERT ON transfers DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (NEW.note IS NOT NULL) EXECUTE FUNCTION before_gate();
CREATE CONSTRAINT TRIGGER at_gate AFTER INSERT ON gates DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION at_gate();
EOT
	return $node;
}

# Create a server with option two_phase_commit, and its foreign tables in a schema of the same
# name. $via: the node, or a proxy before it. Other arguments as those of make_pool.
sub make_shard
{
	my ($local, $via, $name, %args) = @_;
	my $options = { two_phase_commit => 'on', retry_min => '10ms', retry_max => '200ms', %{ $args{options} // {} } };

	make_pool($local, $via, %args, server => $name, options => $options);
	$local->safe_psql($args{dbname} // 'postgres', <<"EOT");
CREATE SCHEMA $name;
CREATE FOREIGN TABLE $name.transfers (n bigint, amount int, note text) SERVER $name OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE $name.accounts (id int, balance int) SERVER $name OPTIONS (schema_name 'public');
GRANT USAGE ON SCHEMA $name TO app;
GRANT ALL ON ALL TABLES IN SCHEMA $name TO app;
EOT
	return;
}

# Create servers shard1, shard2, .. and the ledger.
sub make_shards
{
	my ($local, $shards, %args) = @_;
	my $n = 0;

	make_shard($local, $_, 'shard' . ++$n, %args) foreach @$shards;
	$local->safe_psql($args{dbname} // 'postgres', <<'EOT');
CREATE TABLE ledger (n bigint PRIMARY KEY, amount int NOT NULL);
GRANT ALL ON ledger TO app;
EOT
	return;
}

# SQL of transfer $n. note => of both rows ('fails': of the second one); end => the last command; to => the second server
sub transfer
{
	my ($n, %args) = @_;
	my $note = defined $args{note} ? "'$args{note}'" : 'NULL';
	my $first = $note eq q{'fails'} ? 'NULL' : $note;
	my $end = $args{end} // 'COMMIT';
	my $to = $args{to} // 'shard2';

	return "BEGIN; INSERT INTO shard1.transfers VALUES ($n, -1, $first); INSERT INTO $to.transfers VALUES ($n, 1, $note);"
	  . " INSERT INTO ledger VALUES ($n, 1); $end";
}

# Returns a session that keeps the gate of a shard closed.
sub close_gate
{
	my ($shard) = @_;
	my $gate = PgpxSession->new($shard, dbname => 'remote_db');

	$gate->run('SELECT pg_advisory_lock(50)');
	die 'gate is not closed: ' . $gate->error if $gate->error ne '';
	return $gate;
}

# Assert that a number of remote sessions (1) wait at the gate of a shard.
sub is_at_gate
{
	my ($shard, $name, $number) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_until($shard, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'", $number // 1),
		$name // 'PREPARE waits at the gate');
}

# The number of parts on a remote server.
sub prepared_on
{
	my ($shard) = @_;

	return $shard->safe_psql('postgres', $parts);
}

# Their global ids.
sub ids_on
{
	my ($shard) = @_;

	return read_rows($shard, 'postgres', "SELECT gid FROM pg_prepared_xacts WHERE $are_parts ORDER BY prepared");
}

# Wait until the resolver of a database has made further visits to all participants since now.
sub has_visited
{
	my ($node, $name, %args) = @_;
	my $dbname = $args{dbname} // 'postgres';
	my $visited = sub { $node->safe_psql($dbname, $_[0]) };

	# the first visit may have begun before
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach (1 .. 2)
	{
		my $since = $visited->('SELECT clock_timestamp()');

		wait_until($node, sub { $visited->("SELECT coalesce(bool_and(visited > '$since'), false) FROM pgpool.commit_participants") }, 't')
		  or return fail($name);
	}
	return pass($name);
}

# Assert that no part is left; wait for it.
sub nothing_is_prepared
{
	my ($shards, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(scalar(grep { !wait_until($_, $parts, '0') } @$shards), 0, "$name: no part is left");
}

# The numbers of the transfers that are in some of the tables, and not in all.
sub differences
{
	my ($local, $shards) = @_;
	my @all = (read_rows($local, 'postgres', 'SELECT n FROM ledger'), map { read_rows($_, 'remote_db', 'SELECT n FROM transfers') } @$shards);
	my %count;

	$count{$_}++ foreach @all;
	return (scalar(keys %count), sort { $a <=> $b } grep { $count{$_} != 1 + @$shards } keys %count);
}

# The rows of a query, which is repeated while the server restarts after a crash.
sub read_rows
{
	my ($node, $dbname, $sql) = @_;
	my $rows;

	wait_until($node, sub { eval { $node->psql($dbname, $sql, stdout => \$rows) == 0 } ? 1 : 0 }, 1);
	return split /\n/, $rows;
}

# Assert that no part is left, and that each transfer is in all tables or in none. $number: of
# the transfers that are, if it is known.
sub all_agree
{
	my ($local, $shards, $name, $number) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	nothing_is_prepared($shards, $name);
	my ($found, @partial) = differences($local, $shards);
	is("@partial", '', "$name: both shards and the ledger have the same transfers");
	is($found, $number, "$name: $number transfers are committed") if defined $number;
	return;
}

# Kill all processes of a server at the same time, as a crash of the machine does. Buffers of
# the operating system survive.
sub kill_all
{
	my ($node) = @_;
	my @processes = processes($node);

	# no process may react to the end of another one
	kill 'STOP', @processes;
	my @late = processes($node);
	kill 'KILL', @processes, @late;

	# a new postmaster considers a process alive until it has been reaped
	wait_until($node, sub { scalar grep { kill 0, $_ } @processes, @late }, '0');
	delete $node->{shared_session};
	$node->{_pid} = undef;
	return;
}

# Start a server after kill_all.
sub start_again
{
	my ($node) = @_;

	wait_until($node, sub { $node->{_pid} = undef; $node->start(fail_ok => 1) ? 1 : 0 }, 1);
	return;
}

my @probes;    # sessions whose commits wait

# From here on commits that must be synchronous wait for a standby that does not exist, after
# they are durable.
sub commits_wait
{
	my ($local) = @_;
	my $probe = PgpxSession->new($local);
	my $waits = 'SELECT count(*) FROM pg_stat_activity WHERE wait_event = $$SyncRep$$ AND pid = ' . $probe->pid;

	$local->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
	$local->reload;

	# the checkpointer applies the setting
	do
	{
		$probe->start(q{SELECT pg_logical_emit_message(true, 'probe', '')});
		wait_until($local, sub { $probe->done || $local->safe_psql('postgres', $waits) ? 1 : 0 }, 1);
	} while $probe->done;
	push @probes, $probe;
	return;
}

sub commits_synchronously
{
	my ($local) = @_;

	$local->safe_psql('postgres', 'ALTER SYSTEM RESET synchronous_standby_names');
	$local->reload;
	$_->quit foreach splice @probes;
	return;
}

# Assert that the commit of a session waits for the standby.
sub commit_waits
{
	my ($local, $session, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_until($local, q{SELECT wait_event FROM pg_stat_activity WHERE pid = } . $session->pid, 'SyncRep'),
		$name // 'local commit is durable and waits for the standby');
}

1;
