//! Where connections of this process go, and which processes take links there: four ports are tried
//! at once, nonblocking, and four more where all before them take connections, up to 32.

use super::links::{Phase, bind, tcp_socket};
use super::{LINKS, Remote, close_own};
use crate::carrier::sockaddr;
use crate::log::debug_log;
use crate::sys;
use core::net::{IpAddr, SocketAddr};
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Role;

/// From the port of the connections to the first one of the links.
const OFFSET: u32 = 20_000;
/// Ports that are tried at once; so many more when all of these take connections.
pub(super) const TRIED: u8 = 4;
/// Processes that can be found at one port.
pub(super) const PORTS: u8 = 32;
/// Where nobody was found it is tried again: the acceptor may not have accepted yet…
const AGAIN_NS: [u64; 5] = [100_000_000, 400_000_000, 1_000_000_000, 3_000_000_000, 5_000_000_000];
/// …so long after the first try of a later round…
const SECOND_NS: u64 = 1_000_000_000;
/// …and when others connect after so long, doubled each time.
const NOBODY_NS: u64 = 10_000_000_000;
const NOBODY_MAX_NS: u64 = 300_000_000_000;
/// As long as connections to a place wait for an answer, its other ports are tried: after so long,
/// then more and more rarely, up to that.
const MORE_NS: u64 = 100_000_000;
const MORE_MAX_NS: u64 = 60_000_000_000;
/// While the device's port is down nothing is tried; whether it still is is looked at every so
/// long.
const PORT_NS: u64 = 1_000_000_000;
/// Ports that are tried at the same time; other places wait, so that they do not push each other,
/// or links that are up, out of the table.
const TRYING: usize = LINKS / 2;
/// Places that are remembered.
const DESTINATIONS: usize = 1024;

/// Where programs listen that run beside one whose port is 20000 below, and may start after it:
/// Redis Sentinel (6379), RabbitMQ's nodes (5672), Kafka (9092), MongoDB (7017 to 7019).
const NEIGHBOURS: [u16; 6] = [26379, 25672, 29092, 27017, 27018, 27019];

/// The `k`th port of the links for connections to `port`.
pub(super) fn link_port(port: u16, k: u8) -> u16 {
    let wrapped = |at: u32| (if at > 65_535 { at - 2 * OFFSET } else { at }) as u16;
    let first = u32::from(port) + OFFSET;
    let mut ports = (first..).map(wrapped).filter(|p| !NEIGHBOURS.contains(p));
    ports.nth(usize::from(k)).unwrap_or(0)
}

/// Where connections of this process go.
pub(super) struct Destination {
    local: IpAddr,
    peer: SocketAddr,
    /// When it is tried next; 0: not.
    next: u64,
    /// How often nobody was found in a row.
    tries: usize,
    /// After a pause it is tried twice: a server may have its library's port a moment after it has
    /// accepted.
    second: bool,
    /// When it was tried last.
    tried: u64,
    /// With a link there: for how long its other ports are left alone after that.
    more_ns: u64,
    /// Nobody is there: until when that is believed.
    nobody_until: u64,
    /// Somebody is, whose library is another version.
    other_version: bool,
    /// Bits of the ports that took a connection when they were last tried, whoever is there.
    taken: u32,
    /// How many ports were tried last.
    ports: u8,
}

impl Destination {
    pub(super) fn forget_failures(&mut self) {
        (self.tries, self.nobody_until, self.more_ns, self.other_version) = (0, 0, MORE_NS, false);
    }

    /// The ports to try: four more whenever all before them are taken.
    fn ports_to_try(&self) -> u8 {
        let mut ports = TRIED;
        while ports < PORTS && self.taken.trailing_ones() >= u32::from(ports) {
            ports += TRIED;
        }
        ports
    }

    fn why(&self) -> Reason {
        if self.other_version { Reason::VersionMismatch } else { Reason::ListenerWithoutLibrary }
    }
}

impl Remote {
    /// A connection of ours goes to `peer`: links to all who accept there are made, if there are
    /// none. `Err`: nobody is there.
    pub(super) fn seek(&mut self, local: IpAddr, peer: SocketAddr) -> Result<(), Reason> {
        let now = sys::now_ns();
        let found = self.links.iter().flatten().any(|l| l.leads_to(local, peer) && l.is_up());
        let at = self.destinations.iter().position(|p| p.local == local && p.peer == peer);
        let at = match at {
            Some(at) => at,
            None => {
                if self.destinations.len() >= DESTINATIONS {
                    // One that is not being tried, if there is one; who waits for another one goes
                    // on without.
                    let oldest = self
                        .destinations
                        .iter()
                        .enumerate()
                        .min_by_key(|(_, p)| (p.next != 0, p.tried))
                        .map_or(0, |(i, _)| i);
                    let p = self.destinations.swap_remove(oldest);
                    if !self
                        .links
                        .iter()
                        .flatten()
                        .any(|l| l.leads_to(p.local, p.peer) && l.is_up())
                    {
                        self.give_up_on(p.local, p.peer, p.why());
                    }
                }
                self.destinations.push(Destination {
                    local,
                    peer,
                    next: 0,
                    tries: 0,
                    second: false,
                    tried: 0,
                    more_ns: MORE_NS,
                    nobody_until: 0,
                    other_version: false,
                    taken: 0,
                    ports: 0,
                });
                self.destinations.len() - 1
            }
        };
        let Some(p) = self.destinations.get_mut(at) else { return Ok(()) };
        if !found && now < p.nobody_until {
            return Err(p.why());
        }
        if p.next != 0 {
            return Ok(());
        }
        if found {
            // If nobody has answered by then, the process that accepted it has another port.
            p.next = (now + MORE_NS).max(p.tried.saturating_add(p.more_ns));
            let next = p.next;
            self.at(next);
            return Ok(());
        }
        p.next = now;
        if p.nobody_until == 0 {
            p.tries = 0;
        }
        self.try_destination(at)
    }

    /// Whether a connection of ours to there still waits for an answer.
    fn is_waited_for(&self, local: IpAddr, peer: SocketAddr) -> bool {
        let mut at = self.connected.oldest();
        while let Some(key) = at {
            at = self.connected.after(key);
            if self
                .connected
                .get(key)
                .is_some_and(|(t, m)| t.local().ip() == local && t.peer() == peer && m.is_current())
            {
                return true;
            }
        }
        false
    }

    /// It is time to look at a place (again).
    fn look_at_destination(&mut self, at: usize) {
        let now = sys::now_ns();
        let Some((local, peer)) = self.destinations.get(at).map(|p| (p.local, p.peer)) else {
            return;
        };
        let found = self.links.iter().flatten().any(|l| l.leads_to(local, peer) && l.is_up());
        // (While a port is down nothing comes of it, and who waits is looked for each time.)
        let wanted = (!found && !self.is_down(local)) || self.is_waited_for(local, peer);
        let Some(p) = self.destinations.get_mut(at) else { return };
        p.next = 0;
        if !wanted {
            return;
        }
        if let Err(why) = self.try_destination(at) {
            return self.give_up_on(local, peer, why);
        }
        if let Some(p) = self.destinations.get_mut(at).filter(|_| found) {
            p.next = now + p.more_ns;
            p.more_ns = p.more_ns.saturating_mul(2).min(MORE_MAX_NS);
            let next = p.next;
            self.at(next);
        }
    }

    fn try_later(&mut self, at: usize, next: u64) -> Result<(), Reason> {
        if let Some(p) = self.destinations.get_mut(at) {
            p.next = next;
        }
        self.at(next);
        Ok(())
    }

    /// Connects to the ports of a place to which there is no link.
    fn try_destination(&mut self, at: usize) -> Result<(), Reason> {
        let now = sys::now_ns();
        let Some(p) = self.destinations.get_mut(at) else { return Ok(()) };
        let ports = p.ports_to_try();
        (p.next, p.tried, p.ports) = (0, now, ports);
        let (local, peer) = (p.local, p.peer);
        if self.is_down(local) {
            return self.try_later(at, now + PORT_NS);
        }
        let device = self.device_at(local)?;
        let trying = self
            .links
            .iter()
            .flatten()
            .filter(|l| {
                l.role == Role::Connector && matches!(l.phase, Phase::Connecting | Phase::Greeting)
            })
            .count();
        if trying + usize::from(ports) > TRYING {
            return self.try_later(at, now + MORE_NS);
        }
        for k in 0..ports {
            if self
                .links
                .iter()
                .flatten()
                .any(|l| l.leads_to(local, peer) && l.k == k && l.phase != Phase::Gone)
            {
                continue;
            }
            let fd = tcp_socket(local);
            if fd < 0 {
                return Err(Reason::NoDescriptor);
            }
            let (raw, len) = sockaddr(SocketAddr::new(peer.ip(), link_port(peer.port(), k)));
            let ok = bind(fd, SocketAddr::new(local, 0)) >= 0
                && [0, -(libc::EINPROGRESS as isize)]
                    .contains(&sys::connect(fd, raw.get(..len).unwrap_or(&[])))
                && self
                    .new_link(
                        fd,
                        Role::Connector,
                        Phase::Connecting,
                        local,
                        peer.ip(),
                        peer.port(),
                        k,
                        device,
                    )
                    .is_some();
            if !ok {
                close_own(fd);
            }
        }
        self.settle_destination(local, peer);
        Ok(())
    }

    /// An attempt has ended: if it was the last one, and nobody was found, it is tried again, or
    /// given up.
    fn settle_destination(&mut self, local: IpAddr, peer: SocketAddr) {
        if self.links.iter().flatten().any(|l| l.leads_to(local, peer) && l.phase != Phase::Gone) {
            return;
        }
        let now = sys::now_ns();
        let Some(p) = self.destinations.iter_mut().find(|p| p.local == local && p.peer == peer)
        else {
            return;
        };
        if p.next != 0 {
            return;
        }
        let tries = p.tries;
        p.second = !p.second && tries > AGAIN_NS.len();
        if p.second {
            p.next = now + SECOND_NS;
            let next = p.next;
            return self.at(next);
        }
        p.tries += 1;
        if let Some(pause) = AGAIN_NS.get(tries) {
            p.next = now + pause;
            let next = p.next;
            self.at(next);
            return;
        }
        p.nobody_until =
            now + NOBODY_NS.saturating_mul(1 << (tries - AGAIN_NS.len()).min(8)).min(NOBODY_MAX_NS);
        let why = p.why();
        debug_log!(
            "{peer}: ports {} to {}: {}",
            link_port(peer.port(), 0),
            link_port(peer.port(), TRIED - 1),
            why.name()
        );
        self.give_up_on(local, peer, why);
    }

    pub(super) fn time_destinations(&mut self) {
        let now = sys::now_ns();
        for i in 0..self.destinations.len() {
            match self.destinations.get(i).map_or(0, |p| p.next) {
                0 => {}
                next if next <= now => self.look_at_destination(i),
                next => self.at(next),
            }
        }
    }

    /// A process was found at a place.
    pub(super) fn destination_is_found(&mut self, local: IpAddr, peer: SocketAddr) {
        let Some(p) = self.destinations.iter_mut().find(|p| p.local == local && p.peer == peer)
        else {
            return;
        };
        (p.nobody_until, p.more_ns, p.other_version) = (0, MORE_NS, false);
        if p.next == 0 {
            // The connections may be another one's.
            p.next = sys::now_ns() + MORE_NS;
            let next = p.next;
            self.at(next);
        }
    }

    /// An attempt has failed, or a link has ended, which was of use or not.
    pub(super) fn destination_is_lost(
        &mut self,
        local: IpAddr,
        peer: SocketAddr,
        was_of_use: bool,
        other_version: bool,
    ) {
        if let Some(p) = self.destinations.iter_mut().find(|p| p.local == local && p.peer == peer) {
            if was_of_use {
                // The process may have a successor.
                p.forget_failures();
            }
            p.other_version |= other_version;
        }
        self.settle_destination(local, peer);
    }

    /// Connector: a port took a connection, or did not.
    pub(super) fn port_is_taken(&mut self, i: usize, taken: bool) {
        let Some((local, peer, k)) =
            self.link(i).map(|l| (l.local, SocketAddr::new(l.peer, l.port), l.k))
        else {
            return;
        };
        let Some(p) = self.destinations.iter_mut().find(|p| p.local == local && p.peer == peer)
        else {
            return;
        };
        let bit = 1u32.checked_shl(u32::from(k)).unwrap_or(0);
        p.taken = if taken { p.taken | bit } else { p.taken & !bit };
        if p.ports_to_try() > p.ports {
            // There may be more of them.
            p.next = sys::now_ns();
            self.timer = 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may fail loudly")]
mod tests {
    use super::*;

    #[test]
    fn ports_are_those_of_the_convention_and_never_wrap_to_nothing() {
        let of = |port| [0, 1, 2, 3].map(|k| link_port(port, k));
        assert_eq!(of(7000), [27000, 27001, 27002, 27003]);
        assert_eq!(of(6379), [26380, 26381, 26382, 26383], "Sentinel's is left to it");
        assert_eq!(of(7016), [27016, 27020, 27021, 27022]);
        assert_eq!(link_port(45535, 0), 65535);
        assert_eq!(link_port(45535, 1), 25536, "above 65535: 40000 less");
        for port in 1..=u16::MAX {
            for k in 0..PORTS {
                let at = link_port(port, k);
                assert!(at >= OFFSET as u16 && at != port, "{port} and {k}: {at}");
            }
        }
    }
}
