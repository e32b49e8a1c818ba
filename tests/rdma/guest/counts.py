#!/usr/bin/env python3
"""Requests and replies of 512 bytes under the library, and what they cost, counted.

    counts.py serve ADDRESS PORT     answers; "?" is answered by this end's counters, "#" by its channels
    counts.py ask ADDRESS PORT N     prints a line NAME=VALUE for each thing that is counted: see `report`
"""

import json
import os
import re
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
    """At rest: two looks that agree. With what has crossed, and the packets that came to this end a
    second time."""
    last = None
    while True:
        now = show("cnt")["counters"] | {"packets": packets(), "segments": segments(), "repeated": rxe("duplicate_request")}
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
    with connection:
        while (request := receive(connection)) is not None:
            if request[:1] in b"?#":
                connection.sendall(json.dumps(counters() if request[:1] == b"?" else show("qp")).encode())
            else:
                connection.sendall(request)


def serve(address, port):
    listener = socket.create_server((address, int(port)))
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


def packets():
    """Of RDMA, both ways: those that rxe has sent and received."""
    return rxe("sent_pkts") + rxe("rcvd_pkts")


def segments():
    """Of TCP, both ways."""
    lines = [line.split() for line in open("/proc/net/snmp") if line.startswith("Tcp:")]
    tcp = dict(zip(*lines))
    return int(tcp["InSegs"]) + int(tcp["OutSegs"])


def rxe(name):
    """A counter of the device's; siw has none."""
    try:
        return int(open(f"/sys/class/infiniband/rdma0/ports/1/hw_counters/{name}").read())
    except FileNotFoundError:
        return 0


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


def asked(what, address, port):
    """The server's answer, over plain TCP: asked by a program without the library, which sees the
    connection's end."""
    script = (
        "import socket, sys\n"
        "c = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        f"c.sendall({what.encode()} * {SIZE})\n"
        "c.shutdown(socket.SHUT_WR)\n"
        "print(c.makefile('rb').read().decode())"
    )
    answer = subprocess.run([sys.executable, "-c", script, address, port], capture_output=True, check=True, env=PLAIN)
    return json.loads(answer.stdout)


def used(address, port):
    """How many connections have memory at the server's end."""
    return sum(channel["slots_used"] for channel in asked("#", address, port)["channels"])


def both(connection, address, port):
    """Both ends' counters, when each has received what the other one has sent; and how many round
    trips that took: threads bring the counters up to date before they sleep, and leave it when
    another one polls."""
    for number in range(100):
        theirs, mine = asked("?", address, port), counters()
        if all(a["rdma_messages_sent"] == b["rdma_messages_received"] for a, b in ((mine, theirs), (theirs, mine))):
            return mine, theirs, number
        round_trip(connection, number)
    sys.exit(f"what one end sends the other one does not receive: {mine} {theirs}")


def activity():
    """Of the library's threads: how often they have had a CPU, and the ticks that they used."""
    times = ticks = 0
    for task in os.listdir("/proc/self/task"):
        text = open(f"/proc/self/task/{task}/stat").read()
        if "(netacc" in text:
            fields = text.rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
            status = open(f"/proc/self/task/{task}/status").read()
            times += sum(int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", status))
    return times, ticks


def ask(address, port, count):
    count = int(count)
    first = socket.create_connection((address, int(port)))
    until_on_rdma(first)
    *before, _ = both(first, address, port)
    idle, began = counters(), time.monotonic()
    for number in range(count):
        round_trip(first, number)
    then = counters()
    wire, told = (then[name] - idle[name] for name in ("packets", "segments"))
    # Looks of the thread at what was posted: one in 50 ms at most.
    looks = (time.monotonic() - began) / 0.05 + 1
    *after, more = both(first, address, port)
    for end, (old, new) in zip(("client", "server"), zip(before, after)):
        for name in ("rdma_work_requests", "rdma_messages_sent", "rdma_credits"):
            print(f"{end}_{name}={(new[name] - old[name]) / (count + more)}")
    # On a busy machine an acknowledgement may be late: then the same packet goes out again, and so
    # does the acknowledgement.
    repeated = sum(new["repeated"] - old["repeated"] for old, new in zip(before, after))
    print(f"packets={(wire - 2 * repeated) / count}")
    print(f"segments_of_a_look={told / looks}")
    # The next connection, when this one is gone from both ends.
    first.close()
    while used(address, port) or sum(channel["slots_used"] for channel in show("qp")["channels"]):
        pass
    second = socket.create_connection((address, int(port)))
    until_on_rdma(second)
    again = counters(), asked("?", address, port)
    for end, (old, new) in zip(("client", "server"), zip(after, again)):
        for name in ("rdma_pairs_created", "rdma_regions", "rdma_pairs_reused"):
            print(f"{end}_second_{name}={new[name] - old[name]}")
    # (Their last looks at what was posted are over by then.)
    time.sleep(2)
    before = activity()
    time.sleep(3)
    times, ticks = (now - then for now, then in zip(activity(), before))
    print(f"idle_wake_ups={times}", f"idle_ticks={ticks}", sep="\n")


{"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
