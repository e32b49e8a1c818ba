#!/usr/bin/env bash
# What a program is told that includes netacc.h, and what its threads may say: with the library and
# without it, on shared memory and on TCP. (On RDMA: tests/rdma/parts/api.sh.) The same binary each
# time, linked to nothing.
. "$(dirname "$0")/lib.sh"
need_library
command -v cc >/dev/null || { skip all "no cc"; finish; exit; }
ROOT=$(cd "$here/../.." && pwd)
build() { cc -Wall -Wextra -Werror -pthread -I "$ROOT/include" "$@"; }

check compiles build -std=c99 -D_GNU_SOURCE -pedantic -o "$TMP/api" "$here/api.c"
check compiles-c89 build -std=c89 -D_GNU_SOURCE -pedantic -c -o "$TMP/c89.o" -x c - <<<'#include <netacc.h>
int asked(int fd);
int asked(int fd) { return netacc_is_accelerated(fd) + netacc_set_thread_poll(0) + netacc_thread_poll(); }'
check compiles-fortified build -std=gnu17 -O2 -D_FORTIFY_SOURCE=2 -o "$TMP/fortified" "$here/api.c"
if build -static -o "$TMP/static" "$here/api.c" 2>"$TMP/static.err"; then ok compiles-static; else skip compiles-static "no static libc: $(head -n 1 "$TMP/static.err")"; fi
if command -v c++ >/dev/null; then
  printf '#include <netacc.h>\nint main() { return netacc_is_accelerated(-1) == -1 ? 0 : 1; }\n' >"$TMP/api.cc"
  check compiles-c++ c++ -Wall -Wextra -Werror -pedantic -std=c++11 -I "$ROOT/include" -o "$TMP/api++" "$TMP/api.cc"
  check runs-c++ "$TMP/api++"
else
  skip compiles-c++ "no c++"
fi
printf '%s\n' '#include <netacc.h>' '#include <stdio.h>' \
  'int main(void) { for (uint32_t path = 0; path < 5; path++) puts(netacc_path_name(path)); return 0; }' >"$TMP/names.c"
check compiles-names build -o "$TMP/names" "$TMP/names.c"
same names "tcp shm rdma utcp unknown" "$("$TMP/names" | paste -sd ' ')"
same links-to-nothing "" "$(readelf -d "$TMP/api" | grep -i netacc)"

# What is no connection is so with and without the library; what is one has its reason.
expected() {
  cat <<E
closed: -1 Bad file descriptor, -1
negative: -1 Bad file descriptor, -1
file: -1 Socket operation on non-socket, -1
unconnected: -1 Transport endpoint is not connected, -1
listener: -1 Transport endpoint is not connected, -1
udp: -1 Transport endpoint is not connected, -1
connected udp: 0 tcp/tcp $1
unix: 0 tcp/tcp $1
new: 0 tcp/tcp $2
in a handler: 0
E
}
same plain "$(expected no-library no-library)" "$("$TMP/api" errors)"
same with-the-library "$(expected not-stream not-started)" "$(accel "$TMP/api" errors)"
same fortified "$(expected not-stream not-started)" "$(accel "$TMP/fortified" errors)"
[ ! -x "$TMP/static" ] || same static "$(expected no-library no-library)" "$(accel "$TMP/static" errors)"

# ends SERVER -- CLIENT: what both ends say.
ends() {
  local server=() port
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  : >"$TMP/server"
  "${server[@]}" server >"$TMP/server" 2>&1 &
  local pid=$!; PIDS+=("$pid")
  wait_for 10 grep -q . "$TMP/server" || return
  port=$(head -n 1 "$TMP/server")
  timeout 60 "$1" "${@:2}" client "$port" ${LAST:-}
  wait_for_end "$pid" 20
  tail -n +2 "$TMP/server"
}
api=("$TMP/api")
accelerated=(env LD_PRELOAD="$LIB" "$TMP/api")
off=(env LD_PRELOAD="$LIB" NACC_ENABLE_RDMA_DEFAULT=0 "$TMP/api")
lines() { printf '%s\n' "$@"; }
same neither "$(lines 'client: 0 tcp/tcp no-library' 'server: 0 tcp/tcp no-library')" "$(ends "${api[@]}" -- "${api[@]}")"
same shared-memory "$(lines 'client: 1 shm/shm none' 'server: 1 shm/shm none')" "$(ends "${accelerated[@]}" -- "${accelerated[@]}")"
same plain-server "$(lines 'client: 0 tcp/tcp listener-without-library' 'server: 0 tcp/tcp no-library')" "$(ends "${api[@]}" -- "${accelerated[@]}")"
same off "$(lines 'client: 0 tcp/tcp disabled-by-config' 'server: 0 tcp/tcp disabled-by-config')" "$(ends "${off[@]}" -- "${off[@]}")"
same goes-back "$(lines 'client: 1 shm/shm none' 'client, later: 0 tcp/tcp socket-option' 'server: 0 tcp/tcp peer-asked-for-tcp')" \
  "$(LAST=last ends "${accelerated[@]}" -- "${accelerated[@]}")"

# For how long a thread polls: its own word, and no other thread's.
said() {
  cat <<E
at first: -1
none: 0, 0
50: 0, 50
-2: -1 Invalid argument, 50
another thread: -1
another thread, 9: 0, 9
this one: 50
a child: 50
as configured: 0, -1
E
}
unanswered() { # without the library
  said | sed -E '/^(at first|another thread|this one|a child): /s/-?[0-9]+$/-1/; /^(none|50|-2|another thread, 9|as configured): /s/: .*/: -1 Function not implemented, -1/'
}
same poll "$(said)" "$(accel "$TMP/api" poll)"
same poll-fortified "$(said)" "$(accel "$TMP/fortified" poll)"
same poll-plain "$(unanswered)" "$("$TMP/api" poll)"
[ ! -x "$TMP/static" ] || same poll-static "$(unanswered)" "$(accel "$TMP/static" poll)"

# A thread that polls has waits in which that paid, or not; one that does not has none such, and
# sleeps. (The counts are the process's, whose only thread it is. Nothing is said of how many: on a
# busy machine a poll may be in vain, or be left out.)
cat >"$TMP/count" <<'E'
env -u LD_PRELOAD "$1" --json -s cnt "$2" | perl -0777 -ne '
  my %of = /"(\w+)":\s*(\d+)/g;
  print $of{spins_won} + $of{spins_lost} + $of{spins_skipped}, " ", $of{sleeps}, "\n"'
E
export API_COUNT="sh $TMP/count $SS \$PPID"
LAST=poll ends "${accelerated[@]}" -- "${accelerated[@]}" >"$TMP/counts"
effect() { # what has grown in each of the three parts: polls, sleeps
  grep -E '^[0-9]+ [0-9]+$' "$TMP/counts" | perl -ane '
    printf "%s/%s\n", $F[0] > $was[0] ? "polls" : "does not poll", $F[1] > $was[1] ? "sleeps" : "does not sleep" if @was; @was = @F'
}
same poll-counts "$(lines 'polls' 'does not poll/sleeps' 'polls')" "$(effect | sed '1s,/.*,,;3s,/.*,,')"
unset API_COUNT

# Another language, without the header.
if command -v python3 >/dev/null; then
  cat >"$TMP/ask.py" <<'E'
import socket, struct
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
try:
    answer = client.getsockopt(0x6e61, 1, 312)
    print(*struct.unpack_from("=6I32s", answer)[:5], answer[24:56].split(b"\0")[0].decode(), len(answer))
except OSError as error:
    print(error.errno)
try:
    client.setsockopt(0x6e61, 2, 70)
    print(client.getsockopt(0x6e61, 2))
except OSError as error:
    print(error.errno)
E
  same python "$(lines '1 0 0 0 30 not-started 312' 70)" "$(accel python3 "$TMP/ask.py")"
  # (ENOPROTOOPT or EOPNOTSUPP, by the kernel.)
  same python-plain 2 "$(python3 "$TMP/ask.py" | grep -cxE '92|95')"
else
  skip python "no python3"
fi
finish
