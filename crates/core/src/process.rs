//! This process and its threads: their ids, whether the library has started in it, its forks.

use crate::outcome::NextSymbols;
use crate::{signals, sys};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

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
static NEXT: AtomicPtr<NextSymbols> = AtomicPtr::new(core::ptr::null_mut());

/// The constructor has run.
pub(crate) fn start(next: NextSymbols) {
    NEXT.store(Box::into_raw(Box::new(next)), Release);
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
    unsafe { NEXT.load(Acquire).as_ref() }.copied()
}

/// Serial number of this process.
#[inline(always)]
pub(crate) fn id() -> u32 {
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

/// In a forked child: its id and its parent's, and, where the parent is in a PID namespace outside,
/// the mark of this one.
pub(crate) fn become_child() -> (u32, Option<Foreign>) {
    // (The parent's id is 0 where it is in a namespace outside.)
    let foreign = sys::getppid() == 0;
    let mark = if foreign { new_mark() } else { id() & MARK };
    let parent = PROCESS.swap(sys::getpid() | mark, Relaxed);
    ENDS_UNTIL.store(0, Relaxed);
    (parent, foreign.then_some(Foreign(mark)))
}

/// In a process that goes on alone with the memory of one that has ended: what that one's threads
/// hold is nobody's.
pub(crate) fn become_keeper() {
    PROCESS.store(sys::getpid() | id() & MARK, Relaxed);
    // (What libc says of the thread is the other one's.)
    TID_OFFSET.store(0, Relaxed);
    FORKING.store(0, Relaxed);
}

/// The PID namespace of a child whose parent is in another one.
pub(crate) struct Foreign(u32);

impl Foreign {
    /// Ids of threads say nothing across the border, and stand in locks that both sides take: while
    /// `f` runs they have the mark.
    pub(crate) fn marked(self, f: impl FnOnce()) {
        let offset = TID_OFFSET.swap(0, Relaxed);
        THREAD_MARK.store(self.0, Relaxed);
        f();
        THREAD_MARK.store(0, Relaxed);
        TID_OFFSET.store(offset, Relaxed);
    }
}

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
    let held = signals::hold_back();
    let r = take_turn().then(|| {
        let r = f();
        give_turn();
        r
    });
    signals::go_on(held);
    r
}

/// As [`between_forks`]; the caller may be in it already, by this very thread.
pub(crate) fn while_nobody_forks<R>(f: impl FnOnce() -> R) -> Option<R> {
    if FORKING.load(Relaxed) == tid() { Some(f()) } else { between_forks(f) }
}

/// Before a fork, which this thread's turn it is for: see [`forked`].
pub(crate) fn before_fork() {
    let _ = take_turn();
}

/// The fork that is under way counts.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, AcqRel);
}

/// The fork is done, or has failed.
pub(crate) fn forked() {
    give_turn();
}

/// Whether a process of the family is alive. (Nobody can tell of one in another PID namespace: it
/// counts as alive.)
pub(crate) fn is_alive(other: u32) -> bool {
    (other ^ id()) & MARK != 0 || sys::alive(other & !MARK)
}

/// Whether the thread that holds a lock of the family's is alive. `None`: it is in another PID
/// namespace, and nobody can tell.
pub(crate) fn thread_is_alive(id: u32) -> Option<bool> {
    ((id ^ THREAD_MARK.load(Relaxed)) & MARK == 0).then(|| sys::alive(id & !MARK))
}

/// A new mark for the ids of this PID namespace.
fn new_mark() -> u32 {
    let mut bits = [0u8; 4];
    sys::random(&mut bits);
    1 << 30 | u32::from_ne_bytes(bits) & MARK
}

static CANCELS: AtomicBool = AtomicBool::new(false);

pub(crate) fn note_cancellation() {
    CANCELS.store(true, SeqCst);
}

/// The program has cancelled a thread, this or another.
pub(crate) fn threads_are_cancelled() -> bool {
    CANCELS.load(SeqCst)
}

/// Until when no connection comes onto a faster path, by the monotonic clock: the process ends, or
/// becomes another program. 0: it does not.
static ENDS_UNTIL: AtomicU64 = AtomicU64::new(0);

/// The process is about to end; for so long it may turn out that it goes on (an exec that fails).
pub(crate) fn is_about_to_end(for_ns: Option<u64>) {
    let until = for_ns.map_or(u64::MAX, |ns| sys::now_ns().saturating_add(ns));
    ENDS_UNTIL.fetch_max(until, SeqCst);
}

/// It does not end, as far as an exec is concerned.
pub(crate) fn goes_on() {
    let until = ENDS_UNTIL.load(SeqCst);
    if until != u64::MAX {
        let _ = ENDS_UNTIL.compare_exchange(until, 0, SeqCst, SeqCst);
    }
}

pub(crate) fn is_ending() -> bool {
    let until = ENDS_UNTIL.load(SeqCst);
    until != 0 && (until == u64::MAX || sys::now_ns() < until)
}

/// True in a child that shares this memory (vfork, posix_spawn): what it does to its descriptors is
/// not ours to note.
pub(crate) fn in_vfork_child() -> bool {
    sys::getpid() != id() & !MARK
}

/// The program has made a child that shares this memory, as far as the library sees that.
static VFORKED: AtomicBool = AtomicBool::new(false);

/// It is about to.
pub(crate) fn note_vfork() {
    VFORKED.store(true, Relaxed);
}

/// As [`in_vfork_child`], without a system call where no such child was seen to be made. (What
/// makes one by an instruction of its own is not seen.)
pub(crate) fn may_be_vfork_child() -> bool {
    VFORKED.load(Relaxed) && in_vfork_child()
}
