//! Which flows leave the kernel: a map of them, and three programs that ask it.
//!
//! - The *filter* of the packet socket lets the packets of these flows alone into it.
//! - On the way in (tcx), the packets of a flow that is held go no further than that.
//! - On the way out (tcx), what anybody but the packet socket sends on such a flow goes nowhere:
//!   the kernel, whose socket stands still, says nothing that the peer would believe. No reset, no
//!   acknowledgement, no segment of a timer that still ran.
//!
//! All is held by descriptors: it goes away with the process, whatever ends it. (A child that was
//! forked holds copies, though.) Nothing is pinned, no rule and no qdisc is made. Each process
//! has links of its own, and leaves what is not in its map to those that follow.
//!
//! Packets with a VLAN tag, IP options, extension headers, and fragments are nobody's but the
//! kernel's.

use crate::bpf::{
    self, Kind, Label, Program, R0, R1, R2, R3, R4, R5, R6, R7, R10, Width, delete, hash_map, link,
    update,
};
use crate::sys::{Errno, Fd};
use core::ffi::c_int;
use core::net::IpAddr;
use netacc_tcp::wire::Flow;

/// How far a flow has left the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its packets come to the packet socket as well.
    Copied,
    /// They come there alone, and the kernel sends none. Its own are sent by the socket that has
    /// this cookie.
    Held {
        /// `SO_COOKIE`.
        sender: u64,
    },
}

/// Why there is no steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSteering {
    /// `CAP_BPF` (and, for the links, `CAP_NET_ADMIN`) is missing.
    Privilege,
    /// The kernel has no tcx: it came with Linux 6.6.
    Kernel,
    /// There is no such device.
    Interface,
    /// Something else.
    Other(Errno),
}

/// The steering of one device.
#[derive(Debug)]
pub struct Steering {
    map: Fd,
    filter: Fd,
    ingress: Fd,
    egress: Fd,
}

/// What a keeper has of it: flows stay as they are as long as it lives.
#[derive(Debug)]
pub struct Held {
    map: Fd,
    _links: [Fd; 2],
}

impl Held {
    /// From the descriptors of another process's [`Steering`], in their order.
    #[must_use]
    pub const fn given(map: Fd, links: [Fd; 2]) -> Self {
        Self { map, _links: links }
    }

    /// The flow is the kernel's alone again.
    pub fn release(&self, flow: &Flow) {
        // (It was not there: so it is.)
        let _ = delete(self.map.number(), &key(flow));
    }
}

/// Both addresses with 16 bytes each, both ports, the family: the peer's first.
const KEY: usize = 40;
/// Bits, four bytes of nothing, and a cookie.
const VALUE: usize = 16;
const COPIED: i32 = 1;
const HELD: i32 = 2;

fn key(flow: &Flow) -> [u8; KEY] {
    let mut key = [0; KEY];
    let family = match (flow.source.address, flow.destination.address) {
        (IpAddr::V4(peer), IpAddr::V4(own)) => {
            copy(&mut key, 0, &peer.octets());
            copy(&mut key, 16, &own.octets());
            4
        }
        (peer, own) => {
            copy(&mut key, 0, &in_16(peer));
            copy(&mut key, 16, &in_16(own));
            6
        }
    };
    copy(&mut key, 32, &flow.source.port.to_be_bytes());
    copy(&mut key, 34, &flow.destination.port.to_be_bytes());
    copy(&mut key, 36, &[family]);
    key
}

const fn in_16(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn copy(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = to.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

impl Steering {
    /// Of a device of this network namespace, for so many flows.
    ///
    /// # Errors
    ///
    /// [`NoSteering`]; nothing is left behind.
    pub fn open(interface: u32, capacity: u32) -> Result<Self, NoSteering> {
        const TCX_INGRESS: u32 = 46;
        const TCX_EGRESS: u32 = 47;
        let denied = |errno: Errno| match errno.0 {
            libc::EPERM | libc::EACCES => NoSteering::Privilege,
            libc::ENODEV => NoSteering::Interface,
            _ => NoSteering::Other(errno),
        };
        let map = hash_map(KEY, VALUE, capacity).map_err(denied)?;
        let load = |part| {
            let kind = if part == Part::Filter { Kind::Filter } else { Kind::Traffic };
            bpf::load(kind, &program(part, map.number())).map_err(denied)
        };
        let filter = load(Part::Filter)?;
        let attach = |part, attach_type| {
            // A kernel that does not know the type of attachment says EINVAL.
            link(&load(part)?, interface, attach_type).map_err(|errno| match errno.0 {
                libc::EINVAL => NoSteering::Kernel,
                _ => denied(errno),
            })
        };
        let egress = attach(Part::Egress, TCX_EGRESS)?;
        let ingress = attach(Part::Ingress, TCX_INGRESS)?;
        Ok(Self { map, filter, ingress, egress })
    }

    /// Map and links, for [`Held`].
    #[must_use]
    pub const fn descriptors(&self) -> [c_int; 3] {
        [self.map.number(), self.ingress.number(), self.egress.number()]
    }

    /// The program that a packet socket takes as its filter.
    #[must_use]
    pub const fn filter(&self) -> c_int {
        self.filter.number()
    }

    /// Sets how far a flow has left the kernel; the peer is its source. Packets that are under way
    /// inside of the kernel may go by how it was before, until [`settle`](crate::sys::settle).
    ///
    /// # Errors
    ///
    /// The map is full, or there is no memory: nothing has changed.
    pub fn set(&self, flow: &Flow, stage: Stage) -> Result<(), Errno> {
        let (bits, sender) = match stage {
            Stage::Copied => (COPIED, 0),
            Stage::Held { sender } => (COPIED | HELD, sender),
        };
        let mut value = [0; VALUE];
        copy(&mut value, 0, &bits.to_ne_bytes());
        copy(&mut value, 8, &sender.to_ne_bytes());
        update(self.map.number(), &key(flow), &value)
    }

    /// The flow is the kernel's alone again.
    pub fn clear(&self, flow: &Flow) {
        // (It was not there: so it is.)
        let _ = delete(self.map.number(), &key(flow));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Filter,
    Ingress,
    Egress,
}

const TO_THE_NEXT: i32 = -1;
const DROP: i32 = 2;
const WHOLE: i32 = 0x7fff_ffff;

/// Where things are on the stack.
const KEY_AT: i16 = -40;
const PACKET_AT: i16 = -88;

const FAILED: Label = Label(0);
const IPV6: Label = Label(1);
const LOOK: Label = Label(2);
const OURS: Label = Label(3);

/// One of the three programs.
fn program(part: Part, map: c_int) -> Program {
    const MAP_LOOKUP: i32 = 1;
    const SOCKET_COOKIE: i32 = 46;
    let mut program = Program::default();
    let p = &mut program;
    find_flow(p, part);
    p.place(LOOK);
    p.map(R1, map);
    p.copy(R2, R10);
    p.add(R2, i32::from(KEY_AT));
    p.call(MAP_LOOKUP);
    p.if_is(R0, 0, FAILED);
    p.load(Width::Word, R1, (R0, 0));
    match part {
        Part::Filter => {
            p.and(R1, COPIED);
            p.if_is(R1, 0, FAILED);
            p.end(WHOLE);
            p.place(FAILED);
            p.end(0);
        }
        Part::Ingress => {
            p.and(R1, HELD);
            p.if_is(R1, 0, FAILED);
            p.end(DROP);
            p.place(FAILED);
            p.end(TO_THE_NEXT);
        }
        Part::Egress => {
            p.and(R1, HELD);
            p.if_is(R1, 0, FAILED);
            p.load(Width::Double, R7, (R0, 8));
            p.copy(R1, R6);
            p.call(SOCKET_COOKIE);
            p.if_same(R0, R7, OURS);
            p.end(DROP);
            p.place(OURS);
            p.place(FAILED);
            p.end(TO_THE_NEXT);
        }
    }
    program
}

/// Writes the key of the packet's flow to the stack, or goes to `FAILED`.
fn find_flow(p: &mut Program, part: Part) {
    // struct __sk_buff.
    const PROTOCOL: i16 = 16;
    const VLAN_PRESENT: i16 = 20;
    let protocol = |number: u16| i32::from(number.to_be());
    p.copy(R6, R1);
    p.load(Width::Word, R2, (R6, VLAN_PRESENT));
    p.unless_is(R2, 0, FAILED);
    for at in (KEY_AT..0).step_by(8) {
        p.store_value(Width::Double, (R10, at), 0);
    }
    p.load(Width::Word, R7, (R6, PROTOCOL));
    p.if_is(R7, protocol(0x86dd), IPV6);
    p.unless_is(R7, protocol(0x0800), FAILED);

    load_headers(p, 24);
    p.load(Width::Byte, R1, (R10, PACKET_AT));
    p.unless_is(R1, 0x45, FAILED);
    p.load(Width::Half, R1, (R10, PACKET_AT + 6));
    p.and(R1, protocol(0x3fff));
    p.unless_is(R1, 0, FAILED);
    p.load(Width::Byte, R1, (R10, PACKET_AT + 9));
    p.unless_is(R1, libc::IPPROTO_TCP, FAILED);
    copy_ends(p, part, &Ends { source: 12, destination: 16, size: 4, ports: 20 });
    p.store_value(Width::Byte, (R10, KEY_AT + 36), 4);
    p.go(LOOK);

    p.place(IPV6);
    load_headers(p, 44);
    p.load(Width::Byte, R1, (R10, PACKET_AT + 6));
    p.unless_is(R1, libc::IPPROTO_TCP, FAILED);
    copy_ends(p, part, &Ends { source: 8, destination: 24, size: 16, ports: 40 });
    p.store_value(Width::Byte, (R10, KEY_AT + 36), 6);
}

/// The IP header and the ports come to the stack. (It need not be in the packet's linear part.)
fn load_headers(p: &mut Program, size: i32) {
    const LOAD_BYTES_RELATIVE: i32 = 68;
    const FROM_NETWORK_HEADER: i32 = 1;
    p.copy(R1, R6);
    p.set(R2, 0);
    p.copy(R3, R10);
    p.add(R3, i32::from(PACKET_AT));
    p.set(R4, size);
    p.set(R5, FROM_NETWORK_HEADER);
    p.call(LOAD_BYTES_RELATIVE);
    p.unless_is(R0, 0, FAILED);
}

/// Where a packet has its ends.
struct Ends {
    source: i16,
    destination: i16,
    size: i16,
    ports: i16,
}

/// The peer is the source of what comes in, and the destination of what goes out.
fn copy_ends(p: &mut Program, part: Part, ends: &Ends) {
    let out = part == Part::Egress;
    let places = if out { [16, 0] } else { [0, 16] };
    for (from, to) in [ends.source, ends.destination].into_iter().zip(places) {
        for at in (0..ends.size).step_by(4) {
            p.load(Width::Word, R1, (R10, PACKET_AT + from + at));
            p.store(Width::Word, (R10, KEY_AT + to + at), R1);
        }
    }
    for (from, to) in [0, 2].into_iter().zip(if out { [34, 32] } else { [32, 34] }) {
        p.load(Width::Half, R1, (R10, PACKET_AT + ends.ports + from));
        p.store(Width::Half, (R10, KEY_AT + to), R1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_tcp::wire::Endpoint;

    #[test]
    fn a_key_has_the_peer_first_and_says_its_family() {
        let end = |address: &str, port| Endpoint { address: address.parse().unwrap(), port };
        let flow = Flow { source: end("1.2.3.4", 0x506), destination: end("7.8.9.10", 0x708) };
        let mut expected = [0; KEY];
        expected[..4].copy_from_slice(&[1, 2, 3, 4]);
        expected[16..20].copy_from_slice(&[7, 8, 9, 10]);
        expected[32..37].copy_from_slice(&[5, 6, 7, 8, 4]);
        assert_eq!(key(&flow), expected);
        let v6 = Flow { source: end("102:304::", 0x506), destination: end("708:90a::", 0x708) };
        expected[36] = 6;
        assert_eq!(key(&v6), expected);
        assert_eq!(key(&v6.reversed())[32..36], [7, 8, 5, 6]);
    }
}
