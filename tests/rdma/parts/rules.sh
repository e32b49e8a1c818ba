# Rules by address (`[rule NAME]` of netacc.conf), between hosts and within one: which connections
# stay on TCP, and which take RDMA.
# shellcheck shell=bash disable=SC2154

ruled='python3 -B /rig/tree/tests/apps/rules_app.py'
# between_hosts DEVICE CLIENT SERVER: a connection between two hosts, whose ends have these rules;
# both say where it is, and why.
between_hosts() {
  printf -v client "[netacc]\\n$2"; printf -v server "[netacc]\\n$3"
  rig two --device "$1" "echo '$server' >/tmp/rules; export NACC_CONF=/tmp/rules
/rig/build/netacc_run $ruled server \$SERVER 7000 </dev/null & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && tell up; await client-ended; wait \$server" \
    "await up && echo '$client' >/tmp/rules && SEARCHES=yes NACC_CONF=/tmp/rules /rig/build/netacc_run $ruled client \$SERVER 7000 </dev/null"
}
for kind in rxe siw; do
  rule='[rule r]\naddress=10.0.0.0/24\naccelerate=0'
  between_hosts $kind "$rule" "$rule"
  is "by-network-$kind" 0 'tcp rule' 'server: ready
server: tcp rule'
  between_hosts $kind '[rule r]\naddress=10.0.0.1\npaths=rdma\n[rule rest]\naccelerate=0' ''
  is "by-address-to-rdma-$kind" 0 'rdma none' 'server: ready
server: rdma none'
done
# One end is enough. (The other one may look for it for a while.)
between_hosts rxe '[rule r]\naddress=10.0.0.1\naccelerate=0' ''
same at-one-end 'tcp rule
server: tcp' "$OUT
$(sed -n 's/^\(server: tcp\) .*/\1/p' <<<"$ERR")"
# A rule about other addresses keeps nothing.
between_hosts rxe '[rule r]\naddress=10.0.1.0/24,fd00::/8\naccelerate=0' ''
is of-another-network 0 'rdma none' 'server: ready
server: rdma none'

# Within a host shared memory comes first, but by a rule.
within() {
  rig one --device rxe --memory 700 "printf '[netacc]\\n$1\\n' >/tmp/rules; export NACC_CONF=/tmp/rules
/rig/build/netacc_run $ruled server 10.0.0.1 7000 </dev/null & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && SEARCHES=yes /rig/build/netacc_run $ruled client 10.0.0.1 7000 </dev/null; wait \$server"
}
within ''
is within-a-host 0 'ready
shm none
shm none' ''
within '[rule r]\naddress=10.0.0.0/8\npaths=rdma'
is within-a-host-to-rdma 0 'ready
rdma none
rdma none' ''

# What a rule says of waits and traces holds on this path, too.
LIMIT=300 rig one --device rxe --memory 700 "python3 -B /rig/tree/tests/apps/rule_app.py rdma 10.0.0.1 2>&1"
is other-keys 0 'poll ok
trace ok' ''
