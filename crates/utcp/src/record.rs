//! What a keeper has to know of a connection that is out, if the process is killed at any moment.
//!
//! It lies in a file in memory: a page of words, then both buffers. There are two copies of the
//! numbers, and a word that says which of them counts. The process writes the other copy and then
//! that word, before it sends the segment that these numbers are of, and before it uses room in a
//! buffer again that they have made free. So nothing that the peer has seen is beyond them, and
//! every byte that they name is there. The keeper reads when the process is gone.

use crate::buffer::Buffer;
use crate::kernel::Queues;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use netacc_packet::shared::{File, Mapping, PAGE};
use netacc_packet::sys::Errno;
use netacc_tcp::{Repair, RepairWindow};

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// On its way out: the socket has everything, perhaps in repair mode.
    Whole,
    /// The socket is empty, or is being filled: the numbers say how it goes on.
    Out,
    /// The socket has everything that was sent, and perhaps more; perhaps in repair mode.
    Back,
}

const STAGE: usize = 0;
const SEND_SIZE: usize = 1;
const RECEIVE_SIZE: usize = 2;
const MSS: usize = 3;
const WHICH: usize = 4;
const COPIES: [usize; 2] = [8, 40];
const NUMBERS: usize = 16;

/// The page of words.
#[derive(Debug)]
pub(crate) struct Record {
    page: Mapping,
    file: File,
}

/// Numbers of a connection, as the keeper needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) repair: Repair,
    /// Places of the receive buffer: how far the application has read, and where the take-over was.
    pub(crate) read: u64,
    pub(crate) base: u64,
}

impl Record {
    /// Of a connection that is still whole.
    pub(crate) fn new() -> Result<Self, Errno> {
        let file = File::new()?;
        file.lengthen(PAGE)?;
        Self::given(file)
    }

    /// In another process.
    pub(crate) fn given(file: File) -> Result<Self, Errno> {
        Ok(Self { page: Mapping::of(&file, 0, PAGE)?, file })
    }

    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        static NONE: AtomicU64 = AtomicU64::new(0);
        self.page.words().get(at).unwrap_or(&NONE)
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.word(STAGE).load(Acquire) {
            0 => Stage::Whole,
            1 => Stage::Out,
            _ => Stage::Back,
        }
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        let word = match stage {
            Stage::Whole => 0,
            Stage::Out => 1,
            Stage::Back => 2,
        };
        self.word(STAGE).store(word, Release);
    }

    /// What `TCP_MAXSEG` has said in repair mode.
    pub(crate) fn mss(&self) -> u64 {
        self.word(MSS).load(Relaxed)
    }

    pub(crate) fn set_mss(&self, mss: u64) {
        self.word(MSS).store(mss, Relaxed);
    }

    /// Buffers of these sizes, for what is sent and what is received.
    pub(crate) fn make_buffers(&self, [send, receive]: [usize; 2]) -> Result<[Buffer; 2], Errno> {
        let end = PAGE.checked_add(send).and_then(|end| end.checked_add(receive));
        self.file.lengthen(end.ok_or(Errno(libc::ENOMEM))?)?;
        self.word(SEND_SIZE).store(send as u64, Relaxed);
        self.word(RECEIVE_SIZE).store(receive as u64, Relaxed);
        self.buffers()
    }

    fn buffers(&self) -> Result<[Buffer; 2], Errno> {
        let size = |at| usize::try_from(self.word(at).load(Relaxed)).unwrap_or(0);
        let (send, receive) = (size(SEND_SIZE), size(RECEIVE_SIZE));
        let of = |from, size| Mapping::of(&self.file, from, size).map(Buffer::new);
        Ok([of(PAGE, send)?, of(PAGE + send, receive)?])
    }

    /// From here on these count.
    pub(crate) fn publish(&self, numbers: &Numbers) {
        let which = usize::from(self.word(WHICH).load(Relaxed) == 0);
        let at = COPIES.get(which).copied().unwrap_or(0);
        let Numbers { repair, read, base } = numbers;
        let w = &repair.window;
        let stamp = repair.stamp.map_or(u64::MAX, u64::from);
        let words: [u64; NUMBERS] = [
            repair.send_seq.into(),
            repair.send_from,
            repair.send_sent,
            repair.send_to,
            repair.receive_seq.into(),
            repair.receive_to,
            w.snd_wl1.into(),
            w.snd_wnd.into(),
            w.max_window.into(),
            w.rcv_wnd.into(),
            w.rcv_wup.into(),
            stamp,
            repair.mss,
            *read,
            *base,
            0,
        ];
        for (place, word) in (at..).zip(words) {
            self.word(place).store(word, Relaxed);
        }
        self.word(WHICH).store(which as u64, Release);
    }

    /// Those that count.
    pub(crate) fn numbers(&self) -> Numbers {
        let which = usize::from(self.word(WHICH).load(Acquire) != 0);
        let at = COPIES.get(which).copied().unwrap_or(0);
        let word = |n: usize| self.word(at + n).load(Relaxed);
        let short = |n: usize| u32::try_from(word(n)).unwrap_or(0);
        let window = RepairWindow {
            snd_wl1: short(6),
            snd_wnd: short(7),
            max_window: short(8),
            rcv_wnd: short(9),
            rcv_wup: short(10),
        };
        let repair = Repair {
            reason: None,
            send_seq: short(0),
            send_from: word(1),
            send_sent: word(2),
            send_to: word(3),
            receive_seq: short(4),
            receive_to: word(5),
            window,
            stamp: u32::try_from(word(11)).ok(),
            mss: word(12),
        };
        Numbers { repair, read: word(13), base: word(14) }
    }

    /// The bytes that they name: for the socket's queues, and what was never sent.
    pub(crate) fn queues(&self, numbers: &Numbers) -> Result<(Queues, Vec<u8>), Errno> {
        let [send, receive] = self.buffers()?;
        numbers.queues(&send, &receive)
    }
}

impl Numbers {
    /// The bytes that they name: for the socket's queues, and what was never sent.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub(crate) fn queues(
        &self,
        send: &Buffer,
        receive: &Buffer,
    ) -> Result<(Queues, Vec<u8>), Errno> {
        let Self { repair, read, base } = self;
        let bytes = |buffer: &Buffer, from: u64, to: u64| {
            copy_of(buffer.get(from, to.saturating_sub(from))).ok_or(Errno(libc::ENOMEM))
        };
        let unsent = bytes(send, repair.send_sent, repair.send_to)?;
        let queues = Queues {
            in_flight: bytes(send, repair.send_from, repair.send_sent)?,
            unread: bytes(receive, *read, base + repair.receive_to)?,
            unsent: unsent.len(),
        };
        Ok((queues, unsent))
    }
}

/// Both parts, one behind the other. Nothing where there is no memory: the program goes on.
pub(crate) fn copy_of(parts: [&[u8]; 2]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(parts.iter().map(|part| part.len()).sum()).ok()?;
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: u32) -> Numbers {
        let at = u64::from(n);
        let window = RepairWindow {
            snd_wl1: n,
            snd_wnd: n + 1,
            max_window: n + 2,
            rcv_wnd: n + 3,
            rcv_wup: n + 4,
        };
        let repair = Repair {
            reason: None,
            send_seq: n + 5,
            send_from: at + 6,
            send_sent: at + 7,
            send_to: at + 8,
            receive_seq: n + 9,
            receive_to: at + 10,
            window,
            stamp: n.is_multiple_of(2).then_some(n + 11),
            mss: at + 12,
        };
        Numbers { repair, read: at + 13, base: at + 14 }
    }

    #[test]
    fn the_latest_numbers_count_and_the_one_being_written_does_not() {
        let record = Record::new().unwrap();
        assert_eq!(record.stage(), Stage::Whole);
        for n in 0..10 {
            record.publish(&numbers(n * 100));
            assert_eq!(record.numbers(), numbers(n * 100));
            // Killed in the middle of the next: anything may stand in the other copy.
            let which = usize::from(record.word(WHICH).load(Relaxed) == 0);
            for at in COPIES[which]..COPIES[which] + NUMBERS {
                record.word(at).store(u64::MAX / 3, Relaxed);
            }
            assert_eq!(record.numbers(), numbers(n * 100));
        }
        for stage in [Stage::Out, Stage::Back, Stage::Whole] {
            record.set_stage(stage);
            assert_eq!(record.stage(), stage);
        }
    }

    #[test]
    fn another_process_reads_the_buffers_by_the_file() {
        let record = Record::new().unwrap();
        let [mut send, mut receive] = record.make_buffers([1 << 17, 1 << 16]).unwrap();
        send.put(1000, b"flown never");
        receive.put(2000, b"unread");
        let mut numbers = numbers(0);
        (numbers.read, numbers.base) = (2000, 1500);
        numbers.repair.receive_to = 506;
        let repair = &mut numbers.repair;
        (repair.send_from, repair.send_sent, repair.send_to) = (1000, 1006, 1011);
        record.publish(&numbers);
        let fd = netacc_packet::sys::Fd::duplicate_of(record.file().fd().number()).unwrap();
        let other = Record::given(File::given(fd)).unwrap();
        let (queues, unsent) = other.queues(&other.numbers()).unwrap();
        assert_eq!((&queues.in_flight[..], &queues.unread[..]), (&b"flown "[..], &b"unread"[..]));
        assert_eq!((&unsent[..], queues.unsent), (&b"never"[..], 5));
    }
}
