//! Calls that move bytes while each is recorded (`NACC_TRACE=2`): they come here because they do
//! not find the fast way (`socket/calls.rs`).
//!
//! A send's time is taken before its first byte can be seen, a receive's behind its last one: what
//! follows from one of them is never earlier.

use super::ends::{End, Held, RxHeld, TxHeld};
use super::receiving::Receiving;
use super::sending::Sending;
use crate::fd_table::{self, Entry};
use crate::outcome::Ret;
use crate::socket::{Socket, lead_calls};
use core::sync::atomic::{Ordering::*, fence};

/// How much is recorded has changed: it holds for calls from here on.
pub(crate) fn follow_trace() {
    // (Which has been said before.)
    fence(SeqCst);
    if crate::config::follows_calls() {
        fd_table::for_each(|_, entry| {
            if let Entry::Socket(s, _) = entry
                && !s.is_inherited()
            {
                s.divert_calls();
            }
        });
    }
}

/// Whether a call is recorded. Where that is over the next one takes the fast way again.
fn is_followed<E: End>(s: &Socket, _: &Held<'_, E>) -> bool {
    let is = E::fast(s).load(Relaxed).is_null();
    if is && !crate::config::follows_calls() {
        lead_calls(E::fast(s), E::words(s));
        return false;
    }
    is
}

/// A send, from its beginning.
///
/// # Safety
/// The buffers are the caller's.
pub(super) unsafe fn send(call: Sending<'_>, held: TxHeld<'static>) -> Ret {
    let (s, g) = (call.s, call.g);
    if !is_followed(s, &held) {
        // SAFETY: the caller's promise.
        return unsafe { call.run(held) };
    }
    let (offset, begun) = (held.end.switch.offset(), s.send_begins());
    // SAFETY: as above.
    let r = unsafe { call.run(held) };
    if s.generation16() == g {
        s.trace_sent(begun, offset, r);
    }
    r
}

/// A receive, from its beginning.
///
/// # Safety
/// As [`send`].
pub(super) unsafe fn receive(call: Receiving<'_>, held: RxHeld<'static>) -> Ret {
    let (s, g, peeks) = (call.s, call.g, call.flags & libc::MSG_PEEK != 0);
    if !is_followed(s, &held) {
        // SAFETY: the caller's promise.
        return unsafe { call.run(held) };
    }
    let offset = held.end.switch.offset();
    s.receive_begins();
    // SAFETY: as above.
    let r = unsafe { call.run(held) };
    if r > 0 && !peeks && s.generation16() == g {
        s.trace_received(offset, r as u64);
    }
    r
}

#[cfg(test)]
#[allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]
mod tests {
    use super::*;
    use crate::path::tests::{A, C, close_both, promoted_within_the_host, talk};
    use crate::{config, trace};
    use core::sync::atomic::AtomicU64;
    use netacc_control::config::Config;
    use netacc_control::trace::{Event, Ring};

    fn events(ring: &Ring, event: Event) -> usize {
        let firsts = ring.events.iter().map(|[first, _]| first.load(Relaxed));
        firsts.filter(|first| first & 63 == event as u64).count()
    }

    /// A send of nothing, or one that finds no room, is no answer.
    #[test]
    fn a_send_that_sends_nothing_takes_no_turn() {
        let mut ends = promoted_within_the_host();
        let config = Config { trace: true, trace_calls: true, ..Config::default() };
        config::with(config, || {
            let (s, fd) = (ends[C].socket, ends[C].fd);
            s.divert_calls();
            let ring = (0..1000).find_map(|_| {
                talk(&mut ends, 64);
                trace::keep_ready();
                trace::ring(s.ring.load(Relaxed)).filter(|r| r.turn.load(Relaxed) != 0)
            });
            let (ring, bytes) = (ring.unwrap(), [0u8; 4096]);
            // SAFETY: as many bytes as there are, or fewer.
            let send = |n| unsafe { crate::io::send(fd, bytes.as_ptr(), n, libc::MSG_DONTWAIT) };
            let before = ring.turn.load(Relaxed);
            assert_eq!((send(0), ring.turn.load(Relaxed)), (0, before));
            while send(bytes.len()) > 0 {}
            // As if its peer had answered meanwhile.
            ring.turn.store(before & !1, Relaxed);
            assert_eq!(send(1), -(libc::EAGAIN as Ret));
            assert_eq!(ring.turn.load(Relaxed), before & !1);
        });
        ends.iter_mut().for_each(|end| end.close());
    }

    /// What was said of a direction: messages and bytes, by sums and call by call.
    fn said(ring: &Ring, sum: Event, call: Event) -> [u64; 2] {
        let of = |event: Event, bits: &dyn Fn(u64) -> [u64; 2]| {
            let all = ring.events.iter().map(|[first, what]| (first.load(Relaxed), what));
            let all = all.filter(|(first, _)| first & 63 == event as u64);
            let all = all.map(|(_, what)| bits(what.load(Relaxed)));
            all.fold([0, 0], |sum, more| [sum[0] + more[0], sum[1] + more[1]])
        };
        let sums = of(sum, &|what| [what >> 4 & 0xff_ffff, what >> 28]);
        let calls = of(call, &|what| [1, what >> 40]);
        [sums[0] + calls[0], sums[1] + calls[1]]
    }

    /// Up and down and up again: every byte is said, and none is said twice.
    #[test]
    fn what_is_said_call_by_call_is_in_no_sum() {
        let mut ends = promoted_within_the_host();
        let at = |trace_calls| Config { trace: true, trace_calls, ..Config::default() };
        let sockets = [C, A].map(|end| ends[end].socket);
        let moved = |ends: &mut _, level| {
            config::with(at(false), trace::before_turn);
            config::with(at(level), || {
                if level {
                    sockets.iter().for_each(|s| s.divert_calls());
                }
                for _ in 0..3 {
                    trace::keep_ready();
                    talk(ends, 64);
                }
                if !level {
                    sockets.iter().for_each(|s| s.trace(Event::Doorbell, 0));
                }
            });
        };
        for level in [false, true, false, true, true, false] {
            moved(&mut ends, level);
        }
        for s in sockets {
            let (ring, r) = (trace::ring(s.ring.load(Relaxed)).unwrap(), s.record().unwrap());
            assert!(ring.head.load(Relaxed) < ring.events.len() as u64, "all is there");
            let sum = |words: &[AtomicU64; 4]| words.iter().map(|w| w.load(Relaxed)).sum::<u64>();
            let sent = [r.tx_messages.load(Relaxed), sum(&r.tx_bytes)];
            let received = [r.rx_messages.load(Relaxed), sum(&r.rx_bytes)];
            assert_eq!(said(ring, Event::Sent, Event::Send), sent);
            assert_eq!(said(ring, Event::Received, Event::Receive), received);
        }
        close_both(ends);
    }

    #[test]
    fn calls_are_recorded_while_that_is_on_and_take_the_fast_way_again() {
        let mut ends = promoted_within_the_host();
        let at = |trace_calls| Config { trace: true, trace_calls, ..Config::default() };
        let sockets = [C, A].map(|end| ends[end].socket);
        let fast =
            |s: &Socket| [&s.tx_fast, &s.rx_fast].map(|words| !words.load(Relaxed).is_null());
        assert_eq!(sockets.map(fast), [[true; 2]; 2]);
        let of = |ring: &Ring| [Event::Send, Event::Receive].map(|e| events(ring, e));
        let rings = config::with(at(true), || {
            sockets.iter().for_each(|s| s.divert_calls());
            // (The first ones may find no memory for it. It may come from another test's thread.)
            let recorded = (0..1000).find_map(|_| {
                talk(&mut ends, 64);
                trace::keep_ready();
                let [Some(a), Some(b)] = sockets.map(|s| trace::ring(s.ring.load(Relaxed))) else {
                    return None;
                };
                let both = [a, b];
                let has_all = |r: &&Ring| {
                    r.latencies.load(Relaxed) != 0 && of(r).iter().all(|count| *count > 0)
                };
                both.iter().all(has_all).then_some(both)
            });
            recorded.unwrap()
        });
        let said = || rings.map(of);
        let before = said();
        config::with(at(false), || (0..3).for_each(|_| talk(&mut ends, 64)));
        assert_eq!(said(), before, "nothing is recorded any more");
        assert_eq!(sockets.map(fast), [[true; 2]; 2]);
        // Turned on in the middle of a connection's life, again.
        config::with(at(true), || {
            sockets.iter().for_each(|s| s.divert_calls());
            talk(&mut ends, 64);
        });
        assert_ne!(said(), before);
        close_both(ends);
    }
}
