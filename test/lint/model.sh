#!/usr/bin/env bash
# The C functions that test/model/README.md maps the models' steps to exist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

wrong=0
while read -r name; do
  if ! grep -Eqs "^$name\(" src/*.c src/*/*.c; then
    printf 'model: test/model/README.md names %s, which is no function of src/\n' "$name"
    wrong=1
  fi
done < <(grep -oE '\<pgpx_[a-z0-9_]+\>' test/model/README.md | sort -u)

# README.md names each search and mutant of a model, and no others
while read -r name; do
  grep -q "\`$name\`" test/model/README.md || {
    printf 'model: test/model/README.md does not name %s\n' "$name"
    wrong=1
  }
done < <(sed -n 's/^ \* mutant \([A-Z0-9_]*\):.*/\1/p' test/model/*.pml | sort -u)
while read -r name; do
  grep -Eqs "^ \* mutant $name:" test/model/*.pml || {
    printf 'model: no model has the mutant %s\n' "$name"
    wrong=1
  }
done < <(grep -oE '\<BUG_[A-Z0-9_]+\>' test/model/README.md test/model/*.pml -h | sort -u)

[ "$wrong" -ne 0 ] || echo "model: ok"
exit "$wrong"
