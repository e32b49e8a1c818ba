//! Peers that write words: every word of the memory that they share with a victim, at random and at
//! chosen moments.
//!
//! The attacker is a real client, under the library, that has become one in good order. Then it
//! writes over what it has mapped: the words that are its own to write, and those that are the
//! victim's.

use super::parts::{SUBSCRIBE, listener};
use super::{ATTACKER, Not, Place, Proc, ROOT, THIRD, Test, VICTIM, Verdict, expect};
use crate::pattern::Rng;
use crate::sys::{self, Fd};
use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

pub const TESTS: &[Test] = &[
    Test { name: "words/none-epoll-server", run: |place| quiet(place, "serve-epoll") },
    Test { name: "words/none-thread-server", run: |place| quiet(place, "serve-threads") },
    Test { name: "words/closed-slot", run: closed },
    Test { name: "words/one-word-thread-server", run: |place| one_word(place, "serve-threads") },
    Test { name: "words/one-word-epoll-server", run: |place| one_word(place, "serve-epoll") },
    Test { name: "words/one-word-blocking-client", run: one_word_client },
    Test { name: "words/random-thread-server", run: |place| random(place, "serve-threads") },
    Test { name: "words/random-epoll-server", run: |place| random(place, "serve-epoll") },
    Test { name: "words/random-redis", run: random_redis },
];

/// The programs of this file's tests; false: not one of them.
pub fn part(words: &[&str]) -> bool {
    let number = |i: usize| words.get(i).and_then(|w| w.parse().ok()).unwrap_or(0);
    match *words {
        ["write-closed", _] => write_closed(number(1) as u16),
        ["write-one-each", _, _, _] => write_one_each(number(1) as u16, number(2), number(3)),
        ["write-one-each-as-server", _, _] => write_one_each_as_server(number(1), number(2)),
        ["write-random", _, seed, count, ask] => {
            let seed = seed.parse().expect("a seed");
            write_random(number(1) as u16, seed, count.parse().expect("a count"), ask);
        }
        ["clients-with-timeouts", _, _] => clients_with_timeouts(number(1) as u16, number(2)),
        _ => return false,
    }
    true
}

// --------------------------------------------------------------------------------------- the tests

/// Nobody attacks: what the other tests go by holds.
fn quiet(place: &Place, kind: &str) -> Verdict {
    let mut server = place.start(ROOT, &[kind]);
    let port = server.number("port")?;
    let third = place.stream(port)?;
    still_well(place, &mut server, port, Some(third))
}

/// The victim serves old and new clients exactly, and is at rest afterwards.
fn still_well(
    place: &Place,
    server: &mut Proc,
    port: u16,
    third: Option<super::Stream>,
) -> Verdict {
    server.must_live("the server")?;
    if let Some(third) = third {
        third.must_be_exact()?;
    }
    place.stream(port)?.must_be_exact()?;
    server.must_live("the server")?;
    server.must_rest("the server")
}

/// A peer says in the server's name that it has left slots which it uses. Its memory must not come
/// to a third user.
fn closed(place: &Place) -> Verdict {
    let mut server = place.start(ROOT, &["serve-pushes"]);
    let port = server.number("port")?;
    let first = place.stream(port)?;
    for _ in 0..3 {
        let mut attacker = place.start(ATTACKER, &["write-closed", &port.to_string()]);
        until_written(&mut attacker)?;
        // The next peer would get the memory, while the server still writes to the old connection.
        let third = place.stream(port)?;
        attacker.order("go on");
        attacker.await_line("gone on")?;
        server.must_live("the server")?;
        third.must_be_exact()?;
    }
    still_well(place, &mut server, port, Some(first))
}

/// A connection for each word and value: one word is written, then the attacker sleeps.
fn one_word(place: &Place, kind: &str) -> Verdict {
    let mut server = place.start(ROOT, &[kind]);
    let port = server.number("port")?;
    let third = place.stream(port)?;
    for from in BATCHES {
        let (port, from, count) = (port.to_string(), from.to_string(), BATCH.to_string());
        let words = ["write-one-each", &port, &from, &count];
        let mut attacker = place.start(ATTACKER, &words);
        until_written(&mut attacker)?;
        // The attacker sleeps, and its connections are open.
        server.must_live("the server")?;
        let beside_a_stream = 1;
        server
            .must_rest_but(beside_a_stream, &format!("the server, lies {from} and {count} more"))?;
        // The log has the first: it names one a second at most.
        match from.as_str() {
            "384" => named(place, &server, &attacker, true)?,
            "192" => named(place, &server, &attacker, false)?,
            _ => {}
        }
    }
    still_well(place, &mut server, port, Some(third))
}

/// So many lies at a time: a process has 128 places for threads that sleep, and those beyond look
/// once a millisecond.
const BATCH: usize = 96;
const BATCHES: [usize; 5] = [384, 288, 192, 96, 0];

/// The same against clients that block in receives with a time-out.
fn one_word_client(place: &Place) -> Verdict {
    for from in BATCHES {
        let count = BATCH.min(lies().len() - from).to_string();
        let from = from.to_string();
        let words = ["write-one-each-as-server", &from, &count];
        let mut attacker = place.start(ATTACKER, &words);
        let port: u16 = attacker.number("port")?;
        let words = ["clients-with-timeouts", &port.to_string(), &count];
        let mut victim = place.start(VICTIM, &words);
        until_written(&mut attacker)?;
        // Each call ends by itself, with the time-out or an error, and none burns the CPU till
        // then.
        victim.must_rest_but(2, &format!("clients, lies {from} and {count} more"))?;
        victim.order("go on");
        victim.await_line("all returned")?;
    }
    Ok(())
}

/// A million words, anywhere.
fn random(place: &Place, kind: &str) -> Verdict {
    let mut server = place.start(ROOT, &[kind]);
    let port = server.number("port")?;
    let third = place.stream(port)?;
    let mut attacker =
        place.start(ATTACKER, &["write-random", &port.to_string(), &seed(), "1000000", "x"]);
    until_written(&mut attacker)?;
    third.must_be_exact()?;
    server.must_live("the server")?;
    server.must_rest("the server, with the attacker asleep")?;
    still_well(place, &mut server, port, None)
}

/// $NETACC_TEST_SEED, or 1.
fn seed() -> String {
    std::env::var("NETACC_TEST_SEED").unwrap_or_else(|_| "1".into())
}

/// The attacker says how far it has come, each time within the suite's patience.
pub(super) fn until_written(attacker: &mut Proc) -> Verdict {
    loop {
        let line = attacker.line()?;
        match line.split_once(' ') {
            Some(("words" | "connections", _)) => {}
            _ => return expect(line == "written", || format!("the attacker: {line}")),
        }
    }
}

/// A port that was free a moment ago, and that the kernel gives to nobody by itself.
pub(super) fn free_port() -> u16 {
    let first = 21_000 + (std::process::id() % 4000) as u16;
    let is_free = |port: &u16| {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
        let bound = sys::bind(fd, sys::home().with_port(*port)).is_ok();
        let _ = sys::close(fd);
        bound
    };
    (first..first + 4000).find(is_free).expect("a free port")
}

/// A Redis that takes connections, and its port.
pub(super) fn redis(place: &Place) -> Result<(Proc, String), Not> {
    let Some(redis) = ["/usr/bin/redis-server", "/usr/local/bin/redis-server"]
        .into_iter()
        .find(|p| std::path::Path::new(p).exists())
    else {
        return Err(Not::Skipped("no redis-server".into()));
    };
    let port = free_port().to_string();
    let words = [redis, "--port", &port, "--save", "", "--appendonly", "no", "--hz", "1"];
    let mut server = place.start_program(VICTIM, &words.map(String::from), |_| ());
    while !server.line()?.contains("eady to accept") {}
    Ok((server, port))
}

/// Redis under the same fire.
fn random_redis(place: &Place) -> Verdict {
    let (mut server, port) = redis(place)?;
    let words = ["write-random", &port, &seed(), "1000000", "PING\r\n"];
    let mut attacker = place.start(ATTACKER, &words);
    until_written(&mut attacker)?;
    server.must_live("Redis")?;
    let words = ["ask", &port, "PING\r\n", "+PONG\r\n", "1000"];
    let mut other = place.start(THIRD, &words);
    other.await_line("answered")?;
    server.must_rest_but(1, "Redis, with the attacker asleep")
}

/// `netacc_ss` and the log name the attacker's process.
fn named(place: &Place, server: &Proc, attacker: &Proc, in_the_log: bool) -> Verdict {
    let said = place.netacc_ss(&["--json", "-s", "qp"], server);
    let pid = attacker.pid();
    let channel = said.split('{').find(|c| {
        c.split('}').next().is_some_and(|c| {
            c.contains(&format!("\"peer_pid\":{pid}"))
                || c.contains(&format!("\"peer_pid\": {pid}"))
        }) && c.contains("\"corrupt\"")
    });
    expect(channel.is_some(), || format!("netacc_ss does not name process {pid}: {said}"))?;
    let log = server.log();
    let line = format!("process {pid} (user {ATTACKER})");
    expect(!in_the_log || log.contains(&line), || format!("the log does not name {line}: {log}"))
}

// ----------------------------------------------------------------------------------- the attackers

/// The layout that `crates/core/src/channel.rs` and `crates/ring/src/ring.rs` give a channel.
pub(super) mod layout {
    pub const PLACE: usize = 576;
    pub const SIDE: usize = 64 + 256 * PLACE;
    pub const SLOTS_AT: usize = 2 * SIDE;
    pub const SLOT: usize = 512;
    pub const DIRECTION: usize = 256;
    pub const CHANNEL: usize = SLOTS_AT + 4096 * SLOT;
    pub const TAIL: usize = 0;
    /// What a producer announces.
    pub const EPOCH: usize = 16;
    pub const FAST_FROM: usize = 24;
    pub const CARRIER_FROM: usize = 32;
    pub const RESEND_TO: usize = 40;
    pub const REQUEST: usize = 128 + 3 * 8;
    pub const CLOSED: u64 = 1 << 32;
}

/// Memory that this process shares with a victim.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    at: usize,
    words: usize,
    is_channel: bool,
}

/// What is mapped a second time, by its inode.
static KNOWN: std::sync::Mutex<Vec<(u64, Shared)>> = std::sync::Mutex::new(Vec::new());

impl Shared {
    /// All of it, by the kernel's word: mapped a second time, so that it stays when the library
    /// lets it go.
    fn all() -> Vec<Shared> {
        let mut known = KNOWN.lock().expect("one thread");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        for line in maps.lines() {
            let is_channel = line.contains("memfd:netacc-channel");
            let mut fields = line.split_whitespace();
            let (Some(range), Some(inode)) = (fields.next(), fields.nth(3)) else {
                continue;
            };
            let inode: u64 = inode.parse().unwrap_or(0);
            if !is_channel && !line.contains("memfd:netacc-arena")
                || known.iter().any(|(i, _)| *i == inode)
            {
                continue;
            }
            let ends = range
                .split_once('-')
                .map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)));
            let Some((Ok(from), Ok(to))) = ends else {
                continue;
            };
            // SAFETY: an old size of 0 makes a second mapping of what is shared there, if anything
            // is.
            let at = unsafe { libc::mremap(from as *mut _, 0, to - from, libc::MREMAP_MAYMOVE) };
            if at != libc::MAP_FAILED {
                known.push((inode, Shared { at: at as usize, words: (to - from) / 8, is_channel }));
            }
        }
        known.iter().map(|(_, shared)| *shared).collect()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "inside of the mapping");
        // SAFETY: inside of a mapping that is never unmapped.
        unsafe { AtomicU64::from_ptr((self.at as *mut u64).add(index)) }
    }

    /// The word at `offset` of direction `d` of a slot.
    pub(super) fn slot_word(&self, slot: usize, d: usize, offset: usize) -> &AtomicU64 {
        self.word((layout::SLOTS_AT + slot * layout::SLOT + d * layout::DIRECTION + offset) / 8)
    }
}

fn channels() -> Vec<Shared> {
    let all = Shared::all();
    all.into_iter().filter(|s| s.is_channel && s.words * 8 >= layout::CHANNEL).collect()
}

/// Exchanges messages until the connection is in a slot both ways; which one, in which channel.
/// None: it does not get there.
pub(super) fn slot_of(fd: Fd, exchange: &mut dyn FnMut(Fd) -> bool) -> Option<(Shared, usize)> {
    let tails = |c: &Shared| -> Vec<[u64; 2]> {
        let tail = |slot, d| c.slot_word(slot, d, layout::TAIL).load(SeqCst);
        (0..4096).map(|s| [tail(s, 0), tail(s, 1)]).collect()
    };
    for _ in 0..100 {
        let before: Vec<(Shared, Vec<[u64; 2]>)> =
            channels().into_iter().map(|c| (c, tails(&c))).collect();
        if !exchange(fd) {
            return None;
        }
        for (channel, old) in before {
            let new = tails(&channel);
            if let Some(slot) = (0..4096).find(|s| (0..2).all(|d| old[*s][d] != new[*s][d])) {
                return Some((channel, slot));
            }
        }
        sys::sleep_ms(1);
    }
    None
}

/// An exchange with an echo server that may have had enough of us.
pub(super) fn ask_and_hear(ask: &[u8], answer: usize) -> impl FnMut(Fd) -> bool {
    let ask = ask.to_vec();
    move |fd| {
        if sys::send(fd, &ask, libc::MSG_NOSIGNAL) != Ok(ask.len()) {
            return false;
        }
        let mut left = answer;
        let mut buffer = [0; 256];
        while left > 0 {
            match sys::recv(fd, &mut buffer[..left.min(256)], 0) {
                Ok(0) | Err(_) => return false,
                Ok(n) => left -= n,
            }
        }
        true
    }
}

fn order() -> String {
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    line.trim().into()
}

/// Prints a line, and sleeps until the end.
pub(super) fn sleep_after(line: &str) {
    println!("{line}");
    while !order().is_empty() {}
}

/// Says in both ends' names that slots in use are left, makes the acceptor look at them, and lets
/// the link go.
fn write_closed(port: u16) {
    let mut echo = ask_and_hear(&[7; 64], 64);
    let mut kept = Vec::new();
    for _ in 0..3 {
        kept.push(dial_into_slot(port, &mut echo));
        println!("connections {}", kept.len());
    }
    for (fd, channel, slot) in &kept {
        let _ = sys::send(*fd, &SUBSCRIBE, libc::MSG_NOSIGNAL);
        let _ = sys::recv(*fd, &mut [0; 64], 0);
        for d in 0..2 {
            channel.slot_word(*slot, d, layout::REQUEST).fetch_or(layout::CLOSED, SeqCst);
        }
    }
    // A new connection has the acceptor look at the slots.
    let (fd, ..) = dial_into_slot(port, &mut echo);
    let _ = sys::close(fd);
    sys::sleep_ms(20);
    // Without the library's knowledge: the link to the victim ends, the connections stay.
    each_fd(|fd| {
        let mut domain = 0i32;
        let mut len = 4u32;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_DOMAIN);
        // SAFETY: kernel calls on a number; live words.
        unsafe {
            let asked =
                libc::syscall(libc::SYS_getsockopt, fd, level, name, &raw mut domain, &raw mut len);
            if asked == 0 && domain == libc::AF_UNIX {
                libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_RDWR);
            }
        }
    });
    sys::sleep_ms(50);
    println!("written");
    let _ = order();
    // The connections' sockets are open: the server goes on writing.
    sys::sleep_ms(100);
    sleep_after("gone on");
}

/// Every descriptor of the process, the library's own among them.
fn each_fd(mut f: impl FnMut(Fd)) {
    let all: Vec<Fd> = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    all.into_iter().filter(|fd| *fd > 2).for_each(&mut f);
}

/// Rings every doorbell that it was given, and says that all connections have news: whoever sleeps
/// looks.
pub(super) fn wake_all(victim_side: usize) {
    for channel in channels() {
        let side = victim_side * layout::SIDE / 8;
        for place in 0..256 {
            let set = side + (64 + place * layout::PLACE) / 8;
            (3..67).for_each(|w| channel.word(set + w).store(u64::MAX, SeqCst));
            channel.word(set).store(u64::MAX, SeqCst);
        }
    }
    each_fd(|fd| {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        if link.to_string_lossy().contains("eventfd") {
            // As the library rings: by a read that does not wait.
            let mut count = [0u8; 8];
            let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
            // SAFETY: a kernel call on a number, into a live buffer.
            unsafe {
                libc::syscall(
                    libc::SYS_preadv2,
                    fd,
                    &raw const part,
                    1,
                    -1i64,
                    -1i64,
                    libc::RWF_NOWAIT,
                )
            };
        }
    });
}

pub(super) fn dial_quietly(port: u16) -> Fd {
    dial_within(port, 200)
}

/// A connection in a slot, to a victim that has nothing against us; however long either has to wait
/// for a CPU.
pub(super) fn dial_into_slot(
    port: u16,
    exchange: &mut dyn FnMut(Fd) -> bool,
) -> (Fd, Shared, usize) {
    let patience = super::patience();
    let fd = dial_within(port, patience.as_millis() as i64);
    let end = std::time::Instant::now() + patience;
    loop {
        if let Some((channel, slot)) = slot_of(fd, exchange) {
            return (fd, channel, slot);
        }
        assert!(std::time::Instant::now() < end, "never in shared memory");
    }
}

fn dial_within(port: u16, ms: i64) -> Fd {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
    let _ = sys::set_timeout(fd, libc::SO_RCVTIMEO, ms);
    sys::connect(fd, sys::home().with_port(port)).expect("connect");
    fd
}

/// Every word of a slot that is anybody's (each line's words up to the last that is used), and what
/// is written there.
fn lies() -> Vec<(usize, usize, u8)> {
    let mut all = Vec::new();
    for d in 0..2 {
        for offset in (0..layout::DIRECTION).step_by(8) {
            for kind in 0..6 {
                all.push((d, offset, kind));
            }
        }
    }
    all.extend((0..2).flat_map(|d| TALES.map(move |kind| (d, 0, kind))));
    all
}

/// Several words that tell a story together: announcements of a path and offsets that nothing comes
/// of. Some have bytes on the carrier, too, which the attacker's own library does not know of.
const TALES: std::ops::Range<u8> = 6..18;

fn tell(channel: Shared, slot: usize, d: usize, kind: u8, fd: Fd) {
    let word = |offset| channel.slot_word(slot, d, offset);
    let tell = |fast, carrier, resend, ahead| {
        word(layout::FAST_FROM).store(fast, SeqCst);
        word(layout::CARRIER_FROM).store(carrier, SeqCst);
        word(layout::RESEND_TO).store(resend, SeqCst);
        word(layout::EPOCH).fetch_add(ahead, SeqCst);
    };
    let (never, tail) = (1 << 40, word(layout::TAIL).load(SeqCst));
    match kind % 6 {
        0 => tell(0, never, never, 1),
        1 => tell(0, never, u64::MAX, 1),
        // A path left and taken again at once, and one step too many.
        2 => tell(tail, tail, tail, 2),
        3 => tell(never, never, never, 3),
        // Back and forth, for a while: each look finds other words than the one before.
        4 => (0..200_000).for_each(|i| {
            word(layout::CARRIER_FROM).store(never + i, SeqCst);
            word(layout::EPOCH).fetch_xor(1 ^ i & 2, SeqCst);
            word(layout::TAIL).fetch_xor(i & 1, SeqCst);
        }),
        _ => {}
    }
    if kind >= 12 {
        // SAFETY: a kernel call on a descriptor of our own, from a live buffer.
        unsafe {
            crate::raw::call(
                libc::SYS_sendto,
                [fd as usize, [7u8; 64].as_ptr() as usize, 64, libc::MSG_DONTWAIT as usize, 0, 0],
            )
        };
    }
}

/// One lie about a connection that is in this slot.
fn write_one(found: Option<(Shared, usize)>, (d, offset, kind): (usize, usize, u8), fd: Fd) {
    match found {
        Some((channel, slot)) if TALES.contains(&kind) => tell(channel, slot, d, kind, fd),
        Some((channel, slot)) => lie(channel.slot_word(slot, d, offset), kind),
        None => {}
    }
}

fn lie(word: &AtomicU64, kind: u8) {
    let old = word.load(SeqCst);
    let new = match kind {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old ^ 1 << 32,
        4 => old.wrapping_add(2),
        _ => old.wrapping_sub(1),
    };
    word.store(new, SeqCst);
}

/// `from`, `count`: which of the lies.
fn write_one_each(port: u16, from: usize, count: usize) {
    let mut echo = ask_and_hear(&[7; 64], 64);
    for (made, one) in lies().into_iter().skip(from).take(count).enumerate() {
        println!("connections {made}");
        let fd = dial_quietly(port);
        let found = slot_of(fd, &mut echo);
        write_one(found, one, fd);
        // Some are looked at because of the next news, some are not.
        if found.is_some() && one.2 < TALES.start && one.2 % 2 == 0 {
            let _ = sys::send(fd, &[7; 64], libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        }
    }
    wake_all(0);
    sleep_after("written");
}

fn write_one_each_as_server(from: usize, count: usize) {
    let port = listener();
    let lies: Vec<_> = lies().into_iter().skip(from).take(count).collect();
    let mut slots = Vec::new();
    for made in 0..lies.len() {
        println!("connections {made}");
        let fd = sys::accept(port).expect("accept");
        // Answers what the client sends, until the connection is in a slot.
        let mut echo = |fd| {
            let mut buffer = [0; 64];
            recv_up_to(fd, &mut buffer) && sys::send(fd, &buffer, libc::MSG_NOSIGNAL) == Ok(64)
        };
        let found = slot_of(fd, &mut echo);
        // The client stops.
        let _ = sys::send(fd, &[1; 64], libc::MSG_NOSIGNAL);
        slots.push((found, fd));
    }
    // All are asleep in a receive, or about to be.
    sys::sleep_ms(300);
    for (one, (found, fd)) in lies.iter().zip(slots) {
        write_one(found, *one, fd);
    }
    wake_all(1);
    sleep_after("written");
}

fn recv_up_to(fd: Fd, buffer: &mut [u8]) -> bool {
    let mut done = 0;
    while done < buffer.len() {
        match sys::recv(fd, &mut buffer[done..], 0) {
            Ok(0) | Err(_) => return false,
            Ok(n) => done += n,
        }
    }
    true
}

/// Clients, one thread each, that exchange until they are told to stop, and then receive with a
/// time-out, again and again, until `go on`: then the call under way must return.
fn clients_with_timeouts(port: u16, count: usize) {
    let going = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let mut threads = Vec::new();
    for _ in 0..count {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
        sys::set_timeout(fd, libc::SO_RCVTIMEO, 400).expect("time-out");
        sys::connect(fd, sys::home().with_port(port)).expect("connect");
        let mut answer = [0; 64];
        loop {
            if sys::send(fd, &[0; 64], libc::MSG_NOSIGNAL) != Ok(64)
                || !recv_patiently(fd, &mut answer)
                || answer[0] == 1
            {
                break;
            }
        }
        let going = going.clone();
        threads.push(
            std::thread::Builder::new()
                .stack_size(64 << 10)
                .spawn(move || {
                    while going.load(SeqCst) {
                        if let Ok(0) | Err(sys::E(libc::ECONNRESET)) = sys::recv(fd, &mut [0; 8], 0)
                        {
                            break;
                        }
                    }
                })
                .expect("a thread"),
        );
    }
    let _ = order();
    going.store(false, SeqCst);
    for thread in threads {
        thread.join().expect("a thread");
    }
    sleep_after("all returned");
}

/// As [`recv_up_to`], over time-outs.
fn recv_patiently(fd: Fd, buffer: &mut [u8]) -> bool {
    let mut done = 0;
    while done < buffer.len() {
        match sys::recv(fd, &mut buffer[done..], 0) {
            Err(sys::E(libc::EAGAIN)) => {}
            Ok(0) | Err(_) => return false,
            Ok(n) => done += n,
        }
    }
    true
}

/// Writes `count` words of all shared memory at random, in bursts, while messages go to and fro and
/// calls block.
fn write_random(port: u16, seed: u64, count: usize, ask: &str) {
    let mut rng = Rng::new(seed);
    let answer = if ask.starts_with("PING") { 7 } else { ask.len() };
    let mut exchange = ask_and_hear(ask.as_bytes(), answer);
    let mut done = 0;
    let mut connections: Vec<Fd> = Vec::new();
    while done < count {
        while connections.len() > 6 {
            let _ = sys::close(connections.swap_remove(rng.range(0, connections.len() - 1)));
        }
        let fd = dial_quietly(port);
        connections.push(fd);
        let found = slot_of(fd, &mut exchange);
        let all = Shared::all();
        if all.is_empty() {
            // The victim has given the link up, and does not make another with this process.
            break;
        }
        let burst = rng.size(1 << 16).min(count - done);
        for i in 0..burst {
            // Half of them in the slot of the connection, if it has one.
            if let Some((channel, slot)) = found.filter(|_| rng.range(0, 1) == 0) {
                let word = channel.slot_word(slot, rng.range(0, 1), rng.range(0, 31) * 8);
                word.store(value(&mut rng, word.load(SeqCst)), SeqCst);
            } else {
                let shared = all[rng.range(0, all.len() - 1)];
                let word = shared.word(rng.range(0, shared.words - 1));
                word.store(value(&mut rng, word.load(SeqCst)), SeqCst);
            }
            if i % 64 == 63 {
                let fd = connections[rng.range(0, connections.len() - 1)];
                let _ = sys::send(fd, ask.as_bytes(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
                let _ = sys::recv(fd, &mut [0; 4096], libc::MSG_DONTWAIT);
            }
        }
        done += burst;
        println!("words {done}");
    }
    sleep_after("written");
}

fn value(rng: &mut Rng, old: u64) -> u64 {
    match rng.range(0, 7) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(rng.range(0, 70_000) as u64),
        3 => old.wrapping_sub(rng.range(0, 70_000) as u64),
        4 => old ^ 1 << rng.range(0, 63),
        5 => rng.range(0, 512) as u64,
        6 => 1 << rng.range(0, 63),
        _ => rng.next(),
    }
}
