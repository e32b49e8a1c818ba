//! Pairs without connections: how many are kept, for how long, and which.

use super::pair_ends::EmptyPairs;
use super::*;

const ALL: EmptyPairs = EmptyPairs { expire_ms: None, all: usize::MAX, of_peer: usize::MAX };

/// A pair: whose, and its number there.
type Which = (IpAddr, u32);

impl Rig {
    fn keep(&mut self, h: usize, kept: EmptyPairs) {
        let remote = self.remote(h);
        remote.kept = kept;
        remote.timer = 1;
    }

    /// The pair of a connection of host 0's.
    fn pair_of(&mut self, i: usize) -> Which {
        let socket = self.conns[i][C].socket;
        let links = self.remote(0).links.iter().flatten();
        let on = |c: &&link::Conn| c.socket.is_some_and(|s| core::ptr::eq(s, socket));
        links.filter_map(|l| l.conns.iter().find(on).map(|c| (l.peer, c.pair))).next().unwrap()
    }

    /// The pairs that host 0 keeps without connections.
    fn empty(&mut self) -> Vec<Which> {
        let links = self.remote(0).links.iter().flatten();
        let empty = |p: &&pair::Pair| p.is_spare();
        links.flat_map(|l| l.pairs.iter().filter(empty).map(|p| (l.peer, p.number))).collect()
    }

    /// Its connections end, and nothing else happens.
    fn empty_pair(&mut self, which: Which) {
        for i in 0..self.conns.len() {
            if self.conns[i][C].open && self.pair_of(i) == which {
                self.close(i, C);
                self.close(i, A);
            }
        }
        self.settle();
    }

    fn all_end(mut self) {
        (0..self.hosts.len()).for_each(|h| self.keep(h, EmptyPairs { expire_ms: Some(0), ..ALL }));
        self.finish();
    }
}

/// Two pairs to each of two peers lose their connections one after the other; `limits` are host
/// 0's. What it keeps after each.
fn kept_by(model: Model, limits: EmptyPairs, then: impl Fn(&[Which]) -> Vec<Which>) {
    let mut rig = Rig::new(Order::Prompt, model, 3);
    rig.keep(0, limits);
    [1, 2].into_iter().for_each(|h| rig.keep(h, ALL));
    let mut pairs: Vec<Which> = Vec::new();
    for n in 0..16 {
        let i = rig.connect(0, 1 + n / 8);
        rig.promoted(i);
        let pair = rig.pair_of(i);
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    assert_eq!(pairs.len(), 4, "four connections on each");
    // Neither in the order of the links nor in that of the numbers.
    let order = [pairs[2], pairs[1], pairs[3], pairs[0]];
    let mut before = Vec::new();
    for n in 0..order.len() {
        rig.empty_pair(order[n]);
        before.push(order[n]);
        let sorted = |mut which: Vec<Which>| {
            which.sort_unstable();
            which
        };
        assert_eq!(
            sorted(rig.empty()),
            sorted(before.clone()),
            "one that has been empty for less than a second does not count"
        );
        testing::pass_ns(1_001_000_000);
        rig.settle();
        before = then(&order[..=n]);
        assert_eq!(sorted(rig.empty()), sorted(before.clone()), "after {} of {order:?}", n + 1);
    }
    rig.all_end();
}

#[test]
fn of_all_empty_pairs_those_that_were_used_last_are_kept() {
    for model in MODELS {
        for all in [0, 1, 2, 3] {
            kept_by(model, EmptyPairs { all, ..ALL }, |emptied| {
                emptied.iter().rev().take(all).copied().collect()
            });
        }
    }
}

#[test]
fn of_the_empty_pairs_to_an_address_those_that_were_used_last_are_kept() {
    for model in MODELS {
        for of_peer in [0, 1] {
            kept_by(model, EmptyPairs { of_peer, ..ALL }, |emptied| {
                let newest = |peer: IpAddr| {
                    emptied.iter().rev().filter(move |(p, _)| *p == peer).take(of_peer).copied()
                };
                [2, 3].into_iter().flat_map(|last| newest(loopback(0, last))).collect()
            });
        }
    }
}

#[test]
fn an_empty_pair_is_kept_for_as_long_as_is_said() {
    const DAY_NS: u64 = 86_400_000_000_000;
    for model in MODELS {
        for h in [0, 1] {
            for (expire_ms, after, left) in [
                (None, 100 * DAY_NS, 1),
                (Some(5000), 4_000_000_000, 1),
                (Some(5000), 5_001_000_000, 0),
                (Some(0), 0, 0),
            ] {
                let mut rig = Rig::new(Order::Prompt, model, 2);
                rig.keep(h, EmptyPairs { expire_ms, ..ALL });
                rig.keep(1 - h, ALL);
                let i = rig.connect(0, 1);
                // Whenever it looks at the time, the pair that waits for its first connection
                // stays.
                for _ in 0..100 {
                    rig.remote(h).timer = 1;
                    rig.chat(i);
                    rig.round();
                }
                rig.promoted(i);
                assert_eq!(rig.calls(0, Call::Create), 1);
                let pair = rig.pair_of(i);
                rig.empty_pair(pair);
                testing::pass_ns(after);
                rig.settle();
                let what = format!("host {h}, {expire_ms:?}, after {after} ns");
                assert_eq!([0, 1].map(|h| rig.objects(h).pairs), [left, left], "{what}");
                // The next connection has it, or another one.
                let next = rig.connect(0, 1);
                rig.promoted(next);
                rig.exchange(next, 10_000);
                assert_eq!(
                    [0, 1].map(|h| rig.calls(h, Call::Create)),
                    [2 - left as u64; 2],
                    "{what}"
                );
                rig.all_end();
            }
        }
    }
}
