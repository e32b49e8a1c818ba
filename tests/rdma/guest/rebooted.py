#!/usr/bin/env python3
"""Connections to a host that loses its power in the middle of them, and comes back.

    rebooted.py lost accepts|connects
                    echoes what each connection says, but for those that begin with `s`, which it
                    only reads; accepts any number, or makes three, and one where BOOT is 2
    rebooted.py lives connects|accepts PATH
                    one connection that sends without end, one that waits for an answer, one that
                    has nothing to do; when all are on PATH (`plain`: there is no library), says
                    `lost`, and awaits `back` (/rig/told); then what came of each, and whether a new
                    one comes onto the path. On plain TCP who only waits never hears of it: there it
                    has keepalive.

The host that is lost is 10.0.0.1, the other one 10.0.0.2.
"""
import errno
import os
import socket
import sys
import threading
import time

from workers import PORT, paths

LOST, LIVES, PATIENCE = "10.0.0.1", "10.0.0.2", 150
TOLD = "/rig/told/"


def serve(connection):
    with connection:
        while data := connection.recv(65536):
            if data[:1] != b"s":
                connection.sendall(data)


def lost(how):
    if how == "connects":
        made = [socket.create_connection((LIVES, PORT)) for _ in range(3 if os.environ["BOOT"] == "1" else 1)]
        threads = [threading.Thread(target=serve, args=(connection,)) for connection in made]
        for thread in threads:
            thread.start()
        return
    with socket.create_server((LOST, PORT)) as listener:
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


def fit(connection, path):
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


def say(word):
    with open(TOLD + word, "w"):
        pass


def told(word):
    end = time.monotonic() + PATIENCE
    while not os.path.exists(TOLD + word):
        if time.monotonic() > end:
            sys.exit(f"nobody tells {word}")
        time.sleep(0.02)


def lives(how, path):
    if how == "connects":
        another = lambda: fit(socket.create_connection((LOST, PORT)), path)
    else:
        listener = socket.create_server((LIVES, PORT))
        another = lambda: fit(listener.accept()[0], path)
        say("listens")
    sender, waiter, idle = connections = [another() for _ in range(3)]
    use(connections, path)
    came = {}
    works = {"sends": lambda: send_without_end(sender), "waits": lambda: len(waiter.recv(1))}
    threads = [threading.Thread(target=lambda name=name, work=work: came.update({name: outcome(work)})) for name, work in works.items()]
    for thread in threads:
        thread.start()
    say("lost")
    told("back")
    for thread in threads:
        thread.join()
    # (The first send may be one that the kernel only keeps.)
    came["had nothing to do"] = outcome(lambda: exchange(idle))
    for name in sorted(came):
        print(f"{name}: {came[name]}")
    for connection in connections:
        connection.close()
    with another() as anew:
        use([anew], path)
    print("a new one is on the path again")


if __name__ == "__main__":
    lost(sys.argv[2]) if sys.argv[1] == "lost" else lives(*sys.argv[2:])
