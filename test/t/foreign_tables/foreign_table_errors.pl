# Errors of foreign tables, and the commands that they send beside their statements.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote', conf => ["session_preload_libraries = 'auto_explain'", 'auto_explain.log_min_duration = 0', 'auto_explain.log_analyze = on', 'auto_explain.log_timing = off' ]);
my $local = local_node('local');

# ---------- errors
# Foreign tables with missing mappings, privileges or remote tables, an unavailable pool
# or a revoked lease, and statements that are cancelled in each state: the error is
# clear, the statement leaves nothing on the remote server, and the next statement
# works.
{
	$remote->safe_psql('remote_db', <<'EOT');
CREATE ROLE remote_other LOGIN PASSWORD 'of the other';
SET ROLE remote_app;
CREATE TABLE items (id int PRIMARY KEY, v text, who text DEFAULT current_user);
CREATE TABLE fewer (id int);
CREATE TABLE other_types (id text, v int);
CREATE TABLE renamed (id int, w text);
CREATE TABLE wider (id bigint, v text, extra text DEFAULT 'x', required int NOT NULL DEFAULT 1);
CREATE TABLE slow (id int);
CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NEW; END';
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sleep();
GRANT SELECT, INSERT, UPDATE, DELETE ON items TO remote_other;
INSERT INTO other_types VALUES ('one', 2);
EOT
	make_pool($local, $remote, server => 'shard',
		options => { pool_size => 2, checkout_timeout => '20s', retry_max => '100ms', operation_timeout => '5s' });
	$local->safe_psql('postgres', <<'EOT');
CREATE ROLE nobody_here LOGIN;
CREATE ROLE writer LOGIN;
CREATE USER MAPPING FOR writer SERVER shard OPTIONS (user 'remote_other', password 'of the other');
CREATE FOREIGN TABLE items (id int, v text) SERVER shard OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE missing (id int, v text) SERVER shard OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE fewer (id int, v text) SERVER shard OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE other_types (id int, v text) SERVER shard OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE renamed (id int, v text) SERVER shard OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE wider (id int, v text) SERVER shard OPTIONS (schema_name 'public');
CREATE FOREIGN TABLE slow (id int) SERVER shard OPTIONS (schema_name 'public');
GRANT SELECT, INSERT, UPDATE, DELETE ON items TO nobody_here, writer;
CREATE VIEW writers_view AS SELECT * FROM items;
ALTER VIEW writers_view OWNER TO writer;
CREATE VIEW invokers_view WITH (security_invoker) AS SELECT * FROM items;
GRANT SELECT, INSERT, UPDATE, DELETE ON writers_view, invokers_view TO nobody_here;
CREATE ROLE owner_here LOGIN;
GRANT USAGE ON FOREIGN SERVER shard TO owner_here;
GRANT CREATE ON SCHEMA public TO owner_here;
GRANT pg_execute_server_program TO owner_here;
CREATE FOREIGN TABLE items_of_owner (id int, v text) SERVER shard OPTIONS (schema_name 'public', table_name 'items');
ALTER FOREIGN TABLE items_of_owner OWNER TO owner_here;
CREATE VIEW owners_view AS SELECT * FROM items_of_owner;
ALTER VIEW owners_view OWNER TO owner_here;
GRANT SELECT, INSERT ON owners_view TO writer;
CREATE SCHEMA imported;
EOT

	my $session = PgpxSession->new($local);
	my $other = PgpxSession->new($local);
	my $busy = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('remote_app', 'remote_other') AND state <> 'idle'";

	sub remote_value
	{
		return $remote->safe_psql('remote_db', $_[0]);
	}

	# Assert that no lease and no remote transaction is left, that $rows rows exist, and that
	# the session can continue.
	sub recovers
	{
		my ($name, $rows) = @_;

		$session->run('ROLLBACK');
		ok(wait_until($local, 'SELECT count(*) FROM pgpool.leases', '0') && wait_until($remote, $busy, '0'),
			"$name: no lease and no remote transaction is left");
		is(remote_value('SELECT count(*) FROM items'), $rows // 0, "$name: no row was written");
		is($session->run("BEGIN; INSERT INTO items VALUES (-1, 'next'); SELECT count(*) FROM items; ROLLBACK") . $session->error,
			($rows // 0) + 1, "$name: next statement works");
		return;
	}

	# Mappings and rights
	my $unmapped = PgpxSession->new($local, user => 'nobody_here');
	foreach my $sql ('SELECT * FROM items', "INSERT INTO items VALUES (1, 'x')", 'UPDATE items SET id = 1',
		'DELETE FROM items WHERE random() < 2', "INSERT INTO invokers_view VALUES (1, 'x')")
	{
		$unmapped->fails($sql, '42704', qr/user mapping not found|no user mapping/i, "statement fails without a mapping: $sql");
	}
	$unmapped->fails('INSERT INTO missing VALUES (1)', '42501', qr/permission denied for foreign table missing/, 'write without a privilege on the table fails');
	$unmapped->fails('TRUNCATE items', '42501', qr/permission denied/, 'TRUNCATE without the privilege fails');
	is($unmapped->run("INSERT INTO writers_view VALUES (2, 'through the view') RETURNING v") . $unmapped->error,
		'through the view', "view uses its owner's mapping");
	is(remote_value('SELECT who FROM items WHERE id = 2'), 'remote_other', q{view uses its owner's remote user});
	is($unmapped->run("UPDATE writers_view SET v = 'u' WHERE id = 2 RETURNING v; UPDATE writers_view SET v = v || 'v' WHERE random() < 2 RETURNING v")
		  . $unmapped->error, "u\nuv", 'view can be updated, with and without push-down');
	is($unmapped->run('DELETE FROM writers_view WHERE random() < 2 RETURNING id') . $unmapped->error, '2', q{view's rows can be deleted});
	my $owner = PgpxSession->new($local, user => 'owner_here');
	foreach my $sql ('SELECT a.id FROM items_of_owner a JOIN items_of_owner b USING (id)', 'TRUNCATE items_of_owner', 'ANALYZE items_of_owner',
		"COPY items_of_owner FROM PROGRAM 'echo 1,x' CSV", 'IMPORT FOREIGN SCHEMA public LIMIT TO (fewer) FROM SERVER shard INTO public')
	{
		$owner->fails($sql, '42704', qr/user mapping not found|no user mapping/i, "statement fails without a mapping: $sql");
	}
	like($owner->run('EXPLAIN SELECT * FROM items_of_owner') . $owner->error, qr/^Foreign Scan/, 'EXPLAIN needs no mapping');
	$owner->quit;
	my $writer = PgpxSession->new($local, user => 'writer');
	foreach my $sql ('SELECT * FROM owners_view', "INSERT INTO owners_view VALUES (1, 'x')")
	{
		$writer->fails($sql, '42704', qr/user mapping not found|no user mapping/i, "statement fails without a mapping of the view's owner: $sql");
	}
	is($writer->run("INSERT INTO items VALUES (3, 'w') RETURNING v; DELETE FROM items RETURNING id") . $writer->error,
		"w\n3", 'privilege on the table is enough, without USAGE on the server');
	$local->safe_psql('postgres', 'GRANT CREATE ON SCHEMA imported TO writer');
	foreach my $sql ('CREATE FOREIGN TABLE imported.t (a int) SERVER shard', 'IMPORT FOREIGN SCHEMA public FROM SERVER shard INTO imported')
	{
		$writer->fails($sql, '42501', qr/permission denied for foreign server shard/, "statement fails without USAGE on the server: $sql");
	}
	$local->safe_psql('postgres', 'ALTER USER MAPPING FOR writer SERVER shard OPTIONS (SET password \'wrong\')');
	$writer->fails("INSERT INTO items VALUES (3, 'w')", '08001', qr/password authentication failed/, 'wrong password is refused');
	$local->safe_psql('postgres', 'ALTER USER MAPPING FOR writer SERVER shard OPTIONS (DROP password)');
	$writer->fails("INSERT INTO items VALUES (3, 'w')", '2F003', qr/password/, 'missing password is refused');
	$local->safe_psql('postgres', 'DROP USER MAPPING FOR writer SERVER shard');
	$writer->fails("INSERT INTO items VALUES (3, 'w')", '42704', qr/user mapping/, 'dropped mapping is an error');
	recovers('mappings and rights');

	# Remote tables of another shape
	my %shapes = (
		missing => [ '42P01', '42P01', '42P01', '42P01' ],
		fewer => [ '42703', '42703', '42703', '42703' ],
		renamed => [ '42703', '42703', '42703', '42703' ],
		other_types => [ '22P02', '22P02', '42883', '42883' ]);
	foreach my $table (sort keys %shapes)
	{
		my @states = @{ $shapes{$table} };

		foreach my $sql ("SELECT * FROM $table", "INSERT INTO $table VALUES (1, 'x')",
			"UPDATE $table SET v = 'y' WHERE id = 1", "DELETE FROM $table WHERE id = 1 AND v = 'x'")
		{
			my $state = shift @states;

			$session->fails("BEGIN; INSERT INTO items VALUES (5, 'before'); $sql", $state, qr/ERROR/, "$table: statement fails: $sql");
			$session->run('ROLLBACK');
		}
	}
	foreach my $case ([ 'TRUNCATE missing', '42P01' ], [ "COPY missing FROM PROGRAM 'echo 1,x' CSV", '42P01' ], [ 'ANALYZE missing', '42P01' ],
		[ "COPY fewer FROM PROGRAM 'echo 1,x' CSV", '42703' ], [ 'ANALYZE renamed', '42703' ], [ 'ANALYZE other_types', '22P02' ], [ 'SELECT * FROM renamed FOR UPDATE', '42703' ],
		[ 'SELECT * FROM items JOIN fewer USING (v)', '42703' ], [ 'IMPORT FOREIGN SCHEMA no_schema FROM SERVER shard INTO imported', 'HV00Q' ])
	{
		my ($sql, $state) = @$case;

		$session->fails("BEGIN; INSERT INTO items VALUES (5, 'before'); $sql", $state, qr/ERROR/, "statement on a table of another shape fails: $sql");
		$session->run('ROLLBACK');
	}
	is($session->run("INSERT INTO wider VALUES (1, 'w') RETURNING *; UPDATE wider SET v = v || 'x' WHERE random() < 2 RETURNING v; SELECT * FROM wider")
		  . $session->error, "1|w\nwx\n1|wx", 'remote table with more columns works');
	remote_value('UPDATE wider SET id = 5000000000');
	$session->fails('SELECT * FROM wider', '22003', qr/out of range for type integer/, 'value out of range is an error');
	$session->fails("DELETE FROM wider RETURNING id", '22003', qr/out of range for type integer/, 'returned value out of range is an error');
	is(remote_value('SELECT count(*) FROM wider'), '1', 'row is not deleted');
	recovers('shapes');

	# the remote table changes while a statement is prepared there
	$session->run("BEGIN; SAVEPOINT a; INSERT INTO items VALUES (5, 'x') RETURNING *; INSERT INTO items VALUES (6, 'x') RETURNING *;"
		  . " INSERT INTO items VALUES (7, 'x') RETURNING *; ROLLBACK TO a");
	ok(wait_until($remote, sub { eval { remote_value("SET lock_timeout = '1s'; ALTER TABLE items ALTER v TYPE varchar(10)"); 1 } ? 1 : 0 }, '1'),
		'rollback to a savepoint releases the locks');
	is($session->run("INSERT INTO items VALUES (8, 'x') RETURNING *") . $session->error, '8|x', 'prepared statement survives a change of the table');
	$session->run('ROLLBACK');
	remote_value('ALTER TABLE items ALTER v TYPE text');
	recovers('prepared statement');

	# The pool cannot serve
	$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (SET checkout_timeout '300ms')");
	$local->safe_psql('postgres', "SELECT pgpool.pause('shard')");
	$session->fails("INSERT INTO items VALUES (1, 'x')", '55P03', qr/timeout/, 'write to a paused pool times out');
	$session->fails("SELECT count(*) FROM items", '55P03', qr/timeout/, 'read from a paused pool times out');
	my @utilities = ('TRUNCATE items', 'ANALYZE items', "COPY items FROM PROGRAM 'echo 1,x' CSV", 'IMPORT FOREIGN SCHEMA public LIMIT TO (fewer) FROM SERVER shard INTO imported');
	$session->fails($_, '55P03', qr/timeout/, "statement on a paused pool times out: $_") foreach @utilities;
	$local->safe_psql('postgres', "SELECT pgpool.resume('shard')");
	recovers('paused');
	$session->run('BEGIN; SELECT count(*) FROM items');
	lease($other, 'shard');
	my $third = PgpxSession->new($local);
	$third->fails("INSERT INTO items VALUES (1, 'x')", '55P03', qr/timeout/, 'statement times out if all connections are leased');
	$third->quit;
	is($session->run("INSERT INTO items VALUES (1, 'x') RETURNING id; ROLLBACK") . $session->error, '1', 'transaction that has a connection continues');
	$other->run('SELECT pgpool.checkin_all()');
	recovers('full');
	$local->safe_psql('postgres', "ALTER SERVER shard OPTIONS (SET checkout_timeout '20s')");
	$remote->stop('immediate');
	ok(wait_until($local, "SELECT count(*) FROM pgpool.connections WHERE server = 'shard' AND state IN ('idle', 'reset_pending')", 0), 'worker notices the end of the connections');
	$session->fails("INSERT INTO items VALUES (1, 'x')", '08001', qr/could not connect/, 'statement fails while the remote server is down');
	$session->fails($_, '08001', qr/could not connect/, "statement fails while the remote server is down: $_") foreach @utilities, 'SELECT * FROM items';
	$remote->start;
	recovers('down');

	# A lease ends in the middle
	sub end_lease
	{
		$local->safe_psql('postgres', 'SELECT pgpool.terminate(lease) FROM pgpool.leases');
		return;
	}

	remote_value(q{INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 5000) i});
	my $cursor = 'BEGIN; DECLARE c CURSOR FOR SELECT * FROM items; MOVE 10 IN c';
	$session->run($cursor);
	end_lease();
	$session->fails('MOVE ALL IN c', 'PX001', qr/was terminated/, 'lease is terminated in the middle of a scan');
	recovers('scan', 5000);
	my $inner = 'BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT * FROM items a JOIN (SELECT * FROM items WHERE random() >= 0) b USING (id); MOVE 10 IN c';
	$session->run($inner);
	end_lease();
	$session->fails('COMMIT', 'PX001', qr/was terminated/, 'lease is terminated before a cursor WITH HOLD is read to its end');
	recovers('held cursor', 5000);
	$session->run("$cursor; UPDATE items SET v = 'changed' WHERE id < 100");
	end_lease();
	$session->fails('COMMIT', 'PX001', qr/was terminated/, 'lease is terminated before the commit');
	recovers('commit', 5000);
	is(remote_value("SELECT count(*) FROM items WHERE v = 'changed'"), '0', 'terminated transaction has changed nothing');
	$session->run("BEGIN; INSERT INTO items VALUES (6001, 'a'); SAVEPOINT a");
	end_lease();
	$session->fails("INSERT INTO items VALUES (6002, 'b')", 'PX001', qr/was terminated/, 'lease is terminated between two statements');
	$session->run('ROLLBACK TO a');
	$session->fails("INSERT INTO items VALUES (6003, 'b')", 'PX001', qr/was terminated/, 'savepoint does not restore a terminated lease');
	$session->run('ROLLBACK TO a');
	$session->fails('COMMIT', 'PX001', qr/was terminated/, 'commit with a terminated lease fails');
	recovers('savepoint', 5000);

	# A cancel in each state: $reached is what wait_until must see before the cancel.
	sub cancels
	{
		my ($name, $sql, $reached, %args) = @_;

		$session->start($sql);
		ok(wait_until(@$reached), "$name: statement has reached the state");
		$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
		$session->finish;
		$session->failed('57014', qr/canceling statement due to user request/, "$name: statement is cancelled");
		$args{after}->() if $args{after};
		recovers($name, 5000);
		return;
	}

	my $locker = PgpxSession->new($remote, dbname => 'remote_db');
	my $waits = [ $remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND wait_event_type = 'Lock'", '1' ];
	my $unlock = sub { $locker->run('ROLLBACK') };

	$local->safe_psql('postgres', "SELECT pgpool.pause('shard')");
	cancels('wait for a connection', "INSERT INTO items VALUES (7001, 'x')", [ $local, 'SELECT count(*) FROM pgpool.waiters', '1' ],
		after => sub { $local->safe_psql('postgres', "SELECT pgpool.resume('shard')") });
	foreach my $sql ("INSERT INTO items VALUES (7001, 'x')", "INSERT INTO items VALUES (7001, 'x') RETURNING *",
		'DELETE FROM items', "UPDATE items SET v = 'x' RETURNING id", 'TRUNCATE items', 'SELECT * FROM items',
		"BEGIN; INSERT INTO slow VALUES (1); SAVEPOINT a; INSERT INTO items VALUES (7001, 'x')", 'ANALYZE items', "COPY items FROM PROGRAM 'echo 7001,x' CSV",
		'BEGIN; DECLARE c CURSOR FOR SELECT * FROM items; FETCH 1 FROM c', 'SELECT * FROM items WHERE id < 10 FOR UPDATE')
	{
		$locker->run('BEGIN; LOCK TABLE items');
		cancels($sql, $sql, $waits, after => $unlock);
	}
	cancels('commit', 'BEGIN; INSERT INTO slow VALUES (1); COMMIT',
		[ $remote, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'remote_app' AND wait_event = 'PgSleep'", '1' ]);
	is(remote_value('SELECT count(*) FROM slow'), '0', 'cancelled commit writes nothing');

	# between two rows of a statement
	$session->start("INSERT INTO items SELECT i, 'slow' FROM generate_series(8001, 8100) i, LATERAL (SELECT pg_sleep(CASE WHEN i > 8050 THEN 600 ELSE 0 END)) s");
	ok(wait_until($local, "SELECT count(*) FROM pg_stat_activity WHERE pid = " . $session->pid . " AND wait_event = 'PgSleep'", '1'), 'some rows are written');
	end_lease();
	$local->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->finish;
	$session->failed('57014', qr/canceling statement/, 'statement can be cancelled after its lease was terminated');
	recovers('between two rows', 5000);

	# --- roles: the mapping of the user that executes the statement, or of the owner of the
	# view or function
	$remote->safe_psql('remote_db', <<'EOT');
CREATE ROLE remote_alice LOGIN PASSWORD 'of alice';
CREATE ROLE remote_bob LOGIN PASSWORD 'of bob';
CREATE VIEW me AS SELECT current_user::text AS who, pg_backend_pid() AS pid;
CREATE VIEW pids AS SELECT pg_backend_pid() AS pid FROM generate_series(1, 2);
CREATE TABLE documents (owner text, secret int);
INSERT INTO documents VALUES ('alice', 1), ('bob', 0);
GRANT SELECT ON me, pids, documents TO PUBLIC;
EOT
	$local->safe_psql('postgres', <<'EOT');
CREATE ROLE alice LOGIN;
CREATE ROLE bob LOGIN;
CREATE USER MAPPING FOR alice SERVER shard OPTIONS (user 'remote_alice', password 'of alice');
CREATE USER MAPPING FOR bob SERVER shard OPTIONS (user 'remote_bob', password 'of bob');
CREATE FOREIGN TABLE me (who text, pid int) SERVER shard OPTIONS (schema_name 'public');
CREATE TABLE documents (owner text, secret int) PARTITION BY LIST (owner);
CREATE FOREIGN TABLE remote_documents PARTITION OF documents DEFAULT SERVER shard OPTIONS (schema_name 'public', table_name 'documents');
ALTER TABLE documents ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON documents USING (owner = current_user);
CREATE VIEW own_documents WITH (security_barrier) AS SELECT * FROM remote_documents WHERE owner = current_user;
CREATE FUNCTION leaks(int) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE NOTICE 'secret %', $1; RETURN true; END $$;
CREATE FUNCTION who_is_bob() RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT who FROM me';
ALTER FUNCTION who_is_bob() OWNER TO bob;
GRANT SELECT ON me, documents, own_documents TO alice, bob;
EOT
	my $alice = PgpxSession->new($local, user => 'alice');

	foreach my $table (qw(documents own_documents))
	{
		is($alice->run("SELECT owner FROM $table WHERE leaks(secret)"), 'alice', "$table: rows of other users are not visible");
		unlike($alice->error, qr/secret 0/, "$table: function does not see rows of other users");
	}
	is($alice->run('SELECT who FROM me; SELECT who_is_bob(); SELECT who FROM me') . $alice->error,
		"remote_alice\nremote_bob\nremote_alice", 'SECURITY DEFINER function uses the mapping of its owner');
	is($alice->run('BEGIN; SELECT who FROM me; SELECT who_is_bob(); SELECT who FROM me; COMMIT') . $alice->error,
		"remote_alice\nremote_bob\nremote_alice", 'SECURITY DEFINER function has a remote transaction of its own');

	# a prepared plan, also one with a join, is executed by several roles in one transaction
	my $who = "EXECUTE who; EXECUTE who_joined;";
	foreach my $mode (qw(auto force_generic_plan))
	{
		is($session->run("SET plan_cache_mode = $mode; PREPARE who AS SELECT who FROM me;"
			  . ' PREPARE who_joined AS SELECT a.who FROM me a JOIN me b USING (pid) WHERE b.who = a.who;'
			  . " BEGIN; $who SET ROLE alice; $who SET ROLE bob; $who SET ROLE alice; $who RESET ROLE; $who"
			  . ' SELECT count(*) FROM pgpool.leases; COMMIT; DEALLOCATE ALL; RESET plan_cache_mode') . $session->error,
			join("\n", (map { ($_) x 2 } qw(remote_app remote_alice remote_bob remote_alice remote_app)), 3), "$mode: prepared plan uses the mapping of the current role");
	}

	# privileges change while a plan is prepared, and in an open transaction
	$alice->run('PREPARE who AS SELECT who FROM me; EXECUTE who; BEGIN; EXECUTE who');
	$local->safe_psql('postgres', 'GRANT USAGE ON FOREIGN SERVER shard TO alice; REVOKE USAGE ON FOREIGN SERVER shard FROM alice');
	is($alice->run('EXECUTE who; COMMIT; EXECUTE who') . $alice->error, "remote_alice\nremote_alice", 'foreign table does not need USAGE on the server');
	$local->safe_psql('postgres', 'REVOKE SELECT ON me FROM alice');
	$alice->fails('EXECUTE who', '42501', qr/permission denied for foreign table me/, 'prepared plan needs the privilege on the table');
	is($alice->run('SELECT who_is_bob()') . $alice->error, 'remote_bob', 'function needs the privilege of its owner only');
	$local->safe_psql('postgres', 'GRANT SELECT ON me TO alice');
	is($alice->run('EXECUTE who') . $alice->error, 'remote_alice', 'prepared plan works again');
	$alice->quit;

	# --- the server and the mapping change in a transaction that has a connection: as with
	# postgres_fdw, the transaction continues on the connection, but needs a mapping
	my $port = $remote->port;
	my @changes = (
		[ 'ALTER SERVER', "ALTER SERVER stock OPTIONS (SET port '1')", '', '08001' ],
		[ 'ALTER USER MAPPING', "ALTER USER MAPPING FOR CURRENT_USER SERVER stock OPTIONS (SET password 'wrong')", '', '08001' ],
		[ 'DROP USER MAPPING', 'DROP USER MAPPING FOR CURRENT_USER SERVER stock', '42704', '42704' ]);
	$local->safe_psql('postgres', <<"EOT");
CREATE EXTENSION postgres_fdw;
CREATE SERVER stock FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$port', dbname 'remote_db');
CREATE USER MAPPING FOR CURRENT_USER SERVER stock OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
CREATE FOREIGN TABLE my_pid (pid int) SERVER stock OPTIONS (schema_name 'public', table_name 'me');
CREATE FOREIGN TABLE my_pids (pid int) SERVER stock OPTIONS (schema_name 'public', table_name 'pids', fetch_size '1');
EOT
	foreach my $attached (0, 1)
	{
		$local->safe_psql('postgres', 'SELECT pgpool.attach_postgres_fdw()') if $attached;
		foreach my $case (@changes)
		{
			my ($change, $sql, $then, $later) = @$case;
			my $name = "$change, " . ($attached ? 'attached' : 'not attached');
			my $client = PgpxSession->new($local);
			my $pid = $client->run('BEGIN; SELECT pid FROM my_pid');

			$client->run("DECLARE c CURSOR FOR SELECT pid FROM my_pids; FETCH 1 FROM c; SAVEPOINT s; $sql");
			is($client->run('FETCH 1 FROM c') . $client->error, $pid, "$name: open cursor continues");
			my $next = $client->run('SELECT pid FROM my_pid');
			is($client->sqlstate, $then, "$name: next statement succeeds unless its mapping was dropped");
			is($next, $then ? '' : $pid, "$name: transaction keeps its connection");
			is($client->run('ROLLBACK TO s; SELECT pid FROM my_pid') . $client->error, $pid, "$name: rollback to the savepoint restores the server and the mapping");
			$client->run("$sql; COMMIT");
			is($client->error, '', "$name: commit succeeds");
			$client->run('SELECT pid FROM my_pid');
			is($client->sqlstate, $later, "$name: next transaction uses the new options");
			$client->quit;
			$local->safe_psql('postgres', <<"EOT");
ALTER SERVER stock OPTIONS (SET port '$port');
CREATE USER MAPPING IF NOT EXISTS FOR CURRENT_USER SERVER stock OPTIONS (user 'remote_app', password 'wrong');
ALTER USER MAPPING FOR CURRENT_USER SERVER stock OPTIONS (SET password '$REMOTE_APP_PASSWORD');
EOT
		}
	}
	$local->safe_psql('postgres', 'SELECT pgpool.detach_postgres_fdw()');
	check_invariants($local);
	clean_slate($local, $remote);
}

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

	# --- the commit of a serializable transaction that has only read waits for the remote one
	my $kill = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 20000)) FROM pg_stat_activity WHERE usename = 'remote_app' AND application_name LIKE '%plain'";
	$session->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM plain.items');
	is($remote->safe_psql('postgres', $kill), '1', 'remote session is ended');
	is(result('COMMIT'), '', 'transaction that has only read commits without the remote server');
	$session->run('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM plain.items');
	is($remote->safe_psql('postgres', $kill), '1', 'remote session is ended');
	$session->run('COMMIT');
	like($session->sqlstate, qr/^(08006|57P01)$/, 'serializable transaction needs the commit of the remote server');

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
}

leak_check($local, $remote);
done_testing();
