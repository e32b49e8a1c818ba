extern crate std;
use super::*;
use crate::channel::{PLACES, SLOTS, quiet};
use crate::path::{PathId, PathList};
use crate::rendezvous::marks::{self, TURNS};
use crate::rendezvous::possession;
use crate::rendezvous::{CHANNEL_BYTES, Phase, advert_name, auth};
use crate::socket::{self, RxEnd, TxEnd};
use crate::testing::in_child;
use crate::{arena, control, lifecycle};
use core::ffi::c_int;
use core::ptr::NonNull;
use netacc_proto::rendezvous::{self as proto, Direction, Hello, Message, Role, refuse};
use netacc_proto::switchover::{Ack, Delivery, Rx, Tx};
use netacc_ring::{Consumer, Producer};
use std::boxed::Box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::vec::Vec;

mod agreed;
mod hostile;
mod links;
mod numbers;
mod processes;

fn service() -> &'static Service {
    crate::testing::init();
    Box::leak(Box::new(Service::new(false)))
}

impl Service {
    /// What the core does for a connecting socket that is used.
    fn connect(&'static self, s: &'static Socket) -> bool {
        s.raise(flag::CONNECTOR);
        self.connected(s, false) && self.noted(s)
    }

    fn noted(&'static self, s: &'static Socket) -> bool {
        self.note(s, s.generation16())
    }
}

fn view(s: &TcpStream) -> Tuple {
    Tuple::new(s.local_addr().unwrap(), s.peer_addr().unwrap()).unwrap()
}

/// A candidate socket as the core makes it.
fn socket_for(tuple: Tuple) -> &'static Socket {
    let memory = Box::leak(Box::new(core::mem::MaybeUninit::<Socket>::zeroed())).as_mut_ptr();
    // SAFETY: all zero but for the tuple, which is written here, is a valid Socket.
    unsafe {
        (&raw mut (*memory).tuple).write(core::cell::UnsafeCell::new(tuple));
        let s = &*memory;
        s.state.begin_as(socket::State::Candidate);
        s.fd.store(-1, Relaxed);
        s.set_paths(PathList::EMPTY.and(PathId::Shm));
        s
    }
}

/// The same, with its carrier.
fn socket_of(carrier: &TcpStream) -> &'static Socket {
    let s = socket_for(view(carrier));
    s.fd.store(carrier.as_raw_fd(), Relaxed);
    s
}

fn offer_of(s: &Socket) -> socket::Offer {
    assert!(s.offered.is_made());
    // SAFETY: complete.
    unsafe { *s.offer.get() }
}

fn channel_of(s: &Socket) -> &'static Channel {
    // SAFETY: channels are type-stable.
    unsafe { &*offer_of(s).channel }
}

/// What `io` does.
fn attach(s: &Socket) {
    let o = offer_of(s);
    s.slot.store(o.slot, Relaxed);
    s.channel.store(o.channel.cast_mut(), Relaxed);
    s.published.begin(s.generation.load(Relaxed));
    s.state.begin_as(socket::State::Attached);
}

/// What `io` does when it is done with a slot.
fn last_word(s: &Socket) -> (&'static Channel, usize) {
    let (c, slot) = (channel_of(s), offer_of(s).slot as usize);
    c.words(slot, c.side ^ 1).quiet[quiet::REQUEST].fetch_or(quiet::CLOSED, SeqCst);
    s.published.leave();
    s.channel.store(core::ptr::null_mut(), Relaxed);
    (c, slot)
}
fn leave(service: &Service, s: &Socket) {
    let (c, slot) = last_word(s);
    service.released(c, slot);
}

fn settle(all: &[&Service]) {
    for _ in 0..20 {
        for s in all {
            while s.state.lock().epoll >= 0 && s.turn(0) && s.woken.load(Acquire) {}
        }
    }
}

/// Until `a` has made its offer for `accepted`, which `c` has not seen.
fn until_offered(a: &Service, c: &Service, accepted: &Socket) {
    for _ in 0..100 {
        settle(&[a]);
        if a.state.lock().is_offered(accepted) {
            return;
        }
        settle(&[c]);
    }
    panic!("no offer");
}

/// Within this a loaded machine has done what it is to do.
const LONG_NS: u64 = 60_000_000_000;

/// When what was looked for has been looked for, nothing wakes the thread any more.
fn nothing_is_due(s: &Service) {
    crate::testing::pass_ns(2_000_000_000);
    settle(&[s]);
    assert_eq!(s.state.lock().next_deed(), 0);
}

/// Turns until `done`, for so long as a loaded machine may need.
fn wait_until(all: &[&Service], done: impl Fn() -> bool) {
    let end = sys::now_ns() + LONG_NS;
    while !done() {
        assert!(sys::now_ns() < end, "did not happen");
        settle(all);
        std::thread::sleep(core::time::Duration::from_millis(1));
    }
}

struct Net {
    listener: TcpListener,
}

impl Net {
    fn new() -> Net {
        // Services of tests that are over keep their adverts: no port twice.
        static USED: std::sync::Mutex<Vec<u16>> = std::sync::Mutex::new(Vec::new());
        loop {
            let net = Net { listener: TcpListener::bind("127.0.0.1:0").unwrap() };
            let mut used = USED.lock().unwrap();
            if !used.contains(&net.port()) {
                used.push(net.port());
                return net;
            }
        }
    }
    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }
    /// The connector's and the acceptor's socket of a new connection, and the carriers.
    fn connect(&self) -> (&'static Socket, &'static Socket, (TcpStream, TcpStream)) {
        let c =
            TcpStream::connect(SocketAddr::new("127.0.0.1".parse().unwrap(), self.port())).unwrap();
        let (a, _) = self.listener.accept().unwrap();
        (socket_of(&c), socket_of(&a), (c, a))
    }
}

/// An acceptor, a connector, and the port at which the former has accepted.
fn both() -> (&'static Service, &'static Service, Net) {
    let (a, c, net) = (service(), service(), Net::new());
    a.accepting(net.port());
    (a, c, net)
}

/// A new connection, which both have had the time to agree on.
fn agree(
    a: &'static Service,
    c: &'static Service,
    net: &Net,
) -> (&'static Socket, &'static Socket, (TcpStream, TcpStream)) {
    let (cs, as_, tcp) = net.connect();
    assert!(c.connect(cs) && a.noted(as_));
    settle(&[a, c]);
    (cs, as_, tcp)
}

fn bytes_at(at: *mut u8, value: u8) {
    // SAFETY: a ring of an offer, mapped by this process.
    unsafe { at.write_volatile(value) }
}
fn byte_at(at: *mut u8) -> u8 {
    // SAFETY: as above.
    unsafe { at.read_volatile() }
}
