//! A connection's two ends: the words that both processes see, and who holds which end.

use super::ECONNRESET;
use super::leave::to_kernel;
use super::receive_once::Look;
use crate::channel::{Channel, announce, producer_quiet, quiet};
use crate::lock::{EndGuard, lock_end, try_lock_end};
use crate::outcome::Ret;
use crate::published::Published;
use crate::socket::{RxEnd, Socket, State, TxEnd, flag};
use crate::{agent, carrier, stats, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use netacc_control::stats::{Counter, Path, Reason};
use netacc_proto::switchover::{Ack, Announce, Corrupt, Path as Way, Plan, RxState, TxState};
use netacc_ring::{PeerCorrupt, RingWords};

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
    h.channel.words_changed(h.slot);
}

pub(super) fn load_ack(w: &RingWords) -> Ack {
    let control = w.quiet[quiet::ACK].load(Acquire);
    Ack::from_words(control, w.quiet[quiet::CONSUMED].load(Relaxed))
}

pub(super) fn store_ack(h: &RxHeld<'_>) {
    let (w, ack) = (h.words, h.end.switch.ack());
    h.published.trust();
    if h.channel.wire().is_some()
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
    h.channel.words_changed(h.slot);
}

/// The sending half, held.
pub(super) struct TxHeld<'a> {
    pub(super) end: &'a mut TxEnd,
    pub(super) words: &'a RingWords,
    pub(super) published: &'a Published,
    pub(super) channel: &'a Channel,
    pub(super) slot: usize,
    _guard: EndGuard<'a>,
}

/// The receiving half, held.
pub(super) struct RxHeld<'a> {
    pub(super) end: &'a mut RxEnd,
    pub(super) words: &'a RingWords,
    pub(super) published: &'a Published,
    pub(super) channel: &'a Channel,
    pub(super) slot: usize,
    _guard: EndGuard<'a>,
}

/// Why a half could not be had.
pub(super) enum NotHeld {
    /// The socket changed under the call: ask the table again.
    Changed,
    /// A signal handler interrupted the holder: this very thread.
    Reentrant,
}

pub(super) fn hold_tx(s: &'static Socket, g: u16) -> Result<TxHeld<'static>, NotHeld> {
    tx_of(s, g, lock_end(&s.tx_lock).ok_or(NotHeld::Reentrant)?)
}

/// As [`hold_tx`], where nobody holds it and nothing is odd, in the process that made the
/// connection.
#[inline(always)]
pub(super) fn try_tx(s: &'static Socket, g: u16) -> Option<TxHeld<'static>> {
    let guard = try_lock_end(&s.tx_lock)?;
    if s.generation16() != g || !s.is(State::Attached) {
        return None;
    }
    // SAFETY: as in `tx_of`; the caller is the socket's owner.
    unsafe {
        let channel = s.channel.load(Acquire).as_ref()?;
        let words = s.tx_words.load(Relaxed).as_ref()?;
        Some(TxHeld {
            end: &mut *s.tx.get(),
            words,
            published: &s.published,
            channel,
            slot: s.slot.load(Relaxed) as usize,
            _guard: guard,
        })
    }
}

/// The sending half, whose lock is taken.
pub(super) fn tx_of(
    s: &'static Socket,
    g: u16,
    (guard, owner_died): (EndGuard<'static>, bool),
) -> Result<TxHeld<'static>, NotHeld> {
    if s.generation16() != g || !s.is(State::Attached) {
        return Err(NotHeld::Changed);
    }
    let Some(channel) = s.channel() else { return Err(NotHeld::Changed) };
    // SAFETY: an attached socket's pointers were set by `attach` to words and a channel that live
    // while it is attached.
    let Some(words) = (unsafe { s.tx_words.load(Relaxed).as_ref() }) else {
        return Err(NotHeld::Changed);
    };
    // SAFETY: `tx` belongs to the holder of `tx_lock`, which `guard` proves.
    let end = unsafe { &mut *s.tx.get() };
    if owner_died {
        repair_tx(s, end);
    }
    Ok(TxHeld {
        end,
        words,
        published: &s.published,
        channel,
        slot: s.slot.load(Relaxed) as usize,
        _guard: guard,
    })
}

pub(super) fn hold_rx(s: &'static Socket, g: u16) -> Result<RxHeld<'static>, NotHeld> {
    rx_of(s, g, lock_end(&s.rx_lock).ok_or(NotHeld::Reentrant)?)
}

/// As [`try_tx`].
#[inline(always)]
pub(super) fn try_rx(s: &'static Socket, g: u16) -> Option<RxHeld<'static>> {
    let guard = try_lock_end(&s.rx_lock)?;
    if s.generation16() != g || !s.is(State::Attached) {
        return None;
    }
    // SAFETY: as in `rx_of`; the caller is the socket's owner.
    unsafe {
        let channel = s.channel.load(Acquire).as_ref()?;
        let words = s.rx_words.load(Relaxed).as_ref()?;
        Some(RxHeld {
            end: &mut *s.rx.get(),
            words,
            published: &s.published,
            channel,
            slot: s.slot.load(Relaxed) as usize,
            _guard: guard,
        })
    }
}

/// The receiving half, whose lock is taken.
pub(super) fn rx_of(
    s: &'static Socket,
    g: u16,
    (guard, owner_died): (EndGuard<'static>, bool),
) -> Result<RxHeld<'static>, NotHeld> {
    if s.generation16() != g || !s.is(State::Attached) {
        return Err(NotHeld::Changed);
    }
    let Some(channel) = s.channel() else { return Err(NotHeld::Changed) };
    // SAFETY: as in `hold_tx`.
    let Some(words) = (unsafe { s.rx_words.load(Relaxed).as_ref() }) else {
        return Err(NotHeld::Changed);
    };
    // SAFETY: `rx` belongs to the holder of `rx_lock`, which `guard` proves.
    let end = unsafe { &mut *s.rx.get() };
    if owner_died && end.switch.path() == Way::Fast {
        // Killed between taking bytes and counting them.
        s.published.head.store(end.ring.publish(), Relaxed);
        let _ = end.switch.on_delivered(end.ring.head().wrapping_sub(end.switch.offset()));
    }
    Ok(RxHeld {
        end,
        words,
        published: &s.published,
        channel,
        slot: s.slot.load(Relaxed) as usize,
        _guard: guard,
    })
}

/// A process of the family was killed while it held the sending end: what it wrote and did not
/// publish or count is made whole (`docs/design/switchover.md`); a promotion is not tried again.
#[cold]
pub(super) fn repair_tx(s: &Socket, end: &mut TxEnd) {
    end.never = true;
    end.switch.pin();
    if end.switch.state() == TxState::Fast {
        s.published.tail.store(end.ring.publish(), Relaxed);
        let _ = end.switch.on_accepted(end.ring.tail().wrapping_sub(end.switch.offset()));
    }
    if let Some(before) = end.resend_mark.take() {
        let resend = end.switch.resend();
        let now = carrier::sent(s.fd.load(Acquire)).unwrap_or(before);
        let _ = end.switch.on_resent(now.wrapping_sub(before).min(resend.end - resend.start));
    }
}

impl TxHeld<'_> {
    /// Wakes whoever waits for what was just published. False: nobody will take it.
    #[inline(always)]
    pub(super) fn notify(&self) -> bool {
        fence(SeqCst);
        let notify = self.words.quiet[quiet::NOTIFY].load(Relaxed);
        self.channel.notify(self.slot, notify);
        notify & quiet::ENDS == 0
    }
}

impl RxHeld<'_> {
    #[inline]
    pub(super) fn notify_space(&self) {
        fence(SeqCst);
        self.channel
            .notify(self.slot, self.words.producer_quiet[producer_quiet::NOTIFY].load(Relaxed));
    }

    /// Bytes that only the ring has. (After a fail-over it still has what comes again over the
    /// carrier.)
    pub(super) fn unread(&mut self) -> Result<usize, PeerCorrupt> {
        match self.end.switch.state() {
            RxState::Open | RxState::Replaying => Ok(0),
            _ => self.end.ring.refresh(),
        }
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

    /// The plan may have changed.
    pub(super) fn follow(&mut self, s: &Socket, changed: bool) -> Look {
        if changed {
            self.settled(s);
        }
        Look::Again
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
        store_ack(self);
        show_path(s, false, self.end.switch.path());
        // An edge may have been taken for a spurious one while the other path was the stream's.
        let awaited = self.published.posted.awaited();
        let (set, [thread, _]) = (awaited.set as usize, awaited.threads.map(|t| t as usize));
        // (A forked child cannot wake its parent's set: see `wait::prod_on`.)
        if set != 0
            && !s.is_inherited()
            && self.channel.my_place(set - 1).announce_fenced(self.slot as u16)
        {
            crate::wait::wake_own(set - 1);
        }
        if thread != 0 {
            crate::wait::wake_own(thread - 1);
        }
    }
}

/// Shows a direction's path in the statistics.
#[cold]
pub(super) fn show_path(s: &Socket, tx: bool, way: Way) {
    let Some(r) = s.record() else { return };
    let fast = s.channel().map_or(Path::Shm, Channel::path);
    let new = if way == Way::Fast { fast } else { Path::Tcp };
    let (mine, other) = if tx { (&r.tx_path, &r.rx_path) } else { (&r.rx_path, &r.tx_path) };
    let old = mine.swap(new as u32, Relaxed);
    if old == new as u32 {
        return;
    }
    let before = old.max(other.load(Relaxed));
    let after = (new as u32).max(other.load(Relaxed));
    if way == Way::Fast {
        r.promotions.fetch_add(1, Relaxed);
        stats::count(if tx { Counter::PromotedTx } else { Counter::PromotedRx });
        s.set_reason(Reason::None);
    } else {
        r.demotions.fetch_add(1, Relaxed);
        stats::count(Counter::Demoted);
    }
    // (A forked child has books of its own, in which its parent's connections do not stand.)
    if before != after && !s.is_inherited() {
        let first = r.promotions.load(Relaxed) == 1 && way == Way::Fast;
        let code = |c| Path::from_code(c).unwrap_or(Path::Tcp);
        stats::moved(code(before), code(after), first.then_some((Path::Tcp, fast)));
    }
}

/// The peer broke the rules: nothing of what it says is believed any more, the connection is reset.
#[cold]
#[inline(never)]
pub(super) fn corrupt(s: &Socket, fd: c_int) -> Ret {
    stats::count(Counter::PeerCorrupt);
    s.set_reason(Reason::PeerCorrupt);
    s.raise(flag::CORRUPT);
    if let Some(channel) = s.channel() {
        agent::accuse(channel);
    }
    // By a reset: a FIN would be the end of a complete stream to the peer's program, which may have
    // done this without its library (a write past libc onto the carrier). Between hosts the
    // carrier's end has more to say.
    let dissolve = || sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes());
    if s.has(flag::REMOTE) || dissolve() < 0 {
        let _ = sys::shutdown(fd, libc::SHUT_RDWR);
    }
    ECONNRESET
}

/// What FIONREAD says: how much can be read at once, on both paths. `None`: ask the kernel.
pub(crate) fn unread(s: &'static Socket, g: u16, fd: c_int) -> Option<usize> {
    if s.is_inherited() && s.has(flag::REMOTE) {
        let _ = to_kernel(s, g, fd, Reason::InheritedByFork, false);
    }
    // Under the lock: bytes that change paths meanwhile would be counted twice or not at all.
    let mut h = hold_rx(s, g).ok()?;
    let on_carrier = carrier_unread(fd)?;
    if h.end.switch.on_announce(load_announce(h.words)).ok()? {
        h.settled(s);
    }
    match h.end.switch.plan() {
        // What comes before the ring's bytes has not all come.
        Plan::Carrier { limit, .. } if limit > on_carrier as u64 => Some(on_carrier),
        _ => Some(on_carrier.saturating_add(h.unread().ok()?)),
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
