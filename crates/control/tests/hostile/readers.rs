//! What a process or a file can feed the tools, through every reader of this crate: for a test of a
//! bounded number of inputs (`../hostile.rs`) and for cargo-fuzz (`/fuzz`).

use netacc_control::config::{Answer, Request, parse_rendered, rendered_rules};
use netacc_control::stats::{CONNS_OFFSET, Connection, Snapshot, Sums};
use netacc_control::trace::{Head, LatenciesText, RING_HEAD_BYTES, RingText, whole};

/// Its first byte says which reader it is for: 0, 1 or another one; the rest is for that one.
pub fn read(input: &[u8]) {
    match input.split_first() {
        Some((0, rest)) => segment(rest),
        Some((1, rest)) => trace(rest),
        Some((_, rest)) => text(&String::from_utf8_lossy(rest)),
        None => {}
    }
}

/// A segment of statistics: the header, and the records behind it.
fn segment(bytes: &[u8]) {
    let Ok(header) = Snapshot::read(bytes) else { return };
    let there = bytes.get(CONNS_OFFSET..).unwrap_or(&[]);
    let records = there.get(..header.conns_bytes()).unwrap_or(there);
    let open: Vec<Connection> = Connection::read_all(records).collect();
    let mut sums = Sums::default();
    sums.add(records);
    assert_eq!(sums, summed(&open), "what is read for a sum is what is read for all");
    for (ended, all) in header.totals(&Sums::default()).into_iter().zip(header.totals(&sums)) {
        assert!(ended <= all, "sums do not run over");
    }
    for (used, size) in open.iter().flat_map(|c| [c.tx_ring(), c.rx_ring()]).flatten() {
        assert!(used <= size, "no ring holds more than it has");
    }
    let _ = (header.is_changing(), Answer::of(header.answer, header.answer >> 8));
    text(&header.config);
}

fn summed(open: &[Connection]) -> Sums {
    let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
    let mut sums = Sums { connections: open.len() as u64, ..Sums::default() };
    for connection in open {
        let bytes = sums.tx_bytes.iter_mut().zip(connection.tx_bytes);
        let bytes = bytes.chain(sums.rx_bytes.iter_mut().zip(connection.rx_bytes));
        bytes.for_each(|(to, more)| add(to, more));
        add(&mut sums.tx_messages, connection.tx_messages);
        add(&mut sums.rx_messages, connection.rx_messages);
        if let Some(count) = sums.reasons.get_mut(connection.reason as usize) {
            *count += 1;
        }
    }
    sums
}

/// The file of a trace, of which what is behind a ring is what it says when it is read again.
fn trace(bytes: &[u8]) {
    let Ok(head) = Head::read(bytes) else { return };
    let mut rest = bytes.get(head.rings_at..).unwrap_or(&[]);
    let mut rings = Vec::new();
    while rest.len() >= head.ring_bytes {
        let (ring, behind) = rest.split_at(head.ring_bytes);
        latencies(ring);
        let first = RingText::read_head(ring.get(..RING_HEAD_BYTES).unwrap_or(ring));
        for again in [None, Some(behind)] {
            let Some(ring) = RingText::read(&head, ring, again) else { continue };
            let of = |ring: &RingText| (ring.number, ring.fd, ring.state, ring.local, ring.peer);
            assert_eq!(first.as_ref().map(of), Some(of(&ring)), "its head says the same");
            let room = head.ring_bytes / netacc_control::trace::EVENT_BYTES;
            assert!(ring.events.len() <= room, "no more than it has room for");
            assert!(ring.events.is_sorted_by(|a, b| a.0 < b.0), "each event once, in order");
            for (index, number, ns, what) in &ring.events {
                assert!(*index < ring.recorded);
                let _ = (head.table.meaning(*number, *what), head.unix_ns(*ns));
            }
            rings.push(ring);
        }
        rest = behind;
    }
    for ring in whole(rings) {
        assert!(ring.events.is_sorted_by(|a, b| a.0 < b.0), "of several rings, too");
    }
}

/// The times that stand in the place of a ring.
fn latencies(bytes: &[u8]) {
    for times in LatenciesText::read(bytes).iter().flat_map(|read| &read.times) {
        for part in [0, 1, 500, 999, 1000] {
            let is = times.quantile(part);
            assert_eq!(is.is_some(), times.count() != 0);
            assert!(is.is_none_or(|ns| ns <= times.max_ns), "none is longer than the longest");
        }
        assert!(times.below(u64::MAX) <= times.count());
    }
}

/// The configuration that a process shows, and a request to one.
fn text(text: &str) {
    for (name, value, origin) in parse_rendered(text) {
        assert!([name, value, origin].iter().all(|part| part.len() <= text.len()));
    }
    let _ = rendered_rules(text);
    for line in text.lines() {
        if let Some(request) = Request::parse(line)
            && let Some(said) = request.line()
        {
            assert_eq!(Request::parse(said.trim_end_matches('\n')), Some(request), "one meaning");
        }
    }
}
