# shellcheck shell=bash
#
# many sessions on eight connections
#
# Each session reads a row by its key, without a pause. With pgpool_ext and PgBouncer
# all sessions share eight connections; with dblink, postgres_fdw and PL/Proxy each
# session has a connection of its own.

# way_predicted SIZE: the 99th percentile in ms of the waits of 60 sessions that hold a connection for
# 10 ms and do without one for 0 to 80 ms: predicted from the lease time and the number of leases, and measured
way_predicted() {
  here "ALTER SERVER p8_default OPTIONS (SET pool_size '$1')"
  here "SELECT pgpool.prewarm('p8_default', $1), pgpool.reset_stats('p8_default')" >/dev/null
  sessions sessions_pause 60 - >/dev/null
  here "SELECT 'predicted ' || round(p99_wait::numeric, 2) || E'\nmeasured ' || (
      SELECT round((2 ^ (n - 1) * (1 - (so_far - rank) / waits / 2) / 1000)::numeric, 2)
      FROM (SELECT n, waits, 0.99 * (hits + waited) AS rank, hits + sum(waits) OVER (ORDER BY n) AS so_far
        FROM unnest(wait_histogram) WITH ORDINALITY AS u(waits, n)) AS h
      WHERE so_far >= rank AND waits > 0 ORDER BY n LIMIT 1)
    FROM pgpool.stats, pgpool.predict_wait($1, 60, lease_time / checkouts, 40)
    WHERE server = 'p8_default' AND database = 'bench'"
}

# way_sessions HOW SESSIONS
way_sessions() {
  case $1 in
    pool) sessions sessions_pool "$2" remote_pool -D server="'p8'" ;;
    unpolled) PGOPTIONS='-c pgpool_ext.busy_poll=0' sessions sessions_pool "$2" remote_pool -D server="'p8'" ;;
    unsampled) session_port=$unsampled_port sessions sessions_pool "$2" - -D server="'p8'" ;;
    never) sessions sessions_pool "$2" remote_never -D server="'p8_never'" ;;
    dblink) sessions sessions_dblink "$2" remote_each -D server="'m'" ;;
    tls) sessions sessions_pool "$2" remote_tls -D server="'p8_tls'" ;;
    tls_never) sessions sessions_pool "$2" remote_tls_never -D server="'p8_tls_never'" ;;
    bouncer_tls_reset) sessions sessions_dblink "$2" remote_bouncer_tls_reset -D server="'d_bouncer_tls_reset'" ;;
    bouncer_tls) sessions sessions_dblink "$2" remote_bouncer_tls -D server="'d_bouncer_tls'" ;;
    fdw) sessions sessions_fdw "$2" remote_each ;;
    plproxy) sessions sessions_plproxy "$2" remote_each ;;
    bouncer) sessions sessions_dblink "$2" remote_bouncer -D server="'d_bouncer'" ;;
    bouncer_reset) sessions sessions_dblink "$2" remote_bouncer_reset -D server="'d_bouncer_reset'" ;;
    libpq)
      session_port=$remote_port session_user=remote_app session_base=remote_db \
        sessions sessions_floor "$2" -
      ;;
  esac
}

group_4() {
  local sixty=(sessions:pool:60 sessions:unsampled:60 sessions:unpolled:60 sessions:dblink:60 sessions:fdw:60)
  local tls=(sessions:tls:60 sessions:tls_never:60)

  if has plproxy; then
    sixty+=(sessions:plproxy:60)
  fi
  if has pgbouncer; then
    sixty+=(sessions:bouncer:60 sessions:bouncer_reset:60)
    tls+=(sessions:bouncer_tls_reset:60 sessions:bouncer_tls:60)
  fi
  place free
  measure sessions:pool:8 sessions:never:8 sessions:dblink:8 sessions:libpq:8
  measure "${sixty[@]}"
  measure sessions:pool:200
  measure predicted:8 predicted:10 predicted:12
  measure "${tls[@]}"
}

report_4() {
  local n w

  declare -A names=([pool]="pgpool_ext, 8 connections" [never]="pgpool_ext, reset never"
    [unpolled]="pgpool_ext, busy_poll 0" [unsampled]="pgpool_ext, without history"
    [dblink]="dblink, one per session" [bouncer]="dblink to PgBouncer, 8, no reset"
    [bouncer_reset]="dblink to PgBouncer, 8, resets" [fdw]="postgres_fdw, one per session"
    [plproxy]="PL/Proxy, one per session"
    [tls]="TLS: pgpool_ext, 8, relay" [tls_never]="TLS: pgpool_ext, 8, relay, reset never"
    [bouncer_tls_reset]="TLS: dblink to PgBouncer, 8, resets"
    [bouncer_tls]="TLS: dblink to PgBouncer, 8, no reset" [libpq]="pgbench on the remote server")
  section "Many sessions on eight connections"
  for n in 8 60 200; do
    grid "$n sessions" tps=.tps "CPU, us=.cpu" p50=.p50 p99=.p99 p99.9=.p999 max=.max Jain=.jain \
      "imbalance, %=.uneven" "remote backends=.backends" "private, MB=.own" "PSS, MB=.pss"
    for w in pool unsampled unpolled never dblink fdw plproxy bouncer_reset bouncer tls tls_never bouncer_tls_reset bouncer_tls libpq; do
      line "${names[$w]}" "free:sessions:$w:$n"
    done
  done
  note "private and PSS: memory of the remote backends; PSS includes a share of the pages that they share with others"
  note "CPU: of both servers and PgBouncer for each transaction, with the start of the sessions and without pgbench"
  note "p50 to max: ms of a transaction, including the wait for a connection"
  note "Jain: index of fairness, computed from the transactions of each session; imbalance: difference between the most and the fewest transactions of a session, in % of the mean"
  ratio "8 sessions on 8, reset always / dblink" free:sessions:pool:8.tps free:sessions:dblink:8.tps ">=1.1"
  ratio "8 sessions on 8, reset never / dblink" free:sessions:never:8.tps free:sessions:dblink:8.tps ">=1.1"
  ratio "60 sessions on 8 / dblink with 60 connections" free:sessions:pool:60.tps free:sessions:dblink:60.tps ">=1.0"
  ratio "60 sessions on 8, p99 / dblink with 60 connections" free:sessions:pool:60.p99 free:sessions:dblink:60.p99 "<=1.0"
  ratio "60 sessions on 8 / postgres_fdw with 60 connections" free:sessions:pool:60.tps free:sessions:fdw:60.tps ">=1.4"
  ratio "60 sessions on 8, busy_poll 100 us / busy_poll 0" free:sessions:pool:60.tps free:sessions:unpolled:60.tps ">=0.97"
  ratio "60 sessions on 8, with history / without" free:sessions:pool:60.tps free:sessions:unsampled:60.tps ">=0.97"
  grid "p99 of the waits, ms: 60 sessions, leases of 10 ms, pauses of 40 ms" predicted=.predicted measured=.measured
  for n in 8 10 12; do
    line "pool_size $n" "free:predicted:$n"
  done
  limit "60 sessions: remote backends" free:sessions:pool:60.backends "<=8"
  ratio "60 sessions on 8 / PgBouncer, both with resets" free:sessions:pool:60.tps free:sessions:bouncer_reset:60.tps -
  ratio "60 sessions on 8 / PgBouncer without resets" free:sessions:pool:60.tps free:sessions:bouncer:60.tps -
  ratio "TLS: 60 sessions on 8, relay / PgBouncer" free:sessions:tls:60.tps \
    free:sessions:bouncer_tls:60.tps ">=1.0"
  ratio "TLS: 60 sessions on 8, relay / PgBouncer, both with resets" free:sessions:tls:60.tps \
    free:sessions:bouncer_tls_reset:60.tps ">=1.0"
  ratio "TLS: 60 sessions on 8, relay / PgBouncer, both without resets" free:sessions:tls_never:60.tps \
    free:sessions:bouncer_tls:60.tps ">=1.0"
  against "8 sessions on 8" free:sessions:pool:8.tps free:sessions:libpq:8.tps free:sessions:dblink:8.tps
  against "60 sessions on 8" free:sessions:pool:60.tps free:sessions:libpq:8.tps free:sessions:dblink:60.tps \
    free:sessions:fdw:60.tps free:sessions:plproxy:60.tps free:sessions:bouncer:60.tps free:sessions:bouncer_reset:60.tps
  limit "200 sessions: imbalance, % of the mean" free:sessions:pool:200.uneven "<=10"
}
