//! A process that the library makes, and that outlives the program (`crate::remote`, keeper).

use super::syscall;
use core::ffi::c_int;
use libc::pollfd;

/// Two ends of a pipe, close-on-exec: to read from, to write to.
pub(crate) fn pipe() -> Result<[c_int; 2], isize> {
    let mut ends = [-1; 2];
    let r = sys!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC);
    if r < 0 { Err(r) } else { Ok(ends) }
}
/// clone(2) with a stack of its own; the other one runs `entry(argument)`. Returns its id, or
/// `-errno`.
///
/// # Safety
/// `top`, aligned to 16 bytes, is the end of memory that nobody else uses as long as that one runs.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn clone(
    flags: c_int,
    top: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> isize {
    let ret: isize;
    // SAFETY: the system call's convention. The child goes on with the registers of its maker, but
    // for rax (0) and the stack, and never comes to the label.
    unsafe {
        core::arch::asm!(
            "syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r13", "call r12", "ud2", "2:",
            inlateout("rax") libc::SYS_clone as isize => ret, in("rdi") flags as usize, in("rsi") top,
            in("rdx") 0usize, in("r10") 0usize, in("r8") 0usize, in("r12") entry, in("r13") argument,
            lateout("rcx") _, lateout("r11") _);
    }
    ret
}
/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn clone(
    flags: c_int,
    top: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> isize {
    let ret: isize;
    // SAFETY: as above: all but x0 and the stack are the maker's.
    unsafe {
        core::arch::asm!(
            "svc 0", "cbnz x0, 2f", "mov x29, xzr", "mov x0, x20", "blr x21", "brk 1", "2:",
            in("x8") libc::SYS_clone, inlateout("x0") flags as usize => ret, in("x1") top,
            in("x2") 0usize, in("x3") 0usize, in("x4") 0usize, in("x20") argument, in("x21") entry,
            lateout("x30") _);
    }
    ret
}
/// ppoll(2), by a thread that no signal can interrupt, without a limit of time.
pub(crate) fn poll_blocked(fds: &mut [pollfd]) {
    let _ = sys!(SYS_ppoll, fds.as_mut_ptr(), fds.len(), 0, 0, 8);
}
/// ppoll(2) of one descriptor for input, by a thread that no signal can interrupt. True: there is.
pub(crate) fn await_input(fd: c_int, ns: i64) -> bool {
    let mut p = pollfd { fd, events: libc::POLLIN, revents: 0 };
    let limit = super::to_timespec(ns);
    sys!(SYS_ppoll, &raw mut p, 1, &raw const limit, 0, 8) > 0
}
/// Whether another process, or thread, has this memory too: a vfork's child (unshare(2): CLONE_VM
/// is refused then, and does nothing otherwise). `None`: the kernel does not say.
pub(crate) fn is_memory_shared() -> Option<bool> {
    match sys!(SYS_unshare, libc::CLONE_VM) {
        0 => Some(false),
        r if r == -(libc::EINVAL as isize) => Some(true),
        _ => None,
    }
}
/// Waits until that child, of whatever kind, has ended.
pub(crate) fn reap(child: u32) {
    while sys!(SYS_wait4, child, 0, libc::__WALL, 0) == -(libc::EINTR as isize) {}
}
pub(crate) fn exit_process() -> ! {
    loop {
        let _ = sys!(SYS_exit_group, 0);
    }
}
/// execve(2), without an environment. Returns where it fails.
pub(crate) fn execute(path: &[u8], arguments: &[*const core::ffi::c_char]) {
    let none = [core::ptr::null::<core::ffi::c_char>()];
    if path.last() == Some(&0) && arguments.last().is_some_and(|last| last.is_null()) {
        let _ = sys!(SYS_execve, path.as_ptr(), arguments.as_ptr(), none.as_ptr());
    }
}
/// Away from the session, the folder and the core dumps of whoever made this process.
pub(crate) fn detach() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let _ = sys!(SYS_setsid);
    let _ = sys!(SYS_chdir, c"/".as_ptr());
    let _ = sys!(SYS_prlimit64, 0, libc::RLIMIT_CORE, &none as *const libc::rlimit, 0);
}
/// A descriptor that is readable while this signal, which is blocked, waits.
pub(crate) fn signal_fd(signal: c_int) -> isize {
    let mask: u64 = 1 << (signal - 1);
    sys!(SYS_signalfd4, -1i32, &mask as *const u64, 8, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
}
/// Where this thread's own words are.
pub(crate) fn thread_pointer() -> usize {
    let at: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word there is its own address (the ABI of thread-local storage).
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a register that every program may read.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) at, options(nostack, nomem, preserves_flags));
    }
    at
}
/// Unmaps what is not the library's.
///
/// # Safety
/// Nobody uses any of it any more.
pub(crate) unsafe fn unmap_foreign(from: usize, to: usize) {
    let _ = sys!(SYS_munmap, from, to.saturating_sub(from));
}

/// Whether the calling thread's CPU is shared out by time (SCHED_OTHER, SCHED_BATCH).
pub(crate) fn is_time_shared() -> bool {
    const RESET_ON_FORK: isize = 0x4000_0000;
    let policy = sys!(SYS_sched_getscheduler, 0) & !RESET_ON_FORK;
    policy == libc::SCHED_OTHER as isize || policy == libc::SCHED_BATCH as isize
}
