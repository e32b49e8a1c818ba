//! One direction of a connection, followed by looks at its ring from outside.
//!
//! # What is certain
//!
//! The bytes from the ring's head to its tail belong to its consumer: the producer does not touch
//! them. So what was copied is what was sent if the head, looked at *behind* the copy, has not
//! passed it. Often it has: a consumer that waits takes a message within a microsecond. Then the
//! producer may have written over it, before or while it was copied:
//!
//! - Everything that the producer had begun to write before the end of the copy lies before the
//!   first tail that it publishes after that. Such a tail is known when the tail has moved once
//!   more behind a look behind the copy; or, without waiting for it, when no thread was in a send
//!   at a moment behind the copy (the lock of the sending half was free), or the producer has
//!   closed. Call that tail T.
//! - A producer that goes on where it is writes over position p with position p + size: p is
//!   certain if T <= p + size.
//! - A producer that finds the ring empty may go on at the start of the buffer instead: it moves
//!   its base. Then everything from the position S on, which was not written when the copy began,
//!   has come to lie below index T - S: p is certain if its index is not below that.
//!
//! A byte that is not certain is lost, and so is one whose base is not known: where two bases came
//! between two looks (`base_before` tells). Where nobody can say that no send is under way, a tail
//! that does not move for [`QUIET`] has to do: a producer that was stopped for so long in the
//! middle of a copy, over bytes that were read before and copied meanwhile, would be taken
//! for one that has finished.
//!
//! Where a device writes into the ring, what is under way may be several messages, and a tail says
//! nothing of those behind it: there only what the consumer still has is certain.

use super::{Memory, Unreadable};
use netacc_control::rings::Words;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A tail that has not moved for so long has no send behind it.
pub const QUIET: Duration = Duration::from_secs(1);

/// What is told of a direction, in the order of its stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// Bytes from that offset of the stream on, seen at that time (nanoseconds of Unix).
    Bytes(u64, Vec<u8>, u64),
    /// What comes next has that offset; what was before it could not be copied in time.
    Lost(u64),
    /// The same; what was before it went over the kernel's TCP.
    Kernel(u64),
    /// The same; nobody looked before, when so many bytes went over the kernel's TCP.
    Begins(u64, u64),
}

impl Said {
    /// As much of it as lies before that offset.
    pub fn up_to(self, limit: u64) -> Said {
        match self {
            Said::Bytes(offset, mut bytes, time_ns) => {
                bytes.truncate(limit.saturating_sub(offset).try_into().unwrap_or(usize::MAX));
                Said::Bytes(offset.min(limit), bytes, time_ns)
            }
            Said::Lost(offset) => Said::Lost(offset.min(limit)),
            Said::Kernel(offset) => Said::Kernel(offset.min(limit)),
            Said::Begins(offset, by_kernel) => Said::Begins(offset.min(limit), by_kernel),
        }
    }
}

/// A direction.
#[derive(Debug)]
pub struct Stream {
    bytes_at: u64,
    size: u64,
    /// A device of the peer's writes into it, several messages at a time.
    is_by_device: bool,
    /// So many bytes may be copied, as far as anybody keeps count.
    room: u64,
    /// Up to where it was copied.
    place: Option<Place>,
    copied: VecDeque<Copied>,
    /// Since when nothing has changed.
    quiet_since: Instant,
    /// The tail when that began.
    quiet_at: u64,
}

/// A place in a ring.
#[derive(Debug, Clone, Copy)]
struct Place {
    position: u64,
    /// The base of what comes before; not known at the beginning.
    base: Option<u64>,
    epoch: u32,
    /// The offset of the stream that position 0 would have.
    start: u64,
}

#[derive(Debug)]
enum Copied {
    Piece(Piece),
    Said(Said),
}

/// Bytes that were copied in one piece from the buffer.
#[derive(Debug)]
struct Piece {
    position: u64,
    offset: u64,
    bytes: Vec<u8>,
    time_ns: u64,
    base: u64,
    /// By another base only positions from this one on have been written, or will be.
    since: u64,
    /// The tail at the first look behind the copy.
    tail_behind: Option<u64>,
    is_certain: bool,
}

/// See [`Stream::mark`].
#[derive(Debug)]
pub struct Mark {
    place: Option<Place>,
    copied: usize,
}

/// What a look behind a copy has found.
#[derive(Debug, Clone, Copy)]
pub struct Behind {
    /// The words.
    pub words: Words,
    /// After the copy and before these words were read no thread was in a send.
    pub is_idle: bool,
}

impl Stream {
    /// That of a ring of so many bytes. `None`: no ring has that size.
    pub fn new(bytes_at: u64, size: u32, is_by_device: bool) -> Option<Stream> {
        const SIZES: std::ops::RangeInclusive<u32> = 4096..=64 << 20;
        (size.is_power_of_two() && SIZES.contains(&size)).then(|| Stream {
            bytes_at,
            size: u64::from(size),
            is_by_device,
            room: u64::MAX,
            place: None,
            copied: VecDeque::new(),
            quiet_since: Instant::now(),
            quiet_at: 0,
        })
    }

    /// It is followed from that position on, of which it is known whether all before it was by
    /// base 0. Returns the offset there.
    pub fn begin(&mut self, position: u64, base: Option<u64>, epoch: u32, start: u64) -> u64 {
        self.place = Some(Place { position, base, epoch, start });
        start.wrapping_add(position)
    }

    /// Whether it is followed.
    pub fn has_begun(&self) -> bool {
        self.place.is_some()
    }

    /// Whether these words promise something that was not copied, or that may be certain by now.
    pub fn has_news(&self, words: &Words) -> bool {
        let moved = |place: Place| {
            words.tail != place.position || (words.is_on_ring() && words.epoch != place.epoch)
        };
        !self.copied.is_empty() || self.place.map_or(words.is_on_ring(), moved)
    }

    /// Whether all was copied that these words promise.
    pub fn is_at(&self, words: &Words) -> bool {
        self.place.is_some_and(|at| at.position == words.tail && at.epoch == words.epoch)
    }

    /// So many bytes may be copied from here on: what is more is lost.
    pub fn set_room(&mut self, room: u64) {
        self.room = room;
    }

    /// How many bytes were copied, and wait for certainty.
    pub fn held(&self) -> usize {
        let bytes = |copied: &Copied| match copied {
            Copied::Piece(piece) => piece.bytes.len(),
            Copied::Said(_) => 0,
        };
        self.copied.iter().map(bytes).sum()
    }

    /// Whether what was copied waits for certainty.
    pub fn waits(&self) -> bool {
        !self.copied.is_empty()
    }

    /// Since when it does (nanoseconds of Unix).
    pub fn waits_since(&self) -> Option<u64> {
        self.copied.iter().find_map(|copied| match copied {
            Copied::Piece(piece) => Some(piece.time_ns),
            Copied::Said(_) => None,
        })
    }

    /// Copies what is new. `start`: of the epoch of `words`, where it is known.
    pub fn copy(
        &mut self,
        memory: &impl Memory,
        words: &Words,
        start: Option<u64>,
        time_ns: u64,
    ) -> Result<(), Unreadable> {
        let Some(place) = self.place else { return Ok(()) };
        let ahead = words.base.wrapping_sub(words.tail);
        if ahead != 0 && ahead <= self.size {
            // Words of two moments: the next look is another one.
            return Ok(());
        }
        if words.epoch == place.epoch || !words.is_on_ring() {
            // (Behind the end of its epoch on the ring nothing comes before the next one begins.)
            let is_next = words.epoch.wrapping_sub(place.epoch) <= 1;
            let base = self.copy_up_to(memory, words, (words.tail, is_next), time_ns)?;
            self.place = Some(Place { position: words.tail, base, ..place });
            return Ok(());
        }
        let Some(start) = start else { return Ok(()) };
        let first = words.fast_from.wrapping_sub(start);
        if first.wrapping_sub(place.position) > words.tail.wrapping_sub(place.position) {
            // The same.
            return Ok(());
        }
        let is_next = words.epoch.wrapping_sub(place.epoch) == 2;
        let base = self.copy_up_to(memory, words, (first, is_next), time_ns)?;
        self.copied.push_back(Copied::Said(Said::Kernel(words.fast_from)));
        self.place = Some(Place { position: first, base, epoch: words.epoch, start });
        let base = self.copy_up_to(memory, words, (words.tail, true), time_ns)?;
        self.place = Some(Place { position: words.tail, base, epoch: words.epoch, start });
        Ok(())
    }

    /// Copies up to a position that is not beyond the tail; what is not of the place's epoch is
    /// lost. Returns the base there.
    fn copy_up_to(
        &mut self,
        memory: &impl Memory,
        words: &Words,
        (to, is_of_epoch): (u64, bool),
        time_ns: u64,
    ) -> Result<Option<u64>, Unreadable> {
        let Some(place) = self.place else { return Ok(None) };
        let (from, new) = (place.position, to.wrapping_sub(place.position));
        if new == 0 {
            return Ok(place.base);
        }
        let offset = |position: u64| place.start.wrapping_add(position);
        let lost = Copied::Said(Said::Lost(offset(to)));
        // (A base before the place is that of before, or what no honest producer writes.)
        let is_old = words.base.wrapping_sub(from) > words.tail.wrapping_sub(from);
        let is_wrong = is_old && place.base.is_some_and(|base| base != words.base);
        if !is_of_epoch || is_wrong {
            self.copied.push_back(lost);
            return Ok(Some(words.base));
        }
        let moved_behind = if is_old { 0 } else { words.base.wrapping_sub(from) };
        let moved_at = from.wrapping_add(moved_behind.min(new));
        if moved_at != from {
            match place.base.filter(|base| *base == words.base_before) {
                Some(base) => {
                    let by = (base, words.base);
                    self.copy_by(memory, (from, moved_at), by, time_ns)?;
                }
                None => self.copied.push_back(Copied::Said(Said::Lost(offset(moved_at)))),
            }
        }
        if moved_at != to {
            let by = (words.base, words.tail);
            self.copy_by(memory, (moved_at, to), by, time_ns)?;
        }
        Ok(if moved_behind <= new { Some(words.base) } else { place.base })
    }

    /// Copies what lies between two positions, all by one base. `since`: as in [`Piece`].
    fn copy_by(
        &mut self,
        memory: &impl Memory,
        (from, to): (u64, u64),
        (base, since): (u64, u64),
        time_ns: u64,
    ) -> Result<(), Unreadable> {
        let Some(place) = self.place else { return Ok(()) };
        let mut at = from;
        if to.wrapping_sub(from) > self.size {
            at = to.wrapping_sub(self.size);
            let offset = place.start.wrapping_add(at);
            self.copied.push_back(Copied::Said(Said::Lost(offset)));
        }
        let Some(room) = self.room.checked_sub(to.wrapping_sub(at)) else {
            self.copied.push_back(Copied::Said(Said::Lost(place.start.wrapping_add(to))));
            return Ok(());
        };
        self.room = room;
        while at != to {
            let index = self.index(at, base);
            let length = to.wrapping_sub(at).min(self.size - index);
            let mut bytes = vec![0; length as usize];
            memory.read(self.bytes_at.wrapping_add(index), &mut bytes)?;
            self.copied.push_back(Copied::Piece(Piece {
                position: at,
                offset: place.start.wrapping_add(at),
                bytes,
                time_ns,
                base,
                since,
                tail_behind: None,
                is_certain: false,
            }));
            at = at.wrapping_add(length);
        }
        Ok(())
    }

    fn index(&self, position: u64, base: u64) -> u64 {
        position.wrapping_sub(base) & (self.size - 1)
    }

    /// Tells what is certain by now.
    pub fn settle(&mut self, behind: &Behind, now: Instant, tell: &mut impl FnMut(Said)) {
        let words = &behind.words;
        if self.quiet_at != words.tail {
            (self.quiet_at, self.quiet_since) = (words.tail, now);
        }
        let is_quiet = now.saturating_duration_since(self.quiet_since) >= QUIET;
        self.split_at_head(words.head);
        while let Some(first) = self.copied.pop_front() {
            let mut piece = match first {
                Copied::Said(said) => {
                    tell(said);
                    continue;
                }
                Copied::Piece(piece) => piece,
            };
            let tail_behind = *piece.tail_behind.get_or_insert(words.tail);
            let is_over =
                self.is_by_device || behind.is_idle || is_quiet || words.tail != tail_behind;
            if !piece.is_certain && !is_over {
                self.copied.push_front(Copied::Piece(piece));
                break;
            }
            if !piece.is_certain && self.is_by_device {
                tell(Said::Lost(piece.offset.wrapping_add(piece.bytes.len() as u64)));
                continue;
            }
            if !piece.is_certain {
                self.take_lost(&mut piece, words, tell);
            }
            if !piece.bytes.is_empty() {
                tell(Said::Bytes(piece.offset, piece.bytes, piece.time_ns));
            }
        }
        for copied in &mut self.copied {
            if let Copied::Piece(piece) = copied {
                piece.tail_behind.get_or_insert(words.tail);
            }
        }
    }

    /// It is over, and no more can be found out: what is not certain is lost.
    pub fn give_up(&mut self, tell: &mut impl FnMut(Said)) {
        for copied in std::mem::take(&mut self.copied) {
            tell(match copied {
                Copied::Said(said) => said,
                Copied::Piece(piece) if piece.is_certain => {
                    Said::Bytes(piece.offset, piece.bytes, piece.time_ns)
                }
                Copied::Piece(piece) => {
                    Said::Lost(piece.offset.wrapping_add(piece.bytes.len() as u64))
                }
            });
        }
    }

    /// Where it stands, to go back there.
    pub fn mark(&self) -> Mark {
        Mark { place: self.place, copied: self.copied.len() }
    }

    /// What was copied since then was another connection's, perhaps: as if nobody had looked.
    pub fn back_to(&mut self, mark: Mark) {
        self.place = mark.place;
        self.copied.truncate(mark.copied);
    }

    /// What the consumer has not given back yet was not written over when it was copied.
    fn split_at_head(&mut self, head: u64) {
        if self.copied.is_empty() {
            return;
        }
        let mut all = VecDeque::with_capacity(self.copied.len() + 1);
        for copied in std::mem::take(&mut self.copied) {
            let Copied::Piece(mut piece) = copied else {
                all.push_back(copied);
                continue;
            };
            let length = piece.bytes.len() as u64;
            // (Of an honest consumer it lies at most a ring away, before or behind.)
            let before = piece.position.wrapping_sub(head) <= self.size;
            let inside = head.wrapping_sub(piece.position);
            if before {
                piece.is_certain = true;
            } else if !piece.is_certain && inside < length {
                let rest = piece.bytes.split_off(inside as usize);
                let behind = Piece {
                    position: head,
                    offset: piece.offset.wrapping_add(inside),
                    bytes: rest,
                    is_certain: true,
                    ..piece
                };
                all.push_back(Copied::Piece(piece));
                all.push_back(Copied::Piece(behind));
                continue;
            }
            all.push_back(Copied::Piece(piece));
        }
        self.copied = all;
    }

    /// Takes from the front of a piece what may have been written over before it was copied, where
    /// all that was begun by then lies before what these words say.
    fn take_lost(&self, piece: &mut Piece, words: &Words, tell: &mut impl FnMut(Said)) {
        let written = words.written(self.size);
        let length = piece.bytes.len() as u64;
        let ahead = written.wrapping_sub(piece.position);
        let lapped = ahead.saturating_sub(self.size);
        let rebased = match words.base == piece.base {
            true => 0,
            false => written
                .wrapping_sub(piece.since)
                .saturating_sub(self.index(piece.position, piece.base)),
        };
        let lost = lapped.max(rebased).min(length);
        if lost == 0 {
            return;
        }
        piece.bytes.drain(..lost as usize);
        piece.offset = piece.offset.wrapping_add(lost);
        tell(Said::Lost(piece.offset));
    }
}
