//! Bytes as packets, and as what a connection is told: no panic, nothing written outside of the
//! room, nothing sent that was not written, an end to what is sent. A fuzz target
//! (`fuzz/fuzz_targets/tcp_segment.rs`) and a test that says random bytes itself use it.

use netacc_tcp::wire::parse::{Checksums, packet};
use netacc_tcp::{
    Bounds, Connection, Negotiated, Parameters, ReceiveStart, SendStart, StampStart, Verdict,
    Wishes,
};

const ROOM: u64 = 50_000;

fn connection(stamps: bool, number: u32) -> Connection {
    let stamps = stamps.then_some(StampStart { value: 1000, tick: 1_000_000, recent: None });
    let parameters = Parameters {
        now: 0,
        send: SendStart {
            una: number,
            in_flight: 3000,
            queued: 5000,
            window: 30_000,
            window_max: 60_000,
            scale: 2,
            mss: 1000,
            cwnd: 10,
            ssthresh: 100,
            srtt: 1_000_000,
            rttvar: 100_000,
            rto_min: 200_000_000,
        },
        receive: ReceiveStart {
            nxt: number,
            acked: number,
            window: 40_000,
            scale: 3,
            room: ROOM,
            capacity: ROOM,
            segment: 1000,
            segment_max: 1460,
        },
        options: Negotiated { sack: true, stamps, ecn: true },
        wishes: Wishes {
            nodelay: false,
            keep_alive: None,
            user_timeout: None,
            ack_delay: 40_000_000,
        },
        bounds: Bounds { records: 32, ranges: 4, timeouts: 3, run: 4000 },
    };
    Connection::taken_over(&parameters).expect("the parameters are good")
}

/// What was shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Packets.
    pub packets: u64,
    /// Those that could be read, and so were segments for the connection.
    pub segments: u64,
    /// Those of them that the connection took.
    pub taken: u64,
    /// Bytes that were to be written.
    pub bytes: u64,
    /// Segments that it sent.
    pub sent: u64,
    /// Connections that ended as the kernel's.
    pub given_back: u64,
}

/// A byte of flags, a number; then again and again what is done and how long the packet is, in
/// three bytes, and the packet.
pub fn drive(input: &[u8], seen: &mut Seen) {
    let Some((&[flags, n0, n1, n2, n3], mut rest)) = input.split_first_chunk() else { return };
    let mut connection = connection(flags & 1 == 1, u32::from_be_bytes([n0, n1, n2, n3]));
    let (mut now, mut written, mut limit) = (0_u64, 5000, ROOM);
    while let Some((&[time, l0, l1], behind)) = rest.split_first_chunk() {
        now += 1 << (time & 31);
        let length = usize::from(u16::from_be_bytes([l0, l1]) % 2048);
        let (bytes, behind) = behind.split_at(behind.len().min(length));
        rest = behind;
        match time >> 5 {
            0 => {
                written += length as u64 * 8;
                connection.on_written(now, written, l0 & 128 != 0);
            }
            1 => {
                limit = connection.readable() + ROOM;
                connection.on_room(limit);
            }
            2 => {
                let _ = connection.on_timer(now);
                connection.on_waiting();
            }
            _ => {
                seen.packets += 1;
                let Ok(read) = packet(bytes, Checksums::Trusted) else { continue };
                seen.segments += 1;
                let length = read.payload.len() as u64;
                let before = connection.readable();
                let verdict = connection.on_segment(now, &read.segment, length as u32);
                if let Verdict::Taken { write } = verdict {
                    seen.taken += 1;
                    if let Some(write) = write {
                        assert!(write.skip + write.length <= length);
                        assert!(write.offset >= before && write.offset + write.length <= limit);
                        seen.bytes += write.length;
                    }
                }
            }
        }
        for round in 0.. {
            let Some(out) = connection.poll_send(now) else { break };
            assert!(out.offset + out.length <= written && round < 1000);
            assert!(out.length == 0 || out.offset >= connection.acknowledged());
            seen.sent += 1;
        }
        assert!(connection.acknowledged() <= written && connection.readable() <= limit);
    }
    seen.given_back += u64::from(connection.over().is_some());
    let repair = connection.give_back(now);
    assert!(repair.send_from <= repair.send_sent && repair.send_sent <= repair.send_to);
    assert!(repair.send_to == written && repair.receive_to <= limit);
}
