"""What the files in real/ share: jobs, their processes, what netacc_ss says of them.

A *program* is one row of the table. Its function is given a Job and does the same work each time:
without the library (side "plain", the oracle) and with it ("both", "server", "client"). It returns
a Result. Everything that a job starts is ended by its pid when the job is over, however it ends.
"""

import collections
import ctypes
import dataclasses
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# One that other users may run, and that the libraries of its modules are there for.
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
LIB_DIR = Path(os.environ.get("NETACC_LIB_DIR") or HERE.parent.parent / "target/release").resolve()
PLAIN, BOTH, SERVER, CLIENT = EVERY = "plain", "both", "server", "client"
# Both ends with the library of tests/inject, in which a connection seeks its agreement at its first
# call, and the first calls wait for it: most connections of other projects' suites have few calls.
AT_ONCE = "at-once"
AT_ONCE_ENV = {"NETACC_TEST_AT_ONCE": "5"}
PROGRAMS = {}
CACHE = Path(os.environ.get("NETACC_APPS_CACHE") or Path.home() / ".cache/netacc-apps")


class Skip(Exception):
    """It cannot be had on this machine; the reason."""


class Broken(Exception):
    """The program did not do its work; what it said."""


@dataclasses.dataclass
class Program:
    """One row: what it is, what it needs, what is expected of it."""

    name: str
    title: str
    work: object
    packages: tuple = ()
    prepare: object = None
    sides: tuple = (PLAIN, BOTH)
    rounds: int = 1
    limit: int = 120
    share: float = None
    at_once: float = None
    ratio: float = None
    p99: bool = False
    slowest: bool = False
    faultless: bool = False
    forks: bool = False
    quick: bool = False
    env: dict = dataclasses.field(default_factory=dict)


def program(name, title, **settings):
    """Makes a function a program.

    `share`, `at_once` (the share of that side) and `ratio` are goals, and so are `p99`, not to be
    above plain's, and `slowest`: that the slowest request of the median round is not slower than
    all of plain's; `faultless`: no request fails with the library, whatever fails without it;
    `limit` is in seconds; `quick`: also in `make test`; `forks`: a process that accepts connections
    and makes no call on them, as its children do, is not counted; `env`: what accelerated processes
    have in their environment, too.
    """

    def add(work):
        PROGRAMS[name] = Program(name, title, work, **settings)
        return work

    return add


@dataclasses.dataclass
class Result:
    """What one job came to.

    output: what must be the same as without the library; anything that can be compared.
    errors: how many of its requests failed; not more than without the library.
    broken: how many of its connections the program broke itself, such as a server that reloads:
    plain's rounds say how many that may be.
    failed: of a suite, {unit: the names of what failed in it}; units are what can be run alone: a
    file, a module. tests: {unit: how many of its tests were run}; no fewer than without the
    library.
    rate: more is better. worst: its slowest request in seconds; p99: what 99 of 100 requests do not
    exceed.
    brief: so many of its connections made no ten calls, such as a load generator's first one; or
    {role: so many}.
    """

    output: object = None
    errors: int = 0
    broken: int = None
    failed: dict = dataclasses.field(default_factory=dict)
    tests: dict = dataclasses.field(default_factory=dict)
    rate: float = None
    worst: float = None
    p99: float = None
    brief: object = 0
    note: str = ""


def environment():
    """The environment without what a user may have set for the library."""
    keep = lambda name: not name.startswith(("NACC_", "NETACC_")) and name != "LD_PRELOAD"
    return {name: value for name, value in os.environ.items() if keep(name)}


def identity(user):
    """What Popen is told to run something as another user; nothing where we are not root."""
    if not user or os.getuid() != 0:
        return {}
    entry = pwd.getpwnam(user)
    return dict(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])


def children_of():
    """Every process's children."""
    children = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(pid)
    return children


def descendants(pid, children=None):
    """All processes below one."""
    children = children_of() if children is None else children
    found, todo = [], list(children.get(pid, ()))
    while todo:
        one = todo.pop()
        found.append(one)
        todo += children.get(one, ())
    return found


def adopt_orphans():
    """Processes that daemonise stay our descendants (PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


class Watch(threading.Thread):
    """Reads the connection counters of a job's accelerated processes, most of which do not live
    until its end."""

    PERIOD = 0.3

    def __init__(self, job):
        super().__init__(daemon=True)
        self.job, self.over, self.lock = job, threading.Event(), threading.Lock()
        self.roles, self.counts, self.reasons, self.below = {}, {}, {}, {}

    def run(self):
        while not self.over.is_set():
            begin = time.monotonic()
            self.look()
            # A small part of the time, as the plain run is not looked at; but what ends soon is to
            # be seen before.
            self.over.wait(min(max(self.PERIOD, 20 * (time.monotonic() - begin)), 1))

    def look(self):
        with self.lock:
            children = children_of()
            for parent, some in children.items():
                self.below.setdefault(parent, set()).update(some)
            for process, role in list(self.job.processes):
                for pid in [process.pid, *descendants(process.pid, children)]:
                    self.roles.setdefault(pid, role)
            for pid, role in list(self.job.daemons):
                for one in [pid, *descendants(pid, children)]:
                    self.roles.setdefault(one, role)
            for pid, role in self.roles.items():
                if os.path.exists(f"/proc/{pid}/fd") and self.job.preloaded(role):
                    self.read(pid, role)

    def read(self, pid, role):
        command = [self.job.tools / "netacc_ss", "--json", "-s", "cnt", str(pid)]
        try:
            said = subprocess.run(command, capture_output=True, timeout=10, check=False)
            told = json.loads(said.stdout)
        except (ValueError, subprocess.SubprocessError):
            return
        # exec makes a new segment under the old pid; no counter goes back otherwise.
        one, key = (told["connections_total"], told["accelerated_total"]), (role, pid)
        self.counts[key] = max(one, self.counts.get(key, one))
        self.reasons[key] = told["reasons"]

    def shares(self, brief):
        """{role: (accelerated, connections)}; the brief ones are not counted, if they were seen."""
        shares = {}
        for (role, pid), (total, accelerated) in self.counts.items():
            if self.job.what.forks and not accelerated and any((role, child) in self.counts for child in self.below.get(pid, ())):
                continue
            was = shares.get(role, (0, 0))
            shares[role] = (was[0] + accelerated, was[1] + total)
        few = brief if isinstance(brief, dict) else dict.fromkeys(shares, brief)
        return {role: (a, max(total - few.get(role, 0), a)) for role, (a, total) in shares.items() if total}

    def why(self):
        """The reasons of connections that are not accelerated, by how many."""
        added = {}
        for reasons in self.reasons.values():
            for reason, count in reasons.items():
                if reason != "none" and count:
                    added[reason] = added.get(reason, 0) + count
        return dict(sorted(added.items(), key=lambda item: -item[1]))


class Job:
    """One run of a program's work on one side, in a directory of its own; of a suite's units `only`
    those, where some are given."""

    def __init__(self, what, side, tools, only=()):
        self.what, self.side, self.tools, self.only = what, side, tools, only
        self.dir = Path(tempfile.mkdtemp(prefix=f"{what.name}-"))
        self.dir.chmod(0o755)
        self.processes, self.daemons, self.watch = [], [], Watch(self)
        self.given = set()

    # ------------------------------------------------------------ processes

    def preloaded(self, role):
        """Whether processes of that role have the library: proxies and upstream servers are
        servers."""
        return self.side in (BOTH, AT_ONCE) or self.side == (CLIENT if role == CLIENT else SERVER)

    def library(self):
        """The one that processes of this side have."""
        return self.tools / ("inject" if self.side == AT_ONCE else "") / "libnetacc_preload.so"

    def environment(self):
        """No other user's files, and only what the job removes."""
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        return environment() | {"HOME": str(self.dir), "TMPDIR": str(self.dir), "PATH": path}

    def start(self, *command, role=SERVER, user=None, env=None, cwd=None, stdin=None, output=None):
        """Starts a process in the background; its output is a file's. `user` counts for root
        alone."""
        variables = self.environment() | (env or {})
        if self.preloaded(role):
            variables |= {"LD_PRELOAD": str(self.library())} | (AT_ONCE_ENV if self.side == AT_ONCE else {})
            variables |= {"NACC_LOG_PATH": str(self.dir / f"netacc-{user or 'self'}.log")} | self.what.env
        who = identity(user)
        self.own(user)
        path = Path(output) if output else self.dir / f"{len(self.processes)}-{Path(command[0]).name}.out"
        with open(path, "wb") as file:
            process = subprocess.Popen([str(part) for part in command], stdin=stdin or subprocess.DEVNULL, stdout=file,
                                       stderr=subprocess.STDOUT, env=variables, cwd=cwd or self.dir, **who)
        process.said = lambda: path.read_text(errors="replace")
        process.name = Path(command[0]).name
        self.processes.append((process, role))
        return process

    def finish(self, process, timeout=None, status=(0,)):
        """Waits for a process of start(); its output, or Broken where it does not end as it
        should."""
        try:
            got = process.wait(timeout or self.what.limit)
        except subprocess.TimeoutExpired:
            raise Broken(f"{process.name} hangs: {tail(process.said())}") from None
        if status is not None and got not in status:
            raise Broken(f"{process.name} ended with {got}: {tail(process.said())}")
        return process.said()

    def client(self, *command, timeout=None, status=(0,), **settings):
        """Runs a client to its end; its output."""
        return self.finish(self.start(*command, role=settings.pop("role", CLIENT), **settings), timeout, status)

    def test(self, *command, timeout, **settings):
        """Runs a part of a suite to its end; its output, and what kept it from ending well, if
        anything did."""
        process = self.start(*command, **settings)
        try:
            got = process.wait(timeout)
        except subprocess.TimeoutExpired:
            for pid in [*descendants(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            self.forget(process)
            return process.said(), f"hangs for {timeout} s"
        return process.said(), f"ends with {got}" if got else None

    def kill(self, process, number=signal.SIGKILL):
        """Ends a process of start() as a user or a fault would, when netacc_ss has said the last of
        it."""
        self.look()
        process.send_signal(number)
        self.forget(process)

    def forget(self, process):
        """Waits for the end of one that is to end; it is no crash."""
        process.wait()
        self.processes = [pair for pair in self.processes if pair[0] is not process]

    def look(self):
        """Reads the counters now: a process is about to end."""
        if self.side != PLAIN:
            self.watch.look()

    def load(self, kind, port, connections, seconds, user=None):
        """One of the loads of loads.py; (requests, errors, seconds)."""
        script = shutil.copy(HERE / "loads.py", self.dir)
        said = self.client(PYTHON, script, kind, port, connections, seconds, user=user)
        requests, errors, took = said.split()[-3:]
        if int(errors):
            print("    " + tail(said, 4).replace("\n", "\n    "))
        return int(requests), int(errors), float(took)

    def tool(self, *command, timeout=60, **settings):
        """Runs something that is no part of the work, without the library; its output."""
        settings = dict(env=self.environment(), cwd=self.dir) | settings
        settings |= identity(settings.pop("user", None))
        said = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, check=False, text=True, **settings)
        if said.returncode:
            raise Broken(f"{command[0]} ended with {said.returncode}: {tail(said.stdout)}")
        return said.stdout

    def daemon(self, pid, role=SERVER):
        """A process that left the one of start(): it is watched like that."""
        self.daemons.append((pid, role))
        return pid

    def children(self, pid):
        return children_of().get(pid, [])

    def sleep(self, seconds):
        """Lets a load run; nothing waits for an event by it."""
        time.sleep(seconds)

    # ------------------------------------------------------------ files and ports

    def own(self, user, place=None):
        """Gives the directory to the user that the servers run as; all of `place`, where that is
        given."""
        if who := identity(user):
            for path in (place, *place.rglob("*")) if place else (self.dir,):
                os.chown(path, who["user"], who["group"], follow_symlinks=False)

    def write(self, name, text, mode=0o644):
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
        path.chmod(mode)
        return path

    def port(self):
        """A free port, which does not come again, and which the kernel gives to no client: one
        that connects before its server listens could have it as its own, and keep the server
        from it."""
        while True:
            port = random.randrange(10000, 30000)
            try:
                with socket.create_server(("0.0.0.0", port)):
                    pass
            except OSError:
                continue
            if port not in self.given:
                self.given.add(port)
                return port

    def until(self, condition, seconds=30, what="a condition"):
        """Waits until condition() is true; fails when a server has ended before."""
        end = time.monotonic() + seconds
        while not condition():
            for process, role in self.processes:
                if role != CLIENT and process.poll() not in (None, 0):
                    raise Broken(f"{process.name} ended with {process.returncode}: {tail(process.said())}")
            if time.monotonic() > end:
                said = "\n".join(tail(process.said(), 5) for process, _ in self.processes)
                raise Broken(f"{what} did not come in {seconds} s: {said}")
            time.sleep(0.05)

    def listening(self, port, seconds=60):
        """Waits until somebody listens there, without a connection that would be counted."""
        wanted = f":{port:04X}"

        def listens():
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                for line in Path(table).read_text().splitlines()[1:]:
                    part = line.split()
                    if part[1].endswith(wanted) and part[3] == "0A":
                        return True
            return False

        self.until(listens, seconds, f"a listener on port {port}")

    # ------------------------------------------------------------ from begin to end

    def run(self):
        """The work; a Result with `shares` and `reasons` of what netacc_ss said."""
        if self.side != PLAIN:
            self.watch.start()
        try:
            with limit(self.what.limit):
                result = self.what.work(self)
            # A connection's statistics are final soon after the client has closed it.
            self.watch.look()
            crashed = [p for p, role in self.processes if role != CLIENT and p.poll() is not None and p.returncode < 0]
            if crashed:
                raise Broken(f"{crashed[0].name} ended by signal {-crashed[0].returncode}: {tail(crashed[0].said())}")
            result.shares, result.reasons = self.watch.shares(result.brief), self.watch.why()
            for log in self.dir.glob("netacc-*.log"):
                if "panick" in (text := log.read_text(errors="replace")) or "FATAL" in text:
                    raise Broken(f"the library's log says: {tail(text, 5)}")
            return result
        finally:
            self.end()

    def end(self):
        """Ends what is left: the servers politely, then every descendant."""
        self.watch.over.set()
        if self.watch.is_alive():
            self.watch.join(10)
        for process, _ in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any(p.poll() is None for p, _ in self.processes):
            time.sleep(0.02)
        for _ in range(100):
            left = [pid for pid in descendants(os.getpid())]
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for process, _ in self.processes:
                process.poll()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
            if not left:
                break
            time.sleep(0.02)
        if not os.environ.get("NETACC_APPS_KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)
        else:
            print(f"    kept: {self.dir}")


# What failed once is run so often without the library, and as often with it.
TRIES = 10
# So many units do not fail by accident; nothing is run again.
MANY = 8


def failures(result, oracle):
    """{unit: names} of what failed in a run of a suite: tests, and those that were not run."""
    found = {unit: list(names) for unit, names in result.failed.items() if names}
    for unit, count in result.tests.items():
        if count < oracle.tests.get(unit, 0) and unit not in found:
            found[unit] = ["fewer tests"]
    return found


def alone(one, side, tools, unit, oracle):
    """What fails when one unit is run on that side."""
    try:
        result = Job(one, side, tools, only=(unit,)).run()
    except (Broken, OSError) as error:
        print("    " + tail(str(error), 4).replace("\n", "\n    "), flush=True)
        return ["breaks"]
    return [name for names in failures(result, oracle).values() for name in names]


def tried(failed, side, run, known=()):
    """The rule for other people's suites, of whose tests some depend on the time or the load: what
    failed once with the library is run ten times without it and ten times with it, in turn; it has
    failed where it fails in at least two runs more with it. (Of two equal sides, of whose runs one
    in ten fails, one does so in one case of seven.)

    `failed` is {unit: names}, `run(side, unit)` the names of what fails in one more run, `known`
    the units that failed without the library, too. Returns what has failed, and what else is to be
    said.
    """
    if len(new := sorted(set(failed) - set(known))) > MANY:
        return [f"{len(new)} units fail that do not without the library: {', '.join(new)}"], []
    bad, said = [], []
    for unit, first in sorted(failed.items()):
        times = {PLAIN: collections.Counter(), side: collections.Counter()}
        for _ in range(TRIES):
            for which, counter in times.items():
                counter.update(set(run(which, unit)))
        for name in sorted({*first, *times[PLAIN], *times[side]}):
            what = name if name == unit else f"{unit}: {name}"
            accelerated, plain = times[side][name], times[PLAIN][name]
            if not accelerated and not plain:
                said.append(f"{what} failed once, and not in {TRIES} more runs")
                continue
            (bad if accelerated - plain > TRIES // 10 else said).append(
                f"{what} failed {accelerated} of {TRIES} times, {plain} without the library")
    return bad, said


class limit:
    """A block that raises Broken when it takes too long."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def late(*_):
            raise Broken(f"not done after {self.seconds} s")

        signal.signal(signal.SIGALRM, late)
        signal.alarm(self.seconds)

    def __exit__(self, *_):
        signal.alarm(0)


def tail(text, lines=12):
    return "\n".join(text.strip().splitlines()[-lines:])


def fetch(*command, cwd=None, timeout=600, env=None):
    """For prepare(): gets something from the network, or Skip."""
    try:
        said = subprocess.run([str(part) for part in command], cwd=cwd, timeout=timeout, check=False, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment() | (env or {}))
    except (OSError, subprocess.SubprocessError) as error:
        raise Skip(f"{command[0]}: {error}") from None
    if said.returncode:
        raise Skip(f"{' '.join(str(part) for part in command[:4])}: {tail(said.stdout, 2)}")
    return said.stdout


def venv(name, *packages):
    """A virtual environment in the cache with these packages; its python."""
    place = CACHE / name
    python = place / "bin/python"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        fetch(PYTHON, "-m", "venv", place)
        fetch(place / "bin/pip", "install", "-q", *packages)
        (place / "complete").touch()
    return python


def node(version):
    """Node of a major version by npm's package `node`, which carries binaries; its path."""
    place = CACHE / f"node-{version}"
    path = place / "node_modules/node/bin/node"
    if not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        fetch("npm", "install", "--no-save", "--prefix", place, f"node@{version}")
        if not path.exists():
            raise Skip(f"npm's node@{version} has no binary for this machine")
    return path


def source(package):
    """The unpacked Debian source of a package, by a private apt configuration with deb-src lines;
    its directory."""
    place = CACHE / f"src-{package}"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        (place / "lists/partial").mkdir(parents=True)
        said = fetch("apt-get", "indextargets", "--format", "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
                     "Created-By: Packages")
        lines = set()
        for line in said.splitlines():
            origin, url, release, component = line.split("|")
            if origin in ("Debian", "Ubuntu"):
                lines.add(f"deb-src {url} {release} {component}\n")
        if not lines:
            raise Skip("apt's lists name no source of Debian's; run apt-get update")
        (place / "sources.list").write_text("".join(sorted(lines)))
        private = ["-o", f"Dir::Etc::sourcelist={place}/sources.list", "-o", "Dir::Etc::sourceparts=-", "-o",
                   f"Dir::State::lists={place}/lists", "-o", "APT::Sandbox::User=", "-o", f"Dir::Cache={place}"]
        fetch("apt-get", *private, "update")
        fetch("apt-get", *private, "source", package, cwd=place)
        (place / "complete").touch()
    found = [path for path in place.iterdir() if path.is_dir() and path.name.startswith(package)]
    if not found:
        raise Skip(f"the source of {package} has no directory of its name")
    return found[0]
