# shellcheck shell=bash
#
# a short query with and without the statement cache
#
# The query joins three tables and returns one row. The remote server parses and plans it
# for each execution, or with the cache once for each connection.

# way_join each|lease POOL: us of a call on a pool, or on a held lease; and the CPU time
# of both servers for a call, with the start of the session
way_join() {
  local before n

  n=$(turns 2000)
  before=$(servers_cpu)
  say "us $(here "SELECT join_$1('$2', $n)")"
  cpu_since "$before" "$((n + n / 10))"
}

group_12() {
  local at

  here "CREATE SERVER p1_cache FOREIGN DATA WRAPPER pgpool_fdw
    OPTIONS (base_server 'p1', pool_size '1', statement_cache '20')"
  for at in apart together; do
    place "$at"
    measure "$rounds" join:each:p1 join:each:p1_cache join:lease:p1 join:lease:p1_cache
  done
}

report_12() {
  local at

  section "Statement cache"
  ratio "join of three tables on a pool, statement_cache 20 / 0, apart" apart:join:each:p1_cache.us apart:join:each:p1.us "<=0.6"
  ratio "join of three tables on a held lease, statement_cache 20 / 0, apart" apart:join:lease:p1_cache.us apart:join:lease:p1.us -
  ratio "join of three tables on a pool, statement_cache 20 / 0, together" together:join:each:p1_cache.us together:join:each:p1.us -
  for at in apart together; do
    grid "join of three tables, $at" us=.us "CPU, us=.cpu"
    line "on a pool, no cache" "$at:join:each:p1"
    line "on a pool, statement_cache 20" "$at:join:each:p1_cache"
    line "on a held lease, no cache" "$at:join:lease:p1"
    line "on a held lease, statement_cache 20" "$at:join:lease:p1_cache"
  done
  note "CPU: of both servers for each call, with the start of the session"
}
