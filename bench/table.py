#!/usr/bin/env python3
"""One table from the JSON of `netacc bench` and of redis.py.

    table.py demo    BENCH.json REDIS.json                       plain TCP against accelerated, everything measured
    table.py targets BENCH.json ONE-SIDED.json BENCH-UNDER-LOAD.json REDIS.json
                                                                 the same against the project's
                                                                 targets

Latencies are "plain > accelerated". `targets` marks a row "yes" only when its figure is reached
*and* the counters prove that the connections were accelerated (for a library on one side only: that
it was there). --markdown FILE writes the table a second time, as Markdown; --check makes a missed
target the exit status.
"""

import argparse
import json
import math
import sys
from pathlib import Path

ONE_SIDED = {"server-only": "on the server only", "client-only": "on the client only"}


# ---------------------------------------------------------------- numbers as text


def duration(ns):
    """Three digits and a unit."""
    if ns is None or math.isnan(ns):
        return "-"
    for limit, divisor, unit in ((999.5, 1, "ns"), (999.5e3, 1e3, "µs"), (999.5e6, 1e6, "ms"), (math.inf, 1e9, "s")):
        if ns < limit:
            value = ns / divisor
            digits = 0 if unit == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    return "-"


def rate(value, unit):
    if value is None:
        return "-"
    if unit == "bytes/s":
        return f"{value * 8 / 1e9:.2f} Gb/s"
    for limit, divisor, letter in ((1e3, 1, ""), (1e6, 1e3, "k"), (math.inf, 1e6, "M")):
        if value < limit:
            return f"{value / divisor:.{2 if letter == 'M' else 1}f} {letter}/s"
    return "-"


def times(ratio):
    return "-" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def accelerated(acceleration, kind):
    """The count, loud where acceleration was expected and did not happen."""
    verdict, why = acceleration["verdict"], acceleration.get("why")
    if verdict == "not-asked":
        return "not counted" if acceleration.get("loaded") else "-"
    if verdict == "unknown":
        return "unknown"
    count = f"({why})" if acceleration["connections"] is None else \
        f"{acceleration['accelerated']}/{acceleration['connections']}"
    if kind != "accelerated":
        return count if acceleration["connections"] is not None else f"LIBRARY NOT LOADED {count}"
    return {"none": f"NOT ACCELERATED {count}", "partly": f"{count} PARTLY"}.get(verdict, count)


# ---------------------------------------------------------------- measured rows


def measured_rows(bench, redis):
    """Both files in one form: a dict for each comparison of a kind with plain."""
    rows = []
    for workload in bench["workloads"] if bench else []:
        plain = workload["summary"][0]
        for summary in workload["summary"][1:]:
            row = {"name": workload["name"], "label": workload["label"], "kind": summary["kind"],
                   "failed": failed_rounds(workload, summary["kind"]),
                   "load": bench["background_load"], "spec": workload["spec"], "cpus": workload["cpus"],
                   "ratio": summary["ratio"], "acceleration": summary["acceleration"], "plain": plain, "ours": summary}
            for name, key in (("p50", "p50_ns"), ("p99", "p99_ns"), ("max", "max_ns")):
                row[name] = (plain[key], summary[key])
            if workload["name"] == "idle":
                row["figures"] = tuple(cpu_pair(s) for s in (plain, summary))
            elif workload["name"] in ("pingpong", "pingpong-epoll", "mixed", "mixed-epoll"):
                row["figures"] = tuple(f"p50 {duration(s['p50_ns'])}" for s in (plain, summary))
            else:
                row["figures"] = tuple(rate(s["rate"], workload["rate_unit"]) for s in (plain, summary))
            rows.append(row)
    for entry in redis["rows"] if redis else []:
        plain = entry["summary"][0]
        for summary in entry["summary"][1:]:
            row = {"name": entry["name"], "label": entry["label"], "kind": summary["kind"], "load": entry["load"],
                   "failed": failed_rounds(entry, summary["kind"]),
                   "ratio": summary["ratio"], "acceleration": summary["acceleration"], "plain": plain, "ours": summary,
                   "figures": tuple(rate(s["rps"], "requests/s") for s in (plain, summary))}
            for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"), ("max", "max_ms")):
                row[name] = tuple(s[key] * 1e6 if s[key] is not None else None for s in (plain, summary))
            rows.append(row)
    return rows


def failed_rounds(entry, kind):
    """How many runs of this kind came to no result."""
    return sum(1 for run in entry["runs"] if run["kind"] == kind and "error" in run)


def counts_cell(row):
    """Of the runs that came to a result, how many connections were accelerated; and that others did
    not."""
    cell = accelerated(row["acceleration"], row["kind"])
    return cell if not row["failed"] else f"{cell}, {row['failed']} FAILED" if cell != "-" else f"{row['failed']} FAILED"


def cpu_pair(summary):
    if summary["cpu_server_percent"] is None:
        return "-"
    return f"CPU {summary['cpu_server_percent']:.3f}+{summary['cpu_client_percent']:.3f}%"


def full_label(row):
    label = row["label"]
    if row["kind"] in ONE_SIDED:
        label += f", library {ONE_SIDED[row['kind']]}"
    if row["load"]:
        label += f", {row['load']} busy loops"
    return label


# ---------------------------------------------------------------- tables


def aligned(head, rows, gap="  "):
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:-1], widths[1:-1])] + [row[-1]]
        lines.append(gap.join(cells).rstrip())
    return "\n".join(lines)


def markdown(head, rows):
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def change(pair):
    """What a latency was and became."""
    return " > ".join(map(duration, pair))


COMPARISON_HEAD = ["", "plain TCP", "accelerated", "ratio", "p99", "max", "accelerated connections"]


def comparison_rows(bench, redis):
    return [[full_label(row), *row["figures"], times(row["ratio"]), change(row["p99"]), change(row["max"]),
             counts_cell(row)]
            for row in measured_rows(bench, redis)]


def failures(*results):
    lines = []
    for result in results:
        for entry in (result or {}).get("workloads", []) + (result or {}).get("rows", []):
            lines += [f"FAILED: {entry['name']}, {run['kind']}, round {run['round']}: {run['error']}"
                      for run in entry["runs"] if "error" in run]
    return lines


def conditions(*results):
    """What a reader has to know beside the figures."""
    acceleration = [row["acceleration"] for result in results if result
                    for row in measured_rows(*((result, None) if "workloads" in result else (None, result)))]
    lines = [f"unknown: {why}" for why in [a["why"] for a in acceleration if a["verdict"] == "unknown"][:1]]
    for result in results:
        if result:
            machine = result["machine"]
            what = result["tool"] + (f" under {result['background_load']} busy loops" if result.get("background_load") else "")
            lines.append(f"{what}: median of {result['rounds']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, load "
                         f"average {machine['load_average_before']} before, {machine['load_average_after']} after")
    return lines


def comparison(bench, redis):
    """The table of the demonstration."""
    return "\n".join([aligned(COMPARISON_HEAD, comparison_rows(bench, redis)), "", *failures(bench, redis),
                      *conditions(bench, redis)])


# ---------------------------------------------------------------- targets


def at_least(least, goal):
    """Check of a ratio."""
    def check(row):
        return row["ratio"] is not None and row["ratio"] >= least, times(row["ratio"])
    return f"{least:g}x", goal, check


def set_c100():
    least, goal, ratio = at_least(3, "5.5x")

    def check(row):
        ok, text = ratio(row)
        plain, ours = row["p99"]
        lower = plain is not None and ours is not None and ours < plain
        return ok and lower, f"{text}, p99 {'lower' if lower else 'NOT lower'}"
    return f"{least}, p99 lower", goal, check


def pingpong():
    def check(row):
        p50 = row["p50"][1]
        apart = bool(row["cpus"]) and len(set(row["cpus"])) == 2
        text = duration(p50) + ("" if apart else ", NOT on a CPU each")
        return apart and p50 is not None and p50 <= 1000, text
    return "1.0 µs", "0.5 µs", check


def idle():
    def check(row):
        ours = row["ours"]
        percents = (ours["cpu_server_percent"], ours["cpu_client_percent"])
        long_enough = row["spec"]["seconds"] >= 10 and row["spec"]["connections"] >= 100
        ok = long_enough and all(p is not None and p < 0.1 for p in percents)
        return ok, cpu_pair(ours) + ("" if long_enough else ", NOT 100 connections for 10 s")
    return "< 0.1 % CPU", "0", check


def targets():
    """(file, name, kind, (least, goal, check)) of every promised figure. Files: bench, one-sided,
    loaded, redis."""
    plan = [
        ("redis", "set-c100", "accelerated", set_c100()),
        ("redis", "set-c1", "accelerated", at_least(4, "8x")),
        ("redis", "get-c50-p16", "accelerated", at_least(1.4, "2x")),
        ("bench", "pingpong", "accelerated", pingpong()),
        ("bench", "bulk", "accelerated", at_least(1.3, "2x")),
    ]
    for kind in ONE_SIDED:
        # Waits look again only where that was asked for (NACC_POLL_TCP_US): here the library must
        # cost nothing.
        plan.append(("one-sided", "mixed", kind, at_least(0.97, "1x")))
        plan.append(("one-sided", "mixed-epoll", kind, at_least(0.97, "1x")))
        plan.append(("redis", "one-sided-c1", kind, at_least(0.97, "1x")))
        plan.append(("redis", "one-sided-c50", kind, at_least(0.97, "1x")))
        plan.append(("redis", "one-sided", kind, at_least(0.97, "1x")))
        plan.append(("redis", "load-one-sided-c1", kind, at_least(0.95, "0.97x")))
    plan.append(("bench", "idle", "accelerated", idle()))
    for name in ("load-set-c100", "load-set-c1", "load-get-c50-p16"):
        plan.append(("redis", name, "accelerated", at_least(0.95, "> 1x")))
    for name in ("pingpong", "pingpong-epoll", "reqrep", "bulk"):
        plan.append(("loaded", name, "accelerated", at_least(0.95, "> 1x")))
    return plan


def was_loaded(acceleration):
    """Whether the library was in the one process that was to have it: without it a good ratio says
    nothing."""
    return acceleration.get("loaded", acceleration["connections"] is not None)


TARGETS_HEAD = ["what", "at least", "goal", "plain TCP", "accelerated", "measured", "p99",
                "accelerated connections", "ok?"]


def target_rows(bench, one_sided, loaded, redis):
    """Rows of the table of targets, and whether all are reached."""
    found = {(source, row["name"], row["kind"]): row
             for source, rows in (("bench", measured_rows(bench, None)), ("one-sided", measured_rows(one_sided, None)),
                                  ("loaded", measured_rows(loaded, None)), ("redis", measured_rows(None, redis)))
             for row in rows}
    rows, all_ok = [], True
    for source, name, kind, (least, goal, check) in targets():
        row = found.get((source, name, kind))
        if row is None:
            rows.append([f"{name} ({kind})", least, goal, "-", "-", "-", "-", "-", "NOT MEASURED"])
            all_ok = False
            continue
        reached, measured = check(row)
        proven = row["acceleration"]["verdict"] == "all" if kind == "accelerated" else was_loaded(row["acceleration"])
        reached = reached and not row["failed"]
        ok = "yes" if reached and proven else "NO" if proven or not reached else "NOT PROVEN"
        all_ok &= ok == "yes"
        rows.append([full_label(row), least, goal, *row["figures"], measured, change(row["p99"]),
                     counts_cell(row), ok])
    return rows, all_ok


# ---------------------------------------------------------------- command line


def load(path):
    return json.loads(Path(path).read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["demo", "targets"])
    parser.add_argument("files", nargs="+", help="JSON files, in the order above")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if len(arguments.files) != (2 if arguments.what == "demo" else 4):
        parser.error("wrong number of files")
    results = [load(file) for file in arguments.files]
    if arguments.what == "demo":
        head, rows, all_ok = COMPARISON_HEAD, comparison_rows(*results), True
    else:
        head, (rows, all_ok) = TARGETS_HEAD, target_rows(*results)
    notes = failures(*results) + conditions(*results)
    print(aligned(head, rows), "", *notes, sep="\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(head, rows) + "\n" + "\n".join(f"{note}  " for note in notes) + "\n")
    return arguments.check and not all_ok


if __name__ == "__main__":
    sys.exit(main())
