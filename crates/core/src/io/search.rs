//! A candidate's search for its peer, as far as its own calls drive it.
//!
//! The service thread looks for whoever holds the other end of a connection for a second after it
//! was noted. After that the connection's own calls ask for another look, ever more rarely, for as
//! long as it is used: a peer may be slow, may have had no memory, no descriptor or no slot for it,
//! or may have got the connection from another process. So no verdict about a peer is for life, and
//! a connection that nobody uses costs nothing.

use crate::candidates::NOTED_AFTER;
use crate::channel::Side;
use crate::outcome::Ret;
use crate::sets::sets;
use crate::socket::{Socket, flag};
use crate::{agent, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// As [`NOTED_AFTER`], of a connection that was adopted by a process with no agreement yet: a
/// forked child that perhaps serves this one alone. Its first costs it a thread and its tables,
/// which is a millisecond with the end of the process.
const HEIR_NOTED_AFTER: u32 = 8;
/// Calls after which one looks at the clock.
pub(super) const CLOCK_CALLS: u32 = 16;
/// Among so many there are others on which something is due.
pub(super) const EARLY_CALLS: u32 = 64;
/// A port without an advert is looked at again after so long (`rendezvous::absent` remembers it for
/// less).
const ABSENT_NS: u64 = 100_000_000;
/// The first look of a noted connection's own, behind those of the service thread; the others after
/// twice as long each.
const FIRST_NS: u64 = 1_500_000_000;
const LONGEST_NS: u64 = 32_000_000_000;

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

/// A candidate is named in a poll or select. (Waiting for its connect says nothing of the time
/// after that.)
pub(crate) fn on_polled(s: &Socket) {
    if !s.has(flag::WAITS_SEEN) && (s.tx_bytes.load(Relaxed) != 0 || s.rx_bytes.load(Relaxed) != 0)
    {
        s.raise(flag::WAITS_SEEN);
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

/// A call on `s`, its `calls`th, has moved bytes, and there is no agreement yet.
pub(super) fn on_call(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    side: Side,
    call_flags: c_int,
    calls: u32,
) {
    if calls >= NOTED_AFTER && !s.has(flag::NOTED) && !waits_seen(s, fd, call_flags, calls) {
        return;
    }
    let known =
        !s.has(flag::CONNECTOR) || s.has(flag::ACCEPTOR_KNOWN) || acceptor_is_known(s, side, calls);
    if known
        && calls >= NOTED_AFTER
        && !s.has(flag::NOTED)
        && pays(s, calls)
        && s.look_at.load(Relaxed) == 0
    {
        put_off(s, FIRST_NS);
        agent::here().note(s, g);
    } else if calls.is_multiple_of(CLOCK_CALLS) && sys::now_ns() >= s.look_at.load(Relaxed) {
        look_again(s, g, side);
    }
}

fn pays(s: &Socket, calls: u32) -> bool {
    !s.has(flag::HEIR) || calls >= HEIR_NOTED_AFTER || agent::here().is_running()
}

/// Whether somebody with the library accepts on the peer's port.
fn acceptor_is_known(s: &'static Socket, side: Side, calls: u32) -> bool {
    let found = match side {
        // Its first bytes: whoever sent them has accepted.
        Side::Receive if !s.has(flag::ASKED) => {
            s.raise(flag::ASKED);
            answered(s)
        }
        // A program that only sends gets no answer to look after: it looks after some calls.
        Side::Send if matches!(calls, 4 | 16 | 64) => agent::here().sending(s),
        _ => return false,
    };
    if found {
        s.raise(flag::FOUND);
    }
    found
}

fn answered(s: &'static Socket) -> bool {
    let found = agent::here().connected(s, true);
    if !found {
        s.judge(Reason::ListenerWithoutLibrary);
        put_off(s, ABSENT_NS);
    }
    found
}

#[cold]
#[inline(never)]
fn look_again(s: &'static Socket, g: u16, side: Side) {
    let looks = s.looks.fetch_add(1, Relaxed);
    put_off(s, (FIRST_NS << looks.min(8)).min(LONGEST_NS));
    if s.has(flag::CONNECTOR) && !s.has(flag::ACCEPTOR_KNOWN) {
        let found = if side == Side::Receive {
            agent::here().connected(s, true)
        } else {
            agent::here().sending(s)
        };
        if !found {
            return;
        }
        s.raise(flag::FOUND);
    }
    if s.has(flag::NOTED) {
        agent::here().look_again(s, g)
    } else {
        agent::here().note(s, g)
    };
}

fn put_off(s: &Socket, pause: u64) {
    s.look_at.store(sys::now_ns().saturating_add(pause), Relaxed);
}
