# What an acceptor makes of the claims to its connections.
# shellcheck shell=bash disable=SC2154

# claims NAME DEVICE OUTPUT SERVER CLIENT [MODE]: what the acceptor makes of the claims to
# connections of several kinds. SERVER and CLIENT are commands before that; MODE is how it listens.
claims() {
  local claims='python3 -B /rig/tree/tests/rdma/guest/claims.py' run=/rig/build/netacc_run
  rig two --device "$2" "$4 && { $( [ "${6:-}" = inherit ] || echo $run) $claims ${6:-serve} \$SERVER \$SERVER6 >/tmp/log & pid=\$!; }
wait_for 30 grep -q listening /tmp/log && tell up; await client-ended; kill \$pid; wait \$pid; true" \
    "await up && $5 && $run $claims call \$SERVER \$SERVER6"
  is "$1-$2" 0 "$3" ''
}
stamps='sysctl -qw net.ipv4.tcp_timestamps'
for kind in rxe siw; do
  claims claims-are-proven $kind '6 on RDMA, 6 proven, 0 not' true true
done
claims no-answer-of-time-stamps rxe '6 on RDMA, 6 proven, 0 not' "$stamps=0" true
claims without-time-stamps-addresses-count rxe '6 on RDMA, 0 proven, 6 not' true "$stamps=0"
claims an-application-that-saves-syns-has-them rxe '0 on RDMA, 0 proven, 0 not' true true 'serve uses'
# The first SYN of each listener came before the library knew of it.
claims inherited-listeners-save-syns-from-then-on rxe '6 on RDMA, 4 proven, 2 not' true true inherit
