//! A place for each link. Where there is none, one of the host that has most of them gives way
//! ([`super::shares`] counts).

use super::Remote;
use super::link::{Fault, Link, Phase};
use super::shares::{PART, Source};
use netacc_proto::rendezvous::Role;

impl Remote {
    pub(super) fn uncount_link(&mut self, role: Role, source: Source, greeted: bool) {
        if role == Role::Acceptor {
            self.shares.drop_link(source, greeted);
        }
    }

    /// A place for a link. Where there is none, one of the host that has most gives way; and who
    /// has not greeted, because anybody can call, before those that have.
    pub(super) fn room_for_link(&mut self, role: Role, source: Source) -> Option<usize> {
        let most = self.shares.links_max;
        if role == Role::Acceptor {
            // Callers have a part of the places, and no host more than a part of all.
            if self.shares.callers as usize >= most / PART {
                self.evict(true, None);
            }
            if self.has_too_many(source, 1) && !self.may_come_back(source) {
                self.evict(false, Some(source));
                if self.has_too_many(source, 1) {
                    return None;
                }
            }
        }
        if let Some(i) = self.links.iter().position(Option::is_none) {
            return Some(i);
        }
        if self.links.len() >= most {
            self.evict(false, None);
            return self.links.iter().position(Option::is_none);
        }
        self.links.try_reserve(1).ok()?;
        self.links.push(None);
        Some(self.links.len() - 1)
    }

    /// That host has more than its part, with so many more links.
    pub(super) fn has_too_many(&self, source: Source, more: usize) -> bool {
        let has = more + self.shares.of(source).map_or(0, |s| s.links as usize);
        // (One is nobody's whole part, so that a caller's costs no look at all of them.)
        let used = || self.links.iter().flatten().filter(|l| l.in_use()).count();
        has > 1 && has > part(self.shares.links_max, used())
    }

    /// Who resumes a link calls as anybody does, and the broken one still counts. So there is a
    /// place for a caller for each that broke; what he says shows which of them he wants.
    fn may_come_back(&self, source: Source) -> bool {
        let is_broken = |l: &&Link| {
            l.role == Role::Acceptor && l.phase == Phase::Broken && Source::of(l.peer) == source
        };
        let broken = self.links.iter().flatten().map(|l| &**l).filter(is_broken).count();
        self.shares.of(source).is_some_and(|s| (s.callers as usize) < broken)
    }

    /// Makes room by ending a link that carries nothing: a caller's if there is one, then the one
    /// that has been of no use for longest, of the host that has most of them, or of that one.
    fn evict(&mut self, callers: bool, of: Option<Source>) {
        let most = |l: &Link| {
            let share = self.shares.of(Source::of(l.peer)).filter(|_| l.role == Role::Acceptor);
            share.map_or(0, |s| if callers { s.callers } else { s.links })
        };
        let idle = self.links.iter().enumerate().filter_map(|(i, l)| {
            let l = l.as_deref().filter(|l| !l.in_use() && l.phase != Phase::Gone)?;
            let is_caller = l.is_caller();
            if (callers && !is_caller) || of.is_some_and(|of| of != Source::of(l.peer)) {
                return None;
            }
            Some((i, (!is_caller, core::cmp::Reverse(most(l)), l.since)))
        });
        if let Some((i, _)) = idle.min_by_key(|(_, order)| *order) {
            self.on_link_fault(i, Fault::Idle);
        }
    }
}

/// How many links one host may have where `used` of `most` are in use: no more than a third of
/// what is left. So a host alone has a quarter, several have less each, and however many there
/// are, there is room for one more.
fn part(most: usize, used: usize) -> usize {
    (most.saturating_sub(used) / (PART - 1)).clamp(1, most / PART)
}

#[cfg(test)]
mod tests {
    use super::super::shares::{LINKS_MAX, LINKS_MIN};
    use super::*;

    #[test]
    fn hosts_that_take_all_they_can_leave_room_for_others() {
        for most in [LINKS_MIN, 256, LINKS_MAX] {
            for greedy in [1, 4, 12] {
                let mut has = std::vec![0; greedy];
                let mut used = 0;
                // In turn, until nobody gets more.
                loop {
                    let before = used;
                    for links in &mut has {
                        if *links < part(most, used) {
                            (*links, used) = (*links + 1, used + 1);
                        }
                    }
                    if used == before {
                        break;
                    }
                }
                assert!(used <= most * greedy / (greedy + PART - 1) + greedy, "{most} {greedy}");
                assert!(most - used >= most / 8, "{most} {greedy}: {used}");
                assert!(part(most, used) >= most / 40, "for the next one");
            }
            // To the last place everybody may have one.
            assert_eq!(part(most, most), 1);
        }
    }
}
