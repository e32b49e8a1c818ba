#!/usr/bin/env bash
# The rules of netacc.conf: which connections they keep on TCP, at which end, and what the tools say
# of that.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
APP=$here/rules_app.py
NETACC=$LIB_DIR/netacc
PYTHON=$(python3 -c 'import sys; print(sys.executable)')
ln -s "$PYTHON" "$TMP/other-name"
PORT=$(free_port)

# ends NAME: starts a server and a client, each with the rules of $SERVER and $CLIENT, and sets what
# they say: SAYS[server], SAYS[client]. They stay until `over`.
declare -A SAYS
# (Who has ended meanwhile reads nothing.)
trap : PIPE
ends() {
  SAYS=()
  local address=${ADDRESS:-127.0.0.1} listen=${LISTEN:-${ADDRESS:-127.0.0.1}} run=("${RUN:-$PYTHON}" "$APP")
  [ -z "${SCRIPT:-}" ] || run=("$SCRIPT")
  printf '[netacc]\n%s\n' "$SERVER" >"$TMP/server.conf"
  printf '[netacc]\n%s\n' "$CLIENT" >"$TMP/client.conf"
  rm -f "$TMP/in.server" "$TMP/in.client"; mkfifo "$TMP/in.server" "$TMP/in.client"
  : >"$TMP/said.server"; : >"$TMP/said.client"
  NACC_CONF=$TMP/server.conf become_accel "$PYTHON" "$APP" server "$listen" "$PORT" <"$TMP/in.server" >"$TMP/said.server" 2>"$TMP/err.server" &
  SERVER_PID=$!; PIDS+=("$SERVER_PID"); exec {IN_SERVER}>"$TMP/in.server"
  if ! wait_for 30 grep -q ready "$TMP/said.server"; then
    SAYS[server]="not ready: $(cat "$TMP/err.server")"
    CLIENT_PID=$SERVER_PID; exec {IN_CLIENT}>/dev/null
    return
  fi
  NACC_CONF=$TMP/client.conf become_accel "${run[@]}" client "$address" "$PORT" <"$TMP/in.client" >"$TMP/said.client" 2>"$TMP/err.client" &
  CLIENT_PID=$!; PIDS+=("$CLIENT_PID"); exec {IN_CLIENT}>"$TMP/in.client"
  wait_for 30 grep -q . "$TMP/said.client"
  [ -n "${WAITS:-}" ] || wait_for 10 grep -qv ready "$TMP/said.server"
  SAYS[client]=$(cat "$TMP/said.client" "$TMP/err.client")
  SAYS[server]=$(tail -n +2 "$TMP/said.server"; cat "$TMP/err.server")
}
over() {
  echo >&"$IN_SERVER"; echo >&"$IN_CLIENT"
  exec {IN_SERVER}>&- {IN_CLIENT}>&-
  wait "$SERVER_PID" "$CLIENT_PID"
}
# both NAME EXPECTED RULES: the same rules at both ends.
both() { SERVER=$3 CLIENT=$3; ends; same "$1" "$2" "${SAYS[client]}"; same "$1-server" "$2" "${SAYS[server]}"; over; }
# client NAME EXPECTED RULES: at the client alone.
client() { SERVER='' CLIENT=$3; ends; same "$1" "$2" "${SAYS[client]}"; over; }

both none 'shm none' ''
both port 'tcp rule' "[rule r]
port=$PORT
accelerate=0"
both other-port 'shm none' "[rule r]
port=1-$((PORT - 1)),$((PORT + 1))-65535
accelerate=0"
both network 'tcp rule' '[rule r]
address=127.0.0.0/8
accelerate=0'
both other-network 'shm none' '[rule r]
address=10.0.0.0/8,::/0
accelerate=0'
if (exec 2>/dev/null; python3 -c 'import socket; socket.create_server(("::1", 0), family=socket.AF_INET6)'); then
  ADDRESS=::1 both ipv6 'tcp rule' '[rule r]
address=::1
accelerate=0'
  ADDRESS=::1 both other-ipv6 'shm none' '[rule r]
address=0.0.0.0/0,fd00::/8
accelerate=0'
  # An IPv4 address in an IPv6 socket, at one end or at both, is an IPv4 address.
  ADDRESS=::ffff:127.0.0.1 LISTEN=:: both mapped 'tcp rule' '[rule r]
address=127.0.0.1
accelerate=0'
  ADDRESS=127.0.0.1 LISTEN=:: both dual-stack 'tcp rule' '[rule r]
address=::ffff:127.0.0.0/104
accelerate=0'
  ADDRESS=::ffff:127.0.0.1 LISTEN=:: both mapped-is-no-ipv6 'shm none' '[rule r]
address=::/0
accelerate=0'
else
  skip ipv6 "no IPv6 here"
fi
client program 'tcp rule' "[rule r]
program=none-such,$(basename "$(readlink -f "$PYTHON")")
accelerate=0"
client program-path 'tcp rule' "[rule r]
program=$(readlink -f "$PYTHON")
accelerate=0"
RUN=$TMP/other-name client program-link 'tcp rule' '[rule r]
program=other-name
accelerate=0'
client other-program 'shm none' '[rule r]
program=other-name
accelerate=0'
client user 'tcp rule' "[rule r]
user=$(id -u)
accelerate=0"
if grep -q "^$(id -un):" /etc/passwd; then
  client user-name 'tcp rule' "[rule r]
user=$(id -un),$(id -u)
accelerate=0"
fi
client other-user 'shm none' "[rule r]
user=$(($(id -u) + 1))-4294967295
accelerate=0"
client out 'tcp rule' '[rule r]
direction=out
accelerate=0'
client not-in 'shm none' '[rule r]
direction=in
accelerate=0'
SERVER='[rule r]
direction=in
accelerate=0' CLIENT=''
ends; same in 'tcp rule' "${SAYS[server]}"; over
both paths-tcp 'tcp rule' '[rule r]
paths=tcp'
both paths-shm 'shm none' '[rule r]
paths=shm'
both paths-that-serve-none 'tcp rule' '[rule r]
paths=rdma'
# (Nor would it be without the rule.)
both paths-within-those-of-all 'tcp paths-exclude-it' 'NACC_PATHS=rdma
[rule r]
paths=shm'
both first-allows 'shm none' "[rule a]
port=$PORT
accelerate=1
[rule rest]
accelerate=0"
both first-denies 'tcp rule' "[rule rest]
accelerate=0
[rule a]
port=$PORT
accelerate=1"
both off-is-off 'tcp disabled-by-config' 'NACC_ENABLE_RDMA_DEFAULT=0
[rule r]
accelerate=1'

# For how long waits poll: a wait that may has polled, in vain or not, or has seen that it would not
# pay; one that must not has slept, and nothing else. (All waits of the client's are for this one
# connection, and none polls before its rule is known.)
polls() { # NAME EXPECTED RULES
  SERVER='' CLIENT=$3; ends
  same "$1" 'shm none' "${SAYS[client]}"
  same "$1-counts" "$2" "$("$SS" --json -s cnt "$CLIENT_PID" | perl -0777 -ne '
    my %of = /"(\w+)":\s*(\d+)/g;
    print $of{spins_won} + $of{spins_lost} + $of{spins_skipped} ? "polls" : $of{sleeps} ? "sleeps" : "neither"')"
  over
}
for WAITS in recv poll epoll; do
  export WAITS
  polls "poll-as-configured-$WAITS" polls ''
  polls "poll-0-$WAITS" sleeps "[rule r]
port=$PORT
poll=0"
  polls "poll-of-another-port-$WAITS" polls "[rule r]
port=$((PORT + 1))
poll=0"
  polls "poll-instead-of-0-$WAITS" polls "NACC_POLL_MS=0
[rule r]
port=$PORT
poll=1ms"
done

# Which connections are traced, whether others are or not.
traced() { # NAME EXPECTED RULES
  SERVER='' CLIENT=$3; ends
  same "$1" 'shm none' "${SAYS[client]}"
  if [ "$2" = traced ]; then
    check "$1-is" wait_for 20 eval '"$NETACC" trace show -p "$CLIENT_PID" 2>/dev/null | grep -F ":$PORT"'
  else
    # (There is nothing to wait for: where this is wrong, the line is there nearly always.)
    same "$1-is-not" 0 "$("$NETACC" trace show -p "$CLIENT_PID" 2>/dev/null | grep -cF ":$PORT")"
  fi
  over
}
WAITS=recv
traced trace-1 traced "NACC_TRACE=0
[rule r]
port=$PORT
trace=1"
traced trace-0 no "[rule r]
port=$PORT
trace=0"
traced trace-of-another-port no "NACC_TRACE=0
[rule r]
port=$((PORT + 1))
trace=1"
traced no-trace-of-another-port traced "[rule r]
port=$((PORT + 1))
trace=0"
# Each call is recorded (NACC_TRACE=2) in a whole process or not at all: of the connections that are
# traced, and of no others. A rule does not ask for it.
calls_of() { "$NETACC" trace show -p "$CLIENT_PID" 2>/dev/null | grep -cE '^ +[0-9.]+  (send|receive) offset'; }
are_recorded() { [ "$(calls_of)" -ge 20 ]; }
calls() { # NAME yes|no RULES
  SERVER='' CLIENT=$3; ends
  same "$1" 'shm none' "${SAYS[client]}"
  if [ "$2" = yes ]; then check "$1-are" wait_for 20 are_recorded; else same "$1-are-not" 0 "$(calls_of)"; fi
  over
}
calls calls-of-2-and-1 yes "NACC_TRACE=2
[rule r]
port=$PORT
trace=1"
calls calls-of-2-and-0 no "NACC_TRACE=2
[rule r]
port=$PORT
trace=0"
calls calls-of-2-and-0-elsewhere yes "NACC_TRACE=2
[rule r]
port=$((PORT + 1))
trace=0"
calls calls-of-1-and-1 no "[rule r]
port=$PORT
trace=1"
printf '[netacc]\n[rule r]\nport=1\ntrace=2\n' >"$TMP/trace-2.conf"
out=$(NACC_CONF=$TMP/trace-2.conf "$LIB_DIR/netacc_run" true 2>&1)
same trace-2-starts-nothing 2 $?
check trace-2-is-a-mistake grep -qF ':4: trace=2: neither 0 nor 1; valid: 0 or 1; each call: NACC_TRACE=2' <<<"$out"
unset WAITS

# A mistake: netacc_run starts nothing; the library keeps on TCP what comes to the rule.
BAD="[rule a]
port=$((PORT + 1))
accelerate=1
[rule b]
port=http
accelerate=1"
printf '[netacc]\n%s\n' "$BAD" >"$TMP/bad.conf"
out=$(NACC_CONF=$TMP/bad.conf "$LIB_DIR/netacc_run" true 2>&1); status=$?
same mistake-status 2 "$status"
same mistake "netacc_run: $TMP/bad.conf:6: port=http: not a number that can be; valid: ports, such as 1000 or 1000-1999" "$out"
client mistake-in-the-library 'tcp rule' "$BAD"
check mistake-is-logged grep -F 'port=http: not a number that can be' "$TMP/netacc.log"

NO_USER=$(sed 's/accelerate=1/user=no-such-user\n&/; s/port=http/port=1/' <<<"$BAD")
client no-such-user 'tcp rule' "$NO_USER"
check no-such-user-is-logged grep -F 'user=no-such-user: no such user' "$TMP/netacc.log"

# A file that is gone, as in a chroot, when the first connection begins.
LOSES=1 both read-before-it-is-gone 'tcp rule' '[rule r]
accelerate=0'
# And one that cannot be read as a whole: it may have a rule that nobody has seen.
client not-text 'tcp config-unreadable' $'[rule r]\nport=1\naccelerate=1\n# \xff'
check not-text-is-logged grep -F 'client.conf: not UTF-8: all stays on TCP' "$TMP/netacc.log"

# A script is known by its own name, and by the file of its interpreter; where env starts that, by
# the latter alone.
scripted() { # NAME EXPECTED HOLDS FIRST
  { echo "#!$4"; cat "$APP"; } >"$TMP/a-script-of-more-bytes"
  chmod +x "$TMP/a-script-of-more-bytes"
  SCRIPT=$TMP/a-script-of-more-bytes client "$1" "$2" '[rule r]
program=a-script-of-more-bytes
accelerate=0'
  same "doctor-of-$1" "$3" "$(NACC_CONF=$TMP/client.conf "$NETACC" doctor "$TMP/a-script-of-more-bytes" | grep -c 'rule: r may hold')"
}
scripted script 'tcp rule' 1 "$PYTHON"
PATH=$(dirname "$PYTHON"):$PATH scripted script-of-env 'shm none' 0 "/usr/bin/env $(basename "$PYTHON")"

# The tools.
SERVER='' CLIENT="[rule of-nobody]
program=nobody
accelerate=0
[rule web]
port=$PORT
accelerate=0
[rule rest]
paths=shm"
ends
same tools 'tcp rule' "${SAYS[client]}"
said() { printf '%s\n' "$1" | tr -s ' \n' ' ' | grep -F -- "$2"; }
doctor=$("$NETACC" doctor "$CLIENT_PID")
check doctor-names-the-rule said "$doctor" 'rule: web keeps it on TCP; it holds for 1 of the open connections, 1 of them kept on TCP by it'
check doctor-names-the-others said "$doctor" 'rule: rest lets it take shm alone; it holds for 0 of the open connections'
same doctor-leaves-out-those-of-others 0 "$(grep -c of-nobody <<<"$doctor")"
check ss-shows-the-reason grep -E '^rule +1 ' <("$SS" "$CLIENT_PID")
check ss-shows-the-rules grep -xF '[rule web]' <("$SS" -s cfg "$CLIENT_PID")
# Of each connection which one holds.
ruled() { "$SS" -s sock --json "$1" | python3 -c 'import json, sys
print(*[s["rule"] for s in json.load(sys.stdin)["sockets"]])'; }
wide() { "$SS" -s sock --wide "$1" | awk '/ Local / { for (i = 1; i <= NF; i++) if ($i == "Rule") at = i } $1 ~ /^[0-9]+$/ { print $at }'; }
same ss-says-which-rule 'web web' "$(ruled "$CLIENT_PID") $(wide "$CLIENT_PID")"
same ss-says-that-there-are-none 'None -' "$(ruled "$SERVER_PID") $(wide "$SERVER_PID")"
same ss-says-it-where-asked 0 "$("$SS" -s sock "$CLIENT_PID" | grep -c 'Rule\|web')"
same cfg-lists-parameters-alone 0 "$("$NETACC" cfg list -p "$CLIENT_PID" | grep -cE '^(port|accelerate|paths) ')"
connection=$(NACC_CONF=$TMP/client.conf "$NETACC" doctor "127.0.0.1:$PORT")
check doctor-of-a-connection said "$connection" "rule: the client's end: web, to 127.0.0.1:$PORT: keeps it on TCP"
check doctor-of-a-program said "$(NACC_CONF=$TMP/client.conf "$NETACC" doctor true)" 'rule: web may hold for a connection of it, and then keeps it on TCP'
over
SERVER='' CLIENT="[rule slow]
port=$PORT
poll=0
trace=0"
ends
same no-paths-said 'shm none' "${SAYS[client]}"
check doctor-says-what-else said "$("$NETACC" doctor "$CLIENT_PID")" 'rule: slow lets it take any path of NACC_PATHS; waits for it do not poll; it is not traced; it holds for 1 of the open connections'
same ss-shows-what-else "$(printf '%s\n' "port=$PORT" poll=0 trace=0)" "$("$SS" -s cfg "$CLIENT_PID" | sed -n '/^\[rule slow\]/,/^$/p' | grep -E '^(port|poll|trace)=')"
check a-rule-has-these-keys grep -F "wait=1: unknown key of a rule; valid: program, user, port, address, direction, accelerate, paths, poll, trace" <(
  printf '[netacc]\n[rule r]\nwait=1\n' >"$TMP/bad.conf"; NACC_CONF=$TMP/bad.conf "$LIB_DIR/netacc_run" true 2>&1)
over
# Another value while the program runs: its rules stay.
SERVER='' CLIENT='[rule rest]
paths=shm'
ends
same accelerated-by-a-rule 'shm none' "${SAYS[client]}"
same a-rule-of-one-on-a-ring 'rest rest' "$(ruled "$CLIENT_PID") $(wide "$CLIENT_PID")"
check cfg-set "$NETACC" cfg set NACC_LOG_LEVEL 2 -p "$CLIENT_PID"
check rules-stay-behind-cfg-set grep -xF '[rule rest]' <("$SS" -s cfg "$CLIENT_PID")
# Other rules: they are in another order, or have another name.
printf '[netacc]\n[rule first]\nport=1\npoll=0\n[rule rest]\npaths=shm\n' >"$TMP/client.conf"
check other-order "$NETACC" cfg reload -p "$CLIENT_PID"
same a-rule-in-another-order 'rest rest' "$(ruled "$CLIENT_PID") $(wide "$CLIENT_PID")"
printf '[netacc]\n[rule first]\nport=1\npoll=0\n' >"$TMP/client.conf"
check another-name "$NETACC" cfg reload -p "$CLIENT_PID"
same a-rule-that-is-gone '? ?' "$(ruled "$CLIENT_PID") $(wide "$CLIENT_PID")"
over
# Who began a connection its record does not say: the rule does. None holds for it.
SERVER='[rule out]
direction=out
accelerate=0
[rule in]
direction=in
port=1
accelerate=0' CLIENT=''
ends
same no-rule 'None -' "$(ruled "$SERVER_PID") $(wide "$SERVER_PID")"
check doctor-counts-by-the-rule said "$("$NETACC" doctor "$SERVER_PID")" 'rule: out keeps it on TCP; it holds for 0 of the open connections'
over
finish
