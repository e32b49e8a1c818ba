//! Engines that application threads drive: those that play the far end of a path's rings in this
//! process, and need to be looked at for anything to come ([`crate::path::Traits::polled`]).
//!
//! A thread that looks for news of some channels, or is about to sleep for them, drives those of
//! their paths. An engine takes from its devices or its peers what has come, puts it into rings and
//! words, and tells whoever waits ([`Channel::announce_here`]), all in the calls below, which never
//! wait.

use crate::channel::Channel;
use crate::path::{Far, PathId};
use crate::utcp_device::{self, UtcpDevice};
use crate::{queues, rdma_thread};

/// As [`Engines::poll`], for who waits for one connection.
#[inline]
pub(crate) fn poll_for(channel: &Channel, slot: usize) {
    match channel.far {
        Far::Process => {}
        Far::Mirror(wire) => queues::progress_of(wire, slot),
        Far::Utcp(device) => _ = device.drive(),
        #[cfg(test)]
        Far::Loop(_) => crate::path::tests::poll(),
    }
}

/// As [`Engines::before_sleep`], for who waits for one connection.
pub(crate) fn before_sleep_for(channel: &Channel, slot: usize) {
    match channel.far {
        Far::Process => {}
        Far::Mirror(wire) => queues::before_sleep_of(wire, slot),
        Far::Utcp(device) => _ = device.drive(),
        #[cfg(test)]
        Far::Loop(_) => crate::path::tests::before_sleep(),
    }
}

/// Of an event of a doorbell, or of a device's packets: a device that has failed is asked why, so
/// that it wakes nobody again.
#[inline]
pub(crate) fn hear_failure(events: u32) {
    if events & libc::EPOLLERR as u32 != 0 {
        utcp_device::devices().for_each(UtcpDevice::hear_failure);
    }
}

/// Whether this process may have connections that only an agent of its own takes back.
pub(crate) fn are_running() -> bool {
    rdma_thread::is_running() || utcp_device::is_running()
}

/// Engines, one bit for each path.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Engines(u8);

impl Engines {
    const RDMA: u8 = 1 << PathId::Rdma as u8;
    const UTCP: u8 = 1 << PathId::Utcp as u8;

    /// Those that play the far ends of these channels.
    #[inline]
    pub(crate) fn of<'a>(channels: impl Iterator<Item = &'a Channel>) -> Engines {
        let mut all = Engines::default();
        channels.for_each(|channel| all.add(channel));
        all
    }

    #[inline]
    pub(crate) fn add(&mut self, channel: &Channel) {
        if channel.far.id().traits().polled {
            self.0 |= 1 << channel.far.id() as u8;
        }
    }

    /// Looks whether anything has come. No system call, where that is to be had.
    #[inline(always)]
    pub(crate) fn poll(self) {
        if self.0 & Self::RDMA != 0 {
            queues::progress();
        }
        if self.0 & Self::UTCP != 0 {
            utcp_device::progress();
        }
        #[cfg(test)]
        if self.0 & 1 << PathId::Loop as u8 != 0 {
            crate::path::tests::poll();
        }
    }

    /// Whether who sleeps hears packets that come, and no thread tells him.
    #[inline]
    pub(crate) fn hear_packets(self) -> bool {
        self.0 & Self::UTCP != 0
    }

    /// The thread is about to sleep: from here on threads of the path's hear what comes. Look once
    /// more afterwards.
    pub(crate) fn before_sleep(self) {
        if self.0 & Self::RDMA != 0 {
            queues::before_sleep();
        }
        if self.0 & Self::UTCP != 0 {
            utcp_device::before_sleep();
        }
        #[cfg(test)]
        if self.0 & 1 << PathId::Loop as u8 != 0 {
            crate::path::tests::before_sleep();
        }
    }
}
