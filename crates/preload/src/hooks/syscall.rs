//! `syscall(2)`: the numbers of hooked calls are treated as their hooks do, all others go straight
//! on.
//!
//! The way straight on is a jump with every register and the stack as they came: a child that clone
//! gives a new stack, or a raw vfork, must not find a frame of ours. What is not ours always goes
//! on as `syscall`, not as libc's wrapper, which has other cancellation points and other ideas of
//! time-outs.

#![allow(non_upper_case_globals, reason = "libc's names of the numbers")]

use super::fd::{accepted, numbered};
use super::{aio, fd, io, message, poll, process, signal, time};
use crate::errno;
use crate::original::{self, Slot};
use core::ptr::{null, null_mut};
use libc::*;
use netacc_core::api::{self, PASS, Ret};

slot!(syscall);

type Next = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// `syscall(2)`. Variadic in C; six arguments always travel, whatever they hold.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn syscall() {
    core::arch::naked_asm!(
        "cmp rdi, {count}",
        "jae 2f",
        "lea r11, [rip + {watched}]",
        "cmp byte ptr [r11 + rdi], 1",
        "jb 2f",
        "je {dispatch}",
        "lea r11, [rip + {slot}]",
        "lea r10, [rip + {before}]",
        "jmp {around}",
        "2: jmp qword ptr [rip + {slot}]",
        count = const COUNT,
        watched = sym WATCHED,
        dispatch = sym dispatch,
        before = sym before_child,
        around = sym original::call_then_jump,
        slot = sym syscall::SLOT,
    )
}

/// As on x86-64.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn syscall() {
    core::arch::naked_asm!(
        "cmp x0, {count}",
        "b.hs 2f",
        "adrp x16, {watched}",
        "add x16, x16, :lo12:{watched}",
        "ldrb w17, [x16, x0]",
        "cbz w17, 2f",
        "cmp w17, #1",
        "b.eq {dispatch}",
        "adrp x16, {slot}",
        "add x16, x16, :lo12:{slot}",
        "adrp x17, {before}",
        "add x17, x17, :lo12:{before}",
        "b {around}",
        "2: adrp x16, {slot}",
        "add x16, x16, :lo12:{slot}",
        "ldr x16, [x16]",
        "br x16",
        count = const COUNT,
        watched = sym WATCHED,
        dispatch = sym dispatch,
        before = sym before_child,
        around = sym original::call_then_jump,
        slot = sym syscall::SLOT,
    )
}

/// Numbers beyond are not looked at.
const COUNT: usize = 512;

/// 1 for each number that [`dispatch`] knows, 2 for those behind [`before_child`].
static WATCHED: [u8; COUNT] = watched();

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn watched() -> [u8; COUNT] {
    let mut table = [0; COUNT];
    let mut list = LISTS.as_slice();
    while let [numbers, rest @ ..] = list {
        let mut numbers = *numbers;
        while let [number, others @ ..] = numbers {
            table[*number as usize] = 1;
            numbers = others;
        }
        list = rest;
    }
    let mut numbers = MAKES_CHILD;
    while let [number, others @ ..] = numbers {
        table[*number as usize] = 2;
        numbers = others;
    }
    table
}

/// The child may share this memory, and return on this very stack.
const MAKES_CHILD: &[c_long] = &[
    SYS_clone,
    SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    SYS_vfork,
    #[cfg(target_arch = "x86_64")]
    SYS_fork,
];

extern "C" fn before_child(slot: &Slot, number: usize) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    if number == SYS_fork as usize {
        // (It has its own memory.)
        netacc_core::api::await_threads();
        return slot.address();
    }
    process::before_vfork(number);
    slot.address()
}

const LISTS: [&[c_long]; 6] = [ASKED, EPOLL_WAITS, RIGHTS, TOLD, MAKES_FD, MAKES_FD_X86];

/// The core is asked first.
const ASKED: &[c_long] = &[
    SYS_read,
    SYS_readv,
    SYS_preadv2,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_recvmmsg,
    SYS_write,
    SYS_writev,
    SYS_pwritev2,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_sendfile,
    SYS_splice,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_ctl,
    SYS_close,
    SYS_close_range,
    SYS_dup,
    SYS_dup3,
    SYS_fcntl,
    SYS_ioctl,
    SYS_connect,
    SYS_shutdown,
    SYS_setsockopt,
    SYS_execve,
    SYS_execveat,
    SYS_exit_group,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_io_submit,
    #[cfg(target_arch = "x86_64")]
    SYS_poll,
    #[cfg(target_arch = "x86_64")]
    SYS_select,
    #[cfg(target_arch = "x86_64")]
    SYS_dup2,
];

/// The process becomes somebody else.
const RIGHTS: &[c_long] = &[
    SYS_setuid,
    SYS_setreuid,
    SYS_setresuid,
    SYS_setfsuid,
    SYS_setgid,
    SYS_setregid,
    SYS_setresgid,
    SYS_setfsgid,
    SYS_setgroups,
    SYS_capset,
    SYS_setns,
    SYS_unshare,
    SYS_chroot,
    SYS_prctl,
    SYS_seccomp,
    SYS_landlock_restrict_self,
];

/// The core is asked, perhaps again.
const EPOLL_WAITS: &[c_long] = &[
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
];

/// The core is told of the result.
const TOLD: &[c_long] = &[
    SYS_socket,
    SYS_getsockopt,
    SYS_socketpair,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_epoll_create1,
    SYS_pipe2,
    SYS_io_uring_setup,
    SYS_rt_sigaction,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_create,
    #[cfg(target_arch = "x86_64")]
    SYS_pipe,
];

/// The result is a new descriptor.
const MAKES_FD: &[c_long] = &[
    SYS_openat,
    SYS_openat2,
    SYS_open_by_handle_at,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_signalfd4,
    SYS_inotify_init1,
    SYS_fanotify_init,
    SYS_memfd_create,
    SYS_memfd_secret,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_userfaultfd,
    SYS_perf_event_open,
    SYS_mq_open,
    SYS_fsopen,
    SYS_fsmount,
    SYS_fspick,
    SYS_open_tree,
];

/// The same, and more is told of it.
const MAKES_ANOTHER: &[c_long] = &[
    SYS_socket,
    SYS_socketpair,
    SYS_epoll_create1,
    SYS_pipe2,
    SYS_io_uring_setup,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_create,
    #[cfg(target_arch = "x86_64")]
    SYS_pipe,
];

/// Those that only the older architecture has.
#[cfg(target_arch = "x86_64")]
const MAKES_FD_X86: &[c_long] = &[SYS_open, SYS_creat, SYS_eventfd, SYS_signalfd, SYS_inotify_init];
#[cfg(not(target_arch = "x86_64"))]
const MAKES_FD_X86: &[c_long] = &[];

/// The watched numbers.
unsafe extern "C-unwind" fn dispatch(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let args = [a, b, c, d, e, f];
    // SAFETY: the slot holds libc's variadic function, which takes its arguments where these are.
    let next: Next = unsafe { core::mem::transmute(syscall::SLOT.address()) };
    // SAFETY: the caller answers for the arguments as to the system call.
    unsafe {
        if EPOLL_WAITS.contains(&number) {
            return epoll_wait(next, number, args).into();
        }
        let answer = ask(number, args);
        if answer != PASS {
            return errno::ret(answer) as c_long;
        }
        let call = || next(number, a, b, c, d, e, f);
        let result = match number {
            SYS_accept | SYS_accept4 => accepted(call),
            _ if takes_number(number) => numbered(call),
            _ => call(),
        };
        tell(number, args, result as isize);
        result
    }
}

/// Whether the call takes the lowest free number.
fn takes_number(number: c_long) -> bool {
    MAKES_FD.contains(&number) || MAKES_FD_X86.contains(&number) || MAKES_ANOTHER.contains(&number)
}

/// The raw waits for epoll events, as the hooks of their wrappers.
///
/// # Safety
/// `args` are right for the system call.
unsafe fn epoll_wait(next: Next, number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_int {
    let (epfd, events, max) = (a as c_int, b as *mut epoll_event, c as c_int);
    let mask = if number == SYS_epoll_pwait || number == SYS_epoll_pwait2 {
        e as *const sigset_t
    } else {
        null()
    };
    // SAFETY: the caller's promise.
    unsafe {
        if number != SYS_epoll_pwait2 {
            let timeout_ns = time::from_ms(d as c_int);
            return wait!(epfd, events, max, timeout_ns, mask, |left| next(
                number,
                a,
                b,
                c,
                left.ms() as usize,
                e,
                f
            ) as c_int);
        }
        let Some(timeout_ns) = time::from_timespec(d as *const timespec) else {
            return next(number, a, b, c, d, e, f) as c_int;
        };
        wait!(epfd, events, max, timeout_ns, mask, |left| {
            let left = left.timespec();
            next(number, a, b, c, left.as_ref().map_or(0, |left| &raw const *left as usize), e, f)
                as c_int
        })
    }
}

/// What the core answers before the call; [`PASS`] to make it.
///
/// # Safety
/// `args` are right for the system call `number`.
unsafe fn ask(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Ret {
    let fd = a as c_int;
    // SAFETY: the caller's promise, for every arm.
    unsafe {
        match number {
            SYS_read => api::read(fd, b as *mut c_void, c),
            SYS_write => api::send(fd, b as *const c_void, c, 0),
            SYS_readv => api::recvv(fd, b as *const iovec, c as c_int, 0),
            SYS_writev => api::sendv(fd, b as *const iovec, c as c_int, 0),
            SYS_preadv2 => match io::message_flags(io::Side::Reads(fd), d as off64_t, f as c_int) {
                Some(flags) => api::recvv(fd, b as *const iovec, c as c_int, flags),
                None => PASS,
            },
            SYS_pwritev2 => match io::message_flags(io::Side::Writes(fd), d as off64_t, f as c_int)
            {
                Some(flags) => api::sendv(fd, b as *const iovec, c as c_int, flags),
                None => PASS,
            },
            SYS_recvfrom => message::recv_from(
                fd,
                b as *mut c_void,
                c,
                d as c_int,
                e as *mut sockaddr,
                f as *mut socklen_t,
            ),
            SYS_sendto => message::send_to(
                fd,
                b as *const c_void,
                c,
                d as c_int,
                e as *const sockaddr,
                f as socklen_t,
            ),
            SYS_recvmsg => api::recvmsg(fd, b as *mut msghdr, c as c_int),
            SYS_sendmsg => api::sendmsg(fd, b as *const msghdr, c as c_int),
            SYS_recvmmsg => {
                api::recvmmsg(fd, b as *mut mmsghdr, c as u32, d as c_int, e as *mut timespec)
            }
            SYS_sendmmsg => api::sendmmsg(fd, b as *mut mmsghdr, c as u32, d as c_int),
            SYS_sendfile => api::sendfile(fd, b as c_int, c as *mut off64_t, d),
            SYS_splice => {
                api::splice(fd, b as *mut off64_t, c as c_int, d as *mut off64_t, e, f as u32)
            }
            #[cfg(target_arch = "x86_64")]
            SYS_poll => api::poll(a as *mut pollfd, b as u64, time::from_ms(c as c_int), null()),
            SYS_ppoll => {
                ppoll(a as *mut pollfd, b as u64, c as *mut timespec, d as *const sigset_t)
            }
            #[cfg(target_arch = "x86_64")]
            SYS_select => poll::select_or_pass(
                fd,
                b as *mut fd_set,
                c as *mut fd_set,
                d as *mut fd_set,
                e as *mut timeval,
            ),
            SYS_pselect6 => pselect(
                fd,
                b as *mut fd_set,
                c as *mut fd_set,
                d as *mut fd_set,
                e as *mut timespec,
                f as *const *const sigset_t,
            ),
            SYS_epoll_ctl => api::epoll_ctl(fd, b as c_int, c as c_int, d as *mut epoll_event),
            SYS_close => api::close_by_syscall(fd),
            SYS_close_range => api::close_range(a as u32, b as u32, c as u32),
            SYS_dup => api::dup(fd),
            #[cfg(target_arch = "x86_64")]
            SYS_dup2 => {
                fd::onto_stdio(fd, b as c_int);
                api::dup3(fd, b as c_int, -1)
            }
            SYS_dup3 => {
                fd::onto_stdio(fd, b as c_int);
                api::dup3(fd, b as c_int, c as c_int)
            }
            SYS_fcntl => api::fcntl(fd, b as c_int, c),
            SYS_ioctl => api::ioctl(fd, b, c),
            SYS_accept => api::accept(fd, b as *mut sockaddr, c as *mut socklen_t, 0),
            SYS_accept4 => api::accept(fd, b as *mut sockaddr, c as *mut socklen_t, d as c_int),
            SYS_connect => api::connect(fd, b as *const sockaddr, c as socklen_t),
            SYS_shutdown => api::shutdown(fd, b as c_int),
            SYS_setsockopt => {
                api::setsockopt(fd, b as c_int, c as c_int, d as *const c_void, e as socklen_t)
            }
            SYS_getsockopt => {
                api::getsockopt(fd, b as c_int, c as c_int, d as *mut c_void, e as *mut socklen_t)
            }
            SYS_io_uring_setup => api::before_io_uring_setup(),
            SYS_io_submit => aio::before_submit(c as *const *const c_void, b),
            _ => {
                warn(number, a, b);
                PASS
            }
        }
    }
}

/// Tells the core of a system call, of which these are the first parameters, and which is made in
/// any case.
#[inline]
fn warn(number: c_long, a: usize, b: usize) {
    let fd = a as c_int;
    match number {
        SYS_listen => api::before_listen(fd),
        SYS_io_uring_enter => api::before_io_uring_enter(fd, b as u32),
        SYS_io_uring_register => api::before_io_uring_register(b as u32),
        SYS_execve | SYS_execveat => api::before_exec(),
        SYS_exit_group => api::before_end(),
        SYS_setns | SYS_unshare => warn_of_namespaces(number, a),
        SYS_prctl if !api::confines(a) => {}
        SYS_seccomp => {
            api::before_filter();
            api::before_rights_change();
        }
        _ if RIGHTS.contains(&number) => api::before_rights_change(),
        SYS_rt_sigaction if b != 0 => {
            let _ = api::before_disposition(fd);
        }
        _ => {}
    }
}

fn warn_of_namespaces(number: c_long, flags: usize) {
    if number == SYS_setns || flags & CLONE_NEWNET as usize != 0 {
        api::before_network_change();
    }
    if number == SYS_setns || flags & CLONE_NEWUSER as usize != 0 {
        api::before_rights_change();
    }
}

/// Tells the core of a call that has been made.
///
/// # Safety
/// `result` is what the system call `number` returned for `args`.
unsafe fn tell(number: c_long, [a, b, c, d, e, _]: [usize; 6], result: isize) {
    let fd = a as c_int;
    let new = result as c_int;
    if number == SYS_connect {
        // SAFETY: the caller's promise.
        unsafe {
            api::on_connect(
                fd,
                b as *const sockaddr,
                c as socklen_t,
                if result == 0 { 0 } else { errno::get().wrapping_neg() },
            )
        };
    }
    if number == SYS_rt_sigaction && b != 0 {
        // (Counted, unless the first socket has come meanwhile.)
        api::after_disposition(a as c_int, true);
    }
    if result < 0 {
        return;
    }
    // SAFETY: the caller's promise, for every arm.
    unsafe {
        match number {
            SYS_socket => api::on_socket(new, fd, b as c_int, c as c_int),
            SYS_listen => api::on_listen(fd),
            SYS_accept | SYS_accept4 => {
                let flags = if number == SYS_accept4 { d as c_int } else { 0 };
                api::on_accept(fd, new, b as *const sockaddr, c as *const socklen_t, flags)
            }
            SYS_setsockopt => {
                api::on_setsockopt(fd, b as c_int, c as c_int, d as *const c_void, e as socklen_t)
            }
            SYS_getsockopt => api::on_getsockopt(
                fd,
                b as c_int,
                c as c_int,
                d as *mut c_void,
                e as *const socklen_t,
            ),
            SYS_recvmsg if (*(b as *const msghdr)).msg_controllen != 0 => {
                api::on_recvmsg(fd, b as *const msghdr, c as c_int)
            }
            SYS_recvmmsg => message::received(fd, b as *const mmsghdr, result, d as c_int),
            SYS_rt_sigaction => signal::changed_raw(a as c_int, c as *mut usize),
            SYS_socketpair => new_pair(d as *const c_int),
            SYS_io_uring_setup => api::on_io_uring_setup(new, &*(b as *const api::IoUringParams)),
            SYS_pipe2 => new_pair(a as *const c_int),
            #[cfg(target_arch = "x86_64")]
            SYS_pipe => new_pair(a as *const c_int),
            #[cfg(target_arch = "x86_64")]
            SYS_epoll_create => api::on_epoll_create(new),
            SYS_epoll_create1 => api::on_epoll_create(new),
            SYS_pidfd_getfd => api::on_taken_fd(new),
            SYS_dup => api::on_new_fd(new),
            SYS_fcntl if matches!(b as c_int, F_DUPFD | F_DUPFD_CLOEXEC) => api::on_new_fd(new),
            _ if MAKES_FD.contains(&number) || MAKES_FD_X86.contains(&number) => {
                api::on_new_fd(new)
            }
            _ => {}
        }
    }
}

/// # Safety
/// The kernel has just written two descriptors there.
unsafe fn new_pair(pair: *const c_int) {
    // SAFETY: the caller's promise.
    unsafe {
        api::on_new_fd(*pair);
        api::on_new_fd(*pair.wrapping_add(1));
    }
}

/// The raw ppoll, which writes what is left of its timeout back.
///
/// # Safety
/// As for ppoll(2).
unsafe fn ppoll(
    fds: *mut pollfd,
    count: u64,
    timeout: *mut timespec,
    mask: *const sigset_t,
) -> Ret {
    // SAFETY: the caller's promise.
    let Some(timeout_ns) = (unsafe { time::from_timespec(timeout) }) else {
        return PASS;
    };
    let start_ns = if timeout_ns > 0 { api::now_ns() } else { 0 };
    // SAFETY: the caller's promise.
    let answer = unsafe { api::poll(fds, count, timeout_ns, mask) };
    if answer != PASS && timeout_ns > 0 {
        let left_ns =
            timeout_ns.saturating_sub_unsigned(api::now_ns().saturating_sub(start_ns)).max(0);
        // SAFETY: there was a timeout, so there is a place for it.
        unsafe { api::put_at(timeout, time::to_timespec(left_ns)) };
    }
    answer
}

/// The raw pselect6, which writes what is left of its timeout back and finds its mask behind a
/// pointer.
///
/// # Safety
/// As for the system call.
unsafe fn pselect(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timespec,
    mask: *const *const sigset_t,
) -> Ret {
    // SAFETY: the caller's promise.
    let Some(timeout_ns) = (unsafe { time::from_timespec(timeout) }) else {
        return PASS;
    };
    let mut inner = null_mut();
    if !mask.is_null() {
        // SAFETY: the application's, whatever it is.
        match unsafe { api::peek_at(mask) } {
            Some(theirs) => inner = theirs.cast_mut(),
            None => return PASS,
        }
    }
    let mask = inner;
    let mut elapsed_ns = 0;
    // SAFETY: the caller's promise.
    let answer =
        unsafe { api::select(nfds, read, write, except, timeout_ns, mask, &mut elapsed_ns) };
    if answer != PASS && !timeout.is_null() {
        let left_ns = timeout_ns.saturating_sub(elapsed_ns).max(0);
        // SAFETY: not null, so the caller's promise.
        unsafe { api::put_at(timeout, time::to_timespec(left_ns)) };
    }
    answer
}
