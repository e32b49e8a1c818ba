#!/usr/bin/env python3
"""Connections by several addresses of one host, and what a server process has of the devices that
these belong to.

    devices.py server                echoes what is said to any address, to the end of a connection; behind an answer to `c` it computes,
                                     without a call into the library, until SIGUSR1
    devices.py client PATH=ADDRESS...
                                     a connection from and to each address in turn; speaks on it
                                     until it is on PATH in both directions, and prints what the
                                     server has then. At last, what reaches the server while it
                                     computes; status 1: not within a minute
"""
import collections
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from forked import PORT, whole

# More than a queue pair of one connection has receives for.
MESSAGES = 40
PLAIN = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}


def server():
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    places = [socket.create_server(("0.0.0.0", PORT))]
    while True:
        for place in select.select(places, [], [])[0]:
            if place is places[0]:
                places.append(place.accept()[0])
                continue
            message = whole(place)
            if not message:
                return
            place.sendall(b"%7d" % os.getpid() + message[7:])
            while message[:1] == b"c" and not told:
                pass


def ask(*command):
    return json.loads(subprocess.run(command, env=PLAIN, stdout=subprocess.PIPE, check=True).stdout)


def netacc_ss(what, pid):
    return ask(PLAIN["NETACC_LIB_DIR"] + "/netacc_ss", "--json", "-s", what, str(pid))


def has(pid):
    """I/O threads, and queue pairs on each device."""
    threads = {int(task): open(f"/proc/{pid}/task/{task}/comm").read().strip() for task in os.listdir(f"/proc/{pid}/task")}
    # The kernel knows a queue pair by the thread that made it.
    pairs = collections.Counter(pair["ifname"] for pair in ask("rdma", "-j", "resource", "show", "qp") if pair.get("pid") in threads)
    return ", ".join([f"threads {list(threads.values()).count('netacc-io')}", *(f"{device} {count}" for device, count in sorted(pairs.items()))])


def client(*places):
    connections = []

    def say(connection, kind=b"e"):
        """Who answers."""
        rest = os.urandom(505)
        connection.sendall(kind * 7 + rest)
        answer = whole(connection)
        if answer[7:] != rest:
            sys.exit("a wrong byte, or the end")
        return int(answer[:7])

    def until(condition, step):
        end = time.monotonic() + 60
        while not condition():
            if time.monotonic() > end:
                sys.exit(f"after a minute: {netacc_ss('sock', os.getpid())['sockets']}")
            step()

    for place in places:
        path, address = place.split("=")
        connections.append(socket.create_connection((address, PORT), source_address=(address, 0)))
        name = "%s:%d" % connections[-1].getsockname()
        pid = say(connections[-1])

        def arrived():
            return any(s["local"] == name and s["tx_path"] == s["rx_path"] == path for s in netacc_ss("sock", os.getpid())["sockets"])
        until(arrived, lambda: [say(connections[-1]) for _ in range(20)])
        print(f"{path} at {address}: {has(pid)}", flush=True)

    def received():
        return netacc_ss("cnt", pid)["counters"]["rdma_messages_received"]
    say(connections[-1], b"c")
    for _ in range(MESSAGES):
        before = received()
        connections[-1].sendall(bytes(512))
        until(lambda: received() > before, lambda: None)
    os.kill(pid, signal.SIGUSR1)
    for _ in range(MESSAGES):
        if whole(connections[-1])[7:] != bytes(505):
            sys.exit("a wrong byte, or the end")
    print("what was sent while it computed has arrived meanwhile")


if __name__ == "__main__":
    sys.exit((server if sys.argv[1] == "server" else client)(*sys.argv[2:]))
