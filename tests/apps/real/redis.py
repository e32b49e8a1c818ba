"""Redis' own Tcl suite, of Debian's source package, for Debian's redis-server: the library under
both ends, and the server."""
import os
import re
import shutil

from kit import AT_ONCE, BOTH, CLIENT, PLAIN, SERVER, Broken, Result, program, source

# Bounded: what has to do with connections. The others take long and look at what is stored.
UNITS = """unit/protocol unit/pubsub unit/pubsubshard unit/multi unit/limits unit/querybuf unit/info unit/networking unit/tracking
unit/replybufsize unit/type/list unit/quit unit/obuf-limits unit/wait unit/introspection unit/introspection-2 unit/auth
unit/client-eviction unit/scripting integration/block-repl integration/redis-cli integration/redis-benchmark""".split()
SETTINGS = dict(limit=3600, prepare=lambda: source("redis"), packages=(
    "dpkg-source:dpkg-dev", "tclsh:tcl", "redis-server:redis-server", "redis-benchmark:redis-tools"))


def place(job):
    """A copy of the source tree with the distribution's programs in it."""
    tree = shutil.copytree(source("redis"), job.dir / "source", symlinks=True)
    for path in ("server", "cli", "benchmark", "check-rdb", "check-aof", "sentinel"):
        mine, theirs = tree / f"src/redis-{path}", shutil.which(f"redis-{path}")
        mine.unlink(missing_ok=True)
        if not theirs:
            continue
        if path == "server" and job.side == SERVER:
            # tclsh starts the servers; the suite is theirs, the library is put in between.
            library = job.tools / "libnetacc_preload.so"
            job.write(mine.relative_to(job.dir), f"#!/bin/sh\nLD_PRELOAD={library} NACC_LOG_PATH={job.dir}/netacc-server.log exec {theirs} \"$@\"\n", 0o755)
        else:
            mine.symlink_to(theirs)
    return tree


def run(job):
    """Each unit once. Where the suite stops in the middle, it goes on behind it."""
    tree = place(job)
    every = re.search(r"set ::all_tests \{(.*?)\}", (tree / "tests/test_helper.tcl").read_text(), re.S)[1].split()
    units = ", ".join(job.only).split(", ") if job.only else (every if os.environ.get("NETACC_APPS_ALL") else UNITS)
    left, failed, count = list(units), {}, 0
    while left:
        said, wrong = part(job, tree, left)
        count += len(re.findall(r"^\[ok\]", said, re.M))
        begun = re.findall(r"^Testing (\S+/\S+)$", said, re.M)
        done = re.findall(r"^\[\d+/\d+ done\]: (\S+)", said, re.M)
        bad = re.findall(r"^\[err\]: (.*?) in tests/(\S+)\.tcl", said, re.M)
        for test, unit in bad:
            failed.setdefault(unit, []).append(test)
        stopped = [unit for unit in begun if unit not in done]
        # Where it does not say what of them has failed, that is all of them.
        if not stopped and (wrong and not bad or len(re.findall(r"^\[err\]", said, re.M)) > len(bad)):
            stopped = [", ".join(left)]
        for unit in stopped:
            print(f"    {unit}:\n    " + "\n    ".join(said.splitlines()[-20:]), flush=True)
            failed.setdefault(unit, []).append(wrong or "stopped")
        if not begun:
            raise Broken(said[-2000:])
        left = [unit for unit in left if unit not in begun]
    if not count and not job.only:
        raise Broken(said[-2000:])
    return Result(failed=failed, note=f"{count} tests of {len(units)} units, of {len(every)}")


def part(job, tree, units):
    """What the suite says of these units, and what kept it from ending well."""
    options = [word for unit in units for word in ("--single", unit)]
    said, wrong = job.test("tclsh", "tests/test_helper.tcl", "--durable", "--no-latency", "--clients", 2, "--baseport", 21111, "--portcount", 2000,
                           "--timeout", 600, *options, cwd=tree, role=CLIENT, timeout=3000)
    return re.sub(r"\x1b\[[\d;]*m", "", said), wrong


program("redis-suite", "Redis' own suite (server and tclsh)", sides=(PLAIN, BOTH, AT_ONCE), at_once=50, **SETTINGS)(run)
program("redis-suite-server", "Redis' own suite, with the library under the server alone", sides=(PLAIN, SERVER), **SETTINGS)(run)
