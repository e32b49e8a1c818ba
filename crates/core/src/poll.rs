//! poll and select with accelerated sockets among the descriptors.
//!
//! Both become one list of [`Want`]s. If none of them is an attached socket, the hook passes the
//! call on untouched.
//!
//! All memory that a call takes is taken before it begins. Where there is none the sockets go back
//! to the kernel, which needs none of ours.

use crate::channel::{Channel, Peers, Side};
use crate::fd_table::{self, Entry};
use crate::heap::Scratch;
use crate::outcome::{Mask, PASS, Ret};
use crate::socket::{self, Socket, State, flag};
use crate::{adoption, epoll, io, queues, signals, sleep, stats, sys, user, wait};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::fence;
use libc::{fd_set, pollfd};
use netacc_control::stats::{Counter, Reason};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// A call that finds nothing and does not wait asks the carrier at most so often (ticks: some 40
/// µs); one that finds something, or will ask before it sleeps, so often (some 4 ms).
const ASK_TICKS: u64 = 100_000;
const ASK_BUSY_TICKS: u64 = 10_000_000;

/// An attached socket among the polled descriptors.
#[derive(Clone, Copy)]
struct Want {
    index: usize,
    socket: &'static Socket,
    generation: u16,
    channel: &'static Channel,
    slot: usize,
    /// The peer cannot tell this process of its news: a child that inherited it, and in whose hands
    /// bytes were left in the ring.
    silent: bool,
    posted: [bool; 2],
}

impl Want {
    /// What can be said of it from the shared words, and whether the carrier has to be asked as
    /// well.
    fn look(&self, events: i16) -> (i16, bool) {
        let mut now = 0;
        let rx = self.channel.words(self.slot, self.channel.side ^ 1);
        let (readable, mut ask) = self.socket.published.ring_says(rx, &self.socket.rx_offset);
        ask |= self.socket.has(flag::CARRIER_SPOKE | flag::FIN_LATER | flag::RESET)
            || self.channel.peer_ends(self.slot);
        if readable {
            now |= events & IN;
        }
        if !self.socket.published.sends_fast() {
            ask = true;
        } else if wait::send_room(self.socket, self.channel, self.slot, self.socket.tx_ring_bytes())
        {
            now |= events & OUT;
        }
        (now, ask)
    }

    /// What a thread that sleeps has to hear of the carrier: nothing that it says all the time.
    fn carrier_events(&self, events: i16) -> i16 {
        let fast = self.socket.published.sends_fast();
        let no_room_there = fast || !io::may_send_on_carrier(self.socket);
        // Who waits for room in a ring that nobody empties any more has to hear that.
        let end = events & IN != 0
            || (events & OUT != 0 && fast && self.hears_end())
            || self.socket.has(flag::FIN_LATER);
        (events & !(if no_room_there { OUT } else { 0 })) | if end { libc::POLLRDHUP } else { 0 }
    }

    /// Whether POLLRDHUP says that what is sent has nobody to receive it.
    fn hears_end(&self) -> bool {
        !self.socket.has(flag::SHUT_RD) && !self.channel.peer_half_closed(self.slot)
    }

    /// Whether room on the carrier, of which `said` is known, is room for the application's bytes.
    fn sends_there(&self, said: i16) -> bool {
        let end =
            if self.hears_end() { libc::POLLRDHUP } else { 0 } | libc::POLLHUP | libc::POLLERR;
        // Behind the peer's end the next send goes there.
        if self.socket.published.sends_fast() {
            said & end != 0
        } else {
            io::may_send_on_carrier(self.socket)
        }
    }

    /// The carrier's answer, of its descriptor `fd`, in the application's terms.
    fn translate(&self, fd: c_int, mut revents: i16, events: i16) -> i16 {
        revents = io::settled(fd, events | libc::POLLRDHUP, revents);
        if revents & (libc::POLLRDHUP | libc::POLLHUP) != 0
            && io::is_reset_now(self.socket, self.generation, fd)
        {
            revents |= IN
                | OUT
                | libc::POLLRDHUP
                | libc::POLLHUP
                | if io::owes_reset(self.socket) { libc::POLLERR } else { 0 };
        }
        // Data is news only where the stream is in the ring.
        let data = if self.socket.published.receives_fast() { libc::POLLIN } else { 0 };
        if revents & (data | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLPRI) != 0 {
            self.socket.raise(flag::CARRIER_SPOKE);
        }
        let mut now = revents & (events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL);
        if !self.sends_there(revents) {
            now &= !OUT;
        }
        if revents & libc::POLLIN != 0 {
            now |= events & IN;
        }
        if revents & libc::POLLRDHUP != 0 && self.socket.has(flag::FIN_LATER) {
            // Both ways are shut down, but the kernel does not know yet.
            now |= libc::POLLHUP;
        }
        now
    }

    fn alive(&self) -> bool {
        self.socket.generation16() == self.generation && self.socket.is(State::Attached)
    }
}

/// Candidates that a thread waits for in the kernel, where it would not hear what comes to a ring:
/// nothing comes there meanwhile, also if they are attached.
struct Waited<'a>(Scratch<'a, (&'static Socket, u32)>);

impl Waited<'_> {
    /// True: it is a candidate, and stays one.
    fn add(&mut self, s: &'static Socket) -> bool {
        let generation = s.generation.load(Acquire);
        io::on_polled(s);
        if !s.count_poller(generation, |n| n.wrapping_add(1)) {
            return false;
        }
        if !self.0.push((s, generation)) {
            // (More sockets than were counted: another thread has just made one under this number.)
            s.count_poller(generation, |n| n.wrapping_sub(1));
            return false;
        }
        // Who attaches it at this moment has looked at the number before, or will look.
        socket::await_change(s) && s.is(State::Candidate)
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        for (s, generation) in self.0.iter() {
            if s.count_poller(*generation, |n| n.wrapping_sub(1)) && s.is(State::Attached) {
                io::on_poller_gone(s, *generation as u16);
            }
        }
    }
}

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
                if s.is(State::Attached) || (is_coming(s) && !waited.add(s)) =>
            {
                let silent = s.is_inherited();
                if silent {
                    io::need_kernel(p.fd, Reason::InheritedByFork);
                }
                if let Some(channel) = s.channel().filter(|_| s.is(State::Attached)) {
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

fn is_coming(s: &Socket) -> bool {
    matches!(s.state.now(), State::Candidate | State::Changing | State::Left | State::Closing)
}

/// True when the table knows the descriptor as something that needs a closer look. `waits`: the
/// call may wait.
fn is_ours(fd: c_int, waits: bool) -> bool {
    match fd_table::get(fd) {
        Entry::Socket(s, _) if is_coming(s) => {
            io::on_polled(s);
            waits
        }
        Entry::Socket(s, _) => s.is(State::Attached),
        Entry::Epoll(_) => true,
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
    let channel = s.channel().filter(|c| c.wire().is_none())?;
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

/// `PASS`: nothing of ours after all. Nothing has been done where there is no memory.
fn poll_list(fds: &mut [pollfd], timeout_ns: i64, mask: Mask) -> Result<Ret, NoMemory> {
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
        // SAFETY: the caller's array, and its mask.
        return Ok(unsafe { sleep::ppoll(fds.as_mut_ptr(), fds.len(), timeout_ns, mask) });
    }
    let deadline =
        if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    let mut polled = false;
    loop {
        wants.retain(Want::alive);
        let between_hosts = wants.iter().any(|w| w.channel.wire().is_some());
        if between_hosts {
            queues::progress();
        }
        let found = look_all(fds, &wants, &mut kernel, timeout_ns == 0);
        if found != 0 || timeout_ns == 0 {
            return Ok(found);
        }
        if !polled && mask.is_null() && wants.len() == fds.len() {
            polled = true;
            let peers = Peers::of(wants.iter().map(|w| w.channel));
            if wait::spin(peers, || {
                if between_hosts {
                    queues::progress();
                }
                wants.iter().any(|w| fds.get(w.index).is_some_and(|p| w.look(p.events).0 != 0))
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
        let (now, ask) = w.look(p.events);
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
        fence(SeqCst);
        if wants.iter().any(|w| w.channel.wire().is_some()) {
            queues::before_sleep();
        }
    }
    let missed = wants.iter().any(|w| {
        fds.get(w.index).is_some_and(|p| {
            let room = p.events & OUT != 0
                && w.socket.published.sends_fast()
                && wait::send_room_or_ask(w.socket, w.channel, w.slot, w.socket.tx_ring_bytes());
            room || w.look(p.events).0 != 0
        })
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
        // SAFETY: a buffer of that many pollfds; the caller's mask.
        r = unsafe { sleep::ppoll(kernel.as_mut_ptr(), kernel.len(), left, mask) };
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

// ---- select -------------------------------------------------------------------------------------

const WORD_BITS: usize = usize::BITS as usize;

/// A copy of one of the caller's bit sets of `nfds` bits (glibc's FD_SETSIZE is no limit to the
/// kernel, and none here).
struct Bits {
    at: *mut usize,
    few: [usize; FEW],
    many: Scratch<'static, usize>,
    words: usize,
}

impl Bits {
    /// `None`: it cannot be read.
    fn read(at: *mut fd_set, nfds: usize) -> Result<Option<Bits>, NoMemory> {
        let words = if at.is_null() { 0 } else { nfds.div_ceil(WORD_BITS) };
        let mut set = Bits { at: at.cast(), few: [0; FEW], many: Scratch::new(), words };
        if words > FEW {
            set.many = Scratch::filled(words, 0).ok_or(NoMemory)?;
        }
        let at = set.at;
        // SAFETY: the application's set holds at least nfds bits, in whole words (select(2)).
        Ok(unsafe { user::read_into(at, set.list()) }.then_some(set))
    }
    fn list(&mut self) -> &mut [usize] {
        if self.words > FEW {
            &mut self.many
        } else {
            self.few.get_mut(..self.words).unwrap_or(&mut [])
        }
    }
    fn get(&mut self, fd: usize) -> bool {
        self.list().get(fd / WORD_BITS).is_some_and(|word| word >> (fd % WORD_BITS) & 1 != 0)
    }
    fn put(&mut self, fd: usize, on: bool) {
        if let Some(word) = self.list().get_mut(fd / WORD_BITS) {
            let bit = 1usize << (fd % WORD_BITS);
            *word = if on { *word | bit } else { *word & !bit };
        }
    }
    /// False: it cannot be written.
    fn write_back(&mut self) -> bool {
        let at = self.at;
        // SAFETY: as in `read`.
        unsafe { user::write_all(at, self.list()) }
    }
}

/// The descriptors in the caller's sets, read one by one.
fn named(nfds: c_int, sets: [*mut fd_set; 3]) -> impl Iterator<Item = c_int> {
    (0..nfds).filter(move |fd| {
        let n = *fd as usize;
        // SAFETY: as in `Bits::read`.
        let word =
            |at: *mut fd_set| unsafe { user::read(at.cast::<usize>().wrapping_add(n / WORD_BITS)) };
        sets.iter()
            .any(|at| !at.is_null() && word(*at).is_some_and(|w| w >> (n % WORD_BITS) & 1 != 0))
    })
}

#[allow(clippy::too_many_arguments, reason = "select(2)'s own arguments")]
pub(crate) unsafe fn select(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout_ns: i64,
    mask: Mask,
    elapsed_ns: &mut i64,
) -> Ret {
    if nfds <= 0 || nfds as usize > fd_table::CAPACITY || fd_table::high_water() == 0 {
        return PASS;
    }
    // SAFETY: the caller's promise.
    signals::held(|| unsafe {
        select_held(nfds, read, write, except, timeout_ns, mask, elapsed_ns)
    })
}

#[allow(clippy::too_many_arguments, reason = "as above")]
unsafe fn select_held(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout_ns: i64,
    mask: Mask,
    elapsed_ns: &mut i64,
) -> Ret {
    let set = |at| Bits::read(at, nfds as usize);
    let (Ok(r), Ok(w), Ok(x)) = (set(read), set(write), set(except)) else {
        return without_memory(named(nfds, [read, write, except]));
    };
    let (Some(mut r), Some(mut w), Some(mut x)) = (r, w, x) else { return PASS };
    if !(0..nfds as usize)
        .any(|fd| (r.get(fd) || w.get(fd) || x.get(fd)) && is_ours(fd as c_int, timeout_ns != 0))
    {
        return PASS;
    }
    let count = (0..nfds as usize).filter(|fd| r.get(*fd) || w.get(*fd) || x.get(*fd)).count();
    let mut few = [MaybeUninit::uninit(); FEW];
    let Some(mut list) = Scratch::within(&mut few, count) else {
        return without_memory(named(nfds, [read, write, except]));
    };
    for fd in 0..nfds as usize {
        let events = if r.get(fd) { libc::POLLIN } else { 0 }
            | if w.get(fd) { libc::POLLOUT } else { 0 }
            | if x.get(fd) { libc::POLLPRI } else { 0 };
        if events != 0 {
            list.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    if !user::is_mask(mask) {
        return -(libc::EFAULT as Ret);
    }
    let start = sys::now_ns();
    let result = poll_list(&mut list, timeout_ns, mask);
    *elapsed_ns = sys::now_ns().wrapping_sub(start) as i64;
    let n = match result {
        Ok(n) => n,
        Err(NoMemory) => return without_memory(named(nfds, [read, write, except])),
    };
    if n < 0 {
        return n;
    }
    if list.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        return -(libc::EBADF as Ret);
    }
    let mut count = 0;
    for p in list.iter() {
        // The kernel's own translation (fs/select.c: POLLIN_SET, POLLOUT_SET, POLLEX_SET).
        let fd = p.fd as usize;
        let readable =
            p.revents & (IN | libc::POLLHUP | libc::POLLERR) != 0 && p.events & libc::POLLIN != 0;
        let writable = p.revents & (OUT | libc::POLLERR) != 0 && p.events & libc::POLLOUT != 0;
        let exceptional = p.revents & libc::POLLPRI != 0 && p.events & libc::POLLPRI != 0;
        r.put(fd, readable);
        w.put(fd, writable);
        x.put(fd, exceptional);
        count += readable as Ret + writable as Ret + exceptional as Ret;
    }
    if r.write_back() && w.write_back() && x.write_back() { count } else { -(libc::EFAULT as Ret) }
}
