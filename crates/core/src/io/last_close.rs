//! How a connection is taken apart when its last name goes (`close.rs` has the way there).

use super::end_in_reset::{
    RESET_ON_CLOSE, closes_as_ever, leaves_unread, never_linger, reset_if_more_comes,
    resets_on_close,
};
use super::ends::{hold_rx, hold_tx, publish_held};
use super::leave::{freeze, to_kernel};
use super::outlive::{await_peer, is_clean, outlives_close, outlives_for_child};
use super::probe::put_back;
use super::say_end::{
    announce_end, announce_end_in_time, is_asked_back, say_end, say_late_fin, serve_before_fin,
};
use crate::channel::{producer_quiet, quiet};
use crate::outcome::Ret;
use crate::socket::{
    Event, LastName, Socket, State, close_books, end_life, flag, forget_orphan, reuse,
};
use crate::{adoption, agent, channel, fd_table, lock, numbers, socket, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// The last name of a connection that this process has goes. (A forked child may have it, too;
/// `refs` says so, or did.)
pub(super) fn let_go(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    kernel_close: impl FnOnce() -> Ret,
) -> Ret {
    if !s.is(State::Attached) || fd < 0 || s.is_inherited() {
        let heard_of = s.is(State::Candidate) && s.path().is_shared();
        let r = finish(s, fd, kernel_close);
        if heard_of {
            channel::sent_by_kernel();
        }
        return r;
    }
    if is_asked_back(s) && !resets(s, g, fd) {
        serve_before_fin(s);
    }
    let shared = s.names() > 0;
    // (By an agent it leaves behind the close, which waits for that within bounds.)
    let later = s.path().leaves_by_agent();
    let in_ring = !(shared && !later && to_kernel(s, g, fd, Reason::None, false));
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

/// Its close is a reset, as of TCP: nothing goes before that.
fn resets(s: &'static Socket, g: u16, fd: c_int) -> bool {
    hold_tx(s, g).is_ok_and(|tx| resets_on_close(&tx, fd))
        || hold_rx(s, g).is_ok_and(|mut rx| rx.unread().is_ok_and(|n| n > 0))
}

/// The last descriptor of this process's is about to be closed. `for_child`: a forked child has it
/// too, and may want what is in the ring.
pub(crate) fn last_name(s: &'static Socket, fd: c_int, for_child: bool) -> LastName {
    let Ok(mut h) = hold_tx(s, s.generation16()) else { return LastName::Gone };
    publish_held(&mut h);
    put_back(&mut h, fd);
    // Under the lock: nothing new gets under way meanwhile.
    if s.waiters.load(SeqCst) > 0 {
        // The kernel's calls hold the file; ours hold a name of it.
        let own = numbers::copy(fd);
        if own >= 0 {
            socket::orphan(s, own, 0);
            return LastName::Outlived;
        }
    }
    if for_child && outlives_for_child(s, &h, fd) {
        return LastName::Outlived;
    }
    if for_child {
        leaves_unread(s, &mut h, fd);
        s.fd.store(-1, Release);
        return LastName::LeftToChild;
    }
    if s.path().leaves_by_agent() {
        // Closing with unread data resets the connection: nothing is waited for, but the FIN of a
        // shutdown that came before.
        let resets = !s.has(flag::FIN_LATER)
            && hold_rx(s, s.generation16()).is_ok_and(|mut h| h.unread().is_ok_and(|n| n > 0));
        if !resets && outlives_close(s, &mut h, fd) {
            return LastName::Outlived;
        }
        if !resets && let Ok(mut rx) = hold_rx(s, s.generation16()) {
            // The last words say how far it has come. A peer that is on the ring goes back from
            // there; without a word of that it would have to take the connection for broken.
            freeze(&mut rx);
        }
    }
    announce_end(s, &mut h);
    LastName::Gone
}

/// Takes a connection apart around the kernel's close of its last descriptor.
pub(super) fn finish(s: &'static Socket, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    let mut state = s.state.now();
    for turn in 1..1_000_000 {
        if state != State::Changing {
            break;
        }
        // Another thread is about to attach it: it finishes first, and this takes the result apart.
        // (On the CPU that this one has, it may be.)
        if turn % 1000 == 0 {
            sys::sched_yield();
        }
        core::hint::spin_loop();
        state = s.state.now();
    }
    let was_candidate = state == State::Candidate && {
        // In this order: who notes it raises NOTED first, and looks at the state afterwards.
        let left = !s.is_inherited() && s.names() > 0;
        let won =
            s.state.change(State::Candidate, if left { Event::Closed } else { Event::Refused });
        agent::forget(s);
        won
    };
    if state == State::Plain {
        // It may have become that a moment ago: whoever made it so may not have come by there yet.
        agent::leave_carrier(s, true);
    }
    let idle = s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
    if s.has(flag::TRACKED) {
        adoption::passed::before_close(s, fd, was_candidate && idle);
    }
    if s.has(flag::FAMILY) && s.names() == 0 {
        adoption::exec::family_ended(s, fd, was_candidate && idle);
    }
    if state == State::Attached {
        before_close(s, fd, true);
    } else if fd >= 0 && s.names() == 0 {
        reset_if_more_comes(s, fd);
    }
    let r = kernel_close();
    if !s.is_inherited() {
        close_books(s);
    }
    if was_candidate && adoption::leave(s) {
        return r;
    }
    if s.is(State::Closing) {
        s.state.change(State::Closing, Event::Refused);
    }
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

/// The last descriptor is about to be closed. `for_good`: no thread of this process receives any
/// more.
pub(crate) fn before_close(s: &'static Socket, fd: c_int, for_good: bool) {
    if s.is_inherited() {
        return;
    }
    let g = s.generation16();
    if let Ok(mut h) = hold_tx(s, g) {
        if for_good {
            announce_end(s, &mut h);
        } else {
            announce_end_in_time(s, &mut h);
        }
        if fd >= 0 && is_clean(&h) {
            say_late_fin(s, fd);
        }
        if for_good {
            // Under the lock: who looks at the carrier under it, as the service thread does, or
            // begins a way back, must not find another file under the number.
            s.fd.store(-1, Release);
        }
    }
    if for_good {
        // Before the look below.
        say_end(s);
    }
    let unread = hold_rx(s, g).is_ok_and(|mut h| h.unread().is_ok_and(|n| n > 0));
    if unread && fd >= 0 {
        // Closing with unread data resets the connection (RFC 9293 3.6.1; Linux: tcp_close); the
        // kernel cannot see the ring's.
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
    } else if fd >= 0 {
        closes_as_ever(s, g, fd);
    }
}

/// The kernel has closed it and no thread can find it any more: the slot is given back.
pub(crate) fn after_close(s: &'static Socket) {
    if s.needs_maker() {
        return;
    }
    // SAFETY: as in `Socket::channel`; the swap gives it to one caller.
    let Some(channel) = (unsafe { s.channel.swap(core::ptr::null_mut(), AcqRel).as_ref() }) else {
        return;
    };
    let slot = s.slot.load(Relaxed) as usize;
    if !channel.far.is_shared() {
        agent::of(s.path()).released(channel, slot);
        return;
    }
    let (tx, rx) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    channel.notify(slot, &tx.quiet[quiet::NOTIFY]);
    channel.notify(slot, &rx.producer_quiet[producer_quiet::NOTIFY]);
    // Last: the slot may serve another connection from here on.
    rx.quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    s.published.leave();
    if !s.is_inherited() {
        agent::of(s.path()).released(channel, slot);
    }
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
