"""An echo server, or a client, that says why its connection is where it is, for rules.sh.

rules_app.py server ADDRESS PORT: serves one connection, says `ready` before and its reason behind.
rules_app.py client ADDRESS PORT: goes to and fro until the library has decided; says its reason.
With LOSES in the environment the file of the rules is gone when their first connection begins, as
in a chroot: the server has listened before that, the client has set its user.
Both end when a line comes from standard input: what they are can be looked at until then.
With SEARCHES in the environment it goes on for a minute while nobody with the library is found at
the other end: between hosts that is looked for again and again.
With WAITS in the environment (recv, poll or epoll) the client waits by that call, and goes on with
its pings until then.
"""
import os
import select
import socket
import struct
import sys
import time

LEVEL, INFO, LENGTH = 0x6E61, 1, 312
UNDECIDED = ["not-started", "negotiating", "agreed"]
if "SEARCHES" in os.environ:
    UNDECIDED += ["listener-without-library", "peer-without-library"]
# What the server answers to a ping before it has a verdict of its own.
ANSWERS = {"way": b"wait", "not-started": b"soon", "negotiating": b"soon", "agreed": b"soon"}


def why(connection):
    answer = connection.getsockopt(LEVEL, INFO, LENGTH)
    _, _, tx, rx, *_ = struct.unpack_from("=6I", answer)
    reason = answer[24:56].split(b"\0")[0].decode()
    return f"{('tcp', 'shm', 'rdma')[tx]} {reason}" if tx == rx else "on its way"


def tell(said):
    print(said, flush=True)
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
    said = "no byte came"
    while data := connection.recv(100):
        # (Before it answers: the client ends behind that, and its end changes where this one is.)
        said = why(connection)
        answer = ANSWERS.get(said.split()[-1], data)
        connection.sendall(answer if data == b"ping" else data)
        if data == b"end":
            break
    tell(said)


def waiter(connection):
    """What waits for bytes of a connection, before they are received."""
    how = os.environ.get("WAITS", "recv")
    if how == "recv":
        return lambda: None
    group = select.poll() if how == "poll" else select.epoll()
    group.register(connection, select.POLLIN if how == "poll" else select.EPOLLIN)
    return group.poll


def ping(connection, wait):
    connection.sendall(b"ping")
    wait()
    return connection.recv(100)


def client(family, place):
    os.setuid(os.getuid())
    lose()
    connection = socket.socket(family)
    connection.connect(place)
    wait = waiter(connection)
    end = time.monotonic() + (60 if "SEARCHES" in os.environ else 20)
    # In the end a reason that is a verdict. The other end may come to its own a moment later, and
    # says so: one that stays on TCP by this one's rule may come to none.
    answer, said = b"wait", "on its way"
    while time.monotonic() < end and (
        answer == b"wait"
        or (answer == b"soon" and not said.startswith("tcp"))
        or said.split()[-1] in (*UNDECIDED, "way")
    ):
        answer = ping(connection, wait)
        said = why(connection)
    if "WAITS" in os.environ:
        for _ in range(100):
            ping(connection, wait)
        print(why(connection), flush=True)
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            ping(connection, wait)
        connection.sendall(b"end")
        while connection.recv(100):
            pass
        return
    # (As it was before the end: the server ends behind that, and its end changes where this is.)
    connection.sendall(b"end")
    connection.recv(100)
    tell(said)


def main(what, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    {"server": serve, "client": client}[what](family, (address, int(port)))


main(*sys.argv[1:])
