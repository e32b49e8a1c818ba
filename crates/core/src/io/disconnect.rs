//! connect(AF_UNSPEC): the connection is dissolved, and its descriptor begins anew.

use super::end_in_reset::{For, end_as_ever};
use super::ends::{hold_rx, hold_tx, publish_held, show_path};
use super::last_close::after_close;
use super::leave::between_hosts::wake_leavers;
use super::leave::{break_off, close_spare, throws_away, to_kernel};
use super::probe::put_back;
use super::say_end::{announce_end, say_end};
use super::under_way::UnderWay;
use crate::sets::sets;
use crate::socket::{Event, Socket, State, flag};
use crate::{carrier, trace, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::Path as Way;

/// What was true of the connection, and is not of the next one on the descriptor.
const OVER: u32 = flag::SHUT_RD
    | flag::FIN_DUE
    | flag::CARRIER_SPOKE
    | flag::HOLDS
    | flag::LEAVING
    | flag::RESET
    | flag::BROKEN_OFF
    | flag::CORRUPT
    | flag::TOLD
    | flag::TIMED_OUT;

/// The kernel is about to dissolve a connection. Strict: a way back that goes on behind that would
/// mix its bytes with those of the next connection. What does not come back is thrown away; where
/// that cannot be, the connection is broken off.
#[cold]
pub(crate) fn disconnect(s: &'static Socket, g: u16, fd: c_int) {
    let is_kernels = to_kernel(s, g, fd, Reason::Disconnected, true);
    // (Of the next connection nothing comes again.)
    s.comes_until.store(0, Relaxed);
    if is_kernels {
        return;
    }
    // (A close of the last name meanwhile leaves the socket's memory alone until this is over.)
    let _under_way = UnderWay::new(s, g);
    if !(throws_away(s) && throw_away(s, g)) {
        abandon(s, g, fd);
    }
}

/// It could be neither brought back nor thrown away: a forked child may have it, or a signal
/// handler has interrupted a call on it. From here on each call fails. (But for a receive that
/// finds bytes in the ring, where the handler has interrupted another one: that has the half.)
#[cold]
fn abandon(s: &'static Socket, g: u16, fd: c_int) {
    if s.generation16() != g || !s.is(State::Attached) {
        return;
    }
    s.raise(flag::CORRUPT);
    s.set_reason(Reason::Disconnected);
    // (A child cannot hold its maker's ends, nor a handler one that its own thread has.)
    let own = !s.is_inherited();
    let tx = if own { hold_tx(s, g).ok() } else { None };
    let fd = if tx.is_some() { s.fd.load(Acquire) } else { fd };
    if !s.has(flag::BROKEN_OFF) {
        break_off(s, fd);
    }
    drop(tx);
    if own && let Ok(mut rx) = hold_rx(s, g) {
        let _ = rx.skip(u64::MAX);
    }
}

/// As a close with bytes unread, which ends in a reset (`last_close.rs`); but the descriptor stays.
/// False: it could not be.
#[cold]
fn throw_away(s: &'static Socket, g: u16) -> bool {
    {
        let (Ok(mut tx), Ok(rx)) = (hold_tx(s, g), hold_rx(s, g)) else { return false };
        // (Its number may be another file's by now. A close takes this lock before it gives the
        // number away.)
        let fd = s.fd.load(Acquire);
        publish_held(&mut tx);
        put_back(&mut tx, fd);
        announce_end(s, &mut tx);
        say_end(s);
        rx.end.resets = false;
        end_as_ever(&mut tx, fd, For::Sending);
        end_as_ever(&mut tx, fd, For::Unread);
        carrier::dissolve(fd);
        if !carrier::is_closed(fd) || !s.state.change(State::Attached, Event::Refused) {
            return false;
        }
        s.set_reason(Reason::Disconnected);
        show_path(s, true, Way::Carrier, tx.end.switch.offset());
        show_path(s, false, Way::Carrier, rx.end.switch.offset());
        s.count_no_more();
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
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests may fail loudly")]
mod tests {
    use super::*;
    use crate::path::tests::{A, C, End, promoted_within_the_host};
    use netacc_control::stats::{Path, UNCOUNTED};

    const UNREAD: usize = 5_000;

    #[test]
    fn what_is_thrown_away_is_shown_as_the_kernels() {
        let mut ends = promoted_within_the_host();
        ends[C].send(C, UNREAD);
        let s = ends[A].socket;
        let record = s.record().unwrap();
        let paths = || [&record.tx_path, &record.rx_path].map(|path| path.load(Relaxed));
        assert_eq!(paths(), [Path::Shm as u32; 2]);
        assert!(throw_away(s, s.generation16()));
        assert!(s.is(State::Plain) && carrier::is_closed(ends[A].fd));
        assert_eq!(paths(), [Path::Tcp as u32; 2]);
        assert!(record.origin.load(Relaxed) & UNCOUNTED != 0);
        assert!(s.channel().is_none(), "the slot may serve another connection");
        ends.iter_mut().for_each(End::close);
    }

    /// Nothing can be moved where the interrupted call has one of the ends.
    #[test]
    fn in_a_handler_that_interrupted_a_call_it_is_broken_off() {
        let mut ends = promoted_within_the_host();
        ends[C].send(C, UNREAD);
        let (s, g, fd) = (ends[A].socket, ends[A].socket.generation16(), ends[A].fd);
        {
            let held = hold_tx(s, g);
            disconnect(s, g, fd);
            assert!(held.is_ok() && s.is(State::Attached) && s.has(flag::BROKEN_OFF));
        }
        assert!(carrier::is_closed(fd));
        assert_eq!(
            ends[A].receive_now(A, UNREAD),
            -(libc::ECONNRESET as isize),
            "none of its bytes"
        );
        ends.iter_mut().for_each(End::close);
    }
}
