//! connect(AF_UNSPEC): the connection is dissolved, and its descriptor begins anew.

use super::end_in_reset::{For, end_as_ever};
use super::ends::{hold_rx, hold_tx, publish_held};
use super::last_close::after_close;
use super::leave::between_hosts::wake_leavers;
use super::leave::{close_spare, throws_away, to_kernel};
use super::probe::put_back;
use super::say_end::{announce_end, say_end};
use crate::sets::sets;
use crate::socket::{Event, Socket, State, flag};
use crate::{carrier, trace, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;

/// What was true of the connection, and is not of the next one on the descriptor.
const OVER: u32 = flag::SHUT_RD
    | flag::FIN_DUE
    | flag::CARRIER_SPOKE
    | flag::HOLDS
    | flag::LEAVING
    | flag::RESET
    | flag::BROKEN_OFF
    | flag::TOLD
    | flag::TIMED_OUT;

/// The kernel is about to dissolve a connection. Strict: a way back that goes on behind that would
/// mix its bytes with those of the next connection. What does not come back is thrown away.
#[cold]
pub(crate) fn disconnect(s: &'static Socket, g: u16, fd: c_int) {
    if !to_kernel(s, g, fd, Reason::Disconnected, true) && throws_away(s) {
        throw_away(s, g, fd);
    }
}

/// As a close with bytes unread, which ends in a reset (`last_close.rs`); but the descriptor stays.
#[cold]
fn throw_away(s: &'static Socket, g: u16, fd: c_int) {
    {
        let (Ok(mut tx), Ok(rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return };
        publish_held(&mut tx);
        put_back(&mut tx, fd);
        announce_end(s, &mut tx);
        say_end(s);
        rx.end.resets = false;
        end_as_ever(&mut tx, fd, For::Sending);
        end_as_ever(&mut tx, fd, For::Unread);
        carrier::dissolve(fd);
        s.set_reason(Reason::Disconnected);
        if !s.state.change(State::Attached, Event::Refused) {
            return;
        }
        s.trace(trace::Event::Plain, Reason::Disconnected as u64);
        s.kept_error.store(0, Relaxed);
        s.lower(OVER);
        // (Nobody finds the end any more.)
        s.spill.free();
    }
    wait::prod(s);
    sets().on_plain(s);
    if s.life.load(Relaxed) != 0 {
        close_spare(s);
    }
    wake_leavers(s);
    after_close(s);
}
