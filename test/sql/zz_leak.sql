--
-- Last in every run: the tests before have left nothing behind.
--
SELECT pgpool.check_invariants();
SELECT count(*) AS leases FROM pgpool.leases;
SELECT count(*) AS waiters FROM pgpool.waiters;

-- Every checkout has ended in one of the counted ways.
SELECT server, checkouts - checkins - reclaimed - terminated - lease_timeouts - retried AS leased,
	waited - granted - timeouts - cancelled - failed AS waiting
FROM pgpool.stats WHERE checkouts - checkins - reclaimed - terminated - lease_timeouts - retried <> 0
	OR waited - granted - timeouts - cancelled - failed <> 0;

-- Dropped servers and databases have left no connection behind, once they are closed.
SELECT test.wait_for($$SELECT count(*) = 0 FROM pgpool.connections AS c
	WHERE c.database <> current_database() OR NOT EXISTS (SELECT FROM pg_foreign_server WHERE srvname = c.server)$$);

-- The worker's descriptors are those of the open connections: three for one with TLS.
SELECT test.wait_for($$SELECT w.descriptors = (SELECT count(*) + 2 * count(*) FILTER (WHERE transport = 'relay') FROM pgpool.connections)
	FROM pgpool.workers AS w$$);
SELECT restarts FROM pgpool.workers;

-- The remote side has these connections and no other ones.
SELECT test.wait_for($$SELECT n = (SELECT count(*) FROM pgpool.connections) FROM pgpool.query('shard1',
	'select count(*) from pg_stat_activity where backend_type = ''client backend''') AS t(n bigint)$$);
