//! What each descriptor number means to us.
//!
//! An entry is *not* the truth about the descriptor, only about what we saw through the hooks;
//! every call that yields a new number drops what is left over from a close that we did not see.

use crate::fd_words::{self, INTERNAL, KIND, LISTENER};
pub(crate) use crate::fd_words::{
    CAPACITY, close_internal, high_water, note_counted, raw, take, was_counted,
};
use crate::socket::{Socket, State};
use core::ffi::c_int;
use netacc_control::stats::Reason;

const FRESH: u64 = 1;
const SOCKET: u64 = 2;
const EPOLL: u64 = 3;
const RING: u64 = 6;
const MARKED: u64 = 7;
/// User addresses fit into 47 bits; bits 48-63 carry the object's generation.
const ADDRESS: u64 = (1 << 48) - 8;

/// Of a fresh socket's entry, above the kind: the reason, and the millisecond at which it began to
/// connect.
const REASON: u32 = 0xffff;
const BEGAN: u32 = 24;
/// It has O_NONBLOCK.
const NONBLOCK: u64 = 1 << 3;

/// Where an object is, of which only the module that makes such objects knows more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ObjectRef(usize);

impl ObjectRef {
    /// `object`: in a type-stable slab, which is never unmapped.
    pub(crate) fn of<T>(object: &'static T) -> ObjectRef {
        ObjectRef(core::ptr::from_ref(object) as usize)
    }
    pub(crate) fn address(self) -> usize {
        self.0
    }
}

/// A decoded entry.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// Not ours.
    None,
    /// A stream socket that is neither connected nor listening; the reason why it must never be
    /// accelerated, or `Reason::None`.
    Fresh(u32),
    /// A connection.
    Socket(&'static Socket, u16),
    /// An epoll instance ([`crate::epoll::at`]).
    Epoll(ObjectRef),
    /// The library's own: the application must not see it.
    Internal,
    /// An io_uring that can be followed ([`crate::io_uring::at`]).
    Ring(ObjectRef),
    /// A connection that is the kernel's here, and whose file says that this process has it, under
    /// this name alone ([`crate::adoption::share`]); whether it connected.
    Marked(bool),
    /// A listening stream socket; the reason as in `Fresh`, inherited by what it accepts.
    Listener(u32),
}

#[inline(always)]
pub(crate) fn decode(raw: u64) -> Entry {
    match raw & KIND {
        // SAFETY: entries of this kind are only made from references to objects in type-stable
        // slabs, which are never unmapped; the generation is checked under the object's lock.
        SOCKET => Entry::Socket(unsafe { &*((raw & ADDRESS) as *const Socket) }, (raw >> 48) as _),
        EPOLL => Entry::Epoll(ObjectRef((raw & ADDRESS) as usize)),
        RING => Entry::Ring(ObjectRef((raw & ADDRESS) as usize)),
        FRESH => Entry::Fresh((raw >> 8) as u32 & REASON),
        LISTENER => Entry::Listener((raw >> 8) as u32),
        INTERNAL => Entry::Internal,
        MARKED => Entry::Marked(raw >> 8 != 0),
        _ => Entry::None,
    }
}

/// What the table knows of `fd`. (A connection that its maker has closed since a fork is none of
/// the child's: its memory may serve another.)
#[inline(always)]
pub(crate) fn get(fd: c_int) -> Entry {
    let raw = raw(fd);
    if raw == 0 { Entry::None } else { current(decode(raw)) }
}

#[inline(always)]
fn current(entry: Entry) -> Entry {
    match entry {
        Entry::Socket(s, g) if s.generation16() != g => Entry::None,
        entry => entry,
    }
}

/// The socket behind `fd`, if it is one of ours.
#[inline(always)]
pub(crate) fn socket(fd: c_int) -> Option<(&'static Socket, u16)> {
    match get(fd) {
        Entry::Socket(s, g) => Some((s, g)),
        _ => None,
    }
}

/// The epoll instance behind `fd`, if it is one that we know.
#[inline(always)]
pub(crate) fn epoll(fd: c_int) -> Option<ObjectRef> {
    let raw = raw(fd);
    (raw & KIND == EPOLL).then_some(ObjectRef((raw & ADDRESS) as usize))
}

/// Whether `fd` is a name of that very connection.
pub(crate) fn is_named(fd: c_int, s: &Socket, g: u16) -> bool {
    socket(fd).is_some_and(|(named, h)| core::ptr::eq(named, s) && h == g)
}

pub(crate) fn encode(entry: Entry) -> u64 {
    match entry {
        Entry::None => 0,
        Entry::Fresh(reason) => FRESH | ((reason & REASON) as u64) << 8,
        Entry::Listener(reason) => LISTENER | (reason as u64) << 8,
        Entry::Socket(s, g) => SOCKET | (s as *const Socket as u64 & ADDRESS) | (g as u64) << 48,
        Entry::Epoll(e) => EPOLL | (e.0 as u64 & ADDRESS),
        Entry::Ring(r) => RING | (r.0 as u64 & ADDRESS),
        Entry::Internal => INTERNAL,
        Entry::Marked(connector) => MARKED | u64::from(connector) << 8,
    }
}

/// Sets the entry and returns what was there.
pub(crate) fn set(fd: c_int, entry: Entry) -> Entry {
    decode(put(fd, entry))
}

/// As [`set`]: the word that was there.
#[inline]
pub(crate) fn put(fd: c_int, entry: Entry) -> u64 {
    if !matches!(entry, Entry::None | Entry::Internal) && (fd as u32 as usize) < CAPACITY {
        crate::faults::arm();
    }
    fd_words::set(fd, encode(entry))
}

/// `fd` is a stream socket that was made just now, with SOCK_NONBLOCK or without.
#[inline]
pub(crate) fn put_fresh(fd: c_int, reason: u32, nonblock: bool) {
    if (fd as u32 as usize) < CAPACITY {
        crate::faults::arm();
    }
    let nonblock = if nonblock { NONBLOCK } else { 0 };
    fd_words::set(fd, encode(Entry::Fresh(reason)) | nonblock);
}

/// Whether a fresh socket has O_NONBLOCK, as far as is known.
pub(crate) fn is_nonblock(fd: c_int) -> bool {
    raw(fd) & (KIND | NONBLOCK) == FRESH | NONBLOCK
}

/// O_NONBLOCK of a fresh socket was set, or taken away. Another thread may change its entry
/// meanwhile: then that is not known of it.
pub(crate) fn set_nonblock(fd: c_int, on: bool) {
    let old = raw(fd);
    if old & KIND == FRESH {
        let new = if on { old | NONBLOCK } else { old & !NONBLOCK };
        let _ = fd_words::replace(fd, old, new);
    }
}

/// Puts `entry` in the place of `raw`; false if something else stands there.
pub(crate) fn replace(fd: c_int, raw: u64, entry: Entry) -> bool {
    fd_words::replace(fd, raw, encode(entry))
}

/// Marks a Fresh or Listener socket as never to be accelerated.
pub(crate) fn refuse(fd: c_int, why: Reason) {
    match get(fd) {
        Entry::Fresh(_) => drop(set(fd, Entry::Fresh(why as u32))),
        Entry::Listener(_) => drop(set(fd, Entry::Listener(why as u32))),
        Entry::Socket(s, _) if s.is(State::Unconnected) => s.refuse(why),
        _ => {}
    }
}

/// A fresh socket may begin to connect at that moment (0: has not, after all). Another thread may
/// change its entry meanwhile: then not.
pub(crate) fn set_began(fd: c_int, ns: u64) {
    let old = raw(fd);
    match current(decode(old)) {
        entry @ Entry::Fresh(_) => {
            let new = encode(entry) | old & NONBLOCK | (ns / 1_000_000) << BEGAN;
            let _ = fd_words::replace(fd, old, new);
        }
        Entry::Socket(s, _) if s.is(State::Unconnected) => s.syn.set_began(ns),
        _ => {}
    }
}

/// When a fresh socket began to connect, to the millisecond before; 0: not seen.
pub(crate) fn began(fd: c_int) -> u64 {
    let raw = raw(fd);
    match current(decode(raw)) {
        Entry::Fresh(_) => (raw >> BEGAN) * 1_000_000,
        Entry::Socket(s, _) if s.is(State::Unconnected) => s.syn.began(),
        _ => 0,
    }
}

/// Calls `f` for every entry of the application's, lowest number first.
pub(crate) fn for_each(mut f: impl FnMut(c_int, Entry)) {
    fd_words::walk(0, high_water(), |fd, raw| f(fd, current(decode(raw))));
}

/// As [`for_each`], then for the library's own.
pub(crate) fn for_each_all(mut f: impl FnMut(c_int, Entry)) {
    let mut each = |fd, raw| f(fd, current(decode(raw)));
    fd_words::walk(0, high_water(), &mut each);
    fd_words::walk(high_water(), fd_words::internal_high_water(), each);
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::sys;

    #[test]
    fn a_fresh_socket_is_known_not_to_wait() {
        crate::testing::init();
        // (Other tests' walks over the table are as short as they were.)
        assert!(crate::testing::alone_in_child(|| {
            let fd = CAPACITY as c_int - 1;
            let made = |flags| {
                let ty = libc::SOCK_STREAM | flags;
                crate::api::on_socket(fd, libc::AF_INET, ty, 0);
                set_began(fd, 5_000_000);
                (is_nonblock(fd), began(fd), matches!(get(fd), Entry::Fresh(_)))
            };
            made(libc::SOCK_NONBLOCK) == (true, 5_000_000, true)
                && made(libc::SOCK_CLOEXEC) == (false, 5_000_000, true)
        }));
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn a_connection_has_what_was_set_of_its_socket_before() {
        use crate::api;
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::AsRawFd;
        crate::testing::init();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_be_bytes();
        let fcntl = |fd, flags: c_int| api::fcntl(fd, libc::F_SETFL, flags as usize);
        let ioctl = |fd, on: c_int| {
            let request = libc::FIONBIO as usize;
            // SAFETY: FIONBIO takes a pointer to an int.
            let r = unsafe { api::ioctl(fd, request, &raw const on as usize) };
            if r == api::PASS { sys::ioctl(fd, request, &raw const on as usize) } else { r }
        };
        let ways: [(&dyn Fn(c_int) -> isize, bool); 4] = [
            (&|fd| fcntl(fd, libc::O_NONBLOCK), true),
            (&|fd| fcntl(fd, libc::O_NONBLOCK) + fcntl(fd, 0), false),
            (&|fd| ioctl(fd, 1), true),
            (&|fd| ioctl(fd, 1) + ioctl(fd, 0), false),
        ];
        for (way, is_nonblock) in ways {
            let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0) as c_int;
            api::on_socket(fd, libc::AF_INET, libc::SOCK_STREAM, 0);
            assert_eq!(way(fd), 0);
            let [a, b] = port;
            let to = [libc::AF_INET as u8, 0, a, b, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
            let r = sys::connect(fd, &to) as c_int;
            // SAFETY: an address of sixteen bytes.
            unsafe { api::on_connect(fd, to.as_ptr().cast(), 16, r) };
            let (s, _) = socket(fd).unwrap();
            assert_eq!(s.has(crate::socket::flag::NONBLOCK), is_nonblock);
            let peer: TcpStream = listener.accept().unwrap().0;
            assert!(peer.as_raw_fd() >= 0 && api::close(fd) == 0);
        }
    }

    #[test]
    fn a_number_beyond_the_table_is_not_followed() {
        /// (docs/manual/limits.md)
        const NUMBERS: c_int = 1_048_576;
        crate::testing::init();
        // (Other tests' walks over the table are as short as they were.)
        assert!(crate::testing::alone_in_child(|| {
            let is_known = |fd| {
                crate::api::on_socket(fd, libc::AF_INET, libc::SOCK_STREAM, 0);
                matches!(get(fd), Entry::Fresh(_))
            };
            is_known(NUMBERS - 1) && !is_known(NUMBERS) && !is_known(c_int::MAX)
        }));
    }
}
