//! Many connections in turn, and the numbers that they have; and a number that nobody has.

use super::*;
use std::sync::atomic::AtomicBool;

/// Processes, for each of which the library makes descriptors.
const PROCESSES: usize = 16;

/// So many of the connections in turn are accepted by a call that may block.
const MAY_BLOCK: u32 = 100;

/// Where a number is not the first one: (how many before it, the number).
fn others(numbers: &[Fd]) -> Vec<(usize, Fd)> {
    numbers.iter().copied().enumerate().filter(|(_, n)| *n != numbers[0]).collect()
}

pub(super) fn serve(t: &Ctx) {
    let listener = t.listener();
    t.publish(listener);
    // (Devices are opened behind it, whose descriptors stand on low numbers first:
    // longer than an accept waits where a system call costs 60 µs.)
    sys::close(t.accept(listener)).expect("close");
    let mut numbers = Vec::new();
    for i in 0..300u32 {
        // (A call that blocks may get the next higher number, seldom: limits.md.)
        if i >= MAY_BLOCK {
            sys::poll(&[(listener, libc::POLLIN)], 20_000).expect("poll");
        }
        let fd = sys::accept(listener).expect("accept");
        let ask = recv_exact(fd, 4);
        assert!(ask == i.to_ne_bytes());
        send_all(fd, &ask);
        assert!(sys::recv(fd, &mut [0; 1], 0) == Ok(0));
        sys::close(fd).expect("close");
        numbers.push(fd);
    }
    let (blocked, waited) = numbers.split_at(MAY_BLOCK as usize);
    let higher = blocked.iter().filter(|fd| **fd != waited[0]).count();
    t.log("most are the same", higher < blocked.len() / 10);
    t.log("other numbers", others(waited));
}

pub(super) fn connect(t: &Ctx) {
    let addr = t.hear_addr();
    sys::close(t.connect(addr)).expect("close");
    let mut numbers = Vec::new();
    for i in 0..300u32 {
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(fd, addr).expect("connect");
        send_all(fd, &i.to_ne_bytes());
        assert!(recv_exact(fd, 4) == i.to_ne_bytes());
        sys::close(fd).expect("close");
        numbers.push(fd);
    }
    t.log("other numbers", others(&numbers));
}

static ENOUGH: AtomicBool = AtomicBool::new(false);

/// Until it is enough, or a close says something else than EBADF: what it says.
fn close_again_and_again(fd: Fd, close: fn(Fd) -> sys::R) -> Option<sys::R> {
    while !ENOUGH.load(Ordering::Relaxed) {
        let said = close(fd);
        if said != Err(E(libc::EBADF)) {
            return Some(said);
        }
    }
    None
}

pub(super) fn closes_nothing(t: &Ctx) {
    closes_nothing_by(t, sys::close);
}

pub(super) fn closes_nothing_by_syscall(t: &Ctx) {
    closes_nothing_by(t, sys::raw_close);
}

fn closes_nothing_by(t: &Ctx, close: fn(Fd) -> sys::R) {
    let listener = t.listener();
    t.publish(listener);
    let fds: Vec<Fd> = (0..PROCESSES).map(|_| sys::accept(listener).expect("accept")).collect();
    // Nothing of the program's is made from here on.
    let free = sys::dup(listener).expect("dup");
    sys::close(free).expect("close");
    let thread = std::thread::spawn(move || close_again_and_again(free, close));
    for round in 0u64.. {
        for (i, fd) in fds.iter().enumerate() {
            let word = (round << 8 | i as u64).to_ne_bytes();
            send_all(*fd, &word);
            assert!(recv_exact(*fd, 8) == word, "connection {i}, round {round}");
        }
        let over = if t.waits_until_fast() { t.count_fast() == PROCESSES } else { round == 200 };
        if over || thread.is_finished() {
            break;
        }
    }
    ENOUGH.store(true, Ordering::Relaxed);
    t.log("another answer than EBADF", thread.join().expect("thread"));
    t.log("the number is free", sys::dup(listener) == Ok(free));
    for fd in &fds {
        t.still_fast(*fd);
    }
    t.meet("end");
}

/// So many processes with a connection each, which send back what comes.
pub(super) fn are_many(t: &Ctx) {
    let addr = t.hear_addr();
    let echo = |_: &Ctx| {
        let fd = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
        sys::connect(fd, addr).expect("connect");
        let mut word = [0; 8];
        while let Ok(n @ 1..) = sys::recv(fd, &mut word, 0) {
            send_all(fd, &word[..n]);
        }
        String::new()
    };
    let _children: Vec<_> = (0..PROCESSES).map(|_| t.child(echo)).collect();
    t.meet("end");
}
