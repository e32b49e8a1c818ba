//! Memory: files of it, mappings.

use super::syscall;
use crate::mapped;
use core::ffi::c_int;

pub(crate) fn memfd_create(name: &[u8], flags: u32) -> isize {
    debug_assert!(name.last() == Some(&0));
    sys!(SYS_memfd_create, name.as_ptr(), flags)
}
pub(crate) fn ftruncate(fd: c_int, len: usize) -> isize {
    sys!(SYS_ftruncate, fd, len)
}
pub(crate) fn fchmod(fd: c_int, mode: u32) -> isize {
    sys!(SYS_fchmod, fd, mode)
}
/// Size of the file behind `fd`, or `-errno`.
pub(crate) fn file_size(fd: c_int) -> isize {
    // SAFETY: all zero is a valid `stat`.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    let r = sys!(SYS_fstat, fd, &mut st as *mut libc::stat);
    if r < 0 { r } else { st.st_size as isize }
}
/// Maps `len` bytes shared and read-write: of `fd`, or anonymous memory when `fd` is -1. Null when
/// refused.
pub(crate) fn map_shared(fd: c_int, len: usize) -> *mut u8 {
    if crate::inject::call().is_some() {
        return core::ptr::null_mut();
    }
    let flags = libc::MAP_SHARED | if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    mapped_at(sys!(SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0), len)
}
/// What an mmap came to.
fn mapped_at(r: isize, len: usize) -> *mut u8 {
    if (-4095..0).contains(&r) {
        return core::ptr::null_mut();
    }
    mapped::add(r as usize, len);
    r as *mut u8
}
/// Maps a part of an io_uring, for this process alone: a forked child has none of it.
pub(crate) fn map_ring(fd: c_int, len: usize, offset: usize) -> *mut u8 {
    if crate::inject::call().is_some() {
        return core::ptr::null_mut();
    }
    let r = sys!(
        SYS_mmap,
        0,
        len,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_POPULATE,
        fd,
        offset
    );
    if (-4095..0).contains(&r) {
        return core::ptr::null_mut();
    }
    let _ = sys!(SYS_madvise, r, len, libc::MADV_DONTFORK);
    r as *mut u8
}
pub(crate) unsafe fn unmap(at: *mut u8, len: usize) {
    mapped::remove(at as usize);
    let _ = sys!(SYS_munmap, at, len);
}
/// Maps `len` bytes of zeroed private memory. Null when refused.
pub(crate) fn map_private(len: usize) -> *mut u8 {
    if crate::inject::call().is_some() {
        return core::ptr::null_mut();
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    mapped_at(sys!(SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1i32, 0), len)
}
/// Replaces the mapping at `at` by `fd` (shared), or, `fd` -1, by zeroed private memory. False:
/// refused.
///
/// # Safety
/// `at..at + len` is a mapping of the caller's that may change under whoever still uses it.
pub(crate) unsafe fn map_over(at: *mut u8, fd: c_int, len: usize) -> bool {
    if fd >= 0 && crate::inject::call().is_some() {
        return false;
    }
    let kind = if fd < 0 {
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE
    } else {
        libc::MAP_SHARED
    };
    let r =
        sys!(SYS_mmap, at, len, libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_FIXED, fd, 0);
    r == at as isize
}
/// Moves the mapping at `from` over what is mapped at `to`, at once for everybody who looks there.
/// False: refused.
///
/// # Safety
/// Both are mappings of the caller's of `len` bytes; what was at `to` may change under whoever
/// still uses it.
pub(crate) unsafe fn move_over(from: *mut u8, to: *mut u8, len: usize) -> bool {
    let r = sys!(SYS_mremap, from, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to);
    r == to as isize
}
/// Maps `len` bytes for this process alone: a forked child finds zeros of its own, and nothing has
/// to be copied for it. Null when refused.
pub(crate) fn map_own(len: usize) -> *mut u8 {
    let at = map_private(len);
    if !at.is_null() {
        let _ = sys!(SYS_madvise, at, len, libc::MADV_WIPEONFORK);
    }
    at
}
/// Gives the pages of a shared mapping back to the system; they read as zeros afterwards.
///
/// # Safety
/// `at..at + len` lies in one shared mapping, whose bytes nobody needs any more.
pub(crate) unsafe fn punch(at: *mut u8, len: usize) {
    let _ = sys!(SYS_madvise, at, len, libc::MADV_REMOVE);
}
