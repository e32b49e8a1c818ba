//! Safe, thin wrappers over the libc calls under test.
//!
//! Every function here is exactly one call of a dynamic libc symbol, so that a preloaded library
//! sees what an ordinary C program would have called. Nothing retries, nothing interprets: the
//! result is the return value or the errno. The standard library's sockets are not used, because
//! they would hide calls and flags.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::{size_of, zeroed};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

pub type Fd = c_int;

/// An errno value; prints as its name, because transcripts are compared as text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct E(pub i32);

/// The result of one call: a byte count, a new fd, or zero; or the errno.
pub type R = Result<usize, E>;

macro_rules! names {
    ($value:expr, $($name:ident)*) => {
        $(if $value == libc::$name { return Some(stringify!($name)); })*
    };
}

fn errno_name(value: i32) -> Option<&'static str> {
    names!(value, EPERM ENOENT EINTR EIO EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENOTDIR EISDIR EINVAL
        ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOSYS ELOOP ENODATA ETIME
        EOVERFLOW ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT EOPNOTSUPP EAFNOSUPPORT
        EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN
        ETIMEDOUT ECONNREFUSED EHOSTUNREACH EALREADY EINPROGRESS ECANCELED ENXIO ENODEV EXDEV ESRCH);
    None
}

impl fmt::Debug for E {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match errno_name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

pub fn errno() -> E {
    E(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// What a signal handler does: to the interrupted program errno is as before (signal-safety(7)).
pub fn keeping_errno(body: impl FnOnce()) {
    // SAFETY: this thread's own errno.
    let (at, before) = unsafe { (libc::__errno_location(), *libc::__errno_location()) };
    body();
    // SAFETY: as above.
    unsafe { *at = before };
}

/// One foreign call whose pointer arguments are borrowed from live Rust values of the lengths
/// passed beside them (or are deliberately invalid addresses that only the kernel looks at).
macro_rules! call {
    ($e:expr) => {{
        // SAFETY: pointers come from live borrows with matching lengths, or are meant for the
        // kernel to reject.
        let value = unsafe { $e };
        cvt(value as isize)
    }};
}

fn cvt(value: isize) -> R {
    usize::try_from(value).map_err(|_| errno())
}

fn fd_of(result: R) -> Result<Fd, E> {
    result.map(|v| v as Fd)
}

// --------------------------------------------------------------------------------------- addresses

/// An internet address and port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addr {
    V4([u8; 4], u16),
    V6([u8; 16], u16),
}

pub const LOOPBACK: Addr = Addr::V4([127, 0, 0, 1], 0);
pub const LOOPBACK6: Addr = Addr::V6([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 0);
pub const ANY6: Addr = Addr::V6([0; 16], 0);

/// The address of the connections under test: $NETACC_TEST_ADDRESS (an RDMA device has one of its
/// own), or the loopback address.
pub fn home() -> Addr {
    address_in("NETACC_TEST_ADDRESS", LOOPBACK)
}

/// The same in IPv6: $NETACC_TEST_ADDRESS6.
pub fn home6() -> Addr {
    address_in("NETACC_TEST_ADDRESS6", LOOPBACK6)
}

fn address_in(variable: &str, otherwise: Addr) -> Addr {
    let Ok(text) = std::env::var(variable) else {
        return otherwise;
    };
    match (text.parse(), otherwise) {
        (Ok(std::net::IpAddr::V4(ip)), Addr::V4(..)) => Addr::V4(ip.octets(), 0),
        (Ok(std::net::IpAddr::V6(ip)), Addr::V6(..)) => Addr::V6(ip.octets(), 0),
        _ => panic!("{variable} is no address of that family: {text:?}"),
    }
}

/// Each limit of time is so many times as long: $NETACC_TEST_PATIENCE, for machines on which
/// everything is slow.
pub fn patience() -> u32 {
    std::env::var("NETACC_TEST_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

impl Addr {
    pub fn port(self) -> u16 {
        match self {
            Addr::V4(_, port) | Addr::V6(_, port) => port,
        }
    }

    pub fn with_port(self, port: u16) -> Addr {
        match self {
            Addr::V4(ip, _) => Addr::V4(ip, port),
            Addr::V6(ip, _) => Addr::V6(ip, port),
        }
    }

    /// As an IPv6 socket names it.
    pub fn mapped(self) -> Addr {
        match self {
            Addr::V4(ip, port) => {
                Addr::V6(std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets(), port)
            }
            Addr::V6(..) => self,
        }
    }

    pub fn family(self) -> c_int {
        match self {
            Addr::V4(..) => libc::AF_INET,
            Addr::V6(..) => libc::AF_INET6,
        }
    }

    /// The address without its port, for transcripts.
    pub fn host(self) -> String {
        match self {
            Addr::V4(ip, _) => std::net::Ipv4Addr::from(ip).to_string(),
            Addr::V6(ip, _) => std::net::Ipv6Addr::from(ip).to_string(),
        }
    }

    pub fn parse(text: &str) -> Option<Addr> {
        match text.parse().ok()? {
            std::net::SocketAddr::V4(a) => Some(Addr::V4(a.ip().octets(), a.port())),
            std::net::SocketAddr::V6(a) => Some(Addr::V6(a.ip().octets(), a.port())),
        }
    }

    pub fn text(self) -> String {
        match self {
            Addr::V4(ip, port) => std::net::SocketAddr::from((ip, port)).to_string(),
            Addr::V6(ip, port) => std::net::SocketAddr::from((ip, port)).to_string(),
        }
    }

    pub fn raw(self) -> (libc::sockaddr_storage, libc::socklen_t) {
        // SAFETY: all-zero is a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let out: *mut libc::sockaddr_storage = &mut storage;
        match self {
            Addr::V4(ip, port) => {
                // SAFETY: sockaddr_storage is large and aligned enough for every sockaddr.
                let sin = unsafe { &mut *out.cast::<libc::sockaddr_in>() };
                sin.sin_family = libc::AF_INET as u16;
                sin.sin_port = port.to_be();
                sin.sin_addr.s_addr = u32::from_ne_bytes(ip);
                (storage, size_of::<libc::sockaddr_in>() as u32)
            }
            Addr::V6(ip, port) => {
                // SAFETY: as above.
                let sin6 = unsafe { &mut *out.cast::<libc::sockaddr_in6>() };
                sin6.sin6_family = libc::AF_INET6 as u16;
                sin6.sin6_port = port.to_be();
                sin6.sin6_addr.s6_addr = ip;
                (storage, size_of::<libc::sockaddr_in6>() as u32)
            }
        }
    }

    pub fn from_raw(storage: &libc::sockaddr_storage) -> Option<Addr> {
        let at: *const libc::sockaddr_storage = storage;
        match c_int::from(storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says what the storage holds.
                let sin = unsafe { &*at.cast::<libc::sockaddr_in>() };
                Some(Addr::V4(sin.sin_addr.s_addr.to_ne_bytes(), u16::from_be(sin.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let sin6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
                Some(Addr::V6(sin6.sin6_addr.s6_addr, u16::from_be(sin6.sin6_port)))
            }
            _ => None,
        }
    }
}

fn storage() -> libc::sockaddr_storage {
    // SAFETY: all-zero is a valid sockaddr_storage.
    unsafe { zeroed() }
}

// ----------------------------------------------------------------------------------------- sockets

pub fn socket(family: c_int, kind: c_int, protocol: c_int) -> Result<Fd, E> {
    fd_of(call!(libc::socket(family, kind, protocol)))
}

pub fn bind(fd: Fd, addr: Addr) -> R {
    let (sa, len) = addr.raw();
    call!(libc::bind(fd, (&raw const sa).cast(), len))
}

pub fn listen(fd: Fd, backlog: c_int) -> R {
    call!(libc::listen(fd, backlog))
}

pub fn accept(fd: Fd) -> Result<Fd, E> {
    fd_of(call!(libc::accept(fd, null_mut(), null_mut())))
}

pub fn accept4(fd: Fd, flags: c_int) -> Result<Fd, E> {
    fd_of(call!(libc::accept4(fd, null_mut(), null_mut(), flags)))
}

pub fn accept_addr(fd: Fd) -> Result<(Fd, Option<Addr>, u32), E> {
    let mut sa = storage();
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    let new = fd_of(call!(libc::accept(fd, (&raw mut sa).cast(), &mut len)))?;
    Ok((new, Addr::from_raw(&sa), len))
}

pub fn connect(fd: Fd, addr: Addr) -> R {
    let (sa, len) = addr.raw();
    call!(libc::connect(fd, (&raw const sa).cast(), len))
}

pub fn connect_len(fd: Fd, addr: Addr, len: u32) -> R {
    let (sa, _) = addr.raw();
    call!(libc::connect(fd, (&raw const sa).cast(), len))
}

/// `connect(AF_UNSPEC)`: dissolves the association.
pub fn disconnect(fd: Fd) -> R {
    let sa = storage();
    call!(libc::connect(fd, (&raw const sa).cast(), size_of::<libc::sockaddr_in>() as u32))
}

pub fn getsockname(fd: Fd) -> Result<Addr, E> {
    let mut sa = storage();
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    call!(libc::getsockname(fd, (&raw mut sa).cast(), &mut len))?;
    Addr::from_raw(&sa).ok_or(E(libc::EAFNOSUPPORT))
}

pub fn getpeername(fd: Fd) -> Result<Addr, E> {
    let mut sa = storage();
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    call!(libc::getpeername(fd, (&raw mut sa).cast(), &mut len))?;
    Addr::from_raw(&sa).ok_or(E(libc::EAFNOSUPPORT))
}

/// `getpeername` with a buffer of `room` bytes; returns the length that the kernel reports.
pub fn getpeername_len(fd: Fd, room: u32) -> R {
    let mut sa = storage();
    let mut len = room;
    call!(libc::getpeername(fd, (&raw mut sa).cast(), &mut len))?;
    Ok(len as usize)
}

pub fn shutdown(fd: Fd, how: c_int) -> R {
    call!(libc::shutdown(fd, how))
}

pub fn socketpair(kind: c_int) -> Result<[Fd; 2], E> {
    let mut fds = [0; 2];
    call!(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
    Ok(fds)
}

pub fn getopt(fd: Fd, level: c_int, name: c_int) -> Result<i32, E> {
    let mut value = 0i32;
    let mut len = 4u32;
    call!(libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len))?;
    Ok(value)
}

pub fn getopt_bytes(fd: Fd, level: c_int, name: c_int, room: usize) -> Result<Vec<u8>, E> {
    let mut value = vec![0u8; room];
    let mut len = room as u32;
    call!(libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len))?;
    value.truncate(len as usize);
    Ok(value)
}

pub fn setopt(fd: Fd, level: c_int, name: c_int, value: i32) -> R {
    call!(libc::setsockopt(fd, level, name, (&raw const value).cast(), 4))
}

pub fn setopt_bytes(fd: Fd, level: c_int, name: c_int, value: &[u8]) -> R {
    call!(libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as u32))
}

pub fn set_timeout(fd: Fd, name: c_int, ms: i64) -> R {
    set_timeval(fd, name, ms / 1000, ms % 1000 * 1000)
}

pub fn set_timeval(fd: Fd, name: c_int, tv_sec: i64, tv_usec: i64) -> R {
    let tv = libc::timeval { tv_sec, tv_usec };
    call!(libc::setsockopt(
        fd,
        libc::SOL_SOCKET,
        name,
        (&raw const tv).cast(),
        size_of::<libc::timeval>() as u32
    ))
}

pub fn set_linger(fd: Fd, on: bool, seconds: i32) -> R {
    let value = libc::linger { l_onoff: i32::from(on), l_linger: seconds };
    call!(libc::setsockopt(
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        (&raw const value).cast(),
        size_of::<libc::linger>() as u32
    ))
}

// -------------------------------------------------------------------------------------------- data

pub fn read(fd: Fd, buf: &mut [u8]) -> R {
    call!(libc::read(fd, buf.as_mut_ptr().cast(), buf.len()))
}

pub fn write(fd: Fd, buf: &[u8]) -> R {
    call!(libc::write(fd, buf.as_ptr().cast(), buf.len()))
}

pub fn recv(fd: Fd, buf: &mut [u8], flags: c_int) -> R {
    call!(libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), flags))
}

pub fn send(fd: Fd, buf: &[u8], flags: c_int) -> R {
    call!(libc::send(fd, buf.as_ptr().cast(), buf.len(), flags))
}

/// `recvfrom` with an address buffer; returns the count and the address length that the kernel
/// wrote.
pub fn recvfrom(fd: Fd, buf: &mut [u8], flags: c_int) -> Result<(usize, u32), E> {
    let mut sa = storage();
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    let n = call!(libc::recvfrom(
        fd,
        buf.as_mut_ptr().cast(),
        buf.len(),
        flags,
        (&raw mut sa).cast(),
        &mut len
    ))?;
    Ok((n, len))
}

pub fn sendto(fd: Fd, buf: &[u8], flags: c_int, to: Option<Addr>) -> R {
    match to {
        Some(addr) => {
            let (sa, len) = addr.raw();
            call!(libc::sendto(
                fd,
                buf.as_ptr().cast(),
                buf.len(),
                flags,
                (&raw const sa).cast(),
                len
            ))
        }
        None => call!(libc::sendto(fd, buf.as_ptr().cast(), buf.len(), flags, null(), 0)),
    }
}

/// `recv` into an address that is not mapped.
pub fn recv_bad_pointer(fd: Fd, len: usize, flags: c_int) -> R {
    call!(libc::recv(fd, 16 as *mut c_void, len, flags))
}

/// `read` into an address that is not mapped.
pub fn read_bad_pointer(fd: Fd, len: usize) -> R {
    call!(libc::read(fd, 16 as *mut c_void, len))
}

/// `send` from an address that is not mapped.
pub fn send_bad_pointer(fd: Fd, len: usize, flags: c_int) -> R {
    call!(libc::send(fd, 16 as *const c_void, len, flags))
}

fn iov_out(parts: &[&[u8]]) -> Vec<libc::iovec> {
    parts
        .iter()
        .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
        .collect()
}

fn iov_in(parts: &mut [&mut [u8]]) -> Vec<libc::iovec> {
    parts
        .iter_mut()
        .map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() })
        .collect()
}

pub fn readv(fd: Fd, parts: &mut [&mut [u8]]) -> R {
    let iov = iov_in(parts);
    call!(libc::readv(fd, iov.as_ptr(), iov.len() as c_int))
}

pub fn writev(fd: Fd, parts: &[&[u8]]) -> R {
    let iov = iov_out(parts);
    call!(libc::writev(fd, iov.as_ptr(), iov.len() as c_int))
}

/// `readv`/`writev` with an impossible vector count.
pub fn readv_count(fd: Fd, count: c_int) -> R {
    let iov = libc::iovec { iov_base: null_mut(), iov_len: 0 };
    call!(libc::readv(fd, &iov, count))
}

pub fn writev_count(fd: Fd, count: c_int) -> R {
    let iov = libc::iovec { iov_base: null_mut(), iov_len: 0 };
    call!(libc::writev(fd, &iov, count))
}

pub fn preadv2(fd: Fd, parts: &mut [&mut [u8]], offset: i64, flags: c_int) -> R {
    let iov = iov_in(parts);
    call!(libc::preadv2(fd, iov.as_ptr(), iov.len() as c_int, offset, flags))
}

pub fn pwritev2(fd: Fd, parts: &[&[u8]], offset: i64, flags: c_int) -> R {
    let iov = iov_out(parts);
    call!(libc::pwritev2(fd, iov.as_ptr(), iov.len() as c_int, offset, flags))
}

pub fn pread(fd: Fd, buf: &mut [u8], offset: i64) -> R {
    call!(libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), offset))
}

pub fn pwrite(fd: Fd, buf: &[u8], offset: i64) -> R {
    call!(libc::pwrite(fd, buf.as_ptr().cast(), buf.len(), offset))
}

pub fn lseek(fd: Fd, offset: i64, whence: c_int) -> R {
    call!(libc::lseek(fd, offset, whence))
}

fn header(iov: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len() as _;
    msg
}

/// With control data that TCP does not look at.
pub fn sendmsg_with_control(fd: Fd, parts: &[&[u8]], flags: c_int) -> R {
    let iov = iov_out(parts);
    let mut msg = header(&iov);
    let mut control = [0u64; 3];
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = size_of_val(&control) as _;
    // SAFETY: room for a header and four bytes.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&msg);
        (*first).cmsg_len = libc::CMSG_LEN(4) as _;
        (*first).cmsg_level = libc::IPPROTO_IP;
        (*first).cmsg_type = libc::IP_TOS;
    }
    call!(libc::sendmsg(fd, &msg, flags))
}

pub fn sendmsg(fd: Fd, parts: &[&[u8]], flags: c_int) -> R {
    let iov = iov_out(parts);
    let msg = header(&iov);
    call!(libc::sendmsg(fd, &msg, flags))
}

/// What `recvmsg` left in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub bytes: usize,
    pub flags: c_int,
    pub name_len: u32,
    /// Ancillary messages: level, type, payload.
    pub control: Vec<(c_int, c_int, Vec<u8>)>,
}

pub fn recvmsg_full(fd: Fd, parts: &mut [&mut [u8]], flags: c_int) -> Result<Received, E> {
    let iov = iov_in(parts);
    let mut msg = header(&iov);
    let mut name = storage();
    msg.msg_name = (&raw mut name).cast();
    msg.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
    let mut space = [0u64; 64];
    msg.msg_control = space.as_mut_ptr().cast();
    msg.msg_controllen = size_of::<[u64; 64]>() as _;
    let bytes = call!(libc::recvmsg(fd, &mut msg, flags))?;
    let mut control = Vec::new();
    // SAFETY: the kernel filled `msg`; its control buffer is `space`, which outlives this walk.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&msg) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR/NXTHDR return headers inside the control buffer.
        let head = unsafe { &*at };
        // SAFETY: as above; the payload lies inside the buffer, cmsg_len counts the header too.
        let data = unsafe { libc::CMSG_DATA(at) };
        // SAFETY: CMSG_LEN is arithmetic.
        let len = head.cmsg_len as usize - unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: as above.
        let payload = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
        control.push((head.cmsg_level, head.cmsg_type, payload));
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(&msg, at) };
    }
    Ok(Received { bytes, flags: msg.msg_flags, name_len: msg.msg_namelen, control })
}

pub fn recvmsg(fd: Fd, parts: &mut [&mut [u8]], flags: c_int) -> R {
    let iov = iov_in(parts);
    let mut msg = header(&iov);
    call!(libc::recvmsg(fd, &mut msg, flags))
}

/// One message per part; returns the lengths of the messages that were sent.
pub fn sendmmsg(fd: Fd, messages: &[&[u8]], flags: c_int) -> Result<Vec<usize>, E> {
    let iovs: Vec<[libc::iovec; 1]> = messages
        .iter()
        .map(|m| [libc::iovec { iov_base: m.as_ptr().cast_mut().cast(), iov_len: m.len() }])
        .collect();
    let mut list: Vec<libc::mmsghdr> =
        iovs.iter().map(|iov| libc::mmsghdr { msg_hdr: header(iov), msg_len: 0 }).collect();
    let n = call!(libc::sendmmsg(fd, list.as_mut_ptr(), list.len() as u32, flags as _))?;
    Ok(list.iter().take(n).map(|m| m.msg_len as usize).collect())
}

/// One message per part; returns the lengths of the messages that were filled.
pub fn recvmmsg(
    fd: Fd,
    messages: &mut [&mut [u8]],
    flags: c_int,
    timeout_ms: Option<i64>,
) -> Result<Vec<usize>, E> {
    let mut time = timeout_ms.map(timespec_ms);
    recvmmsg_within(fd, messages, flags, time.as_mut())
}

/// `time` is what is left of it afterwards.
pub fn recvmmsg_within(
    fd: Fd,
    messages: &mut [&mut [u8]],
    flags: c_int,
    time: Option<&mut libc::timespec>,
) -> Result<Vec<usize>, E> {
    let iovs: Vec<[libc::iovec; 1]> = messages
        .iter_mut()
        .map(|m| [libc::iovec { iov_base: m.as_mut_ptr().cast(), iov_len: m.len() }])
        .collect();
    let mut list: Vec<libc::mmsghdr> =
        iovs.iter().map(|iov| libc::mmsghdr { msg_hdr: header(iov), msg_len: 0 }).collect();
    let tsp = time.map_or(null_mut(), std::ptr::from_mut);
    let n = call!(libc::recvmmsg(fd, list.as_mut_ptr(), list.len() as u32, flags as _, tsp))?;
    Ok(list.iter().take(n).map(|m| m.msg_len as usize).collect())
}

/// Two messages: one of `count` bytes, and one whose buffer cannot be written.
pub fn recvmmsg_then_bad_pointer(fd: Fd, count: usize, flags: c_int) -> R {
    let mut bytes = vec![0u8; count];
    let part = |base, len| [libc::iovec { iov_base: base, iov_len: len }];
    let iovs = [part(bytes.as_mut_ptr().cast(), count), part(8 as _, 4)];
    let mut list = iovs.each_ref().map(|iov| libc::mmsghdr { msg_hdr: header(iov), msg_len: 0 });
    call!(libc::recvmmsg(fd, list.as_mut_ptr(), 2, flags as _, null_mut()))
}

/// Calls `send` with a message that passes `fds`.
pub fn with_fds<T>(payload: &[u8], fds: &[Fd], send: impl FnOnce(&libc::msghdr) -> T) -> T {
    let iov = iov_out(&[payload]);
    let mut msg = header(&iov);
    // (253 at most.)
    let mut space = [0u64; 136];
    let bytes = std::mem::size_of_val(fds) as u32;
    msg.msg_control = space.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE is arithmetic.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
    // SAFETY: the control buffer is large enough for one header.
    let head = unsafe { &mut *libc::CMSG_FIRSTHDR(&msg) };
    head.cmsg_level = libc::SOL_SOCKET;
    head.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: CMSG_LEN is arithmetic.
    head.cmsg_len = unsafe { libc::CMSG_LEN(bytes) } as _;
    // SAFETY: CMSG_DATA points into `space`, which has room for `bytes`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            fds.as_ptr().cast::<u8>(),
            libc::CMSG_DATA(head),
            bytes as usize,
        )
    };
    send(&msg)
}

pub fn send_fds(fd: Fd, payload: &[u8], fds: &[Fd]) -> R {
    with_fds(payload, fds, |msg| call!(libc::sendmsg(fd, msg, 0)))
}

/// As [`send_fds`], by `sendmmsg`.
pub fn send_fds_mmsg(fd: Fd, payload: &[u8], fds: &[Fd]) -> R {
    with_fds(payload, fds, |msg| {
        let mut list = [libc::mmsghdr { msg_hdr: *msg, msg_len: 0 }];
        call!(libc::sendmmsg(fd, list.as_mut_ptr(), 1, 0))
    })
}

/// Receives one message with its passed fds.
pub fn recv_fds(fd: Fd) -> Result<(Vec<u8>, Vec<Fd>), E> {
    let mut buf = [0u8; 64];
    let got = recvmsg_full(fd, &mut [&mut buf], 0)?;
    let mut fds = Vec::new();
    for (level, kind, payload) in got.control {
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            fds.extend(
                payload.chunks_exact(4).map(|c| i32::from_ne_bytes([c[0], c[1], c[2], c[3]])),
            );
        }
    }
    Ok((buf[..got.bytes].to_vec(), fds))
}

pub fn sendfile(out: Fd, from: Fd, offset: Option<&mut i64>, count: usize) -> R {
    let at = offset.map_or(null_mut(), |o| &raw mut *o);
    call!(libc::sendfile(out, from, at, count))
}

pub fn sendfile64(out: Fd, from: Fd, offset: Option<&mut i64>, count: usize) -> R {
    let at = offset.map_or(null_mut(), |o| &raw mut *o);
    call!(libc::sendfile64(out, from, at, count))
}

pub fn splice(from: Fd, to: Fd, count: usize, flags: u32) -> R {
    call!(libc::splice(from, null_mut(), to, null_mut(), count, flags))
}

pub fn splice_at(
    from: Fd,
    from_at: Option<i64>,
    to: Fd,
    to_at: Option<i64>,
    count: usize,
    flags: u32,
) -> R {
    let (mut from_at, mut to_at) = (from_at, to_at);
    let at = |at: &mut Option<i64>| at.as_mut().map_or(null_mut(), std::ptr::from_mut);
    call!(libc::splice(from, at(&mut from_at), to, at(&mut to_at), count, flags))
}

pub fn tee(from: Fd, to: Fd, count: usize, flags: u32) -> R {
    call!(libc::tee(from, to, count, flags))
}

pub fn copy_file_range(from: Fd, to: Fd, count: usize) -> R {
    call!(libc::copy_file_range(from, null_mut(), to, null_mut(), count, 0))
}

// --------------------------------------------------------------------------------------------- fds

pub fn close(fd: Fd) -> R {
    call!(libc::close(fd))
}

pub fn dup(fd: Fd) -> Result<Fd, E> {
    fd_of(call!(libc::dup(fd)))
}

pub fn dup2(fd: Fd, to: Fd) -> Result<Fd, E> {
    fd_of(call!(libc::dup2(fd, to)))
}

pub fn dup3(fd: Fd, to: Fd, flags: c_int) -> Result<Fd, E> {
    fd_of(call!(libc::dup3(fd, to, flags)))
}

pub fn fcntl(fd: Fd, command: c_int, argument: c_int) -> R {
    call!(libc::fcntl(fd, command, argument))
}

pub fn ioctl_int(fd: Fd, request: u64, value: &mut c_int) -> R {
    call!(libc::ioctl(fd, request as _, &raw mut *value))
}

/// `FIONREAD`: the bytes that could be read.
/// What a call says of a number that was closed. For some microseconds a descriptor that the
/// library makes can stand there (`crates/core/src/numbers.rs`): while anything does, the call is
/// repeated.
pub fn of_closed<T>(call: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match call() {
            Err(E(libc::EBADF)) => return Err(E(libc::EBADF)),
            other if Instant::now() > end => return other,
            _ => std::thread::yield_now(),
        }
    }
}

pub fn fionread(fd: Fd) -> Result<i32, E> {
    let mut n = 0;
    ioctl_int(fd, libc::FIONREAD, &mut n)?;
    Ok(n)
}

/// `SIOCOUTQ`: the bytes sent and not yet acknowledged.
pub fn outq(fd: Fd) -> Result<i32, E> {
    let mut n = 0;
    ioctl_int(fd, libc::TIOCOUTQ, &mut n)?;
    Ok(n)
}

pub fn set_nonblocking(fd: Fd, on: bool) {
    let flags = fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) as c_int;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    let _ = fcntl(fd, libc::F_SETFL, flags);
}

pub fn open(path: &str, flags: c_int) -> Result<Fd, E> {
    let path = CString::new(path).unwrap_or_default();
    fd_of(call!(libc::open(path.as_ptr(), flags, 0o600)))
}

/// A temporary file without a name, holding `bytes`.
pub fn anonymous_file(bytes: &[u8]) -> Result<Fd, E> {
    let fd = fd_of(call!(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)))?;
    let mut at = 0;
    while at < bytes.len() {
        at += pwrite(fd, &bytes[at..], at as i64)?;
    }
    Ok(fd)
}

pub fn pipe() -> [Fd; 2] {
    let mut fds = [0; 2];
    call!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC)).expect("pipe2");
    fds
}

pub fn eventfd(value: u32) -> Fd {
    fd_of(call!(libc::eventfd(value, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))).expect("eventfd")
}

/// A timer fd that fires once, `ms` from now.
pub fn timerfd(ms: i64) -> Fd {
    let fd = fd_of(call!(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK)))
        .expect("timerfd");
    let spec = libc::itimerspec { it_interval: timespec_ms(0), it_value: timespec_ms(ms) };
    call!(libc::timerfd_settime(fd, 0, &spec, null_mut())).expect("timerfd_settime");
    fd
}

pub fn signalfd(signal: c_int) -> Fd {
    let set = sigset(&[signal]);
    fd_of(call!(libc::signalfd(-1, &set, libc::SFD_NONBLOCK))).expect("signalfd")
}

unsafe extern "C" {
    fn closefrom(low: c_int);
}

pub fn close_from(low: Fd) {
    // SAFETY: closefrom takes an int and cannot fail.
    unsafe { closefrom(low) };
}

pub fn close_range(first: u32, last: u32, flags: u32) -> R {
    call!(libc::close_range(first, last, flags as _))
}

/// The fds of this process as /proc shows them.
pub fn open_fds() -> Vec<Fd> {
    let mut fds: Vec<Fd> = Vec::new();
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        for entry in entries.flatten() {
            if let Some(fd) = entry.file_name().to_str().and_then(|s| s.parse().ok()) {
                fds.push(fd);
            }
        }
    }
    // The directory stream itself is gone by now.
    fds.retain(|&fd| fcntl(fd, libc::F_GETFD, 0).is_ok());
    fds.sort_unstable();
    fds
}

/// The file type bits of `fstat`.
pub fn file_type(fd: Fd) -> Result<u32, E> {
    // SAFETY: all-zero is a valid stat.
    let mut st: libc::stat = unsafe { zeroed() };
    call!(libc::fstat(fd, &mut st))?;
    Ok(st.st_mode & libc::S_IFMT)
}

pub fn isatty(fd: Fd) -> bool {
    // SAFETY: isatty takes an int.
    unsafe { libc::isatty(fd) == 1 }
}

pub fn nofile_limit() -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    call!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit)).expect("getrlimit");
    (limit.rlim_cur, limit.rlim_max)
}

pub fn set_nofile_limit(current: u64) -> R {
    set_nofile_limits(current, nofile_limit().1)
}

/// The limit and what it can be raised to: for good.
pub fn set_nofile_limits(current: u64, most: u64) -> R {
    let limit = libc::rlimit { rlim_cur: current, rlim_max: most };
    call!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))
}

// --------------------------------------------------------------------------------------- readiness

pub fn timespec_ms(ms: i64) -> libc::timespec {
    libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 }
}

/// `poll`; returns the count and each revents.
/// `select` for input of descriptors beyond what an `fd_set` of libc's holds: how many are ready.
pub fn select_many(fds: &[Fd], timeout_ms: i64) -> Result<usize, E> {
    let count = fds.iter().max().map_or(0, |fd| *fd as usize + 1);
    let mut bits = vec![0u64; count.div_ceil(64).max(16)];
    for fd in fds {
        bits[*fd as usize / 64] |= 1 << (*fd % 64);
    }
    let mut timeout =
        libc::timeval { tv_sec: timeout_ms / 1000, tv_usec: timeout_ms % 1000 * 1000 };
    let none = std::ptr::null_mut();
    call!(libc::select(count as c_int, bits.as_mut_ptr().cast(), none, none, &mut timeout))
}

/// Runs `body` in a thread with the smallest stack that there can be: what it returns.
pub fn on_small_stack(body: extern "C" fn(Fd, Fd) -> i32, a: Fd, b: Fd) -> i32 {
    struct Job(extern "C" fn(Fd, Fd) -> i32, Fd, Fd, i32);
    extern "C" fn run(job: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the job of the thread that waits below.
        let job = unsafe { &mut *job.cast::<Job>() };
        job.3 = (job.0)(job.1, job.2);
        null_mut()
    }
    let mut job = Job(body, a, b, -1);
    // SAFETY: pthread calls with their arguments; the thread has ended before `job` does.
    unsafe {
        let mut attributes: libc::pthread_attr_t = zeroed();
        libc::pthread_attr_init(&mut attributes);
        assert!(libc::pthread_attr_setstacksize(&mut attributes, libc::PTHREAD_STACK_MIN) == 0);
        let mut thread = 0;
        let made = libc::pthread_create(&mut thread, &attributes, run, (&raw mut job).cast());
        assert!(made == 0, "pthread_create: {made}");
        libc::pthread_join(thread, null_mut());
    }
    job.3
}

/// This process's own allocations have some megabytes to come out of, from here on, whatever the
/// kernel refuses.
pub fn provide_memory() {
    // SAFETY: mallopt(3) and a vector.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 25);
    }
    drop(std::hint::black_box(vec![1u8; 8 << 20]));
}

/// The kernel maps nothing more for this process, or it does again.
pub fn refuse_memory(refuse: bool) {
    let most = libc::RLIM_INFINITY;
    let limit = libc::rlimit { rlim_cur: if refuse { 4096 } else { most }, rlim_max: most };
    call!(libc::setrlimit(libc::RLIMIT_AS, &limit)).expect("setrlimit");
}

pub fn poll(set: &[(Fd, i16)], timeout_ms: c_int) -> Result<(usize, Vec<i16>), E> {
    let mut list: Vec<libc::pollfd> =
        set.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let n = call!(libc::poll(list.as_mut_ptr(), list.len() as _, timeout_ms))?;
    Ok((n, list.iter().map(|p| p.revents).collect()))
}

pub fn ppoll(
    set: &[(Fd, i16)],
    timeout: Option<libc::timespec>,
    mask: Option<&libc::sigset_t>,
) -> Result<(usize, Vec<i16>), E> {
    let mut list: Vec<libc::pollfd> =
        set.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
    let ts = timeout.as_ref().map_or(null(), |t| &raw const *t);
    let mask = mask.map_or(null(), |m| &raw const *m);
    let n = call!(libc::ppoll(list.as_mut_ptr(), list.len() as _, ts, mask))?;
    Ok((n, list.iter().map(|p| p.revents).collect()))
}

/// Waits for `events` on one fd and returns its revents (0 on timeout).
pub fn await_events(fd: Fd, events: i16, timeout_ms: c_int) -> i16 {
    poll(&[(fd, events)], timeout_ms).map(|(_, r)| r[0]).unwrap_or(0)
}

pub fn poll_names(revents: i16) -> String {
    let table = [
        (libc::POLLIN, "IN"),
        (libc::POLLPRI, "PRI"),
        (libc::POLLOUT, "OUT"),
        (libc::POLLERR, "ERR"),
        (libc::POLLHUP, "HUP"),
        (libc::POLLNVAL, "NVAL"),
        (libc::POLLRDNORM, "RDNORM"),
        (libc::POLLRDBAND, "RDBAND"),
        (libc::POLLWRNORM, "WRNORM"),
        (libc::POLLWRBAND, "WRBAND"),
        (libc::POLLRDHUP, "RDHUP"),
    ];
    names_of(table.iter().filter(|(bit, _)| revents & bit != 0).map(|&(_, name)| name))
}

pub fn epoll_names(events: u32) -> String {
    let table = [
        (libc::EPOLLIN, "IN"),
        (libc::EPOLLPRI, "PRI"),
        (libc::EPOLLOUT, "OUT"),
        (libc::EPOLLERR, "ERR"),
        (libc::EPOLLHUP, "HUP"),
        (libc::EPOLLRDNORM, "RDNORM"),
        (libc::EPOLLRDBAND, "RDBAND"),
        (libc::EPOLLWRNORM, "WRNORM"),
        (libc::EPOLLWRBAND, "WRBAND"),
        (libc::EPOLLRDHUP, "RDHUP"),
    ];
    names_of(table.iter().filter(|(bit, _)| events & (*bit as u32) != 0).map(|&(_, name)| name))
}

fn names_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let list: Vec<&str> = names.collect();
    if list.is_empty() { "-".into() } else { list.join("|") }
}

/// The three sets of `select`, by fd.
#[derive(Default, Clone, Debug, PartialEq, Eq)]
pub struct Sets {
    pub read: Vec<Fd>,
    pub write: Vec<Fd>,
    pub except: Vec<Fd>,
}

fn to_set(fds: &[Fd]) -> libc::fd_set {
    // SAFETY: all-zero is a valid, empty fd_set.
    let mut set: libc::fd_set = unsafe { zeroed() };
    for &fd in fds {
        // SAFETY: callers pass fds below FD_SETSIZE.
        unsafe { libc::FD_SET(fd, &mut set) };
    }
    set
}

fn from_set(set: &libc::fd_set, fds: &[Fd]) -> Vec<Fd> {
    // SAFETY: callers pass fds below FD_SETSIZE.
    fds.iter().copied().filter(|&fd| unsafe { libc::FD_ISSET(fd, set) }).collect()
}

/// `select`; returns the count, what is left in the sets, and the remaining time in ms.
pub fn select(nfds: c_int, sets: &Sets, timeout_ms: Option<i64>) -> Result<(usize, Sets, i64), E> {
    let (mut r, mut w, mut x) = (to_set(&sets.read), to_set(&sets.write), to_set(&sets.except));
    let ms = timeout_ms.unwrap_or(0);
    let mut tv = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    let tvp = if timeout_ms.is_some() { &raw mut tv } else { null_mut() };
    let n = call!(libc::select(nfds, &mut r, &mut w, &mut x, tvp))?;
    let left = Sets {
        read: from_set(&r, &sets.read),
        write: from_set(&w, &sets.write),
        except: from_set(&x, &sets.except),
    };
    Ok((n, left, tv.tv_sec * 1000 + tv.tv_usec / 1000))
}

pub fn pselect(
    nfds: c_int,
    sets: &Sets,
    timeout_ms: Option<i64>,
    mask: Option<&libc::sigset_t>,
) -> Result<(usize, Sets), E> {
    let (mut r, mut w, mut x) = (to_set(&sets.read), to_set(&sets.write), to_set(&sets.except));
    let ts = timespec_ms(timeout_ms.unwrap_or(0));
    let tsp = if timeout_ms.is_some() { &raw const ts } else { null() };
    let mask = mask.map_or(null(), |m| &raw const *m);
    let n = call!(libc::pselect(nfds, &mut r, &mut w, &mut x, tsp, mask))?;
    let left = Sets {
        read: from_set(&r, &sets.read),
        write: from_set(&w, &sets.write),
        except: from_set(&x, &sets.except),
    };
    Ok((n, left))
}

pub fn epoll_create1(flags: c_int) -> Result<Fd, E> {
    fd_of(call!(libc::epoll_create1(flags)))
}

pub fn epoll_create(size: c_int) -> Result<Fd, E> {
    fd_of(call!(libc::epoll_create(size)))
}

pub fn epoll_ctl(set: Fd, op: c_int, fd: Fd, events: u32, data: u64) -> R {
    let mut event = libc::epoll_event { events, u64: data };
    call!(libc::epoll_ctl(set, op, fd, &mut event))
}

/// `epoll_ctl` with a null event.
pub fn epoll_ctl_null(set: Fd, op: c_int, fd: Fd) -> R {
    call!(libc::epoll_ctl(set, op, fd, null_mut()))
}

fn taken(list: &[libc::epoll_event], n: usize) -> Vec<(u32, u64)> {
    list.iter().take(n).map(|e| (e.events, e.u64)).collect()
}

pub fn epoll_wait(set: Fd, max: usize, timeout_ms: c_int) -> Result<Vec<(u32, u64)>, E> {
    let mut list = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let n = call!(libc::epoll_wait(set, list.as_mut_ptr(), max as c_int, timeout_ms))?;
    Ok(taken(&list, n))
}

pub fn epoll_pwait(
    set: Fd,
    max: usize,
    timeout_ms: c_int,
    mask: Option<&libc::sigset_t>,
) -> Result<Vec<(u32, u64)>, E> {
    let mut list = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let mask = mask.map_or(null(), |m| &raw const *m);
    let n = call!(libc::epoll_pwait(set, list.as_mut_ptr(), max as c_int, timeout_ms, mask))?;
    Ok(taken(&list, n))
}

unsafe extern "C" {
    #[link_name = "epoll_pwait2"]
    fn libc_epoll_pwait2(
        set: c_int,
        events: *mut libc::epoll_event,
        max: c_int,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

pub fn epoll_pwait2(
    set: Fd,
    max: usize,
    timeout: Option<libc::timespec>,
) -> Result<Vec<(u32, u64)>, E> {
    let mut list = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let ts = timeout.as_ref().map_or(null(), |t| &raw const *t);
    let n = call!(libc_epoll_pwait2(set, list.as_mut_ptr(), max as c_int, ts, null()))?;
    Ok(taken(&list, n))
}

// ------------------------------------------------------------------------------ processes, signals

pub fn fork() -> Result<libc::pid_t, E> {
    fd_of(call!(libc::fork()))
}

pub fn exit_now(status: c_int) -> ! {
    // SAFETY: _exit does not return.
    unsafe { libc::_exit(status) }
}

/// Waits for a child; `Ok(status)` as a shell would show it (128 + signal when killed).
pub fn wait_child(pid: libc::pid_t) -> Result<i32, E> {
    let mut status = 0;
    loop {
        match call!(libc::waitpid(pid, &mut status, 0)) {
            Err(E(libc::EINTR)) => {}
            Err(e) => return Err(e),
            Ok(_) if libc::WIFEXITED(status) => return Ok(libc::WEXITSTATUS(status)),
            Ok(_) => return Ok(128 + libc::WTERMSIG(status)),
        }
    }
}

pub fn getppid() -> libc::pid_t {
    // SAFETY: getppid cannot fail.
    unsafe { libc::getppid() }
}

pub fn getpid() -> libc::pid_t {
    // SAFETY: getpid cannot fail.
    unsafe { libc::getpid() }
}

pub fn gettid() -> libc::pid_t {
    // SAFETY: gettid cannot fail.
    unsafe { libc::gettid() }
}

pub fn kill(pid: libc::pid_t, signal: c_int) -> R {
    call!(libc::kill(pid, signal))
}

/// Sends a signal to one thread of this process.
pub fn tgkill(tid: libc::pid_t, signal: c_int) -> R {
    call!(libc::syscall(libc::SYS_tgkill, getpid(), tid, signal))
}

pub fn sigset(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: all-zero is a valid sigset_t; the functions only write to it.
    let mut set: libc::sigset_t = unsafe { zeroed() };
    for &signal in signals {
        // SAFETY: `set` is a live sigset_t.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

pub fn block_signals(signals: &[c_int]) -> R {
    let set = sigset(signals);
    call!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut()))
}

pub fn unblock_signals(signals: &[c_int]) -> R {
    let set = sigset(signals);
    call!(libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, null_mut()))
}

pub fn on_signal(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) -> R {
    // SAFETY: all-zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    call!(libc::sigaction(signal, &action, null_mut()))
}

pub fn ignore_signal(signal: c_int) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

pub fn default_signal(signal: c_int) {
    // SAFETY: SIG_DFL is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn c_strings(list: &[&str]) -> (Vec<CString>, Vec<*const c_char>) {
    let strings: Vec<CString> = list.iter().map(|s| CString::new(*s).unwrap_or_default()).collect();
    let mut pointers: Vec<*const c_char> = strings.iter().map(|s| s.as_ptr()).collect();
    pointers.push(null());
    (strings, pointers)
}

/// Replaces the process; the environment is passed on, or is without LD_PRELOAD.
pub fn exec(path: &str, args: &[&str], keep_preload: bool) -> E {
    let program = CString::new(path).unwrap_or_default();
    let (_strings, argv) = c_strings(args);
    if keep_preload {
        let _ = call!(libc::execv(program.as_ptr(), argv.as_ptr()));
        return errno();
    }
    let env: Vec<String> = std::env::vars()
        .filter(|(k, _)| k != "LD_PRELOAD")
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    let (_env_strings, envp) = c_strings(&env);
    let _ = call!(libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()));
    errno()
}

/// `posix_spawn` of a program that gets `close` fds closed by file actions, stdout on `out`.
pub fn spawn(path: &str, args: &[&str], close: &[Fd], out: Fd) -> Result<libc::pid_t, E> {
    let program = CString::new(path).unwrap_or_default();
    let (_strings, argv) = c_strings(args);
    let env: Vec<String> = std::env::vars().map(|(k, v)| format!("{k}={v}")).collect();
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    let (_env_strings, envp) = c_strings(&env);
    // SAFETY: posix_spawn_file_actions_init initialises it below.
    let mut actions: libc::posix_spawn_file_actions_t = unsafe { zeroed() };
    let _ = call!(libc::posix_spawn_file_actions_init(&mut actions));
    for &fd in close {
        let _ = call!(libc::posix_spawn_file_actions_addclose(&mut actions, fd));
    }
    let _ = call!(libc::posix_spawn_file_actions_adddup2(&mut actions, out, 1));
    let mut pid = 0;
    let rc = call!(libc::posix_spawn(
        &mut pid,
        program.as_ptr(),
        &actions,
        null(),
        argv.as_ptr().cast(),
        envp.as_ptr().cast()
    ))?;
    let _ = call!(libc::posix_spawn_file_actions_destroy(&mut actions));
    if rc == 0 { Ok(pid) } else { Err(E(rc as i32)) }
}

/// A vfork child closes `close` and dup2()s `from` over `over`.
pub fn vfork_child_closing(close: Fd, from: Fd, over: Fd) -> Result<i32, E> {
    // SAFETY: plain fd calls; the fd table is the child's own.
    vfork_child(&|| unsafe { libc::close(close) == 0 && libc::dup2(from, over) >= 0 })
}

/// A vfork child sets its group, to what it is.
pub fn vfork_child_setting_group() -> Result<i32, E> {
    // SAFETY: setgid(2) and getgid(2).
    vfork_child(&|| unsafe { libc::setgid(libc::getgid()) == 0 })
}

/// A child on its own stack that shares our memory but not our fd table, and suspends us until it
/// exits: what `vfork` does, in a form that Rust may call. How it ends: 0 if `body` says so.
fn vfork_child(body: &dyn Fn() -> bool) -> Result<i32, E> {
    extern "C" fn child(argument: *mut c_void) -> c_int {
        // SAFETY: the parent is suspended and keeps `body` alive.
        let body = unsafe { *argument.cast::<&dyn Fn() -> bool>() };
        exit_now(c_int::from(!body()))
    }
    let mut stack = vec![0u128; 16 * 1024];
    // SAFETY: one past the end of the stack allocation.
    let top = unsafe { stack.as_mut_ptr().add(stack.len()) };
    let pid = fd_of(call!(libc::clone(
        child,
        top.cast(),
        libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        (&raw const body).cast_mut().cast()
    )))?;
    wait_child(pid)
}

/// Sets the group of this process, to what it is: a change of rights for whoever does not look
/// closely.
pub fn set_own_group() -> R {
    // SAFETY: getgid(2).
    call!(libc::setgid(libc::getgid()))
}

pub fn unshare(flags: c_int) -> R {
    // SAFETY: unshare(2) takes flags only.
    call!(libc::unshare(flags))
}

pub fn setns(fd: Fd, kind: c_int) -> R {
    // SAFETY: setns(2).
    call!(libc::setns(fd, kind))
}

/// A further name of one of our own fds, by pidfd_getfd.
pub fn pidfd_getfd(fd: Fd) -> Result<Fd, E> {
    pidfd_getfd_of(getpid(), fd)
}

/// As [`pidfd_getfd`], of another process's.
pub fn pidfd_getfd_of(pid: i32, fd: Fd) -> Result<Fd, E> {
    let pidfd = fd_of(call!(libc::syscall(libc::SYS_pidfd_open, pid, 0)))?;
    let got = fd_of(call!(libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0)));
    let _ = close(pidfd);
    got
}

pub fn system(command: &str) -> i32 {
    let command = CString::new(command).unwrap_or_default();
    // SAFETY: a live C string.
    let status = unsafe { libc::system(command.as_ptr()) };
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

pub fn clear_environment() {
    // SAFETY: the scenario that calls this is single-threaded.
    unsafe { libc::clearenv() };
}

pub fn exit_with_handlers(status: c_int) -> ! {
    // SAFETY: exit runs the process's own handlers and does not return.
    unsafe { libc::exit(status) }
}

// ------------------------------------------------------------------------------------------- stdio

/// A stdio stream.
pub struct Stream(*mut libc::FILE);

impl Stream {
    pub fn fdopen(fd: Fd, mode: &str) -> Result<Stream, E> {
        let mode = CString::new(mode).unwrap_or_default();
        // SAFETY: a live C string.
        let file = unsafe { libc::fdopen(fd, mode.as_ptr()) };
        if file.is_null() { Err(errno()) } else { Ok(Stream(file)) }
    }

    pub fn popen(command: &str, mode: &str) -> Result<Stream, E> {
        let command = CString::new(command).unwrap_or_default();
        let mode = CString::new(mode).unwrap_or_default();
        // SAFETY: live C strings.
        let file = unsafe { libc::popen(command.as_ptr(), mode.as_ptr()) };
        if file.is_null() { Err(errno()) } else { Ok(Stream(file)) }
    }

    pub fn puts(&self, text: &str) -> bool {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: a live C string and an open stream.
        unsafe { libc::fputs(text.as_ptr(), self.0) >= 0 }
    }

    pub fn flush(&self) -> R {
        call!(libc::fflush(self.0))
    }

    pub fn gets(&self) -> Option<String> {
        let mut line = [0u8; 4096];
        // SAFETY: the buffer's size is passed; the stream is open.
        let got = unsafe { libc::fgets(line.as_mut_ptr().cast(), 4096, self.0) };
        if got.is_null() {
            return None;
        }
        let end = line.iter().position(|&b| b == 0).unwrap_or(0);
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    pub fn write(&self, bytes: &[u8]) -> usize {
        // SAFETY: the buffer's size is passed; the stream is open.
        unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) }
    }

    pub fn read(&self, bytes: &mut [u8]) -> usize {
        // SAFETY: the buffer's size is passed; the stream is open.
        unsafe { libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), self.0) }
    }

    pub fn close(self) -> R {
        call!(libc::fclose(self.0))
    }

    pub fn pclose(self) -> i32 {
        // SAFETY: a stream from popen.
        let status = unsafe { libc::pclose(self.0) };
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
    }
}

// ------------------------------------------------------------------------------------------ memory

/// A file mapped shared into this process, as u64 counters.
pub struct Counters(*mut u64, usize);

// SAFETY: the mapping lives as long as the process; all access is atomic.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

impl Counters {
    pub fn map(path: &str, count: usize) -> Counters {
        let fd = open(path, libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC).expect("counter file");
        call!(libc::ftruncate(fd, (count * 8) as i64)).expect("ftruncate");
        // SAFETY: a new shared mapping of a file of that size.
        let at = unsafe {
            libc::mmap(
                null_mut(),
                count * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert!(at != libc::MAP_FAILED, "mmap");
        let _ = close(fd);
        Counters(at.cast(), count)
    }

    pub fn at(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(index < self.1, "counter index");
        // SAFETY: inside the mapping, aligned, never unmapped.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.0.add(index)) }
    }
}

pub fn now_ns() -> u64 {
    let mut ts = timespec_ms(0);
    let _ = call!(libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts));
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// What this thread has used of a CPU.
pub fn cpu_ns() -> u64 {
    let mut ts = timespec_ms(0);
    let _ = call!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts));
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

pub fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// How many sockets of this network namespace listen on an IPv4 port.
pub fn process_listeners(port: u16) -> usize {
    let wanted = format!(":{port:04X} 00000000:0000 0A");
    std::fs::read_to_string("/proc/net/tcp")
        .unwrap_or_default()
        .lines()
        .filter(|l| l.contains(&wanted))
        .count()
}

/// An IPv4 address of this machine that is not loopback.
pub fn lan_address() -> Option<Addr> {
    let mut list: *mut libc::ifaddrs = null_mut();
    call!(libc::getifaddrs(&mut list)).ok()?;
    let mut found = None;
    let mut at = list;
    while !at.is_null() {
        // SAFETY: getifaddrs returns a null-terminated list that lives until freeifaddrs.
        let entry = unsafe { &*at };
        if !entry.ifa_addr.is_null() {
            // SAFETY: as above; the family says how long the address is.
            let family = c_int::from(unsafe { (*entry.ifa_addr).sa_family });
            if family == libc::AF_INET {
                // SAFETY: an AF_INET address is a sockaddr_in.
                let sin = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
                let ip = sin.sin_addr.s_addr.to_ne_bytes();
                if ip[0] != 127 && found.is_none() {
                    found = Some(Addr::V4(ip, 0));
                }
            }
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs.
    unsafe { libc::freeifaddrs(list) };
    found
}
