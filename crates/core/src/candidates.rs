//! Candidates: connections that may come onto a faster path. How one begins, who may be at its
//! other end, and how it becomes plain.

use crate::fd_table::{self, Entry};
use crate::path::{PathId, PathList};
use crate::socket::{Event, Socket, State, flag, new_socket, offer};
use crate::unconnected::unconnected;
use crate::{agent, carrier, config, host, lock, stats, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::*};
use netacc_control::config::Paths;
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;

/// Whether the other end is on this host: loopback, or an address of its own.
pub(crate) fn is_on_this_host(t: &Tuple) -> bool {
    let (local, peer) = (t.local().ip(), t.peer().ip());
    local == peer || peer.is_loopback() || host::has_address(peer)
}

/// The paths that a connection could take: those of the configuration's that serve its addresses.
fn paths_of(t: &Tuple, paths: Paths) -> Result<PathList, Reason> {
    let mut list = PathList::EMPTY;
    let mut why = Reason::PeerRemote;
    for path in PathId::in_order(paths) {
        match agent::of(path).serves(t) {
            Ok(()) => {
                list = list.and(path);
                if path.traits().is_last {
                    break;
                }
            }
            Err(reason) if why == Reason::PeerRemote => why = reason,
            Err(_) => {}
        }
    }
    match () {
        _ if !list.is_empty() => Ok(list),
        _ if is_on_this_host(t) => Err(Reason::PathsExcludeIt),
        _ => Err(why),
    }
}

/// Of every 100 new connections, `percent` are accelerated, evenly spread.
fn sampled_out(percent: u8) -> bool {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Relaxed) as u64;
    let p = percent as u64;
    n * p / 100 == (n + 1) * p / 100
}

/// A connection has come to be: makes its socket and starts the search for the peer's library.
pub(crate) fn begin(fd: c_int, reason: u32, connector: bool) {
    match carrier::tuple_of(fd) {
        Some(tuple) => begin_as(fd, Origin { reason, connector, tuple, moved: (0, 0), made: true }),
        None if !connector => {
            fd_table::set(fd, Entry::None);
        }
        None => {}
    }
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
        s.state.change(State::Unconnected, Event::Refused);
        return None;
    }
    s.state.change(State::Unconnected, Event::Claimed).then_some(())?;
    s.fd.store(fd, Relaxed);
    s.syn.reset();
    Some(s)
}

/// What a connection is when its socket begins.
pub(crate) struct Origin {
    /// Why it stays plain, if it does.
    pub(crate) reason: u32,
    pub(crate) connector: bool,
    pub(crate) tuple: Tuple,
    /// What was sent and received on it before.
    pub(crate) moved: (u64, u64),
    /// It is a connection already.
    pub(crate) made: bool,
}

pub(crate) fn begin_as(fd: c_int, origin: Origin) {
    let began = fd_table::began(fd);
    let Some(s) = claim(fd) else { return };
    s.syn.set_began(began);
    fill(s, fd, origin);
    fd_table::set(fd, Entry::Socket(s, s.generation16()));
    if s.is(State::Candidate) {
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
    fill(s, fd, Origin { reason: why as u32, connector, tuple, moved, made: true });
    Some(s)
}

/// Makes a socket a candidate, or plain for the reason that its record shows.
fn fill(s: &Socket, fd: c_int, origin: Origin) {
    let Origin { reason, connector, tuple, moved, made } = origin;
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
    let mut paths = PathList::EMPTY;
    let why = if why != Reason::None {
        why
    } else if !config.accelerate_by_default {
        Reason::DisabledByConfig
    } else if tuple.local() == tuple.peer() {
        Reason::SelfConnect
    } else {
        match paths_of(&tuple, config.paths) {
            Err(why) => why,
            Ok(_) if sampled_out(config.accelerate_percent) => Reason::SampledOut,
            Ok(list) => {
                paths = list;
                if connector && list.iter().any(|path| path.traits().knows_syn) {
                    s.syn.sent(began, sys::kernel_ns(), made);
                }
                Reason::NotStarted
            }
        }
    };
    s.set_paths(paths);
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
    s.state.happens(if candidate { Event::Begun } else { Event::Refused });
}

/// A candidate's calls that move bytes before its peer is told of it. An agreement costs both
/// processes some ten microseconds, which a connection of one request and one reply never gets
/// back.
pub(crate) const NOTED_AFTER: u32 = 3;

/// A new candidate's peer can find this process, or is looked for.
fn start(s: &'static Socket) {
    if s.has(flag::CONNECTOR) {
        agent::of(s.path()).began(s);
    } else {
        // (The connector may have other paths left to try than this end.)
        s.paths().iter().for_each(|path| agent::of(path).began(s));
    }
}

/// A fresh socket is used for data: a connect that was in progress has succeeded, unless it is no
/// connection at all. (Opened with its first bytes, by TCP Fast Open, it was none before them.)
#[cold]
pub(crate) fn look_again(fd: c_int) {
    if let Some(reason) = unconnected(fd)
        && let Some(tuple) = carrier::tuple_of(fd)
    {
        let moved = carrier::settled_counts(fd, true).unwrap_or_default();
        begin_as(fd, Origin { reason, connector: true, tuple, moved, made: true });
    } else {
        may_begin(fd);
    }
}

/// A call that may send a SYN begins, perhaps to another host.
pub(crate) fn may_begin(fd: c_int) {
    if host::may_have_devices() && unconnected(fd).is_some() && fd_table::began(fd) == 0 {
        fd_table::set_began(fd, sys::kernel_ns());
    }
}

/// From candidate to plain, for good.
pub(crate) fn make_plain(s: &'static Socket, why: Reason) {
    if s.state.change(State::Candidate, Event::Refused) {
        s.set_reason(why);
        agent::forget(s);
    }
}

/// The path that a candidate tries cannot be, because of `why`: it tries the next that it has left,
/// and is plain where there is none.
pub(crate) fn next_path(s: &'static Socket, g: u16, why: Reason) {
    let (paths, said) = (s.paths(), s.offered.load(SeqCst));
    if offer::is_never(said) && said != offer::never(paths.first()) {
        // Of the path before, in the moment in which it was left.
        let _ = s.offered.compare_exchange(said, 0, SeqCst, Relaxed);
        return;
    }
    let rest = paths.rest();
    if rest.is_empty() {
        return make_plain(s, why);
    }
    agent::leave_carrier(s, false);
    {
        // What an agent leaves for a candidate it leaves under this lock, as long as the candidate
        // tries its path.
        let Some(_tx) = lock::lock_end(&s.tx_lock) else { return };
        let offered = s.offered.load(SeqCst);
        // (Or both ends have agreed meanwhile.)
        if s.generation16() != g
            || !s.is(State::Candidate)
            || s.paths() != paths
            || offered == offer::MADE
        {
            return;
        }
        s.set_reason(Reason::NotStarted);
        s.calls.store(0, Relaxed);
        s.look_at.store(0, Relaxed);
        s.looks.store(0, Relaxed);
        s.set_paths(rest);
        s.lower(flag::NOTED | flag::FOUND);
        // Last: whoever finds an offer from here on finds one of the new path.
        if offer::is_never(offered) {
            let _ = s.offered.compare_exchange(offered, 0, SeqCst, Relaxed);
        }
    }
    if s.has(flag::CONNECTOR) {
        agent::of(rest.first()).began(s);
    }
}
