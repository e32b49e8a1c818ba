//! What has been sent and is not acknowledged: the scoreboard (RFC 6675, 3; RFC 8985, 5).
//!
//! A record is a run of bytes that were sent together and have had the same fate so far. The
//! records lie side by side from SND.UNA to SND.NXT, in order. How many there may be is fixed when
//! the connection is taken over: where there is no room to divide one, less is known of its
//! bytes, and never something wrong.

use super::super::seq::Position;
use crate::Nanos;
use alloc::collections::VecDeque;

/// What has become of the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// On their way, as far as is known.
    InFlight,
    /// They will not arrive, and are to be sent again.
    Lost,
    /// The peer has them, but not all that is before them.
    Sacked,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) from: Position,
    pub(crate) to: Position,
    /// When it was sent last.
    pub(crate) sent_at: Nanos,
    pub(crate) fate: Fate,
    /// Sent more than once, or by the kernel at a time that is not known: no measure of the round
    /// trip (Karn).
    pub(crate) again: bool,
}

impl Record {
    pub(crate) const fn len(&self) -> u64 {
        self.to - self.from
    }

    /// RFC 8985, 5.2, RACK_sent_after.
    pub(crate) const fn sent_after(&self, sent_at: Nanos, end: Position) -> bool {
        self.sent_at > sent_at || self.sent_at == sent_at && self.to > end
    }
}

#[derive(Debug)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    capacity: usize,
    in_flight: u64,
    lost: u64,
    sacked: u64,
}

/// Of the capacity, what new data leaves free: room to divide records when they are judged.
const RESERVE: usize = 16;
/// Of that, what selective acknowledgements leave to retransmissions.
const LAST: usize = 4;

impl Scoreboard {
    /// Room for so many records; none where there is no memory.
    pub(crate) fn new(capacity: usize) -> Option<Self> {
        let capacity = capacity.max(2 * RESERVE);
        let mut records = VecDeque::new();
        records.try_reserve_exact(capacity).ok()?;
        Some(Self { records, capacity, in_flight: 0, lost: 0, sacked: 0 })
    }

    /// RFC 6675, pipe: what is thought to be in the network.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }

    pub(crate) const fn sacked(&self) -> u64 {
        self.sacked
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    pub(crate) fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    /// Whether more can be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.records.len() + RESERVE < self.capacity
    }

    const fn sum(&mut self, fate: Fate) -> &mut u64 {
        match fate {
            Fate::InFlight => &mut self.in_flight,
            Fate::Lost => &mut self.lost,
            Fate::Sacked => &mut self.sacked,
        }
    }

    fn set(&mut self, at: usize, change: impl FnOnce(&mut Record)) {
        let Some(record) = self.records.get_mut(at) else { return };
        let before = *record;
        change(record);
        let after = *record;
        *self.sum(before.fate) -= before.len();
        *self.sum(after.fate) += after.len();
    }

    /// Bytes have been sent for the first time, behind all others.
    pub(crate) fn push(&mut self, record: Record) {
        debug_assert!(self.records.len() < self.capacity);
        debug_assert!(self.last().is_none_or(|last| last.to == record.from));
        *self.sum(record.fate) += record.len();
        self.records.push_back(record);
    }

    /// The peer has everything below `to`. Tells what of it leaves the scoreboard.
    pub(crate) fn acknowledge(&mut self, to: Position, mut told: impl FnMut(Record)) {
        while let Some(&first) = self.records.front() {
            if first.to > to {
                if first.from < to {
                    self.set(0, |record| record.from = to);
                    told(Record { to, ..first });
                }
                break;
            }
            *self.sum(first.fate) -= first.len();
            self.records.pop_front();
            told(first);
        }
    }

    /// Divides the record that contains `at`, unless it begins there; says where the second half
    /// is. `keep` places stay free.
    fn divide(&mut self, at: Position, keep: usize) -> Option<usize> {
        let index = self.records.partition_point(|record| record.to <= at);
        let record = *self.records.get(index)?;
        if record.from >= at {
            return Some(index);
        }
        if self.records.len() + keep >= self.capacity {
            return None;
        }
        self.records.insert(index + 1, Record { from: at, ..record });
        // (Both halves have the fate of the whole: the sums stay.)
        self.records.get_mut(index)?.to = at;
        Some(index + 1)
    }

    /// The peer has these bytes. Tells what was not known to be there. Where there is no room to
    /// divide a record it stays as it was: bytes are sent again that need not be.
    pub(crate) fn sack(&mut self, from: Position, to: Position, mut told: impl FnMut(Record)) {
        let Some(begin) = self.divide_or_next(from) else { return };
        let mut at = begin;
        while let Some(&record) = self.records.get(at) {
            if record.to > to {
                // The block ends inside of this one.
                if record.from >= to
                    || record.fate == Fate::Sacked
                    || self.divide(to, LAST).is_none()
                {
                    break;
                }
                continue;
            }
            if record.fate != Fate::Sacked {
                told(record);
                self.set(at, |record| record.fate = Fate::Sacked);
            }
            at += 1;
        }
        self.join(begin.saturating_sub(1), at);
    }

    /// Where the record that begins at `from` is, or the next one where it cannot be divided.
    fn divide_or_next(&mut self, from: Position) -> Option<usize> {
        let index = self.records.partition_point(|record| record.to <= from);
        let record = self.records.get(index)?;
        if record.fate == Fate::Sacked || record.from >= from {
            return Some(index);
        }
        self.divide(from, LAST).or(Some(index + 1))
    }

    /// Makes one of neighbours that have arrived, between these places.
    fn join(&mut self, begin: usize, end: usize) {
        let mut at = end.min(self.records.len().saturating_sub(1));
        while at > begin {
            if let (Some(&left), Some(&right)) = (self.records.get(at - 1), self.records.get(at))
                && left.fate == Fate::Sacked
                && right.fate == Fate::Sacked
            {
                self.records.remove(at);
                if let Some(left) = self.records.get_mut(at - 1) {
                    left.to = right.to;
                }
            }
            at -= 1;
        }
    }

    /// Those in flight that `judge` says so of are lost.
    pub(crate) fn lose(&mut self, mut judge: impl FnMut(&Record) -> bool) {
        for at in 0..self.records.len() {
            if let Some(record) = self.records.get(at)
                && record.fate == Fate::InFlight
                && judge(record)
            {
                self.set(at, |record| record.fate = Fate::Lost);
            }
        }
    }

    /// What the peer said it had it may have thrown away since (RFC 2018, 8).
    pub(crate) fn forget_sacks(&mut self) {
        for at in 0..self.records.len() {
            if self.records.get(at).is_some_and(|record| record.fate == Fate::Sacked) {
                self.set(at, |record| {
                    record.fate = Fate::Lost;
                    record.again = true;
                });
            }
        }
    }

    /// The first bytes that are lost.
    pub(crate) fn first_lost(&self) -> Option<Record> {
        if self.lost == 0 {
            return None;
        }
        self.records.iter().find(|record| record.fate == Fate::Lost).copied()
    }

    /// Bytes are sent again: from the beginning of a record up to `to`. Where the record cannot
    /// be divided, its rest is thought to be in flight as well, and will be found lost again.
    pub(crate) fn sent_again(&mut self, from: Position, to: Position, now: Nanos) {
        self.divide(to, 0);
        let at = self.records.partition_point(|record| record.to <= from);
        self.set(at, |record| {
            record.sent_at = now;
            record.again = true;
            record.fate = Fate::InFlight;
        });
    }

    /// Divides so that the last record has at most `most` bytes, if it can, and tells it.
    pub(crate) fn last_up_to(&mut self, most: u64) -> Option<Record> {
        let last = *self.last()?;
        if last.len() > most {
            self.divide(last.to - most, 0);
        }
        self.last().copied().filter(|last| last.len() <= most && last.fate == Fate::InFlight)
    }

    /// Whether the records lie side by side from `una` to `nxt`, and the sums are theirs.
    #[cfg(test)]
    pub(crate) fn check(&self, una: Position, nxt: Position) {
        let mut at = una;
        let mut sums = [0; 3];
        for record in &self.records {
            assert_eq!(record.from, at);
            assert!(record.to > record.from);
            sums[record.fate as usize] += record.len();
            at = record.to;
        }
        assert_eq!(at, nxt);
        assert_eq!(sums, [self.in_flight, self.lost, self.sacked]);
        assert!(self.records.len() <= self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn sent(board: &mut Scoreboard, from: Position, to: Position, sent_at: Nanos) {
        board.push(Record { from, to, sent_at, fate: Fate::InFlight, again: false });
    }

    /// A board with room for so few records, against one that knows each byte.
    #[test]
    fn it_agrees_with_one_that_knows_each_byte() {
        for seed in 1..300 {
            let mut random = crate::tests::random::Random::new(seed);
            let capacity = if seed % 2 == 0 { 32 } else { 4096 };
            let mut board = Scoreboard::new(capacity).unwrap();
            let mut bytes: BTreeMap<Position, Fate> = BTreeMap::new();
            let (mut una, mut nxt) = (1000, 1000);
            for now in 0..300 {
                let some = |random: &mut crate::tests::random::Random| {
                    let from = una + random.below(nxt - una + 1);
                    (from, from + random.below(nxt - from + 1))
                };
                match random.below(5) {
                    0 if board.has_room() => {
                        let to = nxt + 1 + random.below(20);
                        sent(&mut board, nxt, to, now);
                        bytes.extend((nxt..to).map(|at| (at, Fate::InFlight)));
                        nxt = to;
                    }
                    1 => {
                        let (to, _) = some(&mut random);
                        let mut gone = 0;
                        board.acknowledge(to, |record| gone += record.len());
                        assert_eq!(gone, to - una);
                        una = to;
                        bytes = bytes.split_off(&una);
                    }
                    2 => {
                        let (from, to) = some(&mut random);
                        board.sack(from, to, |record| {
                            for at in record.from..record.to {
                                // Each is told once, and none that was not in the block.
                                assert!((from..to).contains(&at));
                                assert_ne!(bytes.insert(at, Fate::Sacked), Some(Fate::Sacked));
                            }
                        });
                        if capacity > 1000 {
                            assert!((from..to).all(|at| bytes[&at] == Fate::Sacked));
                        }
                    }
                    3 => {
                        let odd = random.below(2);
                        board.lose(|record| record.from % 2 == odd);
                        // (The model follows by the records.)
                        let now: Vec<Record> = board.iter().copied().collect();
                        for record in now.iter().filter(|record| record.fate == Fate::Lost) {
                            for at in record.from..record.to {
                                assert_ne!(bytes.insert(at, Fate::Lost), Some(Fate::Sacked));
                            }
                        }
                    }
                    _ => {
                        let Some(lost) = board.first_lost() else { continue };
                        let to = lost.to.min(lost.from + 7);
                        board.sent_again(lost.from, to, now);
                        let until = if capacity > 1000 { to } else { lost.to };
                        for record in board.iter().filter(|record| record.sent_at == now) {
                            assert!(record.again || record.from >= until);
                        }
                        for record in board.iter() {
                            for at in record.from..record.to {
                                if record.fate == Fate::InFlight {
                                    bytes.insert(at, Fate::InFlight);
                                }
                            }
                        }
                    }
                }
                board.check(una, nxt);
                for record in board.iter() {
                    assert!((record.from..record.to).all(|at| bytes[&at] == record.fate));
                }
            }
        }
    }

    #[test]
    fn neighbours_that_have_arrived_are_one() {
        let mut board = Scoreboard::new(64).unwrap();
        sent(&mut board, 0, 100, 1);
        for at in [10, 30, 20] {
            board.sack(at, at + 10, |_| {});
        }
        assert_eq!(board.iter().count(), 3);
        assert_eq!(board.sacked(), 30);
    }

    #[test]
    fn a_full_board_still_lets_bytes_be_sent_again() {
        let mut board = Scoreboard::new(32).unwrap();
        sent(&mut board, 0, 100_000, 1);
        for at in 0..50 {
            board.sack(at * 1000 + 500, at * 1000 + 600, |_| {});
        }
        board.check(0, 100_000);
        board.lose(|_| true);
        let mut rounds = 0;
        while let Some(lost) = board.first_lost() {
            board.sent_again(lost.from, lost.to.min(lost.from + 100), 2);
            board.check(0, 100_000);
            rounds += 1;
            assert!(rounds < 2000);
        }
    }
}
