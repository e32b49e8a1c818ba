//! Ends that leave the fast path for good, at any moment, with bytes in flight both ways.
//!
//! Two processes have several connections at a time, whose carriers have hardly any room. Each end
//! has a *plan*, made from the seed: how much it sends, when its reader pauses until the peer has
//! no room left, when its writer waits until the peer has everything, and when it leaves: by an
//! option, by a fork, by passing the descriptor on, by exec. Half of the connections are *staged*:
//! the leader stops reading until the follower is full, leaves, and reads on only after the
//! follower, which has to send all of that again, has shut down, closed, duplicated, forked or left
//! too.
//!
//! Nothing depends on time: who waits, waits for what another one has noted on the *board*, shared
//! memory that outlives each of the processes, and is rung by a *bell*, an eventfd. In plain TCP
//! none of this can fail; with the library a connection that is handed on with bytes that cannot
//! follow may be broken off, and that must be seen as an error.

mod board;
mod end;
mod plan;
mod runner;

pub use runner::{Campaign, conduct};

use crate::ctx::{recv_exact, send_all};
use crate::sys::{self, Addr, Fd};
use board::{Board, Cell, Wire};
use end::{End, FAILED_CHILDREN, Process};
use plan::{Half, Plan};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// Connections of a batch.
const CONNECTIONS: usize = 8;
/// Processes that take connections.
const TAKERS: usize = 2;
/// The largest operation.
const MAX: usize = 12_000;
/// The NACC_SOR_MSG_SIZE of the processes: as small as can be.
const RING_UNIT: usize = 4096;
/// What a ring holds.
const RING: usize = 16 * RING_UNIT;

/// The bells of one end, out of all.
fn bells_of(all: &[Fd], index: usize, side: usize) -> [Fd; 4] {
    let first = |side: usize| (index % CONNECTIONS * 2 + side) * 2;
    let (mine, theirs) = (first(side), first(1 - side));
    [all[mine], all[mine + 1], all[theirs], all[theirs + 1]]
}

const CONTROL: Fd = 0;

fn hear() -> String {
    let mut buf = [0; 200];
    let n = sys::recv(CONTROL, &mut buf, 0).unwrap_or(0);
    String::from_utf8_lossy(&buf[..n]).into_owned()
}

fn say(text: &str) {
    let _ = sys::send(CONTROL, text.as_bytes(), libc::MSG_NOSIGNAL);
}

fn number(args: &[&str], i: usize) -> u64 {
    args.get(i).and_then(|a| a.parse().ok()).unwrap_or(0)
}

/// `leave SEED BOARD CONNECTIONS FIRST BATCHES ONLY listen | dial ADDR`: one of the two processes.
pub fn end(args: &[&str]) -> ExitCode {
    sys::ignore_signal(libc::SIGPIPE);
    let (seed, total) = (number(args, 0), number(args, 2) as usize);
    let (first, batches) = (number(args, 3) as usize, number(args, 4) as usize);
    let board_path = args[1].to_string();
    let only = args[5].parse::<usize>().ok();
    let peer = args.get(7).and_then(|a| Addr::parse(a));
    let side = usize::from(peer.is_none());
    let (_, fds) = sys::recv_fds(CONTROL).expect("descriptors");
    for &fd in &fds {
        let _ = sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
    }
    let (bells, takers) = fds.split_at(4 * CONNECTIONS);
    let process: &'static Process = Box::leak(Box::new(Process {
        seed,
        board: Box::leak(Box::new(Board::map(&board_path, total))),
        board_path,
        lock: Mutex::new(()),
        fds: [const { AtomicI32::new(-1) }; CONNECTIONS],
        takers: [takers[0], takers[1]],
    }));
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    let listener = peer.is_none().then(|| {
        let fd = sys::socket(libc::AF_INET, kind, 0).expect("socket");
        narrow(fd, 2048);
        sys::bind(fd, sys::home()).expect("bind");
        sys::listen(fd, 50).expect("listen");
        say(&format!("addr {}", sys::getsockname(fd).expect("name").text()));
        fd
    });
    for batch in first..first + batches {
        let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|i| (i, batch * CONNECTIONS + i))
            .filter(|&(_, index)| only.is_none_or(|only| only == index))
            .map(|(i, index)| {
                let [send_buffer, receive_buffer] = Plan::new(seed, index).buffers;
                let fd = match (listener, peer) {
                    (Some(listener), _) => {
                        sys::accept4(listener, libc::SOCK_CLOEXEC).expect("accept")
                    }
                    (_, Some(addr)) => {
                        let fd = sys::socket(addr.family(), kind, 0).expect("socket");
                        narrow(fd, receive_buffer);
                        sys::connect(fd, addr).expect("connect");
                        fd
                    }
                    _ => unreachable!("one or the other"),
                };
                sys::setopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, send_buffer).expect("SO_SNDBUF");
                process.fds[i].store(fd, SeqCst);
                let wire =
                    Wire { board: process.board, index, side, bells: bells_of(bells, index, side) };
                wire.note(Cell::Port, sys::getsockname(fd).map_or(0, Addr::port).into());
                (fd, wire)
            })
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(fd, wire)| std::thread::spawn(move || connection(process, fd, wire, stop)))
            .collect();
        say("warm");
        if hear() != "go" {
            return ExitCode::FAILURE;
        }
        stop.store(true, SeqCst);
        for thread in threads {
            thread.join().expect("thread");
        }
        say("done");
        if hear() != "next" {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::from(u8::from(FAILED_CHILDREN.load(SeqCst) > 0))
}

/// Little room, and segments that are smaller still: with larger ones the kernel waits for its
/// timers.
fn narrow(fd: Fd, receive_buffer: i32) {
    sys::setopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, receive_buffer).expect("SO_RCVBUF");
    sys::setopt(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 536).expect("TCP_MAXSEG");
}

/// One connection of this process, from its warm-up to its end.
fn connection(process: &'static Process, fd: Fd, wire: Wire, stop: &AtomicBool) {
    warm(fd, wire.side == 0, stop);
    let plan = Plan::new(process.seed, wire.index);
    let polls = plan.sides[wire.side].polls;
    let place = wire.index % CONNECTIONS;
    if polls {
        let both = [Half::Read, Half::Write];
        let mut end = End::new(Some(process), wire, process.seed, fd, &both, 1);
        end.go_on(false);
        end.close();
        return;
    }
    let writer = std::thread::spawn(move || {
        let half = [Half::Write];
        End::new(Some(process), wire, process.seed, fd, &half, 2).go_on(false);
    });
    let half = [Half::Read];
    End::new(Some(process), wire, process.seed, fd, &half, 3).go_on(false);
    writer.join().expect("thread");
    let guard = process.locked();
    process.fds[place].store(-1, SeqCst);
    let _ = sys::close(fd);
    drop(guard);
    wire.note(Cell::Closed, 1);
    wire.ring_peer();
}

/// Small exchanges until the runner has seen the connection on the fast path.
fn warm(fd: Fd, dial: bool, stop: &AtomicBool) {
    loop {
        if dial {
            let last = stop.load(SeqCst);
            send_all(fd, &[u8::from(last); 64]);
            recv_exact(fd, 64);
            if last {
                return;
            }
            sys::sleep_ms(1);
        } else {
            let got = recv_exact(fd, 64);
            send_all(fd, &got);
            if got[0] != 0 {
                return;
            }
        }
    }
}

fn halves_of(word: &str) -> &'static [Half] {
    match word {
        "both" => &[Half::Read, Half::Write],
        "read" => &[Half::Read],
        _ => &[Half::Write],
    }
}

/// `leave-plan SEED BATCH`: what the connections of a batch are to do.
pub fn show(args: &[&str]) -> ExitCode {
    let batch = number(args, 1) as usize;
    for index in batch * CONNECTIONS..(batch + 1) * CONNECTIONS {
        println!("{index}: {:?}", Plan::new(number(args, 0), index));
    }
    ExitCode::SUCCESS
}

/// What was handed on: goes on with it, with no plan but to come to the end.
fn carry_on(board: &'static Board, seed: u64, order: &[&str], fd: Fd, bells: [Fd; 4]) {
    let wire =
        Wire { board, index: number(order, 0) as usize, side: number(order, 1) as usize, bells };
    let halves = halves_of(order.get(2).copied().unwrap_or(""));
    let mut end = End::new(None, wire, seed, fd, halves, 4);
    end.forget_the_plan();
    end.go_on(number(order, 3) != 0);
    end.close();
}

/// `leave-carry SEED BOARD CONNECTIONS INDEX SIDE HALVES LEADS FD BELL*4`: a program that inherited
/// a connection.
pub fn carry(args: &[&str]) -> ExitCode {
    sys::ignore_signal(libc::SIGPIPE);
    let board = Box::leak(Box::new(Board::map(args[1], number(args, 2) as usize)));
    let fd = |i| number(args, i) as Fd;
    let bells = [fd(8), fd(9), fd(10), fd(11)];
    carry_on(board, number(args, 0), &args[3..7], fd(7), bells);
    ExitCode::SUCCESS
}

/// `leave-take SEED BOARD CONNECTIONS`: takes connections from standard input.
pub fn take(args: &[&str]) -> ExitCode {
    sys::ignore_signal(libc::SIGPIPE);
    let seed = number(args, 0);
    let board: &'static Board = Box::leak(Box::new(Board::map(args[1], number(args, 2) as usize)));
    let mut threads = Vec::new();
    while let Ok((text, fds)) = sys::recv_fds(CONTROL) {
        let &[fd, a, b, c, d] = &fds[..] else {
            break;
        };
        threads.push(std::thread::spawn(move || {
            let text = String::from_utf8_lossy(&text).into_owned();
            let order: Vec<&str> = text.split(' ').collect();
            carry_on(board, seed, &order, fd, [a, b, c, d]);
            for bell in [a, b, c, d] {
                let _ = sys::close(bell);
            }
        }));
    }
    for thread in threads {
        thread.join().expect("thread");
    }
    ExitCode::SUCCESS
}
