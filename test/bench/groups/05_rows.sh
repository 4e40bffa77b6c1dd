# shellcheck shell=bash
#
# large results
#
# All rows are counted and discarded. The floor is a program in C that reads the rows
# with libpq, row by row in text format, and discards them.

rows_columns() {
  case $1 in
    mixed) echo 'a int, b text, c timestamptz, d numeric' ;;
    numbers) echo 'a int, b int, c bigint, d bigint, e float8, f float8, g int, h int' ;;
  esac
}

# way_rows HOW TABLE: ms of all its rows
way_rows() {
  local columns

  columns=$(rows_columns "$2")
  case $1 in
    pool) here "SELECT rows_by_pool('p1', 'select * from $2', '$columns', $rows)" ;;
    dblink) here "SELECT rows_by_dblink('d', 'select * from $2', '$columns', $rows)" ;;
    # the condition makes postgres_fdw request all columns
    fdw) here "SELECT rows_ms('SELECT count(*) FROM (SELECT * FROM rows_$2 OFFSET 0) AS t WHERE t IS NOT NULL', $rows)" ;;
    libpq) client stream 1 "$(remote_conninfo)" "select * from $2" | in_ms ;;
  esac
}

# microseconds to milliseconds
in_ms() {
  awk '{ printf "%.3f\n", $1 / 1000 }'
}

# way_stream HOW: MB/s of 100 MB in rows of 8 kB, discarded
way_stream() {
  local n=$((quick ? 1250 : 12500)) sql

  sql="select repeat('x', 8000) from generate_series(1, $n)"
  case $1 in
    pool) here "SELECT held_exec('p1', \$\$$sql\$\$, 3)" ;;
    relay) here "SELECT held_exec('p1_tls', \$\$$sql\$\$, 3)" ;;
    libpq) client stream 3 "$(remote_conninfo)" "$sql" ;;
    tls) client stream 3 "$(remote_conninfo require)" "$sql" ;;
    bouncer) client stream 3 "$(bouncer_conninfo "$bouncer")" "$sql" ;;
    bouncer_tls) client stream 3 "$(bouncer_conninfo "$bouncer_tls")" "$sql" ;;
  esac | awk -v n="$n" '{ printf "%.1f\n", n * 8000 / $1 }'
}

group_5() {
  local table bouncer_ways=()

  has pgbouncer && bouncer_ways=(stream:bouncer stream:bouncer_tls)
  here "SELECT pgpool.exec('p1_tls', 'select 1')" >/dev/null
  sql_here rows
  for table in mixed numbers; do
    # the first execution of a statement returns text
    way_rows pool "$table" >/dev/null
  done
  for table in mixed numbers; do
    place apart
    measure "rows:pool:$table" "rows:dblink:$table" "rows:fdw:$table" "rows:libpq:$table"
    place free
    measure "rows:pool:$table" "rows:dblink:$table"
  done
  measure stream:pool stream:libpq stream:relay stream:tls "${bouncer_ways[@]}"
}

report_5() {
  local table at

  declare -A shapes=([mixed]="int, text, timestamptz, numeric" [numbers]="eight numbers")
  declare -A targets=([mixed]=2.3 [numbers]=2.0)
  section "Large results"
  for table in mixed numbers; do
    # the target is a speed-up: the time of dblink / that of pgpool_ext
    for at in apart free; do
      ratio "$rows rows, ${shapes[$table]}: dblink / pgpool_ext, $at" "$at:rows:dblink:$table" \
        "$at:rows:pool:$table" ">=${targets[$table]}"
    done
    ratio "$rows rows, ${shapes[$table]}: pgpool_ext / floor, libpq in C" "apart:rows:pool:$table" "apart:rows:libpq:$table" -
  done
  ratio "TLS: 100 MB, relay / libpq to PgBouncer" free:stream:relay free:stream:bouncer_tls ">=1.4"
  ratio "TLS: 100 MB, relay / libpq" free:stream:relay free:stream:tls ">=0.9"
  ratio "100 MB on a lease / libpq" free:stream:pool free:stream:libpq -
  grid "$rows rows, ms, free" "pgpool_ext=pool" "dblink=dblink"
  for table in mixed numbers; do
    line "${shapes[$table]}" "free:rows:|:$table"
  done
  grid "$rows rows, ms, apart" "pgpool_ext=pool" "dblink=dblink" "postgres_fdw=fdw" "floor=libpq"
  for table in mixed numbers; do
    line "${shapes[$table]}" "apart:rows:|:$table"
  done
  figure free:stream:pool MB/s "100 MB in rows of 8 kB, discarded: pgpool_ext"
  figure free:stream:libpq MB/s "100 MB in rows of 8 kB, discarded: libpq in C"
  figure free:stream:bouncer MB/s "100 MB in rows of 8 kB, discarded: libpq in C to PgBouncer"
  figure free:stream:relay MB/s "TLS: the same, pgpool_ext, relay"
  figure free:stream:tls MB/s "TLS: the same, libpq in C"
  figure free:stream:bouncer_tls MB/s "TLS: the same, libpq in C to PgBouncer"
}
