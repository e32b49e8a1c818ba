//! What the hooks call: one function per family of libc symbols.
//!
//! The rule for all of them: a return value `>= 0` is the call's result, `-errno` is its failure,
//! and [`PASS`] means "not ours: call the next symbol with the very same arguments". Functions
//! named `on_*` are told of a call that the next symbol has already carried out. None of them
//! touches the caller's `errno`.
//!
//! All are thread-safe. Those for the calls that POSIX lists as async-signal-safe (read, write,
//! send, recv, close, dup, poll, select, connect, accept, shutdown...) neither allocate nor wait
//! for a lock that the interrupted thread may hold. No handler of the application's runs inside of
//! any of them (`signals.rs`); those that return nothing that needs dropping may be jumped out of
//! at their end.

pub use crate::outcome::{Mask, NextSymbols, PASS, RESTART, Ret};
use crate::signals::held;
use crate::sys;
use core::ffi::{c_int, c_void};
use libc::{epoll_event, iovec, mmsghdr, msghdr, pollfd, sockaddr, socklen_t, timespec};

// ---- start and processes ------------------------------------------------------------------------

/// The constructor. `env` looks a variable up in the environment as it is now (it is read once,
/// here); the returned text must live for ever. Opens nothing and starts nothing.
pub fn init(env: &dyn Fn(&str) -> Option<&'static str>, next: NextSymbols) {
    crate::lifecycle::init(env, next)
}

/// `pthread_atfork` handler: in the parent, before the fork.
pub fn fork_prepare() {
    held(crate::lifecycle::fork_prepare)
}
/// `pthread_atfork` handler: in the parent, after the fork.
pub fn fork_parent() {
    held(crate::lifecycle::fork_parent)
}
/// `pthread_atfork` handler: in the child.
pub fn fork_child() {
    held(crate::lifecycle::fork_child)
}
/// Before any `exec*` (in whatever process image it happens, a `vfork` child included):
/// what the new program inherits goes back to the kernel's path.
pub fn before_exec() {
    held(|| crate::lifecycle::before_exec(true))
}
/// As [`before_exec`], where the calling process goes on (`posix_spawn`, `system`, `popen`).
pub fn before_spawn() {
    held(|| crate::lifecycle::before_exec(false))
}
/// Around a `vfork`: the hook cannot run code in the child's frame, so the vfork hook itself is
/// `fork`-free: it is told here that until the process execs or exits, `close`/`dup2` come from a
/// child that shares this memory. Returns true when the calling process shares its memory with a
/// parent (raw getpid differs from the table's).
pub fn in_vfork_child() -> bool {
    crate::process::in_vfork_child()
}

/// The program cancels threads (`pthread_cancel`): from now on calls that the kernel would restart
/// answer [`RESTART`].
pub fn threads_are_cancelled() {
    crate::process::note_cancellation()
}

/// The process ends by `exit` or by returning from `main`.
/// `daemon`: this process forks and ends, by private calls; the child goes on.
pub fn before_daemon() {
    held(crate::lifecycle::before_daemon)
}
/// The process is about to end without its exit handlers (`_exit`). Async-signal-safe; bounded.
pub fn before_end() {
    crate::lifecycle::before_end()
}
/// The process is about to change its user, its groups or its capabilities. Async-signal-safe;
/// bounded.
#[inline]
pub fn before_rights_change() {
    held(crate::rights::before_change)
}
/// Whether this option of prctl(2) takes rights from the process.
pub fn confines(option: usize) -> bool {
    let taking = [
        libc::PR_SET_SECCOMP,
        libc::PR_SET_NO_NEW_PRIVS,
        libc::PR_CAPBSET_DROP,
        libc::PR_SET_SECUREBITS,
    ];
    taking.iter().any(|o| *o as usize == option)
}
/// The process ends: its exit handlers run.
pub fn at_exit() {
    crate::lifecycle::at_exit()
}

// ---- descriptors --------------------------------------------------------------------------------

/// A call that takes the lowest free number, or a number of the caller's choice, is about to be
/// made: the library's own descriptors, which are on such a number for a moment when they are made,
/// are out of the way until [`after_number`]. Async-signal-safe.
#[inline]
pub fn before_number() -> u32 {
    crate::numbers::enter()
}
/// The call has returned; `ticket` is what [`before_number`] gave. A thread that never comes here
/// costs the library a millisecond, once.
#[inline]
pub fn after_number(ticket: u32) {
    crate::numbers::leave(ticket)
}
/// As [`before_number`] for a call that may block for ever, and has no end to be told of.
#[inline]
pub fn pass_number() {
    crate::numbers::pass()
}

/// Any call that returned a new descriptor which is not a socket of ours (open, pipe, eventfd,
/// memfd_create, signalfd, timerfd, inotify, socketpair, recvmsg's SCM_RIGHTS, pidfd_getfd...):
/// drops what the table may still hold for that number.
#[inline]
pub fn on_new_fd(fd: c_int) {
    crate::lifecycle::forget_stale(fd)
}
/// `socket` succeeded.
pub fn on_socket(fd: c_int, domain: c_int, ty: c_int, protocol: c_int) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        crate::establish::on_socket(fd, domain, ty, protocol)
    })
}
/// `listen` is about to be called.
pub fn before_listen(fd: c_int) {
    held(|| crate::establish::before_listen(fd))
}
/// `listen` succeeded.
pub fn on_listen(fd: c_int) {
    held(|| crate::establish::on_listen(fd))
}
/// `accept`/`accept4` on `listener` returned `fd`. `flags` are accept4's.
pub fn on_accept(listener: c_int, fd: c_int, flags: c_int) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        crate::establish::on_accept(listener, fd, flags)
    })
}
/// `connect`. [`PASS`] lets the hook call the next symbol and then [`on_connect`].
///
/// # Safety
/// `addr` is the caller's, as for connect(2).
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::establish::before_connect(fd, addr, len) })
}
/// The next symbol's `connect` returned `result` (0 or `-errno`; EINPROGRESS and EISCONN included).
///
/// # Safety
/// As [`connect`].
pub unsafe fn on_connect(fd: c_int, addr: *const sockaddr, len: socklen_t, result: c_int) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::establish::on_connect(fd, addr, len, result) })
}
/// `close`.
#[inline]
pub fn close(fd: c_int) -> Ret {
    crate::lifecycle::close(fd)
}
/// `close_range` (all flags). Never passes: our own descriptors are left out by splitting the
/// range.
pub fn close_range(first: u32, last: u32, flags: u32) -> Ret {
    held(|| crate::lifecycle::close_range(first, last, flags))
}
/// `closefrom`.
pub fn closefrom(low: c_int) {
    let _ = held(|| crate::lifecycle::close_range(low.max(0) as u32, u32::MAX, 0));
}
/// `dup`.
pub fn dup(fd: c_int) -> Ret {
    held(|| crate::lifecycle::dup(fd))
}
/// `dup2` (`flags` = -1) and `dup3`.
pub fn dup3(old: c_int, new: c_int, flags: c_int) -> Ret {
    held(|| crate::lifecycle::dup3(old, new, flags))
}
/// `fcntl`/`fcntl64`.
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> Ret {
    held(|| crate::lifecycle::fcntl(fd, cmd, arg))
}
/// `ioctl`.
///
/// # Safety
/// `arg` is the caller's, as for ioctl(2).
pub unsafe fn ioctl(fd: c_int, request: usize, arg: usize) -> Ret {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::ioctl(fd, request, arg) })
}
/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Ret {
    held(|| crate::io::shutdown_of(fd, how))
}
/// `setsockopt`: looked at before it is passed on (the hook calls the next symbol, then
/// [`on_setsockopt`] if that succeeded).
///
/// # Safety
/// `value` is the caller's, as for setsockopt(2).
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Ret {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::setsockopt(fd, level, name, value, len) })
}
/// The next symbol's `setsockopt` succeeded.
///
/// # Safety
/// As [`setsockopt`].
pub unsafe fn on_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::on_setsockopt(fd, level, name, value, len) })
}
/// `getsockopt` is about to be called: what only the library has had the kernel keep is not there
/// for the application.
pub fn before_getsockopt(fd: c_int, level: c_int, name: c_int) {
    held(|| crate::options::before_getsockopt(fd, level, name))
}
/// The next symbol's `getsockopt` succeeded: what the library itself has set is taken out of the
/// answer.
///
/// # Safety
/// `value` and `len` are the caller's, as for getsockopt(2).
pub unsafe fn on_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *const socklen_t,
) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::options::on_getsockopt(fd, level, name, value, len) })
}
/// The socket behind `fd` is about to be used in a way that only the kernel can carry: `fdopen`,
/// `io_uring`...: back to the kernel's path, for good, before this returns.
pub fn need_kernel(fd: c_int, why: netacc_control::stats::Reason) {
    held(|| crate::io::need_kernel(fd, why))
}

/// `io_uring_setup`: an error, or [`PASS`] to call it, and then [`on_io_uring_setup`].
pub fn before_io_uring_setup() -> Ret {
    held(crate::io_uring::before_setup)
}
/// `io_uring_setup` has made the ring `fd`, and said in `params` where it is.
pub fn on_io_uring_setup(fd: c_int, params: &crate::io_uring::Params) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        crate::io_uring::on_setup(fd, params)
    })
}
/// `io_uring_enter` is about to be called.
pub fn before_io_uring_enter(fd: c_int, to_submit: u32) {
    held(|| crate::io_uring::before_enter(fd, to_submit))
}
/// `io_uring_register` is about to be called.
pub fn before_io_uring_register(opcode: u32) {
    held(|| crate::io_uring::before_register(opcode))
}
/// One of liburing's functions is about to hand new entries of a ring to the kernel.
///
/// # Safety
/// `ring` is what the application gave that function.
pub unsafe fn before_liburing_submit(ring: *const crate::io_uring::Liburing) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::io_uring::before_liburing_submit(ring) })
}
/// One of liburing's functions is about to register descriptors with a ring.
///
/// # Safety
/// `fds` and `count` are what the application gave that function.
pub unsafe fn before_liburing_files(fds: *const c_int, count: u32) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::io_uring::before_liburing_files(fds, count) })
}
pub use crate::io_uring::{Liburing, Params as IoUringParams};

// ---- data ---------------------------------------------------------------------------------------

/// `read`, `recv` (with `flags`), `__read_chk`, `__recv_chk`.
///
/// # Safety
/// `buf` is valid for `len` bytes, as for recv(2).
#[inline]
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recv(fd, buf.cast(), len, flags) }
}
/// `read`, `__read_chk`: as [`recv`], but reading nothing never waits (read(2)).
///
/// # Safety
/// As for read(2).
#[inline]
pub unsafe fn read(fd: c_int, buf: *mut c_void, len: usize) -> Ret {
    if len == 0 {
        return PASS;
    }
    // SAFETY: the caller's promise.
    unsafe { crate::io::recv(fd, buf.cast(), len, 0) }
}
/// `readv`, `preadv2` with offset -1 (RWF_NOWAIT = MSG_DONTWAIT).
///
/// # Safety
/// As for readv(2).
pub unsafe fn recvv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvv(fd, iov, count, flags) }
}
/// `recvfrom` with an address to fill (without: [`recv`]).
///
/// # Safety
/// As for recvfrom(2).
pub unsafe fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvfrom(fd, buf.cast(), len, flags, addr, addr_len) }
}
/// `recvmsg`. Also clears stale table entries of descriptors received by SCM_RIGHTS when told by
/// [`on_recvmsg`].
///
/// # Safety
/// As for recvmsg(2).
pub unsafe fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvmsg(fd, msg, flags) }
}
/// The next symbol's `recvmsg` returned data: descriptors in its control data are new.
///
/// # Safety
/// `msg` was just filled by recvmsg(2).
pub unsafe fn on_recvmsg(fd: c_int, msg: *const msghdr, flags: c_int) {
    // SAFETY: the caller's promise.
    held(|| unsafe { crate::lifecycle::on_recvmsg(fd, msg, flags) })
}
/// `recvmmsg`.
///
/// # Safety
/// As for recvmmsg(2).
pub unsafe fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::recvmmsg(fd, msgs, count, flags, timeout) }
}
/// `write`, `send` (with `flags`), `sendto` without an address.
///
/// # Safety
/// `buf` is valid for `len` bytes, as for send(2).
#[inline]
pub unsafe fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::send(fd, buf.cast(), len, flags) }
}
/// `sendto` with an address (a connected TCP socket ignores it).
///
/// # Safety
/// As for sendto(2).
pub unsafe fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendto(fd, buf.cast(), len, flags, addr, addr_len) }
}
/// `writev`, `pwritev2` with offset -1.
///
/// # Safety
/// As for writev(2).
pub unsafe fn sendv(fd: c_int, iov: *const iovec, count: c_int, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendv(fd, iov, count, flags) }
}
/// `sendmsg` on any socket: on one that is not ours, SCM_RIGHTS control data is looked through for
/// descriptors that are, before it is passed on.
///
/// # Safety
/// As for sendmsg(2).
pub unsafe fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendmsg(fd, msg, flags) }
}
/// `sendmmsg`.
///
/// # Safety
/// As for sendmmsg(2).
pub unsafe fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: u32, flags: c_int) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendmmsg(fd, msgs, count, flags) }
}

/// `sendfile`, `sendfile64`: from a file to an accelerated socket the bytes are read here and take
/// the socket's path.
///
/// # Safety
/// As for sendfile(2).
pub unsafe fn sendfile(out: c_int, input: c_int, offset: *mut i64, count: usize) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::sendfile(out, input, offset, count) }
}

/// `splice`, with an accelerated socket at either end.
///
/// # Safety
/// As for splice(2).
pub unsafe fn splice(
    input: c_int,
    input_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    len: usize,
    flags: u32,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::io::splice(input, input_offset, out, out_offset, len, flags) }
}

// ---- readiness ----------------------------------------------------------------------------------

/// `epoll_create*` returned `fd`.
pub fn on_epoll_create(fd: c_int) {
    held(|| {
        crate::lifecycle::forget_stale(fd);
        crate::epoll::on_create(fd)
    })
}
/// `epoll_ctl`.
///
/// # Safety
/// As for epoll_ctl(2).
#[inline]
pub unsafe fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::epoll::ctl(epfd, op, fd, event) }
}
pub use crate::epoll::Counted;
/// `epoll_wait`, `epoll_pwait`, `epoll_pwait2`. `timeout_ns` < 0 waits for ever. [`PASS`]: the set
/// holds nothing of ours: the hook calls the next symbol and then [`on_epoll_wait`] with its
/// result.
///
/// # Safety
/// As for epoll_wait(2).
#[inline]
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: i64,
    mask: Mask,
    counted: &mut Counted,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::epoll::wait(epfd, events, max, timeout_ns, mask, counted) }
}
/// The next symbol's `epoll_wait` returned `n` > 0 events: the set may have come to hold sockets of
/// ours while the thread slept. Returns the number of events that are the application's; when it is
/// 0 the hook calls [`epoll_wait`] again with what is left of the timeout.
///
/// # Safety
/// `events` holds `n` events.
#[inline]
pub unsafe fn on_epoll_wait(epfd: c_int, events: *mut epoll_event, n: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { crate::epoll::on_wait(epfd, events, n) }
}
/// `poll`, `ppoll`, `__poll_chk`, `__ppoll_chk`. `timeout_ns` < 0 waits for ever.
///
/// # Safety
/// As for poll(2).
pub unsafe fn poll(fds: *mut pollfd, count: u64, timeout_ns: i64, mask: Mask) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::poll::poll(fds, count, timeout_ns, mask) }
}
/// `select`, `pselect`. The sets are the caller's and are rewritten as select(2) does; the hook of
/// `select` updates the caller's timeval from the elapsed time that `elapsed_ns` receives.
///
/// # Safety
/// As for select(2).
pub unsafe fn select(
    nfds: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout_ns: i64,
    mask: Mask,
    elapsed_ns: &mut i64,
) -> Ret {
    // SAFETY: the caller's promise.
    unsafe { crate::poll::select(nfds, read, write, except, timeout_ns, mask, elapsed_ns) }
}

/// Monotonic nanoseconds, for hooks that must compute what is left of a timeout.
pub fn now_ns() -> u64 {
    sys::now_ns()
}

// ---- what the application's pointers lead to ----------------------------------------------------

/// A value at an address of the application's. `None`: it cannot be read, or nothing of ours is
/// open: in either case the kernel looks at it.
///
/// # Safety
/// Any bytes are a valid `T`.
#[inline]
pub unsafe fn peek_at<T: Copy>(at: *const T) -> Option<T> {
    if crate::fd_table::high_water() == 0 {
        return None;
    }
    // SAFETY: the caller's promise; the address may be anything.
    unsafe { crate::user::read(at) }
}
/// Writes a value to an address of the application's; what cannot be written is left as it is.
///
/// # Safety
/// `at` is what the application gave as the place of a `T`.
#[inline]
pub unsafe fn put_at<T: Copy>(at: *mut T, value: T) {
    // SAFETY: the caller's promise.
    let _ = unsafe { crate::user::write(at, value) };
}

// ---- signals ------------------------------------------------------------------------------------

/// The application's handler and flags for a signal whose handler is the library's in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Disposition {
    /// Its handler.
    pub handler: usize,
    /// Its flags, as the kernel has them.
    pub flags: usize,
    /// It came with a function to return by.
    pub has_restorer: bool,
}

/// The disposition of `signal` is about to be changed. What this returns is for
/// [`after_disposition`].
pub fn before_disposition(signal: c_int) -> bool {
    crate::faults::before_set(signal)
}
/// It has been changed, perhaps.
pub fn after_disposition(signal: c_int, counted: bool) {
    crate::faults::after_set(signal, counted)
}
/// What the application is to see where the kernel says `handler`; `None`: just that.
pub fn disposition(signal: c_int, handler: usize) -> Option<Disposition> {
    let s = crate::faults::shown(signal, handler)?;
    Some(Disposition { handler: s.handler, flags: s.flags, has_restorer: s.has_restorer })
}
