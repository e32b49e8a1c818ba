//! What the kernel and liburing have laid down: numbers and structures.

use super::{Seen, follow};
use core::ffi::c_int;
use core::mem::offset_of;

// linux/io_uring.h
pub(super) const SETUP_CQSIZE: u32 = 1 << 3;
pub(super) const SETUP_CLAMP: u32 = 1 << 4;
pub(super) const SETUP_ATTACH_WQ: u32 = 1 << 5;
pub(super) const SETUP_SUBMIT_ALL: u32 = 1 << 7;
pub(super) const SETUP_COOP_TASKRUN: u32 = 1 << 8;
pub(super) const SETUP_TASKRUN_FLAG: u32 = 1 << 9;
pub(super) const SETUP_SQE128: u32 = 1 << 10;
pub(super) const SETUP_CQE32: u32 = 1 << 11;
pub(super) const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
pub(super) const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
pub(super) const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Rings that nothing but these makes special are read as described here.
pub(super) const FOLLOWED: u32 = SETUP_CQSIZE
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
pub(super) const FOLLOWED_OF_LIBURING: u32 = (1 << 19) - 1;

/// `io_uring_register` of these tells nothing about descriptors: buffers, eventfds, probes,
/// credentials, workers.
pub(super) const HARMLESS_REGISTER: [u32; 15] =
    [0, 1, 4, 5, 7, 8, 9, 10, 15, 16, 17, 18, 19, 22, 23];

pub(super) const OFF_SQ_RING: usize = 0;
pub(super) const OFF_SQES: usize = 0x1000_0000;

pub(super) const OP_NOP: u8 = 0;
pub(super) const OP_READV: u8 = 1;
pub(super) const OP_READ_FIXED: u8 = 4;
pub(super) const OP_POLL_ADD: u8 = 6;
pub(super) const OP_SENDMSG: u8 = 9;
pub(super) const OP_RECVMSG: u8 = 10;
pub(super) const OP_TIMEOUT_REMOVE: u8 = 12;
pub(super) const OP_ACCEPT: u8 = 13;
pub(super) const OP_CLOSE: u8 = 19;
pub(super) const OP_FILES_UPDATE: u8 = 20;
pub(super) const OP_OPENAT: u8 = 18;
pub(super) const OP_READ: u8 = 22;
pub(super) const OP_WRITE: u8 = 23;
pub(super) const OP_RECV: u8 = 27;
pub(super) const OP_EPOLL_CTL: u8 = 29;
pub(super) const OP_SPLICE: u8 = 30;
pub(super) const OP_TEE: u8 = 33;
pub(super) const OP_SENDMSG_ZC: u8 = 48;
pub(super) const OP_READ_MULTISHOT: u8 = 49;
pub(super) const OP_RECV_ZC: u8 = 58;
pub(super) const OP_EPOLL_WAIT: u8 = 59;

/// `IOSQE_FIXED_FILE`: its descriptor is a registered one.
pub(super) const FIXED_FILE: u8 = 1;
/// `IOSQE_IO_DRAIN`, `IOSQE_IO_LINK`, `IOSQE_IO_HARDLINK`: done later, or not at all.
pub(super) const DEPENDS: u8 = 1 << 1 | 1 << 2 | 1 << 3;
/// `IOSQE_IO_DRAIN`: this entry, and those behind it, when all before it have ended.
pub(super) const DRAIN: u8 = 1 << 1;
/// `IOSQE_IO_LINK`, `IOSQE_IO_HARDLINK`: the next entry behind this one.
pub(super) const LINKS: u8 = 1 << 2 | 1 << 3;
/// `SPLICE_F_FD_IN_FIXED`
pub(super) const SPLICE_FD_IN_FIXED: u32 = 1 << 31;
/// `IOSQE_BUFFER_SELECT`
pub(super) const BUFFER_SELECT: u8 = 1 << 5;

/// `struct io_uring_params`, as far as it says where the submission queue is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub(super) sq_entries: u32,
    pub(super) cq_entries: u32,
    pub(super) flags: u32,
    pub(super) rest: [u32; 7],
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) ring_mask: u32,
    pub(super) ring_entries: u32,
    pub(super) sq_flags: u32,
    pub(super) dropped: u32,
    pub(super) array: u32,
}
const _: () = assert!(offset_of!(Params, head) == 40 && offset_of!(Params, array) == 64);

/// `struct io_uring` of liburing 2, as far as it says what is to be submitted. (Programs have
/// inlined functions that rely on it.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Liburing {
    pub(super) head_and_tail: [*const u32; 2],
    pub(super) ring_mask: *const u32,
    pub(super) others: [*const u32; 4],
    pub(super) sqes: *mut u8,
    pub(super) sqe_head: u32,
    pub(super) sqe_tail: u32,
    pub(super) rest: [u64; 15],
    pub(super) flags: u32,
    pub(super) ring_fd: c_int,
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
    pub(super) unsafe fn follow(&self) {
        // SAFETY: the caller's promise.
        let mask = unsafe { self.ring_mask.read_volatile() };
        let bytes = size_of::<Sqe>() << u32::from(self.flags & SETUP_SQE128 != 0);
        let mut seen = Seen { files: true, linked: false, drained: false };
        for n in 0..self.sqe_tail.wrapping_sub(self.sqe_head).min(mask.saturating_add(1)) {
            let at = self
                .sqes
                .wrapping_add((self.sqe_head.wrapping_add(n) & mask) as usize * bytes)
                .cast::<Sqe>();
            // SAFETY: an entry that the application has filled in, and nobody has taken yet.
            let entry = unsafe { at.read_volatile() };
            if let Some(instead) = follow(entry, seen) {
                // SAFETY: as above.
                unsafe { at.write_volatile(instead) };
            }
            seen.goes_on(entry);
        }
    }
}

/// `struct io_uring_sqe`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sqe {
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) ioprio: u16,
    pub(super) fd: i32,
    pub(super) off: u64,
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) op_flags: u32,
    pub(super) user_data: u64,
    pub(super) buf_index: u16,
    pub(super) personality: u16,
    pub(super) splice_fd_in: i32,
    pub(super) rest: [u64; 2],
}
const _: () = assert!(size_of::<Sqe>() == 64 && offset_of!(Sqe, user_data) == 32);
