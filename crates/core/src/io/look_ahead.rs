//! A look (MSG_PEEK) goes on where the path of the stream changes, though the receiver, which takes
//! nothing, stays before that. A program that looks until a whole message is there would never see
//! the rest of it.

use super::ends::{RxHeld, load_announce};
use super::receive_once::kernel_recv_around;
use super::take::{Target, drain};
use crate::sys;
use core::ffi::c_int;
use libc::MSG_DONTWAIT;
use netacc_proto::switchover::{Corrupt, Plan};
use netacc_ring::CopyError;

/// The first `n` bytes of the stream are seen, all of them on the path that the receiver stands on.
/// Sees what follows on others, in what is left of the `total` bytes of the buffers. Returns how
/// many bytes are seen in all.
///
/// # Safety
/// The buffers are the caller's.
pub(super) unsafe fn look_ahead(
    h: &mut RxHeld<'_>,
    to: &Target<'_>,
    n: usize,
    total: usize,
) -> Result<usize, Corrupt> {
    // A copy goes where the receiver would come by taking them, by the same announcements.
    let mut ahead = h.end.switch;
    let (mut seen, mut by_carrier, mut more) = (0, 0, n);
    loop {
        let on_carrier = is_on_carrier(&ahead.plan());
        ahead.on_delivered(more as u64)?;
        seen += more;
        if on_carrier {
            by_carrier += more;
        }
        if seen >= total {
            return Ok(seen);
        }
        ahead.on_announce(load_announce(h.words))?;
        let plan = ahead.plan();
        if is_on_carrier(&plan) == on_carrier {
            return Ok(seen);
        }
        more = match plan {
            Plan::Wait => 0,
            Plan::Fast { limit } => {
                let there = h.end.ring.refresh().map_err(|_| Corrupt::Overrun)?;
                let limit = limit.min(there as u64) as usize;
                let to = Target { done: seen, ..*to };
                // SAFETY: the caller's buffers.
                match unsafe { drain(&mut h.end.ring, &to, limit) } {
                    Ok(n) => n,
                    Err(CopyError::BadAddress) => 0,
                    Err(CopyError::PeerCorrupt) => return Err(Corrupt::Overrun),
                }
            }
            // Not past the urgent byte, as TCP. Nor where nothing is there: the call would take an
            // error, which is for who takes the bytes before it.
            Plan::Carrier { .. } if is_at_mark(to.fd) || !has_more(to.fd, by_carrier) => 0,
            Plan::Carrier { limit, peek_first } => {
                let most = limit.saturating_add(by_carrier as u64).min(isize::MAX as u64) as usize;
                let flags = to.flags | MSG_DONTWAIT;
                // The carrier's bytes from before come first again: each to where it is already.
                let hole = by_carrier..seen;
                // SAFETY: the caller's buffers.
                let r = unsafe { kernel_recv_around(to.fd, to.iov, hole, most, flags) };
                let behind = usize::try_from(r).unwrap_or(0).saturating_sub(by_carrier);
                if behind > 0 && peek_first {
                    ahead.after_peek(behind as u64, load_announce(h.words))? as usize
                } else {
                    behind
                }
            }
        };
        if more == 0 {
            return Ok(seen);
        }
    }
}

/// Whether the carrier has bytes behind the first `n`. (`carrier_unread` with a caller more is not
/// inlined any more where a receive finds nothing.)
#[cold]
#[inline(never)]
fn has_more(fd: c_int, n: usize) -> bool {
    let mut unread: c_int = 0;
    sys::ioctl(fd, libc::FIONREAD as usize, &mut unread as *mut c_int as usize) >= 0
        && usize::try_from(unread).is_ok_and(|unread| unread > n)
}

fn is_on_carrier(plan: &Plan) -> bool {
    matches!(plan, Plan::Carrier { .. })
}

/// The next byte on the carrier is behind the urgent one: a receive stops before it.
pub(super) fn is_at_mark(fd: c_int) -> bool {
    const SIOCATMARK: usize = 0x8905;
    let mut mark: c_int = 0;
    sys::ioctl(fd, SIOCATMARK, &mut mark as *mut c_int as usize) >= 0 && mark != 0
}
