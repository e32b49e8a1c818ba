# A host that loses its power while others have connections to it, and comes back.
# shellcheck shell=bash disable=SC2154

# Nobody tells the other end: no FIN, no RST, and what is on the way is lost. When the host is back,
# its kernel knows none of the connections, and resets what speaks on them. So on plain TCP (where
# who only waits has keepalive), and no other way over RDMA. A new connection finds the way anew.
#
# rebooted DEVICE PATH connects|accepts: what the end does that lives.
rebooted() {
  local app='python3 -B /rig/tree/tests/rdma/guest/rebooted.py' lost=accepts before='' ready=listening
  [ "$2" = plain ] || app="/rig/build/netacc_run $app"
  if [ "$3" = accepts ]; then lost=connects before='await listens' ready=true; fi
  LIMIT=400 rig two --device "$1" "export NACC_PATHS=rdma; $before
$app lost $lost & lost=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 $ready
if [ \$BOOT = 1 ]; then tell up; await lost && crash; fi
tell back; await client-ended; kill \$lost 2>/dev/null; true" \
    "export NACC_PATHS=rdma; [ $3 = accepts ] || await up; $app lives $3 $2; status=\$?; tell client-ended; exit \$status"
}
for how in connects accepts; do
  for kind in none rxe siw; do
    path=rdma; [ $kind != none ] || path=plain
    rebooted $kind $path $how
    is "a-host-loses-its-power-and-the-other-one-$how-$kind" 0 'had nothing to do: ECONNRESET
sends: ECONNRESET
waits: ECONNRESET
a new one is on the path again' ''
  done
done
