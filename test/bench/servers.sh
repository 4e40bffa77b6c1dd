# shellcheck shell=bash
# The servers of the bench: the local one and the remote one, with SCRAM over TCP, and
# TLS for clients that request it; four PgBouncers; programs that are compiled for the
# bench.
#
# Sets peers: the available programs to compare with.

secret='secret of the remote'
peers=
bouncer_pids=()
bouncer_port=
bouncer='' bouncer_reset='' bouncer_tls='' bouncer_tls_reset=''

# remote_conninfo [SSLMODE]
remote_conninfo() {
  printf "host=127.0.0.1 port=%s dbname=remote_db user=remote_app password='%s' sslmode=%s" \
    "$remote_port" "$secret" "${1:-disable}"
}

# the same as an SQL literal
remote_literal() {
  printf "'%s'" "$(remote_conninfo "$@" | sed "s/'/''/g")"
}

bouncer_conninfo() {
  printf 'host=%s port=%s dbname=remote_db user=remote_bouncer' "$work/s" "$1"
}

# Programs for the bench. Before the private installation, whose pg_config finds no
# headers.
build_programs() {
  local share

  cc -O2 -Wall -I"$("$pg_config" --includedir)" -o "$work/client" \
    "$bench_source/client.c" -L"$("$pg_config" --libdir)" -lpq
  share=$("$pg_config" --sharedir)
  [ ! -f "$share/extension/plproxy.control" ] || peers+=' plproxy'
}

# without PEER REASON: do not measure this program
without() {
  peers=" ${peers# } "
  peers=${peers/ $1 / }
  say "going on without $1: $2"
}

# start_bouncer PORT_OF_REMOTE ROLE LINE ...: sets bouncer_port
start_bouncer() {
  local to=$1 role=$2 ini i
  shift 2

  bouncer_port=$(free_port)
  ini=$work/tmp/pgbouncer.$bouncer_port.ini
  as_user tee "$work/tmp/users" <<<'"remote_bouncer" ""' >/dev/null
  {
    cat <<INI
[databases]
remote_db = host=127.0.0.1 port=$to dbname=remote_db user=$role password='$secret'
[pgbouncer]
unix_socket_dir = $work/s
listen_port = $bouncer_port
auth_type = trust
auth_file = $work/tmp/users
pool_mode = transaction
default_pool_size = 8
max_client_conn = 2000
listen_backlog = 2000
logfile = $work/log/pgbouncer.$bouncer_port.log
pidfile = $work/tmp/pgbouncer.$bouncer_port.pid
ignore_startup_parameters = extra_float_digits,options
INI
    printf '%s\n' "$@"
  } | as_user tee "$ini" >/dev/null
  touch "$work/log/pgbouncer.$bouncer_port.log"
  chmod 666 "$work/log/pgbouncer.$bouncer_port.log"
  # not by as_user: its pid is needed
  set --
  if [ "$(id -u)" -eq 0 ]; then
    set -- setpriv "--reuid=$run_user" "--regid=$(id -g "$run_user")" --init-groups
  fi
  "$@" "$pgbouncer" -q "$ini" </dev/null >/dev/null 2>&1 &
  bouncer_pids+=($!)
  for ((i = 0; i < 100; i++)); do
    [ ! -S "$work/s/.s.PGSQL.$bouncer_port" ] || return 0
    sleep 0.1
  done
  return 1
}

stop_bouncers() {
  local pid

  for pid in "${bouncer_pids[@]}"; do
    kill "$pid" 2>/dev/null || true
  done
}

start_bouncers() {
  start_bouncer "$remote_port" remote_bouncer || return 1
  bouncer=$bouncer_port
  start_bouncer "$remote_port" remote_bouncer_reset 'server_reset_query = DISCARD ALL' \
    'server_reset_query_always = 1' || return 1
  bouncer_reset=$bouncer_port
  start_bouncer "$remote_port" remote_bouncer_tls 'server_tls_sslmode = require' || return 1
  bouncer_tls=$bouncer_port
  start_bouncer "$remote_port" remote_bouncer_tls_reset 'server_tls_sslmode = require' \
    'server_reset_query = DISCARD ALL' 'server_reset_query_always = 1' || return 1
  bouncer_tls_reset=$bouncer_port
}

start_servers() {
  ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
  make_certificate "$work/tls"
  start_remote remote "log_connections = off" "max_connections = 1200" \
    "max_prepared_transactions = 10" "ssl = on" \
    "ssl_cert_file = '$work/tls/server.crt'" "ssl_key_file = '$work/tls/server.key'"
  remote_port=$port
  psql_at "$remote_port" remote_app remote_db -q -v rows="$rows" -f "$bench/sql/remote.sql"
  PGPASSWORD=$secret as_user "$bindir/pgbench" -i -q -h 127.0.0.1 -p "$remote_port" \
    -U remote_app remote_db >"$work/log/remote.init.log" 2>&1
  psql_at "$remote_port" remote_super remote_db -q -v secret="$secret" <<'SQL'
SELECT format('CREATE ROLE %s LOGIN PASSWORD %L', 'remote_' || name, :'secret')
  FROM unnest(array['pool', 'never', 'foreign', 'tls', 'tls_never', 'each', 'bouncer', 'bouncer_reset',
    'bouncer_tls', 'bouncer_tls_reset']) AS name \gexec
GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC;
VACUUM FREEZE ANALYZE;
CHECKPOINT;
SQL

  if [ -n "$pgbouncer" ]; then
    if start_bouncers; then
      peers+=' pgbouncer'
    else
      bouncer='' bouncer_reset='' bouncer_tls='' bouncer_tls_reset=''
      say "going on without PgBouncer: it did not start"
    fi
  fi

  mapfile -t lines <"$top/test/pgpool_ext.conf"
  start_server local "${lines[@]}" "log_connections = off" "max_connections = 700" \
    "pgpool_ext.max_connections = 600" "log_min_messages = fatal"
  local_port=$port
  psql_at "$local_port" postgres postgres -q -c "CREATE DATABASE bench"
  sql_here servers
  sql_here loops
  start_server unsampled "${lines[@]}" "log_connections = off" "max_connections = 100" "log_min_messages = fatal" \
    "pgpool_ext.history_size = 0"
  unsampled_port=$port
  psql_at "$unsampled_port" postgres postgres -q -c "CREATE DATABASE bench"
  local_port=$unsampled_port sql_here servers
  # its connections do not count as those of the pool that is measured
  psql_at "$unsampled_port" postgres bench -q -c "ALTER USER MAPPING FOR CURRENT_USER SERVER p8 OPTIONS (SET user 'remote_app')"
  if has plproxy && ! sql_here plproxy 2>"$work/log/plproxy.err"; then
    without plproxy "$(tail -n 1 "$work/log/plproxy.err")"
  fi
  # here the one-shot calls of dblink run on pools
  psql_at "$local_port" postgres postgres -q -c "CREATE DATABASE bench_attached TEMPLATE bench"
  here_attached 'SELECT pgpool.attach_dblink()' >/dev/null
  here "SELECT pgpool.prewarm(name, size) FROM (VALUES ('p1', 1), ('p4', 4), ('p8', 8)) AS v(name, size)" >/dev/null
}

# sql_here FILE OPTION ...
sql_here() {
  local file=$1
  shift

  psql_at "$local_port" postgres bench -q -v host=127.0.0.1 -v port="$remote_port" \
    -v database=remote_db -v secret="$secret" -v sockets="$work/s" -v bouncer="$bouncer" \
    -v bouncer_reset="$bouncer_reset" -v bouncer_tls="$bouncer_tls" \
    -v bouncer_tls_reset="$bouncer_tls_reset" "$@" \
    -f "$bench/sql/$file.sql" >/dev/null
}

versions() {
  say "pgpool_ext $(git -C "$top" rev-parse --short HEAD 2>/dev/null || true)$(git -C "$top" diff --quiet HEAD -- src sql 2>/dev/null || echo ', changed')"
  here "SELECT 'PostgreSQL ' || current_setting('server_version') || '; ' ||
    (SELECT string_agg(extname || ' ' || extversion, ', ' ORDER BY extname <> 'pgpool_ext', extname)
     FROM pg_extension WHERE extname <> 'plpgsql')"
  say "libpq $("$work/client" version); $(cc --version | head -n 1)"
  if has pgbouncer; then
    say "$("$pgbouncer" --version | head -n 1)"
  fi
  say "all servers and clients on one machine; SCRAM over TCP on the loopback, without TLS unless stated otherwise"
  say "$(nproc) processors$(sed -n 's/^model name[[:space:]]*: /, /p' /proc/cpuinfo 2>/dev/null | head -n 1), $(uname -s) $(uname -r | cut -d - -f 1)"
  say "$rounds rounds, $seconds s for each run of many sessions; load average before: $(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null || echo unknown)"
}
