//! Queue pairs: connected, shared by connections, lost; and the memory of their rings.
//!
//! ```text
//! A: Pair ─▶ C: resolve, create, connect ─▶ A: (nonce?) create, accept ─▶ both: Established, PairReady ─▶ ready
//! ```
//!
//! A pair that is lost is closed at once; the rings of its connections stay as they are until these
//! have gone back to their carriers, because what was not acknowledged is sent again from there.

use super::devices::{self, TOKEN_DEVICE, TOKEN_LISTENER, TOKEN_PAIR, until_free};
use super::link::{Fault, Link};
use super::net::{self, Net};
use super::pair::{CONNECT_NS, FRESH_NS, Pair, PairState};
use super::{Remote, unwatch};
use crate::channel::Channel;
use crate::lock::Mutex;
use crate::log::debug_log;
use crate::queues::{PairContext, Queue};
use crate::rdma_thread::wake;
use crate::socket::Socket;
use crate::{config, packet_policy, process, stats, sys, thread, wire};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::net::SocketAddr;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use netacc_control::config::Config;
use netacc_control::stats::{Counter, Reason};
use netacc_proto::rendezvous::{self as proto, Message, Role};
use netacc_rdma::Tag;
use netacc_verbs::fabric::{Capacity, Error, Event, Fabric as _, News, Patience, Transport};

/// Pairs that are being connected at the same time, on one link.
const AT_ONCE: usize = 16;
/// For how long a silent peer is tried: the driver's choice of time-out, so often.
const PATIENCE: Patience = Patience::DEFAULT;

/// Connections on one pair.
pub(super) fn lanes(config: &Config) -> u16 {
    config.connections_per_channel.clamp(1, netacc_rdma::LANES_MAX as u32) as u16
}

/// A pair that a thread has connected, or not.
pub(super) struct Connected {
    verbs: Net,
    pair: net::Pair,
    private: [u8; 48],
    pub(super) token: u64,
    result: Result<(), Error>,
}

/// Boxed, as the thread was given it.
pub(super) type Job = Box<Connected>;
pub(super) static CONNECTED: Mutex<Vec<Job>> = Mutex::new(Vec::new());

fn run_connect(job: *mut c_void) -> *mut c_void {
    sys::block_all_signals();
    sys::name_thread(b"netacc-connect\0");
    // SAFETY: what `connect` passed, for this thread alone.
    let mut job = unsafe { Box::from_raw(job.cast::<Connected>()) };
    job.result = job.verbs.connect(&mut job.pair, &job.private, PATIENCE);
    CONNECTED.lock().push(job);
    wake();
    core::ptr::null_mut()
}

/// So many ports here are tried for a pair.
const TRIES: u8 = 16;

const MAGIC: [u8; 8] = *b"netacc\r\n";

/// What a connection request says: whose pair, and the nonce that came over the link.
fn private_data(pair: u32, nonce: [u8; 16], process: [u8; 16]) -> [u8; 48] {
    let mut all = [0u8; 48];
    let parts: [&[u8]; 5] = [&MAGIC, &[1, 0, 0, 0], &pair.to_le_bytes(), &nonce, &process];
    for (to, from) in all.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *from;
    }
    all
}

/// Pair, nonce and process of a request.
fn read_private(data: &[u8]) -> Option<(u32, [u8; 16], [u8; 16])> {
    let head = data.get(..12)?;
    (head.get(..8)? == MAGIC && head.get(8..)? == [1, 0, 0, 0]).then_some(())?;
    let pair = u32::from_le_bytes(*data.get(12..)?.first_chunk()?);
    Some((pair, *data.get(16..)?.first_chunk()?, *data.get(32..)?.first_chunk()?))
}

impl Link {
    /// The traffic class of the first connection that waits, and for which no place is on its way.
    fn class_without_pair(&self) -> Option<u8> {
        // (Their lower two bits are the network's.)
        let of = |class: u8| usize::from(class >> 2);
        let (mut places, mut pairs) = ([0u32; 64], 0);
        for p in self.pairs.iter().filter(|p| p.is_coming()) {
            pairs += 1;
            if let Some(n) = places.get_mut(of(p.class)) {
                *n += u32::from(p.lanes);
            }
        }
        if pairs >= AT_ONCE {
            return None;
        }
        for class in self.waiting.iter().map(|w| w.class) {
            let place = places.get_mut(of(class))?;
            match place.checked_sub(1) {
                Some(rest) => *place = rest,
                None => return Some(class),
            }
        }
        None
    }

    fn token(&self, number: u32) -> u64 {
        TOKEN_PAIR | u64::from(self.serial & 0xff_ffff) << 32 | u64::from(number)
    }
}

impl Remote {
    /// The link and the number of a pair's token.
    fn pair_of(&self, token: u64) -> Option<(usize, u32)> {
        let serial = (token >> 32) as u32 & 0xff_ffff;
        let i = self
            .links
            .iter()
            .position(|l| l.as_ref().is_some_and(|l| l.serial & 0xff_ffff == serial))?;
        let number = token as u32;
        self.link(i)?.pair(number).map(|_| (i, number))
    }

    // ---- connecting -----------------------------------------------------------------------------

    /// Acceptor: makes sure that pairs are on their way for the connections that wait.
    pub(super) fn want_pairs(&mut self, i: usize) {
        let now = sys::now_ns();
        loop {
            let Some(l) = self.link_mut(i).filter(|l| l.is_up()) else { return };
            if now < l.pair_after {
                let at = l.pair_after;
                return self.at(at);
            }
            let Some(class) = l.class_without_pair() else { return };
            let local = SocketAddr::new(l.local, l.port);
            let port = self.port_for_pairs(local);
            let Some(l) = self.link_mut(i) else { return };
            let lanes = l.hello.map_or(1, |h| h.lanes).min(lanes(config::get()));
            let mut nonce = [0u8; 16];
            sys::random(&mut nonce);
            let number = l.next_pair;
            l.next_pair = number.wrapping_add(1);
            // (Where nobody listens, because the device is gone, none comes, and another one is
            // tried later.)
            l.cm_port = port.unwrap_or(l.cm_port);
            let port = l.cm_port;
            let asked = proto::Pair { pair: number, nonce, port, lanes, class };
            l.pairs.push(Pair::new(PairState::Requested, &asked));
            self.at(now + CONNECT_NS);
            self.send(i, Message::Pair(asked));
        }
    }

    /// Connector: the peer asks for a pair.
    pub(super) fn on_pair(&mut self, i: usize, asked: proto::Pair) -> Result<(), Fault> {
        let Some(l) = self.link_mut(i) else { return Ok(()) };
        if l.pair(asked.pair).is_some()
            || asked.lanes == 0
            || usize::from(asked.lanes) > netacc_rdma::LANES_MAX
            || asked.class & packet_policy::ECN != 0
        {
            return Err(Fault::Malformed);
        }
        // More than its connections can need are not made, whatever the peer wants.
        let most = crate::channel::SLOTS / usize::from(asked.lanes) + AT_ONCE;
        let full = l.pairs.len() >= most
            || l.pairs.iter().filter(|p| p.is_coming() || p.connecting).count() >= AT_ONCE;
        if full {
            self.send(i, Message::PairEnd { pair: asked.pair });
            return Ok(());
        }
        l.cm_port = asked.port;
        l.pairs.push(Pair::new(PairState::Resolving, &asked));
        let (local, to, token) =
            (l.local, SocketAddr::new(l.peer, asked.port), l.token(asked.pair));
        self.at(sys::now_ns() + CONNECT_NS);
        let pair = match (self.devices.verbs(), self.devices.manager.as_ref()) {
            (Some(verbs), Some(manager)) => {
                let classed = |mut pair| match verbs.set_class(&mut pair, asked.class) {
                    Ok(()) => Some(pair),
                    Err(_) => verbs.close_pair(pair).err().and(None),
                };
                verbs.resolve(manager, local, to, 2000, token).ok().and_then(classed)
            }
            _ => None,
        };
        match (pair, self.link_mut(i).and_then(|l| l.pair_mut(asked.pair))) {
            (Some(pair), Some(p)) => p.pair = Some(pair),
            _ => self.lose_pair(i, asked.pair, Reason::RdmaRefused, true),
        }
        Ok(())
    }

    /// Gives a pair its queues, receives and engine, before it is connected or accepted.
    fn make(&mut self, i: usize, number: u32) -> Result<(), Reason> {
        let verbs = self.devices.verbs().ok_or(Reason::RdmaCoreMissing)?;
        let (device, lanes) = self
            .link(i)
            .and_then(|l| l.pair(number).map(|p| (l.device, p.lanes)))
            .ok_or(Reason::RdmaRefused)?;
        self.ensure_domain(i)?;
        let facts = self.facts(device).ok_or(Reason::NoRdmaDevice)?;
        if !self.has_pair(device, &facts) {
            return Err(Reason::ChannelFull);
        }
        self.ensure_channel(i).ok_or(Reason::NoMemory)?;
        let immediate = self.link(i).is_some_and(|l| l.immediate(facts.writes_imm));
        let receives = self.link(i).and_then(|l| l.hello).map_or(0, |h| h.receives);
        let settings = devices::settings(lanes, immediate, &facts, receives);
        let seat = self.seat(device, &settings)?;
        let made = self.make_on(i, number, verbs, &settings, seat);
        if made.is_err() {
            let _ = until_free(|| seat.0.hub.release(process::tid(), seat.1));
        }
        made
    }

    /// Of a link that has its domain and its channel.
    fn make_on(
        &mut self,
        i: usize,
        number: u32,
        verbs: Net,
        settings: &netacc_rdma::Settings,
        seat: (&'static Queue, Tag),
    ) -> Result<(), Reason> {
        let (queue, tag) = seat;
        let l = self.link_mut(i).ok_or(Reason::RdmaRefused)?;
        let channel = l.channel.ok_or(Reason::NoMemory)?;
        let domain = l.domain.take().ok_or(Reason::RdmaRefused)?;
        let made = (|| {
            let p = l.pair_mut(number).ok_or(Reason::RdmaRefused)?;
            let pair = p.pair.as_mut().ok_or(Reason::RdmaRefused)?;
            let capacity = Capacity {
                sends: settings.sends,
                receives: settings.receives,
                inline_bytes: settings.inline_bytes,
            };
            let create = |on: &_| verbs.create(pair, &domain, on, capacity);
            let granted = queue.hub.with_queue(create).ok_or(Reason::RdmaLost)?;
            let granted = granted.map_err(devices::reason_of)?;
            let inline_bytes = settings.inline_bytes.min(granted.inline_bytes);
            let settings = &netacc_rdma::Settings { inline_bytes, ..*settings };
            stats::count(Counter::RdmaPairsCreated);
            let bytes = settings.memory_bytes();
            let memory = NonNull::new(sys::map_own(bytes)).ok_or(Reason::NoMemory)?;
            let words = usize::from(settings.lanes);
            let context = PairContext {
                channel,
                slots: (0..words).map(|_| AtomicU32::new(0)).collect(),
                lost: AtomicBool::new(false),
                released: (0..words.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
                told: [const { AtomicU64::new(0) }; 4],
            };
            // SAFETY: mapped just now, for this alone; unmapped when `dismantle` has handed it
            // back.
            let engine = match unsafe {
                wire::Lanes::new(Arc::new(verbs), tag, *settings, (&domain, pair), memory)
            } {
                Ok(engine) => engine,
                Err(e) => {
                    // SAFETY: the engine was not made, so nobody uses it; should the region still
                    // be open it is closed with the pair.
                    unsafe { sys::unmap(memory.as_ptr(), bytes) };
                    return Err(devices::reason_of(e));
                }
            };
            stats::count(Counter::RdmaRegions);
            stats::add(Counter::RdmaRegisteredBytes, bytes as u64);
            p.context = Box::into_raw(Box::new(context));
            engine.set_owner(p.context as usize);
            let engine = Arc::new(engine);
            p.receives = Some((memory, bytes));
            p.seat = Some((queue, tag));
            p.engine = Some(Arc::clone(&engine));
            until_free(|| queue.hub.add(process::tid(), Arc::clone(&engine)))
                .map_err(|_| Reason::RdmaRefused)
        })();
        l.domain = Some(domain);
        made
    }

    fn connect(&mut self, i: usize, number: u32) {
        let Some(verbs) = self.devices.verbs() else { return };
        let blocks = self
            .link(i)
            .and_then(|l| self.facts(l.device))
            .is_some_and(|f| f.transport != Transport::Infiniband);
        let process = self.process;
        let Some(l) = self.link_mut(i) else { return };
        let token = l.token(number);
        let Some(p) = l.pair_mut(number) else { return };
        let private = private_data(number, p.nonce, process);
        p.state = PairState::Connecting;
        let Some(mut pair) = p.pair.take() else { return };
        let result = if blocks {
            p.connecting = true;
            let job =
                Box::into_raw(Box::new(Connected { verbs, pair, private, token, result: Ok(()) }));
            if thread::spawn(run_connect, job.cast()) {
                return;
            }
            // SAFETY: made above, and the thread was not.
            let job = unsafe { Box::from_raw(job) };
            p.connecting = false;
            p.pair = Some(job.pair);
            Err(Reason::NoMemory)
        } else {
            let r = verbs.connect(&mut pair, &private, PATIENCE).map_err(devices::reason_of);
            p.pair = Some(pair);
            r
        };
        if let Err(why) = result {
            self.lose_pair(i, number, why, true);
        }
    }

    /// Takes what the connecting threads have done.
    pub(super) fn take_connected(&mut self) {
        loop {
            let Some(job) = CONNECTED.lock().pop() else { return };
            let found = self.pair_of(job.token);
            let place =
                found.and_then(|(i, n)| self.link_mut(i)?.pair_mut(n)).filter(|p| p.connecting);
            let Some(p) = place else {
                let _ = job.verbs.close_pair(job.pair);
                continue;
            };
            p.connecting = false;
            p.pair = Some(job.pair);
            // A link that was kept for it may go.
            self.timer = 1;
            let Some(p) = found.and_then(|(i, n)| self.link_mut(i)?.pair_mut(n)) else { continue };
            let (state, number, peer_ready) = (p.state, p.number, p.peer_ready);
            let Some((i, _)) = found else { continue };
            match (state, job.result) {
                (PairState::Lost, _) => self.dismantle(i, number),
                (_, Err(e)) if e.errno == libc::EADDRINUSE && self.connects_anew(i, number) => {}
                (_, Err(e)) => {
                    debug_log!("pair {number}: {:?}: errno {}", e.call, e.errno);
                    self.lose_pair(i, number, devices::reason_of(e), true);
                }
                (PairState::Established, Ok(())) => {
                    self.send(i, Message::PairReady { pair: number });
                    if peer_ready {
                        self.ready(i, number);
                    }
                }
                _ => {}
            }
        }
    }

    /// The manager has chosen a port here that a TCP connection has: iWARP shares TCP's ports, and
    /// only its own are known to it (`cma_alloc_any_port`; siw finds out when it connects). Another
    /// one is tried at once, in the pair's time; the peer knows of nothing, and waits.
    fn connects_anew(&mut self, i: usize, number: u32) -> bool {
        let link = self.link_mut(i).and_then(|l| l.pair_mut(number));
        let Some(p) = link.filter(|p| p.tries < TRIES && p.is_empty()) else { return false };
        let (nonce, port, lanes, class) = (p.nonce, p.port, p.lanes, p.class);
        let (deadline, tries) = (p.deadline, p.tries + 1);
        p.state = PairState::Lost;
        if let Some(engine) = p.engine.as_ref() {
            engine.end();
        }
        self.dismantle(i, number);
        let asked = proto::Pair { pair: number, nonce, port, lanes, class };
        if self.on_pair(i, asked).is_err() {
            self.send(i, Message::PairEnd { pair: number });
            return true;
        }
        if let Some(p) = self.link_mut(i).and_then(|l| l.pair_mut(number)) {
            (p.deadline, p.tries) = (deadline, tries);
        }
        true
    }

    /// News of the connection manager.
    pub(super) fn hear_manager(&mut self) {
        // Bounded: what is left is told again.
        for _ in 0..256 {
            let (Some(verbs), Some(manager)) =
                (self.devices.verbs(), self.devices.manager.as_ref())
            else {
                return;
            };
            match verbs.next_event(manager) {
                Ok(Some(event)) => self.on_event(verbs, event),
                Ok(None) => return,
                Err(e) => {
                    debug_log!("the connection manager: errno {}", e.errno);
                    // It would be told for ever.
                    unwatch(self.epoll, verbs.manager_fd(manager));
                    return;
                }
            }
        }
    }

    fn on_event(&mut self, verbs: Net, event: Event<net::Pair>) {
        let rest = event.token & 0x00ff_ffff_ffff_ffff;
        match event.token & 0xff00_0000_0000_0000 {
            TOKEN_LISTENER => match event.news {
                News::Request { pair, private } => self.on_request(verbs, pair, &private),
                News::DeviceRemoved => {
                    if let Some(device) = self.listeners.get(rest as usize).map(|l| l.device) {
                        self.lose_device(device);
                    }
                }
                _ => {}
            },
            TOKEN_DEVICE => {
                if matches!(event.news, News::DeviceRemoved) {
                    self.lose_device(rest as usize);
                }
            }
            _ => {
                let Some((i, number)) = self.pair_of(event.token) else {
                    if let News::Request { pair, .. } = event.news {
                        let _ = verbs.reject(pair, &[]);
                    }
                    return;
                };
                match event.news {
                    News::Resolved => match self.make(i, number) {
                        Ok(()) => self.connect(i, number),
                        Err(why) => self.lose_pair(i, number, why, true),
                    },
                    News::Established { .. } => self.on_established(i, number),
                    News::Request { pair, .. } => {
                        let _ = verbs.reject(pair, &[]);
                    }
                    News::Disconnected => self.lose_pair(i, number, Reason::RdmaLost, true),
                    News::DeviceRemoved => {
                        if let Some(device) = self.link(i).map(|l| l.device) {
                            self.lose_device(device);
                        }
                    }
                    News::Refused { .. } | News::Unreachable { .. } => {
                        self.lose_pair(i, number, Reason::RdmaRefused, true)
                    }
                }
            }
        }
    }

    /// Acceptor: somebody connects a pair. It is the one that was asked for only if it knows the
    /// nonce, which went over its link.
    fn on_request(&mut self, verbs: Net, mut pair: net::Pair, private: &[u8]) {
        let known = read_private(private).and_then(|(number, nonce, process)| {
            let of = |l: &Link| {
                l.role == Role::Acceptor
                    && l.is_up()
                    && l.hello.is_some_and(|h| h.process == process)
                    && l.pair(number)
                        .is_some_and(|p| p.state == PairState::Requested && p.nonce == nonce)
            };
            let i = self.links.iter().position(|l| l.as_deref().is_some_and(of))?;
            let l = self.link(i)?;
            let device = self.devices.list.get(l.device)?.device.as_ref()?;
            verbs.is_on(device, &pair).then_some((i, number, l.token(number)))
        });
        let Some((i, number, token)) = known else {
            stats::count(Counter::AuthFailures);
            let _ = verbs.reject(pair, &[]);
            return;
        };
        verbs.set_token(&mut pair, token);
        if let Some(p) = self.link_mut(i).and_then(|l| l.pair_mut(number)) {
            p.pair = Some(pair);
            p.state = PairState::Connecting;
        }
        let answer = private_data(number, [0; 16], self.process);
        let made = self.make(i, number).and_then(|()| {
            let p = self
                .link_mut(i)
                .and_then(|l| l.pair_mut(number))
                .and_then(|p| p.pair.as_mut())
                .ok_or(Reason::RdmaRefused)?;
            verbs.accept(p, &answer, PATIENCE).map_err(devices::reason_of)
        });
        if let Err(why) = made {
            self.lose_pair(i, number, why, true);
        }
    }

    fn on_established(&mut self, i: usize, number: u32) {
        let Some(p) = self
            .link_mut(i)
            .and_then(|l| l.pair_mut(number))
            .filter(|p| p.state == PairState::Connecting)
        else {
            return;
        };
        p.state = PairState::Established;
        if p.connecting {
            // The thread that connects it has not come back: nobody can use it before.
            // `take_connected` goes on.
            return;
        }
        let go = p.peer_ready;
        self.send(i, Message::PairReady { pair: number });
        if go {
            self.ready(i, number);
        }
    }

    pub(super) fn on_pair_ready(&mut self, i: usize, number: u32) -> Result<(), Fault> {
        let Some(p) = self.link_mut(i).and_then(|l| l.pair_mut(number)) else { return Ok(()) };
        p.peer_ready = true;
        if p.state == PairState::Established && !p.connecting {
            self.ready(i, number);
        }
        Ok(())
    }

    /// Both ends are established, and know it of each other.
    fn ready(&mut self, i: usize, number: u32) {
        let Some(l) = self.link_mut(i) else { return };
        let connector = l.role == Role::Connector;
        let Some(p) = l.pair_mut(number) else { return };
        let (Some(engine), Some(pair), Some((queue, _))) =
            (p.engine.as_ref(), p.pair.take(), p.seat)
        else {
            return;
        };
        p.state = PairState::Ready;
        p.ready_since = sys::now_ns();
        p.idle_since = p.ready_since;
        let started = engine.start(pair, connector);
        debug_log!("pair {number} is ready");
        if started.is_err() {
            self.lose_pair(i, number, Reason::RdmaRefused, true);
            return;
        }
        queue.drain();
        self.at(sys::now_ns() + 2 * FRESH_NS);
        if connector {
            // The acceptor offers.
            return;
        }
        self.serve_waiting(i);
        self.want_pairs(i);
    }

    // ---- empty pairs ----------------------------------------------------------------------------

    pub(super) fn time_pairs(&mut self) {
        let now = sys::now_ns();
        for i in 0..self.links.len() {
            let Some(l) = self.link(i) else { continue };
            let late = |state: fn(&Pair) -> bool| {
                l.pairs.iter().filter(|p| state(p) && now >= p.deadline).map(|p| p.number).collect()
            };
            let (late, ended): (Vec<u32>, Vec<u32>) =
                (late(Pair::is_coming), late(|p| p.state == PairState::Ending));
            for n in late {
                debug_log!("pair {n} does not come to be");
                self.lose_pair(i, n, Reason::RdmaRefused, true);
            }
            for n in ended {
                self.lose_pair(i, n, Reason::None, false);
            }
            let waits = |p: &&Pair| p.is_coming() || p.state == PairState::Ending;
            let next =
                self.link(i).and_then(|l| l.pairs.iter().filter(waits).map(|p| p.deadline).min());
            if let Some(at) = next {
                self.at(at);
            }
            self.settle_empty(i);
            self.forget_waiting(i);
            self.serve_waiting(i);
            self.want_pairs(i);
        }
    }
}

/// Takes the pair away from a connection: no data call uses it any more.
pub(super) fn unlink(
    channel: Option<&'static Channel>,
    slot: usize,
    socket: Option<&'static Socket>,
) {
    let Some(wire) = channel.and_then(|c| c.far.mirror()) else { return };
    // Data calls use the pair under one of these.
    let _tx = socket.and_then(|s| crate::lock::lock_end(&s.tx_lock));
    let _rx = socket.and_then(|s| crate::lock::lock_end(&s.rx_lock));
    wire.slot(slot).lanes.store(core::ptr::null_mut(), Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written_padded_or_not() {
        let data = private_data(7, [1; 16], [2; 16]);
        assert_eq!(read_private(&data), Some((7, [1; 16], [2; 16])));
        // InfiniBand's transports pad it with zeros.
        let mut padded = [0u8; 56];
        padded.iter_mut().zip(data).for_each(|(to, from)| *to = from);
        assert_eq!(read_private(&padded), Some((7, [1; 16], [2; 16])));
        for short in 0..48 {
            assert_eq!(read_private(data.get(..short).unwrap_or(&[])), None);
        }
        for at in 0..12 {
            let mut other = data;
            if let Some(byte) = other.get_mut(at) {
                *byte ^= 1;
            }
            assert_eq!(read_private(&other), None, "byte {at}");
        }
    }
}
