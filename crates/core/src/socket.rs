//! One connection, as this process and its forked children see it.
//!
//! A [`Socket`] lives in memory that is shared with forked children (they share the kernel's socket
//! too), in type-stable slabs that are never unmapped. Its life:
//!
//! ```text
//!   (UNCONNECTED) ─┐
//!   connect/accept ──▶ CANDIDATE ──offer──▶ ATTACHED ──need_kernel──▶ PLAIN
//!                          └────────── no library there, odd option, ... ──────▲
//! ```
//!
//! * UNCONNECTED: neither connected nor listening, but registered in an epoll set or duplicated,
//!   which the connection must know. (All others are [`Entry::Fresh`], and have no `Socket`.)
//! * CANDIDATE: all data goes through the kernel; bytes are counted, because a switch needs the
//!   exact offset.
//! * ATTACHED: both directions have a slot in a channel; each direction is on the carrier or on the
//!   ring ([`crate::io`]).
//! * PLAIN: nothing of ours is left; its table entries become 0.
//! * LEFT: a candidate that its maker has closed while a forked child has it: the child may adopt
//!   it ([`crate::adoption`]).
//!
//! Only application threads change a socket's state. The service thread ([`crate::service`]) only
//! leaves an [`Offer`].

use crate::channel::{self, Channel};
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::said::Said;
use crate::{adoption, config, io_uring, own, process, remote, service, shared, stats, syn, sys};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use libc::{sockaddr, socklen_t};
use netacc_control::config::Paths;
use netacc_control::stats::{ConnRecord, Path, Reason};
use netacc_proto::rendezvous::Tuple;
use netacc_proto::switchover::{Rx, Tx};
use netacc_ring::{Consumer, EndLock, Producer, RingWords};

pub(crate) const FREE: u32 = 0;
pub(crate) const CANDIDATE: u32 = 1;
/// A thread is turning the candidate into an attached socket; others wait a moment.
pub(crate) const ATTACHING: u32 = 2;
pub(crate) const ATTACHED: u32 = 3;
pub(crate) const PLAIN: u32 = 4;
pub(crate) const UNCONNECTED: u32 = 5;
/// Its maker has closed it as a candidate, and forked children have it.
pub(crate) const LEFT: u32 = 6;
/// Its maker closes a candidate that forked children have: they wait, a few system calls, for what
/// becomes of it.
pub(crate) const CLOSING: u32 = 7;

/// `Socket::flags`
pub(crate) mod flag {
    /// O_NONBLOCK.
    pub(crate) const NONBLOCK: u32 = 1 << 0;
    /// shutdown(SHUT_WR) was called: the kernel answers further sends.
    pub(crate) const SHUT_WR: u32 = 1 << 1;
    /// The carrier has said something that the ring cannot (FIN, RST, error, urgent data): ask it
    /// before waiting.
    pub(crate) const CARRIER_SPOKE: u32 = 1 << 2;
    /// We made the connection (connect); clear: we accepted it.
    pub(crate) const CONNECTOR: u32 = 1 << 3;
    /// The connector knows that a process with the library accepts on the peer's port.
    pub(crate) const PROBED: u32 = 1 << 4;
    /// The peer broke the rules: every call fails with ECONNRESET.
    pub(crate) const CORRUPT: u32 = 1 << 5;
    /// Every descriptor is closed, but something is still under way on it (`waiters`): `fd` is a
    /// name of the library's own.
    pub(crate) const ORPHAN: u32 = 1 << 6;
    /// Shut down for sending, but the kernel is told when all is sent again.
    pub(crate) const FIN_LATER: u32 = 1 << 7;
    /// The service knows it.
    pub(crate) const NOTED: u32 = 1 << 8;
    /// Over; its memory is free as soon as nobody is in a call on it.
    pub(crate) const FREE_LATER: u32 = 1 << 9;
    /// The peer is on another host, or the connection is for RDMA all the same. Goes when that
    /// cannot be ([`super::make_local`]).
    pub(crate) const REMOTE: u32 = 1 << 10;
    /// Closed, but bytes have to go over the carrier first: counted in `waiters` until somebody
    /// sees to that.
    pub(crate) const CLOSE_LATER: u32 = 1 << 11;
    /// shutdown(SHUT_RD) was called between hosts: an empty ring is the end.
    pub(crate) const SHUT_RD: u32 = 1 << 12;
    /// The library has broken the connection off: bytes are missing, whatever the kernel says.
    pub(crate) const BROKEN_OFF: u32 = 1 << 13;
    /// The application was told that the stream broke off. (As of any error, once: tcp(7).)
    pub(crate) const TOLD: u32 = 1 << 14;
    /// Within the host, and the configuration prefers RDMA there: shared memory if that cannot be.
    pub(crate) const RDMA_FIRST: u32 = 1 << 15;
    /// TCP_CORK: what is sent waits for more.
    pub(crate) const CORKED: u32 = 1 << 17;
    /// The ring may hold bytes back.
    pub(crate) const HOLDS: u32 = 1 << 18;
    /// A forked child uses it: between hosts its maker takes it back to the carrier, for good.
    pub(crate) const CALLED_BACK: u32 = 1 << 16;
    /// The connector has received bytes, and has looked for a listener with the library then.
    pub(crate) const ANSWERED: u32 = 1 << 19;
    /// It goes back to the kernel for good as soon as what it has received can: within the host.
    pub(crate) const LEAVING: u32 = 1 << 20;
    /// Its process has shown that it waits for it by calls that the library sees
    /// (`io/search.rs`).
    pub(crate) const WAITS_SEEN: u32 = 1 << 21;
    /// A forked child has begun to use it: its maker attaches it no more.
    pub(crate) const CONTESTED: u32 = 1 << 24;
    /// The connection was reset, and the kernel does not know, or not any more
    /// (`crate::io::reset`).
    pub(crate) const RESET: u32 = 1 << 22;
    /// LEFT, and adopted: its memory is its maker's again.
    pub(crate) const ADOPTED: u32 = 1 << 25;
    /// It was adopted: the process is found at the connection's port when it has shown to be used.
    pub(crate) const HEIR: u32 = 1 << 26;
    /// It was adopted, and others may have it still.
    pub(crate) const UNSETTLED: u32 = 1 << 27;
    /// Who has it stands on its file ([`crate::adoption::passed`]).
    pub(crate) const TRACKED: u32 = 1 << 28;
    /// It was passed over a unix socket, by this process or to it.
    pub(crate) const PASSED: u32 = 1 << 29;

    /// No two are the same bit.
    #[expect(clippy::indexing_slicing, reason = "checked by the compiler")]
    const _: () = {
        let all = [
            NONBLOCK,
            SHUT_WR,
            CARRIER_SPOKE,
            CONNECTOR,
            PROBED,
            CORRUPT,
            ORPHAN,
            FIN_LATER,
            NOTED,
            FREE_LATER,
            REMOTE,
            CLOSE_LATER,
            SHUT_RD,
            BROKEN_OFF,
            TOLD,
            RDMA_FIRST,
            CORKED,
            HOLDS,
            CALLED_BACK,
            ANSWERED,
            LEAVING,
            WAITS_SEEN,
            RESET,
            CONTESTED,
            ADOPTED,
            HEIR,
            UNSETTLED,
            TRACKED,
            PASSED,
        ];
        let (mut seen, mut i) = (0u32, 0);
        while i < all.len() {
            assert!(seen & all[i] == 0);
            seen |= all[i];
            i += 1;
        }
    };
}

/// The sending half. Owned by whoever holds `Socket::tx_lock`.
#[derive(Debug)]
pub(crate) struct TxEnd {
    pub(crate) switch: Tx,
    pub(crate) ring: Producer,
    /// Never promote again.
    pub(crate) never: bool,
    /// When the first of the bytes was written that the ring holds back.
    pub(crate) held_since: u64,
    /// Kernel calls of before the attachment may be under way: what they send is not counted yet,
    /// and nothing is promoted.
    pub(crate) unsettled: bool,
    /// While bytes are sent again: what the carrier had taken before the send that is under way.
    pub(crate) resend_mark: Option<u64>,
    /// While bytes are sent again: the application's SO_LINGER.
    pub(crate) linger: Option<libc::linger>,
    /// Changes of path to order (tests only).
    pub(crate) switches: crate::inject::Switches,
}

/// The receiving half. Owned by whoever holds `Socket::rx_lock`.
#[derive(Debug)]
pub(crate) struct RxEnd {
    pub(crate) switch: Rx,
    pub(crate) ring: Consumer,
    /// As in [`TxEnd`]: what they receive is not counted yet, and the peer may not promote.
    pub(crate) unsettled: bool,
    /// When the carrier was last asked for news by a call that found the ring empty.
    pub(crate) carrier_asked: u64,
    /// `-errno` that the carrier reported while bytes of the ring came first.
    pub(crate) pending_error: i32,
    /// Shut down for receiving (between hosts): the stream's offset up to which there were bytes
    /// then.
    pub(crate) read_until: u64,
}

#[repr(C, align(64))]
pub(crate) struct Socket {
    // Read at every call.
    pub(crate) state: AtomicU32,
    /// Counts the lives of this piece of memory; 16 bits of it stand in every table entry.
    pub(crate) generation: AtomicU32,
    /// Serial number of the process ([`process::id`]) that made it: another one (a forked
    /// child) takes the slow way.
    pub(crate) owner: AtomicU32,
    pub(crate) flags: AtomicU32,
    pub(crate) slot: AtomicU32,
    /// Some descriptor of the carrier, for the kernel calls that the service thread makes.
    pub(crate) fd: AtomicI32,
    pub(crate) channel: AtomicPtr<Channel>,
    pub(crate) tx_words: AtomicPtr<RingWords>,
    pub(crate) rx_words: AtomicPtr<RingWords>,
    pub(crate) record: AtomicPtr<ConnRecord>,
    // Taken at every call.
    pub(crate) tx_lock: EndLock,
    pub(crate) rx_lock: EndLock,
    /// The receiver's offset in the stream while it stands on the carrier, for those who look
    /// without the lock.
    pub(crate) rx_offset: AtomicU64,
    /// What this end has said in the shared words.
    pub(crate) said: Said,
    pub(crate) tx: UnsafeCell<TxEnd>,
    pub(crate) rx: UnsafeCell<RxEnd>,
    // While a candidate. (Calls that began then can last longer: `unsettled`. Changed under the
    // end's lock when such a call ends.)
    pub(crate) tx_inflight: AtomicU32,
    pub(crate) rx_inflight: AtomicU32,
    /// The thread that attaches it; 0: none, or it has just begun.
    pub(crate) attacher: AtomicU32,
    /// Threads that wait for it in poll or select; above, the generation that they wait for. (A
    /// jump out of a handler leaves one behind.)
    pub(crate) pollers: AtomicU64,
    pub(crate) tx_bytes: AtomicU64,
    pub(crate) rx_bytes: AtomicU64,
    pub(crate) calls: AtomicU32,
    /// Looks in a row that have found what it has sent unread (between hosts: what has come), and
    /// how far it was read then ([`crate::io::look_at_unread`]).
    pub(crate) stood: AtomicU32,
    pub(crate) stood_at: AtomicU64,
    /// How many receives in a row have found nothing and not waited.
    pub(crate) in_vain: AtomicU32,
    /// When its calls look for its peer again (monotonic), if it has none by then; 0: they have not
    /// looked yet.
    pub(crate) look_at: AtomicU64,
    /// How often they have.
    pub(crate) looks: AtomicU32,
    /// Set, last, by the service thread: `offer` is complete. (Between hosts: a value of
    /// [`crate::remote`].)
    pub(crate) offered: AtomicU32,
    /// Between hosts: why there will be no offer.
    pub(crate) verdict: AtomicU32,
    pub(crate) offer: UnsafeCell<Offer>,
    pub(crate) tuple: UnsafeCell<Tuple>,
    // Rare.
    /// While unconnected: the reason why it must never be accelerated, or `Reason::None`.
    pub(crate) refused: AtomicU32,
    /// Between hosts: what is known of its SYN.
    pub(crate) syn: syn::Syn,
    /// Descriptors, in this process and its children, that refer to it (a killed child is never
    /// subtracted); above, the generation.
    pub(crate) refs: AtomicU64,
    /// The connection that this one was adopted from, until nobody else has it any more; then null.
    pub(crate) from: AtomicPtr<Socket>,
    /// Its generation, and above how many of its `refs` this process has.
    pub(crate) from_key: AtomicU64,
    /// How often the process had forked when the connection was made.
    pub(crate) forks: AtomicU32,
    /// What is under way on it in this process: calls that block, a pull-back. It is not taken
    /// apart before that ends.
    pub(crate) waiters: AtomicU32,
    /// Epoll registrations (pairs of set and descriptor) that name it; more than one cannot be
    /// attached.
    pub(crate) registrations: AtomicU32,
    /// The epoll set that it is in, and its item there ([`crate::epoll`]).
    pub(crate) epoll: AtomicPtr<crate::epoll::Epoll>,
    pub(crate) item: AtomicU64,
    /// When a call that did not wait last asked the carrier ([`crate::io::carrier_is_due`]).
    pub(crate) carrier_asked: AtomicU64,
    /// SO_RCVTIMEO and SO_SNDTIMEO; 0: none, < 0: calls never wait.
    pub(crate) receive_timeout_ns: AtomicI64,
    pub(crate) send_timeout_ns: AtomicI64,
    /// `-errno` that the next receive returns which finds nothing (recvmmsg).
    pub(crate) kept_error: AtomicI32,
    /// Link of the free list.
    pub(crate) next_free: AtomicPtr<Socket>,
}

/// What the service thread hands over when both ends have agreed: written while `offered` is 0,
/// read after it is 1.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) channel: *const Channel,
    pub(crate) slot: u32,
    /// The bytes of the ring that we produce into, and of the one that we consume from, in the
    /// mapped arena.
    pub(crate) tx_ring: *mut u8,
    pub(crate) tx_bytes: u32,
    pub(crate) rx_ring: *mut u8,
    pub(crate) rx_bytes: u32,
}

// SAFETY: the UnsafeCells are governed by the locks and flags named beside them; everything else is
// atomic.
unsafe impl Sync for Socket {}
// SAFETY: as above.
unsafe impl Send for Socket {}

// ---- memory -------------------------------------------------------------------------------------

/// Head of the free list: address in the low 48 bits, a counter against ABA above.
static FREE_LIST: AtomicU64 = AtomicU64::new(0);
const SLAB_BYTES: usize = 256 * 1024;
const ADDRESS: u64 = (1 << 48) - 1;

fn pop_free() -> Option<&'static Socket> {
    loop {
        let head = FREE_LIST.load(Acquire);
        // SAFETY: the list holds only sockets of slabs, which are never unmapped.
        let s = unsafe { ((head & ADDRESS) as *const Socket).as_ref() }?;
        let next = s.next_free.load(Relaxed) as u64;
        let new = (next & ADDRESS) | (head.wrapping_add(1 << 48) & !ADDRESS);
        if FREE_LIST.compare_exchange(head, new, AcqRel, Relaxed).is_ok() {
            return Some(s);
        }
    }
}

fn push_free(s: &'static Socket) {
    loop {
        let head = FREE_LIST.load(Acquire);
        s.next_free.store((head & ADDRESS) as *mut Socket, Relaxed);
        let new = (s as *const Socket as u64 & ADDRESS) | (head.wrapping_add(1 << 48) & !ADDRESS);
        if FREE_LIST.compare_exchange(head, new, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

fn allocate() -> Option<&'static Socket> {
    if let Some(s) = pop_free() {
        return Some(s);
    }
    let slab = shared::map(-1, SLAB_BYTES, shared::Kind::Sockets);
    if slab.is_null() {
        return None;
    }
    let count = SLAB_BYTES / size_of::<Socket>();
    for i in 0..count {
        // SAFETY: within the slab just mapped; all zero is a valid free Socket (atomics, locks, and
        // cells that are written before they are read).
        push_free(unsafe { &*slab.cast::<Socket>().add(i) });
    }
    pop_free()
}

/// Puts memory of this process's own in the place of an inherited slab: in it every socket is free,
/// and of another generation, for those who still know it. False: there is none.
pub(crate) fn give_up_slab(slab: *mut u8, bytes: usize) -> bool {
    let new = sys::map_private(bytes);
    if new.is_null() {
        return false;
    }
    for i in 0..bytes / size_of::<Socket>() {
        // SAFETY: within the inherited slab.
        let old = unsafe { &*slab.cast::<Socket>().add(i) };
        // SAFETY: within the memory just mapped; all zero is a valid free Socket.
        let new = unsafe { &*new.cast::<Socket>().add(i) };
        new.generation.store(old.generation.load(Relaxed).wrapping_add(1), Relaxed);
    }
    // SAFETY: both are whole mappings of `bytes`; what stood there is the parent's, and named by
    // nobody here.
    unsafe { sys::move_over(new, slab, bytes) }
}

/// The parent's free sockets are the parent's to give out.
pub(crate) fn after_fork_in_child() {
    FREE_LIST.store(0, Release);
    if ORPHANS.swap(0, Relaxed) != 0 {
        // Their carriers would stay open for as long as this process lives.
        let mut raw = [0u8; 128];
        fd_table::for_each_internal(|fd| {
            let len = sys::socket_name(fd, false, &mut raw);
            if address(&raw, len).is_some() {
                fd_table::close_internal(fd);
            }
        });
    }
}

impl Socket {
    /// Size of the ring that an attached socket produces into.
    pub(crate) fn tx_ring_bytes(&self) -> u64 {
        // SAFETY: written before the socket was attached, read-only afterwards.
        unsafe { (*self.offer.get()).tx_bytes as u64 }
    }
    pub(crate) fn generation16(&self) -> u16 {
        self.generation.load(Acquire) as u16
    }
    pub(crate) fn is(&self, state: u32) -> bool {
        self.state.load(Acquire) == state
    }
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Acquire) & flag != 0
    }
    pub(crate) fn raise(&self, flag: u32) {
        self.flags.fetch_or(flag, AcqRel);
    }
    pub(crate) fn lower(&self, flag: u32) {
        self.flags.fetch_and(!flag, AcqRel);
    }
    /// Made by another process of the family: this one inherited it.
    #[inline(always)]
    pub(crate) fn is_inherited(&self) -> bool {
        self.owner.load(Relaxed) != process::id()
    }
    /// Descriptors of this process and its children that refer to it.
    pub(crate) fn names(&self) -> u32 {
        self.refs.load(SeqCst) as u32
    }
    /// Counts descriptors in or out, unless it is another connection by now. Returns how many there
    /// were.
    pub(crate) fn count_names(&self, g: u16, change: impl Fn(u32) -> u32) -> Option<u32> {
        let counted = |old: u64| {
            ((old >> 32) as u16 == g).then(|| old >> 32 << 32 | u64::from(change(old as u32)))
        };
        self.refs.fetch_update(SeqCst, SeqCst, counted).ok().map(|old| old as u32)
    }
    /// One more thread waits for it in poll or select, or one less; nothing, if it is another
    /// connection by now.
    pub(crate) fn count_poller(&self, generation: u32, change: fn(u32) -> u32) -> bool {
        let counted = |old: u64| {
            ((old >> 32) as u32 == generation)
                .then(|| u64::from(generation) << 32 | u64::from(change(old as u32)))
        };
        self.pollers.fetch_update(SeqCst, SeqCst, counted).is_ok()
    }
    pub(crate) fn record(&self) -> Option<&'static ConnRecord> {
        // SAFETY: null or a record of a statistics segment, which is never unmapped.
        unsafe { self.record.load(Acquire).as_ref() }
    }
    /// `None` also in a forked child if it leads to another host: the memory may be of after the
    /// fork, and its maker does everything.
    pub(crate) fn channel(&self) -> Option<&'static Channel> {
        if self.is_inherited() && self.has(flag::REMOTE) {
            return None;
        }
        // SAFETY: null, or a channel that is not freed while `users` counts this socket; the memory
        // of one within the host is older than any fork that this process inherited the socket by
        // (`attach`).
        unsafe { self.channel.load(Acquire).as_ref() }
    }
    /// The words of the directions that it produces and that it consumes; the channel is
    /// [`Self::channel`]'s.
    #[inline(always)]
    pub(crate) fn words(&self) -> Option<(&'static RingWords, &'static RingWords)> {
        // SAFETY: null, or words of the channel, which lives as that does.
        unsafe {
            Some((self.tx_words.load(Relaxed).as_ref()?, self.rx_words.load(Relaxed).as_ref()?))
        }
    }
    pub(crate) fn tuple(&self) -> Tuple {
        // SAFETY: written before the socket is first shared, never after.
        unsafe { *self.tuple.get() }
    }
    /// Says so of a connection of which nothing better is known.
    pub(crate) fn judge(&self, why: Reason) {
        self.change_reason(&[Reason::NotStarted, Reason::Negotiating], why);
    }
    /// The search for its peer begins, or comes to something.
    pub(crate) fn start(&self, why: Reason) {
        use Reason::*;
        let passing = [
            NotStarted,
            WaitsUnseen,
            ListenerWithoutLibrary,
            PeerWithoutLibrary,
            NotClaimed,
            PeerRefused,
            VersionMismatch,
            NotAuthenticated,
            NoMemory,
            NoDescriptor,
            NoRecord,
            ChannelFull,
            ChannelFailed,
            PeerCorrupt,
        ];
        self.change_reason(&passing, why);
    }
    /// Another thread may have said something for good meanwhile.
    fn change_reason(&self, from: &[Reason], to: Reason) {
        let Some(r) = self.record() else { return };
        let old = r.reason.load(Relaxed);
        if let Some(old) = from.iter().find(|f| **f as u32 == old)
            && r.reason.compare_exchange(*old as u32, to as u32, Relaxed, Relaxed).is_ok()
            && let Some(h) = stats::header()
        {
            h.change_reason(*old, to);
        }
    }
    /// Records why the connection is where it is.
    pub(crate) fn set_reason(&self, why: Reason) {
        if let Some(r) = self.record() {
            let old = r.reason.swap(why as u32, Relaxed);
            let old = Reason::ALL.get(old as usize).copied().unwrap_or(Reason::None);
            if let Some(h) = stats::header() {
                h.change_reason(old, why);
            }
        }
    }
}

// ---- life ---------------------------------------------------------------------------------------

pub(crate) const NONE: u32 = Reason::None as u32;

pub(crate) fn on_socket(fd: c_int, domain: c_int, ty: c_int, protocol: c_int) {
    fd_table::forget_stale(fd);
    let stream = ty & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if stream && (domain == libc::AF_INET || domain == libc::AF_INET6) && process::started() {
        fd_table::set(fd, Entry::Fresh(io_uring::refusal(NONE)));
    }
}

/// A stream socket that is neither connected nor listening: the reason why it must never be
/// accelerated, or [`NONE`].
pub(crate) fn unconnected(fd: c_int) -> Option<u32> {
    match fd_table::get(fd) {
        Entry::Fresh(reason) => Some(reason),
        Entry::Socket(s, _) if s.is(UNCONNECTED) => Some(s.refused.load(Relaxed)),
        _ => None,
    }
}

/// Something happens to a fresh socket that its connection must know: it gets its `Socket` now.
#[cold]
pub(crate) fn make_unconnected(fd: c_int) -> Option<(&'static Socket, u16)> {
    let raw = fd_table::raw(fd);
    let Entry::Fresh(reason) = fd_table::decode(raw) else { return fd_table::socket(fd) };
    let began = fd_table::began(fd);
    let s = new_socket(fd)?;
    s.refused.store(reason, Relaxed);
    s.syn.set_began(began);
    s.state.store(UNCONNECTED, Release);
    if !fd_table::replace(fd, raw, Entry::Socket(s, s.generation16())) {
        // Another thread was faster, with this or something else.
        s.state.store(FREE, Release);
        push_free(s);
        return fd_table::socket(fd);
    }
    Some((s, s.generation16()))
}

/// It must not be accelerated when it is connected.
pub(crate) fn refuse(s: &Socket, why: Reason) {
    s.refused.store(why as u32, Relaxed);
}

pub(crate) fn on_listen(fd: c_int) {
    let Some(reason) = unconnected(fd) else { return };
    // What is done to the listener's descriptor is no matter of its connections'.
    let of_descriptor =
        [Reason::SeveralEpollSets, Reason::DuplicateInEpoll, Reason::InheritedByFork]
            .iter()
            .any(|why| *why as u32 == reason);
    let listener = Entry::Listener(if of_descriptor { NONE } else { reason });
    let Entry::Socket(s, g) = fd_table::get(fd) else {
        fd_table::set(fd, listener);
        return;
    };
    fd_table::for_each(|other, entry| {
        if matches!(entry, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g) {
            fd_table::set(other, listener);
        }
    });
    retire(s);
}

/// An unconnected socket has become a listener: its registrations are the kernel's alone, and its
/// memory serves again.
fn retire(s: &'static Socket) {
    if s.is_inherited() || s.state.compare_exchange(UNCONNECTED, PLAIN, SeqCst, Relaxed).is_err() {
        return;
    }
    crate::epoll::on_plain(s);
    s.generation.fetch_add(1, AcqRel);
    s.state.store(FREE, Release);
    s.raise(flag::FREE_LATER);
    recycle(s);
}

/// Reads an address of the kernel's. `None`: not an Internet address.
pub(crate) fn address(raw: &[u8; 128], len: isize) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([*raw.first()?, *raw.get(1)?]) as c_int;
    let port = u16::from_be_bytes([*raw.get(2)?, *raw.get(3)?]);
    let ip: IpAddr = if family == libc::AF_INET && len >= 8 {
        <[u8; 4]>::try_from(raw.get(4..8)?).ok()?.into()
    } else if family == libc::AF_INET6 && len >= 24 {
        <[u8; 16]>::try_from(raw.get(8..24)?).ok()?.into()
    } else {
        return None;
    };
    Some(SocketAddr::new(ip, port))
}

/// `sockaddr_in` or `sockaddr_in6`, and its length.
pub(crate) fn sockaddr(of: SocketAddr) -> ([u8; 28], usize) {
    let mut raw = [0u8; 28];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(to) = raw.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    };
    put(2, &of.port().to_be_bytes());
    let (family, len) = match of.ip() {
        IpAddr::V4(ip) => {
            put(4, &ip.octets());
            (libc::AF_INET, 16)
        }
        IpAddr::V6(ip) => {
            put(8, &ip.octets());
            (libc::AF_INET6, 28)
        }
    };
    put(0, &(family as u16).to_ne_bytes());
    (raw, len)
}

/// Both addresses of a connected TCP socket. `None`: not connected, or not TCP.
pub(crate) fn tuple_of(fd: c_int) -> Option<Tuple> {
    let mut raw = [0u8; 128];
    let len = sys::socket_name(fd, false, &mut raw);
    let local = address(&raw, len)?;
    let len = sys::socket_name(fd, true, &mut raw);
    Tuple::new(local, address(&raw, len)?).ok()
}

/// The port that a socket is bound to; 0: none.
pub(crate) fn local_port(fd: c_int) -> u16 {
    let mut raw = [0u8; 128];
    let len = sys::socket_name(fd, false, &mut raw);
    address(&raw, len).map_or(0, |a| a.port())
}

/// Whether the other end is on this host: loopback, or an address of its own.
fn same_host(t: &Tuple) -> bool {
    let (local, peer) = (t.local().ip(), t.peer().ip());
    local == peer || peer.is_loopback() || own::has(peer)
}

/// The path that a connection could take: the first one of the configuration's that can serve its
/// addresses.
fn path_of(t: &Tuple, paths: &Paths) -> Result<Path, Reason> {
    let same_host = same_host(t);
    let mut why = if paths.contains(Path::Rdma) || same_host {
        Reason::PathsExcludeIt
    } else {
        Reason::PeerRemote
    };
    for path in paths.iter() {
        match path {
            Path::Shm if same_host => return Ok(path),
            Path::Rdma => match remote::could_serve(t) {
                Ok(()) => return Ok(path),
                Err(reason) if !same_host => why = reason,
                Err(_) => {}
            },
            _ => {}
        }
    }
    Err(why)
}

/// Of every 100 new connections, `percent` are accelerated, evenly spread.
fn sampled_out(percent: u8) -> bool {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Relaxed) as u64;
    let p = percent as u64;
    n * p / 100 == (n + 1) * p / 100
}

/// A connection has come to be: makes its socket and starts the search for the peer's library.
fn begin(fd: c_int, reason: u32, connector: bool) {
    match tuple_of(fd) {
        Some(tuple) => begin_as(fd, reason, connector, tuple, (0, 0), true),
        None if !connector => {
            fd_table::set(fd, Entry::None);
        }
        None => {}
    }
}

/// A socket with nothing known of it but a name.
fn new_socket(fd: c_int) -> Option<&'static Socket> {
    let s = allocate()?;
    s.owner.store(process::id(), Relaxed);
    s.flags.store(0, Relaxed);
    s.slot.store(u32::MAX, Relaxed);
    s.fd.store(fd, Relaxed);
    s.channel.store(core::ptr::null_mut(), Relaxed);
    s.tx_inflight.store(0, Relaxed);
    s.rx_inflight.store(0, Relaxed);
    s.receive_timeout_ns.store(0, Relaxed);
    s.send_timeout_ns.store(0, Relaxed);
    s.kept_error.store(0, Relaxed);
    s.offered.store(0, Relaxed);
    s.refs.store(u64::from(s.generation.load(Relaxed)) << 32 | 1, Relaxed);
    s.from.store(core::ptr::null_mut(), Relaxed);
    s.pollers.store(u64::from(s.generation.load(Relaxed)) << 32, Relaxed);
    s.registrations.store(0, Relaxed);
    s.forks.store(process::forks(), Relaxed);
    s.carrier_asked.store(0, Relaxed);
    s.syn.reset();
    s.item.store(0, Relaxed);
    s.epoll.store(core::ptr::null_mut(), Relaxed);
    s.refused.store(NONE, Relaxed);
    Some(s)
}

/// The socket of a connection that has come to be: new, or the one that it had unconnected, which
/// nobody else gets meanwhile.
fn claim(fd: c_int) -> Option<&'static Socket> {
    let Entry::Socket(s, _) = fd_table::get(fd) else {
        let new = new_socket(fd);
        if new.is_none() {
            fd_table::set(fd, Entry::None);
        }
        return new;
    };
    if s.is_inherited() {
        // Its maker has it too: for neither of them. (Nothing else of it may be a child's.)
        let _ = s.state.compare_exchange(UNCONNECTED, PLAIN, SeqCst, Relaxed);
        return None;
    }
    s.state.compare_exchange(UNCONNECTED, ATTACHING, SeqCst, Relaxed).ok()?;
    s.attacher.store(process::tid(), Relaxed);
    s.fd.store(fd, Relaxed);
    s.syn.reset();
    Some(s)
}

/// `moved`: what was sent and received on it before. `made`: it is a connection already.
fn begin_as(fd: c_int, reason: u32, connector: bool, tuple: Tuple, moved: (u64, u64), made: bool) {
    let began = fd_table::began(fd);
    let Some(s) = claim(fd) else { return };
    s.syn.set_began(began);
    fill(s, fd, reason, connector, tuple, moved, made);
    fd_table::set(fd, Entry::Socket(s, s.generation16()));
    if s.is(CANDIDATE) {
        start(s);
    }
}

/// A new socket for a connection that was not made here. Its caller gives it its names.
pub(crate) fn new_heir(
    fd: c_int,
    why: Reason,
    connector: bool,
    tuple: Tuple,
    moved: (u64, u64),
) -> Option<&'static Socket> {
    let s = new_socket(fd)?;
    fill(s, fd, why as u32, connector, tuple, moved, true);
    Some(s)
}

/// Makes a socket a candidate, or plain for the reason that its record shows.
fn fill(
    s: &Socket,
    fd: c_int,
    reason: u32,
    connector: bool,
    tuple: Tuple,
    moved: (u64, u64),
    made: bool,
) {
    let began = s.syn.began();
    if connector {
        s.raise(flag::CONNECTOR);
    }
    s.tx_bytes.store(moved.0, Relaxed);
    s.rx_bytes.store(moved.1, Relaxed);
    s.calls.store(0, Relaxed);
    s.in_vain.store(0, Relaxed);
    s.stood.store(0, Relaxed);
    s.look_at.store(0, Relaxed);
    s.looks.store(0, Relaxed);
    // SAFETY: nobody else looks at this socket's addresses yet.
    unsafe { *s.tuple.get() = tuple };
    let config = config::get();
    let why = Reason::ALL.get(reason as usize).copied().unwrap_or(Reason::None);
    let why = if why != Reason::None {
        why
    } else if !config.accelerate_by_default {
        Reason::DisabledByConfig
    } else if tuple.local() == tuple.peer() {
        Reason::SelfConnect
    } else {
        match path_of(&tuple, &config.paths) {
            Err(why) => why,
            Ok(_) if sampled_out(config.accelerate_percent) => Reason::SampledOut,
            Ok(path) => {
                if path == Path::Rdma {
                    s.raise(flag::REMOTE);
                    if connector {
                        s.syn.sent(began, sys::kernel_ns(), made);
                    }
                }
                if config.paths.first() == Some(Path::Rdma)
                    && config.paths.contains(Path::Shm)
                    && same_host(&tuple)
                {
                    s.raise(flag::RDMA_FIRST);
                }
                Reason::NotStarted
            }
        }
    };
    let record = stats::open(fd, why);
    s.record.store(record, Relaxed);
    if let Some(r) = s.record() {
        r.set_addresses(tuple.local(), tuple.peer());
    }
    stats::count(if connector {
        netacc_control::stats::Counter::Connected
    } else {
        netacc_control::stats::Counter::Accepted
    });
    let candidate = why == Reason::NotStarted;
    s.attacher.store(0, SeqCst);
    s.state.store(if candidate { CANDIDATE } else { PLAIN }, SeqCst);
}

/// A candidate's calls that move bytes before its peer is told of it. An agreement costs both
/// processes some ten microseconds, which a connection of one request and one reply never gets
/// back.
pub(crate) const NOTED_AFTER: u32 = 3;

/// A new candidate's peer can find this process, or is looked for.
fn start(s: &'static Socket) {
    let (tuple, connector) = (s.tuple(), s.has(flag::CONNECTOR));
    if s.has(flag::REMOTE) {
        if !connector {
            remote::accepting(tuple.local());
            if s.has(flag::RDMA_FIRST) {
                // The connector may find that there is no RDMA, and look for shared memory.
                service::accepting(tuple.local_port());
            }
        }
    } else if connector {
        // The listener may not have accepted anything yet, and be unknown for that: asked again
        // after its first answer; with NACC_CONN_TCP_FIRST=1 only then.
        if !config::get().tcp_first && service::connected(s) {
            s.raise(flag::PROBED);
        }
    } else {
        service::accepting(tuple.local_port());
    }
}

pub(crate) fn on_accept(listener: c_int, fd: c_int, _flags: c_int) {
    fd_table::forget_stale(fd);
    if !process::started() {
        return;
    }
    match fd_table::get(listener) {
        Entry::Listener(reason) | Entry::Fresh(reason) => {
            begin(fd, io_uring::refusal(reason), false)
        }
        // A listener from before this program image; unix sockets come this way too.
        _ => {
            let mut raw = [0u8; 128];
            let len = sys::socket_name(fd, false, &mut raw);
            if address(&raw, len).is_some() {
                begin(fd, io_uring::refusal(NONE), false);
                adopt(listener, fd);
            }
        }
    }
}

/// A listener that this program image has inherited is known from its first connection of another
/// host's on.
fn adopt(listener: c_int, fd: c_int) {
    if fd_table::raw(listener) == 0
        && fd_table::socket(fd).is_some_and(|(s, _)| s.has(flag::REMOTE))
    {
        syn::keep(listener);
        fd_table::set(listener, Entry::Listener(NONE));
    }
}

pub(crate) unsafe fn before_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    syn::may_begin(fd);
    if let Entry::Socket(s, g) = fd_table::get(fd) {
        // connect(AF_UNSPEC) dissolves the connection; the descriptor starts anew.
        // SAFETY: the caller says that two bytes are there.
        let family = || unsafe { crate::user::read(&raw const (*addr).sa_family) };
        if len >= 2 && family() == Some(libc::AF_UNSPEC as libc::sa_family_t) {
            let _ = crate::io::to_kernel(s, g, fd, Reason::Disconnected, false);
        } else if s.is(CANDIDATE) && s.has(flag::CONNECTOR) && state_of(fd) == Some(TCP_CLOSE) {
            // It was refused, and is tried again, perhaps elsewhere.
            if !was_never_one(s) {
                make_plain(s, Reason::Disconnected);
            }
        }
    }
    PASS
}

/// A connect that was under way has failed: the socket is an unconnected one again. False: it is
/// more than that.
fn was_never_one(s: &'static Socket) -> bool {
    if s.is_inherited() || s.state.compare_exchange(CANDIDATE, ATTACHING, SeqCst, Relaxed).is_err()
    {
        return false;
    }
    s.attacher.store(process::tid(), Relaxed);
    let used = [&s.tx_inflight, &s.rx_inflight, &s.offered].iter().any(|n| n.load(SeqCst) != 0);
    let moved = s.tx_bytes.load(Relaxed) != 0 || s.rx_bytes.load(Relaxed) != 0;
    let is_new = !used && !moved && !s.has(flag::NOTED);
    if is_new {
        close_books(s);
        s.flags.store(0, Release);
        s.refused.store(NONE, Relaxed);
    }
    s.attacher.store(0, SeqCst);
    s.state.store(if is_new { UNCONNECTED } else { CANDIDATE }, SeqCst);
    is_new
}

pub(crate) unsafe fn on_connect(fd: c_int, addr: *const sockaddr, len: socklen_t, result: c_int) {
    let Some(reason) = unconnected(fd) else { return };
    channel::sent_by_kernel();
    if result == 0 || result == -libc::EISCONN {
        if result != 0 {
            fd_table::set_began(fd, 0);
        }
        begin(fd, reason, true);
    } else if result == -libc::EINPROGRESS || result == -libc::EINTR {
        // Under way: the kernel does not say yet where to, but what is done to the descriptor
        // meanwhile has to be followed.
        let mut raw = [0u8; 128];
        let n = (len as usize).min(raw.len());
        // SAFETY: the kernel has just read as much.
        let copied = |to| unsafe { crate::user::read_into(addr.cast::<u8>(), to) };
        if n < 2 || !raw.get_mut(..n).is_some_and(copied) {
            return;
        }
        let peer = address(&raw, n as isize).filter(|a| !a.ip().is_unspecified());
        let len = sys::socket_name(fd, false, &mut raw);
        if let (Some(peer), Some(local)) = (peer, address(&raw, len))
            && let Ok(tuple) = Tuple::new(local, peer)
        {
            begin_as(fd, reason, true, tuple, (0, 0), false);
        }
    } else if result != -libc::EALREADY {
        fd_table::set_began(fd, 0);
    }
}

/// `TCP_CLOSE` of the kernel's states (include/net/tcp_states.h).
const TCP_CLOSE: u8 = 7;

/// The peer's FIN, or a reset, has come: TCP's states CLOSE_WAIT, LAST_ACK, CLOSING, TIME_WAIT and
/// CLOSE.
pub(crate) fn peer_ended(fd: c_int) -> bool {
    state_of(fd).is_none_or(|state| matches!(state, 6..=9 | 11))
}

/// As [`peer_ended`], where it is known: not of what is no TCP socket (any more).
pub(crate) fn has_ended(fd: c_int) -> bool {
    state_of(fd).is_some_and(|state| matches!(state, 6..=9 | 11))
}

/// The connection is over, at both ends or by a reset.
pub(crate) fn is_closed(fd: c_int) -> bool {
    state_of(fd) == Some(TCP_CLOSE)
}

/// Not a socket of another protocol, nor another file.
pub(crate) fn is_tcp(fd: c_int) -> bool {
    state_of(fd).is_some()
}

/// Neither end has said that it sends no more, and nobody here that it receives no more.
pub(crate) fn is_open(fd: c_int) -> bool {
    const TCP_ESTABLISHED: u8 = 1;
    state_of(fd) == Some(TCP_ESTABLISHED)
        && sys::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR)
            == 0
}

/// The kernel's state of a TCP socket.
fn state_of(fd: c_int) -> Option<u8> {
    tcp_info(fd).map(|info| info.bytes[0])
}

fn tcp_info(fd: c_int) -> Option<TcpInfo> {
    // SAFETY: all zero is a valid TcpInfo.
    let mut info: TcpInfo = unsafe { core::mem::zeroed() };
    (sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) >= 0).then_some(info)
}

/// A fresh socket is used for data: a connect that was in progress has succeeded, unless it is no
/// connection at all. (Opened with its first bytes, by TCP Fast Open, it was none before them.)
#[cold]
pub(crate) fn look_again(fd: c_int) {
    if let Some(reason) = unconnected(fd)
        && let Some(tuple) = tuple_of(fd)
    {
        begin_as(fd, reason, true, tuple, settled_counts(fd, true).unwrap_or_default(), true);
    } else {
        syn::may_begin(fd);
    }
}

/// From candidate to plain, for good.
pub(crate) fn make_plain(s: &'static Socket, why: Reason) {
    if s.state.compare_exchange(CANDIDATE, PLAIN, AcqRel, Acquire).is_ok() {
        s.set_reason(why);
        service::closing(s);
    }
}

/// Waits until nobody attaches it any more, which takes some system calls. False: it is this very
/// thread that does, and a signal handler has interrupted it.
pub(crate) fn await_attach(s: &Socket) -> bool {
    let mut n = 0u32;
    loop {
        n = n.wrapping_add(1);
        if s.state.load(SeqCst) != ATTACHING {
            return true;
        }
        if s.attacher.load(SeqCst) == process::tid() {
            return false;
        }
        if n < 1000 {
            core::hint::spin_loop();
            continue;
        }
        sys::sched_yield();
        // A forked child has no other way to hear that its parent was killed there.
        let over = || {
            if s.has(flag::REMOTE) {
                !remote::maker_lives(s)
            } else {
                !process::lives(s.owner.load(Relaxed))
            }
        };
        if n.is_multiple_of(10_000) && s.is_inherited() && over() {
            let _ = s.state.compare_exchange(ATTACHING, PLAIN, SeqCst, Relaxed);
        }
    }
}

/// Waits until its maker has closed it.
#[cold]
pub(crate) fn await_close(s: &Socket) {
    let mut n = 0u32;
    while s.state.load(SeqCst) == CLOSING {
        n = n.wrapping_add(1);
        if n < 1000 {
            core::hint::spin_loop();
            continue;
        }
        sys::sched_yield();
        if n.is_multiple_of(10_000) && !process::lives(s.owner.load(Relaxed)) {
            let _ = s.state.compare_exchange(CLOSING, PLAIN, SeqCst, Relaxed);
        }
    }
}

/// RDMA cannot serve a connection within the host: from now on it is a candidate for shared memory.
/// False: it is not such a one.
pub(crate) fn make_local(s: &'static Socket, g: u16) -> bool {
    if !s.has(flag::RDMA_FIRST) {
        return false;
    }
    service::end_proof(s);
    // What "netacc-rdma" leaves for such sockets it leaves under this lock.
    let Some(_tx) = crate::lock::lock_end(&s.tx_lock) else { return true };
    if s.generation16() == g && s.is(CANDIDATE) {
        let offered = s.offered.load(SeqCst);
        if s.has(flag::REMOTE) && offered != remote::OFFERED {
            s.set_reason(Reason::NotStarted);
            s.calls.store(0, Relaxed);
            s.look_at.store(0, Relaxed);
            s.lower(flag::REMOTE | flag::NOTED);
        }
        // Last: whoever finds an offer from here on finds one of shared memory. (That it is never
        // to be may be said once more meanwhile.)
        if offered == remote::NEVER {
            let _ = s.offered.compare_exchange(offered, 0, SeqCst, Relaxed);
        }
    }
    true
}

/// The last descriptor of this process's (or, `kernel_too` false, one whose closing is somebody
/// else's work) is closed.
pub(crate) fn close(s: &'static Socket, g: u16, fd: c_int, kernel_too: bool) -> Ret {
    let kernel_close = || if kernel_too { sys::close(fd) } else { 0 };
    if s.generation16() != g {
        return kernel_close();
    }
    crate::epoll::forget(s, fd);
    let Some(names) = s.count_names(g, |n| n.saturating_sub(1)) else { return kernel_close() };
    if names > 1 {
        if s.has(flag::TRACKED) {
            adoption::passed::lose_track(s, fd);
        }
        let mut other = -1;
        fd_table::for_each(|n, e| {
            if other < 0 && matches!(e, Entry::Socket(o, h) if core::ptr::eq(o, s) && h == g) {
                other = n;
            }
        });
        if s.is_inherited() {
            // What it says of descriptors is its maker's.
            return kernel_close();
        }
        if other >= 0 {
            rename(s, fd, other);
            return kernel_close();
        }
    }
    // A child takes apart only what its maker has left to it, by a close or by its end.
    if s.is_inherited() && s.fd.load(Acquire) >= 0 && process::lives(s.owner.load(Relaxed)) {
        return kernel_close();
    }
    let_go(s, g, fd, kernel_close)
}

/// The last name of a connection that this process has goes. (A forked child may have it, too;
/// `refs` says so, or did.)
fn let_go(s: &'static Socket, g: u16, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    if !s.is(ATTACHED) || fd < 0 || s.is_inherited() {
        let heard_of = s.is(CANDIDATE) && !s.has(flag::REMOTE);
        let r = finish(s, fd, kernel_close);
        if heard_of {
            channel::sent_by_kernel();
        }
        return r;
    }
    let shared = s.names() > 0;
    // (Between hosts it leaves behind the close, which waits for that within bounds.)
    let between_hosts = s.has(flag::REMOTE);
    let in_ring =
        !(shared && !between_hosts && crate::io::to_kernel(s, g, fd, Reason::None, false));
    match crate::io::last_name(s, fd, shared && in_ring) {
        LastName::Outlived => {
            let r = kernel_close();
            if s.waiters.load(SeqCst) == 0 {
                bury_orphan(s, g);
            } else {
                crate::io::await_peer(s, g);
            }
            r
        }
        // A forked child may want what only the ring has; it is the peer's end that frees it.
        LastName::LeftToChild => {
            close_books(s);
            kernel_close()
        }
        LastName::Gone => finish(s, fd, kernel_close),
    }
}

/// What becomes of a connection whose last name in this process goes.
pub(crate) enum LastName {
    /// Something is under way that needs the carrier: it lives on as an orphan.
    Outlived,
    LeftToChild,
    Gone,
}

/// Orphans of this process: a forked child closes its copies of their names.
static ORPHANS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn orphan(s: &Socket, own: c_int) {
    ORPHANS.fetch_add(1, Relaxed);
    s.fd.store(own, Release);
    s.raise(flag::ORPHAN);
}

/// `fd` is about to be closed: who sends on it finds `other` from here on.
fn rename(s: &'static Socket, fd: c_int, other: c_int) {
    let tx = crate::lock::lock_end(&s.tx_lock);
    if s.fd.load(Relaxed) == fd || other < 0 {
        s.fd.store(other, Release);
        if let Some(r) = s.record().filter(|_| other >= 0) {
            r.fd.store(other as u32, Relaxed);
        }
    }
    drop(tx);
    service::renamed(s);
}

/// What was under way on a closed connection has ended.
pub(crate) fn bury_orphan(s: &'static Socket, g: u16) {
    if s.generation16() == g && s.flags.fetch_and(!flag::ORPHAN, AcqRel) & flag::ORPHAN != 0 {
        ORPHANS.fetch_sub(1, Relaxed);
        let own = s.fd.load(Acquire);
        crate::io::never_linger(own);
        let _ = let_go(s, g, own, || {
            fd_table::close_internal(own);
            0
        });
    }
}

/// The connection is this process's no more: it goes from the statistics.
fn close_books(s: &Socket) {
    // SAFETY: as in `record`; the swap gives it to one caller.
    let Some(rec) = (unsafe { s.record.swap(core::ptr::null_mut(), AcqRel).as_ref() }) else {
        return;
    };
    let path = rec.tx_path.load(Relaxed).max(rec.rx_path.load(Relaxed));
    stats::add_bytes(rec);
    stats::closed(
        netacc_control::stats::Path::from_code(path).unwrap_or(netacc_control::stats::Path::Tcp),
    );
    stats::close(rec);
}

/// Takes a connection apart around the kernel's close of its last descriptor.
fn finish(s: &'static Socket, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    let mut state = s.state.load(Acquire);
    for _ in 0..1_000_000 {
        if state != ATTACHING {
            break;
        }
        // Another thread is about to attach it: it finishes first, and this takes the result apart.
        core::hint::spin_loop();
        state = s.state.load(Acquire);
    }
    let was_candidate = state == CANDIDATE && {
        // In this order: who notes it raises NOTED first, and looks at the state afterwards.
        let next = if !s.is_inherited() && s.names() > 0 { CLOSING } else { PLAIN };
        let won = s.state.compare_exchange(CANDIDATE, next, SeqCst, Relaxed).is_ok();
        service::closing(s);
        won
    };
    if state == PLAIN {
        // It may have become that a moment ago: whoever made it so may not have come by there yet.
        service::last_look(s);
    }
    if s.has(flag::TRACKED) {
        let counted = s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0;
        adoption::passed::before_close(s, fd, was_candidate && counted);
    }
    if state == ATTACHED {
        crate::io::before_close(s, fd, true);
    }
    let r = kernel_close();
    if !s.is_inherited() {
        close_books(s);
    }
    if was_candidate && adoption::leave(s) {
        return r;
    }
    let _ = s.state.compare_exchange(CLOSING, PLAIN, SeqCst, Relaxed);
    // Threads that still know it find another generation when they look again; only then is its
    // slot given back.
    let tx = crate::lock::lock_end(&s.tx_lock);
    let rx = crate::lock::lock_end(&s.rx_lock);
    if tx.is_some() && rx.is_some() {
        s.generation.fetch_add(1, AcqRel);
        s.state.store(FREE, Release);
        s.record.store(core::ptr::null_mut(), Relaxed);
        let mine = !s.is_inherited();
        drop((tx, rx));
        if state == ATTACHED || state == PLAIN {
            // (A plain one may have been made so by a forked child, which cannot give the slot
            // back.)
            crate::io::after_close(s);
        }
        if mine {
            s.raise(flag::FREE_LATER);
            recycle(s);
        }
    }
    r
}

/// Learns how calls on it wait.
pub(crate) fn look_at_options(s: &Socket, fd: c_int) {
    let fl = sys::fcntl(fd, libc::F_GETFL, 0);
    set_nonblock(s, fl >= 0 && fl as c_int & libc::O_NONBLOCK != 0);
    let mut corked: c_int = 0;
    let _ = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &mut corked);
    set_corked(s, corked != 0);
    for (timeout_ns, name) in
        [(&s.receive_timeout_ns, libc::SO_RCVTIMEO), (&s.send_timeout_ns, libc::SO_SNDTIMEO)]
    {
        // A negative one, which was seen when it was set, reads as none.
        if timeout_ns.load(Relaxed) >= 0 {
            timeout_ns.store(sys::timeout_of(fd, name), Relaxed);
        }
    }
}

/// A connection that was left to children, and that none of them needs any more.
pub(crate) fn free_left(s: &'static Socket) {
    s.generation.fetch_add(1, AcqRel);
    s.state.store(FREE, Release);
    s.raise(flag::FREE_LATER);
    recycle(s);
}

/// The memory of a connection that is over serves again when nobody is in a call on it. Called by
/// whoever leaves one.
pub(crate) fn recycle(s: &'static Socket) {
    let unused = || {
        s.tx_inflight.load(SeqCst) == 0
            && s.rx_inflight.load(SeqCst) == 0
            && s.waiters.load(SeqCst) == 0
    };
    if s.has(flag::FREE_LATER)
        && unused()
        && s.flags.fetch_and(!flag::FREE_LATER, AcqRel) & flag::FREE_LATER != 0
    {
        push_free(s);
    }
}

pub(crate) fn set_corked(s: &Socket, on: bool) {
    if on { s.raise(flag::CORKED) } else { s.lower(flag::CORKED) }
}

pub(crate) fn set_nonblock(s: &Socket, on: bool) {
    if on { s.raise(flag::NONBLOCK) } else { s.lower(flag::NONBLOCK) }
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> Ret {
    let Some((s, g)) = fd_table::socket(fd) else { return PASS };
    loop {
        match s.state.load(SeqCst) {
            ATTACHED => return crate::io::shutdown(s, g, fd, how),
            ATTACHING if await_attach(s) => {}
            // Half a connection is not worth an agreement with another host.
            CANDIDATE if s.has(flag::REMOTE) => make_plain(s, Reason::Disconnected),
            CANDIDATE if !s.is_inherited() => {
                if let Some(r) = crate::io::shutdown_candidate(s, g, fd, how) {
                    return r;
                }
            }
            _ => return PASS,
        }
    }
}

/// What the kernel says of a connection's position agrees with what was counted as sent and as
/// received (`None`: not to be asked, as somebody sends or receives); otherwise bytes moved unseen.
pub(crate) fn counts_agree(
    s: &Socket,
    fd: c_int,
    sent: Option<u64>,
    received: Option<u64>,
) -> bool {
    if sent.is_none() && received.is_none() {
        return true;
    }
    let Some(counts) = counts(fd, s.has(flag::CONNECTOR)) else { return false };
    if counts.shut {
        // Perhaps by a forked child.
        s.raise(flag::SHUT_WR);
    }
    // More may have arrived between two questions; less can't be.
    sent.is_none_or(|n| n == counts.sent)
        && received.is_none_or(|n| n >= counts.read && n <= counts.received)
}

/// How many bytes the kernel has taken to send on a connection, and how many that it received were
/// read. Nobody sends or reads meanwhile.
pub(crate) fn carrier_counts(s: &Socket, fd: c_int) -> Option<(u64, u64)> {
    settled_counts(fd, s.has(flag::CONNECTOR))
}

pub(crate) fn settled_counts(fd: c_int, connector: bool) -> Option<(u64, u64)> {
    // Bounded: where bytes come in all the time, some other moment will do.
    (0..100).find_map(|_| {
        let c = counts(fd, connector)?;
        // Nothing came between the questions: they speak of one moment.
        (c.received == c.received_before).then_some((c.sent, c.read))
    })
}

/// Of the packets of a connection, so far.
pub(crate) struct Packets {
    pub(crate) sent_twice: u32,
    /// Their time stamps are in microseconds.
    pub(crate) microseconds: bool,
}

pub(crate) fn packets(fd: c_int) -> Option<Packets> {
    /// Of `tcpi_options`.
    const TCPI_OPT_USEC_TS: u8 = 64;
    let info = tcp_info(fd)?;
    // tcpi_options and tcpi_total_retrans
    Some(Packets {
        sent_twice: info.words[23],
        microseconds: info.bytes[5] & TCPI_OPT_USEC_TS != 0,
    })
}

/// How many bytes the kernel has taken to send on `fd`, give or take one for all of a connection's
/// life.
pub(crate) fn carrier_sent(fd: c_int) -> Option<u64> {
    counts(fd, false).map(|c| c.sent)
}

/// The kernel's position in both directions of a connection.
struct Counts {
    sent: u64,
    /// Read, at most: what came between the first and the last question counts as unread.
    read: u64,
    received_before: u64,
    received: u64,
    /// It is shut down for sending.
    shut: bool,
}

/// Asks until what is said of sending speaks of one moment. (Not `tcpi_bytes_sent`: a packet that
/// could not be handed to the device counts there without having been sent, and again when it is.)
///
/// A FIN counts as a byte, ours in `tcpi_bytes_acked` or in the queue, the peer's in
/// `tcpi_bytes_received` (tcp_rcv_nxt_update), but not in FIONREAD (tcp_inq). The state tells that
/// there was one.
fn counts(fd: c_int, connector: bool) -> Option<Counts> {
    let ask = || tcp_info(fd);
    let unacknowledged =
        |out: &mut c_int| sys::ioctl(fd, libc::TIOCOUTQ as usize, out as *mut c_int as usize) >= 0;
    let unread =
        |out: &mut c_int| sys::ioctl(fd, libc::FIONREAD as usize, out as *mut c_int as usize) >= 0;
    let mut before = ask()?;
    for _ in 0..100 {
        let (mut queued, mut waiting): (c_int, c_int) = (0, 0);
        if !unacknowledged(&mut queued) || !unread(&mut waiting) {
            return None;
        }
        let after = ask()?;
        // The state is looked at a moment before the counts (tcp_get_info): a FIN that came in
        // between shows in the next answer.
        let state = if after.bytes_received == before.bytes_received { after } else { ask()? };
        let fins = state.fins();
        if after.bytes_acked == before.bytes_acked && after.fins() == fins && before.fins() == fins
        {
            let (shut, ended) = fins;
            // The SYN of the end that connected is acknowledged as a byte is (tcp_ack in SYN-SENT);
            // the other end's is not counted.
            let flags = u64::from(connector) + u64::from(shut);
            let sent = after.bytes_acked.wrapping_add(queued.max(0) as u64).wrapping_sub(flags);
            let received = |info: &TcpInfo| info.bytes_received.saturating_sub(u64::from(ended));
            let read = received(&before).saturating_sub(waiting.max(0) as u64);
            return Some(Counts {
                sent,
                read,
                received_before: received(&before),
                received: received(&after),
                shut,
            });
        }
        before = state;
    }
    None
}

/// The start of the kernel's `struct tcp_info` (linux/tcp.h) up to the last member that is needed
/// here (4.1).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TcpInfo {
    bytes: [u8; 8],
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
}
const _: () = assert!(core::mem::offset_of!(TcpInfo, pacing_rate) == 104);

impl TcpInfo {
    /// Whether our FIN has been sent or waits to be, and whether the peer's has come, by TCP's
    /// states. (Of a closed connection nobody knows.)
    fn fins(&self) -> (bool, bool) {
        let state = self.bytes[0];
        // FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING; TIME_WAIT, CLOSE_WAIT, LAST_ACK,
        // CLOSING
        (matches!(state, 4 | 5 | 6 | 9 | 11), matches!(state, 6 | 8 | 9 | 11))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        for text in ["10.0.0.1:26379", "[fd00::1]:65535", "0.0.0.0:0", "[::1]:1"] {
            let of: SocketAddr = text.parse().unwrap();
            let (raw, len) = sockaddr(of);
            let mut wide = [0u8; 128];
            wide.get_mut(..len).unwrap().copy_from_slice(raw.get(..len).unwrap());
            assert_eq!(address(&wide, len as isize), Some(of));
        }
    }
}
