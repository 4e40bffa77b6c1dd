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

CREATE FUNCTION pgpool.check_invariants()
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_check_invariants'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE ALL ON FUNCTION pgpool.check_invariants() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgpool.check_invariants() TO pg_monitor;
COMMENT ON FUNCTION pgpool.check_invariants() IS
'verifies the shared state and reports any inconsistency as an error; intended for testing and troubleshooting';
