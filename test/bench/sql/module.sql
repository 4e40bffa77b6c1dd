-- The functions of module.c; psql variable: module.
CREATE FUNCTION c_pairs(server text, n int) RETURNS float8 AS :'module', 'bench_pairs' LANGUAGE C;
CREATE FUNCTION c_advisory(n int) RETURNS float8 AS :'module', 'bench_advisory' LANGUAGE C;
CREATE FUNCTION c_nothing(n int) RETURNS float8 AS :'module', 'bench_nothing' LANGUAGE C;
CREATE FUNCTION latch_open() RETURNS bigint AS :'module', 'bench_latch_open' LANGUAGE C;
CREATE FUNCTION latch_answer(handle bigint, pid int, n int) RETURNS void
  AS :'module', 'bench_latch_answer' LANGUAGE C;
CREATE FUNCTION latch_ask(handle bigint, pid int, n int) RETURNS float8
  AS :'module', 'bench_latch_ask' LANGUAGE C;

CREATE FUNCTION queue_open(n int) RETURNS bigint AS :'module', 'bench_queue_open' LANGUAGE C;
CREATE FUNCTION queue_wait(handle bigint) RETURNS int AS :'module', 'bench_queue_wait' LANGUAGE C;
CREATE FUNCTION queue_next(handle bigint, slot int) RETURNS void AS :'module', 'bench_queue_next' LANGUAGE C;
CREATE FUNCTION queue_length(handle bigint) RETURNS int AS :'module', 'bench_queue_length' LANGUAGE C;

-- microseconds of a latch round trip; :me is the conninfo of this server
CREATE FUNCTION latch_round_trip(me text, n int) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
  handle bigint := latch_open();
  x text := dblink_connect('peer', me);
  peer int;
  us float8;
BEGIN
  SELECT pid INTO peer FROM dblink('peer', 'select pg_backend_pid()') AS t(pid int);
  x := dblink_send_query('peer', format('select latch_answer(%s, %s, %s)', handle, pg_backend_pid(), n));
  us := latch_ask(handle, peer, n);
  PERFORM * FROM dblink_get_result('peer') AS t(a text);
  x := dblink_disconnect('peer');
  RETURN us;
END $$;
