//! The ways out: shutdown, close, and both directions back onto the carrier.

use super::EAGAIN;
use super::apart::{
    outlives_close, outlives_for_child, shutdown_between_hosts, shutdown_of_parents,
    to_kernel_between_hosts,
};
use super::ends::{
    NotHeld, TxHeld, carrier_unread, corrupt, hold_rx, hold_tx, load_announce, publish_announce,
    show_path, store_ack,
};
use super::reset::{is_reset_by, is_reset_now, owes_reset};
use super::send::{demote_tx, is_broken, may_use_carrier, publish_held, send_held};
use super::waits::renew;
use crate::channel::{announce, producer_quiet, quiet};
use crate::fd_table::{self, Entry};
use crate::heap::{PART_FEW, Part};
use crate::log::debug_log;
use crate::outcome::Ret;
use crate::sets::sets;
use crate::socket::{self, Event, LastName, Socket, State, flag};
use crate::{adoption, agent, candidates, carrier, control, numbers, sleep, stats, sys, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{AtomicU32, fence};
use netacc_control::stats::{Counter, Reason};
use netacc_proto::switchover::{Path as Way, TxState};

pub(crate) fn shutdown(s: &'static Socket, g: u16, fd: c_int, how: c_int) -> Ret {
    let inherited = s.is_inherited();
    if inherited {
        let done = to_kernel(s, g, fd, Reason::InheritedByFork, false);
        if !done && s.is(State::Attached) && s.has(flag::REMOTE) {
            return shutdown_of_parents(s, fd, how);
        }
    } else if s.has(flag::REMOTE) {
        return shutdown_between_hosts(s, g, fd, how);
    }
    if (how == libc::SHUT_WR || how == libc::SHUT_RDWR)
        && let Ok(mut h) = hold_tx(s, g)
    {
        if h.end.switch.state() == TxState::Resending {
            // Bytes that go out again over the carrier go before its FIN: who sends the last of
            // them shuts it down.
            s.raise(flag::FIN_DUE);
        } else if !inherited {
            s.raise(flag::SHUT_WR);
            announce_end(s, &mut h);
        }
    }
    if inherited {
        say_fin(s, g, how);
    } else {
        say_shut(s, fd, how);
    }
    let r = match how {
        libc::SHUT_WR if s.has(flag::FIN_LATER) => 0,
        libc::SHUT_RDWR if s.has(flag::FIN_LATER) => sys::shutdown(fd, libc::SHUT_RD),
        _ => sys::shutdown(fd, how),
    };
    crate::channel::sent_by_kernel();
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        s.raise(flag::CARRIER_SPOKE);
        if !inherited {
            wake_senders(s);
        }
    }
    wait::prod(s);
    r
}

/// A peer that knows of our FIN, and waits for room, sleeps until it is told that there will be
/// none.
fn wake_senders(s: &Socket) {
    if let Some(channel) = s.channel().filter(|c| c.wire().is_none()) {
        let slot = s.slot.load(Relaxed) as usize;
        fence(SeqCst);
        channel.notify(
            slot,
            channel.words(slot, channel.side ^ 1).producer_quiet[producer_quiet::NOTIFY]
                .load(Relaxed),
        );
    }
}

/// Tells the peer, before the FIN, what a shutdown means for what it sends. (Within the host.)
pub(super) fn say_shut(s: &Socket, fd: c_int, how: c_int) {
    let word = match how {
        // Where the kernel says that nothing comes any more it was shut down for receiving before;
        // or the peer's FIN has come, who sends nothing.
        libc::SHUT_WR if sys::poll_now(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0 => quiet::FIN,
        libc::SHUT_WR => quiet::FIN | quiet::HALF,
        libc::SHUT_RD => quiet::DEAF,
        libc::SHUT_RDWR => quiet::FIN | quiet::DEAF,
        _ => return,
    };
    request(s, word);
}

/// That a FIN is no close's, where no more can be published: by a forked child, for whom the ring
/// still has bytes, or late.
pub(super) fn say_fin(s: &'static Socket, g: u16, how: c_int) {
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR)
        && let Ok(_held) = hold_rx(s, g)
    {
        request(s, quiet::FIN);
    }
}

fn request(s: &Socket, word: u64) {
    if let Some(channel) = s.channel().filter(|c| c.wire().is_none()) {
        channel.words(s.slot.load(Relaxed) as usize, channel.side ^ 1).quiet[quiet::REQUEST]
            .fetch_or(word, SeqCst);
    }
}

/// Tells the peer where the ring's part of the stream ends, before the carrier's FIN.
pub(super) fn announce_end(s: &Socket, h: &mut TxHeld<'_>) {
    if h.channel.wire().is_some() && !may_use_carrier(h) {
        return;
    }
    publish_held(h);
    if let Ok(Some(a)) = h.end.switch.shutdown() {
        publish_announce(h, a);
        show_path(s, true, Way::Carrier);
        h.notify();
    }
}

/// The last descriptor is about to be closed. `for_good`: no thread of this process receives any
/// more.
pub(crate) fn before_close(s: &'static Socket, fd: c_int, for_good: bool) {
    if s.is_inherited() {
        return;
    }
    let g = s.generation16();
    if let Ok(mut h) = hold_tx(s, g) {
        announce_end(s, &mut h);
        if for_good && h.channel.wire().is_none() {
            // Under the lock: who looks at the carrier under it, as the service thread does, must
            // not find another file under the number.
            s.fd.store(-1, Release);
        }
    }
    if let Some(channel) = s.channel().filter(|c| for_good && c.wire().is_none()) {
        // A sender that does not find this has sent before the look below (`sent_fast`).
        channel.words(s.slot.load(Relaxed) as usize, channel.side ^ 1).quiet[quiet::NOTIFY]
            .fetch_or(quiet::ENDS, SeqCst);
        fence(SeqCst);
    }
    let unread = hold_rx(s, g).is_ok_and(|mut h| h.unread().is_ok_and(|n| n > 0));
    if unread && fd >= 0 {
        // Closing with unread data resets the connection (RFC 9293 3.6.1; Linux: tcp_close); the
        // kernel cannot see the ring's.
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
    }
}

/// The last descriptor of this process's is about to be closed. `for_child`: a forked child has it
/// too, and may want what is in the ring.
pub(crate) fn last_name(s: &'static Socket, fd: c_int, for_child: bool) -> LastName {
    let Ok(mut h) = hold_tx(s, s.generation16()) else { return LastName::Gone };
    publish_held(&mut h);
    // Under the lock: nothing new gets under way meanwhile.
    if s.waiters.load(SeqCst) > 0 {
        // The kernel's calls hold the file; ours hold a name of it.
        let own = numbers::copy(fd);
        if own >= 0 {
            socket::orphan(s, own, 0);
            return LastName::Outlived;
        }
    }
    if for_child && outlives_for_child(s, &h, fd) {
        return LastName::Outlived;
    }
    if for_child {
        s.fd.store(-1, Release);
        return LastName::LeftToChild;
    }
    if h.channel.wire().is_some() {
        // Closing with unread data resets the connection: nothing is waited for.
        let unread =
            hold_rx(s, s.generation16()).is_ok_and(|mut h| h.unread().is_ok_and(|n| n > 0));
        if !unread && outlives_close(s, &mut h, fd) {
            return LastName::Outlived;
        }
    }
    announce_end(s, &mut h);
    LastName::Gone
}

/// The process ends in order: what the kernel will close with bytes unread in a ring is to be
/// reset.
pub(crate) fn at_exit(s: &'static Socket, fd: c_int) {
    // Never waits: another thread may hold the end for ever.
    if !s.is(State::Attached) || s.rx_lock.owner() != 0 || s.tx_lock.owner() != 0 {
        return;
    }
    if s.names() == 1 {
        before_close(s, fd, false);
    } else if s.has(flag::HOLDS) && !s.is_inherited() {
        send_held(s, s.generation16());
    }
}

/// What the peer's receiver has followed is all that went over the carrier; nothing of it is
/// unacknowledged.
pub(crate) fn carrier_is_drained(s: &Socket) -> bool {
    let Some(channel) = s.channel() else { return false };
    let w = channel.words(s.slot.load(Relaxed) as usize, channel.side);
    let epoch = s.published.epoch.load(Relaxed);
    epoch & 1 != 0 && w.quiet[quiet::ACK].load(Acquire) as u32 == epoch
}

/// The kernel has closed it and no thread can find it any more: the slot is given back.
pub(crate) fn after_close(s: &'static Socket) {
    if s.is_inherited() && s.has(flag::REMOTE) {
        return;
    }
    // SAFETY: as in `Socket::channel`; the swap gives it to one caller.
    let Some(channel) = (unsafe { s.channel.swap(core::ptr::null_mut(), AcqRel).as_ref() }) else {
        return;
    };
    let slot = s.slot.load(Relaxed) as usize;
    if channel.wire().is_some() {
        agent::released(channel, slot);
        return;
    }
    let (tx, rx) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let (readers, writers) = (
        tx.quiet[quiet::NOTIFY].load(Relaxed),
        rx.producer_quiet[producer_quiet::NOTIFY].load(Relaxed),
    );
    fence(SeqCst);
    channel.notify(slot, readers);
    channel.notify(slot, writers);
    // Last: the slot may serve another connection from here on.
    rx.quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    s.published.leave();
    if !s.is_inherited() {
        agent::released(channel, slot);
    }
}

/// How long a receiver waits for the peer's library to give back what the application has not read:
/// where the call can go on without, and where it cannot.
pub(super) const PULL_BACK_NS: u64 = 50_000_000;
pub(super) const PULL_BACK_STRICT_NS: u64 = 2_000_000_000;

/// Which of them it is: without an answer unread bytes could not be read for a while, or the call
/// would fail.
pub(super) fn pull_back_patience_ns(s: &'static Socket, g: u16, why: Reason, strict: bool) -> u64 {
    let has_unread = || hold_rx(s, g).is_ok_and(|mut h| h.unread().is_ok_and(|n| n > 0));
    match why {
        _ if strict => PULL_BACK_STRICT_NS,
        Reason::NoMemory => PULL_BACK_STRICT_NS,
        Reason::SocketOption if has_unread() => PULL_BACK_STRICT_NS,
        _ => PULL_BACK_NS,
    }
}

/// A ring of the program's may do anything with any socket from now on: all are the kernel's.
#[cold]
pub(crate) fn lose_sight() {
    if crate::unconnected::refuse_all() {
        return;
    }
    fd_table::for_each(|fd, entry| {
        if matches!(entry, Entry::Socket(..) | Entry::Fresh(_) | Entry::Listener(_)) {
            need_kernel(fd, Reason::IoUring);
        }
    });
}

/// A descriptor is used in a way that only the kernel can serve, for good: see
/// [`crate::api::need_kernel`].
pub(crate) fn need_kernel(fd: c_int, why: Reason) {
    let (s, g) = match fd_table::get(fd) {
        Entry::Socket(s, g) => (s, g),
        Entry::Fresh(_) | Entry::Listener(_) => return fd_table::refuse(fd, why),
        Entry::Ring(_) => return lose_sight(),
        // Whoever gets it asks the kernel alone.
        Entry::Epoll(set) => return sets().bar(set),
        Entry::None | Entry::Internal => return,
    };
    if s.has(flag::TRACKED) {
        adoption::passed::lose_track(s, fd);
    }
    // Where somebody is about to read who cannot read a ring.
    let strict =
        matches!(why, Reason::InheritedByExec | Reason::PassedByScmRights | Reason::StdioStream);
    let _ = to_kernel(s, g, fd, why, strict);
}

/// Both directions back onto the carrier for good. True: the application may use the kernel's
/// socket as it likes.
///
/// False: the sending direction is the carrier's, but bytes of the receiving one are in the ring
/// and cannot be had over the carrier (the peer has left the ring by itself, or does not answer);
/// they are served from the ring as before. Or a reset is still to be told, of which the kernel
/// does not know. Where the caller is about to hand the descriptor to somebody who cannot do that
/// (`strict`), the connection is broken instead: an error that is seen, never a gap in the stream.
#[cold]
#[inline(never)]
pub(crate) fn to_kernel(s: &'static Socket, g: u16, fd: c_int, why: Reason, strict: bool) -> bool {
    loop {
        if s.generation16() != g {
            return true;
        }
        match s.state.now() {
            State::Candidate => candidates::make_plain(s, why),
            State::Unconnected => {
                s.refuse(why);
                return true;
            }
            State::Changing if socket::await_change(s) => {}
            State::Changing => return false,
            State::Closing if s.is_inherited() => socket::await_close(s),
            // Nobody adopts it any more.
            State::Left => drop(s.state.change(State::Left, Event::Refused)),
            State::Attached => break,
            _ => return true,
        }
    }
    if s.has(flag::REMOTE) {
        return to_kernel_between_hosts(s, g, fd, why, strict);
    }
    if !strict && why != Reason::Disconnected && is_reset_now(s, g, fd) && owes_reset(s) {
        // The kernel could not tell.
        return false;
    }
    let patience_ns = pull_back_patience_ns(s, g, why, strict);
    let until = sys::now_ns().saturating_add(patience_ns);
    // Bytes that go out again go before all that the kernel is asked to send.
    let resending = loop {
        let Ok(mut h) = hold_tx(s, g) else { break false };
        demote_tx(s, &mut h, true);
        h.end.switch.pin();
        if h.end.switch.state() != TxState::Resending || send_again(s, &mut h, fd) != EAGAIN {
            break false;
        }
        drop(h);
        if sys::now_ns() > until {
            break true;
        }
        let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { sleep::ppoll(&mut p, 1, 5_000_000, core::ptr::null()) };
    };
    // A thread that waits for room in the ring goes on in the kernel.
    wait::prod(s);
    if !release_rx(s, g, fd, patience_ns) {
        debug_log!("fd {fd}: unread bytes stay in the ring ({})", why.name());
        let unread = hold_rx(s, g).map_or(0, |mut h| h.unread().unwrap_or(0));
        if strict && unread > 0 {
            crate::log::warn_log!(
                "fd {fd}: {unread} unread bytes cannot follow the descriptor ({}): the connection is broken off",
                why.name()
            );
            let _ = sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes());
        }
        return leaves_later(s, why);
    }
    if resending {
        if strict {
            crate::log::warn_log!(
                "fd {fd}: the peer takes no bytes that go before the descriptor ({}): the connection is broken off",
                why.name()
            );
            let _ = sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes());
        }
        return leaves_later(s, why);
    }
    // What comes again over the carrier is in the ring too, should the sender die on the way: the
    // ring is kept until all has come. (The calls of a child ask again and again: the first has
    // waited.)
    let patience_ns = match () {
        _ if s.has(flag::LEAVING) => 0,
        _ if strict => PULL_BACK_NS,
        _ => patience_ns,
    };
    if !all_comes(s, g, fd, patience_ns) && !strict {
        return leaves_later(s, why);
    }
    debug_log!("fd {fd}: back to the kernel for good ({})", why.name());
    become_plain(s, why);
    true
}

/// Calls that find it so complete the move ([`leave_if_due`]).
fn leaves_later(s: &Socket, why: Reason) -> bool {
    s.set_reason(why);
    s.raise(flag::LEAVING);
    false
}

fn become_plain(s: &'static Socket, why: Reason) {
    if s.state.change(State::Attached, Event::Refused) {
        s.set_reason(why);
        wait::prod(s);
        if !s.is_inherited() {
            sets().on_plain(s);
            detach(s);
        }
    }
}

/// How long is waited for more of what comes again when there is some: the kernel may have no room
/// for all.
const STALLED_NS: u64 = 10_000_000;

/// Waits for what comes again over the carrier: it was readable, and has to be when the call is
/// over that has sent it there. True: the kernel has all of it.
fn all_comes(s: &'static Socket, g: u16, fd: c_int, patience_ns: u64) -> bool {
    let begin = sys::now_ns();
    let (mut most, mut grew_at) = (0, begin);
    let mut fd = fd;
    loop {
        renew(s, &mut fd);
        let ended = sys::poll_now(fd, libc::POLLRDHUP)
            & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR)
            != 0;
        let (Some(there), Some(more)) = (carrier_unread(fd), outstanding(s, g)) else {
            return true;
        };
        if there as u64 >= more {
            return true;
        }
        let now = sys::now_ns();
        if there > most {
            (most, grew_at) = (there, now);
        }
        if ended
            || now.saturating_sub(begin) >= patience_ns
            || (most > 0 && now.saturating_sub(grew_at) > STALLED_NS)
        {
            return false;
        }
        sys::pause_ns(20_000);
    }
}

/// What comes again over the carrier and was not received yet. `None`: it is not attached any more.
fn outstanding(s: &'static Socket, g: u16) -> Option<u64> {
    hold_rx(s, g).ok().map(|h| h.end.switch.outstanding())
}

/// Completes what [`to_kernel`] could not, if the kernel has by now all that the application has
/// not received.
#[cold]
pub(super) fn leave_if_due(s: &'static Socket, g: u16, fd: c_int) {
    if is_resending(s, g) || (is_reset_now(s, g, fd) && owes_reset(s)) {
        return;
    }
    let due = hold_rx(s, g).is_ok_and(|h| {
        h.end.switch.is_released()
            && carrier_unread(fd).is_some_and(|there| there as u64 >= h.end.switch.outstanding())
    });
    if due {
        debug_log!("fd {fd}: back to the kernel for good");
        let why = s
            .record()
            .and_then(|r| Reason::ALL.get(r.reason.load(Relaxed) as usize))
            .copied()
            .unwrap_or(Reason::SocketOption);
        become_plain(s, why);
    }
}

/// Gives the slot back; the socket is plain.
pub(crate) fn detach(s: &'static Socket) {
    // SAFETY: as in `Socket::channel`; the swap gives it to one caller.
    if let Some(channel) = unsafe { s.channel.swap(core::ptr::null_mut(), AcqRel).as_ref() } {
        let slot = s.slot.load(Relaxed) as usize;
        if channel.wire().is_none() {
            channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST]
                .fetch_or(quiet::CLOSED, SeqCst);
            s.published.leave();
        }
        agent::released(channel, slot);
    }
}

/// Gets the receiving direction onto the carrier; true when nothing of the stream can come by the
/// ring any more.
pub(super) fn release_rx(s: &'static Socket, g: u16, fd: c_int, patience_ns: u64) -> bool {
    let deadline = sys::now_ns().saturating_add(patience_ns);
    let mut frozen = false;
    let mut asked = false;
    let mut fd = fd;
    loop {
        renew(s, &mut fd);
        let heard = {
            let mut h = match hold_rx(s, g) {
                Ok(h) => h,
                Err(NotHeld::Changed) => return true,
                Err(NotHeld::Reentrant) => return false,
            };
            if !frozen {
                frozen = true;
                // A call of before the attachment that ends later arms nothing any more.
                h.end.unsettled = false;
                h.end.switch.freeze();
                store_ack(&h);
                fence(SeqCst);
            }
            let latest = load_announce(h.words);
            match h.end.switch.on_announce(latest) {
                Ok(true) => h.settled(s),
                Ok(false) => {}
                Err(_) => return false,
            }
            store_ack(&h);
            if h.end.switch.is_released() {
                return true;
            }
            if !h.end.switch.wants_pull_back() {
                // The peer has left the ring by itself: what is in it can only be read there.
                return false;
            }
            if !asked {
                // May fail for want of room in the control connection: again in a moment.
                asked = control::send_pull_back(h.channel, h.slot);
                if asked {
                    stats::count(Counter::PulledBack);
                }
            }
            latest.epoch
        };
        // The peer answers by an announcement; its death is heard on the carrier.
        if sys::poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR)
            != 0
        {
            // Its last announcement came before its end.
            return hold_rx(s, g).is_ok_and(|mut h| {
                let followed = h.end.switch.on_announce(load_announce(h.words)).is_ok();
                h.settled(s);
                followed && h.end.switch.is_released()
            });
        }
        if sys::now_ns() > deadline {
            return false;
        }
        let Some(channel) = s.channel() else { return true };
        let words = channel.words(s.slot.load(Relaxed) as usize, channel.side ^ 1);
        // SAFETY: the low half of the epoch word, which lives in the mapping; futexes on it are
        // shared with the peer.
        let low =
            unsafe { AtomicU32::from_ptr(words.producer_user[announce::EPOCH].as_ptr().cast()) };
        // (For another announcement than the one that was looked into, whether that was what it
        // should be or not.)
        sys::futex_wait(low, heard, 1_000_000, false);
    }
}

/// Before a close that nobody waits for: with a time in SO_LINGER it would hold up the helper that
/// makes it.
pub(crate) fn never_linger(fd: c_int) {
    let mut linger = RESET_ON_CLOSE;
    if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0
        && linger.l_onoff != 0
        && linger.l_linger > 0
    {
        let _ = sys::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            &libc::linger { l_onoff: 0, l_linger: 0 },
        );
    }
}

/// The application has set SO_LINGER: noted while bytes are sent again.
pub(crate) fn on_linger(s: &'static Socket, g: u16, fd: c_int) {
    let Ok(h) = hold_tx(s, g) else { return };
    if let Some(kept) = h.end.linger.as_mut()
        && sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, kept) >= 0
    {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &RESET_ON_CLOSE);
    }
}

/// The application's SO_LINGER, where the library's own stands, or has just stood, on the carrier.
pub(crate) fn application_linger(s: &'static Socket, g: u16, fd: c_int) -> Option<libc::linger> {
    if s.is_inherited() {
        let _ = to_kernel(s, g, fd, Reason::InheritedByFork, false);
        let mut linger = RESET_ON_CLOSE;
        return (sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0)
            .then_some(linger);
    }
    hold_tx(s, g).ok()?.end.linger
}

/// The application has taken the carrier's error (SO_ERROR), which counts as told if the carrier is
/// over (it may be a soft error, of an attempt that failed). `Some`: one that the carrier does not
/// know.
pub(crate) fn on_error_taken(s: &'static Socket, g: u16, fd: c_int, error: c_int) -> Option<c_int> {
    if matches!(error, libc::EPIPE | libc::ECONNRESET)
        && hold_tx(s, g).is_ok_and(|_held| is_reset_by(s, fd, error))
    {
        let told = s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD != 0;
        return Some(if told { 0 } else { libc::ECONNRESET });
    }
    if error != 0 {
        if carrier::is_closed(fd) {
            s.raise(flag::TOLD);
        }
        return None;
    }
    let broken = is_broken(s) || is_reset_now(s, g, fd);
    (broken && s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD == 0).then_some(libc::ECONNRESET)
}

/// Sends on the carrier what a pull-back has to send again, as far as there is room: 0 when nothing
/// of it is left, or EAGAIN. `fd` is the caller's name of the carrier, which counts in a forked
/// child; in the maker's process it may have been closed meanwhile.
pub(super) fn send_again(s: &Socket, h: &mut TxHeld<'_>, fd: c_int) -> Ret {
    let fd = if s.is_inherited() { fd } else { s.fd.load(Acquire) };
    if fd < 0 {
        return EAGAIN;
    }
    let mut few = [0u8; PART_FEW];
    let mut part = Part::new(&mut few);
    let part = part.bytes();
    while h.end.switch.state() == TxState::Resending {
        let resend = h.end.switch.resend();
        let left = resend.end - resend.start;
        let want = part.len().min(left as usize);
        // SAFETY: `part` is ours and outside the ring.
        let n = unsafe { h.end.ring.copy_out(resend.start, part.as_mut_ptr(), want) };
        if n == 0 {
            return corrupt(s, fd);
        }
        // Should this process be killed between the next two steps, a child that has the connection
        // too knows how far it came.
        h.end.resend_mark = carrier::sent(fd);
        // SAFETY: `n` bytes of `part`.
        let r =
            unsafe { sys::sendto(fd, part.as_ptr(), n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        h.end.resend_mark = None;
        if r > 0 {
            let _ = h.end.switch.on_resent(r as u64);
        } else if matches!(
            -r as c_int,
            0 | libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM
        ) {
            return EAGAIN;
        } else {
            debug_log!("fd {fd}: {left} bytes that were to go out again are lost: errno {}", -r);
            // The carrier takes no byte any more. The peer must not take what it got for all: the
            // connection is reset, if it is not yet.
            h.end.linger = None;
            s.raise(flag::BROKEN_OFF);
            let _ = h.end.switch.on_resent(left);
            let _ = sys::connect(fd, &(libc::AF_UNSPEC as u64).to_ne_bytes());
            return 0;
        }
        if h.end.switch.state() != TxState::Resending {
            all_is_sent_again(s, h, fd);
        }
    }
    0
}

/// The carrier goes on as usual: what was put off is done.
pub(super) fn all_is_sent_again(s: &Socket, h: &mut TxHeld<'_>, fd: c_int) {
    debug_log!("fd {fd}: all is sent again");
    if let Some(linger) = h.end.linger.take() {
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }
    if s.has(flag::FIN_LATER) {
        announce_end(s, h);
        let _ = sys::shutdown(fd, libc::SHUT_WR);
        s.lower(flag::FIN_LATER);
    }
}

/// The kernel resets a connection that is closed with this (tcp(7), RFC 9293 ABORT).
pub(super) const RESET_ON_CLOSE: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

/// Whether bytes wait to be sent again, before all that the kernel is asked to send.
pub(super) fn is_resending(s: &'static Socket, g: u16) -> bool {
    hold_tx(s, g).is_ok_and(|h| h.end.switch.state() == TxState::Resending)
}
