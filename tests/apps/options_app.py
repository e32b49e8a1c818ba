#!/usr/bin/env python3
"""Every option of netacc.conf, changed, and what comes of it: for options.sh and tests/rdma/run.

    options_app.py check shm|rdma ADDRESS [OPTION... | -OPTION...]
        a line for each option: `OPTION ok`, `OPTION skipped: why` or `OPTION FAILED: why`. Both
        ends are here, and connections between them take that path. Status 1: something failed, or
        an option of `netacc cfg list` has no test.
    options_app.py syslog ADDRESS           NACC_LOG_PATH=syslog, in a mount namespace; within the host
    options_app.py serve ADDRESS PORT       echoes
    options_app.py obey ADDRESS PORT        does what it is told on standard input, a line each

What is looked at is what anybody can see: netacc_ss, threads, files, the answers of calls. Nothing
here is a time but for what must not happen, which is waited for by what must happen besides.
NETACC_VECTORS: tests/rdma/guest/vectors.c, which gives a device several completion vectors.
"""
import contextlib
import ctypes
import glob
import json
import os
import random
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BIN = Path(os.environ.get("NETACC_LIB_DIR") or Path(__file__).resolve().parents[2] / "target/release").resolve()
TREE = Path(__file__).resolve().parents[2]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("NACC_", "LD_PRELOAD"))}
PATIENCE = 60
IO_URING_SETUP = 425
POURED = 4 << 20
# Those that one path alone heeds are tested there; that the other one works with them all the same
# is tested by `works`. These have tests of their own, in which they stand by their names.
ELSEWHERE = {
    "NACC_RDMA_KEEPER_S": "tests/rdma/guest/exits.py",
    "NACC_SOR_AFFINITY": "tests/rdma/parts/devices.sh",
}


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


# ---------------------------------------------------------------- the two ends


def serve(address, port):
    listener, ready = socket.create_server((address, int(port)), backlog=128), selectors.DefaultSelector()
    listener.setblocking(False)
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                with contextlib.suppress(BlockingIOError):
                    connection = listener.accept()[0]
                    connection.setblocking(True)
                    ready.register(connection, selectors.EVENT_READ)
                continue
            try:
                data = key.fileobj.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                ready.unregister(key.fileobj)
                key.fileobj.close()
            else:
                key.fileobj.sendall(data)


def turn(connection, size=100):
    sent, got = os.urandom(size), b""
    connection.sendall(sent)
    while len(got) < size:
        part = connection.recv(65536)
        if not part:
            sys.exit("the server has ended")
        got += part
    if got != sent:
        sys.exit("other bytes have come back")


def obey(address, port):
    """open N; marked (one with a mark); turns N (on all); last (a byte on the last one) and
    echo (that comes back); pour (more than has room, on the last one, by a thread), flood (by
    calls that do not wait: how much has gone) and drink (that comes back, or so much); close;
    once (a connection that lives for a moment: its port here); ring (an io_uring: how it went);
    sets N (the last one comes into an epoll set and out again, so often); fork."""
    place, connections = (address, int(port)), []
    for line in sys.stdin:
        answer = "done"
        # (Who hangs ends.)
        signal.alarm(PATIENCE)
        match line.split():
            case ["open", count]:
                connections += [socket.create_connection(place) for _ in range(int(count))]
            case ["marked"]:
                connections.append(socket.socket())
                try:
                    connections[-1].setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 7)
                except PermissionError:
                    answer = "not permitted"
                connections[-1].connect(place)
            case ["turns", count]:
                for _ in range(int(count)):
                    for connection in connections:
                        turn(connection)
            case ["last"]:
                connections[-1].sendall(b"x")
            case ["echo"]:
                if connections[-1].recv(2) != b"x":
                    sys.exit("the server has not sent it back")
            case ["pour"]:
                threading.Thread(target=connections[-1].sendall, args=(bytes(POURED),), daemon=True).start()
            case ["flood"]:
                connections[-1].setblocking(False)
                answer = 0
                with contextlib.suppress(BlockingIOError):
                    while True:
                        answer += connections[-1].send(bytes(65536))
                connections[-1].setblocking(True)
            case ["drink", *count]:
                rest = int(count[0]) if count else POURED
                while rest:
                    rest -= len(connections[-1].recv(65536)) or sys.exit("the server has ended")
            case ["close"]:
                while connections:
                    connections.pop().close()
            case ["once"]:
                with socket.create_connection(place) as connection:
                    answer = connection.getsockname()[1]
                    for _ in range(20):
                        [turn(connection) for _ in range(10)]
                        time.sleep(0.002)
            case ["sets", count]:
                with select.epoll() as events:
                    for _ in range(int(count)):
                        events.register(connections[-1], select.EPOLLIN)
                        events.unregister(connections[-1])
            case ["fork"]:
                if (child := os.fork()) == 0:
                    os._exit(0)
                os.waitpid(child, 0)
            case ["ring"]:
                libc = ctypes.CDLL(None, use_errno=True)
                fd = libc.syscall(IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
                answer = "made" if fd >= 0 else os.strerror(ctypes.get_errno())
        signal.alarm(0)
        print(answer, flush=True)


def free_port(address):
    """Of those that the kernel gives to no client."""
    while True:
        with contextlib.suppress(OSError), socket.create_server((address, random.randrange(10000, 30000))) as probe:
            return probe.getsockname()[1]


class Pair:
    """A server and a client with the library and these options."""

    def __init__(self, path, address, options, server=None):
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.log = path, Path(self.folder.name) / "log"
        paths = "rdma" if path == "rdma" else "shm"
        self.given = {"NACC_PATHS": paths, "NACC_LOG_PATH": str(self.log), "NACC_CONF": "/dev/null"} | options
        self.port = free_port(address)
        port = str(self.port)
        self.server = self.start(self.given if server is None else server, "serve", address, port)
        self.until(lambda: self.listens(self.port), "the server listens")
        self.client = self.start(self.given, "obey", address, port, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, given, *words, **how):
        preload = {"LD_PRELOAD": str(BIN / "libnetacc_preload.so")} if given else {}
        return subprocess.Popen([sys.executable, "-B", __file__, *words], env=PLAIN | preload | given, **how)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.client, self.server):
            process.kill()
            process.wait()
        self.folder.cleanup()

    @staticmethod
    def listens(port):
        tables = (line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}"))
        return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in tables)

    def tell(self, words):
        self.ask(words)
        return self.answer(words)

    def ask(self, words):
        self.client.stdin.write(f"{words}\n")
        self.client.stdin.flush()

    def answer(self, words):
        answer = self.client.stdout.readline().strip()
        if not answer:
            raise Failed(f"the client has ended at `{words}`")
        return answer

    def until(self, is_so, what, step=None):
        """By looking again; what it was at last, which is true."""
        end = time.monotonic() + PATIENCE
        while not (found := is_so()):
            if time.monotonic() > end:
                raise Failed(f"not within {PATIENCE} s: {what}; {self.look('sock')}")
            step() if step else None
            time.sleep(0.02)
        return found

    def look(self, section, process=None):
        pid = str((process or self.client).pid)
        said = subprocess.run([BIN / "netacc_ss", "--json", "-s", section, pid], env=PLAIN, capture_output=True, text=True)
        return json.loads(said.stdout) if not said.returncode else {}

    def sockets(self):
        return self.look("sock").get("sockets", [])

    def on(self, path=None):
        """How many connections are on it, in both directions."""
        path = path or self.path
        return sum(s["tx_path"] == s["rx_path"] == path for s in self.sockets())

    def reasons(self):
        return sorted(s["reason"] for s in self.sockets())

    def counter(self, name):
        return self.look("cnt").get("counters", {}).get(name, 0)

    def channels(self):
        return [c for c in self.look("qp").get("channels", []) if c["path"] == self.path]

    def arena(self):
        return sum(c["arena_bytes"] for c in self.channels())

    def pairs(self):
        return sum(c["pairs"] for c in self.channels())

    def accelerate(self, count):
        """So many more connections, used until all are accelerated."""
        wanted = self.on() + count
        self.tell(f"open {count}")
        self.until(lambda: self.on() == wanted, f"{wanted} on {self.path}", lambda: self.tell("turns 4"))
        self.tell("turns 4")
        return self

    def pair_ports(self):
        """Where the server takes siw's queue pairs: of the ports of its links those that are the
        kernel's own."""
        said = subprocess.run(["ss", "-Hltnp"], env=PLAIN, check=True, capture_output=True, text=True).stdout
        ports = {int(line.split()[3].rsplit(":", 1)[1]) for line in said.splitlines() if "users:" not in line}
        found = [str(port) for port in ports if port in range(self.port + 20000, self.port + 20032)]
        holds("the server takes queue pairs", found)
        return found

    def is_asleep(self):
        """The client's own thread is in the kernel, and waits."""
        return Path(f"/proc/{self.client.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"

    def threads(self):
        tasks = glob.glob(f"/proc/{self.client.pid}/task/*/comm")
        return [Path(task).read_text().strip() for task in tasks]


def same(what, expected, got):
    if expected != got:
        raise Failed(f"{what}: {got}, and not {expected}")


def holds(what, is_so):
    if not is_so:
        raise Failed(what)


def run_tests(tests, *given, wanted=(), failed=False):
    """A line for each name of `tests`: `NAME ok`, `NAME skipped: why` or `NAME FAILED: why`; a test
    that has several runs once. `wanted`: these names alone, or `-NAME`, all but that. Returns
    whether anything failed: what failed before (`failed`), and that there is none of a name."""
    left_out = {name[1:] for name in wanted if name.startswith("-")}
    named = {name for name in wanted if not name.startswith("-")}
    if strangers := (named | left_out) - {*tests}:
        print(f"list FAILED: no tests of {sorted(strangers)}", flush=True)
        failed = True
    chosen = {name: body for name, body in tests.items() if name not in left_out and name in (named or tests)}
    for body in dict.fromkeys(chosen.values()):
        try:
            body(*given)
            said = "ok"
        except Skipped as why:
            said = f"skipped: {why}"
        except (Failed, OSError, ValueError, LookupError, subprocess.SubprocessError) as why:
            said, failed = f"FAILED: {why!r}", True
        print(*(f"{name} {said}" for name, of_it in chosen.items() if of_it is body), sep="\n", flush=True)
    return failed


# ---------------------------------------------------------------- what each option does

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def of(path, address):
    return lambda **options: Pair(path, address, options.pop("options", {}), **options)


def works(pair, options):
    """It changes nothing on this path, where the connection is accelerated all the same."""
    with pair(options=options) as both:
        both.accelerate(1)


@test
def NACC_SOR_MSG_SIZE(path, pair):
    """A ring is 16 of them, over RDMA 8."""
    for size in (4096, 32768):
        with pair(options={"NACC_SOR_MSG_SIZE": str(size)}) as both:
            both.accelerate(1)
            name = "rx_ring_bytes" if path == "rdma" else "tx_ring_bytes"
            ring = both.until(lambda: both.sockets()[0][name], "a ring's size is known", lambda: both.tell("turns 1"))
            same(f"ring of {size}", size * (8 if path == "rdma" else 16), ring)


def arena(path, pair, count, first, most):
    options = {"NACC_SOR_MSG_SIZE": "4096", "NACC_RDMA_MR_MIN_INC_SIZE": str(first), "NACC_RDMA_MR_MAX_INC_SIZE": str(most)}
    if path == "rdma":
        options["NACC_SOR_CONN_PER_QP"] = "32"
    with pair(options=options) as both:
        return both.accelerate(count).arena()


@test
def NACC_RDMA_MR_MIN_INC_SIZE(path, pair):
    """The first piece of memory, at least what a connection needs."""
    small, large = (arena(path, pair, 1, first, 1 << 20) for first in (4096, 1 << 20))
    holds(f"first piece: {small} bytes, then {large}", small < large and large >= 1 << 20)


@test
def NACC_RDMA_MR_MAX_INC_SIZE(path, pair):
    """The largest piece: with small ones a process has no more than it needs."""
    small, large = (arena(path, pair, 9, 4096, most) for most in (4096, 8 << 20))
    holds(f"nine connections: {small} bytes, then {large}", 0 < small < large)


@test
def NACC_SOR_CONN_PER_QP(path, pair):
    """Connections that share a queue pair."""
    for most in (1, 4):
        with pair(options={"NACC_SOR_CONN_PER_QP": str(most)}) as both:
            both.accelerate(4)
            same(f"pairs of 4 connections, {most} on each", 4 // most if path == "rdma" else 0, both.pairs())


@test
def NACC_SOR_IO_THREADS(path, pair):
    """(How many: tests/rdma/parts/devices.sh.) None without a queue pair."""
    with pair(options={"NACC_SOR_IO_THREADS": "2"}) as both:
        both.accelerate(1)
        same("I/O threads", path == "rdma", "netacc-io" in both.threads())


def kept(both):
    """What is kept of a channel whose connections have ended at both ends."""
    return sum(both.pairs() if both.path == "rdma" else 1 for c in both.channels())


@test
def NACC_EMPTY_QP_EXPIRE_MS(path, pair):
    """0: a channel ends with its last connection; -1: never; otherwise after so long. (By default
    after a minute.)"""
    with pair(options={"NACC_EMPTY_QP_EXPIRE_MS": "3000"}) as both:
        both.accelerate(2)
        # It is in use until later than that, whatever the machine does.
        in_use = time.monotonic()
        both.tell("close")
        both.until(lambda: not kept(both), "what has been empty for that long has gone")
        took = time.monotonic() - in_use
        holds(f"kept for at least 3 s: {took:.2f} s", took >= 3)
    for expires in ("0", "-1"):
        with pair(options={"NACC_EMPTY_QP_EXPIRE_MS": expires}) as both:
            both.accelerate(2).tell("close")
            if expires == "0":
                both.until(lambda: not kept(both), "what is empty has gone")
                continue
            both.until(lambda: not any(c["slots_used"] for c in both.channels()), "nothing is used")
            first = kept(both)
            time.sleep(2)
            holds(f"kept {first}, then {kept(both)}", 0 < first == kept(both))


def port_is_used_again(pair, options):
    """(A connection that is over before both ends have agreed leaves nothing.)"""
    with pair(options=options) as both:
        ports, is_due = [], options.get("NACC_FAST_CONNECT") == "1" and "NACC_EMPTY_QP_MAX_ALL" not in options
        end = time.monotonic() + (PATIENCE if is_due else 0)
        while len(ports) < 20 or (len(ports) == len(set(ports)) and time.monotonic() < end):
            ports.append(both.tell("once"))
        return len(ports) > len(set(ports))


@test
def NACC_EMPTY_QP_MAX_ALL(path, pair):
    """Queue pairs that are kept; on shared memory, with fast connect, TCP connections."""
    if path == "shm":
        fast = {"NACC_FAST_CONNECT": "1"}
        same("a TCP connection serves again", True, port_is_used_again(pair, fast))
        same("and with none that is kept", False, port_is_used_again(pair, fast | {"NACC_EMPTY_QP_MAX_ALL": "0"}))
        return
    most_kept(pair, "NACC_EMPTY_QP_MAX_ALL")


def most_kept(pair, name):
    for most in (1, 3):
        with pair(options={"NACC_SOR_CONN_PER_QP": "1", "NACC_EMPTY_QP_EXPIRE_MS": "-1", name: str(most)}) as both:
            both.accelerate(4).tell("close")
            both.until(lambda: both.pairs() == most, f"{most} pairs are kept of 4")


@test
def NACC_EMPTY_QP_MAX_PER(path, pair):
    """Queue pairs that are kept to one address."""
    most_kept(pair, "NACC_EMPTY_QP_MAX_PER") if path == "rdma" else works(pair, {"NACC_EMPTY_QP_MAX_PER": "0"})


@test
def NACC_CONNECT_RDMA_PERCENT(path, pair):
    for percent in (0, 50):
        with pair(options={"NACC_CONNECT_RDMA_PERCENT": str(percent)}, server={}) as both:
            both.tell("open 8")
            left = 8 - 8 * percent // 100
            both.until(lambda: both.reasons().count("sampled-out") == left, f"{left} of 8 are left out", lambda: both.tell("turns 4"))
    # Those that are left out have no place, with a server that has the library.
    with pair(options={"NACC_CONNECT_RDMA_PERCENT": "50", "NACC_SOR_CONN_PER_QP": "1"}) as both:
        both.tell("open 8")
        both.until(lambda: both.on() == 4, "4 of 8 are accelerated", lambda: both.tell("turns 4"))
        same("left out", 4, both.reasons().count("sampled-out"))
        same("places", 4, sum(c["slots_used"] for c in both.channels()))
        same("pairs", 4 if path == "rdma" else 0, both.pairs())


@test
def NACC_ENABLE_RDMA_DEFAULT(path, pair):
    """Over RDMA neither end has loaded rdma-core with 0, and the server has no port but its own."""
    def has(both):
        loaded = ["libibverbs" in Path(f"/proc/{end.pid}/maps").read_text() for end in (both.server, both.client)]
        return [*loaded, path == "rdma" and both.listens(both.port + 20000)]
    stays(pair, {"NACC_ENABLE_RDMA_DEFAULT": "0"}, "disabled-by-config",
          lambda both: same("rdma-core, and a port for links, with 0", [False] * 3, has(both)))
    with pair(options={"NACC_ENABLE_RDMA_DEFAULT": "1"}) as both:
        both.accelerate(1)
        same("rdma-core, and a port for links, with 1", [path == "rdma"] * 3, has(both))


def stays(pair, options, reason, holds_then=lambda both: None):
    """On TCP, for that."""
    with pair(options=options) as both:
        both.tell("open 1")
        both.until(lambda: both.reasons() == [reason], f"it says {reason}", lambda: both.tell("turns 4"))
        same("on TCP", 1, both.on("tcp"))
        holds_then(both)


@test
def NACC_LOG_LEVEL(path, pair):
    for level, says in (("1", True), ("3", False)):
        with pair(options={"NACC_LOG_LEVEL": level}) as both:
            both.accelerate(1)
            same(f"DEBUG at level {level}", says, both.log.exists() and " DEBUG " in both.log.read_text())


@test
def NACC_LOG_PATH(path, pair):
    with tempfile.TemporaryDirectory() as folder, pair(options={"NACC_LOG_LEVEL": "1", "NACC_LOG_PATH": f"{folder}/%p-%u"}) as both:
        both.accelerate(1)
        same("files", sorted(f"{p.pid}-{os.geteuid()}" for p in (both.server, both.client)), sorted(os.listdir(folder)))


@test
def NACC_SOR_AFFINITY(path, pair):
    """(The I/O threads' CPUs: ELSEWHERE.) The program's own are as they were."""
    with pair(options={"NACC_SOR_AFFINITY": "0"}) as both:
        both.accelerate(1)
        same("CPUs", os.sched_getaffinity(0), os.sched_getaffinity(both.client.pid))


def places(both):
    """Queue pairs that were made for the client's connections, and places found on one of them."""
    return both.counter("rdma_pairs_created"), both.counter("rdma_pairs_reused")


@test
def NACC_CONN_TCP_FIRST(path, pair):
    """Of a connection that only sends, to a listener that is known: it shows with the eighth that
    it lives, and with 1 that is not enough. Between hosts it is with either value, and not before;
    one that ends after one request has not asked for a place on a queue pair."""
    for first in ("0", "1"):
        with pair(options={"NACC_CONN_TCP_FIRST": first}) as both:
            both.accelerate(1)
            if path == "rdma":
                asks_for_no_place(both, first)
            both.tell("open 1")
            for _ in range(7):
                both.tell("last")
            same(f"has not started before the eighth with {first}", True, "not-started" in both.reasons())
            both.tell("last")
            waits = first == "1" and path == "shm"
            same(f"has not started with {first}", waits, "not-started" in both.reasons())


def asks_for_no_place(both, first):
    """Connections that end after one request; the client has one that is accelerated."""
    both.tell("close")
    made, found = places(both)
    for _ in range(4):
        both.tell("open 1")
        both.tell("turns 1")
        same(f"after one request with {first}", ["not-started"], both.reasons())
        both.tell("close")
    # (What they had asked for would have come before this one's.)
    both.accelerate(1)
    same(f"pairs, and places found on them, with {first}", (made, found + 1), places(both))


def syns():
    """How many TCP connections this machine has begun."""
    names, values = (line.split() for line in open("/proc/net/snmp") if line.startswith("Tcp:"))
    return int(values[names.index("ActiveOpens")])


@test
def NACC_FAST_CONNECT(path, pair):
    """A port serves again. Between hosts none does, and each connection has a handshake of its own,
    with either value; but the next one finds a queue pair, which is kept in any case."""
    if path == "shm":
        same("a port serves again", True, port_is_used_again(pair, {"NACC_FAST_CONNECT": "1"}))
        same("and without", False, port_is_used_again(pair, {"NACC_FAST_CONNECT": "0"}))
        return
    lives = 4
    for fast in ("0", "1"):
        with pair(options={"NACC_FAST_CONNECT": fast}) as both:
            ports = set()
            both.accelerate(1)
            begun = syns()
            for life in range(lives):
                if life:
                    both.accelerate(1)
                ports |= {s["local"] for s in both.sockets()}
                both.tell("close")
                both.until(lambda: not any(c["slots_used"] for c in both.channels()), "nothing is used")
            same(f"ports with {fast}", lives, len(ports))
            holds(f"{syns() - begun} handshakes with {fast}", syns() - begun >= lives - 1)
            same(f"pairs, and places found on them, with {fast}", (1, lives - 1), places(both))


@test
def NACC_POLL_MS(path, pair):
    for most, polls in (("0", False), ("10", True)):
        with pair(options={"NACC_POLL_MS": most}) as both:
            both.accelerate(1)
            spins = lambda: both.counter("spins_won") + both.counter("spins_lost")
            if polls:
                both.until(spins, "it polls", lambda: both.tell("turns 50"))
            else:
                both.tell("turns 300")
                same("polls with 0", 0, spins())


@test
def NACC_POLL_TCP_US(path, pair):
    """Of connections on plain TCP, whose server has no library."""
    for most, looks in (("0", False), ("1000", True)):
        with pair(options={"NACC_POLL_TCP_US": most}, server={}) as both:
            both.tell("open 1")
            if looks:
                both.until(lambda: both.counter("kernel_looks"), "it looks", lambda: both.tell("turns 50"))
            else:
                both.tell("turns 300")
                same("looks with 0", 0, both.counter("kernel_looks"))


@test
def NACC_CQ_COMP_VECTOR(path, pair):
    """By which vector a queue tells of its completions, modulo the four that the device has here.
    (Of several queues: crates/core/src/remote/tests/parameters.rs.)"""
    if path != "rdma":
        return works(pair, {"NACC_CQ_COMP_VECTOR": "1"})
    preload = f"{os.environ['NETACC_VECTORS']}:{BIN / 'libnetacc_preload.so'}"
    for vector in (0, 2, 5):
        with tempfile.NamedTemporaryFile("r") as noted:
            with pair(options={"NACC_CQ_COMP_VECTOR": str(vector), "LD_PRELOAD": preload, "VECTORS_NOTED": noted.name}) as both:
                both.accelerate(1)
            same(f"vectors of both ends' queues with {vector}", [f"{vector % 4}\n"] * 2, noted.readlines())


@contextlib.contextmanager
def dark(ports):
    """Nothing goes through to or from these TCP ports of this kernel, and nobody says so."""
    tc = lambda *words: subprocess.run(["tc", *words], env=PLAIN, check=True)
    tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "prio")
    try:
        for port in ports:
            for end in ("dst_port", "src_port"):
                tc("filter", "add", "dev", "lo", "parent", "1:", "protocol", "ip", "prio", "4", "flower", "ip_proto", "tcp", end, port,
                   "action", "drop")
        yield
    finally:
        tc("qdisc", "del", "dev", "lo", "root")


@test
def NACC_RDMA_STALL_MS(path, pair):
    """What does not arrive for so long goes over TCP; the trace tells it, and stays. With 0 that is
    for the device to find. (siw's pairs are TCP connections. What rxe sends to its own kernel
    cannot be dropped: tests/rdma/parts/stalled.sh, between two hosts.)"""
    if path != "rdma" or os.environ["DEVICE"] != "siw":
        return works(pair, {"NACC_RDMA_STALL_MS": "0"})
    for bound in ("200", "0"):
        with pair(options={"NACC_RDMA_STALL_MS": bound}) as both:
            both.accelerate(1)
            with dark(both.pair_ports()):
                if bound == "0":
                    both.tell("last")
                    time.sleep(2)
                    same("on RDMA, though nothing arrives", 1, both.on())
                else:
                    both.tell("turns 4")
                    both.until(lambda: " slow rdma ms " in trace_of(both), "it is in the trace")
            if bound == "0":
                both.tell("echo")
            given_up = both.counter("rdma_pairs_stalled")
            holds(f"{given_up} pairs are given up with {bound}", (given_up > 0) == (bound != "0"))
            same(f"traces that stay with {bound}", int(bound != "0"), traces_left(both))


@test
def NACC_KERNEL_POLICY(path, pair):
    """A mark keeps a connection from RDMA, unless that is not to be looked at."""
    for policy in ("1", "0"):
        with pair(options={"NACC_KERNEL_POLICY": policy}) as both:
            if both.tell("marked") != "done":
                raise Skipped("a mark needs CAP_NET_ADMIN")
            reason = "kernel-policy" if path == "rdma" and policy == "1" else "none"
            both.until(lambda: both.reasons() == [reason] and both.on(path if reason == "none" else "tcp") == 1,
                       f"{reason} with {policy}", lambda: both.tell("turns 4"))


@test
def NACC_RDMA_KEEPER_S(path, pair):
    works(pair, {"NACC_RDMA_KEEPER_S": "0"})


@test
def NACC_PATHS(path, pair):
    stays(pair, {"NACC_PATHS": "tcp"}, "paths-exclude-it")
    works(pair, {"NACC_PATHS": path})
    # Each takes the first one that both ends can use.
    works(pair, {"NACC_PATHS": "rdma,shm" if path == "rdma" else "shm,rdma"})


@test
def NACC_IO_URING(path, pair):
    with pair(options={}, server={}) as both:
        there = both.tell("ring")
    for how in ("0", "1", "2"):
        with pair(options={"NACC_IO_URING": how}) as both:
            both.accelerate(1)
            same(f"a ring with {how}", "Function not implemented" if how == "0" else there, both.tell("ring"))
            if how == "2" and there == "made":
                both.until(lambda: both.reasons() == ["io-uring"], "it says io-uring", lambda: both.tell("turns 1"))
            else:
                both.tell("turns 20")
                same(f"accelerated with {how}", 1, both.on())


def trace_of(both):
    said = subprocess.run([BIN / "netacc", "trace", "show", "-p", str(both.client.pid)], env=PLAIN, capture_output=True, text=True)
    return said.stdout


@test
def NACC_TRACE(path, pair):
    def traced(both):
        return " promoted " in trace_of(both)
    def measured(both):
        return any(of["answer_count"] for of in both.sockets())
    for level in (0, 1, 2):
        with pair(options={"NACC_TRACE": str(level)}) as both:
            both.accelerate(1)
            both.until(lambda: traced(both), "it is traced") if level else same("traced", False, traced(both))
            both.until(lambda: measured(both), "it is measured", lambda: both.tell("turns 1")) if level == 2 \
                else same("measured", False, measured(both))


def traces_left(both):
    """How many stay of the client, which ends in order."""
    both.client.stdin.close()
    both.client.wait(PATIENCE)
    left = glob.glob(f"/dev/shm/netacc-trace.*.{both.client.pid}")
    for file in left:
        os.unlink(file)
    return len(left)


@test
def NACC_TRACE_DIR(path, pair):
    """The trace lies there, unless others may put files there."""
    for mode, there in ((0o700, True), (0o777, False)):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            os.chmod(folder, mode)
            with pair(options={"NACC_TRACE_DIR": folder}) as both:
                def lies(place):
                    return bool(glob.glob(f"{place}/netacc-trace.*.{both.client.pid}"))
                both.accelerate(1)
                both.until(lambda: lies(folder if there else "/dev/shm"), "the trace is there")
                same("in the other folder", False, lies("/dev/shm" if there else folder))


@test
def NACC_TRACE_SLOW_MS(path, pair):
    """A send that finds no room for longer is told, and its trace stays; 0: none is."""
    for bound in (100, 0):
        with pair(options={"NACC_TRACE_SLOW_MS": str(bound)}) as both:
            both.accelerate(1).tell("pour")
            both.tell("drink")
            # (Over RDMA it has a whole ring from here on.)
            both.until(lambda: both.on() == 1, "it is back", lambda: both.tell("turns 4"))
            both.server.send_signal(signal.SIGSTOP)
            try:
                both.tell("pour")
                both.until(lambda: " full " in trace_of(both), "a send finds no room")
                time.sleep(0.5)
            finally:
                both.server.send_signal(signal.SIGCONT)
            # (Before more happens on it than the trace keeps.)
            said = " slow send ms " if bound else " wake send "
            both.until(lambda: said in trace_of(both), "the wait is told, or over")
            same(f"told with {bound}", bool(bound), " slow " in trace_of(both))
            both.tell("drink")
            same(f"traces that stay with {bound}", int(bool(bound)), traces_left(both))
    if path == "rdma":
        return
    # A program that does not wait, and asks when there is room. (Who sends looks once a second.)
    for bound in (100, 0):
        with pair(options={"NACC_TRACE_SLOW_MS": str(bound)}) as both:
            both.accelerate(1)
            both.server.send_signal(signal.SIGSTOP)
            try:
                gone = both.tell("flood")
                both.until(lambda: " full " in trace_of(both), "a send finds no room")
                if bound:
                    both.until(lambda: " slow send ms " in trace_of(both), "the wait is told")
                else:
                    time.sleep(2.5)
            finally:
                both.server.send_signal(signal.SIGCONT)
            both.tell(f"drink {gone}")
            same(f"told with {bound}, without waiting", bool(bound), " slow " in trace_of(both))
            same(f"traces that stay with {bound}, without waiting", int(bool(bound)), traces_left(both))


# ----------------------------------------------------------------


def check(path, address, *wanted):
    listed = json.loads(subprocess.run([BIN / "netacc", "cfg", "list", "--json"], env=PLAIN | {"NACC_CONF": "/dev/null"},
                                       check=True, capture_output=True).stdout)
    names, failed = sorted(one["name"] for one in listed["parameters"]), False
    if names != sorted(TESTS):
        print(f"list FAILED: here or in `netacc cfg list` alone: {sorted({*names} ^ {*TESTS})}")
        failed = True
    for name, where in ELSEWHERE.items():
        if name not in (TREE / where).read_text():
            print(f"{name}-elsewhere FAILED: {where} does not name it")
            failed = True
    return run_tests(TESTS, path, of(path, address), wanted=wanted, failed=failed)


def private_devices():
    """In a mount namespace: a /dev of its own, with what programs need."""
    with tempfile.TemporaryDirectory() as folder:
        dev = Path(folder)
        mount = lambda *words: subprocess.run(["mount", *words], check=True)
        mount("-t", "tmpfs", "none", dev)
        for name in ("null", "zero", "full", "random", "urandom"):
            (dev / name).touch()
            mount("--bind", f"/dev/{name}", dev / name)
        (dev / "shm").mkdir()
        mount("--bind", "/dev/shm", dev / "shm")
        mount("--rbind", dev, "/dev")
        subprocess.run(["umount", "--recursive", "--lazy", dev], check=True)


def syslog(address):
    """In a mount namespace: both ends say something to the system's log, which is read here."""
    private_devices()
    said = set()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind("/dev/log")

        def read():
            while line := daemon.recv(1000):
                said.add(line.split(b" ")[0].decode())
        threading.Thread(target=read, daemon=True).start()
        options = {"NACC_LOG_LEVEL": "1", "NACC_LOG_PATH": "syslog"}
        with of("shm", address)(options=options) as both:
            both.accelerate(1)
            both.until(lambda: said >= {f"<15>netacc[{p.pid}]:" for p in (both.server, both.client)}, "both ends have said something")
    print("syslog ok")


if __name__ == "__main__":
    sys.exit({"check": check, "syslog": syslog, "serve": serve, "obey": obey}[sys.argv[1]](*sys.argv[2:]))
