# A commit on several servers is one commit with server option two_phase_commit: which
# transactions are prepared, errors before the decision, rollbacks, subtransactions,
# isolation levels, and two servers that are one database.
use strict;
use warnings;

use PgpxTest;
use PgpxTransfers;
use PostgreSQL::Test::Utils;
use Test::More;

my @shards = map { shard_node($_, conf => [ 'log_statement = all' ]) } qw(one two);
my $local = local_node('local', conf => [ 'max_connections = 60' ]);

$shards[0]->safe_psql('remote_db', <<'EOS');
SET ROLE remote_app;
CREATE TABLE log (t text);
CREATE FUNCTION logs() RETURNS int LANGUAGE sql AS $$ INSERT INTO public.log VALUES ('read') RETURNING 1 $$;
CREATE VIEW logging AS SELECT logs() AS n;
CREATE FUNCTION makes_temp() RETURNS int LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE t (); RETURN 1; END $$;
CREATE VIEW temporary AS SELECT makes_temp() AS n;
CREATE FUNCTION notifies() RETURNS int LANGUAGE plpgsql AS $$ BEGIN NOTIFY news; RETURN 1; END $$;
CREATE VIEW notifying AS SELECT notifies() AS n;
EOS
make_shards($local, \@shards);
make_shard($local, $shards[1], 'plain', options => { two_phase_commit => 'off' });
make_shard($local, $shards[0], 'plain_too', options => { two_phase_commit => 'off' });
make_shard($local, $shards[0], 'twin');
$local->safe_psql('postgres', <<'EOS');
CREATE FOREIGN TABLE shard1.logging (n int) SERVER shard1 OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE shard1.temporary (n int) SERVER shard1 OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE shard1.notifying (n int) SERVER shard1 OPTIONS (schema_name 'public');
GRANT SELECT ON ALL TABLES IN SCHEMA shard1 TO app;
EOS

my $session = PgpxSession->new($local, user => 'app');
my $transfers = 0;                    # committed
my $n = 100;                          # of the last one that was tried
my @logs = map { $_->logfile } @shards;
my @at;

# the context of an error names the server
$session->run('\set SHOW_CONTEXT errors');

# statements of pools that the shards have executed since the last call of this function: their
# numbers of PREPARE TRANSACTION and of COMMIT PREPARED (which the resolver can send, too)
sub phases
{
	my ($prepares, $commits) = (0, 0);

	foreach my $i (0, 1)
	{
		my $log = slurp_file($logs[$i], $at[$i] // 0);

		$at[$i] = -s $logs[$i];
		$prepares += () = $log =~ /PREPARE TRANSACTION 'pgpx_/g;
		$commits += () = $log =~ m{ pgpool_ext/\w+ LOG: .*COMMIT PREPARED 'pgpx_}g;
	}
	return "$prepares $commits";
}

# run SQL, and assert that its transaction succeeds in one phase or prepares a number of parts
sub is_in_phases
{
	my ($sql, $parts, $name) = @_;

	phases();
	$session->run($sql);
	is($session->error, '', "$name: transaction succeeds");
	is(phases(), "$parts $parts", "$name: $parts parts are prepared and committed");
	nothing_is_prepared(\@shards, $name);
	return;
}

# run a transaction whose last command must fail and leave nothing
sub aborts
{
	my ($sql, $sqlstate, $pattern, $name) = @_;

	$session->fails($sql, $sqlstate, $pattern, "$name: transaction fails");
	is($session->run('SELECT 1'), '1', "$name: session works");
	all_agree($local, \@shards, $name, $transfers);
	return;
}

# --- which transactions are prepared
is_in_phases(transfer(++$transfers), 2, 'two servers and a local row');
is_in_phases(transfer(++$transfers), 2, 'second transaction of the session');
all_agree($local, \@shards, 'commit', $transfers);
ok(wait_until($local, 'SELECT count(*) FROM pgpool.prepared_transactions', '0'), 'view shows no part');
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.commit_participants'), '2', 'each server has a participant');
is_in_phases("BEGIN; UPDATE shard1.accounts SET balance = 1 WHERE id = 1; UPDATE shard2.accounts SET balance = 1 WHERE id = 1; COMMIT", 2, 'two servers');
is_in_phases("BEGIN; UPDATE shard1.accounts SET balance = 2 WHERE id = 1; CREATE TEMP TABLE here (); COMMIT", 1, 'a server and a local catalog change');
is_in_phases("BEGIN; SELECT n FROM shard1.logging; DROP TABLE here; COMMIT", 1, 'a query that writes, and a local write');
is_in_phases("UPDATE shard1.accounts SET balance = 3 WHERE id = 1", 0, 'one server');
is_in_phases("BEGIN; UPDATE shard1.accounts SET balance = 4 WHERE id = 1; SELECT count(*) FROM shard2.accounts; COMMIT", 0, 'one server, and a query of another one');
is_in_phases("BEGIN; INSERT INTO ledger VALUES (-1, 0); SELECT count(*) FROM shard2.accounts; DELETE FROM ledger WHERE n = -1; COMMIT", 0, 'a local write, and a remote query');
is_in_phases("BEGIN; SELECT count(*) FROM shard1.accounts; SELECT count(*) FROM shard2.accounts; COMMIT", 0, 'queries');
is_in_phases("BEGIN READ ONLY; SELECT count(*) FROM shard1.accounts; SELECT count(*) FROM shard2.accounts; COMMIT", 0, 'READ ONLY');
is_in_phases("BEGIN; UPDATE shard1.accounts SET balance = 5 WHERE id = 1; NOTIFY news; COMMIT", 0, 'one server, and a local NOTIFY');
is_in_phases("BEGIN; UPDATE plain.accounts SET balance = 1 WHERE id = 2; UPDATE plain_too.accounts SET balance = 1 WHERE id = 2; CREATE TEMP TABLE here (); COMMIT", 0,
	'servers without the option');
is_in_phases("BEGIN; INSERT INTO ledger VALUES (-1, 0); SELECT count(*) FROM plain.accounts; UPDATE shard1.accounts SET balance = 6 WHERE id = 1; DELETE FROM ledger WHERE n = -1; COMMIT", 1,
	'a query of a server without the option');
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.commit_participants WHERE server = (SELECT oid FROM pg_foreign_server WHERE srvname = 'plain')"), '0',
	'server without the option has no participant');

# --- errors before the decision
aborts(transfer(++$n, to => 'plain'), '0A000', qr/"plain"/, 'a server without the option');
aborts(transfer(++$n, note => 'fails'), 'XX123', qr/the shard refuses/, 'deferred trigger of a shard');
aborts("BEGIN; SELECT n FROM shard1.temporary; INSERT INTO ledger VALUES (1000, 1); COMMIT", '0A000', qr/"shard1".*temporary|temporary.*"shard1"/s, 'temporary table of the remote');
aborts("BEGIN; SELECT n FROM shard1.notifying; UPDATE shard2.accounts SET balance = 7; INSERT INTO shard1.transfers VALUES (1000, 1); COMMIT", '0A000',
	qr/"shard1".*NOTIFY|NOTIFY.*"shard1"/s, 'NOTIFY on the remote');
is($shards[1]->safe_psql('remote_db', 'SELECT max(balance) FROM accounts'), '1', 'nothing of it is committed');

# the other shard is prepared when the error comes
{
	my $gate = close_gate($shards[0]);

	$shards[1]->safe_psql('remote_db', 'SET ROLE remote_app; ALTER TABLE transfers ADD CHECK (amount <> 13)');
	$session->start("BEGIN; INSERT INTO shard1.transfers VALUES (1001, 1, 'gate'); INSERT INTO shard2.transfers VALUES (1001, 1); INSERT INTO ledger VALUES (1001, 1); COMMIT");
	is_at_gate($shards[0]);
	ok(wait_until($shards[1], sub { prepared_on($shards[1]) }, '1'), 'part of the other shard is prepared meanwhile');
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	$session->failed('57014', qr/canceling statement/, 'commit is cancelled while PREPARE runs');
	$gate->quit;
	all_agree($local, \@shards, 'cancel', $transfers);
}

# a shard cannot prepare
$shards[1]->append_conf('postgresql.conf', 'max_prepared_transactions = 0');
$shards[1]->restart;
aborts(transfer(++$n), '55000', qr/"shard2".*max_prepared_transactions|max_prepared_transactions.*"shard2"/s, 'max_prepared_transactions is 0');
is_in_phases('UPDATE shard2.accounts SET balance = 1 WHERE id = 1', 0, 'max_prepared_transactions is 0, one server');
$shards[1]->append_conf('postgresql.conf', 'max_prepared_transactions = 100');
$shards[1]->restart;

# the part would have another owner
$shards[0]->safe_psql('postgres', 'CREATE ROLE other; GRANT other TO remote_app');
$shards[0]->safe_psql('remote_db', 'GRANT ALL ON ALL TABLES IN SCHEMA public TO other');
make_shard($local, $shards[0], 'as_other', options => { start_commands => 'SET ROLE other' });
$session->fails("BEGIN; UPDATE as_other.accounts SET balance = 8 WHERE id = 8; UPDATE shard2.accounts SET balance = 8 WHERE id = 8; COMMIT", '0A000', qr/"as_other"/,
	'remote session has another role: transaction fails');
nothing_is_prepared(\@shards, 'another role');
is($shards[1]->safe_psql('remote_db', 'SELECT balance FROM accounts WHERE id = 8'), '0', 'another role: nothing is committed');
is_in_phases('UPDATE as_other.accounts SET balance = 8 WHERE id = 8', 0, 'another role, one server');

# --- rollbacks and subtransactions
phases();
$session->run(transfer(++$n, end => 'ROLLBACK'));
is($session->error . phases(), '0 0', 'rollback prepares nothing');
$session->run(transfer(++$n, end => 'SELECT 1/0; COMMIT'));
is(phases(), '0 0', 'error before COMMIT prepares nothing');
all_agree($local, \@shards, 'rollback', $transfers);
is_in_phases("BEGIN; INSERT INTO shard1.transfers VALUES (2000, 1); SAVEPOINT s; INSERT INTO shard2.transfers VALUES (2000, 1); INSERT INTO ledger VALUES (2000, 1); ROLLBACK TO s;"
	  . ' DELETE FROM shard1.transfers WHERE n = 2000; COMMIT', 2, 'rollback to a savepoint');
++$transfers;
is_in_phases("BEGIN; SAVEPOINT s; INSERT INTO shard1.transfers VALUES ($transfers, 1); RELEASE s; SAVEPOINT t; INSERT INTO shard2.transfers VALUES ($transfers, 1); SAVEPOINT u;"
	  . " INSERT INTO ledger VALUES ($transfers, 1); RELEASE t; COMMIT", 2, 'released savepoints');
$session->run(<<"EOS");
CREATE PROCEDURE pg_temp.transfers(first int, last int) LANGUAGE plpgsql AS \$\$
BEGIN
	FOR i IN first .. last LOOP
		INSERT INTO shard1.transfers VALUES (i, 1);
		INSERT INTO shard2.transfers VALUES (i, 1);
		INSERT INTO ledger VALUES (i, 1);
		COMMIT;
	END LOOP;
END \$\$
EOS
is_in_phases("CALL pg_temp.transfers(@{[$transfers + 1]}, @{[$transfers + 3]})", 6, 'commits of a procedure');
$transfers += 3;
all_agree($local, \@shards, 'subtransactions', $transfers);

# COPY, and a local transaction that is prepared itself
$session->fails('BEGIN; UPDATE shard1.accounts SET balance = 9 WHERE id = 9; PREPARE TRANSACTION $$mine$$', '0A000', qr/foreign tables|PREPARE/i, 'local PREPARE TRANSACTION is refused');

# --- isolation levels
is_in_phases(transfer(++$transfers) =~ s/BEGIN/BEGIN ISOLATION LEVEL REPEATABLE READ/r, 2, 'REPEATABLE READ');
is_in_phases(transfer(++$transfers) =~ s/BEGIN/BEGIN ISOLATION LEVEL SERIALIZABLE/r, 2, 'SERIALIZABLE');
is_in_phases("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM shard1.accounts; UPDATE shard2.accounts SET balance = 10 WHERE id = 10; COMMIT", 1,
	'SERIALIZABLE, one server is only read');
{
	my $other = PgpxSession->new($local, user => 'app');

	# write skew on the ledger: the second commit must fail
	$session->run("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(amount) FROM ledger; INSERT INTO shard1.transfers VALUES (3000, 1); INSERT INTO shard2.transfers VALUES (3000, 1); INSERT INTO ledger VALUES (3000, 1)");
	$other->run("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(amount) FROM ledger; INSERT INTO shard1.transfers VALUES (3001, 1); INSERT INTO shard2.transfers VALUES (3001, 1); INSERT INTO ledger VALUES (3001, 1)");
	is($session->run('COMMIT') . $session->error, '', 'SERIALIZABLE: first of two transactions commits');
	$other->fails('COMMIT', '40001', qr/could not serialize access/, 'SERIALIZABLE: second one fails');
	all_agree($local, \@shards, 'SERIALIZABLE', ++$transfers);
	$other->quit;
}

# --- two servers that are one database
is_in_phases("BEGIN; UPDATE shard1.accounts SET balance = 11 WHERE id = 11; UPDATE twin.accounts SET balance = 11 WHERE id = 12; COMMIT", 2, 'two servers are one database');
is($shards[0]->safe_psql('remote_db', 'SELECT sum(balance) FROM accounts WHERE id IN (11, 12)'), '22', 'both are committed');

# --- the tables of the extension
foreach my $table (qw(commit_decisions commit_participants commit_parts))
{
	$session->fails("SELECT * FROM pgpool.$table", '42501', qr/permission denied/, "$table: user may not read it");
}
like($session->run('SELECT count(*) FROM pgpool.prepared_transactions') . $session->error, qr/^\d+$/, 'prepared_transactions: user may read it');

# a user cannot interfere with the row by a trigger, a search_path or a role setting
$session->run("CREATE TEMP TABLE commit_decisions (id text, participants int4[]); CREATE TEMP TABLE commit_participants (id int); SET search_path = pg_temp, public");
is_in_phases(transfer(++$transfers), 2, 'tables of the same names in search_path');
$session->run('DISCARD ALL');

$session->quit;
all_agree($local, \@shards, 'at the end', $transfers);
stats_add_up($local);
check_invariants($local);
leak_check($local, @shards);
done_testing();
