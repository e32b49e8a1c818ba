//! The options of keep-alive, where the library has the kernel send a packet on an idle carrier
//! (`remote/probes.rs` says when).
//!
//! Nothing else has the kernel send one, so these options are others for a moment. What the
//! application has set is with the sending end meanwhile, as its SO_LINGER is (`linger.rs`): who
//! takes a connection off its path, or closes it, puts it back, under the same lock; and the
//! application's own calls come after that.

use super::ends::{TxHeld, hold_tx};
use crate::socket::{Named, Socket, State, flag};
use crate::{fd_table, sys};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
use libc::socklen_t;

/// What a probe needs, in this order: no limit of the application's ends its connection for it; and
/// the last one has the kernel look at the time at once, which is over.
const NEEDS: [(c_int, c_int, c_int); 4] = [
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 0),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 127),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1),
];

/// The application's values of these.
type Before = [c_int; NEEDS.len()];

/// `None`: one of them is not told, or could not be put back (a default of the system's may be more
/// than the option takes).
fn before(fd: c_int) -> Option<Before> {
    let mut before = [0; NEEDS.len()];
    for ((level, name, _), was) in NEEDS.iter().zip(&mut before) {
        if sys::getsockopt(fd, *level, *name, was) < 0
            || sys::setsockopt(fd, *level, *name, was) < 0
        {
            return None;
        }
    }
    Some(before)
}

/// Has the kernel send a packet on the carrier. [`end_probe`] is to follow, if anything did.
pub(crate) fn begin_probe(s: &'static Socket, g: u16) {
    let Ok(mut h) = hold_tx(s, g) else { return };
    if s.names() == 0 && !s.has(flag::ORPHAN) {
        // Its last name is being closed: the number may be another file's at any time.
        return;
    }
    let fd = s.fd.load(Acquire);
    // (Where another one is under way these are not the application's.)
    let Some(before) = h.end.probed.or_else(|| before(fd)) else { return };
    h.end.probed = Some(before);
    if NEEDS.iter().any(|(level, name, needs)| sys::setsockopt(fd, *level, *name, needs) < 0) {
        put_back(&mut h, fd);
    }
}

/// The options are the application's again. (Of a connection that has left its path they are.)
pub(crate) fn end_probe(s: &'static Socket, g: u16) {
    if let Ok(mut h) = hold_tx(s, g) {
        put_back(&mut h, s.fd.load(Acquire));
    }
}

/// As [`end_probe`], for who holds the end.
pub(super) fn put_back(h: &mut TxHeld<'_>, fd: c_int) {
    let Some(before) = h.end.probed.take() else { return };
    for ((level, name, needs), was) in NEEDS.iter().zip(&before).rev() {
        let mut now = 0;
        // (Who has the socket without the library may have set something else.)
        let asked = sys::getsockopt(fd, *level, *name, &mut now);
        if asked >= 0 && now == *needs && *was != *needs {
            let _ = sys::setsockopt(fd, *level, *name, was);
        }
    }
}

/// TCP_USER_TIMEOUT as the application has set it, in milliseconds; 0: it has not.
pub(super) fn user_timeout_ms(h: &TxHeld<'_>, fd: c_int) -> c_int {
    let mut ms = 0;
    match h.end.probed {
        Some([theirs, ..]) => ms = theirs,
        None => drop(sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &mut ms)),
    }
    ms
}

/// The connection behind a descriptor, if that is an option which a probe on it changes.
pub(crate) fn probed_by(fd: c_int, level: c_int, name: c_int) -> Option<Named> {
    NEEDS.iter().find(|(l, n, _)| (*l, *n) == (level, name))?;
    let (s, g) = fd_table::socket(fd)?;
    (s.is(State::Attached) && s.path().is_lossy()).then_some(Named { s, g, fd })
}

/// The application sets one of them: under the lock, so that no probe puts back the value of before
/// over it. `None`: the connection is not on its path any more, and the call is still to be made.
///
/// # Safety
/// `value` is the caller's, as for setsockopt(2).
pub(crate) unsafe fn set_probed(
    on: Named,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> Option<isize> {
    let mut h = hold_tx(on.s, on.g).ok()?;
    put_back(&mut h, on.fd);
    // SAFETY: the caller's promise.
    Some(unsafe { sys::setsockopt_raw(on.fd, level, name, value, len) })
}
