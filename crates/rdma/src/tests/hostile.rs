//! A peer that is not the engine: it posts what it likes, and writes where it can.

use super::*;
use crate::wire::{Draft, Imm, Item, Ring};
use netacc_verbs::fabric::{Access, Action, Completion, Piece, Remote, Work};

/// An honest end, and a pair with nothing behind it.
struct Victim {
    end: End,
    peer: End,
    pair: memory::Pair,
    region: memory::Region,
    receives: memory::Region,
    block: Block,
}

impl Victim {
    fn new(immediate: bool) -> Self {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, settings(immediate));
        rig.settle();
        let Rig { ends: [end, mut peer], .. } = rig;
        // The peer's engine is put away; its pair stays.
        let (pair, receives) = peer.steal_pair();
        let block = Block::new(1 << 16);
        // SAFETY: freed in `close`.
        let region =
            unsafe { peer.host.register(&peer.domain, block.0, 1 << 16, Access::RemoteWrite) }
                .unwrap();
        Self { end, peer, pair, region, receives, block }
    }

    fn ring(&self) -> Ring {
        let Remote { address, key } = self.peer.host.remote(&self.region);
        Ring { address, key, log2: 12 }
    }

    fn post(&self, action: Action<'_, memory::Region>) {
        // Refused when the pair is in error; its own completions it does not look at.
        let _ = self.peer.host.post(&self.pair, &[Work { id: u64::MAX, action, signaled: true }]);
        let mut out = [Completion::EMPTY; 64];
        self.peer.hub.with_queue(|queue| self.peer.host.poll(queue, &mut out)).unwrap().unwrap();
    }

    fn say(&self, items: &[(u16, Item)]) {
        self.say_returned(0, items);
    }

    fn say_returned(&self, returned: u32, items: &[(u16, Item)]) {
        let mut draft = Draft::new();
        items.iter().for_each(|(lane, item)| assert!(draft.push(*lane, *item)));
        self.post(Action::SendInline(draft.finish(returned)));
    }

    /// Both ends have lane 0 open, as far as the victim knows.
    fn open(&mut self) {
        self.end.open(0, 0);
        self.say(&[(0, Item::Open { ring: self.ring(), token: 1 })]);
        self.end.poll();
        assert_eq!(self.end.lost(), None);
    }

    fn reason(&mut self) -> Option<Reason> {
        self.end.poll();
        self.end.lost()
    }

    fn close(self) {
        let Self { end, peer, pair, region, receives, block } = self;
        end.close();
        peer.host.close_pair(pair).unwrap();
        peer.host.close_region(region).unwrap();
        peer.host.close_region(receives).unwrap();
        block.free();
        peer.close();
    }
}

#[test]
fn each_lie_is_found_and_named() {
    type Lie = fn(&mut Victim);
    let lies: &[(Violation, Lie)] = &[
        (Violation::Message, |v| v.post(Action::SendInline(&[]))),
        (Violation::Message, |v| v.post(Action::SendInline(&[0; 64]))),
        (Violation::Message, |v| v.post(Action::SendInline(&[4, 2, 0, 0, 0, 0, 0, 0]))),
        (Violation::Lane, |v| v.say(&[(8, Item::Credit { head: 0 })])),
        (Violation::Lane, |v| v.say(&[(u16::MAX, Item::Close)])),
        (Violation::Lane, |v| v.say(&[(1, Item::Credit { head: 0 })])),
        (Violation::Lane, |v| v.say(&[(1, Item::Data { rebased: false, bytes: 1, tail: 1 })])),
        (Violation::Lane, |v| {
            // Opened by the peer alone.
            v.say(&[
                (1, Item::Open { ring: v.ring(), token: 1 }),
                (1, Item::Data { rebased: false, bytes: 1, tail: 1 }),
            ]);
        }),
        (Violation::Open, |v| v.say(&[(0, Item::Open { ring: v.ring(), token: 1 })])),
        (Violation::Open, |v| {
            v.say(&[(1, Item::Open { ring: Ring { log2: 11, ..v.ring() }, token: 1 })])
        }),
        (Violation::Open, |v| {
            v.say(&[(1, Item::Open { ring: Ring { log2: 27, ..v.ring() }, token: 1 })])
        }),
        (Violation::Open, |v| {
            v.say(&[(1, Item::Open { ring: Ring { log2: 255, ..v.ring() }, token: 1 })])
        }),
        (Violation::Open, |v| {
            v.say(&[(
                1,
                Item::Open { ring: Ring { address: u64::MAX - 4000, ..v.ring() }, token: 1 },
            )]);
        }),
        (Violation::Open, |v| {
            // A ring of another size than the victim's.
            v.say(&[(1, Item::Open { ring: Ring { log2: 13, ..v.ring() }, token: 1 })]);
            v.end.poll();
            v.end.open(1, 2);
        }),
        (Violation::Open, |v| {
            v.say(&[(0, Item::Close), (0, Item::Open { ring: v.ring(), token: 1 })])
        }),
        (Violation::Close, |v| v.say(&[(0, Item::Close), (0, Item::Close)])),
        (Violation::Close, |v| v.say(&[(1, Item::Close)])),
        (Violation::Lane, |v| v.say(&[(0, Item::Close), (0, Item::Credit { head: 0 })])),
        (Violation::Tail, |v| v.say(&[(0, Item::Data { rebased: false, bytes: 0, tail: 0 })])),
        (Violation::Tail, |v| v.say(&[(0, Item::Data { rebased: false, bytes: 5, tail: 6 })])),
        (Violation::Room, |v| {
            v.say(&[(0, Item::Data { rebased: false, bytes: 4097, tail: 4097 })])
        }),
        (Violation::Room, |v| {
            v.say(&[(
                0,
                Item::Data { rebased: false, bytes: u32::MAX, tail: u64::from(u32::MAX) },
            )]);
        }),
        (Violation::Rebase, |v| {
            v.say(&[
                (0, Item::Data { rebased: false, bytes: 5, tail: 5 }),
                (0, Item::Data { rebased: true, bytes: 5, tail: 10 }),
            ]);
        }),
        (Violation::Head, |v| v.say(&[(0, Item::Credit { head: 1 })])),
        (Violation::Head, |v| v.say(&[(0, Item::Credit { head: u64::MAX })])),
        (Violation::Head, |v| {
            v.end.produce(0, 100);
            v.say(&[(0, Item::Credit { head: 60 })]);
            v.say(&[(0, Item::Credit { head: 59 })]);
        }),
        (Violation::Returned, |v| v.say_returned(1000, &[])),
        (Violation::Returned, |v| v.say_returned(u32::MAX, &[])),
    ];
    for immediate in [true, false].into_iter().take(few(2, 1)) {
        for (i, (expected, lie)) in lies.iter().enumerate() {
            let mut v = Victim::new(immediate);
            v.open();
            lie(&mut v);
            assert_eq!(v.reason(), Some(Reason::Peer(*expected)), "lie {i}");
            let told = v.end.news.contains(&News::Lost(Reason::Peer(*expected)));
            assert!(told || v.end.found == Some(Reason::Peer(*expected)), "lie {i}");
            // The pair is in error: the peer writes nothing any more.
            let before = v.end.conn(0).inb().tail.load(Relaxed);
            v.say(&[(0, Item::Data { rebased: false, bytes: 1, tail: 1 })]);
            v.end.poll();
            assert_eq!(v.end.conn(0).inb().tail.load(Relaxed), before);
            v.close();
        }
    }
}

#[test]
fn an_immediate_lies_too() {
    let imm = |lane, rebased, returned, bytes| {
        Imm { lane, rebased, mark: true, reached: false, returned, bytes }.encode()
    };
    let reached =
        Imm { lane: 0, rebased: false, mark: false, reached: true, returned: 0, bytes: 1 }.encode();
    for (agreed, imm, expected) in [
        (false, imm(0, false, 0, 1), Violation::Immediate),
        (true, imm(1, false, 0, 1), Violation::Lane),
        (true, imm(4095, false, 0, 1), Violation::Lane),
        (true, imm(0, false, 0, 4097), Violation::Room),
        (true, imm(0, false, 7, 1), Violation::Returned),
        (true, reached, Violation::Head),
    ] {
        let mut v = Victim::new(agreed);
        v.open();
        let to = Remote { address: 0, key: 0 };
        v.post(Action::WriteImm { from: None, to, inline: false, imm });
        assert_eq!(v.reason(), Some(Reason::Peer(expected)));
        v.close();
    }
}

/// A mark is reached once, and only what it says is acknowledged, whatever credits have said
/// before.
#[test]
fn a_mark_is_reached_once() {
    for credit in [None, Some(40), Some(60), Some(100)] {
        let mut v = Victim::new(true);
        v.open();
        // The first bytes are marked; the next ones are not, because nobody has reached the first
        // mark.
        v.end.produce(0, 60);
        v.end.produce(0, 40);
        if let Some(head) = credit {
            v.say(&[(0, Item::Credit { head })]);
        }
        // A peer that marks all it sends is told of the last one, and that is its own concern.
        let imm = Imm { lane: 0, rebased: false, mark: true, reached: true, returned: 0, bytes: 1 }
            .encode();
        let announce = |v: &Victim| {
            v.post(Action::WriteImm {
                from: None,
                to: Remote { address: 0, key: 0 },
                inline: false,
                imm,
            });
        };
        announce(&v);
        assert_eq!(v.reason(), None);
        assert_eq!(v.end.lanes().account(0).unwrap().acknowledged, credit.unwrap_or(0).max(60));
        announce(&v);
        assert_eq!(v.reason(), Some(Reason::Peer(Violation::Head)));
        v.close();
    }
}

/// Random messages: the victim finds a lie or goes on, and reads bytes of its own ring only.
#[test]
fn anything_may_be_said() {
    for seed in 0..few(1500, 2) as u64 {
        let mut random = Random::new(seed);
        let mut v = Victim::new(seed & 1 == 0);
        v.open();
        let (mut tail, mut posted) = (0u64, 0u64);
        for _ in 0..few(60, 25) {
            // Mostly near what is right, so that it gets somewhere.
            let lane = [0, 0, 0, 0, 0, 0, 1, 7, 8, 4095][random.below(10)] as u16;
            let word = match random.below(6) {
                0 => random.next(),
                1 => tail,
                2 => posted,
                3 => tail + random.below(4096) as u64,
                4 => random.below(4) as u64,
                _ => posted.saturating_sub(random.below(100) as u64),
            };
            let bytes = [0, 1, 100, 4096, 4097, u32::MAX][random.below(6)];
            let item = match random.below(9) {
                0 => Item::Open {
                    ring: Ring { log2: [12, 12, 12, 13, 200][random.below(5)], ..v.ring() },
                    token: random.next(),
                },
                1 if random.below(4) == 0 => Item::Close,
                2 | 3 => Item::Credit { head: word },
                _ if random.below(6) > 0 => {
                    let bytes = 1 + random.below(900) as u32;
                    Item::Data {
                        rebased: random.below(9) == 0,
                        bytes,
                        tail: tail + u64::from(bytes),
                    }
                }
                _ => Item::Data { rebased: random.below(2) == 0, bytes, tail: word },
            };
            match random.below(20) {
                0 => {
                    let text: Vec<u8> =
                        (0..random.below(65)).map(|_| random.next() as u8).collect();
                    v.post(Action::SendInline(&text));
                }
                1 => {
                    let imm = if random.below(2) == 0 {
                        random.next() as u32
                    } else {
                        random.below(64) as u32
                    };
                    v.post(Action::WriteImm {
                        from: None,
                        to: Remote { address: 0, key: 0 },
                        inline: false,
                        imm,
                    });
                }
                2 => v.say_returned([1, 2, u32::MAX][random.below(3)], &[(lane, item)]),
                // Writes with any key, to any place near.
                3 => {
                    let ours = v.end.arena_remote();
                    let to = Remote {
                        address: ours.address.wrapping_add(random.next() & 0x3fff),
                        key: ours.key,
                    };
                    v.post(Action::Write {
                        from: Some(Piece {
                            region: &v.region,
                            offset: 0,
                            bytes: 1 + random.below(4000),
                        }),
                        to,
                        inline: false,
                    });
                }
                _ => v.say(&[(lane, item)]),
            }
            v.end.poll();
            if v.end.lost().is_some() {
                break;
            }
            // The victim's application goes on: it never sees more than its ring.
            let conn = v.end.conn(0);
            tail = conn.inb().tail.load(Acquire);
            let mut buffer = [0u8; RING];
            // SAFETY: an array of ours.
            let got = unsafe { conn.consumer.read(buffer.as_mut_ptr(), random.below(RING)) };
            assert!(got.is_ok(), "the ring's own check has found what the engine let through");
            let _ = conn.consumer.publish();
            let head = conn.inb().head.load(Relaxed);
            assert!(conn.produce_unchecked(random.below(500)), "as above");
            posted = conn.out().tail.load(Relaxed);
            v.end.lanes().consumed(0, head);
            v.end.lanes().kick(0);
        }
        v.end.poll();
        v.close();
    }
}
