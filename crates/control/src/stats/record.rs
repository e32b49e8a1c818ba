//! A copy of a connection's record, of which what is not asked for is not read: a look at ten
//! thousand connections needs of most of them a sum.

use super::read::{u64_at, u64s_at};
use super::{COUNTERS, ConnRecord, Connection, Counter, PATH_SLOTS, Path, REASON_SLOTS, Snapshot};
use core::mem::{offset_of, size_of};

/// A [`ConnRecord`] as it was when it was copied: nothing changes it any more.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a>(&'a [u8; RECORD_BYTES]);

/// Bytes of a record.
pub const RECORD_BYTES: usize = size_of::<ConnRecord>();

impl<'a> Record<'a> {
    /// Whole records, one behind the other: each, whether it is in use or not.
    pub fn all(bytes: &'a [u8]) -> impl Iterator<Item = Record<'a>> {
        bytes.as_chunks().0.iter().map(Record)
    }

    /// The one at that index among them.
    pub fn at(bytes: &'a [u8], index: usize) -> Option<Record<'a>> {
        bytes.as_chunks().0.get(index).map(Record)
    }

    /// Whether its connection is open.
    pub fn is_open(self) -> bool {
        self.word(offset_of!(ConnRecord, state)) == super::RECORD_OPEN
    }

    /// Descriptor.
    pub fn fd(self) -> u32 {
        self.word(offset_of!(ConnRecord, fd))
    }

    /// When the connection was made.
    pub fn opened_unix_ns(self) -> u64 {
        u64_at(self.0, offset_of!(ConnRecord, opened_unix_ns))
    }

    /// Whether it says which addresses the connection has.
    pub fn has_addresses(self) -> bool {
        let word = |at| self.word(at);
        let is_port = u16::try_from(word(offset_of!(ConnRecord, local_port))).is_ok();
        is_port && super::unpack_ip(word(offset_of!(ConnRecord, family)), 0, 0).is_some()
    }

    /// Bytes sent, by path.
    pub fn tx_bytes(self) -> [u64; PATH_SLOTS] {
        u64s_at(self.0, offset_of!(ConnRecord, tx_bytes))
    }

    /// Bytes received, by path.
    pub fn rx_bytes(self) -> [u64; PATH_SLOTS] {
        u64s_at(self.0, offset_of!(ConnRecord, rx_bytes))
    }

    /// All that it says.
    pub fn connection(self) -> Connection {
        Connection::read_closed(self.0)
    }

    fn word(self, at: usize) -> u32 {
        super::read::u32_at(self.0, at)
    }
}

/// What the open connections of a process say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums {
    /// How many there are.
    pub connections: u64,
    /// By path.
    pub tx_bytes: [u64; PATH_SLOTS],
    /// By path.
    pub rx_bytes: [u64; PATH_SLOTS],
    /// Calls that have sent something.
    pub tx_messages: u64,
    /// Calls that have received something.
    pub rx_messages: u64,
    /// How many there are with each reason, by code.
    pub reasons: [u64; REASON_SLOTS],
}

impl Default for Sums {
    fn default() -> Sums {
        Sums {
            connections: 0,
            tx_bytes: [0; PATH_SLOTS],
            rx_bytes: [0; PATH_SLOTS],
            tx_messages: 0,
            rx_messages: 0,
            reasons: [0; REASON_SLOTS],
        }
    }
}

impl Sums {
    /// Adds the open ones of these records.
    pub fn add(&mut self, records: &[u8]) {
        Record::all(records).filter(|record| record.is_open()).for_each(|record| self.one(record));
    }

    fn one(&mut self, record: Record<'_>) {
        let long = |at| u64_at(record.0, at);
        self.connections = self.connections.saturating_add(1);
        add_each(&mut self.tx_bytes, record.tx_bytes());
        add_each(&mut self.rx_bytes, record.rx_bytes());
        let (tx, rx) = (offset_of!(ConnRecord, tx_messages), offset_of!(ConnRecord, rx_messages));
        self.tx_messages = self.tx_messages.saturating_add(long(tx));
        self.rx_messages = self.rx_messages.saturating_add(long(rx));
        let reason = record.word(offset_of!(ConnRecord, reason));
        if let Some(count) = self.reasons.get_mut(reason as usize) {
            *count = count.saturating_add(1);
        }
    }
}

fn add_each(to: &mut [u64; PATH_SLOTS], more: [u64; PATH_SLOTS]) {
    to.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
}

impl Snapshot {
    /// Every counter, by code, with what the open connections have moved: the segment counts that
    /// of connections that have ended. Never more than there has been, if the records were read
    /// behind this header (`ConnRecord::close` comes first, and what it counts for behind it). What
    /// a connection has moved that ends between the two is missing this once.
    pub fn totals(&self, open: &Sums) -> [u64; COUNTERS] {
        let mut all =
            core::array::from_fn(|code| self.counters.get(code).copied().unwrap_or_default());
        let mut add = |counter: Counter, more: u64| {
            if let Some(sum) = all.get_mut(counter as usize) {
                *sum = u64::saturating_add(*sum, more);
            }
        };
        for (path, (tx, rx)) in
            Path::ALL.into_iter().zip(open.tx_bytes.into_iter().zip(open.rx_bytes))
        {
            add(Counter::bytes_tx(path), tx);
            add(Counter::bytes_rx(path), rx);
        }
        add(Counter::MessagesTx, open.tx_messages);
        add(Counter::MessagesRx, open.rx_messages);
        all
    }
}
