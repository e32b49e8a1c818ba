//! Where connections of this process go, and which processes take links there.
//!
//! A place is an address and port; what is learned of its host holds for all of its ports. The
//! first link port is asked alone: a host that does not answer there is left alone at the others as
//! well, but for one SYN to each place that was never asked. Where it answers the next three are
//! asked, nonblocking, and four more where all before them take connections, up to 32. Each try
//! ends within a time; none waits for others.

use super::link::{CONNECT_NS, Phase, Route, bind, tcp_socket};
use super::shares::PART;
use super::vain::{self, Vain};
use super::{Remote, close_own};
use crate::carrier::{self, sockaddr};
use crate::log::debug_log;
use crate::packet_policy::Asked;
use crate::reach::{self, Reach, Way};
use crate::socket::Socket;
use crate::sys;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering::Relaxed;
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Role;

/// From the port of the connections to the first one of the links.
const OFFSET: u32 = 20_000;
/// Ports that are tried at once; so many more when all of these take connections.
pub(super) const TRIED: u8 = 4;
/// Processes that can be found at one port.
pub(super) const PORTS: u8 = 32;
const _: () = assert!(PORTS as usize == vain::PORTS);
/// Where a host answers and nobody was found it is tried again: the acceptor may not have accepted
/// yet…
const AGAIN_NS: [u64; 5] = [100_000_000, 400_000_000, 1_000_000_000, 3_000_000_000, 5_000_000_000];
/// …and where it does not answer, or nobody was found at another port of it, more rarely…
const SELDOM_NS: [u64; 2] = [1_000_000_000, 5_000_000_000];
/// …and where nobody was found at so many, once.
const EMPTY: u32 = 2;
/// So long after the first try of a later round it is tried again…
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
/// A host that does not answer is asked at a port that was never asked at most so often.
const NEW_PORT_NS: u64 = 1_000_000_000;
/// With no descriptor left for another try: when there may be one again.
const ROOM_NS: u64 = 20_000_000;
/// Behind a gateway nobody is asked that is so far away, there and back: it is in the Internet, and
/// not in a network of RDMA's.
const FAR_US: u32 = 10_000;
/// Places, and hosts, that are remembered.
const DESTINATIONS: usize = 1024;
/// Routes are looked up anew after so long…
const REACH_NS: u64 = 60_000_000_000;
/// …and for packets of another length than the route's, unless that was done within so long.
const FRESH_NS: u64 = super::policy::LOOK_NS / 2;

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

/// What a port said to a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It took the connection, whoever is there.
    Taken,
    Refused,
    /// Nothing, or that there is no way.
    Silent,
}

/// A host that connections go to, from one of our addresses.
pub(super) struct Host {
    local: IpAddr,
    peer: IpAddr,
    way: Option<Way>,
    /// When it was looked at, and until when that is believed.
    looked: u64,
    reach_until: u64,
    /// A socket's packets may be so long, and not as long as the route had it: it was looked up
    /// again since. 0: none's.
    differing: u32,
    /// It has answered a SYN to a link port, if only by a refusal.
    answers: bool,
    /// A library was found at one of its ports.
    found: bool,
    /// Places of it at which nobody was found, however often they were tried.
    empty: u32,
    /// How often in a row it did not answer.
    silent: usize,
    /// Until when it is not asked anything.
    silent_until: u64,
    /// As long as it has not answered, one SYN at a time: when the last one left.
    asked_at: u64,
    /// The same, whatever was heard since.
    last_asked: u64,
    used: u64,
}

impl Host {
    fn forget_failures(&mut self) {
        (self.silent, self.silent_until, self.empty, self.reach_until) = (0, 0, 0, 0);
    }

    /// It has not answered, again.
    fn is_silent(&mut self, now: u64) {
        let pause = match SELDOM_NS.get(self.silent) {
            Some(pause) => *pause,
            None => nobody_ns(self.silent - SELDOM_NS.len()),
        };
        (self.silent, self.silent_until, self.asked_at) = (self.silent + 1, now + pause, 0);
    }

    /// When a place of it can be asked, if it cannot be now; otherwise it is. `before`: that place
    /// was asked before. One that was not may be open where the others are not, and does not wait
    /// for long.
    fn asks_later(&mut self, now: u64, before: bool) -> Option<u64> {
        if self.answers {
            return None;
        }
        // (It is heard of before the end of that.)
        let answered = self.asked_at.saturating_add(CONNECT_NS + ROOM_NS);
        let mut next = self.silent_until.max(answered);
        if !before {
            next = next.min(self.last_asked.saturating_add(NEW_PORT_NS));
        }
        if now < next {
            return Some(next);
        }
        (self.asked_at, self.last_asked) = (now, now);
        None
    }

    /// Nobody was found at so many places that it is most likely a host without the library.
    fn is_empty(&self) -> bool {
        !self.found && self.empty >= EMPTY
    }

    /// How often nobody was found at a place of it before that is believed for longer.
    fn pauses(&self) -> &'static [u64] {
        match self.empty {
            _ if self.found => &AGAIN_NS,
            0 if self.answers => &AGAIN_NS,
            // The next one has a packet at once, and one when it must have accepted.
            EMPTY.. if self.answers => SELDOM_NS.get(..1).unwrap_or(&[]),
            _ => &SELDOM_NS,
        }
    }
}

/// For how long it is believed that nobody is there when that was found so often before.
fn nobody_ns(before: usize) -> u64 {
    NOBODY_NS.saturating_mul(1 << before.min(8)).min(NOBODY_MAX_NS)
}

/// Where connections of this process go.
pub(super) struct Destination {
    local: IpAddr,
    peer: SocketAddr,
    /// When it is tried next; 0: not.
    next: u64,
    /// How often nobody was found in a row.
    tries: usize,
    /// How often that was believed for longer since.
    nobody: usize,
    /// After a pause it is tried twice: a server may have its library's port a moment after it has
    /// accepted.
    second: bool,
    /// When it was tried last.
    tried: u64,
    /// It has been sent a SYN.
    asked: bool,
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
    vain: Vain,
}

impl Destination {
    pub(super) fn forget_failures(&mut self) {
        (self.tries, self.nobody, self.nobody_until) = (0, 0, 0);
        (self.more_ns, self.other_version) = (MORE_NS, false);
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
    /// none. `Err`: nobody is there, or RDMA is not for it. `s`: the connection.
    pub(super) fn seek(
        &mut self,
        local: IpAddr,
        peer: SocketAddr,
        s: &Socket,
        asked: Asked,
    ) -> Result<(), Reason> {
        let now = sys::now_ns();
        let found = self.links.iter().flatten().any(|l| l.leads_to(local, peer) && l.is_up());
        if !found && !self.is_down(local) {
            self.device_at(local)?;
        }
        if !found && self.is_out_of_reach(local, peer.ip(), s) {
            return Err(Reason::NotInReach);
        }
        if let Some(why) = self.policy_against(local, peer.ip(), s, asked) {
            return Err(why);
        }
        let at = match self.destination(local, peer) {
            Some(at) => at,
            None => self.new_destination(local, peer),
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

    fn destination(&self, local: IpAddr, peer: SocketAddr) -> Option<usize> {
        self.destinations.iter().position(|p| p.local == local && p.peer == peer)
    }

    /// What is known of who was told stamps in vain there.
    pub(super) fn vain_at(&mut self, local: IpAddr, peer: SocketAddr) -> Option<&mut Vain> {
        let at = self.destination(local, peer)?;
        self.destinations.get_mut(at).map(|p| &mut p.vain)
    }

    fn new_destination(&mut self, local: IpAddr, peer: SocketAddr) -> usize {
        if self.destinations.len() >= DESTINATIONS {
            // One that is not being tried, if there is one; who waits for another one goes on
            // without.
            let oldest =
                self.destinations.iter().enumerate().min_by_key(|(_, p)| (p.next != 0, p.tried));
            let p = self.destinations.swap_remove(oldest.map_or(0, |(i, _)| i));
            if !self.links.iter().flatten().any(|l| l.leads_to(p.local, p.peer) && l.is_up()) {
                self.give_up_on(p.local, p.peer, p.why());
            }
        }
        self.destinations.push(Destination {
            local,
            peer,
            next: 0,
            tries: 0,
            nobody: 0,
            second: false,
            tried: 0,
            asked: false,
            more_ns: MORE_NS,
            nobody_until: 0,
            other_version: false,
            taken: 0,
            ports: 0,
            vain: Vain::default(),
        });
        self.destinations.len() - 1
    }

    /// Whether a connection of ours to there still waits for an answer.
    fn is_waited_for(&self, local: IpAddr, peer: SocketAddr) -> bool {
        let mut all = self.connected.iter();
        all.any(|(_, t, m)| t.local().ip() == local && t.peer() == peer && m.is_current())
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

    /// Asks the ports of a place to which there is no link: the first one, as long as nobody is
    /// known there, and none has taken a connection.
    fn try_destination(&mut self, at: usize) -> Result<(), Reason> {
        let now = sys::now_ns();
        let Some(p) = self.destinations.get_mut(at) else { return Ok(()) };
        (p.next, p.tried) = (0, now);
        let (local, peer, asked) = (p.local, p.peer, p.asked);
        if self.is_down(local) {
            return self.try_later(at, now + PORT_NS);
        }
        let device = self.device_at(local)?;
        let found = self.links.iter().flatten().any(|l| l.leads_to(local, peer) && l.is_up());
        let h = self.host(local, peer.ip());
        if !found && let Some(h) = h.and_then(|h| self.hosts.get_mut(h)) {
            if asked && h.silent > SELDOM_NS.len() && now < h.silent_until {
                return Err(Reason::ListenerWithoutLibrary);
            }
            if let Some(next) = h.asks_later(now, asked) {
                return self.try_later(at, next);
            }
        }
        let Some(p) = self.destinations.get_mut(at) else { return Ok(()) };
        p.asked = true;
        // (The link to one of the others may have broken before it was of use.)
        p.ports = if found || p.taken != 0 { p.ports_to_try() } else { 1 };
        let ports = p.ports;
        self.ask_ports(at, 0..ports, device)
    }

    /// Connects to those ports of a place to which there is no link.
    fn ask_ports(
        &mut self,
        at: usize,
        ports: core::ops::Range<u8>,
        device: usize,
    ) -> Result<(), Reason> {
        let Some((local, peer)) = self.destinations.get(at).map(|p| (p.local, p.peer)) else {
            return Ok(());
        };
        let is_try = |l: &&super::link::Link| {
            l.role == Role::Connector
                && matches!(l.phase, Phase::Connecting | Phase::Greeting)
                && l.broken_at == 0
        };
        let trying = self.links.iter().flatten().map(|l| &**l).filter(is_try).count();
        if trying + ports.len() > (self.shares.links_max / PART).max(PORTS.into()) {
            // None of these lasts for long.
            return self.try_later(at, sys::now_ns() + ROOM_NS);
        }
        for k in ports {
            let has = self.links.iter().flatten();
            if has.clone().any(|l| l.leads_to(local, peer) && l.k == k && l.phase != Phase::Gone) {
                continue;
            }
            let fd = tcp_socket(local);
            if fd < 0 {
                return Err(Reason::NoDescriptor);
            }
            let (raw, len) = sockaddr(SocketAddr::new(peer.ip(), link_port(peer.port(), k)));
            let route = Route { local, peer: peer.ip(), port: peer.port(), k, device };
            let ok = bind(fd, SocketAddr::new(local, 0)) >= 0
                && [0, -(libc::EINPROGRESS as isize)]
                    .contains(&sys::connect(fd, raw.get(..len).unwrap_or(&[])))
                && self.new_link(fd, Role::Connector, Phase::Connecting, route).is_some();
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
        let host = self.hosts.iter_mut().find(|h| h.local == local && h.peer == peer.ip());
        let Some(p) = self.destinations.iter_mut().find(|p| p.local == local && p.peer == peer)
        else {
            return;
        };
        if p.next != 0 {
            return;
        }
        let silent = host.as_ref().filter(|h| !h.answers && h.silent > 0);
        let pauses = host.as_ref().map_or(&AGAIN_NS[..], |h| h.pauses());
        let tries = p.tries;
        // A silent host is silent at all ports: it has a pause of its own, and only one for all.
        let again = match silent {
            Some(h) => (h.silent <= SELDOM_NS.len()).then_some(h.silent_until),
            None if p.nobody > 0 => {
                p.second = !p.second;
                p.second.then_some(now + SECOND_NS)
            }
            None => pauses.get(tries).map(|pause| now + pause),
        };
        p.tries += 1;
        if let Some(next) = again {
            let why = p.why();
            p.next = next;
            self.at(next);
            // They wait on; an operator need not.
            return self.say_of_waiting(local, peer, why);
        }
        p.nobody_until = match silent {
            Some(h) => h.silent_until,
            None => now + nobody_ns(p.nobody),
        };
        p.nobody += 1;
        let why = p.why();
        if let Some(h) = host.filter(|h| !h.found && p.nobody == 1) {
            h.empty = h.empty.saturating_add(1);
        }
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
        if let Some(h) = self.hosts.iter_mut().find(|h| h.local == local && h.peer == peer.ip()) {
            (h.found, h.empty) = (true, 0);
        }
        let Some(p) = self.destinations.iter_mut().find(|p| p.local == local && p.peer == peer)
        else {
            return;
        };
        (p.nobody, p.nobody_until, p.more_ns, p.other_version) = (0, 0, MORE_NS, false);
        // (Should its link break, it is found where it was, at whichever of the ports.)
        p.tries = 0;
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

    /// Connector: a port has answered, or has not.
    pub(super) fn port_answers(&mut self, i: usize, answer: Answer) {
        let Some((local, peer, k, device)) =
            self.link(i).map(|l| (l.local, SocketAddr::new(l.peer, l.port), l.k, l.device))
        else {
            return;
        };
        self.host_answers(local, peer.ip(), answer);
        let hosts = self.hosts.iter();
        let is_empty =
            hosts.filter(|h| h.local == local && h.peer == peer.ip()).any(Host::is_empty);
        let Some(at) = self.destination(local, peer) else { return };
        let Some(p) = self.destinations.get_mut(at) else { return };
        let bit = 1u32.checked_shl(u32::from(k)).unwrap_or(0);
        p.taken = if answer == Answer::Taken { p.taken | bit } else { p.taken & !bit };
        if p.ports == 1 && k == 0 && answer != Answer::Silent {
            // The others are looked at where somebody is at the first one, and otherwise in the
            // first two rounds (by the second the acceptor has accepted): what is there would have
            // taken the first one, unless it was taken then.
            if answer == Answer::Taken || (p.tries <= 1 && !is_empty) || p.nobody > 0 {
                p.ports = TRIED;
                let _ = self.ask_ports(at, 1..TRIED, device);
            }
        } else if p.ports > 1 && p.ports_to_try() > p.ports {
            // There may be more of them.
            p.next = sys::now_ns();
            self.timer = 1;
        }
    }

    // ---- hosts ----------------------------------------------------------------------------------

    /// What is known of a host. `None`: there is no room for it, and it is treated as one that
    /// answers.
    fn host(&mut self, local: IpAddr, peer: IpAddr) -> Option<usize> {
        let now = sys::now_ns();
        let at = self.hosts.iter().position(|h| h.local == local && h.peer == peer);
        let at = match at {
            Some(at) => at,
            None => {
                if self.hosts.len() >= DESTINATIONS {
                    let oldest = self.hosts.iter().enumerate().min_by_key(|(_, h)| h.used);
                    self.hosts.swap_remove(oldest.map_or(0, |(i, _)| i));
                }
                self.hosts.try_reserve(1).ok()?;
                self.hosts.push(Host {
                    local,
                    peer,
                    way: None,
                    looked: 0,
                    reach_until: 0,
                    differing: 0,
                    answers: false,
                    found: false,
                    empty: 0,
                    silent: 0,
                    silent_until: 0,
                    asked_at: 0,
                    last_asked: 0,
                    used: now,
                });
                self.hosts.len() - 1
            }
        };
        let h = self.hosts.get_mut(at)?;
        h.used = now;
        if now >= h.reach_until {
            (h.way, h.looked) = (Some(reach::of(local, peer)), now);
            h.reach_until = now + REACH_NS;
        }
        Some(at)
    }

    /// The way to a host.
    pub(super) fn way(&mut self, local: IpAddr, peer: IpAddr) -> Option<Way> {
        let h = self.host(local, peer)?;
        self.hosts.get(h)?.way
    }

    /// The same, of which a socket's packets, which may be `mtu` long, differ: looked up anew. (But
    /// not for each of many connections.)
    pub(super) fn way_anew(&mut self, local: IpAddr, peer: IpAddr, mtu: u32) -> Option<Way> {
        let at = self.host(local, peer)?;
        let h = self.hosts.get_mut(at)?;
        if h.differing != mtu || sys::now_ns().saturating_sub(h.looked) >= FRESH_NS {
            (h.differing, h.reach_until) = (mtu, 0);
        }
        self.way(local, peer)
    }

    /// As if the ways had been looked up in a network with that MTU.
    #[cfg(test)]
    pub(super) fn pretend_mtu(&mut self, mtu: u32) {
        self.hosts.iter_mut().filter_map(|h| h.way.as_mut()).for_each(|way| way.mtu = mtu);
    }

    /// Whether no device of ours leads to a host, or only the Internet does.
    fn is_out_of_reach(&mut self, local: IpAddr, peer: IpAddr, s: &Socket) -> bool {
        match self.way(local, peer).map_or(Reach::Near, |way| way.reach) {
            Reach::Near => false,
            // (The application may close it meanwhile: then it is another one's time, or none.)
            Reach::Routed => {
                carrier::round_trip_us(s.fd.load(Relaxed)).is_some_and(|us| us > FAR_US)
            }
            Reach::No => true,
        }
    }

    fn host_answers(&mut self, local: IpAddr, peer: IpAddr, answer: Answer) {
        let now = sys::now_ns();
        let Some(h) = self.hosts.iter_mut().find(|h| h.local == local && h.peer == peer) else {
            return;
        };
        if answer == Answer::Silent {
            // (Within the pause a new place was asked, which says nothing of the others.)
            if !h.answers && now >= h.silent_until {
                h.is_silent(now);
            }
            return;
        }
        let first = !core::mem::replace(&mut h.answers, true);
        (h.silent, h.silent_until) = (0, 0);
        if first {
            // Its other places have waited for this.
            for p in &mut self.destinations {
                if p.local == local && p.peer.ip() == peer && p.next != 0 {
                    p.next = now;
                    self.timer = 1;
                }
            }
        }
    }

    /// News of a device: what was found of hosts may be different now.
    pub(super) fn forget_failures(&mut self) {
        self.destinations.iter_mut().for_each(Destination::forget_failures);
        self.hosts.iter_mut().for_each(Host::forget_failures);
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
