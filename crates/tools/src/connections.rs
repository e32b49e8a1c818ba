//! The open connections of a process, as copies of their records: of ten thousand that are looked
//! at once a second, those that are shown are taken apart, and no other.

use crate::addresses::{self, Pair};
use netacc_control::stats::{Connection, PATH_SLOTS, RECORD_BYTES, Record};
use std::collections::HashMap;
use std::io;
use std::path::Path;

/// Which connection it is: its descriptor, and since when.
pub type Key = (u32, u64);

/// They are in the order of their descriptors.
#[derive(Debug, Default)]
pub struct Connections {
    /// Of the open ones, in the order in which the process has them; behind them what is left of
    /// an earlier read.
    records: Vec<u8>,
    places: Vec<Place>,
    /// The descriptors of those whose addresses the process has not asked for.
    lacking: Vec<u32>,
    /// By descriptors: their ends.
    ends: HashMap<u32, Pair>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    key: Key,
    /// Which record.
    index: u32,
}

impl Connections {
    /// None, in the memory of those of an earlier look.
    pub fn reusing(mut old: Connections) -> Connections {
        old.places.clear();
        old.lacking.clear();
        old.ends.clear();
        old
    }

    /// Reads so many more records, of so many bytes, and keeps those that are open.
    pub fn read(
        &mut self,
        bytes: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<&[u8]> {
        let begin = self.places.len() * RECORD_BYTES;
        // (What the process says of its size is no reason to take so much.)
        self.records.resize(self.records.len().max(begin + bytes), 0);
        read(&mut self.records[begin..begin + bytes])?;
        for from in (begin..).step_by(RECORD_BYTES).take(bytes / RECORD_BYTES) {
            let record = Record::at(&self.records, from / RECORD_BYTES);
            let Some(record) = record.filter(|record| record.is_open()) else { continue };
            let place = Place { key: identity(record), index: self.places.len() as u32 };
            if !record.has_addresses() {
                self.lacking.push(place.key.0);
            }
            let to = self.places.len() * RECORD_BYTES;
            if to != from {
                self.records.copy_within(from..from + RECORD_BYTES, to);
            }
            self.places.push(place);
        }
        Ok(&self.records[begin..self.places.len() * RECORD_BYTES])
    }

    /// All are read.
    pub fn sort(&mut self) {
        // (Most were opened in the order of their records.)
        if !self.places.is_sorted_by_key(|place| place.key) {
            self.places.sort_by_key(|place| place.key);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Which one stands there.
    pub fn key(&self, index: usize) -> Option<Key> {
        self.places.get(index).map(|place| place.key)
    }

    /// Which ones they are.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.places.iter().map(|place| place.key)
    }

    /// Where one stands. `near`: where it stood, or another one stands that is like it: most stand
    /// where they stood.
    pub fn position(&self, key: Key, near: usize) -> Option<usize> {
        let is_there = self.places.get(near).is_some_and(|place| place.key == key);
        let found = || self.places.binary_search_by_key(&key, |place| place.key).ok();
        is_there.then_some(near).or_else(found)
    }

    /// What one has sent and received, by path.
    pub fn moved(&self, index: usize) -> Option<[[u64; PATH_SLOTS]; 2]> {
        self.record(self.places.get(index)?).map(|record| [record.tx_bytes(), record.rx_bytes()])
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<Connection> {
        self.connection(self.places.get(index)?)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Connection> {
        self.places.iter().filter_map(|place| self.connection(place))
    }

    /// All of them, to be put in another order.
    pub fn all(&self) -> Vec<Connection> {
        let mut all = Vec::with_capacity(self.len());
        all.extend(self.iter());
        all
    }

    /// Asks the kernel for the addresses that the process under `directory` has not asked for.
    pub fn complete(&mut self, directory: &Path) {
        self.ends = addresses::of(&self.lacking, directory);
    }

    fn record(&self, place: &Place) -> Option<Record<'_>> {
        Record::at(&self.records, place.index as usize)
    }

    fn connection(&self, place: &Place) -> Option<Connection> {
        let mut connection = self.record(place)?.connection();
        if connection.local.is_none()
            && let Some((local, peer)) = self.ends.get(&connection.fd)
        {
            (connection.local, connection.peer) = (Some(*local), Some(*peer));
        }
        Some(connection)
    }
}

fn identity(record: Record<'_>) -> Key {
    (record.fd(), record.opened_unix_ns())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_control::stats::{ConnRecord, Path as Way, Sums};
    use std::io::Read;
    use std::mem::offset_of;

    /// A record: its state, its descriptor, when it was opened, and what it has sent.
    fn record(state: u32, fd: u32, opened_unix_ns: u64, sent: u64) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        put(offset_of!(ConnRecord, state), &state.to_ne_bytes());
        put(offset_of!(ConnRecord, fd), &fd.to_ne_bytes());
        put(offset_of!(ConnRecord, opened_unix_ns), &opened_unix_ns.to_ne_bytes());
        put(offset_of!(ConnRecord, tx_bytes) + 8 * Way::Shm as usize, &sent.to_ne_bytes());
        bytes
    }

    /// What is found in these records, read in two parts, and what the open ones say together.
    fn read(records: &[[u8; RECORD_BYTES]], old: Connections) -> (Connections, Sums) {
        let (mut connections, mut sums) = (Connections::reusing(old), Sums::default());
        for part in records.chunks(records.len().div_ceil(2)) {
            let mut bytes = part.as_flattened();
            sums.add(connections.read(bytes.len(), |to| bytes.read_exact(to)).unwrap());
        }
        connections.sort();
        (connections, sums)
    }

    #[test]
    fn the_open_ones_are_kept_in_the_order_of_their_descriptors() {
        let records = [
            (1, 9, 3, 90),
            (0, 4, 4, 40),
            (1, 7, 2, 70),
            (2, 8, 5, 80),
            (0, 7, 1, 7),
            (1, 5, 6, 50),
        ];
        let records = records.map(|(state, fd, opened, sent)| record(state, fd, opened, sent));
        let (found, sums) = read(&records, Connections::default());
        assert_eq!(found.keys().collect::<Vec<_>>(), [(5, 6), (7, 2), (9, 3)]);
        let of = |it: Connection| (it.fd, it.opened_unix_ns, it.tx_bytes[Way::Shm as usize]);
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), [(5, 6, 50), (7, 2, 70), (9, 3, 90)]);
        assert_eq!((found.len(), found.all().len()), (3, 3));
        let sent = |index| found.moved(index).map(|[tx, _]| tx[Way::Shm as usize]);
        assert_eq!([sent(0), sent(1), sent(2), sent(3)], [Some(50), Some(70), Some(90), None]);
        let mut all = Sums::default();
        all.add(records.as_flattened());
        assert_eq!((sums.connections, &sums), (3, &all));
    }

    #[test]
    fn one_is_found_where_it_stands_now() {
        let all: Vec<_> = (3..9).map(|fd| record(1, fd, 1, 0)).collect();
        let (found, _) = read(&all, Connections::default());
        assert_eq!(found.position((5, 1), 2), Some(2));
        assert_eq!(found.position((5, 1), 4), Some(2), "others before it have gone");
        assert_eq!(found.position((5, 1), 99), Some(2));
        assert_eq!(found.position((5, 2), 2), None, "its descriptor has another one");
    }

    #[test]
    fn nothing_is_left_of_an_earlier_look() {
        let many: Vec<_> = (3..99).map(|fd| record(1, fd, 1, 1)).collect();
        let (mut old, _) = read(&many, Connections::default());
        old.ends.insert(4, ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap()));
        let few = [record(1, 4, 2, 0), record(0, 5, 1, 0)];
        let (found, _) = read(&few, old);
        assert_eq!(found.keys().collect::<Vec<_>>(), [(4, 2)]);
        assert_eq!(found.get(0).unwrap().local, None);
        assert!(found.get(1).is_none() && found.position((5, 1), 2).is_none());
    }

    #[test]
    fn addresses_that_the_process_has_not_asked_for_are_the_kernels() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut known = record(1, one.as_raw_fd() as u32, 2, 0);
        known[offset_of!(ConnRecord, family)] = 2;
        let records = [record(1, one.as_raw_fd() as u32, 1, 0), known];
        let (mut found, _) = read(&records, Connections::default());
        found.complete(Path::new("/proc/self"));
        let all = found.all();
        let pair = (one.local_addr().ok(), one.peer_addr().ok());
        assert_eq!((all[0].local, all[0].peer), pair);
        assert_eq!(all[1].local, "0.0.0.0:0".parse().ok(), "what is known stays");
    }
}
