# NACC_RDMA_STALL_MS on rxe, whose packets to its own kernel cannot be dropped: between two hosts.
# (On siw: options.sh.) The server's end leaves it to the client's.
# shellcheck shell=bash disable=SC2154
LIMIT=200 rig two --device rxe 'NACC_RDMA_STALL_MS=0 /rig/build/netacc_run python3 -B /rig/tree/tests/apps/options_app.py serve $SERVER 7000 & server=$!
listening() { ss -Hltn "sport = 7000" | grep -q .; }
wait_for 30 listening && tell up; await client-ended; kill $server' \
  'await up && NETACC_LIB_DIR=/rig/build python3 -B /rig/tree/tests/rdma/guest/stalled.py $SERVER 7000 2>&1'
is pairs-are-given-up 0 '200 ok
0 ok' ''
