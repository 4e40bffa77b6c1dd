# Pipelined hand-over to foreign tables: a scan that waits for its lease leaves its first
# statement, and the session that returns the connection sends it, behind the COMMIT of
# its own foreign tables and the reset. The statement runs in a clean session and in a
# transaction of its own, or not at all.
use strict;
use warnings;

use PgpxTest;
use Test::More;

my $remote = remote_node('remote');
my $local = local_node('local');

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
sub closed { return counted('closed', 'closed_broken + closed_reset + closed_holder_died') }

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
is(behind('SELECT n FROM ft.breaking', 'SELECT n FROM ft.logging'), '1', 'statement behind a failed COMMIT succeeds') or diag($second->error);
is(pipelined(), 1, 'statement behind a failed COMMIT was pipelined');
is(closed(), 1, 'connection of the failed COMMIT was closed');
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM app.children'), '0', 'transaction of the predecessor was rolled back');
is($remote->safe_psql('remote_db', 'SELECT count(*) FROM app.log'), '1', 'statement ran once');
my $tables = 'DO $d$BEGIN FOR i IN 1 .. 400 LOOP EXECUTE \'CREATE TEMP TABLE t\' || i || \' (a int)\'; END LOOP; END$d$';
is(behind("SELECT pgpool.checkout_xact('one') AS l \\gset\nSELECT pgpool.exec(:l, \$x\$$tables\$x\$); SELECT pgpool.exec(:l, 'SET statement_timeout = ''1 ms''')",
	'SELECT n FROM ft.logging'), '1', 'statement behind a failed reset succeeds') or diag($second->error);
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

# A statement that was sent belongs to its owner: it ends by cancel, timeout, terminate,
# the administrative function, the end of the worker, and the end of the remote session.
my $asleep = q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND usename = 'remote_app' AND state = 'active'};
my %ends = (
	cancel => [ sub { 'SELECT pg_cancel_backend(' . $_[0]->pid . ')' }, '57014' ],
	timeout => [ sub { 'SELECT 1' }, '57014', "SET statement_timeout = '8 s'; " ],
	terminate => [ sub { 'SELECT pg_terminate_backend(' . $_[0]->pid . ', 20000)' } ],
	revoke => [ sub { 'SELECT pgpool.terminate(lease) FROM pgpool.leases' }, 'PX001' ],
	worker => [ sub { 'SELECT pg_terminate_backend(pid, 20000) FROM pgpool.workers' }, '08006' ],
	remote => [ undef, '08006' ],
);
foreach my $how (sort keys %ends)
{
	my ($end, $sqlstate, $prepare) = @{ $ends{$how} };
	my $victim = PgpxSession->new($local);

	$victim->run($prepare) if $prepare;
	queue_behind($read, $victim, 'BEGIN; SAVEPOINT a; SELECT n FROM ft."pg_sleep(600)"');
	$first->run('COMMIT');
	is($first->error, '', "$how: predecessor has committed");
	wait_until($remote, $asleep, '1', 20, 'remote_db') if $how ne 'timeout';
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
		is($victim->run("ROLLBACK TO a; RESET statement_timeout; $read; COMMIT"), 'number 7', "$how: transaction continues")
		  or diag($victim->error);
	}
	is($third->run($read), 'number 7', "$how: next statement receives its own answer") or diag($third->error);
	$victim->quit;
}
$_->quit foreach $first, $second, $third;
is($local->safe_psql('postgres', 'SELECT count(*) FROM pgpool.leases'), '0', 'no lease is left');
stats_add_up($local);
check_invariants($local);
leak_check($local, $remote);

done_testing();
