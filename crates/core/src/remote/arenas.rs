//! The rings of one peer, and how large they are.

use super::net::Net;
use netacc_control::config::Config;
use netacc_rdma::arena::{Pool, Rings};

/// A ring holds so many of the configured buffers (`NACC_SOR_MSG_SIZE`), rounded up to a power of
/// two.
const RING_BUFFERS: usize = 8;
const RING_MAX: usize = 16 << 20;

/// Bytes of a ring.
pub(super) fn ring_bytes(config: &Config) -> usize {
    (config.buffer_bytes as usize)
        .saturating_mul(RING_BUFFERS)
        .clamp(netacc_rdma::arena::RING_BYTES_MIN, RING_MAX)
        .next_power_of_two()
}

/// The two sizes of a link's rings, which both ends know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) small: usize,
    pub(super) whole: usize,
}

/// The rings of one peer, and the memory that they are cut from: small ones, and whole ones.
pub(super) struct Arenas {
    pub(super) pools: [Pool<Net>; 2],
    pub(super) logged_at: u64,
}

impl Arenas {
    /// No region has more than `most` bytes.
    pub(super) fn new(sizes: Sizes, config: &Config, most: u64) -> Arenas {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let limit = most.min(config.arena_growth_max_bytes as usize);
        let pool = |ring| Pool::new(ring, config.arena_first_bytes as usize, limit);
        Arenas { pools: [pool(sizes.small), pool(sizes.whole)], logged_at: 0 }
    }

    /// Where rings of that size are.
    pub(super) fn pool(&mut self, ring: usize) -> Option<&mut Pool<Net>> {
        self.pools.iter_mut().rev().find(|p| p.ring_bytes() == ring)
    }

    /// Regions that are registered.
    pub(super) fn regions(&self) -> usize {
        self.pools.iter().map(Pool::regions).sum()
    }

    /// Bytes that are registered.
    pub(super) fn registered(&self) -> usize {
        self.pools.iter().map(Pool::registered).sum()
    }

    pub(super) fn give_back(&mut self, rings: Rings<Net>) {
        if let Some(pool) = self.pool(rings.ring_bytes()) {
            pool.give_back(rings);
        }
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
