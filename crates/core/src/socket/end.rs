//! What is left to do when a connection has ended: who is still at it, the books, and the memory,
//! which is used anew.

use super::memory::{ORPHANS, push_free};
use super::{Event, Socket, State, flag};
use crate::{process, stats, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// Waits until nobody changes it any more, which takes some system calls. False: it is this very
/// thread that does, and a signal handler has interrupted it.
pub(crate) fn await_change(s: &Socket) -> bool {
    let mut n = 0u32;
    loop {
        n = n.wrapping_add(1);
        if s.state.now() != State::Changing {
            return true;
        }
        if s.state.changer() == process::tid() {
            return false;
        }
        if n < 1000 {
            core::hint::spin_loop();
            continue;
        }
        sys::sched_yield();
        // A forked child has no other way to hear that its parent was killed there.
        let over = || !s.path().maker_is_alive(s.owner.load(Relaxed));
        if n.is_multiple_of(10_000) && s.is_inherited() && over() {
            s.state.change(State::Changing, Event::Refused);
        }
    }
}

/// Waits until its maker has closed it.
#[cold]
pub(crate) fn await_close(s: &Socket) {
    let mut n = 0u32;
    while s.state.now() == State::Closing {
        n = n.wrapping_add(1);
        if n < 1000 {
            core::hint::spin_loop();
            continue;
        }
        sys::sched_yield();
        if n.is_multiple_of(10_000) && !process::is_alive(s.owner.load(Relaxed)) {
            s.state.change(State::Closing, Event::Refused);
        }
    }
}

/// What becomes of a connection whose last name in this process goes.
pub(crate) enum LastName {
    /// Something is under way that needs the carrier: it lives on as an orphan.
    Outlived,
    LeftToChild,
    Gone,
}

/// Its last name here goes, and `own` is the carrier's from here on. `later`: 0, or `CLOSE_LATER`.
pub(crate) fn orphan(s: &Socket, own: c_int, later: u32) {
    ORPHANS.fetch_add(1, Relaxed);
    s.fd.store(own, Release);
    s.raise(flag::ORPHAN | later);
}

/// A carrier has another name of the library's own: a forked child closes that, too.
/// How many such there were.
pub(crate) fn note_spare() -> u32 {
    ORPHANS.fetch_add(1, Relaxed)
}

/// One of them is none any more.
pub(crate) fn forget_orphan() {
    ORPHANS.fetch_sub(1, Relaxed);
}

/// The connection is this process's no more: it goes from the statistics.
pub(crate) fn close_books(s: &Socket) {
    s.say_at_end();
    s.end_trace();
    // SAFETY: as in `record`; the swap gives it to one caller.
    let Some(rec) = (unsafe { s.record.swap(core::ptr::null_mut(), AcqRel).as_ref() }) else {
        return;
    };
    // (A child may have said something of it.)
    let why = Reason::ALL.get(rec.reason.load(Relaxed) as usize).copied();
    stats::place_reason(rec, why.unwrap_or(Reason::None));
    if let Some(path) = rec.take_counted() {
        stats::closed(path);
    }
    stats::close(rec);
}

/// Learns how calls on it wait.
pub(crate) fn look_at_options(s: &Socket, fd: c_int) {
    let fl = sys::fcntl(fd, libc::F_GETFL, 0);
    set_nonblock(s, fl >= 0 && fl as c_int & libc::O_NONBLOCK != 0);
    let mut corked: c_int = 0;
    let _ = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &mut corked);
    set_corked(s, corked != 0);
    for (timeout_ns, name) in
        [(&s.receive_timeout_ns, libc::SO_RCVTIMEO), (&s.send_timeout_ns, libc::SO_SNDTIMEO)]
    {
        // A negative one, which was seen when it was set, reads as none.
        if timeout_ns.load(Relaxed) >= 0 {
            timeout_ns.store(sys::timeout_of(fd, name), Relaxed);
        }
    }
}

/// Nobody finds it any more who does not know it: who does finds another generation.
pub(crate) fn end_life(s: &Socket) {
    s.generation.fetch_add(1, AcqRel);
    s.state.happens(Event::Ended);
}

/// Everything that hung on an ended one is given back: its memory serves again.
pub(crate) fn reuse(s: &'static Socket) {
    s.state.change(State::Ended, Event::Released);
    recycle(s);
}

/// A connection that was left to children, and that none of them needs any more.
pub(crate) fn free_left(s: &'static Socket) {
    end_life(s);
    reuse(s);
}

/// The memory of a connection that is over serves again when nobody is in a call on it. Called by
/// whoever leaves one.
pub(crate) fn recycle(s: &'static Socket) {
    let unused = || {
        s.tx_inflight.load(SeqCst) == 0
            && s.rx_inflight.load(SeqCst) == 0
            && s.waiters.load(SeqCst) == 0
    };
    if s.is(State::Over) && unused() && s.state.change(State::Over, Event::Freed) {
        s.spill.free();
        push_free(s);
    }
}

pub(crate) fn set_corked(s: &Socket, on: bool) {
    if on { s.raise(flag::CORKED) } else { s.lower(flag::CORKED) }
}

pub(crate) fn set_nonblock(s: &Socket, on: bool) {
    if on { s.raise(flag::NONBLOCK) } else { s.lower(flag::NONBLOCK) }
}
