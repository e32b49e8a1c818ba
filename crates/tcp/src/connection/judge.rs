//! What a segment is to an established connection (RFC 9293, 3.10.7.4; RFC 5961; RFC 7323, 5.3).
//!
//! Who sends it may be anybody who has guessed addresses and ports. Nothing changes before its
//! numbers are those of this connection; only then is it taken, or the kernel asked to judge it.

use super::{Connection, Reason};
use crate::Nanos;
use crate::seq::Position;
use crate::wire::{Flags, Segment};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Acceptable {
        /// Where it begins.
        seq: Position,
        /// What it acknowledges.
        ack: Position,
    },
    /// Nothing is said.
    Drop,
    /// An acknowledgement says where this end is, and that these bytes came in vain.
    Answer {
        from: Position,
        to: Position,
    },
    /// The same, but not often: RFC 5961, 7.
    Challenge,
    GiveBack(Reason),
}

impl Connection {
    pub(super) fn judge(&self, now: Nanos, segment: &Segment, length: u32) -> Judgement {
        let receive = &self.receive;
        let seq = receive.numbers.near(receive.nxt, segment.seq);
        let end = seq + u64::from(length);
        // As Linux's tcp_sequence: what overlaps the time since the last acknowledgement up to
        // the edge. More than RFC 9293, table 6: acknowledgements that were overtaken count, and
        // those that come while the window is closed.
        let in_window = end >= receive.acked && seq <= receive.edge;
        if segment.flags.any(Flags::RST) {
            // RFC 5961, 3.2: out of the window it is nothing. In it the kernel decides.
            let reset = in_window && seq >= receive.nxt;
            return if reset { Judgement::GiveBack(Reason::Reset) } else { Judgement::Drop };
        }
        if let (Some(clocks), Some(stamps)) = (&self.clocks, segment.options.stamps)
            && clocks.is_outdated(now, stamps.value)
        {
            return not_acceptable(seq, end);
        }
        if !in_window {
            return not_acceptable(seq, end);
        }
        if segment.flags.any(Flags::SYN) {
            // RFC 5961, 4.2.
            return Judgement::Challenge;
        }
        if !segment.flags.any(Flags::ACK) {
            return Judgement::Drop;
        }
        // RFC 5961, 5.2.
        let send = &self.send;
        let ack = send.numbers.near(send.una, segment.ack);
        if ack > send.nxt || ack.saturating_add(send.window_max) < send.una {
            return Judgement::Challenge;
        }
        self.for_the_kernel(segment).map_or(Judgement::Acceptable { seq, ack }, Judgement::GiveBack)
    }

    /// Of a segment that the peer has sent: what is not of the established state.
    const fn for_the_kernel(&self, segment: &Segment) -> Option<Reason> {
        if segment.options.foreign {
            return Some(Reason::Foreign);
        }
        if self.clocks.is_some() && segment.options.stamps.is_none() {
            return Some(Reason::NoTimeStamp);
        }
        if segment.flags.any(Flags::URG) {
            return Some(Reason::Urgent);
        }
        if segment.flags.any(Flags::FIN) {
            return Some(Reason::Fin);
        }
        None
    }
}

/// RFC 9293, 3.10.7.4, first: an acknowledgement in reply. Who sent no data may have sent one in
/// reply as well, which must not go on for ever.
const fn not_acceptable(from: Position, to: Position) -> Judgement {
    if to > from { Judgement::Answer { from, to } } else { Judgement::Challenge }
}
