#!/usr/bin/env python3
"""Connections to a server whose every worker process accepts one, by any path.

    workers.py server ADDRESS N         forks N workers; each echoes what its connection says, to its end
    workers.py client LOCAL ADDRESS N PATH [REASON]
                                        N connections from LOCAL; speaks on each until netacc_ss
                                        says that all of them have come
                                        onto PATH in both directions (for REASON), and prints what
                                        they are on in the end; status 1: not within a minute
"""
import collections
import json
import os
import socket
import subprocess
import sys
import time

PORT = 7000


def server(address, n):
    listener = socket.create_server((address, PORT), backlog=128)
    for _ in range(n):
        if os.fork() == 0:
            connection, _ = listener.accept()
            while data := connection.recv(4096):
                connection.sendall(data)
            os._exit(0)
    listener.close()
    for _ in range(n):
        os.wait()


def paths():
    """What this process's connections are on; netacc_ss is not to run under the library itself."""
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    shown = subprocess.run([os.environ["NETACC_LIB_DIR"] + "/netacc_ss", "--json", "-s", "sock", str(os.getpid())], env=env, stdout=subprocess.PIPE)
    return collections.Counter((s["tx_path"], s["rx_path"], s["reason"]) for s in json.loads(shown.stdout)["sockets"])


def client(local, address, n, path, reason="none"):
    connections = [socket.create_connection((address, PORT), source_address=(local, 0)) for _ in range(n)]
    end = time.monotonic() + 60
    message = bytes(range(256))
    now = None
    while time.monotonic() < end:
        for _ in range(20):
            for c in connections:
                c.sendall(message)
            for c in connections:
                answer = b""
                while len(answer) < len(message):
                    answer += c.recv(len(message) - len(answer)) or sys.exit("the end of a connection")
                if answer != message:
                    sys.exit("a wrong byte")
        now = paths()
        if now == {(path, path, reason): n}:
            break
    print(*(f"{tx}/{rx} {count}" + (f" {reason}" if reason != "none" else "") for (tx, rx, reason), count in sorted(now.items())))
    return now != {(path, path, reason): n}


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    sys.exit(server(rest[0], int(rest[1])) if role == "server" else client(rest[0], rest[1], int(rest[2]), *rest[3:]))
