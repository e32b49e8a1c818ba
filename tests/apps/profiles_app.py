#!/usr/bin/env python3
"""What each profile of netacc_run does to a program, and that none does so without it: for
options.sh. (Which parameters it sets, and to what: options.sh itself.)

    profiles_app.py shm ADDRESS
        a line for each: `NAME ok`, or `NAME FAILED: why`. Status 1: something failed, or a profile
        that netacc_run has is not looked at.
"""
import re
import subprocess
import sys

import options_app
from options_app import BIN, PLAIN, Pair, holds, run_tests, same

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


class Profiled(Pair):
    """A server and a client that are started by netacc_run, with that profile or with none."""

    def __init__(self, place, profile, **how):
        self.words = ["--profile", profile] if profile else []
        super().__init__(*place, {}, **how)

    def start(self, given, *words, **how):
        if not given:
            return super().start(given, *words, **how)
        program = [sys.executable, "-B", options_app.__file__, *words]
        return subprocess.Popen([BIN / "netacc_run", *self.words, *program], env=PLAIN | given, **how)


@test
def latency(place):
    """Who waits for a peer without the library looks at the kernel's socket before it sleeps."""
    for profile in None, "latency":
        with Profiled(place, profile, server={}) as both:
            both.tell("open 1")
            if profile:
                both.until(lambda: both.counter("kernel_looks"), "it looks", lambda: both.tell("turns 50"))
            else:
                both.tell("turns 300")
                same("looks without it", 0, both.counter("kernel_looks"))


@test
def throughput(place):
    """A ring has room for more."""
    sizes = {}
    for profile in None, "throughput":
        with Profiled(place, profile) as both:
            both.accelerate(1)
            sizes[profile] = both.until(lambda: both.sockets()[0]["tx_ring_bytes"], "a ring's size is known")
    holds(f"the rings of {sizes}", sizes["throughput"] == 1 << 20 and sizes["throughput"] >= 2 * sizes[None])


@test
def polite(place):
    """No wait polls, where others do."""
    for profile in None, "polite":
        with Profiled(place, profile) as both:
            both.accelerate(1)
            spins = lambda: both.counter("spins_won") + both.counter("spins_lost")
            if profile:
                both.tell("turns 300")
                same("polls with it", 0, spins())
            else:
                both.until(spins, "it polls without it", lambda: both.tell("turns 50"))


def main(*place):
    said = subprocess.run([BIN / "netacc_run", "--profile", "none-such", "true"], env=PLAIN, capture_output=True, text=True)
    listed = re.search(r"possible values: ([a-z, ]+)\]", said.stderr)
    failed = not listed or set(listed[1].split(", ")) != set(TESTS)
    if failed:
        print(f"list FAILED: here are {sorted(TESTS)}; netacc_run says {said.stderr!r}")
    return run_tests(TESTS, place, failed=failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
