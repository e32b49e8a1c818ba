//! One connection: both halves, and what they share.

mod judge;
mod keep_alive;
mod parameters;
mod repair;

pub use parameters::{
    Bounds, KeepAlive, Negotiated, Parameters, ReceiveStart, Refusal, SendStart, StampStart, Wishes,
};
pub use repair::{Repair, RepairWindow};

use crate::clock::{Clock, Clocks};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::sender::arrivals::Ack;
use crate::seq::{Position, START};
use crate::wire::{Blocks, Flags, Options, Segment};
use crate::{Counters, Nanos};
use judge::Judgement;
use keep_alive::Idle;

/// Why the kernel has to go on with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer sends no more (FIN).
    Fin,
    /// The peer, or somebody who knows its numbers, resets the connection (RST).
    Reset,
    /// Urgent data.
    Urgent,
    /// A signature, or an option of MPTCP.
    Foreign,
    /// A segment without the time stamp that was agreed on.
    NoTimeStamp,
    /// Timeouts without progress, as many as [`Bounds::timeouts`] says.
    Timeouts,
    /// TCP_USER_TIMEOUT has passed without progress.
    UserTimeout,
    /// Probes of SO_KEEPALIVE without an answer.
    KeepAlive,
}

/// Bytes of a segment that belong into the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where, counted in the received stream from the take-over.
    pub offset: u64,
    /// So many bytes of the payload are passed over.
    pub skip: u64,
    /// So many of those behind are written.
    pub length: u64,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was taken. The bytes of `write` are to be copied before anybody is told of
    /// [`Connection::readable`].
    Taken {
        /// Where its bytes belong, if it has some that are wanted.
        write: Option<Write>,
    },
    /// It was nothing for this connection, which may have an answer all the same.
    Dropped,
    /// It is the kernel's, untouched, behind the connection itself.
    GiveBack(Reason),
}

/// A segment to be sent. Its bytes are the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its header.
    pub segment: Segment,
    /// Where its bytes begin, counted in the sent stream from the take-over.
    pub offset: u64,
    /// How many there are.
    pub length: u64,
    /// Where these are more: the device divides them into segments of this size.
    pub segment_size: u64,
    /// The IP header says ECT(0).
    pub ecn_capable: bool,
}

/// What congestion control is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Nothing is known to be lost.
    Open,
    /// Losses are being mended.
    Recovery,
    /// A timeout has passed.
    Loss,
}

/// What an operator is told of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The congestion window, in bytes.
    pub cwnd: u64,
    /// The threshold of slow start, in bytes.
    pub ssthresh: u64,
    /// The smoothed round-trip time.
    pub srtt: Option<Nanos>,
    /// Its variation.
    pub rttvar: Nanos,
    /// The retransmission timeout.
    pub rto: Nanos,
    /// Bytes that are sent and not acknowledged.
    pub outstanding: u64,
    /// Of these, those that are thought to be in the network.
    pub in_flight: u64,
    /// Those that are lost and not sent again yet.
    pub lost: u64,
    /// Those that have arrived behind a gap.
    pub sacked: u64,
    /// Written, and not sent yet.
    pub unsent: u64,
    /// The peer's window.
    pub send_window: u64,
    /// The one that is offered to it.
    pub receive_window: u64,
    /// The payload of a full segment.
    pub mss: u64,
    /// What congestion control is doing.
    pub congestion: Congestion,
    /// Timeouts in a row, without an answer since.
    pub timeouts: u32,
    /// What has happened so far.
    pub counters: Counters,
}

/// A connection in the state ESTABLISHED of RFC 9293, which is the only one there is here.
///
/// It is driven by four calls: [`on_segment`](Self::on_segment) for each that comes,
/// [`on_written`](Self::on_written) and [`on_room`](Self::on_room) when the application has written
/// or read, [`on_timer`](Self::on_timer) at the time that [`next_timer`](Self::next_timer) says.
/// After each of them [`poll_send`](Self::poll_send) is called until it has nothing more, or the
/// device has no room. Times never go back.
///
/// Once it has said why the kernel should go on ([`over`](Self::over)), it takes and sends nothing
/// more; [`give_back`](Self::give_back) says where it has come to.
#[derive(Debug)]
pub struct Connection {
    send: Sender,
    receive: Receiver,
    clocks: Option<Clocks>,
    idle: Idle,
    challenges: Throttle,
    over: Option<Reason>,
}

impl Connection {
    /// Goes on with the kernel's connection.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: the connection stays with the kernel.
    pub fn taken_over(parameters: &Parameters) -> Result<Self, Refusal> {
        parameters.check()?;
        let now = parameters.now;
        let clocks = parameters
            .options
            .stamps
            .map(|stamps| Clocks::new(Clock::new(stamps.value, now, stamps.tick), stamps.recent));
        Ok(Self {
            send: Sender::new(parameters)?,
            receive: Receiver::new(parameters)?,
            clocks,
            idle: Idle::new(now, parameters.wishes.keep_alive),
            challenges: Throttle::default(),
            over: None,
        })
    }

    /// A segment of the peer's, with so many bytes of payload.
    pub fn on_segment(&mut self, now: Nanos, segment: &Segment, length: u32) -> Verdict {
        if let Some(reason) = self.over {
            return Verdict::GiveBack(reason);
        }
        let (seq, ack) = match self.judge(now, segment, length) {
            Judgement::Acceptable { seq, ack } => (seq, ack),
            Judgement::Drop => return self.dropped(),
            Judgement::Answer { from, to } => {
                self.receive.on_refused(from, to, &mut self.send.counters);
                return self.dropped();
            }
            Judgement::Challenge => {
                if self.challenges.allows(now) {
                    self.send.counters.challenges += 1;
                    self.receive.acks_at_once();
                }
                return self.dropped();
            }
            Judgement::GiveBack(reason) => {
                self.over = Some(reason);
                return Verdict::GiveBack(reason);
            }
        };
        self.idle.on_heard(now);
        if let (Some(clocks), Some(stamps)) = (&mut self.clocks, segment.options.stamps) {
            clocks.take(now, stamps.value, seq, self.receive.acked);
        }
        let echo = self.clocks.zip(segment.options.stamps);
        self.send.on_ack(
            now,
            &Ack {
                at: ack,
                seq,
                window: u64::from(segment.window) << self.send.scale,
                sack: segment.options.sack,
                ece: segment.flags.any(Flags::ECE),
                echo: echo.map(|(clocks, stamps)| (stamps.echo, clocks.own)),
                has_data: length > 0,
            },
        );
        self.receive.on_congestion(segment.congested, segment.flags.any(Flags::CWR));
        let mut write = None;
        if length > 0 {
            write = self.receive.on_data(now, seq, length, &mut self.send.counters);
        }
        Verdict::Taken { write }
    }

    const fn dropped(&mut self) -> Verdict {
        self.send.counters.dropped += 1;
        Verdict::Dropped
    }

    /// The application has written: the send buffer reaches up to this offset. With `more` it will
    /// go on soon (MSG_MORE, TCP_CORK), and a part of a segment waits for that.
    pub fn on_written(&mut self, now: Nanos, to: u64, more: bool) {
        self.send.on_written(now, position(to), more);
    }

    /// The application has read: the receive buffer has room up to this offset, for good.
    pub fn on_room(&mut self, to: u64) {
        self.receive.on_room(position(to));
    }

    /// The application waits for input: what it has not answered by now it will not answer soon,
    /// so an acknowledgement that is delayed goes out.
    pub const fn on_waiting(&mut self) {
        self.receive.on_waiting();
    }

    /// When [`on_timer`](Self::on_timer) has something to do, if nothing else happens before.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        if self.over.is_some() {
            return None;
        }
        let idle = if self.is_quiet() { self.idle.next_timer() } else { None };
        [self.send.next_timer(), self.receive.next_timer(), idle].into_iter().flatten().min()
    }

    /// Nothing is outstanding, and nothing waits to be sent.
    const fn is_quiet(&self) -> bool {
        self.send.outstanding() == 0 && self.send.written == self.send.nxt
    }

    /// Does what is due; nothing where it is called too early. Says why the kernel should go on.
    pub fn on_timer(&mut self, now: Nanos) -> Option<Reason> {
        if self.over.is_none() {
            self.receive.on_timer(now);
            self.over = self.send.on_timer(now);
            if self.over.is_none() && self.is_quiet() {
                self.over = self.idle.on_timer(now);
            }
        }
        self.over
    }

    /// The next segment to be sent, if there is one. It is as good as sent: where the device does
    /// not take it, it counts as lost by the network.
    pub fn poll_send(&mut self, now: Nanos) -> Option<Outgoing> {
        if self.over.is_some() {
            return None;
        }
        if self.send.take_persist() || self.idle.take_probe() {
            self.send.counters.probes += 1;
            // Below the window, so the peer has to answer (RFC 9293, 3.10.7.4, first).
            return Some(self.outgoing(now, self.send.una - 1, Flags::ACK));
        }
        let most = if self.clocks.is_some() { 3 } else { 4 };
        let blocks = self.receive.block_count(most);
        if let Some(run) = self.send.next(now, low(Blocks::length(blocks))) {
            let mut flags = Flags::ACK;
            if run.push {
                flags = flags.with(Flags::PSH);
            }
            if run.cwr {
                flags = flags.with(Flags::CWR);
            }
            let mut outgoing = self.outgoing(now, run.from, flags);
            outgoing.offset = run.from - START;
            outgoing.length = run.to - run.from;
            outgoing.segment_size = run.segment;
            outgoing.ecn_capable = run.ecn_capable;
            return Some(outgoing);
        }
        // (SND.NXT, as RFC 9293, 3.10.7.4 has it.)
        self.receive.ack_is_due().then(|| self.outgoing(now, self.send.nxt, Flags::ACK))
    }

    /// A segment without bytes.
    fn outgoing(&mut self, now: Nanos, seq: Position, mut flags: Flags) -> Outgoing {
        if self.receive.is_congested() {
            flags = flags.with(Flags::ECE);
        }
        let stamps = self.clocks.map(|clocks| clocks.stamps(now));
        let sack = self.receive.blocks(if stamps.is_some() { 3 } else { 4 });
        let window = self.receive.window();
        self.send.counters.segments_sent += 1;
        let segment = Segment {
            seq: self.send.numbers.number(seq),
            ack: self.receive.numbers.number(self.receive.nxt),
            flags,
            window,
            options: Options { stamps, sack, foreign: false },
            congested: false,
        };
        Outgoing { segment, offset: 0, length: 0, segment_size: 0, ecn_capable: false }
    }

    /// The peer has everything that was sent up to this offset: the send buffer needs to keep
    /// nothing before it.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.send.una - START
    }

    /// The application may read up to this offset.
    #[must_use]
    pub const fn readable(&self) -> u64 {
        self.receive.nxt - START
    }

    /// What has arrived is to be acknowledged, or a window to be told, at once.
    #[must_use]
    pub const fn acknowledges(&self) -> bool {
        self.receive.ack_is_due()
    }

    /// Why the kernel should go on, if it should.
    #[must_use]
    pub const fn over(&self) -> Option<Reason> {
        self.over
    }

    /// TCP_NODELAY.
    pub const fn set_nodelay(&mut self, nodelay: bool) {
        self.send.set_nodelay(nodelay);
    }

    /// TCP_USER_TIMEOUT.
    pub const fn set_user_timeout(&mut self, after: Option<Nanos>) {
        self.send.set_user_timeout(after);
    }

    /// SO_KEEPALIVE with its times.
    pub const fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.idle.set(keep_alive);
    }

    /// The path has another MTU: the payload of a full segment. Less than
    /// [`MSS_MIN`](crate::MSS_MIN) is taken for that.
    pub fn set_mss(&mut self, mss: u16) {
        self.send.set_mss(u64::from(mss.max(crate::MSS_MIN)));
    }

    /// What has happened so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.send.counters
    }

    /// What an operator is told.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let send = &self.send;
        Figures {
            cwnd: send.cubic.cwnd(),
            ssthresh: send.cubic.ssthresh(),
            srtt: send.rtt.srtt(),
            rttvar: send.rtt.rttvar(),
            rto: send.rtt.rto(),
            outstanding: send.outstanding(),
            in_flight: send.board.in_flight(),
            lost: send.board.lost(),
            sacked: send.board.sacked(),
            unsent: send.written - send.nxt,
            send_window: send.window,
            receive_window: self.receive.edge - self.receive.nxt,
            mss: send.mss,
            congestion: send.phase_name(),
            timeouts: send.timeouts,
            counters: send.counters,
        }
    }

    /// The invariants of both halves.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.send.check();
        self.receive.check();
    }
}

/// Of an offset that the caller counts from the take-over.
const fn position(offset: u64) -> Position {
    START.saturating_add(offset)
}

const fn low(length: usize) -> u64 {
    length as u64
}

/// RFC 5961, 7: answers that anybody can provoke are few.
#[derive(Debug, Default)]
struct Throttle {
    began: Nanos,
    count: u8,
}

impl Throttle {
    const EACH: Nanos = 5_000_000_000;
    const MOST: u8 = 10;

    const fn allows(&mut self, now: Nanos) -> bool {
        if self.count == 0 || now.saturating_sub(self.began) >= Self::EACH {
            self.began = now;
            self.count = 0;
        }
        if self.count < Self::MOST {
            self.count += 1;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_challenges_in_five_seconds() {
        let mut throttle = Throttle::default();
        assert_eq!((0..100).filter(|&now| throttle.allows(now)).count(), 10);
        assert!(throttle.allows(Throttle::EACH));
    }
}
