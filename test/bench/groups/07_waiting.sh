# shellcheck shell=bash
#
# hand-over of a connection to a waiting session, and the cost of waiting
#
# 500 sessions wait for the only connection of a pool. Each one returns it as soon as it
# has acquired it, and then does nothing until all have had it. A hand-over lasts from
# the last instruction of one session to the first instruction of the next one. There
# are two cases: the sessions have cached the socket of the connection, or must request
# it from the worker.
#
# For comparison: an advisory lock, HikariCP, and as the floor a chain of sessions of
# which each only sets the latch of the next one. A latch round trip between two active
# sessions is no floor, because a process that has slept among hundreds takes several
# times as long to run again.

# way_turns HOW WAITERS
way_turns() {
  local holder waiters pids before after how=$1 n=$2 warm=true

  if [ "$how" = hikari ]; then
    hikari wait "$n"
    return
  fi
  if [ "$how" = fresh ]; then
    how=pool warm=false
  fi
  here "DELETE FROM waits; DELETE FROM go; DELETE FROM line"
  [ "$how" != line ] || here "INSERT INTO line SELECT queue_open($n + 1)"
  here "SELECT hold_$how($n)" >/dev/null &
  holder=$!
  sleep 0.5
  as_user "$bindir/pgbench" -n -h "$work/s" -p "$local_port" -U postgres -c "$n" -j 2 -t 1 \
    -D clients="$n" -D warm="$warm" -f "$bench/sql/wait_$how.pgbench" bench >"$work/log/wait.log" 2>&1 </dev/null &
  waiters=$!
  wait_for "(SELECT n >= $n FROM waiting_$how)"
  # PostgreSQL's timer for deadlock_timeout wakes each session once
  sleep 1.5
  mapfile -t pids < <(here "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT wait\_%'")
  before=$(process_cpu "${pids[@]}")
  sleep 2
  after=$(process_cpu "${pids[@]}")
  say "cpu $(awk -v ns="$((after - before))" 'BEGIN { printf "%.3f", ns / 1e6 / 2 }')"
  here "INSERT INTO go VALUES (true)"
  wait "$holder" "$waiters"
  here "SELECT format(E'p50 %s\np99 %s\nmax %s\nturns %s', p50, p99, most, (SELECT count(*) FROM waits))
    FROM handed_over()"
}

way_latch() {
  here "SELECT latch_round_trip('host=$work/s port=$local_port dbname=bench user=postgres', $(turns 10000))"
}

group_7() {
  local n=500 java=()

  [ "$quick" = 0 ] || n=100
  has hikari && java=("turns:hikari:$n")
  place free
  here "SELECT pgpool.exec('p1', 'select 1')" >/dev/null
  measure "$rounds" latch
  place together
  measure "$rounds" latch
  place free
  measure "$long_rounds" "turns:pool:$n" "turns:fresh:$n" "turns:line:$n" "turns:advisory:$n" "${java[@]}"
  place together
  measure "$long_rounds" "turns:pool:$n" "turns:fresh:$n" "turns:line:$n" "turns:advisory:$n"
}

report_7() {
  local at n=500

  [ "$quick" = 0 ] || n=100
  section "Hand-over to waiting sessions"
  for at in free together; do
    ratio "hand-over to the first of $n waiters, median / latch round trip between two active sessions, $at" "$at:turns:pool:$n.p50" "$at:latch" "<=1.5"
    ratio "hand-over to the first of $n waiters, median / chain of latches of $n sessions, $at" "$at:turns:pool:$n.p50" "$at:turns:line:$n.p50" "<=1.5"
    ratio "hand-over of a connection / of an advisory lock, $at" "$at:turns:pool:$n.p50" "$at:turns:advisory:$n.p50" -
  done
  ratio "hand-over of a connection / in HikariCP, between threads" "free:turns:pool:$n.p50" "free:turns:hikari:$n.p50" -
  limit "CPU time of all $n waiters, ms per second" "free:turns:pool:$n.cpu" "<=1"
  figure free:latch us "latch round trip between two active sessions, free"
  figure together:latch us "latch round trip between two active sessions, together"
  for at in free together; do
    grid "us per hand-over, $n waiters, $at" p50=.p50 p99=.p99 max=.max "CPU while all wait, ms/s=.cpu" hand-overs=.turns
    line "pgpool_ext" "$at:turns:pool:$n"
    line "pgpool_ext, socket not cached" "$at:turns:fresh:$n"
    line "chain of latches" "$at:turns:line:$n"
    line "advisory lock" "$at:turns:advisory:$n"
    line "HikariCP, threads" "$at:turns:hikari:$n"
  done
}
