//! How long things took, by what the traces have of them: a share of all, the last ones.

use super::chrome::slept;
use super::text::{Said, gaps, is_whole, said};
use crate::table::Table;
use crate::terminal;
use crate::trace::{Trace, Wanted};
use netacc_control::trace::{Latency, RingText, Times as Counted, bucket_end};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

/// Times of one kind: each of them, or what was counted of them.
#[derive(Default)]
pub(super) struct Times {
    name: &'static str,
    ns: Vec<u64>,
    counted: Option<Counted>,
    /// Of that which is measured where each call is recorded, nothing was.
    is_unmeasured: bool,
}

/// What is further apart has nothing to do with each other.
const APART_NS: u64 = 1_000_000_000;

struct Known<'a> {
    trace: usize,
    ring: RingText,
    events: Vec<Said<'a>>,
    gaps: Vec<(u64, u64)>,
}

/// All kinds, of these processes' connections that are wanted; the other ends are looked for among
/// all of these processes, and others as well.
pub(super) fn of(traces: &[Trace], others: &[Trace], wanted: &Wanted) -> Vec<Times> {
    let mut all = Vec::new();
    let mut rest = Vec::new();
    for (i, trace) in traces.iter().enumerate() {
        let (meant, more): (Vec<_>, _) =
            trace.rings().into_iter().partition(|ring| wanted.has(ring));
        all.extend(meant.into_iter().map(|ring| Known::of(i, trace, ring)));
        rest.push((i, trace, more));
    }
    rest.extend((traces.len()..).zip(others).map(|(i, trace)| (i, trace, trace.rings())));
    let meant = all.len();
    let ends: HashSet<_> = all.iter().map(|known| (known.ring.peer, known.ring.local)).collect();
    for (i, trace, mut rings) in rest {
        rings.retain(|ring| ring.number == 0 || is_an_end(ring, &ends));
        if rings.iter().any(|ring| ring.number != 0) || i < traces.len() {
            all.extend(rings.into_iter().map(|ring| Known::of(i, trace, ring)));
        }
    }
    let mut kinds = times(&all, meant);
    let (meant, _) = all.split_at(meant);
    kinds.extend(Latency::ALL.map(|which| counted(traces, meant, wanted, which)));
    kinds
}

type Ends = (Option<SocketAddr>, Option<SocketAddr>);

/// Whether it has one of these pairs of addresses.
fn is_an_end(ring: &RingText, ends: &HashSet<Ends>) -> bool {
    ring.local.is_some() && ring.peer.is_some() && ends.contains(&(ring.local, ring.peer))
}

impl<'a> Known<'a> {
    fn of(index: usize, trace: &'a Trace, ring: RingText) -> Known<'a> {
        let events = said(trace, &ring, &Wanted::default());
        let gaps = gaps(&ring);
        Known { trace: index, ring, events, gaps }
    }
}

/// Those that events say, of the first so many.
fn times(all: &[Known<'_>], named_rings: usize) -> Vec<Times> {
    let named = |name| Times { name, ..Times::default() };
    let mut sleeps = named("sleep to wake");
    let mut doorbells = named("doorbell to wake");
    let mut agreed = named("in use to promotion");
    let mut moved = Times { is_unmeasured: true, ..named("send to receive") };
    for known in all.iter().take(named_rings) {
        let events = &known.events;
        sleeps.ns.extend((0..events.len()).filter_map(|i| slept(events, i, &known.gaps)));
        doorbells.ns.extend(woken(all, known));
        moved.ns.extend(received(all, known));
        moved.is_unmeasured &= !events.iter().any(|said| said.meaning.name == "send");
        // (The first events of a connection are kept.)
        let first = |name| events.iter().find(|said| said.meaning.name == name);
        if let (Some(noted), Some(promoted)) = (first("noted"), first("promoted")) {
            let is_first = is_whole(&known.gaps, noted.ns, promoted.ns);
            agreed.ns.extend(promoted.ns.checked_sub(noted.ns).filter(|_| is_first));
        }
    }
    vec![doorbells, sleeps, agreed, moved]
}

/// What these processes have counted of the answers of all their connections; or, where not all are
/// wanted, of those that are and have a ring still.
fn counted(traces: &[Trace], meant: &[Known<'_>], wanted: &Wanted, which: Latency) -> Times {
    let one = |[answer, serve]: [Counted; 2]| match which {
        Latency::Answer => answer,
        Latency::Serve => serve,
    };
    let found: Vec<Counted> = if wanted.has_all() {
        traces.iter().filter_map(|trace| trace.latencies(&trace.own_ring()?)).map(one).collect()
    } else {
        let of = |known: &Known<'_>| traces.get(known.trace)?.latencies(&known.ring);
        meant.iter().filter_map(of).map(one).collect()
    };
    let (mut all, mut is_unmeasured) = (Counted::default(), true);
    for times in found {
        is_unmeasured = false;
        all.max_ns = all.max_ns.max(times.max_ns);
        all.sum_ns = all.sum_ns.saturating_add(times.sum_ns);
        all.counts.resize(all.counts.len().max(times.counts.len()), 0);
        for (sum, count) in all.counts.iter_mut().zip(times.counts) {
            *sum = sum.saturating_add(count);
        }
    }
    Times { name: which.name(), counted: Some(all), is_unmeasured, ..Times::default() }
}

/// How long after each send began the call ended, at the other end, that took its last byte.
fn received(all: &[Known<'_>], from: &Known<'_>) -> Vec<u64> {
    let field = |said: &Said<'_>, name: &str| {
        said.meaning.fields.iter().find(|(is, _, _)| *is == name).map(|(_, value, _)| *value)
    };
    let named = |known: &Known<'_>, name: &str| -> Vec<(u64, u64, u64)> {
        let calls = known.events.iter().filter(|said| said.meaning.name == name);
        calls
            .filter_map(|said| Some((field(said, "offset")?, field(said, "bytes")?, said.ns)))
            .collect()
    };
    let sends = named(from, "send");
    let (Some(local), Some(peer)) = (from.ring.local, from.ring.peer) else { return Vec::new() };
    let ends = (Some(peer), Some(local));
    let there = all.iter().filter(|known| (known.ring.local, known.ring.peer) == ends);
    // (The addresses may have been another connection's before.)
    let there = there.min_by_key(|known| known.ring.began_ns.abs_diff(from.ring.began_ns));
    let (Some(there), false) = (there, sends.is_empty()) else { return Vec::new() };
    let mut takes = named(there, "receive");
    takes.sort_unstable();
    let time = |(offset, bytes, began): (u64, u64, u64)| {
        let last = offset.saturating_add(bytes.checked_sub(1)?);
        let behind = takes.partition_point(|(offset, _, _)| *offset <= last);
        let (offset, bytes, ns) = *takes.get(behind.checked_sub(1)?)?;
        ns.checked_sub(began).filter(|_| last < offset.saturating_add(bytes))
    };
    sends.into_iter().filter_map(time).collect()
}

/// How long after each of its doorbells the peer's thread went on, where all that the peer's rings
/// have had meanwhile is there.
fn woken(all: &[Known<'_>], from: &Known<'_>) -> Vec<u64> {
    let ends = |known: &Known<'_>| -> Option<(SocketAddr, SocketAddr)> {
        Some((known.ring.local?, known.ring.peer?))
    };
    let Some((local, peer)) = ends(from) else { return Vec::new() };
    let Some(there) = all.iter().find(|known| ends(known) == Some((peer, local))) else {
        return Vec::new();
    };
    let own = all.iter().find(|known| known.trace == there.trace && known.ring.number == 0);
    let rings: Vec<&Known<'_>> = [Some(there), own].into_iter().flatten().collect();
    let mut wakes: Vec<u64> = rings
        .iter()
        .flat_map(|known| &known.events)
        .filter(|said| said.meaning.name.starts_with("wake"))
        .map(|said| said.ns)
        .collect();
    wakes.sort_unstable();
    let rung = from.events.iter().filter(|said| said.meaning.name == "doorbell");
    rung.filter_map(|said| {
        let next = wakes.get(wakes.partition_point(|ns| *ns < said.ns))?;
        let is_known = rings.iter().all(|known| is_whole(&known.gaps, said.ns, *next));
        next.checked_sub(said.ns).filter(|ns| is_known && *ns < APART_NS)
    })
    .collect()
}

impl Times {
    fn count(&self) -> u64 {
        self.counted.as_ref().map_or(self.ns.len() as u64, Counted::count)
    }

    /// The time that so many of a thousand do not exceed.
    fn quantile(&self, of_thousand: usize) -> Option<u64> {
        if let Some(counted) = &self.counted {
            return counted.quantile(of_thousand as u64);
        }
        let mut ns = self.ns.clone();
        ns.sort_unstable();
        ns.get((ns.len().saturating_sub(1)) * of_thousand / 1000).copied()
    }

    /// How many there are up to each power of two, from the smallest that has some.
    fn buckets(&self) -> Vec<(u64, u64)> {
        let mut powers: BTreeMap<u64, u64> = BTreeMap::new();
        let counts = self.counted.iter().flat_map(|counted| counted.counts.iter().enumerate());
        let counted = counts.map(|(index, count)| (bucket_end(index), *count));
        for (ns, count) in self.ns.iter().map(|ns| (*ns, 1)).chain(counted) {
            let power = ns.max(1).checked_next_power_of_two().unwrap_or(u64::MAX);
            *powers.entry(power).or_default() += count;
        }
        powers.into_iter().filter(|(_, count)| *count != 0).collect()
    }
}

/// As tables.
pub(super) fn text(all: &[Times], columns: Option<usize>) -> String {
    // (Beside two columns of numbers.)
    let most_bar = columns.map_or(40, |columns| columns.saturating_sub(32).clamp(8, 40));
    let mut out = String::new();
    for times in all {
        let (name, count) = (times.name, times.count());
        out += &match [500, 990, 1000].map(|of| times.quantile(of)) {
            _ if times.is_unmeasured => format!("{name}: not measured: NACC_TRACE=2\n"),
            [Some(median), Some(p99), Some(max)] => {
                format!("{name}: {count} times, median {median} ns, p99 {p99} ns, max {max} ns\n")
            }
            _ => format!("{name}: 0 times\n"),
        };
        let buckets = times.buckets();
        let most = buckets.iter().map(|(_, count)| *count).max().unwrap_or(1);
        let mut table = Table::new(&[">Up-To-Ns", ">Times", ""]);
        for (up_to, count) in &buckets {
            let length = u128::from(*count) * most_bar as u128;
            let bar = "#".repeat(length.div_ceil(u128::from(most)) as usize);
            table.row([up_to.to_string(), count.to_string(), bar]);
        }
        if !buckets.is_empty() {
            out += &table.render(columns);
        }
        out.push('\n');
    }
    terminal::fold(out, columns)
}

/// As JSON.
pub(super) fn json(all: &[Times]) -> Value {
    let one = |times: &Times| {
        let buckets = times.buckets().into_iter();
        let buckets: Vec<Value> =
            buckets.map(|(up_to, count)| json!({ "up_to_ns": up_to, "count": count })).collect();
        json!({
            "name": times.name,
            "count": Some(times.count()).filter(|_| !times.is_unmeasured),
            "median_ns": times.quantile(500),
            "p99_ns": times.quantile(990),
            "max_ns": times.quantile(1000),
            "buckets": buckets,
        })
    };
    all.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_control::trace::{Meaning, State};

    /// A ring with these events: index, name, time.
    fn known(
        trace: usize,
        number: u64,
        ends: [u16; 2],
        events: &[(u64, &'static str, u64)],
    ) -> Known<'static> {
        let [local, peer] = ends.map(|port| Some(SocketAddr::from(([127, 0, 0, 1], port))));
        let kept = events.iter().map(|(index, _, ns)| (*index, 1, *ns, 0)).collect();
        let ring = RingText {
            state: State::Open as u32,
            number,
            fd: 3,
            began_ns: 0,
            local,
            peer,
            peer_pid: 0,
            latencies: 0,
            excerpts: 0,
            recorded: 0,
            written: 0,
            events: kept,
        };
        let said = |(index, name, ns): &(u64, &'static str, u64)| Said {
            index: *index,
            ns: *ns,
            meaning: Meaning { name, fields: vec![("side", 1, None)] },
        };
        let gaps = gaps(&ring);
        Known { trace, ring, events: events.iter().map(said).collect(), gaps }
    }

    #[test]
    fn bytes_are_found_at_the_other_end() {
        let calls = |known: &mut Known<'static>, sizes: &[(u64, u64)]| {
            for (said, (offset, bytes)) in known.events.iter_mut().zip(sizes) {
                said.meaning.fields = vec![("offset", *offset, None), ("bytes", *bytes, None)];
            }
        };
        // 100 bytes that are received in two parts, 50 together with 10 of the next 60, whose rest
        // is still on its way.
        let sent = [(0, "send", 100), (1, "send", 200), (2, "send", 300)];
        let mut here = known(0, 1, [7, 8], &sent);
        calls(&mut here, &[(0, 100), (100, 50), (150, 60)]);
        let got = [(0, "receive", 110), (1, "receive", 170), (2, "receive", 350)];
        let mut there = known(1, 1, [8, 7], &got);
        calls(&mut there, &[(0, 30), (30, 70), (100, 60)]);
        // The same ends, before.
        let mut old = known(1, 2, [8, 7], &[(0, "receive", 99)]);
        calls(&mut old, &[(0, 1000)]);
        old.ring.began_ns = 1;
        let all = [old, here, there];
        assert_eq!(received(&all, &all[1]), [70, 150]);
        assert_eq!(received(&all, &all[2]), [] as [u64; 0]);
        // Of a process that is named alone, whose peer was found beside it.
        let [old, here, there] = all;
        let all = [here, there, old];
        let counts = |named| times(&all, named).iter().map(Times::count).collect::<Vec<_>>();
        assert_eq!(counts(1), [0, 0, 0, 2]);
        assert_eq!(counts(0), [0; 4]);
        let ends: HashSet<_> = [(all[0].ring.peer, all[0].ring.local)].into();
        let is: Vec<_> = all.iter().map(|known| is_an_end(&known.ring, &ends)).collect();
        assert_eq!(is, [false, true, true]);
        let unknown = RingText { local: None, peer: None, ..all[0].ring.clone() };
        assert!(!is_an_end(&unknown, &[(None, None)].into()), "addresses that are not known yet");
    }

    #[test]
    fn what_was_not_measured_is_no_time() {
        let of = |events: &[(u64, &'static str, u64)]| {
            let all = [known(0, 1, [7, 8], events)];
            let mut kinds = times(&all, 1);
            kinds.push(counted(&[], &[], &Wanted::default(), Latency::Answer));
            let told = json(&kinds);
            let counts = told.as_array().unwrap().iter().map(|kind| kind["count"].as_u64());
            (text(&kinds, None), counts.collect::<Vec<_>>())
        };
        let (text, counts) = of(&[(0, "sleep", 100), (1, "wake", 150)]);
        assert_eq!(counts, [Some(0), Some(1), Some(0), None, None]);
        assert!(text.contains("sleep to wake: 1 times, median 50 ns"), "{text}");
        assert!(text.contains("doorbell to wake: 0 times\n"), "{text}");
        for name in ["send to receive", "answer"] {
            assert!(text.contains(&format!("{name}: not measured: NACC_TRACE=2\n")), "{text}");
        }
        let (text, counts) = of(&[(0, "send", 100)]);
        assert_eq!(counts[3], Some(0), "it was, and the other end is not known");
        assert!(text.contains("send to receive: 0 times\n"), "{text}");
    }

    #[test]
    fn a_time_is_one_of_which_all_is_there() {
        // Events 3 to 49 of the peer are not kept, nor are 3 to 99 of this end.
        let here = [(0, "doorbell", 100), (1, "doorbell", 250), (2, "sleep", 300)];
        let here = [&here[..], &[(100, "wake", 5000), (101, "doorbell", 6000)]].concat();
        let there = [(0, "sleep", 50), (1, "wake", 110), (2, "sleep", 120)];
        let there = [&there[..], &[(50, "wake", 4000), (51, "sleep", 4100)]].concat();
        let there = [&there[..], &[(52, "wake", 6007)]].concat();
        let all = [
            known(0, 1, [7, 8], &here),
            known(1, 1, [8, 7], &there),
            known(1, 0, [0, 0], &[(0, "wake-in-set", 7000)]),
        ];
        assert_eq!(woken(&all, &all[0]), [10, 7]);
        let slept_of = |known: &Known<'_>| -> Vec<u64> {
            (0..known.events.len()).filter_map(|i| slept(&known.events, i, &known.gaps)).collect()
        };
        assert_eq!(slept_of(&all[0]), [] as [u64; 0]);
        assert_eq!(slept_of(&all[1]), [60, 1907]);
    }
}
