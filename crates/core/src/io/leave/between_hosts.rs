//! Calls that take a connection between hosts back to its carrier: its maker's thread "netacc-rdma"
//! does it, and they wait.

use super::super::EAGAIN;
use super::super::ends::{NotHeld, TxHeld, hold_tx};
use super::super::waits::interrupted;
use super::halves::pin;
use super::send_buffer::SendBuffer;
use super::{
    AT_LEAST_NS, LONGEST_NS, NOTHING_COMES_NS, PULL_BACK_NS, pull_back_patience_ns, throws_away,
};
use crate::candidates::{self, Settled};
use crate::outcome::Ret;
use crate::sets::sets;
use crate::socket::{Named, Socket, State, flag};
use crate::trace::Event;
use crate::wait::Woke;
use crate::{carrier, sleep, socket, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::{Action, Leave, TxState};

/// [`super::to_kernel`] of a connection between hosts: the thread does it, and is waited for. In a
/// forked child it is its maker's.
pub(in crate::io) fn to_kernel_between_hosts(
    s: &'static Socket,
    g: u16,
    fd: c_int,
    why: Reason,
    strict: bool,
) -> bool {
    await_thread(Named { s, g, fd }, why, Patience::of(s, g, why, strict))
}

/// The same for who only sends, past the library: the sending half alone is waited for, and what is
/// unread may stay in the ring. (A byte on the carrier before that half is there would be taken for
/// a broken rule, or for the bytes that go again.) `since`: when that began.
pub(in crate::io) fn to_kernel_to_send(on: Named, why: Reason, since: u64) {
    let _ = await_thread(on, why, Patience::to_send(on.s, since));
}

/// It is to go back, and is waited for later ([`to_kernel_to_send`]).
pub(in crate::io) fn begin_way_back(s: &'static Socket, g: u16, why: Reason) {
    if s.generation16() == g && s.is(State::Attached) && s.path().leaves_by_agent() {
        ask_to_demote(s, g, why);
    }
}

fn await_thread(on: Named, why: Reason, patience: Patience) -> bool {
    await_way_back(on, why, patience, |ns| {
        let (word, attached) = on.s.state.word(State::Attached);
        sys::futex_wait(word, attached, ns, false);
    })
}

/// How long a way back to the carrier is waited for.
pub(crate) struct Patience {
    until: u64,
    /// It is over then, whatever comes.
    ends: u64,
    strict: bool,
    /// The sending half is enough.
    sends: bool,
    /// What the socket had counted ([`Socket::came_on`]) when there was a change last.
    came_on: u32,
}

impl Patience {
    pub(crate) fn of(s: &'static Socket, g: u16, why: Reason, strict: bool) -> Patience {
        let now = sys::now_ns();
        if strict {
            return Patience::strict_since(s, now);
        }
        let until = now.saturating_add(pull_back_patience_ns(s, g, why, false));
        Patience { until, strict, ..Patience::strict_since(s, now) }
    }

    fn strict_since(s: &Socket, since: u64) -> Patience {
        let least = sys::now_ns().saturating_add(AT_LEAST_NS);
        Patience {
            until: since.saturating_add(NOTHING_COMES_NS).max(least),
            ends: since.saturating_add(LONGEST_NS).max(least),
            strict: true,
            sends: false,
            came_on: s.came_on.load(Acquire),
        }
    }

    pub(crate) fn to_send(s: &Socket, since: u64) -> Patience {
        // (A forked child does not see its maker's half: it waits for both.)
        Patience { sends: !s.is_inherited(), ..Patience::strict_since(s, since) }
    }

    /// How long there is still. Who would break the connection off waits as long as it comes on:
    /// a busy host answers late, and a slow program reads late what goes again over the carrier,
    /// but nothing is lost yet. (Not for ever: the words are the peer's.)
    fn left(&mut self, s: &Socket) -> u64 {
        let came_on = s.came_on.load(Acquire);
        if self.strict && core::mem::replace(&mut self.came_on, came_on) != came_on {
            self.until = self.ends.min(sys::now_ns().saturating_add(NOTHING_COMES_NS));
        }
        self.until.saturating_sub(sys::now_ns())
    }
}

/// `wait` waits for a change of the socket's state, no longer than it is told.
pub(crate) fn await_way_back(
    on: Named,
    why: Reason,
    patience: Patience,
    wait: impl FnMut(i64),
) -> bool {
    let mut grown = None;
    let went = go_back(on, why, patience, &mut grown, wait);
    if let Some(grown) = grown {
        grown.put_back([on.fd, on.s.fd.load(Acquire)]);
    }
    went
}

fn go_back(
    Named { s, g, fd }: Named,
    why: Reason,
    mut patience: Patience,
    grown: &mut Option<SendBuffer>,
    mut wait: impl FnMut(i64),
) -> bool {
    let inherited = s.is_inherited();
    let abandoned = loop {
        match candidates::settle(s, g, why) {
            // (Each time: where it is taken back for a while, and attached again, it is lost.)
            Settled::Attached => ask_to_demote(s, g, why),
            Settled::Changing => return false,
            Settled::Plain => {
                has_left(s, g);
                return true;
            }
        }
        // (In a handler that has interrupted this very thread in a send nothing can be waited for.)
        if patience.sends && matches!(pinned_to_kernel(s, g), Ok(true) | Err(NotHeld::Reentrant)) {
            return false;
        }
        // As soon as the peer's reader lets it, which may take as long as with TCP; but its maker
        // has to live.
        let abandoned = inherited
            && !s.path().maker_is_alive(s.owner.load(Relaxed))
            && s.is(State::Attached)
            && s.generation16() == g;
        let is_over = s.has(flag::BROKEN_OFF | flag::CORRUPT) || is_gone(s, g);
        if patience.sends && is_over {
            // What has come is still received.
            return false;
        }
        if patience.left(s) == 0 || abandoned || is_over {
            break abandoned;
        }
        if patience.strict && grown.is_none() {
            *grown = room_to_send(s, g);
        }
        wait(patience.left(s).clamp(1, 10_000_000) as i64);
    };
    let missing = Leave::new(patience.strict).give_up(true) == Action::BreakOff;
    if abandoned || missing && !(why == Reason::Disconnected && throws_away(s)) {
        break_off_abandoned(Named { s, g, fd }, why);
    }
    false
}

/// The sending half, under its lock. `None`: a forked child cannot hold its maker's, nor a handler
/// one that its own thread has.
fn own_tx(s: &'static Socket, g: u16) -> Option<TxHeld<'static>> {
    if s.is_inherited() { None } else { hold_tx(s, g).ok() }
}

/// The peer is gone with what it had.
fn is_gone(s: &'static Socket, g: u16) -> bool {
    let slot = s.slot.load(Relaxed) as usize;
    if !s.channel().is_some_and(|c| c.far.is_gone(slot)) {
        return false;
    }
    if s.is_inherited() {
        return true;
    }
    // (Without the lock it could be another's slot by now.)
    match hold_tx(s, g) {
        Ok(tx) => tx.channel.far.is_gone(tx.slot),
        Err(NotHeld::Changed) => false,
        Err(NotHeld::Reentrant) => true,
    }
}

/// Room for what waits to go again. (A forked child does not see its maker's. A close takes this
/// lock before it gives the number away.)
fn room_to_send(s: &'static Socket, g: u16) -> Option<SendBuffer> {
    let tx = own_tx(s, g)?;
    let resend = tx.end.switch.resend();
    let waits = tx.end.switch.state() == TxState::Resending;
    let fd = s.fd.load(Acquire);
    (waits && fd >= 0).then(|| SendBuffer::grown(fd, resend.end - resend.start)).flatten()
}

/// The sending half is never promoted any more. Whether it is the kernel's: nothing of it is under
/// way by another path, the peer knows that it goes on on the carrier, and no FIN is to come before
/// what is sent next. (A forked child cannot tell of its maker's.)
fn pinned_to_kernel(s: &'static Socket, g: u16) -> Result<bool, NotHeld> {
    if s.is_inherited() {
        return Ok(false);
    }
    let mut tx = hold_tx(s, g)?;
    pin(&mut tx);
    let is_open =
        tx.channel.far.seen_epoch(tx.slot).is_none_or(|seen| tx.end.switch.carrier_is_open(seen));
    let is_there = matches!(tx.end.switch.state(), TxState::Carrier | TxState::Shut);
    Ok(is_there && is_open && !s.has(flag::FIN_LATER))
}

#[cfg(test)]
pub(crate) fn is_pinned_to_kernel(s: &'static Socket, g: u16) -> bool {
    matches!(pinned_to_kernel(s, g), Ok(true))
}

/// A call that needs the carrier of a connection between hosts: waits, as it would wait for the
/// peer, until both directions are there, or the connection is broken. For a forked child the
/// maker takes it there. `Err`: the call's result.
#[cold]
pub(in crate::io) fn await_carrier(
    on: Named,
    why: Reason,
    timeout_ns: i64,
    nonblocking: bool,
) -> Result<(), Ret> {
    let Named { s, g, .. } = on;
    let limit = if nonblocking { PULL_BACK_NS } else { timeout_ns.max(0) as u64 };
    let until = if limit == 0 { u64::MAX } else { sys::now_ns().saturating_add(limit) };
    let inherited = s.is_inherited();
    loop {
        if s.generation16() != g || s.has(flag::BROKEN_OFF | flag::CORRUPT) {
            return Ok(());
        }
        match s.state.now() {
            // It may have been on its way back for another reason.
            State::Candidate => candidates::make_plain(s, why),
            State::Changing if socket::await_change(s) => {}
            // (What it did before it ended is seen then.)
            State::Attached
                if inherited
                    && !s.path().maker_is_alive(s.owner.load(Relaxed))
                    && s.is(State::Attached)
                    && s.generation16() == g =>
            {
                break_off_abandoned(on, why)
            }
            State::Attached if sys::now_ns() >= until => return Err(EAGAIN),
            State::Attached => {
                // As in `go_back`.
                ask_to_demote(s, g, why);
                if await_departure(s, g) == Woke::Signal
                    && !nonblocking
                    && let Some(r) = interrupted(timeout_ns)
                {
                    return Err(r);
                }
            }
            _ => {
                has_left(s, g);
                return Ok(());
            }
        }
    }
}

/// Waits a while for a connection that is on its way back to the carrier to have left.
pub(in crate::io) fn await_departure(s: &'static Socket, g: u16) -> Woke {
    if s.generation16() != g || !s.is(State::Attached) {
        return Woke::News;
    }
    let (word, attached) = s.state.word(State::Attached);
    let r = sleep::futex_await(word, attached, 10_000_000);
    if r == -(libc::EINTR as isize) { Woke::Signal } else { Woke::News }
}

/// Both directions are to be the carrier's, for good.
fn ask_to_demote(s: &'static Socket, g: u16, why: Reason) {
    // (Under the lock the slot is its own: without, another connection could have it by now.)
    if !s.is_inherited() {
        match hold_tx(s, g) {
            Ok(tx) => return tx.channel.far.demote(tx.slot, why, false),
            // (The caller looks again.)
            Err(NotHeld::Changed) => return,
            Err(NotHeld::Reentrant) => {}
        }
    }
    match s.channel() {
        Some(channel) => channel.far.demote(s.slot.load(Relaxed) as usize, why, false),
        None if s.is_inherited() && s.generation16() == g => {
            s.raise(flag::CALLED_BACK);
            s.path().call_maker(s.owner.load(Relaxed));
        }
        None => {}
    }
}

/// It has left: its registrations are the kernel's. (The thread may not have come to that yet.)
fn has_left(s: &'static Socket, g: u16) {
    if !s.is_inherited() && s.generation16() == g {
        sets().on_plain(s);
    }
}

/// Whoever waits for a connection to have left looks again, in a forked child, too. (Its state says
/// so; nobody relies on being woken.)
pub(crate) fn wake_leavers(s: &Socket) {
    sys::futex_wake(s.state.word(State::Attached).0, i32::MAX, false);
}

/// Nobody brings what is in the rings back: an error that is seen, never a gap in the stream.
fn break_off_abandoned(Named { s, g, fd }: Named, why: Reason) {
    // (Its number may be another file's by now: a close takes this lock before it gives the number
    // away.)
    let own = own_tx(s, g);
    // It may have come back since that was found out.
    if s.generation16() != g || !s.is(State::Attached) {
        return;
    }
    let fd = if own.is_some() { s.fd.load(Acquire) } else { fd };
    if s.flags.fetch_or(flag::BROKEN_OFF, AcqRel) & flag::BROKEN_OFF == 0 {
        crate::log::warn_of_peer!(
            "fd {fd}: the peer does not take the connection back to TCP ({}): it is broken off",
            why.name()
        );
        s.trace(Event::BrokenOff, 0);
    }
    // Also where it was broken off before: the carrier may have told its error to the library, and
    // would end for whoever gets the descriptor as if nothing were missing.
    carrier::dissolve(fd);
}
