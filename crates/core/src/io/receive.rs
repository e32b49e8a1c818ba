//! Receiving on an attached connection.

use super::*;

/// Copies up to `limit` bytes from the ring into `iov`, of which `done` bytes are filled. `peek` leaves them there; `drop_bytes`
/// (MSG_TRUNC) copies nothing.
#[inline]
pub(super) unsafe fn drain(ring: &mut Consumer, iov: &[iovec], done: usize, limit: usize, peek: bool, drop_bytes: bool) -> Result<usize, PeerCorrupt> {
    let mut skip = done;
    let mut n = 0;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = (v.iov_len - skip).min(limit - n);
        // SAFETY: within the caller's buffer.
        let got = unsafe {
            let at = v.iov_base.cast::<u8>().add(skip);
            match (peek, drop_bytes) {
                (false, false) => ring.read(at, len)?,
                (true, false) => ring.peek(n, at, len)?,
                (false, true) => ring.skip(len)?,
                (true, true) => len.min(ring.available()?.saturating_sub(n)),
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

#[inline]
pub(super) unsafe fn recv_attached(s: &'static Socket, g: u16, fd: c_int, iov: &[iovec], flags: c_int) -> Ret {
    let drop_bytes = flags & libc::MSG_TRUNC != 0;
    let (total, valid) = match iov {
        [one] if one.iov_base as usize >= LOWEST_ADDRESS && one.iov_len <= isize::MAX as usize => (one.iov_len, true),
        _ => (iov.iter().map(|v| v.iov_len).fold(0, usize::saturating_add), drop_bytes || total_len(iov).is_some()),
    };
    if s.is_inherited() {
        // SAFETY: the caller's buffers.
        return unsafe { recv_inherited(s, g, fd, iov, total, flags) };
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // Urgent data and the error queue never leave the carrier.
        return match iov.first() {
            // SAFETY: the caller's buffer.
            Some(v) => unsafe { sys::recvfrom(fd, v.iov_base.cast(), v.iov_len, flags, core::ptr::null_mut(), core::ptr::null_mut()) },
            None => 0,
        };
    }
    let mut held = match hold_rx(s, g) {
        Ok(h) => h,
        Err(NotHeld::Reentrant) => return EAGAIN,
        Err(NotHeld::Changed) => return PASS,
    };
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == 0
        && total > 0
        && valid
        && let Plan::Fast { limit } = held.end.switch.plan()
    {
        match held.end.ring.available() {
            Ok(0) => {}
            Ok(avail) => {
                // A read that falls short says that nothing is left, and an edge for the rest may have been reported (epoll(7)).
                let Ok(avail) = (if avail < total { held.end.ring.refresh() } else { Ok(avail) }) else { return corrupt(s, fd) };
                let limit = (limit.min(avail as u64)) as usize;
                // SAFETY: the caller's buffers.
                return match unsafe { drain(&mut held.end.ring, iov, 0, limit, false, false) } {
                    Ok(n) => {
                        if received_fast(s, &mut held, n) {
                            n as Ret
                        } else {
                            corrupt(s, fd)
                        }
                    }
                    Err(_) => corrupt(s, fd),
                };
            }
            Err(_) => return corrupt(s, fd),
        }
    }
    if total == 0 || !valid {
        return recv_nothing(s, g, fd, total, flags, held);
    }
    // SAFETY: the caller's buffers.
    unsafe { recv_slow(s, g, fd, iov, total, flags, held) }
}

/// Bytes were taken from the ring: tells the producer, and the switch. False: the peer broke the rules.
#[inline]
pub(super) fn received_fast(s: &Socket, held: &mut RxHeld<'_>, n: usize) -> bool {
    held.end.ring.publish();
    match held.end.switch.on_delivered(n as u64) {
        Ok(false) => {}
        Ok(true) => held.settled(s),
        Err(_) => return false,
    }
    if held.channel.wire().is_some() {
        held.channel.consumed(held.slot);
    } else if held.end.ring.take_space_request() {
        held.notify_space();
    }
    if let Some(r) = s.record()
        && let Some(w) = r.rx_bytes.get(held.channel.path() as usize)
    {
        bump(w, n as u64);
    }
    true
}

/// A forked child receives: from the kernel, as soon as nothing of the stream is left in the ring that only the ring can give
/// (the peer has closed, died, or left the ring by itself).
#[cold]
pub(super) unsafe fn recv_inherited(s: &'static Socket, g: u16, fd: c_int, iov: &[iovec], total: usize, flags: c_int) -> Ret {
    let nonblocking = s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    if total == 0 {
        return PASS;
    }
    if s.has(flag::REMOTE) {
        return match await_carrier(s, g, fd, Reason::InheritedByFork, s.receive_timeout_ns.load(Relaxed), nonblocking) {
            Ok(()) if s.generation16() == g && s.is(ATTACHED) && is_broken(s) => {
                let told = if flags & libc::MSG_PEEK == 0 { flag::TOLD } else { 0 };
                if s.flags.fetch_or(told, AcqRel) & flag::TOLD == 0 { ECONNRESET } else { 0 }
            }
            Ok(()) => PASS,
            Err(r) => r,
        };
    }
    let mut patience = Patience::of(&s.receive_timeout_ns);
    loop {
        if to_kernel(s, g, fd, Reason::InheritedByFork, false) {
            return PASS;
        }
        let r = match hold_rx(s, g) {
            // SAFETY: the caller's buffers. Never blocks: the child has no waiting place in its parent's channel.
            Ok(h) => unsafe { recv_slow(s, g, fd, iov, total, flags | libc::MSG_DONTWAIT, h) },
            Err(NotHeld::Changed) => return PASS,
            Err(NotHeld::Reentrant) => return EAGAIN,
        };
        if r != EAGAIN || nonblocking {
            return r;
        }
        // The ring's news does not reach the kernel's socket: looked for once a millisecond.
        if let Some(r) = patience.wait(fd, libc::POLLIN, 1_000_000) {
            return r;
        }
    }
}

/// A receive that takes no byte, because none is asked for or the buffer is no buffer: waits as any other
/// (tcp_recvmsg), then says so.
#[cold]
pub(super) fn recv_nothing(s: &'static Socket, g: u16, fd: c_int, total: usize, flags: c_int, held: RxHeld<'static>) -> Ret {
    drop(held);
    let mut byte = 0u8;
    let iov = [sys::iov(&raw const byte, 1)];
    let peek = (flags | libc::MSG_PEEK) & !(libc::MSG_WAITALL | libc::MSG_TRUNC);
    let r = match hold_rx(s, g) {
        // SAFETY: one byte of ours, which a peek fills.
        Ok(h) => unsafe { recv_slow(s, g, fd, &iov, 1, peek, h) },
        Err(_) => return EAGAIN,
    };
    let _ = &mut byte;
    match r {
        PASS => PASS,
        r if r > 0 && total > 0 => -(libc::EFAULT as Ret),
        r => r.min(0),
    }
}

/// What one look at a path brought.
pub(super) enum Look {
    /// Bytes, or the end: the call's result so far is complete.
    Got(usize),
    /// Nothing there now.
    Empty,
    /// The plan changed: look again.
    Again,
    /// The kernel's answer, to be handed to the application.
    Kernel(Ret),
    Corrupt,
}

#[cold]
#[inline(never)]
pub(super) unsafe fn recv_slow(s: &'static Socket, g: u16, mut fd: c_int, iov: &[iovec], total: usize, flags: c_int, held: RxHeld<'static>) -> Ret {
    let nonblocking = s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let wait_all = flags & libc::MSG_WAITALL != 0 && !nonblocking;
    let timeout = s.receive_timeout_ns.load(Relaxed);
    let mut deadline = 0;
    let mut done = 0usize;
    // Dropped after `held`.
    let mut blocking = None;
    let mut held = Some(held);
    let finish = |done: usize, r: Ret| if done > 0 { done as Ret } else { r };
    loop {
        let h = match held.as_mut() {
            Some(h) => h,
            None => match hold_rx(s, g) {
                Ok(h) => held.insert(h),
                Err(NotHeld::Reentrant) => return finish(done, EAGAIN),
                Err(NotHeld::Changed) => {
                    if done == 0 {
                        return PASS;
                    }
                    // Only MSG_WAITALL gets here.
                    if matches!(s.state.load(Acquire), CANDIDATE | ATTACHING) {
                        // As in `send_slow`.
                        // SAFETY: the caller's buffers.
                        match candidate(s, g, fd, Side::Receive, flags, || unsafe { kernel_recv(fd, iov, done, usize::MAX, flags) }) {
                            Some(r) if r != PASS => return done as Ret + r.max(0),
                            _ => continue,
                        }
                    }
                    // SAFETY: the caller's buffers.
                    return done as Ret + unsafe { kernel_recv(fd, iov, done, usize::MAX, flags) }.max(0);
                }
            },
        };
        if s.has(flag::CORRUPT) {
            return finish(done, ECONNRESET);
        }
        let on_carrier;
        // SAFETY: the caller's buffers.
        let look = unsafe {
            match h.end.switch.plan() {
                Plan::Fast { limit } => {
                    on_carrier = false;
                    look_fast(s, h, fd, iov, if peek { 0 } else { done }, limit, flags, nonblocking)
                }
                Plan::Carrier { limit, peek_first } => {
                    on_carrier = true;
                    look_carrier(s, h, fd, iov, if peek { 0 } else { done }, limit, peek_first, flags)
                }
                Plan::Wait => {
                    on_carrier = true;
                    match h.end.switch.on_announce(load_announce(h.words)) {
                        // No answer will come from a peer that is gone.
                        Ok(false) if peer_has_ended(s, fd) => ask_carrier(s, h, fd, flags),
                        Ok(false) => Look::Empty,
                        Ok(true) => h.follow(s, true),
                        Err(_) => Look::Corrupt,
                    }
                }
            }
        };
        match look {
            Look::Again => continue,
            Look::Corrupt => return finish(done, corrupt(s, fd)),
            Look::Kernel(r) => {
                if done > 0 && r < 0 {
                    // It belongs to the next call.
                    h.end.pending_error = r as i32;
                }
                return finish(done, r);
            }
            Look::Got(n) => {
                done = if peek { n } else { done + n };
                if done >= total {
                    return done as Ret;
                }
                if !wait_all {
                    // Nor may it stop where the path changes.
                    if !peek && on_carrier == matches!(h.end.switch.plan(), Plan::Fast { .. }) {
                        continue;
                    }
                    return done as Ret;
                }
                if !peek {
                    continue;
                }
                // More than what can be peeked is wanted: looked for once a millisecond, until the stream ends.
                held = None;
                if deadline == 0 && timeout > 0 {
                    deadline = sys::now_ns().saturating_add(timeout as u64);
                }
                let mut p = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
                // SAFETY: one valid pollfd.
                let r = unsafe { sys::ppoll(&mut p, 1, 1_000_000, core::ptr::null()) };
                if r != 0 || (deadline != 0 && sys::now_ns() >= deadline) {
                    return done as Ret;
                }
                continue;
            }
            // Nothing new is waited for; what was there before, and comes again by way of the carrier, is.
            Look::Empty if s.has(flag::SHUT_RD) && h.end.switch.offset() >= h.end.read_until => return done as Ret,
            Look::Empty => {}
        }
        if nonblocking || done > 0 && !wait_all {
            return finish(done, EAGAIN);
        }
        held = None;
        if deadline == 0 && timeout > 0 {
            deadline = sys::now_ns().saturating_add(timeout as u64);
        }
        if s.has(flag::SHUT_RD) {
            // Of a socket that is shut down poll says at all times that there is something.
            sys::pause_ns(1_000_000);
        }
        match block(s, &mut blocking, &mut fd, Side::Receive, on_carrier, deadline) {
            Woke::News => {}
            Woke::Timeout => return finish(done, EAGAIN),
            Woke::Signal => {
                if let Some(r) = interrupted(timeout) {
                    return finish(done, r);
                }
            }
        }
    }
}

/// The receiver stands on the ring.
#[allow(clippy::too_many_arguments, reason = "the state of one call")]
pub(super) unsafe fn look_fast(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, iov: &[iovec], done: usize, limit: u64, flags: c_int, nonblocking: bool) -> Look {
    let peek = flags & libc::MSG_PEEK != 0;
    let Ok(mut avail) = h.end.ring.refresh() else { return Look::Corrupt };
    if avail == 0 && h.channel.wire().is_some() {
        remote::wire::progress();
        let Ok(now) = h.end.ring.refresh() else { return Look::Corrupt };
        avail = now;
    }
    if avail > 0 {
        let limit = limit.min(avail as u64) as usize;
        // SAFETY: the caller's buffers.
        return match unsafe { drain(&mut h.end.ring, iov, done, limit, peek, flags & libc::MSG_TRUNC != 0) } {
            Ok(n) if peek => Look::Got(n),
            Ok(n) => {
                if received_fast(s, h, n) {
                    Look::Got(n)
                } else {
                    Look::Corrupt
                }
            }
            Err(_) => Look::Corrupt,
        };
    }
    match h.end.switch.on_announce(load_announce(h.words)) {
        Ok(false) => {}
        Ok(true) => return h.follow(s, true),
        Err(_) => return Look::Corrupt,
    }
    let now = sys::now_ns();
    let due = nonblocking && now.wrapping_sub(h.end.carrier_asked) > ASK_CARRIER_NS;
    if !due && !s.has(flag::CARRIER_SPOKE) {
        return Look::Empty;
    }
    h.end.carrier_asked = now;
    ask_carrier(s, h, fd, flags)
}

/// The ring is empty: has the carrier ended, or is the stream to go on there?
#[cold]
pub(super) fn ask_carrier(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, flags: c_int) -> Look {
    // Lowered before the question, so that what is said after it raises the flag again.
    s.lower(flag::CARRIER_SPOKE);
    let ev = sys::poll_now(fd, libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI);
    if ev & (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) == 0 {
        return Look::Empty;
    }
    s.raise(flag::CARRIER_SPOKE);
    let mut byte = 0u8;
    // SAFETY: one byte of ours. A pending error is reported, and so taken, by this.
    let r = unsafe { sys::recvfrom(fd, &mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT, core::ptr::null_mut(), core::ptr::null_mut()) };
    if r == EAGAIN {
        return Look::Empty;
    }
    if r > 0 {
        return match h.end.switch.on_carrier_readable(load_announce(h.words)) {
            Ok(changed) => h.follow(s, changed),
            Err(_) => Look::Corrupt,
        };
    }
    carrier_ended(s, h, r, flags)
}

/// The carrier said that it ended (0) or failed (`-errno`).
#[cold]
pub(super) fn carrier_ended(s: &Socket, h: &mut RxHeld<'_>, r: Ret, flags: c_int) -> Look {
    if r == 0 && s.has(flag::SHUT_RD) && !peer_has_ended(s, s.fd.load(Acquire)) {
        // Our own doing: nothing is there now, and nothing new is waited for.
        return if h.end.switch.offset() < h.end.read_until { Look::Empty } else { Look::Kernel(0) };
    }
    let latest = load_announce(h.words);
    if r != 0 {
        // The kernel reports an error once; it belongs behind the ring's bytes.
        h.end.pending_error = r as i32;
    }
    let Ok(left) = h.end.ring.refresh() else { return Look::Corrupt };
    match h.end.switch.on_carrier_eof(latest, left == 0) {
        Ok(EofVerdict::Eof) => {
            let mut r = h.end.pending_error as Ret;
            let ours = r == -(libc::ENOTCONN as Ret) && is_broken(s);
            if ours {
                // Our own doing.
                r = if s.has(flag::TOLD) { 0 } else { ECONNRESET };
            }
            if flags & libc::MSG_PEEK == 0 {
                h.end.pending_error = 0;
                if ours {
                    s.raise(flag::TOLD);
                }
            }
            Look::Kernel(r)
        }
        Ok(EofVerdict::Truncated) if s.has(flag::TOLD | flag::SHUT_RD) || (r == 0 && error_was_taken(s, h)) => Look::Kernel(0),
        Ok(EofVerdict::Truncated) => {
            if flags & libc::MSG_PEEK == 0 {
                h.end.pending_error = 0;
                s.raise(flag::TOLD);
            }
            Look::Kernel(ECONNRESET)
        }
        Ok(EofVerdict::DrainFastFirst) => Look::Again,
        Ok(EofVerdict::SkipThenDrain { skip }) => {
            if h.skip(skip).is_ok() {
                Look::Again
            } else {
                Look::Corrupt
            }
        }
        Ok(EofVerdict::FollowAnnounce) => h.follow(s, true),
        Err(_) => Look::Corrupt,
    }
}

/// The carrier was reset, and the application has heard of that elsewhere (SO_ERROR).
fn error_was_taken(s: &Socket, h: &RxHeld<'_>) -> bool {
    let gone = h.channel.wire().is_some_and(|w| w.slot(h.slot).leave.load(SeqCst) & parting::GONE != 0);
    !gone && !s.has(flag::SHUT_WR | flag::BROKEN_OFF) && socket::is_closed(s.fd.load(Acquire))
}

/// The receiver stands on the carrier.
#[allow(clippy::too_many_arguments, reason = "the state of one call")]
pub(super) unsafe fn look_carrier(s: &Socket, h: &mut RxHeld<'_>, fd: c_int, iov: &[iovec], done: usize, limit: u64, peek_first: bool, flags: c_int) -> Look {
    if h.end.pending_error != 0 {
        return carrier_ended(s, h, 0, flags);
    }
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    let mut max = limit.min(isize::MAX as u64) as usize;
    if peek_first {
        // SAFETY: the caller's buffers: peeked bytes are overwritten by the same bytes when they are taken.
        let r = unsafe { kernel_recv(fd, iov, done, max, flags | libc::MSG_PEEK) };
        if r <= 0 {
            return carrier_end(s, h, r, flags);
        }
        match h.end.switch.after_peek(r as u64, load_announce(h.words)) {
            Ok(0) => {
                h.settled(s);
                return Look::Again;
            }
            Ok(n) => {
                if h.end.switch.epoch() as u64 != h.words.quiet[quiet::ACK].load(Relaxed) & 0xffff_ffff {
                    h.settled(s);
                }
                max = n as usize;
            }
            Err(_) => return Look::Corrupt,
        }
        if flags & libc::MSG_PEEK != 0 {
            return Look::Got(max);
        }
    }
    // SAFETY: the caller's buffers.
    let r = unsafe { kernel_recv(fd, iov, done, max, flags) };
    if r <= 0 {
        return carrier_end(s, h, r, flags);
    }
    if flags & libc::MSG_PEEK != 0 {
        return Look::Got(r as usize);
    }
    if let Some(rec) = s.record() {
        rec.add_rx(Path::Tcp, r as u64);
    }
    match h.end.switch.on_delivered(r as u64) {
        Ok(changed) => {
            if changed {
                h.settled(s);
            }
            Look::Got(r as usize)
        }
        Err(_) => Look::Corrupt,
    }
}

/// The carrier had no byte: nothing yet (`r` is EAGAIN), its end (0), or an error.
pub(super) fn carrier_end(s: &Socket, h: &mut RxHeld<'_>, r: Ret, flags: c_int) -> Look {
    if matches!(-r as i32, libc::EFAULT | libc::EINTR | libc::ENOMEM | libc::EINVAL) {
        return Look::Kernel(r);
    }
    if r != EAGAIN {
        return carrier_ended(s, h, r, flags);
    }
    match h.end.switch.on_announce(load_announce(h.words)) {
        Ok(false) => Look::Empty,
        Ok(true) => h.follow(s, true),
        Err(_) => Look::Corrupt,
    }
}

/// One kernel receive of at most `max` bytes into what comes after byte `done` of `iov`.
pub(super) unsafe fn kernel_recv(fd: c_int, iov: &[iovec], done: usize, max: usize, flags: c_int) -> Ret {
    let mut skip = done;
    for (i, v) in iov.iter().enumerate() {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let rest = iov.get(i..).unwrap_or(&[]);
        if skip == 0 && rest.len() > 1 && rest.iter().map(|v| v.iov_len).fold(0, usize::saturating_add) <= max {
            // All of them: a read that falls short says that nothing is left (epoll(7)).
            // SAFETY: the caller's buffers.
            return unsafe { sys::recvmsg(fd, &mut header_of(rest), flags) };
        }
        let len = (v.iov_len - skip).min(max);
        // SAFETY: within the caller's buffer. What stops at `max` is looked for again.
        return unsafe { sys::recvfrom(fd, v.iov_base.cast::<u8>().add(skip), len, flags, core::ptr::null_mut(), core::ptr::null_mut()) };
    }
    0
}
