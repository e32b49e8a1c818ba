# What a program is told that includes netacc.h, of a connection over RDMA: tests/apps/api.c.
# shellcheck shell=bash disable=SC2154

if ! cc -Wall -Wextra -Werror -pthread -I "$RDMA/../../include" -o "$TMP/programs/api" "$RDMA/../apps/api.c" 2>"$TMP/err"; then
  fail api-compiles "$(cat "$TMP/err")"; finish; exit 1
fi
POLL=
# asked DEVICE [last|poll]: what both ends say; the server's port is in a file. $POLL: NACC_POLL_MS.
asked() {
  rig two --device "$1" "export API_ADDRESS=\$SERVER NACC_PATHS=rdma NACC_POLL_MS=$POLL
/rig/build/netacc_run /rig/exchange/api server >/rig/exchange/server & server=\$!
wait_for 30 grep -q . /rig/exchange/server && tell up; await client-ended; wait \$server; tail -n +2 /rig/exchange/server" \
    "await up && export API_COUNT='env -u LD_PRELOAD python3 -B /rig/tree/tests/rdma/guest/look.py counters \$PPID'
API_ADDRESS=\$SERVER API_SECONDS=60 NACC_PATHS=rdma NACC_POLL_MS=$POLL /rig/build/netacc_run /rig/exchange/api client \$(head -n 1 /rig/exchange/server) $2"
}
for kind in rxe siw; do
  asked $kind
  is "told-$kind" 0 'client: 1 rdma/rdma none' 'server: server: 1 rdma/rdma none'
  asked $kind last
  is "told-that-it-went-back-$kind" 0 'client: 1 rdma/rdma none
client, later: 0 tcp/tcp socket-option' 'server: server: 0 tcp/tcp peer-asked-for-tcp'
done

# A thread that polls has waits in which that paid, or not, or was left out, as on shared memory
# (tests/apps/api.sh); one that does not has none such: it sleeps, and has the device wake it. (With
# the last part it polls again, as is configured.)
effect() { # what has grown in each of the three parts: polls, sleeps, armed completion queues
  grep ' rdma_polls=' <<<"$OUT" | perl -ne '
    my %of = /(\w+)=(\d+)/g;
    my @is = (0, 0, 0);
    $is[0] += $of{$_} // 0 for qw(spins_won spins_lost spins_skipped);
    @is[1, 2] = map { $_ // 0 } @of{qw(sleeps rdma_arms)};
    print join("/", map { ($is[$_] > $was[$_] ? "" : "not ") . qw(polls sleeps arms)[$_] } 0 .. 2), "\n" if @was;
    @was = @is'
}
for kind in rxe siw; do
  POLL=10 asked $kind poll
  same "a-thread-that-polls-and-does-not-$kind" 'status 0 polls not polls/sleeps/arms polls' \
    "status $STATUS $(effect | sed '1s,/.*,,;3s,/.*,,' | paste -sd ' ')"
done
