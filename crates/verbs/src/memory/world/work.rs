//! Work requests: what is refused at once, and what an accepted one does at the peer.

use super::super::{Region as RegionHandle, Segment};
use super::{Frees, Payload, Phase, Refusal, Region, Result, Send, What, World};
use crate::fabric::{Access, Action, Failure, Fault, Outcome, Piece, Receive, Work};
use alloc::vec::Vec;

impl World {
    pub(in crate::memory) fn post(
        &mut self,
        pair: u64,
        work: &Work<'_, RegionHandle>,
    ) -> Result<()> {
        let p = self.pair(pair)?;
        let host = p.host;
        if !matches!(p.phase, Phase::Connected | Phase::Broken) || p.queue.is_none() {
            return Err(libc::EINVAL);
        }
        if p.posted.wrapping_sub(p.freed) >= u64::from(p.capacity.sends) {
            return Err(libc::ENOMEM);
        }
        let inline_bytes = p.capacity.inline_bytes as usize;
        let segment = |piece: &Option<Piece<'_, RegionHandle>>| match piece {
            Some(piece) => Segment::new(piece).map(Some).ok_or(libc::EINVAL),
            None => Ok(None),
        };
        let (what, inline) = match &work.action {
            Action::Write { from, to, inline } => {
                (What::Write { from: segment(from)?, to: *to }, *inline)
            }
            Action::WriteImm { from, to, inline, imm } => {
                (What::WriteImm { from: segment(from)?, to: *to, imm: *imm }, *inline)
            }
            Action::Send { from } => (What::Send { from: segment(&Some(*from))? }, false),
            Action::SendInline(_) => (What::Send { from: None }, true),
        };
        let is_imm = matches!(what, What::WriteImm { .. });
        if is_imm && !self.hosts.get(host).is_some_and(|h| h.model.writes_imm) {
            return Err(libc::EINVAL);
        }
        let inline = match (&work.action, what) {
            (Action::SendInline(bytes), _) => Some(bytes.to_vec()),
            (_, What::Write { from, .. } | What::WriteImm { from, .. }) if inline => {
                Some(from.map_or_else(Vec::new, |s| load(&s)))
            }
            _ => None,
        };
        if inline.as_ref().is_some_and(|b| b.len() > inline_bytes) {
            return Err(libc::EINVAL);
        }
        let iwarp = self.is_iwarp(host);
        let p = self.pair(pair)?;
        p.posted = p.posted.wrapping_add(1);
        if p.phase == Phase::Broken && iwarp {
            // As siw: taken, and never heard of again.
            return Ok(());
        }
        p.sends.push_back(Send {
            id: work.id,
            number: p.posted,
            signaled: work.signaled,
            what,
            inline,
            taken: false,
        });
        if p.phase == Phase::Broken {
            self.flush(pair);
        }
        Ok(())
    }

    pub(in crate::memory) fn post_receive(
        &mut self,
        pair: u64,
        receive: &Receive<'_, RegionHandle>,
    ) -> Result<()> {
        let into = match &receive.into {
            Some(piece) => Some(Segment::new(piece).ok_or(libc::EINVAL)?),
            None => None,
        };
        let p = self.pair(pair)?;
        if p.queue.is_none() {
            return Err(libc::EINVAL);
        }
        if p.receives_used >= p.capacity.receives {
            return Err(libc::ENOMEM);
        }
        p.receives_used = p.receives_used.wrapping_add(1);
        p.receives.push_back((receive.id, into));
        if p.phase == Phase::Broken {
            self.flush(pair);
        }
        Ok(())
    }

    /// The bytes of a pair's request, checked as its own device does.
    pub(in crate::memory) fn bytes_of(
        &self,
        domain: Option<u64>,
        send: &Send,
    ) -> core::result::Result<Vec<u8>, Refusal> {
        if let Some(bytes) = &send.inline {
            return Ok(bytes.clone());
        }
        let (What::Write { from, .. } | What::WriteImm { from, .. } | What::Send { from }) =
            send.what;
        let Some(segment) = from else {
            return Ok(Vec::new());
        };
        match self.regions.get(&segment.region) {
            Some(region) if Some(region.domain) == domain => Ok(load(&segment)),
            _ => Err(Refusal::Local),
        }
    }

    /// The payload has its effect at `pair`, the receiving one.
    pub(in crate::memory) fn take_effect(
        &mut self,
        pair: u64,
        payload: &Payload,
    ) -> core::result::Result<(), Refusal> {
        let receiver = self.pairs.get(&pair).ok_or(Refusal::Access)?;
        let needs_receive = !matches!(payload.what, What::Write { .. });
        if needs_receive && receiver.receives.is_empty() {
            return Err(Refusal::NotReady);
        }
        if let What::Write { to, .. } | What::WriteImm { to, .. } = payload.what
            && !payload.bytes.is_empty()
        {
            let domain = receiver.domain;
            let fits = |r: &&Region| {
                let offset = to.address.checked_sub(r.address as u64);
                let end = offset.and_then(|o| o.checked_add(payload.bytes.len() as u64));
                Some(r.domain) == domain
                    && r.key == to.key
                    && r.access == Access::RemoteWrite
                    && end.is_some_and(|end| end <= r.bytes as u64)
            };
            self.regions.values().find(fits).ok_or(Refusal::Access)?;
            store(to.address as usize, &payload.bytes);
        }
        let receiver = self.pairs.get_mut(&pair).ok_or(Refusal::Access)?;
        receiver.heard = true;
        if !needs_receive {
            return Ok(());
        }
        let Some((id, into)) = receiver.receives.pop_front() else {
            return Err(Refusal::NotReady);
        };
        let outcome = match payload.what {
            What::WriteImm { imm, .. } => Outcome::Announced(imm),
            _ => {
                let domain = receiver.domain;
                let place = into.filter(|s| {
                    (self.regions.get(&s.region))
                        .is_some_and(|r| Some(r.domain) == domain && r.access != Access::Local)
                });
                let room = place.map_or(0, |s| s.bytes);
                if payload.bytes.len() > room {
                    self.complete(pair, id, Outcome::Failed(Failure::Length), Frees::Receive);
                    return Err(Refusal::Length);
                }
                if let Some(place) = place {
                    store(place.address, &payload.bytes);
                }
                Outcome::Received(payload.bytes.len() as u32)
            }
        };
        self.complete(pair, id, outcome, Frees::Receive);
        Ok(())
    }

    /// The first request that waits is done for, and with it the pair.
    pub(in crate::memory) fn fail_first(&mut self, pair: u64, why: Failure) {
        if let Some(send) = self.pairs.get_mut(&pair).and_then(|p| p.sends.pop_front()) {
            self.complete(pair, send.id, Outcome::Failed(why), Frees::Sends(send.number));
        }
        self.break_pair(pair);
    }

    /// The receiving device has refused a request: its pair is in error, too.
    pub(in crate::memory) fn refused_by(&mut self, receiver: u64) {
        let device = self.device_of(self.pairs.get(&receiver).and_then(|p| p.domain));
        if let Some(host) = device.and_then(|d| self.devices.get(&d)).map(|d| d.host) {
            self.report(host, Fault::PairLost);
        }
        self.break_pair(receiver);
    }
}

/// Copies out of registered memory.
fn load(segment: &Segment) -> Vec<u8> {
    let mut bytes = alloc::vec![0; segment.bytes];
    let from = core::ptr::with_exposed_provenance::<u8>(segment.address);
    // SAFETY: `Fabric::register`'s caller keeps the region's memory mapped while it is registered,
    // and the segment lies inside of it (`Segment::new`); `bytes` is ours alone and as long.
    unsafe { core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), segment.bytes) };
    bytes
}

/// Copies into registered memory.
fn store(address: usize, bytes: &[u8]) {
    let to = core::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: as in `load`, for the region that `take_effect` has found around this range; the
    // caller of `register` has no references there.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
