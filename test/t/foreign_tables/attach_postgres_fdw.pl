# attach_postgres_fdw and detach_postgres_fdw: the privileges and the conditions of a call, and the
# affected sessions. DROP EXTENSION neither drops a table nor leaves one that cannot be used.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the test would be the same over TLS' if over_tls();

my $remote = remote_node('remote');
my $local = local_node('local', conf => ['pgpool_ext.default_pool_size = 3', 'lock_timeout = 0']);
my $attached = q{SELECT fdwhandler::regproc FROM pg_foreign_data_wrapper WHERE fdwname = 'postgres_fdw'};
my ($ours, $theirs) = ('pgpool.pgpool_fdw_handler', 'postgres_fdw_handler');

$remote->safe_psql('remote_db', <<'EOT');
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 10) AS i;
ALTER TABLE t OWNER TO remote_app;
EOT
make_pool($local, $remote, server => 'pool');
my $super = PgpxSession->new($local);

$super->fails('SELECT pgpool.attach_postgres_fdw()', '42704', qr/extension "postgres_fdw" is not installed.*HINT:.*CREATE EXTENSION/s,
	'attach fails without the extension postgres_fdw');
$super->fails('SELECT pgpool.detach_postgres_fdw()', '42704', qr/extension "postgres_fdw" is not installed/, 'detach fails without the extension postgres_fdw');
$super->run('CREATE FOREIGN DATA WRAPPER postgres_fdw');
$super->fails('SELECT pgpool.attach_postgres_fdw()', '42704', qr/not installed/, 'attach fails with a wrapper of the same name that is not the extension');
$super->run('DROP FOREIGN DATA WRAPPER postgres_fdw');

make_tables('postgres', '');
repeated();
privileges();
sessions_follow();
transactions_do_not_mix();
concurrent_calls();
uncommitted_tables();
remote_estimates();
drop_extension();
check_invariants($local);
leak_check($local, $remote);
done_testing();

# Extension, server and tables of postgres_fdw in a database; WITH SCHEMA ..
sub make_tables
{
	my ($dbname, $schema) = @_;
	my $port = $remote->port;

	$local->safe_psql($dbname, <<"EOT");
CREATE EXTENSION postgres_fdw $schema;
CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR PUBLIC SERVER far OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE FOREIGN TABLE far (id int, v text) SERVER far OPTIONS (schema_name 'public', table_name 't');
GRANT USAGE ON FOREIGN SERVER far TO PUBLIC;
GRANT SELECT, UPDATE ON far TO PUBLIC;
EOT
	return;
}

# Returns through which connections a session reads the table.
sub connections_of
{
	my ($session) = @_;

	# (an aggregate is executed by the server's handler, a scan by the one in the relation cache)
	my $rows = () = $session->run('SELECT id FROM far') =~ /^\d+$/mg;

	return $session->error if $rows ne '10';
	return $local->safe_psql('postgres', "SELECT count(*) FROM pgpool.pools WHERE server = 'far' AND total > 0") > 0 ? 'pool' : 'own';
}

sub repeated
{
	# event triggers see the command that both functions execute
	$super->run(<<'EOT');
CREATE TABLE commands (event text, tag text, object text);
CREATE FUNCTION at_start() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO commands VALUES (tg_event, tg_tag); END';
CREATE FUNCTION at_end() RETURNS event_trigger LANGUAGE plpgsql AS
	'BEGIN INSERT INTO commands SELECT tg_event, command_tag, object_identity FROM pg_event_trigger_ddl_commands(); END';
CREATE EVENT TRIGGER at_start ON ddl_command_start EXECUTE FUNCTION at_start();
CREATE EVENT TRIGGER at_end ON ddl_command_end WHEN TAG IN ('ALTER FOREIGN DATA WRAPPER') EXECUTE FUNCTION at_end();
EOT
	foreach my $function (qw(attach detach))
	{
		is($super->run("TRUNCATE commands; SELECT pgpool.${function}_postgres_fdw(); SELECT * FROM commands"),
			"t\nddl_command_start|ALTER FOREIGN DATA WRAPPER|\nddl_command_end|ALTER FOREIGN DATA WRAPPER|postgres_fdw", "event triggers are fired by $function");
	}
	$super->run('DROP EVENT TRIGGER at_start; DROP EVENT TRIGGER at_end; DROP FUNCTION at_start; DROP FUNCTION at_end; DROP TABLE commands');

	is($super->run('SELECT pgpool.detach_postgres_fdw()') . $super->error, 'f', 'detach returns false if postgres_fdw is not attached');
	is($super->run('SELECT pgpool.attach_postgres_fdw()') . $super->error, 't', 'attach succeeds without PostgreSQL\'s warning of a new handler');
	is($super->run($attached), $ours, q{wrapper has the pool's handler});
	is($super->run('SELECT pgpool.attach_postgres_fdw()') . $super->error, 'f', 'second attach returns false');
	is($super->run('SELECT pgpool.detach_postgres_fdw()') . $super->error, 't', 'detach succeeds');
	is($super->run($attached), $theirs, 'wrapper has its former handler');
	is($super->run('BEGIN; SELECT pgpool.attach_postgres_fdw(); SHOW client_min_messages; SHOW log_min_messages; ROLLBACK; ' . $attached), "t\nnotice\nwarning\n$theirs",
		'attach changes no setting, and rollback undoes it');
	return;
}

sub privileges
{
	my $app = PgpxSession->new($local, user => 'app');

	foreach my $what (qw(attach detach))
	{
		$app->fails("SELECT pgpool.${what}_postgres_fdw()", '42501', qr/permission denied for function/, "$what cannot be executed by PUBLIC");
		$super->run("GRANT EXECUTE ON FUNCTION pgpool.${what}_postgres_fdw() TO app");
		$app->fails("SELECT pgpool.${what}_postgres_fdw()", '42501', qr/permission denied to $what .*DETAIL:  Only superusers/s,
			'EXECUTE is not enough: only a superuser can attach and detach');
		$super->run("REVOKE EXECUTE ON FUNCTION pgpool.${what}_postgres_fdw() FROM app");
	}
	$super->fails('BEGIN READ ONLY; SELECT pgpool.attach_postgres_fdw()', '25006', qr/attach_postgres_fdw/, 'attach is refused in a READ ONLY transaction');
	$super->run('ROLLBACK');
	$app->quit;
	return;
}

# A session that has used a table and has plans for it.
sub sessions_follow
{
	my $app = PgpxSession->new($local, user => 'app');

	$app->run('PREPARE p AS SELECT v FROM far WHERE id = $1; SET plan_cache_mode = force_generic_plan');
	is($app->run('EXECUTE p (3)'), 'row 3', 'prepared statement reads a table of postgres_fdw');
	is(connections_of($app), 'own', 'postgres_fdw uses its own connection');
	$super->run('SELECT pgpool.attach_postgres_fdw()');
	is($app->run('EXECUTE p (4)') . $app->error, 'row 4', 'prepared statement works after attach');
	is(connections_of($app), 'pool', 'prepared statement uses the pool');
	$super->run('SELECT pgpool.detach_postgres_fdw()');
	is($app->run('EXECUTE p (5)') . $app->error, 'row 5', 'prepared statement works after detach');
	is($local->safe_psql('postgres', "SELECT count(*) FROM pgpool.leases"), '0', 'no lease is left after detach');
	my $before = $local->safe_psql('postgres', "SELECT checkouts FROM pgpool.stats WHERE server = 'far'");

	my $rows = () = $app->run('SELECT id FROM far') =~ /^\d+$/mg;

	is($rows . $app->error, '10', 'detached table can be read');
	is($local->safe_psql('postgres', "SELECT checkouts FROM pgpool.stats WHERE server = 'far'"), $before, 'detached table does not use the pool');
	$app->quit;
	return;
}

# A transaction that has used a table ends as it began.
sub transactions_do_not_mix
{
	my $app = PgpxSession->new($local, user => 'app');
	my $waits = q{SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'far'::regclass};

	foreach my $what (qw(attach detach))
	{
		$app->run("BEGIN; UPDATE far SET v = 'written' WHERE id = 1");
		$super->start("SELECT pgpool.${what}_postgres_fdw()");
		ok(wait_until($local, $waits, '1'), "$what waits for a transaction that has used a table");
		is($app->run('SELECT v FROM far WHERE id = 1') . $app->error, 'written', 'transaction sees its own changes meanwhile');
		is($app->run("ROLLBACK") . $app->error, '', 'transaction is rolled back');
		is($super->finish . $super->error, 't', "$what succeeds after the transaction");

		$super->fails("BEGIN; SELECT count(*) FROM far; SELECT pgpool." . ($what eq 'attach' ? 'detach' : 'attach') . '_postgres_fdw()',
			'55006', qr/transaction that uses its foreign tables.*"far" is in use/s, 'attach and detach are refused in a transaction that has used a table');
		$super->run('ROLLBACK');
	}
	$app->quit;
	return;
}

# Of two sessions the second one waits; DROP EXTENSION of another session waits as well.
sub concurrent_calls
{
	my $other = PgpxSession->new($local);
	my $waits = 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $other->pid;

	foreach my $what (qw(attach detach))
	{
		$super->run("BEGIN; SELECT pgpool.${what}_postgres_fdw()");
		$other->start("SELECT pgpool.${what}_postgres_fdw()");
		ok(wait_until($local, $waits, '1'), "second $what waits for the first one");
		$super->run('COMMIT');
		is($other->finish . $other->error, 'f', "second $what finds nothing to do");
	}
	$super->run('BEGIN; SELECT pgpool.attach_postgres_fdw()');
	$other->start('DROP EXTENSION pgpool_ext CASCADE');
	ok(wait_until($local, $waits, '1'), 'DROP EXTENSION waits for attach');
	$super->run('COMMIT');
	$other->finish;
	$other->failed('2BP01', qr/cannot drop extension pgpool_ext/, 'DROP EXTENSION is refused after attach');
	is($super->run("$attached; SELECT pgpool.detach_postgres_fdw()"), "$ours\nt", 'wrapper has the handler of the extension after DROP EXTENSION was refused');
	$super->run('BEGIN; SELECT pgpool.attach_postgres_fdw()');
	$other->start('DROP EXTENSION postgres_fdw');
	ok(wait_until($local, $waits, '1'), 'DROP EXTENSION postgres_fdw waits for attach');
	$super->run('COMMIT');
	$other->finish;
	$other->failed('2BP01', qr/other objects depend on it/, 'DROP EXTENSION postgres_fdw spares its tables');
	$other->start('BEGIN; SET client_min_messages = error; DROP EXTENSION postgres_fdw CASCADE');
	$other->finish;
	$super->start('SELECT pgpool.detach_postgres_fdw()');
	ok(wait_until($local, 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $super->pid, '1'), 'detach waits for DROP EXTENSION postgres_fdw');
	$other->run('ROLLBACK');
	is($super->finish . $super->error, 't', 'detach succeeds after the rollback of DROP EXTENSION');
	$other->quit;
	return;
}

# A table that is not committed yet is found, too.
sub uncommitted_tables
{
	my $app = PgpxSession->new($local);
	my $port = $remote->port;
	my $waits = q{SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'};
	my $table = "CREATE FOREIGN TABLE new_far (id int, v text) SERVER %s OPTIONS (schema_name 'public', table_name 't')";
	my $blocked = PgpxSession->new($local);

	$app->run('BEGIN; ' . sprintf($table, 'far') . "; UPDATE new_far SET v = 'written' WHERE id = 1");
	$super->start('SELECT pgpool.attach_postgres_fdw()');
	ok(wait_until($local, $waits, '1'), 'attach waits for a table that is not committed');
	is($app->run('CREATE FOREIGN TABLE another (id int) SERVER far; SELECT v FROM new_far WHERE id = 1') . $app->error, 'written',
		'creator of the table sees its own changes, and can create another table');
	$app->run('COMMIT');
	is($super->finish . $super->error, 't', 'attach succeeds after the commit');
	is($app->run("BEGIN; UPDATE new_far SET v = 'row 1' WHERE id = 1; SELECT count(*) FROM pgpool.leases WHERE scope = 'fdw'; COMMIT") . $app->error, '1',
		'new table uses the pool');

	# a server of the same transaction
	$app->run("BEGIN; CREATE SERVER new_far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');"
		  . "CREATE USER MAPPING FOR PUBLIC SERVER new_far OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');"
		  . sprintf($table, 'new_far') =~ s/new_far/newer_far/r);
	$super->start('SELECT pgpool.detach_postgres_fdw()');
	ok(wait_until($local, 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $super->pid, '1'),
		'detach waits for a table of a server that is not committed');
	$app->run('ROLLBACK');
	is($super->finish . $super->error, 't', 'detach succeeds after the rollback');

	# no table is created between the function and its commit
	is($super->run('BEGIN; SELECT pgpool.attach_postgres_fdw()') . $super->error, 't', 'attach succeeds');
	$blocked->start('CREATE FOREIGN TABLE late (id int) SERVER far');
	ok(wait_until($local, q{SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pg_foreign_table'::regclass}, '1'),
		'CREATE FOREIGN TABLE waits for the end of the transaction that attaches');
	$super->run('ROLLBACK');
	$blocked->finish;
	is($blocked->error, '', 'table is created after the rollback of attach');
	$super->run('DROP FOREIGN TABLE late, new_far, another');
	$_->quit foreach $app, $blocked;
	return;
}

# With use_remote_estimate postgres_fdw plans on a connection of its own.
sub remote_estimates
{
	my $refused = qr/cannot truncate a foreign table of server "far" and use option "use_remote_estimate" in one transaction/;
	my $app = PgpxSession->new($local);

	$remote->safe_psql('remote_db', 'CREATE TABLE u (id int); ALTER TABLE u OWNER TO remote_app');
	$super->run("CREATE FOREIGN TABLE u (id int) SERVER far OPTIONS (schema_name 'public', use_remote_estimate 'on')");
	is($super->run('SELECT pgpool.attach_postgres_fdw()'), 't', 'postgres_fdw with use_remote_estimate is attached');
	$app->run("SET statement_timeout = '60s'");
	my $offset = -s $local->logfile;
	is($app->run('SELECT count(*) FROM u') . $app->error, '0', 'table with use_remote_estimate is read through the pool');
	$app->run('SELECT count(*) FROM u');
	is(scalar(() = slurp_file($local->logfile, $offset) =~ /LOG: .*cannot plan queries of foreign table "u" on its pool/g), 1, 'each session logs use_remote_estimate once');
	$app->fails('BEGIN; TRUNCATE u; SELECT * FROM u', '0A000', $refused, 'estimate after TRUNCATE is refused instead of waiting for its own transaction');
	$app->run('ROLLBACK');
	$app->fails('BEGIN; SELECT * FROM u; TRUNCATE u', '0A000', $refused, 'TRUNCATE after an estimate is refused instead of waiting for its own transaction');
	$app->run('ROLLBACK');
	is($app->run('TRUNCATE u; SELECT count(*) FROM u') . $app->error, '0', 'TRUNCATE and an estimate succeed in transactions of their own');
	is($app->run('BEGIN; SELECT id FROM far WHERE id = 2; TRUNCATE u; SELECT id FROM far WHERE id = 3; ROLLBACK') . $app->error, "2\n3",
		'tables without use_remote_estimate are not affected');
	$app->quit;
	$super->run('DROP FOREIGN TABLE u; SELECT pgpool.detach_postgres_fdw()');
	return;
}

sub drop_extension
{
	my $refused = qr/cannot drop extension pgpool_ext while .*postgres_fdw is attached.*HINT:.*pgpool\.detach_postgres_fdw/s;
	my $there = q{SELECT count(*) FROM pg_extension WHERE extname IN ('pgpool_ext', 'postgres_fdw')};

	$super->run('BEGIN; CREATE FOREIGN DATA WRAPPER own HANDLER pgpool.pgpool_fdw_handler');
	$super->fails('DROP EXTENSION pgpool_ext CASCADE', '2BP01', qr/while foreign-data wrapper own is attached.*HINT:  Drop the wrapper first/s,
		'hint for a wrapper of the user does not name detach_postgres_fdw');
	$super->run('ROLLBACK');
	is($super->run("SELECT pgpool.attach_postgres_fdw()"), 't', 'postgres_fdw is attached');
	$super->fails('DROP EXTENSION pgpool_ext', '2BP01', qr/other objects depend on it/, 'DROP EXTENSION is refused while postgres_fdw is attached');
	foreach my $extensions ('pgpool_ext', 'postgres_fdw, pgpool_ext', 'pgpool_ext, postgres_fdw')
	{
		$super->fails("DROP EXTENSION $extensions CASCADE", '2BP01', $refused, "DROP EXTENSION $extensions CASCADE is refused as well");
	}
	$super->run('CREATE ROLE owner SUPERUSER; SET allow_system_table_mods = on');
	$super->run("UPDATE pg_extension SET extowner = 'owner'::regrole WHERE extname = 'pgpool_ext'");
	$super->run(q{UPDATE pg_shdepend SET refobjid = 'owner'::regrole WHERE classid = 'pg_extension'::regclass
		AND objid = (SELECT oid FROM pg_extension WHERE extname = 'pgpool_ext')});
	$super->run(q{INSERT INTO pg_shdepend SELECT d.oid, 'pg_extension'::regclass, e.oid, 0, 'pg_authid'::regclass, 'owner'::regrole, 'o'
		FROM pg_database d, pg_extension e WHERE datname = current_database() AND extname = 'pgpool_ext'
			AND NOT EXISTS (SELECT FROM pg_shdepend WHERE classid = 'pg_extension'::regclass AND objid = e.oid)});
	$super->fails('DROP OWNED BY owner CASCADE', '2BP01', $refused, q{DROP OWNED of the extension's owner is refused as well});
	is($super->run("$there; SELECT count(*) FROM far"), "2\n10", 'extensions and tables are kept');

	is($super->run("BEGIN; DROP EXTENSION postgres_fdw CASCADE; SELECT count(*) FROM pg_foreign_table; DROP EXTENSION pgpool_ext CASCADE; $there; ROLLBACK")
		  . ($super->error =~ /ERROR.*/ ? $& : ''), "0\n0", 'attached postgres_fdw can be dropped, and pgpool_ext after it');
	is($super->run("BEGIN; SELECT pgpool.detach_postgres_fdw(); DROP EXTENSION pgpool_ext CASCADE; SELECT count(*) FROM far; ROLLBACK")
		  . ($super->error =~ /ERROR.*/ ? $& : ''), "t\n10", 'pgpool_ext can be dropped after detach, and the tables stay');
	is($super->run($attached), $ours, 'rollback leaves postgres_fdw attached');
	return;
}
