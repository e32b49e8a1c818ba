//! What the peer is told, and given, before a FIN of the carrier's.

use super::ends::{TxHeld, hold_rx, load_ack, publish_announce, publish_held, show_path};
use super::promote::may_use_carrier;
use crate::channel::quiet;
use crate::socket::{Socket, flag};
use crate::{agent, carrier, process, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_proto::switchover::Path as Way;
use netacc_ring::sleepers;

/// This end is about to send its FIN, and behind that nothing can go again over the carrier. A peer
/// that has frozen wants what it has not consumed there: its word to the thread "netacc" may be on
/// its way (this process may have been stopped). What finds no room holds the FIN up, and not the
/// caller.
pub(crate) fn serve_before_fin(s: &'static Socket) {
    if let Some(channel) = s.channel().filter(|_| is_asked_back(s)) {
        agent::of(s.path()).before_fin(channel, s.slot.load(Relaxed) as usize);
    }
}

/// The peer has frozen. (What this process has inherited its maker serves.)
pub(super) fn is_asked_back(s: &Socket) -> bool {
    let Some(channel) = s.channel().filter(|c| c.far.is_shared() && !s.is_inherited()) else {
        return false;
    };
    let words = channel.words(s.slot.load(Relaxed) as usize, channel.side);
    load_ack(words).frozen && !process::in_vfork_child()
}

/// Tells the peer where the ring's part of the stream ends, before the carrier's FIN, which the
/// caller sends next.
pub(super) fn announce_end(s: &Socket, h: &mut TxHeld<'_>) {
    end_on_carrier(s, h, true);
}

/// As [`announce_end`], where the process may send more before its end, over the carrier.
pub(super) fn announce_end_in_time(s: &Socket, h: &mut TxHeld<'_>) {
    end_on_carrier(s, h, false);
}

fn end_on_carrier(s: &Socket, h: &mut TxHeld<'_>, is_last: bool) {
    if !may_use_carrier(h) {
        return;
    }
    publish_held(h);
    if let Ok(Some(a)) = h.end.switch.shutdown() {
        // (Before the announcement: who follows that finds it.)
        if is_last {
            request(s, quiet::LAST);
        }
        publish_announce(h, a);
        show_path(s, true, Way::Carrier, h.end.switch.offset());
        h.notify();
    }
}

/// Tells the peer, before the FIN, what a shutdown means for what it sends. (Within the host.)
/// True: with this one both halves are shut down. TCP then answers whatever comes with a reset
/// (tcp_rcv_state_process), so the peer's next send has to go to the kernel, as behind a close.
pub(super) fn say_shut(s: &Socket, fd: c_int, how: c_int) -> bool {
    let sends_no_more = || s.has(flag::SHUT_WR | flag::FIN_DUE | flag::FIN_LATER);
    let (word, is_over) = match how {
        // Where the kernel says that nothing comes any more it was shut down for receiving before;
        // or the peer's FIN has come, who sends nothing.
        libc::SHUT_WR if sys::poll_now(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0 => {
            (quiet::FIN, !carrier::peer_ended(fd))
        }
        libc::SHUT_WR => (quiet::FIN | quiet::HALF, false),
        libc::SHUT_RD => (quiet::DEAF, sends_no_more()),
        libc::SHUT_RDWR => (quiet::FIN | quiet::DEAF, true),
        _ => return false,
    };
    request(s, word);
    if is_over {
        say_end(s);
    }
    is_over
}

/// The peer finds with its next send that nothing more is taken from the ring.
pub(super) fn say_end(s: &Socket) {
    if let Some(channel) = s.channel().filter(|c| c.far.is_shared()) {
        let words = channel.words(s.slot.load(Relaxed) as usize, channel.side ^ 1);
        // (A sender that does not find it has sent before the caller looks: `sent_fast`.)
        sleepers::end(&words.quiet[quiet::NOTIFY]);
    }
}

/// The FIN of a shutdown that has waited until the carrier may speak. Before a close too, which may
/// be a reset: who has got the FIN finds the end of the stream, whatever comes behind it.
pub(super) fn say_late_fin(s: &Socket, fd: c_int) {
    if s.has(flag::FIN_LATER) {
        let _ = sys::shutdown(fd, libc::SHUT_WR);
        s.lower(flag::FIN_LATER);
    }
}

/// That a FIN is no close's, where no more can be said: by a forked child, for whom the ring still
/// has bytes, or late.
pub(super) fn say_fin(s: &'static Socket, g: u16, how: c_int) {
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR)
        && let Ok(_held) = hold_rx(s, g)
    {
        request(s, quiet::FIN);
    }
}

fn request(s: &Socket, word: u64) {
    if let Some(channel) = s.channel().filter(|c| c.far.is_shared()) {
        channel.words(s.slot.load(Relaxed) as usize, channel.side ^ 1).quiet[quiet::REQUEST]
            .fetch_or(word, SeqCst);
    }
}
