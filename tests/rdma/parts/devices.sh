# Two devices in one kernel, and the threads that serve them.
# shellcheck shell=bash disable=SC2154

# Two devices in one kernel. A queue belongs to one of them, and each queue's I/O thread comes with
# it; strace has the threads' CPUs, as a kernel of one CPU shows no other (NACC_SOR_IO_THREADS,
# NACC_SOR_AFFINITY).
devices() {
  rig one --device "$1" --memory 700 "ip link add net1 type dummy && ip link set net1 mtu 4200 && ip address add 10.0.1.1/24 dev net1 && ip link set net1 up &&
add_device $1 1 10.0.1.1 || exit
devices='/rig/build/netacc_run --paths rdma,shm $2 python3 -B /rig/tree/tests/rdma/guest/devices.py'
strace -f -qq -Y -e signal=none -e trace=sched_setaffinity -o calls \$devices server & server=\$!
listening() { ss -Hltn 'sport = 7000' | grep -q .; }
wait_for 30 listening && \$devices client shm=127.0.0.1 rdma=10.0.0.1 rdma=10.0.1.1 rdma=10.0.0.1 && wait \$server || exit
sed -E 's/^[0-9]+//' calls"
}
for kind in rxe siw; do
  devices $kind '-t 2 -A 0'
  is "each-connection-is-on-the-device-of-its-address-$kind" 0 'shm at 127.0.0.1: threads 0
rdma at 10.0.0.1: threads 1, rdma0 1
rdma at 10.0.1.1: threads 2, rdma0 1, rdma1 1
rdma at 10.0.0.1: threads 2, rdma0 2, rdma1 1
what was sent while it computed has arrived meanwhile
<netacc-io> sched_setaffinity(0, 128, [0]) = 0
<netacc-io> sched_setaffinity(0, 128, [0]) = 0' ''
done
devices siw ''
is one-io-thread-serves-two-devices 0 'shm at 127.0.0.1: threads 0
rdma at 10.0.0.1: threads 1, rdma0 1
rdma at 10.0.1.1: threads 1, rdma0 1, rdma1 1
rdma at 10.0.0.1: threads 1, rdma0 2, rdma1 1
what was sent while it computed has arrived meanwhile' ''
