//! The C side: the types and constants of libibverbs and librdmacm that this crate uses, as their
//! headers lay them out.
//!
//! Written down by hand, because neither library may be linked and neither header be needed to
//! build. They have not changed since libibverbs' ABI 1.1 and librdmacm's 1.0 (`struct ibv_context`
//! carries the operations of the data path as function pointers, so its layout is part of that
//! ABI). `layout` (in this module's tests) compares every size, offset and constant with the
//! installed headers.
//!
//! Nothing here does anything. Structures marked *prefix* have further fields in C: they are only
//! ever used behind pointers that the libraries hand out.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// Declares structures as in C, and (in tests) what must be compared with C.
macro_rules! structures {
    ($($(#[$doc:meta])* $kind:ident $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[allow(non_camel_case_types, reason = "the names of the C headers")]
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name {
                $($(#[$field_doc])* pub(crate) $field: $ty,)*
            }
        )*
        /// What the tests compare with the headers: name, whether the whole structure is declared,
        /// size, fields.
        #[cfg(test)]
        pub(super) const STRUCTURES: &[layout::Structure] = &[$(
            layout::Structure {
                name: stringify!($name),
                whole: structures!(@whole $kind),
                size: size_of::<$name>(),
                fields: &[$((stringify!($field), core::mem::offset_of!($name, $field), size_of::<$ty>())),*],
            },
        )*];
    };
    (@whole whole) => { true };
    (@whole prefix) => { false };
}

/// Declares constants with the names of C.
macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        $(pub(crate) const $name: c_int = $value;)*
        /// What the tests compare with the headers.
        #[cfg(test)]
        pub(super) const CONSTANTS: &[(&str, c_int)] = &[$((stringify!($name), $name)),*];
    };
}

/// A function of `ibv_context_ops` that is not called through the table.
pub(crate) type Unused = Option<unsafe extern "C" fn()>;

structures! {
    /// What is behind `ibv_context`: transport and names.
    prefix ibv_device {
        _ops: [Unused; 2],
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
    }
    whole ibv_context_ops {
        _compat_query_device: Unused,
        _compat_query_port: Unused,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Unused,
        bind_mw: Unused,
        dealloc_mw: Unused,
        _compat_create_cq: Unused,
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv: Unused,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }
    prefix ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
    }
    whole ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }
    whole ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
    whole ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }
    prefix ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
    }
    prefix ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        handle: u32,
        qp_num: u32,
        state: c_int,
        qp_type: c_int,
    }
    whole ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: c_int,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }
    whole ibv_port_attr {
        state: c_int,
        max_mtu: c_int,
        active_mtu: c_int,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }
    whole ibv_wc {
        wr_id: u64,
        status: c_int,
        opcode: c_int,
        vendor_err: u32,
        byte_len: u32,
        /// In network byte order.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    whole ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    whole ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut c_void,
        cap: ibv_qp_cap,
        qp_type: c_int,
        sq_sig_all: c_int,
    }
    /// Only the state is ever set; the rest is there for its size.
    prefix ibv_qp_attr {
        qp_state: c_int,
        cur_qp_state: c_int,
        path_mtu: c_int,
        path_mig_state: c_int,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
    }
    whole ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }
    whole ibv_send_wr_rdma {
        remote_addr: u64,
        rkey: u32,
    }
    /// `wr` is a union in C, of which only `rdma` is used; `_tail` stands for the members of its
    /// other arms and for `qp_type` and the last union.
    whole ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_int,
        send_flags: c_uint,
        /// In network byte order.
        imm_data: u32,
        wr: ibv_send_wr_rdma,
        _tail: [u64; 9],
    }
    whole ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
    whole ibv_async_event {
        /// A union of pointers and a port number.
        element: *mut c_void,
        event_type: c_int,
    }
    whole rdma_event_channel {
        fd: c_int,
    }
    /// `route` is a structure in C: addresses (288 and a union of 40 bytes in this order), paths
    /// and their number.
    prefix rdma_cm_id {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        route: [u64; 39],
        ps: c_int,
        port_num: u8,
    }
    whole rdma_conn_param {
        private_data: *const c_void,
        private_data_len: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        srq: u8,
        qp_num: u32,
    }
    /// `param` is a union in C, of which `conn` is the first arm.
    prefix rdma_cm_event {
        id: *mut rdma_cm_id,
        listen_id: *mut rdma_cm_id,
        event: c_int,
        status: c_int,
        param: rdma_conn_param,
    }
}

/// `ibv_qp_attr` is passed by value in our memory, so it must be as large as C's: this is, with
/// room to spare.
#[repr(C, align(8))]
pub(crate) struct QpAttr {
    pub(crate) attr: ibv_qp_attr,
    pub(crate) rest: [u64; 32],
}

constants! {
    IBV_TRANSPORT_IB = 0;
    IBV_TRANSPORT_IWARP = 1;
    IBV_PORT_ACTIVE = 4;
    IBV_QPT_RC = 2;
    IBV_QPS_ERR = 6;
    IBV_QP_STATE = 1;
    IBV_ACCESS_LOCAL_WRITE = 1;
    IBV_ACCESS_REMOTE_WRITE = 2;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    IBV_WR_SEND = 2;
    IBV_SEND_SIGNALED = 2;
    IBV_SEND_INLINE = 8;
    IBV_WC_SUCCESS = 0;
    IBV_WC_LOC_LEN_ERR = 1;
    IBV_WC_LOC_QP_OP_ERR = 2;
    IBV_WC_LOC_PROT_ERR = 4;
    IBV_WC_WR_FLUSH_ERR = 5;
    IBV_WC_LOC_ACCESS_ERR = 8;
    IBV_WC_REM_INV_REQ_ERR = 9;
    IBV_WC_REM_ACCESS_ERR = 10;
    IBV_WC_REM_OP_ERR = 11;
    IBV_WC_RETRY_EXC_ERR = 12;
    IBV_WC_RNR_RETRY_EXC_ERR = 13;
    IBV_WC_RDMA_WRITE = 1;
    IBV_WC_RECV = 128;
    IBV_WC_RECV_RDMA_WITH_IMM = 129;
    IBV_EVENT_CQ_ERR = 0;
    IBV_EVENT_QP_FATAL = 1;
    IBV_EVENT_QP_REQ_ERR = 2;
    IBV_EVENT_QP_ACCESS_ERR = 3;
    IBV_EVENT_COMM_EST = 4;
    IBV_EVENT_DEVICE_FATAL = 8;
    IBV_EVENT_PORT_ACTIVE = 9;
    IBV_EVENT_PORT_ERR = 10;
    IBV_EVENT_GID_CHANGE = 18;
    IBV_FORK_UNNEEDED = 2;
    RDMA_PS_TCP = 0x0106;
    RDMA_OPTION_ID = 0;
    RDMA_OPTION_ID_TOS = 0;
    RDMA_OPTION_ID_ACK_TIMEOUT = 3;
    RDMA_CM_EVENT_ADDR_RESOLVED = 0;
    RDMA_CM_EVENT_ADDR_ERROR = 1;
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2;
    RDMA_CM_EVENT_ROUTE_ERROR = 3;
    RDMA_CM_EVENT_CONNECT_REQUEST = 4;
    RDMA_CM_EVENT_CONNECT_ERROR = 6;
    RDMA_CM_EVENT_UNREACHABLE = 7;
    RDMA_CM_EVENT_REJECTED = 8;
    RDMA_CM_EVENT_ESTABLISHED = 9;
    RDMA_CM_EVENT_DISCONNECTED = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11;
}

#[cfg(test)]
mod layout;
