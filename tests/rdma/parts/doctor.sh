# What `netacc doctor` says of a connection to another host, and of a host with a device.
# shellcheck shell=bash disable=SC2154

# found FILE CHECK LEVEL TEXT : whether a finding says so.
found() {
  json "$X/$1" "any(f['check'] == '$2' and f['level'] == '$3' and '$4' in f['found'] for f in it['findings'])"
}

# The server's kernel ends when the client's command has.
server='cd /tmp; /rig/build/netacc_run redis-server --bind 10.0.0.1 --protected-mode no --save "" >redis.log 2>&1 & pid=$!
wait_for 30 redis-cli -h 10.0.0.1 ping || { cat redis.log; exit 1; }
tell up; await client-ended; kill $pid; wait $pid'
ask='/rig/build/netacc doctor --json 10.0.0.1:6379'

# Before a connection was used there may be no port of the libraries' yet: the doctor's own has the
# server open it, in its own time. Then there is.
for kind in rxe siw; do
  rig two --device $kind "$server" "await up || exit
/rig/build/netacc doctor --json >/rig/exchange/host.json; echo \$?
$ask >/rig/exchange/before.json; echo \$?
/rig/build/netacc_run redis-benchmark -h \$SERVER -c 2 -n 2000 -t set -q >/dev/null 2>&1
$ask >/rig/exchange/after.json; echo \$?
rdma link del rdma0
$ask >/rig/exchange/none.json; echo \$?"
  is "doctor-$kind" 0 '0
0
0
1' ''
  same "doctor-$kind-host" "True True" "$(found host.json rdma-port ok 'rdma0/1 is ACTIVE') $(found host.json rdma-core ok librdmacm)"
  same "doctor-$kind-before-a-connection" "True True" \
    "$(json "$X/before.json" "any(f['check'] == 'link' and f['level'] in ('note', 'ok') and '26380' in f['found'] for f in it['findings'])") \
$(found before.json route ok net0)"
  same "doctor-$kind-after-one" "True True" "$(found after.json link ok 'port 26380') $(found after.json path ok 'RDMA (rdma0)')"
  same "doctor-$kind-without-device" "True" "$(found none.json path problem no-rdma-device)"
done

rig two --device rxe --without-rdma-core "$server" "await up || exit
$ask >/rig/exchange/client.json; echo \$?"
is doctor-without-rdma-core 0 1 ''
same doctor-names-rdma-core "True True" "$(found client.json rdma-core problem libibverbs) $(found client.json path ok 'TCP, as it is')"
