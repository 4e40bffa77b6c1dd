-- A pool of connections from a server to itself.
\getenv host PGHOST
\getenv port PGPORT
\getenv user PGUSER
\getenv password PGPASSWORD
CREATE EXTENSION pgpool_ext;
CREATE SERVER self FOREIGN DATA WRAPPER pgpool_fdw
	OPTIONS (host :'host', port :'port', dbname 'postgres', pool_size '1');
\if :{?password}
CREATE USER MAPPING FOR CURRENT_USER SERVER self OPTIONS (user :'user', password :'password');
\else
CREATE USER MAPPING FOR CURRENT_USER SERVER self OPTIONS (user :'user');
\endif
SELECT * FROM pgpool.query('self', 'select $1 + 1', 41) AS t (answer int);
SELECT server, leased, waiters FROM pgpool.pools;
DO $$
BEGIN
	ASSERT (SELECT sum(q) FROM generate_series(1, 3), pgpool.query_as(0, 'self', 'select 1') AS q) = 3;
	ASSERT (SELECT connects FROM pgpool.stats) = 1, 'one connection serves all';
	PERFORM pgpool.check_invariants();
END
$$;
DROP EXTENSION pgpool_ext CASCADE;
