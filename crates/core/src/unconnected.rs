//! A socket before it is connected, or listens: a table entry alone, or one with memory of its own
//! where something is done to it that its connection must know.

use crate::fd_table::{self, Entry};
use crate::socket::{Event, Socket, State, end_life, new_socket, reuse};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering::*};
use netacc_control::stats::Reason;

/// A stream socket that is neither connected nor listening: the reason why it must never be
/// accelerated, or `socket::NONE`.
pub(crate) fn unconnected(fd: c_int) -> Option<u32> {
    match fd_table::get(fd) {
        Entry::Fresh(reason) => Some(reason),
        Entry::Socket(s, _) if s.is(State::Unconnected) => Some(s.refused.load(Relaxed)),
        _ => None,
    }
}

/// Something happens to a fresh socket that its connection must know: it gets its `Socket` now.
#[cold]
pub(crate) fn make_unconnected(fd: c_int) -> Option<(&'static Socket, u16)> {
    let raw = fd_table::raw(fd);
    let Entry::Fresh(reason) = fd_table::decode(raw) else { return fd_table::socket(fd) };
    let began = fd_table::began(fd);
    let s = new_socket(fd)?;
    s.refused.store(reason, Relaxed);
    s.syn.set_began(began);
    s.state.change(State::Free, Event::Named);
    if !fd_table::replace(fd, raw, Entry::Socket(s, s.generation16())) {
        // Another thread was faster, with this or something else.
        end_life(s);
        reuse(s);
        return fd_table::socket(fd);
    }
    Some((s, s.generation16()))
}

/// The process has a ring that cannot be followed: no socket is to be accelerated.
static ALL_REFUSED: AtomicBool = AtomicBool::new(false);

pub(crate) fn all_refused() -> bool {
    ALL_REFUSED.load(Relaxed)
}

/// True: they were before.
pub(crate) fn refuse_all() -> bool {
    ALL_REFUSED.swap(true, AcqRel)
}

/// Why a new socket must never be accelerated, if `reason` has nothing against it.
pub(crate) fn refusal(reason: u32) -> u32 {
    if all_refused() && reason == Reason::None as u32 { Reason::IoUring as u32 } else { reason }
}

/// Some socket of the process's opens with its first bytes: a connect that succeeds may have made
/// no connection yet (TCP_FASTOPEN_CONNECT).
static OPENS_LATER: AtomicBool = AtomicBool::new(false);

pub(crate) fn may_open_later() -> bool {
    OPENS_LATER.load(Relaxed)
}

pub(crate) fn note_opens_later() {
    OPENS_LATER.store(true, Relaxed);
}
