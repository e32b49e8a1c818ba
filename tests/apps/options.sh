#!/usr/bin/env bash
# Every option of netacc.conf, changed, and what comes of it on shared memory (options_app.py);
# those that take effect while a program runs, set then (live_app.py); every counter of netacc_ss
# (counters_app.py); and each profile of netacc_run (profiles_app.py). The latter three unless
# options are named.
# Over RDMA: tests/rdma/parts/options.sh. And every option of netacc_run: what a program that is so
# started says that it has.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
results '' < <(NETACC_LIB_DIR=$LIB_DIR python3 -B "$here/options_app.py" check shm 127.0.0.1 "$@" 2>&1)
if [ $# -eq 0 ]; then
  for what in live counters profiles; do
    begun=$((PASSED + FAILED))
    results $what- < <(NETACC_LIB_DIR=$LIB_DIR python3 -B "$here/${what}_app.py" shm 127.0.0.1 2>&1)
    [ $((PASSED + FAILED)) -gt "$begun" ] || fail $what "it says nothing"
  done
fi
# has OPTION... -- NAME=VALUE... : what a program that is started with these options says that it
# has of these parameters, and where that comes from.
has() {
  local options=() program up=0 pid name
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  program='import socket, sys
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname())
s, _ = l.accept()
print("up", flush=True)
sys.stdin.read()'
  # (What holds its input open ends with it.)
  coproc PROGRAM { NACC_LOG_PATH=$TMP/netacc.log exec "$LIB_DIR/netacc_run" "${options[@]}" python3 -c "$program"; }
  pid=$PROGRAM_PID
  read -r -t 60 up <&"${PROGRAM[0]}"
  [ "$up" = up ] && for name in "${@%%=*}"; do
    "$LIB_DIR/netacc" cfg get "$name" --json -p "$pid"
  done | python3 -c '
import json, sys
decoder, text = json.JSONDecoder(), sys.stdin.read()
while text.strip():
    one, end = decoder.raw_decode(text.lstrip())
    text = text.lstrip()[end:]
    for process in one if isinstance(one, list) else [one]:
        for it in process["parameters"]:
            print("{name}={value} {origin}".format(**it))
'
  kill "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
}
if [ $# -eq 0 ]; then
  printf '[netacc]\nNACC_SOR_CONN_PER_QP=3\n' >"$TMP/some.conf"
  tested=
  while read -r options values; do
    options=${options//,/ } values=${values//|/ }
    tested="$tested ${options%% *}"
    # shellcheck disable=SC2086
    is=$(has $options -- $values) others=$(has -- $values)
    origin=command-line
    case $options in -f*) origin=file ;; esac
    want=$(for value in $values; do echo "$value $origin"; done)
    name=run${options//"$TMP"\//} name=${name// /-}
    same "$name" "$want" "$is"
    [ "$want" != "${others// default/ $origin}" ] && [ -n "$others" ] || fail "$name-changes" "$others"
  done <<END
-f,$TMP/some.conf NACC_SOR_CONN_PER_QP=3
-p,2 NACC_SOR_CONN_PER_QP=2
-t,3 NACC_SOR_IO_THREADS=3
-s,8192 NACC_SOR_MSG_SIZE=8192
-F,1 NACC_FAST_CONNECT=1
-d NACC_LOG_LEVEL=1
-T NACC_CONN_TCP_FIRST=1
-P,7 NACC_POLL_MS=7
-A,0 NACC_SOR_AFFINITY=0
-i,3 NACC_CQ_COMP_VECTOR=3
--profile,latency NACC_POLL_MS=1|NACC_POLL_TCP_US=60
--profile,throughput NACC_SOR_MSG_SIZE=65536
--profile,polite NACC_POLL_MS=0|NACC_POLL_TCP_US=0
--paths,rdma NACC_PATHS=rdma
--io-uring,2 NACC_IO_URING=2
--poll-tcp,55 NACC_POLL_TCP_US=55
--rdma-stall,400 NACC_RDMA_STALL_MS=400
--kernel-policy,0 NACC_KERNEL_POLICY=0
--rdma-keeper,60 NACC_RDMA_KEEPER_S=60
END
  same run-every-option "$("$LIB_DIR/netacc_run" -h | sed -n 's/^   \(--*[^ ]*\) .*/\1/p' | grep -vx -e -h -e -v | sort)" \
    "$(printf '%s\n' $tested | sort -u)"
fi
# NACC_LOG_PATH=syslog: the system's log, here of a mount namespace.
if ! unshare --mount true 2>/dev/null; then skip syslog "no mount namespaces: not root"; else
  same syslog "syslog ok" "$(NETACC_LIB_DIR=$LIB_DIR unshare --mount python3 -B "$here/options_app.py" syslog 127.0.0.1 2>&1)"
fi
[ $((PASSED + FAILED + SKIPPED)) -gt 0 ] || fail all "it says nothing"
finish
