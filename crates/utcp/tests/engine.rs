//! What an engine does with many connections, when the network changes under it, and when it ends.

#[allow(dead_code, reason = "other tests use more of it")]
mod streams;
#[allow(dead_code, reason = "other tests use more of it")]
mod world;

use netacc_packet::Device;
use netacc_utcp::kernel::Kept;
use netacc_utcp::{Engine, NotBack, NotTaken, Over, Refusal};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use streams::{Random, bytes, check, device, now};
use world::{accept, address, connect, ip};

const PATIENCE: Duration = Duration::from_secs(20);

/// Sends back what comes, until it ends.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(got) => stream.write_all(&buffer[..got]).expect("the connection lives"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// SO_SNDBUF, behind a change.
fn send_buffer(of: &TcpStream, to: Option<i32>) -> i32 {
    let (fd, level, name) = (of.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF);
    if let Some(to) = to {
        // SAFETY: a live int.
        let set = unsafe { libc::setsockopt(fd, level, name, (&raw const to).cast(), 4) };
        assert_eq!(set, 0);
    }
    let (mut value, mut size) = (0, 4);
    // SAFETY: the kernel writes an int, and its size.
    let got = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut size) };
    assert_eq!(got, 0);
    value
}

/// One word there and back, in the kernel.
fn asks(socket: &TcpStream, word: &[u8]) {
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut stream, mut got) = (socket, vec![0; word.len()]);
    stream.write_all(word).expect("the connection lives");
    stream.read_exact(&mut got).expect("it answers");
    assert_eq!(got, word);
}

/// The same, out of it.
fn asks_out(engine: &mut Engine<Device>, index: u32, word: &[u8]) {
    let end = Instant::now() + PATIENCE;
    assert_eq!(engine.carried(index).unwrap().write(now(), word), word.len());
    engine.after(index, now());
    let mut got: Vec<u8> = Vec::new();
    while got.len() < word.len() {
        assert!(Instant::now() < end, "no answer: {:?}", engine.carried(index).unwrap().over());
        engine.turn(now());
        if engine.next_news().is_some() {
            assert_eq!(engine.next_news(), None, "there is one connection");
            let mut part = [0; 100];
            let n = engine.carried(index).unwrap().read(&mut part);
            got.extend(&part[..n]);
            engine.after(index, now());
        }
        thread::yield_now();
    }
    assert_eq!(got, word);
}

/// Turns the engine until it says of a connection that it is over.
fn told(engine: &mut Engine<Device>) -> (u32, Over) {
    let end = Instant::now() + PATIENCE;
    loop {
        engine.turn(now());
        if let Some(news) = engine.next_over() {
            return news;
        }
        assert!(Instant::now() < end, "nothing is said");
        thread::yield_now();
    }
}

/// One of many, whose peer sends everything back.
struct One {
    socket: TcpStream,
    seed: u64,
    /// While it is out.
    index: Option<u32>,
    written: u64,
    read: u64,
    unsent: Vec<u8>,
    takes: u32,
    /// When it was taken over or given back, and how much had been read by then.
    changed: (Instant, u64),
}

impl One {
    const TOTAL: u64 = 150_000;

    fn moves(&mut self, engine: &mut Engine<Device>, random: &mut Random) {
        let part = random.below(6000).min(Self::TOTAL - self.written);
        let mut next = bytes(self.seed, self.written, part);
        let mut buffer = [0; 6000];
        let got = if let Some(index) = self.index {
            let carried = engine.carried(index).unwrap();
            let got = carried.read(&mut buffer);
            self.written += carried.write(now(), &next) as u64;
            carried.on_waiting();
            engine.after(index, now());
            got
        } else {
            if self.unsent.is_empty() {
                self.unsent.append(&mut next);
                self.written += self.unsent.len() as u64;
            }
            let would_block = |failure: std::io::Error| {
                assert_eq!(failure.kind(), ErrorKind::WouldBlock, "{failure}");
                0
            };
            let put = self.socket.write(&self.unsent).unwrap_or_else(would_block);
            self.unsent.drain(..put);
            self.socket.read(&mut buffer).unwrap_or_else(would_block)
        };
        check(self.seed, self.read, &buffer[..got]);
        self.read += got as u64;
    }

    /// Not while nothing moves: who goes to and fro faster than its timeout, which begins anew each
    /// time, never sends again what is lost.
    fn may_change(&self) -> bool {
        let (at, read) = self.changed;
        self.read > read || at.elapsed() > Duration::from_secs(1)
    }

    fn changes(&mut self, engine: &mut Engine<Device>) {
        self.changed = (Instant::now(), self.read);
        if let Some(index) = self.index.take() {
            let given = engine.give_back(index, now()).unwrap().unwrap();
            assert_eq!(given.reason, None);
            assert!(given.unsent.is_empty(), "the kernel takes all of it");
        } else if self.unsent.is_empty() {
            match engine.take_over(self.socket.as_raw_fd(), false, now()) {
                Ok(index) => self.index = Some(index),
                Err(NotTaken::Refused(Refusal::Restless)) => return,
                Err(why) => panic!("{why:?}"),
            }
            self.takes += 1;
        }
    }
}

#[test]
fn many_connections_go_out_and_come_back_each_for_itself() {
    const COUNT: u32 = 40;
    let there = || {
        let echoes: Vec<_> = (0..COUNT)
            .map(|_| connect(address(true, false), 7100))
            .map(|stream| thread::spawn(move || echo(stream)))
            .collect();
        echoes.into_iter().for_each(|echo| echo.join().expect("it saw the end"));
    };
    let here = |interface| {
        let listener = TcpListener::bind((address(true, false), 7100)).unwrap();
        let accepted = (0..COUNT).map(|_| world::next(&listener));
        let mut ones: Vec<One> = accepted
            .zip(1..)
            .map(|(socket, seed)| {
                socket.set_nonblocking(true).unwrap();
                let (written, read, takes) = (0, 0, 0);
                let (index, unsent, changed) = (None, Vec::new(), (Instant::now(), 0));
                One { socket, seed, index, written, read, unsent, takes, changed }
            })
            .collect();
        // One that has less room in the kernel than will be written.
        let small = send_buffer(&ones[0].socket, Some(20_000));
        let Some(device) = device(interface, false) else { return };
        let mut engine = Engine::new(device, interface, COUNT, [1, 2]).unwrap();
        let (mut random, end) = (Random(9), Instant::now() + 3 * PATIENCE);
        while ones.iter().any(|one| one.read < One::TOTAL) {
            assert!(Instant::now() < end, "{:?}", ones.iter().map(|o| o.read).collect::<Vec<_>>());
            engine.turn(now());
            assert_eq!(engine.next_over(), None);
            for one in &mut ones {
                one.moves(&mut engine, &mut random);
                if random.below(5) == 0 && one.may_change() {
                    one.changes(&mut engine);
                }
            }
        }
        // All at once, with as much as there is room for.
        for one in &mut ones {
            while one.index.is_none() {
                one.changes(&mut engine);
            }
        }
        let full = engine.take_over(ones[0].socket.as_raw_fd(), false, now());
        assert_eq!(full, Err(NotTaken::Out));
        let mut seed = 100;
        for index in ones.iter().filter_map(|one| one.index) {
            seed += 1;
            let carried = engine.carried(index).unwrap();
            assert_eq!(carried.write(now(), &bytes(seed, 0, 200_000)), 200_000);
            engine.after(index, now());
        }
        // They are the kernel's, with everything that was written.
        drop(engine);
        assert_eq!(send_buffer(&ones[0].socket, None), small);
        for (one, seed) in ones.iter_mut().zip(101..) {
            one.socket.set_nonblocking(false).unwrap();
            one.socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut got = vec![0; 200_000];
            one.socket.read_exact(&mut got).expect("it comes back");
            check(seed, 0, &got);
            asks(&one.socket, b"and on");
        }
        let takes: u32 = ones.iter().map(|one| one.takes).sum();
        eprintln!("{takes} take-overs of {COUNT} connections");
        assert!(takes > 2 * COUNT, "{takes}");
    };
    world::run(here, there);
}

#[test]
fn what_changes_in_the_network_is_followed_or_is_the_kernels() {
    let (moved, moves) = mpsc::channel();
    let there = move || {
        let stream = connect(address(true, false), 7101);
        let copy = stream.try_clone().unwrap();
        let echoes = thread::spawn(move || echo(copy));
        if let Ok(address) = moves.recv() {
            let to: &str = address;
            assert!(ip(&format!("link set utcp1 address {to}")));
        }
        echoes.join().expect("it saw the end");
    };
    let here = move |interface| {
        let socket = accept(address(true, false), 7101);
        asks(&socket, b"kernel");
        let Some(device) = device(interface, false) else { return };
        let mut engine = Engine::new(device, interface, 4, [1, 2]).unwrap();
        let take = |engine: &mut Engine<Device>| {
            let index = engine.take_over(socket.as_raw_fd(), true, now()).unwrap();
            asks_out(engine, index, b"out");
            index
        };
        // A smaller MTU is the kernel's to find its way with.
        let index = take(&mut engine);
        assert!(ip("link set utcp0 mtu 1300"));
        assert_eq!(told(&mut engine), (index, Over::Rerouted));
        let given = engine.give_back(index, now()).unwrap().unwrap();
        assert_eq!(given.reason, Some(Over::Rerouted));
        asks(&socket, &[1; 5000]);
        // So is a device that is down: but not before the kernel has a way.
        let index = take(&mut engine);
        assert!(ip("link set utcp0 down"));
        assert_eq!(told(&mut engine).0, index);
        for _ in 0..3 {
            let back = engine.give_back(index, now()).unwrap();
            assert!(matches!(back, Err(NotBack::NoWay(_))), "{back:?}");
            assert_eq!(told(&mut engine).0, index);
        }
        engine.carried(index).unwrap().write(now(), b"meanwhile");
        engine.after(index, now());
        assert!(ip("link set utcp0 up"));
        let end = Instant::now() + PATIENCE;
        while engine.give_back(index, now()).unwrap().is_err() {
            assert!(Instant::now() < end, "the kernel has no way");
            assert_eq!(told(&mut engine).0, index);
        }
        let (mut got, mut stream) = ([0; 9], &socket);
        stream.read_exact(&mut got).expect("it was written, and comes back");
        assert_eq!(&got, b"meanwhile");
        // The peer's new hardware address is used as soon as the kernel knows it.
        let index = take(&mut engine);
        let new = "02:00:00:00:00:77";
        moved.send(new).unwrap();
        thread::sleep(Duration::from_millis(100));
        let peer = address(false, false);
        assert!(ip(&format!("neigh replace {peer} lladdr {new} dev utcp0 nud reachable")));
        asks_out(&mut engine, index, b"there");
        assert_eq!(engine.next_over(), None);
    };
    world::run(here, there);
}

#[test]
fn an_end_that_comes_between_examination_and_freeze_is_the_kernels() {
    let (go, goes) = mpsc::channel::<()>();
    let there = move || {
        let mut stream = connect(address(true, false), 7102);
        goes.recv().unwrap();
        stream.write_all(b"last").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"answer");
    };
    let here = move |interface| {
        let mut socket = accept(address(true, false), 7102);
        let examined = device(interface, false).map(|_| Kept::examine(socket.as_raw_fd()).unwrap());
        go.send(()).unwrap();
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one live pollfd.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 20_000) }, 1);
        if let Some(mut kept) = examined {
            assert_eq!(kept.freeze().unwrap_err(), Refusal::State);
        }
        let mut got = Vec::new();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"last");
        socket.write_all(b"answer").unwrap();
    };
    world::run(here, there);
}

#[test]
fn a_child_that_was_forked_gives_nothing_back() {
    let there = || echo(connect(address(true, false), 7103));
    let here = |interface| {
        let socket = accept(address(true, false), 7103);
        let Some(device) = device(interface, false) else { return };
        let mut engine = Engine::new(device, interface, 4, [1, 2]).unwrap();
        let index = engine.take_over(socket.as_raw_fd(), true, now()).unwrap();
        asks_out(&mut engine, index, b"before");
        // SAFETY: the child frees memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(engine);
            // SAFETY: it ends this process.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes the live int.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        asks_out(&mut engine, index, b"after");
        assert_eq!(engine.give_back(index, now()).unwrap().unwrap().reason, None);
        asks(&socket, b"in the kernel");
    };
    world::run(here, there);
}

/// Its program has closed it, and had bytes for it that it could not be given.
#[test]
fn a_stream_that_is_cut_short_does_not_end_as_a_whole_one() {
    for (port, cut) in [(7105, false), (7106, true)] {
        let there = move || {
            let mut stream = connect(address(true, false), port);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut got = Vec::new();
            let end = stream.read_to_end(&mut got).map_err(|e| e.kind());
            if !got.is_empty() {
                let ends = if cut { Err(ErrorKind::ConnectionReset) } else { Ok(3) };
                assert_eq!((end, &got[..]), (ends, &b"out"[..]));
            }
        };
        let here = move |interface| {
            let socket = accept(address(true, false), port);
            let Some(device) = device(interface, false) else { return };
            let mut engine = Engine::new(device, interface, 4, [1, 2]).unwrap();
            let index = engine.take_over(socket.as_raw_fd(), true, now()).unwrap();
            drop(socket);
            engine.carried(index).unwrap().write(now(), b"out");
            engine.after(index, now());
            let until = now() + 200_000_000;
            while now() < until {
                engine.turn(now());
            }
            engine.carried(index).unwrap().is_abandoned(cut);
            engine.give_back(index, now()).unwrap().unwrap();
        };
        world::run(here, there);
    }
}

/// The process that has a connection out, on its standard input, when it is killed.
#[test]
#[ignore = "another test runs it, and kills it"]
fn victim() {
    let Some(interface) = std::env::var("NETACC_UTCP_VICTIM").ok().and_then(|n| n.parse().ok())
    else {
        return;
    };
    // SAFETY: the descriptor is this test's own, as nobody else reads the standard input.
    let socket = TcpStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let device = device(interface, false).expect("the other test has had one");
    let mut engine = Engine::new(device, interface, 4, [1, 2]).unwrap();
    let index = engine.take_over(socket.as_raw_fd(), true, now()).unwrap();
    engine.carried(index).unwrap().write(now(), b"out");
    loop {
        engine.after(index, now());
        engine.turn(now());
        thread::yield_now();
    }
}

fn victim_with(socket: TcpStream, interface: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["victim", "--exact", "--ignored", "--nocapture"]);
    command.env("NETACC_UTCP_VICTIM", interface.to_string());
    command.stdin(OwnedFd::from(socket)).stdout(Stdio::null()).spawn().unwrap()
}

/// A peer that sends is reset, one that only reads hears nothing: so there is a keeper.
#[test]
fn without_a_keeper_a_killed_process_leaves_its_peers_alone() {
    let (dead, died) = mpsc::channel();
    let (tell_out, is_out) = mpsc::channel();
    let there = move || {
        let mut stream = connect(address(true, false), 7104);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = [0; 3];
        if stream.read_exact(&mut got).is_err() {
            return;
        }
        tell_out.send(()).unwrap();
        died.recv().expect("it is killed");
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let silence = stream.read(&mut got).unwrap_err();
        assert_eq!(silence.kind(), ErrorKind::WouldBlock, "{silence}");
        stream.write_all(b"are you there?").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut got).unwrap_err().kind(), ErrorKind::ConnectionReset);
    };
    let here = move |interface| {
        let socket = accept(address(true, false), 7104);
        if device(interface, false).is_none() {
            return;
        }
        let mut victim = victim_with(socket, interface);
        is_out.recv().expect("it has read what was written outside of the kernel");
        victim.kill().unwrap();
        victim.wait().unwrap();
        dead.send(()).unwrap();
    };
    world::run(here, there);
}
