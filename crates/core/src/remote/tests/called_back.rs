//! A connection whose path is switched off while one end forks, whose child goes on with what
//! comes, and the other end closes: no byte is lost, and the end is one in good order.

use super::*;
use crate::socket::flag;
use crate::testing::Moment;
use netacc_proto::switchover::Peer;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

/// The child of a fork: it has the kernel's socket, and its maker's memory of the connection.
struct Child {
    i: usize,
    side: usize,
    fd: c_int,
    /// It has called its maker, who has not looked yet.
    calls: bool,
}

impl Rig {
    fn fork(&mut self, i: usize, side: usize) -> Child {
        let e = &self.conns[i][side];
        assert!(e.socket.count_names(e.socket.generation16(), |n| n + 1).is_some());
        let fd = sys::fcntl(e.fd, libc::F_DUPFD_CLOEXEC, 0) as c_int;
        assert!(fd >= 0);
        Child { i, side, fd, calls: false }
    }

    /// As `recv_inherited` has it (`io/receive.rs`), without the wait.
    fn child_receives(&mut self, child: &mut Child, n: usize) -> usize {
        let e = &mut self.conns[child.i][child.side];
        let s = e.socket;
        match s.state.now() {
            State::Attached if s.has(flag::BROKEN_OFF | flag::CORRUPT | flag::RESET) => {
                let r = io::receive_broken(s, child.fd, libc::MSG_DONTWAIT);
                if r != api::PASS {
                    e.over = e.over.or(Some(r));
                    return 0;
                }
            }
            State::Attached => {
                child.calls |= !s.has(flag::CALLED_BACK);
                s.raise(flag::CALLED_BACK);
                return 0;
            }
            State::Candidate => {
                let offered = s.offered.is_made();
                s.owner.store(1, Relaxed);
                crate::candidates::make_plain(s, Reason::InheritedByFork);
                s.owner.store(process::id(), Relaxed);
                child.calls |= offered;
            }
            _ => {}
        }
        let mut part = vec![0u8; n];
        let (flags, none) = (libc::MSG_DONTWAIT, core::ptr::null_mut());
        // SAFETY: a buffer of ours.
        let r = unsafe {
            sys::recvfrom(child.fd, part.as_mut_ptr(), n, flags, none, core::ptr::null_mut())
        };
        if r == 0 || (r < 0 && r != -(libc::EAGAIN as isize)) {
            e.over = e.over.or(Some(r));
        }
        let came = &part[..r.max(0) as usize];
        assert!(came == bytes(e.stream ^ 1, e.received, came.len()), "byte {}", e.received);
        e.received += came.len() as u64;
        came.len()
    }

    /// And the end, in good order. (What the kernel has in little room goes in its own time.)
    fn child_gets_all(&mut self, child: &mut Child, at: &str, mut look: impl FnMut(&mut Rig)) {
        let (i, side) = (child.i, child.side);
        let began = std::time::Instant::now();
        while self.conns[i][side].over.is_none() && began.elapsed().as_secs() < 60 {
            let before = self.conns[i][side].received;
            self.child_receives(child, 9000);
            self.maker_looks(child);
            look(self);
            self.settle();
            if self.conns[i][side].received == before && !self.pass() {
                self.wait(1_000_000);
            }
        }
        let (end, sent) = (&self.conns[i][side], self.conns[i][side ^ 1].sent);
        assert_eq!((end.over, end.received), (Some(0), sent), "{at}\n{}", self.describe());
        assert!(sys::close(child.fd) >= 0);
    }

    fn maker_looks(&mut self, child: &mut Child) {
        if core::mem::take(&mut child.calls) {
            let h = self.conns[child.i][child.side].host;
            self.remote(h).serve_children();
        }
    }

    /// The tests' own order (`io/promote.rs` `switch_if_ordered`).
    fn switch_off(&mut self, i: usize, side: usize) {
        let s = self.conns[i][side].socket;
        if let Some(channel) = s.channel().filter(|_| s.is(State::Attached)) {
            channel.far.demote(s.slot.load(Relaxed) as usize, Reason::RdmaLost, true);
        }
    }

    /// By a flag that is no reason to leave a ring, and none to go there.
    pub(super) fn send_on_carrier(&mut self, i: usize, side: usize, n: usize) {
        let e = &mut self.conns[i][side];
        let bytes = bytes(e.stream, e.sent, n);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_DONTROUTE;
        // SAFETY: a buffer of ours.
        let r = unsafe { io::send(e.fd, bytes.as_ptr(), n, flags) };
        assert_eq!(r, n as isize);
        assert!(!e.socket.published.sends_fast());
        e.sent += n as u64;
    }

    /// One small step of the library's.
    fn turn(&mut self) {
        match self.random.below(4) {
            0 => self.serve_queues(),
            1 => _ = testing::run_held(),
            _ => {
                let h = self.random.below(self.hosts.len());
                self.step(h);
            }
        }
    }
}

/// `leader` forks, `leader ^ 1` closes.
fn forks_and_is_closed(model: Model, seed: u64) {
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    rig.listen(1);
    let sizes = [2048, 4096, 8192];
    let at = rig.hosts[1].listener;
    let room: c_int = sizes[rig.random.below(3)];
    assert!(sys::setsockopt(at, libc::SOL_SOCKET, libc::SO_RCVBUF, &room) >= 0);
    let i = rig.connect(0, 1);
    let leader = rig.random.below(2);
    let follower = leader ^ 1;
    for side in [C, A] {
        let room: c_int = [1, 4096, 8192][rig.random.below(3)];
        let fd = rig.conns[i][side].fd;
        assert!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &room) >= 0);
    }
    rig.promoted(i);
    for _ in 0..rig.random.below(3) {
        let side = rig.random.below(2);
        rig.switch_off(i, side);
        let steps = rig.random.below(60);
        rig.play(steps, |_, _| {});
    }
    // The leader has said all, and the follower has it.
    let often = 1 + rig.random.below(12);
    rig.until("the follower has all", |r| {
        r.receive(i, follower, 9000);
        if r.random.below(often) == 0 {
            let side = r.random.below(2);
            r.switch_off(i, side);
        }
        r.conns[i][leader].sent == r.conns[i][follower].received
    });
    // It fills what there is; the leader reads nothing, or some of it.
    let (mut child, mut closed, mut idle) = (None, false, None);
    let fork_at = rig.random.below(60);
    let read_at = fork_at + rig.random.below(30);
    let close_at = fork_at + rig.random.below(80);
    let reads = rig.random.below(2) == 0;
    for step in 0..160 {
        match rig.random.below(6) {
            0 | 1 if !closed => {
                let n = 1 + rig.random.below(12_000);
                rig.send(i, follower, n);
            }
            2 if reads && child.is_none() => {
                rig.receive(i, leader, 3000);
            }
            3 if !closed && rig.random.below(often) == 0 => {
                let side = rig.random.below(2);
                rig.switch_off(i, side);
            }
            4 => {
                let ms = rig.random.below(40) as u64;
                testing::pass_ns(ms * 1_000_000);
            }
            _ => rig.turn(),
        }
        if step == fork_at {
            child = Some(rig.fork(i, leader));
        }
        if step == close_at {
            if rig.random.below(3) == 0 {
                idle = Some(rig.fork(i, follower));
            }
            rig.close(i, follower);
            closed = true;
        }
        if let Some(child) = child.as_mut().filter(|_| step >= read_at) {
            let n = 1 + rig.random.below(9000);
            rig.child_receives(child, n);
            if rig.random.below(3) == 0 {
                rig.maker_looks(child);
            }
        }
    }
    let mut child = child.unwrap();
    let at = format!("{model:?} seed {seed} leader {leader} idle {}", idle.is_some());
    let sent = rig.conns[i][follower].sent;
    rig.child_gets_all(&mut child, &at, |r| {
        if let Some(idle) = idle.take_if(|_| r.conns[i][leader].received == sent) {
            assert!(sys::close(idle.fd) >= 0);
        }
    });
    rig.finish();
}

#[test]
fn a_child_gets_all_that_a_peer_has_sent_before_it_closed() {
    for model in MODELS {
        for seed in seeds(0..40) {
            forks_and_is_closed(model, seed);
        }
    }
}

/// With rings that connections outgrow.
#[test]
fn a_child_gets_all_that_came_by_small_rings() {
    for model in MODELS {
        for seed in seeds(0..40) {
            crate::config::with(rings::none(), || forks_and_is_closed(model, seed));
        }
    }
}

/// What is sent is on its carrier, and closed behind that; what comes is on the ring, and all of it
/// was read. The peer's child gets all. (The peer, which had not heard how far its bytes had come,
/// took the connection for broken, and its child got ECONNRESET instead of them.)
#[test]
fn a_child_gets_what_went_over_the_carrier_of_a_peer_that_read_from_the_ring() {
    for model in MODELS {
        for seed in seeds(0..12) {
            for leader in [C, A] {
                let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
                let i = rig.connect(0, 1);
                let follower = leader ^ 1;
                rig.promoted_one_way(i, follower);
                rig.send_on_carrier(i, follower, 500);
                let mut child = rig.fork(i, leader);
                rig.child_receives(&mut child, 1000);
                if seed % 2 == 0 {
                    rig.maker_looks(&mut child);
                }
                if seed % 3 == 0 {
                    let turns = rig.random.below(6);
                    (0..turns).for_each(|_| rig.turn());
                }
                rig.close(i, follower);
                let at = format!("{model:?} seed {seed} leader {leader}");
                rig.child_gets_all(&mut child, &at, |_| {});
                assert!(!rig.conns[i][leader].socket.has(flag::BROKEN_OFF), "{at}");
                rig.finish();
            }
        }
    }
}

/// A close finds nobody at work on the connection, and in that moment the way back begins, which
/// the close then asks for. It is seen to when that has ended.
#[test]
fn a_close_in_the_moment_in_which_a_way_back_begins_comes_to_its_end() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.drain(i);
            let other = rig.conns[i][side ^ 1].host;
            rig.send(i, side, 3000);
            rig.hosts[other].stopped = true;
            rig.switch_off(i, side);
            rig.settle();
            let s = rig.conns[i][side].socket;
            assert_eq!(s.waiters.load(SeqCst), 1, "the way back has begun");
            s.waiters.store(0, SeqCst);
            rig.close(i, side);
            s.waiters.fetch_add(1, SeqCst);
            rig.hosts[other].stopped = false;
            rig.gets_all(i, side ^ 1, 5000, &format!("{model:?} {side}"));
            rig.finish();
        }
    }
}

/// The kernel has closed the last name, whose number is another file's, and the connection's life
/// has not ended yet: a way back that begins just then leaves that file alone. (It reset it.)
#[test]
fn a_way_back_behind_the_kernels_close_finds_no_other_file() {
    for model in MODELS {
        for side in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted_one_way(i, side);
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut peer = listener.accept().unwrap().0;
            let (s, fd) = (rig.conns[i][side].socket, rig.conns[i][side].fd);
            let with = other.as_raw_fd();
            testing::just_before(Moment::Call(libc::SYS_close), move || {
                assert!(s.is(State::Attached) && !s.has(flag::ORPHAN));
                assert!(sys::dup3(with, fd, libc::O_CLOEXEC) >= 0);
                let mut departure = io::Departure::new(s);
                assert_eq!(departure.step((0, 0), Peer::Gone), io::Moved::Broken);
                departure.give_up();
            });
            rig.close(i, side);
            assert!(testing::was_there());
            other.write_all(b"x").unwrap();
            let mut byte = [0];
            assert_eq!((peer.read(&mut byte).unwrap(), byte), (1, *b"x"), "{model:?} {side}");
            rig.finish();
        }
    }
}

/// A child shuts down just when its maker has looked for that, and before it can see that the
/// connection is the kernel's. (Its maker did not look for SHUT_RD again.)
#[test]
fn a_childs_shutdown_is_not_lost_between_two_looks() {
    for model in MODELS {
        for how in [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.drain(i);
            let mut child = rig.fork(i, A);
            let (s, fd) = (rig.conns[i][A].socket, child.fd);
            rig.child_receives(&mut child, 100);
            testing::just_before(Moment::change_of(&s.state), move || {
                assert!(s.is(State::Attached));
                assert_eq!(io::shutdown_of_parents(s, fd, how), 0);
            });
            rig.maker_looks(&mut child);
            rig.until("it is the kernel's", |_| s.is(State::Plain));
            assert!(testing::was_there());
            if how != libc::SHUT_WR {
                assert_eq!(rig.child_receives(&mut child, 100), 0);
                assert_eq!(rig.conns[i][A].over, Some(0), "{model:?} {how}");
            }
            if how != libc::SHUT_RD {
                rig.gets_all(i, C, 1000, &format!("{model:?} {how}"));
            }
            assert!(sys::close(fd) >= 0);
            rig.finish();
        }
    }
}

/// The same where a send of the maker's finds first that the peer is gone: the way back has not
/// begun, and nothing is known of what is to be received next.
#[test]
fn a_child_gets_what_the_kernel_has_where_a_send_has_found_the_peer_gone() {
    for model in MODELS {
        for leader in [C, A] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            let follower = leader ^ 1;
            rig.promoted_one_way(i, follower);
            let mut child = rig.fork(i, leader);
            rig.send_on_carrier(i, follower, 500);
            rig.kill(rig.conns[i][follower].host);
            let (s, host) = (rig.conns[i][leader].socket, rig.conns[i][leader].host);
            let links = rig.remote(host).links.len();
            (0..links).for_each(|link| rig.remote(host).abandon(link));
            // (A wait has seen that the carrier has ended.)
            s.raise(flag::CARRIER_SPOKE);
            rig.send(i, leader, 10);
            assert!(s.is(State::Attached) && s.has(flag::BROKEN_OFF), "{model:?} {leader}");
            let before = rig.conns[i][leader].received;
            while rig.child_receives(&mut child, 200) > 0 {}
            let got = rig.conns[i][leader].received - before;
            assert_eq!(got, 500, "{model:?} {leader}");
            assert!(s.count_names(s.generation16(), |n| n - 1).is_some());
            assert!(sys::close(child.fd) >= 0);
            rig.finish();
        }
    }
}

/// A child that ends in order does not count any more: its maker can leave the connection to a
/// keeper, and closes it as its own.
#[test]
fn a_child_that_has_ended_has_the_connection_no_more() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    let (s, fd) = (rig.conns[i][A].socket, rig.conns[i][A].fd);
    // (Its number stands for the connection twice.)
    let is_right = crate::testing::in_child(|| {
        s.owner.store(1, Relaxed);
        crate::adoption::after_fork_in_child(true);
        assert!(s.count_names(s.generation16(), |_| 2).is_some());
        assert!(s.is(State::Attached) && s.needs_maker());
        // (An exec may fail.)
        crate::adoption::before_leaving(true);
        let by_exec = s.names();
        crate::adoption::before_leaving(false);
        crate::adoption::before_leaving(false);
        let ended = s.names();
        // What runs behind the library's own end may close it.
        assert_eq!(api::close(fd), 0);
        (by_exec, ended, s.names()) == (2, 1, 1)
    });
    assert!(is_right);
    rig.finish();
}

/// Its peer is killed with bytes unread in a ring: nothing can be sent any more, but what it had
/// sent by the carrier is there. (A child got the error first, and the bytes never.)
#[test]
fn a_child_gets_what_the_kernel_has_before_the_error() {
    for model in MODELS {
        for leader in [C, A] {
            for unread in [0, 500] {
                let mut rig = Rig::new(Order::Prompt, model, 2);
                let i = rig.connect(0, 1);
                let follower = leader ^ 1;
                rig.promoted_one_way(i, follower);
                let mut child = rig.fork(i, leader);
                rig.send(i, leader, 300);
                if unread > 0 {
                    rig.send_on_carrier(i, follower, unread);
                }
                rig.kill(rig.conns[i][follower].host);
                let s = rig.conns[i][leader].socket;
                rig.child_receives(&mut child, 0);
                rig.maker_looks(&mut child);
                rig.until("it is broken off", |_| s.has(flag::BROKEN_OFF));
                let before = rig.conns[i][leader].received;
                while rig.child_receives(&mut child, 200) > 0 {}
                let end = &rig.conns[i][leader];
                let (got, at) = ((end.received - before) as usize, format!("{model:?} {leader}"));
                assert_eq!((got, end.over), (unread, Some(-(libc::ECONNRESET as isize))), "{at}");
                assert_eq!(rig.child_receives(&mut child, 200), 0);
                assert!(s.count_names(s.generation16(), |n| n - 1).is_some());
                assert!(sys::close(child.fd) >= 0);
                rig.finish();
            }
        }
    }
}
