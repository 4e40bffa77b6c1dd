--
-- Last in every run: nothing that the tests before have used is left behind.
--
SELECT pgpool.check_invariants();
SELECT count(*) AS leases FROM pgpool.leases;
SELECT count(*) AS waiters FROM pgpool.waiters;
SELECT server, checkouts - checkins - discards - reclaimed - terminated - lease_timeouts - retried AS leased,
	waited - granted - timeouts - cancelled - failed AS waiting
FROM pgpool.stats WHERE checkouts - checkins - discards - reclaimed - terminated - lease_timeouts - retried <> 0
	OR waited - granted - timeouts - cancelled - failed <> 0;

-- The worker's descriptors are those of the open connections.
SELECT w.descriptors = (SELECT count(*) FROM pgpool.connections) AS descriptors_match
FROM pgpool.workers w;
