#!/usr/bin/env python3
"""What a rule of netacc.conf says of its connections besides their path, changed, and what comes of
it: for tests/rdma/parts/rules.sh. (Within the host: rules.sh.)

    rule_app.py shm|rdma ADDRESS
        a line for each key: `KEY ok`, or `KEY FAILED: why`. Status 1: something failed.
"""
import sys
import tempfile

from options_app import holds, of, run_tests, same, trace_of

TESTS = {}


def test(function):
    TESTS[function.__name__] = function
    return function


class Ruled:
    """A pair both of whose ends have that rule; it is of another port where `elsewhere`."""

    def __init__(self, pair, options, key, elsewhere):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".conf")
        self.file.write(f"[netacc]\n[rule r]\n{'port=1' if elsewhere else 'direction=out'}\n{key}\n")
        self.file.flush()
        self.pair = pair(options=options | {"NACC_CONF": self.file.name})

    def __enter__(self):
        return self.pair.__enter__().accelerate(1)

    def __exit__(self, *what):
        self.pair.__exit__(*what)
        self.file.close()


@test
def poll(pair):
    """The client's waits poll by the rule, and not by NACC_POLL_MS."""
    for general, key, elsewhere, polls in (("10", "poll=0", False, False), ("10", "poll=0", True, True),
                                           ("0", "poll=1ms", False, True), ("0", "poll=1ms", True, False)):
        with Ruled(pair, {"NACC_POLL_MS": general}, key, elsewhere) as both:
            spins = lambda: both.counter("spins_won") + both.counter("spins_lost")
            if polls:
                both.until(spins, f"it polls by {key}, {elsewhere}, with {general}", lambda: both.tell("turns 50"))
            else:
                both.tell("turns 300")
                same(f"polls by {key}, {elsewhere}, with {general}", 0, spins())
                holds("it sleeps", both.counter("sleeps"))


@test
def trace(pair):
    """The client's connections are traced by the rule, and not by NACC_TRACE."""
    for general, key, elsewhere, told in (("1", "trace=0", False, False), ("1", "trace=0", True, True),
                                          ("0", "trace=1", False, True), ("0", "trace=1", True, False)):
        with Ruled(pair, {"NACC_TRACE": general}, key, elsewhere) as both:
            is_told = lambda: " promoted " in trace_of(both)
            if told:
                both.until(is_told, f"it is told by {key}, {elsewhere}, with {general}", lambda: both.tell("turns 4"))
            else:
                both.tell("turns 50")
                same(f"told by {key}, {elsewhere}, with {general}", False, is_told())


def main(path, address):
    return run_tests(TESTS, of(path, address))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
