"""What a machine does beside a measurement."""

import os
import resource
from pathlib import Path


def cpu_times():
    """Seconds that all CPUs were busy, or another machine's of this host; that we and our ended
    children used; and of the clock."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _, _, interrupts, soft, steal = fields
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = (user + nice + system + interrupts + soft + steal) / os.sysconf("SC_CLK_TCK")
    return busy, sum(one.ru_utime + one.ru_stime for one in used), float(Path("/proc/uptime").read_text().split()[0])


def others_share(before, after):
    """The share of the machine that others had between two readings of `cpu_times`; children that
    nobody waited for are others."""
    busy, ours, elapsed = (b - a for a, b in zip(before, after))
    return max(0.0, (busy - ours) / (elapsed * os.cpu_count())) if elapsed > 0 else 0.0
