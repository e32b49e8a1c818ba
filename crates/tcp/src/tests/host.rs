//! Two hosts over the network: an application that writes and reads at random, the rings, and what
//! drives a connection. Each byte that is read is compared.

use super::network::{Impairment, Link};
use super::random::Random;
use crate::wire::emit::{Checksum, HEADERS_MAX, Service, headers};
use crate::wire::parse::{Checksums, packet};
use crate::wire::{Endpoint, Flow};
use crate::{
    Bounds, Connection, Nanos, Negotiated, Parameters, ReceiveStart, SendStart, StampStart,
    Verdict, Wishes,
};
use std::vec::Vec;

pub(super) const MS: Nanos = 1_000_000;

/// What a world is like.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) there: Impairment,
    pub(super) back: Impairment,
    /// How much each end sends.
    pub(super) bytes: [u64; 2],
    pub(super) capacity: u64,
    pub(super) mss: u16,
    pub(super) run: u32,
    pub(super) stamps: bool,
    pub(super) scale: u8,
    pub(super) ecn: bool,
    pub(super) v6: bool,
    /// The applications pause, write and read parts; otherwise all at once.
    pub(super) moody: bool,
    /// Of a thousand events, at how many an end is given back and taken over again.
    pub(super) takes: u64,
    pub(super) records: usize,
    pub(super) ranges: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let plain = Impairment { delay: MS, detour: 3 * MS, ..Impairment::default() };
        Self {
            there: plain,
            back: plain,
            bytes: [200_000, 50_000],
            capacity: 100_000,
            mss: 1448,
            run: 30_000,
            stamps: true,
            scale: 7,
            ecn: false,
            v6: false,
            moody: true,
            takes: 0,
            records: 128,
            ranges: 32,
        }
    }
}

/// The byte at that place of a stream.
fn byte(seed: u64, at: u64) -> u8 {
    ((at ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u8
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) connection: Connection,
    flow: Flow,
    seed: u64,
    random: Random,
    setup: Setup,
    /// Offsets of the whole streams; those of the connection are counted from `sent_base` and
    /// `got_base`.
    total: u64,
    written: u64,
    sent_base: u64,
    expected: u64,
    read: u64,
    got_base: u64,
    ring: Vec<u8>,
    next_step: Nanos,
    pub(super) takes: u64,
}

impl Host {
    fn new(setup: &Setup, end: usize, numbers: [u32; 2], seed: u64, now: Nanos) -> Self {
        let address = |end: usize| -> Endpoint {
            let text = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"];
            let address = text[end + if setup.v6 { 2 } else { 0 }].parse().unwrap();
            Endpoint { address, port: 1000 + end as u16 }
        };
        let window =
            (setup.capacity as u32).min(65535 << setup.scale) >> setup.scale << setup.scale;
        let stamps = StampStart { value: numbers[end] ^ 0x5555, tick: MS, recent: None };
        let parameters = Parameters {
            now,
            send: SendStart {
                una: numbers[end],
                in_flight: 0,
                queued: 0,
                window,
                window_max: window,
                scale: setup.scale,
                mss: setup.mss,
                cwnd: 10,
                ssthresh: u32::MAX,
                srtt: 0,
                rttvar: 0,
                rto_min: 200 * MS,
            },
            receive: ReceiveStart {
                nxt: numbers[1 - end],
                acked: numbers[1 - end],
                window,
                scale: setup.scale,
                room: setup.capacity,
                capacity: setup.capacity,
                segment: 536,
                segment_max: setup.mss,
            },
            options: Negotiated {
                sack: true,
                stamps: setup.stamps.then_some(stamps),
                ecn: setup.ecn,
            },
            wishes: Wishes {
                nodelay: seed.is_multiple_of(3),
                keep_alive: None,
                user_timeout: None,
                ack_delay: 40 * MS,
            },
            bounds: Bounds {
                records: setup.records,
                ranges: setup.ranges,
                timeouts: 1000,
                run: setup.run,
            },
        };
        Self {
            connection: Connection::taken_over(&parameters).unwrap(),
            flow: Flow { source: address(end), destination: address(1 - end) },
            seed: seed ^ end as u64,
            random: Random::new(seed * 2 + end as u64),
            setup: setup.clone(),
            total: setup.bytes[end],
            written: 0,
            sent_base: 0,
            expected: setup.bytes[1 - end],
            read: 0,
            got_base: 0,
            ring: std::vec![0; setup.capacity as usize],
            next_step: now,
            takes: 0,
        }
    }

    fn readable(&self) -> u64 {
        self.got_base + self.connection.readable()
    }

    fn acknowledged(&self) -> u64 {
        self.sent_base + self.connection.acknowledged()
    }

    fn receive(&mut self, now: Nanos, bytes: &[u8]) {
        let Ok(read) = packet(bytes, Checksums::Compare) else { return };
        if read.flow != self.flow.reversed() {
            // (A bit was turned where no checksum would show it.)
            return;
        }
        let before = self.readable();
        let length = read.payload.len() as u32;
        match self.connection.on_segment(now, &read.segment, length) {
            Verdict::Taken { write: Some(write) } => {
                let at = self.got_base + write.offset;
                assert!(at >= before, "what is readable is never written again");
                assert!(at + write.length <= self.read + self.setup.capacity);
                let bytes = &read.payload[write.skip as usize..][..write.length as usize];
                for (at, &byte) in (at..).zip(bytes) {
                    self.ring[(at % self.setup.capacity) as usize] = byte;
                }
            }
            Verdict::Taken { .. } | Verdict::Dropped => {}
            Verdict::GiveBack(reason) => panic!("given back: {reason:?}"),
        }
    }

    fn read(&mut self, most: u64) {
        let to = self.readable().min(self.read.saturating_add(most));
        assert!(to <= self.expected);
        for at in self.read..to {
            let got = self.ring[(at % self.setup.capacity) as usize];
            assert_eq!(got, byte(self.seed ^ 1, at), "at {at}");
        }
        self.read = to;
        self.connection.on_room(self.read + self.setup.capacity - self.got_base);
    }

    /// The application does something.
    fn step(&mut self, now: Nanos) {
        let moody = self.setup.moody;
        let some = |random: &mut Random, most: u64| match random.below(6) {
            0 => 0,
            1 => random.below(50).min(most),
            2 => random.below(most / 10 + 1),
            _ => random.below(most + 1),
        };
        let most = if moody { some(&mut self.random, self.setup.capacity) } else { u64::MAX };
        self.read(most);
        let room = (self.acknowledged() + self.setup.capacity).saturating_sub(self.written);
        let room = room.min(self.total - self.written);
        let more = if moody { some(&mut self.random, room) } else { room };
        self.written += more;
        let hold = moody && self.written < self.total && self.random.below(4) == 0;
        self.connection.on_written(now, self.written - self.sent_base, hold);
        if self.random.below(3) == 0 {
            self.connection.on_waiting();
        }
        let pause = match self.random.below(if moody { 30 } else { 1 }) {
            29 => 3000 * MS,
            28 => 300 * MS,
            _ => MS / 5,
        };
        self.next_step = now + 1 + self.random.below(pause);
    }

    fn transmit(&mut self, now: Nanos, link: &mut Link) {
        while let Some(out) = self.connection.poll_send(now) {
            let mut parts = Vec::new();
            let mut at = 0;
            loop {
                let length = (out.length - at).min(out.segment_size);
                parts.push((at, length));
                at += length;
                if at >= out.length {
                    break;
                }
            }
            let last = parts.len() - 1;
            for (index, (at, length)) in parts.into_iter().enumerate() {
                let mut segment = out.segment;
                segment.seq = segment.seq.wrapping_add(at as u32);
                if index < last {
                    segment.flags.0 &= !8;
                }
                let from = self.sent_base + out.offset + at;
                assert!(length == 0 || from >= self.acknowledged());
                assert!(length == 0 || from + length <= self.written);
                let payload: Vec<u8> =
                    (from..from + length).map(|at| byte(self.seed, at)).collect();
                let whole = payload.len() + segment.options.length();
                let most = self.setup.mss as usize + if self.setup.stamps { 12 } else { 0 };
                assert!(length == 0 || whole <= most, "{whole} bytes in a segment");
                let service =
                    Service { hops: 64, class: 0, ecn_capable: out.ecn_capable, flow_label: 0 };
                let mut header = [0; HEADERS_MAX];
                let here = Checksum::Here(&payload);
                let of = (&self.flow, &service);
                let size = headers(of, &segment, payload.len(), here, &mut header).unwrap();
                link.send(now, [&header[..size], &payload].concat());
            }
        }
    }

    /// Gives the connection back and takes it over again, as the kernel would have kept it.
    fn take(&mut self, now: Nanos) {
        self.takes += 1;
        let figures = self.connection.figures();
        let setup = self.setup.clone();
        let fresh = Self::new(&setup, 0, [1, 1], self.seed, now).connection;
        let repair = core::mem::replace(&mut self.connection, fresh).give_back(now);
        let window = repair.window;
        // What Linux's tcp_repair_set_window wants.
        assert!(window.max_window >= window.snd_wnd);
        let offered = window.rcv_wup.wrapping_add(window.rcv_wnd);
        assert!(offered.wrapping_sub(repair.receive_seq) < 1 << 31);
        assert!(repair.receive_seq.wrapping_sub(window.rcv_wup) < 1 << 31);
        self.sent_base += repair.send_from;
        self.got_base += repair.receive_to;
        let small = |bytes: u64| u32::try_from(bytes).unwrap();
        let segments = |bytes: u64| small((bytes / repair.mss).min(1 << 20));
        let parameters = Parameters {
            now,
            send: SendStart {
                una: repair.send_seq,
                in_flight: small(repair.send_sent - repair.send_from),
                queued: small(repair.send_to - repair.send_from),
                window: window.snd_wnd,
                window_max: window.max_window,
                scale: setup.scale,
                mss: setup.mss,
                cwnd: segments(figures.cwnd),
                ssthresh: segments(figures.ssthresh),
                srtt: figures.srtt.unwrap_or(0),
                rttvar: figures.rttvar,
                rto_min: 200 * MS,
            },
            receive: ReceiveStart {
                nxt: repair.receive_seq,
                acked: window.rcv_wup,
                window: window.rcv_wnd,
                scale: setup.scale,
                room: self.read + setup.capacity - self.got_base,
                capacity: setup.capacity,
                segment: 536,
                segment_max: setup.mss,
            },
            options: Negotiated {
                sack: true,
                stamps: repair.stamp.map(|value| StampStart { value, tick: MS, recent: None }),
                ecn: setup.ecn,
            },
            wishes: Wishes {
                nodelay: false,
                keep_alive: None,
                user_timeout: None,
                ack_delay: 40 * MS,
            },
            bounds: Bounds {
                records: setup.records,
                ranges: setup.ranges,
                timeouts: 1000,
                run: setup.run,
            },
        };
        self.connection = Connection::taken_over(&parameters).unwrap();
    }

    fn is_done(&self) -> bool {
        self.read == self.expected && self.acknowledged() == self.total
    }
}

/// Two hosts and what is between them.
#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Nanos,
    pub(super) hosts: [Host; 2],
    pub(super) links: [Link; 2],
    random: Random,
    takes: u64,
}

impl World {
    pub(super) fn new(setup: &Setup, seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Often a number that soon wraps.
        let mut number = || match random.below(3) {
            0 => u32::MAX - random.below(100_000) as u32,
            1 => (1 << 31) - random.below(100_000) as u32,
            _ => random.next() as u32,
        };
        let numbers = [number(), number()];
        let now = random.below(1 << 40);
        Self {
            now,
            hosts: [0, 1].map(|end| Host::new(setup, end, numbers, seed, now)),
            links: [Link::new(setup.there, seed), Link::new(setup.back, !seed)],
            random,
            takes: setup.takes,
        }
    }

    /// One moment.
    fn step(&mut self) {
        let next = self.hosts.iter().flat_map(|host| {
            [Some(host.next_step).filter(|_| !host.is_done()), host.connection.next_timer()]
        });
        let next = next.chain(self.links.iter().map(Link::next)).flatten().min();
        self.now = self.now.max(next.expect("something is always due before the end"));
        for end in 0..2 {
            let host = &mut self.hosts[end];
            while let Some(bytes) = self.links[1 - end].receive(self.now) {
                host.receive(self.now, &bytes);
                host.connection.check();
            }
            if host.connection.next_timer().is_some_and(|at| at <= self.now) {
                assert_eq!(host.connection.on_timer(self.now), None);
            }
            // (Not for ever: each begins the timeout again.)
            if host.takes < 50 && self.random.of_thousand(self.takes) {
                host.take(self.now);
            }
            if host.next_step <= self.now {
                host.step(self.now);
            }
            host.transmit(self.now, &mut self.links[end]);
            host.connection.check();
        }
    }

    /// Runs to the end, which has to come within so much time; says how much it was.
    pub(super) fn run(&mut self, within: Nanos) -> Nanos {
        let began = self.now;
        let mut moments = 0;
        while !self.hosts.iter().all(Host::is_done) {
            self.step();
            moments += 1;
            assert!(moments < 2_000_000, "too many moments: {:#?}", self.tell());
            assert!(self.now - began < within, "no progress: {:#?}", self.tell());
        }
        self.now - began
    }

    fn tell(&self) -> Vec<std::string::String> {
        let hosts = self.hosts.iter().map(|host| {
            std::format!(
                "read {} of {}, written {} of {}, {:?}",
                host.read,
                host.expected,
                host.written,
                host.total,
                host.connection.figures()
            )
        });
        hosts.chain(self.links.iter().map(|link| std::format!("{:?}", link.told))).collect()
    }
}
