//! What a device does to a packet on its way out: divides it, and completes checksums.

use crate::port::Frame;
use alloc::vec::Vec;
use netacc_tcp::wire::Flags;
use netacc_tcp::wire::checksum::Sum;

const SEQUENCE: usize = 4;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;

/// The packets of a frame, each whole and with its checksums. None where the frame contradicts
/// itself.
#[must_use]
pub fn segments(frame: &Frame<'_>) -> Vec<Vec<u8>> {
    let payload = frame.payload.concat();
    let size = frame.segment.max(1);
    let mut parts: Vec<&[u8]> = payload.chunks(size).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    let last = parts.len() - 1;
    let packets = parts.into_iter().enumerate();
    packets.filter_map(|(index, part)| segment(frame, (index, index == last), part)).collect()
}

fn segment(frame: &Frame<'_>, (index, last): (usize, bool), part: &[u8]) -> Option<Vec<u8>> {
    let mut packet = [frame.headers, part].concat();
    let total = packet.len();
    let (ip, tcp) = packet.split_at_mut_checked(frame.ip_header)?;
    let tcp_length = tcp.len();
    // The sum that is there is of the pseudo-header with the length of the whole.
    let header = frame.headers.len().checked_sub(frame.ip_header)?;
    let whole = header + frame.length();
    let place = tcp.get_mut(CHECKSUM..CHECKSUM + 2)?;
    let pseudo = u16::from_be_bytes([*place.first()?, *place.get(1)?]);
    let less = !u16::try_from(whole - tcp_length).ok()?;
    place.copy_from_slice(&pseudo.to_be_bytes());

    let number = tcp.get_mut(SEQUENCE..SEQUENCE + 4)?;
    let first: [u8; 4] = number.first_chunk().copied()?;
    let offset = u32::try_from(index * frame.segment).ok()?;
    number.copy_from_slice(&u32::from_be_bytes(first).wrapping_add(offset).to_be_bytes());
    let flags = tcp.get_mut(FLAGS)?;
    if !last {
        *flags &= !Flags::PSH.with(Flags::FIN).0;
    }
    if index > 0 {
        *flags &= !Flags::CWR.0;
    }
    let sum = Sum::default().bytes(&less.to_be_bytes()).bytes(tcp).checksum();
    tcp.get_mut(CHECKSUM..CHECKSUM + 2)?.copy_from_slice(&sum.to_be_bytes());

    if ip.first()? >> 4 == 6 {
        ip.get_mut(4..6)?.copy_from_slice(&u16::try_from(tcp_length).ok()?.to_be_bytes());
    } else {
        ip.get_mut(2..4)?.copy_from_slice(&u16::try_from(total).ok()?.to_be_bytes());
        ip.get_mut(10..12)?.fill(0);
        let sum = Sum::default().bytes(ip).checksum();
        ip.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
    }
    Some(packet)
}
