//! Forked children, and processes that are killed.

use super::*;

#[test]
fn a_forked_child_agrees_on_nothing_over_an_inherited_connection() {
    for (i, by_child) in
        [Message::Withdraw { token: 1 }, Message::Bye, Message::Accept { token: 1, slot: 0 }]
            .into_iter()
            .enumerate()
    {
        let (a, c, net) = both();
        let (cs, _, _tcp) = agree(a, c, &net);
        let control = channel_of(cs).control.load(Relaxed);
        assert!(in_child(|| control::send(control, sys::geteuid(), &by_child, -1) == 0));
        settle(&[a]);
        assert_eq!(a.state.lock().links[0].phase, Phase::Dead, "case {i}");
    }
}

#[test]
fn a_forked_child_may_speak_for_the_sockets_it_inherited() {
    let (a, c, net) = both();
    let (cs, as_, _tcp) = agree(a, c, &net);
    let bell = sys::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) as c_int;
    assert!(in_child(|| control::send_place(channel_of(cs), 9, bell)
        && control::send_pull_back(channel_of(cs), 0)));
    settle(&[a]);
    assert_eq!(a.state.lock().links[0].phase, Phase::Open);
    assert!(channel_of(as_).doorbells[9].load(Relaxed) >= 0);
    let _ = sys::close(bell);
}

#[test]
fn who_has_given_up_a_privilege_cannot_use_it() {
    if sys::geteuid() != 0 {
        return;
    }
    let (a, c, net) = both();
    let (cs, as_, _tcp) = agree(a, c, &net);
    let bell = sys::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) as c_int;
    assert!(in_child(|| {
        // SAFETY: setresuid(2) of the only thread.
        let r = unsafe { libc::syscall(libc::SYS_setresuid, 65533, 65533, 65533) };
        r == 0 && control::send_place(channel_of(cs), 9, bell)
    }));
    settle(&[a]);
    assert_eq!(a.state.lock().links[0].phase, Phase::Dead);
    assert_eq!(channel_of(as_).doorbells[9].load(Relaxed), -1);
    let _ = sys::close(bell);
}

/// An advert of root's is called while its maker is another effective user, who then is root again;
/// so is who calls.
#[test]
fn who_is_another_effective_user_for_a_while_is_no_impostor() {
    if sys::geteuid() != 0 {
        return;
    }
    // SAFETY: setresuid(2), of this thread alone.
    let becomes = |user: u32| unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) == 0 };
    let (a, c, net) = both();
    assert!(becomes(65533));
    let (cs, as_, _tcp) = agree(a, c, &net);
    assert!(becomes(0));
    for channel in [channel_of(cs), channel_of(as_)] {
        assert!(control::send_pull_back(channel, 0));
    }
    settle(&[a, c]);
    for service in [a, c] {
        assert_eq!(service.state.lock().links[0].phase, Phase::Open);
    }
}

#[test]
fn a_slot_in_use_stays_whatever_the_peer_writes_in_our_name() {
    let (a, c, net) = both();
    let (cs, as_, _tcp) = agree(a, c, &net);
    attach(cs);
    attach(as_);
    let (channel, slot) = (channel_of(as_), offer_of(as_).slot);
    let users = channel.users.load(Relaxed);
    for side in 0..2 {
        channel_of(cs).words(slot as usize, side).quiet[quiet::REQUEST]
            .fetch_or(quiet::CLOSED, SeqCst);
    }
    // The next offer looks for slots that both ends have left.
    let (_, as2, _tcp2) = agree(a, c, &net);
    assert_ne!(offer_of(as2).slot, slot);
    assert_eq!(channel.users.load(Relaxed), users + 1);
    assert!(core::ptr::eq(channel.sockets[slot as usize].load(Relaxed).cast(), as_));
}

#[test]
fn a_forked_child_starts_anew_and_keeps_what_it_inherited() {
    let (a, c, net) = both();
    let (cs, as_, _tcp) = agree(a, c, &net);
    attach(as_);
    let inherited = channel_of(as_);
    let slot = offer_of(as_).slot as usize;
    let (cs2, as2, _tcp2) = net.connect();
    // The child is the acceptor of the second connection, which is not looked for before the child
    // can be found.
    let (mut accepts, says_so) = std::io::pipe().unwrap();
    let work = || {
        lifecycle::fork_child();
        a.after_fork_in_child();
        let kept = a.state.lock().links[0].phase == Phase::Inherited
            && inherited.control.load(Relaxed) >= 0;
        let fresh = a.accepting(net.port()) && a.noted(as2);
        let told = (&says_so).write_all(b".").is_ok();
        let until = sys::now_ns() + LONG_NS;
        while as2.offered.is_none() && sys::now_ns() < until {
            a.turn(1_000_000);
        }
        let agreed = as2.offered.is_made();
        if agreed {
            bytes_at(offer_of(as2).tx_ring, 42);
        }
        leave(a, as_);
        // Until the parent has read it.
        while agreed && byte_at(offer_of(as2).rx_ring) != 43 && sys::now_ns() < until {
            a.turn(1_000_000);
        }
        kept && fresh && told && agreed
    };
    let ok = std::thread::scope(|scope| {
        let child = scope.spawn(|| in_child(work));
        accepts.read_exact(&mut [0]).unwrap();
        assert!(c.connect(cs2));
        let until = sys::now_ns() + LONG_NS;
        while (cs2.offered.is_none() || byte_at(offer_of(cs2).rx_ring) != 42)
            && sys::now_ns() < until
            && !child.is_finished()
        {
            c.turn(1_000_000);
        }
        bytes_at(offer_of(cs2).tx_ring, 43);
        child.join().unwrap()
    });
    assert!(ok);
    assert_ne!(offer_of(cs2).channel, offer_of(cs).channel);
    // The parent finds the slot that the child closed for good, when the peer has closed its end
    // too. (A real socket is shared with it.)
    as_.published.leave();
    attach(cs);
    leave(c, cs);
    let (_, as3, _tcp3) = agree(a, c, &net);
    assert_eq!(offer_of(as3).slot as usize, slot);
    assert_eq!(inherited.users.load(Relaxed), 1);
}

/// The ends of an attached connection on the ring, in memory that a forked child has too; five
/// bytes of the peer's are there to read.
fn on_the_ring(of: &Socket) -> &'static Socket {
    let (o, channel) = (offer_of(of), channel_of(of));
    let slot = o.slot as usize;
    let (tx_words, rx_words) =
        (channel.words(slot, channel.side), channel.words(slot, channel.side ^ 1));
    let memory = sys::map_shared(-1, size_of::<Socket>()).cast::<Socket>();
    let ack = Ack { epoch: 0, armed: true, frozen: false, consumed: 0 };
    let (mut tx, mut rx) = (Tx::new(), Rx::new());
    let promoted = tx.promote(ack, Delivery::Reliable).unwrap();
    assert_eq!(tx.confirm(ack), Ok(None));
    assert!(rx.arm() && rx.on_announce(promoted).unwrap());
    let at = |bytes: *mut u8| NonNull::new(bytes).unwrap();
    // SAFETY: fresh zeroed memory is a valid Socket; the words and rings are the channel's, and
    // nobody else uses them.
    unsafe {
        let s = &*memory;
        s.offer.get().write(o);
        s.tx.get().write(TxEnd {
            switch: tx,
            ring: Producer::new(NonNull::from(tx_words), at(o.tx_ring), o.tx_bytes as usize, 0),
            never: false,
            held_since: 0,
            unsettled: false,
            resend_mark: None,
            linger: None,
            probed: None,
            told_left: false,
            paused: false,
            switches: crate::inject::Switches::new(),
        });
        s.rx.get().write(RxEnd {
            switch: rx,
            ring: Consumer::new(NonNull::from(rx_words), at(o.rx_ring), o.rx_bytes as usize, 0),
            unsettled: false,
            carrier_asked: 0,
            pending_error: 0,
            read_until: 0,
            shut_at: None,
            asked_back: false,
            resets: false,
            paused: false,
            never: false,
            frozen_at: 0,
        });
        let mut peer =
            Producer::new(NonNull::from(rx_words), at(o.rx_ring), o.rx_bytes as usize, 0);
        assert_eq!(peer.write(b"hello".as_ptr(), 5), Ok(5));
        let _ = peer.publish();
        // (The peer promotes at offset 0, as this end does.)
        rx_words.producer_user[crate::channel::announce::EPOCH].store(1, Release);
        s.owner.store(process::id(), Relaxed);
        s.fd.store(-1, Relaxed);
        s.tx_words.store(core::ptr::from_ref(tx_words).cast_mut(), Relaxed);
        s.rx_words.store(core::ptr::from_ref(rx_words).cast_mut(), Relaxed);
        s.tx_fast.store(core::ptr::from_ref(tx_words).cast_mut(), Relaxed);
        s.rx_fast.store(core::ptr::from_ref(rx_words).cast_mut(), Relaxed);
        s.slot.store(o.slot, Relaxed);
        s.channel.store(o.channel.cast_mut(), Relaxed);
        s.state.begin_as(socket::State::Attached);
        s
    }
}

#[test]
fn what_a_killed_holder_of_the_ends_left_half_done_is_made_whole() {
    let (a, c, net) = both();
    let (cs, _, carriers) = agree(a, c, &net);
    let s = on_the_ring(cs);
    let words = |side| channel_of(cs).words(offer_of(cs).slot as usize, side);
    // A child has both ends; it ends between writing and publishing, and between reading and giving
    // back.
    assert!(in_child(|| {
        lifecycle::fork_child();
        let locks = (crate::lock::lock_end(&s.tx_lock), crate::lock::lock_end(&s.rx_lock));
        let taken = locks.0.is_some() && locks.1.is_some();
        core::mem::forget(locks);
        let mut read = [0u8; 3];
        // SAFETY: the locks are held.
        let (written, got) = unsafe {
            (
                (*s.tx.get()).ring.write(b"abcd".as_ptr(), 4),
                (*s.rx.get()).ring.read(read.as_mut_ptr(), 3),
            )
        };
        taken && written == Ok(4) && got == Ok(3) && read == *b"hel"
    }));
    let side = channel_of(cs).side;
    assert_eq!((words(side).tail.load(Relaxed), words(side ^ 1).head.load(Relaxed)), (0, 0));
    crate::io::send_held(s, 0);
    assert_eq!(crate::io::unread(s, 0, carriers.0.as_raw_fd()), Some(2));
    // SAFETY: nobody else uses the ends.
    let (tx, rx) = unsafe { (&*s.tx.get(), &*s.rx.get()) };
    assert_eq!((tx.switch.offset(), words(side).tail.load(Relaxed), tx.never), (4, 4, true));
    assert_eq!((rx.switch.offset(), words(side ^ 1).head.load(Relaxed)), (3, 3));
    assert_eq!((s.tx_lock.owner(), s.rx_lock.owner()), (0, 0));
}

#[test]
fn the_thread_does_it_by_itself() {
    static THREADED: Service = Service::new(true);
    crate::testing::init();
    let net = Net::new();
    assert!(THREADED.accepting(net.port()));
    let pairs: Vec<_> = (0..20).map(|_| net.connect()).collect();
    for (cs, as_, _) in &pairs {
        assert!(THREADED.connect(cs) && THREADED.noted(as_));
    }
    let until = sys::now_ns() + LONG_NS;
    while sys::now_ns() < until
        && pairs.iter().any(|(cs, as_, _)| cs.offered.word() + as_.offered.word() != 2)
    {
        std::thread::sleep(core::time::Duration::from_millis(1));
    }
    for (cs, as_, _) in &pairs {
        assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
    }
}

#[test]
fn what_keeps_the_thread_from_running_is_the_reason() {
    let s = service();
    assert_eq!(s.hindrance(), None, "nothing has");
    s.not_started.store(Reason::NoDescriptor as u32, Relaxed);
    assert_eq!(s.hindrance(), Some(Reason::NoDescriptor));
    s.running.store(process::id(), Release);
    assert_eq!(s.hindrance(), None, "it runs");
}

/// A handler that was set by a raw system call has interrupted a thread that has the lock.
#[test]
fn who_has_the_lock_already_does_not_wait_for_itself() {
    let service = service();
    let held = service.hold();
    assert_eq!(service.with(|_| ()), None);
    assert!(!service.start());
    drop(held);
    assert_eq!(service.with(|_| ()), Some(()));
}
