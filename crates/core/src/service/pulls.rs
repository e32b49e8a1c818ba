//! Pull-backs of which not all found room on the carrier at once: one passing thread sends the rest
//! of all of them.

use crate::io::PullBack;
use crate::lock::Mutex;
use crate::{signals, sleep, sys, thread};
use alloc::vec::Vec;
use core::ffi::c_void;
use core::mem::take;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use libc::pollfd;

/// Pull-backs that found no room while others waited for theirs are joined to these after so long.
const JOINED_NS: i64 = 100_000_000;

pub(super) struct Pulls {
    list: Mutex<List>,
    /// Counts those that have ended; a futex.
    ended: AtomicU32,
    /// The thread "netacc" is to start a helper.
    due: AtomicBool,
    /// A thread is started for them (not in tests of services that are turned by hand).
    threaded: bool,
}

struct List {
    /// Those under way. Not empty: a helper serves them, or is due. (The one that it is at is
    /// `None`.)
    under_way: Vec<Option<PullBack>>,
    /// So many more have their room.
    promised: usize,
}

impl Pulls {
    pub(super) const fn new(threaded: bool) -> Pulls {
        Pulls {
            list: Mutex::new(List { under_way: Vec::new(), promised: 0 }),
            ended: AtomicU32::new(0),
            due: AtomicBool::new(false),
            threaded,
        }
    }

    /// In the thread "netacc". `serve`: returns what found no room on the carrier. False: it was
    /// not called, for want of memory to note that; the peer has no answer then, and asks again.
    pub(super) fn serve(&self, serve: impl FnOnce() -> Option<PullBack>) -> bool {
        let Some(is_first) = self.note(serve) else { return false };
        if is_first {
            self.start();
        }
        true
    }

    /// As [`Pulls::serve`], in a thread of the application's, which starts none: it may have
    /// interrupted libc. True: the thread "netacc" is to be woken.
    pub(super) fn serve_before_fin(&self, serve: impl FnOnce() -> Option<PullBack>) -> bool {
        let held = signals::hold_back();
        let is_due = self.note(serve) == Some(true);
        if is_due {
            self.due.store(true, SeqCst);
        }
        signals::go_on(held);
        is_due
    }

    /// The helper that is due cannot be had: the ends of these connections are resets.
    pub(super) fn give_up(&self) {
        let held = signals::hold_back();
        if self.takes_due() {
            let given_up = self.list.lock_unless_mine().map(|mut list| take(&mut list.under_way));
            drop(given_up);
        }
        signals::go_on(held);
    }

    /// Starts the helper that an application's thread wants.
    pub(super) fn start_if_due(&self) {
        if self.takes_due() {
            self.start();
        }
    }

    /// One alone sees to what is due.
    fn takes_due(&self) -> bool {
        self.due.load(SeqCst) && self.due.swap(false, SeqCst)
    }

    /// Whether it is the first, and nobody sends on. (Without the lock while it serves: that takes
    /// the lock of a connection's end, which a thread may hold for long.)
    fn note(&self, serve: impl FnOnce() -> Option<PullBack>) -> Option<bool> {
        {
            let mut list = self.list.lock_unless_mine()?;
            let more = list.promised + 1;
            list.under_way.try_reserve(more).ok()?;
            list.promised = more;
        }
        let rest = serve();
        let mut list = self.list.lock();
        list.promised = list.promised.saturating_sub(1);
        let Some(rest) = rest else { return Some(false) };
        list.under_way.push(Some(rest));
        Some(list.under_way.len() == 1)
    }

    fn start(&self) {
        let own = core::ptr::from_ref(self).cast_mut().cast();
        // In this thread where no other can be had.
        if !(self.threaded && thread::spawn(run, own)) {
            self.send_on();
        }
    }

    /// Sends what is noted, and what comes meanwhile, until nothing is left.
    fn send_on(&self) {
        let mut waiting: Vec<pollfd> = Vec::new();
        loop {
            let mut i = 0;
            waiting.clear();
            loop {
                // One at a time, and without the lock while it sends. It stays in its place for
                // that: the list must not look empty.
                let Some(pull) = self.list.lock().under_way.get_mut(i).map(Option::take) else {
                    break;
                };
                let more = pull.as_ref().and_then(PullBack::go_on);
                let mut list = self.list.lock();
                match (more, list.under_way.get_mut(i)) {
                    (Some(fd), Some(place)) => {
                        *place = pull;
                        // (Those that there is no room for are looked at after a while.)
                        if waiting.try_reserve(1).is_ok() {
                            waiting.push(pollfd { fd, events: libc::POLLOUT, revents: 0 });
                        }
                        i += 1;
                    }
                    _ => {
                        list.under_way.swap_remove(i);
                        let was_last = list.under_way.is_empty();
                        drop(list);
                        drop(pull);
                        self.ended.fetch_add(1, Release);
                        sys::futex_wake(&self.ended, i32::MAX, true);
                        if was_last {
                            return;
                        }
                    }
                }
            }
            // SAFETY: valid pollfds; no mask. (One whose number was closed meanwhile costs a turn.)
            unsafe {
                sleep::ppoll(waiting.as_mut_ptr(), waiting.len(), JOINED_NS, core::ptr::null())
            };
        }
    }

    /// Waits until none is under way.
    pub(super) fn finish(&self, limit_ns: u64) {
        let until = sys::now_ns().saturating_add(limit_ns);
        loop {
            let seen = self.ended.load(Acquire);
            // (Not for ever, should this be a handler that interrupted the lock's holder.)
            let none = self.list.try_lock().is_some_and(|list| list.under_way.is_empty());
            let left = until.saturating_sub(sys::now_ns());
            if none || left == 0 {
                return;
            }
            sys::futex_wait(&self.ended, seen, left.min(10_000_000) as i64, true);
        }
    }

    /// What the parent sends again is the parent's: never dropped here.
    pub(super) fn after_fork_in_child(&self) {
        let none = List { under_way: Vec::new(), promised: 0 };
        core::mem::forget(core::mem::replace(&mut *self.list.lock(), none));
        self.due.store(false, Relaxed);
    }
}

fn run(pulls: *mut c_void) -> *mut c_void {
    // SAFETY: what `start` passed: a service's, which lives for ever.
    let pulls = unsafe { &*pulls.cast::<Pulls>() };
    sys::block_all_signals();
    sys::name_thread(b"netacc-pull\0");
    pulls.send_on();
    core::ptr::null_mut()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;
    use crate::io;
    use crate::path::tests::{A, C, End, promoted_within_the_host};

    /// Both buffers are small, and the peer has frozen with more than they take.
    fn asked_for_more_than_there_is_room_for() -> [End; 2] {
        let mut ends = promoted_within_the_host();
        for (end, room) in [(A, libc::SO_RCVBUF), (C, libc::SO_SNDBUF)] {
            assert!(sys::setsockopt(ends[end].fd, libc::SOL_SOCKET, room, &4096i32) >= 0);
        }
        io::freeze_of(ends[A].socket);
        ends[C].send(C, 30_000);
        ends
    }

    #[test]
    fn what_is_due_is_given_up_or_sent_and_never_both() {
        for gives_up in [true, false] {
            let mut ends = asked_for_more_than_there_is_room_for();
            let s = ends[C].socket;
            let (channel, slot) = (s.channel().unwrap(), s.slot.load(Relaxed) as usize);
            let pulls = Pulls::new(false);
            assert!(pulls.serve_before_fin(|| io::serve_pull_back(channel, slot)));
            assert_eq!(s.waiters.load(SeqCst), 1, "a close leaves the carrier to it");
            std::thread::scope(|scope| {
                if gives_up {
                    pulls.give_up();
                } else {
                    let reader = scope.spawn(|| ends[A].receive_all(A, 30_000));
                    pulls.start_if_due();
                    reader.join().unwrap();
                }
            });
            assert_eq!(s.waiters.load(SeqCst), 0);
            // Nothing is due: neither waits for anything, nor finds anything.
            pulls.start_if_due();
            pulls.give_up();
            pulls.finish(u64::MAX);
            ends.iter_mut().for_each(End::close);
        }
    }
}
