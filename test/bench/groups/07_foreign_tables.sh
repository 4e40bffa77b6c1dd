# shellcheck shell=bash
#
# foreign tables on pools, and with postgres_fdw
#
# The same tables in the schemas "ours" (pgpool_ext) and "peer" (postgres_fdw), and the
# same queries.

# way_point SCHEMA: us of a row by its primary key, in a transaction of its own
way_point() {
  here "CALL each_in_its_transaction('SELECT abalance FROM $1.point WHERE aid = 4711', $(turns 2000), NULL)"
}

# way_point_floor: us of the same statement and the COMMIT, whose answer is awaited, by a program in C. It needs no
# reset, and sets nothing.
way_point_floor() {
  client loop "$(turns 2000)" "$(remote_conninfo)" \
    'START TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT abalance FROM pgbench_accounts WHERE aid = 4711' COMMIT
}

# way_foreign_sessions SCHEMA SESSIONS MODE: on eight connections of a pool, or postgres_fdw with one per session; the
# clients' query mode is simple or prepared
way_foreign_sessions() {
  local role=remote_foreign

  [ "$1" = ours ] || role=remote_each
  PGOPTIONS="-c search_path=$1" sessions sessions_foreign "$2" "$role" -M "$3"
}

# way_scan SCHEMA TABLE: ms of all rows of four columns, each read
way_scan() {
  here "SELECT rows_ms('SELECT count(*) FROM (SELECT * FROM $1.$2 OFFSET 0) AS t WHERE t IS NOT NULL', $rows)"
}

# way_scan_memory SCHEMA TABLE: MB by which the memory of a session has grown after such a scan
way_scan_memory() {
  here "SELECT 'before ' || memory_peak() FROM $1.one" \
    -c "SELECT count(*) FROM (SELECT * FROM $1.$2 OFFSET 0) AS t WHERE t IS NOT NULL" \
    -c "SELECT 'after ' || memory_peak()" |
    awk '$1 == "before" { before = $2 } $1 == "after" { printf "%.1f\n", $2 - before }'
}

# way_first_row [SCHEMA]: us of a new session that reads one row, by default a local one
way_first_row() {
  client fresh "$(turns 60)" "host=$work/s port=$local_port dbname=bench user=postgres" \
    "$([ $# -gt 0 ] && echo "select a from $1.one" || echo 'select 1')"
}

way_insert() {
  there 'TRUNCATE inserted' >/dev/null
  here "SELECT insert_ms('$1.$2', $(turns 10000))"
}

# way_commit OPTION TABLE ...: us of a transaction that writes in these tables, and reads a row of the others, with
# two_phase_commit OPTION
way_commit() {
  local schema=two_phase_$1 table sql=
  shift

  for table; do
    case $table in
      one_*) sql+="SELECT a FROM $schema.$table; " ;;
      *) sql+="INSERT INTO $schema.$table VALUES (1); " ;;
    esac
  done
  here "CALL each_in_its_transaction('$sql SELECT 1', $(turns 1000), NULL)"
}

# way_round_trip: us of a query by a program in C
way_round_trip() {
  client loop "$(turns 2000)" "$(remote_conninfo)" 'SELECT 1'
}

# way_append SCHEMA TABLE [ROWS]: ms of an Append of the tables on four servers, or of one
way_append() {
  here "SET enable_partition_pruning = off; SELECT rows_ms('SELECT count(*) FROM $1.$2 WHERE a IS NOT NULL', ${3:-4})"
}

group_7() {
  sql_here foreign
  here "SELECT count(*) FROM ours.one; SELECT count(*) FROM ours.mixed" >/dev/null
  place apart
  measure point:ours point:peer point_floor
  measure first_row first_row:ours first_row:peer
  measure scan:ours:mixed scan:peer:mixed scan:peer:mixed_10000
  measure scan_memory:ours:mixed scan_memory:peer:mixed
  measure insert:ours:inserted insert:peer:inserted insert:ours:inserted_100 insert:peer:inserted_100
  measure commit:off:transferred_1:transferred_2:ledger commit:on:transferred_1:transferred_2:ledger
  measure commit:off:transferred_1 commit:on:transferred_1
  measure commit:off:one_1:ledger commit:on:one_1:ledger round_trip
  place free
  way_append ours slow 16 >/dev/null # opens the connections of the pools
  measure append:ours:slow:16 append:ours:slow_1 append:peer:slow:16 append:peer:slow_1
  place alone
  measure foreign_sessions:ours:60:simple foreign_sessions:peer:60:simple \
    foreign_sessions:ours:60:prepared foreign_sessions:peer:60:prepared
}

report_7() {
  local w mode

  section "Foreign tables"
  ratio "a row by its primary key in a transaction of its own: pgpool_ext / postgres_fdw" apart:point:ours apart:point:peer "<=0.35"
  ratio "a row by its primary key, floor: a program in C, without settings and reset / postgres_fdw" \
    apart:point_floor apart:point:peer -
  for mode in simple prepared; do
    ratio "60 sessions on 8 / postgres_fdw with 60 connections, pgbench -M $mode" \
      "alone:foreign_sessions:ours:60:$mode.tps" "alone:foreign_sessions:peer:60:$mode.tps" ">=2.0"
    ratio "60 sessions on 8, p99 / postgres_fdw with 60 connections, pgbench -M $mode" \
      "alone:foreign_sessions:ours:60:$mode.p99" "alone:foreign_sessions:peer:60:$mode.p99" "<=0.6"
  done
  ratio "$rows rows: postgres_fdw, fetch_size 100 / pgpool_ext" apart:scan:peer:mixed apart:scan:ours:mixed ">=2.3"
  ratio "$rows rows: postgres_fdw, fetch_size 10000 / pgpool_ext" apart:scan:peer:mixed_10000 apart:scan:ours:mixed ">=1.8"
  limit "$rows rows: growth of the session in MB" apart:scan_memory:ours:mixed "<=4"
  ratio "added time of the first row of a new session: pgpool_ext / postgres_fdw" "apart:first_row:ours - apart:first_row" \
    "apart:first_row:peer - apart:first_row" "<=0.12"
  ratio "INSERT of 10,000 rows: pgpool_ext / postgres_fdw" apart:insert:ours:inserted apart:insert:peer:inserted "<=1.0"
  ratio "INSERT of 10,000 rows, batch_size 100: pgpool_ext / postgres_fdw" apart:insert:ours:inserted_100 apart:insert:peer:inserted_100 "<=1.0"
  ratio "async Append of four servers of 100 ms / one of them" free:append:ours:slow:16 free:append:ours:slow_1 "<=1.15"
  ratio "a transaction that writes on two servers and locally: two_phase_commit on / off" \
    apart:commit:on:transferred_1:transferred_2:ledger apart:commit:off:transferred_1:transferred_2:ledger -
  ratio "a transaction that writes on one server: two_phase_commit on / off" \
    apart:commit:on:transferred_1 apart:commit:off:transferred_1 "<=1.05"
  ratio "a local write and a remote read: what two_phase_commit adds / a round trip of a program in C" \
    "apart:commit:on:one_1:ledger - apart:commit:off:one_1:ledger" apart:round_trip -
  grid "60 sessions, a row by its primary key" tps=.tps "CPU, us=.cpu" p50=.p50 p99=.p99 p99.9=.p999 max=.max Jain=.jain \
    "remote backends=.backends" "private, MB=.own"
  for mode in simple prepared; do
    line "pgpool_ext, 8 connections, -M $mode" "alone:foreign_sessions:ours:60:$mode"
    line "postgres_fdw, one per session, -M $mode" "alone:foreign_sessions:peer:60:$mode"
  done
  declare -A names=([ours]=pgpool_ext [peer]=postgres_fdw)
  for w in ours peer; do
    figure "apart:point:$w" us "${names[$w]}: a row by its primary key in a transaction of its own"
    figure "apart:first_row:$w - apart:first_row" us "${names[$w]}: added time of the first row of a new session"
    figure "apart:scan:$w:mixed" ms "${names[$w]}: $rows rows"
    figure "apart:scan_memory:$w:mixed" MB "${names[$w]}: $rows rows, growth of the session"
    figure "apart:insert:$w:inserted" ms "${names[$w]}: INSERT of $(turns 10000) rows"
    figure "apart:insert:$w:inserted_100" ms "${names[$w]}: INSERT of $(turns 10000) rows, batch_size 100"
    figure "free:append:$w:slow:16" ms "${names[$w]}: async Append of four servers of 100 ms"
    figure "free:append:$w:slow_1" ms "${names[$w]}: one server of 100 ms"
  done
  for w in off on; do
    figure "apart:commit:$w:transferred_1:transferred_2:ledger" us "two_phase_commit $w: a transaction that writes on two servers and locally"
    figure "apart:commit:$w:transferred_1" us "two_phase_commit $w: a transaction that writes on one server"
    figure "apart:commit:$w:one_1:ledger" us "two_phase_commit $w: a local write and a remote read"
  done
  figure apart:round_trip us "floor: a round trip of a program in C"
  figure apart:point_floor us "floor: a row by its primary key, and COMMIT, by a program in C"
  figure apart:scan:peer:mixed_10000 ms "postgres_fdw: $rows rows, fetch_size 10000"
}
