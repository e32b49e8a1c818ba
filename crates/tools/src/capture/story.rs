//! What is told of connections, as packets in a pcapng file, and what is summed up at the end.
//!
//! A stream's first byte has the sequence number 1 (its SYN has 0), whatever path it took: a gap is
//! a jump of the sequence numbers, and a comment says what it was.

use super::packet::{ACK, FIN, PAYLOAD_MAX, PSH, SYN, Segment};
use super::pcapng::{Counts, Pcapng};
use super::stream::Said;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::SocketAddr;

/// A file, and what has gone into it.
#[derive(Debug)]
pub struct Story<W> {
    file: Pcapng<W>,
    interfaces: Vec<Counts>,
    /// So many packets may come still.
    left: u64,
    /// Something could not be written.
    failure: Option<io::Error>,
    /// What is summed up.
    pub sums: Sums,
    application: String,
}

/// What has been told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Connections.
    pub connections: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Gaps of what could not be copied in time.
    pub gaps: u64,
    /// Bytes of these.
    pub lost: u64,
    /// Bytes that went over the kernel's TCP.
    pub kernel: u64,
    /// Directions of which nobody knows how much came at their end.
    pub open_ends: u64,
    /// Accelerated connections that were over before they were seen.
    pub unseen: u64,
}

/// A connection, as far as it was told. 0 is what the process sends, 1 what it receives.
#[derive(Debug)]
pub struct Told {
    interface: u32,
    /// The process's end, and the peer's.
    ends: [SocketAddr; 2],
    /// The offset of what comes next.
    next: [u64; 2],
    /// Bytes of this connection that were told to have gone over the kernel's TCP.
    kernel: [u64; 2],
    /// Bytes that are missing before what comes next, and are not told of yet.
    lost: [u64; 2],
    /// What is to be said with the next packet.
    notes: [String; 2],
    has_ended: [bool; 2],
    /// It is known which offset comes next.
    is_placed: [bool; 2],
    /// Nothing comes from these offsets on.
    limits: [u64; 2],
}

impl<W: Write> Story<W> {
    /// Begins a file with room for so many packets, of each of which `snap` bytes are kept.
    pub fn begin(out: W, snap: u32, most: u64, application: &str) -> io::Result<Story<W>> {
        Ok(Story {
            file: Pcapng::begin(out, snap, application)?,
            interfaces: Vec::new(),
            left: most,
            failure: None,
            sums: Sums::default(),
            application: application.to_owned(),
        })
    }

    /// A process is looked at from now on: its packets come from an interface of that name.
    pub fn interface(&mut self, name: &str, now_ns: u64) -> io::Result<u32> {
        let number = self.file.interface(name, &format!("{}: {name}", self.application))?;
        self.interfaces.push(Counts { begin_ns: now_ns, ..Counts::default() });
        Ok(number)
    }

    /// Whether it has room, and can be written.
    pub fn goes_on(&self) -> bool {
        self.left > 0 && self.failure.is_none()
    }

    /// A connection begins: of whom, and what is said of it.
    pub fn connection(&mut self, interface: u32, ends: [SocketAddr; 2], note: &str) -> Told {
        self.sums.connections += 1;
        Told {
            interface,
            ends,
            next: [0; 2],
            kernel: [0; 2],
            lost: [0; 2],
            notes: [note.to_owned(), note.to_owned()],
            has_ended: [false; 2],
            is_placed: [false; 2],
            limits: [u64::MAX; 2],
        }
    }

    /// The handshake of a connection whose begin was seen, at that time. `connected`: the process
    /// made it.
    pub fn handshake(&mut self, told: &mut Told, connected: bool, time_ns: u64) {
        told.is_placed = [true; 2];
        let (first, second) = if connected { (0, 1) } else { (1, 0) };
        let [note, _] = std::mem::take(&mut told.notes);
        self.segment(told, first, (0, SYN), &[], (time_ns, &note));
        self.segment(told, second, (0, SYN | ACK), &[], (time_ns, ""));
        self.segment(told, first, (1, ACK), &[], (time_ns, ""));
    }

    /// Tells more of a direction.
    pub fn say(&mut self, told: &mut Told, d: usize, said: Said) {
        match said.up_to(told.limits[d]) {
            Said::Begins(offset, by_kernel) => {
                (told.next[d], told.kernel[d]) = (offset, by_kernel);
                told.is_placed[d] = true;
                let _ = write!(note(told, d), "the capture begins at byte {offset} of this stream");
            }
            Said::Lost(offset) => {
                let lost = self.skip(told, d, offset);
                told.lost[d] = told.lost[d].saturating_add(lost);
            }
            Said::Kernel(offset) => {
                let gone = self.skip(told, d, offset);
                if gone > 0 {
                    self.tell_lost(told, d);
                    self.sums.kernel = self.sums.kernel.saturating_add(gone);
                    told.kernel[d] = told.kernel[d].saturating_add(gone);
                    let _ = write!(
                        note(told, d),
                        "{gone} bytes before this went over the kernel's TCP, past this capture"
                    );
                }
            }
            Said::Bytes(offset, bytes, time_ns) => {
                if offset != told.next[d] {
                    self.say(told, d, Said::Lost(offset));
                }
                if offset != told.next[d] {
                    // (What lies behind was told.)
                    return;
                }
                self.tell_lost(told, d);
                for part in bytes.chunks(PAYLOAD_MAX) {
                    let at = sequence(told.next[d]);
                    let note = std::mem::take(&mut told.notes[d]);
                    self.segment(told, d, (at, ACK | PSH), part, (time_ns, &note));
                    told.next[d] = told.next[d].wrapping_add(part.len() as u64);
                    self.sums.bytes += part.len() as u64;
                }
            }
        }
    }

    /// What the process has counted of a direction that has ended: bytes in all, and of these over
    /// the kernel's TCP. What was not told is missing.
    pub fn reconcile(&mut self, told: &mut Told, d: usize, all: u64, by_kernel: u64) {
        if !told.is_placed[d] {
            // It was there before, and never came onto its ring.
            return self.say(told, d, Said::Begins(all, by_kernel));
        }
        let missing = all.saturating_sub(told.next[d]);
        let by_kernel = by_kernel.saturating_sub(told.kernel[d]).min(missing);
        self.say(told, d, Said::Lost(told.next[d].wrapping_add(missing - by_kernel)));
        self.say(told, d, Said::Kernel(told.next[d].wrapping_add(by_kernel)));
    }

    /// Nobody knows how much came of a direction behind what was told.
    pub fn leave_open(&mut self, told: &mut Told, d: usize) {
        self.sums.open_ends += 1;
        self.tell_lost(told, d);
        note(told, d).push_str("the end of this stream was not seen");
    }

    /// A direction has ended.
    pub fn end(&mut self, told: &mut Told, d: usize, time_ns: u64) {
        if !std::mem::replace(&mut told.has_ended[d], true) {
            self.tell_lost(told, d);
            let (at, note) = (sequence(told.next[d]), std::mem::take(&mut told.notes[d]));
            self.segment(told, d, (at, FIN | ACK), &[], (time_ns, &note));
        }
    }

    /// Nothing more is known of a connection; says so, and what there is to say still.
    pub fn leave(&mut self, told: &mut Told, why: &str, time_ns: u64) {
        for d in [0, 1] {
            self.tell_lost(told, d);
            if d == 0 && !why.is_empty() {
                note(told, d).push_str(why);
            }
            let note = std::mem::take(&mut told.notes[d]);
            if !note.is_empty() {
                self.segment(told, d, (sequence(told.next[d]), ACK), &[], (time_ns, &note));
            }
        }
    }

    /// The end of the file.
    pub fn finish(mut self, now_ns: u64) -> io::Result<Sums> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let comment = self.sums.text();
        for (number, counts) in self.interfaces.iter().enumerate() {
            let counts = Counts { end_ns: now_ns, ..*counts };
            self.file.statistics(number as u32, counts, &comment)?;
        }
        self.file.flush()?;
        Ok(self.sums)
    }

    /// Hands on what is buffered.
    pub fn flush(&mut self) {
        let done = self.file.flush();
        self.failed(done);
    }

    /// A gap ends here.
    fn tell_lost(&mut self, told: &mut Told, d: usize) {
        let lost = std::mem::take(&mut told.lost[d]);
        if lost == 0 {
            return;
        }
        self.sums.gaps += 1;
        self.sums.lost = self.sums.lost.saturating_add(lost);
        if let Some(counts) = self.interfaces.get_mut(told.interface as usize) {
            counts.dropped += 1;
        }
        let _ = write!(
            note(told, d),
            "{lost} bytes before this are missing: they could not be copied in time"
        );
    }

    /// What comes next has that offset. How far that is; 0: it is said already.
    fn skip(&mut self, told: &mut Told, d: usize, offset: u64) -> u64 {
        let ahead = offset.wrapping_sub(told.next[d]);
        // (What lies behind is no gap.)
        if ahead > u64::MAX / 2 {
            return 0;
        }
        told.next[d] = offset;
        ahead
    }

    fn segment(
        &mut self,
        told: &Told,
        d: usize,
        (seq, flags): (u32, u8),
        payload: &[u8],
        (time_ns, comment): (u64, &str),
    ) {
        if !self.goes_on() {
            return;
        }
        let (from, to) = (told.ends[d], told.ends[1 - d]);
        let ack = match flags {
            SYN => 0,
            _ if flags & SYN != 0 => 1,
            _ => sequence(told.next[1 - d]).wrapping_add(u32::from(told.has_ended[1 - d])),
        };
        let packet = Segment { from, to, seq, ack, flags, payload }.packet();
        let done = self.file.packet(told.interface, time_ns, &packet, comment);
        self.failed(done);
        self.left -= 1;
        self.sums.packets += 1;
        if let Some(counts) = self.interfaces.get_mut(told.interface as usize) {
            counts.received += 1;
        }
    }

    fn failed(&mut self, done: io::Result<()>) {
        if let Err(error) = done {
            self.failure.get_or_insert(error);
        }
    }
}

impl Sums {
    /// For people.
    pub fn text(&self) -> String {
        let gaps = match self.gaps {
            0 => String::from("no gap"),
            gaps => format!("{gaps} gaps of {} bytes", self.lost),
        };
        let mut text = format!(
            "{} packets with {} bytes of {} connections; {gaps}; {} bytes went over the kernel's TCP",
            self.packets, self.bytes, self.connections, self.kernel
        );
        if self.open_ends > 0 {
            let _ = write!(text, "; the ends of {} directions were not seen", self.open_ends);
        }
        if self.unseen > 0 {
            let what = "accelerated connections were over before they were seen";
            let _ = write!(text, "; {} {what}", self.unseen);
        }
        text
    }
}

impl Told {
    /// The process's end, and the peer's.
    pub fn ends(&self) -> [SocketAddr; 2] {
        self.ends
    }

    /// So many bytes were sent, and received, in all: what is said to lie behind them is not of
    /// this connection.
    pub fn limit(&mut self, all: [u64; 2]) {
        self.limits = all;
    }
}

/// Where something more is to be said.
fn note(told: &mut Told, d: usize) -> &mut String {
    let note = &mut told.notes[d];
    if !note.is_empty() {
        note.push_str("; ");
    }
    note
}

/// The sequence number of an offset.
fn sequence(offset: u64) -> u32 {
    (offset as u32).wrapping_add(1)
}
