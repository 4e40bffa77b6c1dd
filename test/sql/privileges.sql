--
-- The privileges to lease from a pool; servers that are changed or dropped.
--

CREATE ROLE regress_pgpool_first;
CREATE ROLE regress_pgpool_second;
SELECT test.server('guarded', 'pool_size', '2');

-- PUBLIC may execute the functions; USAGE on the server is required
SELECT count(*) > 0 AS some, bool_and(has_function_privilege('public', p.oid, 'EXECUTE')) AS all_public
  FROM pg_proc AS p WHERE pronamespace = 'pgpool'::regnamespace
   AND proname IN ('checkout', 'checkout_xact', 'try_checkout', 'checkin', 'discard', 'checkin_all', 'query', 'query_as', 'exec');
SELECT has_schema_privilege('public', 'pgpool', 'USAGE') AS usage, has_schema_privilege('public', 'pgpool', 'CREATE') AS "create";

--
-- USAGE, mapping, password
--

SET ROLE regress_pgpool_first;
SELECT pgpool.checkout('guarded');
SELECT pgpool.checkout_xact('guarded');
SELECT pgpool.try_checkout('guarded');
SELECT pgpool.exec('guarded', 'select 1');
SELECT * FROM pgpool.query('guarded', 'select 1') AS t(a int);
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER guarded TO regress_pgpool_first, regress_pgpool_second;
SET ROLE regress_pgpool_first;
SELECT pgpool.checkout('guarded');
SELECT pgpool.exec('guarded', 'select 1');
RESET ROLE;
CREATE USER MAPPING FOR regress_pgpool_first SERVER guarded OPTIONS (user 'remote_app');
SET ROLE regress_pgpool_first;
SELECT pgpool.checkout('guarded');
RESET ROLE;
ALTER USER MAPPING FOR regress_pgpool_first SERVER guarded OPTIONS (ADD password 'secret of the remote');
SET ROLE regress_pgpool_first;
SELECT * FROM pgpool.query('guarded', 'select current_user') AS t(who name);
-- USAGE through membership in a role
RESET ROLE;
REVOKE USAGE ON FOREIGN SERVER guarded FROM regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT pgpool.exec('guarded', 'select 1');
RESET ROLE;
GRANT regress_pgpool_second TO regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT pgpool.exec('guarded', 'select 1');
RESET ROLE;
REVOKE regress_pgpool_second FROM regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT pgpool.exec('guarded', 'select 1');
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER guarded TO regress_pgpool_first;

-- REVOKE: a held lease continues, the next one is refused
SET ROLE regress_pgpool_first;
SELECT pgpool.checkout('guarded') AS lease \gset
RESET ROLE;
REVOKE USAGE ON FOREIGN SERVER guarded FROM regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.checkout('guarded');
SELECT pgpool.checkin(:lease);
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER guarded TO regress_pgpool_first;

-- a SECURITY DEFINER function leases as its owner
CREATE FUNCTION test.as_first() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS
	$$SELECT pgpool.exec('guarded', 'select 1')$$;
ALTER FUNCTION test.as_first() OWNER TO regress_pgpool_first;
SET ROLE regress_pgpool_second;
SELECT pgpool.exec('guarded', 'select 1');
SELECT test.as_first();
RESET ROLE;
DROP FUNCTION test.as_first();

--
-- Which sessions share a pool
--

-- each mapping has its own pool, the superuser's too
SELECT test.mapping('regress_pgpool_second', 'guarded');
SELECT pgpool.checkout('guarded') AS a \gset
SELECT test.remote_pid(:a) AS pid_a \gset
SET ROLE regress_pgpool_first;
SELECT pid AS pid_b FROM pgpool.query('guarded', 'select pg_backend_pid()') AS t(pid int) \gset
SET ROLE regress_pgpool_second;
SELECT pid AS pid_c FROM pgpool.query('guarded', 'select pg_backend_pid()') AS t(pid int) \gset
RESET ROLE;
SELECT pgpool.checkin(:a);
SELECT count(DISTINCT pid) FROM unnest(ARRAY[:pid_a, :pid_b, :pid_c]) AS pid;
SELECT count(*) AS pools, count(DISTINCT local_user) AS users
  FROM pgpool.pools WHERE server = 'guarded';
-- the pools of two users are separate even if all options are the same
SET ROLE regress_pgpool_first;
SELECT pid = :pid_b AS own FROM pgpool.query('guarded', 'select pg_backend_pid()') AS t(pid int);
SET ROLE regress_pgpool_second;
SELECT pid = :pid_c AS own FROM pgpool.query('guarded', 'select pg_backend_pid()') AS t(pid int);
RESET ROLE;
-- a role that becomes a superuser does not reuse its earlier connections, nor the
-- other way round
ALTER ROLE regress_pgpool_first SUPERUSER;
SET ROLE regress_pgpool_first;
SELECT pid = :pid_b AS same FROM pgpool.query('guarded', 'select pg_backend_pid()') AS t(pid int);
RESET ROLE;
ALTER ROLE regress_pgpool_first NOSUPERUSER;
SET ROLE regress_pgpool_first;
SELECT pid = :pid_b AS own FROM pgpool.query('guarded', 'select pg_backend_pid()') AS t(pid int);
RESET ROLE;

-- a PUBLIC mapping that names the remote user: one pool, and another one for
-- superusers
SELECT test.server('common', 'pool_size', '1');
DROP USER MAPPING FOR CURRENT_USER SERVER common;
SELECT test.mapping('PUBLIC', 'common');
GRANT USAGE ON FOREIGN SERVER common TO regress_pgpool_first, regress_pgpool_second;
SET ROLE regress_pgpool_first;
SELECT pid AS pid_a FROM pgpool.query('common', 'select pg_backend_pid()') AS t(pid int) \gset
SET ROLE regress_pgpool_second;
SELECT pid AS pid_b FROM pgpool.query('common', 'select pg_backend_pid()') AS t(pid int) \gset
RESET ROLE;
SELECT pid AS pid_c FROM pgpool.query('common', 'select pg_backend_pid()') AS t(pid int) \gset
SELECT count(DISTINCT pid) FROM unnest(ARRAY[:pid_a, :pid_b, :pid_c]) AS pid;
SELECT count(*) AS pools, count(DISTINCT local_user) AS users
  FROM pgpool.pools WHERE server = 'common';
-- a user's own mapping takes precedence
SELECT test.mapping('regress_pgpool_first', 'common', 'remote_super', 'root secret');
SET ROLE regress_pgpool_first;
SELECT * FROM pgpool.query('common', 'select current_user') AS t(who name);
SET ROLE regress_pgpool_second;
SELECT * FROM pgpool.query('common', 'select current_user') AS t(who name);
RESET ROLE;
SELECT test.drop('common');

--
-- Passwords: read from the mapping, and required by the remote
--

-- this server itself, through its socket, which does not ask for a password
DO $$
BEGIN
	EXECUTE format('CREATE SERVER trusting FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host %L, port %L, dbname %L)',
		split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), current_database());
END $$;
CREATE USER MAPPING FOR CURRENT_USER SERVER trusting;
CREATE USER MAPPING FOR regress_pgpool_app SERVER trusting OPTIONS (user 'regress_pgpool_app', password 'not asked for');
GRANT USAGE ON FOREIGN SERVER trusting TO regress_pgpool_app;
SELECT here = current_user AS same FROM pgpool.query('trusting', 'select current_user') AS t(here name);
SET ROLE regress_pgpool_app;
SELECT test.err($$SELECT pgpool.checkout('trusting')$$);
RESET ROLE;
-- unless the superuser sets password_required to false
ALTER USER MAPPING FOR regress_pgpool_app SERVER trusting OPTIONS (ADD password_required 'false');
SET ROLE regress_pgpool_app;
SELECT * FROM pgpool.query('trusting', 'select current_user') AS t(here name);
ALTER USER MAPPING FOR regress_pgpool_app SERVER trusting OPTIONS (DROP password);
RESET ROLE;
ALTER USER MAPPING FOR regress_pgpool_app SERVER trusting OPTIONS (DROP password);
SET ROLE regress_pgpool_app;
SELECT * FROM pgpool.query('trusting', 'select current_user') AS t(here name);
RESET ROLE;
ALTER USER MAPPING FOR regress_pgpool_app SERVER trusting OPTIONS (SET password_required 'true');
SET ROLE regress_pgpool_app;
SELECT pgpool.checkout('trusting');
RESET ROLE;
SELECT test.drop('trusting');

-- a wrong password: the error is the remote's, and shows no password
SELECT test.server('wrong', 'pool_size', '1', 'retry_min', '1ms', 'retry_max', '1ms');
ALTER USER MAPPING FOR CURRENT_USER SERVER wrong OPTIONS (SET password 'opensesame');
SELECT test.err($$SELECT pgpool.checkout('wrong')$$);
-- the right one takes effect at the next checkout
ALTER USER MAPPING FOR CURRENT_USER SERVER wrong OPTIONS (SET password 'secret of the remote');
SELECT pgpool.exec('wrong', 'select 1');
SELECT pgpool.checkin(pgpool.checkout('wrong'));
ALTER USER MAPPING FOR CURRENT_USER SERVER wrong OPTIONS (SET password 'opensesame');
SELECT err FROM test.err($$SELECT pgpool.checkout('wrong')$$) AS err WHERE err LIKE 'ERROR%';
SELECT test.drop('wrong');

--
-- Servers of other wrappers
--

CREATE EXTENSION postgres_fdw;
DO $$
BEGIN
	EXECUTE format('CREATE SERVER fdw_server FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host %L, port %L, dbname ''remote_db'', fetch_size ''10'', use_remote_estimate ''on'')',
		current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port'));
	EXECUTE format('CREATE SERVER dblink_server FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host %L, port %L, dbname ''remote_db'')',
		current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port'));
END $$;
SELECT test.mapping(whose, server) FROM (VALUES ('CURRENT_USER'), ('regress_pgpool_app')) AS v(whose),
	unnest('{fdw_server,dblink_server}'::text[]) AS server;
GRANT USAGE ON FOREIGN SERVER fdw_server, dblink_server TO regress_pgpool_app;
SELECT * FROM pgpool.query('fdw_server', 'select current_user') AS t(who name);
SELECT * FROM pgpool.query('dblink_server', 'select current_user') AS t(who name);
SET ROLE regress_pgpool_app;
SELECT * FROM pgpool.query('fdw_server', 'select current_user') AS t(who name);
SELECT * FROM pgpool.query('dblink_server', 'select current_user') AS t(who name);
RESET ROLE;
-- the pool's options are the settings' defaults
SELECT server, count(*), bool_and(pool_size = current_setting('pgpool_ext.default_pool_size')::int) AS "default"
  FROM pgpool.pools WHERE server IN ('fdw_server', 'dblink_server') GROUP BY server ORDER BY server;
SELECT test.drop('fdw_server', 'dblink_server');
DROP EXTENSION postgres_fdw;

CREATE FOREIGN DATA WRAPPER other_wrapper;
CREATE SERVER other_server FOREIGN DATA WRAPPER other_wrapper;
SELECT pgpool.checkout('other_server');
DROP FOREIGN DATA WRAPPER other_wrapper CASCADE;

-- a pool whose mapping is dropped is closed
DROP USER MAPPING FOR regress_pgpool_first SERVER guarded;
SET ROLE regress_pgpool_first;
SELECT pgpool.exec('guarded', 'select 1');
RESET ROLE;
SELECT test.drop('guarded');

--
-- The extension in other databases
--

\set first_db :DBNAME
CREATE DATABASE regress_pgpool_second;
\c regress_pgpool_second
CREATE EXTENSION pgpool_ext;
DO $$
BEGIN
	EXECUTE format('CREATE SERVER shard1 FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host %L, port %L, dbname ''remote_db'')',
		current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port'));
END $$;
CREATE USER MAPPING FOR CURRENT_USER SERVER shard1 OPTIONS (user 'remote_app', password 'secret of the remote');
SELECT pgpool.exec('shard1', 'select 1');
SELECT count(*) FROM pgpool.pools WHERE database = current_database();
-- pools of other databases are shown, and are separate
SELECT count(DISTINCT database) FROM pgpool.pools WHERE server = 'shard1';
-- DROP EXTENSION CASCADE while a lease is held
SELECT pgpool.checkout('shard1') > 0 AS leased;
\set VERBOSITY terse
DROP EXTENSION pgpool_ext;
\set VERBOSITY default
SET client_min_messages = warning;
DROP EXTENSION pgpool_ext CASCADE;
RESET client_min_messages;
SELECT count(*) FROM pg_foreign_server;
SELECT to_regnamespace('pgpool') IS NULL AS gone;
SELECT 1 FROM pgpool.query('shard1', 'select 1') AS t(a int);
CREATE EXTENSION pgpool_ext;
SELECT pgpool.checkin_all();
DROP EXTENSION pgpool_ext;

-- the schema already exists, with a function of another user
CREATE SCHEMA pgpool;
CREATE FUNCTION pgpool.checkout(text, interval, text) RETURNS bigint LANGUAGE sql AS 'SELECT 1';
-- (from 18 on the server reports the position in the script)
\set SHOW_CONTEXT never
CREATE EXTENSION pgpool_ext;
\set SHOW_CONTEXT errors
SELECT count(*) FROM pg_foreign_data_wrapper;
SELECT count(*) FROM pg_extension WHERE extname = 'pgpool_ext';
SELECT proname FROM pg_proc WHERE pronamespace = 'pgpool'::regnamespace;
DROP SCHEMA pgpool CASCADE;
-- objects of the names that the script uses, in a schema that it does not search
CREATE DOMAIN public.int8 AS text;
CREATE FUNCTION public.now() RETURNS text LANGUAGE sql AS 'SELECT ''hostile''';
CREATE OPERATOR public.= (LEFTARG = name, RIGHTARG = name, FUNCTION = nameeq);
SET search_path = public, pg_catalog;
CREATE EXTENSION pgpool_ext;
SELECT pg_catalog.count(*) FROM pg_catalog.pg_depend AS d
	JOIN pg_catalog.pg_extension AS e ON d.objid OPERATOR(pg_catalog.=) e.oid AND d.refobjid OPERATOR(pg_catalog.=) 'public'::pg_catalog.regnamespace;
SELECT DISTINCT pg_catalog.pg_get_function_result(oid) FROM pg_catalog.pg_proc
 WHERE pronamespace OPERATOR(pg_catalog.=) 'pgpool'::pg_catalog.regnamespace AND proname::pg_catalog.text IN ('checkout', 'exec');
RESET search_path;
-- the extension cannot be moved to another schema, nor created in one
CREATE SCHEMA elsewhere;
ALTER EXTENSION pgpool_ext SET SCHEMA elsewhere;
DROP EXTENSION pgpool_ext;
CREATE EXTENSION pgpool_ext SCHEMA elsewhere;
-- ordinary roles cannot create it
SET ROLE regress_pgpool_first;
CREATE EXTENSION pgpool_ext;
RESET ROLE;
\c :first_db
DROP DATABASE regress_pgpool_second;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.connections WHERE database = ''regress_pgpool_second''');

DROP ROLE regress_pgpool_first, regress_pgpool_second;
SELECT pgpool.check_invariants();
