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
/// Whether this is the process's only thread, as the kernel counts them; not where it does not say.
pub(crate) fn has_one_thread() -> bool {
    // SAFETY: all zero is a valid `stat`.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    let path = c"/proc/self/task".as_ptr();
    let r = sys!(SYS_newfstatat, libc::AT_FDCWD, path, &raw mut st, 0);
    // The directory's own two names, and one for each thread's.
    r >= 0 && st.st_nlink == 3
}
/// Reads a symbolic link (`path` ends in NUL) into `out`; returns the length.
pub(crate) fn readlink(path: &[u8], out: &mut [u8]) -> isize {
    debug_assert!(path.last() == Some(&0));
    sys!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), out.as_mut_ptr(), out.len())
}
/// Takes a name away (`path` ends in NUL).
pub(crate) fn unlink(path: &[u8]) -> isize {
    debug_assert!(path.last() == Some(&0));
    sys!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0)
}
/// flock(2).
pub(crate) fn flock(fd: c_int, how: c_int) -> isize {
    sys!(SYS_flock, fd, how)
}
/// Gives a part of a file memory, which it has from then on.
pub(crate) fn allocate(fd: c_int, at: usize, len: usize) -> isize {
    sys!(SYS_fallocate, fd, 0, at, len)
}
/// Of the file system behind `fd`, if it is memory: how many bytes are free, and how many there may
/// be (0: as many as there are).
pub(crate) fn memory_left(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zero is a valid `statfs`.
    let mut s: libc::statfs = unsafe { core::mem::zeroed() };
    let known = sys!(SYS_fstatfs, fd, &mut s as *mut libc::statfs) >= 0;
    let bytes = |blocks: u64| blocks.saturating_mul(s.f_bsize as u64);
    (known && s.f_type as i64 == TMPFS_MAGIC)
        .then_some((bytes(s.f_bavail as u64), bytes(s.f_blocks as u64)))
}
/// Owner and mode of the directory `path` (which ends in NUL), if it is on a tmpfs. (Nothing else
/// is asked of another file system.)
pub(crate) fn directory_in_memory(path: &[u8]) -> Option<(u32, u32)> {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: all zero is a valid `statfs`.
    let mut s: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: all zero is a valid `stat`.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    let known = sys!(SYS_statfs, path.as_ptr(), &mut s as *mut libc::statfs) >= 0;
    let is_directory = known
        && s.f_type as i64 == TMPFS_MAGIC
        && sys!(SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &mut st as *mut libc::stat, 0) >= 0
        && st.st_mode & libc::S_IFMT == libc::S_IFDIR;
    is_directory.then_some((st.st_uid, st.st_mode))
}
/// linux/magic.h.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// How much memory the file `path` (which ends in NUL) takes, if it is one of that user's.
pub(crate) fn memory_of(path: &[u8], user: u32) -> Option<u64> {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: all zero is a valid `stat`.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    let r = sys!(SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &mut st as *mut libc::stat, flags);
    let is_theirs = r >= 0 && st.st_uid == user && st.st_mode & libc::S_IFMT == libc::S_IFREG;
    is_theirs.then_some((st.st_blocks as u64).saturating_mul(512))
}
