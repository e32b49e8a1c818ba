//! What the ends have noted, in memory that outlives each of the processes, and the bells that they
//! ring for each other.

use super::plan::Half;
use crate::sys::{self, Counters, E, Fd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Nobody waits longer; then something is lost.
pub fn patience_ms() -> i32 {
    20_000 * sys::patience() as i32
}

/// What an end notes, each word written by one of its halves.
#[derive(Clone, Copy)]
pub enum Cell {
    Sent,
    Received,
    /// The first wrong offset, plus one.
    Wrong,
    /// [`DONE`], or an error.
    SendEnd,
    RecvEnd,
    /// The writer has no room, or does not want to write.
    Full,
    /// The leader has left.
    Left,
    /// The follower has answered.
    Answered,
    /// The writer waits until the peer has all.
    InStep,
    /// The reader's process has closed it.
    Closed,
    /// The local port.
    Port,
}

const CELLS: usize = 16;
pub const DONE: u64 = 1;
pub const STUCK: u64 = 2;
/// Told again and again that there is something, where there is nothing.
pub const DECEIVED: u64 = 3;
/// Plus errno.
const FAILED: u64 = 1000;

pub struct Board {
    counters: Counters,
    pub connections: usize,
}

impl Board {
    pub fn map(path: &str, connections: usize) -> Board {
        Board { counters: Counters::map(path, connections * 2 * CELLS), connections }
    }

    fn cell(&self, index: usize, side: usize, cell: Cell) -> &AtomicU64 {
        self.counters.at((index * 2 + side) * CELLS + cell as usize)
    }

    fn value(&self, index: usize, side: usize, cell: Cell) -> u64 {
        self.cell(index, side, cell).load(SeqCst)
    }

    /// The processes have come so far.
    pub fn has_begun(&self, index: usize) -> bool {
        self.ports(index) != [0, 0]
    }

    /// All halves of both ends have come to their end.
    pub fn is_over(&self, index: usize) -> bool {
        (0..2).all(|side| {
            self.value(index, side, Cell::SendEnd) != 0
                && self.value(index, side, Cell::RecvEnd) != 0
        })
    }

    /// The ports of a connection's ends.
    pub fn ports(&self, index: usize) -> [u16; 2] {
        [0, 1].map(|side| self.value(index, side, Cell::Port) as u16)
    }

    /// What is wrong with a connection, and whether it was broken off where that is allowed.
    pub fn judge(&self, index: usize, may_break: bool) -> (Vec<String>, bool) {
        let mut problems = Vec::new();
        let mut broken = false;
        for from in 0..2 {
            let to = 1 - from;
            let who = ["client", "server"][from];
            let wrong = self.value(index, to, Cell::Wrong);
            let (sent, got) =
                (self.value(index, from, Cell::Sent), self.value(index, to, Cell::Received));
            let (send_end, recv_end) =
                (self.value(index, from, Cell::SendEnd), self.value(index, to, Cell::RecvEnd));
            let receiver_saw = |end: u64| end >= FAILED;
            let failed_at_receiver =
                receiver_saw(recv_end) || receiver_saw(self.value(index, to, Cell::SendEnd));
            if wrong != 0 {
                problems.push(format!("bytes of the {who}: wrong at {}", wrong - 1));
            }
            if send_end == DONE && recv_end == DONE && sent == got {
                continue;
            }
            // Broken off: no byte too many, and the receiving end was told.
            let seen = got < sent && failed_at_receiver;
            let tail = got == sent && (receiver_saw(send_end) || failed_at_receiver);
            if may_break
                && [send_end, recv_end].iter().all(|&e| e == DONE || e >= FAILED)
                && (seen || tail)
            {
                broken = true;
                continue;
            }
            problems.push(format!(
                "bytes of the {who}: sent {sent} ({}), received {got} ({})",
                end_name(send_end),
                end_name(recv_end)
            ));
        }
        (problems, broken)
    }

    pub fn describe(&self, index: usize) -> String {
        let mut text = String::new();
        for side in 0..2 {
            let v = |cell| self.value(index, side, cell);
            text.push_str(&format!(
                "{}: sent {} ({}), received {} ({}), full {}, left {}, answered {}, in step {}\n",
                ["client", "server"][side],
                v(Cell::Sent),
                end_name(v(Cell::SendEnd)),
                v(Cell::Received),
                end_name(v(Cell::RecvEnd)),
                v(Cell::Full),
                v(Cell::Left),
                v(Cell::Answered),
                v(Cell::InStep),
            ));
        }
        text
    }
}

fn end_name(end: u64) -> String {
    match end {
        0 => "not ended".into(),
        DONE => "ended".into(),
        STUCK => "stuck".into(),
        DECEIVED => "deceived by poll".into(),
        errno => format!("{:?}", E((errno - FAILED) as i32)),
    }
}

pub fn error_end(e: E) -> u64 {
    FAILED + e.0 as u64
}

/// One end's place on the board, and the bells.
#[derive(Clone, Copy)]
pub struct Wire {
    pub board: &'static Board,
    pub index: usize,
    pub side: usize,
    /// Of this end: the reader's, the writer's; then the peer's.
    pub bells: [Fd; 4],
}

impl Wire {
    pub fn note(&self, cell: Cell, value: u64) {
        self.board.cell(self.index, self.side, cell).store(value, SeqCst);
    }

    pub fn mine(&self, cell: Cell) -> u64 {
        self.board.value(self.index, self.side, cell)
    }

    pub fn theirs(&self, cell: Cell) -> u64 {
        self.board.value(self.index, 1 - self.side, cell)
    }

    pub fn ring(&self, bell: usize) {
        let _ = sys::write(self.bells[bell], &1u64.to_ne_bytes());
    }

    pub fn ring_peer(&self) {
        self.ring(2);
        self.ring(3);
    }

    pub fn hush(&self, bell: usize) {
        let _ = sys::read(self.bells[bell], &mut [0; 8]);
    }

    pub fn full(&self, on: bool) {
        if (self.mine(Cell::Full) != 0) != on {
            self.note(Cell::Full, u64::from(on));
            if on {
                self.ring(2);
            }
        }
    }

    /// Waits until the board says so; false when that does not come.
    pub fn wait(&self, half: Half, until: impl Fn(&Wire) -> bool) -> bool {
        let bell = half as usize;
        while !until(self) {
            if sys::await_events(self.bells[bell], libc::POLLIN, patience_ms()) == 0 {
                return until(self);
            }
            self.hush(bell);
        }
        true
    }

    pub fn peer_is_full(&self) -> bool {
        self.theirs(Cell::Full) != 0
    }

    pub fn has_answer(&self) -> bool {
        self.theirs(Cell::Answered) != 0
    }
}
