//! The bytes of one direction, by their place in the stream.

use alloc::vec::Vec;

/// A ring of bytes. A place of the stream is always at the same place of the memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
}

impl Buffer {
    /// For so many bytes; nothing where there is no memory.
    pub(crate) fn new(capacity: usize) -> Option<Self> {
        let size = capacity.max(1).checked_next_power_of_two()?;
        let mut memory = Vec::new();
        memory.try_reserve_exact(size).ok()?;
        memory.resize(size, 0);
        Some(Self { memory })
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.memory.len() as u64
    }

    fn place(&self, at: u64) -> usize {
        // (A power of two, so the remainder fits.)
        usize::try_from(at & (self.capacity() - 1)).unwrap_or(0)
    }

    /// Puts bytes there, as many as the whole buffer has at most.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        let from = self.place(at);
        let (first, rest) = bytes.split_at(bytes.len().min(self.memory.len() - from));
        let to = [(from, first), (0, rest)];
        for (from, part) in to {
            if let Some(place) = self.memory.get_mut(from..from + part.len()) {
                place.copy_from_slice(part);
            }
        }
    }

    /// So many bytes from there on, in two parts.
    pub(crate) fn get(&self, at: u64, length: u64) -> [&[u8]; 2] {
        let from = self.place(at);
        let length = usize::try_from(length).unwrap_or(0).min(self.memory.len());
        let first = length.min(self.memory.len() - from);
        let part = |from, length| self.memory.get(from..from + length).unwrap_or(&[]);
        [part(from, first), part(0, length - first)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_there_also_around_the_end() {
        let mut buffer = Buffer::new(10).unwrap();
        assert_eq!(buffer.capacity(), 16);
        for at in (0..100).chain(u64::MAX - 100..u64::MAX - 20) {
            for length in 0..=16 {
                let bytes: Vec<u8> = (0..length).map(|n| (at as u8).wrapping_add(n)).collect();
                buffer.put(at, &bytes);
                assert_eq!(buffer.get(at, u64::from(length)).concat(), bytes);
            }
        }
    }
}
