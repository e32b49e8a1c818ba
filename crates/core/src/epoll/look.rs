//! epoll_wait: the ready queue, the kernel's set, polling and sleep.

use super::*;
use crate::wait::Peers;

#[inline]
pub(crate) unsafe fn wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ns: i64, mask: Mask) -> Ret {
    let Entry::Epoll(e) = fd_table::get(epfd) else { return PASS };
    if e.owner.load(Relaxed) != lifecycle::process() {
        inherited(e);
        return PASS;
    }
    if !e.active.load(Acquire) {
        return PASS;
    }
    if max <= 0 || max as usize > isize::MAX as usize / size_of::<epoll_event>() {
        return -(libc::EINVAL as Ret);
    }
    if (events as usize) < 4096 {
        return -(libc::EFAULT as Ret);
    }
    // SAFETY: the caller's buffer of `max` events.
    let r = unsafe { look(e, epfd, Out { events, max: max as usize, n: 0 }, timeout_ns, mask) };
    if e.barred.load(Relaxed) {
        light(e, &mut e.inner.lock());
    }
    r
}

#[inline]
unsafe fn look(e: &'static Epoll, epfd: c_int, mut out: Out, timeout_ns: i64, mask: Mask) -> Ret {
    let mut inner = e.inner.lock();
    inner.wait = inner.wait.wrapping_add(1);
    prune_if_due(e, &mut inner);
    if inner.unsettled {
        inner = settle(e, inner);
    }
    inner.drain(e);
    let now = sys::ticks();
    // A buffer that is always full of sockets must not keep the kernel's descriptors out either; nor they the sockets, where it has one place.
    let full = out.max <= inner.ready.len();
    let overdue = inner.backlog || inner.wait.is_multiple_of(32) || now.wrapping_sub(inner.last_visit) > KERNEL_VISIT_TICKS;
    let due = overdue || inner.fresh || (full && inner.wait.is_multiple_of(8));
    if due && (full || inner.fresh) && (out.max > 1 || inner.wait.is_multiple_of(2)) {
        // The buffer cannot hold all: the kernel's descriptors go first this time.
        inner.last_visit = now;
        let room = (out.max / 2).max(1);
        visit(&mut inner, e, epfd, &mut out, room);
    }
    collect(&mut inner, e, &mut out);
    if out.n > 0 {
        let room = out.max - out.n;
        if due && room > 0 && inner.last_visit != now {
            inner.last_visit = now;
            visit(&mut inner, e, epfd, &mut out, room);
        }
        if inner.sleepers > 0 && !inner.ready.is_empty() {
            prod(e, &inner);
        }
        return out.n as Ret;
    }
    // SAFETY: `out` is the caller's buffer.
    unsafe { wait_slow(e, inner, epfd, out, timeout_ns, mask) }
}

/// The application's event buffer.
struct Out {
    events: *mut epoll_event,
    max: usize,
    n: usize,
}

impl Out {
    #[inline]
    fn push(&mut self, events: u32, data: u64) {
        if self.n < self.max {
            // SAFETY: below `max`, the length that the application gave.
            unsafe { self.events.add(self.n).write_unaligned(epoll_event { events, u64: data }) };
            self.n += 1;
        }
    }
}

/// Reports what is ready, each queued item at most once.
#[inline]
fn collect(inner: &mut Inner, e: &'static Epoll, out: &mut Out) {
    for _ in 0..inner.ready.len() {
        if out.n == out.max {
            return;
        }
        let Some(index) = inner.ready.pop_front() else { return };
        let Some(Some(item)) = inner.items.get_mut(index as usize) else { continue };
        if item.reported_in == inner.wait {
            inner.ready.push_back(index);
            continue;
        }
        item.queued = false;
        if !item.present || item.disabled {
            continue;
        }
        if item.socket.generation16() != item.generation {
            // Closed where the set could not be told.
            inner.remove(index);
            continue;
        }
        if !item.plain && !item.socket.is(ATTACHED) {
            // Made plain by another process that shares it.
            hand_back(e, inner, index);
            continue;
        }
        let now = evaluate(item);
        if now == 0 {
            continue;
        }
        out.push(now, item.data);
        item.reported_in = inner.wait;
        if item.events & ONESHOT != 0 {
            item.disabled = true;
        } else if item.events & ET == 0 {
            item.queued = true;
            inner.ready.push_back(index);
        }
    }
}

/// Sorts one event of the kernel's: the application's own goes out, ours queues its item.
#[inline]
fn sort(inner: &mut Inner, ev: epoll_event, out: &mut Out) {
    let (bits, data) = (ev.events, ev.u64);
    match untag(data) {
        None => out.push(bits, data),
        Some(DOORBELL) => stats::count(Counter::Wakeups),
        Some(index) => {
            if let Some(item) = inner.item(index) {
                let end = bits & ENDS;
                let known = end & !item.ended == 0;
                item.ended |= end;
                let data = bits & (libc::EPOLLIN | libc::EPOLLPRI) as u32 != 0;
                let room = bits & libc::EPOLLOUT as u32 != 0 && item.events & OUT != 0;
                let fast = item.socket.channel().is_some_and(|c| io::sends_fast(c, item.socket.slot.load(Relaxed) as usize));
                // Room on a carrier that carries nothing is no news, nor is an end that was reported before.
                if (end != 0 && known && item.events & ET != 0) || (!data && end == 0 && (!room || fast)) {
                    return;
                }
                item.carrier_news = true;
            }
            inner.queue(index);
        }
    }
}

/// Looks at the kernel's set without waiting.
fn visit(inner: &mut Inner, e: &'static Epoll, epfd: c_int, out: &mut Out, room: usize) {
    if room == 0 {
        return;
    }
    stats::count(Counter::KernelEpollVisits);
    let mut local = [epoll_event { events: 0, u64: 0 }; 32];
    let room = room.min(local.len());
    // SAFETY: a buffer of that many events.
    let r = unsafe { sys::epoll_wait(epfd, local.as_mut_ptr(), room as c_int, 0, core::ptr::null()) };
    inner.backlog = r == room as isize;
    inner.fresh = false;
    for ev in local.iter().take(r.max(0) as usize) {
        sort(inner, *ev, out);
    }
    collect(inner, e, out);
}

#[cold]
#[inline(never)]
unsafe fn wait_slow(e: &'static Epoll, mut inner: Guard<'static, Inner>, epfd: c_int, mut out: Out, timeout_ns: i64, mask: Mask) -> Ret {
    if timeout_ns == 0 {
        inner.last_visit = sys::ticks();
        let room = out.max - out.n;
        visit(&mut inner, e, epfd, &mut out, room);
        return out.n as Ret;
    }
    let deadline = if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    loop {
        let place = (e.place.load(Relaxed) as usize).checked_sub(1);
        if !e.active.load(Acquire) || (place.is_none() && inner.extras.is_empty()) {
            return PASS;
        }
        if mask.is_null() {
            let peers = Peers::of(inner.channels.iter().copied().filter(|c| c.dead.load(Relaxed) == 0));
            let last = inner.last_visit;
            let between_hosts = inner.between_hosts;
            drop(inner);
            let won = spin(e, peers, epfd, last, between_hosts);
            inner = e.inner.lock();
            if won {
                inner.drain(e);
                collect(&mut inner, e, &mut out);
                if out.n == 0 {
                    inner.last_visit = sys::ticks();
                    let room = out.max - out.n;
                    visit(&mut inner, e, epfd, &mut out, room);
                }
                if out.n > 0 {
                    return out.n as Ret;
                }
            }
        }
        for c in &inner.channels {
            c.my_place(place.unwrap_or(0)).prepare_sleep();
        }
        fence(SeqCst);
        if inner.between_hosts {
            wire::before_sleep();
        }
        inner.drain(e);
        collect(&mut inner, e, &mut out);
        if out.n > 0 {
            wake_up(&inner, place);
            return out.n as Ret;
        }
        let mut left = wait::left(deadline);
        // What nobody rings for is looked for.
        let looks = !inner.extras.is_empty() && (place.is_none() || inner.hears_not_all(false));
        if looks && !(0..=LOOK_NS).contains(&left) {
            left = LOOK_NS;
        }
        unlight(e, &mut inner);
        inner.sleepers += 1;
        drop(inner);
        let mut local = [epoll_event { events: 0, u64: 0 }; 64];
        let room = out.max.min(local.len());
        stats::count(Counter::Sleeps);
        // SAFETY: a buffer of that many events; the caller's mask.
        let r = unsafe { sys::epoll_wait(epfd, local.as_mut_ptr(), room as c_int, left, mask) };
        inner = e.inner.lock();
        inner.sleepers = inner.sleepers.saturating_sub(1);
        inner.last_visit = sys::ticks();
        inner.backlog = r == room as isize;
        inner.fresh = false;
        wake_up(&inner, place);
        if r < 0 {
            return r;
        }
        for ev in local.iter().take(r as usize) {
            sort(&mut inner, *ev, &mut out);
        }
        inner.drain(e);
        collect(&mut inner, e, &mut out);
        if out.n > 0 {
            if !inner.ready.is_empty() {
                prod(e, &inner);
            }
            return out.n as Ret;
        }
        if (r == 0 && !looks) || (deadline != 0 && sys::now_ns() >= deadline) {
            return 0;
        }
        // News that was no event of the application's.
        prune_if_due(e, &mut inner);
        if inner.unsettled {
            inner = settle(e, inner);
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
fn spin(e: &'static Epoll, peers: Peers, epfd: c_int, last_visit: u64, between_hosts: bool) -> bool {
    let mut last = last_visit;
    wait::spin(peers, || {
        if between_hosts {
            wire::progress();
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
    // A set that a child inherited still holds its parent's tags.
    let inherited = e.owner.load(Relaxed) != lifecycle::process();
    if !e.active.load(Acquire) && !inherited {
        return n;
    }
    let mut inner = e.inner.lock();
    let mut out = Out { events, max: n.max(0) as usize, n: 0 };
    for i in 0..n.max(0) as usize {
        // SAFETY: below `n`; the write position never passes the read position.
        let ev = unsafe { events.add(i).read_unaligned() };
        sort(&mut inner, ev, &mut out);
    }
    out.n as c_int
}

/// A forked child uses its parent's set: what is kept here is the parent's; the sockets go back to the kernel.
#[cold]
fn inherited(e: &'static Epoll) {
    let mut inner = e.inner.lock();
    EXTRAS.fetch_sub(inner.extras.len() as u32, AcqRel);
    inner.extras.clear();
    inner.unsettled = false;
    for item in inner.items.iter_mut().flatten() {
        // Its parent may have attached it since the fork, or may do so later.
        let s = item.socket;
        let attached = s.is(ATTACHED) && s.generation16() == item.generation;
        // The kernel's set is all that the child has: nothing may stay in the ring. Between hosts the parent goes on with what takes longer,
        // and gives the set, which both have, what the application asked for.
        let strict = !s.has(flag::REMOTE);
        if (io::to_kernel(s, item.generation, item.fd, Reason::InheritedByFork, strict) || strict) && (core::mem::take(&mut item.attached) || attached) {
            give_to_kernel(e.fd.load(Relaxed), item);
        }
    }
    e.active.store(false, Release);
}
