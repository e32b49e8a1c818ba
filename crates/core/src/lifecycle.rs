//! Processes and descriptors: start, close, dup; in files of their own: fork, exec, and the end.

use crate::fd_table::{self, Entry};
use crate::log::warn_log;
use crate::outcome::{NextSymbols, PASS, Ret};
use crate::path::PathId;
use crate::socket::{State, harmless};
use crate::wait::looks;
use crate::{
    adoption, agent, config, epoll, fast_connect, fd_words, io, io_uring, numbers, process, remote,
    service, sets, signals, socket, sys, trace, unconnected, utcp,
};
use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use libc::msghdr;
use netacc_control::stats::Reason;

mod before_exec;
mod exit;
mod fork;

pub(crate) use before_exec::{before_exec, before_spawn, exec_failed};
pub(crate) use exit::{at_exit, before_daemon, before_end};
pub(crate) use fork::{fork_child, fork_parent, fork_prepare};

pub(crate) fn init(env: &dyn Fn(&str) -> Option<&'static str>, next: NextSymbols) {
    crate::inject::init(env);
    config::init(env, |error| warn_log!("{error}"));
    agent::register(PathId::Shm, &service::AGENT);
    agent::register(PathId::Rdma, &remote::AGENT);
    agent::register(PathId::Utcp, &utcp::AGENT);
    sets::register(&epoll::SETS);
    trace::set_bell(&socket::RANG);
    utcp::init(env("LD_PRELOAD"));
    process::start(next);
    adoption::exec::start(env("LD_PRELOAD"));
}

/// Descriptors that came by SCM_RIGHTS are new, whatever the table remembers of their numbers.
pub(crate) unsafe fn on_recvmsg(over: c_int, msg: *const msghdr, flags: c_int) {
    // SAFETY: the caller's promise: a msghdr just filled by the kernel.
    unsafe {
        io::for_each_passed(msg, |fd| {
            forget_stale(fd);
            if process::started() && !process::in_vfork_child() {
                adoption::passed::receive(over, fd, flags & libc::MSG_PEEK != 0);
            }
        });
    }
}

// ---- descriptors --------------------------------------------------------------------------------

pub(crate) fn close(fd: c_int) -> Ret {
    looks::before_close(fd, fd);
    let raw = fd_table::raw(fd);
    if raw == 0 { PASS } else { signals::held(|| close_ours(fd, raw)) }
}

/// `close` by `syscall()`. (A number that was nobody's may be the library's by now.)
pub(crate) fn close_by_syscall(fd: c_int) -> Ret {
    match close(fd) {
        PASS => numbered(|| if is_own(fd) { -(libc::EBADF as Ret) } else { sys::close(fd) }),
        r => r,
    }
}

/// Whether one of the library's own descriptors stands there.
#[inline]
pub(crate) fn is_own(fd: c_int) -> bool {
    fd_table::raw(fd) == fd_words::INTERNAL
}

#[cold]
#[inline(never)]
fn close_ours(fd: c_int, raw: u64) -> Ret {
    let entry = fd_table::decode(raw);
    // (A connection that the kernel has alone loses nothing but its place in the table, should a
    // child have closed it that was not seen to be made.)
    let is_in_child = match entry {
        Entry::Socket(s, _) if s.is(State::Candidate) && !s.has(socket::flag::NOTED) => {
            process::may_be_vfork_child()
        }
        Entry::Fresh(_) | Entry::Listener(_) => process::may_be_vfork_child(),
        _ => process::in_vfork_child(),
    };
    if is_in_child {
        return sys::close(fd);
    }
    match entry {
        Entry::Internal => -(libc::EBADF as Ret),
        Entry::Socket(s, g) => {
            if fd_table::take(fd, raw) {
                epoll::forget(s, g, fd);
                io::close(s, g, fd, true)
            } else {
                sys::close(fd)
            }
        }
        Entry::Epoll(e) => {
            if fd_table::take(fd, raw) {
                epoll::on_close(epoll::at(e), fd);
            }
            sys::close(fd)
        }
        Entry::Ring(ring) => {
            if fd_table::take(fd, raw) {
                io_uring::on_close(io_uring::at(ring));
            }
            sys::close(fd)
        }
        entry => {
            fd_table::take(fd, raw);
            fast_connect::give_away(fd);
            end_listener(fd);
            let r = sys::close(fd);
            if matches!(entry, Entry::Listener(_)) {
                agent::each(|agent| agent.listener_closed());
            }
            r
        }
    }
}

/// The kernel has just handed out this number for something else: whatever we knew of it is
/// history.
#[inline]
pub(crate) fn forget_stale(fd: c_int) {
    let raw = fd_table::raw(fd);
    if raw != 0 {
        forget_stale_slow(fd, raw);
    }
}

/// libc is about to close this number, by a private call.
pub(crate) fn before_private_close(fd: c_int) {
    looks::before_close(fd, fd);
    forget_stale(fd);
}

#[cold]
#[inline(never)]
fn forget_stale_slow(fd: c_int, raw: u64) {
    if !fd_table::take(fd, raw) {
        return;
    }
    match fd_table::decode(raw) {
        Entry::Socket(s, g) => {
            epoll::forget(s, g, -1);
            let _ = io::close(s, g, -1, false);
        }
        Entry::Epoll(e) => epoll::on_close(epoll::at(e), fd),
        Entry::Ring(ring) => io_uring::on_close(io_uring::at(ring)),
        Entry::Listener(_) => end_listener(fd),
        _ => fast_connect::give_away(fd),
    }
}

/// A listener's number is closed.
fn end_listener(fd: c_int) {
    if fast_connect::may_have_listeners() {
        fast_connect::listener(fd).into_iter().for_each(io::end_listener);
        let _ = fast_connect::forget_inherited(fd);
    }
}

pub(crate) fn close_range(first: u32, last: u32, flags: u32) -> Ret {
    if first > last {
        return -(libc::EINVAL as Ret);
    }
    let only_marks = flags & libc::CLOSE_RANGE_CLOEXEC != 0;
    if only_marks || process::in_vfork_child() {
        return sys::close_range(first, last, flags);
    }
    looks::before_close(
        first.min(c_int::MAX as u32) as c_int,
        last.min(c_int::MAX as u32) as c_int,
    );
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
    if new as usize >= fd_table::CAPACITY {
        // Whoever uses that number asks the kernel.
        return io::need_kernel(old, Reason::NoRecord);
    }
    forget_stale(new);
    match fd_table::get(old) {
        Entry::Socket(s, g) => {
            let _ = s.count_names(g, |n| n.saturating_add(1));
            fd_table::set(new, Entry::Socket(s, g));
        }
        Entry::Epoll(e) => {
            epoll::on_dup(epoll::at(e));
            fd_table::set(new, Entry::Epoll(e));
        }
        e @ (Entry::Fresh(_) | Entry::Listener(_)) => {
            fast_connect::listener(old).into_iter().for_each(io::give_up_listener);
            let _ = fast_connect::forget_inherited(old);
            fast_connect::give_away(old);
            // (What is known of the number is another socket's.)
            fast_connect::mark_fresh(new, fast_connect::ODD);
            // What is done to a socket through either number, its connect above all, is seen for
            // both.
            let both = match (e, unconnected::make_unconnected(old)) {
                (Entry::Listener(_), _) => e,
                (_, Some((s, g))) => {
                    let _ = s.count_names(g, |n| n.saturating_add(1));
                    Entry::Socket(s, g)
                }
                _ => Entry::None,
            };
            fd_table::set(new, both);
            agent::forget_told();
            if matches!(both, Entry::None) {
                fd_table::set(old, Entry::None);
            }
        }
        Entry::Ring(_) => io::lose_sight(),
        Entry::Marked(_) => adoption::share::lose(old),
        _ => {}
    }
}

/// `new` was taken from a process, by whatever number it has there: from this one, or from one that
/// has a socket of this one's, too.
#[cold]
pub(crate) fn on_taken_fd(new: c_int) {
    forget_stale(new);
    if !process::started() || process::in_vfork_child() {
        return;
    }
    let Some(inode) = sys::inode(new) else { return };
    let mut old = None;
    fd_table::for_each(|fd, entry| {
        // (A socket's inode is no other file's.)
        let is_socket = matches!(
            entry,
            Entry::Socket(..) | Entry::Fresh(_) | Entry::Listener(_) | Entry::Marked(_)
        );
        if is_socket && old.is_none() && sys::inode(fd) == Some(inode) {
            old = Some(fd);
        }
    });
    if let Some(old) = old {
        note_dup(old, new);
        io::off_stdio(new);
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
        _ => duplicate(fd, libc::F_DUPFD, 0),
    }
}

fn duplicate(fd: c_int, cmd: c_int, arg: usize) -> Ret {
    let by_vfork_child = process::in_vfork_child();
    if by_vfork_child {
        before_exec::before_dup_by_vfork_child(fd);
    }
    let new = numbered(|| sys::fcntl(fd, cmd, arg));
    if new >= 0 && !by_vfork_child {
        note_dup(fd, new as c_int);
        io::off_stdio(new as c_int);
    }
    new
}

pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> Ret {
    if old != new {
        looks::before_close(new, new);
    }
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
    if process::in_vfork_child() {
        before_exec::before_dup_by_vfork_child(old);
        return sys::dup3(old, new, flags.max(0));
    }
    if sys::fcntl(old, libc::F_GETFD, 0) < 0 {
        return -(libc::EBADF as Ret);
    }
    let tracked = match fd_table::decode(raw_new) {
        Entry::Socket(s, _) if s.has(socket::flag::TRACKED) => Some(s),
        _ => None,
    };
    let idle =
        |s: &socket::Socket| s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
    if let Some(s) = tracked.filter(|s| s.names() <= 1 && !idle(s)) {
        // A call goes on behind its last name, of which the marks say nothing then.
        adoption::passed::lose_track(s, new);
    }
    let tracked = tracked.filter(|s| s.names() > 1);
    if let Some(s) = tracked {
        adoption::before_one_of_several(s, new);
    }
    // What `new` named is closed first, with all that belongs to a close; the kernel replaces it in
    // one step.
    io_uring::closed_by_kernel(new);
    let r = numbered(|| sys::dup3(old, new, flags.max(0)));
    if r >= 0 {
        note_dup(old, r as c_int);
    } else if let Some(s) = tracked {
        adoption::after_one_of_several(s, new);
    }
    r
}

/// A flag of a socket's that has not been connected yet was set, or taken away, if the call has
/// succeeded.
pub(crate) fn note_flag(fd: c_int, raw: u64, r: Ret, flag: u32, is_set: bool) {
    if fast_connect::is_on() && r >= 0 && matches!(fd_table::decode(raw), Entry::Fresh(_)) {
        fast_connect::note_flag(fd, flag, is_set);
    }
}

/// F_SETFL on a connection whose carrier learns that later.
fn is_all_set(fd: c_int, flags: c_int) -> bool {
    let life = fd_table::socket(fd).filter(|(s, _)| s.life.load(Relaxed) > 1);
    let Some((s, _)) = life else { return false };
    if flags & !(libc::O_ACCMODE | libc::O_NONBLOCK) == 0 {
        return harmless::sets_nonblock(s, flags & libc::O_NONBLOCK != 0);
    }
    harmless::write_back(s, fd);
    false
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
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicate(fd, cmd, arg),
        libc::F_SETFD => {
            let r = sys::fcntl(fd, cmd, arg);
            note_flag(fd, raw, r, fast_connect::CLOEXEC, arg as c_int & libc::FD_CLOEXEC != 0);
            r
        }
        libc::F_GETFL if fast_connect::is_on() => {
            let life = fd_table::socket(fd).filter(|(s, _)| s.life.load(Relaxed) > 1);
            life.and_then(|(s, _)| harmless::status_flags(s)).map_or(PASS, |flags| flags as Ret)
        }
        libc::F_SETFL if fast_connect::is_on() && is_all_set(fd, arg as c_int) => 0,
        libc::F_SETFL => {
            let r = sys::fcntl(fd, cmd, arg);
            note_flag(fd, raw, r, fast_connect::NONBLOCK, arg as c_int & libc::O_NONBLOCK != 0);
            if arg as c_int & !(libc::O_ACCMODE | libc::O_NONBLOCK) != 0 {
                note_flag(fd, raw, r, fast_connect::ODD, true);
            }
            if r >= 0 && fast_connect::has_listeners() {
                let nonblock = arg as c_int & libc::O_NONBLOCK != 0;
                fast_connect::listener(fd).into_iter().for_each(|l| l.set_nonblock(nonblock));
            }
            if let Some((s, _)) = fd_table::socket(fd).filter(|_| r >= 0) {
                // (Who attaches it may have asked the kernel before.)
                socket::await_change(s);
                socket::set_nonblock(s, arg as c_int & libc::O_NONBLOCK != 0);
                if arg as c_int & libc::O_ASYNC != 0 {
                    io::need_kernel(fd, Reason::SocketOption);
                }
            } else if r >= 0 {
                fd_table::set_nonblock(fd, arg as c_int & libc::O_NONBLOCK != 0);
            }
            r
        }
        F_SETSIG | libc::F_SETOWN | F_SETOWN_EX => {
            io::need_kernel(fd, Reason::SocketOption);
            PASS
        }
        _ => PASS,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use std::sync::mpsc;

    /// A close that waits for the library this long goes on.
    const IN_TIME_NS: u64 = 8_000_000;

    /// Until the thread sleeps in the kernel, or is over.
    fn until_it_sleeps(tid: u32) {
        let stat = || std::fs::read_to_string(std::format!("/proc/self/task/{tid}/stat"));
        let runs = |stat: std::string::String| !stat.rsplit(") ").next().unwrap().starts_with('S');
        while stat().is_ok_and(runs) {
            std::thread::yield_now();
        }
    }

    /// The library makes a descriptor that stays on its number, while a close of that waits.
    /// Whether it is left alone; `None`: the close has not waited for so long.
    fn is_left_alone() -> Option<bool> {
        let (say, hear) = mpsc::channel();
        let closer = std::thread::spawn(move || {
            let (tell, fd): (mpsc::Sender<u32>, c_int) = hear.recv().unwrap();
            tell.send(process::tid()).unwrap();
            close_by_syscall(fd)
        });
        let (fd, in_time) = numbers::exclusively(|| {
            let began = sys::now_ns();
            let fd = sys::eventfd(0, libc::EFD_CLOEXEC) as c_int;
            let (tell, told) = mpsc::channel();
            say.send((tell, fd)).unwrap();
            until_it_sleeps(told.recv().unwrap());
            let in_time = sys::now_ns() - began < IN_TIME_NS;
            if in_time {
                fd_words::set(fd, fd_words::INTERNAL);
            }
            (fd, in_time)
        });
        let said = closer.join().unwrap();
        let is_there = sys::fcntl(fd, libc::F_GETFD, 0) >= 0;
        in_time.then_some(said == -(libc::EBADF as Ret) && is_there)
    }

    #[test]
    fn a_duplicate_beyond_the_table_has_what_is_unread() {
        use crate::path::tests::{A, C, close_both, promoted_within_the_host};
        /// (docs/manual/limits.md)
        const NUMBERS: c_int = 1_048_576;
        let mut ends = promoted_within_the_host();
        ends[C].send(C, 3000);
        let (fd, s, g) = (ends[A].fd, ends[A].socket, ends[A].socket.generation16());
        note_dup(fd, NUMBERS);
        assert!(!fd_table::is_named(NUMBERS, s, g) && s.is(socket::State::Plain));
        assert_eq!(s.names(), 1);
        let mut unread: c_int = 0;
        assert!(sys::ioctl(fd, libc::FIONREAD as usize, &raw mut unread as usize) >= 0);
        assert_eq!(unread, 3000, "the kernel has them, whoever asks");
        // What would still come is that one's to read, too: a close here is not the last.
        s.comes_until.store(u64::MAX, Relaxed);
        note_dup(fd, NUMBERS);
        assert_eq!(s.comes_until.load(Relaxed), 0);
        ends[A].receive_all(A, 3000);
        close_both(ends);
    }

    #[test]
    fn a_close_that_has_waited_for_the_library_leaves_it_what_it_has_made() {
        // (Other tests look at who has announced what, in this process.)
        assert!(crate::testing::in_child(|| {
            numbers::after_fork_in_child();
            (0..200).find_map(|_| is_left_alone()) == Some(true)
        }));
    }
}
