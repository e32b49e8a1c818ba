"""A few Python network programs, run by python.sh with and without the library at either end.

Each part prints lines that do not depend on timing, so that the output of all mixes can be compared."""

import asyncio
import hashlib
import http.server
import os
import selectors
import socket
import socketserver
import subprocess
import sys
import threading
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
    """Four servers; their ports are the first line of output."""
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    forking = Forking(("127.0.0.1", 0), Shout)
    threading.Thread(target=forking.serve_forever, daemon=True).start()
    selected = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=by_selector, args=(selected,), daemon=True).start()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports = [web.server_port, forking.server_address[1], selected.getsockname()[1], server.sockets[0].getsockname()[1]]
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

    async def all_of_them():
        return await asyncio.gather(*(talk(ports[3], n) for n in range(40)))

    lines = asyncio.run(all_of_them())
    print("asyncio", len(lines), set(lines))


if sys.argv[1] == "serve":
    serve()
else:
    client([int(p) for p in sys.argv[2:]])
