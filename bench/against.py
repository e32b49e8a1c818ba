#!/usr/bin/env python3
"""Is this library as fast as an older one? Both in one run, in turn, with plain TCP.

    bench/against.py BASE               a commit, which is built in a worktree of its own, or a directory with a library
    bench/against.py BASE --rows pingpong,redis-set-c1 --rounds 15
    bench/against.py --list             the rows

A round runs a row four times, in an order that changes: on plain TCP, with the base, with the base
once more, with the library of now. The measuring programs are those of now (netacc bench and
redis.py); only the library differs. The ratio is the median over the rounds of now/base, of one
round each, and beside it stands where that median lies with 95 % (bootstrap). The base against
itself says what the row's noise is. A row is

    BELOW     its ratio is below 0.97, and neither its own spread nor the noise explains that
    unclear   its ratio is below 0.97, and one of them may explain it: more rounds, a quieter machine
    FAILED    a run came to nothing, or now's connections are not accelerated and base's are

and otherwise ok. "others" is the share of the CPUs that went to what is no part of the row, and to
other machines of the host. --check makes BELOW and FAILED the exit status.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
import redis
import table

ROOT = Path(__file__).resolve().parent.parent
PLAIN, BASE, AGAIN, NOW = SIDES = "plain", "base", "again", "now"
LEAST = 0.97
FILES = ("libnetacc_preload.so", "netacc", "netacc_run", "netacc_ss")


@dataclasses.dataclass(frozen=True)
class Row:
    """A workload, and which of its ends have the library."""

    name: str
    work: object  # a workload's name, or a row of redis.py
    kind: str = redis.ACCELERATED
    load: int = 0


def rows():
    """What `make bench` measures."""
    found = [Row(name, name) for name in ("pingpong", "pingpong-epoll", "reqrep", "bulk", "rate", "idle")]
    found += [Row(f"{name}-{kind}", name, kind) for name in ("mixed", "mixed-epoll") for kind in redis.ONE_SIDED[1:]]
    found += [Row(f"load-{name}", name, load=redis.BUSY_LOOPS) for name in ("pingpong", "pingpong-epoll", "reqrep", "bulk")]
    for row in redis.ROWS:
        name = lambda kind: f"redis-{row.name}" + ("" if kind == redis.ACCELERATED else f"-{kind}")
        found += [Row(name(kind), row, kind, row.load) for kind in row.kinds[1:]]
    return {row.name: row for row in found}


# ---------------------------------------------------------------- both libraries


def collect(source, place):
    """Copies: what is built while this runs changes nothing."""
    place.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(source / name, place)
    return place


def build(commit, place):
    """The library of a commit and its programs in `place`; built once."""
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    commit = git("rev-parse", "--verify", commit + "^{commit}")
    place /= commit
    if not all((place / name).exists() for name in FILES):
        with tempfile.TemporaryDirectory(prefix="netacc-against-") as directory:
            tree = Path(directory) / "tree"
            git("worktree", "add", "--detach", tree, commit)
            try:
                environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
                subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "netacc-preload", "-p", "netacc-tools"],
                               cwd=tree, env=environment, check=True)
                collect(tree / "target/release", place)
            finally:
                git("worktree", "remove", "--force", tree)
    return place, git("log", "-1", "--format=%h of %as, %s", commit)


# ---------------------------------------------------------------- runs


class Runner:
    """Runs a row on one side; {figures, goodness, acceleration}."""

    def __init__(self, base, now, seconds):
        self.places = {BASE: base, AGAIN: base, NOW: now, PLAIN: now}
        self.redis = {side: redis.Bench(place) for side, place in self.places.items()}
        self.seconds, self.requests = seconds, {}

    def run(self, row, side):
        kind = redis.PLAIN if side == PLAIN else row.kind
        return (self.of_bench if isinstance(row.work, str) else self.of_redis)(row, side, kind)

    def of_bench(self, row, side, kind):
        place = self.places[side]
        command = [self.places[NOW] / "netacc", "bench", row.work, "--quiet", "--rounds", 1, "--kinds", kind, "--load", row.load,
                   "--seconds", self.seconds, "--idle-seconds", self.seconds, "--lib", place / FILES[0], "--ss", place / "netacc_ss",
                   "--json", "-"]
        if row.work == "idle":
            # Its hundred round trips are over before the scheduler moves anybody: whether the first
            # wake-up found two CPUs or one would be all that they say.
            command += ["--pin", "apart"]
        said = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                              timeout=120 + 20 * self.seconds, env=redis.plain_environment())
        if not said.stdout:
            raise redis.Failed(redis.first_line(said.stderr) or f"netacc bench: status {said.returncode}")
        workload = json.loads(said.stdout)["workloads"][0]
        run, = workload["runs"]
        if "error" in run:
            raise redis.Failed(run["error"])
        if run["p50_ns"] and row.work not in ("reqrep", "bulk", "rate"):
            return {"goodness": 1e9 / run["p50_ns"], "text": f"p50 {table.duration(run['p50_ns'])}", "figures": run}
        return {"goodness": run["rate"], "unit": workload["rate_unit"], "figures": run}

    def of_redis(self, row, side, kind):
        timeout, work = 60 + 20 * self.seconds, row.work
        if work.name not in self.requests:
            trial = self.redis[PLAIN].measure(work, redis.PLAIN, 100_000 if work.prefill else 20_000, timeout)
            self.requests[work.name] = redis.requests_for(trial["rps"], self.seconds)
        run = self.redis[side].measure(work, kind, self.requests[work.name], timeout)
        return {"goodness": run["rps"], "unit": "requests/s", "figures": run}


def order(number):
    """The sides of a round: each comes at each place, and behind each other one."""
    turned = SIDES[number % 4:] + SIDES[:number % 4]
    return turned[::-1] if number // 4 % 2 else turned


def measure(runner, row, rounds):
    """All runs of a row."""
    runs, before, load = [], machine.cpu_times(), os.getloadavg()[0]
    # `netacc bench` brings its own.
    with redis.busy_loops(0 if isinstance(row.work, str) else row.load):
        for number in range(rounds):
            for side in order(number):
                run = {"side": side, "round": number}
                try:
                    run |= runner.run(row, side)
                except (*redis.FAILURES, ValueError, KeyError, IndexError) as error:
                    run["error"] = str(error) or repr(error)
                runs.append(run)
                print(f"{row.name} {number + 1}/{rounds} {side:<5} {run.get('error') or figure(run)}", file=sys.stderr, flush=True)
    return {"name": row.name, "kind": row.kind, "runs": runs, "load": (load, os.getloadavg()[0]),
            "others": machine.others_share(before, machine.cpu_times())}


# ---------------------------------------------------------------- what they say


def figure(run):
    return run.get("text") or table.rate(run["goodness"], run["unit"])


def paired(runs, side, against=BASE):
    """The ratios of both sides in the rounds in which neither failed."""
    found = {(run["side"], run["round"]): run["goodness"] for run in runs if run.get("goodness")}
    return [value / found[against, number] for (which, number), value in found.items()
            if which == side and (against, number) in found]


def interval(ratios, draws=2000):
    """Where the median of ratios lies with 95 %, by bootstrap; the same for the same ratios."""
    if len(ratios) < 3:
        return 0.0, math.inf
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


def verdict(ratio, spread, noise):
    """Of a row's ratio, where its median lies, and where that of the base against itself lies."""
    if ratio >= LEAST:
        return "ok"
    explained = spread[1] >= 1 or ratio >= min(noise[0], 1 / noise[1])
    return "unclear" if explained else "BELOW"


def judge(measured):
    """A measured row with its medians, ratios and verdict."""
    runs = measured["runs"]
    good = {side: [run for run in runs if run["side"] == side and "error" not in run] for side in SIDES}
    ratios, again = paired(runs, NOW), paired(runs, AGAIN)
    row = measured | {"verdict": "FAILED", "ratio": None, "spread": interval(ratios), "noise": interval(again)}
    middle = lambda side: statistics.median_low([run["goodness"] for run in good[side]])
    row["medians"] = {side: next(figure(run) for run in good[side] if run["goodness"] == middle(side))
                      for side in SIDES if good[side]}
    row["accelerated"] = {side: [run["figures"]["acceleration"]["verdict"] for run in good[side]] for side in (BASE, NOW)}
    if not ratios or not again:
        return row | {"why": next((run["error"] for run in runs if "error" in run), "no figures")}
    row["ratio"], plain = statistics.median(ratios), paired(runs, NOW, PLAIN)
    row["ratio_plain"] = statistics.median(plain) if plain else None
    if failed := [run for run in runs if "error" in run]:
        return row | {"why": f"{len(failed)} of {len(runs)} runs: {failed[0]['side']}: {failed[0]['error']}"}
    share = lambda side: sum(said == "all" for said in row["accelerated"][side]) / len(row["accelerated"][side])
    if share(NOW) < share(BASE) / 2:
        said = ", ".join(f"{side} {share(side):.0%}" for side in (BASE, NOW))
        return row | {"why": f"rounds in which all connections were accelerated: {said}"}
    return row | {"verdict": verdict(row["ratio"], row["spread"], row["noise"])}


HEAD = ["", "plain TCP", "base", "now", "now/plain", "now/base", "95 %", "base/base", "load", "others", ""]


def cells(row):
    between = lambda pair: f"{pair[0]:.2f} to {pair[1]:.2f}" if math.isfinite(pair[1]) else "-"
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
    return [row["name"], *(row["medians"].get(side, "-") for side in (PLAIN, BASE, NOW)), table.times(row.get("ratio_plain")), ratio,
            between(row["spread"]), between(row["noise"]), "{:.1f} to {:.1f}".format(*row["load"]), f"{row['others']:.0%}", row["verdict"]]


def conclusion(judged):
    """The lines below the table."""
    lines = [f"{row['name']}: {row['why']}" for row in judged if "why" in row]
    for word, meaning in (("BELOW", f"below {LEAST:g}x, and beyond the noise"), ("unclear", f"below {LEAST:g}x, which the noise may explain"),
                          ("FAILED", "failed")):
        if names := [row["name"] for row in judged if row["verdict"] == word]:
            lines.append(f"{meaning}: {', '.join(names)}")
    return lines + [f"{sum(row['verdict'] == 'ok' for row in judged)} of {len(judged)} rows are ok"]


# ---------------------------------------------------------------- command line


def main():
    known = rows()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="a commit, or a directory with " + ", ".join(FILES))
    parser.add_argument("--list", action="store_true", help="names of the rows")
    parser.add_argument("--rows", help="comma-separated; all of `make bench`")
    parser.add_argument("--rounds", type=int, default=9, help="each runs every side once (9)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run (1)")
    parser.add_argument("--json", type=Path, help="every run, and what it came to")
    parser.add_argument("--check", action="store_true", help="status 1 for a row that is BELOW or FAILED")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(known))
        return 0
    names = asked.rows.split(",") if asked.rows else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no such row: {', '.join(unknown)}")
    if not asked.base or asked.rounds < 3:
        parser.error("a base, and at least 3 rounds")
    # Both sides are this script's to set.
    for name in [name for name in os.environ if name.startswith(("NACC_", "NETACC_"))]:
        del os.environ[name]
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netacc-against-")))
        if Path(asked.base).is_dir():
            base, what = collect(Path(asked.base), place / "base"), asked.base
        else:
            base, what = build(asked.base, ROOT / "out/against")
        now = collect(Path(os.environ.get("BIN_DIR") or ROOT / "target/release"), place / "now")
        print(f"base: {what}\n{asked.rounds} rounds of {asked.seconds:g} s, {len(os.sched_getaffinity(0))} CPUs, "
              f"Linux {os.uname().release}, load average {redis.load_average()}", flush=True)
        runner = Runner(base, now, asked.seconds)
        judged = [judge(measure(runner, known[name], asked.rounds)) for name in names]
    print("", table.aligned(HEAD, [cells(row) for row in judged]), "", *conclusion(judged), sep="\n")
    print(f"load average at the end {redis.load_average()}")
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps({"tool": "bench/against.py", "base": what, "rows": judged}, indent=1) + "\n")
    return int(asked.check and any(row["verdict"] in ("BELOW", "FAILED") for row in judged))


if __name__ == "__main__":
    sys.exit(main())
