# Redis and its clients between two hosts while acceleration is turned off and on at both ends, the
# two halves, for `parts/off.sh`: each is called in a kernel, and says on standard output what has
# come of it. $FOR: for so many seconds, and $TIMES times at least.
# shellcheck shell=bash disable=SC2154

ACCELERATED=28 # 20 of redis-benchmark, and of off_app.py four that stay and four that are made anew
run() { exec /rig/build/netacc_run "$@"; }
look() { /rig/tree/tests/rdma/guest/look.py "$@"; }
switch() { /rig/build/netacc cfg set --wait 5 NACC_ENABLE_RDMA_DEFAULT "$1" -p "$2" >>/tmp/switched 2>&1; }
some() { /rig/build/netacc_ss --path rdma --json "$1" | grep -q '"fd"'; }

# off_and_on NAME PID: how often goes to the exchange folder, and how often connections were seen to
# come back: each fifth time that is waited for.
off_and_on() {
  local end=$((SECONDS + FOR)) times=0 back=0
  while [ $SECONDS -lt $end ] || [ $times -lt "$TIMES" ]; do
    switch 0 "$2"; switch 1 "$2"; times=$((times + 1))
    if [ $((times % 5)) = 0 ] && wait_for 30 some "$2"; then back=$((back + 1)); fi
  done
  echo "$times" >"/rig/exchange/$1.times"
  [ $back = $((times / 5)) ] && echo "come back each time" || echo "$back of $((times / 5)) times come back"
  grep -v 'NACC_ENABLE_RDMA_DEFAULT [01] -> [01], at once' /tmp/switched | sort | uniq -c | head -n 5
}

# on_rdma N PID...: that all of them are, in the end.
on_rdma() {
  wait_for 40 look on "$@" && echo "$1 on rdma" || echo "not on rdma: $(look paths "${@:2}")"
}

off_redis_server() {
  cd /tmp || return
  run redis-server --bind "$SERVER" --protected-mode no --save '' >redis.log 2>&1 &
  local pid=$!
  wait_for 30 redis-cli -h "$SERVER" ping || { cat redis.log; return 1; }
  tell up
  await loaded && on_rdma $ACCELERATED $pid && tell begin && off_and_on server $pid
  await client-toggled && on_rdma $ACCELERATED $pid
  tell looked; await ended
  redis-cli -h "$SERVER" info commandstats | tr -d '\r' | sed -nE 's/^cmdstat_(set|get):.*rejected_calls=([0-9]+),failed_calls=([0-9]+).*/\1 \2 \3/p' | sort
  kill $pid; wait $pid; echo "redis-server: $?"
}

off_redis_client() {
  await up && cd /tmp || return
  run redis-benchmark -h "$SERVER" -c 20 -d 512 -t set -n 1000000000 >bench 2>&1 &
  local bench=$! values
  run python3 -B /rig/tree/tests/apps/off_app.py redis 6379 "$SERVER" >values 2>&1 &
  values=$!
  tell loaded
  await begin && off_and_on client $values
  tell client-toggled
  await looked && on_rdma $ACCELERATED $bench $values
  kill $values; wait $values; local status=$?
  # Its pid, and how many; and what it complains of.
  grep -vE '^[0-9]+( values, [0-9]+ connections)?$' values | head -n 5
  tail -n 1 values | grep -E '^[1-9][0-9]* values' >/rig/exchange/client.values && echo every value
  echo "off_app.py: $status"
  kill $bench; wait $bench; status=$?
  grep -iE 'error|could not|closed' bench | head -n 5
  echo "redis-benchmark: $status"
  tell ended
}
