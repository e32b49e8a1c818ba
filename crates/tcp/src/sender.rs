//! The sending half: what may be sent, what has arrived, what is lost.
//!
//! - [`scoreboard`]: what is outstanding, and what has become of it;
//! - [`rack`]: when something is lost, and probes for the last bytes (RFC 8985);
//! - [`rtt`]: round-trip time and timeout (RFC 6298);
//! - [`cubic`], [`prr`]: how much may be in the network (RFC 9438, 6937);
//! - [`arrivals`]: what an acknowledgement changes;
//! - [`next`]: what is sent next;
//! - [`timers`]: what is due when.
//!
//! Invariants: `una <= nxt <= written`, and the records of the scoreboard cover `una..nxt`. While
//! something is outstanding a timer runs; while something is held back by the window alone, the
//! persist timer does.

pub(crate) mod arrivals;
pub(crate) mod cubic;
pub(crate) mod next;
pub(crate) mod prr;
pub(crate) mod rack;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod timers;

use super::seq::{Numbers, Position, START};
use crate::connection::{Parameters, Refusal};
use crate::{Counters, Nanos};
use cubic::Cubic;
use prr::Prr;
use rack::{Rack, Tlp};
use rtt::Rtt;
use scoreboard::{Fate, Record, Scoreboard};

/// In which state congestion control is (RFC 5681, 6675).
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nothing is known to be lost.
    Open,
    /// Something was, and is being sent again.
    Recovery(Prr),
    /// A timeout has passed; until everything below this is acknowledged.
    Loss(Position),
}

/// A window that lets nothing be sent is asked about (RFC 9293, 3.8.6.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Persist {
    pub(crate) began: Nanos,
    pub(crate) at: Nanos,
    pub(crate) times: u32,
}

#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) numbers: Numbers,
    /// SND.UNA, SND.NXT, and where what the application has written ends.
    pub(crate) una: Position,
    pub(crate) nxt: Position,
    pub(crate) written: Position,
    /// SND.WND, MAX.SND.WND, SND.WL1, SND.WL2 (RFC 9293, 3.3.1, 3.8.6.2.1).
    pub(crate) window: u64,
    pub(crate) window_max: u64,
    pub(crate) wl1: Position,
    wl2: Position,
    pub(crate) scale: u8,
    /// Payload of a full segment that has time stamps, if they are on, and no other option.
    pub(crate) mss: u64,
    run: u64,
    pub(crate) board: Scoreboard,
    rack: Rack,
    tlp: Tlp,
    pub(crate) rtt: Rtt,
    pub(crate) cubic: Cubic,
    phase: Phase,
    /// The end of the last segment that was not full: Nagle's algorithm waits for it alone.
    small: Position,
    /// Up to here what was sent was bounded by the congestion window.
    limited_until: Position,
    /// Up to here the network's congestion has been answered.
    answered_until: Position,
    ecn: bool,
    /// CWR is due (RFC 3168, 6.1.2).
    cwr: bool,
    /// A round trip is measured once until this is acknowledged.
    rtt_until: Position,
    sent_at: Nanos,
    /// When there was progress last, or something to make progress with.
    progress_at: Nanos,
    pub(crate) timeouts: u32,
    timeouts_max: u32,
    user_timeout: Option<Nanos>,
    /// From when the retransmission timeout and the probe timeout run.
    timeout_from: Nanos,
    probe_from: Nanos,
    reorder_at: Option<Nanos>,
    probe_due: bool,
    pub(crate) persist: Option<Persist>,
    persist_due: bool,
    /// Probes of a closed window without an answer since.
    pub(crate) unanswered: u32,
    nodelay: bool,
    /// TCP_CORK, MSG_MORE: more will follow.
    more: bool,
    cork_at: Option<Nanos>,
    /// Up to here the ceiling of a cork has passed.
    uncorked: Position,
    pub(crate) counters: Counters,
}

impl Sender {
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, Refusal> {
        let (send, now) = (&parameters.send, parameters.now);
        let mss = u64::from(send.mss);
        let board = Scoreboard::new(parameters.bounds.records).ok_or(Refusal::NoMemory)?;
        let nxt = START + u64::from(send.in_flight);
        let segments = |count: u32| u64::from(count).saturating_mul(mss);
        let mut sender = Self {
            numbers: Numbers::new(send.una),
            una: START,
            nxt,
            written: START + u64::from(send.queued),
            window: u64::from(send.window),
            window_max: u64::from(send.window_max.max(send.window)),
            wl1: START,
            wl2: START,
            scale: send.scale,
            mss,
            run: u64::from(parameters.bounds.run).max(mss),
            board,
            rack: Rack::new(send.srtt),
            tlp: Tlp::default(),
            rtt: Rtt::new(send.srtt, send.rttvar, send.rto_min, now),
            cubic: Cubic::new(mss, segments(send.cwnd), segments(send.ssthresh)),
            phase: Phase::Open,
            small: START,
            limited_until: nxt,
            answered_until: START,
            ecn: parameters.options.ecn,
            cwr: false,
            rtt_until: START,
            sent_at: now,
            progress_at: now,
            timeouts: 0,
            timeouts_max: parameters.bounds.timeouts,
            user_timeout: parameters.wishes.user_timeout,
            timeout_from: now,
            probe_from: now,
            reorder_at: None,
            probe_due: false,
            persist: None,
            persist_due: false,
            unanswered: 0,
            nodelay: parameters.wishes.nodelay,
            more: false,
            cork_at: None,
            uncorked: START,
            counters: Counters::default(),
        };
        if nxt > START {
            // The kernel sent them, when is not known: no measure.
            let (from, fate) = (START, Fate::InFlight);
            sender.board.push(Record { from, to: nxt, sent_at: now, fate, again: true });
        }
        sender.watch_window(now);
        Ok(sender)
    }

    /// The application has written up to here; with `more` it will write on soon.
    pub(crate) fn on_written(&mut self, now: Nanos, to: Position, more: bool) {
        self.written = self.written.max(to);
        self.more = more;
        if !more {
            self.cork_at = None;
        }
        self.watch_window(now);
    }

    pub(crate) const fn set_nodelay(&mut self, nodelay: bool) {
        self.nodelay = nodelay;
    }

    pub(crate) const fn set_user_timeout(&mut self, after: Option<Nanos>) {
        self.user_timeout = after;
    }

    /// Of the path there and back; what is outstanding keeps its boundaries.
    pub(crate) fn set_mss(&mut self, mss: u64) {
        self.mss = mss;
        self.run = self.run.max(mss);
        self.cubic.set_mss(mss);
    }

    pub(crate) const fn outstanding(&self) -> u64 {
        self.nxt - self.una
    }

    /// What the window still lets through.
    fn usable(&self) -> u64 {
        (self.una + self.window).saturating_sub(self.nxt)
    }

    /// What congestion control still lets through.
    fn allowance(&self) -> u64 {
        match &self.phase {
            Phase::Recovery(prr) => prr.left(),
            _ => self.cubic.cwnd().saturating_sub(self.board.in_flight()),
        }
    }

    /// Whether what is unsent waits for nothing but the peer's window.
    fn waits_for_window(&self) -> bool {
        let unsent = self.written - self.nxt;
        let usable = self.usable();
        self.outstanding() == 0
            && unsent > 0
            && usable < self.mss.min(unsent)
            && !self.half_a_window(usable)
    }

    /// RFC 9293, 3.8.6.2.1 (3): Fs is 1/2.
    const fn half_a_window(&self, usable: u64) -> bool {
        usable > 0 && usable >= self.window_max / 2
    }

    /// Starts or stops the persist timer, after anything that it depends on has changed.
    fn watch_window(&mut self, now: Nanos) {
        if !self.waits_for_window() {
            self.persist = None;
            self.persist_due = false;
        } else if self.persist.is_none() {
            let at = now.saturating_add(self.rtt.backed_off(0));
            self.persist = Some(Persist { began: now, at, times: 0 });
            self.unanswered = 0;
        }
    }

    pub(crate) const fn phase_name(&self) -> crate::connection::Congestion {
        use crate::connection::Congestion;
        match self.phase {
            Phase::Open => Congestion::Open,
            Phase::Recovery(_) => Congestion::Recovery,
            Phase::Loss(_) => Congestion::Loss,
        }
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!(self.una <= self.nxt && self.nxt <= self.written);
        self.board.check(self.una, self.nxt);
        if self.outstanding() > 0 {
            assert!(self.next_timer().is_some());
        } else if self.waits_for_window() {
            assert!(self.persist.is_some());
        }
    }
}
