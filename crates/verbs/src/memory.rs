//! [`Fabric`] inside of one process, with the rules of verbs enforced and faults on demand: for
//! tests of what is built upon it, in milliseconds and on any machine.
//!
//! A [`Net`] has hosts; each has one device of a [`Model`], and addresses; [`Memory`] is what a
//! program on such a host calls. Descriptors are real (eventfds), so that programs can wait for
//! them; time is not: what only time would bring about (a peer that does not answer) happens when
//! [`Net::time_out`] is called.
//!
//! Everything between hosts is a *step*: a message of the connection manager arrives, a work
//! request takes effect at the peer, an acknowledgement comes back. [`Order`] says which of the
//! possible steps comes next. With [`Order::Prompt`] they are done at once and in order. With
//! [`Order::Shuffled`] they are done bit by bit, in an order that is drawn from a seed: anything
//! that verbs do not promise happens sooner or later, above all across pairs, and between a write's
//! effect and its completion.
//!
//! What it enforces is in the documentation of [`fabric`](crate::fabric): order within a pair,
//! receives, keys and bounds, protection domains, queue sizes, states, closing order, who sends
//! first with iWARP. What it adds: [`Net::fail_call`], [`Net::break_pairs`], [`Net::kill`],
//! [`Net::power_off`], [`Net::cut`], [`Net::remove_device`].
//!
//! This is test support: it allocates as it likes. It still does not panic, and is no_std as the
//! rest of the crate.

use crate::fabric::*;
use alloc::sync::Arc;
use core::ffi::c_int;
use core::net::IpAddr;

mod fabric;
mod lock;
mod world;

use lock::{Guard, Lock};
use world::World;

/// Which of the possible steps comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Everything happens within the call that causes it.
    Prompt,
    /// A few steps, drawn from this seed, with each call; all of them before a poll that says
    /// "nothing" on an armed queue.
    Shuffled(u64),
}

/// What a host's device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// InfiniBand's rules or iWARP's.
    pub transport: Transport,
    /// Writes with immediate are posted.
    pub writes_imm: bool,
    /// Most inline bytes: a pair that wants more is not created.
    pub inline_max: u32,
    /// A pair that wants more inline bytes than this is created all the same, with so many.
    pub inline_granted: u32,
    /// Most work requests in each of a pair's queues.
    pub depth_max: u32,
    /// Most entries of a queue.
    pub entries_max: u32,
    /// Most pairs.
    pub pairs_max: u32,
    /// Completion vectors.
    pub vectors: u32,
    /// Most regions.
    pub regions_max: u32,
    /// Most bytes of a region.
    pub region_bytes_max: u64,
    /// Bytes that can be registered altogether (`RLIMIT_MEMLOCK`).
    pub registered_max: u64,
}

impl Model {
    /// As RoCE in software (rxe): everything.
    pub const ROCE: Self = Self {
        transport: Transport::Infiniband,
        writes_imm: true,
        inline_max: 256,
        inline_granted: u32::MAX,
        depth_max: 1 << 14,
        entries_max: 1 << 15,
        pairs_max: 1 << 16,
        vectors: 1,
        regions_max: 1 << 16,
        region_bytes_max: 1 << 40,
        registered_max: 1 << 40,
    };
    /// As iWARP in software (siw): no write with immediate.
    pub const SIW: Self =
        Self { transport: Transport::Iwarp, writes_imm: false, inline_max: 64, ..Self::ROCE };
    /// iWARP that knows writes with immediate, as Alibaba's eRDMA.
    pub const ERDMA: Self =
        Self { transport: Transport::Iwarp, writes_imm: true, inline_max: 96, ..Self::ROCE };
}

/// What a host has not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the number of such objects")]
pub struct Objects {
    pub managers: usize,
    pub devices: usize,
    pub queues: usize,
    pub domains: usize,
    pub regions: usize,
    pub listeners: usize,
    pub pairs: usize,
}

/// A few hosts and what is between them.
#[derive(Clone)]
pub struct Net {
    world: Arc<Lock<World>>,
}

impl core::fmt::Debug for Net {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Net")
    }
}

/// What a program on a host calls: a [`Fabric`].
#[derive(Clone, Debug)]
pub struct Memory {
    net: Net,
    host: usize,
}

impl Net {
    /// A net without hosts.
    #[must_use]
    pub fn new(order: Order) -> Self {
        Self { world: Arc::new(Lock::new(World::new(order))) }
    }

    /// Adds a host.
    #[must_use]
    pub fn host(&self, address: IpAddr, model: Model) -> Memory {
        Memory { net: self.clone(), host: self.world.lock().add_host(address, model) }
    }

    /// Gives a host's device another address.
    pub fn add_address(&self, host: &Memory, address: IpAddr) {
        self.world.lock().add_address(host.host, address);
    }

    /// Does every step that is possible. False: it did not come to an end.
    pub fn settle(&self) -> bool {
        self.world.lock().settle()
    }

    /// Time passes: whoever waits for an answer that cannot come gives up.
    pub fn time_out(&self) {
        self.world.lock().time_out();
    }

    /// The `nth` call of this kind from now on (1: the next one) fails with `errno` and does
    /// nothing. A work request counts as one call, also in a list of several.
    pub fn fail_call(&self, host: &Memory, call: Call, nth: u64, errno: c_int) {
        self.world.lock().fail_call(host.host, call, nth, errno);
    }

    /// How many calls of this kind the host has made.
    #[must_use]
    pub fn calls(&self, host: &Memory, call: Call) -> u64 {
        self.world.lock().calls(host.host, call)
    }

    /// How many objects (of all kinds) the host has not closed.
    #[must_use]
    pub fn objects(&self, host: &Memory) -> usize {
        let o = self.open_objects(host);
        o.managers + o.devices + o.queues + o.domains + o.regions + o.listeners + o.pairs
    }

    /// The same by kind.
    #[must_use]
    pub fn open_objects(&self, host: &Memory) -> Objects {
        self.world.lock().objects(host.host)
    }

    /// The completion vectors of the host's queues, in the order in which these were opened.
    #[must_use]
    pub fn vectors(&self, host: &Memory) -> alloc::vec::Vec<u32> {
        self.world.lock().vectors(host.host)
    }

    /// Called before each poll of the host's queues from here on: time passes, or something comes.
    pub fn at_each_poll(&self, host: &Memory, each: Option<fn()>) {
        self.world.lock().at_each_poll(host.host, each);
    }

    /// The traffic classes of the host's connected pairs, in the order in which these were begun.
    #[must_use]
    pub fn classes(&self, host: &Memory) -> alloc::vec::Vec<u8> {
        self.world.lock().classes(host.host)
    }

    /// Every connected pair of the host goes into error, as after a fault of its device.
    pub fn break_pairs(&self, host: &Memory) {
        self.world.lock().break_pairs(host.host);
    }

    /// The kernel gives up the host's listeners, and tells nobody.
    pub fn lose_listeners(&self, host: &Memory) {
        self.world.lock().lose_listeners(host.host);
    }

    /// The host's process dies: its kernel closes everything and tells the peers.
    pub fn kill(&self, host: &Memory) {
        self.world.lock().kill(host.host);
    }

    /// The host is gone, and nobody is told.
    pub fn power_off(&self, host: &Memory) {
        self.world.lock().power_off(host.host);
    }

    /// The host's link goes down (or comes up): nothing gets through.
    pub fn cut(&self, host: &Memory, down: bool) {
        self.world.lock().cut(host.host, down);
    }

    /// Every queue of the host overflows: it takes nothing any more, and its pairs break.
    pub fn lose_queues(&self, host: &Memory) {
        self.world.lock().lose_queues(host.host);
    }

    /// The queue of that name does.
    pub fn lose_queue(&self, name: usize) {
        self.world.lock().lose_queue_named(name);
    }

    /// What the host's pairs send is lost from here on (or arrives again), and nobody is told: the
    /// device tries for ever, and the connection manager's messages come through.
    pub fn mute(&self, host: &Memory, mute: bool) {
        self.world.lock().mute(host.host, mute.then_some(0));
    }

    /// As [`mute`](Self::mute), of messages with at least so many bytes, and what is behind them.
    pub fn mute_large(&self, host: &Memory, bytes: usize) {
        self.world.lock().mute(host.host, Some(bytes));
    }

    /// The device is taken out: its pairs break, and everybody on it is told.
    pub fn remove_device(&self, host: &Memory) {
        self.world.lock().remove_device(host.host);
    }

    /// There is a device again.
    pub fn add_device(&self, host: &Memory) {
        self.world.lock().add_device(host.host);
    }
}

// ---- objects ------------------------------------------------------------------------------------

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* })*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            number: u64,
            $($field: $ty,)*
        }
    )* };
}

handles! {
    /// A connection manager.
    Manager { fd: c_int }
    /// An opened device.
    Device { fd: c_int, facts: Facts }
    /// A protection domain.
    Domain {}
    /// A completion queue.
    Queue { fd: c_int }
    /// A region.
    Region { remote: Remote, bytes: usize }
    /// A listener.
    Listener { port: u16 }
    /// A connection.
    Pair {}
}

/// A piece, checked and without its region's lifetime.
#[derive(Clone, Copy, Debug)]
struct Segment {
    region: u64,
    address: usize,
    bytes: usize,
}

impl Segment {
    fn new(piece: &Piece<'_, Region>) -> Option<Self> {
        let end = piece.offset.checked_add(piece.bytes)?;
        if end > piece.region.bytes {
            return None;
        }
        Some(Self {
            region: piece.region.number,
            address: (piece.region.remote.address as usize).checked_add(piece.offset)?,
            bytes: piece.bytes,
        })
    }
}

impl Memory {
    /// The net that it belongs to.
    #[must_use]
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Enters a call: counts it, and fails it if that was asked for.
    fn enter(&self, call: Call) -> Result<Guard<'_, World>, Error> {
        let mut world = self.net.world.lock();
        match world.enter(self.host, call) {
            Ok(()) => Ok(world),
            Err(errno) => Err(Error { call, errno }),
        }
    }

    /// Runs `f` as this call.
    fn call<T>(
        &self,
        call: Call,
        f: impl FnOnce(&mut World) -> Result<T, c_int>,
    ) -> Result<T, Error> {
        let mut world = self.enter(call)?;
        let result = f(&mut world);
        world.advance();
        result.map_err(|errno| Error { call, errno })
    }
}

#[cfg(test)]
mod tests;
