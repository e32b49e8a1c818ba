//! How we know. Everything runs on the fabric in memory, in milliseconds.
//!
//! | | |
//! |---|---|
//! | `traffic` | checksummed streams over many lanes, in any order of calls and of the fabric's steps |
//! | `count` | work requests and messages of a request and its reply |
//! | `fair` | a reader that stops; neighbours; who comes next |
//! | `lanes` | opening, closing, refusing, taking back, using again |
//! | `faults` | each call of the fabric's fails; the peer is lost after each of them |
//! | `hostile` | messages that no honest peer sends, random ones among them |
//! | `threads` | several threads that kick, poll, produce and consume |

use crate::arena::Pool;
use crate::*;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use netacc_ring::{Consumer, Producer, RingWords};
use netacc_verbs::Fabric;
use netacc_verbs::fabric::{Capacity, Facts, News as CmNews, Patience};
use netacc_verbs::memory::{self, Memory, Model, Net, Order};
use std::alloc::{Layout, alloc_zeroed, dealloc};

mod count;
mod fair;
mod faults;
mod hostile;
mod lanes;
mod threads;
mod traffic;

const TID: u32 = 1;
const RING: usize = 4096;
const PORT: u16 = 26379;
const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];

/// Both ways of announcing bytes, on the devices that have them.
const WAYS: &[(Model, bool)] = if cfg!(miri) {
    &[(Model::ROCE, true), (Model::SIW, false)]
} else {
    &[(Model::ROCE, true), (Model::ROCE, false), (Model::SIW, false), (Model::ERDMA, true)]
};

/// Fewer where each step takes a thousand times as long.
const fn few(usually: usize, under_miri: usize) -> usize {
    if cfg!(miri) { under_miri } else { usually }
}

fn settings(immediate: bool) -> Settings {
    Settings {
        sends: 32,
        receives: 16,
        peer_receives: 16,
        inline_bytes: 64,
        immediate,
        lanes: 8,
        turn_bytes: 1024,
    }
}

/// xorshift64*.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
}

/// The byte at a position of a stream.
fn byte(stream: u64, position: u64) -> u8 {
    ((position ^ stream << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Zeroed memory that no reference is made to.
struct Block(NonNull<u8>, Layout);

impl Block {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: not of size 0.
        Self(NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap(), layout)
    }
    fn free(self) {
        // SAFETY: from `alloc_zeroed` with this layout, and nobody has it any more.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

/// One end of a connection, as the library above would have it.
struct Conn {
    lane: u16,
    stream: u64,
    /// Outbound, inbound.
    words: NonNull<[RingWords; 2]>,
    producer: Producer,
    consumer: Consumer,
    written: u64,
    read: u64,
}

impl Conn {
    fn out(&self) -> &RingWords {
        // SAFETY: freed in `free` alone; atomics.
        unsafe { &(*self.words.as_ptr())[0] }
    }
    fn inb(&self) -> &RingWords {
        // SAFETY: as above.
        unsafe { &(*self.words.as_ptr())[1] }
    }

    /// Writes up to `len` bytes and publishes them. Returns how many.
    fn produce(&mut self, len: usize) -> usize {
        let bytes: Vec<u8> = (0..len as u64).map(|i| byte(self.stream, self.written + i)).collect();
        // SAFETY: a vector of ours.
        let n = unsafe { self.producer.write(bytes.as_ptr(), len) }.unwrap();
        let _ = self.producer.publish();
        self.written += n as u64;
        n
    }

    /// Reads up to `len` bytes, looks at each, publishes the head. Returns how many.
    fn consume(&mut self, len: usize) -> usize {
        let mut bytes = std::vec![0u8; len];
        // SAFETY: a vector of ours.
        let n = unsafe { self.consumer.read(bytes.as_mut_ptr(), len) }.unwrap();
        for (i, got) in bytes[..n].iter().enumerate() {
            assert_eq!(
                *got,
                byte(self.stream ^ 1, self.read + i as u64),
                "stream {} at {}",
                self.stream,
                self.read
            );
        }
        let _ = self.consumer.publish();
        self.read += n as u64;
        n
    }

    /// Writes some bytes that nobody looks at. False: the ring says that its words are impossible.
    fn produce_unchecked(&mut self, len: usize) -> bool {
        let bytes = std::vec![7u8; len];
        // SAFETY: a vector of ours.
        let n = unsafe { self.producer.write(bytes.as_ptr(), len) };
        let _ = self.producer.publish();
        n.is_ok()
    }

    fn free(self) {
        // SAFETY: from `Box::into_raw`, and the engine has given the lane back.
        drop(unsafe { Box::from_raw(self.words.as_ptr()) });
    }
}

/// One host with one pair.
struct End {
    host: Arc<Memory>,
    manager: memory::Manager,
    device: memory::Device,
    domain: memory::Domain,
    hub: Hub<Memory>,
    pool: Pool<Memory>,
    blocks: Vec<Block>,
    receives: Vec<Block>,
    lanes: Option<Arc<Lanes<Memory>>>,
    pair: Option<memory::Pair>,
    conns: Vec<Option<Conn>>,
    news: Vec<News>,
    /// What posting has found the pair to be lost by.
    found: Option<Reason>,
}

impl End {
    fn new(net: &Net, side: usize, model: Model) -> Self {
        let host = Arc::new(net.host(ADDRESSES[side], model));
        let manager = host.open_manager().unwrap();
        let device = host.open_device(&manager, ADDRESSES[side], 0).unwrap();
        let domain = host.open_domain(&device).unwrap();
        let queue = host.open_queue(&device, 4096, 0).unwrap();
        let hub = Hub::new(Arc::clone(&host), queue, 4096);
        Self {
            host,
            manager,
            device,
            domain,
            hub,
            pool: Pool::new(RING, 0, 1 << 20),
            blocks: Vec::new(),
            receives: Vec::new(),
            lanes: None,
            pair: None,
            conns: Vec::new(),
            news: Vec::new(),
            found: None,
        }
    }

    fn facts(&self) -> &Facts {
        self.host.facts(&self.device)
    }

    fn lanes(&self) -> &Arc<Lanes<Memory>> {
        self.lanes.as_ref().unwrap()
    }

    fn conn(&mut self, lane: u16) -> &mut Conn {
        self.conns[usize::from(lane)].as_mut().unwrap()
    }

    fn create(&self, pair: &mut memory::Pair, capacity: Capacity) {
        let create = |queue: &_| self.host.create(pair, &self.domain, queue, capacity);
        self.hub.with_queue(create).unwrap().unwrap();
    }

    /// Gives a pair of the manager's its lanes.
    fn make_lanes(&mut self, mut pair: memory::Pair, settings: Settings) {
        assert!(!settings.immediate || self.facts().writes_imm);
        let capacity = Capacity {
            sends: settings.sends,
            receives: settings.receives,
            inline_bytes: settings.inline_bytes,
        };
        self.create(&mut pair, capacity);
        let tag = self.hub.reserve(TID, &settings).unwrap();
        let block = Block::new(settings.memory_bytes());
        // SAFETY: freed after the pair is dismantled.
        let lanes = unsafe {
            Lanes::new(Arc::clone(&self.host), tag, settings, (&self.domain, &pair), block.0)
        }
        .unwrap();
        self.receives.push(block);
        let lanes = Arc::new(lanes);
        self.hub.add(TID, Arc::clone(&lanes)).unwrap();
        self.lanes = Some(lanes);
        self.pair = Some(pair);
        self.conns = (0..settings.lanes).map(|_| None).collect();
    }

    fn rings(&mut self) -> arena::Rings<Memory> {
        if let Some(rings) = self.pool.take() {
            return rings;
        }
        let block = Block::new(self.pool.next_bytes());
        // SAFETY: freed after the pool is closed.
        unsafe { self.pool.grow(&self.host, &self.domain, block.0, block.1.size()) }.unwrap();
        self.blocks.push(block);
        self.pool.take().unwrap()
    }

    fn open(&mut self, lane: u16, stream: u64) {
        let rings = self.rings();
        let words = NonNull::new(Box::into_raw(Box::<[RingWords; 2]>::default())).unwrap();
        let out = words.cast::<RingWords>();
        // SAFETY: the second of two.
        let inb = unsafe { out.add(1) };
        let (outbound, inbound, size) = (rings.outbound(), rings.inbound(), rings.ring_bytes());
        // SAFETY: words and rings live until `take_back` or `close`.
        let (producer, consumer) = unsafe {
            (Producer::new(out, outbound, size, 0), Consumer::new(inb, inbound, size, 0))
        };
        self.conns[usize::from(lane)] =
            Some(Conn { lane, stream, words, producer, consumer, written: 0, read: 0 });
        // SAFETY: as above; the producer and the consumer are the only ones.
        let kicked = unsafe { self.lanes().open(lane, out, inb, rings, stream & !1) }.unwrap();
        self.heed(kicked);
    }

    /// Who posts may find that the pair is lost, as who polls, and is told at once.
    fn heed(&mut self, kicked: Kicked) {
        if let Kicked::Lost(why) = kicked {
            self.found = Some(why);
        }
    }

    fn poll(&mut self) -> usize {
        let news = &mut self.news;
        self.hub.poll(TID, &mut |_, n| news.push(n)).unwrap_or(0)
    }

    fn produce(&mut self, lane: u16, len: usize) -> usize {
        let n = self.conn(lane).produce(len);
        let kicked = self.lanes().kick(lane);
        self.heed(kicked);
        n
    }

    fn consume(&mut self, lane: u16, len: usize) -> usize {
        let conn = self.conn(lane);
        let n = conn.consume(len);
        let head = conn.inb().head.load(Relaxed);
        self.lanes().consumed(lane, head);
        n
    }

    /// What became of the pair.
    fn lost(&self) -> Option<Reason> {
        self.lanes().lost()
    }

    fn take_back(&mut self, lane: u16) -> Option<Reopened> {
        let taken = self.hub.take_back(TID, self.lanes(), lane).unwrap();
        if let Some(rings) = taken.rings {
            self.pool.give_back(rings);
        }
        if let Some(conn) = self.conns[usize::from(lane)].take() {
            conn.free();
        }
        taken.reopened
    }

    /// Where the peer may write.
    fn arena_remote(&mut self) -> netacc_verbs::fabric::Remote {
        let rings = self.rings();
        let remote = rings.arena.remote;
        self.pool.give_back(rings);
        remote
    }

    /// Takes the engine away from a pair.
    fn steal_pair(&mut self) -> (memory::Pair, memory::Region) {
        let lanes = self.lanes.take().unwrap();
        let tag = lanes.tag();
        self.hub.remove(TID, tag).unwrap().unwrap();
        let pair = Arc::into_inner(lanes).unwrap().into_pair();
        self.hub.release(TID, tag).unwrap();
        self.conns.clear();
        pair
    }

    /// Closes the pair, and with it the connections.
    fn close_lanes(&mut self) {
        let Some(lanes) = self.lanes.take() else { return };
        let tag = lanes.tag();
        self.hub.remove(TID, tag).unwrap().unwrap();
        let parts = Arc::try_unwrap(lanes).unwrap().dismantle(self.pair.take());
        assert_eq!(parts.error, None);
        for rings in parts.rings {
            self.pool.give_back(rings);
        }
        self.hub.release(TID, tag).unwrap();
        for conn in self.conns.drain(..).flatten() {
            conn.free();
        }
    }

    /// Closes everything: nothing was forgotten.
    fn close(mut self) {
        self.close_lanes();
        let mut pieces = 0;
        let blocks = self.blocks.len();
        self.pool.close(&self.host, |_, _| pieces += 1);
        assert_eq!(pieces, blocks, "rings are missing");
        self.host.close_domain(self.domain).unwrap();
        self.hub.close(TID).unwrap();
        assert_eq!(self.hub.poll(TID, &mut |_, _| {}), Ok(0));
        self.host.close_device(self.device).unwrap();
        self.host.close_manager(self.manager).unwrap();
        assert_eq!(self.host.net().objects(&self.host), 0);
        self.blocks.into_iter().chain(self.receives).for_each(Block::free);
    }
}

/// Two hosts, a pair between them.
struct Rig {
    net: Net,
    ends: [End; 2],
}

impl Rig {
    fn new(order: Order, model: Model, settings: Settings) -> Self {
        Self::of(order, model, [settings; 2])
    }

    fn of(order: Order, model: Model, settings: [Settings; 2]) -> Self {
        let net = Net::new(order);
        let ends = [0, 1].map(|side| End::new(&net, side, model));
        let mut rig = Self { net, ends };
        rig.connect(settings);
        rig
    }

    /// End 1 connects to end 0.
    fn connect(&mut self, settings: [Settings; 2]) {
        self.join(settings);
        for side in [1, 0] {
            self.start(side);
        }
    }

    /// A connected end may post from here on.
    fn start(&mut self, side: usize) {
        let end = &mut self.ends[side];
        let pair = end.pair.take().unwrap();
        end.lanes().start(pair, side == 1).unwrap();
        end.poll();
    }

    /// Makes pairs, and connects them.
    fn join(&mut self, settings: [Settings; 2]) {
        let [a, b] = &mut self.ends;
        // What is left of an earlier pair.
        for end in [&*a, &*b] {
            while end.host.next_event(&end.manager).unwrap().is_some() {}
        }
        let address = SocketAddr::new(ADDRESSES[0], PORT);
        let listener = a.host.listen(&a.manager, address, 1, 7).unwrap();
        let pair = b.host.resolve(&b.manager, ADDRESSES[1], address, 1000, 8).unwrap();
        assert!(matches!(b.host.next_event(&b.manager).unwrap().unwrap().news, CmNews::Resolved));
        b.make_lanes(pair, settings[1]);
        b.host.connect(b.pair.as_mut().unwrap(), &[], Patience::DEFAULT).unwrap();
        let CmNews::Request { pair, .. } = a.host.next_event(&a.manager).unwrap().unwrap().news
        else {
            panic!()
        };
        a.make_lanes(pair, settings[0]);
        a.host.accept(a.pair.as_mut().unwrap(), &[], Patience::DEFAULT).unwrap();
        for end in [b, a] {
            let news = end.host.next_event(&end.manager).unwrap().unwrap().news;
            assert!(matches!(news, CmNews::Established { .. }), "{news:?}");
        }
        let [a, _] = &self.ends;
        a.host.close_listener(listener).unwrap();
    }

    /// Opens lanes `0..count` at both ends.
    fn open(&mut self, count: u16) {
        for lane in 0..count {
            for side in [0, 1] {
                self.ends[side].open(lane, u64::from(lane) << 1 | side as u64);
            }
        }
        self.settle();
    }

    /// Until nothing happens any more without the applications.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            assert!(self.net.settle());
            if self.ends[0].poll() + self.ends[1].poll() == 0 {
                return;
            }
        }
        panic!("it does not come to an end");
    }

    /// Until everything that was published is read.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            self.settle();
            let mut moved = 0;
            for end in &mut self.ends {
                for lane in 0..end.conns.len() as u16 {
                    if end.conns[usize::from(lane)].is_some() {
                        moved += end.consume(lane, RING);
                    }
                }
            }
            if moved == 0 {
                return;
            }
        }
        panic!("it does not come to an end");
    }

    /// At rest: a reply says that its request is consumed, whatever was before.
    fn replies_acknowledge(&mut self, lane: u16) {
        for round in 0..4 {
            for (from, to) in [(0, 1), (1, 0)] {
                self.ends[from].produce(lane, 50);
                self.settle();
                assert_eq!(self.ends[to].consume(lane, RING), 50);
            }
            // What was marked before may have been reached by a credit: the first rounds say so.
            if round > 1 {
                let written = self.ends[0].conn(lane).written;
                assert_eq!(
                    self.ends[0].lanes().account(lane).unwrap().acknowledged,
                    written,
                    "round {round}"
                );
            }
        }
    }

    /// Everything that was written was read.
    fn check(&self) {
        for (side, end) in self.ends.iter().enumerate() {
            assert_eq!(end.lost(), None);
            for conn in end.conns.iter().flatten() {
                let peer = self.ends[side ^ 1].conns[usize::from(conn.lane)].as_ref().unwrap();
                assert_eq!(conn.written, peer.read, "lane {}", conn.lane);
            }
        }
    }

    fn close(self) {
        self.ends.into_iter().for_each(End::close);
    }
}
