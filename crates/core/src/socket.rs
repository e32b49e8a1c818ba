//! One connection, as this process and its forked children see it.
//!
//! A [`Socket`] lives in memory that is shared with forked children (they share the kernel's socket too), in type-stable slabs
//! that are never unmapped. Its life:
//!
//! ```text
//!   connect/accept ──▶ CANDIDATE ──offer──▶ ATTACHED ──need_kernel──▶ PLAIN
//!                          └────────── no library there, odd option, ... ──────▲
//! ```
//!
//! * CANDIDATE: all data goes through the kernel; bytes are counted, because a switch needs the exact offset.
//! * ATTACHED: both directions have a slot in a channel; each direction is on the carrier or on the ring ([`crate::io`]).
//! * PLAIN: nothing of ours is left; its table entries become 0.
//!
//! Only application threads change a socket's state. The service thread ([`crate::service`]) only leaves an [`Offer`].

use crate::api::{PASS, Ret};
use crate::channel::Channel;
use crate::fd_table::{self, Entry};
use crate::{lifecycle, own, remote, service, stats, syn, sys};
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

/// `Socket::flags`
pub(crate) mod flag {
    /// O_NONBLOCK.
    pub(crate) const NONBLOCK: u32 = 1 << 0;
    /// shutdown(SHUT_WR) was called: the kernel answers further sends.
    pub(crate) const SHUT_WR: u32 = 1 << 1;
    /// The carrier has said something that the ring cannot (FIN, RST, error, urgent data): ask it before waiting.
    pub(crate) const CARRIER_SPOKE: u32 = 1 << 2;
    /// We made the connection (connect); clear: we accepted it.
    pub(crate) const CONNECTOR: u32 = 1 << 3;
    /// The connector has looked for an accelerated listener after the first received bytes.
    pub(crate) const PROBED: u32 = 1 << 4;
    /// The peer broke the rules: every call fails with ECONNRESET.
    pub(crate) const CORRUPT: u32 = 1 << 5;
    /// Every descriptor is closed, but something is still under way on it (`waiters`): `fd` is a name of the library's own.
    pub(crate) const ORPHAN: u32 = 1 << 6;
    /// Shut down for sending, but the kernel is told when all is sent again.
    pub(crate) const FIN_LATER: u32 = 1 << 7;
    /// The service knows it.
    pub(crate) const NOTED: u32 = 1 << 8;
    /// Over; its memory is free as soon as nobody is in a call on it.
    pub(crate) const FREE_LATER: u32 = 1 << 9;
    /// The peer is on another host, or the connection is for RDMA all the same. Goes when that cannot be ([`make_local`]).
    pub(crate) const REMOTE: u32 = 1 << 10;
    /// Closed, but bytes have to go over the carrier first: counted in `waiters` until somebody sees to that.
    pub(crate) const CLOSE_LATER: u32 = 1 << 11;
    /// shutdown(SHUT_RD) was called between hosts: an empty ring is the end.
    pub(crate) const SHUT_RD: u32 = 1 << 12;
    /// The library has broken the connection off: bytes are missing, whatever the kernel says.
    pub(crate) const BROKEN_OFF: u32 = 1 << 13;
    /// The application was told that the stream broke off. (As of any error, once: tcp(7).)
    pub(crate) const TOLD: u32 = 1 << 14;
    /// Within the host, and the configuration prefers RDMA there: shared memory if that cannot be.
    pub(crate) const RDMA_FIRST: u32 = 1 << 15;
    /// A forked child uses it: between hosts its maker takes it back to the carrier, for good.
    pub(crate) const CALLED_BACK: u32 = 1 << 16;
}

/// The sending half. Owned by whoever holds `Socket::tx_lock`.
#[derive(Debug)]
pub(crate) struct TxEnd {
    pub(crate) switch: Tx,
    pub(crate) ring: Producer,
    /// Never promote again.
    pub(crate) never: bool,
    /// While bytes are sent again: what the carrier had taken before the send that is under way.
    pub(crate) resend_mark: Option<u64>,
    /// While bytes are sent again: the application's SO_LINGER.
    pub(crate) linger: Option<libc::linger>,
    /// A random switch is due after this many further calls (tests only; 0 = off).
    pub(crate) test_switch: u32,
}

/// The receiving half. Owned by whoever holds `Socket::rx_lock`.
#[derive(Debug)]
pub(crate) struct RxEnd {
    pub(crate) switch: Rx,
    pub(crate) ring: Consumer,
    /// When the carrier was last asked for news by a call that found the ring empty.
    pub(crate) carrier_asked: u64,
    /// `-errno` that the carrier reported while bytes of the ring came first.
    pub(crate) pending_error: i32,
    /// Shut down for receiving (between hosts): the stream's offset up to which there were bytes then.
    pub(crate) read_until: u64,
}

#[repr(C, align(64))]
pub(crate) struct Socket {
    // Read at every call.
    pub(crate) state: AtomicU32,
    /// Counts the lives of this piece of memory; 16 bits of it stand in every table entry.
    pub(crate) generation: AtomicU32,
    /// Serial number of the process ([`lifecycle::process`]) that made it: another one (a forked child) takes the slow way.
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
    pub(crate) tx: UnsafeCell<TxEnd>,
    pub(crate) rx: UnsafeCell<RxEnd>,
    // While a candidate.
    pub(crate) tx_inflight: AtomicU32,
    pub(crate) rx_inflight: AtomicU32,
    /// The thread that attaches it; 0: none, or it has just begun.
    pub(crate) attacher: AtomicU32,
    /// Threads that wait for it in poll or select; above, the generation that they wait for. (A jump out of a handler leaves one behind.)
    pub(crate) pollers: AtomicU64,
    pub(crate) tx_bytes: AtomicU64,
    pub(crate) rx_bytes: AtomicU64,
    pub(crate) calls: AtomicU32,
    /// When the search for an agreement began (monotonic); 0: not yet.
    pub(crate) sought_at: AtomicU64,
    /// Set, last, by the service thread: `offer` is complete. (Between hosts: a value of [`crate::remote`].)
    pub(crate) offered: AtomicU32,
    /// Between hosts: why there will be no offer.
    pub(crate) verdict: AtomicU32,
    pub(crate) offer: UnsafeCell<Offer>,
    pub(crate) tuple: UnsafeCell<Tuple>,
    // Rare.
    /// Between hosts: what is known of its SYN.
    pub(crate) syn: syn::Syn,
    /// Descriptors, in this process and its children, that refer to it (a killed child is never subtracted).
    pub(crate) refs: AtomicU32,
    /// How often the process had forked when the connection was made.
    pub(crate) forks: AtomicU32,
    /// What is under way on it in this process: calls that block, a pull-back. It is not taken apart before that ends.
    pub(crate) waiters: AtomicU32,
    /// Epoll registrations (pairs of set and descriptor) that name it; more than one cannot be attached.
    pub(crate) registrations: AtomicU32,
    /// The epoll set that it is in, and its item there ([`crate::epoll`]).
    pub(crate) epoll: AtomicPtr<crate::epoll::Epoll>,
    pub(crate) item: AtomicU64,
    pub(crate) receive_timeout_ns: AtomicI64,
    pub(crate) send_timeout_ns: AtomicI64,
    /// Link of the free list.
    pub(crate) next_free: AtomicPtr<Socket>,
}

/// What the service thread hands over when both ends have agreed: written while `offered` is 0, read after it is 1.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) channel: *const Channel,
    pub(crate) slot: u32,
    /// The bytes of the ring that we produce into, and of the one that we consume from, in the mapped arena.
    pub(crate) tx_ring: *mut u8,
    pub(crate) tx_bytes: u32,
    pub(crate) rx_ring: *mut u8,
    pub(crate) rx_bytes: u32,
}

// SAFETY: the UnsafeCells are governed by the locks and flags named beside them; everything else is atomic.
unsafe impl Sync for Socket {}
// SAFETY: as above.
unsafe impl Send for Socket {}

// ---- memory --------------------------------------------------------------------------------------------------

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
    let slab = sys::map_shared(-1, SLAB_BYTES);
    if slab.is_null() {
        return None;
    }
    let count = SLAB_BYTES / size_of::<Socket>();
    for i in 0..count {
        // SAFETY: within the slab just mapped; all zero is a valid free Socket (atomics, locks, and cells that are
        // written before they are read).
        push_free(unsafe { &*slab.cast::<Socket>().add(i) });
    }
    pop_free()
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
        self.owner.load(Relaxed) != lifecycle::process()
    }
    /// One more thread waits for it in poll or select, or one less; nothing, if it is another connection by now.
    pub(crate) fn count_poller(&self, generation: u32, change: fn(u32) -> u32) -> bool {
        let counted = |old: u64| ((old >> 32) as u32 == generation).then(|| u64::from(generation) << 32 | u64::from(change(old as u32)));
        self.pollers.fetch_update(SeqCst, SeqCst, counted).is_ok()
    }
    pub(crate) fn record(&self) -> Option<&'static ConnRecord> {
        // SAFETY: null or a record of a statistics segment, which is never unmapped.
        unsafe { self.record.load(Acquire).as_ref() }
    }
    /// `None` also in a forked child if it leads to another host: the memory may be of after the fork, and its maker does everything.
    pub(crate) fn channel(&self) -> Option<&'static Channel> {
        if self.is_inherited() && self.has(flag::REMOTE) {
            return None;
        }
        // SAFETY: null, or a channel that is not freed while `users` counts this socket; the memory of one within the host is older than
        // any fork that this process inherited the socket by (`attach`).
        unsafe { self.channel.load(Acquire).as_ref() }
    }
    pub(crate) fn tuple(&self) -> Tuple {
        // SAFETY: written before the socket is first shared, never after.
        unsafe { *self.tuple.get() }
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

// ---- life ----------------------------------------------------------------------------------------------------

pub(crate) const NONE: u32 = Reason::None as u32;

pub(crate) fn on_socket(fd: c_int, domain: c_int, ty: c_int, protocol: c_int) {
    fd_table::forget_stale(fd);
    let stream = ty & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if stream && (domain == libc::AF_INET || domain == libc::AF_INET6) && lifecycle::started() {
        fd_table::set(fd, Entry::Fresh(NONE));
    }
}

pub(crate) fn on_listen(fd: c_int) {
    if let Entry::Fresh(reason) = fd_table::get(fd) {
        fd_table::set(fd, Entry::Listener(reason));
    }
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
fn tuple_of(fd: c_int) -> Option<Tuple> {
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

/// The path that a connection could take: the first one of the configuration's that can serve its addresses.
fn path_of(t: &Tuple, paths: &Paths) -> Result<Path, Reason> {
    let same_host = same_host(t);
    let mut why = if paths.contains(Path::Rdma) || same_host { Reason::PathsExcludeIt } else { Reason::PeerRemote };
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

/// `moved`: what was sent and received on it before. `made`: it is a connection already.
fn begin_as(fd: c_int, reason: u32, connector: bool, tuple: Tuple, moved: (u64, u64), made: bool) {
    let began = fd_table::began(fd);
    let Some(s) = allocate() else {
        fd_table::set(fd, Entry::None);
        return;
    };
    let generation = s.generation.load(Relaxed);
    s.owner.store(lifecycle::process(), Relaxed);
    s.flags.store(if connector { flag::CONNECTOR } else { 0 }, Relaxed);
    s.slot.store(u32::MAX, Relaxed);
    s.fd.store(fd, Relaxed);
    s.channel.store(core::ptr::null_mut(), Relaxed);
    s.tx_inflight.store(0, Relaxed);
    s.rx_inflight.store(0, Relaxed);
    s.tx_bytes.store(moved.0, Relaxed);
    s.rx_bytes.store(moved.1, Relaxed);
    s.calls.store(0, Relaxed);
    s.sought_at.store(0, Relaxed);
    s.offered.store(0, Relaxed);
    s.refs.store(1, Relaxed);
    s.pollers.store(u64::from(generation) << 32, Relaxed);
    s.registrations.store(0, Relaxed);
    s.forks.store(lifecycle::forks(), Relaxed);
    s.syn.reset();
    s.item.store(0, Relaxed);
    s.epoll.store(core::ptr::null_mut(), Relaxed);
    // SAFETY: nobody else knows this socket yet.
    unsafe { *s.tuple.get() = tuple };
    let config = lifecycle::config();
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
                if config.paths.first() == Some(Path::Rdma) && config.paths.contains(Path::Shm) && same_host(&tuple) {
                    s.raise(flag::RDMA_FIRST);
                }
                Reason::Negotiating
            }
        }
    };
    let record = stats::open(fd, why);
    s.record.store(record, Relaxed);
    if let Some(r) = s.record() {
        r.set_addresses(tuple.local(), tuple.peer());
    }
    stats::count(if connector { netacc_control::stats::Counter::Connected } else { netacc_control::stats::Counter::Accepted });
    let candidate = why == Reason::Negotiating;
    s.state.store(if candidate { CANDIDATE } else { PLAIN }, Release);
    fd_table::set(fd, Entry::Socket(s, generation as u16));
    if !candidate {
        return;
    }
    if s.has(flag::REMOTE) {
        if !connector {
            remote::accepting(tuple.local());
            if s.has(flag::RDMA_FIRST) {
                // The connector may find that there is no RDMA, and look for shared memory.
                service::accepting(tuple.local_port());
            }
        }
    } else if connector {
        // The listener may not have accepted anything yet, and be unknown for that: asked again after its first answer;
        // with NACC_CONN_TCP_FIRST=1 only then.
        if !config.tcp_first && service::connected(s) {
            s.raise(flag::PROBED);
        }
    } else {
        service::accepting(tuple.local_port());
    }
}

pub(crate) fn on_accept(listener: c_int, fd: c_int, _flags: c_int) {
    fd_table::forget_stale(fd);
    if !lifecycle::started() {
        return;
    }
    match fd_table::get(listener) {
        Entry::Listener(reason) | Entry::Fresh(reason) => begin(fd, reason, false),
        // A listener from before this program image; unix sockets come this way too.
        _ => {
            let mut raw = [0u8; 128];
            let len = sys::socket_name(fd, false, &mut raw);
            if address(&raw, len).is_some() {
                begin(fd, NONE, false);
                adopt(listener, fd);
            }
        }
    }
}

/// A listener that this program image has inherited is known from its first connection of another host's on.
fn adopt(listener: c_int, fd: c_int) {
    if fd_table::raw(listener) == 0 && fd_table::socket(fd).is_some_and(|(s, _)| s.has(flag::REMOTE)) {
        syn::keep(listener);
        fd_table::set(listener, Entry::Listener(NONE));
    }
}

pub(crate) unsafe fn before_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    syn::may_begin(fd);
    if let Entry::Socket(s, g) = fd_table::get(fd) {
        // connect(AF_UNSPEC) dissolves the connection; the descriptor starts anew.
        // SAFETY: only read when the caller says that two bytes are there.
        if len >= 2 && !addr.is_null() && unsafe { (*addr).sa_family } as c_int == libc::AF_UNSPEC {
            let _ = crate::io::to_kernel(s, g, fd, Reason::Disconnected, false);
        } else if s.is(CANDIDATE) && s.has(flag::CONNECTOR) && state_of(fd) == Some(TCP_CLOSE) {
            // It was refused, and is tried again, perhaps elsewhere.
            make_plain(s, Reason::Disconnected);
        }
    }
    PASS
}

pub(crate) unsafe fn on_connect(fd: c_int, addr: *const sockaddr, len: socklen_t, result: c_int) {
    let Entry::Fresh(reason) = fd_table::get(fd) else { return };
    if result == 0 || result == -libc::EISCONN {
        if result != 0 {
            fd_table::set_began(fd, 0);
        }
        begin(fd, reason, true);
    } else if result == -libc::EINPROGRESS || result == -libc::EINTR {
        // Under way: the kernel does not say yet where to, but what is done to the descriptor meanwhile has to be followed.
        let mut raw = [0u8; 128];
        let n = (len as usize).min(raw.len());
        if addr.is_null() || n < 2 {
            return;
        }
        // SAFETY: the kernel has just read as much.
        unsafe { core::ptr::copy_nonoverlapping(addr.cast::<u8>(), raw.as_mut_ptr(), n) };
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

/// The peer's FIN, or a reset, has come: TCP's states CLOSE_WAIT, LAST_ACK, CLOSING, TIME_WAIT and CLOSE.
pub(crate) fn peer_ended(fd: c_int) -> bool {
    state_of(fd).is_none_or(|state| matches!(state, 6..=9 | 11))
}

/// The connection is over, at both ends or by a reset.
pub(crate) fn is_closed(fd: c_int) -> bool {
    state_of(fd) == Some(TCP_CLOSE)
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

/// A fresh socket is used for data: a connect that was in progress has succeeded, unless it is no connection at all. (Opened with its
/// first bytes, by TCP Fast Open, it was none before them.)
#[cold]
pub(crate) fn look_again(fd: c_int) {
    if let Entry::Fresh(reason) = fd_table::get(fd)
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

/// Waits until nobody attaches it any more, which takes some system calls. False: it is this very thread that does, and a signal handler has
/// interrupted it.
pub(crate) fn await_attach(s: &Socket) -> bool {
    let mut n = 0u32;
    loop {
        n = n.wrapping_add(1);
        if s.state.load(SeqCst) != ATTACHING {
            return true;
        }
        if s.attacher.load(SeqCst) == lifecycle::tid() {
            return false;
        }
        if n < 1000 {
            core::hint::spin_loop();
            continue;
        }
        sys::sched_yield();
        // A forked child has no other way to hear that its parent was killed there.
        let over = || if s.has(flag::REMOTE) { !remote::maker_lives(s) } else { !sys::alive(s.owner.load(Relaxed)) };
        if n.is_multiple_of(10_000) && s.is_inherited() && over() {
            let _ = s.state.compare_exchange(ATTACHING, PLAIN, SeqCst, Relaxed);
        }
    }
}

/// RDMA cannot serve a connection within the host: from now on it is a candidate for shared memory. False: it is not such a one.
pub(crate) fn make_local(s: &'static Socket, g: u16) -> bool {
    if !s.has(flag::RDMA_FIRST) {
        return false;
    }
    // What "netacc-rdma" leaves for such sockets it leaves under this lock.
    let Some(_tx) = crate::lock::lock_end(&s.tx_lock) else { return true };
    if s.generation16() == g && s.is(CANDIDATE) {
        let offered = s.offered.load(SeqCst);
        if s.has(flag::REMOTE) && offered != remote::OFFERED {
            s.set_reason(Reason::Negotiating);
            s.calls.store(0, Relaxed);
            s.lower(flag::REMOTE | flag::NOTED);
        }
        // Last: whoever finds an offer from here on finds one of shared memory. (That it is never to be may be said once more meanwhile.)
        if offered == remote::NEVER {
            let _ = s.offered.compare_exchange(offered, 0, SeqCst, Relaxed);
        }
    }
    true
}

/// The last descriptor of this process's (or, `kernel_too` false, one whose closing is somebody else's work) is closed.
pub(crate) fn close(s: &'static Socket, g: u16, fd: c_int, kernel_too: bool) -> Ret {
    let kernel_close = || if kernel_too { sys::close(fd) } else { 0 };
    if s.generation16() != g {
        return kernel_close();
    }
    crate::epoll::forget(s, fd);
    if s.refs.fetch_sub(1, AcqRel) > 1 {
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
    if s.is_inherited() && s.fd.load(Acquire) >= 0 && sys::alive(s.owner.load(Relaxed)) {
        return kernel_close();
    }
    let_go(s, g, fd, kernel_close)
}

/// The last name of a connection that this process has goes. (A forked child may have it, too; `refs` says so, or did.)
fn let_go(s: &'static Socket, g: u16, fd: c_int, kernel_close: impl FnOnce() -> Ret) -> Ret {
    if !s.is(ATTACHED) || fd < 0 || s.is_inherited() {
        return finish(s, fd, kernel_close);
    }
    let shared = s.refs.load(Acquire) > 0;
    // (Between hosts it leaves behind the close, which waits for that within bounds.)
    let between_hosts = s.has(flag::REMOTE);
    let in_ring = !(shared && !between_hosts && crate::io::to_kernel(s, g, fd, Reason::None, false));
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
    let _tx = crate::lock::lock_end(&s.tx_lock);
    if s.fd.load(Relaxed) == fd || other < 0 {
        s.fd.store(other, Release);
        if let Some(r) = s.record().filter(|_| other >= 0) {
            r.fd.store(other as u32, Relaxed);
        }
    }
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
    let Some(rec) = s.record() else { return };
    s.record.store(core::ptr::null_mut(), Release);
    let path = rec.tx_path.load(Relaxed).max(rec.rx_path.load(Relaxed));
    stats::add_bytes(rec);
    stats::closed(netacc_control::stats::Path::from_code(path).unwrap_or(netacc_control::stats::Path::Tcp));
    rec.close();
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
    if state == CANDIDATE {
        // In this order: who notes it raises NOTED first, and looks at the state afterwards.
        let _ = s.state.compare_exchange(CANDIDATE, PLAIN, SeqCst, Relaxed);
        service::closing(s);
    }
    if state == ATTACHED {
        crate::io::before_close(s, fd);
    }
    let r = kernel_close();
    if !s.is_inherited() {
        close_books(s);
    }
    // Threads that still know it find another generation when they look again; only then is its slot given back.
    let tx = crate::lock::lock_end(&s.tx_lock);
    let rx = crate::lock::lock_end(&s.rx_lock);
    if tx.is_some() && rx.is_some() {
        s.generation.fetch_add(1, AcqRel);
        s.state.store(FREE, Release);
        s.record.store(core::ptr::null_mut(), Relaxed);
        let mine = !s.is_inherited();
        drop((tx, rx));
        if state == ATTACHED || state == PLAIN {
            // (A plain one may have been made so by a forked child, which cannot give the slot back.)
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
    let nonblocking = fl >= 0 && fl as c_int & libc::O_NONBLOCK != 0;
    set_nonblock(s, nonblocking);
    if !nonblocking {
        s.receive_timeout_ns.store(crate::options::timeout_of(fd, libc::SO_RCVTIMEO), Relaxed);
        s.send_timeout_ns.store(crate::options::timeout_of(fd, libc::SO_SNDTIMEO), Relaxed);
    }
}

/// The memory of a connection that is over serves again when nobody is in a call on it. Called by whoever leaves one.
pub(crate) fn recycle(s: &'static Socket) {
    let unused = || s.tx_inflight.load(SeqCst) == 0 && s.rx_inflight.load(SeqCst) == 0 && s.waiters.load(SeqCst) == 0;
    if s.has(flag::FREE_LATER) && unused() && s.flags.fetch_and(!flag::FREE_LATER, AcqRel) & flag::FREE_LATER != 0 {
        push_free(s);
    }
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
            _ => return PASS,
        }
    }
}

/// What the kernel says of a candidate's position agrees with what was counted; otherwise bytes moved unseen.
pub(crate) fn counts_agree(s: &Socket, fd: c_int) -> bool {
    let Some(counts) = counts(fd, s.has(flag::CONNECTOR)) else { return false };
    // More may have arrived between two questions; less can't be.
    s.tx_bytes.load(Relaxed) == counts.sent && s.rx_bytes.load(Relaxed) >= counts.read && s.rx_bytes.load(Relaxed) <= counts.received
}

/// How many bytes the kernel has taken to send on a connection, and how many that it received were read. Nobody sends or reads meanwhile.
pub(crate) fn carrier_counts(s: &Socket, fd: c_int) -> Option<(u64, u64)> {
    settled_counts(fd, s.has(flag::CONNECTOR))
}

fn settled_counts(fd: c_int, connector: bool) -> Option<(u64, u64)> {
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
    Some(Packets { sent_twice: info.words[23], microseconds: info.bytes[5] & TCPI_OPT_USEC_TS != 0 })
}

/// How many bytes the kernel has taken to send on `fd`, give or take one for all of a connection's life.
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
}

/// Asks until what is said of sending speaks of one moment. (Not `tcpi_bytes_sent`: a packet that could not be handed to the device
/// counts there without having been sent, and again when it is.)
fn counts(fd: c_int, connector: bool) -> Option<Counts> {
    let ask = || tcp_info(fd);
    let unacknowledged = |out: &mut c_int| sys::ioctl(fd, libc::TIOCOUTQ as usize, out as *mut c_int as usize) >= 0;
    let unread = |out: &mut c_int| sys::ioctl(fd, libc::FIONREAD as usize, out as *mut c_int as usize) >= 0;
    let mut before = ask()?;
    for _ in 0..100 {
        let (mut queued, mut waiting): (c_int, c_int) = (0, 0);
        if !unacknowledged(&mut queued) || !unread(&mut waiting) {
            return None;
        }
        let after = ask()?;
        if after.bytes_acked == before.bytes_acked {
            // The SYN of the end that connected is acknowledged as a byte is (tcp_ack in SYN-SENT); the other end's is not counted.
            let sent = after.bytes_acked.wrapping_sub(u64::from(connector)).wrapping_add(queued.max(0) as u64);
            let read = before.bytes_received.saturating_sub(waiting.max(0) as u64);
            return Some(Counts { sent, read, received_before: before.bytes_received, received: after.bytes_received });
        }
        before = after;
    }
    None
}

/// The start of the kernel's `struct tcp_info` (linux/tcp.h) up to the last member that is needed here (4.1).
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
