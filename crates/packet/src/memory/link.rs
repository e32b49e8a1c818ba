//! One direction of a network.

use super::Nanos;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// What one direction does to packets. Chances are of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairment {
    /// They do not arrive.
    pub loss: u64,
    /// They arrive twice.
    pub duplicate: u64,
    /// They arrive with a bit turned.
    pub corrupt: u64,
    /// They take a detour, so that others overtake them,
    pub reorder: u64,
    /// of at most this length.
    pub detour: Nanos,
    /// How long each takes.
    pub delay: Nanos,
    /// Bytes each millisecond; 0 for any number,
    pub rate: u64,
    /// and how many may wait for that.
    pub queue: u64,
}

/// What one direction has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Packets that were sent into it.
    pub packets: u64,
    /// Those that were lost by chance,
    pub lost: u64,
    /// and for want of room.
    pub overflowed: u64,
    /// Those that arrived twice.
    pub duplicated: u64,
    /// Those that arrived with a bit turned.
    pub corrupted: u64,
    /// Those that took a detour.
    pub detours: u64,
}

/// What travels.
pub(super) trait Packet: Clone {
    fn length(&self) -> u64;
    /// Turns the bit of that number, modulo its length.
    fn corrupt(&mut self, bit: u64);
}

/// A whole packet.
#[derive(Clone, Debug)]
pub(super) struct Travelling {
    pub(super) packet: Vec<u8>,
    pub(super) checked: bool,
}

impl Packet for Travelling {
    fn length(&self) -> u64 {
        self.packet.len() as u64
    }

    /// (Of a packet whose checksum nobody looks at the first byte alone: it is not read then.)
    fn corrupt(&mut self, bit: u64) {
        let bits = if self.checked { 8 } else { self.length() * 8 };
        let bit = bit % bits.max(1);
        let at = usize::try_from(bit / 8).unwrap_or(0);
        if let Some(byte) = self.packet.get_mut(at) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

#[derive(Debug)]
pub(super) struct Link<P = Travelling> {
    does: Impairment,
    pub(super) told: Told,
    random: Random,
    free_at: Nanos,
    serial: u64,
    under_way: BTreeMap<(Nanos, u64), P>,
}

impl<P: Packet> Link<P> {
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

    pub(super) fn send(&mut self, now: Nanos, mut packet: P) {
        self.told.packets += 1;
        let mut at = now;
        if self.does.rate > 0 {
            let queued = self.free_at.saturating_sub(now) * self.does.rate / 1_000_000;
            if queued + packet.length() > self.does.queue {
                self.told.overflowed += 1;
                return;
            }
            let takes = (packet.length() * 1_000_000).div_ceil(self.does.rate);
            self.free_at = now.max(self.free_at) + takes;
            at = self.free_at;
        }
        if self.random.of_thousand(self.does.loss) {
            self.told.lost += 1;
            return;
        }
        if self.random.of_thousand(self.does.duplicate) {
            self.told.duplicated += 1;
            let later = self.random.below(self.does.delay + 1);
            self.arrives(at + later, packet.clone());
        }
        if self.random.of_thousand(self.does.corrupt) {
            self.told.corrupted += 1;
            packet.corrupt(self.random.next());
        }
        self.arrives(at, packet);
    }

    fn arrives(&mut self, mut at: Nanos, packet: P) {
        at += self.does.delay;
        if self.random.of_thousand(self.does.reorder) {
            self.told.detours += 1;
            at += self.random.below(self.does.detour + 1);
        }
        self.serial += 1;
        self.under_way.insert((at, self.serial), packet);
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn receive(&mut self, now: Nanos) -> Option<P> {
        self.next().filter(|&at| at <= now)?;
        self.under_way.pop_first().map(|(_, packet)| packet)
    }
}

/// Random numbers that a seed says (xorshift64*, Vigna, 2014).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        random
    }

    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { (self.next() >> 11) % end }
    }

    const fn of_thousand(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }
}
