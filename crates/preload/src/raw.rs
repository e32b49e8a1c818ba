//! System calls made without libc, whose wrappers are symbols like any other.

use libc::c_long;

/// # Safety
/// As the system call demands.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the x86-64 system call convention.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// # Safety
/// As the system call demands.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    let result;
    // SAFETY: the AArch64 system call convention.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    result
}
