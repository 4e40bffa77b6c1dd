#!/usr/bin/env bash
# Only conn_state.c writes the state of a connection: it checks the table of
# transitions, and updates lists and counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

shopt -s nullglob
files=(src/*.c src/*/*.[ch])
hits=$(printf '%s\n' "${files[@]}" | grep -v '^src/shared/conn_state\.c$' |
  xargs -r grep -nHE '\<(conn|conns\[[^]]*\])(->|\.)state[[:space:]]*=[^=]' || true)
if [ -n "$hits" ]; then
  printf 'state_writer: only src/shared/conn_state.c may write the state of a connection:\n%s\n' "$hits"
  exit 1
fi
echo "state_writer: ok"
