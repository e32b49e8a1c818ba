//! Fast connect: a connection whose last name goes in good order leaves its carrier to the next one
//! (`docs/design/fast-connect.md`). The steps are those of `netacc_proto::lives`; what is kept
//! stands in [`crate::fast_connect`], and whoever takes a connection out of there makes its next
//! step. (How what is kept comes to an end: [`super::kept`].)

use super::ends::{
    RxHeld, TxHeld, carrier_unread, hold_rx, hold_tx, load_ack, load_announce, publish_held,
    show_path,
};
use super::kept::{
    end_accepting, give_up, hear_if_taken, is_of, is_taken, next_sweep, reset, retire, retire_kept,
    sweep, sweep_now_and_then,
};
use super::leave::PULL_BACK_NS;
use super::leave::pause::pause;
use super::leave::serve::{leave_dead_channel, serve_pull_back};
use super::promote::promote;
use super::rings_shown::show_rings;
use crate::channel::{AnnouncedAt, Channel, lives as words, producer_quiet, quiet};
use crate::fast_connect::{self, Listener, PeerAddress};
use crate::fd_table::{self, Entry};
use crate::life_word::{self, has_closed, step};
use crate::lock;
use crate::log::debug_log;
use crate::outcome::Ret;
use crate::path::{PathId, PathList};
use crate::sets::sets;
use crate::socket::harmless::{self, Due};
use crate::socket::{self, Event, Socket, State, close_books, flag};
use crate::{agent, candidates, config, numbers, process, stats, sys};
use core::ffi::c_int;
use core::sync::atomic::{Ordering::*, fence};
use netacc_control::stats::{Counter, LATER_LIFE, Reason};
use netacc_proto::lives::{Event as Happens, State as Life};
use netacc_proto::switchover::{Path as Way, RxState, TxState};

/// What a connection may be beside its state, and still leave its carrier in good order.
const USUAL: u32 = flag::NONBLOCK
    | flag::CONNECTOR
    | flag::FOUND
    | flag::WAITS_SEEN
    | flag::NOTED
    | flag::CARRIER_SPOKE;
/// What of that the next one has, too.
const STAYS: u32 = flag::CONNECTOR | flag::FOUND | flag::WAITS_SEEN | flag::NOTED;

/// A connection has come onto its rings: the peer learns that this end knows of lives.
#[cold]
#[inline(never)]
pub(super) fn begin(s: &Socket, channel: &'static Channel, slot: usize) {
    let knows = fast_connect::is_on() && channel.far.is_shared() && is_own_user(channel);
    s.life.store(u32::from(knows), Relaxed);
    if knows {
        channel.words(slot, channel.side).lives[words::KNOWN].store(1, SeqCst);
        fast_connect::know(channel);
    }
}

/// Whether the peer is of this user. (Of another one each connection is proven anew.)
fn is_own_user(channel: &Channel) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let control = channel.control.load(Acquire);
    sys::getsockopt(control, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut peer) >= 0
        && peer.uid == sys::geteuid()
}

fn peer_knows(channel: &Channel, slot: usize) -> bool {
    channel.words(slot, channel.side ^ 1).lives[words::KNOWN].load(SeqCst) == 1
}

// ---- closing ------------------------------------------------------------------------------------

/// The last name of an attached connection goes, `fd`: true where its carrier is kept, by another
/// name, and only this number is to be closed.
#[cold]
#[inline(never)]
pub(super) fn parks(s: &'static Socket, g: u16, fd: c_int) -> bool {
    if !may_park(s) {
        debug_log!(
            "fd {fd}: not kept: flags {:#x}, marks {:#x}",
            s.flags.load(Relaxed),
            s.marks.load(Relaxed)
        );
        return false;
    }
    let Some(channel) = s.channel().filter(|c| c.dead.load(SeqCst) == 0) else { return false };
    let slot = s.slot.load(Relaxed) as usize;
    let may =
        |l: &&Listener| l.may_park() && candidates::paths_for(&s.tuple(), false).is_ok_and(has_shm);
    let listener = fast_connect::listener_of(s).filter(may);
    if !peer_knows(channel, slot) || listener.is_none() != s.has(flag::CONNECTOR) {
        debug_log!("fd {fd}: not kept: of a peer or listener that knows nothing of that");
        return false;
    }
    if listener.is_some_and(|l| !l.has_room()) {
        debug_log!("fd {fd}: not kept: its listener's queue has no room for more");
        return false;
    }
    let own = own_name(s, fd);
    if own < 0 || listener.is_some_and(|l| !l.hears(channel, is_taken)) {
        return false;
    }
    let to = if listener.is_none() { PeerAddress::load(&s.peer_address) } else { None };
    let nowhere = listener.is_none() && to.is_none();
    if nowhere || !lets_go(s, g, own, to) {
        debug_log!("fd {fd}: not kept: something is under way or unread, or enough are kept");
        return false;
    }
    if closes(s, channel, listener) {
        tell(channel, slot);
        agent::of(PathId::Shm).sweep_at(next_sweep);
    }
    sweep_now_and_then();
    true
}

/// The word says that an end is closed which has been let go of: from then on anybody's who takes
/// it out of the list. False: it has ended, or is about to.
fn closes(s: &'static Socket, channel: &Channel, listener: Option<&'static Listener>) -> bool {
    let place = listener.map_or(0, |l| announced_at(l, channel).0);
    if step(s, channel, Life::Open, Happens::Close { place }).is_err() {
        fast_connect::unreserve(s);
        give_up(s);
        return false;
    }
    fast_connect::make_ready(s);
    let Some(l) = listener else { return true };
    // (5) Of a listener that has gone meanwhile nobody else knows that this one is parked.
    if !l.may_park() {
        let name = l.name();
        let is = |k: &fast_connect::Parked| core::ptr::eq(k.socket, s) && is_of(k, name);
        let ended = fast_connect::listener_of(s).is_none();
        fast_connect::pick(is).into_iter().for_each(if ended {
            end_accepting
        } else {
            retire_kept
        });
        return false;
    }
    hear_if_taken(s);
    true
}

/// Where connectors announce that they take what is parked for a listener: to the epoll set that it
/// stands in, which so hears of it as of all else, or to the listener's own place.
fn announced_at(l: &Listener, channel: &Channel) -> AnnouncedAt {
    let set = l.only_set().and_then(fd_table::epoll);
    let place = set.and_then(|set| sets().place_for_takes(set, channel));
    l.announced_at(place)
}

fn has_shm(paths: PathList) -> bool {
    paths.iter().any(|path| path == PathId::Shm)
}

fn may_park(s: &Socket) -> bool {
    fast_connect::is_on()
        && config::get().accelerate_by_default
        && s.flags.load(SeqCst) & !USUAL == 0
        && s.marks.load(Relaxed) & fast_connect::ODD == 0
        && s.names() == 0
        && s.forks.load(Relaxed) == process::forks()
        && !process::is_ending()
        && s.kept_error.load(Relaxed) == 0
        && [&s.receive_timeout_ns, &s.send_timeout_ns].iter().all(|t| t.load(Relaxed) == 0)
        && [&s.tx_inflight, &s.rx_inflight, &s.waiters].iter().all(|n| n.load(SeqCst) == 0)
        && s.pollers.load(SeqCst) as u32 == 0
        && s.registrations.load(SeqCst) == 0
}

/// Most second names of carriers, of those that are kept and of those in use.
const SPARES: u64 = 512;

/// The library's own name of the carrier, above the application's numbers; where there are none
/// above them, one of a few.
fn own_name(s: &Socket, fd: c_int) -> c_int {
    let known = s.spare.load(Relaxed) - 1;
    if known >= 0 {
        return known;
    }
    // Counted first: a forked child looks for it from here on.
    let before = u64::from(socket::note_spare());
    let own = numbers::copy(fd);
    let mut limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 0 };
    let _ = sys::getrlimit_nofile(&mut limit);
    let crowded = (own as u64) < limit.rlim_cur && before >= limit.rlim_cur / 16;
    if own < 0 || before >= SPARES || crowded {
        if own >= 0 {
            fd_table::close_internal(own);
        }
        socket::forget_orphan();
        return -1;
    }
    s.netns.store(network_of(own), Relaxed);
    let mut raw = [0u8; 128];
    let n = sys::socket_name(own, true, &mut raw);
    PeerAddress::store(raw.get(..n.max(0) as usize).and_then(PeerAddress::of), &s.peer_address);
    s.spare.store(own + 1, Relaxed);
    own
}

/// Both ends of the connection are this process's to leave: nothing is under way, and nothing lies
/// unread. It is kept, and nobody's any more.
fn lets_go(s: &'static Socket, g: u16, own: c_int, to: Option<PeerAddress>) -> bool {
    let (Ok(mut tx), Ok(mut rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return false };
    match rx.end.switch.on_announce(load_announce(rx.words)) {
        Ok(false) => {}
        Ok(true) => rx.settled(s),
        Err(_) => return false,
    }
    if !is_clean(&tx, &rx) || !sends_in_ring(s, &mut tx, own) {
        return false;
    }
    // (2) Before the look for unread bytes.
    rx.words.quiet[quiet::NOTIFY].fetch_or(quiet::ENDS, SeqCst);
    fence(SeqCst);
    let on_carrier = rx.end.switch.state() != RxState::Fast && carrier_unread(own) != Some(0);
    if on_carrier || !matches!(rx.unread(), Ok(0)) || !fast_connect::reserve(s, to) {
        return false;
    }
    close_books(s);
    s.fd.store(own, Release);
    // Threads that still know it find another generation when they look again.
    s.generation.fetch_add(1, AcqRel);
    let parked = s.state.change(State::Attached, Event::Parked);
    if !parked {
        fast_connect::unreserve(s);
    }
    parked
}

fn is_clean(tx: &TxHeld<'_>, rx: &RxHeld<'_>) -> bool {
    !tx.end.unsettled
        && tx.end.resend_mark.is_none()
        && tx.end.linger.is_none()
        && !tx.end.switches.are_ordered()
        && !rx.end.unsettled
        && rx.end.pending_error == 0
        && rx.end.read_until == 0
        && !rx.end.asked_back
        && matches!(rx.end.switch.state(), RxState::Armed | RxState::Fast)
        // (It wants what it has not consumed over the carrier, before any word of an end.)
        && !load_ack(tx.words).frozen
}

/// The peer reads to the end of the ring, and finds the word behind it. (One that has closed reads
/// no more.)
fn sends_in_ring(s: &Socket, tx: &mut TxHeld<'_>, fd: c_int) -> bool {
    publish_held(tx);
    match tx.end.switch.state() {
        TxState::Fast => true,
        TxState::Carrier if tx.channel.peer_ends(tx.slot) => !tx.end.never && has_closed(s),
        TxState::Carrier => promote(s, tx, fd, 0),
        _ => false,
    }
}

/// Those who wait at the peer's end look again.
fn tell(channel: &Channel, slot: usize) {
    let (tx, rx) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let _ = channel.notify(slot, &tx.quiet[quiet::NOTIFY]);
    let _ = channel.notify(slot, &rx.producer_quiet[producer_quiet::NOTIFY]);
}

// ---- the next life ------------------------------------------------------------------------------

/// How the application has set up a socket that connects.
pub(crate) struct Fresh {
    pub(crate) fd: c_int,
    pub(crate) domain: c_int,
    pub(crate) nonblock: bool,
    pub(crate) cloexec: bool,
    /// Options that were set.
    pub(crate) marks: u32,
    /// It is as it was made, and so serves another connect.
    pub(crate) untouched: bool,
}

/// The socket becomes a connection to that address by a carrier that is parked. False: there is
/// none.
pub(crate) fn connect(fresh: &Fresh, to: PeerAddress) -> bool {
    let now = sys::ticks();
    let parked = |k: &fast_connect::Parked| {
        let channel = k.socket.channel().filter(|_| k.to == Some(to));
        channel.map_or(0, |c| rank(k.socket, c, now))
    };
    while let Some(kept) = fast_connect::pick_best(parked) {
        // (As of a connection that is made: the configuration may have changed.)
        let taken = match candidates::paths_for(&kept.socket.tuple(), true) {
            Ok(paths) if has_shm(paths) => take(kept.socket, fresh),
            Err(Reason::SampledOut) if fast_connect::keep(kept.socket, kept.to) => return false,
            _ => Err(NotTaken::Serves),
        };
        match taken {
            Ok(()) => return true,
            Err(NotTaken::Serves) => give_up(kept.socket),
            Err(NotTaken::Number) => {
                give_up(kept.socket);
                return false;
            }
        }
    }
    let _ = sweep();
    false
}

/// How good it is to take that one: 0, not at all.
fn rank(s: &Socket, channel: &Channel, now: u64) -> u8 {
    let Some(place) = life_word::parked_for(s, channel) else { return 0 };
    let said = channel.awaits(AnnouncedAt(place).listener(), true).load(Relaxed);
    fast_connect::rank(said, now)
}

/// Why a carrier does not become a connection.
enum NotTaken {
    /// It serves no more.
    Serves,
    /// It cannot have the number of the application's socket (the limit is lower by now).
    Number,
}

/// Begins the next life of a carrier that the caller has, and has to give up where that fails.
fn take(s: &'static Socket, fresh: &Fresh) -> Result<(), NotTaken> {
    let own = s.fd.load(Acquire);
    let channel = s.channel().filter(|c| c.dead.load(SeqCst) == 0).ok_or(NotTaken::Serves)?;
    // (3) No end, no error, nothing unread.
    if sys::poll_now(own, libc::POLLIN | libc::POLLRDHUP) != 0
        || network_of(fresh.fd) != s.netns.load(Relaxed)
    {
        return Err(NotTaken::Serves);
    }
    let slot = s.slot.load(Relaxed) as usize;
    for d in 0..2 {
        channel.words(slot, d).quiet[quiet::NOTIFY].fetch_and(!quiet::ENDS, SeqCst);
    }
    let before = step(s, channel, Life::Closed, Happens::Take).map_err(|_| NotTaken::Serves)?;
    let marks = s.marks.swap(fresh.marks, Relaxed);
    harmless::begin_life(s, own, marks, &Due::Fresh(fresh.fd, fresh.marks), fresh.nonblock);
    if fast_connect::has_rings() {
        harmless::write_back(s, own);
    }
    let cloexec = if fresh.cloexec { libc::O_CLOEXEC } else { 0 };
    if fresh.untouched {
        fast_connect::keep_socket(fresh.fd, fresh.domain, fresh.nonblock);
    } else {
        fast_connect::give_away(fresh.fd);
    }
    // (The number is open, and the application's own.)
    if sys::dup3(own, fresh.fd, cloexec) < 0 {
        // It still is the fresh socket's.
        fast_connect::forget_prepared();
        return Err(NotTaken::Number);
    }
    reopen(s, fresh.fd);
    channel.announce_taken(AnnouncedAt(before.place), slot);
    leave_if_dead(channel, slot);
    Ok(())
}

/// The cookie of a socket's network namespace.
fn network_of(fd: c_int) -> u64 {
    const SO_NETNS_COOKIE: c_int = 71;
    let mut cookie = 0u64;
    let _ = sys::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie);
    cookie
}

/// `accept` gives out the acceptor's end of a life. `Err(0)`: it has ended meanwhile.
pub(crate) fn give_out(
    l: &'static Listener,
    s: &'static Socket,
    flags: c_int,
    forget: fn(c_int),
) -> Result<c_int, Ret> {
    // (It may have been given out since, and be another listener's.)
    let its = fast_connect::listener_of(s).is_some_and(|of| core::ptr::eq(of, l));
    if !its || !fast_connect::remove(s) {
        return Err(0);
    }
    let Some(channel) = s.channel() else {
        give_up(s);
        return Err(0);
    };
    let own = s.fd.load(Acquire);
    let dup = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let ticket = numbers::enter();
    let fd = sys::fcntl(own, dup, 0);
    numbers::leave(ticket);
    if fd < 0 {
        if fast_connect::keep(s, None) {
            l.put_back(s);
        } else {
            reset(s);
        }
        return Err(fd);
    }
    let fd = fd as c_int;
    forget(fd);
    if step(s, channel, Life::Closed, Happens::GiveOut).is_err() {
        let _ = sys::close(fd);
        // (Its connector may have begun the next life since.)
        retire(s, None);
        return Err(0);
    }
    let (marks, nonblock) = (s.marks.swap(0, Relaxed), flags & libc::SOCK_NONBLOCK != 0);
    harmless::begin_life(s, own, marks, &Due::Listener(l.options()), nonblock);
    reopen(s, fd);
    // (6) The connector may have left its ring while this waited here. (Nothing was sent yet: there
    // is no rest.)
    let slot = s.slot.load(Relaxed) as usize;
    if load_ack(channel.words(slot, channel.side)).frozen {
        drop(serve_pull_back(channel, slot));
    }
    leave_if_dead(channel, slot);
    Ok(fd)
}

/// Whoever saw the channel die may have passed by a connection that was not open again yet.
fn leave_if_dead(channel: &Channel, slot: usize) {
    if channel.dead.load(SeqCst) != 0 {
        drop(leave_dead_channel(channel, slot));
    }
}

/// The application has it again, under that number.
fn reopen(s: &'static Socket, fd: c_int) {
    let generation = s.generation.load(Acquire);
    s.flags.fetch_and(STAYS | flag::NONBLOCK, AcqRel);
    for word in [&s.calls, &s.turns, &s.in_vain, &s.stood, &s.looks, &s.registrations] {
        word.store(0, Relaxed);
    }
    s.refs.store(u64::from(generation) << 32 | 1, SeqCst);
    s.pollers.store(u64::from(generation) << 32, SeqCst);
    s.forks.store(process::forks(), Relaxed);
    s.carrier_asked.store(0, Relaxed);
    for home in &s.homes {
        home.set.store(core::ptr::null_mut(), Relaxed);
    }
    s.fd.store(fd, Release);
    s.record.store(stats::open(fd, Reason::None), Release);
    if let Some(r) = s.record() {
        r.set_addresses(s.tuple().local(), s.tuple().peer());
        candidates::rule_anew(s);
        if let Some(channel) = s.channel() {
            r.peer_pid.store(channel.peer_pid, Relaxed);
            show_rings(s, r, LATER_LIFE);
        }
    }
    let connector = s.has(flag::CONNECTOR);
    stats::count(if connector { Counter::Connected } else { Counter::Accepted });
    s.trace_anew();
    for (tx, fast) in [(true, s.published.sends_fast()), (false, s.published.receives_fast())] {
        if fast {
            show_path(s, tx, Way::Fast, 0);
        }
    }
    {
        let _tx = lock::lock_end(&s.tx_lock);
        s.state.change(State::Parked, Event::Reopened);
    }
    fd_table::set(fd, Entry::Socket(s, s.generation16()));
    if !config::get().accelerate_by_default {
        // It has been turned off meanwhile.
        pause(s, s.generation16(), fd, PULL_BACK_NS);
    }
}

// ---- a peer that has closed ---------------------------------------------------------------------

/// A peer that has closed in good order gets no more bytes: TCP takes what is sent first, answers
/// with a reset, and says EPIPE from then on. The carrier is shut down in its place.
pub(super) fn answer_for_closed(s: &Socket, h: &mut TxHeld<'_>, fd: c_int) {
    let _ = step(s, h.channel, Life::Open, Happens::End);
    h.end.never = true;
    s.raise(flag::SHUT_WR | flag::CARRIER_SPOKE);
    let _ = sys::shutdown(fd, libc::SHUT_RDWR);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests;
