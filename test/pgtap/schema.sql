-- The objects of the extension: their types, properties, privileges and descriptions,
-- and their complete removal by DROP EXTENSION.
BEGIN;
SELECT * FROM no_plan();

-- all functions of the schema; pub: PUBLIC may execute it
CREATE TEMP TABLE functions (name text, arguments text, result text, pub boolean);
INSERT INTO functions VALUES
  ('checkin', 'lease bigint', 'void', true),
  ('checkin_all', '', 'integer', true),
  ('checkout', 'pool text, timeout interval DEFAULT NULL::interval, why text DEFAULT NULL::text',
   'bigint', true),
  ('checkout_xact', 'pool text, timeout interval DEFAULT NULL::interval, why text DEFAULT NULL::text',
   'bigint', true),
  ('try_checkout', 'pool text, why text DEFAULT NULL::text', 'bigint', true),
  ('try_checkout_xact', 'pool text, why text DEFAULT NULL::text', 'bigint', true),
  ('discard', 'lease bigint', 'void', true),
  ('pause', 'pool text DEFAULT NULL::text', 'void', false),
  ('resume', 'pool text DEFAULT NULL::text', 'void', false),
  ('drain', 'pool text DEFAULT NULL::text, timeout interval DEFAULT NULL::interval',
   'boolean', false),
  ('reconnect', 'pool text DEFAULT NULL::text', 'void', false),
  ('prewarm', 'pool text, n integer, timeout interval DEFAULT NULL::interval',
   'integer', false),
  ('reset_stats', 'pool text DEFAULT NULL::text', 'void', false),
  ('terminate', 'lease bigint', 'boolean', true),
  ('wait', 'lease bigint, timeout interval DEFAULT NULL::interval', 'boolean', true),
  ('wait_any', 'leases bigint[], timeout interval DEFAULT NULL::interval', 'bigint', true),
  ('result', 'lease bigint', 'SETOF record', true),
  ('cancel', 'lease bigint', 'boolean', true),
  ('try_wait', 'lease bigint', 'boolean', true),
  ('try_wait_any', 'leases bigint[]', 'bigint', true),
  ('notifications', 'lease bigint',
   'TABLE(channel text, payload text, remote_pid integer)', true),
  ('wait_notifications', 'lease bigint, timeout interval DEFAULT NULL::interval',
   'TABLE(channel text, payload text, remote_pid integer)', true),
  ('lock_setup', 'pool text', 'void', true),
  ('lock_valid', 'pool text, name text, token bigint', 'boolean', true),
  ('unlock', 'pool text, name text, token bigint', 'boolean', true),
  ('lock_force_release', 'pool text, name text', 'boolean', false),
  ('lock_status', 'pool text',
   'SETOF pgpool.lock_status_row', true),
  ('attach_dblink', '', 'boolean', false),
  ('attach_postgres_fdw', '', 'boolean', false),
  ('detach_dblink', '', 'boolean', false),
  ('detach_postgres_fdw', '', 'boolean', false),
  ('check_invariants', '', 'void', false);
INSERT INTO functions
SELECT name, 'pool text, name text, timeout interval DEFAULT NULL::interval, '
	'ttl interval DEFAULT ''00:01:00''::interval, why text DEFAULT NULL::text', 'bigint', true
  FROM unnest('{lock,lock_xact}'::text[]) AS name;
INSERT INTO functions
SELECT name, 'pool text, name text, ttl interval DEFAULT ''00:01:00''::interval, why text DEFAULT NULL::text', 'bigint', true
  FROM unnest('{try_lock,try_lock_xact}'::text[]) AS name;
INSERT INTO functions
SELECT 'send', format('lease bigint, sql %s', params), 'void', true
  FROM unnest(ARRAY['text, VARIADIC params text[] DEFAULT ''{}''::text[]',
		'text, VARIADIC params pgpool.param[]', 'pgpool.statement, VARIADIC params "any"']) AS params;
INSERT INTO functions
SELECT f.name, format('%s, sql text', first), result, true
  FROM (VALUES ('describe', 'TABLE(name text, type text)'), ('column_list', 'text')) AS f (name, result),
       unnest('{lease bigint,pool text}'::text[]) AS first;
INSERT INTO functions
SELECT 'fanout', format('pools text[], sql %s', params), 'SETOF record', true
  FROM unnest(ARRAY['text, VARIADIC params text[] DEFAULT ''{}''::text[]',
		'text, VARIADIC params pgpool.param[]', 'pgpool.statement, VARIADIC params "any"']) AS params;
INSERT INTO functions
SELECT f.name, format('%s%s, sql %s', before, first, params), result, true
  FROM (VALUES ('query', '', 'SETOF record'), ('exec', '', 'bigint'),
		('query_as', 'template anyelement, ', 'SETOF anyelement')) AS f (name, before, result),
       unnest('{lease bigint,pool text}'::text[]) AS first,
       unnest(ARRAY['text, VARIADIC params text[] DEFAULT ''{}''::text[]',
		'text, VARIADIC params pgpool.param[]', 'pgpool.statement, VARIADIC params "any"']) AS params;

-- all views, each on a function of its name, and their columns
CREATE TEMP TABLE views (name text, columns text);
INSERT INTO views VALUES
    ('pools', 'pool_id integer, database name, server name, local_user name, state text, worker integer,
      pool_size integer, total integer, leased integer, idle integer, reset_pending integer,
      connecting integer, resetting integer, checking integer, cancelling integer, closing integer,
      waiters integer, oldest_wait double precision, unavailable_since timestamp with time zone,
      remote_full_since timestamp with time zone, last_error text, last_error_at timestamp with time zone,
      next_try_at timestamp with time zone'),
    ('connections', 'pool_id integer, database name, server name, local_user name, connection integer, state
      text, state_since timestamp with time zone, stale boolean, transport text, tls_version text, tls_cipher text,
      remote_addr inet, remote_port integer, remote_pid integer, opened_at timestamp with time zone, last_used timestamp with time zone'),
    ('leases', 'lease bigint, pool_id integer, database name, server name, connection integer, pid integer,
      user_name name, application_name text, scope text, state text, leased_at timestamp with time zone, why text,
      remote_pid integer'),
    ('dblink_calls', 'outcome text, calls bigint'),
    ('waiters', 'pool_id integer, database name, server name, position integer, pid integer, user_name name,
      application_name text, waiting_since timestamp with time zone, deadline timestamp with time zone, why text,
      reason text'),
    ('stats', 'pool_id integer, database name, server name, local_user name, checkouts bigint, hits bigint,
      retried bigint, waited bigint, granted bigint, pipelined bigint, timeouts bigint, cancelled bigint, failed
      bigint, refused bigint, unavailable bigint, deadlocks bigint, checkins bigint, reclaimed bigint, terminated
      bigint, lease_timeouts bigint, wait_time double precision, lease_time double precision, max_lease_time double
      precision, statements bigint, polled bigint, rows bigint, errors bigint, bytes_received bigint, bytes_sent
      bigint, connects bigint, connects_failed bigint, connect_time double precision, resets bigint, checks bigint,
      cancels bigint, closed_idle bigint, closed_lifetime bigint, closed_overflow bigint, closed_evicted bigint,
      closed_reset bigint, closed_broken bigint, closed_stale bigint, closed_with_lease bigint, wait_histogram
      bigint[], stats_reset timestamp with time zone'),
    ('locks', 'database name, server name, name text, token bigint, state text, pid integer, user_name name,
      why text, since timestamp with time zone, last_ping timestamp with time zone, valid_until timestamp with time
      zone, ttl interval'),
    ('workers', 'worker integer, pid integer, state text, restarts integer, pools integer, connections
      integer, descriptors integer');
UPDATE views SET columns = regexp_replace(columns, '\s+', ' ', 'g');
INSERT INTO functions
SELECT name, '', format('SETOF pgpool.%s_row', name), true FROM views WHERE name <> 'dblink_calls'
UNION ALL SELECT 'dblink_calls', '', 'TABLE(outcome text, calls bigint)', false;

--
-- Extension and schema
--

SELECT has_schema('pgpool');
SELECT results_eq(
  $$SELECT extnamespace::regnamespace::text, extrelocatable FROM pg_extension
     WHERE extname = 'pgpool_ext'$$,
  $$VALUES ('pg_catalog', false)$$,
  'extension is in pg_catalog and not relocatable');
SELECT results_eq(
  $$SELECT superuser, trusted FROM pg_available_extension_versions
     WHERE name = 'pgpool_ext' AND installed$$,
  $$VALUES (true, false)$$,
  'only superusers can create the extension');
SELECT is(
  (SELECT refobjid FROM pg_depend
    WHERE classid = 'pg_namespace'::regclass AND objid = 'pgpool'::regnamespace AND deptype = 'e'),
  (SELECT oid FROM pg_extension WHERE extname = 'pgpool_ext'),
  'schema is a member of the extension');
SELECT schema_privs_are('pgpool', 'public', ARRAY['USAGE']);
SELECT is_empty(
  $$SELECT pg_describe_object(classid, objid, 0) FROM (
      SELECT 'pg_proc'::regclass AS classid, oid AS objid FROM pg_proc
       WHERE pronamespace = 'pgpool'::regnamespace
       UNION ALL
      SELECT 'pg_class'::regclass, oid FROM pg_class
       WHERE relnamespace = 'pgpool'::regnamespace AND relkind <> 'c'
       UNION ALL
      SELECT 'pg_type'::regclass, t.oid FROM pg_type t LEFT JOIN pg_class c ON c.oid = typrelid
       WHERE typnamespace = 'pgpool'::regnamespace AND typcategory <> 'A' AND relkind IS DISTINCT FROM 'v'
       UNION ALL
      SELECT 'pg_foreign_data_wrapper'::regclass, oid FROM pg_foreign_data_wrapper
       WHERE fdwname = 'pgpool_fdw') AS o
     WHERE NOT EXISTS (SELECT FROM pg_depend d
       WHERE d.classid = o.classid AND d.objid = o.objid AND d.deptype = 'e')$$,
  'all objects of the schema are members of the extension');

--
-- The foreign-data wrapper
--

SELECT results_eq(
  $$SELECT fdwhandler::regproc::text, fdwvalidator::regprocedure::text, fdwoptions
      FROM pg_foreign_data_wrapper WHERE fdwname = 'pgpool_fdw'$$,
  $$VALUES ('pgpool.pgpool_fdw_handler', 'pgpool.pgpool_fdw_validator(text[],oid)', NULL::text[])$$,
  'wrapper pgpool_fdw has a handler and a validator');
SELECT function_returns('pgpool', 'pgpool_fdw_handler', ARRAY[]::name[], 'fdw_handler');
SELECT fdw_privs_are('pgpool_fdw', 'public', ARRAY[]::text[]);
SELECT function_returns('pgpool', 'pgpool_fdw_validator', ARRAY['text[]', 'oid'], 'void');
SELECT is_strict('pgpool', 'pgpool_fdw_validator', ARRAY['text[]', 'oid']);

--
-- Functions
--

CREATE TEMP VIEW procs AS
SELECT p.*, proname::text AS name, pg_get_function_arguments(oid) AS arguments,
       pg_get_function_result(oid) AS result, oid::regprocedure::text AS signature
  FROM pg_proc p
 WHERE pronamespace = 'pgpool'::regnamespace AND proname NOT LIKE 'pgpool_fdw%'
   AND proname NOT LIKE 'param%';

SELECT set_eq(
  'SELECT name, arguments, result FROM procs',
  'SELECT name, arguments, result FROM functions',
  'functions have these arguments and results');
SELECT is(provolatile, 'v', signature || ' is volatile') FROM procs ORDER BY signature;
SELECT is(proparallel, 'u', signature || ' is parallel unsafe') FROM procs ORDER BY signature;
SELECT is(proisstrict, false, signature || ' is not strict') FROM procs ORDER BY signature;
SELECT is(prosecdef, false, signature || ' is SECURITY INVOKER') FROM procs ORDER BY signature;
SELECT is(lanname, 'c', signature || ' is a C function')
  FROM procs JOIN pg_language l ON l.oid = prolang ORDER BY signature;
SELECT is(has_function_privilege('public', p.oid, 'EXECUTE'), f.pub,
          format('EXECUTE on %s is %s to PUBLIC', signature, CASE WHEN f.pub THEN 'granted' ELSE 'not granted' END))
  FROM procs p JOIN (SELECT name, bool_and(pub) AS pub FROM functions GROUP BY name) AS f USING (name)
 ORDER BY signature;
SELECT function_privs_are('pgpool', 'check_invariants', '{}', 'pg_monitor', ARRAY['EXECUTE']);
SELECT is_empty(
  $$SELECT signature FROM procs WHERE proretset AND prorows = 0$$,
  'set-returning functions have an estimate of their rows');

--
-- Types of parameters
--

SELECT set_eq(
  $$SELECT typname::text, typtype::text, typcategory::text, typispreferred FROM pg_type
     WHERE typnamespace = 'pgpool'::regnamespace AND typrelid = 0 AND typcategory <> 'A'$$,
  $$VALUES ('param', 'b', 'S', false), ('statement', 'd', 'S', false)$$,
  'schema has these types of parameters and statements');
SELECT is_empty(
  $$SELECT oid::regtype FROM pg_type WHERE typnamespace = 'pgpool'::regnamespace AND typrelid = 0
     AND typcategory <> 'A' AND obj_description(oid, 'pg_type') IS NULL$$,
  'each type has a comment');
SELECT is_empty(
  $$SELECT castsource::regtype FROM pg_cast WHERE casttarget = 'pgpool.param'::regtype AND castcontext <> 'i'$$,
  'each cast to pgpool.param is implicit');
SELECT set_eq(
  $$SELECT proname::text FROM pg_proc WHERE pronamespace = 'pgpool'::regnamespace AND proname LIKE 'param%'
     AND proisstrict$$,
  $$VALUES ('param'), ('param_in'), ('param_out'), ('param_recv'), ('param_send')$$,
  'type param has these functions');

--
-- Views
--

SELECT set_eq(
  $$SELECT relname::text, relkind FROM pg_class WHERE relnamespace = 'pgpool'::regnamespace$$,
  $$SELECT name, 'v'::"char" FROM views UNION ALL SELECT name || '_row', 'c' FROM views WHERE name <> 'dblink_calls'
    UNION ALL SELECT 'lock_status_row', 'c'$$,
  'schema has these views, their row types, and no other relations');
SELECT is(
  (SELECT string_agg(format('%s %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)
     FROM pg_attribute WHERE attrelid = format('pgpool.%s_row', name)::regclass AND attnum > 0),
  columns, format('row type of view %s', name))
  FROM views WHERE name <> 'dblink_calls' ORDER BY name;
SELECT cmp_ok(
  (SELECT max(length(result) + length(arguments)) FROM procs), '<', 200,
  'results and arguments of functions are short enough for listings');
SELECT is(
  (SELECT string_agg(format('%s %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)
     FROM pg_attribute WHERE attrelid = ('pgpool.' || name)::regclass AND attnum > 0),
  columns, format('columns of view %s', name))
  FROM views ORDER BY name;
SELECT table_privs_are('pgpool', name, CASE name WHEN 'dblink_calls' THEN 'pg_read_all_stats' ELSE 'public' END, ARRAY['SELECT'])
  FROM views ORDER BY name;
SELECT lives_ok(format('SELECT * FROM pgpool.%I', name), format('view %s can be read', name))
  FROM views ORDER BY name;
SELECT lives_ok('SELECT pgpool.check_invariants()', 'invariants hold');

--
-- Comments
--

SELECT isnt(obj_description('pgpool'::regnamespace, 'pg_namespace'), NULL, 'schema has a comment');
SELECT isnt(obj_description(oid, 'pg_foreign_data_wrapper'), NULL, 'foreign-data wrapper has a comment')
  FROM pg_foreign_data_wrapper WHERE fdwname = 'pgpool_fdw';
SELECT isnt(obj_description(oid, 'pg_extension'), NULL, 'extension has a comment')
  FROM pg_extension WHERE extname = 'pgpool_ext';
SELECT is_empty(
  $$SELECT oid::regprocedure FROM pg_proc
     WHERE pronamespace = 'pgpool'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL$$,
  'each function has a comment');
SELECT is_empty(
  $$SELECT name FROM views WHERE obj_description(('pgpool.' || name)::regclass, 'pg_class') IS NULL$$,
  'each view has a comment');
SELECT is_empty(
  $$SELECT name, attname FROM views JOIN pg_attribute ON attrelid = ('pgpool.' || name)::regclass
     WHERE attnum > 0 AND col_description(attrelid, attnum) IS NULL$$,
  'each column of each view has a comment');

--
-- Privileges of an ordinary role
--

CREATE ROLE regress_schema_user;
CREATE SERVER regress_schema_server FOREIGN DATA WRAPPER pgpool_fdw;
SET LOCAL ROLE regress_schema_user;
SELECT throws_ok('SELECT pgpool.check_invariants()', '42501');
SELECT throws_ok('SELECT pgpool.pause()', '42501');
SELECT is(pgpool.terminate(0), false, 'every role may call terminate');
RESET ROLE;
GRANT EXECUTE ON FUNCTION pgpool.pause, pgpool.resume, pgpool.drain, pgpool.reconnect,
  pgpool.reset_stats TO regress_schema_user;
SET LOCAL ROLE regress_schema_user;
SELECT throws_ok(format('SELECT pgpool.%s(%L)', function, 'regress_schema_server'), '42501',
                 'must be owner of foreign server regress_schema_server',
                 function || ' requires the owner of the server')
  FROM unnest('{pause,resume,drain,reconnect,reset_stats}'::text[]) AS function;
RESET ROLE;
GRANT pg_signal_backend TO regress_schema_user;
SET LOCAL ROLE regress_schema_user;
SELECT lives_ok($$SELECT pgpool.resume('regress_schema_server')$$,
  'member of pg_signal_backend may call resume');
SELECT throws_ok('CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw', '42501');
SELECT throws_ok('CREATE TABLE pgpool.t (a int)', '42501');
RESET ROLE;
DROP SERVER regress_schema_server;

--
-- Nothing is left behind
--

CREATE TEMP TABLE members AS
SELECT classid, objid, pg_describe_object(classid, objid, objsubid) AS name
  FROM pg_depend
 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
   AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pgpool_ext');
DROP VIEW procs;
SELECT lives_ok('DROP EXTENSION pgpool_ext', 'extension can be dropped');
SELECT hasnt_schema('pgpool');
SELECT is_empty($$SELECT fdwname FROM pg_foreign_data_wrapper WHERE fdwname = 'pgpool_fdw'$$,
  'foreign-data wrapper is dropped');
SELECT is_empty($$SELECT proname FROM pg_proc WHERE probin LIKE '%pgpool_ext%'$$,
  'no function of the library is left');
SELECT is_empty(
  $$SELECT name FROM members m JOIN pg_description d ON d.classoid = m.classid AND d.objoid = m.objid
     UNION ALL
    SELECT name FROM members m JOIN pg_depend d USING (classid, objid)
     UNION ALL
    SELECT name FROM members m JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = m.objid$$,
  'no description, dependency or privilege of a member is left');
SELECT lives_ok('CREATE EXTENSION pgpool_ext', 'extension can be created again');

SELECT * FROM finish();
ROLLBACK;
