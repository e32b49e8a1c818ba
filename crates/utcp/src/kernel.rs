//! A socket of the kernel's, by `TCP_REPAIR`.
//!
//! 1. [`Kept::examine`]: may it be taken over at all? Nothing has changed where it may not.
//! 2. [`Kept::freeze`]: its numbers, queues, windows, options, clock. It is in repair mode then.
//! 3. [`Kept::hollow`]: the same socket, established, with nothing in its queues and no timer.
//! 4. [`Kept::refill`], [`Kept::thaw`]: it goes on at other numbers, with other queues.
//!
//! Whoever calls sees to it that the kernel neither gets the flow's packets from 2 to 4, nor sends
//! any.

mod addresses;
mod examine;

pub use addresses::Address;
pub(crate) use examine::service_of;
pub use examine::{Info, Refusal};

use alloc::vec::Vec;
use core::ffi::c_int;
use netacc_packet::sys::{self, Errno, Fd};
use netacc_tcp::Repair;
use netacc_tcp::wire::Flow;

const fn tcp(name: c_int) -> (c_int, c_int) {
    (libc::IPPROTO_TCP, name)
}

const fn of_socket(name: c_int) -> (c_int, c_int) {
    (libc::SOL_SOCKET, name)
}

const SO_PROTOCOL: c_int = 38;
const SO_NETNS_COOKIE: c_int = 71;
const REPAIR: (c_int, c_int) = tcp(19);
const REPAIR_QUEUE: (c_int, c_int) = tcp(20);
const QUEUE_SEQ: (c_int, c_int) = tcp(21);
const REPAIR_OPTIONS: (c_int, c_int) = tcp(22);
const TIMESTAMP: (c_int, c_int) = tcp(24);
const REPAIR_WINDOW: (c_int, c_int) = tcp(29);

const NO_QUEUE: c_int = 0;
const RECEIVE_QUEUE: c_int = 1;
const SEND_QUEUE: c_int = 2;

const SIOCINQ: u64 = 0x541b;
const SIOCOUTQ: u64 = 0x5411;
const SIOCOUTQNSD: u64 = 0x894b;

/// A socket that is, or is to be, taken over.
#[derive(Debug)]
pub struct Kept {
    fd: Fd,
    local: Address,
    peer: Address,
    /// As packets come: the peer is their source.
    pub flow: Flow,
    /// What `TCP_INFO` said.
    pub info: Info,
    /// `TCP_MAXSEG` of repair mode: what the peer said in its SYN.
    mss: c_int,
    reuse: c_int,
    keep_alive: c_int,
}

/// What another process needs of a [`Kept`], beside its descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// The own address.
    pub local: Address,
    /// The peer's.
    pub peer: Address,
    /// Of this only what the SYNs have said.
    pub info: Info,
    /// SO_REUSEADDR.
    pub reuse: c_int,
    /// SO_KEEPALIVE.
    pub keep_alive: c_int,
}

/// `struct tcp_repair_window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The number of the segment that said the window.
    pub snd_wl1: u32,
    /// The peer's window.
    pub snd_wnd: u32,
    /// The largest that it has been.
    pub max_window: u32,
    /// The window that was offered, counted from the last acknowledgement.
    pub rcv_wnd: u32,
    /// The last acknowledgement.
    pub rcv_wup: u32,
}

/// What the kernel says of a connection that stands still.
#[derive(Debug)]
pub struct Frozen {
    /// SND.UNA.
    pub una: u32,
    /// From there on: what is in flight, and what is unsent.
    pub queued: Vec<u8>,
    /// How much of it is in flight.
    pub in_flight: u32,
    /// RCV.NXT.
    pub nxt: u32,
    /// What the application has not read, up to there.
    pub unread: Vec<u8>,
    /// Both windows.
    pub window: Window,
    /// The clock of the time stamps.
    pub stamp: u32,
}

/// What belongs into the socket's queues.
#[derive(Debug)]
pub struct Queues {
    /// What was sent once and is not acknowledged.
    pub in_flight: Vec<u8>,
    /// What the application has not read.
    pub unread: Vec<u8>,
    /// So many bytes more will be written behind what is in flight.
    pub unsent: usize,
}

/// How a socket's buffers were.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    lock: c_int,
    send: c_int,
}

/// What must be the same before and after the queues are read.
#[derive(PartialEq, Eq)]
struct Numbers {
    segments: u32,
    nxt: u32,
    unread: c_int,
    end: u32,
    queued: c_int,
    unsent: c_int,
    window: [u8; 20],
}

impl Kept {
    /// Takes everything out of the socket's state; it stands still then, in repair mode. The
    /// kernel may still be busy with a packet that came before: it is read until it holds still.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: the connection goes on in the kernel.
    pub fn freeze(&mut self) -> Result<Frozen, Refusal> {
        const ROUNDS: usize = 16;
        let fd = self.fd.number();
        sys::set(fd, REPAIR, 1).map_err(Refusal::of_privilege)?;
        let read = || {
            let mss = sys::get(fd, tcp(libc::TCP_MAXSEG))?;
            for _ in 0..ROUNDS {
                let before = self.numbers()?;
                let (Some(unread), Some(queued)) = (self.unread(&before)?, self.queued(&before)?)
                else {
                    continue;
                };
                let stamp = sys::get(fd, TIMESTAMP)?.cast_unsigned();
                if self.numbers()? != before {
                    continue;
                }
                // What has ended since it was examined ends in the kernel.
                if examine::is_in_trouble(fd)? {
                    return Ok(None);
                }
                let size = |n: c_int| u32::try_from(n).unwrap_or(0);
                let frozen = Frozen {
                    una: before.end.wrapping_sub(size(before.queued)),
                    queued,
                    in_flight: size(before.queued - before.unsent),
                    nxt: before.nxt,
                    unread,
                    window: Window::from(&before.window),
                    stamp,
                };
                return Ok(Some((mss, frozen)));
            }
            Ok(None)
        };
        match read() {
            Ok(Some((mss, frozen))) => {
                self.mss = mss;
                Ok(frozen)
            }
            other => {
                self.leave();
                let ended = examine::is_in_trouble(fd).unwrap_or(false);
                let why = if ended { Refusal::State } else { Refusal::Restless };
                Err(other.err().map_or(why, Refusal::Other))
            }
        }
    }

    fn numbers(&self) -> Result<Numbers, Errno> {
        let fd = self.fd.number();
        let mut window = [0; 20];
        sys::set(fd, REPAIR_QUEUE, RECEIVE_QUEUE)?;
        let (nxt, unread) = (sys::get(fd, QUEUE_SEQ)?, sys::ioctl_int(fd, SIOCINQ)?);
        sys::set(fd, REPAIR_QUEUE, SEND_QUEUE)?;
        let (end, queued) = (sys::get(fd, QUEUE_SEQ)?, sys::ioctl_int(fd, SIOCOUTQ)?);
        let unsent = sys::ioctl_int(fd, SIOCOUTQNSD)?;
        sys::get_bytes(fd, REPAIR_WINDOW, &mut window)?;
        let segments = Info::of(fd)?.segments_in;
        let (nxt, end) = (nxt.cast_unsigned(), end.cast_unsigned());
        Ok(Numbers { segments, nxt, unread, end, queued, unsent, window })
    }

    /// The bytes that the application has not read.
    fn unread(&self, numbers: &Numbers) -> Result<Option<Vec<u8>>, Errno> {
        let size = usize::try_from(numbers.unread).unwrap_or(0);
        let bytes = self.peek(RECEIVE_QUEUE, size)?;
        Ok(Some(bytes).filter(|bytes| bytes.len() == size))
    }

    /// The bytes from SND.UNA on.
    fn queued(&self, numbers: &Numbers) -> Result<Option<Vec<u8>>, Errno> {
        /// The queue may begin with bytes of its first buffer that are acknowledged.
        const BEFORE: usize = 1 << 17;
        let size = usize::try_from(numbers.queued).unwrap_or(0);
        if size == 0 {
            return Ok(Some(Vec::new()));
        }
        let mut bytes = self.peek(SEND_QUEUE, size + BEFORE)?;
        let Some(before) = bytes.len().checked_sub(size) else { return Ok(None) };
        bytes.drain(..before);
        Ok(Some(bytes))
    }

    fn peek(&self, queue: c_int, size: usize) -> Result<Vec<u8>, Errno> {
        let fd = self.fd.number();
        let mut bytes = Vec::new();
        if size == 0 {
            return Ok(bytes);
        }
        bytes.try_reserve_exact(size).map_err(|_| Errno(libc::ENOMEM))?;
        bytes.resize(size, 0);
        sys::set(fd, REPAIR_QUEUE, queue)?;
        let got = sys::receive(fd, &mut bytes, libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Empties it, at the numbers where it stands: so the kernel has nothing to send again, and
    /// keeps the socket established. Nothing can be written to it while it is in repair mode.
    ///
    /// # Errors
    ///
    /// What the kernel said. The socket is no use until it is refilled.
    pub fn hollow(&self, frozen: &Frozen) -> Result<(), Errno> {
        let fd = self.fd.number();
        sys::set(fd, of_socket(libc::SO_KEEPALIVE), 0)?;
        self.rebuild(frozen.una, frozen.nxt, Some(frozen.stamp))?;
        sys::set(fd, REPAIR_QUEUE, NO_QUEUE)
    }

    /// Disconnects it, and connects it again at these numbers. In repair mode neither sends
    /// anything.
    fn rebuild(&self, send: u32, receive: u32, stamp: Option<u32>) -> Result<(), Errno> {
        let fd = self.fd.number();
        sys::connect(fd, &[0; 16])?;
        // (The disconnect leaves ECONNABORTED there.)
        sys::get(fd, of_socket(libc::SO_ERROR))?;
        // One that was accepted has lost its port, though getsockname still shows it.
        match sys::bind(fd, self.local.as_bytes()) {
            // It is bound already: the second time.
            Ok(()) | Err(Errno(libc::EINVAL)) => {}
            Err(errno) => return Err(errno),
        }
        for (queue, number) in [(SEND_QUEUE, send), (RECEIVE_QUEUE, receive)] {
            sys::set(fd, REPAIR_QUEUE, queue)?;
            sys::set(fd, QUEUE_SEQ, number.cast_signed())?;
        }
        sys::connect(fd, self.peer.as_bytes())?;
        // struct tcp_repair_opt: which option, and its value.
        const MSS: u32 = 2;
        const WINDOW: u32 = 3;
        const SACK: u32 = 4;
        const STAMPS: u32 = 8;
        let info = &self.info;
        let scales = u32::from(info.send_scale) | u32::from(info.receive_scale) << 16;
        let options = [
            Some((MSS, self.mss.cast_unsigned())),
            info.scaled.then_some((WINDOW, scales)),
            info.sack.then_some((SACK, 0)),
            info.stamps.then_some((STAMPS, 0)),
        ];
        for (code, value) in options.into_iter().flatten() {
            let words = [code.to_ne_bytes(), value.to_ne_bytes()];
            sys::set_bytes(fd, REPAIR_OPTIONS, words.as_flattened())?;
        }
        if let Some(stamp) = stamp.filter(|_| info.stamps) {
            // The lowest bit says that the clock is one of microseconds (since Linux 6.7). Up,
            // because a time stamp must not go back.
            let even = stamp.wrapping_add(stamp & 1);
            sys::set(fd, TIMESTAMP, even.cast_signed())?;
        }
        Ok(())
    }

    /// Whether the kernel could connect the socket again: it has a route to the peer, and the own
    /// address. Nothing is sent, and the socket is not touched.
    ///
    /// # Errors
    ///
    /// What the kernel said of a connection that is like it.
    pub fn can_connect(&self) -> Result<(), Errno> {
        let other = sys::socket(self.peer.family(), libc::SOCK_DGRAM, 0)?;
        // (An IPv6 socket may have IPv4 addresses, also where that is not the system's default.)
        let mapped = (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
        let _ = sys::set(other.number(), mapped, 0);
        sys::bind(other.number(), self.local.with_any_port().as_bytes())?;
        sys::connect(other.number(), self.peer.as_bytes())
    }

    /// The socket goes on from there. It is still in repair mode. Says how its buffers were, for
    /// [`Kept::restore`].
    ///
    /// # Errors
    ///
    /// What the kernel said: it cannot go on with this connection.
    pub fn refill(&self, repair: &Repair, queues: &Queues) -> Result<Buffers, Errno> {
        let fd = self.fd.number();
        let unread = u32::try_from(queues.unread.len()).unwrap_or(0);
        self.rebuild(repair.send_seq, repair.receive_seq.wrapping_sub(unread), repair.stamp)?;
        let room = self.make_room(queues)?;
        for (queue, bytes) in [(RECEIVE_QUEUE, &queues.unread), (SEND_QUEUE, &queues.in_flight)] {
            sys::set(fd, REPAIR_QUEUE, queue)?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let put = sys::send(fd, rest, libc::MSG_DONTWAIT)?;
                rest = rest.get(put..).unwrap_or(&[]);
            }
        }
        sys::set(fd, REPAIR_QUEUE, NO_QUEUE)?;
        let w = &repair.window;
        let words = [w.snd_wl1, w.snd_wnd, w.max_window, w.rcv_wnd, w.rcv_wup];
        sys::set_bytes(fd, REPAIR_WINDOW, words.map(u32::to_ne_bytes).as_flattened())?;
        Ok(room)
    }

    /// The queues take no more than the socket's buffers have room for. Says how these were.
    fn make_room(&self, queues: &Queues) -> Result<Buffers, Errno> {
        let fd = self.fd.number();
        let lock = sys::get(fd, of_socket(libc::SO_BUF_LOCK))?;
        let send = sys::get(fd, of_socket(libc::SO_SNDBUF))?;
        let receive = sys::get(fd, of_socket(libc::SO_RCVBUF))?;
        for (bytes, now, option) in [
            (queues.in_flight.len() + queues.unsent, send, libc::SO_SNDBUFFORCE),
            // (What was offered to the peer has to find room as well: this one stays large.)
            (queues.unread.len(), receive, libc::SO_RCVBUFFORCE),
        ] {
            // The kernel counts its own overhead, and doubles what it is told for that.
            let needed = c_int::try_from(bytes).unwrap_or(c_int::MAX / 4).saturating_add(1 << 17);
            if bytes > 0 && now / 2 < needed {
                sys::set(fd, of_socket(option), needed)?;
            }
        }
        Ok(Buffers { lock, send })
    }

    /// The socket's buffers are as they were, and the kernel fits them to the connection again.
    pub fn restore(&self, Buffers { lock, send }: Buffers) {
        let fd = self.fd.number();
        // (This and the rest are of a socket that has them.)
        if sys::get(fd, of_socket(libc::SO_SNDBUF)).is_ok_and(|now| now != send) {
            let _ = sys::set(fd, of_socket(libc::SO_SNDBUFFORCE), send / 2);
        }
        let _ = sys::set(fd, of_socket(libc::SO_BUF_LOCK), lock);
    }

    /// It is an ordinary socket again. With `probe` it asks the peer where it is: the answer mends
    /// what was lost around the give-back.
    pub fn thaw(&self, probe: bool) {
        const OFF: c_int = 0;
        let fd = self.fd.number();
        // (This and the rest are of a socket that has them.)
        if probe {
            let _ = sys::set(fd, REPAIR, OFF);
        }
        self.leave();
    }

    /// Its close resets the peer.
    pub fn end_in_reset(&self) {
        let linger = [1u32, 0].map(u32::to_ne_bytes);
        let option = of_socket(libc::SO_LINGER);
        // (It is of a socket that has it.)
        let _ = sys::set_bytes(self.fd.number(), option, linger.as_flattened());
    }

    /// The kernel cannot go on with it: repair mode ends, and so does what the kernel has of the
    /// connection, which nobody would end there. Whoever waits for it, or uses it, is told.
    pub fn dissolve(&self) {
        self.leave();
        let _ = sys::connect(self.fd.number(), &[0; 16]);
    }

    /// Repair mode ends, and the options are as they were.
    pub fn leave(&self) {
        const OFF_WITHOUT_PROBE: c_int = -1;
        let fd = self.fd.number();
        let _ = sys::set(fd, REPAIR, OFF_WITHOUT_PROBE);
        let _ = sys::set(fd, of_socket(libc::SO_REUSEADDR), self.reuse);
        let _ = sys::set(fd, of_socket(libc::SO_KEEPALIVE), self.keep_alive);
    }

    /// Gives it bytes that were never sent: how many it took.
    #[must_use]
    pub fn write(&self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            match sys::send(self.fd.number(), rest, libc::MSG_DONTWAIT) {
                Ok(put) if put > 0 => taken += put,
                _ => break,
            }
        }
        taken
    }

    /// A socket that another process has examined, and is about to take over. `None`: it is no TCP
    /// connection between these ends, in the namespace of this process: what is sent in their name
    /// would be another's.
    #[must_use]
    pub fn given(fd: Fd, passed: &Passed) -> Option<Self> {
        let Passed { local, peer, info, reuse, keep_alive } = *passed;
        let of = fd.number();
        let is_tcp = sys::get(of, of_socket(SO_PROTOCOL)) == Ok(libc::IPPROTO_TCP);
        let is_own = Address::local(of).is_ok_and(|own| own.is_same(&local));
        let is_its = Address::peer(of).is_ok_and(|its| its.is_same(&peer));
        let here = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).ok()?;
        let is_here = namespace(of).is_ok_and(|of| namespace(here.number()) == Ok(of));
        if !(is_tcp && is_own && is_its && is_here) {
            return None;
        }
        let flow = Flow { source: peer.endpoint()?, destination: local.endpoint()? };
        Some(Self { fd, local, peer, flow, info, mss: 0, reuse, keep_alive })
    }

    /// What another process needs to go on with it.
    #[must_use]
    pub const fn passed(&self) -> Passed {
        let Self { local, peer, info, reuse, keep_alive, .. } = *self;
        Passed { local, peer, info, reuse, keep_alive }
    }

    /// What `TCP_MAXSEG` said in repair mode.
    #[must_use]
    pub const fn mss(&self) -> c_int {
        self.mss
    }

    /// See [`Kept::mss`].
    pub const fn set_mss(&mut self, mss: c_int) {
        self.mss = mss;
    }

    /// How many of the last of these bytes it has not been given: it should have got them all, and
    /// then its stream would have ended at that number.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn missing(&self, end: u32, most: usize) -> Result<usize, Errno> {
        let fd = self.fd.number();
        sys::set(fd, REPAIR, 1)?;
        sys::set(fd, REPAIR_QUEUE, SEND_QUEUE)?;
        let written = sys::get(fd, QUEUE_SEQ)?.cast_unsigned();
        sys::set(fd, REPAIR_QUEUE, NO_QUEUE)?;
        let missing = usize::try_from(end.wrapping_sub(written)).unwrap_or(usize::MAX);
        // (More: somebody else has written since, so all of it was there.)
        Ok(if missing <= most { missing } else { 0 })
    }

    /// It is in repair mode, also if it was not.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn repair(&self) -> Result<(), Errno> {
        sys::set(self.fd.number(), REPAIR, 1)
    }

    /// The socket's number, of this value's own.
    #[must_use]
    pub const fn descriptor(&self) -> c_int {
        self.fd.number()
    }
}

/// The network namespace of a socket: a number that no other one has had since the host is up.
fn namespace(fd: c_int) -> Result<u64, Errno> {
    let mut cookie = [0; 8];
    sys::get_bytes(fd, of_socket(SO_NETNS_COOKIE), &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

impl From<&[u8; 20]> for Window {
    fn from(bytes: &[u8; 20]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let mut words = words.iter().map(|&word| u32::from_ne_bytes(word));
        let mut next = || words.next().unwrap_or(0);
        Self {
            snd_wl1: next(),
            snd_wnd: next(),
            max_window: next(),
            rcv_wnd: next(),
            rcv_wup: next(),
        }
    }
}
