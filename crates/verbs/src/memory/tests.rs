//! That the fabric in memory keeps the rules of verbs, and that its faults are what they say.

use super::*;
use core::net::SocketAddr;
use core::ptr::NonNull;
use std::boxed::Box;
use std::collections::BTreeSet;
use std::string::String;
use std::vec::Vec;
use std::{format, vec};

mod faults;
mod order;
mod rules;

const A: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 26379;
const BYTES: usize = 4096;
/// Where [`post_receives`] puts messages.
const RECEIVES: usize = 2048;
const MODELS: [Model; 3] = [Model::ROCE, Model::SIW, Model::ERDMA];

/// One end of a connection: manager, device, queue and a region of [`BYTES`] bytes.
struct End {
    host: Memory,
    manager: Manager,
    device: Device,
    domain: Domain,
    queue: Queue,
    region: Region,
    memory: *mut [u8; BYTES],
}

impl End {
    fn new(net: &Net, address: IpAddr, model: Model) -> Self {
        Self::on(net.host(address, model), address, 256)
    }

    fn on(host: Memory, address: IpAddr, entries: u32) -> Self {
        let manager = host.open_manager().unwrap();
        let device = host.open_device(&manager, address, 0).unwrap();
        let queue = host.open_queue(&device, entries, 0).unwrap();
        let domain = host.open_domain(&device).unwrap();
        let memory = Box::into_raw(Box::new([0; BYTES]));
        let at = NonNull::new(memory.cast()).unwrap();
        // SAFETY: freed in `close`, after the region; `bytes` and `fill` copy.
        let region = unsafe { host.register(&domain, at, BYTES, Access::RemoteWrite) }.unwrap();
        Self { host, manager, device, domain, queue, region, memory }
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= BYTES);
        // SAFETY: inside of our memory, in the one thread of the test.
        unsafe { self.memory.cast::<u8>().add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= BYTES);
        let mut out = vec![0; len];
        // SAFETY: as above.
        unsafe { self.memory.cast::<u8>().add(offset).copy_to(out.as_mut_ptr(), len) };
        out
    }

    fn piece(&self, offset: usize, bytes: usize) -> Piece<'_, Region> {
        Piece { region: &self.region, offset, bytes }
    }

    fn to(&self, offset: usize) -> Remote {
        let Remote { address, key } = self.host.remote(&self.region);
        Remote { address: address + offset as u64, key }
    }

    fn polled(&self) -> Vec<Completion> {
        let mut out = [Completion::EMPTY; 64];
        let n = self.host.poll(&self.queue, &mut out).unwrap();
        out[..n].to_vec()
    }

    /// Identifiers and outcomes of everything that there is, once nothing more can happen.
    fn outcomes(&self) -> Vec<(u64, Outcome)> {
        assert!(self.host.net().settle());
        let mut all = Vec::new();
        loop {
            let some = self.polled();
            if some.is_empty() {
                return all;
            }
            all.extend(some.iter().map(|c| (c.id, c.outcome)));
        }
    }

    fn news(&self) -> Option<Event<Pair>> {
        self.host.next_event(&self.manager).unwrap()
    }

    fn close(self) {
        self.host.close_region(self.region).unwrap();
        self.host.close_queue(self.queue).unwrap();
        self.host.close_domain(self.domain).unwrap();
        self.host.close_device(self.device).unwrap();
        self.host.close_manager(self.manager).unwrap();
        assert_eq!(self.host.net().objects(&self.host), 0);
        // SAFETY: from `Box::into_raw`, and nobody writes there any more.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}

const CAPACITY: Capacity = Capacity { sends: 16, receives: 16, inline_bytes: 64 };

/// Connects `a` to `b`, with so many receives of 64 bytes posted at each end (identifiers from 1000
/// on).
fn connect(a: &End, b: &End, capacity: Capacity, receives: usize) -> (Pair, Pair) {
    let address = SocketAddr::new(B, PORT);
    let listener = b.host.listen(&b.manager, address, 8, 77).unwrap();
    let mut active = a.host.resolve(&a.manager, A, address, 100, 1).unwrap();
    assert!(matches!(a.news(), Some(Event { token: 1, news: News::Resolved })));
    a.host.create(&mut active, &a.domain, &a.queue, capacity).unwrap();
    post_receives(a, &active, receives);
    a.host.connect(&mut active, b"question", Patience::DEFAULT).unwrap();
    let Some(Event { token: 77, news: News::Request { pair: mut passive, private } }) = b.news()
    else {
        panic!("no request");
    };
    assert_eq!(&private[..8], b"question");
    b.host.set_token(&mut passive, 2);
    b.host.create(&mut passive, &b.domain, &b.queue, capacity).unwrap();
    post_receives(b, &passive, receives);
    b.host.accept(&mut passive, b"answer", Patience::DEFAULT).unwrap();
    let Some(Event { token: 1, news: News::Established { private } }) = a.news() else {
        panic!("not established")
    };
    assert_eq!(&private[..6], b"answer");
    assert!(matches!(b.news(), Some(Event { token: 2, news: News::Established { .. } })));
    b.host.close_listener(listener).unwrap();
    (active, passive)
}

fn post_receives(end: &End, pair: &Pair, count: usize) {
    for i in 0..count {
        let into = Some(end.piece(RECEIVES + i * 64, 64));
        end.host.post_receives(pair, &[Receive { id: 1000 + i as u64, into }]).unwrap();
    }
}

fn ends(order: Order, model: Model) -> (Net, End, End) {
    let net = Net::new(order);
    let (a, b) = (End::new(&net, A, model), End::new(&net, B, model));
    (net, a, b)
}

fn write<'a>(id: u64, from: Piece<'a, Region>, to: Remote) -> Work<'a, Region> {
    Work { id, action: Action::Write { from: Some(from), to, inline: false }, signaled: true }
}

fn write_imm<'a>(id: u64, from: Piece<'a, Region>, to: Remote, imm: u32) -> Work<'a, Region> {
    Work {
        id,
        action: Action::WriteImm { from: Some(from), to, inline: false, imm },
        signaled: true,
    }
}

fn send(id: u64, bytes: &[u8]) -> Work<'_, Region> {
    Work { id, action: Action::SendInline(bytes), signaled: true }
}

/// Without those of [`post_receives`].
fn sends(mut outcomes: Vec<(u64, Outcome)>) -> Vec<(u64, Outcome)> {
    outcomes.retain(|o| o.0 < 1000);
    outcomes
}

/// Makes both ends forget each other, and closes everything.
fn finish(a: End, b: End, pairs: Vec<Pair>, at_b: Vec<Pair>) {
    for pair in pairs {
        a.host.close_pair(pair).unwrap();
    }
    for pair in at_b {
        b.host.close_pair(pair).unwrap();
    }
    a.close();
    b.close();
}

/// Waits for nothing: whether the descriptor is readable now.
fn readable(fd: c_int) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd; a zero timeout does not wait.
    unsafe { libc::poll(&mut p, 1, 0) > 0 }
}
