//! Candidates: connections that may come onto a faster path. How one begins, who may be at its
//! other end, and how it becomes plain.

use crate::fd_table::{self, Entry};
use crate::path::{PathId, PathList};
use crate::socket::{Event, OfferState, Socket, State, await_change, flag, new_socket, offered};
use crate::unconnected::unconnected;
use crate::{agent, carrier, config, fast_connect, host, inject, lock, process, stats, sys};
use core::ffi::c_int;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use netacc_control::config::{Config, Direction, Paths, Rule, Subject};
use netacc_control::stats::{NO_RULE, Reason};
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
            // (What serves where all others do not says what it lacks: that can be mended.)
            Err(reason) if why == Reason::PeerRemote || path.traits().is_last => why = reason,
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

/// A connection has come to be, or begins to: it gets its socket, whose calls are counted. Nothing
/// is asked of the kernel, as most that ever come to be are over after one request and one reply:
/// who is at its ends is looked up when it has shown that it lives ([`look_up`]).
pub(crate) fn begin(fd: c_int, reason: u32, connector: bool, made: bool) {
    begin_as(fd, Origin { reason, connector, tuple: None, moved: (0, 0), made })
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
    s.fills.store(false, Relaxed);
    s.connects.store(false, Relaxed);
    Some(s)
}

/// What a connection is when its socket begins.
pub(crate) struct Origin {
    /// Why it stays plain, if it does.
    pub(crate) reason: u32,
    pub(crate) connector: bool,
    /// `None`: not looked up yet.
    pub(crate) tuple: Option<Tuple>,
    /// What was sent and received on it before.
    pub(crate) moved: (u64, u64),
    /// It is a connection already.
    pub(crate) made: bool,
}

pub(crate) fn begin_as(fd: c_int, origin: Origin) {
    let began = fd_table::began(fd);
    let nonblock = fd_table::is_nonblock(fd);
    fast_connect::give_away(fd);
    let Some(s) = claim(fd) else { return };
    s.syn.set_began(began);
    fill(s, fd, origin);
    if nonblock {
        s.raise(flag::NONBLOCK);
    }
    if fd <= 2 || s.names() > 1 {
        keep_off_stdio(s, fd);
    }
    let _ = fd_table::put(fd, Entry::Socket(s, s.generation16()));
    if s.is(State::Candidate) && !s.is_new() {
        start(s);
    }
}

/// Where one of its names is 0, 1 or 2 libc's streams read and write it past us
/// (`adoption/stdio.rs`).
#[cold]
#[inline(never)]
fn keep_off_stdio(s: &Socket, fd: c_int) {
    let g = s.generation16();
    if s.is(State::Candidate) && (0..=2).any(|n| n == fd || fd_table::is_named(n, s, g)) {
        s.raise(flag::STDIO);
        s.set_reason(Reason::StdioStream);
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
    let tuple = Some(tuple);
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
    s.turns.store(0, Relaxed);
    s.in_vain.store(0, Relaxed);
    s.stood.store(0, Relaxed);
    s.look_at.store(0, Relaxed);
    s.looks.store(0, Relaxed);
    if connector && began != 0 {
        s.syn.sent(began, sys::kernel_ns(), made);
    }
    let config = config::get();
    let why = Reason::ALL.get(reason as usize).copied().unwrap_or(Reason::None);
    let (mut list, mut why) = match why {
        Reason::None if config.accelerate_by_default => (PathList::EMPTY, Reason::NotStarted),
        Reason::None => (PathList::EMPTY, Reason::DisabledByConfig),
        why => (PathList::EMPTY, why),
    };
    s.ruled.clear();
    let rule = tuple.as_ref().map_or(0, |tuple| say_rule(s, tuple, connector));
    if let Some(tuple) = tuple.filter(|_| why == Reason::NotStarted) {
        match paths_for(&tuple, connector) {
            Ok(paths) => list = paths,
            Err(reason) => why = reason,
        }
    }
    let record = stats::open(fd, why);
    s.record.store(record, Relaxed);
    if let Some(tuple) = tuple {
        s.begin_trace(made && moved != (0, 0));
        // SAFETY: nobody else looks at this socket's addresses yet.
        unsafe { show(s, tuple) };
        show_rule(s, rule);
    }
    s.set_paths(list);
    stats::count(if connector {
        netacc_control::stats::Counter::Connected
    } else {
        netacc_control::stats::Counter::Accepted
    });
    // (One of a time when acceleration is off comes to be looked up when it is on again.)
    let waits = why == Reason::DisabledByConfig && tuple.is_none() && config::has_changed();
    let candidate = why == Reason::NotStarted || waits;
    if !candidate {
        s.say(why);
        s.count_no_more();
    }
    s.state.happens(if candidate { Event::Begun } else { Event::Refused });
}

/// The addresses of a connection are known from here on.
///
/// # Safety
/// Nobody else has looked at them, nor does until the paths are set.
unsafe fn show(s: &Socket, tuple: Tuple) {
    // SAFETY: the caller's promise.
    unsafe { *s.tuple.get() = tuple };
    if let Some(r) = s.record() {
        r.set_addresses(tuple.local(), tuple.peer());
    }
    s.show_in_trace(tuple);
}

/// The paths that a candidate tries, or why it is none. Each call draws for one new connection (or
/// one more life of a carrier): `NACC_CONNECT_RDMA_PERCENT`.
pub(crate) fn paths_for(tuple: &Tuple, connector: bool) -> Result<PathList, Reason> {
    let config = config::get();
    if tuple.local() == tuple.peer() {
        return Err(Reason::SelfConnect);
    }
    let ruled = ruled(config, tuple, connector);
    let list = match ruled {
        None => paths_of(tuple, config.paths)?,
        // It is the rule's doing only where there would be a path without it.
        Some((paths, why)) => {
            paths_of(tuple, paths).or_else(|_| paths_of(tuple, config.paths).and(Err(why)))?
        }
    };
    if sampled_out(config.accelerate_percent) { Err(Reason::SampledOut) } else { Ok(list) }
}

/// The rule that holds for a connection.
fn rule_of<'a>(config: &'a Config, tuple: &Tuple, connector: bool) -> Option<&'a Rule> {
    if config.rules.is_empty() {
        return None;
    }
    let (direction, server) = match connector {
        true => (Direction::Out, tuple.peer()),
        false => (Direction::In, tuple.local()),
    };
    let peer = tuple.peer().ip();
    let of = Subject { port: server.port(), peer, direction, user: sys::geteuid() };
    config.rule(&of)
}

/// What a rule says of a connection's waits and of its trace. Which one holds: 0, where there are
/// none.
fn say_rule(s: &Socket, tuple: &Tuple, connector: bool) -> u32 {
    let config = config::get();
    if config.rules.is_empty() {
        s.ruled.clear();
        return 0;
    }
    let rule = rule_of(config, tuple, connector);
    s.ruled.set(rule.and_then(Rule::poll_us), rule.and_then(Rule::trace));
    rule.map_or(NO_RULE, Rule::tag)
}

/// Another life of a carrier begins: what a rule says of it.
pub(crate) fn rule_anew(s: &Socket) {
    if !config::get().rules.is_empty() {
        let rule = say_rule(s, &s.tuple(), s.has(flag::CONNECTOR));
        show_rule(s, rule);
    }
}

/// In its record.
fn show_rule(s: &Socket, rule: u32) {
    if let Some(r) = s.record().filter(|_| rule != 0) {
        r.set_rule(rule);
    }
}

/// The paths that a rule leaves to a connection, of those of the configuration's. `None`: no rule
/// says anything of them.
fn ruled(config: &Config, tuple: &Tuple, connector: bool) -> Option<(Paths, Reason)> {
    let rule = rule_of(config, tuple, connector)?;
    let why = if rule.is_of_unreadable_file() { Reason::ConfigUnreadable } else { Reason::Rule };
    Some((rule.paths()?.within(config.paths), why))
}

/// A candidate has shown that it lives, by a call on `fd`: whom it connects is looked up, and its
/// search begins. (The addresses of a connection never change; where it was reset meanwhile there
/// are none any more.) True: it is known, and still a candidate.
#[cold]
#[inline(never)]
pub(crate) fn look_up(s: &'static Socket, g: u16, fd: c_int) -> bool {
    let found = {
        // Not while another thread is at this, or a signal handler has interrupted it.
        let Some(_tx) = lock::lock_end(&s.tx_lock) else { return false };
        let is_it = || s.is(State::Candidate) && fd_table::is_named(fd, s, g);
        if !is_it() || !s.is_new() {
            return is_it();
        }
        let tuple = carrier::tuple_of(fd);
        // Another thread may have closed the number meanwhile, and it is another connection's: who
        // closes it changes the table first.
        if !is_it() {
            return false;
        }
        match tuple {
            None => Err(Reason::Disconnected),
            Some(tuple) => {
                let rule = say_rule(s, &tuple, s.has(flag::CONNECTOR));
                s.begin_trace(false);
                // SAFETY: under the lock, and the paths are not set yet.
                unsafe { show(s, tuple) };
                show_rule(s, rule);
                // As in `io::shutdown_of`.
                let whole = |list: &PathList| list.first().is_shared() || !s.has(flag::SHUT_WR);
                let list = paths_for(&tuple, s.has(flag::CONNECTOR));
                let list = list.and_then(|l| whole(&l).then_some(l).ok_or(Reason::ShuttingDown));
                list.map(|list| s.set_paths(list))
            }
        }
    };
    match found {
        Ok(()) => start(s),
        Err(why) => make_plain(s, why),
    }
    s.is(State::Candidate)
}

/// A candidate's calls that move bytes before its peer is told of it. An agreement costs both
/// processes some ten microseconds, which a connection of one request and one reply never gets
/// back.
pub(crate) const NOTED_AFTER: u32 = 3;
/// What shows that a new candidate is *in use* (that it lives): a second request, or more bytes or
/// calls than one request and one reply, which may take some calls each (header, then body).
const IN_USE_AFTER_TURNS: u32 = 3;
const IN_USE_AFTER_CALLS: u32 = 8;
const IN_USE_AFTER_BYTES: u64 = 64 << 10;

/// Whether a new candidate is in use, now that its `calls`-th call has moved bytes.
pub(crate) fn is_in_use(s: &Socket, sends: bool, calls: u32) -> bool {
    s.count_turn(sends) >= IN_USE_AFTER_TURNS
        || calls >= IN_USE_AFTER_CALLS
        || s.tx_bytes.load(Relaxed) + s.rx_bytes.load(Relaxed) >= IN_USE_AFTER_BYTES
        || inject::at_once_ns().is_some()
}

/// A candidate's peer can find this process, or is looked for.
fn start(s: &'static Socket) {
    if s.has(flag::CONNECTOR) {
        agent::of(s.path()).began(s);
    } else {
        // (The connector may have other paths left to try than this end.)
        let local = s.tuple().local();
        s.paths().iter().for_each(|path| {
            let _ = agent::of(path).accepting(local);
        });
    }
}

/// A connection of a listener's was accepted, `fd`, whose peer is at `peer`: that its connector can
/// find this process when it looks, which may be before this end has shown that it lives. Told once
/// for each listener and peer's address: everything that makes it untrue begins another
/// [`agent::term`].
pub(crate) fn tell_accepted(listener: c_int, fd: c_int, peer: Option<SocketAddr>) {
    static TOLD: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
    let config = config::get();
    if !config.accelerate_by_default {
        return;
    }
    let Some(ip) = peer.map(|peer| peer.ip().to_canonical()) else { return };
    let from = u64::from(agent::term()) << 32 | u64::from(listener as u32);
    let mixed = (host::hash(ip) ^ from.rotate_left(20) ^ u64::from(process::id()))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        | 1;
    let Some(told) = TOLD.get((mixed >> 56) as usize) else { return };
    if told.load(Relaxed) == mixed {
        return;
    }
    let may_be_served = ip.is_loopback() || host::has_address(ip) || host::has_devices();
    let mut all = true;
    if let Some(tuple) = may_be_served.then(|| carrier::tuple_of(fd)).flatten() {
        let paths = paths_of(&tuple, config.paths).unwrap_or(PathList::EMPTY);
        paths.iter().for_each(|path| all &= agent::of(path).accepting(tuple.local()));
    }
    if all {
        told.store(mixed, Relaxed);
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
        let tuple = Some(tuple);
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
    // Its peer is told while nobody can close it: behind that its slot may be another connection's.
    let claimed = !s.is_inherited()
        && s.offered.is_made()
        && s.state.change(State::Candidate, Event::Claimed);
    if claimed {
        s.leaves_offer();
    }
    let from = if claimed { State::Changing } else { State::Candidate };
    if s.state.change(from, Event::Refused) {
        s.set_reason(why);
        s.count_no_more();
        agent::forget(s);
    }
}

/// What has become of a connection that is to be the kernel's.
pub(crate) enum Settled {
    Attached,
    Plain,
    /// This thread itself changes it, below a handler.
    Changing,
}

/// Makes it plain if it is a candidate, also one that somebody looks at.
pub(crate) fn settle(s: &'static Socket, g: u16, why: Reason) -> Settled {
    loop {
        match s.state.now() {
            _ if s.generation16() != g => return Settled::Plain,
            State::Candidate => make_plain(s, why),
            State::Changing if await_change(s) => {}
            State::Changing => return Settled::Changing,
            State::Attached => return Settled::Attached,
            _ => return Settled::Plain,
        }
    }
}

/// The path that a candidate tries cannot be, because of `why`: it tries the next that it has left,
/// and is plain where there is none.
pub(crate) fn next_path(s: &'static Socket, g: u16, why: Reason) {
    let paths = s.paths();
    if let OfferState::Never(refused) = s.offered.now()
        && refused != paths.first()
    {
        // Of the path before, in the moment in which it was left.
        let _ = s.offered.happens(offered::Event::Passed(refused));
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
        let offer = s.offered.now();
        // (Or both ends have agreed meanwhile.)
        if s.generation16() != g
            || !s.is(State::Candidate)
            || s.paths() != paths
            || offer == OfferState::Made
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
        if let OfferState::Never(refused) = offer {
            let _ = s.offered.happens(offered::Event::Passed(refused));
        }
    }
    if s.has(flag::CONNECTOR) {
        agent::of(rest.first()).began(s);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn a_rule_is_to_blame_where_there_would_be_a_path_without_it() {
        crate::testing::init();
        let why = |local: &str, peer: &str, rules| {
            let tuple = Tuple::new(local.parse().unwrap(), peer.parse().unwrap()).unwrap();
            let config = Config { rules, paths: Paths::default(), ..config::get().clone() };
            config::with(config, || paths_for(&tuple, true).err())
        };
        let rules = vec![Rule::unreadable("r")];
        assert_eq!(why("127.0.0.1:1", "127.0.0.1:2", vec![]), None);
        assert_eq!(why("127.0.0.1:1", "127.0.0.1:2", rules.clone()), Some(Reason::Rule));
        let file = vec![Rule::of_unreadable_file()];
        assert_eq!(why("127.0.0.1:1", "127.0.0.1:2", file), Some(Reason::ConfigUnreadable));
        // RDMA has a reason of its own why it leads to no other host here.
        let far = ("192.0.2.1:1", "203.0.113.1:2");
        assert_eq!(why(far.0, far.1, rules), why(far.0, far.1, vec![]));
        assert_ne!(why(far.0, far.1, vec![]), Some(Reason::PeerRemote));
    }

    #[test]
    fn the_first_rule_says_how_a_connection_is_waited_for_and_traced() {
        crate::testing::init();
        let text = "[rule a]\nport=2\npoll=0\n[rule b]\nport=2-3\npoll=2ms\ntrace=1\n\
                    [rule c]\ndirection=in\ntrace=0\n";
        let known = netacc_control::config::NO_USERS;
        let rules = Config::resolve(Some(("f", text)), &|_| None, &[], known).unwrap().0.rules;
        let s = new_socket(-1).unwrap();
        let said = |peer: &str, connector| {
            let tuple = Tuple::new("127.0.0.1:1".parse().unwrap(), peer.parse().unwrap()).unwrap();
            let config = Config { rules: rules.clone(), ..config::get().clone() };
            config::with(config, || {
                let rule = say_rule(s, &tuple, connector);
                let name = rules.iter().find(|it| it.tag() == rule).map(|it| it.name.as_str());
                assert_eq!(name.is_none(), rule == NO_RULE);
                assert!(paths_for(&tuple, connector).is_ok(), "the paths are as without rules");
                let traced = [false, true].map(|others| s.ruled.is_traced(|| others));
                (s.ruled.limit(), traced, name.and_then(|name| name.bytes().next()))
            })
        };
        use crate::socket::Limit;
        assert_eq!(said("127.0.0.1:2", true), (Limit::us(0), [false, true], Some(b'a')));
        assert_eq!(said("127.0.0.1:3", true), (Limit::us(2_000), [true, true], Some(b'b')));
        assert_eq!(said("127.0.0.1:3", false), (Limit::CONFIGURED, [false, false], Some(b'c')));
        assert_eq!(said("127.0.0.1:4", true), (Limit::CONFIGURED, [false, true], None));
        s.ruled.clear();
        assert_eq!(s.ruled.limit(), Limit::CONFIGURED);
    }

    #[test]
    fn what_serves_where_others_do_not_says_what_it_lacks() {
        crate::testing::init();
        let why = |paths, pid_1| {
            let (local, peer) = ("192.0.2.1:1".parse().unwrap(), "203.0.113.1:2".parse().unwrap());
            let tuple = Tuple::new(local, peer).unwrap();
            let paths = Paths::parse(paths).unwrap();
            let config = Config { paths, ..config::get().clone() };
            crate::utcp::deny(pid_1);
            config::with(config, || paths_for(&tuple, true).err())
        };
        assert!(crate::testing::alone_in_child(move || {
            why("shm,rdma,utcp", false) == Some(Reason::UtcpNoPrivilege)
                && why("shm,rdma,utcp", true) == Some(Reason::UtcpNoSupport)
                && why("shm,rdma", false) != Some(Reason::UtcpNoPrivilege)
        }));
    }
}
