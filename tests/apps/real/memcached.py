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
                   "/usr/share/perl/5*/Test/More.pm:perl"), sides=(PLAIN, BOTH, AT_ONCE))
def suite(job):
    place = shutil.copytree(source("memcached"), job.dir / "source", symlinks=True)
    job.own("nobody", place)
    every = sorted(path.name for path in (place / "t").glob("*.t"))
    names = every if os.environ.get("NETACC_APPS_ALL") else [name for name in every if name[:-2] in OWN]
    results, tests = {}, 0
    left_out = [name for name in names if job.side == AT_ONCE and name in NOT_AT_ONCE]
    for name in names:
        if name in left_out:
            results[name] = []
            continue
        # A file that failed is tried again: some depend on time.
        for _ in range(3):
            said = job.client("perl", "-Ilib", f"t/{name}", cwd=place, role="server", status=None, user="nobody", timeout=600)
            passed, bad = len(re.findall(r"^ok \d+", said, re.M)), re.findall(r"^not ok \d+|^# Looks like .*", said, re.M)
            if not bad:
                break
        # Some have as many tests as they need tries.
        results[name], tests = bad, tests + passed
    if tests < 10 * len(names):
        raise Broken(f"only {tests} tests of {len(names)} files passed")
    return Result(output=results, note=
                  f"{tests} tests of {len(names)} files, of {len(every)}" + (f"; not at once: {', '.join(left_out)}" if left_out else ""))
