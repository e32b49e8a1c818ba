# How tests/run-all runs a suite, adds it up, and runs again what has failed. tests/suites-test
# tests it.
# shellcheck shell=bash
set -u -o pipefail

OUT=${NETACC_TEST_OUT:-$PWD/out/test}
REPEAT=${NETACC_REPEAT:-1}
# So many suites of a run may have flaky tests, so many of them each: what fails together has one
# cause. What these suites do depends on nothing: a failure of theirs is one.
MOST_FLAKY=${NETACC_FLAKY:-$((REPEAT > 1 ? 0 : 1))}
MOST_FLAKY_TESTS=3
MOST_FALLEN=2
DETERMINISTIC=" gates loom miri "
# What apt has for any Debian and Ubuntu, by the words of those who skip a test without it.
# tests/run-all installs it: where that can be done, nothing is skipped for the lack of it. (Not
# Chromium, which Ubuntu has as a snap; nor mdBook, namespaces, or a kernel of the rig, which a
# machine or its container may not have; nor a Python that has tomllib.)
HAD_EVERYWHERE=(c++ cc curl fish gdb git groff iperf3 iproute2 lsof make memcached modprobe musl-gcc nft nginx openssl perl ping
  prometheus promtool ps python3 redis-cli redis-server sockperf ss ssh ssh-keygen sshd strace sudo tcpdump tmux tshark unshare
  valgrind wrk zsh "static libc" "Python with argparse" "Python with dataclasses" "Python with unittest")
# Where a test takes as long as this, it is run again three times, not five.
LONG=30
PASSED=0 FAILED=0 SKIPPED=0
FAILURES=() FLAKY=() FLAKY_SUITES=() FALLEN=() RAN=()
declare -A BESIDE=()
BEGIN=$SECONDS
mkdir -p "$OUT"
rm -f "$OUT/summary" "$OUT/times" "$OUT"/*-again.log "$OUT"/*.took

say() { printf '\n=== %s (at %d s)\n' "$1" $((SECONDS - BEGIN)); }

# passed, failed NAME: of what is no suite.
passed() { PASSED=$((PASSED + 1)); }
failed() { FAILED=$((FAILED + 1)); FAILURES+=("$1"); }

# listed TITLE LINE...
listed() { [ $# -eq 1 ] || { echo "$1:"; printf '    %s\n' "${@:2}"; }; }

# table: what each suite took, where time goes; also in $OUT/times. Suites run beside others: their
# seconds add up to more than the run's, and those of a CPU say what can be saved. (Processes that
# outlive who started them are not in there, nor what was run again.)
table() {
  [ ${#RAN[@]} -gt 0 ] || return 0
  { printf '%-24s %8s %8s\n' suite seconds CPU; printf '%s\n' "${RAN[@]}"; } | tee "$OUT/times"
}

# summary: the end. Its last line is `N passed, N failed`.
summary() {
  local name
  say "end"
  [ ${#FALLEN[@]} -le $MOST_FALLEN ] || failed "kernels of the rig fell over ${#FALLEN[@]} times"
  for name in "${FLAKY_SUITES[@]}"; do
    echo "FLAKY, an open fault: these failed, then passed each time. What they said at first:"
    first_failures <"$OUT/$name.log"
  done
  listed "FLAKY: kernels of the rig that fell over, with what they ran (once more, then)" "${FALLEN[@]}"
  table
  listed "flaky" "${FLAKY[@]}"
  listed "failures" "${FAILURES[@]}"
  echo
  [ ${#FLAKY[@]} -eq 0 ] || echo "flaky: ${#FLAKY[@]}"
  [ $SKIPPED -eq 0 ] || echo "skipped: $SKIPPED"
  echo "$PASSED passed, $FAILED failed" | tee "$OUT/summary"
  [ $FAILED -eq 0 ]; exit
}

# limit SECONDS COMMAND...: the repeats of `make soak` have their time too.
TIMES=$((REPEAT > 1 ? REPEAT : 1))
limit() { local seconds=$1; shift; timeout --kill-after=10 $((seconds * TIMES)) "$@"; }

# took NAME BEGIN: of a shell that has run a suite since then, for `noted`.
took() { { echo $((${EPOCHREALTIME/[.,]/} - $2)); times; } >"$OUT/$1.took"; }

# noted NAME: what it took becomes a row of the table. (The last line of `times` is of what the
# shell has waited for.)
noted() {
  [ -s "$OUT/$1.took" ] || return 0
  RAN+=("$(awk -v name="$1" 'NR == 1 {wall = $1 / 1e6}
    END {gsub(/,/, "."); split($0, of, /[ms ]+/); printf "%-24s %8.1f %8.1f", name, wall, of[1] * 60 + of[2] + of[3] * 60 + of[4]}' "$OUT/$1.took")")
  rm "$OUT/$1.took"
}

# shown: of a suite's output, without what went well.
shown() { grep -vE '^test .* \.\.\. (ok|ignored)|^running [0-9]+ tests?$|^test result: ok|^ +(Compiling|Running|Doc-tests) |^$'; }

# first_failures: of a suite's output, what failed, with some lines of what it said.
first_failures() {
  awk '/^test .* \.\.\. FAILED/ {left = 20} /^test .* \.\.\. / && !/FAILED/ {left = 0}
    left-- > 0 {print "    " $0}'
}

# those RESULT LOG: the names of the tests that came to this.
those() { sed -nE "s/^test (.*) \.\.\. $1.*/\1/p" "$2" | sort -u; }

# reported NAME SELECT LOG: `EXTENT PASSED FAILED SKIPPED`; EXTENT is `all` where the suite has come
# to its end.
reported() {
  if [ "$2" = exactly ]; then
    # (Of some documentation there are two results. Cargo knows of no test that says by itself that
    # it cannot be made here: it has passed, or failed at what it could do.)
    awk '/^ +(Running|Doc-tests) / {begun++; running = 1; delete skipped}
      /^test .* \.\.\. skipped \(/ && !skipped[$2]++ {by_itself++}
      /^test .* \.\.\. FAILED/ && skipped[$2] {skipped[$2] = 0; by_itself--}
      /^test result: / {ended += running; running = 0; p += $4 - by_itself; f += $6; s += $8 + by_itself; by_itself = 0}
      END {print begun && begun == ended ? "all" : "part", p + 0, f + 0, s + 0}' "$3"
  else
    awk -v last="^$1: [0-9]+ passed, [0-9]+ failed" '$0 ~ last {ended = 1; p = $2; f = $4; s = $6}
      END {print ended ? "all" : "part", p + 0, f + 0, s + 0}' "$3"
  fi
}

# beside NAME SECONDS SELECT COMMAND... [-- ARGUMENT...]: begins a suite, once the process $BEHIND
# has ended, if there is one. `suite` with the same arguments then waits for it.
beside() {
  local name=$1 seconds=$2 command=() word began status; shift 3
  for word; do [ "$word" = -- ] || command+=("$word"); done
  {
    [ -z "${BEHIND:-}" ] || tail --pid="$BEHIND" -f /dev/null
    began=${EPOCHREALTIME/[.,]/}
    timeout --kill-after=10 $((seconds * TIMES)) "${command[@]}" &
    # Who ends this shell ends the suite.
    trap 'kill $!; wait $!; exit 143' TERM
    wait $!
    status=$?
    took "$name" "$began"
    exit $status
  } >"$OUT/$name.log" 2>&1 &
  BESIDE[$name]=$!
}
trap 'for begun in "${BESIDE[@]}"; do kill "$begun"; done' EXIT

# ran NAME SECONDS COMMAND...: runs it, or waits for what was begun beside others; its output is in
# $OUT/NAME.log then.
ran() {
  local name=$1 seconds=$2 log=$OUT/$1.log begun=${BESIDE[$1]:-}; shift 2
  if [ -z "$begun" ]; then
    {
      begun=${EPOCHREALTIME/[.,]/}
      limit "$seconds" "$@"
      set -- $?
      took "$name" "$begun"
      exit "$1"
    } 2>&1 | tee "$log" | shown
    return "${PIPESTATUS[0]}"
  fi
  unset "BESIDE[$name]"
  wait "$begun"
  set -- $?
  shown <"$log"
  return "$1"
}

# may_install: whether a lack is nobody's but this machine's: it is one of continuous integration,
# and its packages are ours to install.
may_install() { [ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# lacking LOG: the tests that were skipped for what can be had here, and what that is. (Of `no X or
# no Y: why` either is it, so both have to be had.)
lacking() {
  local test why
  may_install || return 0
  while IFS=$'\t' read -r test why; do
    why=${why%%[:,;]*}
    ! printf '%s\n' "${why// or no /$'\n'}" | grep -qvxFf <(printf '%s\n' "${HAD_EVERYWHERE[@]}") || continue
    echo "$test is skipped without ${why// or no / or }, which apt-get can install here"
  done < <(sed -nE 's/^test (.*) \.\.\. skipped \(no (.*)\)[^)]*$/\1\t\2/p' "$1" | sort -u)
}

# without NAME MODULE: says that a suite is skipped, where Python or a module of it is not there.
without() {
  local line
  python3 -c "import $2" 2>/dev/null && return 1
  line="test $1 ... skipped (no Python with $2)"
  echo "$line"
  SKIPPED=$((SKIPPED + 1))
  while read -r line; do failed "$line"; done < <(lacking <(echo "$line"))
}

# suite NAME SECONDS SELECT COMMAND... [-- ARGUMENT...]: runs a suite, whose last line of that kind
# is `NAME: N passed, N failed[, N skipped]`, and adds it up. SELECT is a function that prints the
# arguments that select the tests of these names, or fails; then they take the place of ARGUMENTS,
# which select all. `-`: the suite has none. `exactly`: it is a cargo test.
suite() {
  local name=$1 seconds=$2 select=$3 log=$OUT/$1.log bad=1 label='' command=() extent status p f s tests line; shift 3
  while [ $# -gt 0 ] && [ "$1" != -- ]; do command+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  [ "$select" != exactly ] || bad=101 label="$name: "
  ran "$name" "$seconds" "${command[@]}" "$@"
  status=$?
  noted "$name"
  read -r extent p f s < <(reported "$name" "$select" "$log")
  mapfile -t tests < <(those FAILED "$log")
  mapfile -t -O ${#FALLEN[@]} FALLEN < <(sed -n "s/^FLAKY: /$name: /p" "$log")
  # One that was killed, crashed or never ran has failed in that, whatever else has.
  if [ "$extent" != all ] || [ "$status" -ne $((f > 0 ? bad : 0)) ]; then
    failed "$name ended with status $status"
    [ "$f" -ge ${#tests[@]} ] || f=${#tests[@]}
  elif [ "$f" -gt 0 ] && pass_again "$@"; then
    FLAKY+=("${tests[@]/#/$label}") FLAKY_SUITES+=("$name")
    f=0
  fi
  PASSED=$((PASSED + p)) FAILED=$((FAILED + f)) SKIPPED=$((SKIPPED + s))
  [ "$f" -eq 0 ] || FAILURES+=("${tests[@]/#/$label}")
  [ "$f" -le ${#tests[@]} ] || FAILURES+=("$name: $((f - ${#tests[@]})) without a name of their own")
  while read -r line; do failed "$name: $line"; done < <(lacking "$log")
}

# pass_again ARGUMENT...: whether all $tests of the `suite` that calls it pass in each of some more
# rounds. Not where a failure has no name, or cannot be selected, nor where no test, or no more, may
# be flaky.
pass_again() {
  local log=$OUT/$name-again.log rounds=3 round begin status missing chosen arguments=("$@")
  [ "${DETERMINISTIC/ $name /}" = "$DETERMINISTIC" ] || return
  [ "$f" -eq ${#tests[@]} ] && [ "$f" -le $MOST_FLAKY_TESTS ] || return
  [ ${#FLAKY_SUITES[@]} -lt "$MOST_FLAKY" ] || return
  if [ "$select" != - ]; then
    rounds=5
    chosen=$($select "${tests[@]}") || return
    mapfile -t arguments <<<"$chosen"
  fi
  say "$name, again: ${tests[*]}"
  for ((round = 1; round <= rounds; round++)); do
    begin=$SECONDS
    limit "$seconds" "${command[@]}" "${arguments[@]}" >"$log.round" 2>&1
    status=$?
    mapfile -t -O ${#FALLEN[@]} FALLEN < <(sed -n "s/^FLAKY: /$name, again: /p" "$log.round")
    missing=$(printf '%s\n' "${tests[@]}" | grep -vxFf <(those ok "$log.round"))
    printf '=== round %d: status %d\n' "$round" "$status" | cat - "$log.round" >>"$log"
    if [ $status -ne 0 ] || [ -n "$missing" ]; then
      echo "round $round of $rounds: status $status${missing:+, not passed: ${missing//$'\n'/, }}"
      shown <"$log.round" | tail -n 60 | sed 's/^/    /'
      rm "$log.round"
      return 1
    fi
    [ $((SECONDS - begin)) -lt $LONG ] || rounds=3
    echo "round $round of $rounds: passed ($((SECONDS - begin)) s)"
  done
  printf 'test %s ... flaky\n' "${tests[@]}"
  rm "$log.round"
}

# --- the arguments that select the tests of these names

# (Of some the name is not all that cargo test says.)
exactly() { printf '%s\n' -- --exact; printf '%s\n' "$@" | sed -E 's/ - (should panic|compile fail|compile)$//'; }

scenarios() { printf '%s\n' --jobs 1; printf '%s\n' "${@% \[*}" | sort -u; }
starved() { printf '%s\n' "${@#starve/}" | sed 's/ \[.*//' | sort -u; }
attacks() { printf '%s\n' "${@#hostile/}"; }
# rdma-conformance/DEVICE/SCENARIO [rdma], and the campaigns of kill and stress.
over_rdma() {
  local test
  for test; do
    case ${test#rdma-conformance/*/} in
      kill/*) echo kill ;;
      stress/leave) echo leave ;;
      stress/*) echo stress ;;
      *\ \[rdma]) test=${test#rdma-conformance/*/}; echo "${test% \[*}" ;;
      *) return 1 ;;
    esac
  done | sort -u
}
# SUITE/PART/NAME: the part.
parts() {
  local test
  for test; do
    test=${test#*/}
    [ "$test" != "${test%/*}" ] || return 1
    echo "${test%%/*}"
  done | sort -u
}
# SUITE/NAME: the name; but not where the suite says more of itself than its tests do.
names() {
  local test
  for test; do
    case $test in */library-log | */packages | */library) return 1 ;; esac
    echo "${test#*/}"
  done | sort -u
}
rdma_apps() {
  local test
  for test; do
    test=${test#rdma-apps/}
    case $test in
      redis-one-* | traffic-one-*) echo one ;;
      redis-* | nginx-* | transfer-* | ipv6-* | memlock-* | start-*) echo "${test%%-*}" ;;
      *) return 1 ;;
    esac
  done | sort -u
}
