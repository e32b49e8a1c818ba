//! A network in memory under a virtual clock: it loses, reorders, duplicates, corrupts, delays,
//! throttles and marks.

use super::random::Random;
use crate::Nanos;
use crate::wire::checksum::Sum;
use std::collections::BTreeMap;
use std::vec::Vec;

/// What one direction does to packets. Chances are of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Impairment {
    pub(super) loss: u64,
    pub(super) duplicate: u64,
    pub(super) corrupt: u64,
    pub(super) reorder: u64,
    /// How long each packet takes, and how much longer one that is reordered may.
    pub(super) delay: Nanos,
    pub(super) detour: Nanos,
    /// Bytes each millisecond, 0 for any number; and how many wait before more are thrown away.
    pub(super) rate: u64,
    pub(super) queue: u64,
    /// Packets are marked (CE) instead when half of the queue is full, if they may be.
    pub(super) marks: bool,
}

/// What a direction has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) overflowed: u64,
    pub(super) corrupted: u64,
    pub(super) marked: u64,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) does: Impairment,
    pub(super) told: Told,
    random: Random,
    free_at: Nanos,
    serial: u64,
    under_way: BTreeMap<(Nanos, u64), Vec<u8>>,
}

impl Link {
    pub(super) fn new(does: Impairment, seed: u64) -> Self {
        Self {
            does,
            told: Told::default(),
            random: Random::new(seed),
            free_at: 0,
            serial: 0,
            under_way: BTreeMap::new(),
        }
    }

    pub(super) fn send(&mut self, now: Nanos, mut packet: Vec<u8>) {
        self.told.packets += 1;
        self.told.bytes += packet.len() as u64;
        let mut at = now;
        if self.does.rate > 0 {
            let waits = self.free_at.saturating_sub(now);
            let queued = waits * self.does.rate / 1_000_000;
            if queued + packet.len() as u64 > self.does.queue {
                self.told.overflowed += 1;
                return;
            }
            if self.does.marks && queued > self.does.queue / 2 && mark(&mut packet) {
                self.told.marked += 1;
            }
            self.free_at =
                now.max(self.free_at) + (packet.len() as u64 * 1_000_000).div_ceil(self.does.rate);
            at = self.free_at;
        }
        if self.random.of_thousand(self.does.loss) {
            self.told.lost += 1;
            return;
        }
        if self.random.of_thousand(self.does.duplicate) {
            let later = self.random.below(self.does.delay + 1);
            self.arrives(at + later, packet.clone());
        }
        if self.random.of_thousand(self.does.corrupt) {
            self.told.corrupted += 1;
            let bit = self.random.below(packet.len() as u64 * 8) as usize;
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        self.arrives(at, packet);
    }

    fn arrives(&mut self, mut at: Nanos, packet: Vec<u8>) {
        at += self.does.delay;
        if self.random.of_thousand(self.does.reorder) {
            at += self.random.below(self.does.detour + 1);
        }
        self.serial += 1;
        self.under_way.insert((at, self.serial), packet);
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn receive(&mut self, now: Nanos) -> Option<Vec<u8>> {
        if self.next()? > now {
            return None;
        }
        self.under_way.pop_first().map(|(_, packet)| packet)
    }
}

/// Says CE, where the packet says ECT.
fn mark(packet: &mut [u8]) -> bool {
    if packet[0] >> 4 == 6 {
        let can = packet[1] & 0x30 != 0;
        packet[1] |= if can { 0x30 } else { 0 };
        return can;
    }
    let can = packet[1] & 3 != 0;
    if can {
        packet[1] |= 3;
        packet[10..12].fill(0);
        let sum = Sum::default().bytes(&packet[..20]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    can
}
