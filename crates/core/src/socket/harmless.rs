//! Options that change nothing of what a ring carries, through the lives of a carrier: the next
//! life is to have them as a new connection has. What the one before has set is undone only when
//! somebody can see it, as most programs set the same again at once.

use super::{Socket, flag, set_nonblock};
use crate::lock::Mutex;
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering::*};

pub(crate) const HARMLESS: [(c_int, c_int); 5] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
];
/// The first of them are 0 on every new socket.
const OFF_AT_FIRST: usize = 2;

/// Which of them that is.
pub(crate) fn index(level: c_int, name: c_int) -> Option<usize> {
    HARMLESS.iter().position(|o| *o == (level, name))
}

/// What a descriptor has of each of them.
pub(crate) fn values(fd: c_int) -> [c_int; HARMLESS.len()] {
    core::array::from_fn(|i| value(fd, i))
}

fn value(fd: c_int, i: usize) -> c_int {
    let mut value: c_int = 0;
    if let Some((level, name)) = HARMLESS.get(i) {
        let _ = sys::getsockopt(fd, *level, *name, &mut value);
    }
    value
}

fn set_value(fd: c_int, i: usize, value: c_int) {
    if let Some((level, name)) = HARMLESS.get(i) {
        let _ = sys::setsockopt(fd, *level, *name, &value);
    }
}

/// What a carrier has of them.
pub(crate) struct Harmless {
    /// Those that it has from an earlier life: a bit for each.
    owed: AtomicU32,
    /// What this life has instead, of those that are owed.
    due: [AtomicI32; HARMLESS.len()],
    /// What the carrier has, where that is known.
    has: [AtomicI64; HARMLESS.len()],
    /// Whether the carrier has O_NONBLOCK: [`AS_FLAG`], or `bool` + 1.
    nonblock: AtomicU32,
}

/// As the connection itself ([`flag::NONBLOCK`]), by which all calls on its rings go.
const AS_FLAG: u32 = 0;

const UNKNOWN: i64 = i64::MIN;

/// Who undoes one of them, and who sets it, do so in turn.
static TURN: Mutex<()> = Mutex::new(());

impl Harmless {
    /// Of a carrier's first life.
    pub(crate) fn reset(&self) {
        self.owed.store(0, Relaxed);
        self.nonblock.store(AS_FLAG, Relaxed);
        self.forget();
    }

    fn forget(&self) {
        self.has.iter().for_each(|has| has.store(UNKNOWN, Relaxed));
    }
}

/// The application is about to set one of them. True: the carrier has that value already.
#[cold]
#[inline(never)]
pub(crate) fn before_set(s: &Socket, fd: c_int, i: usize, value: c_int) -> bool {
    let _one = TURN.lock();
    let Some(has) = s.harmless.has.get(i) else { return false };
    if has.load(Relaxed) == i64::from(value) {
        s.harmless.owed.fetch_and(!(1 << i), AcqRel);
        return true;
    }
    // (The kernel may refuse the value: then it is as it was in this life.)
    undo(s, fd, 1 << i);
    has.store(UNKNOWN, Relaxed);
    false
}

/// It has been set.
pub(crate) fn on_set(s: &Socket, i: usize) {
    if let Some(has) = s.harmless.has.get(i) {
        has.store(UNKNOWN, Relaxed);
    }
}

/// Others than this process's calls may see and change from here on what the carrier has.
#[inline]
pub(crate) fn write_back(s: &Socket, fd: c_int) {
    if s.life.load(Relaxed) > 1 {
        write_back_all(s, fd);
    }
}

#[cold]
#[inline(never)]
fn write_back_all(s: &Socket, fd: c_int) {
    let _one = TURN.lock();
    undo(s, fd, u32::MAX);
    s.harmless.forget();
    let nonblock = s.has(flag::NONBLOCK);
    let has = s.harmless.nonblock.swap(AS_FLAG, Relaxed);
    if has != AS_FLAG && has != u32::from(nonblock) + 1 {
        let flags = libc::O_RDWR | if nonblock { libc::O_NONBLOCK } else { 0 };
        let _ = sys::fcntl(fd, libc::F_SETFL, flags as usize);
    }
}

/// The application sets O_NONBLOCK, or takes it away. True: that is all; the carrier learns it when
/// somebody could see it there.
#[cold]
#[inline(never)]
pub(crate) fn sets_nonblock(s: &Socket, nonblock: bool) -> bool {
    let _one = TURN.lock();
    let owed = s.harmless.nonblock.load(Relaxed) != AS_FLAG;
    if owed {
        set_nonblock(s, nonblock);
    }
    owed
}

/// The flags of a descriptor that the application asks for. `None`: the kernel knows them.
#[cold]
#[inline(never)]
pub(crate) fn status_flags(s: &Socket) -> Option<c_int> {
    let owed = s.harmless.nonblock.load(Relaxed) != AS_FLAG;
    owed.then(|| libc::O_RDWR | if s.has(flag::NONBLOCK) { libc::O_NONBLOCK } else { 0 })
}

/// The application asks for these.
#[cold]
#[inline(never)]
pub(crate) fn write_back_some(s: &Socket, fd: c_int, which: u32) {
    let _one = TURN.lock();
    undo(s, fd, which);
}

fn undo(s: &Socket, fd: c_int, which: u32) {
    let h = &s.harmless;
    let owed = h.owed.fetch_and(!which, AcqRel) & which;
    for (i, (due, has)) in h.due.iter().zip(&h.has).enumerate() {
        if owed & 1 << i != 0 {
            let due = due.load(Relaxed);
            set_value(fd, i, due);
            has.store(i64::from(due), Relaxed);
        }
    }
}

/// What the next life has of them.
pub(crate) enum Due<'a> {
    /// Connector: what its fresh socket has, of which the application has set some.
    Fresh(c_int, u32),
    /// Acceptor: what its listener has.
    Listener(&'a [AtomicI32; HARMLESS.len()]),
}

/// The next life of a carrier begins, which the caller has alone; `set`: of the one before.
pub(crate) fn begin_life(s: &Socket, carrier: c_int, set: u32, due: &Due<'_>, nonblock: bool) {
    let h = &s.harmless;
    let _one = TURN.lock();
    if h.nonblock.load(Relaxed) == AS_FLAG {
        h.nonblock.store(u32::from(s.has(flag::NONBLOCK)) + 1, Relaxed);
    }
    set_nonblock(s, nonblock);
    let old = set | h.owed.load(Relaxed);
    let now = if let Due::Fresh(_, marks) = due { *marks } else { 0 };
    let mut owed = 0;
    for i in 0..HARMLESS.len() {
        let bit = 1u32 << i;
        let (Some(has), Some(its)) = (h.has.get(i), h.due.get(i)) else { continue };
        if (old | now) & bit == 0 {
            continue;
        }
        let wanted = match due {
            Due::Fresh(_, marks) if i < OFF_AT_FIRST && marks & bit == 0 => 0,
            Due::Fresh(fresh, _) => value(*fresh, i),
            Due::Listener(values) => values.get(i).map_or(0, |v| v.load(Relaxed)),
        };
        let mut known = has.load(Relaxed);
        if known == UNKNOWN {
            known = i64::from(value(carrier, i));
        }
        if known != i64::from(wanted) && now & bit != 0 {
            set_value(carrier, i, wanted);
            known = i64::from(wanted);
        }
        has.store(known, Relaxed);
        its.store(wanted, Relaxed);
        owed |= if known == i64::from(wanted) { 0 } else { bit };
    }
    h.owed.store(owed, Release);
}
