"""What a trace says of connections over RDMA: FILE (`netacc trace show --json`) and

busy COUNT: so many have left TCP and have recorded more than a ring keeps.
killed COUNT NS: of how many the last hundred events are there, and of how many they go on until
four seconds before that time.
says: how far each is, for people.
"""
import json
import sys

PLACES, LAST = 124, 100


def main(file, what, count="0", killed_at="0"):
    with open(file) as said:
        trace = json.load(said)[0]
    talked = [
        c for c in trace["connections"]
        if c["number"] and any("rdma" in (e.get("path"), e.get("to")) or e["event"] == "promoted" for e in c["events"])
    ]
    full = [c for c in talked if c["recorded"] >= PLACES and len(c["events"]) >= LAST]
    if what == "busy":
        return len(full) != int(count)
    if what == "says":
        print(*((c["recorded"], len(c["events"]), [e["event"] for e in c["events"]][-5:]) for c in talked))
        return 0
    late = [c for c in full if c["events"][-1]["unix_ns"] > int(killed_at) - 4_000_000_000]
    print(trace["state"])
    print(len(full), "of", count, "with a hundred events")
    print(len(late), "of", count, "to the end")
    return 0


sys.exit(main(*sys.argv[1:]))
