//! The connections of one process, followed: which there are, when each is looked at, and what is
//! said when it ends.

use super::connection::{Connection, Key, Looked, Now, Record, Records};
use super::story::{Story, Told};
use super::stream::Said;
use super::{Memory, ProcessMemory, Unreadable};
use crate::segment::{Segment, SegmentError};
use crate::selection::Selection;
use netacc_control::stats::{
    self, BY_DEVICE, CONNECTED, CONNS_OFFSET, ConnRecord, Header, PATH_SLOTS, Path, Reason,
};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::mem::{offset_of, size_of};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Who looks all the time looks again after so long.
pub const PAUSE_MIN: Duration = Duration::from_micros(20);
/// And at who says nothing after so long.
pub const PAUSE_MAX: Duration = Duration::from_millis(1);
/// At more connections that say nothing it is looked more rarely: for each of them so much.
const PAUSE_EACH: Duration = Duration::from_micros(4);
/// All records are looked at again, whatever the counts of connections say.
const SCAN: Duration = Duration::from_millis(50);
/// A process has no more records.
const RECORDS_MAX: u32 = 1 << 20;
/// So many bytes of a process's wait to be certain: what is more is lost. (Two of the largest rings
/// are half of it.)
const HELD_MAX: usize = 256 << 20;

/// The two ends of each connection that is followed.
pub type Pairs = HashSet<(SocketAddr, SocketAddr)>;

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    name: String,
    memory: ProcessMemory,
    segment: Segment,
    interface: u32,
    followed: HashMap<u32, Followed>,
    ending: Vec<Followed>,
    /// Other ends' processes of this host, as far as they can be looked into, and are of use.
    peers: HashMap<u32, Peer>,
    seen: Seen,
    /// So many bytes more may wait to be certain, as far as this look has come.
    room: usize,
    /// How many connections there are and were by path, as it said last.
    counts: [u64; 2 * PATH_SLOTS],
    scan_at: Instant,
    scan_after: Instant,
    began_unix_ns: u64,
    is_gone: bool,
}

#[derive(Debug)]
struct Followed {
    connection: Connection,
    told: Told,
    due: Instant,
    pause: Duration,
    peer_pid: u32,
    /// How often the peer's end was looked for.
    peer_looks: u32,
}

impl Followed {
    /// It has come onto other rings.
    fn renew<W: Write>(&mut self, key: Key, of: &stats::Connection, story: &mut Story<W>) {
        self.connection.give_up(&mut |d, said| story.say(&mut self.told, d, said));
        if let Some(connection) = Connection::new(key, of, true) {
            self.connection = connection;
            self.due = Instant::now();
        }
    }
}

/// Which accelerated connections a process has had, by its own count and as they were seen.
#[derive(Debug, Default)]
struct Seen {
    /// By the record: when the connection was made that has it, and whether it counts already.
    there: HashMap<u32, (u64, bool)>,
    /// So many were new, and seen.
    new: u64,
    /// So many there had been when that began.
    before: Option<u64>,
}

impl Seen {
    /// What a look at all records has found, when the process's own count was `all`.
    fn look(&mut self, there: HashMap<u32, (u64, bool)>, all: u64) {
        if self.before.is_none() {
            self.before = Some(all);
        } else {
            let was = |(index, (opened, _)): (&u32, &(u64, bool))| {
                self.there.get(index).is_some_and(|(at, counts)| at == opened && *counts)
            };
            let count = there.iter().filter(|(_, it)| it.1).filter(|it| !was((it.0, it.1))).count();
            self.new += count as u64;
        }
        self.there = there;
    }

    /// A connection that was followed has ended, which has been accelerated, as far as is known.
    fn end(&mut self, index: u32, opened: u64) {
        let it = self.there.get_mut(&index).filter(|(at, counts)| *at == opened && !*counts);
        if let Some((_, counts)) = it {
            (*counts, self.new) = (true, self.new + 1);
        }
    }

    /// How many were not seen, of so many.
    fn missed(&self, all: u64) -> u64 {
        let before = self.before.unwrap_or(all);
        all.saturating_sub(before).saturating_sub(self.new)
    }
}

/// A process that is the other end.
#[derive(Debug)]
struct Peer {
    memory: Rc<ProcessMemory>,
    segment: Segment,
}

/// A peer takes its end up within some milliseconds of this side.
const PEER_LOOKS: u32 = 8;

impl Records for File {
    fn record(&self, index: u32) -> Option<Record> {
        let mut bytes = [0; size_of::<ConnRecord>()];
        self.read_exact_at(&mut bytes, place(index)).ok()?;
        let is_open = stats::Connection::read(&bytes).is_some();
        Some(Record { is_open, connection: stats::Connection::read_closed(&bytes) })
    }
}

/// Where the words of the rings are that open connections have.
fn used(segment: &File) -> HashSet<u64> {
    let mut used = HashSet::new();
    records(segment, |_, connection| {
        used.extend(connection.rings.iter().flat_map(|rings| rings.words_at));
    });
    used
}

fn place(index: u32) -> u64 {
    CONNS_OFFSET as u64 + u64::from(index) * size_of::<ConnRecord>() as u64
}

/// Calls `each` with the number and the record of each open connection.
fn records(segment: &File, mut each: impl FnMut(u32, stats::Connection)) {
    const BLOCK: usize = 1 << 16;
    let mut most = [0; 4];
    let at = offset_of!(Header, conn_high_water) as u64;
    if segment.read_exact_at(&mut most, at).is_err() {
        return;
    }
    let most = u32::from_ne_bytes(most).min(RECORDS_MAX);
    let (mut index, mut block) = (0, vec![0; BLOCK]);
    while index < most {
        let wanted = ((most - index) as usize * size_of::<ConnRecord>()).min(BLOCK);
        if segment.read_exact_at(&mut block[..wanted], place(index)).is_err() {
            return;
        }
        for bytes in block[..wanted].chunks_exact(size_of::<ConnRecord>()) {
            if let Some(connection) = stats::Connection::read(bytes) {
                each(index, connection);
            }
            index += 1;
        }
    }
}

impl Process {
    /// Opens a process.
    pub fn open(pid: u32, began_unix_ns: u64) -> Result<Process, SegmentError> {
        let (memory, segment) = open(pid)?;
        let name = crate::segment::name(pid)?;
        Ok(Process {
            pid,
            name,
            memory,
            segment,
            interface: 0,
            followed: HashMap::new(),
            ending: Vec::new(),
            peers: HashMap::new(),
            seen: Seen::default(),
            room: HELD_MAX,
            counts: [u64::MAX; 2 * PATH_SLOTS],
            scan_at: Instant::now(),
            scan_after: Instant::now(),
            began_unix_ns,
            is_gone: false,
        })
    }

    /// What its packets come from.
    pub fn title(&self) -> String {
        format!("{} ({})", crate::show::one_line(&self.name), self.pid)
    }

    /// The number of its interface.
    pub fn set_interface(&mut self, interface: u32) {
        self.interface = interface;
    }

    /// It has ended, or has become another program.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Looks at what is due. Returns whether something was new, and when something is due next.
    pub fn look<W: Write>(
        &mut self,
        selection: &Selection,
        pairs: &mut Pairs,
        story: &mut Story<W>,
        now: Now,
    ) -> (bool, Instant) {
        let all = self.followed.values().chain(&self.ending);
        self.room = HELD_MAX.saturating_sub(all.map(|it| it.connection.held()).sum());
        let counts = self.counts();
        let has_changed = counts != self.counts && now.instant >= self.scan_after;
        if has_changed || now.instant >= self.scan_at {
            self.counts = counts;
            self.scan(selection, pairs, story, now);
            // (Where connections come and go all the time most of it is for looking at rings.)
            self.scan_after = Instant::now() + 4 * now.instant.elapsed();
            self.scan_at = now.instant + SCAN;
        }
        let mut next = now.instant + PAUSE_MAX;
        let (mut has_news, mut over) = (false, Vec::new());
        let most = PAUSE_MAX.max(PAUSE_EACH * self.followed.len() as u32);
        let records = &self.segment.file;
        for (index, it) in &mut self.followed {
            if it.due > now.instant {
                next = next.min(it.due);
                continue;
            }
            let mut tell = |d, said| story.say(&mut it.told, d, said);
            let held = it.connection.held();
            it.connection.set_room(self.room / 2);
            match it.connection.look(&self.memory, records, now, &mut tell) {
                Ok(Looked::Idle) => it.pause = (it.pause * 2).min(most),
                Ok(Looked::News) => (has_news, it.pause) = (true, PAUSE_MIN),
                Ok(Looked::Over) => over.push(*index),
                Err(why) => {
                    self.is_gone |= why == Unreadable::Gone;
                    over.push(*index);
                }
            }
            self.room = self.room.saturating_sub(it.connection.held().saturating_sub(held));
            it.due = now.instant + it.pause;
            next = next.min(it.due);
        }
        for index in over {
            self.end(index, pairs, story, now);
        }
        self.look_behind_ends(story, now);
        (has_news, next)
    }

    /// How many connections there are, by path, and were. It says the same for ever where it has
    /// ended.
    fn counts(&mut self) -> [u64; 2 * PATH_SLOTS] {
        let mut bytes = [0; 16 * PATH_SLOTS];
        let at = offset_of!(Header, open_by_path) as u64;
        if self.segment.file.read_exact_at(&mut bytes, at).is_err() {
            self.is_gone = true;
        }
        let (words, _) = bytes.as_chunks::<8>();
        std::array::from_fn(|i| words.get(i).map_or(0, |word| u64::from_ne_bytes(*word)))
    }

    /// Finds connections that have come, and those that have gone.
    fn scan<W: Write>(
        &mut self,
        selection: &Selection,
        pairs: &mut Pairs,
        story: &mut Story<W>,
        now: Now,
    ) {
        // (Nothing is mapped at 0 while it is there.)
        self.is_gone |= self.memory.read(0, &mut [0]) == Err(Unreadable::Gone);
        let (mut there, mut seen) = (HashMap::new(), HashMap::new());
        let accelerated = self.accelerated();
        records(&self.segment.file, |index, connection| {
            seen.insert(index, (connection.opened_unix_ns, connection.promotions != 0));
            if let Some(key) = Key::of(index, &connection).filter(|_| selection.has(&connection)) {
                there.insert(index, (key, connection));
            }
        });
        let is_there = |index: &u32, it: &Followed| {
            there.get(index).is_some_and(|(key, _)| key.is_same(&it.connection.key()))
        };
        let followed = self.followed.iter();
        let gone: Vec<u32> = followed.filter(|(i, it)| !is_there(i, it)).map(|(i, _)| *i).collect();
        for index in gone {
            self.end(index, pairs, story, now);
        }
        self.look_behind_ends(story, now);
        self.seen.look(seen, accelerated);
        for (index, (key, connection)) in there {
            let is_followed = |it: &Followed| it.connection.key() == key;
            if !self.followed.get(&index).is_some_and(is_followed) && !self.says_twice(key) {
                // (It was being written.)
                continue;
            }
            match self.followed.get_mut(&index) {
                Some(it) if it.connection.key() != key => it.renew(key, &connection, story),
                Some(_) => {}
                None => self.begin(key, &connection, pairs, story, now),
            }
        }
        self.find_peers();
    }

    /// Whether a record says still what it said.
    fn says_twice(&self, key: Key) -> bool {
        let again = self.segment.file.record(key.index).filter(|again| again.is_open);
        again.and_then(|again| Key::of(key.index, &again.connection)) == Some(key)
    }

    /// How many connections have been accelerated, as the process counts them.
    fn accelerated(&self) -> u64 {
        let total = [Path::Shm, Path::Rdma].map(|path| self.counts[PATH_SLOTS + path as usize]);
        total[0].saturating_add(total[1])
    }

    /// Finds the other ends, where they can be looked into: they show when they send. Only those of
    /// the same user: what another one says of its sends is no proof.
    fn find_peers(&mut self) {
        let mut wanted: HashMap<u32, Vec<&mut Followed>> = HashMap::new();
        for it in self.followed.values_mut() {
            if it.connection.lacks_peer() && it.peer_looks < PEER_LOOKS {
                it.peer_looks += 1;
                wanted.entry(it.peer_pid).or_default().push(it);
            }
        }
        for (pid, all) in wanted {
            let peer = match self.peers.entry(pid) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(place) => match open(pid) {
                    Ok((memory, segment)) if is_same_user(self.pid, pid) => {
                        place.insert(Peer { memory: Rc::new(memory), segment })
                    }
                    _ => continue,
                },
            };
            let mut locks = HashMap::new();
            records(&peer.segment.file, |_, connection| {
                let rings = connection.rings.map(|rings| rings.lock_at);
                locks.extend(connection.local.zip(connection.peer).zip(rings));
            });
            for it in all {
                let [local, other] = it.told.ends();
                if let Some(lock_at) = locks.get(&(other, local)) {
                    it.connection.set_peer(Rc::clone(&peer.memory), *lock_at);
                }
            }
        }
        self.peers.retain(|_, peer| Rc::strong_count(&peer.memory) > 1);
    }

    fn begin<W: Write>(
        &mut self,
        key: Key,
        of: &stats::Connection,
        pairs: &mut Pairs,
        story: &mut Story<W>,
        now: Now,
    ) {
        let (Some(local), Some(peer)) = (of.local, of.peer) else { return };
        // The other end is followed already: its bytes are the same.
        if pairs.contains(&(peer, local)) {
            return;
        }
        let origin = of.rings.map_or(0, |rings| rings.origin);
        let is_whole = of.opened_unix_ns >= self.began_unix_ns && key.is_of_whole_life();
        let Some(connection) = Connection::new(key, of, is_whole) else { return };
        pairs.insert((local, peer));
        // One of before that had the same addresses (a carrier's earlier life) ends first. (What
        // came with its end is settled.)
        let is_before = |it: &Followed| it.told.ends() == [local, peer];
        while let Some(at) = self.ending.iter().position(is_before) {
            let mut it = self.ending.swap_remove(at);
            it.connection.give_up(&mut |d, said| story.say(&mut it.told, d, said));
            self.conclude(it, story, now);
        }
        // (No direction may have left TCP yet.)
        let path = if origin & BY_DEVICE == 0 { Path::Shm } else { Path::Rdma }.name();
        let note = format!("{path}, {}, descriptor {}, {local} > {peer}", self.title(), of.fd);
        let mut told = story.connection(self.interface, [local, peer], &note);
        if is_whole {
            story.handshake(&mut told, origin & CONNECTED != 0, of.opened_unix_ns);
        }
        // (Another host's processes have numbers of their own.)
        let is_here = path != Path::Rdma.name() && of.peer_pid != 0;
        let it = Followed {
            connection,
            told,
            due: now.instant,
            pause: PAUSE_MIN,
            peer_pid: of.peer_pid,
            peer_looks: if is_here { 0 } else { PEER_LOOKS },
        };
        self.followed.insert(key.index, it);
    }

    /// A connection has ended here.
    fn end<W: Write>(&mut self, index: u32, pairs: &mut Pairs, story: &mut Story<W>, now: Now) {
        let Some(mut it) = self.followed.remove(&index) else { return };
        self.has_seen(&it.connection);
        let may_copy = self.limit(&mut it);
        let [local, peer] = it.told.ends();
        pairs.remove(&(local, peer));
        let mut tell = |d, said: Said| story.say(&mut it.told, d, said);
        let held = it.connection.held();
        it.connection.set_room(self.room / 2);
        if it.connection.end(&self.memory, may_copy, now).is_err() {
            it.connection.give_up(&mut tell);
        }
        self.room = self.room.saturating_sub(it.connection.held().saturating_sub(held));
        self.ending.push(it);
    }

    fn look_behind_ends<W: Write>(&mut self, story: &mut Story<W>, now: Now) {
        if self.ending.is_empty() {
            return;
        }
        for it in &mut self.ending {
            it.connection.look_behind_end(&self.memory);
        }
        // Behind all these looks, once for all of them.
        let used = used(&self.segment.file);
        for mut it in std::mem::take(&mut self.ending) {
            let mut tell = |d, said: Said| story.say(&mut it.told, d, said);
            if it.connection.settle_end(&used, now, &mut tell) {
                self.conclude(it, story, now);
            } else {
                self.ending.push(it);
            }
        }
    }

    /// A connection that was followed has ended, or is followed no more: it was seen.
    fn has_seen(&mut self, connection: &Connection) {
        let last = connection.last_words(&self.segment.file);
        if last.map_or(connection.has_begun(), |last| last.promotions != 0) {
            let key = connection.key();
            self.seen.end(key.index, key.opened_unix_ns());
        }
    }

    /// What is more than a connection that has ended has counted is of a later life of its carrier,
    /// which may have begun already at its peer. False: nobody knows how much that is.
    fn limit(&self, it: &mut Followed) -> bool {
        let key = it.connection.key();
        let record = self.segment.file.record(key.index);
        let is_own = |it: &Record| Key::of(key.index, &it.connection) == Some(key);
        let Some(record) = record.filter(is_own) else { return false };
        let [sent, received] = [record.connection.tx_bytes, record.connection.rx_bytes];
        if !record.is_open && key.is_of_whole_life() {
            it.told.limit([&sent, &received].map(|bytes| crate::selection::sum(bytes)));
            return true;
        }
        // (It counts still where the process was killed.)
        record.is_open
    }

    /// All is told of it but its end.
    fn conclude<W: Write>(&self, mut it: Followed, story: &mut Story<W>, now: Now) {
        let last = it.connection.last_words(&self.segment.file);
        let is_accelerated = |last: &stats::Connection| last.reason == Reason::None as u32;
        let is_plain = it.connection.has_left() || !last.as_ref().is_none_or(is_accelerated);
        let key = it.connection.key();
        // (It counts all bytes if it is of the connection's whole life.)
        let last = last.filter(|_| key.is_of_whole_life());
        if let Some(last) = &last {
            for (d, bytes) in [last.tx_bytes, last.rx_bytes].iter().enumerate() {
                let all = crate::selection::sum(bytes);
                story.reconcile(&mut it.told, d, all, bytes[Path::Tcp as usize]);
            }
        }
        if self.is_gone {
            let why = "the process has ended, or has become another program";
            return story.leave(&mut it.told, why, now.unix_ns);
        }
        if is_plain {
            // (Nobody counts what goes there, so nobody knows where its end is.)
            let why = "it went on over the kernel's TCP, and how much came there is not known";
            return story.leave(&mut it.told, why, now.unix_ns);
        }
        let ends = [true, it.connection.ends()[1]];
        let has_all = it.connection.has_all();
        for d in [0, 1] {
            // (Its record may be another connection's already.)
            match last.is_some() || has_all[d] {
                true if ends[d] => story.end(&mut it.told, d, now.unix_ns),
                true => {}
                false => story.leave_open(&mut it.told, d),
            }
        }
        story.leave(&mut it.told, "", now.unix_ns);
    }

    /// Nobody looks any more.
    pub fn close<W: Write>(&mut self, story: &mut Story<W>, now: Now) {
        let all = std::mem::take(&mut self.followed).into_values();
        for mut it in all.chain(std::mem::take(&mut self.ending)) {
            if !it.connection.has_ended() {
                self.has_seen(&it.connection);
            }
            if !self.is_gone && !it.connection.has_ended() {
                // (What is not certain yet is behind the end.)
                story.leave(&mut it.told, "the capture ends here", now.unix_ns);
                continue;
            }
            it.connection.give_up(&mut |d, said| story.say(&mut it.told, d, said));
            self.conclude(it, story, now);
        }
        let counts = self.counts();
        if counts != [0; 2 * PATH_SLOTS] {
            self.counts = counts;
        }
        story.sums.unseen += self.seen.missed(self.accelerated());
    }
}

/// Whether both are of one user, and have been all the time, as far as they say.
fn is_same_user(one: u32, other: u32) -> bool {
    let ids = |pid| crate::segment::users(pid).ok();
    ids(one).is_some_and(|one| ids(other) == Some(one))
}

fn open(pid: u32) -> Result<(ProcessMemory, Segment), SegmentError> {
    // In this order: who can still be read behind this had its number all the time.
    let memory = ProcessMemory::open(pid)?;
    Ok((memory, Segment::of(pid)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerated_connections_that_nobody_saw_are_counted() {
        let mut seen = Seen::default();
        assert_eq!(seen.missed(7), 0);
        seen.look(HashMap::from([(0, (10, true)), (1, (11, false))]), 7);
        assert_eq!(seen.missed(7), 0, "those of before");
        // One that was there is accelerated now, one is new, and one came and went.
        seen.look(HashMap::from([(0, (10, true)), (1, (11, true)), (2, (12, true))]), 10);
        assert_eq!(seen.missed(10), 1);
        // One was followed, and accelerated behind the last look.
        seen.look(HashMap::from([(3, (13, false))]), 10);
        seen.end(3, 13);
        seen.end(3, 13);
        assert_eq!(seen.missed(11), 1);
        // Its record is another one's.
        seen.end(3, 14);
        assert_eq!(seen.missed(12), 2);
    }

    #[test]
    fn only_who_has_the_same_users_is_asked() {
        let own = std::process::id();
        assert!(is_same_user(own, own));
        assert!(!is_same_user(own, u32::MAX));
    }
}
