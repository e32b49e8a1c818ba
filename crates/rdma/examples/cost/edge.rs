//! The fabric in memory behind functions that are never inlined, so that what it costs can be told
//! from what its caller does.

use netacc_verbs::fabric::*;
use netacc_verbs::memory::{self, Memory};
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;

pub struct Edge(pub Memory);

/// The calls that the engine makes for a message. Counted apart by their names.
impl Edge {
    #[inline(never)]
    fn edge_post(
        &self,
        pair: &memory::Pair,
        works: &[Work<'_, memory::Region>],
    ) -> Result<(), PostError> {
        self.0.post(pair, works)
    }

    #[inline(never)]
    fn edge_receives(
        &self,
        pair: &memory::Pair,
        all: &[Receive<'_, memory::Region>],
    ) -> Result<(), PostError> {
        self.0.post_receives(pair, all)
    }

    #[inline(never)]
    fn edge_poll(&self, queue: &memory::Queue, out: &mut [Completion]) -> Result<usize, Error> {
        self.0.poll(queue, out)
    }
}

impl Fabric for Edge {
    type Manager = memory::Manager;
    type Listener = memory::Listener;
    type Device = memory::Device;
    type Domain = memory::Domain;
    type Queue = memory::Queue;
    type Region = memory::Region;
    type Pair = memory::Pair;

    fn open_manager(&self) -> Result<memory::Manager, Error> {
        self.0.open_manager()
    }
    fn manager_fd(&self, manager: &memory::Manager) -> c_int {
        self.0.manager_fd(manager)
    }
    fn next_event(&self, manager: &memory::Manager) -> Result<Option<Event<memory::Pair>>, Error> {
        self.0.next_event(manager)
    }
    fn close_manager(&self, manager: memory::Manager) -> Result<(), Error> {
        self.0.close_manager(manager)
    }
    fn open_device(
        &self,
        manager: &memory::Manager,
        address: IpAddr,
        token: u64,
    ) -> Result<memory::Device, Error> {
        self.0.open_device(manager, address, token)
    }
    fn facts<'a>(&self, device: &'a memory::Device) -> &'a Facts {
        self.0.facts(device)
    }
    fn is_on(&self, device: &memory::Device, pair: &memory::Pair) -> bool {
        self.0.is_on(device, pair)
    }
    fn device_fd(&self, device: &memory::Device) -> c_int {
        self.0.device_fd(device)
    }
    fn next_fault(&self, device: &memory::Device) -> Result<Option<Fault>, Error> {
        self.0.next_fault(device)
    }
    fn close_device(&self, device: memory::Device) -> Result<(), Error> {
        self.0.close_device(device)
    }
    fn open_domain(&self, device: &memory::Device) -> Result<memory::Domain, Error> {
        self.0.open_domain(device)
    }
    fn close_domain(&self, domain: memory::Domain) -> Result<(), Error> {
        self.0.close_domain(domain)
    }
    fn open_queue(
        &self,
        device: &memory::Device,
        entries: u32,
        vector: u32,
    ) -> Result<memory::Queue, Error> {
        self.0.open_queue(device, entries, vector)
    }
    fn queue_name(&self, queue: &memory::Queue) -> usize {
        self.0.queue_name(queue)
    }
    fn queue_fd(&self, queue: &memory::Queue) -> c_int {
        self.0.queue_fd(queue)
    }
    fn poll(&self, queue: &memory::Queue, out: &mut [Completion]) -> Result<usize, Error> {
        self.edge_poll(queue, out)
    }
    fn arm(&self, queue: &memory::Queue) -> Result<(), Error> {
        self.0.arm(queue)
    }
    fn clear(&self, queue: &memory::Queue) -> Result<u32, Error> {
        self.0.clear(queue)
    }
    fn close_queue(&self, queue: memory::Queue) -> Result<(), Error> {
        self.0.close_queue(queue)
    }
    unsafe fn register(
        &self,
        domain: &memory::Domain,
        at: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<memory::Region, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.0.register(domain, at, bytes, access) }
    }
    fn remote(&self, region: &memory::Region) -> Remote {
        self.0.remote(region)
    }
    fn close_region(&self, region: memory::Region) -> Result<(), Error> {
        self.0.close_region(region)
    }
    fn listen(
        &self,
        manager: &memory::Manager,
        address: SocketAddr,
        backlog: u32,
        token: u64,
    ) -> Result<memory::Listener, Error> {
        self.0.listen(manager, address, backlog, token)
    }
    fn port(&self, listener: &memory::Listener) -> u16 {
        self.0.port(listener)
    }
    fn close_listener(&self, listener: memory::Listener) -> Result<(), Error> {
        self.0.close_listener(listener)
    }
    fn resolve(
        &self,
        manager: &memory::Manager,
        from: IpAddr,
        to: SocketAddr,
        timeout_ms: u32,
        token: u64,
    ) -> Result<memory::Pair, Error> {
        self.0.resolve(manager, from, to, timeout_ms, token)
    }
    fn set_token(&self, pair: &mut memory::Pair, token: u64) {
        self.0.set_token(pair, token);
    }
    fn set_class(&self, pair: &mut memory::Pair, class: u8) -> Result<(), Error> {
        self.0.set_class(pair, class)
    }
    fn create(
        &self,
        pair: &mut memory::Pair,
        domain: &memory::Domain,
        queue: &memory::Queue,
        capacity: Capacity,
    ) -> Result<Capacity, Error> {
        self.0.create(pair, domain, queue, capacity)
    }
    fn connect(
        &self,
        pair: &mut memory::Pair,
        private: &[u8],
        patience: Patience,
    ) -> Result<(), Error> {
        self.0.connect(pair, private, patience)
    }
    fn accept(
        &self,
        pair: &mut memory::Pair,
        private: &[u8],
        patience: Patience,
    ) -> Result<(), Error> {
        self.0.accept(pair, private, patience)
    }
    fn reject(&self, pair: memory::Pair, private: &[u8]) -> Result<(), Error> {
        self.0.reject(pair, private)
    }
    fn post(
        &self,
        pair: &memory::Pair,
        works: &[Work<'_, memory::Region>],
    ) -> Result<(), PostError> {
        self.edge_post(pair, works)
    }
    fn post_receives(
        &self,
        pair: &memory::Pair,
        all: &[Receive<'_, memory::Region>],
    ) -> Result<(), PostError> {
        self.edge_receives(pair, all)
    }
    fn fail(&self, pair: &memory::Pair) -> Result<(), Error> {
        self.0.fail(pair)
    }
    fn disconnect(&self, pair: &memory::Pair) -> Result<(), Error> {
        self.0.disconnect(pair)
    }
    fn close_pair(&self, pair: memory::Pair) -> Result<(), Error> {
        self.0.close_pair(pair)
    }
}
