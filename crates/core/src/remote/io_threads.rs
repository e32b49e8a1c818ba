//! The threads `netacc-io`: they poll the completion queues while no application thread does.

use super::unwatch;
use crate::queues::{self, QUEUES, Queue};
use crate::{config, fd_table, numbers, sleep, stats, sys, thread};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicI32, AtomicU32};
use libc::epoll_event;
use netacc_control::config::Config;
use netacc_control::stats::Counter;

/// How long an I/O thread leaves the queues to threads of the application's that poll.
const OTHERS_POLL_NS: i64 = 1_000_000;
/// Most I/O threads.
const THREADS: usize = 64;
pub(super) static EPOLLS: [AtomicI32; THREADS] = [const { AtomicI32::new(-1) }; THREADS];
static THREAD_COUNT: AtomicU32 = AtomicU32::new(1);

/// Those that run.
#[derive(Default)]
pub(super) struct IoThreads {
    pub(super) started: usize,
}

impl IoThreads {
    /// The set that the I/O thread of a queue waits on. The thread is started if it is its first.
    pub(super) fn set_of(&mut self, number: usize, config: &Config) -> Option<c_int> {
        let count = (config.io_threads.max(1) as usize).min(THREADS);
        THREAD_COUNT.store(count as u32, Relaxed);
        let at = number % count;
        let place = EPOLLS.get(at)?;
        if at < self.started {
            return Some(place.load(Acquire));
        }
        let epoll = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
        if epoll < 0 {
            return None;
        }
        place.store(epoll, Release);
        if !thread::spawn(run_io, at as *mut c_void) {
            fd_table::close_internal(epoll);
            return None;
        }
        self.started = at + 1;
        Some(epoll)
    }
}

/// No I/O thread hears of that queue any more.
pub(super) fn forget(q: &Queue) {
    let count = THREAD_COUNT.load(Relaxed).max(1) as usize;
    if let Some(epoll) = EPOLLS.get(q.number % count) {
        unwatch(epoll.load(Acquire), q.hub.fd());
    }
}

pub(super) fn run_io(index: *mut c_void) -> *mut c_void {
    let index = index as usize;
    sys::block_all_signals();
    sys::name_thread(b"netacc-io\0");
    sys::set_affinity(&config::get().affinity);
    let epoll = EPOLLS.get(index).map_or(-1, |e| e.load(Acquire));
    let mut visits = [0u64; QUEUES];
    loop {
        let others_poll = visit(index, &mut visits);
        if !await_queues(epoll, if others_poll { OTHERS_POLL_NS } else { -1 }) {
            return core::ptr::null_mut();
        }
    }
}

/// Polls the armed queues of an I/O thread that got something. False: it can no longer wait.
pub(super) fn await_queues(epoll: c_int, timeout_ns: i64) -> bool {
    let mut events = [epoll_event { events: 0, u64: 0 }; QUEUES];
    // SAFETY: room for so many events; no mask.
    let n = unsafe {
        sleep::epoll_wait(
            epoll,
            events.as_mut_ptr(),
            QUEUES as c_int,
            timeout_ns,
            core::ptr::null(),
        )
    };
    if n < 0 && n != -(libc::EINTR as isize) {
        return false;
    }
    for e in events.iter().take(n.max(0) as usize) {
        let at = e.u64;
        // SAFETY: what `serve` registered: a queue, which lives for ever.
        let Some(q) = (unsafe { (at as *const Queue).as_ref() }) else { continue };
        stats::count(Counter::RdmaIoWakeups);
        // In this order: what is cleared belongs to an arming of before, and whoever found the
        // queue armed is told by this look.
        let _ = q.hub.clear();
        q.armed.store(false, SeqCst);
        q.drain();
    }
    true
}

/// Polls and arms the queues of an I/O thread that nobody else polls. True: somebody polls one, or
/// may.
pub(super) fn visit(index: usize, visits: &mut [u64; QUEUES]) -> bool {
    let count = THREAD_COUNT.load(Relaxed).max(1) as usize;
    let mut others_poll = false;
    for q in queues::queues().filter(|q| q.number % count == index) {
        let Some(seen) = visits.get_mut(q.number) else { continue };
        if q.armed.load(SeqCst) {
            q.flush();
            continue;
        }
        let now = q.visits.load(Relaxed);
        if now != *seen {
            *seen = now;
            others_poll = true;
            continue;
        }
        q.drain();
        q.arm();
        // What came before it was armed makes no noise.
        q.drain();
        q.flush();
        others_poll |= !q.armed.load(SeqCst);
    }
    others_poll
}
