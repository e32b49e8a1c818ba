//! Which bytes are lost: RACK; and whether the last ones are: TLP (both RFC 8985).

use super::super::seq::Position;
use super::rtt::Rtt;
use super::scoreboard::{Fate, Record, Scoreboard};
use crate::Nanos;

/// 7.2: WCDelAckT, what a peer may take to acknowledge a single segment.
const DELAYED_ACK: Nanos = 200_000_000;
/// 7.2: without a measure of the round trip.
const PTO_INITIAL: Nanos = 1_000_000_000;
/// A probe takes a packet and an answer: not sooner than a peer has had a moment to run. Linux has
/// two of its ticks there.
const PTO_MIN: Nanos = 2_000_000;
/// 6.2, step 4.
const PERSIST: u8 = 16;

#[derive(Debug)]
pub(crate) struct Rack {
    /// RACK.xmit_ts, RACK.end_seq: of the latest sent of what has arrived.
    sent_at: Nanos,
    end: Position,
    /// RACK.rtt.
    rtt: Nanos,
    /// RACK.fack: the highest that has arrived.
    highest: Position,
    reordering_seen: bool,
    dsack_round: Option<Position>,
    multiplier: u64,
    persist: u8,
}

impl Rack {
    pub(crate) const fn new(rtt: Nanos) -> Self {
        Self {
            sent_at: 0,
            end: 0,
            rtt,
            highest: 0,
            reordering_seen: false,
            dsack_round: None,
            multiplier: 1,
            persist: 0,
        }
    }

    /// 6.2, steps 1 to 3, of a record that has arrived. `echo_is_older` says that the time stamp
    /// that came back is older than the record's last transmission.
    pub(crate) fn on_arrival(
        &mut self,
        now: Nanos,
        record: &Record,
        echo_is_older: bool,
        rtt: &mut Rtt,
    ) {
        let taken = now.saturating_sub(record.sent_at);
        // Step 3. (Of one record that is told in parts, the later part comes later.)
        if record.to > self.highest {
            self.highest = record.to;
        } else if !record.again {
            self.reordering_seen = true;
        }
        if record.again {
            // Step 2: it may be the first transmission that has arrived.
            if echo_is_older || rtt.smallest().is_none_or(|smallest| taken < smallest) {
                return;
            }
        } else {
            rtt.note_smallest(now, taken);
        }
        if record.sent_after(self.sent_at, self.end) {
            self.sent_at = record.sent_at;
            self.end = record.to;
            self.rtt = taken;
        }
    }

    /// 6.2, step 4: what DSACKs say of the window. Beyond the RFC: something was sent again in
    /// vain, so from now on DupThresh is not trusted; of a segment that was sent again before it
    /// arrived step 3 sees no reordering.
    pub(crate) const fn on_dsack(&mut self, una: Position, nxt: Position, dsack: bool) {
        if let Some(round) = self.dsack_round
            && una >= round
        {
            self.dsack_round = None;
        }
        self.reordering_seen |= dsack;
        if dsack && self.dsack_round.is_none() {
            self.dsack_round = Some(nxt);
            self.multiplier = self.multiplier.saturating_add(1);
            self.persist = PERSIST;
        }
    }

    /// 6.2, step 4: a recovery has ended.
    pub(crate) const fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiplier = 1;
        }
    }

    /// RACK_update_reo_wnd. `certain`: recovery is under way, or enough has been SACKed.
    fn window(&self, certain: bool, rtt: &Rtt) -> Nanos {
        if !self.reordering_seen && certain {
            return 0;
        }
        let smallest = rtt.smallest().unwrap_or(0);
        // (A quarter of each, so that nothing overflows.)
        let window = (smallest / 4).saturating_mul(self.multiplier);
        window.min(rtt.srtt().unwrap_or(window))
    }

    /// 6.2, step 5: marks what is lost, and says when to look again.
    pub(crate) fn detect(
        &self,
        now: Nanos,
        board: &mut Scoreboard,
        certain: bool,
        rtt: &Rtt,
    ) -> Option<Nanos> {
        let patience = self.rtt.saturating_add(self.window(certain, rtt));
        let mut again = None;
        board.lose(|record| {
            // Only what was sent before something that has arrived.
            if record.sent_after(self.sent_at, self.end)
                || (record.sent_at, record.to) == (self.sent_at, self.end)
            {
                return false;
            }
            let due = record.sent_at.saturating_add(patience);
            if due > now {
                again = again.max(Some(due));
            }
            due <= now
        });
        again
    }

    /// 6.3: a timeout. The first bytes are lost, and what is overdue.
    pub(crate) fn on_timeout(&self, now: Nanos, board: &mut Scoreboard, una: Position, rtt: &Rtt) {
        let patience = self.rtt.saturating_add(self.window(true, rtt));
        board.lose(|record| record.from == una || record.sent_at.saturating_add(patience) <= now);
    }

    #[cfg(test)]
    pub(crate) const fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }
}

/// A probe that is under way.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// TLP.end_seq.
    end: Position,
    /// TLP.is_retrans.
    again: bool,
}

/// What an acknowledgement says of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probed {
    /// Nothing.
    Nothing,
    /// It has mended a loss, which the sender has to answer as any (7.4.2).
    Mended,
}

#[derive(Debug, Default)]
pub(crate) struct Tlp {
    probe: Option<Probe>,
}

impl Tlp {
    pub(crate) const fn is_out(&self) -> bool {
        self.probe.is_some()
    }

    /// 7.3: a probe was sent, up to `end`.
    pub(crate) const fn sent(&mut self, end: Position, again: bool) {
        self.probe = Some(Probe { end, again });
    }

    pub(crate) const fn forget(&mut self) {
        self.probe = None;
    }

    /// 7.4.2, TLP_process_ack. `bare`: a duplicate acknowledgement without SACK blocks.
    pub(crate) fn on_ack(&mut self, ack: Position, dsack: bool, bare: bool) -> Probed {
        let Some(probe) = self.probe.filter(|probe| ack >= probe.end) else {
            return Probed::Nothing;
        };
        if !probe.again || dsack || ack == probe.end && bare {
            self.probe = None;
        } else if ack > probe.end {
            self.probe = None;
            return Probed::Mended;
        }
        Probed::Nothing
    }

    /// 7.2, TLP_calc_PTO: how long after the last transmission a probe is due.
    pub(crate) fn timeout(rtt: &Rtt, single: bool) -> Nanos {
        match rtt.srtt() {
            None => PTO_INITIAL,
            Some(srtt) => {
                let patience = if single { DELAYED_ACK } else { PTO_MIN };
                srtt.saturating_mul(2).saturating_add(patience)
            }
        }
    }

    /// 7.2: whether there is something to find out, nothing being known to be missing.
    pub(crate) fn is_due(&self, board: &Scoreboard) -> bool {
        !self.is_out()
            && board.sacked() == 0
            && board.lost() == 0
            && board.last().is_some_and(|last| last.fate == Fate::InFlight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn board(records: &[(Position, Nanos)]) -> Scoreboard {
        let mut board = Scoreboard::new(64).unwrap();
        let mut from = 0;
        for &(to, sent_at) in records {
            board.push(Record { from, to, sent_at, fate: Fate::InFlight, again: false });
            from = to;
        }
        board
    }

    fn rtt() -> Rtt {
        let mut rtt = Rtt::new(40 * MS, 0, 200 * MS, 0);
        rtt.note_smallest(0, 40 * MS);
        rtt
    }

    fn arrive(rack: &mut Rack, rtt: &mut Rtt, board: &mut Scoreboard, at: (u64, u64, Nanos)) {
        let (from, to, now) = at;
        board.sack(from, to, |record| rack.on_arrival(now, &record, false, rtt));
    }

    #[test]
    fn what_was_sent_before_what_arrived_is_lost_after_a_quarter_round_trip() {
        let (mut rack, mut rtt) = (Rack::new(40 * MS), rtt());
        let mut board = board(&[(1, 0), (2, MS), (3, 2 * MS)]);
        arrive(&mut rack, &mut rtt, &mut board, (1, 2, 41 * MS));
        // The first: sent at 0, a round trip of 40 ms, and a window of 10 ms.
        assert_eq!(rack.detect(41 * MS, &mut board, false, &rtt), Some(50 * MS));
        assert_eq!(board.lost(), 0);
        assert_eq!(rack.detect(50 * MS, &mut board, false, &rtt), None);
        assert_eq!(board.lost(), 1, "and not the third, which was sent later");
    }

    #[test]
    fn without_reordering_three_segments_make_it_certain() {
        let (mut rack, mut rtt) = (Rack::new(40 * MS), rtt());
        let mut board = board(&[(1, 0), (2, 0), (3, 0), (4, 0)]);
        arrive(&mut rack, &mut rtt, &mut board, (1, 4, 40 * MS));
        assert_eq!(rack.detect(40 * MS, &mut board, true, &rtt), None);
        assert_eq!(board.lost(), 1);
    }

    #[test]
    fn reordering_is_seen_and_given_time() {
        let (mut rack, mut rtt) = (Rack::new(40 * MS), rtt());
        let mut board = board(&[(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)]);
        arrive(&mut rack, &mut rtt, &mut board, (3, 4, 40 * MS));
        assert!(!rack.reordering_seen());
        arrive(&mut rack, &mut rtt, &mut board, (1, 2, 41 * MS));
        assert!(rack.reordering_seen());
        arrive(&mut rack, &mut rtt, &mut board, (4, 6, 41 * MS));
        // In spite of the certainty. The round trip is that of the last: 41 ms; 10 for the window.
        assert_eq!(rack.detect(41 * MS, &mut board, true, &rtt), Some(51 * MS));
        assert_eq!(board.lost(), 0);
    }

    #[test]
    fn a_duplicate_that_the_peer_reports_widens_the_window_once_a_round() {
        let mut rack = Rack::new(40 * MS);
        let rtt = Rtt::new(100 * MS, 0, 200 * MS, 0);
        rack.reordering_seen = true;
        assert_eq!(rack.window(true, &rtt), 25 * MS);
        rack.on_dsack(10, 100, true);
        rack.on_dsack(20, 110, true);
        assert_eq!(rack.window(true, &rtt), 50 * MS);
        rack.on_dsack(100, 200, true);
        assert_eq!(rack.window(true, &rtt), 75 * MS);
        for more in [200, 300, 400] {
            rack.on_dsack(more, more + 100, true);
        }
        assert_eq!(rack.window(true, &rtt), 100 * MS, "at most a round trip");
        for _ in 0..16 {
            assert_eq!(rack.window(true, &rtt), 100 * MS);
            rack.on_recovered();
        }
        assert_eq!(rack.window(true, &rtt), 25 * MS);
    }

    #[test]
    fn an_ambiguous_arrival_is_no_measure() {
        let (mut rack, mut rtt) = (Rack::new(40 * MS), rtt());
        let mut record =
            Record { from: 0, to: 1, sent_at: 100 * MS, fate: Fate::InFlight, again: true };
        rack.on_arrival(110 * MS, &record, false, &mut rtt);
        assert_eq!(rack.sent_at, 0, "sooner than a round trip");
        rack.on_arrival(150 * MS, &record, true, &mut rtt);
        assert_eq!(rack.sent_at, 0, "an older time stamp came back");
        rack.on_arrival(150 * MS, &record, false, &mut rtt);
        assert_eq!((rack.sent_at, rack.rtt), (100 * MS, 50 * MS));
        record.sent_at = 99 * MS;
        rack.on_arrival(170 * MS, &record, false, &mut rtt);
        assert_eq!(rack.sent_at, 100 * MS, "sent before what is known to have arrived");
    }

    #[test]
    fn a_lost_retransmission_is_found() {
        let (mut rack, mut rtt) = (Rack::new(40 * MS), rtt());
        let mut board = board(&[(1, 0), (2, 0), (3, 60 * MS)]);
        board.lose(|record| record.from == 0);
        board.sent_again(0, 1, 50 * MS);
        arrive(&mut rack, &mut rtt, &mut board, (2, 3, 100 * MS));
        let _ = rack.detect(100 * MS, &mut board, true, &rtt);
        assert_eq!(board.lost(), 2, "the retransmission, and the second, never answered");
    }

    #[test]
    fn a_probe_that_repeats_is_answered_by_less_where_it_mended_something() {
        let mut tlp = Tlp::default();
        let cases = [
            (5, false, false, Probed::Nothing, true),
            (10, true, false, Probed::Nothing, false),
            (10, false, true, Probed::Nothing, false),
            (10, false, false, Probed::Nothing, true),
            (11, false, false, Probed::Mended, false),
        ];
        for (ack, dsack, bare, says, is_out) in cases {
            tlp.sent(10, true);
            assert_eq!((tlp.on_ack(ack, dsack, bare), tlp.is_out()), (says, is_out));
        }
        tlp.sent(10, false);
        assert_eq!((tlp.on_ack(10, false, false), tlp.is_out()), (Probed::Nothing, false));
    }

    #[test]
    fn a_probe_waits_two_round_trips_and_longer_for_a_single_segment() {
        assert_eq!(Tlp::timeout(&rtt(), false), 82 * MS);
        assert_eq!(Tlp::timeout(&rtt(), true), 280 * MS);
        assert_eq!(Tlp::timeout(&Rtt::new(0, 0, 0, 0), true), 1000 * MS);
    }
}
