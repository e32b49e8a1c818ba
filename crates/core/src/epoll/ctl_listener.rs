//! epoll_ctl of a listener that gives out parked connections ([`crate::fast_connect`]).

use super::hand_back::{register, take_from_kernel};
use super::report::gather_index;
use super::set::Listening;
use super::{ET, Epoll, GATHERED, ONESHOT, at, tag};
use crate::fast_connect::{Listener, listener, listener_to_use};
use crate::outcome::{PASS, Ret};
use crate::{fd_table, io, process, signals, sys, user};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;

/// A listener of parked connections, too: what is readable while there are such stands beside it.
#[cold]
#[inline(never)]
pub(super) unsafe fn ctl_listener(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Ret {
    let adds = op == libc::EPOLL_CTL_ADD;
    let used = if adds { listener_to_use } else { listener };
    let Some(l) = used(fd) else { return PASS };
    // SAFETY: the caller's event.
    signals::held(|| unsafe { ctl_both(l, epfd, op, fd, event) })
}

unsafe fn ctl_both(
    l: &'static Listener,
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Ret {
    let mut ev = epoll_event { events: 0, u64: 0 };
    if op != libc::EPOLL_CTL_DEL {
        // SAFETY: the caller's event.
        let Some(theirs) = (unsafe { user::read(event) }) else { return PASS };
        ev = theirs;
    }
    let own = fd_table::epoll(epfd).map(at);
    let own = own.filter(|e| e.owner.load(Relaxed) == process::id());
    // (A child that has the set, too, would hear of what it cannot accept.)
    let is_alone = |e: &&Epoll| e.forks.load(Relaxed) == process::forks();
    let own = own.filter(|e| op != libc::EPOLL_CTL_ADD || is_alone(e));
    // SAFETY: one valid event.
    let r = unsafe { sys::epoll_ctl(epfd, op, fd, &mut ev) };
    if r < 0 {
        return r;
    }
    let told = own.is_some_and(|e| listen_here(e, op, (l, fd), ev));
    if !told || ev.events & ONESHOT != 0 {
        io::give_up_listener(l);
    }
    if op == libc::EPOLL_CTL_DEL {
        l.leaves(epfd);
    } else {
        l.is_in(epfd, ev.events & ET != 0);
    }
    if !told {
        io::waits_elsewhere(l);
    }
    0
}

/// The set tells of what a listener has to give out, or does so no more: it hears of that by what
/// gathers the listener's doorbells, which stands beside it under a tag, or by its own place.
/// False: it cannot.
fn listen_here(e: &Epoll, op: c_int, on: (&'static Listener, c_int), ev: epoll_event) -> bool {
    let (l, fd) = on;
    let set = e.fd.load(Relaxed);
    let mut inner = e.inner.lock();
    inner.listeners.retain(|here| here.fd != fd && here.listener.is(here.fd, here.serial));
    if op == libc::EPOLL_CTL_DEL {
        take_from_kernel(set, l.gather());
        return true;
    }
    if e.shown.load(Relaxed) {
        take_from_kernel(set, l.gather());
        return false;
    }
    let all = inner.items.len();
    let room = (inner.listeners.try_reserve(1), inner.ready.reserve(all + 2));
    if room.0.is_err() || room.1.is_err() || inner.news.reserve(all + 2).is_err() {
        return false;
    }
    e.tagged.store(true, Release);
    // (A set in a set cannot be EXCLUSIVE: all who wait are called, as EPOLLEXCLUSIVE allows.)
    let told = epoll_event { events: ev.events & GATHERED, u64: tag(gather_index(l)) };
    let is_told = register(set, l.gather(), told) >= 0;
    if is_told {
        inner.listeners.push(Listening::new(l, fd, ev));
        // (What was taken before is told of anew.)
        inner.queue_listeners();
    }
    is_told
}
