//! What an item has to report: by the shared words, and by the carrier where only that knows.

use super::*;

/// `Ack::control`'s flag of a receiver that waits for the peer to send again over the carrier.
const FROZEN: u64 = Ack { epoch: 0, armed: false, frozen: true, consumed: 0 }.control();

/// Whether a receive finds bytes in the ring, and whether the carrier has to be asked as well; by the shared words.
#[inline]
pub(crate) fn ring_says(channel: &Channel, slot: usize) -> (bool, bool) {
    let rx = channel.words(slot, channel.side ^ 1);
    // Before the announcement, which comes before the bytes.
    let some = rx.tail.load(Acquire) != rx.head.load(Relaxed);
    let ack = rx.quiet[quiet::ACK].load(Relaxed);
    let fast = ack & 1 != 0 && ack & FROZEN == 0;
    if some && fast {
        return (true, false);
    }
    let followed = rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32;
    // Of a receiver that has followed to the carrier the ring has only what has come there too. One that waits is told whether its bytes
    // come again, or stay where they are.
    let stay = || rx.producer_user[announce::RESEND_TO].load(Relaxed) == rx.producer_user[announce::CARRIER_FROM].load(Relaxed);
    let readable = some && !followed && (ack & FROZEN == 0 || stay());
    (readable, !readable && (!fast || !followed))
}

/// What changes in the ring of a socket whose news is not announced to this set.
fn stamp(channel: &Channel, slot: usize) -> (u32, u64) {
    let rx = channel.words(slot, channel.side ^ 1);
    (rx.producer_user[announce::EPOCH].load(Acquire) as u32, rx.tail.load(Acquire))
}

/// The receiver waits for the peer's answer to a pull-back: news that only the home is told of.
fn is_frozen(channel: &Channel, slot: usize) -> bool {
    channel.words(slot, channel.side ^ 1).quiet[quiet::ACK].load(Relaxed) & FROZEN != 0
}

/// The receiver has followed the sender to the carrier, and can stay there.
pub(super) fn is_released(channel: &Channel, slot: usize) -> bool {
    let rx = channel.words(slot, channel.side ^ 1);
    let ack = rx.quiet[quiet::ACK].load(Relaxed);
    ack & 1 == 0 && ack >> 32 == 0 && rx.producer_user[announce::EPOCH].load(Acquire) as u32 == ack as u32
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
                // (A forked child hears nothing of what its parent does with a connection to another host.)
                let parents = s.is_inherited() && s.has(flag::REMOTE);
                (item.extra.is_some() || (all && item.attached && !item.plain))
                    && (parents || s.channel().is_some_and(|channel| is_frozen(channel, s.slot.load(Relaxed) as usize)))
            })
    }
}

/// What a kept item has to report; reads shared words, and asks the kernel only where the carrier matters.
#[inline]
pub(super) fn evaluate(item: &mut Item) -> u32 {
    let s = item.socket;
    let Some(channel) = s.channel().filter(|_| !item.plain) else { return evaluate_plain(item) };
    let slot = s.slot.load(Relaxed) as usize;
    let mut now = 0;
    let receives = io::receives_fast(channel, slot);
    let sends = io::sends_fast(channel, slot);
    let (readable, mut ask) = ring_says(channel, slot);
    ask |= item.carrier_news || s.has(flag::FIN_LATER);
    if readable {
        now |= IN;
    }
    if sends {
        if item.events & OUT != 0 && wait::send_room_or_ask(channel, slot, io::tx_ring_bytes(s)) {
            now |= OUT;
        }
    } else {
        ask = true;
    }
    if ask {
        now |= ask_carrier(item, receives, sends);
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
fn ask_carrier(item: &mut Item, receives: bool, sends: bool) -> u32 {
    let ev = sys::poll_now(item.fd, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI) as u32;
    let spoke = ev & (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLHUP | libc::EPOLLERR) as u32;
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
    if !sends && ev & libc::EPOLLOUT as u32 != 0 && io::may_send_on_carrier(item.socket) {
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
