//! A connection that a child uses for a while, which has given up its parent's memory, and that the
//! parent goes on with (`docs/design/adoption.md`).
//!
//! A server that has a child of little rights speak to strangers (sshd) does not know what became
//! of the connection meanwhile, and the child can tell nobody. Such a child leaves marks on the
//! connection's file ([`super::passed`]) instead of being counted, which go when it is gone.

use super::{passed, stdio};
use crate::fd_table::{self, Entry};
use crate::log::debug_log;
use crate::socket::{Socket, State, flag};
use crate::{candidates, carrier, process, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// Names of `s` in this process.
pub(super) fn names_here(s: &Socket, g: u16) -> u32 {
    let mut names = 0;
    fd_table::for_each(|_, entry| {
        let is_it = matches!(entry, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g);
        names += u32::from(is_it);
    });
    names
}

/// A child is about to give up its parent's memory, and has this candidate of it. True: it has it
/// under a mark from here on, and is plain ([`Entry::Marked`]). False: it has to be adopted, or is
/// no candidate.
pub(crate) fn share(s: &'static Socket, g: u16, fd: c_int) -> bool {
    let marked = flag::TRACKED | flag::PASSED | flag::UNSETTLED | flag::HANDED | flag::STDIO;
    s.is(State::Candidate)
        && !s.has(marked)
        && s.children_follow()
        // One name, as closing one of several would take the mark, and one thread, as a plain call
        // that another one is in would go unseen.
        && names_here(s, g) == 1
        && sys::is_memory_shared() == Some(false)
        && process::between_forks(|| try_share(s, g, fd)) == Some(true)
}

fn try_share(s: &'static Socket, g: u16, fd: c_int) -> bool {
    // In this order: who finds the flags finds the marks. And it is counted until it has its own.
    let connector = s.has(flag::CONNECTOR);
    if !(passed::hold(fd) && passed::know(fd, connector) && passed::mark_family(fd)) {
        return false;
    }
    s.flags.fetch_or(flag::CONTESTED | flag::FAMILY | flag::SHARED, SeqCst);
    // As in `try_adopt`.
    if !s.is(State::Candidate) || s.generation16() != g {
        return false;
    }
    let _ = s.count_names(g, |n| n.saturating_sub(1));
    fd_table::set(fd, Entry::Marked(connector));
    debug_log!("fd {fd}: shared with the parent, which has it still");
    true
}

/// If nobody else has a connection that this process shares, it is its own candidate. True: it is,
/// or is nothing of the kind.
pub(crate) fn take(fd: c_int) -> bool {
    let Entry::Marked(connector) = fd_table::get(fd) else { return true };
    if !passed::is_clear_of_others(fd) {
        return false;
    }
    passed::forget(fd);
    let (Some(tuple), Some(moved)) =
        (carrier::tuple_of(fd), carrier::settled_counts(fd, connector))
    else {
        return true;
    };
    let why = if carrier::is_open(fd) { Reason::None } else { Reason::InheritedByFork };
    if let Some(own) = candidates::new_heir(fd, why, connector, tuple, moved) {
        own.raise(flag::HEIR);
        fd_table::set(fd, Entry::Socket(own, own.generation16()));
        debug_log!("{tuple:?}: nobody else has it");
    }
    true
}

/// What this process does with a marked connection the mark would not show: nobody adopts it.
#[cold]
pub(crate) fn lose(fd: c_int) {
    let raw = fd_table::raw(fd);
    if matches!(fd_table::decode(raw), Entry::Marked(_)) && fd_table::take(fd, raw) {
        passed::forget(fd);
    }
}

/// What became of a connection that a child shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shared {
    /// Nobody else has it any more.
    No,
    Still,
    /// For too long.
    TooLong,
}

/// A call has moved bytes on a connection that a child shares, or has shared.
#[cold]
#[inline(never)]
pub(crate) fn regain(s: &'static Socket, g: u16, fd: c_int) -> Shared {
    let calls = s.calls.fetch_add(1, Relaxed).wrapping_add(1);
    let regular = calls.is_multiple_of(64);
    if calls == 1 {
        s.look_at.store(sys::now_ns(), Relaxed);
    }
    if !calls.is_power_of_two() && !regular {
        return Shared::Still;
    }
    if process::between_forks(|| try_regain(s, g, fd)) == Some(true) {
        debug_log!("fd {fd}: nobody else has it any more");
        return Shared::No;
    }
    let waits = sys::now_ns().saturating_sub(s.look_at.load(Relaxed));
    if regular && waits > super::PATIENCE_NS { Shared::TooLong } else { Shared::Still }
}

/// While nobody forks, and so nobody begins to share it.
fn try_regain(s: &'static Socket, g: u16, fd: c_int) -> bool {
    // In this order: who leaves the count has its mark by then.
    let counted = s.names() != names_here(s, g);
    if counted || !passed::is_only_ours(fd) || !stdio::recount(s, fd) {
        return false;
    }
    s.flags.fetch_and(!(flag::CONTESTED | flag::FAMILY | flag::SHARED), SeqCst);
    s.raise(flag::LATE);
    s.calls.store(0, Relaxed);
    s.look_at.store(0, Relaxed);
    // No child of before has it.
    s.forks.store(process::forks(), Relaxed);
    passed::unmark_family(fd);
    passed::forget(fd);
    true
}
