//! epoll_wait: the ready queue, the kernel's set, polling and sleep.

use super::hand_back::give_to_kernel;
use super::handover::{give_deferred, light, unlight};
use super::report::{Kernel, Local, Out, collect, collect_here, collect_older, give_way};
use super::report::{hear_listener, is_gather, is_news, pass, pass_on_parents};
use super::report::{reportable, sort, visit};
use super::{
    Counted, DOORBELL, EXTRAS, Epoll, Inner, KERNEL, KERNEL_VISIT_TICKS, LOOK_NS, TURNS, VISITS,
    at, come_in, prod, prune_if_due, tag, untag,
};
use crate::channel::Peers;
use crate::engines::{self, Engines};
use crate::fast_connect;
use crate::fd_table;
use crate::lock::Guard;
use crate::outcome::{Mask, PASS, Ret};
use crate::socket::{Limit, State};
use crate::wait::looks::{self, Habit, Looked};
use crate::{io, process, signals, sleep, stats, sys, trace, user, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;
use netacc_control::stats::{Counter, Reason};

#[inline]
pub(super) unsafe fn wait_here(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: i64,
    mask: Mask,
    counted: &mut Counted,
) -> Ret {
    let Some(e) = fd_table::epoll(epfd) else { return PASS };
    let e = at(e);
    if e.owner.load(Relaxed) != process::id() {
        signals::held(|| inherited(e));
        return PASS;
    }
    if !e.active.load(Acquire) {
        if !e.waited.load(Relaxed) {
            e.waited.store(true, Relaxed);
            fast_connect::note_waits();
        }
        let (inside, active) = Counted::enter(e);
        // Either this sees that the set is active now, or `take_place` sees the thread.
        if !active {
            *counted = inside;
            if timeout_ns == 0 || !mask.is_null() || !e.connections.load(Relaxed) {
                return PASS;
            }
            let habit = looks::habit(epfd);
            if habit.looks(timeout_ns) && has_connections(e) {
                let mut left = timeout_ns;
                // SAFETY: as it came.
                let r = unsafe { look_and_sleep(epfd, events, max, &mut left, habit) };
                *counted = Counted::default();
                if let Some(r) = r {
                    return r;
                }
                // SAFETY: as it came.
                return unsafe { wait_here(epfd, events, max, left, mask, counted) };
            }
            counted.sleep = Some(habit.sleep());
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
        return unsafe { wait_here(epfd, events, max, timeout_ns, mask, counted) };
    }
    r
}

/// Whether the set has connections that the library follows. Once they are gone its waits are not
/// looked into any more.
#[cold]
#[inline(never)]
fn has_connections(e: &Epoll) -> bool {
    signals::held(|| {
        let inner = e.inner.lock();
        let has = inner.items.len() > inner.free.len();
        e.connections.store(has, Relaxed);
        has
    })
}

/// All that the set has is the kernel's. It looks there for as long as that pays, and then sleeps,
/// all in one section: nothing that would end the call gets lost between the two. The call's
/// result, or `None`: it is to be begun anew, with what is left of its time.
///
/// # Safety
/// The caller's buffer of `max` events.
#[cold]
#[inline(never)]
unsafe fn look_and_sleep(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    left: &mut i64,
    habit: &'static Habit,
) -> Option<Ret> {
    signals::held(|| {
        let deadline =
            if *left < 0 { 0 } else { sys::now_ns().saturating_add(*left as u64).max(1) };
        let mut n = 0;
        let looked = habit.look(Limit::CONFIGURED, &[epfd], || {
            // SAFETY: the caller's promise.
            n = unsafe { sys::epoll_look(epfd, events, max, core::ptr::null()) };
            n != 0
        });
        *left = wait::left(deadline);
        match looked {
            Looked::Signal => return Some(-(libc::EINTR as Ret)),
            Looked::Nothing => {
                let asleep = habit.sleep();
                // SAFETY: as above.
                n = unsafe { sleep::epoll_wait(epfd, events, max, *left, core::ptr::null()) };
                asleep.over(n > 0);
                *left = wait::left(deadline);
            }
            Looked::AtOnce | Looked::Found => {}
        }
        if n <= 0 {
            return Some(n);
        }
        // SAFETY: the kernel has just written so many events.
        Some(unsafe { on_wait(epfd, events, n as c_int, max) } as Ret).filter(|n| *n != 0)
    })
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
        give_deferred(e, &mut inner);
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
    collect_here(&mut inner, e, Kernel::Look(epfd), &mut out);
    if !out.is_done() {
        // SAFETY: `out` is the caller's buffer.
        return unsafe { wait_slow(e, inner, out, Call { epfd, timeout_ns, mask }) };
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

/// What a thread waits with, beside its buffer.
#[derive(Clone, Copy)]
struct Call {
    epfd: c_int,
    timeout_ns: i64,
    mask: Mask,
}

#[cold]
#[inline(never)]
unsafe fn wait_slow(
    e: &'static Epoll,
    mut inner: Guard<'static, Inner>,
    mut out: Out,
    call: Call,
) -> Ret {
    // SAFETY: `out` is the caller's buffer.
    let r = unsafe { await_news(e, &mut inner, &mut out, call) };
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
    out: &mut Out,
    call: Call,
) -> Ret {
    let Call { epfd, timeout_ns, mask } = call;
    if timeout_ns == 0 && look_once(e, inner, epfd, out) {
        return out.result();
    }
    if out.writable(1) == 0 {
        return wait_for_nothing(e, inner, out, call);
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
        hear_packets(inner, epfd);
        inner.engines.before_sleep();
        let looks = inner.looks;
        inner.drain(e);
        collect(inner, e, Kernel::Look(epfd), out);
        if out.is_done() {
            wake_up(inner, place);
            return out.result();
        }
        let mut left = wait::left(deadline);
        // What nobody wakes for is looked for.
        let mut again = !inner.extras.is_empty() && (place.is_none() || inner.hears_not_all(false));
        if again && !(0..=LOOK_NS).contains(&left) {
            left = LOOK_NS;
        }
        let looked = inner.looks != looks;
        if looked {
            // That look may have taken the doorbell's event, signalled for what came behind the
            // drain: nobody wakes for that again. (A bad peer can make each round look.)
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
        trace::process(trace::Event::SleepInSet, epfd as u64);
        let r = give_way(inner, || local.fill(epfd, room, left, mask));
        trace::process(trace::Event::WakeInSet, epfd as u64 | (r.max(0) as u64) << 32);
        inner.sleepers = inner.sleepers.saturating_sub(1);
        inner.last_visit = sys::ticks();
        wake_up(inner, place);
        if inner.sleepers > 0 {
            hear_packets(inner, epfd);
        }
        if r < 0 {
            return r;
        }
        inner.looked(e, began, r == room as isize);
        wait::slept(inner.limits.least(), began, r > 0);
        let events = local.filled(inner, r);
        report_slept(inner, e, events, room, out);
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
            give_deferred(e, inner);
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

/// The next packet wakes who sleeps in the set.
fn hear_packets(inner: &Inner, epfd: c_int) {
    if inner.engines.hear_packets() {
        wait::hear_packets(epfd, inner.channels.iter().copied(), tag(DOORBELL));
    }
}

fn peers_of(inner: &Inner) -> Peers {
    Peers::of(inner.channels.iter().copied().filter(|c| c.dead.load(Relaxed) == 0))
}

/// Polls the rings for as long as that promises to be cheaper than a sleep.
fn poll_first(e: &'static Epoll, inner: &mut Guard<'static, Inner>, epfd: c_int, out: &mut Out) {
    let peers = peers_of(inner);
    let last = inner.last_visit;
    let whom = (peers, inner.limits.least(), inner.engines);
    if !give_way(inner, || spin(e, epfd, whom, last)) {
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
    out: &mut Out,
    call: Call,
) -> Ret {
    let Call { epfd, timeout_ns, mask } = call;
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
    epfd: c_int,
    (peers, limit, engines): (Peers, Limit, Engines),
    last_visit: u64,
) -> bool {
    let mut last = last_visit;
    wait::spin(peers, limit, || {
        engines.poll();
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

/// The kernel's wait returned events, into a buffer of `max`, of a set that has come to have
/// attached sockets meanwhile.
///
/// # Safety
/// `events` holds `n` events, and has room for `max`.
#[inline]
pub(crate) unsafe fn on_wait(epfd: c_int, events: *mut epoll_event, n: c_int, max: c_int) -> c_int {
    let Some(e) = fd_table::epoll(epfd) else { return n };
    let e = at(e);
    // A set that a child inherited still holds its parent's tags.
    let inherited = e.owner.load(Relaxed) != process::id();
    if !e.tagged.load(Acquire) && !inherited {
        return n;
    }
    signals::held(|| {
        let mut inner = e.inner.lock();
        let (n, max) = (n.max(0) as usize, max.max(n).max(0) as usize);
        let mut local = Local::<64>::new();
        inner.wait = inner.wait.wrapping_add(1);
        // SAFETY: the caller's promise.
        let told = if !inherited && unsafe { local.copy(events, n) } {
            let heard = local.filled(&mut inner, n as Ret);
            let mut out = Out { events, max, n: 0, bad: false };
            inner.woken |= heard.iter().any(|ev| untag(ev.u64) == Some(DOORBELL));
            let room = out.writable(max.min(64)).max(n);
            report_slept(&mut inner, e, heard, room, &mut out);
            out.n
        } else {
            // SAFETY: as above.
            unsafe { leave_out_ours(&mut inner, e, events, n) }
        };
        if inner.sleepers > 0 {
            pass_on(e, &mut inner);
        }
        told as c_int
    })
}

/// Takes what is not the application's out of its buffer; what is ready is told by its next wait.
///
/// # Safety
/// `events` holds `n` events.
#[cold]
unsafe fn leave_out_ours(
    inner: &mut Inner,
    e: &'static Epoll,
    events: *mut epoll_event,
    n: usize,
) -> usize {
    let inherited = e.owner.load(Relaxed) != process::id();
    let mut out = Out { events, max: n, n: 0, bad: false };
    for i in 0..n {
        // SAFETY: below `n`, just written by the kernel; the write position never passes the read
        // position.
        let Some(ev) = (unsafe { user::read(events.wrapping_add(i)) }) else { break };
        match untag(ev.u64) {
            None => pass(inner, &ev, &mut out),
            Some(index) if is_gather(index) && inherited => pass_on_parents(inner, index, &mut out),
            Some(index) if is_gather(index) => hear_listener(inner, index, &mut out),
            Some(DOORBELL) => {
                stats::count(Counter::Wakeups);
                engines::hear_failure(ev.events);
                inner.woken = true;
                come_in(e, inner);
            }
            Some(index) if is_news(inner, index, ev.events) => inner.queue(index),
            Some(_) => {}
        }
    }
    out.n
}

/// Reports what a sleep in the kernel has brought, and of the rings what was sent before it.
/// There is `room` for that, which can be written.
fn report_slept(
    inner: &mut Inner,
    e: &'static Epoll,
    events: &[epoll_event],
    room: usize,
    out: &mut Out,
) {
    out.within(room, |out| {
        if !events.is_empty() {
            collect_older(inner, e, room.saturating_sub(reportable(events)), out);
        }
        sort(inner, e, events, true, out);
    });
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
        // The kernel's set is all that the child has: nothing may stay in the ring. Where only its
        // maker can take it back that one goes on with what takes longer, and gives the set, which
        // both have, what the application asked for.
        let strict = s.path().children_follow();
        if (io::to_kernel(s, item.generation, item.fd, Reason::InheritedByFork, strict) || strict)
            && (core::mem::take(&mut item.attached) || attached)
        {
            give_to_kernel(e.fd.load(Relaxed), item);
        }
    }
    e.active.store(false, Release);
}
