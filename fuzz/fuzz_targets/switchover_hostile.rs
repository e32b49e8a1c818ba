//! Each half of the switchover against a peer that writes anything into the shared words.
#![no_main]

#[path = "../../crates/proto/tests/switchover/hostile.rs"]
mod hostile;

use hostile::{RxOp, TxOp, apply_rx, apply_tx};
use libfuzzer_sys::fuzz_target;
use netacc_proto::switchover::{Ack, Announce, Rx, Tx};

/// Reads values from the input; none when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Mostly small; sometimes any value.
    fn offset(&mut self) -> Option<u64> {
        match self.byte()? {
            small @ 0..250 => Some(u64::from(small) / 4),
            250 => Some(u64::MAX),
            _ => {
                let (first, rest) = self.0.split_first_chunk::<8>()?;
                self.0 = rest;
                Some(u64::from_le_bytes(*first))
            }
        }
    }

    fn epoch(&mut self) -> Option<u32> {
        let byte = self.byte()?;
        Some(if byte < 250 { u32::from(byte % 10) } else { u32::from(byte) << 24 })
    }

    fn announce(&mut self) -> Option<Announce> {
        let epoch = self.epoch()?;
        let [fast_from, carrier_from, resend_to] = [self.offset()?, self.offset()?, self.offset()?];
        Some(Announce { epoch, fast_from, carrier_from, resend_to })
    }

    fn ack(&mut self) -> Option<Ack> {
        let control = u64::from(self.epoch()?) | u64::from(self.byte()?) << 32;
        Some(Ack::from_words(control, self.offset()?))
    }

    fn rx_op(&mut self) -> Option<RxOp> {
        Some(match self.byte()? % 8 {
            0 => RxOp::Arm,
            1 => RxOp::Freeze,
            2 => RxOp::Announce(self.announce()?),
            3 => RxOp::Peek(self.offset()?, self.announce()?),
            4 => RxOp::Readable(self.announce()?),
            5 => RxOp::Eof(self.announce()?, self.byte()? & 1 == 0),
            6 => RxOp::Deliver(self.offset()?),
            _ => RxOp::DeliverPlanned(self.offset()?),
        })
    }

    fn tx_op(&mut self) -> Option<TxOp> {
        Some(match self.byte()? % 9 {
            0 => TxOp::Accept(self.offset()?),
            1 => TxOp::Promote(self.ack()?, self.byte()? & 1 == 0),
            2 => TxOp::Confirm(self.ack()?),
            3 => TxOp::Demote,
            4 => TxOp::FailOver(self.offset()?),
            5 => TxOp::PullBack(self.ack()?),
            6 => TxOp::Resent(self.offset()?),
            7 => TxOp::Acked(self.offset()?),
            _ => TxOp::Shutdown,
        })
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    if input.byte().is_some_and(|which| which & 1 == 0) {
        let mut rx = Rx::new();
        while let Some(op) = input.rx_op() {
            apply_rx(&mut rx, op);
        }
    } else {
        let mut tx = Tx::new();
        while let Some(op) = input.tx_op() {
            apply_tx(&mut tx, op);
        }
    }
});
