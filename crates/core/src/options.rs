//! setsockopt and ioctl: which options leave a connection as it is, and which need the kernel's
//! path.

use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::rendezvous::marks;
use crate::socket::{self, Named, State, flag, harmless};
use crate::{
    agent, config, fast_connect, introspect, io, packet_policy, syn, sys, unconnected, user,
};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI64, Ordering::*};
use libc::{socklen_t, timeval};
use netacc_control::stats::Reason;

const TCP_REPAIR: c_int = 19;
const TCP_ULP: c_int = 31;
const TCP_ZEROCOPY_RECEIVE: c_int = 35;
const TCP_INQ: c_int = 36;
const TCP_TX_DELAY: c_int = 37;
const TCP_AO: [c_int; 5] = [14, 38, 39, 40, 41];
const SO_PEEK_OFF: c_int = 42;
const SO_ZEROCOPY: c_int = 60;
const SO_TXTIME: c_int = 61;
/// With 64-bit times on every machine; on this one the same as those without the ending.
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
const SO_TIMESTAMPS: [c_int; 6] = [29, 35, 37, 63, 64, 65];
const SIOCATMARK: u64 = 0x8905;
/// linux/nbd.h: the connection is a disk's.
const NBD_SET_SOCK: u64 = 0xab00;
/// linux/kcm.h: the connection is a multiplexor's.
const SIOCKCMATTACH: u64 = 0x89e0;
const AF_KCM: c_int = 41;
const IP_TRANSPARENT: c_int = 19;
const IPV6_TRANSPARENT: c_int = 75;
const IPV6_FREEBIND: c_int = 78;
/// A policy of the socket's own for IPsec, or of its own against it.
const IP_IPSEC_POLICIES: [c_int; 2] = [16, 17];
const IPV6_IPSEC_POLICIES: [c_int; 2] = [34, 35];

/// Options whose effect the rings cannot show: with one of them set the connection stays with the
/// kernel.
fn needs_kernel(level: c_int, name: c_int, value: i64) -> bool {
    match level {
        libc::SOL_SOCKET => match name {
            libc::SO_RCVLOWAT => value > 1,
            libc::SO_OOBINLINE | SO_ZEROCOPY | SO_TXTIME => value != 0,
            SO_PEEK_OFF => value >= 0,
            n => SO_TIMESTAMPS.contains(&n) && value != 0,
        },
        libc::IPPROTO_TCP => {
            matches!(name, TCP_REPAIR | TCP_ULP | TCP_INQ | TCP_TX_DELAY) || TCP_AO.contains(&name)
        }
        libc::IPPROTO_IP => {
            IP_IPSEC_POLICIES.contains(&name) || (name == IP_TRANSPARENT && value != 0)
        }
        libc::IPPROTO_IPV6 => {
            IPV6_IPSEC_POLICIES.contains(&name) || (name == IPV6_TRANSPARENT && value != 0)
        }
        _ => false,
    }
}

/// Whether an option would be set on a carrier that is out of the kernel, where it would mean
/// nothing, or be lost when that comes back.
fn is_hidden(fd: c_int, level: c_int, name: c_int) -> bool {
    let means_something = match level {
        libc::SOL_SOCKET => matches!(name, libc::SO_KEEPALIVE | libc::SO_REUSEADDR),
        libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
        _ => false,
    };
    means_something
        && fd_table::socket(fd).is_some_and(|(s, _)| {
            s.is(State::Attached) && s.channel().is_some_and(|c| c.far.id().hides_carrier())
        })
}

/// Behind these the kernel does something with bytes that the application does not receive itself:
/// none may be elsewhere.
fn takes_bytes(level: c_int, name: c_int) -> bool {
    level == libc::IPPROTO_TCP && matches!(name, TCP_REPAIR | TCP_ULP)
}

/// The program uses an option by which the library proves that it holds a connection: that ends
/// first.
fn leave_to_program(fd: c_int, level: c_int, name: c_int) {
    // (One of them has a name of IPv6's, too.)
    let used = match level {
        libc::IPPROTO_IP => marks::OPTIONS.iter().any(|(n, _)| *n == name),
        libc::IPPROTO_IPV6 => name == IPV6_FREEBIND,
        _ => false,
    };
    if used && let Some((s, _)) = fd_table::socket(fd) {
        agent::leave_carrier(s, false);
    }
}

pub(crate) unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Ret {
    if level == introspect::LEVEL {
        // SAFETY: the caller's promise.
        return unsafe { introspect::setsockopt(level, name, value, len) };
    }
    leave_to_program(fd, level, name);
    if level == libc::IPPROTO_TCP && name == syn::TCP_SAVE_SYN {
        syn::before_use();
        if config::has_fast_connect() {
            mark(fd, level, name);
        }
        return PASS;
    }
    let raw = fd_table::raw(fd);
    if raw == 0 {
        return PASS;
    }
    if config::has_fast_connect() {
        mark(fd, level, name);
    }
    let mut number = 1;
    if len as usize >= size_of::<c_int>() {
        // SAFETY: the caller's value.
        match unsafe { user::read(value.cast::<c_int>()) } {
            Some(theirs) => number = theirs as i64,
            // The kernel says it.
            None => return PASS,
        }
    }
    let parents = |s: &socket::Socket| s.needs_maker() && s.is(State::Attached);
    if level == libc::SOL_SOCKET
        && name == libc::SO_LINGER
        && fd_table::socket(fd).is_some_and(|(s, _)| parents(s))
    {
        // The library's own stands on the carrier until the connection is back there.
        io::need_kernel(fd, Reason::InheritedByFork);
    }
    if level == libc::SOL_SOCKET
        && name == libc::SO_LINGER
        && let Some((s, g)) =
            fd_table::socket(fd).filter(|(s, _)| socket::await_change(s) && s.is(State::Attached))
    {
        // SAFETY: the caller's promise.
        return unsafe { io::set_linger(Named { s, g, fd }, value, len) };
    }
    if level == libc::SOL_SOCKET
        && matches!(name, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE)
        && let Some((s, g)) = fd_table::socket(fd).filter(|(s, _)| s.is(State::Attached))
    {
        // SAFETY: the caller's promise.
        return unsafe { set_send_buffer(Named { s, g, fd }, name, value, len) };
    }
    if config::has_fast_connect()
        && let Some(i) = harmless::index(level, name).filter(|_| len as usize == size_of::<c_int>())
        && let Some((s, _)) = fd_table::socket(fd).filter(|(s, _)| s.life.load(Relaxed) > 1)
        && harmless::before_set(s, fd, i, number as c_int)
    {
        on_same(fd, level, name, number as c_int);
        return 0;
    }
    if needs_kernel(level, name, number) || is_hidden(fd, level, name) {
        match fd_table::decode(raw) {
            Entry::Internal => return -(libc::EBADF as Ret),
            Entry::Socket(s, g) if takes_bytes(level, name) => {
                let _ = io::to_kernel(s, g, fd, Reason::SocketOption, true);
            }
            _ => io::need_kernel(fd, Reason::SocketOption),
        }
    }
    // SAFETY: the caller's promise.
    let set = |on| unsafe { io::set_probed(on, (level, name), value, len) };
    io::probed_by(fd, level, name).and_then(set).unwrap_or(PASS)
}

pub(crate) unsafe fn on_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    _len: socklen_t,
) {
    if config::has_fast_connect()
        && let Some(i) = harmless::index(level, name)
        && let Some((s, _)) = fd_table::socket(fd)
    {
        harmless::on_set(s, i);
    }
    if level == libc::IPPROTO_TCP
        && matches!(name, libc::TCP_NODELAY | libc::TCP_CORK)
        && let Some((s, g)) =
            fd_table::socket(fd).filter(|(s, _)| socket::await_change(s) && s.is(State::Attached))
    {
        // SAFETY: the kernel has just read an int there.
        let number = unsafe { value.cast::<c_int>().read_unaligned() };
        match name {
            libc::TCP_CORK => socket::set_corked(s, number != 0),
            _ => io::on_nodelay(s, g, fd, number),
        }
        // What may wait no longer, or, of a corked connection, is pushed once
        // (tcp_push_pending_frames).
        if (name == libc::TCP_CORK) == (number == 0) {
            io::send_held(s, g);
        }
    }
    if level == libc::IPPROTO_TCP && name == libc::TCP_FASTOPEN_CONNECT {
        unconnected::note_opens_later();
    }
    if packet_policy::is_about(level, name) {
        on_policy(fd);
    }
    if level != libc::SOL_SOCKET {
        return;
    }
    let timeout =
        matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW);
    // A negative one makes calls end at once (sock_set_timeout), but reads back as none.
    // SAFETY: the kernel has just read a time there.
    let never_waits = timeout && unsafe { value.cast::<timeval>().read_unaligned() }.tv_sec < 0;
    if never_waits {
        // What an unconnected socket becomes, or accepts, has it without anybody being able to see
        // that.
        fd_table::refuse(fd, Reason::SocketOption);
    }
    let Some((s, g)) = fd_table::socket(fd).filter(|_| timeout || name == libc::SO_LINGER) else {
        return;
    };
    let store = |into: &AtomicI64| loop {
        let before = s.state.now();
        let ns = match never_waits {
            true => -1,
            // Who attaches it asks the kernel.
            false if before == State::Candidate => 0,
            false => sys::timeout_of(fd, name),
        };
        into.store(ns, SeqCst);
        // Who attaches it finds this one, or has begun before: then it is waited for, and what it
        // stores is overwritten.
        if !socket::await_change(s) || s.is(before) {
            break;
        }
    };
    match name {
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => store(&s.receive_timeout_ns),
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => store(&s.send_timeout_ns),
        _ => {
            socket::await_change(s);
            if s.is(State::Attached) {
                io::on_linger(s, g, fd);
            }
        }
    }
}

/// The application has set an option that its carrier has as it is: the rest of it.
#[cold]
#[inline(never)]
fn on_same(fd: c_int, level: c_int, name: c_int, number: c_int) {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY)
        && number != 0
        && let Some((s, g)) =
            fd_table::socket(fd).filter(|(s, _)| socket::await_change(s) && s.is(State::Attached))
    {
        io::send_held(s, g);
    }
}

/// An option is about to be set: what its carrier's next life needs, or what keeps it from one.
/// (Also where the library sets it itself, or the kernel refuses it.)
#[cold]
#[inline(never)]
fn mark(fd: c_int, level: c_int, name: c_int) {
    let mark = fast_connect::mark_of(level, name);
    match fd_table::get(fd) {
        Entry::Fresh(_) => fast_connect::mark_fresh(fd, mark),
        Entry::Socket(s, _) => drop(s.marks.fetch_or(mark, AcqRel)),
        Entry::Listener(_) => {
            // (What it has accepted does not have the option.)
            fast_connect::listener(fd).into_iter().for_each(io::give_up_listener);
        }
        _ => {}
    }
}

/// The socket may ask something else of its packets from now on: where a queue pair cannot do that
/// the connection goes back to its carrier, and where another one can, it goes there.
#[cold]
fn on_policy(fd: c_int) {
    let Some((s, _)) = fd_table::socket(fd) else { return };
    // (Who attaches it asks the kernel after this, or is waited for.)
    if !socket::await_change(s) || s.path().is_shared() {
        return;
    }
    match packet_policy::of(fd, s.tuple().local().ip()) {
        Ok(asked) if asked.key() == s.asked.load(Relaxed) => {}
        // Its next calls ask for an agreement anew, or hear why there is none.
        _ if s.is(State::Candidate) => s.lower(flag::NOTED),
        _ if !s.is(State::Attached) => {}
        Err(why) => io::need_kernel(fd, why),
        Ok(_) => match s.channel() {
            Some(c) => c.far.demote(s.slot.load(Relaxed) as usize, Reason::KernelPolicy, true),
            None => io::need_kernel(fd, Reason::KernelPolicy),
        },
    }
}

/// SO_SNDBUF: the kernel wakes who waits for room that a larger buffer has (sock_setsockopt:
/// sk_write_space).
unsafe fn set_send_buffer(on: Named, name: c_int, value: *const c_void, len: socklen_t) -> Ret {
    let Named { s, g, fd } = on;
    let room = || {
        let mut bytes: c_int = 0;
        let _ = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut bytes);
        bytes
    };
    let before = room();
    // SAFETY: the caller's promise.
    let r = unsafe { sys::setsockopt_raw(fd, libc::SOL_SOCKET, name, value, len) };
    if r >= 0 && room() > before {
        io::on_more_room(s, g);
    }
    r
}

pub(crate) unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Ret {
    leave_to_program(fd, level, name);
    if level == libc::IPPROTO_TCP
        && name == TCP_ZEROCOPY_RECEIVE
        && let Some((s, g)) = fd_table::socket(fd)
    {
        // It receives what the kernel has.
        let _ = io::to_kernel(s, g, fd, Reason::SocketOption, false);
        // SAFETY: the caller's places.
        if let Some(r) = unsafe { ask_to_receive(s, g, fd, value, len) } {
            return r;
        }
    }
    if config::has_fast_connect()
        && let Some(i) = harmless::index(level, name)
        && let Some((s, _)) = fd_table::socket(fd)
    {
        harmless::write_back_some(s, fd, 1 << i);
    }
    if let Some(on) = io::probed_by(fd, level, name) {
        io::end_probe(on.s, on.g);
    }
    if level == libc::IPPROTO_TCP && name == syn::TCP_SAVED_SYN {
        syn::before_asked(fd_table::socket(fd).map(|(s, _)| &s.syn), fd);
    }
    // SAFETY: the caller's promise.
    unsafe { introspect::getsockopt(fd, level, name, value, len) }
}

/// The library's own SO_LINGER may stand on the carrier, and an error of the connection
/// may be one that the kernel does not know.
/// What TCP_ZEROCOPY_RECEIVE answers where the next bytes are in a ring and will not come by the
/// kernel: it maps none, and so many are to be received by recv (`recv_skip_hint` of linux/tcp.h).
///
/// # Safety
/// As for getsockopt(2).
unsafe fn ask_to_receive(
    s: &'static socket::Socket,
    g: u16,
    fd: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<Ret> {
    const LENGTH: usize = 8;
    let unread = io::unread(s, g, fd).filter(|_| io::is_left_in_ring(fd))?;
    // SAFETY: the caller's promise; the addresses may be anything.
    let room = unsafe { user::read(len) }? as usize;
    if room < LENGTH + 2 * size_of::<u32>() {
        return None;
    }
    let said = [0, u32::try_from(unread).unwrap_or(u32::MAX)];
    // SAFETY: as above.
    let written = unsafe { user::write(value.cast::<u8>().wrapping_add(LENGTH).cast(), said) };
    Some(if written { 0 } else { -(libc::EFAULT as Ret) })
}

pub(crate) unsafe fn on_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *const socklen_t,
) {
    if level == libc::IPPROTO_TCP && name == syn::TCP_SAVE_SYN {
        // SAFETY: the kernel has just written its answer's length there, and as many bytes of an
        // int.
        unsafe {
            let mut number: c_int = 0;
            let len = (len.read_unaligned() as usize).min(size_of::<c_int>());
            core::ptr::copy_nonoverlapping(value.cast::<u8>(), (&raw mut number).cast(), len);
            let shown = syn::shown(number);
            core::ptr::copy_nonoverlapping((&raw const shown).cast(), value.cast::<u8>(), len);
        }
        return;
    }
    if level != libc::SOL_SOCKET || (name != libc::SO_LINGER && name != libc::SO_ERROR) {
        return;
    }
    let Some((s, g)) = fd_table::socket(fd) else { return };
    // SAFETY: the kernel has just written its answer's length there.
    let room = unsafe { len.read_unaligned() } as usize;
    if name == libc::SO_ERROR && s.kept_error.load(Relaxed) != 0 && room == size_of::<c_int>() {
        // SAFETY: as above.
        let error = unsafe { value.cast::<c_int>().read_unaligned() };
        let kept = if error == 0 { s.kept_error.swap(0, Relaxed) } else { 0 };
        if kept != 0 {
            // SAFETY: as above.
            unsafe { value.cast::<c_int>().write_unaligned(-kept) };
            return;
        }
    }
    if name == libc::SO_LINGER {
        if let Some(linger) = io::application_linger(s, g, fd) {
            // SAFETY: the kernel has just written that many bytes there.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    (&raw const linger).cast::<u8>(),
                    value.cast(),
                    room.min(size_of_val(&linger)),
                )
            };
        }
    } else if s.is(State::Attached) && room == size_of::<c_int>() {
        // SAFETY: as above.
        let error = unsafe { value.cast::<c_int>().read_unaligned() };
        if let Some(error) = io::on_error_taken(s, g, fd, error) {
            // SAFETY: as above.
            unsafe { value.cast::<c_int>().write_unaligned(error) };
        }
    }
}

pub(crate) unsafe fn ioctl(fd: c_int, request: usize, arg: usize) -> Ret {
    let Some((s, g)) = fd_table::socket(fd) else {
        if matches!(request as u64, NBD_SET_SOCK | SIOCKCMATTACH) {
            give_to_user_in_kernel(fd, request as u64, arg);
        }
        if request as u64 == libc::FIONBIO
            && matches!(fd_table::get(fd), Entry::Fresh(_))
            // SAFETY: it takes a pointer to an int of the caller's.
            && let Some(on) = (unsafe { user::read(arg as *const c_int) })
        {
            fd_table::set_nonblock(fd, on != 0);
        }
        // SAFETY: as above.
        return if fast_connect::is_on() { unsafe { ioctl_fresh(fd, request, arg) } } else { PASS };
    };
    if !s.is(State::Attached) && request as u64 != libc::FIONBIO {
        return PASS;
    }
    let out = |n: usize| {
        // SAFETY: FIONREAD and SIOCOUTQ take a pointer to an int of the caller's.
        let written =
            unsafe { user::write(arg as *mut c_int, n.min(c_int::MAX as usize) as c_int) };
        if written { 0 } else { -(libc::EFAULT as Ret) }
    };
    match request as u64 {
        libc::FIONBIO => {
            // SAFETY: it takes a pointer to an int of the caller's.
            let Some(mut on) = (unsafe { user::read(arg as *const c_int) }) else {
                return -(libc::EFAULT as Ret);
            };
            if s.life.load(Relaxed) > 1 && harmless::sets_nonblock(s, on != 0) {
                return 0;
            }
            let r = sys::ioctl(fd, request, &raw mut on as usize);
            if r >= 0 {
                // (Who attaches it may have asked the kernel before.)
                socket::await_change(s);
                socket::set_nonblock(s, on != 0);
            }
            r
        }
        libc::FIONREAD => io::unread(s, g, fd).map_or(PASS, out),
        libc::TIOCOUTQ if io::carrier_is_drained(s) => out(0),
        // The kernel does not know of what is to be read before its urgent byte.
        SIOCATMARK if io::reads_ring_first(s, g) => out(0),
        libc::FIOASYNC => {
            io::need_kernel(fd, Reason::SocketOption);
            PASS
        }
        _ => PASS,
    }
}

/// The request names a connection whose user is the kernel from then on: it asks its own socket.
#[cold]
#[inline(never)]
fn give_to_user_in_kernel(fd: c_int, request: u64, arg: usize) {
    let mut domain: c_int = 0;
    let theirs = match request {
        NBD_SET_SOCK => arg as c_int,
        // (The number means other things to other protocols.)
        _ if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut domain) < 0
            || domain != AF_KCM =>
        {
            return;
        }
        // SAFETY: struct kcm_attach of the caller's begins with it.
        _ => match unsafe { user::read(arg as *const c_int) } {
            Some(theirs) => theirs,
            None => return,
        },
    };
    io::need_kernel(theirs, Reason::PassedByScmRights);
}

/// ioctl on a socket that may not have been connected yet: how it is set up is followed.
///
/// # Safety
/// As for ioctl(2).
#[cold]
#[inline(never)]
unsafe fn ioctl_fresh(fd: c_int, request: usize, arg: usize) -> Ret {
    let (flag, is_set) = match request as u64 {
        libc::FIONBIO => {
            // SAFETY: it takes a pointer to an int of the caller's.
            let Some(on) = (unsafe { user::read(arg as *const c_int) }) else { return PASS };
            fast_connect::listener(fd).into_iter().for_each(|l| l.set_nonblock(on != 0));
            (fast_connect::NONBLOCK, on != 0)
        }
        libc::FIOCLEX => (fast_connect::CLOEXEC, true),
        libc::FIONCLEX => (fast_connect::CLOEXEC, false),
        _ => (fast_connect::ODD, true),
    };
    // (The kernel refuses none of these.)
    if let Entry::Fresh(_) = fd_table::get(fd) {
        fast_connect::note_flag(fd, flag, is_set);
    }
    PASS
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::socket::Event;
    use std::boxed::Box;
    use std::sync::mpsc;
    use std::time::Duration;

    /// A time-out that is set while another thread attaches the connection: that thread has asked
    /// the kernel already, where a negative one reads as none, and stores what it heard.
    #[test]
    fn a_time_out_that_meets_an_attachment_counts() {
        crate::testing::init();
        let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0) as c_int;
        let memory = Box::leak(Box::new(core::mem::MaybeUninit::<socket::Socket>::zeroed()));
        // SAFETY: all zero is a valid Socket.
        let s: &'static socket::Socket = unsafe { &*memory.as_ptr() };
        s.state.begin_as(State::Candidate);
        assert!(s.state.change(State::Candidate, Event::Claimed));
        fd_table::set(fd, Entry::Socket(s, 0));
        socket::look_at_options(s, fd);
        let (tell, hear) = mpsc::channel();
        let setter = std::thread::spawn(move || {
            let time = timeval { tv_sec: -1, tv_usec: 0 };
            for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                assert_eq!(sys::setsockopt(fd, libc::SOL_SOCKET, name, &time), 0);
                // SAFETY: a time-out's value.
                unsafe {
                    on_setsockopt(
                        fd,
                        libc::SOL_SOCKET,
                        name,
                        (&raw const time).cast(),
                        size_of_val(&time) as socklen_t,
                    )
                };
            }
            let _ = tell.send(());
        });
        // Comes only where the option does not wait for the attachment; then what follows undoes
        // it.
        let _ = hear.recv_timeout(Duration::from_millis(100));
        for timeout in [&s.receive_timeout_ns, &s.send_timeout_ns] {
            timeout.store(0, Relaxed);
        }
        assert!(s.state.happens(Event::Attached));
        assert!(setter.join().is_ok());
        assert_eq!([&s.receive_timeout_ns, &s.send_timeout_ns].map(|t| t.load(Relaxed)), [-1, -1]);
        fd_table::set(fd, Entry::None);
        sys::close(fd);
    }
}
