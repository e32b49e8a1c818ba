//! Where this process takes links: for connections that are accepted at TCP port P, on the first
//! free one of P + 20000, P + 20001, … (40000 less where that is above 65535), on the address at
//! which they are accepted; and where the connection manager takes pairs.

use super::destinations::{PORTS, TRIED, link_port};
use super::link::{Link, Phase, Route, bind, tcp_socket};
use super::shares::LINKS_MAX;
use super::{
    EVENT_LISTENER, Remote, close_own, devices, forget_known, net, note_own, unwatch, watch,
};
use crate::carrier::address;
use crate::log::{debug_log, warn_log, warn_of_peer};
use crate::{fd_table, numbers, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::net::SocketAddr;
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Role;
use netacc_verbs::fabric::{Fabric as _, Transport};

/// Addresses at which links are taken.
const LISTENERS: usize = 64;
/// Callers that are taken in a row.
const CALLERS: usize = 64;
/// One where no socket of the application's listens any more is closed after so long, at least.
const UNUSED_NS: u64 = 10_000_000_000;

/// One that cannot take a caller is left alone for so long.
const DEAF_NS: u64 = 1_000_000_000;

/// Where this process takes links.
pub(super) struct Listener {
    /// Where the connections are accepted that they are for.
    pub(super) local: SocketAddr,
    pub(super) fd: c_int,
    pub(super) device: usize,
    pub(super) cm: Option<net::Listener>,
    pub(super) cm_port: u16,
    /// While it listens, that port of TCP is taken too: that shows whether it still does.
    pub(super) holds_port: bool,
    /// A pair that a peer was asked to connect there did not come.
    pub(super) doubted: bool,
    /// Since when no socket of the application's is known to listen there; 0: one does.
    unused_since: u64,
}

/// A place at which no links could be taken.
#[derive(Clone, Copy)]
pub(super) struct Refused {
    pub(super) local: SocketAddr,
    /// Why: what is said of the connections that wait there.
    pub(super) why: Reason,
    /// When they are asked for again.
    at: u64,
    /// How often in a row all ports were taken.
    times: u8,
}
/// So many times the pause before all ports are tried again doubles.
const LONGER_MAX: u8 = 2;

/// A socket that listens at the first port of a place that is free, and which one that is.
fn first_port(local: SocketAddr, is_first_time: bool) -> Result<(c_int, u8), Reason> {
    let reserved = Reserved::now();
    let port = |k| link_port(local.port(), k);
    for k in (0..PORTS).filter(|k| !reserved.has(port(*k))) {
        // (A new one each time. Several processes may bind a port at which none of them listens
        // yet; one listens, and the others' sockets stay bound to it.)
        let fd = tcp_socket(local.ip());
        if fd < 0 {
            return Err(Reason::NoDescriptor);
        }
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32);
        if bind(fd, SocketAddr::new(local.ip(), port(k))) >= 0
            && sys::listen(fd, LINKS_MAX as c_int) >= 0
        {
            return Ok((fd, k));
        }
        close_own(fd);
    }
    if is_first_time {
        warn_log!("no port for agreements over RDMA: {} to {} are taken", port(0), port(PORTS - 1));
    }
    Err(Reason::RdmaRefused)
}

impl Remote {
    /// Connections are accepted at `local`: connectors of other hosts can find this process from
    /// here on.
    pub(super) fn on_accepting(&mut self, local: SocketAddr) {
        if self.listeners.iter().any(|l| l.local == local && l.fd >= 0) {
            return;
        }
        let now = sys::now_ns();
        let known = self.refused.iter().position(|place| place.local == local);
        let before = known.and_then(|n| self.refused.get(n)).copied();
        if before.is_some_and(|place| now < place.at) {
            return;
        }
        let Err(why) = self.take_links(local, before.is_none()) else {
            if let Some(before) = before {
                self.refused.retain(|place| place.local != local);
                self.wait_anew(before);
            }
            return;
        };
        debug_log!("no links for {local}: {}", why.name());
        let again = before.filter(|_| why == Reason::RdmaRefused);
        let times = again.map_or(0, |place| place.times.saturating_add(1));
        let at = now + (devices::pause_after(why) << times.min(LONGER_MAX));
        let place = Refused { local, why, at, times };
        if let Some(old) = known.and_then(|n| self.refused.get_mut(n)) {
            *old = place;
        } else if self.refused.len() < LISTENERS && self.refused.try_reserve(1).is_ok() {
            self.refused.push(place);
        }
        self.ask_anew(at);
    }

    /// Who waits at a place that nobody could ask for until now waits as from the beginning.
    fn wait_anew(&mut self, before: Refused) {
        let mut at = self.accepted.oldest();
        while let Some(key) = at {
            at = self.accepted.after(key);
            let Some((tuple, m)) = self.accepted.get(key) else { continue };
            if tuple.local() != before.local {
                continue;
            }
            if m.is_current() {
                m.socket.change_reason(&[before.why], Reason::Negotiating);
            }
            self.claims_changed(key);
        }
    }

    fn ask_anew(&mut self, at: u64) {
        self.anew_at = if self.anew_at == 0 { at } else { self.anew_at.min(at) };
        self.at(at);
    }

    /// Places at which no links could be taken: those whose connections wait are asked for again.
    fn time_refused(&mut self, now: u64) {
        let mut n = 0;
        while let Some(Refused { local, at, .. }) = self.refused.get(n).copied() {
            if !self.accepted.iter().any(|(_, tuple, _)| tuple.local() == local) {
                // (The next accepted connection asks for it.)
                self.refused.swap_remove(n);
                continue;
            }
            if at <= now {
                self.on_accepting(local);
            } else {
                self.ask_anew(at);
            }
            n += usize::from(self.refused.get(n).is_some_and(|place| place.local == local));
        }
    }

    fn take_links(&mut self, local: SocketAddr, is_first_time: bool) -> Result<(), Reason> {
        if self.free_place() >= LISTENERS {
            self.close_unused(true);
        }
        let at = self.free_place();
        if at >= LISTENERS {
            return Err(Reason::ChannelFull);
        }
        let device = self.device_at(local.ip())?;
        let (fd, k) = first_port(local, is_first_time)?;
        let (cm, cm_port) =
            self.listen_at((fd, k), local, device, at).inspect_err(|_| close_own(fd))?;
        debug_log!("links for {local} on port {}, pairs on {cm_port}", link_port(local.port(), k));
        let holds_port = self.holds_port(local, device, cm_port);
        let (cm, doubted, unused_since) = (Some(cm), false, 0);
        let new = Listener { local, fd, device, cm, cm_port, holds_port, doubted, unused_since };
        match self.listeners.get_mut(at) {
            Some(old) => *old = new,
            None => self.listeners.push(new),
        }
        Ok(())
    }

    /// That of one that is closed, if there is one: events name the place.
    fn free_place(&self) -> usize {
        self.listeners.iter().position(|l| l.fd < 0).unwrap_or(self.listeners.len())
    }

    /// The other listener of a place, the manager's, and its port.
    fn listen_at(
        &mut self,
        (fd, k): (c_int, u8),
        local: SocketAddr,
        device: usize,
        at: usize,
    ) -> Result<(net::Listener, u16), Reason> {
        let (cm, cm_port) =
            self.listen_for_pairs(local, device, at, k).ok_or(Reason::RdmaRefused)?;
        if !watch(self.epoll, fd, libc::EPOLLIN as u32, EVENT_LISTENER | at as u64) {
            if let Some(verbs) = self.devices.verbs() {
                let _ = verbs.close_listener(cm);
            }
            return Err(Reason::NoDescriptor);
        }
        Ok((cm, cm_port))
    }

    /// A listening socket was closed: where none is left links are of no use after a while. (Not
    /// put off where another one is closed before.)
    pub(super) fn look_at_listeners(&mut self) {
        if self.listeners_at == 0 {
            self.listeners_at = sys::now_ns() + UNUSED_NS;
        }
        let at = self.listeners_at;
        self.at(at);
    }

    /// Listeners that could not take a caller are listened to again.
    pub(super) fn time_deaf(&mut self) {
        if self.deaf_until == 0 {
            return;
        }
        let now = sys::now_ns();
        if self.deaf_until <= now {
            let own = self.listeners.iter().enumerate().filter(|(_, l)| l.fd >= 0);
            let heard = own.fold(true, |all, (at, l)| {
                watch(self.epoll, l.fd, libc::EPOLLIN as u32, EVENT_LISTENER | at as u64) && all
            });
            self.deaf_until = if heard { 0 } else { now + DEAF_NS };
        }
        let until = self.deaf_until;
        if until != 0 {
            self.at(until);
        }
    }

    pub(super) fn time_listeners(&mut self) {
        let now = sys::now_ns();
        if self.anew_at != 0 && self.anew_at <= now {
            self.anew_at = 0;
            forget_known();
            self.time_refused(now);
        } else if self.anew_at != 0 {
            let at = self.anew_at;
            self.at(at);
        }
        if self.listeners_at == 0 || self.listeners_at > sys::now_ns() {
            if self.listeners_at != 0 {
                let at = self.listeners_at;
                self.at(at);
            }
            return;
        }
        self.listeners_at = 0;
        // (Those whose links are up are looked at again when the next one is closed.)
        if self.close_unused(false) {
            self.look_at_listeners();
        }
    }

    /// Closes those where no socket of the application's has listened for a while, and whose links
    /// are over. `pressed`: another one needs a place, so nobody waits for them: only where an
    /// accepted connection may ask for them, or a link has something to do, they stay. True: some
    /// have not been unused for long enough.
    fn close_unused(&mut self, pressed: bool) -> bool {
        let verbs = self.devices.verbs();
        let listens = crate::listens::Listens::now();
        let now = sys::now_ns();
        let (mut gone, mut early) = (false, false);
        for l in self.listeners.iter_mut().filter(|l| l.fd >= 0) {
            if listens.on(l.local.port()) {
                l.unused_since = 0;
                continue;
            }
            if l.unused_since == 0 {
                l.unused_since = now;
            }
            let is_its = |link: &Link| {
                link.role == Role::Acceptor
                    && link.local == l.local.ip()
                    && link.port == l.local.port()
            };
            let works =
                |link: &Link| link.in_use() || !link.waiting.is_empty() || link.broken_at != 0;
            let is_used = |link: &Link| {
                is_its(link) && if pressed { works(link) } else { link.phase != Phase::Gone }
            };
            if self.links.iter().flatten().any(|link| is_used(link))
                || pressed && listens.awaited(l.local.port())
            {
                continue;
            }
            if !pressed && now.saturating_sub(l.unused_since) < UNUSED_NS {
                early = true;
                continue;
            }
            close_own(core::mem::replace(&mut l.fd, -1));
            if let (Some(cm), Some(verbs)) = (l.cm.take(), verbs.as_ref()) {
                let _ = verbs.close_listener(cm);
            }
            gone = true;
        }
        if gone {
            // The next accept there is told of anew.
            forget_known();
        }
        early
    }

    /// The manager's listener: at the next free one of the same ports where the transport shares
    /// TCP's, so that a firewall needs to let four ports through; otherwise at any.
    fn listen_for_pairs(
        &mut self,
        local: SocketAddr,
        device: usize,
        at: usize,
        k: u8,
    ) -> Option<(net::Listener, u16)> {
        let verbs = self.devices.verbs()?;
        let shares = self.facts(device)?.transport != Transport::Infiniband;
        let manager = self.devices.manager.as_ref()?;
        let token = devices::TOKEN_LISTENER | at as u64;
        let from = if shares { k + 1 } else { 0 };
        let reserved = Reserved::now();
        let ports = (from..from.max(TRIED))
            .map(|k| link_port(local.port(), k))
            .filter(|p| !reserved.has(*p))
            .chain([0]);
        for port in ports {
            if let Ok(listener) =
                verbs.listen(manager, SocketAddr::new(local.ip(), port), 128, token)
            {
                let port = verbs.port(&listener);
                return Some((listener, port));
            }
        }
        // (A peer that calls has it looked for again.)
        warn_of_peer!("no port for queue pairs at {}", local.ip());
        None
    }

    pub(super) fn take_callers(&mut self, listener: usize) {
        for _ in 0..CALLERS {
            self.mend_listener(listener);
            let Some((at, device, local, cm_port)) =
                self.listeners.get(listener).map(|l| (l.fd, l.device, l.local, l.cm_port))
            else {
                return;
            };
            let fd = numbers::make(|| sys::accept4(at, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC));
            if fd < 0 {
                if ![libc::EAGAIN, libc::EINTR, libc::ECONNABORTED].contains(&-fd) {
                    // No descriptor, most likely. Looked at again and again it would be a busy
                    // loop.
                    unwatch(self.epoll, at);
                    self.deaf_until = sys::now_ns() + DEAF_NS;
                    let until = self.deaf_until;
                    self.at(until);
                }
                return;
            }
            let mut raw = [0u8; 128];
            let len = sys::socket_name(fd, true, &mut raw);
            let peer = address(&raw, len).map(|a| a.ip().to_canonical());
            note_own(fd);
            let made = peer.and_then(|peer| {
                let (local, port) = (local.ip(), local.port());
                let route = Route { local, peer, port, k: 0, device };
                self.new_link(fd, Role::Acceptor, Phase::Greeting, route)
            });
            match made {
                Some(i) => {
                    if let Some(l) = self.link_mut(i) {
                        l.cm_port = cm_port;
                    }
                    self.greet(i);
                }
                None => close_own(fd),
            }
        }
    }

    /// A pair that was to come to these listeners did not.
    pub(super) fn doubt_listener(&mut self, local: SocketAddr) {
        self.listeners.iter_mut().filter(|l| l.local == local).for_each(|l| l.doubted = true);
    }

    /// The kernel does not listen at the manager's port any more, though nobody has closed it. (siw
    /// gives a listener up when a connection to it ends before its own thread has taken it.)
    fn close_vanished(&mut self, at: usize) {
        let Some(l) = self.listeners.get_mut(at).filter(|l| l.fd >= 0 && l.doubted) else { return };
        l.doubted = false;
        let place = SocketAddr::new(l.local.ip(), l.cm_port);
        if !l.holds_port || !is_free(place) {
            return;
        }
        if let (Some(verbs), Some(cm)) =
            (self.devices.verbs(), self.listeners.get_mut(at).and_then(|l| l.cm.take()))
        {
            debug_log!("nobody listens at {place} any more");
            let _ = verbs.close_listener(cm);
        }
    }

    /// The device of a listener was gone, and may be there again; or the listener itself.
    fn mend_listener(&mut self, at: usize) {
        if self.is_keeper() {
            // Nobody asks it for pairs.
            return;
        }
        self.close_vanished(at);
        let Some(local) =
            self.listeners.get(at).filter(|l| l.cm.is_none() && l.fd >= 0).map(|l| l.local)
        else {
            return;
        };
        let Ok(device) = self.device_at(local.ip()) else { return };
        let Some((cm, port)) = self.listen_for_pairs(local, device, at, 0) else { return };
        let holds_port = self.holds_port(local, device, port);
        if let Some(l) = self.listeners.get_mut(at) {
            (l.device, l.cm, l.cm_port, l.holds_port) = (device, Some(cm), port, holds_port);
        }
    }

    /// Of a listener that was just made. (iWARP in hardware has ports of its own: there a free one
    /// of TCP's says nothing.)
    fn holds_port(&self, local: SocketAddr, device: usize, port: u16) -> bool {
        let shares = self.facts(device).is_some_and(|f| f.transport != Transport::Infiniband);
        shares && !is_free(SocketAddr::new(local.ip(), port))
    }

    /// Where the manager takes pairs for the links of that place.
    pub(super) fn port_for_pairs(&mut self, local: SocketAddr) -> Option<u16> {
        let at = self.listeners.iter().position(|l| l.local == local && l.fd >= 0)?;
        self.mend_listener(at);
        self.listeners.get(at).filter(|l| l.cm.is_some()).map(|l| l.cm_port)
    }

    /// Those of a device that goes away.
    pub(super) fn close_managers_listeners(&mut self, device: usize) {
        let Some(verbs) = self.devices.verbs() else { return };
        for l in self.listeners.iter_mut().filter(|l| l.device == device) {
            if let Some(cm) = l.cm.take() {
                let _ = verbs.close_listener(cm);
            }
        }
    }
}

/// No TCP socket listens there: the kernel lets no other one be bound beside a listening one.
fn is_free(place: SocketAddr) -> bool {
    let fd = tcp_socket(place.ip());
    if fd < 0 {
        return false;
    }
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32);
    let free = bind(fd, place) >= 0;
    close_own(fd);
    free
}

/// Ports that the operator keeps for others (net.ipv4.ip_local_reserved_ports):
/// `8080,26379,30000-30010`.
struct Reserved(Vec<core::ops::RangeInclusive<u16>>);

impl Reserved {
    fn now() -> Reserved {
        let mut text = [0u8; 4096];
        let fd = numbers::make(|| {
            sys::open(
                b"/proc/sys/net/ipv4/ip_local_reserved_ports\0",
                libc::O_RDONLY | libc::O_CLOEXEC,
                0,
            )
        });
        if fd < 0 {
            return Reserved(Vec::new());
        }
        let n = sys::read(fd, &mut text);
        fd_table::close_internal(fd);
        Reserved::read(text.get(..n.max(0) as usize).unwrap_or(&[]))
    }

    fn read(text: &[u8]) -> Reserved {
        let text = core::str::from_utf8(text).unwrap_or("");
        let range = |part: &str| {
            let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        Reserved(text.split(',').filter_map(range).collect())
    }

    fn has(&self, port: u16) -> bool {
        self.0.iter().any(|r| r.contains(&port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_read_as_the_kernel_writes_them() {
        let some = Reserved::read(b"8080,26379,30000-30010\n");
        let of = |ports: &[u16]| ports.iter().map(|p| some.has(*p)).collect::<Vec<_>>();
        assert_eq!(of(&[8080, 26379, 30000, 30005, 30010]), [true; 5]);
        assert_eq!(of(&[8079, 26378, 29999, 30011]), [false; 4]);
        assert!(!Reserved::read(b"\n").has(0));
        assert!(!Reserved::read(b"a-b,,-,99999").has(9));
    }
}
