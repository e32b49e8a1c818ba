#!/usr/bin/env bash
# TCP in user space (utcp): a server with the library in one network namespace, a plain client in
# another, a pair of virtual devices between. What both see, byte by byte and error by error, is
# what they see without the library; and the connection was out of the kernel meanwhile. Needs root.
# NETACC_UTCP_ROUNDS: how often a process is killed, and each stream poured (default: 3).
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
command -v ip >/dev/null || { skip all "no iproute2"; finish; exit; }
[ "$(id -u)" = 0 ] && unshare -n true 2>/dev/null || { skip all "no namespaces: not root"; finish; exit; }
while IFS=$'\t' read -r verdict name detail; do
  case $verdict in
    ok) ok "$name" "$detail" ;;
    failed) fail "$name" "$(tr '\r' '\n' <<<"$detail")" ;;
    skipped) skip "$name" "$detail" ;;
  esac
done < <(env NETACC_LIB_DIR="$LIB_DIR" TMP="$TMP" python3 "$(dirname "$0")/utcp_app.py" "$@" 2>"$TMP/suite.err" || printf 'failed\tsuite\t%s\n' "$(tail -n 5 "$TMP/suite.err" | tr '\n' '\r')")
[ "$PASSED" -gt 0 ] || [ "$SKIPPED" -gt 0 ] || fail nothing-ran "$(tail -n 20 "$TMP/suite.err")"
finish
