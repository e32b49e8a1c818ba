//! What was out of the kernel, and is no longer.

use crate::carried::Over;
use crate::kernel::{Kept, Queues};
use crate::record::Record;
use alloc::vec::Vec;
use netacc_packet::port::{Frame, LinkAddress, Port};
use netacc_tcp::Repair;
use netacc_tcp::wire::emit::{Checksum, HEADERS_MAX, Service, headers};
use netacc_tcp::wire::{Flags, Options, Segment, Stamps};

/// What is left of a connection when it is no longer out.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) kept: Kept,
    pub(crate) reason: Option<Over>,
    pub(crate) repair: Repair,
    pub(crate) queues: Queues,
    pub(crate) unsent: Vec<u8>,
    pub(crate) stash: Vec<Vec<u8>>,
    pub(crate) record: Option<Record>,
    /// As `Carried::is_abandoned` has it.
    pub(crate) abandoned: Option<bool>,
    pub(crate) service: Service,
    pub(crate) to: LinkAddress,
}

impl Ended {
    /// Resets the peer: the kernel cannot go on with the connection, and nobody else would tell.
    pub(crate) fn reset(&self, port: &mut impl Port) {
        let segment = reset_of(&self.repair);
        let mut out = [0; HEADERS_MAX];
        let flow = self.kept.flow.reversed();
        let of = (&flow, &self.service);
        let written = headers(of, &segment, 0, Checksum::ByTheDevice, &mut out);
        let ip_header = if flow.source.address.is_ipv4() { 20 } else { 40 };
        if let Some(headers) = written.and_then(|length| out.get(..length)) {
            let payload = [&[][..]; 2];
            port.send(&Frame { to: self.to, headers, ip_header, payload, segment: 0 });
        }
    }
}

/// Ends the side of a peer that has all that was sent.
pub(crate) fn reset_of(repair: &Repair) -> Segment {
    let sent = repair.send_sent.saturating_sub(repair.send_from);
    let sent = u32::try_from(sent).unwrap_or(0);
    Segment {
        seq: repair.send_seq.wrapping_add(sent),
        ack: repair.receive_seq,
        flags: Flags::RST.with(Flags::ACK),
        window: 0,
        options: Options::default(),
        congested: false,
    }
}

/// A byte that the peer has had: it says at once which it waits for, and the kernel's answer to
/// that, where nobody has the connection, is a reset at this number. A reset at any other the peer
/// answers with a question at best (RFC 5961, 3.2), at most once in 500 ms.
pub(crate) fn question_of(repair: &Repair) -> (Segment, [u8; 1]) {
    let stamps = repair.stamp.map(|value| Stamps { value, echo: 0 });
    let segment = Segment {
        seq: repair.send_seq.wrapping_sub(1),
        flags: Flags::ACK,
        options: Options { stamps, ..Options::default() },
        ..reset_of(repair)
    };
    (segment, [0])
}
