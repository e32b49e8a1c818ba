# Processes that share a port, and addresses of one host; why a connection stays on TCP.
# shellcheck shell=bash disable=SC2154

# workers DEVICE N LOCAL PATH [PATHS [ADDRESS [AS]]]: as many connections as processes that accept,
# from another address of the host or not; the server is run by the command AS.
workers() {
  rig one --device "$1" --memory 700 "ip address add 10.0.0.9/24 dev net0; ip address add 10.0.1.9/32 dev lo
workers='/rig/build/netacc_run python3 -B /rig/tree/tests/rdma/guest/workers.py'
export NACC_PATHS=${5:-$4}
${7:-} \$workers server ${6:-10.0.0.1} $2 & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && \$workers client $3 ${6:-10.0.0.1} $2 $4 && wait \$server"
}
for kind in rxe siw; do
  workers $kind 8 10.0.0.1 rdma
  is "each-of-eight-workers-is-on-rdma-$kind" 0 'rdma/rdma 8' ''
done
workers rxe 1 10.0.0.9 shm
is another-address-of-the-host-is-no-other-host 0 'shm/shm 1' ''
# RDMA first, where both addresses have a device (10.0.1.9 has none) and both processes may use it;
# otherwise shared memory.
workers rxe 8 10.0.0.1 rdma rdma,shm
is within-a-host-rdma-comes-first 0 'rdma/rdma 8' ''
workers rxe 8 10.0.1.9 shm rdma,shm
is from-an-address-without-device-it-is-shared-memory 0 'shm/shm 8' ''
workers rxe 8 10.0.0.1 shm rdma,shm 10.0.1.9
is to-an-address-without-device-it-is-shared-memory 0 'shm/shm 8' ''
workers siw 2 10.0.0.1 shm rdma,shm 10.0.0.1 'setpriv --reuid 65534 --clear-groups bash -c "ulimit -l 16; exec \"\$@\"" -'
is with-a-peer-that-may-lock-no-memory-it-is-shared-memory 0 'shm/shm 2' ''

# between REASON COMMAND: a connection between two hosts stays on TCP, and its connector says why;
# COMMAND is the client's, before that.
between() {
  local echo='/rig/build/netacc_run python3 -B /rig/tree/tests/rdma/guest/workers.py'
  rig two --device rxe "ip route add 10.0.0.22 dev net0
$echo server \$SERVER 1 & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && tell up; await client-ended; wait \$server" \
    "await up && tc qdisc add dev net0 clsact && $2 && $echo client \$CLIENT \$SERVER 1 tcp $1"
}
between listener-without-library 'tc filter add dev net0 egress protocol ip flower ip_proto tcp dst_port 27000-27031 action drop'
is closed-ports-of-the-library-cost-acceleration-alone 0 'tcp/tcp 1 listener-without-library' ''
between peer-refused 'ip address add 10.0.0.22 dev net0 && tc filter add dev net0 egress protocol ip matchall action nat egress 10.0.0.2/32 10.0.0.22 &&
tc filter add dev net0 ingress protocol ip matchall action nat ingress 10.0.0.22/32 10.0.0.2'
is translated-addresses-are-nobody-s-connection 0 'tcp/tcp 1 peer-refused' ''

# siw's listener goes when a connection to it ends before siw has taken it (a scan of ports is
# enough); what comes then is served all the same.
vanished='/rig/build/netacc_run python3 -Bu /rig/tree/tests/rdma/guest/vanished.py'
rig one --device siw --memory 700 "export NACC_PATHS=rdma
$vanished server & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && $vanished client && wait \$server"
is a-listener-that-has-vanished-is-made-anew 0 'rdma/rdma 1
nobody listens at 27001
rdma/rdma 4' ''
