//! The off-switch: acceleration is turned off while the program runs (`docs/design/cfg.md`).

use super::blocking::Blocking;
use super::kept::retire_all;
use super::leave::{PULL_BACK_NS, Patience, to_kernel_within};
use crate::fd_table::{self, Entry};
use crate::socket::{Socket, State};
use crate::{config, sys, thread};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use netacc_control::stats::Reason;

/// How often it was wanted.
static WANTED: AtomicU32 = AtomicU32::new(0);
/// A thread is at it.
static AT_WORK: AtomicBool = AtomicBool::new(false);
/// For so long the peers of all connections together are waited for: some may be stopped, and have
/// as many as they like.
const ALL_NS: u64 = 1_000_000_000;

/// Every connection of this process's goes back to its carrier, for good. The configuration says
/// already that none is to be accelerated, so what is made meanwhile stays there by itself.
///
/// In a thread of its own: a peer's thread "netacc" is waited for, and that may be waiting for this
/// process's, to do the same.
pub(crate) fn take_all_back() {
    WANTED.fetch_add(1, SeqCst);
    if AT_WORK.swap(true, SeqCst) {
        return;
    }
    // In this thread where no other can be had: it takes longer then.
    if !thread::spawn(run, core::ptr::null_mut()) {
        work();
    }
}

/// In a forked child: nobody is at it.
pub(crate) fn forget() {
    AT_WORK.store(false, Relaxed);
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-off\0");
    work();
    core::ptr::null_mut()
}

fn work() {
    loop {
        let wanted = WANTED.load(SeqCst);
        retire_all();
        // Every peer is asked before one is waited for.
        for_each(|s, g, fd| take_back(s, g, fd, 0));
        let until = sys::now_ns().saturating_add(ALL_NS);
        for_each(|s, g, fd| {
            let left = until.saturating_sub(sys::now_ns());
            take_back(s, g, fd, left.min(PULL_BACK_NS));
        });
        AT_WORK.store(false, SeqCst);
        // Who has wanted it since has relied on this thread.
        if WANTED.load(SeqCst) == wanted || AT_WORK.swap(true, SeqCst) {
            return;
        }
    }
}

/// Each connection, unless it has been turned on again.
fn for_each(mut f: impl FnMut(&'static Socket, u16, c_int)) {
    fd_table::for_each(|fd, entry| {
        if let Entry::Socket(s, g) = entry
            && !config::get().accelerate_by_default
        {
            f(s, g, fd);
        }
    });
}

/// A forked child's is its maker's to take back. What is not connected yet is looked at when it is.
fn take_back(s: &'static Socket, g: u16, fd: c_int, patience_ns: u64) {
    if s.is_inherited() || s.is(State::Unconnected) {
        return;
    }
    // A close in another thread leaves it as it is until this has ended.
    let _under_way = Blocking::new(s, g);
    if fd_table::is_named(fd, s, g) {
        let patience = Patience::Within(patience_ns);
        let _ = to_kernel_within(s, g, fd, Reason::DisabledByConfig, patience);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use crate::path::tests::{
        A, C, candidate_within_the_host, close_both, promoted_within_the_host, talk,
    };
    use netacc_control::stats::Path;

    #[test]
    fn a_candidate_becomes_plain_and_says_why() {
        let ends = candidate_within_the_host();
        for who in [A, C] {
            let s = ends[who].socket;
            take_back(s, s.generation16(), ends[who].fd, PULL_BACK_NS);
            assert!(s.is(State::Plain));
            let record = s.record().unwrap();
            assert_eq!(record.reason.load(Relaxed), Reason::DisabledByConfig as u32);
            assert_eq!(record.tx_path.load(Relaxed), Path::Tcp as u32);
            assert_eq!(s.waiters.load(SeqCst), 0);
            // Of a life that is over nothing is touched.
            take_back(s, s.generation16().wrapping_sub(1), ends[who].fd, PULL_BACK_NS);
            take_back(s, s.generation16(), -1, PULL_BACK_NS);
            assert_eq!(s.waiters.load(SeqCst), 0);
        }
        close_both(ends);
    }

    #[test]
    fn what_lies_in_a_ring_is_read_and_the_rest_comes_over_tcp() {
        let mut ends = promoted_within_the_host();
        ends[C].send(C, 5_000);
        ends[A].send(A, 3_000);
        let (a, c) = (ends[A].socket, ends[C].socket);
        // Asked first, with bytes unread, and then waited for.
        take_back(a, a.generation16(), ends[A].fd, 0);
        take_back(a, a.generation16(), ends[A].fd, PULL_BACK_NS);
        ends[A].receive_all(A, 5_000);
        ends[C].receive_all(C, 3_000);
        let began = std::time::Instant::now();
        while !a.is(State::Plain) {
            assert!(began.elapsed() < std::time::Duration::from_secs(20));
            talk(&mut ends, 64);
        }
        // The other end stays where it was until somebody turns its process's off, too.
        take_back(c, c.generation16(), ends[C].fd, PULL_BACK_NS);
        assert!(c.is(State::Plain));
        talk(&mut ends, 100_000);
        assert_eq!(a.waiters.load(SeqCst) + c.waiters.load(SeqCst), 0);
        close_both(ends);
    }
}
