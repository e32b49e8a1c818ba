#!/usr/bin/env python3
"""A listener of siw's that its kernel has given up, and connections after that.

    vanished.py server      echoes what five connections say, to their end
    vanished.py client      one connection on RDMA; connects to where the server's library takes queue pairs, and breaks that off at once,
                            until nobody listens there; four more, and what all are on then
"""
import socket
import struct
import subprocess
import sys
import threading
import time

from workers import PORT, paths

ADDRESS, PAIRS = "10.0.0.1", PORT + 20001


def server():
    def echo(connection):
        while data := connection.recv(4096):
            connection.sendall(data)
    with socket.create_server((ADDRESS, PORT)) as listener:
        for _ in range(5):
            threading.Thread(target=echo, args=(listener.accept()[0],)).start()


def listens():
    return subprocess.run(["ss", "-Hltn", f"sport = {PAIRS}"], stdout=subprocess.PIPE, check=True).stdout != b""


def use(connections):
    """Until all of them are on RDMA."""
    end = time.monotonic() + 60
    while (now := paths()) != {("rdma", "rdma", "none"): len(connections)}:
        for c in connections:
            c.sendall(b"m" * 256)
            c.recv(256, socket.MSG_WAITALL)
        if time.monotonic() > end:
            sys.exit(f"not on RDMA: {now}")
    print(f"rdma/rdma {len(connections)}")


def client():
    first = socket.create_connection((ADDRESS, PORT))
    use([first])
    if not listens():
        sys.exit("no listener")
    end = time.monotonic() + 30
    while listens():
        if time.monotonic() > end:
            sys.exit("the listener stays")
        for _ in range(50):
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.setblocking(False)
                s.connect_ex((ADDRESS, PAIRS))
    print(f"nobody listens at {PAIRS}")
    first.close()
    use([socket.create_connection((ADDRESS, PORT)) for _ in range(4)])


if __name__ == "__main__":
    server() if sys.argv[1] == "server" else client()
