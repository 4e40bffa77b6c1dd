--
-- Names of every kind, and long options.
--

-- Create a server of this name, use it in each way, drop it.
CREATE FUNCTION test.use(name text, VARIADIC options text[] DEFAULT '{}')
RETURNS TABLE (step text, result text) LANGUAGE plpgsql AS $$
DECLARE
	lease bigint;
BEGIN
	PERFORM test.server(name, VARIADIC '{pool_size,1}'::text[] || options);
	lease := pgpool.checkout(name);
	step := 'on a lease';
	SELECT a INTO result FROM pgpool.query(lease, 'select ''works''') AS t(a text);
	RETURN NEXT;
	PERFORM pgpool.checkin(lease);
	step := 'in one call';
	SELECT a INTO result FROM pgpool.query(name, 'select ''works''') AS t(a text);
	RETURN NEXT;
	step := 'in the views';
	SELECT count(*) INTO result FROM pgpool.pools AS p WHERE p.server = name;
	RETURN NEXT;
	step := 'application_name';
	SELECT a INTO result FROM pgpool.query(name, 'show application_name') AS t(a text);
	RETURN NEXT;
	EXECUTE format('DROP SERVER %I CASCADE', name);
END $$;
SET client_min_messages = warning;

SELECT * FROM test.use('a name with spaces');
SELECT * FROM test.use('"quoted" and ''quoted''');
SELECT * FROM test.use('Select');
SELECT * FROM test.use('42');
SELECT * FROM test.use('-1');
SELECT * FROM test.use('back\slash, $dollar$ and %s %d %n');
-- (before 16 application_name has ASCII letters only)
SELECT * FROM test.use('größe ☃ 漢字 🐘') WHERE step <> 'application_name';
SELECT * FROM test.use(repeat('x', 63));
SELECT * FROM test.use(repeat('ä', 31) || 'x') WHERE step <> 'application_name';

-- a name of digits only means a server if there is one, not a lease
SELECT test.server('4711', 'pool_size', '1');
SELECT pgpool.exec('4711', 'select 1');
SELECT pgpool.exec(4711, 'select 1');
SELECT test.drop('4711');
SELECT pgpool.exec('4711', 'select 1');

-- a name is compared by its letters, not as SQL folds them
SELECT pgpool.exec('ONE', 'select 1');
SELECT pgpool.exec(' one', 'select 1');
SELECT pgpool.exec('"one"', 'select 1');
SELECT pgpool.exec('', 'select 1');
SELECT pgpool.checkout('');
SELECT pgpool.try_checkout(' ');

-- 64 bytes: CREATE SERVER truncates the name, the functions do not
SELECT test.server(repeat('y', 64), 'pool_size', '1');
SELECT pgpool.exec(repeat('y', 63), 'select 1');
SELECT pgpool.exec(repeat('y', 64), 'select 1');
SELECT pgpool.checkout(repeat('y', 64));
SELECT * FROM pgpool.query(repeat('y', 65), 'select 1') AS t(a int);
SELECT test.drop(repeat('y', 63));
-- 64 bytes where the limit falls within a character
SELECT test.server(repeat('ä', 31), 'pool_size', '1');
SELECT pgpool.exec(repeat('ä', 31), 'select 1');
SELECT pgpool.exec(repeat('ä', 32), 'select 1');
SELECT pgpool.exec(repeat('ä', 500), 'select 1');
SELECT pgpool.exec(repeat('☃', 22), 'select 1');
SELECT test.drop(repeat('ä', 31));

--
-- Long options
--

-- 8 kB of options
SELECT * FROM test.use('long options', 'options',
	rtrim(repeat('-c work_mem=4MB ', 500)) || ' -c work_mem=5MB');
SELECT test.server('long options', 'pool_size', '1', 'options',
	rtrim(repeat('-c work_mem=4MB ', 500)) || ' -c work_mem=5MB');
SELECT * FROM pgpool.query('long options', 'select current_setting(''work_mem''), current_setting(''datestyle'')') AS t(a text, b text);
SELECT * FROM pgpool.query('long options', 'select current_setting(''work_mem''), current_setting(''datestyle'')') AS t(a text, b text);
SELECT test.drop('long options');
SELECT result FROM test.use('long application', 'application_name', repeat('x', 8000)) WHERE step <> 'application_name';
SELECT test.server('long commands', 'pool_size', '1',
	'start_commands', rpad('SET work_mem = ''5MB''', 8192), 'reset_command', rpad('DISCARD ALL', 8192));
SELECT * FROM pgpool.query('long commands', 'show work_mem') AS t(a text);
SELECT * FROM pgpool.query('long commands', 'show work_mem') AS t(a text);
SELECT test.drop('long commands');
-- application_name is the server's name unless the option sets another one
SELECT result FROM test.use('named', 'application_name', 'my "app"') WHERE step = 'application_name';
SELECT result FROM test.use('named', 'fallback_application_name', 'fallen back') WHERE step = 'application_name';
-- a password of 900 bytes; a password that the remote refuses; one that exceeds the limit
SELECT test.server('long password', 'pool_size', '1', 'retry_min', '1ms', 'retry_max', '1ms');
ALTER USER MAPPING FOR CURRENT_USER SERVER "long password" OPTIONS (SET password 'x');
SELECT test.run(format('ALTER USER MAPPING FOR CURRENT_USER SERVER "long password" OPTIONS (SET password %L)', repeat('x', 900)));
SELECT test.err($$SELECT pgpool.checkout('long password')$$);
SELECT test.run(format('ALTER SERVER "long password" OPTIONS (ADD options %L)', repeat('-c work_mem=4MB ', 1000)));
SELECT err FROM test.err($$SELECT pgpool.checkout('long password')$$) AS err WHERE err LIKE 'ERROR%';
SELECT test.run(format('ALTER SERVER "long password" OPTIONS (SET options %L)', repeat('-c work_mem=4MB ', 10000)));
SELECT test.err($$SELECT pgpool.checkout('long password')$$);
SELECT test.err($$SELECT pgpool.try_checkout('long password')$$);
SELECT test.drop('long password');

-- several hosts, the first of which cannot be reached; a name to resolve
SELECT test.server('hosts', 'pool_size', '1');
SELECT test.run(format('ALTER SERVER hosts OPTIONS (SET host %L, SET port %L)',
	'127.0.0.1,' || current_setting('pgpx_test.remote_host'), '1,' || current_setting('pgpx_test.remote_port')));
SELECT pgpool.exec('hosts', 'select 1');
SELECT test.run(format('ALTER SERVER hosts OPTIONS (SET host %L, SET port %L)', 'localhost', current_setting('pgpx_test.remote_port')));
SELECT pgpool.exec('hosts', 'select 1');
-- a refused connection: the error has the reason
ALTER SERVER hosts OPTIONS (SET host '127.0.0.1', SET port '1', ADD retry_min '1ms', ADD retry_max '1ms');
SELECT test.err($$SELECT pgpool.checkout('hosts')$$);
ALTER SERVER hosts OPTIONS (SET host '/nowhere', SET port '5432');
SELECT test.err($$SELECT pgpool.checkout('hosts')$$);
ALTER SERVER hosts OPTIONS (SET host 'host.invalid');
SELECT err FROM test.err($$SELECT pgpool.checkout('hosts')$$) AS err WHERE err LIKE 'ERROR%';
SELECT test.drop('hosts');

RESET client_min_messages;
DROP FUNCTION test.use(text, text[]);
SELECT pgpool.check_invariants();
