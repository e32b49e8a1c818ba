"""memcached: a load of ours, in which every value that comes back is the one that was set; and its
own tests."""
import os
import re
import shutil

from kit import AT_ONCE, BOTH, EVERY, PLAIN, Broken, Result, fetch, program, source


@program("memcached-load", "memcached, 16 connections, set and get", packages=("memcached:memcached",),
         share=95, ratio=1.0, rounds=3, limit=60, quick=True, sides=EVERY)
def load(job):
    port = job.port()
    job.start("memcached", "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "2", "-u", "nobody", user="nobody")
    job.listening(port)
    requests, errors, seconds = job.load("memcached", port, 16, 2, user="nobody")
    return Result(errors=errors, rate=requests / seconds)


# Bounded: those that have to do with connections. The others have one client and look at what is
# stored.
OWN = ("basic idle-timeout maxconns noreply binary-get lru-crawler watcher daemonize "
       "verbosity quit flags stats stats-conns misbehave incrdecr getset getandtouch issue_22 issue_29 issue_70 issue_152 "
       "malicious-commands metaget slabs-reassign2 64bit cas touch udp whitespace").split()


# It fills the server up to its limit of descriptors, which is its hard limit as well: so the
# library's stand below that, and it depends on when they are free again whether a client is refused
# (docs/manual/limits.md).
NOT_AT_ONCE = ("maxconns.t",)


def build():
    """Without unix sockets, which its tests prefer to TCP."""
    place = source("memcached")
    if not (place / "tests-built").exists():
        fetch("./configure", "--disable-unix-socket", "--disable-coverage", cwd=place)
        fetch("make", "memcached", "memcached-debug", "timedrun", cwd=place)
        (place / "tests-built").touch()


@program("memcached-suite", "memcached's own t/ (its server, Perl's client)", prepare=build, limit=3600,
         packages=("dpkg-source:dpkg-dev", "cc:gcc", "make:make", "/usr/include/event2/event.h:libevent-dev",
                   "/usr/share/perl/5*/Test/More.pm:perl"), sides=(PLAIN, BOTH, AT_ONCE), at_once=25)
def suite(job):
    place = shutil.copytree(source("memcached"), job.dir / "source", symlinks=True)
    job.own("nobody", place)
    every = sorted(path.name for path in (place / "t").glob("*.t"))
    names = job.only or (every if os.environ.get("NETACC_APPS_ALL") else [name for name in every if name[:-2] in OWN])
    left_out = [name for name in names if job.side == AT_ONCE and name in NOT_AT_ONCE]
    failed, skipped, tests = {}, [], 0
    for name in names:
        if name in left_out:
            continue
        said, wrong = job.test("perl", "-Ilib", f"t/{name}", cwd=place, user="nobody", timeout=600)
        bad = re.findall(r"^not ok .*|^# Looks like .*", said, re.M) + ([wrong] if wrong else [])
        if bad:
            print(f"    {name}: " + "; ".join(bad)[:300], flush=True)
            # Its tests have no names: some files have as many as they need tries.
            failed[name] = [name]
        elif re.search(r"^1\.\.0 # SKIP", said, re.M):
            skipped.append(name)
        tests += len(re.findall(r"^ok \d+", said, re.M))
    if not job.only and tests < 10 * len(names):
        raise Broken(f"only {tests} tests of {len(names)} files passed")
    return Result(output=skipped, failed=failed, note=
                  f"{tests} tests of {len(names)} files, of {len(every)}" + (f"; not at once: {', '.join(left_out)}" if left_out else ""))
