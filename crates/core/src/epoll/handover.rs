//! Registrations change hands between the kernel and the library: a promotion, a demotion, a close,
//! a set that is itself polled.

use super::hand_back::{
    hand_back, register, register_carrier, take_from_kernel, take_out, take_record_out,
};
use super::report::give_way;
use super::{
    AGAIN_MAX_NS, AGAIN_NS, CALL_NS, DOORBELL, EXTRAS, Epoll, GATHERED, Inner, Item, ONESHOT,
    activate, at, homes, leave, leave_channels, post, prod, prune, tag,
};
use crate::fd_table::Entry;
use crate::lock::Guard;
use crate::socket::{Socket, State};
use crate::{fast_connect, fd_table, io, numbers, process, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;
use netacc_control::stats::Reason;

/// Calls `f` for every set that may hold the socket, some perhaps twice.
fn for_each_set_of(s: &Socket, mut f: impl FnMut(&'static Epoll)) {
    if EXTRAS.load(Acquire) != 0 {
        fd_table::for_each(|_, entry| {
            if let Entry::Epoll(e) = entry
                && let e = at(e)
                && e.owner.load(Relaxed) == process::id()
            {
                f(e);
            }
        });
    } else {
        homes::sets_of(s).for_each(f);
    }
}

/// Whether the socket can be attached now as far as its sets are concerned.
pub(crate) fn may_attach(s: &Socket) -> bool {
    // (Each is asked, and counts that.)
    homes::sets_of(s).fold(true, |may, e| may & may_be_taken_over(s, e))
}

/// As [`may_attach`], in a call that arms the registration in `armed`.
pub(super) fn may_attach_when_armed(s: &Socket, armed: &Epoll) -> bool {
    homes::sets_of(s).all(|e| {
        if !core::ptr::eq(e, armed) {
            return may_be_taken_over(s, e);
        }
        let Some(mut inner) = e.inner.try_lock() else { return false };
        // Whatever it has done, it reports nothing before that call is through.
        let item = homes::item(s, e).and_then(|index| inner.item_of(index, s));
        item.into_iter().for_each(|item| item.fired = true);
        true
    })
}

/// Calls on a candidate with ONESHOT, which usually arms it in between, before the kernel is asked
/// whether it has fired; after that as many again.
const FIRED_AFTER: u32 = 16;

/// Nobody is in the kernel's own wait for the set, nor comes there under this lock once the set has
/// its place: what stands in it stays as it is.
fn is_left_alone(e: &Epoll, inner: &Inner) -> bool {
    inner.away == 0 && e.outside.count() == 0
}

/// Whether it is known how the kernel's registration in that set stands, if there is one: one with
/// ONESHOT must have fired, which it does in waits that nobody here sees, or nobody may wait.
fn may_be_taken_over(s: &Socket, e: &Epoll) -> bool {
    // Not in a signal handler that interrupted a call on the set.
    let Some(mut inner) = e.inner.try_lock() else { return false };
    let alone = is_left_alone(e, &inner);
    let item = homes::item(s, e).and_then(|index| inner.item_of(index, s));
    let Some(item) = item.filter(|item| item.events & ONESHOT != 0 && !item.fired) else {
        return true;
    };
    item.asked = item.asked.saturating_add(1);
    if item.asked >= FIRED_AFTER && item.asked.is_power_of_two() {
        let fired = io::has_fired(e.fd.load(Relaxed), item.fd);
        item.fired = fired == Some(true);
        item.armed = fired == Some(false) && alone;
    }
    item.fired || (item.armed && alone)
}

/// Whether the socket is in a set for which somebody has waited by a call that is seen.
pub(crate) fn is_waited_for(s: &Socket) -> bool {
    homes::sets_of(s).any(|e| e.waited.load(Relaxed))
}

/// The set is a home of the socket's.
pub(crate) fn is_home(e: &Epoll, s: &Socket) -> bool {
    homes::sets_of(s).any(|home| core::ptr::eq(home, e))
}

/// A thread is asleep in a wait for the set that is seen. (True also where that cannot be told.)
pub(crate) fn is_slept_in(e: &Epoll) -> bool {
    e.inner.try_lock().is_none_or(|inner| inner.sleepers > 0)
}

/// As [`is_slept_in`], of any set that the peer notifies of `s`.
pub(crate) fn is_slept_for(s: &Socket) -> bool {
    homes::sets_of(s).any(is_slept_in)
}

/// A candidate became attached: what the kernel kept for it is kept here from now on.
pub(crate) fn on_attached(s: &'static Socket, fd: c_int) {
    homes::sets_of(s).for_each(|e| take_over(e, s, fd));
}

/// Takes an attached socket's registration over from the kernel.
pub(super) fn take_over(e: &'static Epoll, s: &'static Socket, fd: c_int) {
    let mut inner = e.inner.lock();
    let Some(channel) = s.channel() else { return };
    let Some(index) = homes::item(s, e) else { return };
    let Some(item_fd) = inner.item_of(index, s).filter(|i| !i.attached).map(|i| i.fd) else {
        return;
    };
    let registered = activate(e, &mut inner, channel).and_then(|()| {
        look_whether_fired(e, &mut inner, index)?;
        let r = register_carrier(e.fd.load(Relaxed), item_fd, index);
        if r < 0 { Err(Reason::NoDescriptor) } else { Ok(()) }
    });
    if let Err(why) = registered {
        drop(inner);
        io::need_kernel(fd, why);
        return;
    }
    let limited = Some(inner.limits.join(s.ruled.limit()));
    if let Some(item) = inner.item(index) {
        item.attached = true;
        item.limited = limited;
        item.absent = false;
        item.seen = None;
        item.carrier_news = true;
        item.disabled = item.fired && item.events & ONESHOT != 0;
    }
    inner.fresh = true;
    post(e, s, channel);
    inner.queue(index);
    prod(e, &inner);
}

/// A registration with ONESHOT that was armed when the attach began may have fired meanwhile.
fn look_whether_fired(e: &Epoll, inner: &mut Inner, index: u32) -> Result<(), Reason> {
    let alone = is_left_alone(e, inner);
    if let Some(item) = inner.item(index).filter(|item| item.armed && !item.fired) {
        let fired = io::has_fired(e.fd.load(Relaxed), item.fd).filter(|fired| *fired || alone);
        item.fired = fired.ok_or(Reason::WaitsUnseen)?;
    }
    Ok(())
}

/// The socket is plain now, or a candidate again: the kernel gets back what the application asked
/// for.
pub(crate) fn on_plain(s: &'static Socket) {
    for_each_set_of(s, |e| {
        let mut inner = e.inner.lock();
        let mut from = 0;
        while let Some(index) = its_next(&inner, e, s, from) {
            from = index + 1;
            hand_back(e, &mut inner, index);
        }
        if e.barred.load(Relaxed) {
            retire(e, &mut inner);
            light(e, &mut inner);
        }
    });
}

/// The first item of the socket's in this set, from index `from` on.
fn its_next(inner: &Inner, e: &Epoll, s: &Socket, from: u32) -> Option<u32> {
    if EXTRAS.load(Relaxed) != 0 {
        return inner.next_of(s, from);
    }
    // Only in its homes, under a known index.
    let index = homes::item(s, e).filter(|index| from <= *index)?;
    let its = |item: &Item| core::ptr::eq(item.socket, s) && item.generation == s.generation16();
    inner.items.get(index as usize)?.as_ref().filter(|item| its(item)).map(|_| index)
}

/// A descriptor of the socket is about to be closed; -1: one was, and nobody told us which.
pub(crate) fn forget(s: &'static Socket, g: u16, fd: c_int) {
    if s.generation16() != g {
        return;
    }
    let last = s.names() <= 1;
    for_each_set_of(s, |e| forget_in(e, s, fd, last));
}

/// As [`forget`], in one set. `last`: no other descriptor of it is open anywhere.
fn forget_in(e: &'static Epoll, s: &'static Socket, fd: c_int, last: bool) {
    if e.owner.load(Relaxed) != process::id() {
        return;
    }
    let mut from = 0;
    loop {
        // A signal handler that interrupted a call on this very set leaves the item to the set's
        // next look.
        let Some(mut inner) = e.inner.lock_unless_mine() else { return };
        let Some(i) = its_next(&inner, e, s, from) else { return };
        from = i + 1;
        let Some(item) = inner.item(i) else { return };
        if last && fd >= 0 && s.life.load(Relaxed) != 0 {
            // Its carrier may be kept, and with it what the kernel has.
            if let Some(item) = inner.remove(i) {
                take_from_kernel(e.fd.load(Relaxed), item.fd);
                leave(e, &item);
            }
            continue;
        }
        if last && !item.attached && EXTRAS.load(Acquire) == 0 {
            // Recorded here alone.
            return take_record_out(e, &mut inner, i);
        }
        if last {
            if let Some(item) = inner.remove(i) {
                leave(e, &item);
            }
            let place = e.place.load(Relaxed) as usize;
            if place != 0 && s.channel().is_some_and(|c| c.dead.load(Acquire) != 0) {
                prune(e, &mut inner, place - 1);
            }
            continue;
        }
        if item.fd != fd && (fd >= 0 || names(item.fd, s)) {
            continue;
        }
        if item.nameless {
            lose_name(e, &mut inner, i);
            continue;
        }
        if !item.present {
            take_out(e, e.fd.load(Relaxed), &mut inner, i);
            continue;
        }
        // The kernel goes on reporting a closed descriptor whose file lives on (epoll(7), Q6): let
        // it, as the application put it.
        let mut name = item.fd;
        if fd < 0 && item.attached {
            // Too late to change what the kernel has.
            lose_name(e, &mut inner, i);
            name = inner.item_of(i, s).map_or(-1, |item| item.fd);
        }
        drop(inner);
        let plain = io::to_kernel(s, s.generation16(), name, Reason::DuplicateInEpoll, false);
        let Some(mut inner) = e.inner.lock_unless_mine() else { return };
        let Some(item) = inner.item_of(i, s).filter(|item| !item.nameless) else { continue };
        if item.attached && !plain {
            lose_name(e, &mut inner, i);
        } else if let Some(item) = inner.remove(i) {
            leave(e, &item);
        }
    }
}

/// Whether the table says that `fd` is the socket's.
fn names(fd: c_int, s: &Socket) -> bool {
    fd_table::socket(fd).is_some_and(|(now, g)| core::ptr::eq(now, s) && g == s.generation16())
}

/// The number of a registered, attached socket is closed: the item goes on under another, if this
/// process has one.
fn lose_name(e: &Epoll, inner: &mut Inner, index: u32) {
    let Some(item) = inner.item(index) else { return };
    let (s, old, was_nameless) = (item.socket, item.fd, item.nameless);
    let mut other = -1;
    fd_table::for_each(|fd, _| {
        if other < 0 && fd != old && names(fd, s) {
            other = fd;
        }
    });
    if other < 0 && !was_nameless {
        take_out(e, e.fd.load(Relaxed), inner, index);
    } else if other < 0 {
        if let Some(item) = inner.remove(index) {
            leave(e, &item);
        }
    } else {
        inner.forget_number(old, index);
        if let Some(item) = inner.item(index) {
            item.fd = other;
            item.nameless = true;
        }
        inner.unsettled = true;
    }
}

/// The set is itself polled, or shared with another process: its sockets go back to the kernel, and
/// none comes here again.
#[cold]
pub(crate) fn bar(e: &'static Epoll) {
    let before = e.barred.swap(true, SeqCst);
    if !e.active.load(Acquire) {
        return;
    }
    let mut inner = e.inner.lock();
    // From here on the beacon says that an item is ready, and nothing else.
    inner.calls_until = 0;
    if !before {
        let mut at = 0;
        while let Some(l) = inner.listeners.get(at).map(|here| here.listener) {
            at += 1;
            give_way(&mut inner, || io::waits_elsewhere(l));
        }
        let mut at = 0;
        while let Some(item) = inner.items.get(at) {
            let fd = item.as_ref().filter(|i| i.attached).map(|i| i.fd);
            at += 1;
            if let Some(fd) = fd {
                give_way(&mut inner, || io::need_kernel(fd, Reason::SeveralEpollSets));
            }
        }
        inner.unsettled = true;
        inner.deferred_at = 0;
    }
    inner.drain(e);
    give_deferred(e, &mut inner);
    light(e, &mut inner);
}

/// Others may wait in the set, and ask the kernel alone: what tells of its listeners' parked
/// connections stands there under the application's own data. So a wait can tell of a listener in
/// vain, or twice: nothing more is parked for those that `give_up`.
#[cold]
pub(crate) fn show_listeners(
    e: &'static Epoll,
    give_up: impl Fn(&'static fast_connect::Listener) -> bool,
) {
    if !e.tagged.load(Acquire) || e.owner.load(Relaxed) != process::id() {
        return;
    }
    let set = e.fd.load(Relaxed);
    let mut inner = e.inner.lock();
    e.shown.store(true, Relaxed);
    let mut at = 0;
    while let Some(here) = inner.listeners.get(at) {
        let (l, data) = (here.listener, here.data);
        let events = here.events & GATHERED;
        at += 1;
        let _ = register(set, l.gather(), epoll_event { events, u64: data });
        if give_up(l) {
            give_way(&mut inner, || io::give_up_listener(l));
        }
    }
}

/// The same of those sets that another program may get: at an exec, and at a fork, whose child may
/// become one. (Calls that do not wait for a connection bear a report in vain.)
#[cold]
pub(crate) fn before_exec() {
    if !fast_connect::has_listeners() {
        return;
    }
    fd_table::for_each(|fd, entry| {
        if let Entry::Epoll(e) = entry
            && sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize == 0
        {
            show_listeners(super::at(e), fast_connect::Listener::is_to_be_sure);
        }
    });
}

/// The kernel is to be asked past us what the set has. False: something of the library's has to
/// stay in it.
#[cold]
pub(crate) fn leave_to_kernel(e: &'static Epoll) -> bool {
    show_listeners(e, |_| true);
    bar(e);
    !e.active.load(Acquire)
}

/// Gives those sockets to the kernel that could not go at once. Without the lock meanwhile: it may
/// take a while.
#[cold]
#[inline(never)]
pub(super) fn give_deferred(e: &'static Epoll, inner: &mut Guard<'static, Inner>) {
    let barred = e.barred.load(Relaxed);
    let waits = |item: &Item| {
        item.attached && !item.plain && (barred || item.extra.is_some() || item.nameless)
    };
    let now = sys::now_ns();
    if now < inner.deferred_at {
        return;
    }
    let mut all = true;
    let mut at = 0;
    while let Some(item) = inner.items.get(at) {
        let released = |s: &Socket| {
            let words = s.channel().and_then(|_| s.words());
            words.is_some_and(|(_, rx)| s.published.is_released(rx))
        };
        let ready = item.as_ref().filter(|item| waits(item) && released(item.socket));
        let ready = ready.map(|item| {
            (item.socket, item.generation, item.fd, item.extra.unwrap_or(Reason::SeveralEpollSets))
        });
        at += 1;
        if let Some((s, g, fd, why)) = ready {
            all &= give_way(inner, || io::to_kernel(s, g, fd, why, false));
        }
    }
    inner.deferred_after =
        if all { AGAIN_NS } else { (inner.deferred_after * 2).clamp(AGAIN_NS, AGAIN_MAX_NS) };
    inner.deferred_at = sys::now_ns().saturating_add(inner.deferred_after);
    for i in 0..inner.items.len() as u32 {
        // Given to the kernel by another process, or before it was put in here.
        if inner.item(i).is_some_and(|item| waits(item) && !item.socket.is(State::Attached)) {
            hand_back(e, inner, i);
        }
    }
    inner.unsettled = inner.items.iter().flatten().any(waits);
    if barred {
        retire(e, inner);
    }
}

/// A set that is itself polled has nothing here any more, if that is so: nothing is left but
/// doorbells, which would make it look ready to whoever polls it, until somebody waits for it. (The
/// last of its sockets can go while nobody does: a connection to another host by its path's thread,
/// when the answer has come.)
fn retire(e: &Epoll, inner: &mut Inner) {
    if inner.items.iter().flatten().any(|item| item.attached) {
        return;
    }
    unlight(e, inner);
    let place = e.place.swap(0, AcqRel) as usize;
    if place != 0 {
        wait::leave_set(place - 1, e.fd.load(Relaxed), &inner.channels);
        leave_channels(e, inner);
        wait::give_back(place - 1);
    }
    e.active.store(false, Release);
}

/// Makes a set that is itself polled look ready exactly as long as an item of it may be. (What the
/// kernel keeps speaks for itself.)
#[cold]
#[inline(never)]
pub(super) fn light(e: &Epoll, inner: &mut Inner) {
    if inner.has_ready() || inner.hears_not_all(true) {
        shine(e, inner);
    } else {
        unlight(e, inner);
    }
}

/// Something in the kernel's set is ready, level-triggered: the beacon.
pub(super) fn shine(e: &Epoll, inner: &mut Inner) {
    if inner.lit {
        return;
    }
    if inner.beacon < 0 {
        inner.beacon = numbers::make(|| sys::eventfd(1, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC));
    }
    let mut ev = epoll_event { events: libc::EPOLLIN as u32, u64: tag(DOORBELL) };
    // SAFETY: one valid event.
    inner.lit = inner.beacon >= 0
        && unsafe {
            sys::epoll_ctl(e.fd.load(Relaxed), libc::EPOLL_CTL_ADD, inner.beacon, &mut ev)
        } >= 0;
}

pub(super) fn unlight(e: &Epoll, inner: &mut Inner) {
    if inner.calls_until != 0 {
        let (left, now) = (e.outside.count(), sys::now_ns());
        if left < inner.called {
            inner.called = left;
            inner.calls_until = now.saturating_add(CALL_NS);
        }
        if left > 0 && now < inner.calls_until {
            return;
        }
        inner.calls_until = 0;
        e.outside.forget();
    }
    if core::mem::take(&mut inner.lit) {
        let mut ev = epoll_event { events: 0, u64: 0 };
        // SAFETY: one valid event.
        let _ = unsafe {
            sys::epoll_ctl(e.fd.load(Relaxed), libc::EPOLL_CTL_DEL, inner.beacon, &mut ev)
        };
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]
mod tests;
