#!/usr/bin/env bash
# A verdict within a second of use: nobody whose other end has no library, or has it turned off, is
# `negotiating` for longer, whichever way it waits and however seldom it is used. (Between hosts:
# crates/core/src/remote/tests/verdicts.rs.)
. "$(dirname "$0")/lib.sh"
need_library
command -v python3 >/dev/null || { skip all "no python3"; finish; exit; }
said=$(python3 -B "$here/verdict_app.py" "$LIB" "$TMP" 2>"$TMP/err") || fail runs "$(cat "$TMP/err")"
while read -r word name rest; do
  case $word in
    ok) ok "$name" "$rest" ;;
    skipped) skip "$name" "$rest" ;;
    *) fail "${name:-says}" "$word $rest" ;;
  esac
done <<<"$said"
[ -s "$TMP/err" ] && fail errors "$(cat "$TMP/err")"
finish
