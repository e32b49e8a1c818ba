//! The thread "netacc-rdma" (`remote`), as data calls and waits know it: whether it runs, its bell,
//! and what it is to look at when it has been woken for.

use crate::{config, fd_words, process, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use netacc_ring::sleepers;

/// The process that the thread runs in; 0: none.
pub(crate) static RUNNING: AtomicU32 = AtomicU32::new(0);
pub(crate) static BELL: AtomicI32 = AtomicI32::new(-1);
/// The thread has not heard the bell yet.
pub(crate) static WOKEN: AtomicBool = AtomicBool::new(false);

/// This process has, or had, connections to other hosts that can be accelerated.
pub(crate) fn is_running() -> bool {
    RUNNING.load(Acquire) == process::id()
}

/// Wakes the thread.
pub(crate) fn wake() {
    if is_running() && !WOKEN.swap(true, SeqCst) {
        let _ = sys::write(BELL.load(Acquire), &1u64.to_ne_bytes());
    }
}

// ---- pairs --------------------------------------------------------------------------------------

/// A pair has something to tell the thread.
pub(crate) static PAIR_NEWS: AtomicBool = AtomicBool::new(false);

/// The thread is to look at the pairs.
pub(crate) fn tell_of_pairs() {
    PAIR_NEWS.store(true, SeqCst);
    wake();
}

/// Whether any pair has had news since the last question.
pub(crate) fn take_pair_news() -> bool {
    PAIR_NEWS.swap(false, SeqCst)
}

// ---- connections that leave ---------------------------------------------------------------------

/// Connections that are to go back to their carriers; a futex.
pub(crate) static LEAVING: AtomicU32 = AtomicU32::new(0);

/// One more is to leave.
pub(crate) fn count_leaving() {
    LEAVING.fetch_add(1, SeqCst);
}

/// One that was asked to has left, or needs not any more.
pub(crate) fn uncount_leaving() {
    LEAVING.fetch_sub(1, SeqCst);
    sys::futex_wake(&LEAVING, i32::MAX, true);
}

// ---- what is looked at from time to time --------------------------------------------------------

/// What the thread looks at again and again while something happens, and not at all otherwise.
pub(crate) struct Watch {
    /// The thread looks within the time.
    on: sleepers::Watch,
    /// When it is to look, as long as it does not know; 0: it does.
    at: AtomicU64,
}

/// Bytes that have come, and may lie unread.
pub(crate) static UNREAD: Watch = Watch::new();
/// Messages that were posted, and may not arrive.
pub(crate) static POSTED: Watch = Watch::new();

/// How long bytes lie before the thread looks whether they are read.
const UNREAD_NS: u64 = 1_000_000_000;

impl Watch {
    const fn new() -> Watch {
        Watch { on: sleepers::Watch::new(), at: AtomicU64::new(0) }
    }

    /// The thread is to look after so long; 0: never.
    #[cold]
    #[inline(never)]
    fn begin(&self, after_ns: u64) {
        if after_ns != 0 {
            self.at.store(sys::now_ns().saturating_add(after_ns), SeqCst);
            wake();
        }
    }

    /// The thread: when to look, if it does not know that yet; 0: it does.
    pub(crate) fn take_at(&self) -> u64 {
        self.at.swap(0, SeqCst)
    }

    /// The thread begins to look; what happens from here on is looked at again.
    pub(crate) fn begin_look(&self) {
        self.on.begin_look();
    }

    /// The thread has found what is worth another look after so long. Returns when; 0: it will be
    /// told.
    pub(crate) fn look_again(&self, after_ns: u64) -> u64 {
        if self.on.look_again() { sys::now_ns().saturating_add(after_ns) } else { 0 }
    }

    fn forget(&self) {
        self.on.forget();
        self.at.store(0, Relaxed);
    }
}

/// Bytes have come from another host, and somebody was looked for who waits for them
/// ([`announce_here`](crate::channel::Channel::announce_here) has a fence): one load, nearly
/// always.
#[inline]
pub(crate) fn watch_unread_fenced() {
    if UNREAD.on.on_news_fenced() {
        UNREAD.begin(UNREAD_NS);
    }
}

/// The thread has found unread bytes. Returns when to look again; 0: it will be told.
pub(crate) fn look_at_unread_again() -> u64 {
    UNREAD.look_again(UNREAD_NS)
}

/// Something was posted, perhaps: one load, nearly always. (The turn that it was posted in has
/// ended by then, with an instruction that nothing passes: what the thread sees as not watched it
/// sees as posted.)
#[inline]
pub(crate) fn watch_posted() {
    if POSTED.on.on_news_fenced() {
        POSTED.begin(posted_ns());
    }
}

/// When the thread looks at what is posted by now.
pub(crate) fn posted_ns() -> u64 {
    stall_ns() / 8
}

/// For how long nothing may arrive on a pair; 0: for ever.
pub(crate) fn stall_ns() -> u64 {
    u64::from(config::get().rdma_stall_ms) * 1_000_000
}

// ---- fork ---------------------------------------------------------------------------------------

/// How often the process had forked when the thread started: children of later forks can call it.
static FORKS_BEFORE: AtomicU32 = AtomicU32::new(0);
/// This process, as its forked children see whether it lives (pidfd_open(2)), whatever PID
/// namespace they are in.
static LIFE: AtomicI32 = AtomicI32::new(-1);

/// What a forked child has of a process of which it inherited connections.
struct Parent {
    process: AtomicU32,
    bell: AtomicI32,
    life: AtomicI32,
}

/// In a forked child: its parent, and older ancestors that had the thread.
static PARENTS: [Parent; 4] = [const {
    Parent { process: AtomicU32::new(0), bell: AtomicI32::new(-1), life: AtomicI32::new(-1) }
}; 4];
/// What a child adds to a parent's bell.
pub(crate) const CHILD: u64 = 1 << 32;

/// The thread is about to start, and hears this bell. `life`: makes what [`LIFE`] says.
pub(crate) fn hang_bell(bell: c_int, life: impl FnOnce() -> c_int) {
    if LIFE.load(Relaxed) < 0 {
        LIFE.store(life(), Relaxed);
    }
    BELL.store(bell, SeqCst);
    // After that: a fork that is not counted here yet copies the bell.
    FORKS_BEFORE.store(process::forks(), SeqCst);
}

/// In a forked child, which uses a connection that `maker` has made, between hosts: the maker takes
/// it back to the carrier. Nothing else of it is touched here; what the maker has mapped since the
/// fork this process does not even have.
pub(crate) fn call_back(maker: u32) {
    if let Some(bell) = parent(maker).map(|p| p.bell.load(Acquire)) {
        let _ = sys::write(bell, &CHILD.to_ne_bytes());
    }
}

fn parent(id: u32) -> Option<&'static Parent> {
    PARENTS.iter().find(|p| p.bell.load(Acquire) >= 0 && p.process.load(Relaxed) == id)
}

/// In a forked child: whether the process `maker` can still be called.
pub(crate) fn is_alive(maker: u32) -> bool {
    let Some(life) = parent(maker).map(|p| p.life.load(Acquire)) else { return false };
    // (It is readable when the process has ended. Without one: Linux before 5.3.)
    if life >= 0 { sys::poll_now(life, libc::POLLIN) == 0 } else { process::is_alive(maker) }
}

/// Whether every child that has a connection which this process has made after `forks` forks can
/// call it back. (One that was forked before the thread started cannot.)
pub(crate) fn can_be_called(forks: u32) -> bool {
    let since = |other: u32| forks.wrapping_sub(other).cast_signed() >= 0;
    since(process::forks()) || (is_running() && since(FORKS_BEFORE.load(Acquire)))
}

/// Nobody calls a parent any more.
pub(crate) fn give_up_inherited() {
    for p in &PARENTS {
        for fd in [p.bell.swap(-1, AcqRel), p.life.swap(-1, AcqRel)] {
            if fd >= 0 {
                fd_words::close_internal(fd);
            }
        }
    }
}

/// In a forked child there is no such thread, and nothing for one to do.
pub(crate) fn after_fork_in_child(parent: u32) {
    UNREAD.forget();
    POSTED.forget();
    LEAVING.store(0, Relaxed);
    RUNNING.store(0, Release);
    let (mut process, mut bell, mut life) = (parent, BELL.swap(-1, AcqRel), LIFE.swap(-1, AcqRel));
    if bell >= 0 {
        for p in &PARENTS {
            process = p.process.swap(process, AcqRel);
            bell = p.bell.swap(bell, AcqRel);
            life = p.life.swap(life, AcqRel);
        }
    }
    // (The oldest, which are one too many; or of a process whose thread never came to be.)
    for fd in [bell, life] {
        if fd >= 0 {
            fd_words::close_internal(fd);
        }
    }
}
