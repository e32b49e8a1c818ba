//! Who finds whom, what both agree on, and what becomes of it.

use super::*;

#[test]
fn a_connection_is_agreed_on() {
    let (a, c, net) = both();
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
    let (a, c, net) = both();
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
    // (What is known of a port is known for 50 ms. A busy machine may take longer between two
    // lines.)
    while !is_remembered_and_found_later() {}
}

/// Whether the second look came while it is remembered that nobody is there.
fn is_remembered_and_found_later() -> bool {
    let (a, c, net) = (service(), service(), Net::new());
    let began = std::time::Instant::now();
    let (cs, as_, _tcp) = net.connect();
    assert!(!c.connect(cs));
    assert!(!c.connect(cs));
    assert!(!c.connected(cs, true), "not accepting yet");
    a.accepting(net.port());
    a.noted(as_);
    let (cs2, as2, _tcp2) = net.connect();
    if c.connect(cs2) {
        assert!(began.elapsed() >= core::time::Duration::from_millis(50), "remembered");
        return false;
    }
    std::thread::sleep(core::time::Duration::from_millis(300));
    for s in [cs2, cs] {
        assert!(c.connected(s, true) && c.noted(s));
    }
    a.noted(as2);
    settle(&[a, c]);
    offer_of(as_);
    offer_of(as2);
    true
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
    let (a, c, net) = both();
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
    let (a, c, net) = both();
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
    let (a, c, net) = both();
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
    let (a, c, net) = both();
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
    let (a, c, net) = both();
    let (cs, as_, _tcp) = net.connect();
    c.connect(cs);
    a.noted(as_);
    // The acceptor makes its offer before the withdrawal arrives.
    until_offered(a, c, as_);
    c.closing(cs);
    settle(&[a, c]);
    assert_eq!((cs.offered.word(), as_.offered.word()), (0, 0));
    let (cs, as_, _tcp) = agree(a, c, &net);
    assert_eq!(offer_of(as_).slot, 0);
    offer_of(cs);
}

#[test]
fn an_acceptor_that_closes_while_the_offer_travels_gives_its_end_back() {
    let (a, c, net) = both();
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
    let (cs2, as2, _tcp2) = agree(a, c, &net);
    assert_eq!(offer_of(cs2).slot, o.slot, "reused");
    assert_eq!(channel_of(as2).users.load(Relaxed), 1);
}

#[test]
fn a_slot_is_reused_only_after_both_ends_left_and_starts_from_zero() {
    let (a, c, net) = both();
    let mut held = Vec::new();
    let mut agreed = || {
        let (cs, as_, tcp) = agree(a, c, &net);
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
        let (a, c, net) = both();
        let agreed = || agree(a, c, &net);
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
    let (a, c, net) = both();
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
    let (a, c, net) = both();
    let (cs, as_, _tcp) = agree(a, c, &net);
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
