//! What this end has said in the words that it shares with the peer.
//!
//! The peer can write those words, too, whosever they are. So nothing that this end has decided is
//! ever read back from there: it is kept here, in memory that this process shares with its forked
//! children alone, and only published to the shared words. `docs/design/words.md` goes through them
//! one by one.

use crate::channel::announce;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use netacc_proto::switchover::Ack;
use netacc_ring::RingWords;
use netacc_ring::sleepers::Posted;

/// Of one connection while it is attached; for those who look without its locks. All zero where it
/// begins.
#[repr(C)]
pub(crate) struct Published {
    /// How far the ring that we consume is given back (`RingWords::head`).
    pub(crate) head: AtomicU64,
    /// What we have acknowledged (`quiet::ACK`).
    pub(crate) ack: AtomicU64,
    /// How far the ring that we produce into is published (`RingWords::tail`).
    pub(crate) tail: AtomicU64,
    /// The path that we have announced (`announce::EPOCH`).
    pub(crate) epoch: AtomicU32,
    /// Whom the peer is to wake (NOTIFY, of both directions).
    pub(crate) posted: Posted,
    /// The generation of the socket when it was attached.
    generation: AtomicU32,
    /// Our last word on the slot (`quiet::CLOSED`) is said.
    left: AtomicU32,
    /// The peer's announcement and tail that a look under the receiver's lock has found nothing
    /// behind; [`DOUBTED`]: there are such.
    doubted_epoch: AtomicU64,
    doubted_tail: AtomicU64,
}

const DOUBTED: u64 = 1 << 32;
/// `Ack::control`'s flag of a receiver that waits for the peer to send again over the carrier.
const FROZEN: u64 = Ack { epoch: 0, armed: false, frozen: true, consumed: 0 }.control();

impl Published {
    /// A connection of this generation is attached: its words are all 0.
    pub(crate) fn begin(&self, generation: u32) {
        for word in [&self.head, &self.ack, &self.tail, &self.doubted_epoch] {
            word.store(0, Relaxed);
        }
        for word in [&self.epoch, &self.left] {
            word.store(0, Relaxed);
        }
        self.posted.begin();
        self.generation.store(generation, Release);
    }

    /// The receiver stands on the ring.
    #[inline(always)]
    pub(crate) fn receives_fast(&self) -> bool {
        self.ack.load(Relaxed) & 1 != 0
    }

    /// The sender stands on the ring.
    #[inline(always)]
    pub(crate) fn sends_fast(&self) -> bool {
        self.epoch.load(Relaxed) & 1 != 0
    }

    /// The receiver, whose lock the caller holds, has found nothing behind these words, an
    /// announcement and a tail that were loaded before.
    pub(crate) fn doubt(&self, words: (u32, u64)) {
        self.doubted_epoch.store(0, SeqCst);
        self.doubted_tail.store(words.1, SeqCst);
        self.doubted_epoch.store(DOUBTED | u64::from(words.0), SeqCst);
    }

    /// The receiver has come on: the same words may mean something else.
    #[inline]
    pub(crate) fn trust(&self) {
        self.doubted_epoch.store(0, Relaxed);
    }

    /// The words are those that nothing was found behind. (Either that sees words that are new, or
    /// [`doubt`](Self::doubt) comes after a look at them.)
    #[cold]
    pub(crate) fn is_doubted(&self, words: &RingWords) -> bool {
        let epoch = self.doubted_epoch.load(SeqCst);
        epoch != 0
            && epoch == DOUBTED | words.producer_user[announce::EPOCH].load(Acquire) & 0xffff_ffff
            && self.doubted_tail.load(SeqCst) == words.tail.load(Acquire)
    }

    /// Whether a receive finds bytes in the ring that has those words, and whether the carrier has
    /// to be asked as well. `offset`: how far the receiver has come in the stream.
    #[inline(always)]
    pub(crate) fn ring_says(&self, rx: &RingWords, offset: &AtomicU64) -> (bool, bool) {
        // Before the announcement, which comes before the bytes.
        let some = rx.tail.load(Acquire) != self.head.load(Relaxed);
        let ack = self.ack.load(Relaxed);
        let fast = ack & (FROZEN | 1) == 1;
        let followed = rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32;
        if fast & (some | followed) {
            (some, false)
        } else {
            self.ring_says_slow(rx, offset, (some, fast, followed), ack)
        }
    }

    /// The receiver does not stand on the ring, or the sender has left it.
    #[cold]
    #[inline(never)]
    fn ring_says_slow(
        &self,
        rx: &RingWords,
        offset: &AtomicU64,
        (some, fast, followed): (bool, bool, bool),
        ack: u64,
    ) -> (bool, bool) {
        // Of a receiver that has followed to the carrier the ring has only what has come there too.
        // One that waits is told whether its bytes come again, or stay where they are.
        let stay = || {
            rx.producer_user[announce::RESEND_TO].load(Relaxed)
                == rx.producer_user[announce::CARRIER_FROM].load(Relaxed)
        };
        // What the sender has put on the carrier before comes first, and may still be on its way.
        let turn = || {
            // With `RxHeld::came_to`: either that sees the promotion, or this sees how far the
            // receiver has come.
            fence(SeqCst);
            ack & 1 != 0
                || rx.producer_user[announce::FAST_FROM].load(Relaxed) == offset.load(Relaxed)
        };
        let readable =
            some && !followed && (ack & FROZEN == 0 || stay()) && turn() && !self.is_doubted(rx);
        (readable, !readable && (!fast || !followed))
    }

    /// The receiver waits for the peer's answer to a pull-back: news that only its waiting places
    /// are told of.
    pub(crate) fn is_frozen(&self) -> bool {
        self.ack.load(Relaxed) & FROZEN != 0
    }

    /// The receiver has followed the sender to the carrier, and can stay there.
    pub(crate) fn is_released(&self, rx: &RingWords) -> bool {
        let ack = self.ack.load(Relaxed);
        ack & 1 == 0
            && ack >> 32 == 0
            && rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32
    }

    /// This end's last word on its slot is said.
    pub(crate) fn leave(&self) {
        self.left.store(1, SeqCst);
    }

    /// Whether the connection of `generation` has been attached and has said its last word.
    pub(crate) fn has_left(&self, generation: u32) -> bool {
        let attached = self.generation.load(Acquire);
        if attached == generation {
            return self.left.load(SeqCst) != 0;
        }
        // The memory serves a later connection: this one's end has been through.
        attached.wrapping_sub(generation).cast_signed() > 0
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use netacc_ring::sleepers::{Awaited, Side};

    fn published() -> Published {
        // SAFETY: integers.
        unsafe { core::mem::zeroed() }
    }

    /// Memory that served another connection says nothing of it.
    #[test]
    fn a_connection_begins_with_nothing_said() {
        let (said, word) = (published(), AtomicU64::new(0));
        let words = words(3, 100);
        said.begin(1);
        for w in [&said.head, &said.ack, &said.tail] {
            w.store(u64::MAX, Relaxed);
        }
        said.epoch.store(u32::MAX, Relaxed);
        said.posted.post_set(0, 5, [&word, &word]);
        assert!(said.posted.post_thread(Side::Send, 6, &word, || true));
        said.doubt((3, 100));
        said.leave();
        assert!(
            said.receives_fast()
                && said.sends_fast()
                && said.is_doubted(&words)
                && said.has_left(1)
        );
        said.begin(2);
        assert!(
            !said.receives_fast()
                && !said.sends_fast()
                && !said.is_doubted(&words)
                && !said.has_left(2)
        );
        assert_eq!([&said.head, &said.ack, &said.tail].map(|w| w.load(Relaxed)), [0; 3]);
        assert_eq!(said.posted.awaited(), Awaited { sets: [0; 4], threads: [0, 0] });
    }

    /// Generations begin again at 0.
    #[test]
    fn who_has_left_is_told_from_who_came_later() {
        let said = published();
        for generation in [7, u32::MAX] {
            said.begin(generation);
            assert!(!said.has_left(generation), "it is attached");
            assert!(
                said.has_left(generation.wrapping_sub(1))
                    && said.has_left(generation.wrapping_sub(1000)),
                "it has been through"
            );
            assert!(!said.has_left(generation.wrapping_add(1)), "it was not attached yet");
            said.leave();
            assert!(said.has_left(generation));
            assert!(!said.has_left(generation.wrapping_add(1)));
        }
    }

    fn words(epoch: u64, tail: u64) -> std::boxed::Box<RingWords> {
        // SAFETY: integers.
        let words: std::boxed::Box<RingWords> =
            std::boxed::Box::new(unsafe { core::mem::zeroed() });
        words.producer_user[announce::EPOCH].store(epoch, Relaxed);
        words.tail.store(tail, Relaxed);
        words
    }

    #[test]
    fn only_the_words_that_were_looked_behind_are_doubted() {
        let said = published();
        assert!(!said.is_doubted(&words(0, 0)), "nobody has looked");
        said.doubt((0, 0));
        assert!(said.is_doubted(&words(0, 0)));
        said.doubt((3, 100));
        assert!(said.is_doubted(&words(3, 100)));
        for (epoch, tail) in [(3, 101), (3, 0), (4, 100), (0, 100), (0, 0)] {
            assert!(!said.is_doubted(&words(epoch, tail)), "{epoch} {tail} are new");
        }
        said.trust();
        assert!(!said.is_doubted(&words(3, 100)));
    }
}
