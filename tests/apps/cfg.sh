#!/usr/bin/env bash
# `netacc cfg` about processes that run: what it says must be so, what it sets must take effect, and
# what it refuses must change nothing.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
CFG=("$LIB_DIR/netacc" cfg)
APP=$(dirname "$0")/cfg_app.py
PORT=$(free_port)

become_accel python3 "$APP" server "$PORT" 2>"$TMP/server.err" &
SERVER=$!; PIDS+=("$SERVER")
listens() { (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }
wait_for 10 listens || { fail start "$(cat "$TMP/server.err")"; finish; exit 1; }
printf '[netacc]\n' >"$TMP/client.conf"
coproc CLIENT { NACC_CONF=$TMP/client.conf become_accel python3 "$APP" client "$PORT" 2>"$TMP/client.err"; }
read -r -t 20 -u "${CLIENT[0]}" PID; PIDS+=("$PID")

# tell WORDS... : the client does that; prints its answer.
tell() { local line; echo "$*" >&"${CLIENT[1]}"; read -r -t 60 -u "${CLIENT[0]}" line && echo "$line"; }
# told NAME STATUS TEXT COMMAND... : it ends with that status, and says that.
told() {
  local name=$1 status=$2 text=$3 out is; shift 3
  out=$(timeout 60 "$@" 2>&1); is=$?
  if [ "$is" = "$status" ] && grep -qF -- "$text" <<<"$out"; then ok "$name"; else
    fail "$name" "status $is, wanted $status and: $text"$'\n'"$out"; fi
}
on_path() { "$SS" --path "$1" --json "$PID" | grep -c '"fd"'; }
becomes() { local want=$1; shift; wait_for 20 test_is "$want" "$@"; }
# accelerated N: so many are, some use later. (A busy machine may agree behind the last call.)
accelerated() { wait_for 20 are_fast "$1"; }
are_fast() { tell use >/dev/null; [ "$(on_path shm)" = "$1" ]; }
test_is() { [ "$("${@:2}")" = "$1" ]; }

told nothing-to-ask-yet 1 'no TCP connection yet' "${CFG[@]}" set NACC_LOG_LEVEL 2 -p "$PID"
tell open 4 >/dev/null
if accelerated 4; then ok accelerated; else fail accelerated "$("$SS" -s sock "$PID"; cat "$TMP/client.err")"; fi

# What there is.
same value 3 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$PID")"
told origin 0 'NACC_LOG_PATH' "${CFG[@]}" list -p "$PID"
same json "environment restart" "$("${CFG[@]}" get NACC_LOG_PATH --json -p "$PID" |
  python3 -c 'import json,sys; p = json.load(sys.stdin)[0]["parameters"][0]; print(p["origin"], p["takes_effect"])')"
same here 3 "$(env -u NACC_CONF "${CFG[@]}" get NACC_LOG_LEVEL)"
same environment-here 5 "$(NACC_LOG_LEVEL=5 "${CFG[@]}" get NACC_LOG_LEVEL)"
told unknown 2 'did you mean NACC_LOG_LEVEL?' "${CFG[@]}" get NACC_LOG_LEVL
told mistake-here 2 'too large' env NACC_LOG_LEVEL=9 "${CFG[@]}" list

# At once.
told set 0 'NACC_LOG_LEVEL 3 -> 2, at once' "${CFG[@]}" set NACC_LOG_LEVEL 2 -p "$PID"
same is-set 2 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$PID")"
told is-set-live 0 'NACC_LOG_LEVEL=2 # live' "$SS" -s cfg "$PID"
check takes-effect grep -q "\[$PID\] NACC_LOG_LEVEL=2 from here on" "$TMP/netacc.log"
same others-have-their-own 3 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$SERVER")"

# For the next connection.
"${CFG[@]}" set NACC_CONNECT_RDMA_PERCENT 0 -p "$PID" >/dev/null
tell open 1 >/dev/null
sampled_out() { "$SS" --reason sampled-out --json "$PID" | grep -c '"fd"'; }
if becomes 1 sampled_out && [ "$(on_path shm)" = 4 ]; then ok next-connection; else fail next-connection "$("$SS" -s sock "$PID")"; fi
# (It has moved kilobytes by the kernel, which nobody counts: that is not 0.)
same not-counted "None None None" "$("$SS" --reason sampled-out -s sock --json "$PID" |
  python3 -c 'import json,sys; s = json.load(sys.stdin)["sockets"][0]; print(s["tx_tcp_bytes"], s["rx_tcp_bytes"], s["tx_messages"])')"
"${CFG[@]}" set NACC_CONNECT_RDMA_PERCENT 100 -p "$PID" >/dev/null
tell open 1 >/dev/null
if accelerated 5; then ok and-back; else fail and-back "$("$SS" -s sock "$PID")"; fi

# What is refused changes nothing.
before=$("${CFG[@]}" list -p "$PID")
told at-restart 2 'takes effect at restart: put it in /etc/netacc.conf' "${CFG[@]}" set NACC_SOR_MSG_SIZE 4096 -p "$PID"
told bad-value 2 'valid: a whole number from 0 to 5' "${CFG[@]}" set NACC_LOG_LEVEL 6 -p "$PID"
told no-such-parameter 2 'no such parameter' "${CFG[@]}" set NACC_LEVEL 6 -p "$PID"
told nobody 2 '--all' "${CFG[@]}" set NACC_LOG_LEVEL 1
told no-process 1 'no such process' "${CFG[@]}" set NACC_LOG_LEVEL 1 -p 4194304
told without-library 1 'is not loaded' "${CFG[@]}" set NACC_LOG_LEVEL 1 -p $$
# Who asks past the tool is checked by the library: the same line, with a value that is none.
line() { printf 'netacc-cfg 1 7 9999999999999999999 %s\n' "$1"; }
pipe=$(ls -l "/proc/$PID/fd" | awk '/pipe:/ && $9 > 900 {print $9; exit}')
for wrong in NACC_LOG_LEVEL=6 NACC_SOR_MSG_SIZE=4096 NACC_X=1 NACC_LOG_LEVEL; do line "$wrong" >"/proc/$PID/fd/$pipe"; done
head -c 60000 /dev/urandom >"/proc/$PID/fd/$pipe"
echo >"/proc/$PID/fd/$pipe"
same nothing-changed "$before" "$("${CFG[@]}" list -p "$PID")"
told garbage-is-no-request 0 'at once' "${CFG[@]}" set NACC_POLL_MS 1 -p "$PID"
same still-used done "$(tell use)"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  told not-permitted 1 'not permitted' setpriv --reuid 65534 --clear-groups "${CFG[@]}" set NACC_LOG_LEVEL 1 -p "$PID"
else skip not-permitted "not root"; fi

# A stopped process is told of, and does nothing when it goes on.
stop "$PID"
told stopped 1 'because it is stopped' "${CFG[@]}" set NACC_LOG_LEVEL 5 --wait 0.3 -p "$PID"
kill -CONT "$PID"
same still-used-after-that done "$(tell use)"
same lapsed 2 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$PID")"

# A child has its parent's values, and then its own.
CHILD=$(tell fork); PIDS+=("$CHILD")
same childs-first 2 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$CHILD")"
told childs-own 0 '2 -> 4' "${CFG[@]}" set NACC_LOG_LEVEL 4 -p "$CHILD"
same childs-then 4 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$CHILD")"
same parents 2 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$PID")"
told both 0 "($CHILD): NACC_POLL_TCP_US 0 -> 50" "${CFG[@]}" set NACC_POLL_TCP_US 50 -p "$PID,$CHILD"
same both-have-it 50 "$("${CFG[@]}" get NACC_POLL_TCP_US -p "$PID")"
# (Others on this machine have the library, too: nothing is set in all processes here.)
told all 0 "python3 ($CHILD)" "${CFG[@]}" list --all

# The rules of its file, as that is now: for the next connection.
rules() { printf '[netacc]\n%s\n' "$1" >"$TMP/client.conf"; }
ruled() { "$SS" --reason rule --json "$PID" | grep -c '"fd"'; }
opens() { tell open 1 >/dev/null; becomes "$2" ruled && accelerated "$3"; }
rules "[rule here]
port=$PORT
user=$(id -u)
accelerate=0"
told reload 0 "$TMP/client.conf: 1 rule, for connections made from now on" "${CFG[@]}" reload -p "$PID"
check reload-takes-effect opens 1 1 5
rules "[rule here]
port=http
accelerate=0"
told reload-mistake 1 "client.conf:3: port=http: not a number that can be" "${CFG[@]}" reload -p "$PID"
"$SS" -s cfg "$PID" >"$TMP/before"
line rules= >"/proc/$PID/fd/$pipe"
told reload-mistake-past-the-tool 0 'at once' "${CFG[@]}" set NACC_LOG_LEVEL 2 -p "$PID"
same reload-mistake-changes-nothing "$(cat "$TMP/before")" "$("$SS" -s cfg "$PID")"
# (An editor that saves in place empties it first.)
: >"$TMP/client.conf"
told reload-empty 1 'client.conf, is empty; its rules are as they were' "${CFG[@]}" reload -p "$PID"
rm "$TMP/client.conf"
mkfifo "$TMP/client.conf"
told reload-pipe 1 'cannot read its configuration file' "${CFG[@]}" reload -p "$PID"
rm "$TMP/client.conf"
told reload-gone 1 'client.conf any more; its rules are as they were' "${CFG[@]}" reload -p "$PID"
check reload-gone-changes-nothing opens 1 2 5
rules ''
told reload-none 0 'client.conf: 0 rules' "${CFG[@]}" reload -p "$PID"
check reload-none-takes-effect opens 1 2 6
told reload-whose 2 '--all' "${CFG[@]}" reload
same used-by-new-rules done "$(tell use)"

# Each configuration is kept: a process can have so many, and goes back to each of them.
for n in $(seq 70); do "${CFG[@]}" set NACC_POLL_TCP_US "$n" -p "$PID" >/dev/null 2>&1; done
told too-many 1 'too many configurations' "${CFG[@]}" set NACC_POLL_TCP_US 71 -p "$PID"
told goes-back 0 '-> 50' "${CFG[@]}" set NACC_POLL_TCP_US 50 -p "$PID"
same used-to-the-end done "$(tell use)"
same no-complaints '' "$(cat "$TMP/client.err" "$TMP/server.err")"

# The process becomes another program, which has what it was started with.
same before-exec 2 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$PID")"
same exec "$PID" "$(tell exec)"
tell open 1 >/dev/null
if accelerated 1; then ok accelerated-behind-exec; else fail accelerated-behind-exec "$("$SS" -s sock "$PID")"; fi
same gone-with-exec 3 "$("${CFG[@]}" get NACC_LOG_LEVEL -p "$PID")"
finish
