//! What is promised about order, and that everything else happens.

use super::*;

const SEEDS: core::ops::Range<u64> = 0..200;

/// Announcements of `pairs` pairs, `each` on every one, in the order in which the peer polls them.
fn announcements(seed: u64, pairs: usize, each: u32) -> Vec<(usize, u32)> {
    let (net, a, b) = ends(Order::Shuffled(seed), Model::ROCE);
    let (mut active, mut passive) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let (pa, pb) = connect(&a, &b, CAPACITY, each as usize);
        active.push(pa);
        passive.push(pb);
    }
    for i in 0..each {
        for (p, pair) in active.iter().enumerate() {
            let imm = (p as u32) << 16 | i;
            // Each write says which it is, so that a look at the memory shows whether it was there
            // in time.
            a.fill(p * 8, &i.to_le_bytes());
            let inline = Action::WriteImm {
                from: Some(a.piece(p * 8, 4)),
                to: b.to(p * 8),
                inline: true,
                imm,
            };
            a.host
                .post(pair, &[Work { id: u64::from(imm), action: inline, signaled: true }])
                .unwrap();
        }
    }
    let mut seen = Vec::new();
    while seen.len() < pairs * each as usize {
        for c in b.polled() {
            let Outcome::Announced(imm) = c.outcome else { panic!("{c:?}") };
            let (p, i) = ((imm >> 16) as usize, imm & 0xffff);
            let there = u32::from_le_bytes(b.bytes(p * 8, 4).try_into().unwrap());
            assert!(there >= i, "announced before it was written");
            seen.push((p, i));
        }
    }
    // The sender's completions: in order on each pair.
    assert!(net.settle());
    let mut next = vec![0; pairs];
    for (id, outcome) in a.outcomes() {
        assert_eq!(outcome, Outcome::Written);
        let p = (id >> 16) as usize;
        assert_eq!(next[p], id & 0xffff);
        next[p] += 1;
    }
    assert_eq!(next, vec![u64::from(each); pairs]);
    finish(a, b, active, passive);
    seen
}

#[test]
fn within_a_pair_everything_comes_in_order_and_across_pairs_it_does_not() {
    let mut orders = BTreeSet::new();
    for seed in SEEDS {
        let seen = announcements(seed, 3, 4);
        for p in 0..3 {
            let of_pair: Vec<u32> = seen.iter().filter(|s| s.0 == p).map(|s| s.1).collect();
            assert_eq!(of_pair, [0, 1, 2, 3], "seed {seed}");
        }
        orders.insert(seen);
    }
    assert!(orders.len() > 100, "only {} different orders", orders.len());
    assert_eq!(announcements(5, 3, 4), announcements(5, 3, 4), "a seed is a seed");
}

#[test]
fn a_broken_pair_may_have_had_its_effect() {
    // Forced into error at some moment: how many of the four writes have happened, against what
    // their sender was told.
    let mut seen = BTreeSet::new();
    for model in MODELS {
        for seed in SEEDS {
            let (net, a, b) = ends(Order::Shuffled(seed), model);
            let (pa, pb) = connect(&a, &b, CAPACITY, 0);
            a.fill(0, &[1; 4]);
            for i in 0..4 {
                a.host.post(&pa, &[write(i, a.piece(i as usize, 1), b.to(i as usize))]).unwrap();
            }
            a.host.fail(&pa).unwrap();
            let outcomes = a.outcomes();
            assert!(net.settle());
            let happened = b.bytes(0, 4).iter().filter(|b| **b == 1).count();
            assert_eq!(b.bytes(0, happened), vec![1; happened], "in order");
            let ids: Vec<u64> = outcomes.iter().map(|o| o.0).collect();
            assert_eq!(ids, [0, 1, 2, 3], "everything completes, in order");
            let told = outcomes.iter().filter(|o| o.1 == Outcome::Written).count();
            let flushed =
                outcomes.iter().filter(|o| o.1 == Outcome::Failed(Failure::Flushed)).count();
            assert_eq!(told + flushed, 4);
            seen.insert((model.transport == Transport::Iwarp, happened.cmp(&told)));
            finish(a, b, vec![pa], vec![pb]);
        }
    }
    use core::cmp::Ordering::*;
    // InfiniBand's sender may know of fewer than have happened; iWARP's of more.
    assert_eq!(
        seen,
        BTreeSet::from([(false, Equal), (false, Greater), (true, Equal), (true, Less)])
    );
}

#[test]
fn an_armed_queue_is_never_slept_on_while_something_is_under_way() {
    for model in MODELS {
        for seed in SEEDS {
            let (_net, a, b) = ends(Order::Shuffled(seed), model);
            let (pa, pb) = connect(&a, &b, CAPACITY, 0);
            a.host.post(&pa, &[write(1, a.piece(0, 1), b.to(0))]).unwrap();
            a.host.arm(&a.queue).unwrap();
            // Nothing now means a wake-up later; here nothing is left that could bring one.
            assert_eq!(a.polled().len(), 1, "seed {seed}");
            finish(a, b, vec![pa], vec![pb]);
        }
    }
}

/// Both ends must know that both are established before anybody sends: what comes earlier may lie
/// at the accepting end.
#[test]
fn iwarp_may_not_notice_what_comes_right_behind_the_handshake() {
    let mut seen = BTreeSet::new();
    for seed in SEEDS {
        let (net, a, b) = ends(Order::Shuffled(seed), Model::SIW);
        let address = SocketAddr::new(B, PORT);
        let listener = b.host.listen(&b.manager, address, 8, 77).unwrap();
        let mut active = a.host.resolve(&a.manager, A, address, 100, 1).unwrap();
        a.news().unwrap();
        a.host.create(&mut active, &a.domain, &a.queue, CAPACITY).unwrap();
        a.host.connect(&mut active, &[], Patience::DEFAULT).unwrap();
        let Some(Event { news: News::Request { pair: mut passive, .. }, .. }) = b.news() else {
            panic!()
        };
        b.host.create(&mut passive, &b.domain, &b.queue, CAPACITY).unwrap();
        post_receives(&b, &passive, 2);
        b.host.accept(&mut passive, &[], Patience::DEFAULT).unwrap();
        assert!(matches!(a.news(), Some(Event { news: News::Established { .. }, .. })));
        a.host.post(&active, &[send(1, b"eager")]).unwrap();
        assert!(net.settle());
        let at_once = b.outcomes().len();
        a.host.post(&active, &[send(2, b"more")]).unwrap();
        let later = b.outcomes().len();
        assert_eq!(at_once + later, 2, "seed {seed}: nothing is lost");
        seen.insert(at_once);
        b.host.close_listener(listener).unwrap();
        finish(a, b, vec![active], vec![passive]);
    }
    assert_eq!(seen, BTreeSet::from([0, 1]));
}
