"""Clients of our own, which check every byte: `loads.py KIND PORT CONNECTIONS SECONDS [MORE...]`.

Each prints `requests errors seconds`, of which those that begin before the time is over count.
"""
import hashlib
import socket
import sys
import threading
import time


def memcached(connection, random, end):
    """set and get of values of many sizes, also larger than a ring; yields whether it was right."""
    number = 0
    while time.monotonic() < end or number < 100:
        number += 1
        size = (0, 1, 100, 1000, 5000, 300_000 if number % 200 == 0 else 64)[number % 6]
        value = random(number, size)
        key = f"{connection.name}-{number % 50}"
        connection.send(f"set {key} 0 0 {size}\r\n".encode() + value + b"\r\n")
        stored = connection.line()
        connection.send(f"get {key}\r\n".encode())
        head = connection.line()
        body = connection.exactly(size + 2)
        yield (stored == b"STORED" and head == f"VALUE {key} 0 {size}".encode() and body == value + b"\r\n"
               and connection.line() == b"END")


def echo(connection, random, end):
    """Messages of many sizes come back as they were."""
    number = 0
    while time.monotonic() < end or number < 100:
        number += 1
        value = random(number, 1 + number * 37 % (200_000 if number % 100 == 0 else 3000))
        connection.send(value)
        yield connection.exactly(len(value)) == value


def lines(connection, random, end):
    """Lines that a server sends back."""
    number = 0
    while time.monotonic() < end or number < 100:
        number += 1
        value = random(number, 1 + number * 37 % 3000).hex().encode() + b"\n"
        connection.send(value)
        yield connection.line(b"\n") + b"\n" == value


def http(connection, random, end):
    """GETs of one connection, of a server that says the body's SHA-256 in X-Sum, or nothing of
    it."""
    number = 0
    while time.monotonic() < end or number < 100:
        number += 1
        connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        status, length, wanted = connection.line(), None, None
        while header := connection.line():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
            wanted = value.strip().decode() if name.lower() == b"x-sum" else wanted
        body = connection.exactly(length)
        yield b" 200 " in status and (wanted is None or hashlib.sha256(body).hexdigest() == wanted)


class Connection:
    def __init__(self, port, name):
        self.socket, self.name, self.buffer = socket.create_connection(("127.0.0.1", port), 30), name, b""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data):
        self.socket.sendall(data)

    def more(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the end of the stream")
        self.buffer += data

    def exactly(self, size):
        while len(self.buffer) < size:
            self.more()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def line(self, end=b"\r\n"):
        while end not in self.buffer:
            self.more()
        data, _, self.buffer = self.buffer.partition(end)
        return data


def main():
    kind, port, count, seconds = sys.argv[1], *map(int, sys.argv[2:5])
    requests, errors, threads, lock = [0], [0], [], threading.Lock()
    block = hashlib.shake_128(b"loads").digest(1 << 20)
    random = lambda number, size: block[number * 7919 % 4096:][:size]
    begin = time.monotonic()

    def one(number):
        done = wrong = 0
        try:
            for right in globals()[kind](Connection(port, number), random, begin + seconds):
                done, wrong = done + 1, wrong + (not right)
        except (OSError, ValueError, TypeError) as error:
            print(f"connection {number} after {done} requests: {error!r}", file=sys.stderr)
            wrong += 1
        with lock:
            requests[0] += done
            errors[0] += wrong

    for number in range(count):
        threads.append(threading.Thread(target=one, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    print(requests[0], errors[0], f"{time.monotonic() - begin:.3f}")


main()
