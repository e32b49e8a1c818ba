"""Tests of the table and the goals of tests/apps/run: python3 -m unittest tests/apps/test_run.py"""

import contextlib
import importlib.machinery
import importlib.util
import io
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

loader = importlib.machinery.SourceFileLoader("run", str(Path(__file__).parent / "run"))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
loader.exec_module(run)


def row(others=0.0, **settings):
    goals = {"share": 95, "ratio": 1.0, "p99": True, "slowest": False} | settings.pop("goals", {})
    return {"title": "a", "works": True, "why": [], "shares": {"server": (10, 10)}, "share": 1.0, "at_once": {}, "reasons": {},
            "note": "", "ratio": 1.2, "p99": [0.002, 0.001], "goals": goals, "others": others, "load": 1.5,
            "date": "2026-11-28"} | settings


class Goals(unittest.TestCase):
    def test_reached(self):
        self.assertEqual(run.counts(row()), [])
        self.assertEqual(run.not_judged(row(others=0.9)), "")

    def test_missed(self):
        self.assertEqual(run.counts(row(ratio=0.9, share=0.5, p99=[0.001, 0.002])), ["share", "ratio", "p99"])

    def test_on_a_busy_machine_speed_is_not_judged_and_the_share_is(self):
        busy = row(ratio=0.9, share=0.5, others=0.4)
        self.assertEqual(run.counts(busy), ["share"])
        self.assertEqual(run.not_judged(busy), "not judged: ratio, as others had 40% of the CPUs")
        self.assertIn("not judged: ratio", run.describe(busy))

    def test_the_at_once_share_of_a_suite(self):
        self.assertEqual(run.counts(row(at_once={"server": (6, 10), "client": (9, 10)}, goals={"at_once": 60})), [])
        for at_once in ({"server": (5, 10), "client": (9, 10)}, {}):
            missed = row(at_once=at_once, others=0.9, goals={"at_once": 60})
            self.assertEqual(run.counts(missed), ["at-once share"])
            self.assertIn("(goal 60 %)", run.cells(missed)[2])
        self.assertEqual(run.counts(row()), [], "a program without that side, and a row of before")

    def test_slowest(self):
        self.assertEqual(run.counts(row(worst=(0.01, 0.05))), [], "that is no goal below 100 ms")
        self.assertEqual(run.counts(row(worst=(0.01, 0.2))), ["slowest request"])
        self.assertEqual(run.counts(row(worst=(0.01, 0.02), goals={"slowest": True})), ["slowest request"])


def quiet():
    return contextlib.redirect_stdout(io.StringIO())


def program(*sides, **settings):
    """A program none of whose jobs is run: `results` has what they come to, side by side."""
    return run.kit.Program("a", "a", None, sides=sides, **settings)


class Measured(unittest.TestCase):
    """Rows, of jobs that have come to something."""

    def row(self, one, **results):
        """results: what the rounds of a side came to."""
        left = {side.replace("_", "-"): list(some) for side, some in results.items()}

        class Job:
            def __init__(self, what, side, tools, only=()):
                self.side = side

            def run(self):
                result = left[self.side].pop(0)
                if isinstance(result, Exception):
                    raise result
                result.shares, result.reasons = {"server": (1, 1)}, {}
                return result

        with mock.patch.object(run.kit, "Job", Job), tempfile.TemporaryDirectory() as tools, quiet():
            return run.measure(one, Path(tools), None)

    def test_the_slowest_of_the_median_round(self):
        rounds = lambda *times: [run.kit.Result(worst=time) for time in times]
        one = program("plain", "both", rounds=5, slowest=True)
        quiet = rounds(0.010, 0.013, 0.009, 0.010, 0.011)
        often = self.row(one, plain=quiet, both=rounds(0.012, 0.014, 0.014, 0.015, 0.005))
        self.assertEqual((often["worst"], run.counts(often | {"others": 0})), ((0.013, 0.014), ["slowest request"]))
        once = self.row(one, plain=rounds(0.010, 0.013, 0.009, 0.010, 0.011), both=rounds(0.012, 0.050, 0.012, 0.040, 0.005))
        self.assertEqual((once["worst"], run.counts(once | {"others": 0})), ((0.013, 0.012), []))

    def test_errors(self):
        result = lambda errors: [run.kit.Result(errors=errors)]
        self.assertTrue(self.row(program("plain", "both"), plain=result(2), both=result(2))["works"])
        self.assertFalse(self.row(program("plain", "both"), plain=result(2), both=result(3))["works"])
        self.assertFalse(self.row(program("plain", "both", faultless=True), plain=result(2), both=result(1))["works"])
        self.assertTrue(self.row(program("plain", "both", faultless=True), plain=result(2), both=result(0))["works"])

    def test_broken_connections(self):
        rounds = lambda *counts: [run.kit.Result(broken=count) for count in counts]
        one = program("plain", "both", rounds=3)
        good = self.row(one, plain=rounds(70, 76, 74), both=rounds(82, 60, 70))
        self.assertTrue(good["works"])
        self.assertIn("70 to 76, with the library 60 to 82", run.describe(good))
        self.assertIn("70 to 76, with the library 60 to 82", run.cells(good | {"load": 1})[4])
        bad = self.row(one, plain=rounds(70, 76, 74), both=rounds(60, 83, 70))
        self.assertEqual(bad["why"], ["both: 83 connections broke, of 82 at most: 70 to 76 without the library"])
        self.assertFalse(self.row(one, plain=rounds(16, 16, 16), both=rounds(16, 17, 16))["works"])

    def test_without_the_library_of_tests_inject(self):
        got = self.row(program("plain", "at-once"), plain=[run.kit.Result()], at_once=[])
        self.assertFalse(got["works"])
        self.assertIn("tests/inject", got["why"][0])

    def suite(self, first, *more, plain=()):
        """A suite whose file t failed so with the library; both sides of each more run."""
        of = lambda names: isinstance(names, Exception) and names or run.kit.Result(failed={"t": names})
        with mock.patch.object(run.kit, "TRIES", len(more)):
            return self.row(program("plain", "both"), plain=[of(plain), *(of(names) for names, _ in more)],
                            both=[of(first), *(of(names) for _, names in more)])

    def test_what_failed_once_is_run_again_on_both_sides(self):
        never = self.suite(["a"], ([], []), ([], []))
        self.assertTrue(never["works"])
        self.assertEqual(never["again"], ["both: t: a failed once, and not in 2 more runs"])
        self.assertIn("t: a failed once", run.cells(never | {"load": 1})[4])
        as_often = self.suite(["a"], (["a"], []), ([], ["a"]))
        self.assertTrue(as_often["works"])
        self.assertEqual(as_often["again"], ["both: t: a failed 1 of 2 times, 1 without the library"])
        oftener = self.suite(["a"], (["a"], ["a"]), ([], ["a"]))
        self.assertEqual((oftener["works"], oftener["why"]), (False, ["both: t: a failed 2 of 2 times, 1 without the library"]))
        self.assertIn("t: a failed 2 of 2", run.cells(oftener | {"load": 1})[4])

    def test_one_test_that_always_fails_hides_no_other_one(self):
        got = self.suite(["a"], (["a"], ["a", "b"]), (["a"], ["a"]), plain=["a"])
        self.assertEqual(got["why"], ["both: t: b failed 1 of 2 times, 0 without the library"])

    def test_a_run_that_breaks_off_is_a_failure(self):
        broken = run.kit.Broken("hangs")
        self.assertFalse(self.suite(["a"], ([], broken), ([], []))["works"])
        self.assertTrue(self.suite(["a"], (broken, []), ([], []))["works"])

    def test_what_does_not_fail_is_not_run_again(self):
        self.assertEqual(self.suite([], plain=["a"])["again"], [])

    def test_fewer_tests_are_a_failure(self):
        result = lambda count: run.kit.Result(tests={"t": count})
        self.assertEqual(run.kit.failures(result(7), result(8)), {"t": ["fewer tests"]})
        self.assertEqual(run.kit.failures(result(9), result(8)), {})

    def test_many_units_are_no_accident(self):
        asked = []
        failed = {f"t{number}": ["a"] for number in range(run.kit.MANY + 1)}
        bad, _ = run.kit.tried(failed, "both", lambda *ask: asked.append(ask) or [])
        self.assertEqual((len(bad), asked), (1, []))
        bad, said = run.kit.tried(failed, "both", lambda *ask: asked.append(ask) or [], known=["t0"])
        self.assertEqual((bad, len(said), len(asked)), ([], run.kit.MANY + 1, 2 * run.kit.TRIES * len(failed)))
        self.assertEqual(asked[:4], [("plain", "t0"), ("both", "t0")] * 2, "in turn")


class Suites(unittest.TestCase):
    """What the suites say of themselves."""

    def redis(self, *parts, only=()):
        """The result of the suite, whose parts print this, and end so."""
        from real import redis
        left = list(parts)
        with tempfile.TemporaryDirectory() as tree:
            (Path(tree) / "tests").mkdir()
            (Path(tree) / "tests/test_helper.tcl").write_text("set ::all_tests {\n unit/a\n unit/b\n unit/c\n}")
            with quiet(), mock.patch.multiple(redis, place=lambda job: Path(tree), part=lambda *_: left.pop(0), UNITS=["unit/a", "unit/b", "unit/c"]):
                got = redis.run(SimpleNamespace(only=only, side="both"))
        self.assertEqual(left, [])
        return got

    BEGUN = "Testing unit/a\n[ok]: one (1 ms)\nTesting unit/b\n"

    def test_redis(self):
        rest = "[1/3 done]: unit/a (0 seconds)\nTesting unit/c\n[2/3 done]: unit/b (1 seconds)\n[ok]: two (1 ms)\n[3/3 done]: unit/c (1 seconds)\n"
        good = self.redis((self.BEGUN + rest, None))
        self.assertEqual((good.failed, good.note), ({}, "2 tests of 3 units, of 3"))
        bad = self.redis((self.BEGUN + "[err]: it works in tests/unit/b.tcl\nExpected\n" + rest, "ends with 1"))
        self.assertEqual(bad.failed, {"unit/b": ["it works"]})

    def test_redis_stops_and_goes_on_behind_it(self):
        stopped = "[1/3 done]: unit/a (0 seconds)\n[exception]: Executing test client: I/O error\n"
        got = self.redis((self.BEGUN + stopped, "ends with 1"), ("Testing unit/c\n[ok]: two (1 ms)\n[1/1 done]: unit/c (1 seconds)\n", None))
        self.assertEqual((got.failed, got.note), ({"unit/b": ["ends with 1"]}, "2 tests of 3 units, of 3"))

    def test_redis_does_not_say_what_has_failed(self):
        rest = "[1/3 done]: unit/a (0 seconds)\nTesting unit/c\n[2/3 done]: unit/b (1 seconds)\n[3/3 done]: unit/c (1 seconds)\n"
        got = self.redis((self.BEGUN + rest, "ends with 1"))
        self.assertEqual(list(got.failed), ["unit/a, unit/b, unit/c"])
        again = self.redis((self.BEGUN + rest, None), only=tuple(got.failed))
        self.assertEqual(again.failed, {})


class Table(unittest.TestCase):
    OLD = "| program | works |\n|---|---|\n| a | was |\n| b | was |\n| gone | was |\n"
    PROGRAMS = {name: SimpleNamespace(title=name) for name in ("a", "b", "c")}

    def test_what_was_not_run_stays(self):
        lines = run.table(self.PROGRAMS, {"a": row()}, self.OLD)
        self.assertEqual(lines[2:], ["| a | yes | 100 % | 1.20x |  | 2026-11-28, load 1.5, others 0% |", "| b | was |"])

    def test_what_cannot_be_had_now_stays_too(self):
        skipped = {"skipped": "no network", "others": 0, "load": 1, "date": "2026-11-28"}
        rows = {name: skipped | {"title": name} for name in ("b", "c")}
        lines = run.table(self.PROGRAMS, rows, self.OLD)
        self.assertEqual(lines[2:], ["| a | was |", "| b | was |", "| c | not run |  |  | no network | 2026-11-28, load 1.0, others 0% |"])

    def test_at_once(self):
        told = run.cells(row(at_once={"server": (9, 10), "client": (10, 10)}, ratio=0.9))
        self.assertEqual(told[2:5], ["100 %; at once 90 %", "0.90x (goal 1.0x)", "at once: client 10 of 10, server 9 of 10"])

    def test_a_name_with_a_bar(self):
        self.assertIn("a / b failed", run.cells(row(again=["both: a | b failed once"]))[4])


if __name__ == "__main__":
    unittest.main()
