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
use crate::{numbers, process, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

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

/// A thread of the process has been, or may be, in another network namespace than others: which one
/// a kept socket is of is not the next thread's.
static NEVER: AtomicBool = AtomicBool::new(false);

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
///
/// All under the lock: whoever closes the library's name meanwhile closes it before or after, and
/// never lets that number become another descriptor's between.
pub(crate) fn lend(domain: c_int, flags: c_int) -> Option<c_int> {
    let now = sys::now_ns();
    let is_old = |p: &Prepared| now.saturating_sub(p.made) > AGE_NS;
    close_each(|p| p.lent.is_none() && is_old(p));
    change(
        |p| p.lent.is_none() && p.domain == domain && !NEVER.load(Relaxed),
        |place| {
            let p = place.as_mut()?;
            p.lent = name_for_application(p, flags);
            p.lent
        },
    )
}

fn name_for_application(p: &mut Prepared, flags: c_int) -> Option<c_int> {
    let nonblock = flags & libc::SOCK_NONBLOCK != 0;
    if p.nonblock != nonblock {
        let flags = libc::O_RDWR | if nonblock { libc::O_NONBLOCK } else { 0 };
        let _ = sys::fcntl(p.own, libc::F_SETFL, flags as usize);
        p.nonblock = nonblock;
    }
    let dup = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let ticket = numbers::enter();
    let fd = sys::fcntl(p.own, dup, 0) as c_int;
    numbers::leave(ticket);
    (fd >= 0).then_some(fd)
}

/// The number's socket is an unconnected one no more, or not this process's alone: the library has
/// no name of it from here on.
#[inline]
pub(crate) fn give_away(fd: c_int) {
    if LENT.load(Relaxed) != 0 && fd >= 0 {
        give_away_lent(fd);
    }
}

#[cold]
#[inline(never)]
fn give_away_lent(fd: c_int) {
    close_own(|p| p.lent == Some(fd));
}

/// As [`give_away`], of all that are lent.
pub(crate) fn give_away_all() {
    if LENT.load(Relaxed) != 0 {
        close_own(|p| p.lent.is_some());
    }
}

/// None is kept any more.
pub(crate) fn forget_prepared() {
    if LENT.load(Relaxed) | IDLE.load(Relaxed) != 0 {
        close_own(|_| true);
    }
}

/// None is kept any more, nor ever again: a thread is about to go to another network namespace,
/// where the others are not.
#[cold]
pub(crate) fn never_prepare() {
    // (A child that shares this memory goes there alone.)
    if !process::may_be_vfork_child() {
        NEVER.store(true, Relaxed);
        close_each(|_| true);
    }
}

/// As [`close_each`], but in a child that shares this memory, and has descriptors of its own: they
/// are the parent's.
fn close_own(which: impl Fn(&Prepared) -> bool) {
    if !process::may_be_vfork_child() {
        close_each(which);
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
    if is_lent.is_some() || NEVER.load(Relaxed) || ALL.lock().iter().all(Option::is_some) {
        return;
    }
    let own = numbers::copy(fd);
    if own < 0 {
        return;
    }
    let new = Prepared { own, domain, nonblock, made: sys::now_ns(), lent: None };
    let mut all = ALL.lock();
    // (Whoever says never looks behind that for what is kept, under the lock.)
    match all.iter_mut().find(|p| p.is_none()).filter(|_| !NEVER.load(Relaxed)) {
        Some(place) => {
            *place = Some(new);
            IDLE.fetch_add(1, Relaxed);
        }
        None => {
            drop(all);
            close_internal(own);
        }
    }
}

/// What was idle is the parent's. (What was lent was given away before the fork.)
pub(super) fn after_fork_in_child() {
    close_each(|_| true);
}

/// For the next test.
#[cfg(test)]
pub(crate) fn prepare_again() {
    NEVER.store(false, Relaxed);
}
