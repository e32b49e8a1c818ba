//! poll and select with accelerated sockets among the descriptors.
//!
//! Both become one list of [`Want`]s. If none of them is an attached socket, the hook passes the call on untouched.

use crate::api::{Mask, PASS, Ret};
use crate::channel::Channel;
use crate::fd_table::{self, Entry};
use crate::remote::wire;
use crate::socket::{self, ATTACHED, ATTACHING, CANDIDATE, Socket, flag};
use crate::wait::{self, Side};
use crate::{epoll, io, lifecycle, stats, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{Ordering::*, fence};
use libc::{fd_set, pollfd};
use netacc_control::stats::{Counter, Reason};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// An attached socket among the polled descriptors.
struct Want {
    index: usize,
    socket: &'static Socket,
    generation: u16,
    channel: &'static Channel,
    slot: usize,
    /// The peer cannot tell this process of its news: a child that inherited it, and in whose hands bytes were left in the ring.
    silent: bool,
    posted: [bool; 2],
}

impl Want {
    /// What can be said of it from the shared words, and whether the carrier has to be asked as well.
    fn look(&self, events: i16) -> (i16, bool) {
        let mut now = 0;
        let (readable, mut ask) = epoll::ring_says(self.channel, self.slot);
        ask |= self.socket.has(flag::CARRIER_SPOKE | flag::FIN_LATER);
        if readable {
            now |= events & IN;
        }
        if !io::sends_fast(self.channel, self.slot) {
            ask = true;
        } else if wait::send_room(self.channel, self.slot, io::tx_ring_bytes(self.socket)) {
            now |= events & OUT;
        }
        (now, ask)
    }

    /// What the kernel is asked about the carrier.
    fn carrier_events(&self, events: i16) -> i16 {
        let no_room_there = io::sends_fast(self.channel, self.slot) || !io::may_send_on_carrier(self.socket);
        let end = events & IN != 0 || self.socket.has(flag::FIN_LATER);
        (events & !(if no_room_there { OUT } else { 0 })) | if end { libc::POLLRDHUP } else { 0 }
    }

    /// The carrier's answer in the application's terms.
    fn translate(&self, revents: i16, events: i16) -> i16 {
        // Data is news only where the stream is in the ring.
        let data = if io::receives_fast(self.channel, self.slot) { libc::POLLIN } else { 0 };
        if revents & (data | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLPRI) != 0 {
            self.socket.raise(flag::CARRIER_SPOKE);
        }
        let mut now = revents & (events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL);
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
        self.socket.generation16() == self.generation && self.socket.is(ATTACHED)
    }
}

/// Candidates that a thread waits for in the kernel, where it would not hear what comes to a ring: they stay candidates meanwhile.
#[derive(Default)]
struct Waited(Vec<(&'static Socket, u32)>);

impl Waited {
    /// True: it is a candidate, and stays one. (False also where there is no memory to note it.)
    fn add(&mut self, s: &'static Socket) -> bool {
        if self.0.try_reserve(1).is_err() {
            return false;
        }
        let generation = s.generation.load(Acquire);
        if !s.count_poller(generation, |n| n.wrapping_add(1)) {
            return false;
        }
        self.0.push((s, generation));
        // Who attaches it at this moment has looked at the number before, or will look.
        socket::await_attach(s) && s.is(CANDIDATE)
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        for (s, generation) in &self.0 {
            let _ = s.count_poller(*generation, |n| n.wrapping_sub(1));
        }
    }
}

/// Finds the attached sockets, and notes the candidates. Sets and inherited sockets that cannot be polled here go back to the kernel.
fn find(fds: &[pollfd], waited: &mut Waited) -> Vec<Want> {
    let mut wants = Vec::new();
    for (index, p) in fds.iter().enumerate() {
        if p.fd < 0 {
            continue;
        }
        match fd_table::get(p.fd) {
            Entry::Socket(s, _) if s.is_inherited() && s.is(CANDIDATE) => lifecycle::need_kernel(p.fd, Reason::InheritedByFork),
            Entry::Socket(s, generation) if s.is(ATTACHED) || (is_coming(s) && !waited.add(s)) => {
                let silent = s.is_inherited();
                if silent {
                    lifecycle::need_kernel(p.fd, Reason::InheritedByFork);
                }
                if let Some(channel) = s.channel().filter(|_| s.is(ATTACHED)) {
                    wants.push(Want { index, socket: s, generation, channel, slot: s.slot.load(Relaxed) as usize, silent, posted: [false; 2] });
                }
            }
            Entry::Epoll(e) => epoll::bar(e),
            _ => {}
        }
    }
    wants
}

fn is_coming(s: &Socket) -> bool {
    matches!(s.state.load(Acquire), CANDIDATE | ATTACHING)
}

/// True when the table knows the descriptor as something that needs a closer look. `waits`: the call may wait.
fn is_ours(fd: c_int, waits: bool) -> bool {
    match fd_table::get(fd) {
        Entry::Socket(s, _) => s.is(ATTACHED) || (waits && is_coming(s)),
        Entry::Epoll(_) => true,
        _ => false,
    }
}

pub(crate) unsafe fn poll(fds: *mut pollfd, count: u64, timeout_ns: i64, mask: Mask) -> Ret {
    if count == 0 || count > fd_table::CAPACITY as u64 || (fds as usize) < 4096 {
        return PASS;
    }
    // SAFETY: the caller's array of `count` elements.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    if !fds.iter().any(|p| p.fd >= 0 && is_ours(p.fd, timeout_ns != 0)) {
        return PASS;
    }
    poll_list(fds, timeout_ns, mask).unwrap_or(PASS)
}

/// `None`: nothing of ours after all.
fn poll_list(fds: &mut [pollfd], timeout_ns: i64, mask: Mask) -> Option<Ret> {
    let mut waited = Waited::default();
    let mut wants = find(fds, &mut waited);
    if wants.is_empty() {
        // SAFETY: the caller's array, and its mask.
        return (!waited.0.is_empty()).then(|| unsafe { sys::ppoll(fds.as_mut_ptr(), fds.len(), timeout_ns, mask) });
    }
    let deadline = if timeout_ns < 0 { 0 } else { sys::now_ns().saturating_add(timeout_ns as u64).max(1) };
    let mut kernel: Vec<pollfd> = Vec::with_capacity(fds.len() + 1);
    let mut polled = false;
    loop {
        wants.retain(Want::alive);
        let between_hosts = wants.iter().any(|w| w.channel.wire().is_some());
        if between_hosts {
            wire::progress();
        }
        let found = look_all(fds, &wants, &mut kernel, 0, core::ptr::null());
        if found != 0 || timeout_ns == 0 {
            return Some(found);
        }
        if !polled && mask.is_null() && wants.len() == fds.len() {
            polled = true;
            let peers = wait::Peers::of(wants.iter().map(|w| w.channel));
            if wait::spin(peers, || {
                if between_hosts {
                    wire::progress();
                }
                wants.iter().any(|w| fds.get(w.index).is_some_and(|p| w.look(p.events).0 != 0))
            }) {
                continue;
            }
        }
        let r = sleep(fds, &mut wants, &mut kernel, deadline, mask);
        if r != 0 {
            return Some(r);
        }
        if deadline != 0 && sys::now_ns() >= deadline {
            return Some(look_all(fds, &wants, &mut kernel, 0, core::ptr::null()));
        }
    }
}

/// Fills every `revents`; asks the kernel for what is its, waiting up to `timeout_ns`. Returns how many are ready, or `-errno`.
fn look_all(fds: &mut [pollfd], wants: &[Want], kernel: &mut Vec<pollfd>, timeout_ns: i64, mask: Mask) -> Ret {
    kernel.clear();
    kernel.extend_from_slice(fds);
    let mut need_kernel = wants.len() < fds.len() || timeout_ns != 0;
    for w in wants {
        let (Some(p), Some(k)) = (fds.get_mut(w.index), kernel.get_mut(w.index)) else { continue };
        let (now, ask) = w.look(p.events);
        p.revents = now;
        if ask {
            need_kernel = true;
            k.events = w.carrier_events(p.events);
        } else {
            k.fd = -1;
        }
    }
    if need_kernel {
        // SAFETY: a buffer of that many pollfds.
        let r = unsafe { sys::ppoll(kernel.as_mut_ptr(), kernel.len(), timeout_ns, mask) };
        if r < 0 {
            return r;
        }
    }
    let mut mine = wants.iter().peekable();
    let mut ready = 0;
    for (i, (p, k)) in fds.iter_mut().zip(kernel.iter()).enumerate() {
        if let Some(w) = mine.next_if(|w| w.index == i) {
            if k.fd >= 0 && need_kernel {
                p.revents |= w.translate(k.revents, p.events);
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
fn sleep(fds: &[pollfd], wants: &mut [Want], kernel: &mut Vec<pollfd>, deadline: u64, mask: Mask) -> Ret {
    let place = wait::claim_for_thread();
    let mut all_posted = place.is_some();
    if let Some(p) = place {
        for w in wants.iter_mut() {
            let events = fds.get(w.index).map_or(0, |p| p.events);
            let introduced = !w.silent && wait::introduce(w.channel, p, wait::gather(p), 0);
            for (side, bits, posted) in [(Side::Receive, IN, 0), (Side::Send, OUT, 1)] {
                if events & bits != 0 {
                    let ok = introduced && wait::post(w.channel, w.slot, side, p);
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
            wire::before_sleep();
        }
    }
    let missed = wants.iter().any(|w| {
        fds.get(w.index).is_some_and(|p| {
            let room = p.events & OUT != 0 && io::sends_fast(w.channel, w.slot) && wait::send_room_or_ask(w.channel, w.slot, io::tx_ring_bytes(w.socket));
            room || w.look(p.events).0 != 0
        })
    });
    let mut r = 0;
    if !missed {
        kernel.clear();
        kernel.extend_from_slice(fds);
        for w in wants.iter() {
            if let (Some(k), Some(p)) = (kernel.get_mut(w.index), fds.get(w.index)) {
                k.events = w.carrier_events(p.events);
            }
        }
        kernel.push(pollfd { fd: place.map_or(-1, wait::gather), events: libc::POLLIN, revents: 0 });
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
        r = unsafe { sys::ppoll(kernel.as_mut_ptr(), kernel.len(), left, mask) };
        for w in wants.iter() {
            if let (Some(k), Some(p)) = (kernel.get(w.index), fds.get(w.index)) {
                let _ = w.translate(k.revents, p.events);
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
                    wait::unpost(w.channel, w.slot, side, p);
                }
            }
        }
        wait::give_back(p);
    }
    if r < 0 { r } else { 0 }
}

// ---- select ----------------------------------------------------------------------------------------------------

const WORD_BITS: usize = usize::BITS as usize;

/// One of the caller's bit sets of `nfds` bits (glibc's FD_SETSIZE is no limit to the kernel, and none here).
#[derive(Clone, Copy)]
struct Bits(*mut usize);

impl Bits {
    fn get(self, fd: usize) -> bool {
        // SAFETY: the application's set holds at least nfds bits, and `fd` is below nfds.
        !self.0.is_null() && unsafe { self.0.add(fd / WORD_BITS).read_unaligned() } >> (fd % WORD_BITS) & 1 != 0
    }
    fn put(self, fd: usize, on: bool) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: as in `get`.
        unsafe {
            let at = self.0.add(fd / WORD_BITS);
            let old = at.read_unaligned();
            let bit = 1usize << (fd % WORD_BITS);
            at.write_unaligned(if on { old | bit } else { old & !bit });
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "select(2)'s own arguments")]
pub(crate) unsafe fn select(nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout_ns: i64, mask: Mask, elapsed_ns: &mut i64) -> Ret {
    if nfds <= 0 || nfds as usize > fd_table::CAPACITY {
        return PASS;
    }
    let (r, w, x) = (Bits(read.cast()), Bits(write.cast()), Bits(except.cast()));
    if !(0..nfds as usize).any(|fd| (r.get(fd) || w.get(fd) || x.get(fd)) && is_ours(fd as c_int, timeout_ns != 0)) {
        return PASS;
    }
    let mut list = Vec::new();
    for fd in 0..nfds as usize {
        let events = if r.get(fd) { libc::POLLIN } else { 0 } | if w.get(fd) { libc::POLLOUT } else { 0 } | if x.get(fd) { libc::POLLPRI } else { 0 };
        if events != 0 {
            list.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    let start = sys::now_ns();
    let result = poll_list(&mut list, timeout_ns, mask);
    *elapsed_ns = sys::now_ns().wrapping_sub(start) as i64;
    let Some(n) = result else { return PASS };
    if n < 0 {
        return n;
    }
    if list.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        return -(libc::EBADF as Ret);
    }
    let mut count = 0;
    for p in &list {
        // The kernel's own translation (fs/select.c: POLLIN_SET, POLLOUT_SET, POLLEX_SET).
        let fd = p.fd as usize;
        let readable = p.revents & (IN | libc::POLLHUP | libc::POLLERR) != 0 && p.events & libc::POLLIN != 0;
        let writable = p.revents & (OUT | libc::POLLERR) != 0 && p.events & libc::POLLOUT != 0;
        let exceptional = p.revents & libc::POLLPRI != 0 && p.events & libc::POLLPRI != 0;
        r.put(fd, readable);
        w.put(fd, writable);
        x.put(fd, exceptional);
        count += readable as Ret + writable as Ret + exceptional as Ret;
    }
    count
}
