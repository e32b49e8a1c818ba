//! What is sent next.

use super::scoreboard::{Fate, Record};
use super::{Phase, Sender};
use crate::Nanos;
use crate::sender::cubic::Cubic;
use crate::seq::Position;

/// TCP_CORK: the longest that a part of a segment is held back, as Linux has it.
const CORK: Nanos = 200_000_000;

/// Bytes to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) from: Position,
    pub(crate) to: Position,
    /// What a segment holds: the device cuts the run into such.
    pub(crate) segment: u64,
    pub(crate) push: bool,
    /// CWR, and that the packet may be marked (RFC 3168, 6.1.5: not what is sent again).
    pub(crate) cwr: bool,
    pub(crate) ecn_capable: bool,
}

/// How new data may go past what usually holds it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haste {
    No,
    /// A probe for a loss: beside the congestion window.
    Probe,
    /// A probe of the window: a part of a segment.
    Persist,
}

impl Sender {
    /// The next run, if something may be sent; `options` is what options take of each segment's
    /// room beside time stamps.
    pub(crate) fn next(&mut self, now: Nanos, options: u64) -> Option<Run> {
        let segment = self.mss.saturating_sub(options).max(1);
        let run = if core::mem::take(&mut self.persist_due) {
            self.new_data(now, segment, Haste::Persist)
        } else {
            self.probe(now, segment)
                .or_else(|| self.lost(now, segment))
                .or_else(|| self.new_data(now, segment, Haste::No))
        }?;
        self.watch_window(now);
        Some(run)
    }

    /// RFC 8985, 7.3, TLP_send_probe.
    fn probe(&mut self, now: Nanos, segment: u64) -> Option<Run> {
        if !core::mem::take(&mut self.probe_due)
            || !matches!(self.phase, Phase::Open)
            || !self.tlp.is_due(&self.board)
        {
            return None;
        }
        self.counters.probes += 1;
        let (run, again) = match self.new_data(now, segment, Haste::Probe) {
            Some(run) => (run, false),
            None => {
                let Some(last) = self.board.last_up_to(segment) else {
                    // No room to divide it: the timeout has to do.
                    self.tlp.sent(self.nxt, false);
                    return None;
                };
                (self.send_again(now, last.from, last.to, segment), true)
            }
        };
        self.tlp.sent(self.nxt, again);
        // The timeout begins again behind it.
        self.timeout_from = now;
        Some(run)
    }

    /// What was lost goes first (RFC 6675, 4, NextSeg (1)), as much as congestion control allows.
    fn lost(&mut self, now: Nanos, segment: u64) -> Option<Run> {
        let lost = self.board.first_lost()?;
        let most = self.allowance().min(self.run);
        let length =
            if most >= lost.len() { lost.len().min(self.run) } else { whole(most, segment) };
        if length == 0 {
            return None;
        }
        Some(self.send_again(now, lost.from, lost.from + length, segment))
    }

    fn send_again(&mut self, now: Nanos, from: Position, to: Position, segment: u64) -> Run {
        self.board.sent_again(from, to, now);
        self.counters.bytes_again += to - from;
        if from == self.una {
            self.timeout_from = now;
        }
        self.sent(now, to - from);
        let push = to == self.written;
        Run { from, to, segment, push, cwr: false, ecn_capable: false }
    }

    fn new_data(&mut self, now: Nanos, segment: u64, haste: Haste) -> Option<Run> {
        let unsent = self.written - self.nxt;
        if unsent == 0 || !self.board.has_room() {
            return None;
        }
        self.restart_after_idleness(now);
        let length = self.new_length(now, segment, haste);
        if length == 0 {
            return None;
        }
        let (from, to) = (self.nxt, self.nxt + length);
        if !length.is_multiple_of(segment) {
            self.small = to;
        }
        if self.outstanding() == 0 {
            // RFC 6298 (5.1)
            self.timeout_from = now;
            self.progress_at = now;
        }
        self.board.push(Record { from, to, sent_at: now, fate: Fate::InFlight, again: false });
        self.nxt = to;
        self.sent(now, length);
        if to == self.written {
            self.cork_at = None;
        }
        let push = to == self.written && !self.more;
        let cwr = core::mem::take(&mut self.cwr);
        Some(Run { from, to, segment, push, cwr, ecn_capable: self.ecn })
    }

    /// How much new data may be sent.
    fn new_length(&mut self, now: Nanos, segment: u64, haste: Haste) -> u64 {
        let unsent = self.written - self.nxt;
        let usable = self.usable();
        let most = unsent.min(usable).min(match haste {
            Haste::No => self.run,
            Haste::Probe | Haste::Persist => segment,
        });
        if haste == Haste::Persist {
            return most;
        }
        let allowance = if haste == Haste::Probe { segment } else { self.allowance() };
        if allowance < most {
            self.limited_until = self.nxt;
        }
        // CWR stands on one segment, not on all that a device makes of a run.
        let most = most.min(allowance).min(if self.cwr { segment } else { u64::MAX });
        let full = whole(most, segment);
        if most == unsent {
            // All that is left: the last segment need not be full.
            return if most == full || self.may_send_part(now, most - full) { most } else { full };
        }
        if full == 0 && most == usable && self.half_a_window(usable) {
            return most;
        }
        full
    }

    /// Nagle's algorithm (RFC 9293, 3.7.4), which waits for parts of segments alone, as Linux
    /// does; TCP_CORK.
    fn may_send_part(&mut self, now: Nanos, part: u64) -> bool {
        debug_assert!(part > 0);
        if self.more && self.written > self.uncorked {
            self.cork_at.get_or_insert(now.saturating_add(CORK));
            return false;
        }
        self.nodelay || self.small <= self.una
    }

    /// RFC 5681, 4.1.
    fn restart_after_idleness(&mut self, now: Nanos) {
        if self.outstanding() == 0
            && now.saturating_sub(self.sent_at) > self.rtt.rto()
            && self.sent_at < now
        {
            self.cubic.on_idle(Cubic::initial(self.mss));
            self.sent_at = now;
        }
    }

    fn sent(&mut self, now: Nanos, length: u64) {
        self.sent_at = now;
        self.probe_from = now;
        self.counters.bytes_sent += length;
        if let Phase::Recovery(prr) = &mut self.phase {
            prr.sent(length);
        }
    }
}

/// Of so many bytes, those of full segments.
const fn whole(bytes: u64, segment: u64) -> u64 {
    bytes - bytes % segment
}
