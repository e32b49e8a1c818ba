//! A network in memory under a virtual clock, and the same impairments before a real device. For
//! tests.
//!
//! A [`Network`] has two ends, each of which is a [`Port`]. What is sent at one is divided and has
//! its checksum completed as a device does it, or goes as it is, as on a virtual link; is lost,
//! duplicated, corrupted, delayed, overtaken, throttled as its [`Impairment`] says; and comes out
//! at the other when the clock has come so far. All that is random comes from a seed.
//!
//! [`Impaired`] has a real port below it: what it loses, a real peer has to do without.

mod division;
mod link;

pub use division::segments;
pub use link::{Impairment, Told};

use crate::port::{Arrived, Frame, Port, Sent};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use link::{Link, Travelling};

/// Nanoseconds.
pub type Nanos = u64;

/// A clock that goes when it is told to.
#[derive(Clone, Debug, Default)]
pub struct Clock(Rc<Cell<Nanos>>);

impl Clock {
    /// What it says.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.0.get()
    }

    /// It goes on to there, if that is later.
    pub fn advance(&self, to: Nanos) {
        self.0.set(self.0.get().max(to));
    }
}

/// Two ends, and what is between them.
#[derive(Debug)]
pub struct Network {
    clock: Clock,
    links: [Rc<RefCell<Link>>; 2],
}

/// One end of a network.
#[derive(Debug)]
pub struct End {
    clock: Clock,
    out: Rc<RefCell<Link>>,
    back: Rc<RefCell<Link>>,
    /// Packets stay as they are sent: divided by nobody, with the sum of the pseudo-header.
    virtual_link: bool,
}

impl Network {
    /// With what each direction does to packets. On a virtual link they are not divided.
    #[must_use]
    pub fn new(does: [Impairment; 2], virtual_link: bool, seed: u64) -> (Self, [End; 2]) {
        let clock = Clock::default();
        let [there, back] = does;
        let links = [Link::new(there, seed), Link::new(back, !seed)]
            .map(|link| Rc::new(RefCell::new(link)));
        let [there, back] = &links;
        let end = |out: &Rc<RefCell<Link>>, back: &Rc<RefCell<Link>>| End {
            clock: clock.clone(),
            out: out.clone(),
            back: back.clone(),
            virtual_link,
        };
        let ends = [end(there, back), end(back, there)];
        (Self { clock: clock.clone(), links }, ends)
    }

    /// The clock of both ends.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// When the next packet comes out somewhere.
    #[must_use]
    pub fn next(&self) -> Option<Nanos> {
        self.links.iter().filter_map(|link| link.borrow().next()).min()
    }

    /// What each direction has done.
    #[must_use]
    pub fn told(&self) -> [Told; 2] {
        self.links.each_ref().map(|link| link.borrow().told)
    }
}

impl Port for End {
    fn send(&mut self, frame: &Frame<'_>) -> Sent {
        let packets = if self.virtual_link {
            let mut packet = frame.headers.to_vec();
            for part in frame.payload {
                packet.extend(part);
            }
            [Travelling { packet, checked: true }].to_vec()
        } else {
            let divided = segments(frame).into_iter();
            divided.map(|packet| Travelling { packet, checked: false }).collect()
        };
        for packet in packets {
            self.out.borrow_mut().send(self.clock.now(), packet);
        }
        Sent::Taken
    }

    fn receive<R>(&mut self, take: impl FnOnce(Arrived<'_>) -> R) -> Option<R> {
        let came = self.back.borrow_mut().receive(self.clock.now())?;
        Some(take(Arrived { packet: &came.packet, checked: came.checked }))
    }
}

/// A frame that waits, with memory of its own.
#[derive(Clone, Debug)]
struct Waiting {
    to: [u8; 6],
    headers: Vec<u8>,
    ip_header: usize,
    payload: Vec<u8>,
    segment: usize,
}

/// A real port that loses, duplicates and delays both ways, by the clock that it is told.
#[derive(Debug)]
pub struct Impaired<P> {
    /// The real one.
    pub port: P,
    /// What time it is.
    pub clock: Clock,
    out: Link<Waiting>,
    back: Link<Travelling>,
}

impl<P: Port> Impaired<P> {
    /// With what it does to packets that go out, and to those that come.
    pub fn new(port: P, does: [Impairment; 2], seed: u64) -> Self {
        let [out, back] = does;
        let (out, back) = (Link::new(out, seed), Link::new(back, !seed));
        Self { port, clock: Clock::default(), out, back }
    }

    /// What both directions have done.
    #[must_use]
    pub const fn told(&self) -> [Told; 2] {
        [self.out.told, self.back.told]
    }

    /// Hands on what has waited for its time.
    fn go_on(&mut self) {
        let now = self.clock.now();
        while let Some(w) = self.out.receive(now) {
            let Waiting { to, headers, ip_header, payload, segment } = &w;
            let payload = [&payload[..], &[]];
            let (to, ip_header, segment) = (*to, *ip_header, *segment);
            self.port.send(&Frame { to, headers, ip_header, payload, segment });
        }
        let back = &mut self.back;
        while self
            .port
            .receive(|came| {
                let (packet, checked) = (came.packet.to_vec(), came.checked);
                back.send(now, Travelling { packet, checked });
            })
            .is_some()
        {}
    }
}

impl<P: Port> Port for Impaired<P> {
    fn send(&mut self, frame: &Frame<'_>) -> Sent {
        let &Frame { to, headers, ip_header, payload: [first, second], segment } = frame;
        let (headers, payload) = (headers.to_vec(), [first, second].concat());
        let waiting = Waiting { to, headers, ip_header, payload, segment };
        self.out.send(self.clock.now(), waiting);
        self.go_on();
        Sent::Taken
    }

    fn receive<R>(&mut self, take: impl FnOnce(Arrived<'_>) -> R) -> Option<R> {
        self.go_on();
        let came = self.back.receive(self.clock.now())?;
        Some(take(Arrived { packet: &came.packet, checked: came.checked }))
    }
}

impl link::Packet for Waiting {
    fn length(&self) -> u64 {
        (self.headers.len() + self.payload.len()) as u64
    }

    /// The device makes the checksum right again, so nothing would notice.
    fn corrupt(&mut self, _: u64) {}
}

#[cfg(test)]
mod tests;
