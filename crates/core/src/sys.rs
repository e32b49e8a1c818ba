//! The door to the kernel: raw system calls.
//!
//! Nothing here goes through a libc symbol, so nothing can re-enter the hooks, be interposed, touch
//! `errno`, or be a cancellation point. Every wrapper returns the kernel's own value: `>= 0`, or
//! `-errno`.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;
pub(crate) use files::{
    allocate, directory_in_memory, file_of, file_system, flock, has_one_thread, inode,
    inode_as_known, memory_left, memory_of, readlink, status, unlink,
};
use libc::{epoll_event, iovec, msghdr, pollfd, sigset_t, timespec};
pub(crate) use machine::{
    allowed_cpus, cpu_time_ns, file_size_limit, host_memory, memlock_limit, set_affinity,
};
pub(crate) use memory::{
    fchmod, file_size, ftruncate, map_over, map_own, map_private, map_ring, map_shared,
    memfd_create, move_over, punch, unmap,
};
pub(crate) use process::{
    await_input, clone, detach, execute, exit_process, is_memory_shared, is_time_shared, pipe,
    poll_blocked, reap, signal_fd, thread_pointer, unmap_foreign,
};

/// One system call with up to six arguments.
///
/// # Safety
/// As the system call itself demands of its arguments.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn syscall(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    #[cfg(test)]
    crate::testing::count_call(n);
    let ret: isize;
    // SAFETY: the x86-64 Linux system call convention: rcx and r11 are clobbered, memory may be
    // written.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") n as isize => ret, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// One system call with up to six arguments.
///
/// # Safety
/// As the system call itself demands of its arguments.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) unsafe fn syscall(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    #[cfg(test)]
    crate::testing::count_call(n);
    let ret: isize;
    // SAFETY: the AArch64 Linux system call convention.
    unsafe {
        core::arch::asm!("svc 0", in("x8") n, inlateout("x0") a as isize => ret, in("x1") b, in("x2") c,
            in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    ret
}

macro_rules! sys {
    ($n:ident $(, $a:expr)*) => { sys!(@ libc::$n as i64; $($a as usize,)* 0, 0, 0, 0, 0, 0) };
    (@ $n:expr; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr $(, $rest:expr)*) => {
        // SAFETY: each wrapper below states or owns the validity of the pointers that it passes.
        unsafe { syscall($n, $a, $b, $c, $d, $e, $f) }
    };
}

// (Behind the macro, which they use.)
mod files;
mod machine;
mod memory;
mod process;

/// The kernel's receive or send timeout of a socket, nanoseconds, 0: none.
pub(crate) fn timeout_of(fd: c_int, name: c_int) -> i64 {
    let mut tv = libc::timeval { tv_sec: 0, tv_usec: 0 };
    if getsockopt(fd, libc::SOL_SOCKET, name, &mut tv) < 0 {
        return 0;
    }
    tv.tv_sec.saturating_mul(1_000_000_000).saturating_add(tv.tv_usec.saturating_mul(1000))
}

pub(crate) fn close(fd: c_int) -> isize {
    sys!(SYS_close, fd)
}
pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> isize {
    sys!(SYS_dup3, old, new, flags)
}
pub(crate) fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> isize {
    sys!(SYS_fcntl, fd, cmd, arg)
}
pub(crate) fn ioctl(fd: c_int, request: usize, arg: usize) -> isize {
    sys!(SYS_ioctl, fd, request, arg)
}
pub(crate) fn close_range(first: u32, last: u32, flags: u32) -> isize {
    sys!(SYS_close_range, first, last, flags)
}
pub(crate) fn shutdown(fd: c_int, how: c_int) -> isize {
    sys!(SYS_shutdown, fd, how)
}
pub(crate) fn getpid() -> u32 {
    sys!(SYS_getpid) as u32
}
/// 0: the parent is in a PID namespace outside of this process's.
pub(crate) fn getppid() -> u32 {
    sys!(SYS_getppid) as u32
}
pub(crate) fn gettid() -> u32 {
    sys!(SYS_gettid) as u32
}
pub(crate) fn geteuid() -> u32 {
    sys!(SYS_geteuid) as u32
}
/// Sends the calling thread a signal.
pub(crate) fn raise(signal: c_int) {
    let _ = sys!(SYS_tgkill, getpid(), gettid(), signal);
}
pub(crate) fn sched_yield() {
    let _ = sys!(SYS_sched_yield);
}
/// True while a thread or process of that id exists (in this PID namespace), if only for its parent
/// to ask how it ended.
pub(crate) fn alive(tid: u32) -> bool {
    sys!(SYS_kill, tid, 0) != -(libc::ESRCH as isize)
        || sys!(SYS_tkill, tid, 0) != -(libc::ESRCH as isize)
}
pub(crate) unsafe fn recvfrom(
    fd: c_int,
    buf: *mut u8,
    len: usize,
    flags: c_int,
    addr: *mut c_void,
    addr_len: *mut u32,
) -> isize {
    sys!(SYS_recvfrom, fd, buf, len, flags, addr, addr_len)
}
pub(crate) unsafe fn sendto(fd: c_int, buf: *const u8, len: usize, flags: c_int) -> isize {
    sys!(SYS_sendto, fd, buf, len, flags, 0, 0)
}
pub(crate) unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> isize {
    sys!(SYS_recvmsg, fd, msg, flags)
}
pub(crate) unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> isize {
    sys!(SYS_sendmsg, fd, msg, flags)
}
pub(crate) fn write(fd: c_int, bytes: &[u8]) -> isize {
    sys!(SYS_write, fd, bytes.as_ptr(), bytes.len())
}
pub(crate) fn read(fd: c_int, bytes: &mut [u8]) -> isize {
    sys!(SYS_read, fd, bytes.as_mut_ptr(), bytes.len())
}
/// `read` that never waits, whatever the file's flags say; EOPNOTSUPP where the file cannot promise
/// that (preadv2(2), RWF_NOWAIT).
pub(crate) fn read_nowait(fd: c_int, bytes: &mut [u8]) -> isize {
    const RWF_NOWAIT: c_int = 8;
    let part = iov(bytes.as_mut_ptr(), bytes.len());
    // At the file's own position.
    sys!(SYS_preadv2, fd, &part as *const iovec, 1, -1isize, -1isize, RWF_NOWAIT)
}
/// Opens `path` (which ends in NUL).
pub(crate) fn open(path: &[u8], flags: c_int, mode: u32) -> isize {
    debug_assert!(path.last() == Some(&0));
    sys!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode)
}
/// # Safety
/// `path` is a C string, or what an application says is one: the kernel looks.
pub(crate) unsafe fn open_at(dir: c_int, path: *const u8, flags: c_int) -> isize {
    sys!(SYS_openat, dir, path, flags, 0)
}
pub(crate) fn exists(path: &[u8]) -> bool {
    debug_assert!(path.last() == Some(&0));
    sys!(SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0
}
/// Whether this process may run `path` (which ends in NUL).
pub(crate) fn is_executable(path: &[u8]) -> bool {
    debug_assert!(path.last() == Some(&0));
    sys!(SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::X_OK) == 0
}
pub(crate) fn socket(domain: c_int, ty: c_int, protocol: c_int) -> isize {
    sys!(SYS_socket, domain, ty, protocol)
}
pub(crate) fn bind(fd: c_int, addr: &[u8]) -> isize {
    sys!(SYS_bind, fd, addr.as_ptr(), addr.len())
}
pub(crate) fn listen(fd: c_int, backlog: c_int) -> isize {
    sys!(SYS_listen, fd, backlog)
}
pub(crate) fn connect(fd: c_int, addr: &[u8]) -> isize {
    sys!(SYS_connect, fd, addr.as_ptr(), addr.len())
}
pub(crate) fn accept4(fd: c_int, flags: c_int) -> isize {
    sys!(SYS_accept4, fd, 0, 0, flags)
}
/// accept4(2) with the caller's places for the peer's address.
///
/// # Safety
/// As for accept4(2).
pub(crate) unsafe fn accept_to(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
    flags: c_int,
) -> isize {
    sys!(SYS_accept4, fd, addr, len, flags)
}
/// getpeername(2) into the caller's places.
///
/// # Safety
/// As for getpeername(2).
pub(crate) unsafe fn getpeername(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> isize {
    sys!(SYS_getpeername, fd, addr, len)
}
/// `getsockname` (`peer` false) or `getpeername` into `addr`; returns the length.
pub(crate) fn socket_name(fd: c_int, peer: bool, addr: &mut [u8; 128]) -> isize {
    let mut len: u32 = 128;
    let r = if peer {
        sys!(SYS_getpeername, fd, addr.as_mut_ptr(), &mut len as *mut u32)
    } else {
        sys!(SYS_getsockname, fd, addr.as_mut_ptr(), &mut len as *mut u32)
    };
    if r < 0 { r } else { len.min(128) as isize }
}
/// `getsockopt` into any plain-old-data value of the option's type.
pub(crate) fn getsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &mut T) -> isize {
    let mut len: u32 = size_of::<T>() as u32;
    sys!(SYS_getsockopt, fd, level, name, value as *mut T, &mut len as *mut u32)
}
/// `getsockopt` of an option of no fixed length: the length, or `-errno`.
pub(crate) fn getsockopt_bytes(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> isize {
    let mut len = value.len() as u32;
    let r = sys!(SYS_getsockopt, fd, level, name, value.as_mut_ptr(), &mut len as *mut u32);
    if r < 0 { r } else { len as isize }
}
pub(crate) fn setsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: &T) -> isize {
    sys!(SYS_setsockopt, fd, level, name, value as *const T, size_of::<T>())
}
/// # Safety
/// `value` is the application's, as for setsockopt(2).
pub(crate) unsafe fn setsockopt_raw(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: u32,
) -> isize {
    sys!(SYS_setsockopt, fd, level, name, value, len)
}
pub(crate) fn epoll_create1(flags: c_int) -> isize {
    sys!(SYS_epoll_create1, flags)
}
pub(crate) unsafe fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> isize {
    sys!(SYS_epoll_ctl, epfd, op, fd, event)
}
/// What an epoll set has at this moment.
///
/// # Safety
/// `events` has room for `max`.
pub(crate) unsafe fn epoll_look(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    mask: *const sigset_t,
) -> isize {
    sys!(SYS_epoll_pwait, epfd, events, max, 0, mask, 8)
}
/// What the kernel says of descriptors at this moment.
///
/// # Safety
/// `fds` are `count`.
pub(crate) unsafe fn poll_look(fds: *mut pollfd, count: usize, mask: *const sigset_t) -> isize {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    sys!(SYS_ppoll, fds, count, &mut now as *mut timespec, mask, 8)
}
/// What the kernel says of one descriptor right now.
pub(crate) fn poll_now(fd: c_int, events: i16) -> i16 {
    let mut p = pollfd { fd, events, revents: 0 };
    // SAFETY: one valid pollfd.
    let r = unsafe { poll_look(&mut p, 1, core::ptr::null()) };
    if r > 0 { p.revents } else { 0 }
}
/// A descriptor that is readable when the process has ended (Linux 5.3).
pub(crate) fn pidfd_open(pid: u32) -> isize {
    sys!(SYS_pidfd_open, pid, 0)
}
/// An eventfd whose counter starts at `count`.
pub(crate) fn eventfd(count: u32, flags: c_int) -> isize {
    sys!(SYS_eventfd2, count, flags)
}
/// `FUTEX_WAIT` (shared between processes unless `private`), at most `timeout_ns` (< 0: for ever).
pub(crate) fn futex_wait(word: &AtomicU32, expect: u32, timeout_ns: i64, private: bool) -> isize {
    let op = libc::FUTEX_WAIT | if private { libc::FUTEX_PRIVATE_FLAG } else { 0 };
    let ts = to_timespec(timeout_ns.max(0));
    let ts_ptr = if timeout_ns < 0 { core::ptr::null() } else { &ts as *const timespec };
    sys!(SYS_futex, word.as_ptr(), op, expect, ts_ptr)
}
/// `FUTEX_WAKE` of up to `n` waiters.
pub(crate) fn futex_wake(word: &AtomicU32, n: i32, private: bool) {
    let op = libc::FUTEX_WAKE | if private { libc::FUTEX_PRIVATE_FLAG } else { 0 };
    let _ = sys!(SYS_futex, word.as_ptr(), op, n);
}
pub(crate) fn random(bytes: &mut [u8]) {
    let _ = sys!(SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), libc::GRND_NONBLOCK);
}
pub(crate) fn now_ns() -> u64 {
    #[cfg(test)]
    if let Some(frozen) = crate::testing::frozen_ns() {
        return frozen.wrapping_add(ahead_ns());
    }
    clock(libc::CLOCK_MONOTONIC).wrapping_add(ahead_ns())
}
#[cfg(test)]
use crate::testing::ahead_ns;
/// Tests can set their clocks forward.
#[cfg(not(test))]
const fn ahead_ns() -> u64 {
    0
}
/// The clock that the kernel's TCP goes by, where tests do not set it forward.
pub(crate) fn kernel_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}
pub(crate) fn unix_ns() -> u64 {
    clock(libc::CLOCK_REALTIME)
}
/// To some milliseconds, for a few nanoseconds.
pub(crate) fn unix_ns_coarse() -> u64 {
    clock(libc::CLOCK_REALTIME_COARSE)
}
fn clock(id: c_int) -> u64 {
    let mut ts = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(3) is a vDSO call, is not hooked, and only writes `ts`.
    unsafe { libc::clock_gettime(id, &mut ts) };
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}
/// Blocks every signal of the calling thread (for helper threads; glibc keeps its own internal ones
/// deliverable by sending them to threads it knows, which unblocks nothing of the application's).
pub(crate) fn block_all_signals() {
    let mask: u64 = !LIBC_OWN;
    let _ = sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &mask as *const u64, 0, 8);
}
/// Names the calling thread as `ps -T` shows it (at most 15 bytes and NUL).
pub(crate) fn name_thread(name: &[u8]) {
    debug_assert!(name.last() == Some(&0));
    let _ = sys!(SYS_prctl, libc::PR_SET_NAME, name.as_ptr());
}
/// One `iovec` over a byte range.
#[inline(always)]
pub(crate) fn iov(base: *const u8, len: usize) -> iovec {
    iovec { iov_base: base as *mut c_void, iov_len: len }
}
pub(crate) fn to_timespec(ns: i64) -> timespec {
    timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}

/// Cycle counter for short spins: cheap, monotonic enough, never used for correctness.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc is available to user mode on every x86-64 Linux.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let v: u64;
        // SAFETY: the virtual counter is readable in user mode on Linux.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) v, options(nomem, nostack)) };
        v
    }
}

/// About so many ticks ([`ticks`]).
#[inline(always)]
pub(crate) fn ticks_of_ns(ns: u32) -> u64 {
    // (The time stamp counters of machines in use run at 2 to 4 GHz.)
    #[cfg(target_arch = "x86_64")]
    let (ticks, of_ns) = (5, 2);
    #[cfg(target_arch = "aarch64")]
    let (ticks, of_ns) = {
        let hz: u64;
        // SAFETY: the counter's frequency is readable in user mode on Linux.
        unsafe { core::arch::asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack)) };
        (hz / 1_000_000, 1_000)
    };
    u64::from(ns) * ticks / of_ns
}

/// The CPU this thread runs on at the moment (a hint: it may have moved by the time it is used).
#[inline(always)]
pub(crate) fn cpu() -> u32 {
    // SAFETY: sched_getcpu(3) reads the thread's rseq area or the vDSO; it is not hooked.
    unsafe { libc::sched_getcpu() as u32 }
}

pub(crate) fn getrlimit_nofile(limit: &mut libc::rlimit) -> isize {
    sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, limit as *mut libc::rlimit)
}
/// Gives this process its own descriptor table (for `close_range` with UNSHARE, done in parts).
pub(crate) fn unshare_files() -> isize {
    sys!(SYS_unshare, libc::CLONE_FILES)
}

// ---- for the service thread ---------------------------------------------------------------------

/// Blocks every signal of the calling thread and returns what was blocked before, for
/// [`restore_signals`].
pub(crate) fn hold_signals() -> u64 {
    // (Signal 33 is libc's own. Its setuid waits, with a lock that pthread_create takes, until each
    // thread has handled it.)
    let all = !(1u64 << 32);
    let mut old = 0u64;
    let _ =
        sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &all as *const u64, &mut old as *mut u64, 8);
    old
}
/// Undoes [`hold_signals`].
pub(crate) fn restore_signals(old: u64) {
    let _ = sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &old as *const u64, 0, 8);
}
pub(crate) fn getegid() -> u32 {
    sys!(SYS_getegid) as u32
}
/// Entries of a directory (getdents64(2)).
pub(crate) fn getdents(fd: c_int, into: &mut [u8]) -> isize {
    sys!(SYS_getdents64, fd, into.as_mut_ptr(), into.len())
}
/// Copies this process's memory at `at`, whatever is there. False: not all of it can be read.
pub(crate) fn read_own<T: Copy>(at: usize, into: &mut [T]) -> bool {
    let bytes = size_of_val(into);
    let (here, there) = (iov(into.as_ptr().cast(), bytes), iov(at as *const u8, bytes));
    let me = sys!(SYS_getpid);
    sys!(SYS_process_vm_readv, me, &raw const here, 1, &raw const there, 1, 0) == bytes as isize
}
/// The kernel's own `struct sigaction`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct KernelSigaction {
    pub(crate) handler: usize,
    pub(crate) flags: usize,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

/// Sets the disposition of a signal, if one is given, and returns what it was. `None`: the kernel
/// refuses.
pub(crate) fn signal_action(
    signal: c_int,
    new: Option<&KernelSigaction>,
) -> Option<KernelSigaction> {
    let mut old = KernelSigaction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    let new = new.map_or(core::ptr::null(), |new| new as *const KernelSigaction);
    let r = sys!(SYS_rt_sigaction, signal, new, &mut old as *mut KernelSigaction, 8);
    (r >= 0).then_some(old)
}
/// Sends the calling thread a signal that says of itself what another one did. False: there is no
/// room in the user's queue.
///
/// # Safety
/// `info` is a valid siginfo.
pub(crate) unsafe fn signal_self(signal: c_int, info: *const libc::siginfo_t) -> bool {
    sys!(SYS_rt_tgsigqueueinfo, getpid(), gettid(), signal, info) >= 0
}
/// The two that glibc keeps for setuid and cancellation (32, 33): they must stay deliverable.
pub(crate) const LIBC_OWN: u64 = CANCELLATION | 1 << 32;
/// libc's own signal for cancelled threads, which its public interface hides; as a mask.
pub(crate) const SIGCANCEL: c_int = 32;
pub(crate) const CANCELLATION: u64 = 1 << 31;
/// Signals that come as the fault of an instruction (ILL, TRAP, BUS, FPE, SEGV, SYS), and the two
/// that libc keeps for itself.
pub(crate) const FAULTS: u64 =
    1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30 | 1 << 31 | 1 << 32;
/// KILL and STOP, which the kernel blocks in no mask.
pub(crate) const UNBLOCKABLE: u64 = 1 << 8 | 1 << 18;
/// Has the handlers run of signals that wait for this mask.
pub(crate) fn run_pending(mask: u64) {
    let now = timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = sys!(SYS_ppoll, 0, 0, &now as *const timespec, &mask as *const u64, 8);
}
/// Copies within this process: to `ours` from `theirs` (`reads`) or back. What is copied is checked
/// by the kernel.
///
/// # Safety
/// `ours` is valid memory.
pub(crate) unsafe fn copy_in_process(ours: &iovec, theirs: &iovec, reads: bool) -> isize {
    let (ours, theirs) = (ours as *const iovec, theirs as *const iovec);
    if reads {
        sys!(SYS_process_vm_readv, getpid(), ours, 1, theirs, 1, 0)
    } else {
        sys!(SYS_process_vm_writev, getpid(), ours, 1, theirs, 1, 0)
    }
}

pub(crate) fn setrlimit_nofile(limit: &libc::rlimit) -> isize {
    sys!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limit as *const libc::rlimit, 0)
}
pub(crate) fn lseek(fd: c_int, offset: i64, whence: c_int) -> isize {
    sys!(SYS_lseek, fd, offset, whence)
}
pub(crate) fn pread(fd: c_int, bytes: &mut [u8], offset: i64) -> isize {
    sys!(SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), offset)
}

/// Lets others run for so long.
pub(crate) fn pause_ns(ns: i64) {
    let ts = to_timespec(ns);
    let _ = sys!(SYS_ppoll, 0, 0, &ts as *const timespec, 0, 8);
}
