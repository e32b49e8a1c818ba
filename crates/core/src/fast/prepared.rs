//! Sockets that are made once and lent again and again. A connect that takes a parked carrier puts
//! the carrier under the number of its fresh socket, whose making and unmaking would be half of
//! what it costs. So the socket itself is kept, under a number of the library's own, and `socket`
//! gives out another name for it.
//!
//! As long as it is *lent* the application may do with it whatever a fresh socket is for. All but a
//! take ends that: the library's name goes ([`give_away`]). One that comes back by a take is as it
//! was made: nothing was set on it, no other process has it, and it has no address.

use crate::fd_words::close_internal;
use crate::lock::Mutex;
use crate::{numbers, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// So many are kept, for so long: what a new socket has of its process (user, control group,
/// network namespace) is then of a moment ago.
const MOST: usize = 8;
const AGE_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Prepared {
    /// The library's name of it.
    own: c_int,
    domain: c_int,
    nonblock: bool,
    made: u64,
    /// Under which number of the application's.
    lent: Option<c_int>,
}

static ALL: Mutex<[Option<Prepared>; MOST]> = Mutex::new([None; MOST]);
/// How many are idle; how many are lent.
static IDLE: AtomicU32 = AtomicU32::new(0);
static LENT: AtomicU32 = AtomicU32::new(0);

/// Of one that is being lent.
const NO_NUMBER: c_int = -1;

/// Whether any could be lent.
#[inline(always)]
pub(crate) fn has_prepared() -> bool {
    IDLE.load(Relaxed) != 0
}

/// Changes one that fits.
fn change<R>(
    fits: impl Fn(&Prepared) -> bool,
    f: impl FnOnce(&mut Option<Prepared>) -> Option<R>,
) -> Option<R> {
    let mut all = ALL.lock();
    let r = all.iter_mut().find(|p| p.as_ref().is_some_and(&fits)).and_then(f);
    let count =
        |lent: bool| all.iter().flatten().filter(|p| p.lent.is_some() == lent).count() as u32;
    IDLE.store(count(false), Relaxed);
    LENT.store(count(true), Relaxed);
    r
}

/// A socket of that kind, under a number of the application's. `None`: the kernel's, as ever.
pub(crate) fn lend(domain: c_int, flags: c_int) -> Option<c_int> {
    let now = sys::now_ns();
    let is_old = |p: &Prepared| now.saturating_sub(p.made) > AGE_NS;
    close_each(|p| p.lent.is_none() && is_old(p));
    let own = change(
        |p| p.lent.is_none() && p.domain == domain,
        |place| {
            let p = place.as_mut()?;
            p.lent = Some(NO_NUMBER);
            Some((p.own, core::mem::replace(&mut p.nonblock, flags & libc::SOCK_NONBLOCK != 0)))
        },
    );
    let (own, nonblock) = own?;
    if nonblock != (flags & libc::SOCK_NONBLOCK != 0) {
        let flags = libc::O_RDWR | if nonblock { 0 } else { libc::O_NONBLOCK };
        let _ = sys::fcntl(own, libc::F_SETFL, flags as usize);
    }
    let dup = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let ticket = numbers::enter();
    let fd = sys::fcntl(own, dup, 0) as c_int;
    numbers::leave(ticket);
    change(
        |p| p.own == own,
        |place| {
            place.as_mut()?.lent = (fd >= 0).then_some(fd);
            Some(())
        },
    );
    (fd >= 0).then_some(fd)
}

/// The number's socket is an unconnected one no more, or not this process's alone: the library has
/// no name of it from here on.
#[inline]
pub(crate) fn give_away(fd: c_int) {
    if LENT.load(Relaxed) != 0 {
        give_away_lent(fd);
    }
}

#[cold]
#[inline(never)]
fn give_away_lent(fd: c_int) {
    close_each(|p| p.lent == Some(fd));
}

/// As [`give_away`], of all that are lent.
pub(crate) fn give_away_all() {
    if LENT.load(Relaxed) != 0 {
        close_each(|p| p.lent.is_some());
    }
}

/// None is kept any more.
pub(crate) fn forget_prepared() {
    if LENT.load(Relaxed) | IDLE.load(Relaxed) != 0 {
        close_each(|_| true);
    }
}

#[cold]
#[inline(never)]
fn close_each(which: impl Fn(&Prepared) -> bool) {
    while let Some(p) = change(&which, Option::take) {
        close_internal(p.own);
    }
}

/// The number is about to be another file's, and the socket is as it was made: it is kept. The
/// caller has found that it has no address.
pub(crate) fn keep_socket(fd: c_int, domain: c_int, nonblock: bool) {
    let is_lent = change(
        |p| p.lent == Some(fd),
        |place| {
            let p = place.as_mut()?;
            (p.lent, p.nonblock) = (None, nonblock);
            Some(())
        },
    );
    if is_lent.is_some() || ALL.lock().iter().all(Option::is_some) {
        return;
    }
    let own = numbers::copy(fd);
    if own < 0 {
        return;
    }
    let new = Prepared { own, domain, nonblock, made: sys::now_ns(), lent: None };
    let place = ALL.lock().iter_mut().find(|p| p.is_none()).map(|place| *place = Some(new));
    match place {
        Some(()) => _ = IDLE.fetch_add(1, Relaxed),
        None => close_internal(own),
    }
}

/// What was idle is the parent's. (What was lent was given away before the fork.)
pub(super) fn after_fork_in_child() {
    close_each(|_| true);
}
