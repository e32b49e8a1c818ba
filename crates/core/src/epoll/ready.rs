//! What an item has to report: by the shared words, and by the carrier where only that knows.

use super::{ALWAYS, ENDS, IN, Inner, Item, OUT};
use crate::channel::{Channel, announce, says_end};
use crate::life_word::has_closed;
use crate::socket::flag;
use crate::{io, sys, wait};
use core::sync::atomic::{Ordering::*, fence};

/// What changes in the ring of a socket whose news is not announced to this set.
fn stamp(channel: &Channel, slot: usize) -> (u32, u64) {
    let rx = channel.words(slot, channel.side ^ 1);
    (rx.producer_user[announce::EPOCH].load(Acquire) as u32, rx.tail.load(Acquire))
}

impl Inner {
    /// Queues the extra items of which anything is new.
    #[cold]
    pub(super) fn look_at_extras(&mut self) {
        for i in 0..self.extras.len() {
            let Some(index) = self.extras.get(i).copied() else { return };
            let Some(item) = self.item(index) else { continue };
            let Some(channel) = item.socket.channel() else { continue };
            let now = stamp(channel, item.socket.slot.load(Relaxed) as usize);
            if core::mem::replace(&mut item.stamp, now) != now {
                self.queue(index);
            }
        }
    }
    /// Whether news of a socket may come that nobody announces: of extra items, or (`all`) of all.
    pub(super) fn hears_not_all(&self, all: bool) -> bool {
        (all || !self.extras.is_empty())
            && self.items.iter().flatten().any(|item| {
                let s = item.socket;
                // (A forked child hears nothing of what its parent does with a connection to
                // another host.)
                let parents = s.needs_maker();
                (item.extra.is_some() || (all && item.attached && !item.plain))
                    && (parents || (s.channel().is_some() && s.published.is_frozen()))
            })
    }
}

/// Flags of a connection whose carrier has something to say.
const ASKS: u32 = flag::FIN_LATER | flag::CARRIER_SPOKE | flag::RESET;

/// What the ring alone says of an item.
struct ByRing {
    now: u32,
    /// The carrier has to be asked as well.
    ask: bool,
    sends: bool,
}

#[inline(always)]
fn by_ring(item: &Item, channel: &Channel) -> Option<ByRing> {
    let s = item.socket;
    let (tx, rx) = s.words()?;
    let sends = s.published.sends_fast();
    let (readable, ask) = s.published.ring_says(rx, &s.rx_offset);
    // (All of them: none is worth a branch.)
    let ask = ask | !sends | item.carrier_news | s.has(ASKS) | says_end(tx);
    let mut now = if readable { IN } else { 0 };
    if sends
        && item.events & OUT != 0
        && wait::send_room_or_ask(s, channel, s.slot.load(Relaxed) as usize, s.room_bytes())
    {
        now |= OUT;
    }
    Some(ByRing { now, ask, sends })
}

/// What a kept item has to report; reads shared words, and asks the kernel only where the carrier
/// matters.
#[inline]
pub(super) fn evaluate(item: &mut Item) -> u32 {
    let channel = item.socket.channel().filter(|_| !item.plain);
    let Some(channel) = channel else { return evaluate_plain(item) };
    let Some(ByRing { mut now, ask, sends }) = by_ring(item, channel) else { return 0 };
    if ask {
        item.seen = None;
        now |= ask_carrier(item, sends);
    }
    now & (item.events | ALWAYS)
}

/// Whether an item may have something to report at this moment. What it has later is announced, or
/// the kernel's to tell: an item that is not queued now takes its place when it becomes ready.
/// `new`: the carrier is asked now, and not again by the first wait.
#[inline]
pub(super) fn may_report(item: &mut Item, new: bool) -> bool {
    let announced = !item.plain && item.extra.is_none() && !item.socket.is_inherited();
    if new && announced {
        // Behind the word by which the item's news is announced (`post`).
        fence(SeqCst);
        return evaluate(item) != 0;
    }
    let channel = item.socket.channel().filter(|_| announced);
    channel
        .and_then(|channel| by_ring(item, channel))
        .is_none_or(|ring| ring.ask || ring.now & item.events != 0)
}

/// A nameless item of a socket that is the kernel's: the kernel says all.
#[cold]
#[inline(never)]
pub(super) fn evaluate_plain(item: &Item) -> u32 {
    if !item.plain {
        return 0;
    }
    let asked = (item.events | ALWAYS) & 0xffff;
    sys::poll_now(item.fd, asked as i16) as u16 as u32 & asked
}

#[cold]
#[inline(never)]
fn ask_carrier(item: &mut Item, sends: bool) -> u32 {
    let receives = item.socket.published.receives_fast();
    let ended =
        item.socket.channel().is_some_and(|c| c.peer_ends(item.socket.slot.load(Relaxed) as usize))
            && has_closed(item.socket);
    if ended && receives && sends && !item.carrier_news && !item.socket.has(ASKS) {
        // The carrier is kept: it says nothing of that.
        return IN | OUT | libc::EPOLLRDHUP as u32;
    }
    let asked = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
    let mut said = io::settled(item.fd, asked, sys::poll_now(item.fd, asked));
    if let Some(channel) = item.socket.channel() {
        said = channel.far.of_carrier(item.socket.slot.load(Relaxed) as usize, item.fd, said);
    }
    said = io::with_error_owed(item.socket, item.generation, said);
    let mut ev = said as u32;
    if ev & (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32 != 0
        && io::is_reset_now(item.socket, item.generation, item.fd)
    {
        let error = if io::owes_reset(item.socket) { libc::EPOLLERR } else { 0 };
        ev |= (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLHUP | error) as u32;
    }
    if ended {
        ev |= (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
    }
    let spoke = ev
        & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLHUP | libc::EPOLLERR)
            as u32;
    item.carrier_news = spoke != 0;
    item.ended |= spoke & ENDS;
    // Data is news only where the stream is in the ring.
    let expected = if receives { 0 } else { libc::EPOLLIN as u32 };
    if spoke & !expected != 0 {
        item.socket.raise(flag::CARRIER_SPOKE);
    }
    let mut now = spoke;
    if ev & libc::EPOLLIN as u32 != 0 {
        now |= IN;
    }
    // Behind the peer's end the next send goes there, whatever room the ring has.
    let half = || {
        item.socket
            .channel()
            .is_some_and(|c| c.peer_half_closed(item.socket.slot.load(Relaxed) as usize))
    };
    let over = spoke
        & if item.socket.has(flag::SHUT_RD) || half() {
            ENDS & !(libc::EPOLLRDHUP as u32)
        } else {
            ENDS
        }
        != 0;
    if ev & libc::EPOLLOUT as u32 != 0
        && if sends {
            over
        } else {
            io::may_send_on_carrier(item.socket, spoke & libc::EPOLLHUP as u32 != 0)
        }
    {
        now |= OUT;
    }
    if ev & libc::EPOLLRDHUP as u32 != 0 && item.socket.has(flag::FIN_LATER) {
        // Both ways are shut down, but the kernel does not know yet.
        now |= libc::EPOLLHUP as u32;
    }
    if ev & libc::POLLNVAL as u32 != 0 {
        now = 0;
    }
    now
}
