//! A forked child that changes its user gives up what it inherited of its parent's
//! (`docs/design/memory.md`).
//!
//! What a child shares with its parent lets it write where the parent reads. As long as both are
//! the same user that gives the child nothing that it has not anyway. A child that is about to
//! become somebody else may be taken over later, by whom it serves: before it has changed, it has
//! nothing of its parent's any more. Connections that it has go on, on TCP or as its own
//! ([`crate::adoption`]).
//!
//! Known by the calls that change a user or its capabilities, or confine the process (chroot,
//! prctl, seccomp, unshare: `docs/design/memory.md`). A process that was not forked, or was forked
//! by one without connections, has nothing to give up, and pays one load.
//!
//! The configuration is read before that, too: where the process goes it may not find the file, or
//! not be allowed to read it, and a rule in it would be lost.

use crate::fd_table::{self, Entry};
use crate::lock::Mutex;
use crate::log::{debug_log, warn_log};
use crate::socket::{self, Socket, State, flag};
use crate::{adoption, agent, candidates, config, fast_connect, io, process, shared, stats, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering::*};
use netacc_control::stats::Reason;

/// This process has memory or descriptors of its parent's.
static HAS: AtomicBool = AtomicBool::new(false);
/// One at a time; a thread that finds it taken waits until all is given up.
static GIVING: Mutex<()> = Mutex::new(());

/// How long connections are waited for, all together: for the parent to close what it leaves to
/// this process, and for bytes in a ring to be sent again.
const PARENT_NS: u64 = 5_000_000;
const ALL_NS: u64 = 200_000_000;

pub(crate) fn after_fork_in_child() {
    HAS.store(shared::after_fork_in_child(), Relaxed);
}

/// The process is about to change its user, a group, a capability or its user namespace.
#[inline]
pub(crate) fn before_change() {
    if !process::may_be_vfork_child() {
        config::read_now();
    }
    // What peers were told, they were told as that user.
    agent::forget_told();
    fast_connect::forget_prepared();
    if process::started() && !process::may_be_vfork_child() {
        agent::each(|agent| agent.before_rights_change());
    }
    if HAS.load(Relaxed) {
        give_up();
    }
}

#[cold]
#[inline(never)]
fn give_up() {
    if !process::started() || process::in_vfork_child() {
        return;
    }
    let signals = sys::hold_signals();
    {
        let _one = GIVING.lock();
        if HAS.load(Relaxed) {
            let begin = sys::now_ns();
            fd_table::for_each(|fd, entry| {
                if let Entry::Socket(s, g) = entry {
                    give_up_connection(s, g, fd, begin);
                }
            });
            adoption::forget_parent();
            agent::each(|agent| agent.give_up_inherited());
            // Last: nothing names it any more.
            stats::give_up_inherited();
            shared::give_up_inherited(socket::give_up_slab);
            HAS.store(false, Relaxed);
            debug_log!("what was inherited is given up: the process changes its user");
        }
    }
    sys::restore_signals(signals);
}

/// One descriptor's. Afterwards the table knows nothing of it, or a socket in this process's own
/// memory.
fn give_up_connection(mut s: &'static Socket, mut g: u16, fd: c_int, begin: u64) {
    if s.is_inherited() {
        loop {
            match s.state.now() {
                _ if s.generation16() != g => break,
                State::Candidate if adoption::share::share(s, g, fd) => {
                    // Asked now, or never: the next thing that the process gives up may be the call
                    // that asks.
                    return wait_for_parent(begin, || adoption::share::take(fd));
                }
                State::Candidate | State::Left if adoption::adopt(s, g, fd) => break,
                State::Candidate | State::Left => {}
                State::Closing => socket::await_close(s),
                State::Changing if socket::await_change(s) => {}
                State::Attached if to_carrier(s, g, fd, begin) => break,
                State::Attached => return replace(fd, Entry::Socket(s, g)),
                State::Unconnected => {
                    let _ = fd_table::replace(
                        fd,
                        fd_table::encode(Entry::Socket(s, g)),
                        Entry::Fresh(Reason::InheritedByFork as u32),
                    );
                    return;
                }
                // (Adopted, too: another thread has done so, and the table has the heir.)
                _ => break,
            }
        }
        match fd_table::get(fd) {
            Entry::Socket(now, h) if !now.is_inherited() => (s, g) = (now, h),
            // The kernel's alone.
            entry => {
                fd_table::take(fd, fd_table::encode(entry));
                return;
            }
        }
    }
    if s.has(flag::UNSETTLED) && s.is(State::Candidate) {
        // Whether nobody else has it is seen in the parent's memory: now, or never. A parent that
        // leaves it to this process closes it behind its fork.
        wait_for_parent(begin, || adoption::go_alone(s, fd) || !s.is(State::Candidate));
        if s.has(flag::UNSETTLED) && s.generation16() == g {
            candidates::make_plain(s, adoption::why(s));
        }
    }
}

/// A parent that leaves a connection to its child closes it behind the fork.
fn wait_for_parent(begin: u64, done: impl Fn() -> bool) {
    while !done() && sys::now_ns().saturating_sub(begin) < PARENT_NS {
        sys::pause_ns(50_000);
    }
}

/// An attached connection of the parent's goes back to the carrier, for both. False: it cannot, in
/// time.
fn to_carrier(s: &'static Socket, g: u16, fd: c_int, begin: u64) -> bool {
    loop {
        if io::to_kernel(s, g, fd, Reason::InheritedByFork, false) {
            return true;
        }
        if sys::now_ns().saturating_sub(begin) > ALL_NS {
            return false;
        }
        sys::pause_ns(500_000);
    }
}

/// Bytes that only the parent's memory has cannot follow. This process's descriptor becomes one
/// that fails at each call: an error that is seen, never a gap in the stream. The parent's
/// connection is untouched.
#[cold]
fn replace(fd: c_int, entry: Entry) {
    warn_log!(
        "fd {fd}: what its parent has of it cannot follow a process that changes its user: it fails from here on"
    );
    fd_table::take(fd, fd_table::encode(entry));
    let cloexec = if sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0 {
        libc::O_CLOEXEC
    } else {
        0
    };
    let status = sys::fcntl(fd, libc::F_GETFL, 0) as c_int & libc::O_NONBLOCK;
    let dead =
        sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | status, 0) as c_int;
    if dead >= 0 {
        let _ = sys::dup3(dead, fd, cloexec);
        let _ = sys::close(dead);
    } else {
        let _ = sys::close(fd);
    }
}
