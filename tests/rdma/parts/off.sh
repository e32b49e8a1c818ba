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
