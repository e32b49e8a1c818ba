//! setsockopt and ioctl: which options leave a connection as it is, and which need the kernel's path.

use crate::api::{PASS, Ret};
use crate::fd_table::{self, Entry};
use crate::lifecycle;
use crate::socket::{self, ATTACHED, flag};
use crate::{io, syn, sys};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
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
const SO_TIMESTAMPS: [c_int; 6] = [29, 35, 37, 63, 64, 65];
const IP_TRANSPARENT: c_int = 19;
const IPV6_TRANSPARENT: c_int = 75;

/// Options whose effect the rings cannot show: with one of them set the connection stays with the kernel.
fn needs_kernel(level: c_int, name: c_int, value: i64) -> bool {
    match level {
        libc::SOL_SOCKET => match name {
            libc::SO_RCVLOWAT => value > 1,
            libc::SO_OOBINLINE | SO_ZEROCOPY | SO_TXTIME => value != 0,
            SO_PEEK_OFF => value >= 0,
            n => SO_TIMESTAMPS.contains(&n) && value != 0,
        },
        libc::IPPROTO_TCP => matches!(name, TCP_REPAIR | TCP_ULP | TCP_ZEROCOPY_RECEIVE | TCP_INQ | TCP_TX_DELAY) || TCP_AO.contains(&name),
        libc::IPPROTO_IP => name == IP_TRANSPARENT && value != 0,
        libc::IPPROTO_IPV6 => name == IPV6_TRANSPARENT && value != 0,
        _ => false,
    }
}

/// The kernel's receive or send timeout of a socket, nanoseconds, 0: none.
pub(crate) fn timeout_of(fd: c_int, name: c_int) -> i64 {
    let mut tv = timeval { tv_sec: 0, tv_usec: 0 };
    if sys::getsockopt(fd, libc::SOL_SOCKET, name, &mut tv) < 0 {
        return 0;
    }
    tv.tv_sec.saturating_mul(1_000_000_000).saturating_add(tv.tv_usec.saturating_mul(1000))
}

pub(crate) unsafe fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> Ret {
    if level == libc::IPPROTO_TCP && name == syn::TCP_SAVE_SYN {
        syn::before_use();
        return PASS;
    }
    let raw = fd_table::raw(fd);
    if raw == 0 {
        return PASS;
    }
    let number = if value as usize >= 4096 && len as usize >= size_of::<c_int>() {
        // SAFETY: the caller says that `len` >= 4 bytes are there.
        unsafe { value.cast::<c_int>().read_unaligned() as i64 }
    } else {
        1
    };
    let parents = |s: &socket::Socket| s.is_inherited() && s.has(flag::REMOTE) && s.is(ATTACHED);
    if level == libc::SOL_SOCKET && name == libc::SO_LINGER && fd_table::socket(fd).is_some_and(|(s, _)| parents(s)) {
        // The library's own stands on the carrier until the connection is back there.
        lifecycle::need_kernel(fd, Reason::InheritedByFork);
    }
    if needs_kernel(level, name, number) {
        match fd_table::decode(raw) {
            Entry::Internal => return -(libc::EBADF as Ret),
            _ => lifecycle::need_kernel(fd, Reason::SocketOption),
        }
    }
    PASS
}

pub(crate) unsafe fn on_setsockopt(fd: c_int, level: c_int, name: c_int, _value: *const c_void, _len: socklen_t) {
    if level != libc::SOL_SOCKET {
        return;
    }
    if let Some((s, g)) = fd_table::socket(fd) {
        match name {
            libc::SO_LINGER if s.is(ATTACHED) => io::on_linger(s, g, fd),
            libc::SO_RCVTIMEO => s.receive_timeout_ns.store(timeout_of(fd, name), Relaxed),
            libc::SO_SNDTIMEO => s.send_timeout_ns.store(timeout_of(fd, name), Relaxed),
            _ => {}
        }
    }
}

pub(crate) fn before_getsockopt(fd: c_int, level: c_int, name: c_int) {
    if level == libc::IPPROTO_TCP && name == syn::TCP_SAVED_SYN {
        syn::before_asked(fd);
    }
}

/// Between hosts the library's own SO_LINGER stands on the carrier, and an error of the connection may be one that the kernel does not know.
pub(crate) unsafe fn on_getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *const socklen_t) {
    if level == libc::IPPROTO_TCP && name == syn::TCP_SAVE_SYN {
        // SAFETY: the kernel has just written its answer's length there, and as many bytes of an int.
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
    let Some((s, g)) = fd_table::socket(fd).filter(|(s, _)| s.is(ATTACHED)) else { return };
    // SAFETY: the kernel has just written its answer's length there.
    let room = unsafe { len.read_unaligned() } as usize;
    if name == libc::SO_LINGER {
        if let Some(linger) = io::application_linger(s, g, fd) {
            // SAFETY: the kernel has just written that many bytes there.
            unsafe { core::ptr::copy_nonoverlapping((&raw const linger).cast::<u8>(), value.cast(), room.min(size_of_val(&linger))) };
        }
    } else if room == size_of::<c_int>() {
        // SAFETY: as above.
        let error = unsafe { value.cast::<c_int>().read_unaligned() };
        if let Some(error) = io::on_error_taken(s, fd, error) {
            // SAFETY: as above.
            unsafe { value.cast::<c_int>().write_unaligned(error) };
        }
    }
}

pub(crate) unsafe fn ioctl(fd: c_int, request: usize, arg: usize) -> Ret {
    let Some((s, g)) = fd_table::socket(fd) else { return PASS };
    if !s.is(ATTACHED) {
        return PASS;
    }
    let out = |n: usize| {
        if arg < 4096 {
            return -(libc::EFAULT as Ret);
        }
        // SAFETY: FIONREAD and SIOCOUTQ take a pointer to an int that the caller owns.
        unsafe { (arg as *mut c_int).write_unaligned(n.min(c_int::MAX as usize) as c_int) };
        0
    };
    match request as u64 {
        libc::FIONBIO => {
            let r = sys::ioctl(fd, request, arg);
            if r >= 0 {
                // SAFETY: the kernel has just read an int there.
                socket::set_nonblock(s, unsafe { (arg as *const c_int).read_unaligned() } != 0);
            }
            r
        }
        libc::FIONREAD => {
            let mut kernel: c_int = 0;
            let r = sys::ioctl(fd, request, &mut kernel as *mut c_int as usize);
            match io::unread(s, g, fd) {
                Some(n) if r >= 0 => out(n.saturating_add(kernel.max(0) as usize)),
                _ => PASS,
            }
        }
        libc::TIOCOUTQ if io::carrier_is_drained(s) => out(0),
        libc::FIOASYNC => {
            lifecycle::need_kernel(fd, Reason::SocketOption);
            PASS
        }
        _ => PASS,
    }
}
