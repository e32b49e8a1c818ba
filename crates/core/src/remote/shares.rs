//! What each host may take of what this process has for all of them: places for links, and for
//! candidates. Nobody is refused as long as there is room; when there is none, who has most gives
//! way ([`super::room`]). And whose claims are not believed for a while, because too many of them
//! were wrong.
//!
//! A host is an IPv4 address, or 64 bits of an IPv6 one, because a host has all of such a network.
//! (Hosts behind one translated address count as one.)

use crate::{numbers, sys};
use alloc::vec::Vec;
use core::net::IpAddr;

/// Wrong claims that are taken for accidents.
const ACCIDENTS: u32 = 4;
/// With more of them no claim of the host's is believed for so long, doubled each time.
const LOCK_NS: u64 = 60_000_000_000;
const LOCK_MAX_NS: u64 = 3_600_000_000_000;
/// Wrong claims are forgotten so long after the last one.
const FORGOTTEN_NS: u64 = 6 * LOCK_MAX_NS;
/// Hosts that are remembered for wrong claims alone.
pub(super) const REMEMBERED: usize = 4096;

/// Links that a process has, whatever its limits are; and as many as it can have.
pub(super) const LINKS_MIN: usize = 64;
pub(super) const LINKS_MAX: usize = 4096;
/// The largest part of all links that one host has; and of the candidates, where there is no room.
pub(super) const PART: usize = 4;

/// Who a peer counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(u128);

impl Source {
    pub(super) fn of(ip: IpAddr) -> Source {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Source(ip.to_ipv6_mapped().to_bits()),
            IpAddr::V6(ip) => Source(ip.to_bits() >> 64 << 64 | 1),
        }
    }
}

/// What a host has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    source: Source,
    /// Links that it made, and those of them that have not greeted.
    pub(super) links: u32,
    pub(super) callers: u32,
    pub(super) candidates: u32,
    wrong: u32,
    wrong_at: u64,
    locked_until: u64,
    lock_ns: u64,
}

impl Share {
    fn has_something(&self) -> bool {
        (self.links, self.candidates) != (0, 0)
    }

    fn is_over(&self, now: u64) -> bool {
        !self.has_something()
            && (self.wrong == 0 || now.saturating_sub(self.wrong_at) > FORGOTTEN_NS)
    }
}

/// Sorted by whose they are.
pub(super) struct Shares {
    list: Vec<Share>,
    /// Of them, those that have something: the others are remembered for wrong claims alone.
    having: usize,
    /// As many links as this process has at most.
    pub(super) links_max: usize,
    /// Of all hosts.
    pub(super) callers: u32,
}

impl Shares {
    pub(super) fn new() -> Shares {
        Shares { list: Vec::new(), having: 0, links_max: links_max(), callers: 0 }
    }

    fn find(&self, source: Source) -> Result<usize, usize> {
        self.list.binary_search_by_key(&source, |s| s.source)
    }

    /// What that host has; nothing, most likely.
    pub(super) fn of(&self, source: Source) -> Option<&Share> {
        self.find(source).ok().and_then(|at| self.list.get(at))
    }

    /// The same, to be changed. `None`: there is no memory.
    fn of_mut(&mut self, source: Source) -> Option<&mut Share> {
        let at = match self.find(source) {
            Ok(at) => at,
            Err(_) => {
                if self.list.len() >= REMEMBERED {
                    // Those that have nothing (any more).
                    let now = sys::now_ns();
                    self.list.retain(|s| !s.is_over(now));
                }
                if self.list.len() >= REMEMBERED {
                    self.forget_oldest();
                }
                self.list.try_reserve(1).ok()?;
                let at = self.find(source).unwrap_or_else(|at| at);
                let new = Share {
                    source,
                    links: 0,
                    callers: 0,
                    candidates: 0,
                    wrong: 0,
                    wrong_at: 0,
                    locked_until: 0,
                    lock_ns: 0,
                };
                self.list.insert(at, new);
                at
            }
        };
        self.list.get_mut(at)
    }

    /// Of those that are remembered for wrong claims alone.
    fn forget_oldest(&mut self) {
        let alone = self.list.iter().enumerate().filter(|(_, s)| !s.has_something());
        if let Some((at, _)) = alone.min_by_key(|(_, s)| s.wrong_at) {
            self.list.remove(at);
        }
    }

    /// One more link of that host's, which has not greeted. False: there is no memory.
    pub(super) fn add_link(&mut self, source: Source) -> bool {
        let added = self.add(source, |s| (s.links, s.callers) = (s.links + 1, s.callers + 1));
        self.callers += u32::from(added);
        added
    }

    /// That host has more than before. False: there is no memory.
    fn add(&mut self, source: Source, more: impl FnOnce(&mut Share)) -> bool {
        let Some(s) = self.of_mut(source) else { return false };
        let is_new = !s.has_something();
        more(s);
        self.having += usize::from(is_new);
        true
    }

    /// It has greeted.
    pub(super) fn greeted(&mut self, source: Source) {
        if let Some(s) = self.of_mut(source) {
            s.callers = s.callers.saturating_sub(1);
        }
        self.callers = self.callers.saturating_sub(1);
    }

    pub(super) fn drop_link(&mut self, source: Source, greeted: bool) {
        if !greeted {
            self.greeted(source);
        }
        self.change(source, |s| s.links = s.links.saturating_sub(1));
    }

    pub(super) fn add_candidate(&mut self, source: Source) {
        self.add(source, |s| s.candidates += 1);
    }

    pub(super) fn drop_candidate(&mut self, source: Source) {
        self.change(source, |s| s.candidates = s.candidates.saturating_sub(1));
    }

    fn change(&mut self, source: Source, f: impl FnOnce(&mut Share)) {
        let Ok(at) = self.find(source) else { return };
        let Some(s) = self.list.get_mut(at) else { return };
        let had = s.has_something();
        f(s);
        self.having -= usize::from(had && !s.has_something());
        // One that has made wrong claims is remembered.
        if (s.links, s.candidates, s.wrong) == (0, 0, 0) {
            self.list.remove(at);
        }
    }

    /// The host with most candidates.
    pub(super) fn most_candidates(&self) -> Option<Source> {
        self.list.iter().max_by_key(|s| s.candidates).map(|s| s.source)
    }

    /// Hosts that have something: who is remembered for wrong claims alone takes no part.
    pub(super) fn count(&self) -> usize {
        self.having
    }

    // ---- wrong claims ---------------------------------------------------------------------------

    /// That host has claimed a connection, and did not know what its owner knows.
    pub(super) fn is_wrong(&mut self, source: Source) {
        let now = sys::now_ns();
        let Some(s) = self.of_mut(source) else { return };
        if now.saturating_sub(s.wrong_at) > FORGOTTEN_NS {
            (s.wrong, s.lock_ns) = (0, 0);
        }
        (s.wrong, s.wrong_at) = (s.wrong.saturating_add(1), now);
        if s.wrong > ACCIDENTS {
            s.lock_ns = (s.lock_ns * 2).clamp(LOCK_NS, LOCK_MAX_NS);
            s.locked_until = now + s.lock_ns;
        }
    }

    /// No claim of that host's is looked at.
    pub(super) fn is_locked(&self, source: Source) -> bool {
        self.of(source).is_some_and(|s| sys::now_ns() < s.locked_until)
    }
}

/// How many links a process may have: each has a descriptor.
fn links_max() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let _ = sys::getrlimit_nofile(&mut limit);
    numbers::most_of_a_kind(limit).clamp(LINKS_MIN, LINKS_MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::testing;

    fn of(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn an_ipv6_host_is_a_network_of_64_bits() {
        assert_eq!(of("fd00::1"), of("fd00::ffff:ffff:ffff:ffff"));
        assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("0.0.0.1"), of("::"), "no network is an IPv4 address");
    }

    #[test]
    fn who_has_nothing_any_more_is_forgotten_but_for_wrong_claims() {
        let mut shares = Shares::new();
        let (a, b) = (of("10.0.0.1"), of("10.0.0.2"));
        assert!(shares.add_link(a) && shares.add_link(a) && shares.add_link(b));
        shares.add_candidate(a);
        assert_eq!((shares.of(a).unwrap().links, shares.callers, shares.count()), (2, 3, 2));
        shares.greeted(a);
        shares.drop_link(a, true);
        shares.drop_link(a, false);
        assert!(shares.of(a).is_some(), "it has a candidate");
        shares.drop_candidate(a);
        assert!(shares.of(a).is_none());
        shares.is_wrong(b);
        shares.drop_link(b, false);
        assert_eq!((shares.of(b).map(|s| s.links), shares.callers), (Some(0), 0));
        assert_eq!(shares.count(), 0);
        shares.add_candidate(b);
        shares.add_candidate(b);
        assert_eq!(shares.count(), 1);
        shares.drop_candidate(b);
        shares.drop_candidate(b);
        shares.drop_candidate(b);
        assert_eq!((shares.count(), shares.list.len()), (0, 1));
    }

    #[test]
    fn no_more_hosts_are_remembered_than_that_and_the_oldest_give_way() {
        let mut shares = Shares::new();
        let host = |n: usize| Source(n as u128);
        assert!(shares.add_link(host(0)));
        for n in 0..REMEMBERED + 100 {
            shares.is_wrong(host(n));
            testing::pass_ns(1_000_000);
        }
        assert_eq!((shares.list.len(), shares.count()), (REMEMBERED, 1));
        assert!(shares.of(host(0)).is_some(), "it has a link");
        assert!((1..=100).all(|n| shares.of(host(n)).is_none()));
        assert!((101..REMEMBERED + 100).all(|n| shares.of(host(n)).is_some()));
    }

    #[test]
    fn some_wrong_claims_are_accidents_and_more_lock_the_host_out_for_longer_and_longer() {
        let mut shares = Shares::new();
        let (bad, good) = (of("fd00::1"), of("fd01::1"));
        for _ in 0..ACCIDENTS {
            shares.is_wrong(bad);
            assert!(!shares.is_locked(bad));
        }
        for minutes in [1u64, 2, 4, 8, 16, 32, 60, 60] {
            shares.is_wrong(bad);
            assert!(shares.is_locked(bad) && !shares.is_locked(good));
            testing::pass_ns(minutes * 60_000_000_000 - 1_000_000_000);
            assert!(shares.is_locked(bad), "{minutes}");
            testing::pass_ns(2_000_000_000);
            assert!(!shares.is_locked(bad), "{minutes}");
        }
        testing::pass_ns(FORGOTTEN_NS);
        shares.is_wrong(bad);
        assert!(!shares.is_locked(bad), "it was forgotten");
    }
}
