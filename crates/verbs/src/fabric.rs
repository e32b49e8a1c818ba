//! What the rdma path asks of a fabric: the trait [`Fabric`] and the values that cross it.
//!
//! Two implementations: [`Verbs`](crate::Verbs), which is libibverbs and librdmacm, and `Memory`
//! (feature `memory`), which keeps verbs' rules in this process. What is not here: rings, credits,
//! connections, threads, time.
//!
//! # Driving it
//!
//! ```text
//! open_manager ─ open_device(local address) ─ open_queue ─ open_domain ─ register
//! accepting:   listen ─▶ Event::Request{pair} ─ set_token ─ create ─ post_receives ─ accept ─▶ Event::Established
//! connecting:  resolve ─▶ Event::Resolved ─────────────── create ─ post_receives ─ connect ─▶ Event::Established
//! data:        post, poll; before sleeping: arm, poll once more, then wait on the queue's descriptor; clear, poll
//! the end:     disconnect or fail, poll the flushed completions, close_pair, … close_queue, close_device, close_manager
//! ```
//!
//! # Rules that both implementations keep, because verbs have them
//!
//! - Reliable connections only; every work request has at most one local segment.
//! - Work requests of one pair take effect at the peer in the order in which they were posted, and
//!   complete in that order. Nothing is promised between pairs, nor between what a pair sends and
//!   what it receives.
//! - A write is in the peer's memory before the receive completion of its immediate, or of a later
//!   send, is polled there. The *sender's* completion proves nothing about the peer (iWARP
//!   completes what TCP has taken).
//! - A slot of the send queue is free again when a completion of it, *or of a later signaled one*,
//!   was polled. (Some devices free it earlier; a full queue is `ENOMEM`.)
//! - A message that finds no posted receive: InfiniBand's kind waits, iWARP's breaks the
//!   connection.
//! - Arming reports only what completes afterwards: poll once more after it.
//! - A pair that goes into error completes everything that was posted as [`Failure::Flushed`],
//!   signaled or not. A queue needs room for all of that; one that overflows is lost, with all its
//!   pairs ([`Fault::QueueLost`]). What is posted on a pair that *is* in error is refused, flushed,
//!   or (siw) taken and never heard of: nobody may wait for it.
//! - News of one pair come in order; across pairs, a new request can come before the end of an
//!   older connection.
//! - A failed completion says which work request, and nothing else about it.
//! - Completions of a closed pair may still be polled: identifiers must tell them apart.
//! - Objects are closed children first: a domain with open pairs or regions refuses (`EBUSY`), a
//!   device with domains or queues, a queue with pairs.
//! - iWARP: the connecting end sends first, and not before it knows from elsewhere that the
//!   accepting end is established, too: siw does not notice, or breaks on, what comes right behind
//!   its handshake.
//!
//! # Threads
//!
//! `post`, `post_receives`, `poll`, `arm`, `clear`, `fail` may be called by several threads at
//! once. `next_event` by one thread at a time for each manager. `connect` can block (iWARP opens a
//! TCP connection inside of it). The rest is for one thread at a time for each object, which the
//! types enforce. After fork nothing may be called in the child, `close_*` included.

use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};
use core::ptr::NonNull;

/// Most bytes of private data that a request or an answer carries on every transport.
pub const PRIVATE_MAX: usize = 56;

/// Most work requests in one [`Fabric::post`] or [`Fabric::post_receives`].
pub const BATCH_MAX: usize = 16;

/// The call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the name of the operation")]
pub enum Call {
    OpenManager,
    NextEvent,
    OpenDevice,
    QueryDevice,
    OpenDomain,
    OpenQueue,
    Register,
    Listen,
    Resolve,
    SetClass,
    Create,
    Connect,
    Accept,
    Reject,
    Disconnect,
    Fail,
    Post,
    PostReceives,
    Poll,
    Arm,
    Clear,
    NextFault,
    Close,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    /// What was asked.
    pub call: Call,
    /// The positive errno that came back.
    pub errno: c_int,
}

/// Why work requests were not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostError {
    /// How many, from the first on, were posted all the same.
    pub posted: usize,
    /// The positive errno: `ENOMEM` when the queue is full, `EINVAL` when the provider does not do
    /// such a request.
    pub errno: c_int,
    /// The provider did not say how many were posted (then `posted` counts none): the pair is of no
    /// further use, and every one of them may still take effect.
    pub unknown: bool,
}

/// How the device speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// InfiniBand's, RoCE included.
    Infiniband,
    /// DDP and RDMAP over TCP.
    Iwarp,
    /// Something else, as `ibv_transport_type` says.
    Other(c_int),
}

/// What a device can do, found by asking and by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// How it speaks.
    pub transport: Transport,
    /// Writes with immediate are posted. (For the peer to understand them it must have this, too.)
    pub writes_imm: bool,
    /// Most inline bytes with which a pair could be created, as far as was tried.
    pub inline_max: u32,
    /// Most work requests in each of a pair's queues.
    pub depth_max: u32,
    /// Most entries of a queue.
    pub entries_max: u32,
    /// Most pairs.
    pub pairs_max: u32,
    /// Most regions.
    pub regions_max: u32,
    /// Bytes of the largest region.
    pub region_bytes_max: u64,
    /// Bytes of the largest message or write.
    pub message_bytes_max: u32,
    /// Completion vectors: `vector` of [`Fabric::open_queue`] is taken modulo this.
    pub vectors: u32,
    /// The port can carry traffic.
    pub active: bool,
    /// Pages that are pinned stay with the parent after fork without anybody's help (Linux 5.12
    /// on).
    pub survives_fork: bool,
    /// The kernel's name for it; for people, not for decisions.
    pub name: Name,
}

/// A name of up to 31 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; 31]);

impl Name {
    /// Keeps what comes before the first NUL, and fits.
    #[must_use]
    pub fn new(from: impl IntoIterator<Item = u8>) -> Self {
        let mut name = [0; 31];
        for (to, from) in name.iter_mut().zip(from.into_iter().take_while(|c| *c != 0)) {
            *to = from;
        }
        Self(name)
    }

    /// The name; empty when it is not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|c| *c == 0).unwrap_or(self.0.len());
        self.0.get(..length).and_then(|name| core::str::from_utf8(name).ok()).unwrap_or("")
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(self.as_str(), f)
    }
}

/// What a pair is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Work requests in the send queue.
    pub sends: u32,
    /// Work requests in the receive queue.
    pub receives: u32,
    /// Bytes that a work request can carry inline: 64 on most devices, less or none on some.
    pub inline_bytes: u32,
}

/// What a region may be used for, besides being sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Sent from only.
    Local,
    /// Received into.
    Receive,
    /// Written by the peer.
    RemoteWrite,
}

/// A registered region as its peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Address of the first byte.
    pub address: u64,
    /// The key. Whoever has it, or guesses it, and has a pair of the same domain can write there: a
    /// domain for each peer.
    pub key: u32,
}

/// A part of a region of ours.
#[derive(Debug)]
pub struct Piece<'a, R> {
    /// The region.
    pub region: &'a R,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl<R> Clone for Piece<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for Piece<'_, R> {}

/// What a work request does.
#[derive(Debug)]
pub enum Action<'a, R> {
    /// Writes into the peer's memory. The peer's program is not told.
    Write {
        /// What; nothing when 0 bytes are written.
        from: Option<Piece<'a, R>>,
        /// Where.
        to: Remote,
        /// Copied while it is posted, instead of read later.
        inline: bool,
    },
    /// As `Write`, and completes a receive of the peer's with `imm`.
    WriteImm {
        /// What; nothing when 0 bytes are written.
        from: Option<Piece<'a, R>>,
        /// Where.
        to: Remote,
        /// Copied while it is posted, instead of read later.
        inline: bool,
        /// The immediate.
        imm: u32,
    },
    /// Sends a message into the peer's next posted receive.
    Send {
        /// The message.
        from: Piece<'a, R>,
    },
    /// Sends a message that is copied while it is posted: any bytes, at most the pair's inline
    /// bytes.
    SendInline(&'a [u8]),
}

impl<R> Clone for Action<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for Action<'_, R> {}

/// A work request of the send queue.
#[derive(Debug)]
pub struct Work<'a, R> {
    /// Comes back in the completion.
    pub id: u64,
    /// What it does.
    pub action: Action<'a, R>,
    /// A completion is wanted also when it succeeds.
    pub signaled: bool,
}

impl<R> Clone for Work<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for Work<'_, R> {}

/// A work request of the receive queue.
#[derive(Debug)]
pub struct Receive<'a, R> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where a message goes; a write with immediate needs no place.
    pub into: Option<Piece<'a, R>>,
}

impl<R> Clone for Receive<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for Receive<'_, R> {}

/// What a work request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A send went out.
    Sent,
    /// A write (with or without immediate) went out.
    Written,
    /// A message of so many bytes was received.
    Received(u32),
    /// The peer wrote, with this immediate.
    Announced(u32),
    /// It failed, and the pair with it.
    Failed(Failure),
}

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The pair was in error before its turn came.
    Flushed,
    /// A message was longer than the receive.
    Length,
    /// Our own memory was not as the request said.
    Local,
    /// The peer refused: wrong key, outside of the region, not writable.
    RemoteAccess,
    /// The peer refused for another reason.
    RemoteOther,
    /// The peer does not answer.
    Unreachable,
    /// The peer has no receive for us, and the tries are used up.
    NotReady,
    /// Something else, as `ibv_wc_status` says.
    Other(c_int),
}

/// A work request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// As given when it was posted.
    pub id: u64,
    /// What it came to.
    pub outcome: Outcome,
}

impl Completion {
    /// A place to poll into.
    pub const EMPTY: Self = Self { id: 0, outcome: Outcome::Sent };
}

/// Private data of a request or an answer. Some transports pad it with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Private {
    bytes: [u8; PRIVATE_MAX],
    length: u8,
}

impl Private {
    /// Keeps at most [`PRIVATE_MAX`] bytes.
    #[must_use]
    pub fn new(from: &[u8]) -> Self {
        let mut bytes = [0; PRIVATE_MAX];
        let mut length = 0u8;
        for (to, from) in bytes.iter_mut().zip(from) {
            *to = *from;
            length = length.wrapping_add(1);
        }
        Self { bytes, length }
    }
}

impl core::ops::Deref for Private {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes)
    }
}

impl core::fmt::Debug for Private {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(&**self, f)
    }
}

/// News of the connection manager.
#[derive(Debug)]
pub struct Event<P> {
    /// Of the pair or device; of the listener for a [`News::Request`].
    pub token: u64,
    /// What happened.
    pub news: News<P>,
}

/// What happened.
#[derive(Debug)]
pub enum News<P> {
    /// [`Fabric::resolve`] has found device and way: create and connect.
    Resolved,
    /// Somebody wants to connect: set a token, create and accept, or reject.
    Request {
        /// The new pair. Its token is the listener's until another one is set.
        pair: P,
        /// What the connecting end said.
        private: Private,
    },
    /// Both ends are connected.
    Established {
        /// What the accepting end said. Empty at the accepting end.
        private: Private,
    },
    /// The other end said no, or nobody listens.
    Refused {
        /// The transport's reason.
        reason: c_int,
        /// What the other end said.
        private: Private,
    },
    /// No device, no way, no answer.
    Unreachable {
        /// What went wrong, positive, or 0.
        errno: c_int,
    },
    /// The connection is at its end.
    Disconnected,
    /// The device goes away: close everything on it. Whoever removes it waits for that.
    DeviceRemoved,
}

/// News of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A pair is broken; its completions and the manager say more.
    PairLost,
    /// The queue of that [name](Fabric::queue_name) has overflowed: it and its pairs are lost. It
    /// may be one of the device's under another address.
    QueueLost(usize),
    /// The device is lost.
    DeviceLost,
    /// The port has come up.
    PortUp,
    /// The port has gone down.
    PortDown,
    /// Something else, as `ibv_event_type` says.
    Other(c_int),
}

/// How long a pair tries before it gives the peer up. Only InfiniBand's transports heed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// Time for an acknowledgement: 4.096 µs times 2 to this power; 0: the driver's choice.
    pub timeout: u8,
    /// How often it is tried again, at most 7.
    pub tries: u8,
}

impl Patience {
    /// The driver's timeout, seven times.
    pub const DEFAULT: Self = Self { timeout: 0, tries: 7 };
}

/// A fabric. See the [module](self) for how it is driven, by whom, and which rules hold.
pub trait Fabric {
    /// Where news of connections arrive.
    type Manager;
    /// Something that takes connection requests.
    type Listener;
    /// A device, by one of its addresses.
    type Device;
    /// A protection domain of a device: what its pairs receive can only touch its regions.
    type Domain;
    /// A completion queue with its wake-up descriptor.
    type Queue;
    /// Registered memory.
    type Region;
    /// A connection, from its first step on: an identifier of the manager's, later with a queue
    /// pair.
    type Pair;

    /// Opens the connection manager. `ENODEV`: there is no device at all.
    fn open_manager(&self) -> Result<Self::Manager, Error>;
    /// Readable when there are news. Nonblocking.
    fn manager_fd(&self, manager: &Self::Manager) -> c_int;
    /// Takes the next news, if there are any.
    fn next_event(&self, manager: &Self::Manager) -> Result<Option<Event<Self::Pair>>, Error>;
    /// Closes it. Everything that was made with it is closed already.
    fn close_manager(&self, manager: Self::Manager) -> Result<(), Error>;

    /// Opens the device that has the address, and looks at what it can do. `token` comes with its
    /// news.
    fn open_device(
        &self,
        manager: &Self::Manager,
        address: IpAddr,
        token: u64,
    ) -> Result<Self::Device, Error>;
    /// What it can do.
    fn facts<'a>(&self, device: &'a Self::Device) -> &'a Facts;
    /// Whether both are the same device.
    fn is_on(&self, device: &Self::Device, pair: &Self::Pair) -> bool;
    /// Readable when there are news of the device. Nonblocking.
    fn device_fd(&self, device: &Self::Device) -> c_int;
    /// Takes the next news of the device, if there are any. Where a device was opened several
    /// times, each comes to one only.
    fn next_fault(&self, device: &Self::Device) -> Result<Option<Fault>, Error>;
    /// Closes it.
    fn close_device(&self, device: Self::Device) -> Result<(), Error>;

    /// Makes a protection domain.
    fn open_domain(&self, device: &Self::Device) -> Result<Self::Domain, Error>;
    /// Closes it.
    fn close_domain(&self, domain: Self::Domain) -> Result<(), Error>;

    /// Makes a queue for at least so many completions.
    fn open_queue(
        &self,
        device: &Self::Device,
        entries: u32,
        vector: u32,
    ) -> Result<Self::Queue, Error>;
    /// What [`Fault::QueueLost`] calls it: no other queue's as long as it is open.
    fn queue_name(&self, queue: &Self::Queue) -> usize;
    /// Readable after an armed queue got a completion. Nonblocking.
    fn queue_fd(&self, queue: &Self::Queue) -> c_int;
    /// Takes up to `out.len()` completions, oldest first.
    fn poll(&self, queue: &Self::Queue, out: &mut [Completion]) -> Result<usize, Error>;
    /// The next completion makes the descriptor readable.
    fn arm(&self, queue: &Self::Queue) -> Result<(), Error>;
    /// Makes the descriptor unreadable again. Returns how many wake-ups were taken.
    fn clear(&self, queue: &Self::Queue) -> Result<u32, Error>;
    /// Closes it.
    fn close_queue(&self, queue: Self::Queue) -> Result<(), Error>;

    /// Registers memory. `ENOMEM` can mean `RLIMIT_MEMLOCK`.
    ///
    /// # Safety
    /// Until the region is closed: the memory stays mapped, and no Rust reference to it exists that
    /// an access of the device (or of the peer, for [`Access::RemoteWrite`]) would make undefined.
    unsafe fn register(
        &self,
        domain: &Self::Domain,
        at: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<Self::Region, Error>;
    /// The region as the peer names it.
    fn remote(&self, region: &Self::Region) -> Remote;
    /// Takes the registration back. After it neither device nor peer touches the memory.
    fn close_region(&self, region: Self::Region) -> Result<(), Error>;

    /// Takes connection requests for an address of the device's; port 0: one that is free.
    fn listen(
        &self,
        manager: &Self::Manager,
        address: SocketAddr,
        backlog: u32,
        token: u64,
    ) -> Result<Self::Listener, Error>;
    /// The port it listens on.
    fn port(&self, listener: &Self::Listener) -> u16;
    /// Closes it.
    fn close_listener(&self, listener: Self::Listener) -> Result<(), Error>;

    /// Begins a connection: looks for device and way, each for at most `timeout_ms`.
    fn resolve(
        &self,
        manager: &Self::Manager,
        from: IpAddr,
        to: SocketAddr,
        timeout_ms: u32,
        token: u64,
    ) -> Result<Self::Pair, Error>;
    /// From here on news of the pair come with this token.
    fn set_token(&self, pair: &mut Self::Pair, token: u64);
    /// The pair's packets are of this traffic class (that of their IP headers), both ways: the
    /// other end has it by the request. Right behind [`Fabric::resolve`]; 0: nothing is asked for.
    fn set_class(&self, pair: &mut Self::Pair, class: u8) -> Result<(), Error>;
    /// Gives the pair its queues. Returns what it got: at least what was asked, but perhaps less
    /// inline.
    fn create(
        &self,
        pair: &mut Self::Pair,
        domain: &Self::Domain,
        queue: &Self::Queue,
        capacity: Capacity,
    ) -> Result<Capacity, Error>;
    /// Asks the other end. Can block.
    fn connect(
        &self,
        pair: &mut Self::Pair,
        private: &[u8],
        patience: Patience,
    ) -> Result<(), Error>;
    /// Says yes to a request.
    fn accept(
        &self,
        pair: &mut Self::Pair,
        private: &[u8],
        patience: Patience,
    ) -> Result<(), Error>;
    /// Says no to a request, and closes the pair.
    fn reject(&self, pair: Self::Pair, private: &[u8]) -> Result<(), Error>;
    /// Posts work requests, in order, with one ring of the device's bell.
    fn post(&self, pair: &Self::Pair, works: &[Work<'_, Self::Region>]) -> Result<(), PostError>;
    /// Posts receives, in order.
    fn post_receives(
        &self,
        pair: &Self::Pair,
        receives: &[Receive<'_, Self::Region>],
    ) -> Result<(), PostError>;
    /// Puts the pair in error: everything posted is flushed. The other end is not told on every
    /// transport.
    fn fail(&self, pair: &Self::Pair) -> Result<(), Error>;
    /// Ends the connection and tells the other end. This end is in error afterwards.
    fn disconnect(&self, pair: &Self::Pair) -> Result<(), Error>;
    /// Closes it. After it the peer writes nothing any more into our memory through it.
    fn close_pair(&self, pair: Self::Pair) -> Result<(), Error>;
}
