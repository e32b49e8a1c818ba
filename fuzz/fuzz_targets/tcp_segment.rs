//! Bytes as packets, and as what a connection is told: no panic, nothing written outside of the
//! room, nothing sent that was not written, an end to what is sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
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

fuzz_target!(|input: &[u8]| {
    let Some((&[flags, n0, n1, n2, n3], mut rest)) = input.split_first_chunk() else { return };
    let mut connection = connection(flags & 1 == 1, u32::from_be_bytes([n0, n1, n2, n3]));
    let (mut now, mut written, mut limit) = (0_u64, 5000, ROOM);
    // A byte of time, one of length, and a packet.
    while let Some((&[time, length], behind)) = rest.split_first_chunk() {
        now += 1 << (time & 31);
        let (bytes, behind) = behind.split_at(behind.len().min(usize::from(length)));
        rest = behind;
        match time >> 5 {
            0 => {
                written += u64::from(length) * 20;
                connection.on_written(now, written, length & 1 == 1);
            }
            1 => {
                limit = connection.readable() + ROOM;
                connection.on_room(limit);
            }
            2 => {
                let _ = connection.on_timer(now);
            }
            _ => {
                let Ok(read) = packet(bytes, Checksums::Trusted) else { continue };
                let length = read.payload.len();
                let before = connection.readable();
                let verdict = connection.on_segment(now, &read.segment, length as u32);
                if let Verdict::Taken { write: Some(write) } = verdict {
                    assert!(write.skip + write.length <= length as u64);
                    assert!(write.offset >= before && write.offset + write.length <= limit);
                }
            }
        }
        for round in 0.. {
            let Some(out) = connection.poll_send(now) else { break };
            assert!(out.offset + out.length <= written && round < 1000);
        }
        assert!(connection.acknowledged() <= written && connection.readable() <= limit);
    }
    let _ = connection.give_back(now);
});
