"""A server that knows how long it takes for an answer, and its client, for latency.sh.

server PORT MILLISECONDS: takes that long for each answer, or longer. client PORT: for each number
that it reads it makes so many requests, on one connection, and prints "done".
"""

import socket, sys, threading, time


def exactly(connection, count):
    message = b""
    while len(message) < count:
        part = connection.recv(count - len(message))
        if not part:
            return None
        message += part
    return message


def answer(connection, seconds):
    while message := exactly(connection, 64):
        # (However often it is woken.)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(left)
        connection.sendall(message)


def serve(port, seconds):
    listener = socket.create_server(("127.0.0.1", port), backlog=50)
    while True:
        threading.Thread(target=answer, args=[listener.accept()[0], seconds], daemon=True).start()


def call(port):
    connection = socket.create_connection(("127.0.0.1", port))
    for line in sys.stdin:
        for _ in range(int(line)):
            connection.sendall(b"x" * 64)
            assert exactly(connection, 64) == b"x" * 64
        print("done", flush=True)


port = int(sys.argv[2])
serve(port, int(sys.argv[3]) / 1000) if sys.argv[1] == "server" else call(port)
