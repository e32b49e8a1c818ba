//! What the rdma path needs of a fabric, seen to work: on a real provider by `main.rs`, on the
//! fabric in memory by `tests/selftest.rs`. Whatever the one does and the other does not is a fault
//! of the one in memory.
//!
//! Two sides in one thread. Waiting is for descriptors, at most [`LIMIT`] at a time.

use netacc_verbs::fabric::*;
use netacc_verbs::window::Window;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Bytes of each side's region: a ring, then places for messages.
const RING: usize = 1 << 18;
const MESSAGES: usize = RING;
const MESSAGE: usize = 64;
const RECEIVES: u32 = 32;
const SENDS: u32 = 32;
const BYTES: usize = RING + MESSAGE * RECEIVES as usize;
/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(20);
/// A short time until a silent peer is given up: 4.096 µs * 2^12 = 17 ms, 4 times.
const PATIENCE: Patience = Patience { timeout: 12, tries: 3 };

/// Why a check failed.
pub type Failed = String;
type Checked = Result<String, Failed>;

/// Turns an error of any kind into a failure that says where.
pub trait To<T> {
    fn to(self, what: &str) -> Result<T, Failed>;
}
impl<T> To<T> for Result<T, Error> {
    fn to(self, what: &str) -> Result<T, Failed> {
        self.map_err(|e| {
            format!("{what}: {:?}: {}", e.call, std::io::Error::from_raw_os_error(e.errno))
        })
    }
}
impl<T> To<T> for Result<T, PostError> {
    fn to(self, what: &str) -> Result<T, Failed> {
        self.map_err(|e| format!("{what}: {e:?}: {}", std::io::Error::from_raw_os_error(e.errno)))
    }
}
impl<T> To<T> for Option<T> {
    fn to(self, what: &str) -> Result<T, Failed> {
        self.ok_or_else(|| what.to_string())
    }
}

fn ensure(that: bool, what: impl FnOnce() -> String) -> Result<(), Failed> {
    if that { Ok(()) } else { Err(what()) }
}

/// One side: a device, a queue, and memory that is shared with children.
pub struct Side<F: Fabric> {
    pub f: F,
    pub address: IpAddr,
    pub manager: F::Manager,
    pub device: F::Device,
    pub queue: F::Queue,
    pub domain: F::Domain,
    pub region: F::Region,
    memory: NonNull<u8>,
}

impl<F: Fabric> Side<F> {
    pub fn open(f: F, address: IpAddr, token: u64) -> Result<Self, Failed> {
        let manager = f.open_manager().to("open the manager")?;
        let device = f.open_device(&manager, address, token).to("open the device")?;
        let queue = f.open_queue(&device, 4 * (SENDS + RECEIVES), 0).to("open a queue")?;
        let domain = f.open_domain(&device).to("open a domain")?;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        ensure(at != libc::MAP_FAILED, || "mmap".into())?;
        let memory = NonNull::new(at.cast::<u8>()).to("mmap")?;
        // SAFETY: mapped until `close`, which closes the region first; `put` and `get` copy.
        let region =
            unsafe { f.register(&domain, memory, BYTES, Access::RemoteWrite) }.to("register")?;
        Ok(Self { f, address, manager, device, queue, domain, region, memory })
    }

    pub fn close(self) -> Result<(), Failed> {
        self.f.close_region(self.region).to("close the region")?;
        self.f.close_queue(self.queue).to("close the queue")?;
        self.f.close_domain(self.domain).to("close the domain")?;
        self.f.close_device(self.device).to("close the device")?;
        self.f.close_manager(self.manager).to("close the manager")?;
        // SAFETY: mapped in `open`, and nobody uses it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), BYTES) };
        Ok(())
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= BYTES);
        // SAFETY: inside of the mapping; the device reads it only when told to.
        unsafe { self.memory.add(offset).copy_from(NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= BYTES);
        let mut out = vec![0u8; len];
        // SAFETY: as above.
        unsafe { self.memory.add(offset).copy_to(NonNull::from(&mut *out).cast(), len) };
        out
    }

    fn piece(&self, offset: usize, bytes: usize) -> Piece<'_, F::Region> {
        Piece { region: &self.region, offset, bytes }
    }

    fn at(&self, offset: usize) -> Remote {
        plus(self.f.remote(&self.region), offset)
    }

    fn post_receive(&self, pair: &F::Pair, index: u32) -> Result<(), Failed> {
        let into = Some(self.piece(MESSAGES + MESSAGE * index as usize, MESSAGE));
        self.f
            .post_receives(pair, &[Receive { id: RECEIVE | u64::from(index), into }])
            .to("post a receive")
    }

    fn poll(&self, into: &mut VecDeque<Completion>) -> Result<usize, Failed> {
        let mut out = [Completion::EMPTY; 24];
        let n = self.f.poll(&self.queue, &mut out).to("poll")?;
        into.extend(&out[..n]);
        Ok(n)
    }
}

fn plus(Remote { address, key }: Remote, offset: usize) -> Remote {
    Remote { address: address + offset as u64, key }
}

/// Identifiers of receives have this bit.
const RECEIVE: u64 = 1 << 32;

/// Waits until one of the descriptors is readable. False: the limit is over.
fn wait(fds: &[c_int], limit: Duration) -> bool {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // SAFETY: as many as it says.
        let n = unsafe {
            libc::poll(
                polled.as_mut_ptr(),
                polled.len() as libc::nfds_t,
                left.as_millis() as c_int + 1,
            )
        };
        if n > 0 || left.is_zero() {
            return n > 0;
        }
    }
}

/// News, and of which side.
type Heard<F> = Option<(usize, Event<<F as Fabric>::Pair>)>;

/// Where the other side may write, as private data says it.
fn invitation(at: Remote) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&at.address.to_le_bytes());
    bytes[8..].copy_from_slice(&at.key.to_le_bytes());
    bytes
}

fn invited(private: &[u8]) -> Result<Remote, Failed> {
    let address = private.get(..8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    let key = private.get(8..12).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    Ok(Remote { address: address.to("short private data")?, key: key.to("short private data")? })
}

/// Waits for news of one of the sides.
fn news<F: Fabric>(sides: [&Side<F>; 2], limit: Duration) -> Result<Heard<F>, Failed> {
    let until = Instant::now() + limit;
    loop {
        for (i, side) in sides.iter().enumerate() {
            if let Some(event) = side.f.next_event(&side.manager).to("next event")? {
                return Ok(Some((i, event)));
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        let fds = sides.map(|s| s.f.manager_fd(&s.manager));
        if left.is_zero() || !wait(&fds, left) {
            return Ok(None);
        }
    }
}

/// The news that is expected next, of side `i`.
fn expect<F: Fabric>(sides: [&Side<F>; 2], i: usize, what: &str) -> Result<Event<F::Pair>, Failed> {
    let (at, event) = news(sides, LIMIT)?.to(&format!("{what}: nothing happens"))?;
    let tokens = [ACTIVE, PASSIVE];
    let right = at == i && (event.token == tokens[i] || matches!(event.news, News::Request { .. }));
    ensure(right, || format!("{what}: side {at} says {:?} of {}", name(&event.news), event.token))?;
    Ok(event)
}

fn name<P>(news: &News<P>) -> String {
    match news {
        News::Resolved => "resolved".into(),
        News::Request { .. } => "request".into(),
        News::Established { .. } => "established".into(),
        News::Refused { reason, .. } => format!("refused ({reason})"),
        News::Unreachable { errno } => format!("unreachable ({errno})"),
        News::Disconnected => "disconnected".into(),
        News::DeviceRemoved => "device removed".into(),
    }
}

/// Tokens of the two ends of a connection, and of the listener.
const ACTIVE: u64 = 11;
const PASSIVE: u64 = 22;
const LISTENER: u64 = 33;
const CAPACITY: Capacity = Capacity { sends: SENDS, receives: RECEIVES, inline_bytes: 64 };

/// A connection from `x` to `y`.
pub struct Connection<F: Fabric> {
    x: F::Pair,
    y: F::Pair,
    granted: Capacity,
    took: Duration,
    connect_call: Duration,
}

pub fn connect<F: Fabric>(
    x: &Side<F>,
    y: &Side<F>,
    listener: &F::Listener,
) -> Result<Connection<F>, Failed> {
    let start = Instant::now();
    let to = SocketAddr::new(y.address, y.f.port(listener));
    let mut active = x.f.resolve(&x.manager, x.address, to, 2000, ACTIVE).to("resolve")?;
    let event = expect([x, y], 0, "resolve")?;
    ensure(matches!(event.news, News::Resolved), || {
        format!("not resolved but {}", name(&event.news))
    })?;
    ensure(x.f.is_on(&x.device, &active), || "resolved to another device".into())?;
    let granted = x.f.create(&mut active, &x.domain, &x.queue, CAPACITY).to("create")?;
    for i in 0..RECEIVES {
        x.post_receive(&active, i)?;
    }
    let calling = Instant::now();
    x.f.connect(&mut active, b"what the connecting end says", PATIENCE).to("connect")?;
    let connect_call = calling.elapsed();
    let event = expect([x, y], 1, "request")?;
    let News::Request { pair: mut passive, private } = event.news else {
        return Err(format!("no request but {}", name(&event.news)));
    };
    ensure(event.token == LISTENER, || "a request at another listener".into())?;
    ensure(private.starts_with(b"what the connecting end says"), || {
        format!("the request says {private:?}")
    })?;
    y.f.set_token(&mut passive, PASSIVE);
    y.f.create(&mut passive, &y.domain, &y.queue, CAPACITY).to("create")?;
    for i in 0..RECEIVES {
        y.post_receive(&passive, i)?;
    }
    y.f.accept(&mut passive, b"what the accepting end says", PATIENCE).to("accept")?;
    let mut established = [false; 2];
    while established != [true; 2] {
        let (i, event) = news([x, y], LIMIT)?.to("establish: nothing happens")?;
        let News::Established { private } = event.news else {
            return Err(format!("not established but {}", name(&event.news)));
        };
        if i == 0 {
            ensure(private.starts_with(b"what the accepting end says"), || {
                format!("the answer says {private:?}")
            })?;
        }
        established[i] = true;
    }
    let took = start.elapsed();
    Ok(Connection { x: active, y: passive, granted, took, connect_call })
}

impl<F: Fabric> Connection<F> {
    /// As the path ends one: each end says that it has said everything, and only then somebody
    /// hangs up.
    fn finish(self, x: &Side<F>, y: &Side<F>) -> Result<(), Failed> {
        let mut news_due = [true; 2];
        for ((side, pair), (other, _)) in
            [((x, &self.x), (y, &self.y)), ((y, &self.y), (x, &self.x))]
        {
            let bye = Work { id: 7, action: Action::SendInline(b"bye"), signaled: true };
            side.f.post(pair, &[bye]).to("say bye")?;
            let mut seen = VecDeque::new();
            let got = await_completion(other, &mut seen, |c| c.id & RECEIVE != 0)?;
            ensure(got.outcome == Outcome::Received(3), || format!("not bye but {got:?}"))?;
        }
        x.f.disconnect(&self.x).to("disconnect")?;
        while news_due != [false; 2] {
            let (i, event) = news([x, y], LIMIT)?.to("disconnect: nothing happens")?;
            ensure(matches!(event.news, News::Disconnected), || {
                format!("not ended but {}", name(&event.news))
            })?;
            if news_due[i] && i == 1 {
                y.f.disconnect(&self.y).to("disconnect the other end")?;
            }
            news_due[i] = false;
        }
        self.close(x, y)
    }

    fn close(self, x: &Side<F>, y: &Side<F>) -> Result<(), Failed> {
        x.f.close_pair(self.x).to("close a pair")?;
        y.f.close_pair(self.y).to("close a pair")?;
        // Completions of closed pairs.
        let mut rest = VecDeque::new();
        while x.poll(&mut rest)? + y.poll(&mut rest)? > 0 {}
        Ok(())
    }
}

/// Waits, armed, for a completion that `is_it`; others go to `seen`.
fn await_completion<F: Fabric>(
    side: &Side<F>,
    seen: &mut VecDeque<Completion>,
    is_it: impl Fn(&Completion) -> bool,
) -> Result<Completion, Failed> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(at) = seen.iter().position(&is_it) {
            return Ok(seen.remove(at).expect("just found"));
        }
        if side.poll(seen)? > 0 {
            continue;
        }
        side.f.arm(&side.queue).to("arm")?;
        if side.poll(seen)? > 0 {
            continue;
        }
        let left = until.saturating_duration_since(Instant::now());
        ensure(wait(&[side.f.queue_fd(&side.queue)], left), || "no completion comes".into())?;
        side.f.clear(&side.queue).to("clear")?;
    }
}

/// How the other side is told of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tell {
    Imm,
    Send,
}

/// How a completion is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Await {
    Polling,
    Asleep,
}

/// One direction of a connection, as its sender has it: a ring at both ends, positions counted from
/// 0.
struct Direction {
    position: usize,
    window: Window,
    works: u32,
    completions: u32,
    seen: VecDeque<Completion>,
}

/// The byte at a position of a stream.
fn byte(seed: u8, position: usize) -> u8 {
    (position as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0] ^ seed
}

/// Writes `len` bytes into the peer's ring, around its end if need be, and tells it.
fn send<F: Fabric>(
    side: &Side<F>,
    pair: &F::Pair,
    to: Remote,
    d: &mut Direction,
    seed: u8,
    len: usize,
    tell: Tell,
) -> Result<(), Failed> {
    let bytes: Vec<u8> = (0..len).map(|i| byte(seed, d.position + i)).collect();
    let start = d.position % RING;
    let first = len.min(RING - start);
    let mut pieces = vec![(start, first)];
    if first < len {
        pieces.push((0, len - first));
    }
    side.put(start, &bytes[..first]);
    side.put(0, &bytes[first..]);
    let message = (len as u64).to_le_bytes();
    let mut works: Vec<Work<'_, F::Region>> = pieces
        .iter()
        .map(|(offset, len)| Work {
            id: 0,
            action: Action::Write {
                from: Some(side.piece(*offset, *len)),
                to: plus(to, *offset),
                inline: *len <= CAPACITY.inline_bytes as usize,
            },
            signaled: false,
        })
        .collect();
    match tell {
        Tell::Send => {
            works.push(Work { id: 0, action: Action::SendInline(&message), signaled: false })
        }
        Tell::Imm => {
            if let Some(last) = works.last_mut()
                && let Action::Write { from, to, inline } = last.action
            {
                last.action = Action::WriteImm { from, to, inline, imm: len as u32 };
            }
        }
    }
    while d.window.room() < works.len() as u32 {
        let c = await_completion(side, &mut d.seen, |c| c.id & RECEIVE == 0)?;
        d.reap(c)?;
    }
    let (last, signaled) = d.window.next(works.len() as u32);
    if let Some(work) = works.last_mut() {
        (work.id, work.signaled) = (u64::from(last), signaled);
    }
    side.f.post(pair, &works).to("post")?;
    d.window.posted(works.len() as u32, signaled);
    d.works += works.len() as u32;
    d.position += len;
    Ok(())
}

impl Direction {
    fn new() -> Self {
        Self {
            position: 0,
            window: Window::new(SENDS),
            works: 0,
            completions: 0,
            seen: VecDeque::new(),
        }
    }

    /// A completion of the send queue.
    fn reap(&mut self, c: Completion) -> Result<(), Failed> {
        ensure(matches!(c.outcome, Outcome::Written | Outcome::Sent), || {
            format!("a request failed: {c:?}")
        })?;
        self.window.completed(c.id as u32);
        self.completions += 1;
        Ok(())
    }
}

/// Takes one announcement, and says how many bytes it is about; 0: the peer says good-bye. `own`:
/// the direction that this side sends.
fn receive<F: Fabric>(
    side: &Side<F>,
    pair: &F::Pair,
    own: &mut Direction,
    how: Await,
) -> Result<usize, Failed> {
    let c = match how {
        Await::Asleep => await_completion(side, &mut own.seen, |c| c.id & RECEIVE != 0)?,
        Await::Polling => {
            let until = Instant::now() + LIMIT;
            loop {
                if let Some(at) = own.seen.iter().position(|c| c.id & RECEIVE != 0) {
                    break own.seen.remove(at).expect("just found");
                }
                side.poll(&mut own.seen)?;
                ensure(Instant::now() < until, || "no announcement comes".into())?;
            }
        }
    };
    while let Some(at) = own.seen.iter().position(|c| c.id & RECEIVE == 0) {
        let c = own.seen.remove(at).expect("just found");
        own.reap(c)?;
    }
    let index = (c.id & 0xffff_ffff) as u32;
    let len = match c.outcome {
        Outcome::Announced(imm) => imm as usize,
        Outcome::Received(8) => {
            let message = side.get(MESSAGES + MESSAGE * index as usize, 8);
            u64::from_le_bytes(message.try_into().expect("8 bytes")) as usize
        }
        Outcome::Received(3) => 0,
        other => return Err(format!("no announcement but {other:?}")),
    };
    side.post_receive(pair, index)?;
    Ok(len)
}

/// Lengths around the limits that matter, mostly short.
fn length(random: &mut u32) -> usize {
    *random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    match *random >> 29 {
        0 => 1,
        1 => 64,
        2 => 65,
        3 => 4096,
        4 => 70_000,
        _ => 512,
    }
}

/// Ping-pong with messages of many lengths, each byte of which is looked at.
fn ping_pong<F: Fabric>(
    x: &Side<F>,
    y: &Side<F>,
    c: &Connection<F>,
    tell: Tell,
    how: Await,
    rounds: u32,
) -> Checked {
    let (mut forth, mut back) = (Direction::new(), Direction::new());
    let mut random = 12345u32;
    let start = Instant::now();
    let mut total = 0;
    for round in 0..rounds {
        let len = length(&mut random);
        let from = forth.position;
        send(x, &c.x, y.at(0), &mut forth, 0x5a, len, tell)?;
        let announced = receive(y, &c.y, &mut back, how)?;
        ensure(announced == len, || {
            format!("round {round}: {len} bytes sent, {announced} announced")
        })?;
        verify(y, from, len, 0x5a, round)?;
        let from = back.position;
        send(y, &c.y, x.at(0), &mut back, 0xa5, len, tell)?;
        let announced = receive(x, &c.x, &mut forth, how)?;
        ensure(announced == len, || {
            format!("round {round}, back: {len} bytes sent, {announced} announced")
        })?;
        verify(x, from, len, 0xa5, round)?;
        total += len;
    }
    // Everything is done before the next check begins.
    for (side, d) in [(x, &mut forth), (y, &mut back)] {
        while let Some(c) = d.seen.pop_front() {
            d.reap(c)?;
        }
        let mut rest = VecDeque::new();
        side.poll(&mut rest)?;
        for c in rest {
            d.reap(c)?;
        }
    }
    Ok(format!(
        "{rounds} rounds, {total} bytes each way, {:.2} work requests and {:.2} send completions a message, {:.0} us a round",
        f64::from(forth.works + back.works) / f64::from(2 * rounds),
        f64::from(forth.completions + back.completions) / f64::from(2 * rounds),
        start.elapsed().as_micros() as f64 / f64::from(rounds)
    ))
}

fn verify<F: Fabric>(
    side: &Side<F>,
    from: usize,
    len: usize,
    seed: u8,
    round: u32,
) -> Result<(), Failed> {
    let start = from % RING;
    let first = len.min(RING - start);
    let mut bytes = side.get(start, first);
    bytes.extend(side.get(0, len - first));
    match bytes.iter().enumerate().find(|(i, b)| **b != byte(seed, from + i)) {
        None => Ok(()),
        Some((i, _)) => Err(format!("round {round}: byte {i} of {len} is wrong")),
    }
}

/// Everything that was posted comes back, flushed, and in the order of each queue; completions of
/// other sends are let by.
fn drain<F: Fabric>(
    side: &Side<F>,
    mut sends: Vec<u64>,
    receives: u32,
) -> Result<Vec<Completion>, Failed> {
    let mut seen = VecDeque::new();
    let mut all = Vec::new();
    let mut left = receives;
    sends.reverse();
    while left > 0 || !sends.is_empty() {
        let c = await_completion(side, &mut seen, |_| true)
            .map_err(|e| format!("{e}; {} sends and {left} receives are missing", sends.len()))?;
        ensure(matches!(c.outcome, Outcome::Failed(_)), || format!("not flushed: {c:?}"))?;
        if c.id & RECEIVE != 0 {
            left = left.checked_sub(1).to("more receives flushed than posted")?;
        } else {
            let due = sends.pop().unwrap_or(c.id);
            ensure(due == c.id, || format!("flushed {} before {due}", c.id))?;
        }
        all.push(c);
    }
    Ok(all)
}

/// What a check is given: the sides, a listener of `y`'s, and time.
pub struct Bed<F: Fabric> {
    pub x: Side<F>,
    pub y: Side<F>,
    pub listener: F::Listener,
    /// Of each ping-pong.
    pub rounds: u32,
    /// Lets pass as much time as a silent peer is given.
    pub time_passes: fn(&F),
}

impl<F: Fabric> Bed<F> {
    pub fn new(
        x: Side<F>,
        y: Side<F>,
        port: u16,
        rounds: u32,
        time_passes: fn(&F),
    ) -> Result<Self, Failed> {
        let address = SocketAddr::new(y.address, port);
        let listener = y.f.listen(&y.manager, address, 8, LISTENER).to("listen")?;
        Ok(Self { x, y, listener, rounds, time_passes })
    }

    pub fn close(self) -> Result<(), Failed> {
        self.y.f.close_listener(self.listener).to("close the listener")?;
        self.x.close()?;
        self.y.close()
    }

    fn connect(&self) -> Result<Connection<F>, Failed> {
        connect(&self.x, &self.y, &self.listener)
    }
}

fn facts<F: Fabric>(bed: &Bed<F>) -> Checked {
    let facts = bed.x.f.facts(&bed.x.device);
    ensure(facts.active, || "the port is not active".into())?;
    ensure(facts.inline_max >= 64, || format!("only {} inline bytes", facts.inline_max))?;
    ensure(facts.transport != Transport::Infiniband || facts.writes_imm, || {
        "InfiniBand without immediate".into()
    })?;
    ensure(facts.survives_fork, || "pinned pages do not survive fork".into())?;
    Ok(format!("{facts:?}"))
}

fn connecting<F: Fabric>(bed: &Bed<F>) -> Checked {
    let c = bed.connect()?;
    let text = format!(
        "{:?} in all, {:?} of it in connect(), granted {:?}",
        c.took, c.connect_call, c.granted
    );
    c.finish(&bed.x, &bed.y)?;
    Ok(text)
}

fn messages<F: Fabric>(bed: &Bed<F>, tell: Tell, how: Await) -> Checked {
    if tell == Tell::Imm && !bed.x.f.facts(&bed.x.device).writes_imm {
        return refused_imm(bed);
    }
    let c = bed.connect()?;
    let said = ping_pong(&bed.x, &bed.y, &c, tell, how, bed.rounds)?;
    c.finish(&bed.x, &bed.y)?;
    Ok(said)
}

/// Where the device has no write with immediate: it says so when one is posted, and the pair lives
/// on.
fn refused_imm<F: Fabric>(bed: &Bed<F>) -> Checked {
    let c = bed.connect()?;
    let action =
        Action::WriteImm { from: Some(bed.x.piece(0, 8)), to: bed.y.at(0), inline: false, imm: 1 };
    let imm = Work { id: 1, action, signaled: true };
    let error =
        bed.x.f.post(&c.x, &[imm]).err().to("a write with immediate was posted after all")?;
    ensure(!error.unknown && error.posted == 0 && error.errno > 0, || format!("{error:?}"))?;
    // In a list the error may be lost, the number not.
    let plain = Action::Write { from: Some(bed.x.piece(0, 8)), to: bed.y.at(0), inline: false };
    let error = bed.x.f.post(&c.x, &[Work { id: 2, action: plain, signaled: true }, imm]).err();
    let error = error.to("a list with a write with immediate was posted")?;
    ensure(!error.unknown && error.posted == 1, || format!("in a list: {error:?}"))?;
    let mut seen = VecDeque::new();
    let done = await_completion(&bed.x, &mut seen, |_| true)?;
    ensure((done.id, done.outcome) == (2, Outcome::Written), || format!("{done:?}"))?;
    ping_pong(&bed.x, &bed.y, &c, Tell::Send, Await::Asleep, 20)?;
    c.finish(&bed.x, &bed.y)?;
    Ok("refused when posted; the pair lives on".into())
}

fn nobody_listens<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let closed = y.f.listen(&y.manager, SocketAddr::new(y.address, 0), 1, 0).to("listen")?;
    let to = SocketAddr::new(y.address, y.f.port(&closed));
    y.f.close_listener(closed).to("close the listener")?;
    let mut pair = x.f.resolve(&x.manager, x.address, to, 2000, ACTIVE).to("resolve")?;
    expect([x, y], 0, "resolve")?;
    x.f.create(&mut pair, &x.domain, &x.queue, CAPACITY).to("create")?;
    let said = match x.f.connect(&mut pair, &[], PATIENCE) {
        Ok(()) => {
            let event = expect([x, y], 0, "connect")?;
            let no = matches!(event.news, News::Refused { .. } | News::Unreachable { .. });
            ensure(no, || format!("not refused but {}", name(&event.news)))?;
            name(&event.news)
        }
        // iWARP knows at once.
        Err(e) => format!("refused by connect() with {}", e.errno),
    };
    x.f.close_pair(pair).to("close the pair")?;
    Ok(said)
}

fn rejecting<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, listener, .. } = bed;
    let to = SocketAddr::new(y.address, y.f.port(listener));
    let mut pair = x.f.resolve(&x.manager, x.address, to, 2000, ACTIVE).to("resolve")?;
    expect([x, y], 0, "resolve")?;
    x.f.create(&mut pair, &x.domain, &x.queue, CAPACITY).to("create")?;
    x.f.connect(&mut pair, b"please", PATIENCE).to("connect")?;
    let News::Request { pair: request, .. } = expect([x, y], 1, "request")?.news else {
        return Err("no request".into());
    };
    y.f.reject(request, b"no, thank you").to("reject")?;
    let event = expect([x, y], 0, "rejection")?;
    let News::Refused { private, reason } = &event.news else {
        return Err(format!("not refused but {}", name(&event.news)));
    };
    ensure(private.starts_with(b"no, thank you"), || format!("the answer says {private:?}"))?;
    let said = format!("reason {reason}, {} bytes", private.len());
    x.f.close_pair(pair).to("close the pair")?;
    Ok(said)
}

fn wrong_key<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let c = bed.connect()?;
    y.put(0, &[0; 64]);
    x.put(0, &[0xff; 64]);
    let there = y.at(0);
    let to = Remote { key: there.key ^ 0xff00, ..there };
    let from = Some(x.piece(0, 64));
    let write =
        |id, to| Work { id, action: Action::Write { from, to, inline: false }, signaled: true };
    x.f.post(&c.x, &[write(1, to), write(2, there)]).to("post")?;
    // One of the two hears of it first; both are over.
    let mut seen = VecDeque::new();
    let first = await_completion(x, &mut seen, |c| matches!(c.outcome, Outcome::Failed(_)))?;
    if x.f.facts(&x.device).transport == Transport::Infiniband {
        let refused = first.id == 1 && first.outcome == Outcome::Failed(Failure::RemoteAccess);
        ensure(refused, || format!("not refused but {first:?}"))?;
    }
    ensure(y.get(0, 64) == [0; 64], || "the peer's memory has changed".into())?;
    x.f.fail(&c.x).to("fail")?;
    y.f.fail(&c.y).to("fail")?;
    c.close(x, y)?;
    forget_news(bed)?;
    Ok(format!("{first:?}"))
}

/// Drops what is still said of connections that were closed.
fn forget_news<F: Fabric>(bed: &Bed<F>) -> Result<(), Failed> {
    while news([&bed.x, &bed.y], Duration::ZERO)?.is_some() {}
    Ok(())
}

fn full_queues<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let c = bed.connect()?;
    let one = Work {
        id: 1,
        action: Action::Write { from: Some(x.piece(0, 1)), to: y.at(0), inline: false },
        signaled: true,
    };
    // Some devices (rxe, siw) free a slot as soon as the request is done, so it need not fill; the
    // queue must not overflow.
    let mut posted = 0;
    let mut filled = false;
    while !filled && posted < 2 * SENDS {
        match x.f.post(&c.x, &[one]) {
            Ok(()) => posted += 1,
            Err(e) => {
                let full = e.posted == 0 && !e.unknown && e.errno == libc::ENOMEM;
                ensure(full && posted >= SENDS, || format!("after {posted}: {e:?}"))?;
                filled = true;
            }
        }
    }
    let mut seen = VecDeque::new();
    for _ in 0..posted {
        await_completion(x, &mut seen, |c| c.id == 1)?;
    }
    x.f.post(&c.x, &[one]).to("post after the completions were polled")?;
    await_completion(x, &mut seen, |c| c.id == 1)?;
    let mut receives = RECEIVES;
    while y.post_receive(&c.y, 0).is_ok() {
        receives += 1;
        ensure(receives <= 1 << 16, || "the receive queue never fills".into())?;
    }
    x.f.fail(&c.x).to("fail")?;
    y.f.fail(&c.y).to("fail")?;
    drain(y, Vec::new(), receives)?;
    c.close(x, y)?;
    forget_news(bed)?;
    let sends =
        if filled { format!("full after {posted}") } else { format!("not full after {posted}") };
    Ok(format!("sends for {SENDS}: {sends}; receives for {RECEIVES}: full after {receives}"))
}

fn error_state<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let c = bed.connect()?;
    ping_pong(x, y, &c, Tell::Send, Await::Asleep, 2)?;
    x.f.fail(&c.x).to("fail")?;
    let write = |id| Work {
        id,
        action: Action::Write { from: Some(x.piece(0, 8)), to: y.at(0), inline: false },
        signaled: false,
    };
    // Posted in error: refused, or taken and flushed, unsignaled as they are.
    let mut posted = Vec::new();
    for id in 1..4 {
        match x.f.post(&c.x, &[write(id)]) {
            Ok(()) => posted.push(id),
            Err(e) => ensure(e.errno > 0 && !e.unknown, || format!("posting in error: {e:?}"))?,
        }
    }
    let iwarp = x.f.facts(&x.device).transport == Transport::Iwarp;
    // siw takes what is posted in error, and forgets it.
    let due = if iwarp { Vec::new() } else { posted.clone() };
    let flushed = drain(x, due, RECEIVES)?;
    let clean = flushed.iter().all(|c| c.outcome == Outcome::Failed(Failure::Flushed));
    ensure(clean, || format!("{flushed:?}"))?;
    // The other end: told by iWARP, by its own next request with InfiniBand.
    let mut said = Vec::new();
    let mut sends = Vec::new();
    if !iwarp {
        let bye = Work { id: 9, action: Action::SendInline(b"?"), signaled: true };
        y.f.post(&c.y, &[bye]).to("post at the other end")?;
        sends.push(9);
        (bed.time_passes)(&y.f);
    }
    let at_y = drain(y, sends, RECEIVES)?;
    said.push(format!("the other end: {:?}", at_y[0].outcome));
    c.close(x, y)?;
    while let Some((_, event)) = news([x, y], Duration::from_millis(1))? {
        said.push(name(&event.news));
    }
    Ok(format!("{} of 3 requests posted in error; {}", posted.len(), said.join(", ")))
}

/// A pair that breaks while much is under way: everything that was posted comes back, in order,
/// done or flushed.
fn broken_under_way<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let c = bed.connect()?;
    let iwarp = x.f.facts(&x.device).transport == Transport::Iwarp;
    let mut works = Vec::new();
    for id in 0..SENDS as u64 {
        let from = Some(x.piece(0, 1 << 14));
        let action = Action::Write { from, to: y.at(0), inline: false };
        works.push(Work { id, action, signaled: true });
    }
    if !iwarp {
        // Nothing behind this gets through: it waits for a receive.
        for index in 0..RECEIVES {
            let hello = Work {
                id: 1000,
                action: Action::SendInline(b"x"),
                signaled: index + 1 == RECEIVES,
            };
            x.f.post(&c.x, &[hello]).to("post")?;
        }
        let mut seen = VecDeque::new();
        await_completion(x, &mut seen, |c| c.id == 1000)?;
        works[4].action = Action::SendInline(b"too much");
        works[5].signaled = false;
    }
    for part in works.chunks(BATCH_MAX) {
        x.f.post(&c.x, part).to("post")?;
    }
    x.f.fail(&c.x).to("fail")?;
    let (mut done, mut flushed, mut receives, mut seen) = (0, 0, 0, VecDeque::new());
    while done + flushed < works.len() || receives < RECEIVES {
        let c = await_completion(x, &mut seen, |_| true).map_err(|e| {
            format!("{e}: {done} done, {flushed} flushed, {receives} receives flushed")
        })?;
        if c.id & RECEIVE != 0 {
            receives += 1;
            continue;
        }
        ensure(c.id == (done + flushed) as u64, || {
            format!("{c:?} after {done} done and {flushed} flushed")
        })?;
        match c.outcome {
            Outcome::Written | Outcome::Sent if flushed == 0 => done += 1,
            Outcome::Failed(_) => flushed += 1,
            other => return Err(format!("{other:?} after {flushed} flushed")),
        }
    }
    ensure(iwarp || done <= 4, || format!("{done} done"))?;
    y.f.fail(&c.y).to("fail")?;
    c.close(x, y)?;
    forget_news(bed)?;
    Ok(format!("{done} done, {flushed} flushed, in order"))
}

/// A closed peer: what its kernel tells us.
fn closed_peer<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let c = bed.connect()?;
    ping_pong(x, y, &c, Tell::Send, Await::Asleep, 2)?;
    y.f.close_pair(c.y).to("close a pair")?;
    let event = expect([x, y], 0, "end")?;
    ensure(matches!(event.news, News::Disconnected), || {
        format!("not ended but {}", name(&event.news))
    })?;
    x.f.disconnect(&c.x).to("disconnect")?;
    drain(x, Vec::new(), RECEIVES)?;
    x.f.close_pair(c.x).to("close a pair")?;
    let mut rest = VecDeque::new();
    while x.poll(&mut rest)? + y.poll(&mut rest)? > 0 {}
    forget_news(bed)?;
    Ok("the other end hears of it".into())
}

fn arming<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let c = bed.connect()?;
    let fd = y.f.queue_fd(&y.queue);
    let mut seen = VecDeque::new();
    while y.poll(&mut seen)? > 0 {}
    y.f.clear(&y.queue).to("clear")?;
    let hello = Work { id: 5, action: Action::SendInline(b"hello"), signaled: true };
    // Not armed: nobody is woken.
    x.f.post(&c.x, &[hello]).to("post")?;
    let mut of_x = VecDeque::new();
    await_completion(x, &mut of_x, |c| c.id == 5)?;
    let until = Instant::now() + LIMIT;
    while seen.is_empty() {
        y.poll(&mut seen)?;
        ensure(Instant::now() < until, || "nothing comes".into())?;
    }
    ensure(!wait(&[fd], Duration::ZERO), || "woken although not armed".into())?;
    // Armed: woken once, by the first.
    y.f.arm(&y.queue).to("arm")?;
    for _ in 0..2 {
        x.f.post(&c.x, &[hello]).to("post")?;
        await_completion(x, &mut of_x, |c| c.id == 5)?;
    }
    ensure(wait(&[fd], LIMIT), || "not woken".into())?;
    let woken = y.f.clear(&y.queue).to("clear")?;
    ensure(woken == 1, || format!("woken {woken} times"))?;
    let mut got = 0;
    while got < 2 {
        got += y.poll(&mut seen)?;
        ensure(Instant::now() < until, || "nothing comes".into())?;
    }
    ensure(!wait(&[fd], Duration::ZERO), || "readable after it was cleared".into())?;
    x.f.fail(&c.x).to("fail")?;
    y.f.fail(&c.y).to("fail")?;
    c.close(x, y)?;
    forget_news(bed)?;
    Ok("woken once for each arming".into())
}

/// A child has the memory, and sees what is written after the fork; the parent's pages stay pinned.
fn forking<F: Fabric>(bed: &Bed<F>) -> Checked {
    let Bed { x, y, .. } = bed;
    let c = bed.connect()?;
    let mut go = [0; 2];
    // SAFETY: a place for two descriptors.
    ensure(unsafe { libc::pipe(go.as_mut_ptr()) } == 0, || "pipe".into())?;
    y.put(0, b"before the fork");
    // SAFETY: the child calls nothing but read and _exit, and looks at memory.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: our own byte.
        unsafe { libc::read(go[0], (&raw mut byte).cast(), 1) };
        let same = y.get(0, 14) == b"after the fork";
        // SAFETY: ends the child.
        unsafe { libc::_exit(c_int::from(!same)) };
    }
    ensure(child > 0, || "fork".into())?;
    x.put(0, b"after the fork");
    let write = Action::Write { from: Some(x.piece(0, 14)), to: y.at(0), inline: false };
    let tell = Work { id: 2, action: Action::SendInline(b"!"), signaled: true };
    x.f.post(&c.x, &[Work { id: 1, action: write, signaled: false }, tell]).to("post")?;
    let mut seen = VecDeque::new();
    await_completion(y, &mut seen, |c| c.id & RECEIVE != 0)?;
    let parent = y.get(0, 14) == b"after the fork";
    let mut status = -1;
    // SAFETY: our own descriptors, child and place.
    unsafe {
        libc::write(go[1], b"!".as_ptr().cast(), 1);
        libc::waitpid(child, &mut status, 0);
        libc::close(go[0]);
        libc::close(go[1]);
    }
    ensure(parent, || "the parent does not see it".into())?;
    ensure(status == 0, || "the child does not see it".into())?;
    c.finish(x, y)?;
    Ok("parent and child see what was written after it".into())
}

fn many<F: Fabric>(bed: &Bed<F>, count: usize) -> Checked {
    let start = Instant::now();
    for i in 0..count {
        life(bed).map_err(|e| format!("connection {i}: {e}"))?;
    }
    Ok(format!("{:?} each", start.elapsed() / count as u32))
}

/// All checks; `said` hears of each. Returns how many failed.
pub fn all<F: Fabric>(bed: &Bed<F>, mut said: impl FnMut(&str, &Checked)) -> usize {
    let mut failed = 0;
    let mut check = |name: &str, result: Checked| {
        failed += usize::from(result.is_err());
        said(name, &result);
        result.is_ok()
    };
    // After a failure the bed is not as the next check expects it.
    let _ = check("facts", facts(bed))
        && check("connect", connecting(bed))
        && check("write+send, polling", messages(bed, Tell::Send, Await::Polling))
        && check("write+send, asleep", messages(bed, Tell::Send, Await::Asleep))
        && check("write+imm, polling", messages(bed, Tell::Imm, Await::Polling))
        && check("write+imm, asleep", messages(bed, Tell::Imm, Await::Asleep))
        && check("arming", arming(bed))
        && check("full queues", full_queues(bed))
        && check("nobody listens", nobody_listens(bed))
        && check("reject", rejecting(bed))
        && check("wrong key", wrong_key(bed))
        && check("error state", error_state(bed))
        && check("broken under way", broken_under_way(bed))
        && check("closed peer", closed_peer(bed))
        && check("fork", forking(bed))
        && check("20 connections", many(bed, 20));
    failed
}

/// One connection from beginning to end.
pub fn life<F: Fabric>(bed: &Bed<F>) -> Result<(), Failed> {
    let c = bed.connect()?;
    ping_pong(&bed.x, &bed.y, &c, Tell::Send, Await::Asleep, 3)?;
    c.finish(&bed.x, &bed.y)
}

/// What is heard of a connection while something is done to its device: in order, with the
/// milliseconds since then. One message is under way at that moment, and one is posted after it.
/// Everything must be possible to close afterwards.
pub fn watch<F: Fabric>(bed: Bed<F>, done_to_it: impl FnOnce(), limit: Duration) -> Checked {
    let c = bed.connect()?;
    let Bed { x, y, .. } = &bed;
    ping_pong(x, y, &c, Tell::Send, Await::Asleep, 2)?;
    done_to_it();
    let start = Instant::now();
    let mut heard = Vec::new();
    let mut say =
        |text: String| heard.push(format!("{:>5} ms {text}", start.elapsed().as_millis()));
    let write = Action::Write { from: Some(x.piece(0, 512)), to: y.at(0), inline: false };
    match x.f.post(&c.x, &[Work { id: 1, action: write, signaled: true }]) {
        Ok(()) => say("a write is posted".into()),
        Err(e) => say(format!("a write is refused: {e:?}")),
    }
    while start.elapsed() < limit {
        let sides = [("x", x), ("y", y)];
        for (at, side) in sides {
            while let Some(event) = side.f.next_event(&side.manager).to("next event")? {
                say(format!("{at}: news of {}: {}", event.token, name(&event.news)));
            }
            while let Some(fault) = side.f.next_fault(&side.device).to("next fault")? {
                say(format!("{at}: device: {fault:?}"));
            }
            let mut seen = VecDeque::new();
            side.poll(&mut seen)?;
            let receives = seen.iter().filter(|c| c.id & RECEIVE != 0).count();
            for c in seen.iter().filter(|c| c.id & RECEIVE == 0) {
                say(format!("{at}: completion {}: {:?}", c.id, c.outcome));
            }
            if receives > 0 {
                say(format!("{at}: {receives} receives: {:?}", seen[0].outcome));
            }
            side.f.arm(&side.queue).to("arm")?;
        }
        let fds = sides.map(|(_, s)| {
            [s.f.manager_fd(&s.manager), s.f.device_fd(&s.device), s.f.queue_fd(&s.queue)]
        });
        wait(fds.as_flattened(), Duration::from_millis(100));
        let _ = (x.f.clear(&x.queue), y.f.clear(&y.queue));
    }
    let closing = Instant::now();
    let closed = c.close(x, y).and_then(|()| bed.close());
    let end = format!("closed in {} ms: {closed:?}", closing.elapsed().as_millis());
    ensure(closed.is_ok(), || format!("\n  {}\n  {end}", heard.join("\n  ")))?;
    Ok(format!("\n  {}\n  {end}", heard.join("\n  ")))
}

// ---- one side in a process of its own: for two hosts --------------------------------------------

fn next<F: Fabric>(side: &Side<F>, what: &str) -> Result<News<F::Pair>, Failed> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(event) = side.f.next_event(&side.manager).to("next event")? {
            return Ok(event.news);
        }
        let left = until.saturating_duration_since(Instant::now());
        ensure(wait(&[side.f.manager_fd(&side.manager)], left), || {
            format!("{what}: nothing happens")
        })?;
    }
}

fn tell<F: Fabric>(side: &Side<F>) -> Tell {
    if side.f.facts(&side.device).writes_imm { Tell::Imm } else { Tell::Send }
}

/// Returns once both ends have called it. siw loses or breaks what comes right behind its
/// handshake, so both ends must have learned from elsewhere that the other one is established
/// before anybody sends.
pub type Meet<'a> = &'a mut dyn FnMut() -> Result<(), Failed>;

/// Connects to a [`serve`] `count` times, with ping-pong of so many rounds each.
pub fn call<F: Fabric>(
    side: &Side<F>,
    to: SocketAddr,
    count: u32,
    rounds: u32,
    meet: Meet<'_>,
) -> Checked {
    meet()?;
    let start = Instant::now();
    for i in 0..count {
        call_once(side, to, rounds, i, meet).map_err(|e| format!("connection {i}: {e}"))?;
    }
    Ok(format!("{count} connections with {rounds} rounds, {:?} each", start.elapsed() / count))
}

fn call_once<F: Fabric>(
    side: &Side<F>,
    to: SocketAddr,
    rounds: u32,
    seed: u32,
    meet: Meet<'_>,
) -> Result<(), Failed> {
    let mut pair = side.f.resolve(&side.manager, side.address, to, 5000, ACTIVE).to("resolve")?;
    let News::Resolved = next(side, "resolve")? else { return Err("not resolved".into()) };
    side.f.create(&mut pair, &side.domain, &side.queue, CAPACITY).to("create")?;
    for i in 0..RECEIVES {
        side.post_receive(&pair, i)?;
    }
    side.f.connect(&mut pair, &invitation(side.at(0)), Patience::DEFAULT).to("connect")?;
    let there = match next(side, "connect")? {
        News::Established { private } => invited(&private)?,
        other => return Err(format!("not established but {}", name(&other))),
    };
    meet()?;
    let (mut forth, mut position, mut random) = (Direction::new(), 0, seed);
    for round in 0..rounds {
        let len = length(&mut random);
        send(side, &pair, there, &mut forth, 0x5a, len, tell(side))?;
        let announced = receive(side, &pair, &mut forth, Await::Asleep)?;
        ensure(announced == len, || {
            format!("round {round}: {len} bytes sent, {announced} announced")
        })?;
        verify(side, position, len, 0xa5, round)?;
        position += len;
    }
    let bye = Work { id: 0, action: Action::SendInline(b"bye"), signaled: false };
    side.f.post(&pair, &[bye]).to("say bye")?;
    ensure(receive(side, &pair, &mut forth, Await::Asleep)? == 0, || "no bye".into())?;
    side.f.disconnect(&pair).to("disconnect")?;
    let News::Disconnected = next(side, "disconnect")? else {
        return Err("not disconnected".into());
    };
    side.f.close_pair(pair).to("close the pair")?;
    let mut rest = VecDeque::new();
    while side.poll(&mut rest)? > 0 {}
    Ok(())
}

/// Serves `count` connections of [`call`], one after the other.
pub fn serve<F: Fabric>(side: &Side<F>, port: u16, count: u32, meet: Meet<'_>) -> Checked {
    let listener = side
        .f
        .listen(&side.manager, SocketAddr::new(side.address, port), 8, LISTENER)
        .to("listen")?;
    meet()?;
    let mut waiting = VecDeque::new();
    for i in 0..count {
        serve_once(side, meet, &mut waiting).map_err(|e| format!("connection {i}: {e}"))?;
    }
    side.f.close_listener(listener).to("close the listener")?;
    Ok(format!("{count} connections served"))
}

/// `waiting`: a request that came before the end of the connection before it, which happens: only
/// the news of one connection come in order.
fn serve_once<F: Fabric>(
    side: &Side<F>,
    meet: Meet<'_>,
    waiting: &mut VecDeque<(F::Pair, Private)>,
) -> Result<(), Failed> {
    let (mut pair, private) = match waiting.pop_front() {
        Some(request) => request,
        None => match next(side, "request")? {
            News::Request { pair, private } => (pair, private),
            other => return Err(format!("no request but {}", name(&other))),
        },
    };
    let there = invited(&private)?;
    side.f.set_token(&mut pair, PASSIVE);
    side.f.create(&mut pair, &side.domain, &side.queue, CAPACITY).to("create")?;
    for i in 0..RECEIVES {
        side.post_receive(&pair, i)?;
    }
    side.f.accept(&mut pair, &invitation(side.at(0)), Patience::DEFAULT).to("accept")?;
    let News::Established { .. } = next(side, "accept")? else {
        return Err("not established".into());
    };
    meet()?;
    let (mut back, mut position, mut round) = (Direction::new(), 0, 0);
    loop {
        let len = receive(side, &pair, &mut back, Await::Asleep)?;
        if len == 0 {
            break;
        }
        verify(side, position, len, 0x5a, round)?;
        position += len;
        send(side, &pair, there, &mut back, 0xa5, len, tell(side))?;
        round += 1;
    }
    let bye = Work { id: 0, action: Action::SendInline(b"bye"), signaled: false };
    side.f.post(&pair, &[bye]).to("say bye")?;
    // The calling end hangs up when it has read this; hanging up here could overtake it.
    loop {
        match next(side, "disconnect")? {
            News::Disconnected => break,
            News::Request { pair, private } => waiting.push_back((pair, private)),
            other => return Err(format!("not disconnected but {}", name(&other))),
        }
    }
    side.f.disconnect(&pair).to("disconnect")?;
    side.f.close_pair(pair).to("close the pair")?;
    let mut rest = VecDeque::new();
    while side.poll(&mut rest)? > 0 {}
    Ok(())
}
