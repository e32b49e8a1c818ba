//! A connection on the descriptors 0, 1 and 2: libc's streams read and write those by calls that
//! nobody sees (`docs/design/adoption.md`).
//!
//! A server that starts another program for a connection puts it there, and many a program takes it
//! from there at once. So the connection stays a candidate, which is not attached as long as it has
//! such a name, and is counted anew when it has none any more.

use crate::fd_table::{self, Entry};
use crate::lock::lock_end;
use crate::socket::{Event, Socket, State, flag};
use crate::{carrier, process};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// The connection `fd` is about to be duplicated onto 0, 1 or 2. False: the caller has to make it
/// the kernel's first.
pub(crate) fn onto(fd: c_int) -> bool {
    let Some((s, g)) = fd_table::socket(fd) else { return false };
    if process::in_vfork_child() {
        return false;
    }
    // (Its maker may be in the middle of its close: that is waited for.)
    let (s, _) = super::of(s, g, fd);
    if s.is_inherited()
        || !s.is(State::Candidate)
        || s.flags.fetch_or(flag::STDIO, SeqCst) & flag::NOTED != 0
    {
        return false;
    }
    s.set_reason(Reason::StdioStream);
    true
}

/// This process takes over a connection that another one made, under the number `fd`.
pub(super) fn named(s: &Socket, fd: c_int) {
    if (0..=2).contains(&fd) {
        s.raise(flag::STDIO);
    }
}

/// A descriptor of `s` was closed, and `fd` is another one that it still has. If none of them is 0,
/// 1 or 2 any more, its bytes are counted anew, and it is a candidate like any other.
pub(crate) fn after_close(s: &'static Socket, g: u16, fd: c_int) {
    let mut on = false;
    fd_table::for_each(|n, entry| {
        on |= n <= 2 && matches!(entry, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g);
    });
    if !on && recount(s, fd) {
        s.lower(flag::STDIO);
        s.set_reason(Reason::NotStarted);
    }
}

/// Takes over the kernel's counts of a candidate's bytes. False: `s` is no candidate, or a call is
/// under way on it whose bytes neither count would have.
pub(super) fn recount(s: &'static Socket, fd: c_int) -> bool {
    let me = process::tid();
    if s.tx_lock.owner() == me
        || s.rx_lock.owner() == me
        || !s.state.change(State::Candidate, Event::Claimed)
    {
        return false;
    }
    let counted = {
        // The end of a call counts its bytes under these locks.
        let _locks = (lock_end(&s.tx_lock), lock_end(&s.rx_lock));
        let idle = s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
        let moved = idle.then(|| carrier::settled_counts(fd, s.has(flag::CONNECTOR))).flatten();
        if let Some((sent, received)) = moved {
            s.tx_bytes.store(sent, Relaxed);
            s.rx_bytes.store(received, Relaxed);
        }
        moved.is_some()
    };
    s.state.happens(Event::Begun);
    counted
}
