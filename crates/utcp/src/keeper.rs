//! A process that outlives one which is killed, and gives its connections back to the kernel, which
//! then ends them as it always does: what was written arrives, and an end or a reset follows.
//!
//! It has copies of the sockets, of the steering and of each connection's [`Record`], and a link to
//! the process. It does nothing with the sockets as long as the process lives. The process is gone
//! when it has ended, or has no other end of the link any more (exec). Then each connection goes
//! back from where its record says. A connection that the kernel has no way or no memory for is
//! tried again, for a quarter of an hour, as the kernel would try. One that it does not have back
//! is reset: what the peer got would else look whole.
//!
//! Whoever makes the keeper's process sees to it that it has nothing else of the process's, and is
//! not killed with it.

use crate::inject::Injector;
use crate::kernel::{Address, Info, Kept, Passed, service_of};
use crate::record::{Record, Stage};
use alloc::vec::Vec;
use core::ffi::c_int;
use netacc_packet::rights::{self, MOST};
use netacc_packet::shared::File;
use netacc_packet::steering::{Held, Steering};
use netacc_packet::sys::{self, Errno, Fd};
use netacc_tcp::wire::emit::Service;

/// What is asked of the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Steering and process: once, first.
    Begin,
    /// A connection is about to be taken over: its socket, its record.
    Take,
    /// It is the kernel's, and the copies are to be closed.
    Drop,
}

const WORDS: usize = 14;
const SIZE: usize = WORDS * 8;
/// A keeper that has not answered by then is taken for dead.
const PATIENCE_MS: c_int = 2000;
const AGAIN_MS: c_int = 100;
const TRIES: u32 = 9000;

/// A question, or its answer.
type Message = [u64; WORDS];

fn to_bytes(message: &Message) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let (places, _) = bytes.as_chunks_mut::<8>();
    for (place, word) in places.iter_mut().zip(message) {
        *place = word.to_ne_bytes();
    }
    bytes
}

fn from_bytes(bytes: &[u8; SIZE]) -> Message {
    let (words, _) = bytes.as_chunks::<8>();
    let mut message = [0; WORDS];
    for (place, word) in message.iter_mut().zip(words) {
        *place = u64::from_ne_bytes(*word);
    }
    message
}

/// The process's end of the link to its keeper.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Fd,
    serial: u64,
}

impl Link {
    /// Introduces itself. The keeper has the steering from here on.
    pub(crate) fn begin(socket: Fd, steering: &Steering) -> Result<Self, Errno> {
        let mut link = Self { socket, serial: 0 };
        let own = rights::process(sys::process())?;
        let [map, ingress, egress] = steering.descriptors();
        link.ask(Asked::Begin, [0; WORDS], &[map, ingress, egress, own.number()])?;
        Ok(link)
    }

    /// The keeper has this one from here on.
    pub(crate) fn take(&mut self, index: u32, kept: &Kept, record: &Record) -> Result<(), Errno> {
        let Passed { local, peer, info, reuse, keep_alive } = kept.passed();
        let bit = |is: bool, at: u32| u64::from(is) << at;
        let options = u64::from(info.send_scale)
            | u64::from(info.receive_scale) << 8
            | bit(info.scaled, 16)
            | bit(info.sack, 17)
            | bit(info.stamps, 18)
            | bit(reuse != 0, 19)
            | bit(keep_alive != 0, 20);
        let mut message = [0; WORDS];
        let [_, _, at, said, rest @ ..] = &mut message;
        (*at, *said) = (index.into(), options);
        let addresses = [local, peer].map(packed);
        for (place, word) in rest.iter_mut().zip(addresses.as_flattened()) {
            *place = *word;
        }
        self.ask(Asked::Take, message, &[kept.descriptor(), record.file().fd().number()])
    }

    /// The keeper has nothing of it any more.
    pub(crate) fn drop(&mut self, index: u32) -> Result<(), Errno> {
        let mut message = [0; WORDS];
        let [_, _, at, ..] = &mut message;
        *at = index.into();
        self.ask(Asked::Drop, message, &[])
    }

    /// Whether it is there.
    pub(crate) fn lives(&self) -> bool {
        const GONE: i16 = libc::POLLHUP | libc::POLLERR;
        sys::poll(self.socket.number(), libc::POLLIN, 0).is_ok_and(|is| is & GONE == 0)
    }

    /// Waits for the answer: a number that says which question it is of.
    fn ask(&mut self, what: Asked, mut message: Message, fds: &[c_int]) -> Result<(), Errno> {
        const LOST: Errno = Errno(libc::EPIPE);
        self.serial += 1;
        let [kind, serial, ..] = &mut message;
        (*kind, *serial) = (what as u64, self.serial);
        rights::send(&self.socket, &to_bytes(&message), fds)?;
        loop {
            match sys::poll(self.socket.number(), libc::POLLIN, PATIENCE_MS) {
                Ok(0) => return Err(Errno(libc::ETIMEDOUT)),
                Err(Errno(libc::EINTR)) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno),
            }
            let mut bytes = [0; SIZE];
            match rights::receive(&self.socket, &mut bytes) {
                Ok((SIZE, _)) => {}
                Err(Errno(libc::EAGAIN | libc::EINTR)) => continue,
                Ok(_) | Err(_) => return Err(LOST),
            }
            // (An answer that came too late is passed over.)
            let [answer, serial, ..] = from_bytes(&bytes);
            if serial == self.serial {
                return if answer == 0 { Ok(()) } else { Err(LOST) };
            }
        }
    }
}

/// An address in five words, the first of which is its length.
fn packed(address: Address) -> [u64; 5] {
    let bytes = address.as_bytes();
    let mut words = [bytes.len() as u64, 0, 0, 0, 0];
    let [_, rest @ ..] = &mut words;
    for (place, part) in rest.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        for (place, byte) in whole.iter_mut().zip(part) {
            *place = *byte;
        }
        *place = u64::from_ne_bytes(whole);
    }
    words
}

fn unpacked(words: &[u64]) -> Option<Address> {
    let (&length, rest) = words.split_first()?;
    let mut bytes = [0; 32];
    let (places, _) = bytes.as_chunks_mut::<8>();
    for (place, word) in places.iter_mut().zip(rest) {
        *place = word.to_ne_bytes();
    }
    Address::given(bytes.get(..usize::try_from(length).ok()?)?)
}

/// One connection of the process's.
#[derive(Debug)]
struct One {
    index: u64,
    kept: Kept,
    record: Record,
    /// Others may have its addresses by now: nothing is sent in their name.
    is_taken: bool,
}

/// What a keeper has.
#[derive(Debug)]
struct Keeper {
    link: Fd,
    held: Option<Held>,
    process: Option<Fd>,
    ones: Vec<One>,
    injector: Injector,
}

/// Why one is not the kernel's yet.
enum NotBack {
    /// It may be, later: no way to the peer, no memory.
    Yet,
    /// It may be, later: its addresses are another's, or nobody's.
    Taken,
    /// It will not be: what was refused once will be refused again.
    Ever,
}

impl From<Errno> for NotBack {
    fn from(errno: Errno) -> Self {
        match errno.0 {
            libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN | libc::EINTR => Self::Yet,
            libc::ENFILE | libc::EMFILE => Self::Yet,
            // Another thread waits in it (Linux 6.6, tcp_disconnect).
            libc::EBUSY => Self::Yet,
            // The way was there a moment ago.
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN => Self::Yet,
            libc::ENODEV => Self::Yet,
            // (The program may have let go of them, past the library.)
            libc::EADDRNOTAVAIL | libc::EADDRINUSE => Self::Taken,
            _ => Self::Ever,
        }
    }
}

impl NotBack {
    /// Routes that are there to refuse say EACCES and EINVAL, and may be gone later; EPERM is said
    /// by no route (a program of the control group, a filter of system calls).
    const fn of_way(errno: Errno) -> Self {
        if errno.0 == libc::EPERM { Self::Ever } else { Self::Yet }
    }
}

/// Serves one process until it is gone, and all of its connections are the kernel's.
pub fn run(link: Fd) {
    let injector = Injector::new();
    let mut keeper = Keeper { link, held: None, process: None, ones: Vec::new(), injector };
    while keeper.serve() {}
    for _ in 0..TRIES {
        keeper.give_back();
        if keeper.ones.is_empty() {
            return;
        }
        // (A wait, on something that does not happen.)
        let _ = sys::poll(-1, 0, AGAIN_MS);
    }
    for one in &keeper.ones {
        one.reset(keeper.held.as_ref(), &keeper.injector);
    }
}

impl Keeper {
    /// Waits for a question, and answers it. False: nobody asks any more.
    fn serve(&mut self) -> bool {
        let came = match rights::wait_for_either(&self.link, self.process.as_ref()) {
            Ok(came) => came,
            Err(Errno(libc::EINTR)) => return true,
            Err(_) => return false,
        };
        let mut bytes = [0; SIZE];
        let (length, descriptors) = match rights::receive(&self.link, &mut bytes) {
            Ok(received) => received,
            // Nothing more was asked before it ended.
            Err(Errno(libc::EAGAIN)) => return came != [false, true],
            Err(_) => return false,
        };
        if length != SIZE {
            return false;
        }
        let message = from_bytes(&bytes);
        let done = self.answer(&message, descriptors);
        let [_, serial, ..] = message;
        let mut answer = [0; WORDS];
        let [failed, number, ..] = &mut answer;
        (*failed, *number) = (u64::from(done.is_none()), serial);
        // (If it is gone that is seen next.)
        let _ = rights::send(&self.link, &to_bytes(&answer), &[]);
        true
    }

    fn answer(&mut self, message: &Message, descriptors: [Option<Fd>; MOST]) -> Option<()> {
        const BEGIN: u64 = Asked::Begin as u64;
        const TAKE: u64 = Asked::Take as u64;
        const DROP: u64 = Asked::Drop as u64;
        let [kind, _, index, options, addresses @ ..] = message;
        let [a, b, c, d] = descriptors;
        match *kind {
            BEGIN if self.held.is_none() => {
                self.held = Some(Held::given(a?, [b?, c?]));
                self.process = Some(d?);
            }
            TAKE => {
                let (local, peer) = addresses.split_at_checked(5)?;
                let has = |bit: u32| options >> bit & 1 != 0;
                let [send_scale, receive_scale, ..] = options.to_le_bytes();
                let info = Info {
                    send_scale,
                    receive_scale,
                    scaled: has(16),
                    sack: has(17),
                    stamps: has(18),
                    ..Info::default()
                };
                let (local, peer) = (unpacked(local)?, unpacked(peer)?);
                let (reuse, keep_alive) = (c_int::from(has(19)), c_int::from(has(20)));
                let passed = Passed { local, peer, info, reuse, keep_alive };
                let kept = Kept::given(a?, &passed)?;
                let record = Record::given(File::given(b?)).ok()?;
                self.ones.try_reserve(1).ok()?;
                self.ones.push(One { index: *index, kept, record, is_taken: false });
            }
            DROP => self.ones.retain(|one| one.index != *index),
            _ => return None,
        }
        Some(())
    }

    /// Gives back what can be given back.
    fn give_back(&mut self) {
        let Self { ones, held, injector, .. } = self;
        let held = held.as_ref();
        ones.retain_mut(|one| match one.give_back(held) {
            Ok(()) => false,
            Err(NotBack::Ever) => {
                one.reset(held, injector);
                false
            }
            Err(why) => {
                one.is_taken = matches!(why, NotBack::Taken);
                true
            }
        });
    }
}

impl One {
    fn give_back(&mut self, held: Option<&Held>) -> Result<(), NotBack> {
        match self.record.stage() {
            // It was never anything but the kernel's.
            Stage::Whole => {
                self.kept.leave();
                self.release(held);
                Ok(())
            }
            Stage::Out => self.refill(held),
            Stage::Back => self.complete(held),
        }
    }

    fn release(&self, held: Option<&Held>) {
        if let Some(held) = held {
            held.release(&self.kept.flow);
        }
    }

    /// The socket has nothing of what was out.
    fn refill(&mut self, held: Option<&Held>) -> Result<(), NotBack> {
        let kept = &mut self.kept;
        kept.can_connect().map_err(NotBack::of_way)?;
        let numbers = self.record.numbers();
        let (queues, unsent) = self.record.queues(&numbers)?;
        kept.set_mss(c_int::try_from(self.record.mss()).unwrap_or(0));
        kept.repair()?;
        let buffers = kept.refill(&numbers.repair, &queues)?;
        self.record.set_stage(Stage::Back);
        self.release(held);
        self.kept.thaw(!queues.in_flight.is_empty() || !unsent.is_empty());
        self.write(&unsent)?;
        self.kept.restore(buffers);
        Ok(())
    }

    /// It has all but what was written last.
    fn complete(&self, held: Option<&Held>) -> Result<(), NotBack> {
        let numbers = self.record.numbers();
        let (_, unsent) = self.record.queues(&numbers)?;
        let missing = if unsent.is_empty() {
            0
        } else {
            let repair = &numbers.repair;
            let length = repair.send_to.wrapping_sub(repair.send_from);
            let end = repair.send_seq.wrapping_add(u32::try_from(length).unwrap_or(0));
            self.kept.missing(end, unsent.len())?
        };
        self.release(held);
        self.kept.thaw(true);
        self.write(unsent.get(unsent.len().saturating_sub(missing)..).unwrap_or(&[]))
    }

    /// All of it: behind a part the end of the stream would not be that of what was written.
    fn write(&self, bytes: &[u8]) -> Result<(), NotBack> {
        let taken = self.kept.write(bytes);
        let rest = bytes.get(taken..).unwrap_or(&[]);
        if rest.is_empty() {
            return Ok(());
        }
        // (Why it took no more. What it takes of this is seen by the next try.)
        sys::send(self.kept.descriptor(), rest, libc::MSG_DONTWAIT)?;
        Err(NotBack::Yet)
    }

    /// Nobody goes on with it: the peer hears that it is cut, and does not take what it has for
    /// all. The kernel, which has nothing of it any more, answers what the peer sends with resets.
    fn reset(&self, held: Option<&Held>, injector: &Injector) {
        // (What the kernel says of it is not heard while it is held: its numbers may be any.)
        self.kept.dissolve();
        self.release(held);
        if self.is_taken {
            return;
        }
        let flow = self.kept.flow;
        let usual = Service { hops: 64, class: 0, ecn_capable: false, flow_label: 0 };
        let service = service_of(self.kept.descriptor(), &flow).unwrap_or(usual);
        let _ = injector.reset((&flow, &service), &self.record.numbers().repair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent in the name of another connection is another program's.
    #[test]
    fn a_socket_is_taken_with_its_own_addresses_alone() {
        use std::net::{TcpListener, TcpStream, UdpSocket};
        use std::os::fd::AsRawFd;
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let to = listener.local_addr().unwrap();
            let [one, other] = [0; 2].map(|_| TcpStream::connect(to).unwrap());
            let udp = UdpSocket::bind(host).unwrap();
            udp.connect(to).unwrap();
            let ends = |of: c_int| (Address::local(of).unwrap(), Address::peer(of).unwrap());
            let given = |of: c_int, (local, peer)| {
                let passed = Passed { local, peer, info: Info::default(), reuse: 0, keep_alive: 0 };
                Kept::given(Fd::duplicate_of(of).unwrap(), &passed).is_some()
            };
            let [one, other, udp] = [one.as_raw_fd(), other.as_raw_fd(), udp.as_raw_fd()];
            assert!(given(one, ends(one)) && given(other, ends(other)), "{host}");
            assert!(!given(one, ends(other)), "{host}: another local end");
            let (local, peer) = ends(one);
            assert!(!given(one, (local, local)) && !given(one, (peer, local)), "{host}");
            assert!(!given(udp, ends(udp)), "{host}: no TCP");
        }
    }

    #[test]
    fn who_may_be_anothers_is_not_reset() {
        for (errno, taken, ever) in [
            (libc::EADDRNOTAVAIL, true, false),
            (libc::EADDRINUSE, true, false),
            (libc::EPERM, false, true),
            (libc::ENOMEM, false, false),
        ] {
            let why = NotBack::from(Errno(errno));
            assert_eq!(matches!(why, NotBack::Taken), taken, "{errno}");
            assert_eq!(matches!(why, NotBack::Ever), ever, "{errno}");
        }
    }

    #[test]
    fn an_address_comes_over_as_it_is() {
        for bytes in [&[2, 0, 0, 80, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0][..], &[7; 28]] {
            let address = Address::given(bytes).unwrap();
            assert_eq!(unpacked(&packed(address)).unwrap().as_bytes(), bytes);
        }
        assert!(unpacked(&[29, 0, 0, 0, 0]).is_none() && unpacked(&[]).is_none());
    }

    #[test]
    fn it_serves_and_ends_with_its_process_and_answers_nonsense() {
        let [process, link] = rights::link().unwrap();
        let keeper = std::thread::spawn(move || run(link));
        let mut link = Link { socket: process, serial: 0 };
        assert!(link.lives());
        assert_eq!(link.ask(Asked::Begin, [0; WORDS], &[]), Err(Errno(libc::EPIPE)));
        assert_eq!(link.ask(Asked::Take, [9; WORDS], &[]), Err(Errno(libc::EPIPE)));
        link.drop(7).unwrap();
        drop(link);
        keeper.join().unwrap();
    }
}
