--
-- Leases: their beginning, owner, and end.
--

-- a lease is a number that is valid until it is returned
SELECT pgpool.checkout('one') AS lease \gset
SELECT :lease > 0 AS leased, pg_typeof(pgpool.checkout('shard1')) AS type;
SELECT * FROM pgpool.query(:lease, 'select 1 + 1') AS t(two int);
SELECT pgpool.exec(:lease, 'create temp table t as select generate_series(1, 3)');
SELECT * FROM pgpool.query(:lease, 'select count(*) from t') AS t(count bigint);
SELECT pgpool.checkin_all();
SELECT pgpool.checkin_all();

-- ids increase and are unique
CREATE FUNCTION test.take_and_return(server text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	lease bigint := pgpool.checkout(server);
BEGIN
	PERFORM pgpool.checkin(lease);
	RETURN lease;
END $$;
SELECT count(DISTINCT lease), bool_and(lease > 0) AS positive, bool_and(rises) AS rise
  FROM (SELECT lease, coalesce(lease > lag(lease) OVER (ORDER BY i), true) AS rises
          FROM (SELECT i, test.take_and_return('one') AS lease
                  FROM generate_series(1, 100) AS i) AS a) AS b;

-- several leases of one pool in one session have different connections
SELECT pgpool.checkout('shard1') AS a, pgpool.checkout('shard1') AS b,
	pgpool.checkout('shard1') AS c \gset
SELECT count(DISTINCT test.remote_pid(lease))
  FROM unnest(ARRAY[:a, :b, :c]) AS lease;
SELECT pgpool.checkin(:b);
SELECT * FROM pgpool.query(:a, 'select ''a''') AS t(a text);
SELECT * FROM pgpool.query(:c, 'select ''c''') AS t(c text);
SELECT pgpool.checkin_all();

--
-- Invalid ids
--

SELECT pgpool.checkin(0);
SELECT pgpool.discard(-1);
SELECT pgpool.checkin(9223372036854775807);
SELECT pgpool.exec(0, 'select 1');
SELECT * FROM pgpool.query(-1, 'select 1') AS t(a int);
\set VERBOSITY terse
SELECT pgpool.exec(1.5, 'select 1');
\set VERBOSITY default

-- returned twice, and used after checkin
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.checkin(:lease);
SELECT test.err(format('SELECT pgpool.checkin(%s)', :lease));
SELECT test.err(format('SELECT pgpool.discard(%s)', :lease));
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.err(format('SELECT * FROM pgpool.query(%s, ''select 1'') AS t(a int)', :lease));

-- a returned id is not valid for the next lease of the same connection
SELECT pgpool.checkout('one') AS next \gset
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.err(format('SELECT pgpool.checkin(%s)', :lease));
SELECT pgpool.exec(:next, 'select 1');
SELECT pgpool.checkin(:next);

-- an id as an untyped literal is interpreted as a server name
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec('42', 'select 1');
SELECT * FROM pgpool.query('42', 'select 1') AS t(a int);
SELECT pgpool.exec(:'lease'::bigint, 'select 1');
SELECT pgpool.checkin(:'lease');

-- NULL
SELECT pgpool.checkout(NULL);
SELECT pgpool.checkout_xact(NULL);
SELECT pgpool.try_checkout(NULL);
SELECT pgpool.checkin(NULL);
SELECT pgpool.discard(NULL);
SELECT pgpool.exec(NULL::bigint, 'select 1');
SELECT pgpool.exec(NULL::text, 'select 1');
SELECT pgpool.exec('one', NULL);
SELECT * FROM pgpool.query(NULL::bigint, 'select 1') AS t(a int);
SELECT * FROM pgpool.query('one', NULL) AS t(a int);

-- unknown server names
SELECT pgpool.checkout('nowhere');
SELECT pgpool.checkout_xact('nowhere');
SELECT pgpool.try_checkout('nowhere');
SELECT pgpool.exec('nowhere', 'select 1');
SELECT * FROM pgpool.query('nowhere', 'select 1') AS t(a int);

--
-- Leases of other sessions and users
--

-- of another session
SELECT test.other_session('other');
SELECT test.other('other', 'SELECT pgpool.checkout(''shard1'')') AS lease \gset
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.err(format('SELECT * FROM pgpool.query(%s, ''select 1'') AS t(a int)', :lease));
SELECT test.err(format('SELECT pgpool.checkin(%s)', :lease));
SELECT test.err(format('SELECT pgpool.discard(%s)', :lease));
SELECT pgpool.checkin_all();
SELECT test.other('other', format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.other('other', format('SELECT pgpool.checkin(%s)', :lease));
SELECT test.err(format('SELECT pgpool.checkin(%s)', :lease));

-- of another user in this session: it can be returned, but not used
SET ROLE regress_pgpool_app;
SELECT pgpool.checkout('shard1') AS lease, pgpool.checkout('shard1') AS second \gset
RESET ROLE;
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.err(format('SELECT * FROM pgpool.query(%s, ''select 1'') AS t(a int)', :lease));
SET ROLE regress_pgpool_app;
SELECT pgpool.exec(:lease, 'select 1');
RESET ROLE;
SELECT pgpool.checkin(:lease);
SELECT pgpool.discard(:second);

-- SECURITY DEFINER: a lease of the function's owner does not belong to the caller
CREATE FUNCTION test.definers_lease() RETURNS bigint
LANGUAGE sql SECURITY DEFINER AS $$ SELECT pgpool.checkout('shard1') $$;
CREATE FUNCTION test.definers_use(lease bigint) RETURNS bigint
LANGUAGE sql SECURITY DEFINER AS $$ SELECT pgpool.exec(lease, 'select 1') $$;
ALTER FUNCTION test.definers_lease() OWNER TO regress_pgpool_app;
ALTER FUNCTION test.definers_use(bigint) OWNER TO regress_pgpool_app;
SELECT test.definers_lease() AS lease \gset
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.definers_use(:lease);
SELECT pgpool.checkin(:lease);
-- and vice versa
SELECT pgpool.checkout('shard1') AS lease \gset
SELECT state FROM (SELECT split_part(err, ': ', 2) AS state FROM
	test.err(format('SELECT test.definers_use(%s)', :lease)) AS err LIMIT 1) AS e;
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.checkin_all();

--
-- Timeouts of checkouts
--

SELECT test.server('quick', 'pool_size', '1', 'checkout_timeout', '30ms');
SELECT test.other('other', 'SELECT count(pgpool.checkout(server, ''30 s''))
	FROM unnest(''{one,quick}''::text[]) AS server');

-- no wait
SELECT pgpool.try_checkout('one') IS NULL AS none_free;
SELECT pgpool.try_checkout('one', 'why not') IS NULL AS none_free;
SELECT pgpool.try_checkout_xact('one') IS NULL AS none_free;
SELECT pgpool.try_checkout_xact('one', 'why not') IS NULL AS none_free;
SELECT pgpool.try_checkout_xact(NULL);

-- 0 means no limit, regardless of the setting and the option
SET LOCAL statement_timeout = '200 ms'\; SELECT test.err($$SELECT pgpool.checkout('quick', '0')$$);
SET LOCAL statement_timeout = '200 ms'\; SELECT test.err($$SELECT pgpool.checkout_xact('quick', '0 s')$$);
SET pgpool_ext.checkout_timeout = '20ms';
SET LOCAL statement_timeout = '200 ms'\; SELECT test.err($$SELECT pgpool.checkout('quick', '0')$$);
SET pgpool_ext.checkout_timeout = 0;
SET LOCAL statement_timeout = '200 ms'\; SELECT test.err($$SELECT pgpool.checkout('quick')$$);
RESET pgpool_ext.checkout_timeout;
SET LOCAL statement_timeout = '200 ms'\; SELECT test.err($$SELECT pgpool.drain('quick', '0')$$);
SELECT pgpool.resume('quick');
SELECT test.server('down', 'retry_min', '10ms');
ALTER SERVER down OPTIONS (SET port '1');
SET LOCAL statement_timeout = '200 ms'\; SELECT test.err($$SELECT pgpool.prewarm('down', 1, '0')$$);
-- infinity means the same, from PostgreSQL 17 on; -infinity is an error
SET LOCAL statement_timeout = '200 ms'\; DO $$
BEGIN
	IF current_setting('server_version_num')::int >= 170000 THEN
		BEGIN
			PERFORM pgpool.checkout('quick', 'infinity');
			RAISE 'leased';
		EXCEPTION WHEN query_canceled THEN
		END;
		BEGIN
			PERFORM pgpool.checkout('quick', '-infinity');
			RAISE 'leased';
		EXCEPTION WHEN invalid_parameter_value THEN
		END;
	END IF;
END $$;

-- the timeout of the call; the minimum is a millisecond
SELECT test.err($$SELECT pgpool.checkout('one', '50 ms')$$);
SELECT test.err($$SELECT pgpool.checkout_xact('one', '0.02 s', 'to see it fail')$$);
SELECT test.err($$SELECT pgpool.checkout('one', '1 us')$$);
SELECT test.err($$SELECT pgpool.checkout('one', '1500 us')$$);

-- not too early
CREATE FUNCTION test.waits(command text) RETURNS interval
LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	PERFORM test.err(command);
	RETURN clock_timestamp() - began;
END $$;
SELECT test.waits($$SELECT pgpool.checkout('one', '200 ms')$$) >= '0.2 s' AS as_told;

-- precedence: call, setting, option of the server, default
SELECT test.err($$SELECT pgpool.checkout('quick')$$);
SELECT test.err($$SELECT pgpool.checkout('quick', NULL, 'NULL is none')$$);
SELECT test.err($$SELECT pgpool.checkout('quick', '40 ms')$$);
SET pgpool_ext.checkout_timeout = '20ms';
SELECT test.err($$SELECT pgpool.checkout('quick')$$);
SELECT test.err($$SELECT pgpool.checkout('quick', '40 ms')$$);
SELECT test.err($$SELECT pgpool.checkout('one', NULL)$$);
-- a call on a pool uses the setting
SELECT test.err($$SELECT pgpool.exec('one', 'select 1')$$);
SELECT test.err($$SELECT * FROM pgpool.query('quick', 'select 1') AS t(a int)$$);
BEGIN;
SET LOCAL pgpool_ext.checkout_timeout = 7;
SELECT test.err($$SELECT * FROM pgpool.query('one', 'select 1') AS t(a int)$$);
COMMIT;
RESET pgpool_ext.checkout_timeout;
-- (from 17 on the limits have units)
SELECT regexp_replace(test.err($$SET pgpool_ext.checkout_timeout = -2$$),
	'(\d) ms( \.\.|\))', '\1\2', 'g') AS err;
SHOW pgpool_ext.checkout_timeout;

-- setting 0: no timeout; statement_timeout ends the wait
SET pgpool_ext.checkout_timeout = 0;
SET LOCAL statement_timeout = '100ms'\; SELECT pgpool.checkout('one');
SET LOCAL statement_timeout = '100ms'\; SELECT pgpool.exec('one', 'select 1');
RESET pgpool_ext.checkout_timeout;
SELECT test.waiting('one');

-- invalid timeouts
SELECT pgpool.checkout('one', '-1 s');
SELECT pgpool.checkout('one', '-1 us');
SELECT pgpool.checkout('one', '1 mon -31 days');
SELECT pgpool.checkout('one', '178000000 years');
SELECT pgpool.checkout_xact('one', '-178000000 years');
SELECT pgpool.checkout('one', 'nightly job');
SELECT test.other('other', 'SELECT pgpool.checkin_all()');
-- a long timeout
SELECT pgpool.checkout('one', '3650 days') > 0 AS leased;
SELECT pgpool.checkin_all();

-- a new pool has no free connection; try_checkout makes it open one
SELECT test.server('new', 'pool_size', '1');
SELECT pgpool.try_checkout('new') IS NULL AS none_free;
SELECT test.wait_for('SELECT pgpool.try_checkout(''new'') IS NOT NULL');
SELECT pgpool.checkin_all();
SELECT test.drop('new');

-- an error of the remote server is raised instead of the timeout
SELECT test.server('astray', 'pool_size', '1', 'retry_min', '1h', 'retry_max', '1h');
ALTER SERVER astray OPTIONS (SET dbname 'nowhere');
SELECT test.err($$SELECT pgpool.checkout('astray', '10 s')$$);
-- the next attempt follows after a pause
SELECT test.err($$SELECT pgpool.checkout('astray', '10 s')$$);
SELECT test.err($$SELECT pgpool.try_checkout('astray')$$);
SELECT test.err($$SELECT pgpool.exec('astray', 'select 1')$$);
SELECT test.drop('astray');

--
-- A session that would wait for itself
--

SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.checkout('one', '10 s');
SELECT pgpool.checkout('one');
SELECT pgpool.checkout_xact('one', '10 s');
SELECT pgpool.exec('one', 'select 1');
SELECT * FROM pgpool.query('one', 'select 1') AS t(a int);
SET pgpool_ext.checkout_timeout = 0;
SELECT pgpool.checkout('one');
RESET pgpool_ext.checkout_timeout;
SELECT pgpool.checkout('one', '0');
-- without a wait there is no deadlock
SELECT pgpool.try_checkout('one') IS NULL AS none_free;
-- the lease stays usable
SELECT pgpool.exec(:lease, 'select 1');

-- three of three connections
SELECT count(pgpool.checkout('shard1')) FROM generate_series(1, 3);
SELECT pgpool.checkout('shard1', '10 s');
SELECT pgpool.checkin_all();

-- two of three connections are leased here, one by another session: the checkout
-- waits
SELECT test.other('other', 'SELECT pgpool.checkout(''shard1'') > 0');
SELECT count(pgpool.checkout('shard1')) FROM generate_series(1, 2);
SELECT test.err($$SELECT pgpool.checkout('shard1', '10 ms')$$);
-- also without a timeout, because deadlocks are detected
SET pgpool_ext.checkout_timeout = 0;
SET LOCAL statement_timeout = '100 ms'\; SELECT pgpool.checkout('shard1');
SELECT test.err($$SELECT pgpool.checkout('shard1', '10 ms')$$);
-- no error if there is no need to wait
SELECT pgpool.checkout('one') > 0 AS leased;
RESET pgpool_ext.checkout_timeout;
SELECT pgpool.checkin_all();
SELECT test.other('other', 'SELECT pgpool.checkin_all()');

-- failed checkouts do not use memory, also with changing options
SELECT test.server('again', 'pool_size', '1');
SELECT pgpool.checkout('again') AS lease \gset
SELECT pgpool.try_checkout('again') IS NULL AS none_free;
SELECT used_bytes AS used FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext' \gset
SELECT count(pgpool.try_checkout('again')) FROM generate_series(1, 10000);
SELECT used_bytes - :used < 1000000 AS little FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext';
SELECT count(*) AS known FROM pg_backend_memory_contexts WHERE name = 'pgpool_ext server spec' \gset
ALTER SERVER again OPTIONS (ADD idle_timeout '1h');
SELECT pgpool.try_checkout('again') IS NULL AS none_free;
ALTER SERVER again OPTIONS (SET idle_timeout '2h');
SELECT pgpool.try_checkout('again') IS NULL AS none_free;
ALTER SERVER again OPTIONS (DROP idle_timeout);
SELECT pgpool.try_checkout('again') IS NULL AS none_free;
SELECT count(*) - :known AS more FROM pg_backend_memory_contexts WHERE name = 'pgpool_ext server spec';
SELECT pgpool.checkin(:lease);
SELECT test.drop('again');

--
-- max_waiters
--

SELECT test.server('crowded', 'pool_size', '1', 'max_waiters', '2');
SELECT test.other('other', 'SELECT pgpool.checkout(''crowded'') > 0');
SELECT test.other_session('second');
SELECT test.other_session('third');
SELECT dblink_send_query('second', 'SELECT pgpool.checkout(''crowded'', ''1 min'') > 0');
SELECT test.wait_for('SELECT test.waiting(''crowded'') = 1');
SELECT dblink_send_query('third', 'SELECT pgpool.checkout(''crowded'', ''1 min'') > 0');
SELECT test.wait_for('SELECT test.waiting(''crowded'') = 2');
SELECT pgpool.checkout('crowded', '1 min');
SELECT pgpool.exec('crowded', 'select 1');
-- try_checkout is not refused
SELECT pgpool.try_checkout('crowded') IS NULL AS none_free;
-- a waiter leaves the queue: there is room again
SELECT test.other('other', 'SELECT pgpool.checkin_all()');
SELECT * FROM dblink_get_result('second') AS t(leased boolean);
SELECT * FROM dblink_get_result('second') AS t(leased boolean);
SELECT test.err($$SELECT pgpool.checkout('crowded', '10 ms')$$);
SELECT test.other('second', 'SELECT pgpool.checkin_all()');
SELECT * FROM dblink_get_result('third') AS t(leased boolean);
SELECT dblink_disconnect('third');
SELECT dblink_disconnect('second');
SELECT pgpool.exec('crowded', 'select 1');
SELECT test.drop('crowded');

--
-- The connection after the lease
--

-- checkin keeps it, discard closes it
SELECT pgpool.checkout('one') AS lease \gset
SELECT test.remote_pid(:lease) AS pid \gset
SELECT pgpool.checkin(:lease);
SELECT pgpool.checkout('one') AS lease \gset
SELECT test.remote_pid(:lease) = :pid AS same;
SELECT pgpool.discard(:lease);
SELECT pgpool.checkout('one') AS lease \gset
SELECT test.remote_pid(:lease) = :pid AS same;
SELECT test.remote_pid(:lease) AS pid \gset
-- a call keeps it, too
SELECT pgpool.checkin(:lease);
SELECT remote_pid = :pid AS same
  FROM pgpool.query('one', 'select pg_backend_pid()') AS t(remote_pid int);
-- discarded without having been used
SELECT pgpool.discard(pgpool.checkout('one'));
SELECT remote_pid = :pid AS same
  FROM pgpool.query('one', 'select pg_backend_pid()') AS t(remote_pid int);
-- a discarded connection ends remotely
SELECT test.wait_for(format('SELECT n = 0 FROM pgpool.query(''shard1'',
	''select count(*) from pg_stat_activity where pid = %s'') AS t(n bigint)', :pid));

-- an open transaction is rolled back with a warning that names the lease; the
-- connection is kept
SELECT pgpool.exec('one', 'create table kept (a int)');
SELECT pgpool.checkout('one') AS lease \gset
SELECT test.remote_pid(:lease) AS pid \gset
SELECT pgpool.exec(:lease, 'begin');
SELECT pgpool.exec(:lease, 'insert into kept values (1)');
\set VERBOSITY sqlstate
SELECT pgpool.checkin(:lease);
SELECT pgpool.checkout('one') AS lease \gset
SELECT test.remote_pid(:lease) = :pid AS same;
SELECT * FROM pgpool.query(:lease, 'select count(*) from kept') AS t(count bigint);
-- a failed transaction as well
SELECT pgpool.exec(:lease, 'begin');
SELECT pgpool.exec(:lease, 'insert into kept values (2)');
SELECT pgpool.exec(:lease, 'select 1/0');
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.checkin(:lease);
-- checkin_all warns for each lease with an open transaction
SELECT pgpool.exec(pgpool.checkout('shard1'), 'begin') FROM generate_series(1, 2);
SELECT pgpool.exec(pgpool.checkout('one'), 'begin; insert into kept values (3)');
SELECT pgpool.checkin_all();
-- a call warns, too, and its transaction is rolled back
SELECT pgpool.exec('one', 'begin; insert into kept values (4)');
SELECT pgpool.exec('one', 'begin');
\set VERBOSITY default
SELECT count, pid = :pid AS same
  FROM pgpool.query('one', 'select count(*), pg_backend_pid() from kept')
       AS t(count bigint, pid int);
-- discard does not warn
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec(:lease, 'begin; insert into kept values (5)');
SELECT pgpool.discard(:lease);
SELECT count, pid = :pid AS same
  FROM pgpool.query('one', 'select count(*), pg_backend_pid() from kept')
       AS t(count bigint, pid int);
SELECT pgpool.exec('one', 'drop table kept');
-- the text of the warning without the lease id
\setenv PGDATABASE :DBNAME
\! psql -XAtq -c "SELECT pgpool.exec('one', 'begin')" 2>&1 | sed 's/lease [0-9]*/lease N/'

-- the end of a session returns its leases
SELECT test.other('other', 'SELECT count(pgpool.checkout(server, ''30 s''))
	FROM unnest(''{one,shard1,shard1,shard1}''::text[]) AS server');
SELECT pgpool.try_checkout('one') IS NULL AS none_free,
	pgpool.try_checkout('shard1') IS NULL AS none_free;
SELECT dblink_disconnect('other');
SELECT pgpool.checkout('one', '10 s') > 0 AS leased;
SELECT count(pgpool.checkout('shard1', '10 s')) FROM generate_series(1, 3);
SELECT pgpool.checkin_all();
-- also in the middle of a transaction, which ends
SELECT test.other_session('other');
SELECT test.other('other', 'SELECT pgpool.exec(pgpool.checkout(''one''),
	''begin; create table gone ()'')');
SELECT dblink_disconnect('other');
SELECT gone IS NULL AS rolled_back
  FROM pgpool.query('one', 'select to_regclass(''gone'')') AS t(gone text);

-- DISCARD ALL returns leases, as it releases advisory locks
SELECT count(pgpool.checkout('shard1')) FROM generate_series(1, 2);
DISCARD ALL;
SELECT pgpool.checkin_all();

--
-- Leases in the views
--

SELECT pgpool.checkout('one', why => 'nightly job') AS lease,
	pgpool.try_checkout('shard1', 'a try') AS second,
	pgpool.checkout('shard1') AS third \gset
SELECT server, scope, state, why FROM pgpool.leases
 WHERE pid = pg_backend_pid() ORDER BY lease;
SELECT pgpool.exec(:lease, 'begin');
SELECT test.err(format('SELECT pgpool.exec(%s, ''begin; select 1/0'')', :second));
SELECT server, state FROM pgpool.leases
 WHERE lease IN (:lease, :second, :third) ORDER BY lease;
SELECT pgpool.exec(:second, 'rollback');
SELECT pgpool.exec(:lease, 'rollback');
SELECT pgpool.checkin_all();
-- a long reason is truncated between characters
SELECT pgpool.checkout('one', why => repeat('ä', 1000)) AS lease \gset
SELECT length(why) BETWEEN 20 AND 999 AS cut_off, why = repeat('ä', length(why)) AS whole
  FROM pgpool.leases WHERE lease = :lease;
SELECT pgpool.checkin(:lease);
SELECT count(*) FROM pgpool.leases;

SELECT test.drop('quick');
DROP FUNCTION test.definers_lease(), test.definers_use(bigint),
	test.take_and_return(text), test.waits(text);
SELECT pgpool.check_invariants();
