//! Adoption: a connection that one process made, and that a forked child goes on with alone
//! (`docs/design/adoption.md`).
//!
//! The first call of a child on a connection that was never attached gives the child a socket of
//! its own for it: the *heir*, in its own memory, a candidate whose bytes are counted from there
//! on. It is noted for an agreement only when nobody else has the connection any more: its maker
//! has closed it ([`State::Left`]), and all descriptors that are counted are this process's.

pub(crate) mod exec;
pub(crate) mod locks;
pub(crate) mod passed;
pub(crate) mod share;
pub(crate) mod stdio;

use crate::fd_table::{self, Entry};
use crate::lock::Mutex;
use crate::log::debug_log;
use crate::socket::{self, Event, Socket, State, flag};
use crate::{candidates, carrier, process, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use netacc_control::stats::Reason;

/// Connections that are kept for children which may adopt them; the oldest makes room.
const KEPT: usize = 1024;
/// How long a process that uses a connection waits for the others to close it.
const PATIENCE_NS: u64 = 1_000_000_000;

/// What this process has left to its children, in order.
struct ForChildren {
    places: [Option<&'static Socket>; KEPT],
    first: usize,
    count: usize,
}

static KEPT_FOR_CHILDREN: Mutex<ForChildren> =
    Mutex::new(ForChildren { places: [None; KEPT], first: 0, count: 0 });

impl ForChildren {
    fn oldest(&self) -> Option<&'static Socket> {
        self.places.get(self.first).copied().flatten().filter(|_| self.count != 0)
    }

    fn free_oldest(&mut self) {
        if let Some(s) = self.oldest() {
            self.first = (self.first + 1) % KEPT;
            self.count -= 1;
            socket::free_left(s);
        }
    }

    fn add(&mut self, s: &'static Socket) {
        while self.count == KEPT || self.oldest().is_some_and(|old| old.is(State::Adopted)) {
            self.free_oldest();
        }
        if let Some(place) = self.places.get_mut((self.first + self.count) % KEPT) {
            *place = Some(s);
            self.count += 1;
        }
    }
}

/// What the parent keeps, the parent frees. `inherits`: there are connections that the fork
/// counted.
pub(crate) fn after_fork_in_child(inherits: bool) {
    INHERITS.store(inherits, Relaxed);
    LEAVING.iter().for_each(|w| w.store(0, Relaxed));
    COUNTED_OUT.store(false, Relaxed);
    let mut kept = KEPT_FOR_CHILDREN.lock();
    (kept.first, kept.count) = (0, 0);
}

/// Nothing of the parent's is known here any more.
pub(crate) fn forget_parent() {
    LEAVING.iter().for_each(|w| w.store(0, Relaxed));
    fd_table::for_each(|_, entry| {
        if let Entry::Socket(s, _) = entry
            && !s.is_inherited()
        {
            s.from.store(core::ptr::null_mut(), Release);
        }
    });
}

/// This process has inherited connections.
static INHERITS: AtomicBool = AtomicBool::new(false);
pub(crate) fn inherits() -> bool {
    INHERITS.load(Relaxed)
}

/// Table entries that this process has given up, and may have after all: its exec can fail.
static LEAVING: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// This process has counted itself out of the connections that only their maker can serve.
static COUNTED_OUT: AtomicBool = AtomicBool::new(false);

/// Whether a close counts a name of the connection out. (Where this process has ended, for its
/// library, none is counted twice.)
pub(crate) fn counts_names(s: &Socket) -> bool {
    !(COUNTED_OUT.load(Relaxed) && s.needs_maker())
}

/// This process ends: the connections that it has inherited, and that only their maker can serve,
/// have its names no more. They stay in the table, as code behind the end may use them. (Not by
/// exec: that may fail, and not each call of libc's says so.)
fn count_of_makers() {
    if COUNTED_OUT.swap(true, Relaxed) {
        return;
    }
    fd_table::for_each(|_, entry| {
        let Entry::Socket(s, g) = entry else { return };
        // (A candidate: `before_leaving`.)
        if s.needs_maker() && !matches!(s.state.now(), State::Candidate | State::Left) {
            let _ = s.count_names(g, |n| n.saturating_sub(1));
        }
    });
}

/// This process ends, or becomes a program that does not have what closes on exec. What it
/// inherited and has not used is counted out; until the kernel has closed it a mark of the kernel's
/// stands in for the count.
pub(crate) fn before_leaving(by_exec: bool) {
    if !INHERITS.load(Relaxed) {
        return;
    }
    if !by_exec {
        count_of_makers();
    }
    fd_table::for_each(|fd, entry| {
        let Entry::Socket(s, g) = entry else { return };
        let unused = s.is_inherited() && matches!(s.state.now(), State::Candidate | State::Left);
        if !unused || (by_exec && sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize == 0)
        {
            return;
        }
        let raw = fd_table::encode(entry);
        let Some(place) = LEAVING.iter().find(|w| w.load(Relaxed) == 0) else { return };
        // (The mark goes with the first of several names that is closed.)
        let mut names = 0;
        fd_table::for_each(|_, other| names += u32::from(fd_table::encode(other) == raw));
        if names == 1 && passed::hold(fd) && fd_table::take(fd, raw) {
            place.store(raw, Relaxed);
            let _ = s.count_names(g, |n| n.saturating_sub(1));
        }
    });
}

/// The process forks: its exec has failed, and its child has what it had given up without being
/// counted.
pub(crate) fn before_fork() {
    if !INHERITS.load(Relaxed) {
        return;
    }
    for place in &LEAVING {
        if let Entry::Socket(s, g) = fd_table::decode(place.swap(0, Relaxed))
            && s.generation16() == g
        {
            refuse(s, g);
        }
    }
}

/// A candidate ([`State::Closing`] by now) whose last name in this process is closed. True:
/// children have it, and it is kept for them.
pub(crate) fn leave(s: &'static Socket) -> bool {
    if s.is_inherited() || !s.path().children_follow() || s.has(flag::UNSETTLED | flag::PASSED) {
        give_back(s);
        return false;
    }
    // A call that another thread is still in moves bytes that nobody would know of.
    let unused = s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
    // (It is left, too, to a child that has just counted itself out, and looks for that.)
    if (s.names() == 0 && !s.has(flag::FAMILY)) || !unused {
        return false;
    }
    // (Not waited for: this may be a signal handler.)
    let Some(mut kept) = KEPT_FOR_CHILDREN.try_lock() else { return false };
    if !s.state.change(State::Closing, Event::Left) {
        return false;
    }
    kept.add(s);
    debug_log!("{:?}: left to the children that have it", s.known_tuple());
    true
}

/// An heir that was closed before it was alone: the others may be, now.
fn give_back(s: &'static Socket) {
    // SAFETY: null or a socket of a type-stable slab, which every process that was forked since
    // has.
    let Some(from) = (unsafe { s.from.load(Acquire).as_ref() }) else { return };
    let unused = s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
    if s.names() == 0 && unused {
        let (g, names) = key_of(s);
        let _ = from.count_names(g, |n| n.saturating_sub(names));
    }
}

fn key_of(s: &Socket) -> (u16, u32) {
    let key = s.from_key.load(Acquire);
    (key as u16, (key >> 16) as u32)
}

/// The socket of `fd` for a call that begins to use it: an inherited one is adopted if it can be.
#[inline(always)]
pub(crate) fn of(s: &'static Socket, g: u16, fd: c_int) -> (&'static Socket, u16) {
    if s.is_inherited() { of_inherited(s, g, fd) } else { (s, g) }
}

#[cold]
#[inline(never)]
fn of_inherited(s: &'static Socket, g: u16, fd: c_int) -> (&'static Socket, u16) {
    loop {
        match s.state.now() {
            _ if !fd_table::socket(fd).is_some_and(|(now, h)| core::ptr::eq(now, s) && h == g) => {
                break;
            }
            State::Candidate | State::Left => {
                let _ = adopt(s, g, fd);
            }
            State::Closing => socket::await_close(s),
            State::Changing if socket::await_change(s) => {}
            _ => break,
        }
    }
    fd_table::socket(fd).unwrap_or((s, g))
}

/// Makes an heir of an inherited connection. True: the table has it. False: it is not
/// [`State::Candidate`] or [`State::Left`] any more: nobody can adopt it.
#[cold]
#[inline(never)]
pub(crate) fn adopt(s: &'static Socket, g: u16, fd: c_int) -> bool {
    // No child is made that would know neither of the two.
    if process::between_forks(|| try_adopt(s, g, fd)) == Some(true) {
        return true;
    }
    refuse(s, g);
    false
}

/// Nobody adopts it from here on.
fn refuse(s: &'static Socket, g: u16) {
    debug_log!("{:?}: is not adopted", s.known_tuple());
    s.state.change(State::Left, Event::Refused);
    if s.generation16() == g {
        candidates::make_plain(s, Reason::InheritedByFork);
    }
}

fn try_adopt(s: &'static Socket, g: u16, fd: c_int) -> bool {
    let is_it =
        |entry: Entry| matches!(entry, Entry::Socket(now, h) if core::ptr::eq(now, s) && h == g);
    if !is_it(fd_table::get(fd)) {
        // Another thread was faster.
        return true;
    }
    if !s.children_follow() {
        return false;
    }
    // Before the look at its state: who attaches it changes that first, and then looks for the
    // mark.
    s.flags.fetch_or(flag::CONTESTED, SeqCst);
    if !matches!(s.state.now(), State::Candidate | State::Left) {
        return true;
    }
    let connector = s.has(flag::CONNECTOR);
    let (Some(tuple), Some(moved)) =
        (carrier::tuple_of(fd), carrier::settled_counts(fd, connector))
    else {
        return false;
    };
    let Some(heir) = candidates::new_heir(fd, Reason::None, connector, tuple, moved) else {
        return false;
    };
    if !heir.children_follow() {
        candidates::make_plain(heir, Reason::InheritedByFork);
    }
    heir.raise(flag::HEIR | flag::UNSETTLED);
    // What the kernel does not tell of them: see `socket::look_at_options`.
    heir.receive_timeout_ns.store(s.receive_timeout_ns.load(Relaxed), Relaxed);
    heir.send_timeout_ns.store(s.send_timeout_ns.load(Relaxed), Relaxed);
    let h = heir.generation16();
    let mut names = 0u32;
    fd_table::for_each(|n, entry| {
        if is_it(entry) {
            names += 1;
            stdio::named(heir, n);
        }
    });
    heir.from_key.store(u64::from(names) << 16 | u64::from(g), Relaxed);
    heir.from.store(core::ptr::from_ref(s).cast_mut(), Release);
    let _ = heir.count_names(h, |_| names);
    if heir.is(State::Candidate) {
        heir.set_reason(Reason::InheritedByFork);
    }
    debug_log!("{tuple:?}: adopted, under {names} names, sent {} received {}", moved.0, moved.1);
    let old = fd_table::encode(Entry::Socket(s, g));
    fd_table::for_each(|n, entry| {
        if is_it(entry) && !fd_table::replace(n, old, Entry::Socket(heir, h)) {
            let _ = heir.count_names(h, |n| n.saturating_sub(1));
        }
    });
    true
}

/// Whether nobody but this process has a connection that it has adopted. Asked after a call that
/// moved bytes.
#[cold]
#[inline(never)]
pub(crate) fn go_alone(s: &'static Socket, fd: c_int) -> bool {
    let alone = is_alone(s, fd);
    if alone == Some(true) {
        return goes_alone(s, fd);
    }
    let calls = s.calls.fetch_add(1, Relaxed).wrapping_add(1);
    if calls == 1 {
        s.look_at.store(sys::now_ns(), Relaxed);
    }
    let too_long = calls.is_multiple_of(64)
        && sys::now_ns().saturating_sub(s.look_at.load(Relaxed)) > PATIENCE_NS;
    if alone.is_none() || too_long {
        candidates::make_plain(s, why(s));
    }
    false
}

/// Nobody else has it. False: it is plain all the same.
fn goes_alone(s: &'static Socket, fd: c_int) -> bool {
    // Whoever had it before may have shut it down.
    if !carrier::is_open(fd) {
        candidates::make_plain(s, why(s));
        return false;
    }
    debug_log!("fd {fd}: nobody else has it");
    s.lower(flag::UNSETTLED);
    s.calls.fetch_min(crate::candidates::NOTED_AFTER - 1, Relaxed);
    s.look_at.store(0, Relaxed);
    s.set_reason(Reason::NotStarted);
    true
}

/// As [`go_alone`], without a call. False: others may have it.
pub(crate) fn go_alone_at_once(s: &'static Socket, fd: c_int) -> bool {
    s.has(flag::UNSETTLED) && is_alone(s, fd) == Some(true) && goes_alone(s, fd)
}

/// One of several descriptors is about to be closed: the kernel takes the mark away that this
/// process has it. `fd`: one that names it.
#[cold]
pub(crate) fn before_one_of_several(s: &Socket, fd: c_int) {
    if !passed::begin_move(fd) {
        passed::lose_track(s, fd);
    }
}

/// It was closed, and `fd` names it still.
#[cold]
pub(crate) fn after_one_of_several(s: &Socket, fd: c_int) {
    // (It can have been closed where nobody was told before.)
    if !passed::is_moving(fd) || !passed::end_move(fd) {
        passed::lose_track(s, fd);
    }
}

/// Why a connection that this process has not made is not accelerated.
pub(crate) fn why(s: &Socket) -> Reason {
    match () {
        _ if s.has(flag::PASSED) => Reason::PassedByScmRights,
        _ if s.has(flag::EXECED) => Reason::InheritedByExec,
        _ => Reason::InheritedByFork,
    }
}

/// `None`: nobody will ever know.
fn is_alone(s: &'static Socket, fd: c_int) -> Option<bool> {
    // SAFETY: as in `give_back`.
    let Some(from) = (unsafe { s.from.load(Acquire).as_ref() }) else {
        return passed::is_alone(s, fd);
    };
    let (g, names) = key_of(s);
    let state = from.state.now();
    // Tells of one moment: the count carries the generation.
    let counted = from.count_names(g, |n| n);
    if state == State::Left
        && counted == Some(names)
        && from.generation16() == g
        && !passed::is_held(fd)
    {
        s.from.store(core::ptr::null_mut(), Release);
        from.state.change(State::Left, Event::Adopted);
        return Some(true);
    }
    // Its maker has closed it without leaving it to anybody.
    (from.generation16() == g && state != socket::State::Attached).then_some(false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    fn left() -> &'static Socket {
        // SAFETY: all zero is a valid free Socket.
        let s: &'static Socket = unsafe { &*Box::leak(Box::<Socket>::new_zeroed()).as_ptr() };
        s.state.begin_as(State::Left);
        s
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_adopted_goes_first() {
        let mut kept = ForChildren { places: [None; KEPT], first: 0, count: 0 };
        let all: Vec<_> = (0..KEPT + 10).map(|_| left()).collect();
        all.iter().take(KEPT).for_each(|s| kept.add(s));
        assert_eq!(kept.count, KEPT);
        assert!(all.iter().all(|s| s.is(State::Left)), "there is room for so many");
        // One more: the oldest is nobody's any more, whoever still knows it.
        kept.add(all.get(KEPT).unwrap());
        let first = all.first().unwrap();
        assert!(first.is(State::Free) && first.generation16() == 1);
        // The next ones are adopted: their memory is not needed.
        all.iter()
            .skip(1)
            .take(5)
            .for_each(|s| assert!(s.state.change(State::Left, Event::Adopted)));
        kept.add(all.get(KEPT + 1).unwrap());
        assert_eq!(kept.count, KEPT - 4);
        assert!(all.iter().skip(1).take(5).all(|s| s.is(State::Free)));
        assert!(all.get(6).unwrap().is(State::Left));
    }

    #[test]
    fn names_are_counted_for_one_life_only() {
        let s = left();
        s.refs.store(7 << 32 | 2, Relaxed);
        assert_eq!(s.count_names(7, |n| n + 1), Some(2));
        assert_eq!(s.count_names(8, |n| n + 1), None);
        assert_eq!((s.names(), s.refs.load(Relaxed) >> 32), (3, 7));
    }
}
