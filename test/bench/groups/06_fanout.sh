# shellcheck shell=bash
#
# one statement on 2, 4 and 8 servers at once
#
# The servers are pools of one connection, all to the same remote.  pg_sleep tells
# whether they work at the same time, select 1 what it costs to ask.

# way_one SQL, way_fan HOW SERVERS WHAT: ms of a turn
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

tell_6() {
  local n

  section "One statement on many servers"
  ratio "fanout of 100 ms over 8 / one query of it" free:fan:pool:8:sleep free:one:sleep "<=1.3"
  for n in 2 4; do
    ratio "fanout of 100 ms over $n / one query of it" "free:fan:pool:$n:sleep" free:one:sleep -
  done
  for n in 2 4 8; do
    against "fanout of select 1 over $n" "free:fan:pool:$n:select" free:one:select \
      "free:fan:dblink:$n:select" "free:fan:proxy:$n:select"
  done
  grid "ms, pg_sleep(0.1) and select 1" "2 servers=2:sleep" "4=4:sleep" "8=8:sleep" "2, select=2:select" \
    "4, select=4:select" "8, select=8:select"
  line "fanout" free:fan:pool:
  line "dblink_send_query to each" free:fan:dblink:
  line "PL/Proxy, RUN ON ALL" free:fan:proxy:
  figure free:one:sleep ms "query of pg_sleep(0.1) on one pool"
  figure free:one:select ms "query of select 1 on one pool"
  note "PL/Proxy calls a function in PL/pgSQL that sleeps, 0 s for select 1"
}
