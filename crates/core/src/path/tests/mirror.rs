//! The engine of `loop`, and its agent.

use super::{A, C};
use crate::agent::{Agent, Noted, Used};
use crate::candidates::NOTED_AFTER;
use crate::channel::{Channel, ChannelMem, announce, producer_quiet, quiet};
use crate::io::{Departure, Moved};
use crate::lock::lock_end;
use crate::path::{Far, PathId};
use crate::socket::{Offer, Socket, State, flag, offered};
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use netacc_control::stats::Reason;
use netacc_proto::rendezvous::Tuple;
use netacc_proto::switchover::Peer;
use netacc_ring::RingWords;
use std::boxed::Box;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use std::vec::Vec;
use std::{thread, vec};

/// Connections of one run, at most: no slot is used again.
const SEATS: usize = 256;
const RING_BYTES: usize = 32 << 10;

// ---- the far end, as data calls know it ---------------------------------------------------------

/// Plays the far ends of one side's channel.
pub(crate) struct Engine {
    /// The epoch of this side's announcement that stands at the other side.
    seen_epoch: [AtomicU32; SEATS],
    /// A connection is to leave: why, and whether for a while only.
    wanted: [Mutex<Option<(Reason, bool)>>; SEATS],
}

static ENGINES: [Engine; 2] = [const {
    Engine {
        seen_epoch: [const { AtomicU32::new(0) }; SEATS],
        wanted: [const { Mutex::new(None) }; SEATS],
    }
}; 2];

impl Engine {
    /// Something was published on a slot. The caller may hold an end: nothing is done here.
    pub(crate) fn kick(&self, _slot: usize) {
        wake();
    }

    pub(crate) fn seen_epoch(&self, slot: usize) -> u32 {
        self.seen_epoch[slot].load(SeqCst)
    }

    pub(crate) fn demote(&self, slot: usize, why: Reason, again: bool) {
        let mut wanted = self.wanted[slot].lock().unwrap();
        // Who asks first says why; who wants it for good has the last word.
        match &mut *wanted {
            Some((_, for_a_while)) => *for_a_while &= again,
            none => *none = Some((why, again)),
        }
        drop(wanted);
        wake();
    }

    fn wants(&self, slot: usize) -> Option<(Reason, bool)> {
        *self.wanted[slot].lock().unwrap()
    }
}

/// The channel of a side.
fn channel(side: usize) -> &'static Channel {
    static CHANNELS: OnceLock<[&'static Channel; 2]> = OnceLock::new();
    CHANNELS.get_or_init(|| [A, C].map(new_channel))[side]
}

/// A channel of that side, without a connection.
pub(crate) fn new_channel(side: usize) -> &'static Channel {
    let mem = sys::map_own(size_of::<ChannelMem>()).cast();
    // SAFETY: mapped just now, and never taken away.
    unsafe { Channel::make(mem, side, Far::Loop(&ENGINES[side])).unwrap().as_ref() }.unwrap()
}

/// Application threads look for news, perhaps with an end held: what comes is brought over, and
/// nothing else. (Whoever has the seats may want an end: they are not waited for.)
pub(crate) fn poll() {
    if let Ok(seats) = SEATED.try_lock() {
        for (slot, seat) in seats.iter().enumerate().filter(|(_, seat)| !seat.leaving) {
            seat.carry(slot);
        }
    }
}

/// What comes from here on the engine's thread brings over.
pub(crate) fn before_sleep() {
    wake();
}

// ---- connections --------------------------------------------------------------------------------

/// One end of a connection.
struct End {
    socket: &'static Socket,
    generation: u16,
    /// The rings that it produces into and consumes from, in its own memory.
    out: &'static [AtomicU64],
    inb: &'static [AtomicU64],
    /// The control word of its acknowledgement that stands at the other side.
    seen_ack: u64,
    /// On its way back to the carrier.
    departure: Option<Departure>,
    /// It makes no further use of the slot.
    left: bool,
}

/// A connection, on the slot of its number.
struct Seat {
    ends: [End; 2],
    /// Nothing is brought over any more.
    leaving: bool,
}

static SEATED: Mutex<Vec<Seat>> = Mutex::new(Vec::new());
/// Slots that an end has given up, with its side.
static RELEASED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Copies the bytes from `at` on, which may wrap around.
fn copy(from: &[AtomicU64], to: &[AtomicU64], at: usize, n: usize) {
    let (from, to) = (from.as_ptr().cast::<u8>(), to.as_ptr().cast::<u8>().cast_mut());
    let first = n.min(RING_BYTES - at);
    // SAFETY: within both rings; nobody else is at these bytes: their producer has published them,
    // and their consumer has not been told of them.
    unsafe {
        core::ptr::copy_nonoverlapping(from.add(at), to.add(at), first);
        core::ptr::copy_nonoverlapping(from, to, n - first);
    }
}

impl Seat {
    /// The words of what `from` produces, at its own end and at the other one.
    fn words(slot: usize, from: usize) -> (&'static RingWords, &'static RingWords) {
        (channel(from).words(slot, from), channel(from ^ 1).words(slot, from))
    }

    /// Brings bytes over, and back how far they were consumed.
    fn carry(&self, slot: usize) {
        for from in [A, C] {
            let (here, there) = Seat::words(slot, from);
            let (tail, had) = (here.tail.load(Acquire), there.tail.load(Relaxed));
            if tail != had {
                let base = here.base.load(Relaxed);
                let at = had.wrapping_sub(base) as usize % RING_BYTES;
                let n = tail.wrapping_sub(had) as usize;
                copy(self.ends[from].out, self.ends[from ^ 1].inb, at, n);
                there.base.store(base, Relaxed);
                there.tail.store(tail, Release);
                channel(from ^ 1).announce_here(slot, &there.quiet[quiet::NOTIFY]);
            }
            let head = there.head.load(Acquire);
            if here.head.swap(head, AcqRel) != head && here.space_wanted.swap(0, SeqCst) != 0 {
                channel(from).announce_here(slot, &here.producer_quiet[producer_quiet::NOTIFY]);
            }
        }
    }

    /// Brings over what either end says of its paths.
    fn say(&mut self, slot: usize) {
        for from in [A, C] {
            let (here, there) = Seat::words(slot, from);
            let epoch = here.producer_user[announce::EPOCH].load(Acquire);
            for word in [announce::FAST_FROM, announce::CARRIER_FROM, announce::RESEND_TO] {
                there.producer_user[word].store(here.producer_user[word].load(Relaxed), Relaxed);
            }
            let mut news = there.producer_user[announce::EPOCH].swap(epoch, AcqRel) != epoch;
            let seen = ENGINES[from].seen_epoch[slot].swap(epoch as u32, SeqCst);
            news |= seen != epoch as u32;
            let (ack, consumed) =
                (there.quiet[quiet::ACK].load(Acquire), there.quiet[quiet::CONSUMED].load(Relaxed));
            news |= here.quiet[quiet::CONSUMED].swap(consumed, Relaxed) != consumed;
            news |= here.quiet[quiet::ACK].swap(ack, AcqRel) != ack;
            self.ends[from ^ 1].seen_ack = ack;
            if news {
                channel(from).announce_here(slot, &here.producer_quiet[producer_quiet::NOTIFY]);
                channel(from ^ 1).announce_here(slot, &there.quiet[quiet::NOTIFY]);
                // The ends may have something to say to that.
                wake();
            }
        }
    }

    /// One turn. True: another one is due in a moment, whatever happens.
    fn turn(&mut self, slot: usize) -> bool {
        if self.ends.iter().all(|e| e.left) {
            return false;
        }
        if !self.leaving {
            self.carry(slot);
        }
        self.say(slot);
        for side in [A, C] {
            // What one end leaves the other one leaves.
            let wanted = ENGINES[side].wants(slot);
            let again = wanted.is_some_and(|(_, again)| again);
            if (wanted.is_some() || self.ends[side].left)
                && ENGINES[side ^ 1].wants(slot).is_none_or(|(_, too)| too && !again)
            {
                ENGINES[side ^ 1].demote(slot, Reason::PeerAskedForTcp, again);
            }
        }
        self.leaving |= [A, C].iter().any(|side| ENGINES[*side].wants(slot).is_some());
        let mut soon = false;
        for side in [A, C] {
            if self.leaving && !self.ends[side].left {
                soon |= self.step(slot, side);
            }
        }
        soon
    }

    /// Goes on with an end that leaves. True: it waits for room on the carrier.
    fn step(&mut self, slot: usize, side: usize) -> bool {
        let peer_left = self.ends[side ^ 1].left;
        let end = &mut self.ends[side];
        let Some((why, again)) = ENGINES[side].wants(slot) else { return false };
        let s = end.socket;
        if s.generation16() != end.generation || !s.is(State::Attached) {
            // Not taken up, and too late for that.
            end.left |= take_offer_back(s, side);
            return false;
        }
        let departure = end.departure.get_or_insert_with(|| Departure::new(s));
        let seen = (ENGINES[side].seen_epoch(slot), end.seen_ack);
        let peer = if peer_left { Peer::Left } else { Peer::Lives };
        match departure.step(seen, peer) {
            Moved::Waits => return false,
            Moved::NoRoom => return true,
            Moved::Broken => end.left = true,
            Moved::Done => {
                let again = again && !s.has(flag::SHUT_WR | flag::SHUT_RD);
                end.left = end
                    .departure
                    .take()
                    .is_some_and(|departure| departure.conclude(channel(side), slot, why, again));
            }
        }
        wake();
        false
    }
}

// ---- the thread ---------------------------------------------------------------------------------

static THREAD: OnceLock<thread::Thread> = OnceLock::new();

fn wake() {
    if let Some(thread) = THREAD.get() {
        thread.unpark();
    }
}

fn start() {
    THREAD.get_or_init(|| {
        let run = || {
            let mut soon = false;
            loop {
                if soon {
                    thread::park_timeout(Duration::from_millis(1));
                } else {
                    thread::park();
                }
                soon = turn();
            }
        };
        thread::Builder::new().name("loop".into()).spawn(run).unwrap().thread().clone()
    });
}

fn turn() -> bool {
    let released = core::mem::take(&mut *RELEASED.lock().unwrap());
    let mut seats = SEATED.lock().unwrap();
    for (slot, side) in released {
        seats[slot].ends[side].left = true;
    }
    seats.iter_mut().enumerate().fold(false, |soon, (slot, seat)| seat.turn(slot) | soon)
}

// ---- the agent ----------------------------------------------------------------------------------

/// What it says to a connection that is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It brings both ends together.
    Agrees,
    RefusesAtOnce,
    /// By a verdict.
    RefusesLater,
    Silent,
}

/// Ports whose connections it serves.
static SERVED: Mutex<Vec<(u16, Answer)>> = Mutex::new(Vec::new());
/// Ends that wait for the other one.
static WAITING: Mutex<Vec<(&'static Socket, u16)>> = Mutex::new(Vec::new());

pub(super) fn serve(port: u16, answer: Answer) {
    let mut served = SERVED.lock().unwrap();
    served.retain(|(other, _)| *other != port);
    served.push((port, answer));
}

fn answer(tuple: &Tuple) -> Option<Answer> {
    let is_its =
        |(port, _): &&(u16, Answer)| [tuple.local_port(), tuple.peer_port()].contains(port);
    SERVED.lock().unwrap().iter().find(is_its).map(|(_, answer)| *answer)
}

struct Loop;
pub(crate) static AGENT: &dyn Agent = &Loop;

impl Agent for Loop {
    fn serves(&self, tuple: &Tuple) -> Result<(), Reason> {
        answer(tuple).map(|_| ()).ok_or(Reason::PathsExcludeIt)
    }
    fn used(&self, s: &'static Socket, call: &Used) -> Noted {
        let answer = answer(&s.tuple());
        if call.calls < NOTED_AFTER || s.has(flag::NOTED) || answer == Some(Answer::Silent) {
            return Noted::No;
        }
        if answer != Some(Answer::Agrees) && answer != Some(Answer::RefusesLater) {
            return Noted::Never(Reason::PeerRefused);
        }
        s.raise(flag::NOTED);
        s.start(Reason::Negotiating);
        if answer == Some(Answer::RefusesLater) {
            refuse(s);
        } else if let Some(other) = meet(s, call.generation) {
            start();
            seat(s, call.generation, other);
        }
        Noted::Now
    }
    fn forget(&self, s: &'static Socket) {
        WAITING.lock().unwrap().retain(|(other, _)| !core::ptr::eq(*other, s));
        let side = if s.has(flag::CONNECTOR) { C } else { A };
        if let Some(slot) = offered(s, side)
            && take_offer_back(s, side)
        {
            self.released(channel(side), slot);
        }
    }
    fn listener_closed(&self) {}
    fn in_child(&self, _: u32) {}
    fn released(&self, channel: &'static Channel, slot: usize) {
        RELEASED.lock().unwrap().push((slot, channel.side));
        wake();
    }
}

fn refuse(s: &'static Socket) {
    let _tx = lock_end(&s.tx_lock);
    if s.path() == PathId::Loop {
        s.verdict.store(Reason::PeerRefused as u32, Relaxed);
        let _ = s.offered.happens(offered::Event::Refused(PathId::Loop));
    }
}

/// The other end of a connection, if it waits; otherwise this one does.
fn meet(s: &'static Socket, generation: u16) -> Option<(&'static Socket, u16)> {
    let mirrored = Tuple::new(s.tuple().peer(), s.tuple().local()).ok()?;
    let mut waiting = WAITING.lock().unwrap();
    let at = waiting.iter().position(|(other, _)| other.tuple() == mirrored);
    if at.is_none() {
        waiting.push((s, generation));
    }
    at.map(|at| waiting.remove(at))
}

fn new_ring() -> &'static [AtomicU64] {
    let words = (0..RING_BYTES / 8).map(|_| AtomicU64::new(0));
    Box::leak(words.collect::<Vec<_>>().into_boxed_slice())
}

/// Both ends have agreed.
fn seat(s: &'static Socket, generation: u16, other: (&'static Socket, u16)) {
    let mut both = vec![(s, generation), other];
    both.sort_by_key(|(s, _)| s.has(flag::CONNECTOR));
    let ends = [both[A], both[C]].map(|(socket, generation)| End {
        socket,
        generation,
        out: new_ring(),
        inb: new_ring(),
        seen_ack: 0,
        departure: None,
        left: false,
    });
    let rings = ends.each_ref().map(|e| (e.out, e.inb));
    let mut seats = SEATED.lock().unwrap();
    let slot = seats.len();
    assert!(slot < SEATS);
    seats.push(Seat { ends, leaving: false });
    drop(seats);
    for (side, ((s, generation), (out, inb))) in both.into_iter().zip(rings).enumerate() {
        let offer = Offer {
            channel: channel(side),
            slot: slot as u32,
            tx_ring: out.as_ptr().cast_mut().cast(),
            tx_bytes: RING_BYTES as u32,
            rx_ring: inb.as_ptr().cast_mut().cast(),
            rx_bytes: RING_BYTES as u32,
            asked: 0,
            whole: RING_BYTES as u32,
        };
        if !leave_offer(s, generation, offer) {
            AGENT.released(channel(side), slot);
        }
    }
}

fn leave_offer(s: &'static Socket, generation: u16, what: Offer) -> bool {
    let _tx = lock_end(&s.tx_lock);
    if s.generation16() != generation
        || !s.is(State::Candidate)
        || s.path() != PathId::Loop
        || !s.offered.is_none()
    {
        return false;
    }
    // SAFETY: `offered` is 0: nobody reads it yet, and only this writes the offers of a socket that
    // tries this path.
    unsafe { *s.offer.get() = what };
    // SAFETY: a channel of `channel`'s.
    s.put_on(unsafe { &*what.channel }, what.slot as usize);
    s.offered.happens(offered::Event::Made)
}

/// The slot that it was offered here.
fn offered(s: &Socket, side: usize) -> Option<usize> {
    if !s.offered.is_made() {
        return None;
    }
    // SAFETY: complete since `offered` was set.
    let offer = unsafe { *s.offer.get() };
    core::ptr::eq(offer.channel, channel(side)).then_some(offer.slot as usize)
}

/// True: nobody has taken the offer up, or will. (A candidate seeks another one.)
fn take_offer_back(s: &Socket, side: usize) -> bool {
    if offered(s, side).is_none() || !s.offered.happens(offered::Event::Taken) {
        return false;
    }
    if s.is(State::Candidate) {
        s.calls.store(0, Relaxed);
        s.lower(flag::NOTED);
        s.offered.begin();
    }
    true
}
