//! Each call of the fabric's fails, the peer is lost at each moment: what was promised about the
//! bytes still holds.

use super::*;
use netacc_verbs::fabric::{Call, Failure};

/// What must hold whatever has happened: no byte wrong (each read has looked), and the sender still
/// has every byte that the receiver has not consumed, at its offset.
fn nothing_is_lost(rig: &mut Rig) {
    let lanes = rig.ends[0].conns.len() as u16;
    for side in [0, 1] {
        for lane in 0..lanes {
            let Some(conn) = rig.ends[side ^ 1].conns[usize::from(lane)].as_mut() else { continue };
            // What has come is readable to its end, also after the pair is lost.
            while conn.consume(RING) > 0 {}
            let consumed = conn.read;
            let account = rig.ends[side].lanes().account(lane).unwrap();
            let conn = rig.ends[side].conn(lane);
            assert!(
                account.acknowledged <= consumed,
                "acknowledged {account:?}, consumed {consumed}"
            );
            assert!(
                consumed <= account.posted && account.posted <= conn.written,
                "{account:?}, consumed {consumed}"
            );
            // The fail-over: from exactly there on, out of the ring.
            let left = (conn.written - consumed) as usize;
            assert!(left <= RING);
            let mut bytes = std::vec![0u8; left + 1];
            // SAFETY: a vector of ours.
            let n = unsafe { conn.producer.copy_out(consumed, bytes.as_mut_ptr(), left) };
            assert_eq!(n, left, "side {side}, lane {lane}: the ring has not what was not consumed");
            for (i, got) in bytes[..n].iter().enumerate() {
                assert_eq!(*got, byte(conn.stream, consumed + i as u64));
            }
        }
    }
}

/// Some traffic; `at` is called before each step with its number.
fn traffic(rig: &mut Rig, seed: u64, steps: usize, mut at: impl FnMut(&mut Rig, usize)) {
    let mut random = Random::new(seed);
    for step in 0..steps {
        at(rig, step);
        let end = &mut rig.ends[random.below(2)];
        let lane = random.below(3) as u16;
        match random.below(4) {
            0 => {
                end.produce(lane, 1 + random.below(1500));
            }
            1 => {
                end.consume(lane, 1 + random.below(2000));
            }
            _ => {
                end.poll();
            }
        }
    }
}

fn small(immediate: bool) -> Settings {
    Settings { receives: 6, peer_receives: 6, sends: 12, ..settings(immediate) }
}

/// The `nth` call of a kind fails, with an errno.
fn fails(
    model: Model,
    immediate: bool,
    call: Call,
    nth: u64,
    errno: i32,
    seed: u64,
) -> Option<Reason> {
    let mut rig = Rig::new(Order::Shuffled(seed), model, small(immediate));
    rig.open(3);
    rig.net.fail_call(&rig.ends[0].host, call, nth, errno);
    traffic(&mut rig, seed, few(150, 30), |_, _| {});
    // Whoever waits hears of it in the end; InfiniBand's kind only when the tries are used up.
    rig.net.settle();
    rig.net.time_out();
    for _ in 0..20 {
        rig.net.settle();
        rig.ends.iter_mut().for_each(|e| {
            e.poll();
        });
    }
    if rig.ends[0].lost().is_none() {
        // It has got over it, or it comes later.
        for lane in 0..3 {
            rig.ends[0].lanes().kick(lane);
            rig.ends[1].lanes().kick(lane);
        }
        rig.drain();
    }
    let lost = rig.ends[0].lost();
    if let Some(why) = lost {
        let told =
            rig.ends[0].news.iter().filter(|n| matches!(n, News::Lost(_))).collect::<Vec<_>>();
        assert!(told.len() <= 1, "{told:?}");
        if let Some(told) = told.first() {
            assert_eq!(**told, News::Lost(why));
        }
        // Nothing is posted any more.
        let before = rig.ends[0].lanes().counters.read();
        rig.ends[0].produce(0, 100);
        assert_eq!(rig.ends[0].lanes().kick(0), Kicked::Lost(why));
        assert_eq!(rig.ends[0].lanes().counters.read(), before);
        nothing_is_lost(&mut rig);
    } else {
        rig.check();
        rig.replies_acknowledge(0);
    }
    rig.close();
    lost
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn any_call_may_fail_at_any_time() {
    let nths: &[u64] =
        if cfg!(miri) { &[1, 2] } else { &[1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56] };
    for &(model, immediate) in WAYS {
        for &nth in nths {
            for (call, errno) in [
                (Call::Post, libc::EIO),
                (Call::Post, libc::EINVAL),
                (Call::PostReceives, libc::ENOMEM),
                (Call::Poll, libc::EIO),
            ] {
                let lost = fails(model, immediate, call, nth, errno, nth * 7 + 1);
                // Later ones may not have come to pass.
                if nth < 5 && !cfg!(miri) {
                    assert_eq!(lost, Some(Reason::Refused { call, errno }));
                }
            }
        }
    }
}

/// A queue that is fuller than it should be: with something under way the engine tries again, and
/// nothing happens.
#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_full_queue_is_waited_for() {
    let mut survived = 0;
    for &(model, immediate) in WAYS {
        for nth in if cfg!(miri) { 1..3 } else { 1..20 } {
            match fails(model, immediate, Call::Post, nth, libc::ENOMEM, nth * 3) {
                None => survived += 1,
                // Nothing was under way that would tell of room; or a list was posted in part.
                Some(why) => {
                    assert_eq!(why, Reason::Refused { call: Call::Post, errno: libc::ENOMEM })
                }
            }
        }
    }
    assert!(cfg!(miri) || survived > 0);
}

#[test]
fn a_full_queue_changes_nothing_until_there_is_room() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, Settings { sends: 8, ..settings(immediate) });
        rig.open(1);
        // Until a completion is under way that nobody has polled.
        let mut posted = 0;
        for _ in 0..2 {
            posted += rig.ends[0].produce(0, 100) as u64;
        }
        rig.net.fail_call(&rig.ends[0].host, Call::Post, 1, libc::ENOMEM);
        let works = rig.ends[0].lanes().counters.read().works;
        rig.ends[0].produce(0, 100);
        let account = rig.ends[0].lanes().account(0).unwrap();
        assert_eq!(account.posted, posted, "it was not posted");
        assert_eq!(rig.ends[0].lanes().counters.read().works, works);
        assert_eq!(rig.ends[0].lost(), None);
        // With the completion it goes.
        rig.ends[0].poll();
        assert_eq!(rig.ends[0].lanes().account(0).unwrap().posted, posted + 100);
        rig.drain();
        rig.check();

        // With nothing under way there is nothing to wait for.
        let idle = Settings { sends: 64, ..settings(immediate) };
        let mut other = Rig::new(Order::Prompt, model, idle);
        other.open(1);
        other.net.fail_call(&other.ends[0].host, Call::Post, 1, libc::ENOMEM);
        other.ends[0].produce(0, 100);
        assert_eq!(
            other.ends[0].lost(),
            Some(Reason::Refused { call: Call::Post, errno: libc::ENOMEM })
        );
        nothing_is_lost(&mut other);
        other.close();
        rig.close();
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn the_peer_is_lost_at_any_moment_and_no_byte_with_it() {
    let steps = if cfg!(miri) { 12 } else { 120 };
    for &(model, immediate) in WAYS {
        for (kind, when) in
            (0..5).flat_map(|kind| (0..steps).step_by(4).map(move |when| (kind, when)))
        {
            let seed = when as u64 * 31 + kind;
            let mut rig = Rig::new(Order::Shuffled(seed), model, small(immediate));
            rig.open(3);
            traffic(&mut rig, seed, steps, |rig, step| {
                if step != when {
                    return;
                }
                let [a, b] = &rig.ends;
                match kind {
                    0 => rig.net.break_pairs(&a.host),
                    1 => rig.net.break_pairs(&b.host),
                    2 => rig.net.cut(&b.host, true),
                    3 => a.lanes().end(),
                    _ => rig.net.remove_device(&a.host),
                }
            });
            for _ in 0..10 {
                rig.net.time_out();
                rig.net.settle();
                rig.ends.iter_mut().for_each(|e| {
                    e.poll();
                });
            }
            // The connection manager says so to whoever no completion tells.
            rig.ends.iter().for_each(|e| e.lanes().end());
            rig.ends.iter_mut().for_each(|e| {
                e.poll();
            });
            nothing_is_lost(&mut rig);
            rig.net.cut(&rig.ends[1].host, false);
            rig.close();
        }
    }
}

/// What is retained is exactly what is not acknowledged: not a byte more is asked of the ring.
#[test]
fn what_is_acknowledged_may_be_written_over() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(3);
        rig.ends[0].produce(0, RING);
        rig.settle();
        // A quarter is told, the rest is not.
        rig.ends[1].consume(0, RING / 4);
        rig.settle();
        rig.ends[1].consume(0, 100);
        rig.settle();
        let account = rig.ends[0].lanes().account(0).unwrap();
        assert_eq!((account.acknowledged, account.posted), (RING as u64 / 4, RING as u64));
        assert_eq!(rig.ends[0].conn(0).produce(RING), RING / 4);
        rig.ends[0].lanes().end();
        rig.ends[1].lanes().end();
        nothing_is_lost(&mut rig);
        rig.close();
    }
}

/// Putting a queue pair in error is a call into the kernel that can take long, and others wait for
/// the hub's lock meanwhile.
#[test]
fn who_finds_a_loss_leaves_the_pair_to_its_owner() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(1);
        let calls = |rig: &Rig| rig.net.calls(&rig.ends[0].host, Call::Fail);
        rig.ends[0].produce(0, 100);
        rig.net.break_pairs(&rig.ends[0].host);
        rig.net.settle();
        while rig.ends[0].poll() > 0 {}
        if rig.ends[0].lanes().lost().is_none() {
            // No completion tells: posting does.
            rig.net.fail_call(&rig.ends[0].host, Call::Post, 1, libc::EIO);
            rig.ends[0].produce(0, 100);
            rig.ends[0].poll();
        }
        assert!(rig.ends[0].lanes().lost().is_some());
        assert_eq!(calls(&rig), 0);
        rig.ends[0].lanes().end();
        assert_eq!(calls(&rig), 1);
        rig.ends[1].lanes().end();
        nothing_is_lost(&mut rig);
        rig.close();
    }
}

#[test]
fn after_the_loss_nothing_is_applied() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(1);
        rig.ends[0].produce(0, 100);
        rig.ends[1].produce(0, 100);
        rig.net.settle();
        // Both are in the queue when the owner ends it.
        rig.ends[1].lanes().end();
        rig.ends[1].poll();
        assert_eq!(rig.ends[1].conn(0).inb().tail.load(Relaxed), 0);
        assert_eq!(rig.ends[1].news.iter().filter(|n| matches!(n, News::Lost(_))).count(), 1);
        rig.ends[0].lanes().end();
        nothing_is_lost(&mut rig);
        rig.close();
    }
}

#[test]
fn completions_of_a_link_that_is_gone_are_nobodys() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(3);
        for _ in 0..3 {
            for side in [0, 1] {
                rig.ends[side].produce(1, 2000);
            }
            rig.net.settle();
            // Flushed and unpolled completions stay behind; the next pair has the same place.
            let tags = rig.ends.each_ref().map(|e| e.lanes().tag());
            rig.ends.iter_mut().for_each(End::close_lanes);
            rig.connect([settings(immediate); 2]);
            for (end, tag) in rig.ends.iter().zip(tags) {
                assert_eq!(end.lanes().tag().index, tag.index);
                assert_ne!(end.lanes().tag(), tag);
            }
            rig.open(3);
            rig.ends[0].produce(2, 500);
            rig.drain();
            rig.check();
        }
        rig.close();
    }
}

#[test]
fn a_link_that_cannot_be_made_leaves_nothing_behind() {
    for call in [Call::Register, Call::PostReceives] {
        for nth in 1..3 {
            let net = Net::new(Order::Prompt);
            let [a, b] = [0, 1].map(|side| End::new(&net, side, Model::ROCE));
            let address = SocketAddr::new(ADDRESSES[0], PORT);
            let mut pair = b.host.resolve(&b.manager, ADDRESSES[1], address, 1000, 8).unwrap();
            b.host.next_event(&b.manager).unwrap();
            let settings = Settings { receives: 40, ..settings(true) };
            let capacity =
                Capacity { sends: settings.sends, receives: settings.receives, inline_bytes: 64 };
            b.create(&mut pair, capacity);
            let tag = b.hub.reserve(TID, &settings).unwrap();
            let block = Block::new(40 * 64);
            net.fail_call(&b.host, call, nth, libc::ENOMEM);
            // SAFETY: freed after the pair is closed.
            let made = unsafe {
                Lanes::new(Arc::clone(&b.host), tag, settings, (&b.domain, &pair), block.0)
            };
            match made {
                Err(e) => {
                    assert_eq!((e.call, e.errno), (call, libc::ENOMEM));
                    b.host.close_pair(pair).unwrap();
                }
                Ok(lanes) => {
                    assert_eq!((call, nth), (Call::Register, 2));
                    assert_eq!(lanes.dismantle(Some(pair)).error, None);
                }
            }
            block.free();
            b.hub.release(TID, tag).unwrap();
            a.close();
            b.close();
        }
    }
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let good = settings(false);
    let net = Net::new(Order::Prompt);
    let [a, b] = [0, 1].map(|side| End::new(&net, side, Model::ROCE));
    let pair = b
        .host
        .resolve(&b.manager, ADDRESSES[1], SocketAddr::new(ADDRESSES[0], PORT), 1000, 8)
        .unwrap();
    let block = Block::new(4096);
    for bad in [
        Settings { sends: 7, ..good },
        Settings { receives: 3, ..good },
        Settings { peer_receives: 3, ..good },
        Settings { lanes: 0, ..good },
        Settings { lanes: 4097, ..good },
        Settings { turn_bytes: 0, ..good },
    ] {
        let tag = b.hub.reserve(TID, &bad).unwrap();
        assert!(
            // SAFETY: refused.
            unsafe { Lanes::new(Arc::clone(&b.host), tag, bad, (&b.domain, &pair), block.0) }
                .is_err()
        );
        b.hub.release(TID, tag).unwrap();
    }
    // A hub has room for so many completions.
    let big = Settings { sends: 3000, receives: 1000, ..good };
    let tag = b.hub.reserve(TID, &big).unwrap();
    assert_eq!(b.hub.reserve(TID, &big), Err(HubError::Full));
    b.hub.release(TID, tag).unwrap();
    assert_eq!(b.hub.release(TID, tag), Err(HubError::NoPair));
    b.host.close_pair(pair).unwrap();
    block.free();
    a.close();
    b.close();
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_peer_that_has_no_receive_is_found_out() {
    // The peer says that it has more receives than it posts: InfiniBand's kind gives up in the end,
    // iWARP's at once.
    for &(model, immediate) in WAYS {
        let a = Settings { peer_receives: 64, ..settings(immediate) };
        let b = Settings { receives: 4, ..settings(immediate) };
        let mut rig = Rig::of(Order::Prompt, model, [a, b]);
        rig.open(8);
        for lane in 0..8 {
            rig.ends[0].produce(lane, 1000);
        }
        rig.net.settle();
        rig.net.time_out();
        rig.ends[0].poll();
        rig.ends.iter_mut().for_each(|e| {
            e.poll();
        });
        if let Some(why) = rig.ends[0].lost() {
            assert!(
                matches!(
                    why,
                    Reason::Failed(Failure::NotReady | Failure::Flushed | Failure::Unreachable)
                ),
                "{why:?}"
            );
            nothing_is_lost(&mut rig);
        } else {
            rig.drain();
            rig.check();
        }
        rig.close();
    }
}
