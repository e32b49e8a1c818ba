//! Fork: what is done before it, and behind it in each of the two processes. The handlers of
//! pthread_atfork call these functions, and so does the hook of `_Fork`.
//!
//! Both processes have every connection then. Who goes on with one: `adoption` for a candidate. A
//! child that uses an attached one takes it back to its carrier (`io/send.rs` `leave_to_send`,
//! `io/receive.rs` `recv_inherited`): within a host by itself; over RDMA and utcp it calls the
//! process that made it, and waits (`await_carrier`, `PathId::call_maker`).

use crate::fd_table::{self, Entry};
use crate::socket::{self, harmless};
use crate::{
    adoption, agent, epoll, fast_connect, host, io, numbers, process, rights, stats, thread, trace,
    wait,
};

/// A fork begins, in the thread that forks. `netacc-rdma` stands still until it is done, and
/// connections on utcp go back to the kernel first. The thread `netacc` goes on, and the child
/// trusts none of its work. The application's threads go on, and [`forget_what_was_not_counted`]
/// undoes in the child what they do meanwhile.
pub(crate) fn fork_prepare() {
    process::before_fork();
    agent::each(|agent| agent.before_fork());
    adoption::before_fork();
    fast_connect::give_away_all();
    epoll::before_fork();
    process::count_fork();
    // Both processes will hold every socket: counted before either can close.
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, g) = entry {
            let _ = s.count_names(g, |n| n.saturating_add(1));
            harmless::write_back(s, fd);
            if s.has(socket::flag::TRACKED) {
                adoption::passed::lose_track(s, fd);
            }
            fd_table::note_counted(fd, fd_table::encode(entry));
        } else if let Entry::Marked(_) = entry {
            adoption::share::lose(fd);
        }
    });
    numbers::before_fork();
}

/// It is done, in the parent.
pub(crate) fn fork_parent() {
    numbers::after_fork_in_parent();
    forked();
    fast_connect::share(io::give_up_listener);
    fd_table::for_each(|_, entry| {
        if let Entry::Socket(s, _) = entry
            && s.is(socket::State::Attached)
        {
            wait::after_fork_in_parent(s);
        }
    });
    stats::count(netacc_control::stats::Counter::Forks);
}

fn forked() {
    agent::each(|agent| agent.after_fork());
    process::forked();
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

/// It is done, in the child, which has this thread alone.
pub(crate) fn fork_child() {
    let (parent, foreign) = process::become_child();
    thread::forget_starting();
    forked();
    numbers::after_fork_in_child();
    if !process::started() {
        return;
    }
    let inherits = forget_what_was_not_counted();
    agent::each(|agent| agent.in_child(parent));
    fast_connect::after_fork_in_child();
    wait::after_fork_in_child();
    adoption::after_fork_in_child(inherits);
    socket::after_fork_in_child();
    host::after_fork_in_child();
    crate::faults::after_fork_in_child();
    stats::after_fork_in_child();
    trace::after_fork_in_child();
    rights::after_fork_in_child();
    if let Some(foreign) = foreign {
        // Nothing stays shared.
        foreign.marked(rights::before_change);
    }
}
