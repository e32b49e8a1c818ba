//! A peer that sends anything at all, and bytes that are nothing: no panic, nothing written that
//! is readable or beyond the room, nothing sent that was not written, memory that is bounded.

use super::random::Random;
use super::script::{Script, parameters};
use crate::wire::emit::{Checksum, HEADERS_MAX, Service, headers};
use crate::wire::parse::{Checksums, packet};
use crate::wire::{Blocks, Endpoint, Flags, Flow, Options, Segment, Stamps};
use crate::{Connection, Verdict};
use std::vec::Vec;

/// A number that is near where something is, or anywhere.
fn near(random: &mut Random, of: u32) -> u32 {
    match random.below(8) {
        0 => random.next() as u32,
        1 => of.wrapping_add(1 << 31),
        2 => of.wrapping_sub(random.below(100_000) as u32),
        3 => of,
        _ => of.wrapping_add(random.below(40_000) as u32),
    }
}

fn segment(random: &mut Random, seq: u32, ack: u32) -> Segment {
    let mut sack = Blocks::default();
    for _ in 0..random.below(5) {
        let from = near(random, ack);
        sack.push(from, near(random, from));
    }
    // Mostly what is no reason to give the connection back.
    let flags = match random.below(200) {
        0 => Flags(random.next() as u8),
        1..30 => Flags::ACK.with(Flags(random.below(256) as u8 & 0xc2)),
        _ => Flags::ACK.with(Flags(random.below(256) as u8 & 0xc8)),
    };
    let stamps = Stamps { value: near(random, 1000), echo: near(random, 2000) };
    Segment {
        seq: near(random, seq),
        ack: near(random, ack),
        flags,
        window: if random.below(3) == 0 { 0 } else { random.next() as u16 },
        options: Options { stamps: Some(stamps), sack, foreign: random.below(500) == 0 },
        congested: random.below(10) == 0,
    }
}

#[test]
fn a_peer_that_says_anything() {
    let mut given_back = 0;
    for seed in 1..400 {
        let mut random = Random::new(seed);
        let mut parameters = parameters();
        parameters.options.ecn = true;
        parameters.bounds.timeouts = 5;
        parameters.options.stamps =
            Some(crate::StampStart { value: 2000, tick: 1_000_000, recent: None });
        let mut script = Script::of(&parameters);
        let (mut now, mut written, mut limit) = (0, 0, parameters.receive.room);
        for _ in 0..400 {
            now += random.scaled(31);
            let connection = &mut script.connection;
            let before = (connection.acknowledged(), connection.readable());
            match random.below(5) {
                0 => {
                    written += random.below(20_000);
                    connection.on_written(now, written, random.below(4) == 0);
                    limit = connection.readable() + parameters.receive.room;
                    connection.on_room(limit);
                }
                1 => {
                    let _ = connection.on_timer(now);
                }
                _ => {
                    let nxt = 5000_u32.wrapping_add(before.1 as u32);
                    let una = 1000_u32.wrapping_add(before.0 as u32);
                    let length = random.below(3) * random.below(5000);
                    let segment = segment(&mut random, nxt, una);
                    let verdict = connection.on_segment(now, &segment, length as u32);
                    if let Verdict::Taken { write: Some(write) } = verdict {
                        assert!(write.skip + write.length <= length);
                        assert!(write.offset >= before.1 && write.offset + write.length <= limit);
                    }
                }
            }
            let mut sent = 0;
            while let Some(out) = connection.poll_send(now) {
                assert!(out.offset + out.length <= written);
                assert!(out.length == 0 || out.offset >= connection.acknowledged());
                sent += 1;
                assert!(sent < 10_000, "no end of segments");
            }
            assert!(connection.acknowledged() >= before.0 && connection.readable() >= before.1);
            assert!(connection.acknowledged() <= written && connection.readable() <= limit);
            connection.check();
            if connection.over().is_some() {
                given_back += 1;
                break;
            }
        }
        let _ = script.connection.give_back(now);
    }
    assert!((50..390).contains(&given_back), "{given_back}: the seeds show little");
}

/// Parameters that nobody should give: refused, or borne.
#[test]
fn parameters_that_say_anything() {
    for seed in 1..3000 {
        let mut random = Random::new(seed);
        let mut any = || if random.below(2) == 0 { random.next() } else { random.below(3000) };
        let mut parameters = parameters();
        let send = &mut parameters.send;
        (send.una, send.in_flight, send.queued) = (any() as u32, any() as u32, any() as u32);
        (send.window, send.window_max) = (any() as u32, any() as u32);
        (send.scale, send.mss, send.cwnd) = (any() as u8 % 17, any() as u16, any() as u32);
        (send.ssthresh, send.srtt, send.rttvar) = (any() as u32, any(), any());
        send.rto_min = any();
        let receive = &mut parameters.receive;
        (receive.nxt, receive.window) = (any() as u32, any() as u32);
        receive.acked = receive.nxt.wrapping_sub(any() as u32);
        (receive.room, receive.capacity) = (any() >> 2, any() >> 2);
        (receive.segment, receive.segment_max) = (any() as u16, any() as u16);
        parameters.wishes.ack_delay = any();
        parameters.bounds.run = any() as u32;
        let Ok(mut connection) = Connection::taken_over(&parameters) else { continue };
        let queued = u64::from(parameters.send.queued);
        for round in 0..20 {
            let now = any() >> (60 - round * 3);
            connection.on_written(now, queued + any() % 5000, false);
            let _ = connection.on_timer(now);
            for _ in 0..50 {
                let _ = connection.poll_send(now);
            }
            connection.check();
        }
    }
}

/// Bytes of valid packets with some changed, and bytes that are none. A million take a second
/// where the code is optimised, and some more where it is not.
#[test]
fn packets_that_are_none() {
    let mut random = Random::new(7);
    let end = |address: &str| Endpoint { address: address.parse().unwrap(), port: 80 };
    let mut valid = Vec::new();
    for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        for _ in 0..20 {
            let flow = Flow { source: end(from), destination: end(to) };
            let service = Service { hops: 64, class: 0, ecn_capable: true, flow_label: 1 };
            let (payload, mut out) = ([7; 30], [0; HEADERS_MAX]);
            let segment = segment(&mut random, 5, 6);
            let here = Checksum::Here(&payload);
            let length = headers((&flow, &service), &segment, 30, here, &mut out).unwrap();
            valid.push([&out[..length], &payload].concat());
        }
    }
    let mut read = 0;
    let mut room = [0; HEADERS_MAX + 30];
    for round in 0..1_000_000_u64 {
        let base = &valid[random.below(valid.len() as u64) as usize];
        let bytes = &mut room[..base.len()];
        bytes.copy_from_slice(base);
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        let length = bytes.len() - if round % 4 == 0 { random.below(60) as usize } else { 0 };
        let bytes = &bytes[..length];
        if let Ok(packet) = packet(bytes, Checksums::Trusted) {
            read += 1;
            assert!(packet.payload.len() <= bytes.len());
            assert!(packet.segment.options.sack.len() <= 4);
        }
    }
    assert!(read > 300_000, "{read}");
}
