//! Each behaviour of the ends of a ring, the ready set and the lock, one thread.

use core::sync::atomic::Ordering::Relaxed;
use std::vec;

use super::util::{Ring, copy_out, peek, read, write};
use crate::*;

#[test]
fn written_bytes_are_invisible_until_published() {
    let ring = Ring::new(64);
    let (mut p, mut c) = ring.ends(1000);
    assert_eq!(write(&mut p, b"hello "), Ok(6));
    assert_eq!(write(&mut p, b"world"), Ok(5));
    assert_eq!((p.unpublished(), p.tail()), (11, 1011));
    assert!(!c.peek_published());
    assert_eq!(c.available(), Ok(0));
    p.publish();
    assert!(c.peek_published());
    assert_eq!(peek(&mut c, 6, 100).unwrap(), b"world");
    assert_eq!(read(&mut c, 100).unwrap(), b"hello world");
    assert_eq!(c.head(), 1011);
    assert_eq!(p.in_flight(), Ok(11));
    c.publish();
    assert_eq!(p.in_flight(), Ok(0));
}

#[test]
fn what_a_dead_producer_held_back_is_there() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(70);
    // Nothing was ever held back, or not since.
    assert_eq!(c.take_held(), Ok(0));
    write(&mut p, b"ab").unwrap();
    p.hold();
    assert!(!c.peek_published());
    assert_eq!(c.refresh(), Ok(0));
    write(&mut p, b"cd").unwrap();
    p.publish();
    assert_eq!(c.take_held(), Ok(4));
    assert_eq!(read(&mut c, 8).unwrap(), b"abcd");
    c.publish();
    // At another base, and over the end of the buffer.
    write(&mut p, b"efghij").unwrap();
    p.publish();
    assert_eq!(read(&mut c, 5).unwrap(), b"efghi");
    c.publish();
    write(&mut p, b"klm").unwrap();
    p.hold();
    assert_eq!(c.refresh(), Ok(1));
    assert_eq!(c.take_held(), Ok(4));
    assert!(c.peek_published());
    assert_eq!(c.refresh(), Ok(4));
    assert_eq!(read(&mut c, 8).unwrap(), b"jklm");
    assert_eq!(c.head(), 83);
}

#[test]
fn what_a_producer_cannot_have_held_back_is_refused() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(0);
    write(&mut p, b"abc").unwrap();
    p.publish();
    assert_eq!(c.refresh(), Ok(3));
    for held in [9, 1 << 62, u64::MAX >> 1] {
        ring.words().held.store(held, Relaxed);
        assert_eq!(c.take_held(), Err(PeerCorrupt), "{held}");
    }
    for held in [0, 3, u64::MAX] {
        ring.words().held.store(held, Relaxed);
        assert_eq!(c.take_held(), Ok(3), "{held}");
    }
    ring.words().held.store(8, Relaxed);
    assert_eq!(c.take_held(), Ok(8));
}

#[test]
fn full_ring_takes_no_more_and_goes_on_after_a_read() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(0);
    assert_eq!(write(&mut p, b"0123456789"), Ok(8));
    p.publish();
    assert_eq!(p.free(), Ok(0));
    assert_eq!(write(&mut p, b"x"), Ok(0));
    assert_eq!(read(&mut c, 3).unwrap(), b"012");
    assert_eq!(p.free(), Ok(0));
    c.publish();
    assert_eq!(write(&mut p, b"abcd"), Ok(3));
    p.publish();
    assert_eq!(read(&mut c, 100).unwrap(), b"34567abc");
}

#[test]
fn read_shorter_than_asked_means_that_no_more_was_published() {
    let ring = Ring::new(64);
    let (mut p, mut c) = ring.ends(0);
    write(&mut p, b"ab").unwrap();
    p.publish();
    assert_eq!(c.available(), Ok(2));
    write(&mut p, b"cd").unwrap();
    p.publish();
    assert_eq!(read(&mut c, 10).unwrap(), b"abcd");
}

#[test]
fn answered_messages_stay_on_the_first_page() {
    let ring = Ring::new(1 << 16);
    let (mut p, mut c) = ring.ends(0);
    for round in 0..5000u64 {
        let message = [round as u8; 100];
        assert_eq!(write(&mut p, &message), Ok(100));
        p.publish();
        let base = ring.words().base.load(Relaxed);
        assert!(round * 100 + 100 - base <= 4096, "round {round} base {base}");
        assert_eq!(read(&mut c, 1000).unwrap(), message);
        c.publish();
    }
}

#[test]
fn unread_bytes_can_be_copied_out_again() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(500);
    write(&mut p, b"01234567").unwrap();
    p.publish();
    read(&mut c, 5).unwrap();
    c.publish();
    assert_eq!(p.in_flight(), Ok(3));
    write(&mut p, b"abc").unwrap();
    assert_eq!(copy_out(&p, 505, 100), b"567abc");
    assert_eq!(copy_out(&p, 506, 2), b"67");
    assert_eq!(copy_out(&p, 504, 100), b"");
    assert_eq!(copy_out(&p, 511, 100), b"");
    assert_eq!(copy_out(&p, 512, 100), b"");
}

#[test]
fn a_producer_that_has_moved_keeps_what_is_unread_and_shows_nothing_more() {
    for unread in [0usize, 3, 8] {
        let (ring, larger) = (Ring::new(8), Ring::new(32));
        let (mut p, mut c) = ring.ends(500);
        write(&mut p, b"vwxyz").unwrap();
        p.publish();
        read(&mut c, 5).unwrap();
        c.publish();
        write(&mut p, &b"01234567"[..unread]).unwrap();
        p.publish();
        let (words, data, size) = larger.memory();
        // SAFETY: both live to the end of the test.
        assert!(unsafe { p.move_to(words, data, size) });
        let all = &b"01234567abcdefghijklmnopqrstuvwxyz"[8 - unread..];
        let all = if unread == 3 { &b"012abcdefghijklmnopqrstuvwxyz"[..] } else { all };
        let rest = &all[unread..];
        let took = write(&mut p, rest).unwrap();
        assert_eq!(took, rest.len().min(32 - unread));
        p.publish();
        assert_eq!(copy_out(&p, 505, 100), &all[..unread + took]);
        // The consumer finds what it was told of; and what it has read is known.
        assert_eq!(read(&mut c, 100).unwrap(), &all[..unread]);
        c.publish();
        assert_eq!(p.in_flight(), Ok(took));
        assert_eq!(p.tail(), 505 + (unread + took) as u64);
        assert_eq!(copy_out(&p, 505 + unread as u64, 100), &rest[..took]);
        assert_eq!(write(&mut p, &[b'-'; 32]), Ok(32 - took));
        // SAFETY: as above.
        assert!(!unsafe { p.move_to(words, data, 16) }, "to a smaller one");
    }
}

#[test]
fn skip_consumes_and_continue_at_renumbers() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(0);
    write(&mut p, b"0123").unwrap();
    p.publish();
    assert_eq!(c.skip(3), Ok(3));
    assert_eq!(c.skip(3), Ok(1));
    p.continue_at(u64::MAX);
    c.continue_at(u64::MAX);
    write(&mut p, b"ab").unwrap();
    assert_eq!((p.tail(), c.head()), (1, u64::MAX));
}

#[test]
fn words_out_of_range_are_reported() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(0);
    write(&mut p, b"0123").unwrap();
    p.publish();
    ring.words().head.store(5, Relaxed);
    assert_eq!(p.in_flight(), Err(PeerCorrupt));
    ring.words().head.store(u64::MAX, Relaxed);
    assert_eq!(p.in_flight(), Err(PeerCorrupt));
    ring.words().tail.store(9, Relaxed);
    assert_eq!(c.available(), Err(PeerCorrupt));
    ring.words().tail.store(8, Relaxed);
    assert_eq!(c.refresh(), Ok(8));
    ring.words().tail.store(7, Relaxed);
    assert_eq!(c.refresh(), Err(PeerCorrupt));
}

#[test]
fn blocked_writer_is_called_once_at_half() {
    let ring = Ring::new(8);
    let (mut p, mut c) = ring.ends(0);
    write(&mut p, b"01234567").unwrap();
    p.publish();
    assert_eq!(p.want_space(100), Ok(false));
    for (len, call) in [(1, false), (2, false), (1, true), (1, false), (3, false)] {
        read(&mut c, len).unwrap();
        c.publish();
        assert_eq!(c.take_space_request(|| {}), call);
    }
    assert_eq!(p.want_space(100), Ok(true));
    assert_eq!(ring.words().space_wanted.load(Relaxed), 0);
}

#[test]
fn announced_slots_are_drained_once() {
    let set = ReadySet::default();
    assert!(set.is_empty());
    assert!(!set.announce(0));
    assert!(!set.announce(4095));
    assert!(!set.announce(70));
    assert!(!set.announce(70));
    let mut slots = vec![];
    assert_eq!(set.drain(|slot| slots.push(slot)), 3);
    assert_eq!(slots, [0, 70, 4095]);
    assert_eq!(set.drain(|_| unreachable!()), 0);
}

#[test]
fn one_sender_is_elected_to_ring() {
    let set = ReadySet::default();
    set.prepare_sleep();
    assert!(set.announce(1));
    assert!(!set.announce(2));
    assert!(!set.wake_only());
    assert!(set.cancel_sleep());
    set.prepare_sleep();
    assert!(!set.cancel_sleep());
    assert!(!set.wake_only());
}

#[test]
fn news_is_stamped_where_others_stand() {
    let set = ReadySet::default();
    let announce = |slot: u16| {
        let mut stamped = None;
        let _ = set.announce_in_order(slot, |all| stamped = Some(all));
        stamped
    };
    let drained = || {
        let mut slots = vec![];
        set.drain(|slot| slots.push(slot));
        slots
    };
    // The first needs none, whatever comes later; who stands there keeps his place.
    assert_eq!(announce(70), None);
    assert_eq!(announce(71), Some(false));
    assert_eq!(announce(3), Some(false));
    assert_eq!(announce(71), None);
    assert_eq!(announce(70), None);
    assert_eq!(drained(), [3, 70, 71]);
    assert_eq!(announce(3), None);
    assert_eq!(drained(), [3]);
    set.want_stamps(true);
    assert_eq!(announce(5), Some(true));
    assert_eq!(announce(5), None);
    assert_eq!(drained(), [5]);
    set.want_stamps(false);
    assert_eq!(announce(5), None);
}

#[test]
fn hostile_ready_set_costs_at_most_a_call_per_slot() {
    // SAFETY: any bytes are a valid ReadySet.
    let set: ReadySet = unsafe { core::mem::transmute([0xffu8; size_of::<ReadySet>()]) };
    let mut seen = [false; SLOTS_MAX];
    assert_eq!(set.drain(|slot| seen[usize::from(slot)] = true), SLOTS_MAX);
    assert!(seen.iter().all(|&seen| seen));
}

#[test]
fn lock_reports_its_owner_and_reentry() {
    let lock = EndLock::default();
    assert_eq!(lock.try_lock(5), Ok(()));
    assert_eq!(lock.try_lock(6), Err(TryLockError::Busy { owner_tid: 5 }));
    assert_eq!(lock.try_lock(5), Err(TryLockError::Reentrant));
    assert_eq!(lock.lock(5, |_| unreachable!()), Err(Reentrant));
    assert!(!lock.unlock());
    assert_eq!(lock.owner(), 0);
}

#[test]
fn waiter_is_announced_and_inherits_the_mark() {
    let lock = EndLock::default();
    lock.try_lock(5).unwrap();
    let mut woken = false;
    let taken = lock.lock(6, |owner| {
        assert_eq!(owner, 5);
        woken = lock.unlock();
        Waited::Retry
    });
    assert_eq!((taken, woken), (Ok(false), true));
    assert!(lock.unlock(), "others may have waited as well");
}

#[test]
fn dead_owner_loses_the_lock_to_one_thief() {
    let lock = EndLock::default();
    lock.try_lock(5).unwrap();
    assert_eq!(lock.lock(6, |_| Waited::OwnerDead), Ok(true));
    assert!(!lock.steal(5, 7));
    assert_eq!(lock.owner(), 6);
}
