--
-- Leases and the local transaction.
--

SELECT pgpool.exec('one', 'create table xact_log (what text)');

-- Whether a lease of this session is held, and how many are.
CREATE FUNCTION test.held() RETURNS bigint LANGUAGE sql AS
	'SELECT count(*) FROM pgpool.leases WHERE pid = pg_backend_pid()';

--
-- checkout_xact: leases end with the transaction
--

BEGIN;
SELECT pgpool.checkout_xact('one', why => 'one transaction') AS lease \gset
SELECT test.remote_pid(:lease) AS pid \gset
SELECT server, scope, why FROM pgpool.leases WHERE lease = :lease;
SELECT pgpool.exec(:lease, 'insert into xact_log values (''committed'')');
COMMIT;
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));
SELECT test.held();

BEGIN;
SELECT pgpool.checkout_xact('one') AS lease \gset
SELECT test.remote_pid(:lease) = :pid AS same;
SELECT pgpool.exec(:lease, 'insert into xact_log values (''the remote does not roll back'')');
ROLLBACK;
SELECT test.err(format('SELECT pgpool.exec(%s, ''select 1'')', :lease));

-- returned or discarded before the transaction ends
BEGIN;
SELECT pgpool.checkin(pgpool.checkout_xact('one'));
SELECT pgpool.discard(pgpool.checkout_xact('one'));
SELECT count(pgpool.checkout_xact('shard1')) FROM generate_series(1, 3);
SELECT pgpool.checkin_all();
COMMIT;

-- an error ends the lease at once, not only at ROLLBACK
SELECT test.other_session('other');
BEGIN;
SELECT pgpool.checkout_xact('one') > 0 AS leased;
SELECT test.other('other', 'SELECT pgpool.try_checkout(''one'') IS NULL');
SELECT 1/0;
SELECT pgpool.exec('one', 'select 1');
ROLLBACK;
BEGIN;
SELECT pgpool.checkout_xact('one') > 0 AS leased;
SELECT * FROM pgpool.query('nowhere', 'select 1') AS t(a int);
ROLLBACK;
SELECT test.held();

-- a local READ ONLY transaction lets the remote write; start_commands can prevent it
BEGIN READ ONLY;
SELECT pgpool.exec('one', 'insert into xact_log values (''written in READ ONLY'')');
COMMIT;
SELECT * FROM pgpool.query('one', 'select what from xact_log where what ~ ''READ ONLY''') AS t(what text);
SELECT test.server('xact_reader', 'pool_size', '1', 'start_commands', 'SET default_transaction_read_only = on');
SELECT test.err($$SELECT pgpool.exec('xact_reader', 'insert into xact_log values (''refused'')')$$) FROM generate_series(1, 2);
SET client_min_messages = warning;
DROP SERVER xact_reader CASCADE;
RESET client_min_messages;

-- outside of a transaction block: the lease ends with the statement
SELECT pgpool.checkout_xact('one') > 0 AS leased;
SELECT pgpool.try_checkout_xact('one') > 0 AS leased;
SELECT pgpool.exec(pgpool.checkout_xact('one'), 'insert into xact_log values (''one statement'')');
DO $$
DECLARE
	lease bigint := pgpool.checkout_xact('one');
BEGIN
	PERFORM pgpool.exec(lease, 'insert into xact_log values (''do'')');
	COMMIT;
	BEGIN
		PERFORM pgpool.exec(lease, 'insert into xact_log values (''too late'')');
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		RAISE NOTICE 'gone with the first transaction';
	END;
END $$;
CREATE PROCEDURE test.two_transactions() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pgpool.exec(pgpool.try_checkout_xact('one'), 'insert into xact_log values (''first'')');
	COMMIT;
	PERFORM pgpool.exec(pgpool.try_checkout_xact('one'), 'insert into xact_log values (''second'')');
	ROLLBACK;
	PERFORM pgpool.exec(pgpool.try_checkout_xact('one'), 'insert into xact_log values (''third'')');
END $$;
CALL test.two_transactions();
SELECT test.held();

--
-- Savepoints
--

BEGIN;
SELECT pgpool.checkout_xact('shard1') AS outer \gset
SAVEPOINT s1;
SELECT pgpool.checkout_xact('shard1') AS inner \gset
SELECT test.held();
ROLLBACK TO s1;
-- the lease from before the savepoint is still held
SELECT test.held();
SELECT pgpool.exec(:outer, 'select 1');
SELECT pgpool.try_checkout_xact('one') AS inner \gset
-- leased again after ROLLBACK TO: the lease ends with the savepoint as well
ROLLBACK TO s1;
SELECT test.held();
SELECT pgpool.try_checkout_xact('one') AS inner \gset
-- after RELEASE it ends with the parent
RELEASE s1;
SELECT pgpool.exec(:inner, 'select 1');
SELECT test.held();
COMMIT;
SELECT test.held();

-- released into a savepoint that is rolled back
BEGIN;
SAVEPOINT s1;
SAVEPOINT s2;
SAVEPOINT s3;
SELECT pgpool.checkout_xact('one') > 0 AS leased;
RELEASE s3;
SELECT test.held();
ROLLBACK TO s2;
SELECT test.held();
SELECT pgpool.try_checkout_xact('one') > 0 AS leased;
RELEASE s2;
ROLLBACK TO s1;
SELECT test.held();
COMMIT;

-- an error in a savepoint ends the leases acquired in it
BEGIN;
SELECT pgpool.checkout_xact('one') AS outer \gset
SAVEPOINT s1;
SELECT pgpool.checkout_xact('shard1') > 0 AS leased;
SELECT 1/0;
ROLLBACK TO s1;
SELECT server FROM pgpool.leases WHERE pid = pg_backend_pid();
SELECT pgpool.exec(:outer, 'select 1');
COMMIT;

-- a session lease acquired in a savepoint continues
BEGIN;
SAVEPOINT s1;
SELECT pgpool.checkout('one') AS lease \gset
ROLLBACK TO s1;
SELECT pgpool.exec(:lease, 'select 1');
ROLLBACK;
SELECT pgpool.exec(:lease, 'select 1');
-- a session lease is kept through errors
SELECT 1/0;
BEGIN;
SELECT pgpool.exec(:lease, 'select 1/0');
ROLLBACK;
SELECT pgpool.exec(:lease, 'select 1');
SELECT pgpool.checkin(:lease);
-- a lease returned in a rolled back transaction stays returned
SELECT pgpool.checkout('one') AS lease \gset
BEGIN;
SELECT pgpool.checkin(:lease);
ROLLBACK;
SELECT test.held();

-- the remote transaction of a session lease spans local ones
SELECT pgpool.checkout('one') AS lease \gset
SELECT pgpool.exec(:lease, 'begin');
BEGIN;
SELECT pgpool.exec(:lease, 'insert into xact_log values (''over'')');
ROLLBACK;
SELECT 1/0;
SELECT pgpool.exec(:lease, 'commit');
SELECT pgpool.checkin(:lease);

--
-- Exception blocks of PL/pgSQL
--

CREATE FUNCTION test.nested(OUT step text, OUT held bigint) RETURNS SETOF record
LANGUAGE plpgsql AS $$
DECLARE
	l1 bigint;
	l2 bigint;
	l3 bigint;
BEGIN
	l1 := pgpool.checkout_xact('shard1');
	step := 'one level'; held := test.held(); RETURN NEXT;
	BEGIN
		l2 := pgpool.checkout_xact('shard1');
		step := 'two levels'; held := test.held(); RETURN NEXT;
		BEGIN
			l3 := pgpool.checkout_xact('shard1');
			step := 'three levels'; held := test.held(); RETURN NEXT;
			RAISE EXCEPTION 'out';
		EXCEPTION WHEN raise_exception THEN
			step := 'out of the third'; held := test.held(); RETURN NEXT;
		END;
		PERFORM pgpool.exec(l2, 'select 1');
		PERFORM pgpool.exec(l2, 'select 1/0');
	EXCEPTION WHEN division_by_zero THEN
		step := 'out of the second'; held := test.held(); RETURN NEXT;
	END;
	BEGIN
		l2 := pgpool.checkout_xact('shard1');
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	step := 'a block that ends well'; held := test.held(); RETURN NEXT;
	PERFORM pgpool.exec(l1, 'select 1'), pgpool.exec(l2, 'select 1');
END $$;
SELECT * FROM test.nested();
SELECT test.held();

-- one-call leases end with the call, also if it fails
CREATE FUNCTION test.one_call(OUT what text, OUT held bigint) RETURNS SETOF record
LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		PERFORM pgpool.exec('one', 'select 1/0');
	EXCEPTION WHEN division_by_zero THEN
		what := 'remote error'; held := test.held(); RETURN NEXT;
	END;
	BEGIN
		PERFORM * FROM pgpool.query('one', 'select ''x'' from generate_series(1, 1000)') AS t(a int);
	EXCEPTION WHEN invalid_text_representation THEN
		what := 'local error'; held := test.held(); RETURN NEXT;
	END;
	BEGIN
		PERFORM * FROM pgpool.query('one', 'select 1, 2') AS t(a int);
	EXCEPTION WHEN datatype_mismatch THEN
		what := 'columns'; held := test.held(); RETURN NEXT;
	END;
	BEGIN
		PERFORM pgpool.exec('one', 'select 1');
		RAISE EXCEPTION 'afterwards';
	EXCEPTION WHEN raise_exception THEN
		what := 'afterwards'; held := test.held(); RETURN NEXT;
	END;
	-- no lease is left
	PERFORM pgpool.checkin(pgpool.checkout('one', '10 s'));
END $$;
SELECT * FROM test.one_call();

--
-- An open remote transaction is rolled back on the same connection when the local one
-- aborts, regardless of the option reset
--

CREATE FUNCTION pg_temp.abort_all(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	lease bigint;
	pids int[] := '{}';
BEGIN
	FOR i IN 1 .. 20 LOOP
		BEGIN
			lease := pgpool.checkout_xact('one');
			pids := pids || test.remote_pid(lease);
			PERFORM pgpool.exec(lease, 'begin; insert into xact_log values (''aborted'')');
			IF sql <> '' THEN
				PERFORM pgpool.exec(lease, sql);
			END IF;
			RAISE EXCEPTION 'abort';
		EXCEPTION WHEN raise_exception OR division_by_zero THEN
			-- the next checkout, or the last check, reads the answer
		END;
	END LOOP;
	RETURN format('%s connections, %s rows, search_path %L',
		(SELECT count(DISTINCT pid) FROM unnest(pids) AS pid),
		(SELECT n FROM pgpool.query('one', 'select count(*) from xact_log where what = ''aborted''') AS t(n int)),
		(SELECT a FROM pgpool.query('one', 'show search_path') AS t(a text)));
END $$;
SELECT pg_temp.abort_all('');
SELECT pg_temp.abort_all('select 1/0');
SELECT pg_temp.abort_all('set search_path = pg_temp');
ALTER SERVER one OPTIONS (ADD reset 'never');
SELECT pgpool.exec('one', 'set search_path = public');
SELECT pg_temp.abort_all('set search_path = pg_temp');
ALTER SERVER one OPTIONS (DROP reset);
SELECT pg_temp.abort_all('');

--
-- A remote transaction that is still open when the local one commits
--

BEGIN;
SELECT pgpool.checkout_xact('one') AS lease \gset
SELECT test.remote_pid(:lease) AS pid \gset
SELECT pgpool.exec(:lease, 'begin; insert into xact_log values (''never'')');
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
SELECT test.held();
SELECT remote_pid = :pid AS same
  FROM pgpool.query('one', 'select pg_backend_pid()') AS t(remote_pid int);
-- the error of the commit
SELECT test.other('other', 'BEGIN');
SELECT test.other('other', 'SELECT pgpool.exec(pgpool.checkout_xact(''one''), ''begin'')');
SELECT test.err($$SELECT test.other('other', 'COMMIT')$$);
SELECT test.other('other', 'SELECT test.held()');
-- outside of a transaction block
SELECT test.err($$SELECT test.other('other',
	'SELECT pgpool.exec(pgpool.checkout_xact(''one''), ''begin'')')$$);
-- a failed remote transaction is open as well
BEGIN;
SELECT pgpool.checkout_xact('one') AS lease \gset
SELECT pgpool.exec(:lease, 'begin');
SAVEPOINT s1;
SELECT pgpool.exec(:lease, 'select 1/0');
ROLLBACK TO s1;
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
-- ended before the commit
BEGIN;
SELECT pgpool.checkout_xact('one') AS lease \gset
SELECT pgpool.exec(:lease, 'begin; insert into xact_log values (''in time'')');
SELECT pgpool.exec(:lease, 'commit');
COMMIT;
-- at ROLLBACK and ROLLBACK TO it is rolled back without an error
BEGIN;
SELECT pgpool.exec(pgpool.checkout_xact('one'), 'begin; insert into xact_log values (''never'')');
ROLLBACK;
BEGIN;
SAVEPOINT s1;
SELECT pgpool.exec(pgpool.checkout_xact('one'), 'begin; insert into xact_log values (''never'')');
ROLLBACK TO s1;
COMMIT;
-- session leases may leave theirs open
SELECT pgpool.checkout('one') AS lease \gset
BEGIN;
SELECT pgpool.exec(:lease, 'begin');
COMMIT;
SELECT pgpool.exec(:lease, 'rollback');
SELECT pgpool.checkin(:lease);

--
-- PREPARE TRANSACTION
--

SELECT current_setting('max_prepared_transactions')::int > 0 AS can_prepare \gset
\if :can_prepare
BEGIN;
SELECT pgpool.checkout_xact('one') > 0 AS leased;
PREPARE TRANSACTION 'pgpool_xact';
SELECT test.held();
SELECT pgpool.exec('one', 'select 1');
COMMIT PREPARED 'pgpool_xact';
BEGIN;
SELECT pgpool.exec(pgpool.checkout_xact('one'), 'begin');
\set VERBOSITY sqlstate
PREPARE TRANSACTION 'pgpool_xact';
\set VERBOSITY default
SELECT test.held();
SELECT count(*) FROM pg_prepared_xacts;
-- a session lease does not prevent it
SELECT pgpool.checkout('one') AS lease \gset
BEGIN;
SELECT pgpool.exec(:lease, 'begin');
PREPARE TRANSACTION 'pgpool_xact';
ROLLBACK PREPARED 'pgpool_xact';
SELECT pgpool.exec(:lease, 'rollback');
SELECT pgpool.checkin(:lease);
\endif

--
-- Cursors and deferred triggers at the end of a transaction
--

CREATE TABLE public.xact_local (a int);
CREATE FUNCTION test.at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pgpool.exec('shard1', 'insert into xact_log values (''deferred, one call'')');
	PERFORM pgpool.exec(pgpool.checkout_xact('shard1'), 'insert into xact_log values (''deferred, xact'')');
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON public.xact_local
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.at_commit();
BEGIN;
INSERT INTO public.xact_local VALUES (1);
SELECT pgpool.checkout_xact('one') > 0 AS leased;
COMMIT;
SELECT test.held();
DROP TABLE public.xact_local;

-- a cursor WITH HOLD has its rows after the transaction
BEGIN;
DECLARE held_cursor CURSOR WITH HOLD FOR
	SELECT * FROM pgpool.query(pgpool.checkout_xact('one'),
		'select generate_series(1, 3)') AS t(a int);
COMMIT;
FETCH ALL FROM held_cursor;
CLOSE held_cursor;

SELECT what, count(*) FROM pgpool.query('one', 'select what from xact_log') AS t(what text)
 GROUP BY what ORDER BY what;

--
-- 10,000 transactions leave nothing behind
--

SELECT checkouts AS before FROM pgpool.stats
 WHERE server = 'one' AND local_user = current_user \gset
DO $$
DECLARE
	failed int := 0;
BEGIN
	FOR i IN 1 .. 10000 LOOP
		BEGIN
			IF i % 2 = 0 THEN
				PERFORM pgpool.exec('one', 'select 1/0');
			ELSE
				PERFORM 1 / (pgpool.checkout_xact('one') * 0);
			END IF;
		EXCEPTION WHEN division_by_zero THEN
			failed := failed + 1;
		END;
	END LOOP;
	RAISE NOTICE '% failed', failed;
END $$;
SELECT checkouts - :before AS checkouts FROM pgpool.stats
 WHERE server = 'one' AND local_user = current_user;
SELECT test.held();
SELECT test.wait_for($$SELECT leased = 0 AND waiters = 0 AND total = 1 FROM pgpool.pools
	WHERE server = 'one' AND local_user = current_user$$);

-- many savepoints in one transaction
DO $$
BEGIN
	FOR i IN 1 .. 200 LOOP
		PERFORM * FROM test.nested();
		PERFORM pgpool.checkin_all();
	END LOOP;
END $$;

SELECT pgpool.exec('one', 'drop table xact_log');
SELECT dblink_disconnect('other');
DROP PROCEDURE test.two_transactions();
DROP FUNCTION test.nested(), test.one_call(), test.held(), test.at_commit();
SELECT pgpool.check_invariants();
