//! The receiving half: completions become words.
//!
//! Everything of a pair is applied in the order in which it completes, which is the order in which
//! the peer has posted it. A message is copied out of its buffer before anything of it is looked
//! at; every value is checked against what this end knows, and stored only then. The first one that
//! is wrong ends the pair; what was applied before it stays.

use super::{Lanes, News, Reason, Violation};
use crate::counters::add;
use crate::lane::{CLOSING, Config, Lane, LaneRx, OPEN, Peer};
use crate::wire::{Imm, Item, MESSAGE_BYTES, Message, Ring};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use netacc_verbs::fabric::{BATCH_MAX, Call, Fabric, Outcome};

/// What the poll lock's holder has.
pub(crate) struct Rx {
    /// Buffers whose receives are to be posted again: room for all of them is reserved.
    again: Vec<u32>,
    /// The loss was told.
    told: bool,
}

impl Rx {
    pub(super) const fn new(again: Vec<u32>) -> Self {
        Self { again, told: false }
    }
}

/// A lane that was opened again before it was taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) ring: Ring,
    pub(crate) token: u64,
    pub(crate) closed: bool,
}

impl Ring {
    /// Bytes of the ring.
    #[must_use]
    pub fn bytes(&self) -> usize {
        1 << (self.log2 & 31)
    }

    fn is_possible(&self) -> bool {
        let sizes = crate::arena::RING_BYTES_MIN..=crate::arena::RING_BYTES_MAX;
        self.log2 < 32
            && sizes.contains(&self.bytes())
            && self.address.checked_add(self.bytes() as u64).is_some()
    }
}

impl LaneRx {
    pub(crate) fn is_released(&self) -> bool {
        self.peer == Peer::Closed && self.close_done
    }

    pub(crate) fn reopen(&mut self, again: Again) {
        self.peer = if again.closed { Peer::Closed } else { Peer::Open };
    }
}

type Applied = Result<(), Violation>;

impl<F: Fabric> Lanes<F> {
    /// Applies a completion. The caller has the poll lock.
    pub(crate) fn complete(
        &self,
        is_receive: bool,
        number: u32,
        outcome: Outcome,
        tell: &mut dyn FnMut(News),
    ) {
        if self.lost().is_some() {
            return;
        }
        let applied = match outcome {
            Outcome::Failed(failure) => {
                self.lose(Reason::Failed(failure));
                return;
            }
            Outcome::Sent | Outcome::Written => {
                self.completed.store(number, Release);
                self.look_for_closed(tell);
                return;
            }
            Outcome::Received(_) | Outcome::Announced(_)
                if !is_receive || number >= self.settings.receives =>
            {
                Err(Violation::Message)
            }
            Outcome::Received(bytes) => self.received(number, bytes, tell),
            Outcome::Announced(imm) => self.announced(imm, tell),
        };
        if let Err(violation) = applied {
            self.lose(Reason::Peer(violation));
            return;
        }
        add(&self.counters.messages_received, 1);
        // SAFETY: the poll lock is the caller's.
        let rx = unsafe { &mut *self.rx.get() };
        if rx.again.len() < rx.again.capacity() {
            rx.again.push(number);
        }
    }

    /// After some completions: posts receives again, says what is lost, and lets the sending half
    /// go on. The caller has the poll lock.
    pub(crate) fn settle(&self, tell: &mut dyn FnMut(News)) {
        // SAFETY: the poll lock is the caller's.
        let rx = unsafe { &mut *self.rx.get() };
        if self.lost().is_none() {
            self.repost(rx);
            if !self.dirty.is_empty() || self.owes() {
                self.pump();
            }
        }
        if let Some(why) = self.lost()
            && !core::mem::replace(&mut rx.told, true)
        {
            tell(News::Lost(why));
        }
    }

    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Acquire)
    }

    /// Posts receives again, in batches.
    fn repost(&self, rx: &mut Rx) {
        let Some(pair) = self.pair() else { return };
        let batch = (self.settings.receives as usize / 4).clamp(1, BATCH_MAX);
        while rx.again.len() >= batch {
            let first = rx.again.len() - batch;
            let which = |i: u32| rx.again.get(first + i as usize).copied().unwrap_or(0);
            if let Err(e) = self.post_buffers(pair, which, batch) {
                self.lose(Reason::Refused { call: Call::PostReceives, errno: e.errno });
                return;
            }
            rx.again.truncate(first);
            let reposted = self.reposted.load(Relaxed);
            self.reposted.store(reposted.wrapping_add(batch as u32), Release);
        }
    }

    /// Whose `CLOSE` is done.
    fn look_for_closed(&self, tell: &mut dyn FnMut(News)) {
        let completed = self.completed.load(Relaxed);
        let mut from = 0;
        while let Some(n) = self.closing.next(from).filter(|n| *n >= from) {
            from = n.wrapping_add(1);
            let Some(lane) = self.lane(n) else { return };
            if completed.wrapping_sub(lane.close_number.load(Relaxed)).cast_signed() >= 0 {
                self.closing.clear(n);
                // SAFETY: the poll lock is ours.
                let rx = unsafe { &mut *lane.rx.get() };
                rx.close_done = true;
                if rx.is_released() {
                    tell(News::Released { lane: n });
                }
            }
        }
    }

    fn received(&self, buffer: u32, bytes: u32, tell: &mut dyn FnMut(News)) -> Applied {
        let mut copy = [0u8; MESSAGE_BYTES];
        let text = copy.get_mut(..bytes as usize).ok_or(Violation::Message)?;
        // SAFETY: `complete` has checked the buffer's number, so it lies among the receives
        // (`new`); its receive is complete, so the device does not touch it before it is
        // posted again, by us.
        unsafe {
            let from = self.memory.as_ptr().add(buffer as usize * MESSAGE_BYTES);
            core::ptr::copy_nonoverlapping(from, text.as_mut_ptr(), text.len());
        }
        let (mut message, returned) = Message::read(text).ok_or(Violation::Message)?;
        self.grant(returned)?;
        while let Some(item) = message.next() {
            let (n, item) = item.ok_or(Violation::Message)?;
            self.apply(n, item, tell)?;
        }
        Ok(())
    }

    /// So many receives the peer has posted again, of those that we have used.
    fn grant(&self, returned: u32) -> Applied {
        let granted = self.granted.load(Relaxed);
        let used = self.sent.load(Acquire).wrapping_sub(granted);
        if returned.wrapping_sub(granted) > used {
            return Err(Violation::Returned);
        }
        self.granted.store(returned, Release);
        Ok(())
    }

    fn announced(&self, imm: u32, tell: &mut dyn FnMut(News)) -> Applied {
        if !self.settings.immediate {
            return Err(Violation::Immediate);
        }
        let Imm { lane: n, rebased, mark, reached, returned, bytes } = Imm::decode(imm);
        self.grant(self.granted.load(Relaxed).wrapping_add(returned))?;
        let lane = self.lane(n).ok_or(Violation::Lane)?;
        // SAFETY: the poll lock is ours.
        let rx = unsafe { &mut *lane.rx.get() };
        let config = self.config(lane, rx)?;
        // Before the bytes are published: whoever answers them knows both.
        if reached {
            let marked = lane.marked.load(Acquire);
            if marked == lane.reached.load(Relaxed) {
                return Err(Violation::Head);
            }
            // A credit may have said more.
            let head = marked.wrapping_sub(1);
            if head.wrapping_sub(lane.acked.load(Relaxed)).cast_signed() > 0 {
                self.credit(n, lane, config, head, tell)?;
            }
            lane.reached.store(marked, Release);
        }
        let tail = rx.tail.wrapping_add(u64::from(bytes));
        if mark {
            lane.mark.store(tail.wrapping_add(1), Release);
        }
        self.advance(rx, config, rebased, bytes, tail)?;
        tell(News::Data { lane: n });
        Ok(())
    }

    /// The peer has consumed everything before `head`.
    fn credit(
        &self,
        n: u16,
        lane: &Lane<F>,
        config: &Config<F>,
        head: u64,
        tell: &mut dyn FnMut(News),
    ) -> Applied {
        let out = config.outbound();
        let acked = lane.acked.load(Relaxed);
        if head.wrapping_sub(acked) > lane.posted.load(Acquire).wrapping_sub(acked) {
            return Err(Violation::Head);
        }
        lane.acked.store(head, Release);
        out.head.store(head, Release);
        let room = || out.has_room(out.tail.load(Relaxed), config.rings.size as u64);
        if out.take_space_request(room) {
            tell(News::Room { lane: n });
        }
        Ok(())
    }

    /// The configuration of a lane that both ends have opened, and the peer has not closed.
    fn config<'a>(&self, lane: &'a Lane<F>, rx: &LaneRx) -> Result<&'a Config<F>, Violation> {
        if rx.peer != Peer::Open || !matches!(lane.state.load(Acquire), OPEN | CLOSING) {
            return Err(Violation::Lane);
        }
        // SAFETY: a lane in these states has its configuration until it is taken back, for which
        // the poll lock is needed.
        unsafe { (*lane.config.get()).as_ref() }.ok_or(Violation::Lane)
    }

    /// The peer has written bytes into our ring; then there is [`News::Data`].
    fn advance(
        &self,
        rx: &mut LaneRx,
        config: &Config<F>,
        rebased: bool,
        bytes: u32,
        tail: u64,
    ) -> Applied {
        let words = config.inbound();
        if bytes == 0 || tail != rx.tail.wrapping_add(u64::from(bytes)) {
            return Err(Violation::Tail);
        }
        // Our own consumer's word. An honest peer knows at most this head.
        let head = words.head.load(Acquire);
        if tail.wrapping_sub(head) > config.rings.size as u64 {
            return Err(Violation::Room);
        }
        if rebased {
            if head != rx.tail {
                return Err(Violation::Rebase);
            }
            words.base_before.store(rx.base, Relaxed);
            rx.base = rx.tail;
        }
        rx.tail = tail;
        words.base.store(rx.base, Relaxed);
        words.tail.store(tail, Release);
        add(&self.counters.bytes_received, u64::from(bytes));
        Ok(())
    }

    fn apply(&self, n: u16, item: Item, tell: &mut dyn FnMut(News)) -> Applied {
        let lane = self.lane(n).ok_or(Violation::Lane)?;
        // SAFETY: the poll lock is ours.
        let rx = unsafe { &mut *lane.rx.get() };
        match item {
            Item::Open { ring, token } => self.peer_opens((n, lane), rx, ring, token, tell),
            Item::Close => self.peer_closes(n, lane, rx, tell),
            Item::Data { rebased, bytes, tail } => {
                let config = self.config(lane, rx)?;
                self.advance(rx, config, rebased, bytes, tail)?;
                tell(News::Data { lane: n });
                Ok(())
            }
            Item::Credit { head } => {
                let config = self.config(lane, rx)?;
                self.credit(n, lane, config, head, tell)
            }
        }
    }

    fn peer_opens(
        &self,
        (n, lane): (u16, &Lane<F>),
        rx: &mut LaneRx,
        ring: Ring,
        token: u64,
        tell: &mut dyn FnMut(News),
    ) -> Applied {
        if !ring.is_possible() {
            return Err(Violation::Open);
        }
        match rx.peer {
            Peer::Free => {
                rx.peer = Peer::Open;
                // SAFETY: the sending half reads it after `peer_open`, which is not set.
                unsafe { *lane.peer.get() = Some(ring) };
                lane.peer_open.store(true, Release);
                self.dirty.set(n);
                tell(News::Opened { lane: n, token, ring_bytes: ring.bytes() });
                Ok(())
            }
            // It has our `CLOSE`, we have not taken the lane back yet.
            Peer::Closed if rx.reopened.is_none() && lane.close_sent.load(Acquire) => {
                rx.reopened = Some(Again { ring, token, closed: false });
                Ok(())
            }
            _ => Err(Violation::Open),
        }
    }

    fn peer_closes(
        &self,
        n: u16,
        lane: &Lane<F>,
        rx: &mut LaneRx,
        tell: &mut dyn FnMut(News),
    ) -> Applied {
        if let Some(again) = &mut rx.reopened {
            return if core::mem::replace(&mut again.closed, true) {
                Err(Violation::Close)
            } else {
                Ok(())
            };
        }
        // Without an opening: it refuses ours.
        let refuses = rx.peer == Peer::Free && matches!(lane.state.load(Acquire), OPEN | CLOSING);
        if rx.peer != Peer::Open && !refuses {
            return Err(Violation::Close);
        }
        rx.peer = Peer::Closed;
        tell(News::Closed { lane: n });
        if rx.is_released() {
            tell(News::Released { lane: n });
        }
        Ok(())
    }
}
