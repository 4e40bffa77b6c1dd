# shellcheck shell=bash
#
# CPU time of the worker over TLS
#
# A query over TLS, through the relay and through PgBouncer.

worker_pid() {
  here "SELECT pid FROM pgpool.workers"
}

# way_relayed HOW: a query over TLS on a held lease, on a pool with reset, through PgBouncer
# without and with reset, through dblink. Prints the CPU time of the worker or of
# PgBouncer, that of all processes, and the latency. "_asleep": without busy polling.
way_relayed() {
  local pid how=dblink server n poll=100

  n=$(turns 1500)
  pid=$(worker_pid)
  case $1 in
    held*) how=held server=p1_tls ;;
    each*) how=each server=p1_tls ;;
    bouncer) server=d_bouncer_tls pid=${bouncer_pids[2]} ;;
    bouncer_reset) server=d_bouncer_tls_reset pid=${bouncer_pids[3]} ;;
    dblink) server=d_tls ;;
  esac
  [[ $1 != *_asleep ]] || poll=0
  here "ALTER SYSTEM SET pgpool_ext.busy_poll = $poll" -c "SELECT pg_reload_conf()" >/dev/null
  # the worker reads its configuration file while the loop warms up
  wait_for "current_setting('pgpool_ext.busy_poll') = '$poll'"
  here "SELECT * FROM cpu_of_queries('$how', '$server', $pid, $n)" | tr '|' ' '
}

group_6() {
  local bouncer_relayed=()

  has pgbouncer && bouncer_relayed=(relayed:bouncer relayed:bouncer_reset)
  place free
  measure relayed:held relayed:held_asleep relayed:each relayed:each_asleep relayed:dblink \
    "${bouncer_relayed[@]}"
  place together
  measure relayed:held relayed:held_asleep relayed:each "${bouncer_relayed[@]}"
  here "ALTER SYSTEM RESET pgpool_ext.busy_poll" -c "SELECT pg_reload_conf()" >/dev/null
}

report_6() {
  section "CPU time of the worker over TLS"
  ratio "TLS: CPU time of a query on a lease, worker / PgBouncer" \
    free:relayed:held.cpu free:relayed:bouncer.cpu "<=1.0"
  ratio "TLS: CPU time, busy_poll 0, worker / PgBouncer" free:relayed:held_asleep.cpu free:relayed:bouncer.cpu "<=1.0"
  ratio "TLS: CPU time of a query on a lease, worker / PgBouncer, together" \
    together:relayed:held.cpu together:relayed:bouncer.cpu "<=1.0"
  ratio "TLS: CPU time, busy_poll 0, worker / PgBouncer, together" \
    together:relayed:held_asleep.cpu together:relayed:bouncer.cpu "<=1.0"
  ratio "TLS: latency of a query on a lease / PgBouncer" free:relayed:held.us free:relayed:bouncer.us "<=0.9"
  ratio "TLS: latency, busy_poll 0 / PgBouncer" free:relayed:held_asleep.us free:relayed:bouncer.us -
  ratio "TLS: latency of a query on a pool with reset / on a lease" \
    free:relayed:each.us free:relayed:held.us "<=1.5"
  ratio "TLS: latency of a query on a pool / PgBouncer, both with resets" \
    free:relayed:each.us free:relayed:bouncer_reset.us "<=0.9"
  grid "a query over TLS, one session" "CPU of worker or PgBouncer, us=.cpu" "CPU of all processes, us=.all" \
    "sleeps of worker or PgBouncer=.sleeps" "latency, us=.us"
  line "on a lease" free:relayed:held
  line "on a lease, busy_poll 0" free:relayed:held_asleep
  line "on a pool, reset always" free:relayed:each
  line "on a pool, reset always, busy_poll 0" free:relayed:each_asleep
  line "dblink named to PgBouncer, no reset" free:relayed:bouncer
  line "dblink named to PgBouncer, resets" free:relayed:bouncer_reset
  line "dblink named, without a proxy" free:relayed:dblink
  line "on a lease, together" together:relayed:held
  line "on a lease, busy_poll 0, together" together:relayed:held_asleep
  line "on a pool, reset always, together" together:relayed:each
  line "dblink named to PgBouncer, no reset, together" together:relayed:bouncer
  line "dblink named to PgBouncer, resets, together" together:relayed:bouncer_reset
}
