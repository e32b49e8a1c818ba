//! The libraries, the devices, and their queues. (Who polls them while nobody else does:
//! `io_threads`.)

use super::io_threads::{self, IoThreads};
use super::net::{self, Net};
use super::{EVENT_DEVICE, EVENT_MANAGER, LOADED, LOADED_BY, Remote, forget_known, unwatch, watch};
use crate::log::{debug_log, warn_log};
use crate::queues::{self, Queue};
use crate::{config, host, process, sys};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicBool, AtomicU64};
use netacc_control::stats::Reason;
use netacc_rdma::{HubError, Settings};
use netacc_verbs::fabric::{Error, Fabric as _, Facts, Fault, Transport};

/// An address that no device has is looked at again after so long.
const NO_DEVICE_NS: u64 = 60_000_000_000;
/// A device that failed is opened again after so long.
const FAILED_NS: u64 = 5_000_000_000;
/// A port may be down for so long before its pairs are given up.
const DOWN_NS: u64 = 100_000_000;
/// A queue that is lost, and that somebody uses, is looked at again after so long.
const RETIRED_NS: u64 = 100_000_000;
/// Requests, and receives, of a pair with many connections, where the device has as many.
const DEPTH: u32 = 128;
/// Bytes that go inline, where the device takes them: any message fits.
const INLINE: u32 = 64;
/// Entries of a device's first queue, where it has as many; the second has twice, the others four
/// times as many, so that a process has room for 15,744 pairs of the least depth.
const ENTRIES: u32 = 8192;
/// libibverbs prints a warning where so little, or less, may be locked and the user is not root
/// (ibv_dontfork.c, `ibv_get_device_list`).
const MEMLOCK_MIN: u64 = 32 << 10;

/// A device, by one of its addresses.
pub(super) struct Device {
    pub(super) address: IpAddr,
    /// `None`: it is gone; links that were on it still name the place.
    pub(super) device: Option<net::Device>,
    pub(super) queues: Vec<&'static Queue>,
    /// When its port went down; 0: it is up.
    down_since: u64,
}

#[derive(Default)]
pub(super) struct Devices {
    verbs: Option<Result<Net, Reason>>,
    /// They were another process's: of use to look up what this memory says of devices.
    abandoned: Option<Net>,
    pub(super) manager: Option<net::Manager>,
    pub(super) list: Vec<Device>,
    /// Addresses that cannot be served: why, and until when they are not looked at again.
    failed: Vec<(IpAddr, Reason, u64)>,
    pub(super) io_threads: IoThreads,
    /// Queues that are lost, and are closed when nobody uses them any more.
    pub(super) retired: Vec<&'static Queue>,
}

/// Errors of the fabric's as a reason.
pub(super) fn reason_of(e: Error) -> Reason {
    debug_log!("{:?} is refused: errno {}", e.call, e.errno);
    match e.errno {
        libc::ENOMEM => Reason::MemlockLimit,
        libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENOENT => Reason::NoRdmaDevice,
        libc::EMFILE | libc::ENFILE => Reason::NoDescriptor,
        _ => Reason::RdmaRefused,
    }
}

/// For how long an address that could not be served is left alone.
pub(super) fn pause_after(why: Reason) -> u64 {
    if why == Reason::NoRdmaDevice { NO_DEVICE_NS } else { FAILED_NS }
}

/// Requests, and receives, that a pair on this device has at most. (A queue has room for both.)
pub(super) fn depth(facts: &Facts) -> u32 {
    facts.depth_max.min(facts.entries_max / 2).min(DEPTH)
}

/// Repeats what is answered `Busy` until it is not: somebody polls, which takes microseconds.
pub(super) fn until_free<T>(mut f: impl FnMut() -> Result<T, HubError>) -> Result<T, HubError> {
    loop {
        match f() {
            Err(HubError::Busy) => sys::sched_yield(),
            other => return other,
        };
    }
}

/// What a pair for so many connections is made with, `receives` being what the peer says of its
/// device ([`depth`]). Both ends reckon alike, but for what their devices take inline.
pub(super) fn settings(lanes: u16, immediate: bool, facts: &Facts, receives: u16) -> Settings {
    let depth = (u32::from(lanes) * 16).clamp(32, DEPTH).min(depth(facts)).min(receives.into());
    let turn_bytes = config::get().buffer_bytes.max(4096);
    Settings {
        sends: depth,
        receives: depth,
        peer_receives: depth,
        inline_bytes: facts.inline_max.min(INLINE),
        immediate,
        lanes,
        turn_bytes,
    }
}

impl Devices {
    /// The libraries' state is another process's from here on: nothing of it is touched.
    pub(super) fn abandon(&mut self) {
        self.abandoned = self.verbs();
        self.verbs = Some(Err(Reason::RdmaLost));
    }

    pub(super) fn verbs(&self) -> Option<Net> {
        self.verbs.as_ref()?.as_ref().ok().cloned()
    }

    fn load(&mut self) -> Result<Net, Reason> {
        if self.verbs.is_none() {
            self.verbs = Some(Self::load_once());
        }
        match &self.verbs {
            Some(Err(why)) => Err(*why),
            _ => self.verbs().ok_or(Reason::RdmaCoreMissing),
        }
    }

    fn load_once() -> Result<Net, Reason> {
        if sys::memlock_limit() <= MEMLOCK_MIN && !host::may_lock_all() {
            warn_log!(
                "RLIMIT_MEMLOCK is {} bytes: too little for RDMA (ulimit -l; LimitMEMLOCK= of a systemd unit; memlock in limits.conf)",
                sys::memlock_limit()
            );
            Err(Reason::MemlockLimit)
        } else {
            LOADED_BY.store(process::id(), Relaxed);
            LOADED.store(true, Release);
            net::load().map_err(|e| {
                warn_log!("RDMA cannot be used: {e}");
                Reason::RdmaCoreMissing
            })
        }
    }
}

impl Remote {
    /// The device that has `address`.
    pub(super) fn device_at(&mut self, address: IpAddr) -> Result<usize, Reason> {
        if let Some(i) =
            self.devices.list.iter().position(|d| d.address == address && d.device.is_some())
        {
            return if self.devices.list.get(i).is_some_and(|d| d.down_since == 0) {
                Ok(i)
            } else {
                Err(Reason::NoRdmaDevice)
            };
        }
        let now = sys::now_ns();
        if let Some((_, why, _)) =
            self.devices.failed.iter().find(|(a, _, until)| *a == address && now < *until)
        {
            return Err(*why);
        }
        self.devices.failed.retain(|(a, _, until)| *a != address && now < *until);
        self.open_device(address).inspect_err(|why| {
            if self.devices.failed.len() < 256 {
                self.devices.failed.push((address, *why, now + pause_after(*why)));
            }
        })
    }

    /// The device that has `address` is there, and its port is down: that passes.
    pub(super) fn is_down(&self, address: IpAddr) -> bool {
        self.devices
            .list
            .iter()
            .any(|d| d.address == address && d.device.is_some() && d.down_since != 0)
    }

    fn open_device(&mut self, address: IpAddr) -> Result<usize, Reason> {
        let verbs = self.devices.load()?;
        if self.devices.manager.is_none() {
            let manager = verbs.open_manager().map_err(reason_of)?;
            if !watch(self.epoll, verbs.manager_fd(&manager), libc::EPOLLIN as u32, EVENT_MANAGER) {
                return Err(Reason::NoDescriptor);
            }
            self.devices.manager = Some(manager);
        }
        let place = self
            .devices
            .list
            .iter()
            .position(|d| d.address == address)
            .unwrap_or(self.devices.list.len());
        let Some(manager) = self.devices.manager.as_ref() else { return Err(Reason::RdmaRefused) };
        let device =
            verbs.open_device(manager, address, TOKEN_DEVICE | place as u64).map_err(|e| {
                debug_log!("{address}: no RDMA device: {:?}: errno {}", e.call, e.errno);
                reason_of(e)
            })?;
        let facts = *verbs.facts(&device);
        if !facts.survives_fork || !facts.active {
            debug_log!(
                "{address}: device {} cannot be used: active {}, survives fork {}",
                facts.name.as_str(),
                facts.active,
                facts.survives_fork
            );
            let _ = verbs.close_device(device);
            return Err(if facts.active { Reason::RdmaRefused } else { Reason::NoRdmaDevice });
        }
        let fd = verbs.device_fd(&device);
        let _ = watch(self.epoll, fd, libc::EPOLLIN as u32, EVENT_DEVICE | place as u64);
        debug_log!(
            "{address}: device {}, writes with immediate: {}",
            facts.name.as_str(),
            facts.writes_imm
        );
        let new = Device { address, device: Some(device), queues: Vec::new(), down_since: 0 };
        match self.devices.list.get_mut(place) {
            Some(old) => *old = new,
            None => self.devices.list.push(new),
        }
        Ok(place)
    }

    /// Pairs and regions that this process has on the device.
    fn used(&self, device: usize) -> (usize, usize) {
        let same = self.same_device(device);
        let (mut pairs, mut regions) = (0, 0);
        for l in self.links.iter().flatten().filter(|l| same.contains(&l.device)) {
            let here = l.pairs.iter().filter(|p| p.engine.is_some()).count();
            pairs += here;
            regions += here + l.arenas.as_ref().map_or(0, |a| a.regions());
        }
        (pairs, regions)
    }

    /// The device can have another region, by what it said when it was opened. (0 is nothing.)
    pub(super) fn has_region(&self, device: usize, facts: &Facts) -> bool {
        facts.regions_max == 0 || self.used(device).1 < facts.regions_max as usize
    }

    /// It can have another pair, which has a region.
    pub(super) fn has_pair(&self, device: usize, facts: &Facts) -> bool {
        self.has_region(device, facts)
            && (facts.pairs_max == 0 || self.used(device).0 < facts.pairs_max as usize)
    }

    pub(super) fn facts(&self, device: usize) -> Option<Facts> {
        let verbs = self.devices.verbs().or(self.devices.abandoned.as_ref().cloned())?;
        self.devices.list.get(device)?.device.as_ref().map(|d| *verbs.facts(d))
    }

    /// A queue of the device's with room for a pair with these settings, and the pair's place on
    /// it.
    pub(super) fn seat(
        &mut self,
        device: usize,
        settings: &Settings,
    ) -> Result<(&'static Queue, netacc_rdma::Tag), Reason> {
        let me = process::tid();
        let reserve =
            |q: &'static Queue| until_free(|| q.hub.reserve(me, settings)).ok().map(|tag| (q, tag));
        let found =
            self.devices.list.get(device).and_then(|d| d.queues.iter().copied().find_map(reserve));
        if let Some(found) = found {
            return Ok(found);
        }
        let facts = self.facts(device).ok_or(Reason::NoRdmaDevice)?;
        if settings.entries() > facts.entries_max {
            return Err(Reason::RdmaRefused);
        }
        let q = self.new_queue(device)?;
        reserve(q).ok_or(Reason::RdmaRefused)
    }

    fn new_queue(&mut self, at: usize) -> Result<&'static Queue, Reason> {
        let verbs = self.devices.verbs().ok_or(Reason::RdmaCoreMissing)?;
        let config = config::get();
        let number = queues::free_place().ok_or(Reason::ChannelFull)?;
        // First, because it may fail: a queue on the list stays there.
        let epoll = self.devices.io_threads.set_of(number, config).ok_or(Reason::NoDescriptor)?;
        let most = self.facts(at).map_or(0, |f| f.entries_max);
        let d = self.devices.list.get_mut(at).ok_or(Reason::NoRdmaDevice)?;
        let device = d.device.as_ref().ok_or(Reason::NoRdmaDevice)?;
        let entries = most.min(ENTRIES << d.queues.len().min(2));
        let queue = verbs
            .open_queue(device, entries, config.comp_vector.wrapping_add(d.queues.len() as u32))
            .map_err(reason_of)?;
        let hub = netacc_rdma::Hub::new(alloc::sync::Arc::new(verbs), queue, entries);
        let queue = Box::into_raw(Box::new(Queue {
            hub,
            number,
            lost: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            visits: AtomicU64::new(0),
            polls_told: AtomicU64::new(0),
        }));
        // SAFETY: made just now; never freed unless nobody has heard of it.
        let hub_fd = unsafe { (*queue).hub.fd() };
        if !watch(epoll, hub_fd, libc::EPOLLIN as u32, queue as u64) {
            // SAFETY: as above: nobody has.
            let _ = unsafe { Box::from_raw(queue) }.hub.close(process::tid());
            return Err(Reason::NoDescriptor);
        }
        // SAFETY: as above.
        let queue: &'static Queue = unsafe { &*queue };
        queues::add_queue(queue);
        queue.arm();
        if let Some(d) = self.devices.list.get_mut(at) {
            d.queues.push(queue);
        }
        Ok(queue)
    }

    // ---- news of devices ------------------------------------------------------------------------

    pub(super) fn hear_device(&mut self, at: usize) {
        let Some(verbs) = self.devices.verbs() else { return };
        // Bounded: what is left is told again.
        for _ in 0..64 {
            let Some(d) = self.devices.list.get(at) else { return };
            let Some(device) = d.device.as_ref() else { return };
            match verbs.next_fault(device) {
                Ok(None) => return,
                Ok(Some(Fault::PortDown)) => self.port_is(device_down, at),
                Ok(Some(Fault::PortUp)) => self.port_is(device_up, at),
                Ok(Some(Fault::DeviceLost)) => {
                    self.same_device(at).into_iter().for_each(|i| self.lose_device(i));
                }
                Ok(Some(Fault::QueueLost(name))) => self.lose_queue(name),
                Ok(Some(_)) => self.look_at_pairs(),
                Err(e) => {
                    debug_log!("device {at}: {:?}: errno {}", e.call, e.errno);
                    // It would be told for ever.
                    unwatch(self.epoll, verbs.device_fd(device));
                    return;
                }
            }
        }
    }

    /// The completion queue of that name has overflowed, and tells nothing any more. (It may be one
    /// of another address of the device's: only one address is told.)
    fn lose_queue(&mut self, name: usize) {
        let Some(verbs) = self.devices.verbs() else { return };
        let is_it = |q: &&Queue| q.hub.with_queue(|q| verbs.queue_name(q)) == Some(name);
        let found = self.devices.list.iter().flat_map(|d| d.queues.iter().copied()).find(is_it);
        if let Some(queue) = found {
            self.retire(queue);
        }
    }

    /// Queues that could not be polled.
    pub(super) fn retire_lost(&mut self) {
        let all = self.devices.list.iter().flat_map(|d| d.queues.iter().copied());
        let lost: Vec<&'static Queue> = all.filter(|q| q.lost.load(Acquire)).collect();
        lost.into_iter().for_each(|q| self.retire(q));
    }

    /// That queue is lost, with its pairs: no other ones come onto it.
    fn retire(&mut self, queue: &'static Queue) {
        for d in &mut self.devices.list {
            let before = d.queues.len();
            d.queues.retain(|q| !core::ptr::eq(*q, queue));
            if d.queues.len() != before {
                warn_log!("device {}: a completion queue is lost, and its pairs", d.address);
            }
        }
        self.end_pairs_of(queue);
        self.devices.retired.push(queue);
        io_threads::forget(queue);
        self.close_retired();
    }

    /// Closes the queues that are lost and have no pairs any more: others may have their places.
    pub(super) fn close_retired(&mut self) {
        self.devices.retired.retain(|q| {
            let closed = q.hub.close(process::tid()).is_ok();
            if closed {
                q.flush();
                queues::remove_queue(q);
            }
            !closed
        });
        if !self.devices.retired.is_empty() {
            self.at(sys::now_ns() + RETIRED_NS);
        }
    }

    /// A device is opened once for each of its addresses. All of them.
    fn same_device(&self, at: usize) -> Vec<usize> {
        let name = self.facts(at).map(|f| f.name);
        let is_it = |i: &usize| self.facts(*i).map(|f| f.name) == name;
        (0..self.devices.list.len()).filter(is_it).collect()
    }

    /// News of a port concern every address of the device's, and only one is told.
    fn port_is(&mut self, change: fn(&mut Device), at: usize) {
        for i in self.same_device(at) {
            if let Some(d) = self.devices.list.get_mut(i) {
                change(d);
            }
        }
        self.devices.failed.clear();
        forget_known();
        self.at(sys::now_ns() + DOWN_NS);
        self.forget_failures();
        self.forget_pair_failures();
    }

    pub(super) fn time_devices(&mut self) {
        if !self.devices.retired.is_empty() {
            self.close_retired();
        }
        let now = sys::now_ns();
        for i in 0..self.devices.list.len() {
            let Some(down) = self.devices.list.get(i).map(|d| d.down_since).filter(|t| *t != 0)
            else {
                continue;
            };
            if now >= down + DOWN_NS {
                self.end_pairs_on(i);
            } else {
                self.at(down + DOWN_NS);
            }
        }
    }

    /// The device goes away: everything on it is closed. Whoever removes it waits for that.
    pub(super) fn lose_device(&mut self, at: usize) {
        debug_log!("device {at} goes away");
        // The links stay, which need no device: by them the connections go back to their carriers.
        self.end_pairs_on(at);
        self.leave_device(at);
        let Some(verbs) = self.devices.verbs() else { return };
        let queues = self.devices.list.get_mut(at).map(|d| core::mem::take(&mut d.queues));
        queues.into_iter().flatten().for_each(|q| self.retire(q));
        let device = self.devices.list.get_mut(at).and_then(|d| d.device.take());
        if let Some(device) = device {
            // Its descriptor outlives it (librdmacm's, and what is in the queues), with news that
            // nobody fetches any more.
            unwatch(self.epoll, verbs.device_fd(&device));
            let _ = verbs.close_device(device);
        }
    }
}

fn device_down(d: &mut Device) {
    if d.down_since == 0 {
        d.down_since = sys::now_ns();
    }
}

fn device_up(d: &mut Device) {
    d.down_since = 0;
}

/// Tokens of the manager's news: what they are about, in the upper byte.
pub(super) const TOKEN_PAIR: u64 = 1 << 56;
pub(super) const TOKEN_DEVICE: u64 = 2 << 56;
pub(super) const TOKEN_LISTENER: u64 = 3 << 56;

/// Pairs of one kind only understand each other.
pub(super) fn transport_code(t: Transport) -> u8 {
    match t {
        Transport::Infiniband => 0,
        Transport::Iwarp => 1,
        Transport::Other(_) => 0xff,
    }
}
