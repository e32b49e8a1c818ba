#!/usr/bin/env python3
"""Redis with and without netacc, like for like.

Each row is one redis-benchmark command. Within a round the kinds of run (plain, accelerated,
library on one side) follow each other; every run has a fresh redis-server with the same settings,
on a free port of 127.0.0.1, in a temporary directory, started and ended by its process id alone.
All runs of a row make the same number of requests, which a short plain run determines first so that
a plain run takes --seconds. Figures are medians over the rounds.

How many of the benchmark's connections were accelerated is the difference of what netacc_ss says
about the server after and before redis-benchmark ran; when it cannot be read it is "unknown".

Needs redis-server and redis-benchmark 6.2 or later, and nothing but Python's standard library.
"""

import argparse
import contextlib
import csv
import ctypes
import dataclasses
import io
import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAVE = "3600 1 300 100 60 10000"
BUSY_LOOPS = 4
PLAIN, ACCELERATED, SERVER_ONLY, CLIENT_ONLY = "plain", "accelerated", "server-only", "client-only"
ONE_SIDED = (PLAIN, SERVER_ONLY, CLIENT_ONLY)
ON_SERVER = {ACCELERATED, SERVER_ONLY}
ON_CLIENT = {ACCELERATED, CLIENT_ONLY}


@dataclasses.dataclass(frozen=True)
class Row:
    """One redis-benchmark command, run in several kinds."""

    name: str
    label: str
    command: str
    clients: int
    kinds: tuple = (PLAIN, ACCELERATED)
    load: int = 0
    prefill: bool = False


SET_C100 = dict(label="redis SET 512 B -c 100 --threads 4", clients=100,
                command="-c 100 -r 10000 --threads 4 -d 512 -t set")
SET_C1 = dict(label="redis SET 512 B -c 1", clients=1, command="-c 1 -r 10000 -d 512 -t set")
GET_C1 = dict(label="redis GET -c 1", clients=1, command="-c 1 -t get", prefill=True)
GET_C50 = dict(label="redis GET -c 50", clients=50, command="-c 50 -t get", prefill=True)
GET_P16 = dict(label="redis GET -c 50 -P 16", clients=50, command="-c 50 -P 16 -t get", prefill=True)

ROWS = [
    Row("set-c100", **SET_C100),
    Row("set-c1", **SET_C1),
    Row("get-c50-p16", **GET_P16),
    Row("one-sided", kinds=ONE_SIDED, **SET_C100),
    Row("one-sided-c1", kinds=ONE_SIDED, **GET_C1),
    Row("one-sided-c50", kinds=ONE_SIDED, **GET_C50),
    Row("load-one-sided-c1", kinds=ONE_SIDED, load=BUSY_LOOPS, **GET_C1),
    Row("load-set-c100", load=BUSY_LOOPS, **SET_C100),
    Row("load-set-c1", load=BUSY_LOOPS, **SET_C1),
    Row("load-get-c50-p16", load=BUSY_LOOPS, **GET_P16),
]


class Failed(Exception):
    """A run that gave no result."""


# What a program that misbehaves may lead to; a server that hangs shows as a socket's TimeoutError.
FAILURES = (Failed, OSError, subprocess.SubprocessError)


# ---------------------------------------------------------------- parsers and statistics


def parse_benchmark(text):
    """The figures of redis-benchmark's --csv output: requests per second, and latencies in
    milliseconds."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    if len(rows) != 1:
        raise Failed(f"redis-benchmark gave {len(rows)} results instead of one: {text.strip()[-200:]!r}")
    columns = {"rps": "rps", "avg_ms": "avg_latency_ms", "min_ms": "min_latency_ms", "p50_ms": "p50_latency_ms",
               "p95_ms": "p95_latency_ms", "p99_ms": "p99_latency_ms", "max_ms": "max_latency_ms"}
    try:
        return {name: float(rows[0][column]) for name, column in columns.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise Failed(f"redis-benchmark's output lacks a figure: {error!r}") from error


def parse_counts(text, pid):
    """(connections, accelerated) of process `pid` from `netacc_ss --json -s cnt`; ValueError if it
    is not there."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.get("pid") != pid:
        raise ValueError("answer about another process")
    total, accelerated = value.get("connections_total"), value.get("accelerated_total")
    for number in (total, accelerated):
        if type(number) is not int or number < 0:
            raise ValueError("no connection counters")
    if accelerated > total:
        raise ValueError("more accelerated connections than connections")
    return total, accelerated


def acceleration(counts=None, why=None, clients=0, loaded=None):
    """What is known about a run's acceleration, as it stands in the JSON.

    The verdict is "all" when at least as many connections were accelerated as the benchmark has
    clients: it opens one or two more to read the server's configuration, which may be over before
    they can be accelerated. "loaded" says whether the library was in the process that was to have
    it; null: nobody looked.
    """
    if counts is None:
        verdict = "none" if loaded is False else "unknown" if why else "not-asked"
        return {"verdict": verdict, "accelerated": None, "connections": None, "clients": clients, "loaded": loaded,
                "why": why}
    total, accelerated = counts
    verdict = "none" if accelerated == 0 else "partly" if accelerated < clients else "all"
    return {"verdict": verdict, "accelerated": accelerated, "connections": total, "clients": clients, "loaded": True,
            "why": None}


def sum_acceleration(parts):
    """The same over several runs; one run without a number leaves none."""
    for verdict in ("none", "unknown", "not-asked"):
        for part in parts:
            if part["verdict"] == verdict and part["connections"] is None:
                return part
    if not parts:
        return acceleration()
    total, accelerated, clients = (sum(part[key] for part in parts) for key in ("connections", "accelerated", "clients"))
    return acceleration((total, accelerated), clients=clients)


def summarise(row, runs):
    """Medians over the rounds of each kind; ratios of rps against the first kind."""
    summaries = []
    for kind in row.kinds:
        good = [run for run in runs if run["kind"] == kind and "error" not in run]
        summary = {"kind": kind, "rounds": len(good)}
        for figure in ("rps", "avg_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"):
            summary[figure] = statistics.median(run[figure] for run in good) if good else None
        base = summaries[0]["rps"] if summaries else summary["rps"]
        summary["ratio"] = summary["rps"] / base if summary["rps"] and base else None
        by_round = {run["round"]: run["rps"] for run in runs if run["kind"] == row.kinds[0] and "error" not in run}
        paired = [run["rps"] / by_round[run["round"]] for run in good if by_round.get(run["round"])]
        summary["ratio_paired"] = statistics.median(paired) if paired else None
        summary["acceleration"] = sum_acceleration([run["acceleration"] for run in good])
        summaries.append(summary)
    return summaries


def requests_for(rps, seconds):
    """How many requests take about `seconds`."""
    return max(5_000, min(20_000_000, round(rps * seconds, -3)))


# ---------------------------------------------------------------- processes


LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """Between fork and exec: have the kernel end this process when the script is gone, however it
    went."""
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def plain_environment():
    """Our environment without any netacc library, for when the script itself runs accelerated."""
    environment = dict(os.environ)
    entries = environment.pop("LD_PRELOAD", "").replace(" ", ":").split(":")
    others = [e for e in entries if e and not os.path.basename(e).startswith("libnetacc")]
    if others:
        environment["LD_PRELOAD"] = ":".join(others)
    return environment


@contextlib.contextmanager
def process(command, **options):
    """A child that does not outlive the block: asked to end by its process id, then made to."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=plain_environment(), preexec_fn=die_with_parent,
                             **options)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe:
                pipe.close()


@contextlib.contextmanager
def busy_loops(count):
    """`count` processes that keep a CPU busy."""
    loop = "import os\np = os.getppid()\nwhile os.getppid() == p:\n for _ in range(1000000): pass"
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(process([sys.executable, "-c", loop]))
        yield


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_line(child, text, seconds):
    """Reads the child's output until a line contains `text`; returns what came."""
    deadline, seen = time.monotonic() + seconds, b""
    while text not in seen:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
            raise Failed(f"redis-server is not ready after {seconds} s: {seen.decode(errors='replace')[-300:]}")
        piece = os.read(child.stdout.fileno(), 65536)
        if not piece:
            raise Failed(f"redis-server ended at once: {seen.decode(errors='replace')[-300:]}")
        seen += piece
    return seen


def command_redis(port, *words):
    """Sends one command by a socket of ours and returns the first line of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        message = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        connection.sendall(message)
        answer = b""
        while b"\r\n" not in answer:
            piece = connection.recv(4096)
            if not piece:
                raise Failed(f"redis-server closed the connection on {words[0].decode()}")
            answer += piece
        return answer.split(b"\r\n")[0]


# ---------------------------------------------------------------- one run


class Bench:
    """Where the programs are."""

    def __init__(self, bin_dir):
        def find(name):
            beside = Path(bin_dir).resolve() / name
            return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)

        self.run, self.ss = find("netacc_run"), find("netacc_ss")
        self.redis_server, self.redis_benchmark = shutil.which("redis-server"), shutil.which("redis-benchmark")
        if not self.redis_server or not self.redis_benchmark:
            sys.exit("redis-server and redis-benchmark are needed (Debian: apt-get install redis-server redis-tools)")

    def wrapped(self, command, with_library):
        return [self.run, *command] if with_library and self.run else command

    @contextlib.contextmanager
    def server(self, with_library, directory):
        """A fresh redis-server that answers; gives its process and port."""
        for attempt in range(3):
            port = free_port()
            command = [self.redis_server, "--port", str(port), "--bind", "127.0.0.1", "-::1", "--protected-mode", "no",
                       "--daemonize", "no", "--dir", directory, "--save", SAVE, "--logfile", ""]
            with process(self.wrapped(command, with_library), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
                try:
                    wait_for_line(child, b"Ready to accept connections", 20)
                except Failed:
                    # Another program may have taken the port in between.
                    if attempt == 2 or child.poll() is None:
                        raise
                    continue
                if command_redis(port, b"PING") != b"+PONG":
                    raise Failed("redis-server does not answer PING")
                yield child, port
                return

    def counts(self, pid):
        """(connections, accelerated) of a server that has the library, or the reason why not, as a
        string."""
        if not self.ss:
            return "netacc_ss not found"
        try:
            answer = subprocess.run([self.ss, "--json", "-s", "cnt", str(pid)], stdin=subprocess.DEVNULL, timeout=5,
                                    capture_output=True, text=True, check=False, env=plain_environment())
            if answer.returncode != 0:
                return first_line(answer.stderr) or f"netacc_ss: status {answer.returncode}"
            return parse_counts(answer.stdout, pid)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"netacc_ss: {error}"

    def missing(self, pid):
        """Why process `pid` certainly has no acceleration, or None."""
        if not self.run:
            return "netacc_run not found"
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            return None
        return None if "/libnetacc" in maps else "library not loaded"

    def gets_library(self, client, kind):
        """Whether a starting client that is to have the library gets it; None for one that is
        not."""
        if kind not in ON_CLIENT:
            return None
        program = os.path.realpath(self.redis_benchmark)
        while self.run and client.poll() is None:
            try:
                past_netacc_run = os.readlink(f"/proc/{client.pid}/exe") == program
                maps = Path(f"/proc/{client.pid}/maps").read_text(errors="replace")
            except OSError:
                break
            # The loader maps preloaded libraries before libc.
            if past_netacc_run and "/libc.so" in maps:
                return "/libnetacc" in maps
            time.sleep(0.001)
        return False

    def measure(self, row, kind, requests, timeout):
        """One run: fresh server, redis-benchmark, counters. Returns figures and acceleration."""
        with tempfile.TemporaryDirectory(prefix="netacc-redis-") as directory, \
                self.server(kind in ON_SERVER, directory) as (child, port):
            if row.prefill:
                # Without -r redis-benchmark's GET asks for the key of just this name.
                command_redis(port, b"SET", b"key:__rand_int__", b"xxx")
            # redis-benchmark ends by itself, so that its own counters cannot be read: the server's
            # are.
            asked = kind in ON_SERVER
            missing = self.missing(child.pid) if asked else None
            before = self.counts(child.pid) if asked and not missing else None
            command = [self.redis_benchmark, "-h", "127.0.0.1", "-p", str(port), "-n", str(requests),
                       *row.command.split(), "--csv"]
            with process(self.wrapped(command, kind in ON_CLIENT), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True) as client:
                loaded = self.gets_library(client, kind)
                try:
                    output, errors = client.communicate(timeout=timeout)
                except subprocess.TimeoutExpired as error:
                    client.kill()
                    raise Failed(f"redis-benchmark hangs (not ended after {timeout:.0f} s)") from error
                if client.returncode != 0:
                    raise Failed(f"redis-benchmark: status {client.returncode}: {errors.strip()[-200:]}")
            after = self.counts(child.pid) if asked and not missing else None
            if child.poll() is not None:
                raise Failed(f"redis-server ended with status {child.returncode}")
            result = parse_benchmark(output)
            if loaded is False and not missing:
                missing = "library not loaded in redis-benchmark" if self.run else "netacc_run not found"
            if missing:
                result["acceleration"] = acceleration(why=missing, clients=row.clients, loaded=False)
            elif not asked:
                result["acceleration"] = acceleration(clients=row.clients, loaded=loaded)
            elif isinstance(before, str) or isinstance(after, str):
                why = after if isinstance(after, str) else before
                result["acceleration"] = acceleration(why=why, clients=row.clients, loaded=True)
            else:
                delta = tuple(b - a for a, b in zip(before, after))
                result["acceleration"] = acceleration(delta, clients=row.clients)
            return result

    def run_row(self, row, rounds, seconds):
        """All rounds of a row."""
        timeout = 60 + 20 * seconds
        with busy_loops(row.load):
            requests, runs = None, []
            try:
                trial = self.measure(row, PLAIN, 100_000 if row.prefill else 20_000, timeout)
                requests = requests_for(trial["rps"], seconds)
            except FAILURES as error:
                runs.append({"kind": PLAIN, "round": 0, "error": str(error) or repr(error)})
            for number in range(1, rounds + 1 if requests else 1):
                for kind in row.kinds:
                    run = {"kind": kind, "round": number}
                    try:
                        run.update(self.measure(row, kind, requests, timeout))
                        text = f"{run['rps'] / 1e3:8.1f} k/s  p50 {run['p50_ms']:.3f} ms  p99 {run['p99_ms']:.3f} ms"
                    except FAILURES as error:
                        run["error"] = str(error) or repr(error)
                        text = f"FAILED: {error}"
                    runs.append(run)
                    print(f"{row.name:<17} {number}/{rounds} {kind:<11} {text}", file=sys.stderr, flush=True)
        return {"name": row.name, "label": row.label, "command": f"redis-benchmark {row.command} -n {requests}",
                "load": row.load, "clients": row.clients, "runs": runs, "summary": summarise(row, runs)}


def first_line(text):
    """For a table's cell."""
    return next((line[:90] for line in text.splitlines() if line.strip()), "")


def load_average():
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def redis_version(program):
    words = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()
    return next((word[2:] for word in words if word.startswith("v=")), "unknown")


def main():
    import table  # the sibling file; here, so that its tests and ours need no package

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin-dir", default="target/release", help="where netacc_run and netacc_ss are (then $PATH)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; each runs every kind once, in turn (3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a plain run (2)")
    parser.add_argument("--rows", default=None, help="comma-separated: " + ",".join(row.name for row in ROWS))
    parser.add_argument("--json", type=Path, help="write every run and the summary to this file")
    parser.add_argument("--quiet", action="store_true", help="print no table")
    arguments = parser.parse_args()
    names = arguments.rows.split(",") if arguments.rows else [row.name for row in ROWS]
    by_name = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in by_name]:
        parser.error(f"no such row: {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    bench = Bench(arguments.bin_dir)
    result = {"tool": "bench/redis.py", "redis": redis_version(bench.redis_server), "rounds": arguments.rounds,
              "machine": {"cpus": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
                          "load_average_before": load_average()}}
    result["rows"] = [bench.run_row(by_name[name], arguments.rounds, arguments.seconds) for name in names]
    result["machine"]["load_average_after"] = load_average()
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    if not arguments.quiet:
        print(table.comparison(None, result))
    return any("error" in run for row in result["rows"] for run in row["runs"])


if __name__ == "__main__":
    sys.exit(main())
