//! Whether a candidate's process has shown that it waits where the library sees it.

use crate::candidates::NOTED_AFTER;
use crate::fast_connect;
use crate::outcome::Ret;
use crate::sets::sets;
use crate::socket::{Socket, flag};
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// Calls after which one looks at the clock.
pub(crate) const CLOCK_CALLS: u32 = 16;
/// Among so many there are others on which something is due.
pub(super) const EARLY_CALLS: u32 = 64;

/// So many receives in a row that find nothing and do not wait are a way to wait.
const TURNS: u32 = 16;

/// Whether the process has shown that it waits for `s` by calls that the library sees: what comes
/// to a ring is no news to any other. Such are a call that may block, a wait for an epoll set that
/// has it, poll and select, and asking again and again.
///
/// Who never waits by one of these may wait by system calls of its own, as Rust's smol does, which
/// the ring would leave asleep. A connection of which that cannot be told stays on TCP, and each
/// end decides so for its own part.
pub(super) fn waits_seen(s: &Socket, fd: c_int, call_flags: c_int, calls: u32) -> bool {
    if s.has(flag::WAITS_SEEN) {
        return true;
    }
    // (A socket that does not block costs a system call, so not every time.)
    let may_block = || {
        let due = calls == NOTED_AFTER || calls.is_multiple_of(CLOCK_CALLS);
        due && call_flags & libc::MSG_DONTWAIT == 0
            && sys::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK as Ret == 0
    };
    let seen = sets().is_waited_for(s) || may_block();
    if seen {
        s.raise(flag::WAITS_SEEN);
    } else {
        s.judge(Reason::WaitsUnseen);
    }
    seen
}

/// A candidate is named in a poll or select, or taken out of an epoll set for which somebody has
/// waited. (Waiting for its connect says nothing of the time after that.)
pub(crate) fn on_waited_for(s: &Socket) {
    if !s.has(flag::WAITS_SEEN) && (s.tx_bytes.load(Relaxed) != 0 || s.rx_bytes.load(Relaxed) != 0)
    {
        s.raise(flag::WAITS_SEEN);
        fast_connect::note_waits();
    }
}

/// With fast connect a process shows once for all its connections that it waits by such calls.
#[cold]
#[inline(never)]
pub(super) fn note_once(fd: c_int, call_flags: c_int) {
    if !fast_connect::waits_seen()
        && call_flags & libc::MSG_DONTWAIT == 0
        && sys::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK as Ret == 0
    {
        fast_connect::note_waits();
    }
}

/// A receive has found nothing, and has not waited.
pub(super) fn on_nothing(s: &Socket) {
    let times = s.in_vain.load(Relaxed).saturating_add(1);
    s.in_vain.store(times, Relaxed);
    if times == TURNS {
        s.raise(flag::WAITS_SEEN);
    }
}
