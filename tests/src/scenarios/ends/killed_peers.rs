//! What a server has left of peers that were killed.

use super::end;
use crate::ctx::{Child, Ctx};
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Addr, E, Fd};
use libc::{EPOLLET, EPOLLOUT, MSG_NOSIGNAL, SIGKILL};

pub(super) fn scenario() -> Scenario {
    pair(
        "ends/many-killed-peers",
        "a server that has met many killed peers has no more descriptors and mappings than before",
        |t| {
            let listener = t.listener();
            t.publish(listener);
            let mut before = (0, 0);
            if sys::over_rdma() {
                // What the library knows of a peer is kept for a while, and serves the next
                // ones: there are as many of it as there were peers at the same time. So first
                // there are more at once than come one after another within that while.
                meets_the_doomed(t, listener, "all at once", AT_ONCE);
                before = least_sizes(5_000);
                // (A link more, say, that was made anew.)
                before.0 += AT_ONCE / 3;
            }
            for round in 0..rounds() {
                meets_the_doomed(t, listener, &format!("round {round}"), 1);
                if round == 3 && !sys::over_rdma() {
                    before = sizes();
                    // The doorbell of the one set that there is at a time is made with the
                    // first fast connection in it, and kept. Where nobody waits until a
                    // connection is fast, that may be later.
                    before.0 += usize::from(!t.waits_until_fast());
                }
            }
            let begin = sys::now_ns();
            while !no_more(before, sizes()) && sys::now_ns() - begin < 10_000_000_000 {
                sys::sleep_ms(10);
            }
            t.log("no more", no_more(before, sizes()));
            if !no_more(before, sizes()) {
                t.log("but", (before, sizes()));
            }
            t.meet("over");
        },
        |t| {
            let addr = t.hear_addr();
            if sys::over_rdma() {
                kills(t, addr, "all at once", AT_ONCE);
            }
            for round in 0..rounds() {
                kills(t, addr, &format!("round {round}"), 1);
            }
            t.meet("over");
        },
    )
}

/// How many peers come one after another.
fn rounds() -> usize {
    if sys::over_rdma() { 36 } else { 24 }
}

/// And over RDMA so many at once before them: of what these leave a third of the later ones, which
/// lost it, would leave nothing.
const AT_ONCE: usize = 12;

/// A server meets so many peers at the same time, which are killed while it waits for room.
fn meets_the_doomed(t: &Ctx, listener: Fd, what: &str, peers: usize) {
    let fds: Vec<Fd> = (0..peers).map(|_| t.accept(listener)).collect();
    if peers == 1 {
        // That may come at any moment.
        t.tell(what);
    }
    let mut buf = [0; 4096];
    let set = sys::epoll_create1(0).expect("epoll_create1");
    // Sends, as an event loop does, until its buffer is full, then waits for room.
    for fd in &fds {
        sys::set_nonblocking(*fd, true);
        while sys::send(*fd, &buf, MSG_NOSIGNAL).is_ok() {}
        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, *fd, (EPOLLOUT | EPOLLET) as u32, 1)
            .expect("EPOLL_CTL_ADD");
    }
    if peers > 1 {
        t.tell(what);
    }
    for fd in fds {
        let begin = sys::now_ns();
        while sys::send(fd, &buf, MSG_NOSIGNAL) != Err(E(libc::EPIPE))
            && sys::now_ns() - begin < 10_000_000_000
        {
            let _ = sys::epoll_wait(set, 8, 10);
        }
        while matches!(sys::recv(fd, &mut buf, 0), Ok(n) if n > 0) {}
        sys::close(fd).expect("close");
    }
    sys::close(set).expect("close");
}

/// So many processes connect, and are killed when the server says so.
fn kills(t: &Ctx, addr: Addr, what: &str, peers: usize) {
    let children: Vec<Child> = (0..peers)
        .map(|_| {
            let [from, to] = sys::pipe();
            let child = t.child(|t| {
                let _fd = t.connect(addr);
                let _ = sys::write(to, b"x");
                loop {
                    let _ = sys::poll(&[], -1);
                }
            });
            // It has asked the runner, and heard the answer, before this process listens.
            let _ = sys::read(from, &mut [0]);
            let _ = (sys::close(from), sys::close(to));
            child
        })
        .collect();
    t.wait(what);
    children.into_iter().for_each(|child| end(child, SIGKILL));
}

/// The least of [`sizes`] within so long: what is kept for a while only is gone by then.
fn least_sizes(ms: u64) -> (usize, usize) {
    let begin = sys::now_ns();
    let mut least = sizes();
    while sys::now_ns() - begin < ms * 1_000_000 {
        sys::sleep_ms(10);
        let now = sizes();
        least = (least.0.min(now.0), least.1.min(now.1));
    }
    least
}

/// Descriptors and mappings of this process.
fn sizes() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // (The library's own count, too.)
    (std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count), maps.lines().count())
}

/// (Threads and the heap come and go.)
fn no_more(before: (usize, usize), now: (usize, usize)) -> bool {
    now.0 <= before.0 && now.1 <= before.1 + 8
}
