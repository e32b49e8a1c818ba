//! The calls.

use super::convert::{SockAddr, check, completion, errno_of, error, object, posted, request};
use super::{Device, Domain, Listener, Manager, Pair, Queue, Region, Verbs, context_of, probe};
use crate::fabric::{
    Access, BATCH_MAX, Call, Capacity, Completion, Error, Event, Fabric, Facts, Fault, PRIVATE_MAX,
    Patience, PostError, Receive, Remote, Work,
};
use crate::ffi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR,
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_QPS_ERR, RDMA_OPTION_ID,
    RDMA_OPTION_ID_TOS, ibv_async_event, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use crate::sys::{self, Shelter};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::net::{IpAddr, SocketAddr};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, Ordering};

/// News that nobody wants are passed over, at most so many in a row.
const PASS_OVER_MAX: u32 = 64;

impl Fabric for Verbs {
    type Manager = Manager;
    type Listener = Listener;
    type Device = Device;
    type Domain = Domain;
    type Queue = Queue;
    type Region = Region;
    type Pair = Pair;

    fn open_manager(&self) -> Result<Manager, Error> {
        let _shelter = Shelter::take();
        let call = Call::OpenManager;
        // SAFETY: no arguments.
        let mut channel = object(call, unsafe { (self.api.rdma_create_event_channel)() })?;
        // SAFETY: just made, and nobody else knows it.
        let fd = unsafe { &mut channel.as_mut().fd };
        let ready = self.adopt(call, fd).and_then(|()| {
            if sys::set_nonblocking(*fd) { Ok(()) } else { Err(error(call, libc::EBADF)) }
        });
        let manager = Manager { channel, route_timeout: AtomicU32::new(0) };
        match ready {
            Ok(()) => Ok(manager),
            Err(e) => {
                let _ = self.close_manager(manager);
                Err(e)
            }
        }
    }

    fn manager_fd(&self, manager: &Manager) -> c_int {
        // SAFETY: a channel that is not closed; nobody writes to it after its creation.
        unsafe { manager.channel.as_ref() }.fd
    }

    fn next_event(&self, manager: &Manager) -> Result<Option<Event<Pair>>, Error> {
        let _shelter = Shelter::take();
        let call = Call::NextEvent;
        for _ in 0..PASS_OVER_MAX {
            let mut event = null_mut();
            // SAFETY: a channel that is not closed, and a place for the result.
            let r = unsafe { (self.api.rdma_get_cm_event)(manager.channel.as_ptr(), &mut event) };
            if r != 0 {
                return match errno_of(r) {
                    libc::EAGAIN => Ok(None),
                    libc::EINTR => continue,
                    errno => Err(error(call, errno)),
                };
            }
            let event = object(call, event)?;
            // SAFETY: the event is ours until it is acknowledged.
            let news = self.translate(manager, unsafe { event.as_ref() });
            // SAFETY: once per event; what was wanted of it has been copied.
            unsafe { (self.api.rdma_ack_cm_event)(event.as_ptr()) };
            if news.is_some() {
                return Ok(news);
            }
        }
        Ok(None)
    }

    fn close_manager(&self, manager: Manager) -> Result<(), Error> {
        let _shelter = Shelter::take();
        (self.host.release)(self.manager_fd(&manager));
        // SAFETY: ours, and by the trait's rule nothing of it is left.
        unsafe { (self.api.rdma_destroy_event_channel)(manager.channel.as_ptr()) };
        Ok(())
    }

    fn open_device(&self, manager: &Manager, address: IpAddr, token: u64) -> Result<Device, Error> {
        let _shelter = Shelter::take();
        // To these the kernel binds any device at all.
        if address.is_loopback() || address.is_unspecified() {
            return Err(error(Call::OpenDevice, libc::EADDRNOTAVAIL));
        }
        let anchor = self.new_id(Call::OpenDevice, manager, token)?;
        self.device_of(anchor, address).inspect_err(|_| {
            let _ = self.destroy_id(anchor);
        })
    }

    fn facts<'a>(&self, device: &'a Device) -> &'a Facts {
        &device.facts
    }

    fn is_on(&self, device: &Device, pair: &Pair) -> bool {
        // SAFETY: the pair's identifier lives; the field does not change once it is resolved.
        unsafe { pair.id.as_ref() }.verbs == device.context.as_ptr()
    }

    fn device_fd(&self, device: &Device) -> c_int {
        // SAFETY: the context lives while the device is open; the field was set in `device_of`.
        unsafe { device.context.as_ref() }.async_fd
    }

    fn next_fault(&self, device: &Device) -> Result<Option<Fault>, Error> {
        let _shelter = Shelter::take();
        for _ in 0..PASS_OVER_MAX {
            let mut event = ibv_async_event { element: null_mut(), event_type: 0 };
            // SAFETY: a context that lives, and a place for the result.
            let r = unsafe { (self.api.ibv_get_async_event)(device.context.as_ptr(), &mut event) };
            if r != 0 {
                return match errno_of(r) {
                    libc::EAGAIN => Ok(None),
                    libc::EINTR => continue,
                    errno => Err(error(Call::NextFault, errno)),
                };
            }
            // Acknowledged at once: closing the object that it is about waits for that. (Its name
            // is no other's yet when it is heard: who takes these news closes queues.)
            // SAFETY: as returned.
            unsafe { (self.api.ibv_ack_async_event)(&mut event) };
            return Ok(Some(match event.event_type {
                IBV_EVENT_COMM_EST | IBV_EVENT_GID_CHANGE => continue,
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                    Fault::PairLost
                }
                IBV_EVENT_CQ_ERR => Fault::QueueLost(event.element.addr()),
                IBV_EVENT_DEVICE_FATAL => Fault::DeviceLost,
                IBV_EVENT_PORT_ACTIVE => Fault::PortUp,
                IBV_EVENT_PORT_ERR => Fault::PortDown,
                other => Fault::Other(other),
            }));
        }
        Ok(None)
    }

    fn close_device(&self, device: Device) -> Result<(), Error> {
        let _shelter = Shelter::take();
        // The context and its descriptors stay: librdmacm keeps a device open until the process
        // ends, or the device does.
        self.destroy_id(device.anchor)
    }

    fn open_domain(&self, device: &Device) -> Result<Domain, Error> {
        let _shelter = Shelter::take();
        // SAFETY: the context lives while the device is open.
        let pd = unsafe { (self.api.ibv_alloc_pd)(device.context.as_ptr()) };
        Ok(Domain { pd: object(Call::OpenDomain, pd)? })
    }

    fn close_domain(&self, domain: Domain) -> Result<(), Error> {
        let _shelter = Shelter::take();
        // SAFETY: ours; the kernel refuses while something is left on it.
        check(Call::Close, unsafe { (self.api.ibv_dealloc_pd)(domain.pd.as_ptr()) })
    }

    fn open_queue(&self, device: &Device, entries: u32, vector: u32) -> Result<Queue, Error> {
        let _shelter = Shelter::take();
        let call = Call::OpenQueue;
        let context = device.context.as_ptr();
        let entries = c_int::try_from(entries.max(1)).map_err(|_| error(call, libc::EINVAL))?;
        let vector = vector.checked_rem(device.facts.vectors).unwrap_or(0) as c_int;
        // SAFETY: a context that lives.
        let mut channel = object(call, unsafe { (self.api.ibv_create_comp_channel)(context) })?;
        // SAFETY: just made, and nobody else knows it.
        let fd = unsafe { &mut channel.as_mut().fd };
        let made = self.adopt(call, fd).and_then(|()| {
            if !sys::set_nonblocking(*fd) {
                return Err(error(call, libc::EBADF));
            }
            // SAFETY: context and channel live.
            object(call, unsafe {
                (self.api.ibv_create_cq)(context, entries, null_mut(), channel.as_ptr(), vector)
            })
        });
        match made {
            Ok(cq) => Ok(Queue { channel, cq }),
            Err(e) => {
                (self.host.release)(*fd);
                // SAFETY: ours, without a queue.
                unsafe { (self.api.ibv_destroy_comp_channel)(channel.as_ptr()) };
                Err(e)
            }
        }
    }

    fn queue_name(&self, queue: &Queue) -> usize {
        queue.cq.addr().get()
    }

    fn queue_fd(&self, queue: &Queue) -> c_int {
        // SAFETY: a channel that is not closed; nobody writes to the field after its creation.
        unsafe { queue.channel.as_ref() }.fd
    }

    #[inline]
    fn poll(&self, queue: &Queue, out: &mut [Completion]) -> Result<usize, Error> {
        let _shelter = Shelter::take();
        let cq = queue.cq.as_ptr();
        // SAFETY: queue and context live; the table is never written.
        let Some(poll_cq) = (unsafe { (*(*cq).context).ops.poll_cq }) else {
            return Err(error(Call::Poll, libc::ENOSYS));
        };
        let mut wcs = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH_MAX];
        let mut taken = 0usize;
        for chunk in out.chunks_mut(BATCH_MAX) {
            // SAFETY: room for as many as are asked for.
            let n = unsafe { poll_cq(cq, chunk.len() as c_int, wcs.as_mut_ptr().cast()) };
            let Ok(n) = usize::try_from(n) else {
                return if taken > 0 { Ok(taken) } else { Err(error(Call::Poll, errno_of(n))) };
            };
            for (to, wc) in chunk.iter_mut().zip(&wcs).take(n) {
                // SAFETY: the first `n` have been written.
                *to = completion(unsafe { wc.assume_init_ref() });
                taken = taken.wrapping_add(1);
            }
            if n < chunk.len() {
                break;
            }
        }
        Ok(taken)
    }

    fn arm(&self, queue: &Queue) -> Result<(), Error> {
        let _shelter = Shelter::take();
        let cq = queue.cq.as_ptr();
        // SAFETY: queue and context live; the table is never written.
        let Some(notify) = (unsafe { (*(*cq).context).ops.req_notify_cq }) else {
            return Err(error(Call::Arm, libc::ENOSYS));
        };
        // Every completion, not only solicited ones: siw does not know those.
        // SAFETY: a queue that lives.
        check(Call::Arm, unsafe { notify(cq, 0) })
    }

    fn clear(&self, queue: &Queue) -> Result<u32, Error> {
        let _shelter = Shelter::take();
        let mut count = 0u32;
        let result = loop {
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: a channel that is not closed, and places for the results.
            let r = unsafe {
                (self.api.ibv_get_cq_event)(queue.channel.as_ptr(), &mut cq, &mut context)
            };
            match r {
                0 => count = count.wrapping_add(1),
                _ => match errno_of(r) {
                    libc::EINTR => {}
                    libc::EAGAIN => break Ok(count),
                    errno => break Err(error(Call::Clear, errno)),
                },
            }
            if count >= PASS_OVER_MAX {
                break Ok(count);
            }
        };
        if count > 0 {
            // Closing the queue waits for this.
            // SAFETY: the channel serves this queue alone.
            unsafe { (self.api.ibv_ack_cq_events)(queue.cq.as_ptr(), count) };
        }
        result
    }

    fn close_queue(&self, queue: Queue) -> Result<(), Error> {
        let _shelter = Shelter::take();
        let _ = self.clear(&queue);
        // SAFETY: ours; the kernel refuses while a pair uses it.
        check(Call::Close, unsafe { (self.api.ibv_destroy_cq)(queue.cq.as_ptr()) })?;
        (self.host.release)(self.queue_fd(&queue));
        // SAFETY: ours, and its queue is gone.
        check(Call::Close, unsafe { (self.api.ibv_destroy_comp_channel)(queue.channel.as_ptr()) })
    }

    unsafe fn register(
        &self,
        domain: &Domain,
        at: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<Region, Error> {
        let _shelter = Shelter::take();
        let access = match access {
            Access::Local => 0,
            Access::Receive => IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteWrite => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        };
        // SAFETY: a domain that is open; the memory is the caller's promise.
        let mr =
            unsafe { (self.api.ibv_reg_mr)(domain.pd.as_ptr(), at.as_ptr().cast(), bytes, access) };
        Ok(Region { mr: object(Call::Register, mr)? })
    }

    fn remote(&self, region: &Region) -> Remote {
        // SAFETY: a region that is not closed.
        let mr = unsafe { region.mr.as_ref() };
        Remote { address: mr.addr as u64, key: mr.rkey }
    }

    fn close_region(&self, region: Region) -> Result<(), Error> {
        let _shelter = Shelter::take();
        // SAFETY: ours, and not used again.
        check(Call::Close, unsafe { (self.api.ibv_dereg_mr)(region.mr.as_ptr()) })
    }

    fn listen(
        &self,
        manager: &Manager,
        address: SocketAddr,
        backlog: u32,
        token: u64,
    ) -> Result<Listener, Error> {
        let _shelter = Shelter::take();
        let call = Call::Listen;
        let id = self.new_id(call, manager, token)?;
        let listening = self.bind(call, id, address).and_then(|()| {
            let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
            // SAFETY: an identifier that we own.
            check(call, unsafe { (self.api.rdma_listen)(id.as_ptr(), backlog) })
        });
        match listening {
            Ok(()) => Ok(Listener {
                id,
                // SAFETY: an identifier that we own and that is bound.
                port: u16::from_be(unsafe { (self.api.rdma_get_src_port)(id.as_ptr()) }),
            }),
            Err(e) => {
                let _ = self.destroy_id(id);
                Err(e)
            }
        }
    }

    fn port(&self, listener: &Listener) -> u16 {
        listener.port
    }

    fn close_listener(&self, listener: Listener) -> Result<(), Error> {
        let _shelter = Shelter::take();
        self.destroy_id(listener.id)
    }

    fn resolve(
        &self,
        manager: &Manager,
        from: IpAddr,
        to: SocketAddr,
        timeout_ms: u32,
        token: u64,
    ) -> Result<Pair, Error> {
        let _shelter = Shelter::take();
        let call = Call::Resolve;
        let timeout = timeout_ms.clamp(1, c_int::MAX as u32);
        manager.route_timeout.fetch_max(timeout, Ordering::Relaxed);
        let id = self.new_id(call, manager, token)?;
        let (mut from, mut to) = (SockAddr::new(SocketAddr::new(from, 0)), SockAddr::new(to));
        // SAFETY: an identifier that we own, and addresses of the families that they say.
        let r = unsafe {
            (self.api.rdma_resolve_addr)(id.as_ptr(), from.as_mut(), to.as_mut(), timeout as c_int)
        };
        if let Err(e) = check(call, r) {
            let _ = self.destroy_id(id);
            return Err(e);
        }
        Ok(Pair { id, qp: null_mut(), inline_bytes: 0 })
    }

    fn set_token(&self, pair: &mut Pair, token: u64) {
        // SAFETY: our identifier; `next_event` reads the field, on the thread that calls both or
        // after it.
        unsafe { (*pair.id.as_ptr()).context = context_of(token) };
    }

    fn set_class(&self, pair: &mut Pair, mut class: u8) -> Result<(), Error> {
        if class == 0 {
            return Ok(());
        }
        let _shelter = Shelter::take();
        // SAFETY: an identifier that we own; the option is one byte.
        let r = unsafe {
            (self.api.rdma_set_option)(
                pair.id.as_ptr(),
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_TOS,
                (&raw mut class).cast(),
                1,
            )
        };
        check(Call::SetClass, r)
    }

    fn create(
        &self,
        pair: &mut Pair,
        domain: &Domain,
        queue: &Queue,
        capacity: Capacity,
    ) -> Result<Capacity, Error> {
        let _shelter = Shelter::take();
        let call = Call::Create;
        // SAFETY: our identifier, and a domain that is open.
        let (verbs, context) = unsafe { (pair.id.as_ref().verbs, domain.pd.as_ref().context) };
        if verbs != context {
            return Err(error(call, libc::EXDEV));
        }
        let mut init = probe::pair_init(queue.cq, capacity);
        // SAFETY: an identifier that we own, on this device; domain and queue live.
        let r =
            unsafe { (self.api.rdma_create_qp)(pair.id.as_ptr(), domain.pd.as_ptr(), &mut init) };
        check(call, r)?;
        // SAFETY: our identifier; the call has set the field.
        pair.qp = unsafe { pair.id.as_ref() }.qp;
        pair.inline_bytes = init.cap.max_inline_data;
        Ok(Capacity {
            sends: init.cap.max_send_wr,
            receives: init.cap.max_recv_wr,
            inline_bytes: init.cap.max_inline_data,
        })
    }

    fn connect(&self, pair: &mut Pair, private: &[u8], patience: Patience) -> Result<(), Error> {
        let _shelter = Shelter::take();
        self.set_patience(pair, patience);
        let mut param = Self::param(private, patience);
        // SAFETY: an identifier that we own; the private data outlives the call.
        check(Call::Connect, unsafe { (self.api.rdma_connect)(pair.id.as_ptr(), &mut param) })
    }

    fn accept(&self, pair: &mut Pair, private: &[u8], patience: Patience) -> Result<(), Error> {
        let _shelter = Shelter::take();
        // Without a queue pair the library would take one from the parameters.
        if pair.qp.is_null() {
            return Err(error(Call::Accept, libc::EINVAL));
        }
        self.set_patience(pair, patience);
        let mut param = Self::param(private, patience);
        // SAFETY: an identifier that we own; the private data outlives the call.
        check(Call::Accept, unsafe { (self.api.rdma_accept)(pair.id.as_ptr(), &mut param) })
    }

    fn reject(&self, pair: Pair, private: &[u8]) -> Result<(), Error> {
        let _shelter = Shelter::take();
        let bytes = private.len().min(PRIVATE_MAX) as u8;
        // SAFETY: an identifier that we own; the private data outlives the call.
        let r = unsafe { (self.api.rdma_reject)(pair.id.as_ptr(), private.as_ptr().cast(), bytes) };
        let said = check(Call::Reject, r);
        self.close_pair(pair).and(said)
    }

    #[inline]
    fn post(&self, pair: &Pair, works: &[Work<'_, Region>]) -> Result<(), PostError> {
        let _shelter = Shelter::take();
        let refused = PostError { posted: 0, errno: libc::EINVAL, unknown: false };
        if pair.qp.is_null() || works.len() > BATCH_MAX {
            return Err(refused);
        }
        if works.is_empty() {
            return Ok(());
        }
        let mut wrs = [const { MaybeUninit::<ibv_send_wr>::uninit() }; BATCH_MAX];
        let mut segments = [const { MaybeUninit::<ibv_sge>::uninit() }; BATCH_MAX];
        let first = wrs.as_mut_ptr().cast::<ibv_send_wr>();
        let mut next = first;
        let mut left = works.len();
        for ((work, wr), segment) in works.iter().zip(&mut wrs).zip(&mut segments) {
            let Some((mut request, sge)) = request(work, pair.inline_bytes) else {
                return Err(refused);
            };
            left = left.wrapping_sub(1);
            // Stays inside of the array: there are as many requests as works.
            next = next.wrapping_add(1);
            if left > 0 {
                request.next = next;
            }
            if let Some(sge) = sge {
                request.sg_list = segment.write(sge);
            }
            wr.write(request);
        }
        // SAFETY: pair and context live; the table is never written.
        let Some(post_send) = (unsafe { (*(*pair.qp).context).ops.post_send }) else {
            return Err(refused);
        };
        let mut bad = null_mut();
        // SAFETY: a list of requests that ends with a null, each with one segment or none: pieces
        // of regions that are not closed, or bytes that outlive the call and are copied in it.
        let r = unsafe { post_send(pair.qp, first, &mut bad) };
        posted(r, bad.cast(), first.cast(), size_of::<ibv_send_wr>(), works.len())
    }

    #[inline]
    fn post_receives(
        &self,
        pair: &Pair,
        receives: &[Receive<'_, Region>],
    ) -> Result<(), PostError> {
        let _shelter = Shelter::take();
        let refused = PostError { posted: 0, errno: libc::EINVAL, unknown: false };
        if pair.qp.is_null() || receives.len() > BATCH_MAX {
            return Err(refused);
        }
        if receives.is_empty() {
            return Ok(());
        }
        let mut wrs = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; BATCH_MAX];
        let mut segments = [const { MaybeUninit::<ibv_sge>::uninit() }; BATCH_MAX];
        let first = wrs.as_mut_ptr().cast::<ibv_recv_wr>();
        let mut next = first;
        let mut left = receives.len();
        for ((receive, wr), segment) in receives.iter().zip(&mut wrs).zip(&mut segments) {
            let mut sg_list = null_mut();
            if let Some(piece) = &receive.into {
                let Some(sge) = Region::segment(piece) else {
                    return Err(refused);
                };
                sg_list = segment.write(sge);
            }
            left = left.wrapping_sub(1);
            // Stays inside of the array: there are as many requests as receives.
            next = next.wrapping_add(1);
            wr.write(ibv_recv_wr {
                wr_id: receive.id,
                next: if left > 0 { next } else { null_mut() },
                sg_list,
                num_sge: c_int::from(receive.into.is_some()),
            });
        }
        // SAFETY: pair and context live; the table is never written.
        let Some(post_recv) = (unsafe { (*(*pair.qp).context).ops.post_recv }) else {
            return Err(refused);
        };
        let mut bad = null_mut();
        // SAFETY: a list of requests that ends with a null, each with one segment or none, in
        // regions that are not closed.
        let r = unsafe { post_recv(pair.qp, first, &mut bad) };
        posted(r, bad.cast(), first.cast(), size_of::<ibv_recv_wr>(), receives.len())
    }

    fn fail(&self, pair: &Pair) -> Result<(), Error> {
        let _shelter = Shelter::take();
        if pair.qp.is_null() {
            return Err(error(Call::Fail, libc::EINVAL));
        }
        // SAFETY: a queue pair that lives.
        check(Call::Fail, unsafe { probe::set_state(self.api, pair.qp, IBV_QPS_ERR) })
    }

    fn disconnect(&self, pair: &Pair) -> Result<(), Error> {
        let _shelter = Shelter::take();
        // SAFETY: an identifier that lives.
        check(Call::Disconnect, unsafe { (self.api.rdma_disconnect)(pair.id.as_ptr()) })
    }

    fn close_pair(&self, pair: Pair) -> Result<(), Error> {
        let _shelter = Shelter::take();
        if !pair.qp.is_null() {
            // SAFETY: the identifier's own queue pair.
            unsafe { (self.api.rdma_destroy_qp)(pair.id.as_ptr()) };
        }
        self.destroy_id(pair.id)
    }
}
