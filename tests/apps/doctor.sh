#!/usr/bin/env bash
# `netacc doctor` about real programs: what it says must be so, and what it finds in the way must be
# in the way.
. "$(dirname "$0")/lib.sh"
need_library
command -v redis-server >/dev/null || { skip all "no redis-server"; finish; exit; }
DOCTOR=("$LIB_DIR/netacc" doctor)

# told NAME STATUS TEXT COMMAND... : the doctor ends with that status, and says that, however the
# lines are broken.
told() {
  local name=$1 status=$2 text=$3 out is; shift 3
  out=$(NETACC_LIB=$LIB timeout 60 "$@" 2>&1); is=$?
  if [ "$is" = "$status" ] && tr -s ' \n' ' ' <<<"$out" | grep -qF -- "$text"; then ok "$name"; else
    fail "$name" "status $is, wanted $status and: $text"$'\n'"$out"; fi
}

# start NAME RUN... : a server under RUN; sets PORT_NAME and PID_NAME.
start() {
  local name=$1 port pid; shift
  port=$(free_port)
  "$@" redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$TMP" >"$TMP/$name.out" 2>&1 &
  PIDS+=("$!")
  wait_for 30 sh -c "redis-cli -p $port ping | grep -qx PONG" || { fail "start-$name" "$(tail -n 5 "$TMP/$name.out")"; finish; exit 1; }
  pid=$(redis-cli -p "$port" info server | tr -d '\r' | sed -n 's/^process_id://p')
  PIDS+=("$pid")
  eval "PORT_$name=$port PID_$name=$pid"
}

told program 0 'Nothing is in the way' "${DOCTOR[@]}" redis-server
told host 0 'version' "${DOCTOR[@]}"

start plain env
told plain-server 1 'redis-server runs without the library' "${DOCTOR[@]}" "$PID_plain"
# What a shell is given to show or to mend something does so: of a server that is no service, with
# which words it was started.
line() { "${DOCTOR[@]}" --json "$2" | python3 -c '
import json, sys
print(next(f["command"] for f in json.load(sys.stdin)["findings"] if f["check"] == sys.argv[1] and f["level"] != "ok"))' "$1"; }
if ! command -v python3 >/dev/null; then skip how-it-was-started "no python3"; else
  check how-it-was-started grep -q "redis-server.*$PORT_plain" <(sh -c "$(line process "$PID_plain")"); fi
told plain-server-s-port 1 "process $PID_plain (redis-server) listens on 127.0.0.1:$PORT_plain, and runs without" \
  "${DOCTOR[@]}" "127.0.0.1:$PORT_plain"

start acc accel
told accelerated-server-s-port 0 'shared memory, if the client has the library' "${DOCTOR[@]}" "127.0.0.1:$PORT_acc"
accel redis-benchmark -p "$PORT_acc" -n 20000 -c 4 -t set -q >/dev/null 2>&1
told accelerated-server 0 'redis-server has the library' "${DOCTOR[@]}" "$PID_acc"
shared=$("${DOCTOR[@]}" --json "$PID_acc" | tr -d '\n' | grep -o '[0-9]* accelerated' | head -n 1)
if [ "${shared%% *}" -ge 4 ]; then ok accelerated-connections "$shared"; else fail accelerated-connections "$shared"; fi

# What netacc_ss selects, and what it sees change.
redis-benchmark -p "$PORT_acc" -n 100000000 -c 2 -t get -q >/dev/null 2>&1 &
plain_load=$!
become_accel redis-benchmark -p "$PORT_acc" -n 100000000 -c 3 -t get -q >/dev/null 2>&1 &
PIDS+=("$plain_load" "$!")
loaded() { [ "$("$SS" --path shm "$PID_acc" --json | grep -c '"fd"')" = 3 ] && [ "$("$SS" --reason peer-without-library "$PID_acc" --json | grep -c '"fd"')" = 2 ]; }
if wait_for 30 loaded; then ok selected; else fail selected "$("$SS" -s sock "$PID_acc")"; fi
busy() {
  "$SS" --json -w 0.5 -n 1 -s cnt,sock --sort sent "$PID_acc" | python3 -c '
import json, sys
it = json.loads(sys.stdin.readline())
moved = it["cnt"]["tx_bytes"]["shm"] > 0 and it["cnt"]["tx_bytes"]["tcp"] > 0 and it["cnt"]["rx_bytes_per_s"]["shm"] > 0
sent = [s["tx_bytes"] for s in it["sock"]]
sys.exit(not (moved and sent == sorted(sent, reverse=True) and sum(s > 0 for s in sent) == 5))'
}
if ! command -v python3 >/dev/null; then skip watched "no python3"; elif wait_for 30 busy; then ok watched; else
  fail watched "$("$SS" -w 1 -n 1 -s cnt,sock "$PID_acc")"; fi
kill "$plain_load" "${PIDS[-1]}"

# A plain client that goes on: the server's side says why, and that is in its way. (Those that
# were just killed must be gone.)
reasoned() { "${DOCTOR[@]}" --json "$PID_acc" | grep -q '"found": "peer-without-library: .* [1-9][0-9]* of them open'; }
gone() { ! reasoned; }
wait_for 30 gone || true
redis-cli -p "$PORT_acc" -r -1 -i 0.02 ping >/dev/null 2>&1 &
client=$!
PIDS+=("$client")
if wait_for 30 reasoned; then
  told plain-client 1 'Start the peer with netacc_run' "${DOCTOR[@]}" "$PID_acc"
  # The command that it names says who that is. (Of one's own processes without sudo, too.)
  command=$("${DOCTOR[@]}" --json "$PID_acc" | sed -n 's/^ *"command": "\(sudo \)\{0,1\}\(ss -tnp .*\)",*$/\2/p' | head -n 1)
  if ! command -v ss >/dev/null; then skip plain-client-is-named "no ss"; else
    check plain-client-is-named grep -q "pid=$client," <(sh -c "$command"); fi
else
  fail plain-client "$("${DOCTOR[@]}" "$PID_acc")"
fi
kill "$client"
if wait_for 30 gone; then told plain-client-is-gone 0 'peer-without-library' "${DOCTOR[@]}" "$PID_acc"; else
  fail plain-client-is-gone "$("${DOCTOR[@]}" "$PID_acc")"; fi

stop "$PID_acc"
told stopped 0 "mend: kill -CONT $PID_acc" "${DOCTOR[@]}" "$PID_acc"
kill -CONT "$PID_acc"

# A library that was replaced under a running server.
cp "$LIB" "$TMP/libnetacc-preload.so"
start old env LD_PRELOAD="$TMP/libnetacc-preload.so" NACC_LOG_PATH="$TMP/netacc.log"
cp "$LIB" "$TMP/new.so" && mv "$TMP/new.so" "$TMP/libnetacc-preload.so"
told replaced-library 0 'has been replaced or removed' "${DOCTOR[@]}" "$PID_old"

start off accel env NACC_PATHS=tcp
redis-cli -p "$PORT_off" ping >/dev/null
told turned-off 1 'NACC_PATHS=tcp (environment) leaves it on TCP' "${DOCTOR[@]}" "$PID_off"

if [ "$(id -u)" = 0 ] && command -v setpriv unshare >/dev/null; then
  # In another network namespace: its port is none of ours, and it shares memory with nobody here.
  port=$(free_port)
  accel unshare -n redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$TMP" >"$TMP/away.out" 2>&1 &
  away=$!
  PIDS+=("$away")
  other() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ] && grep -q 0A "/proc/$1/net/tcp"; }
  child() { away=$(pgrep -P "$away" | head -n 1 || true); away=${away:-$1}; }
  child "$away"; PIDS+=("$away")
  if wait_for 30 other "$away"; then
    told other-namespace 0 'in another network namespace' "${DOCTOR[@]}" "$away"
    told other-namespace-s-port 1 'in the network namespace of process' "${DOCTOR[@]}" "127.0.0.1:$port"
  else
    skip other-namespace "no network namespace"
  fi
  nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  if "${nobody[@]}" test -x "$LIB_DIR/netacc"; then
    told other-user 2 'not permitted' "${nobody[@]}" "${DOCTOR[@]}" "$PID_acc"
    told other-user-s-port 0 'it has the library' "${nobody[@]}" "${DOCTOR[@]}" "127.0.0.1:$PORT_acc"
    told set-user-id 1 'is set-user-ID' "${nobody[@]}" "${DOCTOR[@]}" passwd
  else
    skip other-user "another user may not run netacc"
  fi
else
  skip other-user "not root"
fi
# Lines of the log that cannot be written are counted, more and more, and each tool says so: no file
# to write to, and a file system that is full.
lines_dropped() { "$SS" -s cnt --json "$1" | tr -d ' \n' | grep -o '"log_lines_dropped":[0-9]*' | tail -n 1 | grep -o '[0-9]*$'; }
used() { redis-cli -p "$1" -r 5 ping >/dev/null; }
more_dropped() { used "$1" && [ "$(lines_dropped "$2")" -gt "$3" ]; }
dropped() {
  local name=$1 port=$2 pid=$3 some
  wait_for 30 more_dropped "$port" "$pid" 0 || { fail "$name-some" "$("$SS" -s cnt "$pid")"; return; }
  some=$(lines_dropped "$pid")
  if wait_for 30 more_dropped "$port" "$pid" "$some"; then ok "$name-more"; else fail "$name-more" "$("$SS" -s cnt "$pid")"; fi
  if "$SS" -s cnt "$pid" | grep -qE '^log_lines_dropped +[1-9]'; then ok "$name-ss"; else fail "$name-ss" "$("$SS" -s cnt "$pid")"; fi
  if "$LIB_DIR/netacc" metrics | grep -qE "^netacc_log_lines_dropped_total\{.*pid=\"$pid\".*\} [1-9]"; then ok "$name-metrics"; else
    fail "$name-metrics" "$("$LIB_DIR/netacc" metrics | grep log_lines_dropped)"; fi
  told "$name-doctor" 0 'Log messages that could not be written. -> NACC_LOG_PATH=' "${DOCTOR[@]}" "$pid"
}
verbose=(env LD_PRELOAD="$LIB" NACC_LOG_LEVEL=0)
start written "${verbose[@]}" NACC_LOG_PATH="$TMP/netacc-%p.log"
used "$PORT_written"
wait_for 30 test -s "$TMP/netacc-$PID_written.log" || fail written "no log"
same none-dropped 0 "$(lines_dropped "$PID_written")"
start nofile "${verbose[@]}" NACC_LOG_PATH=/dev/full
dropped no-file "$PORT_nofile" "$PID_nofile"
mkdir "$TMP/full"
small() { unshare --mount sh -c "mount -t tmpfs -o size=4k none '$TMP/full' && exec \"\$@\"" sh "$@"; }
if ! small true 2>/dev/null; then skip full-disk "no mount namespaces: not root"; else
  start full small "${verbose[@]}" NACC_LOG_PATH="$TMP/full/netacc.log"
  dropped full-disk "$PORT_full" "$PID_full"
fi

finish
