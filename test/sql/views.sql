-- The views: their contents, and the privileges to read them.

CREATE ROLE regress_views_user LOGIN;
CREATE ROLE regress_views_other LOGIN;
CREATE ROLE regress_views_stats LOGIN IN ROLE pg_read_all_stats;

-- servers that only this test uses
SELECT test.server('views_two', 'pool_size', '2');
SELECT test.server('views_one', 'pool_size', '1');
SELECT test.server('views_public');
CREATE SERVER views_down FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (host '/nowhere', retry_min '1h', retry_max '1h');
GRANT USAGE ON FOREIGN SERVER views_two, views_one, views_public, views_down
    TO regress_views_user, regress_views_other;
SELECT test.mapping('regress_views_user', 'views_' || suffix)
  FROM unnest('{two,one,down}'::text[]) AS suffix;
SELECT test.mapping('PUBLIC', 'views_public');

-- sessions of earlier tests may still be ending
SELECT test.wait_for('SELECT NOT EXISTS (SELECT FROM pgpool.leases)');
SELECT test.wait_for('SELECT bool_and(state = ''idle'') FROM pgpool.connections');

--
-- Before the first lease
--

SELECT count(*) FROM pgpool.pools WHERE server ~ '^views_';
SELECT count(*) FROM pgpool.connections WHERE server ~ '^views_';
SELECT count(*) FROM pgpool.leases;
SELECT count(*) FROM pgpool.waiters;
SELECT count(*) FROM pgpool.stats WHERE server ~ '^views_';
SELECT worker, pid > 0 AS pid, state, restarts >= 0 AS restarts,
       connections = (SELECT count(*) FROM pgpool.connections) AS connections,
       pools = (SELECT count(*) FROM pgpool.pools) AS pools
  FROM pgpool.workers;
SELECT w.pid = a.pid AS same, a.backend_type
  FROM pgpool.workers w JOIN pg_stat_activity a ON a.backend_type ~ 'pgpool_ext';

--
-- A lease
--

SET ROLE regress_views_user;
SET application_name = 'views test';
SELECT pgpool.checkout('views_two', why => 'to be seen') AS lease \gset
SELECT database = current_database() AS database, server, local_user,
       state, worker, pool_size
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT total, leased, idle, reset_pending, connecting, resetting, checking, cancelling,
       closing, waiters, oldest_wait
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT unavailable_since, remote_full_since, last_error, last_error_at, next_try_at
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT server, local_user, connection >= 0 AS connection,
       state, state_since >= opened_at AS since, stale,
       transport = current_setting('pgpx_test.transport') AS transport
  FROM pgpool.connections WHERE server ~ '^views_';
SELECT host(remote_addr) = current_setting('pgpx_test.remote_host') AS addr,
       remote_port = current_setting('pgpx_test.remote_port')::int AS port,
       c.remote_pid = q.pid AS pid
  FROM pgpool.connections c,
       pgpool.query(:lease, 'select pg_backend_pid()')
         AS q (pid int)
 WHERE c.server ~ '^views_';
SELECT opened_at > now() - interval '1 min' AS opened, last_used = opened_at AS used
  FROM pgpool.connections WHERE server ~ '^views_';
SELECT lease = :lease AS lease, server, pid = pg_backend_pid() AS pid, user_name,
       application_name, scope, state, leased_at <= clock_timestamp() AS leased, why
  FROM pgpool.leases;
SELECT count(*) AS joined
  FROM pgpool.leases JOIN pgpool.connections USING (pool_id, connection, remote_pid)
  JOIN pgpool.pools USING (pool_id) JOIN pgpool.stats USING (pool_id);

-- the state follows the transaction of the lease
SELECT pgpool.exec(:lease, 'begin');
SELECT state FROM pgpool.leases;
SELECT pgpool.exec(:lease, 'select 1/0');
SELECT state FROM pgpool.leases;
SELECT pgpool.exec(:lease, 'rollback');
SELECT state FROM pgpool.leases;

--
-- The same rows for other roles
--

RESET ROLE;
CREATE VIEW seen AS
SELECT l.user_name, l.application_name, l.why, p.last_error,
       c.remote_addr IS NOT NULL AS addr, c.remote_port IS NOT NULL AS port
  FROM pgpool.leases l JOIN pgpool.pools p USING (pool_id)
  JOIN pgpool.connections c USING (pool_id, connection);
GRANT SELECT ON seen TO PUBLIC;
SELECT * FROM seen;
SET ROLE regress_views_user;
SELECT * FROM seen;
SET ROLE regress_views_other;
SELECT * FROM seen;
SET ROLE regress_views_stats;
SELECT * FROM seen;
RESET ROLE;
-- a member of the holder's role sees the lease, but the pool is the holder's
GRANT regress_views_user TO regress_views_other;
SET ROLE regress_views_other;
SELECT * FROM seen;
RESET ROLE;
REVOKE regress_views_user FROM regress_views_other;

-- the functions show the same as the views
SET ROLE regress_views_other;
SELECT why FROM pgpool.leases();
SELECT count(*) FROM pgpool.pools() WHERE server ~ '^views_';
SELECT pgpool.check_invariants();
SET ROLE regress_views_stats;
SELECT pgpool.check_invariants();
RESET ROLE;
GRANT pg_monitor TO regress_views_stats;
SET ROLE regress_views_stats;
SELECT pgpool.check_invariants();
RESET ROLE;
SELECT pgpool.check_invariants();

--
-- The states of a pool
--

SET ROLE regress_views_user;
SELECT pgpool.checkout('views_two') AS second \gset
SELECT state, total, leased FROM pgpool.pools WHERE server ~ '^views_';
SELECT why, application_name FROM pgpool.leases ORDER BY lease;
SELECT pgpool.try_checkout('views_two') IS NULL AS none_free;
SELECT pgpool.checkin(:second);
SELECT state, total, leased, idle + reset_pending + resetting AS free
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT test.wait_for($$SELECT idle = 1 FROM pgpool.pools WHERE server = 'views_two'$$);
SELECT state, stale FROM pgpool.connections WHERE server ~ '^views_' ORDER BY opened_at;
-- leases under former options
RESET ROLE;
ALTER SERVER views_two OPTIONS (SET pool_size '3', ADD application_name 'views');
SET ROLE regress_views_user;
SELECT pgpool.exec('views_two', 'select 1');
SELECT state, pool_size, leased FROM pgpool.pools WHERE server ~ '^views_';
SELECT stale FROM pgpool.connections WHERE server ~ '^views_' AND state = 'leased';
SELECT pgpool.checkin(:lease);
SELECT test.wait_for($$SELECT idle = 1 AND total = 1 FROM pgpool.pools WHERE server = 'views_two'$$);
SELECT state FROM pgpool.pools WHERE server ~ '^views_';

-- a server that cannot be reached
SELECT test.err($$SELECT pgpool.checkout('views_down')$$);
SELECT test.err($$SELECT pgpool.checkout('views_down')$$);
SELECT state, total, last_error_at - unavailable_since < '1 s' AS since,
       last_error ~ '/nowhere' AS why, next_try_at > now() + interval '30 min' AS later
  FROM pgpool.pools WHERE server = 'views_down';
SET ROLE regress_views_other;
SELECT last_error FROM pgpool.pools WHERE server ~ '^views_' ORDER BY server;
-- with a PUBLIC mapping the pool is that of the local user
SELECT pgpool.exec('views_public', 'select 1');
SELECT local_user, last_error FROM pgpool.pools WHERE server = 'views_public';
RESET ROLE;

--
-- A waiting session
--

SELECT test.other_session('waiter');
SELECT dblink_exec('waiter', 'set application_name = ''waiting 1''');
SELECT dblink_exec('waiter', 'set role regress_views_user');
SET ROLE regress_views_user;
SELECT pgpool.checkout('views_one') AS lease \gset
RESET ROLE;
SELECT dblink_send_query('waiter', 'select pgpool.checkout(''views_one'', ''1 min'', ''to wait'')');
SELECT test.wait_for('SELECT EXISTS (SELECT FROM pgpool.waiters)');
SELECT server, position, pid <> pg_backend_pid() AS pid, user_name, application_name,
       waiting_since <= clock_timestamp() AS since,
       deadline - waiting_since BETWEEN '59.9 s' AND '60.1 s' AS deadline, why, reason
  FROM pgpool.waiters;
SELECT state, waiters, oldest_wait BETWEEN 0 AND 60000 AS oldest
  FROM pgpool.pools WHERE server = 'views_one';
SET ROLE regress_views_other;
SELECT user_name, application_name, why, reason FROM pgpool.waiters;
RESET ROLE;
SELECT pgpool.check_invariants();
SELECT pgpool.checkin(:lease);
SELECT count(*) FROM dblink_get_result('waiter') AS t (lease bigint);
SELECT count(*) FROM pgpool.waiters;
SELECT pid <> pg_backend_pid() AS pid, application_name, why
  FROM pgpool.leases;
SELECT dblink_disconnect('waiter');
SELECT test.wait_for('SELECT NOT EXISTS (SELECT FROM pgpool.leases)');
-- a wait without a deadline, cancelled
SELECT test.other_session(name), dblink_exec(name, 'set role regress_views_user')
  FROM unnest('{holder,waiter}'::text[]) AS name;
SELECT test.other('holder', 'select pgpool.checkout(''views_one'')') > '0' AS leased;
SELECT dblink_send_query('waiter', 'select pgpool.checkout(''views_one'', ''10 years'')');
SELECT test.wait_for('SELECT EXISTS (SELECT FROM pgpool.waiters)');
SELECT why, reason FROM pgpool.waiters;
SELECT dblink_cancel_query('waiter');
SELECT test.err($$SELECT * FROM dblink_get_result('waiter') AS t (lease bigint)$$);
SELECT count(*) FROM pgpool.waiters;
SELECT dblink_disconnect('waiter'), dblink_disconnect('holder');
SELECT test.wait_for('SELECT NOT EXISTS (SELECT FROM pgpool.leases)');

--
-- Counters
--

SELECT test.wait_for($$SELECT NOT EXISTS (SELECT FROM pgpool.pools WHERE server ~ '^views_' AND
    reset_pending + connecting + resetting + cancelling + closing > 0)$$);
SELECT server, local_user, checkouts, hits, waited, granted, timeouts, cancelled,
       failed, refused, unavailable, deadlocks
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, checkins, reclaimed, terminated, lease_timeouts, retried
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, wait_time > 0 AS wait, lease_time >= max_lease_time AS lease, connect_time > 0 AS connect, statements, rows, errors,
       bytes_received > 0 AS received, bytes_sent > 0 AS sent
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, connects, connects_failed, resets > 0 AS resets, checks, cancels
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, closed_stale, closed_idle + closed_lifetime + closed_overflow +
       closed_evicted + closed_reset + closed_broken + closed_with_lease AS closed
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT bool_and(stats_reset < clock_timestamp()) AS since FROM pgpool.stats;

-- a timestamp is shown the same each time
DO $$
DECLARE
	seen timestamptz[];
	one timestamptz[];
BEGIN
	FOR i IN 1 .. 300 LOOP
		SELECT array_agg(t ORDER BY t) INTO one FROM (
			SELECT opened_at FROM pgpool.connections WHERE server ~ '^views_' UNION ALL
			SELECT stats_reset FROM pgpool.stats WHERE server ~ '^views_') AS instants(t);
		seen := coalesce(seen, one);
		IF one <> seen THEN
			RAISE 'round %: % and %', i, seen, one;
		END IF;
	END LOOP;
END $$;

-- the sums that the view's comment states
SELECT bool_and(checkouts = checkins + reclaimed + terminated + lease_timeouts +
                retried + leased) AS leases,
       bool_and(waited = granted + timeouts + cancelled + failed) AS waits,
       bool_and(connects = closed_idle + closed_lifetime + closed_overflow + closed_evicted +
                closed_reset + closed_broken + closed_stale + closed_with_lease + total) AS connections,
       bool_and(total = leased + idle + reset_pending + connecting + resetting + checking + cancelling +
                closing) AS total
  FROM pgpool.stats s JOIN pgpool.pools USING (pool_id) WHERE s.server ~ '^views_';

-- each wait is in one bucket of the histogram
SELECT bool_and(cardinality(wait_histogram) = 32) AS buckets,
       bool_and((SELECT sum(n) FROM unnest(wait_histogram) AS n) = granted + timeouts + cancelled + failed) AS waits
  FROM pgpool.stats;

SELECT pgpool.check_invariants();
DROP VIEW seen;
SELECT test.drop('views_two', 'views_one', 'views_public', 'views_down');
REVOKE pg_read_all_stats, pg_monitor FROM regress_views_stats;
DROP ROLE regress_views_user, regress_views_other, regress_views_stats;
