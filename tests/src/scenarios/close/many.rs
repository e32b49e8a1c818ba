//! Many connections in turn, and the numbers that they have.

use super::*;

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
