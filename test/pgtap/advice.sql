-- The rules of pgpool.advice: each with rows of the views in which it applies, and with rows in
-- which it does not.  The views are replaced by tables until the end of the transaction.  (For
-- advice on real pools see advice_and_report; for predictions and real waits, predicted_wait.)
BEGIN;
SELECT * FROM no_plan();

CREATE SCHEMA fake;
CREATE TABLE fake.pools (LIKE pgpool.pools);
CREATE TABLE fake.stats (LIKE pgpool.stats);
CREATE TABLE fake.history (LIKE pgpool.history);
CREATE TABLE fake.leases (LIKE pgpool.leases);
CREATE TABLE fake.connections (LIKE pgpool.connections);
CREATE OR REPLACE VIEW pgpool.pools AS SELECT * FROM fake.pools;
CREATE OR REPLACE VIEW pgpool.stats AS SELECT * FROM fake.stats;
CREATE OR REPLACE VIEW pgpool.history AS SELECT * FROM fake.history;
CREATE OR REPLACE VIEW pgpool.leases AS SELECT * FROM fake.leases;
CREATE OR REPLACE VIEW pgpool.connections AS SELECT * FROM fake.connections;

CREATE SERVER "it's ""A""" FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', pool_size '4');

-- a row of a view: numbers are 0 unless they are given
CREATE FUNCTION pg_temp.add(name text, given jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('INSERT INTO fake.%1$I SELECT (jsonb_populate_record(NULL::fake.%1$I, $1)).*', name)
    USING (SELECT jsonb_object_agg(attname, 0) FROM pg_attribute WHERE attrelid = ('fake.' || name)::regclass
             AND atttypid IN ('int4'::regtype, 'int8'::regtype, 'float8'::regtype))
      || jsonb_build_object('pool_id', 1, 'database', current_database(), 'server', 'it''s "A"', 'local_user', 'app',
        'state', 'ready', 'pool_size', 4, 'max_total', 4, 'total', 4, 'span', 10000, 'sampled_at', now() - interval '1 min',
        'stats_reset', now() - interval '2 hours', 'wait_histogram', array_fill(0, ARRAY[32]))
      || given;
END
$$;

-- what advice says about a pool with these columns in pools and stats, and with these samples
CREATE FUNCTION pg_temp.advice(given jsonb, VARIADIC samples jsonb[] DEFAULT '{}') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  TRUNCATE fake.pools, fake.stats, fake.history;
  PERFORM pg_temp.add('pools', given), pg_temp.add('stats', given);
  PERFORM pg_temp.add('history', s) FROM unnest(samples) AS s;
  RETURN pg_temp.findings();
END
$$;
CREATE FUNCTION pg_temp.findings() RETURNS text LANGUAGE sql AS $$
  SELECT string_agg(concat_ws(': ', severity, finding, suggestion), E'\n') FROM pgpool.advice()
$$;

--
-- The prediction
--

SELECT results_eq('SELECT * FROM pgpool.predict_wait(4, 4, 5, 20)', 'VALUES (0::float8, 0::float8, 0::float8)',
  'no caller waits if each has a connection');
-- one connection, two callers: the other one holds it with probability s / (s + z)
SELECT results_eq('SELECT round(waits_percent::numeric, 6), round(mean_wait::numeric, 6) FROM pgpool.predict_wait(1, 2, 5, 15)',
  'VALUES (25.0, 1.25)', 'wait for one connection with two callers is exact');
-- this wait is exponential with mean 5
SELECT results_eq('SELECT round(p99_wait::numeric, 1) FROM pgpool.predict_wait(1, 2, 5, 15)', 'SELECT round(5 * ln(25.0), 1)',
  'its 99th percentile is exact');
SELECT ok(mean_wait BETWEEN 6.49 AND 6.51, 'callers without think time share the connections')
  FROM pgpool.predict_wait(8, 60, 1, 0);
SELECT ok(bool_and(p99_wait <= before) AND min(p99_wait) < max(before), 'p99 decreases with the size')
  FROM (SELECT p99_wait, lag(p99_wait) OVER (ORDER BY size) AS before
          FROM generate_series(4, 28, 4) AS size, pgpool.predict_wait(size, 60, 5, 60)) AS p
 WHERE before IS NOT NULL;
SELECT ok(p99_wait > mean_wait AND waits_percent > 99.9, 'thousands of callers are no problem')
  FROM pgpool.predict_wait(10, 5000, 5, 20);
SELECT ok(p99_wait > 0, 'hundreds of callers that mostly think') FROM pgpool.predict_wait(20, 800, 5, 160);
SELECT throws_ok(format('SELECT pgpool.predict_wait(%s)', arguments), '22023', argument || ' is out of range', arguments || ' is out of range')
  FROM (VALUES ('pool_size', '0, 60, 5, 20'), ('callers', '4, -2147483648, 5, 20'), ('callers', '4, 1000000, 5, 20'), ('callers', '4, NULL, 5, 20'),
    ('lease_time', '4, 60, 0, 20'), ('lease_time', '4, 60, ''NaN'', 20'), ('think_time', '4, 60, 5, ''infinity''')) AS t(argument, arguments);
CREATE FUNCTION pg_temp.error_of(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  message text;
  detail text;
  hint text;
BEGIN
  EXECUTE sql;
  RETURN 'no error';
EXCEPTION WHEN invalid_parameter_value THEN
  GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  RETURN concat_ws(E'\n', message, detail, hint);
END
$$;
SELECT is(pg_temp.error_of('SELECT pgpool.predict_wait(4, 60, -1, 20)'), E'lease_time is out of range\n'
  'The argument is -1, and must be between 0.001 and 1000000000000.\n'
  'Specify numbers of connections and sessions, and times in milliseconds.', 'detail has the value and the range');
SELECT isnt(p99_wait, NULL, 'limits of the arguments') FROM (VALUES (0.001, 1e12), (1e12, 0)) AS t(lease, think), pgpool.predict_wait(1, 60, lease, think);

--
-- No finding
--

SELECT is(pg_temp.advice('{}'), NULL, 'pool without activity');
SELECT is(pg_temp.advice('{"checkouts": 100000, "hits": 100000, "statements": 100000, "resets": 100000}',
  '{"hits": 10000, "leases": 10000, "lease_time": 30000, "answer_time": 29000, "peak_leased": 4, "mean_leased": 3, "statements": 10000}'), NULL,
  'busy pool without waits');

--
-- Size
--

-- 60 callers on 4 connections: 5 ms, thinking for 20 ms
CREATE TEMP TABLE small AS SELECT '{"hits": 0, "waited": 8000, "wait_time": 400000, "leases": 8000, "lease_time": 39000, "answer_time": 38000,
  "peak_leased": 4, "mean_leased": 3.9, "mean_waiting": 40, "peak_waiting": 56, "peak_callers": 60, "statements": 8000,
  "wait_histogram": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,7000,1000,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}'::jsonb AS sample;
SELECT is(pg_temp.advice('{}', sample), $$warning: pool is too small: ALTER SERVER "it's ""A""" OPTIONS (SET pool_size '8')$$,
  'pool that is too small') FROM small;
SELECT matches(evidence, '^In the busiest samples 8000 of 8000 checkouts waited, for 50\.0 ms on average, and 1 % of all for more than 1[0-9][0-9]\.\d ms\. '
  'Leases lasted 4\.9 ms\. Up to 60 sessions held or awaited one of 4 connections\. '
  'With pool_size 8 they would wait for 12\.\d ms on average, and 1 % for more than 2[34]\.\d ms\. All samples were about equally full, so leases may last longer in a larger pool\.$', 'its evidence has the prediction')
  FROM pgpool.advice();
SELECT lives_ok(suggestion, 'the suggestion can be run') FROM pgpool.advice();
SELECT is((SELECT srvoptions FROM pg_foreign_server WHERE srvname = 'it''s "A"'), '{host=127.0.0.1,pool_size=8}', 'the suggestion has its effect');
ALTER SERVER "it's ""A""" OPTIONS (DROP pool_size);
SELECT matches(pg_temp.advice('{}', sample), $$OPTIONS \(ADD pool_size '8'\)$$, 'option that is not set is added') FROM small;
SELECT is(pg_temp.advice('{}', sample || '{"waited": 99, "leases": 99, "wait_time": 4950, "mean_waiting": 0.5,
  "wait_histogram": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,99,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}'), NULL, 'no advice below 100 waits') FROM small;
SELECT is(pg_temp.advice('{}', sample || '{"hits": 160000, "leases": 168000, "lease_time": 39000}'), NULL,
  'no advice if fewer than one checkout in twenty waits') FROM small;
SELECT isnt(pg_temp.advice('{}', sample || '{"waited": 999, "leases": 999, "wait_time": 49950, "mean_waiting": 5, "mean_leased": 0.5, "lease_time": 4995,
  "wait_histogram": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,999,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}'), NULL, 'advice from 100 waits on') FROM small;
SELECT unalike((SELECT evidence FROM pgpool.advice()), '%1 %', 'no 99th percentile below 1000 waits');
SELECT matches((SELECT evidence FROM pgpool.advice()), '999 of 999 checkouts waited, for 50\.0 ms on average\.', 'the mean is stated');
SELECT is(pg_temp.advice('{}', sample || '{"peak_leased": 3}'), NULL, 'no advice if never all connections were leased') FROM small;
SELECT is(pg_temp.advice('{"pool_size": 8}', sample), NULL, 'samples of another size do not count') FROM small;
SELECT is(pg_temp.advice('{}', sample || jsonb_build_object('sampled_at', now() - interval '3 hours')), NULL,
  'samples from before the reset do not count') FROM small;
SELECT is(pg_temp.advice('{"database": "elsewhere"}', sample || '{"database": "elsewhere"}'), 'warning: pool is too small',
  'server of another database has no suggestion') FROM small;
SELECT is_empty(format('SELECT * FROM pgpool.advice(%L)', since), 'an interval limits the samples: ' || since) FROM unnest('{10 s, -300000 years}'::text[]) AS since;
SELECT isnt_empty($$SELECT * FROM pgpool.advice('100000 years')$$, 'a long interval does not');
-- the busiest samples count, not the mean
SELECT isnt(pg_temp.advice('{}', VARIADIC array_agg(sample || jsonb_build_object('sampled_at', now() - n * interval '1 min')
  || (CASE WHEN n > 1 THEN '{"waited": 10, "hits": 790, "wait_time": 10, "leases": 800, "lease_time": 3900, "answer_time": 3800, "mean_leased": 0.39,
      "mean_waiting": 0, "peak_callers": 5}' ELSE '{}' END)::jsonb)), NULL, 'one busy sample of 50') FROM small, generate_series(1, 50) AS n;
SELECT matches((SELECT evidence FROM pgpool.advice()), '^In the busiest samples 8000 of 8000', 'busy sample among idle ones counts alone');
SELECT is(pg_temp.advice('{}', sample || '{"peak_callers": 60, "wait_time": 80000, "mean_waiting": 8}'),
  $$warning: pool is too small: ALTER SERVER "it's ""A""" OPTIONS (ADD pool_size '8')$$, 'bursts') FROM small;
SELECT matches((SELECT evidence FROM pgpool.advice()), 'Leases lasted 4\.9 ms\..*(bursts|With pool_size)', 'waits that the model does not explain are not predicted');

-- lease time that rises with the number leased
SELECT is(pg_temp.advice('{}', sample, sample || '{"lease_time": 10000, "answer_time": 9900, "mean_leased": 1, "mean_waiting": 0, "waited": 100, "wait_time": 500}'),
  'info: pool is full, and larger is slower', 'never a larger pool if the lease time rises with the number leased') FROM small;
SELECT is(pg_temp.advice('{}', sample, sample || '{"leases": 2000, "lease_time": 10000, "answer_time": 9900, "mean_leased": 1, "mean_waiting": 0, "waited": 100, "wait_time": 500}'),
  $$warning: pool is too small: ALTER SERVER "it's ""A""" OPTIONS (ADD pool_size '8')$$, 'lease time that does not rise') FROM small;
SELECT matches((SELECT evidence FROM pgpool.advice()), ' ms\.$', 'samples with different numbers of leased connections confirm it');

CREATE TEMP TABLE large AS SELECT '{"hits": 5000, "leases": 5000, "lease_time": 5000, "answer_time": 4500, "peak_leased": 5, "mean_leased": 0.5,
  "pool_size": 20, "max_total": 20, "statements": 5000}'::jsonb AS sample;
SELECT is(pg_temp.advice('{"pool_size": 20}', sample), $$info: pool is too large: ALTER SERVER "it's ""A""" OPTIONS (ADD pool_size '7')$$,
  'pool that is too large') FROM large;
SELECT pg_temp.add(name, '{"pool_id": 2, "local_user": "b", "pool_size": 20}') FROM unnest('{pools,stats}'::text[]) AS name;
SELECT pg_temp.add('history', sample || '{"pool_id": 2, "local_user": "b", "peak_leased": 11}') FROM large;
SELECT is(pg_temp.findings(), $$info: pool is too large: ALTER SERVER "it's ""A""" OPTIONS (ADD pool_size '16')$$, 'size that another pool of the server can use');
UPDATE fake.history SET peak_leased = 14 WHERE pool_id = 2;
SELECT is(pg_temp.findings(), 'info: pool is too large', 'no smaller size if another pool of the server uses the present one');
SELECT is(pg_temp.advice('{"pool_size": 20}', sample || '{"peak_leased": 11}'), NULL, 'pool of which more than half was leased') FROM large;
SELECT is(pg_temp.advice('{"pool_size": 20}', sample || '{"leases": 900}'), NULL, 'pool with few leases') FROM large;
SELECT is(pg_temp.advice(jsonb_build_object('pool_size', 20, 'stats_reset', now() - interval '59 min'), sample), NULL,
  'pool that was watched for less than an hour') FROM large;
SELECT is(pg_temp.advice('{"pool_size": 2}', sample || '{"pool_size": 2, "max_total": 2, "peak_leased": 1}'), NULL, 'pool that cannot be smaller') FROM large;

-- sizes that the validator accepts: up to 262143, and min_size and min_idle at most pool_size
CREATE FUNCTION pg_temp.accepted(suggested text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  s text := (SELECT suggestion FROM pgpool.advice());
BEGIN
  EXECUTE s;
  ALTER SERVER "it's ""A""" OPTIONS (SET pool_size '4', SET min_size '0', SET min_idle '0', SET max_server_connections '0');
  RETURN is(regexp_replace(s, '.*OPTIONS', ''), suggested, 'suggestion can be run: ' || suggested);
END
$$;
ALTER SERVER "it's ""A""" OPTIONS (ADD pool_size '4', ADD min_size '0', ADD min_idle '0', ADD max_server_connections '0');
SELECT isnt(pg_temp.advice('{"pool_size": 250000}', sample || '{"pool_size": 250000, "max_total": 250000, "peak_leased": 250000, "mean_leased": 250000,
  "mean_waiting": 10, "peak_callers": 250010}'), NULL, 'pool that cannot be an eighth larger') FROM small;
SELECT pg_temp.accepted($$ (SET pool_size '262143')$$);
SELECT is(pg_temp.advice('{"pool_size": 262143}', sample || '{"pool_size": 262143, "max_total": 262143, "peak_leased": 262143, "mean_leased": 262143,
  "mean_waiting": 10, "peak_callers": 262143}'), NULL, 'pool that cannot be larger') FROM small;
ALTER SERVER "it's ""A""" OPTIONS (SET pool_size '20', SET min_size '15');
SELECT isnt(pg_temp.advice('{"pool_size": 20}', sample), NULL, 'pool that is too large, with min_size') FROM large;
SELECT pg_temp.accepted($$ (SET pool_size '15')$$);
ALTER SERVER "it's ""A""" OPTIONS (SET pool_size '20', SET min_idle '20');
SELECT is(pg_temp.advice('{"pool_size": 20}', sample), 'info: pool is too large', 'no smaller size than min_idle') FROM large;
ALTER SERVER "it's ""A""" OPTIONS (SET pool_size '20', SET min_idle '0', SET min_size '0x10');
SELECT is(pg_temp.advice('{"pool_size": 20}', sample), 'info: pool is too large', 'no size if min_size has another form') FROM large;
ALTER SERVER "it's ""A""" OPTIONS (SET pool_size '4', SET min_size '0');
SELECT isnt(pg_temp.advice(jsonb_build_object('closed_idle', 25, 'connects', 30, 'connect_time', 300, 'max_total', 9),
  '{"peak_leased": 6, "max_total": 9, "leases": 1}'), NULL, 'steady use of more than pool_size');
SELECT pg_temp.accepted($$ (SET min_size '4')$$);
ALTER SERVER "it's ""A""" OPTIONS (SET min_idle '4');
SELECT is(pg_temp.advice(jsonb_build_object('total', 3, 'remote_full_since', now())), 'critical: remote server is full', 'remote server that accepts fewer than min_idle');
ALTER SERVER "it's ""A""" OPTIONS (SET max_server_connections '3');
SELECT isnt(pg_temp.advice('{"timeouts": 7, "pool_size": 262143}', '{"waited": 7, "timeouts": 7, "wait_time": 70000, "peak_leased": 2, "pool_size": 262143}'), NULL, 'timeouts at a cap');
SELECT pg_temp.add(name, '{"pool_id": 2, "local_user": "b"}') FROM unnest('{pools,stats}'::text[]) AS name;
SELECT pg_temp.accepted($$ (SET max_server_connections '262143')$$);
ALTER SERVER "it's ""A""" OPTIONS (DROP pool_size, DROP min_size, DROP min_idle, DROP max_server_connections);

--
-- Leases
--

CREATE TEMP TABLE held AS SELECT '{"waited": 500, "wait_time": 500000, "leases": 500, "lease_time": 50000, "answer_time": 1000, "peak_leased": 4,
  "mean_leased": 4, "mean_waiting": 50, "peak_callers": 60, "statements": 500}'::jsonb AS sample;
SELECT matches(pg_temp.advice('{}', sample), '^warning: leases are held without a statement: SELECT pid, [^\n]*$', 'leases without a statement, and no larger pool') FROM held;
SELECT lives_ok(suggestion, 'the suggestion can be run') FROM pgpool.advice();
SELECT is(pg_temp.advice('{}', sample || '{"waited": 99}'), NULL, 'held leases for which fewer than 100 checkouts wait') FROM held;
SELECT is(pg_temp.advice('{}', sample || '{"answer_time": 10000}'), NULL, 'leases with a fifth of their time for statements') FROM held;

SELECT pg_temp.add('leases', jsonb_build_object('lease', 77, 'pid', 4711, 'application_name', 'night', 'why', 'job', 'state', 'idle',
  'leased_at', now() - interval '2 min'));
SELECT is(pg_temp.advice('{"waiters": 3}'), 'warning: lease is held idle: SELECT pgpool.terminate(77)', 'lease that is held while sessions wait');
SELECT is(pg_temp.advice('{}'), $$info: lease is held idle: ALTER SERVER "it's ""A""" OPTIONS (ADD leak_warning '1min')$$, 'lease that is held while no session waits');
SELECT matches(evidence, '^Process 4711 \(application night, why job\) has held lease 77 since ', 'the evidence names the holder') FROM pgpool.advice();
UPDATE fake.leases SET state = 'active';
SELECT is(pg_temp.findings(), NULL, 'lease with a statement');
UPDATE fake.leases SET state = 'idle', leased_at = now() - interval '50 s';
SELECT is(pg_temp.findings(), NULL, 'lease of less than a minute');
TRUNCATE fake.leases;

--
-- Limits
--

SELECT is(pg_temp.advice('{"timeouts": 7, "total": 95, "pool_size": 120}', '{"waited": 7, "timeouts": 7, "wait_time": 70000, "peak_leased": 2, "pool_size": 120}'),
  'warning: checkouts time out at a cap: ALTER SYSTEM SET pgpool_ext.max_connections = 120', 'timeouts at the cap of all pools');
SELECT is(pg_temp.advice('{"timeouts": 7, "total": 95}', '{"waited": 7, "timeouts": 7, "wait_time": 70000, "peak_leased": 2}'),
  'warning: checkouts time out at a cap', 'no cap of all pools below the present one');
SELECT is(pg_temp.advice('{"timeouts": 7}', '{"waited": 7, "timeouts": 7, "wait_time": 70000, "peak_leased": 2}'), NULL, 'timeouts below the cap');
SELECT is(pg_temp.advice('{"timeouts": 7, "total": 95}', '{"waited": 7, "timeouts": 7, "wait_time": 70000, "peak_leased": 4}'), NULL,
  'timeouts of a full pool');
ALTER SERVER "it's ""A""" OPTIONS (ADD max_server_connections '3');
SELECT is(pg_temp.advice('{"timeouts": 7}', '{"waited": 7, "timeouts": 7, "wait_time": 70000, "peak_leased": 2}'),
  $$warning: checkouts time out at a cap: ALTER SERVER "it's ""A""" OPTIONS (SET max_server_connections '4')$$, 'timeouts at the cap of the server');
ALTER SERVER "it's ""A""" OPTIONS (SET max_server_connections '4');
SELECT is(pg_temp.findings(), 'warning: checkouts time out at a cap', 'no cap of the server that is not larger');
ALTER SERVER "it's ""A""" OPTIONS (ADD max_overflow '5');
SELECT matches(pg_temp.findings(), $$SET max_server_connections '9'$$, 'cap of the server with max_overflow');
ALTER SERVER "it's ""A""" OPTIONS (SET max_server_connections '0', DROP max_overflow);
SELECT is(pg_temp.findings(), NULL, 'server without a cap');
ALTER SERVER "it's ""A""" OPTIONS (DROP max_server_connections);

SELECT is(pg_temp.advice(jsonb_build_object('total', 3, 'remote_full_since', now())),
  $$critical: remote server is full: ALTER SERVER "it's ""A""" OPTIONS (ADD pool_size '3')$$, 'remote server that is full');
SELECT pg_temp.add(name, '{"pool_id": 2, "local_user": "b", "total": 4}') FROM unnest('{pools,stats}'::text[]) AS name;
SELECT is(pg_temp.findings(), 'critical: remote server is full', 'remote server that accepts more for another pool');
SELECT is(pg_temp.advice(jsonb_build_object('total', 3, 'last_error', 'FATAL: too many connections', 'last_error_at', now() - interval '1 min')), NULL,
  'remote server that was full');

SELECT is(pg_temp.advice(jsonb_build_object('closed_idle', 25, 'connects', 30, 'connect_time', 300), '{"peak_leased": 3, "leases": 1}'),
  $$info: min_size is below the steady use: ALTER SERVER "it's ""A""" OPTIONS (ADD min_size '3')$$, 'connections that are closed and opened again');
SELECT is(pg_temp.advice(jsonb_build_object('closed_idle', 19, 'connects', 30, 'connect_time', 300), '{"peak_leased": 3, "leases": 1}'), NULL,
  'few connections that are closed and opened again');
SELECT is(pg_temp.advice(jsonb_build_object('closed_idle', 25, 'connects', 30, 'connect_time', 300)), NULL, 'steady use that is not known');
ALTER SERVER "it's ""A""" OPTIONS (ADD min_size '3');
SELECT is(pg_temp.advice(jsonb_build_object('closed_idle', 25, 'connects', 30, 'connect_time', 300), '{"peak_leased": 3, "leases": 1}'), NULL,
  'min_size that covers the steady use');
ALTER SERVER "it's ""A""" OPTIONS (DROP min_size);

--
-- Costs
--

CREATE TEMP TABLE short AS SELECT '{"hits": 9000, "waited": 200, "wait_time": 200, "leases": 9200, "lease_time": 900, "answer_time": 600,
  "peak_leased": 4, "mean_leased": 0.1, "statements": 9200}'::jsonb AS sample;
SELECT is(pg_temp.advice('{"resets": 9200, "statements": 9200}', sample),
  $$info: resets cost more than statements: ALTER SERVER "it's ""A""" OPTIONS (ADD reset 'never')$$, 'resets of short statements') FROM short;
SELECT is(pg_temp.advice('{"resets": 900, "statements": 9200}', sample), NULL, 'fewer resets than statements') FROM short;
SELECT is(pg_temp.advice('{"resets": 9200, "statements": 9200}', sample || '{"waited": 99}'), NULL, 'resets for which no session waits') FROM short;
ALTER SERVER "it's ""A""" OPTIONS (ADD reset 'never');
SELECT is(pg_temp.advice('{"resets": 9200, "statements": 9200}', sample), NULL, 'resets that are off already') FROM short;
ALTER SERVER "it's ""A""" OPTIONS (DROP reset);

SELECT is(pg_temp.advice('{"checkouts": 1000, "closed_with_lease": 10, "cancels": 9, "connects": 15, "connect_time": 150}'),
  $$info: statements close their connections: ALTER SERVER "it's ""A""" OPTIONS (ADD min_idle '1')$$, 'cancels that close connections');
SELECT isnt(pg_temp.advice('{"closed_with_lease": 10}'), NULL, 'counters that were read at different times raise no error');
SELECT is(pg_temp.advice('{"checkouts": 1001, "closed_with_lease": 10, "cancels": 9, "connects": 15, "connect_time": 150}'), NULL, 'few cancels');

-- 25,000 statements per second of the second pool
CREATE FUNCTION pg_temp.relayed(rate int8, other text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_temp.advice('{"statements": 1000}', jsonb_build_object('statements', rate * 5, 'peak_leased', 3));
  PERFORM pg_temp.add(t, jsonb_build_object('pool_id', 2, 'server', other, 'statements', rate * 5, 'peak_leased', 3))
     FROM unnest('{pools,stats,history}'::text[]) AS t;
  RETURN pg_temp.findings();
END
$$;
SELECT pg_temp.add('connections', jsonb_build_object('pool_id', id, 'transport', 'relay')) FROM generate_series(1, 2) AS id;
SELECT is(pg_temp.relayed(25000, 'B'), 'warning: worker is busy with TLS: ALTER SYSTEM SET pgpool_ext.workers = 2', 'worker with two servers over TLS');
SELECT is(pg_temp.relayed(2500, 'B'), NULL, 'worker with little work');
SELECT is(pg_temp.relayed(25000, 'it''s "A"'), NULL, 'worker with a single server, which another worker cannot share');
UPDATE fake.connections SET transport = 'direct';
SELECT is(pg_temp.relayed(25000, 'B'), NULL, 'worker without TLS');

--
-- Failures
--

SELECT is(pg_temp.advice(jsonb_build_object('state', 'unavailable', 'unavailable_since', now(), 'last_error_at', now(), 'last_error', e)),
  'critical: ' || finding, e)
  FROM (VALUES ('FATAL:  password authentication failed for user "app"', 'login fails'),
    ('password command failed', 'login fails'),
    ('could not translate host name "nowhere" to address: Name or service not known', 'host name is not found'),
    ('connection refused', 'remote server cannot be reached'),
    ('<insufficient privilege>', 'remote server cannot be reached')) AS t(e, finding);
SELECT is(pg_temp.advice(jsonb_build_object('unavailable_since', now(), 'last_error_at', now(), 'last_error', 'connection refused', 'connects_failed', 3)),
  'critical: remote server cannot be reached', 'remote server that cannot be reached, before a sample is written');
SELECT matches(evidence, '^Failed attempts to connect since [^.]*: 3\. The last one, at [^.]*: connection refused$', 'evidence has the number of attempts')
  FROM pgpool.advice();
SELECT is(pg_temp.advice(jsonb_build_object('last_error_at', now(), 'last_error', 'connection refused'), '{"connects_failed": 1}'),
  'warning: remote server cannot be reached', 'remote server that could not be reached');
SELECT is(pg_temp.advice(jsonb_build_object('last_error_at', now() - interval '3 hours', 'last_error', 'connection refused')), NULL,
  'failure from before the reset');

SELECT matches(pg_temp.advice('{"deadlocks": 1}'), '^warning: sessions wait for each other: SELECT ', 'deadlocks');
SELECT lives_ok(suggestion, 'the suggestion can be run') FROM pgpool.advice();

--
-- The report
--

SELECT is(pg_temp.error_of('SELECT pgpool.report(''0'')'), E'since is out of range\nThe interval is "00:00:00", and must be between 1 second and 10 years.\n'
  'Specify the duration of the time that the page shows.', 'report about no time');
SELECT throws_ok(format('SELECT pgpool.report(%L)', since), '22023', 'since is out of range', concat('report about ', coalesce(since, 'NULL')))
  FROM unnest('{-1 h, 100000 years, -1 year 365 days 6 hours, NULL}'::text[]) AS since;
SELECT matches(pgpool.report(since), '</html>$', 'report about ' || since) FROM unnest('{1 s, 10 years}'::interval[]) AS since;

SELECT * FROM finish();
ROLLBACK;
