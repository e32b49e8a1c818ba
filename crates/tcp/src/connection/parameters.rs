//! What is known of a connection when it is taken over. Where the kernel says it:
//! `docs/design/user-space-tcp.md`.

use crate::{MSS_MIN, Nanos};

/// RFC 7323, 2.3.
const SCALE_MAX: u8 = 14;
/// No window is larger, so sequence numbers are not ambiguous.
const WINDOW_MAX: u32 = 1 << 30;

/// Everything.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Now.
    pub now: Nanos,
    /// The sending half.
    pub send: SendStart,
    /// The receiving half.
    pub receive: ReceiveStart,
    /// What the ends have agreed on.
    pub options: Negotiated,
    /// What the application wants.
    pub wishes: Wishes,
    /// How much memory and patience the connection gets.
    pub bounds: Bounds,
}

/// The sending half. Offset 0 of the send buffer is the byte `una`.
#[derive(Clone, Debug)]
pub struct SendStart {
    /// SND.UNA.
    pub una: u32,
    /// SND.NXT - SND.UNA.
    pub in_flight: u32,
    /// What is in the send buffer: what is in flight, and what is unsent.
    pub queued: u32,
    /// SND.WND, scaled.
    pub window: u32,
    /// The largest that it has been.
    pub window_max: u32,
    /// How far the peer's windows are shifted.
    pub scale: u8,
    /// The payload of a full segment: without time stamps, if these are on.
    pub mss: u16,
    /// The congestion window, in segments.
    pub cwnd: u32,
    /// The threshold of slow start, in segments.
    pub ssthresh: u32,
    /// The smoothed round-trip time; 0 where it is not known.
    pub srtt: Nanos,
    /// Its variation.
    pub rttvar: Nanos,
    /// The smallest retransmission timeout beyond the round-trip time.
    pub rto_min: Nanos,
}

/// The receiving half. Offset 0 of the receive buffer is the byte `nxt`.
#[derive(Clone, Debug)]
pub struct ReceiveStart {
    /// RCV.NXT.
    pub nxt: u32,
    /// What was acknowledged last, `rcv_wup`, and the window that was offered from there,
    /// `rcv_wnd`.
    pub acked: u32,
    /// See `acked`.
    pub window: u32,
    /// How far the windows that are offered are shifted.
    pub scale: u8,
    /// So many bytes fit behind `nxt`: at least what was offered.
    pub room: u64,
    /// And when everything is read.
    pub capacity: u64,
    /// The payload of the peer's full segments, as far as seen, and the largest that it may send.
    pub segment: u16,
    /// See `segment`.
    pub segment_max: u16,
}

/// What the ends have agreed on in their SYNs.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// Selective acknowledgements.
    pub sack: bool,
    /// Time stamps.
    pub stamps: Option<StampStart>,
    /// ECN.
    pub ecn: bool,
}

/// Time stamps.
#[derive(Clone, Copy, Debug)]
pub struct StampStart {
    /// This end's clock now.
    pub value: u32,
    /// How long one of its ticks is.
    pub tick: Nanos,
    /// The peer's, if a segment has been seen: the kernel does not say.
    pub recent: Option<u32>,
}

/// What the application has set.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// TCP_NODELAY.
    pub nodelay: bool,
    /// SO_KEEPALIVE.
    pub keep_alive: Option<KeepAlive>,
    /// TCP_USER_TIMEOUT.
    pub user_timeout: Option<Nanos>,
    /// The longest that an acknowledgement is delayed: at most 500 ms.
    pub ack_delay: Nanos,
}

/// SO_KEEPALIVE.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// TCP_KEEPIDLE.
    pub idle: Nanos,
    /// TCP_KEEPINTVL.
    pub interval: Nanos,
    /// TCP_KEEPCNT.
    pub count: u32,
}

/// How much the connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Records of what is outstanding, 32 bytes each.
    pub records: usize,
    /// Ranges behind gaps, 24 bytes each.
    pub ranges: usize,
    /// So many timeouts without progress.
    pub timeouts: u32,
    /// The most that is sent at once, for the device to divide.
    pub run: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { records: 512, ranges: 64, timeouts: 3, run: 60_000 }
    }
}

/// Why a connection stays with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The peer does not acknowledge selectively, and losses are found by nothing else here.
    NoSack,
    /// The window that was offered, or is used, does not fit what was said of it.
    Window,
    /// Segments are too small, or there is more in flight than there is.
    Size,
    /// No memory.
    NoMemory,
}

impl Parameters {
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let (send, receive) = (&self.send, &self.receive);
        if !self.options.sack {
            return Err(Refusal::NoSack);
        }
        let windows = [send.window, send.window_max, receive.window];
        if send.scale > SCALE_MAX
            || receive.scale > SCALE_MAX
            || windows.iter().any(|&window| window > WINDOW_MAX)
        {
            return Err(Refusal::Window);
        }
        if send.mss < MSS_MIN || send.in_flight > send.queued || send.queued > WINDOW_MAX {
            return Err(Refusal::Size);
        }
        Ok(())
    }
}
