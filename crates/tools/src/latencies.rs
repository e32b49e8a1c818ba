//! How long the answers of a process's connections take, where it measures that (`NACC_TRACE=2`):
//! it stands in its trace.

use crate::segment::Process;
use crate::selection::Order;
use crate::trace::{self, Trace};
use netacc_control::stats::Connection;
use netacc_control::trace::{Latency, RingText, State, Times, bucket_end};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Of two times, by [`Latency`].
type Both = [Times; 2];
/// A connection: descriptor, both ends.
type Key = (u32, Option<SocketAddr>, Option<SocketAddr>);
/// A process: its number, and when its statistics began.
type ProcessKey = (u32, u64);

/// Of a process's open connections, those that were measured.
#[derive(Debug, Default)]
pub struct Latencies(HashMap<Key, Both>);

impl Latencies {
    /// Those of a process that runs; none where it has no trace that may be read.
    pub fn of(pid: u32) -> Latencies {
        trace::of_process(pid).map(|trace| Latencies::in_trace(&trace)).unwrap_or_default()
    }

    fn in_trace(trace: &Trace) -> Latencies {
        if trace.head.latencies == 0 {
            return Latencies::default();
        }
        let measured =
            trace.open_rings().filter_map(|(_, r)| Some((key(&r), trace.latencies(&r)?)));
        Latencies(measured.collect())
    }

    /// A connection's; `None`: it was not measured.
    pub fn find(&self, connection: &Connection) -> Option<&Both> {
        self.0.get(&(connection.fd, connection.local, connection.peer))
    }

    /// One whose answers took 98.3 us at most.
    #[cfg(test)]
    pub(crate) fn sample(of: &Connection) -> Latencies {
        let answers = Times { max_ns: 98_304, sum_ns: 98_304, counts: vec![0; 123] };
        let mut both = [answers, Times::default()];
        both[0].counts.push(1);
        Latencies(HashMap::from([((of.fd, of.local, of.peer), both)]))
    }

    /// Of a process those that connections are put in that order by: none, where it takes none.
    pub fn wanted(pid: u32, order: Order) -> Latencies {
        order.latency().map(|_| Latencies::of(pid)).unwrap_or_default()
    }

    /// By what connections are put in that order; `None`: it was not measured.
    pub fn by(&self, order: Order) -> impl Fn(&Connection) -> Option<u64> {
        move |connection| self.quantile(connection, order.latency()?)
    }

    /// The time that so many of a thousand of a connection's do not exceed.
    pub fn quantile(&self, of: &Connection, (which, part): (Latency, u64)) -> Option<u64> {
        let times = self.find(of)?.get(which as usize)?;
        if times.count() == 0 { None } else { times.quantile(part) }
    }
}

/// All that processes have measured, of connections that are over, too; looked at again and again.
/// (To find a process's trace takes a look at each of its descriptors: it is kept.)
#[derive(Debug, Default)]
pub struct Looks(HashMap<ProcessKey, (Instant, Option<Trace>)>);

/// A process that has no trace may have one by then.
const AGAIN: Duration = Duration::from_secs(10);

impl Looks {
    /// Of these processes those that have measured something.
    pub fn at<'a>(&mut self, all: &[&'a Process]) -> Vec<(&'a Process, Both)> {
        let (mut now, mut found) = (HashMap::new(), Vec::new());
        for process in all {
            let key = (process.pid, process.header.started_unix_ns);
            let (at, trace) = look(self.0.remove(&key), process.pid);
            if let Some(trace) = trace.as_ref().filter(|trace| trace.head.latencies != 0)
                && let Some(times) = trace.own_ring().and_then(|ring| trace.latencies(&ring))
            {
                found.push((*process, times));
            }
            now.insert(key, (at, trace));
        }
        // Of processes that are gone nothing is kept.
        self.0 = now;
        found
    }
}

/// Of one process's open connections those that are asked for, again and again. Which ring of the
/// trace each has is kept: of ten thousand that nobody sees nothing is read.
#[derive(Debug, Default)]
pub struct Places(Option<OfProcess>);

#[derive(Debug)]
struct OfProcess {
    key: ProcessKey,
    looked: Option<(Instant, Option<Trace>)>,
    rings: HashMap<Key, usize>,
    /// One was asked for that has none of them.
    lacks: bool,
    /// When they are looked for again.
    next: Instant,
}

/// To look for them takes at most one of so many parts of the time.
const PARTS: u32 = 200;

impl Places {
    /// Looks at a process again; nothing is kept of others.
    pub fn look(&mut self, key: ProcessKey) {
        let now = Instant::now();
        let known = self.0.take().filter(|known| known.key == key);
        let new = OfProcess { key, looked: None, rings: HashMap::new(), lacks: true, next: now };
        let it = self.0.insert(known.unwrap_or(new));
        let looked = look(it.looked.take(), key.0);
        let (_, trace) = it.looked.insert(looked);
        let measures = trace.as_ref().filter(|trace| trace.head.latencies != 0);
        if let Some(trace) = measures.filter(|_| it.lacks && now >= it.next) {
            it.rings = trace.open_rings().map(|(i, ring)| (self::key(&ring), i)).collect();
            it.lacks = false;
            it.next = Instant::now() + now.elapsed() * PARTS;
        }
    }

    /// What was measured of these connections of a process; `None`: it was not looked at.
    pub fn of(
        &mut self,
        key: ProcessKey,
        all: impl Iterator<Item = Connection>,
    ) -> Option<Latencies> {
        let it = self.0.as_mut().filter(|it| it.key == key)?;
        let mut measured = HashMap::new();
        let (_, Some(trace)) = it.looked.as_ref()? else { return Some(Latencies(measured)) };
        for connection in all {
            let key = (connection.fd, connection.local, connection.peer);
            let ring = it.rings.get(&key).and_then(|i| trace.ring_head(*i));
            // (The connection may be over, and another one have the ring.)
            let is = |ring: &RingText| ring.state == State::Open as u32 && self::key(ring) == key;
            match ring.filter(is) {
                Some(ring) => measured.extend(trace.latencies(&ring).map(|times| (key, times))),
                None => it.lacks = true,
            }
        }
        Some(Latencies(measured))
    }
}

fn key(ring: &RingText) -> Key {
    (ring.fd, ring.local, ring.peer)
}

/// A process's trace as it is now, by what was known of it.
fn look(known: Option<(Instant, Option<Trace>)>, pid: u32) -> (Instant, Option<Trace>) {
    let known = known.filter(|(at, trace)| trace.is_some() || at.elapsed() < AGAIN);
    let (at, trace) = known.unwrap_or_else(|| (Instant::now(), trace::of_process(pid)));
    (at, trace.and_then(|mut trace| trace.look_again().ok().map(|()| trace)))
}

/// The parts of a thousand that are shown, with the names of their columns.
const SHOWN: [(u64, &str); 2] = [(500, "p50"), (990, "p99")];

/// The columns of a table, and of an unmeasured connection.
pub fn headings() -> Vec<String> {
    let mut words = Vec::new();
    for name in ["Answer", "Serve"] {
        words.extend(SHOWN.iter().map(|(_, part)| format!(">{name}-{part}")));
        words.push(format!(">{name}-max"));
    }
    words
}

/// A connection's cells in them.
pub fn cells(both: Option<&Both>) -> Vec<String> {
    let mut cells = Vec::new();
    for at in Latency::ALL {
        let times = both.and_then(|both| both.get(at as usize)).filter(|times| times.count() != 0);
        let cell = |ns: Option<u64>| ns.map_or_else(|| String::from("-"), duration);
        for (part, _) in SHOWN {
            cells.push(cell(times.and_then(|times| times.quantile(part))));
        }
        cells.push(cell(times.map(|times| times.max_ns)));
    }
    cells
}

/// As JSON: null where nothing was measured.
pub fn json(both: Option<&Both>) -> [(&'static str, Value); 8] {
    let of = |at: Latency| {
        both.and_then(|both| both.get(at as usize)).filter(|times| times.count() != 0)
    };
    let quantile = |at: Latency, part: u64| of(at).and_then(|times| times.quantile(part));
    let (answer, serve) = (Latency::Answer, Latency::Serve);
    [
        ("answer_count", of(answer).map(Times::count).into()),
        ("answer_p50_ns", quantile(answer, 500).into()),
        ("answer_p99_ns", quantile(answer, 990).into()),
        ("answer_max_ns", of(answer).map(|times| times.max_ns).into()),
        ("serve_count", of(serve).map(Times::count).into()),
        ("serve_p50_ns", quantile(serve, 500).into()),
        ("serve_p99_ns", quantile(serve, 990).into()),
        ("serve_max_ns", of(serve).map(|times| times.max_ns).into()),
    ]
}

/// For a page that shows how they change: by process, how many took less than so many nanoseconds,
/// and not less than what stands before.
pub fn page_json(all: &[(&Process, Both)]) -> Value {
    let one = |(process, both): &(&Process, Both)| json!({ "pid": process.pid, "program": process.name, "times": buckets_json(both) });
    all.iter().map(one).collect()
}

fn buckets_json(both: &Both) -> Value {
    let of = |times: &Times| -> Value {
        let all = times.counts.iter().enumerate().filter(|(_, count)| **count != 0);
        all.map(|(index, count)| json!([bucket_end(index), count])).collect()
    };
    let named = Latency::ALL.iter().zip(both).map(|(it, times)| (it.name().to_owned(), of(times)));
    Value::Object(named.collect())
}

/// Three digits.
pub fn duration(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    for (unit, name) in units {
        if ns >= unit {
            let whole = ns / unit;
            let digits = if whole >= 100 {
                0
            } else if whole >= 10 {
                1
            } else {
                2
            };
            return format!("{:.digits$} {name}", ns as f64 / unit as f64);
        }
    }
    format!("{ns} ns")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::Selection;
    use crate::trace::READS;
    use netacc_control::stats::ConnRecord;
    use netacc_control::trace::{
        self, BUCKETS, EVENTS_FIRST, HEADER_BYTES, Header, MAGIC, NAME, RING_BYTES,
        RING_HEAD_BYTES, Ring, VERSION,
    };
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::mem::{offset_of, size_of};
    use std::os::unix::fs::FileExt;

    fn times(counts: &[(usize, u64)], max_ns: u64) -> Times {
        let mut times = Times { max_ns, sum_ns: 0, counts: vec![0; 124] };
        counts.iter().for_each(|(index, count)| times.counts[*index] = *count);
        times
    }

    #[test]
    fn what_was_not_measured_is_told_so() {
        let headings = headings();
        assert_eq!(headings.len(), 6);
        assert_eq!(cells(None), ["-"; 6]);
        assert!(json(None).iter().all(|(_, value)| value.is_null()));
        let both = [times(&[(3, 98), (40, 2)], 70_500), times(&[], 0)];
        let shown = cells(Some(&both));
        assert_eq!(shown, ["128 ns", "70.5 us", "70.5 us", "-", "-", "-"], "{shown:?}");
        let map = std::collections::BTreeMap::from(json(Some(&both)));
        assert_eq!((&map["answer_count"], &map["answer_p50_ns"]), (&json!(100), &json!(128)));
        assert!(map["serve_count"].is_null());
        let buckets = buckets_json(&both);
        assert_eq!(buckets["answer"][0], json!([128, 98]));
        assert_eq!(buckets["serve"], json!([]));
    }

    #[test]
    fn connections_are_ordered_by_what_was_measured() {
        let connection = |fd: u32, messages: u64| {
            let mut record = [0; size_of::<ConnRecord>()];
            record[offset_of!(ConnRecord, fd)..][..4].copy_from_slice(&fd.to_ne_bytes());
            let at = offset_of!(ConnRecord, rx_messages);
            record[at..][..8].copy_from_slice(&messages.to_ne_bytes());
            Connection::read_closed(&record)
        };
        let all: Vec<_> = [(3, 7), (4, 9), (5, 8), (6, 0)].map(|(a, b)| connection(a, b)).into();
        let mut measured = Latencies::default();
        // 50 of a hundred, 49 and one: the median, and what 99 do not exceed.
        for (fd, answer, serve) in [(4, [1, 9], [2, 2]), (5, [2, 3], [1, 1]), (6, [0, 5], [0, 9])] {
            let of = |[low, high]: [usize; 2]| times(&[(low, 60), (high, 40)], 1 << 40);
            measured.0.insert((fd, None, None), [of(answer), of(serve)]);
        }
        for (order, fds) in [
            (Order::AnswerP50, [5, 4, 6, 3]),
            (Order::AnswerP99, [4, 6, 5, 3]),
            (Order::ServeP99, [6, 4, 5, 3]),
            (Order::Messages, [4, 5, 3, 6]),
            (Order::Fd, [3, 4, 5, 6]),
        ] {
            let selection = Selection { order, ..Selection::default() };
            let shown = selection.of(&all, measured.by(order));
            assert_eq!(shown.iter().map(|c| c.fd).collect::<Vec<_>>(), fds, "{order:?}");
        }
    }

    /// A connection, and its ring's number.
    fn numbered(number: usize) -> Connection {
        let mut record = [0; size_of::<ConnRecord>()];
        record[offset_of!(ConnRecord, fd)..][..4].copy_from_slice(&(number as u32).to_ne_bytes());
        Connection::read_closed(&record)
    }

    /// A trace of this process: as many connections, each with a time of so many microseconds as
    /// its number says.
    fn traced(connections: usize) -> File {
        let mut bytes = vec![0; HEADER_BYTES + (2 * connections + 1) * RING_BYTES];
        let mut put = |at: usize, value: usize| {
            bytes[at..at + 4].copy_from_slice(&(value as u32).to_ne_bytes());
        };
        for (at, value) in [
            (offset_of!(Header, version), VERSION as usize),
            (offset_of!(Header, header_bytes), HEADER_BYTES),
            (offset_of!(Header, ring_bytes), RING_BYTES),
            (offset_of!(Header, ring_head_bytes), RING_HEAD_BYTES),
            (offset_of!(Header, events_first), EVENTS_FIRST),
            (offset_of!(Header, rings), 2 * connections + 1),
            (offset_of!(Header, latencies), connections),
            (offset_of!(Header, pid), std::process::id() as usize),
        ] {
            put(at, value);
        }
        for number in 1..=connections {
            let (ring, place) = (number, connections + number);
            let at = HEADER_BYTES + ring * RING_BYTES;
            put(at + offset_of!(Ring, state), State::Open as usize);
            put(at + offset_of!(Ring, fd), number);
            put(at + offset_of!(Ring, number), number);
            put(at + offset_of!(Ring, latencies), place);
            let at = HEADER_BYTES + place * RING_BYTES;
            put(at + offset_of!(trace::Latencies, state), State::Claimed as usize);
            put(at + offset_of!(trace::Latencies, number), number);
            put(at + offset_of!(trace::Latencies, max_ns), number * 1000);
            // (In the last bucket: the longest says it.)
            put(at + offset_of!(trace::Latencies, counts) + (BUCKETS - 1) * 8, 1);
            let magic = at + offset_of!(trace::Latencies, magic);
            put(magic, u32::from_le_bytes(*b"NETA") as usize);
            put(magic + 4, u32::from_le_bytes(*b"CCLT") as usize);
        }
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        let memory = memfd_create(NAME, MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(memory);
        file.write_all_at(&bytes, 0).unwrap();
        file
    }

    #[test]
    fn of_many_connections_only_those_that_are_asked_for_are_read() {
        const MANY: usize = 1000;
        let _trace = traced(MANY);
        let (key, mut places) = ((std::process::id(), 1), Places::default());
        let shown: Vec<Connection> = [1, 500, MANY].map(numbered).into();
        assert!(places.of(key, shown.iter().cloned()).is_none(), "it was not looked at");
        places.look(key);
        READS.set(0);
        for _ in 0..3 {
            places.look(key);
            let found = places.of(key, shown.iter().cloned()).unwrap();
            let p99 = shown.iter().map(|c| found.quantile(c, (Latency::Answer, 990)));
            let expected = [1000u64, 500_000, 1_000_000].map(Some);
            assert!(p99.eq(expected), "{found:?}");
        }
        assert_eq!(READS.get(), 3 * 2 * shown.len(), "a head and the times of each");
        // One that is not there; and of another process nothing is known.
        let found = places.of(key, [numbered(MANY + 1)].into_iter()).unwrap();
        assert!(found.0.is_empty() && places.of((key.0, 2), shown.iter().cloned()).is_none());
        // All of them at once, for a table.
        let all = Latencies::of(key.0);
        assert_eq!(all.0.len(), MANY);
    }

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [(7, "7 ns"), (1_500, "1.50 us"), (50_123_456, "50.1 ms")] {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(duration(123_456_789_012), "123 s");
    }
}
