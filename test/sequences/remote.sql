-- The objects that the statements of kinds.h use on the remote server.
-- Run as remote_super in remote_db.
SET client_min_messages = warning;
CREATE TABLE denied (a text);
SET SESSION AUTHORIZATION remote_app;
CREATE SCHEMA work;
SET search_path = work;
ALTER ROLE remote_app IN DATABASE remote_db SET search_path = work, public;

CREATE TABLE plain (a text);
CREATE VIEW a_view AS SELECT 'x'::text AS a;
CREATE TABLE parent (a int PRIMARY KEY);
CREATE TABLE child (a int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE locked (a text);		-- the driver holds a lock on it
CREATE TABLE ruled (a text);
CREATE RULE more AS ON INSERT TO ruled DO ALSO SELECT 'by the rule' UNION ALL SELECT 'twice';
CREATE TABLE guarded (a text);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE FUNCTION slow_immutable() RETURNS text IMMUTABLE LANGUAGE plpgsql AS
	'begin perform pg_sleep(600); return ''slept''; end';
CREATE FUNCTION noisy_immutable(a text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
	'begin raise notice ''in the planner: %'', a; perform set_config(''application_name'', a, false); return a; end';
CREATE FUNCTION fatal_immutable() RETURNS text IMMUTABLE LANGUAGE plpgsql AS
	'begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(1); return ''lives''; end';
CREATE FUNCTION fails_immutable(a text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
	'begin raise exception ''%'', a using errcode = ''ZX777''; end';
CREATE FUNCTION noisy(a text, i int) RETURNS text LANGUAGE plpgsql AS
	'begin raise notice ''row %'', i; perform set_config(''application_name'', i::text, false); return a || i; end';
CREATE FUNCTION copies() RETURNS void LANGUAGE sql AS 'copy work.plain from stdin';
CREATE FUNCTION copies_out() RETURNS void LANGUAGE plpgsql AS 'begin execute ''copy work.plain to stdout''; end';
CREATE PROCEDURE commits() LANGUAGE plpgsql AS
	'begin for i in 1..3 loop raise notice ''%'', i; commit; end loop; end';
CREATE PROCEDURE commits_and_fails(a text) LANGUAGE plpgsql AS
	'begin commit; raise exception ''%'', a using errcode = ''ZX778''; end';

-- One table for each action of a trigger: before COPY has read any data, and at commit.
CREATE FUNCTION acts() RETURNS trigger LANGUAGE plpgsql AS $$
begin
	if tg_table_name ~ 'sleep' then
		perform pg_sleep(600);
	elsif tg_table_name ~ 'fatal' then
		perform pg_terminate_backend(pg_backend_pid());
		perform pg_sleep(1);
	elsif tg_table_name ~ 'fail' then
		raise exception 'refused' using errcode = 'ZX001';
	elsif tg_table_name ~ 'notice' then
		raise notice 'by a trigger';
		perform set_config('application_name', 'by a trigger', false);
		notify noise, 'by a trigger';
	end if;
	return null;
end $$;
DO $$
DECLARE
	what text;
BEGIN
	FOREACH what IN ARRAY ARRAY['sleep', 'fatal', 'fail', 'notice'] LOOP
		EXECUTE format('CREATE TABLE before_%s (a text)', what);
		EXECUTE format('CREATE TRIGGER t BEFORE INSERT ON before_%s EXECUTE FUNCTION acts()', what);
		EXECUTE format('CREATE TABLE commit_%s (a text)', what);
		EXECUTE format('CREATE CONSTRAINT TRIGGER t AFTER INSERT ON commit_%s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION acts()', what);
	END LOOP;
END $$;
