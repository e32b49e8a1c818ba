//! The application's SO_LINGER, where the library's own may stand on the carrier
//! (`end_in_reset.rs`).

use super::end_in_reset::{RESET_ON_CLOSE, get, set};
use super::ends::{TxHeld, hold_tx};
use super::leave::to_kernel;
use crate::outcome::{PASS, Ret};
use crate::socket::{Named, Socket, State};
use crate::sys;
use core::ffi::{c_int, c_void};
use libc::socklen_t;
use netacc_control::stats::Reason;

/// The application sets SO_LINGER: under the lock, so that nobody puts back the value of before
/// over it.
///
/// # Safety
/// `value` is the caller's, as for setsockopt(2).
pub(crate) unsafe fn set_linger(on: Named, value: *const c_void, len: socklen_t) -> Ret {
    let Ok(mut h) = hold_tx(on.s, on.g) else { return PASS };
    // SAFETY: the caller's promise.
    let r = unsafe { sys::setsockopt_raw(on.fd, libc::SOL_SOCKET, libc::SO_LINGER, value, len) };
    if r >= 0 {
        note(&mut h, on.fd);
    }
    r
}

/// It has set it, on what has become attached meanwhile.
pub(crate) fn on_linger(s: &'static Socket, g: u16, fd: c_int) {
    if let Ok(mut h) = hold_tx(s, g) {
        note(&mut h, fd);
    }
}

/// What stands on the carrier is the application's; where the library's own is to stand there, it
/// is kept.
fn note(h: &mut TxHeld<'_>, fd: c_int) {
    if let Some(kept) = h.end.linger.as_mut()
        && let Some(theirs) = get(fd)
    {
        kept.theirs = theirs;
        set(fd, &RESET_ON_CLOSE);
    }
}

/// The application's SO_LINGER, where what the kernel has just said may be the library's own.
pub(crate) fn application_linger(s: &'static Socket, g: u16, fd: c_int) -> Option<libc::linger> {
    if s.is_inherited() && s.is(State::Attached) {
        let _ = to_kernel(s, g, fd, Reason::InheritedByFork, false);
    }
    // (Asked again: it may have been put back since.)
    match hold_tx(s, g) {
        Ok(h) => h.end.linger.map(|kept| kept.theirs).or_else(|| get(fd)),
        Err(_) => get(fd),
    }
}
