//! poll and select with accelerated sockets among the descriptors.
//!
//! Both become one list of [`Want`]s. If none of them is an attached socket or a candidate, the
//! hook passes the call on untouched.
//!
//! All memory that a call takes is taken before it begins. Where there is none the sockets go back
//! to the kernel, which needs none of ours.

mod select;
mod want;

use crate::channel::{Channel, Peers, Side};
use crate::engines::Engines;
use crate::fast_connect;
use crate::fd_table::{self, Entry};
use crate::heap::Scratch;
use crate::outcome::{Mask, PASS, Ret};
use crate::socket::{Limit, Socket, State};
use crate::wait::looks::{self, Looked};
use crate::{adoption, epoll, io, signals, sleep, stats, sys, trace, user, wait};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::*;
use libc::pollfd;
use netacc_control::stats::{Counter, Reason};
pub(crate) use select::select;
use want::{Waited, Want};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// A call that finds nothing and does not wait asks the carrier at most so often (ticks: some 40
/// µs); one that finds something, or will ask before it sleeps, so often (some 4 ms).
const ASK_TICKS: u64 = 100_000;
const ASK_BUSY_TICKS: u64 = 10_000_000;

/// Finds the attached sockets, and notes the candidates. Sets and inherited sockets that cannot be
/// polled here go back to the kernel.
fn find(fds: &[pollfd], wants: &mut Scratch<'_, Want>, waited: &mut Waited<'_>) {
    for (index, p) in fds.iter().enumerate() {
        if p.fd < 0 {
            continue;
        }
        if let Entry::Socket(s, g) = fd_table::get(p.fd) {
            let _ = adoption::of(s, g, p.fd);
        }
        match fd_table::get(p.fd) {
            Entry::Socket(s, _) if s.is_inherited() && s.is(State::Candidate) => {
                io::need_kernel(p.fd, Reason::InheritedByFork)
            }
            Entry::Socket(s, generation)
                if s.generation16() == generation && (s.is(State::Attached) || is_coming(s)) =>
            {
                let silent = s.is_inherited();
                if silent && s.is(State::Attached) {
                    io::need_kernel(p.fd, Reason::InheritedByFork);
                }
                if let Some(channel) = channel_of(s, waited) {
                    let want = Want {
                        index,
                        socket: s,
                        generation,
                        channel,
                        slot: s.slot.load(Relaxed) as usize,
                        silent,
                        posted: [false; 2],
                    };
                    if !wants.push(want) {
                        // As above.
                        io::need_kernel(p.fd, Reason::NoMemory);
                    }
                }
            }
            Entry::Epoll(e) => epoll::bar(epoll::at(e)),
            _ => {}
        }
    }
}

/// The channel that brings its news. `None`: the kernel has them, and for as long as a candidate is
/// `waited` for that stays so.
fn channel_of(s: &'static Socket, waited: &mut Waited<'_>) -> Option<&'static Channel> {
    if let Some(channel) = attached_to(s) {
        return Some(channel);
    }
    let may_come = is_coming(s) || (s.is(State::Attached) && !s.is_inherited());
    let before = waited.0.len();
    if !may_come || waited.add(s) {
        return None;
    }
    // (Attached at this moment.)
    let channel = attached_to(s);
    if channel.is_some() {
        waited.forget_from(before);
    }
    channel
}

/// Who detaches it takes the channel away first, a moment before it is not attached any more. (Not
/// for ever: this may be a handler on top of that.)
fn attached_to(s: &'static Socket) -> Option<&'static Channel> {
    const TRIES: u32 = 1000;
    // (A forked child may have no channel at all.)
    for _ in 0..if s.is_inherited() { 1 } else { TRIES } {
        let channel = s.channel();
        if !s.is(State::Attached) {
            return None;
        }
        if channel.is_some() {
            return channel;
        }
        sys::sched_yield();
    }
    None
}

fn is_coming(s: &Socket) -> bool {
    match s.state.now() {
        State::Candidate | State::Changing | State::Left | State::Closing => true,
        // Another thread has adopted it since the table was read, which has its heir by now.
        State::Adopted => s.is_inherited(),
        _ => false,
    }
}

/// True when the table knows the descriptor as something that needs a closer look. `waits`: the
/// call may wait.
fn is_ours(fd: c_int, waits: bool) -> bool {
    match fd_table::get(fd) {
        Entry::Socket(s, _) if is_coming(s) => {
            io::on_waited_for(s);
            waits
        }
        Entry::Socket(s, _) => s.is(State::Attached),
        Entry::Epoll(_) => true,
        Entry::Listener(_) => fast_connect::listener_to_use(fd).is_some(),
        _ => false,
    }
}

/// What the application waits for is copied, so that nobody changes or unmaps it meanwhile. So many
/// fit without an allocation.
const FEW: usize = 16;
/// Sockets among them.
const FEW_SOCKETS: usize = 8;

const NOBODY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

pub(crate) unsafe fn poll(fds: *mut pollfd, count: u64, timeout_ns: i64, mask: Mask) -> Ret {
    if count == 0 || count > fd_table::CAPACITY as u64 || fd_table::high_water() == 0 {
        return PASS;
    }
    // SAFETY: the caller's promise.
    signals::held(|| unsafe { poll_held(fds, count, timeout_ns, mask) })
}

unsafe fn poll_held(fds: *mut pollfd, count: u64, timeout_ns: i64, mask: Mask) -> Ret {
    if count == 1
        && mask.is_null()
        // SAFETY: the caller's pollfd.
        && let Some(r) = unsafe { poll_one(fds) }
    {
        return r;
    }
    let count = count as usize;
    let mut few = [NOBODY; FEW];
    let mut ours = false;
    let mut from = 0;
    while from < count && !ours {
        let Some(part) = few.get_mut(..FEW.min(count - from)) else { return PASS };
        // SAFETY: within the caller's array.
        if !unsafe { user::read_into(fds.wrapping_add(from), part) } {
            return PASS;
        }
        ours = part.iter().any(|p| p.fd >= 0 && is_ours(p.fd, timeout_ns != 0));
        from += part.len();
    }
    if !ours {
        return PASS;
    }
    let mut many;
    let list = if count <= FEW {
        few.get_mut(..count).unwrap_or(&mut [])
    } else {
        many = match Scratch::filled(count, NOBODY) {
            Some(list) => list,
            None => {
                // SAFETY: the caller's array.
                let read = |i| unsafe { user::read(fds.wrapping_add(i)) };
                return without_memory((0..count).filter_map(read).map(|p| p.fd));
            }
        };
        // SAFETY: the caller's array.
        if !unsafe { user::read_into(fds, &mut many) } {
            return PASS;
        }
        &mut *many
    };
    if !user::is_mask(mask) {
        return -(libc::EFAULT as Ret);
    }
    let r = match poll_list(list, timeout_ns, mask) {
        Ok(PASS) => return PASS,
        Ok(r) => r,
        Err(NoMemory) => return without_memory(list.iter().map(|p| p.fd)),
    };
    for (i, p) in list.iter().enumerate() {
        // SAFETY: within the caller's array.
        if !unsafe { user::write(&raw mut (*fds.wrapping_add(i)).revents, p.revents) } {
            return -(libc::EFAULT as Ret);
        }
    }
    r
}

/// The usual poll: of one connection, which has what is waited for. `None`: anything else.
///
/// Budget: no allocation, no system call.
unsafe fn poll_one(at: *mut pollfd) -> Option<Ret> {
    // SAFETY: the caller's pollfd, field by field, as it has probably just been stored (see
    // `user`).
    let (fd, events) =
        unsafe { (user::read(&raw const (*at).fd)?, user::read(&raw const (*at).events)?) };
    if fd < 0 {
        return None;
    }
    let Entry::Socket(s, generation) = fd_table::get(fd) else { return None };
    if !s.is(State::Attached) || s.generation16() != generation || s.is_inherited() {
        return None;
    }
    let channel = s.channel().filter(|c| !c.far.id().traits().polled)?;
    let w = Want {
        index: 0,
        socket: s,
        generation,
        channel,
        slot: s.slot.load(Relaxed) as usize,
        silent: false,
        posted: [false; 2],
    };
    let (now, ask) = w.look(events);
    if now == 0 || ask || !io::carrier_was_asked(s, ASK_BUSY_TICKS) {
        return None;
    }
    // SAFETY: as above.
    if unsafe { user::write(&raw mut (*at).revents, now) } { Some(1) } else { None }
}

/// There is no memory for a call.
struct NoMemory;

/// What is polled goes back to the kernel, and the call with it. What cannot go at once (its peer
/// does not answer) is an error that the kernel knows of this call, too.
#[cold]
#[inline(never)]
fn without_memory(fds: impl Iterator<Item = c_int>) -> Ret {
    let mut r = PASS;
    for fd in fds {
        match fd_table::get(fd) {
            Entry::Socket(s, g) if !io::to_kernel(s, g, fd, Reason::NoMemory, false) => {
                r = -(libc::ENOMEM as Ret)
            }
            Entry::Epoll(e) => epoll::bar(epoll::at(e)),
            _ => {}
        }
    }
    r
}

/// A listener that is polled, and that gives out parked connections.
#[derive(Clone, Copy)]
struct Beside {
    /// Which of the descriptors it is.
    at: usize,
    listener: &'static fast_connect::Listener,
    serial: u32,
}

impl Beside {
    fn is_there(&self, fds: &[pollfd]) -> bool {
        fds.get(self.at).is_some_and(|p| self.listener.is(p.fd, self.serial))
    }
}

/// As [`poll_connections`], with listeners that give out parked connections: beside each stands
/// what is readable while it has some.
fn poll_list(fds: &mut [pollfd], timeout_ns: i64, mask: Mask) -> Result<Ret, NoMemory> {
    let beside = |p: &pollfd| fast_connect::listener(p.fd).filter(|_| p.events & IN != 0);
    let count = fds.iter().filter(|p| beside(p).is_some()).count();
    if count == 0 {
        return poll_connections(fds, timeout_ns, mask);
    }
    let mut few = [MaybeUninit::uninit(); FEW];
    let mut all = Scratch::<pollfd>::within(&mut few, fds.len() + count).ok_or(NoMemory)?;
    for p in fds.iter() {
        let _ = all.push(*p);
    }
    // (One may be closed meanwhile, and its entry another one's.)
    let mut few = [MaybeUninit::uninit(); FEW];
    let mut listeners = Scratch::<Beside>::within(&mut few, count).ok_or(NoMemory)?;
    for (at, p) in fds.iter().enumerate() {
        if let Some(l) = beside(p).filter(|_| listeners.len() < count) {
            let _ = listeners.push(Beside { at, listener: l, serial: l.serial() });
            let _ = all.push(pollfd { fd: l.gather(), events: libc::POLLIN, revents: 0 });
        }
    }
    let deadline =
        if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    let mut left = timeout_ns;
    loop {
        for b in listeners.iter().filter(|b| b.is_there(fds)) {
            io::waits_elsewhere(b.listener);
            b.listener.waits(b.serial);
        }
        let mut r = poll_connections(&mut all, left, mask);
        if let Ok(PASS) = r {
            // SAFETY: a buffer of that many pollfds; the caller's mask.
            r = Ok(unsafe { sleep::ppoll(all.as_mut_ptr(), all.len(), left, mask) });
        }
        // (One that waits for other things as well is a loop of events.)
        listeners.iter().for_each(|b| b.listener.waited(b.serial, fds.len() > count));
        let r = r?;
        if r < 0 {
            return Ok(r);
        }
        let (these, gathers) = all.split_at(fds.len().min(all.len()));
        fds.iter_mut().zip(these).for_each(|(p, a)| p.revents = a.revents);
        for (b, gather) in listeners.iter().zip(gathers) {
            // (A doorbell can come late: who accepts behind a vain one would wait.)
            let rung = gather.revents & libc::POLLIN != 0 && b.is_there(fds);
            if rung
                && b.listener.has_to_give(true, io::is_taken).is_some()
                && let Some(p) = fds.get_mut(b.at)
            {
                p.revents |= p.events & IN;
            }
        }
        let found = fds.iter().filter(|p| p.revents != 0).count() as Ret;
        left = wait::left(deadline);
        if found > 0 || r == 0 || (deadline != 0 && left == 0) {
            return Ok(found);
        }
    }
}

/// `PASS`: nothing of ours after all. Nothing has been done where there is no memory.
fn poll_connections(fds: &mut [pollfd], timeout_ns: i64, mask: Mask) -> Result<Ret, NoMemory> {
    let sockets = fds
        .iter()
        .filter(|p| p.fd >= 0 && matches!(fd_table::get(p.fd), Entry::Socket(..)))
        .count();
    let (mut few_wants, mut few_waited, mut few) = (
        [MaybeUninit::uninit(); FEW_SOCKETS],
        [MaybeUninit::uninit(); FEW_SOCKETS],
        [MaybeUninit::uninit(); FEW + 1],
    );
    let mut wants = Scratch::within(&mut few_wants, sockets).ok_or(NoMemory)?;
    let mut waited = Waited(Scratch::within(&mut few_waited, sockets).ok_or(NoMemory)?);
    let mut kernel = Scratch::<pollfd>::within(&mut few, fds.len() + 1).ok_or(NoMemory)?;
    find(fds, &mut wants, &mut waited);
    if wants.is_empty() {
        if waited.0.is_empty() {
            return Ok(PASS);
        }
        let limit = least(waited.0.iter().map(|(s, _)| *s));
        return Ok(by_kernel(fds, timeout_ns, mask, limit));
    }
    let deadline =
        if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    let mut polled = false;
    loop {
        if !wants.iter().all(Want::is_current) {
            // Taken back, and perhaps attached again: its news comes from elsewhere.
            wants.truncate(0);
            waited.forget_from(0);
            find(fds, &mut wants, &mut waited);
            if wants.is_empty() {
                let limit = least(waited.0.iter().map(|(s, _)| *s));
                return Ok(by_kernel(fds, wait::left(deadline), mask, limit));
            }
        }
        let engines = Engines::of(wants.iter().map(|w| w.channel));
        engines.poll();
        let found = look_all(fds, &wants, &mut kernel, timeout_ns == 0);
        if found != 0 || timeout_ns == 0 {
            return Ok(found);
        }
        if !polled && mask.is_null() && wants.len() == fds.len() {
            polled = true;
            let peers = Peers::of(wants.iter().map(|w| w.channel));
            if wait::spin(peers, limit_of(&wants), || {
                engines.poll();
                wants.iter().any(|w| has_news(fds, w) || !w.is_current())
            }) {
                continue;
            }
        }
        let r = sleep(fds, &mut wants, &mut kernel, deadline, mask);
        if r != 0 {
            return Ok(r);
        }
        if deadline != 0 && sys::now_ns() >= deadline {
            return Ok(look_all(fds, &wants, &mut kernel, true));
        }
    }
}

fn has_news(fds: &[pollfd], w: &Want) -> bool {
    fds.get(w.index).is_some_and(|p| w.look_for_ends(p.events).0 != 0)
}

/// For how long a wait for them may poll by rules: as the one that may be polled for least.
fn least(sockets: impl Iterator<Item = &'static Socket>) -> Limit {
    sockets.map(|s| s.ruled.limit()).reduce(Limit::or).unwrap_or_default()
}

fn limit_of(wants: &[Want]) -> Limit {
    least(wants.iter().map(|w| w.socket))
}

/// The kernel's own poll, for candidates. Where its thread has shown that this pays, it looks
/// before it sleeps.
fn by_kernel(fds: &mut [pollfd], mut timeout_ns: i64, mask: Mask, limit: Limit) -> Ret {
    let (list, count) = (fds.as_mut_ptr(), fds.len());
    let mut numbers = [-1; looks::NUMBERS];
    // Of many a look costs much, and is never alone.
    let numbers = numbers.get_mut(..count).filter(|_| mask.is_null());
    let named = numbers.and_then(|numbers| {
        numbers.iter_mut().zip(fds.iter()).for_each(|(n, p)| *n = p.fd);
        let first = numbers.iter().copied().find(|n| *n >= 0)?;
        Some((&*numbers, looks::habit(first)))
    });
    if let Some((numbers, habit)) = named.filter(|(_, h)| h.looks(timeout_ns)) {
        let began = sys::now_ns();
        let mut r = 0;
        let looked = habit.look(limit, numbers, || {
            // SAFETY: the caller's array.
            r = unsafe { sleep::ppoll(list, count, 0, core::ptr::null()) };
            r != 0
        });
        match looked {
            Looked::Signal => return -(libc::EINTR as Ret),
            Looked::Nothing if timeout_ns > 0 => {
                let took = sys::now_ns().wrapping_sub(began) as i64;
                timeout_ns = timeout_ns.saturating_sub(took).max(1);
            }
            Looked::Nothing => {}
            _ => return r,
        }
    }
    let asleep = named.map(|(_, habit)| habit.sleep());
    // SAFETY: the caller's array, and its mask.
    let r = unsafe { sleep::ppoll(list, count, timeout_ns, mask) };
    if let Some(asleep) = asleep {
        asleep.over_of(r > 0, limit);
    }
    r
}

/// Fills every `revents`; asks the kernel for what is its. `returns`: the call ends with what is
/// found. Returns how many are ready, or `-errno`.
fn look_all(
    fds: &mut [pollfd],
    wants: &[Want],
    kernel: &mut Scratch<'_, pollfd>,
    returns: bool,
) -> Ret {
    kernel.copy_from(fds);
    let mut need_kernel = wants.len() < fds.len();
    for w in wants {
        let (Some(p), Some(k)) = (fds.get_mut(w.index), kernel.get_mut(w.index)) else { continue };
        let (now, ask) = w.look_for_ends(p.events);
        p.revents = now;
        if ask || io::carrier_is_due(w.socket, if returns { ASK_TICKS } else { ASK_BUSY_TICKS }) {
            need_kernel = true;
            k.events = p.events | libc::POLLRDHUP;
        } else {
            k.fd = -1;
        }
    }
    if need_kernel {
        // SAFETY: a buffer of that many pollfds.
        let r = unsafe { sleep::ppoll(kernel.as_mut_ptr(), kernel.len(), 0, core::ptr::null()) };
        if r < 0 {
            return r;
        }
    }
    let mut mine = wants.iter().peekable();
    let mut ready = 0;
    for (i, (p, k)) in fds.iter_mut().zip(kernel.iter()).enumerate() {
        if let Some(w) = mine.next_if(|w| w.index == i) {
            if k.fd >= 0 && need_kernel {
                p.revents |= w.translate(k.fd, k.revents, p.events);
            }
        } else {
            p.revents = if need_kernel { k.revents } else { 0 };
        }
        if p.revents != 0 {
            ready += 1;
        }
    }
    ready
}

/// Sleeps until anything may have changed. 0: look again; otherwise `-errno`.
fn sleep(
    fds: &[pollfd],
    wants: &mut [Want],
    kernel: &mut Scratch<'_, pollfd>,
    deadline: u64,
    mask: Mask,
) -> Ret {
    let place = wait::claim_for_thread();
    let mut all_posted = place.is_some();
    if let Some(p) = place {
        for w in wants.iter_mut() {
            let events = fds.get(w.index).map_or(0, |p| p.events);
            let introduced = !w.silent && wait::introduce(w.channel, p, wait::gather(p), 0);
            for (side, bits, posted) in [(Side::Receive, IN, 0), (Side::Send, OUT, 1)] {
                if events & bits != 0 {
                    let ok = introduced && wait::post(w.socket, w.channel, w.slot, side, p);
                    if let Some(flag) = w.posted.get_mut(posted) {
                        *flag = ok;
                    }
                    all_posted &= ok;
                }
            }
            if !w.silent {
                w.channel.my_place(p).prepare_sleep();
            }
        }
        Engines::of(wants.iter().map(|w| w.channel)).before_sleep();
    }
    let missed = wants.iter().any(|w| {
        let has_room = |p: &pollfd| {
            p.events & OUT != 0
                && w.socket.published.sends_fast()
                && wait::send_room_or_ask(w.socket, w.channel, w.slot, w.socket.room_bytes())
        };
        // (Who took it back before this thread was posted has woken nobody.)
        fds.get(w.index).is_some_and(has_room) || has_news(fds, w) || !w.is_current()
    });
    let mut r = 0;
    if !missed {
        kernel.copy_from(fds);
        for w in wants.iter() {
            if let (Some(k), Some(p)) = (kernel.get_mut(w.index), fds.get(w.index)) {
                k.events = w.carrier_events(p.events);
            }
        }
        kernel.push(pollfd {
            fd: place.map_or(-1, wait::gather),
            events: libc::POLLIN,
            revents: 0,
        });
        let left = wait::left(deadline);
        // Where a doorbell could not be had the list is looked at once a millisecond.
        let left = if all_posted {
            left
        } else if left < 0 {
            1_000_000
        } else {
            left.min(1_000_000)
        };
        stats::count(Counter::Sleeps);
        let many = fds.len() as u64 & u64::from(u32::MAX);
        trace::process(trace::Event::SleepInPoll, many);
        let began = sys::ticks();
        // SAFETY: a buffer of that many pollfds; the caller's mask.
        r = unsafe { sleep::ppoll(kernel.as_mut_ptr(), kernel.len(), left, mask) };
        wait::slept(limit_of(wants), began, r > 0);
        trace::process(trace::Event::WakeInPoll, many | (r.max(0) as u64) << 32);
        for w in wants.iter() {
            if let (Some(k), Some(p)) = (kernel.get(w.index), fds.get(w.index)) {
                let _ = w.translate(k.fd, k.revents, p.events);
            }
        }
        if kernel.last().is_some_and(|k| k.revents != 0)
            && let Some(p) = place
        {
            wait::silence(p);
        }
    }
    if let Some(p) = place {
        for w in wants.iter_mut() {
            if !w.silent {
                w.channel.my_place(p).cancel_sleep();
            }
            for (side, posted) in [(Side::Receive, 0), (Side::Send, 1)] {
                if let Some(flag) = w.posted.get_mut(posted).filter(|f| **f) {
                    *flag = false;
                    wait::unpost(w.socket, w.channel, w.slot, side, p);
                }
            }
        }
        wait::give_back(p);
    }
    if r < 0 { r } else { 0 }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]
mod tests;
