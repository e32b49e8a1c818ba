//! Packet scripts: a connection, what it receives and when, and what it has to send.
//!
//! This end sends from sequence number 1000 and receives from 5000, in segments of 1000 bytes;
//! there is no scale and no time stamp unless a script says so. Times are in milliseconds.

use super::host::MS;
use crate::wire::{Blocks, Flags, Options, Segment, Stamps};
use crate::{
    Bounds, Connection, Negotiated, Outgoing, Parameters, Reason, ReceiveStart, SendStart,
    StampStart, Verdict, Wishes, Write,
};
use std::vec::Vec;

pub(super) const SEND: u32 = 1000;
pub(super) const RECEIVE: u32 = 5000;

pub(super) fn parameters() -> Parameters {
    Parameters {
        now: 0,
        send: SendStart {
            una: SEND,
            in_flight: 0,
            queued: 0,
            window: 60_000,
            window_max: 60_000,
            scale: 0,
            mss: 1000,
            cwnd: 10,
            ssthresh: u32::MAX,
            srtt: 100 * MS,
            rttvar: 10 * MS,
            rto_min: 200 * MS,
        },
        receive: ReceiveStart {
            nxt: RECEIVE,
            acked: RECEIVE,
            window: 20_000,
            scale: 0,
            room: 20_000,
            capacity: 20_000,
            segment: 1000,
            segment_max: 1000,
        },
        options: Negotiated { sack: true, stamps: None, ecn: false },
        wishes: Wishes { nodelay: true, keep_alive: None, user_timeout: None, ack_delay: 40 * MS },
        bounds: Bounds { records: 256, ranges: 16, timeouts: 3, run: 1000 },
    }
}

pub(super) struct Script {
    pub(super) connection: Connection,
    pub(super) now: u64,
}

impl Script {
    pub(super) fn of(parameters: &Parameters) -> Self {
        Self { connection: Connection::taken_over(parameters).unwrap(), now: parameters.now / MS }
    }

    pub(super) fn new(change: impl FnOnce(&mut Parameters)) -> Self {
        let mut parameters = parameters();
        change(&mut parameters);
        Self::of(&parameters)
    }

    pub(super) fn stamped(value: u32, change: impl FnOnce(&mut Parameters)) -> Self {
        Self::new(|parameters| {
            parameters.options.stamps = Some(StampStart { value, tick: MS, recent: None });
            change(parameters);
        })
    }

    pub(super) fn at(&mut self, now: u64) -> &mut Self {
        self.now = now;
        self
    }

    /// The application has written so many bytes in all.
    pub(super) fn written(&mut self, to: u64) -> &mut Self {
        self.connection.on_written(self.now * MS, to, false);
        self
    }

    pub(super) fn takes(&mut self, segment: Segment, length: u32) -> Verdict {
        let verdict = self.connection.on_segment(self.now * MS, &segment, length);
        self.connection.check();
        verdict
    }

    /// An acknowledgement of so many bytes, with SACK blocks, all counted from the take-over.
    pub(super) fn ack(&mut self, to: u32, sack: &[(u32, u32)]) -> &mut Self {
        let verdict = self.takes(ack(to, sack), 0);
        assert!(matches!(verdict, Verdict::Taken { .. }), "{verdict:?}");
        self
    }

    /// Bytes of the received stream, counted from the take-over: where they are to be written.
    pub(super) fn data(&mut self, from: u32, to: u32) -> Option<Write> {
        match self.takes(data(from), to - from) {
            Verdict::Taken { write } => write,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn timer(&mut self) -> Option<Reason> {
        let over = self.connection.on_timer(self.now * MS);
        if over.is_none() {
            self.connection.check();
        }
        over
    }

    /// The next timer, in milliseconds.
    pub(super) fn next_timer(&self) -> Option<u64> {
        self.connection.next_timer().map(|at| at / MS)
    }

    pub(super) fn all(&mut self) -> Vec<Outgoing> {
        let mut all = Vec::new();
        while let Some(out) = self.connection.poll_send(self.now * MS) {
            all.push(out);
        }
        all
    }

    /// Which bytes are sent now.
    pub(super) fn sent(&mut self) -> Vec<(u64, u64)> {
        self.all()
            .iter()
            .filter(|out| out.length > 0)
            .map(|out| (out.offset, out.offset + out.length))
            .collect()
    }

    /// The one segment without bytes that is sent now.
    pub(super) fn answer(&mut self) -> Option<Segment> {
        let all = self.all();
        assert!(all.len() <= 1 && all.iter().all(|out| out.length == 0), "{all:?}");
        all.first().map(|out| out.segment)
    }

    /// Whether an acknowledgement is sent now, of so many bytes.
    pub(super) fn acks(&mut self) -> Option<u32> {
        self.answer().map(|segment| segment.ack.wrapping_sub(RECEIVE))
    }

    /// So many bytes go out, in segments of 1000, one each millisecond from now.
    pub(super) fn spread(&mut self, count: u64) -> &mut Self {
        let figures = self.connection.figures();
        let from = self.connection.acknowledged() + figures.outstanding + figures.unsent;
        for n in 1..=count {
            self.written(from + n * 1000);
            assert_eq!(self.sent().len(), 1, "the window is too small for the script");
            self.now += 1;
        }
        self
    }

    /// The first segments, for which acknowledgements are not delayed, are over.
    pub(super) fn warm(&mut self) -> &mut Self {
        for n in 0..16 {
            self.data(n, n + 1);
            assert_eq!(self.acks(), Some(n + 1));
        }
        self
    }
}

pub(super) fn ack(to: u32, sack: &[(u32, u32)]) -> Segment {
    let mut blocks = Blocks::default();
    for &(from, to) in sack {
        blocks.push(SEND.wrapping_add(from), SEND.wrapping_add(to));
    }
    let options = Options { sack: blocks, ..Options::default() };
    Segment {
        seq: RECEIVE,
        ack: SEND.wrapping_add(to),
        flags: Flags::ACK,
        window: 60_000,
        options,
        congested: false,
    }
}

pub(super) fn data(from: u32) -> Segment {
    Segment { seq: RECEIVE.wrapping_add(from), ..ack(0, &[]) }
}

pub(super) fn stamped(segment: Segment, value: u32, echo: u32) -> Segment {
    let options = Options { stamps: Some(Stamps { value, echo }), ..segment.options };
    Segment { options, ..segment }
}
