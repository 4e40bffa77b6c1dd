# Statement cache: with the option statement_cache, statements stay prepared on a
# connection when its lease ends. This never changes the result of a statement, whatever
# changes at the remote server, in the session, or in its prepared statements.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');
my $port = $remote->port;

make_pool($local, $remote, server => 'plain', options => { pool_size => 1 });
make_pool($local, $remote, server => 'cached', options => { pool_size => 1, statement_cache => 20 });
make_pool($local, $remote, server => 'two', options => { pool_size => 1, statement_cache => 2 });
make_pool($local, $remote, server => 'never', options => { pool_size => 1, statement_cache => 20, reset => 'never' });
make_pool($local, $remote, server => 'transfer', options => { pool_size => 1, statement_cache => 20, reset => 'on_transfer' });
$remote->safe_psql('remote_db', <<'EOT');
SET ROLE remote_app;
CREATE TABLE t (a int PRIMARY KEY, b int);
INSERT INTO t SELECT g, 10 * g FROM generate_series(1, 100) g;
CREATE SCHEMA other;
CREATE TABLE other.t (a int PRIMARY KEY, b int);
INSERT INTO other.t SELECT g, 11 * g FROM generate_series(1, 100) g;
CREATE FUNCTION run(sql text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN EXECUTE sql; RETURN 1; END $$;
EOT
my ($first, $second) = map { PgpxSession->new($local) } 1, 2;
my $point = 'SELECT b FROM t WHERE a = $1';

# One call; returns its value and error.
sub call
{
	my ($pool, $sql, @values) = @_;
	my $list = join '', map { ", '$_'" } @values;

	$pool = "'$pool'" if $pool !~ /^\d+$/;
	return $first->run("SELECT a FROM pgpool.query($pool, \$x\$$sql\$x\$$list) AS t(a text)") . $first->error;
}

# The statements that are prepared on the connection: protocol, and SQL. (The word now
# in its text keeps this one from being prepared.)
sub prepared
{
	my ($pool) = @_;

	return call($pool, q{SELECT concat_ws(' ', count(*) FILTER (WHERE NOT from_sql), count(*) FILTER (WHERE from_sql)) FROM pg_prepared_statements -- now});
}

sub counter
{
	my ($name, $pool) = @_;

	return $local->safe_psql('postgres', "SELECT $name FROM pgpool.stats WHERE server = '$pool'");
}

# Drops all prepared statements.
sub discard
{
	my ($pool) = @_;

	$first->run("SELECT pgpool.exec('$pool', 'DISCARD ALL')");
	return;
}

# A connection on which $point is prepared.
sub warm
{
	my ($pool) = @_;

	call($pool, $point, 1) foreach 1 .. 3;
	is(prepared($pool), '1 0', "$pool: statement is prepared");
	return;
}

# --- calls
is(join(',', map { call('plain', $point, $_) } 1 .. 3), '10,20,30', 'without the option, each call returns its value');
is(prepared('plain'), '0 0', 'without the option nothing stays prepared');
is(call('cached', $point, 1), '10', 'first execution returns the value');
is(prepared('cached'), '0 0', 'first execution prepares nothing');
is(call('cached', $point, 2), '20', 'second execution returns the value');
is(prepared('cached'), '1 0', 'second execution prepares the statement');
is(join(',', map { call('cached', $point, $_) } 3 .. 9), '30,40,50,60,70,80,90', 'later executions return the values');
is(prepared('cached'), '1 0', 'later executions prepare nothing more');
is(call('cached', q{SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE statement LIKE '%FROM t WHERE a = $1' -- now}), '8', 'each later execution uses the prepared statement');
is($second->run("SELECT a FROM pgpool.query('cached', '$point', '7') AS t(a int)"), '70', 'another session of the same user receives the value');
is(call('cached', q{SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE statement LIKE '%FROM t WHERE a = $1' -- now}), '9', 'another session of the same user uses the prepared statement, too');
is(counter('prepared', 'cached') . ' ' . counter('cache_hits', 'cached'), '1 8', 'pgpool.stats counts prepared statements and their uses');
is(call('cached', 'SELECT count(*) FROM t'), '100', 'statement without parameters returns the value') foreach 1 .. 3;
is(prepared('cached'), '2 0', 'statement without parameters is prepared');
is($first->run(q{SELECT pgpool.exec('cached', 'UPDATE t SET b = b WHERE a = $1', '5')}) . $first->error, '1', 'exec with parameters updates a row') foreach 1 .. 3;
is(prepared('cached'), '3 0', 'statement of exec with parameters is prepared');
is($first->run(q{SELECT pgpool.exec('cached', 'UPDATE t SET b = b WHERE a = 5')}), '1', 'exec without parameters updates a row') foreach 1 .. 3;
is(prepared('cached'), '3 0', 'write without parameters is not prepared');
is(call('cached', "/* a /* comment */ */ -- line\n (SELECT 5)"), '5', 'statement with leading comments returns the value') foreach 1 .. 3;
is(prepared('cached'), '4 0', 'statement with leading comments is prepared');

# errors are those of the statement
call('cached', 'SELECT 1 / $1::int', 1) foreach 1 .. 3;
like(call('cached', 'SELECT 1 / $1::int', 0), qr/22012.*division by zero/s, 'error of a prepared statement is raised');
like(call('cached', 'SELECT 1 / $1::int', 'x'), qr/22P02.*invalid input syntax/s, 'error of a parameter of a prepared statement is raised');
is(call('cached', 'SELECT 1 / $1::int', 1), '1', 'prepared statement is usable after errors');
foreach (1 .. 3)
{
	like(call('cached', 'SELECT nothing FROM t'), qr/42703/, 'error of a statement that cannot be parsed is raised');
}
is(prepared('cached'), '5 0', 'statements stay prepared after errors');
is(counter('closed_broken + closed_reset + closed_holder_died', 'cached'), '0', 'no connection was lost');

# --- the bounds
foreach my $n (1 .. 3)
{
	call('two', "SELECT b + $n FROM t WHERE a = \$1", 1) foreach 1 .. 2;
}
is(prepared('two'), '2 0', 'number of statements is bounded');
is(call('two', q{SELECT string_agg(substr(statement, 12, 1), '' ORDER BY statement) FROM pg_prepared_statements -- now}), '23', 'least recently used statement is closed');
call('two', 'SELECT b + 2 FROM t WHERE a = $1', 1);
call('two', 'SELECT b + 4 FROM t WHERE a = $1', 1) foreach 1 .. 2;
is(call('two', q{SELECT string_agg(substr(statement, 12, 1), '' ORDER BY statement) FROM pg_prepared_statements -- now}), '24', 'statement in use is not closed');
$first->run("SELECT length(a) FROM pgpool.query('cached', 'SELECT ''' || repeat('x', 100000) || '''') AS t(a text)") foreach 1 .. 3;
is(prepared('cached'), '5 0', 'very long text is not prepared');
foreach my $n (1 .. 12)
{
	$first->run("SELECT length(a) FROM pgpool.query('cached', 'SELECT $n, ''' || repeat('x', 60000) || '''') AS t(b int, a text)") foreach 1 .. 2;
}
is(call('cached', q{SELECT sum(length(statement)) BETWEEN 400000 AND 512 * 1024 FROM pg_prepared_statements -- now}), 't', 'bytes of the texts are bounded');
make_pool($local, $remote, server => 'many', options => { pool_size => 1, statement_cache => 128 });
my $bounded = sub { return call('many', q{SELECT count(*) || ' ' || (sum(length(statement)) <= 512 * 1024) FROM pg_prepared_statements -- now}); };
$first->run(q{DO $$ BEGIN FOR i IN 2 .. 257 LOOP PERFORM FROM pgpool.query('many', format('SELECT %s, ''%s''', i / 2, repeat('x', 4000))) AS t(a int, b text); END LOOP; END $$});
is($bounded->(), '128 true', 'many statements stay prepared, within the bound of their bytes');
foreach my $n (1 .. 12)
{
	$first->run("SELECT length(b) FROM pgpool.query('many', 'SELECT $n, ''' || repeat('x', 60000) || '''') AS t(a int, b text)") foreach 1 .. 2;
	like($bounded->(), qr/true/, 'long text replaces as many short texts as necessary');
}
call('many', "SELECT $_") foreach 1 .. 3, 1 .. 3;
cmp_ok((split ' ', prepared('many'))[0], '>', 3, 'several statements are prepared before the limit is lowered');
$local->safe_psql('postgres', q{ALTER SERVER many OPTIONS (SET statement_cache '3')});
is(call('many', "SELECT $_"), $_, 'statement returns its value after the limit was lowered') foreach 3, 3;
is(prepared('many'), '1 0', 'all other statements are dropped after the limit was lowered');
foreach my $text (q{SELECT 'today'::date::text}, q{SELECT 'now'::text}, q{SELECT U&'\0041'}, q{SELECT 'int'::regtype::text}, q{SELECT 'today12:00'::timestamp::text}, q{SELECT '12:00today'::timestamp::text},
	"SELECT 'to' -- it\n\t'day'", "SELECT 'to' -- it's\n\t'day'", q{SELECT '12:00'::timetz}, q{SELECT '12:00'::time (3) with time zone}, q{SELECT U&'!0041' UESCAPE '!'},
	q{SELECT 'now()'::timestamptz::text}, q{SELECT ARRAY['{now ()}'::timestamptz[]]::text}, q{SELECT '_today'::date::text}, q{SELECT 'today_'::date::text}, q{SELECT $$now()$$::timestamptz::text},
	q{SELECT now() > '2020-01-01', 'now()'::timestamptz::text})
{
	my $before = prepared('cached');

	call('cached', $text) foreach 1 .. 3;
	is(prepared('cached'), $before, "text is not prepared: $text");
}
foreach my $text (q{SELECT '12:00'::time, ' ', ''}, q{SELECT '2020-01-01'::timestamp with time zone, 'a' -- it}, "SELECT 'a',\n\t'b'")
{
	my $parses = counter('prepared', 'cached');

	call('cached', $text) foreach 1 .. 2;
	is(counter('prepared', 'cached'), $parses + 1, "text is prepared: $text");
}
is(call('cached', q{SELECT now() > '2020-01-01' AND now () > '2020-01-02'}), 't', 'statement with function now() returns its value') foreach 1 .. 2;
is(call('cached', q{SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%now () >%' AND name NOT IN ('now')}), '1', 'statement with function now() is prepared');

# --- the reset does all that DISCARD ALL does, except for the prepared statements
sub traces
{
	my ($pool) = @_;

	return call($pool, <<'EOT');
SELECT concat_ws(',', current_setting('search_path'), to_regclass('pg_temp.trace'), (SELECT count(*) FROM pg_prepared_statements WHERE from_sql),
	(SELECT count(*) FROM pg_cursors WHERE name = 'trace'), current_user,
	(SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
	current_setting('statement_timeout'), nullif(current_setting('a.b', true), ''), date '2020-02-01') -- now
EOT
}
$remote->safe_psql('remote_db', 'CREATE ROLE lesser; GRANT lesser TO remote_app');
foreach my $trace (
	"SELECT run('SET search_path = other')", "SELECT run('SET statement_timeout = 3600000')", "SELECT run('SET ROLE lesser')",
	"SELECT run('SET a.b = c')", 'SELECT pg_advisory_lock(7)', 'LISTEN trace', "SELECT run('CREATE TEMP TABLE trace (a int)')", 'DECLARE trace CURSOR WITH HOLD FOR SELECT 1')
{
	my $lease = lease($first, 'cached');

	$first->run("SELECT pgpool.exec($lease, \$x\$$trace\$x\$)");
	is($first->error, '', "$trace: succeeds");
	$first->run("SELECT pgpool.checkin($lease)");
	is(traces('cached'), '"$user", public,0,0,remote_app,0,0,0,2020-02-01', "$trace: reset leaves no trace");
	like(prepared('cached'), qr/^[1-9]\d* \d+$/, "$trace: statements stay prepared");
}
is(counter('closed_broken + closed_reset + closed_holder_died', 'cached'), '0', 'no connection was lost');
foreach my $trace ('PREPARE trace AS SELECT 1', 'CREATE TEMP TABLE trace (a int)', q{DO 'BEGIN EXECUTE ''PREPARE trace AS SELECT 1''; END'}, 'DEALLOCATE ALL', 'DISCARD ALL', 'SELECT 1; SELECT 2', 'SELECT 1 AS a INTO TEMP trace',
	'SET ROLE lesser', 'SET search_path = other', 'SET SESSION AUTHORIZATION DEFAULT', "SELECT set_config('search_path', 'other', false)",
	"SELECT set_config('DateStyle', 'German', false)", "SELECT set_config('a.b', 'c', false)", "SELECT run('SET DateStyle = German')",
	"UPDATE pg_settings SET setting = 'other' WHERE name = 'search_path'")
{
	warm('cached') if prepared('cached') eq '0 0';
	$first->run("SELECT pgpool.exec('cached', \$x\$$trace\$x\$)");
	is($first->error, '', "$trace: succeeds");
	is(traces('cached'), '"$user", public,0,0,remote_app,0,0,0,2020-02-01', "$trace: reset leaves no trace");
	is(prepared('cached'), '0 0', "$trace: prepared statements are dropped");
}
is(counter('closed_broken + closed_reset + closed_holder_died', 'cached'), '0', 'no connection was lost');

# --- DDL at the remote server
sub remote_sql
{
	my ($sql) = @_;

	$remote->safe_psql('remote_db', "SET ROLE remote_app; $sql");
	return;
}
warm('cached');
remote_sql('ALTER TABLE t ADD c text; CREATE INDEX ON t (b)');
is(call('cached', $point, 3), '30', 'statement returns its value after a column and an index were added');
is(prepared('cached'), '1 0', 'statement stays prepared when a column and an index are added');
remote_sql(q{ALTER TABLE t ALTER b TYPE text USING b || '!'});
is(call('cached', $point, 3), '30!', 'statement returns values of the new type of the result');
is(call('cached', $point, 4), '40!', 'later execution returns values of the new type, too');
is(prepared('cached'), '1 0', 'statement is prepared again after a change of its type');
call('cached', 'SELECT t FROM t WHERE a = $1', 3) foreach 1 .. 3;
remote_sql('DROP TABLE t');
like(call('cached', $point, 3), qr/42P01.*relation "t" does not exist/s, 'error of a dropped table is raised');
remote_sql('CREATE TABLE t (a int PRIMARY KEY, b int); INSERT INTO t SELECT g, 10 * g FROM generate_series(1, 100) g');
is(call('cached', $point, 3), '30', 'statement returns its value after the table was created again') foreach 1 .. 3;
is(counter('errors', 'cached') >= 1 ? 1 : 0, 1, 'errors of users are counted');
remote_sql('CREATE TABLE wide (a int, c float8)');
my $insert = 'INSERT INTO wide VALUES ($1, $2) RETURNING a';
is(call('cached', $insert, 1, 1), '1', 'statement with inferred types of parameters returns its value') foreach 1 .. 3;
remote_sql('ALTER TABLE wide ALTER a TYPE bigint');
is(call('cached', $insert, 3_000_000_000, 1), '3000000000', 'parameter is read with its new type');
call('cached', 'SELECT 1 FROM wide WHERE c = $1', 1) foreach 1 .. 3;
remote_sql('ALTER TABLE wide ALTER c TYPE text');
is(call('cached', 'SELECT 1 FROM wide WHERE c = $1', 'x'), '', 'parameter accepts a value that its earlier type did not');
call('cached', 'SELECT 1 FROM wide WHERE c = $1', 'x') foreach 1 .. 3;
remote_sql('ALTER TABLE wide ALTER c TYPE float8 USING c::float8');
is(call('cached', 'SELECT 1 FROM wide WHERE c = $1', 12345), '', 'statement is executed with another operator after a change of the type');

# the same with a type that was dropped, and with a domain
remote_sql(q{CREATE TYPE state AS ENUM ('new'); CREATE DOMAIN small AS int CHECK (VALUE < 10); CREATE TABLE typed (s state, a small)});
my $typed = 'INSERT INTO typed VALUES ($1, $2) RETURNING concat_ws(\' \', s, a)';
is(call('cached', $typed, 'new', 1), 'new 1', 'statement with user-defined types returns its value') foreach 1 .. 3;
remote_sql('ALTER TABLE typed ALTER a TYPE int');
is(call('cached', $typed, 'new', 50), 'new 50', 'statement accepts values that the former domain did not');
remote_sql(q{CREATE TYPE state2 AS ENUM ('new', 'old'); ALTER TABLE typed ALTER s TYPE state2 USING s::text::state2; DROP TYPE state; ALTER TYPE state2 RENAME TO state});
is(call('cached', $typed, 'old', 1), 'old 1', 'statement returns its value after the type of a parameter was dropped') foreach 1 .. 3;

# an error that parsing would not avoid
discard('cached');
warm('cached');
my $lease = lease($first, 'cached');
my $parses = counter('prepared', 'cached');
my $blocker = PgpxSession->new($remote, dbname => 'remote_db');
call($lease, q{SELECT run('SET lock_timeout = 1')});
$blocker->run('BEGIN; LOCK TABLE t');
like(call($lease, $point, 1), qr/55P03/, 'prepared statement fails if the table is locked');
$blocker->run('COMMIT');
is(call($lease, $point, 1), '10', 'prepared statement is usable after the lock timeout');
$blocker->quit;
$first->run("SELECT pgpool.checkin($lease)");
is(counter('prepared', 'cached'), $parses, 'statement is not prepared again after the lock timeout');

# an answer that was not read to its end
my $double = 'SELECT 2 * b FROM t WHERE a = $1';
call('cached', $double, 1);
$lease = lease($first, 'cached');
$first->run("SELECT a FROM pgpool.query($lease, '$double', '1') AS t(a bool)");
$first->failed('22P02', qr/boolean/, 'error of a value that cannot be converted is raised');
$first->run("SELECT pgpool.describe($lease, 'SELECT 1')");
$first->run("SELECT pgpool.checkin($lease)");
$parses = counter('prepared', 'cached');
is(call('cached', $double, 2), '40', 'statement whose answer was not read to its end is usable');
is(counter('prepared', 'cached'), $parses, 'statement whose answer was not read to its end stays prepared');

# --- types change while a lease or a transaction is open; a transaction has locked only
# the tables that it has used
discard('cached');
warm('cached');
$lease = lease($first, 'cached');
is(call($lease, $point, 3), '30', 'lease: statement is prepared');
$first->run("SELECT pgpool.exec($lease, 'BEGIN')");
remote_sql('ALTER TABLE t ALTER b TYPE bigint');
is(call($lease, $point, 3), '30', 'transaction: statement succeeds if the type has changed before its first use');
is(call($lease, $point, 4), '40', 'transaction: second use of the statement succeeds');
$first->run("SELECT pgpool.exec($lease, 'SAVEPOINT s')");
call($lease, 'SELECT a FROM other.t WHERE a = $1', 1) foreach 1 .. 3;
$first->run("SELECT pgpool.exec($lease, 'ROLLBACK TO s')");
remote_sql('ALTER TABLE other.t ALTER a TYPE bigint');
is(call($lease, 'SELECT a FROM other.t WHERE a = $1', 1), '1', 'transaction: statement succeeds if the type has changed after a rollback to a savepoint');
$first->run("SELECT pgpool.exec($lease, 'COMMIT AND CHAIN')");
remote_sql('ALTER TABLE t ALTER b TYPE int');
is(call($lease, $point, 5), '50', 'transaction: statement succeeds if the type has changed after COMMIT AND CHAIN');
$first->run("SELECT pgpool.exec($lease, 'COMMIT')");
remote_sql('ALTER TABLE t ALTER b TYPE bigint');
is(call($lease, $point, 5), '50', 'lease: statement succeeds if the type has changed after the transaction');
$first->run("SELECT pgpool.checkin($lease)");

# --- the meaning of a text changes on the lease
discard('cached');
warm('cached');
$lease = lease($first, 'cached');
is(call($lease, $point, 1), '10', 'lease: statement returns its value before the change');
$first->run("SELECT pgpool.exec($lease, 'SET search_path = other')");
is(call($lease, $point, 1), '11', 'lease: statement reads the table of the new search_path') foreach 1 .. 3;
$first->run("SELECT pgpool.exec($lease, 'RESET search_path')");
is(call($lease, $point, 1), '10', 'lease: statement reads the table of the former search_path again');
$first->run("SELECT pgpool.exec($lease, 'CREATE TEMP TABLE t AS SELECT 1 AS a, 12 AS b')");
is(call($lease, $point, 1), '12', 'lease: statement reads the temporary table that hides the other one');
$first->run("SELECT pgpool.checkin($lease)");
is(call('cached', $point, 1), '10', 'next lease reads the table again') foreach 1 .. 3;

# settings on which literals depend, in statements and in functions that keep a plan
my $literal = q{SELECT '2020-01-01'::timestamptz - '2020-01-01 00:00+00'::timestamptz};
my $zone = call('plain', $literal);
my $kiritimati = "SET TimeZone = 'Pacific/Kiritimati'";
$remote->safe_psql('remote_db', "SET ROLE remote_app; CREATE FUNCTION difference() RETURNS interval LANGUAGE plpgsql AS \$\$ BEGIN RETURN (SELECT (${\ substr($literal, 7)})); END \$\$");
foreach my $change ($kiritimati, "SELECT set_config('TimeZone', 'Pacific/Kiritimati', false)", "SELECT run(\$\$$kiritimati\$\$)")
{
	discard('cached');
	call('cached', $literal) foreach 1 .. 3;
	$lease = lease($first, 'cached');
	call($lease, $change);
	foreach (1 .. 2)
	{
		is(call($lease, $literal), '-14:00:00', "$change: literal has the new setting");
		is(call($lease, 'SELECT difference()'), '-14:00:00', "$change: literal in a function has the new setting");
	}
	$first->run("SELECT pgpool.checkin($lease)");
	is(call('cached', $literal), $zone, "$change: literal of the next lease has the former setting");
	is(call('cached', 'SELECT difference()'), $zone, "$change: literal in a function of the next lease has the former setting");
}
$lease = lease($first, 'cached');
$first->run(qq{SELECT pgpool.exec($lease, \$\$UPDATE pg_settings SET setting = 'off' WHERE name = 'array_nulls'\$\$)});
is(call($lease, q{SELECT ('{null}'::text[])[1]}), 'null', 'pg_settings: literal has the new setting') foreach 1 .. 3;
$first->run("SELECT pgpool.checkin($lease)");
is(call('cached', q{SELECT ('{null}'::text[])[1]}), '', 'pg_settings: literal of the next lease has the former setting');

# The remote server reads another TimeZone from its configuration. It reports this in the
# answer to the test of a free connection, or to a reset.
sub change_zone
{
	my ($value) = @_;

	$remote->safe_psql('postgres', "ALTER SYSTEM SET TimeZone = '$value'");
	$remote->reload;
	return ok(wait_until($remote, 'SHOW TimeZone', $value), "TimeZone of the remote server is $value");
}

make_pool($local, $remote, server => 'tested', options => { pool_size => 1, statement_cache => 20, test_period => '0' });
is(call('tested', $literal), $zone, 'tested: literal has the former TimeZone') foreach 1 .. 3;
ok(wait_until($local, q{SELECT idle FROM pgpool.pools WHERE server = 'tested'}, 1), 'tested: reset is answered');
change_zone('Pacific/Kiritimati');
is(call('tested', $literal), '-14:00:00', 'tested: literal has the new TimeZone');
discard('cached');
my @zones = ($zone, call('cached', $literal));
isnt($zones[1], $zones[0], 'literal depends on TimeZone');
call('cached', $literal) foreach 1, 2;
foreach my $leases (0, 1)
{
	$lease = lease($first, 'cached');
	is(call($lease, $literal), $zones[-1], 'lease: prepared literal has the TimeZone from before the change');
	change_zone((qw(Asia/Tokyo Asia/Kolkata))[$leases]);
	$first->run("SELECT pgpool.checkin($lease)");
	lease($second, 'cached') if $leases;
	$second->run('SELECT pgpool.checkin_all()');
	push @zones, call('cached', $literal);
	is($zones[-1], call('plain', $literal), "cached: literal has the TimeZone that was set before the reset, after $leases leases that send nothing");
	call('cached', $literal) foreach 1 .. 3;
}
my $hits = counter('cache_hits', 'cached');
is(call('cached', $literal), $zones[-1], 'cached: literal is prepared again');
cmp_ok(counter('cache_hits', 'cached'), '>', $hits, 'cached: literal is executed as a prepared statement');
$remote->safe_psql('postgres', 'ALTER SYSTEM RESET TimeZone');
$remote->reload;
discard('cached');

# like DISCARD ALL, the reset does not wait for a safe snapshot
warm('cached');
my $lost = counter('closed_reset + closed_broken', 'cached');
my $writer = PgpxSession->new($remote, dbname => 'remote_db');
$writer->run('BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE other.t SET b = b');
call('cached', q{SELECT run('SET default_transaction_isolation = serializable; SET default_transaction_read_only = on; SET default_transaction_deferrable = on')});
is(call('cached', $point, 1), '10', 'statement returns its value after a lease with deferrable transactions');
is(prepared('cached'), '1 0', 'statements stay prepared after a lease with deferrable transactions');
is(counter('closed_reset + closed_broken', 'cached'), $lost, 'no connection was lost after a lease with deferrable transactions');
$writer->run('ROLLBACK');
$writer->quit;

# --- prepared statements that a user changes, also within a function
is(call('cached', $point, 1), '10', 'prepared statement returns its value');
call('cached', q{SELECT run('DEALLOCATE ALL')});
is(call('cached', $point, 1), '10', 'statement returns its value after a function has deallocated it') foreach 1 .. 3;
warm('cached');
$lost = counter('closed_reset', 'cached');
like(call('cached', q{SELECT run(format('DEALLOCATE %1$I; PREPARE %1$I (int) AS SELECT 666 + $1', name)) FROM pg_prepared_statements WHERE statement LIKE '%WHERE a = $1' -- now}), qr/^1$/,
	'function replaces the statement');
is(call('cached', $point, 1), '10', 'next lease does not execute the replaced statement');
is(counter('closed_reset', 'cached'), $lost + 1, 'connection was closed');
warm('cached');
call('cached', q{SELECT run('PREPARE one AS SELECT 1'), run('PREPARE two AS SELECT 2')});
is(traces('cached'), '"$user", public,0,0,remote_app,0,0,0,2020-02-01', 'next lease finds no trace after a function has prepared two statements');
is(counter('closed_reset', 'cached'), $lost + 2, 'connection is closed after a function has prepared two statements');
warm('cached');
$lease = lease($first, 'cached');
my $name = call($lease, q{SELECT name FROM pg_prepared_statements WHERE statement LIKE '%WHERE a = $1' -- now});
like($name, qr/^pgpx_[0-9a-f]{32}$/, 'name of a cached statement has the prefix pgpx_');
$first->run("SELECT pgpool.exec($lease, 'DEALLOCATE $name')");
$first->run("SELECT pgpool.exec($lease, 'PREPARE $name (int) AS SELECT 666 + \$1')");
is(call($lease, $point, 1), '10', 'lease does not execute a replaced statement');
$first->run("SELECT pgpool.checkin($lease)");
is(call('cached', $point, 1), '10', 'next lease does not execute the statement that the lease has replaced') foreach 1 .. 3;

# --- settings that change without a reset: while the option is 0, and by a statement whose
# answer is not read
my $nulls = q{SELECT ('{null}'::text[])[1]};
make_pool($local, $remote, server => $_, options => { pool_size => 1, statement_cache => 20, reset => 'never' }) foreach qw(switched unread);
is(call('switched', $nulls), '', 'switched: literal is a null') foreach 1 .. 3;
is(prepared('switched'), '1 0', 'switched: literal is prepared');
$local->safe_psql('postgres', q{ALTER SERVER switched OPTIONS (SET statement_cache '0')});
$first->run(q{SELECT pgpool.exec('switched', 'SET array_nulls = off')});
$local->safe_psql('postgres', q{ALTER SERVER switched OPTIONS (SET statement_cache '20')});
is(call('switched', $nulls), 'null', 'switched: literal has the setting that was changed while the option was 0');
is(call('unread', $literal), $zone, 'unread: literal has the former TimeZone') foreach 1 .. 3;
$lease = lease($first, 'unread');
$first->run("SELECT pgpool.send($lease, \$\$SELECT run(\$q\$$kiritimati\$q\$)\$\$)");
ok(wait_until($remote, q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT run($q$%' AND state = 'idle'}, '1'), 'unread: TimeZone is set');
$first->run("SELECT pgpool.checkin($lease)");
is(call('unread', $literal), '-14:00:00', 'unread: literal has the TimeZone that was set by a statement whose answer was not read');

# --- other local users
my $app = PgpxSession->new($local, user => 'app');
$local->safe_psql('postgres', <<"EOT");
CREATE ROLE one LOGIN; CREATE ROLE two LOGIN;
CREATE SERVER shared FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db', pool_size '1', statement_cache '20');
CREATE USER MAPPING FOR PUBLIC SERVER shared OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
GRANT USAGE ON FOREIGN SERVER shared TO one, two;
EOT
my ($one, $two) = map { PgpxSession->new($local, user => $_) } qw(one two);
my $names = q{SELECT coalesce(string_agg(name, ',' ORDER BY name), '') FROM pg_prepared_statements -- now};
my $seen = sub { return $_[0]->run("SELECT a FROM pgpool.query('shared', \$\$$names\$\$) AS t(a text)") . $_[0]->error; };
foreach my $round (1 .. 2)
{
	$one->run("SELECT a FROM pgpool.query('shared', '$point', '1') AS t(a int)") foreach 1 .. 3;
	my $of_one = $seen->($one);
	like($of_one, qr/^pgpx_\w+$/, 'shared pool: first user has a prepared statement');
	is($seen->($two), '', 'shared pool: second user sees no prepared statement');
	$two->run("SELECT a FROM pgpool.query('shared', '$point', '1') AS t(a int)") foreach 1 .. 3;
	like(my $of_two = $seen->($two), qr/^pgpx_\w+$/, 'shared pool: second user has a prepared statement');
	isnt($of_two, $of_one, 'shared pool: names of two users differ');
	is($seen->($one), '', 'shared pool: first user sees no prepared statement of the second one');
}

# --- other kinds of resets
foreach my $pool (qw(never transfer))
{
	warm($pool);
	is(call($pool, $point, 2), '20', "$pool: statement is prepared");
	my $hits = counter('cache_hits', $pool);

	$first->run("SELECT pgpool.exec('$pool', 'SET search_path = other')");
	is(call($pool, $point, 2), '22', "$pool: statement follows the setting in the next lease");
	$first->run("SELECT pgpool.exec('$pool', 'RESET search_path')");
	is(call($pool, $point, 2), '20', "$pool: statement follows the setting after its reset");
	$first->run("SELECT pgpool.exec('$pool', 'DEALLOCATE ALL')");
	is(call($pool, $point, 2), '20', "$pool: statement returns its value after statements were deallocated") foreach 1 .. 3;
	is(counter('cache_hits', $pool), $hits, "$pool: cache is off");
	$second->run("SELECT a FROM pgpool.query('$pool', '$point', '2') AS t(a int)") foreach 1 .. 3;
	is($second->run("SELECT a FROM pgpool.query('$pool', '$point', '2') AS t(a int)"), '20', "$pool: another session receives the value");
	is(counter('cache_hits', $pool) > $hits ? 1 : 0, $pool eq 'never' ? 0 : 1, "$pool: another session uses the cache only if there was a reset");
}

# --- statements in flight, and fanouts
discard('cached');
sub send_on
{
	my ($lease, $sql, @values) = @_;
	my $list = join '', map { ", '$_'" } @values;

	$first->run("SELECT pgpool.send($lease, \$x\$$sql\$x\$$list)");
	return $first->run("SELECT a FROM pgpool.result($lease) AS t(a text)") . $first->error;
}
my $uses = q{SELECT sum(generic_plans + custom_plans) FROM pg_prepared_statements WHERE statement LIKE '%FROM t WHERE a = $1' -- now};
$lease = lease($first, 'cached');
is(join(',', map { send_on($lease, $point, $_) } 1 .. 4), '10,20,30,40', 'send: statements return their values');
cmp_ok(call($lease, $uses), '>=', 3, 'send: statement is prepared');
$first->run("SELECT pgpool.checkin($lease)");
$lease = lease($first, 'cached');
is(send_on($lease, $point, 5), '50', 'send: statement returns its value on the next lease');
remote_sql('ALTER TABLE t ALTER b TYPE int');
is(send_on($lease, $point, 6), '60', 'send: statement returns its value after its type has changed');
is(send_on($lease, $point, 7), '70', 'send: statement is prepared again');
like(send_on($lease, $point, 'x'), qr/22P02/, 'send: error of a parameter is raised');
is(send_on($lease, $point, 8), '80', 'send: statement is usable after the error');
$first->run("SELECT pgpool.exec($lease, 'BEGIN')");
remote_sql('ALTER TABLE t ALTER b TYPE bigint');
is(send_on($lease, $point, 9), '90', 'send: statement returns its value after its type has changed in a transaction');
$first->run("SELECT pgpool.exec($lease, 'COMMIT')");
is(send_on($lease, 'SELECT length($1)', 'x' x 100_000), '100000', 'send: large value is sent') foreach 1 .. 3;
$first->run("SELECT pgpool.send($lease, \$\$$point\$\$, '1')");
$first->run("SELECT pgpool.wait($lease); SELECT pgpool.checkin($lease)");
is(call('cached', $point, 2), '20', 'send: next lease returns its value after a result that was not read');

sub fanout
{
	my ($sql, @values) = @_;
	my $list = join '', map { ", '$_'" } @values;

	return $first->run("SELECT string_agg(a, ',' ORDER BY pool) FROM pgpool.fanout(ARRAY['cached', 'two'], \$x\$$sql\$x\$$list) AS t(pool text, a text)") . $first->error;
}
$second->run("SELECT pgpool.exec('two', 'DISCARD ALL')");
my $before = call('cached', $uses);
is(join(';', map { fanout($point, $_) } 1 .. 4), '10,10;20,20;30,30;40,40', 'fanout: statements return their values');
is(call('cached', $uses), $before + 4, 'fanout: prepared statement is used');
cmp_ok(call('two', $uses), '>=', 3, 'fanout: prepared statement is used on each server');
remote_sql('ALTER TABLE t ALTER b TYPE int');
is(fanout($point, 6), '60,60', 'fanout: statement returns its value after its type has changed');
is(fanout($point, 7), '70,70', 'fanout: statement is prepared again');
$first->run("SELECT a FROM pgpool.fanout(ARRAY['cached'], '$point', 'x') AS t(pool text, a text)");
$first->failed('22P02', qr/invalid input syntax/, 'fanout: error of a parameter is raised');
is(fanout($point, 8), '80,80', 'fanout: statement is usable after the error');
is(counter('closed_broken + closed_reset', 'two'), '0', 'no connection was lost');

# --- statements that are sent for a waiter
make_pool($local, $remote, server => 'turns', options => { pool_size => 1, statement_cache => 2 });
sub behind
{
	my ($pool, $before, $sql, @values) = @_;
	my $held = lease($second, $pool);
	my $list = join '', map { ", '$_'" } @values;
	my $pipelined = counter('pipelined', $pool);

	$second->run("SELECT pgpool.exec($held, \$x\$$_\$x\$)"), is($second->error, '', "before: $_") foreach @$before;
	$first->start("SELECT a FROM pgpool.query('$pool', \$x\$$sql\$x\$$list) AS t(a text)");
	wait_until($local, 'SELECT count(*) FROM pgpool.waiters', '1') or die 'no waiter';
	$second->run("SELECT pgpool.checkin($held)");
	my $result = $first->finish(30) . $first->error;

	is(counter('pipelined', $pool), $pipelined + 1, 'statement was pipelined');
	return $result;
}

is(behind('turns', ['SHOW work_mem'], $point, $_), 10 * $_, "waiter: execution $_ returns its value") foreach 1 .. 4;
is(counter('prepared', 'turns') . ' ' . counter('cache_hits', 'turns'), '1 2', 'waiter: second execution prepares the statement');
is(prepared('turns'), '1 0', 'waiter: statement stays prepared');
is(behind('turns', ['SET search_path = other', 'SET DateStyle = German'], $point, 5), '50', 'waiter: settings of the predecessor are reset');
is(behind('turns', ['SHOW work_mem'], $point, 5), '50', 'waiter: statement is prepared again');
is(behind('turns', ['SELECT pg_advisory_lock(7)', 'LISTEN trace', "SELECT run('SET ROLE lesser')"], q{SELECT concat_ws(',', (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM pg_listening_channels()), current_user) -- now}),
	'0,0,remote_app', 'waiter: statement finds no traces of the predecessor');
is(prepared('turns'), '1 0', 'waiter: statements stay prepared');
foreach my $n (1 .. 2)
{
	is(behind('turns', ['SHOW work_mem'], "SELECT $n + b FROM t WHERE a = \$1", 1), $n + 10, 'waiter: another statement returns its value') foreach 1 .. 2;
}
is(prepared('turns'), '2 0', 'waiter: number of statements is bounded');
like(behind('turns', ['SHOW work_mem'], 'SELECT 2 + b FROM t WHERE a = $1', 'x'), qr/22P02/, 'waiter: error of a parameter is raised');
is(behind('turns', ['SHOW work_mem'], 'SELECT 2 + b FROM t WHERE a = $1', 1), '12', 'waiter: statement is usable after the error');
remote_sql('ALTER TABLE t ALTER b TYPE numeric');
is(behind('turns', ['SHOW work_mem'], 'SELECT 2 + b FROM t WHERE a = $1', 1), '12', 'waiter: statement returns its value after its type has changed');
is(behind('turns', ['SHOW work_mem'], $point, 1), '10', 'waiter: statement is prepared again') foreach 1 .. 3;
is(behind('turns', ["SELECT run('DEALLOCATE ALL')"], $point, 1), '10', 'waiter: statement returns its value after it was deallocated');
is(behind('turns', ['SHOW work_mem'], $point, 1), '10', 'waiter: statement is prepared again') foreach 1 .. 3;
is(behind('turns', ['PREPARE mine AS SELECT 1'], $point, 1), '10', 'waiter: statement returns its value after the predecessor has prepared another one');
is(prepared('turns'), '1 0', 'waiter: statement that the predecessor has prepared drops all others');
is(behind('turns', ['SHOW work_mem'], $point, 1), '10', 'waiter: statement is prepared again') foreach 1 .. 3;
my $resets = counter('closed_broken', 'turns');
is(behind('turns', ["SELECT run('PREPARE mine AS SELECT 1')"], $point, 1), '10', 'waiter: reset fails, and the statement is executed on another connection');
is(counter('closed_broken + closed_reset', 'turns'), $resets + 1, 'waiter: connection was closed');
like(prepared('turns'), qr/ 0$/, 'waiter: statement that the predecessor has prepared is dropped');

# --- the option changes
discard('cached');
warm('cached');
my $remote_pid = call('cached', 'SELECT pg_backend_pid()');
$local->safe_psql('postgres', q{ALTER SERVER cached OPTIONS (SET statement_cache '0')});
is(call('cached', $point, 1), '10', 'statement returns its value while the cache is off') foreach 1 .. 3;
is(prepared('cached'), '0 0', 'prepared statements are dropped when the cache is off');
$local->safe_psql('postgres', q{ALTER SERVER cached OPTIONS (SET statement_cache '5')});
warm('cached');
is(call('cached', 'SELECT pg_backend_pid()'), $remote_pid, 'connection is kept when the cache is switched off and on');
foreach my $options ([ start_commands => 'PREPARE mine AS SELECT 1' ], [ reset_command => 'DEALLOCATE ALL' ])
{
	make_pool($local, $remote, server => $options->[0], options => { pool_size => 1, statement_cache => 20, @$options });
	is(join(',', map { call($options->[0], $point, $_) } 1 .. 3), '10,20,30', "$options->[0] with statements: calls return their values");
	is(prepared($options->[0]), $options->[0] eq 'start_commands' ? '0 1' : '0 0', "$options->[0] with statements: cache is off");
	is(counter('closed_broken + closed_reset', $options->[0]), '0', "$options->[0] with statements: no connection was lost");
}

# pgpool.result retries a statement that the remote server has refused. The session has
# cancelled it, and the cancel request reached the stopped remote session before the
# statement, so the retry must be cancelled again.
{
	my $lease = $first->run("SELECT pgpool.checkout('cached')");
	my $slow = 'SELECT b FROM t, pg_sleep($1::int) WHERE a = 1';

	call($lease, $slow, 0) foreach 1 .. 3;
	my $pid = call($lease, 'SELECT pg_backend_pid() -- now');
	remote_sql('ALTER TABLE t ALTER b TYPE text');
	kill 'STOP', $pid;
	$first->run("SELECT pgpool.send($lease, \$x\$$slow\$x\$, '20')");
	is($first->run("SELECT pgpool.cancel($lease)"), 't', 'statement in flight is cancelled');
	ok(wait_until($remote, sub { slurp_file("/proc/$pid/status") =~ /^ShdPnd:.*[2367abef]$/m ? 1 : 0 }, 1), 'SIGINT of the cancel request is pending');
	kill 'CONT', $pid;
	$first->run("SELECT a FROM pgpool.result($lease) AS t(a text)");
	$first->failed('57014', qr/canceling statement/, 'retry of a cancelled statement is cancelled');
	$first->run("SELECT pgpool.checkin($lease)");
}
is(counter('closed_broken + closed_holder_died', 'cached'), '0', 'no connection was lost');

$_->quit foreach $first, $second, $one, $two, $app;
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);
done_testing();
