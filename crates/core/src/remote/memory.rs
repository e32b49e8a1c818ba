//! The memory of rings: one domain for each link, and arenas that grow; from first need to the end
//! of the link's last pair.

use super::arenas::{Arenas, Sizes, ring_bytes};
use super::link::Link;
use super::net::{self, Net};
use super::shares::Source;
use super::{Remote, devices, leave};
use crate::log::warn_of_peer;
use crate::{config, host, stats, sys};
use core::ptr::NonNull;
use netacc_control::stats::{Counter, Reason};
use netacc_rdma::arena::{GrowError, Pool, Rings};
use netacc_verbs::fabric::Fabric as _;

/// A small ring, for a connection that is one of many and has not filled it.
const SMALL_RING: usize = 8 << 10;
/// The first connections of a process have whole rings, up to so many of the largest regions.
const WHOLE_REGIONS: usize = 8;
/// A process registers no more than this part of the host's memory, whatever its limits: it is
/// locked, and peers ask for it.
const MEMORY_SHARE: u64 = 2;
/// What the connections of one host may have is so many times what they leave to the others.
const TIMES_LEFT: usize = 3;
/// Why memory cannot be had is logged no more often.
const LOG_EVERY_NS: u64 = 60_000_000_000;

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

    /// The sizes of rings on a link that has greeted.
    pub(super) fn ring_sizes(&self, i: usize) -> Sizes {
        let theirs = self.link(i).and_then(|l| l.hello).map_or(usize::MAX, |h| 1 << h.ring_log2);
        let whole = ring_bytes(config::get()).min(theirs);
        Sizes { small: SMALL_RING.min(whole), whole }
    }

    /// Acceptor: rings for one connection. Whole ones for one of the first and for one that `fills`
    /// small ones; that one would stand still on others.
    pub(super) fn take_rings(&mut self, i: usize, fills: bool) -> Result<Rings<Net>, Reason> {
        let Sizes { small, whole } = self.ring_sizes(i);
        if fills {
            return self.take_rings_of(i, whole);
        }
        if self.may_be_whole(i)
            && let Ok(rings) = self.take_rings_of(i, whole)
        {
            return Ok(rings);
        }
        self.take_rings_of(i, small)
    }

    /// Whether a connection of link `i` that has filled nothing may have whole rings: one of the
    /// first of this process may.
    pub(super) fn may_be_whole(&self, i: usize) -> bool {
        let whole = self.ring_sizes(i).whole;
        let most = (config::get().arena_growth_max_bytes as usize).saturating_mul(WHOLE_REGIONS);
        // Where little may be locked small ones are to have their part.
        let most = most.min(self.lockable() / 2);
        let pool = self.link(i).and_then(|l| l.arenas.as_ref()).and_then(|a| a.pools.last());
        let next = pool.map_or(whole * 2, Pool::next_bytes);
        let of_whole = |a: &Arenas| a.pools.last().map_or(0, Pool::registered);
        pool.is_some_and(Pool::has_free) || next <= self.left_for(i, most, of_whole)
    }

    /// Bytes that may be locked.
    fn lockable(&self) -> usize {
        let user = sys::geteuid();
        let (of, mut all) = self.locks_all.get();
        if of != user {
            // (Capabilities go with root's rights, most often.)
            all = host::may_lock_all();
            self.locks_all.set((user, all));
        }
        let limit = if all { u64::MAX } else { sys::memlock_limit() };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    /// How many bytes more the host at the other end of link `i` may have where all have no more
    /// than `limit`. Alone it has three quarters of that, so that others find something.
    fn left_for(&self, i: usize, limit: usize, of: impl Fn(&Arenas) -> usize) -> usize {
        let source = self.link(i).map(|l| Source::of(l.peer));
        let (mut all, mut own) = (0usize, 0usize);
        for l in self.links.iter().flatten() {
            let has = l.arenas.as_ref().map_or(0, &of);
            all = all.saturating_add(has);
            if Some(Source::of(l.peer)) == source {
                own = own.saturating_add(has);
            }
        }
        let left = limit.saturating_sub(all).saturating_mul(TIMES_LEFT);
        left.saturating_sub(own) / (TIMES_LEFT + 1)
    }

    /// Rings of that size for one connection.
    pub(super) fn take_rings_of(&mut self, i: usize, ring: usize) -> Result<Rings<Net>, Reason> {
        self.ensure_domain(i)?;
        let sizes = self.ring_sizes(i);
        let half = usize::try_from(sys::host_memory() / MEMORY_SHARE).unwrap_or(usize::MAX);
        let limit = half.min(self.lockable()).min(self.memory_max);
        let left = self.left_for(i, limit, Arenas::registered);
        let verbs = self.devices.verbs().ok_or(Reason::RdmaCoreMissing)?;
        let device = self.link(i).map(|l| l.device).ok_or(Reason::RdmaRefused)?;
        let facts = self.facts(device).ok_or(Reason::NoRdmaDevice)?;
        let has_region = self.has_region(device, &facts);
        let most = facts.region_bytes_max;
        let l = self.link_mut(i).ok_or(Reason::RdmaRefused)?;
        let arenas = l.arenas.get_or_insert_with(|| Arenas::new(sizes, config::get(), most));
        let pool = arenas.pool(ring).ok_or(Reason::RdmaRefused)?;
        if let Some(rings) = pool.take() {
            return Ok(rings);
        }
        if !has_region {
            return Err(Reason::ChannelFull);
        }
        let Some(domain) = l.domain.as_ref() else { return Err(Reason::RdmaRefused) };
        let mut bytes = pool.next_bytes();
        let mut why = None;
        // Where there is no room for the next region there may be for a smaller one.
        while bytes >= ring * 2 {
            why = if bytes > left {
                None
            } else {
                match grow(pool, &verbs, domain, bytes) {
                    Ok(()) => return pool.take().ok_or(Reason::NoMemory),
                    Err(e @ (GrowError::Locked { .. } | GrowError::NoMemory)) => Some(e),
                    Err(e) => {
                        why = Some(e);
                        break;
                    }
                }
            };
            bytes /= 2;
        }
        let now = sys::now_ns();
        if arenas.logged_at == 0 || now.saturating_sub(arenas.logged_at) > LOG_EVERY_NS {
            arenas.logged_at = now;
            match why {
                Some(e) => warn_of_peer!("{e}; the limit is {} bytes", sys::memlock_limit()),
                None => warn_of_peer!(
                    "the connections of a host have their share of {limit} bytes, which this process may register with RDMA devices"
                ),
            }
        }
        Err(match why {
            Some(GrowError::Locked { .. }) => Reason::MemlockLimit,
            None if limit < half => Reason::MemlockLimit,
            Some(GrowError::Refused(e)) => devices::reason_of(e),
            _ => Reason::NoMemory,
        })
    }

    pub(super) fn give_rings_back(&mut self, i: usize, rings: Rings<Net>) {
        if let Some(a) = self.link_mut(i).and_then(|l| l.arenas.as_mut()) {
            a.give_back(rings);
        }
    }

    /// What is left of a link: nobody uses any of it.
    pub(super) fn take_apart(&mut self, mut l: Link) {
        let verbs = self.devices.verbs();
        for p in l.pairs.take_all() {
            if let Some(a) = l.arenas.as_mut() {
                p.rings.into_iter().for_each(|r| a.give_back(r));
            }
        }
        close_memory(verbs, l.arenas.take(), l.domain.take());
        if let Some(c) = l.channel {
            leave::clear_channel(c);
            self.channels.push(c);
        }
    }
}

/// So many bytes more, which are mapped and registered for it.
fn grow(
    pool: &mut Pool<Net>,
    verbs: &Net,
    domain: &net::Domain,
    bytes: usize,
) -> Result<(), GrowError> {
    let memory = NonNull::new(sys::map_own(bytes)).ok_or(GrowError::NoMemory)?;
    // SAFETY: mapped just now, for this alone; unmapped when the pool hands it back.
    let grown = unsafe { pool.grow(verbs, domain, memory, bytes) };
    match grown {
        Ok(()) => {
            stats::count(Counter::RdmaRegions);
            stats::add(Counter::RdmaRegisteredBytes, bytes as u64);
        }
        // SAFETY: it was not registered.
        Err(_) => unsafe { sys::unmap(memory.as_ptr(), bytes) },
    }
    grown
}

pub(super) fn close_memory(
    verbs: Option<Net>,
    arenas: Option<Arenas>,
    domain: Option<net::Domain>,
) {
    let Some(verbs) = verbs else { return };
    for pool in arenas.into_iter().flat_map(|a| a.pools) {
        // SAFETY: the pool hands back what was mapped for it, and is done with.
        pool.close(&verbs, |at, bytes| unsafe { sys::unmap(at.as_ptr(), bytes) });
    }
    if let Some(d) = domain {
        let _ = verbs.close_domain(d);
    }
}
