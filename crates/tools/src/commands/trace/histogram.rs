//! How long things took, by what the traces have of them: a share of all, the last ones.

use super::chrome::slept;
use super::text::{Said, gaps, is_whole, said};
use crate::table::Table;
use crate::terminal;
use crate::trace::{Trace, Wanted};
use netacc_control::trace::RingText;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Times of one kind.
pub(super) struct Times {
    name: &'static str,
    ns: Vec<u64>,
}

/// What is further apart has nothing to do with each other.
const APART_NS: u64 = 1_000_000_000;

struct Known<'a> {
    trace: usize,
    ring: RingText,
    events: Vec<Said<'a>>,
    gaps: Vec<(u64, u64)>,
}

/// All kinds.
pub(super) fn of(traces: &[Trace]) -> Vec<Times> {
    let mut all = Vec::new();
    for (i, trace) in traces.iter().enumerate() {
        for ring in trace.rings() {
            let events = said(trace, &ring, &Wanted::default());
            let gaps = gaps(&ring);
            all.push(Known { trace: i, ring, events, gaps });
        }
    }
    let mut sleeps = Times { name: "sleep to wake", ns: Vec::new() };
    let mut doorbells = Times { name: "doorbell to wake", ns: Vec::new() };
    let mut agreed = Times { name: "in use to promotion", ns: Vec::new() };
    for known in &all {
        let events = &known.events;
        sleeps.ns.extend((0..events.len()).filter_map(|i| slept(events, i, &known.gaps)));
        doorbells.ns.extend(woken(&all, known));
        // (The first events of a connection are kept.)
        let first = |name| events.iter().find(|said| said.meaning.name == name);
        if let (Some(noted), Some(promoted)) = (first("noted"), first("promoted")) {
            let is_first = is_whole(&known.gaps, noted.ns, promoted.ns);
            agreed.ns.extend(promoted.ns.checked_sub(noted.ns).filter(|_| is_first));
        }
    }
    vec![doorbells, sleeps, agreed]
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
    /// The time that so many of a thousand do not exceed.
    fn quantile(&self, of_thousand: usize) -> Option<u64> {
        let mut ns = self.ns.clone();
        ns.sort_unstable();
        ns.get((ns.len().saturating_sub(1)) * of_thousand / 1000).copied()
    }

    /// How many there are up to each power of two, from the smallest that has some.
    fn buckets(&self) -> Vec<(u64, usize)> {
        let power = |ns: &u64| ns.max(&1).next_power_of_two();
        let mut powers: Vec<u64> = self.ns.iter().map(power).collect();
        powers.sort_unstable();
        powers
            .chunk_by(|a, b| a == b)
            .filter_map(|same| Some((*same.first()?, same.len())))
            .collect()
    }
}

/// As tables.
pub(super) fn text(all: &[Times], columns: Option<usize>) -> String {
    // (Beside two columns of numbers.)
    let most_bar = columns.map_or(40, |columns| columns.saturating_sub(32).clamp(8, 40));
    let mut out = String::new();
    for times in all {
        let [median, p99, max] = [500, 990, 1000].map(|of| times.quantile(of).unwrap_or(0));
        out += &format!(
            "{}: {} times, median {median} ns, p99 {p99} ns, max {max} ns\n",
            times.name,
            times.ns.len()
        );
        let buckets = times.buckets();
        let most = buckets.iter().map(|(_, count)| *count).max().unwrap_or(1);
        let mut table = Table::new(&["UP TO ns", "TIMES", ""]);
        for (up_to, count) in &buckets {
            let bar = "#".repeat((count * most_bar).div_ceil(most));
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
            "count": times.ns.len(),
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
