extern crate std;
use super::*;
use crate::channel::{PLACES, SLOTS, quiet};
use crate::path::{PathId, PathList};
use crate::rendezvous::possession::{self, TURNS};
use crate::rendezvous::{CHANNEL_BYTES, Phase, advert_name, auth};
use crate::socket::{self, RxEnd, TxEnd};
use crate::testing::in_child;
use crate::{arena, control, lifecycle};
use core::ffi::c_int;
use core::ptr::NonNull;
use netacc_proto::rendezvous::{self as proto, Direction, Hello, Message, Role, refuse};
use netacc_proto::switchover::{Ack, Delivery, Rx, Tx};
use netacc_ring::{Consumer, Producer};
use std::boxed::Box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::vec::Vec;

fn service() -> &'static Service {
    crate::testing::init();
    Box::leak(Box::new(Service::new(false)))
}

impl Service {
    /// What the core does for a connecting socket that is used.
    fn connect(&'static self, s: &'static Socket) -> bool {
        s.raise(flag::CONNECTOR);
        self.connected(s, false) && self.noted(s)
    }

    fn noted(&'static self, s: &'static Socket) -> bool {
        self.note(s, s.generation16())
    }
}

fn view(s: &TcpStream) -> Tuple {
    Tuple::new(s.local_addr().unwrap(), s.peer_addr().unwrap()).unwrap()
}

/// A candidate socket as the core makes it.
fn socket_for(tuple: Tuple) -> &'static Socket {
    let memory = Box::leak(Box::new(core::mem::MaybeUninit::<Socket>::zeroed())).as_mut_ptr();
    // SAFETY: all zero but for the tuple, which is written here, is a valid Socket.
    unsafe {
        (&raw mut (*memory).tuple).write(core::cell::UnsafeCell::new(tuple));
        let s = &*memory;
        s.state.begin_as(socket::State::Candidate);
        s.fd.store(-1, Relaxed);
        s.set_paths(PathList::EMPTY.and(PathId::Shm));
        s
    }
}

/// The same, with its carrier.
fn socket_of(carrier: &TcpStream) -> &'static Socket {
    let s = socket_for(view(carrier));
    s.fd.store(carrier.as_raw_fd(), Relaxed);
    s
}

fn offer_of(s: &Socket) -> socket::Offer {
    assert!(s.offered.is_made());
    // SAFETY: complete.
    unsafe { *s.offer.get() }
}

fn channel_of(s: &Socket) -> &'static Channel {
    // SAFETY: channels are type-stable.
    unsafe { &*offer_of(s).channel }
}

/// What `io` does.
fn attach(s: &Socket) {
    let o = offer_of(s);
    s.slot.store(o.slot, Relaxed);
    s.channel.store(o.channel.cast_mut(), Relaxed);
    s.published.begin(s.generation.load(Relaxed));
    s.state.begin_as(socket::State::Attached);
}

/// What `io` does when it is done with a slot.
fn last_word(s: &Socket) -> (&'static Channel, usize) {
    let (c, slot) = (channel_of(s), offer_of(s).slot as usize);
    c.words(slot, c.side ^ 1).quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    s.published.leave();
    s.channel.store(core::ptr::null_mut(), Relaxed);
    (c, slot)
}
fn leave(service: &Service, s: &Socket) {
    let (c, slot) = last_word(s);
    service.released(c, slot);
}

fn settle(all: &[&Service]) {
    for _ in 0..20 {
        for s in all {
            while s.state.lock().epoll >= 0 && s.turn(0) && s.woken.load(Acquire) {}
        }
    }
}

/// Until `a` has made its offer for `accepted`, which `c` has not seen.
fn until_offered(a: &Service, c: &Service, accepted: &Socket) {
    for _ in 0..100 {
        settle(&[a]);
        if a.state.lock().is_offered(accepted) {
            return;
        }
        settle(&[c]);
    }
    panic!("no offer");
}

/// Within this a loaded machine has done what it is to do.
const LONG_NS: u64 = 60_000_000_000;

/// When what was looked for has been looked for, nothing wakes the thread any more.
fn nothing_is_due(s: &Service) {
    crate::testing::pass_ns(2_000_000_000);
    settle(&[s]);
    assert_eq!(s.state.lock().next_deed(), 0);
}

/// Turns until `done`, for so long as a loaded machine may need.
fn wait_until(all: &[&Service], done: impl Fn() -> bool) {
    let end = sys::now_ns() + LONG_NS;
    while !done() {
        assert!(sys::now_ns() < end, "did not happen");
        settle(all);
        std::thread::sleep(core::time::Duration::from_millis(1));
    }
}

struct Net {
    listener: TcpListener,
}

impl Net {
    fn new() -> Net {
        // Services of tests that are over keep their adverts: no port twice.
        static USED: std::sync::Mutex<Vec<u16>> = std::sync::Mutex::new(Vec::new());
        loop {
            let net = Net { listener: TcpListener::bind("127.0.0.1:0").unwrap() };
            let mut used = USED.lock().unwrap();
            if !used.contains(&net.port()) {
                used.push(net.port());
                return net;
            }
        }
    }
    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }
    /// The connector's and the acceptor's socket of a new connection, and the carriers.
    fn connect(&self) -> (&'static Socket, &'static Socket, (TcpStream, TcpStream)) {
        let c =
            TcpStream::connect(SocketAddr::new("127.0.0.1".parse().unwrap(), self.port())).unwrap();
        let (a, _) = self.listener.accept().unwrap();
        (socket_of(&c), socket_of(&a), (c, a))
    }
}

fn bytes_at(at: *mut u8, value: u8) {
    // SAFETY: a ring of an offer, mapped by this process.
    unsafe { at.write_volatile(value) }
}
fn byte_at(at: *mut u8) -> u8 {
    // SAFETY: as above.
    unsafe { at.read_volatile() }
}

#[test]
fn a_connection_is_agreed_on() {
    let (a, c, net) = (service(), service(), Net::new());
    assert!(a.accepting(net.port()));
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs));
    assert!(a.noted(as_));
    settle(&[a, c]);
    let (co, ao) = (offer_of(cs), offer_of(as_));
    assert_eq!(co.slot, ao.slot);
    assert_eq!((co.tx_bytes, co.rx_bytes), (ao.rx_bytes, ao.tx_bytes));
    assert_ne!(co.tx_ring, ao.rx_ring, "two mappings");
    bytes_at(co.tx_ring, 1);
    bytes_at(ao.tx_ring, 2);
    assert_eq!((byte_at(ao.rx_ring), byte_at(co.rx_ring)), (1, 2));
    let (cc, ac) = (channel_of(cs), channel_of(as_));
    assert_eq!((ac.side, cc.side), (0, 1));
    assert_eq!((ac.peer_pid, cc.peer_pid), (sys::getpid(), sys::getpid()));
    // Direction 0 is the acceptor's.
    ac.words(ao.slot as usize, 0).tail.store(77, Relaxed);
    assert_eq!(cc.words(co.slot as usize, 0).tail.load(Relaxed), 77);
    assert!(core::ptr::eq(cc.sockets[co.slot as usize].load(Relaxed).cast(), cs));
    assert!(core::ptr::eq(ac.sockets[ao.slot as usize].load(Relaxed).cast(), as_));
    assert_eq!((ac.users.load(Relaxed), cc.users.load(Relaxed)), (1, 1));
}

#[test]
fn the_order_of_candidate_and_accept_does_not_matter() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    for candidate_first in [true, false] {
        let (cs, as_, _tcp) = net.connect();
        if candidate_first {
            assert!(c.connect(cs));
            settle(&[a, c]);
            assert!(a.noted(as_));
        } else {
            assert!(a.noted(as_));
            settle(&[a, c]);
            assert!(c.connect(cs));
        }
        settle(&[a, c]);
        assert_eq!((cs.offered.word(), as_.offered.word()), (1, 1));
    }
}

#[test]
fn one_process_can_be_both_ends() {
    let (s, net) = (service(), Net::new());
    s.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(s.connect(cs) && s.noted(as_));
    settle(&[s]);
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    assert_ne!(offer_of(cs).channel, offer_of(as_).channel);
}

#[test]
fn nobody_there_is_said_at_once_and_found_later() {
    let (a, c, net) = (service(), service(), Net::new());
    let (cs, as_, _tcp) = net.connect();
    assert!(!c.connect(cs));
    assert!(!c.connect(cs), "remembered");
    assert!(!c.connected(cs, true), "not accepting yet");
    a.accepting(net.port());
    a.noted(as_);
    let (cs2, as2, _tcp2) = net.connect();
    assert!(!c.connect(cs2), "still remembered");
    std::thread::sleep(core::time::Duration::from_millis(300));
    for s in [cs2, cs] {
        assert!(c.connected(s, true) && c.noted(s));
    }
    a.noted(as2);
    settle(&[a, c]);
    offer_of(as_);
    offer_of(as2);
}

#[test]
fn another_run_on_the_same_port_is_not_found() {
    let (c, net) = (service(), Net::new());
    let (mut name, len) = advert_name(net.port(), 0);
    let room = crate::testing::room().len();
    name.copy_within(3 + room..len, 3);
    let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) as c_int;
    assert!(sys::bind(fd, &name[..len - room]) >= 0 && sys::listen(fd, 5) >= 0);
    let (cs, _as, _tcp) = net.connect();
    assert!(!c.connect(cs));
    let _ = sys::close(fd);
}

#[test]
fn who_only_sends_is_found_when_the_listener_accepts_late() {
    let (a, c, net) = (service(), service(), Net::new());
    let (cs, as_, _tcp) = net.connect();
    assert!(!c.connect(cs));
    // Looks before the accept prove nothing, and do not spoil later ones.
    assert!(!c.sending(cs));
    assert!(!c.sending(cs));
    settle(&[c]);
    assert!(!c.connected(cs, true), "who has an answer has an acceptor");
    c.closing(cs);
    let (cs2, as2, _tcp2) = net.connect();
    cs2.raise(flag::CONNECTOR);
    assert!(!c.sending(cs2));
    a.accepting(net.port());
    a.noted(as_);
    a.noted(as2);
    wait_until(&[a, c], || cs2.offered.is_made() && as2.offered.is_made());
    assert!(c.connected(cs2, true));
    assert_eq!(offer_of(cs2).slot, offer_of(as2).slot);
}

#[test]
fn the_advert_of_a_port_goes_when_nobody_listens() {
    let (a, c, net) = (service(), service(), Net::new());
    let port = net.port();
    let used = |a: &Service| a.state.lock().adverts.iter().any(|x| x.port == port);
    assert!(a.accepting(port));
    // (The test's listener is none that the table of descriptors knows.)
    let (cs, as_, _tcp) = net.connect();
    a.noted(as_);
    a.listener_closed();
    std::thread::sleep(core::time::Duration::from_millis(60));
    settle(&[a]);
    assert!(used(a), "an accepted connection still waits");
    assert!(c.connect(cs));
    wait_until(&[a, c], || cs.offered.is_made() && !used(a));
    nothing_is_due(a);
    // It comes back with the next accept.
    assert!(a.accepting(port) && used(a));
}

#[test]
fn all_advertisers_are_told_and_only_the_acceptor_offers() {
    let (c, net) = (service(), Net::new());
    let workers: Vec<&'static Service> = (0..6).map(|_| service()).collect();
    let mut all = workers.clone();
    all.push(c);
    workers[0].accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs));
    settle(&all);
    // The others advertise later; the one that accepted is found by a later look.
    for w in &workers[1..] {
        w.accepting(net.port());
    }
    workers[5].noted(as_);
    std::thread::sleep(core::time::Duration::from_millis(15));
    settle(&all);
    std::thread::sleep(core::time::Duration::from_millis(120));
    settle(&all);
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    // The others have forgotten it.
    for w in &workers[..5] {
        assert!(w.state.lock().pair_for(&as_.tuple()).is_none());
        w.noted(socket_for(as_.tuple()));
        settle(&all);
    }
    assert!(cs.offered.is_made());
}

#[test]
fn one_link_serves_all_ports_of_a_process() {
    let (a, c) = (service(), service());
    let links =
        |s: &Service| s.state.lock().links.iter().filter(|l| l.phase == Phase::Open).count();
    let nets: Vec<Net> = (0..100).map(|_| Net::new()).collect();
    let all: Vec<_> = nets
        .iter()
        .map(|net| {
            assert!(a.accepting(net.port()));
            let (cs, as_, tcp) = net.connect();
            assert!(c.connect(cs) && a.noted(as_));
            wait_until(&[a, c], || cs.offered.is_made() && as_.offered.is_made());
            (cs, as_, tcp)
        })
        .collect();
    assert_eq!((links(a), links(c)), (1, 1));
    assert!(all.iter().all(|(cs, as_, _)| offer_of(cs).slot == offer_of(as_).slot));
}

#[test]
fn a_name_that_comes_back_leads_to_the_link_that_is_there() {
    let (a, c, net) = (service(), service(), Net::new());
    assert!(a.accepting(net.port()));
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    wait_until(&[a, c], || cs.offered.is_made() && as_.offered.is_made());
    let mut s = a.state.lock();
    fd_table::close_internal(core::mem::replace(&mut s.adverts[0].fd, -1));
    s.adverts[0].port = 0;
    drop(s);
    a.advertised[0].store(0, Release);
    // It is looked for in vain twice, so the name is known to be free.
    let (late, _accepted, _tcp) = net.connect();
    assert!(c.connect(late));
    let turn_for = |ns: u64| {
        let until = sys::now_ns() + ns;
        wait_until(&[a, c], || sys::now_ns() > until);
    };
    turn_for(120_000_000);
    assert!(a.accepting(net.port()));
    turn_for(300_000_000);
    assert_eq!(c.state.lock().links.iter().filter(|l| l.is_read()).count(), 1);
}

#[test]
fn the_port_that_was_advertised_first_makes_room() {
    let (a, c) = (service(), service());
    let nets: Vec<Net> = (0..ADVERTS + 40).map(|_| Net::new()).collect();
    for net in &nets {
        assert!(a.accepting(net.port()));
    }
    // Its connector does not find it, until it accepts again.
    let (cs, as_, _tcp) = nets[0].connect();
    assert!(!c.connect(cs));
    assert!(a.accepting(nets[0].port()) && a.noted(as_));
    crate::testing::pass_ns(100_000_000);
    assert!(c.connected(cs, true) && c.noted(cs));
    wait_until(&[a, c], || cs.offered.is_made() && as_.offered.is_made());
    // The last one is there still.
    let (cs, _, _tcp) = nets[ADVERTS + 39].connect();
    assert!(c.connect(cs));
}

#[test]
fn who_is_noted_before_its_acceptor_advertises_is_looked_for() {
    let (a1, a2, c, net) = (service(), service(), service(), Net::new());
    a1.accepting(net.port());
    let (cs1, as1, _tcp1) = net.connect();
    assert!(c.connect(cs1) && a1.noted(as1));
    wait_until(&[a1, c], || cs1.offered.is_made());
    nothing_is_due(c);
    // The port is known, and all its names were tried a moment ago: the second worker appears now.
    let (cs2, as2, _tcp2) = net.connect();
    cs2.raise(flag::CONNECTOR);
    assert!(c.connected(cs2, false));
    settle(&[a1, c]);
    assert!(a2.accepting(net.port()) && a2.noted(as2));
    assert!(c.noted(cs2));
    wait_until(&[a1, a2, c], || cs2.offered.is_made() && as2.offered.is_made());
}

#[test]
fn a_verdict_is_not_for_life() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs));
    for _ in 0..10 {
        crate::testing::pass_ns(1_000_000_000);
        settle(&[a, c]);
    }
    nothing_is_due(c);
    // The acceptor had its candidate, and lost it: it had no slot, say.
    a.state.lock().forget_candidates();
    assert!(a.noted(as_));
    settle(&[a, c]);
    assert!(cs.offered.is_none());
    assert!(c.look_again(cs, cs.generation16()));
    settle(&[a, c]);
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    // Told twice of a connection, it holds nothing of it.
    assert_eq!(a.state.lock().candidates(), 0);
}

#[test]
fn a_short_connection_costs_no_message() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    for lasts in [false, true] {
        let (cs, as_, _tcp) = net.connect();
        cs.raise(flag::CONNECTOR);
        assert!(c.connected(cs, false), "somebody is there");
        settle(&[a, c]);
        assert!(a.state.lock().pair_for(&as_.tuple()).is_none());
        if lasts {
            assert!(c.noted(cs) && a.noted(as_));
            settle(&[a, c]);
            assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
        }
        c.closing(cs);
        a.closing(as_);
        settle(&[a, c]);
    }
}

#[test]
fn a_closed_candidate_is_withdrawn() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    c.connect(cs);
    settle(&[a, c]);
    c.closing(cs);
    settle(&[a, c]);
    assert!(a.noted(as_));
    settle(&[a, c]);
    assert_eq!((cs.offered.word(), as_.offered.word()), (0, 0));
}

#[test]
fn an_offer_that_crosses_a_close_is_refused_and_its_slot_reused() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    c.connect(cs);
    a.noted(as_);
    // The acceptor makes its offer before the withdrawal arrives.
    until_offered(a, c, as_);
    c.closing(cs);
    settle(&[a, c]);
    assert_eq!((cs.offered.word(), as_.offered.word()), (0, 0));
    let (cs, as_, _tcp) = net.connect();
    c.connect(cs);
    a.noted(as_);
    settle(&[a, c]);
    assert_eq!(offer_of(as_).slot, 0);
    offer_of(cs);
}

#[test]
fn an_acceptor_that_closes_while_the_offer_travels_gives_its_end_back() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    c.connect(cs);
    a.noted(as_);
    until_offered(a, c, as_);
    a.closing(as_);
    settle(&[a, c]);
    let o = offer_of(cs);
    assert!(as_.offered.is_none());
    let cc = channel_of(cs);
    // The connector sees that the other end is closed.
    assert_ne!(cc.words(o.slot as usize, 1).quiet[quiet::REQUEST].load(Relaxed) & quiet::CLOSED, 0);
    attach(cs);
    leave(c, cs);
    let (cs2, as2, _tcp2) = net.connect();
    c.connect(cs2);
    a.noted(as2);
    settle(&[a, c]);
    assert_eq!(offer_of(cs2).slot, o.slot, "reused");
    assert_eq!(channel_of(as2).users.load(Relaxed), 1);
}

#[test]
fn a_slot_is_reused_only_after_both_ends_left_and_starts_from_zero() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let mut held = Vec::new();
    let mut agreed = || {
        let (cs, as_, tcp) = net.connect();
        c.connect(cs);
        a.noted(as_);
        settle(&[a, c]);
        attach(cs);
        attach(as_);
        held.push(tcp);
        (cs, as_)
    };
    let (cs, as_) = agreed();
    let (slot, cc, ac) = (offer_of(cs).slot as usize, channel_of(cs), channel_of(as_));
    for d in 0..2 {
        cc.words(slot, d).tail.store(9, Relaxed);
        cc.words(slot, d).space_wanted.store(9, Relaxed);
        cc.words(slot, d).producer_user[0].store(9, Relaxed);
    }
    leave(a, as_);
    let (_, other) = agreed();
    assert_ne!(offer_of(other).slot as usize, slot, "the connector is still there");
    leave(c, cs);
    c.released(cc, slot);
    assert_eq!((ac.users.load(Relaxed), cc.users.load(Relaxed)), (1, 1), "released once");
    let (_, again) = agreed();
    assert_eq!(offer_of(again).slot as usize, slot);
    for d in 0..2 {
        let w = cc.words(slot, d);
        assert_eq!(
            (
                w.tail.load(Relaxed),
                w.space_wanted.load(Relaxed),
                w.producer_user[0].load(Relaxed),
                w.quiet[quiet::REQUEST].load(Relaxed)
            ),
            (0, 0, 0, 0)
        );
    }
}

#[test]
fn a_thread_that_is_late_to_give_a_slot_back_does_not_take_it_from_the_next() {
    // Whose thread is late, and how far the next connection has come.
    for (late_acceptor, attached) in [(true, false), (true, true), (false, false)] {
        let (a, c, net) = (service(), service(), Net::new());
        a.accepting(net.port());
        let agreed = || {
            let (cs, as_, tcp) = net.connect();
            c.connect(cs);
            a.noted(as_);
            settle(&[a, c]);
            (cs, as_, tcp)
        };
        let (cs, as_, _tcp) = agreed();
        attach(cs);
        attach(as_);
        let (early, late, es, ls) = if late_acceptor { (c, a, cs, as_) } else { (a, c, as_, cs) };
        let (channel, slot) = last_word(ls);
        leave(early, es);
        let (cs, as_, _tcp) = agreed();
        if !late_acceptor {
            // Its books say that the slot is taken.
            assert_eq!((cs.offered.word(), as_.offered.word()), (0, 0));
            late.released(channel, slot);
            let (cs, as_, _tcp) = agreed();
            assert_eq!((offer_of(cs).slot as usize, offer_of(as_).slot as usize), (slot, slot));
            let words = channel_of(as_);
            for d in 0..2 {
                assert_eq!(
                    words.words(slot, d).quiet[quiet::REQUEST].load(Relaxed),
                    0,
                    "nothing is said about the next"
                );
            }
            continue;
        }
        assert_eq!(offer_of(as_).slot as usize, slot);
        if attached {
            attach(cs);
            attach(as_);
        }
        late.released(channel, slot);
        let (ac, cc) = (channel_of(as_), channel_of(cs));
        assert!(core::ptr::eq(ac.sockets[slot].load(Relaxed).cast(), as_));
        assert_eq!((ac.users.load(Relaxed), cc.users.load(Relaxed)), (1, 1));
        let (_, other, _tcp) = agreed();
        assert_ne!(offer_of(other).slot as usize, slot);
    }
}

#[test]
fn thousands_come_and_go_in_bounded_memory() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let mut top = 0;
    for round in 0..40 {
        let all: Vec<_> = (0..50)
            .map(|_| {
                let (cs, as_, tcp) = net.connect();
                c.connect(cs);
                a.noted(as_);
                (cs, as_, tcp)
            })
            .collect();
        settle(&[a, c]);
        for (i, (cs, as_, _)) in all.iter().enumerate() {
            attach(cs);
            attach(as_);
            let slot = offer_of(cs).slot as usize;
            top = top.max(slot);
            let (x, y) = (|| leave(c, cs), || leave(a, as_));
            if (i + round) % 2 == 0 {
                x();
                y();
            } else {
                y();
                x();
            }
        }
    }
    assert!(top < 130, "highest slot {top}");
}

#[test]
fn the_end_of_a_peer_frees_what_it_held() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    c.connect(cs);
    a.noted(as_);
    settle(&[a, c]);
    attach(as_);
    attach(cs);
    let ac = channel_of(as_);
    c.state.lock().end_link(0, Violation::Ended);
    settle(&[a]);
    assert_eq!((ac.dead.load(Relaxed), ac.control.load(Relaxed)), (1, -1));
    assert_eq!(a.state.lock().links[0].phase, Phase::Dead);
    leave(a, as_);
    settle(&[a]);
    assert_eq!(a.state.lock().links[0].phase, Phase::Free);
    // What a late reader finds says nothing.
    assert!(ac.my_place(0).is_empty());
    // And the place serves the next.
    leave(c, cs);
    settle(&[c]);
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs));
    a.noted(as_);
    settle(&[a, c]);
    assert!(core::ptr::eq(channel_of(as_), ac), "the same memory");
    assert_eq!(ac.dead.load(Relaxed), 0);
}

/// A doorbell as `wait` makes it, and whether it was signalled since the last look.
fn doorbell() -> (c_int, impl Fn() -> bool) {
    let bell = crate::channel::new_doorbell();
    let epoll = sys::epoll_create1(libc::EPOLL_CLOEXEC) as c_int;
    let mut event = epoll_event { events: crate::channel::DOORBELL_EVENTS, u64: 0 };
    // SAFETY: a live event.
    assert!(unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell, &mut event) } >= 0);
    let heard = move || {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        unsafe { sleep::epoll_wait(epoll, &mut event, 1, 0, core::ptr::null()) == 1 }
    };
    assert!(heard());
    (bell, heard)
}

#[test]
fn a_file_that_is_not_due_stays_where_it_is() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    settle(&[a]);
    let place = Message::Place { place: 1 };
    assert!(!a.state.lock().files_due(0, &place), "there is no channel");
    assert!(
        !a.state.lock().files_due(0, &Message::Arena(proto::Arena { arena: 0, bytes: 4096 })),
        "an acceptor takes no memory"
    );
    // The kernel refuses it, where it can.
    let bell = crate::channel::new_doorbell();
    r.send_stray(place, bell);
    settle(&[a]);
    assert!(r.is_ended());
    fd_table::close_internal(bell);
}

#[test]
fn memory_is_due_of_who_has_shown_a_connection() {
    let h = accepting_by_hand();
    let channel = Message::Channel(proto::Channel {
        channel_bytes: CHANNEL_BYTES as u64,
        slots: SLOTS as u32,
        places: PLACES as u32,
    });
    for turn in 0..TURNS {
        assert!(!h.c.state.lock().files_due(0, &channel), "before turn {turn}");
        h.show(turn);
    }
    assert!(h.c.state.lock().files_due(0, &channel));
    // Who passes it without that is heard no more.
    let h = accepting_by_hand();
    h.channel();
    settle(&[h.c]);
    assert!(h.r.is_ended());
}

/// Two ends of a control connection.
fn control_pair() -> [c_int; 2] {
    let mut fds = [-1; 2];
    assert_eq!(
        // SAFETY: room for two descriptors.
        unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                0,
                fds.as_mut_ptr(),
            )
        },
        0
    );
    assert!(sys::setsockopt(fds[1], libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32) >= 0);
    fds
}

/// How many descriptors this process has of the same file.
fn names(fd: c_int) -> usize {
    let list = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = list.flatten().filter_map(|n| n.file_name().to_str()?.parse().ok());
    numbers.filter(|n| sys::inode(*n) == sys::inode(fd)).count()
}

#[test]
fn couriers_bring_what_is_of_use_and_nothing_else() {
    crate::testing::init();
    let [near, far] = control_pair();
    let memory = memory(CHANNEL_BYTES);
    let bell = crate::channel::new_doorbell();
    let place = Message::Place { place: 7 };
    let arena = |bytes| Message::Arena(proto::Arena { arena: 0, bytes });
    for (message, file, good) in [
        (place, bell, true),
        (arena(CHANNEL_BYTES as u64), memory, true),
        (place, memory, false),
        (place, near, false),
        (arena(CHANNEL_BYTES as u64), bell, false),
        (arena(CHANNEL_BYTES as u64 * 2), memory, false),
    ] {
        assert_eq!(control::send(near, &message, file), 0);
        // Seen as often as one likes, and not taken.
        for _ in 0..2 {
            assert!(matches!(packet::receive(far), Received::Files(seen) if seen == message));
        }
        match strangers::fetch(far) {
            Received::Message(got, fd, sender) => {
                assert!(good && got == message && fd >= 0 && sender.pid == sys::getpid());
                fd_table::close_internal(fd);
            }
            // (All eventfds are one file.)
            Received::Malformed => assert!(!good && (file == bell || names(file) == 1)),
            // (Another test has all couriers.)
            Received::NoDescriptor => {
                let _ = packet::receive(far);
                return;
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(packet::receive(far), Received::Nothing));
    }
    for fd in [near, far] {
        let _ = sys::close(fd);
    }
    for fd in [memory, bell] {
        fd_table::close_internal(fd);
    }
}

#[test]
fn signalling_keeps_nobody_waiting() {
    let (bell, heard) = doorbell();
    for _ in 0..1000 {
        crate::channel::wake(bell);
        assert!(heard());
    }
    assert!(!heard());
    // What a process without scruples passes: empty, and made to wait.
    let empty = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    crate::channel::wake(empty);
    // A writer makes itself heard by nobody who waits for a ring.
    assert_eq!(sys::write(bell, &1u64.to_ne_bytes()), 8);
    assert!(!heard());
    assert_eq!(sys::fcntl(bell, libc::F_SETFL, 0), 0);
    crate::channel::wake(bell);
    assert!(heard());
    for fd in [bell, empty] {
        let _ = sys::close(fd);
    }
}

#[test]
fn a_filter_without_preadv2_silences_no_doorbell() {
    let (bell, heard) = doorbell();
    // In a thread of its own, to which the filter belongs.
    std::thread::spawn(move || {
        let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut program = [
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_preadv2 as u32),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: a filter of four instructions, which the kernel copies.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
                0
            );
        }
        assert_eq!(sys::read_nowait(bell, &mut [0; 8]), -(libc::EPERM as isize));
        crate::channel::wake(bell);
    })
    .join()
    .unwrap();
    assert!(heard());
    let _ = sys::close(bell);
}

#[test]
fn doorbells_and_pull_backs_arrive() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    c.connect(cs);
    a.noted(as_);
    settle(&[a, c]);
    let (cc, ac) = (channel_of(cs), channel_of(as_));
    let (bell, heard) = doorbell();
    // Wanted before it is known: signalled when it comes.
    ac.wake_peer(5);
    assert!(control::send_place(cc, 5, bell));
    assert!(!control::send_place(cc, 70000, bell));
    wait_until(&[a, c], &heard);
    assert!(!heard());
    ac.wake_peer(5);
    assert!(heard());
    // Passed again: another takes its place under the same number.
    let known = ac.doorbells[5].load(Relaxed);
    let (second, heard) = doorbell();
    assert!(control::send_place(cc, 5, second));
    wait_until(&[a, c], heard);
    assert_eq!(ac.doorbells[5].load(Relaxed), known);
    assert!(control::send_pull_back(cc, offer_of(cs).slot as usize));
    assert!(control::send_pull_back(ac, offer_of(cs).slot as usize));
    settle(&[a, c]);
    assert_eq!((ac.dead.load(Relaxed), cc.dead.load(Relaxed)), (0, 0));
    for fd in [bell, second] {
        let _ = sys::close(fd);
    }
}

#[test]
fn a_silent_peer_does_not_stop_us() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    // The acceptor never reads: candidates pile up, nothing blocks, nothing is lost.
    let all: Vec<_> = (0..600).map(|_| net.connect()).collect();
    for (cs, _, _) in &all {
        assert!(c.connect(cs));
    }
    for (_, as_, _) in &all {
        assert!(a.noted(as_));
    }
    // Now one, now the other.
    for _ in 0..40 {
        settle(&[a]);
        settle(&[c]);
    }
    for (cs, as_, _) in &all {
        assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    }
}

#[test]
fn a_link_that_nobody_uses_goes_and_comes_back() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let agreed = || {
        let (cs, as_, tcp) = net.connect();
        assert!(c.connect(cs) && a.noted(as_));
        settle(&[a, c]);
        attach(cs);
        attach(as_);
        (cs, as_, tcp)
    };
    let phases = |s: &Service| s.state.lock().links[0].phase;
    let (cs, as_, _tcp) = agreed();
    a.state.lock().make_old();
    settle(&[a, c]);
    assert_eq!(phases(a), Phase::Open, "in use");
    leave(a, as_);
    crate::testing::pass_ns(2_000_000_000);
    settle(&[a, c]);
    assert!(a.state.lock().next_deed() > sys::now_ns() + 50_000_000_000, "in a minute");
    leave(c, cs);
    settle(&[a, c]);
    assert_eq!(phases(a), Phase::Open, "not old");
    a.state.lock().make_old();
    a.on_time();
    settle(&[a, c]);
    assert_eq!((phases(a), phases(c)), (Phase::Free, Phase::Free));
    nothing_is_due(a);
    agreed();
}

// ---- processes ----------------------------------------------------------------------------------

#[test]
fn a_forked_child_agrees_on_nothing_over_an_inherited_connection() {
    for (i, by_child) in
        [Message::Withdraw { token: 1 }, Message::Bye, Message::Accept { token: 1, slot: 0 }]
            .into_iter()
            .enumerate()
    {
        let (a, c, net) = (service(), service(), Net::new());
        a.accepting(net.port());
        let (cs, as_, _tcp) = net.connect();
        assert!(c.connect(cs) && a.noted(as_));
        settle(&[a, c]);
        let control = channel_of(cs).control.load(Relaxed);
        assert!(in_child(|| control::send(control, &by_child, -1) == 0));
        settle(&[a]);
        assert_eq!(a.state.lock().links[0].phase, Phase::Dead, "case {i}");
    }
}

#[test]
fn a_forked_child_may_speak_for_the_sockets_it_inherited() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    let bell = sys::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) as c_int;
    assert!(in_child(|| control::send_place(channel_of(cs), 9, bell)
        && control::send_pull_back(channel_of(cs), 0)));
    settle(&[a]);
    assert_eq!(a.state.lock().links[0].phase, Phase::Open);
    assert!(channel_of(as_).doorbells[9].load(Relaxed) >= 0);
    let _ = sys::close(bell);
}

#[test]
fn who_has_given_up_a_privilege_cannot_use_it() {
    if sys::geteuid() != 0 {
        return;
    }
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    let bell = sys::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) as c_int;
    assert!(in_child(|| {
        // SAFETY: setresuid(2) of the only thread.
        let r = unsafe { libc::syscall(libc::SYS_setresuid, 65533, 65533, 65533) };
        r == 0 && control::send_place(channel_of(cs), 9, bell)
    }));
    settle(&[a]);
    assert_eq!(a.state.lock().links[0].phase, Phase::Dead);
    assert_eq!(channel_of(as_).doorbells[9].load(Relaxed), -1);
    let _ = sys::close(bell);
}

#[test]
fn a_slot_in_use_stays_whatever_the_peer_writes_in_our_name() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    attach(cs);
    attach(as_);
    let (channel, slot) = (channel_of(as_), offer_of(as_).slot);
    let users = channel.users.load(Relaxed);
    for side in 0..2 {
        channel_of(cs).words(slot as usize, side).quiet[quiet::REQUEST]
            .fetch_or(quiet::CLOSED, SeqCst);
    }
    // The next offer looks for slots that both ends have left.
    let (cs2, as2, _tcp2) = net.connect();
    assert!(c.connect(cs2) && a.noted(as2));
    settle(&[a, c]);
    assert_ne!(offer_of(as2).slot, slot);
    assert_eq!(channel.users.load(Relaxed), users + 1);
    assert!(core::ptr::eq(channel.sockets[slot as usize].load(Relaxed).cast(), as_));
}

#[test]
fn a_forked_child_starts_anew_and_keeps_what_it_inherited() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    attach(as_);
    let inherited = channel_of(as_);
    let slot = offer_of(as_).slot as usize;
    let (cs2, as2, _tcp2) = net.connect();
    // The child is the acceptor of the second connection, which is not looked for before the child
    // can be found.
    let (mut accepts, says_so) = std::io::pipe().unwrap();
    let work = || {
        lifecycle::fork_child();
        a.after_fork_in_child();
        let kept = a.state.lock().links[0].phase == Phase::Inherited
            && inherited.control.load(Relaxed) >= 0;
        let fresh = a.accepting(net.port()) && a.noted(as2);
        let told = (&says_so).write_all(b".").is_ok();
        let until = sys::now_ns() + LONG_NS;
        while as2.offered.is_none() && sys::now_ns() < until {
            a.turn(1_000_000);
        }
        let agreed = as2.offered.is_made();
        if agreed {
            bytes_at(offer_of(as2).tx_ring, 42);
        }
        leave(a, as_);
        // Until the parent has read it.
        while agreed && byte_at(offer_of(as2).rx_ring) != 43 && sys::now_ns() < until {
            a.turn(1_000_000);
        }
        kept && fresh && told && agreed
    };
    let ok = std::thread::scope(|scope| {
        let child = scope.spawn(|| in_child(work));
        accepts.read_exact(&mut [0]).unwrap();
        assert!(c.connect(cs2));
        let until = sys::now_ns() + LONG_NS;
        while (cs2.offered.is_none() || byte_at(offer_of(cs2).rx_ring) != 42)
            && sys::now_ns() < until
            && !child.is_finished()
        {
            c.turn(1_000_000);
        }
        bytes_at(offer_of(cs2).tx_ring, 43);
        child.join().unwrap()
    });
    assert!(ok);
    assert_ne!(offer_of(cs2).channel, offer_of(cs).channel);
    // The parent finds the slot that the child closed for good, when the peer has closed its end
    // too. (A real socket is shared with it.)
    as_.published.leave();
    attach(cs);
    leave(c, cs);
    let (cs3, as3, _tcp3) = net.connect();
    assert!(c.connect(cs3) && a.noted(as3));
    settle(&[a, c]);
    assert_eq!(offer_of(as3).slot as usize, slot);
    assert_eq!(inherited.users.load(Relaxed), 1);
}

/// The ends of an attached connection on the ring, in memory that a forked child has too; five
/// bytes of the peer's are there to read.
fn on_the_ring(of: &Socket) -> &'static Socket {
    let (o, channel) = (offer_of(of), channel_of(of));
    let slot = o.slot as usize;
    let (tx_words, rx_words) =
        (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let memory = sys::map_shared(-1, size_of::<Socket>()).cast::<Socket>();
    let ack = Ack { epoch: 0, armed: true, frozen: false, consumed: 0 };
    let (mut tx, mut rx) = (Tx::new(), Rx::new());
    let promoted = tx.promote(ack, Delivery::Reliable).unwrap();
    assert_eq!(tx.confirm(ack), Ok(None));
    assert!(rx.arm() && rx.on_announce(promoted).unwrap());
    let at = |bytes: *mut u8| NonNull::new(bytes).unwrap();
    // SAFETY: fresh zeroed memory is a valid Socket; the words and rings are the channel's, and
    // nobody else uses them.
    unsafe {
        let s = &*memory;
        s.offer.get().write(o);
        s.tx.get().write(TxEnd {
            switch: tx,
            ring: Producer::new(NonNull::from(tx_words), at(o.tx_ring), o.tx_bytes as usize, 0),
            never: false,
            held_since: 0,
            unsettled: false,
            resend_mark: None,
            linger: None,
            told_left: false,
            switches: crate::inject::Switches::new(),
        });
        s.rx.get().write(RxEnd {
            switch: rx,
            ring: Consumer::new(NonNull::from(rx_words), at(o.rx_ring), o.rx_bytes as usize, 0),
            unsettled: false,
            carrier_asked: 0,
            pending_error: 0,
            read_until: 0,
            asked_back: false,
            resets: false,
        });
        let mut peer =
            Producer::new(NonNull::from(rx_words), at(o.rx_ring), o.rx_bytes as usize, 0);
        assert_eq!(peer.write(b"hello".as_ptr(), 5), Ok(5));
        let _ = peer.publish();
        // (The peer promotes at offset 0, as this end does.)
        rx_words.producer_user[crate::channel::announce::EPOCH].store(1, Release);
        s.owner.store(process::id(), Relaxed);
        s.fd.store(-1, Relaxed);
        s.tx_words.store(core::ptr::from_ref(tx_words).cast_mut(), Relaxed);
        s.rx_words.store(core::ptr::from_ref(rx_words).cast_mut(), Relaxed);
        s.slot.store(o.slot, Relaxed);
        s.channel.store(o.channel.cast_mut(), Relaxed);
        s.state.begin_as(socket::State::Attached);
        s
    }
}

#[test]
fn what_a_killed_holder_of_the_ends_left_half_done_is_made_whole() {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, carriers) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    let s = on_the_ring(cs);
    let words = |side| channel_of(cs).words(offer_of(cs).slot as usize, side);
    // A child has both ends; it ends between writing and publishing, and between reading and giving
    // back.
    assert!(in_child(|| {
        lifecycle::fork_child();
        let locks = (crate::lock::lock_end(&s.tx_lock), crate::lock::lock_end(&s.rx_lock));
        let taken = locks.0.is_some() && locks.1.is_some();
        core::mem::forget(locks);
        let mut read = [0u8; 3];
        // SAFETY: the locks are held.
        let (written, got) = unsafe {
            (
                (*s.tx.get()).ring.write(b"abcd".as_ptr(), 4),
                (*s.rx.get()).ring.read(read.as_mut_ptr(), 3),
            )
        };
        taken && written == Ok(4) && got == Ok(3) && read == *b"hel"
    }));
    let side = channel_of(cs).side;
    assert_eq!((words(side).tail.load(Relaxed), words(side ^ 1).head.load(Relaxed)), (0, 0));
    crate::io::send_held(s, 0);
    assert_eq!(crate::io::unread(s, 0, carriers.0.as_raw_fd()), Some(2));
    // SAFETY: nobody else uses the ends.
    let (tx, rx) = unsafe { (&*s.tx.get(), &*s.rx.get()) };
    assert_eq!((tx.switch.offset(), words(side).tail.load(Relaxed), tx.never), (4, 4, true));
    assert_eq!((rx.switch.offset(), words(side ^ 1).head.load(Relaxed)), (3, 3));
    assert_eq!((s.tx_lock.owner(), s.rx_lock.owner()), (0, 0));
}

#[test]
fn the_thread_does_it_by_itself() {
    static THREADED: Service = Service::new(true);
    crate::testing::init();
    let net = Net::new();
    assert!(THREADED.accepting(net.port()));
    let pairs: Vec<_> = (0..20).map(|_| net.connect()).collect();
    for (cs, as_, _) in &pairs {
        assert!(THREADED.connect(cs) && THREADED.noted(as_));
    }
    let until = sys::now_ns() + LONG_NS;
    while sys::now_ns() < until
        && pairs.iter().any(|(cs, as_, _)| cs.offered.word() + as_.offered.word() != 2)
    {
        std::thread::sleep(core::time::Duration::from_millis(1));
    }
    for (cs, as_, _) in &pairs {
        assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    }
}

// ---- hostile peers ------------------------------------------------------------------------------

fn candidate(tuple: Tuple, token: u64) -> Message {
    Message::Candidate(proto::Candidate {
        tuple,
        token,
        proof: proto::Proof::NONE,
        class: 0,
        fills: false,
    })
}

/// A control connection by hand.
struct Raw(c_int);

impl Raw {
    /// To the advert of `port`.
    fn caller(port: u16) -> Raw {
        Raw::caller_of(port, 0)
    }
    fn caller_of(port: u16, k: u8) -> Raw {
        let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) as c_int;
        let (name, len) = advert_name(port, k);
        assert!(possession::name_link(fd));
        assert!(sys::connect(fd, &name[..len]) >= 0);
        let r = Raw(fd);
        r.prepare();
        r
    }
    /// Squats the advert of `port`.
    fn squatter(port: u16) -> Raw {
        let fd = sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) as c_int;
        let (name, len) = advert_name(port, 0);
        assert!(sys::bind(fd, &name[..len]) >= 0);
        assert!(sys::listen(fd, 5) >= 0);
        Raw(fd)
    }
    fn accept(&self) -> Raw {
        let fd = sys::accept4(self.0, libc::SOCK_CLOEXEC) as c_int;
        assert!(fd >= 0);
        let r = Raw(fd);
        r.prepare();
        r
    }
    fn prepare(&self) {
        assert!(sys::setsockopt(self.0, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32) >= 0);
    }
    fn send(&self, m: Message) {
        self.send_fd(m, -1)
    }
    fn send_fd(&self, m: Message, fd: c_int) {
        assert_eq!(control::send(self.0, &m, fd), 0);
    }
    /// A descriptor that is not due: the kernel refuses it (Linux 6.16), or the receiver ends the
    /// link.
    fn send_stray(&self, m: Message, fd: c_int) {
        match control::send(self.0, &m, fd) {
            0 => {}
            refused => {
                assert_eq!(refused, -(libc::EPERM as isize));
                self.send_bytes(b"x");
            }
        }
    }
    fn send_bytes(&self, bytes: &[u8]) {
        assert!(
            // SAFETY: valid bytes.
            unsafe { sys::sendto(self.0, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL) } >= 0
        );
    }
    /// The next message that is no greeting.
    fn next(&self) -> Option<Message> {
        loop {
            match packet::receive(self.0) {
                Received::Message(Message::Hello(_), ..) => {}
                Received::Message(m, ..) => return Some(m),
                Received::Files(_) => match strangers::fetch(self.0) {
                    Received::Message(m, fd, _) => {
                        fd_table::close_internal(fd);
                        return Some(m);
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
    }
    fn is_ended(&self) -> bool {
        loop {
            match packet::receive(self.0) {
                Received::Message(..) => {}
                Received::Files(_) => drop(strangers::fetch(self.0)),
                Received::End => return true,
                _ => return false,
            }
        }
    }
    /// Whoever has `carrier` shows, over this link, the mark of `turn`.
    fn show(&self, role: Role, carrier: &TcpStream, turn: u8) {
        possession::show_turn(
            carrier.as_raw_fd(),
            possession::number_of(self.0, role).unwrap(),
            turn,
        );
    }
    /// As a connector that has `carrier`: shows what it is asked for. Returns the first other
    /// message.
    fn prove(&self, acceptor: &Service, carrier: &TcpStream) -> Option<Message> {
        loop {
            settle(&[acceptor]);
            match self.next() {
                Some(Message::Turn { token, turn }) => {
                    self.show(Role::Connector, carrier, turn);
                    self.send(Message::Turn { token, turn });
                }
                other => return other,
            }
        }
    }
    fn hello(&self, role: Role) {
        self.send(Message::Hello(Hello::new([9, 9, 9], 1, role)));
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

fn memory(bytes: usize) -> c_int {
    arena::create_sealed(b"t\0", bytes).unwrap()
}

#[test]
fn whoever_does_not_keep_to_the_protocol_is_hung_up_on() {
    let net = Net::new();
    let a = service();
    a.accepting(net.port());
    let tuple = net.connect().0.tuple();
    let event = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    type Act = Box<dyn Fn(&Raw)>;
    let bad: Vec<Act> = std::vec![
        Box::new(|r| r.send_bytes(b"x")),
        Box::new(|r| r.send_bytes(&[1u8; 500])),
        Box::new(|r| r.send(Message::Bye)),
        Box::new(move |r| r.send(candidate(tuple, 1))),
        Box::new(|r| r.hello(Role::Acceptor)),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.hello(Role::Connector);
        }),
        Box::new(|r| {
            let mut other = Hello::new([0; 3], 1, Role::Connector);
            other.version = 999;
            r.send(Message::Hello(other));
        }),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.send(Message::Accept { token: 1, slot: 0 });
        }),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.send(Message::Refuse { token: 1, slot: 65535, reason: 1 });
        }),
        Box::new(|r| {
            r.hello(Role::Connector);
            r.send(Message::PullBack { slot: 1, dir: Direction::AcceptorToConnector });
        }),
        Box::new(move |r| {
            r.hello(Role::Connector);
            r.send_stray(Message::Place { place: 1 }, event);
        }),
        Box::new(move |r| {
            // What only an acceptor sends.
            r.hello(Role::Connector);
            let m = memory(CHANNEL_BYTES);
            r.send_stray(
                Message::Channel(proto::Channel {
                    channel_bytes: CHANNEL_BYTES as u64,
                    slots: SLOTS as u32,
                    places: PLACES as u32,
                }),
                m,
            );
            fd_table::close_internal(m);
        }),
        Box::new(|r| {
            // A descriptor too few.
            r.hello(Role::Connector);
            let mut bytes = [0u8; proto::MAX_MESSAGE];
            let n = Message::Place { place: 1 }.encode(&mut bytes);
            r.send_bytes(&bytes[..n]);
        }),
    ];
    for (i, act) in bad.iter().enumerate() {
        let r = Raw::caller(net.port());
        settle(&[a]);
        act(&r);
        settle(&[a]);
        assert!(r.is_ended(), "case {i}");
        assert!(a.state.lock().links.iter().all(|l| l.phase == Phase::Free), "case {i}");
    }
    let _ = sys::close(event);
}

/// A connector that we play by hand against an acceptor that has a connection for it.
fn offered_by_hand()
-> (&'static Service, Net, Raw, &'static Socket, proto::Offer, (TcpStream, TcpStream)) {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, tcp) = net.connect();
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    r.send(candidate(cs.tuple(), 0xfeed));
    a.noted(as_);
    let mut offer = None;
    while let Some(m) = r.prove(a, &tcp.0) {
        if let Message::Offer(o) = m {
            offer = Some(o);
        }
    }
    (a, net, r, as_, offer.expect("an offer"), tcp)
}

#[test]
fn answers_that_do_not_fit_the_offer_end_the_link() {
    for wrong in 0..4 {
        let (a, _net, r, as_, o, _tcp) = offered_by_hand();
        assert_eq!(o.token, 0xfeed);
        assert_eq!(o.tuple, as_.tuple());
        match wrong {
            0 => r.send(Message::Accept { token: o.token + 1, slot: o.slot }),
            1 => r.send(Message::Accept { token: o.token, slot: o.slot + 1 }),
            2 => {
                r.send(Message::Accept { token: o.token, slot: o.slot });
                r.send(Message::Accept { token: o.token, slot: o.slot });
            }
            _ => r.send(Message::Refuse { token: o.token, slot: 4095, reason: 0 }),
        }
        settle(&[a]);
        assert!(r.is_ended(), "case {wrong}");
        assert_eq!(as_.offered.word(), u32::from(wrong == 2), "case {wrong}");
    }
}

#[test]
fn after_a_refusal_a_rival_gets_the_connection() {
    let (a, net, r, as_, o, tcp) = offered_by_hand();
    let c = service();
    let cs = socket_of(&tcp.0);
    assert!(c.connect(cs));
    settle(&[a, c]);
    assert!(cs.offered.is_none(), "the first claim is being tried");
    r.send(Message::Refuse { token: o.token, slot: o.slot, reason: refuse::UNKNOWN_TOKEN });
    settle(&[a, c]);
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    drop(net);
}

fn is_shown(end: &Socket) -> bool {
    auth::look(&end.tuple())
        .is_some_and(|end| end.mark.is_some_and(|mark| mark & possession::SHOWN != 0))
}

#[test]
fn who_does_not_hold_a_connection_gets_nothing() {
    for by_turn in 0..TURNS {
        let (a, net) = (service(), Net::new());
        a.accepting(net.port());
        let (cs, as_, tcp) = net.connect();
        let r = Raw::caller(net.port());
        r.hello(Role::Connector);
        r.send(candidate(cs.tuple(), 7));
        a.noted(as_);
        // (The first turns by who does hold it, so that each of them is looked at.)
        let mut answer = None;
        for turn in 0..=by_turn {
            settle(&[a]);
            assert_eq!(r.next(), Some(Message::Turn { token: 7, turn }));
            if turn < by_turn {
                r.show(Role::Connector, &tcp.0, turn);
            }
            r.send(Message::Turn { token: 7, turn });
            settle(&[a]);
            if turn == by_turn {
                answer = r.next();
            }
        }
        assert_eq!(answer, Some(Message::Unproven { token: 7 }), "turn {by_turn}");
        assert_eq!(r.next(), None);
        assert!(!is_shown(as_), "turn {by_turn}");
        // Its rightful owner gets it.
        let (c, cs) = (service(), socket_of(&tcp.0));
        assert!(c.connect(cs));
        settle(&[a, c]);
        assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
        assert!(!is_shown(as_) && !is_shown(cs));
    }
}

#[test]
fn who_stands_between_the_two_gets_nothing() {
    let (a, c, net) = (service(), service(), Net::new());
    // The squatter has the first name, the acceptor the next.
    let squat = Raw::squatter(net.port());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    let from_c = squat.accept();
    from_c.hello(Role::Acceptor);
    let to_a = Raw::caller_of(net.port(), 1);
    to_a.hello(Role::Connector);
    let mut passed = 0;
    for _ in 0..50 {
        settle(&[c]);
        while let Some(m) = from_c.next() {
            assert!(!matches!(m, Message::Accept { .. } | Message::Turn { turn: 5, .. }), "{m:?}");
            to_a.send(m);
            passed += 1;
        }
        settle(&[a]);
        while let Some(m) = to_a.next() {
            assert!(!matches!(m, Message::Channel(_) | Message::Offer(_)), "{m:?}");
            from_c.send(m);
            passed += 1;
        }
    }
    assert!(passed >= 3, "{passed}");
    // The two find each other all the same.
    wait_until(&[a, c], || (cs.offered.word(), as_.offered.word()) == (1, 1));
}

#[test]
fn a_proof_ends_with_its_connection_and_with_patience() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    let begun = |token| {
        let (cs, as_, tcp) = net.connect();
        r.send(candidate(cs.tuple(), token));
        a.noted(as_);
        settle(&[a]);
        assert!(is_shown(as_));
        assert_eq!(r.next(), Some(Message::Turn { token, turn: 0 }));
        (cs, as_, tcp)
    };
    // It is closed.
    let (_, as_, _tcp) = begun(1);
    a.closing(as_);
    assert!(!is_shown(as_));
    // Its connector says no more.
    let (_, as_, _tcp) = begun(2);
    crate::testing::pass_ns(2_000_000_001);
    settle(&[a]);
    assert!(!is_shown(as_));
    // It withdraws it.
    let (_, as_, _tcp) = begun(3);
    r.send(Message::Withdraw { token: 3 });
    settle(&[a]);
    assert!(!is_shown(as_));
    // A forked child has made it plain: the parent finds that out.
    let (_, as_, _tcp) = begun(6);
    as_.state.begin_as(socket::State::Plain);
    crate::testing::pass_ns(2_000_000_001);
    settle(&[a]);
    assert!(!is_shown(as_) && a.state.lock().proofs.iter().all(Option::is_none));
    // Its number is another file's by now.
    let (_, as_, _tcp) = begun(7);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    possession::show_turn(other.as_raw_fd(), 0, 0);
    as_.fd.store(other.as_raw_fd(), Relaxed);
    a.closing(as_);
    assert!(
        !possession::is_at_rest(other.as_raw_fd())
            && a.state.lock().proofs.iter().all(Option::is_none)
    );
    // The program uses one of the options.
    let (_, as_, _tcp) = begun(4);
    a.state.lock().end_proofs_of(as_);
    assert!(!is_shown(as_));
    // It hangs up.
    let (_, as_, _tcp) = begun(5);
    r.send(Message::Hello(Hello::new([0; 3], 1, Role::Connector)));
    settle(&[a]);
    assert!(r.is_ended() && !is_shown(as_));
}

#[test]
fn more_than_there_is_room_for_are_proven_in_turn() {
    for candidate_first in [true, false] {
        let (a, c, net) = (service(), service(), Net::new());
        a.accepting(net.port());
        let all: Vec<_> = (0..possession::PROOFS + 50).map(|_| net.connect()).collect();
        let (connects, accepts) = (
            || all.iter().for_each(|k| assert!(c.connect(k.0))),
            || all.iter().for_each(|k| assert!(a.noted(k.1))),
        );
        if candidate_first {
            connects();
            settle(&[c, a]);
            accepts();
        } else {
            accepts();
            connects();
        }
        wait_until(&[a, c], || {
            all.iter().all(|(cs, as_, _)| (cs.offered.word(), as_.offered.word()) == (1, 1))
        });
        assert!([a, c].iter().all(|s| s.state.lock().proofs.iter().all(Option::is_none)));
    }
}

#[test]
fn who_is_told_no_options_goes_through_one_proof() {
    crate::testing::forbid_netlink();
    let h = accepting_by_hand();
    let token = h.token;
    let asked = |turn| {
        h.r.send(Message::Turn { token, turn });
        settle(&[h.c]);
        h.r.next()
    };
    // It shows whatever it is asked for, without a look; once.
    assert_eq!(
        (asked(0), asked(1)),
        (Some(Message::Turn { token, turn: 0 }), Some(Message::Turn { token, turn: 1 }))
    );
    assert_eq!(asked(0), Some(Message::Unproven { token }));
    assert_eq!(asked(2), None);
    // That is enough for who holds the other end.
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
}

#[test]
fn a_connector_of_several_acceptors_has_turns_for_all() {
    let (c, net) = (service(), Net::new());
    let workers = [service(), service(), service()];
    workers.iter().for_each(|w| assert!(w.accepting(net.port())));
    let all: Vec<_> = (0..2 * possession::PROOFS).map(|_| net.connect()).collect();
    all.iter().zip(workers.iter().cycle()).for_each(|(k, w)| assert!(w.noted(k.1)));
    all.iter().for_each(|k| assert!(c.connect(k.0)));
    let everybody = [c, workers[0], workers[1], workers[2]];
    wait_until(&everybody, || {
        all.iter().all(|(cs, as_, _)| (cs.offered.word(), as_.offered.word()) == (1, 1))
    });
    assert!(everybody.iter().all(|s| s.state.lock().proofs.iter().all(Option::is_none)));
}

#[test]
fn one_peer_cannot_fill_the_table() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let r = Raw::caller(net.port());
    r.hello(Role::Connector);
    for n in 0..6000u64 {
        let far = SocketAddr::new("127.0.0.1".parse().unwrap(), (n % 60000) as u16 + 1);
        let tuple =
            Tuple::new(far, SocketAddr::new("127.0.0.1".parse().unwrap(), net.port())).unwrap();
        r.send(candidate(tuple, n));
        if n % 50 == 0 {
            settle(&[a]);
        }
    }
    settle(&[a]);
    assert!(!r.is_ended());
    // An honest one still gets through.
    let c = service();
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    offer_of(cs);
}

/// An acceptor that we play by hand against a connector.
struct ByHand {
    c: &'static Service,
    _squat: Raw,
    r: Raw,
    cs: &'static Socket,
    token: u64,
    net: Net,
    tcp: (TcpStream, TcpStream),
}

fn accepting_by_hand() -> ByHand {
    let (c, net) = (service(), Net::new());
    let squat = Raw::squatter(net.port());
    let (cs, _, tcp) = net.connect();
    assert!(c.connect(cs));
    let r = squat.accept();
    r.hello(Role::Acceptor);
    let Some(Message::Candidate(k)) = r.next() else { panic!("no candidate") };
    assert_eq!(k.tuple, cs.tuple());
    ByHand { c, _squat: squat, r, cs, token: k.token, net, tcp }
}

impl ByHand {
    /// Shows the mark of `turn`, and has the connector show it.
    fn show(&self, turn: u8) {
        self.show_with(&self.tcp.1, self.token, turn);
    }
    fn show_with(&self, carrier: &TcpStream, token: u64, turn: u8) {
        self.r.show(Role::Acceptor, carrier, turn);
        self.r.send(Message::Turn { token, turn });
        settle(&[self.c]);
        assert_eq!(self.r.next(), Some(Message::Turn { token, turn }));
    }
    fn prove(&self) {
        (0..TURNS).for_each(|turn| self.show(turn));
    }
    fn channel(&self) {
        let m = memory(CHANNEL_BYTES);
        self.r.send_fd(
            Message::Channel(proto::Channel {
                channel_bytes: CHANNEL_BYTES as u64,
                slots: SLOTS as u32,
                places: PLACES as u32,
            }),
            m,
        );
        fd_table::close_internal(m);
    }
    fn arena(&self, arena: u32, bytes: usize) {
        let m = memory(bytes);
        self.r.send_fd(Message::Arena(proto::Arena { arena, bytes: bytes as u64 }), m);
        fd_table::close_internal(m);
    }
    fn offer(&self) -> proto::Offer {
        proto::Offer {
            token: self.token,
            tuple: self.cs.tuple().mirrored(),
            slot: 3,
            arena: 0,
            ring_offset: [0, 4096],
            ring_bytes: [4096, 4096],
        }
    }
}

#[test]
fn a_good_offer_is_taken() {
    let h = accepting_by_hand();
    h.prove();
    h.channel();
    h.arena(0, 8192);
    h.r.send(Message::Offer(h.offer()));
    settle(&[h.c]);
    assert_eq!(h.r.next(), Some(Message::Accept { token: h.token, slot: 3 }));
    let o = offer_of(h.cs);
    assert_eq!((o.slot, o.tx_bytes, o.rx_bytes), (3, 4096, 4096));
    assert_eq!(o.rx_ring as usize - o.tx_ring as usize, 4096);
}

#[test]
fn an_offer_without_the_turns_is_refused() {
    let h = accepting_by_hand();
    h.prove();
    h.channel();
    h.arena(0, 8192);
    h.r.send(Message::Offer(h.offer()));
    settle(&[h.c]);
    assert!(matches!(h.r.next(), Some(Message::Accept { .. })));
    // For the next connection nothing is shown, or not all.
    for turns in [0, 1, TURNS - 1] {
        let (cs, _, tcp) = h.net.connect();
        assert!(h.c.connect(cs));
        let Some(Message::Candidate(k)) = h.r.next() else { panic!("no candidate") };
        (0..turns).for_each(|turn| h.show_with(&tcp.1, k.token, turn));
        let o = proto::Offer { token: k.token, tuple: cs.tuple().mirrored(), slot: 4, ..h.offer() };
        h.r.send(Message::Offer(o));
        settle(&[h.c]);
        assert_eq!(
            h.r.next(),
            Some(Message::Refuse { token: k.token, slot: 4, reason: refuse::NOT_AUTHENTICATED }),
            "after {turns}"
        );
        assert!(cs.offered.is_none());
    }
}

#[test]
fn offers_that_do_not_hold_water_are_refused() {
    type Change = Box<dyn Fn(&mut proto::Offer)>;
    let change: Vec<(u16, Change)> = std::vec![
        (refuse::WITHDRAWN, Box::new(|o| o.token ^= 1 << 40)),
        (refuse::WITHDRAWN, Box::new(|o| o.token = u64::MAX)),
        (refuse::WRONG_TUPLE, Box::new(|o| o.tuple = o.tuple.mirrored())),
        (refuse::BAD_MEMORY, Box::new(|o| o.slot = SLOTS as u16)),
        (refuse::BAD_MEMORY, Box::new(|o| o.slot = u16::MAX)),
        (refuse::BAD_MEMORY, Box::new(|o| o.arena = 1)),
        (refuse::BAD_MEMORY, Box::new(|o| o.arena = u32::MAX)),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [2048, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [4096, 6144])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [0, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_bytes = [1 << 31, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [0, 8192])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [0, 2048])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [4096, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [1, 4160])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [u64::MAX - 63, 4096])),
        (refuse::BAD_MEMORY, Box::new(|o| o.ring_offset = [u64::MAX - 4095, 4096])),
    ];
    let h = accepting_by_hand();
    h.prove();
    h.channel();
    h.arena(0, 8192);
    for (i, (reason, f)) in change.iter().enumerate() {
        let mut o = h.offer();
        f(&mut o);
        h.r.send(Message::Offer(o));
        settle(&[h.c]);
        assert_eq!(
            h.r.next(),
            Some(Message::Refuse { token: o.token, slot: o.slot, reason: *reason }),
            "case {i}"
        );
        assert!(h.cs.offered.is_none(), "case {i}");
    }
    h.r.send(Message::Offer(h.offer()));
    settle(&[h.c]);
    offer_of(h.cs);
}

#[test]
fn a_slot_in_use_is_not_taken_again() {
    let h = accepting_by_hand();
    h.prove();
    h.channel();
    h.arena(0, 16384);
    h.r.send(Message::Offer(h.offer()));
    settle(&[h.c]);
    assert!(matches!(h.r.next(), Some(Message::Accept { .. })));
    let (cs, _, tcp) = h.net.connect();
    let tuple = cs.tuple();
    assert!(h.c.connect(cs));
    let Some(Message::Candidate(k)) = h.r.next() else { panic!() };
    (0..TURNS).for_each(|turn| h.show_with(&tcp.1, k.token, turn));
    let o = proto::Offer {
        token: k.token,
        tuple: tuple.mirrored(),
        ring_offset: [8192, 12288],
        ..h.offer()
    };
    h.r.send(Message::Offer(o));
    settle(&[h.c]);
    assert_eq!(
        h.r.next(),
        Some(Message::Refuse { token: k.token, slot: 3, reason: refuse::BAD_MEMORY })
    );
    h.r.send(Message::Offer(proto::Offer { slot: 4, ..o }));
    settle(&[h.c]);
    assert_eq!(h.r.next(), Some(Message::Accept { token: k.token, slot: 4 }));
}

#[test]
fn memory_that_could_be_taken_away_ends_the_link() {
    for wrong in 0..7 {
        let h = accepting_by_hand();
        h.prove();
        let unsealed =
            sys::memfd_create(b"t\0", libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as c_int;
        assert!(sys::ftruncate(unsealed, CHANNEL_BYTES) >= 0);
        let good = proto::Channel {
            channel_bytes: CHANNEL_BYTES as u64,
            slots: SLOTS as u32,
            places: PLACES as u32,
        };
        match wrong {
            0 => h.r.send_fd(Message::Channel(good), unsealed),
            1 => h.r.send_fd(Message::Channel(proto::Channel { slots: 1, ..good }), unsealed),
            2 => {
                h.channel();
                h.channel();
            }
            3 => h.arena(0, 8192),
            4 => {
                h.channel();
                h.arena(1, 8192);
            }
            5 => {
                h.channel();
                h.r.send_fd(
                    Message::Arena(proto::Arena { arena: 0, bytes: CHANNEL_BYTES as u64 }),
                    unsealed,
                );
            }
            _ => h.r.send(Message::Offer(h.offer())),
        }
        settle(&[h.c]);
        assert!(h.r.is_ended(), "case {wrong}");
        assert!(h.cs.offered.is_none());
        assert_eq!(h.c.state.lock().links[0].phase, Phase::Free, "case {wrong}");
        // It is not called again for a while.
        std::thread::sleep(core::time::Duration::from_millis(12));
        settle(&[h.c]);
        assert_eq!(h.c.state.lock().links[0].phase, Phase::Free, "case {wrong}");
        let _ = sys::close(unsealed);
    }
}

#[test]
fn noise_never_hurts() {
    let (a, net) = (service(), Net::new());
    a.accepting(net.port());
    let mut x = 7u64;
    let mut random = move || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) as u8
    };
    for _ in 0..100 {
        let r = Raw::caller(net.port());
        r.hello(Role::Connector);
        let n = usize::from(random()) % 96 + 1;
        let mut bytes: Vec<u8> = (0..n).map(|_| random()).collect();
        if n > 3 {
            bytes[..2].copy_from_slice(&(n as u16 - 2).to_le_bytes());
            bytes[2] %= proto::TABLE.len() as u8 + 2;
            bytes[3] = proto::FORMAT;
        }
        r.send_bytes(&bytes);
        settle(&[a]);
    }
    settle(&[a]);
    let c = service();
    let (cs, as_, _tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    offer_of(cs);
}
