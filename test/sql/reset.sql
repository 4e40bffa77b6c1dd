--
-- The state of a connection at checkout: start commands, and the reset between two
-- leases.
--

-- The session state that a lease finds on the remote side.
CREATE FUNCTION test.traces(pool text) RETURNS text LANGUAGE sql AS $$
	SELECT traces FROM pgpool.query(pool, 'select concat_ws('' '',
		''work_mem='' || current_setting(''work_mem''),
		''path='' || current_setting(''search_path''),
		''temp='' || (select count(*) from pg_class where relpersistence = ''t'' and relkind = ''r'' and pg_table_is_visible(oid)),
		''prepared='' || (select count(*) from pg_prepared_statements where from_sql),
		''cursors='' || (select count(*) from pg_cursors where is_holdable),
		''listens='' || (select count(*) from pg_listening_channels()),
		''advisory='' || (select count(*) from pg_locks where locktype = ''advisory'' and pid = pg_backend_pid()),
		''user='' || current_user)') AS t(traces text)
$$;
CREATE FUNCTION test.leave_traces(pool text) RETURNS bigint LANGUAGE sql AS $$
	SELECT pgpool.exec(pool, 'set work_mem = ''7MB''; set search_path = pg_catalog, public;
		create temp table trace (a int); prepare trace as select 1;
		declare trace cursor with hold for select 1; listen trace;
		select pg_advisory_lock(pg_backend_pid())')
$$;

-- servers that only this test uses
SELECT test.server('always', 'pool_size', '1');
SELECT test.server('never', 'pool_size', '1', 'reset', 'never');
SELECT test.other_session('other');

--
-- reset 'always'
--

SELECT test.traces('always');
SELECT pid FROM pgpool.query('always', 'select pg_backend_pid()') AS t(pid int) \gset
SELECT test.leave_traces('always');
SELECT test.traces('always');
SELECT test.leave_traces('always');
SELECT test.other('other', 'SELECT test.traces(''always'')');
-- state is kept within a lease, and reset after it
SELECT pgpool.checkout('always') AS lease \gset
SELECT pgpool.exec(:lease, 'set work_mem = ''7MB''');
SELECT * FROM pgpool.query(:lease, 'show work_mem') AS t(work_mem text);
SELECT pgpool.checkin(:lease);
SELECT * FROM pgpool.query('always', 'show work_mem') AS t(work_mem text);
-- all on one connection
SELECT remote_pid = :pid AS same FROM pgpool.query('always', 'select pg_backend_pid()') AS t(remote_pid int);
-- the advisory lock is free once the remote has completed the reset
SELECT pgpool.exec('always', 'select pg_advisory_lock(4711)');
SELECT test.wait_for($$SELECT free FROM pgpool.query('one', 'select pg_try_advisory_lock(4711)') AS t(free bool)$$);

-- SET ROLE is reset
CREATE USER MAPPING FOR regress_pgpool_app SERVER always OPTIONS (user 'remote_super', password 'root secret');
GRANT USAGE ON FOREIGN SERVER always TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SELECT pgpool.exec('always', 'set role remote_app');
SELECT * FROM pgpool.query('always', 'select current_user, session_user') AS t(c name, s name);
SELECT pgpool.exec('always', 'set session authorization remote_app');
SELECT * FROM pgpool.query('always', 'select current_user, session_user') AS t(c name, s name);
RESET ROLE;

-- state that survives DISCARD ALL, such as the name of a custom setting, is visible to
-- the same user only
SELECT pgpool.exec('always', 'select set_config(''my.trace'', ''mine'', false)');
SELECT trace = '' AS empty FROM pgpool.query('always', 'select current_setting(''my.trace'', true)') AS t(trace text);
SET ROLE regress_pgpool_app;
SELECT trace IS NULL AS none FROM pgpool.query('always', 'select current_setting(''my.trace'', true)') AS t(trace text);
RESET ROLE;

-- the schema for temporary tables stays, and is empty
SELECT pgpool.exec('always', 'create temp table trace (a int)');
SELECT * FROM pgpool.query('always', 'select pg_my_temp_schema() <> 0, (select count(*) from pg_class where relnamespace = pg_my_temp_schema())') AS t(schema bool, tables bigint);

-- session defaults for transactions are reset
SELECT pgpool.exec('always', 'set default_transaction_read_only = on; set session characteristics as transaction isolation level serializable');
SELECT * FROM pgpool.query('always', 'select current_setting(''transaction_read_only''), current_setting(''transaction_isolation'')') AS t(r text, i text);

-- notices of the reset are not shown to the next lease
SELECT pgpool.exec('always', 'listen here; notify here; set client_min_messages = debug1');
SELECT * FROM pgpool.query('always', 'select 1') AS t(a int);

--
-- DateStyle, IntervalStyle and the like are the same for every lease
--

CREATE FUNCTION test.styles(pool text) RETURNS text LANGUAGE sql AS $$
	SELECT styles FROM pgpool.query(pool, 'select concat_ws('' '', current_setting(''datestyle''),
		current_setting(''intervalstyle''), current_setting(''extra_float_digits''), current_setting(''client_encoding''))') AS t(styles text)
$$;
CREATE FUNCTION test.spoil_styles(pool text) RETURNS bigint LANGUAGE sql AS $$
	SELECT pgpool.exec(pool, 'set datestyle = ''German, YMD''; set intervalstyle = iso_8601;
		set extra_float_digits = -15; set client_encoding = latin1')
$$;
SELECT test.styles('always');
SELECT test.spoil_styles('always');
SELECT test.styles('always');
SELECT test.spoil_styles('always');
SELECT test.other('other', 'SELECT test.styles(''always'')');
-- also without a reset: their reported values then differ from those at the start
SELECT test.styles('never');
SELECT test.spoil_styles('never');
SELECT test.styles('never');
-- the remote database and role may set other ones
SELECT pgpool.exec('one', 'alter role remote_app set datestyle = ''SQL, DMY''; alter database remote_db set intervalstyle = sql_standard');
SELECT test.server('fresh');
SELECT test.styles('fresh');
SELECT pgpool.exec('one', 'alter role remote_app reset datestyle; alter database remote_db reset intervalstyle');
SELECT test.drop('fresh');

--
-- reset 'never'
--

SELECT test.traces('never');
SELECT test.leave_traces('never');
SELECT test.traces('never');
SELECT test.other('other', 'SELECT test.traces(''never'')');
-- an open transaction is not left to the next lease
\set VERBOSITY sqlstate
SELECT pgpool.exec('never', 'begin');
\set VERBOSITY default
SELECT pgpool.exec('never', 'begin; commit');

--
-- reset_command
--

SELECT test.server('custom', 'pool_size', '1', 'reset_command', 'DISCARD TEMP');
SELECT test.leave_traces('custom');
SELECT test.traces('custom');
-- several statements
ALTER SERVER custom OPTIONS (SET reset_command 'RESET work_mem; DEALLOCATE ALL; SELECT pg_advisory_unlock_all(); UNLISTEN *');
SELECT test.leave_traces('custom');
SELECT test.traces('custom');
-- reset_command does not restore the styles: the connection is replaced
SELECT pid FROM pgpool.query('custom', 'select pg_backend_pid()') AS t(pid int) \gset
SELECT pgpool.exec('custom', 'set datestyle = ''German, YMD''');
SELECT test.styles('custom');
SELECT remote_pid = :pid AS same FROM pgpool.query('custom', 'select pg_backend_pid()') AS t(remote_pid int);
-- reset_command fails: every lease uses a new connection without state
ALTER SERVER custom OPTIONS (SET reset_command 'SELECT 1/0');
SELECT count(DISTINCT pid) FROM generate_series(1, 5) AS i,
	LATERAL pgpool.query('custom', 'select pg_backend_pid(), $1::int', i) AS t(pid int, i int);
SELECT test.leave_traces('custom');
SELECT test.traces('custom');
SELECT closed_reset > 0 AS counted FROM pgpool.stats WHERE server = 'custom';
-- the error is shown, and logged
SELECT last_error FROM pgpool.pools WHERE server = 'custom';
-- reset_command leaves a transaction open, or copies
ALTER SERVER custom OPTIONS (SET reset_command 'BEGIN');
SELECT count(DISTINCT pid) FROM generate_series(1, 3) AS i,
	LATERAL pgpool.query('custom', 'select pg_backend_pid(), $1::int', i) AS t(pid int, i int);
ALTER SERVER custom OPTIONS (SET reset_command 'COPY pg_class FROM STDIN');
SELECT count(DISTINCT pid) FROM generate_series(1, 3) AS i,
	LATERAL pgpool.query('custom', 'select pg_backend_pid(), $1::int', i) AS t(pid int, i int);
-- rows and notices of reset_command are dropped
ALTER SERVER custom OPTIONS (SET reset_command 'SELECT generate_series(1, 1000); DROP TABLE IF EXISTS nowhere');
SELECT count(DISTINCT pid) FROM generate_series(1, 3) AS i,
	LATERAL pgpool.query('custom', 'select pg_backend_pid(), $1::int', i) AS t(pid int, i int);
-- reset_command exceeds operation_timeout
ALTER SERVER custom OPTIONS (SET reset_command 'SELECT pg_sleep(60)', ADD operation_timeout '100ms');
SELECT pgpool.exec('custom', 'select 1');
SELECT pgpool.exec('custom', 'select 1');

--
-- start_commands: after each connect, and after each reset
--

SELECT pgpool.exec('one', 'create table starts (pid int default pg_backend_pid())');
SELECT test.server('started', 'pool_size', '1', 'start_commands',
	'SET work_mem = ''3MB''; SET search_path = pg_catalog; INSERT INTO public.starts DEFAULT VALUES');
CREATE FUNCTION test.starts() RETURNS bigint LANGUAGE sql AS
	$$SELECT n FROM pgpool.query('one', 'select count(*) from starts') AS t(n bigint)$$;
SELECT pgpool.checkout('started') AS lease \gset
SELECT test.starts();
SELECT * FROM pgpool.query(:lease, 'select current_setting(''work_mem''), current_setting(''search_path'')') AS t(work_mem text, path text);
SELECT pgpool.exec(:lease, 'set work_mem = ''9MB''; set search_path = public');
SELECT pgpool.checkin(:lease);
SELECT test.traces('started');
SELECT pgpool.checkout('started') AS lease \gset
SELECT test.starts();
SELECT pgpool.checkin(:lease);
-- a lease that was not used needs no reset
SELECT pgpool.checkin(pgpool.checkout('started')) FROM generate_series(1, 3);
SELECT pgpool.checkout('started') AS lease \gset
SELECT test.starts();
SELECT pgpool.discard(:lease);
SELECT pgpool.checkout('started') AS lease \gset
SELECT test.starts();
SELECT pgpool.checkin(:lease);
SELECT count(*), count(DISTINCT pid) FROM pgpool.query('one', 'select pid from starts') AS t(pid int);
SELECT test.drop('started');

-- start_commands cannot set the styles that values depend on
SELECT test.server('started', 'pool_size', '1', 'start_commands', 'SET datestyle = ''German''');
SELECT pgpool.checkout('started');
SELECT test.drop('started');

-- start_commands that fail: the checkout fails with their error
SELECT test.server('failing', 'pool_size', '1', 'retry_min', '1ms', 'retry_max', '1ms', 'start_commands', 'SELECT 1/0');
SELECT test.err($$SELECT pgpool.checkout('failing')$$);
SELECT test.wait_for($$SELECT next_try_at < clock_timestamp() FROM pgpool.pools WHERE server = 'failing'$$);
SELECT test.err($$SELECT pgpool.exec('failing', 'select 1')$$);
SELECT last_error FROM pgpool.pools WHERE server = 'failing';
ALTER SERVER failing OPTIONS (SET start_commands 'SELECT 1; SELEC 2');
SELECT test.err($$SELECT pgpool.checkout('failing')$$);
ALTER SERVER failing OPTIONS (SET start_commands 'BEGIN');
SELECT test.err($$SELECT pgpool.checkout('failing')$$);
ALTER SERVER failing OPTIONS (SET start_commands 'COPY pg_class TO STDOUT');
SELECT test.err($$SELECT pgpool.checkout('failing')$$);
ALTER SERVER failing OPTIONS (SET start_commands 'COPY starts FROM STDIN');
SELECT test.err($$SELECT pgpool.checkout('failing')$$);
ALTER SERVER failing OPTIONS (SET start_commands 'SELECT pg_terminate_backend(pg_backend_pid())');
SELECT err FROM test.err($$SELECT pgpool.checkout('failing')$$) AS err WHERE err LIKE 'ERROR%';
ALTER SERVER failing OPTIONS (SET start_commands 'SELECT pg_sleep(60)', ADD connect_timeout '2s');
SELECT test.err($$SELECT pgpool.checkout('failing')$$);
-- the pool works again as soon as they succeed
ALTER SERVER failing OPTIONS (SET start_commands 'SELECT 1', SET connect_timeout '1min');
SELECT pgpool.exec('failing', 'select 1');
-- start_commands that succeed only once: the connection cannot be reused, and no
-- other can be opened
ALTER SERVER failing OPTIONS (SET start_commands 'CREATE TABLE only_once ()');
SELECT pgpool.exec('failing', 'select 1');
SELECT test.err($$SELECT pgpool.exec('failing', 'select 1')$$);
SELECT test.drop('failing');

SELECT pgpool.exec('one', 'drop table starts, only_once');
SELECT test.drop('always', 'never', 'custom');
SELECT dblink_disconnect('other');
DROP FUNCTION test.traces(text), test.leave_traces(text), test.styles(text), test.spoil_styles(text), test.starts();
SELECT pgpool.check_invariants();
