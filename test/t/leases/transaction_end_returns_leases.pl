# A lease of checkout_xact ends with its transaction: at commit, abort, PREPARE
# TRANSACTION, and when its savepoint is rolled back. A prepared transaction neither
# keeps the lease nor uses it later.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
make_pool($local, $remote, server => 'one', options => { pool_size => 1 });
$remote->safe_psql('remote_db', 'CREATE TABLE t (a int); ALTER TABLE t OWNER TO remote_app');
$local->safe_psql('postgres', 'CREATE TABLE local_t (a int)');

my $session = PgpxSession->new($local);
my $other = PgpxSession->new($local);
my $take = "SELECT pgpool.checkout_xact('one', '10 s') AS lease \\gset\n";

# Assert that another session can use the only connection.
sub is_free
{
	my ($name) = @_;

	return is($other->run("SELECT * FROM pgpool.query('one', 'select 1') AS t(a int)", 20) . $other->error, '1', $name);
}

sub is_held
{
	my ($name) = @_;

	is($other->run("SELECT pgpool.try_checkout('one') IS NULL"), 't', $name);
	return;
}

$session->run("BEGIN; $take SELECT pgpool.exec(:lease, 'insert into t values (1)')");
is_held('transaction holds its lease');
is($session->run('COMMIT') . $session->error, '', 'transaction commits');
is_free('commit returns the lease');

$session->run("BEGIN; $take ROLLBACK");
is_free('rollback returns the lease');
$session->run("BEGIN; $take SELECT 1/0;\nCOMMIT");
is_free('error returns the lease');
$session->run("BEGIN; $take SELECT pgpool.exec(:lease, 'select 1/0')");
is_free('remote error returns the lease before ROLLBACK');
$session->run('ROLLBACK');

# PREPARE TRANSACTION
$session->run("BEGIN; $take SELECT pgpool.exec(:lease, 'insert into t values (2)'); INSERT INTO local_t VALUES (2);
PREPARE TRANSACTION 'p'");
is($session->error, '', 'transaction that used a lease can be prepared');
is_free('PREPARE TRANSACTION returns the lease');
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t WHERE a = 2'), '1', 'remote changes are committed at once');
is($other->run("COMMIT PREPARED 'p'; SELECT a FROM local_t") . $other->error, '2', 'another session can commit the prepared transaction');
is($session->run("BEGIN; $take PREPARE TRANSACTION 'q';
ROLLBACK PREPARED 'q'") . $session->error, '', 'prepared transaction can be rolled back');
is_free('rollback of a prepared transaction does not affect the pool');

# a session lease is independent of the transaction
my $lease = lease($session, 'one');
$session->run("BEGIN; SELECT pgpool.exec($lease, 'select 1'); PREPARE TRANSACTION 'r'");
is_held('session lease is kept by PREPARE TRANSACTION');
is($session->run("SELECT pgpool.exec($lease, 'select 1')") . $session->error, '1', 'session lease stays usable');
$session->run("ROLLBACK PREPARED 'r'; SELECT pgpool.checkin($lease)");

# an open remote transaction cannot be kept, so it is an error before the commit
foreach my $end ('COMMIT', "PREPARE TRANSACTION 's'")
{
	$session->fails("BEGIN; $take SELECT pgpool.exec(:lease, 'begin'); SELECT pgpool.exec(:lease, 'insert into t values (3)');\n$end",
		'25001', qr/open remote transaction/, "$end with an open remote transaction fails");
	is_free('failed commit returns the lease');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t WHERE a = 3'), '0', 'remote transaction is rolled back');
}

# The same if a remote statement was abandoned in the middle of its answer, and if the
# connection was lost.
$local->safe_psql('postgres', <<'EOT');
CREATE FUNCTION attempt(lease bigint, sql text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM * FROM pgpool.query(lease, sql) AS t(a int);
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$
EOT
my $open = "$take SELECT pgpool.exec(:lease, 'begin'); SELECT pgpool.exec(:lease, 'insert into t values (4)');\n";

# Assert that the next statement on the lease fails, and that the local transaction
# continues.
sub is_swallowed
{
	my ($sql, $sqlstate, $name) = @_;

	return is($session->run("SELECT attempt(:lease, \$\$$sql\$\$)"), $sqlstate, "$name: error is caught");
}

foreach my $rows (10, 1_000_000)
{
	my $some = "select g || 'x' from generate_series(1, $rows) g";

	foreach my $end ('COMMIT', "PREPARE TRANSACTION 's'")
	{
		$session->run("BEGIN; $open");
		is_swallowed($some, '22P02', "$rows rows");
		$session->fails($end, '25001', qr/open remote transaction/, "$rows rows: $end fails");
		is_free('failed commit returns the lease');
	}
	$session->run("BEGIN; $open");
	is_swallowed($some, '22P02', "$rows rows");
	$session->run('SELECT pgpool.checkin(:lease)');
	like($session->error, qr/WARNING:.*was returned with an open remote transaction/, "$rows rows: checkin of an open remote transaction warns");
	is($session->run('COMMIT') . $session->error, '', "$rows rows: commit succeeds after the checkin");
	is_free('lease is returned');
}
foreach my $what ('open', 'returned', 'none')
{
	$session->run('BEGIN; ' . ($what eq 'none' ? "$take SELECT pgpool.exec(:lease, 'select 1')" : $open));
	my $pid = $session->run("SELECT * FROM pgpool.query(:lease, 'select pg_backend_pid()') AS t(a int)");

	$remote->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 20000)");
	is_swallowed('select 1', '08006', "lost, $what");
	$session->run('SELECT pgpool.checkin(:lease)') if $what eq 'returned';
	if ($what eq 'open')
	{
		$session->fails('COMMIT', '08006', qr/connection to server "one" was lost/, 'COMMIT fails if the open remote transaction was lost');
	}
	else
	{
		is($session->run('COMMIT') . $session->error, '', "lost, $what: COMMIT succeeds");
	}
	is_free('lease is returned');
}
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t WHERE a = 4'), '0', 'all remote transactions were rolled back');
is($session->run('SELECT count(*) FROM pg_prepared_xacts'), '0', 'no prepared transaction is left');

# Savepoints
$session->run("BEGIN; SAVEPOINT a; $take ROLLBACK TO a");
is_free('rollback to the savepoint returns the lease');
$session->run("SAVEPOINT b; $take RELEASE b");
is_held('release of the savepoint keeps the lease');
is($session->run("SELECT pgpool.exec(:lease, 'select 1')") . $session->error, '1', 'kept lease stays usable');
$session->run('ROLLBACK TO a');
is_free('rollback to the outer savepoint returns the lease');
$session->run("SAVEPOINT c; SAVEPOINT d; $take RELEASE d; RELEASE c; COMMIT");
is_free('end of the transaction returns the lease of a released savepoint');
$session->run(<<"EOT");
DO \$\$
BEGIN
	FOR i IN 1 .. 200 LOOP
		BEGIN
			PERFORM pgpool.exec(pgpool.checkout_xact('one'), 'select 1');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
		END;
	END LOOP;
END \$\$
EOT
is($session->error, '', 'exception block returns its lease, 200 times');
is_free('no lease is left after the exception blocks');

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
