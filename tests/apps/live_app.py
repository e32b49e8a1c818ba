#!/usr/bin/env python3
"""The parameters that take effect while a program runs, set by `netacc cfg set`, and what comes of
it: for options.sh and tests/rdma/parts/options.sh. (At the start: options_app.py.)

    live_app.py shm|rdma ADDRESS
        a line for each: `NAME ok`, or `NAME FAILED: why`. Status 1: something failed, or a
        parameter that `netacc cfg list` says is live is tested nowhere.
"""
import json
import signal
import subprocess
import sys
import time

from options_app import BIN, PLAIN, TREE, holds, of, run_tests, same, trace_of

# Those that have tests of their own, in which they are set.
ELSEWHERE = {
    "NACC_ENABLE_RDMA_DEFAULT": {"shm": "tests/apps/off.sh", "rdma": "tests/rdma/parts/off.sh"},
}
TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


def set_live(both, name, value):
    """In the client, which has a connection."""
    words = [BIN / "netacc", "cfg", "set", name, str(value), "-p", str(both.client.pid)]
    said = subprocess.run(words, env=PLAIN, capture_output=True, text=True)
    holds(f"{name}={value} cannot be set: {said.stdout}{said.stderr}", said.returncode == 0)


def to_and_fro(both, name, values, count, what):
    """Nothing is counted, then something, then nothing more."""
    never, value = values
    both.tell("turns 300")
    same(f"{what} from the start with {never}", 0, count())
    set_live(both, name, value)
    both.until(count, f"{what} with {value}", lambda: both.tell("turns 50"))
    set_live(both, name, never)
    before = count()
    both.tell("turns 300")
    same(f"{what} with {never} again", before, count())


@test
def NACC_POLL_MS(path, pair):
    with pair(options={"NACC_POLL_MS": "0"}) as both:
        both.accelerate(1)
        to_and_fro(both, "NACC_POLL_MS", (0, 10), lambda: both.counter("spins_won") + both.counter("spins_lost"), "polls")


@test
def NACC_POLL_TCP_US(path, pair):
    """Of connections on plain TCP, whose server has no library."""
    with pair(options={"NACC_POLL_TCP_US": "0"}, server={}) as both:
        both.tell("open 1")
        to_and_fro(both, "NACC_POLL_TCP_US", (0, 1000), lambda: both.counter("kernel_looks"), "looks")


def is_told_of(both):
    """Whether the trace of another connection tells that a send of its waited for half a second."""
    both.accelerate(1).tell("pour")
    both.tell("drink")
    # (Over RDMA it has a whole ring from here on.)
    wanted = len(both.sockets())
    both.until(lambda: both.on() == wanted, "it is back", lambda: both.tell("turns 4"))
    newest = lambda: trace_of(both).rsplit("\nconnection ", 1)[1]
    both.server.send_signal(signal.SIGSTOP)
    try:
        both.tell("pour")
        both.until(lambda: " full " in newest(), "a send finds no room")
        time.sleep(0.5)
    finally:
        both.server.send_signal(signal.SIGCONT)
    both.until(lambda: " slow send ms " in newest() or " wake send " in newest(), "the wait is told, or over")
    told = " slow " in newest()
    both.tell("drink")
    return told


@test
def NACC_TRACE_SLOW_MS(path, pair):
    """A send that finds no room for longer is told; with 0 none is."""
    with pair(options={"NACC_TRACE_SLOW_MS": "0"}) as both:
        same("told from the start with 0", False, is_told_of(both))
        for bound in (100, 0):
            set_live(both, "NACC_TRACE_SLOW_MS", bound)
            same(f"told with {bound}", bool(bound), is_told_of(both))


@test
def NACC_TRACE(path, pair):
    """With 2 it is measured how long answers take, also of a connection that there is; with 1 no
    more of them; with 0 nothing is told."""
    with pair(options={"NACC_TRACE": "1"}) as both:
        both.accelerate(1)
        measured = lambda: sum(of["answer_count"] or 0 for of in both.sockets())
        both.tell("turns 50")
        same("answers measured with 1", 0, measured())
        set_live(both, "NACC_TRACE", 2)
        both.until(measured, "answers are measured with 2", lambda: both.tell("turns 10"))
        for level in (1, 0):
            set_live(both, "NACC_TRACE", level)
            before = measured()
            both.tell("turns 50")
            same(f"answers measured with {level}", before, measured())
        told = len(trace_of(both).splitlines())
        both.tell("turns 300")
        same("lines of the trace with 0", told, len(trace_of(both).splitlines()))


@test
def NACC_CONNECT_RDMA_PERCENT(path, pair):
    """Of new connections; those that there are stay where they are."""
    with pair() as both:
        both.accelerate(2)
        set_live(both, "NACC_CONNECT_RDMA_PERCENT", 0)
        both.tell("open 3")
        left_out = lambda: both.reasons().count("sampled-out") == 3
        both.until(left_out, "3 are left out", lambda: both.tell("turns 4"))
        same("accelerated", 2, both.on())
        set_live(both, "NACC_CONNECT_RDMA_PERCENT", 100)
        both.accelerate(1)
        same("left out", True, left_out())


@test
def NACC_LOG_LEVEL(path, pair):
    said = lambda both: both.log.read_text().count(" DEBUG ") if both.log.exists() else 0
    with pair(options={"NACC_LOG_LEVEL": "3"}) as both:
        both.accelerate(1)
        same("DEBUG with 3", 0, said(both))
        set_live(both, "NACC_LOG_LEVEL", 1)
        both.accelerate(1)
        holds("no DEBUG with 1", said(both))


@test
def NACC_CONN_TCP_FIRST(path, pair):
    """Of a connection that only sends, to a listener that is known: it shows with the eighth that
    it lives, and with 1 that is not enough. Between hosts there is no effect."""
    with pair(options={"NACC_CONN_TCP_FIRST": "0"}) as both:
        both.accelerate(1)
        for first, waiting in ((0, 0), (1, 1), (0, 1)):
            set_live(both, "NACC_CONN_TCP_FIRST", first)
            both.tell("open 1")
            for _ in range(8):
                both.tell("last")
            waiting = waiting if path == "shm" else 0
            same(f"have not started with {first}", waiting, both.reasons().count("not-started"))


def main(path, address):
    words = [BIN / "netacc", "cfg", "list", "--json"]
    listed = subprocess.run(words, env=PLAIN | {"NACC_CONF": "/dev/null"}, check=True, capture_output=True).stdout
    live = {one["name"] for one in json.loads(listed)["parameters"] if one["takes_effect"] != "restart"}
    failed = False
    if strangers := live ^ {*TESTS, *ELSEWHERE}:
        print(f"list FAILED: here or in `netacc cfg list` alone: {sorted(strangers)}")
        failed = True
    for name, places in ELSEWHERE.items():
        where = places[path]
        if f" set {name}" not in (TREE / where).read_text():
            print(f"{name}-elsewhere FAILED: {where} does not set it")
            failed = True
    return run_tests(TESTS, path, of(path, address), failed=failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
