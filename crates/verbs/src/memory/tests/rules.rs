//! What verbs promise and refuse.

use super::*;

#[test]
fn writes_are_there_when_their_announcement_is_polled() {
    for model in MODELS {
        let (_net, a, b) = ends(Order::Prompt, model);
        let (pa, pb) = connect(&a, &b, CAPACITY, 4);
        a.fill(0, b"forty-two");
        a.host.post(&pa, &[write(1, a.piece(0, 9), b.to(100)), send(2, b"9 bytes")]).unwrap();
        assert_eq!(b.outcomes(), [(1000, Outcome::Received(7))]);
        assert_eq!(
            (b.bytes(100, 9), b.bytes(RECEIVES, 7)),
            (b"forty-two".to_vec(), b"9 bytes".to_vec())
        );
        assert_eq!(a.outcomes(), [(1, Outcome::Written), (2, Outcome::Sent)]);
        if model.writes_imm {
            a.host.post(&pa, &[write_imm(3, a.piece(0, 9), b.to(200), 0xdead_beef)]).unwrap();
            assert_eq!(b.outcomes(), [(1001, Outcome::Announced(0xdead_beef))]);
            assert_eq!(b.bytes(200, 9), b"forty-two");
            assert_eq!(a.outcomes(), [(3, Outcome::Written)]);
        }
        finish(a, b, vec![pa], vec![pb]);
    }
}

#[test]
fn inline_bytes_are_copied_at_once_and_others_later() {
    let (net, a, b) = ends(Order::Prompt, Model::ROCE);
    let (pa, pb) = connect(&a, &b, CAPACITY, 4);
    net.cut(&a.host, true);
    a.fill(0, b"early");
    let inline = Action::Write { from: Some(a.piece(0, 5)), to: b.to(0), inline: true };
    a.host.post(&pa, &[Work { id: 1, action: inline, signaled: true }]).unwrap();
    a.host.post(&pa, &[write(2, a.piece(0, 5), b.to(10))]).unwrap();
    a.fill(0, b"late!");
    net.cut(&a.host, false);
    assert_eq!(a.outcomes(), [(1, Outcome::Written), (2, Outcome::Written)]);
    assert_eq!(b.bytes(0, 5), b"early");
    assert_eq!(b.bytes(10, 5), b"late!");
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn a_message_without_a_receive_waits_or_breaks_the_connection() {
    let (_net, a, b) = ends(Order::Prompt, Model::ROCE);
    let (pa, pb) = connect(&a, &b, CAPACITY, 0);
    a.fill(0, b"x");
    a.host
        .post(&pa, &[write_imm(1, a.piece(0, 1), b.to(0), 7), write(2, a.piece(0, 1), b.to(1))])
        .unwrap();
    assert_eq!(a.outcomes(), []);
    assert_eq!(b.bytes(1, 1), [0], "a later write has passed a waiting one");
    post_receives(&b, &pb, 1);
    assert_eq!(b.outcomes(), [(1000, Outcome::Announced(7))]);
    assert_eq!(a.outcomes(), [(1, Outcome::Written), (2, Outcome::Written)]);
    finish(a, b, vec![pa], vec![pb]);

    for model in [Model::SIW, Model::ERDMA] {
        let (_net, a, b) = ends(Order::Prompt, model);
        let (pa, pb) = connect(&a, &b, CAPACITY, 0);
        a.host.post(&pa, &[send(1, b"lost")]).unwrap();
        // It was sent, as far as its sender can tell.
        assert_eq!(a.outcomes(), [(1, Outcome::Sent)]);
        for end in [&a, &b] {
            assert!(matches!(end.news(), Some(Event { news: News::Disconnected, .. })));
        }
        a.host.post(&pa, &[send(2, b"later")]).unwrap();
        assert_eq!(a.outcomes(), [], "what is posted in error is not heard of again");
        assert_eq!(b.host.next_fault(&b.device), Ok(Some(Fault::PairLost)));
        finish(a, b, vec![pa], vec![pb]);
    }
}

/// A write that the peer must not allow: nothing changes there, and both ends are broken.
fn refused(model: Model, attack: impl Fn(&End, &Remote) -> (Remote, usize)) {
    let (_net, a, b) = ends(Order::Prompt, model);
    let (pa, pb) = connect(&a, &b, CAPACITY, 2);
    a.fill(0, &[0xff; 64]);
    let (to, bytes) = attack(&b, &b.to(0));
    a.host.post(&pa, &[write(1, a.piece(0, bytes), to), write(2, a.piece(0, 1), b.to(0))]).unwrap();
    let outcomes = sends(a.outcomes());
    if model.transport == Transport::Infiniband {
        let refused = (1, Outcome::Failed(Failure::RemoteAccess));
        assert_eq!(outcomes, [refused, (2, Outcome::Failed(Failure::Flushed))]);
    } else {
        assert_eq!(outcomes[0], (1, Outcome::Written), "iWARP's sender hears of it later");
    }
    assert_eq!(b.bytes(0, BYTES), [0; BYTES]);
    let flushed = Outcome::Failed(Failure::Flushed);
    assert_eq!(b.outcomes(), [(1000, flushed), (1001, flushed)]);
    assert_eq!(b.host.next_fault(&b.device), Ok(Some(Fault::PairLost)));
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn writes_need_the_key_and_stay_inside_of_the_region() {
    for model in MODELS {
        refused(model, |_, r| (Remote { key: r.key ^ 1, ..*r }, 8));
        refused(model, |_, r| (Remote { address: r.address - 1, ..*r }, 8));
        refused(model, |_, r| (Remote { address: r.address + BYTES as u64 - 7, ..*r }, 8));
        refused(model, |_, r| (Remote { address: u64::MAX - 3, ..*r }, 8));
        refused(model, |b, r| {
            // The key of a region that is closed.
            let at = NonNull::new(b.memory.cast()).unwrap();
            // SAFETY: the end's own memory, for a moment.
            let region =
                unsafe { b.host.register(&b.domain, at, 64, Access::RemoteWrite) }.unwrap();
            let key = b.host.remote(&region).key;
            b.host.close_region(region).unwrap();
            (Remote { key, ..*r }, 8)
        });
    }
}

#[test]
fn writes_need_a_writable_region_of_the_same_domain() {
    for access in [Access::Local, Access::Receive, Access::RemoteWrite] {
        for other in [false, true] {
            let (_net, a, b) = ends(Order::Prompt, Model::ROCE);
            let (pa, pb) = connect(&a, &b, CAPACITY, 2);
            let domain = b.host.open_domain(&b.device).unwrap();
            let on = if other { &domain } else { &b.domain };
            let mut memory = Box::new([0u8; 64]);
            let at = NonNull::from(&mut *memory).cast();
            // SAFETY: the box outlives the region, and is not used before that is closed.
            let region = unsafe { b.host.register(on, at, 64, access) }.unwrap();
            a.host.post(&pa, &[write(1, a.piece(0, 8), b.host.remote(&region))]).unwrap();
            let fine = access == Access::RemoteWrite && !other;
            let outcome =
                if fine { Outcome::Written } else { Outcome::Failed(Failure::RemoteAccess) };
            assert_eq!(sends(a.outcomes()), [(1, outcome)], "{access:?}, another domain: {other}");
            b.host.close_region(region).unwrap();
            b.host.close_domain(domain).unwrap();
            finish(a, b, vec![pa], vec![pb]);
        }
    }
}

#[test]
fn our_own_memory_must_still_be_registered_when_it_is_read() {
    for model in MODELS {
        let (net, a, b) = ends(Order::Prompt, model);
        let (pa, pb) = connect(&a, &b, CAPACITY, 2);
        if model.transport == Transport::Infiniband {
            net.cut(&a.host, true);
        }
        let at = NonNull::new(a.memory.cast()).unwrap();
        // SAFETY: the end's own memory, for a moment.
        let region = unsafe { a.host.register(&a.domain, at, 64, Access::Local) }.unwrap();
        let piece = Piece { region: &region, offset: 0, bytes: 8 };
        a.host.post(&pa, &[write(1, piece, b.to(0))]).unwrap();
        a.host.close_region(region).unwrap();
        net.cut(&a.host, false);
        let expected = match model.transport {
            Transport::Infiniband => Outcome::Failed(Failure::Local),
            // It was on the wire at once.
            _ => Outcome::Written,
        };
        assert_eq!(sends(a.outcomes()), [(1, expected)]);
        finish(a, b, vec![pa], vec![pb]);
    }
}

#[test]
fn a_message_longer_than_the_receive_breaks_both_ends() {
    let (_net, a, b) = ends(Order::Prompt, Model::ROCE);
    let (pa, pb) = connect(&a, &b, CAPACITY, 0);
    b.host.post_receives(&pb, &[Receive { id: 1, into: Some(b.piece(0, 4)) }]).unwrap();
    a.host.post(&pa, &[send(1, b"five!")]).unwrap();
    assert_eq!(a.outcomes(), [(1, Outcome::Failed(Failure::RemoteOther))]);
    assert_eq!(b.outcomes(), [(1, Outcome::Failed(Failure::Length))]);
    assert_eq!(b.bytes(0, 8), [0; 8]);
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn slots_of_the_send_queue_are_free_when_a_signaled_completion_was_polled() {
    let (_net, a, b) = ends(Order::Prompt, Model::ROCE);
    let (pa, pb) = connect(&a, &b, Capacity { sends: 4, ..CAPACITY }, 0);
    let quiet = Work { signaled: false, ..write(1, a.piece(0, 1), b.to(0)) };
    for _ in 0..3 {
        a.host.post(&pa, &[quiet]).unwrap();
    }
    a.host.post(&pa, &[write(2, a.piece(0, 1), b.to(0))]).unwrap();
    // All are done, but nobody has polled.
    let error = a.host.post(&pa, &[quiet]).unwrap_err();
    assert_eq!((error.posted, error.errno, error.unknown), (0, libc::ENOMEM, false));
    assert_eq!(a.outcomes(), [(2, Outcome::Written)]);
    // Unsignaled ones alone are stuck for ever.
    let error = a.host.post(&pa, &[quiet; 5]).unwrap_err();
    assert_eq!((error.posted, error.errno), (4, libc::ENOMEM));
    assert_eq!(a.outcomes(), []);
    assert!(a.host.post(&pa, &[quiet]).is_err());
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn the_window_keeps_a_send_queue_usable() {
    for model in MODELS {
        let (_net, a, b) = ends(Order::Shuffled(3), model);
        let (pa, pb) = connect(&a, &b, Capacity { sends: 8, ..CAPACITY }, 0);
        let mut window = crate::window::Window::new(8);
        let mut left = 1000u32;
        while left > 0 {
            let count = left.min(3);
            if window.room() < count {
                for c in a.polled() {
                    window.completed(c.id as u32);
                }
                continue;
            }
            let (last, signaled) = window.next(count);
            let work = Work { signaled: false, ..write(0, a.piece(0, 1), b.to(0)) };
            let mut works = vec![work; count as usize];
            let of_last = works.last_mut().unwrap();
            (of_last.id, of_last.signaled) = (u64::from(last), signaled);
            a.host.post(&pa, &works).unwrap();
            window.posted(count, signaled);
            left -= count;
        }
        finish(a, b, vec![pa], vec![pb]);
    }
}

#[test]
fn receive_queues_are_bounded_too() {
    let (_net, a, b) = ends(Order::Prompt, Model::ROCE);
    let (pa, pb) = connect(&a, &b, Capacity { receives: 4, ..CAPACITY }, 4);
    let one = [Receive { id: 0, into: None }];
    assert_eq!(b.host.post_receives(&pb, &one).unwrap_err().errno, libc::ENOMEM);
    a.host.post(&pa, &[write_imm(1, a.piece(0, 1), b.to(0), 0)]).unwrap();
    assert_eq!(
        b.host.post_receives(&pb, &one).unwrap_err().errno,
        libc::ENOMEM,
        "freed before it was polled"
    );
    assert_eq!(b.outcomes().len(), 1);
    b.host.post_receives(&pb, &one).unwrap();
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn an_overflowing_queue_takes_its_pairs_with_it() {
    let net = Net::new(Order::Prompt);
    let a = End::new(&net, A, Model::ROCE);
    let b = End::on(net.host(B, Model::ROCE), B, 3);
    let (pa, pb) = connect(&a, &b, CAPACITY, 8);
    let work = write_imm(1, a.piece(0, 1), b.to(0), 5);
    a.host.post(&pa, &[work; 3]).unwrap();
    assert!(!readable(b.host.device_fd(&b.device)));
    a.host.post(&pa, &[work]).unwrap();
    assert!(readable(b.host.device_fd(&b.device)));
    let lost = Fault::QueueLost(b.host.queue_name(&b.queue));
    assert_eq!(b.host.next_fault(&b.device), Ok(Some(lost)));
    assert_eq!(b.host.next_fault(&b.device), Ok(None));
    assert!(!readable(b.host.device_fd(&b.device)));
    // What fitted is there; the flushes of the lost pair are not.
    assert_eq!(
        b.outcomes(),
        [
            (1000, Outcome::Announced(5)),
            (1001, Outcome::Announced(5)),
            (1002, Outcome::Announced(5))
        ]
    );
    b.host.post_receives(&pb, &[Receive { id: 0, into: None }]).unwrap();
    assert_eq!(b.outcomes(), []);
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn what_the_device_does_not_do_is_refused_when_it_is_posted() {
    let (_net, a, b) = ends(Order::Prompt, Model::SIW);
    assert!(!a.host.facts(&a.device).writes_imm);
    let (pa, pb) = connect(&a, &b, CAPACITY, 2);
    let works = [
        write(1, a.piece(0, 1), b.to(0)),
        write_imm(2, a.piece(0, 1), b.to(0), 0),
        write(3, a.piece(0, 1), b.to(0)),
    ];
    let error = a.host.post(&pa, &works).unwrap_err();
    assert_eq!((error.posted, error.errno, error.unknown), (1, libc::EINVAL, false));
    assert_eq!(a.outcomes(), [(1, Outcome::Written)], "the pair lives on");
    let error = a.host.post(&pa, &[send(1, &[0; 65])]).unwrap_err();
    assert_eq!((error.posted, error.errno), (0, libc::EINVAL));
    let error = a.host.post(&pa, &[write(1, a.piece(BYTES - 1, 2), b.to(0))]).unwrap_err();
    assert_eq!((error.posted, error.errno), (0, libc::EINVAL));
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn work_is_only_taken_when_the_pair_is_connected() {
    let (_net, a, b) = ends(Order::Prompt, Model::ROCE);
    let mut pair = a.host.resolve(&a.manager, A, SocketAddr::new(B, PORT), 1, 0).unwrap();
    let one = [write(1, a.piece(0, 1), b.to(0))];
    assert_eq!(a.host.post(&pair, &one).unwrap_err().errno, libc::EINVAL);
    assert!(a.host.post_receives(&pair, &[Receive { id: 0, into: None }]).is_err());
    a.host.create(&mut pair, &a.domain, &a.queue, CAPACITY).unwrap();
    a.host.post_receives(&pair, &[Receive { id: 8, into: None }]).unwrap();
    assert_eq!(a.host.post(&pair, &one).unwrap_err().errno, libc::EINVAL);
    a.host.fail(&pair).unwrap();
    a.host.post(&pair, &one).unwrap();
    let flushed = Outcome::Failed(Failure::Flushed);
    assert_eq!(a.outcomes(), [(8, flushed), (1, flushed)]);
    finish(a, b, vec![pair], vec![]);
}

#[test]
fn arming_reports_what_comes_afterwards_and_once() {
    for model in MODELS {
        let (_net, a, b) = ends(Order::Prompt, model);
        let (pa, pb) = connect(&a, &b, CAPACITY, 0);
        let fd = a.host.queue_fd(&a.queue);
        let one = [write(1, a.piece(0, 1), b.to(0))];
        a.host.post(&pa, &one).unwrap();
        a.host.arm(&a.queue).unwrap();
        assert!(!readable(fd), "what was there before is not reported: poll once more");
        assert_eq!(a.polled().len(), 1);
        a.host.post(&pa, &one).unwrap();
        assert!(readable(fd));
        a.host.post(&pa, &one).unwrap();
        assert_eq!(a.host.clear(&a.queue), Ok(1), "once per arming");
        assert!(!readable(fd));
        a.host.post(&pa, &one).unwrap();
        assert!(!readable(fd), "not armed");
        assert_eq!(a.polled().len(), 3);
        finish(a, b, vec![pa], vec![pb]);
    }
}

#[test]
fn children_are_closed_first() {
    let (net, a, b) = ends(Order::Prompt, Model::ROCE);
    let busy = |call: Result<(), Error>| assert_eq!(call.unwrap_err().errno, libc::EBUSY);
    let (pa, pb) = connect(&a, &b, CAPACITY, 0);
    let End { host, manager, device, domain, queue, region, memory } = a;
    let (queue_number, device_number, manager_number) =
        (queue.number, device.number, manager.number);
    let domain_number = domain.number;
    busy(host.close_domain(domain));
    busy(host.close_queue(queue));
    busy(host.close_device(device));
    busy(host.close_manager(manager));
    host.close_pair(pa).unwrap();
    let queue = Queue { number: queue_number, fd: 0 };
    host.close_queue(queue).unwrap();
    let facts = *b.host.facts(&b.device);
    busy(host.close_device(Device { number: device_number, fd: 0, facts }));
    busy(host.close_domain(Domain { number: domain_number }));
    host.close_region(region).unwrap();
    host.close_domain(Domain { number: domain_number }).unwrap();
    host.close_device(Device { number: device_number, fd: 0, facts }).unwrap();
    host.close_manager(Manager { number: manager_number, fd: 0 }).unwrap();
    assert_eq!(net.objects(&host), 0);
    // SAFETY: from `Box::into_raw`, and its region is closed.
    drop(unsafe { Box::from_raw(memory) });
    b.host.close_pair(pb).unwrap();
    b.close();
}

#[test]
fn iwarp_lets_the_connecting_end_send_first() {
    for model in [Model::SIW, Model::ERDMA] {
        let (_net, a, b) = ends(Order::Prompt, model);
        let (pa, pb) = connect(&a, &b, CAPACITY, 0);
        b.fill(0, b"eager");
        b.host.post(&pb, &[write(1, b.piece(0, 5), a.to(0))]).unwrap();
        assert_eq!(b.outcomes(), []);
        a.host.post(&pa, &[write(1, a.piece(100, 1), b.to(100))]).unwrap();
        assert_eq!(b.outcomes(), [(1, Outcome::Written)]);
        assert_eq!(a.bytes(0, 5), b"eager");
        finish(a, b, vec![pa], vec![pb]);
    }
}

#[test]
fn private_data_is_padded_or_exact() {
    for model in MODELS {
        let (_net, a, b) = ends(Order::Prompt, model);
        let exact = model.transport == Transport::Iwarp;
        let address = SocketAddr::new(B, PORT);
        let listener = b.host.listen(&b.manager, address, 8, 1).unwrap();
        let mut pair = a.host.resolve(&a.manager, A, address, 1, 2).unwrap();
        a.news();
        a.host.create(&mut pair, &a.domain, &a.queue, CAPACITY).unwrap();
        a.host.connect(&mut pair, b"seven__", Patience::DEFAULT).unwrap();
        let Some(Event { news: News::Request { pair: request, private }, .. }) = b.news() else {
            panic!()
        };
        assert_eq!(private.len(), if exact { 7 } else { PRIVATE_MAX });
        b.host.reject(request, b"no").unwrap();
        let Some(Event { token: 2, news: News::Refused { private, reason } }) = a.news() else {
            panic!()
        };
        assert_eq!(private.len(), if exact { 2 } else { PRIVATE_MAX });
        assert_eq!((&private[..2], reason != 0), (&b"no"[..], true));
        b.host.close_listener(listener).unwrap();
        finish(a, b, vec![pair], vec![]);
    }
    assert_eq!(Private::new(&[7; 100])[..], [7; PRIVATE_MAX]);
}

#[test]
fn there_is_somebody_to_connect_to_or_there_is_not() {
    let (_net, a, b) = ends(Order::Prompt, Model::ROCE);
    let nobody = SocketAddr::new(IpAddr::from([10, 9, 9, 9]), PORT);
    let pair = a.host.resolve(&a.manager, A, nobody, 1, 5).unwrap();
    assert!(matches!(
        a.news(),
        Some(Event { token: 5, news: News::Unreachable { errno: libc::EHOSTUNREACH } })
    ));
    a.host.close_pair(pair).unwrap();
    // Not an address of this host.
    assert_eq!(a.host.resolve(&a.manager, B, nobody, 1, 5).unwrap_err().errno, libc::ENODEV);
    assert_eq!(a.host.open_device(&a.manager, B, 0).unwrap_err().errno, libc::ENODEV);
    // Nobody listens there.
    let mut pair = a.host.resolve(&a.manager, A, SocketAddr::new(B, PORT), 1, 5).unwrap();
    a.news();
    a.host.create(&mut pair, &a.domain, &a.queue, CAPACITY).unwrap();
    a.host.connect(&mut pair, &[], Patience::DEFAULT).unwrap();
    assert!(matches!(a.news(), Some(Event { token: 5, news: News::Refused { .. } })));
    // Ports are taken.
    let address = SocketAddr::new(B, 0);
    let first = b.host.listen(&b.manager, address, 1, 0).unwrap();
    let port = b.host.port(&first);
    let taken = b.host.listen(&b.manager, SocketAddr::new(B, port), 1, 0).unwrap_err();
    assert_eq!((taken.call, taken.errno), (Call::Listen, libc::EADDRINUSE));
    let second = b.host.listen(&b.manager, address, 1, 0).unwrap();
    assert_ne!(b.host.port(&second), port);
    b.host.close_listener(second).unwrap();
    b.host.close_listener(first).unwrap();
    finish(a, b, vec![pair], vec![]);
}

#[test]
fn limits_of_the_device_and_of_locked_memory_are_kept() {
    let net = Net::new(Order::Prompt);
    let model =
        Model { registered_max: 2 * BYTES as u64, regions_max: 3, pairs_max: 1, ..Model::ROCE };
    let a = End::new(&net, A, model);
    let b = End::new(&net, B, model);
    let at = NonNull::new(a.memory.cast::<u8>()).unwrap();
    // SAFETY: the end's own memory, for a moment.
    let register = |bytes| unsafe { a.host.register(&a.domain, at, bytes, Access::Local) };
    let error = register(BYTES + 1).unwrap_err();
    assert_eq!((error.call, error.errno), (Call::Register, libc::ENOMEM));
    let (one, two) = (register(1).unwrap(), register(1).unwrap());
    assert_eq!(register(1).unwrap_err().errno, libc::ENOMEM);
    a.host.close_region(one).unwrap();
    a.host.close_region(two).unwrap();
    let (pa, pb) = connect(&a, &b, CAPACITY, 0);
    let mut second = a.host.resolve(&a.manager, A, SocketAddr::new(B, PORT), 1, 5).unwrap();
    assert_eq!(
        a.host.create(&mut second, &a.domain, &a.queue, CAPACITY).unwrap_err().errno,
        libc::ENOMEM
    );
    let too_much = Capacity { inline_bytes: model.inline_max + 1, ..CAPACITY };
    assert_eq!(
        a.host.create(&mut second, &a.domain, &a.queue, too_much).unwrap_err().errno,
        libc::EINVAL
    );
    let too_deep = Capacity { sends: model.depth_max + 1, ..CAPACITY };
    assert_eq!(
        a.host.create(&mut second, &a.domain, &a.queue, too_deep).unwrap_err().errno,
        libc::EINVAL
    );
    assert!(a.host.open_queue(&a.device, model.entries_max + 1, 0).is_err());
    finish(a, b, vec![pa, second], vec![pb]);
}
