//! Bytes that a peer wants back from a ring, and what a dead peer has left there: they go out again
//! over the carrier, in the service's threads.

use super::super::EAGAIN;
use super::super::ends::{TxHeld, hold_tx, load_ack};
use super::super::kept::end_kept;
use super::super::reset::{is_reset, lies_unread};
use super::super::send_again::send_again;
use super::super::under_way::UnderWay;
use super::halves::{carry_out, look_at_tx, pin};
use crate::channel::{Channel, quiet};
use crate::log::debug_log;
use crate::socket::{Socket, flag};
use crate::{carrier, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::Reason;
use netacc_proto::switchover::{TxDue, TxState, TxView};

/// Has `epoll` hear, as `event`, when the carrier of the socket on a slot changes its state. (A
/// state that it has already counts.)
pub(crate) fn watch_carrier(channel: &Channel, slot: usize, epoll: c_int, event: u64) {
    let Some(s) = Socket::on(channel, slot) else { return };
    // A close takes the lock before it gives the number away.
    let Ok(h) = hold_tx(s, s.generation16()) else { return };
    if !core::ptr::eq(h.channel, channel) || h.slot != slot {
        return;
    }
    // Edge-triggered, and asked for nothing else: no byte that comes or goes wakes anybody.
    let mut ev =
        libc::epoll_event { events: (libc::EPOLLRDHUP | libc::EPOLLET) as u32, u64: event };
    // SAFETY: one valid event.
    let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, s.fd.load(Acquire), &mut ev) };
}

/// The carrier of the socket on a slot has changed its state. Who waits hears the carrier; this is
/// for threads that only send.
pub(crate) fn hear_carrier(channel: &Channel, slot: usize) {
    if let Some(s) = Socket::on(channel, slot) {
        s.raise(flag::CARRIER_SPOKE);
        if let Ok(h) = hold_tx(s, s.generation16())
            && core::ptr::eq(h.channel, channel)
            && h.slot == slot
        {
            let fd = s.fd.load(Acquire);
            // Who waits for no more than an error hears of it by this alone.
            let _ = is_reset(s, fd);
            // (Its link has ended first: a process closes its descriptors in any order.)
            if ends_with_its_process(channel, slot, fd) {
                s.change_reason(&[Reason::ChannelFailed], Reason::None);
            }
        }
        // Who waits for room only has been told nothing, if the peer's FIN had come long before.
        wait::prod_on(s, channel, slot);
    }
}

/// A pull-back of which not all has found room on the carrier. While there is one a close leaves
/// the carrier to it.
pub(crate) struct PullBack(pub(super) UnderWay);

/// The receiver that the peer has frozen gets what it has not consumed over the carrier. Sends what
/// there is room for, and never waits; `Some`: the rest is for [`PullBack::go_on`].
pub(crate) fn serve_pull_back(channel: &Channel, slot: usize) -> Option<PullBack> {
    let s = Socket::on(channel, slot)?;
    if end_kept(s) {
        return None;
    }
    let h = hold_tx(s, s.generation16()).ok()?;
    if !core::ptr::eq(h.channel, channel) || h.slot != slot {
        return None;
    }
    serve(s, h, Reason::PeerAskedForTcp, false)
}

/// How long a program that goes on without its connections (`exec`) takes to close them, at most,
/// from the end of its link on.
const CLOSES_NS: u64 = 100_000_000;

/// The same of one that ends, as far as is known. (One whose first thread alone has ended looks
/// like that for as long as it likes; another may hang in a file system that does not answer.)
const DIES_NS: u64 = 2_000_000_000;

/// The peer of a channel whose link has ended may not have closed its connections yet: a process
/// closes its descriptors in any order. How long one takes that dies is up to its machine and its
/// other descriptors; `is_ending` knows.
pub(crate) fn may_close(channel: &Channel, is_ending: impl FnOnce() -> bool) -> bool {
    let since = sys::now_ns().saturating_sub(channel.died_at.load(Relaxed));
    since < CLOSES_NS || (since < DIES_NS && is_ending())
}

/// The peer of the socket on a slot, which [`may_close`] it, has bytes unread in the ring: as long
/// as that is so nobody is to be told that there is room on the carrier.
pub(crate) fn may_end(channel: &Channel, slot: usize) -> bool {
    let Some(s) = Socket::on(channel, slot).filter(|s| lies_unread(s)) else { return false };
    let Ok(h) = hold_tx(s, s.generation16()) else { return false };
    core::ptr::eq(h.channel, channel)
        && h.slot == slot
        && h.end.switch.state() == TxState::Fast
        && !load_ack(h.words).frozen
        && !carrier::peer_ended(s.fd.load(Acquire))
}

/// The link has ended, and with it the way by which the peer asks for its bytes back, or a forked
/// child of the peer's does, while the connection lives. So nobody has to ask: what was frozen
/// before is served now, and what is sent from here on goes over the carrier.
pub(crate) fn leave_dead_channel(channel: &Channel, slot: usize) -> Option<PullBack> {
    let s = Socket::on(channel, slot)?;
    if end_kept(s) {
        return None;
    }
    let h = hold_tx(s, s.generation16()).ok()?;
    if !core::ptr::eq(h.channel, channel) || h.slot != slot {
        return None;
    }
    let fd = s.fd.load(Acquire);
    // Before it leaves the ring, so that a thread that waits for room there hears of that.
    let _ = is_reset(s, fd);
    // (The channel of a peer that has ended has not failed.)
    let has_ended = ends_with_its_process(channel, slot, fd);
    serve(s, h, if has_ended { Reason::None } else { Reason::ChannelFailed }, true)
}

/// The peer's end of a connection has come with the end of its link, as far as can be known: it
/// said nothing of a half-close before, and no more time has passed than a process takes to die.
fn ends_with_its_process(channel: &Channel, slot: usize, fd: c_int) -> bool {
    let said = channel.words(slot, channel.side).quiet[quiet::REQUEST].load(Acquire);
    let since = sys::now_ns().saturating_sub(channel.died_at.load(Relaxed));
    fd >= 0 && said & quiet::HALF == 0 && since < DIES_NS && carrier::has_ended(fd)
}

/// Pulls back what a frozen receiver has not consumed; it may arm again, and is promoted then.
/// `why`: the connection's reason from here on; `None`: as it is. `leaves`: for good, and where it
/// has not frozen, demotes. (Who freezes just then finds the announcement, and reads the ring to
/// its end.)
fn serve(
    s: &'static Socket,
    mut h: TxHeld<'static>,
    why: Reason,
    leaves: bool,
) -> Option<PullBack> {
    let fd = s.fd.load(Acquire);
    let before = h.end.switch.state();
    if fd < 0 || before == TxState::Resending {
        return None;
    }
    if leaves {
        pin(&mut h);
    }
    let mut room = true;
    let more = loop {
        let ack = load_ack(h.words);
        let looked = look_at_tx(&h, None);
        let view = match looked.asked_by(ack, &h.end.switch) {
            Ok(view) => view,
            // Whatever a dead peer has written there: nobody reads the ring.
            Err(_) if leaves => looked,
            Err(_) => return None,
        };
        match (TxView { leaves, room, ..view }).next() {
            TxDue::Await(_) => break true,
            TxDue::Done | TxDue::Broken => break false,
            due => room = carry_out(s, &mut h, fd, due, ack).ok()?,
        }
    };
    let has_moved = h.end.switch.state() != before;
    // (This end has its own reason then.)
    let paused = h.end.paused;
    // (Late, or made up: the peer has said since that it comes.)
    let ack = load_ack(h.words);
    let comes = ack.armed && !ack.frozen;
    // Counted under the lock, under which a close looks.
    let rest = more.then(|| PullBack(UnderWay::new(s, s.generation16())));
    drop(h);
    match () {
        _ if paused || (has_moved && why == Reason::None) => {}
        _ if has_moved => s.set_reason(why),
        // It has nothing in the ring, and perhaps never had.
        _ if !leaves && !comes => s.change_reason(&[Reason::None, Reason::Agreed], why),
        _ => {}
    }
    if has_moved && !more {
        debug_log!("fd {fd}: goes on over the carrier ({})", why.name());
        wait::prod(s);
    }
    rest
}

impl PullBack {
    /// Sends on. `Some`: there is more; the descriptor that has no room now.
    pub(crate) fn go_on(&self) -> Option<c_int> {
        let UnderWay(s, g) = self.0;
        // Held only while it sends: the application's own sends answer EAGAIN meanwhile. (A forked
        // child may have sent the rest, and have made the connection the kernel's.)
        if let Ok(mut h) = hold_tx(s, g) {
            let fd = s.fd.load(Acquire);
            if fd >= 0 && send_again(s, &mut h, fd) == EAGAIN {
                return Some(fd);
            }
        }
        // Whoever has waited for room in the ring since before goes on in the kernel. No child
        // could wake it.
        wait::prod(s);
        None
    }
}

/// The receiver freezes, and its word is on its way.
#[cfg(test)]
pub(crate) fn freeze_of(s: &'static Socket) {
    if let Ok(mut rx) = super::super::ends::hold_rx(s, s.generation16()) {
        super::freeze(&mut rx);
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]
mod tests {
    extern crate std;
    use super::*;
    use crate::path::tests::{A, C, End, close_both, promoted_within_the_host};
    use std::time::{Duration, Instant};

    /// A peer that has frozen, with bytes unread, and whose word has not come yet.
    fn asked_by_a_frozen_peer(unread: usize) -> [End; 2] {
        let mut ends = promoted_within_the_host();
        freeze_of(ends[A].socket);
        ends[C].send(C, unread);
        ends
    }

    /// What who has the descriptor without the library reads, until the end.
    fn kernel_has(end: &End) -> usize {
        let (mut all, began) = (0, Instant::now());
        let mut part = [0u8; 4096];
        let mut wait = libc::pollfd { fd: end.fd, events: libc::POLLIN, revents: 0 };
        while began.elapsed() < Duration::from_secs(20) {
            // SAFETY: one valid pollfd, and a buffer of ours.
            let n = unsafe {
                crate::sleep::ppoll(&mut wait, 1, 100_000_000, core::ptr::null());
                let (at, none) = (part.as_mut_ptr(), core::ptr::null_mut());
                let now = libc::MSG_DONTWAIT;
                sys::recvfrom(end.fd, at, part.len(), now, none, core::ptr::null_mut())
            };
            match n {
                0 => return all,
                -11 => {}
                n => all += usize::try_from(n).unwrap(),
            }
        }
        panic!("no end behind {all} bytes");
    }

    #[test]
    fn what_a_frozen_peer_wants_goes_before_the_fin() {
        for how in [None, Some(libc::SHUT_WR), Some(libc::SHUT_RDWR)] {
            for (room, unread) in [(1 << 20, 5_000), (4096, 30_000)] {
                let mut ends = asked_by_a_frozen_peer(unread);
                for (end, option) in [(A, libc::SO_RCVBUF), (C, libc::SO_SNDBUF)] {
                    assert!(sys::setsockopt(ends[end].fd, libc::SOL_SOCKET, option, &room) >= 0);
                }
                match how {
                    None => ends[C].close(),
                    Some(how) => assert_eq!(crate::io::shutdown_of(ends[C].fd, how), 0),
                }
                assert_eq!(kernel_has(&ends[A]), unread, "{how:?}, room for {room}");
                if how.is_some() {
                    ends[C].close();
                }
                ends[A].close();
            }
        }
    }

    /// TCP resets such a connection at once, and throws away what is not sent.
    #[test]
    fn a_close_that_resets_serves_nobody_first() {
        for unread in [true, false] {
            let mut ends = asked_by_a_frozen_peer(5_000);
            if unread {
                ends[A].send(A, 10);
            } else {
                let linger = &crate::io::end_in_reset::RESET_ON_CLOSE;
                let level = libc::SOL_SOCKET;
                assert_eq!(sys::setsockopt(ends[C].fd, level, libc::SO_LINGER, linger), 0);
            }
            ends[C].close();
            let mut byte = 0u8;
            // SAFETY: one byte of ours.
            let said = unsafe {
                let (at, none) = (&raw mut byte, core::ptr::null_mut());
                sys::recvfrom(ends[A].fd, at, 1, 0, none, core::ptr::null_mut())
            };
            assert_eq!(said, -(libc::ECONNRESET as isize));
            ends[A].close();
        }
    }

    #[test]
    fn who_ends_for_ever_is_waited_for_two_seconds() {
        let ends = promoted_within_the_host();
        let channel = ends[C].socket.channel().unwrap();
        let ended = |ns| channel.died_at.store(sys::now_ns() - ns, Relaxed);
        ended(0);
        assert!(may_close(channel, || false));
        ended(CLOSES_NS);
        assert!(!may_close(channel, || false) && may_close(channel, || true));
        ended(DIES_NS);
        assert!(!may_close(channel, || true));
        close_both(ends);
    }
}
