# Shared by the rdma suites, on top of the application suites' lib.sh: the rig, the programs for its
# kernels.
# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/../apps/lib.sh"
RDMA=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RIG=$RDMA/rig
# Where the rig says which kernels have fallen over, so that it has run all once more.
export NETACC_RIG_PANICS=$TMP/panics

# packages COMMAND:PACKAGE... : installs those whose command is missing.
packages() {
  "$RDMA/../packages" python3:python3 cc:gcc ld:binutils "/usr/include/stdio.h:libc6-dev" "$@" >"$TMP/apt.log" 2>&1 && return
  fail packages "$(tail -n 8 "$TMP/apt.log")"; finish; exit 1
}

# The rig, built; its folders are in $TMP/built. Ends the suite where there can be none.
need_rig() {
  local reason
  reason=$("$RIG" check 2>&1)
  case $? in
    0) ;;
    77) skip all "${reason#rig: }"; finish; exit 0 ;;
    *) fail check "$reason"; finish; exit 1 ;;
  esac
  "$RIG" build >"$TMP/built" || { fail build; finish; exit 1; }
  export NETACC_LIB_DIR=$LIB_DIR
}

# compile NAME OPTIONS... : guest/NAME.c, for the exchange folder of every rig.
mkdir "$TMP/programs"
compile() {
  local name=$1; shift
  if ! cc -Wall -Wextra -Werror -O2 -o "$TMP/programs/$name" "$RDMA/guest/$name.c" "$@" 2>"$TMP/err"; then
    fail "$name-compiles" "$(cat "$TMP/err")"; finish; exit 1
  fi
}

# rig one|two ARGUMENTS... : sets STATUS, OUT and ERR. The exchange folder is $X.
X=$TMP/exchange
rig() {
  local what=$1; shift
  rm -rf "$X"; cp -r "$TMP/programs" "$X"
  "$RIG" "$what" --limit "${LIMIT:-120}" --exchange "$X" "$@" >"$TMP/out" 2>"$TMP/err"
  STATUS=$? OUT=$(cat "$TMP/out") ERR=$(cat "$TMP/err")
  panics
}

# panics: says, in front of the tests that it is about, which kernels have fallen over (`FLAKY: `).
panics() { [ ! -e "$TMP/panics" ] || { cat "$TMP/panics"; rm "$TMP/panics"; }; }

# is NAME STATUS OUT ERR: what the last one came to.
is() { same "$1" "status $2 out $3 err $4" "status $STATUS out $OUT err $ERR"; }

# succeeds NAME ARGUMENTS... : a rig whose commands end with status 0.
succeeds() {
  local name=$1; shift
  rig "$@"
  if [ "$STATUS" = 0 ]; then ok "$name"; else fail "$name" "status $STATUS
$OUT
$ERR"; fi
}

# json FILE EXPRESSION: of the value `it`.
json() { python3 -c 'import json, sys; it = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$@" 2>&1; }
