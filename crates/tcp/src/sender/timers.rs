//! What the sender waits for (RFC 6298, 5; RFC 8985, 6 and 7; RFC 9293, 3.8.6.1; RFC 5482).

use super::rack::Tlp;
use super::scoreboard::Fate;
use super::{Phase, Sender};
use crate::Nanos;
use crate::connection::Reason;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The retransmission timeout.
    Timeout,
    /// RACK looks again.
    Reorder,
    /// A probe for the last bytes.
    Probe,
}

impl Sender {
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        let retransmission = self.retransmission().map(|(at, _)| at);
        let persist = self.persist.filter(|_| !self.persist_due).map(|persist| persist.at);
        [retransmission, persist, self.cork_at].into_iter().flatten().min()
    }

    /// RFC 8985, 8: one timer serves all three.
    fn retransmission(&self) -> Option<(Nanos, Due)> {
        if self.outstanding() == 0 {
            return None;
        }
        let mut next = (self.timeout_from.saturating_add(self.rtt.rto()), Due::Timeout);
        if let Some(after) = self.user_timeout {
            next.0 = next.0.min(self.progress_at.saturating_add(after)).max(self.timeout_from);
        }
        if let Some(at) = self.reorder_at
            && at < next.0
        {
            return Some((at, Due::Reorder));
        }
        let open = matches!(self.phase, Phase::Open);
        if open && !self.probe_due && self.tlp.is_due(&self.board) {
            let single = self.outstanding() <= self.mss;
            let at = self.probe_from.saturating_add(Tlp::timeout(&self.rtt, single));
            if at < next.0 {
                return Some((at, Due::Probe));
            }
        }
        Some(next)
    }

    /// Does what is due, and says why the kernel should go on.
    pub(crate) fn on_timer(&mut self, now: Nanos) -> Option<Reason> {
        if self.cork_at.is_some_and(|at| at <= now) {
            self.cork_at = None;
            self.uncorked = self.written;
        }
        if let Some((at, due)) = self.retransmission()
            && at <= now
        {
            match due {
                Due::Probe => self.probe_due = true,
                Due::Reorder => {
                    let known = self.board.lost();
                    let entered = self.look_for_losses(now);
                    // (No acknowledgement may come any more that lets something be sent.)
                    self.on_delivery(now, (0, 0), entered || self.board.lost() > known);
                }
                Due::Timeout => return self.on_timeout(now),
            }
        }
        self.on_persist(now)
    }

    fn on_persist(&mut self, now: Nanos) -> Option<Reason> {
        let persist = self.persist.as_mut().filter(|persist| persist.at <= now)?;
        if let Some(after) = self.user_timeout
            && self.unanswered > 0
            && now.saturating_sub(persist.began) >= after
        {
            return Some(Reason::UserTimeout);
        }
        if self.unanswered >= self.timeouts_max {
            return Some(Reason::Timeouts);
        }
        persist.times = persist.times.saturating_add(1);
        persist.at = now.saturating_add(self.rtt.backed_off(persist.times));
        self.unanswered += 1;
        self.persist_due = true;
        None
    }

    /// What `Connection` sends where no new data can be: a segment that the peer has to answer.
    pub(crate) const fn take_persist(&mut self) -> bool {
        self.usable_is_closed() && core::mem::replace(&mut self.persist_due, false)
    }

    const fn usable_is_closed(&self) -> bool {
        self.una + self.window <= self.nxt
    }

    /// RFC 6298 (5.4) to (5.7); RFC 5681, 3.1.
    fn on_timeout(&mut self, now: Nanos) -> Option<Reason> {
        if let Some(after) = self.user_timeout
            && now.saturating_sub(self.progress_at) >= after
        {
            return Some(Reason::UserTimeout);
        }
        if self.timeouts >= self.timeouts_max {
            return Some(Reason::Timeouts);
        }
        self.timeouts += 1;
        self.counters.timeouts += 1;
        self.rtt.back_off();
        if self.board.iter().next().is_some_and(|first| first.fate == Fate::Sacked) {
            // It has arrived and is not acknowledged: it was thrown away (RFC 2018, 8).
            self.board.forget_sacks();
        }
        self.rack.on_timeout(now, &mut self.board, self.una, &self.rtt);
        self.tlp.forget();
        self.probe_due = false;
        self.reorder_at = None;
        // RFC 5681, 3.1 (4): once for this window, also where recovery has done that already.
        if matches!(self.phase, Phase::Open) && self.una >= self.answered_until {
            self.answered_until = self.nxt;
            self.cubic.on_congestion(self.outstanding());
            self.counters.reductions += 1;
        }
        self.cubic.on_timeout();
        // What is not overdue is still thought to be in the network: one segment beside it.
        self.cubic.set_cwnd(self.board.in_flight() + self.cubic.cwnd());
        self.phase = Phase::Loss(self.nxt);
        self.timeout_from = now;
        None
    }
}
