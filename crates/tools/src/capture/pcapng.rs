//! Writes pcapng (draft-ietf-opsawg-pcapng): a section, an interface for each process, packets with
//! comments, and at the end what each interface has counted.

use std::io::{self, Write};

/// Packets begin with their IP header.
const LINKTYPE_RAW: u16 = 101;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

const OPTION_COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
const STATISTICS_BEGIN: u16 = 2;
const STATISTICS_END: u16 = 3;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;
/// Times are in nanoseconds.
const NANOSECONDS: u8 = 9;

/// A file that is being written.
#[derive(Debug)]
pub struct Pcapng<W> {
    out: W,
    interfaces: u32,
    /// So many bytes of a packet are kept.
    snap: u32,
}

/// What an interface has counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// When it began, in nanoseconds of Unix.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Packets written.
    pub received: u64,
    /// Gaps.
    pub dropped: u64,
}

impl<W: Write> Pcapng<W> {
    /// Begins a file; of each packet `snap` bytes are kept.
    pub fn begin(out: W, snap: u32, application: &str) -> io::Result<Pcapng<W>> {
        let mut body = Vec::new();
        body.extend(BYTE_ORDER.to_le_bytes());
        // Version 1.0, and a length that is not known.
        body.extend([1, 0, 0, 0]);
        body.extend(u64::MAX.to_le_bytes());
        option(&mut body, SECTION_APPLICATION, application.as_bytes());
        let mut file = Pcapng { out, interfaces: 0, snap };
        file.block(SECTION, body)?;
        Ok(file)
    }

    /// One more interface; its number.
    pub fn interface(&mut self, name: &str, description: &str) -> io::Result<u32> {
        let mut body = Vec::new();
        body.extend(LINKTYPE_RAW.to_le_bytes());
        body.extend([0, 0]);
        body.extend(self.snap.to_le_bytes());
        option(&mut body, INTERFACE_NAME, name.as_bytes());
        option(&mut body, INTERFACE_DESCRIPTION, description.as_bytes());
        option(&mut body, INTERFACE_RESOLUTION, &[NANOSECONDS]);
        self.block(INTERFACE, body)?;
        let number = self.interfaces;
        self.interfaces += 1;
        Ok(number)
    }

    /// A packet, with a comment unless that is empty.
    pub fn packet(
        &mut self,
        interface: u32,
        time_ns: u64,
        packet: &[u8],
        comment: &str,
    ) -> io::Result<()> {
        let kept = packet.get(..self.snap as usize).unwrap_or(packet);
        let mut body = Vec::with_capacity(kept.len() + comment.len() + 64);
        body.extend(interface.to_le_bytes());
        body.extend(time(time_ns));
        body.extend((kept.len() as u32).to_le_bytes());
        body.extend((packet.len() as u32).to_le_bytes());
        body.extend(kept);
        pad(&mut body);
        option(&mut body, OPTION_COMMENT, comment.as_bytes());
        self.block(PACKET, body)
    }

    /// What an interface has counted so far.
    pub fn statistics(&mut self, interface: u32, counts: Counts, comment: &str) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend(interface.to_le_bytes());
        body.extend(time(counts.end_ns));
        option(&mut body, OPTION_COMMENT, comment.as_bytes());
        option(&mut body, STATISTICS_BEGIN, &time(counts.begin_ns));
        option(&mut body, STATISTICS_END, &time(counts.end_ns));
        option(&mut body, STATISTICS_RECEIVED, &counts.received.to_le_bytes());
        option(&mut body, STATISTICS_DROPPED, &counts.dropped.to_le_bytes());
        self.block(STATISTICS, body)
    }

    /// Hands on what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// A block, whose options are ended here.
    fn block(&mut self, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
        body.extend([0; 4]);
        let length = (body.len() as u32 + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(&body)?;
        self.out.write_all(&length)
    }
}

fn time(ns: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((ns >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(ns as u32).to_le_bytes());
    bytes
}

/// Adds an option, unless it says nothing.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    if value.is_empty() {
        return;
    }
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a file: kind and body.
    fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut all = Vec::new();
        let word =
            |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        while !file.is_empty() {
            let length = word(file, 4) as usize;
            assert_eq!((length % 4, word(file, length - 4) as usize), (0, length));
            all.push((word(file, 0), file[8..length - 4].to_vec()));
            file = &file[length..];
        }
        all
    }

    #[test]
    fn a_file_is_made_of_whole_blocks() {
        let mut out = Vec::new();
        let mut file = Pcapng::begin(&mut out, 10, "netacc").unwrap();
        assert_eq!(file.interface("a", "b").unwrap(), 0);
        assert_eq!(file.interface("c", "").unwrap(), 1);
        file.packet(1, 5 << 32 | 7, b"abcdefghijklmno", "héllo").unwrap();
        file.packet(0, 0, b"abc", "").unwrap();
        file.statistics(1, Counts { received: 2, dropped: 1, ..Counts::default() }, "x").unwrap();
        file.flush().unwrap();
        let all = blocks(&out);
        let kinds: Vec<u32> = all.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION, INTERFACE, INTERFACE, PACKET, PACKET, STATISTICS]);
        let packet = &all[3].1;
        assert_eq!(packet[..20], [1, 0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 10, 0, 0, 0, 15, 0, 0, 0]);
        assert_eq!(&packet[20..32], b"abcdefghij\0\0", "cut to what is kept, and padded");
        assert_eq!(packet[32..36], [1, 0, 6, 0]);
        assert_eq!(all[4].1[16..], [3, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0, 0]);
    }
}
