//! A file of a trace, written as the library lays it out.

use netacc_control::trace::{
    EVENT_BYTES, Event, HEADER_BYTES, Header, MAGIC, RING_BYTES, RING_HEAD_BYTES, Ring, State,
    VERSION, write_table,
};
use std::mem::offset_of;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Of a killed process: its own ring, and one connection with long addresses and every event.
pub fn bytes() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + 2 * RING_BYTES];
    let mut table = String::new();
    write_table(&mut |text| table.push_str(text));
    put(&mut bytes, offset_of!(Header, magic), &MAGIC.to_le_bytes());
    for (at, value) in [
        (offset_of!(Header, version), VERSION as usize),
        (offset_of!(Header, header_bytes), HEADER_BYTES),
        (offset_of!(Header, ring_bytes), RING_BYTES),
        (offset_of!(Header, ring_head_bytes), RING_HEAD_BYTES),
        (offset_of!(Header, rings), 2),
        (offset_of!(Header, pid), 4711),
        (offset_of!(Header, table_at), offset_of!(Header, table)),
        (offset_of!(Header, table_bytes), table.len()),
        (offset_of!(Header, events_first), netacc_control::trace::EVENTS_FIRST),
    ] {
        put(&mut bytes, at, &(value as u32).to_le_bytes());
    }
    put(&mut bytes, offset_of!(Header, program), b"a-long-program");
    put(&mut bytes, offset_of!(Header, table), table.as_bytes());
    for ring in 0..2 {
        let at = HEADER_BYTES + ring * RING_BYTES;
        let events = Event::ALL.iter().take(20);
        put(&mut bytes, at + offset_of!(Ring, head), &(events.len() as u64).to_le_bytes());
        for (offset, value) in [
            (offset_of!(Ring, state), State::Open as u32),
            (offset_of!(Ring, fd), 7),
            (offset_of!(Ring, family), 10),
            (offset_of!(Ring, local_port), 65535),
            (offset_of!(Ring, peer_port), 65534),
        ] {
            put(&mut bytes, at + offset, &value.to_le_bytes());
        }
        put(&mut bytes, at + offset_of!(Ring, number), &(ring as u64).to_le_bytes());
        put(&mut bytes, at + offset_of!(Ring, local_addr), &[0x20; 16]);
        put(&mut bytes, at + offset_of!(Ring, peer_addr), &[0x30; 16]);
        for (index, event) in events.enumerate() {
            let at = at + RING_HEAD_BYTES + index * EVENT_BYTES;
            let first = ((index as u64) << 8) | u64::from(*event as u8);
            put(&mut bytes, at, &first.to_le_bytes());
            put(&mut bytes, at + 8, &u64::MAX.to_le_bytes());
        }
    }
    bytes
}
