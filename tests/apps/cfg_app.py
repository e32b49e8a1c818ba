"""An echo server, or a client that does what it is told on standard input, for cfg.sh.

cfg_app.py server PORT
cfg_app.py client PORT: `open N` makes N connections and uses them until they can be accelerated;
`use` sends on all and compares what comes back; `fork` goes on in a child, too, which makes a
connection of its own; `end`. Each is answered by a line.
"""
import os
import selectors
import socket
import sys
import time

ROUNDS = 40


def serve(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    select = selectors.DefaultSelector()
    select.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in select.select():
            if key.fileobj is listener:
                select.register(listener.accept()[0], selectors.EVENT_READ)
            elif data := key.fileobj.recv(65536):
                key.fileobj.sendall(data)
            else:
                select.unregister(key.fileobj)
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
                said, says = os.pipe()
                if os.fork() == 0:
                    own = opened(port)
                    os.write(says, b"%d" % os.getpid())
                    while True:
                        use(own, 1)
                        time.sleep(0.02)
                print(os.read(said, 100).decode(), flush=True)
                continue
            case ["end"]:
                return
        print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(int(sys.argv[2]))
    client(int(sys.argv[2]))
