//! Who is at the other end: proof that a peer process holds the other end of a TCP connection.
//!
//! Names of abstract sockets are first come, first served: anybody may hold `netacc/1/<port>/<k>`, and anybody may connect to
//! ours and claim any connection. So before memory is shared for a connection, each side asks the kernel:
//!
//! - a peer that runs as the same user as we is taken at its word (also one that is confined, and could not read our memory or our sockets);
//! - any other must be the user that owns the other end of *this very* TCP connection (`NETLINK_SOCK_DIAG`, or
//!   `/proc/net/tcp*` where that is missing). No answer is a no.
//!
//! Root is no exception: a process that once was root and is not any more must not speak for others. The user of a
//! peer is what the kernel says of the control connection (`SO_PEERCRED`) *and* of the sender of each message that matters
//! (`SCM_CREDENTIALS`), so neither a dropped privilege nor an inherited descriptor carries over.

use crate::{fd_table, numbers, sys};
use core::ffi::c_int;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use netacc_proto::rendezvous::Tuple;

/// The proof. Nothing is handed over, and nothing received is mapped into a connection, without one.
#[derive(Debug)]
pub(crate) struct PeerVerified(());

/// A process as the kernel describes it to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cred {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

/// Who made or accepted the other end of a connected AF_UNIX socket.
pub(crate) fn peer_of(fd: c_int) -> Option<Cred> {
    let mut u = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let ok = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut u) >= 0 && u.uid != u32::MAX;
    ok.then_some(Cred { pid: u.pid as u32, uid: u.uid })
}

/// Whether `peer` may share memory with us for the connection that we see as `ours`.
pub(crate) fn verify(peer: Cred, ours: &Tuple) -> Option<PeerVerified> {
    verify_as(sys::geteuid(), peer, ours)
}

fn verify_as(me: u32, peer: Cred, ours: &Tuple) -> Option<PeerVerified> {
    if is_ambiguous(peer.uid) {
        return None;
    }
    let may = peer.uid == me || owner(&ours.mirrored()) == Some(peer.uid);
    may.then_some(PeerVerified(()))
}

/// What the kernel shows for every user that has no number in our user namespace.
const OVERFLOW_UID: u32 = 65534;

/// In a user namespace that does not map all users, strangers are indistinguishable from `nobody`.
fn is_ambiguous(uid: u32) -> bool {
    // 0: not looked up yet; 1: all users are mapped; 2: not all.
    static MAPPED: AtomicU32 = AtomicU32::new(0);
    if uid != OVERFLOW_UID {
        return false;
    }
    let mut known = MAPPED.load(Relaxed);
    if known == 0 {
        let mut text = [0u8; 128];
        let n = read_start(b"/proc/self/uid_map\0", &mut text);
        known = if maps_all(text.get(..n).unwrap_or(&[])) { 1 } else { 2 };
        MAPPED.store(known, Relaxed);
    }
    known == 2
}

fn maps_all(uid_map: &[u8]) -> bool {
    let mut words = uid_map.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
    words.next() == Some(b"0") && words.next() == Some(b"0") && words.next() == Some(b"4294967295")
}

pub(crate) fn read_start(path: &[u8], into: &mut [u8]) -> usize {
    let fd = numbers::make(|| sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0));
    if fd < 0 {
        return 0;
    }
    let n = if sys::file_system(fd) == PROC_SUPER_MAGIC { sys::read(fd, into) } else { 0 };
    fd_table::close_internal(fd);
    n.max(0) as usize
}

const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// The user that owns the end of a TCP connection which sees it as `end`, in our network namespace.
pub(crate) fn owner(end: &Tuple) -> Option<u32> {
    match ask_netlink(end) {
        Answer::Owner(uid) => Some(uid),
        Answer::NoSuchSocket => None,
        Answer::CannotAsk => read_tables(end),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Owner(u32),
    NoSuchSocket,
    CannotAsk,
}

// ---- NETLINK_SOCK_DIAG ---------------------------------------------------------------------------------------

const NETLINK_SOCK_DIAG: c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
/// TCP states that have an owner: all but SYN_SENT (2), TIME_WAIT (6), CLOSE (7), LISTEN (10) and NEW_SYN_RECV (12). Anybody can send a SYN
/// to an end whose peer is long gone, from the peer's address: that is nobody's connection.
const OWNED_STATES: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

/// `struct inet_diag_sockid`: ports and addresses in network order.
#[repr(C)]
#[derive(Clone, Copy)]
struct SockId {
    sport: [u8; 2],
    dport: [u8; 2],
    src: [u8; 16],
    dst: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

#[repr(C)]
struct Request {
    len: u32,
    kind: u16,
    flags: u16,
    seq: u32,
    pid: u32,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SockId,
}

const _: () = assert!(size_of::<SockId>() == 48 && size_of::<Request>() == 72);

/// Where the fields of `struct inet_diag_msg` are, behind the 16 bytes of `struct nlmsghdr`.
mod reply {
    pub(super) const FAMILY: usize = 16;
    pub(super) const STATE: usize = 17;
    pub(super) const SPORT: usize = 20;
    pub(super) const DPORT: usize = 22;
    pub(super) const SRC: usize = 24;
    pub(super) const DST: usize = 40;
    pub(super) const UID: usize = 16 + 4 + 48 + 12;
    pub(super) const LEN: usize = UID + 8;
}

fn ask_netlink(end: &Tuple) -> Answer {
    let fd = numbers::make(|| sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    if fd < 0 {
        return Answer::CannotAsk;
    }
    let answer = ask(fd, end);
    fd_table::close_internal(fd);
    answer
}

fn ask(fd: c_int, end: &Tuple) -> Answer {
    let v4 = matches!(end.local().ip(), IpAddr::V4(_));
    let request = Request {
        len: size_of::<Request>() as u32,
        kind: SOCK_DIAG_BY_FAMILY,
        flags: libc::NLM_F_REQUEST as u16,
        seq: 1,
        pid: 0,
        family: if v4 { libc::AF_INET } else { libc::AF_INET6 } as u8,
        protocol: libc::IPPROTO_TCP as u8,
        extensions: 0,
        pad: 0,
        states: OWNED_STATES,
        id: SockId {
            sport: end.local_port().to_be_bytes(),
            dport: end.peer_port().to_be_bytes(),
            src: end.local_addr(),
            dst: end.peer_addr(),
            interface: 0,
            cookie: [u32::MAX; 2],
        },
    };
    // SAFETY: `request` is valid for its size.
    let sent = unsafe { sys::sendto(fd, (&raw const request).cast(), size_of::<Request>(), libc::MSG_NOSIGNAL) };
    if sent < 0 {
        return Answer::CannotAsk;
    }
    // The kernel answers before sendto returns; one packet, either the socket or an error.
    let mut bytes = [0u8; 1024];
    // SAFETY: `bytes` is valid for its length; no address is asked for.
    let n = unsafe { sys::recvfrom(fd, bytes.as_mut_ptr(), bytes.len(), libc::MSG_DONTWAIT, core::ptr::null_mut(), core::ptr::null_mut()) };
    let Some(bytes) = usize::try_from(n).ok().and_then(|n| bytes.get(..n)) else { return Answer::CannotAsk };
    parse_reply(bytes, end)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn parse_reply(bytes: &[u8], end: &Tuple) -> Answer {
    let kind = field(bytes, 4).map(u16::from_ne_bytes);
    if kind == Some(NLMSG_ERROR) {
        let error = field(bytes, 16).map(i32::from_ne_bytes);
        return if error == Some(-libc::ENOENT) { Answer::NoSuchSocket } else { Answer::CannotAsk };
    }
    if kind != Some(SOCK_DIAG_BY_FAMILY) || bytes.len() < reply::LEN {
        return Answer::CannotAsk;
    }
    let get = || {
        let state = u32::from(*bytes.get(reply::STATE)?);
        let family = c_int::from(*bytes.get(reply::FAMILY)?);
        let ports = [field(bytes, reply::SPORT).map(u16::from_be_bytes)?, field(bytes, reply::DPORT).map(u16::from_be_bytes)?];
        let addresses = [address(family, field(bytes, reply::SRC)?), address(family, field(bytes, reply::DST)?)];
        let uid = field(bytes, reply::UID).map(u32::from_ne_bytes)?;
        // A lookup that finds no connection answers with the listener.
        let same = ports == [end.local_port(), end.peer_port()] && addresses == [end.local().ip(), end.peer().ip()];
        (same && 1u32.checked_shl(state).unwrap_or(0) & OWNED_STATES != 0).then_some(uid)
    };
    get().map_or(Answer::NoSuchSocket, Answer::Owner)
}

/// An address of the kernel's; a v4-mapped one is the IPv4 one.
fn address(family: c_int, octets: [u8; 16]) -> IpAddr {
    if family == libc::AF_INET {
        let [a, b, c, d, ..] = octets;
        IpAddr::from([a, b, c, d])
    } else {
        IpAddr::from(octets).to_canonical()
    }
}

// ---- /proc/net/tcp -------------------------------------------------------------------------------------------

/// Lines that are read of one table: a bound on the time, not a limit that a host reaches.
const LINES_MAX: usize = 1 << 20;

fn read_tables(end: &Tuple) -> Option<u32> {
    // The calling thread's own network namespace, not that of the process's first thread.
    let v4 = read_table(b"/proc/thread-self/net/tcp\0", end);
    v4.or_else(|| read_table(b"/proc/thread-self/net/tcp6\0", end))
}

fn read_table(path: &[u8], end: &Tuple) -> Option<u32> {
    let fd = numbers::make(|| sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0));
    if fd < 0 {
        return None;
    }
    // In a chroot anything may stand at that path.
    let found = if sys::file_system(fd) == PROC_SUPER_MAGIC { scan(fd, end) } else { None };
    fd_table::close_internal(fd);
    found
}

fn scan(fd: c_int, end: &Tuple) -> Option<u32> {
    let mut line = [0u8; 256];
    let mut len = 0usize;
    let mut lines = 0usize;
    let mut part = [0u8; 4096];
    loop {
        let n = usize::try_from(sys::read(fd, &mut part)).ok().filter(|n| *n != 0)?;
        for b in part.get(..n)? {
            if *b != b'\n' {
                if let Some(to) = line.get_mut(len) {
                    *to = *b;
                    len += 1;
                }
                continue;
            }
            if let Some(uid) = line.get(..len).and_then(|l| parse_line(l, end)) {
                return Some(uid);
            }
            len = 0;
            lines += 1;
            if lines >= LINES_MAX {
                return None;
            }
        }
    }
}

/// One line: `sl local_address rem_address st tx:rx tr:when retrnsmt uid ...`.
fn parse_line(line: &[u8], end: &Tuple) -> Option<u32> {
    let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
    let _number = words.next()?;
    let local = endpoint(words.next()?)?;
    let peer = endpoint(words.next()?)?;
    let state = hex(words.next()?)?;
    let uid = core::str::from_utf8(words.nth(3)?).ok()?.parse().ok()?;
    let same = local == (end.local().ip(), end.local_port()) && peer == (end.peer().ip(), end.peer_port());
    (same && 1u32.checked_shl(state).unwrap_or(0) & OWNED_STATES != 0).then_some(uid)
}

fn hex(digits: &[u8]) -> Option<u32> {
    u32::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

/// `ADDRESS:PORT`: the address as native words of network-order bytes, in hexadecimal.
fn endpoint(word: &[u8]) -> Option<(IpAddr, u16)> {
    let colon = word.iter().position(|b| *b == b':')?;
    let (digits, port) = (word.get(..colon)?, word.get(colon + 1..)?);
    let port = u16::try_from(hex(port)?).ok()?;
    let mut octets = [0u8; 16];
    let family = match digits.len() {
        8 => libc::AF_INET,
        32 => libc::AF_INET6,
        _ => return None,
    };
    for (to, from) in octets.chunks_exact_mut(4).zip(digits.chunks_exact(8)) {
        to.copy_from_slice(&hex(from)?.to_ne_bytes());
    }
    Some((address(family, octets), port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]
mod tests;
