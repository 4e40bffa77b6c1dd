# shellcheck shell=bash
#
# large pools, many pools, and a pool that grows
#
# A session calls on pools of 1, 60 and 400 open connections, near and behind a proxy that
# passes everything on a millisecond late. Another one calls on 200 pools in turn.
# 60 sessions call on eight connections of a server with the default settings, and of one
# with room for 10,000 connections and 5,000 pools, a thousand of which are in use.
# A pool with five open connections receives 30 calls of 2 ms at the same time, while a
# connect takes a second.

growth_psql() {
  psql_at "$growth_port" postgres postgres -Atq "$@"
}

# growth_servers: the server of this group, the proxy, and the pools
growth_servers() {
  start_server growth "shared_preload_libraries = 'pgpool_ext'" "pgpool_ext.max_connections = 1000" \
    "log_connections = off" >/dev/null
  growth_port=$port
  as_user perl -I"$top/test/perl" -MPgpxProxy -e '
    $| = 1; my $proxy = PgpxProxy->new(shift); $proxy->command("delay 1");
    print $proxy->port, "\n"; sleep;' "$remote_port" >"$work/log/proxy.port" &
  proxy_pid=$!
  while [ ! -s "$work/log/proxy.port" ]; do sleep 0.1; done
  growth_psql -q -f "$bench/sql/growth.sql"
  growth_psql -q >/dev/null <<SQL
SELECT format('CREATE SERVER %s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host ''127.0.0.1'', port ''%s'',
    dbname ''remote_db'', sslmode ''disable'', pool_size ''%s'', options ''%s'');
  CREATE USER MAPPING FOR postgres SERVER %1\$s OPTIONS (user ''remote_app'', password ''$secret'')',
  name, port, size, options)
FROM (SELECT place || size, CASE place WHEN 'near' THEN $remote_port ELSE $(cat "$work/log/proxy.port") END, size, ''
    FROM unnest(ARRAY['near', 'far']) AS place, unnest(ARRAY[1, 60, 400]) AS size
  UNION ALL SELECT 'grows', $remote_port, 30, '-c post_auth_delay=1') AS pool(name, port, size, options) \gexec
SELECT format('CREATE SERVER one%s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server ''near1'', pool_size ''1'')', i)
FROM generate_series(1, 200) AS i \gexec
SQL
}

# way_large_pool POOL CONNECTIONS: us and CPU time of a call on a pool with so many connections
way_large_pool() {
  growth_psql -c "SELECT calls(ARRAY['$1$2'], $(turns $([ "$1" = far ] && echo 400 || echo 10000)))"
}

# large_pools near|far: measure these pools. All are open meanwhile, because the proxy takes
# longer with more connections.
large_pools() {
  growth_psql -c "SELECT pgpool.prewarm('$1' || n, n, '60 s') FROM unnest(ARRAY[1, 60, 400]) AS n" >/dev/null
  measure "$long_rounds" "large_pool:$1:1" "large_pool:$1:60" "large_pool:$1:400"
  growth_psql -c "SELECT pgpool.drain('$1' || n, '10 s') FROM unnest(ARRAY[1, 60, 400]) AS n" >/dev/null
}

# way_cycle pool|dblink: the same on 200 pools, or named connections, in turn
way_cycle() {
  case $1 in
    pool) growth_psql -c "SELECT calls(ARRAY(SELECT 'one' || i FROM generate_series(1, 200) AS i), $(turns 10000))" ;;
    dblink) growth_psql -c "SELECT dblink_calls($(remote_literal), 200, $(turns 10000))" ;;
  esac
}

# way_burst: connections that are opened needlessly for the burst, and ms of its last call
way_burst() {
  local before

  growth_psql -c "SELECT pgpool.reconnect('grows'); SELECT pgpool.prewarm('grows', 5, '60 s');
    SELECT calls('{grows}', 100)" >/dev/null
  before=$(growth_psql -c "SELECT connects_requested FROM pgpool.stats WHERE server = 'grows'")
  rm -f "$work"/tmp/burst.*
  as_user tee "$work/tmp/burst.pgbench" <<<"SELECT pgpool.exec('grows', 'select pg_sleep(0.002)');" >/dev/null
  as_user "$bindir/pgbench" -n -h "$work/s" -p "$growth_port" -U postgres -c 30 -j 2 -t 1 --log \
    --log-prefix="$work/tmp/burst" -f "$work/tmp/burst.pgbench" postgres >/dev/null 2>&1 </dev/null
  say "opened $(($(growth_psql -c "SELECT connects_requested FROM pgpool.stats WHERE server = 'grows'") - before))"
  say "last $(cat "$work"/tmp/burst.[0-9]* | awk '$3 > most { most = $3 } END { printf "%.1f", most / 1000 }')"
}

# wide_server: a server with large settings, and a thousand pools that have a connection
wide_server() {
  local default_port=$growth_port

  growth_psql -q -c "CREATE SERVER eight FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'near1', pool_size '8')"
  # the remote has room for one of the two servers
  growth_psql -q -c "SELECT pgpool.drain(NULL, '30 s')" -c "SELECT pgpool.resume()" >/dev/null
  start_server wide "shared_preload_libraries = 'pgpool_ext'" "pgpool_ext.max_connections = 10000" \
    "pgpool_ext.max_pools = 5000" "log_connections = off" >/dev/null
  wide_port=$port
  growth_port=$wide_port
  growth_psql -q -f "$bench/sql/growth.sql"
  growth_psql -q >/dev/null <<SQL
CREATE SERVER near1 FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$remote_port',
  dbname 'remote_db', sslmode 'disable', idle_timeout '0', max_lifetime '0');
CREATE USER MAPPING FOR postgres SERVER near1 OPTIONS (user 'remote_app', password '$secret');
SELECT format('CREATE SERVER %s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server ''near1'', pool_size ''%s'')', name, size)
FROM (SELECT 'one' || i, 1 FROM generate_series(1, $(turns 1000)) AS i UNION ALL SELECT 'eight', 8) AS pool(name, size) \gexec
SELECT count(pgpool.exec('one' || i, 'select 1')) FROM generate_series(1, $(turns 1000)) AS i;
SQL
  growth_port=$default_port
}

# way_configured default|wide: calls per second of 60 sessions on a pool of eight connections
way_configured() {
  local at=$growth_port

  [ "$1" = default ] || at=$wide_port
  as_user tee "$work/tmp/eight.pgbench" <<<"SELECT pgpool.exec('eight', 'select 1');" >/dev/null
  as_user "$bindir/pgbench" -n -h "$work/s" -p "$at" -U postgres -c 60 -j 2 -T "$seconds" \
    -f "$work/tmp/eight.pgbench" postgres </dev/null 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p'
}

# way_idle_second: CPU time of the worker in an idle second, in us
way_idle_second() {
  psql_at "$wide_port" postgres postgres -Atq <<'SQL' | tail -n 1
SELECT pg_sleep(2);
SELECT cpu_us(array_agg(pid::text)) AS before FROM pgpool.workers \gset
SELECT pg_sleep(4);
SELECT round((cpu_us(array_agg(pid::text)) - :before) / 4, 1) FROM pgpool.workers;
SQL
}

# way_view NAME: ms to read this view
way_view() {
  psql_at "$wide_port" postgres postgres -Atq -c "SELECT view_ms('$1')"
}

group_12() {
  local growth_port wide_port proxy_pid

  place free
  growth_servers
  large_pools near
  large_pools far
  measure "$long_rounds" cycle:pool cycle:dblink burst
  kill "$proxy_pid" || true
  wide_server
  measure "$rounds" configured:default configured:wide
  measure "$long_rounds" idle_second
  measure "$long_rounds" view:pools view:connections view:leases view:waiters view:stats view:wait_histogram view:workers view:locks
  as_user "$bindir/pg_ctl" stop -w -m immediate -D "$work/wide" >/dev/null 2>&1 </dev/null
  rm -rf "${work:?}/wide"
  as_user "$bindir/pg_ctl" stop -w -m immediate -D "$work/growth" >/dev/null 2>&1 </dev/null
  rm -rf "${work:?}/growth"
}

report_12() {
  local at size

  section "Large, many and growing pools"
  for at in near far; do
    for size in 60 400; do
      ratio "a call on a pool of $size connections / of one, $at" "free:large_pool:$at:$size.us" "free:large_pool:$at:1.us" "<=1.2"
    done
  done
  ratio "a call on 200 pools in turn / on 200 named connections of dblink" free:cycle:pool.us free:cycle:dblink.us "<=1.1"
  limit "connections opened for 30 calls of 2 ms on five connections" free:burst.opened "<=2"
  figure free:burst.last ms "the last of these calls, while a connect takes a second"
  ratio "60 sessions on 8: large settings and a thousand pools / default settings" free:configured:wide free:configured:default ">=0.97"
  limit "us of CPU of an idle worker in a second, with these settings" free:idle_second "<=100"
  for at in pools connections leases waiters stats wait_histogram workers locks; do
    limit "ms to read view $at, with these settings" "free:view:$at" "<=20"
  done
  grid "us of a call" us=.us "CPU of session and worker=.cpu"
  for at in near far; do
    for size in 1 60 400; do
      line "pool of $size, $at" "free:large_pool:$at:$size"
    done
  done
  line "200 pools in turn" free:cycle:pool
  line "200 connections of dblink in turn" free:cycle:dblink
}
