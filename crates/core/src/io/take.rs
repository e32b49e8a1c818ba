//! Bytes come out of the ring, into the caller's buffers.

use super::buffers::Buffers;
use super::ends::{RxHeld, copy_failed, try_hold};
use crate::lock::bump;
use crate::outcome::Ret;
use crate::socket::{Named, RxEnd, Socket};
use crate::user::LOWEST_ADDRESS;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use libc::iovec;
use netacc_proto::switchover::{Plan, RxState};
use netacc_ring::{Consumer, CopyError, PeerCorrupt};

/// Takes `n` bytes, which are there, out of the ring.
#[inline(always)]
pub(super) unsafe fn get(ring: &mut Consumer, at: *mut u8, n: usize) -> Result<usize, CopyError> {
    if (at as usize) < LOWEST_ADDRESS {
        return Err(CopyError::BadAddress);
    }
    // SAFETY: the caller's buffer.
    unsafe { ring.read(at, n) }
}

/// Takes `n` bytes, which are there, out of the ring into `iov`. Where a buffer is bad all of them
/// stay there.
#[inline(always)]
pub(super) unsafe fn scatter(
    ring: &mut Consumer,
    iov: &[iovec],
    n: usize,
) -> Result<usize, CopyError> {
    let mut left = n;
    for v in iov {
        let len = v.iov_len.min(left);
        if len == 0 {
            continue;
        }
        // SAFETY: the caller's buffer.
        if let Err(e) = unsafe { get(ring, v.iov_base.cast(), len) } {
            ring.put_back(n - left);
            return Err(e);
        }
        left -= len;
        if left == 0 {
            break;
        }
    }
    Ok(n - left)
}

/// Where a look (`receive_once.rs`) puts what it finds.
pub(super) struct Target<'a> {
    pub(super) fd: c_int,
    /// The caller's buffers.
    pub(super) iov: &'a [iovec],
    /// So many bytes of them are filled.
    pub(super) done: usize,
    pub(super) flags: c_int,
}

/// Copies up to `limit` bytes from the ring to where they belong. MSG_PEEK leaves them there;
/// MSG_TRUNC copies nothing. Where a buffer is bad all of them stay there.
pub(super) unsafe fn drain(
    ring: &mut Consumer,
    to: &Target<'_>,
    limit: usize,
) -> Result<usize, CopyError> {
    let Target { iov, done: mut skip, flags, .. } = *to;
    let (peek, drop_bytes) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_TRUNC != 0);
    let mut n = 0;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = (v.iov_len - skip).min(limit - n);
        let at = v.iov_base.cast::<u8>().wrapping_add(skip);
        // SAFETY: within the caller's buffer.
        let got = unsafe {
            match (peek, drop_bytes) {
                (false, true) => ring.skip(len).map_err(CopyError::from),
                (true, true) => ring
                    .available()
                    .map(|available| len.min(available.saturating_sub(n)))
                    .map_err(CopyError::from),
                _ if (at as usize) < LOWEST_ADDRESS => Err(CopyError::BadAddress),
                (false, false) => ring.read(at, len),
                (true, false) => ring.peek(n, at, len),
            }
        };
        let got = match got {
            Ok(got) => got,
            Err(e) => {
                if !peek {
                    ring.put_back(n);
                }
                return Err(e);
            }
        };
        n += got;
        if got < len || n == limit {
            break;
        }
        skip = 0;
    }
    Ok(n)
}

/// Bytes were taken from the ring: tells the producer, and the switch. False: the peer broke the
/// rules.
#[inline(always)]
pub(super) fn received_fast(s: &Socket, held: &mut RxHeld<'_>, n: usize) -> bool {
    s.published.head.store(held.end.ring.publish(), Relaxed);
    match held.end.switch.on_delivered(n as u64) {
        Ok(false) => {}
        Ok(true) => held.settled(s),
        Err(_) => return false,
    }
    if !held.channel.far.is_shared() {
        held.channel.consumed(held.slot);
    } else if held.end.ring.take_space_request(|| s.trace_moved()) {
        held.notify_space();
    }
    if let Some(r) = s.record()
        && let Some(w) = r.rx_bytes.get(held.channel.path() as usize)
    {
        bump(w, n as u64);
        bump(&r.rx_messages, 1);
    }
    true
}

/// The receiving half, which stands on the ring, for a receive that wants what is there. `None`:
/// it needs a closer look.
#[inline(always)]
pub(super) fn rx_for_ring(
    s: &'static Socket,
    g: u16,
    total: usize,
    flags: c_int,
) -> Option<RxHeld<'static>> {
    if s.is_inherited() || flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 || total == 0 {
        return None;
    }
    // (Where the sender has left it there is more to do when it is empty: `receiving.rs`.)
    try_hold::<RxEnd>(s, g).filter(|held| held.end.switch.state() == RxState::Fast)
}

/// How many bytes of the ring the receive gets; 0: it needs a closer look.
#[inline(always)]
pub(super) fn ready(held: &mut RxHeld<'_>, total: usize) -> Result<usize, PeerCorrupt> {
    let Plan::Fast { limit } = held.end.switch.plan() else { return Ok(0) };
    // A read that falls short says that nothing is left, and an edge for the rest may have been
    // reported (epoll(7)).
    let mut there = held.end.ring.available()?;
    if there < total {
        there = held.end.ring.refresh()?;
        if there < total && held.is_left() {
            // The rest is on the carrier.
            return Ok(0);
        }
    }
    Ok((limit.min(there as u64) as usize).min(total))
}

/// Takes what is there, where that is all there is to it; `None`: it needs a closer look. For who
/// comes back from a wait. (A call that begins has the same lines in itself: as one function for
/// both they cost `recvmsg` and `readv` 21 instructions more.)
///
/// # Safety
/// The buffers are the caller's.
#[inline(always)]
pub(super) unsafe fn take_at_once(on: Named, buffers: Buffers<'_>, flags: c_int) -> Option<Ret> {
    let Named { s, g, fd } = on;
    let mut held = rx_for_ring(s, g, buffers.total, flags)?;
    let n = match ready(&mut held, buffers.total) {
        // SAFETY: the caller's buffers.
        Ok(n) if n > 0 => unsafe { scatter(&mut held.end.ring, buffers.list, n) },
        Ok(_) => return None,
        Err(e) => Err(e.into()),
    };
    Some(match n {
        Ok(n) if received_fast(s, &mut held, n) => n as Ret,
        n => copy_failed(s, fd, n.err().unwrap_or(CopyError::PeerCorrupt)),
    })
}
