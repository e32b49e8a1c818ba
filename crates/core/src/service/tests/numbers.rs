//! What becomes of those for whom there is no room (docs/manual/limits.md, *Numbers*).

use super::*;

/// Processes that are found at one port, within the host.
const ACCEPTORS: usize = 64;
/// Ports that a connector remembers.
const PORTS: u16 = 1024;
/// Ports at which one process is found.
const FOUND_AT: u16 = 128;

#[test]
fn who_accepts_beyond_the_names_of_a_port_has_one_when_another_goes() {
    let (c, net) = (service(), Net::new());
    let mut all: Vec<&'static Service> = (0..=ACCEPTORS).map(|_| service()).collect();
    let (first, last, more) = (all[0], all[ACCEPTORS - 1], all[ACCEPTORS]);
    for (n, a) in all.iter().enumerate() {
        assert_eq!(a.accepting(net.port()), n < ACCEPTORS, "acceptor {n}");
    }
    // (Whoever has links to all of them waits until one of these is over.)
    let next = service();
    all.extend([c, next]);
    let used = |c: &'static Service, by: &'static Service| {
        let (cs, as_, tcp) = net.connect();
        assert!(c.connect(cs) && by.noted(as_));
        (cs, as_, tcp)
    };
    let (cs, as_, _tcp) = used(c, last);
    wait_until(&all, || cs.offered.is_made() && as_.offered.is_made());
    // Nobody finds one more: its connection stays where it is, however often it is looked for.
    let (cs, as_, _tcp) = used(c, more);
    for _ in 0..6 {
        crate::testing::pass_ns(2_000_000_000);
        settle(&all);
        assert!(c.connected(cs, true) && c.noted(cs));
    }
    assert!(!cs.offered.is_made() && !as_.offered.is_made());
    assert!([cs, as_].iter().all(|s| s.is(socket::State::Candidate)));
    // (The test's listener is none that the table of descriptors knows.)
    first.listener_closed();
    crate::testing::pass_ns(60_000_000);
    settle(&[first]);
    assert!(more.accepting(net.port()));
    let (cs, as_, _tcp) = used(next, more);
    wait_until(&all, || {
        crate::testing::pass_ns(20_000_000);
        cs.offered.is_made() && as_.offered.is_made()
    });
    assert_eq!(offer_of(cs).slot, offer_of(as_).slot);
}

/// What a channel costs, in tenths of a MiB.
#[test]
fn the_control_memory_of_a_channel_is_no_larger_than_is_said() {
    assert_eq!((size_of::<crate::channel::ChannelMem>() * 10).div_ceil(1 << 20), 23);
}

#[test]
fn the_port_that_was_not_used_for_longest_is_looked_for_again() {
    let (a, c, net) = both();
    let kept = Net::new();
    assert!(a.accepting(kept.port()));
    let agreed = |net: &Net| {
        let (cs, as_, tcp) = net.connect();
        assert!(c.connect(cs) && a.noted(as_));
        wait_until(&[a, c], || cs.offered.is_made() && as_.offered.is_made());
        tcp
    };
    let _before = [agreed(&net), agreed(&kept)];
    // (Below those that the kernel chooses: nobody else is found there.)
    let mut others = (2000..2000 + PORTS).peekable();
    let mut servers = std::vec![a, c];
    while others.peek().is_some() {
        let server = service();
        servers.push(server);
        for port in others.by_ref().take(usize::from(FOUND_AT)) {
            assert!(server.accepting(port));
        }
    }
    let knows = |port: u16| c.state.lock().has_advertiser(port);
    for (n, port) in (2000..2000 + PORTS).enumerate() {
        // With these two there are as many as are remembered.
        assert_eq!(knows(net.port()), n <= usize::from(PORTS) - 2, "behind {n} others");
        assert!(c.state.lock().seek(port, true));
        assert!(knows(port));
        settle(&servers);
        if n % 100 == 0 {
            assert!(c.state.lock().seek(kept.port(), true));
        }
    }
    assert!(knows(kept.port()) && !knows(net.port()));
    agreed(&net);
    assert!(knows(net.port()));
}
