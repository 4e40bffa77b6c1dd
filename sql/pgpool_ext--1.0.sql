/* sql/pgpool_ext--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pgpool_ext" to load this file. \quit

-- The schema is a member of the extension: it must not exist before, so that
-- nobody else can have put anything into it, and it goes with the extension.
CREATE SCHEMA pgpool;
GRANT USAGE ON SCHEMA pgpool TO PUBLIC;
COMMENT ON SCHEMA pgpool IS 'connection pools for outbound connections (pgpool_ext)';

--
-- The foreign-data wrapper: a server of it is a pool
--

CREATE FUNCTION pgpool.pgpool_fdw_validator(pg_catalog.text[], pg_catalog.oid)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_fdw_validator'
LANGUAGE C STRICT;
COMMENT ON FUNCTION pgpool.pgpool_fdw_validator(pg_catalog.text[], pg_catalog.oid) IS
'checks the options of servers and user mappings of pgpool_fdw';

CREATE FOREIGN DATA WRAPPER pgpool_fdw
VALIDATOR pgpool.pgpool_fdw_validator;
COMMENT ON FOREIGN DATA WRAPPER pgpool_fdw IS
'servers that are reached through pools of pgpool_ext';

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
'leases a connection to a server until checkin or the end of the session; timeout 0 does not wait, NULL takes the default';

CREATE FUNCTION pgpool.checkout_xact(
	pool pg_catalog.text,
	timeout pg_catalog.interval DEFAULT NULL,
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_checkout_xact'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.checkout_xact(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
'leases a connection to a server until the end of the local transaction or of the subtransaction that took it; the remote does not commit with the local transaction';

CREATE FUNCTION pgpool.try_checkout(
	pool pg_catalog.text,
	why pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_try_checkout'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.try_checkout(pg_catalog.text, pg_catalog.text) IS
'leases a connection to a server if one is free now, else returns NULL';

CREATE FUNCTION pgpool.checkin(lease pg_catalog.int8)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_checkin'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.checkin(pg_catalog.int8) IS
'returns a lease; a remote transaction that is open on it is rolled back with a warning';

CREATE FUNCTION pgpool.discard(lease pg_catalog.int8)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME', 'pgpx_discard'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.discard(pg_catalog.int8) IS
'ends a lease and closes its connection instead of keeping it';

CREATE FUNCTION pgpool.checkin_all()
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME', 'pgpx_checkin_all'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION pgpool.checkin_all() IS
'returns all leases of this session and tells how many they were';

--
-- SQL on a lease, or on a pool: checkout, run and checkin in one call.
-- VARIADIC text[] serves untyped literals and untyped parameters of drivers,
-- VARIADIC "any" typed values.
--

CREATE FUNCTION pgpool.query(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query_lease'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.int8, pg_catalog.text, pg_catalog.text[]) IS
'runs one statement on a lease and returns its rows';

CREATE FUNCTION pgpool.query(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params "any")
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query_lease_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.int8, pg_catalog.text, "any") IS
'runs one statement with parameters of any types on a lease and returns its rows';

CREATE FUNCTION pgpool.query(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query_pool'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.text, pg_catalog.text, pg_catalog.text[]) IS
'runs one statement on a connection to a server, leased for this call, and returns its rows';

CREATE FUNCTION pgpool.query(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params "any")
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'pgpx_query_pool_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1000;
COMMENT ON FUNCTION pgpool.query(pg_catalog.text, pg_catalog.text, "any") IS
'runs one statement with parameters of any types on a connection to a server, leased for this call, and returns its rows';

CREATE FUNCTION pgpool.exec(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_lease'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.int8, pg_catalog.text, pg_catalog.text[]) IS
'runs statements on a lease, drops their rows and returns how many rows they affected or returned; without parameters there may be several statements';

CREATE FUNCTION pgpool.exec(
	lease pg_catalog.int8,
	sql pg_catalog.text,
	VARIADIC params "any")
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_lease_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.int8, pg_catalog.text, "any") IS
'runs one statement with parameters of any types on a lease, drops its rows and returns how many rows it affected or returned';

CREATE FUNCTION pgpool.exec(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params pg_catalog.text[] DEFAULT '{}')
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_pool'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.text, pg_catalog.text, pg_catalog.text[]) IS
'runs statements on a connection to a server, leased for this call, drops their rows and returns how many rows they affected or returned; without parameters there may be several statements';

CREATE FUNCTION pgpool.exec(
	pool pg_catalog.text,
	sql pg_catalog.text,
	VARIADIC params "any")
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME', 'pgpx_exec_pool_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10000;
COMMENT ON FUNCTION pgpool.exec(pg_catalog.text, pg_catalog.text, "any") IS
'runs one statement with parameters of any types on a connection to a server, leased for this call, drops its rows and returns how many rows it affected or returned';
