# shellcheck shell=bash
#
# many sessions on eight connections
#
# Each session reads a row by its key, without a pause. With pgpool_ext and PgBouncer
# all sessions share eight connections; with dblink, postgres_fdw and PL/Proxy each
# session has a connection of its own.

# way_sessions HOW SESSIONS
way_sessions() {
  case $1 in
    pool | polled) sessions sessions_pool "$2" remote_pool -D server="'p8'" ;;
    unpolled) PGOPTIONS='-c pgpool_ext.busy_poll=0' sessions sessions_pool "$2" remote_pool -D server="'p8'" ;;
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

many="60 200"
sessions_peers() {
  local ways=(dblink)

  has pgbouncer && ways+=(bouncer bouncer_reset)
  printf '%s\n' "${ways[@]}"
}

group_4() {
  local n peer few=() ways=()

  place free
  [ "$quick" = 0 ] || many=60
  mapfile -t peers_here < <(sessions_peers)
  few=(sessions:pool:8 sessions:never:8 sessions:dblink:8 sessions:libpq:8)
  measure "$long_rounds" "${few[@]}"
  for n in $many; do
    ways=("sessions:pool:$n")
    for peer in "${peers_here[@]}"; do
      [ "$peer" = bouncer_reset ] && [ "$n" != 60 ] && continue
      ways+=("sessions:$peer:$n")
    done
    if [ "$n" = 60 ]; then
      ways+=(sessions:never:60 sessions:fdw:60)
      has plproxy && ways+=(sessions:plproxy:60)
    fi
    measure "$long_rounds" "${ways[@]}"
  done
  ways=(sessions:tls:60 sessions:tls_never:60)
  if has pgbouncer; then
    ways+=(sessions:bouncer_tls_reset:60 sessions:bouncer_tls:60)
  fi
  measure "$rounds" "${ways[@]}"
  measure "$rounds" sessions:polled:60 sessions:unpolled:60
}

report_4() {
  local n w

  declare -A names=([pool]="pgpool_ext, 8 connections" [never]="pgpool_ext, reset never" [polled]="pgpool_ext, busy_poll 100 us"
    [unpolled]="pgpool_ext, busy_poll 0"
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
    for w in pool polled unpolled never dblink fdw plproxy bouncer_reset bouncer tls tls_never bouncer_tls_reset bouncer_tls libpq; do
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
  ratio "60 sessions on 8, busy_poll 100 us / busy_poll 0" free:sessions:polled:60.tps free:sessions:unpolled:60.tps ">=0.97"
  limit "60 sessions: remote backends" free:sessions:pool:60.backends "<=8"
  ratio "60 sessions on 8 / PgBouncer, both with resets" free:sessions:pool:60.tps free:sessions:bouncer_reset:60.tps -
  ratio "60 sessions on 8 / PgBouncer, both without resets" free:sessions:never:60.tps free:sessions:bouncer:60.tps -
  ratio "TLS: 60 sessions on 8, relay / PgBouncer" free:sessions:tls:60.tps \
    free:sessions:bouncer_tls:60.tps ">=1.0"
  ratio "TLS: 60 sessions on 8, relay / PgBouncer, both with resets" free:sessions:tls:60.tps \
    free:sessions:bouncer_tls_reset:60.tps ">=1.0"
  ratio "TLS: 60 sessions on 8, relay / PgBouncer, both without resets" free:sessions:tls_never:60.tps \
    free:sessions:bouncer_tls:60.tps ">=1.0"
  against "8 sessions on 8" free:sessions:pool:8.tps free:sessions:libpq:8.tps free:sessions:dblink:8.tps
  for n in 60 200; do
    against "$n sessions on 8" "free:sessions:pool:$n.tps" free:sessions:libpq:8.tps \
      "free:sessions:dblink:$n.tps" "free:sessions:fdw:$n.tps" "free:sessions:plproxy:$n.tps" "free:sessions:bouncer:$n.tps" \
      "free:sessions:bouncer_reset:$n.tps"
  done
  limit "200 sessions: imbalance, % of the mean" free:sessions:pool:200.uneven "<=10"
}
