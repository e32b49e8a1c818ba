//! What is lost in the middle of traffic: pairs, ports, devices, peers. No byte is lost or doubled,
//! and connections come back.

use super::*;
use crate::channel::Side;
use crate::socket::Named;
use crate::trace::{self, Event, Slow};
use netacc_control::config::Config;
use netacc_verbs::fabric::Fabric as _;

#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Completions fail.
    Broken(usize),
    /// The port is down for as long as the pairs live on.
    PortDown(usize),
    /// And for longer.
    PortGone(usize),
}

fn lose(rig: &mut Rig, loss: Loss) {
    match loss {
        Loss::Broken(h) => rig.wires.break_pairs(&rig.hosts[h].fabric),
        Loss::PortDown(h) => {
            rig.wires.cut(&rig.hosts[h].fabric, true);
            rig.play(30, |_, _| {});
            testing::pass_ns(50_000_000);
            rig.play(30, |_, _| {});
            rig.wires.cut(&rig.hosts[h].fabric, false);
        }
        Loss::PortGone(h) => {
            rig.wires.cut(&rig.hosts[h].fabric, true);
            rig.play(30, |_, _| {});
            testing::pass_ns(200_000_000);
            rig.play(100, |_, _| {});
            rig.wires.cut(&rig.hosts[h].fabric, false);
        }
    }
}

fn comes_back(model: Model, loss: Loss, when: usize, seed: u64) {
    let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
    let conns = [rig.connect(0, 1), rig.connect(0, 1)];
    conns.iter().for_each(|i| rig.promoted(*i));
    rig.play(when, |_, _| {});
    lose(&mut rig, loss);
    rig.play(60, |_, _| {});
    for i in conns {
        rig.drain(i);
        rig.promoted(i);
        rig.exchange(i, 50_000);
        assert!(
            rig.conns[i].iter().all(|e| e.over.is_none()),
            "{loss:?} at {when}: {}",
            rig.describe()
        );
    }
    rig.finish();
}

#[test]
fn a_pair_is_lost_at_any_moment_and_the_connections_come_back() {
    for model in MODELS {
        for when in (0..100).step_by(9) {
            for h in [0, 1] {
                comes_back(model, Loss::Broken(h), when, when as u64 * 7 + h as u64);
            }
        }
    }
}

/// A connection whose connector has bytes that are to go again over the carrier, and find no room
/// there: nobody reads them.
fn with_bytes_that_wait(model: Model) -> (Rig, usize) {
    let mut rig = Rig::new(Order::Shuffled(3), model, 2);
    rig.listen(1);
    let few: c_int = 4096;
    let listener = rig.hosts[1].listener;
    assert!(sys::setsockopt(listener, libc::SOL_SOCKET, libc::SO_RCVBUF, &few) >= 0);
    let i = rig.connect(0, 1);
    let fd = rig.conns[i][C].fd;
    assert!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &few) >= 0);
    rig.promoted(i);
    while rig.send(i, C, 20_000) > 0 {
        rig.settle();
    }
    rig.wires.break_pairs(&rig.hosts[0].fabric);
    some_turns(&mut rig);
    assert!(!rig.is_fast(i), "{}", rig.describe());
    (rig, i)
}

fn some_turns(rig: &mut Rig) {
    for _ in 0..10 {
        rig.settle();
        rig.pass();
    }
}

/// Nobody tells the sender's host that there is room.
#[test]
fn what_finds_no_room_on_the_carrier_goes_on_by_itself() {
    for model in MODELS {
        let (mut rig, i) = with_bytes_that_wait(model);
        rig.drain(i);
        rig.finish();
    }
}

/// The peer closes with some of them unread. What it had sent is read, as with TCP, and behind it
/// the reset, which is told once.
#[test]
fn what_came_before_a_reset_is_read_where_bytes_go_again() {
    for model in MODELS {
        let (mut rig, i) = with_bytes_that_wait(model);
        let before = rig.conns[i][C].received;
        assert_eq!(rig.send(i, A, 3000), 3000);
        rig.close(i, A);
        some_turns(&mut rig);
        while rig.receive(i, C, 1000) > 0 {}
        let end = &rig.conns[i][C];
        let came = (end.received - before, end.over);
        assert_eq!(came, (3000, Some(-(libc::ECONNRESET as isize))), "{}", rig.describe());
        rig.conns[i][C].over = None;
        assert_eq!((rig.receive(i, C, 1000), rig.conns[i][C].over), (0, Some(0)), "told twice");
        rig.finish();
    }
}

#[test]
fn a_port_goes_down_and_comes_up() {
    for model in MODELS {
        for when in [0, 20, 60] {
            for h in [0, 1] {
                comes_back(model, Loss::PortDown(h), when, when as u64 * 5 + h as u64);
                comes_back(model, Loss::PortGone(h), when, when as u64 * 3 + h as u64);
            }
        }
    }
}

#[test]
fn a_device_is_taken_out_and_put_in() {
    for model in MODELS {
        for when in [0, 20, 60] {
            for h in [0, 1] {
                let mut rig = Rig::new(Order::Shuffled(when as u64 * 5 + h as u64), model, 2);
                let conns = [rig.connect(0, 1), rig.connect(0, 1)];
                conns.iter().for_each(|i| rig.promoted(*i));
                rig.play(when, |_, _| {});
                rig.remove_device(h);
                rig.play(100, |_, _| {});
                for i in conns {
                    rig.drain(i);
                    rig.exchange(i, 50_000);
                    assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
                    assert!(!rig.is_fast(i), "over a device that is not there");
                }
                // An address without a device is asked for again after a minute.
                rig.wires.add_device(&rig.hosts[h].fabric);
                testing::pass_ns(61_000_000_000);
                rig.settle();
                let new = rig.connect(0, 1);
                rig.promoted(new);
                rig.exchange(new, 50_000);
                rig.finish();
            }
        }
    }
}

#[test]
fn a_completion_queue_that_overflows_is_not_used_again() {
    for model in MODELS {
        for h in [0, 1] {
            let mut rig = Rig::new(Order::Shuffled(h as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            for _ in 0..2 {
                rig.wires.lose_queues(&rig.hosts[h].fabric);
                rig.exchange(i, 10_000);
                rig.promoted(i);
                rig.exchange(i, 50_000);
                assert!(rig.is_fast(i), "{}", rig.describe());
            }
            rig.finish();
        }
    }
}

impl Rig {
    fn queues_of(&mut self, h: usize) -> Vec<&'static queues::Queue> {
        self.remote(h).devices.list.iter().flat_map(|d| d.queues.iter().copied()).collect()
    }
}

/// One device, of which the address that was opened last is told all news.
#[test]
fn a_queue_of_another_address_of_the_device_is_lost() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        let (fabric, address) = (rig.hosts[0].fabric.clone(), loopback(0, 99));
        rig.wires.add_address(&fabric, address);
        FABRIC.set(Some(fabric.clone()));
        let second = rig.remote(0).device_at(address).unwrap();
        let facts = rig.remote(0).facts(second).unwrap();
        let settings = devices::settings(1, true, &facts, 32);
        let (innocent, tag) = rig.remote(0).seat(second, &settings).unwrap();
        innocent.hub.release(process::tid(), tag).unwrap();
        FABRIC.set(None);
        let lost = rig.queues_of(0)[0];
        assert!(!core::ptr::eq(lost, innocent));
        rig.wires.lose_queue(lost.hub.with_queue(|q| fabric.queue_name(q)).unwrap());
        rig.exchange(i, 10_000);
        rig.promoted(i);
        let now = rig.queues_of(0);
        let has = |queue: &queues::Queue| now.iter().any(|q| core::ptr::eq(*q, queue));
        assert!(has(innocent) && !has(lost));
        assert_eq!((now.len(), rig.objects(0).queues), (2, 2));
        rig.finish();
    }
}

/// What is lost gives way: not so many in a life, but at a time.
#[test]
fn more_queues_and_devices_are_lost_than_a_process_has_at_a_time() {
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    for n in 0..QUEUES + 3 {
        rig.promoted(i);
        if n % 5 == 0 {
            rig.remove_device(0);
            rig.exchange(i, 10_000);
            rig.wires.add_device(&rig.hosts[0].fabric);
            testing::pass_ns(61_000_000_000);
            rig.settle();
            let new = rig.connect(0, 1);
            rig.promoted(new);
        } else {
            rig.wires.lose_queues(&rig.hosts[0].fabric);
        }
        rig.exchange(i, 10_000);
        assert!(queues::queues().count() <= 4, "{}", queues::queues().count());
    }
    rig.finish();
}

#[test]
fn a_queue_that_cannot_be_polled_takes_no_other_pairs() {
    for model in MODELS {
        for h in [0, 1] {
            let mut rig = Rig::new(Order::Shuffled(h as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            let lost = rig.queues_of(h)[0];
            rig.wires.fail_call(&rig.hosts[h].fabric, Call::Poll, 1, libc::EIO);
            rig.exchange(i, 10_000);
            rig.promoted(i);
            rig.exchange(i, 10_000);
            let now = rig.queues_of(h);
            assert!(now.len() == 1 && !core::ptr::eq(now[0], lost), "{}", rig.describe());
            assert_eq!(rig.objects(h).queues, 1);
            rig.finish();
        }
    }
}

#[test]
fn the_peers_process_is_killed() {
    for model in MODELS {
        for when in (0..60).step_by(7) {
            for h in [0, 1] {
                let mut rig = Rig::new(Order::Shuffled(when as u64), model, 2);
                let i = rig.connect(0, 1);
                rig.promoted(i);
                rig.play(when, |_, _| {});
                rig.kill(h);
                // What had arrived is read; then the connection is broken.
                let side = 1 - h;
                rig.until("the survivor is told", |r| {
                    while r.receive(i, side, 30_000) > 0 {}
                    r.send(i, side, 100);
                    r.conns[i][side].over.is_some()
                });
                let over = rig.conns[i][side].over;
                assert!(
                    over == Some(-(libc::ECONNRESET as isize))
                        || over == Some(-(libc::EPIPE as isize)),
                    "{over:?}"
                );
                // Told once, whatever the carrier says of itself besides.
                let (s, fd) = (rig.conns[i][side].socket, rig.conns[i][side].fd);
                let mut error = 0;
                assert!(sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) >= 0);
                let left = crate::io::on_error_taken(s, s.generation16(), fd, error);
                let told = over == Some(-(libc::ECONNRESET as isize));
                assert!(!told || left.unwrap_or(error) == 0, "{left:?} {error}");
                rig.finish();
            }
        }
    }
}

/// What poll and a new set say of a descriptor now.
fn said_of(fd: c_int) -> (i16, u32) {
    let asked = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
    let mut one = libc::pollfd { fd, events: asked, revents: 0 };
    let none = core::ptr::null();
    // SAFETY: one entry, and one event, of our own; no mask.
    unsafe {
        assert!(crate::api::poll(&mut one, 1, 0, none) >= 0);
        let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        crate::api::on_epoll_create(set);
        let mut event = epoll_event { events: asked as u32, u64: 0 };
        let r = crate::api::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event);
        assert_eq!(r, 0, "the library's");
        let (mut event, mut counted) =
            (epoll_event { events: 0, u64: 0 }, crate::api::Counted::default());
        let n = crate::api::epoll_wait(set, &mut event, 1, 0, none, &mut counted);
        assert_eq!(crate::api::close(set), 0);
        (one.revents, if n > 0 { event.events } else { 0 })
    }
}

/// Who has just gone back to the carrier does not send there before the peer has heard of it. One
/// that is killed, or stopped while something resets the carrier, never does: there is an error for
/// whoever sends, and poll and epoll say that, as of any connection that is over. (They said
/// everything but that it can be written.)
#[test]
fn who_leaves_a_peer_that_never_hears_of_it_can_send_and_is_told() {
    for (model, is_killed) in MODELS.into_iter().flat_map(|m| [(m, true), (m, false)]) {
        let mut rig = Rig::new(Order::Shuffled(3), model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.drain(i);
        let End { socket: s, fd, .. } = rig.conns[i][C];
        let slot = s.slot.load(Relaxed) as usize;
        s.channel().unwrap().far.demote(slot, Reason::RdmaLost, false);
        let mut turn = 0;
        while s.published.sends_fast() && turn < 1000 {
            rig.step(turn % 2);
            rig.serve_queues();
            turn += 1;
        }
        assert!(s.is(State::Attached) && !s.published.sends_fast(), "{}", rig.describe());
        assert!(said_of(fd).0 & libc::POLLOUT == 0, "{model:?}: nobody has heard yet");
        if is_killed {
            rig.kill(1);
        } else {
            rig.hosts[1].stopped = true;
            crate::carrier::dissolve(rig.conns[i][A].fd);
        }
        rig.until("the kernel says so", |_| sys::poll_now(fd, 0) & libc::POLLHUP != 0);
        let (polled, reported) = said_of(fd);
        let at = format!("{model:?} {is_killed}");
        assert_eq!(polled & libc::POLLOUT, libc::POLLOUT, "{at}: {polled:#x}");
        assert_eq!(reported & libc::EPOLLOUT as u32, libc::EPOLLOUT as u32, "{at}");
        rig.send(i, C, 100);
        assert!(rig.conns[i][C].over.is_some(), "{at}: the first send says so");
        rig.hosts[1].stopped = false;
        rig.close(i, C);
        if !is_killed {
            rig.close(i, A);
        }
        rig.settle();
    }
}

/// A send that has taken a part of its bytes when it finds the peer gone leaves the carrier's error
/// to the next call. (It took it along, nobody was told, and the stream ended as if in order.)
#[test]
fn a_send_in_part_leaves_the_error_to_the_next_call() {
    for model in MODELS {
        for receives in [true, false] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.drain(i);
            let s = rig.conns[i][C].socket;
            let channel = s.channel().unwrap();
            let words = channel.words(s.slot.load(Relaxed) as usize, channel.side);
            let used = s.published.tail.load(Relaxed) - words.head.load(Relaxed);
            let mut room = (s.tx_ring_bytes() - used) as usize;
            while room > 100 {
                let part = 30_000.min(room - 100);
                assert_eq!(rig.send(i, C, part), part);
                room -= part;
            }
            rig.kill(1);
            assert_eq!(rig.send(i, C, 5000), 100);
            if receives {
                rig.receive(i, C, 100);
            } else {
                rig.send(i, C, 100);
            }
            assert_eq!(rig.conns[i][C].over, Some(-(libc::ECONNRESET as isize)), "{receives}");
            rig.close(i, C);
            rig.settle();
        }
    }
}

/// What the carrier has told of the peer's end is not told again when the pair is known to be lost.
#[test]
fn an_error_of_the_carriers_is_told_once() {
    for model in MODELS {
        for first in ["asks", "receives", "sends"] {
            let mut rig = Rig::new(Order::Prompt, model, 2);
            let i = rig.connect(0, 1);
            for _ in 0..3 {
                rig.chat(i);
            }
            // The direction of the call that is told stands on the carrier.
            let (from, to) = if first == "sends" { (A, C) } else { (C, A) };
            rig.until("one direction is promoted", |r| {
                r.send(i, from, 100);
                while r.receive(i, to, 30_000) > 0 {}
                r.conns[i][from].socket.published.sends_fast()
            });
            rig.drain(i);
            let (s, fd) = (rig.conns[i][C].socket, rig.conns[i][C].fd);
            if first == "sends" {
                // (And stays there, as one that has carried urgent data.)
                let _tx = crate::lock::lock_end(&s.tx_lock);
                // SAFETY: under its lock.
                unsafe { (*s.tx.get()).never = true };
                assert!(!s.published.sends_fast());
            } else {
                assert!(!s.published.receives_fast());
            }
            let resets = libc::linger { l_onoff: 1, l_linger: 0 };
            let theirs = rig.conns[i][A].fd;
            assert!(sys::setsockopt(theirs, libc::SOL_SOCKET, libc::SO_LINGER, &resets) >= 0);
            rig.kill(1);
            let mut error = 0;
            if first == "asks" {
                assert!(sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error) >= 0);
                error = crate::io::on_error_taken(s, s.generation16(), fd, error).unwrap_or(error);
            } else if first == "sends" {
                rig.send(i, C, 100);
                error = -rig.conns[i][C].over.take().unwrap() as i32;
            } else {
                rig.receive(i, C, 100);
                error = -rig.conns[i][C].over.take().unwrap() as i32;
            }
            assert_eq!(error, libc::ECONNRESET);
            rig.settle();
            rig.receive(i, C, 100);
            assert_eq!(rig.conns[i][C].over.take(), Some(0), "{first}");
            rig.send(i, C, 100);
            assert_eq!(rig.conns[i][C].over, Some(-(libc::EPIPE as isize)), "{first}");
            rig.close(i, C);
            rig.settle();
        }
    }
}

/// A child of the killed process goes on with the connection, without the library. What was in the
/// rings it lacks, so it must not see the end of a complete stream.
#[test]
fn who_goes_on_without_the_library_sees_no_clean_end() {
    for model in MODELS {
        for (h, half) in [(0, false), (1, false), (0, true), (1, true)] {
            let mut rig = Rig::new(Order::Shuffled(h as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.send(i, 1 - h, 3000);
            rig.send(i, h, 3000);
            let child = numbers::copy(rig.conns[i][h].fd);
            rig.kill(h);
            if half {
                // It says that it sends nothing more, and is sent something.
                assert_eq!(sys::shutdown(child, libc::SHUT_WR), 0);
                rig.conns[i][1 - h].socket.raise(flag::CARRIER_SPOKE);
                rig.send(i, 1 - h, 3000);
            }
            // As when another process answers at its port.
            rig.remote(1 - h).on_link_fault(0, link::Fault::Over);
            rig.until("the survivor is told", |r| {
                while r.receive(i, 1 - h, 30_000) > 0 {}
                r.conns[i][1 - h].over.is_some()
            });
            assert_eq!(rig.conns[i][1 - h].over, Some(-(libc::ECONNRESET as isize)));
            assert_eq!(read_to_the_end(child), -(libc::ECONNRESET as isize), "{model:?}, {h}");
            close_own(child);
            rig.finish();
        }
    }
}

/// Who closes with bytes unread says its last words on the link, and its kernel resets the carrier:
/// these are two connections, and the words may come first. What was sent on the carrier before is
/// read all the same, as with TCP.
#[test]
fn what_is_on_the_carrier_is_read_though_last_words_overtake_the_reset() {
    for model in MODELS {
        for h in [0, 1] {
            let mut rig = Rig::new(Order::Shuffled(h as u64), model, 2);
            let i = rig.connect(0, 1);
            (0..3).for_each(|_| rig.chat(i));
            assert_eq!(rig.send(i, h, 3000), 3000);
            rig.until("the other direction is promoted", |r| {
                r.send(i, 1 - h, 700);
                while r.receive(i, h, 5000) > 0 {}
                let says = |side: usize| &r.conns[i][side].socket.published;
                (0..2).all(|side| r.is_attached(i, side))
                    && says(1 - h).sends_fast()
                    && says(h).receives_fast()
            });
            assert!(!rig.conns[i][h].socket.published.sends_fast(), "{}", rig.describe());
            rig.send(i, 1 - h, 3000);
            rig.settle();
            // Without this the reset would be there at once.
            let reset = numbers::copy(rig.conns[i][h].fd);
            rig.close(i, h);
            rig.until("the last words have come", |r| {
                r.conns[i][1 - h].socket.has(flag::BROKEN_OFF)
            });
            close_own(reset);
            rig.until("the end is told", |r| {
                while r.receive(i, 1 - h, 1000) > 0 {}
                r.conns[i][1 - h].over.is_some()
            });
            let end = &rig.conns[i][1 - h];
            assert_eq!(end.over, Some(-(libc::ECONNRESET as isize)), "{model:?}, {h}");
            assert_eq!(end.received, rig.conns[i][h].sent, "{model:?}, {h}");
            rig.finish();
        }
    }
}

/// What a receive of the kernel's says behind all bytes.
fn read_to_the_end(fd: c_int) -> isize {
    let mut part = [0u8; 4096];
    loop {
        // SAFETY: a live buffer.
        let r = unsafe {
            sys::recvfrom(
                fd,
                part.as_mut_ptr(),
                part.len(),
                0,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        if r <= 0 {
            return r;
        }
    }
}

/// What a host's pairs send is lost, and no device says so.
#[test]
fn what_does_not_arrive_goes_over_tcp_within_a_quarter_of_a_second() {
    for model in MODELS {
        for h in [0, 1] {
            let mut rig = Rig::new(Order::Shuffled(h as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.exchange(i, 10_000);
            rig.wires.mute(&rig.hosts[h].fabric, true);
            // By how far the clock was set forward, which is what was waited for: how long the
            // machine takes is nobody's promise. (In parts: what is sent again fills the carrier.)
            for part in 0..10 {
                let began = testing::ahead_ns();
                rig.exchange(i, 10_000);
                let took = (testing::ahead_ns() - began) / 1_000_000;
                assert!(took <= 260, "{model:?}, host {h}, part {part}: {took} ms");
            }
            // Pairs that come to be and die are tried more and more rarely, and never in the way.
            let before = rig.calls(0, Call::Connect);
            let until = sys::now_ns() + 600_000_000_000;
            let mut slowest = 0;
            while sys::now_ns() < until {
                let began = testing::ahead_ns();
                rig.exchange(i, 1_000);
                slowest = slowest.max(testing::ahead_ns() - began);
                testing::pass_ns(100_000_000);
            }
            let tried = rig.calls(0, Call::Connect) - before;
            assert!((8..=18).contains(&tried), "{model:?}, host {h}: {tried} pairs in ten minutes");
            assert!(slowest <= 260_000_000, "{model:?}, host {h}: {slowest} ns");
            rig.wires.mute(&rig.hosts[h].fabric, false);
            rig.promoted(i);
            rig.exchange(i, 10_000);
            rig.finish();
        }
    }
}

/// What stood still on a pair that is given up is told, and makes its trace worth being kept; not
/// where no wait is too long.
#[test]
fn a_pair_on_which_nothing_arrives_is_in_the_trace() {
    testing::init();
    for (trace_slow_ms, is_told) in [(5000, true), (0, false)] {
        let config = Config { trace: true, trace_slow_ms, ..config::get().clone() };
        config::with(config, || {
            let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            let s = rig.conns[i][C].socket;
            // (The library's own thread makes room for it, which this one is here.)
            rig.until("it is traced", |r| {
                trace::keep_ready();
                r.exchange(i, 100);
                testing::pass_ns(2_000_000_000);
                s.trace(Event::Doorbell, 0);
                s.ring.load(Relaxed) != 0
            });
            let ring = trace::ring(s.ring.load(Relaxed)).unwrap();
            assert_eq!(ring.worth.load(Relaxed), 0);
            rig.wires.mute(&rig.hosts[0].fabric, true);
            rig.exchange(i, 10_000);
            let slow = ring.events.iter().find(|[a, _]| a.load(Relaxed) & 63 == Event::Slow as u64);
            let waits = slow.map(|[_, what]| what.load(Relaxed) & 0xff);
            assert_eq!(waits, is_told.then_some(Slow::Rdma as u64), "{trace_slow_ms}");
            assert_eq!(ring.worth.load(Relaxed) != 0, is_told);
            rig.wires.mute(&rig.hosts[0].fabric, false);
            rig.finish();
        });
    }
}

/// `NACC_RDMA_STALL_MS=0`: that is the device's to find, also behind a link that was resumed, and
/// nobody looks again and again meanwhile.
#[test]
fn without_a_limit_no_pair_is_given_up() {
    testing::init();
    let config = Config { rdma_stall_ms: 0, ..config::get().clone() };
    config::with(config, || {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.wires.mute(&rig.hosts[0].fabric, true);
        rig.break_links(1);
        for _ in 0..20 {
            rig.send(i, C, 1000);
            testing::pass_ns(1_000_000_000);
            rig.settle();
        }
        assert!(rig.is_fast(i), "{}", rig.describe());
        rig.wires.break_pairs(&rig.hosts[0].fabric);
        rig.wires.mute(&rig.hosts[0].fabric, false);
        rig.drain(i);
        rig.finish();
    });
}

/// Small packets come through and large ones are dropped: what a pair has moved shows nothing.
#[test]
fn where_only_large_messages_are_lost_pairs_are_tried_more_and_more_rarely() {
    for model in MODELS {
        for h in [0, 1] {
            let mut rig = Rig::new(Order::Shuffled(h as u64), model, 2);
            let i = rig.connect(0, 1);
            rig.promoted(i);
            rig.wires.mute_large(&rig.hosts[h].fabric, 1024);
            let before = rig.calls(0, Call::Connect);
            let until = sys::now_ns() + 600_000_000_000;
            let mut worked = 0;
            while sys::now_ns() < until {
                rig.chat(i);
                if rig.is_fast(i) {
                    (0..80).for_each(|_| rig.exchange(i, 10));
                    worked += u32::from(rig.is_fast(i));
                    rig.exchange(i, 50_000);
                    assert!(!rig.is_fast(i), "{model:?}, host {h}");
                }
                testing::pass_ns(500_000_000);
                rig.settle();
            }
            assert!(worked >= 4, "{model:?}, host {h}: small ones came through {worked} times");
            let tried = rig.calls(0, Call::Connect) - before;
            assert!((8..=18).contains(&tried), "{model:?}, host {h}: {tried} pairs in ten minutes");
            rig.finish();
        }
    }
}

/// A peer that is stopped takes nothing, and nothing is given up for that.
#[test]
fn a_peer_that_does_not_answer_keeps_its_pairs() {
    for model in MODELS {
        let mut rig = Rig::new(Order::Shuffled(1), model, 2);
        let i = rig.connect(0, 1);
        rig.promoted(i);
        rig.hosts[1].stopped = true;
        for _ in 0..20 {
            rig.send(i, C, 5_000);
            testing::pass_ns(1_000_000_000);
            rig.settle();
        }
        rig.hosts[1].stopped = false;
        rig.drain(i);
        rig.exchange(i, 10_000);
        assert!(rig.is_fast(i), "{model:?}: {}", rig.describe());
        rig.finish();
    }
}

/// What a call that begins before the attachment moves, and what has happened by then.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moves {
    Attached,
    /// So many steps after the pair was lost.
    Leaving(usize),
    Left,
    AttachedAgain,
}

impl Rig {
    /// The acceptor's end of `i` moves `n` bytes by the kernel's own call.
    fn by_kernel(&mut self, i: usize, side: Side, n: usize) -> isize {
        if side == Side::Receive {
            let mut left = n;
            self.until("what the call receives is sent", |r| {
                left -= r.send(i, C, left);
                left == 0
            });
        }
        let e = &mut self.conns[i][A];
        if side == Side::Send {
            // SAFETY: a buffer of ours.
            let r = unsafe { sys::sendto(e.fd, bytes(e.stream, e.sent, n).as_ptr(), n, 0) };
            e.sent += r.max(0) as u64;
            return r;
        }
        let mut part = vec![0u8; n];
        let none = core::ptr::null_mut();
        // SAFETY: as above.
        let r = unsafe {
            sys::recvfrom(e.fd, part.as_mut_ptr(), n, libc::MSG_WAITALL, none, none.cast())
        };
        assert_eq!(&part[..], bytes(e.stream ^ 1, e.received, n));
        e.received += r.max(0) as u64;
        r
    }

    /// Until the direction in which no call is under way is on the ring.
    fn other_way_moves(&mut self, i: usize, side: Side) {
        self.until(&format!("the other direction of connection {i} is promoted"), |r| {
            r.chat(i);
            let said = &r.conns[i][A].socket.published;
            let other = if side == Side::Send { said.receives_fast() } else { said.sends_fast() };
            let this = if side == Side::Send { said.sends_fast() } else { said.receives_fast() };
            assert!(!this, "promoted with a call under way");
            r.is_attached(i, C) && r.is_attached(i, A) && other
        });
    }
}

#[test]
fn a_call_from_before_the_attachment_outlives_a_pair() {
    for model in MODELS {
        for (n, side) in [Side::Send, Side::Receive].into_iter().enumerate() {
            let leaving = (0..60).step_by(6).map(Moves::Leaving);
            for moves in
                [Moves::Attached, Moves::Left, Moves::AttachedAgain].into_iter().chain(leaving)
            {
                let mut rig = Rig::new(Order::Shuffled(n as u64), model, 2);
                let i = rig.connect(0, 1);
                let (s, fd) = (rig.conns[i][A].socket, rig.conns[i][A].fd);
                // In a thread of the application's, as it were.
                let r = io::candidate(Named { s, g: s.generation16(), fd }, side, 0, |_| {
                    rig.other_way_moves(i, side);
                    let mut r = 0;
                    if moves == Moves::Attached {
                        r = rig.by_kernel(i, side, 600);
                    }
                    rig.wires.break_pairs(&rig.hosts[0].fabric);
                    if let Moves::Leaving(steps) = moves {
                        rig.play(steps, |_, _| {});
                        return rig.by_kernel(i, side, 600);
                    }
                    rig.until("both ends are candidates again", |r| {
                        r.drain(i);
                        !r.is_attached(i, C) && !r.is_attached(i, A)
                    });
                    if moves == Moves::Left {
                        r = rig.by_kernel(i, side, 600);
                    }
                    rig.other_way_moves(i, side);
                    if moves == Moves::AttachedAgain {
                        r = rig.by_kernel(i, side, 600);
                    }
                    r
                });
                assert_eq!(r, Some(600), "{side:?}, {moves:?}");
                rig.promoted(i);
                rig.exchange(i, 50_000);
                assert!(rig.conns[i].iter().all(|e| e.over.is_none()), "{}", rig.describe());
                rig.finish();
            }
        }
    }
}
