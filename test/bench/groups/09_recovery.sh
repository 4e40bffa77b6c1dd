# shellcheck shell=bash
#
# recovery after an outage of the remote server
#
# A remote server is down for some seconds, while twenty sessions request a row from it
# and repeat the request 20 ms after each error. Measured is the time at which the
# sessions receive their row, and the number of attempts to connect. The time starts
# when a program that tries every millisecond can connect; a session may be faster.
# PgBouncer pauses for server_login_retry (15 s by default) between two attempts, the
# pool for retry_min (100 ms), doubled up to retry_max (10 s).

remote2_port=
outage=3

# a remote server for this group, which can be stopped
start_second() {
  start_remote second "log_connections = off"
  remote2_port=$port
  stop_second
  as_user "$bindir/pg_ctl" start -w -D "$work/second" -o "-p $remote2_port" -l "$work/log/second.log" >/dev/null 2>&1 </dev/null
  start_bouncer "$remote2_port" remote_app
  second_bouncer=$bouncer_port
  start_bouncer "$remote2_port" remote_app 'server_login_retry = 1'
  second_bouncer_1s=$bouncer_port
  here "
    CREATE SERVER back FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (host '127.0.0.1', port '$remote2_port',
      dbname 'remote_db', sslmode 'disable', pool_size '8');
    CREATE USER MAPPING FOR CURRENT_USER SERVER back OPTIONS (user 'remote_app', password '$secret');
    CREATE SERVER back_1s FOREIGN DATA WRAPPER pgpool_fdw OPTIONS (base_server 'back', retry_max '1s');
    CREATE SERVER back_fdw FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '$remote2_port',
      dbname 'remote_db', sslmode 'disable');
    CREATE USER MAPPING FOR CURRENT_USER SERVER back_fdw OPTIONS (user 'remote_app', password '$secret');
    CREATE FOREIGN TABLE back_one (a int) SERVER back_fdw OPTIONS (schema_name 'public', table_name 'one')"
  psql_at "$remote2_port" remote_app remote_db -q -c "CREATE TABLE one AS SELECT 1 AS a"
}

stop_second() {
  as_user "$bindir/pg_ctl" stop -w -m fast -D "$work/second" >/dev/null 2>&1 </dev/null
}

# way_back HOW
way_back() {
  local query attempts back sessions conninfo
  conninfo="host=127.0.0.1 port=$remote2_port dbname=remote_db user=remote_app password=''$secret''"

  case $1 in
    pool) query="select a from pgpool.query('back', 'select 1') as t(a text)" ;;
    pool_1s) query="select a from pgpool.query('back_1s', 'select 1') as t(a text)" ;;
    dblink) query="select a from dblink(\$c\$${conninfo//\'\'/\'} sslmode=disable\$c\$, 'select 1') as t(a text)" ;;
    fdw) query="select a::text from back_one" ;;
    bouncer) query="select a from dblink('host=$work/s port=$second_bouncer dbname=remote_db user=remote_bouncer', 'select 1') as t(a text)" ;;
    bouncer_1s) query="select a from dblink('host=$work/s port=$second_bouncer_1s dbname=remote_db user=remote_bouncer', 'select 1') as t(a text)" ;;
  esac
  here "TRUNCATE recoveries" "$query" >/dev/null
  here "SELECT pgpool.reset_stats('${1/pool/back}')" >/dev/null 2>&1 || true
  stop_second
  as_user tee "$work/tmp/recover.sql" >/dev/null <<<"SELECT recover('$1', \$q\$$query\$q\$);"
  as_user "$bindir/pgbench" -n -h "$work/s" -p "$local_port" -U postgres -c 20 -j 2 -t 1 \
    -f "$work/tmp/recover.sql" bench >"$work/log/recover.log" 2>&1 </dev/null &
  sessions=$!
  sleep "$outage"
  "$work/client" until 60 "host=127.0.0.1 port=$remote2_port dbname=remote_db user=remote_app password='$secret' sslmode=disable" >"$work/log/back" &
  back=$!
  as_user "$bindir/pg_ctl" start -w -D "$work/second" -o "-p $remote2_port" -l "$work/log/second.log" >/dev/null 2>&1 </dev/null
  wait "$back"
  wait "$sessions"
  here "SELECT format(E'first %s\nhalf %s\nall %s\ncalls %s', round(1000 * extract(epoch FROM min(at)) - t),
      round((1000 * extract(epoch FROM percentile_disc(0.5) WITHIN GROUP (ORDER BY at)))::numeric - t),
      round(1000 * extract(epoch FROM max(at)) - t), sum(attempts))
    FROM recoveries, (VALUES (1000 * $(cat "$work/log/back"))) AS v(t) GROUP BY t"
  case $1 in
    pool*)
      attempts=$(here "SELECT sum(connects + connects_failed) FROM pgpool.stats WHERE server = '${1/pool/back}'")
      ;;
    dblink | fdw) attempts=$(here "SELECT sum(attempts) FROM recoveries") ;;
    bouncer)
      attempts=$(grep -cE 'new connection to server|connect failed|login failed' "$work/log/pgbouncer.$second_bouncer.log" || true)
      : >"$work/log/pgbouncer.$second_bouncer.log"
      ;;
    bouncer_1s)
      attempts=$(grep -cE 'new connection to server|connect failed|login failed' "$work/log/pgbouncer.$second_bouncer_1s.log" || true)
      : >"$work/log/pgbouncer.$second_bouncer_1s.log"
      ;;
  esac
  say "attempts $attempts"
}

group_9() {
  local ways=(back:pool back:pool_1s back:dblink back:fdw)

  if has pgbouncer; then
    ways+=(back:bouncer back:bouncer_1s)
  fi
  place free
  start_second
  measure "$long_rounds" "${ways[@]}"
  stop_second
}

report_9() {
  section "Recovery after an outage"
  grid "ms after the return of the remote server, 20 sessions" "first row=.first" "half of the sessions=.half" "all=.all" \
    "attempts to connect=.attempts" "calls=.calls"
  line "pgpool_ext" free:back:pool
  line "pgpool_ext, retry_max 1s" free:back:pool_1s
  line "dblink one-shot" free:back:dblink
  line "postgres_fdw" free:back:fdw
  line "dblink to PgBouncer" free:back:bouncer
  line "dblink to PgBouncer, server_login_retry 1" free:back:bouncer_1s
  note "the remote server is down for $outage s; a negative time means that a session connected before the program that measures the return"
  note "attempts: all connections that were requested, including those that succeeded"
}
