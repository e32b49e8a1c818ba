"""Tests of the table and the goals of tests/apps/run: python3 -m unittest tests/apps/test_run.py"""

import importlib.machinery
import importlib.util
import unittest
from pathlib import Path
from types import SimpleNamespace

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

    def test_slowest(self):
        self.assertEqual(run.counts(row(worst=(0.01, 0.05))), [], "that is no goal below 100 ms")
        self.assertEqual(run.counts(row(worst=(0.01, 0.2))), ["slowest request"])
        self.assertEqual(run.counts(row(worst=(0.01, 0.02), goals={"slowest": True})), ["slowest request"])


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
        self.assertEqual(told[2:4], ["100 %; at once 90 %", "0.90x (goal 1.0x)"])


if __name__ == "__main__":
    unittest.main()
