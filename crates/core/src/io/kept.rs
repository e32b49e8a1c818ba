//! Fast connect: what is kept of connections that have left their carriers comes to an end, because
//! it is too old, nobody wants it any more, or its peer or its listener is gone. (How a connection
//! comes to be kept, and how the next one takes its carrier: [`super::park`].)

use super::last_close::finish;
use crate::fast_connect::{self, Listener, PeerAddress};
use crate::fd_table::{self, Entry};
use crate::life_word::{look, step};
use crate::socket::{self, Event, Socket, State, harmless};
use crate::{config, process, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::*};
use netacc_proto::lives::{Event as Happens, Refused, Seen, State as Life};

/// An acceptor's connection that is kept, and whose connector has begun the next life.
pub(crate) fn is_taken(s: &Socket) -> bool {
    s.is(State::Parked)
        && s.channel().is_some_and(|c| look(s, c, Life::Closed) == Some(Seen::Taken))
}

/// Who accepts may have heard that it is taken, and have found it in nobody's list.
pub(super) fn hear_if_taken(s: &'static Socket) {
    if is_taken(s) {
        fast_connect::listener_of(s).into_iter().for_each(|l| l.hear(s, is_taken));
    }
}

/// One that was kept, and is the caller's: the kernel's close, as ever.
pub(super) fn give_up(s: &'static Socket) {
    if let Some(channel) = s.channel() {
        let _ = step(s, channel, Life::Closed, Happens::End);
    }
    let own = s.spare.swap(0, Relaxed) - 1;
    s.state.change(State::Parked, Event::Reopened);
    let _ = finish(s, own, || {
        fd_table::close_internal(own);
        0
    });
    socket::forget_orphan();
}

/// The peer, or its process, has ended what is kept of this connection. (What it had begun before
/// waits to be accepted, as in the kernel's queue.)
fn is_gone(s: &Socket) -> bool {
    let Some(channel) = s.channel() else { return true };
    match look(s, channel, Life::Closed) {
        None | Some(Seen::Retired) => true,
        Some(Seen::Taken) => false,
        _ => channel.dead.load(SeqCst) != 0,
    }
}

fn expires_ns() -> u64 {
    config::get().empty_channel_expire_ms.map_or(u64::MAX, |ms| u64::from(ms) * 1_000_000)
}

/// When to look at what is kept, if anything is.
pub(super) fn next_sweep() -> u64 {
    const PAUSE_NS: u64 = 100_000_000;
    match fast_connect::oldest(expires_ns().min(fast_connect::HALF_NS)) {
        0 => 0,
        // (What waits to be accepted stays, however old it is.)
        at => at.max(sys::now_ns().saturating_add(PAUSE_NS)),
    }
}

/// Gives up a few of those that are kept in vain or for too long. When to look again.
pub(crate) fn sweep() -> u64 {
    const AT_ONCE: usize = 8;
    for _ in 0..AT_ONCE {
        let Some(kept) = fast_connect::pick(|k| is_gone(k.socket)) else { break };
        give_up(kept.socket);
    }
    next_sweep()
}

/// As [`sweep`], for closes, which may be many.
pub(super) fn sweep_now_and_then() {
    const PAUSE_NS: u64 = 10_000_000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = sys::now_ns();
    if NEXT.load(Relaxed) <= now {
        NEXT.store(now.saturating_add(PAUSE_NS), Relaxed);
        sweep();
    }
}

/// As [`sweep`], when it is time.
pub(crate) fn sweep_in_time() -> u64 {
    let age = expires_ns();
    let is_old = |k: &fast_connect::Parked| {
        let seen = k.socket.channel().and_then(|c| look(k.socket, c, Life::Closed));
        match seen {
            Some(Seen::Parked) => k.is_older_than(age),
            Some(Seen::PeerOpen) => k.is_older_than(fast_connect::HALF_NS),
            _ => false,
        }
    };
    fast_connect::pick_each(is_old, retire_kept);
    sweep()
}

/// One that the caller has taken out. (Its connector may have begun the next life.)
pub(super) fn retire_kept(kept: fast_connect::Parked) {
    retire(kept.socket, kept.to);
}

pub(super) fn retire(s: &'static Socket, to: Option<PeerAddress>) {
    if retires(s) {
        give_up(s);
    } else if fast_connect::keep(s, to) {
        hear_if_taken(s);
    } else {
        reset(s);
    }
}

/// The word says that the carrier of one that the caller has taken out serves no more, or has said
/// so. False: its connector has begun the next life.
fn retires(s: &Socket) -> bool {
    let step = |c| step(s, c, Life::Closed, Happens::Retire);
    s.channel().map(step) != Some(Err(Refused::NotNow))
}

/// One that the caller has taken out, and that its connector has taken: it hears of a reset.
pub(super) fn reset(s: &'static Socket) {
    let reset = libc::linger { l_onoff: 1, l_linger: 0 };
    let own = s.fd.load(Acquire);
    let _ = sys::setsockopt(own, libc::SOL_SOCKET, libc::SO_LINGER, &reset);
    give_up(s);
}

/// One of a listener that is closed, which the caller has taken out: what waits to be accepted is
/// reset, as the kernel's is.
pub(super) fn end_accepting(kept: fast_connect::Parked) {
    if retires(kept.socket) { give_up(kept.socket) } else { reset(kept.socket) }
}

/// Whether it was accepted by the listener of that name.
pub(super) fn is_of(kept: &fast_connect::Parked, name: u32) -> bool {
    kept.to.is_none() && kept.socket.listener.load(Relaxed) == name
}

/// The socket on a slot, if it is kept: its peer wants something else of it, or is gone.
pub(super) fn end_kept(s: &'static Socket) -> bool {
    if !s.is(State::Parked) {
        return false;
    }
    if is_taken(s) {
        // (Its connector may have ended before it could announce that.)
        fast_connect::listener_of(s).into_iter().for_each(|l| l.hear(s, is_taken));
    } else if fast_connect::remove(s) {
        give_up(s);
    }
    true
}

/// Acceleration is turned off: nothing is kept any more but what waits to be accepted.
pub(super) fn retire_all() {
    fast_connect::pick_each(|k| !is_taken(k.socket), retire_kept);
}

/// Nothing is parked any more for a listener that has been given up. Whether something of it waits
/// to be accepted.
#[cold]
#[inline(never)]
pub(crate) fn serves(l: &'static Listener) -> bool {
    let its = |s: &Socket| fast_connect::listener_of(s).is_some_and(|of| core::ptr::eq(of, l));
    fast_connect::pick_each(|k| its(k.socket) && !is_taken(k.socket), retire_kept);
    fast_connect::any(|k| its(k.socket))
}

/// A listener gives out nothing more that is parked. What was taken before waits to be accepted.
#[cold]
#[inline(never)]
pub(crate) fn give_up_listener(l: &'static Listener) {
    l.give_up();
    let _ = serves(l);
}

/// A listener is waited for otherwise than by the set that it stands in, which hears alone of what
/// is taken: what is parked so is retired, and what is taken is given out as ever.
#[cold]
#[inline(never)]
pub(crate) fn waits_elsewhere(l: &'static Listener) {
    if l.ends_by_set() {
        let its = |s: &Socket| fast_connect::listener_of(s).is_some_and(|of| core::ptr::eq(of, l));
        fast_connect::pick_each(|k| its(k.socket) && !is_taken(k.socket), retire_kept);
        find_taken(l, true);
    }
}

/// What has been taken of a listener's, and was announced where nobody has looked since.
#[cold]
#[inline(never)]
pub(crate) fn find_taken(l: &'static Listener, wakes: bool) {
    let its = |s: &Socket| fast_connect::listener_of(s).is_some_and(|of| core::ptr::eq(of, l));
    fast_connect::for_each(|k| {
        if its(k.socket) && is_taken(k.socket) {
            l.hear_at_set(k.socket, wakes);
        }
    });
}

/// A set has heard of news on a slot of which it has no item. True: it is of a listener, which has
/// something to give out. `is_here`: the listener stands in that set.
#[cold]
#[inline(never)]
pub(crate) fn hear_taken(s: &'static Socket, is_here: impl Fn(&Listener) -> bool) -> bool {
    let Some(l) = fast_connect::listener_of(s).filter(|_| is_taken(s)) else { return false };
    let here = is_here(l);
    l.hear_at_set(s, !here);
    here
}

/// Another program gets the listener `fd`, and may accept as well.
pub(crate) fn share_listener(fd: c_int) {
    let Some(l) = fast_connect::listener(fd) else { return };
    l.give_up();
    // (A child that shares this memory has descriptors of its own: the next `accept` retires.)
    if !process::in_vfork_child() {
        let _ = serves(l);
    }
}

/// The process has made an io_uring, by which it may accept: what is taken would not be seen there.
pub(crate) fn on_ring() {
    if fast_connect::note_rings() {
        fast_connect::listeners().for_each(give_up_listener);
        fd_table::for_each(|fd, entry| {
            if let Entry::Socket(s, _) = entry {
                harmless::write_back(s, fd);
            }
        });
    }
}

/// A listener is about to be closed.
#[cold]
#[inline(never)]
pub(crate) fn end_listener(l: &'static Listener) {
    let name = l.name();
    l.give_up();
    fast_connect::pick_each(|k| is_of(k, name), end_accepting);
    // (The kernel takes the listener itself out of the sets that it is in.)
    fd_table::for_each(|set, entry| {
        if let Entry::Epoll(_) = entry {
            let mut ev = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: one valid event.
            let _ = unsafe { sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, l.gather(), &mut ev) };
        }
    });
    l.end();
    // (What was closing meanwhile, and has found it still there.)
    fast_connect::pick_each(|k| is_of(k, name), end_accepting);
}
