//! The last close of a connection, and a shutdown of one.

use super::{after_close, await_peer, before_close, last_name, never_linger, to_kernel};
use crate::candidates::make_plain;
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::socket::{
    Event, LastName, Socket, State, await_change, close_books, end_life, flag, forget_orphan, reuse,
};
use crate::{adoption, agent, channel, lock, process, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// The last descriptor of this process's (or, `kernel_too` false, one whose closing is somebody
/// else's work) is closed.
pub(crate) fn close(s: &'static Socket, g: u16, fd: c_int, kernel_too: bool) -> Ret {
    let kernel_close = || if kernel_too { sys::close(fd) } else { 0 };
    if s.generation16() != g {
        return kernel_close();
    }
    let Some(names) = s.count_names(g, |n| n.saturating_sub(1)) else { return kernel_close() };
    if names > 1 {
        if s.has(flag::TRACKED) {
            adoption::passed::lose_track(s, fd);
        }
        let mut other = -1;
        fd_table::for_each(|n, e| {
            if other < 0 && matches!(e, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g) {
                other = n;
            }
        });
        if s.is_inherited() {
            // What it says of descriptors is its maker's.
            return kernel_close();
        }
        if other >= 0 {
            rename(s, fd, other);
            return kernel_close();
        }
    }
    // A child takes apart only what its maker has left to it, by a close or by its end.
    if s.is_inherited() && s.fd.load(Acquire) >= 0 && process::lives(s.owner.load(Relaxed)) {
        return kernel_close();
    }
    let_go(s, g, fd, kernel_close)
}

/// The last name of a connection that this process has goes. (A forked child may have it, too;
/// `refs` says so, or did.)
fn let_go(s: &'static Socket, g: u16, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    if !s.is(State::Attached) || fd < 0 || s.is_inherited() {
        let heard_of = s.is(State::Candidate) && !s.has(flag::REMOTE);
        let r = finish(s, fd, kernel_close);
        if heard_of {
            channel::sent_by_kernel();
        }
        return r;
    }
    let shared = s.names() > 0;
    // (Between hosts it leaves behind the close, which waits for that within bounds.)
    let between_hosts = s.has(flag::REMOTE);
    let in_ring = !(shared && !between_hosts && to_kernel(s, g, fd, Reason::None, false));
    match last_name(s, fd, shared && in_ring) {
        LastName::Outlived => {
            let r = kernel_close();
            if s.waiters.load(SeqCst) == 0 {
                bury_orphan(s, g);
            } else {
                await_peer(s, g);
            }
            r
        }
        // A forked child may want what only the ring has; it is the peer's end that frees it.
        LastName::LeftToChild => {
            close_books(s);
            kernel_close()
        }
        LastName::Gone => finish(s, fd, kernel_close),
    }
}

/// `fd` is about to be closed: who sends on it finds `other` from here on.
fn rename(s: &'static Socket, fd: c_int, other: c_int) {
    let tx = lock::lock_end(&s.tx_lock);
    if s.fd.load(Relaxed) == fd || other < 0 {
        s.fd.store(other, Release);
        if let Some(r) = s.record().filter(|_| other >= 0) {
            r.fd.store(other as u32, Relaxed);
        }
    }
    drop(tx);
    agent::here().renamed(s);
}

/// What was under way on a closed connection has ended.
pub(crate) fn bury_orphan(s: &'static Socket, g: u16) {
    if s.generation16() == g && s.flags.fetch_and(!flag::ORPHAN, AcqRel) & flag::ORPHAN != 0 {
        forget_orphan();
        let own = s.fd.load(Acquire);
        never_linger(own);
        let _ = let_go(s, g, own, || {
            fd_table::close_internal(own);
            0
        });
    }
}

/// Takes a connection apart around the kernel's close of its last descriptor.
fn finish(s: &'static Socket, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    let mut state = s.state.now();
    for _ in 0..1_000_000 {
        if state != State::Changing {
            break;
        }
        // Another thread is about to attach it: it finishes first, and this takes the result apart.
        core::hint::spin_loop();
        state = s.state.now();
    }
    let was_candidate = state == State::Candidate && {
        // In this order: who notes it raises NOTED first, and looks at the state afterwards.
        let left = !s.is_inherited() && s.names() > 0;
        let won =
            s.state.change(State::Candidate, if left { Event::Closed } else { Event::Refused });
        agent::closing(s);
        won
    };
    if state == State::Plain {
        // It may have become that a moment ago: whoever made it so may not have come by there yet.
        agent::here().last_look(s);
    }
    if s.has(flag::TRACKED) {
        let counted = s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
        adoption::passed::before_close(s, fd, was_candidate && counted);
    }
    if state == State::Attached {
        before_close(s, fd, true);
    }
    let r = kernel_close();
    if !s.is_inherited() {
        close_books(s);
    }
    if was_candidate && adoption::leave(s) {
        return r;
    }
    s.state.change(State::Closing, Event::Refused);
    // Threads that still know it find another generation when they look again; only then is its
    // slot given back.
    let tx = lock::lock_end(&s.tx_lock);
    let rx = lock::lock_end(&s.rx_lock);
    if tx.is_some() && rx.is_some() {
        end_life(s);
        s.record.store(core::ptr::null_mut(), Relaxed);
        let mine = !s.is_inherited();
        drop((tx, rx));
        if state == State::Attached || state == State::Plain {
            // (A plain one may have been made so by a forked child, which cannot give the slot
            // back.)
            after_close(s);
        }
        if mine {
            reuse(s);
        }
    }
    r
}

pub(crate) fn shutdown_of(fd: c_int, how: c_int) -> Ret {
    let Some((s, g)) = fd_table::socket(fd) else { return PASS };
    loop {
        match s.state.now() {
            State::Attached => return super::shutdown(s, g, fd, how),
            State::Changing if await_change(s) => {}
            // Half a connection is not worth an agreement with another host.
            State::Candidate if s.has(flag::REMOTE) => make_plain(s, Reason::Disconnected),
            State::Candidate if !s.is_inherited() => {
                if let Some(r) = super::shutdown_candidate(s, g, fd, how) {
                    return r;
                }
            }
            _ => return PASS,
        }
    }
}
