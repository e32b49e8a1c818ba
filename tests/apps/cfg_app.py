"""An echo server, or a client that does what it is told on standard input, for cfg.sh.

cfg_app.py server PORT
cfg_app.py client PORT: `open N` makes N connections and uses them until they can be accelerated;
`use` sends on all and compares what comes back; `fork` goes on in a child, too, which makes a
connection of its own; `fast-open` makes a connection with its first bytes; `pass` makes one and
passes it to the last child; `exec` begins anew, in the same process; `end`. Each is answered by a
line.
"""
import os
import select
import selectors
import socket
import sys
import time

ROUNDS = 40


def serve(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    events = selectors.DefaultSelector()
    events.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is listener:
                events.register(listener.accept()[0], selectors.EVENT_READ)
            elif data := key.fileobj.recv(65536):
                key.fileobj.sendall(data)
            else:
                events.unregister(key.fileobj)
                key.fileobj.close()


def use(connection, rounds):
    for n in range(rounds):
        sent = os.urandom(100) + bytes([n & 255])
        connection.sendall(sent)
        got = b""
        while len(got) < len(sent):
            part = connection.recv(65536)
            if not part:
                sys.exit("the server has ended")
            got += part
        if got != sent:
            sys.exit("other bytes have come back")


def opened(port):
    connection = socket.create_connection(("127.0.0.1", port))
    for _ in range(5):
        use(connection, ROUNDS)
        time.sleep(0.01)
    return connection


def fast_opened(port):
    connection = socket.socket()
    connection.sendto(b"first", socket.MSG_FASTOPEN, ("127.0.0.1", port))
    if connection.recv(5, socket.MSG_WAITALL) != b"first":
        sys.exit("other bytes have come back")
    return connection


def in_a_child(port):
    """A child that uses a connection of its own, and what it is passed, all the time: its process
    id, and where it is passed connections."""
    near, far = socket.socketpair()
    if os.fork() == 0:
        connections = [opened(port)]
        far.send(b"%d" % os.getpid())
        while True:
            if select.select([far], [], [], 0.02)[0]:
                connections += [socket.socket(fileno=fd) for fd in socket.recv_fds(far, 1, 1)[1]]
                far.send(b"has it")
            for connection in connections:
                use(connection, 1)
    return near.recv(100).decode(), near


def client(port):
    connections = []
    print(os.getpid(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["open", count]:
                connections += [opened(port) for _ in range(int(count))]
            case ["use"]:
                for connection in connections:
                    use(connection, ROUNDS)
            case ["fork"]:
                child, to_child = in_a_child(port)
                print(child, flush=True)
                continue
            case ["fast-open"]:
                connections.append(fast_opened(port))
            case ["pass"]:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    socket.send_fds(to_child, [b"."], [connection.fileno()])
                to_child.recv(100)
            case ["exec"]:
                os.execv(sys.executable, [sys.executable, *sys.argv])
            case ["end"]:
                return
        print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(int(sys.argv[2]))
    client(int(sys.argv[2]))
