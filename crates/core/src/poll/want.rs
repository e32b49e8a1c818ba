//! A connection among the polled descriptors: what can be said of it without the kernel.

use super::{IN, OUT};
use crate::channel::Channel;
use crate::heap::Scratch;
use crate::life_word::has_closed;
use crate::socket::{self, Socket, State, flag};
use crate::{io, wait};
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;

/// An attached socket among the polled descriptors.
#[derive(Clone, Copy)]
pub(super) struct Want {
    pub(super) index: usize,
    pub(super) socket: &'static Socket,
    pub(super) generation: u16,
    pub(super) channel: &'static Channel,
    pub(super) slot: usize,
    /// The peer cannot tell this process of its news: a child that inherited it, and in whose hands
    /// bytes were left in the ring.
    pub(super) silent: bool,
    pub(super) posted: [bool; 2],
}

impl Want {
    /// What can be said of it from the shared words, and whether the carrier has to be asked as
    /// well.
    pub(super) fn look(&self, events: i16) -> (i16, bool) {
        let mut now = 0;
        let rx = self.channel.words(self.slot, self.channel.side ^ 1);
        let (readable, mut ask) = self.socket.published.ring_says(rx, &self.socket.rx_offset);
        ask |= self.socket.has(flag::CARRIER_SPOKE | flag::FIN_LATER | flag::RESET)
            || self.channel.peer_ends(self.slot);
        if readable {
            now |= events & IN;
        }
        if !self.socket.published.sends_fast() {
            ask = true;
        } else if wait::send_room(self.socket, self.channel, self.slot, self.socket.room_bytes()) {
            now |= events & OUT;
        }
        (now, ask)
    }

    /// As [`Want::look`], with the end of a peer that has closed and keeps the carrier.
    pub(super) fn look_for_ends(&self, events: i16) -> (i16, bool) {
        let (mut now, ask) = self.look(events);
        if ask && self.channel.peer_ends(self.slot) && has_closed(self.socket) {
            now |= events & (IN | OUT | libc::POLLRDHUP);
        }
        (now, ask)
    }

    /// What a thread that sleeps has to hear of the carrier: nothing that it says all the time.
    pub(super) fn carrier_events(&self, events: i16) -> i16 {
        let fast = self.socket.published.sends_fast();
        let no_room_there = fast || !io::may_send_on_carrier(self.socket, false);
        // Who waits for room in a ring that nobody empties any more has to hear that.
        let end = events & IN != 0
            || (events & OUT != 0 && fast && self.hears_end())
            || self.socket.has(flag::FIN_LATER);
        (events & !(if no_room_there { OUT } else { 0 })) | if end { libc::POLLRDHUP } else { 0 }
    }

    /// Whether POLLRDHUP says that what is sent has nobody to receive it.
    pub(super) fn hears_end(&self) -> bool {
        !self.socket.has(flag::SHUT_RD) && !self.channel.peer_half_closed(self.slot)
    }

    /// Whether room on the carrier, of which `said` is known, is room for the application's bytes.
    pub(super) fn sends_there(&self, said: i16) -> bool {
        let end =
            if self.hears_end() { libc::POLLRDHUP } else { 0 } | libc::POLLHUP | libc::POLLERR;
        // Behind the peer's end the next send goes there.
        if self.socket.published.sends_fast() {
            said & end != 0
        } else {
            io::may_send_on_carrier(self.socket, said & libc::POLLHUP != 0)
        }
    }

    /// The carrier's answer, of its descriptor `fd`, in the application's terms.
    pub(super) fn translate(&self, fd: c_int, mut revents: i16, events: i16) -> i16 {
        revents = io::settled(fd, events | libc::POLLRDHUP, revents);
        revents = self.channel.far.of_carrier(self.slot, fd, revents);
        revents = io::with_error_owed(self.socket, self.generation, revents);
        if revents & (libc::POLLRDHUP | libc::POLLHUP) != 0
            && io::is_reset_now(self.socket, self.generation, fd)
        {
            revents |= IN
                | OUT
                | libc::POLLRDHUP
                | libc::POLLHUP
                | if io::owes_reset(self.socket) { libc::POLLERR } else { 0 };
        }
        // Data is news only where the stream is in the ring.
        let data = if self.socket.published.receives_fast() { libc::POLLIN } else { 0 };
        if revents & (data | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLPRI) != 0 {
            self.socket.raise(flag::CARRIER_SPOKE);
        }
        let mut now = revents & (events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL);
        if !self.sends_there(revents) {
            now &= !OUT;
        }
        if revents & libc::POLLIN != 0 {
            now |= events & IN;
        }
        if revents & libc::POLLRDHUP != 0 && self.socket.has(flag::FIN_LATER) {
            // Both ways are shut down, but the kernel does not know yet.
            now |= libc::POLLHUP;
        }
        now
    }

    /// Whether its news comes where it is looked for. (Between hosts it may have been taken back,
    /// and attached to another slot.)
    pub(super) fn is_current(&self) -> bool {
        let s = self.socket;
        s.generation16() == self.generation
            && s.is(State::Attached)
            && s.channel().is_some_and(|c| core::ptr::eq(c, self.channel))
            && s.slot.load(Relaxed) as usize == self.slot
    }
}

/// Candidates that a thread waits for in the kernel, where it would not hear what comes to a ring:
/// nothing comes there meanwhile, also if they are attached.
pub(super) struct Waited<'a>(pub(super) Scratch<'a, (&'static Socket, u32)>);

impl Waited<'_> {
    /// True: it is a candidate, and stays one.
    pub(super) fn add(&mut self, s: &'static Socket) -> bool {
        let generation = s.generation.load(Acquire);
        io::on_waited_for(s);
        if !s.count_poller(generation, |n| n.wrapping_add(1)) {
            return false;
        }
        if !self.0.push((s, generation)) {
            // (More sockets than were counted: another thread has just made one under this number.)
            s.count_poller(generation, |n| n.wrapping_sub(1));
            return false;
        }
        // Who attaches it at this moment has looked at the number before, or will look.
        socket::await_change(s) && s.is(State::Candidate)
    }

    /// Those from there on are not waited for any more. (The same one may stand before them, for
    /// another entry of the list.)
    pub(super) fn forget_from(&mut self, at: usize) {
        for (s, generation) in self.0.iter().skip(at) {
            if s.count_poller(*generation, |n| n.wrapping_sub(1)) && s.is(State::Attached) {
                io::on_poller_gone(s, *generation as u16);
            }
        }
        self.0.truncate(at);
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.forget_from(0);
    }
}
