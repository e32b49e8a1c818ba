# A device that is deleted while processes hold it, and another one that is made then.
# shellcheck shell=bash disable=SC2154

# The deletion waits for the processes that hold the device. Meanwhile their connections, old and
# new ones, go on as they were; a process that comes then has no device, and uses TCP. The device
# that is made behind it is used: by new processes at once, and by those that found none, which look
# again each minute (shown with NETACC_RIG_LONG=1 alone: it takes that minute). All bytes are
# compared.
off='/rig/build/netacc_run --paths rdma python3 -B /rig/tree/tests/rdma/guest/off.py'
later='' clients='1 2 3 4'
if [ -n "${NETACC_RIG_LONG:-}" ]; then
  clients='1 2 3 4 5' later="sleep 61; tell later
wait_for 60 on \$without rdma 4 && echo who found none: on rdma
enough fifth"
fi
for kind in rxe siw; do
  LIMIT=300 rig two --device $kind "listens() { ss -Hltn \"sport = \$1\" | grep -q .; }
on() { [ \"\$(/rig/build/netacc_ss --path \$2 --json \$1 | grep -c '\"fd\"')\" = \$3 ]; }
enough() { touch /rig/exchange/enough-\$1; await over-\$1; }
gone() { ! ls /dev/infiniband/uverbs*; }
$off server 7000 & holds=\$!
wait_for 30 listens 7000 && tell up
wait_for 60 on \$holds rdma 4 && echo before: on rdma
{ rdma link del rdma0; echo \$? >/rig/exchange/deleted; } &
wait_for 20 gone && tell deletion
wait_for 60 on \$holds rdma 8 && echo new ones of who holds it: on rdma
$off server 7001 & without=\$!
wait_for 30 listens 7001 && tell without
wait_for 60 on \$without tcp 4 && sleep 3 && on \$without tcp 4 && echo of who comes then: on tcp
[ -e /rig/exchange/deleted ] || echo the deletion waits
enough first; enough second; enough third
kill \$holds
wait_for 30 test -e /rig/exchange/deleted && echo deleted: \$(cat /rig/exchange/deleted) \$(ls /sys/class/infiniband)
add_device $kind || exit
$off server 7002 & comes=\$!
wait_for 30 listens 7002 && tell again
wait_for 60 on \$comes rdma 4 && echo with another device: on rdma
enough fourth
$later
await client-ended; kill \$without \$comes" \
    "client() { await \$1 && $off client \$SERVER \$2 /rig/exchange/enough-\$3; tell over-\$3; }
client up 7000 first & client deletion 7000 second & client without 7001 third &
client again 7002 fourth & ${later:+client later 7001 fifth &} wait; tell client-ended"
  is "a-device-is-deleted-$kind" 0 "$(printf 'every byte\n%.0s' $clients)" "server: before: on rdma
server: new ones of who holds it: on rdma
server: of who comes then: on tcp
server: the deletion waits
server: deleted: 0
server: with another device: on rdma${later:+
server: who found none: on rdma}"
done
