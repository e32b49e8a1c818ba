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

# A client that goes on, whose process has its connection on RDMA.
client='/rig/build/netacc_run redis-cli -h $SERVER -r -1 -i 0.02 ping >/dev/null 2>&1 & pid=$!
on_rdma() { /rig/build/netacc_ss -s sock --path rdma --json -p $pid | grep -q "\"fd\""; }
wait_for 30 on_rdma || { /rig/build/netacc_ss -s sock -p $pid; exit 1; }'

# Before a connection was used there may be no port of the libraries' yet: the doctor's own has the
# server open it, in its own time. Then there is.
for kind in rxe siw; do
  rig two --device $kind "$server" "await up || exit
/rig/build/netacc doctor --json >/rig/exchange/host.json; echo \$?
$ask >/rig/exchange/before.json; echo \$?
/rig/build/netacc_run redis-benchmark -h \$SERVER -c 2 -n 2000 -t set -q >/dev/null 2>&1
$ask >/rig/exchange/after.json; echo \$?
$client
$ask >/rig/exchange/used.json; echo \$?
kill \$pid
rdma link del rdma0
$ask >/rig/exchange/none.json; echo \$?"
  is "doctor-$kind" 0 '0
0
0
0
1' ''
  same "doctor-$kind-host" "True True" "$(found host.json rdma-port ok 'rdma0/1 is ACTIVE') $(found host.json rdma-core ok librdmacm)"
  same "doctor-$kind-before-a-connection" "True True" \
    "$(json "$X/before.json" "any(f['check'] == 'link' and f['level'] in ('note', 'ok') and '26380' in f['found'] for f in it['findings'])") \
$(found before.json route ok net0)"
  same "doctor-$kind-after-one" "True True" "$(found after.json link ok 'port 26380') $(found after.json path ok 'RDMA (rdma0)')"
  # RoCE: the address here has to be a GID of its second version.
  [ $kind = siw ] || same doctor-gid "True True" \
    "$(found host.json rdma-port ok 'with an address and of RoCE v2: 2') $(found used.json rdma-gid ok '10.0.0.2 is a GID of RoCE v2')"
  # Which library is at the other end is said in the agreement: known while there is one.
  same "doctor-$kind-version" "True True" "$(found before.json library note 'is not known') $(found used.json library ok 'the version at 10.0.0.1 is ')"
  same "doctor-$kind-without-device" "True" "$(found none.json path problem no-rdma-device)"
done

# What is in the way of the agreement alone: a firewall that lets the port of the application pass.
# (No netfilter there: a filter of tc.) What is in the way of the device alone: packets to the
# server that leave by another interface; files of it that nobody may open, or that are missing.
rig two --device rxe "$server" "await up || exit
tc qdisc add dev net0 clsact
for port in 26380 26381 26382 26383; do
  tc filter add dev net0 egress protocol ip flower ip_proto tcp dst_port \$port action drop || exit
done
$ask >/rig/exchange/firewall.json; echo \$?
tc qdisc del dev net0 clsact
ip link add other type dummy && ip link set other up && ip route add 10.0.0.1 dev other src 10.0.0.2 || exit
$ask >/rig/exchange/reach.json; echo \$?
ip link del other
chmod 600 /dev/infiniband/*
chmod 755 / /rig /tmp
setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp $ask >/rig/exchange/files.json; echo \$?
mv /dev/infiniband/rdma_cm /dev/infiniband/elsewhere
$ask >/rig/exchange/missing.json; echo \$?"
is doctor-in-the-way 0 '1
1
1
1' ''
same doctor-firewall "True True" "$(found firewall.json link problem 'ports 26380, 26381, 26382, 26383') $(found firewall.json server ok 'takes connections')"
same doctor-reach "True" "$(found reach.json reach problem 'packets to 10.0.0.1 leave by other, and the device is on net0')"
same doctor-files "True True" "$(found files.json rdma-files problem 'uverbs0: Permission denied') $(found missing.json rdma-files problem 'there is no /dev/infiniband/rdma_cm')"

rig two --device rxe --without-rdma-core "$server" "await up || exit
$ask >/rig/exchange/client.json; echo \$?"
is doctor-without-rdma-core 0 1 ''
same doctor-names-rdma-core "True True" "$(found client.json rdma-core problem libibverbs) $(found client.json path ok 'TCP, as it is')"
