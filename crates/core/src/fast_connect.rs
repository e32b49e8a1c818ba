//! Fast connect: what this process keeps of closed connections, and which of its listeners give out
//! lives of theirs.
//!
//! Here beside it: its listeners (`listener.rs`), its sockets before they connect (`fresh.rs`), and
//! those that serve more than one connect (`prepared.rs`).
//!
//! What this module is not: the steps of a carrier, which `io::park` makes by
//! `netacc_proto::lives`; whoever takes a connection out of the list here makes its next one.
//! `docs/design/fast-connect.md` has the whole.

mod fresh;
mod listener;
mod prepared;

use crate::channel::Channel;
use crate::lock::Mutex;
use crate::socket::Socket;
use crate::{config, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
pub(crate) use fresh::*;
pub(crate) use listener::*;
pub(crate) use prepared::*;

/// `-F 1`.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    config::has_fast_connect()
}

/// The process has waited for connections by calls that the library sees.
static WAITS: AtomicBool = AtomicBool::new(false);

#[cold]
pub(crate) fn note_waits() {
    WAITS.store(true, Relaxed);
}

pub(crate) fn waits_seen() -> bool {
    WAITS.load(Relaxed)
}

// ---- what is kept -------------------------------------------------------------------------------

/// Most that are kept, whatever the configuration says.
const KEPT: usize = 256;
/// How long a connection that this end has closed waits for the other end to close it, too: the
/// kernel's tcp_fin_timeout.
pub(crate) const HALF_NS: u64 = 60_000_000_000;

/// Where a connector's peer is, as the kernel says it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerAddress([u8; 28]);

impl PeerAddress {
    /// `None`: no address of IPv4 or IPv6, whole.
    pub(crate) fn of(raw: &[u8]) -> Option<PeerAddress> {
        let family = u16::from_ne_bytes([*raw.first()?, *raw.get(1)?]);
        // (Behind an address of IPv4 there are 8 bytes of no meaning.)
        let len = match i32::from(family) {
            libc::AF_INET => 8,
            libc::AF_INET6 => 28,
            _ => return None,
        };
        let mut address = [0; 28];
        address.get_mut(..len)?.copy_from_slice(raw.get(..len)?);
        Some(PeerAddress(address))
    }
}

impl PeerAddress {
    /// As the kernel writes it.
    pub(crate) fn name(&self) -> &[u8] {
        let v4 = self.0.starts_with(&(libc::AF_INET as u16).to_ne_bytes());
        let len = if v4 { size_of::<libc::sockaddr_in>() } else { self.0.len() };
        self.0.get(..len).unwrap_or(&self.0)
    }

    /// As words; all of them 0: nowhere.
    pub(crate) fn store(address: Option<PeerAddress>, to: &[AtomicU64; 4]) {
        let bytes = address.map_or([0; 28], |address| address.0);
        for (word, part) in to.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(part).for_each(|(to, byte)| *to = *byte);
            word.store(u64::from_ne_bytes(whole), Relaxed);
        }
    }

    pub(crate) fn load(from: &[AtomicU64; 4]) -> Option<PeerAddress> {
        let mut bytes = [0; 28];
        for (part, word) in bytes.chunks_mut(8).zip(from) {
            part.iter_mut().zip(word.load(Relaxed).to_ne_bytes()).for_each(|(to, b)| *to = b);
        }
        (bytes != [0; 28]).then_some(PeerAddress(bytes))
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Parked {
    pub(crate) socket: &'static Socket,
    /// Connector: to where. `None`: an acceptor's.
    pub(crate) to: Option<PeerAddress>,
    since: u64,
    /// Its word says that it is closed: from then on it may be taken out. Until then it is of the
    /// thread that closes it.
    ready: bool,
}

struct List {
    kept: [Option<Parked>; KEPT],
    len: usize,
}

static LIST: Mutex<List> = Mutex::new(List { kept: [None; KEPT], len: 0 });

impl List {
    fn remove(&mut self, at: usize) -> Option<Parked> {
        let kept = self.kept.get_mut(at)?.take()?;
        self.len = self.len.checked_sub(1)?;
        // The last one closes the gap.
        let last = self.len;
        if at != last {
            let moved = self.kept.get_mut(last)?.take();
            *self.kept.get_mut(at)? = moved;
        }
        Some(kept)
    }

    fn each(&self) -> impl DoubleEndedIterator<Item = (usize, &Parked)> {
        self.kept.iter().take(self.len).enumerate().filter_map(|(i, k)| Some((i, k.as_ref()?)))
    }

    fn ready(&self) -> impl DoubleEndedIterator<Item = (usize, &Parked)> {
        self.each().filter(|(_, k)| k.ready)
    }

    fn find(&self, socket: &Socket, ready: bool) -> Option<usize> {
        let is = |k: &Parked| core::ptr::eq(k.socket, socket) && k.ready == ready;
        self.each().find(|(_, k)| is(k)).map(|(i, _)| i)
    }
}

/// Keeps a connection. False: there is no room.
pub(crate) fn keep(socket: &'static Socket, to: Option<PeerAddress>) -> bool {
    put(socket, to, true)
}

/// As [`keep`], of one whose word does not say yet that it is closed: nobody takes it out before
/// [`make_ready`].
pub(crate) fn reserve(socket: &'static Socket, to: Option<PeerAddress>) -> bool {
    put(socket, to, false)
}

/// What was reserved may be taken out from here on, and so is not the caller's any more.
pub(crate) fn make_ready(socket: &Socket) {
    let mut list = LIST.lock();
    let at = list.find(socket, false);
    if let Some(Some(kept)) = at.and_then(|at| list.kept.get_mut(at)) {
        kept.ready = true;
    }
}

/// What was reserved is not kept after all.
pub(crate) fn unreserve(socket: &Socket) {
    let mut list = LIST.lock();
    let at = list.find(socket, false);
    let _ = at.and_then(|at| list.remove(at));
}

fn put(socket: &'static Socket, to: Option<PeerAddress>, ready: bool) -> bool {
    let most = (config::get().empty_channels_max as usize).min(KEPT);
    let mut list = LIST.lock();
    let at = list.len;
    if at >= most {
        return false;
    }
    let Some(place) = list.kept.get_mut(at) else { return false };
    *place = Some(Parked { socket, to, since: sys::now_ns(), ready });
    list.len = at + 1;
    true
}

/// Takes it out of the list: it is the caller's from here on. False: it is somebody else's already.
pub(crate) fn remove(socket: &Socket) -> bool {
    let mut list = LIST.lock();
    let at = list.find(socket, true);
    at.and_then(|at| list.remove(at)).is_some()
}

/// The one that was kept last of those that `wanted` wants: the caller's from here on.
pub(crate) fn pick(wanted: impl Fn(&Parked) -> bool) -> Option<Parked> {
    pick_best(|k| if wanted(k) { BEST } else { 0 })
}

/// What [`pick_best`] looks no further for.
pub(crate) const BEST: u8 = 2;

/// The one that was kept last of those that `rank` finds good (1), if none of the next few is
/// better.
pub(crate) fn pick_best(rank: impl Fn(&Parked) -> u8) -> Option<Parked> {
    const FEW: usize = 8;
    let mut list = LIST.lock();
    let mut good = list.ready().rev().map(|(i, k)| (i, rank(k))).filter(|(_, rank)| *rank > 0);
    let (mut at, mut best) = good.next()?;
    for (i, rank) in good.take(if best < BEST { FEW } else { 0 }) {
        if rank > best {
            (at, best) = (i, rank);
        }
        if best == BEST {
            break;
        }
    }
    list.remove(at)
}

/// Whether connections to that address are kept.
pub(crate) fn has_kept_to(to: PeerAddress) -> bool {
    any(|k| k.to == Some(to))
}

/// How many of those that are kept, or about to be, are like this.
pub(crate) fn count(wanted: impl Fn(&Parked) -> bool) -> usize {
    LIST.lock().each().filter(|(_, k)| wanted(k)).count()
}

/// All of those that are kept, and that `wanted` wants, one after the other: the caller's. No more
/// than there is room for, whatever their peers change meanwhile.
pub(crate) fn pick_each(wanted: impl Fn(&Parked) -> bool, mut take: impl FnMut(Parked)) {
    for _ in 0..KEPT {
        let Some(kept) = pick(&wanted) else { return };
        take(kept);
    }
}

/// Each of those that are kept, which the caller may not take meanwhile.
pub(crate) fn for_each(f: impl FnMut(&Parked)) {
    LIST.lock().ready().map(|(_, k)| k).for_each(f);
}

/// Whether one of those that are kept is like this.
pub(crate) fn any(wanted: impl Fn(&Parked) -> bool) -> bool {
    LIST.lock().ready().any(|(_, k)| wanted(k))
}

/// When the oldest one that is kept has been so for `age_ns`; 0: none is.
pub(crate) fn oldest(age_ns: u64) -> u64 {
    let list = LIST.lock();
    list.each().map(|(_, k)| k.since.saturating_add(age_ns)).min().unwrap_or(0)
}

impl Parked {
    pub(crate) fn is_older_than(&self, age_ns: u64) -> bool {
        sys::now_ns().saturating_sub(self.since) >= age_ns
    }
}

// ---- peers --------------------------------------------------------------------------------------

/// How many connections have come onto their rings with a peer that knows of lives.
static GROWN: AtomicU32 = AtomicU32::new(0);

pub(crate) fn grown() -> u32 {
    GROWN.load(Relaxed)
}

/// Channels to peers that know of lives: a hint, for as many.
static CHANNELS: [AtomicPtr<Channel>; 16] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 16];

pub(crate) fn know(channel: &'static Channel) {
    GROWN.fetch_add(1, Relaxed);
    let at = core::ptr::from_ref(channel).cast_mut();
    if CHANNELS.iter().any(|c| c.load(Acquire) == at) {
        return;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Relaxed) as usize % CHANNELS.len();
    if let Some(place) = CHANNELS.get(n) {
        place.store(at, Release);
    }
}

fn known(side: usize) -> impl Iterator<Item = &'static Channel> {
    // SAFETY: null, or a channel, which is never freed.
    let all = CHANNELS.iter().filter_map(|c| unsafe { c.load(Acquire).as_ref() });
    all.filter(move |c| c.side == side && c.dead.load(Acquire) == 0)
}

/// A connect is about to be made, whose connection is to be agreed on at once.
pub(crate) fn say_seeks(now: u64) {
    known(1).for_each(|c| c.seeks_at(false).store(now, Relaxed));
}

/// Whether a peer has said so just now.
pub(crate) fn seeks(now: u64, within_ns: u64) -> bool {
    known(0).any(|c| now.saturating_sub(c.seeks_at(true).load(Relaxed)) < within_ns)
}

// ---- processes ----------------------------------------------------------------------------------

/// Nothing that is kept is the child's, nor are the listeners' places. (Its copies of the
/// descriptors are closed with the orphans'.)
pub(crate) fn after_fork_in_child() {
    LIST.lock().len = 0;
    CHANNELS.iter().for_each(|c| c.store(core::ptr::null_mut(), Relaxed));
    listener::after_fork_in_child();
    prepared::after_fork_in_child();
}
