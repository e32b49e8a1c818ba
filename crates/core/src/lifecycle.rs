//! Processes and descriptors: start, fork, exec, close, dup, and the way back to the kernel.

use crate::api::{NextSymbols, PASS, Ret};
use crate::fd_table::{self, Entry};
use crate::log::warn_log;
use crate::socket::{self, Socket};
use crate::{
    adoption, epoll, io, io_uring, numbers, own, remote, rights, service, signals, stats, sys, wait,
};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use netacc_control::config::{Config, DEFAULT_FILE, ENV_FILE, ENV_FROM_COMMAND_LINE, SETTINGS};
use netacc_control::stats::Reason;

/// What the environment held when the process started; programs overwrite it later.
struct Environment {
    values: Vec<(&'static str, &'static str)>,
    next: NextSymbols,
}

struct Resolved {
    config: Config,
    text: String,
}

static ENVIRONMENT: AtomicPtr<Environment> = AtomicPtr::new(core::ptr::null_mut());
static RESOLVED: AtomicPtr<Resolved> = AtomicPtr::new(core::ptr::null_mut());
/// The pid: serial number of this process in everything that forked children inherit. In a PID
/// namespace that an ancestor is not in: with that namespace's mark ([`MARK`]).
static PROCESS: AtomicU32 = AtomicU32::new(1);
/// The bits of an id that tell PID namespaces apart, above the largest number that the kernel gives
/// (PID_MAX_LIMIT). 0: where the family comes from.
const MARK: u32 = 0x1ff << 22;
/// Or-ed to the ids of this process's threads, for as long as they stand in locks that another
/// namespace's threads contend for.
static THREAD_MARK: AtomicU32 = AtomicU32::new(0);
/// Where glibc keeps the thread's id relative to the thread pointer; 0: not found, ask the kernel.
static TID_OFFSET: AtomicUsize = AtomicUsize::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn init(env: &dyn Fn(&str) -> Option<&'static str>, next: NextSymbols) {
    crate::inject::init(env);
    let mut values = Vec::new();
    for name in SETTINGS.iter().map(|s| s.name).chain([ENV_FILE, ENV_FROM_COMMAND_LINE]) {
        if let Some(value) = env(name) {
            values.push((name, value));
        }
    }
    let environment = Box::into_raw(Box::new(Environment { values, next }));
    ENVIRONMENT.store(environment, Release);
    PROCESS.store(sys::getpid(), Relaxed);
    find_tid_offset();
    STARTED.store(true, Release);
}

/// False until the constructor has run (and for ever where it refuses to: set-uid programs).
pub(crate) fn started() -> bool {
    STARTED.load(Acquire)
}

pub(crate) fn next_symbols() -> Option<NextSymbols> {
    // SAFETY: set once to a leaked box.
    unsafe { ENVIRONMENT.load(Acquire).as_ref() }.map(|e| e.next)
}

/// The configuration, resolved at the first use.
pub(crate) fn config() -> &'static Config {
    &resolved().config
}

/// The configuration as `netacc_ss -s cfg` shows it.
pub(crate) fn config_text() -> &'static str {
    &resolved().text
}

fn resolved() -> &'static Resolved {
    // SAFETY: only ever set to a leaked box.
    if let Some(r) = unsafe { RESOLVED.load(Acquire).as_ref() } {
        return r;
    }
    resolve()
}

#[cold]
#[inline(never)]
fn resolve() -> &'static Resolved {
    // SAFETY: as in `next_symbols`.
    let environment = unsafe { ENVIRONMENT.load(Acquire).as_ref() };
    let get = |name: &str| {
        environment
            .and_then(|e| e.values.iter().find(|(n, _)| *n == name))
            .map(|(_, v)| v.to_string())
    };
    let path = get(ENV_FILE).unwrap_or_else(|| DEFAULT_FILE.to_string());
    let text = read_file(&path);
    let (config, origins, errors) =
        Config::resolve_lossy(text.as_deref().map(|t| (path.as_str(), t)), &get, &[]);
    let text = config.render(&origins);
    let new = Box::into_raw(Box::new(Resolved { config, text }));
    match RESOLVED.compare_exchange(core::ptr::null_mut(), new, AcqRel, Acquire) {
        Ok(_) => {
            for e in &errors {
                warn_log!("{e}");
            }
            // SAFETY: leaked.
            unsafe { &*new }
        }
        Err(other) => {
            // SAFETY: `new` was never shared; `other` is a leaked box.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

fn read_file(path: &str) -> Option<String> {
    let mut name = Vec::from(path.as_bytes());
    name.push(0);
    let fd = sys::open(&name, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0) as c_int;
    if fd < 0 {
        return None;
    }
    let mut bytes = Vec::new();
    let mut part = [0u8; 512];
    let whole = loop {
        let n = sys::read(fd, &mut part);
        if n <= 0 || bytes.len() > 1 << 20 {
            break true;
        }
        if bytes.try_reserve(n as usize).is_err() {
            break false;
        }
        bytes.extend_from_slice(part.get(..n as usize).unwrap_or(&[]));
    };
    let _ = sys::close(fd);
    // (A part of it could say the opposite of the whole.)
    if !whole {
        return None;
    }
    if core::str::from_utf8(&bytes).is_err() {
        // The keys that are understood count.
        bytes.iter_mut().filter(|b| !b.is_ascii()).for_each(|b| *b = b'?');
    }
    String::from_utf8(bytes).ok()
}

/// Serial number of this process.
#[inline(always)]
pub(crate) fn process() -> u32 {
    PROCESS.load(Relaxed)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn thread_word(offset: usize) -> u32 {
    let v: u32;
    // SAFETY: `offset` lies within glibc's `struct pthread`, which begins at the thread pointer and
    // is over 2 KiB long.
    unsafe {
        core::arch::asm!("mov {0:e}, fs:[{1}]", out(reg) v, in(reg) offset, options(nostack, readonly, preserves_flags))
    };
    v
}

#[cfg(target_arch = "x86_64")]
fn find_tid_offset() {
    // `struct pthread` holds the thread's id for robust mutexes, at 0x2d0 in every glibc of the
    // last decade. Believed only if it is there; in a forked child glibc keeps it up to date.
    const GLIBC: usize = 0x2d0;
    if thread_word(GLIBC) == sys::gettid() {
        TID_OFFSET.store(GLIBC, Relaxed);
    }
}
#[cfg(not(target_arch = "x86_64"))]
fn find_tid_offset() {}

/// The calling thread's id.
#[inline(always)]
pub(crate) fn tid() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let offset = TID_OFFSET.load(Relaxed);
        if offset != 0 {
            return thread_word(offset);
        }
    }
    sys::gettid() | THREAD_MARK.load(Relaxed)
}

// ---- fork and exec ------------------------------------------------------------------------------

/// How often this process has forked.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn forks() -> u32 {
    FORKS.load(Acquire)
}

/// The thread that forks: one at a time, so that each child knows what was counted for it. Waited
/// for no longer than this.
static FORKING: AtomicU32 = AtomicU32::new(0);
const FORKING_NS: u64 = 1_000_000_000;

/// False: this very thread has the turn already (a signal handler has interrupted it), or somebody
/// has it for too long.
fn take_turn() -> bool {
    let until = sys::now_ns().saturating_add(FORKING_NS);
    while let Err(other) = FORKING.compare_exchange(0, tid(), AcqRel, Acquire) {
        if other == tid() || sys::now_ns() >= until {
            return false;
        }
        sys::futex_wait(&FORKING, other, FORKING_NS as i64, true);
    }
    true
}

fn give_turn() {
    FORKING.store(0, Release);
    sys::futex_wake(&FORKING, i32::MAX, true);
}

/// Runs `f` while no thread of this process forks. `None`: it could not be had.
pub(crate) fn between_forks<R>(f: impl FnOnce() -> R) -> Option<R> {
    let signals = sys::hold_signals();
    let r = take_turn().then(|| {
        let r = f();
        give_turn();
        r
    });
    sys::restore_signals(signals);
    r
}

/// As [`between_forks`]; the caller may be in it already, by this very thread.
pub(crate) fn while_nobody_forks<R>(f: impl FnOnce() -> R) -> Option<R> {
    if FORKING.load(Relaxed) == tid() { Some(f()) } else { between_forks(f) }
}

pub(crate) fn fork_prepare() {
    let _ = take_turn();
    remote::fork_prepare();
    adoption::before_fork();
    FORKS.fetch_add(1, AcqRel);
    // Both processes will hold every socket: counted before either can close.
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, g) = entry {
            let _ = s.count_names(g, |n| n.saturating_add(1));
            if s.has(socket::flag::TRACKED) {
                adoption::passed::lose_track(s, fd);
            }
            fd_table::note_counted(fd, fd_table::encode(entry));
        }
    });
}

pub(crate) fn fork_parent() {
    forked();
    stats::count(netacc_control::stats::Counter::Forks);
}

fn forked() {
    remote::fork_done();
    give_turn();
}

/// A fork is not one step: the kernel copies the descriptors, then the memory, and other threads go
/// on. What came to be after [`fork_prepare`] had counted is the parent's alone, whatever stands
/// under its number here. True: there are such as were counted.
fn forget_what_was_not_counted() -> bool {
    let mut some = false;
    fd_table::for_each(|fd, entry| {
        if !matches!(entry, Entry::Socket(..)) {
        } else if fd_table::was_counted(fd) {
            some = true;
        } else {
            fd_table::set(fd, Entry::None);
        }
    });
    some
}

/// Whether a process of the family lives. (Nobody can tell of one in another PID namespace: it
/// does.)
pub(crate) fn process_lives(id: u32) -> bool {
    (id ^ process()) & MARK != 0 || sys::alive(id & !MARK)
}

/// Whether the thread that holds a lock of the family's lives. `None`: it is in another PID
/// namespace, and nobody can tell.
pub(crate) fn thread_lives(id: u32) -> Option<bool> {
    ((id ^ THREAD_MARK.load(Relaxed)) & MARK == 0).then(|| sys::alive(id & !MARK))
}

/// A new mark for the ids of this PID namespace.
fn new_mark() -> u32 {
    let mut bits = [0u8; 4];
    sys::random(&mut bits);
    1 << 30 | u32::from_ne_bytes(bits) & MARK
}

pub(crate) fn fork_child() {
    // (The parent's id is 0 where it is in a namespace outside.)
    let foreign = sys::getppid() == 0;
    let mark = if foreign { new_mark() } else { process() & MARK };
    let parent = PROCESS.swap(sys::getpid() | mark, Relaxed);
    forked();
    if !started() {
        return;
    }
    let inherits = forget_what_was_not_counted();
    numbers::after_fork_in_child();
    service::after_fork_in_child(parent);
    wait::after_fork_in_child();
    adoption::after_fork_in_child(inherits);
    socket::after_fork_in_child();
    own::after_fork_in_child();
    crate::faults::after_fork_in_child();
    stats::after_fork_in_child();
    rights::after_fork_in_child();
    if foreign {
        // Ids of threads say nothing across the border, and stand in locks that both sides take:
        // nothing stays shared.
        let offset = TID_OFFSET.swap(0, Relaxed);
        THREAD_MARK.store(mark, Relaxed);
        rights::before_change();
        THREAD_MARK.store(0, Relaxed);
        TID_OFFSET.store(offset, Relaxed);
    }
}

/// How long the end of a process, or its exec, may be held up by peers that are slow to read what
/// goes out again over the carrier.
const EXIT_NS: u64 = 2_000_000_000;

pub(crate) fn at_exit() {
    crate::inject::at_exit();
    leave_remote_peers();
    adoption::before_leaving(false);
    service::finish_pull_backs(EXIT_NS);
    leave_local_peers();
}

/// What the kernel would close with bytes unread in a ring is reset.
fn leave_local_peers() {
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, _) = entry {
            io::at_exit(s, fd);
        }
    });
}

/// The process forks and ends, and its child goes on with its connections: those that only it can
/// serve go back to the kernel.
pub(crate) fn before_daemon() {
    if !started() || !remote::is_running() {
        return;
    }
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, g) = entry
            && s.has(socket::flag::REMOTE)
        {
            let _ = io::to_kernel(s, g, fd, Reason::InheritedByFork, false);
        }
    });
}

/// The process ends without its exit handlers. What it has sent is in memory that it shares with a
/// peer, and stays there; what a peer on another host does not have yet goes with this process.
pub(crate) fn before_end() {
    if started() && !in_vfork_child() {
        crate::inject::at_exit();
        leave_remote_peers();
        adoption::before_leaving(false);
        leave_local_peers();
    }
}

/// Bytes that a peer on another host may not have yet go over the carriers.
fn leave_remote_peers() {
    if !remote::is_running() {
        return;
    }
    fd_table::for_each(|_, entry| {
        if let Entry::Socket(s, _) = entry {
            io::begin_exit(s);
        }
    });
    remote::finish(EXIT_NS);
}

static CANCELS: AtomicBool = AtomicBool::new(false);

pub(crate) fn note_cancellation() {
    CANCELS.store(true, Relaxed);
}

/// The program has cancelled a thread, this or another.
pub(crate) fn threads_are_cancelled() -> bool {
    CANCELS.load(Relaxed)
}

/// True in a child that shares this memory (vfork, posix_spawn): what it does to its descriptors is
/// not ours to note.
pub(crate) fn in_vfork_child() -> bool {
    sys::getpid() != process() & !MARK
}

/// `ends`: this very process becomes the new program.
pub(crate) fn before_exec(ends: bool) {
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, _) = entry {
            let live = matches!(
                s.state.load(Acquire),
                socket::UNCONNECTED
                    | socket::CANDIDATE
                    | socket::ATTACHED
                    | socket::ATTACHING
                    | socket::LEFT
                    | socket::CLOSING
            );
            if live && sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize == 0 {
                need_kernel(fd, Reason::InheritedByExec);
            }
        }
    });
    if ends && !in_vfork_child() {
        adoption::before_leaving(true);
        // The new program has no thread that goes on with them.
        leave_remote_peers();
        service::finish_pull_backs(EXIT_NS);
    }
}

/// See [`crate::api::need_kernel`].
pub(crate) fn need_kernel(fd: c_int, why: Reason) {
    match fd_table::get(fd) {
        Entry::Fresh(_) | Entry::Listener(_) => fd_table::refuse(fd, why),
        Entry::Socket(s, g) => {
            if s.has(socket::flag::TRACKED) {
                adoption::passed::lose_track(s, fd);
            }
            // Where somebody is about to read who cannot read a ring.
            let strict = matches!(
                why,
                Reason::InheritedByExec | Reason::PassedByScmRights | Reason::StdioStream
            );
            let _ = io::to_kernel(s, g, fd, why, strict);
        }
        Entry::Ring(_) => io_uring::lose_sight(),
        // Whoever gets it asks the kernel alone.
        Entry::Epoll(e) => epoll::bar(e),
        _ => {}
    }
}

// ---- descriptors --------------------------------------------------------------------------------

pub(crate) fn close(fd: c_int) -> Ret {
    let raw = fd_table::raw(fd);
    if raw == 0 { PASS } else { signals::held(|| close_ours(fd, raw)) }
}

#[cold]
#[inline(never)]
fn close_ours(fd: c_int, raw: u64) -> Ret {
    if in_vfork_child() {
        return sys::close(fd);
    }
    match fd_table::decode(raw) {
        Entry::Internal => -(libc::EBADF as Ret),
        Entry::Socket(s, g) => {
            if fd_table::take(fd, raw) {
                socket::close(s, g, fd, true)
            } else {
                sys::close(fd)
            }
        }
        Entry::Epoll(e) => {
            if fd_table::take(fd, raw) {
                epoll::on_close(e);
            }
            sys::close(fd)
        }
        Entry::Ring(ring) => {
            if fd_table::take(fd, raw) {
                io_uring::on_close(ring);
            }
            sys::close(fd)
        }
        entry => {
            fd_table::take(fd, raw);
            let r = sys::close(fd);
            if matches!(entry, Entry::Listener(_)) {
                service::listener_closed();
            }
            r
        }
    }
}

/// The number was closed by a call that we did not see, and is in use for something else.
pub(crate) fn closed_unseen(s: &'static Socket, g: u16) {
    let _ = socket::close(s, g, -1, false);
}

pub(crate) fn close_range(first: u32, last: u32, flags: u32) -> Ret {
    if first > last {
        return -(libc::EINVAL as Ret);
    }
    let only_marks = flags & libc::CLOSE_RANGE_CLOEXEC != 0;
    if only_marks || in_vfork_child() {
        return sys::close_range(first, last, flags);
    }
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 && sys::unshare_files() < 0 {
        return -(libc::ENOMEM as Ret);
    }
    let rest = flags & !libc::CLOSE_RANGE_UNSHARE;
    let mut from = first;
    let mut result = 0;
    let mut close_up_to = |from: u32, to: u32| {
        if from <= to {
            result = numbered(|| sys::close_range(from, to, rest));
        }
    };
    fd_table::for_each_all(|fd, entry| {
        let n = fd as u32;
        if n < first || n > last {
            return;
        }
        match entry {
            Entry::Internal => {
                if n > from {
                    close_up_to(from, n - 1);
                }
                from = n.saturating_add(1);
            }
            _ => {
                let _ = close(fd);
            }
        }
    });
    if from <= last {
        close_up_to(from, last);
    }
    result
}

/// `new` now names what `old` names.
fn note_dup(old: c_int, new: c_int) {
    fd_table::forget_stale(new);
    match fd_table::get(old) {
        Entry::Socket(s, g) => {
            let _ = s.count_names(g, |n| n.saturating_add(1));
            fd_table::set(new, Entry::Socket(s, g));
        }
        Entry::Epoll(e) => {
            epoll::on_dup(e);
            fd_table::set(new, Entry::Epoll(e));
        }
        e @ (Entry::Fresh(_) | Entry::Listener(_)) => {
            // What is done to a socket through either number, its connect above all, is seen for
            // both.
            let both = match (e, socket::make_unconnected(old)) {
                (Entry::Listener(_), _) => e,
                (_, Some((s, g))) => {
                    let _ = s.count_names(g, |n| n.saturating_add(1));
                    Entry::Socket(s, g)
                }
                _ => Entry::None,
            };
            fd_table::set(new, both);
            if matches!(both, Entry::None) {
                fd_table::set(old, Entry::None);
            }
        }
        Entry::Ring(_) => io_uring::lose_sight(),
        _ => {}
    }
}

/// A system call of the application's that takes or frees numbers.
fn numbered(call: impl FnOnce() -> Ret) -> Ret {
    let ticket = numbers::enter();
    let r = call();
    numbers::leave(ticket);
    r
}

pub(crate) fn dup(fd: c_int) -> Ret {
    match fd_table::get(fd) {
        Entry::None => PASS,
        Entry::Internal => -(libc::EBADF as Ret),
        _ => {
            let new = numbered(|| sys::fcntl(fd, libc::F_DUPFD, 0));
            if new >= 0 && !in_vfork_child() {
                note_dup(fd, new as c_int);
            }
            new
        }
    }
}

pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> Ret {
    let raw_old = fd_table::raw(old);
    let raw_new = fd_table::raw(new);
    if raw_old == 0 && raw_new == 0 {
        return PASS;
    }
    if matches!(fd_table::decode(raw_old), Entry::Internal) {
        return -(libc::EBADF as Ret);
    }
    if matches!(fd_table::decode(raw_new), Entry::Internal) {
        // One of the library's own stands there; the man page knows EBUSY for a number that is
        // being taken.
        return -(libc::EBUSY as Ret);
    }
    if old == new {
        // dup2 of a number onto itself does nothing; dup3 refuses.
        return PASS;
    }
    if in_vfork_child() {
        return sys::dup3(old, new, flags.max(0));
    }
    if sys::fcntl(old, libc::F_GETFD, 0) < 0 {
        return -(libc::EBADF as Ret);
    }
    // What `new` named is closed first, with all that belongs to a close; the kernel replaces it in
    // one step.
    closed_by_kernel(new);
    let r = numbered(|| sys::dup3(old, new, flags.max(0)));
    if r >= 0 {
        note_dup(old, r as c_int);
    }
    r
}

/// A call that is about to be made closes `fd` as well.
pub(crate) fn closed_by_kernel(fd: c_int) {
    let raw = fd_table::raw(fd);
    if raw == 0 || !fd_table::take(fd, raw) {
        return;
    }
    match fd_table::decode(raw) {
        Entry::Socket(s, g) => drop(socket::close(s, g, fd, false)),
        Entry::Epoll(e) => epoll::on_close(e),
        Entry::Ring(ring) => io_uring::on_close(ring),
        _ => {}
    }
}

/// `linux/fcntl.h`; not in the libc crate for glibc.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;

pub(crate) fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> Ret {
    let raw = fd_table::raw(fd);
    if raw == 0 && cmd != libc::F_DUPFD && cmd != libc::F_DUPFD_CLOEXEC {
        return PASS;
    }
    if let Entry::Internal = fd_table::decode(raw) {
        return -(libc::EBADF as Ret);
    }
    match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let new = numbered(|| sys::fcntl(fd, cmd, arg));
            if new >= 0 && !in_vfork_child() {
                note_dup(fd, new as c_int);
            }
            new
        }
        libc::F_SETFL => {
            let r = sys::fcntl(fd, cmd, arg);
            if let Some((s, _)) = fd_table::socket(fd).filter(|_| r >= 0) {
                // (Who attaches it may have asked the kernel before.)
                socket::await_attach(s);
                socket::set_nonblock(s, arg as c_int & libc::O_NONBLOCK != 0);
                if arg as c_int & libc::O_ASYNC != 0 {
                    need_kernel(fd, Reason::SocketOption);
                }
            }
            r
        }
        F_SETSIG | libc::F_SETOWN | F_SETOWN_EX => {
            need_kernel(fd, Reason::SocketOption);
            PASS
        }
        _ => PASS,
    }
}
