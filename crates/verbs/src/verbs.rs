//! [`Fabric`] over libibverbs and librdmacm.
//!
//! One object of ours is one object of theirs; nothing is cached, counted or locked here. Posting,
//! polling and arming go through the table in `ibv_context`, as the inline functions of `verbs.h`
//! do. What providers do differently from the manual pages, and what is made of it:
//!
//! - errors come as `-1` with `errno`, as positive and (siw) as negative numbers: all become
//!   positive ([`check`]);
//! - siw's `post_send` forgets that it refused a request when an earlier one of the list went out,
//!   and returns 0: the `bad_wr` that it leaves behind tells (`verbs/fabric.rs`);
//! - a doorbell that fails leaves no `bad_wr`: nobody knows what was posted
//!   ([`PostError::unknown`]);
//! - every descriptor that the libraries open is handed to [`Host::adopt`] at once, to be moved out
//!   of the application's way; they keep their descriptors in public fields, and nowhere else.

use crate::fabric::*;
use crate::ffi::*;
use crate::load::{Api, LoadError, Loader};
use crate::sys::{self, Shelter};
use core::alloc::Layout;
use core::ffi::{c_int, c_void};
use core::net::{IpAddr, SocketAddr};
use core::ptr::{NonNull, null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

mod convert;
mod fabric;
mod probe;

use convert::{SockAddr, check, errno_of, error, object};

/// What the process around provides.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// How the libraries are opened.
    pub loader: Loader,
    /// Takes a descriptor that a library has just opened and returns the number under which it goes
    /// on, or a negative one. Returns a descriptor that it has taken before as it is.
    pub adopt: fn(c_int) -> c_int,
    /// The library is about to close a descriptor that was adopted. (Those of a device are never
    /// released.)
    pub release: fn(c_int),
}

impl Host {
    /// libc's loader; descriptors stay where they are.
    pub const PLAIN: Self = Self { loader: Loader::LIBC, adopt: |fd| fd, release: |_| () };
}

/// libibverbs and librdmacm, loaded.
#[derive(Clone, Copy)]
pub struct Verbs {
    api: &'static Api,
    host: Host,
}

impl core::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Verbs")
    }
}

/// The functions, once they are loaded.
static LOADED: AtomicPtr<Api> = AtomicPtr::new(null_mut());

impl Verbs {
    /// Loads both libraries, unless an earlier call has. Not for a hook: see [`Loader`].
    pub fn load(host: Host) -> Result<Self, LoadError> {
        let mut at = LOADED.load(Ordering::Acquire);
        if at.is_null() {
            let _shelter = Shelter::take();
            let api = Api::load(&host.loader)?;
            let layout = Layout::new::<Api>();
            // SAFETY: `Api` is not of size 0.
            let place = unsafe { alloc::alloc::alloc(layout) }.cast::<Api>();
            if place.is_null() {
                return Err(LoadError::NoMemory);
            }
            // SAFETY: just allocated for an `Api`, and nobody else knows it.
            unsafe { place.write(api) };
            at = match LOADED.compare_exchange(
                null_mut(),
                place,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => place,
                Err(other) => {
                    // SAFETY: allocated above with this layout, and not published.
                    unsafe { alloc::alloc::dealloc(place.cast(), layout) };
                    other
                }
            };
        }
        // SAFETY: published once, never freed or written again.
        let api = unsafe { &*at };
        Ok(Self { api, host })
    }

    /// Hands a descriptor of the libraries' to the host.
    fn adopt(&self, call: Call, fd: &mut c_int) -> Result<(), Error> {
        let own = (self.host.adopt)(*fd);
        if own < 0 {
            return Err(error(call, libc::EMFILE));
        }
        *fd = own;
        Ok(())
    }
}

// ---- objects ------------------------------------------------------------------------------------

/// An event channel of librdmacm.
#[derive(Debug)]
pub struct Manager {
    channel: NonNull<rdma_event_channel>,
    /// The longest that was asked for, in ms: the second half of resolving begins in `next_event`.
    route_timeout: AtomicU32,
}

/// A device: an identifier bound to one of its addresses, which keeps librdmacm from closing it.
#[derive(Debug)]
pub struct Device {
    anchor: NonNull<rdma_cm_id>,
    context: NonNull<ibv_context>,
    facts: Facts,
}

/// A protection domain.
#[derive(Debug)]
pub struct Domain {
    pd: NonNull<ibv_pd>,
}

/// A completion queue and its channel.
#[derive(Debug)]
pub struct Queue {
    channel: NonNull<ibv_comp_channel>,
    cq: NonNull<ibv_cq>,
}

/// A memory region.
#[derive(Debug)]
pub struct Region {
    mr: NonNull<ibv_mr>,
}

/// A listening identifier.
#[derive(Debug)]
pub struct Listener {
    id: NonNull<rdma_cm_id>,
    port: u16,
}

/// An identifier and, once created, its queue pair.
#[derive(Debug)]
pub struct Pair {
    id: NonNull<rdma_cm_id>,
    qp: *mut ibv_qp,
    inline_bytes: u32,
}

macro_rules! shared {
    ($($name:ident)*) => { $(
        // SAFETY: libibverbs and librdmacm may be called from any thread; what is called for the
        // same object at the same time is ruled by the `&`, `&mut` and by-value arguments of
        // `Fabric`, as its documentation says.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}
    )* };
}
shared!(Manager Device Domain Queue Region Listener Pair);

impl Region {
    /// The segment of a piece; `None` when it is not inside of the region.
    fn segment(piece: &Piece<'_, Self>) -> Option<ibv_sge> {
        // SAFETY: a region that is not closed; nobody writes to it after its creation.
        let mr = unsafe { piece.region.mr.as_ref() };
        let end = piece.offset.checked_add(piece.bytes)?;
        if end > mr.length {
            return None;
        }
        Some(ibv_sge {
            addr: (mr.addr as u64).checked_add(piece.offset as u64)?,
            length: u32::try_from(piece.bytes).ok()?,
            lkey: mr.lkey,
        })
    }
}

/// A token as librdmacm carries it.
const fn context_of(token: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(token as usize)
}

impl Verbs {
    fn new_id(
        &self,
        call: Call,
        manager: &Manager,
        token: u64,
    ) -> Result<NonNull<rdma_cm_id>, Error> {
        let mut id = null_mut();
        // SAFETY: a channel that is not closed, and a place for the result.
        let r = unsafe {
            (self.api.rdma_create_id)(
                manager.channel.as_ptr(),
                &mut id,
                context_of(token),
                RDMA_PS_TCP,
            )
        };
        check(call, r)?;
        object(call, id)
    }

    fn destroy_id(&self, id: NonNull<rdma_cm_id>) -> Result<(), Error> {
        // SAFETY: the caller owns the identifier; every event of it has been acknowledged by
        // `next_event`.
        check(Call::Close, unsafe { (self.api.rdma_destroy_id)(id.as_ptr()) })
    }

    fn bind(&self, call: Call, id: NonNull<rdma_cm_id>, address: SocketAddr) -> Result<(), Error> {
        let mut c = SockAddr::new(address);
        // SAFETY: an identifier that we own, and an address of the family that it says.
        check(call, unsafe { (self.api.rdma_bind_addr)(id.as_ptr(), c.as_mut()) })
    }

    /// The rest of `open_device`, for an identifier that the caller destroys when this fails.
    fn device_of(&self, anchor: NonNull<rdma_cm_id>, address: IpAddr) -> Result<Device, Error> {
        let call = Call::OpenDevice;
        self.bind(call, anchor, SocketAddr::new(address, 0))?;
        // SAFETY: our identifier; binding has set the field.
        let id = unsafe { anchor.as_ref() };
        let mut context = NonNull::new(id.verbs).ok_or(error(call, libc::ENODEV))?;
        {
            // SAFETY: the device's context, which lives while the identifier does; its descriptors
            // are changed before anybody else can use it through us, and `adopt` leaves those alone
            // that it has taken before.
            let context = unsafe { context.as_mut() };
            self.adopt(call, &mut context.cmd_fd)?;
            self.adopt(call, &mut context.async_fd)?;
            if !sys::set_nonblocking(context.async_fd) {
                return Err(error(call, libc::EBADF));
            }
        }
        // SAFETY: a context that lives.
        let pd = object(call, unsafe { (self.api.ibv_alloc_pd)(context.as_ptr()) })?;
        let facts = probe::facts(self.api, context, pd, id.port_num.max(1));
        // SAFETY: just allocated, and nothing is left on it.
        unsafe { (self.api.ibv_dealloc_pd)(pd.as_ptr()) };
        Ok(Device { anchor, context, facts: facts? })
    }

    fn param(private: &[u8], patience: Patience) -> rdma_conn_param {
        let bytes = private.len().min(PRIVATE_MAX);
        rdma_conn_param {
            private_data: if bytes == 0 { null() } else { private.as_ptr().cast() },
            private_data_len: bytes as u8,
            // No reads, but some of iWARP's peers begin with one.
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 1,
            retry_count: patience.tries.min(7),
            // 7: for ever. The path above keeps receives posted, so waiting is an accident, not an
            // end.
            rnr_retry_count: 7,
            srq: 0,
            qp_num: 0,
        }
    }

    fn set_patience(&self, pair: &Pair, patience: Patience) {
        let mut timeout = patience.timeout.min(31);
        if timeout == 0 {
            return;
        }
        // Refused by kernels before 5.1 and by iWARP, which both go on as they like: no reason not
        // to connect.
        // SAFETY: the identifier lives; the option is one byte.
        unsafe {
            (self.api.rdma_set_option)(
                pair.id.as_ptr(),
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_ACK_TIMEOUT,
                (&raw mut timeout).cast(),
                1,
            )
        };
    }

    /// Translates an event; `None`: nothing that anybody wants to know.
    fn translate(&self, manager: &Manager, event: &rdma_cm_event) -> Option<Event<Pair>> {
        let id = NonNull::new(event.id)?;
        // SAFETY: the identifier of an event lives until the event is acknowledged.
        let token = unsafe { id.as_ref() }.context.addr() as u64;
        let private = || {
            let p = &event.param;
            if p.private_data.is_null() {
                return Private::new(&[]);
            }
            let bytes = usize::from(p.private_data_len).min(PRIVATE_MAX);
            // SAFETY: the library keeps that many bytes there until the event is acknowledged.
            Private::new(unsafe { core::slice::from_raw_parts(p.private_data.cast::<u8>(), bytes) })
        };
        let news = match event.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => {
                let timeout = manager.route_timeout.load(Ordering::Relaxed) as c_int;
                // SAFETY: an identifier that is resolving.
                let r = unsafe { (self.api.rdma_resolve_route)(id.as_ptr(), timeout) };
                if r == 0 {
                    return None;
                }
                News::Unreachable { errno: errno_of(r) }
            }
            RDMA_CM_EVENT_ROUTE_RESOLVED => News::Resolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => News::Request {
                pair: Pair { id, qp: null_mut(), inline_bytes: 0 },
                private: private(),
            },
            RDMA_CM_EVENT_ESTABLISHED => News::Established { private: private() },
            RDMA_CM_EVENT_REJECTED => News::Refused { reason: event.status, private: private() },
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_CONNECT_ERROR
            | RDMA_CM_EVENT_UNREACHABLE => {
                News::Unreachable { errno: event.status.checked_abs().unwrap_or(libc::EIO) }
            }
            RDMA_CM_EVENT_DISCONNECTED => News::Disconnected,
            RDMA_CM_EVENT_DEVICE_REMOVAL => News::DeviceRemoved,
            _ => return None,
        };
        Some(Event { token, news })
    }
}

#[cfg(test)]
mod tests;
