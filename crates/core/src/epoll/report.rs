//! What a wait reports: the ready queue and the kernel's set, in the order in which it came.

use super::edge::evaluate_edge;
use super::hand_back::hand_back;
use super::ready::evaluate;
use super::set::Listening;
use super::{
    DOORBELL, ENDS, ET, Epoll, GATHER, IN, Inner, Item, KERNEL, LISTENERS, ONESHOT, OUT, TURNS,
    come_in, untag,
};
use crate::fast_connect::Listener;
use crate::lock::Guard;
use crate::outcome::{Mask, Ret};
use crate::socket::State;
use crate::{engines, io, sleep, stats, sys, user};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;
use netacc_control::stats::Counter;

/// The application's event buffer.
pub(super) struct Out {
    pub(super) events: *mut epoll_event,
    pub(super) max: usize,
    pub(super) n: usize,
    /// An event could not be written.
    pub(super) bad: bool,
}

impl Out {
    /// False: the buffer is bad; the event is still the caller's.
    #[inline(always)]
    pub(super) fn push(&mut self, events: u32, data: u64) -> bool {
        if self.n < self.max {
            let at = self.events.wrapping_add(self.n);
            // SAFETY: below `max`, the length that the application gave.
            if !unsafe { user::write_both(&raw mut (*at).events, events, &raw mut (*at).u64, data) }
            {
                self.bad = true;
                self.max = self.n;
                return false;
            }
            self.n += 1;
        }
        true
    }

    /// Calls `f` with room for `n` more events, if there is so much.
    pub(super) fn within(&mut self, n: usize, f: impl FnOnce(&mut Self)) {
        let max = self.max;
        self.max = max.min(self.n + n);
        f(self);
        if !self.bad {
            self.max = max;
        }
    }

    /// There is something to return.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.n > 0 || self.bad
    }

    pub(super) fn result(&self) -> Ret {
        if self.n == 0 && self.bad { -(libc::EFAULT as Ret) } else { self.n as Ret }
    }

    /// How many of the next `room` events can be written: what the kernel has given us it does not
    /// take back.
    pub(super) fn writable(&self, room: usize) -> usize {
        let at = self.events.wrapping_add(self.n).cast::<u8>();
        // SAFETY: bytes of the application's buffer, which is ours to write during the call.
        let holds = |n: usize| unsafe { user::is_writable(at, n * size_of::<epoll_event>()) };
        match room {
            0 => 0,
            _ if holds(room) => room,
            _ => usize::from(holds(1)),
        }
    }
}

/// What becomes of [`KERNEL`] in the ready queue.
#[derive(Clone, Copy)]
pub(super) enum Kernel {
    /// It is looked at, unless this wait has done so and has something to report: it would tell the
    /// same again.
    Look(c_int),
    /// It has just been looked at.
    Looked,
    /// It must not be looked at now: what is behind stays.
    Wait,
    /// What it has is at hand, and is told first: what is behind stays.
    Heard,
}

/// Reports what is ready, each queued item at most once.
#[inline(always)]
pub(super) fn collect(inner: &mut Inner, e: &'static Epoll, kernel: Kernel, out: &mut Out) {
    if inner.ready.len() > 0 {
        collect_some(inner, e, kernel, out);
    }
}

#[inline(never)]
fn collect_some(inner: &mut Inner, e: &'static Epoll, kernel: Kernel, out: &mut Out) {
    collect_here(inner, e, kernel, out);
}

/// As [`collect`], where each instruction counts.
#[inline(always)]
pub(super) fn collect_here(
    inner: &mut Inner,
    e: &'static Epoll,
    mut kernel: Kernel,
    out: &mut Out,
) {
    let mut left = inner.ready.len();
    while left > 0 && out.n < out.max {
        left -= 1;
        let Some(index) = inner.ready.pop_front() else { return };
        if index == KERNEL {
            match kernel {
                Kernel::Heard => {
                    inner.ready.push_front(KERNEL);
                    return;
                }
                _ if inner.sent_by_kernel <= inner.looked_at => inner.kernel_queued = false,
                Kernel::Look(epfd) if inner.looked_in != inner.wait || !out.is_done() => {
                    look_first(inner, e, epfd, out);
                    kernel = Kernel::Looked;
                    left = inner.ready.len();
                }
                Kernel::Looked => inner.kernel_queued = false,
                Kernel::Look(_) => return go_behind_mark(inner, e, out),
                Kernel::Wait => {
                    inner.ready.push_front(KERNEL);
                    return;
                }
            }
        } else if !report(inner, e, index, out) {
            return;
        }
    }
}

/// Where the kernel has more than this wait had room for when it looked there: that comes with the
/// next look, and does not keep the rest of the buffer empty. What it has got since then is older
/// than what is behind its mark, and goes first. (The mark is taken out.)
#[cold]
#[inline(never)]
fn go_behind_mark(inner: &mut Inner, e: &'static Epoll, out: &mut Out) {
    if inner.backlog {
        collect(inner, e, Kernel::Wait, out);
    }
    inner.ready.push_front(KERNEL);
}

/// Reports the listeners that have something to give out which the kernel does not know of. False:
/// there is no room.
#[cold]
#[inline(never)]
fn report_listeners(inner: &mut Inner, out: &mut Out) -> bool {
    let (wait, mut again, mut full) = (inner.wait, false, false);
    inner.listeners_queued = false;
    for here in &mut inner.listeners {
        match report_listener(here, wait, false, out) {
            Told::Nothing => {}
            Told::Now => again |= !here.by_edge(),
            Told::Before => again = true,
            Told::NoRoom => full = true,
        }
    }
    if full {
        inner.listeners_queued = inner.ready.push_front(LISTENERS);
    } else if again {
        inner.queue_listeners();
    }
    !full
}

/// What a wait says of a listener for the sake of what it gives out besides the kernel's.
enum Told {
    Nothing,
    Now,
    /// This wait has reported it: it does so once, however many accepts may follow.
    Before,
    NoRoom,
}

/// Reports a listener, if it has something to give out. `rung`: what gathers its doorbells says so,
/// which by itself means nothing: a new doorbell rings once, and so does one for what has been
/// given out meanwhile. Who accepts behind a vain report would sleep.
fn report_listener(here: &mut Listening, wait: u64, rung: bool, out: &mut Out) -> Told {
    if here.events & IN == 0 || !here.listener.is(here.fd, here.serial) {
        return Told::Nothing;
    }
    let taken = here.listener.has_to_give(rung, io::is_taken);
    let Some(taken) = taken.filter(|taken| !here.by_edge() || *taken != here.seen) else {
        return Told::Nothing;
    };
    if here.reported_in == wait || here.by_kernel_in == wait {
        return Told::Before;
    }
    if out.n == out.max || !out.push(here.events & IN, here.data) {
        return Told::NoRoom;
    }
    (here.reported_in, here.told, here.seen) = (wait, here.events & IN, taken);
    Told::Now
}

/// What stands in a tag for the doorbells of a listener.
pub(super) fn gather_index(l: &Listener) -> u32 {
    GATHER + l.index() as u32
}

/// Whether that index of a tag does.
#[inline]
pub(super) fn is_gather(index: u32) -> bool {
    (GATHER..DOORBELL).contains(&index)
}

/// The doorbells of a listener were signalled, which `index` of a tag says: it is reported, where
/// that is not in vain. (One event of the kernel's needs one place.)
#[cold]
#[inline(never)]
pub(super) fn hear_listener(inner: &mut Inner, index: u32, out: &mut Out) {
    let wait = inner.wait;
    let is_its = |here: &&mut Listening| gather_index(here.listener) == index;
    for here in inner.listeners.iter_mut().filter(is_its) {
        // (An edge is heard once: what it was for is told by a later wait.)
        if let Told::Before | Told::NoRoom = report_listener(here, wait, true, out) {
            inner.listeners_queued = inner.listeners_queued || inner.ready.push_back(LISTENERS);
        }
    }
}

/// As [`hear_listener`], in a forked child: what it has of the listener is its parent's, as is what
/// it hears of it, and its accept does not wait.
#[cold]
pub(super) fn pass_on_parents(inner: &mut Inner, index: u32, out: &mut Out) {
    let is_its = |here: &&Listening| gather_index(here.listener) == index;
    for here in inner.listeners.iter().filter(is_its) {
        let _ = out.push(here.events & IN, here.data);
    }
}

/// An event of the application's own, from the kernel, goes out. (It may be of a listener that this
/// wait has reported, or is about to.)
#[inline]
pub(super) fn pass(inner: &mut Inner, ev: &epoll_event, out: &mut Out) {
    if inner.listeners.is_empty() || !is_told(inner, ev) {
        let _ = out.push(ev.events, ev.u64);
    }
}

/// Whether this wait has said all that this event does of a listener. (Events that are alike are
/// one to who waits.)
#[cold]
#[inline(never)]
fn is_told(inner: &mut Inner, ev: &epoll_event) -> bool {
    let (wait, events, data) = (inner.wait, ev.events, ev.u64);
    let its = |here: &&mut Listening| here.data == data && events & here.events & IN != 0;
    let mut told = false;
    for here in inner.listeners.iter_mut().filter(its) {
        told |= here.reported_in == wait && events & !here.told == 0;
        here.by_kernel_in = wait;
    }
    told
}

/// What the kernel has was sent before what is ready behind this.
#[cold]
#[inline(never)]
fn look_first(inner: &mut Inner, e: &'static Epoll, epfd: c_int, out: &mut Out) {
    inner.kernel_queued = false;
    let mut local = Local::<32>::new();
    let room = out.max - out.n;
    let room = out.writable(room.min(local.room()));
    if let Some(events) = ask(inner, e, &mut local, epfd, room) {
        sort(inner, e, events, false, out);
    }
}

/// Reports an item that was taken out of the ready queue, and puts it there again if it has to
/// stay. False: there is no room.
#[inline]
fn report(inner: &mut Inner, e: &'static Epoll, index: u32, out: &mut Out) -> bool {
    let (wait, looks) = (inner.wait, inner.looks);
    let Some(item) = inner.item(index) else {
        return index != LISTENERS || report_listeners(inner, out);
    };
    if item.reported_in == wait {
        item.queued = true;
        inner.ready.push_back(index);
        return true;
    }
    item.queued = false;
    if !item.present || item.disabled {
        return true;
    }
    if item.socket.generation16() != item.generation {
        // Closed where the set could not be told.
        inner.remove(index);
        return true;
    }
    if !item.plain && !item.socket.is(State::Attached) {
        // Made plain by another process that shares it.
        hand_back(e, inner, index);
        return true;
    }
    let now = if item.events & ET == 0 { evaluate(item) } else { evaluate_edge(item) };
    if now == 0 {
        return true;
    }
    if out.n == out.max || !out.push(now, item.data) {
        (item.queued, item.seen) = (true, None);
        inner.ready.push_front(index);
        return false;
    }
    (item.reported_in, item.reported_behind) = (wait, looks);
    if item.events & ONESHOT != 0 {
        item.disabled = true;
    } else if item.events & ET == 0 {
        item.queued = true;
        inner.ready.push_back(index);
    }
    true
}

/// How many of the kernel's events need a place in the application's buffer: not doorbells, nor
/// what is no news to its item.
pub(super) fn reportable(events: &[epoll_event]) -> usize {
    let is_ours =
        |ev: &&epoll_event| untag(ev.u64).is_some_and(|i| i == DOORBELL || ev.events == 0);
    events.len() - events.iter().filter(is_ours).count()
}

/// Takes events of the kernel's, in their order: the application's own go out, ours stand for an
/// item. There is room for all of them, and all of `out` can be written. `slept`: it was waited for
/// them.
pub(super) fn sort(
    inner: &mut Inner,
    e: &'static Epoll,
    events: &[epoll_event],
    slept: bool,
    out: &mut Out,
) {
    for (i, ev) in events.iter().enumerate() {
        let Some(index) = untag(ev.u64) else {
            pass(inner, ev, out);
            continue;
        };
        if is_gather(index) {
            hear_listener(inner, index, out);
        } else if index == DOORBELL {
            stats::count(Counter::Wakeups);
            engines::hear_failure(ev.events);
            inner.woken |= !slept;
            come_in(e, inner);
            if slept && events.len() > 1 {
                // It was signalled before the kernel had what comes behind it, and after it had
                // what comes before. With nothing before it, it may have been signalled for news
                // that was found without it, and again since: what a mark stands for is behind it.
                inner.drain(e);
                let follows = reportable(events.get(..i).unwrap_or(&[])) > 0;
                if follows && inner.ready.front() == Some(KERNEL) {
                    inner.ready.pop_front();
                    inner.kernel_queued = false;
                }
                let others = (out.max - out.n)
                    .saturating_sub(reportable(events.get(i + 1..).unwrap_or(&[])));
                out.within(others, |out| collect(inner, e, Kernel::Wait, out));
            }
        } else if ev.events != 0 && inner.take(index) {
            let _ = report(inner, e, index, out);
        }
    }
}

/// What of an event with an end is the connection's.
#[cold]
fn of_carrier(item: &Item, bits: u32) -> u32 {
    let Some(channel) = item.socket.channel() else { return bits };
    let slot = item.socket.slot.load(Relaxed) as usize;
    let said = channel.far.of_carrier(slot, item.fd, bits as u16 as i16);
    bits & !0xffff | u32::from(said as u16)
}

/// Whether an event of the kernel's for an item is a reason to look at it.
pub(super) fn is_news(inner: &mut Inner, index: u32, bits: u32) -> bool {
    let Some(item) = inner.item(index) else { return false };
    let bits = if bits & ENDS == 0 { bits } else { of_carrier(item, bits) };
    let end = bits & ENDS;
    let known = end & !item.ended == 0;
    item.ended |= end;
    let data = bits & (libc::EPOLLIN | libc::EPOLLPRI) as u32 != 0;
    let room = bits & libc::EPOLLOUT as u32 != 0 && item.events & OUT != 0;
    let fast = item.socket.channel().is_some() && item.socket.published.sends_fast();
    // Room on a carrier that carries nothing is no news, nor is an end that was reported before.
    if (end != 0 && known && item.events & ET != 0) || (!data && end == 0 && (!room || fast)) {
        return false;
    }
    item.carrier_news = true;
    true
}

/// A buffer for events of the kernel's, which nobody clears before.
pub(super) struct Local<const N: usize>([MaybeUninit<epoll_event>; N]);

impl<const N: usize> Local<N> {
    #[inline]
    pub(super) fn new() -> Self {
        Local([const { MaybeUninit::uninit() }; N])
    }

    pub(super) fn room(&self) -> usize {
        N
    }

    /// Asks the kernel for up to `room` events. The mask is the caller's.
    pub(super) fn fill(&mut self, epfd: c_int, room: usize, timeout_ns: i64, mask: Mask) -> Ret {
        // SAFETY: a buffer of that many events; the mask is null or the application's.
        unsafe {
            sleep::epoll_wait(
                epfd,
                self.0.as_mut_ptr().cast(),
                room.min(N) as c_int,
                timeout_ns,
                mask,
            )
        }
    }

    /// Takes over what the kernel has put into the application's buffer. False: there is no room
    /// for so many, or they cannot be read.
    ///
    /// # Safety
    /// `n` events.
    pub(super) unsafe fn copy(&mut self, events: *const epoll_event, n: usize) -> bool {
        if n > N {
            return false;
        }
        self.0.iter_mut().take(n).enumerate().all(|(i, place)| {
            // SAFETY: below `n`.
            let event = unsafe { user::read(events.wrapping_add(i)) };
            event.is_some_and(|event| {
                place.write(event);
                true
            })
        })
    }

    /// What came, by the result of [`Self::fill`]. The items know from here on what their carriers
    /// have said, before the first of them is reported: an edge has one report, which says all.
    /// What is no news to its item is left with no event.
    #[cold]
    #[inline(never)]
    pub(super) fn filled(&mut self, inner: &mut Inner, r: Ret) -> &[epoll_event] {
        let n = (r.max(0) as usize).min(N);
        // SAFETY: so many were written, and any bytes are an event.
        let events: &mut [epoll_event] =
            unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), n) };
        for ev in events.iter_mut() {
            if untag(ev.u64)
                .is_some_and(|index| index < GATHER && !is_news(inner, index, ev.events))
            {
                ev.events = 0;
            }
        }
        events
    }
}

/// Lets others have the set while `f` runs, in a call that has reported nothing: what they report
/// meanwhile is no report of its own.
pub(super) fn give_way<R>(inner: &mut Guard<'static, Inner>, f: impl FnOnce() -> R) -> R {
    inner.away += 1;
    let r = inner.unlocked(f);
    inner.away = inner.away.saturating_sub(1);
    inner.wait = inner.wait.wrapping_add(TURNS);
    r
}

/// Reports, of what the rings have, what was sent before the kernel had what is at hand now: up to
/// the first mark. (A doorbell that says so may be late: who has to ring it can lose the CPU.)
pub(super) fn collect_older(inner: &mut Inner, e: &'static Epoll, room: usize, out: &mut Out) {
    inner.drain(e);
    out.within(room, |out| collect(inner, e, Kernel::Heard, out));
}

/// Looks at the kernel's set without waiting, and reports what it has behind what is ready. False:
/// there is no room for what it may have.
pub(super) fn visit(
    inner: &mut Inner,
    e: &'static Epoll,
    epfd: c_int,
    out: &mut Out,
    room: usize,
) -> bool {
    let mut local = Local::<32>::new();
    let room = out.writable(room.min(local.room()));
    let Some(events) = ask(inner, e, &mut local, epfd, room) else { return false };
    if !events.is_empty() {
        out.within(room, |out| {
            let others = room - reportable(events);
            collect_older(inner, e, others, out);
            sort(inner, e, events, false, out);
        });
    }
    collect_here(inner, e, Kernel::Look(epfd), out);
    true
}

/// What the kernel's set has at this moment, up to `room` events, as many as `local` has places.
/// `None`: there is no room.
pub(super) fn ask<'a, const N: usize>(
    inner: &mut Inner,
    e: &Epoll,
    local: &'a mut Local<N>,
    epfd: c_int,
    room: usize,
) -> Option<&'a [epoll_event]> {
    if room == 0 {
        return None;
    }
    stats::count(Counter::KernelEpollVisits);
    let began = sys::ticks();
    let r = local.fill(epfd, room, 0, core::ptr::null());
    inner.looked(e, began, r == room as isize);
    Some(if r > 0 { local.filled(inner, r) } else { &[] })
}

impl Inner {
    /// The kernel's set was looked at. `backlog`: it had as much as there was room for.
    pub(super) fn looked(&mut self, e: &Epoll, began: u64, backlog: bool) {
        if let Some(place) = (e.place.load(Relaxed) as usize).checked_sub(1).filter(|_| !backlog) {
            self.looked_at = began;
            for c in &self.channels {
                c.my_place(place).set_looked(began);
            }
        }
        self.backlog = backlog;
        self.fresh = false;
        self.looks = self.looks.wrapping_add(1);
        self.looked_in = self.wait;
    }

    /// Takes an item out of the ready queue, or as if it had been in it. False: it was reported
    /// since the last look at the kernel's set, it need not be, or it is far from the queue's
    /// front.
    pub(super) fn take(&mut self, index: u32) -> bool {
        // A queue can be long, and this is asked for each event.
        const FRONT: usize = 32;
        let (wait, looks) = (self.wait, self.looks);
        let Some(item) = self.item(index) else { return false };
        if (item.reported_in, item.reported_behind) == (wait, looks) {
            return false;
        }
        if !item.queued {
            return item.may_queue();
        }
        let Some(at) = self.ready.iter().take(FRONT).position(|i| i == index) else {
            return false;
        };
        self.ready.remove(at).is_some()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::epoll::{Counted, at, tag};
    use crate::path::tests::{A, C, close_both, promoted_within_the_host};
    use crate::{api, channel, fd_table, numbers};
    use alloc::vec::Vec;

    /// A set that has this connection, edge-triggered, as number 7.
    fn set_of(fd: c_int) -> (c_int, &'static Epoll) {
        let epfd = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
        api::on_epoll_create(epfd);
        let mut event = epoll_event { events: libc::EPOLLIN as u32 | ET, u64: 7 };
        // SAFETY: a live event.
        let r = unsafe { api::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &mut event) };
        assert_eq!(r, 0);
        (epfd, at(fd_table::epoll(epfd).unwrap()))
    }

    /// What a wait that does not wait reports.
    fn look(epfd: c_int) -> Ret {
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: room for four events; no mask.
        unsafe {
            api::epoll_wait(
                epfd,
                events.as_mut_ptr(),
                4,
                0,
                core::ptr::null(),
                &mut Counted::default(),
            )
        }
    }

    /// Whoever sleeps in a set, or polls for it, has to report what comes behind something that
    /// another thread's wait has reported meanwhile.
    #[test]
    fn what_others_report_while_a_wait_is_away_is_no_report_of_its_own() {
        let mut ends = promoted_within_the_host();
        let (epfd, e) = set_of(ends[A].fd);
        assert_eq!(look(epfd), 0);
        let mut inner = e.inner.lock();
        give_way(&mut inner, || {
            ends[C].send(C, 1);
            assert_eq!(look(epfd), 1);
            ends[A].receive_all(A, 1);
            ends[C].send(C, 1);
        });
        inner.drain(e);
        let mut events = [epoll_event { events: 0, u64: 0 }; 4];
        let mut out = Out { events: events.as_mut_ptr(), max: 4, n: 0, bad: false };
        collect(&mut inner, e, Kernel::Look(epfd), &mut out);
        drop(inner);
        assert_eq!(out.n, 1);
        ends[A].receive_all(A, 1);
        assert_eq!(api::close(epfd), 0);
        close_both(ends);
    }

    /// A doorbell that was signalled when nobody heard it stands where it was then, also when it is
    /// signalled again: before what the kernel has got since, which was sent before the ring's
    /// news.
    #[test]
    fn a_doorbell_that_comes_first_is_not_before_what_the_mark_stands_for() {
        let mut ends = promoted_within_the_host();
        let (epfd, e) = set_of(ends[A].fd);
        let mut order = |kernels: &[u64]| {
            assert_eq!(look(epfd), 0);
            channel::sent_by_kernel();
            ends[C].send(C, 1);
            let of = |data: &u64| epoll_event { events: libc::EPOLLIN as u32, u64: *data };
            let list: Vec<_> = kernels.iter().map(of).collect();
            let mut events = [epoll_event { events: 0, u64: 0 }; 4];
            let mut out = Out { events: events.as_mut_ptr(), max: 4, n: 0, bad: false };
            sort(&mut e.inner.lock(), e, &list, true, &mut out);
            let told = out.n;
            ends[A].receive_all(A, 1);
            events.iter().take(told).map(|event| event.u64).collect::<Vec<_>>()
        };
        assert_eq!(order(&[8, tag(DOORBELL), 9]), [8, 7, 9]);
        assert_eq!(order(&[tag(DOORBELL), 9]), [9]);
        assert_eq!(api::close(epfd), 0);
        close_both(ends);
    }
}
