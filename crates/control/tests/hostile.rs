//! Segments, traces and configurations, as the library makes them, spoilt in every way: no reader
//! panics, and none believes what cannot be.
//!
//! NETACC_FUZZ_ROUNDS: how many inputs there are for each (default: 1000). NETACC_FUZZ_SEED: where
//! they begin (default: always the same). NETACC_FUZZ_CORPUS: a directory that gets the whole ones,
//! for cargo-fuzz.

#[path = "hostile/readers.rs"]
mod readers;

use netacc_control::Config;
use netacc_control::config::{NO_USERS, Request};
use netacc_control::stats::{self, CONNS_OFFSET, ConnRecord};
use netacc_control::trace::{
    self, BUCKETS, EVENT_BYTES, EVENTS_FIRST, Event, HEADER_BYTES, Latencies, LatenciesText,
    RING_BYTES, RING_HEAD_BYTES, write_table,
};
use std::mem::{offset_of, size_of};

/// By the first byte of an input.
const READERS: usize = 3;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Less than `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn config() -> String {
    let file = "[netacc]\nNACC_LOG_PATH=\"/a b\"\n[rule one]\nport=80-90,6379\naddress=10.0.0.0/8\n\
                accelerate=0\n";
    let (config, origins, _) =
        Config::resolve_lossy(Some(("/etc/netacc.conf", file)), &|_| None, &[], NO_USERS);
    config.render(&origins)
}

fn segment() -> Vec<u8> {
    const RECORDS: usize = 4;
    let mut bytes = vec![0; CONNS_OFFSET + RECORDS * size_of::<ConnRecord>()];
    bytes[..8].copy_from_slice(&stats::MAGIC.to_ne_bytes());
    put(&mut bytes, offset_of!(stats::Header, version), stats::VERSION);
    put(&mut bytes, offset_of!(stats::Header, pid), 4711);
    put(&mut bytes, offset_of!(stats::Header, conn_capacity), RECORDS as u32);
    put(&mut bytes, offset_of!(stats::Header, conn_high_water), RECORDS as u32);
    let config = config();
    put(&mut bytes, offset_of!(stats::Header, config_len), config.len() as u32);
    let at = offset_of!(stats::Header, config);
    bytes[at..at + config.len()].copy_from_slice(config.as_bytes());
    for index in 0..RECORDS {
        let at = CONNS_OFFSET + index * size_of::<ConnRecord>();
        put(&mut bytes, at + offset_of!(ConnRecord, state), 1);
        put(&mut bytes, at + offset_of!(ConnRecord, family), if index % 2 == 0 { 2 } else { 10 });
        put(&mut bytes, at + offset_of!(ConnRecord, tx_path), index as u32);
        put(&mut bytes, at + offset_of!(ConnRecord, ring_bytes), 65536);
        put(&mut bytes, at + offset_of!(ConnRecord, ring_used), 512);
    }
    bytes
}

fn trace_file() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + 3 * RING_BYTES];
    let mut table = String::new();
    write_table(&mut |text| table.push_str(text));
    let table_at = offset_of!(trace::Header, table);
    bytes[..8].copy_from_slice(&trace::MAGIC.to_le_bytes());
    for (at, value) in [
        (offset_of!(trace::Header, version), trace::VERSION as usize),
        (offset_of!(trace::Header, header_bytes), HEADER_BYTES),
        (offset_of!(trace::Header, ring_bytes), RING_BYTES),
        (offset_of!(trace::Header, ring_head_bytes), RING_HEAD_BYTES),
        (offset_of!(trace::Header, rings), 3),
        (offset_of!(trace::Header, latencies), 1),
        (offset_of!(trace::Header, table_at), table_at),
        (offset_of!(trace::Header, table_bytes), table.len()),
        (offset_of!(trace::Header, events_first), EVENTS_FIRST),
    ] {
        put(&mut bytes, at, value as u32);
    }
    bytes[table_at..table_at + table.len()].copy_from_slice(table.as_bytes());
    for ring in 0..2 {
        let at = HEADER_BYTES + ring * RING_BYTES;
        put(&mut bytes, at + offset_of!(trace::Ring, head), EVENTS_FIRST as u32);
        put(&mut bytes, at + offset_of!(trace::Ring, state), trace::State::Open as u32);
        put(&mut bytes, at + offset_of!(trace::Ring, family), 10);
        for (index, event) in Event::ALL.iter().take(EVENTS_FIRST).enumerate() {
            let at = at + RING_HEAD_BYTES + index * EVENT_BYTES;
            put(&mut bytes, at, (index as u32) << 8 | *event as u32);
            put(&mut bytes, at + 8, u32::MAX);
        }
        put(&mut bytes, at + offset_of!(trace::Ring, latencies), 2);
    }
    // A place of times.
    let at = HEADER_BYTES + 2 * RING_BYTES;
    put(&mut bytes, at + offset_of!(Latencies, state), trace::State::Claimed as u32);
    let magic = at + offset_of!(Latencies, magic);
    bytes[magic..magic + 8].copy_from_slice(b"NETACCLT");
    for which in 0..2 {
        put(&mut bytes, at + offset_of!(Latencies, max_ns) + which * 8, 1_000_000);
        for index in 0..BUCKETS {
            let count = offset_of!(Latencies, counts) + (which * BUCKETS + index) * 8;
            put(&mut bytes, at + count, index as u32);
        }
    }
    bytes
}

/// A whole input for each reader.
fn whole(reader: usize) -> Vec<u8> {
    let line = Request { number: 7, until_unix_ns: 9, name: "NACC_TRACE", value: "1" }.line();
    let rest = match reader {
        0 => segment(),
        1 => trace_file(),
        _ => (config() + &line.unwrap()).into_bytes(),
    };
    [vec![reader as u8], rest].concat()
}

/// Some words are others, some bytes are, and it may be cut short.
fn spoil(bytes: &mut Vec<u8>, random: &mut Random) {
    // (The magic numbers stay as a rule: without them nothing more is read.)
    let kept = if random.below(16) == 0 { 1 } else { 13 };
    for _ in 0..1 + random.below(8) {
        // Half of them in a header, or in what is short.
        let end = if random.below(2) == 0 { bytes.len() } else { bytes.len().min(400) };
        let at = kept + random.below(end.saturating_sub(kept + 8).max(1));
        let value = match random.below(5) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << random.below(64),
            3 => random.below(1 << 17) as u64,
            _ => random.next(),
        };
        let length = [1, 4, 8][random.below(3)];
        if let Some(word) = bytes.get_mut(at..at + length) {
            word.copy_from_slice(&value.to_ne_bytes()[..length]);
        }
    }
    if random.below(4) == 0 {
        let length = bytes.len() - random.below(bytes.len());
        bytes.truncate(length);
    }
}

#[test]
fn no_reader_is_misled() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let rounds = number("NETACC_FUZZ_ROUNDS", 1000);
    let mut random = Random(number("NETACC_FUZZ_SEED", 0x9e37_79b9_7f4a_7c15) | 1);
    let corpus = std::env::var_os("NETACC_FUZZ_CORPUS").map(std::path::PathBuf::from);
    for reader in 0..READERS {
        let whole = whole(reader);
        readers::read(&whole);
        if let Some(corpus) = &corpus {
            std::fs::write(corpus.join(format!("whole-{reader}")), &whole).unwrap();
        }
        for round in 0..rounds {
            let seed = random.0;
            let mut bytes = whole.clone();
            spoil(&mut bytes, &mut random);
            let done = std::panic::catch_unwind(|| readers::read(&bytes));
            assert!(done.is_ok(), "reader {reader}, round {round}: NETACC_FUZZ_SEED={seed}");
        }
    }
}

/// The inputs are what the readers take for whole: otherwise nothing is tested.
#[test]
fn whole_inputs_are_read() {
    let header = stats::Snapshot::read(&segment()).unwrap();
    assert_eq!(stats::Connection::read_all(&segment()[CONNS_OFFSET..]).count(), 4);
    assert_eq!(netacc_control::config::rendered_rules(&header.config).0.len(), 1);
    let file = trace_file();
    let head = trace::Head::read(&file).unwrap();
    let ring = trace::RingText::read(&head, &file[HEADER_BYTES..], None).unwrap();
    // (The first event's first word is 0, which is none.)
    assert!(ring.events.len() + 1 >= EVENTS_FIRST.min(Event::ALL.len()), "{ring:?}");
    let times = LatenciesText::read(&file[HEADER_BYTES + 2 * RING_BYTES..]).unwrap().times;
    assert!(times.iter().all(|of| of.quantile(500).is_some_and(|ns| ns > 0)), "{times:?}");
}
