-- lock_schema.sql
--	  Schema pgpool_lock of a remote database: table, functions, and the
--	  verification that precedes their use.
--
-- make turns each section ("-- === name") into a C string of lock_schema.inc,
-- without comment lines.  lock_session.c and lock_pinger.c send them.
--
-- Each lock is one row of pgpool_lock.locks, and each operation one call of a
-- function.  The functions use only the remote's clock.
--
-- The token is part of a unique key.  A statement that changes it therefore
-- conflicts with FOR KEY SHARE row locks, which transactions hold that have
-- called fence_check.  A ping does not change the token and does not wait for
-- them.
--
-- The first two sections run with the search_path of the user, which can
-- contain objects of other users.  So they qualify every name and operator.

-- Raise an error if the table or a function does not exist.  This precedes the
-- check of the owners, so that another role cannot create a missing object
-- between the two.
-- === exists_sql
DO $exists$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) 'pgpool_lock'
			AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')) THEN
		RAISE EXCEPTION 'permission denied for schema pgpool_lock'
			USING ERRCODE = 'insufficient_privilege',
				HINT = 'On the remote server the user needs USAGE on schema "pgpool_lock", and SELECT, INSERT and UPDATE on its table.';
	END IF;
	IF pg_catalog.to_regclass('pgpool_lock.locks') IS NULL THEN
		RAISE EXCEPTION 'table "pgpool_lock.locks" does not exist'
			USING ERRCODE = 'undefined_table', HINT = 'Run pgpool.lock_setup once for this server.';
	END IF;
	IF EXISTS (SELECT FROM pg_catalog.unnest('{acquire,ping,release,force_release,status,commit_durably}'::pg_catalog.text[]) AS f(name)
			WHERE pg_catalog.to_regproc('pgpool_lock.' OPERATOR(pg_catalog.||) f.name) IS NULL) THEN
		RAISE EXCEPTION 'functions of schema "pgpool_lock" do not exist'
			USING ERRCODE = 'undefined_function',
				HINT = 'Run pgpool.lock_setup again for this server, as the owner of schema "pgpool_lock".';
	END IF;
END $exists$

-- Raise 55000 if an object of schema pgpool_lock, or a function, operator or
-- type on which a trigger on its tables depends, also in WHEN, has an untrusted
-- owner, because the owner could change it and so run code as each user of the
-- locks.
--
-- Trusted are the owner of the database, superusers, and the login role itself.
-- After SET ROLE the login role is not the current user.
-- === owners_sql
DO $owners$
DECLARE
	stranger pg_catalog.text;
BEGIN
	WITH schema AS (SELECT n.oid, n.nspowner FROM pg_catalog.pg_namespace AS n WHERE n.nspname OPERATOR(pg_catalog.=) 'pgpool_lock'),
		tables AS (SELECT c.oid, c.relowner FROM pg_catalog.pg_class AS c JOIN schema AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace),
		owners AS (SELECT n.nspowner AS oid FROM schema AS n
			UNION SELECT c.relowner FROM tables AS c
			UNION SELECT p.proowner FROM pg_catalog.pg_proc AS p JOIN schema AS n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
			UNION SELECT COALESCE(f.proowner, p.oprowner, y.typowner) FROM tables AS c
				JOIN pg_catalog.pg_trigger AS t ON t.tgrelid OPERATOR(pg_catalog.=) c.oid
				JOIN pg_catalog.pg_depend AS d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_trigger'::pg_catalog.regclass AND d.objid OPERATOR(pg_catalog.=) t.oid
				LEFT JOIN pg_catalog.pg_proc AS f ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass AND f.oid OPERATOR(pg_catalog.=) d.refobjid
				LEFT JOIN pg_catalog.pg_operator AS p ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass AND p.oid OPERATOR(pg_catalog.=) d.refobjid
				LEFT JOIN pg_catalog.pg_type AS y ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass AND y.oid OPERATOR(pg_catalog.=) d.refobjid)
		SELECT pg_catalog.min(r.rolname::pg_catalog.text) INTO stranger
		FROM owners AS o JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) o.oid
		WHERE NOT (r.rolsuper
			OR r.oid OPERATOR(pg_catalog.=) (SELECT d.datdba FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
			OR r.oid OPERATOR(pg_catalog.=) (SELECT a.usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) AS a));
	IF stranger IS NOT NULL THEN
		RAISE EXCEPTION 'schema pgpool_lock or an object in it belongs to role "%"', stranger
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'The owner of these objects controls code that all users of the locks execute.',
				HINT = 'They must belong to the owner of the remote database, a superuser, or the role that logs in. If the schema is not yours, drop it, and run pgpool.lock_setup.';
	END IF;
END $owners$

-- Create what is missing, and replace the functions if the role may.  It follows
-- owners_sql.
-- === setup_sql
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SELECT pg_advisory_xact_lock(7301986420915);
DO $setup$
BEGIN
	IF to_regnamespace('pgpool_lock') IS NULL THEN
		CREATE SCHEMA pgpool_lock;
	END IF;
	IF to_regclass('pgpool_lock.locks') IS NULL THEN
		CREATE TABLE pgpool_lock.locks (
			name text PRIMARY KEY,
			token int8 NOT NULL,
			state text NOT NULL CHECK (state IN ('held', 'free')),
			instance text NOT NULL,
			acquisition int8 NOT NULL,
			holder text NOT NULL,
			why text,
			since timestamptz NOT NULL,
			ttl interval NOT NULL,
			pinged timestamptz,
			contended timestamptz,
			expires timestamptz NOT NULL,
			turn timestamptz,
			UNIQUE (name, token)
		) WITH (fillfactor = 50);
		COMMENT ON TABLE pgpool_lock.locks IS 'distributed locks of pgpool_ext';
	END IF;
	IF to_regprocedure('pgpool_lock.fence_check(text, bigint)') IS NULL THEN
		CREATE FUNCTION pgpool_lock.fence_check(name text, token int8)
		RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER
		SET search_path = pg_catalog, pg_temp AS $fence$
		DECLARE
			lock record;
		BEGIN
			SELECT l.token, l.state INTO lock FROM pgpool_lock.locks AS l
				WHERE l.name = fence_check.name FOR KEY SHARE;
			IF NOT FOUND OR lock.state <> 'held' OR lock.token IS DISTINCT FROM fence_check.token THEN
				RAISE EXCEPTION 'token % of lock "%" is not valid any more', fence_check.token, fence_check.name
					USING ERRCODE = 'object_not_in_prerequisite_state',
					DETAIL = CASE WHEN lock.token IS NULL THEN 'There is no such lock.'
						WHEN lock.token = fence_check.token THEN 'It was released.'
						ELSE format('The lock''s token is %s.', lock.token) END;
			END IF;
		END $fence$;
		REVOKE ALL ON FUNCTION pgpool_lock.fence_check(text, bigint) FROM PUBLIC;
		COMMENT ON FUNCTION pgpool_lock.fence_check(text, bigint) IS
			'raises 55000 unless the token is the current one of the lock; no other session acquires the lock before the end of the transaction';
	END IF;

	IF EXISTS (SELECT FROM pg_proc AS p WHERE p.pronamespace = to_regnamespace('pgpool_lock')
			AND p.proname <> 'fence_check' AND NOT pg_has_role(p.proowner, 'USAGE')) THEN
		RETURN;
	END IF;

	-- A crash or a failover must not undo a change.
	CREATE OR REPLACE FUNCTION pgpool_lock.commit_durably() RETURNS void
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
	BEGIN
		IF current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN
			PERFORM set_config('synchronous_commit', 'on', true);
		END IF;
	END $f$;

	-- Request a lock.  new_token: the grant; NULL: not granted.  old_holder and
	-- old_times describe the holder of a lock that is not granted, or the holder
	-- from which an expired lock was acquired, in the words of a message.  waits:
	-- the request will be repeated.
	--
	-- It does not try to update the row of a lock that is held, so it does not
	-- wait for a row lock then.  A transaction that has called fence_check makes
	-- it wait for lock_timeout.
	--
	-- A request that is repeated because its answer was lost has the same number.
	-- If the first one was granted, the repetition returns the same token.  The
	-- same is true if the first one is executed after the repetition, by a
	-- backend whose client is gone.  After the lock was released or has expired,
	-- the number is not granted again (already_released).
	--
	-- The old holder is read before the grant, so it is not certain if several
	-- servers request the lock at the same time.  Only the log uses it.
	--
	-- Fairness: sessions of one server hand a lock to each other faster than
	-- another server can request it.  A server whose sessions have done so for a
	-- second ("turn") is refused the free lock while another server has requested
	-- it in the last 0.7 s ("contended"), twice its longest pause.
	CREATE OR REPLACE FUNCTION pgpool_lock.acquire(lock_name text, server text, number int8, who text,
		purpose text, duration interval, waits bool, OUT new_token int8, OUT old_holder text,
		OUT old_times text, OUT already_released bool)
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $f$
	DECLARE
		old record;
		is_same bool;
	BEGIN
		IF current_setting('transaction_read_only')::bool THEN
			RAISE EXCEPTION 'cannot acquire a lock in a read-only transaction'
				USING ERRCODE = 'read_only_sql_transaction',
					HINT = 'Locks need the primary: name all hosts in the server''s options "host" and "port", and set "target_session_attrs" to ''read-write''.';
		END IF;
		PERFORM pgpool_lock.commit_durably();
		SELECT * INTO old FROM pgpool_lock.locks AS l WHERE l.name = lock_name;
		is_same := coalesce(old.instance = server AND old.acquisition = number, false);
		IF is_same OR NOT coalesce(CASE old.state WHEN 'held' THEN old.expires > clock_timestamp()
				ELSE waits AND old.instance = server AND old.turn < clock_timestamp() - interval '1 s'
					AND old.contended > clock_timestamp() - interval '0.7 s' END, false) THEN
			INSERT INTO pgpool_lock.locks AS l
				(name, token, state, instance, acquisition, holder, why, since, ttl, expires, turn)
				VALUES (lock_name, date_part('epoch', clock_timestamp()) * 1000000, 'held', server, number, who,
					purpose, clock_timestamp(), duration, clock_timestamp() + duration, clock_timestamp())
				ON CONFLICT (name) DO UPDATE SET
				token = CASE WHEN (l.instance, l.acquisition) = (server, number) THEN l.token
					ELSE greatest(l.token + 1, (date_part('epoch', clock_timestamp()) * 1000000)::int8) END,
				state = 'held', instance = server, acquisition = number, holder = who, why = purpose,
				since = CASE WHEN (l.instance, l.acquisition) = (server, number) THEN l.since ELSE clock_timestamp() END,
				ttl = duration, pinged = NULL, expires = clock_timestamp() + duration,
				contended = CASE WHEN l.instance = server THEN l.contended END,
				turn = CASE WHEN l.instance = server AND l.contended > clock_timestamp() - interval '1 s' THEN l.turn
					ELSE clock_timestamp() END
				WHERE CASE WHEN (l.instance, l.acquisition) = (server, number) THEN l.state = 'held' AND l.expires > clock_timestamp()
					ELSE l.state = 'free' OR l.expires <= clock_timestamp() END
				RETURNING l.token INTO new_token;
		END IF;
		IF new_token IS NOT NULL THEN
			IF old.state IS DISTINCT FROM 'held' OR (old.instance, old.holder) = (server, who) THEN
				RETURN;
			END IF;
		ELSE
			UPDATE pgpool_lock.locks AS l SET contended = clock_timestamp()
				WHERE l.name IN (SELECT o.name FROM pgpool_lock.locks AS o
					WHERE waits AND o.name = lock_name AND o.instance <> server
					AND coalesce(o.contended < clock_timestamp() - interval '0.3 s', true)
					FOR NO KEY UPDATE SKIP LOCKED);
			IF old.state = 'free' AND NOT is_same THEN
				RETURN;
			END IF;
			already_released := is_same;
		END IF;
		old_holder := format('"%s"%s', old.holder, ' for "' || nullif(old.why, '') || '"');
		old_times := format(CASE WHEN new_token IS NULL THEN 'since %s, and expires at %s if it is not pinged'
			ELSE 'since %s, and was not pinged before it expired at %s' END, old.since, old.expires);
	END $f$;

	-- Ping locks.  The list has objects with the name, acquisition and token of
	-- a lock.  The result has a character for each: 't' if the lock was extended.
	-- An expired lock is not extended, because its holder may have been warned of
	-- the loss.
	CREATE OR REPLACE FUNCTION pgpool_lock.ping(server text, list json, OUT extended text)
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s' AS $f$
	BEGIN
		PERFORM pgpool_lock.commit_durably();
		WITH h AS (SELECT * FROM ROWS FROM (json_to_recordset(list) AS (name text, number int8, token int8)) WITH ORDINALITY),
			e AS (UPDATE pgpool_lock.locks AS l SET pinged = clock_timestamp(), expires = clock_timestamp() + l.ttl
				FROM h WHERE l.name = h.name AND l.instance = server AND l.acquisition = h.number AND l.token = h.token
				AND l.state = 'held' AND l.expires > clock_timestamp()
				RETURNING h.ordinality)
			SELECT string_agg(CASE WHEN e.ordinality IS NULL THEN 'f' ELSE 't' END, '' ORDER BY h.ordinality)
				INTO extended FROM h LEFT JOIN e USING (ordinality);
	END $f$;

	-- Release locks, with the same list; 't': it was held until now.  Token 0
	-- matches any token, for a session that has not received the token of its
	-- acquisition.  A row that is free already was released by an earlier attempt
	-- whose answer was lost.
	CREATE OR REPLACE FUNCTION pgpool_lock.release(server text, list json, OUT were_held text)
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '10s' AS $f$
	BEGIN
		PERFORM pgpool_lock.commit_durably();
		WITH h AS (SELECT * FROM ROWS FROM (json_to_recordset(list) AS (name text, number int8, token int8)) WITH ORDINALITY),
			r AS (UPDATE pgpool_lock.locks AS l SET state = 'free'
				FROM h WHERE l.name = h.name AND l.instance = server AND l.acquisition = h.number AND h.token IN (l.token, 0)
				RETURNING h.ordinality, l.expires > clock_timestamp() AS was_held)
			SELECT string_agg(CASE WHEN r.was_held THEN 't' ELSE 'f' END, '' ORDER BY h.ordinality)
				INTO were_held FROM h LEFT JOIN r USING (ordinality);
	END $f$;

	-- Release a lock regardless of its holder; return whether it was held.  The
	-- token increases, so that fence_check rejects the holder's token and its
	-- next ping finds no row.
	CREATE OR REPLACE FUNCTION pgpool_lock.force_release(lock_name text) RETURNS bool
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
	DECLARE
		was_held bool;
	BEGIN
		SELECT o.state = 'held' AND o.expires > clock_timestamp() INTO was_held
			FROM pgpool_lock.locks AS o WHERE o.name = lock_name;
		UPDATE pgpool_lock.locks AS l SET state = 'free',
			token = greatest(l.token + 1, (date_part('epoch', clock_timestamp()) * 1000000)::int8)
			WHERE l.name = lock_name;
		RETURN coalesce(was_held, false);
	END $f$;

	-- show_all: with the holder, its purpose and its token.
	CREATE OR REPLACE FUNCTION pgpool_lock.status(show_all bool, OUT name text, OUT state text, OUT instance text,
		OUT holder text, OUT why text, OUT since timestamptz, OUT token int8, OUT last_ping timestamptz, OUT expires timestamptz)
	RETURNS SETOF record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $f$
	DECLARE
		hidden text := CASE WHEN NOT show_all THEN '<insufficient privilege>' END;
	BEGIN
		RETURN QUERY SELECT l.name, CASE WHEN l.state = 'free' THEN 'free'
				WHEN l.expires <= clock_timestamp() THEN 'expired' ELSE 'held' END,
			l.instance, coalesce(hidden, l.holder), coalesce(hidden, l.why), l.since, CASE WHEN show_all THEN l.token END,
			l.pinged, l.expires
			FROM pgpool_lock.locks AS l ORDER BY l.name;
	END $f$;
END $setup$
