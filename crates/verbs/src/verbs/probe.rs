//! What a device can do: by asking, and where asking does not help by trying.
//!
//! - *Inline bytes*: the limit of a device depends on everything else that a pair has, and no query
//!   tells it: pairs are created with less and less until one is granted.
//! - *Write with immediate*: part of InfiniBand's transport, optional with iWARP (RFC 7306), where
//!   no query tells it either: such a write is posted on an unconnected pair in error. A provider
//!   that does not know it refuses to post it (siw, cxgb4, irdma alike); one that does would only
//!   flush it.
//!
//! It costs a handful of objects once per device.

use super::convert::{check, error, last_errno, object};
use crate::fabric::*;
use crate::ffi::*;
use crate::load::Api;
use core::ffi::c_int;
use core::mem::zeroed;
use core::ptr::{NonNull, null_mut};

/// Sizes that are tried, largest first.
const INLINE_SIZES: [u32; 8] = [256, 192, 128, 96, 64, 48, 32, 16];

/// What a pair is created with.
pub(super) fn pair_init(cq: NonNull<ibv_cq>, capacity: Capacity) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: cq.as_ptr(),
        recv_cq: cq.as_ptr(),
        srq: null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: capacity.sends,
            max_recv_wr: capacity.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: capacity.inline_bytes,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

/// Moves a pair into a state that needs nothing but its name.
///
/// # Safety
/// `qp` lives.
pub(super) unsafe fn set_state(api: &Api, qp: *mut ibv_qp, state: c_int) -> c_int {
    // SAFETY: all zero is a valid attribute structure; it is at least as large as C's (see
    // `ffi::layout`).
    let mut attributes: QpAttr = unsafe { zeroed() };
    attributes.attr.qp_state = state;
    // SAFETY: the caller's pair; the mask says that only the state counts.
    unsafe { (api.ibv_modify_qp)(qp, &raw mut attributes.attr, IBV_QP_STATE) }
}

pub(super) fn facts(
    api: &Api,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    port: u8,
) -> Result<Facts, Error> {
    let call = Call::QueryDevice;
    // SAFETY: all zero is a valid device attribute structure.
    let mut device: ibv_device_attr = unsafe { zeroed() };
    // SAFETY: a context that lives, and a place for the result.
    check(call, unsafe { (api.ibv_query_device)(context.as_ptr(), &mut device) })?;
    // SAFETY: all zero is a valid port attribute structure.
    let mut at_port: ibv_port_attr = unsafe { zeroed() };
    // SAFETY: as above; the function knows a shorter structure with the same beginning, or this
    // one.
    check(call, unsafe { (api.ibv_query_port)(context.as_ptr(), port, &mut at_port) })?;
    // SAFETY: the context and its device live.
    let (about, vectors) =
        unsafe { ((*context.as_ptr()).device, context.as_ref().num_comp_vectors) };
    // SAFETY: as above.
    let about = unsafe { &*about };
    let transport = match about.transport_type {
        IBV_TRANSPORT_IB => Transport::Infiniband,
        IBV_TRANSPORT_IWARP => Transport::Iwarp,
        other => Transport::Other(other),
    };
    let tried = try_pair(api, context, pd, transport)?;
    // SAFETY: no arguments.
    let survives_fork =
        api.ibv_is_fork_initialized.is_some_and(|f| unsafe { f() } == IBV_FORK_UNNEEDED);
    Ok(Facts {
        transport,
        writes_imm: tried.writes_imm,
        inline_max: tried.inline_max,
        depth_max: positive(device.max_qp_wr),
        entries_max: positive(device.max_cqe),
        pairs_max: positive(device.max_qp),
        regions_max: positive(device.max_mr),
        region_bytes_max: device.max_mr_size,
        message_bytes_max: at_port.max_msg_sz,
        vectors: positive(vectors),
        active: at_port.state == IBV_PORT_ACTIVE,
        survives_fork,
        name: Name::new(about.name.iter().map(|c| *c as u8)),
    })
}

fn positive(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

struct Tried {
    inline_max: u32,
    writes_imm: bool,
}

fn try_pair(
    api: &Api,
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    transport: Transport,
) -> Result<Tried, Error> {
    let call = Call::QueryDevice;
    // SAFETY: a context that lives; no channel.
    let cq = unsafe { (api.ibv_create_cq)(context.as_ptr(), 8, null_mut(), null_mut(), 0) };
    let cq = object(call, cq)?;
    let mut granted = None;
    for inline_bytes in INLINE_SIZES.into_iter().chain([0]) {
        let capacity = Capacity { sends: 4, receives: 1, inline_bytes };
        let mut init = pair_init(cq, capacity);
        // SAFETY: domain and queue live.
        if let Some(qp) = NonNull::new(unsafe { (api.ibv_create_qp)(pd.as_ptr(), &mut init) }) {
            // Some (hns, MANA) make the pair all the same, with less or none.
            granted = Some((qp, inline_bytes.min(init.cap.max_inline_data)));
            break;
        }
    }
    let tried = granted.ok_or(error(call, last_errno())).map(|(qp, inline_max)| {
        let writes_imm = match transport {
            Transport::Infiniband => true,
            // SAFETY: the pair lives, and nobody else knows it.
            _ => unsafe { takes_imm(api, qp) },
        };
        // SAFETY: ours, and not used again.
        unsafe { (api.ibv_destroy_qp)(qp.as_ptr()) };
        Tried { inline_max, writes_imm }
    });
    // SAFETY: ours, and its pair is gone.
    unsafe { (api.ibv_destroy_cq)(cq.as_ptr()) };
    tried
}

/// Whether the provider posts a write with immediate, on a pair that is not connected.
///
/// # Safety
/// `qp` lives.
unsafe fn takes_imm(api: &Api, qp: NonNull<ibv_qp>) -> bool {
    // SAFETY: the caller's pair.
    if unsafe { set_state(api, qp.as_ptr(), IBV_QPS_ERR) } != 0 {
        return false;
    }
    // A plain write shows that the state is none that refuses everything; without that the answer
    // would mean nothing.
    // SAFETY: as above.
    unsafe { posts(qp, IBV_WR_RDMA_WRITE) && posts(qp, IBV_WR_RDMA_WRITE_WITH_IMM) }
}

/// # Safety
/// `qp` lives.
unsafe fn posts(qp: NonNull<ibv_qp>, opcode: c_int) -> bool {
    let mut wr = ibv_send_wr {
        wr_id: 0,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode,
        send_flags: IBV_SEND_SIGNALED as u32,
        imm_data: 0,
        wr: ibv_send_wr_rdma { remote_addr: 0, rkey: 0 },
        _tail: [0; 9],
    };
    let mut bad = null_mut();
    // SAFETY: the pair and its context live; the table is never written.
    let Some(post_send) = (unsafe { (*(*qp.as_ptr()).context).ops.post_send }) else {
        return false;
    };
    // SAFETY: one request without a segment.
    let r = unsafe { post_send(qp.as_ptr(), &mut wr, &mut bad) };
    r == 0 && bad.is_null()
}
