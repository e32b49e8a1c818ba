"""The server, the plain client, and the suite of utcp.sh.

Each case is a function of the server's and one of the client's, both of which say what they see. It
runs without the library, and with it, when the server's connection is out of the kernel; both have
to say the same.
"""

import array
import contextlib
import ctypes
import errno
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib

OWN, PEER, PORT = "10.77.0.1", "10.77.0.2", 7000
UTCP = 3
# Where this run's connection is to be when its case begins ("out": of the kernel).
MODE = {"until": None}
PATIENCE = 30
ROUNDS = int(os.environ.get("NETACC_UTCP_ROUNDS", "3"))


def path(s):
    """Which path the library says a connection is on; None: there is no library."""
    try:
        info = s.getsockopt(0x6E61, 1, 312)
    except OSError:
        return None
    _, _, tx, rx = struct.unpack_from("<4I", info)
    return tx if tx == rx else 0


def is_out(s):
    """A case that says what the path does is worth nothing where the connection is not on it."""
    if MODE["until"] == "out" and path(s) != UTCP:
        raise ValueError(f"on path {path(s)}: {why(s)}")


def is_back(s):
    """The library gives it back soon, and for good."""
    end = time.monotonic() + 5
    while path(s) not in (None, 0):
        if time.monotonic() > end:
            raise TimeoutError(f"still on path {path(s)}: {why(s)}")
        time.sleep(0.01)


def why(s):
    return s.getsockopt(0x6E61, 1, 312)[24:56].split(b"\0")[0].decode()


def pattern(seed, at, n):
    """What stands at `at` of a stream: any part of it, without all before."""
    begin, words = at // 8, n // 8 + 2
    mixed = array.array("Q", (((seed + i) * 0x9E3779B97F4A7C15) & (1 << 64) - 1 for i in range(begin, begin + words)))
    return mixed.tobytes()[at % 8 : at % 8 + n]


class Say:
    """What an end has seen: printed as it goes."""

    def __call__(self, *what):
        print(*what, flush=True)

    def outcome(self, name, call):
        try:
            self(name, call())
        except OSError as e:
            self(name, errno.errorcode.get(e.errno, e.errno))


say = Say()


def all_of(s, n):
    got = b""
    while len(got) < n:
        part = s.recv(n - len(got))
        if not part:
            raise EOFError(f"{len(got)} of {n}")
        got += part
    return got


def ends(s):
    """Everything up to the end of the stream: how much, its sum, how it ended."""
    n = total = 0
    while True:
        try:
            part = s.recv(1 << 16)
        except OSError as e:
            return n, total, errno.errorcode[e.errno]
        if not part:
            return n, total, "end"
        n, total = n + len(part), zlib.crc32(part, total)


# ------------------------------------------------------------------------- how a case begins


def talk_server(s, until):
    """Answers, until the connection is where it should be: then 'x', which the client waits for."""
    end = time.monotonic() + PATIENCE
    for n in range(1 << 30):
        ping = all_of(s, 4)
        there = path(s) == UTCP if until == "out" else n >= 40
        if there and ping != b"ping":
            raise ValueError(ping)
        s.sendall(b"x" if there else b".")
        if there:
            return
        if time.monotonic() > end:
            raise TimeoutError(f"on path {path(s)}: {why(s)}")
        time.sleep(0.0005)


def talk_client(s):
    while True:
        s.sendall(b"ping")
        if all_of(s, 1) == b"x":
            return


# ------------------------------------------------------------------------------------- cases

CASES = {}


def case(of):
    side, name = of.__name__.split("_", 1)
    CASES.setdefault(name.replace("_", "-"), {})[side] = of
    return of


@case
def server_echo(s):
    for n in (1, 100, 1500, 70_000, 1):
        got = all_of(s, n)
        is_out(s)
        s.sendall(got[::-1])
    say("end", ends(s))


@case
def client_echo(s):
    for n in (1, 100, 1500, 70_000, 1):
        sent = pattern(n, 0, n)
        s.sendall(sent)
        say(n, all_of(s, n) == sent[::-1])


BOTH_WAYS = 12_000_000


def pour(s, seed, total):
    rng, at = random.Random(seed), 0
    while at < total:
        n = min(rng.choice((1, 700, 5000, 60_000, 300_000)), total - at)
        s.sendall(pattern(seed, at, n))
        at += n


def drink(s, seed, total):
    rng, at = random.Random(~seed), 0
    while at < total:
        part = s.recv(min(rng.choice((1, 500, 20_000, 1 << 18)), total - at))
        if part != pattern(seed, at, len(part)) or not part:
            raise ValueError(f"at {at}: {len(part)} bytes")
        at += len(part)
    return at


def both_ways(s, mine, theirs, total=BOTH_WAYS):
    writes = threading.Thread(target=pour, args=(s, mine, total))
    writes.start()
    say("received", drink(s, theirs, total))
    writes.join()


@case
def server_streams(s):
    both_ways(s, 1, 2)
    is_out(s)
    s.sendall(b"d")


@case
def client_streams(s):
    both_ways(s, 2, 1)
    say(all_of(s, 1))


@case
def server_streams_in_epoll(s):
    """One thread, edge-triggered, both ways at once."""
    s.setblocking(False)
    ep = select.epoll()
    ep.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    sent = got = 0
    total = BOTH_WAYS // 2
    while sent < total or got < total:
        ready = ep.poll(10)
        if not ready or any(ev & ~(select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP) for _, ev in ready):
            raise ValueError(ready)
        with contextlib.suppress(BlockingIOError):
            while got < total:
                part = s.recv(min(1 << 16, total - got))
                if not part or part != pattern(2, got, len(part)):
                    raise ValueError(f"at {got}")
                got += len(part)
        with contextlib.suppress(BlockingIOError):
            while sent < total:
                sent += s.send(pattern(1, sent, min(1 << 16, total - sent)))
    say("received", got)
    s.setblocking(True)
    is_out(s)
    s.sendall(b"d")


@case
def client_streams_in_epoll(s):
    both_ways(s, 2, 1, BOTH_WAYS // 2)
    say(all_of(s, 1))


@case
def server_polls(s):
    """By poll and select, with and without time-outs."""
    s.setblocking(False)
    p = select.poll()
    p.register(s, select.POLLIN)
    got = b""
    while len(got) < 3000:
        if len(got) < 1500:
            ready = p.poll(5000)
            if ready != [(s.fileno(), select.POLLIN)]:
                raise ValueError(ready)
        elif select.select([s], [], [], 5)[0] != [s]:
            raise ValueError("select")
        got += s.recv(500)
    say(zlib.crc32(got), p.poll(30), select.select([s], [s], [], 0.03)[:2] == ([], [s]))
    s.setblocking(True)
    is_out(s)
    s.sendall(got)
    p.register(s, select.POLLIN | select.POLLRDHUP)
    say([ev for _, ev in p.poll(5000)], ends(s))


@case
def client_polls(s):
    for n in range(30):
        s.sendall(pattern(n, 0, 100))
        time.sleep(0.005)
    say(zlib.crc32(all_of(s, 3000)))


@case
def server_closes_first(s):
    s.sendall(pattern(3, 0, 200_000))


@case
def client_closes_first(s):
    time.sleep(0.05)
    say(ends(s))


@case
def server_closes_with_bytes_unread(s):
    all_of(s, 1)
    time.sleep(0.05)


@case
def client_closes_with_bytes_unread(s):
    s.sendall(b"1" + b"unread" * 100)
    say.outcome("receives", lambda: ends(s)[2])


@case
def server_is_closed_on(s):
    say(ends(s))


@case
def client_is_closed_on(s):
    s.sendall(pattern(4, 0, 300_000))


@case
def server_is_reset(s):
    say.outcome("receives", lambda: ends(s)[2])
    say.outcome("sends", lambda: s.send(b"x"))


@case
def client_is_reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@case
def server_shuts_down(s):
    s.sendall(pattern(5, 0, 150_000))
    s.shutdown(socket.SHUT_WR)
    say.outcome("sends", lambda: s.send(b"x"))
    say(ends(s))


@case
def client_shuts_down(s):
    say(ends(s))
    s.sendall(pattern(6, 0, 150_000))


@case
def server_peer_shuts_down(s):
    say(ends(s))
    s.sendall(pattern(7, 0, 150_000))


@case
def client_peer_shuts_down(s):
    s.sendall(pattern(8, 0, 150_000))
    s.shutdown(socket.SHUT_WR)
    say(ends(s))


@case
def server_resets_by_linger(s):
    s.sendall(b"last")
    time.sleep(0.05)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@case
def client_resets_by_linger(s):
    say.outcome("receives", lambda: ends(s))


def urgent(s):
    """The byte that goes ahead of the others, once it is there."""
    end = time.monotonic() + 10
    while True:
        try:
            return s.recv(1, socket.MSG_OOB)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


@case
def server_urgent(s):
    s.sendall(b"before")
    s.send(b"!", socket.MSG_OOB)
    s.sendall(b"behind")
    say(ends(s))


@case
def client_urgent(s):
    say(urgent(s), all_of(s, 12))
    s.sendall(b"ordinary")


@case
def server_peer_is_urgent(s):
    all_of(s, 3)
    say(urgent(s))
    say(ends(s))


@case
def client_peer_is_urgent(s):
    s.sendall(b"abc")
    s.send(b"!", socket.MSG_OOB)
    s.sendall(b"def")


@case
def server_options(s):
    for name in (socket.TCP_NODELAY, socket.TCP_CORK, socket.TCP_QUICKACK):
        s.setsockopt(socket.IPPROTO_TCP, name, 1)
        say(name, s.getsockopt(socket.IPPROTO_TCP, name) != 0)
    is_back(s)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    say(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), s.getpeername()[0], s.getsockname())
    s.sendall(all_of(s, 1000))
    say(ends(s))


@case
def client_options(s):
    s.sendall(pattern(9, 0, 1000))
    say(all_of(s, 1000) == pattern(9, 0, 1000))


@case
def server_forks(s):
    all_of(s, 10)
    child = os.fork()
    if child == 0:
        s.sendall(all_of(s, 1000) + b"child")
        os._exit(0)
    is_back(s)
    say("child", os.waitpid(child, 0)[1])
    s.sendall(all_of(s, 1000) + b"parent")
    say(ends(s))


@case
def client_forks(s):
    s.sendall(pattern(10, 0, 1010))
    say(all_of(s, 1005)[-5:])
    s.sendall(pattern(11, 0, 1000))
    say(all_of(s, 1006)[-6:])


@case
def server_passes_it_on(s):
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-c", f"""
import socket
_, fds, _, _ = socket.recv_fds(socket.socket(fileno={theirs.fileno()}), 1, 1)
s = socket.socket(fileno=fds[0])
while part := s.recv(65536):
    s.sendall(part)
"""], pass_fds=[theirs.fileno()], env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    all_of(s, 10)
    socket.send_fds(ours, [b"."], [s.fileno()])
    s.close()
    say("child", child.wait(20))


@case
def client_passes_it_on(s):
    s.sendall(pattern(12, 0, 50_010))
    say(all_of(s, 50_000) == pattern(12, 10, 50_000))


@case
def server_becomes_another(s):
    all_of(s, 10)
    s.set_inheritable(True)
    os.dup2(s.fileno(), 0)
    os.dup2(s.fileno(), 1)
    os.execve("/bin/cat", ["cat"], {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})


@case
def client_becomes_another(s):
    s.sendall(pattern(13, 0, 50_010))
    say(all_of(s, 50_000) == pattern(13, 10, 50_000))
    s.shutdown(socket.SHUT_WR)
    say(ends(s))


@case
def server_ends(s):
    s.sendall(pattern(14, 0, 400_000))
    os._exit(0)


@case
def client_ends(s):
    time.sleep(0.1)
    say(ends(s))


@case
def server_is_killed(s):
    s.sendall(pattern(15, 0, 100_000))
    os.kill(os.getpid(), signal.SIGKILL)


@case
def client_is_killed(s):
    began = time.monotonic()
    say(ends(s), time.monotonic() - began < 5)


@case
def server_is_killed_with_bytes_unread(s):
    all_of(s, 1)
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


@case
def client_is_killed_with_bytes_unread(s):
    s.sendall(b"1" + b"unread" * 100)
    began = time.monotonic()
    say.outcome("receives", lambda: (ends(s), time.monotonic() - began < 5))


@case
def server_is_killed_at_any_moment(s):
    threading.Timer(random.random() * 0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    both_ways(s, 20, 21, 1 << 40)


@case
def client_is_killed_at_any_moment(s):
    """What came is what was sent, up to some byte; then the end, or a reset, and soon."""

    def write():
        with contextlib.suppress(OSError):
            pour(s, 21, 1 << 40)

    threading.Thread(target=write, daemon=True).start()
    at, last = 0, time.monotonic()
    try:
        while part := s.recv(1 << 16):
            if part != pattern(20, at, len(part)):
                raise ValueError(at)
            at, last = at + len(part), time.monotonic()
    except ConnectionResetError:
        pass
    say("ended", time.monotonic() - last < 5)
    os._exit(0)


@case
def server_is_idle(s):
    """A thread that waits hears what comes, without looking."""
    before = time.process_time()
    for _ in range(5):
        got = all_of(s, 5)
        is_out(s)
        s.sendall(got)
    say("idle", time.process_time() - before < 0.3, ends(s))


@case
def client_is_idle(s):
    for n in range(5):
        time.sleep(0.3)
        s.sendall(b"%05d" % n)
        say(all_of(s, 5))


def counted(ways=(1, 1, 0)):
    """What netacc_ss has counted of the one connection of this process, which is over: True where
    it is as it should be. `ways`: taken out, given back, lost."""
    if MODE["until"] != "out":
        return True
    words = [f"{LIB_DIR}/netacc_ss", "--json", "-s", "cnt", str(os.getpid())]
    end = time.monotonic() + 5
    while True:
        said = json.loads(subprocess.run(words, env=environment(False), check=True, stdout=subprocess.PIPE).stdout)["counters"]
        names = ("utcp_taken_out", "utcp_given_back", "utcp_lost", "utcp_bytes_tx", "utcp_bytes_rx")
        out, back, lost, *moved = (said[name] for name in names)
        if (out, back, lost) == ways and min(moved) >= 5:
            return True
        if time.monotonic() > end:
            return said
        time.sleep(0.05)


@case
def server_is_counted(s):
    got = all_of(s, 5)
    is_out(s)
    s.sendall(got)
    s.shutdown(socket.SHUT_WR)
    said = ends(s)
    s.close()
    say(said, "counted", counted())


@case
def client_is_counted(s):
    s.sendall(b"12345")
    say(all_of(s, 5), ends(s))


def refuse_windows():
    """Begins anew as a program that cannot say what the windows of a socket are that the kernel is
    to have back: a filter of system calls answers with EPERM (linux/filter.h, linux/seccomp.h).
    (Before one that comes later the library would give back what is out.)"""
    if os.environ.pop("NETACC_TEST_FILTERED", None):
        return
    call, install = {"x86_64": (54, 317), "aarch64": (208, 277)}[os.uname().machine]
    load, equal, answer, allowed, refused = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
    tcp_repair_window = 29
    words = ((0, call), (24, socket.IPPROTO_TCP), (32, tcp_repair_window))
    program = [line for at, (word, value) in enumerate(words) for line in ((load, 0, 0, word), (equal, 0, 5 - 2 * at, value))]
    program += [(answer, 0, 0, refused), (answer, 0, 0, allowed)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(install), ctypes.c_uint(1), ctypes.c_uint(0), filters) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    # (The library traces such a process where that is asked for.)
    os.environ |= {"NETACC_TEST_FILTERED": "1", "NACC_TRACE": "1"}
    os.execv(sys.executable, [sys.executable, *sys.argv])


@case
def server_is_refused_by_the_kernel(s):
    """The kernel does not have it again: both ends hear that it is over, and that is counted."""
    s.sendall(all_of(s, 5))
    is_out(s)
    if MODE["until"] != "out":
        # (That comes to a reset, which is what is compared.)
        say(all_of(s, 1), "ECONNRESET")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return s.close()
    say(all_of(s, 1), ends_after_option(s))
    s.close()
    if (told := counted((1, 0, 1))) is not True:
        say("counted", told)


def ends_after_option(s):
    """An option takes it back, or not; then what the stream ends with."""
    with contextlib.suppress(OSError):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    return ends(s)[2]


@case
def client_is_refused_by_the_kernel(s):
    s.sendall(b"12345")
    say(all_of(s, 5))
    s.sendall(b"g")
    say(ends(s))


def tells(sent, was_out):
    """Tells the client how much there is, and whether the connection was out."""
    with open(f"{ENOUGH}.new", "w") as file:
        json.dump([sent, was_out], file)
    os.rename(f"{ENOUGH}.new", ENOUGH)


def is_told_that_it_is_cut(s):
    """By a reset, which comes by itself: nothing is read or sent before. (In the kernel the process
    leaves all that it has written.)"""
    until(lambda: os.path.exists(ENOUGH), "the server does not get there")
    with open(ENOUGH) as file:
        sent, was_out = json.load(file)
    hears = select.poll()
    hears.register(s, 0)
    heard = hears.poll(10_000) if was_out else []
    got, _, end = ends(s)
    right = bool(heard) and end == "ECONNRESET" if was_out else (got, end) == (sent, "end")
    say("told", right or (sent, was_out, heard, got, end))


@case
def server_is_killed_and_refused(s):
    """Nor has the kernel it if the process is killed, and the peer has read nothing by then."""
    s.sendall(all_of(s, 5))
    s.setblocking(False)
    at = 0
    while select.select([], [s], [], 0.5)[1]:
        at += s.send(pattern(21, at, 60_000))
    is_out(s)
    tells(at, MODE["until"] == "out")
    os.kill(os.getpid(), signal.SIGKILL)


@case
def client_is_killed_and_refused(s):
    s.sendall(b"12345")
    say(all_of(s, 5))
    is_told_that_it_is_cut(s)


@case
def server_is_killed_and_refused_behind_losses(s):
    """As above, and the peer does not have all that was sent: it sends until it is killed."""
    listener = socket.create_server((OWN, PORT + 1))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        listener.setsockopt(socket.IPPROTO_TCP, name, 1)
    s.sendall(b"r")
    c, _ = listener.accept()
    talk_server(c, MODE["until"])
    all_of(c, 1)
    is_out(c)
    c.sendall(pattern(22, 0, 1000))
    if MODE["until"] != "out":
        tells(1000, False)
        os.kill(os.getpid(), signal.SIGKILL)
    c.setblocking(False)
    with open(FLOWS, "w"):
        pass
    while True:
        with contextlib.suppress(BlockingIOError):
            c.send(pattern(22, 0, 1000))
        time.sleep(0.01)


@case
def client_is_killed_and_refused_behind_losses(s):
    """Its system has answered keep-alives: it does not ask a reset where it belongs, so soon."""
    all_of(s, 1)
    c = socket.create_connection((OWN, PORT + 1))
    c.settimeout(60)
    talk_client(c)

    def segments():
        return struct.unpack_from("I", c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 144), 140)[0]

    before = segments()
    until(lambda: segments() >= before + 2, "no keep-alive")
    c.sendall(b"k")
    is_told_that_it_is_cut(c)


ROOM = 4_000_000


def looks():
    """How often the library's thread for this path has slept, and been woken."""
    n = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm, open(f"/proc/self/task/{task}/status") as status:
            if comm.read() == "netacc-utcp\n":
                n += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
    return n


@case
def server_waits_for_room(s):
    """A peer that does not read is waited for, and not looked at, also on the way back."""
    listener = socket.create_server((OWN, PORT + 1))
    # What the kernel takes that it cannot send: the rest waits for room there.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 4096)
    s.sendall(b"r")
    c, _ = listener.accept()
    talk_server(c, MODE["until"])
    c.setblocking(False)
    at = 0
    while select.select([], [c], [], 0.5)[1]:
        at += c.send(pattern(20, at, 60_000))
    is_out(c)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    time.sleep(0.2)
    before = looks()
    time.sleep(1)
    say("waits", looks() - before < 100 or looks() - before)
    s.sendall(b"g")
    c.setblocking(True)
    c.sendall(pattern(20, at, ROOM - at))
    say(ends(s))


@case
def client_waits_for_room(s):
    all_of(s, 1)
    c = socket.create_connection((OWN, PORT + 1))
    talk_client(c)
    all_of(s, 1)
    say("received", drink(c, 20, ROOM))


@case
def server_device_goes_down(s):
    for _ in range(60):
        s.sendall(all_of(s, 5000)[::-1])
    say(ends(s))


@case
def client_device_goes_down(s):
    began = time.monotonic()
    for n in range(60):
        sent = pattern(n, 0, 5000)
        s.sendall(sent)
        if all_of(s, 5000) != sent[::-1]:
            raise ValueError(n)
        time.sleep(0.02)
    say(time.monotonic() - began < 20)


@case
def server_waits_while_the_device_is_down(s):
    """Threads that wait sleep, in a set and in a read, whatever the device says meanwhile."""
    listener = socket.create_server((OWN, PORT + 1))
    s.sendall(b"r")
    c, _ = listener.accept()
    talk_server(c, MODE["until"])
    heard = []

    def waits():
        with select.epoll() as ep:
            ep.register(c, select.EPOLLIN)
            ep.poll(30)
        heard.append(all_of(c, 5))

    before = time.process_time()
    waiter = threading.Thread(target=waits)
    waiter.start()
    heard.append(all_of(s, 5))
    waiter.join()
    # (They may be the kernel's again by now: a device that was down has other routes.)
    heard.append(all_of(s, 5))
    say("idle", time.process_time() - before < 0.3, heard)


@case
def client_waits_while_the_device_is_down(s):
    all_of(s, 1)
    c = socket.create_connection((OWN, PORT + 1))
    talk_client(c)
    # (Down for 0.7 s of them, and up again.)
    time.sleep(3)
    for one in (c, s):
        one.sendall(b"later")
    time.sleep(1)
    s.sendall(b"again")
    say(ends(s), ends(c))


@case
def server_mtu_is_lowered(s):
    both_ways(s, 18, 19, SWITCH)
    is_back(s)
    s.sendall(b"d")


@case
def client_mtu_is_lowered(s):
    both_ways(s, 19, 18, SWITCH)
    say(all_of(s, 1))


@case
def server_packets_are_lost(s):
    while got := s.recv(5000):
        s.sendall(got[::-1])
    say("end")


@case
def client_packets_are_lost(s):
    """Until it is told that there was enough of it."""
    n, end = 0, time.monotonic() + 80
    while not os.path.exists(ENOUGH) and time.monotonic() < end:
        sent = pattern(n, 0, 500)
        s.sendall(sent)
        if all_of(s, 500) != sent[::-1]:
            raise ValueError(n)
        n += 1
        time.sleep(0.01)
    say(os.path.exists(ENOUGH))


MANY = 150


@case
def server_many(s):
    """One thread, epoll, many connections, each with requests of any size."""
    listener = socket.create_server((OWN, PORT + 1), backlog=MANY)
    s.sendall(b"r")
    ep = select.epoll()
    all_, busy = {}, MANY
    for _ in range(MANY):
        c, _ = listener.accept()
        c.setblocking(False)
        all_[c.fileno()] = [c, b"", b""]
        ep.register(c, select.EPOLLIN)
    out = 0
    while busy:
        for fd, ev in ep.poll(20):
            c, got, due = all_[fd]
            if ev & select.EPOLLIN:
                part = c.recv(1 << 16)
                if not part:
                    out += path(c) == UTCP or why(c) == "utcp-given-back" if path(c) is not None else 1
                    ep.unregister(c)
                    c.close()
                    busy -= 1
                    continue
                got += part
                while len(got) >= 4 and len(got) >= 4 + (n := int.from_bytes(got[:4], "big")):
                    due += got[4 : 4 + n][::-1]
                    got = got[4 + n :]
            with contextlib.suppress(BlockingIOError):
                due = due[c.send(due) :] if due else due
            all_[fd][1:] = got, due
            ep.modify(c, select.EPOLLIN | (select.EPOLLOUT if due else 0))
    say("all", out >= MANY * 9 // 10)
    s.sendall(b"d")


@case
def client_many(s):
    all_of(s, 1)
    cs = [socket.create_connection((OWN, PORT + 1)) for _ in range(MANY)]
    wrong = 0
    for n in range(30):
        sent = []
        for i, c in enumerate(cs):
            body = pattern(n * MANY + i, 0, (1, 30, 2000, 40_000)[(n + i) % 4])
            c.sendall(len(body).to_bytes(4, "big") + body)
            sent.append(body)
        wrong += sum(all_of(c, len(body)) != body[::-1] for c, body in zip(cs, sent, strict=True))
    say("wrong", wrong)
    for c in cs:
        c.close()
    say(all_of(s, 1))


@case
def server_threads(s):
    """A thread for each connection, in blocking calls."""
    listener = socket.create_server((OWN, PORT + 2), backlog=40)
    s.sendall(b"r")

    def one(c):
        while part := c.recv(1 << 16):
            c.sendall(part)
        c.close()

    threads = []
    for _ in range(40):
        c, _ = listener.accept()
        threads.append(threading.Thread(target=one, args=(c,)))
        threads[-1].start()
    for t in threads:
        t.join(30)
    say("alive", sum(t.is_alive() for t in threads))
    s.sendall(b"d")


@case
def client_threads(s):
    all_of(s, 1)
    wrong = []

    def one(i):
        with socket.create_connection((OWN, PORT + 2)) as c:
            for n in range(200):
                body = pattern(i, n, 1 + (n * 97 + i) % 3000)
                c.sendall(body)
                if all_of(c, len(body)) != body:
                    wrong.append((i, n))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    say("wrong", wrong, all_of(s, 1))


SWITCH = 8_000_000


@case
def server_off_switch(s):
    """Off in the middle, and on again behind that: it stays in the kernel."""
    both_ways(s, 16, 17, SWITCH)
    is_back(s)
    end = time.monotonic() + PATIENCE
    while path(s) is not None and not os.path.exists(ENOUGH):
        if time.monotonic() > end:
            raise TimeoutError("it is not on again")
        time.sleep(0.01)
    both_ways(s, 18, 19, SWITCH)
    if path(s) not in (None, 0):
        raise ValueError(f"on path {path(s)} again: {why(s)}")
    s.sendall(b"d")


@case
def client_off_switch(s):
    both_ways(s, 17, 16, SWITCH)
    both_ways(s, 19, 18, SWITCH)
    say(all_of(s, 1))


# --------------------------------------------------------------------------------- both ends


def serve(name, until):
    MODE["until"] = until
    if name.startswith(("is-refused-by-the-kernel", "is-killed-and-refused")) and until == "out":
        refuse_windows()
    listener = socket.create_server((OWN, PORT), reuse_port=False)
    print("listens", flush=True)
    s, _ = listener.accept()
    s.settimeout(None)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    talk_server(s, until)
    with open(BEGUN, "w"):
        pass
    CASES[name]["server"](s)


def connect(name):
    s = socket.create_connection((OWN, PORT))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.settimeout(60)
    talk_client(s)
    CASES[name]["client"](s)


# -------------------------------------------------------------------------------------- suite

LIB_DIR = os.environ.get("NETACC_LIB_DIR", "target/release")
TMP = os.environ.get("TMP", "/tmp")
# A file that says that the case itself has begun.
BEGUN = f"{TMP}/begun"
# And one that ends a case.
ENOUGH = f"{TMP}/enough"
# One that says that the server sends.
FLOWS = f"{TMP}/flows"


class World:
    """Two namespaces and the pair of devices between them; gone with the processes that hold
    them."""

    def __init__(self):
        self.holders = [subprocess.Popen(["unshare", "-n", "sleep", "infinity"]) for _ in range(2)]
        time.sleep(0.3)
        a, b = self.holders
        self.run(0, "ip", "link", "add", "nu0", "type", "veth", "peer", "name", "nu1", "netns", str(b.pid))
        for side, device, address in ((0, "nu0", OWN), (1, "nu1", PEER)):
            for words in (f"addr add {address}/24 dev {device}", f"link set {device} up", "link set lo up"):
                self.run(side, "ip", *words.split())

    def command(self, side, *command):
        return ["nsenter", "-t", str(self.holders[side].pid), "-n", *command]

    def run(self, side, *command):
        subprocess.run(self.command(side, *command), check=True, timeout=20)

    def end(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()


def environment(library):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NACC_", "LD_PRELOAD"))}
    if library:
        env |= {"LD_PRELOAD": f"{LIB_DIR}/libnetacc_preload.so", "NACC_PATHS": "utcp", "NACC_LOG_PATH": f"{TMP}/netacc.log"}
    return env


def device_down(_server, world):
    time.sleep(0.3)
    world.run(0, "ip", "link", "set", "nu0", "down")
    time.sleep(0.7)
    world.run(0, "ip", "link", "set", "nu0", "up")


def mtu(_server, world):
    time.sleep(0.1)
    world.run(0, "ip", "link", "set", "nu0", "mtu", "1300")


def run_case(world, name, library, meanwhile=None, as_whom=()):
    """What both ends say, and how the server ended."""
    me = [sys.executable, os.path.abspath(__file__)]
    until = "out" if library and not as_whom else "count"
    for file in (BEGUN, ENOUGH, FLOWS):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)
    server = subprocess.Popen(world.command(0, *as_whom, *me, "server", name, until), env=environment(library),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline() != "listens\n":
            raise RuntimeError(server.communicate(timeout=20)[1])
        client = subprocess.Popen(world.command(1, *me, "client", name), env=environment(False), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        try:
            if meanwhile:
                end = time.monotonic() + PATIENCE
                while not os.path.exists(BEGUN) and time.monotonic() < end:
                    time.sleep(0.01)
                meanwhile(server, world)
            theirs = client.communicate(timeout=90)
        finally:
            client.kill()
            client.wait()
        ours = server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()
    return {"client": theirs, "client's end": client.returncode, "server": ours, "server's end": server.returncode}


def is_whole(name, plain):
    """Two ends that fail alike show nothing: this one has to end as the case says."""
    killed = -signal.SIGKILL if name.startswith("is-killed") else 0
    if (plain["client's end"], plain["server's end"]) != (0, killed):
        raise RuntimeError(f"without the library: {plain}")
    return plain


def differs(plain, ours):
    return {what: (plain[what], ours[what]) for what in plain if plain[what] != ours[what]}


def ss(pid, *words):
    done = subprocess.run([f"{LIB_DIR}/netacc_ss", "--json", *words, str(pid)], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}


def switch(server, value):
    done = subprocess.run([f"{LIB_DIR}/netacc", "cfg", "set", "NACC_ENABLE_RDMA_DEFAULT", value, "-p", str(server.pid)],
                          capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)


def switch_off(server, _world):
    time.sleep(0.1)
    switch(server, "0")


def switch_off_and_on(server, world):
    switch_off(server, world)
    until(lambda: ss(server.pid, "--path", "tcp").get("sockets"), "it is not given back")
    switch(server, "1")
    open(ENOUGH, "w").close()


def report(verdict, name, detail=""):
    print(verdict, name, str(detail).replace("\n", "\r").replace("\t", " "), sep="\t", flush=True)


def left_behind(world):
    """What is in the kernel on the server's device that was not there before."""
    links = subprocess.run(world.command(0, "ip", "-d", "link", "show", "nu0"), capture_output=True, text=True).stdout
    filters = subprocess.run(world.command(0, "tc", "filter", "show", "dev", "nu0", "ingress"), capture_output=True,
                             text=True).stdout
    keepers = subprocess.run(["pgrep", "-f", "netacc utcp-keeper"], capture_output=True, text=True).stdout.split()
    return [line for line in links.splitlines() if "prog/" in line] + filters.splitlines() + keepers


def suite(chosen):
    world = World()
    try:
        for name in sorted(CASES):
            if name == "packets-are-lost" or (chosen and not any(name.startswith(c) for c in chosen)):
                continue
            meanwhile = {"off-switch": switch_off_and_on, "device-goes-down": device_down,
                         "waits-while-the-device-is-down": device_down, "mtu-is-lowered": mtu,
                         "is-killed-and-refused-behind-losses": kill_behind_losses}.get(name)
            rounds = ROUNDS if name.startswith(("streams", "is-killed", "off-switch")) else 1
            try:
                plain = is_whole(name, run_case(world, name, False, meanwhile if meanwhile is device_down else None))
                for _ in range(rounds):
                    difference = differs(plain, run_case(world, name, True, meanwhile))
                    if difference:
                        break
            except Exception as e:  # noqa: BLE001
                difference = repr(e)
            if name == "mtu-is-lowered":
                world.run(0, "ip", "link", "set", "nu0", "mtu", "1500")
            if name == "is-killed-and-refused-behind-losses":
                answers_at_most_every(world, 500)
            if difference:
                text = difference if isinstance(difference, str) else json.dumps(difference, indent=1)
                report("failed", name, text)
            else:
                report("ok", name)
        if not chosen or "losses" in chosen:
            losses(world)
        if not chosen or "privilege" in chosen:
            privileges(world)
        if not chosen:
            end = time.monotonic() + 5
            while (left := left_behind(world)) and time.monotonic() < end:
                time.sleep(0.1)
            report("failed" if left else "ok", "nothing-is-left", left or "")
    finally:
        world.end()


def traced(pid, *events):
    """What a running server's trace says of its connections: those events, in their order."""
    done = subprocess.run([f"{LIB_DIR}/netacc", "trace", "show", "--json", "-p", str(pid)], capture_output=True, text=True,
                          timeout=30)
    all_ = json.loads(done.stdout) if done.returncode == 0 and done.stdout else []
    rings = [ring["events"] for trace in all_ for ring in trace["connections"]]
    return [e for ring in rings for e in ring if e["event"] in events]


def until(look, what):
    end = time.monotonic() + PATIENCE
    while not (seen := look()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)
    return seen


def loses(world, is_lost):
    """What the server sends goes to nobody, or to the client again."""
    links = json.loads(subprocess.run(world.command(1, "ip", "-j", "link", "show", "nu1"), capture_output=True, text=True,
                                      check=True, timeout=20).stdout)
    to = "02:00:00:00:00:01" if is_lost else links[0]["address"]
    world.run(0, "ip", "neigh", "replace", PEER, "lladdr", to, "dev", "nu0", "nud", "permanent")


def answers_at_most_every(world, ms):
    """How often the client's system answers segments that are out of place and have no byte."""
    world.run(1, "sysctl", "-qw", f"net.ipv4.tcp_invalid_ratelimit={ms}")


def kill_behind_losses(server, world):
    """What the server has sent is lost, and it does not get to send it again."""
    answers_at_most_every(world, 60_000)
    until(lambda: os.path.exists(FLOWS), "nothing flows")
    loses(world, True)
    try:
        until(lambda: traced(server.pid, "rto"), "no rto")
        server.send_signal(signal.SIGSTOP)
    finally:
        loses(world, False)
    server.kill()
    tells(None, True)


def losses(world):
    """The trace says what TCP in user space does: out, timeouts, back."""

    def plainly(_server, world):
        loses(world, True)
        time.sleep(0.5)
        loses(world, False)
        open(ENOUGH, "w").close()

    seen = []

    def watched(server, world):
        until(lambda: traced(server.pid, "taken-out"), "no taken-out")
        rows = json.loads(subprocess.run([f"{LIB_DIR}/netacc", "ps", "--json"], capture_output=True, text=True,
                                         timeout=30).stdout)
        paths = [row["open"] for row in rows if row["pid"] == server.pid]
        if [paths[0][of] for of in ("tcp", "utcp")] != [0, 1]:
            raise ValueError(f"netacc ps: {paths}")
        loses(world, True)
        try:
            until(lambda: traced(server.pid, "rto"), "no rto")
        finally:
            loses(world, False)
        switch_off(server, world)
        until(lambda: traced(server.pid, "given-back"), "no given-back")
        seen.extend(traced(server.pid, "taken-out", "rto", "given-back", "sent"))
        open(ENOUGH, "w").close()

    name = "packets-are-lost"
    try:
        plain = is_whole(name, run_case(world, name, False, plainly))
        difference = differs(plain, run_case(world, name, True, watched))
        order = [e["event"] for e in seen if e["event"] != "sent"]
        back = [e for e in seen if e["event"] == "given-back"]
        if not difference and (order[0], order[-1]) != ("taken-out", "given-back"):
            difference = f"order: {order}"
        if not difference and (back[0]["why"], len(order) > 12) != ("asked", False):
            difference = f"why, or too many: {seen}"
        if not difference and not any(e["event"] == "sent" and e["path"] == "utcp" for e in seen):
            difference = f"nothing was sent by utcp: {seen}"
    except Exception as e:  # noqa: BLE001
        difference = repr(e)
    report("failed" if difference else "ok", "losses-are-traced", difference or "")


def privileges(world):
    """Without one of the capabilities the connection stays in the kernel, and says so."""
    for lacks in ("net_admin", "net_raw", "bpf"):
        name, told = f"no-privilege-{lacks}", []

        def look(server, _world, told=told):
            time.sleep(0.4)
            told.append(json.dumps(ss(server.pid, "-s", "sock")))

        without = ["setpriv", f"--bounding-set=-{lacks}", f"--inh-caps=-{lacks}", "--ambient-caps=-all", "--reuid=0"]
        try:
            plain = is_whole("is-idle", run_case(world, "is-idle", False))
            difference = differs(plain, run_case(world, "is-idle", True, look, without))
        except Exception as e:  # noqa: BLE001
            difference = repr(e)
        if difference or "utcp-no-privilege" not in told[0]:
            report("failed", name, f"{difference} {told}")
        else:
            report("ok", name)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["server", name, until]:
            serve(name, until)
        case ["client", name]:
            connect(name)
        case chosen:
            suite(chosen)
