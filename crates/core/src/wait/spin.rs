//! Polling before a sleep: for how long, and when it is not worth while.

use crate::channel::Peers;
use crate::socket::Limit;
use crate::{config, fd_words, numbers, process, signals, stats, sys};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use netacc_control::stats::{ChannelRecord, ChannelState, Counter};

/// Longest polling before a sleep where nobody has said another time, nanoseconds: about what a
/// wake-up on another CPU costs, both ways.
const SPIN_MAX_NS: u32 = 60_000;
/// What a thread that had given up polling tries again now and then.
const SPIN_PROBE_NS: u32 = 8_000;
/// A `sched_yield` that took longer has run somebody for a whole slice of the scheduler's: time to
/// ask who that was.
const YIELD_LONG_NS: u64 = 700_000;
/// A `sched_yield` that took longer has run somebody.
const YIELD_SHORT_NS: u64 = 2_000;
/// Longest time on the clock that a poll lasts, whoever has the CPU meanwhile.
const SPIN_WALL_NS: u64 = 10_000_000;
/// How long no thread of the process polls after others were found, at first; doubled each time up
/// to the second.
const CROWDED_NS: u64 = 100_000_000;
const CROWDED_MAX_NS: u64 = 1_000_000_000;

/// What polling has brought a thread so far (a hash collision just mixes two threads' luck).
struct Luck {
    /// What the last polls ask for; [`UNTRIED`]: the longest allowed.
    budget_ns: AtomicU32,
    skipped: AtomicU32,
    /// Polls that paid since the last long yield.
    won: AtomicU32,
    /// Polls that paid since one did not.
    streak: AtomicU32,
    /// Sleeps in a row that have ended soon ([`slept`]), and how many it takes; 0: [`SOON`].
    soon: AtomicU32,
    needed: AtomicU32,
}

impl Luck {
    const fn new() -> Luck {
        Luck {
            budget_ns: AtomicU32::new(UNTRIED),
            skipped: AtomicU32::new(0),
            won: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            soon: AtomicU32::new(0),
            needed: AtomicU32::new(0),
        }
    }
}

/// So many polls of rings that paid are worth a slice of strangers'.
const WORTH_A_SLICE: u32 = 200;
const UNTRIED: u32 = u32::MAX;
static LUCK: [Luck; 64] = [const { Luck::new() }; 64];

/// A thread that has given up polling learns from its sleeps that it would pay, as `looks` has it:
/// a peer that has to be woken, too, is found by no short poll, and two that were kept apart for
/// some milliseconds would wake each other for good. A sleep is this much longer than the poll
/// that would have found the same.
const WAKE_NS: u32 = 40_000;
/// So many sleeps in a row, at first and at last: each time that it brings little it takes more.
const SOON: u32 = 8;
const SOON_MAX: u32 = 1 << 12;
/// One poll in vain behind so many that paid says nothing.
const STREAK: u32 = 8;
/// So many that paid in a row are much success.
const WORTH_IT: u32 = 32;

/// Strangers have the CPUs: no thread polls. And more threads want one than there are: no thread
/// looks at the kernel's sockets. (That is seen in a moment, which may say nothing of the next
/// ones; who polls a ring learns by its yields who has the CPUs.)
static CROWD: Crowd = Crowd::new();
static FULL: Crowd = Crowd::new();

/// Until when the CPUs are taken to be wanted by others, and how long the last such time was.
struct Crowd {
    until: AtomicU64,
    lasts: AtomicU64,
}

/// Strangers are judged by what they have had of a time that is no shorter, and no longer.
const JUDGED_NS: core::ops::Range<u64> = 50_000_000..2_000_000_000;

/// When a long yield was last looked into.
static ASKED: Asked = Asked { at: AtomicU64::new(0), cpu: AtomicU64::new(0) };

/// Clock and CPU time of this process and its peers at that moment.
struct Asked {
    at: AtomicU64,
    cpu: AtomicU64,
}

#[cfg(test)]
std::thread_local! {
    /// As far as this test's thread is concerned, nobody else wants the CPUs.
    pub(crate) static ALONE: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

fn is_crowded(now: u64) -> bool {
    #[cfg(test)]
    if ALONE.get() {
        return false;
    }
    CROWD.is_there(now)
}

/// After a long yield: did others than this process and its peers have the CPUs?
#[cold]
fn strangers(now: u64) -> bool {
    #[cfg(test)]
    if ALONE.get() {
        return false;
    }
    ASKED.strangers(now, sys::allowed_cpus(), || {
        let open = |r: &&ChannelRecord| r.state.load(Relaxed) == ChannelState::Open as u32;
        let peers = (0..).map_while(stats::channel_record).filter(open).take(8);
        let used = peers.map(|r| sys::cpu_time_ns(r.peer_pid.load(Relaxed)));
        used.fold(sys::cpu_time_ns(sys::getpid()), u64::wrapping_add)
    })
}

impl Asked {
    /// Judged by the CPU time that this process and its peers have `used` since the last long
    /// yield: when all CPUs are busy (they are, or the yield had been short), the rest is
    /// strangers'. Who has had a CPU for some milliseconds in a second is no crowd.
    fn strangers(&self, now: u64, cpus: u64, used: impl FnOnce() -> u64) -> bool {
        let then = self.at.load(Relaxed);
        let wall = now.saturating_sub(then);
        if then != 0 && wall < JUDGED_NS.start {
            return false;
        }
        // (Threads come back from their yields together: one of them judges.)
        if self.at.compare_exchange(then, now, Relaxed, Relaxed).is_err() {
            return false;
        }
        let used = used();
        let ours = used.saturating_sub(self.cpu.swap(used, Relaxed));
        // (Without a sample of a sensible age: no judgement yet.)
        then != 0 && JUDGED_NS.contains(&wall) && ours < wall.saturating_mul(cpus) / 10 * 8
    }
}

impl Crowd {
    const fn new() -> Crowd {
        Crowd { until: AtomicU64::new(0), lasts: AtomicU64::new(0) }
    }

    fn is_there(&self, now: u64) -> bool {
        now < self.until.load(Relaxed)
    }

    /// Others want the CPUs.
    #[cold]
    fn came(&self, now: u64) {
        let last = self.lasts.load(Relaxed);
        let quiet_since = now.saturating_sub(self.until.load(Relaxed));
        // Long ago: a new crowd.
        let next = if last == 0 || quiet_since > CROWDED_MAX_NS {
            CROWDED_NS
        } else {
            (last * 2).min(CROWDED_MAX_NS)
        };
        self.lasts.store(next, Relaxed);
        self.until.store(now.saturating_add(next), Relaxed);
    }
}

/// Until when [`is_overfull`] believes its last answer.
static ROOMY_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Whether more threads of the machine want a CPU than it has; where nobody can tell it has enough.
/// The kernel is asked at most ten times a second.
#[cold]
pub(super) fn is_overfull() -> bool {
    let now = sys::now_ns();
    if others_wait() {
        return true;
    }
    #[cfg(test)]
    if ALONE.get() {
        return false;
    }
    if now < ROOMY_UNTIL.load(Relaxed) {
        return false;
    }
    // (Not interrupted: it makes a descriptor.)
    let full = signals::held(|| {
        // "1.20 0.90 0.80 3/187 4711": three of 187 threads run or want to.
        let wanting = number_in(b"/proc/loadavg\0", b'/');
        // "0-63"
        let last_cpu = number_in(b"/sys/devices/system/cpu/online\0", b'\n');
        wanting.zip(last_cpu).is_some_and(|(wanting, last)| wanting > last + 1)
    });
    if full {
        FULL.came(now)
    } else {
        ROOMY_UNTIL.store(now + CROWDED_NS, Relaxed)
    }
    full
}

/// The number before the first such character in a file.
fn number_in(path: &[u8], end: u8) -> Option<u64> {
    let fd = numbers::make(|| sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0));
    if fd < 0 {
        return None;
    }
    let mut text = [0u8; 128];
    let n = sys::read(fd, &mut text);
    fd_words::close_internal(fd);
    let text = text.get(..usize::try_from(n).ok()?)?;
    let before = text.get(..text.iter().position(|c| *c == end)?)?;
    let digits = before.iter().rev().take_while(|c| c.is_ascii_digit()).count();
    let number = core::str::from_utf8(before.get(before.len() - digits..)?).ok()?;
    number.parse().ok()
}

/// How long a poll keeps the CPU before it makes room for others.
fn turn_ns(peers: Peers) -> u64 {
    match peers {
        Peers::SameCpu => 0,
        // (A fabric in software needs the only CPU.)
        Peers::OtherHosts if sys::allowed_cpus() > 1 => 20_000,
        _ => 1_000,
    }
}

/// How a poll is made.
pub(super) struct Poll {
    /// For how long, of the time that the thread has the CPU.
    pub(super) budget_ns: u64,
    /// How long it keeps the CPU before it makes room for others.
    pub(super) turn_ns: u64,
    /// How often it looks between two readings of the clock.
    pub(super) looks: u32,
    /// So many polls that paid, between two slices of strangers', are worth the slice.
    pub(super) worth: u32,
    /// Whether it ends, with one more look, where others want its CPU.
    pub(super) gives_way: bool,
}

/// How a poll ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Polled {
    /// What it was for has come.
    Found,
    /// The time is up, or others want the CPUs.
    InVain,
    /// A handler of the application's is to run, or the thread is cancelled.
    Signal,
}

/// Whether no thread is to look at the kernel's sockets, as others want the CPUs.
pub(super) fn others_wait() -> bool {
    #[cfg(test)]
    if ALONE.get() {
        return false;
    }
    let now = sys::now_ns();
    is_crowded(now) || FULL.is_there(now)
}

fn paid(won: &AtomicU32) -> Polled {
    won.store(won.load(Relaxed).saturating_add(1), Relaxed);
    Polled::Found
}

/// Polls `ready`, and makes room for others. `start`: now. `won`: polls that paid since strangers
/// last had the CPU.
#[inline(always)]
pub(super) fn poll(
    how: &Poll,
    start: u64,
    won: &AtomicU32,
    mut ready: impl FnMut() -> bool,
) -> Polled {
    let mut yield_at = start + how.turn_ns * 2;
    // Time in which others had the CPU.
    let mut away = 0;
    loop {
        for _ in 0..how.looks {
            if ready() {
                return paid(won);
            }
            core::hint::spin_loop();
        }
        let now = sys::now_ns();
        let wall = now.wrapping_sub(start);
        if signals::pending().is_some() || signals::is_cancelled() {
            return Polled::Signal;
        }
        if wall.wrapping_sub(away) >= how.budget_ns || wall > SPIN_WALL_NS {
            return Polled::InVain;
        }
        if now >= yield_at {
            sys::sched_yield();
            let after = sys::now_ns();
            let gone = after.wrapping_sub(now);
            away += gone;
            // Who gave way to somebody may do so again at once.
            yield_at = after + if gone > YIELD_SHORT_NS { 0 } else { how.turn_ns };
            if gone > YIELD_LONG_NS && won.swap(0, Relaxed) < how.worth && strangers(after) {
                CROWD.came(after);
                return Polled::InVain;
            }
            if how.gives_way && gone > YIELD_SHORT_NS {
                return if ready() { paid(won) } else { Polled::InVain };
            }
        }
    }
}

/// The longest that a poll may take: what the operator allows, also by rules, and of that what the
/// thread wants. Where the operator has said nothing, the thread's word counts.
fn cap_ns(limit: Limit) -> u32 {
    let allowed = config::get().poll_ms.map(|ms| ms.saturating_mul(1_000_000));
    let allowed = match allowed {
        None if limit.only_shortens() => limit.ns_of(Some(SPIN_MAX_NS)),
        allowed => limit.ns_of(allowed),
    };
    match (allowed, signals::poll_us().map(|us| us.saturating_mul(1_000))) {
        (Some(allowed), Some(wanted)) => allowed.min(wanted),
        (Some(ns), None) | (None, Some(ns)) => ns,
        (None, None) => SPIN_MAX_NS,
    }
}

/// Polls `ready` for as long as that promises to be cheaper than a sleep. True: it came.
#[inline(never)]
pub(crate) fn spin(peers: Peers, limit: Limit, mut ready: impl FnMut() -> bool) -> bool {
    let cap = cap_ns(limit);
    if cap == 0 {
        return ready();
    }
    let Some(luck) = LUCK.get(process::tid() as usize % LUCK.len()) else { return false };
    let mut budget = luck.budget_ns.load(Relaxed).min(cap);
    // The clock is read once: two readings are 4 % of a round trip.
    let now = sys::now_ns();
    if is_crowded(now) {
        stats::count(Counter::SpinsSkipped);
        return ready();
    }
    if budget < SPIN_PROBE_NS {
        let skipped = luck.skipped.load(Relaxed).wrapping_add(1);
        luck.skipped.store(skipped, Relaxed);
        if skipped % 16 != 0 {
            stats::count(Counter::SpinsSkipped);
            return ready();
        }
        budget = SPIN_PROBE_NS.min(cap);
    }
    let how = Poll {
        budget_ns: budget as u64,
        turn_ns: turn_ns(peers),
        looks: 8,
        worth: WORTH_A_SLICE,
        gives_way: false,
    };
    match poll(&how, now, &luck.won, &mut ready) {
        Polled::Found => {
            luck.budget_ns
                .store(budget.saturating_mul(2).clamp(SPIN_PROBE_NS.min(cap), cap), Relaxed);
            luck.paid();
            stats::count(Counter::SpinsWon);
            return true;
        }
        Polled::Signal => {}
        Polled::InVain => {
            luck.in_vain(peers, cap);
            stats::count(Counter::SpinsLost);
        }
    }
    ready()
}

/// A sleep that began at `since` ([`sys::ticks`]) is over; `news`: something has come.
#[inline]
pub(crate) fn slept(limit: Limit, since: u64, news: bool) {
    if let Some(luck) = LUCK.get(process::tid() as usize % LUCK.len()) {
        luck.slept(sys::ticks().saturating_sub(since), news, cap_ns(limit));
    }
}

impl Luck {
    fn paid(&self) {
        let streak = self.streak.load(Relaxed).saturating_add(1);
        self.streak.store(streak, Relaxed);
        if streak == WORTH_IT {
            self.needed.store(0, Relaxed);
        }
    }

    fn in_vain(&self, peers: Peers, cap: u32) {
        let streak = self.streak.swap(0, Relaxed);
        // (Half of what a peer takes that has to be woken finds nothing ever again.)
        if peers == Peers::Anybody && streak >= STREAK {
            return;
        }
        let budget = self.budget_ns.load(Relaxed).min(cap);
        self.budget_ns.store(budget / 2, Relaxed);
        if (SPIN_PROBE_NS..2 * SPIN_PROBE_NS).contains(&budget) {
            let needed = self.needed.load(Relaxed).max(SOON / 2) * 2;
            self.needed.store(needed.min(SOON_MAX), Relaxed);
        }
    }

    /// A sleep of so many ticks is over.
    fn slept(&self, ticks: u64, news: bool, cap: u32) {
        if !news || cap == 0 || ticks > sys::ticks_of_ns(cap.saturating_add(WAKE_NS)) {
            return self.soon.store(0, Relaxed);
        }
        let soon = self.soon.load(Relaxed) + 1;
        if soon < self.needed.load(Relaxed).max(SOON) {
            return self.soon.store(soon, Relaxed);
        }
        self.soon.store(0, Relaxed);
        self.budget_ns.store(cap, Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    extern crate std;
    use super::*;

    const CAP: u32 = SPIN_MAX_NS;

    fn budget(luck: &Luck) -> u32 {
        luck.budget_ns.load(Relaxed).min(CAP)
    }

    fn gives_up(luck: &Luck) {
        while budget(luck) >= SPIN_PROBE_NS {
            luck.in_vain(Peers::Anybody, CAP);
        }
    }

    #[test]
    fn a_thread_polls_for_as_long_as_it_wants_and_the_operator_allows() {
        use netacc_control::config::Config;
        let cap_by = |poll_ms: Option<u32>, wanted: Option<u32>, limit: Limit| {
            let config = Config { poll_ms, ..config::get().clone() };
            config::with(config, || {
                signals::set_poll_us(wanted);
                let cap = cap_ns(limit);
                signals::set_poll_us(None);
                cap
            })
        };
        let cap = |allowed, wanted| cap_by(allowed, wanted, Limit::CONFIGURED);
        for (allowed, wanted, ns) in [
            (None, None, SPIN_MAX_NS),
            (None, Some(0), 0),
            (None, Some(7), 7_000),
            (None, Some(5_000), 5_000_000),
            (None, Some(60_000_000), u32::MAX),
            (Some(0), Some(5_000), 0),
            (Some(2), Some(5_000), 2_000_000),
            (Some(2), Some(100), 100_000),
            (Some(2), None, 2_000_000),
        ] {
            assert_eq!(cap(allowed, wanted), ns, "{allowed:?}, {wanted:?}");
        }
        for (limit, allowed, wanted, ns) in [
            (Limit::us(0), Some(10), None, 0),
            (Limit::us(0), None, Some(50), 0),
            (Limit::us(500), Some(0), None, 500_000),
            (Limit::us(500), None, Some(50), 50_000),
            (Limit::at_most_us(500), None, None, SPIN_MAX_NS),
            (Limit::at_most_us(500), Some(1), None, 500_000),
            (Limit::at_most_us(5), None, None, 5_000),
        ] {
            assert_eq!(cap_by(allowed, wanted, limit), ns, "{limit:?} {allowed:?} {wanted:?}");
        }
    }

    #[test]
    fn a_thread_that_wants_none_makes_one_look_and_sleeps() {
        crate::testing::init();
        ALONE.set(true);
        let looks = |wanted| {
            signals::set_poll_us(wanted);
            let mut looks = 0;
            for _ in 0..16 {
                spin(Peers::OtherCpus, Limit::CONFIGURED, || {
                    looks += 1;
                    false
                });
            }
            signals::set_poll_us(None);
            looks
        };
        assert_eq!(looks(Some(0)), 16);
        assert!(looks(None) > 16);
    }

    #[test]
    fn short_sleeps_make_a_thread_poll_again_and_more_of_them_each_time_that_brings_nothing() {
        let luck = Luck::new();
        let mut needed = SOON;
        for _ in 0..12 {
            gives_up(&luck);
            for _ in 1..needed {
                luck.slept(1, true, CAP);
                assert!(budget(&luck) < SPIN_PROBE_NS);
            }
            luck.slept(1, true, CAP);
            assert_eq!(budget(&luck), CAP);
            needed = (needed * 2).min(SOON_MAX);
        }
        for _ in 0..WORTH_IT {
            luck.paid();
        }
        assert_eq!(luck.needed.load(Relaxed), 0);
    }

    #[test]
    fn strangers_are_those_who_have_a_fifth_of_the_cpus_for_a_while() {
        const MS: u64 = 1_000_000;
        let asked = Asked { at: AtomicU64::new(0), cpu: AtomicU64::new(0) };
        let judge = |at: u64, used: u64| asked.strangers(at * MS, 2, || used * MS);
        assert!(!judge(1_000, 500), "nothing to compare with");
        // A tool has one of two CPUs for ten milliseconds, each second.
        assert!(!judge(2_000, 2_490));
        assert!(!judge(2_005, 2_495), "too soon");
        assert!(!judge(2_049, 2_500), "too soon");
        assert!(judge(2_050, 2_569), "21 % of the CPUs are others'");
        assert!(!judge(2_100, 2_650));
        assert!(!judge(4_200, 2_650), "too long ago");
        assert!(judge(4_300, 2_700));
        // All is ours, and another thread comes back in the middle of the look.
        let mut inner = true;
        let outer = asked.strangers(4_400 * MS, 2, || {
            inner = asked.strangers(4_400 * MS, 2, || 2_900 * MS);
            2_900 * MS
        });
        assert_eq!((inner, outer), (false, false));
    }

    #[test]
    fn a_moment_with_too_many_threads_ends_looks_and_no_polls() {
        crate::testing::init();
        assert!(crate::testing::in_child(|| {
            CROWD.until.store(0, Relaxed);
            let enough = sys::allowed_cpus() + 4;
            let ends = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                let busy = || {
                    while !ends.load(Relaxed) {
                        core::hint::spin_loop();
                    }
                };
                (0..enough).for_each(|_| drop(scope.spawn(busy)));
                // (The kernel counts who is ready at that moment.)
                while !(is_overfull() && others_wait()) {
                    ROOMY_UNTIL.store(0, Relaxed);
                }
                ends.store(true, Relaxed);
            });
            CROWD.until.load(Relaxed) == 0
        }));
    }

    #[test]
    fn two_that_were_kept_apart_do_not_wake_each_other_for_good() {
        crate::testing::init();
        ALONE.set(true);
        let luck = &LUCK[process::tid() as usize % LUCK.len()];
        while budget(luck) >= SPIN_PROBE_NS {
            luck.in_vain(Peers::OtherCpus, CAP);
        }
        // The peer sleeps, too, and has to be woken each time. (A thread that loses its CPU in one
        // of these sleeps has slept for long, which begins the count anew: so again, then.)
        assert!((0..100).any(|_| {
            luck.slept(sys::ticks_of_ns(2 * CAP), true, CAP);
            (0..SOON).for_each(|_| slept(Limit::CONFIGURED, sys::ticks(), true));
            budget(luck) == CAP
        }));
    }

    #[test]
    fn long_sleeps_and_those_without_news_begin_the_count_anew() {
        let luck = Luck::new();
        gives_up(&luck);
        for n in 0..100 {
            let long = sys::ticks_of_ns(2 * CAP);
            luck.slept(if n % 16 == 7 { long } else { 1 }, n % 16 != 15, CAP);
        }
        assert!(budget(&luck) < SPIN_PROBE_NS);
    }

    #[test]
    fn one_poll_in_vain_behind_many_that_paid_shortens_none_where_the_peer_has_to_be_woken() {
        let luck = Luck::new();
        luck.budget_ns.store(CAP, Relaxed);
        for peers in [Peers::Anybody, Peers::OtherCpus] {
            for _ in 0..STREAK {
                luck.paid();
            }
            luck.in_vain(peers, CAP);
            assert_eq!(budget(&luck) == CAP, peers == Peers::Anybody);
        }
    }
}
