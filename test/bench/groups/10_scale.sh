# shellcheck shell=bash
#
# memory and time by number of pools, connections and sessions
#
# Shared memory is allocated at start, for as many pools, connections and sessions as
# the settings allow. The size of each one is calculated from servers with different
# settings, and verified with a large server. A server with 100 pools in use shows the
# private memory and the times.

# server_with NAME CONNECTIONS POOLS SESSIONS: sets scale_port, scale_bytes
server_with() {
  start_server "$1" "shared_preload_libraries = 'pgpool_ext'" "pgpool_ext.max_connections = $2" \
    "pgpool_ext.max_pools = $3" "max_connections = $4" "log_connections = off" "max_prepared_transactions = 0" \
    >/dev/null
  scale_port=$port
  scale_bytes=$(psql_at "$scale_port" postgres postgres -Atq \
    -c "SELECT allocated_size FROM pg_shmem_allocations WHERE name = 'pgpool_ext'")
}

stop_scale() {
  as_user "$bindir/pg_ctl" stop -w -m immediate -D "$work/$1" >/dev/null 2>&1 </dev/null
  rm -rf "${work:?}/$1"
}

# way_sizes: bytes of one of each
way_sizes() {
  local base per_connection per_pool per_session

  server_with small 100 100 100
  base=$scale_bytes
  stop_scale small
  server_with small 10100 100 100
  per_connection=$(((scale_bytes - base) / 10000))
  stop_scale small
  server_with small 100 10100 100
  per_pool=$(((scale_bytes - base) / 10000))
  stop_scale small
  server_with small 100 100 1100
  per_session=$(((scale_bytes - base) / 1000))
  stop_scale small
  say "connection $per_connection"
  say "pool $per_pool"
  say "session $per_session"
  say "rest $((base - 100 * per_connection - 100 * per_pool - 100 * per_session))"
}

# figure_of KEY: the sample of way_sizes
figure_of() {
  awk -F '\t' -v name="free:sizes.$1" '$2 == name { v = $4 } END { print v }' "$samples"
}

# paper CONNECTIONS POOLS SESSIONS: calculated size in MB
paper() {
  awk -v c="$(figure_of connection)" -v p="$(figure_of pool)" -v s="$(figure_of session)" \
    -v r="$(figure_of rest)" -v nc="$1" -v np="$2" -v ns="$3" \
    'BEGIN { printf "%.1f\n", (c * nc + p * np + s * ns + r) / 1048576 }'
}

# way_paper: calculated size for 10,000 sessions and 100 servers of 8 connections, and by default
way_paper() {
  say "large $(paper 800 100 10000)"
  say "default $(paper 100 256 100)"
}

# way_large: MB that a server of that size allocates
way_large() {
  server_with large 800 100 10000
  say "taken $(awk -v b="$scale_bytes" 'BEGIN { printf "%.1f", b / 1048576 }')"
  stop_scale large
}

# own_kb PID: private memory
own_kb() {
  awk '$1 == "Pss_Anon:" { print $2 }' "/proc/$1/smaps_rollup"
}

# way_used SERVERS CONNECTIONS: a session opens CONNECTIONS in each of SERVERS pools; time
# and memory of the session and of the worker
way_used() {
  local servers=$1 each=$2 pid worker before worker_before cpu

  start_server used "shared_preload_libraries = 'pgpool_ext'" \
    "pgpool_ext.max_connections = $((servers * each))" "pgpool_ext.max_pools = $servers" \
    "max_connections = 100" "max_files_per_process = 4000" "log_connections = off" >/dev/null
  scale_port=$port
  psql_at "$scale_port" postgres postgres -q >/dev/null <<SQL
CREATE EXTENSION pgpool_ext;
SELECT format('CREATE SERVER s%1\$s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host ''127.0.0.1'',
    port ''$remote_port'', dbname ''remote_db'', sslmode ''disable'', pool_size ''$each'');
  CREATE USER MAPPING FOR postgres SERVER s%1\$s OPTIONS (user ''remote_app'', password ''$secret'')', i)
  FROM generate_series(1, $servers) AS i \gexec
SQL
  worker=$(psql_at "$scale_port" postgres postgres -Atq -c "SELECT pid FROM pgpool.workers")
  worker_before=$(own_kb "$worker")
  cpu=$(process_cpu "$worker")
  coproc session { as_user "$bindir/psql" -X -Atq -v ON_ERROR_STOP=1 -h "$work/s" -p "$scale_port" -U postgres postgres 2>&1; }
  echo "SELECT pg_backend_pid(); SELECT count(*) FROM pg_class;" >&"${session[1]}"
  read -r pid <&"${session[0]}"
  read -r _ <&"${session[0]}"
  before=$(own_kb "$pid")
  echo "SELECT round(extract(epoch FROM clock_timestamp()) * 1000); SELECT sum(pgpool.prewarm('s' || i, $each, '60 s')) FROM generate_series(1, $servers) AS i; SELECT round(extract(epoch FROM clock_timestamp()) * 1000);" >&"${session[1]}"
  local start opened end
  read -r start <&"${session[0]}"
  read -r opened <&"${session[0]}"
  read -r end <&"${session[0]}"
  if [ "$opened" != $((servers * each)) ]; then
    say "$opened connections instead of $((servers * each))" >&2
    return 1
  fi
  say "worker_kb $(awk -v a="$worker_before" -v b="$(own_kb "$worker")" -v n="$opened" 'BEGIN { printf "%.2f", (b - a) / n }')"
  say "worker_ms $(awk -v ns="$(($(process_cpu "$worker") - cpu))" -v n="$opened" 'BEGIN { printf "%.3f", ns / 1e6 / n }')"
  say "open_ms $(awk -v t="$((end - start))" -v n="$opened" 'BEGIN { printf "%.2f", t / n }')"
  say "connections $opened"
  echo "SELECT sum(pgpool.exec('s' || i, 'select 1')) FROM generate_series(1, $servers) AS i;" >&"${session[1]}"
  read -r _ <&"${session[0]}"
  say "session_kb $(awk -v a="$before" -v b="$(own_kb "$pid")" -v n="$servers" 'BEGIN { printf "%.2f", (b - a) / n }')"
  # the idle worker
  cpu=$(process_cpu "$worker")
  sleep "$((quick ? 1 : 5))"
  say "idle_cpu $(awk -v ns="$(($(process_cpu "$worker") - cpu))" -v s="$((quick ? 1 : 5))" 'BEGIN { printf "%.3f", ns / 1e6 / s }')"
  # the time to read a view
  echo "SELECT round(extract(epoch FROM clock_timestamp()) * 1e6); SELECT count(*) FROM pgpool.connections; SELECT round(extract(epoch FROM clock_timestamp()) * 1e6);" >&"${session[1]}"
  read -r start <&"${session[0]}"
  read -r _ <&"${session[0]}"
  read -r end <&"${session[0]}"
  say "view_ms $(awk -v t="$((end - start))" 'BEGIN { printf "%.2f", t / 1000 }')"
  echo '\q' >&"${session[1]}"
  stop_scale used
}

group_10() {
  place free
  measure 1 sizes
  measure 1 paper large
  if [ "$quick" = 1 ]; then
    measure 1 used:100:1
  else
    measure 1 used:100:8
  fi
}

report_10() {
  local used="free:used:100:8"

  [ "$quick" = 0 ] || used="free:used:100:1"
  section "Memory and many pools"
  ratio "shared memory for 10,000 sessions and 100 servers of 8 connections, MB: allocated / calculated" free:large.taken free:paper.large -
  figure free:sizes.connection bytes "shared memory per connection (pgpool_ext.max_connections)"
  figure free:sizes.pool bytes "shared memory per pool (pgpool_ext.max_pools)"
  figure free:sizes.session bytes "shared memory per session (max_connections)"
  figure free:sizes.rest bytes "remaining shared memory, including 100 distributed locks"
  figure free:paper.default MB "calculated, by default: 100 connections, 256 pools, 100 sessions"
  figure free:paper.large MB "calculated, 10,000 sessions and 100 servers of 8 connections"
  figure free:large.taken MB "allocated by a server with these settings"
  figure "$used.connections" connections "connections opened in 100 pools"
  figure "$used.open_ms" ms "time to open a connection"
  figure "$used.worker_ms" ms "CPU time of the worker per connection"
  figure "$used.worker_kb" kB "memory of the worker per connection"
  figure "$used.session_kb" kB "memory of a session per server that it uses"
  figure "$used.idle_cpu" ms/s "CPU time of the worker when all are idle"
  figure "$used.view_ms" ms "time to read view connections"
  note "each pool also has an LWLock of 128 bytes"
  note "10,000 sessions that use 100 servers need up to 1,000,000 remote backends without pools, and 800 with pools of 8"
}
