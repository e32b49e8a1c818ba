//! epoll_wait: the ready queue, the kernel's set, polling and sleep.

use super::*;
use crate::signals;
use crate::wait::Peers;
use core::mem::MaybeUninit;

#[inline]
pub(crate) unsafe fn wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ns: i64, mask: Mask) -> Ret {
    let Entry::Epoll(e) = fd_table::get(epfd) else { return PASS };
    if e.owner.load(Relaxed) != lifecycle::process() {
        signals::held(|| inherited(e));
        return PASS;
    }
    if !e.active.load(Acquire) {
        if !e.waited.load(Relaxed) {
            e.waited.store(true, Relaxed);
        }
        return PASS;
    }
    if max <= 0 || max as usize > isize::MAX as usize / size_of::<epoll_event>() {
        return -(libc::EINVAL as Ret);
    }
    let end = (events as usize).wrapping_add(max as usize * size_of::<epoll_event>());
    if ((events as usize | end) as isize) < 0 || !(mask.is_null() || crate::poll::is_mask(mask)) {
        return -(libc::EFAULT as Ret);
    }
    let section = signals::enter();
    // SAFETY: the caller's buffer of `max` events.
    let r = unsafe { look(e, epfd, Out { events, max: max as usize, n: 0, bad: false }, timeout_ns, mask) };
    if e.barred.load(Relaxed) {
        light(e, &mut e.inner.lock());
    }
    let _ = signals::leave(section);
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
    let now = sys::ticks();
    inner.drain(e);
    // A buffer that is always full of sockets must not keep the kernel's descriptors out either; nor they the sockets, where it has one place.
    let full = out.max <= inner.ready.len();
    let overdue = inner.backlog || inner.wait.is_multiple_of(32) || now.wrapping_sub(inner.last_visit) > KERNEL_VISIT_TICKS;
    let mixed = !inner.ready.is_empty() && is_mixed(e, now);
    let due = overdue || inner.fresh || mixed || (full && inner.wait.is_multiple_of(8));
    if due && (full || inner.fresh || mixed) && (out.max > 1 || inner.wait.is_multiple_of(2)) {
        // The buffer cannot hold all, or the kernel's have an order with ours: they go first this time.
        inner.last_visit = now;
        let room = (out.max / 2).max(1);
        visit(&mut inner, e, epfd, &mut out, room);
    }
    collect(&mut inner, e, &mut out);
    if out.is_done() {
        let room = out.max - out.n;
        if due && room > 0 && inner.last_visit != now {
            inner.last_visit = now;
            visit(&mut inner, e, epfd, &mut out, room);
        }
        if inner.sleepers > 0 && !inner.ready.is_empty() {
            prod(e, &inner);
        }
        return out.result();
    }
    // SAFETY: `out` is the caller's buffer.
    unsafe { wait_slow(e, inner, epfd, out, timeout_ns, mask) }
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
            if !unsafe { user::write_both(&raw mut (*at).events, events, &raw mut (*at).u64, data) } {
                self.bad = true;
                self.max = self.n;
                return false;
            }
            self.n += 1;
        }
        true
    }

    /// There is something to return.
    #[inline]
    fn is_done(&self) -> bool {
        self.n > 0 || self.bad
    }

    fn result(&self) -> Ret {
        if self.n == 0 && self.bad { -(libc::EFAULT as Ret) } else { self.n as Ret }
    }

    /// How many of the next `room` events can be written: what the kernel has given us it does not take back.
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
        if !out.push(now, item.data) {
            item.queued = true;
            inner.ready.push_front(index);
            return;
        }
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
        None => {
            let _ = out.push(bits, data);
        }
        Some(DOORBELL) => stats::count(Counter::Wakeups),
        Some(index) => {
            if let Some(item) = inner.item(index) {
                let end = bits & ENDS;
                let known = end & !item.ended == 0;
                item.ended |= end;
                let data = bits & (libc::EPOLLIN | libc::EPOLLPRI) as u32 != 0;
                let room = bits & libc::EPOLLOUT as u32 != 0 && item.events & OUT != 0;
                let fast = item.socket.channel().is_some() && item.socket.said.sends_fast();
                if data && !(item.socket.channel().is_some() && item.socket.said.receives_fast()) {
                    on_carrier_news(item.socket);
                }
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
        unsafe { sys::epoll_wait(epfd, self.0.as_mut_ptr().cast(), room.min(N) as c_int, timeout_ns, mask) }
    }

    /// What came, by the result of [`Self::fill`].
    fn filled(&self, r: Ret) -> &[epoll_event] {
        let n = (r.max(0) as usize).min(N);
        // SAFETY: so many were written, and any bytes are an event.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), n) }
    }
}

/// Looks at the kernel's set without waiting. False: there is no room for what it may have.
fn visit(inner: &mut Inner, e: &'static Epoll, epfd: c_int, out: &mut Out, room: usize) -> bool {
    let mut local = Local::<32>::new();
    let room = out.writable(room.min(32));
    if room == 0 {
        return false;
    }
    stats::count(Counter::KernelEpollVisits);
    let r = local.fill(epfd, room, 0, core::ptr::null());
    inner.backlog = r == room as isize;
    inner.fresh = false;
    if r > 0 {
        for ev in local.filled(r) {
            sort(inner, *ev, out);
        }
        collect(inner, e, out);
    }
    true
}

#[cold]
#[inline(never)]
unsafe fn wait_slow(e: &'static Epoll, mut inner: Guard<'static, Inner>, epfd: c_int, mut out: Out, timeout_ns: i64, mask: Mask) -> Ret {
    if timeout_ns == 0 {
        inner.last_visit = sys::ticks();
        // What the kernel has for the library alone must not take the place of what it has for the application, and look like nothing.
        let mut looked = false;
        for _ in 0..VISITS {
            let room = out.max - out.n;
            looked = visit(&mut inner, e, epfd, &mut out, room);
            if !looked || out.n != 0 || !inner.backlog {
                break;
            }
        }
        if looked {
            return out.n as Ret;
        }
    }
    if out.writable(1) == 0 {
        return wait_for_nothing(e, inner, epfd, out, timeout_ns, mask);
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
                take_news(&mut inner, e, epfd, &mut out);
                collect(&mut inner, e, &mut out);
                if out.n == 0 {
                    inner.last_visit = sys::ticks();
                    let room = out.max - out.n;
                    visit(&mut inner, e, epfd, &mut out, room);
                }
                if out.is_done() {
                    return out.result();
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
        take_news(&mut inner, e, epfd, &mut out);
        collect(&mut inner, e, &mut out);
        if out.is_done() {
            wake_up(&inner, place);
            return out.result();
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
        let mut local = Local::<64>::new();
        let room = out.writable(out.max.min(64)).max(1);
        stats::count(Counter::Sleeps);
        let r = local.fill(epfd, room, left, mask);
        inner = e.inner.lock();
        inner.sleepers = inner.sleepers.saturating_sub(1);
        inner.last_visit = sys::ticks();
        inner.backlog = r == room as isize;
        inner.fresh = false;
        wake_up(&inner, place);
        if r < 0 {
            return r;
        }
        for ev in local.filled(r) {
            sort(&mut inner, *ev, &mut out);
        }
        if out.n == 0 {
            take_news(&mut inner, e, epfd, &mut out);
        } else {
            // The kernel has said what it has: asked again it would report the same descriptors a second time.
            inner.drain(e);
        }
        collect(&mut inner, e, &mut out);
        if out.is_done() {
            if !inner.ready.is_empty() {
                prod(e, &inner);
            }
            return out.result();
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

/// Whether connections of the set are on their way to rings: the order in which these and others are sent to is kept as far as it can be.
#[inline]
fn is_mixed(e: &Epoll, now: u64) -> bool {
    now.wrapping_sub(e.mixed_at.load(Relaxed)) < MIXED_TICKS
}

/// A connection within the host has news of which the kernel tells, or comes into a set with it.
#[cold]
pub(crate) fn on_carrier_news(s: &Socket) {
    if let Some(e) = set_of(s).filter(|_| !s.has(flag::REMOTE)) {
        e.mixed_at.store(sys::ticks(), Relaxed);
    }
}

/// Takes the news of the rings into the ready queue. What the kernel has is reported before it while the set is mixed: asked after the rings, the
/// kernel has whatever was sent before what they had.
fn take_news(inner: &mut Inner, e: &'static Epoll, epfd: c_int, out: &mut Out) {
    inner.drain(e);
    let now = sys::ticks();
    let room = out.max.saturating_sub(out.n);
    if room > 1 && !inner.ready.is_empty() && is_mixed(e, now) {
        inner.last_visit = now;
        visit(inner, e, epfd, out, room / 2);
    }
}

/// The buffer is bad: the call ends with that as soon as there is something to report, and takes nothing. (News that only the library
/// would have noticed can end it, too.) What sockets have is looked for once in [`LOOK_NS`].
#[cold]
fn wait_for_nothing(e: &'static Epoll, mut inner: Guard<'static, Inner>, epfd: c_int, mut out: Out, timeout_ns: i64, mask: Mask) -> Ret {
    let deadline = if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    loop {
        inner.drain(e);
        collect(&mut inner, e, &mut out);
        if out.is_done() {
            return out.result();
        }
        drop(inner);
        let left = wait::left(deadline);
        let mut p = libc::pollfd { fd: epfd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd; the caller's mask.
        let r = unsafe { sys::ppoll(&mut p, 1, if left < 0 { LOOK_NS } else { left.min(LOOK_NS) }, mask) };
        if r != 0 {
            return if r < 0 { r } else { -(libc::EFAULT as Ret) };
        }
        if deadline != 0 && sys::now_ns() >= deadline {
            return 0;
        }
        inner = e.inner.lock();
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
    signals::held(|| {
        let mut inner = e.inner.lock();
        let mut out = Out { events, max: n.max(0) as usize, n: 0, bad: false };
        for i in 0..n.max(0) as usize {
            // SAFETY: below `n`, just written by the kernel; the write position never passes the read position.
            let Some(ev) = (unsafe { user::read(events.wrapping_add(i)) }) else { break };
            sort(&mut inner, ev, &mut out);
        }
        out.n as c_int
    })
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
