//! shutdown(2). (What the peer is told before a FIN: `say_end.rs`.)

use super::ends::{NotHeld, hold_rx, hold_tx};
use super::leave::to_kernel;
use super::say_end::{announce_end, say_fin, say_shut, serve_before_fin};
use crate::channel::producer_quiet;
use crate::outcome::{ANEW, Ret};
use crate::socket::{Socket, State, flag};
use crate::{engines, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use netacc_control::stats::Reason;
use netacc_proto::switchover::TxState;

pub(crate) fn shutdown(s: &'static Socket, g: u16, fd: c_int, how: c_int) -> Ret {
    let inherited = s.is_inherited();
    if inherited {
        let done = to_kernel(s, g, fd, Reason::InheritedByFork, false);
        if !done && s.is(State::Attached) && s.needs_maker() {
            return shutdown_of_parents(s, fd, how);
        }
    } else if s.path().leaves_by_agent() {
        return shutdown_between_hosts(s, g, fd, how);
    } else if how != libc::SHUT_RD {
        serve_before_fin(s);
    }
    if (how == libc::SHUT_WR || how == libc::SHUT_RDWR)
        && let Ok(mut h) = hold_tx(s, g)
    {
        if h.end.switch.state() == TxState::Resending {
            // Bytes that go out again over the carrier go before its FIN: who sends the last of
            // them shuts it down.
            s.raise(flag::FIN_DUE);
        } else if !inherited {
            s.raise(flag::SHUT_WR);
            announce_end(s, &mut h);
        }
    }
    let is_over = if inherited {
        say_fin(s, g, how);
        false
    } else {
        say_shut(s, fd, how)
    };
    let r = match how {
        libc::SHUT_WR if s.has(flag::FIN_LATER) => 0,
        libc::SHUT_RDWR if s.has(flag::FIN_LATER) => sys::shutdown(fd, libc::SHUT_RD),
        _ => sys::shutdown(fd, how),
    };
    crate::channel::sent_by_kernel();
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        s.raise(flag::CARRIER_SPOKE);
    }
    if is_over || (how == libc::SHUT_RD && !inherited) {
        wake_senders(s);
    }
    wait::prod(s);
    r
}

/// A peer that knows of our FIN, and waits for room, sleeps until it is told that there will be
/// none.
fn wake_senders(s: &Socket) {
    if let Some(channel) = s.channel().filter(|c| c.far.is_shared()) {
        let slot = s.slot.load(Relaxed) as usize;
        let words = channel.words(slot, channel.side ^ 1);
        channel.notify(slot, &words.producer_quiet[producer_quiet::NOTIFY]);
    }
}

/// `shutdown(2)` of a connection between hosts. Waits for nothing: what the peer does not have goes
/// over the carrier before its FIN.
pub(super) fn shutdown_between_hosts(s: &'static Socket, g: u16, fd: c_int, how: c_int) -> Ret {
    if how != libc::SHUT_RD && how != libc::SHUT_WR && how != libc::SHUT_RDWR {
        return -(libc::EINVAL as Ret);
    }
    if let Some(channel) = s.channel() {
        // What has come is seen.
        engines::poll_for(channel, s.slot.load(Relaxed) as usize);
    }
    let held = hold_tx(s, g);
    // (A handler that has interrupted a send of this thread's: nobody goes on before it returns.)
    let interrupts = matches!(held, Err(NotHeld::Reentrant));
    let Some(channel) = s.channel().filter(|_| held.is_ok() || interrupts) else { return ANEW };
    let slot = s.slot.load(Relaxed) as usize;
    // (Its FIN may have gone already.)
    if how != libc::SHUT_RD && !s.has(flag::SHUT_WR) {
        s.raise(flag::FIN_DUE);
    }
    drop(held);
    if how != libc::SHUT_WR {
        if let Ok(mut rx) = hold_rx(s, g) {
            rx.note_shut();
        }
        s.raise(flag::SHUT_RD | flag::CARRIER_SPOKE);
        let r = sys::shutdown(fd, libc::SHUT_RD);
        if r < 0 {
            return r;
        }
    }
    if s.has(flag::SHUT_WR)
        && s.has(flag::SHUT_RD)
        && let Ok(mut rx) = hold_rx(s, g)
    {
        rx.note_both_shut(s, fd);
    }
    // (Another connection may have the slot by now, unless a handler has interrupted who holds it.)
    let held = hold_tx(s, g);
    if interrupts || held.is_ok() {
        channel.far.demote(slot, Reason::Disconnected, false);
    }
    drop(held);
    wait::prod(s);
    0
}

/// `shutdown(2)` in a forked child whose parent has not taken the connection to the carrier yet,
/// and tells the kernel then.
pub(crate) fn shutdown_of_parents(s: &Socket, fd: c_int, how: c_int) -> Ret {
    match how {
        libc::SHUT_WR => s.raise(flag::FIN_DUE),
        libc::SHUT_RD => s.raise(flag::SHUT_RD),
        libc::SHUT_RDWR => s.raise(flag::FIN_DUE | flag::SHUT_RD),
        _ => return -(libc::EINVAL as Ret),
    }
    // It may have been there already, and have seen nothing of this.
    fence(SeqCst);
    if s.is(State::Attached) { 0 } else { sys::shutdown(fd, how) }
}
