#!/usr/bin/env python3
"""Connections of a process that forks while it has them: they come onto RDMA after the fork, and
back after a fail-over, and the child goes on with them, which has none of the memory that its
parent uses by then.

    forked.py server ADDRESS        echoes messages on two connections; forks on `f`, and has the child answer on `c`, and all that is sent
                                    behind that until its `b`
    forked.py later ADDRESS         a connection that comes onto RDMA; then what becomes of one that a forked child makes
    forked.py client ADDRESS BREAK  BREAK is a command that breaks the queue pairs; prints what the
    connections are on, step by step; status 1
                                    after a minute of waiting
"""
import json
import os
import select
import socket
import subprocess
import sys
import time

PORT, BYTES = 7000, 512


def whole(connection):
    """A message; empty at the end of the stream."""
    message = b""
    while len(message) < BYTES:
        part = connection.recv(BYTES - len(message))
        if not part:
            return b""
        message += part
    return message


def serve(connections, until):
    """Echoes by turns, and says who it is; the message that was not echoed, or nothing at the
    end."""
    while True:
        for connection in select.select(connections, [], [])[0]:
            message = whole(connection)
            if message[:1] in until or not message:
                return connection, message
            connection.sendall(b"%c%6d" % (message[0], os.getpid()) + message[7:])


def server(address):
    listener = socket.create_server((address, PORT))
    connections = [listener.accept()[0] for _ in range(2)]
    child, turn, done = 0, os.pipe(), os.pipe()
    while True:
        connection, message = serve(connections, b"fc")
        if message[:1] == b"f":
            child = os.fork()
            if child == 0:
                os.read(turn[0], 1)
                # The one that said so waits for its answer from here.
                connection = connections[int(os.read(turn[0], 1))]
                connection.sendall(b"c%6d" % os.getpid() + bytes(BYTES - 7))
                connection, _ = serve(connections, b"b")
                os.write(done[1], b"%d" % connections.index(connection))
                os._exit(0)
            connection.sendall(b"f%6d" % os.getpid() + bytes(BYTES - 7))
        elif message[:1] == b"c":
            os.write(turn[1], b"c%d" % connections.index(connection))
            connection = connections[int(os.read(done[0], 1))]
            connection.sendall(b"b%6d" % os.getpid() + bytes(BYTES - 7))
        else:
            break
    status = os.waitpid(child, 0)[1]
    for connection in connections:
        while message := whole(connection):
            connection.sendall(message)
    return status


def ask(what):
    env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    shown = subprocess.run([os.environ["NETACC_LIB_DIR"] + "/netacc_ss", "--json", "-s", what, str(os.getpid())], env=env, stdout=subprocess.PIPE)
    return json.loads(shown.stdout)


def paths():
    return sorted((s["tx_path"], s["rx_path"]) for s in ask("sock")["sockets"])


def say(connection, kind):
    """Who answers."""
    rest = os.urandom(BYTES - 7)
    connection.sendall(kind + b" " * 6 + rest)
    answer = whole(connection)
    if answer[:1] != kind or (kind == b"e" and answer[7:] != rest):
        sys.exit("a wrong byte, or the end")
    return int(answer[1:7])


def client(address, command):
    connections = [socket.create_connection((address, PORT)) for _ in range(2)]
    used, kept = connections

    def until(condition, spoken):
        end = time.monotonic() + 60
        while not condition():
            if time.monotonic() > end:
                sys.exit(f"after a minute: {paths()}")
            for connection in spoken:
                for _ in range(20):
                    if say(connection, b"e") != parent:
                        sys.exit("the wrong process answers")

    parent = say(kept, b"e")
    until(lambda: paths().count(("rdma", "rdma")) == 1, [used])
    say(used, b"f")
    print("forked:", *paths())
    until(lambda: paths().count(("rdma", "rdma")) == 2, connections)
    print("came after the fork:", *paths())
    before = ask("cnt")["counters"]
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL, env={key: value for key, value in os.environ.items() if key != "LD_PRELOAD"})

    def went_and_came():
        now = ask("cnt")["counters"]
        return all(now[name] == before[name] + n for name, n in (("fail_overs", 4), ("promoted_tx", 2), ("promoted_rx", 2)))
    until(went_and_came, connections)
    print("came back:", *paths())
    child = say(used, b"c")
    answers = {say(connection, b"e") for _ in range(50) for connection in connections}
    print("the child answers:", child != parent and answers == {child}, *paths())
    answers = {say(kept, b"b")} | {say(connection, b"e") for _ in range(50) for connection in connections}
    print("the parent answers:", answers == {parent}, *paths())


def echoes(connection):
    for _ in range(20):
        message = os.urandom(BYTES)
        connection.sendall(message)
        if whole(connection) != message:
            sys.exit("a wrong byte, or the end")


def later(address):
    """Off.py's server at the other end: a connection that a child of a process with RDMA makes is
    on TCP, and says why."""
    kept = socket.create_connection((address, PORT))
    end = time.monotonic() + 60
    while paths() != [("rdma", "rdma")] and time.monotonic() < end:
        echoes(kept)
    print("before:", *paths(), flush=True)
    child = os.fork()
    if child == 0:
        made = socket.create_connection((address, PORT))
        for _ in range(10):
            echoes(made)
        print("the child's:", *((s["tx_path"], s["rx_path"], s["reason"]) for s in ask("sock")["sockets"]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    echoes(kept)
    print("behind:", *paths())


if __name__ == "__main__":
    sys.exit({"server": server, "client": client, "later": later}[sys.argv[1]](*sys.argv[2:]))
