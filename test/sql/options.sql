-- Options of servers and user mappings, and the errors of looking a pool up. No pool
-- runs in this test, and nothing connects.

\set VERBOSITY terse
CREATE ROLE regress_pgpool_owner;
CREATE ROLE regress_pgpool_user;
GRANT USAGE ON FOREIGN DATA WRAPPER pgpool_fdw TO regress_pgpool_owner;

-- Run a command, undo it, and return its SQLSTATE and messages.
CREATE FUNCTION pg_temp.try(command text, OUT state text, OUT message text,
                            OUT detail text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE command;
    RAISE EXCEPTION 'ok' USING ERRCODE = 'ZZ000';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE,
        message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    IF state = 'ZZ000' THEN
        state := 'ok';
        message := '';
    END IF;
END $$;

-- The same for a server, or a user mapping, with one option.
CREATE FUNCTION pg_temp.try_server(name text, value text,
                                   OUT state text, OUT message text,
                                   OUT detail text, OUT hint text)
RETURN pg_temp.try(format('CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw '
                          'OPTIONS (%I %L)', name, value));
CREATE FUNCTION pg_temp.try_mapping(name text, value text,
                                    OUT state text, OUT message text,
                                    OUT detail text, OUT hint text)
RETURN pg_temp.try(format('CREATE USER MAPPING FOR CURRENT_USER '
                          'SERVER options_server OPTIONS (%I %L)',
                          name, value));

--
-- The pool's options
--

-- valid values
SELECT name, value, r.state, r.message
  FROM (VALUES
    (1, 'pool_size', '1'), (2, 'pool_size', '262143'), (3, 'pool_size', ' 8 '),
    (4, 'max_overflow', '0'), (5, 'max_overflow', '262143'),
    (6, 'overflow_ttl', '0'), (7, 'overflow_ttl', '2s'),
    (8, 'min_size', '0'), (9, 'min_size', '3'), (9.5, 'min_idle', '2'),
    (10, 'max_server_connections', '0'), (11, 'max_server_connections', '99'),
    (12, 'on_unavailable', 'WAIT'),
    (14, 'checkout_timeout', '0'), (15, 'checkout_timeout', '30s'),
    (16, 'checkout_timeout', '0.5s'), (17, 'checkout_timeout', '1.5s'),
    (18, 'checkout_timeout', '1us'), (19, 'checkout_timeout', '250 ms'),
    (20, 'checkout_timeout', '2min'), (21, 'checkout_timeout', '1h'),
    (22, 'checkout_timeout', '3650d'),
    (23, 'max_waiters', '0'), (24, 'max_waiters', '100'),
    (25, 'idle_timeout', '0'), (26, 'max_lifetime', '0'),
    (29, 'test_period', '0'), (30, 'test_period', '-1'),
    (31, 'test_period', ' 0.0 '),
    (32, 'connect_timeout', '5s'), (33, 'connect_timeout', '200ms'),
    (34, 'retry_min', '100ms'), (35, 'retry_max', '10s'),
    (36, 'on_unavailable', 'fail'), (37, 'on_unavailable', 'Wait'),
    (38, 'start_commands', ''), (39, 'start_commands', 'SET x.y = 1; SELECT 1'),
    (40, 'reset', 'always'),
    (42, 'reset', 'never'),
    (43, 'reset_command', 'DISCARD TEMP'),
    (44, 'operation_timeout', '10s'), (45, 'lease_timeout', '0'),
    (46, 'lease_timeout', '1h'), (47, 'leak_warning', '0'),
    (48, 'leak_warning', '5min'), (53, 'notice_after', '0'),
    (54, 'notice_after', '5s'),
    (49, 'notices', 'forward'), (50, 'notices', 'log'),
    (51, 'notices', 'ignore'), (52, 'base_server', 'shard1'),
    (55, 'two_phase_commit', 'on'), (56, 'two_phase_commit', 'false')
  ) AS v(n, name, value), pg_temp.try_server(name, value) AS r
 ORDER BY n;

-- invalid values
SELECT name, left(value, 12) AS value, r.state, r.message
  FROM (VALUES
    (1, 'pool_size', '0'), (2, 'pool_size', '262144'), (3, 'pool_size', 'ten'),
    (4, 'pool_size', ''), (5, 'pool_size', '10MB'), (6, 'pool_size', '1 s'),
    (7, 'pool_size', '99999999999'),
    (8, 'max_overflow', '-1'), (9, 'max_overflow', '262144'),
    (10, 'overflow_ttl', '-1'), (11, 'overflow_ttl', '1 week'),
    (12, 'min_size', '-1'), (12.5, 'min_idle', '-1'), (13, 'max_server_connections', '-1'),
    (14, 'on_unavailable', 'random'), (15, 'on_unavailable', ''),
    (16, 'checkout_timeout', '-1'), (17, 'checkout_timeout', '5 seconds'),
    (18, 'checkout_timeout', 'S'), (19, 'checkout_timeout', ''),
    (20, 'checkout_timeout', '3651d'), (21, 'checkout_timeout', 'NaN'),
    (22, 'checkout_timeout', 'Infinity'), (23, 'checkout_timeout', '1e999'),
    (24, 'max_waiters', '-1'),
    (25, 'idle_timeout', '-1'), (26, 'max_lifetime', '-1'),
    (29, 'test_period', '-2'), (30, 'test_period', '-1ms'),
    (31, 'connect_timeout', '0'), (32, 'retry_min', '0'),
    (33, 'retry_max', '0'), (34, 'on_unavailable', 'never'),
    (35, 'reset', 'true'), (36, 'reset_command', ''),
    (37, 'reset_command', E' \t'), (38, 'reset_command', ' ; '),
    (39, 'reset_command', repeat('x', 8193)),
    (40, 'start_commands', repeat('x', 8193)),
    (41, 'operation_timeout', '0'), (42, 'lease_timeout', '-1'),
    (43, 'leak_warning', '-5min'), (44, 'notices', 'warn'),
    (45, 'base_server', ''), (46, 'base_server', repeat('x', 64)),
    -- a duration without a unit
    (47, 'test_period', '30'), (48, 'checkout_timeout', '500'),
    (49, 'checkout_timeout', ' 0.5 '), (50, 'connect_timeout', '5'),
    (51, 'idle_timeout', '0x10'), (52, 'leak_warning', '-1'),
    (53, 'notice_after', '-1s'), (54, 'two_phase_commit', 'maybe')
  ) AS v(n, name, value), pg_temp.try_server(name, value) AS r
 ORDER BY n;

-- the hints, one for each kind
SELECT r.hint
  FROM (VALUES (1, 'pool_size'), (2, 'checkout_timeout'), (3, 'idle_timeout'),
    (4, 'test_period'), (6, 'reset'), (7, 'on_unavailable'),
    (8, 'notices'), (9, 'reset_command'), (10, 'start_commands'),
    (11, 'base_server')
  ) AS v(n, name),
  pg_temp.try_server(name, CASE WHEN name = 'start_commands'
                     THEN repeat('x', 8193) ELSE '' END) AS r
 ORDER BY n;

-- options that must be consistent with each other
SELECT * FROM pg_temp.try($$CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (retry_min '2s', retry_max '2s', pool_size '2', max_overflow '1',
             min_size '2', min_idle '2')$$);
SELECT * FROM pg_temp.try($$CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (retry_min '2s', retry_max '1s')$$);
SELECT * FROM pg_temp.try($$CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (min_size '3', max_overflow '1', pool_size '2')$$);
SELECT * FROM pg_temp.try($$CREATE SERVER s FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (min_idle '3', max_overflow '1', pool_size '2')$$);

--
-- libpq's options
--

SELECT name, value, r.state, r.message
  FROM (VALUES
    (1, 'host', '10.0.0.7'), (2, 'hostaddr', '127.0.0.1'),
    (3, 'port', '5432'), (4, 'port', '5432,,6432'), (5, 'dbname', 'app'),
    (6, 'application_name', 'x'), (7, 'fallback_application_name', 'x'),
    (8, 'sslmode', 'verify-full'), (9, 'sslsni', '0'),
    (10, 'ssl_min_protocol_version', 'TLSv1.2'),
    (11, 'ssl_max_protocol_version', 'TLSv1.3'),
    (12, 'channel_binding', 'require'), (13, 'gssencmode', 'disable'),
    (14, 'target_session_attrs', 'read-write'),
    (15, 'keepalives', '0'), (16, 'keepalives_idle', '60'),
    (17, 'keepalives_interval', '5'), (18, 'keepalives_count', '127'),
    (19, 'tcp_user_timeout', '30000'),
    -- superusers only
    (20, 'sslrootcert', '/ca.crt'), (21, 'sslcrl', '/crl'),
    (22, 'options', '-c search_path=x'), (23, 'service', 'x'),
    (24, 'passfile', '/x'), (25, 'requirepeer', 'x'), (26, 'krbsrvname', 'x'),
    (27, 'sslcert', '/x'), (28, 'sslkey', '/x')
  ) AS v(n, name, value), pg_temp.try_server(name, value) AS r
 ORDER BY n;

SELECT r.state, r.message, r.hint FROM pg_temp.try_server('gssencmode', 'prefer') AS r;

-- the highest number of hosts that libpq tries in one attempt
SELECT name, n, r.state, r.message, r.detail, r.hint
  FROM (VALUES ('host', 64), ('host', 65), ('hostaddr', 64), ('hostaddr', 65))
  AS v(name, n), pg_temp.try_server(name, repeat(',', n - 1)) AS r
 ORDER BY name, n;

-- options that a pool cannot have
SELECT r.state, r.message, r.detail
  FROM (VALUES
    (1, 'client_encoding'), (2, 'replication'), (3, 'scram_client_key'),
    (4, 'gssdelegation'), (5, 'oauth_issuer')
  ) AS v(n, name), pg_temp.try_server(name, '1') AS r
 ORDER BY n;

--
-- Options of servers and options of user mappings
--

CREATE SERVER options_server FOREIGN DATA WRAPPER pgpool_fdw;
SELECT v.name, r.*
  FROM (VALUES (1, 'user'), (2, 'password'), (3, 'sslpassword'),
    (4, 'password_required')) AS v(n, name),
  pg_temp.try_server(name, 'opensesame') AS r
 ORDER BY n;
SELECT v.name, r.*
  FROM (VALUES (1, 'host'), (2, 'pool_size'), (3, 'sslmode'),
    (4, 'client_encoding')) AS v(n, name),
  pg_temp.try_mapping(name, '1') AS r
 ORDER BY n;
SELECT v.name, v.value, r.state, r.message, r.hint
  FROM (VALUES (1, 'user', 'app'), (2, 'password', 'opensesame'),
    (3, 'sslpassword', 'opensesame'), (4, 'sslcert', '/x'),
    (5, 'sslkey', '/x'), (6, 'password_required', 'true'),
    (7, 'password_required', 'off'), (8, 'password_required', 'perhaps')
  ) AS v(n, name, value), pg_temp.try_mapping(name, value) AS r
 ORDER BY n;

-- unknown option: the hint names the closest one that the user can set there
SELECT name, r.state, r.message, r.detail, r.hint
  FROM unnest('{poolsize,POOL_SIZE,hots,checkout_timout,ldle_timeout,Start_Commands}'::text[]) AS name,
       pg_temp.try_server(name, 'opensesame') AS r;
SELECT name, r.state, r.message, r.detail, r.hint
  FROM unnest('{pasword,username,password_require}'::text[]) AS name,
       pg_temp.try_mapping(name, 'opensesame') AS r;
-- options that only a superuser can set are suggested to superusers only
SELECT r.state, r.message, r.detail, r.hint FROM pg_temp.try_server('sslcer', 'x') AS r;
SET ROLE regress_pgpool_owner;
SELECT r.state, r.message, r.detail, r.hint FROM pg_temp.try_server('sslcer', 'x') AS r;
RESET ROLE;
-- none is close
SELECT r.state, r.message, r.detail, r.hint
  FROM unnest(ARRAY['nonsense', 'x', 'client_encodin']) AS name,
       pg_temp.try_server(name, 'opensesame') AS r;
SELECT r.state, r.message, r.detail, r.hint
  FROM pg_temp.try_mapping('nonsense', 'opensesame') AS r;

-- the wrapper has no options
SELECT * FROM pg_temp.try('ALTER FOREIGN DATA WRAPPER pgpool_fdw '
                          'OPTIONS (ADD host ''x'')');

-- foreign tables and their columns have options of their own
SELECT * FROM pg_temp.try('CREATE FOREIGN TABLE t (a int OPTIONS (column_name ''b'')) '
                          'SERVER options_server OPTIONS (schema_name ''s'', '
                          'table_name ''t'', updatable ''false'', '
                          'truncatable ''false'', async_capable ''true'', '
                          'fetch_size ''50'', batch_size ''10'', '
                          'analyze_sampling ''random'')');
SELECT * FROM pg_temp.try('CREATE FOREIGN TABLE t (a int) '
                          'SERVER options_server OPTIONS (pool_size ''1'')');
SELECT r.* FROM (VALUES
  ('fetch_size ''0'''), ('batch_size ''many'''), ('updatable ''x'''),
  ('updatable ''no'''), ('truncatable ''1'''), ('async_capable ''t'''),
  ('analyze_sampling ''all'''), ('analyze_sampling ''AUTO'''), ('use_remote_estimate ''true'''),
  ('column_name ''a'''), ('table_nam ''a'''), ('host ''a''')) AS v(o),
  pg_temp.try('CREATE FOREIGN TABLE t (a int) SERVER options_server OPTIONS (' || o || ')') AS r;
SELECT * FROM pg_temp.try('CREATE FOREIGN TABLE t (a int OPTIONS (schema_name ''b'')) '
                          'SERVER options_server');

-- servers accept defaults for their tables, and the planner's costs
SELECT r.* FROM (VALUES
  ('fetch_size ''0'''), ('fdw_startup_cost ''-1'''), ('fdw_tuple_cost ''cheap'''),
  ('extensions ''a, "b'''), ('use_remote_estimate ''true'''), ('keep_connections ''off'''),
  ('parallel_commit ''on'''), ('parallel_abort ''on'''),
  ('fetch_size ''10'', ADD batch_size ''5'', ADD updatable ''off'', ADD truncatable ''FALSE'', '
   'ADD async_capable ''On'', ADD fdw_startup_cost ''1.5'', ADD fdw_tuple_cost ''0'', '
   'ADD extensions ''postgis, "X"'', ADD analyze_sampling ''off''')) AS v(o),
  pg_temp.try('ALTER SERVER options_server OPTIONS (ADD ' || o || ')') AS r;

-- ALTER checks the whole set of options
SELECT r.* FROM pg_temp.try('ALTER SERVER options_server '
    'OPTIONS (ADD retry_max ''1s'', retry_min ''5s'')') AS r;
ALTER SERVER options_server OPTIONS (ADD retry_max '1s');
ALTER SERVER options_server OPTIONS (ADD retry_min '5s');
ALTER SERVER options_server OPTIONS (ADD retry_min '5s', SET retry_max '9s');
ALTER SERVER options_server OPTIONS (SET retry_max '0.1s');
ALTER SERVER options_server OPTIONS (DROP retry_max);
SELECT srvoptions FROM pg_foreign_server WHERE srvname = 'options_server';
ALTER SERVER options_server OPTIONS (DROP retry_min);

-- the validator called directly
SELECT pgpool.pgpool_fdw_validator('{}', 'pg_foreign_server'::regclass);
SELECT pgpool.pgpool_fdw_validator('{host}', 'pg_foreign_server'::regclass);
SELECT pgpool.pgpool_fdw_validator('{pool_size=0}',
                                   'pg_foreign_server'::regclass);
SELECT pgpool.pgpool_fdw_validator('{pool_size=1}', 'pg_class'::regclass);

--
-- As an ordinary role
--

SET ROLE regress_pgpool_owner;
SELECT v.name, r.*
  FROM (VALUES (1, 'host', 'x'), (2, 'hostaddr', '::1'), (3, 'port', '1'),
    (4, 'dbname', 'x'), (5, 'pool_size', '2'), (6, 'start_commands', 'x'),
    (7, 'sslmode', 'require'), (8, 'connect_timeout', '3s'),
    (9, 'keepalives_idle', '3'), (10, 'application_name', 'x'),
    (11, 'sslrootcert', 'x'), (12, 'sslcrl', 'x'), (13, 'sslcrldir', 'x'),
    (14, 'options', 'x'), (15, 'service', 'x'), (16, 'passfile', 'x'),
    (17, 'requirepeer', 'x'), (18, 'krbsrvname', 'x'),
    (19, 'sslcert', 'x'), (20, 'sslkey', 'x')
  ) AS v(n, name, value), pg_temp.try_server(name, value) AS r
 ORDER BY n;
CREATE SERVER options_owned FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (host '/nowhere', pool_size '1');
SELECT v.name, v.value, r.*
  FROM (VALUES (1, 'user', 'app'), (2, 'password', 'opensesame'),
    (3, 'password_required', 'true'), (4, 'password_required', 'false'),
    (5, 'sslcert', 'x'), (6, 'sslkey', 'x'), (7, 'sslpassword', 'opensesame')
  ) AS v(n, name, value),
  pg_temp.try(format('CREATE USER MAPPING FOR regress_pgpool_owner '
                     'SERVER options_owned OPTIONS (%I %L)',
                     name, value)) AS r
 ORDER BY n;
RESET ROLE;

--
-- From a name to a pool
--

-- these errors are raised before anything connects
CREATE FUNCTION pg_temp.try_name(name text,
                                 OUT state text, OUT message text,
                                 OUT detail text, OUT hint text)
RETURN pg_temp.try(format('SELECT pgpool.try_checkout(%L)', name));

SELECT r.* FROM pg_temp.try_name('options_nowhere') AS r;
SELECT r.* FROM pg_temp.try_name('') AS r;
SELECT r.* FROM pg_temp.try_name('42') AS r;
-- a name that is too long is not truncated to that of an existing server
CREATE SERVER options_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
    FOREIGN DATA WRAPPER pgpool_fdw;
SELECT r.* FROM pg_temp.try_name('options_' || repeat('x', 56)) AS r;
SELECT r.* FROM pg_temp.try_name(repeat('x', 100000)) AS r;
DROP SERVER options_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx;
-- a name that is too long is not truncated to one that this session has cached
CREATE FUNCTION pg_temp.try_lock(name text,
                                 OUT state text, OUT message text,
                                 OUT detail text, OUT hint text)
RETURN pg_temp.try(format('SELECT pgpool.lock(%L, ''a'')', name));
BEGIN;
CREATE SERVER options_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
    FOREIGN DATA WRAPPER pgpool_fdw;
CREATE USER MAPPING FOR CURRENT_USER
    SERVER options_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx;
SELECT r.state, r.message
  FROM pg_temp.try_lock('options_' || repeat('x', 55)) AS r;
SELECT r.state, r.message
  FROM pg_temp.try_lock('options_' || repeat('x', 56)) AS r;
ROLLBACK;

-- the session's cache of servers has a limit
BEGIN;
DO $$
BEGIN
    FOR i IN 1 .. 100 LOOP
        EXECUTE format('CREATE SERVER options_%s '
                       'FOREIGN DATA WRAPPER pgpool_fdw', i);
        EXECUTE format('CREATE USER MAPPING FOR CURRENT_USER '
                       'SERVER options_%s', i);
        PERFORM pg_temp.try_lock('options_' || i);
        PERFORM pg_temp.try_lock('options_1');
    END LOOP;
END $$;
SELECT count(*) BETWEEN 1 AND 66 AS some
  FROM pg_backend_memory_contexts WHERE name = 'pgpool_ext server spec';
ROLLBACK;

-- a wrapper of another extension
CREATE FOREIGN DATA WRAPPER options_wrapper;
CREATE SERVER options_other FOREIGN DATA WRAPPER options_wrapper;
SELECT r.* FROM pg_temp.try_name('options_other') AS r;
DROP FOREIGN DATA WRAPPER options_wrapper CASCADE;

-- a wrapper of a known name, whose options are not validated
CREATE FOREIGN DATA WRAPPER postgres_fdw;
CREATE SERVER options_other FOREIGN DATA WRAPPER postgres_fdw
    OPTIONS (replication 'database');
CREATE USER MAPPING FOR CURRENT_USER SERVER options_other;
SELECT r.* FROM pg_temp.try_name('options_other') AS r;
ALTER SERVER options_other
    OPTIONS (DROP replication, ADD use_scram_passthrough 'false');
ALTER USER MAPPING FOR CURRENT_USER SERVER options_other
    OPTIONS (ADD use_scram_passthrough 'false', ADD host '127.0.0.1');
SELECT r.* FROM pg_temp.try_name('options_other') AS r;
DROP FOREIGN DATA WRAPPER postgres_fdw CASCADE;

-- the password command needs the name of a remote user, in each DDL command
CREATE SERVER options_command FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (host '/nowhere');
SELECT r.* FROM pg_temp.try('CREATE USER MAPPING FOR PUBLIC SERVER options_command '
                            'OPTIONS (use_password_command ''on'')') AS r;
SELECT r.state, r.message
  FROM pg_temp.try('CREATE USER MAPPING FOR CURRENT_USER SERVER options_command '
                   'OPTIONS (use_password_command ''on'', user '''')') AS r;
SELECT r.state, r.message
  FROM pg_temp.try('CREATE USER MAPPING FOR PUBLIC SERVER options_command '
                   'OPTIONS (use_password_command ''off'')') AS r;
CREATE USER MAPPING FOR PUBLIC SERVER options_command
    OPTIONS (user 'app', use_password_command 'on');
SELECT o, r.state, r.message
  FROM unnest(ARRAY['DROP user', 'SET user ''''', 'ADD password ''x''']) AS o,
  pg_temp.try('ALTER USER MAPPING FOR PUBLIC SERVER options_command '
              'OPTIONS (' || o || ')') AS r;
-- and in a mapping that the validator has not seen, also of a base server
UPDATE pg_user_mapping SET umoptions = '{use_password_command=on}'
 WHERE umserver = (SELECT oid FROM pg_foreign_server
                    WHERE srvname = 'options_command');
CREATE SERVER options_based FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (base_server 'options_command');
SELECT r.* FROM pg_temp.try_name('options_command') AS r;
SELECT r.state, r.message FROM pg_temp.try_name('options_based') AS r;
DROP SERVER options_based;
DROP SERVER options_command CASCADE;

-- no USAGE, no mapping, no password
SET ROLE regress_pgpool_user;
SELECT r.* FROM pg_temp.try_name('options_owned') AS r;
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER options_owned TO regress_pgpool_user;
SET ROLE regress_pgpool_user;
SELECT r.* FROM pg_temp.try_name('options_owned') AS r;
RESET ROLE;
CREATE USER MAPPING FOR PUBLIC SERVER options_owned;
SET ROLE regress_pgpool_user;
SELECT r.* FROM pg_temp.try_name('options_owned') AS r;
CREATE USER MAPPING FOR regress_pgpool_user SERVER options_owned
    OPTIONS (user 'app', password '');
SELECT r.* FROM pg_temp.try_name('options_owned') AS r;
RESET ROLE;
-- USAGE is checked again after it has changed
REVOKE USAGE ON FOREIGN SERVER options_owned FROM regress_pgpool_user;
SET ROLE regress_pgpool_user;
SELECT r.* FROM pg_temp.try_name('options_owned') AS r;
RESET ROLE;

-- an option that the server's owner could not have set
ALTER SERVER options_owned OPTIONS (ADD service 'x');
SET ROLE regress_pgpool_owner;
SELECT r.* FROM pg_temp.try_name('options_owned') AS r;
ALTER SERVER options_owned OPTIONS (SET pool_size '2');
ALTER SERVER options_owned OPTIONS (DROP service);
RESET ROLE;

-- the SQLSTATEs as psql shows them
\set VERBOSITY sqlstate
SELECT pgpool.try_checkout('options_nowhere');
ALTER SERVER options_owned OPTIONS (SET pool_size '0');
ALTER SERVER options_owned OPTIONS (ADD nonsense '0');
SET ROLE regress_pgpool_owner;
ALTER SERVER options_owned OPTIONS (ADD passfile 'x');
SELECT pgpool.try_checkout('options_owned');
RESET ROLE;
\set VERBOSITY terse

DROP SERVER options_owned CASCADE;
DROP SERVER options_server;
REVOKE USAGE ON FOREIGN DATA WRAPPER pgpool_fdw FROM regress_pgpool_owner;
DROP ROLE regress_pgpool_owner, regress_pgpool_user;
