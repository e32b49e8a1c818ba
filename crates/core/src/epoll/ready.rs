//! What an item has to report: by the shared words, and by the carrier where only that knows.

use super::*;
use crate::channel::says_end;
use netacc_ring::RingWords;

/// `Ack::control`'s flag of a receiver that waits for the peer to send again over the carrier.
const FROZEN: u64 = Ack { epoch: 0, armed: false, frozen: true, consumed: 0 }.control();

/// Whether a receive finds bytes in the ring, and whether the carrier has to be asked as well; by
/// the shared words, and by how far the receiver has come.
#[inline]
pub(crate) fn ring_says(s: &Socket, channel: &Channel, slot: usize) -> (bool, bool) {
    words_say(s, channel.words(slot, channel.side ^ 1))
}

#[inline(always)]
fn words_say(s: &Socket, rx: &RingWords) -> (bool, bool) {
    // Before the announcement, which comes before the bytes.
    let some = rx.tail.load(Acquire) != s.said.head.load(Relaxed);
    let ack = s.said.ack.load(Relaxed);
    let fast = ack & (FROZEN | 1) == 1;
    let followed = rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32;
    if fast & (some | followed) {
        (some, false)
    } else {
        words_say_slow(s, rx, some, ack, fast, followed)
    }
}

/// The receiver does not stand on the ring, or the sender has left it.
#[cold]
#[inline(never)]
fn words_say_slow(
    s: &Socket,
    rx: &RingWords,
    some: bool,
    ack: u64,
    fast: bool,
    followed: bool,
) -> (bool, bool) {
    // Of a receiver that has followed to the carrier the ring has only what has come there too. One
    // that waits is told whether its bytes come again, or stay where they are.
    let stay = || {
        rx.producer_user[announce::RESEND_TO].load(Relaxed)
            == rx.producer_user[announce::CARRIER_FROM].load(Relaxed)
    };
    // What the sender has put on the carrier before comes first, and may still be on its way.
    let turn = || {
        // With `RxHeld::came_to`: either that sees the promotion, or this sees how far the receiver
        // has come.
        fence(SeqCst);
        ack & 1 != 0
            || rx.producer_user[announce::FAST_FROM].load(Relaxed) == s.rx_offset.load(Relaxed)
    };
    let readable =
        some && !followed && (ack & FROZEN == 0 || stay()) && turn() && !s.said.is_doubted(rx);
    (readable, !readable && (!fast || !followed))
}

/// What changes in the ring of a socket whose news is not announced to this set.
fn stamp(channel: &Channel, slot: usize) -> (u32, u64) {
    let rx = channel.words(slot, channel.side ^ 1);
    (rx.producer_user[announce::EPOCH].load(Acquire) as u32, rx.tail.load(Acquire))
}

/// The receiver waits for the peer's answer to a pull-back: news that only the home is told of.
fn is_frozen(s: &Socket) -> bool {
    s.said.ack.load(Relaxed) & FROZEN != 0
}

/// The receiver has followed the sender to the carrier, and can stay there.
pub(super) fn is_released(s: &Socket, channel: &Channel) -> bool {
    let rx = channel.words(s.slot.load(Relaxed) as usize, channel.side ^ 1);
    let ack = s.said.ack.load(Relaxed);
    ack & 1 == 0
        && ack >> 32 == 0
        && rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32
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
                let parents = s.is_inherited() && s.has(flag::REMOTE);
                (item.extra.is_some() || (all && item.attached && !item.plain))
                    && (parents || (s.channel().is_some() && is_frozen(s)))
            })
    }
}

/// What a kept item has to report; reads shared words, and asks the kernel only where the carrier
/// matters.
#[inline]
pub(super) fn evaluate(item: &mut Item) -> u32 {
    let s = item.socket;
    let Some(channel) = s.channel().filter(|_| !item.plain) else { return evaluate_plain(item) };
    let Some((tx, rx)) = s.words() else { return 0 };
    let sends = s.said.sends_fast();
    let (readable, ask) = words_say(s, rx);
    // (All of them: none is worth a branch.)
    let ask = ask
        | !sends
        | item.carrier_news
        | s.has(flag::FIN_LATER | flag::CARRIER_SPOKE | flag::RESET)
        | says_end(tx);
    let mut now = if readable { IN } else { 0 };
    if sends
        && item.events & OUT != 0
        && wait::send_room_or_ask(s, channel, s.slot.load(Relaxed) as usize, s.tx_ring_bytes())
    {
        now |= OUT;
    }
    if ask {
        now |= ask_carrier(item, sends);
    }
    now & (item.events | ALWAYS)
}

/// A nameless item of a socket that is the kernel's: the kernel says all.
#[cold]
#[inline(never)]
fn evaluate_plain(item: &Item) -> u32 {
    if !item.plain {
        return 0;
    }
    let asked = (item.events | ALWAYS) & 0xffff;
    sys::poll_now(item.fd, asked as i16) as u16 as u32 & asked
}

#[cold]
#[inline(never)]
fn ask_carrier(item: &mut Item, sends: bool) -> u32 {
    let receives = item.socket.said.receives_fast();
    let asked = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
    let mut ev = io::settled(item.fd, asked, sys::poll_now(item.fd, asked)) as u32;
    if ev & (libc::EPOLLRDHUP | libc::EPOLLHUP) as u32 != 0
        && io::is_reset_now(item.socket, item.generation, item.fd)
    {
        let error = if io::owes_reset(item.socket) { libc::EPOLLERR } else { 0 };
        ev |= (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLHUP | error) as u32;
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
        && if sends { over } else { io::may_send_on_carrier(item.socket) }
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
