//! Traces in the JSON format of Chrome's and Perfetto's viewers: a process for each process, a
//! thread for each connection; a sleep is a slice, everything else an instant.

use super::text::{Said, gaps, is_whole, said};
use crate::show::address;
use crate::trace::{Trace, Wanted};
use netacc_control::trace::RingText;
use serde_json::{Map, Value, json};

/// All of it.
pub(super) fn events(traces: &[Trace], wanted: &Wanted) -> Value {
    let mut all = Vec::new();
    for trace in traces {
        all.push(name("process_name", trace.pid, 0, &trace.head.program));
        for ring in trace.rings().iter().filter(|ring| wanted.has(ring)) {
            let title = match ring.number {
                0 => "process".to_owned(),
                number => format!("{number} {} > {}", address(ring.local), address(ring.peer)),
            };
            all.push(name("thread_name", trace.pid, ring.number, &title));
            add(&mut all, trace, ring, wanted);
        }
    }
    json!({ "traceEvents": all, "displayTimeUnit": "ns" })
}

fn name(what: &str, pid: u32, tid: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } })
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn add(all: &mut Vec<Value>, trace: &Trace, ring: &RingText, wanted: &Wanted) {
    let (events, gaps) = (said(trace, ring, wanted), gaps(ring));
    for (i, event) in events.iter().enumerate() {
        let name = event.meaning.name;
        let args: Map<String, Value> = event
            .meaning
            .fields
            .iter()
            .map(|(name, value, word)| {
                ((*name).to_owned(), word.map_or(json!(value), |w| json!(w)))
            })
            .collect();
        let (pid, tid, at) = (trace.pid, ring.number, micros(event.ns));
        all.push(match slept(&events, i, &gaps) {
            Some(ns) => json!({ "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at,
                "dur": micros(ns), "args": args }),
            None => json!({ "ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": at,
                "args": args }),
        });
    }
}

/// Of a sleep: for how long, if its own wake is there. (Between a connection's first events and its
/// last ones many are missing, each a sleep or a wake.)
pub(super) fn slept(events: &[Said<'_>], i: usize, gaps: &[(u64, u64)]) -> Option<u64> {
    let event = events.get(i)?;
    let wake = format!("wake{}", event.meaning.name.strip_prefix("sleep")?);
    let wakes = |other: &&Said<'_>| {
        // (Of the same set, of the same side.)
        other.meaning.name == wake
            && other.meaning.fields.first().map(|f| f.1)
                == event.meaning.fields.first().map(|f| f.1)
    };
    let end = events.iter().skip(i + 1).find(wakes)?;
    end.ns.checked_sub(event.ns).filter(|_| is_whole(gaps, event.ns, end.ns))
}
