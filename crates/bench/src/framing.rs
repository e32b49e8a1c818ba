//! Fixed-size messages in a byte stream; the first 8 bytes are a sequence number, so that a lost,
//! doubled or reordered answer is noticed and no figure comes from a wrong exchange.

const SEQUENCE_BYTES: usize = 8;

/// Cuts a stream into messages of one size.
#[derive(Debug)]
pub(crate) struct Framer {
    size: usize,
    /// `0 <= position < size`: bytes of the current message already seen.
    position: usize,
    head: [u8; SEQUENCE_BYTES],
}

impl Framer {
    pub(crate) fn new(size: usize) -> Self {
        assert!(size >= SEQUENCE_BYTES);
        Self { size, position: 0, head: [0; SEQUENCE_BYTES] }
    }

    /// Takes the next bytes of the stream; calls `on_message` with the sequence number of each
    /// completed message.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut on_message: impl FnMut(u64)) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(self.size - self.position));
            if self.position < SEQUENCE_BYTES {
                let n = now.len().min(SEQUENCE_BYTES - self.position);
                self.head[self.position..self.position + n].copy_from_slice(&now[..n]);
            }
            self.position += now.len();
            if self.position == self.size {
                self.position = 0;
                on_message(u64::from_le_bytes(self.head));
            }
            bytes = rest;
        }
    }
}

/// Appends a message of `size` bytes.
pub(crate) fn append(out: &mut Vec<u8>, size: usize, sequence: u64) {
    let end = out.len() + size;
    out.extend_from_slice(&sequence.to_le_bytes());
    out.resize(end, 0x5a);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_messages() {
        for size in [8, 9, 64] {
            let mut stream = Vec::new();
            for sequence in 0..20 {
                append(&mut stream, size, sequence * 0x0102_0304_0506);
            }
            assert_eq!(stream.len(), 20 * size);
            for cut in [1, 3, 7, 8, 9, 63, 64, 65, stream.len()] {
                let mut framer = Framer::new(size);
                let mut seen = Vec::new();
                for piece in stream.chunks(cut) {
                    framer.push(piece, |sequence| seen.push(sequence));
                }
                assert!(
                    seen.iter().copied().eq((0..20).map(|n| n * 0x0102_0304_0506)),
                    "size {size}, cut {cut}"
                );
            }
        }
    }
}
