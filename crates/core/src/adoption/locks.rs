//! A program's own record locks on a connection: they end where the library's begin
//! ([`super::passed`]), also where the program locks all that there is. Then no lock of either is
//! in the other's way, and to unlock all takes none of the library's.
//!
//! Not here: a program that locks single bytes from 2^61 on.

use super::passed::HOLDER;
use crate::fd_table::{self, Entry};
use crate::user;
use core::ffi::c_int;

/// `F_OFD_GETLK`, `F_OFD_SETLK`, `F_OFD_SETLKW`.
const OF_THE_FILE: core::ops::RangeInclusive<c_int> = 36..=38;

/// Whether a command of `fcntl(2)` is about record locks.
#[inline]
pub(crate) fn are_meant(cmd: c_int) -> bool {
    matches!(cmd, libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW) || OF_THE_FILE.contains(&cmd)
}

/// The lock that such a command is about, where it goes beyond what is the program's: without that.
/// `None`: it is as it has to be.
///
/// # Safety
/// `arg` is the caller's, as for fcntl(2).
pub(crate) unsafe fn own_part(fd: c_int, arg: usize) -> Option<libc::flock> {
    if !matches!(fd_table::get(fd), Entry::Socket(..)) {
        return None;
    }
    // SAFETY: any bytes are one; the caller's promise.
    let lock = unsafe { user::read(arg as *const libc::flock) }?;
    clipped(lock)
}

/// (A socket's offset and size are 0, from wherever the lock is counted.)
fn clipped(lock: libc::flock) -> Option<libc::flock> {
    let from = lock.l_start;
    let end = if lock.l_len == 0 { i64::MAX } else { from.saturating_add(lock.l_len) };
    let beyond = (0..HOLDER).contains(&from) && lock.l_len >= 0 && end > HOLDER;
    beyond.then(|| libc::flock { l_len: HOLDER - from, ..lock })
}

/// What the kernel has said of [`own_part`], as the program asked for it. False: EFAULT.
///
/// # Safety
/// As for [`own_part`].
pub(crate) unsafe fn tell(arg: usize, said: libc::flock) -> bool {
    let at = arg as *mut libc::flock;
    // SAFETY: as in `own_part`.
    let Some(asked) = (unsafe { user::read(at) }) else { return false };
    let told = if said.l_type == libc::F_UNLCK as i16 {
        libc::flock { l_type: said.l_type, ..asked }
    } else if said.l_start.checked_add(said.l_len) == Some(HOLDER) {
        // (Somebody else has all of it locked, in the same way.)
        libc::flock { l_len: 0, ..said }
    } else {
        said
    };
    // SAFETY: as above.
    unsafe { user::write(at, told) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    fn lock(l_start: i64, l_len: i64) -> libc::flock {
        libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start, l_len, l_pid: 0 }
    }

    #[test]
    fn only_what_goes_beyond_the_programs_part_is_cut() {
        for (from, len) in [(0, 0), (7, 0), (0, i64::MAX), (HOLDER - 1, 2)] {
            let own = clipped(lock(from, len)).unwrap();
            assert_eq!((own.l_start, own.l_len), (from, HOLDER - from));
        }
        for (from, len) in [(0, 1000), (0, HOLDER), (HOLDER, 1), (5, -5), (-1, 0)] {
            assert!(clipped(lock(from, len)).is_none());
        }
    }

    #[test]
    fn the_program_is_told_of_the_lock_that_it_asked_about() {
        let mut asked = lock(0, 0);
        let at = &raw mut asked as usize;
        let free = libc::flock { l_type: libc::F_UNLCK as i16, ..lock(0, HOLDER) };
        // SAFETY: a lock of ours, here and below.
        assert!(unsafe { tell(at, free) });
        assert_eq!((asked.l_type, asked.l_len), (libc::F_UNLCK as i16, 0));
        // SAFETY: as above.
        assert!(unsafe { tell(at, libc::flock { l_pid: 7, ..lock(10, HOLDER - 10) }) });
        assert_eq!((asked.l_start, asked.l_len, asked.l_pid), (10, 0, 7));
    }
}
