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
    whole = bool(os.environ.get("NETACC_APPS_ALL"))
    units = [] if whole else UNITS
    tree, failed, count = place(job), {}, 0
    # A test that failed is tried again, twice: some are disturbed by a busy machine, with or
    # without the library.
    for attempt in range(3):
        options = [part for unit in units for part in ("--single", unit)]
        said = job.client("tclsh", "tests/test_helper.tcl", "--durable", "--no-latency", "--clients", 2, "--baseport", 21111 + attempt * 3000,
                          "--portcount", 2000, "--timeout", 600, *options, cwd=tree, role=CLIENT, status=None, timeout=3000)
        said = re.sub(r"\x1b\[[\d;]*m", "", said)
        count = count or len(re.findall(r"^\[ok\]", said, re.M))
        bad = re.findall(r"^\[err\]: (.*?) in tests/(\S+)\.tcl", said, re.M)
        stopped = re.findall(r"^\[exception\].*|^\[TIMEOUT\].*", said, re.M)
        for name in {test for test, _ in bad} | {line[:100] for line in stopped}:
            failed[name] = failed.get(name, 0) + 1
        if attempt == 0 and count == 0:
            raise Broken(said[-2000:])
        units = sorted({unit for _, unit in bad}) or (units if stopped else None)
        if not units:
            break
    often = sorted(name for name, times in failed.items() if times > 1)
    once = sorted(set(failed) - set(often))
    every = re.search(r"set ::all_tests \{(.*?)\}", (tree / "tests/test_helper.tcl").read_text(), re.S)[1].split()
    note = f"{count} tests of {len(every) if whole else len(UNITS)} units, of {len(every)}" + (f"; failed once of three times: {'; '.join(once)[:200]}" if once and job.side != PLAIN else "")
    return Result(output=often, note=note)


program("redis-suite", "Redis' own suite (server and tclsh)", sides=(PLAIN, BOTH, AT_ONCE), **SETTINGS)(run)
program("redis-suite-server", "Redis' own suite, with the library under the server alone", sides=(PLAIN, SERVER), **SETTINGS)(run)
