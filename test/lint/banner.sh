#!/usr/bin/env bash
# Each source file starts with a banner: its name, its purpose, its rules.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

wrong=0
shopt -s nullglob
for file in src/*.c src/*/*.[ch]; do
  name=$(basename "$file")
  if ! head -n 5 "$file" | tr '\n' '~' | tr '\t' '>' |
    grep -Eq "^/\*-{60,}~ \*~ \* $name~ \*>  [^~]+~"; then
    printf 'banner: %s does not start with a banner of its name and purpose\n' "$file"
    wrong=1
  fi
done

[ "$wrong" -ne 0 ] || echo "banner: ok"
exit "$wrong"
