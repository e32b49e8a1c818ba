//! A connection's two ends: the words that both processes see, and who holds which end.

use super::{ECONNRESET, EFAULT};
use crate::channel::{Channel, announce, producer_quiet, quiet};
use crate::lock::{EndGuard, lock_end, try_lock_end};
use crate::outcome::Ret;
use crate::published::Published;
use crate::socket::{RxEnd, Socket, State, TxEnd, flag};
use crate::trace::Event;
use crate::{agent, carrier, config, engines, stats, sys};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering::*, fence};
use netacc_control::stats::{Counter, Path, Reason};
use netacc_proto::switchover::{Ack, Announce, Corrupt, Path as Way, Plan, RxState, TxState};
use netacc_ring::{CopyError, EndLock, PeerCorrupt, RingWords, sleepers};

pub(super) fn load_announce(w: &RingWords) -> Announce {
    let epoch = w.producer_user[announce::EPOCH].load(Acquire) as u32;
    Announce {
        epoch,
        fast_from: w.producer_user[announce::FAST_FROM].load(Relaxed),
        carrier_from: w.producer_user[announce::CARRIER_FROM].load(Relaxed),
        resend_to: w.producer_user[announce::RESEND_TO].load(Relaxed),
    }
}

pub(super) fn publish_announce(h: &TxHeld<'_>, a: Announce) {
    let w = h.words;
    w.producer_user[announce::FAST_FROM].store(a.fast_from, Relaxed);
    w.producer_user[announce::CARRIER_FROM].store(a.carrier_from, Relaxed);
    w.producer_user[announce::RESEND_TO].store(a.resend_to, Relaxed);
    w.producer_user[announce::EPOCH].store(a.epoch as u64, Release);
    h.published.epoch.store(a.epoch, Release);
    h.channel.far.words_changed(h.slot);
}

pub(super) fn load_ack(w: &RingWords) -> Ack {
    let control = w.quiet[quiet::ACK].load(Acquire);
    Ack::from_words(control, w.quiet[quiet::CONSUMED].load(Relaxed))
}

pub(super) fn store_ack(h: &RxHeld<'_>) {
    let (w, ack) = (h.words, h.end.switch.ack());
    h.published.trust();
    if !h.channel.far.is_shared()
        && h.published.ack.load(Relaxed) == ack.control()
        && (!ack.frozen || w.quiet[quiet::CONSUMED].load(Relaxed) == ack.consumed)
    {
        // Nothing to tell. (How far a receiver has come matters only when it is frozen; the engine
        // brings the rest back.)
        return;
    }
    w.quiet[quiet::CONSUMED].store(ack.consumed, Relaxed);
    w.quiet[quiet::ACK].store(ack.control(), Release);
    h.published.ack.store(ack.control(), Release);
    h.channel.far.words_changed(h.slot);
}

/// One half of a connection, whose lock is held.
pub(super) struct Held<'a, E: End> {
    pub(super) end: &'a mut E,
    pub(super) words: &'a RingWords,
    pub(super) published: &'a Published,
    pub(super) channel: &'a Channel,
    pub(super) slot: usize,
    _guard: EndGuard<'a>,
}
pub(super) type TxHeld<'a> = Held<'a, TxEnd>;
pub(super) type RxHeld<'a> = Held<'a, RxEnd>;

/// Which half.
pub(super) trait End: Sized + 'static {
    fn lock(s: &Socket) -> &EndLock;
    fn of(s: &Socket) -> &UnsafeCell<Self>;
    fn words(s: &Socket) -> &AtomicPtr<RingWords>;
    /// These, for calls that take the fast way.
    fn fast(s: &Socket) -> &AtomicPtr<RingWords>;
    /// A process of the family was killed while it held this end.
    fn repair(&mut self, s: &Socket);
}

impl End for TxEnd {
    #[inline(always)]
    fn lock(s: &Socket) -> &EndLock {
        &s.tx_lock
    }
    #[inline(always)]
    fn of(s: &Socket) -> &UnsafeCell<Self> {
        &s.tx
    }
    #[inline(always)]
    fn words(s: &Socket) -> &AtomicPtr<RingWords> {
        &s.tx_words
    }
    #[inline(always)]
    fn fast(s: &Socket) -> &AtomicPtr<RingWords> {
        &s.tx_fast
    }
    /// What it wrote and did not publish or count is made whole (`docs/design/switchover.md`); a
    /// promotion is not tried again.
    #[cold]
    fn repair(&mut self, s: &Socket) {
        self.never = true;
        self.switch.pin();
        if self.switch.state() == TxState::Fast {
            s.published.tail.store(self.ring.publish(), Relaxed);
            let _ = self.switch.on_accepted(self.ring.tail().wrapping_sub(self.switch.offset()));
        }
        if let Some(before) = self.resend_mark.take() {
            let resend = self.switch.resend();
            let now = carrier::sent(s.fd.load(Acquire)).unwrap_or(before);
            let _ = self.switch.on_resent(now.wrapping_sub(before).min(resend.end - resend.start));
        }
    }
}

impl End for RxEnd {
    #[inline(always)]
    fn lock(s: &Socket) -> &EndLock {
        &s.rx_lock
    }
    #[inline(always)]
    fn of(s: &Socket) -> &UnsafeCell<Self> {
        &s.rx
    }
    #[inline(always)]
    fn words(s: &Socket) -> &AtomicPtr<RingWords> {
        &s.rx_words
    }
    #[inline(always)]
    fn fast(s: &Socket) -> &AtomicPtr<RingWords> {
        &s.rx_fast
    }
    #[cold]
    fn repair(&mut self, s: &Socket) {
        if self.switch.path() == Way::Fast {
            // Killed between taking bytes and counting them.
            s.published.head.store(self.ring.publish(), Relaxed);
            let _ = self.switch.on_delivered(self.ring.head().wrapping_sub(self.switch.offset()));
        }
    }
}

/// Why a half could not be had.
pub(super) enum NotHeld {
    /// The socket changed under the call: ask the table again.
    Changed,
    /// A signal handler interrupted the holder: this very thread.
    Reentrant,
}

/// Takes the half `E`, as soon as nobody has it.
pub(super) fn hold<E: End>(s: &'static Socket, g: u16) -> Result<Held<'static, E>, NotHeld> {
    held(s, g, lock_end(E::lock(s)).ok_or(NotHeld::Reentrant)?)
}

/// As [`hold`], where nobody holds it and nothing is odd, in the process that made the connection.
#[inline(always)]
pub(super) fn try_hold<E: End>(s: &'static Socket, g: u16) -> Option<Held<'static, E>> {
    let guard = try_lock_end(E::lock(s))?;
    if s.generation16() != g || !s.is(State::Attached) {
        return None;
    }
    // SAFETY: as in `held`; the caller is the socket's owner.
    unsafe {
        let channel = s.channel.load(Acquire).as_ref()?;
        let words = E::fast(s).load(Relaxed).as_ref()?;
        Some(Held {
            end: &mut *E::of(s).get(),
            words,
            published: &s.published,
            channel,
            slot: s.slot.load(Relaxed) as usize,
            _guard: guard,
        })
    }
}

/// The half whose lock is taken.
pub(super) fn held<E: End>(
    s: &'static Socket,
    g: u16,
    (guard, owner_died): (EndGuard<'static>, bool),
) -> Result<Held<'static, E>, NotHeld> {
    if s.generation16() != g || !s.is(State::Attached) {
        return Err(NotHeld::Changed);
    }
    let Some(channel) = s.channel() else { return Err(NotHeld::Changed) };
    // SAFETY: an attached socket's pointers were set by `attach` to words and a channel that live
    // while it is attached.
    let Some(words) = (unsafe { E::words(s).load(Relaxed).as_ref() }) else {
        return Err(NotHeld::Changed);
    };
    // SAFETY: the end belongs to the holder of its lock, which `guard` proves.
    let end = unsafe { &mut *E::of(s).get() };
    if owner_died {
        end.repair(s);
    }
    let slot = s.slot.load(Relaxed) as usize;
    Ok(Held { end, words, published: &s.published, channel, slot, _guard: guard })
}

pub(super) fn hold_tx(s: &'static Socket, g: u16) -> Result<TxHeld<'static>, NotHeld> {
    hold(s, g)
}
pub(super) fn hold_rx(s: &'static Socket, g: u16) -> Result<RxHeld<'static>, NotHeld> {
    hold(s, g)
}

impl TxHeld<'_> {
    /// Wakes whoever waits for what was just published. False: nobody will take it.
    #[inline(always)]
    pub(super) fn notify(&self) -> bool {
        let told = match self.channel.far.is_shared() {
            true => self.channel.notify(self.slot, &self.words.quiet[quiet::NOTIFY]),
            false => notify_engine(self.channel, self.slot, self.words),
        };
        told & quiet::ENDS == 0
    }
}

/// What gives the engine room has come, mostly: who only sends never looks for it. Posted by
/// whoever looks next, the bytes would come late, and behind those of other connections. (What it
/// takes is in registers, where all of [`Held`] is while nobody has its address.)
#[cold]
#[inline(never)]
fn notify_engine(channel: &Channel, slot: usize, words: &RingWords) -> u64 {
    let told = sleepers::whom_to_tell(&words.quiet[quiet::NOTIFY]);
    if !channel.far.kick(slot) {
        engines::poll_for(channel, slot);
    }
    told
}

impl RxHeld<'_> {
    #[inline]
    pub(super) fn notify_space(&self) {
        self.channel.notify(self.slot, &self.words.producer_quiet[producer_quiet::NOTIFY]);
    }

    /// Bytes that only the ring has. (After a fail-over it still has what comes again over the
    /// carrier.)
    pub(super) fn unread(&mut self) -> Result<usize, PeerCorrupt> {
        match self.end.switch.state() {
            RxState::Open | RxState::Replaying => Ok(0),
            _ => self.end.ring.refresh(),
        }
    }

    /// The application has not received all that was there to be read: in the ring, or what comes
    /// again over the carrier instead.
    pub(super) fn leaves_unread(&mut self) -> bool {
        self.end.switch.outstanding() > 0 || self.unread().is_ok_and(|n| n > 0)
    }

    /// Shut down for receiving, between hosts: what is there, or comes again, is still received.
    pub(super) fn note_shut(&mut self) {
        let there = self.unread().unwrap_or(0) as u64;
        let more = there.max(self.end.switch.outstanding());
        self.end.read_until = self.end.switch.offset().saturating_add(more);
    }

    /// With this one both halves are shut down. (Where a call of before the attachment takes bytes
    /// that nobody counts yet, nobody knows how much is there.)
    pub(super) fn note_both_shut(&mut self, s: &Socket, fd: c_int) {
        if self.end.unsettled || self.end.shut_at.is_some() {
            return;
        }
        if self.end.switch.on_announce(load_announce(self.words)).is_ok_and(|moved| moved) {
            self.settled(s);
        }
        let there = self.unread().unwrap_or(0).saturating_add(carrier_unread(fd).unwrap_or(0));
        let more = self.end.switch.outstanding().max(there as u64);
        self.end.shut_at = Some(self.end.switch.offset().saturating_add(more));
    }

    /// Bytes have come since both halves were shut down, and the application has received what came
    /// before: a reset that the library makes takes away what the kernel holds.
    pub(super) fn comes_behind_both(&mut self, s: &Socket, fd: c_int) -> bool {
        let behind = self.end.shut_at.is_some_and(|at| self.end.switch.offset() >= at);
        behind
            && s.path().is_lossy()
            // (There the kernel gets what the path's own TCP has received, in parts.)
            && !s.path().hides_carrier()
            && (self.leaves_unread() || carrier_unread(fd).is_some_and(|n| n > 0))
    }

    /// Behind that: all of it is received. (A handler that has interrupted a receive, or a forked
    /// child, could not note how much it is.)
    #[cold]
    pub(super) fn has_what_was_there(&mut self) -> bool {
        if self.end.read_until == 0 {
            self.note_shut();
        }
        self.end.switch.offset() >= self.end.read_until
    }

    /// Passes over bytes that have come by the carrier instead (fewer, if the ring has fewer).
    pub(super) fn skip(&mut self, n: u64) -> Result<(), PeerCorrupt> {
        let n = n.min(self.end.ring.refresh()? as u64) as usize;
        self.end.ring.skip(n)?;
        self.published.head.store(self.end.ring.publish(), Relaxed);
        Ok(())
    }

    /// The sender has announced another path than the one that the receiver stands on. (A load from
    /// the line of the ring's tail.)
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.words.producer_user[announce::EPOCH].load(Acquire) as u32 != self.end.switch.epoch()
    }

    /// The receiver has taken bytes from the carrier. Where these were the last ones before a
    /// promotion that it has not heard of, the ring's are next, and who has looked before could not
    /// see that.
    pub(super) fn came_to(&mut self, s: &Socket) -> Result<(), Corrupt> {
        s.rx_offset.store(self.end.switch.offset(), Relaxed);
        self.published.trust();
        fence(SeqCst);
        if self.end.switch.on_announce(load_announce(self.words))? {
            self.settled(s);
        }
        Ok(())
    }

    /// The receiver may stand on another path than before.
    pub(super) fn settled(&mut self, s: &Socket) {
        s.rx_offset.store(self.end.switch.offset(), Relaxed);
        if self.end.switch.state() == RxState::Open {
            // All has come again over the carrier: what the ring still has of it must not look like
            // news.
            let _ = self.skip(u64::MAX);
        }
        // Before it says that it has followed.
        show_path(s, false, self.end.switch.path(), self.end.switch.offset());
        store_ack(self);
        // An edge may have been taken for a spurious one while the other path was the stream's.
        let awaited = self.published.posted.awaited();
        let [thread, _] = awaited.threads.map(|t| t as usize);
        // (A forked child cannot wake its parent's sets: see `wait::prod_on`.)
        let sets = awaited.sets.iter().filter_map(|place| place.checked_sub(1));
        for set in sets.map(|set| set as usize).filter(|_| !s.is_inherited()) {
            if self.channel.my_place(set).announce_fenced(self.slot as u16) {
                crate::wait::wake_own(set);
            }
        }
        if thread != 0 {
            crate::wait::wake_own(thread - 1);
        }
    }
}

/// Shows the peer what the ring holds back.
pub(super) fn publish_held(h: &mut TxHeld<'_>) {
    if h.end.switch.state() == TxState::Fast && h.end.ring.unpublished() != 0 {
        h.published.tail.store(h.end.ring.publish(), Relaxed);
        h.notify();
    }
}

pub(super) fn demote_tx(s: &Socket, h: &mut TxHeld<'_>, for_good: bool) {
    if for_good {
        h.end.never = true;
    }
    publish_held(h);
    if let Ok(a) = h.end.switch.demote() {
        publish_announce(h, a);
        show_path(s, true, Way::Carrier, h.end.switch.offset());
        h.notify();
    }
}

/// Shows a direction's path in the statistics; it is the one from byte `at` of the stream on.
#[cold]
pub(super) fn show_path(s: &Socket, tx: bool, way: Way, at: u64) {
    let Some(r) = s.record() else { return };
    let fast = s.channel().map_or(Path::Shm, Channel::path);
    let new = if way == Way::Fast { fast } else { Path::Tcp };
    if way == Way::Fast {
        // All that is in the ring comes before: of a sender it is published, of a receiver taken.
        let ring = if tx { &s.published.tail } else { &s.published.head };
        r.set_ring_start(tx, at.wrapping_sub(ring.load(Relaxed)));
    }
    let mine = if tx { &r.tx_path } else { &r.rx_path };
    if mine.swap(new as u32, Relaxed) == new as u32 {
        return;
    }
    let event = if way == Way::Fast { Event::Promoted } else { Event::Demoted };
    s.trace(event, u64::from(tx) | at << 8);
    let mut first = None;
    if way == Way::Fast {
        first = (r.promotions.fetch_add(1, Relaxed) == 0).then_some(fast);
        stats::count(if tx { Counter::PromotedTx } else { Counter::PromotedRx });
        if config::get().accelerate_by_default {
            // (Otherwise it passes through a ring of before, and the reason is that.)
            s.set_reason(Reason::None);
        }
    } else {
        r.demotions.fetch_add(1, Relaxed);
        stats::count(Counter::Demoted);
    }
    // (Of what a forked child has inherited its maker has the books.)
    let better = r.tx_path.load(Relaxed).max(r.rx_path.load(Relaxed));
    stats::place(r, Path::from_code(better).unwrap_or(Path::Tcp), first);
}

/// The peer broke the rules: nothing of what it says is believed any more, the connection is reset.
#[cold]
#[inline(never)]
pub(super) fn corrupt(s: &Socket, fd: c_int) -> Ret {
    stats::count(Counter::PeerCorrupt);
    s.set_reason(Reason::PeerCorrupt);
    s.raise(flag::CORRUPT);
    s.trace_once(Event::Corrupt, 0);
    if let Some(channel) = s.channel() {
        agent::of(s.path()).accuse(channel);
    }
    // The peer's program may have done this without its library (a write past libc onto the
    // carrier).
    carrier::dissolve(fd);
    ECONNRESET
}

/// What a call says of bytes that could not be copied out of or into the ring.
#[cold]
#[inline(never)]
pub(super) fn copy_failed(s: &Socket, fd: c_int, e: CopyError) -> Ret {
    match e {
        CopyError::BadAddress => EFAULT,
        CopyError::PeerCorrupt => corrupt(s, fd),
    }
}

/// How much the kernel has that the application has not read.
pub(super) fn carrier_unread(fd: c_int) -> Option<usize> {
    let mut unread: c_int = 0;
    (sys::ioctl(fd, libc::FIONREAD as usize, &mut unread as *mut c_int as usize) >= 0)
        .then_some(unread.max(0) as usize)
}

/// What the peer's receiver has followed is all that went over the carrier; nothing of it is
/// unacknowledged.
pub(crate) fn carrier_is_drained(s: &Socket) -> bool {
    let Some(channel) = s.channel() else { return false };
    let w = channel.words(s.slot.load(Relaxed) as usize, channel.side);
    let epoch = s.published.epoch.load(Relaxed);
    epoch & 1 != 0 && w.quiet[quiet::ACK].load(Acquire) as u32 == epoch
}

/// Whether bytes of the ring come before whatever the kernel has.
pub(crate) fn reads_ring_first(s: &'static Socket, g: u16) -> bool {
    let Ok(mut h) = hold_rx(s, g) else { return false };
    if h.end.switch.on_announce(load_announce(h.words)).is_ok_and(|changed| changed) {
        h.settled(s);
    }
    matches!(h.end.switch.plan(), Plan::Fast { .. }) && h.unread().is_ok_and(|n| n > 0)
}
