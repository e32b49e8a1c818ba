//! A watch over bytes that lie in a ring and nobody comes for.
//!
//! A program whose waits were seen when a connection was promoted may wait by calls of its own
//! later. It would sleep for good: its peer tells nobody but those whose waits are seen. So:
//!
//! * The *sender's* thread `netacc` looks for rings whose head stands still: a second after a
//!   process has begun to send into rings, and every second while any of it is unread. It has the
//!   peer's library told (`Message::Unread`): after 1, 2, 4... seconds, 32 at last. Where all is
//!   read nobody looks any more, so an idle process has nothing to do.
//! * The *receiver's* library then looks what its own threads do ([`Waiter`]). If one of them sits
//!   in a call that waits for the connection, or receives from it, and that the library has not
//!   made, and sits there still a moment later, with the same bytes unread, the connection goes
//!   back to TCP for good: the call finds its bytes there. A program that computes, sleeps, is
//!   stopped, or leaves bytes alone on purpose has no such thread, and nothing happens. Where the
//!   kernel does not say what threads do (user-mode Linux; a process that is not dumpable, and not
//!   root's) they are taken to wait when all of them sleep, for four seconds.
//!
//! What the peer says makes this process look, twice a second at most, and nothing else.
//!
//! Between hosts the receiver's own thread `netacc-rdma` does what the sender's does within one,
//! from the first bytes that come: they make no news for the kernel there either, and it is this
//! process that hears of them.

mod tasks;

use super::ends::held;
use super::leave::to_kernel;
use crate::channel::{Channel, Side};
use crate::fd_table::{self, Entry};
use crate::lock::try_lock_end;
use crate::path::PathId;
use crate::sets::sets;
use crate::socket::{RxEnd, Socket, State, TxEnd};
use crate::wait::looks;
use crate::{agent, control, sys, thread};
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicBool, AtomicU64};
use netacc_control::stats::Reason;
use tasks::{Waiter, asleep, for_each_task};

/// How long bytes lie before somebody looks, and between two looks.
const LOOK_NS: u64 = 1_000_000_000;
/// Looks of a sender at bytes that stay where they are.
const LOOKS: u32 = 64;
/// The peer's word counts again after so long.
const AGAIN_NS: u64 = 500_000_000;
/// Between the two looks at the threads.
const STILL_NS: i64 = 100_000_000;
/// The same where it is not known what they do.
const ASLEEP_NS: i64 = 4_000_000_000;
/// Connections that one look is for.
const MOST: usize = 1024;
/// Descriptors of one `poll` that are looked at.
const POLLED: usize = 4096;
/// Bytes of what the kernel says of an epoll set that are read.
const SAID: usize = 4 << 20;

/// Somebody looks within a second what is unread.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// When the peer's word last counted.
static HEARD_AT: AtomicU64 = AtomicU64::new(0);
/// A thread looks what the others do.
static LOOKING: AtomicBool = AtomicBool::new(false);

// ---- the sender ---------------------------------------------------------------------------------

/// Bytes were put into a ring: one load, nearly always.
#[inline]
pub(super) fn watch(channel: &Channel) {
    if !WATCHED.load(Relaxed) {
        begin(channel);
    }
}

#[cold]
#[inline(never)]
fn begin(channel: &Channel) {
    let agent = agent::of(channel.far.id());
    if agent.is_running() && !WATCHED.swap(true, SeqCst) {
        agent.watch_at(sys::now_ns().saturating_add(LOOK_NS));
    }
}

/// In a forked child: nobody does.
pub(crate) fn forget() {
    WATCHED.store(false, Relaxed);
    LOOKING.store(false, Relaxed);
}

/// Connections on that path whose first name is `fd`.
fn is_watched(s: &Socket, fd: c_int, path: PathId) -> bool {
    s.is(State::Attached) && !s.is_inherited() && s.path() == path && s.fd.load(Relaxed) == fd
}

/// Counts a look that finds the reader at `head`, or nothing unread. True: somebody should look
/// what this reader does.
fn count_look(s: &Socket, head: Option<u64>, more: &mut bool) -> bool {
    let stood = s.stood.load(Relaxed);
    let looks = match head {
        None => 0,
        Some(head) if stood != 0 && s.stood_at.load(Relaxed) == head => {
            stood.saturating_add(1).min(LOOKS)
        }
        Some(_) => 1,
    };
    s.stood.store(looks, Relaxed);
    s.stood_at.store(head.unwrap_or(0), Relaxed);
    *more |= (1..LOOKS).contains(&looks);
    looks > 1 && (looks - 1).is_power_of_two()
}

/// For the operator: how much of a ring is unread. (What the peer says of it may be anything.)
fn show_used(s: &Socket, side: Side, unread: u64) {
    if let Some(r) = s.record()
        && let Some((used, all)) = r.ring_used.iter().zip(&r.ring_bytes).nth(side as usize ^ 1)
    {
        used.store(unread.min(all.load(Relaxed).into()) as u32, Relaxed);
    }
}

/// As [`count_look`], where the end is somebody's at the moment, or its owner has left a call by a
/// jump: it is asked next time.
fn count_vain_look(s: &Socket, more: &mut bool) {
    let looks = s.stood.load(Relaxed).saturating_add(1).min(LOOKS);
    s.stood.store(looks, Relaxed);
    *more |= looks < LOOKS;
}

/// Looks at all that this process has sent into the rings of a path. When to look again; 0: not
/// before more is sent. A thread of the path's.
pub(crate) fn look_at_unread(path: PathId) -> u64 {
    // Before the looks: what is sent after them begins anew.
    WATCHED.store(false, SeqCst);
    let mut more = false;
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, _) = entry else { return };
        // (Once for all its names.)
        if !is_watched(s, fd, path) {
            return;
        }
        s.trace_moved();
        // Under the lock the words and the channel stay.
        let Some(free) = try_lock_end(&s.tx_lock) else { return count_vain_look(s, &mut more) };
        let Ok(h) = held::<TxEnd>(s, s.generation16(), (free, false)) else { return };
        let (head, tail) = (h.words.head.load(Relaxed), h.published.tail.load(Relaxed));
        let unread = tail.wrapping_sub(head);
        show_used(s, Side::Send, unread);
        // (From half of it on who asks for room is told of it.)
        if unread > h.end.ring.size() as u64 / 2 {
            s.trace_full();
        }
        if count_look(s, (head != tail).then_some(head), &mut more) {
            let _ = control::send_unread(h.channel, h.slot);
        }
    });
    if more && !WATCHED.swap(true, SeqCst) { sys::now_ns().saturating_add(LOOK_NS) } else { 0 }
}

// ---- the receiver, where its end of the ring is not the sender's to see -------------------------

/// As [`look_at_unread`], at what has come. True: look again, although nothing more comes.
pub(crate) fn look_at_unread_here(path: PathId) -> bool {
    let (mut more, mut due) = (false, false);
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, g) = entry else { return };
        if !is_watched(s, fd, path) {
            return;
        }
        s.trace_moved();
        let Some(free) = try_lock_end(&s.rx_lock) else { return count_vain_look(s, &mut more) };
        let Ok(mut h) = held::<RxEnd>(s, g, (free, false)) else { return };
        let unread = h.unread().unwrap_or(0);
        show_used(s, Side::Receive, unread as u64);
        let head = (unread > 0).then(|| h.end.switch.offset());
        due |= count_look(s, head, &mut more);
    });
    if due {
        hear_unread();
    }
    more
}

// ---- the receiver -------------------------------------------------------------------------------

/// A peer says that bytes lie unread here, or this process has found it. Service thread, or thread
/// "netacc-rdma".
pub(crate) fn hear_unread() {
    let (now, heard) = (sys::now_ns(), HEARD_AT.load(Relaxed));
    if heard != 0 && now.saturating_sub(heard) < AGAIN_NS {
        return;
    }
    HEARD_AT.store(now, Relaxed);
    if !LOOKING.swap(true, SeqCst) && !thread::spawn(run, core::ptr::null_mut()) {
        LOOKING.store(false, SeqCst);
    }
}

fn run(_: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-look\0");
    look();
    LOOKING.store(false, SeqCst);
    core::ptr::null_mut()
}

/// A connection with bytes unread in its ring.
struct Lying {
    socket: &'static Socket,
    generation: u16,
    fd: c_int,
    inode: u64,
    head: u64,
    /// The thread that waits for it unseen, and the one that did at the last look.
    waits: u32,
    before: u32,
}

fn look() {
    let mut lying = lying();
    if lying.is_empty() {
        return;
    }
    let told = find_waiters(&mut lying);
    lying.retain(|l| l.waits != 0);
    if lying.is_empty() {
        return;
    }
    sys::pause_ns(if told { STILL_NS } else { ASLEEP_NS });
    lying.iter_mut().for_each(|l| {
        l.before = core::mem::take(&mut l.waits);
        if unread_at(l.socket, l.generation) != Some(l.head) {
            l.inode = 0;
        }
    });
    find_waiters(&mut lying);
    for l in &lying {
        if l.waits != l.before || l.inode == 0 {
            continue;
        }
        crate::log::warn_log!(
            "fd {}: thread {} waits for it by a call that the library does not see: back to TCP",
            l.fd,
            l.waits
        );
        let _ = to_kernel(l.socket, l.generation, l.fd, Reason::WaitsUnseen, false);
    }
}

/// Whether the kernel's registration of `fd` in `set`, with EPOLLONESHOT, has fired. `None`: it
/// does not say.
pub(crate) fn has_fired(set: c_int, fd: c_int) -> Option<bool> {
    looks::may_make_more_calls().then(|| tasks::has_fired(set, fd)).flatten()
}

/// Where in the stream the bytes lie that are to be read and are in the ring alone.
fn unread_at(s: &'static Socket, g: u16) -> Option<u64> {
    let mut h = held::<RxEnd>(s, g, (try_lock_end(&s.rx_lock)?, false)).ok()?;
    (h.unread().ok()? > 0).then(|| h.end.switch.offset())
}

fn lying() -> Vec<Lying> {
    let mut all = Vec::new();
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, g) = entry else { return };
        if !is_watched(s, fd, s.path()) || all.len() == MOST {
            return;
        }
        let (Some(head), Some((_, inode))) = (unread_at(s, g), sys::inode(fd)) else { return };
        if all.try_reserve(1).is_ok() {
            all.push(Lying { socket: s, generation: g, fd, inode, head, waits: 0, before: 0 });
        }
    });
    all
}

/// Marks those for which a thread of this process waits by a call that is not the library's. False:
/// the kernel does not say what threads do, and those are marked for which nobody waits by a seen
/// call, if all threads sleep.
fn find_waiters(lying: &mut [Lying]) -> bool {
    let mut told = false;
    for_each_task(b"/syscall\0", |tid, said| {
        told |= !said.is_empty();
        if let Some(waiter) = Waiter::of(said) {
            waiter.mark(tid, lying);
        }
    });
    if told {
        return true;
    }
    let mut sleeper = Some(0);
    for_each_task(b"/stat\0", |tid, said| match asleep(said) {
        Some(true) => sleeper = sleeper.map(|_| tid),
        Some(false) => {}
        None => sleeper = None,
    });
    for l in lying.iter_mut().filter(|l| !is_waited_for(l.socket) && !sets().is_slept_for(l.socket))
    {
        l.waits = sleeper.unwrap_or(0);
    }
    false
}

fn mark_one(tid: u32, fd: c_int, lying: &mut [Lying]) {
    if let Entry::Socket(s, _) = fd_table::get(fd) {
        lying.iter_mut().filter(|l| core::ptr::eq(l.socket, s)).for_each(|l| l.waits = tid);
    }
}

/// As [`mark_one`], unless the wait may be the library's own.
fn mark_waited(tid: u32, fd: c_int, lying: &mut [Lying]) {
    if let Entry::Socket(s, _) = fd_table::get(fd)
        && !is_waited_for(s)
    {
        mark_one(tid, fd, lying);
    }
}

/// A thread sleeps in a seen call that waits for the connection.
fn is_waited_for(s: &Socket) -> bool {
    s.channel().is_none() || s.published.posted.awaited().threads != [0; 2]
}
