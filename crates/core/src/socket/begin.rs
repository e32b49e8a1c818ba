//! How a connection begins: a socket, its connect or its accept, and who may be at the other end.

use super::end::{close_books, make_plain, recycle};
use super::{ATTACHING, CANDIDATE, FREE, PLAIN, Socket, UNCONNECTED, allocate, flag, push_free};
use crate::channel;
use crate::fd_table::{self, Entry};
use crate::outcome::{PASS, Ret};
use crate::{carrier, config, own, process, remote, service, stats, syn, sys};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use libc::{sockaddr, socklen_t};
use netacc_control::config::Paths;
use netacc_control::stats::{Path, Reason};
use netacc_proto::rendezvous::Tuple;

pub(crate) const NONE: u32 = Reason::None as u32;

pub(crate) fn on_socket(fd: c_int, domain: c_int, ty: c_int, protocol: c_int) {
    fd_table::forget_stale(fd);
    let stream = ty & 0xf == libc::SOCK_STREAM && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    if stream && (domain == libc::AF_INET || domain == libc::AF_INET6) && process::started() {
        fd_table::set(fd, Entry::Fresh(refusal(NONE)));
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

/// The process has a ring that cannot be followed: no socket is to be accelerated.
static ALL_REFUSED: AtomicBool = AtomicBool::new(false);

pub(crate) fn all_refused() -> bool {
    ALL_REFUSED.load(Relaxed)
}

/// True: they were before.
pub(crate) fn refuse_all() -> bool {
    ALL_REFUSED.swap(true, AcqRel)
}

/// Why a new socket must never be accelerated, if `reason` has nothing against it.
fn refusal(reason: u32) -> u32 {
    if all_refused() && reason == Reason::None as u32 { Reason::IoUring as u32 } else { reason }
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
    match carrier::tuple_of(fd) {
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
pub(super) fn start(s: &'static Socket) {
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
        Entry::Listener(reason) | Entry::Fresh(reason) => begin(fd, refusal(reason), false),
        // A listener from before this program image; unix sockets come this way too.
        _ => {
            let mut raw = [0u8; 128];
            let len = sys::socket_name(fd, false, &mut raw);
            if carrier::address(&raw, len).is_some() {
                begin(fd, refusal(NONE), false);
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

/// `listen` is about to be called.
pub(crate) fn before_listen(fd: c_int) {
    if unconnected(fd) == Some(NONE) {
        syn::keep(fd);
    }
}

/// A call that may send a SYN begins, perhaps to another host.
fn may_begin(fd: c_int) {
    if own::may_have_devices() && unconnected(fd).is_some() && fd_table::began(fd) == 0 {
        fd_table::set_began(fd, sys::kernel_ns());
    }
}

pub(crate) unsafe fn before_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Ret {
    may_begin(fd);
    if let Entry::Socket(s, g) = fd_table::get(fd) {
        // connect(AF_UNSPEC) dissolves the connection; the descriptor starts anew.
        // SAFETY: the caller says that two bytes are there.
        let family = || unsafe { crate::user::read(&raw const (*addr).sa_family) };
        if len >= 2 && family() == Some(libc::AF_UNSPEC as libc::sa_family_t) {
            let _ = crate::io::to_kernel(s, g, fd, Reason::Disconnected, false);
        } else if s.is(CANDIDATE)
            && s.has(flag::CONNECTOR)
            && carrier::state_of(fd) == Some(carrier::TCP_CLOSE)
        {
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
        let peer = carrier::address(&raw, n as isize).filter(|a| !a.ip().is_unspecified());
        let len = sys::socket_name(fd, false, &mut raw);
        if let (Some(peer), Some(local)) = (peer, carrier::address(&raw, len))
            && let Ok(tuple) = Tuple::new(local, peer)
        {
            begin_as(fd, reason, true, tuple, (0, 0), false);
        }
    } else if result != -libc::EALREADY {
        fd_table::set_began(fd, 0);
    }
}

/// A fresh socket is used for data: a connect that was in progress has succeeded, unless it is no
/// connection at all. (Opened with its first bytes, by TCP Fast Open, it was none before them.)
#[cold]
pub(crate) fn look_again(fd: c_int) {
    if let Some(reason) = unconnected(fd)
        && let Some(tuple) = carrier::tuple_of(fd)
    {
        begin_as(
            fd,
            reason,
            true,
            tuple,
            carrier::settled_counts(fd, true).unwrap_or_default(),
            true,
        );
    } else {
        may_begin(fd);
    }
}
