use super::*;
use core::mem::{align_of, offset_of};
use std::boxed::Box;
use std::string::String;

/// Safe way to a zeroed header: every field is an atomic zero.
fn header() -> Box<Header> {
    Box::new(Header {
        magic: AtomicU64::new(0),
        version: AtomicU32::new(0),
        pid: AtomicU32::new(0),
        started_unix_ns: AtomicU64::new(0),
        conn_capacity: AtomicU32::new(0),
        conn_high_water: AtomicU32::new(0),
        channel_capacity: AtomicU32::new(0),
        config_len: AtomicU32::new(0),
        library: AtomicU64::new(0),
        requests_fd: AtomicU32::new(0),
        requests_inode: AtomicU32::new(0),
        answer: AtomicU64::new(0),
        open_by_path: [const { AtomicU64::new(0) }; PATH_SLOTS],
        total_by_path: [const { AtomicU64::new(0) }; PATH_SLOTS],
        reasons: [const { AtomicU64::new(0) }; REASON_SLOTS],
        counters: [const { AtomicU64::new(0) }; COUNTER_SLOTS],
        config: [const { AtomicU8::new(0) }; CONFIG_BYTES],
        channels: core::array::from_fn(|_| channel()),
        remote: core::array::from_fn(|_| channel()),
        remote_library: [const { AtomicU64::new(0) }; REMOTE_SLOTS],
    })
}

fn channel() -> ChannelRecord {
    ChannelRecord {
        state: AtomicU32::new(0),
        peer_pid: AtomicU32::new(0),
        slots_used: AtomicU32::new(0),
        slots_total: AtomicU32::new(0),
        arena_bytes: AtomicU64::new(0),
        connections_total: AtomicU64::new(0),
        opened_unix_ns: AtomicU64::new(0),
        pairs: AtomicU32::new(0),
        peer_family: AtomicU32::new(0),
        peer_addr: [const { AtomicU64::new(0) }; 2],
    }
}

/// A record that had another connection.
fn conn() -> ConnRecord {
    let bytes = [const { AtomicU64::new(0) }; PATH_SLOTS];
    ConnRecord {
        state: AtomicU32::new(0),
        fd: AtomicU32::new(0),
        tx_path: AtomicU32::new(1),
        rx_path: AtomicU32::new(1),
        reason: AtomicU32::new(0),
        peer_pid: AtomicU32::new(9),
        family: AtomicU32::new(0),
        local_port: AtomicU32::new(0),
        peer_port: AtomicU32::new(0),
        promotions: AtomicU32::new(3),
        demotions: AtomicU32::new(3),
        counted_path: AtomicU32::new(0),
        local_addr: [const { AtomicU64::new(0) }; 2],
        peer_addr: [const { AtomicU64::new(0) }; 2],
        tx_bytes: bytes,
        rx_bytes: [const { AtomicU64::new(7) }; PATH_SLOTS],
        opened_unix_ns: AtomicU64::new(0),
        counted_reason: AtomicU64::new(0),
        tx_messages: AtomicU64::new(5),
        rx_messages: AtomicU64::new(5),
        ring_bytes: [const { AtomicU32::new(6) }; 2],
        ring_used: [const { AtomicU32::new(6) }; 2],
        words_at: [const { AtomicU64::new(8) }; 2],
        bytes_at: [const { AtomicU64::new(8) }; 2],
        ring_start: [const { AtomicU64::new(8) }; 2],
        lock_at: AtomicU64::new(8),
        origin: AtomicU64::new(8),
    }
}

/// The layout is a contract: when this test has to change, [`VERSION`] has to as well.
#[test]
fn layout_of_version_1() {
    assert_eq!(VERSION, 1);
    let header: [(usize, usize); 20] = [
        (offset_of!(Header, magic), 0),
        (offset_of!(Header, version), 8),
        (offset_of!(Header, pid), 12),
        (offset_of!(Header, started_unix_ns), 16),
        (offset_of!(Header, conn_capacity), 24),
        (offset_of!(Header, conn_high_water), 28),
        (offset_of!(Header, channel_capacity), 32),
        (offset_of!(Header, config_len), 36),
        (offset_of!(Header, library), 40),
        (offset_of!(Header, requests_fd), 48),
        (offset_of!(Header, requests_inode), 52),
        (offset_of!(Header, answer), 56),
        (offset_of!(Header, open_by_path), 64),
        (offset_of!(Header, total_by_path), 96),
        (offset_of!(Header, reasons), 128),
        (offset_of!(Header, counters), 640),
        (offset_of!(Header, config), 1664),
        (offset_of!(Header, channels), 5760),
        (offset_of!(Header, remote), 9856),
        (offset_of!(Header, remote_library), 11904),
    ];
    for (is, should) in header {
        assert_eq!(is, should);
    }
    assert_eq!((size_of::<Header>(), align_of::<Header>()), (12288, 4096));
    let conn = [
        (offset_of!(ConnRecord, state), 0),
        (offset_of!(ConnRecord, fd), 4),
        (offset_of!(ConnRecord, tx_path), 8),
        (offset_of!(ConnRecord, rx_path), 12),
        (offset_of!(ConnRecord, reason), 16),
        (offset_of!(ConnRecord, peer_pid), 20),
        (offset_of!(ConnRecord, family), 24),
        (offset_of!(ConnRecord, local_port), 28),
        (offset_of!(ConnRecord, peer_port), 32),
        (offset_of!(ConnRecord, promotions), 36),
        (offset_of!(ConnRecord, demotions), 40),
        (offset_of!(ConnRecord, local_addr), 48),
        (offset_of!(ConnRecord, peer_addr), 64),
        (offset_of!(ConnRecord, tx_bytes), 80),
        (offset_of!(ConnRecord, rx_bytes), 112),
        (offset_of!(ConnRecord, opened_unix_ns), 144),
        (offset_of!(ConnRecord, tx_messages), 160),
        (offset_of!(ConnRecord, rx_messages), 168),
        (offset_of!(ConnRecord, ring_bytes), 176),
        (offset_of!(ConnRecord, ring_used), 184),
        (offset_of!(ConnRecord, words_at), 192),
        (offset_of!(ConnRecord, bytes_at), 208),
        (offset_of!(ConnRecord, ring_start), 224),
        (offset_of!(ConnRecord, lock_at), 240),
        (offset_of!(ConnRecord, origin), 248),
    ];
    for (is, should) in conn {
        assert_eq!(is, should);
    }
    assert_eq!((size_of::<ConnRecord>(), align_of::<ConnRecord>()), (256, 64));
    let channel = [
        (offset_of!(ChannelRecord, state), 0),
        (offset_of!(ChannelRecord, peer_pid), 4),
        (offset_of!(ChannelRecord, slots_used), 8),
        (offset_of!(ChannelRecord, slots_total), 12),
        (offset_of!(ChannelRecord, arena_bytes), 16),
        (offset_of!(ChannelRecord, connections_total), 24),
        (offset_of!(ChannelRecord, opened_unix_ns), 32),
        (offset_of!(ChannelRecord, pairs), 40),
        (offset_of!(ChannelRecord, peer_family), 44),
        (offset_of!(ChannelRecord, peer_addr), 48),
    ];
    for (is, should) in channel {
        assert_eq!(is, should);
    }
    assert_eq!((size_of::<ChannelRecord>(), align_of::<ChannelRecord>()), (64, 64));
}

#[test]
fn a_configuration_that_is_being_replaced_shows() {
    use crate::config::Answer;
    let header = header();
    let changes = || {
        let mut bytes = vec![0; CONNS_OFFSET];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        let at = offset_of!(Header, answer);
        bytes[at..at + 8].copy_from_slice(&header.answer.load(Relaxed).to_ne_bytes());
        let read = Snapshot::read(&bytes).unwrap();
        assert_eq!(read.requests, None);
        read.is_changing()
    };
    assert!(!changes());
    header.replace_config("three\n", 5);
    assert!(changes());
    assert_eq!(header.config_len.load(Relaxed), 6);
    header.answer.store(Answer::Done.word(5), Relaxed);
    assert!(!changes());
}

/// What the library's own code says, without its tests.
fn code_of_core(directory: &std::path::Path, all: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            code_of_core(&path, all);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "testing.rs" {
            let text = std::fs::read_to_string(&path).unwrap();
            all.push_str(text.split("#[cfg(test)]\nmod tests {").next().unwrap());
        }
    }
}

/// Whether some code gives that reason; a pattern does not.
fn is_given(code: &str, reason: Reason) -> bool {
    is_used(code, &std::format!("Reason::{reason:?}"))
}

/// Whether a name is in some code, and not as a pattern.
fn is_used(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let behind = &code[at + name.len()..];
        let is_whole = !behind.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let behind = behind.trim_start();
        is_whole && !behind.starts_with("=>") && !behind.starts_with("| ")
    })
}

#[test]
fn every_reason_that_an_operator_reads_of_is_given_somewhere() {
    assert!(is_given("set(Reason::Rule)", Reason::Rule));
    for not in ["Reason::Rules", "Reason::Rule => 1", "Reason::Rule | Reason::None", "Rule"] {
        assert!(!is_given(not, Reason::Rule), "{not}");
    }
    let mut code = String::new();
    code_of_core(std::path::Path::new("../core/src"), &mut code);
    for reason in Reason::in_use() {
        assert!(is_given(&code, reason), "{}: Reason::RETIRED", reason.name());
    }
    for reason in Reason::RETIRED {
        assert!(!is_given(&code, *reason), "{}: it is given again", reason.name());
    }
}

#[test]
fn every_counter_is_counted_somewhere() {
    let mut code = String::new();
    code_of_core(std::path::Path::new("../core/src"), &mut code);
    // Those of bytes are found by the path.
    let by_path = |counter| {
        Path::ALL.iter().any(|p| [Counter::bytes_tx(*p), Counter::bytes_rx(*p)].contains(counter))
    };
    for function in ["Counter::bytes_tx", "Counter::bytes_rx"] {
        assert!(is_used(&code, function), "{function}");
    }
    for counter in Counter::ALL.iter().filter(|counter| !by_path(counter)) {
        assert!(is_used(&code, &std::format!("Counter::{counter:?}")), "{}", counter.name());
    }
}

#[test]
fn names_fit_their_slots_and_differ() {
    const { assert!(COUNTERS <= COUNTER_SLOTS && REASONS <= REASON_SLOTS) };
    let mut names: Vec<&str> = Counter::ALL.iter().map(|counter| counter.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), COUNTERS);
    let mut names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), REASONS);
    for (code, reason) in (0u32..).zip(Reason::ALL) {
        assert_eq!(*reason as u32, code);
        assert_eq!(Reason::from_code(code), Some(*reason));
        assert!(reason.explanation().ends_with('.') && reason.remedy().ends_with('.'));
    }
    for (code, counter) in (0u32..).zip(Counter::ALL) {
        assert_eq!(Counter::from_code(code), Some(*counter));
        assert!(counter.doc().ends_with('.') && counter.remedy().ends_with('.'));
    }
    assert_eq!(Reason::from_code(63), None);
    for path in Path::ALL {
        for (counter, direction) in
            [(Counter::bytes_tx(path), "tx"), (Counter::bytes_rx(path), "rx")]
        {
            let name = format!("{}_bytes_{direction}", path.name());
            let named = Counter::ALL.iter().find(|counter| counter.name() == name);
            assert_eq!(Some(&counter), named);
        }
    }
    for (code, path) in (0u32..).zip(Path::ALL) {
        assert_eq!(Path::from_code(code), Some(path));
    }
}

#[test]
fn addresses_pack_and_unpack() {
    for text in [
        "127.0.0.1:6379",
        "255.254.253.252:65535",
        "[::1]:1",
        "[2001:db8::ff00:42:8329]:80",
        "[::ffff:1.2.3.4]:9",
    ] {
        let addr: SocketAddr = text.parse().unwrap();
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        store_ip(&words, addr.ip());
        let [high, low] = words.map(AtomicU64::into_inner);
        assert_eq!(unpack_ip(family(&addr), high, low), Some(addr.ip()));
    }
    assert_eq!(unpack_ip(0, 1, 2), None);
}

#[test]
fn a_configuration_that_is_too_long_is_cut_at_a_line() {
    let header = header();
    header.set_config("A=1\n");
    assert_eq!(header.config_len.load(Relaxed), 4);
    let line = format!("{}\n", "x".repeat(99));
    header.set_config(&line.repeat(50));
    assert_eq!(header.config_len.load(Relaxed), 4000);
    header.set_config(&"y".repeat(5000));
    assert_eq!(header.config_len.load(Relaxed), 0);
}

#[test]
fn counting() {
    let header = header();
    header.count(Counter::Accepted);
    header.add(Counter::ShmBytesTx, 5);
    assert_eq!((header.counter(Counter::Accepted), header.counter(Counter::ShmBytesTx)), (1, 5));
    header.count_reason(Reason::Negotiating);
    assert_eq!(header.reasons[Reason::Negotiating as usize].load(Relaxed), 1);
    header.raise_high_water(7);
    header.raise_high_water(3);
    assert_eq!(header.conn_high_water.load(Relaxed), 8);
}

#[test]
fn so_many_bytes_of_records_are_worth_reading() {
    let mut bytes = vec![0; CONNS_OFFSET];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    for (capacity, high_water, records) in [(9, 0, 0), (9, 5, 5), (9, 12, 9)] {
        let mut put = |at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        put(offset_of!(Header, conn_capacity), capacity);
        put(offset_of!(Header, conn_high_water), high_water);
        let snapshot = Snapshot::read(&bytes).unwrap();
        assert_eq!(snapshot.conns_bytes(), records * size_of::<ConnRecord>());
    }
}

#[test]
fn channels_to_other_hosts_are_told_apart() {
    for (text, family) in [("10.1.2.3", 2), ("2001:db8::1", 10)] {
        let record = channel();
        record.set_peer(text.parse().unwrap());
        assert_eq!(record.peer_family.load(Relaxed), family);
        let mut bytes = vec![0; CONNS_OFFSET];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        let mut put = |at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        let here = offset_of!(Header, channels) + 63 * size_of::<ChannelRecord>();
        let there = offset_of!(Header, remote) + 31 * size_of::<ChannelRecord>();
        for at in [here, there] {
            put(at + offset_of!(ChannelRecord, state), 1);
        }
        put(there + offset_of!(ChannelRecord, peer_family), family);
        put(there + offset_of!(ChannelRecord, pairs), 3);
        let library = packed_library([1, 2, 3]).to_ne_bytes();
        let at = offset_of!(Header, remote_library) + 31 * 8;
        bytes[at..at + 8].copy_from_slice(&library);
        for (index, word) in record.peer_addr.iter().enumerate() {
            let at = there + offset_of!(ChannelRecord, peer_addr) + 8 * index;
            bytes[at..at + 8].copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        let channels = Snapshot::read(&bytes).unwrap().channels;
        let is: Vec<_> = channels.iter().map(|c| (c.path, c.peer, c.pairs)).collect();
        let host = text.parse().ok();
        assert_eq!(is, [(Path::Shm, None, 0), (Path::Rdma, host, 3)]);
        let libraries: Vec<_> = channels.iter().map(|c| c.library).collect();
        assert_eq!(libraries, [None, Some([1, 2, 3])]);
    }
}

#[test]
fn garbage_is_refused_or_read_without_harm() {
    assert_eq!(Snapshot::read(&[]).unwrap_err(), ReadError::Short);
    assert_eq!(Snapshot::read(&[0; CONNS_OFFSET]).unwrap_err(), ReadError::NotASegment);
    let mut bytes = vec![0xffu8; CONNS_OFFSET];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    assert_eq!(Snapshot::read(&bytes).unwrap_err(), ReadError::Version(u32::MAX));
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    let snapshot = Snapshot::read(&bytes).unwrap();
    assert_eq!(snapshot.channels.len(), CHANNEL_SLOTS + REMOTE_SLOTS);
    assert!(Connection::read_all(&[0xff; 1000]).next().is_none());
    let mut record = [0xffu8; 256];
    record[..4].copy_from_slice(&1u32.to_ne_bytes());
    let connections: Vec<Connection> = Connection::read_all(&record).collect();
    assert_eq!(connections.len(), 1);
    assert_eq!(connections[0].local, None);
    let mut sums = Sums::default();
    sums.add(&record);
    assert_eq!((sums.connections, sums.tx_bytes), (1, [u64::MAX; PATH_SLOTS]));
    assert_eq!(snapshot.totals(&sums), [u64::MAX; COUNTERS]);
}

#[test]
fn totals_are_of_open_connections_too() {
    let mut bytes = vec![0; CONNS_OFFSET];
    let put = |bytes: &mut [u8], at: usize, n: u64| {
        bytes[at..at + 8].copy_from_slice(&n.to_ne_bytes());
    };
    put(&mut bytes, offset_of!(Header, magic), MAGIC);
    put(&mut bytes, offset_of!(Header, version), VERSION.into());
    for (counter, n) in
        [(Counter::Accepted, 7), (Counter::RdmaBytesRx, 10), (Counter::MessagesTx, 1)]
    {
        put(&mut bytes, offset_of!(Header, counters) + 8 * counter as usize, n);
    }
    let mut record = [0; size_of::<ConnRecord>()];
    for (at, n) in [
        (offset_of!(ConnRecord, tx_bytes) + 8 * Path::Shm as usize, 1000),
        (offset_of!(ConnRecord, tx_bytes) + 8 * Path::Tcp as usize, 3),
        (offset_of!(ConnRecord, rx_bytes) + 8 * Path::Rdma as usize, 32),
        (offset_of!(ConnRecord, tx_messages), 2),
        (offset_of!(ConnRecord, rx_messages), 1),
    ] {
        put(&mut record, at, n);
    }
    let snapshot = Snapshot::read(&bytes).unwrap();
    let mut sums = Sums::default();
    // (The one in between is over.)
    let over = record;
    record[..4].copy_from_slice(&RECORD_OPEN.to_ne_bytes());
    sums.add(&[record, over, record].concat());
    assert_eq!((sums.connections, sums.reasons[0]), (2, 2));
    let totals = snapshot.totals(&sums);
    for (counter, total) in Counter::ALL.iter().zip(totals) {
        let is = match counter {
            Counter::Accepted => 7,
            Counter::ShmBytesTx => 2000,
            Counter::TcpBytesTx => 6,
            Counter::RdmaBytesRx => 10 + 64,
            Counter::MessagesTx => 1 + 4,
            Counter::MessagesRx => 2,
            _ => 0,
        };
        assert_eq!(total, is, "{counter:?}");
    }
}

#[test]
fn a_record_is_never_free_between_claim_and_close() {
    let record = conn();
    assert!(record.claim() && !record.claim() && !record.is_open());
    record.open(5, Reason::Negotiating, 1);
    assert!(record.is_open() && !record.claim());
    record.add_tx(Path::Shm, 4);
    assert_eq!(record.tx_bytes[1].load(Relaxed), 4);
    assert_eq!(record.rx_bytes[1].load(Relaxed), 0);
    record.add_rx(Path::Shm, 3);
    record.add_rx(Path::Shm, 2);
    assert_eq!(record.tx_bytes[1].load(Relaxed), 4);
    assert_eq!(record.rx_bytes[1].load(Relaxed), 5);
    assert_eq!(record.promotions.load(Relaxed), 0);
    for words in [&record.ring_bytes, &record.ring_used] {
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
    }
    assert_eq!((record.tx_messages.load(Relaxed), record.rx_messages.load(Relaxed)), (1, 2));
    record.close();
    assert!(!record.is_open() && record.claim());
}

#[test]
fn a_fresh_segment_says_whose_it_is() {
    let header = header();
    header.init(4711, 1_000_000_007, 96, 11);
    assert_eq!(header.magic.load(Relaxed), MAGIC);
    assert_eq!(header.version.load(Relaxed), VERSION);
    assert_eq!(header.pid.load(Relaxed), 4711);
    assert_eq!(header.started_unix_ns.load(Relaxed), 1_000_000_007);
    assert_eq!(header.conn_capacity.load(Relaxed), 96);
    assert_eq!(header.conn_high_water.load(Relaxed), 0);
    let channels = header.channel_capacity.load(Relaxed) as usize;
    assert_eq!(channels, header.channels.len());
    // Both versions, and neither in the other's way.
    let library = header.library.load(Relaxed);
    assert_eq!(
        (read::library(library), read::protocol(library)),
        (read::library(LIBRARY), Some(11))
    );
    assert_eq!(read::protocol(LIBRARY), None, "an older library's");
}

#[test]
fn a_version_is_three_numbers() {
    assert_eq!(packed(b"1.2.3"), 0x1_0002_0003);
    assert_eq!(packed(b"0.10.65535-rc1"), 0xa_ffff);
    assert_eq!(packed(b"7"), 7);
    assert_eq!(packed(b"1.2.3.4"), 0x1_0002_0003);
    assert_ne!(LIBRARY, 0);
    assert_eq!(read::library(LIBRARY), Some(LIBRARY_NUMBERS));
    assert_eq!(packed_library(LIBRARY_NUMBERS), LIBRARY);
    // And back, as a reader has it.
    assert_eq!(read::library(packed(b"1.2.3")), Some([1, 2, 3]));
    assert_eq!(read::library(packed(b"65535.0.7")), Some([65535, 0, 7]));
    assert_eq!(read::library(0), None);
}

#[test]
fn states_of_channels_have_codes_and_names() {
    use ChannelState::*;
    let names = ["free", "open", "draining", "failed", "corrupt"];
    for (state, name) in [Free, Open, Draining, Failed, Corrupt].into_iter().zip(names) {
        assert_eq!((ChannelState::from_code(state as u32), state.name()), (Some(state), name));
    }
    assert_eq!(ChannelState::from_code(5), None);
}

#[test]
fn where_rings_are_is_known_while_there_are_some() {
    let record = conn();
    let bytes = || {
        // What a reader copies.
        let mut bytes = vec![0; size_of::<ConnRecord>()];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        };
        put(offset_of!(ConnRecord, state), u64::from(record.state.load(Relaxed)));
        for i in [0, 1] {
            put(offset_of!(ConnRecord, words_at) + 8 * i, record.words_at[i].load(Relaxed));
            put(offset_of!(ConnRecord, bytes_at) + 8 * i, record.bytes_at[i].load(Relaxed));
            put(offset_of!(ConnRecord, ring_start) + 8 * i, record.ring_start[i].load(Relaxed));
        }
        put(offset_of!(ConnRecord, lock_at), record.lock_at.load(Relaxed));
        put(offset_of!(ConnRecord, origin), record.origin.load(Relaxed));
        bytes
    };
    record.open(3, Reason::NotStarted, 0);
    assert_eq!(Connection::read(&bytes()).unwrap().rings, None, "of an earlier connection");
    let rings = Rings {
        sizes: [0; 2],
        words_at: [1, 2],
        bytes_at: [3, 4],
        lock_at: 5,
        origin: CONNECTED | LATER_LIFE,
    };
    record.set_rings(&rings);
    record.set_ring_start(false, 7);
    let read = Connection::read(&bytes()).unwrap();
    assert_eq!((read.rings, read.ring_start), (Some(rings), [0, 7]));
    record.close();
    assert!(Connection::read(&bytes()).is_none());
    assert_eq!(Connection::read_closed(&bytes()).rings, Some(rings));
}

#[test]
fn a_connection_is_counted_once_whatever_its_directions_do() {
    let (header, record) = (header(), conn());
    record.open(3, Reason::NotStarted, 0);
    header.count_reason(Reason::NotStarted);
    header.open_by_path[Path::Tcp as usize].store(1, Relaxed);
    let open = || header.open_by_path.each_ref().map(|n| n.load(Relaxed));
    // (Two directions at once may say the same twice, or the better one last.)
    for (path, counts) in [
        (Path::Shm, [0, 1, 0, 0]),
        (Path::Shm, [0, 1, 0, 0]),
        (Path::Tcp, [1, 0, 0, 0]),
        (Path::Tcp, [1, 0, 0, 0]),
        (Path::Rdma, [0, 0, 1, 0]),
    ] {
        header.place(&record, path);
        assert_eq!(open(), counts);
    }
    // A child has said something of the record itself.
    record.reason.store(Reason::InheritedByFork as u32, Relaxed);
    header.place_reason(&record, Reason::None);
    header.place_reason(&record, Reason::None);
    let reasons: u64 = header.reasons.iter().map(|n| n.load(Relaxed)).sum();
    assert_eq!((header.reasons[Reason::None as usize].load(Relaxed), reasons), (1, 1));
}

/// A child that has the record still, and its maker, which is done with it.
#[test]
fn a_connection_that_is_over_counts_nowhere_else() {
    let (header, record) = (header(), conn());
    record.open(3, Reason::NotStarted, 0);
    header.count_reason(Reason::NotStarted);
    header.open_by_path[Path::Tcp as usize].store(1, Relaxed);
    header.place(&record, Path::Shm);
    assert_eq!(record.take_counted(), Some(Path::Shm));
    header.open_by_path[Path::Shm as usize].fetch_sub(1, Relaxed);
    header.place(&record, Path::Tcp);
    header.place_reason(&record, Reason::InheritedByFork);
    assert_eq!(record.take_counted(), None, "once");
    assert_eq!(header.open_by_path.each_ref().map(|n| n.load(Relaxed)), [0; PATH_SLOTS]);
    assert_eq!(header.reasons[Reason::NotStarted as usize].load(Relaxed), 1);
    assert_eq!(header.reasons[Reason::InheritedByFork as usize].load(Relaxed), 0);
    // Its next connection counts again.
    record.open(3, Reason::NotStarted, 0);
    header.open_by_path[Path::Tcp as usize].store(1, Relaxed);
    header.place(&record, Path::Shm);
    assert_eq!(record.take_counted(), Some(Path::Shm));
}

/// Who takes one from a count may end before another has given it one.
#[test]
fn a_count_below_zero_reads_as_none() {
    let mut bytes = vec![0; CONNS_OFFSET];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    for (at, n) in [(0, u64::MAX), (8, 5)] {
        for counts in [
            offset_of!(Header, open_by_path),
            offset_of!(Header, total_by_path),
            offset_of!(Header, reasons),
        ] {
            bytes[counts + at..][..8].copy_from_slice(&n.to_ne_bytes());
        }
    }
    let read = Snapshot::read(&bytes).unwrap();
    for counts in [&read.open_by_path[..], &read.total_by_path, &read.reasons] {
        assert_eq!(counts[..2], [0, 5]);
    }
}

#[test]
fn a_record_keeps_the_rule_of_its_connection() {
    let record = conn();
    let read = || {
        let mut bytes = vec![0; size_of::<ConnRecord>()];
        let at = offset_of!(ConnRecord, origin);
        bytes[at..at + 8].copy_from_slice(&record.origin.load(Relaxed).to_ne_bytes());
        let read = Connection::read_closed(&bytes);
        (read.rule, read.is_uncounted)
    };
    record.open(3, Reason::NotStarted, 1);
    assert_eq!(read(), (0, false), "not looked up");
    record.set_rule(NO_RULE);
    assert_eq!(read(), (NO_RULE, false));
    record.set_rule(u32::MAX);
    record.set_rings(&Rings { origin: ACCEPTED | BY_DEVICE, ..Rings::default() });
    assert_eq!(read(), (u32::MAX, false));
    assert_eq!(record.origin.load(Relaxed) as u32, (ACCEPTED | BY_DEVICE) as u32);
    record.count_no_more();
    assert_eq!(read(), (u32::MAX, true));
    record.open(4, Reason::NotStarted, 1);
    assert_eq!(read(), (0, false), "another connection's");
}
