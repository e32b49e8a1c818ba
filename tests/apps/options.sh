#!/usr/bin/env bash
# Every option of netacc.conf, changed, and what comes of it on shared memory (options_app.py; over
# RDMA: tests/rdma/parts/options.sh).
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
while read -r name said; do
  case $said in
    ok) ok "$name" ;;
    skipped*) skip "$name" "${said#skipped: }" ;;
    *) fail "$name" "$said" ;;
  esac
done < <(NETACC_LIB_DIR=$LIB_DIR python3 -B "$here/options_app.py" check shm 127.0.0.1 "$@" 2>&1)
# NACC_LOG_PATH=syslog: the system's log, here of a mount namespace.
if ! unshare --mount true 2>/dev/null; then skip syslog "no mount namespaces: not root"; else
  same syslog "syslog ok" "$(NETACC_LIB_DIR=$LIB_DIR unshare --mount python3 -B "$here/options_app.py" syslog 127.0.0.1 2>&1)"
fi
[ $((PASSED + FAILED + SKIPPED)) -gt 0 ] || fail all "it says nothing"
finish
