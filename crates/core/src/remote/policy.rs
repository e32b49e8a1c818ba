//! Whether the kernel does something with a connection's packets that a device would not: by the
//! ways that lead to the peer, and what the connection's socket says ([`crate::policy`]).

use super::Remote;
use crate::policy::{self, Asked};
use crate::{config, sys};
use core::net::IpAddr;
use netacc_control::stats::Reason;

/// What was looked up within so long is not looked up again.
const FRESH_NS: u64 = 1_000_000_000;

impl Remote {
    /// Why packets of a connection are not a device's to carry, if they are not: the kernel wraps
    /// them, or sends them elsewhere.
    pub(super) fn policy_against(
        &mut self,
        local: IpAddr,
        peer: IpAddr,
        asked: Asked,
    ) -> Option<Reason> {
        if !config::get().kernel_policy {
            return None;
        }
        let (mut way, looked) = self.way(local, peer)?;
        if way.differs(asked.mtu) && sys::now_ns().saturating_sub(looked) > FRESH_NS {
            // Another route since, or news of another MTU on it.
            (way, _) = self.way_anew(local, peer)?;
        }
        match asked.interface {
            _ if way.encrypts || way.differs(asked.mtu) => Some(Reason::Ipsec),
            _ if way.in_vrf => Some(Reason::KernelPolicy),
            0 => None,
            bound => (bound != way.interface).then_some(Reason::KernelPolicy),
        }
    }

    /// A policy may be made, or a route changed, when connections are on RDMA already. The link's
    /// own packets tell of it: looked at when something has come on it, once a second at most.
    pub(super) fn watch_policy(&mut self, i: usize) {
        let now = sys::now_ns();
        let Some(l) = self.link_mut(i).filter(|l| l.is_up() && now >= l.policy_at) else { return };
        l.policy_at = now + FRESH_NS;
        let (fd, local, peer) = (l.fd, l.local, l.peer);
        let asked = policy::of(fd, local).unwrap_or(Asked::NOTHING);
        let why = self.policy_against(local, peer, asked);
        let Some(l) = self.link_mut(i) else { return };
        let before = core::mem::replace(&mut l.policy, why);
        let (Some(why), None) = (why, before) else { return };
        // They ask for an agreement anew: each socket says whether its own packets are concerned.
        let Some(channel) = l.channel else { return };
        for slot in 0..l.conns.len() {
            if l.conns.get(slot).is_some_and(|c| c.slot.is_live()) {
                channel.far.take_back(slot, why, true);
            }
        }
    }
}
