"""Tests of what options_app.py and its like share: python3 -m unittest
tests/apps/test_options.py"""

import contextlib
import importlib.util
import io
import subprocess
import unittest
from pathlib import Path

spec = importlib.util.spec_from_file_location("options_app", Path(__file__).parent / "options_app.py")
options_app = importlib.util.module_from_spec(spec)
spec.loader.exec_module(options_app)


class Run(unittest.TestCase):
    def setUp(self):
        self.ran = []

    def told(self, *wanted, **how):
        """What is printed, and whether something failed."""
        def good(*given):
            self.ran.append(given)

        def raises(what):
            def body(*_):
                raise what
            return body

        tests = {"a": good, "b": good, "none": raises(options_app.Skipped("no why")), "slow": raises(subprocess.TimeoutExpired("x", 1)),
                 "bad": raises(options_app.Failed("why"))}
        with contextlib.redirect_stdout(io.StringIO()) as out:
            failed = options_app.run_tests(tests, 1, 2, wanted=wanted, **how)
        return out.getvalue().splitlines(), failed

    def test_all(self):
        said = ["a ok", "b ok", "none skipped: no why", "slow FAILED: TimeoutExpired('x', 1)", "bad FAILED: Failed('why')"]
        self.assertEqual(self.told(), (said, True))
        self.assertEqual(self.ran, [(1, 2)])

    def test_wanted(self):
        self.assertEqual(self.told("a", "none"), (["a ok", "none skipped: no why"], False))
        self.assertEqual(self.told("-slow", "-bad", "-none"), (["a ok", "b ok"], False))
        self.assertEqual(self.told("a", "b", "-b"), (["a ok"], False))
        self.assertEqual(self.told("a", failed=True), (["a ok"], True))

    def test_strangers(self):
        self.assertEqual(self.told("x"), (["list FAILED: no tests of ['x']"], True))
        self.assertEqual(self.told("a", "-x"), (["list FAILED: no tests of ['x']", "a ok"], True))
        self.assertEqual(self.ran, [(1, 2)])


if __name__ == "__main__":
    unittest.main()
