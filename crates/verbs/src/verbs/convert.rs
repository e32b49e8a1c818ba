//! Between our values and C's: results, addresses, requests, completions.

use super::Region;
use crate::fabric::*;
use crate::ffi::*;
use crate::sys;
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::net::SocketAddr;
use core::ptr::{NonNull, null_mut};

pub(super) const fn error(call: Call, errno: c_int) -> Error {
    Error { call, errno }
}

/// `errno`, or what to say when a library forgot to set it.
pub(super) fn last_errno() -> c_int {
    match sys::errno() {
        n if n > 0 => n,
        _ => libc::EIO,
    }
}

/// The positive errno of a result that is not 0: `-1` with `errno`, `errno`, or `-errno`.
pub(super) fn errno_of(result: c_int) -> c_int {
    match result {
        -1 => last_errno(),
        c_int::MIN => libc::EIO,
        n => n.abs(),
    }
}

/// The result of a function that returns 0 when all is well.
pub(super) fn check(call: Call, result: c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(error(call, errno_of(result))) }
}

/// The result of a function that returns an object.
pub(super) fn object<T>(call: Call, at: *mut T) -> Result<NonNull<T>, Error> {
    NonNull::new(at).ok_or_else(|| error(call, last_errno()))
}

/// What became of a list of `count` requests (`step` bytes apart, from `first` on), by the result
/// and by `bad`.
pub(super) fn posted(
    result: c_int,
    bad: *mut c_void,
    first: *const c_void,
    step: usize,
    count: usize,
) -> Result<(), PostError> {
    if result == 0 && bad.is_null() {
        return Ok(());
    }
    let index = (bad as usize)
        .checked_sub(first as usize)
        .map(|distance| distance / step)
        .filter(|index| *index < count && !bad.is_null());
    match index {
        // Not refused, and nothing of ours: a provider that leaves rubbish there.
        None if result == 0 => Ok(()),
        None => Err(PostError { posted: 0, errno: errno_of(result), unknown: true }),
        Some(posted) => Err(PostError {
            posted,
            errno: if result == 0 { 0 } else { errno_of(result) },
            unknown: false,
        }),
    }
}

/// The C form of an address.
pub(super) union SockAddr {
    pub(super) any: libc::sockaddr,
    pub(super) v4: libc::sockaddr_in,
    pub(super) v6: libc::sockaddr_in6,
}

impl SockAddr {
    pub(super) fn new(address: SocketAddr) -> Self {
        // SAFETY: all zero is a valid socket address of each kind.
        let mut c: Self = unsafe { zeroed() };
        match address {
            SocketAddr::V4(a) => {
                c.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(a) => {
                c.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
            }
        }
        c
    }

    pub(super) fn as_mut(&mut self) -> *mut libc::sockaddr {
        // Every member begins at the union's address.
        &raw mut self.any
    }
}

/// The C form of a work request, its segment aside. `None`: it cannot be posted at all.
pub(super) fn request(
    work: &Work<'_, Region>,
    inline_bytes: u32,
) -> Option<(ibv_send_wr, Option<ibv_sge>)> {
    let nowhere = Remote { address: 0, key: 0 };
    let written = |from: &Option<Piece<'_, Region>>| match from {
        Some(piece) => Region::segment(piece).map(Some),
        None => Some(None),
    };
    let (opcode, segment, to, inline, imm) = match &work.action {
        Action::Write { from, to, inline } => (IBV_WR_RDMA_WRITE, written(from)?, *to, *inline, 0),
        Action::WriteImm { from, to, inline, imm } => {
            (IBV_WR_RDMA_WRITE_WITH_IMM, written(from)?, *to, *inline, *imm)
        }
        Action::Send { from } => (IBV_WR_SEND, Some(Region::segment(from)?), nowhere, false, 0),
        Action::SendInline(bytes) => {
            let segment = ibv_sge {
                addr: bytes.as_ptr() as u64,
                length: u32::try_from(bytes.len()).ok()?,
                lkey: 0,
            };
            (IBV_WR_SEND, Some(segment), nowhere, true, 0)
        }
    };
    if inline && segment.is_some_and(|s| s.length > inline_bytes) {
        return None;
    }
    let mut flags = 0;
    if work.signaled {
        flags |= IBV_SEND_SIGNALED;
    }
    if inline {
        flags |= IBV_SEND_INLINE;
    }
    let wr = ibv_send_wr {
        wr_id: work.id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: c_int::from(segment.is_some()),
        opcode,
        send_flags: flags as u32,
        imm_data: imm.to_be(),
        wr: ibv_send_wr_rdma { remote_addr: to.address, rkey: to.key },
        _tail: [0; 9],
    };
    Some((wr, segment))
}

/// What a completion says.
pub(super) fn completion(wc: &ibv_wc) -> Completion {
    let outcome = match (wc.status, wc.opcode) {
        (IBV_WC_SUCCESS, IBV_WC_RECV) => Outcome::Received(wc.byte_len),
        (IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM) => {
            Outcome::Announced(u32::from_be(wc.imm_data))
        }
        (IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE) => Outcome::Written,
        (IBV_WC_SUCCESS, _) => Outcome::Sent,
        // Of a failed one only identifier and status are valid.
        (status, _) => Outcome::Failed(match status {
            IBV_WC_WR_FLUSH_ERR => Failure::Flushed,
            IBV_WC_LOC_LEN_ERR => Failure::Length,
            IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR | IBV_WC_LOC_QP_OP_ERR => Failure::Local,
            IBV_WC_REM_ACCESS_ERR => Failure::RemoteAccess,
            IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR => Failure::RemoteOther,
            IBV_WC_RETRY_EXC_ERR => Failure::Unreachable,
            IBV_WC_RNR_RETRY_EXC_ERR => Failure::NotReady,
            other => Failure::Other(other),
        }),
    };
    Completion { id: wc.wr_id, outcome }
}
