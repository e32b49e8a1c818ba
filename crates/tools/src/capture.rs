//! The bytes of accelerated connections, read from outside: `netacc capture`.
//!
//! Responsible for: following the rings of processes that run ([`follow`], [`connection`],
//! [`stream`]), and telling it as packets that Wireshark and tcpdump understand ([`story`],
//! [`packet`], [`pcapng`]). Deliberately not: the command line, and where the file is
//! (`commands/capture.rs`).
//!
//! Nothing is written to a process, and its library does nothing for this: it never knows. So a
//! ring is copied while its producer may write over it, and [`stream`] has the rules by which a
//! byte is certain to be what was sent. What is not is a gap, which is told.
//!
//! The process is not trusted: what stands in its memory is loaded once and checked, and wrong
//! values spoil its own capture alone.

pub mod connection;
pub mod follow;
pub mod packet;
pub mod pcapng;
pub mod story;
pub mod stream;

use crate::segment::SegmentError;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Memory that is looked into.
pub trait Memory {
    /// Copies what stands at an address.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Unreadable>;
}

/// Why memory cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// The process has ended, or has become another program.
    Gone,
    /// There is nothing at that address.
    Nothing,
}

/// The memory of a process, as it was when it was opened: that of another program in its place, or
/// of another process that has its number, is never read.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens that of a process. The kernel says who may (`ptrace(2)`, PTRACE_MODE_ATTACH).
    pub fn open(pid: u32) -> Result<ProcessMemory, SegmentError> {
        Ok(ProcessMemory(File::open(format!("/proc/{pid}/mem"))?))
    }
}

impl Memory for ProcessMemory {
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Unreadable> {
        // The kernel takes no offsets that are negative as numbers with a sign.
        if i64::try_from(at).is_err() {
            return Err(Unreadable::Nothing);
        }
        self.0.read_exact_at(to, at).map_err(|error: io::Error| match error.kind() {
            // Its memory has no user any more.
            ErrorKind::UnexpectedEof => Unreadable::Gone,
            _ => Unreadable::Nothing,
        })
    }
}
