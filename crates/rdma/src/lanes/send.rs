//! The sending half: what lanes have to send becomes work requests.
//!
//! One turn of one lane is at most one message and [`turn_bytes`](super::Settings::turn_bytes)
//! bytes; then the next lane that has something comes. What is remembered of a lane changes when
//! the requests are posted, and not before.
//!
//! What may be posted is bounded twice: by the send queue ([`Window`]), and by the receives that
//! the peer has posted. One receive is never used for anything but giving receives back, so that
//! two ends that have filled each other's queues can always free them. Neither bound depends on
//! what an application reads: a lane whose reader stops has a full ring, and nothing to post.

use super::{Kicked, Lanes, Reason, Violation};
use crate::arena::Rings;
use crate::counters::add;
use crate::lane::{CLOSING, Config, Lane, LaneTx, OPEN, REFUSING};
use crate::wire::{Draft, Imm, Item, MESSAGE_BYTES, Ring};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use netacc_verbs::fabric::{Action, Call, Fabric, Piece, PostError, Remote, Work};
use netacc_verbs::window::Window;

/// Most work requests of one message: a part of the message's words, two parts of the bytes, what
/// announces them.
const WORKS_MAX: usize = 4;

/// What the turn's holder has.
pub(crate) struct Tx {
    pub(super) window: Window,
    /// The last signaled request.
    signaled: u32,
    /// The lane whose turn is next.
    cursor: u16,
}

impl Tx {
    pub(super) const fn new(window: Window) -> Self {
        Self { window, signaled: 0, cursor: 0 }
    }
}

/// Bytes to post.
#[derive(Clone, Copy)]
struct Bytes {
    from: u64,
    base: u64,
    rebased: bool,
    mark: bool,
    reached: bool,
    bytes: u32,
}

/// What one turn of a lane came to.
enum Served {
    /// It has nothing to send.
    Idle,
    /// It may have more.
    More,
    /// There was no room for it.
    Full,
    /// The pair is lost.
    Lost,
}

impl<F: Fabric> Lanes<F> {
    /// Posts what there is, or leaves it to who is posting.
    pub(crate) fn pump(&self) -> Kicked {
        if !self.turn.enter() {
            return self.lost().map_or(Kicked::Left, Kicked::Lost);
        }
        self.pump_held();
        let done = if self.dirty.is_empty() { Kicked::Done } else { Kicked::Full };
        self.lost().map_or(done, Kicked::Lost)
    }

    /// The turn is ours; gives it up.
    pub(super) fn pump_held(&self) {
        loop {
            // SAFETY: the turn is ours.
            self.pump_once(unsafe { &mut *self.tx.get() });
            if self.turn.leave() {
                return;
            }
        }
    }

    fn pump_once(&self, tx: &mut Tx) {
        let Some(pair) = self.pair() else { return };
        if self.greets.load(Relaxed) && self.say_nothing(tx, pair) {
            self.greets.store(false, Relaxed);
        }
        while self.lost().is_none() {
            tx.window.completed(self.completed.load(Acquire));
            let Some(lane) = self.dirty.next(tx.cursor) else { break };
            tx.cursor = lane.wrapping_add(1);
            // Before the look at what there is: what comes after the look sets it again.
            self.dirty.clear(lane);
            match self.serve(tx, pair, lane) {
                Served::Idle => {}
                Served::More => self.dirty.set(lane),
                Served::Full => {
                    self.dirty.set(lane);
                    tx.cursor = lane;
                    break;
                }
                Served::Lost => return,
            }
        }
        if self.lost().is_none() && self.owes() {
            self.say_nothing(tx, pair);
        }
    }

    /// Posts a message that only gives receives back. It may use the last receive of the peer's.
    fn say_nothing(&self, tx: &mut Tx, pair: &F::Pair) -> bool {
        if self.allowance() == 0 || tx.window.room() == 0 {
            return false;
        }
        let mut message = Message {
            draft: &mut Draft::new(),
            bytes: None,
            ring: None,
            credit: true,
            last: false,
        };
        matches!(self.post(tx, pair, &mut message, || {}), Served::More)
    }

    /// Enough receives were posted again for a message of their own.
    pub(super) fn owes(&self) -> bool {
        let owed = self.reposted.load(Acquire).wrapping_sub(self.returned.load(Relaxed));
        owed >= self.settings.receives / 2
    }

    /// Receives of the peer's that are free.
    fn allowance(&self) -> u32 {
        let used = self.sent.load(Relaxed).wrapping_sub(self.granted.load(Acquire));
        self.settings.peer_receives.saturating_sub(used)
    }

    /// One turn of a lane.
    fn serve(&self, tx: &mut Tx, pair: &F::Pair, n: u16) -> Served {
        let Some(lane) = self.lane(n) else { return Served::Idle };
        let state = lane.state.load(Acquire);
        if !matches!(state, OPEN | CLOSING | REFUSING) {
            return Served::Idle;
        }
        // SAFETY: the turn is ours; a lane in these states has its configuration, which changes
        // only under the turn.
        let (mine, config) = unsafe { (&mut *lane.tx.get(), (*lane.config.get()).as_ref()) };
        if mine.closed {
            return Served::Idle;
        }
        let mut next = *mine;
        let mut turn = Turned { draft: Draft::new(), bytes: None, credit: true, more: false };
        match config {
            Some(c) if !next.opened => {
                let Remote { address, key } = c.rings.inbound_remote();
                let ring = Ring { address, key, log2: c.rings.size.trailing_zeros() as u8 };
                turn.add(n, Item::Open { ring, token: c.token }, || next.opened = true);
                turn.more = true;
            }
            Some(c) => {
                if next.remote.is_none() && lane.peer_open.load(Acquire) {
                    // SAFETY: written before `peer_open`, and not again before the lane is taken
                    // back under the turn.
                    next.remote = unsafe { *lane.peer.get() };
                    if next.remote.is_some_and(|r| r.bytes() != c.rings.size) {
                        self.lose(Reason::Peer(Violation::Open));
                        return Served::Lost;
                    }
                }
                if next.remote.is_some() && self.gather(lane, c, n, &mut next, &mut turn).is_none()
                {
                    self.lose(Reason::Words);
                    return Served::Lost;
                }
            }
            None => {}
        }
        // With an immediate the bytes come after the message: then the end has to wait for the next
        // turn.
        if state != OPEN && !turn.more && turn.bytes.is_none() {
            turn.add(n, Item::Close, || next.closed = true);
        } else if state != OPEN {
            turn.more = true;
        }
        if turn.draft.is_empty() && turn.bytes.is_none() {
            *mine = next;
            return Served::Idle;
        }
        let Turned { mut draft, bytes, credit, more } = turn;
        let ring = config.zip(next.remote).map(|(c, remote)| (n, &c.rings, remote));
        let mut message = Message { draft: &mut draft, bytes, ring, credit, last: next.closed };
        if !self.has_room(tx, &message) {
            return Served::Full;
        }
        // What the receiving half measures the peer's answers by is stored before there can be any.
        let number = tx.window.next(message.works(self.settings.immediate)).0;
        let ready = || {
            lane.posted.store(next.posted, Release);
            lane.marked.store(next.marked, Release);
            if next.closed {
                lane.close_number.store(number, Relaxed);
                lane.close_sent.store(true, Release);
                self.closing.set(n);
            }
        };
        match self.post(tx, pair, &mut message, ready) {
            Served::More => {
                *mine = next;
                if let Some(c) = config {
                    lane.due.store(next.told.wrapping_add(c.rings.size as u64 / 4), Relaxed);
                }
                if more { Served::More } else { Served::Idle }
            }
            Served::Full => {
                lane.posted.store(mine.posted, Release);
                if next.closed {
                    self.closing.clear(n);
                    lane.close_sent.store(false, Release);
                }
                Served::Full
            }
            // A part of it may have been posted: it counts as posted.
            other => other,
        }
    }

    /// Collects what an established lane has to say. `None`: the words are impossible.
    fn gather(
        &self,
        lane: &Lane<F>,
        c: &Config<F>,
        n: u16,
        next: &mut LaneTx,
        turn: &mut Turned,
    ) -> Option<()> {
        let (out, inb, size) = (c.outbound(), c.inbound(), c.rings.size as u64);
        let tail = out.tail.load(Acquire);
        let pending = tail.wrapping_sub(next.posted);
        if pending > size {
            return None;
        }
        let head = inb.head.load(Acquire);
        if head.wrapping_sub(next.told) > size {
            return None;
        }
        let sends = pending != 0;
        let reaches = |position: u64| head.wrapping_sub(position).cast_signed() >= 0;
        // An immediate says that the peer's last mark is consumed.
        let (mark, immediate) = (lane.mark.load(Acquire), self.settings.immediate);
        let reached =
            sends && immediate && mark != next.mark_served && reaches(mark.wrapping_sub(1));
        if reached {
            next.mark_served = mark;
            // A credit may have told more.
            if mark.wrapping_sub(1).wrapping_sub(next.told).cast_signed() > 0 {
                next.told = mark.wrapping_sub(1);
            }
        }
        let consumed = head.wrapping_sub(next.told);
        let only_credit = turn.draft.is_empty();
        let rides = !only_credit || (sends && !immediate);
        if consumed != 0 && (consumed >= size / 4 || rides) {
            // What only rides along may miss it.
            let fits = turn.draft.room() > usize::from(sends && !immediate);
            if fits && turn.draft.push(n, Item::Credit { head }) {
                next.told = head;
            } else if consumed >= size / 4 {
                turn.more = true;
            }
        }
        turn.credit = only_credit;

        if sends {
            let base = out.base.load(Relaxed);
            let rebased = base != next.base;
            if rebased && base != next.posted {
                return None;
            }
            let bytes = pending.min(u64::from(self.settings.turn_bytes())) as u32;
            let tail = next.posted.wrapping_add(u64::from(bytes));
            if immediate || turn.draft.push(n, Item::Data { rebased, bytes, tail }) {
                let mark = immediate && lane.reached.load(Acquire) == next.marked;
                if mark {
                    next.marked = tail.wrapping_add(1);
                }
                turn.bytes = Some(Bytes { from: next.posted, base, rebased, mark, reached, bytes });
                turn.credit = false;
                (next.base, next.posted) = (base, tail);
            } else {
                turn.more = true;
            }
        }
        if next.posted != tail {
            turn.more = true;
        }
        Some(())
    }

    fn has_room(&self, tx: &Tx, message: &Message<'_, F>) -> bool {
        let immediate = self.settings.immediate;
        if tx.window.room() < message.works(immediate) {
            add(&self.counters.queue_full, 1);
            return false;
        }
        if self.allowance() <= message.messages(immediate) {
            add(&self.counters.no_receive, 1);
            return false;
        }
        true
    }

    /// The request of that number sends a message: inline where it fits, from its place in the
    /// pair's memory otherwise. The turn is the caller's, and has room for the request.
    #[inline]
    fn message<'a>(&'a self, text: &'a [u8], number: u32) -> Action<'a, F::Region> {
        if text.len() <= self.settings.inline_bytes as usize {
            return Action::SendInline(text);
        }
        self.staged_message(text, number)
    }

    #[cold]
    #[inline(never)]
    fn staged_message<'a>(&'a self, text: &'a [u8], number: u32) -> Action<'a, F::Region> {
        let (bytes, staged) = (text.len(), self.settings.staged());
        if bytes > MESSAGE_BYTES {
            // None is so long.
            return Action::SendInline(text);
        }
        let place = self.settings.receives.saturating_add(number & staged.wrapping_sub(1));
        let offset = place as usize * MESSAGE_BYTES;
        // SAFETY: the place is one of `staged` behind the receives (`new`), for 64 bytes. The
        // request that had it before is done: the send queue has no more requests than there are
        // places, and the window has room for this one.
        unsafe {
            let to = self.memory.as_ptr().add(offset);
            core::ptr::copy_nonoverlapping(text.as_ptr(), to, bytes);
        }
        Action::Send { from: Piece { region: &self.region, offset, bytes } }
    }

    /// Posts a message and its bytes, and calls `ready` just before. [`Served::More`]: done.
    fn post(
        &self,
        tx: &mut Tx,
        pair: &F::Pair,
        message: &mut Message<'_, F>,
        ready: impl FnOnce(),
    ) -> Served {
        let immediate = self.settings.immediate;
        let reposted = self.reposted.load(Acquire);
        let (count, messages) = (message.works(immediate), message.messages(immediate));
        let says = message.says(immediate);
        let total = message.bytes.map_or(0, |b| b.bytes);
        let parts = message.parts();
        let text = message.draft.finish(reposted);
        // A message of its own has told it already.
        let owed = if says { 0 } else { reposted.wrapping_sub(self.returned.load(Relaxed)) };
        let returned = owed.min(Imm::returned_max(total));
        let imm = message.ring.as_ref().zip(message.bytes).map_or(0, |((lane, ..), b)| {
            Imm {
                lane: *lane,
                rebased: b.rebased,
                mark: b.mark,
                reached: b.reached,
                returned,
                bytes: total,
            }
            .encode()
        });

        let (last, due) = tx.window.next(count);
        let signaled = due || message.last;
        let mut works =
            [Work { id: 0, action: Action::SendInline(&[]), signaled: false }; WORKS_MAX];
        let mut actions = 0u32;
        let first = last.wrapping_sub(count).wrapping_add(1);
        let mut put = |action| {
            actions += 1;
            // Each has the number that the window gives it: whichever fails tells no more than it
            // should.
            let id = self.tag.of_send(last.wrapping_sub(count).wrapping_add(actions));
            if let Some(work) = works.get_mut(actions as usize - 1) {
                *work = Work { id, action, signaled: signaled && actions == count };
            }
        };
        if immediate && says {
            put(self.message(text, first));
        }
        if let Some((_, rings, _)) = message.ring {
            let pieces = parts.iter().flatten();
            let many = parts.iter().flatten().count();
            for (i, part) in pieces.enumerate() {
                let from = Some(Piece {
                    region: &rings.arena.region,
                    offset: part.offset,
                    bytes: part.bytes,
                });
                let inline = part.bytes <= self.settings.inline_bytes as usize;
                put(if immediate && i + 1 == many {
                    Action::WriteImm { from, to: part.to, inline, imm }
                } else {
                    Action::Write { from, to: part.to, inline }
                });
            }
        }
        if !immediate && says {
            put(self.message(text, last));
        }
        debug_assert_eq!(actions, count);

        let sent = self.sent.load(Relaxed);
        self.sent.store(sent.wrapping_add(messages), Release);
        ready();
        let result = self.fabric.post(pair, works.get(..count as usize).unwrap_or(&[]));
        add(&self.counters.posts, 1);
        match result {
            Ok(()) => {
                tx.window.posted(count, signaled);
                if signaled {
                    tx.signaled = last;
                }
                let told = if says {
                    reposted
                } else {
                    self.returned.load(Relaxed).wrapping_add(returned)
                };
                self.returned.store(told, Relaxed);
                add(&self.counters.works, u64::from(count));
                add(&self.counters.messages, u64::from(messages));
                add(&self.counters.data_messages, u64::from(total != 0));
                add(&self.counters.credit_messages, u64::from(says && message.credit));
                add(&self.counters.bytes_sent, u64::from(total));
                Served::More
            }
            Err(e) => self.not_posted(tx, sent, e),
        }
    }

    /// The fabric has refused a post, before which `sent` messages were counted.
    #[cold]
    #[inline(never)]
    fn not_posted(&self, tx: &Tx, sent: u32, e: PostError) -> Served {
        match e {
            // The queue is fuller than it should be. What frees it is under way, or nothing will.
            PostError { posted: 0, errno: crate::arena::ENOMEM, unknown: false }
                if tx.signaled.wrapping_sub(self.completed.load(Acquire)).cast_signed() > 0 =>
            {
                self.sent.store(sent, Release);
                add(&self.counters.queue_full, 1);
                Served::Full
            }
            PostError { errno, .. } => {
                self.lose(Reason::Refused { call: Call::Post, errno });
                Served::Lost
            }
        }
    }
}

/// What [`Lanes::gather`] collects.
struct Turned {
    draft: Draft,
    bytes: Option<Bytes>,
    /// The message has nothing but a credit.
    credit: bool,
    /// There is more than this message.
    more: bool,
}

impl Turned {
    /// Adds an item that is no credit, and does `then`; or says that there is more.
    fn add(&mut self, lane: u16, item: Item, then: impl FnOnce()) {
        if self.draft.push(lane, item) {
            self.credit = false;
            then();
        } else {
            self.more = true;
        }
    }
}

/// What is posted at once.
struct Message<'a, F: Fabric> {
    draft: &'a mut Draft,
    bytes: Option<Bytes>,
    /// Lane, and where its bytes are and go.
    ring: Option<(u16, &'a Rings<F>, Ring)>,
    credit: bool,
    /// Its completion is waited for.
    last: bool,
}

/// A piece of a ring that does not wrap.
#[derive(Clone, Copy)]
struct Part {
    offset: usize,
    bytes: usize,
    to: Remote,
}

impl<F: Fabric> Message<'_, F> {
    /// The bytes, as they lie in the ring.
    fn parts(&self) -> [Option<Part>; 2] {
        let Some((b, (_, rings, remote))) = self.bytes.zip(self.ring.as_ref()) else {
            return [None; 2];
        };
        let size = rings.size as u64;
        let index = b.from.wrapping_sub(b.base) & size.wrapping_sub(1);
        let first = u64::from(b.bytes).min(size.wrapping_sub(index));
        let part = |index: u64, bytes: u64| Part {
            // Within the ring: index + bytes <= size.
            offset: rings.offset.wrapping_add(index as usize),
            bytes: bytes as usize,
            to: Remote { address: remote.address.wrapping_add(index), key: remote.key },
        };
        let rest = u64::from(b.bytes).wrapping_sub(first);
        [Some(part(index, first)), (rest != 0).then(|| part(0, rest))]
    }

    /// Whether there is a message besides an immediate.
    fn says(&self, immediate: bool) -> bool {
        !immediate || !self.draft.is_empty() || self.bytes.is_none()
    }

    /// Work requests.
    fn works(&self, immediate: bool) -> u32 {
        u32::from(self.says(immediate)) + self.parts().iter().flatten().count() as u32
    }

    /// Receives of the peer's.
    fn messages(&self, immediate: bool) -> u32 {
        u32::from(self.says(immediate)) + u32::from(immediate && self.bytes.is_some())
    }
}
