# What connections lock for the device, as the kernel counts it.
# shellcheck shell=bash disable=SC2154

# locked DEVICE BYTES: what 64 connections lock that are none of the first ones, and so begin with
# small rings: no more than that, or more, where each has sent BYTES before it read the answer.
locked() {
  rig one --device "$1" --memory 700 "export NACC_PATHS=rdma NACC_SOR_CONN_PER_QP=32 NACC_RDMA_MR_MIN_INC_SIZE=16384 NACC_RDMA_MR_MAX_INC_SIZE=16384
memory='/rig/build/netacc_run python3 -Bu /rig/tree/tests/rdma/guest/memory.py'
\$memory serve 10.0.0.1 7000 >/dev/null & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening || exit
\$memory hold 10.0.0.1 7000 64 $2 >held & client=\$!
wait_for 200 grep -qs server_reasons held
exec 2>/dev/null # (The shell says of each that it was killed, when it likes.)
kill -9 \$server \$client; wait
awk -F= '/on_/ { print } /pinned/ { print \$1, \$2 <= 64 * 16 * 2 ? \"small\" : \$2 <= 64 * 320 ? \"more\" : \$2 }' held"
}
for kind in rxe siw; do
  for size in 0:small 40000:more; do
    locked $kind ${size%:*}
    is "what-64-connections-lock-$kind-${size#*:}" 0 "client_on_tcp=0
client_on_rdma=64
client_pinned_kib ${size#*:}
server_on_tcp=0
server_on_rdma=64
server_pinned_kib ${size#*:}" ''
  done
done
