"""Load for off.sh: a server that sends back what comes, and a client that compares it.

off_app.py server PORT
off_app.py client PORT: until SIGTERM, threads that wait in recv, poll, select and epoll, each with
connections of its own that it makes anew all the time, and some that stay and are mostly idle. At
the end it says how much has gone to and fro.
off_app.py idle PORT COUNT OTHER: so many connections to one port, three to the other, which have
been used and stay open until the input ends.
off_app.py redis PORT [HOST]: until SIGTERM, a thread for each way to wait sets and gets random
values at a Redis, and compares them. At the end it says how many.
"""
import os
import random
import select
import selectors
import signal
import socket
import sys
import threading
import time

STOP = threading.Event()
MOVED = []


def serve(port):
    """Half of the connections in an epoll set, half with a thread each."""
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    events = selectors.DefaultSelector()

    def echo(connection):
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def look():
        while True:
            for key, _ in events.select(0.05):
                data = key.fileobj.recv(65536)
                if data:
                    key.fileobj.sendall(data)
                else:
                    events.unregister(key.fileobj)
                    key.fileobj.close()

    threading.Thread(target=look, daemon=True).start()
    for n in range(1 << 30):
        connection, _ = listener.accept()
        if n % 2:
            events.register(connection, selectors.EVENT_READ)
        else:
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


def until_readable(how, connection):
    """Waits as long as it takes; more than that is a lost wake-up."""
    if how == "poll":
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        ready = poll.poll(20_000)
    elif how == "select":
        ready = select.select([connection], [], [], 20)[0]
    elif how == "epoll":
        with select.epoll() as epoll:
            epoll.register(connection, select.EPOLLIN)
            ready = epoll.poll(20)
    else:
        return
    if not ready:
        raise TimeoutError(f"{how} has waited for 20 s")


def receive(how, connection, size):
    got = bytearray()
    while len(got) < size:
        until_readable(how, connection)
        part = connection.recv(size - len(got))
        if not part:
            raise EOFError(f"{how}: the end after {len(got)} of {size} bytes")
        got += part
    return bytes(got)


def exchange(how, connection, size):
    """Sends so much, and compares what comes back with it."""
    sent = random.randbytes(size)
    connection.sendall(sent)
    if receive(how, connection, size) != sent:
        raise ValueError(f"{how}: other bytes have come back")
    return size


def use(how, port, moved):
    keep = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(2)]
    while not STOP.is_set():
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            if how == "recv":
                connection.settimeout(None)
            for n in range(random.randrange(10, 200)):
                moved[0] += exchange(how, connection, random.choice([1, 64, 3000, 40_000]))
        moved[1] += 1
        # Those that stay are used for long enough once to be accelerated, and now and then later.
        for connection in keep:
            moved[0] += sum(exchange(how, connection, 64) for _ in range(random.choice([1, 30])))


def set_and_get(how, connection, key):
    """The value is new each time, so that an older one is a wrong one."""
    value = random.randbytes(random.choice([1, 64, 3000, 40_000]))
    words = [b"SET", key, value]
    connection.sendall(b"*3\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    if (said := receive(how, connection, 5)) != b"+OK\r\n":
        raise ValueError(f"{how}: SET: {said!r}")
    connection.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
    expected = b"$%d\r\n%s\r\n" % (len(value), value)
    if receive(how, connection, len(expected)) != expected:
        raise ValueError(f"{how}: GET: not the value that was set")


def redis(how, port, moved, host="127.0.0.1"):
    """On a connection that stays, and on one that is made anew all the time."""
    with socket.create_connection((host, port), 20) as stays:
        while not STOP.is_set():
            with socket.create_connection((host, port), 20) as connection:
                for _ in range(100):
                    set_and_get(how, connection, b"new-" + how.encode())
                    set_and_get(how, stays, b"stays-" + how.encode())
                    moved[0] += 2
            moved[1] += 1


def client(port, use=use, count=2, what="bytes"):
    failed = []
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())

    def run(how, moved):
        try:
            use(how, port, moved)
        except Exception as error:
            failed.append(f"{how}: {error!r}")
            STOP.set()

    threads = []
    for how in ["recv", "poll", "select", "epoll"] * count:
        MOVED.append([0, 0])
        threads.append(threading.Thread(target=run, args=(how, MOVED[-1]), daemon=True))
    for thread in threads:
        thread.start()
    print(os.getpid(), flush=True)
    STOP.wait()
    for thread in threads:
        thread.join(30)
        if thread.is_alive():
            failed.append("a thread hangs")
    print(*failed, sep="\n", end="\n" if failed else "")
    print(f"{sum(m[0] for m in MOVED)} {what}, {sum(m[1] for m in MOVED)} connections", flush=True)
    os._exit(1 if failed else 0)


def idle(port, count, other):
    ports = [port] * count + [other] * 3
    connections = [socket.create_connection(("127.0.0.1", to), 20) for to in ports]
    for _ in range(30):
        for connection in connections:
            exchange("recv", connection, 100)
        time.sleep(0.005)
    print(os.getpid(), flush=True)
    sys.stdin.read()
    for connection in connections[-3:]:
        exchange("recv", connection, 100)
    print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(int(sys.argv[2]))
    if sys.argv[1] == "idle":
        sys.exit(idle(*map(int, sys.argv[2:])))
    if sys.argv[1] == "redis":
        client(int(sys.argv[2]), lambda *it: redis(*it, *sys.argv[3:]), 1, "values")
    client(int(sys.argv[2]))
