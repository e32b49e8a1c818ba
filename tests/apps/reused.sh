#!/usr/bin/env bash
# A process that has got the number of one that has ended is another one: for `netacc trace list`,
# and for `netacc_ss -w`, which ends with the process that was meant. In a PID namespace of its own,
# where a number can be given out again.
if [ -z "${NETACC_TEST_REUSED:-}" ] && unshare --mount --pid --fork --mount-proc true 2>/dev/null; then
  # (Whoever is told of signals is outside: the first process of a namespace hears of few.)
  NETACC_TEST_REUSED=own exec unshare --mount --pid --fork --kill-child --mount-proc \
    bash -c 'mount -t tmpfs tmpfs /dev/shm && bash "$0"; exit $?' "$0"
fi
OWN=${NETACC_TEST_REUSED:-}
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
[ "$OWN" = own ] || { skip all "no PID namespaces: not root"; finish; exit; }

NUMBER=4000
# begin NAME: a process of that number, with a connection that is traced; waits until it is.
begin() {
  for _ in $(seq 100); do
    echo $((NUMBER - 1)) >/proc/sys/kernel/ns_last_pid
    become_accel python3 -c '
import socket, time
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname())
s, _ = l.accept()
for _ in range(100):
    c.sendall(b"x"); s.recv(1); s.sendall(b"y"); c.recv(1)
print("up", flush=True)
while True:
    c.sendall(b"x"); s.recv(1); time.sleep(0.01)' >"$TMP/$1" 2>&1 &
    PIDS+=("$!")
    [ "$!" = $NUMBER ] && break
    # (Another process was started meanwhile.)
    kill -9 "$!"; wait "$!" 2>/dev/null
  done
  [ "$!" = $NUMBER ] && wait_for 60 grep -q up "$TMP/$1" || { fail "begin-$1" "$!: $(cat "$TMP/$1")"; finish; exit 1; }
}
states() {
  "$LIB_DIR/netacc" trace list --json | python3 -c '
import json, sys
print(*sorted(t["state"] for t in json.load(sys.stdin) if t["pid"] == '$NUMBER'))'
}
killed() { kill -9 $NUMBER; wait $NUMBER 2>/dev/null; }

begin first
same one-trace live "$(states)"
# It looks, sleeps meanwhile, and looks again.
"$SS" -w 0.2 -s cnt $NUMBER >"$TMP/watched" 2>"$TMP/watched.err" &
watch=$!
PIDS+=("$watch")
if wait_for 30 test -s "$TMP/watched"; then ok watched; else fail watched "$(cat "$TMP/watched.err")"; fi
stop "$watch"
killed
begin second
same two-traces "killed live" "$(states)"
kill -CONT "$watch"
wait_for_end "$watch" 30
same watch-ends 1 "$STATUS"
same watch-says "netacc_ss: $NUMBER: the process has ended; another one has its number now" "$(cat "$TMP/watched.err")"
# By its name whoever has it is meant, and goes on to be shown.
timeout 60 "$SS" -w 0.2 -n 2 -s cnt python3 >"$TMP/named" 2>&1
same by-name 0 "$?"
killed
same two-killed "killed killed" "$(states)"
finish
