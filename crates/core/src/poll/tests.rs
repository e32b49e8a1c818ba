//! What poll and select say of a connection in a ring is what they say of one in the kernel.

use super::*;
use crate::path::tests::{A, candidate_within_the_host, close_both};
use crate::process;
use crate::testing::pair::{Fd, LONG_NS, On, Pair, on_both, or_kernel, outcome, poll};
use crate::testing::states::{ASKED, UNASKED, in_each_state, with_news};
use crate::testing::{Moment, just_before, was_there};
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

#[test]
fn what_another_thread_has_just_adopted_is_no_business_of_the_kernels_alone() {
    let fd = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    // SAFETY: all zero is a valid free Socket.
    let s: &'static Socket = unsafe { &*Box::leak(Box::<Socket>::new_zeroed()).as_ptr() };
    fd_table::set(fd, Entry::Socket(s, 0));
    // A child's thread has read the table when it had the parent's. Its maker has no name of it any
    // more, and never looks.
    for (owner, ours) in [(process::id().wrapping_add(1), true), (process::id(), false)] {
        s.owner.store(owner, Relaxed);
        s.state.begin_as(State::Adopted);
        assert_eq!(is_ours(fd, true), ours);
    }
    fd_table::set(fd, Entry::None);
    let _ = sys::close(fd);
}

// ---- poll ---------------------------------------------------------------------------------------

/// Whatever a program asks for of all that can be.
fn each_question() -> impl Iterator<Item = i16> {
    (0..=ASKED).filter(|events| events & !ASKED == 0)
}

#[test]
fn each_question_is_answered_as_the_kernel_does() {
    in_each_state(
        |a| a.ready(ASKED),
        |state, a, is| {
            for events in each_question() {
                let said = a.ready(events);
                assert_eq!(said, is & (events | UNASKED), "{state}, asked for {events:#x}");
            }
        },
    );
}

/// A number that is never given out: other tests of this process are far below it, and what is the
/// library's far above.
const NOBODYS: c_int = 1000;

#[test]
fn of_several_each_is_answered_for_itself() {
    on_both(|p| {
        let other = Pair::new(On::Kernel);
        p.c.send(b"b").unwrap();
        other.c.send(b"b").unwrap();
        let (i, o) = (libc::POLLIN, libc::POLLOUT);
        let asked = [
            (p.a.0, i, i),
            (p.c.0, i | o, o),
            (-1, i | o, 0),
            (p.c.0, i, 0),
            (other.a.0, i | o, i | o),
            (NOBODYS, i, libc::POLLNVAL),
            (p.a.0, o, o),
            (p.a.0, 0, 0),
        ];
        // More of them than fit without an allocation, too.
        for times in [1, 3] {
            let asked = vec![asked; times].concat();
            let mut list: Vec<_> = asked
                .iter()
                .map(|(fd, events, _)| pollfd { fd: *fd, events: *events, revents: !0 })
                .collect();
            assert_eq!(poll(&mut list, 0), Ok(5 * times));
            for (i, (p, (_, _, revents))) in list.iter().zip(&asked).enumerate() {
                assert_eq!(p.revents, *revents, "number {i}");
            }
        }
        other.close();
        p.close();
    });
}

/// It comes at the last moment, when the thread has looked at everything for the last time.
#[test]
fn a_thread_that_goes_to_sleep_hears_of_what_comes_then() {
    with_news(|a, events| a.await_ready(events, LONG_NS));
}

#[test]
fn a_time_that_is_over_is_no_news() {
    on_both(|p| {
        assert_eq!(p.a.await_ready(libc::POLLIN, 1), 0);
        assert_eq!(p.a.await_ready(libc::POLLIN, 1_000_000), 0);
        p.close();
    });
}

// ---- candidates ---------------------------------------------------------------------------------

/// Nothing may come to a ring while a thread waits in the kernel.
#[test]
fn who_waits_in_the_kernel_counts_as_long_as_that() {
    let ends = candidate_within_the_host();
    let s = ends[A].socket;
    let waiting = || s.pollers.load(SeqCst) as u32;
    just_before(Moment::Sleep, move || assert_eq!(s.pollers.load(SeqCst) as u32, 1));
    assert_eq!(Fd(ends[A].fd).await_ready(libc::POLLIN, 1), 0);
    assert!(was_there());
    assert_eq!(waiting(), 0);
    // Who does not wait is not in anybody's way.
    assert_eq!(Fd(ends[A].fd).ready(libc::POLLOUT), libc::POLLOUT);
    assert_eq!(waiting(), 0);
    close_both(ends);
}

// ---- select -------------------------------------------------------------------------------------

/// What select says of `a` in each of its sets.
fn select_one(a: Fd) -> Result<(usize, [bool; 3]), c_int> {
    // SAFETY: all zero is an empty set.
    let mut sets: [libc::fd_set; 3] = unsafe { core::mem::zeroed() };
    // SAFETY: a number below FD_SETSIZE, in a live set.
    sets.iter_mut().for_each(|set| unsafe { libc::FD_SET(a.0, set) });
    let n = select_sets(a.0 + 1, &mut sets)?;
    // SAFETY: as above.
    Ok((n, sets.each_ref().map(|set| unsafe { libc::FD_ISSET(a.0, set) })))
}

fn select_sets(nfds: c_int, sets: &mut [libc::fd_set; 3]) -> Result<usize, c_int> {
    let [read, write, except] = sets.each_mut().map(core::ptr::from_mut);
    let none = core::ptr::null();
    // SAFETY: live sets; no mask.
    let r = unsafe { crate::api::select(nfds, read, write, except, 0, none, &mut 0) };
    outcome(or_kernel(r, || {
        let mut now = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: as above.
        match unsafe { libc::select(nfds, read, write, except, &mut now) } {
            -1 => -(std::io::Error::last_os_error().raw_os_error().unwrap() as isize),
            n => n as isize,
        }
    }))
}

/// (fs/select.c: POLLIN_SET, POLLOUT_SET, POLLEX_SET.)
#[test]
fn select_says_of_each_state_what_poll_says() {
    in_each_state(
        |a| a.ready(ASKED),
        |state, a, is| {
            let read = is & (libc::POLLIN | UNASKED) != 0;
            let write = is & (libc::POLLOUT | libc::POLLERR) != 0;
            let count = usize::from(read) + usize::from(write);
            assert_eq!(select_one(a), Ok((count, [read, write, false])), "{state}");
        },
    );
}

#[test]
fn select_answers_for_what_is_in_its_sets_and_below_its_limit() {
    on_both(|p| {
        let (low, high) = (p.a.0.min(p.c.0), p.a.0.max(p.c.0));
        // SAFETY: all zero is an empty set.
        let mut sets: [libc::fd_set; 3] = unsafe { core::mem::zeroed() };
        for fd in [low, high] {
            // SAFETY: a number below FD_SETSIZE, in a live set.
            unsafe { libc::FD_SET(fd, &mut sets[1]) };
        }
        let mut first = sets;
        assert_eq!(select_sets(high + 1, &mut first), Ok(2));
        assert_eq!(select_sets(high, &mut sets), Ok(1));
        // (Beyond the kernel's table of them it does not look.)
        assert_eq!(sys::close(sys::fcntl(p.a.0, libc::F_DUPFD, NOBODYS as usize + 1) as c_int), 0);
        // SAFETY: as above.
        unsafe { libc::FD_SET(NOBODYS, &mut first[0]) };
        assert_eq!(select_sets(NOBODYS + 1, &mut first), Err(libc::EBADF));
        p.close();
    });
}

/// Who takes a connection back tells those who stand at its place; who comes there behind that
/// sees it by itself.
#[test]
fn nobody_sleeps_for_what_is_taken_back() {
    let p = Pair::new(On::Ring);
    let fds = [pollfd { fd: p.a.0, events: IN, revents: 0 }];
    let (mut wants, mut waited) = ([MaybeUninit::uninit()], [MaybeUninit::uninit()]);
    let mut kernel = [MaybeUninit::uninit(); 2];
    let mut wants = Scratch::within(&mut wants, 1).unwrap();
    let mut waited = Waited(Scratch::within(&mut waited, 1).unwrap());
    let mut kernel = Scratch::within(&mut kernel, 2).unwrap();
    find(&fds, &mut wants, &mut waited);
    // As if it had come again since.
    let want = wants.first_mut().unwrap();
    want.generation = want.generation.wrapping_add(1);
    just_before(Moment::Sleep, || ());
    let deadline = sys::now_ns() + LONG_NS as u64;
    assert_eq!(sleep(&fds, &mut wants, &mut kernel, deadline, core::ptr::null()), 0);
    assert!(!was_there(), "it sleeps");
    p.close();
}

/// A descriptor may stand in a list twice. Its first entry has been left to the kernel; where it is
/// attached before the second one is looked at, the first is waited for as before.
#[test]
fn who_is_in_a_list_twice_is_waited_for_by_both() {
    let p = Pair::new(On::Ring);
    let Entry::Socket(s, _) = fd_table::get(p.a.0) else { panic!() };
    let generation = s.generation.load(SeqCst);
    let mut list = [MaybeUninit::uninit(), MaybeUninit::uninit()];
    let mut waited = Waited(Scratch::within(&mut list, 2).unwrap());
    // The first entry, which came when it was a candidate.
    assert!(s.count_poller(generation, |n| n + 1) && waited.0.push((s, generation)));
    let before = waited.0.len();
    // The second one, which finds it attached.
    assert!(!waited.add(s));
    waited.forget_from(before);
    assert_eq!((waited.0.len(), s.pollers.load(SeqCst) as u32), (1, 1));
    drop(waited);
    assert_eq!(s.pollers.load(SeqCst) as u32, 0);
    p.close();
}
