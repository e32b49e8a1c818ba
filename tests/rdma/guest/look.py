#!/usr/bin/env python3
"""What netacc_ss and guest/traffic's progress file say of a process, for the scripts in the
kernels.

    look.py on N PID...          status 0 when these processes together have exactly N connections and all of them are on RDMA both ways
    look.py paths PID...         their open connections: N tx/rx(reason), ...
    look.py total PID...         connections since their start, by the best path they had: tcp=N shm=N rdma=N
    look.py counters PID         NAME=N for each counter that is not 0
    look.py reasons PID          NAME=N for each reason
    look.py streams FILE         number sent received send_end recv_end, for each connection of a progress file
    look.py pauses FILE          goes on until it is killed; FILE has the longest time for which this kernel did not run, in ms
    look.py moved FILE N         status 0 when every connection that is open has moved N bytes both ways

NETACC_PEER limits `on` and `paths` to connections whose peer address begins so.
"""

import collections
import json
import os
import struct
import subprocess
import sys
import time

SS = os.environ.get("NETACC_LIB_DIR", "/rig/build") + "/netacc_ss"


def ask(pid, what):
    answer = subprocess.run([SS, "--json", "-s", what, pid], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        sys.exit(answer.stderr.strip() or f"netacc_ss: status {answer.returncode}")
    return json.loads(answer.stdout)


def sockets(pids):
    peer = os.environ.get("NETACC_PEER", "")
    return [(s["tx_path"], s["rx_path"], s["reason"]) for pid in pids for s in ask(pid, "sock")["sockets"] if s["peer"].startswith(peer)]


def pairs(numbers):
    return " ".join(f"{name}={number}" for name, number in numbers.items() if number)


def streams(file):
    with open(file, "rb") as data:
        count = struct.unpack("=4Q", data.read(32))[1]
        for _ in range(count):
            number, *rest = struct.unpack("=5Q", data.read(40))
            yield number - 1, *rest


def pauses(file):
    longest, step = 0, 0.02
    while True:
        begin = time.monotonic()
        time.sleep(step)
        late = int(1000 * (time.monotonic() - begin - step))
        if late > longest:
            longest = late
            with open(file, "w") as out:
                print(late, file=out)


what, *arguments = sys.argv[1:]
if what == "on":
    count, *pids = arguments
    found = sockets(pids)
    sys.exit(len(found) != int(count) or any(socket[:2] != ("rdma", "rdma") for socket in found))
elif what == "paths":
    print(", ".join(f"{times} {tx}/{rx}({reason})" for (tx, rx, reason), times in sorted(collections.Counter(sockets(arguments)).items())))
elif what == "total":
    print(pairs(sum((collections.Counter(ask(pid, "cnt")["total"]) for pid in arguments), collections.Counter())))
elif what == "counters":
    print(pairs(ask(*arguments, "cnt")["counters"]))
elif what == "pauses":
    pauses(*arguments)
elif what == "reasons":
    print(pairs(ask(*arguments, "cnt")["reasons"]))
elif what == "streams":
    for line in streams(*arguments):
        print(*line)
elif what == "moved":
    file, number = arguments
    open_ = [(sent, received) for _, sent, received, *ends in streams(file) if not any(ends)]
    sys.exit(not open_ or any(min(it) < int(number) for it in open_))
else:
    sys.exit(__doc__)
