//! Connections that are out, over one device.
//!
//! One thread drives it: [`Engine::turn`] again and again, while there is something to do. Which
//! connections come and go is the caller's business.

use crate::carried::{Asked, Carried, Ended};
use crate::inject::Injector;
use crate::kernel::{Kept, Refusal};
use alloc::vec::Vec;
use core::ffi::c_int;
use netacc_packet::Device;
use netacc_packet::port::Port;
use netacc_packet::route::{self, NoRoute};
use netacc_packet::sys::{self, Errno};
use netacc_tcp::table::Table;
use netacc_tcp::wheel::Wheel;
use netacc_tcp::wire::Flow;
use netacc_tcp::wire::emit::Service;
use netacc_tcp::wire::parse::{Checksums, packet};
use netacc_tcp::{KeepAlive, Nanos, Reason, Wishes};

/// So many packets are taken in one turn.
const TURN: usize = 256;
/// So many have room in a device's ring.
const RING: usize = 2048;

/// The connections of a device.
#[derive(Debug)]
pub struct Engine<P> {
    port: P,
    interface: u32,
    table: Table,
    wheel: Wheel,
    places: Vec<Option<Carried>>,
    injector: Injector,
}

/// Why a connection was not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// It stays with the kernel as it is.
    Refused(Refusal),
    /// Its packets do not go over this device, or not to a neighbour that is known.
    Route(NoRoute),
    /// They go over another device.
    OtherDevice(u32),
    /// It is out already.
    Out,
    /// There are as many as there may be.
    Full,
    /// The steering does not take it.
    Steering(Errno),
}

/// A connection that is the kernel's again.
#[derive(Debug)]
pub struct GivenBack {
    /// Why the kernel had to go on, if it had to.
    pub reason: Option<Reason>,
    /// What the application had written and the kernel has not taken. It comes before anything
    /// that is written from now on.
    pub unsent: Vec<u8>,
}

/// A connection that the kernel could not go on with. The peer was reset; the socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost(pub Errno);

/// A device, or one behind something that plays the network, for tests.
pub trait Steered: Port {
    /// The device.
    fn device(&self) -> &Device;
}

impl Steered for Device {
    fn device(&self) -> &Device {
        self
    }
}

impl<P: Steered> Engine<P> {
    /// For so many connections of the device with that index. The key is random and stays secret.
    /// Nothing where there is no memory.
    #[must_use]
    pub fn new(port: P, interface: u32, capacity: u32, key: [u64; 2]) -> Option<Self> {
        let count = usize::try_from(capacity).ok()?;
        let mut places = Vec::new();
        places.try_reserve_exact(count).ok()?;
        places.resize_with(count, || None);
        let (table, wheel) = (Table::new(count, key)?, Wheel::new(count, 0)?);
        Some(Self { port, interface, table, wheel, places, injector: Injector::new() })
    }

    /// The port.
    pub const fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Takes a connection over: its number here. `settle` waits until no packet is under way in
    /// the kernel that the device might miss; without, such a one comes again from the peer.
    ///
    /// # Errors
    ///
    /// [`NotTaken`]: it goes on in the kernel.
    pub fn take_over(&mut self, fd: c_int, settle: bool, now: Nanos) -> Result<u32, NotTaken> {
        let kept = Kept::examine(fd).map_err(NotTaken::Refused)?;
        let flow = kept.flow;
        if self.table.find(&flow).is_some() {
            return Err(NotTaken::Out);
        }
        let (own, peer) = (flow.destination.address, flow.source.address);
        let route = route::find(own, peer).map_err(NotTaken::Route)?;
        if route.interface != self.interface {
            return Err(NotTaken::OtherDevice(route.interface));
        }
        let free = self.places.iter().position(Option::is_none).ok_or(NotTaken::Full)?;
        let index = u32::try_from(free).map_err(|_| NotTaken::Full)?;
        let asked = asked(fd, &flow).map_err(|errno| NotTaken::Refused(Refusal::Other(errno)))?;
        self.port.device().copy(&flow).map_err(NotTaken::Steering)?;
        if settle {
            // (Not allowed somewhere: then it is as without.)
            let _ = sys::settle();
        }
        let held = self.port.device().hold(&flow).map_err(NotTaken::Steering);
        let taken = held
            .and_then(|()| freeze((kept, route.next_hop), &asked, now).map_err(NotTaken::Refused));
        let added = taken.and_then(|carried| match self.table.add(flow, index) {
            Ok(()) => Ok(carried),
            Err(_) => {
                carried.kept.leave();
                Err(NotTaken::Full)
            }
        });
        match added {
            Ok(carried) => {
                if let Some(place) = self.places.get_mut(free) {
                    *place = Some(carried);
                }
                // (A ring has no more than that.)
                for _ in 0..RING / TURN {
                    if !self.turn(now) {
                        break;
                    }
                }
                if let Some(carried) = self.carried(index) {
                    carried.begins();
                }
                self.after(index, now);
                Ok(index)
            }
            Err(why) => {
                self.port.device().release(&flow);
                self.turn(now);
                Err(why)
            }
        }
    }

    /// A connection that is out.
    pub fn carried(&mut self, index: u32) -> Option<&mut Carried> {
        self.places.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    /// Sends what its application has given it to be sent, or has made room for.
    pub fn after(&mut self, index: u32, now: Nanos) {
        let Some(place) = usize::try_from(index).ok().and_then(|at| self.places.get_mut(at)) else {
            return;
        };
        if let Some(carried) = place {
            carried.transmit(&mut self.port, now);
            self.wheel.set(index, carried.connection().next_timer());
        }
    }

    /// Takes packets that came, and does what is due: whether there was anything.
    pub fn turn(&mut self, now: Nanos) -> bool {
        let mut busy = false;
        for _ in 0..TURN {
            let Some(index) = self.receive(now) else { break };
            busy = true;
            if let Some(index) = index {
                self.after(index, now);
            }
        }
        while let Some(index) = self.wheel.expire(now) {
            busy = true;
            if let Some(carried) = self.carried(index) {
                carried.on_timer(now);
            }
            self.after(index, now);
        }
        busy
    }

    /// Takes one packet, and says which connection has had news.
    fn receive(&mut self, now: Nanos) -> Option<Option<u32>> {
        let Self { port, table, places, injector, .. } = self;
        port.receive(|came| {
            let sums = if came.checked { Checksums::Trusted } else { Checksums::Compare };
            // Damaged, or nothing that the filter should have let through.
            let Ok(read) = packet(came.packet, sums) else { return None };
            let index = table.find(&read.flow);
            let place = index.and_then(|index| places.get_mut(usize::try_from(index).ok()?));
            match place.and_then(Option::as_mut) {
                Some(carried) => {
                    carried.on_packet(now, came.packet, (&read.segment, read.payload));
                }
                // It was held, and its connection is the kernel's again by now.
                None => {
                    let _ = injector.inject(&read.flow, &mut came.packet.to_vec());
                }
            }
            index
        })
    }

    /// When something is due, if nothing happens before.
    #[must_use]
    pub fn next_timer(&self) -> Option<Nanos> {
        self.wheel.next()
    }

    /// Gives a connection back into its socket.
    ///
    /// # Errors
    ///
    /// [`Lost`]. Nothing where there is none of that number.
    pub fn give_back(&mut self, index: u32, now: Nanos) -> Option<Result<GivenBack, Lost>> {
        self.turn(now);
        let place = self.places.get_mut(usize::try_from(index).ok()?)?;
        let mut ended = place.take()?.end(now);
        self.wheel.set(index, None);
        let flow = ended.kept.flow;
        self.table.remove(&flow);
        if let Err(errno) = ended.kept.refill(&ended.repair, &ended.queues) {
            ended.reset(&mut self.port);
            ended.kept.leave();
            self.port.device().release(&flow);
            return Some(Err(Lost(errno)));
        }
        // From here on the kernel has its packets, those first that were held.
        self.port.device().release(&flow);
        let waits = !ended.queues.in_flight.is_empty() || !ended.unsent.is_empty();
        ended.kept.thaw(waits);
        for packet in &mut ended.stash {
            let _ = self.injector.inject(&flow, packet);
        }
        self.turn(now);
        let Ended { kept, mut unsent, repair, .. } = ended;
        let taken = kept.write(&unsent);
        unsent.drain(..taken.min(unsent.len()));
        Some(Ok(GivenBack { reason: repair.reason, unsent }))
    }
}

/// From the kernel's socket to a connection that is out. Where it does not work the socket is as
/// it was.
fn freeze(
    (mut kept, to): (Kept, netacc_packet::LinkAddress),
    asked: &Asked,
    now: Nanos,
) -> Result<Carried, Refusal> {
    let frozen = kept.freeze()?;
    let prepared = Carried::prepare(&kept, asked, &frozen, now).inspect_err(|_| kept.leave())?;
    // Where the kernel does not do this the connection is out all the same; it is tried again when
    // it is given back.
    let _ = kept.hollow(&frozen);
    Ok(Carried::new(kept, to, prepared))
}

/// What the socket's options ask for.
fn asked(fd: c_int, flow: &Flow) -> Result<Asked, Errno> {
    const SECOND: Nanos = 1_000_000_000;
    const MS: Nanos = 1_000_000;
    let tcp = |name| sys::get(fd, (libc::IPPROTO_TCP, name));
    let seconds = |name| tcp(name).map(|n| Nanos::try_from(n).unwrap_or(0) * SECOND);
    let (level, class, hops) = if flow.source.address.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS)
    };
    let byte = |name| sys::get(fd, (level, name)).map(|n| u8::try_from(n).unwrap_or(0));
    let keep_alive = if sys::get(fd, (libc::SOL_SOCKET, libc::SO_KEEPALIVE))? == 0 {
        None
    } else {
        let (idle, interval) = (seconds(libc::TCP_KEEPIDLE)?, seconds(libc::TCP_KEEPINTVL)?);
        let count = u32::try_from(tcp(libc::TCP_KEEPCNT)?).unwrap_or(1);
        Some(KeepAlive { idle, interval, count })
    };
    let user_timeout = Nanos::try_from(tcp(libc::TCP_USER_TIMEOUT)?).unwrap_or(0) * MS;
    let wishes = Wishes {
        nodelay: tcp(libc::TCP_NODELAY)? != 0,
        keep_alive,
        user_timeout: (user_timeout > 0).then_some(user_timeout),
        ack_delay: 40 * MS,
    };
    let service =
        Service { hops: byte(hops)?, class: byte(class)?, ecn_capable: false, flow_label: 0 };
    Ok(Asked { wishes, service })
}
