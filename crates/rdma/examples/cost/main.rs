//! What a message costs the engine, in instructions, counted by callgrind.
//!
//! ```text
//! cargo run --release -p netacc-rdma --example cost               the table, by running itself under valgrind
//! cargo run --release -p netacc-rdma --example cost -- run WAY LANES ROUNDS     the traffic alone
//! ```
//!
//! Two ends in one process, over the fabric in memory, with the settings of the library
//! (`remote/devices.rs`): in each round end 0 sends a message of 512 bytes on every lane, end 1
//! polls, reads them and answers, end 0 polls and reads. The six steps below are functions of their
//! own. For each of them valgrind counts what is executed inside of it (`--toggle-collect`), and
//! what the fabric's calls in it take is taken off (`edge.rs`): what is left is the engine's and
//! the ring's own. A provider's `post` and `poll` come on top of it.

mod edge;

use edge::Edge;
use netacc_rdma::arena::Pool;
use netacc_rdma::{Hub, Lanes, News, Settings};
use netacc_ring::{Consumer, Producer, RingWords};
use netacc_verbs::Fabric;
use netacc_verbs::fabric::{Capacity, News as CmNews, Patience};
use netacc_verbs::memory::{Model, Net, Order, Pair};
use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const BYTES: usize = 512;
const RING: usize = 128 << 10;
const TID: u32 = 1;
/// Rounds before anything is counted.
const WARM_UP: usize = 64;
const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// The steps, as they are counted: name of the function, what it is, how often per message.
const STEPS: [(&str, &str); 6] = [
    ("step_copy_in", "ring: copy 512 B in, publish"),
    ("step_kick", "engine: kick to post"),
    ("step_poll", "engine: poll to apply, receives and completions included"),
    ("step_copy_out", "ring: copy 512 B out, publish"),
    ("step_consumed", "engine: the head was moved; a credit if one is due"),
    ("step_empty_poll", "engine: a poll that finds nothing"),
];

struct Conn {
    producer: Producer,
    consumer: Consumer,
    inbound: NonNull<RingWords>,
}

struct End {
    fabric: Arc<Edge>,
    hub: Hub<Edge>,
    lanes: Option<Arc<Lanes<Edge>>>,
    pair: Option<Pair>,
    conns: Vec<Conn>,
}

/// Zeroed memory that is never given back.
fn memory(bytes: usize) -> NonNull<u8> {
    let layout = Layout::from_size_align(bytes, 4096).unwrap();
    // SAFETY: not of size 0.
    NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap()
}

// ---- what is counted ----------------------------------------------------------------------------

#[inline(never)]
fn step_copy_in(conn: &mut Conn, from: &[u8; BYTES]) {
    // SAFETY: an array of ours.
    let n = unsafe { conn.producer.write(from.as_ptr(), BYTES) };
    let _ = conn.producer.publish();
    assert_eq!(n, Ok(BYTES));
}

#[inline(never)]
fn step_kick(lanes: &Lanes<Edge>, lane: u16) {
    let _ = lanes.kick(lane);
}

#[inline(never)]
fn step_poll(hub: &Hub<Edge>) -> usize {
    let mut told = 0;
    let _ = hub.poll(TID, &mut |_, news| told += usize::from(matches!(news, News::Data { .. })));
    told
}

#[inline(never)]
fn step_empty_poll(hub: &Hub<Edge>) {
    assert_eq!(hub.poll(TID, &mut |_, _| ()), Ok(0));
}

#[inline(never)]
fn step_copy_out(conn: &mut Conn, to: &mut [u8; BYTES]) {
    // SAFETY: an array of ours.
    let n = unsafe { conn.consumer.read(to.as_mut_ptr(), BYTES) };
    let _ = conn.consumer.publish();
    assert_eq!(n, Ok(BYTES));
}

#[inline(never)]
fn step_consumed(lanes: &Lanes<Edge>, lane: u16, conn: &Conn) {
    // SAFETY: never freed; atomics.
    let head = unsafe { conn.inbound.as_ref() }.head.load(Relaxed);
    let _ = lanes.consumed(lane, head);
}

// ---- the traffic --------------------------------------------------------------------------------

/// As `remote/devices.rs` makes them.
fn settings(lanes: u16, immediate: bool) -> Settings {
    let depth = (u32::from(lanes) * 16).clamp(32, 128);
    Settings {
        sends: depth,
        receives: depth,
        peer_receives: depth,
        inline_bytes: 64,
        immediate,
        lanes,
        turn_bytes: 16384,
    }
}

fn make_lanes(
    end: &mut End,
    domain: &<Edge as Fabric>::Domain,
    mut pair: <Edge as Fabric>::Pair,
    settings: Settings,
) {
    let capacity = Capacity {
        sends: settings.sends,
        receives: settings.receives,
        inline_bytes: settings.inline_bytes,
    };
    let create = |queue: &_| end.fabric.create(&mut pair, domain, queue, capacity);
    end.hub.with_queue(create).unwrap().unwrap();
    let tag = end.hub.reserve(TID, &settings).unwrap();
    let receives = memory(settings.receives as usize * 64);
    // SAFETY: never freed, and nobody else has it.
    let lanes =
        unsafe { Lanes::new(Arc::clone(&end.fabric), tag, settings, (domain, &pair), receives) }
            .unwrap();
    let lanes = Arc::new(lanes);
    end.hub.add(TID, Arc::clone(&lanes)).unwrap();
    (end.lanes, end.pair) = (Some(lanes), Some(pair));
}

/// Two ends with a pair between them and all lanes open.
fn rig(model: Model, settings: Settings) -> [End; 2] {
    let net = Net::new(Order::Prompt);
    let mut managers = Vec::new();
    let mut domains = Vec::new();
    let mut ends = ADDRESSES.map(|address| {
        let fabric = Arc::new(Edge(net.host(address, model)));
        let manager = fabric.open_manager().unwrap();
        let device = fabric.open_device(&manager, address, 0).unwrap();
        domains.push(fabric.open_domain(&device).unwrap());
        let queue = fabric.open_queue(&device, 8192, 0).unwrap();
        managers.push(manager);
        End {
            hub: Hub::new(Arc::clone(&fabric), queue, 8192),
            fabric,
            lanes: None,
            pair: None,
            conns: Vec::new(),
        }
    });
    let [a, b] = &mut ends;
    let address = SocketAddr::new(ADDRESSES[0], 26379);
    a.fabric.listen(&managers[0], address, 1, 1).unwrap();
    let pair = b.fabric.resolve(&managers[1], ADDRESSES[1], address, 1000, 2).unwrap();
    assert!(matches!(b.fabric.next_event(&managers[1]).unwrap().unwrap().news, CmNews::Resolved));
    make_lanes(b, &domains[1], pair, settings);
    b.fabric.connect(b.pair.as_mut().unwrap(), &[], Patience::DEFAULT).unwrap();
    let CmNews::Request { pair, .. } = a.fabric.next_event(&managers[0]).unwrap().unwrap().news
    else {
        panic!("no request")
    };
    make_lanes(a, &domains[0], pair, settings);
    a.fabric.accept(a.pair.as_mut().unwrap(), &[], Patience::DEFAULT).unwrap();
    for i in [1, 0] {
        let pair = ends[i].pair.take().unwrap();
        ends[i].lanes.as_ref().unwrap().start(pair, i == 1).unwrap();
    }
    for (end, domain) in ends.iter_mut().zip(&domains) {
        let mut pool: Pool<Edge> = Pool::new(RING, 0, 8 << 20);
        for lane in 0..settings.lanes {
            let rings = pool.take().unwrap_or_else(|| {
                let bytes = pool.next_bytes();
                // SAFETY: never freed, and nobody else has it.
                unsafe { pool.grow(&end.fabric, domain, memory(bytes), bytes) }.unwrap();
                pool.take().unwrap()
            });
            let words =
                NonNull::from(Box::leak(Box::<[RingWords; 2]>::default())).cast::<RingWords>();
            // SAFETY: the second of two.
            let inbound = unsafe { words.add(1) };
            let (out, inb, size) = (rings.outbound(), rings.inbound(), rings.ring_bytes());
            // SAFETY: words and rings live for ever.
            let (producer, consumer) = unsafe {
                (Producer::new(words, out, size, 0), Consumer::new(inbound, inb, size, 0))
            };
            end.conns.push(Conn { producer, consumer, inbound });
            // SAFETY: as above; producer and consumer are the only ones.
            let opened =
                unsafe { end.lanes.as_ref().unwrap().open(lane, words, inbound, rings, 1) };
            assert!(opened.is_ok());
        }
        // The arenas stay registered to the end.
        std::mem::forget(pool);
    }
    // Managers, devices, listeners live as long as the process.
    std::mem::forget((managers, domains));
    for _ in 0..8 {
        for end in &ends {
            while end.hub.poll(TID, &mut |_, _| ()).unwrap() != 0 {}
        }
    }
    ends
}

/// One way of a round: `ends[from]` sends on all lanes, the other end receives. Returns the polls
/// that it took.
fn one_way(ends: &mut [End; 2], from: usize) -> usize {
    let message = [7u8; BYTES];
    let mut got = [0u8; BYTES];
    let lanes = ends[0].conns.len();
    let [a, b] = ends;
    let (sender, receiver) = if from == 0 { (a, b) } else { (b, a) };
    let (sends, receives) = (sender.lanes.as_ref().unwrap(), receiver.lanes.as_ref().unwrap());
    for (lane, conn) in sender.conns.iter_mut().enumerate() {
        step_copy_in(conn, &message);
        step_kick(sends, lane as u16);
    }
    let (mut told, mut polls) = (0, 0);
    while told < lanes {
        told += step_poll(&receiver.hub);
        polls += 1;
        assert!(polls < 100, "nothing comes");
    }
    for (lane, conn) in receiver.conns.iter_mut().enumerate() {
        step_copy_out(conn, &mut got);
        step_consumed(receives, lane as u16, conn);
    }
    assert_eq!(got, message);
    polls
}

fn run(immediate: bool, lanes: u16, rounds: usize) {
    let model = if immediate { Model::ROCE } else { Model::SIW };
    let mut ends = rig(model, settings(lanes, immediate));
    for _ in 0..WARM_UP {
        one_way(&mut ends, 0);
        one_way(&mut ends, 1);
    }
    let before = ends.each_ref().map(|e| e.lanes.as_ref().unwrap().counters.read());
    let mut polls = 0;
    for _ in 0..rounds {
        polls += one_way(&mut ends, 0) + one_way(&mut ends, 1);
        // Nothing is under way any more, but completions of this end's.
        ends.iter().for_each(|e| while e.hub.poll(TID, &mut |_, _| ()).unwrap() != 0 {});
        step_empty_poll(&ends[0].hub);
    }
    let messages = 2 * rounds * usize::from(lanes);
    let count = |f: fn(&netacc_rdma::counters::Snapshot) -> u64| -> u64 {
        ends.iter()
            .zip(&before)
            .map(|(e, b)| f(&(e.lanes.as_ref().unwrap().counters.read() - *b)))
            .sum()
    };
    println!(
        "messages {messages} polls {polls} works {} posts {} sent {} credits {}",
        count(|c| c.works),
        count(|c| c.posts),
        count(|c| c.messages),
        count(|c| c.credit_messages)
    );
}

// ---- counting -----------------------------------------------------------------------------------

/// Instructions of everything that was collected, and of the fabric's calls in it.
fn read_counts(profile: &str) -> (u64, u64) {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let (mut all, mut edges, mut callee) = (0, 0, "");
    let mut is_call = false;
    let cost =
        |line: &str| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    for line in profile.lines() {
        if is_call {
            is_call = false;
            if callee.contains("edge_") {
                edges += cost(line);
            }
        } else if let Some(total) = line.strip_prefix("totals: ") {
            all = total.trim().parse().unwrap_or(0);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some((key, name)) =
            line.split_once('=').filter(|(k, _)| matches!(*k, "fn" | "cfn"))
        {
            // "(12) name" the first time, "(12)" from then on.
            let (id, name) = name.split_once(' ').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            if key == "cfn" {
                callee = names.get(id).copied().unwrap_or("");
            }
        }
    }
    (all, edges)
}

fn count(way: &str, lanes: u16, rounds: usize) -> Result<(), String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let profile = std::env::temp_dir().join(format!("netacc-cost-{}", std::process::id()));
    println!("\n{way}, {lanes} connection{} on the pair", if lanes == 1 { "" } else { "s" });
    for (step, what) in STEPS {
        let out = Command::new("valgrind")
            .args([
                "--tool=callgrind",
                "--collect-atstart=no",
                &format!("--toggle-collect=*{step}*"),
            ])
            .arg(format!("--callgrind-out-file={}", profile.display()))
            .arg(&me)
            .args(["run", way, &lanes.to_string(), &rounds.to_string()])
            .output()
            .map_err(|e| format!("valgrind: {e}"))?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            return Err(format!("{step}: {}", String::from_utf8_lossy(&out.stderr)));
        }
        let text = std::fs::read_to_string(&profile).map_err(|e| e.to_string())?;
        let (all, edges) = read_counts(&text);
        let number = |name: &str| -> f64 {
            let mut words = said.split_whitespace();
            words.find(|w| *w == name);
            words.next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
        };
        let rounds_and_warm_up = (rounds + WARM_UP) as f64;
        let times = match step {
            "step_empty_poll" => rounds as f64,
            _ => 2.0 * rounds_and_warm_up * f64::from(lanes),
        };
        let own = (all.saturating_sub(edges)) as f64 / times;
        println!("  {own:8.1}  {what}");
        if step == STEPS[5].0 {
            println!(
                "            per message: {:.3} work requests, {:.3} doorbells, {:.3} messages of which {:.4} credits, {:.3} polls",
                number("works") / number("messages"),
                number("posts") / number("messages"),
                number("sent") / number("messages"),
                number("credits") / number("messages"),
                number("polls") / number("messages")
            );
        }
    }
    let _ = std::fs::remove_file(profile);
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_immediate = |way: &str| match way {
        "immediate" => Some(true),
        "send" => Some(false),
        _ => None,
    };
    match words[..] {
        [] => {
            println!(
                "instructions per message of {BYTES} bytes, without the fabric's own (callgrind)"
            );
            for (way, lanes) in [("immediate", 1), ("immediate", 32), ("send", 1), ("send", 32)] {
                if let Err(why) = count(way, lanes, 4096 / usize::from(lanes)) {
                    eprintln!("{why}");
                    return ExitCode::FAILURE;
                }
            }
            ExitCode::SUCCESS
        }
        ["run", way, lanes, rounds] => {
            let (Some(immediate), Ok(lanes), Ok(rounds)) =
                (is_immediate(way), lanes.parse(), rounds.parse())
            else {
                eprintln!("usage: cost [run immediate|send LANES ROUNDS]");
                return ExitCode::from(2);
            };
            run(immediate, lanes, rounds);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: cost [run immediate|send LANES ROUNDS]");
            ExitCode::from(2)
        }
    }
}
