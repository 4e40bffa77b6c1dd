# The commands that foreign tables send beside their statements, and pipelined statements.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ["session_preload_libraries = 'auto_explain'", 'auto_explain.log_min_duration = 0', 'auto_explain.log_analyze = on', 'auto_explain.log_timing = off' ]);
my $local = local_node('local');

# ---------- commands
# The commands that foreign tables send beside their statements: settings on which the
# statements rely, savepoints and their release, and which statements are prepared and
# for how long.
{
	$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE items AS SELECT i AS id, i::text AS v FROM generate_series(1, 100) AS i;
CREATE TABLE styles (d date, i interval, f float8, t timestamptz);
INSERT INTO styles VALUES ('2024-02-01', '-1 year -2 months +3 days', 0.1::float8 + 0.2, '2024-02-01 12:00:00+00');
CREATE VIEW prepared AS SELECT name, statement FROM pg_prepared_statements;
EOT

	# Create a pool of one connection and its foreign tables in a schema of its name.
	sub make_tables
	{
		my ($server, %options) = @_;

		make_pool($local, $remote, server => $server, options => { pool_size => 1, %options });
		$local->safe_psql('postgres', "CREATE SCHEMA $server; IMPORT FOREIGN SCHEMA public FROM SERVER $server INTO $server");
		return;
	}

	make_tables('plain');
	make_tables('kept', reset => 'never');
	make_tables('styled', start_commands => q{SET timezone = 'Asia/Tokyo'; SET search_path = pg_temp});
	my $session = PgpxSession->new($local);

	sub result { return $session->run($_[0]) . $session->error }

	# --- settings that start commands or an earlier lease have left in the remote session do not change values
	is(result("SELECT a FROM pgpool.query('styled', 'SHOW timezone') AS t(a text)"), 'Asia/Tokyo', 'call has the settings of the start commands');
	foreach my $server (qw(plain styled kept))
	{
		my $left = $server eq 'kept' ? q{SELECT pgpool.exec('kept', $$SET extra_float_digits = -10; SET timezone = 'Asia/Tokyo'; SET search_path = pg_temp$$)} : '';

		$session->run("SET timezone = 'GMT'");
		foreach my $read (1 .. 3)
		{
			$session->run($left);
			is(result("SELECT d, extract(epoch FROM i), f = 0.1::float8 + 0.2, t FROM $server.styles"), '2024-02-01|-36482400.000000|t|2024-02-01 12:00:00+00', "$server: values of columns are read correctly");
		}
		$session->run($left);
		is(result("SELECT count(*) FROM $server.styles WHERE d = '2024-02-01' AND i < '-1 year -1 month' AND f = 0.1::float8 + 0.2 AND t = '2024-02-01 12:00:00+00' AND t::text LIKE '%12:00%'"),
			'1', "$server: values in conditions are compared correctly");
		$session->run($left);
		is(result("PREPARE p AS SELECT count(*) FROM $server.styles WHERE d = \$1 AND i = \$2 AND f = \$3 AND t = \$4; SET plan_cache_mode = force_generic_plan;"
				  . " EXECUTE p ('2024-02-01', '-1 year -2 months +3 days', 0.1::float8 + 0.2, '2024-02-01 12:00:00'); DEALLOCATE p"), '1', "$server: values of parameters are compared correctly");
		$session->run($left);
		is(result("BEGIN; UPDATE $server.styles SET d = '2024-03-04', i = '-1 month +2 days' WHERE random() >= 0 RETURNING d, extract(epoch FROM i); ROLLBACK"),
			'2024-03-04|-2419200.000000', "$server: values are written and returned correctly");
	}
	is(result(q{SELECT pgpool.exec('kept', $$SET datestyle = 'German, DMY'; SET intervalstyle = 'sql_standard'$$); SELECT d, extract(epoch FROM i) FROM kept.styles}),
		"0\n2024-02-01|-36482400.000000", 'foreign table does not use the styles that a call has left');

	# --- the commit of a transaction that has only read needs the remote server
	my $kill = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 20000)) FROM pg_stat_activity WHERE usename = 'remote_app' AND application_name LIKE '%plain'";
	foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		$session->run("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM plain.items");
		is($remote->safe_psql('postgres', $kill), '1', 'remote session is ended');
		$session->run('COMMIT');
		like($session->sqlstate, qr/^(08006|57P01)$/, "$level: transaction that has only read needs the commit of the remote server");
	}

	# --- savepoints that have ended are released
	$remote->safe_psql('postgres', "ALTER ROLE remote_app SET log_statement = 'all'; $kill");
	my $offset = -s $remote->logfile;
	is(result(<<'EOT'), '', 'loop with twenty subtransactions succeeds');
DO $$
BEGIN
	FOR i IN 1 .. 20 LOOP
		BEGIN
			PERFORM v FROM plain.items WHERE id = i;
		EXCEPTION WHEN division_by_zero THEN
		END;
	END LOOP;
END $$
EOT
	my $log = substr slurp_file($remote->logfile), $offset;
	my %sent = map { my $command = $_; $command => scalar(() = $log =~ /: $command SAVEPOINT s2|: $command s2/g) } 'RELEASE', 'SAVEPOINT';
	is($sent{SAVEPOINT}, 20, 'each subtransaction has set a savepoint');
	cmp_ok($sent{RELEASE}, '>=', 19, 'each savepoint but the last was released');
	$remote->safe_psql('postgres', "ALTER ROLE remote_app RESET log_statement; $kill");

	# --- prepared statements
	sub reads
	{
		my ($server, @ids) = @_;

		return join '', map { "SELECT v FROM $server.items WHERE id = $_;" } @ids;
	}

	my @twice = map { ($_, $_) } 1 .. 14;
	my $prepared = "SELECT string_agg(substring(statement FROM 'id = (\\d+)'), ' ' ORDER BY substring(statement FROM 'id = (\\d+)')::int) FROM";
	$session->run('BEGIN; ' . reads('plain', 1, 2, 2, 3, 3, 3));
	is(result("$prepared plain.prepared"), '2 3', 'statement is prepared at its second execution');
	is(result('SAVEPOINT s; ' . reads('plain', 4, 4) . 'ROLLBACK TO s; ' . reads('plain', 4, 2)), "4\n4\n4\n2", 'statements return their rows after a rollback to a savepoint');
	$session->run('ROLLBACK');
	is(result('BEGIN; SELECT count(*) FROM plain.prepared; COMMIT'), '0', 'no statement is prepared in the next transaction');
	$session->run('BEGIN; ' . reads('plain', @twice, 1, map { ($_, $_) } 15 .. 20));
	my $names = result("$prepared plain.prepared");
	my $n = () = $names =~ /\d+/g;
	cmp_ok($n, '<=', 16, "of twenty statements $n are prepared at the end");
	cmp_ok($n, '>=', 14, 'at least fourteen statements stay prepared');
	like($names, qr/^1 7 8 9/, 'least recently used statements were closed');
	$session->run('COMMIT');
	is(result('BEGIN; ' . reads('kept', 1, 1, 1) . "$prepared kept.prepared; COMMIT"), "1\n1\n1\n", 'no statement is prepared if the connection is not reset');
	my $long = "SELECT count(*) FROM plain.items WHERE v <> repeat('x', 1100000);";
	is(result("BEGIN; $long $long $long SELECT count(*) FROM plain.prepared; COMMIT"), "100\n100\n100\n0", 'very long statement is not prepared');

	# a statement whose preparation failed is prepared under another name later
	$session->run(<<'EOT');
CREATE FOREIGN TABLE plain.missing (id int) SERVER plain OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE plain.divides (id int, v text) SERVER plain OPTIONS (schema_name 'public', table_name 'items');
EOT
	is(result("BEGIN; SELECT count(*) FROM plain.items; SAVEPOINT s"), '100', 'transaction has a savepoint');
	foreach my $attempt (1 .. 4)
	{
		$session->fails('SELECT id FROM plain.missing', '42P01', qr/relation "public.missing" does not exist/, "statement fails at attempt $attempt");
		$session->run('ROLLBACK TO s');
		$session->fails("SELECT id FROM plain.divides WHERE 1 / (id - 1) > 0", '22012', qr/division by zero/, "execution fails at attempt $attempt");
		$session->run('ROLLBACK TO s');
	}
	is(result(reads('plain', 5, 5, 5)), "5\n5\n5", 'other statements work after the failures');
	$session->run('ROLLBACK');

	# --- the remote server may use parallel workers for an aggregate, which is read as a whole
	$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE large AS SELECT i FROM generate_series(1, 100000) AS i;
ALTER TABLE large SET (parallel_workers = 2);
ANALYZE large;
EOT
	$remote->safe_psql('postgres', 'ALTER ROLE remote_app SET parallel_setup_cost = 0; ALTER ROLE remote_app SET parallel_tuple_cost = 0; ALTER ROLE remote_app SET min_parallel_table_scan_size = 0');
	make_pool($local, $remote, server => 'parallel');
	$local->safe_psql('postgres', 'CREATE FOREIGN TABLE large (i int) SERVER parallel');
	my $logged = -s $remote->logfile;
	is(result('SELECT sum(i) FROM large'), '5000050000', 'sum is correct');

	# the plan is logged when the portal ends, which can be after the answer
	ok(wait_until($remote, sub { slurp_file($remote->logfile, $logged) =~ /Query Text: SELECT sum\(i\) FROM public\.large.*Workers Launched: [12]/s ? 1 : 0 }, '1'),
		'remote plan of a sum has parallel workers');

	# the same for a scan whose fetch_size is the largest one, also if another statement needs
	# its connection
	foreach my $parallel (0, 1)
	{
		my $rows = $local->safe_psql('postgres', 'SELECT count(i) FROM large');

		$local->safe_psql('postgres', q{ALTER FOREIGN TABLE large OPTIONS (ADD fetch_size '2147483647')}) if $parallel;
		# the constant distinguishes this plan from those of other scans, which may be logged later
		is($local->safe_psql('postgres', "SELECT count(i) FROM large WHERE i < 20000$parallel AND random() >= 0"), $rows, 'scan returns all rows');
		my $plan;
		ok(wait_until($remote, sub { ($plan) = slurp_file($remote->logfile, $logged) =~ /Query Text: SELECT i FROM public\.large WHERE \(\(i < '?20000$parallel\b.*?Workers Launched: (\d)/s; defined $plan ? 1 : 0 }, '1'),
			'remote plan of a scan is logged');
		$parallel ? cmp_ok($plan, '>', 0, 'remote plan of a scan as a whole has parallel workers') :
		  is($plan, 0, 'remote plan of a scan in batches has no parallel workers');
		is($local->safe_psql('postgres', 'BEGIN; DECLARE c CURSOR FOR SELECT i FROM large WHERE random() >= 0; MOVE 1 FROM c;'
			  . ' SELECT count(*) FROM large; COMMIT'), $rows, 'rest of the scan is buffered for another statement');
	}

	# --- batches: fetch_size is their size; otherwise they grow, but not while the client reads slowly
	$remote->safe_psql('postgres', q{ALTER ROLE remote_app SET log_statement = 'all'});
	make_pool($local, $remote, server => 'batches', options => { fetch_size => 250 });
	$local->safe_psql('postgres', 'CREATE FOREIGN TABLE batches (i int) SERVER batches OPTIONS (table_name $$large$$)');
	my $constant = 300000;

	# Return how many batches follow the first one of a query for 1000 rows of a table.
	sub batches
	{
		my ($from, $query) = @_;
		my $since = -s $remote->logfile;

		$constant++;
		$query = $query ? $query =~ s/<query>/SELECT i FROM $from AND i < $constant/r : "SELECT count(i) FROM (SELECT i FROM $from AND i < $constant OFFSET 0) AS t";
		is($local->safe_psql('postgres', $query), $query =~ /^SELECT count/ ? 1000 : '', "$query: is executed");
		return scalar(() = slurp_file($remote->logfile, $since) =~ /execute fetch from .*\b$constant\b/g);
	}

	my $rows = 'batches WHERE i <= 1000 AND random() >= 0';
	is(batches($rows), 4, 'fetch_size of the server is the size of each batch');
	$local->safe_psql('postgres', q{ALTER FOREIGN TABLE batches OPTIONS (ADD fetch_size '100')});
	is(batches($rows), 10, 'fetch_size of the table is the size of each batch');
	$local->safe_psql('postgres', q{CREATE FOREIGN TABLE other (i int) SERVER batches OPTIONS (table_name 'large', fetch_size '50')});
	is(batches('batches JOIN other USING (i) WHERE i <= 1000 AND random() >= 0'), 10, 'batches of a join have the largest fetch_size of its tables');
	$local->safe_psql('postgres', 'ALTER SERVER batches OPTIONS (DROP fetch_size); ALTER FOREIGN TABLE batches OPTIONS (DROP fetch_size)');
	cmp_ok(batches($rows, 'DO $$ DECLARE r record; n int := 0; BEGIN FOR r IN <query> LOOP n := n + 1; IF n = 1 THEN PERFORM pg_sleep(1.5); END IF; END LOOP; END $$'), '>', 2,
		'batches do not grow while the client reads slowly');

	$session->quit;
	stats_add_up($local);
	check_invariants($local);
	clean_slate($local, $remote);
}

# ---------- pipelined statements of foreign tables
# Pipelined hand-over to foreign tables: a scan that waits for its lease leaves its first
# statement, and the session that returns the connection sends it, behind the COMMIT of
# its own foreign tables and the reset. The statement runs in a clean session and in a
# transaction of its own, or not at all.
{
	$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE SCHEMA app;
CREATE TABLE app.numbers AS SELECT i AS n, 'number ' || i AS t FROM generate_series(1, 3000) AS i;
CREATE TABLE app.parents (n int PRIMARY KEY);
CREATE TABLE app.children (n int REFERENCES app.parents DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION app.orphan() RETURNS int LANGUAGE sql AS 'INSERT INTO app.children VALUES (1) RETURNING 1';
CREATE VIEW app.breaking AS SELECT app.orphan() AS n;
CREATE TABLE app.log (n int);
CREATE FUNCTION app.logs() RETURNS int LANGUAGE sql AS 'INSERT INTO app.log VALUES (1) RETURNING 1';
CREATE VIEW app.logging AS SELECT app.logs() AS n;
CREATE VIEW app.failing AS SELECT 1 / (n - n) AS n FROM app.numbers;
CREATE VIEW app."pg_sleep(600)" AS SELECT 1 AS n FROM pg_sleep(600);
CREATE VIEW app.state AS SELECT current_setting('a.b', true) AS b, to_regclass('pg_temp.trace') AS trace,
	current_setting('transaction_isolation') AS isolation;
CREATE VIEW app.fractions AS SELECT (0.1::float8 + 0.2::float8)::text AS f;
CREATE TABLE app.instants AS SELECT now() + i * interval '1 s' AS at FROM generate_series(1, 100) AS i;
EOT

	make_pool($local, $remote, server => $_, options => { pool_size => 1, checkout_timeout => '30s' }) foreach qw(one shared changing);
	$local->safe_psql('postgres', <<"EOT");
DROP USER MAPPING FOR CURRENT_USER SERVER shared;
CREATE USER MAPPING FOR PUBLIC SERVER shared OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE SCHEMA ft;
CREATE FOREIGN TABLE ft.numbers (n int, t text) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft.breaking (n int) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft.logging (n int) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft.failing (n int) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft."pg_sleep(600)" (n int) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft.state (b text, trace text, isolation text) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft.instants (at timestamptz) SERVER one OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft.fractions (f text) SERVER changing OPTIONS (schema_name 'app');
CREATE FOREIGN TABLE ft.shared (n int, t text) SERVER shared OPTIONS (schema_name 'app', table_name 'numbers');
EOT

	my $first = PgpxSession->new($local);
	my $second = PgpxSession->new($local);
	my $third = PgpxSession->new($local);
	my $read = 'SELECT t FROM ft.numbers WHERE n = 7';
	my $query = q{SELECT * FROM pgpool.query('one', $$SELECT concat_ws(',', current_setting('search_path'),
		current_setting('timezone') <> 'GMT', current_setting('transaction_isolation'))$$) AS t(a text)};

	sub counter
	{
		my ($name, $server) = @_;

		return $local->safe_psql('postgres', "SELECT coalesce(sum($name), 0) FROM pgpool.stats WHERE server = '" . ($server // 'one') . "'");
	}

	# $waiter runs SQL that has to wait while $first has an open transaction in which $before
	# was executed. Returns when $waiter waits.
	sub queue_behind
	{
		my ($before, $waiter, $sql) = @_;

		$first->run("BEGIN; $before");
		is($first->error, '', 'predecessor has a lease');
		$waiter->start($sql);
		wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
		return;
	}

	# The same, and the predecessor commits. Returns the result of the waiter.
	sub behind
	{
		my ($before, $sql) = @_;

		queue_behind($before, $second, $sql);
		$first->run('COMMIT');
		is($first->error, '', 'predecessor has committed');
		return $second->finish(30);
	}

	# Returns the growth of a counter since the last call.
	my %last = (pipelined => 0, closed => 0);

	sub counted
	{
		my ($name, $sum) = @_;
		my $now = counter($sum);
		my $more = $now - $last{$name};

		$last{$name} = $now;
		return $more;
	}
	sub pipelined { return counted('pipelined', 'pipelined') }
	sub closed { return counted('closed', 'closed_broken + closed_reset + closed_with_lease') }

	# the predecessor is a foreign table, too; the lease is returned with no waiter left
	is(behind($read, $read), 'number 7', 'scan behind a scan is answered');
	is(pipelined(), 1, 'statement of a scan behind a scan was pipelined');
	is(closed(), 0, 'connection was not closed');
	is(behind("SELECT pgpool.checkout_xact('one') AS l \\gset\nSELECT pgpool.exec(:l, 'SET a.b = 3; CREATE TEMP TABLE trace (a int)')",
		'SELECT * FROM ft.state'), '||repeatable read', 'scan behind a lease finds a clean session, and has a transaction');
	is(pipelined(), 1, 'statement of a scan behind a lease was pipelined');
	is(behind($read, $query), '"$user", public,t,read committed', 'query behind a scan is outside of a transaction');
	is(pipelined(), 1, 'query behind a scan was pipelined');

	# parameters, NULL, no rows, and later statements of the same transaction
	$second->run(q{PREPARE p(int) AS SELECT t FROM ft.numbers WHERE n = $1; SET plan_cache_mode = force_generic_plan});
	is(behind($read, 'EXECUTE p(8)'), 'number 8', 'parameter is sent');
	is(behind($read, 'EXECUTE p(NULL)'), '', 'NULL is sent');
	is(behind($read, 'BEGIN; EXECUTE p(9); EXECUTE p(10); EXECUTE p(11); SELECT count(*) FROM ft.numbers AS a JOIN ft.numbers AS b USING (n) WHERE a.n < b.n + random(); COMMIT'),
		"number 9\nnumber 10\nnumber 11\n3000", 'next statements are sent in the same transaction');
	is(behind($read, 'BEGIN; DECLARE c CURSOR FOR SELECT n FROM ft.numbers ORDER BY n; FETCH 2 FROM c; SELECT count(*) FROM ft.numbers; FETCH 2 FROM c; COMMIT'),
		"1\n2\n3000\n3\n4", 'scan is buffered, and fetches its next batches');
	is($second->error, '', 'no error was reported');
	is(pipelined(), 4, 'all first statements were pipelined');
	is(closed(), 0, 'no connection was closed');

	# errors of the statement
	behind($read, 'SELECT n FROM ft.failing');
	$second->failed('22012', qr/division by zero/, 'error of the statement is reported');
	is($second->run($read), 'number 7', 'next statement receives its own answer');
	is(behind($read, "BEGIN; SAVEPOINT a; SAVEPOINT b; $read; ROLLBACK TO b; $read; RELEASE a; $read; COMMIT"),
		"number 7\nnumber 7\nnumber 7", 'savepoints are set before the statement');
	behind($read, 'BEGIN; SAVEPOINT a; SELECT n FROM ft.failing');
	$second->failed('22012', qr/division by zero/, 'error in a subtransaction is reported');
	is($second->run("ROLLBACK TO a; $read; COMMIT"), 'number 7', 'transaction continues after the rollback of the subtransaction');
	is($second->error, '', 'transaction commits');
	is(pipelined(), 3, 'failed statements were pipelined, too');
	is(closed(), 0, 'no connection was closed');

	# The COMMIT or the reset fails: the statement has not run, and runs on another
	# connection, once.
	queue_behind('SELECT n FROM ft.breaking', $second, 'SELECT n FROM ft.logging');
	$first->fails('COMMIT', '23503', qr/violates foreign key constraint/, 'failed COMMIT is reported to the session whose transaction it ends');
	is($second->finish(30), '1', 'statement behind a failed COMMIT succeeds') or diag($second->error);
	is(pipelined(), 1, 'statement behind a failed COMMIT was pipelined');
	is(closed(), 0, 'connection of the failed COMMIT is kept');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM app.children'), '0', 'transaction of the predecessor was rolled back');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM app.log'), '1', 'statement ran once');

	# a lock on a temporary table stops the reset, which is cancelled then
	queue_behind("SELECT pgpool.checkout_xact('one') AS l \\gset\nSELECT pgpool.exec(:l, 'CREATE TEMP TABLE held ()')", $second, 'SELECT n FROM ft.logging');
	my $locker = PgpxSession->new($remote, dbname => 'remote_db');
	my $held = $remote->safe_psql('remote_db', q{SELECT oid::regclass FROM pg_class WHERE relname = 'held'});
	my $resets = $local->safe_psql('postgres', q{SELECT remote_pid FROM pgpool.leases WHERE server = 'one'});
	$locker->run("BEGIN; LOCK TABLE $held IN ACCESS SHARE MODE");
	$first->run('COMMIT');
	ok(wait_until($remote, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $resets", 'Lock'), 'reset waits for a lock');
	$remote->safe_psql('postgres', "SELECT pg_cancel_backend($resets)");
	is($second->finish(30), '1', 'statement behind a failed reset succeeds') or diag($second->error);
	$locker->quit;
	is(pipelined(), 1, 'statement behind a failed reset was pipelined');
	is(closed(), 1, 'connection of the failed reset was closed');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM app.log'), '2', 'statement ran once');

	# Not pipelined: large scans, whose types are requested first; writes; pools of several
	# users, whose rights are checked again after the wait; scans of an Append.
	is(behind($read, 'SELECT count(at) FROM (SELECT * FROM ft.instants OFFSET 0) AS t'), '100', 'large scan succeeds');
	is(behind($read, 'UPDATE ft.numbers SET t = t WHERE n = 1'), '', 'UPDATE succeeds');
	is($second->error, '', 'large scan and UPDATE report no error');
	is(pipelined(), 0, 'large scan and UPDATE were not pipelined');
	queue_behind('SELECT t FROM ft.shared WHERE n = 7', $second, 'SELECT t FROM ft.shared WHERE n = 8');
	$first->run('COMMIT');
	is($second->finish(30), 'number 8', 'scan in a pool of several users succeeds');
	is(counter('pipelined', 'shared'), '0', 'scan in a pool of several users was not pipelined');

	# the pending statement of a session that leaves the queue is not sent
	queue_behind($read, $second, 'SELECT n FROM ft.logging');
	$third->run('SELECT pg_cancel_backend(' . $second->pid . ')');
	$second->finish(30);
	$second->failed('57014', qr/canceling statement/, 'waiter is cancelled');
	$first->run('COMMIT');
	is($second->run($read), 'number 7', 'next statement of a cancelled waiter receives its own answer');
	is($remote->safe_psql('remote_db', 'SELECT count(*) FROM app.log'), '2', 'statement of the cancelled waiter was not sent');
	is(pipelined(), 0, 'statement of the cancelled waiter was not pipelined');

	# The options change during the wait. The statement relies on the settings of the startup
	# packet, which a connection that is not reset may not have: it is not handed over.
	my $waiters = 'SELECT count(*) FROM pgpool.waiters';
	$first->run("SELECT pgpool.checkout('changing') AS l \\gset");
	$third->start("SELECT pgpool.checkout('changing') AS l \\gset");
	wait_until($local, $waiters, '1') or die 'no waiter';
	$second->start('SELECT f FROM ft.fractions');
	wait_until($local, $waiters, '2') or die 'no second waiter';
	$local->safe_psql('postgres', "ALTER SERVER changing OPTIONS (ADD reset 'never', ADD application_name 'changed')");
	$first->run('SELECT pgpool.checkin(:l)');
	$third->finish(30);
	$third->run("SELECT pgpool.exec(:l, 'SET extra_float_digits = 0'); SELECT pgpool.checkin(:l)");
	is($third->error, '', 'predecessor has changed a setting');
	is($second->finish(30), '0.30000000000000004', 'scan that waited while the options changed returns all digits');

	# A statement that was sent belongs to its owner: it ends by cancel, terminate,
	# the administrative function, the end of the worker, and the end of the remote session.
	my $asleep = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app' AND state = 'active'};
	my %ends = (
		cancel => [ sub { 'SELECT pg_cancel_backend(' . $_[0]->pid . ')' }, '57014' ],
		terminate => [ sub { 'SELECT pg_terminate_backend(' . $_[0]->pid . ', 20000)' } ],
		revoke => [ sub { 'SELECT pgpool.terminate(lease) FROM pgpool.leases' }, 'PX001' ],
		worker => [ sub { 'SELECT pg_terminate_backend(pid, 20000) FROM pgpool.workers' }, '08006' ],
		remote => [ undef, '08006' ],
	);
	foreach my $how (sort keys %ends)
	{
		my ($end, $sqlstate) = @{ $ends{$how} };
		my $victim = PgpxSession->new($local);

		queue_behind($read, $victim, 'BEGIN; SAVEPOINT a; SELECT n FROM ft."pg_sleep(600)"');
		$first->run('COMMIT');
		is($first->error, '', "$how: predecessor has committed");
		wait_until($remote, $asleep, '1');
		ok(wait_until($local, sub { pipelined() }, 1, 20), "$how: statement was pipelined");
		$third->run($end->($victim)) if $end;
		$remote->safe_psql('remote_db', q{SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app'}) if !$end;
		$victim->finish(30);
		$victim->failed($sqlstate, qr/./, "$how: owner receives the error") if $sqlstate;
		ok($victim->is_gone, "$how: owner has ended") if !$sqlstate;
		ok(wait_until($remote, $asleep, '0'), "$how: nothing runs on the remote server");
		if ($how eq 'remote')
		{
			$victim->run('ROLLBACK');
		}
		elsif ($sqlstate)
		{
			is($victim->run("ROLLBACK TO a; $read; COMMIT"), 'number 7', "$how: transaction continues")
			  or diag($victim->error);
		}
		is($third->run($read), 'number 7', "$how: next statement receives its own answer") or diag($third->error);
		$victim->quit;
	}
	$_->quit foreach $first, $second, $third;
	is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'no lease is left');
	stats_add_up($local);
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
