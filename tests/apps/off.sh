#!/usr/bin/env bash
# The off-switch (`netacc cfg set NACC_ENABLE_RDMA_DEFAULT`), to and fro under load: no byte is
# wrong, no client sees an error, nobody waits for ever.
# NETACC_OFF_SECONDS: how long the load of threads runs (default: 6); NETACC_OFF_TIMES: how often it
# is off and on under that of Redis (default: 1000).
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
CFG=("$LIB_DIR/netacc" cfg)
APP=$(dirname "$0")/off_app.py
SECONDS_EACH=${NETACC_OFF_SECONDS:-6} TIMES=${NETACC_OFF_TIMES:-1000}

switch() { "${CFG[@]}" set --wait 5 NACC_ENABLE_RDMA_DEFAULT "$@" >>"$TMP/switched" 2>&1; }
on_path() { "$SS" --path "$1" --json "$2" | grep -c '"fd"'; }
test_is() { [ "$("${@:2}")" = "$1" ]; }
some() { [ "$("$@")" -gt 0 ]; }
because() { "$SS" --reason disabled-by-config --json "$1" | grep -c '"fd"'; }

# Off, and the reason; on, and the same connections are accelerated again, and one that was made
# meanwhile.
PORT=$(free_port)
become_accel python3 "$(dirname "$0")/cfg_app.py" server "$PORT" 2>"$TMP/server.err" &
SERVER=$!; PIDS+=("$SERVER")
listens() { (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }
wait_for 10 listens || { fail start "$(cat "$TMP/server.err")"; finish; exit 1; }
coproc CLIENT { become_accel python3 "$(dirname "$0")/cfg_app.py" client "$PORT" 2>"$TMP/client.err"; }
read -r -t 20 -u "${CLIENT[0]}" PID; PIDS+=("$PID")
tell() { local line; echo "$*" >&"${CLIENT[1]}"; read -r -t 60 -u "${CLIENT[0]}" line && echo "$line"; }
tell open 3 >/dev/null
if wait_for 20 test_is 3 on_path shm "$PID"; then ok accelerated; else fail accelerated "$("$SS" -s sock "$PID")"; fi
out=$("${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 0 -p "$PID" 2>&1)
if grep -qF '1 -> 0, at once; every connection is on TCP' <<<"$out"; then ok off; else fail off "$out"; fi
same reason 3 "$(because "$PID")"
out=$("$LIB_DIR/netacc" doctor --json "$PID" 2>&1)
if grep '"command"' <<<"$out" | grep -qF "netacc cfg set NACC_ENABLE_RDMA_DEFAULT 1 -p $PID"; then ok doctor; else fail doctor "$out"; fi
same goes-on done "$(tell use)"
tell open 1 >/dev/null
same new-ones-too 4 "$(because "$PID")"
"${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 1 -p "$PID" >/dev/null
# used until they are all accelerated.
used_until_on() { tell use >/dev/null; test_is "$1" on_path shm "$PID"; }
if wait_for 20 used_until_on 4; then ok on-again; else fail on-again "$("$SS" -s sock "$PID")"; fi
same no-reason-left 0 "$(because "$PID")"
tell open 2 >/dev/null
if wait_for 20 test_is 6 on_path shm "$PID"; then ok new-ones-again; else fail new-ones-again "$("$SS" -s sock "$PID")"; fi
# A peer that is stopped gives nothing back: that is said, and its connections follow.
stop "$SERVER"
out=$("${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 0 --wait 0.5 -p "$PID" 2>&1)
kill -CONT "$SERVER"
if grep -qF 'connections follow when their peers answer and what lies in their rings is read' <<<"$out"; then ok peer-stopped; else fail peer-stopped "$out"; fi
same goes-on-behind-that done "$(tell use)"
if wait_for 20 test_is 0 on_path shm "$PID"; then ok has-followed; else fail has-followed "$("$SS" -s sock "$PID")"; fi
"${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 1 -p "$PID" >/dev/null
if wait_for 20 used_until_on 6; then ok on-behind-that; else fail on-behind-that "$("$SS" -s sock "$PID")"; fi

# The other end's process: this one's connections go back with it.
"${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 0 -p "$SERVER" >/dev/null
same peer-off done "$(tell use)"
if wait_for 20 test_is 0 on_path shm "$PID"; then ok both-ways; else fail both-ways "$("$SS" -s sock "$PID")"; fi
"${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 1 -p "$SERVER" >/dev/null
if wait_for 20 used_until_on 6; then ok peer-on-again; else fail peer-on-again "$("$SS" -s sock "$PID")"; fi

# What begins in some ways while it is off stays on TCP when it is on again: opened with its first
# bytes, or passed. A child that is forked meanwhile stays off altogether.
CHILD=$(tell fork); PIDS+=("$CHILD")
if wait_for 20 test_is 1 on_path shm "$CHILD"; then ok child; else fail child "$("$SS" -s sock "$CHILD")"; fi
"${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 0 -p "$PID,$CHILD" >/dev/null
same fast-open done "$(tell fast-open)"
same pass done "$(tell pass)"
if wait_for 20 test_is 2 because "$CHILD"; then ok passed; else fail passed "$("$SS" -s sock "$CHILD")"; fi
OFF=$(tell fork); PIDS+=("$OFF")
"${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 1 -p "$PID,$CHILD" >/dev/null
if wait_for 20 used_until_on 6; then ok on-behind-these; else fail on-behind-these "$("$SS" -s sock "$PID")"; fi
if wait_for 20 test_is 1 on_path shm "$CHILD"; then ok child-is-again; else fail child-is-again "$("$SS" -s sock "$CHILD")"; fi
for _ in 1 2 3 4 5; do tell use >/dev/null; sleep 0.1; done
same fast-open-stays '6 1' "$(on_path shm "$PID") $(because "$PID")"
same passed-stays '1 1' "$(on_path shm "$CHILD") $(because "$CHILD")"
out=$("${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 1 -p "$OFF" 2>&1)
if grep -qF 'takes no requests' <<<"$out"; then ok forked-while-off; else fail forked-while-off "$out"; fi
same forked-stays-off '0 1' "$(on_path shm "$OFF") $(because "$OFF")"
kill "$CHILD" "$OFF"

# Many connections to a peer that is stopped do not keep the others (50 ms for each is 20 s).
PORT=$(free_port)
become_accel python3 "$APP" server "$PORT" 2>"$TMP/stopped.err" &
STOPPED=$!; PIDS+=("$STOPPED")
wait_for 10 listens || { fail start-stopped "$(cat "$TMP/stopped.err")"; finish; exit 1; }
MANY=$PORT; PORT=$(free_port)
become_accel python3 "$APP" server "$PORT" 2>"$TMP/other.err" &
OTHER=$!; PIDS+=("$OTHER")
wait_for 10 listens || { fail start-other "$(cat "$TMP/other.err")"; finish; exit 1; }
mkfifo "$TMP/in"
become_accel python3 "$APP" idle "$MANY" 400 "$PORT" <"$TMP/in" >"$TMP/idle" 2>"$TMP/idle.err" &
PID=$!; PIDS+=("$PID")
exec {IN}>"$TMP/in"
wait_for 60 grep -q '^[0-9]' "$TMP/idle"
if wait_for 20 test_is 403 on_path shm "$PID"; then ok idle-accelerated; else fail idle-accelerated "$(on_path shm "$PID")"; fi
stop "$STOPPED"
"${CFG[@]}" set NACC_ENABLE_RDMA_DEFAULT 0 -p "$PID" >/dev/null
if wait_for 8 test_is 400 on_path shm "$PID"; then ok others-are-not-kept; else fail others-are-not-kept "$(on_path shm "$PID")"; fi
exec {IN}>&-
if wait_for 20 grep -q '^done' "$TMP/idle"; then ok others-go-on; else fail others-go-on "$(cat "$TMP/idle.err")"; fi
kill -CONT "$STOPPED"

# toggle SECONDS TIMES PID... : off and on, in one process, in the others, in all, for so long, or
# so often; prints how often, and how often a connection of the last one was seen to come back: each
# tenth time that is waited for.
toggle() {
  local end=$((SECONDS + $1)) times=$2 n=0 back=0; shift 2
  local all; all=$(IFS=,; echo "$*")
  local turns=("$1" "$all" "${@: -1}" "$all")
  while [ $SECONDS -lt $end ] && [ $n -lt "$times" ]; do
    local who=${turns[n % 4]}
    switch 0 -p "$who"; switch 1 -p "$who"; n=$((n + 1))
    if [ $((n % 10)) = 0 ] && wait_for 20 some on_path shm "${@: -1}"; then back=$((back + 1)); fi
  done
  echo "$n $back"
}

# Threads in recv, poll, select and epoll, at both ends, whose bytes are compared.
PORT=$(free_port)
become_accel python3 "$APP" server "$PORT" 2>"$TMP/load-server.err" &
SERVER=$!; PIDS+=("$SERVER")
wait_for 10 listens || { fail start-load "$(cat "$TMP/load-server.err")"; finish; exit 1; }
become_accel python3 "$APP" client "$PORT" >"$TMP/load" 2>"$TMP/load.err" &
LOAD=$!; PIDS+=("$LOAD")
wait_for 20 grep -q '^[0-9]*$' "$TMP/load"
if wait_for 20 some on_path shm "$LOAD"; then ok load-is-accelerated; else fail load-is-accelerated "$("$SS" -s sock "$LOAD")"; fi
read -r times back <<<"$(toggle "$SECONDS_EACH" 1000000 "$SERVER" "$LOAD")"
same load-comes-back $((times / 10)) "$back"
switch 1 -p "$SERVER,$LOAD"
if wait_for 20 some on_path shm "$LOAD"; then ok load-is-again; else fail load-is-again "$("$SS" -s sock "$LOAD")"; fi
kill "$LOAD"
if wait "$LOAD"; then ok every-byte "$times times off and on, $(tail -n 1 "$TMP/load")"; else
  fail every-byte "$(cat "$TMP/load" "$TMP/load.err" "$TMP/load-server.err")"; fi
same load-without-complaints '' "$(cat "$TMP/load-server.err")"

# Redis, with a benchmark that says each error.
if command -v redis-server >/dev/null; then
  PORT=$(free_port)
  become_accel redis-server --port "$PORT" --bind 127.0.0.1 --save '' --dir "$TMP" >"$TMP/redis.out" 2>&1 &
  SERVER=$!; PIDS+=("$SERVER")
  wait_for 30 sh -c "redis-cli -p $PORT ping | grep -qx PONG"
  bench() {
    until [ -e "$TMP/enough" ]; do
      accel redis-benchmark -p "$PORT" -n 20000 -c 20 -d 300 -t set,get,lrange_100 -q || return 1
    done
  }
  bench >"$TMP/bench" 2>&1 &
  BENCH=$!
  # And one that compares each value.
  become_accel python3 "$APP" redis "$PORT" >"$TMP/values" 2>"$TMP/values.err" &
  VALUES=$!; PIDS+=("$VALUES")
  wait_for 20 grep -q '^[0-9]*$' "$TMP/values"
  wait_for 20 some on_path shm "$SERVER"
  before=$("$SS" --json "$SERVER" | tr -d ' \n' | grep -o '"shm":[0-9]*' | sed -n 2p)
  # (As long as it takes: a second for each is many times what one takes on a busy machine.)
  read -r times back <<<"$(toggle $((TIMES + 20)) "$TIMES" "$SERVER")"
  touch "$TMP/enough"
  same redis-times "$TIMES off and on, $((TIMES / 10)) seen to come back" "$times off and on, $back seen to come back"
  kill "$VALUES"
  if wait "$VALUES" && [ ! -s "$TMP/values.err" ] && [ "$(tail -n 1 "$TMP/values" | cut -d ' ' -f 1)" -gt "$TIMES" ]; then
    ok every-value "$(tail -n 1 "$TMP/values")"; else fail every-value "$(cat "$TMP/values" "$TMP/values.err")"; fi
  if wait "$BENCH" && ! grep -qiE 'error|could not|closed' "$TMP/bench"; then ok redis "$times times off and on; before $before"; else
    fail redis "$(tail -n 20 "$TMP/bench")"; fi
  after=$("$SS" --json "$SERVER" | tr -d ' \n' | grep -o '"shm":[0-9]*' | sed -n 2p)
  if [ "${after#*:}" -gt "${before#*:}" ]; then ok accelerated-meanwhile "$after"; else fail accelerated-meanwhile "$before $after"; fi
else skip redis "no redis-server"; fi
if grep -v 'NACC_ENABLE_RDMA_DEFAULT [01] -> [01], at once' "$TMP/switched" | grep -q .; then
  fail every-switch "$(grep -v 'at once' "$TMP/switched" | sort | uniq -c | head)"; else ok every-switch; fi
finish
