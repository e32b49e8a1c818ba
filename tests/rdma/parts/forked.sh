# A process that forks with connections.
# shellcheck shell=bash disable=SC2154

# A process that forks. (siw's pairs are TCP connections, which can be broken.)
forked='/rig/build/netacc_run -p 8 python3 -B /rig/tree/tests/rdma/guest/forked.py'
rig two --device siw "$forked server \$SERVER & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && tell up; await client-ended; wait \$server" \
  "await up && $forked client \$SERVER 'ss -KHtn dport 27000 or dport 27001 or dport 27002 or dport 27003'"
is connections-of-a-process-that-forks 0 "forked: ('rdma', 'rdma') ('tcp', 'tcp')
came after the fork: ('rdma', 'rdma') ('rdma', 'rdma')
came back: ('rdma', 'rdma') ('rdma', 'rdma')
the child answers: True ('tcp', 'tcp') ('tcp', 'tcp')
the parent answers: True ('tcp', 'tcp') ('tcp', 'tcp')" ''

# A connection of a child's own, whose parent had used RDMA.
rig two --device siw "/rig/build/netacc_run python3 -B /rig/tree/tests/rdma/guest/off.py server & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && tell up; await client-ended; kill \$server" \
  "await up && $forked later \$SERVER"
is connections-of-a-child-whose-parent-has-rdma 0 "before: ('rdma', 'rdma')
the child's: ('tcp', 'tcp', 'forked-after-rdma')
behind: ('rdma', 'rdma')" ''
