//! Lanes are opened, closed, refused, and used again.

use super::*;

fn saw(end: &End, news: News) -> bool {
    end.news.contains(&news)
}

#[test]
#[cfg_attr(miri, ignore = "too long; nothing that the others do not touch")]
fn a_lane_is_used_again_when_both_ends_are_through_with_it() {
    for &(model, immediate) in WAYS {
        for seed in 0..if cfg!(miri) { 1 } else { 20 } {
            let mut random = Random::new(seed);
            let mut rig = Rig::new(Order::Shuffled(seed + 3), model, settings(immediate));
            for life in 0..few(6, 2) as u64 {
                for side in [0, 1] {
                    rig.ends[side].news.clear();
                    rig.ends[side].open(5, life << 1 | side as u64);
                }
                rig.settle();
                for side in [0, 1] {
                    let opened = News::Opened { lane: 5, token: life << 1, ring_bytes: RING };
                    assert!(saw(&rig.ends[side], opened), "{:?}", rig.ends[side].news);
                }
                rig.replies_acknowledge(5);
                for side in [0, 1] {
                    rig.ends[side].produce(5, 1 + random.below(2000));
                }
                // Closed with bytes on their way: they arrive before the end does.
                let first = random.below(2);
                assert!(matches!(rig.ends[first].lanes().close(5), Ok(Kicked::Done)));
                rig.drain();
                rig.check();
                assert!(saw(&rig.ends[first ^ 1], News::Closed { lane: 5 }));
                assert!(!saw(&rig.ends[first], News::Released { lane: 5 }));
                assert_eq!(
                    rig.ends[first].hub.take_back(TID, rig.ends[first].lanes(), 5).unwrap_err(),
                    HubError::Lane(OpenError::State)
                );
                rig.ends[first ^ 1].lanes().close(5).unwrap();
                rig.settle();
                for side in [0, 1] {
                    // The completion of the end may be signaled only: it is waited for.
                    assert!(
                        saw(&rig.ends[side], News::Released { lane: 5 }),
                        "{:?}",
                        rig.ends[side].news
                    );
                    assert_eq!(rig.ends[side].take_back(5), None);
                }
            }
            // One arena for all of them: rings came back.
            assert_eq!(rig.ends[0].pool.regions(), 1);
            rig.close();
        }
    }
}

/// The device may still read the ring of whoever closes last.
#[test]
fn a_lane_is_not_free_before_its_end_has_gone() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        rig.open(1);
        rig.ends[1].lanes().close(0).unwrap();
        rig.settle();
        rig.ends[0].lanes().close(0).unwrap();
        assert!(!saw(&rig.ends[0], News::Released { lane: 0 }));
        let early = rig.ends[0].hub.take_back(TID, rig.ends[0].lanes(), 0);
        assert_eq!(early.unwrap_err(), HubError::Lane(OpenError::State));
        rig.ends[0].poll();
        assert!(saw(&rig.ends[0], News::Released { lane: 0 }));
        rig.ends[0].take_back(0);
        rig.close();
    }
}

/// What comes before an end may post is applied, and its receives are given back as soon as it may.
#[test]
fn the_other_end_may_be_faster() {
    for &(model, immediate) in WAYS {
        let settings = Settings { receives: 4, peer_receives: 4, ..settings(immediate) };
        let net = Net::new(Order::Prompt);
        let ends = [0, 1].map(|side| End::new(&net, side, model));
        let mut rig = Rig { net, ends };
        rig.join([settings; 2]);
        rig.start(1);
        for lane in 0..8 {
            rig.ends[1].open(lane, u64::from(lane) << 1 | 1);
        }
        rig.settle();
        let opened =
            |end: &End| end.news.iter().filter(|n| matches!(n, News::Opened { .. })).count();
        assert!((1..8).contains(&opened(&rig.ends[0])), "the receives are used up");
        rig.start(0);
        rig.settle();
        assert_eq!(opened(&rig.ends[0]), 8);
        for lane in 0..8 {
            rig.ends[0].open(lane, u64::from(lane) << 1);
            rig.ends[1].produce(lane, 100);
        }
        rig.drain();
        rig.check();
        rig.close();
    }
}

#[test]
fn what_is_not_wanted_is_refused() {
    for &(model, immediate) in WAYS {
        let mut rig = Rig::new(Order::Prompt, model, settings(immediate));
        assert_eq!(rig.ends[1].lanes().refuse(2), Err(OpenError::State));
        for _ in 0..3 {
            rig.ends[0].open(2, 40);
            rig.ends.iter_mut().for_each(|e| e.news.clear());
            rig.settle();
            assert!(
                saw(&rig.ends[1], News::Opened { lane: 2, token: 40, ring_bytes: RING }),
                "{:?}",
                rig.ends[1].lost()
            );
            rig.ends[1].lanes().refuse(2).unwrap();
            rig.settle();
            assert!(saw(&rig.ends[0], News::Closed { lane: 2 }));
            rig.ends[0].lanes().close(2).unwrap();
            rig.settle();
            assert_eq!(rig.ends[0].take_back(2), None);
            assert_eq!(rig.ends[1].take_back(2), None);
        }
        assert!(rig.ends[1].lost().is_none());
        rig.close();
    }
}

#[test]
fn the_faster_end_opens_again_before_the_slower_one_has_taken_back() {
    for closes_again in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::SIW, settings(false));
        rig.open(1);
        for side in [0, 1] {
            rig.ends[side].lanes().close(0).unwrap();
        }
        rig.settle();
        assert_eq!(rig.ends[0].take_back(0), None);
        rig.ends[0].open(0, 20);
        if closes_again {
            rig.ends[0].lanes().close(0).unwrap();
        }
        rig.settle();
        let reopened = Reopened { token: 20, ring_bytes: RING, closed: closes_again };
        assert_eq!(rig.ends[1].take_back(0), Some(reopened));
        if closes_again {
            rig.ends[1].lanes().refuse(0).unwrap();
            rig.settle();
            assert!(saw(&rig.ends[0], News::Released { lane: 0 }));
        } else {
            rig.ends[1].open(0, 21);
            rig.settle();
            rig.ends[0].produce(0, 1000);
            rig.drain();
            rig.check();
        }
        rig.close();
    }
}

#[test]
fn rings_of_different_sizes_do_not_match() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, settings(true));
    rig.ends[1].pool = Pool::new(2 * RING, 0, 0);
    rig.ends[0].open(0, 0);
    rig.ends[1].open(0, 1);
    rig.net.settle();
    for _ in 0..5 {
        for end in &mut rig.ends {
            end.poll();
        }
    }
    assert!(rig.ends.iter().any(|e| e.lost() == Some(Reason::Peer(Violation::Open))));
    rig.close();
}

#[test]
fn lanes_that_are_not_there_are_not_opened() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, settings(true));
    rig.open(1);
    let rings = rig.ends[0].rings();
    let words = NonNull::from(rig.ends[0].conn(0).out());
    for (lane, why) in
        [(8, OpenError::NoLane), (u16::MAX, OpenError::NoLane), (0, OpenError::State)]
    {
        let again = rig.ends[0].pool.take();
        let Some(rings) = again else { break };
        // SAFETY: refused.
        let (error, rings) =
            unsafe { rig.ends[0].lanes().open(lane, words, words, rings, 0) }.unwrap_err();
        assert_eq!(error, why);
        rig.ends[0].pool.give_back(rings);
        assert_eq!(rig.ends[0].lanes().account(lane).is_some(), lane == 0);
        assert_eq!(rig.ends[0].lanes().close(lane).is_ok(), lane == 0);
    }
    rig.ends[0].pool.give_back(rings);
    assert_eq!(rig.ends[0].lanes().kick(u16::MAX), Kicked::Done);
    rig.close();
}
