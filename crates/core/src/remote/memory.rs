//! The memory of rings: one domain for each link, and arenas that grow; from first need to the end
//! of the link's last pair.

use super::links::Link;
use super::net::{self, Net};
use super::{Remote, devices, leave};
use crate::log::warn_of_peer;
use crate::{config, stats, sys};
use core::ptr::NonNull;
use netacc_control::config::Config;
use netacc_control::stats::{Counter, Reason};
use netacc_rdma::arena::{GrowError, Pool, Rings};
use netacc_verbs::fabric::Fabric as _;

/// A ring holds so many of the configured buffers (`NACC_SOR_MSG_SIZE`), rounded up to a power of
/// two.
const RING_BUFFERS: usize = 8;
const RING_MAX: usize = 16 << 20;
/// A process registers no more than this part of the host's memory, whatever its limits: it is
/// locked, and peers ask for it.
const MEMORY_SHARE: u64 = 2;
/// Why memory cannot be had is logged no more often.
const LOG_EVERY_NS: u64 = 60_000_000_000;

/// Bytes of a ring.
pub(super) fn ring_bytes(config: &Config) -> usize {
    (config.buffer_bytes as usize)
        .saturating_mul(RING_BUFFERS)
        .clamp(netacc_rdma::arena::RING_BYTES_MIN, RING_MAX)
        .next_power_of_two()
}

/// The rings of one peer, and the memory that they are cut from.
pub(super) struct Arenas {
    pub(super) pool: Pool<Net>,
    logged_at: u64,
}

impl Remote {
    /// The memory of a device that is gone is given up as soon as nobody uses it.
    pub(super) fn renew_memory(&mut self, i: usize) {
        let verbs = self.devices.verbs();
        if let Some(l) = self.link_mut(i).filter(|l| {
            l.stale
                && !l.in_use()
                && l.pairs.iter().all(|p| p.engine.is_none() && p.rings.is_empty())
        }) {
            l.stale = false;
            close_memory(verbs, l.arenas.take(), l.domain.take());
        }
    }

    pub(super) fn ensure_domain(&mut self, i: usize) -> Result<(), Reason> {
        self.renew_memory(i);
        if self.link(i).is_some_and(|l| l.stale) {
            return Err(Reason::NoRdmaDevice);
        }
        let verbs = self.devices.verbs().ok_or(Reason::RdmaCoreMissing)?;
        let l = self.link(i).ok_or(Reason::RdmaRefused)?;
        if l.domain.is_none() {
            let device = self
                .devices
                .list
                .get(l.device)
                .and_then(|d| d.device.as_ref())
                .ok_or(Reason::NoRdmaDevice)?;
            let domain = verbs.open_domain(device).map_err(devices::reason_of)?;
            self.link_mut(i).ok_or(Reason::RdmaRefused)?.domain = Some(domain);
        }
        Ok(())
    }

    /// Rings for one connection.
    pub(super) fn take_rings(&mut self, i: usize) -> Result<Rings<Net>, Reason> {
        let verbs = self.devices.verbs().ok_or(Reason::RdmaCoreMissing)?;
        self.ensure_domain(i)?;
        let config = config::get();
        let registered: usize = self
            .links
            .iter()
            .flatten()
            .filter_map(|l| l.arenas.as_ref())
            .map(|a| a.pool.registered())
            .sum();
        let l = self.link_mut(i).ok_or(Reason::RdmaRefused)?;
        let theirs = l.hello.map_or(usize::MAX, |h| 1 << h.ring_log2);
        let ring = ring_bytes(config).min(theirs);
        let arenas = l.arenas.get_or_insert_with(|| Arenas {
            pool: Pool::new(
                ring,
                config.arena_first_bytes as usize,
                config.arena_growth_max_bytes as usize,
            ),
            logged_at: 0,
        });
        if let Some(rings) = arenas.pool.take() {
            return Ok(rings);
        }
        let bytes = arenas.pool.next_bytes();
        if registered.saturating_add(bytes) as u64 > sys::host_memory() / MEMORY_SHARE {
            let now = sys::now_ns();
            if arenas.logged_at == 0 || now.saturating_sub(arenas.logged_at) > LOG_EVERY_NS {
                arenas.logged_at = now;
                warn_of_peer!(
                    "{registered} bytes are registered with RDMA devices: a process may lock half of the host's memory for them"
                );
            }
            return Err(Reason::NoMemory);
        }
        let memory = NonNull::new(sys::map_own(bytes)).ok_or(Reason::NoMemory)?;
        let Some(domain) = l.domain.as_ref() else { return Err(Reason::RdmaRefused) };
        // SAFETY: mapped just now, for this alone; unmapped when the pool hands it back.
        match unsafe { arenas.pool.grow(&verbs, domain, memory, bytes) } {
            Ok(()) => {
                stats::count(Counter::RdmaRegions);
                stats::add(Counter::RdmaRegisteredBytes, bytes as u64);
                arenas.pool.take().ok_or(Reason::NoMemory)
            }
            Err(e) => {
                // SAFETY: it was not registered.
                unsafe { sys::unmap(memory.as_ptr(), bytes) };
                let now = sys::now_ns();
                if arenas.logged_at == 0 || now.saturating_sub(arenas.logged_at) > LOG_EVERY_NS {
                    arenas.logged_at = now;
                    warn_of_peer!("{e}; the limit is {} bytes", sys::memlock_limit());
                }
                Err(match e {
                    GrowError::Locked { .. } => Reason::MemlockLimit,
                    GrowError::Refused(e) => devices::reason_of(e),
                    _ => Reason::NoMemory,
                })
            }
        }
    }

    pub(super) fn give_rings_back(&mut self, i: usize, rings: Rings<Net>) {
        if let Some(a) = self.link_mut(i).and_then(|l| l.arenas.as_mut()) {
            a.pool.give_back(rings);
        }
    }

    /// What is left of a link: nobody uses any of it.
    pub(super) fn take_apart(&mut self, mut l: Link) {
        let verbs = self.devices.verbs();
        for p in l.pairs.take_all() {
            if let Some(a) = l.arenas.as_mut() {
                p.rings.into_iter().for_each(|r| a.pool.give_back(r));
            }
        }
        close_memory(verbs, l.arenas.take(), l.domain.take());
        if let Some(c) = l.channel {
            leave::clear_channel(c);
            self.channels.push(c);
        }
    }
}

pub(super) fn close_memory(
    verbs: Option<Net>,
    arenas: Option<Arenas>,
    domain: Option<net::Domain>,
) {
    let Some(verbs) = verbs else { return };
    if let Some(a) = arenas {
        // SAFETY: the pool hands back what was mapped for it, and is done with.
        a.pool.close(&verbs, |at, bytes| unsafe { sys::unmap(at.as_ptr(), bytes) });
    }
    if let Some(d) = domain {
        let _ = verbs.close_domain(d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_power_of_two_of_at_least_eight_buffers() {
        let with = |buffer_bytes| ring_bytes(&Config { buffer_bytes, ..Config::default() });
        assert_eq!([with(4096), with(16384), with(20480)], [32768, 131_072, 262_144]);
        assert_eq!(with(1 << 30), RING_MAX);
    }
}
