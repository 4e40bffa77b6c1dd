# shellcheck shell=bash
#
# the first remote row of a new session
#
# "Added time" is the time of a session that connects to the local server, reads one
# remote row and disconnects, minus the time of a session that reads a local row. All
# connect to the remote server over TCP with SCRAM, except that the clients of
# PgBouncer log in without a password.

way_fresh() {
  local sql

  case $1 in
    empty) sql='select 1' ;;
    pool) sql="select * from pgpool.query('p1', 'select 1') as t(a int)" ;;
    pool_tls) sql="select * from pgpool.query('p1_tls', 'select 1') as t(a int)" ;;
    dblink) sql="select * from dblink($(remote_literal), 'select 1') as t(a int)" ;;
    dblink_tls) sql="select * from dblink($(remote_literal require), 'select 1') as t(a int)" ;;
    fdw) sql='select * from one_f' ;;
    fdw_tls) sql='select * from one_f_tls' ;;
    proxy) sql='select proxy_one()' ;;
    bouncer) sql="select * from dblink('d_bouncer', 'select 1') as t(a int)" ;;
    bouncer_tls) sql="select * from dblink('d_bouncer_tls', 'select 1') as t(a int)" ;;
  esac
  client fresh "$(turns 40)" "host=$work/s port=$local_port dbname=bench user=postgres" "$sql"
}

# way_direct SSLMODE: a program in C that connects to the remote server itself
way_direct() { client fresh "$(turns 40)" "$(remote_conninfo "$1")" 'select 1'; }

group_2() {
  local ways=(fresh:empty fresh:pool fresh:dblink fresh:fdw direct:disable
    fresh:pool_tls fresh:dblink_tls fresh:fdw_tls direct:require)

  if has plproxy; then
    ways+=(fresh:proxy)
  fi
  if has pgbouncer; then
    ways+=(fresh:bouncer fresh:bouncer_tls)
  fi
  here "SELECT pgpool.exec('p1_tls', 'select 1')" >/dev/null
  place apart
  measure "${ways[@]}"
}

report_2() {
  local way tls empty="apart:fresh:empty"

  declare -A names=([pool]="pgpool_ext" [dblink]="dblink one-shot" [fdw]="postgres_fdw"
    [proxy]="PL/Proxy" [bouncer]="dblink one-shot to PgBouncer")
  section "The first remote row of a new session"
  limit "added time: pgpool_ext, us" "apart:fresh:pool - $empty" "<=1000"
  ratio "added time: pgpool_ext / dblink one-shot" "apart:fresh:pool - $empty" "apart:fresh:dblink - $empty" "<=0.083"
  for tls in '' _tls; do
    for way in dblink fdw bouncer; do
      ratio "added time: pgpool_ext / ${names[$way]}${tls:+, TLS}" "apart:fresh:pool$tls - $empty" \
        "apart:fresh:$way$tls - $empty" -
    done
  done
  ratio "added time of pgpool_ext / whole time of libpq in C" "apart:fresh:pool - $empty" apart:direct:disable -
  ratio "added time of pgpool_ext / whole time of libpq in C, TLS" "apart:fresh:pool_tls - $empty" apart:direct:require -
  figure "$empty" us "whole session with a local row"
  for tls in '' _tls; do
    for way in pool dblink fdw proxy bouncer; do
      figure "apart:fresh:$way$tls" us "whole session: ${names[$way]}${tls:+, TLS}"
      figure "apart:fresh:$way$tls - $empty" us "added time: ${names[$way]}${tls:+, TLS}"
    done
  done
  figure apart:direct:disable us "libpq in C: connect, select 1, disconnect"
  figure apart:direct:require us "libpq in C: connect, select 1, disconnect, TLS"
}
