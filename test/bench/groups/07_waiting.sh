# shellcheck shell=bash
#
# what it costs to wait, and how fast a connection goes from hand to hand
#
# So many sessions wait for the one connection of a pool.  Then it is returned, and
# each of them returns it as soon as it has it, and does nothing more until all have
# had it: from the last instruction of one to the first of the next is the hand-over.
# Sessions have leased that connection before, and keep its socket; those that have
# not must ask the worker for it, in between.
# The same with an advisory lock, which is the server's own queue, in HikariCP, and in
# a line of sessions that do nothing but wake the next one: a process that has slept
# for long, among hundreds of them, takes several times as long to run again as the two
# of the round trip, so that this is the floor here.

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
  [ "$how" != line ] || here "INSERT INTO line SELECT line_open($n + 1)"
  here "SELECT hold_$how($n)" >/dev/null &
  holder=$!
  sleep 0.5
  as_user "$bindir/pgbench" -n -h "$work/s" -p "$local_port" -U postgres -c "$n" -j 2 -t 1 \
    -D clients="$n" -D warm="$warm" -f "$bench/sql/wait_$how.pgbench" bench >"$work/log/wait.log" 2>&1 </dev/null &
  waiters=$!
  wait_for "(SELECT n >= $n FROM waiting_$how)"
  # a timer that the server has left running (deadlock_timeout) wakes each one once
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

tell_7() {
  local at n=500

  [ "$quick" = 0 ] || n=100
  section "Waiting"
  for at in free together; do
    ratio "hand-over to the first of $n waiters, median / a round trip of two that are awake, $at" "$at:turns:pool:$n.p50" "$at:latch" "<=1.5"
    ratio "hand-over to the first of $n waiters / a latch in a line of $n sessions, $at" "$at:turns:pool:$n.p50" "$at:turns:line:$n.p50" "<=1.5"
    ratio "hand-over / that of an advisory lock, $at" "$at:turns:pool:$n.p50" "$at:turns:advisory:$n.p50" -
  done
  ratio "hand-over / that of HikariCP in its process" "free:turns:pool:$n.p50" "free:turns:hikari:$n.p50" -
  limit "CPU of $n waiters together, ms in a second" "free:turns:pool:$n.cpu" "<=1"
  figure free:latch us "latch round trip between two sessions, anywhere"
  figure together:latch us "latch round trip between two sessions, on one processor"
  for at in free together; do
    grid "us of a hand-over, $n waiters, $at" p50=.p50 p99=.p99 max=.max "CPU while all wait, ms/s=.cpu" turns=.turns
    line "pgpool_ext" "$at:turns:pool:$n"
    line "pgpool_ext, a session's first lease" "$at:turns:fresh:$n"
    line "a line of latches" "$at:turns:line:$n"
    line "advisory lock" "$at:turns:advisory:$n"
    line "HikariCP, threads" "$at:turns:hikari:$n"
  done
}
