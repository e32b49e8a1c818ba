# The trace of a server that was killed in mid-traffic, between two hosts.
# shellcheck shell=bash disable=SC2154

# Of each connection that talked over RDMA the last hundred events at least, of more than are kept;
# the last one is of the last second (docs/manual/trace.md), or of three more: a kernel has one CPU,
# and threads on it that wait for it.
traced='env NACC_PATHS=rdma TRACE_ADDRESS=10.0.0.1 /rig/build/netacc_run python3 -B /rig/tree/tests/apps/trace_app.py'
for kind in rxe siw; do
  rig two --device $kind --memory 700 "$traced server 7000 & server=\$!
shown() { /rig/build/netacc trace show --json -p \$server >/tmp/trace.json && python3 -B /rig/tree/tests/rdma/guest/trace.py /tmp/trace.json \"\$@\"; }
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && tell up
wait_for 90 shown busy 4 || shown says
sleep 6
before=\$(date +%s%N); kill -9 \$server; wait \$server 2>/dev/null
/rig/build/netacc trace show --json --file /dev/shm/netacc-trace.*.\$server >/tmp/trace.json
python3 -B /rig/tree/tests/rdma/guest/trace.py /tmp/trace.json killed 4 \$before" \
    "await up && $traced client 7000 4 </dev/null | sed 's/ .*//'"
  is "killed-$kind" 0 'ready
answered
answered
answered
answered
over' 'server: killed
server: 4 of 4 with a hundred events
server: 4 of 4 to the end'
done
