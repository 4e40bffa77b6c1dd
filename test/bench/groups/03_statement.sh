# shellcheck shell=bash
#
# a statement on a held connection
#
# Without TLS the session uses the socket of the remote server, with TLS the relay of
# the worker. All are measured twice: "apart", with the remote server on a processor of
# its own, and "together", with all processes on one processor.

way_select_lease() { here "SELECT held_lease('p1', 'select 1', $(turns 2000))"; }
way_select_asleep() { here "SET pgpool_ext.busy_poll = 0; SELECT held_lease('p1', 'select 1', $(turns 2000))"; }
way_select_exec() { here "SELECT held_exec('p1', 'select 1', $(turns 2000))"; }
way_select_exec_asleep() { here "SET pgpool_ext.busy_poll = 0; SELECT held_exec('p1', 'select 1', $(turns 2000))"; }
way_select_libpq() { client loop "$(turns 2000)" "$(remote_conninfo)" 'select 1'; }
way_select_libpqx() { client loopx "$(turns 2000)" "$(remote_conninfo)" 'select 1'; }
way_select_libpq_tls() { client loop "$(turns 2000)" "$(remote_conninfo require)" 'select 1'; }
way_select_bouncer() { client loop "$(turns 2000)" "$(bouncer_conninfo "$bouncer")" 'select 1'; }
way_select_bouncer_tls() { client loop "$(turns 2000)" "$(bouncer_conninfo "$bouncer_tls")" 'select 1'; }
way_select_dblink() { here "SELECT dblink_named('d', 'select 1', $(turns 2000))"; }
way_select_dblink_tls() { here "SELECT dblink_named('d_tls', 'select 1', $(turns 2000))"; }
way_select_dblink_bouncer() { here "SELECT dblink_named('d_bouncer', 'select 1', $(turns 2000))"; }
way_select_dblink_bouncer_tls() { here "SELECT dblink_named('d_bouncer_tls', 'select 1', $(turns 2000))"; }
way_select_proxy() { here "SELECT proxy_loop($(turns 2000))"; }
# way_select_fdw SERVER
way_select_fdw() { here "CALL fdw_each('one_$1', $([ "$1" = f_off ] && turns 40 || turns 1000), NULL)"; }
way_select_empty() { here "SELECT empty_select($(turns 5000))"; }
way_select_relay() { here "SELECT held_lease('p1_tls', 'select 1', $(turns 2000))"; }
way_select_relay_asleep() { here "SET pgpool_ext.busy_poll = 0; SELECT held_lease('p1_tls', 'select 1', $(turns 2000))"; }
way_select_relay_exec() { here "SELECT held_exec('p1_tls', 'select 1', $(turns 2000))"; }
way_hundred_lease() { here "SELECT held_lease('p1', 'select generate_series(1, 100)', $(turns 1000))"; }
way_hundred_dblink() { here "SELECT dblink_named('d', 'select generate_series(1, 100)', $(turns 1000))"; }

select_ways() {
  local ways=(select_lease select_asleep select_exec select_exec_asleep select_libpq select_libpqx
    select_dblink select_fdw:f select_empty)
  local tls=(select_relay select_relay_asleep select_relay_exec select_libpq_tls select_dblink_tls select_fdw:f_tls)

  if has plproxy; then
    ways+=(select_proxy)
  fi
  if has pgbouncer; then
    ways+=(select_bouncer select_dblink_bouncer)
    tls+=(select_bouncer_tls select_dblink_bouncer_tls)
  fi
  measure "$rounds" "${ways[@]}"
  measure "$rounds" "${tls[@]}"
  measure "$rounds" hundred_lease hundred_dblink
}

group_3() {
  here "SELECT pgpool.exec('p1_tls', 'select 1')" >/dev/null
  place apart
  select_ways
  measure "$rounds" select_fdw:f_off
  place together
  select_ways
}

report_3() {
  local at

  section "A statement on a held connection"
  ratio "select 1 on a lease / libpq loop in C, apart" apart:select_lease apart:select_libpq "<=1.10"
  ratio "select 1 on a lease / dblink named, apart" apart:select_lease apart:select_dblink "<=0.65"
  ratio "100 rows on a lease / dblink named, apart" apart:hundred_lease apart:hundred_dblink "<=1.0"
  ratio "TLS: exec on a lease, relay / libpq loop in C to PgBouncer, apart" \
    apart:select_relay_exec apart:select_bouncer_tls "<=1.0"
  ratio "TLS: query on a lease, relay / dblink named to PgBouncer, apart" \
    apart:select_relay apart:select_dblink_bouncer_tls "<=1.0"
  for at in apart together; do
    ratio "select 1 on a lease, busy_poll 0 / libpq loop in C, $at" "$at:select_asleep" "$at:select_libpq" -
    ratio "select 1 on a lease, busy_poll 0 / dblink named, $at" "$at:select_asleep" "$at:select_dblink" -
    against "select 1 on a lease, $at" "$at:select_lease" "$at:select_libpq" "$at:select_dblink" \
      "$at:select_dblink_bouncer" "$at:select_proxy" "$at:select_fdw:f"
    against "TLS: select 1 on a lease, relay, $at" "$at:select_relay" "$at:select_libpq_tls" "$at:select_dblink_tls" \
      "$at:select_dblink_bouncer_tls" "$at:select_fdw:f_tls"
    ratio "exec of select 1 on a lease / libpq loop in C, $at" "$at:select_exec" "$at:select_libpq" -
    ratio "exec, busy_poll 0 / libpq loop in C, $at" "$at:select_exec_asleep" "$at:select_libpq" -
  done
  ratio "100 rows on a lease / dblink named, together" together:hundred_lease together:hundred_dblink -
  for at in apart together; do
    figure "$at:select_lease" us "query on a lease, $at"
    figure "$at:select_asleep" us "query on a lease, busy_poll 0, $at"
    figure "$at:select_exec" us "exec on a lease, $at"
    figure "$at:select_exec_asleep" us "exec on a lease, busy_poll 0, $at"
    figure "$at:select_libpq" us "libpq loop in C, $at"
    figure "$at:select_libpqx" us "libpq loop in C, extended protocol, $at"
    figure "$at:select_bouncer" us "libpq loop in C to PgBouncer, $at"
    figure "$at:select_dblink" us "dblink named, $at"
    figure "$at:select_dblink_bouncer" us "dblink named to PgBouncer, $at"
    figure "$at:select_proxy" us "PL/Proxy, $at"
    figure "$at:select_fdw:f" us "postgres_fdw, a transaction per statement, $at"
    figure "$at:select_fdw:f_off" us "postgres_fdw, keep_connections off, a transaction per statement, $at"
    figure "$at:select_empty" us "SELECT INTO from a local function that returns one row, $at"
    figure "$at:select_relay" us "TLS: query on a lease, relay, $at"
    figure "$at:select_relay_asleep" us "TLS: query on a lease, relay, busy_poll 0, $at"
    figure "$at:select_relay_exec" us "TLS: exec on a lease, relay, $at"
    figure "$at:select_libpq_tls" us "TLS: libpq loop in C, $at"
    figure "$at:select_bouncer_tls" us "TLS: libpq loop in C to PgBouncer, $at"
    figure "$at:select_dblink_tls" us "TLS: dblink named, $at"
    figure "$at:select_dblink_bouncer_tls" us "TLS: dblink named to PgBouncer, $at"
    figure "$at:select_fdw:f_tls" us "TLS: postgres_fdw, a transaction per statement, $at"
    figure "$at:hundred_lease" us "100 rows on a lease, $at"
    figure "$at:hundred_dblink" us "100 rows, dblink named, $at"
  done
}
