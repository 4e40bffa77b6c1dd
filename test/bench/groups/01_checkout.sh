# shellcheck shell=bash
#
# checkout and checkin
#
# Checkout and checkin of an unused lease, and the same with a `select 1` on the lease, so
# that the connection needs a reset.

way_pair_lease() { here "SELECT lease_pair('p1', $(turns 20000))"; }
way_pair_advisory() { here "SELECT advisory_pair($(turns 20000))"; }
way_held() { here "SELECT held_lease('p1', 'select 1', $(turns 2000))"; }
# way_each POOL: a lease per statement
way_each() { here "SELECT lease_each('$1', 'select 1', $(turns 2000))"; }
way_call() { here "SELECT one_call_each('$1', 'select 1', $(turns 2000))"; }

group_1() {
  place apart
  measure pair_lease pair_advisory held each:p1 each:p4 each:p1_never call:p1 call:p4
}

report_1() {
  local pool

  section "Checkout and checkin"
  ratio "checkout + checkin in SQL / advisory lock + unlock" apart:pair_lease apart:pair_advisory "<=2.5"
  for pool in p1 p4; do
    ratio "a lease per select 1, pool of ${pool#p}, reset always / a held lease" "apart:each:$pool" apart:held "<=1.8"
    ratio "query on a pool of ${pool#p}, reset always / query on a held lease" "apart:call:$pool" apart:held "<=1.8"
  done
  figure apart:pair_lease us "checkout + checkin in SQL"
  figure apart:pair_advisory us "pg_try_advisory_lock + unlock, in SQL"
  figure apart:held us "select 1 on a held lease"
  for pool in p1 p4 p1_never; do
    figure "apart:each:$pool" us "checkout, select 1, checkin on $pool"
  done
  for pool in p1 p4; do
    figure "apart:call:$pool" us "query on pool $pool"
  done
  note "p1 and p4 are pools of one and of four connections with reset 'always'; _never: reset 'never'"
}
