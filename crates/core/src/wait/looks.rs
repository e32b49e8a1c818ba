//! Looking at the kernel's sockets again before a sleep: for connections on TCP, whose peers have
//! no library.
//!
//! A wait that would sleep makes its own system call without waiting, again and again for some ten
//! microseconds. What that saves is the wake-up on another CPU. The first look takes the place of
//! the call; only where it finds nothing, and the thread would sleep, do more follow.
//!
//! Whether that pays is learned where it costs nothing: the thread's sleeps are timed. News that
//! ends several sleeps in a row as soon as a poll would have is worth looking for. Looks that are
//! in vain are fewer the next time, and soon none. So a wait for a peer that is slow, or silent,
//! makes no system call more.
//!
//! Not here: who else wants the CPU ([`mod@super::spin`]). `docs/design/waiting.md` has the policy.

use super::spin::{self, Poll, Polled};
use crate::socket::Limit;
use crate::{config, inject, numbers, process, signals, stats, sys, trace};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
pub(crate) use lookers::NUMBERS;
use lookers::{Lookers, SEATS};
use netacc_control::config::Key;
use netacc_control::stats::Counter;

/// Longest time that a wait looks, nanoseconds: about what a wake-up costs, both ways.
const CAP_NS: u32 = 60_000;
/// Who would look for less sleeps.
const LEAST_NS: u32 = 8_000;
/// A sleep is this much longer than the looks that would have found the same: its own wake-up.
const WAKE_NS: u32 = 40_000;
/// What ends sooner has not slept.
const AT_ONCE_NS: u32 = 2_000;
/// So many sleeps in a row that end soon make a thread look, at first and at last: each time that
/// it gives up without much success it takes twice as many.
const SOON: u32 = 8;
const SOON_MAX: u32 = 1 << 12;
/// So much success is much.
const MANY: u32 = 32;
/// A thread looks only while it waits for so much of its time, one in so many parts: at first, and
/// later, where news that is looked for comes sooner. One that works nearly all the time finds the
/// more at once the later it asks, and the fewer calls it needs.
const IDLE_AT_FIRST: u64 = 3;
const IDLE_LATER: u64 = 6;
/// How many waits with looks that is judged by.
const JUDGED: u32 = 64;
/// How long it keeps the CPU before it makes room: its peer may wait for this one.
const TURN_NS: u64 = 1_000;
/// Waits with a time-out that is shorter do not look: it would be too late by that.
const SHORTEST_TIMEOUT_NS: i64 = 1_000_000;

/// What the waits of one thread for one descriptor have shown. (A hash collision just mixes two.)
pub(crate) struct Habit {
    /// For how long the next wait looks; 0: it sleeps, and its sleep is timed.
    budget_ns: AtomicU32,
    /// Sleeps in a row that have ended soon, and how many it takes; 0: [`SOON`].
    soon: AtomicU32,
    needed: AtomicU32,
    /// Looks that paid since it began to look, or since strangers last had the CPU.
    won: AtomicU32,
    /// The time that it has waited, and that it has not, in the waits that are counted in `soon`,
    /// or since `judged` was 0 ([`sys::ticks`]); and when the last of them ended.
    waited: AtomicU64,
    worked: AtomicU64,
    ended: AtomicU64,
    judged: AtomicU32,
}

const HABITS: usize = 256;
static ALL: [Habit; HABITS] = [const { Habit::new() }; HABITS];
static NOBODY: Habit = Habit::new();

/// What is known of whether this process may look: nothing; that it may; that it must not.
const UNKNOWN: u8 = 0;
const ALLOWED: u8 = 1;
const FORBIDDEN: u8 = 2;
static MAY_LOOK: AtomicU8 = AtomicU8::new(UNKNOWN);

/// From here on no wait of this process looks: a system call that its program does not make may end
/// it, or its threads may end at any instruction.
pub(crate) fn forbid() {
    MAY_LOOK.store(FORBIDDEN, SeqCst);
}

/// A thread has asked to be cancelled at any instruction.
static ASYNCHRONOUS: AtomicBool = AtomicBool::new(false);

/// A thread that is cancelled from here on may end at any instruction. (It asks for that, and is
/// cancelled later or never, as those of Redis; as long as nobody is, it may look.)
pub(crate) fn note_asynchronous() {
    ASYNCHRONOUS.store(true, SeqCst);
    if process::threads_are_cancelled() {
        forbid();
    }
}

/// Some thread has asked for that.
pub(crate) fn may_end_anywhere() -> bool {
    ASYNCHRONOUS.load(SeqCst)
}

/// A thread is about to be cancelled, which is noted ([`process::note_cancellation`]): where it may
/// end at any instruction nobody looks any more when this returns.
pub(crate) fn before_end_anywhere() {
    if ASYNCHRONOUS.load(SeqCst) {
        forbid();
        LOOKERS.call_off(0, c_int::MAX as u32);
    }
}

/// Whether the process has come with a filter of system calls (by exec). Asks in no other way than
/// its libraries were loaded. Where nobody says, it has one.
#[cold]
fn find_out() -> bool {
    let free = signals::held(|| {
        let mut text = [0u8; 4096];
        let n = numbers::exclusively(|| {
            let fd = sys::open(b"/proc/self/status\0", libc::O_RDONLY | libc::O_CLOEXEC, 0);
            let n = sys::read(fd as c_int, &mut text);
            if fd >= 0 {
                let _ = sys::close(fd as c_int);
            }
            n
        });
        let text = text.get(..usize::try_from(n).unwrap_or(0)).unwrap_or(&[]);
        text.split(|c| *c == b'\n').any(|line| line == b"Seccomp:\t0")
    });
    let now = if free { ALLOWED } else { FORBIDDEN };
    let _ = MAY_LOOK.compare_exchange(UNKNOWN, now, Relaxed, Relaxed);
    MAY_LOOK.load(Relaxed) == ALLOWED
}

/// Whether a call of the program's may make system calls that the program does not make: not in a
/// process that filters them.
pub(crate) fn may_make_more_calls() -> bool {
    match MAY_LOOK.load(Relaxed) {
        ALLOWED => true,
        UNKNOWN => find_out(),
        _ => false,
    }
}

/// A thread of the library's own has worked: room is made for the trace. In a process that filters
/// its system calls only where somebody has asked for it.
pub(crate) fn keep_trace_ready() {
    if trace::may_be_on() && (may_make_more_calls() || config::is_asked_for(Key::Trace)) {
        trace::keep_ready();
    }
}

/// Whether this thread may look and make room for others: not in a process that filters its system
/// calls; nor with a real-time policy, under which it would keep everybody else off the CPU (FIFO,
/// RR), or lose the rest of its period when it yields (DEADLINE).
fn may_look() -> bool {
    may_make_more_calls() && sys::is_time_shared()
}

/// The longest that a wait may look that rules set this limit; 0: none does. (A rule allows no more
/// than is configured: who looks at all is the operator's choice for the process.)
fn cap_ns(limit: Limit) -> u32 {
    let config = config::get();
    if MAY_LOOK.load(Relaxed) == FORBIDDEN || config.poll_ms == Some(0) {
        return 0;
    }
    let allowed = config.poll_tcp_us.map_or(CAP_NS, |us| us.saturating_mul(1_000));
    let ruled = limit.ns_of(None).map_or(allowed, |ns| allowed.min(ns));
    signals::poll_us().map_or(ruled, |us| ruled.min(us.saturating_mul(1_000)))
}

/// Threads of the process that look at this moment, and how many may.
static LOOKERS: Lookers = Lookers::new();
static MOST: AtomicU32 = AtomicU32::new(1);

/// At most every second CPU is for threads that look: others wait for the rest.
fn most_at_once() -> u32 {
    #[cfg(test)]
    if super::ALONE.get() {
        return SEATS as u32;
    }
    if inject::looks_ns().is_some() { SEATS as u32 } else { MOST.load(Relaxed) }
}

/// Numbers from `first` to `last` are about to be closed, or to become another file's.
#[inline]
pub(crate) fn before_close(first: c_int, last: c_int) {
    if first >= 0 {
        LOOKERS.call_off(first as u32, last as u32);
    }
}

/// Nobody looks in a forked child.
pub(crate) fn after_fork_in_child() {
    LOOKERS.after_fork_in_child();
}

/// How a wait's looks ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Looked {
    /// The first look has found something: the wait would not have slept.
    AtOnce,
    /// Another one has.
    Found,
    /// None has: the thread sleeps.
    Nothing,
    /// A handler of the application's is to run, behind which the call ends as one that slept.
    Signal,
}

/// A thread's habit of waiting for `fd`.
#[inline]
pub(crate) fn habit(fd: c_int) -> &'static Habit {
    let thread = (sys::thread_pointer() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ALL.get((thread ^ fd as u64) as usize % HABITS).unwrap_or(&NOBODY)
}

impl Habit {
    const fn new() -> Habit {
        Habit {
            budget_ns: AtomicU32::new(0),
            soon: AtomicU32::new(0),
            needed: AtomicU32::new(0),
            won: AtomicU32::new(0),
            waited: AtomicU64::new(0),
            worked: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            judged: AtomicU32::new(0),
        }
    }

    /// Whether a wait of at most `timeout_ns` (< 0: for ever) looks before it sleeps.
    #[inline]
    pub(crate) fn looks(&self, timeout_ns: i64) -> bool {
        (self.budget_ns.load(Relaxed) != 0 || inject::looks_ns().is_some())
            && !(0..SHORTEST_TIMEOUT_NS).contains(&timeout_ns)
    }

    /// Looks at `numbers` by `find`, which returns true when the wait is over. What follows
    /// [`Looked::Nothing`] in the same section is the call that sleeps.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(
        &self,
        limit: Limit,
        numbers: &[c_int],
        mut find: impl FnMut() -> bool,
    ) -> Looked {
        let (ordered, most) = (inject::looks_ns(), cap_ns(limit));
        if most == 0 && ordered.is_none() {
            self.give_up();
            return Looked::Nothing;
        }
        if find() {
            return Looked::AtOnce;
        }
        if !may_look() || (ordered.is_none() && spin::others_wait()) {
            self.give_up();
            return Looked::Nothing;
        }
        // One that is not let in sleeps, and less and less of its waits try.
        let Some(turn) = LOOKERS.take(numbers, most_at_once()) else {
            self.in_vain();
            return Looked::Nothing;
        };
        // Either this sees that it must not look any more, or who forbids it sees the turn.
        if MAY_LOOK.load(SeqCst) == FORBIDDEN {
            return Looked::Nothing;
        }
        let budget = self.budget_ns.load(Relaxed).min(most);
        let how = Poll {
            budget_ns: ordered.unwrap_or(u64::from(budget)),
            turn_ns: TURN_NS,
            looks: 1,
            // (However much success there was: it is worth no slice.)
            worth: if ordered.is_some() { 0 } else { u32::MAX },
            gives_way: ordered.is_none(),
        };
        let began = sys::ticks();
        let mut looks = 0;
        let mut off = false;
        let polled = spin::poll(&how, sys::now_ns(), &self.won, || {
            off = turn.is_called_off();
            looks += u64::from(!off);
            off || find()
        });
        stats::add(Counter::KernelLooks, looks);
        if off {
            return Looked::Nothing;
        }
        match polled {
            Polled::Found => {
                stats::count(Counter::LooksWon);
                self.has_paid(budget, most, began);
                Looked::Found
            }
            Polled::Signal => Looked::Signal,
            Polled::InVain => {
                stats::count(Counter::LooksLost);
                self.note_time(began, sys::ticks());
                self.in_vain();
                Looked::Nothing
            }
        }
    }

    /// Looks that began at `began` have found something.
    fn has_paid(&self, budget: u32, most: u32, began: u64) {
        self.budget_ns.store(budget.saturating_mul(2).min(most), Relaxed);
        self.note_time(began, sys::ticks());
        let judged = self.judged.load(Relaxed) + 1;
        self.judged.store(judged % JUDGED, Relaxed);
        if judged == JUDGED && !self.waits_much(IDLE_LATER) {
            self.won.store(0, Relaxed);
            self.give_up();
        }
    }

    /// A wait took this time.
    fn note_time(&self, began: u64, ended: u64) {
        let worked = began.saturating_sub(self.ended.swap(ended, Relaxed));
        // (Of waits that are not noted nothing is known.)
        let worked = worked.min(ended.wrapping_sub(began).saturating_mul(64));
        self.worked.store(self.worked.load(Relaxed).wrapping_add(worked), Relaxed);
        let waited = self.waited.load(Relaxed).wrapping_add(ended.wrapping_sub(began));
        self.waited.store(waited, Relaxed);
    }

    /// Whether one in `parts` of the time since the last such question was waited.
    fn waits_much(&self, parts: u64) -> bool {
        let (waited, worked) = (self.waited.swap(0, Relaxed), self.worked.swap(0, Relaxed));
        waited.saturating_mul(parts) >= waited.saturating_add(worked)
    }

    /// Looks did not pay.
    pub(crate) fn in_vain(&self) {
        let budget = self.budget_ns.load(Relaxed) / 2;
        if budget < LEAST_NS || spin::others_wait() {
            self.give_up();
        } else {
            self.budget_ns.store(budget, Relaxed);
        }
    }

    /// From here on the thread sleeps, until it shows anew that looks would pay.
    #[cold]
    fn give_up(&self) {
        let needed = match self.won.swap(0, Relaxed) {
            won if won >= MANY => SOON,
            _ => (self.needed.load(Relaxed).max(SOON) * 2).min(SOON_MAX),
        };
        self.needed.store(needed, Relaxed);
        self.soon.store(0, Relaxed);
        self.budget_ns.store(0, Relaxed);
    }

    /// The thread may sleep from here on.
    #[inline]
    pub(crate) fn sleep(&'static self) -> Sleep {
        Sleep { habit: self, since: sys::ticks() }
    }

    /// A sleep from `since` to `now` is over.
    fn learn(&self, since: u64, now: u64, news: bool, limit: Limit) {
        if self.budget_ns.load(Relaxed) != 0 {
            // Behind looks in vain.
            return self.note_time(since, now);
        }
        let soon = self.soon.load(Relaxed);
        let most = if news { cap_ns(limit) } else { 0 };
        if most == 0 || now - since > sys::ticks_of_ns(most.saturating_add(WAKE_NS)) {
            if soon != 0 {
                self.soon.store(0, Relaxed);
            }
            return;
        }
        if soon == 0 {
            self.waited.store(0, Relaxed);
            self.worked.store(0, Relaxed);
            self.ended.store(since, Relaxed);
        }
        self.note_time(since, now);
        if soon + 1 < self.needed.load(Relaxed).max(SOON) {
            return self.soon.store(soon + 1, Relaxed);
        }
        self.soon.store(0, Relaxed);
        // (Who has said for how long a wait looks has said that it may.)
        let crowded = || match config::get().poll_tcp_us {
            Some(_) => spin::others_wait(),
            None => spin::is_overfull(),
        };
        if self.waits_much(IDLE_AT_FIRST) && !crowded() {
            MOST.store((sys::allowed_cpus() / 2).max(1) as u32, Relaxed);
            self.judged.store(0, Relaxed);
            self.budget_ns.store(most, Relaxed);
        }
    }
}

/// A system call that may sleep is under way.
pub struct Sleep {
    habit: &'static Habit,
    /// When it began ([`sys::ticks`]).
    since: u64,
}

impl Sleep {
    /// It is over; `news`: what it waited for has come.
    #[inline]
    pub fn over(self, news: bool) {
        self.over_of(news, Limit::CONFIGURED);
    }

    /// The same, of a wait for which rules set that limit.
    #[inline]
    pub(crate) fn over_of(self, news: bool, limit: Limit) {
        let now = sys::ticks().max(self.since);
        if !news || now - self.since >= sys::ticks_of_ns(AT_ONCE_NS) {
            self.habit.learn(self.since, now, news, limit);
        }
    }
}

mod lookers;
#[cfg(test)]
mod tests;
