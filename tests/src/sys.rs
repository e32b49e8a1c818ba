//! Safe, thin wrappers over the libc calls under test.
//!
//! Every function here is exactly one call of a dynamic libc symbol, so that a preloaded library
//! sees what an ordinary C program would have called. Nothing retries, nothing interprets: the
//! result is the return value or the errno. The standard library's sockets are not used, because
//! they would hide calls and flags.

use crate::{carriers, ctx};
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

/// Whether this process was started with the library.
pub fn has_library() -> bool {
    std::env::var_os("LD_PRELOAD").is_some()
}

/// Whether it is to use RDMA.
pub fn over_rdma() -> bool {
    std::env::var_os("NACC_PATHS").is_some_and(|paths| paths == "rdma")
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

mod data;
mod processes;
mod readiness;

pub use data::*;
pub use processes::*;
pub use readiness::*;

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

/// Comes up to $NETACC_TEST_LATE milliseconds late, if that is set: who writes lines of a
/// transcript in an order that nothing gives them is found out. By chance, not by a seed: the
/// processes of a scenario have nothing else that tells them apart.
pub fn be_late() {
    let Some(most): Option<u64> =
        std::env::var("NETACC_TEST_LATE").ok().and_then(|text| text.parse().ok())
    else {
        return;
    };
    let mut chance = [0; 8];
    // SAFETY: a live array of that length.
    unsafe { libc::getrandom((&raw mut chance).cast(), chance.len(), 0) };
    let late = u64::from_ne_bytes(chance) % (1 + most);
    std::thread::sleep(std::time::Duration::from_millis(late));
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
    let r = call!(libc::connect(fd, (&raw const sa).cast(), len));
    if carriers::is_first(fd) {
        ctx::say_carrier();
    }
    r
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

/// An option whose value says what is asked; it becomes the answer.
pub fn getopt_with(fd: Fd, level: c_int, name: c_int, value: &mut [u8]) -> R {
    let mut len = value.len() as u32;
    call!(libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len))
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

// --------------------------------------------------------------------------------------------- fds

pub fn close(fd: Fd) -> R {
    call!(libc::close(fd))
}

/// The same by libc's `syscall`.
pub fn raw_close(fd: Fd) -> R {
    call!(libc::syscall(libc::SYS_close, fd))
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

/// One whose argument is a number.
pub fn ioctl(fd: Fd, request: u64, argument: usize) -> R {
    call!(libc::ioctl(fd, request as _, argument))
}

pub fn at_mark(fd: Fd) -> R {
    unsafe extern "C" {
        fn sockatmark(fd: c_int) -> c_int;
    }
    call!(sockatmark(fd))
}

/// So many bytes of a descriptor, to be read.
pub fn map(fd: Fd, bytes: usize) -> Result<*const u8, E> {
    // SAFETY: the kernel chooses where.
    let start = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED { Err(errno()) } else { Ok(start.cast()) }
}

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

/// `FIONREAD`: the bytes that could be read.
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

/// So many bytes of standard input, by libc's stream, or up to its end.
pub fn getchars(count: usize) -> Vec<u8> {
    // SAFETY: getchar(3).
    let next = || u8::try_from(unsafe { libc::getchar() }).ok();
    std::iter::repeat_with(next).take(count).map_while(|byte| byte).collect()
}

/// A line on standard output, by libc's stream.
pub fn put_line(line: &str) -> bool {
    let line = CString::new(line).unwrap_or_default();
    // SAFETY: a live C string; all streams are flushed.
    unsafe { libc::puts(line.as_ptr()) >= 0 && libc::fflush(null_mut()) == 0 }
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

/// How often this thread's CPU was taken from it (getrusage(2), RUSAGE_THREAD).
pub fn involuntary_switches() -> i64 {
    // SAFETY: all zeroes are a rusage, which the call fills in.
    unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw
    }
}

/// What a call says, and whether it takes as long as that. What ends late has been called on a busy
/// machine, perhaps, and is called again; nothing ends early.
pub fn takes_ms<T>(time: std::ops::Range<u64>, call: impl Fn() -> T) -> (T, bool) {
    let mut left = 10;
    loop {
        let begin = now_ns();
        let said = call();
        let ms = (now_ns() - begin) / 1_000_000;
        left -= 1;
        if ms < time.end || left == 0 {
            return (said, time.contains(&ms));
        }
    }
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
