//! Making, connecting and ending sockets. The kernel carries these calls out; the core is told, or
//! asked first.

use super::fd::{accepted, numbered};
use crate::errno;
use libc::{c_int, c_void, sockaddr, sockaddr_storage, socklen_t};
use netacc_core::api::{self, PASS};

hook! {
    /// `socket(2)`.
    fn socket(domain: c_int, ty: c_int, protocol: c_int) -> c_int |next| {
        if api::has_prepared_sockets()
            && let Some(fd) = api::prepared_socket(domain, ty, protocol)
        {
            return fd;
        }
        let fd = numbered(|| next(domain, ty, protocol));
        if fd >= 0 {
            api::on_socket(fd, domain, ty, protocol);
        }
        fd
    }
}

hook! {
    /// `socketpair(2)`: never ours, but the numbers may be known from a close that was not seen.
    fn socketpair(domain: c_int, ty: c_int, protocol: c_int, pair: *mut c_int) -> c_int |next| {
        let result = numbered(|| next(domain, ty, protocol, pair));
        if result == 0 {
            api::on_new_fd(*pair);
            api::on_new_fd(*pair.wrapping_add(1));
        }
        result
    }
}

hook! {
    /// `listen(2)`.
    fn listen(fd: c_int, backlog: c_int) -> c_int |next| {
        api::before_listen(fd);
        let result = next(fd, backlog);
        if result == 0 {
            api::on_listen(fd);
        }
        result
    }
}

/// Where the kernel writes the peer's address for an accept whose caller does not want it: who has
/// connected then costs no system call.
struct Peer {
    address: sockaddr_storage,
    len: socklen_t,
}

impl Peer {
    fn new() -> Peer {
        let len = size_of::<sockaddr_storage>() as socklen_t;
        // SAFETY: all zero is a valid sockaddr_storage.
        let address = unsafe { core::mem::zeroed() };
        Peer { address, len }
    }

    /// The caller's places, or these.
    fn or(&mut self, addr: *mut sockaddr, len: *mut socklen_t) -> (*mut sockaddr, *mut socklen_t) {
        if addr.is_null() {
            ((&raw mut self.address).cast(), &raw mut self.len)
        } else {
            (addr, len)
        }
    }
}

/// There are listeners that give out more than the kernel's connections. `None`: this is none, or
/// the kernel has the answer.
///
/// # Safety
/// As for accept4(2).
#[cold]
#[inline(never)]
unsafe fn accept_beside(
    listener: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let answer = unsafe { api::accept(listener, addr, len, flags) };
    (answer != PASS).then(|| errno::ret_at_point(answer) as c_int)
}

hook! {
    /// `accept(2)`.
    fn accept(listener: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int |next| {
        if api::gives_out_more()
            && let Some(answer) = accept_beside(listener, addr, len, 0)
        {
            return answer;
        }
        let mut own = Peer::new();
        let (addr, len) = own.or(addr, len);
        let fd = accepted(|| next(listener, addr, len));
        if fd >= 0 {
            api::on_accept(listener, fd, addr, len, 0);
        }
        fd
    }
}

hook! {
    /// `accept4(2)`.
    fn accept4(listener: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int |next| {
        if api::gives_out_more()
            && let Some(answer) = accept_beside(listener, addr, len, flags)
        {
            return answer;
        }
        let mut own = Peer::new();
        let (addr, len) = own.or(addr, len);
        let fd = accepted(|| next(listener, addr, len, flags));
        if fd >= 0 {
            api::on_accept(listener, fd, addr, len, flags);
        }
        fd
    }
}

/// The one body of `connect` and its alias.
macro_rules! connect {
    ($($declaration:tt)*) => {
        hook! {
            $($declaration)*(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int |next| {
                let answer = api::connect(fd, addr, len);
                if answer != PASS {
                    return errno::ret_at_point(answer) as c_int;
                }
                let result = next(fd, addr, len);
                // errno stays what the next symbol made it: the core does not touch it.
                api::on_connect(fd, addr, len, if result == 0 { 0 } else { errno::get().wrapping_neg() });
                result
            }
        }
    };
}

connect! {
    /// `connect(2)`.
    fn connect
}
connect! {
    /// libc's older public name of `connect`.
    unchecked fn __connect
}

hook! {
    /// `shutdown(2)`.
    fn shutdown(fd: c_int, how: c_int) -> c_int = api::shutdown(fd, how);
}

hook! {
    /// `getsockopt(2)`.
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int |next| {
        let answer = api::getsockopt(fd, level, name, value, len);
        if answer != PASS {
            return errno::ret(answer) as c_int;
        }
        let result = next(fd, level, name, value, len);
        if result == 0 {
            api::on_getsockopt(fd, level, name, value, len);
        }
        result
    }
}

hook! {
    /// `setsockopt(2)`.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int |next| {
        let answer = api::setsockopt(fd, level, name, value, len);
        if answer != PASS {
            return errno::ret(answer) as c_int;
        }
        let result = next(fd, level, name, value, len);
        if result == 0 {
            api::on_setsockopt(fd, level, name, value, len);
        }
        result
    }
}
