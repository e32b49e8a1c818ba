//! Polling before a sleep: for how long, and when it is not worth while.

use crate::channel::Peers;
use crate::{config, process, signals, stats, sys};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use netacc_control::stats::{ChannelState, Counter};

/// Longest polling before a sleep, nanoseconds: about what a wake-up on another CPU costs, both
/// ways.
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
/// How long no thread of the process polls after strangers were found, at first; doubled each time
/// up to the second.
const CROWDED_NS: u64 = 100_000_000;
const CROWDED_MAX_NS: u64 = 1_000_000_000;

/// What polling has brought a thread so far (a hash collision just mixes two threads' luck).
struct Luck {
    /// What the last polls ask for; [`UNTRIED`]: the longest allowed.
    budget_ns: AtomicU32,
    skipped: AtomicU32,
    /// Polls that paid since strangers last had the CPU.
    won: AtomicU32,
}
/// So many polls that paid, between two slices of strangers', are worth the slice.
const WORTH_A_SLICE: u32 = 200;
const UNTRIED: u32 = u32::MAX;
static LUCK: [Luck; 64] = [const {
    Luck { budget_ns: AtomicU32::new(UNTRIED), skipped: AtomicU32::new(0), won: AtomicU32::new(0) }
}; 64];

/// Until when the CPUs are taken to be wanted by others, and how long the last such time was.
static CROWDED_UNTIL: AtomicU64 = AtomicU64::new(0);
static CROWDED_FOR: AtomicU64 = AtomicU64::new(0);

/// Clock and CPU time of this process and its peers when a long yield was last looked into.
static ASKED_AT: AtomicU64 = AtomicU64::new(0);
static ASKED_CPU: AtomicU64 = AtomicU64::new(0);

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
    now < CROWDED_UNTIL.load(Relaxed)
}

/// After a long yield: did others than this process and its peers have the CPUs? Judged by the CPU
/// time that these have used since the last long yield: when all CPUs are busy (they are, or the
/// yield had been short), the rest is strangers'.
#[cold]
fn strangers(now: u64) -> bool {
    #[cfg(test)]
    if ALONE.get() {
        return false;
    }
    let mut used = sys::cpu_time_ns(sys::getpid());
    for r in (0..)
        .map_while(stats::channel_record)
        .filter(|r| r.state.load(Relaxed) == ChannelState::Open as u32)
        .take(8)
    {
        used = used.wrapping_add(sys::cpu_time_ns(r.peer_pid.load(Relaxed)));
    }
    let (then, used_then) = (ASKED_AT.swap(now, Relaxed), ASKED_CPU.swap(used, Relaxed));
    let wall = now.saturating_sub(then);
    // Without a sample of a sensible age: no judgement yet.
    if then == 0 || !(2_000_000..2_000_000_000).contains(&wall) {
        return false;
    }
    let ours = used.saturating_sub(used_then);
    ours < wall.saturating_mul(sys::allowed_cpus()) / 10 * 8
}

/// Others want the CPUs.
#[cold]
fn crowded(now: u64) {
    let last = CROWDED_FOR.load(Relaxed);
    let quiet_since = now.saturating_sub(CROWDED_UNTIL.load(Relaxed));
    // Long ago: a new crowd.
    let next = if last == 0 || quiet_since > CROWDED_MAX_NS {
        CROWDED_NS
    } else {
        (last * 2).min(CROWDED_MAX_NS)
    };
    CROWDED_FOR.store(next, Relaxed);
    CROWDED_UNTIL.store(now.saturating_add(next), Relaxed);
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

/// Polls `ready` for as long as that promises to be cheaper than a sleep. True: it came.
#[inline(never)]
pub(crate) fn spin(peers: Peers, mut ready: impl FnMut() -> bool) -> bool {
    let cap = match config::get().poll_ms {
        Some(0) => return ready(),
        Some(ms) => ms.saturating_mul(1_000_000),
        None => SPIN_MAX_NS,
    };
    let Some(luck) = LUCK.get(process::tid() as usize % LUCK.len()) else { return false };
    let start = sys::now_ns();
    let mut budget = luck.budget_ns.load(Relaxed).min(cap);
    if is_crowded(start) {
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
    let turn = turn_ns(peers);
    let mut yield_at = start + turn * 2;
    // Time in which others had the CPU.
    let mut away = 0;
    loop {
        for _ in 0..8 {
            if ready() {
                luck.budget_ns
                    .store(budget.saturating_mul(2).clamp(SPIN_PROBE_NS.min(cap), cap), Relaxed);
                luck.won.store(luck.won.load(Relaxed).saturating_add(1), Relaxed);
                stats::count(Counter::SpinsWon);
                return true;
            }
            core::hint::spin_loop();
        }
        let now = sys::now_ns();
        let wall = now.wrapping_sub(start);
        if signals::pending().is_some() {
            return ready();
        }
        if wall.wrapping_sub(away) >= budget as u64 || wall > SPIN_WALL_NS {
            break;
        }
        if now >= yield_at {
            sys::sched_yield();
            let after = sys::now_ns();
            let gone = after.wrapping_sub(now);
            away += gone;
            // Who gave way to somebody may do so again at once.
            yield_at = after + if gone > YIELD_SHORT_NS { 0 } else { turn };
            if gone > YIELD_LONG_NS && luck.won.swap(0, Relaxed) < WORTH_A_SLICE && strangers(after)
            {
                crowded(after);
                break;
            }
        }
    }
    luck.budget_ns.store(luck.budget_ns.load(Relaxed).min(cap) / 2, Relaxed);
    stats::count(Counter::SpinsLost);
    ready()
}
