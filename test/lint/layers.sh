#!/usr/bin/env bash
# Includes go downward only: src/ is built in layers, and a file includes
# headers of its own layer or of one below.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The layer of a file, and its side where a layer has two that must not meet.
layer_of() {
  case $1 in
    compat | wait_event | guc | errcodes | debug_point) echo 0 ;;
    options | option_table | option_hint | shmem | cap | dlock_table | ticket_table) echo 1 ;;
    conn_state | busy_poll | pool | pool_* | registry | ticket | stats | invariants | invariants_* | debug_damage | dlock | dlock_queue | dlock_work) echo 2 ;;
    wire | wire_* | fdpass | task | resolver | remote_error | libpq_text) echo 3 ;;
    handoff) echo 4 ;;
    worker | worker_* | reactor | conninfo | login | connector | connector_* | hosts | connection | steward | canceller | ending | relay | relay_* | libpq_bounds | janitor | pinger | pinger_*) echo 5 worker ;;
    target | target_* | kept | session_wait | checkout | checkout_* | lease | lease_*) echo 5 session ;;
    params | column_list | describe | exec | run | async | fanout | formats | tuples | tuples_* | ddl | dlock_session | dlock_remote | dlock_wait | dlock_question) echo 5 session ;;
    fn_*) echo 6 ;;
    pgpool_ext) echo 7 ;;
    *) return 1 ;;
  esac
}

wrong=0
complain() {
  printf 'layers: %s\n' "$*"
  wrong=1
}

shopt -s nullglob
for file in src/*.c src/*.h; do
  name=$(basename "${file%.*}")
  if ! mine=$(layer_of "$name"); then
    complain "$file is in no layer: add it to test/lint/layers.sh"
    continue
  fi
  read -r layer side <<<"$mine"
  side=${side:-}

  while read -r included; do
    [ -f "src/$included" ] || continue # one of PostgreSQL's
    their=$(layer_of "${included%.h}") || continue # said above
    read -r their_layer their_side <<<"$their"
    if [ "$their_layer" -gt "$layer" ]; then
      complain "$file (layer $layer) includes $included (layer $their_layer)"
    elif [ "$their_layer" -eq 5 ] && [ "$layer" -eq 5 ] &&
      [ "$their_side" != "$side" ]; then
      complain "$file ($side side) includes $included ($their_side side)"
    elif [ "$layer" -eq 3 ] &&
      { [ "$included" = shmem.h ] || [ "$their_layer" -eq 2 ]; }; then
      complain "$file includes $included: layer 3 knows no shared memory"
    fi
  done < <(sed -n 's/^#[[:space:]]*include[[:space:]]*"\(.*\)".*/\1/p' "$file")

  if [ "$layer" -eq 2 ] && grep -q 'libpq-fe\.h' "$file"; then
    complain "$file includes libpq-fe.h: layer 2 knows no libpq"
  fi
done

[ "$wrong" -ne 0 ] || echo "layers: ok"
exit "$wrong"
