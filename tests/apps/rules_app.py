"""An echo server, or a client, that says why its connection is where it is, for rules.sh.

rules_app.py server ADDRESS PORT: serves one connection, says `ready` before and its reason behind.
rules_app.py client ADDRESS PORT: goes to and fro until the library has decided; says its reason.
With LOSES in the environment the file of the rules is gone when their first connection begins, as
in a chroot: the server has listened before that, the client has set its user.
Both end when a line comes from standard input: what they are can be looked at until then.
"""
import os
import socket
import struct
import sys
import time

LEVEL, INFO, LENGTH = 0x6E61, 1, 312
UNDECIDED = ("not-started", "negotiating", "agreed")


def why(connection):
    answer = connection.getsockopt(LEVEL, INFO, LENGTH)
    _, _, tx, rx, *_ = struct.unpack_from("=6I", answer)
    reason = answer[24:56].split(b"\0")[0].decode()
    return f"{('tcp', 'shm', 'rdma')[tx]} {reason}" if tx == rx else "on its way"


def told(connection):
    print(why(connection), flush=True)
    sys.stdin.readline()


def lose():
    if "LOSES" in os.environ:
        os.unlink(os.environ["NACC_CONF"])


def serve(family, place):
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(place)
    listener.listen()
    lose()
    print("ready", flush=True)
    connection, _ = listener.accept()
    while data := connection.recv(100):
        connection.sendall(data)
        if data == b"end":
            break
    told(connection)


def client(family, place):
    os.setuid(os.getuid())
    lose()
    connection = socket.socket(family)
    connection.connect(place)
    end = time.monotonic() + 20
    # (In the end a reason that is a verdict, which may take a moment longer at the other end.)
    while time.monotonic() < end and why(connection).split()[-1] in (*UNDECIDED, "way"):
        connection.sendall(b"ping")
        connection.recv(100)
    connection.sendall(b"end")
    connection.recv(100)
    told(connection)


def main(what, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    {"server": serve, "client": client}[what](family, (address, int(port)))


main(*sys.argv[1:])
