//! Processes that are killed with a connection out, at any moment of it, while a keeper lives: what
//! their peers see is what a process leaves that is killed with its connection in the kernel.
//!
//! `NETACC_UTCP_TIMES` says how many times more rounds there are.

#[allow(dead_code, reason = "other tests use more of it")]
mod streams;
#[allow(dead_code, reason = "other tests use more of it")]
mod world;

use netacc_packet::rights;
use netacc_packet::sys::Fd;
use netacc_utcp::{Engine, NotTaken, Over, Refusal};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use streams::{Random, bytes, check, device, now};
use world::{accept, address, connect};

const PATIENCE: Duration = Duration::from_secs(20);
/// What the processes below get: the connection, and an end of the link between both.
const SOCKET: i32 = 0;
const LINK: i32 = 3;
/// Where the victim says how much it has written.
const TOLD: i32 = 4;

fn times() -> u64 {
    std::env::var("NETACC_UTCP_TIMES").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// This program again, as one of the processes below, with these descriptors from [`LINK`] on.
fn process(name: &str, socket: Option<TcpStream>, fds: &[i32], says: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture"]).env("NETACC_UTCP_PROCESS", says);
    command.stdin(socket.map_or_else(Stdio::null, |socket| OwnedFd::from(socket).into()));
    let fds = fds.to_vec();
    let give = move || {
        // First out of the way, so that none is written over.
        let high: Vec<i32> = fds
            .iter()
            // SAFETY: integers only.
            .map(|&fd| unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 100) })
            .collect();
        for (&fd, to) in high.iter().zip(LINK..) {
            // SAFETY: integers only; the numbers are the child's own.
            unsafe { libc::dup2(fd, to) };
        }
        Ok(())
    };
    // SAFETY: the child is alone with its memory, and glibc's allocator works in it.
    unsafe { command.pre_exec(give) };
    command.stdout(Stdio::null()).spawn().unwrap()
}

fn says() -> Option<Vec<u64>> {
    let text = std::env::var("NETACC_UTCP_PROCESS").ok()?;
    Some(text.split(' ').map(|word| word.parse().unwrap()).collect())
}

#[test]
#[ignore = "another test runs it"]
fn keeper() {
    if says().is_some() {
        netacc_utcp::keeper::run(Fd::new(LINK as isize).unwrap());
    }
}

/// Writes a stream without end, with the connection out and in, and reads what comes.
#[test]
#[ignore = "another test runs it, and kills it"]
fn victim() {
    let Some(said) = says() else { return };
    let [interface, seed, stays] = said[..] else { panic!("{said:?}") };
    let interface = u32::try_from(interface).unwrap();
    // SAFETY: the descriptors are this test's own: nobody else reads the standard input.
    let (mut socket, told) =
        unsafe { (TcpStream::from(OwnedFd::from_raw_fd(SOCKET)), File::from_raw_fd(TOLD)) };
    socket.set_nonblocking(true).unwrap();
    let device = device(interface, false).expect("the other test has had one");
    let mut engine = Engine::new(device, interface, 4, [1, 2]).unwrap();
    engine.keep(Fd::new(LINK as isize).unwrap()).expect("the keeper answers");
    let (mut random, mut written, mut read) = (Random(seed + 5), 0, 0);
    let mut buffer = vec![0; 30_000];
    let mut index = None;
    loop {
        let next = bytes(seed, written, random.below(20_000));
        let would_block = |failure: std::io::Error| {
            assert_eq!(failure.kind(), ErrorKind::WouldBlock, "{failure}");
            0
        };
        let (put, got) = if let Some(index) = index {
            engine.turn(now());
            let carried = engine.carried(index).unwrap();
            let put = carried.write(now(), &next);
            let got = carried.read(&mut buffer);
            engine.after(index, now());
            (put, got)
        } else {
            let put = socket.write(&next).unwrap_or_else(would_block);
            (put, socket.read(&mut buffer).unwrap_or_else(would_block))
        };
        written += put as u64;
        told.write_all_at(&written.to_ne_bytes(), 0).unwrap();
        check(!seed, read, &buffer[..got]);
        read += got as u64;
        if random.below(stays) == 0 {
            match index.take() {
                Some(index) => {
                    let given = engine.give_back(index, now()).unwrap().unwrap();
                    assert!(given.unsent.is_empty() && given.reason.is_none(), "{given:?}");
                }
                None => match engine.take_over(socket.as_raw_fd(), false, now()) {
                    Ok(number) => index = Some(number),
                    Err(NotTaken::Refused(Refusal::Restless)) => {}
                    Err(why) => panic!("{why:?}"),
                },
            }
        }
        thread::yield_now();
    }
}

/// Kills so many victims, each at a random moment behind its first bytes, and lets `watch` say what
/// its peer sees from then on: the stream, its seed, how much has been read, and how much was
/// written at least.
fn kill(rounds: u64, port: u16, stays: u64, watch: fn(TcpStream, u64, u64, u64)) {
    let (dead, mut died) = mpsc::channel();
    let (tell_moves, moves) = mpsc::channel();
    let there = move || {
        for seed in 1..=rounds {
            let mut stream = connect(address(true, false), port);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut first = [0; 100];
            if stream.read_exact(&mut first).is_err() {
                return;
            }
            check(seed, 0, &first);
            tell_moves.send(()).unwrap();
            let reads = stream.try_clone().unwrap();
            let reader = thread::spawn(move || {
                // What comes until it is killed, so that the stream flows.
                let (mut stream, mut at, mut buffer) = (reads, 100, vec![0; 60_000]);
                stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                loop {
                    match stream.read(&mut buffer) {
                        Ok(got) => {
                            check(seed, at, &buffer[..got]);
                            at += got as u64;
                        }
                        Err(failure) => assert_eq!(failure.kind(), ErrorKind::WouldBlock),
                    }
                    if let Ok(written) = died.try_recv() {
                        return (at, written, died);
                    }
                }
            });
            let (at, written, back) = reader.join().unwrap();
            died = back;
            watch(stream, seed, at, written);
        }
    };
    let here = move |interface| {
        let listener = TcpListener::bind((address(true, false), port)).unwrap();
        let mut random = Random(77);
        for seed in 1..=rounds {
            let socket = world::next(&listener);
            if device(interface, false).is_none() {
                return;
            }
            let [own, other] = rights::link().unwrap();
            let told = tempfile();
            let mut keeper = process("keeper", None, &[other.number()], "1");
            drop(other);
            let fds = [own.number(), told.as_raw_fd()];
            let says = format!("{interface} {seed} {stays}");
            let mut victim = process("victim", Some(socket), &fds, &says);
            drop(own);
            moves.recv().expect("the stream flows");
            thread::sleep(Duration::from_micros(random.below(100_000)));
            victim.kill().unwrap();
            assert_eq!(victim.wait().unwrap().signal(), Some(libc::SIGKILL), "it lived till then");
            let mut written = [0; 8];
            told.read_exact_at(&mut written, 0).unwrap();
            dead.send(u64::from_ne_bytes(written)).unwrap();
            // It ends when there is nothing left to give back.
            let end = Instant::now() + PATIENCE;
            while keeper.try_wait().unwrap().is_none() {
                assert!(Instant::now() < end, "the keeper does not end");
                thread::sleep(Duration::from_millis(2));
            }
        }
    };
    world::run(here, there);
}

fn tempfile() -> File {
    // SAFETY: the name is a string that ends; the descriptor is new.
    unsafe { File::from_raw_fd(libc::memfd_create(c"told".as_ptr(), libc::MFD_CLOEXEC)) }
}

/// Everything that was written, and then a clean end: the process has left nothing unread.
fn all_and_an_end(mut stream: TcpStream, seed: u64, mut at: u64, written: u64) {
    // (What was lost comes by a timeout of the kernel's, which doubles; on a busy machine it, and
    // the keeper, take their time.)
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = vec![0; 60_000];
    loop {
        let got = stream.read(&mut buffer).unwrap_or_else(|failure| {
            panic!("round {seed}: {failure}; {at} read, {written} written")
        });
        if got == 0 {
            break;
        }
        check(seed, at, &buffer[..got]);
        at += got as u64;
    }
    assert!(at >= written, "round {seed}: {at} of {written} have come");
}

#[test]
fn a_peer_that_reads_gets_all_and_an_end() {
    kill(6 * times(), 7200, 20, all_and_an_end);
}

#[test]
fn also_where_it_goes_out_and_in_all_the_time() {
    kill(6 * times(), 7201, 1, all_and_an_end);
}

/// The end of the stream, or a reset, which may take bytes along, as nobody reads any more.
fn an_end(mut stream: TcpStream, seed: u64, mut at: u64, _: u64) {
    let (end, mut sent, mut buffer) = (Instant::now() + PATIENCE, 0, vec![0; 60_000]);
    stream.set_nonblocking(true).unwrap();
    let (mut ended, mut reset) = (false, false);
    while !reset {
        assert!(Instant::now() < end, "round {seed}: no reset; {sent} sent; ended: {ended}");
        match stream.write(&bytes(!seed, sent, 1000)) {
            Ok(put) => sent += put as u64,
            Err(failure) if failure.kind() == ErrorKind::WouldBlock => {}
            Err(_) => reset = true,
        }
        match stream.read(&mut buffer) {
            Ok(0) => ended = true,
            Ok(got) => {
                check(seed, at, &buffer[..got]);
                at += got as u64;
            }
            Err(failure) if failure.kind() == ErrorKind::WouldBlock => {}
            Err(_) => reset = true,
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_peer_that_sends_is_reset() {
    kill(4 * times(), 7202, 20, an_end);
}

#[test]
fn without_its_keeper_nothing_stays_out() {
    let there = || {
        let mut stream = connect(address(true, false), 7203);
        let mut got = [0; 4];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"back");
    };
    let here = |interface| {
        let mut socket = accept(address(true, false), 7203);
        let Some(device) = device(interface, false) else {
            socket.write_all(b"back").unwrap();
            return;
        };
        let mut engine = Engine::new(device, interface, 4, [1, 2]).unwrap();
        let [own, other] = rights::link().unwrap();
        let mut keeper = process("keeper", None, &[other.number()], "1");
        drop(other);
        engine.keep(own).unwrap();
        let index = engine.take_over(socket.as_raw_fd(), true, now()).unwrap();
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            engine.turn(now());
            match engine.next_over() {
                Some(news) => break assert_eq!(news, (index, Over::NotKept)),
                None => assert!(Instant::now() < end, "nothing is said"),
            }
        }
        engine.give_back(index, now()).unwrap().unwrap();
        let again = engine.take_over(socket.as_raw_fd(), true, now());
        assert!(matches!(again, Err(NotTaken::NoKeeper(_))), "{again:?}");
        socket.write_all(b"back").unwrap();
    };
    world::run(here, there);
}
