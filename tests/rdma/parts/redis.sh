# Redis in these kernels: what stays on TCP, or on shared memory.
# shellcheck shell=bash disable=SC2154

# Redis under the library; told `up`, its figures in $X/server.json when `loaded` is told.
server='cd /tmp; /rig/build/netacc_run redis-server --bind 127.0.0.1 10.0.0.1 fd00::1 --protected-mode no --save "" >redis.log 2>&1 &
pid=$!
redis-cli --version >/dev/null; wait_for 30 redis-cli -h 10.0.0.1 ping || { cat redis.log; exit 1; }
redis-cli -h 10.0.0.1 config resetstat >/dev/null
figures() {
  redis-cli -h 10.0.0.1 info commandstats | tr -d "\r" | sed -nE "s/^cmdstat_(set|get):calls=([0-9]+),.*/\1 \2/p" | sort >/rig/exchange/calls
  /rig/build/netacc_ss --json -s all $pid >/rig/exchange/server.json
}'
load='/rig/build/netacc_run redis-benchmark -c 20 -n 1000 -d 512 -t set,get -q -h'

# as_before NAME REASON OPTIONS... : between two hosts everything stays on TCP, and both ends say
# why.
as_before() {
  local name=$1 reason=$2; shift 2
  rig two "$@" "$server
tell up; await loaded && figures; tell shown; await client-ended; kill \$pid; wait \$pid" \
    "await up || exit
$load \$SERVER >out 2>&1 && $load \$SERVER6 >>out 2>&1 || { cat out; exit 1; }
value=\$(head -c 3000 /dev/urandom | base64 -w 0)
[ \"\$(/rig/build/netacc_run redis-cli -h \$SERVER set key \$value)\" = OK ] || exit 2
[ \"\$(redis-cli -h \$SERVER getdel key)\" = \"\$value\" ] || exit 3
/rig/build/netacc_run redis-cli -h \$SERVER blpop never 0 & pid=\$!
waiting() { redis-cli -h \$SERVER client list | grep -q cmd=blpop; }
wait_for 30 waiting || exit 4
/rig/build/netacc_ss --json -s sock \$pid >/rig/exchange/client.json
tell loaded; await shown; kill \$pid"
  same "$name" "status 0 out  err  get 2000
set 2001" "status $STATUS out $OUT err $ERR $(cat "$X/calls")"
  # Of the benchmark's connections, which are used enough to be looked into; nothing of it is on
  # another path.
  same "$name-server-says-$reason" "0 0 True" "$(json "$X/server.json" "'%s %s %s' % (
    it['cnt']['total']['shm'], it['cnt']['total']['rdma'], it['cnt']['reasons'].get('$reason', 0) >= 40)")"
  same "$name-client-stays-on-tcp" "('tcp', 'tcp')" "$(json "$X/client.json" "[(s['tx_path'], s['rx_path']) for s in it['sockets']][0]")"
}
as_before redis-two-without-device no-rdma-device --device none
as_before redis-two-without-rdma-core rdma-core-missing --device rxe --without-rdma-core

# on_shm NAME OPTIONS... : within a host it stays shared memory, by the loopback address and by the
# device's.
on_shm() {
  local name=$1; shift
  rig one "$@" "$server
accelerated() { [ \"\$(/rig/build/netacc_ss --json -s sock \$pid | tr -d ' \n' | tr '{' '\n' | grep -c '\"tx_path\":\"shm\",\"rx_path\":\"shm\"')\" = 20 ]; }
for address in 127.0.0.1 10.0.0.1 fd00::1; do $load \$address >out 2>&1 || { cat out; exit 1; }; done
figures
for address in 127.0.0.1 10.0.0.1 fd00::1; do
  /rig/build/netacc_run redis-benchmark -h \$address -c 20 -n 100000000 -t get -q >/dev/null 2>&1 & load=\$!
  wait_for 60 accelerated && echo \$address is accelerated
  kill \$load; wait \$load 2>/dev/null
done
kill \$pid; wait \$pid"
  same "$name" "status 0 out 127.0.0.1 is accelerated
10.0.0.1 is accelerated
fd00::1 is accelerated
get 3000
set 3000 err " "status $STATUS out $OUT
$(cat "$X/calls") err $ERR"
  same "$name-is-never-peer-remote" 0 "$(json "$X/server.json" "it['cnt']['reasons'].get('peer-remote', 0)")"
}
on_shm redis-one-rxe --device rxe
on_shm redis-one-siw --device siw
on_shm redis-one-without-device-and-rdma-core --device none --without-rdma-core

# Sentinel's port is Redis's and 20000; it starts when links are there.
rig two --device rxe "$server
tell up; await loaded
echo >sentinel.conf; redis-server sentinel.conf --sentinel --port 26379 --protected-mode no >sentinel.log 2>&1 & sentinel=\$!
wait_for 30 redis-cli -h 10.0.0.1 -p 26379 ping && echo up || cat sentinel.log
figures; tell shown; await client-ended; kill \$pid \$sentinel; wait \$pid \$sentinel" \
  "await up && $load \$SERVER >out 2>&1 || cat out; tell loaded; await shown"
is sentinel-starts-beside-redis 0 '' 'server: up'
same sentinel-started-beside-links True "$(json "$X/server.json" "it['cnt']['counters']['rdma_links'] > 0 and it['cnt']['total']['rdma'] > 0")"
