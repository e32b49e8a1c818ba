//! A connection while it is out of the kernel: the data path, and the bytes of both streams.
//!
//! Offsets of the data path are counted from the take-over; places in the buffers are, too, but
//! that of the receiving stream begins with what the application had not read then.

use crate::buffer::Buffer;
use crate::ended::Ended;
use crate::kernel::{Frozen, Kept, Queues, Refusal};
use crate::record::{Numbers, Record, Stage, copy_of};
use alloc::vec::Vec;
use netacc_packet::port::{Frame, Port, Sent};
use netacc_packet::route::Route;
use netacc_packet::shared::Mapping;
use netacc_packet::sys::Errno;
use netacc_tcp::wire::Segment;
use netacc_tcp::wire::emit::{Checksum, HEADERS_MAX, Service, headers};
use netacc_tcp::{
    Bounds, Connection, Nanos, Negotiated, Parameters, Reason, ReceiveStart, SendStart, StampStart,
    Verdict, Wishes,
};

/// The smallest buffers.
const BUFFER: usize = 1 << 18;
/// So many packets wait for the kernel at most, and so many bytes of them: what is lost then is
/// sent again.
const STASH: usize = 256;
const STASH_BYTES: usize = 1 << 20;
const MS: Nanos = 1_000_000;

/// What the socket's options ask for, and how its packets are made.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What the application wants.
    pub wishes: Wishes,
    /// What the IP header says.
    pub service: Service,
}

/// Why a connection should be the kernel's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The data path says so.
    Tcp(Reason),
    /// The device does not take its packets.
    Device(Errno),
    /// They go another way, or in shorter pieces, as the kernel's tables say.
    Rerouted,
    /// There is no keeper any more.
    NotKept,
}

/// A connection before its socket is changed.
#[derive(Debug)]
pub(crate) struct Prepared {
    connection: Connection,
    service: Service,
    send: Buffer,
    written: u64,
    receive: Buffer,
    base: u64,
    nxt: u32,
    record: Option<Record>,
}

/// A connection that is out.
#[derive(Debug)]
pub struct Carried {
    pub(crate) kept: Kept,
    connection: Connection,
    service: Service,
    /// Where its packets go.
    pub(crate) route: Route,
    /// What it has met outside of its data path.
    trouble: Option<Over>,
    /// It was said that it is over.
    pub(crate) told: bool,
    /// Packets have come, and that was not said yet.
    pub(crate) has_news: bool,
    /// When that is said again: it could not be given back.
    again_at: Option<Nanos>,
    /// Places of the stream that is sent: `acknowledged <= written`.
    send: Buffer,
    written: u64,
    /// Places of the stream that came: what is before `base` came to the kernel.
    receive: Buffer,
    base: u64,
    read: u64,
    /// RCV.NXT of the take-over, until what came before it has been passed over.
    beginning: Option<u32>,
    /// Packets that are the kernel's.
    pub(crate) stash: Vec<Vec<u8>>,
    /// What a keeper needs.
    record: Option<Record>,
    /// When that was written last.
    now: Nanos,
    /// As [`Carried::is_abandoned`] has it.
    abandoned: Option<bool>,
}

impl Carried {
    /// What it takes to go on with what the kernel says.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: the connection stays with the kernel.
    pub(crate) fn prepare(
        (kept, record): (&Kept, Option<Record>),
        asked: &Asked,
        frozen: &Frozen,
        now: Nanos,
    ) -> Result<Prepared, Refusal> {
        let (info, window) = (&kept.info, &frozen.window);
        // What was offered has to find room.
        let offered = window.rcv_wup.wrapping_add(window.rcv_wnd).wrapping_sub(frozen.nxt);
        if offered > 1 << 30 {
            return Err(Refusal::DataPath(netacc_tcp::Refusal::Window));
        }
        let unread = frozen.unread.len();
        let needed = unread.saturating_add(usize::try_from(offered).unwrap_or(usize::MAX));
        let [mut send, mut receive] = buffers(record.as_ref(), [frozen.queued.len(), needed])?;
        send.put(0, &frozen.queued);
        receive.put(0, &frozen.unread);
        let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
        let stamps = StampStart { value: frozen.stamp, tick: MS, recent: None };
        let parameters = Parameters {
            now,
            send: SendStart {
                una: frozen.una,
                in_flight: frozen.in_flight,
                queued: u32::try_from(frozen.queued.len()).unwrap_or(u32::MAX),
                window: window.snd_wnd,
                window_max: window.max_window.max(window.snd_wnd),
                scale: info.send_scale,
                mss: short(info.send_mss),
                cwnd: info.cwnd,
                ssthresh: info.ssthresh,
                srtt: Nanos::from(info.rtt) * 1000,
                rttvar: Nanos::from(info.rtt_variance) * 1000,
                rto_min: 200 * MS,
            },
            receive: ReceiveStart {
                nxt: frozen.nxt,
                acked: window.rcv_wup,
                window: window.rcv_wnd,
                scale: info.receive_scale,
                room: receive.capacity() - unread as u64,
                capacity: receive.capacity(),
                segment: short(info.receive_mss),
                segment_max: short(info.advertised_mss),
            },
            options: Negotiated {
                sack: info.sack,
                stamps: info.stamps.then_some(stamps),
                ecn: info.ecn,
            },
            wishes: asked.wishes.clone(),
            bounds: Bounds::default(),
        };
        let connection = Connection::taken_over(&parameters).map_err(Refusal::DataPath)?;
        Ok(Prepared {
            connection,
            service: asked.service,
            send,
            written: frozen.queued.len() as u64,
            receive,
            base: unread as u64,
            nxt: frozen.nxt,
            record,
        })
    }

    /// Goes on with it.
    pub(crate) fn new(kept: Kept, route: Route, prepared: Prepared) -> Self {
        let Prepared { connection, service, send, written, receive, base, nxt, record } = prepared;
        Self {
            kept,
            connection,
            service,
            route,
            trouble: None,
            told: false,
            has_news: false,
            again_at: None,
            send,
            written,
            receive,
            base,
            read: 0,
            beginning: Some(nxt),
            stash: Vec::new(),
            record,
            now: 0,
            abandoned: None,
        }
    }

    /// From here on the socket may be changed: who is left goes on by the numbers.
    pub(crate) fn is_out(&mut self, now: Nanos) {
        self.publish(now);
        if let Some(record) = &self.record {
            record.set_mss(u64::from(self.kept.mss().unsigned_abs()));
            record.set_stage(Stage::Out);
        }
    }

    /// Says where it has come to, for who is left if this process is killed.
    fn publish(&mut self, now: Nanos) {
        self.now = now;
        if let Some(record) = &self.record {
            record.publish(&self.numbers(now));
        }
    }

    fn numbers(&self, now: Nanos) -> Numbers {
        Numbers { repair: self.connection.repair(now), read: self.read, base: self.base }
    }

    /// The data path.
    #[must_use]
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Why the kernel should go on with it, if it should.
    #[must_use]
    pub fn over(&self) -> Option<Over> {
        self.connection.over().map(Over::Tcp).or(self.trouble)
    }

    /// Its packets should go another way.
    pub(crate) fn reroute(&mut self) {
        self.trouble.get_or_insert(Over::Rerouted);
    }

    /// Nobody would give it back if this process were killed.
    pub(crate) fn not_kept(&mut self) {
        self.trouble.get_or_insert(Over::NotKept);
    }

    /// It could not be given back: that it should is said again then.
    pub(crate) const fn later(&mut self, at: Nanos) {
        self.again_at = Some(at);
    }

    /// When something is due.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        [self.connection.next_timer(), self.again_at].into_iter().flatten().min()
    }

    /// How many bytes can be read.
    #[must_use]
    pub const fn readable(&self) -> u64 {
        self.base + self.connection.readable() - self.read
    }

    /// How many bytes can be written.
    #[must_use]
    pub const fn writable(&self) -> u64 {
        self.connection.acknowledged() + self.send.capacity() - self.written
    }

    /// How many bytes it was given to be sent, those that the kernel had included.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Takes so many bytes to be sent, at most what is [`Carried::writable`]: `fill` puts them
    /// where they belong, in two parts.
    pub fn write_with(&mut self, now: Nanos, length: u64, fill: impl FnOnce([&mut [u8]; 2])) {
        let length = length.min(self.writable());
        fill(self.send.place_for(self.written, length));
        self.written += length;
        self.connection.on_written(now, self.written, false);
        self.publish(now);
    }

    /// The bytes that can be read, but for the first `skip`, in two parts. They stay.
    #[must_use]
    pub fn unread(&self, skip: u64) -> [&[u8]; 2] {
        let skip = skip.min(self.readable());
        self.receive.get(self.read + skip, self.readable() - skip)
    }

    /// So many of those are read: their room is the peer's.
    pub fn consumed(&mut self, count: u64) {
        let count = count.min(self.readable());
        if count > 0 {
            self.read += count;
            self.connection.on_room(self.read + self.receive.capacity() - self.base);
            self.publish(self.now);
        }
    }

    /// Takes bytes to be sent: how many.
    pub fn write(&mut self, now: Nanos, bytes: &[u8]) -> usize {
        let room = usize::try_from(self.writable()).unwrap_or(usize::MAX);
        let bytes = bytes.get(..room).unwrap_or(bytes);
        self.send.put(self.written, bytes);
        self.written += bytes.len() as u64;
        self.connection.on_written(now, self.written, false);
        self.publish(now);
        bytes.len()
    }

    /// Gives bytes that came: how many.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut count = 0;
        for part in self.receive.get(self.read, self.readable().min(bytes.len() as u64)) {
            if let Some(place) = bytes.get_mut(count..count + part.len()) {
                place.copy_from_slice(part);
                count += part.len();
            }
        }
        self.consumed(count as u64);
        count
    }

    /// The application waits for bytes.
    pub const fn on_waiting(&mut self) {
        self.connection.on_waiting();
    }

    /// What came before the take-over has come out of the device.
    pub(crate) const fn begins(&mut self) {
        self.beginning = None;
    }

    /// A packet of this flow.
    pub(crate) fn on_packet(&mut self, now: Nanos, packet: &[u8], read: (&Segment, &[u8])) {
        let (segment, payload) = read;
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        if let Some(nxt) = self.beginning
            && length > 0
            && nxt.wrapping_sub(segment.seq.wrapping_add(length)) < 1 << 31
        {
            // A copy of what the kernel had, and has acknowledged: nothing to report.
            return;
        }
        match self.connection.on_segment(now, segment, length) {
            Verdict::Taken { write: Some(write) } => {
                let part = usize::try_from(write.skip).ok().and_then(|from| payload.get(from..));
                let length = usize::try_from(write.length).unwrap_or(0);
                if let Some(bytes) = part.and_then(|part| part.get(..length)) {
                    self.receive.put(self.base + write.offset, bytes);
                }
            }
            Verdict::Taken { write: None } | Verdict::Dropped => {}
            Verdict::GiveBack(_) => self.stash(packet),
        }
        // (What was acknowledged may be written over from here on.)
        self.publish(now);
    }

    /// A packet for the kernel, once it has the connection.
    pub(crate) fn stash(&mut self, packet: &[u8]) {
        let bytes: usize = self.stash.iter().map(Vec::len).sum();
        let fits = self.stash.len() < STASH && bytes + packet.len() <= STASH_BYTES;
        if fits
            && self.stash.try_reserve(1).is_ok()
            && let Some(copy) = copy_of([packet, &[]])
        {
            self.stash.push(copy);
        }
    }

    /// Does what is due.
    pub(crate) fn on_timer(&mut self, now: Nanos) {
        if self.connection.next_timer().is_some_and(|at| at <= now) {
            let _ = self.connection.on_timer(now);
        }
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.told = false;
        }
    }

    /// Sends what there is to be sent.
    pub(crate) fn transmit(&mut self, port: &mut impl Port, now: Nanos) {
        while let Some(out) = self.connection.poll_send(now) {
            // Before the peer sees it.
            self.publish(now);
            let service = Service { ecn_capable: out.ecn_capable, ..self.service };
            let payload = self.send.get(out.offset, out.length);
            let segment = usize::try_from(out.segment_size).unwrap_or(0);
            match self.emit(port, (&out.segment, &service), payload, segment) {
                Sent::Taken => {}
                // It counts as lost, and the rest comes when the device has room.
                Sent::Full => break,
                Sent::Refused(errno) => {
                    self.trouble.get_or_insert(Over::Device(errno));
                    break;
                }
            }
        }
    }

    fn emit(
        &self,
        port: &mut impl Port,
        (segment, service): (&Segment, &Service),
        payload: [&[u8]; 2],
        size: usize,
    ) -> Sent {
        let mut out = [0; HEADERS_MAX];
        let flow = self.kept.flow.reversed();
        let length = payload.iter().map(|part| part.len()).sum();
        let sum = Checksum::ByTheDevice;
        let written = headers((&flow, service), segment, length, sum, &mut out);
        let Some(headers) = written.and_then(|length| out.get(..length)) else {
            return Sent::Refused(Errno(libc::EMSGSIZE));
        };
        let ip_header = if flow.source.address.is_ipv4() { 20 } else { 40 };
        port.send(&Frame { to: self.route.next_hop, headers, ip_header, payload, segment: size })
    }

    /// What the kernel gets of its bytes.
    ///
    /// # Errors
    ///
    /// ENOMEM: then it stays out.
    pub(crate) fn leaves(&self, now: Nanos) -> Result<Leaves, Errno> {
        let numbers = self.numbers(now);
        let (queues, unsent) = numbers.queues(&self.send, &self.receive)?;
        Ok(Leaves { numbers, queues, unsent })
    }

    /// The connection as the kernel gets it: its numbers, its queues, what was never sent, and the
    /// packets that wait.
    pub(crate) fn end(self, Leaves { numbers, queues, unsent }: Leaves) -> Ended {
        let reason = self.over();
        let Self { kept, service, route, stash, record, abandoned, .. } = self;
        if let Some(record) = &record {
            record.publish(&numbers);
        }
        let (repair, to) = (numbers.repair, route.next_hop);
        Ended { kept, reason, repair, queues, unsent, stash, service, to, record, abandoned }
    }

    /// Nobody has its ends any more, and `cut`: nor bytes that it was never given. Where the kernel
    /// does not get all of its bytes, the stream ends in a reset, and not as if it were whole.
    pub const fn is_abandoned(&mut self, cut: bool) {
        self.abandoned = Some(cut);
    }
}

/// Buffers for so many bytes at least: in the record's file, where a keeper is to find them.
fn buffers(record: Option<&Record>, least: [usize; 2]) -> Result<[Buffer; 2], Refusal> {
    let [send, receive] = least.map(|least| Buffer::size(least.max(BUFFER)));
    let (send, receive) = send.zip(receive).ok_or(Refusal::NoMemory)?;
    let of = |size| Mapping::new(size).map(Buffer::new);
    let made = match record {
        Some(record) => record.make_buffers([send, receive]),
        None => of(send).and_then(|send| Ok([send, of(receive)?])),
    };
    made.map_err(|_| Refusal::NoMemory)
}

/// What the kernel gets of the bytes of a connection, and what it is told of them.
#[derive(Debug)]
pub(crate) struct Leaves {
    numbers: Numbers,
    queues: Queues,
    unsent: Vec<u8>,
}
