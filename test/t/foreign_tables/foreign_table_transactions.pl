# Foreign tables follow the local transaction: commits on several servers, errors at
# commit, rollbacks to savepoints, and the end of the session, the worker and the remote
# session in each state.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['max_connections = 120', 'max_prepared_transactions = 2']);

$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE SCHEMA app;
CREATE TABLE app.a (id int PRIMARY KEY, v int);
CREATE TABLE app.b (id int PRIMARY KEY, v int REFERENCES app.a DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE app.log (t text);
CREATE TABLE app.big AS SELECT i AS id, repeat('x', 100) AS filler FROM generate_series(1, 200000) AS i;
CREATE FUNCTION app.logs() RETURNS int LANGUAGE sql AS $$ INSERT INTO app.log VALUES ('read') RETURNING 1 $$;
CREATE VIEW app.logging AS SELECT app.logs() AS n;
CREATE VIEW app.failing AS SELECT i AS id, 1 / (i - 60) AS n FROM generate_series(1, 200000) AS i;
CREATE VIEW app.slow AS SELECT 1 AS n, pg_sleep(600)::text AS s;
INSERT INTO app.a SELECT i, 0 FROM generate_series(1, 10) AS i;
EOT

# two servers, so two remote transactions
my @servers = qw(one two);
foreach my $server (@servers)
{
	make_pool($local, $remote, server => $server, options => { pool_size => 1, checkout_timeout => '20s' });
	$local->safe_psql('postgres', <<"EOT");
CREATE SCHEMA $server;
CREATE FOREIGN TABLE $server.a (id int, v int) SERVER $server OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE $server.b (id int, v int) SERVER $server OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE $server.log (t text) SERVER $server OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE $server.big (id int, filler text) SERVER $server OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE $server.logging (n int) SERVER $server OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE $server.failing (id int, n int) SERVER $server OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE $server.slow (n int, s text) SERVER $server OPTIONS (schema_name 'app');
EOT
}

my $session = PgpxSession->new($local);
my $open = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND state <> 'idle'";

sub remote_value
{
	return $remote->safe_psql('remote_db', $_[0]);
}

# nothing is leased, and no remote transaction is open
sub nothing_is_left
{
	my ($name) = @_;

	return ok(
		wait_until($local, "SELECT count(*) FROM pgpool.leases", '0') && wait_until($remote, $open, '0'),
		"$name: no lease and no remote transaction is left");
}

# commit and rollback on two servers
$session->run("BEGIN; UPDATE one.a SET v = 1 WHERE id = 1; UPDATE two.a SET v = 2 WHERE id = 2");
is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.leases WHERE scope = 'fdw' AND state = 'in transaction'"),
	'2', 'each server has one lease');
is(remote_value('SELECT sum(v) FROM app.a'), '0', 'no change is visible before the commit');
$session->run('COMMIT');
is($session->error, '', 'commit succeeds');
is(remote_value('SELECT sum(v) FROM app.a'), '3', 'both remote transactions have committed');
nothing_is_left('commit');
$session->run("BEGIN; UPDATE one.a SET v = 100; UPDATE two.a SET v = 100 WHERE id > 100; ROLLBACK");
is(remote_value('SELECT sum(v) FROM app.a'), '3', 'rollback undoes both remote transactions');
nothing_is_left('rollback');

# a remote transaction that cannot commit is found before the first COMMIT is sent
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE FUNCTION app.changes_encoding() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN PERFORM set_config('client_encoding', 'LATIN1', false); RETURN NEW; END $$;
CREATE TRIGGER changes_encoding BEFORE UPDATE ON app.a FOR EACH ROW WHEN (NEW.v = 77) EXECUTE FUNCTION app.changes_encoding();
EOT
$session->run('BEGIN; UPDATE one.a SET v = 76 WHERE id = 1; UPDATE two.a SET v = 77 WHERE id = 2 AND random() >= 0');
is($session->error, '', 'function on the remote server changes client_encoding');
$session->fails('COMMIT', '0A000', qr/client_encoding of the remote session was changed/, 'commit fails');
is(remote_value('SELECT sum(v) FROM app.a'), '3', 'no remote transaction has committed');
nothing_is_left('client_encoding');
$remote->safe_psql('remote_db', 'DROP FUNCTION app.changes_encoding CASCADE');

# savepoints
$session->run(<<'EOT');
BEGIN;
UPDATE one.a SET v = v + 10 WHERE id = 1;
SAVEPOINT s;
UPDATE one.a SET v = v + 100 WHERE id = 1;
SAVEPOINT t;
UPDATE one.a SET v = v + 1000 WHERE id = 1;
ROLLBACK TO s;
UPDATE one.a SET v = v + 10000 WHERE id = 1;
RELEASE s;
SAVEPOINT u;
UPDATE one.a SET v = v + 100000 WHERE id = 1;
ROLLBACK TO u;
COMMIT;
EOT
is($session->error, '', 'savepoints succeed');
is(remote_value('SELECT v FROM app.a WHERE id = 1'), '10011', 'changes rolled back to a savepoint are undone');
$session->run("BEGIN; UPDATE one.a SET v = 5 WHERE id = 3; SAVEPOINT s; UPDATE one.a SET v = 5 WHERE id = 4; ROLLBACK TO s");
is(remote_value('SELECT id FROM app.a WHERE id IN (3, 4) FOR UPDATE SKIP LOCKED'), '4', 'rollback to a savepoint has released the remote locks');
$session->run('ROLLBACK');
nothing_is_left('savepoints');

# a rollback of the whole transaction inside savepoints
my $connects = "SELECT sum(connects) FROM pgpool.stats";
my $opened = $local->safe_psql('postgres', $connects);
$session->run(<<'EOT');
CREATE FUNCTION fails() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE one.a SET v = 5 WHERE id = 3;
	BEGIN
		UPDATE one.a SET v = 5 WHERE id = 4;
		RAISE division_by_zero;
	EXCEPTION WHEN unique_violation THEN
	END;
END $$
EOT
foreach my $i (1 .. 5)
{
	$session->run("BEGIN; UPDATE one.a SET v = 5 WHERE id = 3; SAVEPOINT s; UPDATE one.a SET v = 5 WHERE id = 4; ROLLBACK; SELECT fails()");
}
is($session->sqlstate, '22012', 'error passes an exception block');
is($local->safe_psql('postgres', $connects), $opened, 'rollback inside savepoints keeps the connection');
nothing_is_left('rollback inside savepoints');

# an error at the remote commit
$session->run("BEGIN; CREATE TABLE local_table(); INSERT INTO one.b VALUES (1, 999)");
$session->fails('COMMIT', '23503', qr/violates foreign key constraint/, 'error of the remote commit fails the local commit');
is($local->safe_psql('postgres', "SELECT to_regclass('local_table') IS NULL"), 't', 'local transaction has aborted');
nothing_is_left('error at commit');

# errors at two remote commits: one is raised, and the other one is logged
my $since = -s $local->logfile;
$session->run('BEGIN; INSERT INTO one.b VALUES (2, 999); INSERT INTO two.b VALUES (3, 999)');
$session->fails('COMMIT', '23503', qr/violates foreign key constraint/, 'error of a remote commit fails the local commit');
is_logged($local, $since, qr/could not commit the remote transaction on server "two"\n.*DETAIL: .* violates foreign key constraint/, 'error of the other remote commit is logged');
nothing_is_left('errors at two commits');

# the remote cancels a commit: the answers of the other servers are read all the same
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE app.c (id int);
CREATE FUNCTION app.cancelled() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'cancelled there' USING ERRCODE = 'query_canceled'; END $$;
CREATE CONSTRAINT TRIGGER c AFTER INSERT ON app.c DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.cancelled();
CREATE TABLE app.d (id int);
CREATE FUNCTION app.sleeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER d AFTER INSERT ON app.d DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.sleeps();
EOT
$session->run("CREATE FOREIGN TABLE one.c (id int) SERVER one OPTIONS (schema_name 'app'); CREATE FOREIGN TABLE two.d (id int) SERVER two OPTIONS (schema_name 'app')");
my $remote_pid = "SELECT remote_pid FROM pgpool.connections WHERE server = 'two'";
my $before = $local->safe_psql('postgres', $remote_pid);
$session->run('BEGIN; INSERT INTO one.c VALUES (1); INSERT INTO two.d VALUES (2)');
$session->fails('COMMIT', '57014', qr/cancelled there/, 'remote 57014 at commit is reported');
nothing_is_left('remote 57014 at commit');
is($local->safe_psql('postgres', $remote_pid), $before, 'connection whose answer was read is kept');
is(remote_value('SELECT id FROM app.d'), '2', 'other server has committed, as documented');

# a failed checkout frees what it has allocated
make_pool($local, $remote, server => 'dead', options => { port => 1, retry_max => '10ms', checkout_timeout => '5s' });
is($session->run(<<'EOT') . $session->error, '0', 'failed checkouts leave no memory behind');
CREATE FOREIGN TABLE dead (id int) SERVER dead;
BEGIN;
DO $$ BEGIN
	FOR i IN 1..3 LOOP
		BEGIN
			PERFORM * FROM dead;
		EXCEPTION WHEN sqlclient_unable_to_establish_sqlconnection THEN
		END;
	END LOOP;
END $$;
SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'pgpool_ext remote transaction';
COMMIT;
DROP FOREIGN TABLE dead;
EOT

# remote writes of a local read are committed when the statement returns
is($session->run('SELECT n FROM one.logging'), '1', 'view with side effects is read');
is(remote_value('SELECT count(*) FROM app.log'), '1', 'side effect of a read is committed');
is($session->run('BEGIN; SELECT n FROM one.logging; ROLLBACK; SELECT 1'), "1\n1", 'view with side effects is read in a transaction that is rolled back');
nothing_is_left('read');
is(remote_value('SELECT count(*) FROM app.log'), '1', 'side effect of a read is rolled back');
$session->fails("BEGIN; SELECT count(*) FROM one.a; PREPARE TRANSACTION 'x'", '0A000', qr/cannot PREPARE/, 'PREPARE TRANSACTION is refused');
$session->run('ROLLBACK');
nothing_is_left('prepare');

# a lease of checkout_xact that refuses the commit does so before the first remote COMMIT
my $logs = remote_value('SELECT count(*) FROM app.log');
foreach my $refused ([ "exec(l, 'BEGIN')", 'an open remote transaction' ], [ "send(l, 'SELECT 1')", 'a statement in flight' ])
{
	my ($call, $text) = @$refused;
	my $lease = "SELECT FROM pgpool.checkout_xact('two') AS l, pgpool.$call";

	foreach my $steps ("$lease; UPDATE one.a SET v = 4000 WHERE id = 10", "UPDATE one.a SET v = 4000 WHERE id = 10; $lease", "SELECT FROM one.logging; $lease")
	{
		$session->run("BEGIN; $steps");
		$session->fails('COMMIT', '25001', qr/has $text/, "commit is refused because of $text: $steps");
		is(remote_value('SELECT v FROM app.a WHERE id = 10'), '0', 'no remote transaction has committed');
		nothing_is_left("refused commit");
	}
}
is(remote_value('SELECT count(*) FROM app.log'), $logs, 'no remote transaction that has read has committed');

# a cursor of the outer transaction reads a batch in a subtransaction that is rolled back,
# and is continued after that
is($session->run(<<'EOT') . $session->error, "1\n1\n1\n200\n201", 'cursor is read before, in and after a subtransaction');
BEGIN;
SELECT n FROM one.logging;
DECLARE c CURSOR FOR SELECT id FROM one.big;
FETCH 1 FROM c;
SAVEPOINT s;
SELECT n FROM one.logging;
MOVE 198 FROM c;
FETCH 1 FROM c;
ROLLBACK TO s;
FETCH 1 FROM c;
COMMIT;
EOT
nothing_is_left('ROLLBACK TO after a batch of an outer cursor');
is(remote_value('SELECT count(*) FROM app.log'), $logs + 1, 'side effect of a read in a rolled back subtransaction is rolled back, that of another read is committed');

# the commit of a transaction that has only read waits for a remote session that is stopped,
# and fails if it has ended
my $idle = "SELECT pid FROM pg_stat_activity WHERE usename = 'remote_app' AND state = 'idle in transaction'";
foreach my $signal ('STOP', 'TERM')
{
	$session->run('BEGIN; SELECT n FROM one.logging');
	my $pid = remote_value($idle);

	kill $signal, $pid;
	ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", '0'), 'remote session has ended') if $signal eq 'TERM';
	$session->start('COMMIT');
	if ($signal eq 'STOP')
	{
		ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension'), 'commit of a read waits for the remote session');
		kill 'CONT', $pid;
	}
	$session->finish;
	like($session->sqlstate, $signal eq 'STOP' ? qr/^$/ : qr/^(08006|57P01)$/, "SIG$signal: commit reports what has happened to the remote transaction");
	nothing_is_left("SIG$signal: commit of a read");
}
is(remote_value('SELECT count(*) FROM app.log'), $logs + 2, 'write of a read is committed if the commit succeeds');

# The commit after a scan that ends early reads the rest of a batch, so the connection is
# kept.
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE app.wide (id int, filler text);
INSERT INTO app.wide SELECT i, repeat('x', 20000) FROM generate_series(1, 2000) AS i;
EOT
$session->run("CREATE FOREIGN TABLE $_.wide (id int, filler text) SERVER $_ OPTIONS (schema_name 'app', async_capable 'true'); ALTER FOREIGN TABLE $_.big OPTIONS (ADD async_capable 'true')") foreach @servers;
my $remote_pids = "SELECT string_agg(remote_pid::text, ' ' ORDER BY server) FROM pgpool.connections WHERE server IN ('one', 'two')";
my @early = (
	[ 'LIMIT above a local filter', 'SELECT count(*) FROM (SELECT filler FROM one.big WHERE random() >= 0 LIMIT %d) AS x', 1, 100, 101, 9000 ],
	[ 'LIMIT, wide rows', 'SELECT count(*) FROM (SELECT filler FROM one.wide WHERE random() >= 0 LIMIT %d) AS x', 1, 101, 501 ],
	[ 'cursor that is closed early', 'BEGIN; DECLARE c CURSOR FOR SELECT * FROM one.big; MOVE %d FROM c; CLOSE c; COMMIT', 1, 9000 ],
	[ 'EXISTS', 'SELECT count(*) FROM generate_series(1, %d) AS g WHERE EXISTS (SELECT FROM one.wide WHERE id > g AND random() >= 0)', 1, 3 ],
	[ 'nested loop', 'SELECT count(*) FROM (SELECT FROM one.a, two.wide WHERE random() >= 0 LIMIT %d) AS x', 1, 3000 ],
	[ 'lateral LIMIT', 'SELECT count(*) FROM generate_series(1, %d) AS g, LATERAL (SELECT FROM one.big WHERE id > g AND random() >= 0 LIMIT 2) AS x', 1, 20 ],
	[ 'Async Append', 'SELECT count(*) FROM (SELECT * FROM one.wide WHERE random() >= 0 UNION ALL SELECT * FROM two.wide WHERE random() >= 0 LIMIT %d) AS x', 1, 500 ],
	[ 'Append on one server', 'SELECT count(*) FROM (SELECT * FROM one.wide WHERE random() >= 0 UNION ALL SELECT * FROM one.big WHERE random() >= 0 LIMIT %d) AS x', 1, 500 ]);
foreach my $case (@early)
{
	my ($name, $sql, @numbers) = @$case;

	foreach my $n (@numbers)
	{
		my $text = sprintf $sql, $n;
		$session->run('SELECT FROM one.a, two.a LIMIT 1');
		my $before = $local->safe_psql('postgres', $remote_pids);

		$session->run($text);
		my $error = $session->error;
		$session->run('SELECT FROM one.a, two.a LIMIT 1');
		is($error . $session->error . $local->safe_psql('postgres', $remote_pids), $before, "$name, $n: connections are kept");
	}
}
nothing_is_left('scans that end early');

# large messages and start commands do not cost the connection
make_pool($local, $remote, server => 'long', options => { pool_size => 1, start_commands => 'SELECT 1 /* ' . 'x' x 3000 . ' */' });
$session->run("CREATE FOREIGN TABLE long (id int, v int) SERVER long OPTIONS (schema_name 'app', table_name 'a')");
foreach my $table ('long', 'one.big')
{
	my $server = $table eq 'long' ? 'long' : 'one';
	my $connects = "SELECT connects FROM pgpool.stats WHERE server = '$server'";
	my $large = $table eq 'long' ? "SELECT count(*) FROM $table" : "SELECT count(*) FROM $table WHERE id < 11 AND filler <> repeat('x', 300000)";

	is($session->run("BEGIN; $large; ROLLBACK"), '10', "$server: statement succeeds");
	is($local->safe_psql('postgres', $connects), '1', 'rollback in a new connection keeps it') if $server eq 'long';
	my $before = $local->safe_psql('postgres', $connects);
	is($session->run("$large; BEGIN; $large; ROLLBACK; BEGIN; $large; SAVEPOINT s; $large; ROLLBACK TO s; COMMIT; $large") . $session->error, join("\n", (10) x 5), "$server: statement succeeds again");
	is($local->safe_psql('postgres', $connects), $before, "$server: commit and rollback keep the connection");
	nothing_is_left($server);
}
$session->run('DROP FOREIGN TABLE long');

# batches of wide rows are limited by their size
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE SEQUENCE app.n;
CREATE VIEW app.counted AS SELECT nextval('app.n') AS n, repeat('x', 10000) AS filler FROM generate_series(1, 5000);
EOT
$session->run("CREATE FOREIGN TABLE one.counted (n int, filler text) SERVER one OPTIONS (schema_name 'app'); BEGIN");
is($session->run('DECLARE c CURSOR FOR SELECT n, filler FROM one.counted; MOVE 501 FROM c; SELECT count(*) FROM one.a; COMMIT') . $session->error,
	'10', 'cursor reads wide rows');
my $produced = remote_value('SELECT last_value FROM app.n');
cmp_ok($produced, '>', 501, 'third batch was requested');
cmp_ok($produced, '<', 500 + 8 * 1024 * 1024 / 10000, 'batch has at most 8 MB');
nothing_is_left('wide rows');

# a foreign table holds the only connection
$session->run('BEGIN; SELECT FROM one.a LIMIT 1');
$session->fails("SELECT pgpool.exec('one', 'SELECT 1')", '40P01', qr/would wait for this session itself.*HINT:  End the local transaction, whose foreign tables/s,
	'hint names the local transaction if foreign tables hold all connections');
$session->run('ROLLBACK');

# EXPLAIN shows how long a transaction has waited for its connection
my $explainer = PgpxSession->new($local);
$session->run('BEGIN; SELECT FROM one.a LIMIT 1');
$explainer->start('EXPLAIN (ANALYZE, VERBOSE, COSTS OFF) SELECT v FROM one.a WHERE id = 1');
ok(wait_until($local, 'SELECT pid FROM pgpool.waiters', $explainer->pid), 'EXPLAIN waits for a connection');
my $waited = $local->safe_psql('postgres', 'SELECT extract(epoch FROM now() - waiting_since) * 1000 FROM pgpool.waiters');
$session->run('ROLLBACK');
my ($shown) = $explainer->finish =~ /^ +Pool: one\n +Pool Wait: (\d+\.\d+) ms\n +Remote Rows: 1$/m;
cmp_ok($shown // 0, '>', $waited, 'EXPLAIN shows the pool, how long it has waited, and the rows') or diag($explainer->error);
$explainer->quit;

# FOR UPDATE locks the remote rows until the end of the transaction
is($session->run('BEGIN; SELECT id FROM one.a WHERE id = 5 FOR UPDATE'), '5', 'row is locked');
my ($stdout, $stderr) = ('', '');
isnt($remote->psql('remote_db', 'SELECT id FROM app.a WHERE id = 5 FOR UPDATE NOWAIT', stdout => \$stdout, stderr => \$stderr), 0, 'NOWAIT fails in another remote session');
like($stderr, qr/could not obtain lock on row/, 'NOWAIT fails because the row is locked');
is(remote_value('SELECT id FROM app.a WHERE id IN (4, 5) FOR UPDATE SKIP LOCKED'), '4', 'SKIP LOCKED skips the row in another remote session');
$session->run('COMMIT');
is(remote_value('SELECT id FROM app.a WHERE id = 5 FOR UPDATE SKIP LOCKED'), '5', 'commit has released the row');
nothing_is_left('FOR UPDATE');

# a local row that was updated meanwhile is checked again, with the remote rows read
# before (EvalPlanQual)
$session->run('CREATE TABLE mine (id int PRIMARY KEY, n int); INSERT INTO mine VALUES (1, 1), (2, 2)');
foreach my $from ('one.a AS f ON f.id = m.n', 'one.a AS f ON f.id = m.n JOIN one.a AS g ON g.id = f.id')
{
	foreach my $case ([ 5, "2|2|2" ], [ 1, "1|1|1\n2|2|2" ])
	{
		my ($n, $rows) = @$case;
		my $reader = PgpxSession->new($local);

		$session->run("UPDATE mine SET n = id; BEGIN; UPDATE mine SET n = $n WHERE id = 1");
		$reader->start("SELECT m.id, m.n, f.id FROM mine AS m JOIN $from WHERE m.n < 3 ORDER BY m.id FOR UPDATE OF m");
		ok(wait_until($local, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = } . $reader->pid, '1'), 'reader waits for the local row');
		$session->run('COMMIT');
		is($reader->finish . $reader->error, $rows, "local row is checked again after n = $n: $from");
		$reader->quit;
	}
}
$session->run('DROP TABLE mine');
nothing_is_left('rows checked again');

# a local error during a scan; a cursor that is not read to its end
$session->fails('SELECT 1 / (id - 150000) FROM one.big WHERE random() >= 0', '22012', qr/division by zero/, 'local error ends a scan');
nothing_is_left('error in a scan');
$session->run("BEGIN; DECLARE c CURSOR FOR SELECT id FROM one.big WHERE random() >= 0; FETCH 1 FROM c; UPDATE one.a SET v = 55 WHERE id = 5; COMMIT");
is($session->error . remote_value('SELECT v FROM app.a WHERE id = 5'), '55', 'commit succeeds with an unread scan');
nothing_is_left('unread scan');

# a cancel and statement_timeout during a remote statement
my $slow = 'SELECT n FROM one.slow WHERE length(s) = 0';
sub slow_runs
{
	return ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'", '1'), 'remote statement runs');
}
$session->fails("SET statement_timeout = '300ms'; $slow", '57014', qr/statement timeout/, 'statement_timeout ends a remote statement');
$session->reset_statement_timeout;
nothing_is_left('timeout');
$session->start($slow);
slow_runs();
$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
$session->finish;
is($session->sqlstate, '57014', 'cancel ends a remote statement');
nothing_is_left('cancel');
# the same in a subtransaction; the transaction continues
$session->run("BEGIN; UPDATE one.a SET v = 66 WHERE id = 6; SAVEPOINT s; SET LOCAL statement_timeout = '300ms'");
$session->fails($slow, '57014', qr/statement timeout/, 'statement_timeout ends a remote statement in a subtransaction');
$session->run("ROLLBACK TO s; UPDATE one.a SET v = v + 1 WHERE id = 6; COMMIT");
is($session->error . remote_value('SELECT v FROM app.a WHERE id = 6'), '67', 'transaction continues after the rollback to the savepoint');
nothing_is_left('timeout in a subtransaction');

# --- the answers to COMMIT and ROLLBACK are awaited. A COMMIT of the remote server waits for
# an advisory lock in a deferred trigger, or its session is stopped.
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE app.deferred (id int);
CREATE FUNCTION app.waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(42); FOR i IN 2 .. NEW.id LOOP RAISE NOTICE '%', i; END LOOP; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER w AFTER INSERT ON app.deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.waits();
CREATE FUNCTION app.defers() RETURNS int LANGUAGE sql AS $$ INSERT INTO app.deferred VALUES (1) RETURNING 1 $$;
CREATE VIEW app.deferring AS SELECT id, app.defers() AS n FROM app.a WHERE id = 5 FOR UPDATE;
CREATE FUNCTION app.violates() RETURNS int LANGUAGE sql AS $$ INSERT INTO app.b VALUES (77, 999) RETURNING 1 $$;
CREATE VIEW app.violating AS SELECT app.violates() AS n;
CREATE VIEW app.modes AS SELECT current_setting('transaction_isolation') AS isolation, current_setting('transaction_read_only') AS read_only, current_setting('transaction_deferrable') AS is_deferrable;
EOT
$session->run(<<'EOT');
CREATE FOREIGN TABLE one.deferring (id int, n int) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE one.violating (n int) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE one.modes (isolation text, read_only text, is_deferrable text) SERVER one OPTIONS (schema_name 'app');
EOT
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
my $waits = sub { return ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid, 'Extension'), $_[0]); };
my $free_rows = "SELECT string_agg(id::text, ' ') FROM (SELECT id FROM app.a WHERE id IN (5, 6) ORDER BY id FOR UPDATE SKIP LOCKED) AS x";

$blocker->run('SELECT pg_advisory_lock(42)');
$session->start('SELECT n FROM one.deferring');
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND wait_event = 'advisory'", '1'), 'remote COMMIT of a read waits for a lock');
$waits->('statement waits for the remote COMMIT');
is(remote_value($free_rows), '6', 'row is locked until then');
$blocker->run('SELECT pg_advisory_unlock(42)');
is($session->finish . $session->error, '1', 'statement returns its row');
is(remote_value('SELECT count(*) FROM app.deferred'), '1', 'what the function behind the view wrote is visible');
is(remote_value($free_rows), '5 6', 'the lock has been released');
$session->fails('SELECT n FROM one.violating', '23503', qr/violates foreign key constraint/, 'deferred constraint that fails at the remote COMMIT fails the read');
is($session->run('SELECT count(*) FROM one.a') . $session->error, '10', 'next statement succeeds');

# the remote session is killed during its COMMIT
my $committing = "FROM pg_stat_activity WHERE usename = 'remote_app' AND wait_event = 'advisory'";
$blocker->run('SELECT pg_advisory_lock(42)');
$session->start('SELECT n FROM one.deferring');
ok(wait_until($remote, "SELECT count(*) $committing", '1'), 'remote COMMIT waits for a lock again');
remote_value("SELECT pg_terminate_backend(pid) $committing");
$session->finish;
$session->failed('08006', qr/connection to server "one" was lost/, 'read fails if its remote session is killed during the COMMIT');
is(remote_value('SELECT count(*) FROM app.deferred'), '1', 'what this read wrote is lost');
$blocker->run('SELECT pg_advisory_unlock(42)');
nothing_is_left('kill during COMMIT');

# notices precede the answer to COMMIT, and the client is gone
$session->run(q{CREATE FOREIGN TABLE one.deferred (id int) SERVER one OPTIONS (schema_name 'app'); CREATE TABLE written (id int)});
my $client = PgpxSession->new($local);

$blocker->run('SELECT pg_advisory_lock(42)');
$client->start('BEGIN; INSERT INTO one.deferred VALUES (100); INSERT INTO written VALUES (1); COMMIT');
ok(wait_until($remote, "SELECT count(*) $committing", '1'), 'remote COMMIT of a write waits for a lock');

# the session reads the whole answer at once, and ignores the end of its client for a second only
kill 'STOP', $client->pid;
my $late = $local->safe_psql('postgres', q{SELECT clock_timestamp() - query_start > '1 s' FROM pg_stat_activity WHERE pid = } . $client->pid);
kill 'KILL', $client->{psql};
$blocker->run('SELECT pg_advisory_unlock(42)');
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND wait_event IS DISTINCT FROM 'ClientRead'}, '0'), 'remote server has committed');
kill 'CONT', $client->pid;
ok($client->is_gone, 'session ends without its client');
like($session->run('SELECT count(*) FROM one.deferred WHERE id = 100') . $session->run('SELECT count(*) FROM written'), $late eq 't' ? qr/^1[01]$/ : qr/^11$/,
	'it has committed on the remote server and locally');
$client->quit;
nothing_is_left('client that is gone during COMMIT');

# returns the remote session that holds the lock
sub stop_remote
{
	my $pid = remote_value("SELECT pid FROM pg_stat_activity WHERE usename = 'remote_app' AND state LIKE 'idle in transaction%'");

	kill 'STOP', $pid;
	return $pid;
}
foreach my $case (
	[ 'ROLLBACK', 'BEGIN; SELECT id FROM one.a WHERE id = 5 FOR UPDATE', 'ROLLBACK', '' ],
	[ 'ROLLBACK TO', 'BEGIN; SELECT id FROM one.a WHERE id = 6 FOR UPDATE; SAVEPOINT s; SELECT id FROM one.a WHERE id = 5 FOR UPDATE', 'ROLLBACK TO s', '5' ],
	[ 'checkin', "SELECT pgpool.checkout('two') AS direct \\gset\nSELECT pgpool.exec(:direct, 'BEGIN; SELECT FROM app.a WHERE id = 5 FOR UPDATE')", 'SELECT pgpool.checkin(:direct)', '' ],
	[ 'ROLLBACK with checkout_xact', "BEGIN; SELECT pgpool.exec(l, 'BEGIN; SELECT FROM app.a WHERE id = 5 FOR UPDATE') FROM pgpool.checkout_xact('two') AS l", 'ROLLBACK', '' ],
	[ 'ROLLBACK TO with checkout_xact', "BEGIN; SAVEPOINT s; SELECT pgpool.exec(l, 'BEGIN; SELECT FROM app.a WHERE id = 5 FOR UPDATE') FROM pgpool.checkout_xact('two') AS l", 'ROLLBACK TO s', '' ])
{
	my ($name, $begin, $end, $free) = @$case;

	$session->run($begin);
	my $pid = stop_remote();

	$session->start($end);
	$waits->("$name waits for the remote session");
	kill 'CONT', $pid;
	$session->finish;
	is(remote_value($free_rows), $free || '5 6', "$name: remote lock has been released");
	$session->run('ROLLBACK') unless $name eq 'checkin';
	nothing_is_left($name);
}

# a statement that is running is cancelled, and the connection is kept
$opened = $local->safe_psql('postgres', $connects);
foreach my $case ([ 'transaction', '', '5 6' ], [ 'subtransaction', 'SELECT id FROM one.a WHERE id = 6 FOR UPDATE; SAVEPOINT s', '5' ])
{
	my ($name, $before, $free) = @$case;

	$session->run("BEGIN; $before");
	$session->run('SELECT id FROM one.a WHERE id = 5 FOR UPDATE');
	$session->start($slow);
	slow_runs();
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	$session->run($name eq 'transaction' ? 'ROLLBACK' : 'ROLLBACK TO s');
	is(remote_value($free_rows), $free, "cancelled $name: remote lock has been released");
	$session->run('ROLLBACK');
	nothing_is_left("cancelled $name");
}
is($local->safe_psql('postgres', $connects), $opened, 'connections are kept');

# nothing makes a rollback hang: operation_timeout, a cancel, the end of the session or of the
# worker, statement_timeout. In the last four cases operation_timeout does not end it.
# (PostgreSQL ends statement_timeout before it executes ROLLBACK.)
foreach my $name ('operation_timeout', 'cancel', 'terminate', 'worker', 'statement_timeout')
{
	$local->safe_psql('postgres', "ALTER SERVER one OPTIONS (ADD operation_timeout '" . ($name eq 'operation_timeout' ? '300ms' : '1h') . "')");
	my $aborting = $name eq 'terminate' ? PgpxSession->new($local) : $session;
	my $checkin = $name eq 'statement_timeout';
	$aborting->run($checkin ? "SELECT pgpool.checkout('one') AS direct \\gset\nSELECT pgpool.exec(:direct, 'BEGIN; SELECT FROM app.a WHERE id = 5 FOR UPDATE')" :
			'BEGIN; SELECT id FROM one.a WHERE id = 5 FOR UPDATE');
	my $pid = stop_remote();

	$aborting->run("SET statement_timeout = '300ms'") if $checkin;
	$aborting->start($checkin ? 'SELECT pgpool.checkin(:direct)' : 'ROLLBACK');
	ok(wait_until($local, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $aborting->pid, 'Extension'), "$name: rollback waits") unless $name =~ /_timeout/;
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $aborting->pid . ')') if $name eq 'cancel';
	terminate($local, $aborting->pid) if $name eq 'terminate';
	terminate($local, worker_pid($local)) if $name eq 'worker';
	$aborting->finish;
	$aborting->reset_statement_timeout if $checkin;
	is($session->run('SELECT 1'), '1', "$name: rollback ends although the remote session is stopped");
	kill 'CONT', $pid;
	nothing_is_left("$name ends a rollback");
	$local->safe_psql('postgres', 'ALTER SERVER one OPTIONS (DROP operation_timeout)');
}

# a rollback to a savepoint that is late breaks the connection, so that those to outer
# savepoints do not wait again
$local->safe_psql('postgres', q{ALTER SERVER one OPTIONS (ADD operation_timeout '300ms')});
$session->run('BEGIN; SELECT id FROM one.a WHERE id = 5 FOR UPDATE; SAVEPOINT s; SELECT id FROM one.a WHERE id = 6 FOR UPDATE; SAVEPOINT t; SELECT id FROM one.a WHERE id = 7 FOR UPDATE');
my $stopped = stop_remote();
$session->run('ROLLBACK TO t');
kill 'CONT', $stopped;
is($session->error, '', 'late rollback to a savepoint succeeds');
$session->run('ROLLBACK TO s');
$session->fails('SELECT id FROM one.a', '08006', qr/rollback to a savepoint did not end within operation_timeout/, 'connection is lost after it');
$session->run('ROLLBACK');
nothing_is_left('late rollback to a savepoint');
$local->safe_psql('postgres', 'ALTER SERVER one OPTIONS (DROP operation_timeout)');

# --- the remote transaction is READ ONLY and DEFERRABLE if the local one is
my $modes = "SELECT concat_ws(' ', isolation, read_only, is_deferrable) FROM one.modes";
foreach my $case (
	[ 'BEGIN', "$modes", 'repeatable read off off' ],
	[ 'BEGIN READ ONLY', "$modes; SAVEPOINT s; $modes; RELEASE s; $modes", join "\n", ('repeatable read on off') x 3 ],
	[ 'BEGIN READ ONLY; SAVEPOINT s', "$modes; RELEASE s; $modes", join "\n", ('repeatable read on off') x 2 ],
	[ 'BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE', "$modes; SAVEPOINT s; $modes", join "\n", ('serializable on on') x 2 ],
	[ 'BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE; SAVEPOINT s', "$modes", 'serializable on on' ],
	[ 'BEGIN', "$modes; SAVEPOINT s; SET TRANSACTION READ ONLY; $modes; SAVEPOINT t; $modes; ROLLBACK TO s; $modes", join "\n", map { "repeatable read $_ off" } qw(off on on off) ],
	[ 'BEGIN', "SAVEPOINT s; SET TRANSACTION READ ONLY; $modes; RELEASE s; $modes; SAVEPOINT u; SET TRANSACTION READ ONLY; $modes; RELEASE u; $modes", join "\n", map { "repeatable read $_ off" } qw(on off on off) ],
	[ 'BEGIN', "$modes; SET TRANSACTION READ ONLY; $modes; SAVEPOINT s; $modes; ROLLBACK TO s; $modes", join "\n", map { "repeatable read $_ off" } qw(off on on on) ])
{
	my ($begin, $sql, $shown) = @$case;

	$session->run($begin);
	is($session->run($sql) . $session->error, $shown, "modes of the remote transaction: $begin; " . $sql =~ s/\Q$modes\E/read/gr);
	$session->run('ROLLBACK');
}
$opened = $local->safe_psql('postgres', $connects);
$session->run('BEGIN READ ONLY');
$session->fails('SELECT n FROM one.logging', '25006', qr/read-only transaction/, 'function behind a view cannot write in a READ ONLY transaction');
$session->run('ROLLBACK');
is($session->run('SELECT count(*) FROM one.a') . $local->safe_psql('postgres', $connects), "10$opened", 'its connection is not taken for that of a standby');
nothing_is_left('modes');
$blocker->quit;

# the end of the session
foreach my $stage ('UPDATE one.a SET v = 777 WHERE id = 7', $slow,
	'DECLARE c CURSOR FOR SELECT id FROM one.big WHERE random() >= 0; FETCH 10 FROM c')
{
	my $victim = PgpxSession->new($local);

	$victim->run('BEGIN; UPDATE one.a SET v = 777 WHERE id = 7');
	$victim->start($stage);
	slow_runs() if $stage eq $slow;
	$victim->finish if $stage ne $slow;
	terminate($local, $victim->pid);
	nothing_is_left("session terminated in: $stage");
}
is(remote_value('SELECT v FROM app.a WHERE id = 7'), '0', 'terminated session has committed nothing');

# the end of the remote session, and a revoked lease
my $kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'remote_app'";
$session->run('BEGIN; UPDATE one.a SET v = 888 WHERE id = 8');
$remote->safe_psql('postgres', $kill);
ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'remote session has ended');
$session->run('UPDATE one.a SET v = 888 WHERE id = 8');
like($session->sqlstate, qr/^(08006|57P01)$/, 'statement fails if the remote session has ended');
is($session->run('ROLLBACK; SELECT v FROM one.a WHERE id = 8'), '0', 'next transaction uses another connection');
$session->run('BEGIN; UPDATE one.a SET v = 888 WHERE id = 8');
$remote->safe_psql('postgres', $kill);
ok(wait_until($remote, sub { remote_sessions($remote) }, '0'), 'remote session has ended before the commit');
$session->run('COMMIT');
like($session->sqlstate, qr/^(08006|57P01)$/, 'commit fails if the remote session has ended');
is(remote_value('SELECT v FROM app.a WHERE id = 8'), '0', 'failed commit has no effect');
nothing_is_left('remote session');
$session->run('BEGIN; CREATE TABLE local_table(); UPDATE one.a SET v = 888 WHERE id = 8; UPDATE two.a SET v = 888 WHERE id = 9');
my $victim = $local->safe_psql('postgres', $remote_pid);
remote_value("SELECT pg_terminate_backend($victim)");
ok(wait_until($remote, "SELECT count(*) FROM pg_stat_activity WHERE pid = $victim", '0'), 'remote session of the second server has ended before the commit');
$session->run('COMMIT');
like($session->sqlstate, qr/^(08006|57P01)$/, 'commit fails if the remote session of one of two servers has ended');
is(remote_value('SELECT sum(v) FROM app.a WHERE id IN (8, 9)'), '0', 'no server has committed if the remote session of one has ended');
is($local->safe_psql('postgres', "SELECT to_regclass('local_table') IS NULL"), 't', 'local transaction has not committed if a remote session has ended');
nothing_is_left('remote session of the second server');
$session->run('BEGIN; UPDATE one.a SET v = 888 WHERE id = 8');
$local->safe_psql('postgres', "SELECT pgpool.terminate(lease) FROM pgpool.leases WHERE scope = 'fdw'");
$session->fails('SAVEPOINT s; UPDATE one.a SET v = 888 WHERE id = 8', 'PX001', qr/was terminated/, 'statement on a terminated lease fails');
$session->fails('ROLLBACK TO s; UPDATE one.a SET v = 888 WHERE id = 8', 'PX001', qr/was terminated/, 'statement on a terminated lease fails after ROLLBACK TO SAVEPOINT');
$session->run('ROLLBACK');
$session->run('BEGIN; UPDATE one.a SET v = 888 WHERE id = 8');
$local->safe_psql('postgres', "SELECT pgpool.terminate(lease) FROM pgpool.leases WHERE scope = 'fdw'");
$session->fails('COMMIT', 'PX001', qr/was terminated/, 'commit with a terminated lease fails');
is(remote_value('SELECT v FROM app.a WHERE id = 8'), '0', 'failed commit with a terminated lease has no effect');
nothing_is_left('terminated lease');
$session->run('BEGIN; UPDATE one.a SET v = 888 WHERE id = 8');
$local->safe_psql('postgres', "ALTER SERVER one OPTIONS (ADD lease_timeout '300ms')");
ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE scope = 'fdw'", '0'), 'lease has timed out');
$session->fails('COMMIT', 'PX002', qr/has timed out/, 'commit fails after lease_timeout');
$local->safe_psql('postgres', 'ALTER SERVER one OPTIONS (DROP lease_timeout)');
nothing_is_left('lease_timeout');

# limits and administrative functions in the middle of a scan
$session->run('BEGIN; DECLARE c CURSOR FOR SELECT id FROM one.big; FETCH 1 FROM c');
$local->safe_psql('postgres', "ALTER SERVER one OPTIONS (ADD lease_timeout '300ms')");
ok(wait_until($local, "SELECT count(*) FROM pgpool.leases WHERE scope = 'fdw'", '0'), 'lease times out in mid-scan');
$session->fails('MOVE ALL FROM c', 'PX002', qr/has timed out/, 'rest of the scan fails after lease_timeout');
$session->run('ROLLBACK');
$local->safe_psql('postgres', 'ALTER SERVER one OPTIONS (DROP lease_timeout)');
nothing_is_left('lease_timeout in mid-scan');
$session->run('BEGIN; DECLARE c CURSOR FOR SELECT id FROM one.big; FETCH 1 FROM c');
is($local->safe_psql('postgres', "SELECT pgpool.drain('one', '300 ms')"), 'f', 'drain waits for the transaction of a scan until its timeout');
is($session->run('MOVE ALL FROM c; SELECT v FROM one.a WHERE id = 8') . $session->error, '0', 'scan continues while its server is drained');
$session->run('COMMIT');
is($local->safe_psql('postgres', "SELECT pgpool.drain('one', '30 s')"), 't', 'drain ends after the transaction');
is($local->safe_psql('postgres', q{SELECT total FROM pgpool.pools WHERE server = 'one'}), '0', 'drained pool has no connection');
$local->safe_psql('postgres', "SELECT pgpool.resume('one')");
nothing_is_left('drain');

# the end of the worker
$session->run('BEGIN; UPDATE one.a SET v = 999 WHERE id = 9');
terminate($local, worker_pid($local));
$session->fails('COMMIT', '08006', qr/was lost/, 'commit of writes fails if the worker has exited');
is(remote_value('SELECT v FROM app.a WHERE id = 9'), '0', q{failed commit has no effect after the worker's exit});
$session->run('BEGIN; SELECT count(*) FROM one.a');
terminate($local, worker_pid($local));
$session->fails('COMMIT', '08006', qr/was lost/, 'commit of reads fails if the worker has exited, because they may have locked or written');
is($session->run('SELECT v FROM one.a WHERE id = 9'), '0', 'new worker serves foreign tables');
$session->run("BEGIN; DECLARE c CURSOR FOR SELECT id FROM one.big; MOVE 10 FROM c");
terminate($local, worker_pid($local));
$session->fails('MOVE ALL FROM c', '08006', qr/was lost/, 'rest of a scan fails if the worker has exited');
$session->run('ROLLBACK');
is($session->run('SELECT count(*) FROM one.big') . $session->error, '200000', 'next scan returns all rows');
nothing_is_left('worker');

# --- a scan whose rows could not be buffered cannot be continued
$session->run(<<'EOT');
CREATE FUNCTION reads_two(OUT n int, OUT inner_errors int) LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
	n := 0;
	inner_errors := 0;
	FOR r IN SELECT id FROM one.big LOOP
		n := n + 1;
		BEGIN
			IF n % 2000 = 0 THEN
				PERFORM count(*) FROM one.a;
			END IF;
		EXCEPTION WHEN configuration_limit_exceeded THEN
			inner_errors := inner_errors + 1;
		END;
	END LOOP;
END $$
EOT
is($session->run("SELECT n FROM reads_two()"), '200000', 'rows of a scan are buffered for a second statement');
$session->run("SET work_mem = '64kB'");
is($session->run("SELECT n FROM reads_two()") . $session->error, '200000', 'rows are buffered in a temporary file');
$session->run("SET temp_file_limit = '64kB'");
$session->fails('SELECT * FROM reads_two()', '24000', qr/cannot continue foreign scan/, 'no row is lost if buffering fails');
$session->run('RESET work_mem; RESET temp_file_limit');
nothing_is_left('failure to buffer rows');

# --- a function that is called while a row is converted uses the same server
$session->run(<<'EOT');
CREATE FUNCTION checks(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT count(*) FROM one.a) > 0; END $$;
CREATE FUNCTION checks_quietly(int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT count(*) FROM one.a) > 0;
EXCEPTION WHEN object_not_in_prerequisite_state THEN
	RETURN true;
END $$;
CREATE DOMAIN checked AS int CHECK (checks(VALUE));
CREATE DOMAIN checked_quietly AS int CHECK (checks_quietly(VALUE));
CREATE FOREIGN TABLE one.checked (id checked, v int) SERVER one OPTIONS (schema_name 'app', table_name 'a');
CREATE FOREIGN TABLE one.checked_quietly (id checked_quietly, v int) SERVER one OPTIONS (schema_name 'app', table_name 'a')
EOT
my $in_use = qr/remote transaction on server "one" is in use/;
$session->fails('SELECT sum(v), count(id::text) FROM one.checked', '55000', $in_use, 'scan: statement within the conversion of a row is refused');
$session->fails('UPDATE one.checked SET v = v RETURNING id', '55000', $in_use, 'direct UPDATE: statement within the conversion of a row is refused');
$session->fails('UPDATE one.checked SET v = v WHERE random() >= 0 RETURNING id', '55000', $in_use, 'UPDATE of single rows: statement within the conversion of a row is refused');
is($session->run('SELECT count(id::text) FROM one.checked_quietly') . $session->error, '10', 'scan continues after the function has caught the error');
is($session->run('UPDATE one.checked_quietly SET v = v WHERE id = 3 AND random() >= 0 RETURNING id') . $session->error, '3', 'RETURNING continues after the function has caught the error');
nothing_is_left('statements within the conversion of a row');

# --- an error in the rows of a scan that ends early aborts the remote transaction
my $sum = remote_value('SELECT sum(v) FROM app.a');
my $early = 'SELECT id FROM one.failing WHERE n + random() < 1000 LIMIT 1';
my $by_zero = qr/division by zero/;
$session->fails($early, '22012', $by_zero, 'error in rows that a scan does not need fails the statement, because its remote transaction is aborted');
nothing_is_left('error behind a scan');
is($session->run("BEGIN; $early"), '1', 'scan ends early');
$session->fails('COMMIT', '22012', $by_zero, 'commit reports the error of an ended scan');
is($session->run("BEGIN; $early"), '1', 'scan ends early');
$session->fails('SELECT count(*) FROM one.a', '22012', $by_zero, 'next statement reports the error of an ended scan');
$session->run('ROLLBACK');
$session->run("BEGIN; UPDATE one.a SET v = v + 1 WHERE id = 1; UPDATE two.a SET v = v + 1 WHERE id = 2; $early");
$session->fails('COMMIT', '22012', $by_zero, 'commit of writes reports the error of an ended scan');
is(remote_value('SELECT sum(v) FROM app.a'), $sum, 'failed commit changes nothing');
is($session->run("BEGIN; UPDATE one.a SET v = v + 1 WHERE id = 1; SAVEPOINT s; $early; ROLLBACK TO s; SELECT count(*) FROM one.a; ROLLBACK") . $session->error,
	"1\n10", 'rollback to a savepoint ends the error of a scan behind it');
$session->run("BEGIN; $early; SAVEPOINT s");
$session->fails('SELECT count(*) FROM one.a', '22012', $by_zero, 'statement in a subtransaction reports the error of an ended scan');
$session->run('ROLLBACK TO s');
$session->fails('UPDATE one.a SET v = 0', '22012', $by_zero, 'error is reported again after a rollback to a later savepoint');
$session->run('ROLLBACK');
$session->run("BEGIN; DECLARE c CURSOR FOR SELECT id FROM one.failing WHERE n + random() < 1000; FETCH 1 FROM c; SAVEPOINT s");
$session->fails('SELECT count(*) FROM one.a', '22012', $by_zero, 'error in the rows of a cursor is reported in a subtransaction');
$session->run('ROLLBACK TO s');
$session->fails('SELECT count(*) FROM one.a', '22012', $by_zero, 'error in the rows of a cursor is reported again');
$session->run('ROLLBACK');
nothing_is_left('errors of ended scans');

# --- a subtransaction that has sent nothing does not end the answer to an earlier scan
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE VIEW app.trickling AS SELECT i AS id, repeat('x', 20000) || pg_sleep(CASE WHEN i > 5 THEN 0.02 ELSE 0 END)::text AS filler FROM generate_series(1, 100) AS i;
EOT
is($session->run(<<'EOT') . $session->error, '10', 'rollback of a later subtransaction does not cancel an ended scan');
CREATE FOREIGN TABLE one.trickling (id int, filler text) SERVER one OPTIONS (schema_name 'app');
BEGIN;
DECLARE c CURSOR FOR SELECT id, filler FROM one.trickling;
MOVE 1 FROM c;
CLOSE c;
SAVEPOINT s;
ROLLBACK TO s;
SELECT count(*) FROM one.a;
COMMIT;
EOT
nothing_is_left('rollback of a later subtransaction');

stats_add_up($local);
check_invariants($local);
$session->quit;
leak_check($local, $remote);
done_testing();
