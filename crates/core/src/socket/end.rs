//! How a connection ends: it becomes plain, is closed, outlives its last name, and its memory is
//! used anew.

use super::{ATTACHED, ATTACHING, CANDIDATE, CLOSING, FREE, PLAIN, Socket, flag, offer, push_free};
use crate::channel;
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::{adoption, process, remote, service, stats, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::*};
use netacc_control::stats::Reason;

/// From candidate to plain, for good.
pub(crate) fn make_plain(s: &'static Socket, why: Reason) {
    if s.state.compare_exchange(CANDIDATE, PLAIN, AcqRel, Acquire).is_ok() {
        s.set_reason(why);
        service::closing(s);
    }
}

/// Waits until nobody attaches it any more, which takes some system calls. False: it is this very
/// thread that does, and a signal handler has interrupted it.
pub(crate) fn await_attach(s: &Socket) -> bool {
    let mut n = 0u32;
    loop {
        n = n.wrapping_add(1);
        if s.state.load(SeqCst) != ATTACHING {
            return true;
        }
        if s.attacher.load(SeqCst) == process::tid() {
            return false;
        }
        if n < 1000 {
            core::hint::spin_loop();
            continue;
        }
        sys::sched_yield();
        // A forked child has no other way to hear that its parent was killed there.
        let over = || {
            if s.has(flag::REMOTE) {
                !remote::maker_lives(s)
            } else {
                !process::lives(s.owner.load(Relaxed))
            }
        };
        if n.is_multiple_of(10_000) && s.is_inherited() && over() {
            let _ = s.state.compare_exchange(ATTACHING, PLAIN, SeqCst, Relaxed);
        }
    }
}

/// Waits until its maker has closed it.
#[cold]
pub(crate) fn await_close(s: &Socket) {
    let mut n = 0u32;
    while s.state.load(SeqCst) == CLOSING {
        n = n.wrapping_add(1);
        if n < 1000 {
            core::hint::spin_loop();
            continue;
        }
        sys::sched_yield();
        if n.is_multiple_of(10_000) && !process::lives(s.owner.load(Relaxed)) {
            let _ = s.state.compare_exchange(CLOSING, PLAIN, SeqCst, Relaxed);
        }
    }
}

/// RDMA cannot serve a connection within the host: from now on it is a candidate for shared memory.
/// False: it is not such a one.
pub(crate) fn make_local(s: &'static Socket, g: u16) -> bool {
    if !s.has(flag::RDMA_FIRST) {
        return false;
    }
    service::end_proof(s);
    // What "netacc-rdma" leaves for such sockets it leaves under this lock.
    let Some(_tx) = crate::lock::lock_end(&s.tx_lock) else { return true };
    if s.generation16() == g && s.is(CANDIDATE) {
        let offered = s.offered.load(SeqCst);
        if s.has(flag::REMOTE) && offered != offer::MADE {
            s.set_reason(Reason::NotStarted);
            s.calls.store(0, Relaxed);
            s.look_at.store(0, Relaxed);
            s.lower(flag::REMOTE | flag::NOTED);
        }
        // Last: whoever finds an offer from here on finds one of shared memory. (That it is never
        // to be may be said once more meanwhile.)
        if offered == offer::NEVER {
            let _ = s.offered.compare_exchange(offered, 0, SeqCst, Relaxed);
        }
    }
    true
}

/// The last descriptor of this process's (or, `kernel_too` false, one whose closing is somebody
/// else's work) is closed.
pub(crate) fn close(s: &'static Socket, g: u16, fd: c_int, kernel_too: bool) -> Ret {
    let kernel_close = || if kernel_too { sys::close(fd) } else { 0 };
    if s.generation16() != g {
        return kernel_close();
    }
    crate::epoll::forget(s, fd);
    let Some(names) = s.count_names(g, |n| n.saturating_sub(1)) else { return kernel_close() };
    if names > 1 {
        if s.has(flag::TRACKED) {
            adoption::passed::lose_track(s, fd);
        }
        let mut other = -1;
        fd_table::for_each(|n, e| {
            if other < 0 && matches!(e, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g) {
                other = n;
            }
        });
        if s.is_inherited() {
            // What it says of descriptors is its maker's.
            return kernel_close();
        }
        if other >= 0 {
            rename(s, fd, other);
            return kernel_close();
        }
    }
    // A child takes apart only what its maker has left to it, by a close or by its end.
    if s.is_inherited() && s.fd.load(Acquire) >= 0 && process::lives(s.owner.load(Relaxed)) {
        return kernel_close();
    }
    let_go(s, g, fd, kernel_close)
}

/// The last name of a connection that this process has goes. (A forked child may have it, too;
/// `refs` says so, or did.)
fn let_go(s: &'static Socket, g: u16, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    if !s.is(ATTACHED) || fd < 0 || s.is_inherited() {
        let heard_of = s.is(CANDIDATE) && !s.has(flag::REMOTE);
        let r = finish(s, fd, kernel_close);
        if heard_of {
            channel::sent_by_kernel();
        }
        return r;
    }
    let shared = s.names() > 0;
    // (Between hosts it leaves behind the close, which waits for that within bounds.)
    let between_hosts = s.has(flag::REMOTE);
    let in_ring =
        !(shared && !between_hosts && crate::io::to_kernel(s, g, fd, Reason::None, false));
    match crate::io::last_name(s, fd, shared && in_ring) {
        LastName::Outlived => {
            let r = kernel_close();
            if s.waiters.load(SeqCst) == 0 {
                bury_orphan(s, g);
            } else {
                crate::io::await_peer(s, g);
            }
            r
        }
        // A forked child may want what only the ring has; it is the peer's end that frees it.
        LastName::LeftToChild => {
            close_books(s);
            kernel_close()
        }
        LastName::Gone => finish(s, fd, kernel_close),
    }
}

/// What becomes of a connection whose last name in this process goes.
pub(crate) enum LastName {
    /// Something is under way that needs the carrier: it lives on as an orphan.
    Outlived,
    LeftToChild,
    Gone,
}

/// Orphans of this process: a forked child closes its copies of their names.
pub(super) static ORPHANS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn orphan(s: &Socket, own: c_int) {
    ORPHANS.fetch_add(1, Relaxed);
    s.fd.store(own, Release);
    s.raise(flag::ORPHAN);
}

/// `fd` is about to be closed: who sends on it finds `other` from here on.
fn rename(s: &'static Socket, fd: c_int, other: c_int) {
    let tx = crate::lock::lock_end(&s.tx_lock);
    if s.fd.load(Relaxed) == fd || other < 0 {
        s.fd.store(other, Release);
        if let Some(r) = s.record().filter(|_| other >= 0) {
            r.fd.store(other as u32, Relaxed);
        }
    }
    drop(tx);
    service::renamed(s);
}

/// What was under way on a closed connection has ended.
pub(crate) fn bury_orphan(s: &'static Socket, g: u16) {
    if s.generation16() == g && s.flags.fetch_and(!flag::ORPHAN, AcqRel) & flag::ORPHAN != 0 {
        ORPHANS.fetch_sub(1, Relaxed);
        let own = s.fd.load(Acquire);
        crate::io::never_linger(own);
        let _ = let_go(s, g, own, || {
            fd_table::close_internal(own);
            0
        });
    }
}

/// The connection is this process's no more: it goes from the statistics.
pub(super) fn close_books(s: &Socket) {
    // SAFETY: as in `record`; the swap gives it to one caller.
    let Some(rec) = (unsafe { s.record.swap(core::ptr::null_mut(), AcqRel).as_ref() }) else {
        return;
    };
    let path = rec.tx_path.load(Relaxed).max(rec.rx_path.load(Relaxed));
    stats::add_bytes(rec);
    stats::closed(
        netacc_control::stats::Path::from_code(path).unwrap_or(netacc_control::stats::Path::Tcp),
    );
    stats::close(rec);
}

/// Takes a connection apart around the kernel's close of its last descriptor.
fn finish(s: &'static Socket, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    let mut state = s.state.load(Acquire);
    for _ in 0..1_000_000 {
        if state != ATTACHING {
            break;
        }
        // Another thread is about to attach it: it finishes first, and this takes the result apart.
        core::hint::spin_loop();
        state = s.state.load(Acquire);
    }
    let was_candidate = state == CANDIDATE && {
        // In this order: who notes it raises NOTED first, and looks at the state afterwards.
        let next = if !s.is_inherited() && s.names() > 0 { CLOSING } else { PLAIN };
        let won = s.state.compare_exchange(CANDIDATE, next, SeqCst, Relaxed).is_ok();
        service::closing(s);
        won
    };
    if state == PLAIN {
        // It may have become that a moment ago: whoever made it so may not have come by there yet.
        service::last_look(s);
    }
    if s.has(flag::TRACKED) {
        let counted = s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
        adoption::passed::before_close(s, fd, was_candidate && counted);
    }
    if state == ATTACHED {
        crate::io::before_close(s, fd, true);
    }
    let r = kernel_close();
    if !s.is_inherited() {
        close_books(s);
    }
    if was_candidate && adoption::leave(s) {
        return r;
    }
    let _ = s.state.compare_exchange(CLOSING, PLAIN, SeqCst, Relaxed);
    // Threads that still know it find another generation when they look again; only then is its
    // slot given back.
    let tx = crate::lock::lock_end(&s.tx_lock);
    let rx = crate::lock::lock_end(&s.rx_lock);
    if tx.is_some() && rx.is_some() {
        s.generation.fetch_add(1, AcqRel);
        s.state.store(FREE, Release);
        s.record.store(core::ptr::null_mut(), Relaxed);
        let mine = !s.is_inherited();
        drop((tx, rx));
        if state == ATTACHED || state == PLAIN {
            // (A plain one may have been made so by a forked child, which cannot give the slot
            // back.)
            crate::io::after_close(s);
        }
        if mine {
            s.raise(flag::FREE_LATER);
            recycle(s);
        }
    }
    r
}

/// Learns how calls on it wait.
pub(crate) fn look_at_options(s: &Socket, fd: c_int) {
    let fl = sys::fcntl(fd, libc::F_GETFL, 0);
    set_nonblock(s, fl >= 0 && fl as c_int & libc::O_NONBLOCK != 0);
    let mut corked: c_int = 0;
    let _ = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &mut corked);
    set_corked(s, corked != 0);
    for (timeout_ns, name) in
        [(&s.receive_timeout_ns, libc::SO_RCVTIMEO), (&s.send_timeout_ns, libc::SO_SNDTIMEO)]
    {
        // A negative one, which was seen when it was set, reads as none.
        if timeout_ns.load(Relaxed) >= 0 {
            timeout_ns.store(sys::timeout_of(fd, name), Relaxed);
        }
    }
}

/// A connection that was left to children, and that none of them needs any more.
pub(crate) fn free_left(s: &'static Socket) {
    s.generation.fetch_add(1, AcqRel);
    s.state.store(FREE, Release);
    s.raise(flag::FREE_LATER);
    recycle(s);
}

/// The memory of a connection that is over serves again when nobody is in a call on it. Called by
/// whoever leaves one.
pub(crate) fn recycle(s: &'static Socket) {
    let unused = || {
        s.tx_inflight.load(SeqCst) == 0
            && s.rx_inflight.load(SeqCst) == 0
            && s.waiters.load(SeqCst) == 0
    };
    if s.has(flag::FREE_LATER)
        && unused()
        && s.flags.fetch_and(!flag::FREE_LATER, AcqRel) & flag::FREE_LATER != 0
    {
        push_free(s);
    }
}

pub(crate) fn set_corked(s: &Socket, on: bool) {
    if on { s.raise(flag::CORKED) } else { s.lower(flag::CORKED) }
}

pub(crate) fn set_nonblock(s: &Socket, on: bool) {
    if on { s.raise(flag::NONBLOCK) } else { s.lower(flag::NONBLOCK) }
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> Ret {
    let Some((s, g)) = fd_table::socket(fd) else { return PASS };
    loop {
        match s.state.load(SeqCst) {
            ATTACHED => return crate::io::shutdown(s, g, fd, how),
            ATTACHING if await_attach(s) => {}
            // Half a connection is not worth an agreement with another host.
            CANDIDATE if s.has(flag::REMOTE) => make_plain(s, Reason::Disconnected),
            CANDIDATE if !s.is_inherited() => {
                if let Some(r) = crate::io::shutdown_candidate(s, g, fd, how) {
                    return r;
                }
            }
            _ => return PASS,
        }
    }
}
