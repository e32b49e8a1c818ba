//! Streams of known bytes, the clock, and the device that connections are taken over on.

use crate::world::address;
use netacc_packet::{Device, route};
use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds since this program's first look.
pub fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    u64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_nanos()).unwrap() + 1
}

/// Random numbers that a seed says.
pub struct Random(pub u64);

impl Random {
    /// Less than that.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }
}

/// The byte at that place of a stream.
pub fn byte(seed: u64, at: u64) -> u8 {
    ((at ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u8
}

pub fn bytes(seed: u64, at: u64, length: u64) -> Vec<u8> {
    (at..at + length).map(|at| byte(seed, at)).collect()
}

pub fn check(seed: u64, at: u64, got: &[u8]) {
    if got != bytes(seed, at, got.len() as u64) {
        let wrong = got.iter().zip(at..).find(|(got, at)| **got != byte(seed, *at));
        panic!("not the byte that was sent: {wrong:?}, read from {at} on");
    }
}

/// The device of the namespace. None: not on this machine; it has been said why.
pub fn device(interface: u32, v6: bool) -> Option<Device> {
    let (own, peer) = (address(true, v6), address(false, v6));
    let route = route::find(own, peer).expect("the peer is a neighbour");
    assert_eq!(route.interface, interface);
    match Device::open(interface, route.own, 64) {
        Ok(device) => Some(device),
        Err(why) => {
            eprintln!("skipped: {why:?}");
            None
        }
    }
}
