//! Parameters that only the path between hosts heeds, or heeds in a way of its own.

use super::*;
use crate::channel::Peers;
use crate::socket::Limit;
use crate::wait;
use netacc_control::config::Config;
use netacc_control::stats::Counter;

/// `NACC_CQ_COMP_VECTOR`: the first queue has that vector, the next ones those behind it, as many
/// as the device has.
#[test]
fn queues_take_the_completion_vectors_from_the_one_that_is_set() {
    for (comp_vector, vectors, expected) in [
        (0, 4, [0, 1, 2]),
        (2, 4, [2, 3, 0]),
        (3, 4, [3, 0, 1]),
        (7, 4, [3, 0, 1]),
        (0, 1, [0, 0, 0]),
        (1023, 64, [63, 0, 1]),
    ] {
        let config = Config { comp_vector, connections_per_channel: 1, ..Config::default() };
        crate::config::with(config, || {
            // A queue has room for one pair.
            let model = Model { vectors, entries_max: 64, ..Model::ROCE };
            let mut rig = Rig::new(Order::Prompt, model, 2);
            for _ in expected {
                let i = rig.connect(0, 1);
                rig.promoted(i);
            }
            for h in [0, 1] {
                let found = rig.wires.vectors(&rig.hosts[h].fabric);
                assert_eq!(found, expected, "from {comp_vector} on, of {vectors}");
            }
            rig.finish();
        });
    }
}

/// Time that a poll takes.
const POLL_NS: u64 = 20_000;

fn count(counter: Counter) -> u64 {
    stats::header().map_or(0, |h| h.counter(counter))
}

/// What a receive that finds nothing does until it is over: polls of the completion queue, and
/// whether the device was to wake somebody while it slept.
fn waits(rig: &mut Rig, i: usize, poll_ms: Option<u32>) -> (u64, bool) {
    let config = Config { poll_ms, ..crate::config::get().clone() };
    // As where polling has paid so far.
    let pays =
        || assert!((0..16).all(|_| wait::spin(Peers::OtherHosts, Limit::CONFIGURED, || true)));
    let fabric = rig.hosts[0].fabric.clone();
    crate::config::with(config, || {
        if poll_ms != Some(0) {
            pays();
        }
        let before = rig.calls(0, Call::Poll);
        queues::queues().for_each(|q| q.armed.store(false, SeqCst));
        rig.wires.at_each_poll(&fabric, Some(|| testing::pass_ns(POLL_NS)));
        let mut byte = 0;
        // SAFETY: a buffer of ours.
        let r =
            testing::with_frozen_clock(|| unsafe { io::recv(rig.conns[i][C].fd, &mut byte, 1, 0) });
        rig.wires.at_each_poll(&fabric, None);
        assert_eq!(r, -(libc::EAGAIN as isize), "it ends by its time-out");
        let armed = queues::queues().any(|q| q.armed.load(SeqCst));
        (rig.calls(0, Call::Poll) - before, armed)
    })
}

/// `NACC_POLL_MS`: for how long a thread that waits for bytes of another host polls the completion
/// queue before it sleeps.
#[test]
fn a_waiting_thread_polls_for_as_long_as_is_set_and_then_sleeps() {
    wait::ALONE.set(true);
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    rig.exchange(i, 10_000);
    let fd = rig.conns[i][C].fd;
    let time = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    assert_eq!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time), 0);
    // SAFETY: a time-out's value.
    unsafe {
        crate::options::on_setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const time).cast(),
            size_of_val(&time) as u32,
        )
    };
    let mut polls = |poll_ms| {
        rig.settle();
        let (polls, armed) = waits(&mut rig, i, poll_ms);
        rig.settle();
        assert!(armed, "{poll_ms:?}: it slept and would not have been woken");
        polls
    };
    let never = polls(Some(0));
    assert!(never <= 8, "{never} polls with 0");
    for (poll_ms, ns) in [
        (None, 60_000),
        (Some(1), 1_000_000),
        (Some(5), 5_000_000),
        (Some(10), 10_000_000),
        (Some(60_000), 10_000_000),
    ] {
        // (The clock is looked at after each eighth.)
        let expected = ns / POLL_NS..=ns / POLL_NS + 8;
        let polls = polls(poll_ms) - never;
        assert!(expected.contains(&polls), "{poll_ms:?}: {polls}, and {never} with 0");
    }
    rig.finish();
}

std::thread_local! {
    /// The peer sends with so many polls from now on, by that descriptor.
    static LEFT: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
    static PEER: core::cell::Cell<c_int> = const { core::cell::Cell::new(-1) };
}
const MESSAGE: &[u8] = &[7; 512];

fn peer_sends() {
    LEFT.set(LEFT.get().saturating_sub(1));
    if LEFT.get() == 0 && PEER.get() >= 0 {
        let fd = PEER.replace(-1);
        // SAFETY: a buffer of ours.
        let r = unsafe { io::send(fd, MESSAGE.as_ptr(), MESSAGE.len(), libc::MSG_DONTWAIT) };
        assert_eq!(r, MESSAGE.len() as isize);
    }
}

/// What comes while a thread polls needs no interrupt; with 0 the device is to wake somebody for
/// each message.
#[test]
fn what_comes_while_a_thread_polls_needs_no_interrupt() {
    const ROUNDS: u64 = 20;
    wait::ALONE.set(true);
    let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
    let i = rig.connect(0, 1);
    rig.promoted(i);
    rig.exchange(i, 10_000);
    let fabric = rig.hosts[0].fabric.clone();
    for (poll_ms, polls) in [(Some(0), false), (Some(10), true)] {
        let config = Config { poll_ms, ..crate::config::get().clone() };
        crate::config::with(config, || {
            if polls {
                assert!((0..16).all(|_| wait::spin(Peers::OtherHosts, Limit::CONFIGURED, || true)));
            }
            let (arms, won) = (rig.calls(0, Call::Arm), count(Counter::SpinsWon));
            for _ in 0..ROUNDS {
                queues::queues().for_each(|q| q.armed.store(false, SeqCst));
                LEFT.set(3);
                PEER.set(rig.conns[i][A].fd);
                rig.wires.at_each_poll(&fabric, Some(peer_sends));
                let mut part = [0; MESSAGE.len()];
                // SAFETY: a buffer of ours.
                let r = unsafe {
                    io::recv(rig.conns[i][C].fd, part.as_mut_ptr(), part.len(), libc::MSG_WAITALL)
                };
                rig.wires.at_each_poll(&fabric, None);
                assert_eq!((r, &part[..]), (MESSAGE.len() as isize, MESSAGE));
            }
            let arms = rig.calls(0, Call::Arm) - arms;
            let won = count(Counter::SpinsWon) - won;
            let expected = if polls { (0, ROUNDS) } else { (ROUNDS, 0) };
            assert_eq!((arms, won), expected, "armed, and polls that paid, with {poll_ms:?}");
        });
    }
    rig.settle();
    rig.finish();
}
