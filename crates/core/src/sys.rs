//! The door to the kernel: raw system calls.
//!
//! Nothing here goes through a libc symbol, so nothing can re-enter the hooks, be interposed, touch
//! `errno`, or be a cancellation point. Every wrapper returns the kernel's own value: `>= 0`, or
//! `-errno`.

use crate::mapped;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;
use libc::{epoll_event, iovec, msghdr, pollfd, sigset_t, timespec};

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
    crate::testing::count_call();
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
    crate::testing::count_call();
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
pub(crate) fn exists(path: &[u8]) -> bool {
    debug_assert!(path.last() == Some(&0));
    sys!(SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0
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
pub(crate) const LIBC_OWN: u64 = 1 << 31 | 1 << 32;
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

/// CPU time that a process has used, all its threads together; 0 when it cannot be known.
pub(crate) fn cpu_time_ns(pid: u32) -> u64 {
    // linux/posix-timers.h: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
    let clock = (!(pid as i32)) << 3 | 2;
    let mut ts = timespec { tv_sec: 0, tv_nsec: 0 };
    if sys!(SYS_clock_gettime, clock, &mut ts as *mut timespec) < 0 {
        return 0;
    }
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}
/// CPUs that this thread may run on.
pub(crate) fn allowed_cpus() -> u64 {
    let mut mask = [0u64; 64];
    let n = sys!(SYS_sched_getaffinity, 0, 512, mask.as_mut_ptr());
    if n <= 0 { 1 } else { mask.iter().map(|w| w.count_ones() as u64).sum::<u64>().max(1) }
}

/// How many bytes this process may lock in memory (RLIMIT_MEMLOCK, soft).
pub(crate) fn memlock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live rlimit; prlimit64(2) of this process, which sets nothing.
    let r = unsafe {
        syscall(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_MEMLOCK as usize,
            0,
            &raw mut limit as usize,
            0,
            0,
        )
    };
    if r >= 0 { limit.rlim_cur } else { 0 }
}

/// Bytes of this host's memory.
pub(crate) fn host_memory() -> u64 {
    // SAFETY: all zero is a valid sysinfo.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: sysinfo(2) writes that structure.
    let r = unsafe { syscall(libc::SYS_sysinfo, &raw mut info as usize, 0, 0, 0, 0, 0) };
    if r >= 0 { info.totalram.saturating_mul(u64::from(info.mem_unit)) } else { u64::MAX }
}

/// Lets the calling thread run on these CPUs only; on all that it may when there are none in the
/// list.
pub(crate) fn set_affinity(cpus: &netacc_control::config::CpuList) {
    let mut set = [0u64; 16];
    let mut any = false;
    for cpu in cpus.iter() {
        if let Some(word) = set.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
            any = true;
        }
    }
    if any {
        // SAFETY: sched_setaffinity(2) of this thread reads that many bytes.
        let _ = unsafe {
            syscall(
                libc::SYS_sched_setaffinity,
                0,
                size_of_val(&set),
                set.as_ptr() as usize,
                0,
                0,
                0,
            )
        };
    }
}

/// Lets others run for so long.
pub(crate) fn pause_ns(ns: i64) {
    let ts = to_timespec(ns);
    let _ = sys!(SYS_ppoll, 0, 0, &ts as *const timespec, 0, 8);
}

// ---- for a process that outlives the program ----------------------------------------------------

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
/// Waits until that child, of whatever kind, has ended.
pub(crate) fn reap(child: u32) {
    while sys!(SYS_wait4, child, 0, libc::__WALL, 0) == -(libc::EINTR as isize) {}
}
pub(crate) fn exit_process() -> ! {
    loop {
        let _ = sys!(SYS_exit_group, 0);
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
