#!/usr/bin/env python3
"""Connections to a host that loses its power in the middle of them, and comes back.

    rebooted.py server          echoes what each connection says, but for those that begin with `s`, which it only reads
    rebooted.py client PATH     one connection that sends without end, one that waits for an answer,
                                one that has nothing to do; when all are on PATH (`plain`: there is
                                no library), says `lost`, and awaits `back` (/rig/told); then what
                                came of each, and whether a new one comes onto the path. On plain
                                TCP who only waits never hears of it: there it has keepalive.
"""
import errno
import os
import socket
import sys
import threading
import time

from workers import PORT, paths

ADDRESS, PATIENCE = "10.0.0.1", 150
TOLD = "/rig/told/"


def serve(connection):
    with connection:
        while data := connection.recv(65536):
            if data[:1] != b"s":
                connection.sendall(data)


def server():
    with socket.create_server((ADDRESS, PORT)) as listener:
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def connect(path):
    connection = socket.create_connection((ADDRESS, PORT))
    connection.settimeout(PATIENCE)
    if path == "plain":
        for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 50)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def exchange(connection):
    connection.sendall(b"m" * 256)
    return len(connection.recv(256, socket.MSG_WAITALL))


def use(connections, path):
    """Until all of them are on the path."""
    end = time.monotonic() + 60
    while True:
        for connection in connections:
            exchange(connection)
        if path == "plain" or sum(n for (tx, rx, _), n in paths().items() if tx == rx == path) == len(connections):
            return
        if time.monotonic() > end:
            sys.exit(f"not on {path}: {paths()}")


def outcome(work):
    """What a call came to: that no error comes is one, too."""
    try:
        return f"{work()} bytes"
    except TimeoutError as error:
        return errno.errorcode[error.errno] if error.errno else "nothing"
    except OSError as error:
        return errno.errorcode[error.errno]


def send_without_end(connection):
    while True:
        connection.sendall(b"s" * 65536)


def told(word):
    end = time.monotonic() + PATIENCE
    while not os.path.exists(TOLD + word):
        if time.monotonic() > end:
            sys.exit(f"nobody tells {word}")
        time.sleep(0.02)


def client(path):
    sender, waiter, idle = connections = [connect(path) for _ in range(3)]
    use(connections, path)
    came = {}
    works = {"sends": lambda: send_without_end(sender), "waits": lambda: len(waiter.recv(1))}
    threads = [threading.Thread(target=lambda name=name, work=work: came.update({name: outcome(work)})) for name, work in works.items()]
    for thread in threads:
        thread.start()
    with open(TOLD + "lost", "w"):
        pass
    told("back")
    for thread in threads:
        thread.join()
    # (The first send may be one that the kernel only keeps.)
    came["had nothing to do"] = outcome(lambda: exchange(idle))
    for name in sorted(came):
        print(f"{name}: {came[name]}")
    for connection in connections:
        connection.close()
    anew = connect(path)
    use([anew], path)
    print("a new one is on the path again")


if __name__ == "__main__":
    server() if sys.argv[1] == "server" else client(sys.argv[2])
