# Errors of foreign tables.
use strict;
use warnings;

use PgpxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $remote = remote_node('remote');
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
		options => { pool_size => 2, checkout_timeout => '10min', retry_max => '100ms', operation_timeout => '5s' });
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
	$local->safe_psql('postgres', "SELECT pgpool.pause('shard')");
	$session->run("SET pgpool_ext.checkout_timeout = '300ms'");
	$session->fails("INSERT INTO items VALUES (1, 'x')", '55P03', qr/timeout/, 'write to a paused pool times out');
	$session->fails("SELECT count(*) FROM items", '55P03', qr/timeout/, 'read from a paused pool times out');
	my @utilities = ('TRUNCATE items', 'ANALYZE items', "COPY items FROM PROGRAM 'echo 1,x' CSV", 'IMPORT FOREIGN SCHEMA public LIMIT TO (fewer) FROM SERVER shard INTO imported');
	$session->fails($_, '55P03', qr/timeout/, "statement on a paused pool times out: $_") foreach @utilities;
	$session->run('RESET pgpool_ext.checkout_timeout');
	$local->safe_psql('postgres', "SELECT pgpool.resume('shard')");
	recovers('paused');
	$session->run('BEGIN; SELECT count(*) FROM items');
	lease($other, 'shard');
	my $third = PgpxSession->new($local);
	$third->run("SET pgpool_ext.checkout_timeout = '300ms'");
	$third->fails("INSERT INTO items VALUES (1, 'x')", '55P03', qr/timeout/, 'statement times out if all connections are leased');
	$third->quit;
	is($session->run("INSERT INTO items VALUES (1, 'x') RETURNING id; ROLLBACK") . $session->error, '1', 'transaction that has a connection continues');
	$other->run('SELECT pgpool.checkin_all()');
	recovers('full');
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
CREATE FOREIGN TABLE my_name (who text) SERVER stock OPTIONS (schema_name 'public', table_name 'me');
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

		# a mapping that the transaction replaces, or creates before that of PUBLIC
		my $name = $attached ? 'attached' : 'not attached';
		my $alice_mapping = q(CREATE USER MAPPING FOR CURRENT_USER SERVER stock OPTIONS (user 'remote_alice', password 'of alice'));
		my $client = PgpxSession->new($local);
		is($client->run("BEGIN; SELECT who FROM my_name; SAVEPOINT s; DROP USER MAPPING FOR CURRENT_USER SERVER stock; $alice_mapping; SELECT who FROM my_name") . $client->error,
			"remote_app\nremote_alice", "$name: new mapping has a remote transaction of its own");
		is($client->run('ROLLBACK TO s; SELECT who FROM my_name; COMMIT') . $client->error, 'remote_app', "$name: rollback to the savepoint restores the old mapping");
		$local->safe_psql('postgres', <<"EOT");
DROP USER MAPPING FOR CURRENT_USER SERVER stock;
CREATE USER MAPPING FOR PUBLIC SERVER stock OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
EOT
		is($client->run("BEGIN; SAVEPOINT s; $alice_mapping; SELECT who FROM my_name") . $client->error, 'remote_alice', "$name: transaction uses the mapping that it has created");
		is($client->run('ROLLBACK TO s; SELECT who FROM my_name; COMMIT') . $client->error, 'remote_app', "$name: mapping that was rolled back is not used");
		$client->quit;
		$local->safe_psql('postgres', <<"EOT");
DROP USER MAPPING FOR PUBLIC SERVER stock;
CREATE USER MAPPING FOR CURRENT_USER SERVER stock OPTIONS (user 'remote_app', password '$REMOTE_APP_PASSWORD');
EOT
	}
	$local->safe_psql('postgres', 'SELECT pgpool.detach_postgres_fdw()');
	check_invariants($local);
}

leak_check($local, $remote);
done_testing();
