--
-- base_server: another server's address and user mappings, with a pool of its own.
--

CREATE ROLE regress_pgpool_owner;
CREATE ROLE regress_pgpool_first;
CREATE ROLE regress_pgpool_second;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO regress_pgpool_owner;

-- A server with a base server; more options as name, value, name, value.
CREATE FUNCTION test.based(name text, base text, VARIADIC options text[] DEFAULT '{}')
RETURNS void LANGUAGE sql AS $$
	SELECT test.create_server(name, ARRAY['base_server', base] || options)
$$;

-- User, settings and name of a connection.
CREATE FUNCTION test.who(server text, OUT who name, OUT work_mem text, OUT application text)
LANGUAGE sql AS $$
	SELECT * FROM pgpool.query(server, 'select current_user, current_setting(''work_mem''), current_setting(''application_name'')')
		AS t(who name, work_mem text, application text)
$$;
CREATE FUNCTION test.pid(server text) RETURNS integer
LANGUAGE sql AS $$
	SELECT * FROM pgpool.query(server, 'select pg_backend_pid()') AS t(pid int)
$$;

--
-- The options of the base server and of the dependent server
--

-- created before its base server, as in a dump sorted by name
SELECT test.based('batch', 'data', 'pool_size', '1', 'start_commands', 'SET work_mem = ''5MB''');
SELECT test.based('oltp', 'data', 'pool_size', '2', 'max_overflow', '1', 'min_size', '1');
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
SELECT test.server('data', 'pool_size', '4', 'start_commands', 'SET work_mem = ''6MB''');
SELECT s, w.* FROM unnest('{data,batch,oltp}'::text[]) AS s, test.who(s) AS w;
SELECT server, pool_size FROM pgpool.pools
 WHERE server IN ('data', 'batch', 'oltp') ORDER BY server;
-- each pool has its own connections
SELECT test.pid('data') AS data, test.pid('batch') AS batch, test.pid('oltp') AS oltp \gset
SELECT :data <> :batch AND :data <> :oltp AND :batch <> :oltp AS different;
SELECT test.pid('data') = :data AS data, test.pid('batch') = :batch AS batch, test.pid('oltp') = :oltp AS oltp;
-- each pool has its own size
SELECT pgpool.checkout('batch') AS lease \gset
SELECT pgpool.try_checkout('batch') IS NULL AS none_left;
SELECT pgpool.exec('oltp', 'select 1'), pgpool.exec('data', 'select 1');
SELECT pgpool.checkin(:lease);
-- libpq options are those of the base server
ALTER SERVER data OPTIONS (ADD application_name 'of data', ADD options '-c work_mem=7MB');
SELECT s, w.* FROM unnest('{data,batch,oltp}'::text[]) AS s, test.who(s) AS w;
ALTER SERVER data OPTIONS (DROP application_name, DROP options);

-- connection options cannot be set beside base_server
SELECT name, test.err(format('ALTER SERVER oltp OPTIONS (ADD %I %L)', name, value))
  FROM (VALUES (1, 'host', '127.0.0.1'), (2, 'port', '5432'), (3, 'application_name', ''), (4, 'keepalives', '0'),
	(5, 'options', '-c x.y=1')) AS v(n, name, value) ORDER BY n;
SELECT test.err($$ALTER SERVER data OPTIONS (ADD base_server 'shard1')$$);
SELECT test.err($$CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (dbname 'x', base_server 'shard1')$$);
-- connect_timeout can be set; the base server's value is the default
ALTER SERVER oltp OPTIONS (ADD start_commands 'SELECT pg_sleep(''infinity'')', ADD retry_min '1ms', ADD retry_max '1ms');
ALTER SERVER data OPTIONS (ADD connect_timeout '1s');
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
ALTER SERVER oltp OPTIONS (ADD connect_timeout '2s');
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
ALTER SERVER oltp OPTIONS (DROP connect_timeout, DROP start_commands, DROP retry_min, DROP retry_max);
ALTER SERVER data OPTIONS (DROP connect_timeout);
-- the same if the validator was not called
ALTER FOREIGN DATA WRAPPER pgpool_fdw NO VALIDATOR;
ALTER SERVER oltp OPTIONS (ADD host '127.0.0.1');
ALTER SERVER batch OPTIONS (ADD client_encoding 'LATIN1');
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
SELECT test.err($$SELECT pgpool.checkout('batch')$$);
ALTER SERVER oltp OPTIONS (DROP host);
ALTER SERVER batch OPTIONS (DROP client_encoding);
ALTER FOREIGN DATA WRAPPER pgpool_fdw VALIDATOR pgpool.pgpool_fdw_validator;
SELECT pgpool.exec('oltp', 'select 1'), pgpool.exec('batch', 'select 1');

--
-- User mappings: those of the base server, for the user or PUBLIC
--

SELECT test.mapping('regress_pgpool_first', 'data', 'remote_super', 'root secret');
GRANT USAGE ON FOREIGN SERVER data, oltp TO regress_pgpool_first, regress_pgpool_second;
SET ROLE regress_pgpool_first;
SELECT who FROM test.who('oltp');
SET ROLE regress_pgpool_second;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
RESET ROLE;
SELECT test.mapping('PUBLIC', 'data');
SET ROLE regress_pgpool_second;
SELECT who, test.pid('oltp') AS second FROM test.who('oltp') \gset
SELECT :'who' AS who;
SET ROLE regress_pgpool_first;
SELECT who, test.pid('oltp') AS first FROM test.who('oltp') \gset
SELECT :'who' AS who;
RESET ROLE;
DROP USER MAPPING FOR regress_pgpool_first SERVER data;
SET ROLE regress_pgpool_first;
SELECT who, test.pid('oltp') AS third FROM test.who('oltp') \gset
SELECT :'who' AS who;
RESET ROLE;
SELECT :second = :third AS same, :first <> :second AS other;
-- the pool of the dropped mapping ends when its connection has closed
SELECT test.wait_for($$SELECT count(*) = 0 FROM pgpool.pools WHERE server = 'oltp' AND local_user = 'regress_pgpool_first'$$);
-- the mapping for PUBLIC names the remote user: one pool, and one for superusers, as
-- for the base server itself
SELECT server, local_user, total > 0 AS used FROM pgpool.pools
 WHERE server IN ('data', 'oltp') ORDER BY server, local_user;
SET ROLE regress_pgpool_second;
SELECT test.pid('oltp') = :second AS own;
SET ROLE regress_pgpool_first;
SELECT test.pid('oltp') = :third AS own;
RESET ROLE;
-- a superuser does not share a pool with a non-superuser
ALTER ROLE regress_pgpool_first SUPERUSER;
SET ROLE regress_pgpool_first;
SELECT test.pid('oltp') = :third AS same;
RESET ROLE;
ALTER ROLE regress_pgpool_first NOSUPERUSER;

-- a mapping of the server itself is refused, not ignored
SELECT test.mapping('regress_pgpool_first', 'oltp', 'remote_super', 'root secret');
SET ROLE regress_pgpool_first;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
SET ROLE regress_pgpool_second;
SELECT pgpool.exec('oltp', 'select 1');
RESET ROLE;
DROP USER MAPPING FOR regress_pgpool_first SERVER oltp;
CREATE USER MAPPING FOR PUBLIC SERVER oltp;
SET ROLE regress_pgpool_second;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
RESET ROLE;
DROP USER MAPPING FOR PUBLIC SERVER oltp;
SET ROLE regress_pgpool_second;
SELECT pgpool.exec('oltp', 'select 1');
RESET ROLE;

-- the password must be in the mapping that is used, and must be requested
ALTER USER MAPPING FOR PUBLIC SERVER data OPTIONS (DROP password);
SET ROLE regress_pgpool_first;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
RESET ROLE;
DROP USER MAPPING FOR PUBLIC SERVER data;
--
-- Privileges
--

-- USAGE on both servers is required; the error names both if it is missing on the
-- base server
SELECT test.mapping('regress_pgpool_first', 'data');
REVOKE USAGE ON FOREIGN SERVER data FROM regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER data TO regress_pgpool_first;
REVOKE USAGE ON FOREIGN SERVER oltp FROM regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
SELECT pgpool.exec('data', 'select 1');
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER oltp TO regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT pgpool.exec('oltp', 'select 1');
RESET ROLE;

-- an option of the base server that its owner cannot set is refused; the owner of
-- this server does not matter
ALTER SERVER data OPTIONS (ADD options '-c work_mem=7MB');
SELECT work_mem FROM test.who('oltp');
ALTER SERVER data OWNER TO regress_pgpool_owner;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
ALTER SERVER data OPTIONS (DROP options);
SELECT pgpool.exec('oltp', 'select 1');

ALTER SERVER data OWNER TO CURRENT_USER;

--
-- Servers that can be a base server
--

SELECT test.based('itself', 'itself');
SELECT test.based('chained', 'oltp');
SELECT test.based('there', 'back');
SELECT test.based('back', 'there');
SELECT test.based('4711', '4712');
SELECT s, test.err(format('SELECT pgpool.checkout(%L)', s)) FROM unnest('{itself,chained,there,back,4711}'::text[]) AS s;
CREATE FOREIGN DATA WRAPPER strange_wrapper;
CREATE SERVER strange FOREIGN DATA WRAPPER strange_wrapper;
ALTER SERVER chained OPTIONS (SET base_server 'strange');
SELECT test.err($$SELECT pgpool.checkout('chained')$$);
ALTER SERVER chained OPTIONS (SET base_server 'data');
SELECT pgpool.exec('chained', 'select 1');
SELECT test.drop('itself', 'chained', 'there', 'back', '4711');
SET client_min_messages = warning;
DROP FOREIGN DATA WRAPPER strange_wrapper CASCADE;
RESET client_min_messages;
-- servers of other wrappers; options that are not libpq's are ignored
CREATE EXTENSION postgres_fdw;
DO $$
BEGIN
	EXECUTE format('CREATE SERVER fdw_server FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host %L, port %L, dbname ''remote_db'', fetch_size ''10'', connect_timeout ''1'')',
		current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port'));
	EXECUTE format('CREATE SERVER dblink_server FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host %L, port %L, dbname ''remote_db'')',
		current_setting('pgpx_test.remote_host'), current_setting('pgpx_test.remote_port'));
END $$;
SELECT test.based(server || '_pool', server, 'pool_size', '2'), test.mapping('regress_pgpool_first', server)
  FROM unnest('{fdw_server,dblink_server}'::text[]) AS server;
GRANT USAGE ON FOREIGN SERVER fdw_server, fdw_server_pool, dblink_server, dblink_server_pool TO regress_pgpool_first;
SET ROLE regress_pgpool_first;
SELECT who, application FROM unnest('{fdw_server_pool,dblink_server_pool}'::text[]) AS s, test.who(s);
RESET ROLE;
SELECT server, pool_size FROM pgpool.pools WHERE server::text LIKE '%server\_pool' ORDER BY server;
ALTER SERVER fdw_server_pool OPTIONS (ADD start_commands 'SELECT pg_sleep(''infinity'')', ADD retry_min '1ms', ADD retry_max '1ms');
SELECT test.mapping('CURRENT_USER', 'fdw_server');
SELECT test.err($$SELECT pgpool.checkout('fdw_server_pool')$$);
-- options that a pool cannot have
ALTER SERVER fdw_server OPTIONS (ADD gssencmode 'require');
SET ROLE regress_pgpool_first;
SELECT test.err($$SELECT pgpool.checkout('fdw_server_pool')$$);
RESET ROLE;
DO $$
BEGIN
	EXECUTE format('ALTER SERVER fdw_server OPTIONS (DROP gssencmode, SET host %L)', repeat('/,', 64) || '/');
END $$;
SET ROLE regress_pgpool_first;
SELECT test.err($$SELECT pgpool.checkout('fdw_server_pool')$$);
RESET ROLE;
SELECT test.drop('fdw_server', 'fdw_server_pool', 'dblink_server', 'dblink_server_pool');
DROP EXTENSION postgres_fdw;

--
-- Caps and administrative functions apply to the server itself
--

SELECT test.based('capped', 'data', 'pool_size', '5', 'max_server_connections', '2');
GRANT USAGE ON FOREIGN SERVER capped TO regress_pgpool_first;
SELECT pgpool.checkout('capped') > 0 AS one;
SET ROLE regress_pgpool_first;
SELECT pgpool.checkout('capped') > 0 AS two;
SELECT test.err($$SELECT pgpool.checkout('capped', '1 ms')$$) AS err LIMIT 1;
-- the cap does not apply to the base server and to other servers based on it
SELECT pgpool.exec('data', 'select 1'), pgpool.exec('oltp', 'select 1');
RESET ROLE;
SELECT sum(total) FROM pgpool.pools WHERE server = 'capped';
SELECT pgpool.checkin_all();
SELECT test.drop('capped');
-- the cap of the base server does not apply to the servers that are based on it
ALTER SERVER data OPTIONS (ADD max_server_connections '1');
SELECT pgpool.checkout('data') > 0 AS one;
SELECT pgpool.checkout('oltp') > 0 AS two, pgpool.checkout('oltp') > 0 AS three;
SELECT pgpool.checkin_all();
ALTER SERVER data OPTIONS (DROP max_server_connections);

-- a change in this transaction is reported with the name of the changed server
BEGIN;
ALTER SERVER data OPTIONS (ADD options '-c work_mem=3MB');
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
ROLLBACK;
--
-- base_server is a name
--

ALTER SERVER data RENAME TO base_data;
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
ALTER SERVER oltp OPTIONS (SET base_server 'base_data');
SELECT pgpool.exec('oltp', 'select 1');
-- another server has the name, and is the base server from then on
BEGIN;
ALTER SERVER base_data RENAME TO old_data;
SELECT test.server('base_data', 'application_name', 'of the next');
COMMIT;
SELECT application FROM test.who('oltp');
-- the base server can be dropped
SELECT test.drop('base_data');
SELECT test.err($$SELECT pgpool.checkout('oltp')$$);
-- without the option the server needs a mapping of its own
ALTER SERVER oltp OPTIONS (DROP base_server);
SELECT left(test.err($$SELECT pgpool.checkout('oltp')$$), 45) AS err LIMIT 1;
SELECT test.drop('oltp', 'batch', 'old_data');

DROP FUNCTION test.based, test.who, test.pid;
DROP OWNED BY regress_pgpool_owner, regress_pgpool_first, regress_pgpool_second;
DROP ROLE regress_pgpool_owner, regress_pgpool_first, regress_pgpool_second;
SELECT pgpool.check_invariants();
