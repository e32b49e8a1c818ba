//! A device of the kernel's, by AF_PACKET with `PACKET_VNET_HDR`.
//!
//! What comes in is read from a ring that is mapped (TPACKET_V2): no system call while there is
//! something, and none to see that there is nothing. What does not fit a place of the ring, as a
//! segment that was put together from many, is fetched by a call of its own. TPACKET_V3 gives a
//! packet only with its whole block, or after a millisecond.
//!
//! What goes out is copied by `sendmsg`, headers and payload from where they are; what is short is
//! put together before, and sent as one. A mapped ring for sending would be copied as well on
//! virtual links, where the receiver keeps the pages.
//!
//! The socket takes packets before tcx does, so it sees those that go no further.

use crate::port::{Arrived, Frame, LinkAddress, Port, Sent};
use crate::steering::{NoSteering, Stage, Steering};
use crate::sys::{self, Errno, Fd, checked, syscall};
use crate::vnet;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_tcp::wire::Flow;

/// A place of the ring: room for a packet of an Ethernet without large frames.
const PLACE: usize = 2048;
const PLACES: usize = 2048;
const BLOCK: usize = 1 << 16;
/// What was put together is not longer (BIG TCP is not read).
const LONGEST: usize = vnet::SIZE + vnet::ETHERNET + (1 << 16);
const BUFFERS: c_int = 8 << 20;

const TP_STATUS_USER: u32 = 1;
const TP_STATUS_COPY: u32 = 2;
const SOL_PACKET: c_int = 263;

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Packets that were sent; one that is divided counts once.
    pub sent: u64,
    /// Packets that it would not take.
    pub not_sent: u64,
    /// Packets that came.
    pub received: u64,
    /// Those that had no room: lost.
    pub cut_off: u64,
}

/// Why a device is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDevice {
    /// `CAP_NET_RAW` is missing.
    Privilege,
    /// There is no steering.
    Steering(NoSteering),
    /// The kernel cannot do this with packet sockets.
    Packets(Errno),
}

/// A device, and the flows on it that have left the kernel.
#[derive(Debug)]
pub struct Device {
    steering: Steering,
    ring: Ring,
    socket: Fd,
    cookie: u64,
    own: LinkAddress,
    large: Box<[u8]>,
    /// What was done.
    pub told: Told,
}

impl Device {
    /// Opens the device with that index and hardware address, for so many flows.
    ///
    /// # Errors
    ///
    /// [`NoDevice`]; nothing is left behind.
    pub fn open(interface: u32, own: LinkAddress, capacity: u32) -> Result<Self, NoDevice> {
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(|e| match e.0 {
            libc::EPERM | libc::EACCES => NoDevice::Privilege,
            _ => NoDevice::Packets(e),
        })?;
        let steering = Steering::open(interface, capacity).map_err(NoDevice::Steering)?;
        let ring = prepare(&socket, &steering, interface).map_err(NoDevice::Packets)?;
        let mut cookie = [0; 8];
        sys::get_bytes(socket.number(), (libc::SOL_SOCKET, libc::SO_COOKIE), &mut cookie)
            .map_err(NoDevice::Packets)?;
        let cookie = u64::from_ne_bytes(cookie);
        let mut large = Vec::new();
        let no_memory = NoDevice::Packets(Errno(libc::ENOMEM));
        large.try_reserve_exact(LONGEST).map_err(|_| no_memory)?;
        large.resize(LONGEST, 0);
        let large = large.into_boxed_slice();
        Ok(Self { steering, ring, socket, cookie, own, large, told: Told::default() })
    }

    /// The descriptor by which to wait for packets (`POLLIN`).
    #[must_use]
    pub const fn descriptor(&self) -> c_int {
        self.socket.number()
    }

    /// The steering of its flows.
    #[must_use]
    pub const fn steering(&self) -> &Steering {
        &self.steering
    }

    /// The packets of a flow come here as well as to the kernel.
    ///
    /// # Errors
    ///
    /// There is no room for it.
    pub fn copy(&self, flow: &Flow) -> Result<(), Errno> {
        self.steering.set(flow, Stage::Copied)
    }

    /// They come here alone, and the kernel sends none on the flow.
    ///
    /// # Errors
    ///
    /// There is no room for it.
    pub fn hold(&self, flow: &Flow) -> Result<(), Errno> {
        self.steering.set(flow, Stage::Held { sender: self.cookie })
    }

    /// They are the kernel's alone.
    pub fn release(&self, flow: &Flow) {
        self.steering.clear(flow);
    }
}

/// Options, ring, filter; then it is bound, so that no packet comes that the filter has not seen.
fn prepare(socket: &Fd, steering: &Steering, interface: u32) -> Result<Ring, Errno> {
    const PACKET_RX_RING: c_int = 5;
    const PACKET_COPY_THRESH: c_int = 7;
    const PACKET_VERSION: c_int = 10;
    const PACKET_VNET_HDR: c_int = 15;
    const PACKET_IGNORE_OUTGOING: c_int = 23;
    const SO_ATTACH_BPF: c_int = 50;
    const TPACKET_V2: c_int = 1;
    const ETH_P_ALL: u16 = 3;
    let fd = socket.number();
    for (option, value) in [
        (PACKET_VERSION, TPACKET_V2),
        (PACKET_VNET_HDR, 1),
        (PACKET_IGNORE_OUTGOING, 1),
        (PACKET_COPY_THRESH, 1),
    ] {
        sys::set(fd, (SOL_PACKET, option), value)?;
    }
    for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        // (Without it packets are lost earlier.)
        let _ = sys::set(fd, (libc::SOL_SOCKET, option), BUFFERS);
    }
    // struct tpacket_req: size and number of blocks, size and number of places.
    let request = [BLOCK, PLACE * PLACES / BLOCK, PLACE, PLACES];
    let request = request.map(|word| u32::try_from(word).unwrap_or(0).to_ne_bytes());
    sys::set_bytes(fd, (SOL_PACKET, PACKET_RX_RING), request.as_flattened())?;
    let ring = Ring::map(socket)?;
    sys::set(fd, (libc::SOL_SOCKET, SO_ATTACH_BPF), steering.filter())?;
    // struct sockaddr_ll.
    let mut address = [0; 20];
    let family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    for (at, bytes) in [
        (0, &family.to_ne_bytes()[..]),
        (2, &ETH_P_ALL.to_be_bytes()[..]),
        (4, &interface.to_ne_bytes()[..]),
    ] {
        if let Some(place) = address.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
    sys::bind(fd, &address)?;
    Ok(ring)
}

impl Port for Device {
    fn has_any(&self) -> bool {
        self.ring.status().load(Ordering::Relaxed) & TP_STATUS_USER != 0
    }

    fn send(&mut self, frame: &Frame<'_>) -> Sent {
        let Some(vnet) = vnet::header(frame) else {
            return Sent::Refused(Errno(libc::EINVAL));
        };
        let kind: u16 =
            if frame.headers.first().is_some_and(|b| b >> 4 == 6) { 0x86dd } else { 0x800 };
        let mut ethernet = [0; vnet::ETHERNET];
        let parts = frame.to.into_iter().chain(self.own).chain(kind.to_be_bytes());
        for (place, byte) in ethernet.iter_mut().zip(parts) {
            *place = byte;
        }
        let [first, second] = frame.payload;
        let parts = [&vnet[..], &ethernet, frame.headers, first, second];
        let small = small(&mut self.large, &parts);
        let send = || match small {
            Some(bytes) => send_whole(&self.socket, bytes),
            None => send_parts(&self.socket, &parts),
        };
        let mut result = send();
        if result == Err(Errno(libc::ENETDOWN)) {
            // It was down: that is said once. If it is, it is said again.
            result = send();
        }
        match result {
            Ok(_) => {
                self.told.sent += 1;
                Sent::Taken
            }
            Err(errno) => {
                self.told.not_sent += 1;
                match errno.0 {
                    libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR => Sent::Full,
                    _ => Sent::Refused(errno),
                }
            }
        }
    }

    fn receive<R>(&mut self, take: impl FnOnce(Arrived<'_>) -> R) -> Option<R> {
        loop {
            let place = self.ring.next()?;
            if place.status & TP_STATUS_COPY != 0 {
                // All of it waits in the socket's queue; the place has its beginning.
                self.ring.free();
                let fd = self.socket.number();
                let mut fetch = || sys::receive(fd, &mut self.large, libc::MSG_DONTWAIT);
                // (Once for an error of the past, as below: else the next fetch would get this.)
                let got = fetch().or_else(|_| fetch());
                let Some(packet) = got.ok().and_then(|got| self.large.get(..got)) else { continue };
                let Some((head, packet)) = packet.split_at_checked(vnet::SIZE) else { continue };
                let Some((_, packet)) = packet.split_at_checked(vnet::ETHERNET) else { continue };
                self.told.received += 1;
                let checked = head.first().is_some_and(|&flags| vnet::is_checked(flags));
                return Some(take(Arrived { packet, checked }));
            }
            let Some((flags, packet)) = place.whole() else {
                self.told.cut_off += 1;
                self.ring.free();
                continue;
            };
            self.told.received += 1;
            let result = take(Arrived { packet, checked: vnet::is_checked(flags) });
            self.ring.free();
            return Some(result);
        }
    }
}

/// What has no more bytes than this is put together here: the kernel takes one part for less than
/// five.
const SMALL: usize = 1024;

/// The parts, one behind the other, if they are short.
fn small<'a>(place: &'a mut [u8], parts: &[&[u8]; 5]) -> Option<&'a [u8]> {
    let length = parts.iter().map(|part| part.len()).sum();
    let whole = place.get_mut(..length).filter(|_| length <= SMALL)?;
    let mut rest = &mut *whole;
    for part in parts {
        let (first, behind) = rest.split_at_mut_checked(part.len())?;
        first.copy_from_slice(part);
        rest = behind;
    }
    Some(whole)
}

fn send_whole(socket: &Fd, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let at = bytes.as_ptr() as usize;
    let arguments = [socket.number() as usize, at, bytes.len(), flags, 0, 0];
    // SAFETY: the kernel reads so many bytes of a live slice, and no address.
    checked(unsafe { syscall(libc::SYS_sendto, arguments) })
}

fn send_parts(socket: &Fd, parts: &[&[u8]; 5]) -> Result<usize, Errno> {
    let mut vectors = parts
        .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: a msghdr is integers and pointers, for which all zeros are values.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    let at = &raw const message as usize;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let arguments = [socket.number() as usize, at, flags, 0, 0, 0];
    // SAFETY: the kernel reads the message, its vectors and what these name: all are live slices.
    checked(unsafe { syscall(libc::SYS_sendmsg, arguments) })
}

/// The places that the kernel puts packets into, one after the other. A place is the kernel's
/// until its status says that it is the user's, and the user's until that is taken back.
#[derive(Debug)]
struct Ring {
    memory: *mut u8,
    at: usize,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is bound to a thread.
unsafe impl Send for Ring {}

/// A place that is the user's. `struct tpacket2_hdr` is at its beginning.
struct Place<'a> {
    status: u32,
    bytes: &'a [u8],
}

impl Ring {
    fn map(socket: &Fd) -> Result<Self, Errno> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
        let arguments = [0, PLACE * PLACES, protection, flags, socket.number() as usize, 0];
        // SAFETY: a new mapping, where the kernel chooses.
        let at = checked(unsafe { syscall(libc::SYS_mmap, arguments) })?;
        // A forked child would keep the socket with it, and its ring filling. (Where the kernel
        // does not do this the child does.)
        let arguments = [at, PLACE * PLACES, libc::MADV_DONTFORK as usize, 0, 0, 0];
        // SAFETY: it says something of the mapping, and changes no byte of it.
        unsafe { syscall(libc::SYS_madvise, arguments) };
        Ok(Self { memory: core::ptr::with_exposed_provenance_mut(at), at: 0 })
    }

    /// The status word of the place that is next.
    const fn status(&self) -> &AtomicU32 {
        // SAFETY: `at` is below `PLACES`, so the word is in the mapping, which lives as long as
        // this value; places are aligned to far more than 4; the kernel writes it as a word.
        unsafe { &*self.memory.add(self.at * PLACE).cast::<AtomicU32>() }
    }

    fn next(&self) -> Option<Place<'_>> {
        let status = self.status().load(Ordering::Acquire);
        if status & TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the place is in the mapping; its status says that the kernel does not write it
        // any more until `free`, which needs `&mut self` and so the end of this borrow.
        let bytes = unsafe { core::slice::from_raw_parts(self.memory.add(self.at * PLACE), PLACE) };
        Some(Place { status, bytes })
    }

    /// The place is the kernel's.
    fn free(&mut self) {
        self.status().store(0, Ordering::Release);
        self.at = (self.at + 1) % PLACES;
    }
}

impl Place<'_> {
    /// The flags of the vnet header, and the packet; nothing if it was cut off.
    fn whole(&self) -> Option<(u8, &[u8])> {
        let word = |at: usize| Some(u32::from_ne_bytes(*self.bytes.get(at..)?.first_chunk()?));
        let half = |at: usize| Some(u16::from_ne_bytes(*self.bytes.get(at..)?.first_chunk()?));
        let (length, here) = (word(4)?, usize::try_from(word(8)?).ok()?);
        let (mac, net) = (usize::from(half(12)?), usize::from(half(14)?));
        if here < usize::try_from(length).ok()? {
            return None;
        }
        let flags = *self.bytes.get(mac.checked_sub(vnet::SIZE)?)?;
        Some((flags, self.bytes.get(net..mac.checked_add(here)?)?))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let at = self.memory.expose_provenance();
        // SAFETY: the mapping is this value's own, and nothing of it is borrowed any more.
        unsafe { syscall(libc::SYS_munmap, [at, PLACE * PLACES, 0, 0, 0, 0]) };
    }
}

const _: () = assert!(BLOCK.is_multiple_of(PLACE) && (PLACE * PLACES).is_multiple_of(BLOCK));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_put_together_and_what_is_long_is_not() {
        let mut place = [7; SMALL + 2];
        let payload = [1; SMALL];
        let parts = |n: usize| [&b"vnet"[..], b"", b"headers", &payload[..n], b"end"];
        let whole = parts(5).concat();
        assert_eq!(small(&mut place, &parts(5)), Some(&whole[..]));
        assert!(small(&mut place, &parts(SMALL - 14)).is_some());
        assert!(small(&mut place, &parts(SMALL - 13)).is_none());
        assert!(small(&mut place[..10], &parts(5)).is_none());
    }
}
