-- Executed before the suite, in its database: the settings of a database that pg_regress
-- creates itself, and an event trigger for three changes that a user would make:
--
-- - The suite's servers name no host.  postgres_fdw reads it from the environment, which
--   pools never do, so it becomes an option of the server.
-- - A mapping without a user logs in as the operating system user with postgres_fdw, and as the
--   local user with pools.  So the user becomes an option of mappings for other users.
-- - With the setting suite.attach, postgres_fdw and dblink are attached as soon as they are there.
ALTER DATABASE contrib_regression SET lc_messages TO 'C';
ALTER DATABASE contrib_regression SET bytea_output TO 'hex';
ALTER DATABASE contrib_regression SET timezone_abbreviations TO 'Default';

CREATE SCHEMA suite;
CREATE FUNCTION suite.prepare() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE
	command record;
BEGIN
	FOR command IN SELECT * FROM pg_catalog.pg_event_trigger_ddl_commands() LOOP
		IF command.command_tag = 'CREATE SERVER' AND command.object_identity <> 'testserver1' THEN
			EXECUTE pg_catalog.format('ALTER SERVER %s OPTIONS (ADD host %L)', command.object_identity,
				pg_catalog.current_setting('suite.host'));
		ELSIF command.command_tag = 'CREATE USER MAPPING' AND command.object_identity ~ '^regress_.* on server loopback' THEN
			EXECUTE pg_catalog.format('ALTER USER MAPPING FOR %s SERVER %s OPTIONS (ADD user %L)',
				pg_catalog.split_part(command.object_identity, ' ', 1), pg_catalog.split_part(command.object_identity, ' ', 4), 'postgres');
		ELSIF command.object_identity = 'postgres_fdw' AND command.command_tag = 'CREATE EXTENSION'
			AND pg_catalog.current_setting('suite.attach')::bool THEN
			PERFORM pgpool.attach_postgres_fdw();
		ELSIF command.object_identity = 'dblink' AND command.command_tag = 'CREATE EXTENSION'
			AND pg_catalog.current_setting('suite.attach')::bool THEN
			PERFORM pgpool.attach_dblink();
		END IF;
	END LOOP;
END $$;
CREATE EVENT TRIGGER suite_prepare ON ddl_command_end WHEN TAG IN ('CREATE SERVER', 'CREATE USER MAPPING', 'CREATE EXTENSION')
	EXECUTE FUNCTION suite.prepare();
