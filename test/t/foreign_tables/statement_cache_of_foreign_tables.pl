# Statement cache of foreign tables: with the option statement_cache, their statements
# stay prepared on a connection from one transaction to the next. This never changes the
# result of a statement, whatever changes at the remote server, and whatever else uses
# the connection.
use strict;
use warnings;

use PgpxTest;
use Test::More;

# (not the TimeZone that transactions of foreign tables have)
my $remote = remote_node('remote', conf => [q{timezone = 'Asia/Tokyo'}]);
my $local = local_node('local');
my $port = $remote->port;

$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE SCHEMA app;
CREATE TABLE app.t (a int PRIMARY KEY, b text);
INSERT INTO app.t SELECT g, 10 * g FROM generate_series(1, 100) g;
CREATE TABLE app.u (a int PRIMARY KEY, b text);
INSERT INTO app.u SELECT g, 11 * g FROM generate_series(1, 100) g;
CREATE TABLE app.wide (a int, c float8);
CREATE VIEW app.failing AS SELECT a, 100 / (a - 5) AS b FROM app.t;
CREATE TABLE app.texts (a text);
CREATE FUNCTION app.run(sql text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE sql; RETURN 1; END $$;
EOT
make_pool($local, $remote, server => $_, options => { pool_size => 1, checkout_timeout => '30s', statement_cache => 20 }) foreach qw(cached turns);
make_pool($local, $remote, server => 'never', options => { pool_size => 1, statement_cache => 20, reset => 'never' });
$local->safe_psql('postgres', <<'EOT');
CREATE TABLE keys AS SELECT g AS k FROM generate_series(1, 5) g;
CREATE SCHEMA ft; CREATE SCHEMA turns; CREATE SCHEMA never;
IMPORT FOREIGN SCHEMA app FROM SERVER cached INTO ft;
IMPORT FOREIGN SCHEMA app FROM SERVER turns INTO turns;
IMPORT FOREIGN SCHEMA app FROM SERVER never INTO never;
EOT

# The statements of a session. Each text is executed with parameters at the remote server.
my $statements = <<'EOT';
SET plan_cache_mode = force_generic_plan;
PREPARE t(int) AS SELECT b FROM ft.t WHERE a = $1;
PREPARE u(int) AS SELECT b FROM ft.u WHERE a = $1;
PREPARE failing(int) AS SELECT b FROM ft.failing WHERE a = $1;
PREPARE nested AS SELECT sum(v.b::int) FROM keys CROSS JOIN LATERAL (SELECT b FROM ft.u WHERE a = k OFFSET 0) AS v;
PREPARE pair(int) AS SELECT string_agg(b, ',' ORDER BY b) FROM (SELECT b FROM ft.t WHERE a = $1 UNION ALL SELECT b FROM ft.u WHERE a = $1) AS v;
EOT
my ($first, $second) = map { PgpxSession->new($local) } 1, 2;
$_->run($statements) foreach $first, $second;

sub run
{
	my ($sql) = @_;

	return $first->run($sql) . $first->error;
}

sub remote_sql
{
	my ($sql) = @_;

	$remote->safe_psql('remote_db', "SET ROLE remote_app; $sql");
	return;
}

# The statements that are prepared on the connection: protocol, and SQL. (The word now
# in its text keeps this one from being prepared.)
sub prepared
{
	my ($pool) = @_;

	return run("SELECT a FROM pgpool.query('$pool', \$x\$SELECT concat_ws(' ', count(*) FILTER (WHERE NOT from_sql), count(*) FILTER (WHERE from_sql)) FROM pg_prepared_statements -- now\$x\$) AS t(a text)");
}

sub executions
{
	my ($pool, $pattern) = @_;

	return run("SELECT a FROM pgpool.query('$pool', \$x\$SELECT sum(generic_plans + custom_plans) FROM pg_prepared_statements WHERE statement LIKE '$pattern' -- now\$x\$) AS t(a text)");
}

sub counter
{
	my ($name, $pool) = @_;

	return $local->safe_psql('postgres', "SELECT $name FROM pgpool.stats WHERE server = '$pool'");
}

sub discard
{
	my ($pool) = @_;

	run("SELECT pgpool.exec('$pool', 'DISCARD ALL')");
	is(prepared($pool), '0 0', 'no statement is prepared');
	return;
}

# --- scans
discard('cached');
is(run('EXECUTE t(1)'), '10', 'first scan returns its row');
is(prepared('cached'), '0 0', 'first scan prepares nothing');
is(run('EXECUTE t(2)'), '20', 'second scan returns its row');
is(prepared('cached'), '1 0', 'second scan prepares its statement');
is(run("EXECUTE t($_)"), 10 * $_, 'later scan returns its row') foreach 3 .. 5;
is(executions('cached', '%app.t%'), '4', 'later scans use the prepared statement');
is($second->run('EXECUTE t(6)'), '60', 'scan of another session returns its row');
is(executions('cached', '%app.t%'), '5', 'scan of another session uses the prepared statement, too');
is(run('EXECUTE nested'), '165', 'scan with parameters in a nested loop returns its rows') foreach 1 .. 2;
is(prepared('cached'), '2 0', 'scan in a nested loop prepares its statement');
is(executions('cached', '%app.u%'), '9', 'executions in a nested loop but the first use the prepared statement');
is(run('BEGIN; EXECUTE u(1); EXECUTE t(1); EXECUTE t(2); EXECUTE nested; EXECUTE u(2); COMMIT'), "11\n10\n20\n165\n22", 'several statements in a transaction return their rows');
is(prepared('cached'), '2 0', 'several statements in a transaction prepare nothing more');
is(executions('cached', '%app.u%'), '16', 'several statements in a transaction are executed as prepared statements');
is(run('BEGIN; DECLARE c CURSOR FOR SELECT a FROM ft.t ORDER BY a; FETCH 2 FROM c; EXECUTE t(3); FETCH 2 FROM c; COMMIT'), "1\n2\n30\n3\n4", 'cursor returns its rows before and after another statement') foreach 1 .. 3;
is(prepared('cached'), '3 0', 'cursor prepares its statement');

# --- writes
discard('cached');
foreach my $i (1 .. 3)
{
	is(run("INSERT INTO ft.t VALUES (200 + $i, $i) RETURNING b"), $i, 'INSERT with RETURNING returns its row');
	is(run("INSERT INTO ft.u VALUES (200 + $i, $i)"), '', 'INSERT succeeds');
	is(run("UPDATE ft.t SET b = b || repeat('x', (random() * 0)::int) WHERE a = 200 + $i RETURNING b"), $i, 'UPDATE row by row returns its row');
	is(run("DELETE FROM ft.u WHERE a = 200 + $i + (random() * 0)::int"), '', 'DELETE row by row succeeds');
}
is(executions('cached', 'INSERT INTO app.t%') . executions('cached', 'INSERT INTO app.u%') . executions('cached', 'UPDATE%') . executions('cached', 'DELETE%'),
	'2222', 'writes use their prepared statements');
is($remote->safe_psql('remote_db', 'SELECT (SELECT sum(b::int) FROM app.t WHERE a > 200), (SELECT count(*) FROM app.u WHERE a > 200)'), '6|0', 'each write was executed once');
like(run('INSERT INTO ft.t VALUES (201, 1) RETURNING b'), qr/23505/, 'error of a write is raised');
is(run('INSERT INTO ft.t VALUES (204, 4) RETURNING b'), '4', 'statement of a write is usable after its error');
is(run('BEGIN; EXECUTE t(1); SAVEPOINT a; INSERT INTO ft.t VALUES (205, 5) RETURNING b; ROLLBACK TO a; INSERT INTO ft.t VALUES (205, 6) RETURNING b; COMMIT'), "10\n5\n6", 'writes in a rolled back subtransaction and after it return their rows');
like(run('BEGIN; EXECUTE t(1); SAVEPOINT a; INSERT INTO ft.t VALUES (201, 5) RETURNING b'), qr/23505/, 'error of a write in a subtransaction is raised');
is(run('ROLLBACK TO a; INSERT INTO ft.t VALUES (206, 6) RETURNING b; EXECUTE t(2); COMMIT'), "6\n20", 'transaction continues after an error in a subtransaction');
is($remote->safe_psql('remote_db', 'SELECT sum(b::int) FROM app.t WHERE a > 200'), '22', 'remote table has exactly the committed rows');
remote_sql('DELETE FROM app.t WHERE a > 200');

# --- DDL at the remote server
discard('cached');
my $pid = run("SELECT a FROM pgpool.query('cached', 'SELECT pg_backend_pid()') AS t(a int)");
my %types;

# Changes the type of b, without a new version of the rows, which an open transaction
# would not see.
sub alter
{
	foreach my $table (@_)
	{
		$types{$table} = ($types{$table} // 'text') eq 'text' ? 'varchar' : 'text';
		remote_sql("ALTER TABLE app.$table ALTER b TYPE $types{$table}");
	}
	return;
}
remote_sql('DROP VIEW app.failing');
run("EXECUTE t(1); EXECUTE u(1); EXECUTE pair(1)") foreach 1 .. 3;
my $errors = counter('errors', 'cached');
alter('t');
is(run('EXECUTE t(3)'), '30', 'scan returns its row after a change of its type');
is(executions('cached', '%app.t%') > 0 ? 1 : 0, 1, 'statement is prepared again after a change of its type');
alter('t');
is(run('BEGIN; EXECUTE t(3); EXECUTE u(3); COMMIT'), "30\n33", 'scans succeed if the type has changed before the first statement of a transaction');
run('BEGIN; EXECUTE u(1)');
alter('t');
is(run('EXECUTE t(3); EXECUTE t(4); EXECUTE u(4); COMMIT'), "30\n40\n44", 'scans succeed if the type has changed before a later statement of a transaction');
run('BEGIN; EXECUTE u(1); SAVEPOINT a; EXECUTE t(1); ROLLBACK TO a');
alter('t');
is(run('EXECUTE t(3); SAVEPOINT b; EXECUTE t(4); RELEASE b; EXECUTE t(5); COMMIT'), "30\n40\n50", 'scans succeed if the type has changed after the rollback of a subtransaction');
run('BEGIN; EXECUTE u(1); SAVEPOINT a; EXECUTE t(1); ROLLBACK TO a; EXECUTE t(1); ROLLBACK TO a');
alter('t');
is(run('EXECUTE t(3); EXECUTE t(4); COMMIT'), "30\n40", 'scans succeed if the type has changed after a subtransaction was rolled back twice');
run('BEGIN; SAVEPOINT a; EXECUTE u(1); SAVEPOINT b');
alter('t');
is(run('EXECUTE t(3); ROLLBACK TO b; EXECUTE t(4); RELEASE a; EXECUTE t(5); COMMIT'), "30\n40\n50", 'scans succeed if the type has changed in a subtransaction');
alter('t', 'u');
is(run('EXECUTE pair(3)'), '30,33', 'union succeeds if the types of both tables have changed');
run('BEGIN; SELECT count(*) FROM ft.texts');
alter('t', 'u');
is(run('EXECUTE pair(3); EXECUTE pair(4); COMMIT'), "30,33\n40,44", 'union succeeds if the types have changed within a transaction');
$local->safe_psql('postgres', q{ALTER SERVER cached OPTIONS (ADD async_capable 'true')});
run('EXECUTE pair(3)') foreach 1 .. 3;
alter('t', 'u');
is(run('BEGIN; EXECUTE pair(3); COMMIT'), '30,33', 'union with asynchronous scans succeeds if the types have changed');
run('BEGIN; SELECT count(*) FROM ft.texts');
alter('t', 'u');
is(run('EXECUTE pair(3); EXECUTE pair(4); COMMIT'), "30,33\n40,44", 'union with asynchronous scans succeeds if the types have changed within a transaction');
$local->safe_psql('postgres', q{ALTER SERVER cached OPTIONS (DROP async_capable)});
run('BEGIN; SELECT count(*) FROM ft.texts');
alter('u');
is(run('EXECUTE nested; EXECUTE nested; COMMIT'), "165\n165", 'scan in a nested loop succeeds if the type has changed');
run('INSERT INTO ft.u VALUES (300, 1) RETURNING b; DELETE FROM ft.u WHERE a = 300') foreach 1 .. 3;
run('BEGIN; EXECUTE t(1)');
alter('u');
is(run('INSERT INTO ft.u VALUES (300, 2) RETURNING b; COMMIT'), '2', 'write succeeds if the type has changed');
is($remote->safe_psql('remote_db', 'SELECT count(*), sum(b::int) FROM app.u WHERE a = 300'), '1|2', 'write after a change of the type was executed once');
remote_sql('ALTER TABLE app.t RENAME TO s; CREATE TABLE app.t (b text, a int); INSERT INTO app.t VALUES (7, 7)');
is(run('BEGIN; EXECUTE u(1); EXECUTE t(7); COMMIT'), "11\n7", 'scan reads another table that has the name');
remote_sql('DROP TABLE app.t');
like(run('EXECUTE t(1)'), qr/42P01/, 'error of a dropped table is raised');
remote_sql('ALTER TABLE app.s RENAME TO t');
is(run('EXECUTE t(1)'), '10', 'scan reads the table when it has its name again') foreach 1 .. 3;
is(counter('errors', 'cached'), $errors + 1, 'refused statements are not counted as errors');

# types of parameters
run("INSERT INTO ft.wide VALUES ($_, $_)") foreach 1 .. 3;
remote_sql('ALTER TABLE app.wide ALTER a TYPE bigint, ALTER c TYPE numeric');
$local->safe_psql('postgres', 'ALTER FOREIGN TABLE ft.wide ALTER a TYPE bigint');
is(run('BEGIN; EXECUTE t(1); INSERT INTO ft.wide VALUES (3000000000, 1) RETURNING a; COMMIT'), "10\n3000000000", 'write accepts a value of the new type of a parameter');
$local->safe_psql('postgres', 'ALTER FOREIGN TABLE ft.wide ALTER c TYPE numeric');
run('INSERT INTO ft.wide VALUES (7, 0.12345678901234567890123)');
is($remote->safe_psql('remote_db', 'SELECT c FROM app.wide WHERE a = 7'), '0.12345678901234567890123', 'value is not converted to the earlier type of the column first');
remote_sql(q{CREATE TYPE app.state AS ENUM ('new'); ALTER TABLE app.texts ADD s app.state});
$local->safe_psql('postgres', 'ALTER FOREIGN TABLE ft.texts ADD s text');
is(run("INSERT INTO ft.texts VALUES ('a', 'new') RETURNING s"), 'new', 'write to a column with a user-defined type returns its row') foreach 1 .. 3;
remote_sql(q{CREATE TYPE app.state2 AS ENUM ('new', 'old'); ALTER TABLE app.texts ALTER s TYPE app.state2 USING s::text::app.state2; DROP TYPE app.state; ALTER TYPE app.state2 RENAME TO state});
is(run("BEGIN; EXECUTE t(1); INSERT INTO ft.texts VALUES ('a', 'old') RETURNING s; COMMIT"), "10\nold", 'write succeeds if the type of a parameter was dropped');
remote_sql('ALTER TABLE app.texts DROP s; TRUNCATE app.texts');
$local->safe_psql('postgres', 'ALTER FOREIGN TABLE ft.texts DROP s');

# --- calls on the same connection
discard('cached');
run('EXECUTE t(1)') foreach 1 .. 3;
my $text = run(q{SELECT a FROM pgpool.query('cached', 'SELECT statement FROM pg_prepared_statements -- now') AS t(a text)});
like($text, qr/^SELECT b FROM app\.t WHERE/, 'statement of a scan is listed with its text');
is(run("SELECT a FROM pgpool.query('cached', \$x\$$text\$x\$, '2') AS t(a text)"), '20', 'call with the same text returns its value') foreach 1 .. 3;
is(prepared('cached'), '2 0', 'call with the same text has another prepared statement');
is(run('EXECUTE t(3)') . executions('cached', '%app.t%'), '306', 'scan uses its own prepared statement');
run(q{SELECT pgpool.exec('cached', 'DEALLOCATE ALL')});
is(run('EXECUTE t(3)'), '30', 'scan returns its row after DEALLOCATE ALL') foreach 1 .. 3;
run(q{SELECT a FROM pgpool.query('cached', 'SELECT app.run(''DEALLOCATE ALL'')') AS t(a int)});
is(run('EXECUTE t(3)'), '30', 'scan returns its row after a function has executed DEALLOCATE ALL') foreach 1 .. 3;
run('EXECUTE u(1)') foreach 1 .. 3;
run(q{SELECT a FROM pgpool.query('cached', 'SELECT app.run(''DEALLOCATE ALL'')') AS t(a int)});
is(run('BEGIN; SELECT count(*) FROM ft.texts; EXECUTE t(3); EXECUTE u(3); COMMIT'), "0\n30\n33", 'several scans in a transaction return their rows after such a function') foreach 1 .. 3;
is(prepared('cached') =~ /^[23] 0$/ ? 1 : 0, 1, 'statements are prepared again');
is(run("BEGIN; EXECUTE t(3); SELECT a FROM pgpool.query('never', 'SELECT 1') AS t(a int); EXECUTE t(4); COMMIT"), "30\n1\n40", 'call within the transaction returns its value');

# --- transactions that fail
remote_sql('CREATE VIEW app.failing AS SELECT a, 100 / (a - 5) AS b FROM app.t');
discard('cached');
like(run('EXECUTE failing(5)'), qr/22012/, 'error of a scan is raised') foreach 1 .. 2;
is(prepared('cached'), '1 0', 'statement of an aborted transaction stays prepared');
like(run('EXECUTE failing(5)'), qr/22012/, 'error of a prepared scan is raised');
is(run('EXECUTE failing(6)'), '100', 'prepared scan is usable after its error');
like(run('BEGIN; EXECUTE t(1); EXECUTE failing(5)'), qr/22012/, 'error after another statement is raised');
run('ROLLBACK');
is(run('BEGIN; EXECUTE t(1); SAVEPOINT a; EXECUTE failing(6); ROLLBACK TO a; EXECUTE failing(7); COMMIT'), "10\n100\n50", 'prepared scan is usable after a rollback to a savepoint');
is(executions('cached', '%app.failing%'), '6', 'all scans but the first used the prepared statement') or diag(prepared('cached'));
is(run("SELECT a FROM pgpool.query('cached', 'SELECT pg_backend_pid()') AS t(a int)"), $pid, 'connection is the same one');
is(counter('closed_broken + closed_reset + closed_holder_died', 'cached'), '0', 'no connection was lost');

# --- answers that are not read to their end
discard('cached');
remote_sql(q{INSERT INTO app.t VALUES (400, 'x')});
$local->safe_psql('postgres', q{CREATE FOREIGN TABLE ft.numbers (a int, b int) SERVER cached OPTIONS (schema_name 'app', table_name 't')});
$first->run('PREPARE numbers(int) AS SELECT a, b FROM ft.numbers WHERE a = $1');
is(run('EXECUTE t(1); EXECUTE t(1); EXECUTE u(1); EXECUTE numbers(1)'), "10\n10\n11\n1|10", 'statements before an unread answer return their rows');
like(run('BEGIN; EXECUTE t(1); SAVEPOINT a; EXECUTE numbers(400)'), qr/22P02/, 'error of a value that cannot be converted is raised');
is(run('ROLLBACK TO a; EXECUTE u(1); EXECUTE u(1); COMMIT'), "11\n11", 'transaction continues after a rollback to the savepoint');
is(prepared('cached'), '3 0', 'all statements of the transaction stay prepared');
my $hits = counter('cache_hits', 'cached');
is(run('EXECUTE numbers(2)') . run('EXECUTE u(2)'), '2|2022', 'statements of the transaction are usable afterwards');
is(counter('cache_hits', 'cached'), $hits + 2, 'prepared statements of the transaction are used afterwards');
remote_sql('DELETE FROM app.t WHERE a = 400');

# --- texts that are not cached are prepared for their transaction only
discard('cached');
run('EXECUTE t(1)') foreach 1 .. 2;
is(prepared('cached'), '1 0', 'one statement is prepared before the text with an escape');
remote_sql(q{INSERT INTO app.texts VALUES (E'a\\\\b'), ('today')});
is(run(q{BEGIN; SELECT count(*) FROM keys CROSS JOIN LATERAL (SELECT 1 FROM ft.texts WHERE a = E'a\\\\b' AND length(a) <> k + 10 OFFSET 0) AS v; COMMIT}), '5', 'text with an escape returns its rows');
is(prepared('cached'), '0 0', 'text with an escape does not stay prepared, so the reset was DISCARD ALL');
is(run('EXECUTE t(1)'), '10', 'scan returns its row after the text with an escape') foreach 1 .. 3;
is(prepared('cached'), '1 0', 'scan is prepared again after the text with an escape');

# --- a pool without a reset
$first->run('PREPARE n(int) AS SELECT b FROM never.t WHERE a = $1');
is(run("EXECUTE n($_)"), 10 * $_, 'reset never: scan returns its row') foreach 1 .. 3;
is(prepared('never'), '1 0', 'reset never: statement stays prepared');
run(q{SELECT pgpool.exec('never', 'SET search_path = app')});
is(run('EXECUTE n(4)'), '40', 'reset never: scan returns its row after SET');
run(q{SELECT pgpool.exec('never', 'DEALLOCATE ALL')});
is(run("EXECUTE n($_)"), 10 * $_, 'reset never: scan returns its row after DEALLOCATE ALL') foreach 5 .. 7;

# --- other local users
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE one LOGIN; CREATE ROLE two LOGIN;
CREATE SERVER shared FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', pool_size '1', statement_cache '20');
CREATE USER MAPPING FOR PUBLIC SERVER shared OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER shared TO one, two;
CREATE FOREIGN TABLE shared_t (a int, b int) SERVER shared OPTIONS (schema_name 'app', table_name 't');
GRANT SELECT ON shared_t TO one, two;
EOT
my ($one, $two) = map { PgpxSession->new($local, user => $_) } qw(one two);
my $names = q{SELECT a FROM pgpool.query('shared', $$SELECT coalesce(string_agg(name, ',' ORDER BY name), '') FROM pg_prepared_statements -- now$$) AS t(a text)};
foreach my $round (1 .. 2)
{
	is($one->run('SELECT b FROM shared_t WHERE a = 3'), '30', 'shared pool: scan of the first user returns its row') foreach 1 .. 3;
	my $of_one = $one->run($names);
	like($of_one, qr/^pgpx_\w+$/, 'shared pool: statement of the first user is prepared');
	is($two->run($names) . $two->error, '', 'shared pool: second user sees no prepared statement');
	is($two->run('SELECT b FROM shared_t WHERE a = 3'), '30', 'shared pool: scan of the second user returns its row') foreach 1 .. 3;
	like(my $of_two = $two->run($names), qr/^pgpx_\w+$/, 'shared pool: statement of the second user is prepared');
	isnt($of_two, $of_one, 'shared pool: statement of the second user has another name');
}

# --- statements that are sent for a waiter
$_->run('PREPARE turns(int) AS SELECT b FROM turns.t WHERE a = $1; PREPARE other(int) AS SELECT b FROM turns.u WHERE a = $1') foreach $first, $second;
sub behind
{
	my ($before, $sql) = @_;
	my $pipelined = counter('pipelined', 'turns');

	$second->run("BEGIN; $before");
	is($second->error, '', 'predecessor has a lease');
	$first->start($sql);
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	$second->run('COMMIT');
	my $result = $first->finish(30) . $first->error;

	is(counter('pipelined', 'turns'), $pipelined + 1, 'statement was pipelined');
	return $result;
}
is(behind('EXECUTE other(1)', "EXECUTE turns($_)"), 10 * $_, "waiter: execution $_ returns its row") foreach 1 .. 4;
is(executions('turns', '%app.t%'), '3', 'waiter: second execution prepares the statement');
is(executions('turns', '%app.u%'), '3', 'predecessor: second execution prepares the statement');
my $call = q{SELECT a FROM pgpool.query('turns', 'SELECT b FROM app.t WHERE a = $1', '3') AS t(a text)};
is(behind('EXECUTE other(1)', $call), '30', 'waiter: call returns its value') foreach 1 .. 3;
is(prepared('turns'), '3 0', 'waiter: call keeps the prepared statements of waiter and predecessor');
is(behind('EXECUTE other(1)', 'BEGIN; SAVEPOINT a; EXECUTE turns(5); EXECUTE other(5); ROLLBACK TO a; EXECUTE other(6); COMMIT'), "50\n55\n66", 'waiter: several statements return their rows');
alter('t');
is(behind('EXECUTE other(1)', 'EXECUTE turns(5)'), '50', 'waiter: scan returns its row after a change of its type');
alter('t');
is(behind('EXECUTE other(1)', 'BEGIN; SAVEPOINT a; EXECUTE turns(5); RELEASE a; EXECUTE other(6); COMMIT'), "50\n66", 'waiter: scan in a subtransaction returns its row after a change of its type');
is(behind("SELECT pgpool.checkout_xact('turns') AS l \\gset\nSELECT pgpool.exec(:l, 'DEALLOCATE ALL')", 'EXECUTE turns(5)'), '50', 'waiter: scan returns its row after statements were deallocated');
is(behind('EXECUTE other(1)', "EXECUTE turns($_)"), 10 * $_, 'waiter: scan returns its row when its statement is prepared again') foreach 1 .. 3;
is(behind("SELECT pgpool.checkout_xact('turns') AS l \\gset\nSELECT pgpool.exec(:l, 'SELECT app.run(''DEALLOCATE ALL'')')", 'EXECUTE turns(5)'), '50', 'waiter: scan returns its row after a function has deallocated statements');
is(counter('closed_broken + closed_reset + closed_holder_died', 'turns'), '0', 'no connection was lost');

# A new TimeZone that the remote server reads from its configuration is reported in the
# answer to the COMMIT of a transaction on foreign tables.
my $literal = q{SELECT v FROM pgpool.query('cached', $$SELECT '2020-01-01'::timestamptz - '2020-01-01 00:00+00'::timestamptz$$) AS v(v interval)};
run('SELECT pgpool.reconnect(\'cached\')');
is(run($literal), '-09:00:00', 'literal has the TimeZone of the remote server') foreach 1 .. 3;
run('BEGIN');
run(q{UPDATE ft.u SET b = b WHERE a = 1});
$remote->safe_psql('postgres', q{ALTER SYSTEM SET TimeZone = 'Pacific/Kiritimati'});
$remote->reload;
ok(wait_until($remote, 'SHOW TimeZone', 'Pacific/Kiritimati'), 'remote server has another TimeZone');
run('COMMIT');
is(run($literal), '-14:00:00', 'literal has the new TimeZone after the commit') foreach 1, 2;

$_->quit foreach $first, $second, $one, $two;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
