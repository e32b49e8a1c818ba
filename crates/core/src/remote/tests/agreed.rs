//! Connections that are agreed on, and what they cost.

use super::*;
use crate::path::{PathId, PathList};
use crate::syn::Said;
use netacc_control::config::Config;
use netacc_control::stats::Counter;

#[test]
fn the_second_connection_needs_no_pair_and_no_region() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let first = rig.connect(0, 1);
        rig.promoted(first);
        rig.exchange(first, 300_000);
        let made = |rig: &Rig| {
            [0, 1]
                .map(|h| (rig.calls(h, Call::Create), rig.calls(h, Call::Register), rig.objects(h)))
        };
        let before = made(&rig);
        assert_eq!(before[0].0, 1);
        let second = rig.connect(0, 1);
        rig.promoted(second);
        rig.exchange(second, 300_000);
        assert_eq!(made(&rig), before);
        rig.finish();
    }
}

#[test]
fn requests_and_replies_of_ends_that_poll_are_no_system_calls() {
    const ROUNDS: u64 = 2000;
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.exchange(i, 100_000);
        let before = testing::calls();
        let mut looks = 0;
        for _ in 0..ROUNDS {
            for side in [C, A] {
                assert_eq!(rig.send(i, side, 512), 512);
                let mut left = 512;
                while left > 0 {
                    left -= rig.receive(i, side ^ 1, left);
                    looks += 1;
                }
            }
        }
        // (An end that has found nothing for a while asks whether the carrier has said something.)
        let calls = testing::calls() - before;
        assert!(calls <= ROUNDS / 100, "{calls} system calls in {ROUNDS} rounds, {looks} looks");
        rig.finish();
    }
}

#[test]
fn what_a_device_grants_is_enough() {
    let exchanges = |models: [Model; 2]| {
        let mut rig = Rig::of(Order::Shuffled(3), &models);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.exchange(i, 50_000);
        assert!(rig.is_fast(i), "{models:?}");
        for h in [0, 1] {
            assert_eq!(rig.calls(h, Call::Create), 1, "{models:?}: pairs at host {h}");
        }
        rig.finish();
    };
    for model in MODELS {
        for inline_max in [0, 16, 32, 48, 64, 220] {
            let least = Model { inline_max, ..model };
            exchanges([least, least]);
            exchanges([least, model]);
            exchanges([model, least]);
        }
        // As hns and MANA: nothing says so before the pair is there.
        for inline_granted in [0, 32] {
            let least = Model { inline_granted, ..model };
            exchanges([least, least]);
            exchanges([least, model]);
            exchanges([model, least]);
        }
        // As many entries of a queue as a pair needs, or fewer; regions of one connection's rings.
        let rings = 2 * u64::from(crate::config::get().buffer_bytes) * 8;
        for least in [
            Model { entries_max: 16, ..model },
            Model { entries_max: 64, ..model },
            Model { entries_max: 128, ..model },
            Model { region_bytes_max: rings.next_power_of_two(), ..model },
            Model { pairs_max: 1, regions_max: 2, ..model },
        ] {
            exchanges([least, least]);
            exchanges([least, model]);
            exchanges([model, least]);
        }
        for depth_max in [8, 16, 100] {
            let least = Model { depth_max, ..model };
            exchanges([least, least]);
            exchanges([least, model]);
            exchanges([model, least]);
        }
    }
}

/// A device with room for one pair, or its regions: the connections that find no place on it stay
/// on TCP, and say why; those that have one keep it, and it serves others when they are closed.
#[test]
fn who_finds_no_pair_on_a_small_device_stays_on_tcp() {
    let config = Config { connections_per_channel: 1, ..Config::default() };
    crate::config::with(config, || {
        for model in MODELS {
            for least in [Model { pairs_max: 1, ..model }, Model { regions_max: 2, ..model }] {
                for models in [[least, least], [least, model], [model, least]] {
                    let mut rig = Rig::of(Order::Prompt, &models);
                    let first = rig.connect(0, 1);
                    rig.promoted(first);
                    let second = rig.connect(0, 1);
                    let until = sys::now_ns() + 60_000_000_000;
                    while sys::now_ns() < until {
                        rig.chat(second);
                        rig.settle();
                        assert!(rig.pass());
                    }
                    let tried = [0, 1].map(|h| rig.calls(h, Call::Create));
                    assert!(tried.iter().all(|n| *n <= 10), "{models:?}: {tried:?}");
                    assert!(rig.is_fast(first) && !rig.is_fast(second), "{models:?}");
                    if models == [model, least] {
                        assert_eq!(rig.reason(second, A), Reason::ChannelFull, "{models:?}");
                    }
                    assert_eq!([0, 1].map(|h| rig.objects(h).queues), [1, 1], "{models:?}");
                    rig.exchange(first, 50_000);
                    rig.exchange(second, 50_000);
                    rig.close(first, C);
                    rig.close(first, A);
                    rig.promoted(second);
                    rig.finish();
                }
            }
        }
    });
}

/// `-p 1`, which is the default.
#[test]
fn there_is_room_for_ten_thousand_pairs_with_a_connection_each() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    FABRIC.set(Some(rig.hosts[0].fabric.clone()));
    let remote = rig.remote(0);
    let facts = remote.facts(0).unwrap();
    let settings = devices::settings(1, true, &facts, 128);
    let seats: Vec<_> = (0..10_000).map(|_| remote.seat(0, &settings).unwrap()).collect();
    assert!(queues::queues().count() <= QUEUES);
    for (q, tag) in seats {
        q.hub.release(process::tid(), tag).unwrap();
    }
    FABRIC.set(None);
    rig.finish();
}

#[test]
fn without_threads_connections_stay_on_tcp_until_there_are_some() {
    for model in [Model::SIW, Model::ERDMA] {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        // iWARP's pairs are connected by a thread.
        testing::set_threads(Threads::Refuse);
        for _ in 0..5 {
            rig.chat(i);
            rig.settle();
            rig.pass();
        }
        assert!(!rig.is_attached(i, C) && !rig.is_attached(i, A));
        assert_eq!(rig.objects(0).pairs, 0, "{}", rig.describe());
        testing::set_threads(Threads::Hold);
        rig.promoted(i);
        rig.exchange(i, 10_000);
        rig.finish();
    }
}

/// Claims that were agreed to: with the SYN's time stamp, and without.
fn claims() -> [u64; 2] {
    let count = |c| stats::header().map_or(0, |h| h.counter(c));
    [count(Counter::RdmaClaimsProven), count(Counter::RdmaClaimsUnproven)]
}

#[test]
fn what_a_claim_has_to_know_is_what_the_acceptor_knows() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let [proven, unproven] = claims();
    let i = rig.connect(0, 1);
    rig.promoted(i);
    let (proof, said) = (rig.conns[i][C].socket.syn.proof(), rig.conns[i][A].socket.syn.said());
    assert!(matches!(said, Said::Stamp(stamp) if proof.fits(stamp)), "{proof:?} {said:?}");
    assert_eq!(claims(), [proven + 1, unproven]);
    // The same knowledge serves when the connection comes back after it had to leave.
    rig.wires.break_pairs(&rig.hosts[0].fabric);
    rig.until("it leaves", |r| {
        r.chat(i);
        !r.is_fast(i)
    });
    rig.promoted(i);
    assert_eq!(claims(), [proven + 2, unproven]);
    // An acceptor that knows of no time stamp believes the addresses.
    for (n, bare) in [false, true].into_iter().enumerate() {
        let i = rig.connect(0, 1);
        rig.conns[i][A].socket.syn.forget(bare);
        rig.promoted(i);
        assert_eq!(claims(), [proven + 2, unproven + 1 + n as u64]);
    }
    // A connector that has not seen the call of connect, or the kernel's answer, knows nothing, and
    // is told that there will be no offer.
    let i = rig.connect(0, 1);
    rig.conns[i][C].socket.syn.forget(false);
    rig.until("both stay on TCP", |r| {
        r.chat(i);
        r.conns[i].iter().all(|e| e.socket.is(crate::socket::State::Plain))
    });
    assert_eq!(
        (rig.reason(i, C), rig.reason(i, A)),
        (Reason::PeerRefused, Reason::NotAuthenticated)
    );
    rig.exchange(i, 5000);
    rig.finish();
}

#[test]
fn connections_share_pairs_and_are_kept_apart() {
    for model in MODELS {
        for seed in 0..4 {
            let mut rig = Rig::new(Order::Shuffled(seed), model, 3);
            // Four on each pair; and others to the same process from another one.
            let conns: Vec<usize> =
                (0..12).map(|n| rig.connect(if n < 10 { 0 } else { 2 }, 1)).collect();
            for i in &conns {
                rig.promoted(*i);
            }
            assert_eq!([0, 1, 2].map(|h| rig.objects(h).pairs), [3, 4, 1]);
            rig.play(400, |_, _| {});
            for i in &conns {
                rig.drain(*i);
                rig.exchange(*i, 10_000);
                assert!(rig.is_fast(*i));
            }
            rig.finish();
        }
    }
}

#[test]
fn slots_and_lanes_serve_one_connection_after_the_other() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Shuffled(1), model, 2);
        for n in 0..20 {
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.exchange(i, 3000);
            rig.close(i, n % 2);
            rig.until("the end is told", |r| {
                r.receive(i, 1 - n % 2, 1000);
                r.conns[i][1 - n % 2].over == Some(0)
            });
            rig.close(i, 1 - n % 2);
        }
        // One pair, one arena, whatever came and went.
        assert_eq!([0, 1].map(|h| rig.calls(h, Call::Create)), [1, 1]);
        assert_eq!([0, 1].map(|h| rig.objects(h).regions), [2, 2]);
        rig.finish();
    }
}

#[test]
fn an_empty_pair_ends_at_both_ends_without_a_failure() {
    for model in MODELS {
        for (first, second) in [(C, A), (A, C)] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.exchange(i, 100_000);
            rig.close(i, first);
            rig.close(i, second);
            rig.until("the empty pair ends", |r| {
                (0..2).all(|h| r.remote(h).links.iter().flatten().all(|l| l.pairs.is_empty()))
            });
            // Behind a failure the next pair would wait.
            for h in 0..2 {
                assert!(
                    rig.remote(h).links.iter().flatten().all(|l| l.pair_after <= sys::now_ns()),
                    "host {h}"
                );
            }
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.exchange(i, 100_000);
            rig.finish();
        }
    }
}

// ---- within a host, where RDMA is preferred -----------------------------------------------------

impl Rig {
    /// A connection for which RDMA comes first, and shared memory second: the thread for that is a
    /// real one.
    fn prefer_rdma(&mut self, i: usize) {
        testing::set_threads(Threads::Start);
        let paths = PathList::EMPTY.and(PathId::Rdma).and(PathId::Shm);
        self.conns[i].iter().for_each(|e| e.socket.set_paths(paths));
        let local = self.conns[i][A].socket.tuple().local();
        crate::agent::of(PathId::Shm).accepting(local);
    }

    #[track_caller]
    fn comes_to_shared_memory(&mut self, i: usize) {
        let is_local = |e: &End| e.socket.channel().is_some_and(|c| c.far.is_shared());
        let began = std::time::Instant::now();
        // (The clock is not set forward: that thread has its own.)
        while !(self.is_fast(i) && self.conns[i].iter().all(is_local)) {
            self.chat(i);
            self.settle();
            self.wait(1_000_000);
            assert!(began.elapsed().as_secs() < 20, "{}", self.describe());
        }
        self.exchange(i, 100_000);
        assert!(
            self.is_fast(i) && self.conns[i].iter().all(|e| is_local(e) && e.over.is_none()),
            "{}",
            self.describe()
        );
    }
}

#[test]
fn within_a_host_shared_memory_serves_what_rdma_cannot() {
    for without in [C, A] {
        // Two addresses of a host, of which one has no device.
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        rig.remove_device(without);
        let i = rig.connect(0, 1);
        rig.prefer_rdma(i);
        rig.comes_to_shared_memory(i);
        rig.finish();
    }
}

#[test]
fn within_a_host_a_connection_that_loses_rdma_goes_on_in_shared_memory() {
    for loses in [C, A] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.prefer_rdma(i);
        rig.exchange(i, 100_000);
        rig.remove_device(loses);
        rig.comes_to_shared_memory(i);
        rig.finish();
    }
}

/// A receive that finds nothing looks at the queue of its own connection, however many there are.
#[test]
fn a_receive_polls_the_queue_of_its_connection_alone() {
    // So small that each pair has a queue of its own.
    let model = Model { entries_max: 150, ..Model::ROCE };
    let mut rig = Rig::new(Order::Prompt, model, 2);
    let conns: Vec<usize> = (0..12).map(|_| rig.connect(0, 1)).collect();
    conns.iter().for_each(|i| rig.promoted(*i));
    conns.iter().for_each(|i| rig.drain(*i));
    rig.settle();
    let pairs = rig.objects(0).pairs;
    assert_eq!((pairs, queues::queues().count()), (3, 6));
    let visits = || queues::queues().map(|q| q.visits.load(Relaxed)).collect::<Vec<u64>>();
    let mut polled = vec![0; visits().len()];
    for i in &conns {
        let before = visits();
        assert_eq!(rig.receive(*i, C, 100), 0);
        let more =
            visits().iter().zip(&before).map(|(now, before)| now - before).collect::<Vec<_>>();
        assert_eq!(more.iter().sum::<u64>(), 1, "{more:?}");
        polled.iter_mut().zip(more).for_each(|(all, one)| *all += one);
    }
    assert_eq!(polled.iter().filter(|n| **n > 0).count(), 3, "{polled:?}");
    // And what comes is found.
    for i in conns {
        rig.exchange(i, 20_000);
        assert!(rig.is_fast(i));
    }
    rig.finish();
}

/// A server that listens at another port each time (FTP's passive mode), faster than what is unused
/// is closed by itself. (The 65th listener found no place, and those behind it.)
#[test]
fn listeners_in_turn_find_a_place_however_many() {
    // So long a link that nobody uses is kept. A busy machine may take longer for all of them: then
    // that has made room, and nothing was shown.
    const KEPT_NS: u64 = 10_000_000_000;
    for model in MODELS {
        let shows = (0..5).any(|_| listeners_in_turn(model) < KEPT_NS);
        assert!(shows, "{model:?}: what is unused has been closed by itself");
    }
}

/// How long they took.
fn listeners_in_turn(model: Model) -> u64 {
    let mut rig = Rig::new(Order::Prompt, model, 2);
    let began = sys::now_ns();
    for n in 0..80 {
        let i = rig.connect(0, 1);
        if n % 2 == 0 {
            // As FTP does: before the connection is used.
            rig.close_listener(1);
        }
        rig.promoted(i);
        rig.close(i, C);
        rig.close(i, A);
        if n % 2 != 0 {
            rig.close_listener(1);
        }
        rig.settle();
    }
    let took = sys::now_ns() - began;
    rig.finish();
    took
}
