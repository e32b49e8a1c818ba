//! Carriers that serve several lives, and peers that lie about them.

extern crate std;
use super::*;
use crate::api;
use crate::io::kept::{
    end_kept, end_listener, find_taken, give_up_listener, is_taken, retire_all, share_listener,
    sweep_in_time, waits_elsewhere,
};
use crate::io::leave::close_spare;
use crate::io::need_kernel::need_kernel;
use crate::outcome::PASS;
use crate::path::tests::{A, C, End, promoted_within_the_host, talk};
use crate::socket::NONE;
use netacc_proto::lives::Word;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Mutex, MutexGuard};

/// What is kept is the process's: one test at a time. In fast connect mode.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    crate::testing::init();
    let kept = netacc_control::config::Config { fast_connect: true, ..config::get().clone() };
    config::from_here_on(kept);
    guard
}

/// A listener with that backlog that gives out parked connections.
struct Listening {
    socket: TcpListener,
    known: &'static Listener,
}

impl Listening {
    fn new(backlog: c_int) -> Listening {
        Listening::with(backlog, |_| ())
    }

    fn with(backlog: c_int, set_up: impl FnOnce(c_int)) -> Listening {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        set_up(fd);
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::listen(fd, backlog) }, 0);
        fd_table::set(fd, Entry::Listener(NONE));
        fast_connect::on_listen(fd);
        Listening { socket, known: fast_connect::listener(fd).unwrap() }
    }

    fn give_out(&self) -> Option<c_int> {
        let s = self.known.next(true, is_taken)?;
        give_out(self.known, s, 0, |_| ()).ok()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        end_listener(self.known);
        fd_table::set(self.socket.as_raw_fd(), Entry::None);
    }
}

/// A connection on its rings, whose ends know of lives.
fn first_life(l: &Listening) -> [End; 2] {
    let ends = promoted_within_the_host();
    for e in &ends {
        begin(e.socket, e.socket.channel().unwrap(), e.socket.slot.load(Relaxed) as usize);
    }
    l.known.accepted(ends[A].socket);
    ends
}

fn word(s: &Socket) -> &'static core::sync::atomic::AtomicU64 {
    s.channel().unwrap().life(s.slot.load(Relaxed) as usize)
}

fn peer_address_of(s: &Socket) -> PeerAddress {
    let mut raw = [0u8; 128];
    let n = sys::socket_name(s.fd.load(Acquire), true, &mut raw);
    PeerAddress::of(&raw[..n as usize]).unwrap()
}

/// A socket of the application's that takes a carrier to that address.
fn connects(to: PeerAddress) -> Option<c_int> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    let domain = libc::AF_INET;
    let fresh = Fresh { fd, domain, nonblock: false, cloexec: false, marks: 0, untouched: false };
    if connect(&fresh, to) {
        return Some(fd);
    }
    // SAFETY: nobody else knows it.
    drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) });
    None
}

fn end_of(fd: c_int) -> End {
    End::of(fd, fd_table::socket(fd).unwrap().0)
}

fn kept() -> usize {
    fast_connect::count(|_| true)
}

/// Both applications close, the connector's first.
fn close_in_good_order(mut ends: [End; 2]) {
    ends[C].close();
    assert_eq!(ends[A].receive_now(A, 1), 0);
    ends[A].close();
}

/// Neither end is parked any more.
fn until_none_is_kept() {
    sweep();
    crate::testing::pass_ns(fast_connect::HALF_NS);
    sweep_in_time();
    assert_eq!(kept(), 0);
}

#[test]
fn a_carrier_serves_one_life_after_another() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let mut ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    for _ in 0..4 {
        close_in_good_order(ends);
        assert_eq!(kept(), 2);
        let c = connects(to).unwrap();
        assert!(connects(to).is_none(), "taken twice");
        let a = l.give_out().unwrap();
        assert!(l.give_out().is_none(), "given out twice");
        ends = [end_of(a), end_of(c)];
        talk(&mut ends, 1000);
    }
    close_in_good_order(ends);
    drop(l);
    until_none_is_kept();
}

#[test]
fn what_has_been_let_go_of_is_nobodys_before_its_word_says_so() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let mut ends = first_life(&l);
    let (s, to) = (ends[C].socket, peer_address_of(ends[C].socket));
    let own = own_name(s, ends[C].fd);
    assert!(lets_go(s, s.generation16(), own, Some(to)));
    assert_eq!(kept(), 1);
    sweep();
    sweep_in_time();
    retire_all();
    assert!(end_kept(s) && connects(to).is_none());
    assert_eq!(kept(), 1, "somebody has taken it out");
    assert!(closes(s, s.channel().unwrap(), None));
    let _ = sys::close(ends[C].fd);
    fd_table::set(ends[C].fd, Entry::None);
    assert_eq!(ends[A].receive_now(A, 1), 0);
    ends[A].close();
    let c = connects(to).unwrap();
    close_in_good_order([end_of(l.give_out().unwrap()), end_of(c)]);
    drop(l);
    until_none_is_kept();
}

/// What is let go of while its listener is closed: no word says that it is parked for long.
#[test]
fn what_closes_while_its_listener_is_closed_is_over() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let mut ends = first_life(&l);
    let s = ends[A].socket;
    ends[C].close();
    assert_eq!(ends[A].receive_now(A, 1), 0);
    let own = own_name(s, ends[A].fd);
    assert!(lets_go(s, s.generation16(), own, None));
    let (known, channel) = (l.known, s.channel().unwrap());
    drop(l);
    assert_eq!(fast_connect::count(|k| k.to.is_none()), 1);
    assert!(!closes(s, channel, Some(known)));
    assert_eq!(fast_connect::count(|k| k.to.is_none()), 0);
    let _ = sys::close(ends[A].fd);
    fd_table::set(ends[A].fd, Entry::None);
    until_none_is_kept();
}

#[test]
fn what_is_taken_when_its_listener_ends_is_reset() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    close_in_good_order(ends);
    let mut c = end_of(connects(to).unwrap());
    drop(l);
    assert_eq!(c.receive_now(C, 1), -(libc::ECONNRESET as isize));
    c.close();
    until_none_is_kept();
}

#[test]
fn no_more_is_kept_for_a_listener_than_its_backlog() {
    let _one = one_at_a_time();
    let l = Listening::new(1);
    for _ in 0..4 {
        close_in_good_order(first_life(&l));
    }
    let acceptors = || {
        let mut n = 0;
        fast_connect::pick_each(
            |k| k.to.is_none(),
            |k| {
                n += 1;
                give_up(k.socket);
            },
        );
        n
    };
    assert_eq!(acceptors(), 2);
    drop(l);
    until_none_is_kept();
}

#[test]
fn a_listener_that_is_given_up_retires_what_is_parked_for_it() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    close_in_good_order(ends);
    give_up_listener(l.known);
    assert!(connects(to).is_none());
    drop(l);
    until_none_is_kept();
}

/// What a liar writes: each life that could be meant, with each mark.
fn lies() -> impl Iterator<Item = u64> {
    let lives = [0, 1, 2, 3, u32::MAX].into_iter();
    let marks = lives.flat_map(|life| (0..32).map(move |m| u64::from(life) << 32 | m));
    marks.step_by(3).chain([u64::MAX, 1 << 63, 0xffff << 8 | 1 << 32, 0xffff << 8 | 3 | 1 << 32])
}

#[test]
fn an_acceptors_peer_that_lies_costs_its_own_carrier_alone() {
    let _one = one_at_a_time();
    for lie in lies() {
        let l = Listening::new(8);
        let mut ends = first_life(&l);
        ends[A].close();
        assert_eq!(kept(), 1);
        word(ends[A].socket).store(lie, SeqCst);
        // For a slot that it has, and for others.
        let channel = ends[C].socket.channel().unwrap();
        let slot = ends[C].socket.slot.load(Relaxed) as usize;
        for slot in [slot, slot + 1, 4095] {
            channel.announce_taken(l.known.announced_at(None), slot);
        }
        if let Some(fd) = l.give_out() {
            end_of(fd).close();
        }
        assert!(l.give_out().is_none());
        sweep();
        drop(l);
        ends[C].close();
        until_none_is_kept();
    }
}

#[test]
fn a_connectors_peer_that_lies_costs_its_own_carrier_alone() {
    let _one = one_at_a_time();
    for lie in lies() {
        let l = Listening::new(8);
        let mut ends = first_life(&l);
        let to = peer_address_of(ends[C].socket);
        ends[C].close();
        assert_eq!(kept(), 1);
        word(ends[C].socket).store(lie, SeqCst);
        if let Some(fd) = connects(to) {
            assert!(Word::from_bits(lie).is_ok_and(|w| w.acceptor_closed && w.connector_closed));
            let mut c = end_of(fd);
            assert!(connects(to).is_none());
            c.close();
        }
        ends[A].close();
        drop(l);
        until_none_is_kept();
    }
}

#[test]
fn nothing_is_kept_or_taken_where_acceleration_is_off() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let ends = first_life(&l);
    let waits = first_life(&l);
    let [to, there] = [&ends, &waits].map(|ends| peer_address_of(ends[C].socket));
    close_in_good_order(waits);
    let mut c = end_of(connects(there).unwrap());
    close_in_good_order(ends);
    let on = config::get().clone();
    config::from_here_on(netacc_control::config::Config {
        accelerate_by_default: false,
        ..on.clone()
    });
    retire_all();
    assert_eq!(kept(), 1, "what waits to be accepted, too");
    assert!(connects(to).is_none(), "taken");
    assert!(!parks(c.socket, c.socket.generation16(), c.fd));
    config::from_here_on(on);
    let mut a = end_of(l.give_out().unwrap());
    c.close();
    assert_eq!(a.receive_now(A, 1), 0);
    a.close();
    drop(l);
    until_none_is_kept();
}

#[test]
fn a_listener_that_listens_again_has_its_new_backlog() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let fd = l.socket.as_raw_fd();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::listen(fd, 0) }, 0);
    fast_connect::on_listen(fd);
    for _ in 0..3 {
        close_in_good_order(first_life(&l));
    }
    assert_eq!(fast_connect::count(|k| k.to.is_none()), 1);
    drop(l);
    until_none_is_kept();
}

/// Of a listener that others accept at, too, a carrier is taken while its process waits there, and
/// a moment after it came by in a loop of events.
#[test]
fn a_carrier_of_a_shared_port_is_taken_while_its_process_waits() {
    let _one = one_at_a_time();
    let l = Listening::with(8, |fd| {
        let on: c_int = 1;
        assert!(sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &on) >= 0);
    });
    let ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    let next = |l: &Listening| {
        let c = connects(to)?;
        let mut ends = [end_of(l.give_out().unwrap()), end_of(c)];
        talk(&mut ends, 100);
        close_in_good_order(ends);
        Some(())
    };
    close_in_good_order(ends);
    let serial = l.known.serial();
    assert_eq!(next(&l), None, "nobody waits");
    l.known.waits(serial);
    assert_eq!(next(&l), Some(()), "a thread waits");
    l.known.waits(serial);
    l.known.waited(serial, false);
    assert_eq!(next(&l), Some(()), "another one does");
    l.known.waited(serial, true);
    assert_eq!(next(&l), Some(()), "it comes again");
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(next(&l), None, "it came by long ago");
    l.known.waits(serial);
    l.known.waited(serial, false);
    assert_eq!(next(&l), None, "it serves somebody");
    // Who has waited for another one, under this number and entry, counts for nothing.
    l.known.waits(serial.wrapping_sub(1));
    assert!(!l.known.is(l.socket.as_raw_fd(), serial.wrapping_sub(1)));
    assert_eq!(next(&l), None, "another one was waited for");
    l.known.waits(serial);
    l.known.waited(serial.wrapping_sub(1), false);
    assert_eq!(next(&l), Some(()), "another one was waited for");
    l.known.waited(serial, false);
    l.known.waited(serial, false);
    l.known.waits(serial);
    assert_eq!(next(&l), Some(()), "it is counted once");
    drop(l);
    until_none_is_kept();
}

/// An epoll set of the application's.
struct Set(c_int);

impl Set {
    fn new() -> Set {
        let epfd = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
        api::on_epoll_create(epfd);
        Set(epfd)
    }

    fn add(&self, fd: c_int, events: c_int, data: u64) {
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: a live event.
        let r = unsafe { api::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, &mut event) };
        if r == PASS {
            // SAFETY: as above.
            assert_eq!(unsafe { sys::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, &mut event) }, 0);
        }
    }

    /// What a wait that does not wait reports.
    fn wait(&self) -> std::vec::Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let (at, mut counted) = (events.as_mut_ptr(), api::Counted::default());
        // SAFETY: room for four events; no mask.
        let mut n = unsafe { api::epoll_wait(self.0, at, 4, 0, core::ptr::null(), &mut counted) };
        if n == PASS {
            // SAFETY: as above.
            n = unsafe { crate::sleep::epoll_wait(self.0, at, 4, 0, core::ptr::null()) };
            // SAFETY: the kernel has just written so many.
            n = unsafe { api::on_epoll_wait(self.0, at, n as c_int, 4) } as Ret;
        }
        events.iter().take(n.max(0) as usize).map(|event| event.u64).collect()
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        assert_eq!(api::close(self.0), 0);
    }
}

/// A set that a listener stands in, and a connection of its, hears of what is taken.
#[test]
fn what_is_taken_is_told_to_the_set_of_its_listener() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let set = Set::new();
    set.add(l.socket.as_raw_fd(), libc::EPOLLIN, 7);
    let mut ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    for _ in 0..3 {
        set.add(ends[A].fd, libc::EPOLLIN, 8);
        assert_eq!(set.wait(), []);
        ends[C].close();
        assert_eq!(set.wait(), [8]);
        assert_eq!(ends[A].receive_now(A, 1), 0);
        // SAFETY: no event is needed.
        let r = unsafe {
            api::epoll_ctl(set.0, libc::EPOLL_CTL_DEL, ends[A].fd, core::ptr::null_mut())
        };
        assert_eq!(r, 0);
        ends[A].close();
        assert_eq!(set.wait(), []);
        let c = connects(to).unwrap();
        assert_eq!(sys::poll_now(l.known.gather(), libc::POLLIN), 0, "the place has not rung");
        assert_eq!(set.wait(), [7]);
        assert_eq!(set.wait(), [7], "as long as it is not accepted");
        ends = [end_of(l.give_out().unwrap()), end_of(c)];
        assert_eq!(set.wait(), []);
        talk(&mut ends, 1000);
    }
    // Who waits for the listener otherwise hears of what the set was told.
    close_in_good_order(ends);
    let c = connects(to).unwrap();
    waits_elsewhere(l.known);
    assert_ne!(sys::poll_now(l.known.gather(), libc::POLLIN), 0);
    close_in_good_order([end_of(l.give_out().unwrap()), end_of(c)]);
    let c = connects(to).unwrap();
    assert_ne!(sys::poll_now(l.known.gather(), libc::POLLIN), 0, "it is told at its own place");
    close_in_good_order([end_of(l.give_out().unwrap()), end_of(c)]);
    drop((set, l));
    until_none_is_kept();
}

/// A doorbell that rings for nothing, or for what has been given out, is no report of the listener:
/// an accept behind it would sleep.
#[test]
fn a_listener_is_not_reported_in_vain() {
    for events in [libc::EPOLLIN, libc::EPOLLIN | libc::EPOLLET] {
        let _one = one_at_a_time();
        let l = Listening::new(8);
        let set = Set::new();
        set.add(l.socket.as_raw_fd(), events, 7);
        let ends = first_life(&l);
        let (s, to) = (ends[A].socket, peer_address_of(ends[C].socket));
        let (channel, slot) = (ends[C].socket.channel().unwrap(), s.slot.load(Relaxed) as usize);
        let rings = || channel.announce_taken(l.known.announced_at(None), slot);
        close_in_good_order(ends);
        assert_eq!(sys::poll_now(l.known.gather(), libc::POLLIN), 0, "a new doorbell");
        assert_eq!(set.wait(), []);
        rings();
        assert_ne!(sys::poll_now(l.known.gather(), libc::POLLIN), 0);
        assert_eq!(set.wait(), [], "it is not taken");
        assert_eq!(sys::poll_now(l.known.gather(), libc::POLLIN), 0, "it is silent");
        let c = connects(to).unwrap();
        assert_eq!(set.wait(), [7]);
        let a = end_of(l.give_out().unwrap());
        rings();
        assert_eq!(set.wait(), [], "it has been given out");
        // Somebody was about to say that it is taken when it was given out.
        l.known.hear_at_set(s, true);
        assert_eq!(set.wait(), [], "it has been given out");
        close_in_good_order([a, end_of(c)]);
        drop((set, l));
        until_none_is_kept();
    }
}

/// However many may be accepted, and of whichever kind: one wait says so once.
#[test]
fn a_wait_reports_a_listener_once() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let set = Set::new();
    set.add(l.socket.as_raw_fd(), libc::EPOLLIN, 7);
    let ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    close_in_good_order(ends);
    let by_kernel = std::net::TcpStream::connect(l.socket.local_addr().unwrap()).unwrap();
    let c = connects(to).unwrap();
    assert_eq!(set.wait(), [7]);
    // (From both: the set hears of it by its doorbells, and has heard of it before.)
    waits_elsewhere(l.known);
    assert_eq!(set.wait(), [7]);
    drop((l.socket.accept().unwrap(), by_kernel));
    assert_eq!(set.wait(), [7], "the other one");
    close_in_good_order([end_of(l.give_out().unwrap()), end_of(c)]);
    assert_eq!(set.wait(), []);
    drop((set, l));
    until_none_is_kept();
}

/// The link of a channel is down as long as this lives.
struct Down(&'static Channel);

impl Down {
    fn of(s: &Socket) -> Down {
        let channel = s.channel().unwrap();
        channel.dead.store(1, SeqCst);
        Down(channel)
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        self.0.dead.store(0, SeqCst);
    }
}

#[test]
fn what_a_connector_has_begun_before_its_end_is_given_out_with_its_bytes() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    close_in_good_order(ends);
    let mut c = end_of(connects(to).unwrap());
    c.send(C, 1000);
    c.close();
    // As if it had ended before it could announce that.
    let s = l.known.next(true, is_taken).unwrap();
    let mut a = {
        let _down = Down::of(s);
        sweep();
        assert!(end_kept(s) && end_kept(s));
        end_of(l.give_out().unwrap())
    };
    assert!(l.give_out().is_none(), "given out twice");
    a.receive_all(A, 1000);
    assert_eq!(a.receive_now(A, 1), 0);
    a.close();
    drop(l);
    until_none_is_kept();
}

/// Who accepts has been told of a carrier that is not taken, and where a carrier's number is
/// refused the application's socket stays what it was.
#[test]
fn a_carrier_that_is_refused_is_given_up() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let [told, of] = [first_life(&l), first_life(&l)];
    let s = told[A].socket;
    let [to, there] = [&told, &of].map(|ends| peer_address_of(ends[C].socket));
    close_in_good_order(told);
    assert!(matches!(give_out(l.known, s, 0, |_| ()), Err(0)));
    assert!(!s.is(State::Parked));
    assert!(connects(to).is_none(), "retired");
    close_in_good_order(of);
    let fresh = Fresh {
        fd: c_int::MAX,
        domain: libc::AF_INET,
        nonblock: false,
        cloexec: false,
        marks: 0,
        untouched: false,
    };
    let kept = fast_connect::pick(|k| k.to == Some(there)).unwrap();
    kept.socket.netns.store(0, Relaxed);
    assert!(matches!(take(kept.socket, &fresh), Err(NotTaken::Number)));
    give_up(kept.socket);
    // What was begun is given out, and is at its end.
    sweep();
    find_taken(l.known, false);
    let mut a = end_of(l.give_out().unwrap());
    assert_eq!(a.receive_now(A, 1), 0);
    a.close();
    drop(l);
    until_none_is_kept();
}

#[test]
fn what_is_taken_while_it_is_looked_at_is_given_out() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let ends = first_life(&l);
    let to = peer_address_of(ends[C].socket);
    close_in_good_order(ends);
    let mut c = end_of(connects(to).unwrap());
    let s = l.known.next(true, is_taken).unwrap();
    let looked_at = fast_connect::pick(|k| core::ptr::eq(k.socket, s)).unwrap();
    assert!(give_out(l.known, s, 0, |_| ()).is_err());
    retire_kept(looked_at);
    let mut a = end_of(l.give_out().unwrap());
    c.close();
    assert_eq!(a.receive_now(A, 1), 0);
    a.close();
    drop(l);
    until_none_is_kept();
}

#[test]
fn what_a_parent_has_beside_is_no_number_of_its_childs() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let mut ends = first_life(&l);
    let s = ends[C].socket;
    let own = own_name(s, ends[C].fd);
    let maker = s.owner.load(Relaxed);
    s.owner.store(1, Relaxed);
    close_spare(s);
    s.owner.store(maker, Relaxed);
    assert_eq!(s.spare.load(Relaxed), own + 1);
    ends.iter_mut().for_each(End::close);
    drop(l);
    until_none_is_kept();
}

#[test]
fn a_carrier_that_goes_on_alone_has_one_name() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let mut ends = first_life(&l);
    for at in [A, C] {
        assert!(own_name(ends[at].socket, ends[at].fd) >= 0);
        need_kernel(ends[at].fd, Reason::SocketOption);
    }
    talk(&mut ends, 1000);
    for e in &ends {
        assert!(e.socket.is(State::Plain));
        assert_eq!(e.socket.spare.load(Relaxed), 0);
    }
    ends[C].close();
    assert_eq!(ends[A].receive_now(A, 1), 0, "no FIN");
    ends[A].close();
    drop(l);
    until_none_is_kept();
}

#[test]
fn of_a_socket_from_before_the_configuration_nothing_is_known() {
    let _one = one_at_a_time();
    const UNUSED: c_int = 4001;
    assert!(fast_connect::fresh(UNUSED).is_none());
    assert_ne!(fast_connect::marks_of_connecting(UNUSED) & fast_connect::ODD, 0);
    fast_connect::on_socket(UNUSED, 0);
    let marks = fast_connect::fresh(UNUSED).unwrap();
    assert_eq!((fast_connect::options_of(marks), fast_connect::is_untouched(marks)), (0, true));
    assert_eq!(fast_connect::marks_of_connecting(UNUSED), 0);
}

#[test]
fn no_more_second_names_are_made_than_there_may_be() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    let ends = first_life(&l);
    for _ in 0..SPARES {
        let _ = socket::note_spare();
    }
    close_in_good_order(ends);
    (0..SPARES).for_each(|_| socket::forget_orphan());
    assert_eq!(kept(), 0);
}

#[test]
fn a_listener_that_another_program_gets_too_is_given_up() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    close_in_good_order(first_life(&l));
    share_listener(l.socket.as_raw_fd());
    assert!(!l.known.may_park());
    assert_eq!(fast_connect::count(|k| k.to.is_none()), 0);
    drop(l);
    until_none_is_kept();
}

#[test]
fn a_set_of_others_hears_of_no_parked_connection() {
    let _one = one_at_a_time();
    let l = Listening::new(8);
    // (The library has not seen it made: as one that was inherited.)
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut ev = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
    // SAFETY: one valid event.
    let r = unsafe { api::epoll_ctl(set, libc::EPOLL_CTL_ADD, l.socket.as_raw_fd(), &mut ev) };
    assert_eq!(r, 0);
    // SAFETY: as above.
    let r = unsafe { sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, l.known.gather(), &mut ev) };
    assert_eq!(r, -(libc::ENOENT as isize));
    assert!(!l.known.may_park());
    let _ = sys::close(set);
}

#[test]
fn a_prepared_socket_is_lent_given_away_and_not_kept_for_another_network() {
    let _one = one_at_a_time();
    const V4: c_int = libc::AF_INET;
    let fd = sys::socket(V4, libc::SOCK_STREAM, 0) as c_int;
    fast_connect::keep_socket(fd, V4, false);
    assert_eq!(fast_connect::lend(libc::AF_INET6, 0), None);
    let lent = fast_connect::lend(V4, libc::SOCK_NONBLOCK).unwrap();
    assert!(fast_connect::is_nonblocking(lent));
    assert_eq!(fast_connect::lend(V4, 0), None, "lent twice");
    fast_connect::give_away(-1);
    fast_connect::keep_socket(lent, V4, true);
    let again = fast_connect::lend(V4, 0).unwrap();
    assert!(!fast_connect::is_nonblocking(again));
    fast_connect::give_away(again);
    fast_connect::keep_socket(again, V4, false);
    assert!(fast_connect::has_prepared());
    fast_connect::never_prepare();
    assert!(!fast_connect::has_prepared());
    fast_connect::keep_socket(again, V4, false);
    assert!(!fast_connect::has_prepared() && fast_connect::lend(V4, 0).is_none());
    fast_connect::prepare_again();
    [fd, lent, again].into_iter().for_each(|fd| _ = sys::close(fd));
}
