//! What each end of a connection does, made from the seed alone.

use super::RING;
use crate::pattern::Rng;
use crate::sys::{self, Fd};

/// More than a ring and a carrier hold together.
pub const FILL: u64 = 2 * RING as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Read,
    Write,
}

/// How an end leaves, or hands itself on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// One of [`odd_option`].
    Option(usize),
    /// `dup`, `close` of the first number.
    Duplicate,
    /// A child that does nothing but hold everything until the connection ends.
    IdleChild,
    /// A child goes on.
    Fork,
    /// A taker goes on.
    Pass { taker: usize },
    /// Another program image goes on.
    Exec { spawn: bool, library: bool },
}

impl Leave {
    /// The next one must be able to read the kernel's socket, whatever it costs.
    pub fn is_strict(self) -> bool {
        matches!(self, Leave::Pass { .. } | Leave::Exec { .. })
    }
}

/// What a follower does as soon as the leader has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Leave(Leave),
    /// No further byte: FIN.
    Shutdown,
    /// The last close, after the peer's EOF.
    Close,
}

/// How one end behaves.
#[derive(Clone, Debug)]
pub struct Side {
    pub budget: u64,
    /// One thread that does not block; otherwise one for each direction.
    pub polls: bool,
    /// With O_NONBLOCK rather than MSG_DONTWAIT.
    pub nonblocking: bool,
    /// Ends by a close right after its last send, not by a shutdown.
    pub closes: bool,
    /// Ends without a shutdown. Where the peer is to close, it is known when it has all.
    pub stays_open: bool,
    /// The last bytes are read when the peer has closed.
    pub lingers: bool,
    /// One read in so many waits until the peer's writer has no room; 0: never.
    pub pauses: usize,
    /// One write in so many waits until the peer has all.
    pub in_step: usize,
    pub leaves: Vec<(Half, u64, Leave)>,
}

/// One end stops reading until the other is full, and leaves.
#[derive(Clone, Debug)]
pub struct Stage {
    pub leader: usize,
    /// The leader stops reading here.
    pub at: u64,
    pub leave: Leave,
    pub answers: Vec<Answer>,
    /// The leader does not read before the answers are given.
    pub hold: bool,
}

impl Stage {
    pub fn has_close(&self) -> bool {
        self.answers.contains(&Answer::Close)
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub sides: [Side; 2],
    pub stage: Option<Stage>,
    /// SO_SNDBUF and SO_RCVBUF.
    pub buffers: [i32; 2],
}

/// The connection of each campaign that finds no room for what goes again; where the kernel's
/// buffer cannot be grown it has to be broken off.
const NO_ROOM: usize = 6;

/// Mixes numbers into a seed.
pub fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x243f_6a88_85a3_08d3, |h, p| {
        (h ^ p).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    })
}

fn a_leave(rng: &mut Rng, polls: bool) -> Leave {
    match rng.range(0, if polls { 13 } else { 11 }) {
        0..=3 => Leave::Option(rng.range(0, ODD_OPTIONS - 1)),
        4 => Leave::IdleChild,
        5..=7 => Leave::Fork,
        8..=9 => Leave::Pass { taker: rng.range(0, super::TAKERS - 1) },
        10..=11 => Leave::Exec { spawn: rng.range(0, 1) == 0, library: rng.range(0, 1) == 0 },
        _ => Leave::Duplicate,
    }
}

impl Plan {
    /// The plan of connection `index` (counted over all batches).
    pub fn new(seed: u64, index: usize) -> Plan {
        let mut rng = Rng::new(mix(&[seed, index as u64, 1]));
        for _ in 0..4 {
            rng.next();
        }
        let buffers = [[1, 4096, 8192][rng.range(0, 2)], [2048, 4096, 8192][rng.range(0, 2)]];
        let side = |rng: &mut Rng| {
            let polls = rng.range(0, 1) == 0;
            Side {
                budget: rng.range(10_000, 160_000) as u64,
                polls,
                nonblocking: rng.range(0, 1) == 0,
                closes: false,
                stays_open: false,
                lingers: rng.range(0, 2) == 0,
                pauses: [0, 8, 30][rng.range(0, 2)],
                in_step: [0, 12, 40][rng.range(0, 2)],
                leaves: Vec::new(),
            }
        };
        let mut sides = [side(&mut rng), side(&mut rng)];
        // Not both: each would wait for the other's close.
        sides[1].lingers &= !sides[0].lingers;
        let stage = if index.is_multiple_of(2) {
            let mut stage = staged(&mut rng, &mut sides);
            if index == NO_ROOM {
                // The leader takes nothing although the follower must hand on what it has to send
                // again.
                stage.leave = Leave::Option(0);
                stage.answers = vec![Answer::Leave(Leave::Pass { taker: 0 })];
                stage.hold = true;
                sides[1 - stage.leader].closes = false;
                sides[stage.leader].stays_open = true;
            }
            Some(stage)
        } else {
            free(&mut rng, &mut sides);
            None
        };
        Plan { sides, stage, buffers }
    }

    /// The library may break the connection off: it is handed to somebody who cannot read a ring,
    /// perhaps after the peer has left the ring by itself, so that it cannot be emptied. `switch`:
    /// any peer may have.
    pub fn may_break(&self, switch: bool) -> bool {
        let strict = |a: &Answer| matches!(a, Answer::Leave(l) if l.is_strict());
        match &self.stage {
            // A peer that has half-closed is sent to by TCP.
            Some(s) => {
                let left_alone = self.sides[s.leader].stays_open && !switch;
                s.answers.iter().any(strict) || (s.leave.is_strict() && !left_alone)
            }
            None => {
                let leaves = self.sides.iter().flat_map(|s| &s.leaves);
                leaves.into_iter().any(|(_, _, l)| l.is_strict())
            }
        }
    }

    /// The leader asks for a full ring, and in its own process.
    pub fn pulls_back(&self) -> bool {
        self.stage.as_ref().is_some_and(|s| {
            matches!(s.leave, Leave::Option(_) | Leave::Pass { .. })
                && self.sides[s.leader].stays_open
        })
    }
}

/// One end leads, the other follows; neither leaves besides.
fn staged(rng: &mut Rng, sides: &mut [Side; 2]) -> Stage {
    let leader = rng.range(0, 1);
    let leave = loop {
        match a_leave(rng, false) {
            Leave::IdleChild => {}
            leave => break leave,
        }
    };
    let own = |rng: &mut Rng| match rng.range(0, 4) {
        0 => Leave::Option(rng.range(0, ODD_OPTIONS - 1)),
        1 => Leave::IdleChild,
        2 => Leave::Fork,
        _ => Leave::Duplicate,
    };
    let mut answers = Vec::new();
    for _ in 0..rng.range(0, 2) {
        answers.push(Answer::Leave(own(rng)));
    }
    match rng.range(0, 9) {
        0..=3 => answers.push(Answer::Shutdown),
        4..=7 => answers.push(Answer::Close),
        // A successor takes no orders, so this is all that it does.
        8 => {
            let strict = if rng.range(0, 1) == 0 {
                Leave::Pass { taker: rng.range(0, super::TAKERS - 1) }
            } else {
                Leave::Exec { spawn: rng.range(0, 1) == 0, library: rng.range(0, 1) == 0 }
            };
            answers = vec![Answer::Leave(strict)];
        }
        _ => {}
    }
    let hold = !answers.iter().any(|a| matches!(a, Answer::Leave(l) if l.is_strict()));
    sides[leader].stays_open = rng.range(0, 3) > 0;
    let follower = &mut sides[1 - leader];
    follower.polls = true;
    follower.closes = answers.contains(&Answer::Close);
    follower.budget = 2 * FILL + rng.range(0, 100_000) as u64;
    follower.in_step = 0;
    Stage { leader, at: rng.range(0, 60_000) as u64, leave, answers, hold }
}

/// Both ends leave when it suits them.
fn free(rng: &mut Rng, sides: &mut [Side; 2]) {
    let budgets = [sides[0].budget, sides[1].budget];
    for (i, side) in sides.iter_mut().enumerate() {
        for half in [Half::Read, Half::Write] {
            let total = match half {
                Half::Read => budgets[1 - i],
                Half::Write => budgets[i],
            };
            for _ in 0..rng.range(0, 2) {
                let at = rng.range(0, total as usize) as u64;
                side.leaves.push((half, at, a_leave(rng, side.polls)));
            }
        }
        side.leaves.sort_by_key(|&(_, at, _)| at);
    }
    // Not both: each would wait for the other's end.
    if rng.range(0, 2) > 0 {
        let closer = &mut sides[rng.range(0, 1)];
        closer.closes = closer.polls;
    }
}

/// So many odd options there are.
const ODD_OPTIONS: usize = 5;

/// What the kernel alone can do, and what changes nothing for a plain stream.
pub fn odd_option(fd: Fd, which: usize) -> sys::R {
    const TCP_INQ: i32 = 36;
    const SO_ZEROCOPY: i32 = 60;
    match which {
        0 => sys::setopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1),
        1 => sys::setopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1),
        2 => sys::setopt(fd, libc::IPPROTO_TCP, TCP_INQ, 1),
        3 => sys::setopt(fd, libc::SOL_SOCKET, SO_ZEROCOPY, 1),
        _ => sys::fcntl(fd, libc::F_SETOWN, sys::getpid()),
    }
}
