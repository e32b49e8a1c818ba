# What a program is told that includes netacc.h, of a connection over RDMA: tests/apps/api.c.
# shellcheck shell=bash disable=SC2154

if ! cc -Wall -Wextra -Werror -pthread -I "$RDMA/../../include" -o "$TMP/programs/api" "$RDMA/../apps/api.c" 2>"$TMP/err"; then
  fail api-compiles "$(cat "$TMP/err")"; finish; exit 1
fi
# asked DEVICE [last]: what both ends say; the server's port is in a file.
asked() {
  rig two --device "$1" "export API_ADDRESS=\$SERVER NACC_PATHS=rdma
/rig/build/netacc_run /rig/exchange/api server >/rig/exchange/server & server=\$!
wait_for 30 grep -q . /rig/exchange/server && tell up; await client-ended; wait \$server; tail -n +2 /rig/exchange/server" \
    "await up && API_ADDRESS=\$SERVER API_SECONDS=60 NACC_PATHS=rdma /rig/build/netacc_run /rig/exchange/api client \$(head -n 1 /rig/exchange/server) $2"
}
for kind in rxe siw; do
  asked $kind
  is "told-$kind" 0 'client: 1 rdma/rdma none' 'server: server: 1 rdma/rdma none'
  asked $kind last
  is "told-that-it-went-back-$kind" 0 'client: 1 rdma/rdma none
client, later: 0 tcp/tcp socket-option' 'server: server: 0 tcp/tcp peer-asked-for-tcp'
done
