"""Python's event loops and servers: asyncio on uvloop, gunicorn; and CPython's own tests of its
socket modules."""
import os
import re
from pathlib import Path

from kit import AT_ONCE, BOTH, PLAIN, PYTHON, Broken, Result, Skip, program, venv

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
         packages=("/usr/lib/python3.11/test/test_socket.py:libpython3.11-testsuite", "/usr/bin/python3.11:python3.11"), sides=(PLAIN, BOTH, AT_ONCE), at_once=30)
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
