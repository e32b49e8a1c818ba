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

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]
mod tests {
    extern crate std;
    use super::*;
    use crate::fd_table::{self, Entry};
    use crate::path::tests::{A, C, End, close_both, new_channel, promoted_within_the_host, talk};
    use crate::socket::State;
    use crate::{api, sleep, sys};
    use core::ffi::c_int;
    use std::time::{Duration, Instant};

    /// Peers whose connections one set has (docs/manual/limits.md, *Numbers*).
    const PEERS: usize = 64;

    fn put_into(set: c_int, end: &End) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: end.fd as u64 };
        // SAFETY: a live event.
        unsafe {
            if api::epoll_ctl(set, libc::EPOLL_CTL_ADD, end.fd, &mut event) == api::PASS {
                assert!(sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, end.fd, &mut event) >= 0);
            }
        }
    }

    /// Whether the set reports it now.
    fn tells_of(set: c_int, end: &End) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let (at, most, none) = (events.as_mut_ptr(), events.len() as c_int, core::ptr::null());
        let mut counted = api::Counted::default();
        // SAFETY: live events.
        let n = unsafe {
            match api::epoll_wait(set, at, most, 0, none, &mut counted) {
                api::PASS => {
                    let n = sleep::epoll_wait(set, at, most, 0, core::ptr::null()) as c_int;
                    counted.came_out(n);
                    if n > 0 { api::on_epoll_wait(set, at, n, most) } else { n }
                }
                n => n as c_int,
            }
        };
        events[..n.max(0) as usize].iter().any(|e| e.u64 == end.fd as u64)
    }

    /// What the peer sends is reported, and comes.
    fn is_reported(set: c_int, ends: &mut [End; 2]) {
        talk(ends, 5000);
        ends[C].send(C, 100);
        let began = Instant::now();
        while !tells_of(set, &ends[A]) {
            assert!(began.elapsed() < Duration::from_secs(20), "it is not reported");
        }
        ends[A].receive_all(A, 100);
    }

    fn is_fast(end: &End) -> bool {
        let told = &end.socket.published;
        end.socket.is(State::Attached) && told.sends_fast() && told.receives_fast()
    }

    #[test]
    fn who_is_one_peer_too_many_for_a_set_is_on_tcp_until_one_has_gone() {
        crate::testing::init();
        let set = crate::numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
        api::on_epoll_create(set);
        let Entry::Epoll(known) = fd_table::get(set) else { std::panic!("not known") };
        let e = super::super::at(known);
        // All but one are peers without a connection that says anything.
        let peers: Vec<&'static Channel> = (1..PEERS).map(|_| new_channel(A)).collect();
        let joins = |peer| activate(e, &mut e.inner.lock(), peer).is_ok();
        assert!(peers.iter().all(|peer| joins(*peer)));
        let mut last = promoted_within_the_host();
        put_into(set, &last[A]);
        is_reported(set, &mut last);
        assert!(is_fast(&last[A]), "there is room for {PEERS}");
        // The peer of that one goes, and somebody else is here first.
        let ours = last[A].socket.channel().unwrap();
        close_both(last);
        e.inner.lock().channels.retain(|c| !core::ptr::eq(*c, ours));
        let other = new_channel(A);
        assert!(joins(other) && !joins(new_channel(A)));
        let mut more = promoted_within_the_host();
        put_into(set, &more[A]);
        is_reported(set, &mut more);
        let record = more[A].socket.record().unwrap();
        assert_eq!(record.reason.load(Relaxed), Reason::SeveralEpollSets as u32);
        assert!(more[A].socket.is(State::Plain));
        is_reported(set, &mut more);
        close_both(more);
        // There is room again.
        other.dead.store(1, SeqCst);
        crate::wait::channel_died(other);
        let mut next = promoted_within_the_host();
        put_into(set, &next[A]);
        is_reported(set, &mut next);
        assert!(is_fast(&next[A]));
        close_both(next);
        if api::close(set) == api::PASS {
            let _ = sys::close(set);
        }
    }
}
