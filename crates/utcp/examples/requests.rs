//! What a server's requests cost on a pair of virtual devices, a CPU for each end: redis-benchmark
//! is the client, and plain kernel TCP. The server answers every command of Redis' protocol with
//! the same three bytes; it sleeps in epoll_wait, or looks all the time, or has its connections out
//! of the kernel. So it says what TCP costs, and nothing of Redis itself. Needs root.
//!
//!     cargo run --release -p netacc-utcp --example requests [ROUNDS [REQUESTS]]

#![allow(clippy::print_stdout, reason = "it is a program that measures")]

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/world/mod.rs"]
mod world;

use netacc_packet::{Device, route};
use netacc_utcp::Engine;
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use world::address;

const PORT: u16 = 6399;
const ANSWER: &[u8] = b"$3\r\nabc\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Server {
    Asleep,
    Looks,
    Out,
}

fn on_cpu(cpu: usize) {
    // SAFETY: a cpu_set_t is bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the CPU's number is far below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the kernel reads the live set. (Where it is refused, any CPU does.)
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}

/// A connection's unfinished command.
#[derive(Default)]
struct Commands {
    lines: u32,
}

impl Commands {
    /// How many commands end in these bytes: *N, and then N times two lines.
    fn end_in(&mut self, bytes: &[u8]) -> usize {
        let mut ended = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.lines == 0 {
                let count = line.get(1..).unwrap_or(&[]).trim_ascii_end();
                let count = std::str::from_utf8(count).ok().and_then(|n| n.parse::<u32>().ok());
                self.lines = 1 + 2 * count.expect("redis-benchmark sends whole lines");
            }
            self.lines -= 1;
            ended += usize::from(self.lines == 0);
        }
        ended
    }
}

/// Reads once, and answers. False: it has ended.
fn answer(stream: &mut TcpStream, commands: &mut Commands) -> bool {
    let mut bytes = [0; 16 << 10];
    match stream.read(&mut bytes) {
        Ok(0) => false,
        Ok(got) => {
            let count = commands.end_in(&bytes[..got]);
            stream.write_all(&ANSWER.repeat(count)).is_ok()
        }
        Err(failure) => failure.kind() == ErrorKind::WouldBlock,
    }
}

fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let stream = listener.accept().ok()?.0;
    stream.set_nodelay(true).expect("an option");
    stream.set_nonblocking(true).expect("an option");
    Some(stream)
}

fn in_kernel(listener: &TcpListener, looks: bool, ends: &AtomicBool) {
    // SAFETY: a new descriptor.
    let set = unsafe { libc::epoll_create1(0) };
    let add = |fd: i32| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: both are live descriptors, and the event is live.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    };
    add(listener.as_raw_fd());
    let mut streams: HashMap<i32, (TcpStream, Commands)> = HashMap::new();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    while !ends.load(SeqCst) {
        let wait = if looks { 0 } else { 10 };
        // SAFETY: room for that many events.
        let count = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 64, wait) };
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
            let fd = event.u64 as i32;
            if fd == listener.as_raw_fd() {
                if let Some(stream) = accept(listener) {
                    add(stream.as_raw_fd());
                    streams.insert(stream.as_raw_fd(), (stream, Commands::default()));
                }
            } else if let Some((stream, commands)) = streams.get_mut(&fd)
                && !answer(stream, commands)
            {
                streams.remove(&fd);
            }
        }
    }
    // SAFETY: the descriptor is this function's own.
    unsafe { libc::close(set) };
}

fn out(listener: &TcpListener, interface: u32, ends: &AtomicBool) {
    let route = route::find(address(true, false), address(false, false)).expect("a neighbour");
    let device = Device::open(interface, route.own, 1024).expect("root, and Linux 6.6");
    let mut engine = Engine::new(device, interface, 1024, [1, 2]).expect("memory");
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64 + 1;
    let mut ones: HashMap<u32, (TcpStream, Commands)> = HashMap::new();
    // (Those that could not be taken over.)
    let mut others: Vec<(TcpStream, Commands)> = Vec::new();
    let (mut bytes, mut turns) = ([0; 16 << 10], 0_u32);
    while !ends.load(SeqCst) {
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(64)
            && let Some(stream) = accept(listener)
        {
            let taken = engine.take_over(stream.as_raw_fd(), false, now());
            let (mut stream, mut commands) = (stream, Commands::default());
            if let Ok(index) = taken {
                // What came before that.
                let carried = engine.carried(index).expect("it is out");
                let got = carried.read(&mut bytes);
                carried.write(now(), &ANSWER.repeat(commands.end_in(&bytes[..got])));
                engine.after(index, now());
                ones.insert(index, (stream, commands));
            } else if answer(&mut stream, &mut commands) {
                others.push((stream, commands));
            }
        }
        let time = now();
        engine.turn(time);
        while let Some(index) = engine.next_news() {
            let Some((_, commands)) = ones.get_mut(&index) else { continue };
            let carried = engine.carried(index).expect("it is out");
            let got = carried.read(&mut bytes);
            if got > 0 {
                carried.write(time, &ANSWER.repeat(commands.end_in(&bytes[..got])));
                engine.after(index, time);
            }
        }
        while let Some((index, _)) = engine.next_over() {
            let _ = engine.give_back(index, now());
            ones.remove(&index);
        }
        others.retain_mut(|(stream, commands)| answer(stream, commands));
    }
}

fn benchmark(clients: &str, requests: &str) -> Option<f64> {
    let to = address(true, false).to_string();
    let port = PORT.to_string();
    let arguments = ["-c", "1", "redis-benchmark", "-h", &to, "-p", &port, "-t", "get"];
    let more = ["-c", clients, "-n", requests, "--csv"];
    let out = Command::new("taskset").args(arguments).args(more).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("\"GET"))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

/// Requests each second.
fn measure(how: Server, clients: &'static str, requests: String) -> Option<f64> {
    let ends = Arc::new(AtomicBool::new(false));
    let end = ends.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let there = move || {
        std::thread::sleep(Duration::from_millis(100));
        // (Also so that both ends know each other's hardware address.)
        tell.send(benchmark(clients, &requests)).expect("it is waited for");
        end.store(true, SeqCst);
    };
    let here = move |interface| {
        on_cpu(0);
        let listener = TcpListener::bind((address(true, false), PORT)).expect("a port");
        listener.set_nonblocking(true).expect("an option");
        // Until the first comes: who asks for routes needs a neighbour.
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 10_000) };
        match how {
            Server::Out => out(&listener, interface, &ends),
            how => in_kernel(&listener, how == Server::Looks, &ends),
        }
    };
    world::run(here, there);
    told.recv().ok().flatten()
}

fn main() {
    let argument = |n, default| std::env::args().nth(n).unwrap_or_else(|| String::from(default));
    let rounds: u32 = argument(1, "5").parse().expect("a number of rounds");
    let all: u64 = argument(2, "200000").parse().expect("a number of requests");
    for (clients, requests) in [("1", all / 5), ("50", all)] {
        let mut results: HashMap<Server, Vec<f64>> = HashMap::new();
        for _ in 0..rounds {
            for how in [Server::Asleep, Server::Looks, Server::Out] {
                let result = measure(how, clients, requests.to_string());
                results.entry(how).or_default().extend(result);
            }
        }
        let mut base = None;
        for how in [Server::Asleep, Server::Looks, Server::Out] {
            let mut all = results.remove(&how).unwrap_or_default();
            all.sort_by(f64::total_cmp);
            let Some(&median) = all.get(all.len() / 2) else { continue };
            let times = median / *base.get_or_insert(median);
            println!("{clients:>3} clients  {how:?}  {median:.0} a second  {times:.2}x  {all:.0?}");
        }
    }
}
