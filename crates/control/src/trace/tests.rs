use super::*;
use crate::stats::Reason;
use std::net::SocketAddr;

/// A file with that many rings, in the memory of a test.
struct File {
    header: Box<Header>,
    rings: Vec<Ring>,
}

fn empty_ring() -> Ring {
    let word = || AtomicU32::new(0);
    let long = || AtomicU64::new(0);
    Ring {
        head: long(),
        state: word(),
        fd: word(),
        number: long(),
        began_ns: long(),
        family: word(),
        local_port: word(),
        peer_port: word(),
        peer_pid: word(),
        local_addr: [long(), long()],
        peer_addr: [long(), long()],
        sent: [const { AtomicU64::new(0) }; PATH_SLOTS],
        received: [const { AtomicU64::new(0) }; PATH_SLOTS],
        last: word(),
        looked_at_ms: AtomicU32::new(0),
        messages: [const { AtomicU64::new(0) }; 2],
        send_waits: long(),
        noted: long(),
        noted_calls: word(),
        worth: word(),
        send_from: word(),
        latencies: word(),
        turn: long(),
        followed: [const { AtomicU64::new(0) }; 2],
        trouble_at: AtomicU32::new(0),
        excerpts: AtomicU32::new(0),
        reserved: [const { AtomicU32::new(0) }; 6],
        events: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; EVENTS],
    }
}

fn empty_header() -> Box<Header> {
    let word = || AtomicU32::new(0);
    let long = || AtomicU64::new(0);
    Box::new(Header {
        magic: long(),
        version: word(),
        header_bytes: word(),
        ring_bytes: word(),
        ring_head_bytes: word(),
        rings: word(),
        pid: word(),
        began_unix_ns: long(),
        began_ns: long(),
        library: long(),
        table_at: word(),
        table_bytes: word(),
        missed: long(),
        ended: word(),
        troubles: word(),
        program: [const { AtomicU8::new(0) }; 16],
        events_first: word(),
        latencies: word(),
        last_ns: long(),
        changes_at: word(),
        changes_count: word(),
        changes_shift: word(),
        excerpts: word(),
        reserved: [const { AtomicU64::new(0) }; 16],
        table: [const { AtomicU8::new(0) }; TABLE_BYTES],
        changes: [const { AtomicU32::new(0) }; CHANGES],
    })
}

impl File {
    fn new(rings: usize) -> File {
        let header = empty_header();
        header.init(4711, b"redis-server", 1_000_000_000, 500);
        header.rings.store(rings as u32, Relaxed);
        File { header, rings: (0..rings).map(|_| empty_ring()).collect() }
    }

    /// The header's bytes, word by word.
    fn head_bytes(&self) -> Vec<u8> {
        let h = &*self.header;
        let mut bytes = Vec::new();
        let long = |bytes: &mut Vec<u8>, w: &AtomicU64| bytes.extend(w.load(Relaxed).to_le_bytes());
        let word = |bytes: &mut Vec<u8>, w: &AtomicU32| bytes.extend(w.load(Relaxed).to_le_bytes());
        long(&mut bytes, &h.magic);
        for w in [&h.version, &h.header_bytes, &h.ring_bytes, &h.ring_head_bytes, &h.rings, &h.pid]
        {
            word(&mut bytes, w);
        }
        for w in [&h.began_unix_ns, &h.began_ns, &h.library] {
            long(&mut bytes, w);
        }
        for w in [&h.table_at, &h.table_bytes] {
            word(&mut bytes, w);
        }
        long(&mut bytes, &h.missed);
        for w in [&h.ended, &h.troubles] {
            word(&mut bytes, w);
        }
        bytes.extend(h.program.iter().map(|b| b.load(Relaxed)));
        for w in [&h.events_first, &h.latencies] {
            word(&mut bytes, w);
        }
        long(&mut bytes, &h.last_ns);
        for w in [&h.changes_at, &h.changes_count, &h.changes_shift, &h.excerpts] {
            word(&mut bytes, w);
        }
        h.reserved.iter().for_each(|w| long(&mut bytes, w));
        bytes.extend(h.table.iter().map(|b| b.load(Relaxed)));
        h.changes.iter().for_each(|w| word(&mut bytes, w));
        assert_eq!(bytes.len(), HEADER_BYTES);
        bytes
    }

    fn ring_bytes(&self, i: usize) -> Vec<u8> {
        let r = &self.rings[i];
        let mut bytes = Vec::new();
        let long = |bytes: &mut Vec<u8>, w: &AtomicU64| bytes.extend(w.load(Relaxed).to_le_bytes());
        let word = |bytes: &mut Vec<u8>, w: &AtomicU32| bytes.extend(w.load(Relaxed).to_le_bytes());
        long(&mut bytes, &r.head);
        for w in [&r.state, &r.fd] {
            word(&mut bytes, w);
        }
        for w in [&r.number, &r.began_ns] {
            long(&mut bytes, w);
        }
        for w in [&r.family, &r.local_port, &r.peer_port, &r.peer_pid] {
            word(&mut bytes, w);
        }
        for w in r.local_addr.iter().chain(&r.peer_addr).chain(&r.sent).chain(&r.received) {
            long(&mut bytes, w);
        }
        word(&mut bytes, &r.last);
        word(&mut bytes, &r.looked_at_ms);
        r.messages.iter().for_each(|w| long(&mut bytes, w));
        [&r.send_waits, &r.noted].iter().for_each(|w| long(&mut bytes, w));
        [&r.noted_calls, &r.worth, &r.send_from].iter().for_each(|w| word(&mut bytes, w));
        word(&mut bytes, &r.latencies);
        long(&mut bytes, &r.turn);
        r.followed.iter().for_each(|w| long(&mut bytes, w));
        [&r.trouble_at, &r.excerpts].iter().for_each(|w| word(&mut bytes, w));
        r.reserved.iter().for_each(|w| word(&mut bytes, w));
        r.events.iter().flatten().for_each(|w| long(&mut bytes, w));
        assert_eq!(bytes.len(), RING_BYTES);
        bytes
    }

    fn head(&self) -> Head {
        Head::read(&self.head_bytes()).unwrap()
    }

    fn read(&self, i: usize) -> Option<RingText> {
        RingText::read(&self.head(), &self.ring_bytes(i), None)
    }
}

#[test]
fn what_was_recorded_is_read() {
    let file = File::new(2);
    let ring = &file.rings[1];
    assert!(ring.claim(State::Free) && !ring.claim(State::Free));
    ring.open(7, 12, 600);
    let [local, peer]: [SocketAddr; 2] =
        ["127.0.0.1:6379".parse().unwrap(), "[::1]:999".parse().unwrap()];
    ring.set_addresses(local, local);
    ring.record(Event::Accepted, 700, 12);
    ring.record(Event::Reason, 800, Reason::Negotiating as u64);
    ring.record(Event::Promoted, 900, 1 | 4096 << 8);
    let head = file.head();
    assert_eq!((head.pid, head.program.as_str(), head.rings), (4711, "redis-server", 2));
    assert_eq!(head.unix_ns(700), 1_000_000_200);
    let read = file.read(1).unwrap();
    assert_eq!((read.number, read.fd, read.recorded, read.local), (7, 12, 3, Some(local)));
    let said: Vec<String> = read
        .events
        .iter()
        .map(|(index, number, ns, what)| {
            let meaning = head.table.meaning(*number, *what).unwrap();
            std::format!("{index} {ns} {} {:?}", meaning.name, meaning.fields)
        })
        .collect();
    assert_eq!(
        said,
        [
            "0 700 accepted [(\"fd\", 12, None)]",
            "1 800 reason [(\"reason\", 1, Some(\"negotiating\"))]",
            "2 900 promoted [(\"side\", 1, Some(\"send\")), (\"offset\", 4096, None)]",
        ]
    );
    ring.set_addresses(peer, peer);
    assert_eq!(file.read(1).unwrap().peer, Some(peer));
    assert_eq!(file.read(0), None, "never used");
}

#[test]
fn an_excerpt_and_its_ring_are_one_connection() {
    let file = File::new(5);
    let [_, own, once, other, twice] = &file.rings[..] else { unreachable!() };
    let numbers = |ring: &Ring, from: u64, to: u64| {
        (from..to).for_each(|i| ring.record(Event::Sleep, 1000 + i, i));
    };
    own.open(7, 12, 600);
    other.open(8, 13, 600);
    own.set_addresses("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
    numbers(other, 0, 3);
    for (excerpt, from, to) in [(once, 0, 200), (twice, 200, 400)] {
        numbers(own, from, to);
        assert!(excerpt.claim(State::Free));
        excerpt.latencies.store(2, Relaxed);
        assert!(!excerpt.copy(own, 6) && excerpt.copy(own, 7));
        excerpt.state.store(State::Excerpt as u32, Relaxed);
        assert_eq!(excerpt.latencies.load(Relaxed), 2, "its place is its own");
    }
    numbers(own, 400, 600);
    own.state.store(State::Closed as u32, Relaxed);
    let read = |which: &[usize]| whole(which.iter().filter_map(|i| file.read(*i)).collect());
    // Whichever comes first.
    for order in [[1, 2, 3, 4], [4, 2, 3, 1]] {
        let mut all = read(&order);
        all.sort_by_key(|ring| ring.number);
        assert_eq!(all.iter().map(|ring| ring.number).collect::<Vec<_>>(), [7, 8]);
        let whole = &all[0];
        let expected = (0..24).chain(100..200).chain(300..400).chain(500..600);
        let found = whole.events.iter().map(|(index, _, ns, what)| (*index, *ns, *what));
        assert!(found.eq(expected.map(|i| (i, 1000 + i, i))));
        assert_eq!((whole.state, whole.recorded), (State::Closed as u32, 600));
        assert_eq!((whole.local, whole.latencies), (file.read(1).unwrap().local, 0));
        assert_eq!(all[1], file.read(3).unwrap());
    }
    // Its own ring serves another connection.
    let alone = read(&[2, 3, 4]);
    assert_eq!(alone.len(), 2);
    assert_eq!(alone[0].events.len(), 24 + 200);
}

const LAST: u64 = (EVENTS - EVENTS_FIRST) as u64;

#[test]
fn the_first_and_the_last_events_are_there_however_many_were_recorded() {
    let file = File::new(1);
    file.rings[0].open(1, 3, 0);
    for n in 0..1000u64 {
        file.rings[0].record(Event::Sent, n + 1, n << 8);
        let read = file.read(0).unwrap();
        let kept = (EVENTS_FIRST as u64).min(n + 1);
        let first = (n + 1).saturating_sub(LAST).max(kept);
        let indices: Vec<u64> = read.events.iter().map(|event| event.0).collect();
        assert_eq!(indices, (0..kept).chain(first..=n).collect::<Vec<_>>());
        assert!(
            read.events.iter().all(|(index, _, ns, what)| *ns == index + 1 && *what == index << 8)
        );
    }
    assert_eq!((EVENTS, EVENTS_FIRST), (124, 24), "docs/manual/limits.md");
}

#[test]
fn what_was_not_written_whole_is_left_out() {
    let file = File::new(1);
    let ring = &file.rings[0];
    ring.open(1, 3, 0);
    for n in 0..300u64 {
        ring.record(Event::Sleep, n + 1, 0);
    }
    // Its writer was killed when it had taken the place.
    ring.head.fetch_add(1, Relaxed);
    ring.record(Event::Closed, 301, 0);
    let read = file.read(0).unwrap();
    assert_eq!((read.recorded, read.events.len()), (302, EVENTS - 1));
    assert!(read.events.iter().all(|event| event.0 != 300));
    // Another connection has the ring: nothing of the one before shows.
    ring.open(2, 4, 400);
    ring.head.fetch_add(1, Relaxed);
    assert_eq!(file.read(0).unwrap().events, []);
}

#[test]
fn what_changes_under_the_reader_is_left_out() {
    let file = File::new(1);
    let ring = &file.rings[0];
    ring.open(1, 3, 0);
    (0..200u64).for_each(|n| ring.record(Event::Wake, n + 1, 0));
    let (head, before) = (file.head(), file.ring_bytes(0));
    (0..10u64).for_each(|n| ring.record(Event::Wake, n + 201, 0));
    let read = RingText::read(&head, &before, Some(&file.ring_bytes(0)[..64])).unwrap();
    let first = read.events[EVENTS_FIRST].0;
    assert_eq!((read.events.len(), first), (EVENTS - 10, 200 - LAST + 10));
    ring.open(2, 3, 0);
    assert_eq!(RingText::read(&head, &before, Some(&file.ring_bytes(0)[..64])), None);
}

#[test]
fn a_ring_serves_one_claimant() {
    let ring = empty_ring();
    assert!(ring.claim(State::Free));
    assert!(![State::Free, State::Open, State::Closed].into_iter().any(|from| ring.claim(from)));
    ring.open(1, 1, 1);
    assert!(!ring.claim(State::Closed));
}

#[test]
fn a_table_of_another_version_is_understood() {
    let text = "event none\nevent flew height:12 by:4:bird odd\nnoise\nwords bird crow swift\n";
    let table = Table::parse(text);
    let meaning = table.meaning(1, 0xffff_1005).unwrap();
    assert_eq!(meaning.name, "flew");
    assert_eq!(meaning.fields, [("height", 5, None), ("by", 1, Some("swift"))]);
    assert_eq!(table.meaning(1, 0xf000).unwrap().fields[1], ("by", 15, None));
    assert_eq!(table.meaning(2, 0), None);
}

/// A small file of somebody's making is no gigabyte of text.
#[test]
fn what_a_file_can_say_is_bounded() {
    let many = "event e".to_owned() + &" f:1".repeat(200);
    assert_eq!(Table::parse(&many).meaning(0, u64::MAX).unwrap().fields.len(), 8);
    let mut head = File::new(1).head_bytes();
    let at = core::mem::offset_of!(Header, ring_bytes);
    for (bytes, is_read) in [(64u32 << 10, true), ((64 << 10) + 16, false)] {
        head[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
        assert_eq!(Head::read(&head).is_ok(), is_read, "{bytes}");
    }
}

#[test]
fn who_follows_sees_in_which_part_of_the_file_something_was_recorded() {
    let file = File::new(1);
    let head = Head::read(&file.head_bytes()).unwrap();
    let (at, count) = head.changes.unwrap();
    assert!(count << head.changes_shift >= FILE_BYTES && at + 4 * count == HEADER_BYTES);
    let marks = || file.header.changes.iter().map(|mark| mark.load(Relaxed)).enumerate();
    assert!(marks().all(|(_, mark)| mark == 0));
    let place = HEADER_BYTES + 5000 * RING_BYTES;
    file.header.has_changed(place, 7 << 20);
    file.header.has_changed(FILE_BYTES - RING_BYTES, 9 << 20);
    // (Of a ring that is none of the file's nothing is said.)
    file.header.has_changed(usize::MAX, 8 << 20);
    let set: Vec<_> = marks().filter(|(_, mark)| *mark != 0).collect();
    let part = |at: usize| at >> head.changes_shift;
    assert_eq!(set, [(part(place), 7), (part(FILE_BYTES - RING_BYTES), 9)]);
    // Marks that do not lie in the header are none, nor are those of a file that has none.
    let mut bytes = file.head_bytes();
    for (word, value) in [
        (core::mem::offset_of!(Header, changes_at), 0),
        (core::mem::offset_of!(Header, changes_at), u32::MAX),
        (core::mem::offset_of!(Header, changes_count), u32::MAX),
        (core::mem::offset_of!(Header, changes_shift), 32),
    ] {
        let was = bytes.clone();
        bytes[word..word + 4].copy_from_slice(&u32::to_le_bytes(value));
        assert_eq!(Head::read(&bytes).unwrap().changes, None);
        bytes = was;
    }
}

#[test]
fn a_header_is_read_again_without_its_table() {
    let file = File::new(3);
    let mut head = Head::read(&file.head_bytes()).unwrap();
    file.header.troubles.store(7, Relaxed);
    file.header.ended.store(1, Relaxed);
    let now = file.head_bytes();
    assert_eq!(head.read_again(&now[..Head::CHANGING_BYTES]), Ok(true));
    assert_eq!(head, Head::read(&now).unwrap());
    assert!(head.troubles == 7 && head.is_ended && head.table.names().count() > 10);
    // What is no header any more changes nothing, nor does one with another table.
    let before = head.clone();
    assert_eq!(head.read_again(&[0; Head::CHANGING_BYTES]), Err(ReadError::NoTrace));
    assert_eq!(head.read_again(&now[..100]), Err(ReadError::Short));
    file.header.table_at.store(300, Relaxed);
    assert_eq!(head.read_again(&file.head_bytes()), Ok(false));
    assert_eq!(head, before);
}

#[test]
fn the_table_fits_and_says_all() {
    let mut text = String::new();
    write_table(&mut |part| text.push_str(part));
    assert!(text.len() < TABLE_BYTES / 2, "{}", text.len());
    let table = Table::parse(&text);
    assert!(table.names().eq(Event::ALL.iter().map(|event| event.name())));
    for event in Event::ALL {
        let bits =
            event.fields().split(' ').filter_map(|f| f.split(':').nth(1)?.parse::<u32>().ok());
        assert!(bits.sum::<u32>() <= 64, "{}", event.name());
        let fields = event.fields().split(' ').filter(|f| !f.is_empty()).count();
        assert_eq!(table.meaning(*event as u32, 0).unwrap().fields.len(), fields);
    }
    let reason = table.meaning(Event::Reason as u32, Reason::PeerCorrupt as u64).unwrap();
    assert_eq!(reason.fields[0].2, Some("peer-corrupt"));
}

#[test]
fn the_manual_names_every_event() {
    let page = include_str!("../../../../docs/manual/trace.md");
    for event in Event::ALL.iter().skip(1) {
        let line = std::format!("| `{}` | {} |", event.name(), event.doc());
        assert!(page.contains(&line), "docs/manual/trace.md should have:\n{line}");
    }
}

/// Nothing that a file holds makes the reader fail, or read for long.
#[test]
fn any_bytes_can_be_read() {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let file = File::new(1);
    file.rings[0].open(1, 3, 0);
    (0..150u64).for_each(|n| file.rings[0].record(Event::Sent, n, n));
    let (head, ring) = (file.head_bytes(), file.ring_bytes(0));
    for round in 0..3000 {
        let (mut head, mut ring) = (head.clone(), ring.clone());
        for _ in 0..=random() % 8 {
            // (Mostly where the sizes are.)
            let places = if round % 2 == 0 { 256 } else { head.len() as u64 };
            let at = (random() % places) as usize;
            head[at] = random() as u8;
            let at = (random() % ring.len() as u64) as usize;
            ring[at] = random() as u8;
        }
        head.truncate((random() % (2 * head.len() as u64)) as usize);
        if round % 3 == 0 {
            ring.truncate((random() % ring.len() as u64) as usize);
        }
        let Ok(head) = Head::read(&head) else { continue };
        if let Some(read) = RingText::read(&head, &ring, None) {
            for (_, number, _, what) in read.events {
                let _ = head.table.meaning(number, what);
            }
        }
    }
    for length in 0..64 {
        assert!(Head::read(&head[..length]).is_err());
    }
    assert_eq!(Head::read(&[0; HEADER_BYTES]), Err(ReadError::NoTrace));
    let mut newer = head.clone();
    newer[8] = 9;
    assert_eq!(Head::read(&newer), Err(ReadError::Version(9)));
}

#[test]
fn times_are_whole_on_a_host_that_has_been_up_for_years() {
    for began in [500, (1 << 56) - 1000, 3 << 56, u64::MAX >> 1] {
        let file = File::new(1);
        file.header.init(1, b"x", 0, began);
        file.rings[0].state.store(State::Open as u32, Relaxed);
        let times = [began, began + 2000, began + (1 << 55), began.saturating_sub(400)];
        for ns in times {
            file.rings[0].record(Event::Full, ns, 0);
        }
        let read = file.read(0).unwrap();
        assert_eq!(read.events.iter().map(|event| event.2).collect::<Vec<_>>(), times, "{began}");
    }
}

#[test]
fn a_turn_ends_where_the_other_side_begins() {
    let l = empty_ring();
    assert_eq!(l.turn(true, 100, 0), None, "nothing came before");
    assert_eq!(l.turn(true, 110, 0), None, "the same turn");
    assert_eq!(l.turn(false, 150, 0), Some((Latency::Answer, 50)));
    assert_eq!(l.turn(false, 160, 0), None);
    assert_eq!(l.turn(true, 157, 0), Some((Latency::Serve, 7)));
    assert_eq!(l.turn(false, 90, 0), None, "another thread's clock reading came later");
    assert_eq!(l.turn(true, 300, 200), None, "what began before it was turned on");
    assert_eq!(l.turn(true, 310, 200), None);
    assert_eq!(l.turn(false, 320, 200), Some((Latency::Answer, 20)));
}

#[test]
fn a_file_begins_with_when_its_process_was_seen_last() {
    let file = File::new(1);
    let first = |file: &File| *file.head_bytes().first_chunk().unwrap();
    let ended = |file: &File| Ended::read(&first(file));
    assert_eq!(ended(&file), Some(Ended { unix_ns: 1_000_000_000, troubles: 0 }));
    file.header.lives(500 + LAST_TO_NS - 1);
    assert_eq!(ended(&file).unwrap().unix_ns, 1_000_000_000, "few write");
    file.header.lives(500 + LAST_TO_NS);
    file.header.lives(7);
    file.header.troubles.store(3, Relaxed);
    let is = Ended { unix_ns: 1_000_000_000 + LAST_TO_NS, troubles: 3 };
    assert_eq!(ended(&file), Some(is));
    assert_eq!(Head::read(&file.head_bytes()).unwrap().last_ns, 500 + LAST_TO_NS);
    file.header.last_ns.store(0, Relaxed);
    assert_eq!(ended(&file).unwrap().unix_ns, 0, "of a library that does not say so");
    file.header.version.store(VERSION + 1, Relaxed);
    assert_eq!(ended(&file), Some(Ended { unix_ns: 0, troubles: 0 }));
    for bytes in [[0; Ended::BYTES], [255; Ended::BYTES]] {
        assert_eq!(Ended::read(&bytes), None);
    }
    file.header.version.store(VERSION, Relaxed);
    file.header.began_unix_ns.store(u64::MAX, Relaxed);
    file.header.last_ns.store(u64::MAX, Relaxed);
    assert_eq!(ended(&file).unwrap().unix_ns, u64::MAX);
}
