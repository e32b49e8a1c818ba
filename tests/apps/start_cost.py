"""What the library adds to the start of a program: `start_cost.py LIBRARY`, status 1 if it is a
millisecond or more.

/bin/true by env, without and with the library in turn, 60 pairs. The bound is on two numbers that a
busy machine does not change much: the median of the CPU time, and the least wall time, which says
that nothing is waited for. The medians are what a user sees.
"""

import os
import statistics
import sys
import time

PAIRS = 60
BOUND_US = 1000


def start(*assignment):
    """Wall and CPU time of one start, in microseconds."""
    begin = time.monotonic_ns()
    pid = os.posix_spawn("/usr/bin/env", ["env", *assignment, "/bin/true"], os.environ)
    _, status, usage = os.wait4(pid, 0)
    wall = (time.monotonic_ns() - begin) / 1000
    if status:
        sys.exit(f"/bin/true ended with {status}")
    return wall, (usage.ru_utime + usage.ru_stime) * 1e6


def main():
    library = "LD_PRELOAD=" + sys.argv[1]
    start("X=1"), start(library)
    pairs = [(start("X=1"), start(library)) for _ in range(PAIRS)]
    (wall, cpu), (wall_with, cpu_with) = ((list(zip(*side))) for side in zip(*pairs))
    median = statistics.median
    added_cpu, added_wall = median(cpu_with) - median(cpu), min(wall_with) - min(wall)
    print(
        f"/bin/true by env, {PAIRS} pairs, µs without and with the library: median {median(wall):.0f} and {median(wall_with):.0f}, "
        f"least {min(wall):.0f} and {min(wall_with):.0f}, CPU median {median(cpu):.0f} and {median(cpu_with):.0f}"
    )
    sys.exit(not (added_cpu < BOUND_US and added_wall < BOUND_US))


main()
