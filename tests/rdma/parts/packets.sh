# shellcheck shell=bash
# What was asked of the kernel for a connection's packets: the device's packets have their traffic
# class, and a mark keeps them on TCP.

packets='/rig/build/netacc_run python3 -B /rig/tree/tests/rdma/guest/packets.py'
rig two --device rxe "$packets serve \$SERVER >/tmp/log & server=\$!
wait_for 30 grep -q listening /tmp/log && tell up; await client-ended; wait \$server" "await up && $packets call \$SERVER"
is what-is-asked-of-packets-is-done-or-keeps-them-on-tcp 0 'class 104: [104] [104]
class 32: [32] [32]
with a mark: tcp tcp kernel-policy' ''
