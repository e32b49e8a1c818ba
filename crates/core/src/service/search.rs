//! A candidate's search for its peer within the host, as far as its own calls drive it.
//!
//! The service thread looks for whoever holds the other end of a connection for a second after it
//! was noted. After that the connection's own calls ask for another look, ever more rarely, for as
//! long as it is used: a peer may be slow, may have had no memory, no descriptor or no slot for it,
//! or may have got the connection from another process. So no verdict about a peer is for life, and
//! a connection that nobody uses costs nothing.

use super::SERVICE;
use crate::agent::{Noted, Used};
use crate::candidates::NOTED_AFTER;
use crate::channel::Side;
use crate::io::CLOCK_CALLS;
use crate::socket::{Socket, flag};
use crate::{inject, sys};
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// As [`NOTED_AFTER`], of a connection that was adopted by a process with no agreement yet: a
/// forked child that perhaps serves this one alone. Its first costs it a thread and its tables,
/// which is a millisecond with the end of the process.
const HEIR_NOTED_AFTER: u32 = 8;
/// A port without an advert is looked at again after so long (`rendezvous::absent` remembers it for
/// less).
const ABSENT_NS: u64 = 100_000_000;
/// The first look of a noted connection's own, behind those of the service thread; the others after
/// twice as long each.
const FIRST_NS: u64 = 1_500_000_000;
const LONGEST_NS: u64 = 32_000_000_000;

/// A call on `s` has moved bytes, and there is no agreement yet.
pub(super) fn on_call(s: &'static Socket, call: &Used) -> Noted {
    let known =
        !s.has(flag::CONNECTOR) || s.has(flag::ACCEPTOR_KNOWN) || acceptor_is_known(s, call);
    if known
        && call.calls >= NOTED_AFTER
        && !s.has(flag::NOTED)
        && pays(s, call.calls)
        && s.look_at.load(Relaxed) == 0
    {
        put_off(s, FIRST_NS);
        if note(s, call.generation) {
            return Noted::Now;
        }
    } else if call.calls.is_multiple_of(CLOCK_CALLS) && sys::now_ns() >= s.look_at.load(Relaxed) {
        look_again(s, call);
    }
    Noted::No
}

/// `s` is worth an agreement with its peer. False: none is possible.
pub(super) fn note(s: &'static Socket, generation: u16) -> bool {
    if s.has(flag::HEIR) && !s.has(flag::CONNECTOR) {
        // Accepted by another process: it is this one that the peer has to find.
        SERVICE.accepting(s.tuple().local_port());
    }
    SERVICE.note(s, generation)
}

fn pays(s: &Socket, calls: u32) -> bool {
    !s.has(flag::HEIR) || calls >= HEIR_NOTED_AFTER || SERVICE.is_running()
}

/// Whether somebody with the library accepts on the peer's port.
fn acceptor_is_known(s: &'static Socket, call: &Used) -> bool {
    let found = match call.side {
        // There were bytes: whoever sent them has accepted.
        _ if !s.has(flag::ASKED) && s.rx_bytes.load(Relaxed) != 0 => {
            s.raise(flag::ASKED);
            answered(s)
        }
        // A program that only sends gets no answer to look after: it looks after some calls.
        Side::Send if matches!(call.calls, 4 | 16 | 64) || inject::at_once_ns().is_some() => {
            SERVICE.sending(s)
        }
        _ => return false,
    };
    if found {
        s.raise(flag::FOUND);
    }
    found
}

fn answered(s: &'static Socket) -> bool {
    let found = SERVICE.connected(s, true);
    if !found {
        s.judge(SERVICE.hindrance().unwrap_or(Reason::ListenerWithoutLibrary));
        put_off(s, ABSENT_NS);
    }
    found
}

#[cold]
#[inline(never)]
fn look_again(s: &'static Socket, call: &Used) {
    let looks = s.looks.fetch_add(1, Relaxed);
    put_off(s, (FIRST_NS << looks.min(8)).min(LONGEST_NS));
    if s.has(flag::CONNECTOR) && !s.has(flag::ACCEPTOR_KNOWN) {
        let found = if call.side == Side::Receive {
            SERVICE.connected(s, true)
        } else {
            SERVICE.sending(s)
        };
        if !found {
            return;
        }
        s.raise(flag::FOUND);
    }
    if s.has(flag::NOTED) {
        SERVICE.look_again(s, call.generation)
    } else {
        note(s, call.generation)
    };
}

fn put_off(s: &Socket, pause: u64) {
    s.look_at.store(sys::now_ns().saturating_add(pause), Relaxed);
}
