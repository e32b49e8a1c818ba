//! Whom the set hears: the channels that it has joined, and what their peers are told of it.

use super::{DOORBELL, Epoll, Inner, Item, WATCHED, call_in, homes, tag};
use crate::channel::{Channel, producer_quiet, quiet};
use crate::engines::Engines;
use crate::socket::Socket;
use crate::{agent, process, wait};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_ring::ReadySet;

/// Lets go of channels whose peer is gone and that no item of the set uses.
pub(super) fn prune(e: &Epoll, inner: &mut Inner, place: usize) {
    inner.deaths = wait::deaths();
    if inner.channels.iter().all(|c| c.dead.load(Acquire) == 0) {
        return;
    }
    let used = |c: &Channel| {
        inner
            .items
            .iter()
            .flatten()
            .any(|i| i.attached && i.socket.channel().is_some_and(|own| core::ptr::eq(own, c)))
    };
    let (keep, drop): (Vec<_>, Vec<_>) =
        inner.channels.iter().copied().partition(|c| c.dead.load(Acquire) == 0 || used(c));
    // Nobody polls the old list while it changes: a thread that does holds pins of its own through
    // `inner.channels` only.
    e.watching.store(0, SeqCst);
    for (w, c) in e.watch.iter().zip(&keep) {
        w.store((c.my_place(place) as *const ReadySet).cast_mut(), Release);
    }
    e.watching.store(keep.len(), SeqCst);
    inner.channels = keep;
    choose_stamps(inner, place);
    for c in drop {
        agent::of(c.far.id()).left(c);
    }
}

#[inline]
pub(super) fn prune_if_due(e: &Epoll, inner: &mut Inner) {
    let place = e.place.load(Relaxed) as usize;
    if inner.deaths != wait::deaths() && place != 0 {
        prune(e, inner, place - 1);
    }
}

/// Tells the senders of all channels what their stamps have to be.
pub(super) fn choose_stamps(inner: &mut Inner, place: usize) {
    inner.by_clock = inner.channels.len() > 1;
    for c in &inner.channels {
        c.my_place(place).want_stamps(inner.by_clock);
    }
}

pub(super) fn leave_channels(e: &Epoll, inner: &mut Inner) {
    e.watching.store(0, Release);
    inner.engines = Engines::default();
    for c in core::mem::take(&mut inner.channels) {
        agent::of(c.far.id()).left(c);
    }
}

/// The socket is no longer in this set by this item.
pub(super) fn leave(e: &Epoll, item: &Item) {
    let s = item.socket;
    // What an inherited socket says of sets is its maker's.
    if s.generation16() != item.generation || s.is_inherited() {
        return;
    }
    if let Some(at) = homes::at(s, e).filter(|_| item.extra.is_none()) {
        // Before the home is another set's.
        if item.attached {
            unpost(s, at);
        }
        homes::give_back(s, at);
    }
    s.registrations.fetch_sub(1, SeqCst);
}

/// Nobody waits for the socket's news in its `at`-th home any more.
pub(super) fn unpost(s: &Socket, at: usize) {
    if let Some(channel) = s.channel() {
        set_notify(s, channel, at, 0);
    }
}

/// Sets the place (+1; 0: none) of the socket's `at`-th home in the NOTIFY words, leaving all
/// others as they are.
fn set_notify(s: &Socket, channel: &Channel, at: usize, place: u32) {
    let slot = s.slot.load(Relaxed) as usize;
    let (receiving, sending) =
        (channel.words(slot, channel.side ^ 1), channel.words(slot, channel.side));
    s.published.posted.post_set(
        at,
        place,
        [&receiving.quiet[quiet::NOTIFY], &sending.producer_quiet[producer_quiet::NOTIFY]],
    );
}

/// Makes sure that the set has a waiting place, by which its own process's threads wake those that
/// sleep on it.
pub(super) fn take_place(e: &'static Epoll, inner: &mut Inner) -> Result<u32, Reason> {
    // First: from here on the kernel's set may report a tag to a thread that sleeps in it.
    e.tagged.store(true, Relaxed);
    let mut place = e.place.load(Relaxed);
    let mut why = Reason::NoDescriptor;
    if place == 0 {
        match wait::claim_for_epoll(e.fd.load(Relaxed), tag(DOORBELL)) {
            Ok(claimed) => place = claimed as u32 + 1,
            Err(none) => why = none,
        }
        e.place.store(place, Release);
    }
    // (A thread that came into a set without a place would go back to the kernel's wait.)
    let called = e.outside.activate(&e.active);
    let ours = place != 0 || !inner.extras.is_empty();
    if called > 0 && ours && !e.barred.load(SeqCst) {
        call_in(e, inner, called);
    }
    if place != 0 { Ok(place) } else { Err(why) }
}

/// Makes the set one that has attached sockets, on `channel`. `Err`: why it cannot be one.
pub(super) fn activate(
    e: &'static Epoll,
    inner: &mut Inner,
    channel: &'static Channel,
) -> Result<(), Reason> {
    if e.barred.load(Relaxed) {
        return Err(Reason::SeveralEpollSets);
    }
    let place = take_place(e, inner)?;
    if inner.channels.try_reserve(1).is_err() {
        return Err(Reason::NoMemory);
    }
    if !inner.channels.iter().any(|c| core::ptr::eq(*c, channel)) {
        prune(e, inner, place as usize - 1);
        if inner.channels.len() >= WATCHED {
            return Err(Reason::SeveralEpollSets);
        }
        if !wait::introduce(channel, place as usize - 1, e.fd.load(Relaxed), tag(DOORBELL)) {
            return Err(Reason::NoDescriptor);
        }
        agent::of(channel.far.id()).joined(channel);
        let n = inner.channels.len();
        inner.engines.add(channel);
        // (What the place's last set has looked at is another one.)
        channel.my_place(place as usize - 1).set_looked(0);
        inner.channels.push(channel);
        choose_stamps(inner, place as usize - 1);
        if let Some(w) = e.watch.get(n) {
            w.store((channel.my_place(place as usize - 1) as *const ReadySet).cast_mut(), Release);
        }
        e.watching.store(n + 1, Release);
        if inner.sleepers > 0 {
            channel.my_place(place as usize - 1).prepare_sleep();
        }
    }
    Ok(())
}

/// See [`Sets::place_for_takes`](crate::sets::Sets::place_for_takes).
pub(super) fn place_for_takes(e: &Epoll, channel: &Channel) -> Option<usize> {
    let mine = e.owner.load(Relaxed) == process::id();
    if !mine || !e.active.load(Acquire) || e.barred.load(SeqCst) {
        return None;
    }
    let inner = e.inner.try_lock()?;
    let joined = inner.channels.iter().any(|c| core::ptr::eq(*c, channel));
    (e.place.load(Relaxed) as usize).checked_sub(1).filter(|_| joined)
}

/// Tells the peer to notify this set, too, of the socket's news, if it is a home of it.
pub(super) fn post(e: &Epoll, s: &Socket, channel: &Channel) {
    if let Some(at) = homes::at(s, e) {
        set_notify(s, channel, at, e.place.load(Relaxed));
    }
}
