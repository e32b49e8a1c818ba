//! A process ends with bytes under way, and a keeper goes on with them. (Both are this process:
//! what the kernel does at the end of one is done by hand, and `tests/rdma/exits` has the rest.)

use super::*;
use crate::socket::flag;

impl Rig {
    /// The process on a host ends in order, and its keeper goes on.
    fn end_in_order(&mut self, h: usize) {
        for e in self.conns.iter().flatten().filter(|e| e.host == h && e.open) {
            io::begin_exit(e.socket);
        }
        assert!(self.remote(h).choose_kept(None), "there is something to keep");
        // The kernel closes its devices, and its carriers but for the keeper's names of them.
        self.wires.kill(&self.hosts[h].fabric);
        let kept: Vec<c_int> = self.remote(h).kept_carriers();
        for e in self.conns.iter_mut().flatten().filter(|e| e.host == h && e.open) {
            e.open = false;
            fd_table::set(e.fd, fd_table::Entry::None);
            if !kept.contains(&e.fd) {
                let _ = sys::close(e.fd);
            }
        }
        let listener = core::mem::replace(&mut self.hosts[h].listener, -1);
        if listener >= 0 {
            fd_table::set(listener, fd_table::Entry::None);
            let _ = sys::close(listener);
        }
        // Its epoll set has only those left of which the keeper has the descriptors.
        let epoll = epoll();
        assert!(watch(self.all, epoll, libc::EPOLLIN as u32, 0));
        let remote = self.remote(h);
        fd_table::close_internal(core::mem::replace(&mut remote.epoll, epoll));
        for (i, l) in remote.links.iter().enumerate().filter_map(|(i, l)| Some((i, l.as_ref()?))) {
            let data = links::event(l.serial, i);
            assert!(l.fd < 0 || watch(epoll, l.fd, libc::EPOLLIN as u32, data));
        }
        remote.become_keeper();
        self.hosts[h].woken = true;
    }

    /// The keeper's process is gone: it has come to its end, or was killed.
    fn end_keeper(&mut self, h: usize) {
        let Some(mut remote) = self.hosts[h].remote.take() else { return };
        for fd in remote.kept_carriers() {
            let _ = sys::close(fd);
        }
        if !remote.keeps_any() {
            remote.take_leave();
        }
        close_all(&remote);
        core::mem::forget(remote);
    }

    /// Time goes by.
    pub(super) fn stand_still(&mut self, ns: u64) {
        for _ in 0..20 {
            testing::pass_ns(ns / 20);
            self.settle();
        }
    }

    fn keeps(&mut self, h: usize) -> bool {
        self.remote(h).keeps_any()
    }
}

/// Two connections of which the sender has sent more than its peer has read; that one is stopped.
fn with_bytes_under_way(model: Model, seed: u64, n: usize) -> (Rig, Vec<usize>) {
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    let conns: Vec<usize> = (0..n).map(|_| rig.connect(0, 1)).collect();
    conns.iter().for_each(|i| rig.promoted(*i));
    conns.iter().for_each(|i| rig.drain(*i));
    rig.hosts[1].stopped = true;
    for i in &conns {
        for _ in 0..1 + rig.random.below(20) {
            rig.send(*i, C, 1000);
        }
    }
    (rig, conns)
}

/// Until the stream has ended at the acceptor. What `recv` said at last.
fn read_to_the_end(rig: &mut Rig, i: usize) -> isize {
    rig.until("the stream ends", |r| {
        while r.receive(i, A, 5000) > 0 {}
        r.conns[i][A].over.is_some()
    });
    rig.conns[i][A].over.unwrap_or(0)
}

#[test]
fn a_process_that_ends_while_its_peer_is_stopped_loses_nothing() {
    ends_while_its_peer_is_stopped();
    // The same with bytes for which a small ring has no room.
    crate::config::with(rings::none(), ends_while_its_peer_is_stopped);
}

fn ends_while_its_peer_is_stopped() {
    for model in MODELS {
        for seed in seeds(0..20) {
            let (mut rig, conns) = with_bytes_under_way(model, seed, 3);
            rig.end_in_order(0);
            // However long that takes.
            rig.stand_still(100_000_000_000);
            assert!(rig.keeps(0), "without the peer nothing can have ended\n{}", rig.describe());
            rig.hosts[1].stopped = false;
            for i in conns {
                assert_eq!(read_to_the_end(&mut rig, i), 0, "seed {seed}: {}", rig.describe());
                assert!(rig.has_come(i), "seed {seed}: {}", rig.describe());
            }
            rig.until("the keeper is done", |r| !r.keeps(0));
            rig.end_keeper(0);
            rig.finish();
        }
    }
}

#[test]
fn what_was_shut_down_or_closed_before_the_end_is_kept_too() {
    for model in MODELS {
        for seed in seeds(0..10) {
            let (mut rig, conns) = with_bytes_under_way(model, seed, 3);
            rig.shut(conns[0], C);
            rig.close(conns[1], C);
            rig.end_in_order(0);
            rig.stand_still(10_000_000_000);
            rig.hosts[1].stopped = false;
            for i in conns {
                assert_eq!(read_to_the_end(&mut rig, i), 0, "seed {seed}: {}", rig.describe());
                assert!(rig.has_come(i), "seed {seed}: {}", rig.describe());
            }
            rig.end_keeper(0);
            rig.finish();
        }
    }
}

#[test]
fn what_the_process_has_not_read_resets_the_connection() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.send(i, A, 3000);
        rig.settle();
        rig.hosts[1].stopped = true;
        rig.send(i, C, 2000);
        rig.end_in_order(0);
        rig.stand_still(1_000_000_000);
        rig.hosts[1].stopped = false;
        assert_eq!(read_to_the_end(&mut rig, i), -(libc::ECONNRESET as isize));
        rig.end_keeper(0);
        rig.finish();
    }
}

#[test]
fn a_keeper_that_is_killed_ends_nothing_in_order() {
    for model in MODELS {
        for seed in seeds(0..20) {
            let (mut rig, conns) = with_bytes_under_way(model, seed, 2);
            rig.end_in_order(0);
            let steps = rig.random.below(40);
            if seed % 2 == 0 {
                rig.hosts[1].stopped = false;
            }
            rig.play(steps, |_, _| {});
            let done: Vec<bool> = conns
                .iter()
                .map(|i| !rig.conns[*i][C].socket.is(crate::socket::State::Attached))
                .collect();
            rig.end_keeper(0);
            rig.hosts[1].stopped = false;
            for (i, done) in conns.iter().zip(done) {
                let over = read_to_the_end(&mut rig, *i);
                let [c, a] = &rig.conns[*i];
                let whole = a.received == c.sent;
                assert!(over < 0 || whole, "seed {seed}: {}", rig.describe());
                assert!(whole || !done, "seed {seed}: {}", rig.describe());
            }
            rig.finish();
        }
    }
}

#[test]
fn a_keepers_link_that_breaks_is_resumed_by_it() {
    for seed in seeds(0..10) {
        let (mut rig, conns) = with_bytes_under_way(Model::ROCE, seed, 2);
        rig.end_in_order(0);
        rig.stand_still(1_000_000_000);
        rig.break_links(0);
        rig.hosts[1].stopped = false;
        for i in conns {
            assert_eq!(read_to_the_end(&mut rig, i), 0, "seed {seed}: {}", rig.describe());
            assert!(rig.has_come(i), "seed {seed}: {}", rig.describe());
        }
        rig.end_keeper(0);
        rig.finish();
    }
}

#[test]
fn nothing_new_begins_with_a_keeper() {
    let (mut rig, conns) = with_bytes_under_way(Model::ROCE, 1, 1);
    rig.end_in_order(0);
    rig.hosts[1].stopped = false;
    read_to_the_end(&mut rig, conns[0]);
    let s = rig.conns[conns[0]][A].socket;
    assert!(!s.is(crate::socket::State::Candidate) || !s.has(flag::NOTED), "{}", rig.describe());
    rig.end_keeper(0);
    rig.finish();
}
