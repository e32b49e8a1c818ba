//! How connections are established: the application's socket, listen, connect and accept.

mod without_kernel;

use crate::candidates::{begin, make_plain, may_begin, tell_accepted};
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::socket::{Event, NONE, Socket, State, close_books, end_life, flag, reuse};
use crate::unconnected::{may_open_later, refusal, unconnected};
use crate::{
    agent, carrier, channel, config, epoll, fast_connect, host, io, numbers, process, syn, user,
};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::{sockaddr, socklen_t};
use netacc_control::stats::Reason;
pub(crate) use without_kernel::{Peer, accept};

pub(crate) fn on_socket(fd: c_int, domain: c_int, ty: c_int, protocol: c_int) {
    let stream = ty & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if stream && (domain == libc::AF_INET || domain == libc::AF_INET6) && process::started() {
        fd_table::put_fresh(fd, refusal(NONE), ty & libc::SOCK_NONBLOCK != 0);
        if fast_connect::is_on() {
            fast_connect::on_socket(fd, ty);
        }
    }
}

/// A socket that is lent to the application, in the place of a new one.
#[cold]
#[inline(never)]
pub(crate) fn prepared(domain: c_int, ty: c_int, protocol: c_int) -> Option<c_int> {
    let stream = ty & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    let flags = ty & !0xf;
    let usual = flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == 0;
    // (By a ring it may be connected where nobody sees that.)
    let may = stream
        && usual
        && fast_connect::is_on()
        && config::get().accelerate_by_default
        && !fast_connect::has_rings()
        && !process::may_be_vfork_child();
    if may { fast_connect::lend(domain, flags) } else { None }
}

/// What is done to a listener's descriptor is no matter of its connections'.
fn of_connections(reason: u32) -> u32 {
    let of_descriptor =
        [Reason::SeveralEpollSets, Reason::DuplicateInEpoll, Reason::InheritedByFork];
    if of_descriptor.iter().any(|why| *why as u32 == reason) { NONE } else { reason }
}

pub(crate) fn on_listen(fd: c_int) {
    let Some(reason) = unconnected(fd) else { return };
    let listener = Entry::Listener(of_connections(reason));
    // Of another one under that number.
    agent::forget_told();
    let Entry::Socket(s, g) = fd_table::get(fd) else {
        fd_table::set(fd, listener);
        fast_connect::on_listen(fd);
        return;
    };
    fd_table::for_each(|other, entry| {
        if matches!(entry, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g) {
            fd_table::set(other, listener);
        }
    });
    retire(s);
}

/// An unconnected socket has become a listener: its registrations are the kernel's alone, and its
/// memory serves again.
fn retire(s: &'static Socket) {
    if s.is_inherited() || !s.state.change(State::Unconnected, Event::Refused) {
        return;
    }
    epoll::on_plain(s);
    end_life(s);
    reuse(s);
}

/// `listener` has given out `fd`, with these flags of accept4. `addr` and `len`: where the kernel
/// has written whom it connects to.
///
/// # Safety
/// As for accept(2).
pub(crate) unsafe fn on_accept(
    listener: c_int,
    fd: c_int,
    (addr, len): (*const sockaddr, *const socklen_t),
    flags: c_int,
) {
    if !process::started() {
        return;
    }
    // SAFETY: the caller's promise.
    let (raw, n) = unsafe { copied(addr, user::read(len).unwrap_or(0)) };
    let peer = carrier::address(&raw, n as isize);
    match fd_table::get(listener) {
        Entry::Listener(reason) | Entry::Fresh(reason) => begin(fd, refusal(reason), false, true),
        // A listener from before this program image; unix sockets come this way too.
        _ if (peer.is_some() || n < 2) && carrier::is_tcp(fd) => {
            begin(fd, refusal(NONE), false, true);
            adopt(listener);
        }
        _ => return,
    }
    // Also of one that its listener has made plain: its connector then hears that nobody claims it,
    // instead of thinking that there is no library here.
    if let Some((s, _)) = fd_table::socket(fd) {
        if flags & libc::SOCK_NONBLOCK != 0 {
            s.raise(flag::NONBLOCK);
        }
        tell_accepted(listener, fd, peer);
        if fast_connect::has_listeners() {
            without_kernel::accepted(listener, fd);
        }
    }
}

/// A copy of an address of the application's, and how much of it there is.
///
/// # Safety
/// As for accept(2) and connect(2).
unsafe fn copied(addr: *const sockaddr, len: socklen_t) -> ([u8; 128], usize) {
    let mut raw = [0u8; 128];
    let n = (len as usize).min(raw.len());
    // SAFETY: the caller's promise.
    let whole = |to: &mut [u8]| unsafe { user::read_into(addr.cast::<u8>(), to) };
    let n = if raw.get_mut(..n).is_some_and(whole) { n } else { 0 };
    (raw, n)
}

/// A listener that this program image has inherited is known from its first connection on.
fn adopt(listener: c_int) {
    if fd_table::raw(listener) == 0 {
        syn::keep(listener);
        fd_table::set(listener, Entry::Listener(NONE));
        agent::forget_told();
    }
}

/// `listen` is about to be called.
pub(crate) fn before_listen(fd: c_int) {
    fast_connect::give_away(fd);
    if unconnected(fd).map(of_connections) == Some(NONE) {
        // (Daemons confine themselves behind this, and accept then.)
        config::read_now();
        numbers::make_room();
        syn::keep(fd);
    }
}

pub(crate) unsafe fn before_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    if fast_connect::is_on() {
        // SAFETY: the caller's promise.
        return unsafe { without_kernel::before_connect(fd, addr, len) };
    }
    // SAFETY: as above.
    unsafe { before_kernels_connect(fd, addr, len) }
}

/// # Safety
/// As for connect(2).
#[inline(always)]
unsafe fn before_kernels_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    // SAFETY: the caller's promise.
    if host::may_have_devices() && !unsafe { is_loopback(addr, len) } {
        may_begin(fd);
    }
    if let Entry::Socket(s, g) = fd_table::get(fd) {
        // connect(AF_UNSPEC) dissolves the connection; the descriptor starts anew.
        // SAFETY: the caller says that two bytes are there.
        let family = || unsafe { user::read(&raw const (*addr).sa_family) };
        if len >= 2 && family() == Some(libc::AF_UNSPEC as libc::sa_family_t) {
            io::disconnect(s, g, fd);
        } else if s.is(State::Candidate) && s.has(flag::CONNECTOR) && !only_tells(s) {
            // (It may be tried again, perhaps elsewhere.)
            forget_if_refused(s, fd);
        }
    }
    PASS
}

fn forget_if_refused(s: &'static Socket, fd: c_int) {
    if carrier::state_of(fd) == Some(carrier::TCP_CLOSE) && !was_never_one(s) {
        make_plain(s, Reason::Disconnected);
    }
}

/// This connect only tells how the one that is under way ends: the kernel begins another one behind
/// that at the soonest (inet_stream_connect). Not so where somebody else may have been told.
fn only_tells(s: &Socket) -> bool {
    s.connects.swap(false, Relaxed) && s.names() == 1 && !s.is_inherited()
}

/// Whether an address is one of IPv4's own host, which no device leads to.
///
/// # Safety
/// As for connect(2).
unsafe fn is_loopback(addr: *const sockaddr, len: socklen_t) -> bool {
    const OWN_NET: u8 = 127;
    // SAFETY: the caller's promise: at least as many bytes.
    let start = (len as usize >= size_of::<[u8; 8]>())
        .then(|| unsafe { user::read(addr.cast::<[u8; 8]>()) });
    start.flatten().is_some_and(|[f0, f1, _, _, net, ..]| {
        net == OWN_NET && u16::from_ne_bytes([f0, f1]) == libc::AF_INET as u16
    })
}

/// A connect that was under way has failed: the socket is an unconnected one again. False: it is
/// more than that.
fn was_never_one(s: &'static Socket) -> bool {
    if s.is_inherited() || !s.state.change(State::Candidate, Event::Claimed) {
        return false;
    }
    let in_flight = [&s.tx_inflight, &s.rx_inflight].iter().any(|n| n.load(SeqCst) != 0);
    let used = in_flight || !s.offered.is_none();
    let moved = s.tx_bytes.load(Relaxed) != 0 || s.rx_bytes.load(Relaxed) != 0;
    let is_new = !used && !moved && !s.has(flag::NOTED);
    if is_new {
        close_books(s);
        s.flags.store(0, Release);
        s.refused.store(NONE, Relaxed);
    }
    s.state.happens(if is_new { Event::Dissolved } else { Event::Begun });
    is_new
}

pub(crate) unsafe fn on_connect(fd: c_int, addr: *const sockaddr, len: socklen_t, result: c_int) {
    // SAFETY: the caller's promise.
    unsafe { on_kernels_connect(fd, addr, len, result) };
    // (Asked behind it: the first one has had the configuration read.)
    if fast_connect::is_on() {
        without_kernel::on_connect(fd, result);
    }
}

/// # Safety
/// As for connect(2).
#[inline(always)]
unsafe fn on_kernels_connect(fd: c_int, addr: *const sockaddr, len: socklen_t, result: c_int) {
    let under_way = result == -libc::EINPROGRESS || result == -libc::EINTR;
    let Some(reason) = unconnected(fd) else {
        match fd_table::get(fd) {
            _ if under_way || result == -libc::EALREADY => goes_on(fd),
            _ if matches!(result, 0) || result == -libc::EISCONN => {}
            Entry::Socket(s, _) if s.is(State::Candidate) && s.has(flag::CONNECTOR) => {
                forget_if_refused(s, fd);
            }
            _ => {}
        }
        return;
    };
    channel::sent_by_kernel();
    if result == 0 || result == -libc::EISCONN {
        if result != 0 {
            fd_table::set_began(fd, 0);
        }
        // SAFETY: the caller's promise; the kernel has just read as much.
        let (raw, n) = unsafe { copied(addr, len) };
        // (That dissolves a connection. And it is none yet where the first bytes will make it one.)
        let dissolves = n >= 2 && raw.starts_with(&(libc::AF_UNSPEC as u16).to_ne_bytes());
        let opens_later = || may_open_later() && carrier::tuple_of(fd).is_none();
        if result == 0 && (dissolves || opens_later()) {
            return;
        }
        begin(fd, reason, true, true);
    } else if under_way {
        // The kernel does not say yet where to, but what is done to the descriptor meanwhile has to
        // be followed.
        begin(fd, reason, true, false);
        goes_on(fd);
    } else if result != -libc::EALREADY {
        fd_table::set_began(fd, 0);
    }
}

/// Its connect is under way.
#[inline]
fn goes_on(fd: c_int) {
    if let Some((s, _)) = fd_table::socket(fd) {
        s.connects.store(true, Relaxed);
    }
}
