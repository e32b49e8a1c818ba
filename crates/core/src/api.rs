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

pub use crate::adoption::exec::Program;
pub use crate::outcome::{Mask, NextSymbols, PASS, RESTART, Ret};
mod data;
mod descriptors;
mod readiness;

use crate::signals::held;
use core::ffi::c_int;
pub use data::{
    on_recvmsg, read, recv, recvfrom, recvmmsg, recvmsg, recvv, send, sendfile, sendmmsg, sendmsg,
    sendto, sendv, splice,
};
pub use descriptors::{
    IoUringParams, Liburing, accept, after_accept, after_number, before_accept,
    before_io_uring_enter, before_io_uring_register, before_io_uring_setup, before_liburing_files,
    before_liburing_submit, before_listen, before_number, before_private_close, close,
    close_by_syscall, close_range, closefrom, connect, dup, dup3, fcntl, getsockopt,
    gives_out_more, has_prepared_sockets, ioctl, is_own, need_kernel, need_kernel_to_send,
    need_kernel_whole, on_accept, on_connect, on_getsockopt, on_io_uring_setup, on_listen,
    on_new_fd, on_own_lock, on_setsockopt, on_socket, on_taken_fd, onto_stdio, own_lock,
    prepared_socket, setsockopt, shutdown,
};
pub use readiness::{
    Counted, epoll_ctl, epoll_wait, now_ns, on_epoll_create, on_epoll_wait, poll, select,
};

// ---- start and processes ------------------------------------------------------------------------

/// The constructor. `env` looks a variable up in the environment as it is now (it is read once,
/// here); the returned text must live for ever. Starts nothing, and leaves nothing open: it looks
/// for connections that the program before has handed on.
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
/// Before any `exec*` of a program that is not known (in whatever process image it happens, a
/// `vfork` child included): what the new program inherits goes back to the kernel's path.
pub fn before_exec() {
    held(|| crate::lifecycle::before_exec(|| None))
}
/// Before an exec of that program: what it can go on with is handed to it. If the exec fails,
/// [`exec_failed`] is called.
///
/// # Safety
/// Its pointers are the application's.
pub unsafe fn before_exec_of(program: &Program) {
    // SAFETY: the caller's promise.
    held(|| crate::lifecycle::before_exec(|| unsafe { program.heir() }))
}
/// An exec has returned, which it does where it has failed. `errno` stays as it is.
pub fn exec_failed() {
    held(crate::lifecycle::exec_failed)
}
/// As [`before_exec`], where the calling process goes on (`posix_spawn`, `system`, `popen`).
pub fn before_spawn() {
    held(crate::lifecycle::before_spawn)
}
/// Whether the calling process is a child that shares its memory with its parent (vfork): its
/// `close` and `dup2` are none of the parent's.
pub fn in_vfork_child() -> bool {
    crate::process::in_vfork_child()
}
/// The program is about to make such a child, or one by a system call of its own.
pub fn before_vfork() {
    crate::process::note_vfork();
    await_threads();
}
/// The program is about to make a child for which libc does not clear its list of threads.
pub fn await_threads() {
    crate::thread::await_begun();
}

/// The program cancels threads (`pthread_cancel`): from now on calls that the kernel would restart
/// answer [`RESTART`].
pub fn threads_are_cancelled() {
    crate::process::note_cancellation();
    crate::wait::looks::before_end_anywhere()
}
/// A thread has been cancelled. Returns the signal that ends its wait, once it has that.
pub fn interrupts_cancelled() -> Option<c_int> {
    crate::faults::front_cancellation()
}
/// The hook is about to look whether its thread is cancelled.
pub fn hears_of_cancellation() {
    crate::signals::hears_of_cancellation()
}
/// `pthread_setcancelstate` has succeeded.
pub fn may_be_cancelled(may: bool) {
    crate::signals::may_be_cancelled(may)
}
/// `pthread_setcanceltype`: whether this thread, once it is cancelled, ends at any instruction
/// (PTHREAD_CANCEL_ASYNCHRONOUS), also while it looks.
pub fn ends_anywhere(may: bool) {
    if may {
        crate::wait::looks::note_asynchronous();
    }
    crate::signals::may_end_anywhere(may)
}
/// `pthread_setcancelstate` is about to enable cancellation, by libc's `set_state`. True: that is
/// done later.
pub fn puts_off_cancellation(set_state: unsafe extern "C" fn(c_int, *mut c_int) -> c_int) -> bool {
    crate::signals::puts_off_cancellation(set_state)
}
/// A thread is about to be cancelled by `cancel`. Where threads may end at any instruction the
/// library's handler has to stand in front of libc's by then, which has one only when a thread was
/// cancelled: that is one of the library's own.
pub fn before_cancel(cancel: &mut dyn FnMut(libc::pthread_t)) {
    use crate::faults::front_cancellation;
    if crate::wait::looks::may_end_anywhere() && front_cancellation().is_none() {
        crate::thread::with_thread(cancel);
        let _ = front_cancellation();
    }
}

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
/// A thread is about to go to another network namespace, perhaps. Async-signal-safe; bounded.
pub fn before_network_change() {
    held(crate::fast_connect::never_prepare)
}
/// The process is about to say which system calls it may make: it makes none more than its program
/// does, from here on.
pub fn before_filter() {
    if !crate::process::in_vfork_child() {
        crate::wait::looks::forbid();
        if !crate::config::is_asked_for(netacc_control::config::Key::Trace) {
            crate::trace::forbid();
        }
    }
}
/// Whether this option of prctl(2) takes rights from the process; it is about to be set.
pub fn confines(option: usize) -> bool {
    if option == libc::PR_SET_SECCOMP as usize {
        before_filter();
    }
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
