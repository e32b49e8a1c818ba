# A host that loses its power while others have connections to it, and comes back.
# shellcheck shell=bash disable=SC2154

# Nobody tells the other end: no FIN, no RST, and what is on the way is lost. When the host is back,
# its kernel knows none of the connections, and resets what speaks on them. So on plain TCP (where
# who only waits has keepalive), and no other way over RDMA. A new connection finds the way anew.
#
# rebooted DEVICE PATH
rebooted() {
  local app='python3 -B /rig/tree/tests/rdma/guest/rebooted.py'
  [ "$2" = plain ] || app="/rig/build/netacc_run $app"
  LIMIT=400 rig two --device "$1" "export NACC_PATHS=rdma
$app server & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening
if [ \$BOOT = 1 ]; then tell up; await lost && crash; fi
tell back; await client-ended; kill \$server" \
    "export NACC_PATHS=rdma; await up && $app client $2; status=\$?; tell client-ended; exit \$status"
}
for kind in none rxe siw; do
  path=rdma; [ $kind != none ] || path=plain
  rebooted $kind $path
  is "a-host-loses-its-power-$kind" 0 'had nothing to do: ECONNRESET
sends: ECONNRESET
waits: ECONNRESET
a new one is on the path again' ''
done
