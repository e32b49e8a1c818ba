"""A connection between two hosts of whose queue pair nothing arrives any more, while the kernel's
TCP works on: which end gives the pair up, and when, is NACC_RDMA_STALL_MS.

stalled.py SERVER PORT: in the client's kernel, on rxe; echoes are served there
(tests/apps/options_app.py serve). A line for each value: `VALUE ok`, or `VALUE FAILED: why`.
"""
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, "/rig/tree/tests/apps")
from options_app import PLAIN, Pair, holds, run_tests, same, trace_of

ROCE = 4791


class Client(Pair):
    """Of a server that is on another host."""

    def __init__(self, address, port, options):
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.log, self.server = "rdma", Path(self.folder.name) / "log", None
        given = {"NACC_LOG_PATH": str(self.log), "NACC_CONF": "/dev/null"} | options
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.client = self.start(given, "obey", address, port, **pipes)

    def __exit__(self, *_):
        self.client.kill()
        self.client.wait()
        self.folder.cleanup()


@contextlib.contextmanager
def dark():
    """Nothing of the device's packets leaves this host, and nobody says so."""
    tc = lambda *words: subprocess.run(["tc", *words], env=PLAIN, check=True)
    tc("qdisc", "add", "dev", "net0", "root", "handle", "1:", "prio")
    try:
        tc("filter", "add", "dev", "net0", "parent", "1:", "protocol", "ip", "prio", "4", "flower",
           "ip_proto", "udp", "dst_port", str(ROCE), "action", "drop")
        yield
    finally:
        tc("qdisc", "del", "dev", "net0", "root")


def gives_up(both):
    with dark():
        both.tell("turns 4")
        both.until(lambda: " slow rdma ms " in trace_of(both), "it is in the trace")
    holds("a pair is given up", both.counter("rdma_pairs_stalled"))


def does_not(both):
    with dark():
        both.tell("last")
        time.sleep(1)
        same("on RDMA, though nothing arrives", 1, both.on())
    both.tell("echo")
    same("pairs given up", 0, both.counter("rdma_pairs_stalled"))


def stalled(value, body):
    with Client(*sys.argv[1:], {"NACC_RDMA_STALL_MS": value}) as both:
        body(both.accelerate(1))


sys.exit(run_tests({"200": lambda: stalled("200", gives_up), "0": lambda: stalled("0", does_not)}))
