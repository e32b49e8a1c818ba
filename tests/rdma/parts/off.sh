# The off-switch between hosts, to and fro: a process that has no other connections.
# shellcheck shell=bash disable=SC2154

# On which path the four connections are: before, while it is off, and behind that, three times.
off='/rig/build/netacc_run python3 -B /rig/tree/tests/rdma/guest/off.py'
for kind in rxe siw; do
  rig two --device $kind "$off server & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
on() { [ \"\$(/rig/build/netacc_ss --path \$1 --json \$server | grep -c '\"fd\"')\" = 4 ]; }
wait_for 30 listening && tell up
wait_for 60 on rdma && echo on rdma
/rig/build/netacc cfg set --wait 20 NACC_ENABLE_RDMA_DEFAULT 0 -p \$server | sed 's/([0-9]*)/(PID)/'
wait_for 20 on tcp && echo on tcp
/rig/build/netacc_ss --reason disabled-by-config --json \$server | grep -c '\"fd\"'
for round in 1 2 3; do
  /rig/build/netacc cfg set NACC_ENABLE_RDMA_DEFAULT 1 -p \$server >/dev/null
  wait_for 60 on rdma && echo on rdma again
  [ \$round = 3 ] || /rig/build/netacc cfg set --wait 20 NACC_ENABLE_RDMA_DEFAULT 0 -p \$server >/dev/null
done
sleep 1; touch /rig/exchange/enough
await client-ended; kill \$server" \
    "await up && $off client \$SERVER; tell client-ended"
  is "off-switch-$kind" 0 "every byte" "server: on rdma
server: python3 (PID): NACC_ENABLE_RDMA_DEFAULT 1 -> 0, at once; every connection is on TCP
server: on tcp
server: 4
server: on rdma again
server: on rdma again
server: on rdma again"
done

# Redis under a load whose every value is compared, and a benchmark that ends at the first error,
# while acceleration is turned off and on as fast as it goes, at both ends at once:
# guest/off_redis.sh. NETACC_RIG_LONG=1: a thousand times.
limit=200 least=10
[ -z "${NETACC_RIG_LONG:-}" ] || limit=1800 least=1000
script="export FOR=20 TIMES=$least; . /rig/tree/tests/rdma/guest/off_redis.sh"
for kind in rxe siw; do
  LIMIT=$limit rig two --device $kind "$script; off_redis_server" "$script; off_redis_client"
  is "off-redis-$kind" 0 "come back each time
28 on rdma
every value
off_app.py: 0
redis-benchmark: 143" "server: 28 on rdma
server: come back each time
server: 28 on rdma
server: get 0 0
server: set 0 0
server: redis-server: 0"
  # (As often as a machine with other work allows: some 40 times in these seconds on a busy one.)
  often=$(sort -n "$X"/*.times | head -n 1)
  if [ "${often:-0}" -ge $least ]; then ok "off-redis-$kind-times" "$(cat "$X"/*.times | paste -sd+) times; $(cat "$X/client.values")"; else
    fail "off-redis-$kind-times" "$(grep . "$X"/*.times)"; fi
done
