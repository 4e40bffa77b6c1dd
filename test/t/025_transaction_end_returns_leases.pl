# A lease of checkout_xact ends with the transaction that took it: at commit,
# abort, PREPARE TRANSACTION, and when its savepoint is rolled back.  The prepared
# transaction neither keeps it nor touches it later.
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

# The one connection is free for another session.
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
is_held('a transaction holds its lease');
is($session->run('COMMIT') . $session->error, '', 'commit');
is_free('and has returned it then');

$session->run("BEGIN; $take ROLLBACK");
is_free('rollback returns it');
$session->run("BEGIN; $take SELECT 1/0;\nCOMMIT");
is_free('an error returns it');
$session->run("BEGIN; $take SELECT pgpool.exec(:lease, 'select 1/0')");
is_free('an error of the remote returns it, before the ROLLBACK comes');
$session->run('ROLLBACK');

# PREPARE TRANSACTION
$session->run("BEGIN; $take SELECT pgpool.exec(:lease, 'insert into t values (2)'); INSERT INTO local_t VALUES (2);
PREPARE TRANSACTION 'p'");
is($session->error, '', 'a transaction that used a lease can be prepared');
is_free('which returns the lease');
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t WHERE a = 2'), '1', 'the remote does not wait for it');
is($other->run("COMMIT PREPARED 'p'; SELECT a FROM local_t") . $other->error, '2', 'another session may commit it');
is($session->run("BEGIN; $take PREPARE TRANSACTION 'q';
ROLLBACK PREPARED 'q'") . $session->error, '', 'or roll it back');
is_free('the lease is not touched again');

# A session lease is none of the transaction's business.
my $lease = lease($session, 'one');
$session->run("BEGIN; SELECT pgpool.exec($lease, 'select 1'); PREPARE TRANSACTION 'r'");
is_held('a session lease is kept over PREPARE TRANSACTION');
is($session->run("SELECT pgpool.exec($lease, 'select 1')") . $session->error, '1', 'and works on');
$session->run("ROLLBACK PREPARED 'r'; SELECT pgpool.checkin($lease)");

# What is open at the remote cannot be kept, so it is refused before the commit.
foreach my $end ('COMMIT', "PREPARE TRANSACTION 's'")
{
	$session->fails("BEGIN; $take SELECT pgpool.exec(:lease, 'begin'); SELECT pgpool.exec(:lease, 'insert into t values (3)');\n$end",
		'25001', qr/open remote transaction/, "$end with an open remote transaction is refused");
	is_free('and the lease returned');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t WHERE a = 3'), '0', 'rolled back at the remote');
}

# .. also where a statement in it was left in the middle of its answer, and where nothing
# is left of it because the connection was lost
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

# The next statement on the lease fails, and the transaction here goes on.
sub is_swallowed
{
	my ($sql, $sqlstate, $name) = @_;

	return is($session->run("SELECT attempt(:lease, \$\$$sql\$\$)"), $sqlstate, "$name: an error is swallowed");
}

foreach my $rows (10, 1_000_000)
{
	my $some = "select g || 'x' from generate_series(1, $rows) g";

	foreach my $end ('COMMIT', "PREPARE TRANSACTION 's'")
	{
		$session->run("BEGIN; $open");
		is_swallowed($some, '22P02', "$rows rows");
		$session->fails($end, '25001', qr/open remote transaction/, "$rows rows: $end is refused");
		is_free('and the lease returned');
	}
	$session->run("BEGIN; $open");
	is_swallowed($some, '22P02', "$rows rows");
	$session->run('SELECT pgpool.checkin(:lease)');
	like($session->error, qr/WARNING:.*was returned with an open remote transaction/, "$rows rows: a checkin warns");
	is($session->run('COMMIT') . $session->error, '', "$rows rows: and then there is nothing to refuse");
	is_free('and the lease returned');
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
		$session->fails('COMMIT', '08006', qr/connection to server "one" was lost/, 'COMMIT with a remote transaction that was lost is refused');
	}
	else
	{
		is($session->run('COMMIT') . $session->error, '', "lost, $what: COMMIT is not refused");
	}
	is_free('and the lease returned');
}
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM t WHERE a = 4'), '0', 'all of them rolled back at the remote');
is($session->run('SELECT count(*) FROM pg_prepared_xacts'), '0', 'nothing is left prepared');

# Savepoints
$session->run("BEGIN; SAVEPOINT a; $take ROLLBACK TO a");
is_free('rollback to the savepoint returns it');
$session->run("SAVEPOINT b; $take RELEASE b");
is_held('release of the savepoint keeps it');
is($session->run("SELECT pgpool.exec(:lease, 'select 1')") . $session->error, '1', 'and it works on');
$session->run('ROLLBACK TO a');
is_free('until the savepoint around that one is rolled back');
$session->run("SAVEPOINT c; SAVEPOINT d; $take RELEASE d; RELEASE c; COMMIT");
is_free('or the transaction ends');
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
is($session->error, '', 'an exception block returns it, 200 times over');
is_free('and at the end');

$_->quit foreach $session, $other;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
