#!/usr/bin/env python3
"""What `netacc trace` tells of connections, event by event and by name, for trace.sh: two ends
with the library that do one step after the other, and what the trace of each has to say of that.

    events_app.py check [TEST...]           a line for each: `TEST ok`, or `TEST FAILED: why`
    events_app.py obey                      does what it is told on standard input, a line each

No step waits for a time: it waits until the other end is where it has to be.
"""
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from options_app import BIN, PATIENCE, PLAIN, Failed, holds, run_tests, same

TURN = 64


# ---------------------------------------------------------------- an end


def exactly(connection, count):
    got = 0
    while got < count:
        part = connection.recv(min(count - got, 1 << 20))
        if not part:
            return f"the end after {got} of {count}"
        got += len(part)
    return "done"


def ending(connection):
    """What a receive says that has no byte."""
    try:
        return "bytes" if connection.recv(1) else "eof"
    except OSError as error:
        return f"errno {error.errno}"


def wait_in(how, connection):
    if how == "poll":
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return poll.poll()
    with select.epoll() as events:
        events.register(connection, select.EPOLLIN)
        return events.poll()


def pass_on(connection):
    """A copy of the descriptor goes to somebody without the library: here nobody takes it."""
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [connection.fileno()])
    ours.close()
    theirs.close()


def obey():
    """listen, accept, connect PORT; send N, receive N; ends (what a receive says that has no byte);
    wait poll|epoll; pass; shutdown, close, reset; bye."""
    listener = connection = None
    for line in sys.stdin:
        answer = "done"
        # (Who hangs ends.)
        signal.alarm(PATIENCE)
        match line.split():
            case ["listen"]:
                listener = socket.create_server(("127.0.0.1", 0))
                answer = listener.getsockname()[1]
            case ["accept"]:
                connection = listener.accept()[0]
            case ["connect", port]:
                connection = socket.create_connection(("127.0.0.1", int(port)))
            case ["send", count]:
                connection.sendall(bytes(int(count)))
            case ["receive", count]:
                answer = exactly(connection, int(count))
            case ["ends"]:
                answer = ending(connection)
            case ["wait", how]:
                wait_in(how, connection)
            case ["pass"]:
                pass_on(connection)
            case ["shutdown"]:
                connection.shutdown(socket.SHUT_WR)
            case ["reset"]:
                linger = (1).to_bytes(4, sys.byteorder) + bytes(4)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.close()
            case ["close"]:
                connection.close()
            case ["bye"]:
                break
        signal.alarm(0)
        print(answer, flush=True)
    print("done", flush=True)


class End:
    """A process with the library, with these options."""

    def __init__(self, folder, options):
        given = {"NACC_LOG_PATH": f"{folder}/log", "NACC_CONF": "/dev/null", "NACC_PATHS": "shm"}
        preload = {"LD_PRELOAD": str(BIN / "libnetacc_preload.so")}
        self.process = subprocess.Popen([sys.executable, "-B", __file__, "obey"], env=PLAIN | preload | given | options,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.sent = self.received = 0
        # Its connections that are over.
        self.before = 0

    def ask(self, words):
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def answer(self):
        answer = self.process.stdout.readline().strip()
        holds("it has ended", answer)
        return answer

    def tell(self, words):
        self.ask(words)
        return self.answer()

    def send(self, other, count):
        """So many bytes to the other end, which takes them all."""
        self.ask(f"send {count}")
        same("what the other end receives", "done", other.tell(f"receive {count}"))
        self.answer()
        self.sent += count
        other.received += count

    def stands_still(self):
        states = (stat.read_text().rsplit(")", 1)[1].split()[0] for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"))
        return all(state == "T" for state in states)

    def trace(self):
        """All that its trace has."""
        words = [BIN / "netacc", "trace", "show", "--json", "-p", str(self.pid)]
        said = subprocess.run(words, env=PLAIN, capture_output=True, text=True)
        # (Another process may have had its number, and left a trace.)
        traces = json.loads(said.stdout) if not said.returncode else [{"began_unix_ns": 0, "connections": []}]
        return max(traces, key=lambda trace: trace["began_unix_ns"])

    def port(self):
        """That its newest connection came from."""
        last = max(self.trace()["connections"], key=lambda c: c["number"])
        return last["local"].rsplit(":", 1)[1]

    def events(self):
        """Of its connection, the newest."""
        last = max(self.trace()["connections"], key=lambda c: c["number"], default={"number": 0})
        return last["events"] if last["number"] > self.before else []

    def own(self):
        """Of the process itself."""
        return next((c["events"] for c in self.trace()["connections"] if not c["number"]), [])

    def of(self, name):
        return [event for event in self.events() if event["event"] == name]

    def is_on(self, path):
        words = [BIN / "netacc_ss", "--json", "-s", "sock", str(self.pid)]
        said = subprocess.run(words, env=PLAIN, capture_output=True, text=True)
        found = json.loads(said.stdout)["sockets"] if not said.returncode else []
        return [(s["tx_path"], s["rx_path"]) for s in found] == [(path, path)]

    def configure(self, name, value):
        words = [BIN / "netacc", "cfg", "set", name, str(value), "-p", str(self.pid)]
        said = subprocess.run(words, env=PLAIN, capture_output=True, text=True)
        same(f"{name}={value}: {said.stdout}{said.stderr}", 0, said.returncode)


class Pair:
    """The one that connects, and the one that accepts, with a connection. Of a process's first one
    the trace lacks how it came to be used, as the file is made for it: here that is another."""

    def __init__(self, ready=None, **options):
        self.folder, self.ready = tempfile.TemporaryDirectory(), ready or Pair.is_traced_there
        self.client, self.server = (End(self.folder.name, options) for _ in range(2))
        self.port = self.server.tell("listen")
        self.connect()
        self.accelerate()
        for end in self.ends():
            end.tell("close")
            end.before = max((c["number"] for c in end.trace()["connections"]), default=0)
            end.sent = end.received = 0
        self.connect()

    def connect(self):
        self.client.tell(f"connect {self.port}")
        self.server.tell("accept")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for end in self.client, self.server:
            end.process.kill()
            end.process.wait()
            for file in Path("/dev/shm").glob(f"netacc-trace.*.{end.pid}"):
                file.unlink()
        self.folder.cleanup()

    def ends(self):
        return self.client, self.server

    def turn(self):
        self.client.send(self.server, TURN)
        self.server.send(self.client, TURN)

    def until(self, is_so, what, step=None):
        end = time.monotonic() + PATIENCE
        while not (found := is_so()):
            if time.monotonic() > end:
                raise Failed(f"not within {PATIENCE} s: {what}; {[one.events() for one in self.ends()]}")
            step() if step else time.sleep(0.01)
        return found

    def accelerate(self):
        """Used until both ends have left TCP, and are traced."""
        self.until(lambda: all(map(self.ready, self.ends())), "both ends are on shared memory", self.turn)
        return self

    @staticmethod
    def is_traced_there(end):
        return end.is_on("shm") and end.of("promoted")

    def stops(self, end):
        """SIGSTOP, until all of its threads stand still."""
        end.process.send_signal(signal.SIGSTOP)
        self.until(end.stands_still, "it stands still")


# ---------------------------------------------------------------- what their traces say

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


# What says nothing of how far a connection has come.
BESIDE = {"sent", "received", "reason", "sleep", "wake", "doorbell", "full"}


def stages(end):
    """The events of its connection that say how far it has come, in their order."""
    words = lambda event: [str(event[field]) for field in ("side", "how") if field in event]
    return [" ".join([event["event"], *words(event)]) for event in end.events() if event["event"] not in BESIDE]


def come_in_order(end, *groups):
    """Its stages are these, each once; those of one group in any order among themselves."""
    found, is_noted = stages(end), lambda name: name == "noted"
    # (An end that its peer has found before it is used itself notes no use, or later.)
    holds(f"noted once at most: {found}", sum(map(is_noted, found)) <= 1)
    rest, got = [name for name in found if not is_noted(name)], []
    for group in groups:
        got.append(sorted(rest[: len(group)]))
        rest = rest[len(group) :]
    same("the stages", [sorted(group) for group in groups] + [[]], got + [rest])


def moves_add_up(end):
    """Each direction left TCP, and went back, at the byte that the events before it come to, and
    moved on that path alone in between; together they say all that has moved."""
    position, path = {"send": 0, "receive": 0}, {"send": "tcp", "receive": "tcp"}
    for event in end.events():
        side = {"sent": "send", "received": "receive"}.get(event["event"]) or event.get("side")
        if event["event"] in ("sent", "received"):
            same(f"the path of {event}", path[side], event["path"])
            position[side] += event["bytes"]
        elif event["event"] in ("promoted", "demoted"):
            same(f"where {event} happens", position[side], event["offset"])
            path[side] = "shm" if event["event"] == "promoted" else "tcp"
    same("all that has moved", {"send": end.sent, "receive": end.received}, position)


def offset(end, name, side):
    (event,) = (event for event in end.of(name) if event["side"] == side)
    return event["offset"]


def when(end, name):
    (event,) = end.of(name)
    return event["ns"]


@test
def off_and_shut_down():
    """Bytes, the off-switch, bytes, a shutdown, and both ends close: each end's trace has each
    step, in its order, at its byte, and by whom."""
    with Pair() as both:
        client, server = both.accelerate().ends()
        client.send(server, 4321)
        client.configure("NACC_ENABLE_RDMA_DEFAULT", 0)
        sent, sent_back = client.sent, server.sent
        # (The direction of who has nothing to read goes back with the next byte.)
        client.send(server, 777)
        both.until(lambda: all(end.is_on("tcp") for end in both.ends()), "both ends are back on TCP")
        client.tell("shutdown")
        same("what the server is told", "eof", server.tell("ends"))
        server.tell("close")
        same("what the client is told", "eof", client.tell("ends"))
        client.tell("close")
        agreed = ["offered"], ["attached"], ["promoted send", "promoted receive"], ["demoted send", "demoted receive"]
        come_in_order(client, ["connected"], *agreed, ["shutdown write"], ["eof"], ["closed"])
        come_in_order(server, ["accepted"], *agreed, ["eof"], ["closed"])
        holds("nobody has noted the use", client.of("noted") + server.of("noted"))
        for end in both.ends():
            moves_add_up(end)
        for here, there, count in (client, server, sent), (server, client, sent_back):
            for name in "promoted", "demoted":
                same(f"where it {name}", offset(here, name, "send"), offset(there, name, "receive"))
            same("where it went back", count, offset(here, "demoted", "send"))
            same("its path", {"shm"}, {event["path"] for name in ("offered", "attached", "noted") for event in here.of(name)})
            same("its peer", there.pid, here.of("attached")[0]["peer_pid"])
        same("why at the client", ["disabled-by-config"], [e["reason"] for e in client.of("reason")][-1:])
        same("why at the server", ["peer-asked-for-tcp"], [e["reason"] for e in server.of("reason")][-1:])
        # Who ended it first, and who closed it first.
        steps = (client, "shutdown"), (server, "eof"), (server, "closed"), (client, "eof"), (client, "closed")
        times = [when(*step) for step in steps]
        same("the order of the ends", sorted(times), times)


@test
def passed_for_good():
    """A copy of the descriptor goes to another process: it leaves, and is the kernel's alone."""
    with Pair() as both:
        client, server = both.accelerate().ends()
        client.tell("pass")
        both.turn()
        agreed = ["offered"], ["attached"], ["promoted send", "promoted receive"]
        back = ["demoted send", "demoted receive"]
        come_in_order(client, ["connected"], *agreed, ["leaves"], back, ["plain"])
        come_in_order(server, ["accepted"], *agreed, back)
        for name in "leaves", "plain":
            same(f"why it {name}", ["passed-by-scm-rights"], [event["reason"] for event in client.of(name)])
            same(f"{name} at the server", [], server.of(name))
        same("nobody else may serve the ring", 1, client.of("leaves")[0]["strict"])
        for end in both.ends():
            same("where it went back", end.sent - TURN, offset(end, "demoted", "send"))


def endings(end):
    return [(event["event"], event.get("errno")) for event in end.events() if event["event"] in ("eof", "error", "peer-gone", "closed", "shutdown")]


@test
def ends():
    """The peer closes, with nothing unread; or resets."""
    for how, told, name, errno in ("close", "eof", "eof", None), ("reset", "errno 104", "error", 104):
        with Pair() as both:
            client, server = both.accelerate().ends()
            server.tell(how)
            same(f"{how}: what the client is told", told, client.tell("ends"))
            same(f"{how}: the client's end", [(name, errno)], endings(client))
            same(f"{how}: the server's end", [("closed", None)], endings(server))


@test
def peer_gone():
    """The peer is killed, and has not read all: the kernel would have reset."""
    with Pair() as both:
        client, server = both.accelerate().ends()
        client.tell("send 100")
        server.process.kill()
        server.process.wait()
        same("what the client is told", "errno 104", client.tell("ends"))
        same("the client's end", [("peer-gone", None), ("error", 104)], endings(client))
        same("the server's end", [], endings(server))


@test
def broken_off():
    """It goes to another process, its peer stands still, and bytes in the ring cannot follow: an
    error that both ends see. The trace of who broke it off stays when that ends in order."""
    with Pair() as both:
        client, server = both.accelerate().ends()
        server.tell("send 100")
        both.stops(server)
        try:
            client.tell("pass")
        finally:
            server.process.send_signal(signal.SIGCONT)
        same("why it left", ["passed-by-scm-rights"], [event["reason"] for event in client.of("leaves")])
        # (The other end may find out by itself that what it has sent cannot follow, or is told.)
        same("broken off", 1, len(client.of("broken-off")))
        same("corrupt", [], client.of("corrupt") + server.of("corrupt"))
        # (What came before can be read.)
        same("what came", "done", client.tell("receive 100"))
        same("what both are told", ("errno 104", "errno 104"), (client.tell("ends"), server.tell("ends")))
        client.tell("bye")
        client.process.wait(PATIENCE)
        left = client.trace()
        same("what is left", ("exited", 1), (left.get("state"), left.get("troubles")))
        same("broken off, of what is left", 1, len(client.of("broken-off")))
        same("the last of the process", "exit", client.own()[-1]["event"])


@test
def sleeps_and_wakes():
    """Who waits sleeps, and is woken by the other end's doorbell: in a receive, poll and epoll."""
    with Pair(NACC_POLL_MS="0") as both:
        client, server = both.accelerate().ends()
        for words, of, names in (
            ("receive 10", client.events, ("sleep", "wake")),
            ("wait poll", client.own, ("sleep-in-poll", "wake-in-poll")),
            ("wait epoll", client.own, ("sleep-in-set", "wake-in-set")),
        ):
            named = lambda: [event for event in of() if event["event"] in names]
            slept, rang = len(named()), len(server.of("doorbell"))
            client.ask(words)
            both.until(lambda: len(named()) > slept and named()[-1]["event"] == names[0], f"{words}: it sleeps")
            server.tell("send 10")
            same(words, "done", client.answer())
            (last, woken), doorbells = named()[-2:], server.of("doorbell")
            same("the last", list(names), [last["event"], woken["event"]])
            same(f"{words}: doorbells", rang + 1, len(doorbells))
            holds(f"{words}: {last}, {doorbells[-1]}, {woken}", last["ns"] < doorbells[-1]["ns"] < woken["ns"])
            if words == "receive 10":
                same("why it wakes", ("receive", "receive", "news"), (last["side"], woken["side"], woken["woke"]))
            else:
                same("how many are ready", 1, woken["events"])
                same("those that it waits for", 1, last.get("fds", 1))
                client.tell("receive 10")
            same("the server has not slept meanwhile", [], server.own())


def counts(*ends, of=()):
    words = [BIN / "netacc", "trace", "histogram", "--json", "-p", ",".join(str(end.pid) for end in ends), *of]
    said = subprocess.run(words, env=PLAIN, check=True, capture_output=True, text=True)
    for kind in (kinds := json.loads(said.stdout)):
        same(f"the sum of {kind}", kind["count"] or 0, sum(bucket["count"] for bucket in kind["buckets"]))
    return {kind["name"]: kind["count"] for kind in kinds}


@test
def histogram():
    """Each of its kinds counts something, once that has happened; those of each call only where
    calls are recorded."""
    calls = {"send to receive", "answer", "serve"}
    for level in "1", "2":
        with Pair(NACC_POLL_MS="0", NACC_TRACE=level) as both:
            client, server = both.accelerate().ends()
            client.ask("receive 10")
            both.until(lambda: client.events()[-1]["event"] == "sleep", "it sleeps")
            server.tell("send 10")
            client.answer()
            both.turn()
            found = counts(client, server)
            # The connection before counts as well, but not where the port of this one is asked for.
            this = counts(client, server, of=("--port", client.port()))
            none = counts(client, server, of=("--port", "1"))
            kinds = {"doorbell to wake", "sleep to wake", "in use to promotion"} | calls
            same("its kinds", kinds, set(found))
            for name in kinds:
                if level == "1" and name in calls:
                    same(name, [None] * 3, [found[name], this[name], none[name]])
                else:
                    holds(f"{name}: {found[name]} with NACC_TRACE={level}", found[name])
                    holds(f"{name}: {this[name]} of {found[name]}, of one port", 0 < this[name] <= found[name])
                    same(f"{name}, of no port", 0, none[name] or 0)


class Follower:
    """`netacc trace show --follow` of these ends, and what it has said."""

    def __init__(self, both, *options):
        self.file = Path(both.folder.name) / "followed"
        pids = ",".join(str(end.pid) for end in both.ends())
        words = [BIN / "netacc", "trace", "show", "--follow", *options, "-p", pids]
        with self.file.open("w") as out:
            self.process = subprocess.Popen(words, env=PLAIN, stdout=out, stderr=out)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def lines(self):
        return self.file.read_text().splitlines()

    def has(self, end, text):
        """Whether a line is of this end, of the process or its newest connection, and says that."""
        number = max((c["number"] for c in end.trace()["connections"]), default=0)
        of = f" {end.pid} process: ", f" {end.pid} {number} 127.0.0.1:"
        return any(text in line and any(one in line for one in of) for line in self.lines())


@test
def follow():
    """What happens meanwhile is said while it happens, to the last event of each process; then it
    ends by itself."""
    with Pair() as both, Follower(both) as follower:
        client, server = both.ends()
        shows = lambda end, text: both.until(lambda: follower.has(end, text), f"followed: {text}: {follower.lines()[-20:]}")
        both.accelerate()
        for text in f": promoted send offset {offset(client, 'promoted', 'send')}", f": attached shm slot 0 peer_pid {server.pid}":
            shows(client, text)
        # (None of what follows has happened: what it says it has not said before.)
        for end, text, step in (
            (client, f": demoted send offset {client.sent}", lambda: client.configure("NACC_ENABLE_RDMA_DEFAULT", 0)),
            (client, ": shutdown write", lambda: client.tell("shutdown")),
            (server, ": eof", lambda: server.tell("ends")),
        ):
            holds(f"{text}: not yet", not follower.has(end, text))
            step()
            shows(end, text)
        for end in both.ends():
            same("it follows", None, follower.process.poll())
            same("it ends", "done", end.tell("bye"))
            end.process.wait(PATIENCE)
            shows(end, " process: exit")
        same("its status", 0, follower.process.wait(PATIENCE))


# Each call is an event, and none that took long keeps others beside the ring.
EACH_CALL = {"NACC_TRACE": "2", "NACC_TRACE_SLOW_MS": "0"}


@test
def follow_a_gap():
    """More events between two looks than a connection keeps: it is said how many are lost, and each
    of the others is said once."""
    with Pair(**EACH_CALL) as both, Follower(both, "--json") as follower:
        client, server = both.accelerate().ends()
        said = lambda: [json.loads(line) for line in follower.lines() if line.endswith("}")]
        of = lambda number: [one for one in said() if (one["pid"], one["connection"]) == (client.pid, number)]
        number = max(c["number"] for c in client.trace()["connections"])
        lost = lambda: sum(one.get("events_not_kept", 0) for one in of(number))
        told = lambda: sum(one.get("events_not_kept", 1) for one in of(number))
        recorded = lambda: next(c["recorded"] for c in client.trace()["connections"] if c["number"] == number)
        begun = both.until(lambda: told() == recorded() and told(), "it has said all")
        # (It may have begun late.)
        before = lost()
        follower.process.send_signal(signal.SIGSTOP)
        try:
            both.until(lambda: recorded() > begun + 1000, "much happens", lambda: [both.turn() for _ in range(50)])
        finally:
            follower.process.send_signal(signal.SIGCONT)
        all_of_it = recorded()
        both.until(lambda: told() >= all_of_it, "it has caught up")
        same("what is said, and what is lost", all_of_it, told())
        # (A ring keeps its first 24 and its last hundred.)
        same("what is lost", all_of_it - 100 - max(begun, 24), lost() - before)
        times = [one["ns"] for one in of(number) if "ns" in one]
        same("in order", sorted(times), times)
    # And in words.
    with Pair(**EACH_CALL) as both, Follower(both) as follower:
        client, server = both.accelerate().ends()
        both.until(lambda: follower.has(client, "promoted"), "it follows")
        gaps = lambda: sum("events are not kept)" in line for line in follower.lines())
        before = gaps()
        follower.process.send_signal(signal.SIGSTOP)
        try:
            [both.turn() for _ in range(300)]
        finally:
            follower.process.send_signal(signal.SIGCONT)
        both.until(lambda: gaps() > before, "the gap is told")


@test
def trace_enable():
    """Another name for NACC_TRACE: of a process that was started without a trace, and has one from
    then on; and off again, where all that was recorded stays."""
    named = [BIN / "netacc", "cfg", "get", "trace.enable"]
    get = lambda *words, **given: subprocess.run([*named, *words], env=PLAIN | {"NACC_CONF": "/dev/null"} | given,
                                                 check=True, capture_output=True, text=True).stdout.strip()
    same("here", ["1", "0"], [get(), get(NACC_TRACE="0")])
    begun = time.time_ns()
    with Pair(ready=lambda end: end.is_on("shm"), NACC_TRACE="0") as both:
        client, server = both.accelerate().ends()
        # (Their names say when they were made: another process may have had that number.)
        is_new = lambda file: int(file.name.split(".")[1], 16) >= begun
        files = lambda: [[*filter(is_new, Path("/dev/shm").glob(f"netacc-trace.*.{end.pid}"))] for end in both.ends()]
        value = lambda: get("-p", str(client.pid))
        recorded = lambda: sum(c.get("recorded", 0) for c in client.trace()["connections"])
        same("at the start", "0", value())
        for _ in range(50):
            both.turn()
        same("files with 0", [[], []], files())
        client.configure("trace.enable", 1)
        same("then", "1", value())
        both.until(client.events, "it is traced", both.turn)
        same("how it begins", "found", client.events()[0]["event"])
        both.until(lambda: client.of("sent") and client.of("received"), "what moves is recorded", both.turn)
        holds("the trace of one, and not of the other", files()[0] and not files()[1])
        client.configure("trace.enable", 0)
        same("off", "0", value())
        before, events = recorded(), client.events()
        both.turn()
        # (What would be an event at once.)
        client.tell("shutdown")
        same("what the server is told", "eof", server.tell("ends"))
        same("recorded while it is off", (before, events), (recorded(), client.events()))
        client.configure("trace.enable", 1)
        server.tell("close")
        same("what the client is told", "eof", client.tell("ends"))
        same("recorded again", [("eof", None)], endings(client))


# ----------------------------------------------------------------


def check(*wanted):
    return run_tests(TESTS, wanted=wanted)


if __name__ == "__main__":
    sys.exit({"check": check, "obey": obey}[sys.argv[1]](*sys.argv[2:]))
