#!/usr/bin/env bash
# Every option of netacc.conf, changed, and what comes of it on shared memory (options_app.py);
# those that take effect while a program runs, set then (live_app.py); and every counter of
# netacc_ss (counters_app.py). The latter two unless options are named.
# Over RDMA: tests/rdma/parts/options.sh.
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
# results PREFIX: of what an app says.
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
results '' < <(NETACC_LIB_DIR=$LIB_DIR python3 -B "$here/options_app.py" check shm 127.0.0.1 "$@" 2>&1)
if [ $# -eq 0 ]; then
  for what in live counters; do
    begun=$((PASSED + FAILED))
    results $what- < <(NETACC_LIB_DIR=$LIB_DIR python3 -B "$here/${what}_app.py" shm 127.0.0.1 2>&1)
    [ $((PASSED + FAILED)) -gt "$begun" ] || fail $what "it says nothing"
  done
fi
# NACC_LOG_PATH=syslog: the system's log, here of a mount namespace.
if ! unshare --mount true 2>/dev/null; then skip syslog "no mount namespaces: not root"; else
  same syslog "syslog ok" "$(NETACC_LIB_DIR=$LIB_DIR unshare --mount python3 -B "$here/options_app.py" syslog 127.0.0.1 2>&1)"
fi
[ $((PASSED + FAILED + SKIPPED)) -gt 0 ] || fail all "it says nothing"
finish
