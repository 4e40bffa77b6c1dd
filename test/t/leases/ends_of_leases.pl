# Leases end with their session, their transaction or their checkin, and with nothing else.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

# ---------- ids that are not valid
# Invalid lease ids: stale ones, those of other sessions, near and distant numbers. Each
# call fails, the leases of other sessions are not affected, nothing is counted, and
# nothing is left behind.
{
	make_pool($local, $remote, server => 'three', options => { pool_size => 3 });

	my ($holder, $guesser) = (PgpxSession->new($local), PgpxSession->new($local, user => 'app'));
	my @leases = map { lease($holder, 'three') } 1 .. 3;
	my @pids = map { $holder->run("SELECT * FROM pgpool.query($_, 'SELECT pg_backend_pid()') AS t(a int)") } @leases;
	$holder->run("SELECT pgpool.send($leases[1], 'SELECT 42, pg_sleep(0)::text')");

	# The guesser had a lease of its own, so its guesses are near valid ids.
	my $stats = q{SELECT checkouts, checkins, reclaimed, terminated FROM pgpool.stats WHERE local_user <> 'app'};
	my $before = $local->safe_psql('postgres', $stats);
	$guesser->run(q{SELECT pgpool.checkout('three') AS own \gset} . "\nSELECT pgpool.checkin(:own);\nSELECT pgpool.checkin(:own)");
	is($guesser->sqlstate, '55000', 'second checkin of a lease fails');
	my $own = $guesser->run("SELECT :own");
	like($own, qr/^\d+$/, 'lease id is a number');

	my @calls = ('checkin(%s)', 'discard(%s)', "exec(%s, 'SELECT 1')", "send(%s, 'SELECT 1')", "wait(%s, '1 ms')", 'cancel(%s)', 'try_wait_any(ARRAY[%s])');
	my @tables = ("query(%s, 'SELECT 1') AS t(a int)", 'result(%s) AS t(a int)', 'notifications(%s)');
	foreach my $id ($own, @leases, $own + 1, -$leases[0], $leases[0] ^ (1 << 40), 0, '9223372036854775807', "'-9223372036854775808'::bigint")
	{
		my @wrong = grep { $guesser->run($_); $guesser->sqlstate !~ /^(?:55000|42501)$/ }
		  ((map { sprintf "SELECT pgpool.$_", $id } @calls), map { sprintf "SELECT * FROM pgpool.$_", $id } @tables);

		is(join(', ', @wrong), '', "id $id: each call fails");
	}

	is($local->safe_psql('postgres', $stats), $before, 'leases of the other session are not affected');
	is($holder->run("SELECT a FROM pgpool.result($leases[1]) AS t(a int, b text)") . $holder->error, '42', 'statement in flight of the other session is answered');
	is(join(' ', map { $holder->run("SELECT * FROM pgpool.query($_, 'SELECT pg_backend_pid()') AS t(a int)") } @leases), "@pids", 'leases have the same remote sessions');

	# the right ids in the same session under another role
	$holder->run('SET ROLE app');
	$holder->fails("SELECT pgpool.exec($leases[0], 'SELECT 1')", '42501', qr/belongs to another user/, 'lease of another user of the same session is refused');
	$holder->run('RESET ROLE');
	is($holder->run('SELECT pgpool.checkin_all()') . $holder->error, '3', 'leases can be returned');

	$_->quit foreach $holder, $guesser;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- a backend that is terminated
# A backend that is terminated releases its leased connection: at once if the lease was
# idle, after a cancel if a query ran. Nothing keeps running on the remote server.
{
	make_pool($local, $remote, server => 'shard1', options => { pool_size => 1 });
	$remote->safe_psql('remote_db',
		'CREATE TABLE t AS SELECT 1 AS a; ALTER TABLE t OWNER TO remote_app');

	my $row = 'AS t(a int)';
	my $next = PgpxSession->new($local);

	# Terminate a holder, whose connection must be free then.
	sub check_terminated_holder
	{
		my ($holder, $what) = @_;
		my $lease;

		$next->run('SELECT pg_terminate_backend(' . $holder->pid . ')');
		$lease = $next->run("SELECT pgpool.checkout('shard1', '1 h')");
		like($lease, qr/^\d+$/, "$what: connection becomes free");
		is($next->run("SELECT * FROM pgpool.query($lease, 'select 5') $row"), '5', "$what: connection works");
		$next->run("SELECT pgpool.checkin($lease)");
		ok( wait_until($remote,
				"SELECT count(*) FROM pg_stat_activity WHERE query ~ 'sleep|generate_series|from t'"
				  . " AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND state <> 'idle'",
				'0'),
			"$what: no statement of the holder runs on the remote server");
		is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', "$what: no lease is left");
		check_invariants($local, "$what: invariants hold");
		return;
	}

	# Wait until the holder's statement runs on the remote server.
	sub runs_at_remote
	{
		my ($pattern) = @_;

		return ok( wait_until($remote,
				"SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND query ~ '$pattern'",
				'1'),
			"remote server executes $pattern");
	}

	my $holder = PgpxSession->new($local);
	lease($holder, 'shard1');
	check_terminated_holder($holder, 'unused lease');

	$holder = PgpxSession->new($local);
	my $lease = lease($holder, 'shard1');
	is($holder->run("SELECT * FROM pgpool.query($lease, 'select 1') $row"), '1', 'lease is used');
	check_terminated_holder($holder, 'idle lease');

	$holder = PgpxSession->new($local);
	$lease = lease($holder, 'shard1');
	$holder->run("SELECT pgpool.exec($lease, 'begin'); SELECT pgpool.exec($lease, 'update t set a = 2')");
	check_terminated_holder($holder, 'open transaction');
	is($remote->safe_psql('remote_db', 'SELECT a FROM t FOR UPDATE NOWAIT'), '1',
		'open transaction is rolled back, and its locks are released');

	$holder = PgpxSession->new($local);
	$lease = lease($holder, 'shard1');
	$holder->start("SELECT * FROM pgpool.query($lease, 'select 1 from pg_sleep(300)') $row");
	runs_at_remote('pg_sleep');
	check_terminated_holder($holder, 'lease with a running query');

	$holder = PgpxSession->new($local);
	$holder->start("SELECT * FROM pgpool.query('shard1', 'select 1 from pg_sleep(300)') $row");
	runs_at_remote('pg_sleep');
	check_terminated_holder($holder, 'call with a running query');

	$holder = PgpxSession->new($local);
	$holder->start("SELECT count(*) FROM pgpool.query('shard1', 'select generate_series(1, 1000000000)') $row");
	ok( wait_until($remote,
			"SELECT count(*) FROM pg_stat_activity WHERE query ~ 'generate_series' AND pid <> pg_backend_pid()",
			'1'),
		'remote server sends a large result');
	check_terminated_holder($holder, 'call in the middle of a result');

	$holder = PgpxSession->new($local);
	$holder->start("BEGIN; SELECT pgpool.checkout_xact('shard1') AS lease \\gset\nSELECT pgpool.exec(:lease, 'select pg_sleep(300)')");
	runs_at_remote('pg_sleep');
	check_terminated_holder($holder, 'transaction lease with a running query');

	# the same for a client that disconnects
	$holder = PgpxSession->new($local);
	lease($holder, 'shard1');
	$holder->quit;
	is($next->run("SELECT * FROM pgpool.query('shard1', 'select 6') $row"), '6', 'disconnected client leaves no lease');
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- the end of a transaction
# A lease of checkout_xact ends with its transaction: at commit, abort, PREPARE
# TRANSACTION, and when its savepoint is rolled back. A prepared transaction neither
# keeps the lease nor uses it later.
{
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
}

leak_check($local, $remote);
done_testing();
