//! A close of one of a connection's descriptors (how the last one takes the connection apart is
//! `last_close.rs`), a shutdown, and what is still said for a connection when the process ends.
//!
//! ```text
//! close ── other names are left: renamed, or only closed (a child's names are its maker's)
//!   ├─ fast connect keeps the carrier (`park.rs` `parks`): only this number is closed
//!   └─ let_go ── no ring: finish
//!        └─ last_name ── calls are under way, or (between hosts) bytes: Outlived, an orphan goes on
//!             │          (`outlive.rs`); when that has ended: bury_orphan, which comes by let_go
//!             │          again
//!             ├─ a forked child may want the ring: LeftToChild
//!             └─ Gone: finish ── before_close (FIN or reset, said in the ring), the kernel's close,
//!                                after_close (the slot is given back)
//! ```

use super::end_in_reset::reset_if_more_comes;
use super::held_back::send_held;
use super::last_close::{before_close, let_go};
use super::leave::close_spare;
use super::{kept, park};
use crate::candidates::{look_up, make_plain};
use crate::fd_table::Entry;
use crate::outcome::{ANEW, PASS, Ret};
use crate::socket::{Socket, State, await_change, flag};
use crate::{adoption, agent, fast_connect, fd_table, lock, process, sys, trace};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// A descriptor of `s` is closed; with this process's last one the connection ends here.
/// `kernel_too` false: the kernel's close is somebody else's.
pub(crate) fn close(s: &'static Socket, g: u16, fd: c_int, kernel_too: bool) -> Ret {
    let kernel_close = || if kernel_too { sys::close(fd) } else { 0 };
    if s.generation16() != g {
        return kernel_close();
    }
    if !adoption::counts_names(s) {
        return kernel_close();
    }
    let Some(names) = s.count_names(g, |n| n.saturating_sub(1)) else { return kernel_close() };
    if names > 1 {
        let mut other = -1;
        fd_table::for_each(|n, e| {
            if other < 0 && matches!(e, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g) {
                other = n;
            }
        });
        if s.has(flag::TRACKED) && fd >= 0 {
            adoption::before_one_of_several(s, fd);
        }
        if s.is_inherited() {
            // What it says of descriptors is its maker's.
            return kernel_close();
        }
        if other >= 0 {
            rename(s, fd, other);
            let r = kernel_close();
            if s.has(flag::TRACKED) {
                adoption::after_one_of_several(s, other);
            }
            if s.has(flag::STDIO) {
                adoption::stdio::after_close(s, g, other);
            }
            return r;
        }
    }
    if s.is_inherited() && names == 1 && s.has(flag::FAMILY) {
        adoption::exec::family_ended(s, fd, s.is(State::Left));
    }
    // A child takes apart only what its maker has left to it, by a close or by its end.
    if s.is_inherited() && s.fd.load(Acquire) >= 0 && process::is_alive(s.owner.load(Relaxed)) {
        return kernel_close();
    }
    if s.life.load(Relaxed) != 0 {
        return close_life(s, g, fd, kernel_too);
    }
    let_go(s, g, fd, kernel_close)
}

/// As [`close`], of the last descriptor of a connection that fast connect may keep: its carrier may
/// go to a later connection, or has a number of the library's besides.
#[cold]
#[inline(never)]
fn close_life(s: &'static Socket, g: u16, fd: c_int, kernel_too: bool) -> Ret {
    let kernel_close = || if kernel_too { sys::close(fd) } else { 0 };
    if kernel_too && fd >= 0 && s.is(State::Attached) && !s.is_inherited() && park::parks(s, g, fd)
    {
        return kernel_close();
    }
    let_go(s, g, fd, || {
        close_spare(s);
        kernel_close()
    })
}

/// `fd` is about to be closed, and the connection goes on under the number `other`.
fn rename(s: &'static Socket, fd: c_int, other: c_int) {
    let tx = lock::lock_end(&s.tx_lock);
    if s.fd.load(Relaxed) == fd || other < 0 {
        s.fd.store(other, Release);
        if let Some(r) = s.record().filter(|_| other >= 0) {
            r.fd.store(other as u32, Relaxed);
        }
    }
    drop(tx);
    agent::renamed(s);
}

/// Closes a connection that the application has not been given yet.
pub(crate) fn close_of(fd: c_int) -> Ret {
    let raw = fd_table::raw(fd);
    match fd_table::decode(raw) {
        Entry::Socket(s, g) if fd_table::take(fd, raw) => close(s, g, fd, true),
        _ => sys::close(fd),
    }
}

pub(crate) fn shutdown_of(fd: c_int, how: c_int) -> Ret {
    let Some((s, g)) = fd_table::socket(fd) else {
        if let Some(l) = fast_connect::listener(fd).filter(|_| how != libc::SHUT_WR) {
            kept::end_listener(l);
        }
        return PASS;
    };
    s.trace_once(trace::Event::Shutdown, how as u64 & 0xff);
    loop {
        match s.state.now() {
            State::Attached => match super::shutdown(s, g, fd, how) {
                ANEW if s.generation16() == g => sys::sched_yield(),
                ANEW => return PASS,
                r => return r,
            },
            State::Changing if await_change(s) => {}
            // On such a path the ring cannot say that one direction has ended: no agreement.
            State::Candidate if !s.path().is_shared() => make_plain(s, Reason::ShuttingDown),
            // The addresses are looked up only if one direction goes on.
            State::Candidate if s.is_new() && how != libc::SHUT_WR && !s.is_inherited() => {
                if how == libc::SHUT_RDWR || !look_up(s, g, fd) {
                    make_plain(s, Reason::ShuttingDown);
                }
            }
            State::Candidate if !s.is_inherited() => {
                if let Some(r) = super::shutdown_candidate(s, g, fd, how) {
                    return r;
                }
            }
            _ => return PASS,
        }
    }
}

/// The process ends in order, and the kernel is about to close `fd`. If bytes lie unread in the
/// ring the connection has to end in a reset, of which the kernel knows nothing by itself.
pub(crate) fn at_exit(s: &'static Socket, fd: c_int) {
    if !s.is(State::Attached) && s.names() == 1 && !s.is_inherited() {
        reset_if_more_comes(s, fd);
    }
    // Never waits: another thread may hold the end for ever.
    if !s.is(State::Attached) || s.rx_lock.owner() != 0 || s.tx_lock.owner() != 0 {
        return;
    }
    if s.names() == 1 {
        before_close(s, fd, false);
    } else if s.has(flag::HOLDS) && !s.is_inherited() {
        send_held(s, s.generation16());
    }
}
