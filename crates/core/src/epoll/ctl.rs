//! epoll_ctl: a registration is the kernel's (of a candidate, or of what is not connected yet), an
//! item at the socket's home, or an extra item.

use super::ctl_listener::ctl_listener;
use super::hand_back::{evict, hand_back, register, register_carrier, take_out, take_record_out};
use super::handover::{bar, light, may_attach_when_armed, take_over};
use super::ready::may_report;
use super::{
    EXCLUSIVE, EXCLUSIVE_OK, EXTRAS, Epoll, Inner, Item, activate, at, homes, leave, post, prod,
    take_place,
};
use crate::fast_connect;
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::socket::{Named, State};
use crate::{adoption, io, process, signals, stats, sys, user};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use libc::epoll_event;
use netacc_control::stats::{Counter, Reason};

#[inline(always)]
pub(crate) unsafe fn ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Ret {
    let raw = fd_table::raw(fd);
    if raw == 0 {
        return PASS;
    }
    // SAFETY: the caller's event.
    let r = signals::held(|| unsafe { ctl_ours(epfd, op, fd, event, raw) });
    if r == PASS && fast_connect::may_have_listeners() {
        // SAFETY: as above.
        return unsafe { ctl_listener(epfd, op, fd, event) };
    }
    r
}

unsafe fn ctl_ours(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event, raw: u64) -> Ret {
    let mut entry = fd_table::decode(raw);
    if let Entry::Fresh(_) = entry {
        entry = put_before_connected(op, fd);
    }
    let (s, g) = match entry {
        Entry::Socket(s, g) => (s, g),
        Entry::Epoll(inner) => {
            bar(at(inner));
            return PASS;
        }
        Entry::Internal => return -(libc::EBADF as Ret),
        _ => return PASS,
    };
    let (s, g) = adoption::of(s, g, fd);
    let on = Named { s, g, fd };
    // Copied once, first of all, as the kernel does it.
    let mut ev = epoll_event { events: 0, u64: 0 };
    if op != libc::EPOLL_CTL_DEL {
        // SAFETY: the caller's event.
        match unsafe { user::read(event) } {
            Some(theirs) => ev = theirs,
            None => return -(libc::EFAULT as Ret),
        }
    }
    let Some(e) = fd_table::epoll(epfd) else {
        if op == libc::EPOLL_CTL_ADD {
            io::need_kernel(fd, Reason::SeveralEpollSets);
        }
        return PASS;
    };
    let e = at(e);
    if e.owner.load(Relaxed) != process::id() || s.is_inherited() {
        io::need_kernel(fd, Reason::InheritedByFork);
        if e.owner.load(Relaxed) != process::id() || !s.is(State::Attached) {
            return ctl_plain(e, epfd, op, on, ev);
        }
        return ctl_attached(e, epfd, op, on, ev).unwrap_or(PASS);
    }
    loop {
        match s.state.now() {
            State::Unconnected if s.refused.load(Relaxed) != crate::socket::NONE => return PASS,
            State::Candidate | State::Unconnected => {
                if op == libc::EPOLL_CTL_MOD
                    && ev.events & EXCLUSIVE == 0
                    && !s.offered.is_none()
                    && may_attach_when_armed(s, e)
                {
                    io::attach(s, g, fd);
                    if !s.is(State::Candidate) {
                        continue;
                    }
                }
                // Counted before the kernel knows it, so that an attach either sees it or is seen
                // below.
                match ctl_candidate(e, epfd, op, on, ev) {
                    Some(r) => return r,
                    None => continue,
                }
            }
            State::Changing if crate::socket::await_change(s) => {}
            State::Attached => match ctl_attached(e, epfd, op, on, ev) {
                Some(r) => return r,
                None if s.generation16() == g => sys::sched_yield(),
                None => return PASS,
            },
            _ => return ctl_plain(e, epfd, op, on, ev),
        }
    }
}

/// In a set before it is connected: its connection takes the registration over.
#[cold]
#[inline(never)]
fn put_before_connected(op: c_int, fd: c_int) -> Entry {
    fast_connect::give_away(fd);
    if op == libc::EPOLL_CTL_ADD && crate::unconnected::make_unconnected(fd).is_none() {
        fd_table::refuse(fd, Reason::NoMemory);
    }
    fd_table::get(fd)
}

/// The kernel keeps it, but for one that had fired when it went there ([`Item::absent`]).
fn ctl_plain(e: &'static Epoll, epfd: c_int, op: c_int, on: Named, ev: epoll_event) -> Ret {
    let Named { s, fd, .. } = on;
    if !e.connections.load(Relaxed) {
        return PASS;
    }
    let mut inner = e.inner.lock();
    let Some(i) = inner.index_of(fd).filter(|i| inner.item_of(*i, s).is_some()) else {
        return PASS;
    };
    let mine = e.owner.load(Relaxed) == process::id();
    if mine && s.is(State::Plain) && inner.item(i).is_some_and(|item| item.attached) {
        // Who made it plain has not come by here yet.
        hand_back(e, &mut inner, i);
    }
    if !inner.item_of(i, s).is_some_and(|item| item.absent) {
        return PASS;
    }
    let r = ctl_absent(epfd, op, fd, ev);
    if r == 0 {
        take_record_out(e, &mut inner, i);
    }
    r
}

/// What the kernel would answer, if it had the registration. (Another process that shares the set
/// may have armed it.)
fn ctl_absent(epfd: c_int, op: c_int, fd: c_int, mut ev: epoll_event) -> Ret {
    match op {
        libc::EPOLL_CTL_MOD if ev.events & EXCLUSIVE == 0 => register(epfd, fd, ev),
        libc::EPOLL_CTL_ADD => -(libc::EEXIST as Ret),
        libc::EPOLL_CTL_DEL => {
            // SAFETY: one valid event.
            let _ = unsafe { sys::epoll_ctl(epfd, op, fd, &mut ev) };
            0
        }
        _ => -(libc::EINVAL as Ret),
    }
}

/// The kernel keeps it; recorded for the day it is attached. `None`: it is no candidate any more.
fn ctl_candidate(
    e: &'static Epoll,
    epfd: c_int,
    op: c_int,
    on: Named,
    mut ev: epoll_event,
) -> Option<Ret> {
    let Named { s, g, fd } = on;
    let mut inner = e.inner.lock();
    let mut here = inner.index_of(fd).filter(|i| inner.item_of(*i, s).is_some());
    if let Some(i) = here
        && s.may_be_candidate()
        && inner.item(i).is_some_and(|item| item.attached)
    {
        // Who took it back has not come by here yet.
        hand_back(e, &mut inner, i);
        here = inner.index_of(fd).filter(|i| inner.item_of(*i, s).is_some());
    }
    let adds = op == libc::EPOLL_CTL_ADD && here.is_none();
    let mut home = None;
    if adds {
        match homes::take(s, e, ev.events) {
            Ok(taken) => home = Some(taken),
            Err(why) => {
                drop(inner);
                if !s.is(State::Attached) {
                    // What the kernel keeps under several names is not followed.
                    let _ = io::to_kernel(s, g, fd, why, false);
                }
                return None;
            }
        }
        s.registrations.fetch_add(1, SeqCst);
    }
    let not_put = || {
        home.into_iter().for_each(|taken| homes::give_back(s, taken));
        s.registrations.fetch_sub(u32::from(adds), SeqCst);
    };
    if !matches!(s.state.now(), State::Candidate | State::Unconnected) {
        not_put();
        return None;
    }
    let r = if here.and_then(|i| inner.item(i)).is_some_and(|item| item.absent) {
        ctl_absent(epfd, op, fd, ev)
    } else {
        // SAFETY: one valid event.
        unsafe { sys::epoll_ctl(epfd, op, fd, &mut ev) }
    };
    if r == 0 && op != libc::EPOLL_CTL_DEL && e.active.load(Acquire) {
        inner.mark_kernel(e);
    }
    if !adds {
        match (op, here) {
            (libc::EPOLL_CTL_DEL, Some(i)) if r == 0 => {
                // (Some, as Apache, take it out before they read, and then put it in again.)
                if e.waited.load(Relaxed) {
                    io::on_waited_for(s);
                }
                take_record_out(e, &mut inner, i);
            }
            (libc::EPOLL_CTL_MOD, Some(i)) if r == 0 => {
                if let Some(item) = inner.item(i) {
                    (item.events, item.data) = (ev.events, ev.u64);
                    (item.absent, item.fired, item.asked, item.armed) = (false, false, 0, false);
                }
            }
            _ => {}
        }
        return Some(r);
    }
    let item = (r == 0).then(|| put(e, &mut inner, Item::new(on, ev))).flatten();
    let (Some(i), Some(home)) = (item, home) else {
        not_put();
        if r == 0 {
            drop(inner);
            let _ = io::to_kernel(s, g, fd, Reason::NoMemory, false);
        }
        return Some(r);
    };
    homes::move_in(s, home, e, i);
    drop(inner);
    // An attach that did not find it home yet has left it to this thread. (Both sides store, then
    // load, in the one order of all that is SeqCst.)
    loop {
        match s.state.now() {
            State::Changing if crate::socket::await_change(s) => {}
            State::Attached => {
                take_over(e, s, fd);
                return Some(r);
            }
            _ => return Some(r),
        }
    }
}

/// Inserts an item, in the place of what may be left over under its number.
fn put(e: &Epoll, inner: &mut Inner, item: Item) -> Option<u32> {
    if let Some(old) = inner.index_of(item.fd).and_then(|stale| inner.remove(stale)) {
        leave(e, &old);
    }
    e.connections.store(true, Relaxed);
    inner.insert(item)
}

/// epoll_ctl that has seen it attached, and does not know what has come of it since.
#[cfg(test)]
pub(crate) fn ctl_of_attached(epfd: c_int, op: c_int, on: Named, ev: epoll_event) -> Option<Ret> {
    ctl_attached(at(fd_table::epoll(epfd)?), epfd, op, on, ev)
}

/// `None`: it is not attached any more. (Who detaches it hands its items back under the set's lock,
/// behind that.)
#[inline(always)]
fn ctl_attached(
    e: &'static Epoll,
    epfd: c_int,
    op: c_int,
    on: Named,
    ev: epoll_event,
) -> Option<Ret> {
    let Named { s, fd, .. } = on;
    if op != libc::EPOLL_CTL_DEL {
        let asked = ev.events;
        if asked & EXCLUSIVE != 0 && (op == libc::EPOLL_CTL_MOD || asked & !EXCLUSIVE_OK != 0) {
            return Some(-(libc::EINVAL as Ret));
        }
    }
    let mut inner = e.inner.lock();
    if !s.is(State::Attached) {
        return None;
    }
    let mut index = inner.index_of(fd).filter(|i| inner.item_of(*i, s).is_some());
    if let (libc::EPOLL_CTL_ADD, Some(i)) = (op, index)
        && inner
            .item(i)
            .is_some_and(|item| !item.present && (item.events | ev.events) & EXCLUSIVE != 0)
    {
        // Not as it was: whether it is exclusive has to be known where it comes into other sets.
        take_out(e, epfd, &mut inner, i);
        index = None;
    }
    let r = match (op, index) {
        (libc::EPOLL_CTL_ADD, None) => {
            drop(inner);
            let r = add(e, epfd, on, ev)?;
            inner = e.inner.lock();
            r
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(i)) => {
            let Some(item) = inner.item(i) else {
                return Some(-(libc::ENOENT as Ret));
            };
            if item.present == (op == libc::EPOLL_CTL_ADD) {
                return Some(-(if item.present { libc::EEXIST } else { libc::ENOENT } as Ret));
            }
            if op == libc::EPOLL_CTL_MOD && item.events & EXCLUSIVE != 0 {
                return Some(-(libc::EINVAL as Ret));
            }
            (item.events, item.data, item.present, item.disabled, item.seen) =
                (ev.events, ev.u64, true, false, None);
            // (What came before it is in front of it.)
            if may_report(item, false) {
                inner.drain(e);
                inner.queue(i);
            }
            stats::count(Counter::EpollCtlSaved);
            prod(e, &inner);
            0
        }
        (libc::EPOLL_CTL_DEL, Some(i)) => {
            let Some(item) = inner.item(i).filter(|item| item.present) else {
                return Some(-(libc::ENOENT as Ret));
            };
            // (Nobody tells a set of what only others of the socket's are to report.)
            if item.extra.is_some() || s.registrations.load(SeqCst) > 1 {
                take_out(e, epfd, &mut inner, i);
            } else {
                item.present = false;
                stats::count(Counter::EpollCtlSaved);
            }
            0
        }
        // The kernel may have an inherited one.
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) if s.is_inherited() => PASS,
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => -(libc::ENOENT as Ret),
        _ => -(libc::EINVAL as Ret),
    };
    if e.barred.load(Relaxed) {
        light(e, &mut inner);
    }
    Some(r)
}

/// Puts an attached socket into the set: as a home of it, if there is one left; otherwise it goes
/// to the kernel, and only if it cannot go at once becomes an extra item. `None`: it is not
/// attached any more.
fn add(e: &'static Epoll, epfd: c_int, on: Named, ev: epoll_event) -> Option<Ret> {
    let Named { s, g, fd } = on;
    let counts = !s.is_inherited();
    let mut extra = (!counts).then_some(Reason::InheritedByFork);
    loop {
        // Counted before others are looked at: a set that the application takes it out of from here
        // on does not keep it.
        if counts && s.registrations.fetch_add(1, SeqCst) > 0 {
            evict(s);
        }
        let mut inner = e.inner.lock();
        let mut home = None;
        let uncount = |home: Option<usize>| {
            home.into_iter().for_each(|taken| homes::give_back(s, taken));
            s.registrations.fetch_sub(u32::from(counts), SeqCst)
        };
        if s.generation16() != g || !s.is(State::Attached) {
            uncount(home);
            return None;
        }
        if extra.is_none() {
            let why = match homes::take(s, e, ev.events) {
                Ok(taken) => {
                    home = Some(taken);
                    let Some(channel) = s.channel() else {
                        // It is being detached at this moment.
                        uncount(home);
                        return None;
                    };
                    activate(e, &mut inner, channel).err()
                }
                Err(why) => Some(why),
            };
            if let Some(why) = why {
                uncount(home);
                drop(inner);
                if io::to_kernel(s, g, fd, why, false) {
                    return None;
                }
                extra = Some(why);
                continue;
            }
        }
        let mut item = Item::new(on, ev);
        (item.attached, item.extra) = (true, extra);
        // (Of a carrier that was kept the kernel has nothing new to say, or says it by its set.)
        item.carrier_news = s.life.load(Relaxed) <= 1;
        let Some(i) = put(e, &mut inner, item) else {
            uncount(home);
            drop(inner);
            let is_gone = io::to_kernel(s, g, fd, Reason::NoMemory, false);
            return (!is_gone).then_some(-(libc::ENOMEM as Ret));
        };
        if extra.is_some() {
            inner.extras.push(i);
            inner.unsettled = true;
            EXTRAS.fetch_add(1, AcqRel);
            let _ = take_place(e, &mut inner);
        }
        let r = register_carrier(epfd, fd, i);
        if r < 0 {
            inner.remove(i);
            uncount(home);
            return Some(r);
        }
        if let Some(home) = home {
            homes::move_in(s, home, e, i);
            fence(SeqCst);
            if let Some(channel) = s.channel() {
                post(e, s, channel);
            }
        }
        if counts && !s.is(State::Attached) {
            // Who detached it came before the item was here, or waits for the set's lock.
            hand_back(e, &mut inner, i);
            return Some(0);
        }
        inner.fresh = true;
        if inner.item(i).is_some_and(|item| may_report(item, true)) {
            inner.drain(e);
            inner.queue(i);
        }
        prod(e, &inner);
        return Some(0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests;
