#!/usr/bin/env bash
# `netacc capture`: what it writes are the bytes that went, at their places of the stream, as
# Wireshark and tcpdump read them; what it could not copy is told. Nobody else may have it, and
# nothing that happens to the program hurts it.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
CAPTURE=("$LIB_DIR/netacc" capture)
APP=$(dirname "$0")/capture_app.py
"${CAPTURE[@]}" -p $$ -w "$TMP/none" 2>"$TMP/said"
same no-library "$? $(grep -c 'is not loaded' "$TMP/said") $([ -e "$TMP/none" ] && echo made)" "1 1 "

serve() {
  PORT=$(free_port)
  become_accel python3 "$APP" server "$PORT" "$@" 2>"$TMP/server.err" &
  SERVER=$!; PIDS+=("$SERVER")
  listens() { grep -qi ":$(printf '%04X' "$PORT") .* 0A " /proc/net/tcp /proc/net/tcp6; }
  wait_for 20 listens || { fail start "$(cat "$TMP/server.err")"; finish; exit 1; }
}
# capture NAME ARGUMENTS... : in the background, until it is ended.
capture() {
  local name=$1; shift
  "${CAPTURE[@]}" -w "$TMP/$name.pcapng" "$@" 2>"$TMP/$name.said" &
  CAPTURING=$!; PIDS+=("$CAPTURING")
  wait_for 20 [ -s "$TMP/$name.pcapng" ] || fail "$name-begins" "$(cat "$TMP/$name.said")"
}
end_capture() { kill -INT "$CAPTURING"; wait_for_end "$CAPTURING" 20; }
# ask NAME EXPRESSION FILES... : of what was captured: `found`, by direction; `of` the directions of
# the first file's client.
ask() {
  local name=$1 expression=$2; shift 2
  python3 "$APP" read "$TMP/$name.pcapng" "$@" >"$TMP/read" 2>&1 || { cat "$TMP/read"; return 1; }
  python3 -c '
import json, sys
found = json.load(open(sys.argv[1]))
port = open(sys.argv[2]).read() if len(sys.argv) > 2 else ""
of = lambda way: found.get(f"{port} {way}", {})
print('"$expression"')' "$TMP/read" "$@"
}
both='[of(way).get("state") for way in ("sent", "received")]'

# has_end NAME FILE: each direction's end is in the file, or that the connection left the rings.
has_end() { python3 "$APP" ended "$TMP/$1.pcapng" "$2"; }

# talk NAME OPTIONS... : requests and replies, all of them, from the first byte. (A machine with
# more to do than it has CPUs for may keep the capture from looking in time.)
talk() {
  local name=$1 try; shift
  for try in 1 2 3 4 5; do
    rm -f "$TMP/$name.pcapng"
    capture "$name" -p "$SERVER"
    accel python3 "$APP" client "$PORT" "$TMP/$name" 300 300 0.002 "$@"
    wait_for 10 has_end "$name" "$TMP/$name"
    end_capture
    # (A connection may leave the rings at its very end: what is behind that is not in the file.)
    [ "$(ask "$name" "$both" "$TMP/$name")" = "$both_whole" ] || continue
    [ "$name" = switched ] ||
      [ "$(ask "$name" 'all("F" in of(way)["flags"] for way in ("sent", "received"))' "$TMP/$name")" = True ] && break
  done
  same "$name-whole" "$both_whole" "$(ask "$name" "$both" "$TMP/$name")"
  same "$name-status" 0 "$STATUS"
}
both_whole="['whole', 'whole']"

# Of a process that has had no connection yet.
serve
talk talk
same talk-begin-and-end "['SF', 'SF']" "$(ask talk '[of(way)["flags"] for way in ("sent", "received")]' "$TMP/talk")"
same talk-comments True "$(ask talk 'any("shm, python3 ('"$SERVER"'), descriptor" in said for said in of("sent")["said"]) and any("kernel" in said for said in of("sent")["said"])' "$TMP/talk")"
check talk-summed-up grep -qE '^netacc capture: [0-9]+ packets with [0-9]+ bytes of 1 connections; no gap; [0-9]+ bytes went over' "$TMP/talk.said"
same mode 600 "$(stat -c %a "$TMP/talk.pcapng")"
# A file that may not grow (RLIMIT_FSIZE) is an error, not the end by a signal.
said=$(ulimit -f 0; "${CAPTURE[@]}" -p "$SERVER" -w "$TMP/small.pcapng" -d 5 2>&1)
same no-room "1 yes" "$? $(grep -q 'File too large' <<<"$said" && echo yes)"

# What others read in it.
if command -v tcpdump >/dev/null; then
  tcpdump -nvr "$TMP/talk.pcapng" >"$TMP/dump" 2>"$TMP/dump.err"
  same tcpdump-sums "0 0" "$(grep -c incorrect "$TMP/dump") $(grep -vcE '^reading from file|^dropped privs' "$TMP/dump.err")"
  same tcpdump-packets "$(sed -nE 's/^netacc capture: ([0-9]+) packets.*/\1/p' "$TMP/talk.said")" "$(grep -c '^    127.0.0.1' "$TMP/dump")"
else skip tcpdump "no tcpdump"; fi
if command -v tshark >/dev/null; then
  tshark -r "$TMP/talk.pcapng" -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -q -z expert,error >"$TMP/expert" 2>/dev/null
  same tshark-no-error 0 "$(grep -cE '^Errors|Malformed' "$TMP/expert")"
  same tshark-bytes "$(ask talk 'sum(d["bytes"] for d in found.values())' "$TMP/talk")" \
    "$(tshark -r "$TMP/talk.pcapng" -T fields -e tcp.len 2>/dev/null | awk '{n += $1} END {print n}')"
  tshark -r "$TMP/talk.pcapng" -Y 'tcp.analysis.lost_segment' 2>/dev/null >"$TMP/lost"
  same tshark-one-gap-each 2 "$(wc -l <"$TMP/lost")"
else skip tshark "no tshark"; fi

# Back to TCP for good: that is said, and no end is made up.
capture off -p "$SERVER"
accel python3 "$APP" client "$PORT" "$TMP/off" 200 300 0.005 & CLIENT=$!; PIDS+=("$CLIENT")
wait_for 20 any_shm "$SERVER"
sleep 0.3
"$LIB_DIR/netacc" cfg set NACC_ENABLE_RDMA_DEFAULT 0 -p "$SERVER" >"$TMP/switched" 2>&1 || fail off-switch "$(cat "$TMP/switched")"
wait "$CLIENT"
"$LIB_DIR/netacc" cfg set NACC_ENABLE_RDMA_DEFAULT 1 -p "$SERVER" >/dev/null
sleep 0.3
end_capture
same off-says-so "True True" "$(ask off '"went on over the kernel" in of("sent")["said"][-1] + of("received")["said"][-1], "F" not in of("sent")["flags"] + of("received")["flags"]' "$TMP/off")"

# Bulk may have gaps. No byte is wrong, and each gap is told (`read` looks at that).
capture bulk -p "$SERVER"
accel python3 "$APP" client "$PORT" "$TMP/b" 60 4000000 0 --bulk
wait_for 20 has_end bulk "$TMP/b"
end_capture
if out=$(ask bulk 'found' "$TMP/b"); then ok bulk-no-wrong-byte; else fail bulk-no-wrong-byte "$out"; fi
same bulk-has-bytes "[True, True]" "$(ask bulk '[of(way)["bytes"] > 0 for way in ("sent", "received")]' "$TMP/b")"
same bulk-end "['240000480', '240000480']" "$(ask bulk '[of(way)["state"].replace("whole", "x 240000480").split()[-1] for way in ("sent", "received")]' "$TMP/b")"
gaps=$(ask bulk 'sum("missing" in said for d in found.values() for said in d["said"])' "$TMP/b")
check bulk-gaps-summed grep -qE "$([ "$gaps" = 0 ] && echo 'no gap' || echo "$gaps gaps of")" "$TMP/bulk.said"

# From the client's side; from both at once it is told once.
become_accel python3 "$APP" client "$PORT" "$TMP/c" 1000000 300 0.002 & CLIENT=$!; PIDS+=("$CLIENT")
wait_for 20 any_shm "$CLIENT"
capture both -p "$CLIENT,$SERVER"
sleep 1
end_capture
same both-once 2 "$(ask both 'len(found)' "$TMP/c")"
same both-in-the-middle "['', '']" "$(ask both '[of(way)["flags"] for way in ("sent", "received")]' "$TMP/c")"
same both-says-where True "$(ask both 'all("begins at byte" in of(way)["said"][0] for way in ("sent", "received"))' "$TMP/c")"

# Some packets, some bytes of each, some time.
capture count -p "$SERVER" -c 5
wait_for_end "$CAPTURING" 20
same count "0 5" "$STATUS $(python3 "$APP" read "$TMP/count.pcapng" >/dev/null; python3 -c '
import struct, sys
data = open(sys.argv[1], "rb").read(); at = n = 0
while at < len(data):
    kind, length = struct.unpack_from("<II", data, at); n += kind == 6; at += length
print(n)' "$TMP/count.pcapng")"
capture duration -p "$SERVER" -d 0.5 -s 60
wait_for_end "$CAPTURING" 20
same duration 0 "$STATUS"
same snapped 60 "$(python3 -c '
import struct, sys
data = open(sys.argv[1], "rb").read(); at = most = 0
while at < len(data):
    kind, length = struct.unpack_from("<II", data, at)
    if kind == 6: most = max(most, struct.unpack_from("<I", data, at + 20)[0])
    at += length
print(most)' "$TMP/duration.pcapng")"
capture filtered -p "$SERVER" --port 1 -d 0.3
wait_for_end "$CAPTURING" 20
check filtered grep -q '^netacc capture: 0 packets' "$TMP/filtered.said"
"${CAPTURE[@]}" -p "$SERVER" -w - -d 0.5 2>"$TMP/said" >"$TMP/stdout.pcapng"
same stdout "0 True" "$? $(ask stdout 'len(found) > 0' "$TMP/c")"
"${CAPTURE[@]}" -p "$SERVER" -w - -d 20 2>"$TMP/said" | head -c 2000 >/dev/null
same reader-gone 0 "${PIPESTATUS[0]}"

# A file that is there is not written to, nor is one that a link leads to.
echo mine >"$TMP/there"; ln -s "$TMP/elsewhere" "$TMP/link.pcapng"; ln -s "$TMP/there" "$TMP/link"
for file in there link link.pcapng; do
  "${CAPTURE[@]}" -p "$SERVER" -w "$TMP/$file" -d 0.2 2>"$TMP/said"
  same "refuses-$file" "1 mine no" "$? $(cat "$TMP/there") $([ -e "$TMP/elsewhere" ] && echo made || echo no)"
done

# The program is stopped meanwhile.
stop "$SERVER"
capture stopped -p "$SERVER" -d 0.5
wait_for_end "$CAPTURING" 20
same stopped 0 "$STATUS"
kill -CONT "$SERVER"

# It is killed: what was seen is there, and it is said.
capture killed -p "$SERVER"
sleep 0.5
kill -9 "$SERVER"; wait "$SERVER" 2>/dev/null
wait_for_end "$CAPTURING" 20
same killed-ends 0 "$STATUS"
if out=$(ask killed 'any("has ended" in said for d in found.values() for said in d["said"]), "F" in str([d["flags"] for d in found.values()])' "$TMP/c"); then
  same killed-says-so "True False" "$out"; else fail killed-says-so "$out"; fi
check killed-said grep -q 'has ended, or has become another program' "$TMP/killed.said"

# Another program in its place is not looked into.
serve
become_accel python3 "$APP" client "$PORT" "$TMP/e" 300 300 0.005 --exec & BECOMES=$!; PIDS+=("$BECOMES")
wait_for 20 any_shm "$BECOMES"
capture exec -p "$BECOMES"
wait_for_end "$CAPTURING" 20
same exec-ends 0 "$STATUS"
same exec-goes-on sleep "$(cat "/proc/$BECOMES/comm")"

# Paths that change at random (tests/inject).
if [ -e "$LIB_DIR/inject/libnetacc_preload.so" ]; then
  own=$LIB LIB=$LIB_DIR/inject/libnetacc_preload.so
  export NETACC_TEST_SWITCH=7
  serve
  talk switched
  unset NETACC_TEST_SWITCH
  LIB=$own
  same switched-says-so True "$(ask switched 'sum("kernel" in said for said in of("sent")["said"]) > 3' "$TMP/switched")"
else skip switched "no $LIB_DIR/inject: tests/inject"; fi

# Fast connect: each connection has its own stream, though they share a carrier and its rings.
PORT=$(free_port)
export NACC_FAST_CONNECT=1
become_accel python3 "$APP" server "$PORT" 2>"$TMP/server.err" & SERVER=$!; PIDS+=("$SERVER")
wait_for 20 listens
accel python3 "$APP" lives "$PORT" "$TMP/life" 3 60 300 0.002 & CLIENT=$!; PIDS+=("$CLIENT")
capture lives -p "$SERVER"
wait "$CLIENT"
unset NACC_FAST_CONNECT
sleep 0.5
end_capture
if out=$(ask lives '[d["state"][:5] for d in found.values()]' "$TMP/life.0" "$TMP/life.1" "$TMP/life.2"); then
  ok lives-no-wrong-byte "$out"; else fail lives-no-wrong-byte "$out"; fi
same lives-each-begins True "$(ask lives 'len(found) >= 2 and all(d["flags"][0] == "S" for d in found.values())' "$TMP/life.0" "$TMP/life.1" "$TMP/life.2")"

# IPv6.
serve --v6
talk six --v6
if command -v tcpdump >/dev/null; then
  same six-sums 0 "$(tcpdump -nvr "$TMP/six.pcapng" 2>/dev/null | grep -c incorrect)"
fi

# Another user may not.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  mkdir -m 777 "$TMP/open"; chmod 755 "$TMP"
  setpriv --reuid 65534 --regid 65534 --clear-groups "${CAPTURE[@]}" -p "$SERVER" -w "$TMP/open/x" -d 0.2 2>"$TMP/said"
  same other-user "1 1 no" "$? $(grep -c 'not permitted' "$TMP/said") $([ -e "$TMP/open/x" ] && echo made || echo no)"
else skip other-user "not root"; fi
finish
