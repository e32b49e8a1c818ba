//! SO_LINGER: the application's, and the library's own while the end of this process must not look
//! like the end of the stream.

use super::ends::{TxHeld, hold_tx};
use super::leave::to_kernel;
use crate::socket::Socket;
use crate::sys;
use core::ffi::c_int;
use netacc_control::stats::Reason;

/// The kernel resets a connection that is closed with this (tcp(7), RFC 9293 ABORT).
pub(super) const RESET_ON_CLOSE: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

/// Before a close that nobody waits for: with a time in SO_LINGER it would hold up the helper that
/// makes it.
pub(crate) fn never_linger(fd: c_int) {
    let mut linger = RESET_ON_CLOSE;
    if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0
        && linger.l_onoff != 0
        && linger.l_linger > 0
    {
        let _ = sys::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            &libc::linger { l_onoff: 0, l_linger: 0 },
        );
    }
}

/// The application has set SO_LINGER: noted while bytes are sent again.
pub(crate) fn on_linger(s: &'static Socket, g: u16, fd: c_int) {
    let Ok(h) = hold_tx(s, g) else { return };
    if let Some(kept) = h.end.linger.as_mut()
        && sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, kept) >= 0
    {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
    }
}

/// The application's SO_LINGER, where the library's own stands, or has just stood, on the carrier.
pub(crate) fn application_linger(s: &'static Socket, g: u16, fd: c_int) -> Option<libc::linger> {
    if s.is_inherited() {
        let _ = to_kernel(s, g, fd, Reason::InheritedByFork, false);
        let mut linger = RESET_ON_CLOSE;
        return (sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0)
            .then_some(linger);
    }
    hold_tx(s, g).ok()?.end.linger
}

/// Before a promotion: from here on, until everything is the carrier's again, the end of this
/// process must not look like the end of the stream. A FIN of the kernel's would overtake what the
/// peer does not have yet.
pub(super) fn end_in_reset(h: &mut TxHeld<'_>, fd: c_int) {
    let mut linger = RESET_ON_CLOSE;
    if h.end.linger.is_none()
        && sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0
    {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
        h.end.linger = Some(linger);
    }
}
