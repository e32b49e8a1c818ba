#!/usr/bin/env python3
"""Faults in the middle of streams between two kernels; `tests/rdma/faults` runs this in both of
them.

    faults.py server HOW                          does what the client's says, until that ends
    faults.py client HOW SEED N [KIND:SIDE:...]   N faults out of the seed, or these (with a ! at the end: at once, wherever the
                                                  connections are); status 0 when all streams were
                                                  as they should

guest/traffic runs on both sides, with several kinds of connection. A fault hits one side; when it
is over, every connection must move on at both ends. Where both programs live, it must be the same
connections: a stream goes on where it was, whatever path it took. Where one was killed, or its TCP
connection, the other end must see that it has ended, and the client makes others. At the end all
streams are shut down, and each byte that one end has sent the other has received.

A wrong byte ends the program that reads it with status 3, at once.
"""

import collections
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

TOLD, EXCHANGE, TREE, BUILD = Path("/rig/told"), Path("/rig/exchange"), Path("/rig/tree"), "/rig/build"
LOG = f"/rig/exchange/log.{os.environ['ROLE']}"
PORT, LINK_PORTS, PAIR_PORTS = 7000, "27000-27003", "27001-27003"
KINDS = "bspqrBSPQR"
LANES = [1, 4, 16]
# A fault and its part of the plan.
FAULTS = {"kill": 4, "down": 4, "device": 2, "stop": 3, "loss": 3, "silence": 2, "link": 3, "qp": 3, "dark": 2, "hole": 4, "carrier": 2}
# In a hole of RDMA's alone no stream stands still for longer than this; looked at so often. On a
# busy machine a stream stands still without a hole, too, and a question to the other library takes
# long: it is believed that nothing arrives after four of them, one after another, and then each end
# says to the other where the stream goes on. So many times as long as the slowest of our own
# questions over TCP took before and meanwhile, or as a stream stood still before, is not too long.
STALL, LOOK, TURNS = 0.5, 0.02, 10
# The two sides tell each other here that they look, and ask each other there.
TICKS, QUESTIONS = 7999, 7998
# How long streams may need to move on: the kernel's TCP may have doubled its timeouts several
# times, the machine may be busy.
PATIENCE = float(os.environ.get("PATIENCE") or 60)
OPEN, EOF = 0, 1
# The most that guest/traffic sends at once.
CHUNK = 65536


class Wrong(Exception):
    """Something that must not be."""


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise Wrong(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Side:
    """What can be done in this kernel."""

    def __init__(self, role, how):
        self.role = role
        self.accelerate = {"plain": [], "tcp": ["env", "NACC_PATHS=tcp", f"{BUILD}/netacc_run"], "rdma": [f"{BUILD}/netacc_run", "-p"]}[how]
        self.how = how
        self.traffic, self.incarnation, self.files = None, 0, []
        self.deletion = None
        self.watched, self.watchers, self.longest, self.slowest = None, [], 0, 0
        if role == "server":
            threading.Thread(target=self.answer, daemon=True).start()

    # --- the program

    def start(self, seed):
        self.incarnation += 1
        file = f"/tmp/traffic.{self.incarnation}"
        self.files.append(file)
        # One connection on each queue pair, or several; not the same with each device, whose seeds
        # alternate.
        lanes = [str(LANES[seed // 2 % len(LANES)])] if self.how == "rdma" else []
        with open(f"{file}.out", "w", encoding="utf-8") as out:
            self.traffic = subprocess.Popen(
                ["nice", "-n", "19", *self.accelerate, *lanes, "/rig/exchange/traffic", "-r", "-n", str(len(KINDS)), "-k", KINDS, "-s", str(seed), "-f", file,
                 # No number twice, in none of its lives.
                 "-o", str(100 * self.incarnation), self.role, os.environ["SERVER"], str(PORT)], stdout=out, stderr=out,
                env={**os.environ, "NACC_LOG_LEVEL": "1", "NACC_LOG_PATH": LOG})
        if self.role == "server":
            self.until(lambda: run("ss", "-Hltn", f"sport = {PORT}") or self.traffic.poll() is not None, 30)

    @staticmethod
    def until(condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def said(self):
        return Path(f"{self.files[-1]}.out").read_text(encoding="utf-8") if self.files else ""

    def look(self):
        """{connection: [sent, received, send_end, recv_end]} of the running program; its status
        when it has ended."""
        return {"streams": self.streams(self.files[-1]), "status": self.traffic.poll()}

    @staticmethod
    def streams(file):
        found = {}
        with contextlib.suppress(FileNotFoundError), open(file, "rb") as words:
            head = memoryview(words.read(32)).cast("Q")
            entries = memoryview(words.read(40 * head[1])).cast("Q") if len(head) == 4 else []
            for at in range(0, len(entries), 5):
                number, *rest = entries[at:at + 5]
                found[str(number - 1)] = rest
        return found

    def watch(self):
        """From here on it is noted for how long a stream receives nothing, and how long the other
        side's answers take."""
        self.watched, self.longest, self.slowest = threading.Event(), 0, 0
        ticks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ticks.setblocking(False)
        ticks.bind((os.environ[self.role.upper()], TICKS))
        ticks.connect((os.environ["CLIENT" if self.role == "server" else "SERVER"], TICKS))

        def both_ran():
            ran = False
            with contextlib.suppress(OSError):
                ticks.send(b"t")
            with contextlib.suppress(OSError):
                while ticks.recv(1):
                    ran = True
            return ran

        def look():
            still, had = {}, {}
            while not self.watched.wait(LOOK):
                # A look counts as so long, and only if the other side has looked as well: a kernel
                # that has little of a CPU, or none, looks as little.
                ran = LOOK if both_ran() else 0
                for number, (_, received, *ends) in self.streams(self.files[-1]).items():
                    moved = had.get(number) != received or ends != [OPEN, OPEN]
                    had[number], still[number] = received, 0 if moved else still[number] + ran
                self.longest = max([self.longest, *still.values()])
            ticks.close()

        self.watchers = [threading.Thread(target=what, daemon=True) for what in ([look, self.ask] if self.role == "client" else [look])]
        for watcher in self.watchers:
            watcher.start()

    def stood_still(self):
        """The longest time since `watch` for a stream and for an answer, in seconds."""
        self.watched.set()
        for watcher in self.watchers:
            watcher.join()
        return self.longest, self.slowest

    @staticmethod
    def answer():
        """A server for `ask`. Like the libraries' own threads it has what the streams leave of the
        CPU."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with socket.create_server((os.environ["SERVER"], QUESTIONS)) as listener:
            while True:
                asker = listener.accept()[0]
                with asker, contextlib.suppress(OSError):
                    while question := asker.recv(1):
                        asker.sendall(question)

    def ask(self):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        with socket.create_connection((os.environ["SERVER"], QUESTIONS)) as answerer:
            while not self.watched.wait(LOOK):
                asked = time.monotonic()
                answerer.sendall(b"q")
                answerer.recv(1)
                self.slowest = max(self.slowest, time.monotonic() - asked)

    def all_streams(self):
        """Those of all its lives."""
        return {number: stream for file in self.files for number, stream in self.streams(file).items()}

    def on_rdma(self):
        """How many of the open connections are on RDMA, how many there are, and what the others are
        on."""
        if self.how != "rdma":
            return 0, 0, ""
        answer = run(f"{BUILD}/netacc_ss", "--json", "-s", "sock", str(self.traffic.pid), check=False)
        sockets = json.loads(answer)["sockets"] if answer else []
        others = [f"{s['tx_path']}/{s['rx_path']}({s['reason']})" for s in sockets if not s["tx_path"] == s["rx_path"] == "rdma"]
        return len(sockets) - len(others), len(sockets), ", ".join(f"{n} {other}" for other, n in collections.Counter(others).items())

    def reap(self, seconds):
        """The program's status; -9 and a word when it did not end by itself."""
        if not self.until(lambda: self.traffic.poll() is not None, seconds):
            return "hangs"
        return self.traffic.returncode

    def terminate(self):
        self.traffic.send_signal(signal.SIGTERM)

    # --- faults; each returns when it is over

    def kill(self):
        self.traffic.kill()
        self.traffic.wait()

    def stop(self, seconds):
        self.traffic.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.traffic.send_signal(signal.SIGCONT)

    @staticmethod
    def down(seconds):
        run("ip", "link", "set", "net0", "down")
        time.sleep(seconds)
        run("ip", "link", "set", "net0", "up")
        run("ip", "addr", "replace", f"fd00::{os.environ['NUMBER']}/64", "dev", "net0")

    def device(self, seconds):
        """The device goes, and comes again when it is gone: the kernel waits for the programs that
        use it."""
        if self.deletion and self.deletion.is_alive():
            return "still going"

        def replace():
            run("rdma", "link", "del", "rdma0", check=False)
            time.sleep(seconds)
            subprocess.run(["bash", "-c", f"add_device {os.environ['DEVICE']}"], capture_output=True, check=False)

        self.deletion = threading.Thread(target=replace, daemon=True)
        self.deletion.start()
        self.deletion.join(seconds + 2)
        return "still going" if self.deletion.is_alive() else ""

    @staticmethod
    def manager_is_lost():
        """What rxe's connection manager sends while the link is down fails, and nothing brings its
        own queue pair back (6.12)."""
        return "type GSI state ERR" in run("rdma", "resource", "show", "qp", check=False)

    def device_is_back(self):
        self.deletion.join(30)
        if self.deletion.is_alive():
            raise Wrong("a deleted device is not gone 30 s after the end of the program that used it")

    @staticmethod
    def loss(seconds, percent, delay_ms):
        run("tc", "qdisc", "add", "dev", "net0", "root", "netem", "loss", f"{percent}%", "delay", f"{delay_ms}ms", f"{delay_ms // 2}ms")
        time.sleep(seconds)
        run("tc", "qdisc", "del", "dev", "net0", "root")

    def silence(self, seconds):
        """Nothing comes through, and nobody says so."""
        self.loss(seconds, 100, 0)

    def qp(self, seconds):
        """The same for what the queue pairs alone send, and with siw the library's link."""
        self.darken(LINK_PORTS)
        time.sleep(seconds)
        self.lighten()

    def dark(self):
        """The same for the queue pairs alone, until `lighten`: streams move on meanwhile."""
        self.darken(PAIR_PORTS)

    def hole(self, *_):
        """The same, for a time, and perhaps at both sides; `Campaign.hole` sees to that."""
        self.dark()

    @staticmethod
    def lighten():
        run("tc", "qdisc", "del", "dev", "net0", "root")

    @staticmethod
    def darken(siw_ports):
        run("tc", "qdisc", "add", "dev", "net0", "root", "handle", "1:", "prio")
        match = ["dst_port", "4791"] if os.environ["DEVICE"] == "rxe" else None
        for protocol, version in (("ip", 4), ("ipv6", 6)):
            add = ["tc", "filter", "add", "dev", "net0", "parent", "1:", "protocol", protocol, "prio", str(version), "flower"]
            if match:
                run(*add, "ip_proto", "udp", *match, "action", "drop")
            else:
                for end in ("dst_port", "src_port"):
                    run(*add, "ip_proto", "tcp", end, siw_ports, "action", "drop")

    @staticmethod
    def link():
        """The library's own connections break, and with siw those that are queue pairs."""
        low, high = LINK_PORTS.split("-")
        killed = run("ss", "-KHtn", f"( sport >= {low} and sport <= {high} ) or ( dport >= {low} and dport <= {high} )", check=False)
        return f"{len(killed.splitlines())} connections"

    @staticmethod
    def carrier():
        """One of the program's connections breaks."""
        # Of those that are open now: a connection has one end here.
        ports = [line.split()[-1].rsplit(":", 1)[1] if line.split()[-2].endswith(f":{PORT}") else line.split()[-2].rsplit(":", 1)[1]
                 for line in run("ss", "-Htn", "state", "established", f"( sport = {PORT} or dport = {PORT} )").splitlines()]
        if not ports:
            raise Wrong("no connection is open")
        port = sorted(ports)[0]
        run("ss", "-KHtn", f"( sport = {PORT} and dport = {port} ) or ( dport = {PORT} and sport = {port} )", check=False)
        return f"port {port}"

    # --- two that must be found, for the test of the test

    def freeze(self):
        self.traffic.send_signal(signal.SIGSTOP)
        # (On a busy machine its threads go on for a moment.)
        tasks = Path(f"/proc/{self.traffic.pid}/task")
        while not all(") T " in (task / "stat").read_text() for task in tasks.iterdir()):
            time.sleep(0.01)

    def unexpected(self):
        return self.carrier()

    # --- what to look at when something is wrong

    def diagnose(self):
        with open(EXCHANGE / f"diagnosis.{self.role}", "w", encoding="utf-8") as out:
            def note(title, text):
                out.write(f"--- {title}\n{text}\n")
            note("the program said", self.said())
            note("connections: number sent received send_end recv_end", "\n".join(f"{n} {v}" for n, v in self.streams(self.files[-1]).items()))
            pid = str(self.traffic.pid)
            if self.how != "plain":
                note("netacc_ss", run(f"{BUILD}/netacc_ss", "-s", "all", pid, check=False))
                note("netacc.log", run("tail", "-n", "400", LOG, check=False))
            note("threads", run("bash", "-c", f"for t in /proc/{pid}/task/*; do echo $(cat $t/comm) $(cut -d' ' -f3,14,15 $t/stat) $(cat $t/wchan); done", check=False))
            note("sockets", run("ss", "-tnoi", check=False))
            note("queue pairs", run("rdma", "resource", "show", "qp", check=False))
            note("device counters", run("bash", "-c", "grep -H . /sys/class/infiniband/*/ports/1/hw_counters/* /sys/class/infiniband/*/ports/1/gids/* | grep -vE ':0$|:0000:0000:0000:0000:0000:0000:0000:0000$'", check=False))
            note("what the manager has", run("rdma", "resource", "show", "cm_id", check=False))
            note("devices", run("rdma", "link", check=False) + run("ip", "addr", "show", "net0", check=False))

    def stopped(self):
        """The end: whatever is left ends, too."""
        if self.traffic and self.traffic.poll() is None:
            self.traffic.kill()


class Remote:
    """The other kernel's Side: calls are files that the two kernels share."""

    def __init__(self, role):
        self.role, self.calls = role, 0

    def __getattr__(self, name):
        def call(*arguments, **_):
            self.calls += 1
            write(f"call-{self.calls}", [name, arguments])
            return self.answer()
        return call

    def answer(self):
        answer = TOLD / f"answer-{self.calls}"
        while not answer.exists():
            if (TOLD / f"{self.role}-ended").exists():
                raise Wrong(f"the {self.role} ended")
            time.sleep(0.01)
        kind, value = json.loads(answer.read_text(encoding="utf-8"))
        if kind == "wrong":
            raise Wrong(f"{self.role}: {value}")
        return value


def write(name, value):
    (TOLD / f".{name}").write_text(json.dumps(value), encoding="utf-8")
    (TOLD / f".{name}").rename(TOLD / name)


def serve(side):
    number = 0
    while True:
        number += 1
        while not (TOLD / f"call-{number}").exists():
            if (TOLD / "client-ended").exists():
                return
            time.sleep(0.01)
        name, arguments = json.loads((TOLD / f"call-{number}").read_text(encoding="utf-8"))
        try:
            write(f"answer-{number}", ["value", getattr(side, name)(*arguments)])
        except Wrong as wrong:
            write(f"answer-{number}", ["wrong", str(wrong)])


class Campaign:
    """The client's part: faults on both sides, and what must hold behind each."""

    def __init__(self, how, seed):
        self.how, self.seed = how, seed
        self.sides = {"client": Side("client", how), "server": Remote("server")}
        self.dice = random.Random(seed)
        self.begin = time.monotonic()
        self.on_rdma, self.holes = [], []

    def say(self, text):
        print(f"{time.monotonic() - self.begin:7.2f} {text}", flush=True)

    def look(self):
        """Both programs' streams. A program that has ended is an error: nobody has told it to."""
        looks = {role: side.look() for role, side in self.sides.items()}
        for role, look in looks.items():
            if look["status"] is not None:
                raise Wrong(f"the {role}'s program ended with status {look['status']}: {self.sides[role].said()}")
        return {role: look["streams"] for role, look in looks.items()}

    @staticmethod
    def alive(streams):
        """The connections that are open at both ends, by index."""
        here, there = streams["client"], streams["server"]
        return {int(number) % len(KINDS): number for number in here
                if here[number][2:] == [OPEN, OPEN] and number in there and there[number][2:] == [OPEN, OPEN]}

    def moves_on(self, why):
        """Waits until every index has a connection that moves at both ends; the connections."""
        before, end = self.look(), time.monotonic() + PATIENCE
        while True:
            now = self.look()
            alive = self.alive(now)
            still = [f"{KINDS[index]}{index}" for index in range(len(KINDS)) if index not in alive or not all(
                now[role][alive[index]][1] > before[role].get(alive[index], [0, 0])[1] for role in self.sides)]
            if not still:
                return alive
            if time.monotonic() > end:
                raise Wrong(f"{why}: these do not move on within {PATIENCE:g} s: {' '.join(still)}; open at both ends: {len(alive)} of {len(KINDS)}")
            time.sleep(0.05)

    def ended(self, role, numbers, why):
        """Waits until these connections have ended at one end."""
        def gone():
            look = self.sides[role].look()
            if look["status"] is not None:
                raise Wrong(f"{why}: the {role}'s program ended with status {look['status']}: {self.sides[role].said()}")
            return all(any(look["streams"][number][2:]) for number in numbers if number in look["streams"])
        if not Side.until(gone, PATIENCE):
            raise Wrong(f"{why}: the {role} does not see that its connections have ended")

    def accelerated(self, seconds=10):
        """Waits for so long until all connections are on RDMA at both ends; how many are."""
        if self.how != "rdma":
            return 0
        end = time.monotonic() + seconds
        while True:
            found = {role: side.on_rdma() for role, side in self.sides.items()}
            if all(on == of == len(KINDS) for on, of, _ in found.values()):
                return len(KINDS)
            if time.monotonic() > end:
                self.say(f"not on rdma{'' if seconds else ' yet'}: " + "; ".join(f"{role}: {others or of}" for role, (_, of, others) in found.items()))
                return min(on for on, *_ in found.values())
            time.sleep(0.2)

    def pick(self):
        kind = self.dice.choices(list(FAULTS), FAULTS.values())[0]
        side = self.dice.choice(["client", "server"])
        arguments = {
            "down": [self.dice.choice([0.1, 0.5, 3])], "device": [self.dice.choice([0.1, 1])], "stop": [self.dice.choice([0.05, 0.5, 4])],
            "loss": [self.dice.choice([1, 3]), self.dice.choice([2, 10, 30]), self.dice.choice([0, 2, 20])],
            "silence": [self.dice.choice([0.5, 2, 6])], "qp": [self.dice.choice([0.5, 3, 8])],
            "hole": [round(self.dice.choice([0.3, 2, 12]) * self.dice.uniform(0.5, 2), 2), self.dice.choice([0, 1])],
        }.get(kind, [])
        # In the middle of something, not always at the same point of it; and some while connections
        # are still on their way back.
        return kind, side, arguments, self.dice.choice([0, 0.05, 0.5]), self.dice.random() < 0.25

    def stalls(self, seconds):
        """The longest time that a stream stood still meanwhile, at either end, and that an answer
        took."""
        for side in self.sides.values():
            side.watch()
        time.sleep(seconds)
        return map(max, zip(*(side.stood_still() for side in self.sides.values())))

    def hole(self, side, seconds, both):
        """What a side's queue pairs send is lost for so long, or what both sides' do: TCP works, so
        that no stream stands still."""
        hit = list(self.sides.values()) if both else [self.sides[side]]
        usual, before = self.stalls(2)
        for one in hit:
            one.hole()
        longest, meanwhile = self.stalls(seconds)
        for one in hit:
            one.lighten()
        self.holes.append(longest)
        said = f"still for {longest * 1000:.0f} ms, before for {usual * 1000:.0f}; answers took up to {meanwhile * 1000:.0f}, before {before * 1000:.0f}"
        if longest > STALL + TURNS * max(usual, before, meanwhile):
            raise Wrong(f"a stream stood {said}")
        return said

    def fault(self, kind, side, arguments, pause, hurry):
        # (Pairs that were tried in a hole before pause for longer and longer.)
        on = self.accelerated(0 if hurry else 40 if kind == "hole" else 10)
        self.on_rdma.append(on)
        alive = self.alive(self.look()) if hurry else self.moves_on("before the fault")
        time.sleep(pause)
        name = f"{kind} at the {side} {' '.join(map(str, arguments))}".strip()
        hit = self.sides[side]
        other = "client" if side == "server" else "server"
        result = self.hole(side, *arguments) if kind == "hole" else getattr(hit, kind)(*arguments)
        self.say(f"{name}{f' ({result})' if result else ''}, {on} of {len(KINDS)} on rdma")
        if kind == "kill":
            self.ended(other, alive.values(), name)
            hit.start(self.seed)
            self.moves_on(name)
        elif kind == "carrier":
            after = self.moves_on(name)
            broken = set(alive.values()) - set(after.values())
            if len(broken) > 1:
                raise Wrong(f"{name}: {len(broken)} connections have ended")
        else:
            after = self.moves_on(name)
            if kind == "dark":
                hit.lighten()
            broken = set(alive.values()) - set(after.values())
            if broken:
                raise Wrong(f"{name}: connections {' '.join(broken)} have ended, though both programs live")
            if kind == "device" and result:
                self.renew(side, after)
        for role, one in self.sides.items():
            if one.manager_is_lost():
                self.say(f"rxe's connection manager at the {role} is lost")
                one.device(0.1)
                self.renew(role, self.moves_on(name))

    def renew(self, side, alive):
        """A device that was deleted goes with the program that has it open, and only then can there
        be another one."""
        other = "client" if side == "server" else "server"
        self.say(f"kill at the {side}, whose device goes")
        self.sides[side].kill()
        self.ended(other, alive.values(), "kill")
        self.sides[side].device_is_back()
        self.sides[side].start(self.seed)
        self.moves_on("another device")

    def end(self):
        """All streams are shut down, and complete."""
        self.sides["client"].terminate()
        for role in ("client", "server"):
            if role == "server":
                self.sides[role].terminate()
            status = self.sides[role].reap(PATIENCE)
            if status != 0:
                raise Wrong(f"told to stop, the {role}'s program {'hangs' if status == 'hangs' else f'ends with status {status}: {self.sides[role].said()}'}")
        here, there = (self.sides[role].all_streams() for role in ("client", "server"))
        whole = cut = 0
        for number, (sent, received, *ends) in here.items():
            # A server that was killed may not have come to know of one.
            its_sent, its_received, *its_ends = there.get(number, [0, 0, OPEN, OPEN])
            if ends == its_ends == [EOF, EOF]:
                whole += 1
                if [sent, received] != [its_received, its_sent]:
                    raise Wrong(f"connection {number}: the client has sent {sent} and received {received}, the server sent {its_sent} and received {its_received}")
            else:
                cut += 1
                # What a program was sending when it was killed is not yet in its count.
                if received > its_sent + CHUNK or its_received > sent + CHUNK:
                    raise Wrong(f"connection {number}: the client has sent {sent} and received {received}, the server sent {its_sent} and received {its_received}")
        return whole, cut

    def __call__(self, count, plan):
        self.sides["server"].start(self.seed)
        self.sides["client"].start(self.seed)
        self.moves_on("at the beginning")
        done = collections.Counter()
        for number in range(count):
            fault = plan[number] if plan else self.pick()
            self.fault(*fault)
            done[fault[0]] += 1
        on = self.accelerated()
        whole, cut = self.end()
        print("faults:", ", ".join(f"{times} {kind}" for kind, times in done.items()), flush=True)
        print(f"streams: {whole} compared at both ends, {cut} of broken connections", flush=True)
        print(f"on rdma before each fault: {' '.join(map(str, self.on_rdma))}; at the end: {on}", flush=True)
        if self.holes:
            print(f"stood still in holes for at most: {max(self.holes) * 1000:.0f} ms", flush=True)


def parsed(text):
    text, hurry = text.removesuffix("!"), text.endswith("!")
    kind, side, *arguments = text.split(":")
    if kind not in FAULTS and kind not in ("freeze", "unexpected"):
        raise SystemExit(f"no fault {kind}")
    return kind, side, [float(argument) if "." in argument else int(argument) for argument in arguments], 0, hurry


def main():
    role, how, *rest = sys.argv[1:]
    if role == "server":
        side = Side(role, how)
        serve(side)
        side.stopped()
        return 0
    campaign = Campaign(how, int(rest[0]))
    try:
        campaign(int(rest[1]), [parsed(text) for text in rest[2:]])
        return 0
    except Wrong as wrong:
        campaign.say(f"WRONG: {wrong}")
        for side in campaign.sides.values():
            with contextlib.suppress(Wrong):
                side.diagnose()
        return 1
    finally:
        campaign.sides["client"].stopped()


if __name__ == "__main__":
    sys.exit(main())
