#!/usr/bin/env bash
# Only compat.h tests server versions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

shopt -s nullglob
files=(src/*.c src/*/*.[ch])
hits=$(printf '%s\n' "${files[@]}" | grep -v '^src/base/compat\.h$' |
  xargs -r grep -nHE 'PG_VERSION_NUM|PG_MAJORVERSION_NUM' || true)
if [ -n "$hits" ]; then
  printf 'versions: only src/base/compat.h may test the server version:\n%s\n' "$hits"
  exit 1
fi
echo "versions: ok"
