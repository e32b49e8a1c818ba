//! The control plane on the fabric in memory: several hosts in one process, in one thread.
//!
//! Each host is a [`Remote`], stepped by its test, with a device of the fabric's
//! (`netacc_verbs::memory`) that fails, reorders and vanishes as it is told. Links and connections
//! are real TCP connections on loopback, each host with an address of its own ([`loopback`]), and
//! applications use the real data calls (`crate::io`) on real sockets of the core. Nothing sleeps
//! for time: when nothing more happens the clock is set forward to the next timer.
//!
//! What is one process's in the library is handed round: the inbox, the bell, the news of pairs and
//! what connecting threads have done are given to the host that each is for ([`Rig::route`]); the
//! I/O thread is [`Rig::serve_queues`], for all hosts' queues.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests may fail loudly"
)]

mod agreed;
mod applications;
mod called_back;
mod closed_short;
mod empty;
mod failing;
mod handed_on;
mod hostile;
mod keeper;
mod limits;
mod lost;
mod many;
mod nobody;
mod off;
mod one_way;
mod parameters;
mod peers;
mod policy;
mod random;
mod resumed;
mod rings;
mod shut;
mod shut_both;
mod squatter;
mod verdicts;
mod withdrawn;

use super::net::Net;
use super::pair::PairState;
use super::pairs::{CONNECTED, Job};
use super::*;
use crate::path::PathList;
use crate::queues::QUEUES;
use crate::socket::State;
use crate::testing::{self, Threads};
use crate::{api, io, stats};
use core::cell::RefCell;
use netacc_proto::agreement::SlotState;
use netacc_proto::rendezvous::Role;
use netacc_verbs::fabric::Call;
use netacc_verbs::memory::{Memory, Model, Net as Wires, Objects, Order};
use std::{format, string::String, vec};

const MODELS: [Model; 3] = [Model::ROCE, Model::SIW, Model::ERDMA];

/// One after another: inbox, bell and queues are the process's.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

std::thread_local! {
    /// The fabric of the host that is stepped.
    static FABRIC: RefCell<Option<Memory>> = const { RefCell::new(None) };
    /// Where the kernel answers no SYN.
    static SILENT: RefCell<Vec<SocketAddr>> = const { RefCell::new(Vec::new()) };
}

/// What loading the libraries comes to.
pub(super) fn load() -> Result<Net, &'static str> {
    FABRIC.with(|f| f.borrow().clone()).ok_or("this host has none")
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    }
}

/// Seeds of schedules; `NETACC_TEST_SEEDS=<from>..<to>` is others.
fn seeds(usual: core::ops::Range<u64>) -> core::ops::Range<u64> {
    let text = std::env::var("NETACC_TEST_SEEDS").unwrap_or_default();
    let parts =
        text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parts.map_or(usual, |(from, to)| from..to)
}

/// What stands from `offset` on in a stream, up to 64 KiB of it.
fn bytes(stream: u64, offset: u64, n: usize) -> &'static [u8] {
    const PERIOD: u64 = 65_521;
    static TEXT: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let mut random = Random::new(1);
        let once: Vec<u8> = (0..PERIOD).map(|_| random.below(256) as u8).collect();
        once.iter().chain(&once).chain(&once).copied().collect()
    });
    let at = (stream * 7919 + offset) % PERIOD;
    &text[at as usize..at as usize + n]
}

/// An address of this test process's: other runs on the machine have others, because what listens
/// on one port has its links on another.
fn loopback(net: u8, last: u8) -> IpAddr {
    let [low, high, ..] = process::id().to_le_bytes();
    IpAddr::from([127, net << 6 | high & 63, low, last])
}

struct Host {
    fabric: Memory,
    address: IpAddr,
    /// `None`: its process was killed.
    remote: Option<Box<Remote>>,
    /// Stopped, as by SIGSTOP.
    stopped: bool,
    asks: Vec<Ask>,
    jobs: Vec<Job>,
    woken: bool,
    news: bool,
    /// The application's listening socket.
    listener: c_int,
    /// Devices that were taken out, which have domains of links.
    gone: usize,
}

/// One end of a connection, with its application.
struct End {
    host: usize,
    fd: c_int,
    socket: &'static Socket,
    /// Which stream it sends; it receives the one after (connector) or before it.
    stream: u64,
    sent: u64,
    received: u64,
    /// What a call said that was neither bytes nor "not now": 0 is the end.
    over: Option<isize>,
    /// What comes is compared with what was sent. (Not where the library at the other end lies.)
    honest: bool,
    /// It has said that it sends no more.
    shut: bool,
    open: bool,
}

type Conn = [End; 2];
/// Sides of a connection.
const C: usize = 0;
const A: usize = 1;

struct Rig {
    wires: Wires,
    hosts: Vec<Host>,
    conns: Vec<Conn>,
    random: Random,
    visits: [u64; QUEUES],
    io: c_int,
    all: c_int,
    /// Have filled queues of listening sockets.
    callers: Vec<c_int>,
    _one: std::sync::MutexGuard<'static, ()>,
}

fn epoll() -> c_int {
    let fd = numbers::make(|| sys::epoll_create1(libc::EPOLL_CLOEXEC));
    assert!(fd >= 0);
    fd
}

impl Rig {
    /// So many hosts with devices of that model.
    fn new(order: Order, model: Model, hosts: usize) -> Rig {
        Rig::of(order, &vec![model; hosts])
    }

    /// A host with a device of each model.
    fn of(order: Order, models: &[Model]) -> Rig {
        let one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        testing::init();
        testing::set_threads(Threads::Hold);
        queues::forget_queues();
        drop(INBOX.take());
        CONNECTED.lock().clear();
        rdma_thread::take_pair_news();
        forget_known();
        SILENT.with_borrow_mut(Vec::clear);
        BELL.store(-1, Relaxed);
        WOKEN.store(false, Relaxed);
        RUNNING.store(process::id(), Relaxed);
        let (io, all) = (epoll(), epoll());
        io_threads::EPOLLS[0].store(io, Relaxed);
        let seed = if let Order::Shuffled(seed) = order { seed } else { 0 };
        let mut rig = Rig {
            wires: Wires::new(order),
            hosts: Vec::new(),
            conns: Vec::new(),
            random: Random::new(seed),
            visits: [0; QUEUES],
            io,
            all,
            callers: Vec::new(),
            _one: one,
        };
        assert!(watch(all, io, libc::EPOLLIN as u32, 0));
        for (h, model) in models.iter().enumerate() {
            let address = loopback(0, h as u8 + 1);
            let fabric = rig.wires.host(address, *model);
            let host = Host {
                fabric,
                address,
                remote: None,
                stopped: false,
                asks: Vec::new(),
                jobs: Vec::new(),
                woken: false,
                news: false,
                listener: -1,
                gone: 0,
            };
            rig.hosts.push(host);
            rig.start(h);
        }
        rig
    }

    /// A process with the library on that host.
    fn start(&mut self, h: usize) {
        let epoll = epoll();
        assert!(watch(self.all, epoll, libc::EPOLLIN as u32, 0));
        let mut remote = Remote::new(epoll).unwrap();
        // So that the tokens of its pairs say whose they are.
        remote.serial = (h as u32) << 16;
        // Its I/O thread is `serve_queues`.
        remote.devices.io_threads.started = 1;
        self.hosts[h].remote = Some(remote);
    }

    /// After a [`Rig::kill`]: another process there.
    fn restart(&mut self, h: usize, model: Model) {
        self.hosts[h].fabric = self.wires.host(self.hosts[h].address, model);
        self.start(h);
    }

    fn remote(&mut self, h: usize) -> &mut Remote {
        self.hosts[h].remote.as_mut().unwrap()
    }

    // ---- steps ----------------------------------------------------------------------------------

    /// Gives what was left for "the thread" to the host that it is for.
    fn route(&mut self) {
        for ask in INBOX.take() {
            let at = |ip: IpAddr| self.hosts.iter().position(|h| h.address == ip);
            let has = |c: &Channel| {
                let on = |l: &link::Link| l.channel.is_some_and(|x| core::ptr::eq(x, c));
                self.hosts.iter().position(|h| {
                    h.remote.as_ref().is_some_and(|r| r.links.iter().flatten().any(|l| on(l)))
                })
            };
            let whose = match &ask {
                Ask::Note(s, ..) => at(s.tuple().local().ip()),
                Ask::Accepting(local) => at(local.ip()),
                Ask::Released(channel, _) => has(channel),
                Ask::ListenerClosed => {
                    self.hosts.iter_mut().for_each(|h| h.asks.push(Ask::ListenerClosed));
                    None
                }
            };
            if let Some(h) = whose {
                self.hosts[h].asks.push(ask);
            }
        }
        for job in core::mem::take(&mut *CONNECTED.lock()) {
            let h = (job.token >> 48) as usize & 0xff;
            self.hosts[h].jobs.push(job);
        }
        // Whoever has posted it: each host looks for itself, whether another one does or not.
        let posted = rdma_thread::POSTED.take_at();
        rdma_thread::POSTED.begin_look();
        for remote in self.hosts.iter_mut().filter_map(|h| h.remote.as_mut()) {
            remote.watch_progress(posted);
        }
        let news = rdma_thread::take_pair_news();
        let woken = WOKEN.swap(false, SeqCst) || news;
        for h in &mut self.hosts {
            h.news |= news;
            h.woken |= woken;
        }
    }

    /// One turn of a host's thread, if there is anything for it to do.
    fn step(&mut self, h: usize) -> bool {
        self.route();
        let host = &mut self.hosts[h];
        let Some(remote) = host.remote.as_mut().filter(|_| !host.stopped) else { return false };
        let mut events = [epoll_event { events: 0, u64: 0 }; 32];
        // SAFETY: room for 32 events; no mask; does not wait.
        let n = unsafe {
            sleep::epoll_wait(remote.epoll, events.as_mut_ptr(), 32, 0, core::ptr::null())
        };
        let due = remote.timer != 0 && remote.timer <= sys::now_ns();
        if n <= 0 && !due && !core::mem::take(&mut host.woken) {
            return false;
        }
        host.woken = false;
        for ask in core::mem::take(&mut host.asks) {
            assert!(INBOX.put(ask));
        }
        *CONNECTED.lock() = core::mem::take(&mut host.jobs);
        if core::mem::take(&mut host.news) {
            rdma_thread::PAIR_NEWS.store(true, SeqCst);
        }
        FABRIC.set(Some(host.fabric.clone()));
        remote.work(&events[..n.max(0) as usize]);
        FABRIC.set(None);
        true
    }

    /// What the I/O threads do.
    fn serve_queues(&mut self) {
        io_threads::visit(0, &mut self.visits);
        assert!(io_threads::await_queues(self.io, 0));
    }

    /// Everybody's turn, in some order. False: nobody had anything to do.
    fn round(&mut self) -> bool {
        let mut any = false;
        let first = self.random.below(self.hosts.len());
        for h in 0..self.hosts.len() {
            any |= self.step((first + h) % self.hosts.len());
            if self.random.below(2) == 0 {
                self.serve_queues();
            }
        }
        self.serve_queues();
        any | testing::run_held()
    }

    /// Until nothing more happens by itself. (What is sent over loopback is mostly there when the
    /// call returns; [`Rig::pass`] waits for the rest.)
    fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..20_000 {
            if self.round() {
                idle = 0;
            } else if idle > 2 {
                return;
            } else {
                idle += 1;
                // Devices work on by themselves.
                assert!(self.wires.settle());
            }
        }
        panic!("never comes to rest\n{}", self.describe());
    }

    /// Waits for an event that is not of the fabric's.
    fn wait(&self, ns: i64) {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event; no mask.
        let _ = unsafe { sleep::epoll_wait(self.all, &mut event, 1, ns, core::ptr::null()) };
    }

    /// The kernel has something on its way between links: the answer to a SYN, unless nobody
    /// answers there, or bytes.
    fn is_under_way(&self) -> bool {
        let remotes = self.hosts.iter().filter_map(|h| h.remote.as_ref());
        let links: Vec<&link::Link> =
            remotes.flat_map(|r| r.links.iter().flatten()).map(|l| &**l).collect();
        let is_asked = |l: &&link::Link| {
            let to = SocketAddr::new(l.peer, destinations::link_port(l.port, l.k));
            l.phase == link::Phase::Connecting && !SILENT.with_borrow(|s| s.contains(&to))
        };
        if links.iter().any(is_asked) {
            return true;
        }
        let ends: Vec<(SocketAddr, SocketAddr, (u64, u64))> = links
            .iter()
            .filter(|l| l.fd >= 0 && l.phase != link::Phase::Connecting)
            .filter_map(|l| {
                let moved = crate::carrier::moved(l.fd, l.role == Role::Connector)?;
                let names = crate::carrier::tuple_of(l.fd)?;
                Some((names.local(), names.peer(), moved))
            })
            .collect();
        ends.iter().any(|(local, peer, (sent, _))| {
            ends.iter().any(|(l, p, (_, received))| l == peer && p == local && received < sent)
        })
    }

    /// The clock goes on to when somebody has something to do. False: nobody has.
    fn pass(&mut self) -> bool {
        // What is the kernel's comes in its own time, and on a busy machine late.
        let began = std::time::Instant::now();
        while self.is_under_way() && began.elapsed().as_secs() < 10 {
            self.wait(1_000_000);
            self.settle();
        }
        let next = self
            .hosts
            .iter()
            .filter(|h| !h.stopped)
            .filter_map(|h| h.remote.as_ref())
            .map(|r| r.timer)
            .filter(|t| *t != 0)
            .min();
        let Some(next) = next else { return false };
        testing::pass_ns(next.saturating_sub(sys::now_ns()));
        true
    }

    /// Until it is so. Applications go on as `done` has them.
    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Rig) -> bool) {
        let end = sys::now_ns() + 400_000_000_000;
        let began = std::time::Instant::now();
        let mut idle = 0;
        let mut steps = 0;
        loop {
            self.settle();
            let before = self.moved();
            if done(self) {
                return;
            }
            self.settle();
            // As long as applications say something there is no need for time to pass; but they may
            // do so for ever.
            steps += 1;
            if self.moved() != before && steps % 6 != 0 {
                continue;
            }
            if sys::now_ns() < end && self.pass() {
                idle = 0;
                continue;
            }
            // The kernel's TCP has its own idea of time: on a loaded machine it may be that which
            // is waited for.
            idle += 1;
            if idle > 10 {
                self.wait(1_000_000);
            }
            assert!(
                idle < 1000 || began.elapsed().as_secs() < 2,
                "did not happen: {what}\n{}",
                self.describe()
            );
        }
    }

    /// Bytes that applications have sent and received.
    fn moved(&self) -> u64 {
        self.conns.iter().flatten().map(|e| e.sent + e.received).sum()
    }

    // ---- what is there --------------------------------------------------------------------------

    fn calls(&self, h: usize, call: Call) -> u64 {
        self.wires.calls(&self.hosts[h].fabric, call)
    }

    fn objects(&self, h: usize) -> Objects {
        self.wires.open_objects(&self.hosts[h].fabric)
    }

    /// What a host that serves no connection keeps open.
    fn least(&self, h: usize) -> Objects {
        let remote = self.hosts[h].remote.as_ref().unwrap();
        let devices =
            self.hosts[h].gone + remote.devices.list.iter().filter(|d| d.device.is_some()).count();
        let queues = remote.devices.list.iter().map(|d| d.queues.len()).sum();
        let listeners = remote.listeners.iter().filter(|l| l.cm.is_some()).count();
        Objects {
            managers: usize::from(remote.devices.manager.is_some()),
            devices,
            queues,
            domains: 0,
            regions: 0,
            listeners,
            pairs: 0,
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (i, c) in self.conns.iter().enumerate() {
            for (side, e) in c.iter().enumerate() {
                let (tx, rx) = e.socket.channel().map_or((false, false), |_| {
                    (e.socket.published.sends_fast(), e.socket.published.receives_fast())
                });
                text += &format!(
                    "connection {i} side {side} (host {}, {:?}): state {:?} flags {:#x} offered {} slot {} fast {tx}/{rx} sent {} received {} over {:?} open {} carrier {:?} ({})\n",
                    e.host,
                    e.socket.tuple(),
                    e.socket.state.now(),
                    e.socket.flags.load(Relaxed),
                    e.socket.offered.word(),
                    e.socket.slot.load(Relaxed) as i32,
                    e.sent,
                    e.received,
                    e.over,
                    e.open,
                    if e.open { crate::socket::carrier_counts(e.socket, e.fd) } else { None },
                    self.reason(i, side).name()
                );
            }
        }
        for (h, host) in self.hosts.iter().enumerate() {
            text += &format!("host {h}: {:?}\n", self.objects(h));
            let Some(r) = host.remote.as_ref() else { continue };
            for (i, l) in r.links.iter().enumerate().filter_map(|(i, l)| Some((i, l.as_deref()?))) {
                let pairs: Vec<(u32, PairState)> =
                    l.pairs.iter().map(|p| (p.number, p.state)).collect();
                let conns: Vec<(usize, SlotState, u32, u16, u32)> = l
                    .conns
                    .iter()
                    .enumerate()
                    .filter(|(_, c)| !c.slot.is_free())
                    .map(|(n, c)| (n, c.slot.state, c.pair, c.lane, c.asked))
                    .collect();
                text += &format!(
                    "  link {i}: {:?} {:?} pairs {pairs:?} slots {conns:?} waiting {}\n",
                    l.role,
                    l.phase,
                    l.waiting.len()
                );
            }
            for (tables, name) in [(&r.connected, "connected"), (&r.accepted, "accepted")] {
                let mut at = tables.oldest();
                while let Some(key) = at {
                    at = tables.after(key);
                    if let Some((tuple, m)) = tables.get(key) {
                        text += &format!(
                            "  {name} {tuple:?} key {:#x} {:?} current {}\n",
                            key.0,
                            m.agreement,
                            m.is_current()
                        );
                    }
                }
            }
            let mut at = r.candidates.oldest();
            while let Some(key) = at {
                at = r.candidates.after(key);
                if let Some((tuple, t)) = r.candidates.get(key) {
                    text +=
                        &format!("  candidate {tuple:?} of link {} token {:#x}\n", t.link, t.token);
                }
            }
            let timer = r.timer.saturating_sub(sys::now_ns());
            text += &format!("  leaving {} timer {} in {timer} ns\n", r.leaving.len(), r.timer);
        }
        text
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Everything is closed in order, and nothing is left open.
    #[track_caller]
    fn finish(mut self) {
        for i in 0..self.conns.len() {
            self.close(i, C);
            self.close(i, A);
        }
        self.until("nothing is left open", |r| {
            (0..r.hosts.len()).all(|h| {
                let idle = r.hosts[h].remote.as_ref().is_none_or(|x| {
                    x.leaving.is_empty() && x.links.iter().flatten().all(|l| !l.in_use())
                });
                idle && (r.hosts[h].remote.is_none() || r.objects(h) == r.least(h))
            })
        });
        let whole = self.hosts.iter().all(|h| h.remote.is_some());
        let queues: Vec<&'static queues::Queue> = queues::queues().collect();
        drop(self);
        if whole {
            for q in queues {
                // SAFETY: leaked by `new_queue`; taken off the list by `drop`, and every pair on it
                // is closed.
                drop(unsafe { Box::from_raw(core::ptr::from_ref(q).cast_mut()) });
            }
        }
    }

    /// The TCP connections of a host's links break, and what is on its way to it is lost.
    fn break_links(&mut self, h: usize) {
        let Some(remote) = self.hosts[h].remote.as_ref() else { return };
        let mut part = [0u8; 4096];
        for l in remote.links.iter().flatten().filter(|l| l.fd >= 0) {
            // SAFETY: a live buffer.
            while unsafe {
                sys::recvfrom(
                    l.fd,
                    part.as_mut_ptr(),
                    part.len(),
                    libc::MSG_DONTWAIT,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            } > 0
            {}
            // (As `ss -K`. Shut down it would be that of a process which is gone.)
            crate::carrier::dissolve(l.fd);
        }
    }

    /// The device of a host is taken out.
    fn remove_device(&mut self, h: usize) {
        let open = self.remote(h).devices.list.iter().filter(|d| d.device.is_some()).count();
        self.hosts[h].gone += open;
        self.wires.remove_device(&self.hosts[h].fabric);
    }

    /// The process on a host is killed: its kernel closes everything.
    fn kill(&mut self, h: usize) {
        let Some(remote) = self.hosts[h].remote.take() else { return };
        self.wires.kill(&self.hosts[h].fabric);
        close_all(&remote);
        // What its pairs and rings lie in is still named by queues that others poll.
        core::mem::forget(remote);
        for e in self.conns.iter_mut().flatten().filter(|e| e.host == h && e.open) {
            e.open = false;
            fd_table::set(e.fd, fd_table::Entry::None);
            let _ = sys::close(e.fd);
        }
        let listener = core::mem::replace(&mut self.hosts[h].listener, -1);
        if listener >= 0 {
            fd_table::set(listener, fd_table::Entry::None);
            let _ = sys::close(listener);
        }
        forget_known();
    }
}

/// The descriptors of a host's thread.
fn close_all(remote: &Remote) {
    let links = remote.links.iter().flatten().map(|l| l.fd);
    let listeners = remote.listeners.iter().map(|l| l.fd);
    for fd in links.chain(listeners).filter(|fd| *fd >= 0) {
        close_own(fd);
    }
    fd_table::close_internal(remote.epoll);
}

impl Drop for Rig {
    fn drop(&mut self) {
        testing::set_threads(Threads::Start);
        RUNNING.store(0, Relaxed);
        queues::forget_queues();
        drop(INBOX.take());
        io_threads::EPOLLS[0].store(-1, Relaxed);
        for e in self.conns.iter_mut().flatten().filter(|e| e.open) {
            // After a failure: as it is.
            fd_table::set(e.fd, fd_table::Entry::None);
            let _ = sys::close(e.fd);
        }
        for h in &mut self.hosts {
            if h.listener >= 0 {
                fd_table::set(h.listener, fd_table::Entry::None);
                let _ = sys::close(h.listener);
            }
            if let Some(remote) = h.remote.take() {
                close_all(&remote);
                if std::thread::panicking() {
                    core::mem::forget(remote);
                }
            }
        }
        for fd in self.callers.drain(..).chain([self.io, self.all]) {
            fd_table::close_internal(fd);
        }
    }
}

/// A TCP socket bound to that address.
fn tcp(at: SocketAddr) -> c_int {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) as c_int;
    assert!(fd >= 0);
    let (raw, len) = crate::carrier::sockaddr(at);
    assert!(sys::bind(fd, &raw[..len]) >= 0);
    // A delayed acknowledgement would be waited for in the system's time.
    assert!(sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32) >= 0);
    fd
}

/// A TCP socket bound to that address, unless another test's connection has it.
fn tcp_if_free(at: SocketAddr) -> Option<c_int> {
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) as c_int;
    assert!(fd >= 0);
    if link::bind(fd, at) >= 0 {
        return Some(fd);
    }
    let _ = sys::close(fd);
    None
}

/// Whether nobody (another test's connection) has a port of the links for what listens there.
fn are_link_ports_free(at: SocketAddr) -> bool {
    (0..destinations::TRIED).all(|k| {
        let port = destinations::link_port(at.port(), k);
        tcp_if_free(SocketAddr::new(at.ip(), port)).is_some_and(|fd| sys::close(fd) >= 0)
    })
}

fn name(fd: c_int, peer: bool) -> SocketAddr {
    let mut raw = [0u8; 128];
    let len = sys::socket_name(fd, peer, &mut raw);
    crate::carrier::address(&raw, len).unwrap()
}

/// What `crate::socket` does with a new connection that a device could serve. (Loopback addresses
/// are not served.)
fn begin(fd: c_int, connector: bool) -> &'static Socket {
    let tuple = Tuple::new(name(fd, false), name(fd, true)).unwrap();
    let memory = Box::leak(Box::new(core::mem::MaybeUninit::<Socket>::zeroed())).as_mut_ptr();
    // SAFETY: all zero but for the tuple, which is written here, is a valid Socket.
    let s = unsafe {
        (&raw mut (*memory).tuple).write(core::cell::UnsafeCell::new(tuple));
        &*memory
    };
    s.owner.store(process::id(), Relaxed);
    s.flags.store(flag::WAITS_SEEN | if connector { flag::CONNECTOR } else { 0 }, Relaxed);
    s.set_paths(PathList::EMPTY.and(PathId::Rdma));
    s.slot.store(u32::MAX, Relaxed);
    s.fd.store(fd, Relaxed);
    s.refs.store(u64::from(s.generation.load(Relaxed)) << 32 | 1, Relaxed);
    s.forks.store(process::forks(), Relaxed);
    s.record.store(stats::open(fd, Reason::Negotiating), Relaxed);
    s.state.begin_as(State::Candidate);
    fd_table::set(fd, fd_table::Entry::Socket(s, 0));
    if !connector {
        AGENT.accepting(tuple.local());
    }
    s
}
