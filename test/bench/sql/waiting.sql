-- Measure the hand-over to waiting sessions.
CREATE UNLOGGED TABLE waits (granted timestamptz, released timestamptz);
CREATE UNLOGGED TABLE go (started boolean);

-- A waiter: it waits for the start, then for the connection, and then does
-- nothing until all waiters have had the connection. warm: it has used the connection before, so it
-- has cached the socket.
CREATE FUNCTION wait_pool(clients int, warm boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  l bigint;
  x text;
  granted timestamptz;
  released timestamptz;
BEGIN
  IF warm THEN
    l := pgpool.checkout('p1');
    x := pgpool.checkin(l);
  END IF;
  x := pg_advisory_lock_shared(9);
  x := pg_advisory_unlock_shared(9);
  l := pgpool.checkout('p1');
  granted := clock_timestamp();
  released := clock_timestamp();
  x := pgpool.checkin(l);
  PERFORM pg_sleep(1 + clients * 0.001);
  INSERT INTO waits VALUES (granted, released);
END $$;

CREATE FUNCTION wait_advisory(clients int, warm boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  x text;
  granted timestamptz;
  released timestamptz;
BEGIN
  x := pg_advisory_lock_shared(9);
  x := pg_advisory_unlock_shared(9);
  x := pg_advisory_lock(7);
  granted := clock_timestamp();
  released := clock_timestamp();
  x := pg_advisory_unlock(7);
  PERFORM pg_sleep(1 + clients * 0.001);
  INSERT INTO waits VALUES (granted, released);
END $$;

-- The lower bound: each session only sets the latch of the next one.
CREATE UNLOGGED TABLE line (handle bigint);
CREATE FUNCTION wait_line(clients int, warm boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  h bigint := handle FROM line;
  slot int;
  x text;
  granted timestamptz;
  released timestamptz;
BEGIN
  x := pg_advisory_lock_shared(9);
  x := pg_advisory_unlock_shared(9);
  slot := queue_wait(h);
  granted := clock_timestamp();
  released := clock_timestamp();
  x := queue_next(h, slot);
  PERFORM pg_sleep(1 + clients * 0.001);
  INSERT INTO waits VALUES (granted, released);
END $$;

CREATE VIEW waiting_pool AS SELECT waiters AS n FROM pgpool.pools WHERE server = 'p1';
CREATE VIEW waiting_advisory AS
  SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted;
CREATE VIEW waiting_start AS
  SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = 9 AND NOT granted;

-- When all waiters are at the start, acquire the connection and let them request it; hold
-- it until all wait and table go has a row.
CREATE FUNCTION hold_pool(waiters int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  l bigint;
BEGIN
  PERFORM pg_advisory_lock(9);
  WHILE (SELECT n FROM waiting_start) < waiters LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  l := pgpool.checkout('p1');
  PERFORM pg_advisory_unlock(9);
  WHILE (SELECT n FROM waiting_pool) < waiters LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  WHILE NOT EXISTS (SELECT FROM go) LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  PERFORM pg_sleep(0.5);
  PERFORM pgpool.checkin(l);
END $$;

CREATE VIEW waiting_line AS SELECT queue_length(handle) - 1 AS n FROM line;
CREATE FUNCTION hold_line(waiters int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  h bigint := handle FROM line;
  slot int;
BEGIN
  PERFORM pg_advisory_lock(9);
  WHILE (SELECT n FROM waiting_start) < waiters LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  slot := queue_wait(h);
  PERFORM pg_advisory_unlock(9);
  WHILE (SELECT n FROM waiting_line) < waiters LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  WHILE NOT EXISTS (SELECT FROM go) LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  PERFORM pg_sleep(0.5);
  PERFORM queue_next(h, slot);
END $$;

CREATE FUNCTION hold_advisory(waiters int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_lock(9);
  WHILE (SELECT n FROM waiting_start) < waiters LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  PERFORM pg_advisory_lock(7);
  PERFORM pg_advisory_unlock(9);
  WHILE (SELECT n FROM waiting_advisory) < waiters LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  WHILE NOT EXISTS (SELECT FROM go) LOOP
    PERFORM pg_sleep(0.1);
  END LOOP;
  PERFORM pg_sleep(0.5);
  PERFORM pg_advisory_unlock(7);
END $$;

-- Microseconds from the checkin of a session to the first instruction of the next one.
CREATE FUNCTION handed_over(OUT p50 numeric, OUT p99 numeric, OUT most numeric)
LANGUAGE sql AS $$
  SELECT round((percentile_disc(0.5) WITHIN GROUP (ORDER BY us))::numeric, 1),
    round((percentile_disc(0.99) WITHIN GROUP (ORDER BY us))::numeric, 1), round(max(us)::numeric, 1)
  FROM (SELECT extract(epoch FROM granted - lag(released) OVER (ORDER BY granted)) * 1e6 AS us FROM waits) AS w
$$;

-- Read the queue of a pool repeatedly. If a waiter has left it while an earlier one still
-- waits, the grant was out of order. A session that waits again has a different
-- waiting_since: by less than a millisecond if the queue was short.
CREATE FUNCTION order_of_grants(server_name text, polls int, OUT grants bigint, OUT passed bigint)
LANGUAGE plpgsql AS $$
DECLARE
  before text[] := '{}';
  now_there text[];
  since_before timestamptz[];
  since_now timestamptz[];
  first_there int;
  at int;
BEGIN
  grants := 0;
  passed := 0;
  FOR poll IN 1 .. polls LOOP
    SELECT coalesce(array_agg(pid::text ORDER BY position), '{}'), array_agg(waiting_since ORDER BY position)
      INTO now_there, since_now FROM pgpool.waiters WHERE server = server_name;
    first_there := NULL;
    FOR i IN 1 .. coalesce(array_length(before, 1), 0) LOOP
      at := array_position(now_there, before[i]);
      IF at IS NOT NULL AND since_now[at] = since_before[i] THEN
        first_there := coalesce(first_there, i);
      ELSE
        grants := grants + 1;
        IF first_there IS NOT NULL THEN
          passed := passed + 1;
        END IF;
      END IF;
    END LOOP;
    before := now_there;
    since_before := since_now;
    PERFORM pg_sleep(0.0005);
  END LOOP;
END $$;
