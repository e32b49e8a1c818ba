//! What is an edge of an item with EPOLLET, and when it is queued again.
//!
//! News of an item queues it (`set.rs` `drain_channels`; EPOLL_CTL_MOD: `ctl.rs`), and the wait
//! that comes to it asks [`evaluate_edge`]. What the last report told of is kept ([`Seen`]): as
//! long as a look finds just that, nothing is reported again.

use super::ready::{evaluate, evaluate_plain};
use super::{Item, set::Seen};

/// As [`evaluate`], of an edge-triggered item: nothing where its news is not what it asks for, or
/// has been reported. (One without the interest in bytes hears of them, too; and the end of a
/// stream is told of in its ring, before the carrier has it.)
#[inline(never)]
pub(super) fn evaluate_edge(item: &mut Item) -> u32 {
    // (The words of a connection that is the kernel's say nothing any more; those of one that its
    // maker alone may use may not even be there.)
    if item.plain || item.socket.channel().is_none() {
        item.seen = None;
        return evaluate_plain(item);
    }
    let (before, seen) = (item.seen, Seen::by(item));
    // `evaluate` clears it where it asks the carrier: what that says always counts as an edge.
    item.seen = seen;
    let now = evaluate(item);
    let by_ring = item.seen.is_some();
    if by_ring && now == 0 {
        item.seen = before;
    }
    if by_ring && before == seen { 0 } else { now }
}
