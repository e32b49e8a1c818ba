//! What a descriptor or a path leads to.

use super::syscall;
use core::ffi::c_int;

/// Mode and inode of an open file.
pub(crate) fn file_of(fd: c_int) -> Option<(u32, u64)> {
    // SAFETY: all zero is a valid `stat`.
    let mut s: libc::stat = unsafe { core::mem::zeroed() };
    (sys!(SYS_fstat, fd, &raw mut s) >= 0).then_some((s.st_mode, s.st_ino))
}
/// The `f_type` of the file system behind `fd`, or 0.
pub(crate) fn file_system(fd: c_int) -> i64 {
    // SAFETY: all zero is a valid `statfs`.
    let mut s: libc::statfs = unsafe { core::mem::zeroed() };
    if sys!(SYS_fstatfs, fd, &mut s as *mut libc::statfs) < 0 { 0 } else { s.f_type as i64 }
}
/// Device and inode of `fd`, as the kernel knows them by itself: no file system is asked, which
/// could take as long as its maker likes.
pub(crate) fn inode_as_known(fd: c_int) -> Option<(u32, u32, u64)> {
    // SAFETY: all zero is a valid `statx`.
    let mut st: libc::statx = unsafe { core::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let r = sys!(SYS_statx, fd, c"".as_ptr(), flags, libc::STATX_INO, &raw mut st);
    (r >= 0).then_some((st.stx_dev_major, st.stx_dev_minor, st.stx_ino))
}
/// What `fstat` says; `None` when the descriptor is not open.
pub(crate) fn status(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all zero is a valid `stat`.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    (sys!(SYS_fstat, fd, &mut st as *mut libc::stat) >= 0).then_some(st)
}
/// Device and inode of `fd`; `None` when the descriptor is not open.
pub(crate) fn inode(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zero is a valid `stat`.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    (sys!(SYS_fstat, fd, &mut st as *mut libc::stat) >= 0).then_some((st.st_dev, st.st_ino))
}
/// Reads a symbolic link (`path` ends in NUL) into `out`; returns the length.
pub(crate) fn readlink(path: &[u8], out: &mut [u8]) -> isize {
    debug_assert!(path.last() == Some(&0));
    sys!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), out.as_mut_ptr(), out.len())
}
