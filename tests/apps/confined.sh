#!/usr/bin/env bash
# What docs/manual/limits.md says of programs that are confined, and of what confines their packets:
# a filter of system calls, a packet filter, a world without /proc.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
APP=$here/confined_app.py

serve() {
  PORT=$(free_port)
  become_accel python3 "$APP" server "$PORT" 2>"$TMP/server.err" &
  SERVER=$!; PIDS+=("$SERVER")
  wait_for 10 listens || { fail "$1" "$(cat "$TMP/server.err")"; return 1; }
}
listens() { (: <"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }

# filtered NAME EXPECTED CALL... : where the connection of a client is that refuses itself these
# system calls, and how it goes on.
filtered() {
  local name=$1 expected=$2; shift 2
  same "filter-$name" "$expected" "$(echo go | timeout 60 env LD_PRELOAD="$LIB" NACC_LOG_PATH="$TMP/netacc.log" \
    python3 "$APP" client "$PORT" "$@" 2>&1 | tr '\n' ' ')"
}
if serve filter; then
  filtered none 'shm none done '
  # docs/manual/install.md
  filtered preadv2 'shm none done ' preadv2
  filtered memory-files 'shm none done ' memfd_create
  filtered doorbells 'tcp no-descriptor done ' eventfd2
fi

# A rule that is added when a connection is accelerated does not hold for it; without the library it
# does. (Packets with bytes are counted: the acknowledgement of those before may come late.)
packets() {
  local how=$1 expected=$2 preload=
  [ "$how" = plain ] || preload=$LIB
  same "packet-filter-$how" "$expected" "$(unshare --net env PRELOAD="$preload" NACC_LOG_PATH="$TMP/netacc.log" APP="$APP" IN="$TMP/in.$how" timeout 60 bash -c '
    ip link set lo up
    LD_PRELOAD=$PRELOAD python3 "$APP" server 7777 & server=$!
    trap "kill $server" EXIT
    until (: </dev/tcp/127.0.0.1/7777) 2>/dev/null; do sleep 0.02; done
    mkfifo "$IN"
    LD_PRELOAD=$PRELOAD python3 "$APP" client 7777 <"$IN" >"$IN.said" & client=$!
    exec 5>"$IN"
    until grep -q . "$IN.said"; do sleep 0.02; done
    echo go >&5
    until grep -q done "$IN.said"; do sleep 0.02; done
    nft add table inet t && nft add chain inet t in "{ type filter hook input priority 0; }" &&
      nft add rule inet t in tcp dport 7777 meta length gt 80 counter drop &&
      nft add rule inet t in tcp dport 7777 drop || echo "no nft"
    echo go >&5
    until [ "$(grep -c . "$IN.said")" -ge 3 ]; do sleep 0.02; done
    cut -d" " -f1 "$IN.said"
    nft list chain inet t in | grep -q "packets 0 " && echo "none counted" || echo "some counted"
    exec 5>&-
    nft flush ruleset
    wait $client' 2>&1 | tr '\n' ' ')"
}
if ! unshare --net true 2>/dev/null; then skip packet-filter "no network namespaces: not root"
elif ! command -v nft >/dev/null; then skip packet-filter "no nft"
else
  packets plain 'tcp done stalled some counted '
  packets accelerated 'shm done done none counted '
fi

# A program that waits by libc, and then past it, hears of bytes after a second or two; where there
# is no /proc it does not, and by libc it does.
late() {
  local how=$1 expected=$2 proc=$3 port
  port=$(free_port)
  same "proc-$how" "$expected" "$(unshare --mount env PRELOAD="$LIB" NACC_LOG_PATH="$TMP/netacc.log" APP="$APP" LATE="$TMP/late" PORT="$port" PROC="$proc" timeout 60 bash -c '
    [ -n "$PROC" ] || mount -t tmpfs none /proc || exit
    LD_PRELOAD=$PRELOAD "$LATE" "$PORT" & server=$!
    until LD_PRELOAD=$PRELOAD python3 "$APP" early "$PORT" 2>/dev/null; do sleep 0.05; done
    wait $server' 2>&1 | tr '\n' ' ')"
}
if ! unshare --mount true 2>/dev/null; then skip proc "no mount namespaces: not root"
elif ! cc -O1 -I"$here/../../include" -o "$TMP/late" "$here/confined_late.c" 2>"$TMP/cc.err"; then skip proc "not x86-64, or no cc"
else
  late there 'shm none past libc: 1 by libc: late ' yes
  late missing 'shm none past libc: 0 by libc: late ' ''
fi
finish
