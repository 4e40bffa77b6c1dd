#!/usr/bin/env bash
# The files, functions, types and fields that src/README.md names exist; and each file
# of src/ is listed once in its table, in its folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readme=src/README.md
wrong=0
complain() {
  printf 'code_map: %s\n' "$*"
  wrong=1
}

shopt -s nullglob
headers=(src/*/*.h)
sources=(src/*.c src/*/*.c "${headers[@]}")
scripts=(sql/*.sql)

# each word between backquotes that may be a C name
named() {
  tr '`' '\n' <"$readme" |
    grep -xE '[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_]+)?(:[A-Za-z0-9_]+)?' |
    grep -E '[_.]|^P' | sort -u
}

is_word() {
  grep -qw -- "$1" "${sources[@]}" "${scripts[@]}"
}

while read -r name; do
  case $name in
    *.[ch]:*)
      # a function of this file
      grep -Eqs "^${name#*:}\(" src/"${name%%:*}" src/*/"${name%%:*}" ||
        complain "$readme names ${name#*:} in ${name%%:*}, where it is not"
      ;;
    *.[ch])
      found=(src/"$name"* src/*/"$name"*)
      [ "${#found[@]}" -gt 0 ] || complain "$readme names $name, which is no file of src/"
      ;;
    Pgpx*.* | pgpool_ext.*)
      # a field, or a setting
      for part in ${name//./ }; do
        is_word "$part" || complain "$readme names $name, but there is no $part in src/"
      done
      ;;
    *.*) ;;
    *)
      is_word "$name" || complain "$readme names $name, which is nowhere in src/"
      ;;
  esac
done < <(named)

table=$(sed -n '/^## Layers/,/^## Locks/p' "$readme")
for file in src/*.c src/*/*.c; do
  name=$(basename "$file")
  folder=$(awk -F'|' -v row="\`$name\`" '
    NF < 4 { next }
    $2 ~ /[a-z]/ { folder = $2 }
    index($3, row) { print folder }' <<<"$table" | tr -d ' `/')
  expected=$(basename "$(dirname "$file")")
  [ "$expected" != src ] || expected=module
  if [ "$folder" != "$expected" ]; then
    complain "$file must stand in the table of $readme once, under $expected, not under ${folder:-nothing}"
  fi
done

[ "$wrong" -ne 0 ] || echo "code_map: ok"
exit "$wrong"
