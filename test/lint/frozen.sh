#!/usr/bin/env bash
# Scripts of a release do not change: each one in sql/ of a tag vX.Y.Z is the same here.
# Users who have that version would never execute a change in it; a change takes an
# upgrade script.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

git rev-parse -q --verify HEAD >/dev/null 2>&1 || {
  echo "frozen: skipped, there is no git here"
  exit 0
}
status=0
releases=0
for tag in $(git tag --list 'v[0-9]*.[0-9]*.[0-9]*'); do
  releases=$((releases + 1))
  while read -r script; do
    git show "$tag:$script" | cmp -s - "$script" || {
      echo "frozen: $script is not what it was in $tag: write an upgrade script"
      status=1
    }
  done < <(git ls-tree --name-only "$tag" sql/)
done
[ "$status" -ne 0 ] || echo "frozen: ok, $releases releases"
exit "$status"
