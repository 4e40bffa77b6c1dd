#!/usr/bin/env bash
# The rules that test/mutants removes are still in the sources, and their tests exist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec perl test/mutants/mutate.pl check
