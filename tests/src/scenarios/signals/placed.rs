//! Bytes that know their place.

use super::*;

/// What one call sends: words of 16 bytes, of which the first begins with a bit that no other has.
/// Each has the number of its call, how many jumps there have been, its place in the call, and a
/// sum.
pub(super) fn words(call: u32, jumps: u32) -> Vec<u8> {
    (0..WORDS)
        .flat_map(|place| {
            word(u128::from(call) << 48 | u128::from(jumps) << 16 | u128::from(place))
        })
        .collect()
}

/// Words of a call.
pub(super) const WORDS: u16 = 512;

/// 80 bits and 32 of their sum, 7 in each byte.
pub(super) fn word(said: u128) -> [u8; 16] {
    let sum = (said as u64 ^ (said >> 48) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let bits = said << 32 | u128::from(sum);
    let mut word: [u8; 16] = std::array::from_fn(|i| (bits >> (7 * i)) as u8 & 0x7f);
    word[0] |= 0x80;
    word
}

/// The call, the jumps and the place that a word says; `None`: it is none.
pub(super) fn said(bytes: &[u8]) -> Option<(u32, u32, u16)> {
    let bits =
        bytes.iter().enumerate().fold(0, |bits, (i, b)| bits | u128::from(b & 0x7f) << (7 * i));
    let said = bits >> 32;
    (word(said) == *bytes).then_some(((said >> 48) as u32, (said >> 16) as u32, said as u16))
}

/// Whether words that come follow each other. A call may end anywhere if its sender jumped out of
/// it, also before its first byte; nothing else may be missing, but what its receiver has lost by a
/// jump.
#[derive(Default)]
pub(super) struct Order {
    /// Of the word under way.
    begun: Vec<u8>,
    /// The word before: call, jumps, place. `None`: bytes of ours are missing.
    last: Option<(u32, u32, u16)>,
    /// Behind it only the beginning of a word has come.
    cut: bool,
    /// The highest call of which there was a word.
    call: u32,
    pub(super) wrong: Option<String>,
}

impl Order {
    /// The receiver does not know what it has received.
    pub(super) fn some_are_missing(&mut self) {
        self.begun.clear();
        (self.last, self.cut) = (None, false);
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte & 0x80 != 0 {
                self.cut |= !self.begun.is_empty();
                self.begun.clear();
            } else if self.begun.is_empty() {
                // The rest of a word whose beginning the receiver has lost.
                if self.last.is_some() {
                    self.wrong
                        .get_or_insert(format!("a byte outside of words, after {:?}", self.last));
                }
                continue;
            }
            self.begun.push(byte);
            if self.begun.len() == 16 {
                self.word();
            }
        }
    }

    pub(super) fn word(&mut self) {
        let Some((call, jumps, place)) = said(&self.begun) else {
            self.wrong.get_or_insert(format!("no word: {:x?}, after {:?}", self.begun, self.last));
            return self.some_are_missing();
        };
        self.begun.clear();
        let fine = match self.last {
            Some((before, _, at)) if before == call => !self.cut && place == at + 1,
            // A call for each jump may have sent nothing, or not all.
            Some((before, earlier, at)) if before < call && jumps >= earlier => {
                let short = call - (before + 1) + u32::from(at + 1 != WORDS);
                place == 0 && short <= jumps - earlier && (short > 0 || !self.cut)
            }
            Some(_) => false,
            None => call >= self.call,
        };
        if !fine {
            self.wrong.get_or_insert(format!("{:?} after {:?}", (call, jumps, place), self.last));
        }
        (self.last, self.cut, self.call) = (Some((call, jumps, place)), false, call);
    }
}

/// Both ways at once, in one thread each way, interrupted.
pub(super) fn stream(t: &Ctx, mine: u64, theirs: u64, flags: c_int) {
    static TICKS: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: c_int) {
        TICKS.fetch_add(1, Relaxed);
    }
    const TOTAL: u64 = 24 << 20;
    let fd = if mine == 1 { t.server() } else { t.client() };
    sys::set_nonblocking(fd, false);
    let mut sender = t.sender(fd, mine);
    let sending = std::thread::spawn(move || {
        while sender.sent < TOTAL {
            match sender.step((TOTAL - sender.sent).min(100_000) as usize, 0) {
                Ok(_) | Err(E(libc::EINTR)) => {}
                Err(e) => return Some(e),
            }
        }
        None
    });
    tick(SIGUSR1, count, flags);
    let mut receiver = t.receiver(fd, theirs);
    let mut error = None;
    let mut eintr = 0;
    while receiver.received < TOTAL && error.is_none() {
        match receiver.step((TOTAL - receiver.received).min(100_000) as usize, 0) {
            Ok(0) => error = Some(E(0)),
            Ok(_) => {}
            Err(E(libc::EINTR)) if flags == 0 => eintr += 1,
            Err(e) => error = Some(e),
        }
    }
    untick();
    let _ = eintr;
    t.log("sent", sending.join().expect("thread"));
    t.log("error", error);
    t.log("exact", receiver.error);
    t.log("interrupted", TICKS.load(Relaxed) > 0);
    t.meet("end");
}
