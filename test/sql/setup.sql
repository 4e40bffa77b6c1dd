--
-- The objects of all later tests: the extension, an ordinary role, two servers that
-- connect to the remote cluster, and helper functions in schema "test".
CREATE EXTENSION pgpool_ext;
CREATE EXTENSION dblink;
CREATE ROLE regress_pgpool_app LOGIN;
GRANT CREATE ON SCHEMA public TO regress_pgpool_app;

CREATE SCHEMA test;
GRANT USAGE ON SCHEMA test TO PUBLIC;

-- Create a server of the pool, with options as name, value, name, value.
CREATE FUNCTION test.create_server(name text, options text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	list text;
BEGIN
	SELECT string_agg(format('%I %L', options[2 * i - 1], options[2 * i]), ', ' ORDER BY i)
	  INTO list FROM generate_series(1, cardinality(options) / 2) AS i;
	EXECUTE format('CREATE SERVER %I FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (%s)',
		name, list);
END $$;

-- Create a server that connects to the remote cluster, whose address differs from run
-- to run, with more options as above; and a mapping for the caller.
CREATE FUNCTION test.server(name text, VARIADIC options text[] DEFAULT '{}')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	-- or libpq would repeat a refused login without TLS
	IF current_setting('pgpx_test.transport') = 'relay' THEN
		options := options || ARRAY['sslmode', 'require'];
	END IF;
	PERFORM test.create_server(name, ARRAY[
		'host', current_setting('pgpx_test.remote_host'),
		'port', current_setting('pgpx_test.remote_port'),
		'dbname', 'remote_db'] || options);
	PERFORM test.mapping('CURRENT_USER', name);
END $$;

CREATE FUNCTION test.mapping(whose text, server text,
	remote_user text DEFAULT 'remote_app',
	password text DEFAULT 'secret of the remote')
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE USER MAPPING FOR %s SERVER %I OPTIONS (user %L, password %L)',
		whose, server, remote_user, password);
END $$;

-- Drop servers and their mappings, whose users' names differ from run to run.
CREATE FUNCTION test.drop(VARIADIC servers text[]) RETURNS void
LANGUAGE plpgsql SET client_min_messages = warning AS $$
BEGIN
	FOR i IN 1 .. cardinality(servers) LOOP
		EXECUTE format('DROP SERVER %I CASCADE', servers[i]);
	END LOOP;
END $$;

-- Run a command.
CREATE FUNCTION test.run(command text) RETURNS void
LANGUAGE plpgsql SET client_min_messages = warning AS $$
BEGIN
	EXECUTE command;
END $$;

-- Run a command that must fail, and return its error. Values that differ from run to run
-- are replaced: ids of leases and processes, ports, times.
CREATE FUNCTION test.err(command text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
	detail text;
	hint text;
	line text;
BEGIN
	EXECUTE command;
	RETURN NEXT 'no error';
EXCEPTION WHEN OTHERS OR query_canceled THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	FOREACH line IN ARRAY ARRAY['ERROR:  ' || state || ': ' || message,
		'DETAIL:  ' || nullif(detail, ''), 'HINT:  ' || nullif(hint, '')] LOOP
		CONTINUE WHEN line IS NULL;
		line := regexp_replace(line, '\m(lease|PID|port) \d+', '\1 N', 'g');
		line := regexp_replace(line, '\m\d+\.\d+ s\M', 'N s', 'g');
		RETURN NEXT regexp_replace(line, '\m(made in) \d+ ms', '\1 N ms');
	END LOOP;
END $$;

-- Wait until a query returns true.
CREATE FUNCTION test.wait_for(query text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	deadline timestamptz := clock_timestamp() + '60 s';
	ok boolean;
BEGIN
	LOOP
		EXECUTE query INTO ok;
		EXIT WHEN ok;
		IF clock_timestamp() > deadline THEN
			RAISE EXCEPTION 'waited too long for: %', query;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;

-- The number of sessions that wait for a connection to a server.
CREATE FUNCTION test.waiting(server text) RETURNS bigint
LANGUAGE sql AS 'SELECT count(*) FROM pgpool.waiters w WHERE w.server = $1';

-- Open another session of the local server, under this dblink name.
CREATE FUNCTION test.other_session(name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dblink_connect(name, format('host=%s port=%s dbname=%s',
		split_part(current_setting('unix_socket_directories'), ',', 1),
		current_setting('port'), current_database()));
END $$;

-- The result of a query that another session runs: one value.
CREATE FUNCTION test.other(name text, query text) RETURNS text
LANGUAGE sql AS 'SELECT result FROM dblink(name, query) AS t(result text)';

-- The pid of a lease's remote backend.
CREATE FUNCTION test.remote_pid(lease bigint) RETURNS integer
LANGUAGE sql AS $$
	SELECT pid FROM pgpool.query(lease, 'select pg_backend_pid()') AS t(pid integer)
$$;

SELECT test.server('shard1', 'pool_size', '3');
-- A remote server that is built with a sanitizer can need more than 30 s to read a
-- statement with 65535 parameters.
SELECT test.server('one', 'pool_size', '1', 'tcp_user_timeout', '0');
SELECT test.mapping('regress_pgpool_app', server)
  FROM unnest('{shard1,one}'::text[]) AS server;
GRANT USAGE ON FOREIGN SERVER shard1, one TO regress_pgpool_app;

-- a query through the pool
SELECT * FROM pgpool.query('shard1', 'select current_user, 6 * 7') AS t(who text, answer int);
