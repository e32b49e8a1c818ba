#!/usr/bin/env bash
# CPython: http.server with urllib, a forking server, selectors, asyncio with subprocesses; every
# mix of ends.
. "$(dirname "$0")/lib.sh"
need_library
PYTHON=/usr/bin/python3
[ -x $PYTHON ] || PYTHON=$(command -v python3) || { skip all "no python3"; finish; exit; }
APP=$here/python_app.py

serve() { # NAME COMMAND...
  local name=$1; shift
  "$@" $PYTHON "$APP" serve >"$TMP/$name.ports" 2>"$TMP/$name.err" &
  PIDS+=("$!")
  wait_for 10 grep -q . "$TMP/$name.ports" || { fail "start-$name" "$(cat "$TMP/$name.err")"; finish; exit 1; }
}
serve plain env
serve acc env LD_PRELOAD="$LIB" NACC_LOG_PATH="$TMP/netacc.log"
server=${PIDS[1]}
expected=$($PYTHON "$APP" client $(cat "$TMP/plain.ports") 2>&1)
case $expected in *"asyncio 40"*) ok plain-both ;; *) fail plain-both "$expected" ;; esac
same accelerated-server "$expected" "$($PYTHON "$APP" client $(cat "$TMP/acc.ports") 2>&1)"
same accelerated-client "$expected" "$(accel $PYTHON "$APP" client $(cat "$TMP/plain.ports") 2>&1)"
most=0
accel $PYTHON "$APP" client $(cat "$TMP/acc.ports") >"$TMP/both" 2>&1 &
client=$!
while kill -0 $client 2>/dev/null; do n=$(shm_count "$server"); [ "$n" -gt $most ] && most=$n; done
same accelerated-both "$expected" "$(cat "$TMP/both")"
[ $most -ge 5 ] && ok accelerated "$most connections on shared memory" || fail accelerated "only $most connections on shared memory"
check server-had-no-error sh -c "! grep -q Traceback $TMP/acc.err"
finish
