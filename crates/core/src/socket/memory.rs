//! Where sockets live: slabs that forked children share, never unmapped, and a list of what is free
//! in them.

use super::{NONE, Socket};
use crate::path::PathList;
use crate::{carrier, config, fd_words, process, shared, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Head of the free list: address in the low 48 bits, a counter against ABA above.
static FREE_LIST: AtomicU64 = AtomicU64::new(0);
const SLAB_BYTES: usize = 256 * 1024;
const ADDRESS: u64 = (1 << 48) - 1;

/// Orphans of this process: a forked child closes its copies of their names.
pub(super) static ORPHANS: AtomicU32 = AtomicU32::new(0);

fn pop_free() -> Option<&'static Socket> {
    loop {
        let head = FREE_LIST.load(Acquire);
        // SAFETY: the list holds only sockets of slabs, which are never unmapped.
        let s = unsafe { ((head & ADDRESS) as *const Socket).as_ref() }?;
        let next = s.next_free.load(Relaxed) as u64;
        let new = (next & ADDRESS) | (head.wrapping_add(1 << 48) & !ADDRESS);
        if FREE_LIST.compare_exchange(head, new, AcqRel, Relaxed).is_ok() {
            return Some(s);
        }
    }
}

pub(super) fn push_free(s: &'static Socket) {
    loop {
        let head = FREE_LIST.load(Acquire);
        s.next_free.store((head & ADDRESS) as *mut Socket, Relaxed);
        let new = (s as *const Socket as u64 & ADDRESS) | (head.wrapping_add(1 << 48) & !ADDRESS);
        if FREE_LIST.compare_exchange(head, new, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

fn allocate() -> Option<&'static Socket> {
    if let Some(s) = pop_free() {
        return Some(s);
    }
    let slab = shared::map(-1, SLAB_BYTES, shared::Kind::Sockets);
    if slab.is_null() {
        return None;
    }
    let count = SLAB_BYTES / size_of::<Socket>();
    for i in 0..count {
        // SAFETY: within the slab just mapped; all zero is a valid free Socket (atomics, locks, and
        // cells that are written before they are read).
        push_free(unsafe { &*slab.cast::<Socket>().add(i) });
    }
    pop_free()
}

/// A socket with nothing known of it but a name.
pub(crate) fn new_socket(fd: c_int) -> Option<&'static Socket> {
    let s = allocate()?;
    s.owner.store(process::id(), Relaxed);
    s.flags.store(0, Relaxed);
    s.slot.store(u32::MAX, Relaxed);
    s.ring.store(0, Relaxed);
    s.fd.store(fd, Relaxed);
    s.channel.store(core::ptr::null_mut(), Relaxed);
    s.tx_inflight.store(0, Relaxed);
    s.rx_inflight.store(0, Relaxed);
    s.receive_timeout_ns.store(0, Relaxed);
    s.send_timeout_ns.store(0, Relaxed);
    s.kept_error.store(0, Relaxed);
    s.offered.begin();
    s.set_paths(PathList::EMPTY);
    s.refs.store(u64::from(s.generation.load(Relaxed)) << 32 | 1, Relaxed);
    s.from.store(core::ptr::null_mut(), Relaxed);
    s.pollers.store(u64::from(s.generation.load(Relaxed)) << 32, Relaxed);
    s.registrations.store(0, Relaxed);
    s.forks.store(process::forks(), Relaxed);
    s.carrier_asked.store(0, Relaxed);
    s.syn.reset();
    s.comes_until.store(0, Relaxed);
    s.fills.store(false, Relaxed);
    s.connects.store(false, Relaxed);
    for home in &s.homes {
        home.item.store(0, Relaxed);
        home.set.store(core::ptr::null_mut(), Relaxed);
    }
    s.refused.store(NONE, Relaxed);
    // (Tests differ in that.)
    if cfg!(test) || config::has_fast_connect() {
        s.life.store(0, Relaxed);
        s.listener.store(0, Relaxed);
        s.marks.store(0, Relaxed);
        s.harmless.reset();
        s.spare.store(0, Relaxed);
    }
    Some(s)
}

/// Puts memory of this process's own in the place of an inherited slab: in it every socket is free,
/// and of another generation, for those who still know it. False: there is none.
pub(crate) fn give_up_slab(slab: *mut u8, bytes: usize) -> bool {
    let new = sys::map_private(bytes);
    if new.is_null() {
        return false;
    }
    for i in 0..bytes / size_of::<Socket>() {
        // SAFETY: within the inherited slab.
        let old = unsafe { &*slab.cast::<Socket>().add(i) };
        // SAFETY: within the memory just mapped; all zero is a valid free Socket.
        let new = unsafe { &*new.cast::<Socket>().add(i) };
        new.generation.store(old.generation.load(Relaxed).wrapping_add(1), Relaxed);
    }
    // SAFETY: both are whole mappings of `bytes`; what stood there is the parent's, and named by
    // nobody here.
    unsafe { sys::move_over(new, slab, bytes) }
}

/// The parent's free sockets are the parent's to give out.
pub(crate) fn after_fork_in_child() {
    FREE_LIST.store(0, Release);
    if ORPHANS.swap(0, Relaxed) != 0 {
        // Their carriers would stay open for as long as this process lives.
        let mut raw = [0u8; 128];
        fd_words::for_each_internal(|fd| {
            let len = sys::socket_name(fd, false, &mut raw);
            if carrier::address(&raw, len).is_some() {
                fd_words::close_internal(fd);
            }
        });
    }
}
