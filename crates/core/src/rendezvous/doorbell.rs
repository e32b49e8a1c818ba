//! Doorbells that a peer passes to us: what may be one, and how one takes another's place.

use super::decimal_path;
use crate::channel::Channel;
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;

/// What a peer passes as a doorbell must be an eventfd: a read of anything else could block, or do
/// worse. Asked in the thread whose number it is.
pub(super) fn is_doorbell(fd: c_int) -> bool {
    let mut path = [0u8; 48];
    let mut out = [0u8; 32];
    let len = decimal_path(b"/proc/thread-self/fd/", fd as u32, &mut path);
    let n = sys::readlink(path.get(..=len).unwrap_or(&[0]), &mut out);
    if n > 0 {
        return out.get(..n as usize) == Some(b"anon_inode:[eventfd]");
    }
    // No /proc: at least it is of the family that eventfds belong to, and no read of them waits.
    let own = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
    let family = sys::inode_as_known(own);
    let same = family.is_some() && family == sys::inode_as_known(fd);
    if own >= 0 {
        let _ = sys::close(own);
    }
    same
}

/// Takes over the peer's doorbell; false: the descriptor given is not needed any more.
pub(super) fn learn_doorbell(c: &Channel, place: usize, fd: c_int) -> bool {
    let known = c.doorbells.get(place).map_or(-1, |d| d.load(Acquire));
    if known < 0 {
        c.learn_doorbell(place, fd);
        return true;
    }
    // Under the same number, in one step: a thread may be about to write to it.
    let _ = sys::dup3(fd, known, libc::O_CLOEXEC);
    crate::channel::wake(known);
    false
}
