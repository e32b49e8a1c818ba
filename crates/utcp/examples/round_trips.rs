//! A ping-pong of 64 bytes over a pair of virtual devices, a CPU for each end. The client is plain
//! kernel TCP, and times each round trip; the server is the kernel (asleep, or looking all the
//! time), or a connection that is out. Needs root.
//!
//!     cargo run --release -p netacc-utcp --example round_trips [ROUND TRIPS]

#![allow(clippy::print_stdout, reason = "it is a program that measures")]

#[path = "../tests/world/mod.rs"]
mod world;

use netacc_packet::{Device, route};
use netacc_utcp::Engine;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Instant;
use world::{accept, address, connect};

const SIZE: usize = 64;

fn on_cpu(cpu: usize) {
    // SAFETY: a cpu_set_t is bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the CPU's number is far below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the kernel reads the live set. (Where it is refused, any CPU does.)
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}

fn client(mut stream: TcpStream, count: usize, spins: bool) -> Vec<u64> {
    stream.set_nodelay(true).expect("an option");
    stream.set_nonblocking(spins).expect("an option");
    let mut times = Vec::with_capacity(count);
    let (question, mut answer) = ([7; SIZE], [0; SIZE]);
    for _ in 0..count {
        let began = Instant::now();
        stream.write_all(&question).expect("the connection lives");
        let mut got = 0;
        while got < SIZE {
            match stream.read(&mut answer[got..]) {
                Ok(n) => {
                    assert!(n > 0, "an end");
                    got += n;
                }
                Err(failure) => assert_eq!(failure.kind(), ErrorKind::WouldBlock),
            }
        }
        times.push(began.elapsed().as_nanos() as u64);
    }
    times
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Server {
    KernelAsleep,
    KernelLooks,
    Out,
}

fn serve(mut stream: TcpStream, how: Server, interface: u32) {
    stream.set_nodelay(true).expect("an option");
    let mut buffer = [0; SIZE];
    if how != Server::Out {
        stream.set_nonblocking(how == Server::KernelLooks).expect("an option");
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(got) => stream.write_all(&buffer[..got]).expect("the connection lives"),
                Err(failure) if failure.kind() == ErrorKind::WouldBlock => {}
                Err(failure) => panic!("{failure}"),
            }
        }
    }
    let peer = stream.peer_addr().expect("it is connected").ip();
    let own = stream.local_addr().expect("it is connected").ip();
    let route = route::find(own, peer).expect("a neighbour");
    let device = Device::open(interface, route.own, 16).expect("root, and Linux 6.6");
    let mut engine = Engine::new(device, interface, 16, [1, 2]).expect("memory");
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64 + 1;
    let index = engine.take_over(stream.as_raw_fd(), true, now()).expect("an ordinary connection");
    loop {
        let time = now();
        if !engine.turn(time) {
            std::hint::spin_loop();
        }
        let carried = engine.carried(index).expect("it is out");
        let got = carried.read(&mut buffer);
        if got > 0 {
            carried.write(time, &buffer[..got]);
            carried.on_waiting();
            engine.after(index, time);
        } else if carried.connection().over().is_some() {
            engine.give_back(index, time).expect("it was out").expect("it is the kernel's");
            return;
        }
    }
}

fn main() {
    let count = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(20_000);
    for spins in [false, true] {
        for how in [Server::KernelAsleep, Server::KernelLooks, Server::Out] {
            let there = move || {
                on_cpu(1);
                let stream = connect(address(true, false), 7000);
                let mut times = client(stream, count, spins);
                times.sort_unstable();
                let at = |part: usize| times[times.len() * part / 1000] as f64 / 1000.0;
                let client = if spins { "looks" } else { "sleeps" };
                println!(
                    "client {client:6}  server {:14}  p50 {:6.1} µs  p99 {:6.1} µs",
                    format!("{how:?}"),
                    at(500),
                    at(990)
                );
            };
            let here = move |interface| {
                on_cpu(0);
                serve(accept(address(true, false), 7000), how, interface);
            };
            world::run(here, there);
        }
    }
}
