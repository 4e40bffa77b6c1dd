--
-- One-shot calls of dblink on pools: attach_dblink, detach_dblink, dblink_calls.
--
SELECT test.server('calls', 'pool_size', '1');
CREATE TABLE test.before AS SELECT outcome, calls AS n FROM pgpool.dblink_calls;
CREATE FUNCTION test.calls() RETURNS text LANGUAGE sql AS
	$$SELECT coalesce(string_agg(outcome, ', ' ORDER BY outcome), 'none') FROM pgpool.dblink_calls JOIN test.before USING (outcome) WHERE calls > n$$;
CREATE FUNCTION test.called() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	said text := test.calls();
BEGIN
	UPDATE test.before AS b SET n = c.calls FROM pgpool.dblink_calls AS c WHERE c.outcome = b.outcome;
	RETURN said;
END $$;

-- only superusers attach
SET ROLE regress_pgpool_app;
SELECT pgpool.attach_dblink();
RESET ROLE;

-- all but the C function stays
ALTER FUNCTION dblink_exec(text, text) COST 17 SECURITY DEFINER SET work_mem = '3MB';
ALTER FUNCTION dblink(text, text) ROWS 5;
GRANT EXECUTE ON FUNCTION dblink(text, text, boolean) TO regress_pgpool_app;
CREATE VIEW test.of_dblink AS SELECT * FROM dblink('calls', 'select 1') AS t(a int);
CREATE TABLE test.functions AS
	SELECT p.oid AS id, p.* FROM pg_proc AS p WHERE proname IN ('dblink', 'dblink_exec');
SELECT pgpool.attach_dblink();
SELECT pgpool.attach_dblink();
SELECT p.oid::regprocedure, p.prosrc, p.probin,
	to_jsonb(f) - 'id' - 'prosrc' - 'probin' = to_jsonb(p) - 'prosrc' - 'probin' AS else_equal
FROM pg_proc AS p JOIN test.functions AS f ON p.oid = f.id ORDER BY 1;

-- results
SELECT * FROM test.of_dblink;
SELECT * FROM dblink('calls', 'select i, i::text from generate_series(1, 3) as i') AS t(a int, b text);
SELECT dblink_exec('calls', 'create table of_dblink(a int primary key)');
SELECT * FROM dblink('calls', 'insert into of_dblink values (1), (2)') AS t(status text);
SELECT dblink_exec('calls', 'insert into of_dblink values (3)');
SELECT * FROM dblink('calls', 'select 1; select 2') AS t(a int);
SELECT * FROM dblink('calls', 'select 1; create temp table t(a int)') AS t(status text);
SELECT * FROM dblink('calls', 'select 1 where false') AS t(a int);
SELECT i, t.* FROM generate_series(1, 3) AS i, LATERAL dblink('calls', 'select 0; select ' || i) AS t(a int);
SELECT test.called();

-- errors
\set SHOW_CONTEXT always
SELECT dblink_exec('calls', 'insert into of_dblink values (1)');
\echo :LAST_ERROR_SQLSTATE
SELECT dblink_exec('calls', 'insert into of_dblink values (1)', false);
SELECT * FROM dblink('calls', 'select 1 / 0') AS t(a int);
SELECT * FROM dblink('calls', 'select 1 / 0', false) AS t(a int);
SELECT * FROM dblink('calls', 'select 6 / (3 - i) from generate_series(1, 5) as i', false) AS t(a int);
SELECT * FROM dblink('calls', 'select 1, 2') AS t(a int);
SELECT dblink_exec('calls', '');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM dblink('calls', 'select pg_terminate_backend(pg_backend_pid())', false) AS t(a bool);
\set SHOW_CONTEXT errors
-- (a statement that returns rows is refused after it was executed)
SELECT dblink_exec('calls', 'insert into of_dblink values (4) returning a');
SELECT * FROM dblink('calls', 'select count(*) from of_dblink') AS t(n int);
SELECT test.called();

-- a transaction that is left open is rolled back, and settings are reset
SELECT dblink_exec('calls', 'begin; insert into of_dblink values (5)');
SELECT dblink_exec('calls', 'set search_path = nowhere; create temp table mine()');
SELECT * FROM dblink('calls', 'select count(*), current_setting(''search_path''), to_regclass(''mine'') is null from of_dblink') AS t(n int, path text, gone bool);

-- the calls are autonomous
BEGIN;
SELECT dblink_exec('calls', 'insert into of_dblink values (6)');
ROLLBACK;
SELECT * FROM dblink('calls', 'select max(a) from of_dblink') AS t(a int);
SELECT test.called();

-- the pool's only connection is leased by this session
SELECT pgpool.checkout('calls') AS a \gset
SELECT * FROM dblink('calls', 'select 1') AS t(a int);
SELECT test.called();
SELECT pgpool.checkin(:a);
SELECT * FROM dblink('calls', 'select 1') AS t(a int);
SELECT test.called();

-- the views of the privileged
SET ROLE regress_pgpool_app;
SELECT count(*) FROM pgpool.dblink_calls;
RESET ROLE;
GRANT pg_read_all_stats TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SELECT count(*) FROM pgpool.dblink_calls;
RESET ROLE;
REVOKE pg_read_all_stats FROM regress_pgpool_app;

-- a mapping of PUBLIC equals a string only for those who may read it
SELECT test.server('shared', 'keepalives', '1');
SELECT test.mapping('PUBLIC', 'shared');
GRANT USAGE ON FOREIGN SERVER shared TO regress_pgpool_app;
SELECT string_agg(format('%s=''%s''', option_name, option_value), ' ') || ' user=remote_app password=''secret of the remote''' AS string
FROM pg_foreign_server, pg_options_to_table(srvoptions) WHERE srvname = 'shared' \gset
SET ROLE regress_pgpool_app;
SELECT * FROM dblink(:'string', 'select 1') AS t(a int);
RESET ROLE;
SELECT test.called();
ALTER SERVER shared OWNER TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SELECT * FROM dblink(:'string', 'select 1') AS t(a int);
RESET ROLE;
SELECT test.called();

-- an empty user is none, and an empty option in a string hides that of the environment
ALTER USER MAPPING FOR CURRENT_USER SERVER shared OPTIONS (SET user '');
DO $$ BEGIN PERFORM dblink_exec('shared', 'select 1'); EXCEPTION WHEN OTHERS THEN NULL; END $$;
SELECT test.called();
SELECT * FROM dblink(:'string' || ' application_name=''''', 'select 1') AS t(a int);
SELECT test.called();

-- several hosts can lead to another server than the pool's
ALTER USER MAPPING FOR CURRENT_USER SERVER shared OPTIONS (SET user 'remote_app');
SELECT max(option_value) FILTER (WHERE option_name = 'host') AS host, max(option_value) FILTER (WHERE option_name = 'port') AS port
FROM pg_foreign_server, pg_options_to_table(srvoptions) WHERE srvname = 'shared' \gset
\set hosts :host ',' :host
\set ports :port ',' :port
ALTER SERVER shared OPTIONS (SET host :'hosts', SET port :'ports');
SELECT * FROM dblink('shared', 'select 1') AS t(a int);
SELECT test.called();

-- a server is changed while a call waits: its pool gets other sessions than dblink
SELECT pgpool.checkout('calls') AS a \gset
SELECT test.other_session('other');
SELECT dblink_send_query('other', $$SELECT dblink_exec('calls', 'set work_mem = 64')$$);
SELECT test.wait_for('SELECT test.waiting(''calls'') = 1');
ALTER SERVER calls OPTIONS (ADD start_commands 'set work_mem = ''5MB''');
SELECT pgpool.checkin(:a);
SELECT * FROM dblink_get_result('other') AS t(result text);
SELECT dblink_disconnect('other');
SELECT test.called();
ALTER SERVER calls OPTIONS (DROP start_commands);

-- a server that the transaction has changed has no pool yet
BEGIN;
ALTER SERVER calls OPTIONS (ADD checkout_timeout '9s');
SELECT * FROM dblink('calls', 'select 1') AS t(a int);
ROLLBACK;
SELECT test.called();

-- pgpool_ext cannot be dropped while functions are attached
SET client_min_messages = error;
DROP EXTENSION pgpool_ext CASCADE;
RESET client_min_messages;

-- a function that was replaced by somebody stays
SELECT pgpool.detach_dblink();
SELECT pgpool.detach_dblink();
SELECT bool_and(p = q) AS all_equal FROM pg_proc AS p JOIN pg_proc AS q USING (oid) JOIN test.functions AS f ON p.oid = f.id AND p.prosrc = f.prosrc AND p.probin = f.probin;
BEGIN;
CREATE OR REPLACE FUNCTION dblink_exec(text, text) RETURNS text AS '$libdir/dblink', 'dblink_error_message' LANGUAGE C STRICT;
SELECT pgpool.attach_dblink();
SELECT oid::regprocedure, prosrc FROM pg_proc WHERE proname = 'dblink_exec' ORDER BY 1;
ROLLBACK;
SELECT count(*) FROM pg_proc WHERE prosrc ~ '^pgpx_dblink_(record|exec)';
BEGIN;
SET LOCAL client_min_messages = error;
DROP EXTENSION dblink CASCADE;
SELECT pgpool.attach_dblink();
ROLLBACK;

SELECT dblink_exec('calls', 'drop table of_dblink');
SELECT test.called();
ALTER FUNCTION dblink_exec(text, text) COST 1 SECURITY INVOKER RESET work_mem;
ALTER FUNCTION dblink(text, text) ROWS 1000;
REVOKE EXECUTE ON FUNCTION dblink(text, text, boolean) FROM regress_pgpool_app;
DROP VIEW test.of_dblink;
DROP TABLE test.before, test.functions;
DROP FUNCTION test.calls, test.called;
SELECT test.drop('calls', 'shared');
