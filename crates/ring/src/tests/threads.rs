//! Two real threads, the whole protocol: write, publish, announce, drain, read, give back, call for
//! room, sleep.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::vec::Vec;

use super::util::{Ring, read, write};
use crate::*;

const BYTES: u64 = if cfg!(miri) { 3_000 } else { 5_000_000 };

fn byte(pos: u64) -> u8 {
    (pos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Sends `BYTES` bytes, in pieces of all sizes, sleeping when the ring is full.
fn send(mut p: Producer, set: &ReadySet, doorbell: Sender<()>, room: Receiver<()>) {
    let size = p.size();
    let mut sent = 0u64;
    while sent < BYTES {
        let len = (sent as usize % (size + 3) + 1).min((BYTES - sent) as usize);
        let piece: Vec<u8> = (sent..).map(byte).take(len).collect();
        let n = write(&mut p, &piece).unwrap();
        sent += n as u64;
        p.publish();
        if n > 0 && set.announce(5) {
            doorbell.send(()).unwrap();
        }
        if n < len && !p.want_space(1).unwrap() {
            room.recv().unwrap();
        }
    }
}

/// Receives and checks them, sleeping when there is nothing.
fn receive(mut c: Consumer, set: &ReadySet, doorbell: &Receiver<()>, room: &Sender<()>) {
    let size = c.size() as u64;
    let mut received = 0u64;
    while received < BYTES {
        if set.drain(|slot| assert_eq!(slot, 5)) == 0 {
            set.prepare_sleep();
            if !set.is_empty() {
                if set.cancel_sleep() {
                    doorbell.recv().unwrap();
                }
                continue;
            }
            doorbell.recv().unwrap();
            continue;
        }
        loop {
            let bytes = read(&mut c, (received % (size + 5) + 1) as usize).unwrap();
            if bytes.is_empty() {
                break;
            }
            for read in bytes {
                assert_eq!(read, byte(received), "position {received}");
                received += 1;
            }
            c.publish();
            if c.take_space_request(|| {}) {
                // The sender may have gone, when this was the last piece.
                let _ = room.send(());
            }
        }
    }
}

fn transfer(size: usize) {
    let ring = Ring::new(size);
    let (p, c) = ring.ends(0);
    let set = ReadySet::default();
    let (doorbell, bell) = channel();
    let (room, room_bell) = channel();
    thread::scope(|scope| {
        let set = &set;
        scope.spawn(move || send(p, set, doorbell, room_bell));
        receive(c, set, &bell, &room);
    });
}

#[test]
fn stream_arrives_through_a_small_ring() {
    transfer(16);
}

#[test]
fn stream_arrives_through_a_ring_of_some_pages() {
    transfer(1 << 14);
}
