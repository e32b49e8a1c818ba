//! Faults: calls that fail, pairs that break, peers that vanish.

use super::*;

/// The life of a connection, as a program that minds its errors would write it. What it has not
/// closed is in the vectors.
fn life(a: &Memory, b: &Memory) -> Result<(), String> {
    let text = |e: Error| format!("{:?}: {}", e.call, e.errno);
    let posted = |e: PostError| format!("post: {}", e.errno);
    struct Side {
        host: Memory,
        manager: Option<Manager>,
        device: Option<Device>,
        queue: Option<Queue>,
        domain: Option<Domain>,
        region: Option<Region>,
        listener: Option<Listener>,
        pair: Option<Pair>,
        memory: Box<[u8; 64]>,
    }
    impl Side {
        fn new(host: &Memory) -> Self {
            let memory = Box::new([0; 64]);
            let host = host.clone();
            let (manager, device, queue, domain) = (None, None, None, None);
            let (region, listener, pair) = (None, None, None);
            Self { host, manager, device, queue, domain, region, listener, pair, memory }
        }
        fn open(&mut self, address: IpAddr) -> Result<(), Error> {
            let manager = self.manager.insert(self.host.open_manager()?);
            let device = self.device.insert(self.host.open_device(manager, address, 0)?);
            self.queue = Some(self.host.open_queue(device, 64, 0)?);
            let domain = self.domain.insert(self.host.open_domain(device)?);
            let at = NonNull::from(&mut *self.memory).cast();
            // SAFETY: the box lives until the region is closed.
            self.region = Some(unsafe { self.host.register(domain, at, 64, Access::RemoteWrite)? });
            Ok(())
        }
        fn create(&mut self) -> Result<(), Error> {
            let (Some(pair), Some(domain), Some(queue)) =
                (&mut self.pair, &self.domain, &self.queue)
            else {
                panic!()
            };
            self.host.create(pair, domain, queue, CAPACITY).map(drop)
        }
        /// Closing may fail by order, too: then it is done again, as a program that is told EINTR
        /// would.
        fn close(mut self) {
            for _ in 0..2 {
                if let Some(pair) = self.pair.take() {
                    let _ = self.host.disconnect(&pair);
                    let number = pair.number;
                    if self.host.close_pair(pair).is_err() {
                        self.pair = Some(Pair { number });
                    }
                }
                if let Some(l) = self.listener.take() {
                    let (number, port) = (l.number, l.port);
                    if self.host.close_listener(l).is_err() {
                        self.listener = Some(Listener { number, port });
                    }
                }
                if let Some(r) = self.region.take() {
                    let (number, remote, bytes) = (r.number, r.remote, r.bytes);
                    if self.host.close_region(r).is_err() {
                        self.region = Some(Region { number, remote, bytes });
                    }
                }
                if let Some(q) = self.queue.take() {
                    let (number, fd) = (q.number, q.fd);
                    if self.host.close_queue(q).is_err() {
                        self.queue = Some(Queue { number, fd });
                    }
                }
                if let Some(d) = self.domain.take() {
                    let number = d.number;
                    if self.host.close_domain(d).is_err() {
                        self.domain = Some(Domain { number });
                    }
                }
                if let Some(d) = self.device.take() {
                    let (number, fd, facts) = (d.number, d.fd, d.facts);
                    if self.host.close_device(d).is_err() {
                        self.device = Some(Device { number, fd, facts });
                    }
                }
                if let Some(m) = self.manager.take() {
                    let (number, fd) = (m.number, m.fd);
                    if self.host.close_manager(m).is_err() {
                        self.manager = Some(Manager { number, fd });
                    }
                }
            }
        }
    }
    let (mut x, mut y) = (Side::new(a), Side::new(b));
    let result = (|| {
        y.open(B).map_err(text)?;
        let address = SocketAddr::new(B, PORT);
        y.listener = Some(b.listen(y.manager.as_ref().unwrap(), address, 4, 1).map_err(text)?);
        x.open(A).map_err(text)?;
        let at_a = x.manager.as_ref().unwrap();
        x.pair = Some(a.resolve(at_a, A, address, 1, 2).map_err(text)?);
        let Some(Event { news: News::Resolved, .. }) = a.next_event(at_a).map_err(text)? else {
            return Err("not resolved".into());
        };
        x.create().map_err(text)?;
        a.post_receives(x.pair.as_ref().unwrap(), &[Receive { id: 1, into: None }])
            .map_err(posted)?;
        a.connect(x.pair.as_mut().unwrap(), b"q", Patience::DEFAULT).map_err(text)?;
        let at_b = y.manager.as_ref().unwrap();
        let Some(Event { news: News::Request { pair, .. }, .. }) =
            b.next_event(at_b).map_err(text)?
        else {
            return Err("no request".into());
        };
        y.pair = Some(pair);
        y.create().map_err(text)?;
        let into = Piece { region: y.region.as_ref().unwrap(), offset: 32, bytes: 32 };
        b.post_receives(y.pair.as_ref().unwrap(), &[Receive { id: 1, into: Some(into) }])
            .map_err(posted)?;
        b.accept(y.pair.as_mut().unwrap(), b"a", Patience::DEFAULT).map_err(text)?;
        for (host, manager) in [(a, x.manager.as_ref().unwrap()), (b, y.manager.as_ref().unwrap())]
        {
            let Some(Event { news: News::Established { .. }, .. }) =
                host.next_event(manager).map_err(text)?
            else {
                return Err("not established".into());
            };
        }
        let from = Piece { region: x.region.as_ref().unwrap(), offset: 0, bytes: 4 };
        let to = b.remote(y.region.as_ref().unwrap());
        a.post(x.pair.as_ref().unwrap(), &[write(1, from, to), send(2, b"done")])
            .map_err(posted)?;
        let mut out = [Completion::EMPTY; 4];
        let queue = y.queue.as_ref().unwrap();
        b.arm(queue).map_err(text)?;
        let n = b.poll(queue, &mut out).map_err(text)?;
        if n != 1 || out[0].outcome != Outcome::Received(4) {
            return Err("nothing came".into());
        }
        b.clear(queue).map_err(text)?;
        b.next_fault(y.device.as_ref().unwrap()).map_err(text)?;
        Ok(())
    })();
    x.close();
    y.close();
    result
}

const CALLS: [Call; 18] = [
    Call::OpenManager,
    Call::NextEvent,
    Call::OpenDevice,
    Call::OpenQueue,
    Call::OpenDomain,
    Call::Register,
    Call::Listen,
    Call::Resolve,
    Call::Create,
    Call::Connect,
    Call::Accept,
    Call::Disconnect,
    Call::Post,
    Call::PostReceives,
    Call::Poll,
    Call::Arm,
    Call::NextFault,
    Call::Close,
];

#[test]
fn each_call_can_be_made_to_fail_and_nothing_is_left_behind() {
    for model in MODELS {
        let mut failed = BTreeSet::new();
        for call in CALLS {
            for at_b in [false, true] {
                for nth in 1.. {
                    let net = Net::new(Order::Prompt);
                    let (a, b) = (net.host(A, model), net.host(B, model));
                    let victim = if at_b { &b } else { &a };
                    net.fail_call(victim, call, nth, libc::ENOMEM);
                    let result = life(&a, &b);
                    assert_eq!(
                        net.objects(&a) + net.objects(&b),
                        0,
                        "{call:?} {nth} at b: {at_b}: {result:?}"
                    );
                    if net.calls(victim, call) < nth {
                        assert_eq!(result, Ok(()), "nothing was injected");
                        break;
                    }
                    // A call that fails is noticed, unless it is one of the end.
                    let at_the_end = matches!(call, Call::Close | Call::Disconnect);
                    assert_eq!(result.is_ok(), at_the_end, "{call:?} {nth} at b: {at_b}");
                    failed.insert(call);
                }
            }
        }
        assert_eq!(failed.len(), CALLS.len(), "some call was never made");
    }
}

#[test]
fn a_killed_process_is_reported_by_its_kernel() {
    for model in MODELS {
        let (net, a, b) = ends(Order::Prompt, model);
        let (pa, _) = connect(&a, &b, CAPACITY, 2);
        net.kill(&b.host);
        assert!(matches!(a.news(), Some(Event { token: 1, news: News::Disconnected })));
        let outcomes = a.outcomes();
        match model.transport {
            Transport::Iwarp => assert_eq!(outcomes.len(), 2, "flushed with the TCP connection"),
            // Its own program has to end it.
            _ => assert_eq!(outcomes, []),
        }
        a.host.post(&pa, &[write(1, a.piece(0, 1), b.to(0))]).unwrap();
        net.time_out();
        let ib = model.transport == Transport::Infiniband;
        let unreachable = [(1, Outcome::Failed(Failure::Unreachable))];
        assert_eq!(sends(a.outcomes()), if ib { &unreachable[..] } else { &[] });
        a.host.close_pair(pa).unwrap();
        a.close();
    }
}

#[test]
fn a_host_without_power_is_noticed_when_time_has_passed() {
    for model in MODELS {
        let (net, a, b) = ends(Order::Prompt, model);
        let (pa, _pb) = connect(&a, &b, CAPACITY, 2);
        net.power_off(&b.host);
        a.host
            .post(&pa, &[write(1, a.piece(0, 1), b.to(0)), write(2, a.piece(0, 1), b.to(1))])
            .unwrap();
        assert!(a.news().is_none());
        let ib = model.transport == Transport::Infiniband;
        let before = a.outcomes();
        if ib {
            assert_eq!(before, []);
        } else {
            assert_eq!(
                before,
                [(1, Outcome::Written), (2, Outcome::Written)],
                "TCP has taken them"
            );
        }
        net.time_out();
        let flushed = Outcome::Failed(Failure::Flushed);
        let after = a.outcomes();
        if ib {
            assert_eq!(after[..2], [(1, Outcome::Failed(Failure::Unreachable)), (2, flushed)]);
            assert!(a.news().is_none());
        } else {
            assert!(matches!(a.news(), Some(Event { news: News::Disconnected, .. })));
        }
        assert_eq!(after[after.len() - 2..], [(1000, flushed), (1001, flushed)]);
        assert_eq!(b.bytes(0, 2), [0, 0]);
        a.host.close_pair(pa).unwrap();
        a.close();
    }
}

#[test]
fn a_link_that_comes_back_in_time_has_lost_nothing() {
    for model in MODELS {
        for seed in 0..50 {
            let (net, a, b) = ends(Order::Shuffled(seed), model);
            let (pa, pb) = connect(&a, &b, CAPACITY, 0);
            b.host.post_receives(&pb, &[Receive { id: 9, into: Some(b.piece(2048, 64)) }]).unwrap();
            a.fill(0, &[3; 8]);
            a.host.post(&pa, &[write(1, a.piece(0, 4), b.to(0))]).unwrap();
            net.cut(&b.host, true);
            assert_eq!(b.host.next_fault(&b.device), Ok(Some(Fault::PortDown)));
            a.host.post(&pa, &[write(2, a.piece(4, 4), b.to(4)), send(3, b"!")]).unwrap();
            assert!(net.settle());
            assert!(b.polled().is_empty());
            net.cut(&b.host, false);
            assert_eq!(b.host.next_fault(&b.device), Ok(Some(Fault::PortUp)));
            assert_eq!(b.outcomes(), [(9, Outcome::Received(1))]);
            assert_eq!(b.bytes(0, 8), [3; 8]);
            assert_eq!(
                a.outcomes(),
                [(1, Outcome::Written), (2, Outcome::Written), (3, Outcome::Sent)]
            );
            finish(a, b, vec![pa], vec![pb]);
        }
    }
}

#[test]
fn a_removed_device_tells_everybody_on_it() {
    for model in MODELS {
        let (net, a, b) = ends(Order::Prompt, model);
        let (pa, pb) = connect(&a, &b, CAPACITY, 1);
        let listener = b.host.listen(&b.manager, SocketAddr::new(B, PORT), 1, 33).unwrap();
        net.remove_device(&b.host);
        let mut tokens = BTreeSet::new();
        while let Some(event) = b.news() {
            if matches!(event.news, News::DeviceRemoved) {
                tokens.insert(event.token);
            }
        }
        assert_eq!(tokens, BTreeSet::from([0, 2, 33]), "device, pair, listener");
        assert_eq!(b.host.next_fault(&b.device), Ok(Some(Fault::DeviceLost)));
        assert_eq!(b.outcomes(), [(1000, Outcome::Failed(Failure::Flushed))]);
        assert_eq!(b.host.open_manager().unwrap_err().errno, libc::ENODEV);
        assert_eq!(b.host.open_device(&b.manager, B, 0).unwrap_err().errno, libc::ENODEV);
        let _ = a.host.post(&pa, &[write(1, a.piece(0, 1), b.to(0))]);
        net.time_out();
        assert!(
            a.outcomes().iter().any(|o| matches!(o.1, Outcome::Failed(_))),
            "the other end hears of it, some day"
        );
        net.add_device(&b.host);
        let device = b.host.open_device(&b.manager, B, 0).unwrap();
        b.host.close_device(device).unwrap();
        b.host.close_listener(listener).unwrap();
        finish(a, b, vec![pa], vec![pb]);
    }
}

#[test]
fn a_broken_pair_flushes_everything_and_its_peer_learns_of_it_by_sending() {
    let (net, a, b) = ends(Order::Prompt, Model::ROCE);
    let (pa, pb) = connect(&a, &b, CAPACITY, 2);
    net.break_pairs(&b.host);
    let flushed = Outcome::Failed(Failure::Flushed);
    assert_eq!(b.outcomes(), [(1000, flushed), (1001, flushed)]);
    assert!(a.news().is_none());
    a.host.post(&pa, &[Work { signaled: false, ..write(1, a.piece(0, 1), b.to(0)) }]).unwrap();
    assert_eq!(a.outcomes(), []);
    net.time_out();
    let expected = [(1, Outcome::Failed(Failure::Unreachable)), (1000, flushed), (1001, flushed)];
    assert_eq!(a.outcomes(), expected, "also unsignaled ones complete when they fail");
    finish(a, b, vec![pa], vec![pb]);
}

#[test]
fn disconnecting_tells_both_ends() {
    for model in MODELS {
        let (_net, a, b) = ends(Order::Prompt, model);
        let (pa, pb) = connect(&a, &b, CAPACITY, 1);
        a.host.disconnect(&pa).unwrap();
        assert!(matches!(a.news(), Some(Event { token: 1, news: News::Disconnected })));
        assert!(matches!(b.news(), Some(Event { token: 2, news: News::Disconnected })));
        assert_eq!(a.outcomes(), [(1000, Outcome::Failed(Failure::Flushed))]);
        // InfiniBand's other end still has its receives: it has to end the pair itself.
        b.host.disconnect(&pb).unwrap();
        assert_eq!(b.outcomes(), [(1000, Outcome::Failed(Failure::Flushed))]);
        assert!(b.news().is_none() && a.news().is_none(), "told once");
        finish(a, b, vec![pa], vec![pb]);
    }
}

#[test]
fn a_connecting_end_that_gives_up_is_noticed() {
    let (net, a, b) = ends(Order::Prompt, Model::ROCE);
    let address = SocketAddr::new(B, PORT);
    let listener = b.host.listen(&b.manager, address, 1, 7).unwrap();
    let ask = |token| {
        let mut pair = a.host.resolve(&a.manager, A, address, 1, token).unwrap();
        assert!(matches!(a.news(), Some(Event { news: News::Resolved, .. })));
        a.host.create(&mut pair, &a.domain, &a.queue, CAPACITY).unwrap();
        a.host.connect(&mut pair, &[], Patience::DEFAULT).unwrap();
        pair
    };
    // Gone before the answer.
    let pair = ask(1);
    let Some(Event { news: News::Request { pair: mut request, .. }, .. }) = b.news() else {
        panic!()
    };
    a.host.close_pair(pair).unwrap();
    b.host.set_token(&mut request, 8);
    b.host.create(&mut request, &b.domain, &b.queue, CAPACITY).unwrap();
    b.host.accept(&mut request, &[], Patience::DEFAULT).unwrap();
    assert!(matches!(b.news(), Some(Event { token: 8, news: News::Disconnected })));
    b.host.close_pair(request).unwrap();
    // More than the backlog.
    let (first, second) = (ask(1), ask(2));
    assert!(matches!(a.news(), Some(Event { token: 2, news: News::Refused { .. } })));
    // No power on the way.
    net.cut(&b.host, true);
    let third = ask(3);
    net.time_out();
    let mut told = BTreeSet::new();
    while let Some(event) = a.news() {
        assert!(matches!(event.news, News::Unreachable { .. }));
        told.insert(event.token);
    }
    assert!(told.contains(&3));
    net.cut(&b.host, false);
    let waiting = b.news();
    if let Some(Event { news: News::Request { pair, .. }, .. }) = waiting {
        b.host.reject(pair, &[]).unwrap();
    }
    b.host.close_listener(listener).unwrap();
    finish(a, b, vec![first, second, third], vec![]);
}
