//! Fast connect: what connect and accept do before the kernel is asked, and how connections come
//! onto their rings early enough to leave their carriers behind.

use super::copied;
use crate::candidates::look_up;
use crate::fast_connect::{self, Listener, PeerAddress};
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::path::PathId;
use crate::socket::{NONE, Socket, State, flag};
use crate::{agent, config, epoll, io, numbers, process, sleep, sys, user};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use libc::{pollfd, sockaddr, socklen_t};

/// A connect takes a parked carrier, or is to be agreed on at once, and is the kernel's, as ever.
///
/// # Safety
/// As for connect(2).
#[cold]
#[inline(never)]
pub(super) unsafe fn before_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    // (A child that shares this memory has descriptors of its own. And on 0, 1 and 2 nothing is
    // accelerated.)
    let taken = if process::may_be_vfork_child() || (0..=2).contains(&fd) {
        fast_connect::mark_fresh(fd, fast_connect::ODD);
        None
    } else {
        // SAFETY: the caller's promise.
        unsafe { connect(fd, addr, len) }
    };
    // (Not of one that is asked again whether it has been made: that has an address.)
    if taken.is_none() && super::unconnected(fd).is_some() && is_bound(fd) {
        fast_connect::mark_fresh(fd, fast_connect::ODD);
    }
    if taken.is_none() && fast_connect::fresh(fd).is_some() {
        fast_connect::mark_fresh(fd, seeks() | fast_connect::TOUCHED);
    }
    if taken.is_none() {
        fast_connect::give_away(fd);
    }
    // SAFETY: the caller's promise.
    taken.unwrap_or_else(|| unsafe { super::before_kernels_connect(fd, addr, len) })
}

/// A connect takes a parked carrier. `None`: the kernel's, as ever.
///
/// # Safety
/// As for connect(2).
unsafe fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<Ret> {
    let registered = match fd_table::get(fd) {
        Entry::Fresh(NONE) => None,
        Entry::Socket(s, _) if fast_connect::take_connecting(s) => return Some(0),
        Entry::Socket(s, _) if is_registered_alone(s, fd) => Some(s),
        Entry::Listener(_) => {
            // (By AF_UNSPEC it ceases to listen.)
            fast_connect::listener(fd).into_iter().for_each(io::end_listener);
            return None;
        }
        _ => return None,
    };
    let marks = fast_connect::fresh(fd)?
        | registered.map_or(0, |s| fast_connect::options_of(s.marks.load(Relaxed)));
    // SAFETY: the caller's promise.
    let (raw, n) = unsafe { copied(addr, len) };
    let to = PeerAddress::of(raw.get(..n)?)?;
    let may = config::get().accelerate_by_default && fast_connect::has_kept_to(to);
    if !may || !is_unbound(fd, &raw) {
        return None;
    }
    let domain = c_int::from(u16::from_ne_bytes([raw[0], raw[1]]));
    let nonblock = marks & fast_connect::NONBLOCK != 0;
    let cloexec = marks & fast_connect::CLOEXEC != 0;
    let (options, untouched) = (fast_connect::options_of(marks), fast_connect::is_untouched(marks));
    let fresh = io::Fresh { fd, domain, nonblock, cloexec, marks: options, untouched };
    match registered {
        None => io::connect(&fresh, to).then_some(())?,
        Some(s) => connect_registered(s, &fresh, to)?,
    }
    if let Some((s, _)) = fd_table::socket(fd).filter(|_| nonblock) {
        fast_connect::mark_connecting(s);
    }
    Some(if nonblock { -(libc::EINPROGRESS as Ret) } else { 0 })
}

/// An unconnected socket that nothing was done to but that it was put into epoll sets, under this
/// number alone, and set up as is followed of a fresh one.
fn is_registered_alone(s: &'static Socket, fd: c_int) -> bool {
    let known = s.is(State::Unconnected)
        && !s.is_inherited()
        && s.refused.load(Relaxed) == NONE
        && s.names() == 1
        && s.forks.load(Relaxed) == process::forks()
        && s.marks.load(Relaxed) & fast_connect::ODD == 0;
    if !known {
        return false;
    }
    let flags = sys::fcntl(fd, libc::F_GETFL, 0) as c_int;
    let cloexec = sys::fcntl(fd, libc::F_GETFD, 0) as c_int & libc::FD_CLOEXEC != 0;
    fast_connect::note_flag(fd, fast_connect::NONBLOCK, flags & libc::O_NONBLOCK != 0);
    fast_connect::note_flag(fd, fast_connect::CLOEXEC, cloexec);
    flags & !(libc::O_RDWR | libc::O_NONBLOCK) == 0
}

/// As [`io::connect`], of a socket that is in epoll sets: what the kernel has there goes with the
/// file, and its connection comes into the sets as the application put it.
fn connect_registered(s: &'static Socket, fresh: &io::Fresh, to: PeerAddress) -> Option<()> {
    let registrations = epoll::move_out(s, fresh.fd)?;
    let taken = io::connect(fresh, to);
    if taken {
        super::retire(s);
    }
    for (epfd, mut event) in registrations.into_iter().flatten() {
        // SAFETY: a live event.
        let _ = unsafe { epoll::ctl(epfd, libc::EPOLL_CTL_ADD, fresh.fd, &mut event) };
    }
    taken.then_some(())
}

/// The socket is of the address's family, and has none of its own.
fn is_unbound(fd: c_int, to: &[u8; 128]) -> bool {
    let mut own = [0u8; 128];
    let n = sys::socket_name(fd, false, &mut own);
    n > 2
        && own.get(..2) == to.get(..2)
        && own.get(2..n as usize).is_some_and(|rest| rest.iter().all(|b| *b == 0))
}

/// The socket has an address of its own before it is connected, which its carrier keeps.
fn is_bound(fd: c_int) -> bool {
    let mut own = [0u8; 128];
    let n = sys::socket_name(fd, false, &mut own);
    own.get(2..n.max(2) as usize).is_some_and(|rest| rest.iter().any(|b| *b != 0))
}

/// Where accept(2) says whom it has accepted.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) addr: *mut sockaddr,
    pub(crate) len: *mut socklen_t,
}

/// accept4(2) on a listener that gives out parked connections as well. [`PASS`]: it is none, or the
/// kernel has the answer. `forget`: the kernel has given out that number.
///
/// # Safety
/// As for accept4(2).
pub(crate) unsafe fn accept(fd: c_int, peer: Peer, flags: c_int, forget: fn(c_int)) -> Ret {
    if process::may_be_vfork_child() {
        return PASS;
    }
    let Some(l) = fast_connect::listener_to_use(fd) else { return PASS };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return PASS;
    }
    // The kernel's queue and the taken ones are served in turn. `alone`: for the next look only the
    // taken ones are there.
    let (mut alone, serial) = (false, l.serial());
    // (It may be closed meanwhile, and its entry another one's.)
    while l.is(fd, serial) {
        if !l.may_park() {
            // What was taken before is still given out, before the kernel's, which may wait. (It
            // may not be announced yet.)
            if !io::serves(l) {
                return PASS;
            }
            io::find_taken(l, false);
            alone = true;
        }
        if let Some(s) = l.next(alone, io::is_taken) {
            match io::give_out(l, s, flags, forget) {
                Ok(new) => {
                    io::off_stdio(new);
                    // SAFETY: the caller's promise.
                    return unsafe { named(new, peer) };
                }
                Err(0) => continue,
                Err(error) => return error,
            }
        }
        if l.is_to_be_sought() {
            io::find_taken(l, false);
            if l.has_taken() {
                continue;
            }
        }
        // (Others may be faster at the kernel's queue.)
        if !l.may_park() {
            return PASS;
        }
        let kernels_turn = !alone && l.has_taken();
        if kernels_turn && sys::poll_now(fd, libc::POLLIN) == 0 {
            alone = true;
            continue;
        }
        let nonblock = l.is_nonblocking();
        if !nonblock && l.is_common() {
            // (Others may be faster there: then the kernel's accept waits, and hears of no
            // carrier.)
            io::give_up_listener(l);
            continue;
        }
        if nonblock && !kernels_turn {
            l.on_nothing(io::is_taken);
            return PASS;
        }
        if kernels_turn || sys::poll_now(fd, libc::POLLIN) != 0 {
            // SAFETY: as above.
            let r = unsafe { accept_from_kernel(l, fd, peer, flags, forget) };
            // (Another thread was faster, and there is one that is taken.)
            match r.filter(|r| !kernels_turn || *r != -(libc::EAGAIN as Ret)) {
                Some(r) => return r,
                None => continue,
            }
        }
        io::waits_elsewhere(l);
        l.on_nothing(io::is_taken);
        if l.has_taken() {
            continue;
        }
        l.waits(serial);
        let r = wait(l, fd);
        l.waited(serial, false);
        if let Some(r) = r {
            return r;
        }
        alone = false;
    }
    PASS
}

/// The address of a connection that was given out goes where the application wants it.
unsafe fn named(new: c_int, peer: Peer) -> Ret {
    if !peer.addr.is_null() {
        // (A bad address loses the connection, as the kernel's accept does.)
        // SAFETY: the caller's places, which the kernel checks.
        let r = unsafe { name_of(new, peer) };
        if r < 0 {
            let _ = crate::io::close_of(new);
            return r;
        }
    }
    new as Ret
}

/// getpeername(2) of a connection that was given out, whose peer is known.
unsafe fn name_of(new: c_int, peer: Peer) -> Ret {
    let known = fd_table::socket(new).and_then(|(s, _)| PeerAddress::load(&s.peer_address));
    let Some(place) = known else {
        // SAFETY: the caller's places, which the kernel checks.
        return unsafe { sys::getpeername(new, peer.addr, peer.len) };
    };
    let name = place.name();
    // SAFETY: the caller's place.
    let Some(room) = (unsafe { user::read(peer.len) }) else { return -(libc::EFAULT as Ret) };
    if room > c_int::MAX as socklen_t {
        return -(libc::EINVAL as Ret);
    }
    let part = name.get(..room as usize).unwrap_or(name);
    // SAFETY: the caller's places.
    let written = unsafe {
        user::write_all(peer.addr.cast::<u8>(), part)
            && user::write(peer.len, name.len() as socklen_t)
    };
    if written { 0 } else { -(libc::EFAULT as Ret) }
}

/// The kernel has a connection. `None`: another thread was faster.
unsafe fn accept_from_kernel(
    l: &Listener,
    fd: c_int,
    peer: Peer,
    flags: c_int,
    forget: fn(c_int),
) -> Option<Ret> {
    let _one = l.accepting.lock();
    if sys::poll_now(fd, libc::POLLIN) == 0 {
        return None;
    }
    let (mut raw, mut n) = ([0u64; 16], 128 as socklen_t);
    let to = if peer.addr.is_null() {
        Peer { addr: raw.as_mut_ptr().cast(), len: &raw mut n }
    } else {
        peer
    };
    let ticket = numbers::enter_accept();
    // SAFETY: the caller's places, or these.
    let new = unsafe { sys::accept_to(fd, to.addr, to.len, flags) };
    numbers::leave_accept(ticket);
    if new >= 0 {
        forget(new as c_int);
        // SAFETY: as above.
        unsafe { super::on_accept(fd, new as c_int, (to.addr, to.len), flags) };
    }
    Some(new)
}

/// Sleeps until there is something to accept. `Some`: the call ends with that.
fn wait(l: &Listener, fd: c_int) -> Option<Ret> {
    let mut fds = [
        pollfd { fd, events: libc::POLLIN, revents: 0 },
        pollfd { fd: l.gather(), events: libc::POLLIN, revents: 0 },
    ];
    // SAFETY: two valid pollfds; no mask.
    let r = unsafe { sleep::ppoll(fds.as_mut_ptr(), 2, -1, core::ptr::null()) };
    if r == -(libc::EINTR as Ret) {
        return io::interrupted(0);
    }
    // (It was closed by another thread.)
    (fds[0].revents & libc::POLLNVAL != 0).then_some(-(libc::EBADF as Ret))
}

// ---- the first life -----------------------------------------------------------------------------

/// How long a connect or accept waits for the agreement, where the connection may leave a carrier
/// behind.
const AGREE_NS: u64 = 2_000_000;

/// The waits of connects, or of accepts: one at a time; all of them take no more than a part of the
/// time, whatever peers say; and those in vain pause twice as long each time.
struct Waits {
    next: AtomicU64,
    in_vain: AtomicU32,
    /// [`fast_connect::grown`] at the last one's end.
    grown: AtomicU32,
}

static CONNECTS: Waits = Waits::new();
static ACCEPTS: Waits = Waits::new();

impl Waits {
    const SHARE: u64 = 8;
    const PAUSE_NS: u64 = 8_000_000;
    /// So many in vain double the pause, so often.
    const IN_VAIN: u32 = 4;
    const PAUSES: u32 = 4;

    const fn new() -> Waits {
        Waits { next: AtomicU64::new(0), in_vain: AtomicU32::new(0), grown: AtomicU32::new(0) }
    }

    /// One may begin: it is the caller's.
    fn begin(&self, now: u64) -> bool {
        let next = self.next.load(Relaxed);
        let own = now.saturating_add(Self::PAUSE_NS);
        next <= now && self.next.compare_exchange(next, own, Relaxed, Relaxed).is_ok()
    }

    fn end(&self, began: u64, paid: bool) {
        let now = sys::now_ns();
        let grown = fast_connect::grown();
        let pause = if paid || self.grown.swap(grown, Relaxed) != grown {
            self.in_vain.store(0, Relaxed);
            now.saturating_sub(began).saturating_mul(Self::SHARE)
        } else {
            let in_vain = self.in_vain.fetch_add(1, Relaxed);
            Self::PAUSE_NS << (in_vain / Self::IN_VAIN).min(Self::PAUSES)
        };
        self.next.store(now.saturating_add(pause), Relaxed);
    }
}

/// A connection that was accepted, and whose peer is not known to wait, is noted all the same, if
/// none was for so long: it may be that of a new peer.
const NOTE_NS: u64 = 100_000;
static NOTED: AtomicU64 = AtomicU64::new(0);

/// So long behind a connect that waits others are sought, too, which do not wait: where many are
/// under way, they are agreed on before they are over.
const SEEK_NS: u64 = 2_000_000;
/// So long an acceptor takes a connection for one of those.
const SOUGHT_NS: u64 = 10_000_000;
static SEEKS_UNTIL: AtomicU64 = AtomicU64::new(0);

/// A connect is about to be made by the kernel: whether its connection is to be agreed on.
fn seeks() -> u32 {
    let now = sys::now_ns();
    if CONNECTS.begin(now) {
        fast_connect::say_seeks(now);
        SEEKS_UNTIL.store(now.saturating_add(SEEK_NS), Relaxed);
        return fast_connect::WAITS_FOR;
    }
    if now < SEEKS_UNTIL.load(Relaxed) { fast_connect::SEEKS } else { 0 }
}

/// `listener` has given out a connection, `fd`, of the kernel's: waits for the agreement if its
/// peer may do so.
#[cold]
#[inline(never)]
pub(super) fn accepted(listener: c_int, fd: c_int) {
    let Some(l) = fast_connect::listener(listener).filter(|l| l.may_park()) else { return };
    if let Some((s, _)) = fd_table::socket(fd) {
        l.accepted(s);
    }
    let now = sys::now_ns();
    let sought = fast_connect::seeks(now, SOUGHT_NS);
    if !sought {
        if now.saturating_sub(NOTED.load(Relaxed)) < NOTE_NS {
            return;
        }
        NOTED.store(now, Relaxed);
    }
    let Some((s, g)) = candidate(fd) else { return };
    agent::of(PathId::Shm).expect(s, g);
    if fast_connect::seeks(now, AGREE_NS) && ACCEPTS.begin(now) {
        let agreed = await_offer(s, g, now);
        if agreed {
            io::attach(s, g, fd);
        }
        ACCEPTS.end(now, agreed);
    }
}

/// The kernel makes a connection, `fd`, or has made one: it has the options of its socket, which
/// the next life of its carrier must not have by that.
#[cold]
#[inline(never)]
pub(super) fn on_connect(fd: c_int, result: c_int) {
    let begun = [0, -libc::EISCONN, -libc::EINPROGRESS, -libc::EINTR].contains(&result);
    if !begun {
        return;
    }
    if let Some((s, _)) = fd_table::socket(fd) {
        s.marks.fetch_or(fast_connect::marks_of_connecting(fd), AcqRel);
    }
    let sought = fast_connect::take_seeks(fd);
    if sought != 0 {
        connected(fd, sought == fast_connect::WAITS_FOR);
    }
}

/// A connection has been made, `fd`, or is being made. So that it comes onto its rings before it is
/// over, and leaves its carrier behind, the agreement is sought now. `waits`: and waited for,
/// within bounds.
fn connected(fd: c_int, waits: bool) {
    let now = sys::now_ns();
    let Some((s, g)) = candidate(fd) else { return };
    let known = s.has(flag::ACCEPTOR_KNOWN);
    if known {
        agent::of(PathId::Shm).expect(s, g);
    }
    if !waits {
        return;
    }
    let agreed = known && await_offer(s, g, now);
    if agreed {
        io::attach(s, g, fd);
    }
    CONNECTS.end(now, agreed && s.is(State::Attached));
}

/// The candidate behind `fd`, of which more is known by now, if it may come onto shared memory.
fn candidate(fd: c_int) -> Option<(&'static Socket, u16)> {
    // (Who waits unseen would not hear what comes to a ring.)
    let (s, g) = fd_table::socket(fd)
        .filter(|(s, _)| s.is(State::Candidate) && fast_connect::waits_seen())?;
    let its = look_up(s, g, fd) && s.path() == PathId::Shm;
    its.then(|| s.raise(flag::WAITS_SEEN))?;
    Some((s, g))
}

fn await_offer(s: &Socket, g: u16, since: u64) -> bool {
    const LOOK_NS: i64 = 20_000;
    loop {
        if !s.offered.is_none() {
            return s.offered.is_made() && s.generation16() == g;
        }
        if sys::now_ns().saturating_sub(since) > AGREE_NS || !s.is(State::Candidate) {
            return false;
        }
        sys::pause_ns(LOOK_NS);
    }
}
