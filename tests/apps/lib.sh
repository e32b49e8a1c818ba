# Shared by the application suites: results, temporary files, processes that are ended by their pid.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LIB_DIR=${NETACC_LIB_DIR:-$here/../../target/release}
LIB_DIR=$(cd "$LIB_DIR" 2>/dev/null && pwd || echo "$LIB_DIR")
LIB=$LIB_DIR/libnetacc_preload.so
SS=$LIB_DIR/netacc_ss
TMP=$(mktemp -d)
SUITE=$(basename "$0" .sh)
PASSED=0 FAILED=0 SKIPPED=0
PIDS=()

# What a user may have set must not reach the programs under test.
for name in $(compgen -e | grep -E '^(NACC_|NETACC_TEST)' | grep -vx NETACC_TEST_OUT) LD_PRELOAD; do unset "$name"; done

cleanup() {
  local pid
  for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null; done
  for pid in "${PIDS[@]}"; do
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null
  done
  rm -rf "$TMP"
}
trap cleanup EXIT

ok() { PASSED=$((PASSED + 1)); echo "test $SUITE/$1 ... ok${2:+ ($2)}"; }
fail() { FAILED=$((FAILED + 1)); echo "test $SUITE/$1 ... FAILED"; [ $# -gt 1 ] && printf '%s\n' "$2" | head -n 30 | sed 's/^/    /'; return 0; }
skip() { SKIPPED=$((SKIPPED + 1)); echo "test $SUITE/$1 ... skipped ($2)"; }

# check NAME CONDITION... : the condition is a command.
check() {
  local name=$1 out; shift
  if out=$("$@" 2>&1); then ok "$name"; else fail "$name" "${out:-failed: $*}"; fi
}

# same NAME EXPECTED GOT
same() {
  if [ "$2" = "$3" ]; then ok "$1"; else
    fail "$1" "$(diff <(printf '%s\n' "$2") <(printf '%s\n' "$3") | head -n 20)"; fi
}

# results PREFIX: of what a program says on standard input, a line each: `NAME ok`, `NAME skipped:
# WHY`, or what has failed.
results() {
  local name said
  while read -r name said; do
    case $said in
      ok) ok "$1$name" ;;
      skipped*) skip "$1$name" "${said#skipped: }" ;;
      *) fail "$1$name" "$said" ;;
    esac
  done
}

finish() {
  if [ -s "$TMP/netacc.log" ] && grep -E 'panick|FATAL' "$TMP/netacc.log" >"$TMP/worry"; then
    fail library-log "$(head -n 5 "$TMP/worry")"
  fi
  echo
  echo "$SUITE: $PASSED passed, $FAILED failed$([ $SKIPPED -gt 0 ] && echo ", $SKIPPED skipped")"
  [ $FAILED -eq 0 ]
}

# Runs a command with the library.
accel() { env LD_PRELOAD="$LIB" NACC_LOG_PATH="$TMP/netacc.log" "$@"; }

# The same for `become_accel COMMAND &`: $! is then the command's pid.
become_accel() { exec env LD_PRELOAD="$LIB" NACC_LOG_PATH="$TMP/netacc.log" "$@"; }

# A TCP port that is free now, at every address, and that the kernel gives to no client (whose
# connection would keep a server that is started later from it).
free_port() {
  perl -MIO::Socket::INET -e 'for (1 .. 1000) {
    my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "0.0.0.0", LocalPort => 10000 + int rand 20000) or next;
    print $s->sockport; exit 0 } exit 1'
}

# wait_for SECONDS COMMAND... : until it succeeds.
wait_for() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $end ] || return 1; sleep 0.05; done
}

# stop PID: SIGSTOP, and waits until all of its threads stand still. (The kernel stops the others
# when the one that gets the signal has run.)
stop() {
  kill -STOP "$1"
  stands_still() { ! grep -h '^State:' "/proc/$1/task"/*/status | grep -qv '^State:.T'; }
  wait_for 20 stands_still "$1" || fail "stop-$1" "$(grep -h '^State:' "/proc/$1/task"/*/status)"
}

# How many connections of a process are on shared memory in both directions.
shm_count() {
  "$SS" --json -s sock "$1" 2>/dev/null | tr -d ' \n' | tr '{' '\n' | grep -c '"tx_path":"shm","rx_path":"shm"'
}

any_shm() { [ "$(shm_count "$1")" -ge 1 ]; }

# wait_for_end PID SECONDS: sets STATUS to the exit status of a child of this shell, or to
# 'running'.
wait_for_end() {
  local end=$((SECONDS + $2))
  STATUS=running
  while kill -0 "$1" 2>/dev/null; do [ $SECONDS -lt $end ] || return; sleep 0.05; done
  wait "$1"
  STATUS=$?
}

need_library() {
  [ -e "$LIB" ] && return
  skip all "no library at $LIB"; finish; exit 0
}
