//! io_uring, as far as it can be seen: rings that a program makes and enters through libc's
//! `syscall`.
//!
//! The entries of a ring are read before the kernel gets them, by a mapping of the library's own.
//! An `IORING_OP_EPOLL_CTL` on a socket of ours is carried out here, and becomes an entry that the
//! kernel completes with the same result: libuv keeps its sets so. Whatever else a ring does with a
//! socket of ours needs the kernel's path, and that socket goes there first, for good.
//!
//! What a ring is told past us cannot be followed: a kernel thread that takes the entries (SQPOLL),
//! registered descriptors, a duplicate of the ring's descriptor, another process. Then all sockets
//! of the process, those to come too, are the kernel's.
//!
//! liburing makes its system calls itself, but programs call *it*: where it is a library of its
//! own, its functions that hand entries to the kernel are hooked, and `struct io_uring` says which
//! ([`Liburing`]). It is the program's own memory, so none of the above needs an exception: an
//! inherited ring, a kernel thread, registered descriptors. What is linked into a program, or
//! called by a pointer that `dlsym` found, is not seen.

mod abi;
mod receive;

use crate::fd_table::{self, Entry, ObjectRef};
use crate::lock::Mutex;
use crate::outcome::{PASS, Ret};
use crate::{config, epoll, heap, io, numbers, process, sys, unconnected};
use abi::{
    BUFFER_SELECT, DEPENDS, DRAIN, FIXED_FILE, FOLLOWED, FOLLOWED_OF_LIBURING, HARMLESS_REGISTER,
    LINKS, OFF_SQ_RING, OFF_SQES, OP_ACCEPT, OP_CLOSE, OP_EPOLL_CTL, OP_EPOLL_WAIT,
    OP_FILES_UPDATE, OP_NOP, OP_OPENAT, OP_POLL_ADD, OP_READ, OP_READ_FIXED, OP_READ_MULTISHOT,
    OP_READV, OP_RECV, OP_RECV_ZC, OP_RECVMSG, OP_SENDMSG, OP_SENDMSG_ZC, OP_SPLICE, OP_TEE,
    OP_TIMEOUT_REMOVE, OP_WRITE, SETUP_NO_SQARRAY, SPLICE_FD_IN_FIXED, Sqe,
};
pub use abi::{Liburing, Params};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use libc::epoll_event;
use netacc_control::config::IoUring;
use netacc_control::stats::Reason;

/// A submission queue as the library has mapped it.
struct View {
    ring: *mut u8,
    ring_bytes: usize,
    sqes: *mut u8,
    entries: u32,
    head: usize,
    tail: usize,
    array: Option<usize>,
}
// SAFETY: the mappings are the process's; the mutex around the view hands them to one thread at a
// time.
unsafe impl Send for View {}

/// The ring that an entry of the table names.
pub(crate) fn at(object: ObjectRef) -> &'static Ring {
    // SAFETY: entries of that kind are made of references to rings, which are never freed.
    unsafe { &*(object.address() as *const Ring) }
}

/// A ring of this process. Type-stable: never freed, reused through a pool.
pub(crate) struct Ring {
    owner: AtomicU32,
    view: Mutex<Option<View>>,
}

static POOL: Mutex<Vec<&'static Ring>> = Mutex::new(Vec::new());

/// A call that is about to be made closes `fd` as well.
pub(crate) fn closed_by_kernel(fd: c_int) {
    let raw = fd_table::raw(fd);
    if raw == 0 || !fd_table::take(fd, raw) {
        return;
    }
    match fd_table::decode(raw) {
        Entry::Socket(s, g) => {
            epoll::forget(s, g, fd);
            let _ = io::close(s, g, fd, false);
        }
        Entry::Epoll(e) => epoll::on_close(epoll::at(e), fd),
        Entry::Ring(ring) => on_close(at(ring)),
        _ => {}
    }
}

/// `io_uring_setup` is about to be called.
pub(crate) fn before_setup() -> Ret {
    let config = config::get();
    let refuses =
        process::started() && config.accelerate_by_default && config.io_uring == IoUring::Refuse;
    if refuses { -(libc::ENOSYS as Ret) } else { PASS }
}

/// `io_uring_setup` has made the ring `fd`.
pub(crate) fn on_setup(fd: c_int, params: &Params) {
    if !process::started() {
        return;
    }
    io::on_ring();
    let followed = params.flags & !FOLLOWED == 0 && config::get().io_uring == IoUring::Follow;
    let Some(view) = followed.then(|| View::of(fd, params)).flatten() else {
        io::lose_sight();
        return;
    };
    let pooled = POOL.lock().pop();
    let Some(ring) =
        pooled.or_else(|| heap::leak(Ring { owner: AtomicU32::new(0), view: Mutex::new(None) }))
    else {
        view.unmap();
        io::lose_sight();
        return;
    };
    *ring.view.lock() = Some(view);
    ring.owner.store(process::id(), Release);
    fd_table::set(fd, Entry::Ring(ObjectRef::of(ring)));
}

/// The ring's descriptor is about to be closed. (Our mapping would keep the ring alive.)
pub(crate) fn on_close(ring: &'static Ring) {
    if ring.owner.load(Acquire) != process::id() {
        // A forked child has the descriptor, not the mapping.
        return;
    }
    let Some(mut guard) = ring.view.lock_unless_mine() else { return };
    let view = guard.take();
    drop(guard);
    if let Some(view) = view {
        view.unmap();
        let mut pool = POOL.lock();
        if pool.try_reserve(1).is_ok() {
            pool.push(ring);
        }
    }
}

/// `io_uring_register` is about to be called.
pub(crate) fn before_register(opcode: u32) {
    if !HARMLESS_REGISTER.contains(&opcode) && process::started() {
        io::lose_sight();
    }
}

/// `io_uring_enter` is about to be called.
pub(crate) fn before_enter(fd: c_int, to_submit: u32) {
    if to_submit == 0 || unconnected::all_refused() || !process::started() {
        return;
    }
    let Entry::Ring(ring) = fd_table::get(fd) else {
        io::lose_sight();
        return;
    };
    let ring = at(ring);
    if ring.owner.load(Acquire) != process::id() {
        io::lose_sight();
        return;
    }
    let Some(guard) = ring.view.lock_unless_mine() else { return };
    if let Some(view) = guard.as_ref() {
        view.follow(to_submit);
    }
}

/// liburing is about to hand what is new in the ring to the kernel.
///
/// # Safety
/// `ring` is what the application gives liburing.
pub(crate) unsafe fn before_liburing_submit(ring: *const Liburing) {
    // SAFETY: the caller's promise; liburing reads it next.
    let r = unsafe { ring.read() };
    if r.sqe_tail == r.sqe_head || unconnected::all_refused() || !process::started() {
        return;
    }
    io::on_ring();
    if r.flags & !FOLLOWED_OF_LIBURING != 0 || config::get().io_uring == IoUring::Leave {
        io::lose_sight();
        return;
    }
    // SAFETY: as above.
    unsafe { r.follow() };
}

/// liburing is about to register descriptors with a ring: entries name them by their index from
/// then on.
///
/// # Safety
/// `fds` are `count` numbers that the application gives liburing.
pub(crate) unsafe fn before_liburing_files(fds: *const c_int, count: u32) {
    if unconnected::all_refused() || !process::started() {
        return;
    }
    io::on_ring();
    for n in 0..count as usize {
        // SAFETY: the caller's promise; the address may be anything all the same.
        match unsafe { crate::user::read(fds.wrapping_add(n)) } {
            Some(fd) => uses(fd),
            None => return,
        }
    }
}

impl View {
    /// Maps the submission queue of the ring `fd`.
    fn of(fd: c_int, params: &Params) -> Option<View> {
        let entries = params.sq_entries;
        let array = (params.flags & SETUP_NO_SQARRAY == 0).then_some(params.array as usize);
        let indices = array.map_or(0, |array| array + entries as usize * size_of::<u32>());
        let ring_bytes = indices.max(params.head.max(params.tail) as usize + size_of::<u32>());
        let view = View {
            ring: sys::map_ring(fd, ring_bytes, OFF_SQ_RING),
            ring_bytes,
            sqes: sys::map_ring(fd, entries as usize * size_of::<Sqe>(), OFF_SQES),
            entries,
            head: params.head as usize,
            tail: params.tail as usize,
            array,
        };
        if !entries.is_power_of_two() || view.ring.is_null() || view.sqes.is_null() {
            view.unmap();
            return None;
        }
        Some(view)
    }

    fn unmap(self) {
        for (at, len) in
            [(self.ring, self.ring_bytes), (self.sqes, self.entries as usize * size_of::<Sqe>())]
        {
            if !at.is_null() {
                // SAFETY: mapped by `of`, and used under the mutex that the caller has taken the
                // view out of.
                unsafe { sys::unmap(at, len) };
            }
        }
    }

    /// A word of the ring.
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `of` has mapped the words at the offsets that it was given, which the kernel has
        // aligned; others write them too, so they are atomic here.
        unsafe { &*self.ring.add(offset).cast::<AtomicU32>() }
    }

    /// Looks at the entries that the kernel takes next, at most `to_submit`.
    fn follow(&self, to_submit: u32) {
        let head = self.word(self.head).load(Relaxed);
        let there = self.word(self.tail).load(Acquire).wrapping_sub(head);
        let mut seen = Seen { files: false, linked: false, drained: false };
        for n in 0..there.min(to_submit).min(self.entries) {
            let mut index = head.wrapping_add(n) & (self.entries - 1);
            if let Some(array) = self.array {
                index = self.word(array + index as usize * size_of::<u32>()).load(Relaxed);
            }
            if index >= self.entries {
                continue;
            }
            // SAFETY: below the number of entries that are mapped; the application, which submits
            // them, writes none meanwhile.
            let at = unsafe { self.sqes.cast::<Sqe>().add(index as usize) };
            // SAFETY: as above; all bits are a valid entry.
            let entry = unsafe { at.read_volatile() };
            if let Some(instead) = follow(entry, seen) {
                // SAFETY: as above.
                unsafe { at.write_volatile(instead) };
            }
            seen.goes_on(entry);
        }
    }
}

/// What is known of an entry besides.
#[derive(Clone, Copy)]
struct Seen {
    /// Descriptors were seen when they were registered with the ring, so none of those is a socket
    /// of ours.
    files: bool,
    /// It comes behind the one before it, perhaps only if that succeeds.
    linked: bool,
    /// It comes behind all before it.
    drained: bool,
}

impl Seen {
    /// Behind this entry of the batch.
    fn goes_on(&mut self, entry: Sqe) {
        self.linked = entry.flags & LINKS != 0;
        self.drained |= entry.flags & DRAIN != 0;
    }
}

/// What one entry means for the sockets of ours; the entry that the kernel gets instead, if it is
/// another.
fn follow(entry: Sqe, seen: Seen) -> Option<Sqe> {
    let is_index = entry.flags & FIXED_FILE != 0;
    let unclear = match entry.opcode {
        OP_EPOLL_CTL => entry.flags & (FIXED_FILE | DEPENDS) != 0,
        OP_FILES_UPDATE => true,
        _ => is_index && !seen.files,
    };
    if unclear {
        io::lose_sight();
        return None;
    }
    match entry.opcode {
        // (The kernel refuses such a one before it looks any further.)
        OP_EPOLL_CTL
            if entry.buf_index != 0
                || entry.splice_fd_in != 0
                || entry.flags & BUFFER_SELECT != 0 =>
        {
            None
        }
        OP_EPOLL_CTL => {
            let (op, fd, event) =
                (entry.len as c_int, entry.off as c_int, entry.addr as *mut epoll_event);
            // SAFETY: the arguments that the application gives the kernel.
            completes_with(entry, unsafe { epoll::ctl(entry.fd, op, fd, event) })
        }
        // (Of a registered one.)
        OP_CLOSE if entry.splice_fd_in != 0 => None,
        OP_CLOSE => {
            if let Entry::Internal = fd_table::get(entry.fd) {
                return Some(Sqe { fd: -1, ..entry });
            }
            closed_by_kernel(entry.fd);
            None
        }
        OP_SPLICE | OP_TEE => {
            if !is_index {
                uses(entry.fd);
            }
            if entry.op_flags & SPLICE_FD_IN_FIXED == 0 {
                uses(entry.splice_fd_in);
                io::hand_on(entry.splice_fd_in, Reason::IoUring, || false);
            } else if !seen.files {
                io::lose_sight();
            }
            None
        }
        // Connections come to a listener of ours by the kernel ([`io::on_ring`]).
        OP_POLL_ADD | OP_ACCEPT
            if !is_index && matches!(fd_table::get(entry.fd), Entry::Listener(_)) =>
        {
            None
        }
        // What is not the kernel's yet it would report as the library's.
        OP_EPOLL_WAIT => match fd_table::get(entry.fd) {
            Entry::Epoll(e) if !epoll::leave_to_kernel(epoll::at(e)) => {
                completes_with(entry, -(libc::EINVAL as Ret))
            }
            _ => None,
        },
        OP_POLL_ADD | OP_READ | OP_READ_FIXED | OP_READV | OP_READ_MULTISHOT | OP_RECV
        | OP_RECVMSG | OP_RECV_ZC
            if !is_index =>
        {
            receive::receive(entry, seen.linked || seen.drained)
        }
        OP_SENDMSG | OP_SENDMSG_ZC => {
            if !is_index {
                uses(entry.fd);
            }
            // SAFETY: the message that the application gives the kernel.
            unsafe { io::before_passing(entry.addr as *const libc::msghdr) };
            None
        }
        _ => {
            if !is_index {
                uses(entry.fd);
            }
            None
        }
    }
}

/// The kernel is about to use the descriptor past us, in whatever way.
fn uses(fd: c_int) {
    uses_by(fd, io::need_kernel_both_ways);
}

/// Only to receive, or to wait.
fn receives(fd: c_int) {
    uses_by(fd, io::need_kernel);
}

fn uses_by(fd: c_int, need_kernel: impl FnOnce(c_int, Reason)) {
    match fd_table::get(fd) {
        Entry::Socket(..) | Entry::Fresh(_) | Entry::Listener(_) => {
            need_kernel(fd, Reason::IoUring)
        }
        Entry::Epoll(e) => _ = epoll::leave_to_kernel(epoll::at(e)),
        _ => {}
    }
}

/// An entry that the kernel completes with the result of a call that was carried out here. `None`:
/// the kernel carries it out, or finds the same error.
fn completes_with(entry: Sqe, result: Ret) -> Option<Sqe> {
    const ENOENT: Ret = -(libc::ENOENT as Ret);
    const EINVAL: Ret = -(libc::EINVAL as Ret);
    const EBADF: Ret = -(libc::EBADF as Ret);
    const EFAULT: Ret = -(libc::EFAULT as Ret);
    let other = |opcode: u8| Sqe {
        opcode,
        flags: entry.flags,
        user_data: entry.user_data,
        ..Sqe::default()
    };
    match result {
        0 => Some(other(OP_NOP)),
        // There is no such timeout.
        ENOENT => Some(Sqe { addr: nobody(), ..other(OP_TIMEOUT_REMOVE) }),
        EINVAL => Some(Sqe { buf_index: 1, ..entry }),
        EBADF => Some(Sqe { fd: -1, ..entry }),
        // (A name that cannot be read.)
        EFAULT => Some(Sqe { fd: -1, addr: 8, ..other(OP_OPENAT) }),
        1.. => {
            let fd = null_device()?;
            Some(Sqe {
                fd,
                len: result as u32,
                flags: entry.flags & !FIXED_FILE,
                ..other(OP_WRITE)
            })
        }
        _ => None,
    }
}

/// `/dev/null`: a write of n bytes to it, from wherever, has the result n.
fn null_device() -> Option<c_int> {
    static FD: AtomicI32 = AtomicI32::new(-1);
    let known = FD.load(Acquire);
    if known >= 0 {
        return Some(known);
    }
    let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let mut new = numbers::make(|| sys::open(b"/dev/null\0", flags, 0));
    // (In another root that may be any file.)
    let is_it = |status: libc::stat| {
        status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == libc::makedev(1, 3)
    };
    if new >= 0 && !sys::status(new).is_some_and(is_it) {
        fd_table::close_internal(new);
        new = -1;
    }
    match FD.compare_exchange(-1, new.max(-1), AcqRel, Acquire) {
        Ok(_) if new >= 0 => Some(new),
        Ok(_) => None,
        Err(other) => {
            if new >= 0 {
                fd_table::close_internal(new);
            }
            Some(other)
        }
    }
}

/// A number that no entry of the application's has as its `user_data`.
fn nobody() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let known = NUMBER.load(Relaxed);
    if known != 0 {
        return known;
    }
    let mut bytes = [0; 8];
    sys::random(&mut bytes);
    let new = u64::from_ne_bytes(bytes) | 1;
    NUMBER.compare_exchange(0, new, Relaxed, Relaxed).map_or_else(|other| other, |_| new)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests;
