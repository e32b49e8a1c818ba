//! What an acknowledgement changes (RFC 9293, 3.10.7.4, fifth; RFC 2018, 4; RFC 8985, 6.2).

use super::rack::Probed;
use super::scoreboard::{Fate, Record};
use super::{Phase, Prr, Sender};
use crate::Nanos;
use crate::clock::Clock;
use crate::seq::{Position, older};
use crate::wire::Blocks;

/// An acknowledgement that was found acceptable: `una - window_max <= at <= nxt`.
#[derive(Debug)]
pub(crate) struct Ack {
    pub(crate) at: Position,
    /// Where the segment that carries it begins, in the other direction.
    pub(crate) seq: Position,
    /// SEG.WND, scaled.
    pub(crate) window: u64,
    pub(crate) sack: Blocks,
    pub(crate) ece: bool,
    /// TSecr, and the clock that it comes from.
    pub(crate) echo: Option<(u32, Clock)>,
    pub(crate) has_data: bool,
}

/// What it has brought.
#[derive(Debug, Default)]
struct Arrived {
    /// Bytes that were not known to have arrived: DeliveredData of RFC 6937.
    bytes: u64,
    /// The time of the earliest transmission among what is acknowledged now.
    earliest: Option<Nanos>,
    /// Some of it was sent more than once.
    again: bool,
    dsack: bool,
}

impl Sender {
    pub(crate) fn on_ack(&mut self, now: Nanos, ack: &Ack) {
        self.unanswered = 0;
        if ack.at < self.una {
            return;
        }
        self.take_window(ack);
        let mut arrived = Arrived::default();
        let acked = ack.at - self.una;
        let bare = acked == 0 && ack.sack.is_empty() && !ack.has_data;
        self.take_acknowledged(now, ack, &mut arrived);
        self.take_sacks(now, ack, &mut arrived);
        if acked > 0 {
            self.una = ack.at;
            self.on_progress(now, ack, &arrived);
        }
        self.rack.on_dsack(self.una, self.nxt, arrived.dsack);
        let mended = self.tlp.on_ack(ack.at, arrived.dsack, bare) == Probed::Mended;
        let echoed = ack.ece && self.ecn;
        // RFC 8985, 7.4.2; RFC 3168, 6.1.2: once in a window, and losses have their own answer.
        if (mended || echoed) && matches!(self.phase, Phase::Open) && self.answer_congestion() {
            self.cubic.fall_to_ssthresh();
        }
        let ended = self.end_phase();
        let entered = self.look_for_losses(now);
        // What ends a recovery, or tells of congestion, lets no window grow.
        let grows = if ended || echoed || mended { 0 } else { acked };
        self.on_delivery(now, (grows, arrived.bytes), entered);
        self.watch_window(now);
    }

    /// RFC 9293, 3.10.7.4: SND.WND, from a segment that is not older than the last that said it.
    fn take_window(&mut self, ack: &Ack) {
        if self.wl1 < ack.seq || self.wl1 == ack.seq && self.wl2 <= ack.at {
            self.window = ack.window;
            self.window_max = self.window_max.max(ack.window);
            self.wl1 = ack.seq;
            self.wl2 = ack.at;
        }
    }

    fn take_acknowledged(&mut self, now: Nanos, ack: &Ack, arrived: &mut Arrived) {
        let Self { board, rack, rtt, .. } = self;
        board.acknowledge(ack.at, |record| {
            arrived.again |= record.again;
            if record.fate != Fate::Sacked {
                if !record.again {
                    let earliest = arrived.earliest.unwrap_or(record.sent_at);
                    arrived.earliest = Some(earliest.min(record.sent_at));
                }
                arrived.bytes += record.len();
                rack.on_arrival(now, &record, echo_is_older(ack, &record), rtt);
            }
        });
    }

    fn take_sacks(&mut self, now: Nanos, ack: &Ack, arrived: &mut Arrived) {
        let near = |(from, to): (u32, u32)| {
            (self.numbers.near(self.una, from), self.numbers.near(self.una, to))
        };
        let mut blocks = ack.sack.iter().map(near);
        if let Some((from, to)) = blocks.next() {
            // RFC 2883, 4: below the acknowledgement, or inside of the next block.
            let inside = blocks.next().is_some_and(|(begin, end)| begin <= from && to <= end);
            arrived.dsack = from < to && (to <= ack.at || inside);
        }
        let Self { board, rack, rtt, nxt, .. } = self;
        for (from, to) in ack.sack.iter().map(near) {
            if from >= ack.at && from < to && to <= *nxt {
                board.sack(from, to, |record| {
                    arrived.bytes += record.len();
                    rack.on_arrival(now, &record, echo_is_older(ack, &record), rtt);
                });
            }
        }
        self.counters.dsacks += u64::from(arrived.dsack);
    }

    /// New data is acknowledged.
    fn on_progress(&mut self, now: Nanos, ack: &Ack, arrived: &Arrived) {
        self.timeouts = 0;
        self.progress_at = now;
        self.rtt.progress();
        // RFC 6298 (5.3); RFC 8985, 7.2.
        self.timeout_from = now;
        self.probe_from = now;
        // With a D-SACK it repeats an acknowledgement that was lost: the time would be the loss's.
        if ack.at <= self.rtt_until || (arrived.again && arrived.dsack) {
            return;
        }
        // One measure each round trip (RFC 6298, 3). Of what was sent once (Karn); otherwise by
        // the time stamp, as far as its clock goes (RFC 7323, 4.1).
        let rtt = match (arrived.again, arrived.earliest) {
            (false, Some(sent_at)) => Some(now.saturating_sub(sent_at)),
            _ => ack.echo.and_then(|(echo, clock)| clock.since(now, echo)),
        };
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt);
            self.rtt_until = self.nxt;
        }
    }

    /// The network is congested. Says whether that was not known of this window.
    fn answer_congestion(&mut self) -> bool {
        if self.una < self.answered_until {
            return false;
        }
        self.answered_until = self.nxt;
        self.cubic.on_congestion(self.outstanding());
        self.cwr = self.ecn;
        self.counters.reductions += 1;
        true
    }

    /// RFC 8985, 6.2, step 5. Says whether a recovery has begun.
    pub(super) fn look_for_losses(&mut self, now: Nanos) -> bool {
        let open = matches!(self.phase, Phase::Open);
        if open && self.board.sacked() == 0 {
            // Nothing has arrived that was sent later than something that has not.
            self.reorder_at = None;
            return false;
        }
        // DupThresh, by bytes as RFC 6675, 4, IsLost.
        let certain = !open || self.board.sacked() > 2 * self.mss;
        self.reorder_at = self.rack.detect(now, &mut self.board, certain, &self.rtt);
        if !open || self.board.lost() == 0 {
            return false;
        }
        self.tlp.forget();
        self.answer_congestion();
        self.phase = Phase::Recovery(Prr::new(self.una, self.nxt));
        self.counters.recoveries += 1;
        true
    }

    /// Whether everything that was outstanding when a recovery began is acknowledged.
    fn end_phase(&mut self) -> bool {
        let ended = match &self.phase {
            Phase::Open => false,
            Phase::Recovery(prr) => self.una >= prr.until,
            Phase::Loss(until) => self.una >= *until,
        };
        if ended {
            // RFC 6937, 3: at the end of recovery. After a timeout slow start has come to where
            // it is.
            if matches!(self.phase, Phase::Recovery(_)) {
                self.cubic.fall_to_ssthresh();
            }
            self.phase = Phase::Open;
            self.rack.on_recovered();
        }
        ended
    }

    /// What may be sent because so much was acknowledged, and so much has arrived.
    pub(super) fn on_delivery(&mut self, now: Nanos, (acked, bytes): (u64, u64), entered: bool) {
        let srtt = self.rtt.srtt().unwrap_or(0);
        match &mut self.phase {
            // RFC 9438, 5.8: only where the window was what bounded the sender.
            Phase::Open if acked > 0 && self.una <= self.limited_until => {
                self.cubic.on_ack(now, acked, srtt);
            }
            Phase::Open => {}
            Phase::Recovery(prr) if bytes > 0 || entered => {
                prr.allow(bytes, self.board.in_flight(), self.cubic.ssthresh(), self.mss);
            }
            Phase::Recovery(_) => {}
            Phase::Loss(_) => self.cubic.on_ack(now, bytes, srtt),
        }
    }
}

/// RFC 8985, 6.2, step 2: the acknowledgement is of an earlier transmission.
fn echo_is_older(ack: &Ack, record: &Record) -> bool {
    ack.echo.is_some_and(|(echo, clock)| older(echo, clock.stamp(record.sent_at)))
}
