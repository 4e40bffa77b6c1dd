# shellcheck shell=bash
#
# one statement on several servers at the same time
#
# The 2, 4 or 8 servers are pools of one connection to the same remote server.
# pg_sleep shows whether they work at the same time, select 1 shows the overhead.

# way_one WHAT, way_fan HOW SERVERS WHAT: ms of one execution
way_one() {
  case $1 in
    sleep) here "SELECT fan_one('select pg_sleep(0.1)', $(turns 10))" ;;
    select) here "SELECT fan_one('select 1', $(turns 1000))" ;;
  esac
}

way_fan() {
  local sql='select 1' n

  n=$(turns 500)
  if [ "$3" = sleep ]; then
    sql='select pg_sleep(0.1)'
    n=$(turns 10)
    [ "$1" != proxy ] || sql=0.1
  elif [ "$1" = proxy ]; then
    sql=0
  fi
  here "SELECT fan_$1($2, '$sql', $n)"
}

group_6() {
  local n what proxy

  place free
  for what in sleep select; do
    for n in 2 4 8; do
      proxy=()
      has plproxy && proxy=("fan:proxy:$n:$what")
      measure "$long_rounds" "one:$what" "fan:pool:$n:$what" "fan:dblink:$n:$what" "${proxy[@]}"
    done
  done
}

report_6() {
  local n

  section "One statement on several servers"
  ratio "fanout of pg_sleep(0.1) to 8 servers / query on one" free:fan:pool:8:sleep free:one:sleep "<=1.3"
  for n in 2 4; do
    ratio "fanout of pg_sleep(0.1) to $n servers / query on one" "free:fan:pool:$n:sleep" free:one:sleep -
  done
  for n in 2 4 8; do
    against "fanout of select 1 to $n servers" "free:fan:pool:$n:select" free:one:select \
      "free:fan:dblink:$n:select" "free:fan:proxy:$n:select"
  done
  grid "ms per execution" "pg_sleep, 2 servers=2:sleep" "4=4:sleep" "8=8:sleep" "select 1, 2 servers=2:select" \
    "4=4:select" "8=8:select"
  line "fanout" free:fan:pool:
  line "dblink_send_query to each" free:fan:dblink:
  line "PL/Proxy, RUN ON ALL" free:fan:proxy:
  figure free:one:sleep ms "query of pg_sleep(0.1) on one pool"
  figure free:one:select ms "query of select 1 on one pool"
  note "PL/Proxy calls a PL/pgSQL function that sleeps for 0.1 s, or for 0 s in place of select 1"
}
