#!/usr/bin/env bash
# How long answers take (NACC_TRACE=2), of a server of which that is known: never less than that at
# either end, on each path; and nothing at all where nobody has asked for it.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
APP=$(dirname "$0")/latency_app.py
NETACC=$LIB_DIR/netacc
# The server takes so long.
WAIT_MS=20

# begin LEVEL SERVER: both programs; the server `accelerated` or `plain`.
begin() {
  PORT=$(free_port)
  if [ "$2" = accelerated ]; then
    become_accel env NACC_TRACE="$1" python3 "$APP" server "$PORT" $WAIT_MS 2>"$TMP/server.err" &
  else
    python3 "$APP" server "$PORT" $WAIT_MS 2>"$TMP/server.err" &
  fi
  SERVER=$!; PIDS+=("$SERVER")
  listens() { (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }
  wait_for 20 listens || { fail start "$(cat "$TMP/server.err")"; finish; exit 1; }
  rm -f "$TMP/orders" "$TMP/done"
  mkfifo "$TMP/orders"
  become_accel env NACC_TRACE="$1" python3 "$APP" client "$PORT" <>"$TMP/orders" >"$TMP/done" 2>&1 &
  CLIENT=$!; PIDS+=("$CLIENT")
  ORDERS=0
}
over() { [ "$(grep -c done "$TMP/done")" = "$ORDERS" ]; }
# So many requests.
ask() {
  echo "$1" >"$TMP/orders"
  ORDERS=$((ORDERS + 1))
  wait_for 60 over || { fail requests "$(cat "$TMP/done" "$TMP/server.err")"; finish; exit 1; }
}
end() {
  for pid in "$CLIENT" "$SERVER"; do kill "$pid"; wait "$pid" 2>/dev/null; done
}
# of PID EXPRESSION: in Python, of the busiest connection `c` of the process; its times are 0 where
# there are none.
of() {
  "$SS" --json -s sock "$1" 2>/dev/null | python3 -c '
import json, sys
c = max(json.load(sys.stdin)["sockets"], key=lambda c: c["tx_messages"], default=None)
ns = lambda name: (c[name] or 0) if c else 0
wait = '$WAIT_MS' * 1000000
print('"$2"')'
}
is() { [ "$(of "$1" "$2")" = True ]; }
# is_by_then PID EXPRESSION: makes requests until it is so.
is_by_then() {
  for _ in $(seq 200); do
    ask 5
    is "$@" && return
  done
  return 1
}
expect() {
  if is "${@:2}"; then ok "$1"; else fail "$1" "$("$SS" --json -s sock "$2" 2>&1)"; fi
}
expect_by_then() {
  if is_by_then "${@:2}"; then ok "$1"; else fail "$1" "$("$SS" --json -s sock "$2" 2>&1)"; fi
}

# Times that were measured, of as many answers as there were at least; none is below the wait.
answers='ns("answer_count") >= 10 and wait <= ns("answer_p50_ns") <= ns("answer_p99_ns") <= ns("answer_max_ns")'
serves=${answers//answer/serve}

begin 2 accelerated
expect_by_then shm-client "$CLIENT" 'c["tx_path"] == c["rx_path"] == "shm" and '"$answers"
expect shm-server "$SERVER" "$serves"
# The two ends agree: what the client sees is not less than what the server takes.
expect shm-most "$CLIENT" "ns('answer_max_ns') >= $(of "$SERVER" 'ns("serve_p50_ns") * 3 // 4')"
"$NETACC" trace histogram --json -p "$CLIENT,$SERVER" >"$TMP/histogram" 2>&1
kinds() { python3 -c '
import json, sys
kinds = {kind["name"]: kind for kind in json.load(open(sys.argv[1]))}
assert kinds["send to receive"]["count"] >= 10, kinds["send to receive"]
for name in "answer", "serve":
    assert kinds[name]["count"] >= 10 and kinds[name]["max_ns"] >= '$WAIT_MS'000000, kinds[name]
    assert sum(b["count"] for b in kinds[name]["buckets"]) == kinds[name]["count"], kinds[name]' "$TMP/histogram"; }
check histogram kinds
# Of one that is named alone the other end is found.
way() { "$NETACC" trace histogram --json -p "$1" | python3 -c '
import json, sys
kinds = {kind["name"]: kind for kind in json.load(sys.stdin)}
assert kinds["send to receive"]["count"] >= 1, kinds'; }
check way-from-client way "$CLIENT"
check way-from-server way "$SERVER"
calls() { "$NETACC" trace show -p "$CLIENT" --json | python3 -c '
import json, sys
calls = [e for c in json.load(sys.stdin)[0]["connections"] for e in c["events"] if e["event"] in ("send", "receive")]
assert len(calls) >= 20 and all(e["bytes"] == 64 and e["offset"] % 64 == 0 for e in calls), calls'; }
check events calls
metrics() { "$NETACC" metrics | grep -q "^netacc_${1}_seconds_count{.*pid=\"$2\".*} [1-9]"; }
check metrics-answer metrics answer "$CLIENT"
check metrics-serve metrics serve "$SERVER"
check metrics-type grep -qx '# TYPE netacc_answer_seconds histogram' <("$NETACC" metrics)
check table grep -q 'Answer-p50 .* Serve-max' <("$SS" --wide -s sock "$CLIENT")
end

# The server has no library: the client's calls are seen all the same.
begin 2 plain
expect_by_then tcp-client "$CLIENT" 'c["tx_path"] == c["rx_path"] == "tcp" and '"$answers"
end

# Nobody has asked: no time, no event. Then somebody does, and takes it back.
begin 1 accelerated
expect_by_then accelerated "$CLIENT" 'c["tx_path"] == c["rx_path"] == "shm" and c["tx_messages"] >= 20'
none='c["answer_count"] is None and c["serve_count"] is None and c["answer_p50_ns"] is None'
expect nothing "$CLIENT" "$none"
expect nothing-server "$SERVER" "$none"
no_calls() { ! "$NETACC" trace show -p "$CLIENT,$SERVER" | grep -E '^ +[0-9.]+  (send|receive) offset'; }
check no-events no_calls
no_metrics() { ! "$NETACC" metrics | grep -E "^netacc_(answer|serve)_seconds.*pid=\"($CLIENT|$SERVER)\""; }
check no-metrics no_metrics
check set "$NETACC" cfg set NACC_TRACE 2 -p "$CLIENT,$SERVER"
expect_by_then live-client "$CLIENT" "$answers"
expect live-server "$SERVER" 'ns("serve_count") > 0 and ns("serve_p50_ns") >= wait'
check set-back "$NETACC" cfg set NACC_TRACE 1 -p "$CLIENT,$SERVER"
# (What is under way when it is turned off may still count.)
ask 1
before=$(of "$CLIENT" 'ns("answer_count")')
ask 20
same no-more "$before" "$(of "$CLIENT" 'ns("answer_count")')"
expect still-accelerated "$CLIENT" 'c["tx_path"] == c["rx_path"] == "shm"'
end
finish
