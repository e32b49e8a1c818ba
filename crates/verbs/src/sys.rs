//! The few system calls that this crate makes itself: raw, so that they cannot enter a hook of the
//! preload library.

use core::ffi::c_int;

#[cfg(target_arch = "x86_64")]
unsafe fn syscall(n: i64, a: usize, b: usize, c: usize) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 Linux system call convention: rcx and r11 are clobbered, memory may be
    // written.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") n as isize => ret, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

#[cfg(target_arch = "aarch64")]
unsafe fn syscall(n: i64, a: usize, b: usize, c: usize) -> isize {
    let ret: isize;
    // SAFETY: the AArch64 Linux system call convention.
    unsafe {
        core::arch::asm!("svc 0", in("x8") n, inlateout("x0") a as isize => ret, in("x1") b, in("x2") c,
            options(nostack));
    }
    ret
}

fn fcntl(fd: c_int, command: c_int, argument: usize) -> isize {
    // SAFETY: F_GETFL and F_SETFL take and give integers.
    unsafe { syscall(libc::SYS_fcntl, fd as usize, command as usize, argument) }
}

/// Makes reading from `fd` return instead of wait. False: refused.
pub(crate) fn set_nonblocking(fd: c_int) -> bool {
    let flags = fcntl(fd, libc::F_GETFL, 0);
    flags >= 0 && fcntl(fd, libc::F_SETFL, flags as usize | libc::O_NONBLOCK as usize) >= 0
}

/// A nonblocking, close-on-exec eventfd, or `-errno`.
#[cfg(feature = "memory")]
pub(crate) fn eventfd() -> c_int {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_eventfd2, 0, flags as usize, 0) as c_int }
}

/// Makes an eventfd readable.
#[cfg(feature = "memory")]
pub(crate) fn raise(fd: c_int) {
    let one = 1u64;
    // SAFETY: reads the 8 bytes of `one`.
    unsafe { syscall(libc::SYS_write, fd as usize, &raw const one as usize, 8) };
}

/// Makes an eventfd unreadable.
#[cfg(feature = "memory")]
pub(crate) fn lower(fd: c_int) {
    let mut count = 0u64;
    // SAFETY: writes the 8 bytes of `count`.
    unsafe { syscall(libc::SYS_read, fd as usize, &raw mut count as usize, 8) };
}

/// Closes a descriptor.
#[cfg(feature = "memory")]
pub(crate) fn close(fd: c_int) {
    // SAFETY: integers only; the caller owns the descriptor.
    unsafe { syscall(libc::SYS_close, fd as usize, 0, 0) };
}

/// Around every call of the libraries: keeps the calling thread's `errno` as it is, which they
/// write, and keeps the thread from being cancelled. Providers write to a descriptor, which is a
/// cancellation point, while they hold a spin lock.
pub(crate) struct Shelter {
    errno: c_int,
    cancelling: c_int,
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

impl Shelter {
    #[inline]
    pub(crate) fn take() -> Self {
        let mut cancelling = 0;
        // SAFETY: pthread_setcancelstate(3) of the calling thread, with a place for the old state.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancelling) };
        Self { errno: errno(), cancelling }
    }
}

impl Drop for Shelter {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `take`; the old state is not wanted.
        unsafe { pthread_setcancelstate(self.cancelling, core::ptr::null_mut()) };
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = self.errno };
    }
}

/// The calling thread's `errno`.
#[inline]
pub(crate) fn errno() -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() }
}
