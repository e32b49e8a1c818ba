//! Whether the kernel does something with a connection's packets that a device would not: by the
//! ways that lead to the peer, and what the connection's socket says ([`crate::packet_policy`]).

use super::Remote;
use super::link::{Link, Packets};
use crate::packet_policy::{self, Asked};
use crate::socket::Socket;
use crate::tuple_table::Key;
use crate::{config, sys};
use core::net::IpAddr;
use core::sync::atomic::Ordering::Relaxed;
use netacc_control::stats::Reason;

/// While connections are on RDMA their link's packets are looked at so often.
pub(super) const LOOK_NS: u64 = 1_000_000_000;

#[cfg(test)]
std::thread_local! {
    /// How long packets of links may be, in a test's thread.
    pub(super) static PRETENDED_MTU: core::cell::Cell<Option<u32>> =
        const { core::cell::Cell::new(None) };
}

fn mtu_of(l: &Link) -> u32 {
    #[cfg(test)]
    if let Some(mtu) = PRETENDED_MTU.get() {
        return mtu;
    }
    packet_policy::mtu_of(l.fd, l.local)
}

impl Remote {
    /// Why packets of a connection are not a device's to carry, if they are not: the kernel wraps
    /// them, or sends them elsewhere.
    pub(super) fn policy_against(
        &mut self,
        local: IpAddr,
        peer: IpAddr,
        s: &Socket,
        asked: Asked,
    ) -> Option<Reason> {
        if !config::get().kernel_policy {
            return None;
        }
        let fd = s.fd.load(Relaxed);
        // (The program may close it meanwhile: then its number is another one's, or nobody's.)
        let is_wrapped =
            self.is_wrapped((local, peer), asked.mtu, || packet_policy::mtu_of(fd, local));
        let way = self.way(local, peer)?;
        let is_free = [0, way.out].contains(&asked.interface);
        match asked.interface {
            _ if way.encrypts || (is_wrapped && is_free) => Some(Reason::Ipsec),
            _ if way.in_vrf || way.unseen => Some(Reason::KernelPolicy),
            0 => None,
            bound => (bound != way.interface).then_some(Reason::KernelPolicy),
        }
    }

    /// The same of an accepted connection that somebody claims, if it was not looked at before.
    pub(super) fn policy_against_accepted(&mut self, key: Key) -> Option<Reason> {
        let m = self.accepted.get_mut(key).filter(|m| !m.looked)?;
        m.looked = true;
        let (s, asked) = (m.socket, m.asked);
        let (local, peer) = self.accepted.get(key).map(|(t, _)| (t.local().ip(), t.peer().ip()))?;
        self.policy_against(local, peer, s, asked)
    }

    /// Whether packets that may be `mtu` long are other than those of the route, also when both are
    /// looked at anew: a route may have changed, or news have come of another MTU on it.
    fn is_wrapped(
        &mut self,
        (local, peer): (IpAddr, IpAddr),
        mtu: u32,
        again: impl Fn() -> u32,
    ) -> bool {
        let differs = |way: Option<crate::reach::Way>, mtu| way.is_some_and(|w| w.differs(mtu));
        if !differs(self.way(local, peer), mtu) {
            return false;
        }
        let way = self.way_anew(local, peer, mtu);
        let now = match again() {
            0 => mtu,
            now => now,
        };
        differs(way, now)
    }

    /// A connection is on RDMA.
    pub(super) fn watch_policy(&mut self) {
        if self.policy_at == 0 && config::get().kernel_policy {
            self.policy_at = sys::now_ns() + LOOK_NS;
            self.at(self.policy_at);
        }
    }

    /// A policy may be made, or a route changed, when connections are on RDMA already. The link's
    /// own packets tell of it, when one has left since: each look sends one for the next.
    pub(super) fn time_policy(&mut self) {
        let now = sys::now_ns();
        if self.policy_at != 0 && self.policy_at <= now {
            self.policy_at = 0;
            for i in 0..self.links.len() {
                if self.link(i).is_some_and(|l| l.conns.iter().any(|c| c.slot.is_live())) {
                    self.policy_at = now + LOOK_NS;
                    self.look_at_packets(i);
                    self.ask_anything(i);
                }
            }
        }
        if self.policy_at != 0 {
            self.at(self.policy_at);
        }
    }

    /// As long as they are what they were nothing is looked up.
    fn look_at_packets(&mut self, i: usize) {
        let Some(l) = self.link(i).filter(|l| l.is_up()) else { return };
        let (mtu, way, Packets { mtu: known, differed }) =
            (mtu_of(l), (l.local, l.peer), l.packets);
        let is_news = mtu != known && mtu != 0;
        let differs = is_news && self.is_wrapped(way, mtu, || mtu);
        // All of its connections are concerned: one look is not enough.
        let is_verdict = differs && differed;
        let Some(l) = self.link_mut(i) else { return };
        l.packets = Packets {
            mtu: if is_news && differs == is_verdict { mtu } else { known },
            differed: differs && !is_verdict,
        };
        let Some(channel) = l.channel.filter(|_| is_verdict) else { return };
        // They ask for an agreement anew: each socket says whether its own packets are concerned.
        for (slot, _) in l.conns.iter().enumerate().filter(|(_, c)| c.slot.is_live()) {
            channel.far.demote(slot, Reason::Ipsec, true);
        }
    }
}
