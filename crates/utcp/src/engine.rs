//! Connections that are out, over one device.
//!
//! One thread drives it: [`Engine::turn`] again and again, while there is something to do. Which
//! connections come and go is the caller's business.

use crate::carried::{Asked, Carried, Leaves, Over};
use crate::ended::Ended;
use crate::inject::Injector;
use crate::keeper::Link;
use crate::kernel::{Kept, Refusal, service_of};
use crate::outcome::{GivenBack, NotBack, NotTaken};
use crate::record::{Record, Stage, copy_of};
use alloc::vec::Vec;
use core::ffi::c_int;
use netacc_packet::Device;
use netacc_packet::port::Port;
use netacc_packet::route::{self, NoRoute, Route, Watch};
use netacc_packet::sys::{self, Errno, Fd};
use netacc_tcp::table::Table;
use netacc_tcp::wheel::Wheel;
use netacc_tcp::wire::Flow;
use netacc_tcp::wire::parse::{Checksums, packet};
use netacc_tcp::{KeepAlive, Nanos, Wishes};

/// So many packets are taken in one turn.
const TURN: usize = 256;
/// So many have room in a device's ring.
const RING: usize = 2048;

/// The kernel's tables are looked at so often.
const LOOK: Nanos = 10_000_000;
/// A connection that could not be given back is tried again so often.
const AGAIN: Nanos = 100_000_000;

/// The connections of a device.
///
/// What is out when it is dropped is given back. (Not where the process is a child that was forked:
/// its parent has them.)
#[derive(Debug)]
pub struct Engine<P: Steered> {
    port: P,
    interface: u32,
    table: Table,
    wheel: Wheel,
    places: Vec<Option<Carried>>,
    free: Vec<u32>,
    /// Connections that are over, each once.
    over: Vec<u32>,
    /// Those that packets have come for, each once.
    news: Vec<u32>,
    injector: Injector,
    keeper: Option<Link>,
    watch: Option<Watch>,
    look_at: Nanos,
    now: Nanos,
    process: c_int,
}

/// A device, or one behind something that plays the network, for tests.
pub trait Steered: Port {
    /// The device.
    fn device(&self) -> &Device;
}

impl Steered for Device {
    fn device(&self) -> &Device {
        self
    }
}

impl<P: Steered> Engine<P> {
    /// For so many connections of the device with that index. The key is random and stays secret.
    /// Nothing where there is no memory.
    #[must_use]
    pub fn new(port: P, interface: u32, capacity: u32, key: [u64; 2]) -> Option<Self> {
        let count = usize::try_from(capacity).ok()?;
        let (mut places, mut free) = (Vec::new(), Vec::new());
        let (mut over, mut news) = (Vec::new(), Vec::new());
        places.try_reserve_exact(count).ok()?;
        places.resize_with(count, || None);
        free.try_reserve_exact(count).ok()?;
        free.extend((0..capacity).rev());
        over.try_reserve_exact(count).ok()?;
        news.try_reserve_exact(count).ok()?;
        Some(Self {
            port,
            interface,
            table: Table::new(count, key)?,
            wheel: Wheel::new(count, 0)?,
            places,
            free,
            over,
            news,
            injector: Injector::new(),
            keeper: None,
            // (Without it a change is met as a loss.)
            watch: Watch::new().ok(),
            look_at: 0,
            now: 0,
            process: sys::process(),
        })
    }

    /// The port.
    pub const fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// From here on a keeper ([`crate::keeper::run`]) has the other end of this link: what is taken
    /// over is given back if this process is killed. (What is out already is not.)
    ///
    /// # Errors
    ///
    /// It does not answer: there is none, as before.
    pub fn keep(&mut self, link: Fd) -> Result<(), Errno> {
        self.keeper = Some(Link::begin(link, self.port.device().steering())?);
        Ok(())
    }

    /// The descriptors by which to wait for something to do (`POLLIN`).
    pub fn descriptors(&self) -> impl Iterator<Item = c_int> + '_ {
        let watch = self.watch.as_ref().map(Watch::descriptor);
        core::iter::once(self.port.device().descriptor()).chain(watch)
    }

    /// Takes a connection over: its number here. `settle` waits until no packet is under way in
    /// the kernel that the device might miss; without, such a one comes again from the peer.
    ///
    /// # Errors
    ///
    /// [`NotTaken`]: it goes on in the kernel.
    pub fn take_over(&mut self, fd: c_int, settle: bool, now: Nanos) -> Result<u32, NotTaken> {
        let kept = Kept::examine(fd).map_err(NotTaken::Refused)?;
        let flow = kept.flow;
        if self.table.find(&flow).is_some() {
            return Err(NotTaken::Out);
        }
        let (own, peer) = (flow.destination.address, flow.source.address);
        let route = route::find(own, peer).map_err(NotTaken::Route)?;
        if route.interface != self.interface {
            return Err(NotTaken::OtherDevice(route.interface));
        }
        let asked = asked(fd, &flow).map_err(|errno| NotTaken::Refused(Refusal::Other(errno)))?;
        let index = self.free.pop().ok_or(NotTaken::Full)?;
        let taken = self.hold((kept, route), (&asked, settle), index, now);
        match taken {
            Ok(carried) => {
                if let Some(place) = place_of(index).and_then(|at| self.places.get_mut(at)) {
                    *place = Some(carried);
                }
                // (A ring has no more than that.)
                for _ in 0..RING / TURN {
                    if !self.turn(now) {
                        break;
                    }
                }
                if let Some(carried) = self.carried(index) {
                    carried.begins();
                }
                self.after(index, now);
                Ok(index)
            }
            Err(why) => {
                self.table.remove(&flow);
                self.port.device().release(&flow);
                self.not_kept(index);
                self.free.push(index);
                self.turn(now);
                Err(why)
            }
        }
    }

    /// From the kernel to a connection that is out. Where it does not work the socket is as it
    /// was, and the caller takes back what else there is.
    fn hold(
        &mut self,
        (kept, route): (Kept, Route),
        (asked, settle): (&Asked, bool),
        index: u32,
        now: Nanos,
    ) -> Result<Carried, NotTaken> {
        let flow = kept.flow;
        self.table.add(flow, index).map_err(|_| NotTaken::Full)?;
        let device = self.port.device();
        device.copy(&flow).map_err(NotTaken::Steering)?;
        if settle {
            // (Not allowed somewhere: then it is as without.)
            let _ = sys::settle();
        }
        let mut record = None;
        if let Some(keeper) = &mut self.keeper {
            let new = Record::new().map_err(|errno| NotTaken::Refused(Refusal::Other(errno)))?;
            keeper.take(index, &kept, &new).map_err(NotTaken::NoKeeper)?;
            record = Some(new);
        }
        device.hold(&flow).map_err(NotTaken::Steering)?;
        freeze((kept, route), (asked, record), now).map_err(NotTaken::Refused)
    }

    /// The keeper closes its copies, before anybody may close the socket.
    fn not_kept(&mut self, index: u32) {
        // (One that does not answer is noticed by the next look at it.)
        let _ = self.keeper.as_mut().map(|keeper| keeper.drop(index));
    }

    /// A connection that is out.
    pub fn carried(&mut self, index: u32) -> Option<&mut Carried> {
        self.places.get_mut(place_of(index)?)?.as_mut()
    }

    /// A connection that packets have come for since it was last named here: there may be bytes to
    /// read, or room to write. Or a timer has found something lost, or in doubt. (One that was just
    /// taken over may have bytes without that.)
    pub fn next_news(&mut self) -> Option<u32> {
        let index = self.news.pop()?;
        if let Some(carried) = self.carried(index) {
            carried.has_news = false;
        }
        Some(index)
    }

    /// A connection that should be given back, and why: each once, and again where that could not
    /// be done.
    pub fn next_over(&mut self) -> Option<(u32, Over)> {
        loop {
            let index = self.over.pop()?;
            if let Some(why) = self.carried(index).and_then(|carried| carried.over()) {
                return Some((index, why));
            }
        }
    }

    /// Sends what its application has given it to be sent, or has made room for.
    pub fn after(&mut self, index: u32, now: Nanos) {
        let Some(place) = place_of(index).and_then(|at| self.places.get_mut(at)) else { return };
        if let Some(carried) = place {
            carried.transmit(&mut self.port, now);
            self.wheel.set_at_most(index, carried.next_timer());
            if carried.over().is_some() && !carried.told {
                carried.told = true;
                self.over.push(index);
            }
        }
    }

    /// Whether packets wait to be taken.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.port.has_any()
    }

    /// Takes packets that came, and does what is due: whether there was anything.
    pub fn turn(&mut self, now: Nanos) -> bool {
        self.round(now, true)
    }

    /// As [`Engine::turn`]; but what can wait until the caller calls [`Engine::after`] for each
    /// that [`Engine::next_news`] names does so.
    pub fn take(&mut self, now: Nanos) -> bool {
        self.round(now, false)
    }

    fn round(&mut self, now: Nanos, all: bool) -> bool {
        let mut busy = false;
        self.now = now;
        if now >= self.look_at {
            self.look_at = now.saturating_add(LOOK);
            self.look(now);
        }
        for _ in 0..TURN {
            let Some(index) = self.receive(now) else { break };
            busy = true;
            if let Some(index) = index {
                self.has_news(index);
                if all || self.carried(index).is_some_and(|c| c.connection().acknowledges()) {
                    self.after(index, now);
                }
            }
        }
        while let Some(index) = self.wheel.expire(now) {
            busy = true;
            let before = self.troubles(index);
            if let Some(carried) = self.carried(index) {
                carried.on_timer(now);
            }
            self.after(index, now);
            if self.troubles(index) != before {
                self.has_news(index);
            }
        }
        busy
    }

    /// From here on [`Engine::turn`] makes no descriptor, however short, and whoever drives it
    /// calls [`Engine::look`] in its place, now and then.
    pub const fn look_apart(&mut self) {
        self.look_at = Nanos::MAX;
    }

    /// Looks at the kernel's tables, and at the keeper.
    pub fn look(&mut self, now: Nanos) {
        if self.watch.as_mut().is_some_and(Watch::has_changed) {
            self.follow(now);
        }
        if self.keeper.as_ref().is_some_and(|keeper| !keeper.lives()) {
            self.all_are_over(now);
        }
    }

    fn troubles(&mut self, index: u32) -> u64 {
        self.carried(index).map_or(0, |carried| carried.connection().counters().troubles())
    }

    fn has_news(&mut self, index: u32) {
        if let Some(carried) = self.carried(index)
            && !core::mem::replace(&mut carried.has_news, true)
        {
            self.news.push(index);
        }
    }

    /// Takes one packet, and says which connection has had news.
    fn receive(&mut self, now: Nanos) -> Option<Option<u32>> {
        let Self { port, table, places, injector, .. } = self;
        port.receive(|came| {
            let sums = if came.checked { Checksums::Trusted } else { Checksums::Compare };
            // Damaged, or nothing that the filter should have let through.
            let Ok(read) = packet(came.packet, sums) else { return None };
            let index = table.find(&read.flow);
            let place = index.and_then(|index| places.get_mut(place_of(index)?));
            match place.and_then(Option::as_mut) {
                Some(carried) => {
                    carried.on_packet(now, came.packet, (&read.segment, read.payload));
                }
                // It was held, and its connection is the kernel's again by now.
                None => {
                    // (Without memory it is lost, and comes again.)
                    let copy = copy_of([came.packet, &[]]);
                    let _ = copy.map(|mut packet| injector.inject(&read.flow, &mut packet));
                }
            }
            index
        })
    }

    /// The kernel's tables have changed: where do packets go now?
    fn follow(&mut self, now: Nanos) {
        for at in 0..self.places.len() {
            let Some(Some(carried)) = self.places.get_mut(at) else { continue };
            let flow = carried.kept.flow;
            match route::find(flow.destination.address, flow.source.address) {
                Ok(route)
                    if route.interface == self.interface && route.mtu >= carried.route.mtu =>
                {
                    // (A larger one it leaves alone.)
                    carried.route.next_hop = route.next_hop;
                }
                // It was known, and the kernel does not ask for it while it sends nothing.
                Err(NoRoute::NoNeighbour | NoRoute::NotAsked(_)) => {}
                Ok(_) | Err(_) => carried.reroute(),
            }
            if let Ok(index) = u32::try_from(at) {
                self.after(index, now);
            }
        }
    }

    /// The keeper is gone: nothing stays out without it.
    fn all_are_over(&mut self, now: Nanos) {
        for at in 0..self.places.len() {
            let Some(Some(carried)) = self.places.get_mut(at) else { continue };
            carried.not_kept();
            if let Ok(index) = u32::try_from(at) {
                self.after(index, now);
            }
        }
    }

    /// When something is due, if nothing happens before.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        self.wheel.next()
    }

    /// Gives a connection back into its socket.
    ///
    /// # Errors
    ///
    /// [`NotBack`]. Nothing where there is none of that number.
    pub fn give_back(&mut self, index: u32, now: Nanos) -> Option<Result<GivenBack, NotBack>> {
        self.turn(now);
        let carried = self.carried(index)?;
        let leaves = carried.kept.can_connect().and_then(|()| carried.leaves(now));
        match leaves {
            Ok(leaves) => self.end(index, leaves).map(|ended| ended.map_err(NotBack::Lost)),
            Err(errno) => {
                carried.later(now.saturating_add(AGAIN));
                let due = carried.next_timer();
                self.wheel.set(index, due);
                Some(Err(NotBack::NoWay(errno)))
            }
        }
    }

    fn end(&mut self, index: u32, leaves: Leaves) -> Option<Result<GivenBack, Errno>> {
        let mut ended = self.places.get_mut(place_of(index)?)?.take()?.end(leaves);
        self.wheel.set(index, None);
        self.over.retain(|&other| other != index);
        self.news.retain(|&other| other != index);
        self.free.push(index);
        let flow = ended.kept.flow;
        self.table.remove(&flow);
        let buffers = match ended.kept.refill(&ended.repair, &ended.queues) {
            Ok(buffers) => buffers,
            Err(errno) => {
                ended.reset(&mut self.port);
                ended.kept.dissolve();
                self.port.device().release(&flow);
                self.not_kept(index);
                return Some(Err(errno));
            }
        };
        if let Some(record) = &ended.record {
            record.set_stage(Stage::Back);
        }
        // From here on the kernel has its packets, those first that were held.
        self.port.device().release(&flow);
        let waits = !ended.queues.in_flight.is_empty() || !ended.unsent.is_empty();
        ended.kept.thaw(waits);
        for packet in &mut ended.stash {
            let _ = self.injector.inject(&flow, packet);
        }
        self.turn(self.now);
        let Ended { kept, mut unsent, reason, abandoned, .. } = ended;
        let taken = kept.write(&unsent);
        kept.restore(buffers);
        if abandoned.is_some_and(|cut| cut || taken < unsent.len()) {
            kept.end_in_reset();
        }
        self.not_kept(index);
        unsent.drain(..taken.min(unsent.len()));
        Some(Ok(GivenBack { reason, unsent }))
    }
}

impl<P: Steered> Drop for Engine<P> {
    fn drop(&mut self) {
        if sys::process() != self.process {
            return;
        }
        self.turn(self.now);
        for index in 0..self.places.len() {
            // (Where the kernel has no way to the peer, the peer cannot be told either. Where there
            // is no memory the keeper does it, when the link has no other end.)
            let Some(Some(carried)) = self.places.get(index) else { continue };
            let leaves = carried.leaves(self.now).ok();
            let _ = leaves.zip(u32::try_from(index).ok()).map(|(l, index)| self.end(index, l));
        }
    }
}

fn place_of(index: u32) -> Option<usize> {
    usize::try_from(index).ok()
}

/// From the kernel's socket to a connection that is out. Where it does not work the socket is as
/// it was.
fn freeze(
    (mut kept, route): (Kept, Route),
    (asked, record): (&Asked, Option<Record>),
    now: Nanos,
) -> Result<Carried, Refusal> {
    let frozen = kept.freeze()?;
    let prepared = Carried::prepare((&kept, record), asked, &frozen, now);
    let prepared = prepared.inspect_err(|_| kept.leave())?;
    let mut carried = Carried::new(kept, route, prepared);
    carried.is_out(now);
    // Where the kernel does not do this the connection is out all the same; it is tried again when
    // it is given back.
    let _ = carried.kept.hollow(&frozen);
    Ok(carried)
}

/// What the socket's options ask for.
fn asked(fd: c_int, flow: &Flow) -> Result<Asked, Errno> {
    const SECOND: Nanos = 1_000_000_000;
    const MS: Nanos = 1_000_000;
    let tcp = |name| sys::get(fd, (libc::IPPROTO_TCP, name));
    let seconds = |name| tcp(name).map(|n| Nanos::try_from(n).unwrap_or(0) * SECOND);
    let keep_alive = if sys::get(fd, (libc::SOL_SOCKET, libc::SO_KEEPALIVE))? == 0 {
        None
    } else {
        let (idle, interval) = (seconds(libc::TCP_KEEPIDLE)?, seconds(libc::TCP_KEEPINTVL)?);
        let count = u32::try_from(tcp(libc::TCP_KEEPCNT)?).unwrap_or(1);
        Some(KeepAlive { idle, interval, count })
    };
    let user_timeout = Nanos::try_from(tcp(libc::TCP_USER_TIMEOUT)?).unwrap_or(0) * MS;
    let wishes = Wishes {
        nodelay: tcp(libc::TCP_NODELAY)? != 0,
        keep_alive,
        user_timeout: (user_timeout > 0).then_some(user_timeout),
        ack_delay: 40 * MS,
    };
    Ok(Asked { wishes, service: service_of(fd, flow)? })
}
