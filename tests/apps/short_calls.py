"""Whether the library adds a system call to a short connection: `short_calls.py LIBRARY [NAME...]`,
status 1 if so.

A short connection makes one request and has one reply. Client and server run under `strace -c -f`
without and with the library, with FEW and with MANY connections: what MANY cost more than FEW is
what the connections cost. These differences must be the same, call by call. The server is started
anew each time; what the library adds to a process is no part of it, and may differ by some calls
from run to run, as what programs do by the clock: less than one in LEAST**-1 connections is
nothing.
"""

import collections
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FEW, MANY = 20, 220
LEAST = 0.1
# The same call in another form: the library makes some of the program's calls itself.
SAME = {"read": "recvfrom", "readv": "recvmsg", "write": "sendto", "writev": "sendmsg", "poll": "ppoll", "select": "pselect6",
        "epoll_wait": "epoll_pwait", "accept": "accept4"}
WAITS = {"epoll_pwait", "ppoll", "pselect6"}

PYTHON_SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    c, _ = s.accept()
    c.recv(100)
    c.sendall(b"x" * 200)
    c.close()
"""
PYTHON_CLIENT = """
import socket, sys
for _ in range(int(sys.argv[3])):
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as c:
        whole = len(sys.argv) > 4
        if whole:
            # One call, however many pieces the reply comes in.
            c.settimeout(None)
        c.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        c.recv(65536, socket.MSG_WAITALL if whole else 0)
"""


class Case:
    """A server and its client; `stop`: the server does not end by itself; `merges`: one wait may
    find several events, or one, by the clock, so that the number of its waits says nothing.
    """

    def __init__(self, name, server, client, stop=False, merges=False):
        self.name, self.server, self.client, self.stop, self.merges = name, server, client, stop, merges


def free_port(host):
    """Of those that the kernel gives to no client."""
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
            s.bind((host, random.randrange(10000, 30000)))
            return s.getsockname()[1]


def listens(host, port, within=20):
    """Whether somebody does, without a connection of its own: from the kernel's table."""
    end = time.monotonic() + within
    table = Path("/proc/net/tcp6" if ":" in host else "/proc/net/tcp")
    while time.monotonic() < end:
        rows = (row.split() for row in table.read_text().splitlines()[1:])
        if any(row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port for row in rows):
            return True
        time.sleep(0.01)
    return False


def table(file):
    """{call: how often} of a summary of strace's."""
    counts = collections.Counter()
    for line in file.read_text().splitlines():
        words = line.split()
        if len(words) >= 5 and words[0][0].isdigit() and words[3].isdigit() and words[-1] != "total":
            counts[SAME.get(words[-1], words[-1])] += int(words[3])
    return counts


def run(case, library, connections, folder):
    """The calls of server and client."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NACC_", "NETACC_TEST"))}
    env |= {"NACC_LOG_PATH": f"{folder}/netacc.log"}
    traced = lambda end: ["strace", "-f", "-c", "-o", f"{folder}/{end}", *(["-E", f"LD_PRELOAD={library}"] if library else [])]
    host = "::1" if case.name.endswith("6") else "127.0.0.1"
    port = free_port(host)
    server = subprocess.Popen(traced("server") + case.server(host, port, connections, folder), env=env, stdout=subprocess.DEVNULL)
    try:
        if not listens(host, port):
            raise RuntimeError(f"{case.name}: no server")
        client = traced("client") + case.client(host, port, connections)
        subprocess.run(client, env=env, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if case.stop:
            # The traced one: strace passes on nothing, and ends with it.
            tracee = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            for pid in tracee:
                os.kill(int(pid), 15)
        server.wait(60)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    ends = [table(Path(folder) / end) for end in ("server", "client")]
    # Its statistics are in a memfd: without the library nothing would differ, either.
    if any(bool(end["memfd_create"]) != bool(library) for end in ends):
        raise RuntimeError(f"{case.name}: {'the library is not at work' if library else 'a memfd without the library'}")
    return ends


def per_connection(case, library, folder):
    few, many = (run(case, library, n, folder) for n in (FEW, MANY))
    costs = []
    for a, b in zip(few, many):
        costs.append({call: (b[call] - a[call]) / (MANY - FEW) for call in set(a) | set(b)})
    return costs


def cases(folder):
    program = f"{folder}/short_calls"
    subprocess.run(["cc", "-O1", "-o", program, HERE / "short_calls.c"], check=True)
    for how in ("block", "epoll", "poll", "twice", "half"):
        for v in ("4", "6"):
            yield Case(
                f"c-{how}-{v}",
                lambda host, port, n, _, how=how: [program, "serve", host, str(port), how, str(n)],
                lambda host, port, n, how=how: [program, "ask", host, str(port), how, str(n)],
            )
    python = lambda text: lambda host, port, n, *_: [sys.executable, "-c", text, host, str(port), str(n)]
    for v in ("4", "6"):
        yield Case(f"python-{v}", python(PYTHON_SERVER), python(PYTHON_CLIENT))
    if shutil.which("nginx"):
        yield Case("nginx", nginx, lambda *args: python(PYTHON_CLIENT)(*args) + ["whole"], stop=True)
    if shutil.which("redis-server") and shutil.which("redis-benchmark"):
        yield Case(
            "redis",
            lambda host, port, *_: ["redis-server", "--port", str(port), "--bind", host, "--save", "", "--dir", folder],
            lambda host, port, n: ["redis-benchmark", "-p", str(port), "-k", "0", "-c", "1", "-n", str(n), "-t", "get", "-q"],
            stop=True,
            merges=True,  # the end of one connection and the next one
        )


def nginx(host, port, _, folder):
    (Path(folder) / "page").write_text("x" * 1024)
    for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
        (Path(folder) / name).mkdir(exist_ok=True)
    paths = " ".join(f"{name}_temp_path {folder}/{name.split('_')[-1] if name != 'client_body' else 'body'};"
                     for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (Path(folder) / "nginx.conf").write_text(
        f"{'user root;' if os.getuid() == 0 else ''} worker_processes 1; master_process off; daemon off; pid {folder}/pid;"
        f"error_log {folder}/err; events {{ worker_connections 64; }} http {{ access_log off; {paths}"
        f"server {{ listen {host}:{port}; root {folder}; location / {{ sendfile on; try_files /page =404; }} }} }}\n"
    )
    return ["nginx", "-c", f"{folder}/nginx.conf", "-p", folder]


def main():
    library, names = os.path.abspath(sys.argv[1]), sys.argv[2:]
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(folder):
            if names and case.name not in names:
                continue
            without, with_library = (per_connection(case, which, folder) for which in (None, library))
            for end, a, b in zip(("server", "client"), without, with_library):
                more = {call: b.get(call, 0) - a.get(call, 0) for call in set(a) | set(b)}
                more = {call: n for call, n in more.items() if abs(n) >= LEAST and not (case.merges and call in WAITS)}
                say = lambda calls: ", ".join(f"{call} {n:+.4g}" for call, n in sorted(calls.items()))
                print(f"{case.name} {end}: {sum(a.values()):.4g} calls a connection" + (f"; with the library {say(more)}" if more else ""))
                if more or sum(a.values()) < 4:
                    bad.append(f"{case.name} {end}")
    sys.exit(f"calls differ: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
