//! Control connections: made, written to, ended, and what becomes of their channels.

use super::possession::{self, PROOFS};
use super::{
    Advert, CHANNEL_BYTES, ControlLink, FOREIGN_LINKS, GREETING_NS, LIB_VERSION, Phase, QUEUE,
    Slot, State, Violation, auth, event_of, record, strangers,
};
use crate::arena::MemoryError;
use crate::channel::{BY_KERNEL, Channel, SLOTS};
use crate::log::{debug_log, warn_log};
use crate::path::Far;
use crate::{control, fd_table, shared, stats, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{ChannelState, Counter, Reason};
use netacc_proto::agreement::{Action, Event};
use netacc_proto::rendezvous::{Hello, Message, Role, Tuple};

/// Faults of peers are logged no more often.
const LOG_EVERY_NS: u64 = 1_000_000_000;

impl State {
    pub(super) fn link(&self, i: usize) -> Option<&ControlLink> {
        self.links.get(i)
    }

    pub(super) fn link_mut(&mut self, i: usize) -> Option<&mut ControlLink> {
        self.links.get_mut(i)
    }

    /// The descriptor of a link, if it still is in that life and is read from.
    pub(crate) fn readable(&self, i: usize, serial: u32) -> Option<c_int> {
        self.link(i).filter(|l| l.serial == serial && l.is_read()).map(|l| l.fd)
    }

    /// A place for a new link; `foreign`: to another user's process.
    pub(super) fn free_link(&self, foreign: bool) -> Option<usize> {
        let me = sys::geteuid();
        if strangers::is_overrun() {
            return None;
        }
        if foreign
            && self.links.iter().filter(|l| l.phase != Phase::Free && l.peer.uid != me).count()
                >= FOREIGN_LINKS
        {
            return None;
        }
        self.links.iter().position(|l| l.phase == Phase::Free)
    }

    /// Makes a link of a connected control socket (one of the library's own, which is closed when
    /// that fails). `user`: whom its maker was, as its peer sees it (unix(7), SO_PEERCRED): of an
    /// acceptor at listen(2).
    pub(crate) fn open_link(&mut self, fd: c_int, role: Role, user: u32) -> Option<usize> {
        let opened = self.try_open_link(fd, role, user);
        if opened.is_none() {
            strangers::close(fd);
        }
        opened
    }

    fn try_open_link(&mut self, fd: c_int, role: Role, user: u32) -> Option<usize> {
        let peer = auth::peer_of(fd)?;
        let i = self.free_link(peer.uid != sys::geteuid())?;
        if role == Role::Connector {
            // Before its own greeting, and long before the memory comes.
            strangers::take_descriptors(fd);
        }
        if sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32) < 0 {
            return None;
        }
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let mut event =
            libc::epoll_event { events: libc::EPOLLIN as u32, u64: event_of(i, serial) };
        // SAFETY: a live event.
        if unsafe { sys::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, fd, &mut event) } < 0 {
            return None;
        }
        let hello = Message::Hello(Hello::new(LIB_VERSION, sys::getpid(), role));
        if control::send(fd, user, &hello, -1) < 0 {
            return None;
        }
        let number = possession::number_of(fd, role);
        let l = self.link_mut(i)?;
        *l = ControlLink {
            phase: Phase::Greeting,
            serial,
            fd,
            role,
            peer,
            user,
            number,
            since: sys::now_ns(),
            ..ControlLink::new()
        };
        Some(i)
    }

    /// Sends, or queues behind what could not be sent. Service thread only.
    pub(super) fn post(&mut self, i: usize, message: Message, fd: c_int) -> Result<(), Violation> {
        let Some(l) = self.link_mut(i).filter(|l| l.is_read()) else {
            return Err(Violation::Ended);
        };
        if l.queue.is_empty() {
            match control::send(l.fd, l.user, &message, fd) {
                0 => return Ok(()),
                e if e == -(libc::EAGAIN as isize) => {}
                _ => return Err(Violation::Ended),
            }
        }
        if l.queue.len() >= QUEUE {
            return Err(Violation::Stuck);
        }
        if l.queue.try_reserve(1).is_err() {
            return Err(Violation::NoMemory);
        }
        let own = if message.fds() != 0 { copy_internal(fd) } else { -1 };
        if message.fds() != 0 && own < 0 {
            return Err(Violation::NoDescriptor);
        }
        l.queue.push_back((message, own));
        self.want_room(i);
        Ok(())
    }

    /// Sends now or not at all: the way of application threads, and of what is tried again later.
    pub(super) fn try_send(&mut self, i: usize, message: Message) -> bool {
        let Some(l) = self.link_mut(i).filter(|l| l.is_read()) else { return false };
        if l.queue.is_empty() {
            match control::send(l.fd, l.user, &message, -1) {
                0 => return true,
                e if e != -(libc::EAGAIN as isize) => return false,
                _ => {}
            }
        }
        self.want_room(i);
        false
    }

    pub(super) fn want_room(&mut self, i: usize) {
        let epoll = self.epoll;
        if let Some(l) = self.link_mut(i).filter(|l| !l.blocked) {
            l.blocked = true;
            let mut event = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLOUT) as u32,
                u64: event_of(i, l.serial),
            };
            // SAFETY: a live event.
            let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, l.fd, &mut event) };
        }
    }

    /// There is room: sends what waits. Returns the connections that can be agreed on now.
    pub(crate) fn has_room(&mut self, i: usize) -> Result<Vec<Tuple>, Violation> {
        let epoll = self.epoll;
        let Some(l) = self.links.get_mut(i) else { return Ok(Vec::new()) };
        while let Some((message, fd)) = l.queue.front() {
            match control::send(l.fd, l.user, message, *fd) {
                0 => {}
                e if e == -(libc::EAGAIN as isize) => return Ok(Vec::new()),
                _ => return Err(Violation::Ended),
            }
            if let Some((_, fd)) = l.queue.pop_front().filter(|(_, fd)| *fd >= 0) {
                fd_table::close_internal(fd);
            }
        }
        l.blocked = false;
        let mut event =
            libc::epoll_event { events: libc::EPOLLIN as u32, u64: event_of(i, l.serial) };
        // SAFETY: a live event.
        let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, l.fd, &mut event) };
        let put_off = core::mem::take(&mut l.put_off);
        let mut left_out = false;
        if l.role == Role::Connector {
            self.announce_all(i);
        }
        let mut tuples = Vec::new();
        if let Some(t) = self.tables.as_ref().filter(|_| put_off) {
            for (_, tuple, _) in t.candidates.iter().filter(|(_, _, c)| c.link == i) {
                if tuples.try_reserve(1).is_err() {
                    // The rest the next time.
                    left_out = true;
                    break;
                }
                tuples.push(*tuple);
            }
        }
        if let Some(l) = self.links.get_mut(i) {
            l.put_off |= left_out;
        }
        Ok(tuples)
    }

    /// Ends a link. Its channel, if sockets are on it, stays until they have left.
    pub(crate) fn end_link(&mut self, i: usize, why: Violation) {
        let epoll = self.epoll;
        let Some(l) = self.links.get_mut(i).filter(|l| l.is_read()) else { return };
        let fault = why == Violation::Malformed;
        if fault {
            stats::count(Counter::PeerCorrupt);
        } else if why == Violation::Impostor {
            stats::count(Counter::AuthFailures);
        }
        if fault || why == Violation::Impostor {
            if may_log(&mut self.logged_at) {
                let what = if fault {
                    "broke the rules of the agreement"
                } else {
                    "is not, or no longer, who made the connection"
                };
                warn_log!(
                    "process {} (user {}) {what}: its channel is given up",
                    l.peer.pid,
                    l.peer.uid
                );
            }
        } else {
            debug_log!("link to process {} ended: {why:?}", l.peer.pid);
        }
        let _ = control::send(l.fd, l.user, &Message::Bye, -1);
        // SAFETY: deleting takes no event.
        let _ = unsafe { sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, l.fd, core::ptr::null_mut()) };
        let _ = sys::shutdown(l.fd, libc::SHUT_RDWR);
        for (_, fd) in l.queue.drain(..) {
            if fd >= 0 {
                fd_table::close_internal(fd);
            }
        }
        l.phase = Phase::Dead;
        l.candidates = 0;
        if let Some(c) = l.channel {
            self.to_watch |= 1 << i;
            // The descriptor itself stays ours until the last user left, so that nobody writes into
            // another's.
            c.control.store(-1, Release);
            c.died_at.store(sys::now_ns(), Relaxed);
            c.dead.store(1, SeqCst);
            crate::wait::channel_died(c);
            stats::count(if fault { Counter::ChannelsFailed } else { Counter::ChannelsClosed });
            let state = if fault { ChannelState::Failed } else { ChannelState::Draining };
            record(i, |r| {
                if !is_guilty(r) {
                    r.state.store(state as u32, Relaxed);
                }
            });
        }
        let reason = match why {
            Violation::OtherVersion => Reason::VersionMismatch,
            Violation::Impostor => Reason::NotAuthenticated,
            Violation::Malformed => Reason::PeerCorrupt,
            Violation::NoDescriptor => Reason::NoDescriptor,
            Violation::NoMemory => Reason::NoMemory,
            _ => Reason::ChannelFailed,
        };
        let connector = l.role == Role::Connector;
        if connector {
            self.forget_names(
                i,
                matches!(
                    why,
                    Violation::Malformed
                        | Violation::Impostor
                        | Violation::OtherVersion
                        | Violation::Withheld
                ),
            );
        }
        self.forget_link(i, reason);
        self.recycle(i);
    }

    /// The peer of a channel has broken the rules on a connection. Its process and user, if that is
    /// to be logged.
    pub(crate) fn accuse(&mut self, channel: &Channel) -> Option<(u32, u32)> {
        let i = self.link_with(channel)?;
        record(i, |r| r.state.store(ChannelState::Corrupt as u32, Relaxed));
        let peer = self.link(i)?.peer;
        may_log(&mut self.logged_at).then_some((peer.pid, peer.uid))
    }

    /// Takes a dead link out of the tables. For those of our sockets that nobody else was told of,
    /// successors are looked for.
    fn forget_link(&mut self, i: usize, reason: Reason) {
        let gone = Event::LinkGone { link: i, now: sys::now_ns() };
        let mut soon = 0;
        self.end_proofs_over(i);
        let Some(t) = self.tables.as_mut() else { return };
        let mut at = t.candidates.oldest();
        while let Some(key) = at {
            at = t.candidates.after(key);
            if t.candidates.get(key).is_some_and(|(_, c)| c.link == i) {
                t.candidates.remove(key);
            }
        }
        let mut at = t.connected.oldest();
        while let Some(key) = at {
            at = t.connected.after(key);
            let Some(m) = t.connected.get_mut(key) else { continue };
            if m.agreement.step(gone) == Action::Seek && m.is_current() {
                m.socket.set_reason(reason);
                soon = m.agreement.due();
                t.connected.make_newest(key);
            }
        }
        t.accepted.each_mut(|m| {
            let was_offered = m.agreement.offered() == Some(i);
            m.agreement.step(gone);
            if was_offered && m.is_current() {
                m.socket.set_reason(reason);
            }
        });
        if soon != 0 {
            self.due(soon);
        }
    }

    /// Frees a dead link when no socket is on its channel any more.
    pub(crate) fn recycle(&mut self, i: usize) {
        let Some(l) = self.links.get_mut(i).filter(|l| l.phase == Phase::Dead && l.users() == 0)
        else {
            return;
        };
        if let Some(c) = l.channel {
            c.close_doorbells();
            shared::remove(c.mem.cast());
            // SAFETY: the mapping is the channel's own; a late reader finds zeros, which say
            // nothing.
            let _ = unsafe { sys::map_over(c.mem.cast(), -1, CHANNEL_BYTES) };
            // Who has broken the rules is named until the record is used again.
            record(i, |r| {
                if !is_guilty(r) {
                    r.state.store(ChannelState::Free as u32, Relaxed);
                }
            });
        }
        let arenas = l.pool.as_ref().map_or(l.arenas.as_slice(), |p| p.arenas());
        for a in arenas {
            // SAFETY: rings are used by attached sockets alone, and there are none.
            unsafe { a.unmap() };
        }
        if l.fd >= 0 {
            strangers::close(l.fd);
        }
        *l = ControlLink::new();
    }

    /// Makes room by ending the link that has been of no use for longest. Service thread only.
    pub(crate) fn evict_idle(&mut self) -> bool {
        let now = sys::now_ns();
        let idle = |l: &(usize, &ControlLink)| match l.1.phase {
            Phase::Greeting => now.saturating_sub(l.1.since) > GREETING_NS,
            _ => l.1.is_idle(),
        };
        let mut all = self.links.iter().enumerate();
        let gone = all.find(|l| l.1.is_read() && l.1.is_orphan());
        let victim = gone
            .or_else(|| self.links.iter().enumerate().filter(idle).min_by_key(|l| l.1.since))
            .map(|l| l.0);
        if let Some(i) = victim {
            self.end_link(i, Violation::Evicted);
        }
        victim.is_some()
    }

    /// The channel of a link, made of `memfd`.
    pub(super) fn make_channel(
        &mut self,
        i: usize,
        memfd: c_int,
    ) -> Result<&'static Channel, MemoryError> {
        let Some(l) = self.links.get(i) else { return Err(MemoryError::NoMemory) };
        let side = match l.role {
            Role::Acceptor => 0,
            Role::Connector => 1,
        };
        let (pid, user, fd) = (l.peer.pid, l.user, l.fd);
        let Some(shell) = self.shells.get_mut(i).and_then(|s| s.get_mut(side)) else {
            return Err(MemoryError::NoMemory);
        };
        if shell.is_null() {
            let mem = sys::map_private(CHANNEL_BYTES);
            if mem.is_null() {
                return Err(MemoryError::NoMemory);
            }
            // SAFETY: from here on something is always mapped there.
            let Some(at) = (unsafe { Channel::make(mem.cast(), side, Far::Process) }) else {
                // SAFETY: mapped above, and nobody has seen it.
                unsafe { sys::unmap(mem, CHANNEL_BYTES) };
                return Err(MemoryError::NoMemory);
            };
            *shell = at;
        }
        let at = *shell;
        // SAFETY: `mem` was written when the shell was made.
        let mem = unsafe { (*at).mem };
        // SAFETY: nobody uses this channel: its link had been recycled, or never was.
        if !unsafe { shared::map_over(mem.cast(), memfd, CHANNEL_BYTES) } {
            // The place must stay readable for whoever comes late.
            // SAFETY: as above.
            let _ = unsafe { sys::map_over(mem.cast(), -1, CHANNEL_BYTES) };
            return Err(MemoryError::NoMemory);
        }
        // SAFETY: as above.
        unsafe {
            (&raw mut (*at).peer_pid).write_volatile(pid);
            (&raw mut (*at).own_user).write_volatile(user);
        }
        // SAFETY: valid from here on for ever: zeroed atomics, and the fields just written.
        let c: &'static Channel = unsafe { &*at };
        c.doorbells.iter().chain(&c.own_doorbells).for_each(|d| d.store(-1, Relaxed));
        c.owed.iter().for_each(|w| w.store(0, Relaxed));
        c.users.store(0, Relaxed);
        c.dead.store(0, Relaxed);
        c.control.store(fd, Release);
        let l = self.links.get_mut(i).ok_or(MemoryError::NoMemory)?;
        l.slots.try_reserve_exact(SLOTS).map_err(|_| MemoryError::NoMemory)?;
        l.free.try_reserve_exact(SLOTS).map_err(|_| MemoryError::NoMemory)?;
        l.slots.resize(SLOTS, Slot::FREE);
        if l.role == Role::Acceptor {
            l.free.extend((0..BY_KERNEL as u16).rev());
        }
        l.channel = Some(c);
        stats::count(Counter::ChannelsOpened);
        record(i, |r| {
            r.peer_pid.store(pid, Relaxed);
            r.slots_used.store(0, Relaxed);
            r.slots_total.store(BY_KERNEL as u32, Relaxed);
            r.arena_bytes.store(0, Relaxed);
            r.connections_total.store(0, Relaxed);
            r.opened_unix_ns.store(sys::unix_ns(), Relaxed);
            r.state.store(ChannelState::Open as u32, Release);
        });
        Ok(c)
    }

    /// In a forked child that gives up what it inherited: nobody here uses the parent's channels
    /// any more.
    pub(crate) fn give_up_inherited(&mut self) {
        for l in self.links.iter_mut().filter(|l| l.phase == Phase::Inherited) {
            if let Some(c) = l.channel {
                c.close_doorbells();
                c.users.store(0, Release);
                c.control.store(-1, Release);
                c.dead.store(1, SeqCst);
            }
            if l.fd >= 0 {
                fd_table::close_internal(l.fd);
            }
            *l = ControlLink::new();
        }
    }

    /// In a forked child: forgets what is the parent's alone, and keeps what inherited sockets
    /// need.
    ///
    /// Another thread of the parent may have been in the middle of a change, so nothing that owns
    /// memory is trusted.
    pub(crate) fn after_fork(&mut self) {
        for a in &mut self.adverts {
            if a.fd >= 0 {
                fd_table::close_internal(a.fd);
            }
            *a = Advert::NONE;
        }
        for fd in [core::mem::replace(&mut self.epoll, -1)] {
            if fd >= 0 {
                fd_table::close_internal(fd);
            }
        }
        for l in &mut self.links {
            let mut old = core::mem::replace(l, ControlLink::new());
            let channel = old.channel.take();
            let keep =
                channel.is_some_and(|c| c.users.load(Acquire) != 0) && old.phase != Phase::Free;
            if let Some(c) = channel {
                // What the peer was passed are the parent's doorbells. Its own are still needed
                // where sockets are.
                let theirs = if keep { &[][..] } else { &c.doorbells[..] };
                for d in c.own_doorbells.iter().chain(theirs) {
                    let fd = d.swap(-1, AcqRel);
                    if fd >= 0 {
                        fd_table::close_internal(fd);
                    }
                }
            }
            if keep {
                // Sockets of the parent's live on this channel, and now in this process too.
                *l = ControlLink {
                    phase: Phase::Inherited,
                    serial: old.serial,
                    fd: old.fd,
                    role: old.role,
                    peer: old.peer,
                    channel,
                    ..ControlLink::new()
                };
            } else if old.fd >= 0 && old.phase != Phase::Free {
                fd_table::close_internal(old.fd);
            }
            core::mem::forget(old);
        }
        core::mem::forget(self.tables.take());
        core::mem::forget(core::mem::take(&mut self.to_agree));
        // The parent goes on with its proofs, on the same sockets.
        self.proofs = [None; PROOFS];
        core::mem::forget(core::mem::take(&mut self.turns_put_off));
        self.next_proof_end = 0;
        core::mem::forget(core::mem::take(&mut self.ports));
        core::mem::forget(core::mem::take(&mut self.port_numbers));
        (self.next_try, self.wake) = (0, false);
        self.to_recycle = false;
        self.to_watch = 0;
        self.next_expiry = 0;
        self.next_advert_look = 0;
        self.process = 0;
    }
}

/// Whether a fault of a peer's is logged: once in a while.
fn may_log(logged_at: &mut u64) -> bool {
    let now = sys::now_ns();
    let quiet = *logged_at != 0 && now.saturating_sub(*logged_at) < LOG_EVERY_NS;
    if !quiet {
        *logged_at = now;
    }
    !quiet
}

/// A record says that its channel's peer has broken the rules.
fn is_guilty(r: &netacc_control::stats::ChannelRecord) -> bool {
    let state = r.state.load(Relaxed);
    state == ChannelState::Corrupt as u32 || state == ChannelState::Failed as u32
}

/// A second descriptor for one of the library's own, which is the library's own too.
fn copy_internal(fd: c_int) -> c_int {
    if let Some(error) = crate::inject::call() {
        return error;
    }
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize) as c_int;
    if copy >= 0 {
        fd_table::set(copy, fd_table::Entry::Internal);
    }
    copy
}
