//! Each call of the fabric's fails once, at each end: no byte is wrong, nothing hangs, and nothing
//! stays open.

use super::*;

/// The calls that are made until bytes are on the ring and while they are, and how many of each are
/// tried.
const CALLS: [(Call, u64); 16] = [
    (Call::OpenManager, 1),
    (Call::OpenDevice, 1),
    (Call::OpenDomain, 1),
    (Call::OpenQueue, 1),
    (Call::Register, 2),
    (Call::Listen, 1),
    (Call::Resolve, 1),
    (Call::Create, 1),
    (Call::Connect, 1),
    (Call::Accept, 1),
    (Call::Post, 4),
    (Call::PostReceives, 3),
    (Call::Poll, 3),
    (Call::Arm, 3),
    (Call::Clear, 1),
    (Call::NextFault, 1),
];

fn fails_once(model: Model, h: usize, call: Call, nth: u64, errno: c_int) {
    let what = format!("{:?} {call:?} number {nth} of host {h}, errno {errno}", model.transport);
    let seed = nth * 31 + h as u64 * 7 + call as u64;
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    rig.wires.fail_call(&rig.hosts[h].fabric, call, nth, errno);
    let first = rig.connect(0, 1);
    for _ in 0..24 {
        rig.chat(first);
        rig.play(20, |_, _| {});
        rig.settle();
        rig.pass();
    }
    rig.drain(first);
    for side in [C, A] {
        assert_eq!(rig.conns[first][side].over, None, "{what}\n{}", rig.describe());
        // On TCP for a reason, unless it waits for a better time.
        let plain = rig.conns[first][side].socket.is(crate::socket::State::Plain);
        let why = rig.reason(first, side);
        assert!(
            !plain || !matches!(why, Reason::None | Reason::Negotiating),
            "{what}\n{}",
            rig.describe()
        );
    }
    // Whatever it was, it is over: later connections are served.
    testing::pass_ns(70_000_000_000);
    rig.settle();
    let second = rig.connect(0, 1);
    rig.until(&what, |r| {
        r.chat(second);
        r.is_fast(second)
    });
    rig.exchange(second, 20_000);
    rig.exchange(first, 20_000);
    rig.finish();
}

/// iWARP shares TCP's ports, and the manager does not know which of them are taken.
#[test]
fn a_pair_whose_port_is_taken_has_another_one_at_once() {
    let mut rig = Rig::new(Order::Shuffled(5), Model::SIW, 2);
    for nth in 1..=3 {
        rig.wires.fail_call(&rig.hosts[0].fabric, Call::Connect, nth, libc::EADDRINUSE);
    }
    let conn = rig.connect(0, 1);
    rig.promoted(conn);
    assert_eq!(rig.calls(0, Call::Connect), 4);
    // (The acceptor has asked for this one, and for no other.)
    assert_eq!(rig.calls(1, Call::Accept), 1);
    assert_eq!(rig.remote(1).links.iter().flatten().map(|l| l.next_pair).max(), Some(1));
    rig.exchange(conn, 20_000);
    rig.finish();
}

#[test]
fn each_call_fails_once_at_each_end() {
    for (m, model) in MODELS.into_iter().enumerate() {
        for (call, count) in CALLS {
            for h in [0, 1] {
                for nth in 1..=count {
                    let errno =
                        if (m as u64 + nth).is_multiple_of(2) { libc::ENOMEM } else { libc::EIO };
                    fails_once(model, h, call, nth, errno);
                }
            }
        }
    }
}

/// What cannot be closed stays open; nothing else suffers.
#[test]
fn what_cannot_be_closed_is_left() {
    for model in MODELS {
        for nth in 1..=6 {
            for h in [0, 1] {
                let mut rig = Rig::new(Order::Shuffled(nth), model, 2);
                let first = rig.connect(0, 1);
                rig.promoted(first);
                rig.wires.fail_call(&rig.hosts[h].fabric, Call::Close, nth, libc::EBUSY);
                rig.wires.break_pairs(&rig.hosts[0].fabric);
                rig.play(60, |_, _| {});
                rig.drain(first);
                rig.promoted(first);
                rig.exchange(first, 20_000);
                let second = rig.connect(0, 1);
                rig.promoted(second);
                for i in [first, second] {
                    rig.exchange(i, 20_000);
                    rig.close(i, C);
                    rig.close(i, A);
                }
                // A pair keeps its receives and its domain open, and nothing more stays.
                rig.until("all else is closed", |r| {
                    let left = |o: Objects| o.pairs + o.regions + o.domains;
                    (0..2).all(|h| {
                        r.remote(h)
                            .links
                            .iter()
                            .flatten()
                            .all(|l| !l.in_use() && l.pairs.is_empty())
                    }) && left(r.objects(h)) <= 3
                        && left(r.objects(1 - h)) == 0
                });
            }
        }
    }
}

/// Without news of the manager's there are no pairs; connections stay where they are.
#[test]
fn a_manager_that_fails_is_not_asked_again() {
    for model in MODELS {
        for nth in 1..=3 {
            for h in [0, 1] {
                let mut rig = Rig::new(Order::Shuffled(nth), model, 2);
                rig.wires.fail_call(&rig.hosts[h].fabric, Call::NextEvent, nth, libc::EIO);
                let i = rig.connect(0, 1);
                for _ in 0..40 {
                    rig.chat(i);
                    rig.settle();
                    rig.pass();
                }
                rig.exchange(i, 50_000);
                assert!(rig.conns[i].iter().all(|e| e.over.is_none()));
                // (Requests that nobody hears of lie in the manager, as many as its backlog is.)
            }
        }
    }
}

#[test]
fn memory_that_cannot_be_pinned_is_a_reason() {
    for model in MODELS {
        for h in [0, 1] {
            // Enough for the receives of a pair, and not for rings.
            let mut rig = Rig::new(Order::Prompt, Model { registered_max: 16_000, ..model }, 2);
            let other = rig.wires.host(rig.hosts[1 - h].address, model);
            rig.hosts[1 - h].fabric = other;
            let i = rig.connect(0, 1);
            for _ in 0..40 {
                rig.chat(i);
                rig.settle();
                rig.pass();
            }
            rig.exchange(i, 20_000);
            let own = if h == 0 { C } else { A };
            assert_eq!(rig.reason(i, own), Reason::MemlockLimit, "{}", rig.describe());
            assert_eq!(rig.reason(i, own ^ 1), Reason::PeerRefused, "{}", rig.describe());
            rig.finish();
        }
    }
}

/// It says so while it is left alone, and is tried again by itself.
#[test]
fn a_call_that_is_refused_is_a_reason() {
    // (A connector opens its device itself; the acceptor makes what the pair is of.)
    let connectors = [Call::OpenManager, Call::OpenDevice].map(|call| (0, C, call));
    let acceptors = [Call::OpenQueue, Call::OpenDomain, Call::Register, Call::Create, Call::Accept];
    for model in MODELS {
        for (h, own, call) in connectors.into_iter().chain(acceptors.map(|call| (1, A, call))) {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            rig.wires.fail_call(&rig.hosts[h].fabric, call, 1, libc::EIO);
            let i = rig.connect(0, 1);
            let mut is_said = false;
            for _ in 0..40 {
                rig.chat(i);
                rig.settle();
                is_said |= rig.reason(i, own).name() == "rdma-refused";
                rig.pass();
            }
            assert!(is_said, "{call:?}: {}", rig.describe());
            testing::pass_ns(70_000_000_000);
            rig.settle();
            let later = rig.connect(0, 1);
            rig.promoted(later);
            rig.exchange(later, 10_000);
            rig.finish();
        }
    }
}

#[test]
fn without_an_io_thread_there_is_no_queue() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        rig.remote(1).devices.io_threads.started = 0;
        testing::set_threads(Threads::Refuse);
        let i = rig.connect(0, 1);
        for _ in 0..10 {
            rig.chat(i);
            rig.settle();
            rig.pass();
        }
        assert!(!rig.is_attached(i, C) && !rig.is_attached(i, A));
        assert_eq!(rig.objects(1).queues, 0, "{}", rig.describe());
        io_threads::EPOLLS[0].store(rig.io, Relaxed);
        rig.remote(1).devices.io_threads.started = 1;
        testing::set_threads(Threads::Hold);
        rig.promoted(i);
        rig.exchange(i, 10_000);
        rig.finish();
    }
}

#[test]
fn connections_that_are_over_wait_for_no_pair() {
    let mut rig = Rig::new(Order::Prompt, Model::SIW, 2);
    // iWARP's pairs need a thread.
    testing::set_threads(Threads::Refuse);
    for _ in 0..30 {
        let i = rig.connect(0, 1);
        for _ in 0..5 {
            rig.chat(i);
            rig.settle();
        }
        rig.close(i, C);
        rig.close(i, A);
    }
    let waiting =
        |r: &mut Rig| r.remote(1).links.iter().flatten().map(|l| l.waiting.len()).sum::<usize>();
    assert!(waiting(&mut rig) > 0, "the test is none");
    rig.until("nobody waits", |r| waiting(r) == 0);
    // And no pair is asked for any more.
    let asked = rig.calls(0, Call::Resolve);
    for _ in 0..20 {
        rig.settle();
        rig.pass();
    }
    assert_eq!(rig.calls(0, Call::Resolve), asked);
    rig.finish();
}

/// As when the process has no descriptor for a caller: it calls again, and is heard.
#[test]
fn a_listener_that_could_not_take_a_caller_takes_the_next() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 3);
    let first = rig.connect(0, 1);
    rig.promoted(first);
    let fd = rig.remote(1).listeners[0].fd;
    // (To take a caller of one that does not listen is an error. The port stays its own.)
    assert!(sys::shutdown(fd, libc::SHUT_RDWR) >= 0);
    rig.settle();
    assert_ne!(rig.remote(1).deaf_until, 0, "the test is none");
    assert!(sys::listen(fd, 16) >= 0);
    let second = rig.connect(2, 1);
    rig.promoted(second);
    assert_eq!(rig.remote(1).deaf_until, 0);
    rig.finish();
}

/// iWARP in hardware has ports of its own: that one of TCP's is free says nothing of a listener.
#[test]
fn a_listener_without_a_port_of_tcps_is_left_alone() {
    let mut rig = Rig::new(Order::Prompt, Model::SIW, 2);
    let first = rig.connect(0, 1);
    rig.promoted(first);
    let listens = rig.calls(1, Call::Listen);
    for _ in 0..3 {
        rig.remote(1).listeners.iter_mut().for_each(|l| l.doubted = true);
        let i = rig.connect(0, 1);
        rig.promoted(i);
    }
    assert_eq!(rig.calls(1, Call::Listen), listens);
    rig.finish();
}

/// siw's listeners vanish now and then. They are made anew when a pair does not come, however often
/// that is so, and no later than the next pair is tried.
#[test]
fn a_listener_that_has_vanished_is_made_anew() {
    let mut rig = Rig::new(Order::Prompt, Model::SIW, 3);
    for host in [0, 2, 0] {
        // (Before the link's first pair, or where it has others.)
        let first = rig.connect(host, 1);
        rig.until("there is a link", |r| {
            r.chat(first);
            r.remote(host).links.iter().flatten().any(|l| l.is_up())
        });
        // (Listeners of the fabric in memory hold no port of TCP's, as siw's do.)
        rig.remote(1).listeners.iter_mut().for_each(|l| l.holds_port = true);
        rig.wires.lose_listeners(&rig.hosts[1].fabric);
        let began = sys::now_ns();
        let conns: Vec<usize> = (0..5).map(|_| rig.connect(host, 1)).collect();
        for i in conns {
            rig.promoted(i);
        }
        let ms = (sys::now_ns() - began) / 1_000_000;
        assert!(ms < 3_000, "{ms} ms");
        rig.promoted(first);
    }
    rig.finish();
}
