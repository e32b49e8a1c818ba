#!/usr/bin/env bash
# Redis, unmodified: an accelerated server that forks, rewrites and is reconfigured under load;
# accelerated and plain ends mixed; data compared by DEBUG DIGEST with a server that never saw the
# library.
. "$(dirname "$0")/lib.sh"
need_library
command -v redis-server >/dev/null || { skip all "no redis-server"; finish; exit; }

# start NAME accel|plain OPTIONS... : sets PORT_NAME and PID_NAME.
start() {
  local name=$1 how=$2 port pid; shift 2
  mkdir -p "$TMP/$name"
  port=$(free_port)
  local run=; [ "$how" = accel ] && run=accel
  [ "$how" = debug ] && run="env NACC_LOG_PATH=$TMP/debug.log $LIB_DIR/netacc_run -d"
  $run redis-server --port "$port" --bind 127.0.0.1 --dir "$TMP/$name" --enable-debug-command yes \
    --logfile "$TMP/$name/log" "$@" >"$TMP/$name/out" 2>&1 &
  pid=$!
  PIDS+=("$pid")
  # accel is a function: the shell runs it in a subshell, whose child is the server. A server that
  # still loads its data answers every PING, with an error, and DEBUG DIGEST, of what it has so far.
  wait_for 10 sh -c "redis-cli -p $port ping | grep -qx PONG" || { fail "start-$name" "$(tail -n 5 "$TMP/$name/log" "$TMP/$name/out")"; finish; exit 1; }
  pid=$(redis-cli -p "$port" info server | tr -d '\r' | sed -n 's/^process_id://p')
  PIDS+=("$pid")
  eval "PORT_$name=$port PID_$name=$pid"
}

# A mass insert that gives the same data set on every server.
dataset() {
  perl -e '
    sub cmd { my $s = "*" . @_ . "\r\n"; $s .= "\$" . length($_) . "\r\n$_\r\n" for @_; print $s }
    srand(7);
    for my $i (1 .. 40000) { cmd("SET", "k$i", join("", map { chr(33 + ($i * $_) % 90) } 1 .. ($i % 300))) }
    for my $i (1 .. 5000) { cmd("RPUSH", "list" . $i % 50, "item$i"); cmd("HSET", "hash" . $i % 20, "f$i", $i); cmd("ZADD", "z", $i, "m$i"); cmd("SADD", "set" . $i % 9, $i) }
    cmd("SET", "big", "x" x 20000000);'
}
dataset >"$TMP/dataset"
digest() { redis-cli -p "$1" debug digest; }

start plain plain --save ''
start acc accel --save '1 1'

# --- load the same data: plain client to the plain server, accelerated client to the accelerated
# one
redis-cli -p "$PORT_plain" --pipe <"$TMP/dataset" >"$TMP/pipe-plain" 2>&1
accel redis-cli -p "$PORT_acc" --pipe <"$TMP/dataset" >"$TMP/pipe-acc" 2>&1
same mass-insert "$(tail -n 1 "$TMP/pipe-plain")" "$(tail -n 1 "$TMP/pipe-acc")"
WANT=$(digest "$PORT_plain")
same digest-after-accelerated-load "$WANT" "$(digest "$PORT_acc")"
redis-cli -p "$PORT_acc" flushall >/dev/null
redis-cli -p "$PORT_acc" --pipe <"$TMP/dataset" >/dev/null 2>&1
same digest-after-plain-load "$WANT" "$(digest "$PORT_acc")"
redis-cli -p "$PORT_plain" flushall >/dev/null
accel redis-cli -p "$PORT_plain" --pipe <"$TMP/dataset" >/dev/null 2>&1
same accelerated-client-to-plain-server "$WANT" "$(digest "$PORT_plain")"

# --- values of many sizes, every mix of ends
head -c 3000000 /dev/urandom | base64 -w 0 >"$TMP/value"
for mix in plain:acc accel:acc accel:plain; do
  run=; [ "${mix%:*}" = accel ] && run=accel
  port=PORT_${mix#*:}; port=${!port}
  for size in 1 100 16384 65536 1000000 4000000; do
    head -c $size "$TMP/value" >"$TMP/part"
    $run redis-cli -p "$port" -x set blob <"$TMP/part" >/dev/null
    $run redis-cli -p "$port" get blob | head -c $size | cmp -s - "$TMP/part" || { fail "values-$mix" "size $size differs"; continue 2; }
  done
  redis-cli -p "$port" del blob >/dev/null
  ok "values-$mix"
done

# --- commands, output compared with a plain server and a plain client
commands() {
  "$@" <<'C'
multi
set a 1
incr a
exec
lrange list1 0 5
hgetall hash1
zrange z 0 20 withscores
object encoding z
blpop nothing 0.1
config get save
config set hz 50
config get hz
eval "return {1,2,'three'}" 0
wrongcommand
set
getrange big 5 15
strlen big
del a
C
}
redis-cli -p "$PORT_plain" config set save '1 1' >/dev/null
expected=$(commands redis-cli -p "$PORT_plain" 2>&1)
same commands-plain-client "$expected" "$(commands redis-cli -p "$PORT_acc" 2>&1)"
same commands-accelerated-client "$expected" "$(commands accel redis-cli -p "$PORT_acc" 2>&1)"
same commands-to-plain-server "$expected" "$(commands accel redis-cli -p "$PORT_plain" 2>&1)"

# --- load with forks: save is on, BGSAVE and BGREWRITEAOF and CONFIG SET come on top
redis-cli -p "$PORT_acc" config set appendonly yes >/dev/null
become_accel redis-benchmark -p "$PORT_acc" -c 50 -n 400000 -r 10000 -d 300 -t set,get,incr,lpush,lpop,hset,spop,zadd -q --threads 2 \
  >"$TMP/bench" 2>&1 &
bench=$!
PIDS+=("$bench")
wait_for 5 any_shm "$PID_acc"
most=0
for i in 1 2 3 4 5 6 7 8; do
  redis-cli -p "$PORT_acc" bgsave >/dev/null
  redis-cli -p "$PORT_acc" config set hz $((10 + i)) >/dev/null
  n=$(shm_count "$PID_acc"); [ "$n" -gt $most ] && most=$n
  wait_for 10 sh -c "redis-cli -p $PORT_acc info persistence | grep -q 'rdb_bgsave_in_progress:0'"
  redis-cli -p "$PORT_acc" bgrewriteaof >/dev/null
  redis-cli -p "$PORT_acc" config set maxmemory-policy noeviction >/dev/null
  n=$(shm_count "$PID_acc"); [ "$n" -gt $most ] && most=$n
  wait_for 10 sh -c "redis-cli -p $PORT_acc info persistence | grep -q 'aof_rewrite_in_progress:0'"
done
if [ "$most" -ge 40 ]; then ok accelerated-under-load "$most connections on shared memory"; else fail accelerated-under-load "only $most connections on shared memory"; fi
wait_for_end "$bench" 120
same benchmark-ends "0" "$STATUS"
check benchmark-had-no-errors sh -c "! grep -iE 'error|closed|reset' $TMP/bench"
info=$(redis-cli -p "$PORT_acc" info persistence | tr -d '\r')
same last-bgsave-ok "rdb_last_bgsave_status:ok aof_last_bgrewrite_status:ok aof_last_write_status:ok" \
  "$(echo "$info" | grep -E '^(rdb_last_bgsave|aof_last_bgrewrite|aof_last_write)_status' | tr '\n' ' ' | sed 's/ $//')"

# --- the append-only file and the snapshot hold exactly what the server held
redis-cli -p "$PORT_acc" bgsave >/dev/null
wait_for 20 sh -c "redis-cli -p $PORT_acc info persistence | grep -q 'rdb_bgsave_in_progress:0'"
before=$(digest "$PORT_acc")
check snapshot-is-sound redis-check-rdb "$TMP/acc/dump.rdb"

# --- CLIENT KILL: the client sees its end
become_accel redis-cli -p "$PORT_acc" subscribe news >"$TMP/sub" 2>&1 &
sub=$!
PIDS+=("$sub")
wait_for 5 grep -q subscribe "$TMP/sub"
same publish "1" "$(accel redis-cli -p "$PORT_acc" publish news hello)"
wait_for 5 grep -q hello "$TMP/sub" && ok subscriber-got-it || fail subscriber-got-it "$(cat "$TMP/sub")"
id=$(redis-cli -p "$PORT_acc" client list type pubsub | sed -n 's/^id=\([0-9]*\).*/\1/p' | head -n 1)
same client-kill "1" "$(redis-cli -p "$PORT_acc" client kill id "$id")"
wait_for 5 sh -c "! redis-cli -p $PORT_acc client list | grep -q '^id=$id '" && ok killed-client-is-gone || fail killed-client-is-gone
kill "$sub" 2>/dev/null
# No client of an earlier part is counted below.
wait_for 5 sh -c "[ \$(redis-cli -p $PORT_acc client list | wc -l) -eq 1 ]"
(for i in $(seq 20); do accel redis-cli -p "$PORT_acc" blpop never 0 >/dev/null 2>&1 & done; wait) &
waiters=$!
blocked() { [ "$(redis-cli -p "$PORT_acc" client list | grep -c cmd=blpop)" -eq "$1" ]; }
wait_for 10 blocked 20
# redis-cli says that the server closed the connection, and ends.
same client-kill-type-normal 20 "$(redis-cli -p "$PORT_acc" client kill type normal skipme yes)"
wait_for_end "$waiters" 15
same killed-clients-end 0 "$STATUS"
check killed-clients-are-gone blocked 0

# --- the library, run as a program, says what it is, as libc does
same library-says-what-it-is "libnetacc-preload.so (netacc) $("$LIB_DIR/netacc_run" --version | grep -oE '[0-9.]+$')" "$("$LIB" | head -n 1)"
# (It folds nothing: it has no words to ask a terminal with.)
same library-fits-40-columns "" "$("$LIB" | awk 'length > 40')"

# --- netacc_run -d says why a connection is not accelerated: at both ends, also of one that is over
# at once
why() { NACC_LOG_PATH=$TMP/$1.log "$LIB_DIR/netacc_run" -d "${@:3}" >/dev/null 2>&1; grep -o "fd .*$2: .*" "$TMP/$1.log" | grep -oE "$2: .{10}" | sort -u; }
same debug-short-client "not-started: The connec" "$(why short not-started redis-cli -p "$PORT_plain" ping)"
same debug-plain-server "listener-without-library: No process" \
  "$(why client listener-without-library redis-benchmark -p "$PORT_plain" -c 2 -n 200 -t get -q)"
start debug debug --save ''
exec 3<>"/dev/tcp/127.0.0.1/$PORT_debug"
for _ in 1 2 3 4 5; do printf 'PING\r\n' >&3; read -r -u 3 _; done
# (A second after the first of them, without another call.)
wait_for 10 grep -q peer-without-library "$TMP/debug.log"
check debug-plain-client grep -qE "DEBUG .* fd [0-9]+ 127.0.0.1:$PORT_debug > 127.0.0.1:[0-9]+: peer-without-library: No " "$TMP/debug.log"
exec 3>&-
redis-cli -p "$PORT_debug" shutdown nosave 2>/dev/null

# --- replication, accelerated at both ends; disk-less, so that a forked child feeds the stream
redis-cli -p "$PORT_acc" config set repl-diskless-sync yes repl-diskless-sync-delay 0 >/dev/null
start replica accel --save '' --replicaof "127.0.0.1 $PORT_acc"
if wait_for 30 sh -c "redis-cli -p $PORT_replica info replication | grep -q master_link_status:up"; then
  accel redis-benchmark -p "$PORT_acc" -c 20 -n 50000 -r 1000 -t set,lpush -q >/dev/null 2>&1
  wait_for 10 sh -c "[ \"\$(redis-cli -p $PORT_acc debug digest)\" = \"\$(redis-cli -p $PORT_replica debug digest)\" ]" \
    && ok replica-digest || fail replica-digest "$(digest "$PORT_acc") against $(digest "$PORT_replica")"
else
  fail replica-digest "$(tail -n 5 "$TMP/replica/log")"
fi
redis-cli -p "$PORT_replica" shutdown nosave 2>/dev/null

# --- SHUTDOWN under load; a plain server finds the data again
redis-cli -p "$PORT_acc" config set appendonly no >/dev/null
become_accel redis-benchmark -p "$PORT_acc" -c 30 -n 100000000 -r 1000 -t get -q >/dev/null 2>&1 &
bench=$!
PIDS+=("$bench")
wait_for 10 sh -c "[ \$(redis-cli -p $PORT_acc client list | grep -c cmd=get) -ge 10 ]"
before=$(digest "$PORT_acc")
accel redis-cli -p "$PORT_acc" shutdown save >"$TMP/shutdown" 2>&1
wait_for 20 sh -c "! kill -0 $PID_acc 2>/dev/null" && ok shutdown-under-load || fail shutdown-under-load "$(tail -n 5 "$TMP/acc/log")"
wait_for_end "$bench" 10
if [ "$STATUS" = running ]; then fail clients-see-shutdown "redis-benchmark still runs"; kill -9 "$bench"; else ok clients-see-shutdown; fi
check log-has-no-crash sh -c "! grep -E 'BUG REPORT|crashed' $TMP/acc/log"
rm -rf "$TMP/acc/appendonlydir"
mkdir -p "$TMP/again"; cp "$TMP/acc/dump.rdb" "$TMP/again/"
start again plain --save ''
same data-after-restart "$before" "$(digest "$PORT_again")"
finish
