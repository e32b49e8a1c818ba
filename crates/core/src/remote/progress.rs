//! Whether what is posted on a queue pair arrives.
//!
//! A device says that it cannot reach its peer when its own retries have ended: after half a second
//! or half a minute, by its driver's choice, or never. Meanwhile the link, which is TCP, may work.
//! So while messages are posted that are not known to have arrived, the peer's process is asked
//! over the link how many have come (`PairAsk`, `PairHas`). If one that was posted
//! `NACC_RDMA_STALL_MS` ago has not, and that number has stood still for half as long, the pair is
//! lost, and its connections go on over TCP. Where the peer does not answer, because its process or
//! host stands still, nothing is known, and nothing happens: TCP would wait, too.
//!
//! What an application reads plays no part: a message has come when the peer's library has polled
//! it, which it does before it answers.

/// What one end knows of the arrival of what it has posted on a pair. Counts are modulo 2^32.
#[derive(Default)]
pub(super) struct Progress {
    /// So many messages have arrived.
    arrived: u32,
    /// So many were posted at an earlier look, and had not all arrived; when that was.
    awaited: (u32, u64),
    /// Since when it is known that no more have, though more were posted; 0: it is not.
    stands_since: u64,
    /// The question that is not answered yet: when it was asked (0: there is none), and how many
    /// messages were posted then.
    asked: (u64, u32),
}

/// What an answer comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Moves,
    Stalled,
    /// So many were never posted.
    Impossible,
}

/// `a` is not before `b`.
fn reaches(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() >= 0
}

impl Progress {
    /// Whether all that was posted is known to have arrived. `granted`: what messages of the peer's
    /// have said of it.
    pub(super) fn is_done(&mut self, sent: u32, granted: u32) -> bool {
        if reaches(granted, self.arrived) && granted != self.arrived {
            (self.arrived, self.stands_since) = (granted, 0);
        }
        let done = reaches(self.arrived, sent);
        if done {
            self.stands_since = 0;
        }
        done
    }

    /// Whether what was awaited at an earlier look has arrived. What is posted by now is awaited
    /// then: as long as messages go to and fro nothing is asked.
    pub(super) fn moves(&mut self, now: u64, sent: u32) -> bool {
        let moves = reaches(self.arrived, self.awaited.0);
        if moves {
            self.awaited = (sent, now);
        }
        moves
    }

    /// Whether to ask now.
    pub(super) fn asks(&mut self, now: u64, sent: u32) -> bool {
        if self.asked.0 != 0 {
            return false;
        }
        self.asked = (now, sent);
        true
    }

    /// The peer says that `messages` have come. `sent`: posted by now.
    pub(super) fn hears(&mut self, now: u64, messages: u32, sent: u32, stall_ns: u64) -> Verdict {
        let (asked_at, posted) = core::mem::take(&mut self.asked);
        if !reaches(sent, messages) {
            return Verdict::Impossible;
        }
        if asked_at == 0 {
            // Nobody has asked since the link was resumed.
            return Verdict::Moves;
        }
        if reaches(messages, posted) {
            // All that there was.
            (self.arrived, self.stands_since) = (messages, 0);
        } else if self.stands_since == 0 || messages != self.arrived {
            (self.arrived, self.stands_since) = (messages, now);
        } else {
            // Nothing had come from when that was first heard until this was asked, at least: that
            // is longer where answers take longer.
            let (awaited, since) = self.awaited;
            if stall_ns != 0
                && !reaches(messages, awaited)
                && asked_at.saturating_sub(since) >= stall_ns
                && asked_at.saturating_sub(self.stands_since) >= stall_ns / 2
            {
                return Verdict::Stalled;
            }
        }
        Verdict::Moves
    }

    /// The verdict has fallen on another pair of the link: whether it holds for this one, too, of
    /// which an answer has said long enough ago that something has not come.
    pub(super) fn stands_as_well(&self, now: u64, stall_ns: u64) -> bool {
        self.stands_since != 0 && now.saturating_sub(self.stands_since) >= stall_ns / 4
    }

    /// The link has broken: what was asked is not answered, and time without it counts for nothing.
    pub(super) fn forget_question(&mut self) {
        (self.stands_since, self.asked) = (0, (0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: u64 = 200;

    /// Looks at `now`, asks, and hears of `messages` a moment later.
    fn answer(p: &mut Progress, now: u64, sent: u32, messages: u32) -> Verdict {
        let _ = p.moves(now, sent);
        assert!(p.asks(now, sent));
        assert!(!p.asks(now, sent), "one question at a time");
        p.hears(now + 1, messages, sent, STALL)
    }

    #[test]
    fn what_was_posted_long_ago_and_stands_still_is_stalled() {
        // Also where the count wraps around.
        for base in [0, u32::MAX - 2] {
            let mut p = Progress { arrived: base, awaited: (base, 0), ..Progress::default() };
            let n = |n: u32| base.wrapping_add(n);
            assert!(!p.is_done(n(5), n(0)));
            assert!(p.moves(1000, n(5)), "of nothing it is known that it should have come");
            for now in (1025..1200).step_by(25) {
                assert_eq!(answer(&mut p, now, n(5), n(3)), Verdict::Moves, "{now}");
            }
            assert_eq!(answer(&mut p, 1200, n(5), n(3)), Verdict::Stalled);
        }
    }

    #[test]
    fn what_moves_is_not_stalled_however_old_it_is() {
        let mut p = Progress::default();
        assert!(p.moves(1000, 5));
        // A slow network brings one after another.
        for (now, come) in [(1100, 1), (1190, 2), (1280, 3), (1370, 4)] {
            assert_eq!(answer(&mut p, now, 9, come), Verdict::Moves, "{now}");
        }
        assert_eq!(answer(&mut p, 1470, 9, 4), Verdict::Moves, "for half as long");
        assert_eq!(answer(&mut p, 1471, 9, 4), Verdict::Stalled);
    }

    #[test]
    fn what_was_posted_just_now_is_not_stalled() {
        let mut p = Progress::default();
        assert!(p.moves(1000, 5));
        assert_eq!(answer(&mut p, 1100, 5, 3), Verdict::Moves);
        // All that is awaited has come, and more is posted.
        assert_eq!(answer(&mut p, 1300, 9, 5), Verdict::Moves);
        assert_eq!(answer(&mut p, 1310, 9, 5), Verdict::Moves, "awaited from here on");
        assert_eq!(answer(&mut p, 1500, 9, 5), Verdict::Moves);
        assert_eq!(answer(&mut p, 1510, 9, 5), Verdict::Stalled);
    }

    #[test]
    fn what_has_all_come_does_not_stand_still() {
        let mut p = Progress::default();
        for now in (1000..10_000).step_by(300) {
            assert_eq!(answer(&mut p, now, 5, 5), Verdict::Moves);
            assert!(p.is_done(5, 2));
        }
        // What the peer's messages say has come does not count either.
        assert_eq!(answer(&mut p, 10_000, 8, 5), Verdict::Moves);
        assert!(p.is_done(8, 8));
        assert_eq!(answer(&mut p, 20_000, 9, 8), Verdict::Moves);
    }

    #[test]
    fn nothing_is_asked_while_messages_say_enough() {
        let mut p = Progress::default();
        for n in 1..100 {
            assert!(!p.is_done(n * 10, n * 10 - 8));
            assert!(p.moves(1000, n * 10));
        }
        assert!(!p.is_done(1000, 982));
        assert!(!p.moves(1000, 1000), "of 990 only 982 have come");
        assert!(!p.moves(1000, 1000));
        assert!(!p.is_done(1000, 990) && p.moves(1000, 1000));
    }

    #[test]
    fn slow_answers_give_more_time() {
        let mut p = Progress::default();
        assert!(p.moves(1000, 5));
        // It stands from 1500 on.
        for (at, took, verdict) in [
            (1200, 300, Verdict::Moves),
            (1500, 300, Verdict::Moves),
            (1599, 1, Verdict::Moves),
            (1600, 1, Verdict::Stalled),
        ] {
            assert!(p.asks(at, 5));
            assert_eq!(p.hears(at + took, 3, 5, STALL), verdict, "{at}");
        }
        // One that took very long (a peer that was stopped) says no more than others.
        let mut p = Progress::default();
        assert!(p.moves(1000, 5));
        assert!(p.asks(1100, 5));
        assert_eq!(p.hears(6100, 3, 5, STALL), Verdict::Moves);
        assert_eq!(answer(&mut p, 6199, 5, 3), Verdict::Moves);
        assert_eq!(answer(&mut p, 6225, 5, 3), Verdict::Stalled);
    }

    #[test]
    fn without_a_limit_nothing_is_stalled() {
        let mut p = Progress::default();
        assert!(p.moves(1000, 5));
        for at in [2000, 3000, 900_000] {
            assert!(p.asks(at, 5));
            assert_eq!(p.hears(at + 1, 3, 5, 0), Verdict::Moves);
        }
    }

    #[test]
    fn a_verdict_holds_for_what_is_known_to_stand() {
        let mut p = Progress::default();
        assert!(p.moves(1000, 5) && !p.stands_as_well(9000, STALL), "nobody has asked");
        assert_eq!(answer(&mut p, 1025, 5, 3), Verdict::Moves);
        assert!(!p.stands_as_well(1075, STALL) && p.stands_as_well(1076, STALL));
        assert_eq!(answer(&mut p, 1100, 6, 6), Verdict::Moves);
        assert!(!p.stands_as_well(9000, STALL), "all has come");
    }

    #[test]
    fn a_broken_link_is_no_proof() {
        let mut p = Progress::default();
        assert!(p.moves(1000, 5));
        assert_eq!(answer(&mut p, 1100, 5, 3), Verdict::Moves);
        assert!(p.asks(1150, 5));
        p.forget_question();
        assert_eq!(answer(&mut p, 9000, 5, 3), Verdict::Moves);
        assert_eq!(answer(&mut p, 9101, 5, 3), Verdict::Stalled);
    }

    #[test]
    fn what_was_never_posted_cannot_have_come() {
        let mut p = Progress::default();
        assert_eq!(answer(&mut p, 1000, 5, 6), Verdict::Impossible);
        assert_eq!(p.hears(1000, 6, 5, STALL), Verdict::Impossible, "unasked, too");
    }
}
