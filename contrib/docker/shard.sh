#!/bin/bash
# The tables of a shard of "make demo": those of pgbench.
set -eu
pgbench -i -q -s 2 -U "$POSTGRES_USER" "$POSTGRES_DB"
