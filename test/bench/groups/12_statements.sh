# shellcheck shell=bash
#
# the statement cache: a point query that joins three tables, by pool and on a lease
#
# The remote parses and plans the query for each execution, or once for each connection.

# way_join POOL: us of a call by pool
way_join() { here "SELECT join_each('$1', $(turns 2000))"; }
# way_join_lease POOL: us on a held lease
way_join_lease() { here "SELECT join_lease('$1', $(turns 2000))"; }

group_12() {
  local at

  for at in apart together; do
    place "$at"
    measure "$rounds" join:p1 join:p1_cache join_lease:p1 join_lease:p1_cache
  done
}

tell_12() {
  local at

  section "The statement cache"
  ratio "join of three tables by pool, statement_cache 20 / 0, apart" apart:join:p1_cache apart:join:p1 "<=0.6"
  ratio "the same on a held lease, apart" apart:join_lease:p1_cache apart:join_lease:p1 -
  ratio "join of three tables by pool, statement_cache 20 / 0, together" together:join:p1_cache together:join:p1 -
  for at in apart together; do
    figure "$at:join:p1" us "join by pool, no cache, $at"
    figure "$at:join:p1_cache" us "join by pool, statement_cache 20, $at"
    figure "$at:join_lease:p1" us "join on a held lease, no cache, $at"
    figure "$at:join_lease:p1_cache" us "join on a held lease, statement_cache 20, $at"
  done
}
