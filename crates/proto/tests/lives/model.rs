//! A model of one carrier between two processes: its ends, their shared word, the ring of each
//! direction, and what the kernel makes of closed descriptors.
//!
//! Every [`Action`] is one step that no other can divide: one load of a shared word, one exchange,
//! one store becoming visible, one kernel call. Tails pass through a store buffer, so that a
//! missing fence shows. [`Mutant`] leaves out one rule at a time.
//!
//! The oracle: byte `i` that an application receives in a life is byte `i` that the other one sent
//! in that life; the end comes exactly where TCP would put it, and no error that nobody caused; a
//! carrier is taken only while its other end is kept; who reads on hears the end, once it has come;
//! and in every state there is a way to one where each descriptor is either closed or kept for the
//! next life.
//!
//! A receiver may leave its ring ([`Action::Leave`]): from then on it wants everything over the
//! carrier, and asks its peer for that. An open peer answers: what is unread comes again over the
//! carrier, and all that it sends later.

use crate::explore::{Model, Violation};
use netacc_proto::lives::{End, Event, Refused, Seen, State, Word};
use netacc_proto::rendezvous::Role;

/// One rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    None,
    /// (1) The end of the stream is believed without another look at the ring.
    NoReload,
    /// (2) An end closes in order whatever lies unread.
    NoUnreadCheck,
    /// (2) It looks for unread bytes before it says that it takes nothing more.
    CheckBeforeEnds,
    /// (2) A sender does not fence between its tail and the look whether anybody takes it.
    NoSendFence,
    /// (2) A sender does not look whether anybody takes it.
    NoEndsCheck,
    /// (3) The carrier is not looked at before it is taken.
    TakeUnasked,
    /// (3) It is taken when this end alone has closed it.
    TakeUnparked,
    /// What the ends have said is taken back when the next life can have begun.
    ClearEndsLate,
    /// (4) The descriptor is closed before the word is changed.
    CloseBeforeWord,
    /// (4) The word is stored, not exchanged.
    PlainRetire,
    /// (4) Nobody looks whether the other end is gone.
    NoSweep,
    /// (5) The acceptor closes in order although its listener is gone.
    KeepUnheard,
    /// A forked child keeps the descriptors of what is parked.
    ChildKeeps,
    /// (6) Who has left the ring waits for an answer, although its peer has closed or is gone.
    LeaverWaits,
    /// (6) An end that has closed does not hear that its peer leaves the ring.
    KeptHearsNot,
    /// (6) Who has answered one that has left the ring closes by the word.
    AnsweredParks,
}

impl Mutant {
    pub const ALL: [Self; 16] = [
        Self::NoReload,
        Self::NoUnreadCheck,
        Self::CheckBeforeEnds,
        Self::NoSendFence,
        Self::NoEndsCheck,
        Self::TakeUnasked,
        Self::TakeUnparked,
        Self::ClearEndsLate,
        Self::CloseBeforeWord,
        Self::PlainRetire,
        Self::NoSweep,
        Self::KeepUnheard,
        Self::ChildKeeps,
        Self::LeaverWaits,
        Self::KeptHearsNot,
        Self::AnsweredParks,
    ];
}

/// Bounds of one exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    pub lives: u8,
    /// Of each end in each life.
    pub sends: u8,
    pub retires: u8,
    pub forks: u8,
    pub deaths: bool,
    /// The acceptor's listener may be closed.
    pub leaves_listener: bool,
    /// How often an end may leave its ring.
    pub leaves: u8,
    pub mutant: Mutant,
}

impl Config {
    pub const SMALL: Self = Self {
        lives: 2,
        sends: 2,
        retires: 0,
        forks: 0,
        deaths: false,
        leaves_listener: false,
        leaves: 0,
        mutant: Mutant::None,
    };
}

const C: usize = 0;
const A: usize = 1;
const LIVES: usize = 4;

/// Where a process is in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// send: the tail is stored; then: fenced.
    Stored,
    Fenced,
    /// recv: the ring was found empty; then: the peer was found closed, or its end on the carrier.
    Empty,
    PeerClosed,
    PeerGone {
        reset: bool,
    },
    /// close: what is unread was looked for, before or after ENDS was said.
    Looked,
    SaidEnds,
    Checked,
    /// connect: the carrier was asked; what stood in the word (a mutant's); taken.
    Asked,
    Took,
    /// Retiring: (a mutant) looked at the word; the descriptor is to be closed.
    SawFree,
    ToClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Send(usize),
    Recv(usize),
    Close(usize),
    /// Not in good order.
    CloseByKernel(usize),
    Connect,
    Accept,
    Retire(usize),
    CloseListener,
    Sweep(usize),
    /// The receiver leaves its ring, and asks its peer for what is unread there.
    Leave(usize),
    /// The peer of one that has left hears of that.
    Hear(usize),
    /// The next step of the call that an end is in.
    On(usize),
    TailDrains(usize),
    Fork(usize),
    ChildCloses(usize),
    Die(usize, bool),
}

/// How an end of a life has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum How {
    Not,
    InOrder,
    /// By the kernel's FIN, or by its reset.
    Fin,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Side {
    end: End,
    alive: bool,
    at: At,
    /// It takes nothing more from the ring.
    ends: bool,
    /// What it has written into its ring, by life, and how much of that is visible; how much the
    /// other end has taken.
    ring: [u8; 12],
    written: u8,
    visible: u8,
    taken: u8,
    /// Names of its end of the carrier: its own, and a child's.
    names: u8,
    child: bool,
    /// This life has a child that knows it.
    forked: bool,
    resets: bool,
    /// The application has heard the end of this life, or an error.
    over: bool,
    /// Receives by the carrier alone; its peer was asked to.
    left: bool,
    /// The peer has heard that, and how much of the ring it has sent over the carrier; so much of
    /// that, and of what it has sent since, is unread.
    heard: bool,
    carrier: u8,
    sent: [u8; LIVES],
    received: [u8; LIVES],
    how: [How; LIVES],
    /// The peer was dead when this end was asked to connect.
    peer_was_dead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    config: Config,
    word: Word,
    sides: [Side; 2],
    retires: u8,
    forks: u8,
    leaves: u8,
    listens: bool,
}

impl World {
    pub fn new(config: Config) -> Self {
        let side = |role| Side {
            end: End::first(role),
            alive: true,
            at: At::Idle,
            ends: false,
            ring: [0; 12],
            written: 0,
            visible: 0,
            taken: 0,
            names: 1,
            child: false,
            forked: false,
            resets: false,
            over: false,
            left: false,
            heard: false,
            carrier: 0,
            sent: [0; LIVES],
            received: [0; LIVES],
            how: [How::Not; LIVES],
            peer_was_dead: false,
        };
        Self {
            config,
            word: Word::FIRST,
            sides: [side(Role::Connector), side(Role::Acceptor)],
            retires: config.retires,
            forks: config.forks,
            leaves: config.leaves,
            listens: true,
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.config.mutant == mutant
    }

    fn life(&self, e: usize) -> usize {
        self.sides[e].end.life as usize
    }

    /// What the kernel says at end `e` of the other one: that it is gone, and whether by a reset.
    fn on_no_byte(&self, e: usize) -> Option<bool> {
        let peer = &self.sides[1 - e];
        (peer.names == 0 && !peer.child).then_some(peer.resets)
    }

    /// Of an end that has left the ring, too: what lies there for it, or on the carrier.
    fn unread(&self, e: usize) -> bool {
        let ring = &self.sides[1 - e];
        ring.visible > ring.taken || self.sides[e].carrier > 0
    }

    /// Whether `e` may take what lies in the ring. Who has left it does where no answer comes any
    /// more: its peer has closed, or is gone.
    fn reads_ring(&self, e: usize) -> bool {
        let side = &self.sides[e];
        let is_last =
            || side.end.look(self.word) == Ok(Seen::PeerClosed) || self.on_no_byte(e).is_some();
        !side.left || (!side.heard && is_last() && !self.is(Mutant::LeaverWaits))
    }

    /// Something can be received now.
    fn readable(&self, e: usize) -> bool {
        let ring = &self.sides[1 - e];
        self.sides[e].carrier > 0 || (ring.visible > ring.taken && self.reads_ring(e))
    }

    fn drain(&mut self, e: usize) {
        self.sides[e].visible = self.sides[e].written;
    }

    /// This end is over, in the word first. Its descriptor is to be closed.
    fn end_by_kernel(&mut self, e: usize, how: How) {
        let life = self.life(e);
        if let Ok((end, word)) = self.sides[e].end.step(Event::End, self.word) {
            if !self.is(Mutant::CloseBeforeWord) {
                self.word = word;
            }
            self.sides[e].end = end;
        }
        let side = &mut self.sides[e];
        if side.how[life] == How::Not {
            side.how[life] = how;
        }
        side.resets |= how == How::Reset;
        side.at = At::ToClose;
    }

    fn close_name(&mut self, e: usize) {
        // (The kernel has no unread bytes. The ring's are looked for.)
        self.sides[e].names = 0;
        self.sides[e].at = At::Idle;
    }

    fn exchange(&mut self, e: usize, event: Event) -> Result<(), Refused> {
        let (end, word) = self.sides[e].end.step(event, self.word)?;
        // A locked instruction: what was stored before is visible.
        self.drain(e);
        self.sides[e].end = end;
        self.word = word;
        Ok(())
    }

    fn begin_life(&mut self, e: usize) {
        let side = &mut self.sides[e];
        side.over = false;
        side.forked = side.child;
        side.at = At::Idle;
    }

    fn take_byte(&mut self, e: usize) -> Result<(), Violation> {
        let life = self.life(e);
        let ring = &mut self.sides[1 - e];
        // (What comes again over the carrier is of the ring's order, and this model's own memory.)
        let byte = ring.ring[ring.taken as usize];
        self.sides[e].carrier = self.sides[e].carrier.saturating_sub(1);
        let ring = &mut self.sides[1 - e];
        ring.taken += 1;
        if usize::from(byte) != life {
            return Err(format!("end {e} in life {life} receives a byte of life {byte}"));
        }
        self.sides[e].received[life] += 1;
        self.sides[e].at = At::Idle;
        Ok(())
    }

    /// The application of `e` hears that the stream has ended.
    fn hear_end(&mut self, e: usize) -> Result<(), Violation> {
        let life = self.life(e);
        let peer = &self.sides[1 - e];
        let got = self.sides[e].received[life];
        if peer.alive && peer.how[life] == How::Not {
            return Err(format!("end {e}: EOF of a peer that is open"));
        }
        let sent = peer.sent[life];
        // (A send that death has interrupted may have been carried out.)
        if got != sent && (peer.alive || got != sent + 1) {
            return Err(format!("end {e}: EOF behind {got} of {sent} bytes"));
        }
        self.sides[e].over = true;
        self.sides[e].at = At::Idle;
        Ok(())
    }

    fn hear_error(&mut self, e: usize) -> Result<(), Violation> {
        let life = self.life(e);
        let peer = &self.sides[1 - e];
        let caused = !peer.alive || peer.how[life] == How::Reset || !self.listens;
        self.sides[e].over = true;
        self.sides[e].at = At::Idle;
        if caused { Ok(()) } else { Err(format!("end {e} in life {life}: reset by nobody")) }
    }

    fn step(&mut self, e: usize) -> Result<(), Violation> {
        let life = self.life(e);
        match self.sides[e].at {
            At::Idle => unreachable!("in no call"),
            At::Stored => {
                if !self.is(Mutant::NoSendFence) {
                    self.drain(e);
                }
                self.sides[e].at = At::Fenced;
            }
            At::Fenced => {
                if self.sides[1 - e].ends && !self.is(Mutant::NoEndsCheck) {
                    // As TCP answers what is sent to a closed peer; nothing counts any more.
                    self.sides[e].over = true;
                    self.end_by_kernel(e, How::Reset);
                } else {
                    self.sides[e].sent[life] += 1;
                    self.sides[e].at = At::Idle;
                }
            }
            At::Empty => {
                let seen = self.sides[e].end.look(self.word);
                self.sides[e].at = match (seen, self.on_no_byte(e)) {
                    // Only the carrier says the end to who has left the ring.
                    (Ok(Seen::PeerClosed), None) if self.sides[e].left => At::Idle,
                    (Ok(Seen::PeerClosed), _) if self.is(Mutant::NoReload) => {
                        return self.hear_end(e);
                    }
                    (Ok(Seen::PeerClosed), _) if !self.sides[e].left => At::PeerClosed,
                    (Ok(_), Some(reset)) => At::PeerGone { reset },
                    (Ok(_), None) => At::Idle,
                    (Err(_), _) => return Err(format!("end {e}: the word is {:?}", self.word)),
                };
            }
            At::PeerClosed if self.readable(e) => return self.take_byte(e),
            At::PeerClosed => return self.hear_end(e),
            At::PeerGone { .. } if self.readable(e) => return self.take_byte(e),
            At::PeerGone { .. } if self.unread(e) => self.sides[e].at = At::Idle,
            At::PeerGone { reset: true } => return self.hear_error(e),
            At::PeerGone { reset: false } => return self.hear_end(e),
            At::Looked => {
                self.sides[e].ends = true;
                self.drain(e);
                self.sides[e].at = At::Checked;
            }
            At::SaidEnds => {
                if self.unread(e) && !self.is(Mutant::NoUnreadCheck) {
                    self.end_by_kernel(e, How::Reset);
                } else {
                    self.sides[e].at = At::Checked;
                }
            }
            At::Checked if self.has_left(e) => self.end_by_kernel(e, How::Fin),
            At::Checked => match self.exchange(e, Event::Close { place: 0 }) {
                Ok(()) => {
                    self.sides[e].how[life] = How::InOrder;
                    self.sides[e].at = At::Idle;
                }
                Err(Refused::Broken) => return Err(format!("end {e}: {:?}", self.word)),
                Err(_) => self.end_by_kernel(e, How::Fin),
            },
            At::Asked => {
                let parked = self.sides[e].end.look(self.word) == Ok(Seen::Parked);
                let late = self.is(Mutant::ClearEndsLate);
                if parked && !late {
                    (self.sides[C].ends, self.sides[A].ends) = (false, false);
                }
                if !parked && self.is(Mutant::TakeUnparked) && !self.word.retired {
                    self.word.acceptor_closed = true;
                }
                match self.exchange(e, Event::Take) {
                    Ok(()) => {
                        let peer = &self.sides[A];
                        if peer.alive && peer.names == 0 {
                            return Err("taken, and retired by a living peer".into());
                        }
                        if self.sides[e].peer_was_dead {
                            return Err("connected to the dead".into());
                        }
                        self.begin_life(e);
                        if late {
                            self.sides[e].at = At::Took;
                        }
                    }
                    Err(Refused::Broken) => return Err(format!("C: {:?}", self.word)),
                    Err(_) => self.sides[e].at = At::Idle,
                }
            }
            At::Took => {
                (self.sides[C].ends, self.sides[A].ends) = (false, false);
                self.sides[e].at = At::Idle;
            }
            At::SawFree => {
                self.word.retired = true;
                self.sides[e].end.state = State::Over;
                self.sides[e].at = At::ToClose;
            }
            At::ToClose => {
                self.close_name(e);
                if self.is(Mutant::CloseBeforeWord) && self.sides[e].end.state != State::Over {
                    self.sides[e].at = At::SawFree;
                }
            }
        }
        Ok(())
    }

    fn retire(&mut self, e: usize) {
        self.retires -= 1;
        if self.is(Mutant::PlainRetire) {
            let free =
                matches!(self.sides[e].end.look(self.word), Ok(Seen::Parked | Seen::PeerOpen));
            self.sides[e].at = if free { At::SawFree } else { At::Idle };
        } else if self.is(Mutant::CloseBeforeWord) || self.exchange(e, Event::Retire).is_ok() {
            self.sides[e].at = At::ToClose;
        }
    }

    fn close_listener(&mut self) {
        self.listens = false;
        // What waits to be accepted is reset; what is parked is retired.
        if self.sides[A].end.state != State::Closed || self.exchange(A, Event::Retire).is_ok() {
            if self.sides[A].end.state == State::Over && self.sides[A].names > 0 {
                self.sides[A].at = At::ToClose;
            }
        } else if self.sides[A].end.look(self.word) == Ok(Seen::Taken) {
            self.end_by_kernel(A, How::Reset);
        }
    }

    fn sweep(&mut self, e: usize) {
        self.end_by_kernel(e, How::Fin);
    }

    /// (5) Nobody would accept the next life.
    fn has_no_listener(&self, e: usize) -> bool {
        e == A && !self.listens && !self.is(Mutant::KeepUnheard)
    }

    /// (6) Who has left the ring, or whose peer has, ends by the kernel.
    fn has_left(&self, e: usize) -> bool {
        self.sides[e].left || (self.sides[1 - e].heard && !self.is(Mutant::AnsweredParks))
    }

    /// `e` has left the ring, and its peer is still to hear of that.
    fn is_to_hear(&self, e: usize) -> bool {
        let (side, peer) = (&self.sides[e], &self.sides[1 - e]);
        let lives = side.left && !side.heard && side.end.state == State::Open && peer.alive;
        lives
            && match peer.end.state {
                // (Not in the middle of a send, which holds the end.)
                State::Open => !matches!(peer.at, At::Stored | At::Fenced),
                // What waits to be accepted is open by then.
                State::Closed => {
                    let taken = peer.end.look(self.word) == Ok(Seen::Taken);
                    peer.at == At::Idle && !taken && !self.is(Mutant::KeptHearsNot)
                }
                State::Over => false,
            }
    }

    fn hear(&mut self, e: usize) {
        let peer = 1 - e;
        if self.sides[peer].end.state == State::Closed {
            return self.end_by_kernel(peer, How::Fin);
        }
        self.drain(peer);
        self.sides[e].carrier = self.sides[peer].written - self.sides[peer].taken;
        self.sides[e].heard = true;
    }

    /// Whether an application that only reads hears the end, where that has come.
    fn hears_end(&self, e: usize) -> bool {
        let (side, peer) = (&self.sides[e], &self.sides[1 - e]);
        let has_come = !peer.alive || peer.how[self.life(e)] != How::Not;
        if !side.alive || side.over || side.end.state != State::Open || side.at != At::Idle {
            return true;
        }
        let mut world = *self;
        for _ in 0..if has_come { 60 } else { 0 } {
            world.drain(1 - e);
            world.sides[1 - e].child = false;
            let (at, peer) = (world.sides[e].at, world.sides[1 - e]);
            let done = match at {
                _ if peer.alive && peer.at != At::Idle => world.step(1 - e),
                _ if world.is_to_hear(e) => {
                    world.hear(e);
                    Ok(())
                }
                At::Idle => world.apply_one(Action::Recv(e)),
                _ => world.step(e),
            };
            // (What else is wrong is found elsewhere.)
            if done.is_err() || world.sides[e].over {
                return true;
            }
        }
        !has_come
    }

    /// There is something to sweep at a closed end.
    fn is_gone(&self, e: usize) -> bool {
        let side = &self.sides[e];
        let gone = matches!(side.end.look(self.word), Ok(Seen::Retired) | Err(_));
        let parked = matches!(side.end.look(self.word), Ok(Seen::Parked | Seen::PeerOpen));
        (gone || (parked && self.on_no_byte(e).is_some())) && !self.is(Mutant::NoSweep)
    }
}

impl Model for World {
    type Action = Action;

    fn actions(&self, out: &mut Vec<Action>) {
        out.clear();
        for e in [C, A] {
            let side = &self.sides[e];
            if side.child {
                out.push(Action::ChildCloses(e));
            }
            if self.is_to_hear(e) {
                out.push(Action::Hear(e));
            }
            if !side.alive {
                continue;
            }
            if side.visible < side.written {
                out.push(Action::TailDrains(e));
            }
            if self.config.deaths {
                out.extend([Action::Die(e, true), Action::Die(e, false)]);
            }
            if side.at != At::Idle {
                out.push(Action::On(e));
                continue;
            }
            if self.forks > 0 && side.names > 0 && !side.child {
                out.push(Action::Fork(e));
            }
            match side.end.state {
                State::Open => {
                    if !side.over {
                        let life = side.end.life as usize;
                        if side.sent[life] < self.config.sends {
                            out.push(Action::Send(e));
                        }
                        out.push(Action::Recv(e));
                    }
                    out.extend([Action::Close(e), Action::CloseByKernel(e)]);
                    if self.leaves > 0 && !side.left {
                        out.push(Action::Leave(e));
                    }
                }
                State::Closed => {
                    if self.is_gone(e) {
                        out.push(Action::Sweep(e));
                    }
                    if e == C && side.end.life < u32::from(self.config.lives) {
                        out.push(Action::Connect);
                    }
                    if e == A && self.listens && side.end.look(self.word) == Ok(Seen::Taken) {
                        out.push(Action::Accept);
                    }
                    if self.retires > 0 {
                        out.push(Action::Retire(e));
                    }
                }
                State::Over => {}
            }
            if e == A && self.listens && self.config.leaves_listener {
                out.push(Action::CloseListener);
            }
        }
    }

    fn apply(&mut self, action: Action) -> Result<(), Violation> {
        self.apply_one(action)?;
        match [C, A].into_iter().find(|e| !self.hears_end(*e)) {
            Some(e) => Err(format!("end {e} reads on, and never hears the end")),
            None => Ok(()),
        }
    }

    fn is_finished(&self) -> bool {
        false
    }

    /// Each descriptor is closed, or kept for the next life.
    fn is_settled(&self) -> bool {
        [C, A].into_iter().all(|e| {
            let side = &self.sides[e];
            let kept = side.end.state == State::Closed
                && matches!(side.end.look(self.word), Ok(Seen::Parked))
                && self.on_no_byte(e).is_none();
            !side.child && side.at == At::Idle && (side.names == 0 || kept)
        })
    }

    fn is_due(&self, action: Action) -> bool {
        match action {
            Action::ChildCloses(_) => !self.is(Mutant::ChildKeeps),
            Action::Recv(_)
            | Action::Close(_)
            | Action::Accept
            | Action::Sweep(_)
            | Action::Hear(_)
            | Action::On(_)
            | Action::TailDrains(_) => true,
            _ => false,
        }
    }

    fn states(&self) -> (u32, u32) {
        (self.sides[C].end.state as u32, self.sides[A].end.state as u32)
    }
}

impl World {
    fn apply_one(&mut self, action: Action) -> Result<(), Violation> {
        match action {
            Action::Send(e) => {
                let life = self.sides[e].end.life as u8;
                let side = &mut self.sides[e];
                side.ring[side.written as usize] = life;
                side.written += 1;
                side.at = At::Stored;
                if self.sides[1 - e].heard {
                    // By the carrier.
                    self.drain(e);
                    self.sides[1 - e].carrier += 1;
                }
            }
            Action::Recv(e) if self.readable(e) => return self.take_byte(e),
            Action::Recv(e) => self.sides[e].at = At::Empty,
            Action::Close(e)
                if self.sides[e].forked || self.has_no_listener(e) || self.has_left(e) =>
            {
                self.end_by_kernel(e, if self.unread(e) { How::Reset } else { How::Fin })
            }
            Action::Close(e) if self.is(Mutant::CheckBeforeEnds) => {
                if self.unread(e) {
                    self.end_by_kernel(e, How::Reset);
                } else {
                    self.sides[e].at = At::Looked;
                }
            }
            Action::Close(e) => {
                self.sides[e].ends = true;
                self.drain(e);
                self.sides[e].at = At::SaidEnds;
            }
            Action::CloseByKernel(e) => {
                self.sides[e].ends = true;
                self.drain(e);
                self.end_by_kernel(e, if self.unread(e) { How::Reset } else { How::Fin });
            }
            Action::Connect => {
                self.sides[C].peer_was_dead = !self.sides[A].alive && !self.sides[A].child;
                if self.on_no_byte(C).is_none() || self.is(Mutant::TakeUnasked) {
                    self.sides[C].at = At::Asked;
                } else {
                    self.sweep(C);
                }
            }
            Action::Accept => match self.exchange(A, Event::GiveOut) {
                Ok(()) => self.begin_life(A),
                Err(why) => return Err(format!("not given out: {why:?}")),
            },
            Action::Retire(e) => self.retire(e),
            Action::CloseListener => self.close_listener(),
            Action::Sweep(e) => self.sweep(e),
            Action::Leave(e) => {
                self.leaves -= 1;
                self.sides[e].left = true;
            }
            Action::Hear(e) => self.hear(e),
            Action::On(e) => return self.step(e),
            Action::TailDrains(e) => self.drain(e),
            Action::Fork(e) => {
                self.forks -= 1;
                self.sides[e].child = true;
                self.sides[e].forked = true;
            }
            Action::ChildCloses(e) => self.sides[e].child = false,
            Action::Die(e, stored) => {
                if stored {
                    self.drain(e);
                }
                let life = self.life(e);
                let side = &mut self.sides[e];
                side.alive = false;
                side.names = 0;
                side.at = At::Idle;
                if side.how[life] == How::Not {
                    side.how[life] = How::Fin;
                }
            }
        }
        Ok(())
    }
}
