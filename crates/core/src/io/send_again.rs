//! Bytes of a ring that go out again over the carrier, before all others.

use super::EAGAIN;
use super::end_in_reset::{For, end_as_ever};
use super::ends::{TxHeld, corrupt, hold_tx};
use super::say_end::announce_end;
use crate::heap::{PART_FEW, Part};
use crate::log::debug_log;
use crate::outcome::Ret;
use crate::socket::{Socket, flag};
use crate::trace::Event;
use crate::{carrier, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_proto::switchover::TxState;

/// So many errors of the way are taken in one call.
const TOLD_AT_ONCE: u32 = 3;

/// Sends on the carrier what a pull-back has to send again, as far as there is room: 0 when nothing
/// of it is left, or EAGAIN. `fd` is the caller's name of the carrier, which counts in a forked
/// child; in the maker's process it may have been closed meanwhile.
pub(super) fn send_again(s: &Socket, h: &mut TxHeld<'_>, fd: c_int) -> Ret {
    let fd = if s.is_inherited() { fd } else { s.fd.load(Acquire) };
    if fd < 0 {
        return EAGAIN;
    }
    let mut few = [0u8; PART_FEW];
    let mut part = Part::new(&mut few);
    let part = part.bytes();
    let mut told = 0;
    while h.end.switch.state() == TxState::Resending {
        let resend = h.end.switch.resend();
        let left = resend.end - resend.start;
        let want = part.len().min(left as usize);
        // SAFETY: `part` is ours and outside the ring.
        let n = unsafe { h.end.ring.copy_out(resend.start, part.as_mut_ptr(), want) };
        if n == 0 {
            return corrupt(s, fd);
        }
        // Should this process be killed between the next two steps, a child that has the connection
        // too knows how far it came.
        h.end.resend_mark = carrier::sent(fd);
        // SAFETY: `n` bytes of `part`.
        let r =
            unsafe { sys::sendto(fd, part.as_ptr(), n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        h.end.resend_mark = None;
        if r > 0 {
            let _ = h.end.switch.on_resent(r as u64);
        } else if matches!(
            -r as c_int,
            0 | libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM
        ) {
            return EAGAIN;
        } else if is_of_the_way(r) && !carrier::is_closed(fd) {
            // The connection lives. The error is the application's, and was told to this call.
            s.kept_error.store(r as i32, Relaxed);
            wait::prod(s);
            told += 1;
            if told == TOLD_AT_ONCE {
                return EAGAIN;
            }
        } else {
            debug_log!("fd {fd}: {left} bytes that were to go out again are lost: errno {}", -r);
            cannot_go_on(s, h, fd, r);
            let _ = h.end.switch.on_resent(left);
            return 0;
        }
        if h.end.switch.state() != TxState::Resending {
            all_is_sent_again(s, h, fd);
        }
    }
    0
}

/// An error of the way to the peer (ip(7), IP_RECVERR), told by whichever call comes first.
fn is_of_the_way(r: Ret) -> bool {
    matches!(
        -r as c_int,
        libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::ECONNREFUSED
            | libc::EMSGSIZE
            | libc::EPROTO
    )
}

/// The carrier takes no byte any more, and has said `r` to this call alone. The peer must not take
/// what it got for all: the connection is reset, if it is not yet. (What came before a reset is
/// still to be read, and then the error.)
#[cold]
fn cannot_go_on(s: &Socket, h: &mut TxHeld<'_>, fd: c_int, r: Ret) {
    h.end.linger = None;
    let over = carrier::is_closed(fd);
    match -r as c_int {
        libc::ECONNRESET if over => s.raise(flag::RESET),
        libc::EPIPE => s.raise(flag::TOLD),
        _ if over => s.kept_error.store(r as i32, Relaxed),
        _ => {}
    }
    s.raise(flag::BROKEN_OFF | flag::CARRIER_SPOKE);
    s.trace_once(Event::BrokenOff, 0);
    if !over {
        carrier::dissolve(fd);
    }
}

/// The carrier goes on as usual: what was put off is done.
pub(super) fn all_is_sent_again(s: &Socket, h: &mut TxHeld<'_>, fd: c_int) {
    debug_log!("fd {fd}: all is sent again");
    end_as_ever(h, fd, For::Sending);
    if s.has(flag::FIN_LATER) {
        announce_end(s, h);
        let _ = sys::shutdown(fd, libc::SHUT_WR);
        s.lower(flag::FIN_LATER);
    }
}

/// Whether bytes wait to be sent again, before all that the kernel is asked to send.
pub(super) fn is_resending(s: &'static Socket, g: u16) -> bool {
    hold_tx(s, g).is_ok_and(|h| h.end.switch.state() == TxState::Resending)
}
