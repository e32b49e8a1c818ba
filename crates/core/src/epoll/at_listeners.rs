//! A wait in a set that may have listeners at which several processes accept (`-F 1`): their peers
//! know of it while it lasts.

use super::epoll_wait::wait_here;
use super::{Counted, Epoll, at, leaves_listeners};
use crate::outcome::{Mask, PASS, Ret};
use crate::{fast_connect, fd_table, process, signals};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::epoll_event;

#[inline]
pub(crate) unsafe fn wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: i64,
    mask: Mask,
    counted: &mut Counted,
) -> Ret {
    if fast_connect::has_shared() {
        // SAFETY: as it came.
        return unsafe { wait_at_listeners(epfd, events, max, timeout_ns, mask, counted) };
    }
    // SAFETY: as it came.
    unsafe { wait_here(epfd, events, max, timeout_ns, mask, counted) }
}

/// One that goes on in the kernel is over in `Counted::over`.
#[cold]
#[inline(never)]
unsafe fn wait_at_listeners(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: i64,
    mask: Mask,
    counted: &mut Counted,
) -> Ret {
    let own = |e: &&Epoll| e.owner.load(Relaxed) == process::id();
    let own = fd_table::epoll(epfd).map(at).filter(own);
    if own.is_some() {
        signals::held(|| fast_connect::waits_in(epfd));
    }
    // SAFETY: as it came.
    let r = unsafe { wait_here(epfd, events, max, timeout_ns, mask, counted) };
    if let Some(e) = own.filter(|_| r != PASS) {
        leaves_listeners(e, epfd);
    }
    r
}
