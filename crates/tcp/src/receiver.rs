//! The receiving half: what has arrived, what is acknowledged, which window is offered.
//!
//! The bytes are the caller's: [`Receiver::on_data`] says where they belong, gaps or none. What is
//! readable is never written again; what lies behind a gap may be.
//!
//! Invariants: `nxt <= edge <= limit`; the edge that was offered never comes back (RFC 9293,
//! 3.8.6); ranges lie behind `nxt`, and below the edge.

mod acks;
mod ranges;

use crate::connection::{Parameters, Refusal, Write};
use crate::seq::{Numbers, Position, START};
use crate::wire::Blocks;
use crate::{Counters, Nanos};
use acks::Acks;
use ranges::{Inserted, Ranges};

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) numbers: Numbers,
    /// RCV.NXT.
    pub(crate) nxt: Position,
    /// RCV.NXT + RCV.WND: the edge of the window that was offered.
    pub(crate) edge: Position,
    /// Up to here the caller has room.
    limit: Position,
    capacity: u64,
    /// The same as the peer sees it, in units of the scale.
    seen_edge: Position,
    /// Last.ACK.sent (RFC 7323, 4.3).
    pub(crate) acked: Position,
    scale: u8,
    segment: u64,
    ranges: Ranges,
    /// A duplicate that is to be reported (RFC 2883).
    duplicate: Option<(Position, Position)>,
    acks: Acks,
    /// The network was congested, and the peer has not said that it knows (RFC 3168, 6.1.3).
    congested: bool,
    ecn: bool,
}

impl Receiver {
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, Refusal> {
        let receive = &parameters.receive;
        // The kernel acknowledged up to `nxt`, or less, and counted its window from there.
        let unacknowledged = receive.nxt.wrapping_sub(receive.acked);
        let window = receive.window.checked_sub(unacknowledged).ok_or(Refusal::Window)?;
        if receive.room < u64::from(window) {
            return Err(Refusal::Window);
        }
        let edge = START + u64::from(window);
        let segment = u64::from(receive.segment.max(1));
        Ok(Self {
            numbers: Numbers::new(receive.nxt),
            nxt: START,
            edge,
            limit: START + receive.room,
            capacity: receive.capacity.max(receive.room),
            seen_edge: edge,
            acked: START - u64::from(unacknowledged),
            scale: receive.scale,
            segment,
            ranges: Ranges::new(parameters.bounds.ranges).ok_or(Refusal::NoMemory)?,
            duplicate: None,
            acks: Acks::new(
                parameters.wishes.ack_delay,
                segment,
                u64::from(receive.segment_max).max(segment),
            ),
            congested: false,
            ecn: parameters.options.ecn,
        })
    }

    /// Bytes of an acceptable segment. Says where they belong, if they are wanted.
    pub(crate) fn on_data(
        &mut self,
        now: Nanos,
        from: Position,
        length: u32,
        counters: &mut Counters,
    ) -> Option<Write> {
        let to = from + u64::from(length);
        if from < self.nxt {
            self.on_refused(from, to, counters);
        }
        let (begin, end) = (from.max(self.nxt), to.min(self.edge));
        if begin >= end {
            self.acks.at_once();
            return None;
        }
        if begin == self.nxt {
            let filled = !self.ranges.is_empty();
            self.nxt = self.ranges.join(end);
            if filled {
                // RFC 5681, 4.2: a gap, or a part of one.
                self.acks.at_once();
            } else {
                self.acks.on_data(now, end - begin);
            }
        } else {
            counters.out_of_order += 1;
            self.acks.quickly();
            match self.ranges.insert(begin, end) {
                Inserted::Kept => {}
                Inserted::Known => {
                    counters.duplicates += 1;
                    self.duplicate = Some((begin, end));
                }
                Inserted::NoPlace => {
                    counters.not_kept += 1;
                    return None;
                }
            }
        }
        Some(Write { offset: begin - START, skip: begin - from, length: end - begin })
    }

    /// Bytes that are not wanted are answered at once, and what was there already is reported
    /// (RFC 2883, 4), as Linux's tcp_send_dupack does it.
    pub(crate) fn on_refused(&mut self, from: Position, to: Position, counters: &mut Counters) {
        if from < self.nxt {
            self.duplicate = Some((from, to.min(self.nxt)));
            counters.duplicates += 1;
            self.acks.quickly();
        } else {
            self.acks.at_once();
        }
    }

    /// The IP header said CE, or the peer CWR (RFC 3168, 6.1.3).
    pub(crate) const fn on_congestion(&mut self, congested: bool, answered: bool) {
        if !self.ecn {
            return;
        }
        if answered {
            self.congested = false;
        }
        if congested {
            if !self.congested {
                self.acks.quickly();
            }
            self.congested = true;
        }
    }

    /// ECE is due on what goes out.
    pub(crate) const fn is_congested(&self) -> bool {
        self.congested
    }

    /// The application has read; the caller has room up to `limit`. It never comes back.
    pub(crate) fn on_room(&mut self, limit: Position) {
        self.limit = self.limit.max(limit);
        // RFC 9293, 3.8.6.2.2: a window that is worth it is told at once.
        let worth = (2 * self.segment).min(self.capacity / 2).max(1);
        if self.offer() >= self.seen_edge + worth {
            self.acks.at_once();
        }
    }

    /// The edge that could be offered, as the peer would see it.
    fn offer(&self) -> Position {
        let room = self.limit.saturating_sub(self.nxt).min(u64::from(u16::MAX) << self.scale);
        self.nxt + (room >> self.scale << self.scale)
    }

    /// A segment goes out: the window that it offers, in units of the scale.
    pub(crate) fn window(&mut self) -> u16 {
        let offer = self.offer();
        // RFC 9293, 3.8.6.2.2: the edge moves by a segment, or half of the buffer.
        if offer >= self.edge + self.segment.min(self.capacity / 2) {
            self.edge = offer;
        }
        // What is offered may round down (RFC 7323, 2.4); what was offered is still taken.
        let field = u16::try_from((self.edge - self.nxt) >> self.scale).unwrap_or(u16::MAX);
        self.seen_edge = self.nxt + (u64::from(field) << self.scale);
        self.acked = self.nxt;
        self.acks.sent();
        field
    }

    /// How many blocks [`blocks`](Self::blocks) has, where there is room for `most`.
    pub(crate) fn block_count(&self, most: usize) -> usize {
        (usize::from(self.duplicate.is_some()) + self.ranges.len()).min(most)
    }

    /// The blocks of a segment that goes out, `most` of them: a duplicate, then what has changed
    /// last.
    pub(crate) fn blocks(&mut self, most: usize) -> Blocks {
        let mut blocks = Blocks::default();
        let duplicate = self.duplicate.take();
        let (numbers, ranges) = (self.numbers, &self.ranges);
        for (from, to) in duplicate.into_iter().chain(ranges.latest()).take(most) {
            blocks.push(numbers.number(from), numbers.number(to));
        }
        blocks
    }

    pub(crate) const fn acks_at_once(&mut self) {
        self.acks.at_once();
    }

    pub(crate) const fn on_waiting(&mut self) {
        self.acks.on_waiting();
    }

    pub(crate) const fn on_timer(&mut self, now: Nanos) {
        self.acks.on_timer(now);
    }

    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        self.acks.next_timer()
    }

    pub(crate) const fn ack_is_due(&self) -> bool {
        self.acks.is_due()
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!(self.acked <= self.nxt && self.nxt <= self.edge && self.edge <= self.limit);
        for (from, to) in self.ranges.latest() {
            assert!(self.nxt < from && from < to && to <= self.edge);
        }
    }
}
