"""How long a connection is `negotiating` whose other end has no library, or has it turned off.

verdict_app.py LIBRARY DIRECTORY: for each side, way to wait and pace, an echo server and a client,
at the same time as others. By the library's own times: its log says when the search for the peer
began, and when the verdict came. A line for each, `ok NAME MS` or `FAILED NAME WHY`.

A machine that stood still tells nothing of the library: a thread that wakes every 5 ms knows for
how long it did, and a verdict that came late by no more than that is asked for again.
"""
import datetime
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

TIMES = 5
# Requests, and the pause behind each. The first is one ping in 200 ms: 29 in 6 s.
PACES = {"few": (12, 0.2), "seldom": (5, 0.6), "many": (600, 0.002)}
WAITS = ("block", "poll", "epoll", "select", "dontwait")
MESSAGE = 4
# One-way: who only sends, and whom is only sent to.
ONE_WAY = ("sends", "receives")


def await_data(how, connection):
    if how in ("poll", "dontwait"):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.poll()
    elif how == "select":
        select.select([connection], [], [])


def receive(how, connection, events):
    if how == "epoll":
        events.poll()
    await_data(how, connection)
    return connection.recv(MESSAGE, socket.MSG_DONTWAIT if how == "dontwait" else 0)


def ready(how, connection):
    """What of the waits is set up once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if how in ("poll", "epoll", "select"):
        connection.setblocking(False)
    events = select.epoll() if how == "epoll" else None
    if events:
        events.register(connection.fileno(), select.EPOLLIN)
    return events


def server(how):
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    events = ready(how, connection)
    if how == "receives":
        # Of the client, which is only sent to.
        for _ in sys.stdin:
            connection.send(b"news")
        return
    while data := receive(how, connection, events):
        if how != "sends":
            connection.send(data)


def client(how, port, count, pause):
    connection = socket.create_connection(("127.0.0.1", port))
    events = ready(how, connection)
    for _ in range(count):
        if how != "receives":
            connection.send(b"ping")
        if how == "two":
            connection.send(b"pong")
        for _ in range({"sends": 0, "two": 2}.get(how, 1)):
            receive(how, connection, events)
        time.sleep(0 if how == "receives" else pause)
    print("used", flush=True)
    sys.stdin.read()


class Stood:
    """For how long the machine stood still."""

    def __init__(self):
        self.longest = 0.0
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        before = time.monotonic()
        while True:
            time.sleep(0.005)
            now = time.monotonic()
            self.longest = max(self.longest, now - before - 0.005)
            before = now


SAID = re.compile(r"^(\S+)Z DEBUG \[(\d+)\] fd \d+ \S+ > \S+: ([a-z-]+): ", re.M)


def judged(log, pid):
    """For how long it was `negotiating`, in s (`None`: it still is), and the reasons."""
    with open(log, encoding="utf-8") as file:
        said = [m for m in SAID.findall(file.read()) if m[1] == str(pid)]
    reasons = [(datetime.datetime.fromisoformat(at), reason) for at, _, reason in said]
    spans = [b[0] - a[0] for a, b in zip(reasons, reasons[1:]) if a[1] == "negotiating"]
    names = [reason for _, reason in reasons]
    still = names[-1:] == ["negotiating"]
    return None if still else max([s.total_seconds() for s in spans], default=0.0), names


def start(words, environment):
    me = [sys.executable, "-B", os.path.abspath(__file__)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(me + words, env={**os.environ, **environment}, text=True, **pipes)


def once(tools, side, how, pace):
    """How long, and the reasons; as `judged`."""
    library, place = tools
    count, pause = PACES[pace]
    log = f"{place}/verdict-{side}-{how}-{pace}.log"
    has = {"LD_PRELOAD": library, "NACC_LOG_LEVEL": "0", "NACC_LOG_PATH": log}
    other = {**has, "NACC_ENABLE_RDMA_DEFAULT": "0"} if side.endswith("off") else {}
    ends = (has, other) if side.startswith("server") else (other, has)
    one = start(["server", "block" if how == "two" else how], ends[0])
    try:
        port = one.stdout.readline().strip()
        two = start(["client", how, port, str(count), str(pause)], ends[1])
        try:
            if how == "receives":
                for _ in range(count):
                    one.stdin.write("\n")
                    one.stdin.flush()
                    time.sleep(pause)
            two.stdout.readline()
            time.sleep(1.2)
            return judged(log, (one if side.startswith("server") else two).pid)
        finally:
            two.kill()
            two.communicate()
    finally:
        one.kill()
        one.communicate()


def test(tools, side, how, pace):
    name = f"{side}-{how}-{pace}"
    expected = "peer-without-library" if side.startswith("server") else "listener-without-library"
    for _ in range(TIMES):
        stood = Stood()
        took, reasons = once(tools, side, how, pace)
        if took is None or reasons[-1:] != [expected]:
            return f"FAILED {name} {reasons}"
        if took <= 1:
            return f"ok {name} {1000 * took:.0f} ms"
        if took > 1 + stood.longest:
            return f"FAILED {name} {took:.3f} s, and the machine stood still for {stood.longest:.3f} s"
    return f"skipped {name} the machine stands still"


def main(tools):
    sides = ("server", "server-off", "client", "client-off")
    hows = {s: WAITS + ONE_WAY + (("two",) if s.startswith("client") else ()) for s in sides}
    all_of = [(s, how, pace) for s in sides for how in hows[s] for pace in PACES]
    # (Five calls one way are not yet worth a search.)
    all_of = [(s, how, pace) for s, how, pace in all_of if how not in ONE_WAY or pace != "seldom"]
    told = []
    places = threading.Semaphore(12)

    def run(which):
        with places:
            told.append(test(tools, *which))

    threads = [threading.Thread(target=run, args=(which,)) for which in all_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("\n".join(sorted(told)))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        server(sys.argv[2])
    elif sys.argv[1] == "client":
        client(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    else:
        main(sys.argv[1:3])
