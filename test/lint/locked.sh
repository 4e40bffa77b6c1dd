#!/usr/bin/env bash
# A function named *_locked asserts that its lock is held, so that "make check-assert"
# finds each caller without the lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

shopt -s nullglob
missing=$(awk '
  function done() {
    if (name != "" && !asserted)
      printf "%s:%d: %s\n", file, line, name
    name = ""
  }
  FNR == 1 { name = ""; candidate = "" }
  /^[a-z_]+_locked\(/ { candidate = substr($0, 1, index($0, "(") - 1); at = FNR }
  candidate != "" && /;$/ { candidate = "" }
  candidate != "" && /^{/ {
    name = candidate; file = FILENAME; line = at; asserted = 0; candidate = ""
  }
  name != "" && /Assert\(LWLockHeldByMe/ { asserted = 1 }
  /^}/ { done() }
' src/*.c src/*/*.[ch])
if [ -n "$missing" ]; then
  printf 'locked: these functions do not assert that their lock is held:\n%s\n' "$missing"
  exit 1
fi
echo "locked: ok"
