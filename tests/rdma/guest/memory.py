#!/usr/bin/env python3
"""Many connections between two processes, and what they lock, as the kernel counts it (VmPin).

    memory.py serve ADDRESS PORT
        answers 64 bytes with the same; "?" is answered by what this end has
    memory.py hold ADDRESS PORT N BYTES
        N connections that exchange 64 bytes until they are on RDMA. Then, if BYTES is not 0, each
        sends so many and reads the answer only when all are sent. Prints NAME=VALUE
"""

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time

SIZE = 64
SS = os.environ.get("NETACC_LIB_DIR", "/rig/build") + "/netacc_ss"
PLAIN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
PATIENCE = float(os.environ.get("PATIENCE", "120"))


def own():
    """Connections, those of them that are on RDMA, and KiB that are locked for devices."""
    answer = subprocess.run([SS, "--json", "-s", "cnt", str(os.getpid())], capture_output=True, check=True, env=PLAIN)
    counts = json.loads(answer.stdout)
    with open("/proc/self/status") as status:
        pinned = next(int(line.split()[1]) for line in status if line.startswith("VmPin"))
    return {"on_tcp": counts["open"]["tcp"], "on_rdma": counts["open"]["rdma"], "pinned_kib": pinned,
            "reasons": json.dumps(counts["reasons"])}


def serve(address, port):
    listener = socket.create_server((address, int(port)), backlog=1024)
    listener.setblocking(False)
    poll, open_ = select.epoll(), {}
    poll.register(listener, select.EPOLLIN)
    print("listening", flush=True)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                connection, _ = listener.accept()
                open_[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
                continue
            try:
                data = open_[fd].recv(65536)
            except BlockingIOError:
                continue
            if not data:
                poll.unregister(fd)
                open_.pop(fd).close()
                continue
            if data[:1] == b"?":
                data = json.dumps(own()).encode()
            open_[fd].setblocking(True)
            open_[fd].sendall(data)
            open_[fd].setblocking(False)


def answered(connection, size):
    while size > 0:
        part = connection.recv(size)
        if not part:
            raise EOFError
        size -= len(part)


def hold(address, port, count, size):
    open_, end = [], time.monotonic() + PATIENCE
    for _ in range(int(count)):
        open_.append(socket.create_connection((address, int(port))))
        for _ in range(4):
            open_[-1].sendall(b"x" * SIZE)
            answered(open_[-1], SIZE)

    def counts_on_rdma():
        while (mine := own())["on_rdma"] < len(open_) and time.monotonic() < end:
            for connection in open_:
                connection.sendall(b"x" * SIZE)
                answered(connection, SIZE)
        return mine

    # (What is sent while a connection is still on TCP fills no ring; and whose ring is full goes
    # over TCP until it has a larger one.)
    mine, size = counts_on_rdma(), int(size)
    if size:
        for connection in open_:
            connection.sendall(b"x" * size)
        for connection in open_:
            answered(connection, size)
        mine = counts_on_rdma()
    open_[0].sendall(b"?")
    theirs = json.loads(open_[0].recv(65536))
    for end, values in (("client", mine), ("server", theirs)):
        for name, value in values.items():
            print(f"{end}_{name}={value}")
    sys.stdout.flush()
    signal.pause()


resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
{"serve": serve, "hold": hold}[sys.argv[1]](*sys.argv[2:])
