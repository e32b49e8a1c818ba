#!/usr/bin/env python3
"""Requests and replies of 512 bytes under the library, and what they cost, counted.

    counts.py serve ADDRESS PORT     answers; "?" is answered by this end's counters, "#" by its channels
    counts.py ask ADDRESS PORT N     prints a line NAME=VALUE for each thing that is counted: see `report`
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time

SIZE = 512
SS = os.environ.get("NETACC_LIB_DIR", "/rig/build") + "/netacc_ss"
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def show(what):
    answer = subprocess.run([SS, "--json", "-s", what, str(os.getpid())], capture_output=True, check=True, env=PLAIN)
    return json.loads(answer.stdout)


def counters():
    """At rest: two looks that agree."""
    last = None
    while True:
        now = show("cnt")["counters"]
        if now == last:
            return now
        last = now
        time.sleep(0.05)


def receive(connection, size=SIZE):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return data


def serve_one(connection):
    while (request := receive(connection)) is not None:
        if request[:1] in b"?#":
            text = json.dumps(counters() if request[:1] == b"?" else show("qp")).encode()
            connection.sendall(len(text).to_bytes(4, "big") + text)
        else:
            connection.sendall(request)


def serve(address, port):
    listener = socket.create_server((address, int(port)))
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


def packets():
    """On the wire, both ways."""
    base = "/sys/class/net/net0/statistics/"
    return sum(int(open(base + name).read()) for name in ("tx_packets", "rx_packets"))


def round_trip(connection, number):
    request = number.to_bytes(8, "big") + os.urandom(SIZE - 8)
    connection.sendall(request)
    if receive(connection) != request:
        sys.exit(f"round {number}: wrong bytes")


def until_on_rdma(connection):
    """Talks until the connection is on RDMA both ways. Returns how many round trips that took."""
    port = connection.getsockname()[1]
    for number in range(2000):
        round_trip(connection, number)
        if number % 10 == 9:
            mine = [s for s in show("sock")["sockets"] if s["local"].endswith(f":{port}")]
            if [(s["tx_path"], s["rx_path"]) for s in mine] == [("rdma", "rdma")]:
                return number
    sys.exit(f"never on RDMA: {mine}")


def both(connection):
    connection.sendall(b"?" * SIZE)
    theirs = json.loads(receive(connection, int.from_bytes(receive(connection, 4), "big")))
    return counters(), theirs


def used(address, port):
    """How many connections have memory at the server's end. Asked by a program without the library."""
    script = (
        "import socket, sys\n"
        "c = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        f"c.sendall(b'#' * {SIZE})\n"
        "print(c.makefile('rb').read(int.from_bytes(c.recv(4), 'big')).decode())"
    )
    answer = subprocess.run([sys.executable, "-c", script, address, port], capture_output=True, check=True, env=PLAIN)
    return sum(channel["slots_used"] for channel in json.loads(answer.stdout)["channels"])


def cpu_ticks():
    """Of the library's threads."""
    ticks = 0
    for task in os.listdir("/proc/self/task"):
        text = open(f"/proc/self/task/{task}/stat").read()
        if "(netacc" in text:
            fields = text.rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks


def ask(address, port, count):
    count = int(count)
    first = socket.create_connection((address, int(port)))
    until_on_rdma(first)
    before, wire = both(first), packets()
    for number in range(count):
        round_trip(first, number)
    wire = packets() - wire
    after = both(first)
    for end, (old, new) in zip(("client", "server"), zip(before, after)):
        for name in ("rdma_work_requests", "rdma_messages_sent", "rdma_credits"):
            print(f"{end}_{name}={(new[name] - old[name]) / count:.3f}")
    print(f"packets={wire / count:.3f}")
    # The next connection, when this one is gone from both ends.
    first.close()
    while used(address, port) or sum(channel["slots_used"] for channel in show("qp")["channels"]):
        pass
    second = socket.create_connection((address, int(port)))
    until_on_rdma(second)
    again = both(second)
    for end, (old, new) in zip(("client", "server"), zip(after, again)):
        for name in ("rdma_pairs_created", "rdma_regions", "rdma_pairs_reused"):
            print(f"{end}_second_{name}={new[name] - old[name]}")
    ticks = cpu_ticks()
    time.sleep(3)
    print(f"idle_ticks={cpu_ticks() - ticks}")


{"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
