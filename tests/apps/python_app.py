"""A few Python network programs, run by python.sh with and without the library at either end.

Each part prints lines that do not depend on timing, so that the output of all mixes can be
compared."""

import asyncio
import hashlib
import http.server
import os
import select
import selectors
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request

DATA = bytes((i * 7 + (i >> 8)) % 251 for i in range(3_000_000))


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = DATA[: int(self.path[1:])]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Shout(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


class Forking(socketserver.ForkingTCPServer):
    allow_reuse_address = True


async def answer(reader, writer):
    while line := await reader.readline():
        if line == b"date\n":
            child = await asyncio.create_subprocess_exec("echo", "spawned", stdout=subprocess.PIPE)
            writer.write((await child.communicate())[0])
        else:
            writer.write(line[::-1].strip() + b"\n")
        await writer.drain()
    writer.close()


def serve():
    """Five servers; their ports are the first line of output."""
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    forking = Forking(("127.0.0.1", 0), Shout)
    threading.Thread(target=forking.serve_forever, daemon=True).start()
    selected = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=by_selector, args=(selected,), daemon=True).start()
    edges = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=by_edges, args=(edges,), daemon=True).start()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        listeners = [web.socket, forking.socket, selected, server.sockets[0], edges]
        ports = [listener.getsockname()[1] for listener in listeners]
        print(*ports, flush=True)
        async with server:
            await server.serve_forever()

    asyncio.run(main())


def by_selector(listener):
    choose = selectors.DefaultSelector()
    listener.setblocking(False)
    choose.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in choose.select():
            if key.fileobj is listener:
                peer, _ = listener.accept()
                choose.register(peer, selectors.EVENT_READ)
                continue
            data = key.fileobj.recv(65536)
            if data:
                key.fileobj.setblocking(True)
                key.fileobj.sendall(data)
                key.fileobj.setblocking(False)
            else:
                choose.unregister(key.fileobj)
                key.fileobj.close()


def by_edges(listener):
    """Reads as event loops do: after a read that fell short nothing is left, and the next edge is
    waited for."""

    def read(edges, peer, most, total):
        got = 0
        while got < total and edges.poll(10):
            try:
                got += len(peer.recv(min(most, total - got), socket.MSG_DONTWAIT))
            except BlockingIOError:
                pass
        return got

    while True:
        peer, _ = listener.accept()
        for _ in range(200):
            peer.sendall(peer.recv(64, socket.MSG_WAITALL))
        edges = select.epoll()
        edges.register(peer, select.EPOLLIN | select.EPOLLET)
        peer.sendall(b"1")
        first = read(edges, peer, 50, 50)
        # That one was full: half of what came is there still, and is read with what comes next.
        peer.sendall(b"2")
        peer.sendall(f"{first} {read(edges, peer, 4096, 1050)}\n".encode())
        peer.close()
        edges.close()


def web_client(port):
    for size in (0, 1, 1000, 65536, 3_000_000):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{size}") as page:
            print("get", size, page.status, hashlib.sha256(page.read()).hexdigest()[:16])
    for size in (10, 2_000_000):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", DATA[:size]) as page:
            print("post", size, page.read()[:16].decode(), hashlib.sha256(DATA[:size]).hexdigest()[:16])


def fork_client(port):
    for i in range(5):
        with socket.create_connection(("127.0.0.1", port)) as s:
            f = s.makefile("rwb")
            for j in range(50):
                f.write(f"line {i} {j}\n".encode())
                f.flush()
                assert f.readline() == f"LINE {i} {j}\n".encode()
    print("forking server answered")


def selector_client(port):
    with socket.create_connection(("127.0.0.1", port)) as s:
        got = bytearray()
        reader = threading.Thread(target=lambda: [got.extend(s.recv(65536)) for _ in iter(lambda: len(got) < len(DATA), False)])
        reader.start()
        s.sendall(DATA)
        reader.join()
        print("echo", len(got), got == DATA)
        # fork, exec and spawn with the connection open
        print("subprocess", subprocess.run(["echo", "hi"], capture_output=True).stdout)
        if (pid := os.fork()) == 0:
            s.sendall(b"from the child")
            os._exit(0)
        os.waitpid(pid, 0)
        print(s.recv(14, socket.MSG_WAITALL))
        s.settimeout(0.05)
        try:
            s.recv(1)
        except TimeoutError as e:
            print("timeout", e)
        s.shutdown(socket.SHUT_WR)
        s.settimeout(10)
        print("eof", s.recv(1))


def edge_client(port):
    with socket.create_connection(("127.0.0.1", port)) as s:
        for _ in range(200):
            s.sendall(b"x" * 64)
            s.recv(64, socket.MSG_WAITALL)
            time.sleep(0.0005)
        s.recv(1)
        s.sendall(b"y" * 100)
        s.recv(1)
        s.sendall(b"z" * 1000)
        print("edges", s.makefile().readline().strip())


async def talk(port, number):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for i in range(100):
        writer.write(f"{number}-{i}-x\n".encode())
        assert (await reader.readline()).strip()[::-1] == f"{number}-{i}-x".encode()
    writer.write(b"date\n")
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


def client(ports):
    web_client(ports[0])
    fork_client(ports[1])
    selector_client(ports[2])
    edge_client(ports[4])

    async def all_of_them():
        return await asyncio.gather(*(talk(ports[3], n) for n in range(40)))

    lines = asyncio.run(all_of_them())
    print("asyncio", len(lines), set(lines))


if sys.argv[1] == "serve":
    serve()
else:
    client([int(p) for p in sys.argv[2:]])
