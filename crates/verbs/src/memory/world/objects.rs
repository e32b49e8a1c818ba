//! Managers, devices, regions, listeners and queues.

use super::{
    Device, Entry, FIRST_PORT, Frees, Host, Listener, Manager, Queue, Region, Result, World,
};
use crate::fabric::{Access, Completion, Facts, Fault, Name, Outcome};
use crate::sys;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};

impl World {
    pub(in crate::memory) fn open_fd() -> Result<c_int> {
        match sys::eventfd() {
            fd if fd >= 0 => Ok(fd),
            errno => Err(errno.saturating_neg()),
        }
    }

    pub(in crate::memory) fn open_manager(&mut self, host: usize) -> Result<(u64, c_int)> {
        if !self.hosts.get(host).is_some_and(|h| h.device) {
            return Err(libc::ENODEV);
        }
        let fd = Self::open_fd()?;
        let number = self.number();
        let events = VecDeque::new();
        self.managers.insert(number, Manager { host, events, fd });
        Ok((number, fd))
    }

    pub(in crate::memory) fn close_manager(&mut self, manager: u64) -> Result<()> {
        let used = self.pairs.values().any(|p| p.manager == manager)
            || self.listeners.values().any(|l| l.manager == manager)
            || self.devices.values().any(|d| d.manager == manager);
        if used {
            return Err(libc::EBUSY);
        }
        let gone = self.managers.remove(&manager).ok_or(libc::EINVAL)?;
        sys::close(gone.fd);
        Ok(())
    }

    pub(in crate::memory) fn open_device(
        &mut self,
        host: usize,
        manager: u64,
        address: IpAddr,
        token: u64,
    ) -> Result<(u64, c_int, Facts)> {
        let h = self.hosts.get(host).ok_or(libc::ENODEV)?;
        if !h.device || !h.addresses.contains(&address) {
            return Err(libc::ENODEV);
        }
        let m = h.model;
        let facts = Facts {
            transport: m.transport,
            writes_imm: m.writes_imm,
            inline_max: m.inline_max,
            depth_max: m.depth_max,
            entries_max: m.entries_max,
            pairs_max: m.pairs_max,
            regions_max: m.regions_max,
            region_bytes_max: m.region_bytes_max,
            message_bytes_max: 1 << 31,
            vectors: m.vectors,
            active: !h.down,
            survives_fork: true,
            name: Name::new(*b"memory"),
        };
        let h = self.hosts.get_mut(host).ok_or(libc::ENODEV)?;
        if h.fd < 0 {
            h.fd = Self::open_fd()?;
        }
        let fd = h.fd;
        let number = self.number();
        self.devices.insert(number, Device { host, manager, token });
        Ok((number, fd, facts))
    }

    pub(in crate::memory) fn close_device(&mut self, device: u64) -> Result<()> {
        let used = self.domains.values().any(|d| *d == device)
            || self.queues.values().any(|q| q.device == device);
        if used {
            return Err(libc::EBUSY);
        }
        self.devices.remove(&device).map(drop).ok_or(libc::EINVAL)
    }

    pub(in crate::memory) fn open_domain(&mut self, device: u64) -> Result<u64> {
        self.host_of(device)?;
        let number = self.number();
        self.domains.insert(number, device);
        Ok(number)
    }

    pub(in crate::memory) fn close_domain(&mut self, domain: u64) -> Result<()> {
        let used = self.pairs.values().any(|p| p.domain == Some(domain))
            || self.regions.values().any(|r| r.domain == domain);
        if used {
            return Err(libc::EBUSY);
        }
        self.domains.remove(&domain).map(drop).ok_or(libc::EINVAL)
    }

    /// The device of a domain, in case that is open.
    pub(in crate::memory) fn device_of(&self, domain: Option<u64>) -> Option<u64> {
        domain.and_then(|domain| self.domains.get(&domain)).copied()
    }

    /// The host of a device that is still there.
    pub(in crate::memory) fn host_of(&self, device: u64) -> Result<&Host> {
        let d = self.devices.get(&device).ok_or(libc::EINVAL)?;
        let host = self.hosts.get(d.host).ok_or(libc::ENODEV)?;
        if host.device { Ok(host) } else { Err(libc::EIO) }
    }

    pub(in crate::memory) fn is_on(&self, device: u64, pair: u64) -> bool {
        match (self.devices.get(&device), self.pairs.get(&pair)) {
            (Some(d), Some(p)) => d.host == p.host,
            _ => false,
        }
    }

    pub(in crate::memory) fn register(
        &mut self,
        domain: u64,
        address: usize,
        bytes: usize,
        access: Access,
    ) -> Result<(u64, u32)> {
        let device = self.device_of(Some(domain)).ok_or(libc::EINVAL)?;
        let model = self.host_of(device)?.model;
        let host = self.devices.get(&device).map(|d| d.host);
        if bytes == 0 || bytes as u64 > model.region_bytes_max {
            return Err(libc::EINVAL);
        }
        let (mut count, mut sum) = (0u32, bytes as u64);
        for r in self.regions.values() {
            let device =
                self.device_of(Some(r.domain)).and_then(|device| self.devices.get(&device));
            if device.map(|d| d.host) == host {
                count = count.wrapping_add(1);
                sum = sum.saturating_add(r.bytes as u64);
            }
        }
        if count >= model.regions_max || sum > model.registered_max {
            return Err(libc::ENOMEM);
        }
        let number = self.number();
        // Not the number itself, so that nobody takes one for the other.
        let key = (number as u32).wrapping_mul(0x9e37_79b1) ^ 0x5bd1_e995;
        self.regions.insert(number, Region { domain, address, bytes, access, key });
        Ok((number, key))
    }

    pub(in crate::memory) fn close_region(&mut self, region: u64) -> Result<()> {
        self.regions.remove(&region).map(drop).ok_or(libc::EINVAL)
    }

    pub(in crate::memory) fn listen(
        &mut self,
        host: usize,
        manager: u64,
        address: SocketAddr,
        backlog: u32,
        token: u64,
    ) -> Result<(u64, u16)> {
        let h = self.hosts.get(host).ok_or(libc::ENODEV)?;
        if !h.device || !h.addresses.contains(&address.ip()) {
            return Err(libc::ENODEV);
        }
        let taken = |port: u16| {
            (self.listeners.values()).any(|l| l.address == SocketAddr::new(address.ip(), port))
        };
        let port = match address.port() {
            0 => (FIRST_PORT..u16::MAX).find(|port| !taken(*port)).ok_or(libc::EADDRINUSE)?,
            port if taken(port) => return Err(libc::EADDRINUSE),
            port => port,
        };
        let number = self.number();
        self.listeners.insert(
            number,
            Listener {
                host,
                manager,
                address: SocketAddr::new(address.ip(), port),
                backlog: backlog as usize,
                token,
            },
        );
        Ok((number, port))
    }

    pub(in crate::memory) fn close_listener(&mut self, listener: u64) -> Result<()> {
        self.listeners.remove(&listener).ok_or(libc::EINVAL)?;
        // Requests that nobody has taken go with it.
        let waiting = self.pairs.iter().filter(|(_, p)| p.waits_at == Some(listener));
        for pair in waiting.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.close_pair(pair)?;
        }
        Ok(())
    }

    pub(in crate::memory) fn open_queue(
        &mut self,
        device: u64,
        entries: u32,
        vector: u32,
    ) -> Result<(u64, c_int)> {
        let vectors = self.host_of(device)?.model.vectors;
        let vector = vector.checked_rem(vectors).unwrap_or(0);
        if entries == 0 || entries > self.host_of(device)?.model.entries_max {
            return Err(libc::EINVAL);
        }
        let fd = Self::open_fd()?;
        let number = self.number();
        self.queues.insert(
            number,
            Queue {
                device,
                capacity: entries as usize,
                vector,
                entries: VecDeque::new(),
                armed: false,
                wake_ups: 0,
                lost: false,
                fd,
            },
        );
        Ok((number, fd))
    }

    pub(in crate::memory) fn close_queue(&mut self, queue: u64) -> Result<()> {
        if self.pairs.values().any(|p| p.queue == Some(queue)) {
            return Err(libc::EBUSY);
        }
        let gone = self.queues.remove(&queue).ok_or(libc::EINVAL)?;
        sys::close(gone.fd);
        Ok(())
    }

    pub(in crate::memory) fn arm(&mut self, queue: u64) {
        if let Some(q) = self.queues.get_mut(&queue) {
            q.armed = true;
        }
    }

    pub(in crate::memory) fn clear(&mut self, queue: u64) -> u32 {
        self.queues.get_mut(&queue).map_or(0, |q| {
            sys::lower(q.fd);
            core::mem::take(&mut q.wake_ups)
        })
    }

    pub(in crate::memory) fn poll(&mut self, queue: u64, out: &mut [Completion]) -> usize {
        let mut taken = 0usize;
        for to in out {
            let entry = self.queues.get_mut(&queue).and_then(|q| q.entries.pop_front());
            let Some(entry) = entry else { break };
            *to = entry.completion;
            taken = taken.wrapping_add(1);
            let Some(pair) = self.pairs.get_mut(&entry.pair) else {
                continue;
            };
            match entry.frees {
                Frees::Sends(number) => pair.freed = pair.freed.max(number),
                Frees::Receive => pair.receives_used = pair.receives_used.saturating_sub(1),
            }
        }
        taken
    }

    fn lose_queue(&mut self, queue: u64) {
        let Some(q) = self.queues.get_mut(&queue) else {
            return;
        };
        q.lost = true;
        let device = q.device;
        let on: Vec<u64> = (self.pairs.iter())
            .filter(|(_, p)| p.queue == Some(queue))
            .map(|(number, _)| *number)
            .collect();
        if let Some(host) = self.devices.get(&device).map(|d| d.host) {
            self.report(host, Fault::QueueLost(queue as usize));
        }
        for pair in on {
            self.break_pair(pair);
        }
    }

    pub(in crate::memory) fn lose_queue_named(&mut self, name: usize) {
        self.lose_queue(name as u64);
        self.advance();
    }

    pub(in crate::memory) fn lose_queues(&mut self, host: usize) {
        let on = |device: &u64| self.devices.get(device).is_some_and(|d| d.host == host);
        let all: Vec<u64> = (self.queues.iter())
            .filter(|(_, q)| on(&q.device) && !q.lost)
            .map(|(number, _)| *number)
            .collect();
        for queue in all {
            self.lose_queue(queue);
        }
        self.advance();
    }

    pub(in crate::memory) fn complete(
        &mut self,
        pair: u64,
        id: u64,
        outcome: Outcome,
        frees: Frees,
    ) {
        let Some(queue) = self.pairs.get(&pair).and_then(|p| p.queue) else {
            return;
        };
        let Some(q) = self.queues.get_mut(&queue) else {
            return;
        };
        if q.lost {
            return;
        }
        if q.entries.len() >= q.capacity {
            return self.lose_queue(queue);
        }
        q.entries.push_back(Entry { completion: Completion { id, outcome }, pair, frees });
        if q.armed {
            q.armed = false;
            q.wake_ups = q.wake_ups.wrapping_add(1);
            sys::raise(q.fd);
        }
    }
}
