"""Whether what `netacc trace export` says is what Chrome's viewer takes, and the same that `netacc
trace show --json` says of these traces: trace_chrome.py EXPORTED SHOWN."""
import json
import sys


def load(file):
    with open(file) as said:
        return json.load(said)


exported, shown = load(sys.argv[1])["traceEvents"], load(sys.argv[2])
wanted = {(t["pid"], c["number"]): c["events"] for t in shown for c in t["connections"]}
found = {place: [] for place in wanted}
named = {(e["pid"], e["tid"]) for e in exported if e["ph"] == "M" and e["name"] == "thread_name"}
for event in exported:
    assert event["ph"] in ("M", "i", "X"), event
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "thread_name") and event["args"]["name"], event
        continue
    found[event["pid"], event["tid"]].append(event)
    assert event["ph"] == "X" or event["s"] == "t", event
assert named == wanted.keys(), (named, wanted.keys())
slices = [event for events in found.values() for event in events if event["ph"] == "X"]
assert any(event["dur"] > 0 for event in slices), "no slice"
assert all(event["name"].startswith("sleep") and event["dur"] >= 0 for event in slices), slices
for place, events in found.items():
    times = [event["ts"] for event in events]
    assert times == sorted(times), f"{place}: not in order"
    assert [event["name"] for event in events] == [event["event"] for event in wanted[place]], place
    # (Microseconds, in a number that has 53 bits.)
    assert all(abs(e["ts"] - w["ns"] / 1000) < 1 for e, w in zip(events, wanted[place])), place
    fields = [{name: value for name, value in event.items() if name not in ("index", "ns", "unix_ns", "event")} for event in wanted[place]]
    assert [event["args"] for event in events] == fields, place
print(len(slices), "slices of", sum(map(len, found.values())), "events")
