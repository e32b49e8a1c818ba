//! Acceleration is turned off while connections are between hosts, and on again.

use super::*;
use crate::config;
use crate::socket::{self, Event, Named};
use crate::testing::pair::{Fd, Set};
use libc::epoll_event;
use netacc_control::config::Config;

fn off() -> Config {
    Config { accelerate_by_default: false, ..Config::default() }
}

/// Both applications go on, while only the accepting one's library is on.
fn talk(rig: &mut Rig, i: usize) {
    config::with(off(), || {
        rig.send(i, C, 700);
        while rig.receive(i, C, 5000) > 0 {}
    });
    rig.send(i, A, 700);
    while rig.receive(i, A, 5000) > 0 {}
}

/// The connecting end is off for so long. `alone`: the link ends, and is not made again, as the
/// other process is stopped for a while. Why they are on TCP at the end of that, whether the
/// connection is accelerated again when it is on, and why not.
fn off_for(seconds: u64, alone: bool) -> ([Reason; 2], bool, [Reason; 2]) {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    let s = rig.conns[i][C].socket;
    config::with(off(), || io::pause(s, s.generation16(), s.fd.load(SeqCst), 0));
    rig.until("it is on TCP, and the accepting end waits", |r| {
        talk(r, i);
        let on_links = r.remote(0).links.iter().flatten().any(|l| l.in_use());
        let waits = r.conns[i][A].socket.has(flag::NOTED);
        !on_links && waits && r.conns[i].iter().all(|e| e.socket.is(State::Candidate))
    });
    rig.settle();
    if alone {
        rig.hosts[1].stopped = true;
        let remote = rig.remote(0);
        let at = remote.links.iter().position(Option::is_some).unwrap();
        remote.on_link_fault(at, link::Fault::Idle);
    }
    for second in 0..seconds {
        rig.hosts[1].stopped &= second < 20;
        talk(&mut rig, i);
        rig.settle();
        testing::pass_ns(SECOND_NS);
    }
    for _ in 0..2 {
        rig.settle();
        talk(&mut rig, i);
    }
    let reasons = |rig: &Rig| [C, A].map(|side| rig.reason(i, side));
    let meanwhile = reasons(&rig);
    io::resume(s, s.generation16());
    for _ in 0..60 {
        rig.chat(i);
        rig.settle();
        if rig.is_fast(i) {
            break;
        }
        testing::pass_ns(SECOND_NS);
    }
    let comes = (meanwhile, rig.is_fast(i), reasons(&rig));
    rig.exchange(i, 50_000);
    rig.finish();
    comes
}

/// The accepting end waits for 30 s; and for as long as there is a link, in any case.
#[test]
fn who_was_off_for_longer_than_it_is_waited_for_comes_back_while_there_is_a_link() {
    use Reason::{DisabledByConfig, NotClaimed, PeerAskedForTcp, PeerWithoutLibrary};
    let came = [(28, true), (35, true), (100, false)].map(|(s, alone)| off_for(s, alone));
    assert_eq!(
        came,
        [
            ([DisabledByConfig, PeerAskedForTcp], true, [Reason::None; 2]),
            ([DisabledByConfig, PeerWithoutLibrary], false, [NotClaimed, PeerWithoutLibrary]),
            ([DisabledByConfig, PeerAskedForTcp], true, [Reason::None; 2]),
        ]
    );
}

#[test]
fn what_was_taken_back_comes_again() {
    for model in MODELS {
        for seed in 0..6 {
            let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            for round in 0..3 {
                // With bytes under way, at one end or at both.
                rig.play(seed as usize * 5, |_, _| {});
                let ends = [C, A].map(|side| rig.conns[i][side].socket);
                let turned = if (seed + round) % 3 == 0 {
                    &ends[..]
                } else {
                    &ends[round as usize % 2..][..1]
                };
                config::with(off(), || {
                    for s in turned {
                        io::pause(s, s.generation16(), s.fd.load(SeqCst), 0);
                    }
                    rig.until("on TCP", |r| {
                        while r.receive(i, C, 30_000) > 0 {}
                        while r.receive(i, A, 30_000) > 0 {}
                        ends.iter().all(|s| s.is(State::Candidate))
                    });
                    rig.drain(i);
                    rig.exchange(i, 20_000);
                    for s in turned {
                        assert!(s.is(State::Candidate));
                        let record = s.record().unwrap();
                        assert_eq!(record.reason.load(SeqCst), Reason::DisabledByConfig as u32);
                    }
                });
                for s in turned {
                    io::resume(s, s.generation16());
                }
                rig.promoted(i);
                rig.exchange(i, 50_000);
                assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
            }
            rig.finish();
        }
    }
}

/// A receive has found it attached; then it is taken back, and who turns acceleration on again, or
/// attaches it, has claimed it. (Bytes of such a call were never counted: it was TCP's for good,
/// or, once it was attached again, had the ring's bytes behind it.)
#[test]
fn a_call_that_it_is_taken_back_under_is_counted() {
    use std::sync::mpsc::channel;
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    for _ in 0..3 {
        rig.promoted(i);
        let (s, fd) = (rig.conns[i][A].socket, rig.conns[i][A].fd);
        let rig_cell = core::cell::RefCell::new(&mut rig);
        let ((has_claimed, claimed), (over, is_over)) = (channel(), channel());
        let claims = move || {
            assert!(s.state.change(State::Candidate, Event::Claimed));
            has_claimed.send(()).unwrap();
            // The call waits for this. (One that does not is over, and its end has come.)
            let _ = is_over.recv_timeout(std::time::Duration::from_millis(50));
            assert!(s.state.happens(Event::Begun));
        };
        let claims = core::cell::Cell::new(Some(claims));
        let thread = core::cell::Cell::new(None);
        let mut bytes = [0; 700];
        let r = io::receive_behind(fd, &mut bytes, || {
            let mut rig = rig_cell.borrow_mut();
            config::with(off(), || io::pause(s, s.generation16(), fd, 0));
            rig.until("it is on TCP", |r| r.conns[i].iter().all(|e| e.socket.is(State::Candidate)));
            rig.send(i, C, 700);
            thread.set(Some(std::thread::spawn(claims.take().unwrap())));
            claimed.recv().unwrap();
        });
        let _ = over.send(());
        thread.take().unwrap().join().unwrap();
        assert!(r > 0, "{r}");
        rig.came(i, A, &bytes[..r as usize]);
        let received = s.rx_bytes.load(SeqCst);
        assert!(socket::counts_agree(s, fd, None, Some(received)), "{received}");
        io::resume(s, s.generation16());
    }
    rig.promoted(i);
    rig.exchange(i, 50_000);
    rig.finish();
}

/// An epoll_ctl of which nobody has seen yet that the connection is taken back: the kernel has the
/// registration from there on, and the set knows of it. (It was changed where nobody looks, or not
/// recorded, or the connection was TCP's for good: `channel-failed`.)
#[test]
fn a_set_follows_a_connection_that_is_taken_back() {
    for op in [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.drain(i);
        let End { socket: s, fd, .. } = rig.conns[i][A];
        let on = Named { s, g: s.generation16(), fd };
        let set = Set::new();
        let event = |data| epoll_event { events: libc::EPOLLIN as u32, u64: data };
        let says = || set.look(16).into_iter().map(|(_, data)| data).collect::<Vec<_>>();
        let adds = op == libc::EPOLL_CTL_ADD;
        if adds {
            let channel = s.channel.swap(core::ptr::null_mut(), SeqCst);
            assert_eq!(
                crate::epoll::ctl_of_attached(set.0, op, on, event(8)),
                None,
                "at this moment"
            );
            s.channel.store(channel, SeqCst);
        } else {
            set.add(Fd(fd), libc::EPOLLIN).unwrap();
        }
        config::with(off(), || io::pause(s, s.generation16(), fd, 0));
        rig.until("it is on TCP", |r| r.conns[i].iter().all(|e| e.socket.is(State::Candidate)));
        assert_eq!(crate::epoll::ctl_of_attached(set.0, op, on, event(8)), None, "{op}");
        assert_eq!(rig.reason(i, A), Reason::DisabledByConfig);
        assert_eq!(set.ctl(op, Fd(fd), libc::EPOLLIN, 8), Ok(()), "{op}");
        let expected = if op == libc::EPOLL_CTL_DEL { &[][..] } else { &[8] };
        rig.send(i, C, 700);
        assert_eq!(says(), expected, "{op}: from the kernel");
        rig.drain(i);
        io::resume(s, s.generation16());
        rig.promoted(i);
        rig.drain(i);
        assert_eq!(says(), [], "{op}: all is read");
        rig.send(i, C, 700);
        rig.settle();
        assert_eq!(says(), expected, "{op}: from the ring");
        set.close();
        rig.drain(i);
        rig.finish();
    }
}

/// A poll sleeps while its connection is taken back, and attached again by what other threads send:
/// it hears what comes then. (It slept on the carrier, and the receiver was armed beside it.)
#[test]
fn a_poll_follows_a_connection_that_is_taken_back() {
    use crate::testing::{Moment, just_before};
    use std::rc::Rc;
    let rig = Rc::new(RefCell::new(Rig::new(Order::Prompt, Model::ROCE, 2)));
    let i = rig.borrow_mut().connect(0, 1);
    rig.borrow_mut().promoted(i);
    rig.borrow_mut().drain(i);
    let End { socket: s, fd, .. } = rig.borrow().conns[i][A];
    let (own, others) = (rig.clone(), rig.clone());
    just_before(Moment::Sleep, move || {
        let rig = &mut *own.borrow_mut();
        config::with(off(), || io::pause(s, s.generation16(), fd, 0));
        rig.until("it is on TCP", |r| r.conns[i].iter().all(|e| e.socket.is(State::Candidate)));
        io::resume(s, s.generation16());
        just_before(Moment::Sleep, move || {
            let rig = &mut *others.borrow_mut();
            rig.until("it is attached again", |r| {
                r.send(i, A, 700);
                while r.receive(i, C, 5000) > 0 {}
                r.conns[i].iter().all(|e| e.socket.is(State::Attached))
            });
            rig.settle();
            rig.send(i, C, 700);
            rig.settle();
        });
    });
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry of our own; no mask.
    let r = unsafe { api::poll(&mut one, 1, 5_000_000_000, core::ptr::null()) };
    assert_eq!((r, one.revents), (1, libc::POLLIN));
    let mut rig = Rc::into_inner(rig).unwrap().into_inner();
    rig.drain(i);
    rig.promoted(i);
    rig.exchange(i, 50_000);
    rig.finish();
}

/// Both ends have agreed, and the connecting one is off before it is attached: the other one, which
/// may be attached alone, does not say that both have agreed for as long as that is so.
#[test]
fn who_is_off_before_it_is_attached_gives_its_offer_back() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.until("both have agreed", |r| {
        let agreed = r.conns[i].iter().all(|e| e.socket.offered.is_made());
        if !agreed {
            r.chat(i);
        }
        agreed
    });
    let s = rig.conns[i][C].socket;
    config::with(off(), || io::pause(s, s.generation16(), s.fd.load(SeqCst), 0));
    for _ in 0..20 {
        talk(&mut rig, i);
        rig.settle();
    }
    assert_eq!(
        [C, A].map(|side| rig.reason(i, side)),
        [Reason::DisabledByConfig, Reason::PeerAskedForTcp]
    );
    assert!(rig.conns[i].iter().all(|e| e.socket.is(State::Candidate)), "{}", rig.describe());
    io::resume(s, s.generation16());
    rig.promoted(i);
    rig.exchange(i, 50_000);
    rig.finish();
}

/// The switch looks at a candidate, and has claimed it for as long as that takes, whatever the
/// threads of both hosts do meanwhile: they find their agreement, and lose nothing of it.
#[test]
fn what_is_looked_at_while_both_ends_agree_is_accelerated() {
    for looked_at in [&[C][..], &[A], &[C, A]] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        let ends: Vec<_> = looked_at.iter().map(|side| rig.conns[i][*side].socket).collect();
        rig.until("it is accelerated", |r| {
            r.chat(i);
            let claimed =
                |s: &&&Socket| s.state.change(State::Candidate, crate::socket::Event::Claimed);
            let claimed: Vec<_> = ends.iter().filter(claimed).collect();
            r.settle();
            claimed.iter().for_each(|s| assert!(s.state.happens(crate::socket::Event::Begun)));
            r.is_fast(i)
        });
        rig.exchange(i, 50_000);
        rig.finish();
    }
}
