//! Calls that wait: their time-outs, signals, and a close in another thread meanwhile.

use super::EAGAIN;
use crate::channel::Side;
use crate::fd_table::Entry;
use crate::outcome::{RESTART, Ret};
use crate::socket::{Socket, flag};
use crate::wait::Woke;
use crate::{faults, fd_table, process, signals, sleep, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::AtomicI64;
use core::sync::atomic::Ordering::*;

/// Blocks, and survives that another thread closes the descriptor meanwhile, if the caller has a
/// `under_way::UnderWay`: as in the kernel, the call goes on with what it was made on. `fd` becomes
/// the carrier's other name then.
pub(super) fn block(
    s: &'static Socket,
    fd: &mut c_int,
    side: Side,
    on_carrier: bool,
    deadline: u64,
) -> Woke {
    renew(s, fd);
    let woke = wait::block(s, *fd, side, on_carrier, deadline);
    renew(s, fd);
    woke
}

/// Where `fd` was closed meanwhile, another name of the carrier: a duplicate, or the library's own.
pub(super) fn renew(s: &Socket, fd: &mut c_int) {
    if s.is_inherited() {
        return;
    }
    if !matches!(fd_table::get(*fd), Entry::Socket(now, _) if core::ptr::eq(now, s)) {
        let other = s.fd.load(Acquire);
        if other >= 0 {
            *fd = other;
        }
    }
}

/// A call that does not wait, and so would not hear the carrier, asks it now and then: true once in
/// a while.
pub(crate) fn carrier_is_due(s: &Socket, pause_ticks: u64) -> bool {
    let due = !carrier_was_asked(s, pause_ticks);
    if due {
        s.carrier_asked.store(sys::ticks(), Relaxed);
    }
    due
}

/// Whether one has asked within that time.
#[inline]
pub(crate) fn carrier_was_asked(s: &Socket, pause_ticks: u64) -> bool {
    sys::ticks().wrapping_sub(s.carrier_asked.load(Relaxed)) <= pause_ticks
}

/// A wait was interrupted. `None`: the call goes on; otherwise the call's result.
///
/// A call that has no time-out begins again behind a handler that was installed with SA_RESTART
/// (signal(7)). Of a handler that was installed past us nobody knows that it ran; the call goes on
/// then if all of the process's handlers have it.
#[cold]
pub(crate) fn interrupted(timeout_ns: i64) -> Option<Ret> {
    if let Some(by) = signals::pending() {
        return Some(if by.restarts && timeout_ns <= 0 { RESTART } else { -(libc::EINTR as Ret) });
    }
    if signals::is_cancelled_in_vain() {
        return None;
    }
    // libc's own two signals, 32 and 33, are none of the application's.
    if timeout_ns > 0 || !(1..=64).filter(|n| !matches!(n, 32 | 33)).all(faults::handler_restarts) {
        return Some(-(libc::EINTR as Ret));
    }
    // The thread may have been cancelled, which only the hook can see to.
    process::threads_are_cancelled().then_some(RESTART)
}

/// Whether a call on `s` ends where it would have to wait (sock_rcvtimeo, sock_sndtimeo).
#[inline]
pub(super) fn never_waits(s: &Socket, side: Side, flags: c_int) -> bool {
    let timeout_ns = match side {
        Side::Receive => &s.receive_timeout_ns,
        Side::Send => &s.send_timeout_ns,
    };
    s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0 || timeout_ns.load(Relaxed) < 0
}

/// How long one call may wait: SO_RCVTIMEO or SO_SNDTIMEO, counted from its first wait.
pub(super) struct Patience {
    pub(super) timeout_ns: i64,
    pub(super) until: u64,
}

impl Patience {
    pub(super) fn endless() -> Patience {
        Patience { timeout_ns: 0, until: 0 }
    }

    pub(super) fn of(timeout_ns: &AtomicI64) -> Patience {
        Patience { timeout_ns: timeout_ns.load(Relaxed), until: 0 }
    }

    /// When it is over, from the first call on; 0: never.
    pub(super) fn deadline(&mut self) -> u64 {
        if self.until == 0 && self.timeout_ns > 0 {
            self.until = sys::now_ns().saturating_add(self.timeout_ns as u64);
        }
        self.until
    }

    /// Waits until the kernel says one of `events` of `fd`, or `look_ns` have passed (< 0: no such
    /// limit). `Some`: the call ends with that.
    pub(super) fn wait(&mut self, fd: c_int, events: i16, look_ns: i64) -> Option<Ret> {
        let mut limit = look_ns;
        if self.timeout_ns > 0 {
            let now = sys::now_ns();
            if self.until == 0 {
                self.until = now.saturating_add(self.timeout_ns as u64);
            }
            let left = self.until.saturating_sub(now) as i64;
            if left == 0 {
                return Some(EAGAIN);
            }
            limit = if look_ns < 0 { left } else { left.min(look_ns) };
        }
        let mut p = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one valid pollfd.
        let r = unsafe { sleep::ppoll(&mut p, 1, limit, core::ptr::null()) };
        if r == -(libc::EINTR as isize) { interrupted(self.timeout_ns) } else { None }
    }
}
