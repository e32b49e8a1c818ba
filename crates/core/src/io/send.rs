//! Sending on an attached connection.

use super::*;

/// Copies what fits of `iov`, of which `done` bytes are already sent, into the ring. Returns how many.
#[inline]
pub(super) unsafe fn fill(ring: &mut Producer, iov: &[iovec], done: usize) -> Result<usize, PeerCorrupt> {
    let mut skip = done;
    let mut n = 0;
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = v.iov_len - skip;
        // SAFETY: within the caller's buffer.
        let put = unsafe { ring.write(v.iov_base.cast::<u8>().add(skip), len)? };
        n += put;
        if put < len {
            break;
        }
        skip = 0;
    }
    Ok(n)
}

pub(super) fn total_len(iov: &[iovec]) -> Option<usize> {
    let mut total = 0usize;
    for v in iov {
        total = total.checked_add(v.iov_len).filter(|t| *t <= isize::MAX as usize)?;
        if v.iov_len != 0 && (v.iov_base as usize) < LOWEST_ADDRESS {
            return None;
        }
    }
    Some(total)
}

/// Between hosts: the connection was broken off. What the carrier says of itself does not count any more.
pub(super) fn is_broken(s: &Socket) -> bool {
    s.has(flag::BROKEN_OFF | flag::CORRUPT) && s.has(flag::REMOTE)
}

/// A send on such a connection: the error once, if nobody was told, then as on any that is over (send(2)).
#[cold]
pub(super) fn send_broken(s: &Socket, flags: c_int) -> Ret {
    if s.flags.fetch_or(flag::TOLD, AcqRel) & flag::TOLD == 0 {
        return ECONNRESET;
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise(libc::SIGPIPE);
    }
    -(libc::EPIPE as Ret)
}

/// A send that only the kernel can carry out, by a forked child or of something that a ring cannot take: once nothing waits to go before it.
/// [`PASS`], or the call's result.
#[cold]
pub(super) fn leave_to_send(s: &'static Socket, g: u16, fd: c_int, flags: c_int, why: Reason) -> Ret {
    let nonblocking = s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    if s.has(flag::REMOTE) {
        return match await_carrier(s, g, fd, why, s.send_timeout_ns.load(Relaxed), nonblocking) {
            Ok(()) if s.generation16() == g && s.is(ATTACHED) && is_broken(s) => send_broken(s, flags),
            Ok(()) => PASS,
            Err(r) => r,
        };
    }
    let mut patience = Patience::of(&s.send_timeout_ns);
    loop {
        let _ = to_kernel(s, g, fd, why, false);
        if !is_resending(s, g) {
            return PASS;
        }
        if nonblocking {
            return EAGAIN;
        }
        if let Some(r) = patience.wait(fd, libc::POLLOUT, -1) {
            return r;
        }
    }
}

#[inline]
pub(super) unsafe fn send_attached(s: &'static Socket, g: u16, fd: c_int, iov: &[iovec], flags: c_int) -> Ret {
    let total = match iov {
        [one] if one.iov_base as usize >= LOWEST_ADDRESS && one.iov_len <= isize::MAX as usize => one.iov_len,
        _ => match total_len(iov) {
            Some(t) => t,
            None => return -(libc::EFAULT as Ret),
        },
    };
    if s.is_inherited() {
        // The sending direction is the carrier's from here on, whatever becomes of the other.
        return leave_to_send(s, g, fd, flags, Reason::InheritedByFork);
    }
    let mut held = match hold_tx(s, g) {
        Ok(h) => h,
        Err(NotHeld::Reentrant) => return EAGAIN,
        Err(NotHeld::Changed) => return PASS,
    };
    let plain = flags & !SEND_FLAGS == 0 && s.flags.load(Acquire) & (flag::SHUT_WR | flag::CARRIER_SPOKE | flag::CORRUPT | flag::BROKEN_OFF) == 0;
    if plain && held.end.switch.state() == TxState::Fast && held.end.test_switch == 0 && total > 0 {
        // SAFETY: the caller's buffers.
        let n = match unsafe { fill(&mut held.end.ring, iov, 0) } {
            Ok(n) => n,
            Err(_) => return corrupt(s, fd),
        };
        if n > 0 {
            sent_fast(s, &mut held, n);
            if n == total {
                return n as Ret;
            }
        }
        // SAFETY: the caller's buffers.
        return unsafe { send_slow(s, g, fd, iov, total, n, flags, held) };
    }
    // SAFETY: the caller's buffers.
    unsafe { send_slow(s, g, fd, iov, total, 0, flags, held) }
}

#[inline]
pub(super) fn sent_fast(s: &Socket, held: &mut TxHeld<'_>, n: usize) {
    held.end.ring.publish();
    let _ = held.end.switch.on_accepted(n as u64);
    held.notify();
    if let Some(r) = s.record()
        && let Some(w) = r.tx_bytes.get(held.channel.path() as usize)
    {
        bump(w, n as u64);
    }
}

/// Sends on, from byte `done`: promotes, waits for room, or goes through the kernel.
#[cold]
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "the state of one call, handed on once")]
pub(super) unsafe fn send_slow(
    s: &'static Socket,
    g: u16,
    mut fd: c_int,
    iov: &[iovec],
    total: usize,
    mut done: usize,
    flags: c_int,
    held: TxHeld<'static>,
) -> Ret {
    let nonblocking = s.has(flag::NONBLOCK) || flags & libc::MSG_DONTWAIT != 0;
    let timeout = s.send_timeout_ns.load(Relaxed);
    let mut deadline = 0;
    // Dropped after `held`.
    let mut blocking = None;
    let mut held = Some(held);
    let finish = |done: usize, r: Ret| if done > 0 { done as Ret } else { r };
    loop {
        let h = match held.as_mut() {
            Some(h) => h,
            None => match hold_tx(s, g) {
                Ok(h) => held.insert(h),
                Err(NotHeld::Reentrant) => return finish(done, EAGAIN),
                Err(NotHeld::Changed) => {
                    // Plain meanwhile: the kernel takes the rest.
                    if done == 0 {
                        return PASS;
                    }
                    if !nonblocking && matches!(s.state.load(Acquire), CANDIDATE | ATTACHING) {
                        // Between hosts: on TCP for a while, where its bytes are counted.
                        // SAFETY: the caller's buffers.
                        match candidate(s, g, fd, Side::Send, flags, || unsafe { kernel_send(fd, iov, done, flags) }) {
                            Some(r) if r != PASS => return done as Ret + r.max(0),
                            _ => continue,
                        }
                    }
                    // SAFETY: the caller's buffers.
                    let r = if nonblocking { 0 } else { unsafe { kernel_send(fd, iov, done, flags) } };
                    return done as Ret + r.max(0);
                }
            },
        };
        if s.has(flag::CORRUPT) {
            return finish(done, ECONNRESET);
        }
        if is_broken(s) {
            return if done > 0 { done as Ret } else { send_broken(s, flags) };
        }
        test_switch_tx(s, h);
        if flags & libc::MSG_OOB != 0 && !h.end.never {
            // The receiver's urgent byte stands outside of the bytes that it reads: offsets would no longer agree.
            h.end.never = true;
            s.set_reason(Reason::UrgentData);
        }
        if h.end.switch.state() == TxState::Fast {
            if s.has(flag::SHUT_WR) && h.channel.wire().is_some() {
                if done == 0 && flags & libc::MSG_NOSIGNAL == 0 {
                    sys::raise(libc::SIGPIPE);
                }
                return finish(done, -(libc::EPIPE as Ret));
            }
            let odd = flags & !SEND_FLAGS != 0 || s.has(flag::SHUT_WR);
            let going = peer_is_going(s, h, fd);
            if (odd || going) && h.channel.wire().is_some() {
                held = None;
                if going {
                    // It has not left in order, so it is gone: the kernel says how. No byte may follow where some are missing.
                    let _ = sys::shutdown(fd, libc::SHUT_RDWR);
                    // SAFETY: the caller's buffers.
                    return finish(done, unsafe { kernel_send(fd, iov, done, flags) });
                }
                match await_carrier(s, g, fd, Reason::SocketOption, s.send_timeout_ns.load(Relaxed), nonblocking) {
                    Ok(()) => continue,
                    Err(r) => return finish(done, r),
                }
            }
            if odd || going {
                demote_tx(s, h, !odd);
                continue;
            }
            if total == 0 {
                return 0;
            }
            // SAFETY: the caller's buffers.
            match unsafe { fill(&mut h.end.ring, iov, done) } {
                Ok(0) => {}
                Ok(n) => {
                    sent_fast(s, h, n);
                    done += n;
                    if done == total {
                        return done as Ret;
                    }
                    if !nonblocking {
                        continue;
                    }
                }
                Err(_) => return finish(done, corrupt(s, fd)),
            }
            match h.end.ring.want_space(1) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) => return finish(done, corrupt(s, fd)),
            }
            if nonblocking {
                return finish(done, EAGAIN);
            }
        } else if h.end.switch.state() == TxState::Carrier {
            if promote(s, h, fd, flags) {
                continue;
            }
            if !may_use_carrier(h) && (total > 0 || flags & libc::MSG_OOB != 0) {
                // The peer has not heard yet that the stream goes on there.
                h.channel.ask_to_leave(h.slot, Reason::RdmaLost, true);
                held = None;
                if nonblocking {
                    return finish(done, EAGAIN);
                }
                if timeout > 0 {
                    if deadline == 0 {
                        deadline = sys::now_ns().saturating_add(timeout as u64);
                    }
                    if sys::now_ns() >= deadline {
                        return finish(done, EAGAIN);
                    }
                }
                if await_departure(s, g) == Woke::Signal
                    && let Some(r) = interrupted(timeout)
                {
                    return finish(done, r);
                }
                continue;
            }
            // SAFETY: the caller's buffers.
            let r = unsafe { kernel_send(fd, iov, done, flags | libc::MSG_DONTWAIT) };
            if r >= 0 {
                let _ = h.end.switch.on_accepted(r as u64);
                if let Some(rec) = s.record() {
                    rec.add_tx(Path::Tcp, r as u64);
                }
                done += r as usize;
                if done >= total || nonblocking {
                    return done as Ret;
                }
                continue;
            }
            if r != EAGAIN || nonblocking {
                return finish(done, r);
            }
        } else if h.end.switch.state() == TxState::Shut {
            if done > 0 {
                return done as Ret;
            }
            // SAFETY: the caller's buffers; the kernel answers EPIPE and sends SIGPIPE as it must.
            return unsafe { kernel_send(fd, iov, done, flags) };
        } else if s.has(flag::SHUT_WR) {
            // Shut down, but bytes still go before the FIN: the kernel cannot say it yet.
            if done == 0 && flags & libc::MSG_NOSIGNAL == 0 {
                sys::raise(libc::SIGPIPE);
            }
            return finish(done, -(libc::EPIPE as Ret));
        } else if may_use_carrier(h) && send_again(s, h, fd) != EAGAIN {
            continue;
        } else if nonblocking {
            return finish(done, EAGAIN);
        }
        // Wait for room.
        let on_carrier = h.end.switch.state() != TxState::Fast;
        held = None;
        if deadline == 0 && timeout > 0 {
            deadline = sys::now_ns().saturating_add(timeout as u64);
        }
        match block(s, &mut blocking, &mut fd, Side::Send, on_carrier, deadline) {
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

/// One kernel send of what comes after byte `done`.
pub(super) unsafe fn kernel_send(fd: c_int, iov: &[iovec], done: usize, flags: c_int) -> Ret {
    let mut skip = done;
    for (i, v) in iov.iter().enumerate() {
        if skip >= v.iov_len && !(skip == 0 && iov.len() == 1) {
            skip -= v.iov_len;
            continue;
        }
        if skip == 0 {
            // SAFETY: all zero is a valid msghdr; the buffers are the caller's.
            return unsafe {
                let mut m: msghdr = core::mem::zeroed();
                m.msg_iov = iov.as_ptr().add(i).cast_mut();
                m.msg_iovlen = iov.len() - i;
                sys::sendmsg(fd, &m, flags)
            };
        }
        // SAFETY: within the caller's buffer.
        return unsafe { sys::sendto(fd, v.iov_base.cast::<u8>().add(skip), v.iov_len - skip, flags) };
    }
    // SAFETY: nothing to send: the kernel checks the socket's state.
    unsafe { sys::sendto(fd, core::ptr::null(), 0, flags) }
}

/// The peer closed or is closing: from here on the kernel knows best what a send means (EPIPE, ECONNRESET, or bytes to a peer that
/// only closed its sending half).
pub(super) fn peer_is_going(s: &Socket, h: &TxHeld<'_>, fd: c_int) -> bool {
    if h.words.quiet[quiet::REQUEST].load(Relaxed) & quiet::CLOSED != 0 {
        return true;
    }
    if !s.has(flag::CARRIER_SPOKE) {
        return false;
    }
    if peer_has_ended(s, fd) {
        return true;
    }
    // It said something else: the receiving side's business, who asks again when its ring is empty.
    if sys::poll_now(fd, libc::POLLIN | libc::POLLPRI) == 0 {
        s.lower(flag::CARRIER_SPOKE);
    }
    false
}

pub(super) fn demote_tx(s: &Socket, h: &mut TxHeld<'_>, for_good: bool) {
    if for_good {
        h.end.never = true;
    }
    if let Ok(a) = h.end.switch.demote() {
        publish_announce(h, a);
        show_path(s, true, Way::Carrier);
        h.notify();
    }
}

/// Between hosts: whether the peer knows that the stream goes on on the carrier.
pub(super) fn may_use_carrier(h: &TxHeld<'_>) -> bool {
    h.channel.wire().is_none_or(|w| h.end.switch.carrier_is_open(w.slot(h.slot).seen_epoch.load(SeqCst)))
}

/// Moves the sending direction onto the ring if the peer is ready for it.
pub(super) fn promote(s: &Socket, h: &mut TxHeld<'_>, fd: c_int, flags: c_int) -> bool {
    if h.end.never || flags & !SEND_FLAGS != 0 || s.has(flag::SHUT_WR) {
        return false;
    }
    if peer_is_going(s, h, fd) {
        h.end.never = true;
        return false;
    }
    let link = if h.channel.wire().is_some() { Link::Lossy } else { Link::Reliable };
    let ack = load_ack(h.words);
    if link == Link::Lossy && ack.armed && !ack.frozen {
        end_in_reset(s, h);
    }
    let Ok(a) = h.end.switch.promote(ack, link) else { return false };
    publish_announce(h, a);
    fence(SeqCst);
    h.end.ring.continue_at(h.end.switch.offset());
    match h.end.switch.confirm(load_ack(h.words)) {
        Ok(None) => {
            show_path(s, true, Way::Fast);
            true
        }
        Ok(Some(back)) => {
            publish_announce(h, back);
            false
        }
        Err(_) => false,
    }
}

/// Test aid: changes the path now and then.
pub(super) fn test_switch_tx(s: &Socket, h: &mut TxHeld<'_>) {
    if h.end.test_switch == 0 {
        return;
    }
    let between_hosts = h.channel.wire().is_some();
    // xorshift32, seeded by the variable's value: reproducible for one sequence of calls.
    let mut x = h.end.test_switch;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    h.end.test_switch = x | 1;
    if h.end.switch.state() == TxState::Fast && x.is_multiple_of(16) {
        if between_hosts {
            if x.is_multiple_of(1024) {
                h.channel.ask_to_leave(h.slot, Reason::RdmaLost, true);
            }
        } else {
            demote_tx(s, h, false);
        }
    }
}
