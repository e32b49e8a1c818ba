//! An item goes: back into the kernel's set, or out of both.

use super::{CARRIER, EXCLUSIVE, Epoll, Inner, Item, ONESHOT, homes, leave, prod, tag, unpost};
use crate::socket::Socket;
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;
use netacc_ring::sleepers::SETS;

pub(super) fn hand_back(e: &Epoll, inner: &mut Inner, index: u32) {
    if let Some(item) = inner.item(index).filter(|item| item.nameless) {
        item.plain = true;
        inner.queue(index);
        prod(e, inner);
        return;
    }
    let stays = |item: &Item| {
        let fired = item.absent || (item.attached && item.disabled);
        fired || item.socket.may_be_candidate()
    };
    if let Some(item) =
        inner.item(index).filter(|item| item.present && item.extra.is_none() && stays(item))
    {
        // It may come back: recorded for that day, as any candidate's. Or it is armed one day.
        if !item.attached {
            return;
        }
        if item.disabled {
            item.absent = true;
            take_from_kernel(e.fd.load(Relaxed), item.fd);
        } else {
            give_to_kernel(e.fd.load(Relaxed), item);
        }
        item.attached = false;
        item.queued = false;
        let limited = item.limited.take();
        (item.fired, item.asked, item.armed) = (item.disabled, 0, false);
        if let Some(at) = homes::at(item.socket, e) {
            unpost(item.socket, at);
        }
        if let Some(at) = limited {
            inner.limits.leave(at);
        }
        inner.ready.forget(index);
        return;
    }
    let Some(item) = inner.remove(index) else { return };
    if item.attached {
        give_to_kernel(e.fd.load(Relaxed), &item);
    }
    leave(e, &item);
}

/// Registers an item's descriptor in the kernel's set as the application asked for it.
pub(super) fn give_to_kernel(epfd: c_int, item: &Item) {
    let events = if item.disabled { ONESHOT } else { item.events };
    let mut ev = epoll_event { events, u64: item.data };
    let mut ctl = |op| {
        // SAFETY: one valid event.
        let _ = unsafe { sys::epoll_ctl(epfd, op, item.fd, &mut ev) };
    };
    if item.present && events & EXCLUSIVE == 0 {
        ctl(libc::EPOLL_CTL_MOD);
        return;
    }
    ctl(libc::EPOLL_CTL_DEL);
    if item.present {
        // EXCLUSIVE can only be added.
        ctl(libc::EPOLL_CTL_ADD);
    }
}

pub(super) fn take_from_kernel(epfd: c_int, fd: c_int) {
    let mut ev = epoll_event { events: 0, u64: 0 };
    // SAFETY: one valid event.
    let _ = unsafe { sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, &mut ev) };
}

/// Takes an item out of the set and of the kernel's, which `epfd` names; it has a name.
pub(super) fn take_out(e: &Epoll, epfd: c_int, inner: &mut Inner, index: u32) {
    let Some(item) = inner.remove(index) else { return };
    if item.attached {
        let mut ev = epoll_event { events: 0, u64: 0 };
        // SAFETY: one valid event; the descriptor is open.
        let _ = unsafe { sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, item.fd, &mut ev) };
    }
    leave(e, &item);
}

/// The socket leaves the homes that the application has taken it out of.
pub(super) fn evict(s: &'static Socket) {
    for home in homes::sets_of(s) {
        let mut inner = home.inner.lock();
        let Some(index) = homes::item(s, home) else { continue };
        let has_left = |item: &mut Item| !item.present && item.attached && !item.nameless;
        if inner.item_of(index, s).is_some_and(has_left) {
            take_out(home, home.fd.load(Relaxed), &mut inner, index);
        }
    }
}

/// What was recorded for a candidate goes.
pub(super) fn take_record_out(e: &Epoll, inner: &mut Inner, index: u32) {
    let Some(s) = inner.remove_record(index) else {
        if let Some(item) = inner.remove(index) {
            leave(e, &item);
        }
        return;
    };
    homes::at(s, e).into_iter().for_each(|home| homes::give_back(s, home));
    s.registrations.fetch_sub(1, SeqCst);
}

/// Puts the carrier into the kernel's set under a tag, whatever stands there for it.
pub(super) fn register_carrier(epfd: c_int, fd: c_int, index: u32) -> isize {
    register(epfd, fd, epoll_event { events: CARRIER, u64: tag(index) })
}

pub(super) fn register(epfd: c_int, fd: c_int, mut ev: epoll_event) -> isize {
    // SAFETY: one valid event.
    let r = unsafe { sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut ev) };
    if r == -(libc::EEXIST as isize) {
        // SAFETY: as above.
        return unsafe { sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &mut ev) };
    }
    r
}

/// An unconnected socket leaves its sets, which `fd` names it in: with what and under which data it
/// is there. `None`: it stays, as it could not come back as it was.
pub(crate) fn move_out(
    s: &'static Socket,
    fd: c_int,
) -> Option<[Option<(c_int, epoll_event)>; SETS]> {
    let mut all = [None; SETS];
    let mut list = all.iter_mut();
    for e in homes::sets_of(s) {
        let mut inner = e.inner.lock();
        let item = homes::item(s, e).and_then(|i| inner.item_of(i, s));
        let item = item.filter(|i| i.fd == fd && i.events & (ONESHOT | EXCLUSIVE) == 0)?;
        let event = epoll_event { events: item.events, u64: item.data };
        *list.next()? = Some((e.fd.load(Relaxed), event));
    }
    drop(list);
    for e in homes::sets_of(s) {
        let mut inner = e.inner.lock();
        if let Some(i) = homes::item(s, e) {
            take_from_kernel(e.fd.load(Relaxed), fd);
            take_record_out(e, &mut inner, i);
        }
    }
    Some(all)
}
