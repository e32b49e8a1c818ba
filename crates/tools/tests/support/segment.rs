//! A segment that a test makes of itself.

use netacc_control::Config;
use netacc_control::config::NO_USERS;
use netacc_control::stats::{
    CHANNEL_SLOTS, CONNS_OFFSET, ChannelRecord, ConnRecord, Counter, Header, MAGIC, MEMFD_NAME,
    Reason, VERSION, packed_library,
};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;

/// Statistics that this process holds out as its own.
pub struct Segment(pub File);

impl Segment {
    pub fn new(pid: u32) -> Segment {
        let file = File::from(memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).unwrap());
        file.set_len((CONNS_OFFSET + 65536 * size_of::<ConnRecord>()) as u64).unwrap();
        let segment = Segment(file);
        segment.u64(offset_of!(Header, magic), MAGIC);
        segment.u32(offset_of!(Header, version), VERSION);
        segment.u32(offset_of!(Header, pid), pid);
        segment.u32(offset_of!(Header, conn_capacity), 65536);
        segment.u32(offset_of!(Header, channel_capacity), CHANNEL_SLOTS as u32);
        segment
    }

    pub fn u32(&self, at: usize, value: u32) {
        self.0.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }

    pub fn u64(&self, at: usize, value: u64) {
        self.0.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }

    pub fn config(&self, text: &str) {
        self.0.write_all_at(text.as_bytes(), offset_of!(Header, config) as u64).unwrap();
        self.u32(offset_of!(Header, config_len), text.len() as u32);
    }

    pub fn filled(pid: u32) -> Segment {
        let segment = Segment::new(pid);
        let word = |base, index| base + 8 * index;
        segment.u64(word(offset_of!(Header, open_by_path), 0), 1);
        segment.u64(word(offset_of!(Header, open_by_path), 1), 2);
        segment.u64(word(offset_of!(Header, total_by_path), 0), 4);
        segment.u64(word(offset_of!(Header, total_by_path), 1), 6);
        segment.u64(word(offset_of!(Header, open_by_path), 2), 1);
        segment.u64(word(offset_of!(Header, total_by_path), 2), 5);
        segment.u64(word(offset_of!(Header, reasons), Reason::None as usize), 6);
        segment.u64(word(offset_of!(Header, reasons), Reason::PeerWithoutLibrary as usize), 3);
        segment.u64(word(offset_of!(Header, reasons), 60), 1);
        segment.u64(word(offset_of!(Header, counters), Counter::Accepted as usize), 10);
        for (counter, value) in [
            (Counter::TcpBytesTx, 1),
            (Counter::ShmBytesRx, 2),
            (Counter::RdmaBytesTx, 300),
            (Counter::RdmaBytesRx, 400),
            (Counter::RdmaPairsCreated, 3),
            (Counter::FailOvers, 2),
            (Counter::MessagesTx, 100),
        ] {
            segment.u64(word(offset_of!(Header, counters), counter as usize), value);
        }
        let (config, origins) = Config::resolve(
            Some(("/etc/netacc.conf", "[netacc]\nNACC_LOG_PATH=\"/a b\"\n")),
            &|name| (name == "NACC_SOR_IO_THREADS").then(|| String::from("2")),
            &[],
            NO_USERS,
        )
        .unwrap();
        segment.config(&config.render(&origins));

        let record = |index: usize| CONNS_OFFSET + index * size_of::<ConnRecord>();
        for (index, fd) in [(0, 7), (1, 8), (2, 5)] {
            let at = record(index);
            segment.u32(at + offset_of!(ConnRecord, state), 1);
            segment.u32(at + offset_of!(ConnRecord, fd), fd);
        }
        let at = record(0);
        segment.u32(at + offset_of!(ConnRecord, tx_path), 1);
        segment.u32(at + offset_of!(ConnRecord, rx_path), 1);
        segment.u32(at + offset_of!(ConnRecord, peer_pid), 99);
        segment.u32(at + offset_of!(ConnRecord, family), 2);
        segment.u64(at + offset_of!(ConnRecord, local_addr), 0x7f00_0001_0000_0000);
        segment.u64(at + offset_of!(ConnRecord, peer_addr), 0x7f00_0002_0000_0000);
        segment.u32(at + offset_of!(ConnRecord, local_port), 6379);
        segment.u32(at + offset_of!(ConnRecord, peer_port), 40000);
        segment.u64(at + offset_of!(ConnRecord, tx_bytes), 10);
        segment.u64(at + offset_of!(ConnRecord, tx_bytes) + 8, 1000);
        segment.u64(at + offset_of!(ConnRecord, rx_bytes), 20);
        segment.u64(at + offset_of!(ConnRecord, rx_bytes) + 8, 2000);
        segment.u64(at + offset_of!(ConnRecord, tx_messages), 11);
        segment.u64(at + offset_of!(ConnRecord, rx_messages), 22);
        segment.u32(at + offset_of!(ConnRecord, ring_bytes), 65536);
        segment.u32(at + offset_of!(ConnRecord, ring_used), 512);
        segment.u32(at + offset_of!(ConnRecord, promotions), 2);
        let at = record(1);
        segment.u32(at + offset_of!(ConnRecord, tx_path), 2);
        segment.u32(at + offset_of!(ConnRecord, reason), Reason::RdmaLost as u32);
        segment.u64(at + offset_of!(ConnRecord, tx_bytes) + 16, 3000);
        segment.u64(at + offset_of!(ConnRecord, rx_bytes) + 16, 4000);
        let at = record(2);
        segment.u32(at + offset_of!(ConnRecord, reason), Reason::PeerRemote as u32);
        segment.u32(at + offset_of!(ConnRecord, family), 10);
        segment.u64(at + offset_of!(ConnRecord, local_addr) + 8, 1);
        segment.u64(at + offset_of!(ConnRecord, peer_addr), 0x2001_0db8_0000_0000);
        segment.u32(at + offset_of!(ConnRecord, demotions), 1);
        // Beyond the high-water mark: stale, not to be shown.
        segment.u32(record(3) + offset_of!(ConnRecord, state), 1);
        segment.u32(offset_of!(Header, conn_high_water), 3);

        let at = offset_of!(Header, channels) + size_of::<ChannelRecord>();
        segment.u32(at + offset_of!(ChannelRecord, state), 1);
        segment.u32(at + offset_of!(ChannelRecord, peer_pid), 99);
        segment.u32(at + offset_of!(ChannelRecord, slots_used), 2);
        segment.u32(at + offset_of!(ChannelRecord, slots_total), 256);
        segment.u64(at + offset_of!(ChannelRecord, arena_bytes), 65536);
        segment.u64(at + offset_of!(ChannelRecord, connections_total), 6);
        let at = offset_of!(Header, remote);
        segment.u32(at + offset_of!(ChannelRecord, state), 1);
        segment.u32(at + offset_of!(ChannelRecord, peer_pid), 4711);
        segment.u32(at + offset_of!(ChannelRecord, slots_used), 1);
        segment.u32(at + offset_of!(ChannelRecord, slots_total), 32);
        segment.u32(at + offset_of!(ChannelRecord, pairs), 3);
        segment.u64(at + offset_of!(ChannelRecord, arena_bytes), 262144);
        segment.u64(at + offset_of!(ChannelRecord, connections_total), 5);
        segment.u32(at + offset_of!(ChannelRecord, peer_family), 2);
        segment.u64(at + offset_of!(ChannelRecord, peer_addr), 0x0a00_0002_0000_0000);
        segment.u64(offset_of!(Header, remote_library), packed_library([1, 2, 3]));
        segment
    }
}
