#!/usr/bin/env bash
# Only the worker reads from the control socket: every process has it, and a message
# that another process received would be lost.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

shopt -s nullglob
files=(src/*.c src/*/*.[ch])
hits=$(printf '%s\n' "${files[@]}" |
  grep -vE '^src/(protocol/control_message\.[ch]|worker/(worker|event_loop)\.c)$' |
  xargs -r grep -nHE '\<pgpx_control_receive\>' || true)
if [ -n "$hits" ]; then
  printf 'control_reader: only the worker may call pgpx_control_receive:\n%s\n' "$hits"
  exit 1
fi
echo "control_reader: ok"
