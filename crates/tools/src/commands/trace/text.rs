//! Traces as tables, lines and JSON.

use crate::show::{address, one_line, size};
use crate::table::Table;
use crate::trace::{Trace, Wanted, said as state_said};
use crate::utc::utc;
use netacc_control::trace::{Meaning, RingText, State};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::ops::Range;

/// What an event is called that the trace's own table does not have.
pub(super) const UNKNOWN: &str = "unknown";

/// `netacc trace list`.
pub(super) fn list(traces: &[Trace], columns: Option<usize>) -> String {
    let mut table = Table::new(&[
        ">Pid",
        "Program",
        ">Uid",
        "State",
        "Began",
        "Last-Event",
        ">Connections",
        ">Troubles",
        ">Missed",
        ">Memory",
        "Trace",
    ]);
    for trace in traces {
        table.row([
            trace.pid.to_string(),
            one_line(&trace.head.program),
            trace.uid.to_string(),
            trace.state().to_owned(),
            utc(trace.head.began_unix_ns),
            last_of(trace).map_or_else(|| "-".to_owned(), utc),
            trace.head.rings.saturating_sub(1 + trace.head.latencies).to_string(),
            trace.head.troubles.to_string(),
            trace.head.missed.to_string(),
            size(trace.bytes),
            one_line(&trace.path.to_string_lossy()),
        ]);
    }
    match traces {
        [] => "no traces\n".to_owned(),
        _ => table.render(columns),
    }
}

/// When the last event was, nearly, by what the file begins with.
fn last_of(trace: &Trace) -> Option<u64> {
    let last = Some(trace.head.last_ns).filter(|last| *last >= trace.head.began_ns.max(1));
    last.map(|last| trace.head.unix_ns(last))
}

fn head_json(trace: &Trace) -> Map<String, Value> {
    let head = &trace.head;
    let Value::Object(map) = json!({
        "pid": trace.pid,
        "program": head.program,
        "state": trace.state(),
        "uid": trace.uid,
        "began_unix_ns": head.began_unix_ns,
        "last_unix_ns": last_of(trace),
        "rings": head.rings,
        "missed": head.missed,
        "troubles": head.troubles,
        "memory_bytes": trace.bytes,
        "path": trace.path.to_string_lossy(),
    }) else {
        return Map::new();
    };
    map
}

/// The same as JSON.
pub(super) fn list_json(traces: &[Trace]) -> Value {
    traces.iter().map(|trace| Value::Object(head_json(trace))).collect()
}

/// An event of a ring: its index, its time by the clock of the events, and what it means.
pub(super) struct Said<'a> {
    pub(super) index: u64,
    pub(super) ns: u64,
    pub(super) meaning: Meaning<'a>,
}

/// The events of a ring that are wanted, in their order.
pub(super) fn said<'a>(trace: &'a Trace, ring: &RingText, wanted: &Wanted) -> Vec<Said<'a>> {
    let mut all = Vec::new();
    for (index, number, ns, what) in &ring.events {
        let meaning = trace.head.table.meaning(*number, *what);
        let meaning = meaning.unwrap_or(Meaning {
            name: UNKNOWN,
            fields: vec![("number", u64::from(*number), None), ("what", *what, None)],
        });
        if wanted.events.is_empty() || wanted.events.iter().any(|name| name == meaning.name) {
            all.push(Said { index: *index, ns: *ns, meaning });
        }
    }
    let first = wanted.last.map_or(0, |last| all.len().saturating_sub(last));
    all.split_off(first)
}

fn event_json(trace: &Trace, said: &Said<'_>) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("unix_ns".to_owned(), json!(trace.head.unix_ns(said.ns)));
    map.insert("ns".to_owned(), json!(said.ns));
    map.insert("event".to_owned(), json!(said.meaning.name));
    for (name, value, word) in &said.meaning.fields {
        map.insert((*name).to_owned(), word.map_or(json!(value), |word| json!(word)));
    }
    map
}

fn ring_json(trace: &Trace, ring: &RingText, wanted: &Wanted) -> Value {
    let events: Vec<Value> =
        said(trace, ring, wanted).iter().map(|s| Value::Object(event_json(trace, s))).collect();
    json!({
        "number": ring.number,
        "fd": if ring.number == 0 { Value::Null } else { json!(ring.fd) },
        "local": address_json(ring.local),
        "peer": address_json(ring.peer),
        "peer_pid": ring.peer_pid,
        "is_open": ring.state == State::Open as u32,
        "recorded": ring.recorded,
        "events": events,
    })
}

fn address_json(end: Option<std::net::SocketAddr>) -> Value {
    end.map_or(Value::Null, |end| json!(end.to_string()))
}

/// `netacc trace show --json`.
pub(super) fn json(traces: &[Trace], wanted: &Wanted) -> Value {
    let one = |trace: &Trace| {
        let mut map = head_json(trace);
        let rings: Vec<Value> = trace
            .rings()
            .iter()
            .filter(|ring| wanted.has(ring))
            .map(|ring| ring_json(trace, ring, wanted))
            .collect();
        map.insert("connections".to_owned(), Value::Array(rings));
        Value::Object(map)
    };
    traces.iter().map(one).collect()
}

/// `12.000345678`: since the trace began.
fn time(trace: &Trace, ns: u64) -> String {
    let since = ns.saturating_sub(trace.head.began_ns);
    format!("{:>6}.{:09}", since / 1_000_000_000, since % 1_000_000_000)
}

fn event_text(said: &Said<'_>) -> String {
    let mut text = said.meaning.name.to_owned();
    for (name, value, word) in &said.meaning.fields {
        let _ = match word {
            Some(word) => write!(text, " {word}"),
            None => write!(text, " {name} {value}"),
        };
    }
    text
}

fn ring_title(ring: &RingText) -> String {
    if ring.number == 0 {
        return "process".to_owned();
    }
    let state = if ring.state == State::Open as u32 { "open" } else { "closed" };
    format!(
        "connection {}, fd {}, {} > {}, {state}",
        ring.number,
        ring.fd,
        address(ring.local),
        address(ring.peer)
    )
}

/// Where events of a ring are missing, between its first and its last ones: the index behind, and
/// how many.
fn gap(ring: &RingText) -> Option<(u64, u64)> {
    let pairs = ring.events.iter().zip(ring.events.iter().skip(1));
    let apart = pairs.filter_map(|((before, ..), (behind, ..))| {
        let lost = behind.checked_sub(before + 1)?;
        (lost > 0).then_some((*behind, lost))
    });
    // (A smaller one is of events that are being written.)
    apart.max_by_key(|(_, lost)| *lost)
}

/// Of each place where events of a ring are missing the times of those before it and behind it.
pub(super) fn gaps(ring: &RingText) -> Vec<(u64, u64)> {
    let pairs = ring.events.iter().zip(ring.events.iter().skip(1));
    let apart = pairs.filter(|((before, ..), (behind, ..))| behind.saturating_sub(*before) > 1);
    apart.map(|((.., before, _), (.., behind, _))| (*before, *behind)).collect()
}

/// Whether every event from that time to that one is there.
pub(super) fn is_whole(gaps: &[(u64, u64)], from: u64, to: u64) -> bool {
    gaps.iter().all(|(before, behind)| to <= *before || from >= *behind)
}

/// What a ring says, event by event, the oldest first.
pub(in crate::commands) fn events(trace: &Trace, ring: &RingText, wanted: &Wanted) -> Vec<String> {
    let mut lines = Vec::new();
    let mut gap = gap(ring);
    for event in said(trace, ring, wanted) {
        if let Some((_, lost)) = gap.take_if(|(behind, _)| event.index >= *behind) {
            lines.push(format!("({lost} events are not kept)"));
        }
        lines.push(format!("{}  {}", time(trace, event.ns), event_text(&event)));
    }
    lines
}

/// When a trace began and ended, and how many of its connections went badly.
fn times(trace: &Trace, rings: &[RingText]) -> String {
    let mut text = format!("began {}", utc(trace.head.began_unix_ns));
    let last = rings.iter().flat_map(|ring| &ring.events).map(|(_, _, ns, _)| *ns).max();
    if let Some(last) = last.filter(|last| *last >= trace.head.began_ns) {
        let _ = write!(text, ", last event {}", utc(trace.head.unix_ns(last)));
    }
    match trace.head.troubles {
        0 => {}
        1 => text += "; one connection was in trouble",
        many => _ = write!(text, "; {many} connections were in trouble"),
    }
    text
}

/// `netacc trace show`.
pub(super) fn text(traces: &[Trace], wanted: &Wanted) -> String {
    let mut out = String::new();
    for trace in traces {
        let program = one_line(&trace.head.program);
        let state = state_said(trace.state());
        let _ = writeln!(out, "{program} ({}) of uid {}, {state}", trace.pid, trace.uid);
        let rings = trace.rings();
        let _ = writeln!(out, "{}", times(trace, &rings));
        for ring in rings.iter().filter(|ring| wanted.has(ring)) {
            let events = events(trace, ring, wanted);
            if !events.is_empty() {
                let _ = writeln!(out, "\n{}", ring_title(ring));
            }
            events.iter().for_each(|event| _ = writeln!(out, "  {event}"));
        }
        out.push('\n');
    }
    if out.is_empty() { "no traces\n".to_owned() } else { out }
}

/// What a ring says in the events of these indexes: each line with its time. Those in between that
/// are not kept any more are counted.
pub(super) fn lines(
    trace: &Trace,
    ring: &RingText,
    wanted: &Wanted,
    new: Range<u64>,
    is_json: bool,
) -> Vec<(u64, String)> {
    let line = |ns, says: Map<String, Value>, text: &str| {
        if is_json {
            let mut map = Map::new();
            map.insert("pid".to_owned(), json!(trace.pid));
            map.insert("connection".to_owned(), json!(ring.number));
            map.extend(says);
            return (ns, format!("{}\n", Value::Object(map)));
        }
        let of = match ring.number {
            0 => "process".to_owned(),
            number => format!("{number} {} > {}", address(ring.local), address(ring.peer)),
        };
        (ns, format!("{}  {} {of}: {text}\n", time(trace, ns), trace.pid))
    };
    let mut lines = Vec::new();
    if let Some((ns, lost)) = lost_since(ring, new.start) {
        let says = Map::from_iter([("events_not_kept".to_owned(), json!(lost))]);
        lines.push(line(ns, says, &format!("({lost} events are not kept)")));
    }
    let all = said(trace, ring, wanted);
    let new = all.iter().filter(|said| new.contains(&said.index));
    lines.extend(new.map(|said| line(said.ns, event_json(trace, said), &event_text(said))));
    lines
}

/// How many events from that index on are not kept any more, and the time of the first behind them.
fn lost_since(ring: &RingText, from: u64) -> Option<(u64, u64)> {
    let (behind, lost) = gap(ring)?;
    let (.., ns, _) = ring.events.iter().find(|(index, ..)| *index == behind)?;
    let lost = lost.min(behind.saturating_sub(from));
    (lost > 0).then_some((*ns, lost))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 12 events the first three and the last four are kept.
    fn ring() -> RingText {
        let kept = (0..3).chain(8..12);
        RingText {
            state: State::Open as u32,
            number: 1,
            fd: 3,
            began_ns: 0,
            local: None,
            peer: None,
            peer_pid: 0,
            latencies: 0,
            recorded: 12,
            written: 12,
            events: kept.map(|index| (index, 1, 100 * index, 0)).collect(),
        }
    }

    #[test]
    fn what_spans_missing_events_is_not_whole() {
        let gaps = gaps(&ring());
        assert_eq!(gaps, [(200, 800)]);
        for (from, to, whole) in [
            (0, 200, true),
            (800, 1100, true),
            (200, 800, false),
            (100, 300, false),
            (500, 600, false),
        ] {
            assert_eq!(is_whole(&gaps, from, to), whole, "{from} to {to}");
        }
    }

    #[test]
    fn who_follows_is_told_of_each_event_that_is_not_kept_once() {
        assert_eq!(lost_since(&ring(), 0), Some((800, 5)));
        assert_eq!(lost_since(&ring(), 5), Some((800, 3)));
        assert_eq!(lost_since(&ring(), 8), None);
        assert_eq!(lost_since(&ring(), 12), None);
        let all = RingText { events: (0..4).map(|i| (i, 1, i, 0)).collect(), ..ring() };
        assert_eq!(lost_since(&all, 0), None);
    }
}
