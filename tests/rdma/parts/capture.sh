# `netacc capture` of a process whose connection is on RDMA: all that it has sent is in the file, of
# what it has received a part, and no byte is wrong.
# shellcheck shell=bash disable=SC2154

app='python3 -B /rig/tree/tests/apps/capture_app.py'
# taken EXPRESSION: of what was captured, the directions named as the client has them.
taken() {
  python3 "$RDMA/../apps/capture_app.py" read "$X/server.pcapng" "$X/talk" >"$TMP/taken" 2>&1 || { tail -n 3 "$TMP/taken"; return; }
  json "$TMP/taken" "(lambda of: $1)(lambda way: it.get(open('$X/talk').read() + ' ' + way, {}))"
}
# talk KIND: captured from its first byte on, until the file has its end.
talk() {
  # (32 KB, less than a ring has: nothing is written over before it was looked at.)
  rig two --device "$1" "export CAPTURE_HOST=10.0.0.1
/rig/build/netacc_run $app server 7000 & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening
/rig/build/netacc capture -p \$server -w /rig/exchange/server.pcapng 2>/rig/exchange/said & capture=\$!
wait_for 30 test -s /rig/exchange/server.pcapng && tell up
await client-ended; wait_for 30 $app ended /rig/exchange/server.pcapng /rig/exchange/talk
kill -INT \$capture; wait \$capture; echo status \$?
/rig/build/netacc_ss --json -s cnt \$server >/rig/exchange/counted
kill \$server" "await up && CAPTURE_HOST=\$SERVER NETACC_SS=/rig/build/netacc_ss /rig/build/netacc_run $app client 7000 /rig/exchange/talk 200 300 0.01 --rdma; tell client-ended"
}
is_whole() { [ "$(taken 'of("received").get("state")')" = whole ]; }
# What of the connection was sent over the kernel when it had been on RDMA, which no capture has: a
# machine that stands still for a moment takes it there.
has_left() { [ "$(json "$X/counted" 'it["counters"]["demoted"] > 0')" = True ]; }
for kind in rxe siw; do
  for try in 1 2 3; do
    talk $kind
    [ "$STATUS" = 0 ] && ! is_whole && has_left || break
    echo "(try $try: the connection has left RDMA)"
  done
  is "capture-$kind" 0 "" "server: status 0"
  same "capture-$kind-is-of-rdma" True "$(taken 'any("rdma, python3" in said for way in ("sent", "received") for said in of(way).get("said", []))')"
  if is_whole; then ok "capture-$kind-has-all-that-was-sent"; else
    fail "capture-$kind-has-all-that-was-sent" "$(taken it) $(cat "$X/counted")"; fi
  same "capture-$kind-has-no-wrong-byte" True "$(taken 'of("sent").get("state", "").startswith(("whole", "part"))')"
  count=$(sed -nE 's/^netacc capture: [0-9]+ packets with [0-9]+ bytes of ([0-9]+) connections.*/\1/p' "$X/said")
  # (One that leaves the device for a moment begins anew, and says so.)
  went=$(taken 'any("went on over the kernel" in said for way in ("sent", "received") for said in of(way).get("said", []))')
  case $count:$went in 1:* | [2-9]:True) ok "capture-$kind-sums-up" ;; *) fail "capture-$kind-sums-up" "$(cat "$X/said")" ;; esac
done
