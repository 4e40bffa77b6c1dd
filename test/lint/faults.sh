#!/usr/bin/env bash
# The tables of tests in test/README.md: each row names a test, and each named test
# exists.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wrong=0
say() {
  printf 'faults: test/README.md: %s\n' "$1"
  wrong=1
}

# the last column of both tables
rows=$(sed -n '/^## Which test shows/,/^## Style/p' README.md | grep '^|' | grep -Ev '^\| (#|area) |^\|--')
while read -r row; do
  tests=$(sed 's/ *|$//; s/.*| //' <<<"$row")
  if ! grep -Eq '`[0-9]{3}`|`[a-z_]+\.(sql|spec)`|\<(model|stress|fuzz|soak|packages)\>' <<<"$tests"; then
    say "no test: ${row:0:60}"
  fi
  for name in $(grep -oE '`[0-9]{3}`|`[a-z_]+\.(sql|spec)`' <<<"$tests" | tr -d '`'); do
    case $name in
      *.sql) file=sql/$name ;;
      *.spec) file=specs/$name ;;
      *) file=$(compgen -G "t/${name}_*.pl" || echo "t/${name}_*.pl") ;;
    esac
    [ -f "$file" ] || say "there is no $file"
  done
done <<<"$rows"

# the list is complete
numbers=$(sed -n 's/^| \([0-9]\{1,2\}\) |.*/\1/p' README.md | tr '\n' ' ')
[ "$numbers" = "$(seq -s ' ' 48) " ] || say "the list of faults is not 1 to 48"

[ "$wrong" -ne 0 ] || echo "faults: ok"
exit "$wrong"
