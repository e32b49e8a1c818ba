//! Links that break, and are resumed: in the middle of anything.

use super::hostile::{Stranger, hello};
use super::*;
use netacc_proto::rendezvous::{Candidate, HostHello, Message};

/// Whatever is under way, with the link broken `after` so many steps.
fn in_the_middle(
    model: Model,
    seed: u64,
    after: usize,
    begin: impl Fn(&mut Rig, usize),
    end: impl Fn(&mut Rig, usize),
) {
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    // With another one, for which the link is kept in any case, or alone.
    let conns: Vec<usize> = (0..1 + after % 2).map(|_| rig.connect(0, 1)).collect();
    conns.iter().for_each(|i| rig.promoted(*i));
    rig.play(30, |_, _| {});
    begin(&mut rig, conns[0]);
    rig.play(after, |_, _| {});
    rig.break_links(seed as usize % 2);
    rig.play(60, |_, _| {});
    end(&mut rig, conns[0]);
    for i in conns.into_iter().skip(1) {
        rig.drain(i);
        rig.promoted(i);
        rig.exchange(i, 50_000);
        assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
    }
    rig.finish();
}

#[test]
fn a_link_breaks_while_a_connection_changes_its_pair() {
    for model in MODELS {
        for after in (0..100).step_by(5) {
            let seed = after as u64;
            let begin =
                |rig: &mut Rig, _| rig.wires.break_pairs(&rig.hosts[seed as usize / 2 % 2].fabric);
            in_the_middle(model, seed, after, begin, |rig, i| {
                rig.drain(i);
                rig.promoted(i);
                rig.exchange(i, 50_000);
                assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
            });
        }
    }
}

#[test]
fn a_link_breaks_while_a_connection_is_shut_down() {
    for model in MODELS {
        for after in (0..90).step_by(9) {
            for side in [C, A] {
                let seed = after as u64 * 3 + side as u64;
                in_the_middle(
                    model,
                    seed,
                    after,
                    |rig, i| rig.shut(i, side),
                    |rig, i| {
                        // Its peer gets every byte, then the end; what the peer says still comes.
                        rig.until("the end is told", |r| {
                            while r.receive(i, side ^ 1, 30_000) > 0 {}
                            while r.receive(i, side, 30_000) > 0 {}
                            r.conns[i][side ^ 1].over.is_some()
                        });
                        let [end, other] = [&rig.conns[i][side ^ 1], &rig.conns[i][side]];
                        assert_eq!(
                            (end.over, end.received),
                            (Some(0), other.sent),
                            "{}",
                            rig.describe()
                        );
                        rig.send(i, side ^ 1, 3000);
                        rig.until("the answer comes", |r| {
                            while r.receive(i, side, 30_000) > 0 {}
                            r.conns[i][side].received == r.conns[i][side ^ 1].sent
                        });
                    },
                );
            }
        }
    }
}

#[test]
fn nothing_is_sent_behind_a_shutdown_at_any_moment() {
    for model in MODELS {
        for after in 0..60 {
            let side = after % 2;
            let mut rig = Rig::new(Order::Shuffled(after as u64), model, 2);
            let i = rig.connect(0, 1);
            // Before it is on RDMA, or behind that, also on its way back to the carrier.
            if after % 3 > 0 {
                rig.promoted(i);
            }
            rig.play(after, |_, _| {});
            if after % 3 == 2 {
                let s = rig.conns[i][side].socket;
                if let Some(channel) = s.channel() {
                    channel.far.demote(s.slot.load(Relaxed) as usize, Reason::Internal, true);
                }
                rig.play(after % 16, |_, _| {});
            }
            rig.shut(i, side);
            for _ in 0..30 {
                let (fd, flags) = (rig.conns[i][side].fd, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                // SAFETY: a byte of ours.
                let r = match unsafe { io::send(fd, b"x".as_ptr(), 1, flags) } {
                    // SAFETY: as above.
                    api::PASS => unsafe { sys::sendto(fd, b"x".as_ptr(), 1, flags) },
                    r => r,
                };
                assert_eq!(r, -(libc::EPIPE as isize), "{after}: {}", rig.describe());
                rig.step(side);
            }
            rig.until("the end is told", |r| {
                while r.receive(i, side ^ 1, 30_000) > 0 {}
                r.conns[i][side ^ 1].over.is_some()
            });
            let [end, other] = [&rig.conns[i][side ^ 1], &rig.conns[i][side]];
            assert_eq!((end.over, end.received), (Some(0), other.sent), "{}", rig.describe());
            rig.finish();
        }
    }
}

#[test]
fn a_link_breaks_while_a_connection_is_closed() {
    for model in MODELS {
        for after in (0..90).step_by(9) {
            for side in [C, A] {
                let seed = after as u64 * 3 + side as u64;
                let begin = |rig: &mut Rig, i| {
                    // With everything read, so that the close is a FIN; otherwise it is a reset, as
                    // TCP's.
                    for _ in 0..20 {
                        rig.settle();
                        while rig.receive(i, side, 30_000) > 0 {}
                    }
                    rig.close(i, side);
                };
                in_the_middle(model, seed, after, begin, |rig, i| {
                    rig.until("the end is told", |r| {
                        while r.receive(i, side ^ 1, 30_000) > 0 {}
                        r.conns[i][side ^ 1].over.is_some()
                    });
                    let [end, other] = [&rig.conns[i][side ^ 1], &rig.conns[i][side]];
                    // The peer may have gone on sending: then TCP resets, too, and what had not
                    // been read is gone.
                    if end.over == Some(0) {
                        assert_eq!(end.received, other.sent, "{}", rig.describe());
                    }
                });
            }
        }
    }
}

fn before_anything_is_agreed(begin: impl Fn(&mut Rig) -> Option<c_int>) {
    for model in MODELS {
        for after in 0..25 {
            let mut rig = Rig::new(Order::Shuffled(after), model, 2);
            let other = begin(&mut rig);
            let i = rig.connect(0, 1);
            for _ in 0..after {
                for side in [C, A] {
                    rig.send(i, side, 100);
                }
                rig.play(2, |_, _| {});
            }
            rig.break_links(after as usize % 2);
            rig.play(20, |_, _| {});
            rig.drain(i);
            // (Who was told its stamp then, and has not shown it, shows the next one's.)
            if rig.conns[i][C].socket.syn.was_told() {
                assert!(!rig.is_attached(i, C) && !rig.is_proven(0), "{}", rig.describe());
                let next = rig.connect(0, 1);
                rig.promoted(next);
            }
            rig.promoted(i);
            rig.exchange(i, 20_000);
            rig.finish();
            other.into_iter().for_each(|fd| _ = sys::close(fd));
        }
    }
}

/// The first of the link ports is somebody else's, who does not listen.
#[test]
fn a_link_at_another_port_breaks_before_anything_is_agreed() {
    for after in 0..12 {
        let mut rig = Rig::new(Order::Shuffled(after), Model::ROCE, 2);
        let to = rig.listen(1);
        let first = SocketAddr::new(to.ip(), destinations::link_port(to.port(), 0));
        let holds = tcp_if_free(first);
        // The acceptor listens before anybody calls.
        rig.hosts[0].stopped = true;
        let i = rig.connect(0, 1);
        rig.settle();
        rig.hosts[0].stopped = false;
        rig.until("a link is there", |r| {
            r.chat(i);
            r.remote(0).links.iter().flatten().any(|l| l.is_up())
        });
        rig.break_links(after as usize % 2);
        rig.promoted(i);
        rig.exchange(i, 20_000);
        if let Some(fd) = holds {
            let _ = sys::close(fd);
        }
        rig.finish();
    }
}

#[test]
fn a_link_breaks_before_anything_is_agreed() {
    before_anything_is_agreed(|_| None);
}

/// Another socket has the first port of the links, and takes nothing there.
#[test]
fn a_link_at_the_second_port_breaks_before_anything_is_agreed() {
    before_anything_is_agreed(|rig| Some(rig.listen_below_free(1).1));
}

#[test]
fn a_link_breaks_with_the_last_words_on_it() {
    for seed in seeds(0..40) {
        let model = MODELS[seed as usize % 3];
        let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.play(30, |_, _| {});
        rig.wires.break_pairs(&rig.hosts[seed as usize / 2 % 2].fabric);
        // One end is done with the departure, and the other one does not know.
        let mut done = None;
        for _ in 0..2000 {
            rig.play(1, |_, _| {});
            done = [C, A].into_iter().find(|side| !rig.is_attached(i, *side));
            if done.is_some() {
                break;
            }
        }
        assert!(done.is_some(), "seed {seed}\n{}", rig.describe());
        rig.break_links(0);
        rig.break_links(1);
        rig.play(60, |_, _| {});
        rig.drain(i);
        rig.promoted(i);
        rig.exchange(i, 50_000);
        assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "seed {seed}\n{}", rig.describe());
        rig.finish();
    }
}

#[test]
fn a_slot_that_only_one_end_has_left_is_in_nobodys_way() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let old = rig.connect(0, 1);
        rig.promoted(old);
        // A reset: the peer closes with bytes unread. This end is not closed for long.
        rig.send(old, C, 5000);
        rig.settle();
        rig.close(old, A);
        rig.until("the reset is told", |r| {
            r.receive(old, C, 100);
            r.conns[old][C].over.is_some()
        });
        rig.wires.break_pairs(&rig.hosts[1].fabric);
        rig.settle();
        rig.break_links(1);
        rig.settle();
        rig.until("the link is resumed", |r| r.remote(1).links.iter().flatten().any(|l| l.is_up()));
        let new = rig.connect(0, 1);
        rig.promoted(new);
        rig.exchange(new, 20_000);
        rig.finish();
    }
}

/// An offer was on its way when the connector gave the link up; its peer takes that for broken. The
/// connection is offered again on the next link; also by a peer that does not know yet.
#[test]
fn an_offer_on_a_link_that_was_given_up_is_made_again() {
    for knows in [true, false] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = offered_unheard(&mut rig);
        rig.hosts[1].stopped = !knows;
        let at = rig.remote(0).links.iter().position(Option::is_some).unwrap();
        rig.remote(0).on_link_fault(at, link::Fault::Over);
        rig.settle();
        rig.hosts[0].stopped = false;
        rig.settle();
        rig.hosts[1].stopped = false;
        rig.promoted(i);
        rig.exchange(i, 20_000);
        rig.finish();
    }
}

/// While the link of an offer is broken, who claims the connection in the connector's name, and
/// does not know its SYN, costs it nothing.
#[test]
fn an_offer_on_a_broken_link_stays_whoever_claims_its_connection() {
    let wrong = |stamp: u32| Proof { lowest: stamp.wrapping_add(100_000), span: 0 };
    let lies: [&[&dyn Fn(u32) -> Proof]; 4] =
        [&[&|_| Proof::NONE], &[&wrong], &[&|_| Proof::LATER, &wrong], &[&|_| Proof::TOLD]];
    for lies in lies {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = offered_unheard(&mut rig);
        rig.break_links(1);
        rig.settle();
        let at = name(rig.remote(1).listeners[0].fd, false);
        let port = name(rig.hosts[1].listener, false).port();
        let thief = Stranger::call(rig.hosts[0].address, at);
        let process = rig.remote(0).process;
        thief.say(Message::HostHello(HostHello { process, ..hello(Role::Connector, port) }));
        rig.settle();
        let tuple = rig.conns[i][C].socket.tuple();
        let crate::syn::Said::Stamp(stamp) = rig.conns[i][A].socket.syn.said() else { panic!() };
        for lie in lies {
            let (token, proof) = (5, lie(stamp));
            let (class, fills) = (0, false);
            thief.say(Message::Candidate(Candidate { tuple, token, proof, class, fills }));
            rig.settle();
        }
        let has = |r: &mut Rig| {
            let all = r.remote(1).accepted.iter();
            all.filter(|(_, _, m)| m.agreement.offered().is_some()).count()
        };
        assert_eq!(has(&mut rig), 1, "{}", rig.describe());
        rig.hosts[0].stopped = false;
        rig.promoted(i);
        rig.exchange(i, 20_000);
        drop(thief);
        rig.finish();
    }
}

/// The acceptor has committed itself to another connection's stamp on the next link, which is then
/// closed.
#[test]
fn an_offer_on_a_link_that_was_given_up_waits_for_its_turn_to_be_shown() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let other = rig.connect(0, 1);
    for _ in 0..16 {
        rig.send(other, C, 100);
    }
    rig.settle();
    let i = offered_unheard(&mut rig);
    let at = rig.remote(0).links.iter().position(Option::is_some).unwrap();
    rig.remote(0).on_link_fault(at, link::Fault::Over);
    rig.settle();
    for _ in 0..16 {
        while rig.receive(other, A, 30_000) > 0 {}
        rig.send(other, A, 100);
    }
    rig.settle();
    rig.hosts[0].stopped = false;
    let is_committed = |l: &link::Link| matches!(l.trust, link::Trust::Committed { .. });
    for _ in 0..10_000 {
        if !rig.round() {
            rig.pass();
        }
        if rig.remote(1).links.iter().flatten().any(|l| is_committed(l)) {
            break;
        }
    }
    rig.hosts[0].stopped = true;
    rig.settle();
    let kept = rig.remote(1).candidates.len();
    assert_eq!(kept, 2, "{}", rig.describe());
    rig.close(other, C);
    rig.hosts[0].stopped = false;
    rig.promoted(i);
    rig.exchange(i, 20_000);
    rig.finish();
}

/// A connection that has been offered; the connector is stopped, and does not know yet. It has no
/// other.
fn offered_unheard(rig: &mut Rig) -> usize {
    let first = rig.connect(0, 1);
    rig.promoted(first);
    let i = rig.connect(0, 1);
    rig.hosts[1].stopped = true;
    rig.until("it is told of", |r| {
        r.send(i, C, 700);
        let tuple = r.conns[i][C].socket.tuple();
        r.remote(0).connected.iter().any(|(_, t, m)| *t == tuple && m.agreement.is_told(0))
    });
    rig.hosts[0].stopped = true;
    rig.hosts[1].stopped = false;
    rig.until("it is offered", |r| {
        r.chat(i);
        let links = r.remote(1).links.iter().flatten();
        links.flat_map(|l| &l.conns).any(|c| c.slot.state == SlotState::Offered)
    });
    [C, A].into_iter().for_each(|side| rig.close(first, side));
    i
}
