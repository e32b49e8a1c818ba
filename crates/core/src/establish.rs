//! How connections are established: the application's socket, listen, connect and accept.

use crate::candidates::{Origin, begin, begin_as, make_plain, may_begin};
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::socket::{Event, NONE, Socket, State, close_books, end_life, flag, reuse};
use crate::unconnected::{refusal, unconnected};
use crate::{carrier, channel, epoll, io, process, syn, sys, user};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::{sockaddr, socklen_t};
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;

pub(crate) fn on_socket(fd: c_int, domain: c_int, ty: c_int, protocol: c_int) {
    let stream = ty & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if stream && (domain == libc::AF_INET || domain == libc::AF_INET6) && process::started() {
        fd_table::set(fd, Entry::Fresh(refusal(NONE)));
    }
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
    let Entry::Socket(s, g) = fd_table::get(fd) else {
        fd_table::set(fd, listener);
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

pub(crate) fn on_accept(listener: c_int, fd: c_int, _flags: c_int) {
    if !process::started() {
        return;
    }
    match fd_table::get(listener) {
        Entry::Listener(reason) | Entry::Fresh(reason) => begin(fd, refusal(reason), false),
        // A listener from before this program image; unix sockets come this way too.
        _ => {
            let mut raw = [0u8; 128];
            let len = sys::socket_name(fd, false, &mut raw);
            if carrier::address(&raw, len).is_some() {
                begin(fd, refusal(NONE), false);
                adopt(listener, fd);
            }
        }
    }
}

/// A listener that this program image has inherited is known from its first connection of another
/// host's on.
fn adopt(listener: c_int, fd: c_int) {
    if fd_table::raw(listener) == 0
        && fd_table::socket(fd).is_some_and(|(s, _)| s.path().traits().knows_syn)
    {
        syn::keep(listener);
        fd_table::set(listener, Entry::Listener(NONE));
    }
}

/// `listen` is about to be called.
pub(crate) fn before_listen(fd: c_int) {
    if unconnected(fd).map(of_connections) == Some(NONE) {
        syn::keep(fd);
    }
}

pub(crate) unsafe fn before_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    may_begin(fd);
    if let Entry::Socket(s, g) = fd_table::get(fd) {
        // connect(AF_UNSPEC) dissolves the connection; the descriptor starts anew.
        // SAFETY: the caller says that two bytes are there.
        let family = || unsafe { user::read(&raw const (*addr).sa_family) };
        if len >= 2 && family() == Some(libc::AF_UNSPEC as libc::sa_family_t) {
            let _ = io::to_kernel(s, g, fd, Reason::Disconnected, false);
        } else if s.is(State::Candidate)
            && s.has(flag::CONNECTOR)
            && carrier::state_of(fd) == Some(carrier::TCP_CLOSE)
        {
            // It was refused, and is tried again, perhaps elsewhere.
            if !was_never_one(s) {
                make_plain(s, Reason::Disconnected);
            }
        }
    }
    PASS
}

/// A connect that was under way has failed: the socket is an unconnected one again. False: it is
/// more than that.
fn was_never_one(s: &'static Socket) -> bool {
    if s.is_inherited() || !s.state.change(State::Candidate, Event::Claimed) {
        return false;
    }
    let used = [&s.tx_inflight, &s.rx_inflight, &s.offered].iter().any(|n| n.load(SeqCst) != 0);
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
    let Some(reason) = unconnected(fd) else { return };
    channel::sent_by_kernel();
    if result == 0 || result == -libc::EISCONN {
        if result != 0 {
            fd_table::set_began(fd, 0);
        }
        begin(fd, reason, true);
    } else if result == -libc::EINPROGRESS || result == -libc::EINTR {
        // Under way: the kernel does not say yet where to, but what is done to the descriptor
        // meanwhile has to be followed.
        let mut raw = [0u8; 128];
        let n = (len as usize).min(raw.len());
        // SAFETY: the kernel has just read as much.
        let copied = |to| unsafe { user::read_into(addr.cast::<u8>(), to) };
        if n < 2 || !raw.get_mut(..n).is_some_and(copied) {
            return;
        }
        let peer = carrier::address(&raw, n as isize).filter(|a| !a.ip().is_unspecified());
        let len = sys::socket_name(fd, false, &mut raw);
        if let (Some(peer), Some(local)) = (peer, carrier::address(&raw, len))
            && let Ok(tuple) = Tuple::new(local, peer)
        {
            begin_as(fd, Origin { reason, connector: true, tuple, moved: (0, 0), made: false });
        }
    } else if result != -libc::EALREADY {
        fd_table::set_began(fd, 0);
    }
}
