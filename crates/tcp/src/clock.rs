//! Time stamps: this end's clock, and the peer's as it was seen last (RFC 7323, 3 to 5).

use crate::Nanos;
use crate::seq::{Position, older};
use crate::wire::Stamps;

/// 5.5: a time stamp that is older says nothing: 24 days.
const OUTDATED: Nanos = 24 * 24 * 3600 * 1_000_000_000;

/// The clock that this end's time stamps are from. It goes on where the kernel's was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    value: u32,
    at: Nanos,
    /// How long a tick is.
    tick: Nanos,
}

impl Clock {
    pub(crate) fn new(value: u32, at: Nanos, tick: Nanos) -> Self {
        Self { value, at, tick: tick.max(1) }
    }

    /// TSval at that time.
    pub(crate) const fn stamp(&self, now: Nanos) -> u32 {
        let ticks = now.saturating_sub(self.at) / self.tick;
        self.value.wrapping_add(crate::seq::low32(ticks))
    }

    /// How long ago this came from the clock; nothing where it cannot have.
    pub(crate) fn since(&self, now: Nanos, echo: u32) -> Option<Nanos> {
        let ticks = self.stamp(now).wrapping_sub(echo).cast_signed();
        // An echo of 0 is what a peer sends that has had no time stamp yet.
        (echo != 0).then_some(u64::try_from(ticks).ok()?.saturating_mul(self.tick))
    }
}

/// Both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    pub(crate) own: Clock,
    /// TS.Recent, and when it was set. None before the first segment: the kernel does not say.
    recent: Option<(u32, Nanos)>,
}

impl Clocks {
    pub(crate) const fn new(own: Clock, recent: Option<u32>) -> Self {
        Self {
            own,
            recent: match recent {
                Some(value) => Some((value, own.at)),
                None => None,
            },
        }
    }

    /// 5.3, R1: the segment is an old duplicate (PAWS).
    pub(crate) fn is_outdated(&self, now: Nanos, value: u32) -> bool {
        self.recent
            .is_some_and(|(recent, at)| older(value, recent) && now.saturating_sub(at) < OUTDATED)
    }

    /// 4.3 (2): what is echoed is the time stamp of the segment that the acknowledgement was due
    /// for first: `seq <= Last.ACK.sent`. It was found not to be outdated.
    pub(crate) const fn take(&mut self, now: Nanos, value: u32, seq: Position, acked: Position) {
        if seq <= acked {
            self.recent = Some((value, now));
        }
    }

    /// For a segment that goes out.
    pub(crate) fn stamps(&self, now: Nanos) -> Stamps {
        Stamps { value: self.own.stamp(now), echo: self.recent.map_or(0, |(recent, _)| recent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn the_clock_goes_on_and_wraps() {
        let clock = Clock::new(u32::MAX, 10 * MS, MS);
        assert_eq!(clock.stamp(10 * MS), u32::MAX);
        assert_eq!(clock.stamp(12 * MS), 1);
        assert_eq!(clock.since(15 * MS, 1), Some(3 * MS));
        assert_eq!(clock.since(12 * MS, 2), None, "it is not yet");
        assert_eq!(clock.since(12 * MS, 0), None);
    }

    #[test]
    fn an_older_time_stamp_is_outdated_for_24_days() {
        let mut clocks = Clocks::new(Clock::new(0, 0, MS), None);
        assert!(!clocks.is_outdated(0, 7), "nothing is known yet");
        clocks.take(0, 100, 5, 5);
        assert!(clocks.is_outdated(1, 99) && !clocks.is_outdated(1, 100));
        assert!(clocks.is_outdated(1, 100_u32.wrapping_sub(0x7fff_ffff)));
        assert!(!clocks.is_outdated(1, 101) && !clocks.is_outdated(OUTDATED, 99));
    }

    #[test]
    fn the_echo_is_that_of_the_first_segment_that_is_not_acknowledged() {
        let mut clocks = Clocks::new(Clock::new(0, 0, MS), None);
        assert_eq!(clocks.stamps(0).echo, 0);
        clocks.take(0, 100, 5, 5);
        clocks.take(0, 101, 10, 5);
        assert_eq!(clocks.stamps(0).echo, 100, "the second would shorten the round trip");
        clocks.take(0, 102, 10, 15);
        assert_eq!(clocks.stamps(0).echo, 102);
    }
}
