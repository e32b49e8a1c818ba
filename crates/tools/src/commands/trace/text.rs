//! Traces as tables, lines and JSON.

use crate::show::{address, one_line, size};
use crate::table::Table;
use crate::trace::{Trace, Wanted, said as state_said};
use crate::utc::utc;
use netacc_control::trace::{Head, Meaning, RingText, State};
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
            connections(&trace.head).to_string(),
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

/// How many rings are connections'.
fn connections(head: &Head) -> usize {
    head.rings.saturating_sub(1 + head.latencies).saturating_sub(head.excerpts)
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
    said_of(trace, ring, wanted, &(0..u64::MAX)).collect()
}

/// Of them those that have these indexes. (The others are not taken apart: who follows a trace sees
/// most events of a ring again and again.)
fn said_of<'a>(
    trace: &'a Trace,
    ring: &RingText,
    wanted: &Wanted,
    indexes: &Range<u64>,
) -> impl Iterator<Item = Said<'a>> {
    let table = &trace.head.table;
    let is_wanted = |number: u32| {
        let name = || table.meaning(number, 0).map_or(UNKNOWN, |meaning| meaning.name);
        wanted.events.is_empty() || wanted.events.iter().any(|event| event == name())
    };
    let all = ring.events.iter().filter(move |(_, number, ..)| is_wanted(*number));
    let first = wanted.last.map_or(0, |last| all.clone().count().saturating_sub(last));
    let all = all.skip(first).filter(|(index, ..)| indexes.contains(index));
    all.map(|(index, number, ns, what)| {
        let meaning = table.meaning(*number, *what);
        let meaning = meaning.unwrap_or(Meaning {
            name: UNKNOWN,
            fields: vec![("number", u64::from(*number), None), ("what", *what, None)],
        });
        Said { index: *index, ns: *ns, meaning }
    })
}

/// Says an event in a map that may have something already.
fn event_json(mut map: Map<String, Value>, unix_ns: u64, said: &Said<'_>) -> Map<String, Value> {
    map.insert("unix_ns".to_owned(), json!(unix_ns));
    map.insert("ns".to_owned(), json!(said.ns));
    map.insert("event".to_owned(), json!(said.meaning.name));
    for (name, value, word) in &said.meaning.fields {
        map.insert((*name).to_owned(), word.map_or(json!(value), |word| json!(word)));
    }
    map
}

/// Writes that object, as it would be written; `whose` is what the map has. (To make one, and to
/// take it apart again, takes several times as long: who follows a trace has thousands.)
fn write_json_event(line: &mut String, whose: &Map<String, Value>, unix_ns: u64, said: &Said<'_>) {
    let fields = &said.meaning.fields;
    // (In a table that somebody has made up a name may be there twice.)
    let is_said = |at: usize, name: &str| {
        let before = fields.get(..at).unwrap_or_default();
        whose.contains_key(name)
            || ["unix_ns", "ns", "event"].contains(&name)
            || before.iter().any(|(other, ..)| *other == name)
    };
    if fields.iter().enumerate().any(|(at, (name, ..))| is_said(at, name)) {
        let map = event_json(whose.clone(), unix_ns, said);
        let _ = write!(line, "{}", Value::Object(map));
        return;
    }
    line.push('{');
    for (name, value) in whose {
        write_json_word(line, name);
        let _ = write!(line, ":{value},");
    }
    let _ = write!(line, "\"unix_ns\":{unix_ns},\"ns\":{},\"event\":", said.ns);
    write_json_word(line, said.meaning.name);
    for (name, value, word) in fields {
        line.push(',');
        write_json_word(line, name);
        line.push(':');
        match word {
            Some(word) => write_json_word(line, word),
            None => _ = write!(line, "{value}"),
        }
    }
    line.push('}');
}

fn write_json_word(line: &mut String, word: &str) {
    match word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        true => ["\"", word, "\""].into_iter().for_each(|part| line.push_str(part)),
        false => _ = write!(line, "{}", json!(word)),
    }
}

fn ring_json(trace: &Trace, ring: &RingText, wanted: &Wanted) -> Value {
    let events: Vec<Value> = said(trace, ring, wanted)
        .iter()
        .map(|s| {
            let map = Map::from_iter([("index".to_owned(), json!(s.index))]);
            event_json(map, trace.head.unix_ns(s.ns), s).into()
        })
        .collect();
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
fn write_time(out: &mut String, trace: &Trace, ns: u64) {
    let since = ns.saturating_sub(trace.head.began_ns);
    let _ = write!(out, "{:>6}.{:09}", since / 1_000_000_000, since % 1_000_000_000);
}

fn write_event(out: &mut String, said: &Said<'_>) {
    out.push_str(said.meaning.name);
    for (name, value, word) in &said.meaning.fields {
        let _ = match word {
            Some(word) => write!(out, " {word}"),
            None => write!(out, " {name} {value}"),
        };
    }
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

/// Where events of a ring are not kept: the index behind, and how many.
fn lost(ring: &RingText) -> impl Iterator<Item = (u64, u64)> {
    let pairs = ring.events.iter().zip(ring.events.iter().skip(1));
    pairs.filter_map(|((before, ..), (behind, ..))| {
        /// So many threads may be at it at once.
        const WRITERS: u64 = 8;
        let first = before.checked_add(1)?;
        let lost = behind.checked_sub(first)?;
        let is_written = first < ring.written || lost > WRITERS;
        (lost > 0 && is_written).then_some((*behind, lost))
    })
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
    let mut gaps = lost(ring).peekable();
    for event in said(trace, ring, wanted) {
        let before = core::iter::from_fn(|| gaps.next_if(|(behind, _)| event.index >= *behind));
        match before.map(|(_, lost)| lost).sum() {
            0 => {}
            lost => lines.push(format!("({lost} events are not kept)")),
        }
        let mut line = String::new();
        write_time(&mut line, trace, event.ns);
        line.push_str("  ");
        write_event(&mut line, &event);
        lines.push(line);
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

/// What rings say, event by event, each in a line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    is_json: bool,
    /// As they came.
    text: String,
    /// Of each: when it was, and where it stands there.
    all: Vec<(u64, Range<usize>)>,
}

impl Lines {
    pub(super) fn new(is_json: bool) -> Lines {
        Lines { is_json, ..Lines::default() }
    }

    /// What a ring says in the events of these indexes. Those in between that are not kept any more
    /// are counted.
    pub(super) fn add(
        &mut self,
        trace: &Trace,
        ring: &RingText,
        wanted: &Wanted,
        indexes: &Range<u64>,
    ) {
        let of = match ring.number {
            0 => format!("  {} process: ", trace.pid),
            number => {
                let (local, peer) = (address(ring.local), address(ring.peer));
                format!("  {} {number} {local} > {peer}: ", trace.pid)
            }
        };
        let is_json = self.is_json;
        let whose = Map::from_iter([
            ("pid".to_owned(), json!(trace.pid)),
            ("connection".to_owned(), json!(ring.number)),
        ]);
        let begin = |line: &mut String, ns| {
            write_time(line, trace, ns);
            line.push_str(&of);
        };
        for (ns, lost) in lost_since(ring, indexes.start) {
            self.line(ns, |line| match is_json {
                true => {
                    let mut map = whose.clone();
                    map.insert("events_not_kept".to_owned(), json!(lost));
                    let _ = write!(line, "{}", Value::Object(map));
                }
                false => {
                    begin(line, ns);
                    let _ = write!(line, "({lost} events are not kept)");
                }
            });
        }
        for said in said_of(trace, ring, wanted, indexes) {
            self.line(said.ns, |line| match is_json {
                true => write_json_event(line, &whose, trace.head.unix_ns(said.ns), &said),
                false => {
                    begin(line, said.ns);
                    write_event(line, &said);
                }
            });
        }
    }

    fn line(&mut self, ns: u64, write: impl FnOnce(&mut String)) {
        let begin = self.text.len();
        write(&mut self.text);
        self.text.push('\n');
        self.all.push((ns, begin..self.text.len()));
    }

    /// Takes all out, in the order of their times.
    pub(super) fn take(&mut self) -> String {
        // (Those of one moment stay in their order.)
        self.all.sort_by_key(|(ns, _)| *ns);
        let mut text = String::with_capacity(self.text.len());
        let lines = self.all.drain(..).filter_map(|(_, place)| self.text.get(place));
        lines.for_each(|line| text.push_str(line));
        self.text.clear();
        text
    }
}

/// How many events from that index on are not kept any more, at each place where some are missing,
/// and the time of the first behind them.
fn lost_since(ring: &RingText, from: u64) -> Vec<(u64, u64)> {
    let since = |(behind, lost): (u64, u64)| {
        let (.., ns, _) = ring.events.iter().find(|(index, ..)| *index == behind)?;
        let lost = lost.min(behind.saturating_sub(from));
        (lost > 0).then_some((*ns, lost))
    };
    lost(ring).filter_map(since).collect()
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
            excerpts: 0,
            recorded: 12,
            written: 12,
            events: kept.map(|index| (index, 1, 100 * index, 0)).collect(),
        }
    }

    #[test]
    fn an_event_is_written_as_its_object_is() {
        let whose = [("pid".to_owned(), json!(7)), ("connection".to_owned(), json!(1))];
        let whose = Map::from_iter(whose);
        for fields in [
            vec![],
            vec![("bytes", 5, None), ("path", 1, Some("shm")), ("a\"b", 2, Some("c\\d"))],
            vec![("pid", 5, None)],
            vec![("ns", 5, Some("x"))],
            vec![("x", 1, None), ("x", 2, None)],
        ] {
            let said = Said { index: 0, ns: 3, meaning: Meaning { name: "sent", fields } };
            let mut line = String::new();
            write_json_event(&mut line, &whose, 99, &said);
            assert_eq!(line, Value::Object(event_json(whose.clone(), 99, &said)).to_string());
        }
    }

    #[test]
    fn lines_are_taken_once_in_the_order_of_their_times() {
        let mut lines = Lines::new(false);
        for (ns, word) in [(3, "c"), (1, "a"), (3, "d"), (2, "b")] {
            lines.line(ns, |line| line.push_str(word));
        }
        assert_eq!(lines.take(), "a\nb\nc\nd\n");
        lines.line(0, |line| line.push('e'));
        assert_eq!((lines.take().as_str(), lines.take().as_str()), ("e\n", ""));
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
    fn each_place_where_events_are_not_kept_is_told() {
        let kept = |indexes: &[u64], written| RingText {
            written,
            events: indexes.iter().map(|index| (*index, 1, 100 * index, 0)).collect(),
            ..ring()
        };
        let all = |ring: &RingText| lost(ring).collect::<Vec<_>>();
        assert_eq!(all(&kept(&[0, 1, 5, 6, 10, 11], 12)), [(5, 3), (10, 3)], "around an excerpt");
        assert_eq!(all(&kept(&[0, 1, 5, 7], 6)), [(5, 3)], "the sixth is being written");
        assert_eq!(all(&kept(&[], 0)), []);
    }

    #[test]
    fn who_follows_is_told_of_each_event_that_is_not_kept_once() {
        assert_eq!(lost_since(&ring(), 0), [(800, 5)]);
        assert_eq!(lost_since(&ring(), 5), [(800, 3)]);
        assert_eq!(lost_since(&ring(), 8), []);
        assert_eq!(lost_since(&ring(), 12), []);
        let all = RingText { events: (0..4).map(|i| (i, 1, i, 0)).collect(), ..ring() };
        assert_eq!(lost_since(&all, 0), []);
    }
}
