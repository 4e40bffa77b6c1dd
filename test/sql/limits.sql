--
-- What is used up; and settings.
--

-- all connections of shared memory, by one session
SELECT test.server('huge', 'pool_size', '1000');
SELECT test.server('late', 'pool_size', '1');
DO $$
BEGIN
	LOOP
		PERFORM pgpool.checkout('huge', '30 s');
	END LOOP;
EXCEPTION WHEN deadlock_detected THEN
	-- the leases are the session's: what the block has taken stays
	RAISE NOTICE 'no more';
END $$;
SELECT count(*) = current_setting('pgpool_ext.max_connections')::int AS all_used FROM pgpool.connections;
SELECT connections_used = connections_max AS all_used FROM pgpool.workers;
-- nobody else can make room for another pool
SELECT pgpool.checkout('late');
SELECT pgpool.checkout('late', '1 min');
SELECT pgpool.exec('late', 'select 1');
SELECT pgpool.try_checkout('late') IS NULL AS none_free;
-- each lease has its own
SELECT count(*) > 10 AS many, count(*) = count(DISTINCT test.remote_pid(lease)) AS different
  FROM pgpool.leases WHERE pid = pg_backend_pid();
-- room for one
SELECT pgpool.discard(lease) FROM pgpool.leases WHERE pid = pg_backend_pid() LIMIT 1;
SELECT pgpool.checkout('late', '10 s') > 0 AS leased;
-- somebody waits for that one, or for room for another one
ALTER SERVER late OPTIONS (SET pool_size '2');
SELECT test.other_session('other');
SELECT dblink_send_query('other', 'SELECT pgpool.checkout(''late'', ''5 s'') > 0');
SELECT test.wait_for('SELECT test.waiting(''late'') = 1');
SELECT pgpool.discard(max(lease)) FROM pgpool.leases WHERE server = 'huge';
SELECT * FROM dblink_get_result('other') AS t(leased boolean);
SELECT * FROM dblink_get_result('other') AS t(leased boolean);
SELECT test.other('other', 'SELECT pgpool.discard(lease) FROM pgpool.leases WHERE pid = pg_backend_pid()');
SELECT dblink_disconnect('other');
SELECT count(pgpool.discard(lease)) > 10 AS many FROM pgpool.leases WHERE pid = pg_backend_pid();
SELECT pgpool.checkin_all();
SELECT test.wait_for('SELECT count(*) = 0 FROM pgpool.connections WHERE server IN (''huge'', ''late'')');
SELECT test.drop('huge', 'late');

-- settings: what they are, and where they can be set
SELECT name, setting, unit, context, min_val, max_val, vartype FROM pg_settings
 WHERE name LIKE 'pgpool\_ext.%' AND name <> 'pgpool_ext.max_connections' ORDER BY name COLLATE "C";
SELECT count(*) AS without_description FROM pg_settings
 WHERE name LIKE 'pgpool\_ext.%' AND short_desc IS NULL;
SET pgpool_ext.max_connections = 1;
SET pgpool_ext.default_pool_size = 1;
SET pgpool_ext.nonsense = 1;
SET ROLE regress_pgpool_app;
SET pgpool_ext.log_min_wait = 0;
SET pgpool_ext.checkout_timeout = '1s';
RESET pgpool_ext.checkout_timeout;
RESET ROLE;

SELECT pgpool.check_invariants();
