-- The objects of the extension: their types, properties, privileges and descriptions,
-- and their complete removal by DROP EXTENSION.
BEGIN;
SELECT * FROM no_plan();

-- (the test documentation compares the functions, with their privileges, and the columns of
-- the views with the pages)
CREATE TEMP TABLE views AS
SELECT relname::text AS name FROM pg_class WHERE relnamespace = 'pgpool'::regnamespace AND relkind = 'v';

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
       WHERE relnamespace = 'pgpool'::regnamespace AND relkind NOT IN ('c', 'i')
       UNION ALL
      SELECT 'pg_type'::regclass, t.oid FROM pg_type t LEFT JOIN pg_class c ON c.oid = typrelid
       WHERE typnamespace = 'pgpool'::regnamespace AND typcategory <> 'A' AND COALESCE(relkind, 'c') NOT IN ('v', 'r')
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
SELECT p.*, proname::text AS name, pg_get_function_arguments(p.oid) AS arguments, lanname,
       pg_get_function_result(p.oid) AS result, p.oid::regprocedure::text AS signature
  FROM pg_proc p JOIN pg_language l ON l.oid = prolang
 WHERE pronamespace = 'pgpool'::regnamespace AND proname NOT LIKE 'pgpool_fdw%'
   AND proname NOT LIKE 'param%';

SELECT is(provolatile, 'v', signature || ' is volatile') FROM procs WHERE name <> 'predict_wait' ORDER BY signature;
SELECT is(proparallel, 'u', signature || ' is parallel unsafe') FROM procs WHERE name <> 'predict_wait' ORDER BY signature;
SELECT is(proisstrict, false, signature || ' is not strict') FROM procs WHERE name <> 'predict_wait' ORDER BY signature;
SELECT is(prosecdef, false, signature || ' is SECURITY INVOKER') FROM procs
 WHERE name NOT IN ('adopt_prepared', 'forget_participant') ORDER BY signature;
SELECT set_eq(
  $$SELECT name, proconfig FROM procs WHERE lanname <> 'c'$$,
  $$SELECT unnest('{adopt_prepared,advice,forget_participant,predict_wait,report}'::text[]), ARRAY['search_path=pg_catalog, pg_temp']$$,
  'these functions are not C functions, and have a fixed search_path');
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

SELECT is_empty(
  $$SELECT relname FROM pg_class WHERE relnamespace = 'pgpool'::regnamespace AND relkind NOT IN ('v', 'c') AND relname NOT LIKE 'commit\_%'$$,
  'schema has views, their row types, and the tables of commits');
SELECT is_empty(
  $$SELECT relname FROM pg_class WHERE relnamespace = 'pgpool'::regnamespace AND relkind IN ('r', 'S') AND relacl IS NOT NULL$$,
  'no role has privileges on the tables of commits');
SELECT cmp_ok(
  (SELECT max(length(result) + length(arguments)) FROM procs), '<', 200,
  'results and arguments of functions are short enough for listings');
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

--
-- Privileges of an ordinary role
--

CREATE ROLE regress_schema_user;
SET LOCAL ROLE regress_schema_user;
SELECT throws_ok('SELECT pgpool.check_invariants()', '42501');
SELECT throws_ok('CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw', '42501');
SELECT throws_ok('CREATE TABLE pgpool.t (a int)', '42501');
RESET ROLE;

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
