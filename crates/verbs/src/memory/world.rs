//! The state of a [`Net`](super::Net) and its steps.
//!
//! Objects have numbers that are never used twice; what refers to a closed object finds nothing. A
//! pair's life:
//!
//! ```text
//!  resolve ─▶ Resolving ─▶ Resolved ─connect─▶ Connecting ─▶ Connected ─▶ Broken
//!  request ───────────────▶ Requested ──────accept──────────▶ Connected
//! ```
//!
//! A work request of InfiniBand's kind takes effect at the peer first (`taken`) and is acknowledged
//! afterwards; one of iWARP's kind completes when it goes onto the wire, and takes effect
//! afterwards. Whatever breaks a pair between the two leaves the sender with the wrong idea, as it
//! does with real devices.

mod connect;
mod objects;
mod steps;
mod work;

use super::{Model, Objects, Order, Segment};
use crate::fabric::*;
use crate::sys;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};

type Result<T> = core::result::Result<T, c_int>;

/// Steps after which a world that still has some is taken for one that never ends.
const STEPS_MAX: u32 = 1_000_000;
/// Reasons of a refusal, as the connection managers give them.
const NO_LISTENER: c_int = 8;
const CONSUMER: c_int = 28;
/// Where ports that are asked for with 0 begin.
const FIRST_PORT: u16 = 49152;

pub(super) struct World {
    order: Order,
    random: u64,
    next: u64,
    hosts: Vec<Host>,
    managers: BTreeMap<u64, Manager>,
    devices: BTreeMap<u64, Device>,
    /// Protection domains, and the device of each.
    domains: BTreeMap<u64, u64>,
    queues: BTreeMap<u64, Queue>,
    regions: BTreeMap<u64, Region>,
    listeners: BTreeMap<u64, Listener>,
    pairs: BTreeMap<u64, Pair>,
    /// Messages of the connection manager, to the pair that each is for.
    messages: Vec<(u64, Message)>,
}

pub(super) struct Host {
    /// All of one device.
    addresses: Vec<IpAddr>,
    model: Model,
    /// Its program runs.
    alive: bool,
    /// It has power.
    on: bool,
    down: bool,
    /// Nothing of so many bytes, or behind that, arrives of what its pairs send.
    mute: Option<usize>,
    device: bool,
    /// What happens at each poll of its program's.
    each_poll: Option<fn()>,
    calls: BTreeMap<Call, u64>,
    failing: Vec<(Call, u64, c_int)>,
    /// News of the device, once, however often it was opened.
    faults: VecDeque<Fault>,
    /// Readable when there are some. Below 0: it was never opened.
    fd: c_int,
}

pub(super) struct Manager {
    host: usize,
    events: VecDeque<Event<u64>>,
    fd: c_int,
}

pub(super) struct Device {
    host: usize,
    manager: u64,
    token: u64,
}

pub(super) struct Queue {
    device: u64,
    capacity: usize,
    vector: u32,
    entries: VecDeque<Entry>,
    armed: bool,
    wake_ups: u32,
    lost: bool,
    fd: c_int,
}

pub(super) struct Entry {
    completion: Completion,
    pair: u64,
    /// Which of the pair's queues, and up to which request slots are free when this is polled.
    frees: Frees,
}

#[derive(Clone, Copy)]
pub(super) enum Frees {
    Sends(u64),
    Receive,
}

pub(super) struct Region {
    domain: u64,
    address: usize,
    bytes: usize,
    access: Access,
    key: u32,
}

pub(super) struct Listener {
    host: usize,
    manager: u64,
    address: SocketAddr,
    backlog: usize,
    token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Resolving,
    Resolved,
    Connecting,
    Requested,
    Connected,
    Broken,
}

pub(super) struct Pair {
    host: usize,
    manager: u64,
    token: u64,
    phase: Phase,
    /// Where it wants to go, or where it was wanted.
    to: SocketAddr,
    /// The traffic class of its packets.
    class: u8,
    peer: Option<u64>,
    /// It asked; the other end was asked.
    asked: bool,
    /// The listener that nobody has taken its request from yet.
    waits_at: Option<u64>,
    domain: Option<u64>,
    queue: Option<u64>,
    capacity: Capacity,
    sends: VecDeque<Send>,
    /// iWARP: on their way to the peer.
    wire: VecDeque<Payload>,
    /// iWARP: what is on the wire came before the peer was ready, and lies there until more comes.
    asleep: bool,
    /// Something of the peer's has arrived.
    heard: bool,
    receives: VecDeque<(u64, Option<Segment>)>,
    posted: u64,
    freed: u64,
    receives_used: u32,
    /// It was connected once: both ends are told of the end.
    told: bool,
}

pub(super) struct Send {
    id: u64,
    number: u64,
    signaled: bool,
    what: What,
    inline: Option<Vec<u8>>,
    /// It has had its effect at the peer.
    taken: bool,
}

#[derive(Clone, Copy)]
pub(super) enum What {
    Write { from: Option<Segment>, to: Remote },
    WriteImm { from: Option<Segment>, to: Remote, imm: u32 },
    Send { from: Option<Segment> },
}

impl Send {
    fn bytes(&self) -> usize {
        let (What::Write { from, .. } | What::WriteImm { from, .. } | What::Send { from }) =
            self.what;
        self.inline.as_ref().map_or(from.map_or(0, |from| from.bytes), Vec::len)
    }
}

/// A request with its bytes.
pub(super) struct Payload {
    what: What,
    bytes: Vec<u8>,
}

pub(super) enum Message {
    Resolve,
    Request { private: Private },
    Accepted { private: Private },
    Ready,
    Rejected { private: Private, reason: c_int },
    Disconnected { from: usize },
}

/// A possible step.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// The first message for this pair.
    Message(u64),
    /// The first request of this pair that has had no effect: has it, or goes onto the wire.
    Take(u64),
    /// The first request of this pair is acknowledged.
    Acknowledge(u64),
    /// The first payload on this pair's wire arrives.
    Arrive(u64),
}

/// Why a request has no effect at the peer.
pub(super) enum Refusal {
    /// It waits for a receive.
    NotReady,
    /// Our own memory is not what the request said.
    Local,
    /// The peer's access check.
    Access,
    /// The receive was too short.
    Length,
}

impl World {
    pub(super) fn new(order: Order) -> Self {
        let seed = match order {
            Order::Prompt => 1,
            Order::Shuffled(seed) => seed,
        };
        Self {
            order,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            next: 1,
            hosts: Vec::new(),
            managers: BTreeMap::new(),
            devices: BTreeMap::new(),
            domains: BTreeMap::new(),
            queues: BTreeMap::new(),
            regions: BTreeMap::new(),
            listeners: BTreeMap::new(),
            pairs: BTreeMap::new(),
            messages: Vec::new(),
        }
    }

    /// A number below `below`, which is not 0. (xorshift64*)
    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let r = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        (r as usize).checked_rem(below).unwrap_or(0)
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    // ---- hosts ----------------------------------------------------------------------------------

    pub(super) fn add_host(&mut self, address: IpAddr, model: Model) -> usize {
        self.hosts.push(Host {
            addresses: alloc::vec![address],
            model,
            alive: true,
            on: true,
            down: false,
            mute: None,
            device: true,
            each_poll: None,
            calls: BTreeMap::new(),
            failing: Vec::new(),
            faults: VecDeque::new(),
            fd: -1,
        });
        self.hosts.len().wrapping_sub(1)
    }

    pub(super) fn add_address(&mut self, host: usize, address: IpAddr) {
        if let Some(h) = self.hosts.get_mut(host) {
            h.addresses.push(address);
        }
    }

    /// The host's network works, whatever its device does.
    fn is_up(&self, host: usize) -> bool {
        self.hosts.get(host).is_some_and(|h| h.on && !h.down)
    }

    /// The host takes part in the net.
    fn connected(&self, host: usize) -> bool {
        self.hosts.get(host).is_some_and(|h| h.on && h.device && !h.down)
    }

    fn is_iwarp(&self, host: usize) -> bool {
        self.hosts.get(host).is_some_and(|h| h.model.transport == Transport::Iwarp)
    }

    pub(super) fn enter(&mut self, host: usize, call: Call) -> Result<()> {
        let host = self.hosts.get_mut(host).ok_or(libc::ENODEV)?;
        let count = host.calls.entry(call).or_insert(0);
        *count = count.wrapping_add(1);
        let mut errno = 0;
        for (which, left, with) in &mut host.failing {
            if *which == call && *left > 0 {
                *left = left.wrapping_sub(1);
                if *left == 0 {
                    errno = *with;
                }
            }
        }
        host.failing.retain(|(_, left, _)| *left > 0);
        if errno == 0 { Ok(()) } else { Err(errno) }
    }

    pub(super) fn fail_call(&mut self, host: usize, call: Call, nth: u64, errno: c_int) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.failing.push((call, nth, errno));
        }
    }

    pub(super) fn calls(&self, host: usize, call: Call) -> u64 {
        let host = self.hosts.get(host);
        host.and_then(|h| h.calls.get(&call)).copied().unwrap_or(0)
    }

    pub(super) fn objects(&self, host: usize) -> Objects {
        let on = |device: &u64| self.devices.get(device).is_some_and(|d| d.host == host);
        Objects {
            managers: self.managers.values().filter(|m| m.host == host).count(),
            devices: self.devices.values().filter(|d| d.host == host).count(),
            queues: self.queues.values().filter(|q| on(&q.device)).count(),
            domains: self.domains.values().filter(|d| on(d)).count(),
            regions: self
                .regions
                .values()
                .filter(|r| self.domains.get(&r.domain).is_some_and(on))
                .count(),
            listeners: self.listeners.values().filter(|l| l.host == host).count(),
            pairs: self.pairs.values().filter(|p| p.host == host).count(),
        }
    }

    fn pairs_of(&self, host: usize) -> Vec<u64> {
        let of = self.pairs.iter().filter(|(_, p)| p.host == host);
        of.map(|(number, _)| *number).collect()
    }

    /// The completion vectors of the host's queues, in the order in which these were opened.
    pub(super) fn vectors(&self, host: usize) -> Vec<u32> {
        let on = |q: &&Queue| self.devices.get(&q.device).is_some_and(|d| d.host == host);
        self.queues.values().filter(on).map(|q| q.vector).collect()
    }

    pub(super) fn at_each_poll(&mut self, host: usize, each: Option<fn()>) {
        if let Some(h) = self.hosts.get_mut(host) {
            h.each_poll = each;
        }
    }

    pub(super) fn each_poll_of(&self, host: usize) -> Option<fn()> {
        self.hosts.get(host).and_then(|h| h.each_poll)
    }

    /// The traffic classes of the host's connected pairs, in the order in which these were begun.
    pub(super) fn classes(&self, host: usize) -> Vec<u8> {
        let on = |p: &&Pair| p.host == host && p.phase == Phase::Connected;
        self.pairs.values().filter(on).map(|p| p.class).collect()
    }

    pub(super) fn break_pairs(&mut self, host: usize) {
        for pair in self.pairs_of(host) {
            if self.pairs.get(&pair).is_some_and(|p| p.phase == Phase::Connected) {
                self.break_pair(pair);
            }
        }
        self.advance();
    }

    pub(super) fn lose_listeners(&mut self, host: usize) {
        self.listeners.retain(|_, l| l.host != host);
    }

    pub(super) fn kill(&mut self, host: usize) {
        for pair in self.pairs_of(host) {
            let _ = self.close_pair(pair);
        }
        self.lose_listeners(host);
        if let Some(h) = self.hosts.get_mut(host) {
            h.alive = false;
        }
        self.advance();
    }

    pub(super) fn power_off(&mut self, host: usize) {
        if let Some(h) = self.hosts.get_mut(host) {
            h.alive = false;
            h.on = false;
        }
    }

    pub(super) fn cut(&mut self, host: usize, down: bool) {
        let Some(h) = self.hosts.get_mut(host) else {
            return;
        };
        if h.down != down {
            h.down = down;
            let fault = if down { Fault::PortDown } else { Fault::PortUp };
            self.report(host, fault);
        }
        self.advance();
    }

    pub(super) fn mute(&mut self, host: usize, mute: Option<usize>) {
        if let Some(h) = self.hosts.get_mut(host) {
            h.mute = mute;
        }
        self.advance();
    }

    /// Whether a message of so many bytes of that host's is lost.
    fn is_mute(&self, host: usize, bytes: usize) -> bool {
        self.hosts.get(host).and_then(|h| h.mute).is_some_and(|from| bytes >= from)
    }

    pub(super) fn remove_device(&mut self, host: usize) {
        for pair in self.pairs_of(host) {
            if self.is_iwarp(host) {
                self.hang_up(pair);
            }
            self.break_pair(pair);
            if let Some(p) = self.pairs.get(&pair) {
                let (manager, token) = (p.manager, p.token);
                self.tell(manager, token, News::DeviceRemoved);
            }
        }
        let others: Vec<(u64, u64)> = (self.devices.values().filter(|d| d.host == host))
            .map(|d| (d.manager, d.token))
            .chain(
                (self.listeners.values().filter(|l| l.host == host)).map(|l| (l.manager, l.token)),
            )
            .collect();
        for (manager, token) in others {
            self.tell(manager, token, News::DeviceRemoved);
        }
        self.report(host, Fault::DeviceLost);
        if let Some(h) = self.hosts.get_mut(host) {
            h.device = false;
        }
        self.advance();
    }

    pub(super) fn add_device(&mut self, host: usize) {
        if let Some(h) = self.hosts.get_mut(host) {
            h.device = true;
            // It is another one: what was said of the last nobody hears any more.
            h.faults.clear();
            sys::lower(h.fd);
        }
    }

    // ---- news -----------------------------------------------------------------------------------

    fn tell(&mut self, manager: u64, token: u64, news: News<u64>) {
        if let Some(m) = self.managers.get_mut(&manager) {
            m.events.push_back(Event { token, news });
            sys::raise(m.fd);
        }
    }

    fn tell_pair(&mut self, pair: u64, news: News<u64>) {
        if let Some((manager, token)) = self.pairs.get(&pair).map(|p| (p.manager, p.token)) {
            self.tell(manager, token, news);
        }
    }

    /// News of the host's device, if that is open.
    fn report(&mut self, host: usize, fault: Fault) {
        if !self.devices.values().any(|d| d.host == host) {
            return;
        }
        if let Some(h) = self.hosts.get_mut(host) {
            h.faults.push_back(fault);
            sys::raise(h.fd);
        }
    }

    pub(super) fn next_event(&mut self, manager: u64) -> Option<Event<u64>> {
        let m = self.managers.get_mut(&manager)?;
        let event = m.events.pop_front();
        if m.events.is_empty() {
            sys::lower(m.fd);
        }
        if let Some(Event { news: News::Request { pair, .. }, .. }) = &event
            && let Some(p) = self.pairs.get_mut(pair)
        {
            p.waits_at = None;
        }
        event
    }

    pub(super) fn next_fault(&mut self, device: u64) -> Option<Fault> {
        let host = self.devices.get(&device)?.host;
        let h = self.hosts.get_mut(host)?;
        let fault = h.faults.pop_front();
        if h.faults.is_empty() {
            sys::lower(h.fd);
        }
        fault
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let managers = self.managers.values().map(|m| m.fd);
        let devices = self.hosts.iter().map(|h| h.fd).filter(|fd| *fd >= 0);
        let queues = self.queues.values().map(|q| q.fd);
        for fd in managers.chain(devices).chain(queues) {
            sys::close(fd);
        }
    }
}
