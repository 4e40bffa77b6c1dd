# shellcheck shell=bash
# Functions for the groups of the bench: taking samples, and binding processes.
#
# A *way* is a function way_NAME that runs a measurement once. It prints one figure, or
# several as "KEY FIGURE". NAME:A:B calls it with the arguments A and B. `measure` runs
# several ways in turn. A group then declares its tables for `report`, which calculates
# them: `section`, `figure`, `ratio`, `limit`, `against`, `grid`, `line` and `note`.

here() {
  psql_at "$local_port" postgres bench -Atq -c "$@"
}

here_attached() {
  psql_at "$local_port" postgres bench_attached -Atq -c "$@"
}

there() {
  psql_at "$remote_port" remote_super remote_db -Atq -c "$@"
}

client() {
  if [ -n "$client_cpu" ]; then
    as_user taskset -c "$client_cpu" "$work/client" "$@"
  else
    as_user "$work/client" "$@"
  fi
}

# turns N: the number of iterations of a loop; a twentieth in a quick run.
turns() {
  echo $((quick ? ($1 + 19) / 20 : $1))
}

# --- placement of processes -------------------------------------------------------------------

# bind_tree PROCESSORS PID: bind a process and its present children.
bind_tree() {
  local pid

  for pid in "$2" $(cat "/proc/$2/task/$2/children"); do
    taskset -a -p -c "$1" "$pid" >/dev/null 2>&1 || true
  done
}

# other_processors PROCESSOR LIST: the list without the processor, or the list if it has no
# other one.
other_processors() {
  local range cpu rest=()
  local -a ranges

  IFS=, read -r -a ranges <<<"$2"
  for range in "${ranges[@]}"; do
    for ((cpu = ${range%-*}; cpu <= ${range#*-}; cpu++)); do
      [ "$cpu" -eq "$1" ] || rest+=("$cpu")
    done
  done
  [ "${#rest[@]}" -gt 0 ] || rest=("$2")
  (IFS=, && say "${rest[*]}")
}

# place apart|together|alone|free: bind the local server with its clients, and the remote
# server with PgBouncer: to two different processors; to the same one; the remote server
# to one processor and the rest to all others; to none.
place() {
  local all on_this on_that pid

  client_cpu=
  placed=$1
  command -v taskset >/dev/null || return 0
  all=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
  on_this=${all%%[,-]*}
  on_that=${all##*[,-]}
  case $1 in
    apart) ;;
    together) on_that=$on_this ;;
    alone) on_this=$(other_processors "$on_that" "$all") ;;
    free)
      on_this=$all
      on_that=$all
      ;;
  esac
  bind_tree "$on_this" "$(head -n 1 "$work/local/postmaster.pid")"
  bind_tree "$on_that" "$(head -n 1 "$work/remote/postmaster.pid")"
  for pid in "${bouncer_pids[@]}"; do
    bind_tree "$on_that" "$pid"
  done
  client_cpu=$on_this
}

# --- samples -----------------------------------------------------------------

# add NAME VALUE
add() {
  printf '%s\t%s\t%s\t%s\n' "$group" "$placed:$1" "$round" "$2" >>"$samples"
}

has() {
  case " $peers " in *" $1 "*) ;; *) return 1 ;; esac
}

# stolen: the time in ticks that the host took from this virtual machine, and the time in
# which its processors were busy
stolen() {
  awk '$1 == "cpu" { print $9, $2 + $3 + $4 + $7 + $8 }' /proc/stat
}

# run_way NAME: run a way in a subshell, which set -e ends at the first error; within "if"
# it would not. Writes its figures to log/value. Sets status, took to the duration in ms, and
# stole to the percentage of the processor time that the host took.
run_way() {
  local before start=${EPOCHREALTIME/./}

  before=$(stolen)
  set +e
  (
    set -e
    IFS=: read -r -a call <<<"$1"
    "way_${call[0]}" "${call[@]:1}"
  ) >"$work/log/value" 2>"$work/log/value.err"
  status=$?
  set -e
  stole=$(echo "$before $(stolen)" |
    awk '{ s = $3 - $1; busy = $4 - $2 } END { print int(100 * s / (s + busy + 1)) }')
  took=$(((${EPOCHREALTIME/./} - start) / 1000))
}

# measure NAME ...: run the ways in turn, in the order A B, B A, A B. A way that fails is
# reported and then left out. If the host took 2 % of the processor time or more, the way is
# run again, up to three times, and the run with the smallest share counts. Such runs take at
# most a fifth of the time of the others in their group.
measure() {
  local i name names order key value status stole took least try broken=' '
  names=("$@")

  for ((round = 1; round <= rounds; round++)); do
    order=("${names[@]}")
    if ((round % 2 == 0)); then
      order=()
      for ((i = ${#names[@]} - 1; i >= 0; i--)); do
        order+=("${names[i]}")
      done
    fi
    for name in "${order[@]}"; do
      case $broken in *" $name "*) continue ;; esac
      least=101
      for try in 1 2 3 4; do
        run_way "$name"
        [ "$status" -eq 0 ] || break
        if [ "$try" -eq 1 ]; then first_ms=$((first_ms + took)); else again_ms=$((again_ms + took)); fi
        if [ "$stole" -lt "$least" ]; then
          least=$stole
          mv "$work/log/value" "$work/log/value.best"
        fi
        [ "$least" -ge 2 ] && [ "$quick" -eq 0 ] && [ $((again_ms * 5)) -lt "$first_ms" ] || break
      done
      # a repetition that fails does not count
      if [ "$least" -gt 100 ]; then
        broken+="$name "
        failure "$name failed ($status): $(tail -n 3 "$work/log/value.err" | tr '\n' ' ')"
        continue
      fi
      printf '%s\t%s\n' "$try" "$least" >>"$stolen_times"
      while read -r key value; do
        if [ -z "$value" ]; then
          add "$name" "$key"
        else
          add "$name.$key" "$value"
        fi
      done <"$work/log/value.best"
    done
  done
}

# failure TEXT: report a failure now and in the results; the run ends with status 1.
failure() {
  say "  $1" >&2
  printf '%s\t%s\n' "$group" "$1" >>"$failures"
}

# --- declarations for report ----------------------------------------------------

declare_line() {
  local IFS=$'\t'

  printf '%s\n' "$*" >>"$declared"
}

# section TITLE: the title of the current group
section() {
  declare_line section "$group" "$1"
}

# figure NAME UNIT LABEL. NAME is "PLACEMENT:WAY[.KEY]", or "A - B" of two such names.
figure() {
  declare_line figure "$group" "$@"
}

# ratio LABEL A B TARGET: A divided by B; TARGET is <=x, >=x, or - for none.
ratio() {
  declare_line ratio "$group" "$@"
}

# grid TITLE COLUMN=KEY ...: a table, whose rows follow as line LABEL NAME.
grid() {
  declare_line grid "$group" "$@"
}

line() {
  declare_line line "$group" "$@"
}

# limit LABEL NAME TARGET: a figure with an absolute target.
limit() {
  declare_line limit "$group" "$@"
}

# against LABEL NAME FLOOR PEER ...: the ratios of a figure to the floor and to the best
# of the peers; "-" for no floor.
against() {
  declare_line against "$group" "$@"
}

# note TEXT
note() {
  declare_line note "$group" "$1"
}

# --- many sessions -----------------------------------------------------------

# sessions SCRIPT CLIENTS ROLE OPTION ...: run a script of pgbench with these options,
# on the local server or on that of session_port, session_user and session_base.
# Prints transactions per second, their durations in ms and their distribution among the
# sessions, without the first seconds, in which connections are opened; the CPU time of a
# transaction; and the number and memory of ROLE's backends on the remote server. If not
# all sessions have connected in time, the run is repeated with more time.
sessions() {
  local warm=$((1 + $2 / 100)) try

  for try in 1 2 3; do
    if sessions_for "$warm" "$@" >"$work/log/sessions"; then
      cat "$work/log/sessions"
      return 0
    fi
    warm=$((warm * 3))
  done
  return 1
}

# sessions_for WARM_UP ...: the same; the first WARM_UP seconds do not count
sessions_for() {
  local warm=$1 script=$2 clients=$3 role=$4 memory=0 before
  shift 4

  rm -f "$work"/tmp/times.*
  if [ "$role" != - ]; then
    (
      sleep "$(awk -v w="$warm" -v s="$seconds" 'BEGIN { print w + s / 2 }')"
      remote_memory "$role"
    ) >"$work/log/memory" 2>/dev/null &
    memory=$!
  fi
  before=$(servers_cpu)
  as_user ${client_cpu:+taskset -c "$client_cpu"} "$bindir/pgbench" -n -h "$work/s" \
    -p "${session_port:-$local_port}" \
    -U "${session_user:-postgres}" -c "$clients" -j 2 -T "$((warm + seconds))" \
    -D connected=0 -D clients="$clients" "$@" --log --log-prefix="$work/tmp/times" \
    -f "$bench/sql/$script.pgbench" "${session_base:-bench}" \
    >"$work/log/sessions.log" 2>&1 </dev/null || {
    tail -n 5 "$work/log/sessions.log" >&2
    return 1
  }
  if grep -q ' aborted' "$work/log/sessions.log"; then
    tail -n 5 "$work/log/sessions.log" >&2
    return 1
  fi
  if [ "$memory" -ne 0 ]; then
    wait "$memory"
  fi
  cpu_since "$before" "$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$work/log/sessions.log")"
  cat "$work"/tmp/times.* | perl "$bench/times" "$seconds" "$clients" || return 1
  if [ "$memory" -ne 0 ]; then
    cat "$work/log/memory"
  fi
}

# remote_memory ROLE: the number of ROLE's backends on the remote server, and their
# memory: private, and PSS.
remote_memory() {
  local pid pids

  mapfile -t pids < <(there "SELECT pid FROM pg_stat_activity WHERE usename = '$1'")
  say "backends ${#pids[@]}"
  for pid in "${pids[@]}"; do
    cat "/proc/$pid/smaps_rollup" 2>/dev/null || true
  done | awk '$1 == "Pss:" { pss += $2 } $1 == "Pss_Anon:" { own += $2 }
    END { printf "pss %.1f\nown %.1f\n", pss / 1024, own / 1024 }'
}

# servers_cpu: CPU time in ticks of all servers, with the processes that have ended, and
# of PgBouncer.
servers_cpu() {
  local server pid

  for server in local unsampled remote; do
    pid=$(as_user head -n 1 "$work/$server/postmaster.pid")
    for pid in "$pid" $(cat "/proc/$pid/task/$pid/children"); do
      cat "/proc/$pid/stat" 2>/dev/null || true
    done
  done | awk '{ sum += $14 + $15 + $16 + $17 } END { print sum }'
  for pid in "${bouncer_pids[@]}"; do
    cat "/proc/$pid/stat" 2>/dev/null || true
  done | awk '{ sum += $14 + $15 } END { print sum + 0 }'
}

# cpu_since TICKS N: the CPU time in us since servers_cpu printed TICKS, divided by N.
cpu_since() {
  printf '%s\n%s\n' "$1" "$(servers_cpu)" |
    awk -v hz="$(getconf CLK_TCK)" -v n="$2" 'NR <= 2 { sum -= $1 } NR > 2 { sum += $1 }
      END { printf "cpu %.1f\n", sum / hz * 1e6 / n }'
}

# wait_for CONDITION: wait until an SQL expression is true on the local server
wait_for() {
  local i

  for ((i = 0; i < 2400; i++)); do
    if [ "$(here "SELECT $1")" = t ]; then
      return 0
    fi
    sleep 0.05
  done
  say "timed out waiting for: $1" >&2
  return 1
}
