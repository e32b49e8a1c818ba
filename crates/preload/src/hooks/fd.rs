//! Descriptors: closing, duplicating, controlling them, and the calls that make new ones.
//!
//! The calls that make new ones are here because of closes that cannot be seen (a raw `syscall`
//! instruction, io_uring): the number comes back for something else, and what the core still holds
//! for it must go. That costs one load.

use crate::errno;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, mode_t, sigset_t, size_t};
use netacc_core::api::{self, PASS};

/// `close` and its alias. What is closed is announced also where it is nobody's: a descriptor of
/// the library's own may stand on that number while it is made.
macro_rules! close {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(fd: c_int) -> c_int |next| {
                let answer = api::close(fd);
                if answer == PASS {
                    return freed(fd, libc::EBADF, || next(fd));
                }
                errno::ret(answer) as c_int
            }
        }
    };
}

close! {
    /// `close(2)`.
    fn close
}
close! {
    /// libc's older public name of `close`.
    unchecked fn __close
}
hook! {
    /// `close_range(2)`.
    unchecked fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int = api::close_range(first, last, flags as u32);
}
hook! {
    /// `closefrom(3)`: nothing for the next symbol to do, which would close the library's own
    /// descriptors too.
    unchecked fn closefrom(low: c_int) -> () |_next| {
        api::closefrom(low);
    }
}

hook! {
    /// `dup(2)`.
    fn dup(fd: c_int) -> c_int |next| {
        let answer = api::dup(fd);
        if answer != PASS {
            return errno::ret(answer) as c_int;
        }
        numbered(|| made(next(fd)))
    }
}

/// `dup2` and its alias.
macro_rules! dup2 {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(old: c_int, new: c_int) -> c_int |next| {
                onto_stdio(old, new);
                let answer = api::dup3(old, new, -1);
                if answer == PASS {
                    return freed(new, libc::EBUSY, || next(old, new));
                }
                errno::ret(answer) as c_int
            }
        }
    };
}

dup2! {
    /// `dup2(2)`.
    fn dup2
}
dup2! {
    /// libc's older public name of `dup2`.
    unchecked fn __dup2
}
hook! {
    /// `dup3(2)`.
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int |next| {
        onto_stdio(old, new);
        let answer = api::dup3(old, new, flags);
        if answer == PASS {
            return freed(new, libc::EBUSY, || next(old, new, flags));
        }
        errno::ret(answer) as c_int
    }
}

/// `fcntl` and its aliases. Variadic in C: the third argument, if any, travels as a named one does.
macro_rules! fcntl {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(fd: c_int, cmd: c_int, arg: usize) -> c_int |next| {
                let answer = api::fcntl(fd, cmd, arg);
                if answer != PASS {
                    return errno::ret(answer) as c_int;
                }
                match cmd {
                    libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => numbered(|| made(next(fd, cmd, arg))),
                    // SAFETY: the caller's.
                    _ => match unsafe { api::own_lock(fd, cmd, arg) } {
                        Some(own) => lock_own(own, cmd, arg, |own| next(fd, cmd, own)),
                        None => next(fd, cmd, arg),
                    },
                }
            }
        }
    };
}

/// A command about record locks, of what is the program's.
#[cold]
fn lock_own(
    mut own: libc::flock,
    cmd: c_int,
    arg: usize,
    next: impl FnOnce(usize) -> c_int,
) -> c_int {
    const F_OFD_GETLK: c_int = 36;
    let r = next(&raw mut own as usize);
    if r < 0 || !matches!(cmd, libc::F_GETLK | F_OFD_GETLK) {
        return r;
    }
    // SAFETY: the caller's.
    errno::ret(unsafe { api::on_own_lock(arg, own) }) as c_int
}

fcntl! {
    /// `fcntl(2)`.
    unchecked fn fcntl
}
fcntl! {
    /// `fcntl` as programs built for 64-bit file offsets call it.
    unchecked fn fcntl64
}
fcntl! {
    /// libc's older public name of `fcntl`.
    unchecked fn __fcntl
}
hook! {
    /// `ioctl(2)`. Variadic in C, as `fcntl`.
    unchecked fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int = api::ioctl(fd, request as usize, arg);
}
hook! {
    /// `sockatmark(3)`: libc's has a private ioctl.
    unchecked fn sockatmark(fd: c_int) -> c_int |next| {
        const SIOCATMARK: usize = 0x8905;
        let mut mark: c_int = 0;
        // SAFETY: it takes a pointer to an int.
        match unsafe { api::ioctl(fd, SIOCATMARK, &raw mut mark as usize) } {
            PASS => next(fd),
            answer if answer < 0 => errno::ret(answer) as c_int,
            _ => mark,
        }
    }
}

/// Calls that return a new descriptor.
macro_rules! makes_fd {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name($($arg: $ty),*) -> c_int |next| { numbered(|| made(next($($arg),*))) }
        }
    )*};
}

makes_fd! {
    /// `open(2)`. Variadic in C: `mode` is garbage without O_CREAT, and travels on as such.
    open(path: *const c_char, flags: c_int, mode: mode_t);
    /// `open` with 64-bit file offsets.
    open64(path: *const c_char, flags: c_int, mode: mode_t);
    /// libc's older public name of `open`.
    __open(path: *const c_char, flags: c_int, mode: mode_t);
    /// libc's older public name of `open64`.
    __open64(path: *const c_char, flags: c_int, mode: mode_t);
    /// `open` with `_FORTIFY_SOURCE`.
    __open_2(path: *const c_char, flags: c_int);
    /// `open64` with `_FORTIFY_SOURCE`.
    __open64_2(path: *const c_char, flags: c_int);
    /// `openat(2)`.
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    /// `openat` with 64-bit file offsets.
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    /// `openat` with `_FORTIFY_SOURCE`.
    __openat_2(dir: c_int, path: *const c_char, flags: c_int);
    /// `openat64` with `_FORTIFY_SOURCE`.
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int);
    /// `open_by_handle_at(2)`.
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int);
    /// `creat(2)`.
    creat(path: *const c_char, mode: mode_t);
    /// `creat` with 64-bit file offsets.
    creat64(path: *const c_char, mode: mode_t);
    /// `mkstemp(3)`: libc opens by a private call.
    mkstemp(template: *mut c_char);
    /// `mkstemp` with 64-bit file offsets.
    mkstemp64(template: *mut c_char);
    /// `mkostemp(3)`.
    mkostemp(template: *mut c_char, flags: c_int);
    /// `mkostemp` with 64-bit file offsets.
    mkostemp64(template: *mut c_char, flags: c_int);
    /// `mkstemps(3)`.
    mkstemps(template: *mut c_char, suffix: c_int);
    /// `mkstemps` with 64-bit file offsets.
    mkstemps64(template: *mut c_char, suffix: c_int);
    /// `mkostemps(3)`.
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int);
    /// `mkostemps` with 64-bit file offsets.
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int);
    /// `shm_open(3)`.
    shm_open(name: *const c_char, flags: c_int, mode: mode_t);
    /// `mq_open(3)`. Variadic in C, as `open`.
    mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void);
    /// `posix_openpt(3)`.
    posix_openpt(flags: c_int);
    /// `getpt(3)`.
    getpt();
    /// `eventfd(2)`.
    eventfd(value: c_uint, flags: c_int);
    /// `timerfd_create(2)`.
    timerfd_create(clock: c_int, flags: c_int);
    /// `signalfd(2)`.
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int);
    /// `inotify_init(2)`.
    inotify_init();
    /// `inotify_init1(2)`.
    inotify_init1(flags: c_int);
    /// `fanotify_init(2)`.
    fanotify_init(flags: c_uint, event_flags: c_uint);
    /// `memfd_create(2)`.
    memfd_create(name: *const c_char, flags: c_uint);
    /// `pidfd_open(2)`.
    pidfd_open(pid: c_int, flags: c_uint);
    /// `fsopen(2)`.
    fsopen(name: *const c_char, flags: c_uint);
    /// `fsmount(2)`.
    fsmount(fs: c_int, flags: c_uint, attributes: c_uint);
    /// `fspick(2)`.
    fspick(dir: c_int, path: *const c_char, flags: c_uint);
    /// `open_tree(2)`.
    open_tree(dir: c_int, path: *const c_char, flags: c_uint);
}

hook! {
    /// `pidfd_getfd(2)`.
    unchecked fn pidfd_getfd(pidfd: c_int, target: c_int, flags: c_uint) -> c_int |next| {
        let fd = numbered(|| next(pidfd, target, flags));
        if fd >= 0 {
            api::on_taken_fd(fd);
        }
        fd
    }
}

/// Calls that write two new descriptors.
macro_rules! makes_two {
    ($($(#[$meta:meta])* $name:ident($pair:ident: *mut c_int $(, $arg:ident: $ty:ty)*);)*) => {$(
        hook! {
            $(#[$meta])*
            unchecked fn $name($pair: *mut c_int $(, $arg: $ty)*) -> c_int |next| {
                let result = numbered(|| next($pair $(, $arg)*));
                if result == 0 {
                    api::on_new_fd(*$pair);
                    api::on_new_fd(*$pair.wrapping_add(1));
                }
                result
            }
        }
    )*};
}

makes_two! {
    /// `pipe(2)`.
    pipe(pair: *mut c_int);
    /// libc's older public name of `pipe`.
    __pipe(pair: *mut c_int);
    /// `pipe2(2)`.
    pipe2(pair: *mut c_int, flags: c_int);
}
hook! {
    /// `openpty(3)`.
    unchecked fn openpty(main: *mut c_int, terminal: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void) -> c_int |next| {
        let result = next(main, terminal, name, settings, size);
        if result == 0 {
            api::on_new_fd(*main);
            api::on_new_fd(*terminal);
        }
        result
    }
}
hook! {
    /// `login_tty(3)`: libc puts the terminal onto 0, 1 and 2 by private calls.
    unchecked fn login_tty(fd: c_int) -> c_int |next| {
        let result = next(fd);
        if result == 0 {
            replaced_stdio();
        }
        result
    }
}

/// Runs a call that takes numbers; nothing in it needs dropping, should the thread be cancelled
/// there.
#[inline(always)]
pub(super) fn numbered<R>(call: impl FnOnce() -> R) -> R {
    let ticket = api::before_number();
    let result = call();
    api::after_number(ticket);
    result
}

/// As [`numbered`], the kernel's `accept`.
#[inline(always)]
pub(super) fn accepted<R>(call: impl FnOnce() -> R) -> R {
    let ticket = api::before_accept();
    let result = call();
    api::after_accept(ticket);
    result
}

/// Runs a call that closes what stands on `fd`, where that was nothing of the library's. By now it
/// may be: `error` then.
#[inline(always)]
fn freed(fd: c_int, error: c_int, call: impl FnOnce() -> c_int) -> c_int {
    numbered(|| {
        if api::is_own(fd) { errno::ret((error as isize).wrapping_neg()) as c_int } else { call() }
    })
}

/// Passes a new descriptor, or -1, on.
#[inline(always)]
pub(super) fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        api::on_new_fd(fd);
    }
    fd
}

/// Descriptors 0, 1 and 2 have become something else inside libc.
pub(super) fn replaced_stdio() {
    for fd in 0..=2 {
        api::on_new_fd(fd);
    }
}

/// A socket becomes standard input or output: stdio reads and writes those by private calls.
#[inline]
pub(super) fn onto_stdio(old: c_int, new: c_int) {
    if (0..=2).contains(&new) && old != new {
        api::onto_stdio(old);
    }
}

// Keeps the types that the variadic declarations stand for in one place.
const _: () =
    assert!(size_of::<c_long>() == size_of::<usize>() && size_of::<size_t>() == size_of::<usize>());
