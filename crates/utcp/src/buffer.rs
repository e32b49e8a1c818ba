//! The bytes of one direction, by their place in the stream.

use netacc_packet::shared::{Mapping, PAGE};

/// A ring of bytes. A place of the stream is always at the same place of the memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Mapping,
}

impl Buffer {
    /// How much memory one for so many bytes takes: a power of two.
    pub(crate) fn size(capacity: usize) -> Option<usize> {
        capacity.max(PAGE).checked_next_power_of_two()
    }

    /// In memory whose length is a power of two.
    pub(crate) const fn new(memory: Mapping) -> Self {
        Self { memory }
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.memory.bytes().len() as u64
    }

    fn place(&self, at: u64) -> usize {
        // (A power of two, so the remainder fits.)
        usize::try_from(at & (self.capacity() - 1)).unwrap_or(0)
    }

    /// Puts bytes there, as many as the whole buffer has at most.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        let from = self.place(at);
        let (first, rest) = bytes.split_at(bytes.len().min(self.memory.bytes().len() - from));
        let to = [(from, first), (0, rest)];
        for (from, part) in to {
            if let Some(place) = self.memory.bytes_mut().get_mut(from..from + part.len()) {
                place.copy_from_slice(part);
            }
        }
    }

    /// Where so many bytes from there on belong, in two parts.
    pub(crate) fn place_for(&mut self, at: u64, length: u64) -> [&mut [u8]; 2] {
        let from = self.place(at);
        let memory = self.memory.bytes_mut();
        let length = usize::try_from(length).unwrap_or(0).min(memory.len());
        let first = length.min(memory.len() - from);
        let (before, behind) = memory.split_at_mut(from);
        [
            behind.get_mut(..first).unwrap_or(&mut []),
            before.get_mut(..length - first).unwrap_or(&mut []),
        ]
    }

    /// So many bytes from there on, in two parts.
    pub(crate) fn get(&self, at: u64, length: u64) -> [&[u8]; 2] {
        let from = self.place(at);
        let memory = self.memory.bytes();
        let length = usize::try_from(length).unwrap_or(0).min(memory.len());
        let first = length.min(memory.len() - from);
        let part = |from, length| memory.get(from..from + length).unwrap_or(&[]);
        [part(from, first), part(0, length - first)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn what_was_put_is_there_also_around_the_end() {
        let mut buffer = Buffer::new(Mapping::new(16).unwrap());
        assert_eq!(buffer.capacity(), 16);
        assert_eq!(Buffer::size(PAGE + 1), Some(2 * PAGE));
        for at in (0..100).chain(u64::MAX - 100..u64::MAX - 20) {
            for length in 0..=16 {
                let bytes: std::vec::Vec<u8> =
                    (0..length).map(|n| (at as u8).wrapping_add(n)).collect();
                buffer.put(at, &bytes);
                assert_eq!(buffer.get(at, u64::from(length)).concat(), bytes);
                for part in buffer.place_for(at, u64::from(length)) {
                    part.fill(7);
                }
                assert_eq!(buffer.get(at, u64::from(length)).concat(), vec![7; length.into()]);
            }
        }
    }
}
