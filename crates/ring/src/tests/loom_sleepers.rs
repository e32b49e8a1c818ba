//! Sleeping and being woken, with threads that really sleep: a wake-up that is lost is a deadlock,
//! which loom finds.
//!
//! Each case does what the library's calls do, in their order: `wait::block` and `wait::sleep`, the
//! waits of a set, a send, a receive that gives room back, `wait::prod`, the agents that learn of a
//! doorbell or of a death.

use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::util::{read, write};
use crate::sleepers::{self, Doorbell, Outside, Posted, Side, Watch};
use crate::{Consumer, Producer, ReadySet, RingWords};

const NOTIFY: usize = 0;

/// As [`super::loom_tests`] bounds its large cases.
fn bounded(case: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(case);
}

/// What a sleeper sleeps on, and others ring: it stays rung until it is heard.
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { rung: Mutex::new(false), heard: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_all();
    }

    /// Sleeps until it is rung, and hears it.
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.heard.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A place: what is shared with the peer, and its doorbell.
struct Place {
    set: ReadySet,
    bell: Bell,
}

/// One direction of a connection, with two places at each end.
struct Connection {
    words: RingWords,
    posted: Posted,
    places: [Place; 2],
    /// Something of this process's own that a sleeper looks at: no peer announces it.
    changed: AtomicBool,
}

impl Connection {
    fn new() -> Arc<Self> {
        let place = || Place { set: ReadySet::default(), bell: Bell::new() };
        Arc::new(Self {
            words: RingWords::default(),
            posted: Posted::default(),
            places: [place(), place()],
            changed: AtomicBool::new(false),
        })
    }

    /// The sender: publishes, and tells whom NOTIFY names.
    fn send(&self, tail: u64) {
        self.words.tail.store(tail, Release);
        self.tell(&self.words.quiet[NOTIFY]);
    }

    /// `Channel::notify`. What NOTIFY said.
    fn tell(&self, notify: &AtomicU64) -> u64 {
        let notify = sleepers::whom_to_tell(notify);
        // (The places of sets begin at an even number.)
        let set = |place: usize| &self.places[place & 1].set;
        sleepers::tell(notify, 0, set, |_, _| (), |place| self.places[place & 1].bell.ring());
        notify
    }

    /// `wait::prod`.
    fn prod(&self) {
        let awaited = self.posted.awaited();
        for thread in awaited.threads.iter().filter_map(|place| place.checked_sub(1)) {
            self.places[thread as usize].bell.ring();
        }
        for set in awaited.sets.iter().filter_map(|place| place.checked_sub(1)) {
            if self.places[set as usize & 1].set.announce_fenced(0) {
                self.places[set as usize & 1].bell.ring();
            }
        }
    }

    /// A thread that waits in `place` until `ready`: how `wait::block` and `wait::sleep` do it.
    fn wait(&self, side: Side, place: usize, word: &AtomicU64, ready: impl Fn() -> bool) {
        self.wait_or_ask(side, place, word, &ready, &ready);
    }

    /// As [`wait`](Self::wait), of one whose last look asks for what it has not found.
    fn wait_or_ask(
        &self,
        side: Side,
        place: usize,
        word: &AtomicU64,
        ready: impl Fn() -> bool,
        look: impl Fn() -> bool,
    ) {
        while !ready() {
            let own = &self.places[place];
            assert!(self.posted.post_thread(side, place as u32 + 1, word, || true));
            own.set.prepare_sleep();
            if !look() {
                own.bell.sleep();
            }
            own.set.cancel_sleep();
            self.posted.unpost_thread(side, place as u32 + 1, word);
        }
    }

    fn receive(&self, place: usize, tail: u64) {
        let word = &self.words.quiet[NOTIFY];
        self.wait(Side::Receive, place, word, || self.words.tail.load(Acquire) >= tail);
    }

    /// A set that has the connection: it looks at what its drains bring, and at the connection
    /// first where it has just got it (`look`).
    fn wait_in_set(&self, place: usize, tail: u64, mut look: bool) {
        let own = &self.places[place];
        loop {
            own.set.drain(|_| look = true);
            if core::mem::take(&mut look) && self.words.tail.load(Acquire) >= tail {
                return;
            }
            own.set.prepare_sleep();
            own.set.drain(|_| look = true);
            if !look {
                own.bell.sleep();
            }
            own.set.cancel_sleep();
        }
    }

    fn post_set(&self, place: u32) {
        self.post_set_at(0, place);
    }

    fn post_set_at(&self, at: usize, place: u32) {
        self.posted.post_set(at, place, [&self.words.quiet[NOTIFY], &self.words.producer_quiet[0]]);
    }
}

/// The receiver puts its place into NOTIFY while the sender looks there.
#[test]
fn loom_a_thread_that_goes_to_sleep_hears_of_bytes() {
    loom::model(|| {
        let connection = Connection::new();
        let theirs = connection.clone();
        let sender = thread::spawn(move || theirs.send(1));
        connection.receive(0, 1);
        sender.join().unwrap();
    });
}

/// It goes to sleep again behind the first bytes, while the sender is on its way with the second.
#[test]
fn loom_a_thread_that_goes_to_sleep_again_hears_of_more_bytes() {
    bounded(|| {
        let connection = Connection::new();
        let theirs = connection.clone();
        let sender = thread::spawn(move || {
            theirs.send(1);
            theirs.send(2);
        });
        connection.receive(0, 1);
        connection.receive(0, 2);
        sender.join().unwrap();
    });
}

/// A change that this process makes itself: a demotion, a shutdown, an end by another thread.
#[test]
fn loom_a_thread_that_goes_to_sleep_hears_of_a_change_of_its_own_process() {
    loom::model(|| {
        let connection = Connection::new();
        let theirs = connection.clone();
        let other = thread::spawn(move || {
            theirs.changed.store(true, Relaxed);
            theirs.prod();
        });
        let word = &connection.words.quiet[NOTIFY];
        connection.wait(Side::Receive, 0, word, || connection.changed.load(Relaxed));
        other.join().unwrap();
    });
}

/// Who rings whom: two threads of one connection sleep for its two directions, and one change is
/// for both.
#[test]
fn loom_a_change_wakes_the_threads_of_both_directions() {
    bounded(|| {
        let connection = Connection::new();
        let sleeper = |side, place: usize| {
            let own = connection.clone();
            thread::spawn(move || {
                let words = [&own.words.quiet[NOTIFY], &own.words.producer_quiet[0]];
                own.wait(side, place, words[place], || own.changed.load(Relaxed));
            })
        };
        let sleepers = [sleeper(Side::Receive, 0), sleeper(Side::Send, 1)];
        connection.changed.store(true, Relaxed);
        connection.prod();
        sleepers.map(|sleeper| sleeper.join().unwrap());
    });
}

/// Who rings whom: a set and a thread wait for the same bytes, each in its place.
#[test]
fn loom_bytes_wake_the_set_and_the_thread() {
    bounded(|| {
        let connection = Connection::new();
        connection.post_set(2);
        let set = connection.clone();
        let set = thread::spawn(move || set.wait_in_set(1, 1, true));
        let theirs = connection.clone();
        let sender = thread::spawn(move || theirs.send(1));
        connection.receive(0, 1);
        set.join().unwrap();
        sender.join().unwrap();
    });
}

/// A set takes a connection over while bytes come: it looks, or it is told.
#[test]
fn loom_a_set_that_takes_a_connection_over_hears_of_bytes() {
    loom::model(|| {
        let connection = Connection::new();
        let theirs = connection.clone();
        let sender = thread::spawn(move || theirs.send(1));
        connection.post_set(1);
        connection.wait_in_set(0, 1, true);
        sender.join().unwrap();
    });
}

/// A second set takes it as well, while bytes come: both hear of them.
#[test]
fn loom_a_second_set_takes_nothing_from_the_first() {
    bounded(|| {
        let connection = Connection::new();
        connection.post_set(1);
        let set = connection.clone();
        let first = thread::spawn(move || set.wait_in_set(0, 1, true));
        let theirs = connection.clone();
        let sender = thread::spawn(move || theirs.send(1));
        connection.post_set_at(1, sleepers::THREAD_PLACES as u32 + 2);
        connection.wait_in_set(1, 1, true);
        first.join().unwrap();
        sender.join().unwrap();
    });
}

/// And from another set, to which the sender may just announce.
#[test]
fn loom_a_set_that_takes_a_connection_from_another_hears_of_bytes() {
    bounded(|| {
        let connection = Connection::new();
        connection.post_set(1);
        let theirs = connection.clone();
        let sender = thread::spawn(move || theirs.send(1));
        connection.post_set(2);
        connection.wait_in_set(1, 1, true);
        sender.join().unwrap();
    });
}

/// A place changes hands: a thread leaves it as bytes come for its connection, and the next waits
/// there for bytes of another one. The late ring is for nobody, and the right one is not lost.
#[test]
fn loom_a_place_that_changes_hands_keeps_its_next_thread_awake() {
    bounded(|| {
        let first = Connection::new();
        let theirs = first.clone();
        let second = Arc::new((RingWords::default(), Posted::default()));
        let others = second.clone();
        let sender = thread::spawn(move || theirs.send(1));
        let other = thread::spawn({
            let place = first.clone();
            move || {
                others.0.tail.store(1, Release);
                place.tell(&others.0.quiet[NOTIFY]);
            }
        });
        // A wait without time: it posts, looks, and is gone.
        let word = &first.words.quiet[NOTIFY];
        assert!(first.posted.post_thread(Side::Receive, 1, word, || true));
        first.places[0].set.prepare_sleep();
        first.places[0].set.cancel_sleep();
        first.posted.unpost_thread(Side::Receive, 1, word);
        // The next one, in the same place.
        let (words, posted) = (&second.0, &second.1);
        while words.tail.load(Acquire) == 0 {
            assert!(posted.post_thread(Side::Receive, 1, &words.quiet[NOTIFY], || true));
            first.places[0].set.prepare_sleep();
            if words.tail.load(Acquire) == 0 {
                first.places[0].bell.sleep();
            }
            first.places[0].set.cancel_sleep();
            posted.unpost_thread(Side::Receive, 1, &words.quiet[NOTIFY]);
        }
        sender.join().unwrap();
        other.join().unwrap();
    });
}

/// The ends of a ring of `N` bytes whose words are a connection's.
fn ends<const N: usize>(
    connection: &Arc<Connection>,
) -> (Producer, Consumer, Box<[UnsafeCell<u8>]>) {
    let bytes: Vec<_> = (0..N).map(|_| UnsafeCell::new(0)).collect();
    let bytes = bytes.into_boxed_slice();
    let words = NonNull::from(&connection.words);
    let data = NonNull::from(&*bytes).cast();
    // SAFETY: the caller keeps connection and bytes for as long as the ends.
    let ends = unsafe { (Producer::new(words, data, N, 0), Consumer::new(words, data, N, 0)) };
    (ends.0, ends.1, bytes)
}

/// A sender without room, and a receiver that reads on: in steps, or all at once.
fn room(steps: &'static [usize]) {
    loom::model(move || {
        let connection = Connection::new();
        let (mut p, mut c, bytes) = ends::<4>(&connection);
        write(&mut p, &[1; 4]).unwrap();
        p.publish();
        let theirs = connection.clone();
        let receiver = thread::spawn(move || {
            for len in steps {
                assert_eq!(read(&mut c, *len).unwrap().len(), *len);
                c.publish();
                if c.take_space_request(|| {}) {
                    theirs.tell(&theirs.words.producer_quiet[0]);
                }
            }
        });
        let words = &connection.words;
        let room = || words.has_room(p.tail(), 4);
        let room_or_ask = || words.has_room_or_ask(|| p.tail(), 4);
        connection.wait_or_ask(Side::Send, 0, &words.producer_quiet[0], room, room_or_ask);
        receiver.join().unwrap();
        drop(bytes);
    });
}

#[test]
fn loom_a_thread_that_waits_for_room_hears_of_it() {
    room(&[4]);
}

#[test]
fn loom_a_thread_that_waits_for_room_hears_of_the_step_that_makes_it() {
    room(&[1, 1, 2]);
}

/// The same, where an engine brings how far the peer has read (`credit` of `netacc-rdma`).
#[test]
fn loom_a_thread_that_waits_for_room_hears_of_a_credit() {
    loom::model(|| {
        let connection = Connection::new();
        connection.words.tail.store(4, Relaxed);
        let theirs = connection.clone();
        let engine = thread::spawn(move || {
            let words = &theirs.words;
            for head in [1, 4] {
                words.head.store(head, Release);
                let room = || words.has_room(words.tail.load(Relaxed), 4);
                if words.take_space_request(room) {
                    theirs.tell(&words.producer_quiet[0]);
                }
            }
        });
        let words = &connection.words;
        let look = || words.has_room_or_ask(|| 4, 4);
        connection.wait_or_ask(
            Side::Send,
            0,
            &words.producer_quiet[0],
            || words.has_room(4, 4),
            look,
        );
        engine.join().unwrap();
    });
}

/// A receiver ends as bytes are published: it finds them, or the sender finds that it has ended.
#[test]
fn loom_bytes_for_a_receiver_that_ends_are_seen_at_one_end() {
    loom::model(|| {
        let connection = Connection::new();
        let theirs = connection.clone();
        let sender = thread::spawn(move || {
            theirs.words.tail.store(1, Release);
            theirs.tell(&theirs.words.quiet[NOTIFY]) & sleepers::ENDS != 0
        });
        sleepers::end(&connection.words.quiet[NOTIFY]);
        let seen = connection.words.tail.load(Acquire) == 1;
        assert!(sender.join().unwrap() || seen);
    });
}

/// A thread that looks at unread bytes now and then stops as some come: it finds them, or is woken.
#[test]
fn loom_a_thread_that_stops_watching_hears_of_bytes() {
    loom::model(|| {
        let shared = Arc::new((Connection::new(), Watch::default(), Bell::new()));
        // It looks already.
        assert!(shared.1.on_news_fenced());
        let theirs = shared.clone();
        let engine = thread::spawn(move || {
            theirs.0.send(1);
            if theirs.1.on_news_fenced() {
                theirs.2.ring();
            }
        });
        shared.1.begin_look();
        if shared.0.words.tail.load(Acquire) == 0 {
            shared.2.sleep();
            assert_eq!(shared.0.words.tail.load(Acquire), 1);
        }
        engine.join().unwrap();
    });
}

/// A doorbell comes while it is wanted: it is rung by one of the two.
#[test]
fn loom_a_doorbell_that_comes_when_it_is_wanted_is_rung() {
    loom::model(|| {
        let shared = Arc::new((AtomicI32::new(-1), AtomicU64::new(0), Bell::new()));
        let bit = 1 << 5;
        let theirs = shared.clone();
        let agent = thread::spawn(move || {
            let doorbell = Doorbell { number: &theirs.0, owed: &theirs.1, bit };
            let (old, wanted) = doorbell.learn(7);
            assert_eq!(old, -1);
            if wanted {
                theirs.2.ring();
            }
        });
        let sleepers = shared.clone();
        let sleeper = thread::spawn(move || sleepers.2.sleep());
        if let Some(number) = (Doorbell { number: &shared.0, owed: &shared.1, bit }).want() {
            assert_eq!(number, 7);
            shared.2.ring();
        }
        sleeper.join().unwrap();
        agent.join().unwrap();
    });
}

/// The peer dies as a thread gives it the doorbell by which it wants to be woken.
#[test]
fn loom_a_thread_that_gives_its_doorbell_to_the_dead_does_not_sleep() {
    loom::model(|| {
        let shared = Arc::new((AtomicI32::new(-1), AtomicU32::new(0), Bell::new()));
        let theirs = shared.clone();
        let agent = thread::spawn(move || {
            theirs.1.store(1, Relaxed);
            sleepers::ring_for_the_dead([&theirs.0].into_iter(), |_| theirs.2.ring());
        });
        if sleepers::hand_over(&shared.0, 7, &shared.1) {
            shared.2.sleep();
        }
        agent.join().unwrap();
    });
}

/// The kernel's set as it is before it has accelerated connections: threads sleep in it unseen, and
/// only what is level-triggered wakes all of them.
struct Kernel {
    beacon: Mutex<bool>,
    lit: Condvar,
}

impl Kernel {
    fn wait(&self) {
        let mut beacon = self.beacon.lock().unwrap();
        while !*beacon {
            beacon = self.lit.wait(beacon).unwrap();
        }
    }

    fn shine(&self, on: bool) {
        *self.beacon.lock().unwrap() = on;
        self.lit.notify_all();
    }
}

/// A set gets its first accelerated connection while threads go into the kernel's wait for it: each
/// comes in, and the beacon goes out behind the last.
fn called_in(threads: usize) {
    bounded(move || {
        let kernel = Kernel { beacon: Mutex::new(false), lit: Condvar::new() };
        let set = Arc::new((kernel, Outside::default(), AtomicBool::new(false)));
        let enter = || {
            let set = set.clone();
            thread::spawn(move || {
                let (kernel, outside, active) = &*set;
                let (time, is_active) = outside.enter(active);
                if !is_active {
                    kernel.wait();
                }
                outside.leave(time);
                if outside.count() == 0 && active.load(Relaxed) {
                    kernel.shine(false);
                }
            })
        };
        let threads: Vec<_> = (0..threads).map(|_| enter()).collect();
        let (kernel, outside, active) = &*set;
        if outside.activate(active) > 0 {
            kernel.shine(true);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn loom_a_thread_in_the_kernels_wait_is_called_in() {
    called_in(1);
}

/// A set that had no place for its threads gets one as a thread goes back into the kernel's wait.
#[test]
fn loom_a_thread_that_goes_out_as_its_set_gets_a_place_comes_back() {
    loom::model(|| {
        let kernel = Kernel { beacon: Mutex::new(false), lit: Condvar::new() };
        let set = Arc::new((kernel, Outside::default(), AtomicBool::new(true), AtomicU32::new(0)));
        let thread = thread::spawn({
            let set = set.clone();
            move || {
                let (kernel, outside, active, place) = &*set;
                let (time, is_active) = outside.enter(active);
                if !is_active || place.load(Relaxed) == 0 {
                    kernel.wait();
                }
                outside.leave(time);
            }
        });
        let (kernel, outside, active, place) = &*set;
        place.store(1, Release);
        if outside.activate(active) > 0 {
            kernel.shine(true);
        }
        thread.join().unwrap();
    });
}
