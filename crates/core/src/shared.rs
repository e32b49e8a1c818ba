//! Which memory of this process a forked child shares with it (`docs/design/memory.md`): all of it
//! stands here, so that a child can give it up ([`crate::rights`]).
//!
//! The list itself is private memory. Nobody forks between a mapping and its entry: a child has
//! both, or neither.

use crate::{process, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// What is to become of a mapping that is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads as zeros from then on.
    Bytes,
    /// Sockets: those who come late have to find that theirs is gone
    /// (`socket::give_up_slab`).
    Sockets,
}

/// Of an entry's word, whose mapping begins at a page: it is of before the fork that this process
/// comes from; it holds sockets.
const INHERITED: usize = 1;
const SOCKETS: usize = 2;
const MARKS: usize = INHERITED | SOCKETS;

struct Entry {
    /// 0: none.
    at: AtomicUsize,
    bytes: AtomicUsize,
}

const CAPACITY: usize = 16384;
static LIST: [Entry; CAPACITY] =
    [const { Entry { at: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; CAPACITY];
/// No entry from here on was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

fn entries() -> impl Iterator<Item = &'static Entry> {
    LIST.iter().take(USED.load(Acquire))
}

/// Maps `bytes` of `fd`, or, `fd` -1, of nothing, and notes that. Null when refused.
pub(crate) fn map(fd: c_int, bytes: usize, kind: Kind) -> *mut u8 {
    let noted = || {
        let at = sys::map_shared(fd, bytes);
        if at.is_null() || add(at, bytes, kind) {
            return at;
        }
        // SAFETY: mapped just now.
        unsafe { sys::unmap(at, bytes) };
        core::ptr::null_mut()
    };
    process::while_nobody_forks(noted).unwrap_or(core::ptr::null_mut())
}

/// Maps `fd` over `at`, and notes that. False: refused; what is there then is whatever was before,
/// or nothing.
///
/// # Safety
/// As of [`sys::map_over`].
pub(crate) unsafe fn map_over(at: *mut u8, fd: c_int, bytes: usize) -> bool {
    let noted = || {
        // SAFETY: the caller's promise.
        let done = add(at, bytes, Kind::Bytes) && unsafe { sys::map_over(at, fd, bytes) };
        if !done {
            remove(at);
        }
        done
    };
    process::while_nobody_forks(noted).unwrap_or(false)
}

/// Notes a mapping of this process's own. False: there is no room for it, and nobody could give it
/// up: it must not be used.
fn add(at: *mut u8, bytes: usize, kind: Kind) -> bool {
    let word = at as usize | if kind == Kind::Sockets { SOCKETS } else { 0 };
    // (What is mapped over an inherited one is this process's.)
    if let Some(old) = entries().find(|e| e.at.load(Acquire) & !MARKS == at as usize) {
        old.bytes.store(bytes, Relaxed);
        old.at.store(word, Release);
        return true;
    }
    for (i, e) in LIST.iter().enumerate() {
        if e.at.load(Relaxed) == 0 && e.at.compare_exchange(0, word, AcqRel, Relaxed).is_ok() {
            e.bytes.store(bytes, Release);
            USED.fetch_max(i + 1, AcqRel);
            return true;
        }
    }
    false
}

/// A mapping is about to go.
pub(crate) fn remove(at: *mut u8) {
    for e in entries() {
        let word = e.at.load(Acquire);
        if word & !MARKS == at as usize && e.at.compare_exchange(word, 0, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// All of it is the parent's, or an older one's. True: there is some.
pub(crate) fn after_fork_in_child() -> bool {
    let mut some = false;
    for e in entries().filter(|e| e.at.load(Relaxed) != 0) {
        e.at.fetch_or(INHERITED, Relaxed);
        some = true;
    }
    some
}

/// Puts private memory in the place of all that was inherited. Every address stays readable and
/// writable. `sockets` does it for a slab of sockets, and is told where that is and how large;
/// false: there is no memory for it.
pub(crate) fn give_up_inherited(sockets: fn(*mut u8, usize) -> bool) {
    for e in entries() {
        let word = e.at.load(Acquire);
        if word & INHERITED == 0 {
            continue;
        }
        let (at, bytes) = ((word & !MARKS) as *mut u8, e.bytes.load(Acquire));
        let private = if word & SOCKETS != 0 {
            sockets(at, bytes)
        } else {
            // SAFETY: a mapping of the parent's that this process has inherited, of this size; who
            // comes late finds zeros, which say nothing.
            unsafe { sys::map_over(at, -1, bytes) }
        };
        if !private {
            // Without memory for that: gone, rather than shared. Nobody here names it any more.
            // SAFETY: as above.
            unsafe { sys::unmap(at, bytes) };
        }
        let _ = e.at.compare_exchange(word, 0, AcqRel, Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::socket::Socket;
    use crate::testing::alone_in_child;
    use core::sync::atomic::AtomicU8;

    #[test]
    fn a_mapping_is_found_again_and_marked_once() {
        let bytes = 8192;
        let at = sys::map_shared(-1, bytes);
        assert!(add(at, bytes, Kind::Bytes));
        let find = || entries().map(|e| e.at.load(Relaxed)).find(|w| w & !MARKS == at as usize);
        assert_eq!(find(), Some(at as usize));
        // Mapped anew at the same place: one entry, and this process's own.
        for e in entries().filter(|e| e.at.load(Relaxed) == at as usize) {
            e.at.fetch_or(INHERITED, Relaxed);
        }
        assert!(add(at, bytes, Kind::Sockets));
        assert_eq!(find(), Some(at as usize | SOCKETS));
        assert_eq!(entries().filter(|e| e.at.load(Relaxed) & !MARKS == at as usize).count(), 1);
        remove(at);
        assert_eq!(find(), None);
        // SAFETY: mapped above, and used by nobody.
        unsafe { sys::unmap(at, bytes) };
    }

    #[test]
    fn a_child_gives_up_what_it_inherited_and_nothing_else() {
        let bytes = 8192_usize.next_multiple_of(size_of::<Socket>()).next_multiple_of(4096);
        let [words, slab, gone] = [Kind::Bytes, Kind::Sockets, Kind::Bytes].map(|kind| {
            let at = sys::map_shared(-1, bytes);
            assert!(add(at, bytes, kind));
            at
        });
        remove(gone);
        let byte = |at: *mut u8| {
            // SAFETY: mapped above, for ever.
            unsafe { &*at.cast::<AtomicU8>() }
        };
        // SAFETY: as above; all zero is a valid free Socket.
        let socket = unsafe { &*slab.cast::<Socket>() };
        byte(words).store(1, Relaxed);
        byte(gone).store(2, Relaxed);
        socket.generation.store(3, Relaxed);
        assert!(alone_in_child(|| {
            let some = after_fork_in_child();
            let own = sys::map_shared(-1, bytes);
            let noted = add(own, bytes, Kind::Bytes);
            byte(own).store(4, Relaxed);
            give_up_inherited(crate::socket::give_up_slab);
            // Who comes late finds that it is gone.
            let seen = (
                byte(words).load(Relaxed),
                byte(gone).load(Relaxed),
                socket.generation.load(Relaxed),
                byte(own).load(Relaxed),
            );
            byte(words).store(5, Relaxed);
            socket.generation.store(5, Relaxed);
            some && noted
                && seen == (0, 2, 4, 4)
                && entries().filter(|e| e.at.load(Relaxed) != 0).count() == 1
        }));
        // Nothing that it writes from then on is seen here.
        assert_eq!((byte(words).load(Relaxed), socket.generation.load(Relaxed)), (1, 3));
        for at in [words, slab, gone] {
            remove(at);
            // SAFETY: used by nobody any more.
            unsafe { sys::unmap(at, bytes) };
        }
    }
}
