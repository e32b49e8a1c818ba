//! Connections of a plain peer's that are taken over and given back: every byte is compared. The
//! peer is the kernel's TCP in a network namespace of its own.

mod streams;
mod world;

use libc::c_int;
use netacc_packet::memory::{Impaired, Impairment};
use netacc_packet::{Arrived, Device, Frame, Port, Sent, route};
use netacc_tcp::Reason;
use netacc_utcp::engine::{Engine, Steered};
use netacc_utcp::{GivenBack, NotTaken, Over, Refusal};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::thread;
use std::time::{Duration, Instant};
use streams::{Random, bytes, check, device, now};
use world::{accept, address, connect};

/// The plain end: writes and reads so many bytes at once.
fn plain(stream: &TcpStream, seed: u64, total: u64) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let writes = thread::spawn(move || {
        let (mut random, mut at) = (Random(seed + 77), 0);
        while at < total {
            let part = (random.below(50_000) + 1).min(total - at);
            writer.write_all(&bytes(seed, at, part)).expect("the connection lives");
            at += part;
            if random.below(10) == 0 {
                thread::sleep(Duration::from_micros(random.below(1000)));
            }
        }
    });
    let (mut reader, mut at, mut buffer) = (stream, 0, vec![0; 1 << 16]);
    while at < total {
        let got = reader.read(&mut buffer).expect("the connection lives");
        assert!(got > 0, "an end at {at} of {total}");
        check(!seed, at, &buffer[..got]);
        at += got as u64;
    }
    writes.join().expect("everything was written");
}

/// A device behind what loses, and its clock.
struct Rough(Impaired<Device>);

impl Port for Rough {
    fn send(&mut self, frame: &Frame<'_>) -> Sent {
        self.0.clock.advance(now());
        self.0.send(frame)
    }

    fn receive<R>(&mut self, take: impl FnOnce(Arrived<'_>) -> R) -> Option<R> {
        self.0.clock.advance(now());
        self.0.receive(take)
    }
}

impl Steered for Rough {
    fn device(&self) -> &Device {
        &self.0.port
    }
}

/// The end that is taken over and given back.
struct Subject {
    socket: TcpStream,
    seed: u64,
    total: u64,
    written: u64,
    read: u64,
    /// Written, and not taken by the kernel when it was given back.
    unsent: Vec<u8>,
    random: Random,
}

impl Subject {
    fn is_done(&self) -> bool {
        self.written == self.total && self.read == self.total && self.unsent.is_empty()
    }

    fn next(&mut self) -> Vec<u8> {
        let part = self.random.below(30_000).min(self.total - self.written);
        bytes(!self.seed, self.written, part)
    }

    fn got(&mut self, got: &[u8]) {
        check(self.seed, self.read, got);
        self.read += got.len() as u64;
    }

    /// In the kernel, until so many bytes have moved, or it was so long.
    fn in_kernel(&mut self, bytes: u64, end: Instant) {
        let until = self.written + self.read + bytes;
        let mut buffer = vec![0; 20_000];
        while self.written + self.read < until && !self.is_done() && Instant::now() < end {
            if self.unsent.is_empty() {
                self.unsent = self.next();
                self.written += self.unsent.len() as u64;
            }
            match self.socket.write(&self.unsent) {
                Ok(put) => drop(self.unsent.drain(..put)),
                Err(failure) => assert_eq!(failure.kind(), ErrorKind::WouldBlock, "{failure}"),
            }
            match self.socket.read(&mut buffer) {
                Ok(got) => {
                    // (The peer closes when it has everything.)
                    assert!(got > 0 || self.read == self.total, "an end at {}", self.read);
                    self.got(&buffer[..got]);
                }
                Err(failure) => assert_eq!(failure.kind(), ErrorKind::WouldBlock, "{failure}"),
            }
            thread::yield_now();
        }
    }

    /// Out of the kernel, until so many bytes have moved, or it was so long.
    fn out<P: Steered>(
        &mut self,
        engine: &mut Engine<P>,
        index: u32,
        (bytes, end): (u64, Instant),
    ) {
        let until = self.written + self.read + bytes;
        let mut buffer = vec![0; 20_000];
        while self.written + self.read < until && Instant::now() < end {
            engine.turn(now());
            let next = self.next();
            let carried = engine.carried(index).unwrap();
            if let Some(reason) = carried.connection().over() {
                // The peer has everything, and has closed.
                assert_eq!((reason, self.written), (Reason::Fin, self.total));
                break;
            }
            let got = carried.read(&mut buffer);
            self.got(&buffer[..got]);
            let put = carried.write(now(), &next);
            self.written += put as u64;
            engine.after(index, now());
            if self.written == self.total && self.read == self.total {
                break;
            }
            thread::yield_now();
        }
    }
}

/// How a stream is moved.
#[derive(Clone, Copy)]
struct Plan {
    v6: bool,
    /// The peer connects.
    accepted: bool,
    seed: u64,
    total: u64,
    /// The most bytes, and milliseconds, in the kernel and out of it.
    bytes: u64,
    milliseconds: u64,
    does: [Impairment; 2],
}

/// How often the connection was taken over.
fn exact(plan: Plan, socket: TcpStream, interface: u32) -> Option<u64> {
    let device = device(interface, plan.v6)?;
    let port = Rough(Impaired::new(device, plan.does, plan.seed));
    let mut engine = Engine::new(port, interface, 16, [plan.seed, 2]).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut subject = Subject {
        socket,
        seed: plan.seed,
        total: plan.total,
        written: 0,
        read: 0,
        unsent: Vec::new(),
        random: Random(plan.seed + 5),
    };
    let last = Instant::now() + Duration::from_secs(60 * times());
    let mut takes = 0;
    while !subject.is_done() {
        assert!(Instant::now() < last, "{} written, {} read", subject.written, subject.read);
        let mut stay = |most: u64| {
            let time = subject.random.below(plan.milliseconds * 1000) + 1;
            (subject.random.below(most) + 1, Instant::now() + Duration::from_micros(time))
        };
        let (bytes, end) = stay(plan.bytes);
        subject.in_kernel(bytes, end);
        if !subject.unsent.is_empty() {
            // What the kernel has not taken comes first.
            continue;
        }
        let settle = subject.random.below(8) == 0;
        let index = match engine.take_over(subject.socket.as_raw_fd(), settle, now()) {
            Ok(index) => index,
            Err(NotTaken::Refused(Refusal::Restless)) => continue,
            Err(NotTaken::Refused(Refusal::State)) if subject.written == subject.total => continue,
            Err(why) => panic!("{why:?} after {takes}"),
        };
        takes += 1;
        let time = subject.random.below(plan.milliseconds * 1000) + 1;
        let stay =
            (subject.random.below(plan.bytes) + 1, Instant::now() + Duration::from_micros(time));
        subject.out(&mut engine, index, stay);
        let GivenBack { reason, unsent } = engine.give_back(index, now()).unwrap().unwrap();
        subject.unsent = unsent;
        assert!(reason.is_none() || subject.written == subject.total, "{reason:?}");
    }
    let told = engine.port().0.told();
    eprintln!("{takes} take-overs; out {:?}, in {:?}", told[0], told[1]);
    Some(takes)
}

/// How much longer than usual the streams are, for who has the time.
fn times() -> u64 {
    std::env::var("NETACC_UTCP_TIMES").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

fn streams(mut plan: Plan, at_least: u64) {
    let port = 7000;
    plan.total *= times();
    let there = move || {
        let stream = if plan.accepted {
            connect(address(true, plan.v6), port)
        } else {
            accept(address(false, plan.v6), port)
        };
        plain(&stream, plan.seed, plan.total);
    };
    let here = move |interface| {
        let stream = if plan.accepted {
            accept(address(true, plan.v6), port)
        } else {
            connect(address(false, plan.v6), port)
        };
        let copy = stream.try_clone().unwrap();
        match exact(plan, stream, interface) {
            Some(takes) => assert!(takes >= at_least, "only {takes}"),
            // (Then it stays where it is.)
            None => {
                copy.set_nonblocking(false).unwrap();
                plain(&copy, !plan.seed, plan.total);
            }
        }
    };
    world::run(here, there);
}

const SMOOTH: Plan = Plan {
    v6: false,
    accepted: true,
    seed: 1,
    total: 6_000_000,
    bytes: 30_000,
    milliseconds: 3,
    does: [Impairment {
        loss: 0,
        duplicate: 0,
        corrupt: 0,
        reorder: 0,
        detour: 0,
        delay: 0,
        rate: 0,
        queue: 0,
    }; 2],
};

#[test]
fn an_accepted_connection_goes_out_and_comes_back_hundreds_of_times() {
    streams(SMOOTH, 100);
}

#[test]
fn a_connected_one_over_ipv6_does_too() {
    streams(Plan { v6: true, accepted: false, seed: 2, ..SMOOTH }, 100);
}

#[test]
fn packets_that_are_lost_doubled_and_overtaken_are_made_up_for() {
    let does = Impairment {
        loss: 10,
        duplicate: 10,
        reorder: 10,
        detour: 1_000_000,
        ..Impairment::default()
    };
    // (A connection that goes to and fro faster than its timeout never sends again what is lost.)
    let plan = Plan { seed: 3, total: 4_000_000, bytes: 1_000_000, milliseconds: 5000, ..SMOOTH };
    streams(Plan { does: [does; 2], ..plan }, 2);
}

/// Turns the engine until the connection says why the kernel should go on.
fn until_over<P: Steered>(engine: &mut Engine<P>, index: u32) -> Reason {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        engine.turn(now());
        if let Some(reason) = engine.carried(index).unwrap().connection().over() {
            return reason;
        }
        assert!(Instant::now() < end, "nothing has come");
        thread::yield_now();
    }
}

#[test]
fn the_kernel_gets_the_end_of_a_stream_and_what_came_before_it() {
    let there = || {
        let mut stream = connect(address(true, false), 7001);
        let mut other = connect(address(true, false), 7001);
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"the rest");
        other.write_all(b"x").unwrap();
    };
    let here = |interface| {
        let listener = TcpListener::bind((address(true, false), 7001)).unwrap();
        let mut socket = world::next(&listener);
        let mut other = world::next(&listener);
        let Some(device) = device(interface, false) else {
            socket.write_all(b"hello").unwrap();
            socket.write_all(b"the rest").unwrap();
            return;
        };
        let mut engine = Engine::new(device, interface, 16, [1, 2]).unwrap();
        let index = engine.take_over(socket.as_raw_fd(), true, now()).unwrap();
        let again = engine.take_over(socket.as_raw_fd(), true, now());
        assert_eq!(again, Err(NotTaken::Out));
        // Nothing goes into the socket meanwhile, and it looks as it always did.
        let failure = socket.write(b"lost").unwrap_err();
        assert_eq!(failure.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(socket.peer_addr().unwrap().ip(), address(false, false));
        assert_eq!(socket.take_error().unwrap().map(|e| e.to_string()), None);
        engine.carried(index).unwrap().write(now(), b"hello");
        engine.after(index, now());
        assert_eq!(until_over(&mut engine, index), Reason::Fin);
        let given = engine.give_back(index, now()).unwrap().unwrap();
        assert_eq!((given.reason, given.unsent.len()), (Some(Over::Tcp(Reason::Fin)), 0));
        let mut got = Vec::new();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"bye");
        socket.write_all(b"the rest").unwrap();
        drop(socket);
        // Another one between the same hosts was never touched.
        let mut got = [0; 1];
        other.read_exact(&mut got).unwrap();
        let received = engine.port().told.received;
        assert!(received < 10, "{received} packets: those of the flow alone");
    };
    world::run(here, there);
}

#[test]
fn a_reset_is_the_kernels_to_tell() {
    let there = || {
        let mut stream = connect(address(true, true), 7002);
        stream.read_exact(&mut [0; 5]).unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let size = size_of_val(&linger) as u32;
        // SAFETY: a live socket and a live linger of that size.
        let set = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size,
            )
        };
        assert_eq!(set, 0);
    };
    let here = |interface| {
        let mut socket = accept(address(true, true), 7002);
        let Some(device) = device(interface, true) else {
            socket.write_all(b"hello").unwrap();
            return;
        };
        let mut engine = Engine::new(device, interface, 16, [1, 2]).unwrap();
        let index = engine.take_over(socket.as_raw_fd(), true, now()).unwrap();
        engine.carried(index).unwrap().write(now(), b"hello");
        engine.after(index, now());
        assert_eq!(until_over(&mut engine, index), Reason::Reset);
        let given = engine.give_back(index, now()).unwrap().unwrap();
        assert_eq!(given.reason, Some(Over::Tcp(Reason::Reset)));
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let failure = socket.read(&mut [0; 5]).unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::ConnectionReset);
    };
    world::run(here, there);
}

fn option(socket: c_int, name: c_int) -> c_int {
    let (mut value, mut size) = (0, size_of::<c_int>() as u32);
    // SAFETY: the kernel writes an int and its size.
    let got = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut size)
    };
    assert_eq!(got, 0);
    value
}

#[test]
fn options_and_duplicates_are_as_they_were() {
    let there = || {
        let mut stream = connect(address(true, false), 7003);
        let mut got = [0; 3];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"abc");
    };
    let here = |interface| {
        let mut socket = accept(address(true, false), 7003);
        let Some(device) = device(interface, false) else {
            socket.write_all(b"abc").unwrap();
            return;
        };
        let fd = socket.as_raw_fd();
        let on: c_int = 1;
        // SAFETY: a live socket and a live int.
        let set = unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, (&raw const on).cast(), 4)
        };
        assert_eq!(set, 0);
        // SAFETY: a new descriptor, which the stream owns.
        let mut copy = unsafe { TcpStream::from_raw_fd(libc::dup(fd)) };
        let names = [
            libc::SO_REUSEADDR,
            libc::SO_KEEPALIVE,
            libc::SO_SNDBUF,
            libc::SO_BUF_LOCK,
            libc::SO_ERROR,
        ];
        let before = names.map(|name| option(fd, name));
        let mut engine = Engine::new(device, interface, 16, [1, 2]).unwrap();
        for byte in [b"a", b"b"] {
            let index = engine.take_over(fd, true, now()).unwrap();
            engine.carried(index).unwrap().write(now(), byte);
            engine.after(index, now());
            engine.give_back(index, now()).unwrap().unwrap();
            assert_eq!(names.map(|name| option(fd, name)), before);
        }
        copy.write_all(b"c").unwrap();
        assert_eq!(socket.local_addr().unwrap().port(), 7003);
    };
    world::run(here, there);
}

#[test]
fn what_cannot_be_taken_over_stays() {
    let there = || {
        let mut stream = connect(address(true, false), 7004);
        stream.shutdown(Shutdown::Write).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    };
    let here = |interface| {
        let socket = accept(address(true, false), 7004);
        let Some(device) = device(interface, false) else { return };
        let mut engine = Engine::new(device, interface, 16, [1, 2]).unwrap();
        let mut take = |fd| engine.take_over(fd, true, now()).unwrap_err();
        // Wait for the end of the stream.
        assert_eq!((&socket).read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(take(socket.as_raw_fd()), NotTaken::Refused(Refusal::State));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let local = NotTaken::Route(route::NoRoute::Local);
        assert_eq!(take(near.as_raw_fd()), local);
        let (unix, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(take(unix.as_raw_fd()), NotTaken::Refused(Refusal::NotTcp));
        let none = Device::open(9999, [0; 6], 1).unwrap_err();
        eprintln!("no such device: {none:?}");
    };
    world::run(here, there);
}

/// Both ends' addresses are those that are named, but the connection is another namespace's.
#[test]
fn a_socket_of_another_namespace_is_not_taken() {
    use netacc_packet::sys::Fd;
    use netacc_utcp::kernel::{Address, Info, Kept, Passed};
    let pair = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener)
    };
    let is_given = |stream: &TcpStream| {
        let of = stream.as_raw_fd();
        let (local, peer) = (Address::local(of).unwrap(), Address::peer(of).unwrap());
        let passed = Passed { local, peer, info: Info::default(), reuse: 0, keep_alive: 0 };
        Kept::given(Fd::duplicate_of(of).unwrap(), &passed).is_some()
    };
    let (tell, told) = std::sync::mpsc::channel();
    world::run(
        move |_| {
            assert!(is_given(&pair().0), "one of here");
            let (elsewhere, _listener) = told.recv().unwrap();
            assert!(!is_given(&elsewhere), "one of there");
        },
        move || tell.send(pair()).unwrap(),
    );
}
