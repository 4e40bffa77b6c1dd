# shellcheck shell=bash
#
# many sessions on eight connections
#
# Each session reads a row by its key, as fast as it can.  Ours come to eight
# connections, those of PgBouncer too; dblink, postgres_fdw and PL/Proxy have one for
# each session.

# way_sessions HOW SESSIONS
way_sessions() {
  case $1 in
    pool) sessions sessions_pool "$2" remote_pool -D server="'p8'" ;;
    never) sessions sessions_pool "$2" remote_never -D server="'p8_never'" ;;
    dblink) sessions sessions_dblink "$2" remote_each -D server="'m'" ;;
    tls) sessions sessions_pool "$2" remote_tls -D server="'p8_tls'" ;;
    tls_never) sessions sessions_pool "$2" remote_tls_never -D server="'p8_tls_never'" ;;
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

# way_order SESSIONS: who is granted a connection, and who was passed meanwhile
way_order() {
  local pid answer

  as_user "$bindir/pgbench" -n -h "$work/s" -p "$local_port" -U postgres -c "$1" -j 2 \
    -T "$((6 + $1 / 50))" -D server="'p8'" -f "$bench/sql/sessions_pool.pgbench" bench \
    >"$work/log/order.log" 2>&1 </dev/null &
  pid=$!
  wait_for "(SELECT waiters > $1 / 2 FROM pgpool.pools WHERE server = 'p8')"
  answer=$(here "SELECT grants, passed FROM order_of_grants('p8', $(turns 1000))")
  wait "$pid"
  [ "${answer%|*}" -gt 0 ]
  say "grants ${answer%|*}"
  say "passed ${answer#*|}"
}

many="60 200 500"
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
    ways+=(sessions:bouncer_tls:60)
  fi
  measure "$rounds" "${ways[@]}"
  measure 1 order:60 order:200
}

tell_4() {
  local n w

  declare -A names=([pool]="pgpool_ext, 8 connections" [never]="pgpool_ext, reset never"
    [dblink]="dblink, one for each" [bouncer]="dblink to PgBouncer, 8, no reset"
    [bouncer_reset]="dblink to PgBouncer, 8, resets" [fdw]="postgres_fdw, one for each"
    [plproxy]="PL/Proxy, one for each"
    [tls]="TLS: pgpool_ext, 8, relay" [tls_never]="TLS: pgpool_ext, 8, relay, reset never"
    [bouncer_tls]="TLS: dblink to PgBouncer, 8, no reset" [libpq]="pgbench at the remote itself")
  section "Many sessions on eight connections"
  for n in 8 60 200 500; do
    grid "$n sessions" tps=.tps p50=.p50 p99=.p99 p99.9=.p999 max=.max Jain=.jain \
      "first to last, %=.uneven" "remote backends=.backends" "own MB=.own" "PSS, MB=.pss"
    for w in pool never dblink fdw plproxy bouncer_reset bouncer tls tls_never bouncer_tls libpq; do
      line "${names[$w]}" "free:sessions:$w:$n"
    done
  done
  note "memory of the remote backends: what is their own, and PSS, in which what they share with others is in shares"
  note "p50 to max: ms from question to row, the wait for a connection included; Jain's index of transactions per session"
  ratio "8 sessions on 8, reset always / dblink" free:sessions:pool:8.tps free:sessions:dblink:8.tps ">=1.1"
  ratio "8 sessions on 8, reset never / dblink" free:sessions:never:8.tps free:sessions:dblink:8.tps ">=1.1"
  ratio "60 sessions on 8 / a dblink connection each" free:sessions:pool:60.tps free:sessions:dblink:60.tps ">=1.0"
  ratio "60 sessions on 8, p99 / a dblink connection each" free:sessions:pool:60.p99 free:sessions:dblink:60.p99 "<=1.0"
  ratio "60 sessions on 8 / postgres_fdw" free:sessions:pool:60.tps free:sessions:fdw:60.tps ">=1.4"
  limit "60 sessions: remote backends" free:sessions:pool:60.backends "<=8"
  ratio "60 sessions on 8 / PgBouncer, both reset" free:sessions:pool:60.tps free:sessions:bouncer_reset:60.tps -
  ratio "60 sessions on 8 / PgBouncer, both without a reset" free:sessions:never:60.tps free:sessions:bouncer:60.tps -
  ratio "60 sessions on 8 by the relay / PgBouncer with TLS to the remote" free:sessions:tls:60.tps \
    free:sessions:bouncer_tls:60.tps ">=1.0"
  ratio "60 sessions on 8 by the relay / PgBouncer with TLS, both without a reset" free:sessions:tls_never:60.tps \
    free:sessions:bouncer_tls:60.tps -
  against "8 sessions on 8" free:sessions:pool:8.tps free:sessions:libpq:8.tps free:sessions:dblink:8.tps
  for n in 60 200 500; do
    against "$n sessions on 8" "free:sessions:pool:$n.tps" free:sessions:libpq:8.tps \
      "free:sessions:dblink:$n.tps" "free:sessions:fdw:$n.tps" "free:sessions:plproxy:$n.tps" "free:sessions:bouncer:$n.tps" \
      "free:sessions:bouncer_reset:$n.tps"
  done
  limit "200 sessions: from the first to the last in transactions, % of the mean" free:sessions:pool:200.uneven "<=10"
  for n in 60 200; do
    figure "free:order:$n.grants" grants "$n sessions: grants that were looked at"
    figure "free:order:$n.passed" grants "$n sessions: .. out of order"
    limit "$n sessions: grants out of order" "free:order:$n.passed" "<=0"
  done
  note "out of order: somebody was granted a connection while another stood before him in the queue"
}
