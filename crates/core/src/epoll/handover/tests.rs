//! A registration that changes hands, between the kernel and the library, is still the one that the
//! application has made.

use super::super::untag;
use crate::path::tests::{candidate_within_the_host, talk_until_within_the_host};
use crate::socket::{Socket, State};
use crate::testing::pair::{Fd, LONG_NS, On, Pair, Set, on_both};
use crate::{fd_table, io, sys};
use libc::{EEXIST, EINVAL, ENOENT, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT};
use libc::{POLLIN, epoll_event};
use netacc_control::stats::Reason;
use std::time::Instant;
use std::vec::Vec;

fn bytes(p: Pair) {
    p.c.send(b"b").unwrap();
}

fn socket(fd: Fd) -> (&'static Socket, u16) {
    fd_table::socket(fd.0).unwrap()
}

/// What the kernel alone has for the one connection in the set, under the data that the application
/// gave. (Besides what the library hears its doorbells by.)
fn kernel_says(set: &Set) -> i32 {
    let mut list = [epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: room for four events; no mask.
    let n = unsafe { sys::epoll_look(set.0, list.as_mut_ptr(), 4, core::ptr::null()) };
    let told = list.iter().take(n as usize).filter(|event| untag(event.u64).is_none());
    let told: Vec<_> = told.map(|event| (event.events as i32, event.u64)).collect();
    match told[..] {
        [] => 0,
        [(events, 7)] => events,
        ref more => panic!("{more:?}"),
    }
}

// ---- from the kernel to the library -------------------------------------------------------------

/// A connection in the kernel, and one that comes into a ring when it is told to, each with its end
/// `a` in a set; both have moved the same bytes then.
fn that_comes_to_a_ring(events: i32, test: impl Fn(Pair, &Set, &dyn Fn())) {
    let set = Set::new();
    let p = Pair::new(On::Kernel);
    set.add(p.a, events).unwrap();
    test(p, &set, &|| ());
    p.close();
    set.close();

    let set = Set::new();
    let mut ends = candidate_within_the_host();
    let p = Pair::of(&ends);
    let ends = core::cell::RefCell::new(&mut ends);
    set.add(p.a, events).unwrap();
    test(p, &set, &|| {
        talk_until_within_the_host(&mut ends.borrow_mut());
        assert!(socket(p.a).0.published.receives_fast());
    });
    p.close();
    set.close();
}

#[test]
fn what_is_asked_for_is_reported_from_a_ring() {
    for edge in [0, EPOLLET] {
        that_comes_to_a_ring(EPOLLIN | edge, |p, set, come| {
            bytes(p);
            assert_eq!(set.says(), EPOLLIN);
            p.a.drain();
            assert_eq!(set.says(), 0);
            come();
            // (One edge may be in vain.)
            set.says();
            assert_eq!(set.says(), 0);
            bytes(p);
            assert_eq!(set.says(), EPOLLIN, "{:?}", p.on);
            assert_eq!(set.says() == 0, edge != 0, "{:?}", p.on);
            set.modify(p.a, EPOLLOUT | edge).unwrap();
            assert_eq!(set.says(), EPOLLOUT);
            set.delete(p.a).unwrap();
            assert_eq!(set.says(), 0);
        });
    }
}

#[test]
fn what_has_fired_has_fired_in_a_ring() {
    let once = EPOLLIN | EPOLLONESHOT;
    that_comes_to_a_ring(once, |p, set, come| {
        bytes(p);
        assert_eq!(set.says(), EPOLLIN);
        p.a.drain();
        come();
        bytes(p);
        assert_eq!(set.says(), 0, "{:?}", p.on);
        assert_eq!(set.add(p.a, once), Err(EEXIST));
        set.modify(p.a, once).unwrap();
        assert_eq!((set.says(), set.says()), (EPOLLIN, 0), "{:?}", p.on);
    });
}

#[test]
fn who_is_taken_out_meanwhile_is_out() {
    that_comes_to_a_ring(EPOLLIN, |p, set, come| {
        set.delete(p.a).unwrap();
        come();
        bytes(p);
        assert_eq!(set.says(), 0);
        assert_eq!(set.modify(p.a, EPOLLIN), Err(ENOENT));
        set.add(p.a, EPOLLIN).unwrap();
        assert_eq!(set.says(), EPOLLIN);
    });
}

// ---- back to the kernel -------------------------------------------------------------------------

/// A connection whose end `a` the set has, `before` that goes back to its carrier.
fn that_goes_back(events: i32, before: impl Fn(Pair, &Set), test: impl Fn(Pair, &Set)) {
    on_both(|p| {
        let set = Set::new();
        set.add(p.a, events).unwrap();
        before(p, &set);
        if p.on == On::Ring {
            let (s, g) = socket(p.a);
            let began = Instant::now();
            while !io::to_kernel(s, g, p.a.0, Reason::SocketOption, false) {
                assert!(began.elapsed().as_nanos() < LONG_NS as u128, "it does not go");
            }
            assert!(s.is(State::Plain));
        }
        test(p, &set);
        set.close();
        p.close();
    });
}

#[test]
fn what_is_asked_for_is_asked_of_the_kernel() {
    that_goes_back(
        EPOLLIN,
        |_, _| (),
        |p, set| {
            assert_eq!(kernel_says(set), 0);
            bytes(p);
            assert_eq!((kernel_says(set), kernel_says(set)), (EPOLLIN, EPOLLIN));
            assert_eq!(set.says(), EPOLLIN);
            set.modify(p.a, EPOLLOUT).unwrap();
            assert_eq!((kernel_says(set), set.says()), (EPOLLOUT, EPOLLOUT));
            set.delete(p.a).unwrap();
            assert_eq!((kernel_says(set), set.says()), (0, 0));
        },
    );
    that_goes_back(
        EPOLLIN | EPOLLET,
        |_, _| (),
        |p, set| {
            bytes(p);
            assert_eq!((kernel_says(set), kernel_says(set)), (EPOLLIN, 0));
        },
    );
}

#[test]
fn what_is_ready_is_told_by_the_kernel() {
    for more in [0, EPOLLET, EPOLLONESHOT] {
        let becomes_ready = |p: Pair, set: &Set| {
            bytes(p);
            if more == 0 {
                // It is, for the next wait, too.
                assert_eq!(set.says(), EPOLLIN);
            }
        };
        that_goes_back(EPOLLIN | more, becomes_ready, |p, set| {
            assert_eq!(kernel_says(set), EPOLLIN, "{more:#x} ({:?})", p.on);
            assert_eq!(kernel_says(set) == 0, more != 0);
            assert_eq!(p.a.receive(9).unwrap(), b"b");
        });
    }
}

/// As it was changed in the library, of which the kernel has not heard.
#[test]
fn the_latest_registration_goes_back() {
    that_goes_back(
        EPOLLIN,
        |p, set| set.modify(p.a, EPOLLOUT).unwrap(),
        |_, set| assert_eq!(kernel_says(set), EPOLLOUT),
    );
    that_goes_back(
        EPOLLIN | EPOLLOUT,
        |p, set| set.delete(p.a).unwrap(),
        |p, set| {
            bytes(p);
            assert_eq!((kernel_says(set), set.says()), (0, 0));
            assert_eq!(set.modify(p.a, EPOLLOUT), Err(ENOENT));
            set.add(p.a, EPOLLOUT).unwrap();
            assert_eq!(kernel_says(set), EPOLLOUT);
        },
    );
    that_goes_back(
        EPOLLIN,
        |p, set| {
            set.delete(p.a).unwrap();
            set.add(p.a, EPOLLOUT | EPOLLET).unwrap();
        },
        |_, set| assert_eq!((kernel_says(set), kernel_says(set)), (EPOLLOUT, 0)),
    );
}

#[test]
fn what_fires_once_fires_once_in_the_kernel() {
    let once = EPOLLIN | EPOLLONESHOT;
    // Armed.
    that_goes_back(
        once,
        |_, _| (),
        |p, set| {
            bytes(p);
            assert_eq!((kernel_says(set), kernel_says(set)), (EPOLLIN, 0));
            set.modify(p.a, once).unwrap();
            assert_eq!((set.says(), set.says()), (EPOLLIN, 0));
        },
    );
    // It has fired.
    let fires = |p: Pair, set: &Set| {
        bytes(p);
        assert_eq!(set.says(), EPOLLIN);
    };
    that_goes_back(once, fires, |p, set| {
        bytes(p);
        assert_eq!((kernel_says(set), set.says()), (0, 0));
        assert_eq!(set.add(p.a, once), Err(EEXIST));
        assert_eq!(set.ctl(99, p.a, once, 7), Err(EINVAL));
        set.modify(p.a, once).unwrap();
        assert_eq!((set.says(), set.says()), (EPOLLIN, 0));
    });
    that_goes_back(once, fires, |p, set| {
        // Not even an end is told of.
        p.c.shutdown(libc::SHUT_RDWR);
        p.a.shutdown(libc::SHUT_RDWR);
        assert_eq!((kernel_says(set), set.says()), (0, 0));
        set.delete(p.a).unwrap();
        assert_eq!(set.delete(p.a), Err(ENOENT));
        set.add(p.a, EPOLLOUT).unwrap();
        assert_ne!(set.says() & EPOLLOUT, 0);
    });
}

#[test]
fn who_is_exclusive_is_so_in_the_kernel() {
    that_goes_back(
        EPOLLIN | EPOLLEXCLUSIVE,
        |_, _| (),
        |p, set| {
            bytes(p);
            assert_eq!((kernel_says(set), set.says()), (EPOLLIN, EPOLLIN));
            assert_eq!(set.modify(p.a, EPOLLIN), Err(EINVAL));
            set.delete(p.a).unwrap();
            set.add(p.a, EPOLLIN).unwrap();
            assert_eq!(set.modify(p.a, EPOLLIN), Ok(()));
        },
    );
}

// ---- sets that are polled themselves ------------------------------------------------------------

#[test]
fn a_set_is_ready_as_long_as_one_in_it_is() {
    on_both(|p| {
        let (set, outer) = (Set::new(), Set::new());
        set.add(p.a, EPOLLIN).unwrap();
        assert_eq!(set.says(), 0);
        outer.add(Fd(set.0), EPOLLIN).unwrap();
        for _ in 0..2 {
            assert_eq!((Fd(set.0).ready(POLLIN), outer.says()), (0, 0), "{:?}", p.on);
            bytes(p);
            let ready = (Fd(set.0).await_ready(POLLIN, LONG_NS), outer.says(), set.says());
            assert_eq!(ready, (POLLIN, EPOLLIN, EPOLLIN), "{:?}", p.on);
            assert_eq!(p.a.receive_with(&[1], crate::testing::pair::WAITS).unwrap(), b"b");
        }
        p.c.shutdown(libc::SHUT_WR);
        assert_eq!(Fd(set.0).await_ready(POLLIN, LONG_NS), POLLIN);
        set.delete(p.a).unwrap();
        assert_eq!((Fd(set.0).ready(POLLIN), outer.says()), (0, 0));
        outer.close();
        set.close();
        p.close();
    });
}

/// A socket is in two sets, and in one less when a set is closed.
#[test]
fn each_of_two_sets_hears_for_itself() {
    on_both(|p| {
        let sets = [Set::new(), Set::new()];
        sets[0].add(p.a, EPOLLIN).unwrap();
        sets[1].add(p.a, EPOLLIN | EPOLLOUT | EPOLLET).unwrap();
        assert_eq!(sets.each_ref().map(Set::says), [0, EPOLLOUT]);
        bytes(p);
        assert_eq!(sets.each_ref().map(Set::says), [EPOLLIN, EPOLLIN | EPOLLOUT]);
        assert_eq!(sets.each_ref().map(Set::says), [EPOLLIN, 0]);
        let [first, second] = sets;
        first.close();
        bytes(p);
        assert_eq!(second.says(), EPOLLIN | EPOLLOUT);
        let third = Set::new();
        third.add(p.a, EPOLLIN).unwrap();
        assert_eq!((third.says(), second.says()), (EPOLLIN, 0));
        third.close();
        second.close();
        p.close();
    });
}

/// More than a ring's news goes to, and one that is exclusive beside others: the kernel has these.
#[test]
fn each_of_many_sets_hears_for_itself() {
    for exclusive in [0, EPOLLEXCLUSIVE] {
        on_both(|p| {
            let sets: Vec<Set> = (0..6).map(|_| Set::new()).collect();
            for (i, set) in sets.iter().enumerate() {
                let edge = if i % 2 == 0 { 0 } else { EPOLLET };
                let own = if i == 3 { exclusive } else { 0 };
                set.add(p.a, EPOLLIN | edge | own).unwrap();
                assert_eq!(set.says(), 0);
            }
            for _ in 0..2 {
                bytes(p);
                for (i, set) in sets.iter().enumerate() {
                    assert_eq!(set.says(), EPOLLIN, "set {i} ({:?})", p.on);
                    assert_eq!(set.says() == 0, i % 2 != 0, "set {i} ({:?})", p.on);
                }
                assert_eq!(p.a.receive(9).unwrap(), b"b");
                assert!(sets.iter().all(|set| set.says() == 0));
            }
            sets.into_iter().for_each(Set::close);
            p.close();
        });
    }
}
