"""Python's event loops and servers: asyncio on uvloop, gunicorn; what clients and servers that are
killed leave to asyncio and urllib3; and CPython's own tests of its socket modules."""
import os
import re
import signal
from pathlib import Path

from kit import AT_ONCE, BOTH, CLIENT, PLAIN, PYTHON, Broken, Result, Skip, program, venv

PIP = ("/usr/lib/python3*/ensurepip:python3-venv",)
ECHO = """
import asyncio, sys, uvloop

async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

async def client():
    data = [bytes([65 + n % 26]) * (1 + n * 37 % 5000) + b"\\n" for n in range(200)]
    loop, done, wrong = asyncio.get_running_loop(), 0, 0
    begin = loop.time()
    async def one():
        nonlocal done, wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
        mine = 0
        while loop.time() < begin + 2 or mine < 200:
            writer.write(data[mine % 200])
            wrong += await reader.readline() != data[mine % 200]
            mine, done = mine + 1, done + 1
        writer.close()
    await asyncio.gather(*(one() for _ in range(16)))
    print(done, wrong, loop.time() - begin)

uvloop.install()
asyncio.run(client() if len(sys.argv) > 2 else main())
"""


@program("uvloop", "Python, asyncio streams on uvloop, 16 connections", packages=PIP, prepare=lambda: venv("uvloop", "uvloop"),
         share=95, ratio=1.0, rounds=3)
def uvloop(job):
    python, script, port = venv("uvloop", "uvloop"), job.write("echo.py", ECHO), job.port()
    job.start(python, script, port)
    job.listening(port)
    done, wrong, seconds = job.client(python, script, port, "client").split()[-3:]
    return Result(errors=int(wrong), rate=int(done) / float(seconds))


THREADS = """
import hashlib, socket, sys, threading, time
size, block = 300 << 20, hashlib.shake_128(b"threads").digest(1 << 16)

def both_ways(connection):
    got = hashlib.sha256()
    def read():
        while data := connection.recv(1 << 16):
            got.update(data)
    reader = threading.Thread(target=read)
    reader.start()
    # So the reader waits in recv before the first byte is sent, and at its peer's before the
    # second.
    time.sleep(0.3)
    for number in range(size >> 16):
        connection.sendall(number.to_bytes(8, "little") + block[8:])
    connection.shutdown(socket.SHUT_WR)
    reader.join()
    return got.hexdigest()

if len(sys.argv) > 2:
    begin, connection = time.monotonic(), socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    print(both_ways(connection), time.monotonic() - begin, flush=True)
    # That is soon over: netacc_ss is to see its end.
    time.sleep(1.5)
else:
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    while True:
        print(both_ways(listener.accept()[0]), flush=True)
"""


@program("reader-thread", "Python, a thread that waits in recv while another one sends 300 MB, both ways", share=95, ratio=1.0, rounds=3)
def reader_thread(job):
    script, port = job.write("threads.py", THREADS), job.port()
    server = job.start(PYTHON, script, port)
    job.listening(port)
    got, seconds = job.client(PYTHON, script, port, "client").split()[-2:]
    job.until(server.said, what="the server's checksum")
    return Result(output=[got, server.said().split()[0]], rate=1 / float(seconds))


APP = """
import hashlib
def app(environ, start):
    body = environ["wsgi.input"].read() or b"y" * 3000
    start("200 OK", [("Content-Length", str(len(body))), ("X-Sum", hashlib.sha256(body).hexdigest())])
    return [body]
"""


DRAIN = """
import asyncio, os, signal, socket, sys
PEERS, ROUNDS = 6, 1000

def sockets():
    # The library's own descriptors are not among the first.
    return sum(os.path.exists(f"/proc/self/fd/{n}") and os.readlink(f"/proc/self/fd/{n}").startswith("socket:") for n in range(200))

async def main():
    served, ended = {}, 0

    async def serve(reader, writer):
        nonlocal ended
        try:
            while (line := await reader.readline()) != b"download\\n":
                writer.write(line)
                await writer.drain()
            served[writer] = 0
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
                served[writer] += 1
        except ConnectionError:
            pass
        finally:
            ended += 1
            writer.close()

    def all_wait():
        # For output alone: what they have sent is more than asyncio reads ahead.
        return len(served) == PEERS and not any(writer.transport.is_reading() for writer in served)

    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    before, sent, same = sockets(), None, 0
    while same < 20:
        await asyncio.sleep(0.05)
        now = list(served.values())
        same, sent = (same + 1 if all_wait() and now == sent else 0), now
    print("waiting", flush=True)
    # Half a minute at most, where a handler is stuck.
    for _ in range(600):
        if ended == PEERS and sockets() == before:
            break
        await asyncio.sleep(0.05)
    print("over", PEERS - ended, "stuck", sockets() - before, "left", flush=True)
    await asyncio.sleep(3600)

if len(sys.argv) > 2:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for number in range(ROUNDS):
        line = b"%d\\n" % number
        connection.sendall(line)
        while line:
            line = line[len(connection.recv(len(line))):]
    connection.sendall(b"download\\n" + bytes(300_000))
    signal.pause()
else:
    asyncio.run(main())
"""


@program("asyncio-drain", "Python, asyncio: six handlers in drain(), whose clients are killed", share=95)
def drain(job):
    script, port = job.write("drain.py", DRAIN), job.port()
    server = job.start(PYTHON, script, port)
    job.listening(port)
    clients = [job.start(PYTHON, script, port, "client", role=CLIENT) for _ in range(6)]
    job.until(lambda: "waiting" in server.said(), what="six handlers that wait for room")
    for client in clients:
        job.kill(client)
    job.until(lambda: "over" in server.said(), 60, what="what the server has left")
    return Result(output=server.said().splitlines()[-1])


POST = """
import hashlib, http.server, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = hashlib.sha256(self.rfile.read(int(self.headers["Content-Length"]))).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

def client():
    import urllib3
    pool = urllib3.HTTPConnectionPool("127.0.0.1", int(sys.argv[1]), maxsize=1, retries=False, timeout=20)
    for life in range(int(sys.argv[2])):
        while not os.path.exists(f"server-{life}"):
            time.sleep(0.01)
        right, failed = 0, []
        for number in range(100):
            body = b"%d" % number * (1 + number * 37 % 3000)
            try:
                right += pool.request("POST", "/", body=body).data.decode() == hashlib.sha256(body).hexdigest()
            except urllib3.exceptions.HTTPError as error:
                failed.append((number, type(error).__name__))
        print(f"server {life}: {right} right, failed: {failed}", flush=True)
    # netacc_ss is to see its last connection.
    while not os.path.exists("end"):
        time.sleep(0.01)

if len(sys.argv) > 2:
    client()
else:
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@program("urllib3-restart", "Python, urllib3: keep-alive POSTs to a server that is killed and started anew", share=95,
         packages=("/usr/lib/python3*/dist-packages/urllib3:python3-urllib3",))
def restart(job):
    # Its library looks for the end of the old connection (poll that does not wait), and sends no
    # POST a second time.
    script, port = job.write("post.py", POST), job.port()
    ends = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)
    client = None
    for life, number in enumerate(ends):
        server = job.start(PYTHON, script, port)
        job.listening(port)
        client = client or job.start(PYTHON, script, port, len(ends), role=CLIENT)
        job.write(f"server-{life}", "")
        job.until(lambda: f"server {life}:" in client.said() or client.poll() is not None, 60, what="a hundred answers")
        job.look()
        if life + 1 < len(ends):
            job.kill(server, number)
    job.write("end", "")
    return Result(output=dict(line.split(": ", 1) for line in job.finish(client).splitlines()))


@program("gunicorn", "gunicorn, 2 workers of 8 threads", packages=PIP, prepare=lambda: venv("gunicorn", "gunicorn"), share=95, rounds=3)
def gunicorn(job):
    python, port = venv("gunicorn", "gunicorn"), job.port()
    job.write("app.py", APP)
    job.start(python, "-m", "gunicorn", "-w", "2", "-k", "gthread", "--threads", "8", "--keep-alive", "60", "-b", f"127.0.0.1:{port}",
              "--worker-tmp-dir", job.dir, "app:app")
    job.listening(port)
    requests, errors, seconds = job.load("http", port, 8, 2)
    return Result(errors=errors, rate=requests / seconds)


TESTS = Path("/usr/lib/python3.11/test")
SOCKETS = """test_socket test_asyncio test_ssl test_httplib test_socketserver test_asyncore test_asynchat test_ftplib test_smtpd
test_smtplib test_imaplib test_poplib test_telnetlib test_nntplib test_urllib2_localnet test_urllib2 test_urllib test_httpservers
test_xmlrpc test_select test_selectors test_poll test_epoll test_signal test_docxmlrpc test_wsgiref test_logging test_timeout
test_multiprocessing_spawn test_support""".split()
SHORT = """test_socket test_asyncio test_ssl test_httplib test_socketserver test_asyncore test_asynchat test_ftplib test_smtplib
test_imaplib test_poplib test_urllib2_localnet test_httpservers test_xmlrpc test_select test_selectors test_poll test_epoll
test_timeout""".split()


# Virtual machines' sockets wait for ever for a peer where the machine is one.
WITHOUT = ("-i", "*VSOCK*")
# They are skipped otherwise, and want no network but that of the host.
ASK = dict.fromkeys(("test_socketserver", "test_timeout"), ("-u", "network"))


def cpython_tests():
    if not (TESTS / "test_socket.py").exists() or not os.access("/usr/bin/python3.11", os.X_OK):
        raise Skip("no /usr/lib/python3.11/test")


@program("cpython-suite", "CPython 3.11's own tests of its socket modules", prepare=cpython_tests, limit=7200,
         packages=("/usr/lib/python3.11/test/test_socket.py:libpython3.11-testsuite", "/usr/bin/python3.11:python3.11"), sides=(PLAIN, BOTH, AT_ONCE), at_once=15)
def cpython(job):
    names = job.only or (SOCKETS if os.environ.get("NETACC_APPS_ALL") else SHORT)
    failed, tests = {}, {}
    for name in names:
        said, wrong = job.test("/usr/bin/python3.11", "-m", "test", "-v", "--timeout", "1200", *WITHOUT, *ASK.get(name, ()), name, timeout=1300)
        tests[name] = sum(map(int, re.findall(r"^Ran (\d+) tests?", said, re.M)))
        bad = sorted(set(re.findall(r"^(?:FAIL|ERROR): (\S+ \(\S+\))", said, re.M)))
        if bad or wrong:
            failed[name] = bad or [wrong]
    if not sum(tests.values()):
        raise Broken("no test ran")
    return Result(failed=failed, tests=tests, note=f"{sum(tests.values())} tests of {len(names)} modules, of {len(SOCKETS)}")
