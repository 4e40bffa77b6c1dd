/* sql/pgpool_ext--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pgpool_ext" to load this file. \quit

-- The schema is a member of the extension: it must not exist before, so that
-- no other user can have created objects in it, and it is dropped with the extension.
CREATE SCHEMA pgpool;
GRANT USAGE ON SCHEMA pgpool TO PUBLIC;
COMMENT ON SCHEMA pgpool IS 'functions and views of pgpool_ext, connection pools for outbound connections';

--
-- The foreign-data wrapper: each user mapping to a server of it has a pool
--

CREATE FUNCTION pgpool.pgpool_fdw_validator(pg_catalog.text[], pg_catalog.oid)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_fdw_validator'
LANGUAGE C STRICT;
COMMENT ON FUNCTION pgpool.pgpool_fdw_validator(pg_catalog.text[], pg_catalog.oid) IS
'checks the options of servers and user mappings of pgpool_fdw; not to be called';

CREATE FUNCTION pgpool.pgpool_fdw_handler()
RETURNS pg_catalog.fdw_handler
AS 'MODULE_PATHNAME', 'pgpx_fdw_handler'
LANGUAGE C STRICT;
COMMENT ON FUNCTION pgpool.pgpool_fdw_handler() IS
'executes foreign tables on pools, as planned by postgres_fdw; not to be called';

CREATE FOREIGN DATA WRAPPER pgpool_fdw
HANDLER pgpool.pgpool_fdw_handler
VALIDATOR pgpool.pgpool_fdw_validator;
COMMENT ON FOREIGN DATA WRAPPER pgpool_fdw IS
'connection pools to PostgreSQL servers: each user mapping to a server of this wrapper has a pool; see function pgpool.checkout';

CREATE FUNCTION pgpool.attach_postgres_fdw()
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_attach_postgres_fdw'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.attach_postgres_fdw() FROM PUBLIC;
COMMENT ON FUNCTION pgpool.attach_postgres_fdw() IS
'lets the foreign tables of postgres_fdw in this database use pools instead of a connection per session; waits for transactions that use these tables; returns false if they use pools already';

CREATE FUNCTION pgpool.detach_postgres_fdw()
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_detach_postgres_fdw'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.detach_postgres_fdw() FROM PUBLIC;
COMMENT ON FUNCTION pgpool.detach_postgres_fdw() IS
'undoes attach_postgres_fdw: the foreign tables of postgres_fdw use connections of postgres_fdw again; returns false if they do not use pools';

CREATE FUNCTION pgpool.attach_dblink()
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_attach_dblink'
LANGUAGE C VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp;
REVOKE ALL ON FUNCTION pgpool.attach_dblink() FROM PUBLIC;
COMMENT ON FUNCTION pgpool.attach_dblink() IS
'lets dblink(connection, sql) and dblink_exec(connection, sql) in this database run on pools instead of a connection per call; returns false if they do already';

CREATE FUNCTION pgpool.detach_dblink()
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_detach_dblink'
LANGUAGE C VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp;
REVOKE ALL ON FUNCTION pgpool.detach_dblink() FROM PUBLIC;
COMMENT ON FUNCTION pgpool.detach_dblink() IS
'undoes attach_dblink: each call opens a connection again; returns false if no function of dblink is attached';

--
-- Leases
--

CREATE FUNCTION pgpool.checkout(
	pool pg_catalog.text,
	timeout pg_catalog.interval DEFAULT NULL,
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_checkout'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.checkout(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
'leases a connection to a server until checkin or the end of the session, and returns the lease; timeout 0 means no limit, NULL the default; view leases shows the text of why';

CREATE FUNCTION pgpool.checkout_xact(
	pool pg_catalog.text,
	timeout pg_catalog.interval DEFAULT NULL,
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_checkout_xact'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.checkout_xact(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
'leases a connection to a server until the end of the local transaction, or until the subtransaction that acquired it is rolled back, and returns the lease; the remote transaction is not committed with the local one';

CREATE FUNCTION pgpool.try_checkout(
	pool pg_catalog.text,
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_checkout'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.try_checkout(pg_catalog.text, pg_catalog.text) IS
'leases a connection until checkin or the end of the session without waiting; returns the lease, or NULL if no connection is free';

CREATE FUNCTION pgpool.try_checkout_xact(
	pool pg_catalog.text,
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_checkout_xact'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.try_checkout_xact(pg_catalog.text, pg_catalog.text) IS
'leases a connection as checkout_xact does, but without waiting; returns the lease, or NULL if no connection is free';

CREATE FUNCTION pgpool.checkin(lease pg_catalog.int8)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_checkin'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.checkin(pg_catalog.int8) IS
'returns a lease; an open remote transaction is rolled back with a warning';

CREATE FUNCTION pgpool.discard(lease pg_catalog.int8)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_discard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.discard(pg_catalog.int8) IS
'ends a lease and closes its connection';

CREATE FUNCTION pgpool.checkin_all()
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'pgpx_checkin_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.checkin_all() IS
'returns all leases of this session to their pools; the result is their number';

--
-- Administration.  PUBLIC has no EXECUTE privilege, and the caller must own the server
-- or have the privileges of pg_signal_backend.  Function terminate, which PUBLIC may
-- execute, has the rules of pg_terminate_backend instead.
--

CREATE FUNCTION pgpool.pause(pool pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_pause'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.pause(pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.pause(pg_catalog.text) IS
'makes checkouts from a server wait in the queue; leases continue; NULL means all servers of this database';

CREATE FUNCTION pgpool.resume(pool pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_resume'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.resume(pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.resume(pg_catalog.text) IS
'ends pause and drain of a server; NULL means all servers of this database';

CREATE FUNCTION pgpool.drain(
	pool pg_catalog.text DEFAULT NULL,
	timeout pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_drain'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.drain(pg_catalog.text, pg_catalog.interval) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.drain(pg_catalog.text, pg_catalog.interval) IS
'pauses a server, waits until its leases are returned, and closes all its connections; returns false if the timeout is reached; resume ends the pause';

CREATE FUNCTION pgpool.reconnect(pool pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_reconnect'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.reconnect(pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.reconnect(pg_catalog.text) IS
'replaces the connections to a server: free ones now, leased ones at checkin; NULL means all servers of this database';

CREATE FUNCTION pgpool.prewarm(
	pool pg_catalog.text,
	n pg_catalog.int4,
	timeout pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'pgpx_prewarm'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.prewarm(pg_catalog.text, pg_catalog.int4, pg_catalog.interval) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.prewarm(pg_catalog.text, pg_catalog.int4, pg_catalog.interval) IS
'opens connections of the caller''s own pool of a server until n are open, and returns how many are open; fewer if the size of the pool, a cap, a pause or the timeout ends the call';

CREATE FUNCTION pgpool.reset_stats(pool pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_reset_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.reset_stats(pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.reset_stats(pg_catalog.text) IS
'sets the counters of a server to zero, except those of operations in progress; NULL means all servers of this database';

CREATE FUNCTION pgpool.terminate(lease pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_terminate'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.terminate(pg_catalog.int8) IS
'ends a lease of any session and closes its connection; requires the same privileges as pg_terminate_backend; returns false if the lease does not exist';

--
-- Parameters.  The parameters of a statement can have any types.  Functions with
-- parameters have three forms, so that each combination of typed and untyped
-- values (literals, parameters of drivers) resolves to one of them:
--
--	VARIADIC text[]	texts and untyped values only
--	VARIADIC param[]	values of built-in types, mixed with untyped ones: each built-in
--			type has an implicit cast to param, and an untyped value becomes a param.
--			As an argument of type "any" it would have no type, and the parser
--			would reject it
--	VARIADIC "any"	values of all other types (enums, composite types, ranges)
--
-- If both of the last two forms fit, the parser must choose param[].  Therefore the
-- argument sql is of type text there, which is a preferred type, and of a domain over
-- text in the form with "any", because a domain is not a preferred type.
--

CREATE TYPE pgpool.param;

CREATE FUNCTION pgpool.param_in(pg_catalog.cstring)
RETURNS pgpool.param
AS 'textin'
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION pgpool.param_in(pg_catalog.cstring) IS 'I/O';

CREATE FUNCTION pgpool.param_out(pgpool.param)
RETURNS pg_catalog.cstring
AS 'textout'
LANGUAGE internal IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION pgpool.param_out(pgpool.param) IS 'I/O';

CREATE FUNCTION pgpool.param_recv(pg_catalog.internal)
RETURNS pgpool.param
AS 'textrecv'
LANGUAGE internal STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION pgpool.param_recv(pg_catalog.internal) IS 'I/O';

CREATE FUNCTION pgpool.param_send(pgpool.param)
RETURNS pg_catalog.bytea
AS 'textsend'
LANGUAGE internal STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION pgpool.param_send(pgpool.param) IS 'I/O';

CREATE TYPE pgpool.param (
	INPUT = pgpool.param_in,
	OUTPUT = pgpool.param_out,
	RECEIVE = pgpool.param_recv,
	SEND = pgpool.param_send,
	LIKE = pg_catalog.text,
	CATEGORY = 'S');
COMMENT ON TYPE pgpool.param IS
'a parameter of a remote statement: the text of a value of any type';

CREATE DOMAIN pgpool.statement AS pg_catalog.text;
COMMENT ON DOMAIN pgpool.statement IS
'a remote statement whose parameters include values of types that are not built in';

CREATE FUNCTION pgpool.param("any")
RETURNS pgpool.param
AS 'MODULE_PATHNAME', 'pgpx_param'
LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION pgpool.param("any") IS
'a value of any type as a parameter of a remote statement: its text, which does not depend on DateStyle, IntervalStyle and extra_float_digits';

CREATE CAST (pg_catalog.text AS pgpool.param) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (pg_catalog.varchar AS pgpool.param) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (pg_catalog.bool AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.name AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.bpchar AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.int2 AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.int4 AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.int8 AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.oid AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.numeric AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.bytea AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.time AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.timetz AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.uuid AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.json AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.jsonb AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.xml AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.inet AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.cidr AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.macaddr AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.bit AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.varbit AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.money AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.bool[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.name[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.text[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.varchar[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.bpchar[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.int2[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.int4[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.int8[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.oid[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.numeric[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.bytea[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.time[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.timetz[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.uuid[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.json[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.jsonb[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.inet[] AS pgpool.param) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.cidr[] AS pgpool.param) WITH INOUT AS IMPLICIT;

-- the texts of these types depend on settings, so the function param makes them
CREATE CAST (pg_catalog.float4 AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.float8 AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.date AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.timestamp AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.timestamptz AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.interval AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.float4[] AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.float8[] AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.date[] AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.timestamp[] AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.timestamptz[] AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;
CREATE CAST (pg_catalog.interval[] AS pgpool.param) WITH FUNCTION pgpool.param("any") AS IMPLICIT;

--
-- SQL on a lease, or on a pool: check out, run and check in in one call.
--

CREATE FUNCTION pgpool.query(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.int8, pg_catalog.text, pg_catalog.text[]) IS
'runs one statement on a lease and returns its rows; needs a column list, as in FROM pgpool.query(..) AS t(id bigint, name text); params are $1, $2, ..';

CREATE FUNCTION pgpool.query(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.int8, pg_catalog.text, pgpool.param[]) IS
'runs one statement with parameters of built-in types on a lease and returns its rows; needs a column list, as in FROM pgpool.query(..) AS t(id bigint, name text)';

CREATE FUNCTION pgpool.query(
	lease pg_catalog.int8,
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.int8, pgpool.statement, "any") IS
'runs one statement with parameters of any types on a lease and returns its rows; needs a column list, as in FROM pgpool.query(..) AS t(id bigint, name text)';

CREATE FUNCTION pgpool.query(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.text, pg_catalog.text, pg_catalog.text[]) IS
'runs one statement on a connection to a server, leased for this call, and returns its rows; needs a column list, as in FROM pgpool.query(..) AS t(id bigint, name text); params are $1, $2, ..';

CREATE FUNCTION pgpool.query(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.text, pg_catalog.text, pgpool.param[]) IS
'runs one statement with parameters of built-in types on a connection to a server, leased for this call, and returns its rows; needs a column list, as in FROM pgpool.query(..) AS t(id bigint, name text)';

CREATE FUNCTION pgpool.query(
	pool pg_catalog.text,
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.text, pgpool.statement, "any") IS
'runs one statement with parameters of any types on a connection to a server, leased for this call, and returns its rows; needs a column list, as in FROM pgpool.query(..) AS t(id bigint, name text)';

CREATE FUNCTION pgpool.query_as(
	template pg_catalog.anyelement,
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.anyelement
AS 'MODULE_PATHNAME', 'pgpx_query_as'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query_as(pg_catalog.anyelement, pg_catalog.int8, pg_catalog.text, pg_catalog.text[]) IS
'runs one statement on a lease and returns rows of the template''s type: columns of a row type are matched by name, any other type takes the only column';

CREATE FUNCTION pgpool.query_as(
	template pg_catalog.anyelement,
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS SETOF pg_catalog.anyelement
AS 'MODULE_PATHNAME', 'pgpx_query_as'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query_as(pg_catalog.anyelement, pg_catalog.int8, pg_catalog.text, pgpool.param[]) IS
'runs one statement with parameters of built-in types on a lease and returns rows of the template''s type: columns of a row type are matched by name, any other type takes the only column';

CREATE FUNCTION pgpool.query_as(
	template pg_catalog.anyelement,
	lease pg_catalog.int8,
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS SETOF pg_catalog.anyelement
AS 'MODULE_PATHNAME', 'pgpx_query_as'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query_as(pg_catalog.anyelement, pg_catalog.int8, pgpool.statement, "any") IS
'runs one statement with parameters of any types on a lease and returns rows of the template''s type: columns of a row type are matched by name, any other type takes the only column';

CREATE FUNCTION pgpool.query_as(
	template pg_catalog.anyelement,
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.anyelement
AS 'MODULE_PATHNAME', 'pgpx_query_as'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query_as(pg_catalog.anyelement, pg_catalog.text, pg_catalog.text, pg_catalog.text[]) IS
'runs one statement on a connection to a server, leased for this call, and returns rows of the template''s type: columns of a row type are matched by name, any other type takes the only column';

CREATE FUNCTION pgpool.query_as(
	template pg_catalog.anyelement,
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS SETOF pg_catalog.anyelement
AS 'MODULE_PATHNAME', 'pgpx_query_as'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query_as(pg_catalog.anyelement, pg_catalog.text, pg_catalog.text, pgpool.param[]) IS
'runs one statement with parameters of built-in types on a connection to a server, leased for this call, and returns rows of the template''s type: columns of a row type are matched by name, any other type takes the only column';

CREATE FUNCTION pgpool.query_as(
	template pg_catalog.anyelement,
	pool pg_catalog.text,
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS SETOF pg_catalog.anyelement
AS 'MODULE_PATHNAME', 'pgpx_query_as'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query_as(pg_catalog.anyelement, pg_catalog.text, pgpool.statement, "any") IS
'runs one statement with parameters of any types on a connection to a server, leased for this call, and returns rows of the template''s type: columns of a row type are matched by name, any other type takes the only column';

CREATE FUNCTION pgpool.exec(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.int8, pg_catalog.text, pg_catalog.text[]) IS
'runs statements on a lease, discards their rows, and returns the number of rows affected or returned; several statements are allowed without parameters';

CREATE FUNCTION pgpool.exec(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.int8, pg_catalog.text, pgpool.param[]) IS
'runs one statement with parameters of built-in types on a lease, discards its rows, and returns the number of rows affected or returned';

CREATE FUNCTION pgpool.exec(
	lease pg_catalog.int8,
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.int8, pgpool.statement, "any") IS
'runs one statement with parameters of any types on a lease, discards its rows, and returns the number of rows affected or returned';

CREATE FUNCTION pgpool.exec(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.text, pg_catalog.text, pg_catalog.text[]) IS
'runs statements on a connection to a server, leased for this call, discards their rows, and returns the number of rows affected or returned; several statements are allowed without parameters';

CREATE FUNCTION pgpool.exec(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.text, pg_catalog.text, pgpool.param[]) IS
'runs one statement with parameters of built-in types on a connection to a server, leased for this call, discards its rows, and returns the number of rows affected or returned';

CREATE FUNCTION pgpool.exec(
	pool pg_catalog.text,
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.text, pgpool.statement, "any") IS
'runs one statement with parameters of any types on a connection to a server, leased for this call, discards its rows, and returns the number of rows affected or returned';

--
-- Descriptions of the columns that a statement returns
--

CREATE FUNCTION pgpool.describe(
	lease pg_catalog.int8,
	sql pg_catalog.text)
RETURNS TABLE (
	name pg_catalog.text,
	type pg_catalog.text)
AS 'MODULE_PATHNAME', 'pgpx_describe_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10;
COMMENT ON FUNCTION pgpool.describe(pg_catalog.int8, pg_catalog.text) IS
'returns names and types of the columns of a statement, which is parsed on a lease and not executed; its parameters need no values';

CREATE FUNCTION pgpool.describe(
	pool pg_catalog.text,
	sql pg_catalog.text)
RETURNS TABLE (
	name pg_catalog.text,
	type pg_catalog.text)
AS 'MODULE_PATHNAME', 'pgpx_describe_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10;
COMMENT ON FUNCTION pgpool.describe(pg_catalog.text, pg_catalog.text) IS
'returns names and types of the columns of a statement, which is parsed on a connection to a server, leased for this call, and not executed; its parameters need no values';

CREATE FUNCTION pgpool.column_list(
	lease pg_catalog.int8,
	sql pg_catalog.text)
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'pgpx_column_list_of'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.column_list(pg_catalog.int8, pg_catalog.text) IS
'returns the column list that query(..) needs for a statement, which is parsed on a lease and not executed; NULL if the statement returns no rows';

CREATE FUNCTION pgpool.column_list(
	pool pg_catalog.text,
	sql pg_catalog.text)
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'pgpx_column_list_of'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.column_list(pg_catalog.text, pg_catalog.text) IS
'returns the column list that query(..) needs for a statement, which is parsed on a connection to a server, leased for this call, and not executed; NULL if the statement returns no rows';

--
-- Statements in flight: send a statement, and read its result later
--

CREATE FUNCTION pgpool.send(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_send'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.send(pg_catalog.int8, pg_catalog.text, pg_catalog.text[]) IS
'sends one statement on a lease and does not wait for its result';

CREATE FUNCTION pgpool.send(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_send'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.send(pg_catalog.int8, pg_catalog.text, pgpool.param[]) IS
'sends one statement with parameters of built-in types on a lease and does not wait for its result';

CREATE FUNCTION pgpool.send(
	lease pg_catalog.int8,
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_send'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.send(pg_catalog.int8, pgpool.statement, "any") IS
'sends one statement with parameters of any types on a lease and does not wait for its result';

CREATE FUNCTION pgpool.wait(
	lease pg_catalog.int8,
	timeout pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_wait'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.wait(pg_catalog.int8, pg_catalog.interval) IS
'waits for the answer to the statement that was sent on a lease; returns false if the timeout is reached; timeout 0 or NULL means no limit';

CREATE FUNCTION pgpool.try_wait(lease pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_wait'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.try_wait(pg_catalog.int8) IS
'returns whether the answer to the statement that was sent on a lease has arrived, without waiting';

CREATE FUNCTION pgpool.wait_any(
	leases pg_catalog.int8[],
	timeout pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_wait_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.wait_any(pg_catalog.int8[], pg_catalog.interval) IS
'waits for the first answer to the statements that were sent on several leases, and returns its lease, or NULL if the timeout is reached; timeout 0 or NULL means no limit';

CREATE FUNCTION pgpool.try_wait_any(leases pg_catalog.int8[])
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_wait_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.try_wait_any(pg_catalog.int8[]) IS
'returns the first lease of an array whose statement has its answer, without waiting; NULL if none has';

CREATE FUNCTION pgpool.result(lease pg_catalog.int8)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_result'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.result(pg_catalog.int8) IS
'waits for the statement that was sent on a lease and returns its rows, or raises its error, once; needs a column list, as in FROM pgpool.result(..) AS t(id bigint, name text)';

CREATE FUNCTION pgpool.cancel(lease pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.cancel(pg_catalog.int8) IS
'asks the remote server to cancel the statement that was sent on a lease; returns false if no statement is running';

CREATE FUNCTION pgpool.notifications(lease pg_catalog.int8)
RETURNS TABLE (
	channel pg_catalog.text,
	payload pg_catalog.text,
	remote_pid pg_catalog.int4)
AS 'MODULE_PATHNAME', 'pgpx_notifications'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10;
COMMENT ON FUNCTION pgpool.notifications(pg_catalog.int8) IS
'returns the notifications that have arrived on a lease after a LISTEN, without waiting';

CREATE FUNCTION pgpool.wait_notifications(
	lease pg_catalog.int8,
	timeout pg_catalog.interval DEFAULT NULL)
RETURNS TABLE (
	channel pg_catalog.text,
	payload pg_catalog.text,
	remote_pid pg_catalog.int4)
AS 'MODULE_PATHNAME', 'pgpx_notifications'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 10;
COMMENT ON FUNCTION pgpool.wait_notifications(pg_catalog.int8, pg_catalog.interval) IS
'returns the notifications that have arrived on a lease after a LISTEN, and waits for one if there is none; no rows if the timeout is reached; timeout 0 or NULL means no limit';

CREATE FUNCTION pgpool.fanout(
	pools pg_catalog.text[],
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_fanout_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.fanout(pg_catalog.text[], pg_catalog.text, pg_catalog.text[]) IS
'runs one statement on a connection to each of several servers at the same time, and returns the rows as they arrive, with the pool in the first column; needs a column list, as in FROM pgpool.fanout(..) AS t(pool text, id bigint)';

CREATE FUNCTION pgpool.fanout(
	pools pg_catalog.text[],
	sql pg_catalog.text,
	VARIADIC params pgpool.param[])
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_fanout_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.fanout(pg_catalog.text[], pg_catalog.text, pgpool.param[]) IS
'runs one statement with parameters of built-in types on a connection to each of several servers at the same time, and returns the rows as they arrive, with the pool in the first column; needs a column list, as in FROM pgpool.fanout(..) AS t(pool text, id bigint)';

CREATE FUNCTION pgpool.fanout(
	pools pg_catalog.text[],
	sql pgpool.statement,
	VARIADIC params "any")
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_fanout_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.fanout(pg_catalog.text[], pgpool.statement, "any") IS
'runs one statement with parameters of any types on a connection to each of several servers at the same time, and returns the rows as they arrive, with the pool in the first column; needs a column list, as in FROM pgpool.fanout(..) AS t(pool text, id bigint)';

--
-- Views.  Each is defined on a function of the same name.  A view with many columns has
-- a row type, because \df would otherwise list them all.  Rows of all databases are
-- visible to each role; texts of other users only to roles with the privileges of
-- pg_read_all_stats.
--

CREATE TYPE pgpool.pools_row AS (
	pool_id pg_catalog.int4,
	database pg_catalog.name,
	server pg_catalog.name,
	local_user pg_catalog.name,
	state pg_catalog.text,
	worker pg_catalog.int4,
	pool_size pg_catalog.int4,
	total pg_catalog.int4,
	leased pg_catalog.int4,
	idle pg_catalog.int4,
	reset_pending pg_catalog.int4,
	connecting pg_catalog.int4,
	resetting pg_catalog.int4,
	checking pg_catalog.int4,
	cancelling pg_catalog.int4,
	closing pg_catalog.int4,
	waiters pg_catalog.int4,
	oldest_wait pg_catalog.float8,
	unavailable_since pg_catalog.timestamptz,
	remote_full_since pg_catalog.timestamptz,
	last_error pg_catalog.text,
	last_error_at pg_catalog.timestamptz,
	next_try_at pg_catalog.timestamptz);

CREATE FUNCTION pgpool.pools()
RETURNS SETOF pgpool.pools_row
AS 'MODULE_PATHNAME', 'pgpx_view_pools'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION pgpool.pools() IS
'returns the rows of view pools: one for each pool of all databases';

CREATE VIEW pgpool.pools AS SELECT * FROM pgpool.pools();
COMMENT ON VIEW pgpool.pools IS
'pools of all databases: their connections and their waiters; a pool is created by its first checkout, or with min_size or min_idle at the start of the server, and removed when it is empty and its slot is needed';
COMMENT ON COLUMN pgpool.pools.pool_id IS
'id of the pool; joins the views';
COMMENT ON COLUMN pgpool.pools.database IS
'database of the foreign server';
COMMENT ON COLUMN pgpool.pools.server IS
'foreign server of the pool';
COMMENT ON COLUMN pgpool.pools.local_user IS
'local user of the pool; "public" if all users of a mapping for PUBLIC share it';
COMMENT ON COLUMN pgpool.pools.state IS
'first of these that applies: "damaged", "draining", "paused", "remote_full", "unavailable", "stale", "full", "overflow", "ready"';
COMMENT ON COLUMN pgpool.pools.worker IS
'worker that owns the connections; see view workers';
COMMENT ON COLUMN pgpool.pools.pool_size IS
'option of the server: maximum number of connections that stay open when they are idle';
COMMENT ON COLUMN pgpool.pools.total IS
'connections in any state: the sum of the eight columns that follow';
COMMENT ON COLUMN pgpool.pools.leased IS
'connections that are leased by sessions';
COMMENT ON COLUMN pgpool.pools.idle IS
'connections that are open, reset and free';
COMMENT ON COLUMN pgpool.pools.reset_pending IS
'connections that are free, but whose reset has not been confirmed yet';
COMMENT ON COLUMN pgpool.pools.connecting IS
'connections that are being opened';
COMMENT ON COLUMN pgpool.pools.resetting IS
'connections that the worker resets';
COMMENT ON COLUMN pgpool.pools.checking IS
'connections that the worker tests';
COMMENT ON COLUMN pgpool.pools.cancelling IS
'connections without a lease on which a cancel request or an abandoned statement has not ended';
COMMENT ON COLUMN pgpool.pools.closing IS
'connections that are being closed';
COMMENT ON COLUMN pgpool.pools.waiters IS
'sessions that wait for a connection; see view waiters';
COMMENT ON COLUMN pgpool.pools.oldest_wait IS
'waiting time of the session that has waited longest, in milliseconds; NULL if no session waits';
COMMENT ON COLUMN pgpool.pools.unavailable_since IS
'time of the first failed attempt to connect since the last successful one; NULL if the last attempt succeeded, or failed because the remote server is full';
COMMENT ON COLUMN pgpool.pools.remote_full_since IS
'time since which the remote server has refused all attempts to connect because it is full; NULL if it does not';
COMMENT ON COLUMN pgpool.pools.last_error IS
'last error: of an attempt to connect, of reading the options without a checkout, or what was found if the pool is damaged; NULL if there was none; <insufficient privilege> unless you may see it';
COMMENT ON COLUMN pgpool.pools.last_error_at IS
'time of last_error; NULL if there was none';
COMMENT ON COLUMN pgpool.pools.next_try_at IS
'time before which no attempt to connect is made; NULL if the last attempt succeeded';

CREATE TYPE pgpool.connections_row AS (
	pool_id pg_catalog.int4,
	database pg_catalog.name,
	server pg_catalog.name,
	local_user pg_catalog.name,
	connection pg_catalog.int4,
	state pg_catalog.text,
	state_since pg_catalog.timestamptz,
	stale pg_catalog.bool,
	transport pg_catalog.text,
	tls_version pg_catalog.text,
	tls_cipher pg_catalog.text,
	remote_addr pg_catalog.inet,
	remote_port pg_catalog.int4,
	remote_pid pg_catalog.int4,
	opened_at pg_catalog.timestamptz,
	last_used pg_catalog.timestamptz);

CREATE FUNCTION pgpool.connections()
RETURNS SETOF pgpool.connections_row
AS 'MODULE_PATHNAME', 'pgpx_view_connections'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION pgpool.connections() IS
'returns the rows of view connections: one for each connection of all pools';

CREATE VIEW pgpool.connections AS SELECT * FROM pgpool.connections();
COMMENT ON VIEW pgpool.connections IS
'connections of all pools: state, age and holder';
COMMENT ON COLUMN pgpool.connections.pool_id IS
'id of the pool; joins the views';
COMMENT ON COLUMN pgpool.connections.database IS
'database of the foreign server';
COMMENT ON COLUMN pgpool.connections.server IS
'foreign server of the pool';
COMMENT ON COLUMN pgpool.connections.local_user IS
'local user of the pool; "public" if all users of a mapping for PUBLIC share it';
COMMENT ON COLUMN pgpool.connections.connection IS
'slot of the connection, from 0 to pgpool_ext.max_connections - 1; slots are reused';
COMMENT ON COLUMN pgpool.connections.state IS
'"connecting", "idle", "reset_pending", "leased", "resetting", "checking", "cancelling" or "closing"; see the columns of view pools';
COMMENT ON COLUMN pgpool.connections.state_since IS
'time when it entered that state';
COMMENT ON COLUMN pgpool.connections.stale IS
'true if the options have changed since it was opened; it is closed when it is free';
COMMENT ON COLUMN pgpool.connections.transport IS
'how the session communicates: "direct", or "relay" through the worker for TLS; NULL while it is being opened';
COMMENT ON COLUMN pgpool.connections.tls_version IS
'version of TLS; NULL without TLS';
COMMENT ON COLUMN pgpool.connections.tls_cipher IS
'cipher; NULL without TLS';
COMMENT ON COLUMN pgpool.connections.remote_addr IS
'address of the remote server; NULL while it is being opened, for a Unix-domain socket, and unless you may see it';
COMMENT ON COLUMN pgpool.connections.remote_port IS
'port of the remote server; NULL in the same cases as remote_addr';
COMMENT ON COLUMN pgpool.connections.remote_pid IS
'process ID of the remote session; NULL while it is being opened';
COMMENT ON COLUMN pgpool.connections.opened_at IS
'time when it was opened; NULL while it is being opened, and while unfinished start commands are being cancelled';
COMMENT ON COLUMN pgpool.connections.last_used IS
'time when its last lease ended, or when it was opened; NULL while it is being opened';

CREATE TYPE pgpool.leases_row AS (
	lease pg_catalog.int8,
	pool_id pg_catalog.int4,
	database pg_catalog.name,
	server pg_catalog.name,
	connection pg_catalog.int4,
	pid pg_catalog.int4,
	user_name pg_catalog.name,
	application_name pg_catalog.text,
	scope pg_catalog.text,
	state pg_catalog.text,
	leased_at pg_catalog.timestamptz,
	why pg_catalog.text,
	remote_pid pg_catalog.int4);

CREATE FUNCTION pgpool.leases()
RETURNS SETOF pgpool.leases_row
AS 'MODULE_PATHNAME', 'pgpx_view_leases'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION pgpool.leases() IS
'returns the rows of view leases: one for each lease of all sessions';

CREATE VIEW pgpool.leases AS SELECT * FROM pgpool.leases();
COMMENT ON VIEW pgpool.leases IS
'leases of all sessions: holder, start and purpose';
COMMENT ON COLUMN pgpool.leases.lease IS
'the lease, as checkout returned it';
COMMENT ON COLUMN pgpool.leases.pool_id IS
'id of the pool; joins the views';
COMMENT ON COLUMN pgpool.leases.database IS
'database of the foreign server';
COMMENT ON COLUMN pgpool.leases.server IS
'foreign server of the pool';
COMMENT ON COLUMN pgpool.leases.connection IS
'the leased connection; see view connections';
COMMENT ON COLUMN pgpool.leases.pid IS
'process ID of the session that holds the lease';
COMMENT ON COLUMN pgpool.leases.user_name IS
'user that acquired the lease; NULL if the role was dropped';
COMMENT ON COLUMN pgpool.leases.application_name IS
'the session''s application_name when it acquired the lease; <insufficient privilege> unless you may see it';
COMMENT ON COLUMN pgpool.leases.scope IS
'what ends it: "session" (checkout), "transaction" (checkout_xact), "call" (functions that name a server) or "fdw" (foreign tables: the transaction)';
COMMENT ON COLUMN pgpool.leases.state IS
'"idle"; "active": a statement runs; "in transaction" and "failed": a remote transaction is open, or has failed; "cancelling"; "broken": the connection was lost';
COMMENT ON COLUMN pgpool.leases.leased_at IS
'time when the connection was leased';
COMMENT ON COLUMN pgpool.leases.why IS
'argument why of the checkout, or the foreign table or remote statement, up to 127 bytes; NULL if none; <insufficient privilege> unless you may see it';
COMMENT ON COLUMN pgpool.leases.remote_pid IS
'process ID of the remote session';

CREATE TYPE pgpool.waiters_row AS (
	pool_id pg_catalog.int4,
	database pg_catalog.name,
	server pg_catalog.name,
	"position" pg_catalog.int4,
	pid pg_catalog.int4,
	user_name pg_catalog.name,
	application_name pg_catalog.text,
	waiting_since pg_catalog.timestamptz,
	deadline pg_catalog.timestamptz,
	why pg_catalog.text,
	reason pg_catalog.text);

CREATE FUNCTION pgpool.waiters()
RETURNS SETOF pgpool.waiters_row
AS 'MODULE_PATHNAME', 'pgpx_view_waiters'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION pgpool.waiters() IS
'returns the rows of view waiters: one for each session that waits for a connection';

CREATE VIEW pgpool.waiters AS SELECT * FROM pgpool.waiters();
COMMENT ON VIEW pgpool.waiters IS
'sessions that wait for a connection, in the order of the queue';
COMMENT ON COLUMN pgpool.waiters.pool_id IS
'id of the pool; joins the views';
COMMENT ON COLUMN pgpool.waiters.database IS
'database of the foreign server';
COMMENT ON COLUMN pgpool.waiters.server IS
'foreign server of the pool';
COMMENT ON COLUMN pgpool.waiters."position" IS
'position in the queue of the pool, from 1';
COMMENT ON COLUMN pgpool.waiters.pid IS
'process ID of the waiting session';
COMMENT ON COLUMN pgpool.waiters.user_name IS
'user of the checkout; NULL if the role was dropped';
COMMENT ON COLUMN pgpool.waiters.application_name IS
'the session''s application_name when it began to wait; <insufficient privilege> unless you may see it';
COMMENT ON COLUMN pgpool.waiters.waiting_since IS
'time when the wait began';
COMMENT ON COLUMN pgpool.waiters.deadline IS
'time when the wait times out; NULL means no limit';
COMMENT ON COLUMN pgpool.waiters.why IS
'argument why of the checkout, or the foreign table or remote statement, up to 127 bytes; NULL if none; <insufficient privilege> unless you may see it';
COMMENT ON COLUMN pgpool.waiters.reason IS
'first of these that applies: "damaged", "paused", "remote_full", "connecting", "checking", "cancelling", "full", "unavailable", "server_cap", "global_cap"';

CREATE TYPE pgpool.stats_row AS (
	pool_id pg_catalog.int4,
	database pg_catalog.name,
	server pg_catalog.name,
	local_user pg_catalog.name,
	checkouts pg_catalog.int8,
	hits pg_catalog.int8,
	retried pg_catalog.int8,
	waited pg_catalog.int8,
	granted pg_catalog.int8,
	pipelined pg_catalog.int8,
	timeouts pg_catalog.int8,
	cancelled pg_catalog.int8,
	failed pg_catalog.int8,
	refused pg_catalog.int8,
	unavailable pg_catalog.int8,
	deadlocks pg_catalog.int8,
	checkins pg_catalog.int8,
	reclaimed pg_catalog.int8,
	terminated pg_catalog.int8,
	lease_timeouts pg_catalog.int8,
	wait_time pg_catalog.float8,
	lease_time pg_catalog.float8,
	max_lease_time pg_catalog.float8,
	answer_time pg_catalog.float8,
	statements pg_catalog.int8,
	polled pg_catalog.int8,
	rows pg_catalog.int8,
	errors pg_catalog.int8,
	bytes_received pg_catalog.int8,
	bytes_sent pg_catalog.int8,
	connects pg_catalog.int8,
	connects_failed pg_catalog.int8,
	connect_time pg_catalog.float8,
	resets pg_catalog.int8,
	checks pg_catalog.int8,
	cancels pg_catalog.int8,
	closed_idle pg_catalog.int8,
	closed_lifetime pg_catalog.int8,
	closed_overflow pg_catalog.int8,
	closed_evicted pg_catalog.int8,
	closed_reset pg_catalog.int8,
	closed_broken pg_catalog.int8,
	closed_stale pg_catalog.int8,
	closed_with_lease pg_catalog.int8,
	wait_histogram pg_catalog.int8[],
	stats_reset pg_catalog.timestamptz);

CREATE FUNCTION pgpool.stats()
RETURNS SETOF pgpool.stats_row
AS 'MODULE_PATHNAME', 'pgpx_view_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION pgpool.stats() IS
'returns the rows of view stats: one with the counters of each pool';

CREATE VIEW pgpool.stats AS SELECT * FROM pgpool.stats();
COMMENT ON VIEW pgpool.stats IS
'counters of all pools since stats_reset; they are removed with the pool';
COMMENT ON COLUMN pgpool.stats.pool_id IS
'id of the pool; joins the views';
COMMENT ON COLUMN pgpool.stats.database IS
'database of the foreign server';
COMMENT ON COLUMN pgpool.stats.server IS
'foreign server of the pool';
COMMENT ON COLUMN pgpool.stats.local_user IS
'local user of the pool; "public" if all users of a mapping for PUBLIC share it';
COMMENT ON COLUMN pgpool.stats.checkouts IS
'leases that began';
COMMENT ON COLUMN pgpool.stats.hits IS
'of these, leases without a wait';
COMMENT ON COLUMN pgpool.stats.retried IS
'leases that ended before the session used them: the connection was dead, outdated or could not be reset, or the checkout timed out or was cancelled';
COMMENT ON COLUMN pgpool.stats.waited IS
'ended waits of checkouts; a checkout waits again if the granted connection cannot be used';
COMMENT ON COLUMN pgpool.stats.granted IS
'of these, waits that ended with a connection';
COMMENT ON COLUMN pgpool.stats.pipelined IS
'of these, waits whose statement was sent with the reset by the session that returned the connection';
COMMENT ON COLUMN pgpool.stats.timeouts IS
'waits that timed out';
COMMENT ON COLUMN pgpool.stats.cancelled IS
'waits that were ended by a cancel, an error or the end of the session';
COMMENT ON COLUMN pgpool.stats.failed IS
'waits that ended because the remote server could not be reached';
COMMENT ON COLUMN pgpool.stats.refused IS
'checkouts that were refused because max_waiters sessions waited';
COMMENT ON COLUMN pgpool.stats.unavailable IS
'checkouts that were refused during the pause after a failed attempt to connect';
COMMENT ON COLUMN pgpool.stats.deadlocks IS
'checkouts that were refused because the session would have waited for itself, or that were ended by the deadlock check';
COMMENT ON COLUMN pgpool.stats.checkins IS
'leases that the session ended, by checkin or discard, or that ended with their scope';
COMMENT ON COLUMN pgpool.stats.reclaimed IS
'leases that ended with their session, with the worker, or because their connection was lost and its slot was needed';
COMMENT ON COLUMN pgpool.stats.terminated IS
'leases that terminate ended';
COMMENT ON COLUMN pgpool.stats.lease_timeouts IS
'leases that lease_timeout ended';
COMMENT ON COLUMN pgpool.stats.wait_time IS
'total waiting time of checkouts, in milliseconds; a checkout that waits again adds the whole time since its start';
COMMENT ON COLUMN pgpool.stats.lease_time IS
'total duration of ended leases, in milliseconds';
COMMENT ON COLUMN pgpool.stats.max_lease_time IS
'longest lease, in milliseconds';
COMMENT ON COLUMN pgpool.stats.answer_time IS
'time of ended leases in which their sessions waited for the remote server, in milliseconds';
COMMENT ON COLUMN pgpool.stats.statements IS
'statements that were sent on leases';
COMMENT ON COLUMN pgpool.stats.polled IS
'waits for an answer that ended while the session polled, without a sleep';
COMMENT ON COLUMN pgpool.stats.rows IS
'rows that were received';
COMMENT ON COLUMN pgpool.stats.errors IS
'errors that the remote server reported';
COMMENT ON COLUMN pgpool.stats.bytes_received IS
'bytes that sessions received on leases';
COMMENT ON COLUMN pgpool.stats.bytes_sent IS
'bytes that sessions sent on leases';
COMMENT ON COLUMN pgpool.stats.connects IS
'connections that were opened';
COMMENT ON COLUMN pgpool.stats.connects_failed IS
'connections that could not be opened, or that the remote server closed before they were used: see option retry_min';
COMMENT ON COLUMN pgpool.stats.connect_time IS
'total time that opening took, in milliseconds';
COMMENT ON COLUMN pgpool.stats.resets IS
'resets that were sent: at checkin, behind the statement of a call, by the worker, or before the statement of the next lease';
COMMENT ON COLUMN pgpool.stats.checks IS
'tests of idle connections';
COMMENT ON COLUMN pgpool.stats.cancels IS
'cancel requests that were sent';
COMMENT ON COLUMN pgpool.stats.closed_idle IS
'connections closed by idle_timeout';
COMMENT ON COLUMN pgpool.stats.closed_lifetime IS
'connections closed by max_lifetime';
COMMENT ON COLUMN pgpool.stats.closed_overflow IS
'connections closed because the pool had more than pool_size';
COMMENT ON COLUMN pgpool.stats.closed_evicted IS
'connections closed in favor of another pool, or because max_server_connections had become smaller';
COMMENT ON COLUMN pgpool.stats.closed_reset IS
'connections closed because a reset failed or could not be confirmed';
COMMENT ON COLUMN pgpool.stats.closed_broken IS
'connections that were lost, violated the protocol, reported a read-only server (25006), or whose worker exited';
COMMENT ON COLUMN pgpool.stats.closed_stale IS
'connections closed because the options had changed, or reconnect or drain was called';
COMMENT ON COLUMN pgpool.stats.closed_with_lease IS
'connections closed with their lease: by terminate, lease_timeout or discard, or because the lease ended during a statement or with a transaction that could not be rolled back';
COMMENT ON COLUMN pgpool.stats.wait_histogram IS
'number of waits by their duration: element 1 counts those below 1 us, element n those from 2^(n-2) to less than 2^(n-1) us, and element 32 all that are longer';
COMMENT ON COLUMN pgpool.stats.stats_reset IS
'time when the pool was created, or the counters were set to 0';

CREATE TYPE pgpool.history_row AS (
	pool_id pg_catalog.int4,
	database pg_catalog.name,
	server pg_catalog.name,
	local_user pg_catalog.name,
	sampled_at pg_catalog.timestamptz,
	span pg_catalog.float8,
	pool_size pg_catalog.int4,
	max_total pg_catalog.int4,
	total pg_catalog.int4,
	peak_leased pg_catalog.int4,
	peak_waiting pg_catalog.int4,
	peak_callers pg_catalog.int4,
	mean_leased pg_catalog.float8,
	mean_waiting pg_catalog.float8,
	arrivals pg_catalog.int8,
	hits pg_catalog.int8,
	waited pg_catalog.int8,
	wait_p50 pg_catalog.float8,
	wait_p99 pg_catalog.float8,
	wait_time pg_catalog.float8,
	timeouts pg_catalog.int8,
	cancelled pg_catalog.int8,
	failed pg_catalog.int8,
	refused pg_catalog.int8,
	unavailable pg_catalog.int8,
	deadlocks pg_catalog.int8,
	leases pg_catalog.int8,
	lease_time pg_catalog.float8,
	answer_time pg_catalog.float8,
	statements pg_catalog.int8,
	errors pg_catalog.int8,
	connects pg_catalog.int8,
	connects_failed pg_catalog.int8,
	wait_histogram pg_catalog.int8[]);

CREATE FUNCTION pgpool.history()
RETURNS SETOF pgpool.history_row
AS 'MODULE_PATHNAME', 'pgpx_view_history'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1000;
COMMENT ON FUNCTION pgpool.history() IS
'returns the rows of view history: samples of each pool';

CREATE VIEW pgpool.history AS SELECT * FROM pgpool.history();
COMMENT ON VIEW pgpool.history IS
'samples of all pools: what has happened in each 10 seconds, or in each 10 minutes of older time; they are removed with the pool';
COMMENT ON COLUMN pgpool.history.pool_id IS
'id of the pool; joins the views';
COMMENT ON COLUMN pgpool.history.database IS
'database of the foreign server';
COMMENT ON COLUMN pgpool.history.server IS
'foreign server of the pool';
COMMENT ON COLUMN pgpool.history.local_user IS
'local user of the pool; "public" if all users of a mapping for PUBLIC share it';
COMMENT ON COLUMN pgpool.history.sampled_at IS
'end of the sample';
COMMENT ON COLUMN pgpool.history.span IS
'duration of the sample, in milliseconds';
COMMENT ON COLUMN pgpool.history.pool_size IS
'pool_size at the end of the sample';
COMMENT ON COLUMN pgpool.history.max_total IS
'pool_size plus max_overflow at the end of the sample';
COMMENT ON COLUMN pgpool.history.total IS
'connections in any state at the end of the sample';
COMMENT ON COLUMN pgpool.history.peak_leased IS
'most connections that were leased at the same time';
COMMENT ON COLUMN pgpool.history.peak_waiting IS
'most sessions that waited at the same time';
COMMENT ON COLUMN pgpool.history.peak_callers IS
'most sessions that waited or held a lease at the same time';
COMMENT ON COLUMN pgpool.history.mean_leased IS
'mean number of leased connections';
COMMENT ON COLUMN pgpool.history.mean_waiting IS
'mean number of waiting sessions';
COMMENT ON COLUMN pgpool.history.arrivals IS
'checkouts that leased a connection at once or began to wait';
COMMENT ON COLUMN pgpool.history.hits IS
'leases that began without a wait';
COMMENT ON COLUMN pgpool.history.waited IS
'ended waits';
COMMENT ON COLUMN pgpool.history.wait_p50 IS
'median of the ended waits, in milliseconds, interpolated within an element of wait_histogram; NULL if no wait ended';
COMMENT ON COLUMN pgpool.history.wait_p99 IS
'99th percentile of the ended waits, likewise';
COMMENT ON COLUMN pgpool.history.wait_time IS
'total duration of the ended waits, in milliseconds';
COMMENT ON COLUMN pgpool.history.timeouts IS
'waits that timed out';
COMMENT ON COLUMN pgpool.history.cancelled IS
'waits that were ended by a cancel, an error or the end of the session';
COMMENT ON COLUMN pgpool.history.failed IS
'waits that ended because the remote server could not be reached';
COMMENT ON COLUMN pgpool.history.refused IS
'checkouts that were refused because max_waiters sessions waited';
COMMENT ON COLUMN pgpool.history.unavailable IS
'checkouts that were refused during the pause after a failed attempt to connect';
COMMENT ON COLUMN pgpool.history.deadlocks IS
'checkouts that a deadlock has ended';
COMMENT ON COLUMN pgpool.history.leases IS
'ended leases';
COMMENT ON COLUMN pgpool.history.lease_time IS
'total duration of the ended leases, in milliseconds';
COMMENT ON COLUMN pgpool.history.answer_time IS
'time of the ended leases in which their sessions waited for the remote server, in milliseconds';
COMMENT ON COLUMN pgpool.history.statements IS
'statements of the ended leases';
COMMENT ON COLUMN pgpool.history.errors IS
'errors that the remote server reported on them';
COMMENT ON COLUMN pgpool.history.connects IS
'connections that were opened';
COMMENT ON COLUMN pgpool.history.connects_failed IS
'attempts to connect that have failed, as in view stats';
COMMENT ON COLUMN pgpool.history.wait_histogram IS
'number of ended waits by their duration, as in view stats';

CREATE FUNCTION pgpool.dblink_calls()
RETURNS TABLE (
	outcome pg_catalog.text,
	calls pg_catalog.int8)
AS 'MODULE_PATHNAME', 'pgpx_view_dblink_calls'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 6;
REVOKE ALL ON FUNCTION pgpool.dblink_calls() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgpool.dblink_calls() TO pg_read_all_stats;
COMMENT ON FUNCTION pgpool.dblink_calls() IS
'returns the rows of view dblink_calls: one for each outcome of a call';

CREATE VIEW pgpool.dblink_calls AS SELECT * FROM pgpool.dblink_calls();
GRANT SELECT ON pgpool.dblink_calls TO pg_read_all_stats;
COMMENT ON VIEW pgpool.dblink_calls IS
'calls of attached functions of dblink in all databases since the start of the server: run on a pool, or passed to dblink, by reason';
COMMENT ON COLUMN pgpool.dblink_calls.outcome IS
'pooled; or why the call was passed to dblink: open connection, no server, other session, none free, unavailable';
COMMENT ON COLUMN pgpool.dblink_calls.calls IS
'number of calls';

CREATE TYPE pgpool.workers_row AS (
	worker pg_catalog.int4,
	pid pg_catalog.int4,
	state pg_catalog.text,
	restarts pg_catalog.int4,
	pools pg_catalog.int4,
	connections pg_catalog.int4,
	descriptors pg_catalog.int4);

CREATE FUNCTION pgpool.workers()
RETURNS SETOF pgpool.workers_row
AS 'MODULE_PATHNAME', 'pgpx_view_workers'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION pgpool.workers() IS
'returns the rows of view workers: one for each pool worker';

CREATE VIEW pgpool.workers AS SELECT * FROM pgpool.workers();
COMMENT ON VIEW pgpool.workers IS
'background workers that own the connections: their state and load';
COMMENT ON COLUMN pgpool.workers.worker IS
'number of the worker, from 0 to pgpool_ext.workers - 1';
COMMENT ON COLUMN pgpool.workers.pid IS
'its process ID; NULL if it does not run';
COMMENT ON COLUMN pgpool.workers.state IS
'"starting", "running", "stopping" or "down"';
COMMENT ON COLUMN pgpool.workers.restarts IS
'number of restarts since the server started or recovered from a crash';
COMMENT ON COLUMN pgpool.workers.pools IS
'pools of this worker';
COMMENT ON COLUMN pgpool.workers.connections IS
'connections of these pools, in any state, without broken ones';
COMMENT ON COLUMN pgpool.workers.descriptors IS
'descriptors that it has open for connections (three for a connection with TLS), abandoned logins, cancel requests and pings of locks';

--
-- distributed locks
--

CREATE FUNCTION pgpool.lock_setup(
	pool pg_catalog.text)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_lock_setup'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.lock_setup(pg_catalog.text) IS
'creates the table and the functions of distributed locks in schema pgpool_lock of a remote database, or replaces the functions; call it once for each database that keeps locks';

CREATE FUNCTION pgpool.lock(
	pool pg_catalog.text,
	name pg_catalog.text,
	timeout pg_catalog.interval DEFAULT NULL,
	ttl pg_catalog.interval DEFAULT '1 min',
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_lock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.lock(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text) IS
'acquires a distributed lock until unlock or the end of the session, and returns its token; timeout as of checkout; ttl is how long the lock remains held after the last ping of this server';

CREATE FUNCTION pgpool.try_lock(
	pool pg_catalog.text,
	name pg_catalog.text,
	ttl pg_catalog.interval DEFAULT '1 min',
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_lock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.try_lock(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
'acquires a distributed lock until unlock or the end of the session, and returns its token, or NULL if the lock is not free; ttl as of lock';

CREATE FUNCTION pgpool.lock_xact(
	pool pg_catalog.text,
	name pg_catalog.text,
	timeout pg_catalog.interval DEFAULT NULL,
	ttl pg_catalog.interval DEFAULT '1 min',
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_lock_xact'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.lock_xact(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text) IS
'acquires a distributed lock until the end of the local transaction, or until the subtransaction that acquired it is rolled back, and returns its token; timeout and ttl as of lock';

CREATE FUNCTION pgpool.try_lock_xact(
	pool pg_catalog.text,
	name pg_catalog.text,
	ttl pg_catalog.interval DEFAULT '1 min',
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_lock_xact'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.try_lock_xact(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
'acquires a distributed lock as lock_xact does, and returns its token, or NULL if the lock is not free; ttl as of lock';

CREATE FUNCTION pgpool.lock_valid(
	pool pg_catalog.text,
	name pg_catalog.text,
	token pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_lock_valid'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.lock_valid(pg_catalog.text, pg_catalog.text, pg_catalog.int8) IS
'returns whether this server certainly holds a distributed lock with this token; sends nothing to the remote server';

CREATE FUNCTION pgpool.unlock(
	pool pg_catalog.text,
	name pg_catalog.text,
	token pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_unlock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.unlock(pg_catalog.text, pg_catalog.text, pg_catalog.int8) IS
'releases a distributed lock of this session; returns false with a warning if the lock was not held, NULL with a warning if the remote server has not confirmed the release';

CREATE FUNCTION pgpool.lock_force_release(
	pool pg_catalog.text,
	name pg_catalog.text)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME', 'pgpx_lock_force_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.lock_force_release(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.lock_force_release(pg_catalog.text, pg_catalog.text) IS
'releases a distributed lock of any holder and raises its token, so that fence_check rejects the holder; returns whether the lock was held';

CREATE TYPE pgpool.lock_status_row AS (
	name pg_catalog.text,
	state pg_catalog.text,
	instance pg_catalog.text,
	holder pg_catalog.text,
	why pg_catalog.text,
	since pg_catalog.timestamptz,
	token pg_catalog.int8,
	last_ping pg_catalog.timestamptz,
	expires pg_catalog.timestamptz);

CREATE FUNCTION pgpool.lock_status(
	pool pg_catalog.text)
RETURNS SETOF pgpool.lock_status_row
AS 'MODULE_PATHNAME', 'pgpx_lock_status'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 20;
COMMENT ON FUNCTION pgpool.lock_status(pg_catalog.text) IS
'returns the locks that a remote database keeps, of all local servers: state is "held", "expired" (the next request acquires it) or "free"; times are those of the remote server';

CREATE TYPE pgpool.locks_row AS (
	database pg_catalog.name,
	server pg_catalog.name,
	name pg_catalog.text,
	token pg_catalog.int8,
	state pg_catalog.text,
	pid pg_catalog.int4,
	user_name pg_catalog.name,
	why pg_catalog.text,
	since pg_catalog.timestamptz,
	last_ping pg_catalog.timestamptz,
	valid_until pg_catalog.timestamptz,
	ttl pg_catalog.interval);

CREATE FUNCTION pgpool.locks()
RETURNS SETOF pgpool.locks_row
AS 'MODULE_PATHNAME', 'pgpx_view_locks'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION pgpool.locks() IS
'returns the rows of view locks: one for each distributed lock of a session of this server';

CREATE VIEW pgpool.locks AS SELECT * FROM pgpool.locks();
COMMENT ON VIEW pgpool.locks IS
'distributed locks that sessions of this server hold, have lost, or are releasing';
COMMENT ON COLUMN pgpool.locks.database IS
'database of the holding session';
COMMENT ON COLUMN pgpool.locks.server IS
'foreign server that keeps the lock';
COMMENT ON COLUMN pgpool.locks.name IS
'name of the lock; <insufficient privilege> unless you may see it';
COMMENT ON COLUMN pgpool.locks.token IS
'its token; NULL if the remote server has not reported it, or unless you may see it';
COMMENT ON COLUMN pgpool.locks.state IS
'"held", "lost" (another session may hold it) or "releasing" (released here, not yet on the remote server)';
COMMENT ON COLUMN pgpool.locks.pid IS
'process ID of the holder';
COMMENT ON COLUMN pgpool.locks.user_name IS
'user that acquired it';
COMMENT ON COLUMN pgpool.locks.why IS
'argument why of the call; <insufficient privilege> unless you may see it';
COMMENT ON COLUMN pgpool.locks.since IS
'time when it was acquired';
COMMENT ON COLUMN pgpool.locks.last_ping IS
'time of the last ping that the remote server confirmed; NULL: none yet';
COMMENT ON COLUMN pgpool.locks.valid_until IS
'time until which no other session can hold it; each ping extends it';
COMMENT ON COLUMN pgpool.locks.ttl IS
'time for which the lock remains held after the last ping';

-- (for view dblink_calls see above)
GRANT SELECT ON pgpool.pools, pgpool.connections, pgpool.leases, pgpool.waiters, pgpool.stats, pgpool.history,
	pgpool.workers, pgpool.locks TO PUBLIC;

--
-- One commit on several servers (server option two_phase_commit).  No user has
-- privileges on the tables.  Sessions read and write rows by heap and index, the
-- resolver by SQL.
--

-- DROP EXTENSION locks the tables in the order of their creation.  The resolver locks
-- commit_participants first.
CREATE SEQUENCE pgpool.commit_participants_id_seq AS pg_catalog.int4;
COMMENT ON SEQUENCE pgpool.commit_participants_id_seq IS
'ids of commit_participants';

-- The C code reads the first columns as a struct (PgpxParticipant).
CREATE TABLE pgpool.commit_participants (
	id pg_catalog.int4 NOT NULL,
	server pg_catalog.oid NOT NULL,
	user_id pg_catalog.oid NOT NULL,
	origin pg_catalog.name NOT NULL,
	system_identifier pg_catalog.int8 NOT NULL,
	database pg_catalog.name NOT NULL,
	adopter pg_catalog.text,
	visited pg_catalog.timestamptz,
	error pg_catalog.text,
	CONSTRAINT commit_participants_pkey PRIMARY KEY (id));
ALTER TABLE pgpool.commit_participants
	ALTER COLUMN adopter SET STORAGE PLAIN,
	ALTER COLUMN error SET STORAGE PLAIN;
COMMENT ON TABLE pgpool.commit_participants IS
'remote databases in which transactions of foreign tables may have prepared parts';
COMMENT ON COLUMN pgpool.commit_participants.id IS
'number of the participant, never reused';
COMMENT ON COLUMN pgpool.commit_participants.server IS
'OID of the foreign server';
COMMENT ON COLUMN pgpool.commit_participants.user_id IS
'OID of the local user whose mapping is used; 0: all users of a PUBLIC mapping who are not superusers';
COMMENT ON COLUMN pgpool.commit_participants.origin IS
'origin of the installation that prepares the parts: this data directory, host, timeline, database and extension';
COMMENT ON COLUMN pgpool.commit_participants.system_identifier IS
'system identifier of the remote server';
COMMENT ON COLUMN pgpool.commit_participants.database IS
'name of the remote database';
COMMENT ON COLUMN pgpool.commit_participants.adopter IS
'origin of the installation that may roll back parts without a decision in the place of "origin"; set by adopt_prepared';
COMMENT ON COLUMN pgpool.commit_participants.visited IS
'time of the last complete visit of the resolver';
COMMENT ON COLUMN pgpool.commit_participants.error IS
'why the last visit has failed; NULL: it has not';

CREATE TABLE pgpool.commit_decisions (
	id pg_catalog.text NOT NULL,
	participants pg_catalog.int4[] NOT NULL,
	CONSTRAINT commit_decisions_pkey PRIMARY KEY (id));
ALTER TABLE pgpool.commit_decisions
	ALTER COLUMN id SET STORAGE PLAIN,
	ALTER COLUMN participants SET STORAGE PLAIN;
COMMENT ON TABLE pgpool.commit_decisions IS
'transactions whose prepared parts on other servers must be committed; the resolver deletes a row when its parts are committed';
COMMENT ON COLUMN pgpool.commit_decisions.id IS
'global id of the parts, without the number of the part';
COMMENT ON COLUMN pgpool.commit_decisions.participants IS
'commit_participants.id of each part, in the order of the numbers of the parts';

CREATE TABLE pgpool.commit_parts (
	gid pg_catalog.text NOT NULL,
	participant pg_catalog.int4 NOT NULL,
	state pg_catalog.text NOT NULL,
	prepared pg_catalog.timestamptz,
	seen pg_catalog.timestamptz NOT NULL,
	error pg_catalog.text,
	CONSTRAINT commit_parts_pkey PRIMARY KEY (gid, participant));
COMMENT ON TABLE pgpool.commit_parts IS
'parts that the resolver has seen last and has not resolved';
COMMENT ON COLUMN pgpool.commit_parts.gid IS
'global id of the prepared transaction';
COMMENT ON COLUMN pgpool.commit_parts.participant IS
'commit_participants.id';
COMMENT ON COLUMN pgpool.commit_parts.state IS
'as of view prepared_transactions';
COMMENT ON COLUMN pgpool.commit_parts.prepared IS
'when it was prepared, by the clock of the remote server; NULL: the remote server could not be asked';
COMMENT ON COLUMN pgpool.commit_parts.seen IS
'when the resolver has seen it last';
COMMENT ON COLUMN pgpool.commit_parts.error IS
'error of the last attempt to resolve it';

-- Without a policy, row security refuses the rows to all roles but the owner and superusers,
-- also to members of pg_write_all_data.  C code does not apply it.
ALTER TABLE pgpool.commit_decisions ENABLE ROW LEVEL SECURITY;
ALTER TABLE pgpool.commit_participants ENABLE ROW LEVEL SECURITY;
ALTER TABLE pgpool.commit_parts ENABLE ROW LEVEL SECURITY;

CREATE VIEW pgpool.prepared_transactions AS
SELECT s.srvname AS server,
	CASE WHEN p.user_id OPERATOR(pg_catalog.=) 0 THEN 'public'
		ELSE pg_catalog.pg_get_userbyid(p.user_id) END AS user_name,
	t.gid, t.state, t.prepared,
	pg_catalog.now() OPERATOR(pg_catalog.-) t.prepared AS age,
	t.seen,
	CASE WHEN pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
		THEN coalesce(t.error, p.error) END AS last_error,
	p.id AS participant
FROM pgpool.commit_parts t
	JOIN pgpool.commit_participants p ON p.id OPERATOR(pg_catalog.=) t.participant
	LEFT JOIN pg_catalog.pg_foreign_server s ON s.oid OPERATOR(pg_catalog.=) p.server;
GRANT SELECT ON pgpool.prepared_transactions TO PUBLIC;
COMMENT ON VIEW pgpool.prepared_transactions IS
'parts of transactions on other servers that the resolver has seen last and has not resolved';
COMMENT ON COLUMN pgpool.prepared_transactions.server IS
'foreign server; NULL: it was dropped';
COMMENT ON COLUMN pgpool.prepared_transactions.user_name IS
'local user whose mapping is used, or "public"';
COMMENT ON COLUMN pgpool.prepared_transactions.gid IS
'global id of the prepared transaction on the remote server';
COMMENT ON COLUMN pgpool.prepared_transactions.state IS
'"running" (its transaction has not ended), "commit" or "rollback" (what the resolver will do), or "foreign" (prepared by another installation and without a decision: see adopt_prepared)';
COMMENT ON COLUMN pgpool.prepared_transactions.prepared IS
'when it was prepared, by the clock of the remote server; NULL: the remote server could not be asked';
COMMENT ON COLUMN pgpool.prepared_transactions.age IS
'time since then';
COMMENT ON COLUMN pgpool.prepared_transactions.seen IS
'when the resolver has seen it last';
COMMENT ON COLUMN pgpool.prepared_transactions.last_error IS
'error of the last attempt to resolve it, or of the last visit to the remote server; NULL without the privileges of pg_read_all_stats';
COMMENT ON COLUMN pgpool.prepared_transactions.participant IS
'number of the participant, for forget_participant';

CREATE FUNCTION pgpool.commit_origin()
RETURNS pg_catalog.text
AS 'MODULE_PATHNAME', 'pgpx_commit_origin_text'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.commit_origin() FROM PUBLIC;
COMMENT ON FUNCTION pgpool.commit_origin() IS
'returns the origin of this installation, as in commit_participants';

CREATE FUNCTION pgpool.adopt_prepared()
RETURNS pg_catalog.int4
LANGUAGE SQL VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	WITH adopted AS (
		UPDATE pgpool.commit_participants SET adopter = pgpool.commit_origin()
		WHERE origin <> pgpool.commit_origin() AND adopter IS DISTINCT FROM pgpool.commit_origin()
		RETURNING 1)
	SELECT count(*)::int4 FROM adopted;
$$;
REVOKE ALL ON FUNCTION pgpool.adopt_prepared() FROM PUBLIC;
COMMENT ON FUNCTION pgpool.adopt_prepared() IS
'lets this server roll back undecided parts that the server of which it is a copy or the promoted standby has prepared; that server must no longer run; returns the number of participants adopted';

CREATE FUNCTION pgpool.forget_participant(
	participant pg_catalog.int4)
RETURNS pg_catalog.bool
LANGUAGE SQL VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
	LOCK TABLE pgpool.commit_participants IN EXCLUSIVE MODE;
	DELETE FROM pgpool.commit_parts WHERE commit_parts.participant = $1;
	WITH forgotten AS (
		DELETE FROM pgpool.commit_participants WHERE id = $1 RETURNING 1)
	SELECT count(*) > 0 FROM forgotten;
$$;
REVOKE ALL ON FUNCTION pgpool.forget_participant(pg_catalog.int4) FROM PUBLIC;
COMMENT ON FUNCTION pgpool.forget_participant(pg_catalog.int4) IS
'removes a participant although it may have unresolved parts, so that its server and user mapping can be changed or dropped; returns false if it does not exist';

CREATE FUNCTION pgpool.check_invariants()
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_check_invariants'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.check_invariants() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgpool.check_invariants() TO pg_monitor;
COMMENT ON FUNCTION pgpool.check_invariants() IS
'verifies the shared state and reports any inconsistency as an error; intended for testing and troubleshooting';

--
-- Advice: rules over the views, which doc/advice.md describes
--

CREATE FUNCTION pgpool.predict_wait(
	pool_size pg_catalog.int4,
	callers pg_catalog.int4,
	lease_time pg_catalog.float8,
	think_time pg_catalog.float8,
	OUT waits_percent pg_catalog.float8,
	OUT mean_wait pg_catalog.float8,
	OUT p99_wait pg_catalog.float8)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
-- M/M/c//N: each of N callers thinks, waits for one of c connections, and holds it.  A caller
-- that arrives finds the others in the states that they would have without it.
DECLARE
	invalid record;
	others int4;
	think float8;
	unlikely CONSTANT float8 := -700;	-- exp of less raises an underflow
	state float8[];	-- n others in the pool: logarithm of the weight
	largest float8 := 0;
	total float8 := 0;
	longer float8[];	-- probability that at least k others wait
	low float8 := 0;
	high float8;
	mid float8;
	term float8;
	beyond float8;
BEGIN
	-- a comparison with NULL is not true, and NaN exceeds each upper limit
	SELECT * INTO invalid
	FROM (VALUES ('pool_size', pool_size::float8, 1, 524286), ('callers', callers, 1, 262143),
			('lease_time', lease_time, 0.001, 1e12), ('think_time', think_time, 0, 1e12)) AS a(name, value, low, high)
	WHERE (value BETWEEN a.low AND a.high) IS NOT TRUE LIMIT 1;
	IF FOUND THEN
		RAISE invalid_parameter_value USING MESSAGE = format('%s is out of range', invalid.name),
			DETAIL = format('The argument is %s, and must be between %s and %s.', coalesce(invalid.value::text, 'NULL'), invalid.low, invalid.high),
			HINT = 'Specify numbers of connections and sessions, and times in milliseconds.';
	END IF;

	others := callers - 1;
	think := greatest(think_time, lease_time / 1e6);
	state := array_fill(0::float8, ARRAY[callers], ARRAY[0]);
	waits_percent := 0;
	mean_wait := 0;
	p99_wait := 0;
	IF callers <= pool_size THEN
		RETURN;
	END IF;

	FOR n IN 1 .. others LOOP
		state[n] := state[n - 1] + ln((others - n + 1) * lease_time / (think * least(n, pool_size)));
		largest := greatest(largest, state[n]);
	END LOOP;
	FOR n IN 0 .. others LOOP
		total := total + exp(greatest(state[n] - largest, unlikely));
	END LOOP;
	longer := array_fill(0::float8, ARRAY[others - pool_size + 2], ARRAY[0]);
	FOR k IN REVERSE others - pool_size .. 0 LOOP
		longer[k] := longer[k + 1] + exp(greatest(state[pool_size + k] - largest, unlikely)) / total;
		mean_wait := mean_wait + longer[k] * lease_time / pool_size;
	END LOOP;
	waits_percent := 100 * longer[0];
	IF longer[0] <= 0.01 THEN
		RETURN;
	END IF;

	-- A caller behind k waiters waits until k + 1 connections were returned.  While all are
	-- leased, their number within a time has a Poisson distribution, whose mean is bisected.
	high := 2 * (others - pool_size) + 20;
	FOR i IN 1 .. 16 LOOP
		mid := (low + high) / 2;
		term := -mid;
		beyond := 0;
		FOR k IN 0 .. others - pool_size LOOP
			term := term + CASE k WHEN 0 THEN 0 ELSE ln(mid / k) END;
			beyond := beyond + CASE WHEN term > unlikely / 2 AND longer[k] > 1e-150 THEN exp(term) * longer[k] ELSE 0 END;
		END LOOP;
		IF beyond > 0.01 THEN
			low := mid;
		ELSE
			high := mid;
		END IF;
	END LOOP;
	p99_wait := high * lease_time / pool_size;
END
$$;
COMMENT ON FUNCTION pgpool.predict_wait(pg_catalog.int4, pg_catalog.int4, pg_catalog.float8, pg_catalog.float8) IS
'predicts the waits of checkouts: how many percent wait, the mean and the 99th percentile of all, in milliseconds, for a number of callers that each hold a connection for lease_time and do without one for think_time, in milliseconds, on average';

CREATE FUNCTION pgpool.advice(since pg_catalog.interval DEFAULT NULL)
RETURNS TABLE (
	database pg_catalog.name,
	server pg_catalog.name,
	local_user pg_catalog.name,
	severity pg_catalog.text,
	finding pg_catalog.text,
	evidence pg_catalog.text,
	suggestion pg_catalog.text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 10 SET search_path = pg_catalog, pg_temp
AS $$
WITH
setting AS (SELECT coalesce(current_setting('pgpool_ext.history_size', true), '0') = '0' AS is_off),

-- options is NULL if this database cannot alter the server: it is in another one, or has another wrapper.  The validator
-- accepts a pool_size from "lowest" to 262143.  An option whose number has another form than digits, such as 0x10, exceeds that.
pool AS (
	SELECT s.*, p.state, p.worker, p.pool_size, p.total, p.leased, p.waiters, p.unavailable_since, p.remote_full_since,
		p.last_error, p.last_error_at,
		greatest(s.stats_reset, statement_timestamp() - greatest(least(coalesce(since, '1 day'), '10 years'), '0')) AS start,
		CASE WHEN srvname IS NOT NULL THEN coalesce(options, '{}') END AS options, coalesce(min_size, 0) AS min_size,
		greatest(min_size, min_idle, 1) AS lowest, nullif(server_cap, 0) AS server_cap, p.pool_size + coalesce(overflow, 0) AS largest,
		max(p.total) OVER (PARTITION BY database, server) AS most_total
	FROM pgpool.pools AS p JOIN pgpool.stats AS s USING (pool_id, database, server, local_user)
		LEFT JOIN (pg_foreign_server JOIN pg_foreign_data_wrapper AS w ON w.oid = srvfdw AND fdwname = 'pgpool_fdw')
			ON srvname = p.server AND s.database = current_database(),
		LATERAL (SELECT jsonb_object_agg(option_name, option_value) AS options,
				max(n) FILTER (WHERE option_name = 'min_size') AS min_size, max(n) FILTER (WHERE option_name = 'min_idle') AS min_idle,
				max(n) FILTER (WHERE option_name = 'max_overflow') AS overflow,
				max(n) FILTER (WHERE option_name = 'max_server_connections') AS server_cap
			FROM pg_options_to_table(srvoptions),
				LATERAL (SELECT CASE WHEN option_value ~ '^\d{1,6}$' THEN option_value::int4 ELSE 262144 END AS n) AS i) AS o
),

-- without history, one sample since the last reset, whose peaks are not known
sample AS (
	SELECT h.pool_id, h.span, h.max_total, h.peak_leased, h.peak_callers, h.mean_leased, h.mean_waiting, h.hits, h.waited,
		h.wait_time, h.timeouts, h.leases, h.lease_time, h.answer_time, h.statements, h.connects_failed, h.wait_histogram
	FROM pgpool.history AS h JOIN pool USING (pool_id, pool_size)
	WHERE h.sampled_at - h.span / 2 * interval '1 ms' > start
	UNION ALL
	SELECT pool_id, t.span, pool_size, NULL, NULL, lease_time / t.span, wait_time / t.span, hits, waited,
		wait_time, timeouts, checkouts - leased, lease_time, answer_time, statements, connects_failed, wait_histogram
	FROM setting, pool, LATERAL (SELECT 1000 * extract(epoch FROM statement_timestamp() - stats_reset)::float8 AS span) AS t
	WHERE is_off AND t.span > 0
),

-- half 1 and 2: the samples with the fewest and with the most leased connections
used AS (
	SELECT pool_id, sum(waited) AS waited, sum(leases) AS leases, sum(lease_time) AS lease_time, sum(answer_time) AS answer_time,
		sum(statements) AS statements, sum(connects_failed) AS connects_failed, max(peak_leased) AS peak_leased,
		percentile_disc(0.25) WITHIN GROUP (ORDER BY peak_leased) AS steady, max(statements / span) AS statement_rate,
		sum(timeouts) FILTER (WHERE peak_leased < max_total) AS capped_timeouts,
		avg(mean_leased) FILTER (WHERE half = 1) AS leased_1, avg(mean_leased) FILTER (WHERE half = 2) AS leased_2,
		sum(lease_time) FILTER (WHERE half = 1) / nullif(sum(leases) FILTER (WHERE half = 1), 0) AS held_1,
		sum(lease_time) FILTER (WHERE half = 2) / nullif(sum(leases) FILTER (WHERE half = 2), 0) AS held_2
	FROM (SELECT *, ntile(2) OVER (PARTITION BY pool_id ORDER BY mean_leased) AS half FROM sample) AS s
	GROUP BY pool_id
),

-- the busiest samples: all connections were leased at a time, and there were at least half as many callers as at most
busy_sample AS (
	SELECT * FROM (SELECT *, mean_leased + mean_waiting AS mean_callers,
			max(mean_leased + mean_waiting) OVER (PARTITION BY pool_id) AS most_callers
		FROM sample WHERE coalesce(peak_leased, max_total) >= max_total) AS s
	WHERE mean_callers >= most_callers / 2
),
busy AS (
	SELECT pool_id, sum(span) AS span, max(max_total) AS max_total, coalesce(max(peak_callers), 1) AS callers, sum(hits + waited) AS checkouts,
		sum(waited) AS waited, sum(wait_time) / sum(hits + waited) AS mean_wait, sum(leases) AS leases,
		sum(lease_time) / sum(leases) AS held, sum(mean_waiting * span) / sum(span) AS mean_waiting
	FROM busy_sample GROUP BY pool_id HAVING sum(waited) >= 100 AND sum(lease_time) > 0
),
-- the 99th percentile of all checkouts, with those that did not wait, interpolated within its element of the histogram
observed AS (
	SELECT DISTINCT ON (pool_id) pool_id, 2 ^ (n - 1) * (1 - (so_far - rank) / waits / 2) / 1000 AS p99_wait
	FROM (SELECT pool_id, n, waits, 0.99 * checkouts AS rank,
			checkouts - waited + sum(waits) OVER (PARTITION BY pool_id ORDER BY n) AS so_far
		FROM busy JOIN (SELECT pool_id, n, sum(waits) AS waits
			FROM busy_sample, unnest(wait_histogram) WITH ORDINALITY AS u(waits, n) GROUP BY pool_id, n) AS h USING (pool_id)) AS h
	WHERE so_far >= rank AND waits > 0 ORDER BY pool_id, n
),
-- A connection is also busy during resets, which lease_time lacks: a full pool measures the whole time by its throughput.
-- The think time follows from Little's law.
model AS (
	SELECT busy.*, observed.p99_wait, cycle, least(greatest(callers * span / leases - mean_wait - cycle, 0), 1e12) AS think
	FROM busy JOIN observed USING (pool_id),
		LATERAL (SELECT least(greatest(held, 0.001, CASE WHEN mean_waiting >= max_total THEN max_total * span / leases END), 1e12) AS cycle) AS c
),
-- the smallest size at which p99 is no longer than a lease, or twice the present one
larger AS (
	SELECT DISTINCT ON (pool_id) pool_id, size, future.mean_wait, future.p99_wait,
		present.mean_wait BETWEEN m.mean_wait / 2 AND m.mean_wait * 2 AS is_valid
	FROM pool JOIN model AS m USING (pool_id),
		pgpool.predict_wait(max_total, callers, cycle, think) AS present,
		LATERAL (SELECT DISTINCT least(ceil(pool_size * (1 + eighths / 8.0)), 262143)::int4 AS size
			FROM generate_series(1, 8) AS eighths) AS s,
		pgpool.predict_wait(size + max_total - pool_size, callers, cycle, think) AS future
	WHERE m.waited * 20 >= m.checkouts AND size > pool_size
	ORDER BY pool_id, future.p99_wait > held, CASE WHEN future.p99_wait > held THEN -size ELSE size END
),
rules AS (
	SELECT p.database, p.server, p.local_user, r.severity, r.finding, r.evidence,
		CASE WHEN r.value IS NULL THEN r.command
			WHEN options IS NOT NULL THEN format('ALTER SERVER %I OPTIONS (%s %I %L)', p.server,
				CASE WHEN options ? r.option THEN 'SET' ELSE 'ADD' END, r.option, r.value) END AS suggestion
	FROM setting, pool AS p
		LEFT JOIN used AS u USING (pool_id) LEFT JOIN model AS m USING (pool_id) LEFT JOIN larger AS l USING (pool_id),
		LATERAL (SELECT u.waited >= 100 AND u.lease_time > 5 * u.answer_time AS without_statement,
			u.leased_2 > 1.3 * u.leased_1 AND u.held_2 > 1.3 * u.held_1 AS rises) AS t,
		LATERAL (
			SELECT 'warning' AS severity, 'pool is too small' AS finding,
				format('In the busiest samples %s of %s checkouts waited, for %s ms on average%s. Leases lasted %s ms.',
					m.waited, m.checkouts, round(m.mean_wait::numeric, 1),
					', and 1 % of all for more than ' || round(CASE WHEN m.waited >= 1000 THEN m.p99_wait END::numeric, 1) || ' ms',
					round(m.held::numeric, 1))
				|| CASE WHEN is_off THEN ' History is off, so no size is suggested.'
					WHEN NOT l.is_valid THEN ' Sessions check out in bursts, so the wait with another size is not predicted.'
					ELSE format(' Up to %s sessions held or awaited one of %s connections.'
						' With pool_size %s they would wait for %s ms on average%s.',
						m.callers, m.max_total, l.size, round(l.mean_wait::numeric, 1),
						', and 1 % for more than ' || round(CASE WHEN m.waited >= 1000 THEN l.p99_wait END::numeric, 1) || ' ms')
					END
				|| CASE WHEN is_off OR u.leased_2 > 1.3 * u.leased_1 THEN ''
					ELSE ' All samples were about equally full, so leases may last longer in a larger pool.' END AS evidence,
				'pool_size' AS option, CASE WHEN NOT is_off THEN l.size::text END AS value, NULL AS command
			WHERE l.size IS NOT NULL AND NOT without_statement AND rises IS NOT TRUE

			UNION ALL SELECT 'info', 'pool is full, and larger is slower',
				format('Leases lasted %s ms with %s connections leased on average, and %s ms with %s.'
					' The remote server or this one is saturated.',
					round(u.held_1::numeric, 1), round(u.leased_1::numeric, 1),
					round(u.held_2::numeric, 1), round(u.leased_2::numeric, 1)),
				NULL, NULL, NULL
			WHERE l.size IS NOT NULL AND rises

			UNION ALL SELECT 'info', 'pool is too large',
				format('At most %s of %s connections were leased at the same time, in %s leases since %s.',
					u.peak_leased, p.pool_size, u.leases, date_trunc('second', p.start)),
				'pool_size', CASE WHEN size < p.pool_size THEN size::text END, NULL
			-- the option is that of all pools of the server
			FROM (SELECT greatest(max(peak_leased) + greatest(1, max(peak_leased) / 2), p.lowest) AS size
				FROM used JOIN pool AS o USING (pool_id) WHERE (o.database, o.server) = (p.database, p.server)) AS o
			WHERE u.leases >= 1000 AND u.peak_leased * 2 <= p.pool_size AND u.peak_leased + 1 < p.pool_size
				AND p.start <= statement_timestamp() - interval '1 hour'

			UNION ALL SELECT 'warning', 'leases are held without a statement',
				format('%s checkouts waited. %s leases lasted %s ms each, and the answers to their statements took %s ms.%s',
					u.waited, u.leases, round((u.lease_time / u.leases)::numeric, 1),
					round((u.answer_time / u.leases)::numeric, 1),
					' Held now: ' || (
						SELECT string_agg(format('%s (application %s, why %s)', pid, application_name, coalesce(why, '-')), ', ')
						FROM (SELECT * FROM pgpool.leases AS o WHERE o.pool_id = p.pool_id AND o.state <> 'active'
							ORDER BY leased_at LIMIT 3) AS o) || '.'),
				NULL, NULL,
				format('SELECT pid, user_name, application_name, scope, state, clock_timestamp() - leased_at AS held, why'
					' FROM pgpool.leases WHERE pool_id = %s ORDER BY leased_at', p.pool_id)
			WHERE without_statement AND u.leases > 0

			UNION ALL SELECT CASE WHEN p.waiters > 0 THEN 'warning' ELSE 'info' END, 'lease is held idle',
				format('Process %s (application %s, why %s) has held lease %s since %s. Its state is "%s". Waiting sessions: %s.',
					pid, application_name, coalesce(why, '-'), lease, date_trunc('second', leased_at), o.state, p.waiters),
				'leak_warning', CASE WHEN p.waiters = 0 AND NOT options ? 'leak_warning' THEN '1min' END,
				CASE WHEN p.waiters > 0 THEN format('SELECT pgpool.terminate(%s)', lease) END
			FROM (SELECT * FROM pgpool.leases AS o WHERE o.pool_id = p.pool_id AND o.state IN ('idle', 'in transaction', 'failed')
				AND leased_at < statement_timestamp() - interval '1 min' ORDER BY leased_at LIMIT 3) AS o

			UNION ALL SELECT 'warning', 'checkouts time out at a cap',
				format('%s checkouts timed out while fewer connections were leased than the pool may open.'
					' Pools with the most connections now: %s.', u.capped_timeouts,
					(SELECT string_agg(format('%s (%s) %s', o.server, o.local_user, o.total), ', ')
						FROM (SELECT * FROM pool ORDER BY total DESC LIMIT 3) AS o)),
				'max_server_connections', CASE WHEN server_cap < of_server THEN of_server::text END,
				CASE WHEN is_full AND current_setting('pgpool_ext.max_connections', true)::int4 < of_all
					THEN format('ALTER SYSTEM SET pgpool_ext.max_connections = %s', of_all) END
			FROM (SELECT least(sum(largest) FILTER (WHERE (o.database, o.server) = (p.database, p.server)), 262143) AS of_server,
				least(sum(largest), 262143) AS of_all,
				sum(total) >= 0.9 * current_setting('pgpool_ext.max_connections', true)::int4 AS is_full FROM pool AS o) AS o
			WHERE u.capped_timeouts > 0 AND p.remote_full_since IS NULL AND u.connects_failed = 0 AND (server_cap > 0 OR is_full)

			UNION ALL SELECT 'info', 'resets cost more than statements',
				format('There were %s resets for %s statements, whose answers took %s ms each. %s checkouts waited.',
					p.resets, p.statements, round((u.answer_time / u.statements)::numeric, 3), u.waited),
				'reset', 'never', NULL
			WHERE u.waited >= 100 AND u.statements >= 1000 AND p.resets >= greatest(p.statements, 1000)
				AND u.answer_time < u.statements
				AND options ->> 'reset' IS DISTINCT FROM 'never'

			UNION ALL SELECT 'critical', 'remote server is full',
				format('It has refused to accept more than %s connections since %s.',
					p.total, date_trunc('second', p.remote_full_since)),
				'pool_size', CASE WHEN most_total BETWEEN lowest AND p.pool_size - 1 THEN most_total::text END, NULL
			WHERE p.remote_full_since IS NOT NULL

			UNION ALL SELECT CASE WHEN p.unavailable_since IS NULL THEN 'warning' ELSE 'critical' END,
				CASE WHEN p.last_error ~* 'password|authentication|pg_hba|SCRAM' THEN 'login fails'
					WHEN p.last_error ~* 'host name|name resolution' THEN 'host name is not found'
					ELSE 'remote server cannot be reached' END,
				format('Failed attempts to connect since %s: %s. The last one, at %s: %s', date_trunc('second', p.stats_reset),
					p.connects_failed, date_trunc('second', p.last_error_at), p.last_error),
				NULL, NULL, NULL
			WHERE p.remote_full_since IS NULL
				AND (p.unavailable_since IS NOT NULL OR u.connects_failed > 0 AND p.last_error_at > p.start)

			UNION ALL SELECT 'info', 'min_size is below the steady use',
				format('In three of four samples %s connections or more were leased at a time.'
					' %s were closed by idle_timeout and opened again, in %s ms each.',
					u.steady, least(p.closed_idle, p.connects), round((p.connect_time / nullif(p.connects, 0))::numeric, 1)),
				'min_size', least(u.steady, p.pool_size)::text, NULL
			WHERE least(p.closed_idle, p.connects) >= 20 AND u.steady > p.min_size AND p.pool_size > p.min_size

			UNION ALL SELECT 'info', 'statements close their connections',
				format('%s of %s leases ended with their connection. There were %s cancels; lease_timeout ended %s leases, terminate %s.'
					' Opening a connection takes %s ms.', p.closed_with_lease, p.checkouts, p.cancels, p.lease_timeouts,
					p.terminated, round((p.connect_time / nullif(p.connects, 0))::numeric, 1)),
				'min_idle', '1', NULL
			WHERE p.closed_with_lease >= 10 AND p.closed_with_lease * 100 >= p.checkouts
				AND NOT coalesce(options ? 'min_idle', false)

			UNION ALL SELECT 'warning', 'sessions wait for each other',
				format('Checkouts that were refused since %s because of a deadlock, or because their own session held all connections: %s.',
					date_trunc('second', p.stats_reset), p.deadlocks),
				NULL, NULL,
				'SELECT pid, user_name, application_name, array_agg(server ORDER BY leased_at) AS servers'
					' FROM pgpool.leases GROUP BY pid, user_name, application_name HAVING count(*) > 1'
			WHERE p.deadlocks > 0
		) AS r

	-- over TLS the worker needs about 30 us for a statement with its answer, and 2 us for each kB
	UNION ALL SELECT NULL, NULL, NULL, 'warning', 'worker is busy with TLS',
		format('Worker %s relayed for %s servers, which needed up to %s %% of a processor.',
			worker, count(DISTINCT (database, server)), round(sum(percent)::numeric)),
		format('ALTER SYSTEM SET pgpool_ext.workers = %s', current_setting('pgpool_ext.workers', true)::int4 + 1)
	FROM pool JOIN used USING (pool_id),
		LATERAL (SELECT statement_rate / 10
			* (30 + (bytes_received + bytes_sent) / 500.0 / greatest(pool.statements, 1)) AS percent) AS t
	WHERE EXISTS (SELECT FROM pgpool.connections AS c WHERE c.pool_id = pool.pool_id AND transport = 'relay')
	GROUP BY worker
	HAVING sum(percent) >= 70 AND count(DISTINCT (database, server)) > 1
		AND current_setting('pgpool_ext.workers', true)::int4 < 8

	UNION ALL SELECT NULL, NULL, NULL, 'info', 'history is off',
		'The other findings are about the time since the last reset of each pool. No size is suggested.',
		'ALTER SYSTEM SET pgpool_ext.history_size = ''1MB'''
	FROM setting WHERE is_off
)
SELECT * FROM rules ORDER BY array_position('{critical,warning,info}', severity), database, server, local_user, finding, evidence
$$;
COMMENT ON FUNCTION pgpool.advice(pg_catalog.interval) IS
'returns what is wrong with pools or could be better, the evidence, and the SQL that changes it if there is one; reads the samples of the interval, NULL means those since the last reset, of one day at most';

--
-- The report: one HTML page.  The texts of the views are escaped in two places: "label", the
-- name of a pool in titles, and "value", a cell of a table.
--

CREATE FUNCTION pgpool.report(since pg_catalog.interval DEFAULT '1 hour')
RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
-- (an interval that is compared has 360 days a year, and its epoch 365.25)
IF (extract(epoch FROM since) BETWEEN 1 AND 315576000) IS NOT TRUE THEN
	RAISE invalid_parameter_value USING MESSAGE = 'since is out of range',
		DETAIL = format('The interval is "%s", and must be between 1 second and 10 years.', coalesce(since::text, 'NULL')),
		HINT = 'Specify the duration of the time that the page shows.';
END IF;
RETURN (
WITH
clock AS (SELECT statement_timestamp() AS until, statement_timestamp() - since AS start),
sample AS (
	SELECT h.*, least(floor(60 * extract(epoch FROM sampled_at - start) / extract(epoch FROM since)), 59)::int4 AS bin
	FROM pgpool.history AS h, clock WHERE sampled_at > start
),
-- the pools with most checkouts
pool AS (
	SELECT p.*, row_number() OVER (ORDER BY arrivals DESC NULLS LAST, pool_id) AS n,
		format('%s (%s)', server, local_user)
			|| CASE WHEN database <> current_database() THEN ' in ' || database ELSE '' END AS name,
		arrivals, waited
	FROM pgpool.pools AS p LEFT JOIN (
		SELECT pool_id, sum(arrivals) AS arrivals, sum(waited) AS waited FROM sample GROUP BY pool_id) AS s USING (pool_id)
),
shown AS (
	SELECT *, replace(replace(replace(replace(name, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;') AS label
	FROM pool WHERE n <= 20 AND arrivals IS NOT NULL
),

-- waits by their length: classes of 3 elements of the histogram
class AS (
	SELECT * FROM (VALUES (0, 'under 1 ms'), (1, '1 to 8 ms'), (2, '8 to 65 ms'), (3, '65 to 520 ms'), (4, '0.5 to 4 s'),
		(5, 'over 4 s')) AS c (class, length)
),
waits AS (
	SELECT pool_id, bin, class, sum(waits) AS waits
	FROM sample, unnest(wait_histogram) WITH ORDINALITY AS u(waits, i),
		LATERAL (SELECT least(greatest(ceil((i - 11) / 3.0), 0), 5)::int4 AS class) AS c
	WHERE waits > 0 GROUP BY pool_id, bin, class
),
bin AS (
	SELECT pool_id, bin, max(peak_leased) AS leased, max(peak_waiting) AS waiting, max(total) AS total, max(max_total) AS max_total,
		sum(errors + timeouts + cancelled + failed + refused + unavailable + deadlocks + connects_failed) AS failures
	FROM sample GROUP BY pool_id, bin
),

-- In pictures a unit of x is a bin, and one of y a connection, an error or a class.
axis AS (
	SELECT string_agg(format('<text x="%s" y="224" text-anchor="middle">%s</text>', 64 + tenth * 9.5,
			to_char(start + since * tenth / 60, CASE WHEN since > interval '1 day' THEN 'DD HH24:MI' ELSE 'HH24:MI' END)), '')
		|| '</svg>' AS svg
	FROM clock, generate_series(0, 60, 10) AS tenth
),
picture AS (
	SELECT pool_id, format('<svg viewBox="-16 0 670 230" role="img" aria-labelledby="t%1$s d%1$s">'
			'<title id="t%1$s">%2$s</title><desc id="d%1$s">At most %3$s connections were leased and %4$s sessions waited.'
			' The table below has the numbers.</desc>'
			'<text x="58" y="14" text-anchor="end">%5$s</text><text x="58" y="113" text-anchor="end">0</text>'
			'<g transform="translate(64 110) scale(9.5 %6$s)"><line x2="60"/><line class="size" x2="60" y1="%7$s" y2="%7$s"/>',
			n, label, max(b.leased), max(b.waiting), top, -100.0 / top, max(b.max_total))
		|| string_agg(format('<rect class="leased" x="%1$s.05" width=".9" height="%2$s"/>'
			'<rect class="waiting" x="%1$s.05" y="%2$s" width=".9" height="%3$s"/>'
			'<line class="open" x1="%1$s.05" x2="%1$s.95" y1="%4$s" y2="%4$s"/>',
			bin, b.leased, b.waiting, b.total), '' ORDER BY bin) || '</g>' AS svg
	FROM shown JOIN bin AS b USING (pool_id),
		LATERAL (SELECT greatest(max(max_total), max(leased + waiting), max(total), 1) AS top
			FROM bin AS o WHERE o.pool_id = shown.pool_id) AS t
	GROUP BY pool_id, n, label, top
),
heat AS (
	SELECT pool_id, '<g transform="translate(64 210) scale(9.5 -13)">'
		|| string_agg(format('<rect class="leased" x="%s" y="%s" width="1" height="1" fill-opacity="%s"/>',
			bin, class, round((0.15 + 0.85 * ln(waits) / ln(most + 1))::numeric, 2)), '' ORDER BY bin, class) || '</g>' AS svg
	FROM (SELECT *, max(waits) OVER (PARTITION BY pool_id) AS most FROM waits) AS w GROUP BY pool_id
),
failure AS (
	SELECT format('<svg viewBox="-16 0 670 230" role="img" aria-labelledby="te de"><title id="te">Errors of all pools</title>'
			'<desc id="de">%1$s errors, at most %2$s at a time. The table below has the numbers.</desc>'
			'<text x="58" y="14" text-anchor="end">%2$s</text><text x="58" y="208" text-anchor="end">0</text>'
			'<g transform="translate(64 205) scale(9.5 %3$s)"><line x2="60"/>', sum(n), max(n), -195 / max(n))
		|| string_agg(format('<rect class="error" x="%s.05" width=".9" height="%s"/>', bin, n), '' ORDER BY bin) || '</g>' AS svg
	FROM (SELECT bin, sum(failures) AS n FROM bin GROUP BY bin) AS f WHERE n > 0
),

numbers AS (
	SELECT pool_id, json_agg(json_build_object(
		'From', to_char(start + since * tenth / 6, 'HH24:MI'), 'Checkouts', arrivals, 'Waited', s.waited,
		'Under 1 ms', coalesce(c0, 0), '1 to 8 ms', coalesce(c1, 0), '8 to 65 ms', coalesce(c2, 0),
		'65 to 520 ms', coalesce(c3, 0), '0.5 to 4 s', coalesce(c4, 0), 'Over 4 s', coalesce(c5, 0),
		'Most leased', leased, 'Most waiting', waiting, 'Open', total) ORDER BY tenth) AS rows
	FROM clock, (SELECT pool_id, bin / 10 AS tenth, sum(arrivals) AS arrivals, sum(waited) AS waited,
			max(peak_leased) AS leased, max(peak_waiting) AS waiting, max(total) AS total FROM sample GROUP BY 1, 2) AS s
		LEFT JOIN (SELECT pool_id, bin / 10 AS tenth,
			sum(waits) FILTER (WHERE class = 0) AS c0, sum(waits) FILTER (WHERE class = 1) AS c1,
			sum(waits) FILTER (WHERE class = 2) AS c2, sum(waits) FILTER (WHERE class = 3) AS c3,
			sum(waits) FILTER (WHERE class = 4) AS c4, sum(waits) FILTER (WHERE class = 5) AS c5
			FROM waits GROUP BY 1, 2) AS w USING (pool_id, tenth)
	GROUP BY pool_id
),
-- the sections of the page: heading, text, picture, and the rows of a table
section (place, title, note, svg, rows) AS (
	SELECT 1, 'Advice', 'What is wrong or could be better.', NULL, (SELECT json_agg(json_build_object(
			'Pool', coalesce(format('%s (%s)', server, local_user)
				|| CASE WHEN database <> current_database() THEN ' in ' || database ELSE '' END, 'all'),
			'Severity', severity, 'Finding', finding, 'Evidence', evidence, 'Suggestion', suggestion))
		FROM pgpool.advice(since))
	UNION ALL SELECT 2, 'Pools now', 'All pools of this server.', NULL, (SELECT json_agg(json_build_object(
			'Pool', name, 'State', state, 'Size', pool_size, 'Open', total, 'Leased', leased,
			'Free', idle + reset_pending, 'Waiting', waiters, 'Oldest wait, ms', round(oldest_wait)) ORDER BY n)
		FROM pool)
	UNION ALL SELECT 2 + n / 100.0, 'Pool ' || label, format('%s checkouts, of which %s waited.', arrivals, waited),
		picture.svg || coalesce(heat.svg, '') || (SELECT string_agg(format('<text x="58" y="%s" text-anchor="end">%s</text>',
			207 - class * 13, length), '') FROM class) || axis.svg, rows
	FROM axis, shown JOIN picture USING (pool_id) LEFT JOIN heat USING (pool_id) JOIN numbers USING (pool_id)
	UNION ALL SELECT 4, 'Waiting sessions', 'Who waits, and for what.', NULL, (SELECT json_agg(json_build_object(
			'Pool', server, 'Position', "position", 'Process', pid, 'User', user_name, 'Application', application_name,
			'Waits for', reason, 'Since, ms', round(1000 * extract(epoch FROM until - waiting_since)), 'Why', why)
			ORDER BY server, pool_id, "position")
		FROM pgpool.waiters, clock)
	UNION ALL SELECT 5, 'Holders', 'Who holds connections: the 100 oldest leases.', NULL, (SELECT json_agg(json_build_object(
			'Pool', server, 'Waiting', (SELECT count(*) FROM pgpool.waiters AS w WHERE w.pool_id = l.pool_id), 'Lease', lease,
			'Process', pid, 'User', user_name, 'Application', application_name, 'Until end of', scope, 'State', state,
			'Held, ms', round(1000 * extract(epoch FROM until - leased_at)), 'Why', why) ORDER BY leased_at)
		FROM (SELECT * FROM pgpool.leases ORDER BY leased_at LIMIT 100) AS l, clock)
	UNION ALL SELECT 6, 'Errors', 'Errors of statements, checkouts and attempts to connect.',
		(SELECT failure.svg || axis.svg FROM failure, axis), (SELECT json_agg(json_build_object(
			'Pool', name, 'Of statements', errors, 'Timeouts', timeouts, 'Cancelled', cancelled, 'Failed', failed,
			'Refused', refused, 'Unavailable', unavailable, 'Deadlocks', deadlocks, 'Failed connects', connects_failed,
			'Last error', last_error) ORDER BY n)
		FROM pool JOIN (SELECT pool_id, sum(errors) AS errors, sum(timeouts) AS timeouts, sum(cancelled) AS cancelled,
				sum(failed) AS failed, sum(refused) AS refused, sum(unavailable) AS unavailable, sum(deadlocks) AS deadlocks,
				sum(connects_failed) AS connects_failed
			FROM sample GROUP BY pool_id) AS s USING (pool_id)
		WHERE pool_id IN (SELECT pool_id FROM bin WHERE failures > 0))
),
cell AS (
	SELECT place, j, i, key, coalesce(
		replace(replace(replace(replace(raw, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;'), '') AS value
	FROM section, json_array_elements(rows) WITH ORDINALITY AS r(r, j), json_each_text(r) WITH ORDINALITY AS c(key, raw, i)
),
line AS (
	SELECT place, j, string_agg('<th scope="col">' || key || '</th>', '' ORDER BY i) AS head,
		string_agg(CASE WHEN i = 1 THEN '<th scope="row">' || value || '</th>'
			WHEN value ~ '^[0-9.]+$' THEN '<td class="number">' || value || '</td>'
			WHEN key = 'Suggestion' THEN '<td><code>' || value || '</code></td>'
			ELSE '<td>' || value || '</td>' END, '' ORDER BY i) AS cells
	FROM cell GROUP BY place, j
),
body AS (
	SELECT string_agg(format(E'<section>\n<h2>%1$s</h2>\n<p>%2$s</p>\n%3$s%4$s</section>\n', title, note, svg,
		CASE WHEN lines IS NULL THEN '<p>None.</p>' ELSE format('<div class="scroll"><table><caption>%s</caption><thead><tr>%s</tr></thead><tbody>%s</tbody></table></div>',
			title, head, lines) END), '' ORDER BY place) AS html
	FROM section LEFT JOIN (
		SELECT place, min(head) AS head, string_agg(E'\n<tr>' || cells || '</tr>', '' ORDER BY j) AS lines
		FROM line GROUP BY place) AS l USING (place)
)
SELECT format($html$<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Connection pools, %2$s</title>
<style>
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fff; --faint: #666; --rule: #ccc;
	--leased: #1f6fb2; --waiting: #e08a1e; --error: #b3261e; }
@media screen and (prefers-color-scheme: dark) {
	:root { --text: #e6e6e6; --back: #161616; --faint: #a6a6a6; --rule: #444;
		--leased: #62aef0; --waiting: #f0b35a; --error: #f2837c; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back);
	max-width: 70rem; margin: 1.5rem auto; padding: 0 1rem; }
svg { width: 100%%; max-width: 50rem; display: block; }
svg text { font-size: 10px; fill: var(--faint); }
svg line { stroke: var(--rule); vector-effect: non-scaling-stroke; }
svg .size { stroke: var(--text); stroke-dasharray: 4 3; }
svg .open { stroke: var(--text); stroke-width: 1.5; }
.leased { fill: var(--leased); }
.waiting { fill: var(--waiting); }
.error { fill: var(--error); }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .8em; background: var(--color); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
caption { text-align: left; color: var(--faint); }
th, td { text-align: left; vertical-align: top; padding: .2em .6em; border-bottom: 1px solid var(--rule); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
code { white-space: pre-wrap; }
@media print {
	:root { color-scheme: light; }
	body { max-width: none; margin: 0; }
	svg, tr { break-inside: avoid; }
	h2 { break-after: avoid; }
	.scroll { overflow: visible; }
	rect, .key::before { print-color-adjust: exact; }
}
</style>
</head>
<body>
<h1>Connection pools</h1>
<p>%2$s, the last %3$s. %4$s</p>
<p>Key: <span class="key" style="--color: var(--leased)">leased</span>
<span class="key" style="--color: var(--waiting)">waiting, on top</span>
<span class="key" style="--color: var(--text)">open at the end</span>.
The dashed line is the most that the pool opens. The lower rows are the waits by their length:
the stronger the color, the more.</p>
%1$s</body>
</html>$html$, html, to_char(until, 'YYYY-MM-DD HH24:MI:SS TZ'), since,
	CASE WHEN coalesce(current_setting('pgpool_ext.history_size', true), '0') = '0'
		THEN 'History is off, so nothing is known about the time before.' ELSE 'Times without a bar were idle.' END)
FROM body, clock
);
END
$$;
COMMENT ON FUNCTION pgpool.report(pg_catalog.interval) IS
'returns an HTML page about the last interval: pools, waits, sessions that wait and those that hold connections, errors, and advice';
