--
-- Distributed locks: the functions, their errors, and invalid arguments.
--
SELECT test.server('locker', 'pool_size', '2');
SELECT test.mapping('regress_pgpool_app', 'locker');
GRANT USAGE ON FOREIGN SERVER locker TO regress_pgpool_app;

-- the schema does not exist yet
SELECT test.err($$SELECT pgpool.lock('locker', 'a')$$);
SELECT test.err($$SELECT pgpool.try_lock('locker', 'a')$$);
SELECT test.err($$SELECT * FROM pgpool.lock_status('locker')$$);
-- the error context names the server, and hides the internal statement
\set SHOW_CONTEXT always
SELECT pgpool.lock('locker', 'a');
SELECT * FROM pgpool.lock_status('locker');
\unset SHOW_CONTEXT

SELECT pgpool.lock_setup('locker');
SELECT pgpool.lock_setup('locker');
SELECT * FROM pgpool.lock_status('locker');
SELECT pgpool.lock('locker', 'a', ttl => '10 s', why => 'balancer') AS token \gset
SELECT :token > extract(epoch from now() - interval '1 day') * 1000000 AS like_a_clock;
SELECT pgpool.lock_valid('locker', 'a', :token), pgpool.lock_valid('locker', 'a', :token + 1), pgpool.lock_valid('locker', 'b', :token);
SELECT database, server, name, token = :token AS token, state, pid = pg_backend_pid() AS mine, user_name = current_user AS me, why,
	ttl, valid_until > now() AS valid, since < now() + interval '1 s' AS since, coalesce(last_ping, since) >= since AS ping FROM pgpool.locks;
SELECT name, state, instance <> '' AS instance, holder LIKE '%, PID %' AS holder, why, token = :token AS token, expires > now() AS expires
  FROM pgpool.lock_status('locker');
SELECT pgpool.unlock('locker', 'a', :token);
SELECT count(*) FROM pgpool.locks;
SELECT pgpool.lock_valid('locker', 'a', :token);
SELECT name, state FROM pgpool.lock_status('locker');

-- tokens are unique and increase
SELECT pgpool.lock('locker', 'a') AS second \gset
SELECT :second > :token AS rises;
-- pings start within the first second
SELECT test.wait_for('SELECT last_ping IS NOT NULL FROM pgpool.locks');
SELECT test.wait_for($$SELECT last_ping > since FROM pgpool.lock_status('locker')$$);

-- an uncommitted change of the server does not redirect pings, and no lock is acquired
-- under it
BEGIN;
ALTER SERVER locker OPTIONS (ADD connect_timeout '4 s');
SELECT test.err($$SELECT pgpool.lock('locker', 'b')$$);
SELECT test.err(format($$SELECT pgpool.unlock('locker', 'a', %s)$$, :second));
ROLLBACK;
SELECT pgpool.lock_valid('locker', 'a', :second);

-- release twice, with an old token, and with an unknown token
\set VERBOSITY terse
SELECT pgpool.unlock('locker', 'a', :token);
SELECT pgpool.unlock('locker', 'a', :second), pgpool.unlock('locker', 'a', :second);
SELECT pgpool.unlock('locker', 'a', -1);
-- release with a token of another server's lock, or of this lock under another name
SELECT test.server('locker2');
SELECT pgpool.lock('locker', 'a') AS third \gset
SELECT pgpool.lock_valid('locker2', 'a', :third), pgpool.unlock('locker2', 'a', :third);
SELECT pgpool.lock_valid('locker', 'a', :third), pgpool.unlock('locker', 'a', :third);
\set VERBOSITY default

-- invalid arguments
SELECT test.err($$SELECT pgpool.lock(NULL, 'a')$$);
SELECT test.err($$SELECT pgpool.lock('locker', NULL)$$);
SELECT test.err($$SELECT pgpool.lock('locker', 'a', ttl => NULL)$$);
SELECT test.err($$SELECT pgpool.lock_valid('locker', 'a', NULL)$$);
SELECT test.err($$SELECT pgpool.unlock('locker', 'a', NULL)$$);
SELECT test.err($$SELECT pgpool.lock('nowhere', 'a')$$);
SELECT test.err($$SELECT pgpool.lock('locker', '')$$);
SELECT test.err($$SELECT pgpool.lock('locker', repeat('x', 256))$$);
SELECT test.err($$SELECT pgpool.lock('locker', repeat('x', 1024 * 1024))$$);
SELECT test.err($$SELECT pgpool.lock('locker', repeat('€', 86))$$);
SELECT test.err($$SELECT pgpool.lock('locker', E'a\000b')$$);
SELECT test.err($$SELECT pgpool.unlock('locker', repeat('x', 256), 1)$$);
SELECT test.err($$SELECT pgpool.lock_valid('locker', '', 1)$$);
SELECT test.err($$SELECT pgpool.lock_force_release('locker', '')$$);
SELECT test.err($$SELECT pgpool.lock_force_release(NULL, 'a')$$);
SELECT test.err($$SELECT pgpool.lock_force_release('nowhere', 'a')$$);
SELECT test.err($$SELECT pgpool.lock_setup(NULL)$$);
SELECT test.err($$SELECT * FROM pgpool.lock_status(NULL)$$);
SELECT test.err($$SELECT pgpool.lock('locker', 'a', '-1 s')$$);
SELECT test.err(format($$SELECT pgpool.try_lock('locker', 'a', %L)$$, ttl))
  FROM unnest('{0,-1 s,999 ms,1 year,1 day 1 s}'::text[]) AS ttl;
SELECT count(*) FROM pgpool.locks;

-- unusual names are pinged and released unchanged
SELECT left(name, 20) AS name, pgpool.try_lock('locker', name, '1 min') AS token INTO TEMP odd
  FROM unnest(ARRAY['"', '''', '\', '{a,b}', '$1', E'\n', ' ', 'NULL', 'Größe €', repeat('x', 255), repeat('€', 85), '\000', 'a\0b', '%s', '--', U&'\+01F512']) AS name;
SELECT test.wait_for('SELECT bool_and(last_ping > since) FROM pgpool.locks');
SELECT count(*), bool_and(state = 'held') AS held, count(DISTINCT token) AS tokens, max(length(name)) FROM pgpool.locks;
SELECT bool_and(pgpool.unlock('locker', name, token)) AS released FROM pgpool.locks;
SELECT count(*) FROM pgpool.locks;
SELECT count(*), bool_and(state = 'free') AS free FROM pgpool.lock_status('locker');

-- the purpose of a lock, with a long text
SELECT pgpool.lock('locker', 'a', why => repeat('€', 1024 * 1024)) AS token \gset
SELECT why ~ '^€{42}$' AS why FROM pgpool.locks;
SELECT why ~ '^€{42}$' AS why FROM pgpool.lock_status('locker') WHERE name = 'a';
SELECT pgpool.unlock('locker', 'a', :token);

-- a hundredth of the ttl is kept as a margin for clock drift
SELECT pgpool.lock('locker', 'a', ttl => '1 day') AS token \gset
SELECT valid_until BETWEEN now() + 0.98 * ttl AND now() + 0.99 * ttl AS sooner FROM pgpool.locks;
SELECT pgpool.unlock('locker', 'a', :token);

-- a lock of another session
SELECT test.other_session('other');
SELECT test.other('other', $$SELECT pgpool.lock('locker', 'b', why => 'their work')$$) AS theirs \gset
SELECT pgpool.try_lock('locker', 'b');
\set mask 'regexp_replace(regexp_replace(e, ''PID \\d+'', ''PID N''), ''since .*'', ''since then.'')'
SELECT :mask FROM test.err($$SELECT pgpool.lock('locker', 'b', '1 ms')$$) AS e;
SELECT :mask FROM test.err($$SELECT pgpool.lock('locker', 'b', '100 ms')$$) AS e;
SELECT :mask FROM test.err($$SET LOCAL pgpool_ext.checkout_timeout = '50 ms'; SELECT pgpool.lock_xact('locker', 'b')$$) AS e;
-- the purpose is shown to users to whom the view shows the lock
SET ROLE regress_pgpool_app;
SELECT :mask FROM test.err($$SELECT pgpool.lock('locker', 'b', '1 ms')$$) AS e;
SELECT :mask FROM test.err($$SELECT pgpool.lock('locker', 'b', '100 ms')$$) AS e;
RESET ROLE;
GRANT pg_read_all_stats TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SELECT :mask FROM test.err($$SELECT pgpool.lock('locker', 'b', '1 ms')$$) AS e;
RESET ROLE;
REVOKE pg_read_all_stats FROM regress_pgpool_app;
SET LOCAL statement_timeout = '200 ms'\; SELECT pgpool.lock('locker', 'b', '1 min');
-- 0 means no limit
SET pgpool_ext.checkout_timeout = '20 ms';
SET LOCAL statement_timeout = '200 ms'\; SELECT pgpool.lock('locker', 'b', '0');
SET LOCAL statement_timeout = '200 ms'\; SELECT pgpool.lock_xact('locker', 'b', '0');
RESET pgpool_ext.checkout_timeout;
SELECT pgpool.lock_valid('locker', 'b', :theirs);
SELECT :mask FROM test.err(format('SELECT pgpool.unlock(%L, %L, %s)', 'locker', 'b', :theirs)) AS e;
-- the view of another local server
SELECT pgpool.try_lock('locker2', 'b');
SELECT regexp_replace(regexp_replace(e, '"[^"]*, PID N of [^"]*"', '"who"'), 'since .*', 'since then.')
  FROM test.err($$SELECT pgpool.lock('locker2', 'b', '500 ms')$$) AS e;
SELECT test.other('other', format($$SELECT pgpool.unlock('locker', 'b', %s)$$, :theirs));
SELECT pgpool.lock('locker2', 'b', '1 min') > :theirs AS granted;
-- the end of a session releases its locks
SELECT test.other('other', $$SELECT pgpool.lock('locker', 'c') IS NOT NULL$$);
SELECT pgpool.try_lock('locker', 'c');
SELECT dblink_disconnect('other');
SELECT pgpool.lock('locker', 'c', '1 min') IS NOT NULL AS granted;

-- the session's own locks
SELECT test.err($$SELECT pgpool.lock('locker', 'c')$$);
SELECT pgpool.try_lock('locker', 'c');

-- DISCARD ALL releases locks, as it does advisory locks
DISCARD ALL;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
SELECT name, state FROM pgpool.lock_status('locker') WHERE name IN ('b', 'c');

-- transaction locks
BEGIN;
SELECT pgpool.lock_xact('locker', 'x') AS token \gset
SELECT pgpool.lock_valid('locker', 'x', :token);
COMMIT;
SELECT pgpool.lock_valid('locker', 'x', :token);
BEGIN;
SELECT pgpool.lock_xact('locker', 'x', '1 min') > :token AS rises;
SELECT 1 / 0;
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT pgpool.lock_xact('locker', 'x', '1 min') IS NOT NULL AS granted;
RELEASE a;
SAVEPOINT b;
SELECT pgpool.try_lock_xact('locker', 'y') IS NOT NULL AS granted;
SAVEPOINT c;
SELECT pgpool.try_lock_xact('locker', 'z') IS NOT NULL AS granted;
RELEASE c;
ROLLBACK TO b;
SELECT test.wait_for($$SELECT array_agg(name) = '{x}' FROM pgpool.locks$$);
COMMIT;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
BEGIN;
SELECT pgpool.lock_xact('locker', 'x', '1 min') IS NOT NULL AS granted;
PREPARE TRANSACTION 'lock';
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
-- a session lock does not block the same session's transaction lock, and outlives it
BEGIN;
SELECT pgpool.lock('locker', 'x', '1 min') AS token \gset
PREPARE TRANSACTION 'lock';
SELECT pgpool.lock_valid('locker', 'x', :token);
ROLLBACK PREPARED 'lock';
SELECT pgpool.unlock('locker', 'x', :token);
-- it also outlives the subtransaction that acquired it
BEGIN;
SAVEPOINT a;
SELECT pgpool.lock('locker', 'x', '1 min') AS token \gset
ROLLBACK TO a;
SELECT pgpool.lock_valid('locker', 'x', :token);
ROLLBACK;
SELECT pgpool.unlock('locker', 'x', :token);
-- a READ ONLY transaction can acquire a lock, because nothing is written locally
BEGIN READ ONLY;
SELECT pgpool.lock_xact('locker', 'x', '1 min') > :token AS rises;
COMMIT;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');

-- fencing
SELECT pgpool.lock('locker', 'f', '1 min') AS token \gset
SELECT pgpool.exec('locker', 'SELECT pgpool_lock.fence_check($1, $2::bigint)', 'f', :token);
\set mask 'regexp_replace(e, ''\\m\\d{10,}'', ''N'', ''g'')'
SELECT :mask FROM test.err(format('SELECT pgpool.exec(''locker'', ''SELECT pgpool_lock.fence_check($1, $2::bigint)'', ''f'', %s)', :token - 1)) AS e;
SELECT :mask FROM test.err(format('SELECT pgpool.exec(''locker'', ''SELECT pgpool_lock.fence_check($1, $2::bigint)'', ''f'', %s)', :token + 1)) AS e;
SELECT :mask FROM test.err(format('SELECT pgpool.exec(''locker'', ''SELECT pgpool_lock.fence_check($1, $2::bigint)'', ''g'', %s)', :token)) AS e;
-- while a transaction has checked the token, no other session acquires the lock
SELECT pgpool.checkout('locker') AS lease \gset
SELECT pgpool.exec(:lease, 'BEGIN');
SELECT pgpool.exec(:lease, 'SELECT pgpool_lock.fence_check($1, $2::bigint)', 'f', :token);
SELECT pgpool.unlock('locker', 'f', :token);
SELECT pgpool.try_lock('locker', 'f');
SELECT pgpool.exec(:lease, 'COMMIT');
SELECT pgpool.checkin(:lease);
SELECT pgpool.try_lock('locker', 'f') > :token AS granted;
SELECT token AS released FROM pgpool.locks \gset
SELECT pgpool.unlock('locker', 'f', :released);
SELECT :mask FROM test.err(format('SELECT pgpool.exec(''locker'', ''SELECT pgpool_lock.fence_check($1, $2::bigint)'', ''f'', %s)', :released)) AS e;

-- forced release
SELECT pgpool.lock('locker', 'f') AS token \gset
SELECT pgpool.lock_force_release('locker', 'f'), pgpool.lock_force_release('locker', 'f'), pgpool.lock_force_release('locker', 'none');
SELECT test.err(format('SELECT pgpool.exec(''locker'', ''SELECT pgpool_lock.fence_check($1, $2::bigint)'', ''f'', %s)', :token)) LIKE 'ERROR%' AS refused LIMIT 1;
SELECT test.wait_for($$SELECT state = 'lost' FROM pgpool.locks$$);
\set VERBOSITY terse
SELECT pgpool.lock_valid('locker', 'f', :token);
SELECT pgpool.lock_valid('locker', 'f', :token);
SELECT pgpool.unlock('locker', 'f', :token);
SELECT count(*) FROM pgpool.locks;
SELECT pgpool.lock('locker', 'f') > :token AS granted;
SELECT pgpool.lock_force_release('locker', 'f');
SELECT test.wait_for($$SELECT state = 'lost' FROM pgpool.locks$$);
-- the next call for the lock also reports the loss
SELECT pgpool.lock('locker', 'f') > :token AS granted;
DISCARD ALL;
\set VERBOSITY default

-- the row lock of another session on a lock that another server holds is not waited for
SELECT pgpool.checkout('locker') AS lease \gset
SELECT pgpool.try_lock('locker', 'second') IS NOT NULL AS granted;
SELECT pgpool.exec('locker', $$UPDATE pgpool_lock.locks SET instance = 'another server' WHERE name = 'second'$$);
SELECT pgpool.exec(:lease, 'BEGIN');
SELECT pgpool.exec(:lease, $$SELECT FROM pgpool_lock.locks WHERE name = 'second' FOR UPDATE$$);
SELECT split_part(e, ' DETAIL', 1) AS e FROM test.err($$SELECT pgpool.lock('locker2', 'second', '100 ms')$$) AS e LIMIT 1;
SELECT pgpool.exec(:lease, 'ROLLBACK');
SELECT pgpool.checkin(:lease);
SELECT pgpool.lock_force_release('locker', 'second');
DISCARD ALL;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');

-- privileges
SET ROLE regress_pgpool_app;
SELECT test.err($$SELECT pgpool.lock_force_release('locker', 'f')$$);
SELECT test.err($$SELECT pgpool.lock('locker2', 'f')$$);
SELECT pgpool.lock('locker', 'app', '1 min', why => 'a secret') AS token \gset
RESET ROLE;
SELECT name, user_name, why FROM pgpool.locks;
CREATE ROLE regress_lock_watcher;
SET ROLE regress_lock_watcher;
SELECT name, token, user_name, why FROM pgpool.locks;
RESET ROLE;
DROP ROLE regress_lock_watcher;
SET ROLE regress_pgpool_app;
SELECT pgpool.unlock('locker', 'app', :token);
RESET ROLE;

-- EXECUTE is not enough for a forced release: the user must be the server's owner, or a
-- member of pg_signal_backend
GRANT EXECUTE ON FUNCTION pgpool.lock_force_release TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SELECT pgpool.lock('locker', 'app', '1 min') AS token \gset
SELECT test.err($$SELECT pgpool.lock_force_release('locker', 'app')$$);
SELECT pgpool.lock_valid('locker', 'app', :token);
RESET ROLE;
GRANT pg_signal_backend TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SELECT pgpool.lock_force_release('locker', 'app');
RESET ROLE;
REVOKE pg_signal_backend FROM regress_pgpool_app;
REVOKE EXECUTE ON FUNCTION pgpool.lock_force_release FROM regress_pgpool_app;
DISCARD ALL;
-- a lock is released by the role that acquired it; other roles of the session cannot
-- release it
SET ROLE regress_pgpool_app;
SELECT pgpool.lock('locker', 'app', '1 min') AS token \gset
RESET ROLE;
SELECT pgpool.lock_valid('locker', 'app', :token);
SELECT test.err(format('SELECT pgpool.unlock(''locker'', ''app'', %s)', :token));
-- a lock is lost if the user mapping with which it was acquired is dropped, even if
-- there is a new one
SELECT test.run('DROP USER MAPPING FOR regress_pgpool_app SERVER locker');
SELECT test.mapping('regress_pgpool_app', 'locker');
SELECT test.wait_for('SELECT state = ''lost'' FROM pgpool.locks');
SELECT max(pool_id) AS newest FROM pgpool.pools \gset
SET ROLE regress_pgpool_app;
SET client_min_messages = error;
SELECT pgpool.unlock('locker', 'app', :token);
RESET client_min_messages;
-- which does not need the new pool
SELECT count(*) FROM pgpool.pools WHERE pool_id > :newest;
RESET ROLE;
-- it is not released on the remote server, because that would need the dropped mapping
SELECT pgpool.lock_force_release('locker', 'app');
-- a lock is lost if its user may not use the server any more
SET ROLE regress_pgpool_app;
SELECT pgpool.lock('locker', 'app', '1 min') AS token \gset
RESET ROLE;
REVOKE USAGE ON FOREIGN SERVER locker FROM regress_pgpool_app;
SELECT test.wait_for('SELECT state = ''lost'' FROM pgpool.locks');
SET ROLE regress_pgpool_app;
SELECT test.err(format('SELECT pgpool.unlock(''locker'', ''app'', %s)', :token));
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER locker TO regress_pgpool_app;
SET ROLE regress_pgpool_app;
SET client_min_messages = error;
SELECT pgpool.lock_valid('locker', 'app', :token);
RESET client_min_messages;
RESET ROLE;
DISCARD ALL;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
SELECT pgpool.lock_force_release('locker', 'app');
-- a pool for all users: each one releases and sees its own locks only
SELECT test.server('common');
SELECT test.run('DROP USER MAPPING FOR CURRENT_USER SERVER common');
CREATE USER MAPPING FOR PUBLIC SERVER common OPTIONS (user 'remote_app', password 'secret of the remote');
CREATE ROLE regress_pgpool_other;
GRANT USAGE ON FOREIGN SERVER common TO regress_pgpool_app, regress_pgpool_other;
PREPARE status AS SELECT state, regexp_replace(holder, ', PID .*', '') AS holder, why, token = $1 AS token
  FROM pgpool.lock_status('common') WHERE name = 'mine';
SET ROLE regress_pgpool_app;
SELECT pgpool.lock('common', 'mine', '1 min', '60 s', 'private') AS token \gset
EXECUTE status(:token);
SET ROLE regress_pgpool_other;
SELECT test.err(format('SELECT pgpool.unlock(''common'', ''mine'', %s)', :token));
EXECUTE status(:token);
RESET ROLE;
EXECUTE status(:token);
GRANT pg_read_all_stats TO regress_pgpool_other;
SET ROLE regress_pgpool_other;
EXECUTE status(:token);
RESET ROLE;
REVOKE pg_read_all_stats FROM regress_pgpool_other;
-- the lock is still held; nor may another user see a holder of another server
SET ROLE regress_pgpool_app;
SELECT pgpool.unlock('common', 'mine', :token);
SELECT pgpool.exec('common', $$UPDATE pgpool_lock.locks SET instance = 'another server', state = 'held' WHERE name = 'mine'$$);
EXECUTE status(:token);
SELECT regexp_replace(e, 'since .*', 'since then.') FROM test.err($$SELECT pgpool.lock('common', 'mine', '100 ms')$$) AS e;
SELECT pgpool.exec('common', $$DELETE FROM pgpool_lock.locks WHERE name = 'mine'$$);
-- the lock of a user without USAGE is lost and released, and those of others are not
SELECT pgpool.lock('common', 'mine', '1 min', '60 s', 'private') AS token \gset
RESET ROLE;
SELECT pgpool.lock('common', 'kept', '1 min') AS kept \gset
REVOKE USAGE ON FOREIGN SERVER common FROM regress_pgpool_app;
SELECT name, state FROM pgpool.locks ORDER BY name;
SELECT test.wait_for($$SELECT state = 'free' FROM pgpool.lock_status('common') WHERE name = 'mine'$$);
SELECT pgpool.unlock('common', 'kept', :kept);
DISCARD ALL;
SELECT test.drop('common');
DROP ROLE regress_pgpool_other;
-- a lock is lost if the server is dropped
SELECT test.server('going');
SELECT pgpool.lock('going', 'app', '1 min') > :token AS rises;
SELECT token FROM pgpool.locks \gset
SELECT test.drop('going');
SELECT test.err(format('SELECT pgpool.unlock(''going'', ''app'', %s)', :token));
SELECT test.wait_for('SELECT state = ''lost'' FROM pgpool.locks');
DISCARD ALL;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
SELECT pgpool.lock_force_release('locker', 'app');
SELECT name, state FROM pgpool.lock_status('locker') WHERE name = 'app';

-- security-restricted operations, which call functions of a table's owner in the session
-- of another user
SET ROLE regress_pgpool_app;
CREATE TABLE public.restricted_rows AS SELECT 1 AS i;
CREATE TABLE public.restricted_calls (name text, call text);
CREATE FUNCTION public.restricted_run(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT name, call FROM public.restricted_calls ORDER BY name COLLATE "C" LOOP
		BEGIN
			EXECUTE c.call;
			RAISE NOTICE '%: succeeds', c.name;
		EXCEPTION WHEN OTHERS THEN
			RAISE NOTICE '%: % %', c.name, sqlstate, sqlerrm;
		END;
	END LOOP;
	RETURN i;
END $$;
CREATE INDEX restricted_index ON public.restricted_rows (public.restricted_run(i));
CREATE MATERIALIZED VIEW public.restricted_view AS SELECT public.restricted_run(i) FROM public.restricted_rows;
RESET ROLE;
SELECT pgpool.checkout('locker') AS lease \gset
SELECT pgpool.lock('locker', 'restricted') AS token \gset
SELECT pgpool.exec(:lease, 'create temp table work as select 1 as n');
INSERT INTO public.restricted_calls VALUES
	('cancel', format('SELECT pgpool.cancel(%s)', :lease)),
	('checkin', format('SELECT pgpool.checkin(%s)', :lease)),
	('checkin_all', 'SELECT pgpool.checkin_all()'),
	('checkout', $$SELECT pgpool.checkout('locker')$$),
	('checkout_xact', $$SELECT pgpool.checkout_xact('locker')$$),
	('describe', format('SELECT * FROM pgpool.describe(%s, %L)', :lease, 'select 1')),
	('discard', format('SELECT pgpool.discard(%s)', :lease)),
	('exec', format('SELECT pgpool.exec(%s, %L)', :lease, 'drop table work')),
	('exec on a pool', $$SELECT pgpool.exec('locker', 'select 1')$$),
	('fanout', $$SELECT * FROM pgpool.fanout('{locker}', 'select 1') AS t(pool text, n int)$$),
	('lock', $$SELECT pgpool.lock('locker', 'other')$$),
	('lock_xact', $$SELECT pgpool.lock_xact('locker', 'other')$$),
	('notifications', format('SELECT * FROM pgpool.notifications(%s)', :lease)),
	('send', format('SELECT pgpool.send(%s, %L)', :lease, 'select 1')),
	('try_checkout', $$SELECT pgpool.try_checkout('locker')$$),
	('try_checkout_xact', $$SELECT pgpool.try_checkout_xact('locker')$$),
	('try_lock', $$SELECT pgpool.try_lock('locker', 'other')$$),
	('try_lock_xact', $$SELECT pgpool.try_lock_xact('locker', 'other')$$),
	('unlock', format('SELECT pgpool.unlock(%L, %L, %s)', 'locker', 'restricted', :token)),
	('wait_any', format('SELECT pgpool.wait_any(ARRAY[%s]::bigint[])', :lease));
ANALYZE public.restricted_rows;
DELETE FROM public.restricted_calls WHERE name <> 'checkin_all';
REINDEX INDEX public.restricted_index;
CREATE INDEX ON public.restricted_rows (public.restricted_run(i + 1));
REFRESH MATERIALIZED VIEW public.restricted_view;
SELECT * FROM pgpool.query(:lease, 'select n from work') AS t(n int);
SELECT pgpool.lock_valid('locker', 'restricted', :token);
SELECT pgpool.unlock('locker', 'restricted', :token);
SELECT pgpool.checkin(:lease);
-- outside of them the same functions can be used
SELECT public.restricted_run(1);
DROP MATERIALIZED VIEW public.restricted_view;
DROP TABLE public.restricted_rows, public.restricted_calls;
DROP FUNCTION public.restricted_run(int);

-- a table without privileges; a read-only remote
SELECT test.server('rooted');
SELECT test.run('ALTER USER MAPPING FOR CURRENT_USER SERVER rooted OPTIONS (SET user ''remote_super'', SET password ''root secret'')');
SELECT pgpool.exec('rooted', 'CREATE ROLE remote_nopriv LOGIN PASSWORD ''none''');
SELECT test.server('nopriv');
SELECT test.run('ALTER USER MAPPING FOR CURRENT_USER SERVER nopriv OPTIONS (SET user ''remote_nopriv'', SET password ''none'')');
SELECT test.err($$SELECT pgpool.lock('nopriv', 'a')$$);
SELECT test.err($$SELECT pgpool.lock_setup('nopriv')$$);
SELECT pgpool.exec('rooted', 'GRANT USAGE ON SCHEMA pgpool_lock TO remote_nopriv; GRANT SELECT, INSERT, UPDATE ON pgpool_lock.locks TO remote_nopriv');
SELECT pgpool.lock('nopriv', 'a') IS NOT NULL AS granted;
SELECT test.wait_for('SELECT last_ping IS NOT NULL FROM pgpool.locks');
SELECT bool_and(pgpool.unlock('nopriv', name, token)) FROM pgpool.locks;
SELECT test.server('frozen', 'options', '-c default_transaction_read_only=on');
SELECT test.err($$SELECT pgpool.try_lock('frozen', 'a')$$);
SELECT test.err($$SELECT pgpool.lock('frozen', 'a', '20 s')$$);
-- a deleted row does not bring an old token back
SELECT pgpool.lock('locker', 'a') AS token \gset
SELECT pgpool.exec('locker', 'DELETE FROM pgpool_lock.locks WHERE name = ''a''');
SELECT pgpool.try_lock('locker2', 'a') > :token AS rises;
\set VERBOSITY terse
SELECT pgpool.unlock('locker', 'a', :token);
DISCARD ALL;
\set VERBOSITY default
-- a function is missing
SELECT pgpool.exec('locker', 'DROP FUNCTION pgpool_lock.ping');
SELECT test.err($$SELECT pgpool.lock('locker', 'a')$$);
SELECT pgpool.lock_setup('locker');
-- a free lock that this server has kept for a while is left to another server that wants
-- it, unless the request is not repeated
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
SELECT pgpool.unlock('locker', 'yield', pgpool.lock('locker', 'yield'));
SELECT pgpool.exec('locker', $$UPDATE pgpool_lock.locks SET turn = now() - interval '1 min', contended = now() + interval '1 hour' WHERE name = 'yield'$$);
SELECT test.err($$SELECT pgpool.lock('locker', 'yield', '100 ms')$$);
SELECT pgpool.try_lock('locker', 'yield') IS NOT NULL AS granted;
SELECT bool_and(pgpool.unlock(server, name, token)) FROM pgpool.locks;
SELECT pgpool.exec('locker', $$UPDATE pgpool_lock.locks SET contended = now() - interval '1 s' WHERE name = 'yield'$$);
SELECT pgpool.lock('locker', 'yield', '30 s') IS NOT NULL AS granted;
SELECT bool_and(pgpool.unlock(server, name, token)) FROM pgpool.locks;
SELECT count(pgpool.try_lock('locker', 'many ' || n)) FROM generate_series(1, current_setting('pgpool_ext.max_locks')::int) AS n;
SELECT test.err($$SELECT pgpool.try_lock('locker', 'one more')$$);
SELECT pgpool.check_invariants();
DISCARD ALL;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
-- a role that is not a superuser can use half of the slots, whichever role its sessions
-- change to
CREATE ROLE regress_lock_second;
SELECT test.mapping('regress_lock_second', 'locker');
GRANT USAGE ON FOREIGN SERVER locker TO regress_lock_second;
GRANT regress_lock_second TO regress_pgpool_app;
SET SESSION AUTHORIZATION regress_pgpool_app;
SELECT count(pgpool.try_lock('locker', 'many ' || n)) FROM generate_series(2, current_setting('pgpool_ext.max_locks')::int / 2) AS n;
SET ROLE regress_lock_second;
SELECT pgpool.try_lock('locker', 'as second') AS token \gset
SELECT test.err($$SELECT pgpool.try_lock('locker', 'one more')$$);
RESET SESSION AUTHORIZATION;
SELECT pgpool.try_lock('locker', 'one more') IS NOT NULL AS granted;
SET SESSION AUTHORIZATION regress_pgpool_app;
SET ROLE regress_lock_second;
SELECT pgpool.unlock('locker', 'as second', :token);
SELECT test.wait_for('SELECT count(*) = current_setting(''pgpool_ext.max_locks'')::int / 2 FROM pgpool.locks');
SELECT pgpool.try_lock('locker', 'one more too') IS NOT NULL AS granted;
RESET SESSION AUTHORIZATION;
DISCARD ALL;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
SELECT test.run('DROP USER MAPPING FOR regress_lock_second SERVER locker');
DROP OWNED BY regress_lock_second;
DROP ROLE regress_lock_second;
SELECT DISTINCT state FROM pgpool.lock_status('locker');
SELECT pgpool.check_invariants();

-- operators of other schemas, ahead of pg_catalog in the user's search_path, are not
-- called
SELECT pgpool.exec('rooted', $remote$
CREATE SCHEMA hostile;
GRANT USAGE ON SCHEMA hostile TO PUBLIC;
DO $$
DECLARE
	op record;
	n int := 0;
BEGIN
	FOR op IN SELECT DISTINCT oprname, l.name AS l, r.name AS r FROM pg_catalog.pg_operator o,
			unnest('{text,name,int4,int8,float8,timestamptz,interval,bool,oid,text[],oid[]}'::text[]) AS l(name),
			unnest('{text,name,int4,int8,float8,timestamptz,interval,bool,oid,text[],oid[]}'::text[]) AS r(name)
		WHERE oprname IN ('=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '||')
	LOOP
		n := n + 1;
		EXECUTE format('CREATE FUNCTION hostile.f%s(%s, %s) RETURNS bool LANGUAGE plpgsql AS %L', n, op.l, op.r,
			format('BEGIN RAISE EXCEPTION ''hostile %s %s %s''; END', op.l, op.oprname, op.r));
		EXECUTE format('CREATE OPERATOR hostile.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = hostile.f%s)', op.oprname, op.l, op.r, n);
	END LOOP;
END $$
$remote$);
SELECT test.server('misled', 'options', '-c search_path=hostile,pg_catalog', 'pool_size', '2');
SELECT test.err($$SELECT pgpool.exec('misled', 'SELECT date_part(''epoch'', now()) * 1000000')$$);
SELECT pgpool.exec('rooted', 'SET client_min_messages = warning; DROP SCHEMA pgpool_lock CASCADE');
SELECT pgpool.lock_setup('misled');
SELECT pgpool.lock_setup('misled');
SELECT pgpool.lock('misled', 'h', '1 min') AS token \gset
SELECT test.wait_for('SELECT last_ping IS NOT NULL FROM pgpool.locks');
SELECT pgpool.exec('misled', 'SELECT pgpool_lock.fence_check($1, $2::bigint)', 'h', :token);
SELECT pgpool.try_lock('locker2', 'h'), name, state FROM pgpool.lock_status('misled') WHERE name = 'h';
SELECT pgpool.unlock('misled', 'h', :token);
SELECT pgpool.try_lock('misled', 'h') > :token AS rises;
SELECT test.server('misled2', 'options', '-c search_path=hostile,pg_catalog');
SELECT pgpool.exec('misled2', 'SELECT 1');
SELECT regexp_replace(regexp_replace(e, '"[^"]*, PID N of [^"]*"', '"who"'), 'since .*', 'since then.')
  FROM test.err($$SELECT pgpool.lock('misled2', 'h', '100 ms')$$) AS e;
SELECT pgpool.lock_force_release('misled', 'h');
DISCARD ALL;
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.locks');
SELECT pgpool.exec('rooted', 'SET client_min_messages = warning; DROP SCHEMA pgpool_lock, hostile CASCADE');
SELECT test.drop('misled', 'misled2');

-- a server that has never answered is not waited for
SELECT test.server('absent');
ALTER SERVER absent OPTIONS (SET port '1');
SET statement_timeout = '30 s';
SELECT e FROM test.err($$SELECT pgpool.lock('absent', 'a', '1 h')$$) AS e LIMIT 1;
RESET statement_timeout;
SELECT test.drop('absent');

-- the schema was created by another role before
SELECT pgpool.exec('rooted', 'CREATE SCHEMA pgpool_lock AUTHORIZATION remote_nopriv; GRANT ALL ON SCHEMA pgpool_lock TO PUBLIC');
SELECT test.err($$SELECT pgpool.lock_setup('locker')$$);
SELECT pgpool.exec('rooted', 'ALTER SCHEMA pgpool_lock OWNER TO remote_super; CREATE FUNCTION pgpool_lock.fence_check() RETURNS int RETURN 1; ALTER FUNCTION pgpool_lock.fence_check() OWNER TO remote_nopriv');
SELECT test.err($$SELECT pgpool.lock_setup('locker')$$);
SELECT pgpool.exec('rooted', 'DROP FUNCTION pgpool_lock.fence_check()');
SELECT pgpool.lock_setup('locker');
-- its code does not run: a trigger, a table, the schema, a function
SELECT pgpool.exec('rooted', $remote$
CREATE FUNCTION public.remote_trap() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN ALTER ROLE remote_nopriv SUPERUSER; RETURN NULL; END';
ALTER FUNCTION public.remote_trap() OWNER TO remote_nopriv;
CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON pgpool_lock.locks FOR EACH STATEMENT EXECUTE FUNCTION public.remote_trap()
$remote$);
SELECT test.err($$SELECT pgpool.lock('rooted', 'a')$$);
SELECT test.err(c) AS e FROM unnest(ARRAY[
	$$SELECT pgpool.try_lock('rooted', 'a')$$, $$SELECT * FROM pgpool.lock_status('rooted')$$,
	$$SELECT pgpool.lock_force_release('rooted', 'a')$$, $$SELECT pgpool.lock_setup('rooted')$$]) AS c;
SELECT * FROM pgpool.query('rooted', $$SELECT rolsuper FROM pg_roles WHERE rolname = 'remote_nopriv'$$) AS t(rolsuper bool);
SELECT pgpool.exec('rooted', 'DROP FUNCTION public.remote_trap() CASCADE');
-- a role with TRIGGER, in WHEN: a function, an operator, a domain
SELECT pgpool.exec('rooted', $remote$
GRANT TRIGGER ON pgpool_lock.locks TO remote_nopriv;
CREATE SCHEMA remote_when AUTHORIZATION remote_nopriv;
GRANT USAGE ON SCHEMA remote_when TO PUBLIC;
SET ROLE remote_nopriv;
CREATE FUNCTION remote_when.trap(text) RETURNS bool LANGUAGE plpgsql AS
	'BEGIN ALTER ROLE remote_nopriv SUPERUSER; RETURN false; END';
CREATE OPERATOR remote_when.!! (FUNCTION = remote_when.trap, RIGHTARG = text);
CREATE DOMAIN remote_when.trapped AS text CHECK (remote_when.trap(VALUE));
RESET ROLE
$remote$);
SELECT condition, pgpool.exec('rooted', 'SET ROLE remote_nopriv; CREATE TRIGGER trap BEFORE INSERT ON pgpool_lock.locks FOR EACH ROW WHEN (' || condition || ') EXECUTE FUNCTION suppress_redundant_updates_trigger(); RESET ROLE') = 0 AS created,
	(SELECT e FROM test.err($$SELECT pgpool.try_lock('rooted', 'a')$$ || left(condition, 0)) AS e LIMIT 1) AS error,
	pgpool.exec('rooted', 'DROP TRIGGER trap ON pgpool_lock.locks') = 0 AS dropped
  FROM unnest(ARRAY['remote_when.trap(NEW.name)', 'OPERATOR(remote_when.!!) NEW.name', 'NEW.name::remote_when.trapped IS NULL']) AS condition;
SELECT * FROM pgpool.query('rooted', $$SELECT rolsuper FROM pg_roles WHERE rolname = 'remote_nopriv'$$) AS t(rolsuper bool);
SELECT pgpool.exec('rooted', 'SET client_min_messages = warning; DROP SCHEMA remote_when CASCADE; REVOKE TRIGGER ON pgpool_lock.locks FROM remote_nopriv');
SELECT pgpool.exec('rooted', 'ALTER TABLE pgpool_lock.locks OWNER TO remote_nopriv');
SELECT e FROM test.err($$SELECT pgpool.try_lock('rooted', 'a')$$) AS e LIMIT 1;
SELECT pgpool.exec('rooted', 'ALTER TABLE pgpool_lock.locks OWNER TO remote_super; ALTER SCHEMA pgpool_lock OWNER TO remote_nopriv');
SELECT e FROM test.err($$SELECT pgpool.try_lock('rooted', 'a')$$) AS e LIMIT 1;
SELECT pgpool.exec('rooted', 'ALTER SCHEMA pgpool_lock OWNER TO remote_super; ALTER FUNCTION pgpool_lock.fence_check(text, bigint) OWNER TO remote_nopriv');
SELECT e FROM test.err($$SELECT pgpool.try_lock('rooted', 'a')$$) AS e LIMIT 1;
SELECT pgpool.exec('rooted', 'ALTER FUNCTION pgpool_lock.fence_check(text, bigint) OWNER TO remote_super; ALTER FUNCTION pgpool_lock.commit_durably OWNER TO remote_nopriv');
SELECT e FROM test.err($$SELECT pgpool.try_lock('rooted', 'a')$$) AS e LIMIT 1;
-- a role may use its own objects, but not while it is only the current user
SELECT pgpool.exec('rooted', 'ALTER SCHEMA pgpool_lock OWNER TO remote_nopriv; ALTER TABLE pgpool_lock.locks OWNER TO remote_nopriv');
SELECT pgpool.try_lock('nopriv', 'own') IS NOT NULL AS granted;
SELECT test.wait_for('SELECT last_ping IS NOT NULL FROM pgpool.locks');
SELECT bool_and(pgpool.unlock('nopriv', name, token)) FROM pgpool.locks;
ALTER SERVER rooted OPTIONS (ADD start_commands 'SET ROLE remote_nopriv');
SELECT e FROM test.err($$SELECT pgpool.try_lock('rooted', 'a')$$) AS e LIMIT 1;
ALTER SERVER rooted OPTIONS (DROP start_commands);
-- the owner of the database is trusted
SELECT pgpool.exec('rooted', 'REASSIGN OWNED BY remote_nopriv TO remote_app');
SELECT pgpool.try_lock('rooted', 'a') IS NOT NULL AS granted;
SELECT bool_and(pgpool.unlock('rooted', name, token)) FROM pgpool.locks;

SELECT pgpool.exec('rooted', 'SET client_min_messages = warning; DROP OWNED BY remote_nopriv; DROP ROLE remote_nopriv; DROP SCHEMA pgpool_lock CASCADE');
SELECT test.drop('locker', 'locker2', 'rooted', 'nopriv', 'frozen');
