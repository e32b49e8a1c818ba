//! What a program is told that asks what becomes of a connection of its own, and how a thread says
//! for how long its waits may poll (`include/netacc.h`).
//!
//! Both are socket options at a level that no kernel has. So a program needs nothing of the library
//! to ask, and is refused where there is none. Nothing here allocates, waits or takes a lock: a
//! signal handler may ask.

use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::socket::{Socket, State};
use crate::{signals, sys, user};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
use libc::socklen_t;
use netacc_control::stats::{Path, Reason};

/// `NETACC_LEVEL`.
pub(crate) const LEVEL: c_int = 0x6e61;
/// `NETACC_INFO`.
const INFO: c_int = 1;
/// `NETACC_THREAD_POLL`: of the calling thread, whatever the descriptor.
const THREAD_POLL: c_int = 2;
/// A thread's waits poll for as long as is configured.
const AS_CONFIGURED: c_int = -1;
/// Most microseconds that it can ask for: as `NACC_POLL_MS`.
const POLL_US_MAX: c_int = 60_000_000;
/// `version` of [`Info`]: counts the fields that were added at its end.
const VERSION: u32 = 1;
/// An answer has all numbers at least.
const SHORTEST: usize = 24;
/// A connection whose descriptor becomes another one each time that it is looked at.
const TRIES: usize = 8;

/// `struct netacc_info`: what is there never changes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    version: u32,
    accelerated: u32,
    tx_path: u32,
    rx_path: u32,
    reason: u32,
    reserved: u32,
    reason_name: [u8; 32],
    reason_text: [u8; 256],
}

/// Where both directions of a connection are, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Where {
    tx: Path,
    rx: Path,
    why: Reason,
}

impl Where {
    const fn on_tcp(why: Reason) -> Where {
        Where { tx: Path::Tcp, rx: Path::Tcp, why }
    }

    /// While a direction changes its path, its reason may be of before. And who waits for a verdict
    /// knows one word for "not yet" (`NETACC_REASON_NEGOTIATING`), agreed or not.
    fn settled(self) -> Where {
        let why = match (self.tx, self.rx, self.why) {
            (Path::Tcp, Path::Tcp, Reason::None)
            | (Path::Tcp, _, Reason::Agreed)
            | (_, Path::Tcp, Reason::Agreed) => Reason::Negotiating,
            (Path::Tcp, _, why) | (_, Path::Tcp, why) => why,
            _ => Reason::None,
        };
        Where { why, ..self }
    }

    fn info(self) -> Info {
        let Where { tx, rx, why } = self;
        Info {
            version: VERSION,
            accelerated: u32::from(tx != Path::Tcp || rx != Path::Tcp),
            tx_path: tx as u32,
            rx_path: rx as u32,
            reason: why as u32,
            reserved: 0,
            reason_name: text(why.name()),
            reason_text: text(why.explanation()),
        }
    }
}

/// A C string, cut where there is no room.
fn text<const N: usize>(from: &str) -> [u8; N] {
    let mut to = [0; N];
    let room = N.saturating_sub(1);
    for (to, from) in to.iter_mut().zip(from.bytes().take(room)) {
        *to = from;
    }
    to
}

/// `getsockopt` is about to be called; [`PASS`]: it is no such question.
///
/// # Safety
/// `value` and `len` are the caller's, as for getsockopt(2).
pub(crate) unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Ret {
    match (level, name) {
        (LEVEL, INFO) => {}
        // SAFETY: the caller's promise.
        (LEVEL, THREAD_POLL) => return unsafe { tell_thread_poll(value.cast(), len) },
        _ => return PASS,
    }
    if fd_table::raw(fd) == fd_table::encode(Entry::Internal) {
        return -(libc::EBADF as Ret);
    }
    // What is no connection has no answer, and none without the library either.
    let peer = sys::socket_name(fd, true, &mut [0; 128]);
    if peer < 0 {
        return peer;
    }
    // SAFETY: the caller's promise: a length is there, or nothing that can be read.
    let Some(room) = (unsafe { user::read(len) }) else { return -(libc::EFAULT as Ret) };
    let room = usize::try_from(room as i32).unwrap_or(0);
    if room < SHORTEST {
        return -(libc::EINVAL as Ret);
    }
    let info = of(fd).info();
    // SAFETY: an Info has no padding (its size is the sum of its fields'), so that all its bytes
    // are initialised.
    let bytes: [u8; size_of::<Info>()] = unsafe { core::mem::transmute(info) };
    let told = bytes.get(..room.min(bytes.len())).unwrap_or(&bytes);
    // SAFETY: the caller's promise: `room` bytes are there, or none that can be written.
    let done = unsafe {
        user::write_all(value.cast::<u8>(), told) && user::write(len, told.len() as socklen_t)
    };
    if done { 0 } else { -(libc::EFAULT as Ret) }
}

/// `setsockopt` is about to be called; [`PASS`]: it is none of the library's.
///
/// # Safety
/// `value` is the caller's, as for setsockopt(2).
pub(crate) unsafe fn setsockopt(
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Ret {
    if level != LEVEL || name != THREAD_POLL {
        return PASS;
    }
    if (len as usize) < size_of::<c_int>() {
        return -(libc::EINVAL as Ret);
    }
    // SAFETY: the caller's promise: a number is there, or nothing that can be read.
    match unsafe { user::read(value.cast::<c_int>()) } {
        None => return -(libc::EFAULT as Ret),
        Some(AS_CONFIGURED) => signals::set_poll_us(None),
        Some(us) => match u32::try_from(us.min(POLL_US_MAX)) {
            Ok(us) => signals::set_poll_us(Some(us)),
            Err(_) => return -(libc::EINVAL as Ret),
        },
    }
    0
}

/// Writes for how long the calling thread's waits may poll.
///
/// # Safety
/// As for getsockopt(2).
unsafe fn tell_thread_poll(value: *mut c_int, len: *mut socklen_t) -> Ret {
    let us = signals::poll_us().and_then(|us| c_int::try_from(us).ok()).unwrap_or(AS_CONFIGURED);
    // SAFETY: the caller's promise: a length is there, or nothing that can be read.
    let Some(room) = (unsafe { user::read(len) }) else { return -(libc::EFAULT as Ret) };
    if usize::try_from(room as i32).unwrap_or(0) < size_of::<c_int>() {
        return -(libc::EINVAL as Ret);
    }
    // SAFETY: the caller's promise: so many bytes are there, or none that can be written.
    let done =
        unsafe { user::write(value, us) && user::write(len, size_of::<c_int>() as socklen_t) };
    if done { 0 } else { -(libc::EFAULT as Ret) }
}

/// Where the connection behind `fd` is.
fn of(fd: c_int) -> Where {
    for _ in 0..TRIES {
        let before = fd_table::raw(fd);
        let found = match fd_table::get(fd) {
            Entry::Socket(s, _) => of_socket(s).settled(),
            Entry::Fresh(why) | Entry::Listener(why) => Where::on_tcp(not_begun(why)),
            Entry::Marked(_) => Where::on_tcp(Reason::InheritedByFork),
            _ => Where::on_tcp(unseen(fd)),
        };
        // Another thread may have closed it meanwhile: what was read would be another one's.
        if fd_table::raw(fd) == before {
            return found;
        }
    }
    Where::on_tcp(Reason::Negotiating)
}

fn of_socket(s: &'static Socket) -> Where {
    let state = s.state.now();
    if state == State::Unconnected {
        return Where::on_tcp(not_begun(s.refused.load(Relaxed)));
    }
    if let Some(r) = s.record() {
        let path = |code: u32| Path::from_code(code).unwrap_or(Path::Tcp);
        return Where {
            tx: path(r.tx_path.load(Relaxed)),
            rx: path(r.rx_path.load(Relaxed)),
            why: Reason::from_code(r.reason.load(Relaxed)).unwrap_or(Reason::Internal),
        };
    }
    // Too many for the statistics: of its paths it is known what this end decides.
    let tx = state == State::Attached && s.published.sends_fast();
    let path = if tx { s.path().traits().shown } else { Path::Tcp };
    Where { tx: path, rx: path, why: Reason::NoRecord }
}

/// A connection that has not been used yet, with what its socket has against it.
fn not_begun(why: u32) -> Reason {
    match Reason::from_code(why) {
        None | Some(Reason::None) => Reason::NotStarted,
        Some(why) => why,
    }
}

/// A connected socket that the library does not follow: no TCP, or one that was not seen to begin.
fn unseen(fd: c_int) -> Reason {
    let mut protocol: c_int = 0;
    let asked = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut protocol);
    match asked >= 0 && protocol == libc::IPPROTO_TCP {
        true => Reason::UncountedBytes,
        false => Reason::NotStream,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    extern crate std;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    fn ask(fd: c_int, room: usize) -> (Ret, u32, [u8; 512]) {
        let (mut value, mut len) = ([0xee; 512], room as u32);
        // SAFETY: there is room.
        let r = unsafe { getsockopt(fd, LEVEL, INFO, value.as_mut_ptr().cast(), &mut len) };
        (r, len, value)
    }

    fn reason(fd: c_int) -> &'static str {
        let (r, len, value) = ask(fd, 512);
        assert_eq!((r, len as usize), (0, size_of::<Info>()));
        let code = u32::from_ne_bytes(value[16..20].try_into().unwrap());
        let reason = Reason::from_code(code).unwrap();
        assert!(value[24..].starts_with(reason.name().as_bytes()));
        assert!(value[56..].starts_with(reason.explanation().as_bytes()));
        reason.name()
    }

    #[test]
    fn the_layout_is_that_of_the_header() {
        use core::mem::offset_of;
        let at = [
            offset_of!(Info, version),
            offset_of!(Info, accelerated),
            offset_of!(Info, tx_path),
            offset_of!(Info, rx_path),
            offset_of!(Info, reason),
            offset_of!(Info, reserved),
            offset_of!(Info, reason_name),
            offset_of!(Info, reason_text),
            size_of::<Info>(),
        ];
        assert_eq!(at, [0, 4, 8, 12, 16, 20, 24, 56, 312]);
        for path in Path::ALL {
            assert_eq!([Path::Tcp, Path::Shm, Path::Rdma, Path::Utcp][path as usize], path);
        }
        for reason in Reason::ALL {
            assert!(reason.name().len() < 32 && reason.explanation().len() < 256, "{reason:?}");
        }
        assert_eq!((Reason::Negotiating as u32, Reason::NotStarted as u32), (1, 30));
    }

    #[test]
    fn a_thread_says_for_how_long_it_polls_and_no_other_does() {
        crate::testing::init();
        fn say(us: c_int) -> Ret {
            // SAFETY: a number of that size.
            unsafe { setsockopt(LEVEL, THREAD_POLL, (&raw const us).cast(), 4) }
        }
        fn said() -> c_int {
            let (mut us, mut len) = (77, 4);
            // SAFETY: there is room.
            let r = unsafe { getsockopt(-1, LEVEL, THREAD_POLL, (&raw mut us).cast(), &mut len) };
            assert_eq!((r, len), (0, 4));
            us
        }
        assert_eq!((said(), say(0), said()), (-1, 0, 0));
        assert_eq!(std::thread::spawn(said).join().unwrap(), -1);
        assert_eq!((say(50), said(), signals::poll_us()), (0, 50, Some(50)));
        assert_eq!((say(-2), say(c_int::MIN), said()), (-22, -22, 50));
        assert_eq!((say(c_int::MAX), said()), (0, POLL_US_MAX));
        assert_eq!((say(-1), said(), signals::poll_us()), (0, -1, None));
        // SAFETY: too short, which is refused before it is read; nothing that can be read; of
        // another name.
        unsafe {
            let us = 5;
            assert_eq!(setsockopt(LEVEL, THREAD_POLL, (&raw const us).cast(), 3), -22);
            let nowhere = core::ptr::without_provenance(8);
            assert_eq!(setsockopt(LEVEL, THREAD_POLL, nowhere, 4), -(libc::EFAULT as Ret));
            assert_eq!(setsockopt(LEVEL, INFO, (&raw const us).cast(), 4), PASS);
            assert_eq!(setsockopt(1, THREAD_POLL, (&raw const us).cast(), 4), PASS);
        }
        for (room, expected) in [(3, -22), (-1i32 as u32, -22), (4, 0), (512, 0)] {
            let (mut value, mut len) = ([0xee; 512], room);
            // SAFETY: there is room.
            let r =
                unsafe { getsockopt(-1, LEVEL, THREAD_POLL, value.as_mut_ptr().cast(), &mut len) };
            assert_eq!((r, value[4]), (expected, 0xee), "{room}");
        }
    }

    #[test]
    fn what_is_asked_is_answered_and_nothing_else() {
        crate::testing::init();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = stream.as_raw_fd();
        assert_eq!(reason(fd), "uncounted-bytes", "nobody told the library of it");
        fd_table::set(fd, Entry::Fresh(0));
        assert_eq!(reason(fd), "not-started");
        fd_table::set(fd, Entry::Fresh(Reason::SocketOption as u32));
        assert_eq!(reason(fd), "socket-option");
        fd_table::set(fd, Entry::Internal);
        assert_eq!(ask(fd, 512).0, -(libc::EBADF as Ret));
        fd_table::set(fd, Entry::None);

        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(ask(udp.as_raw_fd(), 512).0, -(libc::ENOTCONN as Ret));
        udp.connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(reason(udp.as_raw_fd()), "not-stream");
        assert_eq!(ask(listener.as_raw_fd(), 512).0, -(libc::ENOTCONN as Ret));
        assert_eq!(ask(-1, 512).0, -(libc::EBADF as Ret));

        // A program of another version has another room.
        let (r, len, value) = ask(fd, 30);
        assert_eq!((r, len), (0, 30));
        assert!(value[30..].iter().all(|byte| *byte == 0xee));
        assert_eq!(ask(fd, 23).0, -(libc::EINVAL as Ret));
        assert_eq!(ask(fd, usize::MAX).0, -(libc::EINVAL as Ret));
        let mut len = 512u32;
        // SAFETY: bad addresses are what is tested.
        unsafe {
            let nowhere = core::ptr::null_mut();
            assert_eq!(getsockopt(fd, LEVEL, INFO, nowhere, &mut len), -(libc::EFAULT as Ret));
            let value = (&raw mut len).cast();
            assert_eq!(getsockopt(fd, LEVEL, INFO, value, nowhere.cast()), -(libc::EFAULT as Ret));
            assert_eq!(getsockopt(fd, LEVEL, 3, value, &mut 4), PASS);
            assert_eq!(getsockopt(fd, libc::SOL_SOCKET, INFO, value, &mut 4), PASS);
        }
    }

    #[test]
    fn a_direction_on_its_way_is_told_as_it_is() {
        use Path::*;
        let of = |tx, rx, why| Where { tx, rx, why }.settled().why;
        assert_eq!(of(Tcp, Tcp, Reason::None), Reason::Negotiating);
        assert_eq!(of(Tcp, Tcp, Reason::Agreed), Reason::Negotiating);
        assert_eq!(of(Shm, Shm, Reason::Agreed), Reason::None);
        assert_eq!(of(Shm, Shm, Reason::NotStarted), Reason::None);
        assert_eq!(of(Tcp, Rdma, Reason::None), Reason::None);
        assert_eq!(of(Rdma, Tcp, Reason::SocketOption), Reason::SocketOption);
        assert_eq!(of(Tcp, Tcp, Reason::Ipsec), Reason::Ipsec);
    }
}
