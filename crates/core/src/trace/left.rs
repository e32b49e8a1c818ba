//! Which traces of processes that have ended stay (`docs/design/trace.md`, "What is kept").
//!
//! Those stay whose processes were there last, whenever they began: a server outlives most of its
//! clients, and its trace is worth more than theirs. When a process was killed nobody notes; what
//! its file has is the time of the last event. Traces in which something went badly stay before
//! others, as long as they are few.

use super::file::{each, name};
use crate::{fd_words, numbers, sys};
use netacc_control::trace::{BAD_FILES_KEPT, BYTES_KEPT, Ended, FILES_KEPT, MAKING_NS};

/// So many of the user's files are looked at.
const SEEN: usize = 512;

/// Room for the trace of a process that begins one now.
pub(super) fn make_room() {
    let mut files = 0;
    each(|_, _| files += 1);
    let now = sys::unix_ns();
    if cleans(files, now) {
        clean(now);
    }
}

/// Whether a process that begins looks for what others have left. To look at 512 files takes 2.5 ms
/// of CPU time: where there are many it is left to some of those that begin, each of which leaves
/// one file at most; so that each looks at 32 of them on average.
fn cleans(files: u64, began: u64) -> bool {
    /// (Others' files do not make it rarer than that of the largest number that is looked at.)
    const MOST: u64 = SEEN as u64;
    const OFTEN: u64 = 32;
    // The time in nanoseconds, mixed: as good as drawn.
    let drawn = began.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    drawn % files.clamp(1, MOST) < OFTEN
}

/// A file that a process has left; the one that ended first is the least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Left {
    /// When its last event was.
    ended: u64,
    /// What its name is made of.
    began: u64,
    pid: u32,
    /// The memory that it takes.
    bytes: u64,
    /// A connection went badly.
    is_bad: bool,
}

impl Left {
    const NONE: Left = Left { ended: 0, began: 0, pid: 0, bytes: 0, is_bad: false };

    fn take_away(&self) {
        let _ = sys::unlink(&name(self.began, self.pid));
    }
}

/// The last ones, up to so many.
struct Last<const MOST: usize> {
    all: [Left; MOST],
    count: usize,
}

impl<const MOST: usize> Last<MOST> {
    const NONE: Last<MOST> = Last { all: [Left::NONE; MOST], count: 0 };

    /// Takes one more; the first one, where there are too many.
    fn take(&mut self, mut left: Left) -> Option<Left> {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = left;
            self.count += 1;
            return None;
        }
        if let Some(first) = self.all.iter_mut().min().filter(|first| **first < left) {
            core::mem::swap(first, &mut left);
        }
        Some(left)
    }

    /// All of them, the last one first.
    fn sorted(&mut self) -> impl Iterator<Item = &Left> {
        let all = self.all.get_mut(..self.count).unwrap_or_default();
        all.sort_unstable();
        all.iter().rev()
    }
}

/// Those that stay.
struct Kept {
    bad: Last<BAD_FILES_KEPT>,
    others: Last<FILES_KEPT>,
}

impl Kept {
    const NONE: Kept = Kept { bad: Last::NONE, others: Last::NONE };

    /// Takes one more. One that cannot stay.
    fn take(&mut self, left: Left) -> Option<Left> {
        // (One in which something went badly too long ago is as any other.)
        let other = if left.is_bad { self.bad.take(left)? } else { left };
        self.others.take(other)
    }

    /// Calls `found` with those that are too much for all.
    fn too_much(&mut self, mut found: impl FnMut(&Left)) {
        let mut bytes = 0u64;
        for (before, left) in self.bad.sorted().chain(self.others.sorted()).enumerate() {
            bytes = bytes.saturating_add(left.bytes);
            if before >= FILES_KEPT || bytes > BYTES_KEPT {
                found(left);
            }
        }
    }
}

/// What is left of processes that have ended goes where it is too much. Whether they have, their
/// locks say alone: their numbers may be other processes' by now, or this one's.
fn clean(now: u64) {
    let me = sys::geteuid();
    let (mut kept, mut seen) = (Kept::NONE, 0);
    each(|began, pid| {
        let file = name(began, pid);
        // (Others' do not count, however many they are.)
        let Some(bytes) = sys::memory_of(&file, me).filter(|_| seen < SEEN) else { return };
        seen += 1;
        let Some(ended) = left(&file) else { return };
        let one = Left { ended: 0, began, pid, bytes, is_bad: false };
        let gone = match ended {
            // (What a file says of times that are to come is not believed.)
            Some(Ended { unix_ns, troubles }) => {
                let ended = unix_ns.max(began).min(now);
                kept.take(Left { ended, is_bad: troubles != 0, ..one })
            }
            // Its process has ended while it made the file, unless it makes it at this moment: it
            // gets the lock behind the name.
            None => Some(one).filter(|_| now.abs_diff(began) >= MAKING_NS),
        };
        gone.iter().for_each(Left::take_away);
    });
    kept.too_much(Left::take_away);
}

/// What a file says, if the process that made it is gone: `Some(None)` is one without a header.
fn left(name: &[u8]) -> Option<Option<Ended>> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let fd = numbers::make(|| sys::open(name, flags, 0));
    if fd < 0 {
        return None;
    }
    let is_free = sys::flock(fd, libc::LOCK_SH | libc::LOCK_NB) >= 0;
    let mut first = [0; Ended::BYTES];
    let is_read = is_free && sys::pread(fd, &mut first, 0) >= 0;
    fd_words::close_internal(fd);
    is_read.then(|| Ended::read(&first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that stay of these, each of so many bytes: when each ended, and whether badly.
    fn stay(bytes: u64, all: impl IntoIterator<Item = (u64, bool)>) -> std::vec::Vec<u64> {
        let mut kept = Kept::NONE;
        let mut there = std::collections::BTreeSet::new();
        for (ended, is_bad) in all {
            // (The one that began first may end last.)
            let one = Left { ended, began: u64::MAX - ended, pid: 1, bytes, is_bad };
            there.insert(ended);
            kept.take(one).iter().for_each(|gone| assert!(there.remove(&gone.ended)));
        }
        kept.too_much(|gone| assert!(there.remove(&gone.ended)));
        there.into_iter().collect()
    }

    #[test]
    fn those_stay_that_ended_last() {
        let last: std::vec::Vec<u64> = (84..100).collect();
        assert_eq!(stay(1, (0..100).map(|i| (i, false))), last);
        assert_eq!(stay(1, (0..100).rev().map(|i| (i, false))), last);
        assert_eq!(stay(1, (0..100).map(|i| (i, true))), last, "there is nothing better to keep");
        assert_eq!(stay(BYTES_KEPT / 3, (0..100).map(|i| (i, false))), [97, 98, 99]);
        assert_eq!(stay(BYTES_KEPT + 1, [(1, false)]), [] as [u64; 0]);
    }

    #[test]
    fn what_went_badly_stays_for_longer_and_not_for_ever() {
        let bad_first = (0..100).map(|i| (i, i < 20));
        let both: std::vec::Vec<u64> = (12..20).chain(92..100).collect();
        assert_eq!(stay(1, bad_first.clone()), both);
        assert_eq!(stay(1, bad_first.rev()), both);
        let few: std::vec::Vec<u64> = (0..2).chain(86..100).collect();
        assert_eq!(stay(1, (0..100).map(|i| (i, i < 2))), few);
        assert_eq!(stay(BYTES_KEPT / 2, [(1, true), (2, false), (3, false)]), [1, 3]);
    }

    #[test]
    fn many_that_begin_share_the_work() {
        let of = |files: u64| (0..10_000).filter(|i| cleans(files, i * 12_345)).count();
        assert_eq!([0, 1, 16, 32].map(of), [10_000; 4]);
        for (files, cleaning) in [(64, 5000), (512, 625), (100_000, 625)] {
            let found = of(files);
            assert!((cleaning * 8 / 10..cleaning * 12 / 10).contains(&found), "{files}: {found}");
        }
    }
}
