//! Connections that are passed over unix sockets: who still has one is kept by the kernel, as locks
//! on the connection's own file (`docs/design/adoption.md`).
//!
//! * **known**: a lock of the open file. Everybody who has the connection has the library, and says
//!   so by the next two.
//! * **holder**: a record lock. The process has it; it goes when the process closes it, however
//!   that happens.
//! * **under way**: a lock of the open file for each message that carries it, at the number of the
//!   socket that it was sent on.
//! * **moving**: a lock of the open file. In the place of **holder**, while a process closes one of
//!   several descriptors.
//! * **family**: a lock of the open file. Processes have it that are counted in shared memory.
//! * **handed**: a lock of the open file, in the place of **known**, while a process becomes
//!   another program ([`super::exec`]).
//!
//! Only who holds the file sees or changes them. No byte of any file is concerned: the offsets are
//! beyond what files have.

use crate::fd_table::{self, Entry};
use crate::socket::{self, Socket, State, flag};
use crate::{candidates, carrier, numbers, process, sys};
use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

// (Versions of the library that do not know all of these have theirs elsewhere.)
pub(super) const HOLDER: i64 = 1 << 61;
const UNDER_WAY: i64 = HOLDER + 1;
/// Numbers of sockets have 32 bits.
const UNDER_WAY_LEN: i64 = 1 << 32;
/// A place for each thread.
const MOVING: i64 = UNDER_WAY + UNDER_WAY_LEN;
const FAMILY: i64 = MOVING + (1 << PID_BITS);
/// From `HOLDER` on: whoever else has it.
const OTHERS_LEN: i64 = FAMILY + 1 - HOLDER;
/// Made by accept, made by connect.
const KNOWN: [i64; 2] = [FAMILY + 1, FAMILY + 2];
/// Of the number of an heir ([`super::exec`]).
pub(super) const PID_BITS: u32 = 22;
pub(super) const PROGRAM_BITS: u32 = 37;
const HANDED_LEN: i64 = 1 << (PID_BITS + PROGRAM_BITS);
const HANDED: [i64; 2] = [KNOWN[1] + 1, KNOWN[1] + 1 + HANDED_LEN];

const F_OFD_SETLK: c_int = 37;

fn lock(fd: c_int, command: c_int, kind: c_int, start: i64) -> bool {
    lock_range(fd, command, kind, (start, 1))
}

fn lock_range(fd: c_int, command: c_int, kind: c_int, (start, len): (i64, i64)) -> bool {
    let mut range = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    sys::fcntl(fd, command, &raw mut range as usize) >= 0
}

/// Whether nobody but this process's record locks stands there.
fn is_clear(fd: c_int, start: i64, len: i64) -> bool {
    let mut range = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    sys::fcntl(fd, libc::F_GETLK, &raw mut range as usize) >= 0
        && range.l_type == libc::F_UNLCK as i16
}

/// Whether a lock of the open file stands there.
fn is_marked(fd: c_int, start: i64) -> bool {
    let mut range = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    };
    sys::fcntl(fd, libc::F_GETLK, &raw mut range as usize) >= 0
        && range.l_type != libc::F_UNLCK as i16
        && range.l_pid == -1
}

/// This process has the connection, until it closes a name of it.
pub(super) fn hold(fd: c_int) -> bool {
    lock(fd, libc::F_SETLK, libc::F_RDLCK, HOLDER)
}

/// Another process says that it has the connection.
pub(super) fn is_held(fd: c_int) -> bool {
    !is_clear(fd, HOLDER, 1)
}

/// Somebody may have it whom the marks do not show: nobody adopts it.
#[cold]
pub(crate) fn lose_track(s: &Socket, fd: c_int) {
    if fd >= 0 && s.flags.fetch_and(!flag::TRACKED, AcqRel) & flag::TRACKED != 0 {
        forget(fd);
    }
}

/// Who has it is not known any more, nor will be to a program that is about to start. In one step.
pub(super) fn forget(fd: c_int) {
    let all = (KNOWN[0], HANDED[1] + HANDED_LEN - KNOWN[0]);
    let _ = lock_range(fd, F_OFD_SETLK, libc::F_UNLCK, all);
}

// ---- in exec ------------------------------------------------------------------------------------

fn place(of: [i64; 2], connector: bool) -> i64 {
    let [accepted, connected] = of;
    if connector { connected } else { accepted }
}

/// The process `heir` has it next.
pub(super) fn announce(fd: c_int, connector: bool, heir: i64) -> bool {
    lock(fd, F_OFD_SETLK, libc::F_WRLCK, place(HANDED, connector) + heir)
}

/// As [`announce`]; who has it is known, and is again when the heir has it.
pub(super) fn know_later(fd: c_int, connector: bool, heir: i64) -> bool {
    let known = place(KNOWN, connector);
    // In this order: who takes the one mark away takes both.
    announce(fd, connector, heir)
        && is_marked(fd, known)
        && lock(fd, F_OFD_SETLK, libc::F_UNLCK, known)
}

/// It was handed to this process, which is `heir`: whether as one that connects.
pub(super) fn is_handed(fd: c_int, heir: i64) -> Option<bool> {
    HANDED.iter().position(|at| is_marked(fd, at + heir)).map(|n| n == 1)
}

/// This process is `heir`, and has it from here on.
pub(super) fn take_over(fd: c_int, connector: bool, heir: i64) -> bool {
    let handed = place(HANDED, connector) + heir;
    // In this order: who loses track meanwhile takes both marks away, before the look or after it.
    hold(fd)
        && lock(fd, F_OFD_SETLK, libc::F_WRLCK, place(KNOWN, connector))
        && is_marked(fd, handed)
        && lock(fd, F_OFD_SETLK, libc::F_UNLCK, handed)
}

/// Everybody who has it keeps these marks, or is counted in shared memory.
pub(super) fn know(fd: c_int, connector: bool) -> bool {
    lock(fd, F_OFD_SETLK, libc::F_WRLCK, place(KNOWN, connector))
}

/// Nobody has it whom this process does not count itself.
pub(super) fn is_only_ours(fd: c_int) -> bool {
    // In this order, as in `is_alone`.
    is_clear(fd, HOLDER, FAMILY - HOLDER) && KNOWN.iter().any(|at| is_marked(fd, *at))
}

/// Nobody but this process has it.
pub(super) fn is_clear_of_others(fd: c_int) -> bool {
    is_clear(fd, HOLDER, OTHERS_LEN) && KNOWN.iter().any(|at| is_marked(fd, *at))
}

/// This thread is about to have the kernel close one of several descriptors of this process's,
/// which takes the holder's mark away; another mark stands in for it until [`end_move`].
pub(super) fn begin_move(fd: c_int) -> bool {
    lock(fd, F_OFD_SETLK, libc::F_WRLCK, moving())
}

pub(super) fn is_moving(fd: c_int) -> bool {
    is_marked(fd, moving())
}

/// `fd`: one that is left.
pub(super) fn end_move(fd: c_int) -> bool {
    hold(fd) && lock(fd, F_OFD_SETLK, libc::F_UNLCK, moving())
}

fn moving() -> i64 {
    MOVING + i64::from(process::tid() % (1 << PID_BITS))
}

/// Processes have it who are counted in the memory of one of them.
pub(super) fn mark_family(fd: c_int) -> bool {
    lock(fd, F_OFD_SETLK, libc::F_WRLCK, FAMILY)
}

pub(super) fn unmark_family(fd: c_int) {
    let _ = lock(fd, F_OFD_SETLK, libc::F_UNLCK, FAMILY);
}

// ---- over unix sockets --------------------------------------------------------------------------

/// SO_RCVTIMEO or SO_SNDTIMEO of a kind that nobody else can see.
pub(super) fn never_waits(s: &Socket) -> bool {
    [&s.receive_timeout_ns, &s.send_timeout_ns].iter().any(|ns| ns.load(Relaxed) < 0)
}

/// Before `fd` is sent over the unix socket `over`. False: who receives it cannot know who else has
/// it, or has it for itself.
#[cold]
pub(crate) fn pass(over: c_int, fd: c_int) -> bool {
    let Some((s, _)) = fd_table::socket(fd) else { return false };
    let odd = flag::NOTED | flag::UNSETTLED;
    let flags = s.flags.load(SeqCst);
    let again = flags & flag::TRACKED != 0;
    // Only this process has it, under one number, and all that it ever did on it was counted.
    if never_waits(s)
        || s.is_inherited()
        || !s.is(State::Candidate)
        || s.names() != 1
        || !s.children_follow()
        || flags & odd != 0
        || (flags & flag::CONTESTED != 0 && !again)
    {
        return false;
    }
    let Some(number) = inode(over) else { return false };
    s.flags.fetch_or(flag::CONTESTED | flag::PASSED | flag::TRACKED, SeqCst);
    let known = place(KNOWN, flags & flag::CONNECTOR != 0);
    let at = UNDER_WAY + i64::from(number);
    // (A second message on the same way cannot be counted.)
    let marked = s.is(State::Candidate)
        && (!again || is_marked(fd, known))
        && is_clear(fd, at, 1)
        && hold(fd)
        && lock(fd, F_OFD_SETLK, libc::F_WRLCK, at)
        && lock(fd, F_OFD_SETLK, libc::F_WRLCK, known);
    if !marked {
        lose_track(s, fd);
        return false;
    }
    s.set_reason(Reason::PassedByScmRights);
    true
}

/// The message was not sent after all.
pub(crate) fn take_back(over: c_int, fd: c_int) {
    if let (Some((s, _)), Some(number)) = (fd_table::socket(fd), inode(over))
        && s.has(flag::TRACKED)
    {
        let _ = lock(fd, F_OFD_SETLK, libc::F_UNLCK, UNDER_WAY + i64::from(number));
    }
}

/// `fd` was received over the unix socket `over`. `peeked`: it is received once more.
pub(crate) fn receive(over: c_int, fd: c_int, peeked: bool) {
    let known = KNOWN.iter().position(|at| is_marked(fd, *at));
    if known.is_some_and(|connector| !peeked && try_receive(over, fd, connector == 1)) {
        return;
    }
    if known.is_some() {
        forget(fd);
    }
    // Shown with its reason.
    if carrier::is_tcp(fd)
        && let Some(tuple) = carrier::tuple_of(fd)
        && let Some(s) = candidates::new_heir(fd, Reason::PassedByScmRights, false, tuple, (0, 0))
    {
        fd_table::set(fd, Entry::Socket(s, s.generation16()));
    }
}

/// False: somebody else may have it too, and nobody would know.
#[cold]
fn try_receive(over: c_int, fd: c_int, connector: bool) -> bool {
    let (Some(tuple), Some(peer)) = (carrier::tuple_of(fd), peer_inode(over)) else { return false };
    let mut has_it = false;
    fd_table::for_each(
        |n, entry| has_it |= matches!(entry, Entry::Socket(s, _) if !s.is(socket::State::Unconnected) && s.known_tuple().or_else(|| carrier::tuple_of(n)) == Some(tuple)),
    );
    let at = UNDER_WAY + i64::from(peer);
    // Sent by its holder itself, not by somebody in between who may have kept it.
    if has_it || !is_marked(fd, at) {
        return false;
    }
    let Some(moved) = carrier::settled_counts(fd, connector) else { return false };
    let Some(s) = candidates::new_heir(fd, Reason::None, connector, tuple, moved) else {
        return false;
    };
    s.raise(flag::HEIR | flag::PASSED);
    if s.is(State::Candidate) && s.children_follow() {
        // Last the message's mark: the connection never looks like somebody else's alone.
        if hold(fd) && lock(fd, F_OFD_SETLK, libc::F_UNLCK, at) {
            s.raise(flag::UNSETTLED | flag::TRACKED);
        }
    }
    if s.is(State::Candidate) {
        if s.has(flag::TRACKED) {
            s.set_reason(Reason::PassedByScmRights);
        } else {
            candidates::make_plain(s, Reason::PassedByScmRights);
        }
    }
    super::stdio::named(s, fd);
    fd_table::set(fd, Entry::Socket(s, s.generation16()));
    true
}

/// Whether nobody else has a connection that was received; `None`: that cannot be known.
pub(super) fn is_alone(s: &Socket, fd: c_int) -> Option<bool> {
    if !s.has(flag::TRACKED) {
        return None;
    }
    // In this order: who has it takes the mark away before it does what the others do not show.
    let clear = is_clear(fd, HOLDER, OTHERS_LEN);
    if !KNOWN.iter().any(|at| is_marked(fd, *at)) {
        return None;
    }
    if clear {
        s.lower(flag::TRACKED | flag::PASSED);
        forget(fd);
        let _ = lock(fd, libc::F_SETLK, libc::F_UNLCK, HOLDER);
    }
    Some(clear)
}

/// Before its last descriptor here is closed. `counted`: no call of another thread's is in flight
/// on it.
pub(crate) fn before_close(s: &Socket, fd: c_int, counted: bool) {
    if s.has(flag::TRACKED) && !counted {
        lose_track(s, fd);
    }
}

// ---- which unix socket --------------------------------------------------------------------------

/// The number of a socket.
fn inode(fd: c_int) -> Option<u32> {
    let (mode, inode) = sys::file_of(fd)?;
    (mode & libc::S_IFMT == libc::S_IFSOCK).then(|| u32::try_from(inode).ok()).flatten()
}

/// The number of the socket at the other end of a unix socket. (Fixed for the life of a stream: the
/// last answer is remembered.)
fn peer_inode(fd: c_int) -> Option<u32> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let own = inode(fd)?;
    let last = LAST.load(Relaxed);
    if (last >> 32) as u32 == own && last != 0 {
        return Some(last as u32);
    }
    let mut kind: c_int = 0;
    if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, &mut kind) < 0
        || (kind != libc::SOCK_STREAM && kind != libc::SOCK_SEQPACKET)
    {
        return None;
    }
    let peer = ask_peer(own)?;
    LAST.store(u64::from(own) << 32 | u64::from(peer), Relaxed);
    Some(peer)
}

const NETLINK_SOCK_DIAG: c_int = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// `struct nlmsghdr`, then `struct unix_diag_msg`, then attributes.
const ATTRIBUTES: usize = 16 + 16;

/// `struct nlmsghdr` and `struct unix_diag_req` (linux/unix_diag.h).
#[repr(C)]
struct Request {
    len: u32,
    kind: u16,
    flags: u16,
    seq: u32,
    pid: u32,
    family: u8,
    protocol: u8,
    pad: u16,
    states: u32,
    inode: u32,
    show: u32,
    cookie: [u32; 2],
}

fn ask_peer(inode: u32) -> Option<u32> {
    let fd = numbers::make(|| {
        sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
    });
    if fd < 0 {
        return None;
    }
    let request = Request {
        len: size_of::<Request>() as u32,
        kind: SOCK_DIAG_BY_FAMILY,
        flags: libc::NLM_F_REQUEST as u16,
        seq: 1,
        pid: 0,
        family: libc::AF_UNIX as u8,
        protocol: 0,
        pad: 0,
        states: u32::MAX,
        inode,
        show: UDIAG_SHOW_PEER,
        cookie: [u32::MAX; 2],
    };
    let mut bytes = [0u8; 512];
    // SAFETY: `request` is valid for its size.
    let sent = unsafe {
        sys::sendto(fd, (&raw const request).cast(), size_of::<Request>(), libc::MSG_NOSIGNAL)
    };
    let n = if sent < 0 {
        sent
    } else {
        // The kernel answers before sendto returns.
        // SAFETY: `bytes` is valid for its length; no address is asked for.
        unsafe {
            sys::recvfrom(
                fd,
                bytes.as_mut_ptr(),
                bytes.len(),
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        }
    };
    fd_table::close_internal(fd);
    parse(bytes.get(..usize::try_from(n).ok()?)?, inode)
}

fn parse(bytes: &[u8], inode: u32) -> Option<u32> {
    let half = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if half(4)? != SOCK_DIAG_BY_FAMILY || word(20)? != inode {
        return None;
    }
    let mut at = ATTRIBUTES;
    loop {
        let (len, kind) = (usize::from(half(at)?), half(at + 2)?);
        if kind == UNIX_DIAG_PEER && len == 8 {
            return word(at + 4).filter(|peer| *peer != 0);
        }
        at += len.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_file_of_a_socket_keeps_marks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = near.as_raw_fd();
        assert!(
            is_clear(fd, HOLDER, 1 + UNDER_WAY_LEN) && KNOWN.iter().all(|at| !is_marked(fd, *at))
        );
        assert!(lock(fd, libc::F_SETLK, libc::F_RDLCK, HOLDER));
        assert!(is_clear(fd, HOLDER, 1 + UNDER_WAY_LEN), "one's own lock is in nobody's way");
        assert!(
            lock(fd, F_OFD_SETLK, libc::F_WRLCK, UNDER_WAY + 0xffff_ffff)
                && lock(fd, F_OFD_SETLK, libc::F_WRLCK, KNOWN[1])
        );
        // By any name of it.
        let again = near.try_clone().unwrap();
        assert!(!is_clear(again.as_raw_fd(), HOLDER, 1 + UNDER_WAY_LEN));
        assert!(is_marked(again.as_raw_fd(), KNOWN[1]) && !is_marked(again.as_raw_fd(), KNOWN[0]));
        assert!(lock(again.as_raw_fd(), F_OFD_SETLK, libc::F_UNLCK, UNDER_WAY + 0xffff_ffff));
        assert!(is_clear(fd, HOLDER, 1 + UNDER_WAY_LEN));
        forget(again.as_raw_fd());
        assert!(!is_marked(fd, KNOWN[1]));
    }

    #[test]
    fn the_kernel_says_who_is_at_the_other_end() {
        let (a, b) = UnixStream::pair().unwrap();
        assert_eq!(peer_inode(a.as_raw_fd()), inode(b.as_raw_fd()));
        assert_eq!(peer_inode(b.as_raw_fd()), inode(a.as_raw_fd()));
        assert_eq!(peer_inode(a.as_raw_fd()), inode(b.as_raw_fd()), "remembered or not");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(ask_peer(inode(listener.as_raw_fd()).unwrap()), None);
    }

    #[test]
    fn odd_answers_are_none() {
        for len in 0..64 {
            for fill in [0u8, 1, 2, 4, 8, 20, 0xff] {
                let _ = parse(&std::vec![fill; len], 1);
            }
        }
        let mut bytes = std::vec![0u8; 40];
        bytes[4] = SOCK_DIAG_BY_FAMILY as u8;
        bytes[20] = 9;
        bytes[32] = 8;
        bytes[34] = UNIX_DIAG_PEER as u8;
        bytes[36] = 5;
        assert_eq!((parse(&bytes, 9), parse(&bytes, 8)), (Some(5), None));
    }
}
