//! Before the agreement: calls go through the kernel and are counted; then the connection is attached.

use super::*;

/// Flags under which a candidate's bytes cannot be counted as part of the plain stream.
pub(super) const ODD_FLAGS: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// Carries out a kernel call on a candidate, and counts what it moved. `None`: it is no candidate any more: start again.
#[inline(never)]
pub(super) fn candidate(s: &'static Socket, g: u16, fd: c_int, side: Side, flags: c_int, call: impl FnOnce() -> isize) -> Option<Ret> {
    if s.generation16() != g {
        return Some(PASS);
    }
    if s.is_inherited() {
        // Its maker may be attaching it at this moment.
        return loop {
            match s.state.load(SeqCst) {
                _ if s.generation16() != g => break Some(PASS),
                CANDIDATE => socket::make_plain(s, Reason::InheritedByFork),
                ATTACHING if socket::await_attach(s) => {}
                ATTACHED => break None,
                _ => break Some(PASS),
            }
        };
    }
    if flags & ODD_FLAGS != 0 {
        socket::make_plain(s, if flags & libc::MSG_OOB != 0 { Reason::UrgentData } else { Reason::SocketOption });
        return Some(PASS);
    }
    let (inflight, bytes): (&AtomicU32, &AtomicU64) = match side {
        Side::Receive => (&s.rx_inflight, &s.rx_bytes),
        Side::Send => (&s.tx_inflight, &s.tx_bytes),
    };
    inflight.fetch_add(1, SeqCst);
    while s.state.load(SeqCst) == ATTACHING {
        inflight.fetch_sub(1, SeqCst);
        if !socket::await_attach(s) {
            return Some(EAGAIN);
        }
        inflight.fetch_add(1, SeqCst);
    }
    if !s.is(CANDIDATE) {
        inflight.fetch_sub(1, SeqCst);
        socket::recycle(s);
        return None;
    }
    let r = call();
    if r > 0 && flags & libc::MSG_PEEK == 0 {
        bytes.fetch_add(r as u64, Relaxed);
        if let Some(rec) = s.record() {
            if side == Side::Send { rec.add_tx(Path::Tcp, r as u64) } else { rec.add_rx(Path::Tcp, r as u64) }
        }
    }
    inflight.fetch_sub(1, SeqCst);
    if s.generation16() != g {
        // Closed by another thread meanwhile.
        socket::recycle(s);
        return Some(r);
    }
    if r == -(libc::EINTR as Ret) && lifecycle::threads_are_cancelled() {
        // Perhaps by libc's signal for that, from which the kernel does not restart.
        return Some(interrupted(0).unwrap_or(r));
    }
    if r > 0 {
        after_candidate_call(s, g, fd, side);
    }
    Some(r)
}

/// A candidate's calls that move bytes before its peer is told of it. An agreement costs both processes some ten microseconds,
/// which a connection of one request and one reply never gets back.
pub(super) const NOTED_AFTER: u32 = 3;

/// Where RDMA comes first, the other end may look so long for that before it turns to shared memory.
const RDMA_FIRST_NS: u64 = 30_000_000_000;

pub(super) fn after_candidate_call(s: &'static Socket, g: u16, fd: c_int, side: Side) {
    let offered = s.offered.load(Acquire);
    if offered == remote::NEVER {
        if !socket::make_local(s, g) {
            let why = Reason::ALL.get(s.verdict.load(Relaxed) as usize).copied().unwrap_or(Reason::PeerRefused);
            socket::make_plain(s, why);
        }
        return;
    }
    if offered != 0 {
        // A registration with ONESHOT may have fired: attached when it is armed again (epoll::ctl).
        if crate::epoll::may_attach(s) {
            attach(s, g, fd);
        }
        return;
    }
    let calls = s.calls.fetch_add(1, Relaxed).wrapping_add(1);
    if s.has(flag::REMOTE) {
        if calls >= NOTED_AFTER && !s.has(flag::NOTED) && syn::learn(s, fd) {
            s.raise(flag::NOTED);
            if !remote::note(s, s.generation.load(Acquire)) && !socket::make_local(s, g) {
                socket::make_plain(s, Reason::RdmaRefused);
            } else if s.has(flag::RDMA_FIRST) && !s.has(flag::CONNECTOR) {
                // It is the connector that turns to shared memory.
                service::note(s, g);
            }
        }
        return;
    }
    let mut found = !s.has(flag::CONNECTOR) || s.has(flag::PROBED);
    if calls == NOTED_AFTER {
        s.sought_at.store(sys::now_ns(), Relaxed);
    }
    if !found && side == Side::Receive {
        s.raise(flag::PROBED);
        if !service::probe_again(s) {
            socket::make_plain(s, Reason::ListenerWithoutLibrary);
            return;
        }
        found = true;
    }
    // A program that only sends gets no answer to look after: it looks after some calls.
    if !found && matches!(calls, 4 | 16 | 64) && service::probe_again(s) {
        s.raise(flag::PROBED);
    }
    if found && calls >= NOTED_AFTER && !s.has(flag::NOTED) && !service::note(s, g) {
        socket::make_plain(s, Reason::PeerRefused);
        return;
    }
    let patience = if s.has(flag::RDMA_FIRST) { RDMA_FIRST_NS } else { 1_000_000_000 };
    if calls.is_multiple_of(64) && calls >= 128 && sys::now_ns().saturating_sub(s.sought_at.load(Relaxed)) > patience {
        let why = match (s.has(flag::CONNECTOR), found) {
            (false, _) => Reason::PeerWithoutLibrary,
            (true, true) => Reason::PeerRefused,
            (true, false) => Reason::ListenerWithoutLibrary,
        };
        socket::make_plain(s, why);
    }
}

/// Both ends have agreed: from now on the rings may be used. Runs in an application thread, between two calls.
#[cold]
#[inline(never)]
pub(crate) fn attach(s: &'static Socket, g: u16, fd: c_int) {
    if s.state.compare_exchange(CANDIDATE, ATTACHING, SeqCst, Relaxed).is_err() {
        return;
    }
    s.attacher.store(lifecycle::tid(), Relaxed);
    if s.tx_inflight.load(SeqCst) != 0 || s.rx_inflight.load(SeqCst) != 0 || s.pollers.load(SeqCst) as u32 != 0 {
        // Another thread is inside the kernel with an unknown number of bytes, or waits for some there: at the end of some later call.
        end_attach(s, CANDIDATE);
        return;
    }
    // Between hosts it may be taken back as long as nobody has taken it.
    let is_remote = s.has(flag::REMOTE);
    let offered = match is_remote {
        true => s.offered.compare_exchange(remote::OFFERED, remote::TAKEN, SeqCst, Relaxed).is_ok(),
        false => s.offered.load(SeqCst) == remote::OFFERED,
    };
    if !offered {
        end_attach(s, CANDIDATE);
        return;
    }
    if is_remote && s.has(flag::RDMA_FIRST) {
        service::forget(s);
    }
    // SAFETY: `offered` was seen set (acquire) by the caller; the service thread does not write it again.
    let offer = unsafe { *s.offer.get() };
    let why = if s.generation16() != g {
        Some(Reason::Negotiating)
    } else if !children_can_follow(s) {
        Some(Reason::InheritedByFork)
    } else if s.registrations.load(Acquire) > 1 {
        Some(Reason::SeveralEpollSets)
    } else if !socket::counts_agree(s, fd) {
        Some(Reason::UncountedBytes)
    } else {
        None
    };
    // SAFETY: the service thread's channel lives while `users` counts this socket.
    let channel: &'static Channel = unsafe { &*offer.channel };
    let slot = offer.slot as usize;
    let (tx_words, rx_words) = (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let (Some(tx_ring), Some(rx_ring)) = (NonNull::new(offer.tx_ring), NonNull::new(offer.rx_ring)) else {
        refuse_offer(s, channel, Reason::NoMemory);
        return;
    };
    if let Some(why) = why {
        refuse_offer(s, channel, why);
        return;
    }
    socket::look_at_options(s, fd);
    let mut tx = Tx::new();
    let mut rx = if channel.wire().is_some() { Rx::new_over(Link::Lossy) } else { Rx::new() };
    let _ = tx.on_accepted(s.tx_bytes.load(Relaxed));
    let _ = rx.on_delivered(s.rx_bytes.load(Relaxed));
    rx.arm();
    // SAFETY: nobody holds the ends: the state is ATTACHING and no call is in flight. The words and rings live in
    // mappings that outlive the attachment; their sizes were checked by the service thread; both start at 0.
    unsafe {
        s.tx.get().write(TxEnd {
            switch: tx,
            ring: Producer::new(NonNull::from(tx_words), tx_ring, offer.tx_bytes as usize, 0),
            never: false,
            resend_mark: None,
            linger: None,
            test_switch: lifecycle::test_switch(),
        });
        s.rx.get().write(RxEnd {
            switch: rx,
            ring: Consumer::new(NonNull::from(rx_words), rx_ring, offer.rx_bytes as usize, 0),
            carrier_asked: 0,
            pending_error: 0,
            read_until: 0,
        });
    }
    s.tx_words.store((tx_words as *const RingWords).cast_mut(), Release);
    s.rx_words.store((rx_words as *const RingWords).cast_mut(), Release);
    s.channel.store(offer.channel.cast_mut(), Release);
    s.slot.store(offer.slot, Release);
    if let Some(r) = s.record() {
        r.peer_pid.store(channel.peer_pid, Relaxed);
    }
    s.lower(flag::TOLD | flag::BROKEN_OFF);
    end_attach(s, ATTACHED);
    crate::epoll::on_attached(s, fd);
    // Last: the peer may send into the ring from here on. (Unless the set had no place for it, and it went back to the kernel.)
    if let Ok(h) = hold_rx(s, g) {
        store_ack(&h);
    }
    debug_log!("fd {fd}: attached to slot {slot}, sent {} received {}", s.tx_bytes.load(Relaxed), s.rx_bytes.load(Relaxed));
}

/// The thread that attaches a connection has done so, or not.
fn end_attach(s: &Socket, state: u32) {
    s.attacher.store(0, SeqCst);
    s.state.store(state, SeqCst);
}

/// Whether a forked child that has the connection too could still use it: within the host by the memory that it inherited, which must be all
/// that the connection uses; between hosts by calling its parent.
fn children_can_follow(s: &Socket) -> bool {
    if s.has(flag::REMOTE) {
        return remote::can_be_called_back(s) && !s.has(flag::CALLED_BACK);
    }
    s.forks.load(Relaxed) == lifecycle::forks()
}

#[cold]
pub(super) fn refuse_offer(s: &'static Socket, channel: &'static Channel, why: Reason) {
    // SAFETY: as in `attach`.
    let slot = unsafe { (*s.offer.get()).slot } as usize;
    s.set_reason(why);
    end_attach(s, PLAIN);
    if channel.wire().is_none() {
        channel.words(slot, channel.side ^ 1).quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    }
    service::released(channel, slot);
}
