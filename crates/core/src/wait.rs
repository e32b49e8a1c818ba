//! Waiting: poll a little while that pays, then sleep in the kernel at no cost.
//!
//! A *waiting place* is where a thread sleeps: an epoll set that hears its doorbells
//! ([`channel::wake`]; one for each channel, and one of this process's own), and in every channel a
//! [`netacc_ring::ReadySet`] whose flag says that its owner sleeps. An epoll instance keeps one for
//! its life; a thread that blocks in recv, send, poll or select borrows one from the process's pool
//! while it sleeps.
//!
//! `docs/design/waiting.md` has the policy of polling and its measurements.

pub(crate) mod looks;
mod spin;

use crate::channel::{Channel, PLACES, Side, announce, producer_quiet, quiet};
use crate::life_word::has_closed;
use crate::socket::{Socket, State, flag};
use crate::trace::Event;
use crate::{channel, control, engines, fd_words, numbers, process, sleep, stats, sys};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use libc::{epoll_event, pollfd};
use netacc_control::stats::{Counter, Reason};
use netacc_ring::sleepers::{self, THREAD_PLACES};
#[cfg(test)]
pub(crate) use spin::ALONE;
pub(crate) use spin::{slept, spin};

struct WaitingPlace {
    taken: AtomicU32,
    /// A thread's place: the epoll descriptor that gathers its doorbells. (An epoll instance
    /// gathers its own.)
    gather: AtomicI32,
    /// The doorbell that threads of this process ring.
    own: AtomicI32,
}

static POOL: [WaitingPlace; PLACES] = [const {
    WaitingPlace { taken: AtomicU32::new(0), gather: AtomicI32::new(-1), own: AtomicI32::new(-1) }
}; PLACES];

/// Adds a doorbell to an epoll set, under `data`; it may be there already.
fn listen(set: i32, doorbell: i32, data: u64) -> bool {
    if crate::inject::call().is_some() {
        return false;
    }
    let mut ev = epoll_event { events: channel::DOORBELL_EVENTS, u64: data };
    // SAFETY: one valid event.
    let r = unsafe { sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, doorbell, &mut ev) };
    r >= 0 || r == -(libc::EEXIST as isize)
}

/// The set hears the next packet that comes, or one that nobody has taken yet; no other. (So who
/// does not sleep is not told of each.)
fn hear_packet(set: i32, packets: i32, data: u64) -> bool {
    let events = libc::EPOLLIN | libc::EPOLLET | libc::EPOLLONESHOT;
    let mut ev = epoll_event { events: events as u32, u64: data };
    // SAFETY: one valid event.
    let mut call = |op| unsafe { sys::epoll_ctl(set, op, packets, &mut ev) };
    let r = call(libc::EPOLL_CTL_MOD);
    r >= 0 || (r == -(libc::ENOENT as isize) && call(libc::EPOLL_CTL_ADD) >= 0)
}

/// A thread is about to sleep in a set that has joined these channels, or others sleep there on:
/// what comes for one of them wakes it, if nobody has to tell.
pub(crate) fn hear_packets<'a>(set: i32, channels: impl Iterator<Item = &'a Channel>, data: u64) {
    for packets in channels.map(|c| c.far.packets()).filter(|fd| *fd >= 0) {
        let _ = hear_packet(set, packets, data);
    }
}

fn claim(range: core::ops::Range<usize>) -> Option<usize> {
    let base = range.start;
    let free = |p: &WaitingPlace| {
        p.taken.load(Relaxed) == 0 && p.taken.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    };
    POOL.get(range)?.iter().position(free).map(|i| base + i)
}

/// Borrows a waiting place for a thread. `None`: all taken, or no descriptors for it.
pub(crate) fn claim_for_thread() -> Option<usize> {
    let i = claim(0..THREAD_PLACES)?;
    let p = POOL.get(i)?;
    if p.gather.load(Acquire) < 0 {
        let set = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
        let own = channel::new_doorbell();
        if set < 0 || own < 0 || !listen(set, own, 0) {
            for fd in [set, own] {
                if fd >= 0 {
                    fd_words::close_internal(fd);
                }
            }
            p.taken.store(0, Release);
            return None;
        }
        p.own.store(own, Release);
        p.gather.store(set, Release);
        silence(i);
    }
    Some(i)
}

/// Takes a waiting place for the epoll instance `set`, whose doorbells come with `data`.
pub(crate) fn claim_for_epoll(set: i32, data: u64) -> Result<usize, Reason> {
    let i = claim(THREAD_PLACES..PLACES).ok_or(Reason::SeveralEpollSets)?;
    let p = POOL.get(i).ok_or(Reason::SeveralEpollSets)?;
    if p.own.load(Acquire) < 0 {
        p.own.store(channel::new_doorbell(), Release);
    }
    if p.own.load(Acquire) < 0 || !listen(set, p.own.load(Acquire), data) {
        p.taken.store(0, Release);
        return Err(Reason::NoDescriptor);
    }
    Ok(i)
}

/// Gives a place back; its doorbells are kept for the next.
pub(crate) fn give_back(place: usize) {
    if let Some(p) = POOL.get(place) {
        p.taken.store(0, Release);
    }
}

/// What a thread polls to hear the doorbells of its place.
pub(crate) fn gather(place: usize) -> i32 {
    POOL.get(place).map_or(-1, |p| p.gather.load(Acquire))
}

/// Takes note of the doorbells of a thread's place that were signalled.
pub(crate) fn silence(place: usize) {
    let mut heard = [epoll_event { events: 0, u64: 0 }; 16];
    loop {
        // SAFETY: a buffer of that many events; does not wait.
        let n = unsafe {
            sleep::epoll_wait(gather(place), heard.as_mut_ptr(), 16, 0, core::ptr::null())
        };
        heard.iter().take(n.max(0) as usize).for_each(|ev| engines::hear_failure(ev.events));
        if n != 16 {
            return;
        }
    }
}

/// Takes the doorbells of an epoll instance's place out of its kernel set.
pub(crate) fn leave_set(place: usize, set: i32, channels: &[&'static Channel]) {
    let own = POOL.get(place).map_or(-1, |p| p.own.load(Acquire));
    let doorbells = channels.iter().filter_map(|c| c.own_doorbells.get(place));
    let doorbells = doorbells.map(|word| word.load(Acquire));
    let packets = channels.iter().map(|c| c.far.packets());
    for fd in core::iter::once(own).chain(doorbells).chain(packets) {
        if fd >= 0 {
            let mut ev = epoll_event { events: 0, u64: 0 };
            // SAFETY: one valid event.
            let _ = unsafe { sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, &mut ev) };
        }
    }
}

/// Channels that have died.
static DEATHS: AtomicU32 = AtomicU32::new(0);

/// Changes when a channel dies: who has joined it looks whether to leave it.
#[inline]
pub(crate) fn deaths() -> u32 {
    DEATHS.load(Acquire)
}

/// `channel` has just been marked dead: wakes our epoll instances, which may keep it for nothing,
/// and our threads, whose doorbells the peer may never have got.
pub(crate) fn channel_died(channel: &Channel) {
    DEATHS.fetch_add(1, AcqRel);
    sleepers::ring_for_the_dead(channel.own_doorbells.iter(), wake_own);
}

/// Rings a place of this process.
pub(crate) fn wake_own(place: usize) {
    let fd = POOL.get(place).map_or(-1, |p| p.own.load(Acquire));
    if fd >= 0 {
        channel::wake(fd);
    }
}

/// Makes sure that the peer of `channel` has (or is about to get) a doorbell of our place that is
/// heard in `set` (with `data`).
pub(crate) fn introduce(channel: &Channel, place: usize, set: i32, data: u64) -> bool {
    let Some(word) = channel.own_doorbells.get(place) else { return false };
    let packets = channel.far.packets();
    if packets >= 0 && !hear_packet(set, packets, data) {
        return false;
    }
    let known = word.load(Acquire);
    if known >= 0 {
        // A thread's set has it since it was made; an epoll instance may be the place's next. (Of a
        // link that has ended for want of descriptors at the peer's end nobody knows whether it had
        // passed this one.)
        return if place < THREAD_PLACES {
            channel.dead.load(Acquire) == 0
        } else {
            listen(set, known, data)
        };
    }
    let fd = channel::new_doorbell();
    if fd < 0 {
        return false;
    }
    // (An engine, which is of this process, rings it where it stands.)
    if !listen(set, fd, data)
        || (channel.far.is_shared() && !control::send_place(channel, place, fd))
    {
        fd_words::close_internal(fd);
        return false;
    }
    // As above: whoever ended the link meanwhile ([`channel_died`]) may have looked before.
    sleepers::hand_over(word, fd, &channel.dead) || place >= THREAD_PLACES
}

/// The process has forked, and a child has `s`, too: who sleeps for room in its ring looks again,
/// and from here on now and then ([`CHILDREN_NS`]). (Who sleeps for bytes hears the carrier in any
/// case.)
pub(crate) fn after_fork_in_parent(s: &Socket) {
    let [_, sender] = s.published.posted.awaited().threads;
    if let Some(place) = sender.checked_sub(1) {
        wake_own(place as usize);
    }
}

/// The parent's doorbells are the parent's.
pub(crate) fn after_fork_in_child() {
    looks::after_fork_in_child();
    for p in &POOL {
        p.taken.store(0, Relaxed);
        for fd in [&p.gather, &p.own] {
            let fd = fd.swap(-1, AcqRel);
            if fd >= 0 {
                fd_words::close_internal(fd);
            }
        }
    }
}

// ---- blocking calls -----------------------------------------------------------------------------

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woke {
    /// Look again: there may be news.
    News,
    /// The deadline passed.
    Timeout,
    /// A signal handler ran.
    Signal,
}

/// Nanoseconds left until `deadline` (0: none, wait for ever) as the kernel takes them.
pub(crate) fn left(deadline: u64) -> i64 {
    if deadline == 0 {
        -1
    } else {
        deadline.saturating_sub(sys::now_ns()).min(i64::MAX as u64) as i64
    }
}

/// The NOTIFY word of the direction, by which the peer knows whom to wake.
fn notify_word(channel: &Channel, slot: usize, side: Side) -> &AtomicU64 {
    match side {
        Side::Receive => &channel.words(slot, channel.side ^ 1).quiet[quiet::NOTIFY],
        Side::Send => &channel.words(slot, channel.side).producer_quiet[producer_quiet::NOTIFY],
    }
}

/// Puts a thread's place into the NOTIFY word; false when another thread's stands there.
pub(crate) fn post(s: &Socket, channel: &Channel, slot: usize, side: Side, place: usize) -> bool {
    let is_ours = || {
        s.channel().is_some_and(|now| core::ptr::eq(now, channel))
            && s.slot.load(Relaxed) as usize == slot
    };
    s.published.posted.post_thread(
        side,
        place as u32 + 1,
        notify_word(channel, slot, side),
        is_ours,
    )
}

/// Takes it out again.
pub(crate) fn unpost(s: &Socket, channel: &Channel, slot: usize, side: Side, place: usize) {
    s.published.posted.unpost_thread(side, place as u32 + 1, notify_word(channel, slot, side));
}

/// Wakes the threads of this process that block on `s`, or wait in its epoll set: something changed
/// that no peer will announce.
pub(crate) fn prod(s: &Socket) {
    if let Some(channel) = s.channel() {
        prod_on(s, channel, s.slot.load(Relaxed) as usize);
    }
}

/// As [`prod`], of a socket that has, or just had, this slot.
pub(crate) fn prod_on(s: &Socket, channel: &Channel, slot: usize) {
    let awaited = s.published.posted.awaited();
    for place in awaited.threads.iter().filter_map(|place| place.checked_sub(1)) {
        wake_own(place as usize);
    }
    // A forked child has no doorbell: what it announced nobody would be woken for, neither by it
    // nor by the peer, who would find it announced. (Signalled is the place's own, which no peer
    // holds.)
    for set in awaited.sets.iter().filter_map(|place| place.checked_sub(1)) {
        let set = set as usize;
        let doorbell = channel.own_doorbells.get(set).map_or(-1, |d| d.load(Acquire));
        if doorbell >= 0 && channel.my_place(set).announce_fenced(slot as u16) {
            wake_own(set);
        }
    }
}

/// Is there anything to receive from the ring, or, for a receiver that stands there, another
/// announcement than the one that was followed? (On the carrier an announcement brings nothing
/// before the carrier does.) No lock is taken.
#[inline(always)]
pub(crate) fn receive_news(s: &Socket, channel: &Channel, slot: usize) -> bool {
    let w = channel.words(slot, channel.side ^ 1);
    let ack = s.published.ack.load(Relaxed);
    let left = || {
        ack & 1 != 0
            && w.producer_user[announce::EPOCH].load(Acquire) as u32 != ack as u32
            && !s.published.is_doubted(w)
    };
    s.published.ring_says(w, &s.rx_offset).0 || left() || (channel.peer_ends(slot) && has_closed(s))
}

/// Is half of the ring that we produce into free?
#[inline(always)]
pub(crate) fn send_room(s: &Socket, channel: &Channel, slot: usize, ring_bytes: u64) -> bool {
    channel.words(slot, channel.side).has_room(s.published.tail.load(Relaxed), ring_bytes)
}

/// As [`send_room`]; if there is none, the consumer is asked to tell when there is. Every look that
/// precedes a sleep asks.
#[inline]
pub(crate) fn send_room_or_ask(
    s: &Socket,
    channel: &Channel,
    slot: usize,
    ring_bytes: u64,
) -> bool {
    let words = channel.words(slot, channel.side);
    let tail = || s.published.tail.load(Relaxed);
    words.has_room(tail(), ring_bytes) || {
        on_full(s);
        words.has_room_or_ask(tail, ring_bytes)
    }
}

/// Somebody has found no room in the ring, and asks to be told of it: when there is some that is
/// news to whoever waits for it. (Said first: the answer must not overtake it.)
#[cold]
pub(crate) fn on_full(s: &Socket) {
    s.full.fetch_add(1, SeqCst);
}

/// Blocks until there may be news for `side`, polling first. `deadline` 0: for ever. The caller
/// holds no lock.
pub(crate) fn block(s: &Socket, fd: i32, side: Side, on_carrier: bool, deadline: u64) -> Woke {
    let Some(channel) = s.channel() else { return Woke::News };
    let slot = s.slot.load(Relaxed) as usize;
    let ring_bytes = s.room_bytes();
    // Besides news, whatever `prod` is called for: it may come between the caller's look and the
    // sleep.
    let ready = || {
        engines::poll_for(channel, slot);
        !s.is(State::Attached)
            || match side {
                // Where the stream is on the carrier, the kernel is asked for the carrier's news by
                // the sleep itself.
                Side::Receive => {
                    receive_news(s, channel, slot) || (!on_carrier && s.has(flag::CARRIER_SPOKE))
                }
                Side::Send => {
                    send_room(s, channel, slot, ring_bytes)
                        || !s.published.sends_fast()
                        || s.has(flag::SHUT_WR)
                }
            }
    };
    if !on_carrier {
        channel.note_cpu();
        if spin(channel.peers(), s.ruled.limit(), ready) {
            return Woke::News;
        }
    }
    sleep(&Sleeper { s, channel, slot, fd, side, on_carrier, deadline }, ready)
}

/// How often a sleeper looks whose connection a forked child has, too.
const CHILDREN_NS: i64 = 20_000_000;

/// Who sleeps, and what for: the parameters of [`block`], and where the socket's slot is.
struct Sleeper<'a> {
    s: &'a Socket,
    channel: &'a Channel,
    slot: usize,
    fd: i32,
    side: Side,
    on_carrier: bool,
    deadline: u64,
}

fn sleep(sleeper: &Sleeper<'_>, mut ready: impl FnMut() -> bool) -> Woke {
    let &Sleeper { s, channel, slot, fd, side, on_carrier, deadline } = sleeper;
    let timeout = left(deadline);
    if deadline != 0 && timeout == 0 {
        return Woke::Timeout;
    }
    let events = match (side, on_carrier) {
        (Side::Send, true) => libc::POLLOUT,
        // (Of a peer that is half closed it is known. What ends it then rings.)
        (Side::Send, false) if channel.peer_half_closed(slot) => 0,
        (Side::Send, false) => libc::POLLRDHUP,
        (Side::Receive, _) => libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI,
    };
    let place = claim_for_thread();
    let posted = place
        .is_some_and(|p| introduce(channel, p, gather(p), 0) && post(s, channel, slot, side, p));
    let mut fds = [
        pollfd { fd, events, revents: 0 },
        pollfd { fd: place.map_or(-1, gather), events: libc::POLLIN, revents: 0 },
    ];
    let mut woke = Woke::News;
    let mut missed = false;
    if let Some(p) = place.filter(|_| posted) {
        channel.my_place(p).prepare_sleep();
        engines::before_sleep_for(channel, slot);
        let room = || side == Side::Send && send_room_or_ask(s, channel, slot, s.room_bytes());
        missed = (side == Side::Receive || !on_carrier) && (ready() || room());
    }
    if !missed {
        // Without a place of its own (a second thread on the same end, or 128 sleepers) the thread
        // looks once a millisecond. A child that the process has forked since may change the paths,
        // and has no way to wake it. (Not where it calls its parent.)
        let limit = if posted
            && (!s.path().children_follow() || s.forks.load(Relaxed) == process::forks())
        {
            timeout
        } else if posted {
            if timeout < 0 { CHILDREN_NS } else { timeout.min(CHILDREN_NS) }
        } else if timeout < 0 {
            1_000_000
        } else {
            timeout.min(1_000_000)
        };
        stats::count(Counter::Sleeps);
        s.trace(Event::Sleep, side as u64);
        let began = sys::ticks();
        // SAFETY: two valid pollfds; no mask.
        let r = unsafe { sleep::ppoll(fds.as_mut_ptr(), 2, limit, core::ptr::null()) };
        slept(s.ruled.limit(), began, r > 0);
        if r == -(libc::EINTR as isize) {
            woke = Woke::Signal;
        } else if r == 0 && posted && limit == timeout {
            woke = Woke::Timeout;
        }
        s.trace(Event::Wake, side as u64 | (woke as u64) << 8);
    }
    if let Some(p) = place {
        if posted {
            channel.my_place(p).cancel_sleep();
            unpost(s, channel, slot, side, p);
            if fds[1].revents != 0 {
                silence(p);
                stats::count(Counter::Wakeups);
            }
        }
        give_back(p);
    }
    // Data (or room) is news only where the stream is in the ring.
    let expected = if on_carrier { libc::POLLIN | libc::POLLOUT } else { 0 };
    if fds[0].revents & !expected != 0 {
        s.raise(flag::CARRIER_SPOKE);
    }
    woke
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn one_packet_is_heard_and_the_next_when_somebody_sleeps_again() {
        let set = sys::epoll_create1(libc::EPOLL_CLOEXEC) as i32;
        let packets = sys::eventfd(0, libc::EFD_CLOEXEC) as i32;
        let heard = || {
            let mut ev = [epoll_event { events: 0, u64: 0 }; 2];
            // SAFETY: a buffer of that many events.
            unsafe { sleep::epoll_wait(set, ev.as_mut_ptr(), 2, 0, core::ptr::null()) }
        };
        let comes = || assert_eq!(sys::write(packets, &1u64.to_ne_bytes()), 8);
        assert!(hear_packet(set, packets, 7));
        assert_eq!(heard(), 0);
        comes();
        assert_eq!(heard(), 1);
        comes();
        assert_eq!(heard(), 0, "nobody sleeps");
        assert!(hear_packet(set, packets, 7));
        assert_eq!(heard(), 1, "it came before the sleep, and nobody has taken it");
        sys::close(packets);
        sys::close(set);
    }
}
