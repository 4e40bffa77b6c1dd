# shellcheck shell=bash
#
# a short query with and without the statement cache
#
# The query joins three tables and returns one row. The remote server parses and plans it
# for each execution, or with the cache once for each connection.

# way_join POOL: us of a call on a pool
way_join() { here "SELECT join_each('$1', $(turns 2000))"; }
# way_join_lease POOL: us on a held lease
way_join_lease() { here "SELECT join_lease('$1', $(turns 2000))"; }

group_12() {
  local at

  here "CREATE SERVER p1_cache FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (base_server 'p1', pool_size '1', statement_cache '20')"
  for at in apart together; do
    place "$at"
    measure "$rounds" join:p1 join:p1_cache join_lease:p1 join_lease:p1_cache
  done
}

report_12() {
  local at

  section "Statement cache"
  ratio "join of three tables on a pool, statement_cache 20 / 0, apart" apart:join:p1_cache apart:join:p1 "<=0.6"
  ratio "join of three tables on a held lease, statement_cache 20 / 0, apart" apart:join_lease:p1_cache apart:join_lease:p1 -
  ratio "join of three tables on a pool, statement_cache 20 / 0, together" together:join:p1_cache together:join:p1 -
  for at in apart together; do
    figure "$at:join:p1" us "join on a pool, no cache, $at"
    figure "$at:join:p1_cache" us "join on a pool, statement_cache 20, $at"
    figure "$at:join_lease:p1" us "join on a held lease, no cache, $at"
    figure "$at:join_lease:p1_cache" us "join on a held lease, statement_cache 20, $at"
  done
}
