//! Where a connection has come to, for the kernel to go on from (`TCP_REPAIR`).

use super::{Connection, Reason};
use crate::Nanos;
use crate::seq::{START, low32};

/// What is set by `TCP_REPAIR` and its like. Offsets are counted from the take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Why, if it was not the caller's wish.
    pub reason: Option<Reason>,
    /// `TCP_QUEUE_SEQ` of the send queue: SND.UNA.
    pub send_seq: u32,
    /// What belongs into that queue: from here,
    pub send_from: u64,
    /// over what has been sent at least once,
    pub send_sent: u64,
    /// up to here.
    pub send_to: u64,
    /// `TCP_QUEUE_SEQ` of the receive queue, if that is empty: RCV.NXT. Where the application has
    /// not read all, what is unread goes into it, and its length off this number.
    pub receive_seq: u32,
    /// How far the received stream has come without a gap: up to here it can be read. What lies
    /// behind a gap is forgotten (RFC 2018, 8), and the peer sends it again.
    pub receive_to: u64,
    /// `TCP_REPAIR_WINDOW`.
    pub window: RepairWindow,
    /// `TCP_TIMESTAMP`, where time stamps are on.
    pub stamp: Option<u32>,
    /// `TCPOPT_MAXSEG`: the payload of a full segment.
    pub mss: u64,
}

/// `struct tcp_repair_window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairWindow {
    /// SND.WL1.
    pub snd_wl1: u32,
    /// SND.WND.
    pub snd_wnd: u32,
    /// The largest that it has been.
    pub max_window: u32,
    /// What was offered, counted from the last acknowledgement.
    pub rcv_wnd: u32,
    /// The last acknowledgement.
    pub rcv_wup: u32,
}

impl Connection {
    /// Ends the connection here. From now on its segments are the kernel's.
    #[must_use]
    pub fn give_back(self, now: Nanos) -> Repair {
        self.repair(now)
    }

    /// Where it has come to by now. Who could be left to go on from here without it asks for that
    /// before each segment is sent: so nothing that the peer has seen is beyond it.
    #[must_use]
    pub fn repair(&self, now: Nanos) -> Repair {
        let (send, receive) = (&self.send, &self.receive);
        let window = RepairWindow {
            snd_wl1: receive.numbers.number(send.wl1),
            // (Windows are at most 2^30.)
            snd_wnd: low32(send.window),
            max_window: low32(send.window_max),
            rcv_wnd: low32(receive.edge - receive.acked),
            rcv_wup: receive.numbers.number(receive.acked),
        };
        Repair {
            reason: self.over,
            send_seq: send.numbers.number(send.una),
            send_from: send.una - START,
            send_sent: send.nxt - START,
            send_to: send.written - START,
            receive_seq: receive.numbers.number(receive.nxt),
            receive_to: receive.nxt - START,
            window,
            stamp: self.clocks.map(|clocks| clocks.own.stamp(now)),
            mss: send.mss,
        }
    }
}
