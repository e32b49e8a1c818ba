//! The calls: each enters the world, counts itself, and lets it advance a little.

use super::{Device, Domain, Listener, Manager, Memory, Pair, Queue, Region};
use crate::fabric::{
    Access, BATCH_MAX, Call, Capacity, Completion, Error, Event, Fabric, Facts, Fault, News,
    Patience, PostError, Private, Receive, Remote, Work,
};
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};
use core::ptr::NonNull;

impl Fabric for Memory {
    type Manager = Manager;
    type Listener = Listener;
    type Device = Device;
    type Domain = Domain;
    type Queue = Queue;
    type Region = Region;
    type Pair = Pair;

    fn open_manager(&self) -> Result<Manager, Error> {
        let host = self.host;
        self.call(Call::OpenManager, |w| {
            let (number, fd) = w.open_manager(host)?;
            Ok(Manager { number, fd })
        })
    }

    fn manager_fd(&self, manager: &Manager) -> c_int {
        manager.fd
    }

    fn next_event(&self, manager: &Manager) -> Result<Option<Event<Pair>>, Error> {
        let mut world = self.enter(Call::NextEvent)?;
        world.advance_for_news(manager.number);
        Ok(world.next_event(manager.number).map(|event| {
            let news = match event.news {
                News::Resolved => News::Resolved,
                News::Request { pair, private } => {
                    News::Request { pair: Pair { number: pair }, private }
                }
                News::Established { private } => News::Established { private },
                News::Refused { reason, private } => News::Refused { reason, private },
                News::Unreachable { errno } => News::Unreachable { errno },
                News::Disconnected => News::Disconnected,
                News::DeviceRemoved => News::DeviceRemoved,
            };
            Event { token: event.token, news }
        }))
    }

    fn close_manager(&self, manager: Manager) -> Result<(), Error> {
        self.call(Call::Close, |w| w.close_manager(manager.number))
    }

    fn open_device(&self, manager: &Manager, address: IpAddr, token: u64) -> Result<Device, Error> {
        let host = self.host;
        self.call(Call::OpenDevice, |w| {
            let (number, fd, facts) = w.open_device(host, manager.number, address, token)?;
            Ok(Device { number, fd, facts })
        })
    }

    fn facts<'a>(&self, device: &'a Device) -> &'a Facts {
        &device.facts
    }

    fn is_on(&self, device: &Device, pair: &Pair) -> bool {
        self.net.world.lock().is_on(device.number, pair.number)
    }

    fn device_fd(&self, device: &Device) -> c_int {
        device.fd
    }

    fn next_fault(&self, device: &Device) -> Result<Option<Fault>, Error> {
        let mut world = self.enter(Call::NextFault)?;
        Ok(world.next_fault(device.number))
    }

    fn close_device(&self, device: Device) -> Result<(), Error> {
        self.call(Call::Close, |w| w.close_device(device.number))
    }

    fn open_domain(&self, device: &Device) -> Result<Domain, Error> {
        self.call(Call::OpenDomain, |w| Ok(Domain { number: w.open_domain(device.number)? }))
    }

    fn close_domain(&self, domain: Domain) -> Result<(), Error> {
        self.call(Call::Close, |w| w.close_domain(domain.number))
    }

    fn open_queue(&self, device: &Device, entries: u32, vector: u32) -> Result<Queue, Error> {
        self.call(Call::OpenQueue, |w| {
            let (number, fd) = w.open_queue(device.number, entries, vector)?;
            Ok(Queue { number, fd })
        })
    }

    fn queue_name(&self, queue: &Queue) -> usize {
        queue.number as usize
    }

    fn queue_fd(&self, queue: &Queue) -> c_int {
        queue.fd
    }

    fn poll(&self, queue: &Queue, out: &mut [Completion]) -> Result<usize, Error> {
        let each = self.net.world.lock().each_poll_of(self.host);
        if let Some(each) = each {
            each();
        }
        let mut world = self.enter(Call::Poll)?;
        world.advance_for(queue.number);
        Ok(world.poll(queue.number, out))
    }

    fn arm(&self, queue: &Queue) -> Result<(), Error> {
        let mut world = self.enter(Call::Arm)?;
        world.arm(queue.number);
        Ok(())
    }

    fn clear(&self, queue: &Queue) -> Result<u32, Error> {
        let mut world = self.enter(Call::Clear)?;
        Ok(world.clear(queue.number))
    }

    fn close_queue(&self, queue: Queue) -> Result<(), Error> {
        self.call(Call::Close, |w| w.close_queue(queue.number))
    }

    unsafe fn register(
        &self,
        domain: &Domain,
        at: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<Region, Error> {
        self.call(Call::Register, |w| {
            let address = at.as_ptr().expose_provenance();
            let (number, key) = w.register(domain.number, address, bytes, access)?;
            Ok(Region { number, remote: Remote { address: address as u64, key }, bytes })
        })
    }

    fn remote(&self, region: &Region) -> Remote {
        region.remote
    }

    fn close_region(&self, region: Region) -> Result<(), Error> {
        self.call(Call::Close, |w| w.close_region(region.number))
    }

    fn listen(
        &self,
        manager: &Manager,
        address: SocketAddr,
        backlog: u32,
        token: u64,
    ) -> Result<Listener, Error> {
        let host = self.host;
        self.call(Call::Listen, |w| {
            let (number, port) = w.listen(host, manager.number, address, backlog, token)?;
            Ok(Listener { number, port })
        })
    }

    fn port(&self, listener: &Listener) -> u16 {
        listener.port
    }

    fn close_listener(&self, listener: Listener) -> Result<(), Error> {
        self.call(Call::Close, |w| w.close_listener(listener.number))
    }

    fn resolve(
        &self,
        manager: &Manager,
        from: IpAddr,
        to: SocketAddr,
        _timeout_ms: u32,
        token: u64,
    ) -> Result<Pair, Error> {
        let host = self.host;
        self.call(Call::Resolve, |w| {
            let number = w.resolve(host, manager.number, from, to, token)?;
            Ok(Pair { number })
        })
    }

    fn set_token(&self, pair: &mut Pair, token: u64) {
        self.net.world.lock().set_token(pair.number, token);
    }

    fn set_class(&self, pair: &mut Pair, class: u8) -> Result<(), Error> {
        self.call(Call::SetClass, |w| w.set_class(pair.number, class))
    }

    fn create(
        &self,
        pair: &mut Pair,
        domain: &Domain,
        queue: &Queue,
        capacity: Capacity,
    ) -> Result<Capacity, Error> {
        self.call(Call::Create, |w| w.create(pair.number, domain.number, queue.number, capacity))
    }

    fn connect(&self, pair: &mut Pair, private: &[u8], _patience: Patience) -> Result<(), Error> {
        self.call(Call::Connect, |w| w.connect(pair.number, Private::new(private)))
    }

    fn accept(&self, pair: &mut Pair, private: &[u8], _patience: Patience) -> Result<(), Error> {
        self.call(Call::Accept, |w| w.accept(pair.number, Private::new(private)))
    }

    fn reject(&self, pair: Pair, private: &[u8]) -> Result<(), Error> {
        let said = self.call(Call::Reject, |w| w.reject(pair.number, Private::new(private)));
        self.close_pair(pair).and(said)
    }

    fn post(&self, pair: &Pair, works: &[Work<'_, Region>]) -> Result<(), PostError> {
        let mut world = self.net.world.lock();
        let result = works.iter().enumerate().try_for_each(|(posted, work)| {
            let refused = |errno| PostError { posted, errno, unknown: false };
            if works.len() > BATCH_MAX {
                return Err(refused(libc::EINVAL));
            }
            world.enter(self.host, Call::Post).map_err(refused)?;
            world.post(pair.number, work).map_err(refused)
        });
        world.advance();
        result
    }

    fn post_receives(
        &self,
        pair: &Pair,
        receives: &[Receive<'_, Region>],
    ) -> Result<(), PostError> {
        let mut world = self.net.world.lock();
        let result = receives.iter().enumerate().try_for_each(|(posted, receive)| {
            let refused = |errno| PostError { posted, errno, unknown: false };
            if receives.len() > BATCH_MAX {
                return Err(refused(libc::EINVAL));
            }
            world.enter(self.host, Call::PostReceives).map_err(refused)?;
            world.post_receive(pair.number, receive).map_err(refused)
        });
        world.advance();
        result
    }

    fn fail(&self, pair: &Pair) -> Result<(), Error> {
        self.call(Call::Fail, |w| w.fail(pair.number))
    }

    fn disconnect(&self, pair: &Pair) -> Result<(), Error> {
        self.call(Call::Disconnect, |w| w.disconnect(pair.number))
    }

    fn close_pair(&self, pair: Pair) -> Result<(), Error> {
        self.call(Call::Close, |w| w.close_pair(pair.number))
    }
}
