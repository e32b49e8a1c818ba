#!/usr/bin/env bash
# `netacc trace` about processes that run and about killed ones: a trace tells what has become of
# each connection, nobody else may read it, and nothing that happens to it hurts the program.
#
# The traces are in /dev/shm. Where that may be, this has one of its own.
if [ -z "${NETACC_TEST_SHM:-}" ] && unshare -m true 2>/dev/null; then
  NETACC_TEST_SHM=own exec unshare -m bash -c 'mount -t tmpfs tmpfs /dev/shm && exec bash "$0"' "$0"
fi
OWN_MOUNTS=${NETACC_TEST_SHM:-}
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
# (It is on by itself.)
TRACE=("$LIB_DIR/netacc" trace)
APP=$(dirname "$0")/trace_app.py

# ask FILTER ARGUMENTS... : what `netacc trace show` says as JSON, as a line of Python has it, in
# which `t` is the first trace, `c` its connections without the process itself.
ask() {
  local filter=$1; shift
  "${TRACE[@]}" show --json "$@" 2>&1 | python3 -c '
import json, sys
traces = json.load(sys.stdin)
t = traces[0] if traces else None
c = [c for c in t["connections"] if c["number"]] if t else []
names = lambda c: [e["event"] for e in c["events"]]
print('"$filter"')'
}
becomes() { local want=$1; shift; wait_for 20 test_is "$want" "$@"; }
test_is() { [ "$("${@:2}")" = "$1" ]; }
# begin COUNT [--epoll]: a server and a client with so many connections.
begin() {
  PORT=$(free_port)
  become_accel python3 "$APP" server "$PORT" "${@:2}" 2>"$TMP/server.err" &
  SERVER=$!; PIDS+=("$SERVER")
  listens() { (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }
  wait_for 10 listens || { fail start "$(cat "$TMP/server.err")"; finish; exit 1; }
  mkfifo "$TMP/go.$PORT"
  become_accel python3 "$APP" client "$PORT" "$1" <>"$TMP/go.$PORT" >"$TMP/client.$PORT" 2>&1 &
  CLIENT=$!; PIDS+=("$CLIENT")
  wait_for 60 grep -q ready "$TMP/client.$PORT" || { fail client "$(cat "$TMP/client.$PORT")"; finish; exit 1; }
}
killed() { kill -9 "$1"; wait "$1" 2>/dev/null; }

for kind in threads epoll; do
  begin 8 $([ $kind = epoll ] && echo --epoll)
  # (The probe of `listens` is a ninth. Of a connection with a million events the middle is not
  # kept: it may have been promoted there.)
  talking='sum("promoted" in names(x) or any(e.get("path") == "shm" for e in x["events"]) for x in c)'
  if becomes 8 ask "$talking" -p "$SERVER"; then ok $kind-live; else
    fail $kind-live "$("$SS" -s sock "$SERVER"; "${TRACE[@]}" show -p "$SERVER" --last 2)"; fi
  same $kind-listed live "$("${TRACE[@]}" list --json | python3 -c '
import json, sys
print(*[t["state"] for t in json.load(sys.stdin) if t["pid"] == '"$SERVER"'])')"
  # (Long enough for a trace to be told from one that has stopped, once all rings are full.)
  busy='sum(x["recorded"] >= 124 for x in c)'
  if becomes 8 ask "$busy" -p "$SERVER"; then ok $kind-busy; else
    fail $kind-busy "$(ask '[x["recorded"] for x in c]' -p "$SERVER")"; fi
  if becomes "{$SERVER}" ask '{x["peer_pid"] for x in c}' -p "$CLIENT"; then ok $kind-peer-pid; else
    fail $kind-peer-pid "$(ask '[x["peer_pid"] for x in c]' -p "$CLIENT")"; fi
  sleep 3
  killed "$SERVER"
  same $kind-killed killed "$(ask 't["state"]' -p "$SERVER")"
  # Of each connection that talked the last hundred events at least, of more than are kept; and the
  # last one is of its last second, which alone may be missing (docs/manual/trace.md), and of one
  # more, for threads that got no CPU. Its end is when its client had the last answer.
  wait_for 20 grep -q over "$TMP/client.$PORT"
  lasts='sorted((x["recorded"] >= 124 and len(x["events"]) >= 100, x["events"][-1]["ns"] > ends - 2_000_000_000)
    for x in c for ends in [dict(line.split()[1:] for line in open("'$TMP/client.$PORT'") if line.startswith("answered"))
      .get(x["peer"].rpartition(":")[2])] if ends for ends in [int(ends)])'
  same $kind-last-hundred "$(python3 -c 'print([(True, True)] * 8)')" "$(ask "$lasts" -p "$SERVER")"
  same $kind-how-it-began True "$(ask 'all(names(x)[0] == "accepted" for x in c)' -p "$SERVER")"
  same $kind-in-order True "$(ask 'all(x["events"] == sorted(x["events"], key=lambda e: e["ns"]) for x in c)' -p "$SERVER")"
  same $kind-client-was-told True "$(ask 'all(set(names(x)) & {"eof", "error", "peer-gone"} for x in c)' -p "$CLIENT")"
  same $kind-by-port 8 "$(ask 'len(c)' -p "$CLIENT" --port "$PORT")"
  same $kind-by-another-port 0 "$(ask 'len(c)' -p "$CLIENT" --port 1)"
  same $kind-by-peer 8 "$(ask 'len(c)' -p "$CLIENT" --peer 127.0.0.0/8)"
  same $kind-by-event "{'reason'}" "$(ask 'set(sum(map(names, c), []))' -p "$CLIENT" --event reason)"
  same $kind-last 3 "$(ask 'max(len(x["events"]) for x in c)' -p "$CLIENT" --last 3)"
  "${TRACE[@]}" export -p "$SERVER" >"$TMP/exported"; "${TRACE[@]}" show --json -p "$SERVER" >"$TMP/shown"
  check $kind-export python3 "$here/trace_chrome.py" "$TMP/exported" "$TMP/shown"
  # (Each of its kinds, and that there is nothing to count of some: events_app.py.)
  counted=$("${TRACE[@]}" histogram --json -p "$SERVER,$CLIENT" | python3 -c '
import json, sys
print(*sorted(kind["name"] for kind in json.load(sys.stdin) if kind["count"] and kind["max_ns"] >= kind["median_ns"] > 0))')
  check $kind-histogram grep -q 'doorbell to wake.*sleep to wake' <<<"$counted"
  says=$("${TRACE[@]}" show -p "$CLIENT" --event promotd 2>&1)
  same $kind-no-such-event "2 yes" "$? $(grep -q 'promotd: not an event; valid: .*promoted' <<<"$says" && echo yes)"
  # (Nor does what is said go into a file that has its number.)
  says=$("${TRACE[@]}" show -p "$CLIENT" 2>&1 >&-)
  same $kind-closed "1 yes" "$? $(grep -q 'standard output: Bad file descriptor' <<<"$says" && echo yes)"
  # (The disk is full: who follows says so, and ends.)
  says=$(timeout 20 "${TRACE[@]}" show -p "$SERVER" --follow 2>&1 >/dev/full)
  same $kind-full-disk "1 yes" "$? $(grep -q 'standard output: No space left' <<<"$says" && echo yes)"
  # Who ends in order leaves nothing.
  file=$(ask 't["path"]' -p "$CLIENT")
  if [ -e "$file" ]; then ok $kind-there; else fail $kind-there "$file"; fi
  echo >"$TMP/go.$PORT"; wait "$CLIENT" 2>/dev/null
  same $kind-gone "" "$(find /dev/shm -name "netacc-trace.*.$CLIENT")"
done

# Who becomes another program was not killed; who only tries to goes on.
PORT=$(free_port)
become_accel python3 "$APP" server "$PORT" & SERVER=$!; PIDS+=("$SERVER")
wait_for 10 listens
mkfifo "$TMP/go.$PORT"
become_accel python3 "$APP" other "$PORT" <>"$TMP/go.$PORT" >"$TMP/other" 2>&1 & CLIENT=$!; PIDS+=("$CLIENT")
wait_for 60 grep -q 'goes on' "$TMP/other" || fail other "$(cat "$TMP/other")"
same other-goes-on live "$(ask 't["state"]' -p "$CLIENT")"
file=$(find /dev/shm -name "netacc-trace.*.$CLIENT")
echo >"$TMP/go.$PORT"
of_file() { ask 't["state"]' --file "$file"; }
if becomes exec of_file; then ok other-program; else fail other-program "$(of_file)"; fi
check other-program-said grep -q 'it runs another program now$' <("${TRACE[@]}" show --file "$file")
killed "$CLIENT"; killed "$SERVER"
same other-program-is-gone exec "$(of_file)"

# What is over after one request has cost nothing, and left nothing: there is no file.
PORT=$(free_port)
become_accel python3 "$APP" server "$PORT" & SERVER=$!; PIDS+=("$SERVER")
wait_for 10 listens
accel python3 "$APP" short "$PORT" 300 || fail short
same short-connections "" "$(find /dev/shm -name "netacc-trace.*.$SERVER")"
killed "$SERVER"

# Who only receives, or only sends, and never sleeps for long, is looked at all the same: bytes, and
# calls.
PORT=$(free_port)
become_accel python3 "$APP" sink "$PORT" & SERVER=$!; PIDS+=("$SERVER")
# (Asked of the kernel: the one connection that the sink accepts is the stream's.)
bound() { ss -Htln "sport = :$PORT" | grep -q .; }
wait_for 10 bound
become_accel python3 "$APP" stream "$PORT" & CLIENT=$!; PIDS+=("$CLIENT")
moved() {
  ask "any(sum(e['event'] == '$1' and e['messages'] > 0 and e['bytes'] > 0 and e['path'] == 'shm'
               for e in x['events']) >= 5 for x in c)" -p "$2"
}
if becomes True moved received "$SERVER"; then ok receives; else fail receives "$("${TRACE[@]}" show -p "$SERVER" | tail)"; fi
if becomes True moved sent "$CLIENT"; then ok sends; else fail sends "$("${TRACE[@]}" show -p "$CLIENT" | tail)"; fi
killed "$CLIENT"; killed "$SERVER"

# Turned off and on while the program runs.
begin 2
recorded() { ask 'sum(x["recorded"] for x in c)' -p "$SERVER"; }
"$LIB_DIR/netacc" cfg set NACC_TRACE 0 -p "$SERVER" >"$TMP/cfg" || fail set "$(cat "$TMP/cfg")"
sleep 0.2; before=$(recorded); sleep 0.3
same turned-off "$before" "$(recorded)"
"$LIB_DIR/netacc" cfg set trace.enable 1 -p "$SERVER" >"$TMP/cfg" || fail set-again "$(cat "$TMP/cfg")"
more() { [ "$(recorded)" -gt "$before" ]; }
check turned-on wait_for 20 more

# Followed until it is killed.
timeout 60 "${TRACE[@]}" show -p "$SERVER" --follow >"$TMP/followed" & FOLLOWER=$!
wait_for 20 test -s "$TMP/followed"
killed "$SERVER"
if wait "$FOLLOWER"; then ok followed; else fail followed "$(tail -3 "$TMP/followed")"; fi
killed "$CLIENT"

# Other users.
if [ "$(id -u)" = 0 ] && setpriv --reuid 65534 --clear-groups true 2>/dev/null; then
  chmod o+x "$TMP" 2>/dev/null
  same others-see-nothing "no traces" "$(setpriv --reuid 65534 --clear-groups "${TRACE[@]}" list 2>&1)"
else
  skip others-see-nothing "needs root"
fi

# A file of another's making, and one that was made shorter under a program that runs.
head -c 20000 /dev/urandom >/dev/shm/netacc-trace.0000000000000001.1
mkfifo /dev/shm/netacc-trace.0000000000000002.2
ln -s /etc/passwd /dev/shm/netacc-trace.0000000000000003.3
# (A FIFO of that name that somebody holds: who opens it may wait for ever.)
python3 -c '
import os, sys, time
os.mkfifo("/dev/shm/netacc-trace.x")
os.open("/dev/shm/netacc-trace.x", os.O_RDONLY | os.O_NONBLOCK)
print(flush=True)
time.sleep(1000)' >"$TMP/holds" & HOLDER=$!; PIDS+=("$HOLDER")
wait_for 10 test -s "$TMP/holds"
check garbage timeout 20 "${TRACE[@]}" list
check garbage-shown timeout 20 "${TRACE[@]}" show
killed "$HOLDER"
rm -f /dev/shm/netacc-trace.000000000000000[123].[123] /dev/shm/netacc-trace.x
begin 4
: >"$(ask 't["path"]' -p "$SERVER" | sed "s|/proc/[0-9]*/fd.*|$(find /dev/shm -name "netacc-trace.*.$SERVER")|")"
sleep 0.5
if kill -0 "$SERVER" && ! grep -q over "$TMP/client.$PORT"; then ok made-shorter; else
  fail made-shorter "$(cat "$TMP/server.err" "$TMP/client.$PORT")"; fi
killed "$SERVER"; killed "$CLIENT"

# What each kind of event tells, by its name; followed; on and off.
begun=$((PASSED + FAILED))
results events- < <(NETACC_LIB_DIR=$LIB_DIR python3 -B "$here/events_app.py" check 2>&1)
[ $((PASSED + FAILED)) -gt "$begun" ] || fail events "it says nothing"

# A program that locks all its memory has no more of it locked than there are rings, and its name
# forges nothing.
become_accel python3 "$APP" alone 'a\nb \x7f\xc2\x9bc' 2>/dev/null &
LOCKED=$!; wait "$LOCKED" 2>/dev/null
locked=$(find /dev/shm -name "netacc-trace.*.$LOCKED")
small() { [ "$(stat -c %s "$1")" -lt 100000 ] && [ $(("$(stat -c %b "$1")" * 512)) -lt 100000 ]; }
check locked-small small "$locked"
check one-line grep -q "^ *$LOCKED  *a?b " <("${TRACE[@]}" list)
controls() { LC_ALL=C grep -q $'[\x7f\x9b]' <("${TRACE[@]}" "$@"); }
same no-controls "1 1 1" "$(for words in list 'list --json' export; do
  controls $words; echo $?; done | xargs)"

# A program may end under a filter of its own that has no call of the trace's.
become_accel python3 "$APP" confined 2>"$TMP/confined" &
wait $!
same confined-ends "7 " "$? $(cat "$TMP/confined")"

# A child leaves what it has inherited alone, whoever begins to trace later.
become_accel env NACC_TRACE=0 python3 "$(dirname "$0")/trace_fork.py" "$LIB_DIR/netacc" \
  >"$TMP/fork" 2>&1 & FORKED=$!; PIDS+=("$FORKED")
if wait "$FORKED"; then ok forked; else fail forked "$(tail -3 "$TMP/fork")"; fi

# Of ended processes those stay that ended last: a server that has outlived its clients, however
# long ago it began. So does what was killed while something had gone badly.
"$SS" -c >/dev/null
# trace_file PID: the file of a process.
trace_file() { find /dev/shm -name "netacc-trace.*.$1"; }
PORT=$(free_port)
become_accel python3 "$APP" server "$PORT" & SERVER=$!; PIDS+=("$SERVER")
wait_for 10 bound
# lives CLIENT: it has a connection that is traced, and the server has one.
lives() { [ "$(ask 'len(c)' -p "$1" 2>/dev/null)" = 1 ] && [ "$(ask 'bool(c)' -p "$SERVER" 2>/dev/null)" = True ]; }
clients=()
for n in $(seq 17); do
  mkfifo "$TMP/client-go.$n"
  become_accel python3 "$APP" client "$PORT" 1 <>"$TMP/client-go.$n" >"$TMP/client.$n" 2>&1 & CLIENT=$!
  wait_for 60 lives "$CLIENT" || fail outlived-client "$(cat "$TMP/client.$n")"
  killed "$CLIENT"
  clients+=("$CLIENT")
done
# (It has noticed the last one's end.)
ends() { ask '[x["number"] for x in c if x["is_open"]]' -p "$SERVER"; }
if becomes '[]' ends; then ok outlived-noticed; else fail outlived-noticed "$(ends)"; fi
server=$(trace_file "$SERVER")
killed "$SERVER"
become_accel python3 "$APP" alone 2>/dev/null &
wait $! 2>/dev/null
left_of() { for pid; do [ -z "$(trace_file "$pid")" ] || echo "$pid"; done | xargs; }
same outlived "$SERVER" "$(left_of "$SERVER")"
same outlived-first "${clients[*]:2}" "$(left_of "${clients[@]}")"

# What processes have left that ended while they made it keeps nothing else from staying, and goes:
# not while it may be in the making.
now=$(printf %016x "$(date +%s%N)")
half_made() { find /dev/shm -name 'netacc-trace.000000000000000*' -o -name 'netacc-trace.ffff*' | wc -l; }
# (With what there is no more than 32: who begins looks at them each time.)
for n in $(seq 0 9); do : >/dev/shm/netacc-trace.fffffffffffffff$n.1; done
head -c 20000 /dev/zero >/dev/shm/netacc-trace.0000000000000001.1
: >"/dev/shm/netacc-trace.$now.1"
become_accel python3 "$APP" alone 2>/dev/null &
wait $! 2>/dev/null
same half-made "0 1" "$(half_made) $(find /dev/shm -name "netacc-trace.$now.1" | wc -l)"
same half-made-pushes-nothing "$SERVER" "$(left_of "$SERVER")"
: >/dev/shm/netacc-trace.0000000000000001.1
head -c 20000 /dev/zero >/dev/shm/netacc-trace.0000000000000002.1
"$SS" -c >"$TMP/cleared" || fail clear "$(cat "$TMP/cleared")"
same half-made-cleared "0 1" "$(half_made) $(find /dev/shm -name "netacc-trace.$now.1" | wc -l)"
rm "/dev/shm/netacc-trace.$now.1"

# A service of which systemd takes away what it has in /dev/shm when it ends has its trace
# elsewhere: in a folder of its own, which is its user's, and where the tools look by themselves.
elsewhere() {
  local as=() place=/run/netacc/some.service
  if [ "$(id -u)" = 0 ]; then as=(setpriv --reuid 65534 --regid 65534 --clear-groups); fi
  mkdir -p "$place" && chown "$("${as[@]}" id -u)" "$place"
  # service NAME=VALUE...: a server with one connection, in that environment, until it is traced.
  service() {
    PORT=$(free_port)
    become_accel "${as[@]}" env "$@" NACC_LOG_PATH="$TMP/elsewhere.log" python3 -B "$APP" server "$PORT" 2>"$TMP/server.err" & SERVER=$!; PIDS+=("$SERVER")
    wait_for 10 bound || fail elsewhere-start "$(cat "$TMP/server.err")"
    rm -f "$TMP/go"; mkfifo "$TMP/go"
    become_accel python3 "$APP" client "$PORT" 1 <>"$TMP/go" >"$TMP/client" 2>&1 & CLIENT=$!; PIDS+=("$CLIENT")
    becomes True ask '"promoted" in sum(map(names, c), [])' -p "$SERVER" || fail elsewhere-traced "$("${TRACE[@]}" show -p "$SERVER")"
  }
  # What systemd does behind the last process of the service's (clean-ipc.c).
  remove_ipc() { find /dev/shm -mindepth 1 -user "$("${as[@]}" id -u)" -delete; }
  states() { "$@" "${TRACE[@]}" list --json | python3 -c '
import json, sys
print(*[t["state"] for t in json.load(sys.stdin) if t["pid"] == '"$SERVER"'])'; }
  about() { "$LIB_DIR/netacc" doctor "$SERVER" | tr -s ' \n' ' ' | grep -c 'trace: its trace is not in NACC_TRACE_DIR='; }
  files_in() { find "$1" -maxdepth 1 -name "netacc-trace.*.${2:-*}" | wc -l; }

  # (Without that it goes: this is what it is for.)
  service NACC_TRACE=1
  same elsewhere-not "live 0 1" "$(states) $(files_in "$place") $(files_in /dev/shm "$SERVER")"
  killed "$SERVER"; killed "$CLIENT"; remove_ipc
  same elsewhere-not-behind-its-end "" "$(states)"

  service NACC_TRACE_DIR="$place"
  same elsewhere "live 1 0 0" "$(states) $(files_in "$place" "$SERVER") $(files_in /dev/shm "$SERVER") $(about)"
  same elsewhere-mode "600 $("${as[@]}" id -u)" "$(stat -c '%a %u' "$place"/netacc-trace.*."$SERVER")"
  killed "$SERVER"; killed "$CLIENT"; remove_ipc
  same elsewhere-killed "killed killed" "$(states) $(states "${as[@]}")"
  same elsewhere-tells True "$(ask '"promoted" in sum(map(names, c), []) and c[0]["recorded"] > 0' -p "$SERVER")"

  # Where others could put files, and in a folder that is not there, it does not go.
  for flaw in open missing relative disk; do
    local named=$place
    chmod 755 "$place"
    case $flaw in
      open) chmod 777 "$place" ;;
      missing) named=/run/netacc/none ;;
      relative) named=run/netacc ;;
      disk) named=$TMP/disk; mkdir "$named"; chown "$("${as[@]}" id -u)" "$named"
        [ "$(stat -f -c %T "$named")" != tmpfs ] || { skip elsewhere-disk "$TMP is memory"; continue; } ;;
    esac
    rm -f "$TMP/elsewhere.log"; : >"$TMP/elsewhere.log"; chmod 666 "$TMP/elsewhere.log"; [ ${#as[@]} = 0 ] || chown 65534 "$TMP/elsewhere.log"
    service NACC_TRACE_DIR="$named"
    same elsewhere-$flaw "live 0 1 1" "$(states) $(files_in "$named" "$SERVER" 2>/dev/null) $(files_in /dev/shm "$SERVER") $(about)"
    check elsewhere-$flaw-said grep -F "the trace is in /dev/shm" "$TMP/elsewhere.log"
    killed "$SERVER"; killed "$CLIENT"
  done
  chmod 755 "$place"

  # So many stay there, whatever is in /dev/shm; and go where all are taken away.
  for _ in $(seq 20); do
    become_accel "${as[@]}" env NACC_TRACE_DIR="$place" python3 -B "$APP" alone 2>/dev/null & wait $! 2>/dev/null
  done
  same elsewhere-kept 17 "$(files_in "$place")"
  "$SS" -c >/dev/null
  same elsewhere-cleared 0 "$(files_in "$place")"

  # Another folder the tools find where they are told of it.
  place=/dev/shm/own
  mkdir "$place" && chown "$("${as[@]}" id -u)" "$place"
  service NACC_TRACE_DIR="$place"
  killed "$SERVER"; killed "$CLIENT"
  same elsewhere-named " killed" "$(states) $(states env NACC_TRACE_DIR="$place")"
  printf '[netacc]\nNACC_TRACE_DIR=%s\n' "$place" >"$TMP/own.conf"
  same elsewhere-configured killed "$(states env NACC_CONF="$TMP/own.conf")"
  check elsewhere-doctor grep -F "traces are in $place" <(NACC_CONF=$TMP/own.conf "$LIB_DIR/netacc" doctor)
  chmod 777 "$place"
  check elsewhere-doctor-of-an-open-one grep -F "others could put files there" <(NACC_CONF=$TMP/own.conf "$LIB_DIR/netacc" doctor | tr -s ' \n' ' ')
  rm -r "$place"
}
if [ "$OWN_MOUNTS" = own ] && mount -t tmpfs tmpfs /run; then
  elsewhere
else
  skip elsewhere "no mounts of its own"
fi

# So many are kept of killed processes when the next one begins, and no more: of numbers that are
# in use again, too, and however many others have.
become_accel python3 "$APP" alone 2>/dev/null &
wait $! 2>/dev/null
model=$(trace_file $!)
for n in $(seq 10 30); do cp "$model" /dev/shm/netacc-trace.00000000000000$n.$$; done
others=0
if [ "$(id -u)" = 0 ]; then
  for n in $(seq 100 700); do : >/dev/shm/netacc-trace.ffffffffffffff00.$n; done
  others=$(find /dev/shm -name 'netacc-trace.ffff*' | wc -l)
  chown 65534 /dev/shm/netacc-trace.ffff*
fi
# (Where there are so many it is left to one in sixteen of those that begin, by chance: what is
# shown is that it comes to that number, and not below it.)
left() { find /dev/shm -name 'netacc-trace.*' | wc -l; }
for _ in $(seq 400); do
  become_accel python3 "$APP" alone 2>/dev/null &
  wait $! 2>/dev/null
  [ "$(left)" != $((17 + others)) ] || break
done
same kept $((17 + others)) "$(left)"
rm -f /dev/shm/netacc-trace.ffffffffffffff00.*

finish
