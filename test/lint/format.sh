#!/usr/bin/env bash
# The sources are in PostgreSQL's format: clang-format 14, and pgindent.pl for the rest.
# Code has 80 columns, except for strings. --fix: format them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# other versions format differently
formatter=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null &&
    "$candidate" --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
if [ -z "$formatter" ]; then
  echo "format: skipped, there is no clang-format 14 here"
  exit 0
fi

formatted=$(mktemp)
trap 'rm -f "$formatted"' EXIT

wrong=0
shopt -s nullglob
for file in src/*.c src/*/*.[ch]; do
  perl test/lint/pgindent.pl --before "$file" |
    "$formatter" --style=file --assume-filename="$file" |
    perl test/lint/pgindent.pl --after "$file" >"$formatted"
  if cmp -s "$file" "$formatted"; then
    : # formatted
  elif [ "${1:-}" = --fix ]; then
    cat "$formatted" >"$file"
    echo "format: $file"
  else
    diff -u --label "$file" --label "$file (formatted)" "$file" "$formatted" || true
    wrong=1
  fi
  if long=$(sed 's|[[:space:]]*/\*.*||; s|^[[:space:]]*\*.*||' "$file" |
    expand -t 4 | grep -nE '^.{81,}' | grep -v '"'); then
    printf 'format: %s has lines over 80 columns:\n%s\n' "$file" "$long"
    wrong=1
  fi
done

if [ "$wrong" -ne 0 ]; then
  echo 'format: "make format" does the above, but for long lines'
else
  echo "format: ok"
fi
exit "$wrong"
