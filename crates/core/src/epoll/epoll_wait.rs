//! epoll_wait: the ready queue, the kernel's set, polling and sleep.

use super::handover::{give_to_kernel, hand_back, light, settle, unlight};
use super::ready::evaluate;
use super::{
    Counted, DOORBELL, ENDS, ET, EXTRAS, Epoll, Inner, KERNEL, KERNEL_VISIT_TICKS, LOOK_NS,
    ONESHOT, OUT, TURNS, VISITS, at, come_in, prod, prune_if_due, untag,
};
use crate::channel::Peers;
use crate::fd_table::{self, Entry};
use crate::lock::Guard;
use crate::outcome::{Mask, PASS, Ret};
use crate::socket::{State, flag};
use crate::{io, process, queues, signals, sleep, stats, sys, user, wait};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use libc::epoll_event;
use netacc_control::stats::{Counter, Reason};

#[inline]
pub(crate) unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: i64,
    mask: Mask,
    counted: &mut Counted,
) -> Ret {
    let Entry::Epoll(e) = fd_table::get(epfd) else { return PASS };
    let e = at(e);
    if e.owner.load(Relaxed) != process::id() {
        signals::held(|| inherited(e));
        return PASS;
    }
    if !e.active.load(Acquire) {
        if !e.waited.load(Relaxed) {
            e.waited.store(true, Relaxed);
        }
        let (inside, active) = Counted::enter(e);
        // Either this sees that the set is active now, or `take_place` sees the thread.
        if !active {
            *counted = inside;
            return PASS;
        }
    }
    if max <= 0 || max as usize > isize::MAX as usize / size_of::<epoll_event>() {
        return -(libc::EINVAL as Ret);
    }
    let end = (events as usize).wrapping_add(max as usize * size_of::<epoll_event>());
    if ((events as usize | end) as isize) < 0 || !(mask.is_null() || user::is_mask(mask)) {
        return -(libc::EFAULT as Ret);
    }
    let section = signals::enter();
    // SAFETY: the caller's buffer of `max` events.
    let r = unsafe {
        look(e, epfd, Out { events, max: max as usize, n: 0, bad: false }, timeout_ns, mask)
    };
    if e.barred.load(Relaxed) {
        light(e, &mut e.inner.lock());
    }
    let _ = signals::leave(section);
    if r == PASS && !go_outside(e, counted) {
        // SAFETY: as it came.
        return unsafe { wait(epfd, events, max, timeout_ns, mask, counted) };
    }
    r
}

/// The set has no place: the thread waits in the kernel. False: the set has got one since that
/// look, and whoever gave it one may not have seen the thread there.
#[cold]
fn go_outside(e: &'static Epoll, counted: &mut Counted) -> bool {
    let (inside, active) = Counted::enter(e);
    let outside = !active || e.place.load(Relaxed) == 0;
    if outside {
        *counted = inside;
    }
    outside
}

#[inline]
unsafe fn look(e: &'static Epoll, epfd: c_int, mut out: Out, timeout_ns: i64, mask: Mask) -> Ret {
    let mut inner = e.inner.lock();
    inner.wait = inner.wait.wrapping_add(1);
    prune_if_due(e, &mut inner);
    if inner.unsettled {
        settle(e, &mut inner);
    }
    let now = sys::ticks();
    inner.drain(e);
    // A buffer that is always full of sockets must not keep the kernel's descriptors out either;
    // nor they the sockets, where it has one place.
    let full = out.max <= inner.ready.len();
    let overdue = inner.backlog
        || inner.wait.is_multiple_of(TURNS)
        || now.wrapping_sub(inner.last_visit) > KERNEL_VISIT_TICKS;
    let due = overdue || inner.fresh || (full && inner.wait.is_multiple_of(8));
    let turn = due && (full || inner.fresh) && (out.max > 1 || inner.wait.is_multiple_of(2));
    let due_to_kernel = inner.sent_by_kernel > inner.looked_at;
    if turn && !(due_to_kernel && inner.ready.front() == Some(KERNEL)) {
        // The buffer cannot hold all, or the kernel may tell what an item already knows: there is
        // room for both.
        inner.last_visit = now;
        let room = (out.max / 2).max(1);
        visit(&mut inner, e, epfd, &mut out, room);
    }
    collect(&mut inner, e, Kernel::Look(epfd), &mut out);
    if !out.is_done() {
        // SAFETY: `out` is the caller's buffer.
        return unsafe { wait_slow(e, inner, epfd, out, timeout_ns, mask) };
    }
    let room = out.max - out.n;
    if due && room > 0 && inner.looked_in != inner.wait {
        inner.last_visit = now;
        visit(&mut inner, e, epfd, &mut out, room);
    }
    if inner.sleepers > 0 {
        pass_on(e, &mut inner);
    }
    out.result()
}

/// Threads that sleep are for what this call leaves in the queue, and for what it has not even
/// seen: it may have taken the event of the doorbell that was to wake them.
#[cold]
fn pass_on(e: &Epoll, inner: &mut Inner) {
    if core::mem::take(&mut inner.woken) | inner.has_ready() {
        prod(e, inner);
    }
}

/// The application's event buffer.
struct Out {
    events: *mut epoll_event,
    max: usize,
    n: usize,
    /// An event could not be written.
    bad: bool,
}

impl Out {
    /// False: the buffer is bad; the event is still the caller's.
    #[inline(always)]
    fn push(&mut self, events: u32, data: u64) -> bool {
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
    fn within(&mut self, n: usize, f: impl FnOnce(&mut Self)) {
        let max = self.max;
        self.max = max.min(self.n + n);
        f(self);
        if !self.bad {
            self.max = max;
        }
    }

    /// There is something to return.
    #[inline]
    fn is_done(&self) -> bool {
        self.n > 0 || self.bad
    }

    fn result(&self) -> Ret {
        if self.n == 0 && self.bad { -(libc::EFAULT as Ret) } else { self.n as Ret }
    }

    /// How many of the next `room` events can be written: what the kernel has given us it does not
    /// take back.
    fn writable(&self, room: usize) -> usize {
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
enum Kernel {
    /// It is looked at, unless this wait has done so and has something to report: it would tell the
    /// same again.
    Look(c_int),
    /// It has just been looked at.
    Looked,
    /// It must not be looked at now: what is behind stays.
    Wait,
}

/// Reports what is ready, each queued item at most once.
#[inline]
fn collect(inner: &mut Inner, e: &'static Epoll, mut kernel: Kernel, out: &mut Out) {
    let mut left = inner.ready.len();
    while left > 0 && out.n < out.max {
        left -= 1;
        let Some(index) = inner.ready.pop_front() else { return };
        if index == KERNEL {
            match kernel {
                _ if inner.sent_by_kernel <= inner.looked_at => inner.kernel_queued = false,
                Kernel::Look(epfd) if inner.looked_in != inner.wait || !out.is_done() => {
                    look_first(inner, e, epfd, out);
                    kernel = Kernel::Looked;
                    left = inner.ready.len();
                }
                Kernel::Looked => inner.kernel_queued = false,
                _ => {
                    inner.ready.push_front(KERNEL);
                    return;
                }
            }
        } else if !report(inner, e, index, out) {
            return;
        }
    }
}

/// What the kernel has was sent before what is ready behind this.
#[cold]
#[inline(never)]
fn look_first(inner: &mut Inner, e: &'static Epoll, epfd: c_int, out: &mut Out) {
    inner.kernel_queued = false;
    let mut local = Local::<32>::new();
    let room = out.max - out.n;
    if let Some((events, _)) = ask(inner, e, &mut local, epfd, out, room) {
        sort(inner, e, events, false, out);
    }
}

/// Reports an item that was taken out of the ready queue, and puts it there again if it has to
/// stay. False: there is no room.
#[inline]
fn report(inner: &mut Inner, e: &'static Epoll, index: u32, out: &mut Out) -> bool {
    let (wait, looks) = (inner.wait, inner.looks);
    let Some(item) = inner.item(index) else { return true };
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
    let now = evaluate(item);
    if now == 0 {
        return true;
    }
    if out.n == out.max || !out.push(now, item.data) {
        item.queued = true;
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

/// Takes events of the kernel's, in their order: the application's own go out, ours stand for an
/// item. There is room for all of them, and all of `out` can be written. `slept`: it was waited for
/// them.
fn sort(inner: &mut Inner, e: &'static Epoll, events: &[epoll_event], slept: bool, out: &mut Out) {
    for (i, ev) in events.iter().enumerate() {
        let Some(index) = untag(ev.u64) else {
            let _ = out.push(ev.events, ev.u64);
            continue;
        };
        if index == DOORBELL {
            stats::count(Counter::Wakeups);
            inner.woken |= !slept;
            come_in(e, inner);
            if slept && events.len() > 1 {
                // It was signalled before the kernel had what comes behind it, and after it had
                // what comes before.
                inner.drain(e);
                if inner.ready.front() == Some(KERNEL) {
                    inner.ready.pop_front();
                    inner.kernel_queued = false;
                }
                let others = (out.max - out.n).saturating_sub(events.len() - i - 1);
                out.within(others, |out| collect(inner, e, Kernel::Wait, out));
            }
        } else if ev.events != 0 && inner.take(index) {
            let _ = report(inner, e, index, out);
        }
    }
}

/// Whether an event of the kernel's for an item is a reason to look at it.
fn is_news(inner: &mut Inner, index: u32, bits: u32) -> bool {
    let Some(item) = inner.item(index) else { return false };
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
struct Local<const N: usize>([MaybeUninit<epoll_event>; N]);

impl<const N: usize> Local<N> {
    #[inline]
    fn new() -> Self {
        Local([const { MaybeUninit::uninit() }; N])
    }

    /// Asks the kernel for up to `room` events. The mask is the caller's.
    fn fill(&mut self, epfd: c_int, room: usize, timeout_ns: i64, mask: Mask) -> Ret {
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

    /// What came, by the result of [`Self::fill`]. The items know from here on what their carriers
    /// have said, before the first of them is reported: an edge has one report, which says all.
    /// What is no news to its item is left with no event.
    #[cold]
    #[inline(never)]
    fn filled(&mut self, inner: &mut Inner, r: Ret) -> &[epoll_event] {
        let n = (r.max(0) as usize).min(N);
        // SAFETY: so many were written, and any bytes are an event.
        let events: &mut [epoll_event] =
            unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), n) };
        for ev in events.iter_mut() {
            if untag(ev.u64)
                .is_some_and(|index| index != DOORBELL && !is_news(inner, index, ev.events))
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

/// Looks at the kernel's set without waiting, and reports what it has behind what is ready. False:
/// there is no room for what it may have.
fn visit(inner: &mut Inner, e: &'static Epoll, epfd: c_int, out: &mut Out, room: usize) -> bool {
    let mut local = Local::<32>::new();
    let Some((events, room)) = ask(inner, e, &mut local, epfd, out, room) else { return false };
    if !events.is_empty() {
        out.within(room, |out| {
            out.within(room - events.len(), |out| collect(inner, e, Kernel::Wait, out));
            sort(inner, e, events, false, out);
        });
    }
    collect(inner, e, Kernel::Look(epfd), out);
    true
}

/// What the kernel's set has at this moment, up to `room` events, and for how many events `out` can
/// be written. `None`: there is no room.
fn ask<'a, const N: usize>(
    inner: &mut Inner,
    e: &Epoll,
    local: &'a mut Local<N>,
    epfd: c_int,
    out: &Out,
    room: usize,
) -> Option<(&'a [epoll_event], usize)> {
    let room = out.writable(room.min(N));
    if room == 0 {
        return None;
    }
    stats::count(Counter::KernelEpollVisits);
    let began = sys::ticks();
    let r = local.fill(epfd, room, 0, core::ptr::null());
    inner.looked(e, began, r == room as isize);
    Some((if r > 0 { local.filled(inner, r) } else { &[] }, room))
}

impl Inner {
    /// The kernel's set was looked at. `backlog`: it had as much as there was room for.
    fn looked(&mut self, e: &Epoll, began: u64, backlog: bool) {
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
    fn take(&mut self, index: u32) -> bool {
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

#[cold]
#[inline(never)]
unsafe fn wait_slow(
    e: &'static Epoll,
    mut inner: Guard<'static, Inner>,
    epfd: c_int,
    mut out: Out,
    timeout_ns: i64,
    mask: Mask,
) -> Ret {
    // SAFETY: `out` is the caller's buffer.
    let r = unsafe { await_news(e, &mut inner, epfd, &mut out, timeout_ns, mask) };
    if inner.sleepers > 0 {
        pass_on(e, &mut inner);
    }
    r
}

/// # Safety
/// `out` is the caller's buffer.
unsafe fn await_news(
    e: &'static Epoll,
    inner: &mut Guard<'static, Inner>,
    epfd: c_int,
    out: &mut Out,
    timeout_ns: i64,
    mask: Mask,
) -> Ret {
    if timeout_ns == 0 && look_once(e, inner, epfd, out) {
        return out.result();
    }
    if out.writable(1) == 0 {
        return wait_for_nothing(e, inner, epfd, out, timeout_ns, mask);
    }
    let deadline =
        if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    let mut looked_before = false;
    loop {
        if mask.is_null() {
            poll_first(e, inner, epfd, out);
            if out.is_done() {
                return out.result();
            }
        }
        let place = (e.place.load(Relaxed) as usize).checked_sub(1);
        if !e.active.load(Acquire) || (place.is_none() && inner.extras.is_empty()) {
            // Nobody is called into the kernel's own wait.
            inner.calls_until = 0;
            unlight(e, inner);
            return PASS;
        }
        for c in &inner.channels {
            c.my_place(place.unwrap_or(0)).prepare_sleep();
        }
        fence(SeqCst);
        if inner.between_hosts {
            queues::before_sleep();
        }
        let looks = inner.looks;
        inner.drain(e);
        collect(inner, e, Kernel::Look(epfd), out);
        if out.is_done() {
            wake_up(inner, place);
            return out.result();
        }
        let mut left = wait::left(deadline);
        // What nobody rings for is looked for.
        let mut again = !inner.extras.is_empty() && (place.is_none() || inner.hears_not_all(false));
        if again && !(0..=LOOK_NS).contains(&left) {
            left = LOOK_NS;
        }
        let looked = inner.looks != looks;
        if looked {
            // That look may have taken the doorbell's event, signalled for what came behind the
            // drain: nobody rings for that again. (A bad peer can make each round look.)
            let most = if looked_before { LOOK_NS } else { 0 };
            left = if left < 0 { most } else { left.min(most) };
            again = true;
        }
        looked_before = looked;
        unlight(e, inner);
        inner.sleepers += 1;
        let mut local = Local::<64>::new();
        let room = out.writable(out.max.min(64)).max(1);
        stats::count(Counter::Sleeps);
        let began = sys::ticks();
        let r = give_way(inner, || local.fill(epfd, room, left, mask));
        inner.sleepers = inner.sleepers.saturating_sub(1);
        inner.last_visit = sys::ticks();
        wake_up(inner, place);
        if r < 0 {
            return r;
        }
        inner.looked(e, began, r == room as isize);
        let events = local.filled(inner, r);
        out.within(room, |out| sort(inner, e, events, true, out));
        inner.drain(e);
        collect(inner, e, Kernel::Look(epfd), out);
        if out.is_done() {
            return out.result();
        }
        if (r == 0 && !again) || (deadline != 0 && sys::now_ns() >= deadline) {
            return 0;
        }
        // News that was no event of the application's.
        prune_if_due(e, inner);
        if inner.unsettled {
            settle(e, inner);
        }
    }
}

/// A wait that does not wait. False: the buffer has no room.
fn look_once(e: &'static Epoll, inner: &mut Inner, epfd: c_int, out: &mut Out) -> bool {
    inner.last_visit = sys::ticks();
    // What the kernel has for the library alone must not take the place of what it has for the
    // application, and look like nothing.
    let mut looked = false;
    for _ in 0..VISITS {
        let room = out.max - out.n;
        looked = visit(inner, e, epfd, out, room);
        if !looked || out.n != 0 || !inner.backlog {
            break;
        }
    }
    looked
}

/// Polls the rings for as long as that promises to be cheaper than a sleep.
fn poll_first(e: &'static Epoll, inner: &mut Guard<'static, Inner>, epfd: c_int, out: &mut Out) {
    let peers = Peers::of(inner.channels.iter().copied().filter(|c| c.dead.load(Relaxed) == 0));
    let last = inner.last_visit;
    let between_hosts = inner.between_hosts;
    if !give_way(inner, || spin(e, peers, epfd, last, between_hosts)) {
        return;
    }
    inner.drain(e);
    collect(inner, e, Kernel::Look(epfd), out);
    if out.n == 0 {
        inner.last_visit = sys::ticks();
        let room = out.max - out.n;
        visit(inner, e, epfd, out, room);
    }
}

/// The buffer is bad: the call ends with that as soon as there is something to report, and takes
/// nothing. (News that only the library would have noticed can end it, too.) What sockets have is
/// looked for once in [`LOOK_NS`].
#[cold]
fn wait_for_nothing(
    e: &'static Epoll,
    inner: &mut Guard<'static, Inner>,
    epfd: c_int,
    out: &mut Out,
    timeout_ns: i64,
    mask: Mask,
) -> Ret {
    let deadline =
        if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    loop {
        inner.drain(e);
        collect(inner, e, Kernel::Look(epfd), out);
        if out.is_done() {
            return out.result();
        }
        let left = wait::left(deadline);
        let mut p = libc::pollfd { fd: epfd, events: libc::POLLIN, revents: 0 };
        let left = if left < 0 { LOOK_NS } else { left.min(LOOK_NS) };
        // SAFETY: one valid pollfd; the caller's mask.
        let r = give_way(inner, || unsafe { sleep::ppoll(&mut p, 1, left, mask) });
        if r != 0 {
            return if r < 0 { r } else { -(libc::EFAULT as Ret) };
        }
        if deadline != 0 && sys::now_ns() >= deadline {
            return 0;
        }
    }
}

/// This thread does not sleep any more; others may.
fn wake_up(inner: &Inner, place: Option<usize>) {
    let Some(place) = place else { return };
    for c in &inner.channels {
        if inner.sleepers == 0 {
            c.my_place(place).cancel_sleep();
        } else {
            c.my_place(place).prepare_sleep();
        }
    }
}

/// Polls the channels, and now and then the kernel's set.
fn spin(
    e: &'static Epoll,
    peers: Peers,
    epfd: c_int,
    last_visit: u64,
    between_hosts: bool,
) -> bool {
    let mut last = last_visit;
    wait::spin(peers, || {
        if between_hosts {
            queues::progress();
        }
        let n = e.watching.load(Acquire);
        for w in e.watch.iter().take(n) {
            // SAFETY: within a channel that this set has joined, which keeps it mapped.
            if unsafe { w.load(Relaxed).as_ref() }.is_some_and(|set| !set.is_empty()) {
                return true;
            }
        }
        let now = sys::ticks();
        if now.wrapping_sub(last) > KERNEL_VISIT_TICKS / 2 {
            last = now;
            return sys::poll_now(epfd, libc::POLLIN) != 0;
        }
        false
    })
}

/// The kernel's wait returned events of a set that has come to have attached sockets meanwhile.
#[inline]
pub(crate) unsafe fn on_wait(epfd: c_int, events: *mut epoll_event, n: c_int) -> c_int {
    let Entry::Epoll(e) = fd_table::get(epfd) else { return n };
    let e = at(e);
    // A set that a child inherited still holds its parent's tags.
    let inherited = e.owner.load(Relaxed) != process::id();
    if !e.tagged.load(Acquire) && !inherited {
        return n;
    }
    signals::held(|| {
        let mut inner = e.inner.lock();
        let mut out = Out { events, max: n.max(0) as usize, n: 0, bad: false };
        for i in 0..n.max(0) as usize {
            // SAFETY: below `n`, just written by the kernel; the write position never passes the
            // read position.
            let Some(ev) = (unsafe { user::read(events.wrapping_add(i)) }) else { break };
            match untag(ev.u64) {
                None => _ = out.push(ev.events, ev.u64),
                Some(DOORBELL) => {
                    stats::count(Counter::Wakeups);
                    inner.woken = true;
                    come_in(e, &mut inner);
                }
                Some(index) if is_news(&mut inner, index, ev.events) => inner.queue(index),
                Some(_) => {}
            }
        }
        if inner.sleepers > 0 {
            pass_on(e, &mut inner);
        }
        out.n as c_int
    })
}

/// A forked child uses its parent's set: what is kept here is the parent's; the sockets go back to
/// the kernel.
#[cold]
fn inherited(e: &'static Epoll) {
    let mut inner = e.inner.lock();
    EXTRAS.fetch_sub(inner.extras.len() as u32, AcqRel);
    inner.extras.clear();
    inner.unsettled = false;
    for item in inner.items.iter_mut().flatten() {
        // Its parent may have attached it since the fork, or may do so later.
        let s = item.socket;
        let attached = s.is(State::Attached) && s.generation16() == item.generation;
        // The kernel's set is all that the child has: nothing may stay in the ring. Between hosts
        // the parent goes on with what takes longer, and gives the set, which both have, what the
        // application asked for.
        let strict = !s.has(flag::REMOTE);
        if (io::to_kernel(s, item.generation, item.fd, Reason::InheritedByFork, strict) || strict)
            && (core::mem::take(&mut item.attached) || attached)
        {
            give_to_kernel(e.fd.load(Relaxed), item);
        }
    }
    e.active.store(false, Release);
}
