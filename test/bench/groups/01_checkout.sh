# shellcheck shell=bash
#
# checkout and checkin
#
# Four measurements: checkout and checkin of an unused lease; the same with a `select 1`
# on the lease, so that the connection needs a reset; many sessions at the same time; the
# CPU time of a checkout and a checkin if 60 sessions have eight connections.

way_pair_lease() { here "SELECT lease_pair('p1', $(turns 20000))"; }
way_pair_other() { here "SELECT lease_pair_other('p4', $(turns 10000))"; }
way_pair_advisory() { here "SELECT advisory_pair($(turns 20000))"; }
way_pair_empty() { here "SELECT empty_pair($(turns 20000))"; }
way_pair_hikari() { hikari pair "$(turns 1000000)"; }
way_c_lease() { here "SELECT c_pairs('p1', $(turns 50000))"; }
way_c_advisory() { here "SELECT c_advisory($(turns 50000))"; }
way_c_nothing() { here "SELECT c_nothing($(turns 50000))"; }
way_held() { here "SELECT held_lease('p1', 'select 1', $(turns 2000))"; }
# way_each POOL: a lease per statement
way_each() { here "SELECT lease_each('$1', 'select 1', $(turns 2000))"; }
way_call() { here "SELECT one_call_each('$1', 'select 1', $(turns 2000))"; }

# way_crowd WHAT SESSIONS: checkouts with a checkin per second, of all sessions
way_crowd() {
  local script=pairs server=p200 per_second pairs=1000 time=$((quick ? 1 : 2 + $2 / 100))

  case $1 in
    hikari)
      hikari pairs "$2" 8 "$time"
      return
      ;;
    advisory) script=pairs_advisory ;;
    locks)
      script=pairs_eight_locks
      pairs=20
      ;;
    eight)
      server=p8
      # sessions that share connections need more time for a call
      [ "$2" -le 8 ] || pairs=20
      ;;
  esac
  per_second=$(as_user "$bindir/pgbench" -n -h "$work/s" -p "$local_port" -U postgres -c "$2" \
    -j 2 -T "$time" -D server="'$server'" -D pairs="$pairs" \
    -f "$bench/sql/$script.pgbench" bench </dev/null 2>/dev/null |
    sed -n 's/^tps = \([0-9.]*\).*/\1/p')
  awk -v tps="$per_second" -v pairs="$pairs" 'BEGIN { printf "%.0f\n", tps * pairs }'
}

# way_contended eight|locks: the same of 60 sessions, and the CPU time of a pair in us. It is
# the time of the sessions that have ended since, in ticks.
way_contended() {
  local before ticks postmaster per_second

  postmaster=$(as_user head -n 1 "$work/local/postmaster.pid")
  ticks=$(awk '{ print $16 + $17 }' "/proc/$postmaster/stat")
  before=$SECONDS
  per_second=$(way_crowd "$1" 60)
  while [ "$(here "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'")" -gt 0 ] &&
    [ $((SECONDS - before)) -lt 60 ]; do
    sleep 0.1
  done
  ticks=$(($(awk '{ print $16 + $17 }' "/proc/$postmaster/stat") - ticks))
  say "rate $per_second"
  awk -v ticks="$ticks" -v hz="$(getconf CLK_TCK)" -v pairs="$per_second" -v time="$((quick ? 1 : 2))" \
    'BEGIN { printf "cpu %.2f\n", ticks / hz * 1e6 / (pairs * time) }'
}

group_1() {
  local n java=()

  # the warm-up of Java takes long, so it has fewer rounds
  has hikari && java=(pair_hikari)
  place apart
  measure "$rounds" pair_lease pair_advisory pair_other pair_empty c_lease c_advisory c_nothing
  measure "$long_rounds" "${java[@]}"
  measure "$rounds" held each:p1 each:p4 each:p1_transfer each:p4_transfer each:p1_never \
    each:p4_never call:p1 call:p4
  place together
  measure "$rounds" held each:p1 each:p4 each:p1_never call:p1

  place free
  here "SELECT pgpool.prewarm('p200', 200)" >/dev/null
  for n in 1 2 8 32 200; do
    java=()
    has hikari && java=("crowd:hikari:$n")
    measure "$long_rounds" "crowd:own:$n" "crowd:eight:$n" "crowd:advisory:$n" "${java[@]}"
  done
  measure "$rounds" contended:eight contended:locks
  # close the 200 connections
  here "ALTER SERVER p200 OPTIONS (SET pool_size '1')"
  here "SELECT pgpool.exec('p200', 'select 1')" >/dev/null
}

report_1() {
  local at n pool reset

  section "Checkout and checkin"
  ratio "checkout + checkin in SQL / advisory lock + unlock" apart:pair_lease apart:pair_advisory "<=2.5"
  limit "checkout + checkin in C, including the check of the socket, us" apart:c_lease "<=0.8"
  ratio "checkout + checkin in C / advisory lock + unlock in C" apart:c_lease apart:c_advisory -
  ratio "checkout + checkin in C / HikariCP in its process" apart:c_lease apart:pair_hikari -
  ratio "checkout + checkin of another connection each time / of the same connection" apart:pair_other apart:pair_lease -
  for pool in each:p1 each:p4; do
    ratio "a lease per select 1, pool of ${pool#each:p}, reset always / a held lease" "apart:$pool" apart:held "<=1.8"
  done
  for pool in call:p1 call:p4; do
    ratio "query on a pool of ${pool#call:p}, reset always / query on a held lease" "apart:$pool" apart:held "<=1.8"
  done
  for pool in p1_transfer p4_transfer p1_never p4_never; do
    case $pool in *_transfer) reset=on_transfer ;; *) reset=never ;; esac
    ratio "a lease per select 1, pool of ${pool:1:1}, reset $reset / a held lease" "apart:each:$pool" apart:held -
  done
  ratio "checkouts of 60 sessions on eight connections / locks of 60 sessions on eight blocking advisory locks, per second" \
    free:contended:eight.rate free:contended:locks.rate ">=0.8"
  ratio "CPU time of such a checkout and checkin / of such a lock and unlock" \
    free:contended:eight.cpu free:contended:locks.cpu -
  figure apart:pair_lease us "checkout + checkin in SQL, the same connection each time"
  figure apart:pair_other us "checkout + checkin in SQL, another connection each time"
  figure apart:pair_advisory us "pg_try_advisory_lock + unlock, in SQL"
  figure apart:pair_empty us "two empty functions in SQL"
  figure apart:c_lease us "checkout + checkin, in C"
  figure apart:c_advisory us "pg_try_advisory_lock + unlock, in C"
  figure apart:c_nothing us "two empty functions in C"
  figure apart:pair_hikari us "HikariCP: getConnection + close, one thread"
  for at in apart together; do
    figure "$at:held" us "select 1 on a held lease, $at"
    for pool in p1 p4 p1_transfer p4_transfer p1_never p4_never; do
      figure "$at:each:$pool" us "checkout, select 1, checkin on $pool, $at"
    done
    for pool in p1 p4; do
      figure "$at:call:$pool" us "query on pool $pool, $at"
    done
  done
  note "p1 and p4 are pools of one and of four connections with reset 'always'; _transfer: reset 'on_transfer'; _never: reset 'never'"
  grid "checkout + checkin per second, by number of sessions" 1=1 2=2 8=8 32=32 200=200
  line "pgpool_ext, a connection per session" free:crowd:own:
  line "pgpool_ext, 8 connections" free:crowd:eight:
  line "advisory lock, another one per session" free:crowd:advisory:
  line "HikariCP, 8 connections, threads" free:crowd:hikari:
}
