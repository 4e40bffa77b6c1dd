# shellcheck shell=bash
#
# one-shot calls of dblink, attached and not
#
# Each call names a server. dblink connects for each call. In database bench_attached the
# call runs on a pool of eight connections. The sessions read a row by its key, without a
# pause.

way_call_attached() {
  here_attached "SELECT dblink_each('p8_default', 'select 1', $(turns 2000))"
}

way_call_dblink() { here "SELECT dblink_each('m', 'select 1', $(turns 100))"; }

way_calls_attached() { session_base=bench_attached sessions sessions_one_shot 60 remote_pool -D server="'p8_default'"; }
way_calls_dblink() { sessions sessions_one_shot 60 - -D server="'m'"; }
way_calls_bouncer() { sessions sessions_one_shot 60 remote_bouncer_reset -D server="'d_bouncer_reset'"; }

group_8() {
  local ways=(calls_attached calls_dblink)

  if has pgbouncer; then
    ways+=(calls_bouncer)
  fi
  place apart
  measure call_attached call_dblink
  place free
  measure "${ways[@]}"
}

report_8() {
  section "One-shot calls of dblink"
  ratio "select 1, attached / dblink" apart:call_attached apart:call_dblink "<=0.02"
  ratio "60 sessions on 8, attached / dblink" free:calls_attached.tps free:calls_dblink.tps -
  ratio "60 sessions on 8, attached / dblink to PgBouncer, both with resets" free:calls_attached.tps \
    free:calls_bouncer.tps -
  figure apart:call_attached us "select 1, attached"
  figure apart:call_dblink us "select 1, dblink"
  grid "60 sessions, a connection for each call but for the pool" tps=.tps "CPU, us=.cpu" p50=.p50 p99=.p99 max=.max
  line "attached, pool of 8" free:calls_attached
  line "dblink" free:calls_dblink
  line "dblink to PgBouncer, 8, resets" free:calls_bouncer
}
