#!/usr/bin/env bash
# Includes go downward only: the folders of src/ are layers, and a file includes headers
# of its own layer or of a lower one. Each .c file with a header of its name includes it
# first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The height of a layer, and its side where two layers of one height must not meet.
height_of() {
  case $1 in
    base) echo 0 ;;
    config) echo 1 ;;
    shared) echo 2 ;;
    protocol) echo 3 ;;
    values) echo 4 ;;
    session | worker) echo 5 ;;
    commit) echo 6 ;;
    api | fdw | dblink) echo 7 ;;
    locks) echo 8 ;;
    .) echo 9 ;;
    *) return 1 ;;
  esac
}

# Files of locks/ that run in the worker include headers of worker/, the others those of
# session/.
worker_side='^src/locks/lock_pinger\.'

wrong=0
complain() {
  printf 'layers: %s\n' "$*"
  wrong=1
}

shopt -s nullglob
for file in src/*.[ch] src/*/*.[ch]; do
  inside=${file#src/}
  layer=$(dirname "$inside")
  if ! height=$(height_of "$layer"); then
    complain "$file is in no layer: add $layer to test/lint/layers.sh"
    continue
  fi
  header=${inside%.c}.h
  if [ "${file##*.}" = c ] && [ -f "src/$header" ] &&
    [ "$(sed -n '/^#include/{s/.*"\(.*\)".*/\1/p;q}' "$file")" != "$header" ]; then
    complain "$file does not include $header first"
  fi

  while read -r included; do
    case $included in
      */*) their=${included%%/*} ;;
      *) their=. ;;
    esac
    if [ ! -f "src/$included" ]; then
      found=(src/*/"$(basename "$included")")
      [ "${#found[@]}" -eq 0 ] || [ "$their" != . ] ||
        complain "$file includes $included without its layer"
      continue # a header of PostgreSQL
    fi
    if [ "$(height_of "$their")" -gt "$height" ]; then
      complain "$file includes $included, which is above it"
    elif [ "$layer,$their" = api,fdw ] || [ "$layer,$their" = fdw,api ]; then
      complain "$file includes $included: api/ and fdw/ do not know each other"
    elif [ "$layer,$their" = session,worker ] || [ "$layer,$their" = worker,session ]; then
      complain "$file includes $included: session/ and worker/ meet in shared memory only"
    elif [ "$layer" = protocol ] && [ "$their" = shared ] && [[ $inside != protocol/control_message.* ]]; then
      complain "$file includes $included: in protocol/ only control_message knows shared memory"
    elif [ "$layer,$their" = locks,worker ] && ! [[ $file =~ $worker_side ]]; then
      complain "$file includes $included: it does not run in the worker"
    elif [ "$layer,$their" = locks,session ] && [[ $file =~ $worker_side ]]; then
      complain "$file includes $included: it runs in the worker"
    fi
  done < <(sed -n 's/^#[[:space:]]*include[[:space:]]*"\(.*\)".*/\1/p' "$file")

  if [ "$layer" = shared ] && grep -q 'libpq-fe\.h' "$file"; then
    complain "$file includes libpq-fe.h: shared/ knows no libpq"
  fi
done
twice=$(for file in src/*.[ch] src/*/*.[ch]; do basename "$file"; done | sort | uniq -d)
[ -z "$twice" ] || complain "names that are not unique: $twice"

[ "$wrong" -ne 0 ] || echo "layers: ok"
exit "$wrong"
