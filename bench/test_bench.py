"""Tests of the parsers, the statistics and the tables: python3 -m unittest discover -s bench"""

import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
import against
import machine
import redis
import table


def program(name):
    """A program beside this one, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(Path(__file__).parent / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


looks, trace = program("looks"), program("trace")

CSV = '''WARNING: Could not fetch server CONFIG
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"SET","129198.97","0.712","0.160","0.703","1.183","1.711","4.255"
'''


class Looks(unittest.TestCase):
    def test_a_loss_counts_beyond_what_the_rounds_differ_by(self):
        self.assertFalse(looks.is_too_much([-0.01, -0.009, -0.01, -0.01, -0.008]))
        self.assertTrue(looks.is_too_much([-0.021, -0.02, -0.02, -0.019, -0.022]))
        self.assertFalse(looks.is_too_much([-0.03, 0.04, -0.02, 0.05, -0.06]), "a busy machine tells nothing")
        self.assertTrue(looks.is_too_much([-0.3, -0.25, -0.35, -0.28, -0.4]), "unless it is much")
        self.assertFalse(looks.is_too_much([0.02] * 5))

    def test_each_figure_of_who_looks_on_is_judged(self):
        most = 0.01 * os.cpu_count()
        for used, change, is_busy, says, wrong in [
            (0.9, 0.0, False, ["passed", "passed"], []),
            (1.1, 0.0, False, ["FAILED", "passed"], ["CPU time of ps"]),
            (1.1, -0.05, True, ["FAILED", "not judged"], ["CPU time of ps"]),
            (0.9, -0.05, False, ["passed", "FAILED"], ["the rate with ps"]),
            (1.1, -0.05, False, ["FAILED", "FAILED"], ["CPU time of ps", "the rate with ps"]),
        ]:
            text, found = looks.judged("ps", [used * most] * 3, [change] * 3, is_busy)
            self.assertEqual(found, wrong)
            self.assertEqual(re.findall("passed|FAILED|not judged", text), says, text)

    def test_connections_that_are_not_accelerated_show_nothing(self):
        self.assertTrue(looks.is_enough(10_000, 10_000))
        self.assertTrue(looks.is_enough(9_900, 10_000))
        self.assertFalse(looks.is_enough(9_899, 10_000))

    def test_one_round_has_no_spread(self):
        self.assertEqual(looks.error_of([-0.005]), 0)
        self.assertTrue(looks.is_too_much([-0.011]))


class Trace(unittest.TestCase):
    def test_each_budget_is_judged(self):
        def wrong(ping_pong, redis_rate, quiet=None):
            figures = [([400] * 9, [ping_pong] * 9), ([1000.0] * 9, [redis_rate] * 9)]
            lines = trace.judged("0,1", figures, quiet and [[n < quiet for n in range(9)]] * 2)
            for text, is_wrong in lines:
                self.assertEqual(text.endswith("FAILED"), is_wrong, text)
                self.assertEqual(text.endswith("not judged: 7 rounds without other work"), quiet == 7, text)
            return [is_wrong for _, is_wrong in lines]

        self.assertEqual(wrong(414, 971.0), [False, False])
        self.assertEqual(wrong(416, 971.0), [True, False])
        self.assertEqual(wrong(390, 969.0), [False, True])
        self.assertEqual(wrong(416, 969.0, 8), [True, True])
        self.assertEqual(wrong(416, 969.0, 7), [False, False])
        # By the median, whatever single rounds say; or where all say so.
        one = [([400] * 9, [410] + [416] * 8), ([1000.0] * 9, [1000.0] * 9)]
        self.assertEqual([is_wrong for _, is_wrong in trace.judged("0,1", one)], [True, False])
        self.assertEqual([is_wrong for _, is_wrong in trace.judged("0,1", one, [[True] * 9] * 2)], [False, False])

    def test_what_may_be_the_rounds_own_is_within_the_budget(self):
        # By the binomial distribution: of 9 the smallest, of 21 the fifth.
        self.assertEqual(trace.at_least(range(9)), 0)
        self.assertEqual(trace.at_least(range(21)), 4)
        self.assertIsNone(trace.at_least([]))


class Parsers(unittest.TestCase):
    def test_benchmark_output(self):
        figures = redis.parse_benchmark(CSV)
        self.assertEqual(figures["rps"], 129198.97)
        self.assertEqual((figures["p50_ms"], figures["p99_ms"], figures["max_ms"]), (0.703, 1.711, 4.255))

    def test_benchmark_output_that_is_not_one_result(self):
        head, line = CSV.splitlines()[1:]
        for wrong in ("", head, "\n".join([head, line, line]), '"SET","129198.97"', f'{head}\n"SET","x","1","1","1","1","1","1"',
                      f'{head}\n"SET","5"'):
            with self.assertRaises(redis.Failed, msg=wrong):
                redis.parse_benchmark(wrong)

    def test_counts(self):
        good = {"pid": 7, "connections_total": 101, "accelerated_total": 100, "open": {"tcp": 1, "shm": 100}}
        self.assertEqual(redis.parse_counts(json.dumps(good), 7), (101, 100))
        for change in ({"pid": 8}, {"connections_total": None}, {"accelerated_total": 102}, {"accelerated_total": -1},
                       {"accelerated_total": "1"}, {"accelerated_total": True}):
            with self.assertRaises(ValueError, msg=change):
                redis.parse_counts(json.dumps(good | change), 7)
        for wrong in ("", "[]", "{"):
            with self.assertRaises(ValueError):
                redis.parse_counts(wrong, 7)

    def test_environment_without_netacc(self):
        old = dict(os.environ)
        try:
            os.environ["LD_PRELOAD"] = "/a/libnetacc-preload.so:libx.so libnetacc_preload.so"
            self.assertEqual(redis.plain_environment()["LD_PRELOAD"], "libx.so")
            os.environ["LD_PRELOAD"] = "/a/libnetacc-preload.so"
            self.assertNotIn("LD_PRELOAD", redis.plain_environment())
        finally:
            os.environ.clear()
            os.environ.update(old)


class Statistics(unittest.TestCase):
    ROW = redis.Row("r", "label", "-c 2", clients=2)

    def run_of(self, kind, number, rps, counts=None):
        return {"kind": kind, "round": number, "rps": rps, "avg_ms": 1, "p50_ms": 1.0, "p95_ms": 2, "p99_ms": 3.0,
                "max_ms": 4.0, "acceleration": redis.acceleration(counts, clients=2)}

    def test_verdicts(self):
        verdict = lambda *a, **k: redis.acceleration(*a, clients=100, **k)["verdict"]
        self.assertEqual(verdict((101, 100)), "all")
        self.assertEqual(verdict((101, 99)), "partly")
        self.assertEqual(verdict((101, 0)), "none")
        self.assertEqual(verdict((0, 0)), "none")
        self.assertEqual(verdict(why="netacc_ss not found", loaded=True), "unknown")
        self.assertEqual(verdict(why="library not loaded", loaded=False), "none")
        self.assertEqual(verdict(), "not-asked")

    def test_medians_and_ratios(self):
        runs = [self.run_of("plain", 1, 100), self.run_of("accelerated", 1, 300, (3, 3)),
                self.run_of("plain", 2, 200), self.run_of("accelerated", 2, 400, (3, 2)),
                self.run_of("plain", 3, 110), {"kind": "accelerated", "round": 3, "error": "hangs"}]
        plain, ours = redis.summarise(self.ROW, runs)
        self.assertEqual((plain["rps"], plain["ratio"], plain["rounds"]), (110, 1, 3))
        self.assertEqual((ours["rps"], ours["rounds"]), (350, 2))
        self.assertAlmostEqual(ours["ratio"], 350 / 110)
        self.assertAlmostEqual(ours["ratio_paired"], 2.5)
        self.assertEqual((ours["acceleration"]["accelerated"], ours["acceleration"]["connections"]), (5, 6))
        self.assertEqual(ours["acceleration"]["verdict"], "all")

    def test_nothing_measured(self):
        plain, ours = redis.summarise(self.ROW, [])
        self.assertIsNone(plain["rps"])
        self.assertIsNone(ours["ratio"])

    def test_one_unknown_round_leaves_no_number(self):
        known, unknown = redis.acceleration((3, 3), clients=2), redis.acceleration(why="x", loaded=True, clients=2)
        self.assertEqual(redis.sum_acceleration([known, unknown])["verdict"], "unknown")
        absent = redis.acceleration(why="y", loaded=False, clients=2)
        self.assertEqual(redis.sum_acceleration([known, unknown, absent])["verdict"], "none")

    def test_requests(self):
        self.assertEqual(redis.requests_for(130_123.4, 2), 260_000)
        self.assertEqual(redis.requests_for(1, 1), 5_000)


def bench_json(p50, verdict="all", seconds=10, ratio=2.0, load=0):
    accelerated = {"all": (5, 5), "none": (0, 5)}[verdict]

    def summary(kind, p50, ratio, cpu):
        counts = accelerated if kind == "accelerated" else (0, 5)
        return {"kind": kind, "rate": 1e9, "ratio": ratio, "p50_ns": p50, "p99_ns": 2 * p50, "p999_ns": 3 * p50,
                "max_ns": 4 * p50, "cpu_server_percent": cpu, "cpu_client_percent": cpu,
                "acceleration": {"verdict": "not-asked" if kind == "plain" else verdict, "why": None,
                                 "accelerated": counts[0], "connections": counts[1]}}

    def workload(name, kinds):
        return {"name": name, "label": name, "spec": {"seconds": seconds, "connections": 100}, "cpus": [0, 1],
                "rate_unit": "bytes/s", "runs": [{"kind": "plain", "round": 1, "error": "oops"}] if name == "rate" else [],
                "summary": [summary("plain", 64_000, 1.0, 0.0)] + [summary(k, p50, ratio, 0.05) for k in kinds]}

    names = ("pingpong", "pingpong-epoll", "reqrep", "bulk", "rate", "idle")
    return {"tool": "netacc bench", "background_load": load, "rounds": 5,
            "machine": {"cpus": 2, "kernel": "6", "load_average_before": "0 0 0", "load_average_after": "1 1 1"},
            "workloads": [workload(name, ["accelerated"]) for name in names]
            + [workload(name, ["server-only", "client-only"]) for name in ("mixed", "mixed-epoll")]}


def redis_json(ratio, p99=1.0, counts=(505, 500)):
    def summary(kind, rps, p99):
        asked = kind in redis.ON_SERVER
        acceleration = redis.acceleration(counts if asked else None, clients=500, loaded=True if kind != "plain" else None)
        return {"kind": kind, "rps": rps, "ratio": rps / 1000, "p50_ms": 1, "p99_ms": p99, "max_ms": 9.0,
                "acceleration": acceleration}
    rows = [{"name": row.name, "label": row.label, "load": row.load, "clients": row.clients, "runs": [],
             "summary": [summary("plain", 1000, 2.0)] + [summary(k, 1000 * ratio, p99) for k in row.kinds[1:]]}
            for row in redis.ROWS]
    return {"tool": "bench/redis.py", "rounds": 5, "rows": rows,
            "machine": {"cpus": 2, "kernel": "6", "load_average_before": "0 0 0", "load_average_after": "1 1 1"}}


def target_rows(bench, loaded, result):
    """The one-sided rows are the same file's here."""
    return table.target_rows(bench, bench, loaded, result)


class Tables(unittest.TestCase):
    def verdicts(self, *results):
        rows, all_ok = target_rows(*results)
        return [row[-1] for row in rows], all_ok

    def test_all_reached(self):
        verdicts, all_ok = self.verdicts(bench_json(500), bench_json(500, load=4), redis_json(5))
        self.assertEqual(set(verdicts), {"yes"})
        self.assertTrue(all_ok)

    def test_reached_but_not_accelerated_is_not_proven(self):
        verdicts, all_ok = self.verdicts(bench_json(500, "none"), bench_json(500, "none", load=4),
                                         redis_json(5, counts=(505, 0)))
        # The library on one side alone accelerates nothing, and was there.
        self.assertEqual(verdicts.count("yes"), 12)
        self.assertEqual(verdicts.count("NOT PROVEN"), len(verdicts) - 12)
        self.assertFalse(all_ok)

    def test_missed(self):
        verdicts, _ = self.verdicts(bench_json(1100, ratio=0.9, seconds=1), bench_json(1, ratio=0.9), redis_json(0.5))
        self.assertEqual(set(verdicts), {"NO"})
        rows, _ = target_rows(bench_json(500), bench_json(500), redis_json(5, p99=2.5))
        self.assertEqual([row[-1] for row in rows].count("NO"), 1, "p99 must be lower than plain's")
        verdicts, all_ok = self.verdicts(None, None, None)
        self.assertEqual(set(verdicts), {"NOT MEASURED"})
        self.assertFalse(all_ok)

    def test_failed_runs_reach_nothing(self):
        bench = bench_json(500)
        bench["workloads"][0]["runs"] = [{"kind": "accelerated", "round": 2, "error": "hangs"}]
        rows, _ = target_rows(bench, bench_json(500), redis_json(5))
        self.assertEqual([row[-1] for row in rows].count("NO"), 1)
        self.assertIn("5/5, 1 FAILED", table.comparison(bench, None))

    def test_comparison_is_loud(self):
        text = table.comparison(bench_json(500, "none"), redis_json(5, counts=(505, 499)))
        self.assertIn("NOT ACCELERATED 0/5", text)
        self.assertIn("499/505 PARTLY", text)
        self.assertIn("FAILED: rate, plain, round 1: oops", text)
        self.assertIn("128 µs > 1.00 µs", text)
        self.assertIn("not counted", text)
        absent = redis.acceleration(why="netacc_run not found", loaded=False)
        self.assertEqual(table.accelerated(absent, "server-only"), "LIBRARY NOT LOADED (netacc_run not found)")

    def test_unknown_says_why_once(self):
        result = redis_json(5)
        for row in result["rows"]:
            row["summary"][1]["acceleration"] = redis.acceleration(why="netacc_ss: no", clients=1, loaded=True)
        text = table.comparison(None, result)
        self.assertEqual(text.count("unknown: netacc_ss: no"), 1)
        self.assertEqual(text.count("unknown"), 1 + len(result["rows"]))

    def test_units(self):
        for ns, text in ((520, "520 ns"), (999.7, "1.00 µs"), (64_123, "64.1 µs"), (1.7e6, "1.70 ms"), (2e9, "2.00 s"),
                         (None, "-")):
            self.assertEqual(table.duration(ns), text)
        self.assertEqual(table.rate(129_198, "requests/s"), "129.2 k/s")
        self.assertEqual(table.rate(2.5e9, "bytes/s"), "20.00 Gb/s")
        self.assertEqual((table.times(12.345), table.times(1.234), table.times(None)), ("12.3x", "1.23x", "-"))

    def test_markdown_has_every_row(self):
        rows, _ = target_rows(bench_json(500), bench_json(500, load=4), redis_json(5))
        text = table.markdown(table.TARGETS_HEAD, rows)
        self.assertEqual(len(text.splitlines()), len(rows) + 2)
        self.assertEqual({line.count("|") for line in text.splitlines()}, {len(table.TARGETS_HEAD) + 1})


def measured(now, again=(1, 1.01, 0.99, 1), verdicts=("all", "all"), errors=()):
    """A row of against.py whose base makes 100 a second in each round."""
    figures = {"base": [1] * len(now), "plain": [0.5] * len(now), "again": again, "now": now}
    runs = [{"side": side, "round": number, "goodness": 100 * value, "unit": "requests/s",
             "figures": {"acceleration": {"verdict": verdicts[side == "now"]}}}
            for side, values in figures.items() for number, value in enumerate(values)]
    runs += [{"side": side, "round": 99, "error": "hangs"} for side in errors]
    return {"name": "r", "kind": "accelerated", "runs": runs, "load": (0.1, 1.2), "others": 0.25}


class Against(unittest.TestCase):
    def verdict(self, *arguments, **settings):
        return against.judge(measured(*arguments, **settings))["verdict"]

    def test_as_fast_or_nearly(self):
        self.assertEqual(self.verdict([1.1, 1.0, 1.2, 1.1]), "ok")
        self.assertEqual(self.verdict([0.98, 0.97, 0.98, 0.99]), "ok")
        row = against.judge(measured([0.98, 0.97, 0.98, 0.99]))
        self.assertAlmostEqual(row["ratio"], 0.98)
        self.assertAlmostEqual(row["ratio_plain"], 1.96)
        self.assertEqual((row["spread"][0], row["spread"][1]), (0.97, 0.99))

    def test_slower(self):
        self.assertEqual(self.verdict([0.9, 0.91, 0.89, 0.9]), "BELOW")

    def test_slower_than_the_noise_explains(self):
        self.assertEqual(self.verdict([0.9, 0.91, 0.89, 0.9], again=(0.85, 0.86, 0.86, 0.9)), "unclear", "base/base says as much")
        self.assertEqual(self.verdict([0.9, 0.91, 0.89, 0.9], again=(1.15, 1.16, 1.2, 1.17)), "unclear", "in either direction")
        self.assertEqual(self.verdict([0.9, 1.2, 0.9, 1.1, 0.8, 0.9, 1.1], again=(1,) * 7), "unclear", "its own spread")
        self.assertEqual(self.verdict([0.8, 0.81, 0.79, 0.8], again=(0.9, 1.1, 0.95, 1.0)), "BELOW")

    def test_a_run_that_comes_to_nothing(self):
        self.assertEqual(self.verdict([1.1, 1.1, 1.1, 1.1], errors=["now"]), "FAILED")
        row = against.judge(measured([], again=[], errors=["plain", "now"]))
        self.assertEqual((row["verdict"], row["ratio"], row["why"]), ("FAILED", None, "hangs"))
        self.assertIn("r: hangs", against.conclusion([row]))
        self.assertEqual(len(against.cells(row)), len(against.HEAD))

    def test_no_longer_accelerated(self):
        row = against.judge(measured([1.0, 1.0, 1.0, 1.0], verdicts=("all", "none")))
        self.assertEqual(row["verdict"], "FAILED")
        self.assertIn("base 100%, now 0%", row["why"])
        self.assertEqual(self.verdict([1.0, 1.0, 1.0, 1.0], verdicts=("none", "none")), "ok", "as with `rate`")

    def test_pairs_are_of_one_round(self):
        runs = [{"side": "base", "round": 0, "goodness": 100}, {"side": "now", "round": 1, "goodness": 50},
                {"side": "base", "round": 2, "goodness": 10}, {"side": "now", "round": 2, "goodness": 20}]
        self.assertEqual(against.paired(runs, "now"), [2.0])

    def test_intervals(self):
        self.assertEqual(against.interval([1.0, 1.1])[1], float("inf"), "too few say nothing")
        low, high = against.interval([0.9, 1.0, 1.1, 1.0, 1.0])
        self.assertLessEqual(low, 1.0)
        self.assertGreaterEqual(high, 1.0)
        self.assertEqual((low, high), against.interval([0.9, 1.0, 1.1, 1.0, 1.0]))

    def test_each_side_has_each_place(self):
        orders = [against.order(number) for number in range(8)]
        for place in range(4):
            self.assertEqual(sorted(one[place] for one in orders), sorted(2 * against.SIDES))
        before = [(one.index("base") < one.index("now")) for one in orders]
        self.assertEqual(sum(before), 4)

    def test_others_share(self):
        cpus = os.cpu_count()
        self.assertAlmostEqual(machine.others_share((10, 5, 100), (10 + 10 * cpus, 5 + 5 * cpus, 110)), 0.5)
        self.assertEqual(machine.others_share((10, 5, 100), (10, 6, 100)), 0.0)
        before = machine.cpu_times()
        sum(range(3_000_000))
        used = [b - a for a, b in zip(before, machine.cpu_times())]
        self.assertGreater(used[1], 0)
        self.assertGreaterEqual(used[2], 0)

    def test_rows(self):
        names = list(against.rows())
        self.assertEqual(len(names), len(set(names)))
        for wanted in ("pingpong", "mixed-client-only", "load-bulk", "redis-set-c100", "redis-one-sided-server-only"):
            self.assertIn(wanted, names)

    def test_conclusion_and_table(self):
        judged = [against.judge(measured(now)) for now in ([1.1] * 4, [0.9, 0.91, 0.89, 0.9])]
        lines = against.conclusion(judged)
        self.assertEqual(lines, ["below 0.97x, and beyond the noise: r", "1 of 2 rows are ok"])
        text = table.aligned(against.HEAD, [against.cells(row) for row in judged])
        self.assertIn("0.900  0.89 to 0.91", text)
        self.assertIn("0.1 to 1.2     25%  BELOW", text)


class Script(unittest.TestCase):
    def test_a_missing_figure_does_not_break_the_tables(self):
        empty = redis_json(5)
        for row in empty["rows"]:
            row["summary"] = redis.summarise(redis.Row("r", "l", "", 1), [])
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "r.json"
            path.write_text(json.dumps(empty))
            self.assertIn("redis", table.comparison(None, table.load(path)))


if __name__ == "__main__":
    unittest.main()
