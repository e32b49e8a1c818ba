//! A process ends with bytes under way, and a keeper goes on with them. (Both are this process:
//! what the kernel does at the end of one is done by hand, and `tests/rdma/exits` has the rest.)

use super::hostile::{Stranger, hello};
use super::*;
use crate::socket::flag;
use netacc_control::Config;
use netacc_proto::rendezvous::Message;

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
            let data = link::event(l.serial, i);
            assert!(l.fd < 0 || watch(epoll, l.fd, libc::EPOLLIN as u32, data));
        }
        remote.become_keeper();
        let kept = remote.listeners.iter().enumerate().filter(|(_, l)| l.fd >= 0);
        for (at, l) in kept {
            assert!(watch(epoll, l.fd, libc::EPOLLIN as u32, EVENT_LISTENER | at as u64));
        }
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

/// Connections of which the connector has sent more than its peer has read; that one is stopped.
fn with_bytes_under_way(model: Model, seed: u64, n: usize) -> (Rig, Vec<usize>) {
    with_bytes_of(C, model, seed, n)
}

/// The same of either end.
fn with_bytes_of(side: usize, model: Model, seed: u64, n: usize) -> (Rig, Vec<usize>) {
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    let conns: Vec<usize> = (0..n).map(|_| rig.connect(0, 1)).collect();
    conns.iter().for_each(|i| rig.promoted(*i));
    conns.iter().for_each(|i| rig.drain(*i));
    rig.hosts[1 - side].stopped = true;
    for i in &conns {
        for _ in 0..1 + rig.random.below(20) {
            rig.send(*i, side, 1000);
        }
    }
    (rig, conns)
}

/// Until the stream has ended at the acceptor. What `recv` said at last.
fn read_to_the_end(rig: &mut Rig, i: usize) -> isize {
    read_to_the_end_at(rig, i, A)
}

fn read_to_the_end_at(rig: &mut Rig, i: usize, side: usize) -> isize {
    rig.until("the stream ends", |r| {
        while r.receive(i, side, 5000) > 0 {}
        r.conns[i][side].over.is_some()
    });
    rig.conns[i][side].over.unwrap_or(0)
}

/// Every byte that the end `side` has sent, and its end, have come.
#[track_caller]
fn all_has_come(rig: &mut Rig, conns: Vec<usize>, side: usize) {
    for i in conns {
        assert_eq!(read_to_the_end_at(rig, i, side ^ 1), 0, "{}", rig.describe());
        let [end, other] = [&rig.conns[i][side], &rig.conns[i][side ^ 1]];
        assert_eq!(other.received, end.sent, "{}", rig.describe());
    }
}

#[test]
fn a_process_that_ends_while_its_peer_is_stopped_loses_nothing() {
    ends_while_its_peer_is_stopped();
    // The same with bytes for which a small ring has no room.
    crate::config::with(rings::none(), ends_while_its_peer_is_stopped);
}

fn ends_while_its_peer_is_stopped() {
    for model in MODELS {
        for (seed, side) in seeds(0..20).flat_map(|seed| [(seed, C), (seed, A)]) {
            let (mut rig, conns) = with_bytes_of(side, model, seed, 3);
            rig.end_in_order(side);
            // However long that takes.
            rig.stand_still(100_000_000_000);
            assert!(rig.keeps(side), "without the peer nothing can have ended\n{}", rig.describe());
            rig.hosts[1 - side].stopped = false;
            all_has_come(&mut rig, conns, side);
            rig.until("the keeper is done", |r| !r.keeps(side));
            rig.end_keeper(side);
            rig.finish();
        }
    }
}

/// `NACC_RDMA_KEEPER_S`: what its peer has not taken by then is lost, and says so.
#[test]
fn a_keeper_ends_when_its_time_is_over() {
    const LIFE_S: u32 = 7;
    let bound = Config { keeper_s: LIFE_S, ..crate::config::get().clone() };
    crate::config::with(bound, || {
        for (model, side) in MODELS.into_iter().flat_map(|model| [(model, C), (model, A)]) {
            let (mut rig, conns) = with_bytes_of(side, model, 1, 2);
            rig.end_in_order(side);
            rig.stand_still(u64::from(LIFE_S - 1) * 1_000_000_000);
            assert!(rig.keeps(side), "its peer may come still\n{}", rig.describe());
            rig.stand_still(2_000_000_000);
            assert!(!rig.keeps(side), "it is over\n{}", rig.describe());
            rig.end_keeper(side);
            rig.hosts[1 - side].stopped = false;
            for i in conns {
                let over = read_to_the_end_at(&mut rig, i, side ^ 1);
                assert!(over < 0, "no end in order: {over}\n{}", rig.describe());
            }
            rig.finish();
        }
    });
}

/// A forked child was killed, and counts for ever as one who has the connection.
#[test]
fn what_a_child_had_that_is_gone_is_kept_too() {
    for model in MODELS {
        for side in [C, A] {
            let (mut rig, conns) = with_bytes_of(side, model, 1, 3);
            let s = rig.conns[conns[1]][side].socket;
            assert!(s.count_names(s.generation16(), |n| n + 1).is_some());
            rig.end_in_order(side);
            rig.stand_still(10_000_000_000);
            rig.hosts[1 - side].stopped = false;
            all_has_come(&mut rig, conns, side);
            rig.until("the keeper is done", |r| !r.keeps(side));
            rig.end_keeper(side);
            rig.finish();
        }
    }
}

#[test]
fn what_was_shut_down_or_closed_before_the_end_is_kept_too() {
    for model in MODELS {
        for (seed, side) in seeds(0..10).flat_map(|seed| [(seed, C), (seed, A)]) {
            let (mut rig, conns) = with_bytes_of(side, model, seed, 3);
            rig.shut(conns[0], side);
            rig.close(conns[1], side);
            rig.end_in_order(side);
            rig.stand_still(10_000_000_000);
            rig.hosts[1 - side].stopped = false;
            all_has_come(&mut rig, conns, side);
            rig.end_keeper(side);
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

/// By the keeper where it is the connector's; otherwise its peer comes back to where the process
/// took links.
#[test]
fn a_keepers_link_that_breaks_is_resumed() {
    for model in MODELS {
        for (seed, side) in seeds(0..10).flat_map(|seed| [(seed, C), (seed, A)]) {
            let (mut rig, conns) = with_bytes_of(side, model, seed, 2);
            rig.end_in_order(side);
            rig.stand_still(1_000_000_000);
            rig.break_links(seed as usize % 2);
            rig.hosts[1 - side].stopped = false;
            all_has_come(&mut rig, conns, side);
            rig.end_keeper(side);
            rig.finish();
        }
    }
}

/// Who calls it anew has nothing of it.
#[test]
fn an_acceptors_keeper_takes_no_new_link() {
    let (mut rig, conns) = with_bytes_of(A, Model::ROCE, 1, 1);
    let app = name(rig.hosts[1].listener, false);
    rig.end_in_order(1);
    let at = name(rig.remote(1).listeners.iter().find(|l| l.fd >= 0).unwrap().fd, false);
    let mut caller = Stranger::call(loopback(0, 9), at);
    rig.settle();
    assert!(matches!(caller.hear().unwrap()[..], [Message::HostHello(_)]));
    caller.say(Message::HostHello(hello(Role::Connector, app.port())));
    rig.settle();
    assert!(caller.hear().is_err(), "it is hung up on");
    rig.hosts[0].stopped = false;
    all_has_come(&mut rig, conns, A);
    rig.end_keeper(1);
    rig.finish();
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
