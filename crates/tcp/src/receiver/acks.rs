//! When what has arrived is acknowledged (RFC 5681, 4.2; RFC 9293, 3.8.6.3).
//!
//! An acknowledgement is delayed only where something may still come that carries it: a reply.
//! Who waits for input without having replied says so (`Connection::on_waiting`), and then it goes
//! at once: a delay costs nobody anything.

use crate::Nanos;

/// How many segments are acknowledged at once in the beginning and after a gap, when the sender's
/// window is small; as Linux does it.
const QUICK: u8 = 16;

#[derive(Debug)]
pub(super) struct Acks {
    /// RFC 5681, 4.2: at most 500 ms. Linux: 40 ms.
    delay: Nanos,
    /// One is due, at the latest at that time.
    deadline: Option<Nanos>,
    now: bool,
    quick: u8,
    /// What has come since the last acknowledgement.
    bytes: u64,
    /// What the peer's full segments hold, as far as seen.
    segment: u64,
    segment_max: u64,
}

impl Acks {
    pub(super) const fn new(delay: Nanos, segment: u64, segment_max: u64) -> Self {
        Self { delay, deadline: None, now: false, quick: QUICK, bytes: 0, segment, segment_max }
    }

    /// So many bytes have come in order.
    pub(super) fn on_data(&mut self, now: Nanos, bytes: u64) {
        self.bytes += bytes;
        if bytes >= self.segment {
            // (More than a segment is several that a device has put together.)
            self.segment = bytes.min(self.segment_max);
        }
        if self.quick > 0 {
            self.quick -= 1;
            self.now = true;
        } else if self.bytes >= 2 * self.segment {
            // "At least every second full-sized segment."
            self.now = true;
        } else {
            self.deadline.get_or_insert(now.saturating_add(self.delay));
        }
    }

    /// One is due at once: a gap, a duplicate, what is not acceptable, a window that has opened.
    pub(super) const fn at_once(&mut self) {
        self.now = true;
    }

    /// The peer is recovering, or slowing down: it needs each one.
    pub(super) const fn quickly(&mut self) {
        self.now = true;
        self.quick = QUICK;
    }

    /// No reply will come that could carry it.
    pub(super) const fn on_waiting(&mut self) {
        if self.deadline.is_some() {
            self.now = true;
        }
    }

    pub(super) const fn on_timer(&mut self, now: Nanos) {
        if let Some(at) = self.deadline
            && at <= now
        {
            self.now = true;
        }
    }

    pub(super) const fn is_due(&self) -> bool {
        self.now
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.deadline.filter(|_| !self.now)
    }

    /// A segment has gone out, which acknowledges everything.
    pub(super) const fn sent(&mut self) {
        self.now = false;
        self.deadline = None;
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Nanos = 40_000_000;

    fn warm() -> Acks {
        let mut acks = Acks::new(DELAY, 1000, 1000);
        for _ in 0..QUICK {
            acks.on_data(0, 10);
            assert!(acks.is_due(), "the first ones are not delayed");
            acks.sent();
        }
        acks
    }

    #[test]
    fn every_second_full_segment_is_acknowledged() {
        let mut acks = warm();
        acks.on_data(0, 1000);
        assert!(!acks.is_due());
        acks.on_data(0, 1000);
        assert!(acks.is_due());
    }

    #[test]
    fn the_delay_ends_with_the_timer_or_with_who_waits() {
        let mut acks = warm();
        acks.on_data(5, 10);
        acks.on_data(7, 10);
        assert_eq!(acks.next_timer(), Some(5 + DELAY));
        acks.on_timer(4 + DELAY);
        assert!(!acks.is_due());
        acks.on_timer(5 + DELAY);
        assert!(acks.is_due());
        acks.sent();
        acks.on_waiting();
        assert!(!acks.is_due(), "nothing is owed");
        acks.on_data(9, 10);
        acks.on_waiting();
        assert!(acks.is_due());
    }

    #[test]
    fn a_peer_with_smaller_segments_is_not_kept_waiting() {
        let mut acks = Acks::new(DELAY, 536, 1460);
        acks.quick = 0;
        acks.on_data(0, 536);
        acks.on_data(0, 536);
        assert!(acks.is_due());
        acks.sent();
        acks.on_data(0, 1460);
        assert!(!acks.is_due(), "the segment was taken to be of 536 bytes, and is one of 1460");
    }
}
