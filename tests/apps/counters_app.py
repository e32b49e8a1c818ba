#!/usr/bin/env python3
"""Every counter of netacc_ss, by its name: what makes it rise, and that it does. For options.sh
and tests/rdma/parts/options.sh.

    counters_app.py shm|rdma ADDRESS
        a line for each counter that is looked at on that path: `NAME ok`, or `NAME FAILED: why`.
        Status 1: something failed, or a counter of netacc_ss is looked at nowhere.
"""
import contextlib
import signal
import sys

from live_app import set_live
from options_app import TREE, holds, of, run_tests, same

# Counters that are looked at by their names in other tests, where what they count is made.
ELSEWHERE = {
    "auth_failures": "crates/core/src/remote/tests/squatter.rs",
    "channels_failed": "crates/core/src/service/tests/hostile.rs",
    "fail_overs": "tests/rdma/guest/forked.py",
    "log_lines_dropped": "tests/apps/doctor.sh",
    "looks_won": "tests/src/broker.rs",
    "offers_refused": "crates/core/src/remote/tests/rings.rs",
    "peer_corrupt": "crates/core/src/service/tests/hostile.rs",
    "rdma_claims_proven": "crates/core/src/remote/tests/agreed.rs",
    "rdma_claims_unproven": "crates/core/src/remote/tests/agreed.rs",
    "rdma_credits": "tests/rdma/guest/counts.py",
    "rdma_links": "tests/rdma/parts/redis.sh",
    "rdma_messages_received": "tests/rdma/guest/counts.py",
    "rdma_messages_sent": "tests/rdma/guest/counts.py",
    "rdma_pairs_created": "tests/rdma/guest/counts.py",
    "rdma_pairs_lost": "crates/core/src/remote/tests/policy.rs",
    "rdma_pairs_reused": "tests/rdma/guest/counts.py",
    "rdma_pairs_stalled": "tests/rdma/guest/stalled.py",
    "rdma_regions": "tests/rdma/guest/counts.py",
    "rdma_work_requests": "tests/rdma/guest/counts.py",
    "records_exhausted": "crates/core/src/stats.rs",
    "utcp_bytes_rx": "tests/apps/utcp_app.py",
    "utcp_bytes_tx": "tests/apps/utcp_app.py",
    "utcp_given_back": "tests/apps/utcp_app.py",
    "utcp_lost": "tests/apps/utcp_app.py",
    "utcp_taken_out": "tests/apps/utcp_app.py",
}
SHM, RDMA = {}, {}


def test(names, paths=(SHM,)):
    """Those counters are looked at by this test, on those paths."""
    def note(function):
        for path in paths:
            path |= {name: function for name in names.split()}
        return function
    return note


def counters(both, process=None):
    return both.look("cnt", process)["counters"]


def rises(both, name, step, process=None, by=1):
    """What it was before, until it is more."""
    before = counters(both, process).get(name, 0)
    risen = lambda: counters(both, process).get(name, 0) >= before + by
    both.until(risen, f"{name} rises from {before}", step)


def exactly(both, name, more, step, process=None):
    before = counters(both, process).get(name, 0)
    step()
    both.until(lambda: counters(both, process).get(name, 0) >= before + more, f"{name} rises by {more}")
    same(f"{name} rises", more, counters(both, process).get(name, 0) - before)


@test("accepted connected")
def connections(path, pair):
    with pair() as both:
        both.accelerate(1)
        exactly(both, "connected", 3, lambda: both.tell("open 3"))
        both.until(lambda: counters(both, both.server)["accepted"] == 4, "4 are accepted")


@test("promoted_tx promoted_rx demoted")
def directions(path, pair):
    with pair() as both:
        both.accelerate(3)
        had = counters(both)
        same("promoted", [3, 3], [had["promoted_tx"], had["promoted_rx"]])
        same("demoted before", 0, had["demoted"])
        set_live(both, "NACC_ENABLE_RDMA_DEFAULT", 0)
        both.until(lambda: both.on("tcp") == 3, "they are on TCP", lambda: both.tell("turns 4"))
        both.until(lambda: counters(both)["demoted"] == 6, "both directions of 3 are demoted")


@test("pulled_back")
def unread(path, pair):
    """What the client has not read lies in the ring, and comes by TCP."""
    with pair() as both:
        both.accelerate(1)
        rises(both, "messages_tx", lambda: both.tell("last"))
        both.until(lambda: counters(both, both.server)["messages_tx"] == counters(both)["messages_tx"], "it is sent back")
        same("pulled back before", 0, counters(both)["pulled_back"])
        set_live(both, "NACC_ENABLE_RDMA_DEFAULT", 0)
        both.tell("echo")
        both.until(lambda: sum(counters(both, p)["pulled_back"] for p in (both.client, both.server)), "it was pulled back")


@test("doorbells_rung wakeups sleeps kernel_epoll_visits")
def asleep(path, pair):
    """Nobody polls: each message wakes who waits for it."""
    with pair(options={"NACC_POLL_MS": "0"}) as both:
        both.accelerate(1)
        for process in (both.client, both.server):
            for name in ("doorbells_rung", "wakeups", "sleeps"):
                rises(both, name, lambda: both.tell("turns 10"), process, 10)
        rises(both, "kernel_epoll_visits", lambda: both.tell("turns 10"), both.server)


@contextlib.contextmanager
def stopped(process):
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@test("spins_won spins_lost spins_skipped")
def polls(path, pair):
    with pair(options={"NACC_POLL_MS": "10"}) as both:
        both.accelerate(1)
        rises(both, "spins_won", lambda: both.tell("turns 50"))
        # Nothing comes for longer than that; and where that is so again and again, it does not pay.
        rises(both, "spins_lost", lambda: slow_answer(both))
        rises(both, "spins_skipped", lambda: slow_answer(both))


def slow_answer(both):
    """The client waits while the server stands still."""
    with stopped(both.server):
        both.tell("last")
        both.ask("echo")
        both.until(lambda: both.is_asleep(), "the client sleeps")
    both.answer("echo")


@test("kernel_looks looks_lost")
def looks(path, pair):
    with pair(options={"NACC_POLL_TCP_US": "1000"}, server={}) as both:
        both.tell("open 1")
        rises(both, "kernel_looks", lambda: both.tell("turns 50"))
        rises(both, "looks_lost", lambda: slow_answer(both))


@test("offers_sent offers_received channels_opened channels_closed")
def agreements(path, pair):
    with pair(options={"NACC_EMPTY_QP_EXPIRE_MS": "0"}) as both:
        both.accelerate(3)
        same("offers", [3, 3], [counters(both, both.server)["offers_sent"], counters(both)["offers_received"]])
        for process in (both.client, both.server):
            same("channels", [1, 0], [counters(both, process)[f"channels_{name}"] for name in ("opened", "closed")])
        both.tell("close")
        for process in (both.client, both.server):
            both.until(lambda: counters(both, process)["channels_closed"] == 1, "the channel is closed")


@test("epoll_ctl_saved")
def sets(path, pair):
    with pair() as both:
        both.accelerate(1)
        rises(both, "epoll_ctl_saved", lambda: both.tell("sets 20"), by=20)


@test("forks")
def forks(path, pair):
    with pair() as both:
        both.accelerate(1)
        exactly(both, "forks", 2, lambda: [both.tell("fork") for _ in range(2)])


@test("shm_bytes_tx shm_bytes_rx tcp_bytes_tx tcp_bytes_rx messages_tx messages_rx")
def within(path, pair):
    moved(pair, "shm")


@test("rdma_bytes_tx rdma_bytes_rx", (RDMA,))
def between(path, pair):
    moved(pair, "rdma")


def moved(pair, path):
    """100 bytes in each turn, on the path where it is; and before on TCP."""
    with pair() as both:
        both.accelerate(1)
        had = counters(both)
        both.tell("turns 50")
        now = counters(both)
        for direction in ("tx", "rx"):
            for name, more in ((path, 5000), ("tcp", 0)):
                name = f"{name}_bytes_{direction}"
                same(name, more, now[name] - had[name])
            holds("something came by TCP at first", had[f"tcp_bytes_{direction}"])
        same("messages sent", 50, now["messages_tx"] - had["messages_tx"])
        holds("messages received", 50 <= now["messages_rx"] - had["messages_rx"] <= 5000)


@test("rdma_registered_bytes rdma_polls rdma_arms rdma_io_wakeups", (RDMA,))
def device(path, pair):
    with pair(options={"NACC_POLL_MS": "0"}) as both:
        both.accelerate(1)
        arena = sum(c["arena_bytes"] for c in both.channels())
        registered = counters(both)["rdma_registered_bytes"]
        holds(f"{registered} bytes are registered, {arena} of rings", registered >= arena > 0)
        for name in ("rdma_polls", "rdma_arms", "rdma_io_wakeups"):
            rises(both, name, lambda: both.tell("turns 20"))


def occupancy(path, pair):
    """How much of a ring is unread, and of how large a one: nothing; something, while who should
    read does not; nothing again. At the end that sends, over RDMA at the one that receives."""
    with pair() as both:
        both.accelerate(1).tell("pour")
        both.tell("drink")
        # (Over RDMA it has a whole ring from here on.)
        both.until(lambda: both.on() == 1, "it is back", lambda: both.tell("turns 4"))
        names = ("rx" if path == "rdma" else "tx") + "_ring_used", ("rx" if path == "rdma" else "tx") + "_ring_bytes"
        used, size = lambda: both.sockets()[0][names[0]], lambda: both.sockets()[0][names[1]]
        # (The library looks once a second while bytes move.)
        both.until(lambda: used() == 0, "all is read", lambda: both.tell("turns 4"))
        # (Over RDMA the client does not read what comes back: a process that stands still does not
        # look at its own ring.)
        with stopped(both.server) if path == "shm" else contextlib.nullcontext():
            both.tell("pour")
            some = both.until(used, "something is unread")
            holds(f"{some} unread of {size()}", 0 < some <= size() and size() >= 65536)
            # As nobody reads on, all of it; over RDMA but for the room that is told of in pieces.
            full = size() if path == "shm" else size() // 2
            both.until(lambda: used() >= full, "the ring is full")
        both.tell("drink")
        both.until(lambda: used() == 0, "all is read again")


def main(path, address):
    with of(path, address)() as both:
        both.accelerate(1)
        listed = set(counters(both))
    tests, failed = {"shm": SHM, "rdma": RDMA}[path], False
    if strangers := listed ^ {*SHM, *RDMA, *ELSEWHERE}:
        print(f"list FAILED: here or in netacc_ss alone: {sorted(strangers)}")
        failed = True
    for name, where in ELSEWHERE.items():
        variant = "".join(word.capitalize() for word in name.split("_"))
        text = (TREE / where).read_text()
        if name not in text and f"Counter::{variant}" not in text:
            print(f"{name}-elsewhere FAILED: {where} does not look at it")
            failed = True
    return run_tests(tests | {"ring_used": occupancy}, path, of(path, address), failed=failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
