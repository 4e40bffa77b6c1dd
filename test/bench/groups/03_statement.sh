# shellcheck shell=bash
#
# a statement on a held connection
#
# Without TLS the session uses the socket of the remote server, with TLS the relay of
# the worker.

way_select_lease() { here "SELECT held_lease('p1', 'select 1', $(turns 1000))"; }
way_select_asleep() { here "SET pgpool_ext.busy_poll = 0; SELECT held_lease('p1', 'select 1', $(turns 1000))"; }
way_select_exec() { here "SELECT held_exec('p1', 'select 1', $(turns 1000))"; }
way_select_libpq() { client loop "$(turns 1000)" "$(remote_conninfo)" 'select 1'; }
way_select_libpq_tls() { client loop "$(turns 1000)" "$(remote_conninfo require)" 'select 1'; }
way_select_bouncer() { client loop "$(turns 1000)" "$(bouncer_conninfo "$bouncer")" 'select 1'; }
way_select_bouncer_tls() { client loop "$(turns 1000)" "$(bouncer_conninfo "$bouncer_tls")" 'select 1'; }
way_select_dblink() { here "SELECT dblink_named('d', 'select 1', $(turns 1000))"; }
way_select_dblink_tls() { here "SELECT dblink_named('d_tls', 'select 1', $(turns 1000))"; }
way_select_dblink_bouncer() { here "SELECT dblink_named('d_bouncer', 'select 1', $(turns 1000))"; }
way_select_dblink_bouncer_tls() { here "SELECT dblink_named('d_bouncer_tls', 'select 1', $(turns 1000))"; }
way_select_proxy() { here "SELECT proxy_loop($(turns 1000))"; }
# way_select_fdw SERVER
way_select_fdw() { here "CALL each_in_its_transaction('SELECT a FROM one_$1', $(turns 1000), NULL)"; }
way_select_relay() { here "SELECT held_lease('p1_tls', 'select 1', $(turns 1000))"; }
way_select_relay_exec() { here "SELECT held_exec('p1_tls', 'select 1', $(turns 1000))"; }
way_hundred_lease() { here "SELECT held_lease('p1', 'select generate_series(1, 100)', $(turns 1000))"; }
way_hundred_dblink() { here "SELECT dblink_named('d', 'select generate_series(1, 100)', $(turns 1000))"; }

select_ways() {
  local ways=(select_lease select_asleep select_exec select_libpq
    select_dblink select_fdw:f)
  local tls=(select_relay select_relay_exec select_libpq_tls select_dblink_tls select_fdw:f_tls)

  if has plproxy; then
    ways+=(select_proxy)
  fi
  if has pgbouncer; then
    ways+=(select_bouncer select_dblink_bouncer)
    tls+=(select_bouncer_tls select_dblink_bouncer_tls)
  fi
  measure "${ways[@]}"
  measure "${tls[@]}"
  measure hundred_lease hundred_dblink
}

group_3() {
  here "SELECT pgpool.exec('p1_tls', 'select 1')" >/dev/null
  place apart
  select_ways
}

report_3() {
  section "A statement on a held connection"
  ratio "select 1 on a lease / libpq loop in C" apart:select_lease apart:select_libpq "<=1.10"
  ratio "select 1 on a lease / dblink named" apart:select_lease apart:select_dblink "<=0.65"
  ratio "100 rows on a lease / dblink named" apart:hundred_lease apart:hundred_dblink "<=1.0"
  ratio "TLS: exec on a lease, relay / libpq loop in C to PgBouncer" \
    apart:select_relay_exec apart:select_bouncer_tls "<=1.0"
  ratio "TLS: query on a lease, relay / dblink named to PgBouncer" \
    apart:select_relay apart:select_dblink_bouncer_tls "<=1.0"
  ratio "select 1 on a lease, busy_poll 0 / libpq loop in C" "apart:select_asleep" "apart:select_libpq" -
  ratio "select 1 on a lease, busy_poll 0 / dblink named" "apart:select_asleep" "apart:select_dblink" -
  against "select 1 on a lease" "apart:select_lease" "apart:select_libpq" "apart:select_dblink" \
    "apart:select_dblink_bouncer" "apart:select_proxy" "apart:select_fdw:f"
  against "TLS: select 1 on a lease, relay" "apart:select_relay" "apart:select_libpq_tls" "apart:select_dblink_tls" \
    "apart:select_dblink_bouncer_tls" "apart:select_fdw:f_tls"
  ratio "exec of select 1 on a lease / libpq loop in C" "apart:select_exec" "apart:select_libpq" -
  figure "apart:select_lease" us "query on a lease"
  figure "apart:select_asleep" us "query on a lease, busy_poll 0"
  figure "apart:select_exec" us "exec on a lease"
  figure "apart:select_libpq" us "libpq loop in C"
  figure "apart:select_bouncer" us "libpq loop in C to PgBouncer"
  figure "apart:select_dblink" us "dblink named"
  figure "apart:select_dblink_bouncer" us "dblink named to PgBouncer"
  figure "apart:select_proxy" us "PL/Proxy"
  figure "apart:select_fdw:f" us "postgres_fdw, a transaction per statement"
  figure "apart:select_relay" us "TLS: query on a lease, relay"
  figure "apart:select_relay_exec" us "TLS: exec on a lease, relay"
  figure "apart:select_libpq_tls" us "TLS: libpq loop in C"
  figure "apart:select_bouncer_tls" us "TLS: libpq loop in C to PgBouncer"
  figure "apart:select_dblink_tls" us "TLS: dblink named"
  figure "apart:select_dblink_bouncer_tls" us "TLS: dblink named to PgBouncer"
  figure "apart:select_fdw:f_tls" us "TLS: postgres_fdw, a transaction per statement"
  figure "apart:hundred_lease" us "100 rows on a lease"
  figure "apart:hundred_dblink" us "100 rows, dblink named"
}
