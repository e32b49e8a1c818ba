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

use crate::fd_table::{self, Entry, Place};
use crate::lock::Mutex;
use crate::outcome::{PASS, Ret};
use crate::{config, epoll, heap, io, process, sys, unconnected};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use libc::epoll_event;
use netacc_control::config::IoUring;
use netacc_control::stats::Reason;

// linux/io_uring.h
const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_CLAMP: u32 = 1 << 4;
const SETUP_ATTACH_WQ: u32 = 1 << 5;
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
const SETUP_COOP_TASKRUN: u32 = 1 << 8;
const SETUP_TASKRUN_FLAG: u32 = 1 << 9;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_CQE32: u32 = 1 << 11;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Rings that nothing but these makes special are read as described here.
const FOLLOWED: u32 = SETUP_CQSIZE
    | SETUP_CLAMP
    | SETUP_ATTACH_WQ
    | SETUP_SUBMIT_ALL
    | SETUP_COOP_TASKRUN
    | SETUP_TASKRUN_FLAG
    | SETUP_CQE32
    | SETUP_SINGLE_ISSUER
    | SETUP_DEFER_TASKRUN
    | SETUP_NO_SQARRAY;

/// The same of rings that liburing's functions show: all that Linux 6.18 has but entries of two
/// sizes.
const FOLLOWED_OF_LIBURING: u32 = (1 << 19) - 1;

/// `io_uring_register` of these tells nothing about descriptors: buffers, eventfds, probes,
/// credentials, workers.
const HARMLESS_REGISTER: [u32; 15] = [0, 1, 4, 5, 7, 8, 9, 10, 15, 16, 17, 18, 19, 22, 23];

const OFF_SQ_RING: usize = 0;
const OFF_SQES: usize = 0x1000_0000;

const OP_NOP: u8 = 0;
const OP_POLL_ADD: u8 = 6;
const OP_SENDMSG: u8 = 9;
const OP_TIMEOUT_REMOVE: u8 = 12;
const OP_ACCEPT: u8 = 13;
const OP_CLOSE: u8 = 19;
const OP_FILES_UPDATE: u8 = 20;
const OP_EPOLL_CTL: u8 = 29;
const OP_SPLICE: u8 = 30;
const OP_TEE: u8 = 33;
const OP_SENDMSG_ZC: u8 = 48;
const OP_EPOLL_WAIT: u8 = 59;

/// `IOSQE_FIXED_FILE`: its descriptor is a registered one.
const FIXED_FILE: u8 = 1;
/// `IOSQE_IO_DRAIN`, `IOSQE_IO_LINK`, `IOSQE_IO_HARDLINK`: done later, or not at all.
const DEPENDS: u8 = 1 << 1 | 1 << 2 | 1 << 3;
/// `SPLICE_F_FD_IN_FIXED`
const SPLICE_FD_IN_FIXED: u32 = 1 << 31;
/// `IOSQE_BUFFER_SELECT`
const BUFFER_SELECT: u8 = 1 << 5;

/// `struct io_uring_params`, as far as it says where the submission queue is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    rest: [u32; 7],
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    sq_flags: u32,
    dropped: u32,
    array: u32,
}
const _: () = assert!(offset_of!(Params, head) == 40 && offset_of!(Params, array) == 64);

/// `struct io_uring` of liburing 2, as far as it says what is to be submitted. (Programs have
/// inlined functions that rely on it.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Liburing {
    head_and_tail: [*const u32; 2],
    ring_mask: *const u32,
    others: [*const u32; 4],
    sqes: *mut u8,
    sqe_head: u32,
    sqe_tail: u32,
    rest: [u64; 15],
    flags: u32,
    ring_fd: c_int,
}
const _: () = assert!(offset_of!(Liburing, sqes) == 56 && offset_of!(Liburing, flags) == 192);

impl Liburing {
    /// The descriptor.
    pub fn fd(&self) -> c_int {
        self.ring_fd
    }

    /// Looks at the entries that liburing hands to the kernel next.
    ///
    /// # Safety
    /// It is a ring of liburing's that nobody else submits meanwhile.
    unsafe fn follow(&self) {
        // SAFETY: the caller's promise.
        let mask = unsafe { self.ring_mask.read_volatile() };
        let bytes = size_of::<Sqe>() << u32::from(self.flags & SETUP_SQE128 != 0);
        for n in 0..self.sqe_tail.wrapping_sub(self.sqe_head).min(mask.saturating_add(1)) {
            let at = self
                .sqes
                .wrapping_add((self.sqe_head.wrapping_add(n) & mask) as usize * bytes)
                .cast::<Sqe>();
            // SAFETY: an entry that the application has filled in, and nobody has taken yet.
            let entry = unsafe { at.read_volatile() };
            if let Some(instead) = follow(entry, true) {
                // SAFETY: as above.
                unsafe { at.write_volatile(instead) };
            }
        }
    }
}

/// `struct io_uring_sqe`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    off: u64,
    addr: u64,
    len: u32,
    op_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    splice_fd_in: i32,
    rest: [u64; 2],
}
const _: () = assert!(size_of::<Sqe>() == 64 && offset_of!(Sqe, user_data) == 32);

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
pub(crate) fn at(place: Place) -> &'static Ring {
    // SAFETY: entries of that kind are made of references to rings, which are never freed.
    unsafe { &*(place.address() as *const Ring) }
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
        Entry::Epoll(e) => epoll::on_close(epoll::at(e)),
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
    fd_table::set(fd, Entry::Ring(Place::of(ring)));
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
            if let Some(instead) = follow(entry, false) {
                // SAFETY: as above.
                unsafe { at.write_volatile(instead) };
            }
        }
    }
}

/// What one entry means for the sockets of ours; the entry that the kernel gets instead, if it is
/// another. `files_seen`: descriptors were seen when they were registered with the ring, so none of
/// those is a socket of ours.
fn follow(entry: Sqe, files_seen: bool) -> Option<Sqe> {
    let is_index = entry.flags & FIXED_FILE != 0;
    let unclear = match entry.opcode {
        OP_EPOLL_CTL => entry.flags & (FIXED_FILE | DEPENDS) != 0,
        OP_FILES_UPDATE => true,
        _ => is_index && !files_seen,
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
            } else if !files_seen {
                io::lose_sight();
            }
            None
        }
        // Connections come to a listener of ours by the kernel in any case.
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

/// The kernel is about to use the descriptor past us.
fn uses(fd: c_int) {
    match fd_table::get(fd) {
        Entry::Socket(..) | Entry::Fresh(_) | Entry::Listener(_) => {
            io::need_kernel(fd, Reason::IoUring)
        }
        Entry::Epoll(e) => epoll::bar(epoll::at(e)),
        _ => {}
    }
}

/// An entry that the kernel completes with the result of a call that was carried out here. `None`:
/// the kernel carries it out, or finds the same error.
fn completes_with(entry: Sqe, result: Ret) -> Option<Sqe> {
    const ENOENT: Ret = -(libc::ENOENT as Ret);
    const EINVAL: Ret = -(libc::EINVAL as Ret);
    const EBADF: Ret = -(libc::EBADF as Ret);
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
        _ => None,
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
mod tests {
    use super::*;

    fn ctl(op: c_int, fd: c_int) -> Sqe {
        Sqe {
            opcode: OP_EPOLL_CTL,
            flags: 1 << 4,
            fd: 1_000_000,
            off: fd as u64,
            len: op as u32,
            addr: 8192,
            user_data: 0xdead_beef,
            ..Sqe::default()
        }
    }

    #[test]
    fn an_entry_completes_with_the_result() {
        let entry = ctl(libc::EPOLL_CTL_ADD, 7);
        assert!(completes_with(entry, PASS).is_none());
        assert!(completes_with(entry, -(libc::EEXIST as Ret)).is_none());
        let done = completes_with(entry, 0).unwrap();
        assert_eq!((done.opcode, done.flags, done.user_data), (OP_NOP, 1 << 4, 0xdead_beef));
        assert_eq!((done.fd, done.off, done.addr, done.len, done.op_flags), (0, 0, 0, 0, 0));
        let none = completes_with(entry, -(libc::ENOENT as Ret)).unwrap();
        assert_eq!((none.opcode, none.user_data, none.len), (OP_TIMEOUT_REMOVE, 0xdead_beef, 0));
        assert!(none.addr != 0 && none.addr == nobody());
        assert_eq!(completes_with(entry, -(libc::EINVAL as Ret)).unwrap().buf_index, 1);
        assert_eq!(completes_with(entry, -(libc::EBADF as Ret)).unwrap().fd, -1);
    }

    #[test]
    fn what_is_not_ours_stays_as_it_is() {
        for op in [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL] {
            assert!(follow(ctl(op, 900_000), false).is_none());
        }
        assert!(follow(Sqe { opcode: OP_NOP, fd: -1, ..Sqe::default() }, false).is_none());
        assert!(follow(Sqe { opcode: OP_CLOSE, fd: 900_000, ..Sqe::default() }, false).is_none());
        // What was registered is known where it was seen.
        for opcode in [OP_NOP, OP_SENDMSG, OP_SPLICE, 27] {
            assert!(
                follow(
                    Sqe {
                        opcode,
                        flags: FIXED_FILE,
                        op_flags: SPLICE_FD_IN_FIXED,
                        ..Sqe::default()
                    },
                    true
                )
                .is_none()
            );
        }
        assert!(!unconnected::all_refused());
    }

    /// liburing's ring in ordinary memory, with entries of both sizes.
    #[test]
    fn what_liburing_submits_next_is_read() {
        let ours = 900_002;
        fd_table::set(ours, Entry::Internal);
        for (flags, step) in [(0, 1), (SETUP_SQE128, 2)] {
            let closing = Sqe { opcode: OP_CLOSE, fd: ours, ..Sqe::default() };
            let mut sqes = [closing; 8];
            let sqes = sqes.as_mut_ptr();
            let mask = 3u32;
            let mut ring = Liburing {
                head_and_tail: [core::ptr::null(); 2],
                ring_mask: &mask,
                others: [core::ptr::null(); 4],
                sqes: sqes.cast(),
                sqe_head: u32::MAX,
                sqe_tail: u32::MAX,
                rest: [0; 15],
                flags,
                ring_fd: -1,
            };
            // SAFETY: one of the entries, of which there are four times `step`.
            let fds = || [0, 1, 2, 3].map(|i| unsafe { sqes.add(i * step).read_volatile() }.fd);
            // SAFETY: a ring of four entries.
            let submit = |ring: &Liburing| unsafe { ring.follow() };
            submit(&ring);
            assert_eq!(fds(), [ours; 4]);
            ring.sqe_tail = 1;
            submit(&ring);
            assert_eq!(fds(), [-1, ours, ours, -1]);
            (ring.sqe_head, ring.sqe_tail) = (1, 1000);
            submit(&ring);
            assert_eq!(fds(), [-1; 4]);
        }
        fd_table::set(ours, Entry::None);
    }

    /// A queue in ordinary memory, with indices that a program could write.
    #[test]
    fn a_queue_is_read_as_the_kernel_reads_it() {
        let ours = 900_001;
        fd_table::set(ours, Entry::Internal);
        let mut ring = [0u32; 16];
        let mut sqes = [Sqe::default(); 4];
        let view = View {
            ring: ring.as_mut_ptr().cast(),
            ring_bytes: 64,
            sqes: sqes.as_mut_ptr().cast(),
            entries: 4,
            head: 0,
            tail: 4,
            array: Some(8),
        };
        let set = |at: usize, to: u32| view.word(at).store(to, Relaxed);
        // The head is near its overflow; the entries 6 and 7 of the application's stand in places 3
        // and 1, one index is none.
        set(0, u32::MAX);
        set(4, 3);
        for (slot, index) in [(3, 3), (0, 99), (1, 1), (2, 0)] {
            set(8 + slot * 4, index);
        }
        let closing = Sqe { opcode: OP_CLOSE, fd: ours, ..Sqe::default() };
        for i in 0..4 {
            // SAFETY: one of four.
            unsafe { view.sqes.cast::<Sqe>().add(i).write_volatile(closing) };
        }
        // SAFETY: as above.
        let fds =
            || [0, 1, 2, 3].map(|i| unsafe { view.sqes.cast::<Sqe>().add(i).read_volatile() }.fd);
        view.follow(0);
        assert_eq!(fds(), [ours; 4]);
        view.follow(3);
        assert_eq!(fds(), [ours, -1, ours, -1]);
        view.follow(100);
        assert_eq!(fds(), [-1, -1, ours, -1]);
        fd_table::set(ours, Entry::None);
    }
}
