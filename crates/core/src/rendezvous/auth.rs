//! Who is at the other end: what the kernel says of peers, and of the ends of TCP connections.
//!
//! Names of abstract sockets are first come, first served: anybody may hold `netacc/1/<port>/<k>`,
//! and anybody may connect to ours and claim any connection. So before memory is shared for a
//! connection, each side has the other show that it holds the other end of *this very* TCP
//! connection ([`super::possession`]), and looks at what the kernel tells of that end
//! (`NETLINK_SOCK_DIAG`).
//!
//! Where the kernel tells no options (before Linux 5.10, or a process that may not open that
//! socket) the user is all there is to go by: that which we run as, or that which owns the other
//! end. No answer is a no, and root is no exception: a process that once was root and is not any
//! more must not speak for others. The user of a peer is what the kernel says of the control
//! connection (`SO_PEERCRED`) *and* of the sender of each message that matters (`SCM_CREDENTIALS`),
//! so neither a dropped privilege nor an inherited descriptor carries over.

use super::{decimal_path, marks};
use crate::lock::Mutex;
use crate::{fd_table, numbers, sys};
use core::ffi::c_int;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use netacc_proto::rendezvous::Tuple;

/// A process as the kernel describes it to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cred {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

/// Who made or accepted the other end of a connected AF_UNIX socket.
pub(crate) fn peer_of(fd: c_int) -> Option<Cred> {
    let mut u = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let ok =
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut u) >= 0 && u.uid != u32::MAX;
    ok.then_some(Cred { pid: u.pid as u32, uid: u.uid })
}

/// Whether a peer can be the holder of a connection's end that `owner` owns, by its user alone.
pub(crate) fn may_be(peer: Cred, owner: u32) -> bool {
    may_be_for(sys::geteuid(), peer, owner)
}

fn may_be_for(me: u32, peer: Cred, owner: u32) -> bool {
    !is_ambiguous(peer.uid) && (peer.uid == me || peer.uid == owner)
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

/// The process is about to end, and may not have closed all its descriptors yet. (Where nobody is
/// told of it, it is not.)
pub(crate) fn is_ending(pid: u32) -> bool {
    let (mut path, mut text) = ([0u8; 32], [0u8; 512]);
    let len = decimal_path(b"/proc/", pid, &mut path);
    if let Some(rest) = path.get_mut(len..len + 5) {
        rest.copy_from_slice(b"/stat");
    }
    let n = read_start(path.get(..len + 6).unwrap_or(&[0]), &mut text);
    text.get(..n).is_some_and(says_ending)
}

/// Of what proc_pid_stat(5) says. A thread that ends is `PF_EXITING`, closes the descriptors if it
/// is the last that has them, and is a zombie then; the first thread is one, too, where it has
/// ended before others.
fn says_ending(stat: &[u8]) -> bool {
    const PF_EXITING: u32 = 4;
    // (Behind the name, in which anything may stand: state, six more, flags; ten more, threads.)
    let behind = stat.iter().rposition(|b| *b == b')').and_then(|at| stat.get(at + 1..));
    let mut words = behind.unwrap_or_default().split(|b| *b == b' ').filter(|w| !w.is_empty());
    let state = words.next();
    let mut number = |skip| core::str::from_utf8(words.nth(skip)?).ok()?.parse::<u32>().ok();
    let (flags, threads) = (number(5).unwrap_or(0), number(10).unwrap_or(0));
    match state {
        Some(b"Z" | b"X") => threads > 1,
        _ => flags & PF_EXITING != 0,
    }
}

/// One end of a TCP connection, as the kernel tells of it: a socket that some process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) owner: u32,
    pub(crate) inode: u32,
    /// SO_COOKIE; 0: not told.
    pub(crate) cookie: u64,
    /// Its options (`possession`). `None`: this process is not told any.
    pub(crate) mark: Option<u8>,
    /// It was shut down for sending, and goes on receiving, as far as is told.
    pub(crate) is_half_closed: bool,
}

/// The end of a TCP connection which sees it as `end`, in the network namespace of the service
/// thread. `None`: there is none, or nobody has it open.
pub(crate) fn look(end: &Tuple) -> Option<End> {
    match ask_netlink(end) {
        Answer::Is(end) => Some(end),
        Answer::NoSuchSocket | Answer::Lost => None,
        Answer::CannotAsk => read_tables(end),
    }
}

/// Whether somebody goes on receiving there who has shut it down for sending. (Asked under locks:
/// only of who answers at once.)
pub(crate) fn goes_on_receiving(end: &Tuple) -> bool {
    matches!(ask_netlink(end), Answer::Is(End { is_half_closed: true, .. }))
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Is(End),
    NoSuchSocket,
    CannotAsk,
    /// The socket that is asked by is gone.
    Lost,
}

// ---- NETLINK_SOCK_DIAG --------------------------------------------------------------------------

const NETLINK_SOCK_DIAG: c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
/// TCP states that have an owner: all but SYN_SENT (2), TIME_WAIT (6), CLOSE (7), LISTEN (10) and
/// NEW_SYN_RECV (12). Anybody can send a SYN to an end whose peer is long gone, from the peer's
/// address: that is nobody's connection. (The kernel calls such a request SYN_RECV (3), and a
/// TIME_WAIT that waits for the FIN FIN_WAIT2 (5). They have no inode, like all that no process has
/// open.)
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
    pub(super) const COOKIE: usize = 16 + 4 + 40;
    pub(super) const UID: usize = 16 + 4 + 48 + 12;
    pub(super) const INODE: usize = UID + 4;
    pub(super) const LEN: usize = INODE + 4;
}

/// Where the service thread asks; made at the first question. (The network namespace is that
/// thread's own.)
static DIAG: Mutex<c_int> = Mutex::new(-1);

fn ask_netlink(end: &Tuple) -> Answer {
    #[cfg(test)]
    if !crate::testing::may_ask() {
        return Answer::CannotAsk;
    }
    let mut diag = DIAG.lock();
    if *diag < 0 {
        *diag = numbers::make(|| {
            sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
        });
    }
    if *diag < 0 {
        return refused(*diag);
    }
    let answer = ask(*diag, end);
    if answer == Answer::Lost {
        // Somebody has closed it behind our back. The number is no business of ours any more.
        *diag = -1;
        return Answer::NoSuchSocket;
    }
    answer
}

/// In a forked child the parent goes on to use its socket.
pub(crate) fn after_fork_in_child() {
    let fd = core::mem::replace(&mut *DIAG.lock(), -1);
    if fd >= 0 {
        fd_table::close_internal(fd);
    }
}

/// The kernel's `-errno` for a question. A process that may not ask, or a kernel that cannot be
/// asked, is one thing; what passes (no descriptor, no memory) is no answer: a peer may have
/// brought it about.
fn refused(error: c_int) -> Answer {
    const NEVER: [c_int; 7] = [
        libc::EAFNOSUPPORT,
        libc::EPROTONOSUPPORT,
        libc::EOPNOTSUPP,
        libc::EPERM,
        libc::EACCES,
        libc::ENOSYS,
        libc::EINVAL,
    ];
    match -error {
        libc::EBADF | libc::ENOTSOCK => Answer::Lost,
        e if NEVER.contains(&e) => Answer::CannotAsk,
        _ => Answer::NoSuchSocket,
    }
}

fn ask(fd: c_int, end: &Tuple) -> Answer {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let seq = ASKED.fetch_add(1, Relaxed);
    let v4 = matches!(end.local().ip(), IpAddr::V4(_));
    let request = Request {
        len: size_of::<Request>() as u32,
        kind: SOCK_DIAG_BY_FAMILY,
        flags: libc::NLM_F_REQUEST as u16,
        seq,
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
    let sent = unsafe {
        sys::sendto(fd, (&raw const request).cast(), size_of::<Request>(), libc::MSG_NOSIGNAL)
    };
    if sent < 0 {
        return refused(sent as c_int);
    }
    // The kernel answers before sendto returns; one packet, either the socket or an error.
    let mut bytes = [0u8; 1024];
    let mut n;
    loop {
        // SAFETY: `bytes` is valid for its length; no address is asked for.
        n = unsafe {
            sys::recvfrom(
                fd,
                bytes.as_mut_ptr(),
                bytes.len(),
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        // (Not one to an earlier question.)
        if n < 0 || field(&bytes, 8).map(u32::from_ne_bytes) == Some(seq) {
            break;
        }
    }
    let Some(bytes) = usize::try_from(n).ok().and_then(|n| bytes.get(..n)) else {
        return refused(n as c_int);
    };
    parse_reply(bytes, end)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn parse_reply(bytes: &[u8], end: &Tuple) -> Answer {
    let kind = field(bytes, 4).map(u16::from_ne_bytes);
    if kind == Some(NLMSG_ERROR) {
        return field(bytes, 16)
            .map_or(Answer::NoSuchSocket, |error| refused(i32::from_ne_bytes(error)));
    }
    if kind != Some(SOCK_DIAG_BY_FAMILY) || bytes.len() < reply::LEN {
        return Answer::NoSuchSocket;
    }
    let get = || {
        let state = u32::from(*bytes.get(reply::STATE)?);
        let family = c_int::from(*bytes.get(reply::FAMILY)?);
        let ports = [
            field(bytes, reply::SPORT).map(u16::from_be_bytes)?,
            field(bytes, reply::DPORT).map(u16::from_be_bytes)?,
        ];
        let addresses = [
            address(family, field(bytes, reply::SRC)?),
            address(family, field(bytes, reply::DST)?),
        ];
        let owner = field(bytes, reply::UID).map(u32::from_ne_bytes)?;
        let inode = field(bytes, reply::INODE).map(u32::from_ne_bytes)?;
        let cookie = field(bytes, reply::COOKIE).map(u64::from_ne_bytes)?;
        // A lookup that finds no connection answers with the listener.
        let same = ports == [end.local_port(), end.peer_port()]
            && addresses == [end.local().ip(), end.peer().ip()];
        let owned = 1u32.checked_shl(state).unwrap_or(0) & OWNED_STATES != 0 && inode != 0;
        (same && owned).then_some(End {
            owner,
            inode,
            cookie,
            mark: flags(bytes).map(marks::mark_of),
            is_half_closed: attribute(bytes, INET_DIAG_SHUTDOWN) == Some([SEND_SHUTDOWN]),
        })
    };
    get().map_or(Answer::NoSuchSocket, Answer::Is)
}

/// Attribute of `struct inet_diag_sockopt`, Linux 5.10.
const INET_DIAG_SOCKOPT: u16 = 22;
/// Attribute of one byte: what has ended. (Both have where its peer has sent a FIN, too.)
const INET_DIAG_SHUTDOWN: u16 = 8;
const SEND_SHUTDOWN: u8 = 2;

/// The options of the socket that an answer is of.
fn flags(bytes: &[u8]) -> Option<[u8; 2]> {
    if cfg!(target_endian = "big") {
        // (Its bits lie in another order there.)
        return None;
    }
    attribute(bytes, INET_DIAG_SOCKOPT)
}

/// The beginning of an attribute of that kind.
fn attribute<const N: usize>(bytes: &[u8], wanted: u16) -> Option<[u8; N]> {
    let mut rest = bytes.get(reply::LEN..)?;
    // Each attribute: its length with these four bytes, its kind; the next at a multiple of four.
    loop {
        let len = usize::from(field(rest, 0).map(u16::from_ne_bytes)?);
        let kind = field(rest, 2).map(u16::from_ne_bytes)?;
        let value = rest.get(4..len)?;
        if kind == wanted {
            return field(value, 0);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
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

// ---- /proc/net/tcp ------------------------------------------------------------------------------

/// Lines that are read of one table: a bound on the time, not a limit that a host reaches.
const LINES_MAX: usize = 1 << 20;

fn read_tables(end: &Tuple) -> Option<End> {
    // The calling thread's own network namespace, not that of the process's first thread.
    let v4 = read_table(b"/proc/thread-self/net/tcp\0", end);
    v4.or_else(|| read_table(b"/proc/thread-self/net/tcp6\0", end))
}

fn read_table(path: &[u8], end: &Tuple) -> Option<End> {
    let fd = numbers::make(|| sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0));
    if fd < 0 {
        return None;
    }
    // In a chroot anything may stand at that path.
    let found = if sys::file_system(fd) == PROC_SUPER_MAGIC { scan(fd, end) } else { None };
    fd_table::close_internal(fd);
    found
}

fn scan(fd: c_int, end: &Tuple) -> Option<End> {
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
            if let Some(found) = line.get(..len).and_then(|l| parse_line(l, end)) {
                return Some(found);
            }
            len = 0;
            lines += 1;
            if lines >= LINES_MAX {
                return None;
            }
        }
    }
}

/// One line: `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...`.
fn parse_line(line: &[u8], end: &Tuple) -> Option<End> {
    let mut words = line.split(|b| *b == b' ').filter(|w| !w.is_empty());
    let _number = words.next()?;
    let local = endpoint(words.next()?)?;
    let peer = endpoint(words.next()?)?;
    let state = hex(words.next()?)?;
    let number = |word: &[u8]| core::str::from_utf8(word).ok()?.parse().ok();
    let owner = number(words.nth(3)?)?;
    let inode = number(words.nth(1)?)?;
    let same =
        local == (end.local().ip(), end.local_port()) && peer == (end.peer().ip(), end.peer_port());
    let owned = 1u32.checked_shl(state).unwrap_or(0) & OWNED_STATES != 0 && inode != 0;
    (same && owned).then_some(End { owner, inode, cookie: 0, mark: None, is_half_closed: false })
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
