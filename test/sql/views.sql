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

--
-- Before the first lease
--

SELECT count(*) FROM pgpool.pools WHERE server ~ '^views_';
SELECT count(*) FROM pgpool.connections WHERE server ~ '^views_';
SELECT count(*) FROM pgpool.leases;
SELECT count(*) FROM pgpool.waiters;
SELECT count(*) FROM pgpool.stats WHERE server ~ '^views_';
SELECT count(*) FROM pgpool.wait_histogram WHERE database = current_database() AND server ~ '^views_';
SELECT worker, pid > 0 AS pid, state, started_at < clock_timestamp() AS started,
       restarts >= 0 AS restarts, connections = connections_used AS connections, connections_max,
       pools = pools_used AS pools, pools_max
  FROM pgpool.workers;
SELECT w.pid = a.pid AS same, a.backend_type
  FROM pgpool.workers w JOIN pg_stat_activity a ON a.backend_type ~ 'pgpool_ext';

--
-- A lease
--

SET ROLE regress_views_user;
SET application_name = 'views test';
SELECT pgpool.checkout('views_two', why => 'to be seen') AS lease \gset
SELECT database = current_database() AS database, server, local_user, shared,
       state, worker, pool_size, max_overflow, min_size, min_idle
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT total, leased, idle, reset_pending, connecting, resetting, checking, cancelling,
       closing, overflow, waiters, oldest_wait
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT created_at <= last_checkout AS created, last_checkout <= clock_timestamp() AS used,
       unavailable_since, remote_full_since, last_error, last_error_at, next_try_at
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT server, local_user, connection >= 0 AS connection, generation > 0 AS generation,
       state, state_since >= opened_at AS since, reset_pending, stale,
       transport = current_setting('pgpx_test.transport') AS transport
  FROM pgpool.connections WHERE server ~ '^views_';
SELECT host(remote_addr) = current_setting('pgpx_test.remote_host') AS addr,
       remote_port = current_setting('pgpx_test.remote_port')::int AS port,
       c.remote_pid = q.pid AS pid, remote_version = version AS version,
       local_port = q.port AS local_port
  FROM pgpool.connections c,
       pgpool.query(:lease, $$select pg_backend_pid(), split_part(current_setting('server_version'), ' ', 1),
           inet_client_port()$$)
         AS q (pid int, version text, port int)
 WHERE c.server ~ '^views_';
SELECT opened_at > now() - interval '1 min' AS opened, connect_time BETWEEN 0 AND 60000 AS took,
       last_used = opened_at AS used, leases, statements, last_checked,
       lease = :lease AS lease, holder_pid = pg_backend_pid() AS holder, last_pid
  FROM pgpool.connections WHERE server ~ '^views_';
SELECT lease = :lease AS lease, server, pid = pg_backend_pid() AS pid, user_name,
       application_name, scope, state, leased_at <= clock_timestamp() AS leased,
       waited BETWEEN 0 AND 60000 AS waited, why
  FROM pgpool.leases;
SELECT count(*) AS joined
  FROM pgpool.leases JOIN pgpool.connections USING (pool_id, connection, lease, remote_pid)
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
  JOIN pgpool.connections c USING (pool_id, lease);
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
SELECT state, total, leased, available = idle + reset_pending AS available_sum, available + resetting AS free
  FROM pgpool.pools WHERE server ~ '^views_';
SELECT test.wait_for($$SELECT idle = 1 FROM pgpool.pools WHERE server = 'views_two'$$);
SELECT state, stale, lease = :lease AS lease, holder_pid = pg_backend_pid() AS holder,
       last_pid = pg_backend_pid() AS last
  FROM pgpool.connections WHERE server ~ '^views_' ORDER BY generation;
-- leases under former options
RESET ROLE;
ALTER SERVER views_two OPTIONS (SET pool_size '3', ADD application_name 'views');
SET ROLE regress_views_user;
SELECT pgpool.exec('views_two', 'select 1');
SELECT state, pool_size, leased FROM pgpool.pools WHERE server ~ '^views_';
SELECT stale, lease = :lease AS lease
  FROM pgpool.connections WHERE server ~ '^views_' AND state = 'leased';
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
SELECT local_user, shared, last_error FROM pgpool.pools WHERE server = 'views_public';
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
SELECT pid <> pg_backend_pid() AS pid, application_name, waited BETWEEN 0 AND 60000 AS waited, why
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
SELECT server, local_user, checkouts, hits, connects_requested, waited, granted, timeouts, cancelled,
       failed, refused, unavailable, deadlocks
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, checkins, discards, reclaimed, terminated, lease_timeouts, retried
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, wait_time >= max_wait_time AS wait, lease_time >= max_lease_time AS lease,
       connect_time >= max_connect_time AS connect, statements, rows, errors,
       bytes_received > 0 AS received, bytes_sent > 0 AS sent
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, connects, connects_failed, resets > 0 AS resets, resets_failed, checks,
       checks_failed, cancels
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT server, closed_stale, closed_idle + closed_lifetime + closed_uses + closed_overflow +
       closed_evicted + closed_reset + closed_broken + closed_drained + closed_terminated +
       closed_holder_died + closed_discarded AS closed
  FROM pgpool.stats WHERE server ~ '^views_' ORDER BY server;
SELECT bool_and(stats_reset BETWEEN created_at - interval '1 s' AND created_at + interval '1 s') AS since
  FROM pgpool.stats JOIN pgpool.pools USING (pool_id);

-- a timestamp is shown the same each time
DO $$
DECLARE
	seen timestamptz[];
	one timestamptz[];
BEGIN
	FOR i IN 1 .. 300 LOOP
		SELECT array_agg(t ORDER BY t) INTO one FROM (
			SELECT created_at FROM pgpool.pools WHERE server ~ '^views_' UNION ALL
			SELECT stats_reset FROM pgpool.stats WHERE server ~ '^views_') AS instants(t);
		seen := coalesce(seen, one);
		IF one <> seen THEN
			RAISE 'round %: % and %', i, seen, one;
		END IF;
	END LOOP;
END $$;

-- the sums that the view's comment states
SELECT bool_and(checkouts = checkins + discards + reclaimed + terminated + lease_timeouts +
                retried + leased) AS leases,
       bool_and(waited = granted + timeouts + cancelled + failed + waiters) AS waits,
       bool_and(connects = closed_idle + closed_lifetime + closed_uses + closed_overflow +
                closed_evicted + closed_reset + closed_broken + closed_drained + closed_stale +
                closed_terminated + closed_holder_died + closed_discarded + total) AS connections,
       bool_and(total = leased + idle + reset_pending + connecting + resetting + checking + cancelling +
                closing) AS total,
       bool_and(available = idle + reset_pending) AS available
  FROM pgpool.stats s JOIN pgpool.pools USING (pool_id) WHERE s.server ~ '^views_';

-- histogram buckets are contiguous, and each has a bar
SELECT bool_and(bucket = n - 1) AS numbered, bool_and(from_us = before) AS no_gap,
       bool_and(to_us = CASE bucket WHEN 0 THEN 1 ELSE 2 * from_us END) AS doubled,
       bool_and(cumulative = sum) AS cumulative,
       bool_and((bar = '') = (waits = 0) AND bar ~ '^#*$' AND length(bar) <= 40) AS bars
  FROM (SELECT *, row_number() OVER w AS n, coalesce(lag(to_us) OVER w, 0) AS before,
               sum(waits) OVER w
          FROM pgpool.wait_histogram
        WINDOW w AS (PARTITION BY pool_id ORDER BY bucket)) AS h;
SELECT count(*) AS wrong
  FROM pgpool.stats s
  LEFT JOIN (SELECT pool_id, max(cumulative) AS waits, max(length(bar)) AS longest
               FROM pgpool.wait_histogram GROUP BY pool_id) AS h USING (pool_id)
 WHERE coalesce(waits, 0) <> granted + timeouts + cancelled + failed OR longest <> 40;

SELECT pgpool.check_invariants();
DROP VIEW seen;
SELECT test.drop('views_two', 'views_one', 'views_public', 'views_down');
REVOKE pg_read_all_stats, pg_monitor FROM regress_views_stats;
DROP ROLE regress_views_user, regress_views_other, regress_views_stats;
