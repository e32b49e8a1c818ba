//! The connections of a device, and what the thread "netacc-utcp" does with each:
//!
//! ```text
//! seated (offered, then attached) ── out ── leaving ── (conclude) free
//!     └───────────────── leaving ──────────────┘
//! ```

mod again;

use super::reasons::{reason_of, said_of_back, said_of_taken, why_not};
use super::{new_rings, pause_ns};
use crate::channel::Channel;
use crate::io::{self, Came, Departure, Moved, Went};
use crate::lock::lock_end;
use crate::log::{debug_log, warn_log};
use crate::path::PathId;
use crate::slots::{SLOTS, parting};
use crate::socket::{Offer, Socket, State, flag, offered};
use crate::utcp_device::UtcpDevice;
use crate::{numbers, stats, sys, trace, wait};
use again::Room;
use alloc::vec::Vec;
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use netacc_control::stats::{Counter, Path, Reason};
use netacc_proto::switchover::Peer;
use netacc_ring::{Consumer, Producer};
use netacc_utcp::NotBack;

/// Bytes of a ring. (What the engine has of it beside that is at least twice as much.)
const RING: usize = 128 << 10;
/// What cannot be done now is tried again after so long.
const AGAIN_NS: u64 = 5_000_000;
const NO_WAY_NS: u64 = 100_000_000;
/// A connection that never stands still is left where it is after so many tries.
const TRIES: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// Offered, or attached, and in the kernel.
    Seated,
    Out,
    /// In the kernel, on its way back to it.
    Leaving,
    /// Nobody has its ends any more, and it could not be given back yet.
    Orphan,
}

/// One place.
struct Seated {
    socket: Option<&'static Socket>,
    generation: u32,
    stage: Stage,
    /// The ring that we send on, the one that we receive on.
    rings: Option<[NonNull<u8>; 2]>,
    departure: Option<Departure>,
    /// When it is looked at again; 0: when something happens.
    again_at: u64,
    tries: u32,
    room: Room,
}

/// So many connections are out over a device at a time.
pub(super) const CONNECTIONS: u32 = 1024;

/// A device, as its thread has it.
pub(super) struct Owned {
    pub(super) device: &'static UtcpDevice,
    pub(super) channel: &'static Channel,
    seats: Vec<Seated>,
    free: Vec<u16>,
    out: usize,
    /// When a seat is to be looked at again; 0: when something happens.
    pub(super) again_at: u64,
}

impl Owned {
    pub(super) fn new(
        device: &'static UtcpDevice,
        channel: &'static Channel,
    ) -> Result<Owned, Reason> {
        // (The last slot is no connection's: `channel::BY_KERNEL`.)
        let count = (CONNECTIONS as usize).min(SLOTS - 1);
        let (mut seats, mut free) = (Vec::new(), Vec::new());
        seats.try_reserve_exact(count).map_err(|_| Reason::NoMemory)?;
        seats.resize_with(count, || Seated {
            socket: None,
            generation: 0,
            stage: Stage::Free,
            rings: None,
            departure: None,
            again_at: 0,
            tries: 0,
            room: Room::Unasked,
        });
        free.try_reserve_exact(count).map_err(|_| Reason::NoMemory)?;
        free.extend((0..count as u16).rev());
        Ok(Owned { device, channel, seats, free, out: 0, again_at: 0 })
    }

    /// Whether connections are out.
    pub(super) fn is_busy(&self) -> bool {
        self.out > 0
    }

    pub(super) fn next_timer(&self) -> Option<u64> {
        if self.out == 0 { None } else { self.device.take_turn().engine.next_timer() }
    }

    /// Nobody else drives the engine: what is due is done.
    pub(super) fn time(&self) {
        if self.out > 0 {
            self.device.drive();
        }
    }

    /// Looks at the kernel's tables, and at the keeper.
    pub(super) fn look(&self) {
        if self.out > 0 {
            let mut driver = self.device.take_turn();
            numbers::exclusively(|| driver.engine.look(sys::now_ns()));
            driver.turn(self.device, sys::now_ns());
        }
    }

    /// Looks at what is due. `called`: by a forked child, whose connections go back.
    pub(super) fn turn(&mut self, now: u64, called: bool) {
        if called {
            for slot in 0..self.seats.len() {
                let is_called = |s: &Seated| {
                    s.socket.is_some_and(|socket| {
                        socket.generation.load(Acquire) == s.generation
                            && socket.has(flag::CALLED_BACK)
                    })
                };
                if self.seats.get(slot).is_some_and(is_called) {
                    self.device.demote(slot, Reason::InheritedByFork);
                }
            }
        }
        let mut due = Vec::new();
        let device = self.device;
        device.take_dues(|slot| {
            if due.try_reserve(1).is_ok() {
                due.push(slot);
            } else {
                device.is_due(slot);
            }
        });
        if self.again_at != 0 && self.again_at <= now {
            let late = |s: &Seated| s.again_at != 0 && s.again_at <= now;
            let more = self.seats.iter().enumerate().filter(|(_, s)| late(s)).map(|(i, _)| i);
            if due.try_reserve(self.seats.len()).is_ok() {
                due.extend(more);
            }
        }
        for slot in due {
            if let Some(seated) = self.seats.get_mut(slot) {
                seated.again_at = 0;
            }
            self.step(slot);
        }
        let next = self.seats.iter().map(|s| s.again_at).filter(|at| *at != 0).min();
        self.again_at = next.unwrap_or(0);
    }

    // ---- in -------------------------------------------------------------------------------------

    /// Offers a seat to a candidate.
    pub(super) fn seat(
        &mut self,
        s: &'static Socket,
        generation: u32,
        asked: u32,
    ) -> Result<(), Reason> {
        let slot = usize::from(self.free.pop().ok_or(Reason::ChannelFull)?);
        let Some(seated) = self.seats.get_mut(slot) else { return Err(Reason::Internal) };
        let Some(rings) = seated.rings.or_else(|| new_rings(RING)) else {
            self.free.push(slot as u16);
            return Err(Reason::NoMemory);
        };
        (seated.rings, seated.socket, seated.generation) = (Some(rings), Some(s), generation);
        (seated.stage, seated.again_at, seated.tries) = (Stage::Seated, 0, 0);
        seated.room = Room::Unasked;
        self.channel.zero_words(slot);
        let seat = self.device.seat(slot);
        seat.seen_epoch.store(0, SeqCst);
        self.device.forget_leave(slot);
        self.device.set_live(slot, true);
        let offer = Offer {
            channel: self.channel,
            slot: slot as u32,
            tx_ring: rings[0].as_ptr(),
            tx_bytes: RING as u32,
            rx_ring: rings[1].as_ptr(),
            rx_bytes: RING as u32,
            asked,
            whole: RING as u32,
        };
        let made = {
            // Who takes a connection apart holds both.
            let _tx = lock_end(&s.tx_lock);
            let _rx = lock_end(&s.rx_lock);
            let is_open = s.generation.load(Acquire) == generation
                && s.may_be_candidate()
                && s.path() == PathId::Utcp
                && s.offered.is_none();
            is_open && {
                // SAFETY: `offered` is 0: nobody reads it yet, and only this thread writes the
                // offers of such a socket.
                unsafe { *s.offer.get() = offer };
                s.put_on(self.channel, slot);
                s.start(Reason::Agreed);
                s.trace(trace::Event::Offered, (slot as u64) << 8 | Path::Utcp as u64);
                s.offered.happens(offered::Event::Made)
            }
        };
        if made {
            s.is_offered();
        }
        // Closed in that moment: whoever closed it found no offer to give back.
        let over = s.generation.load(SeqCst) != generation
            || !matches!(s.state.now(), State::Candidate | State::Changing | State::Attached);
        if !made || (over && s.offered.happens(offered::Event::Taken)) {
            self.release(slot);
        }
        Ok(())
    }

    /// The slot serves no connection any more.
    fn release(&mut self, slot: usize) {
        let Some(seated) = self.seats.get_mut(slot).filter(|s| s.stage != Stage::Free) else {
            return;
        };
        (seated.socket, seated.stage, seated.again_at) = (None, Stage::Free, 0);
        let departure = seated.departure.take();
        if let Some(at) = self.channel.sockets.get(slot) {
            at.store(core::ptr::null_mut(), Release);
        }
        self.device.set_live(slot, false);
        self.device.forget_leave(slot);
        self.free.push(slot as u16);
        drop(departure);
    }

    // ---- steps ----------------------------------------------------------------------------------

    /// Does with a connection what can be done now.
    fn step(&mut self, slot: usize) {
        let Some(seated) = self.seats.get(slot) else { return };
        let (Some(s), generation) = (seated.socket, seated.generation) else {
            if seated.stage == Stage::Orphan {
                self.orphan(slot);
            }
            return;
        };
        let wanted = self.device.seat(slot).leave.load(SeqCst);
        let leaves = wanted & parting::WANTED != 0;
        let current = s.generation.load(Acquire) == generation;
        match seated.stage {
            Stage::Free | Stage::Orphan => {}
            Stage::Seated if !leaves && current && s.is(State::Attached) => self.go_out(slot, s),
            Stage::Seated if !leaves => {}
            Stage::Seated if !current => {}
            Stage::Seated if s.is(State::Attached) => self.depart(slot, s),
            Stage::Seated if s.take_offer_back() => self.release(slot),
            // (It is being attached.)
            Stage::Seated => self.again(slot, AGAIN_NS),
            Stage::Out if leaves && current && s.is(State::Attached) => self.come_back(slot, s),
            // (Who takes it apart says so.)
            Stage::Out => {}
            Stage::Leaving => self.depart(slot, s),
        }
    }

    fn go_out(&mut self, slot: usize, s: &'static Socket) {
        let Some([tx, rx]) = self.seats.get(slot).and_then(|seated| seated.rings) else { return };
        let pause = pause_ns();
        if pause > 0 {
            // (No try: it is not the connection that does not do.)
            return self.again(slot, pause.max(AGAIN_NS));
        }
        let (device, channel) = (self.device, self.channel);
        let mut taken_with = 0;
        let went = io::take_out_of_kernel(s, s.generation16(), device, |fd| {
            // (What the kernel has to send, and a ring, have room in the engine's buffer.)
            let mut queued: c_int = 0;
            let _ = sys::ioctl(fd, libc::TIOCOUTQ as usize, &mut queued as *mut c_int as usize);
            let mut driver = device.take_turn();
            if pause_ns() > 0 || queued as usize > RING {
                return Err(Went::NotNow);
            }
            let now = sys::now_ns();
            let taken = numbers::exclusively(|| driver.engine.take_over(fd, false, now));
            // (Packets of others may have come with that.)
            driver.serve(device, now);
            let number = taken.map_err(|why| {
                debug_log!("fd {fd}: stays in the kernel: {why:?}");
                why_not(why)
            })?;
            taken_with = driver.engine.carried(number).map_or(0, said_of_taken);
            let out = channel.words(slot, channel.side);
            let inb = channel.words(slot, channel.side ^ 1);
            // SAFETY: words and rings of the slot's own, which live as long as this process; the
            // socket has the other end of each, from 0 on, as these.
            let (consumer, producer) = unsafe {
                (
                    Consumer::new(NonNull::from(out), tx, RING, 0),
                    Producer::new(NonNull::from(inb), rx, RING, 0),
                )
            };
            driver.begin(slot, number, (consumer, out), (producer, inb));
            Ok(())
        });
        match went {
            Went::Out => {
                self.out += 1;
                if let Some(seated) = self.seats.get_mut(slot) {
                    seated.stage = Stage::Out;
                }
                stats::count(Counter::UtcpTakenOut);
                s.trace(trace::Event::TakenOut, taken_with);
                // (It was asked to come back meanwhile, perhaps.)
                device.is_due(slot);
            }
            Went::NotNow => {
                let tries = self.seats.get_mut(slot).map_or(0, |seated| {
                    seated.tries += 1;
                    seated.tries
                });
                if tries > TRIES {
                    device.demote(slot, Reason::UtcpUnfit);
                } else {
                    self.again(slot, AGAIN_NS);
                }
            }
            Went::Never(why) => device.demote(slot, why),
        }
    }

    fn come_back(&mut self, slot: usize, s: &'static Socket) {
        let device = self.device;
        // While there is one a close leaves the carrier to it.
        let departure = Departure::new(s);
        let why = reason_of(device.seat(slot).leave.load(SeqCst));
        let came = io::give_back_to_kernel(s, s.generation16(), (device.seat(slot), why), || {
            let mut driver = device.take_turn();
            let now = sys::now_ns();
            let back = numbers::exclusively(|| driver.end(device, (slot, false), now));
            driver.serve(device, now);
            match back.map(|back| (back.result, back.left)) {
                Some((Ok(given), left)) => {
                    debug_log!("slot {slot}: the kernel has it again: {:?}", given.reason);
                    s.trace(trace::Event::GivenBack, said_of_back(why, given.reason));
                    Came::Back { left }
                }
                Some((Err(NotBack::NoWay(_)), _)) => Came::NoWay,
                Some((Err(NotBack::Lost(errno)), _)) => {
                    warn_log!(
                        "utcp: a connection could not be given back, and is reset: {errno:?}"
                    );
                    Came::Lost
                }
                None => Came::Gone,
            }
        });
        let Some(seated) = self.seats.get_mut(slot) else { return };
        if came == Came::Gone {
            // (Behind which a close may come in again, by this thread.)
            return drop(departure);
        }
        let before = seated.departure.replace(departure);
        match came {
            Came::Back { .. } => {
                seated.stage = Stage::Leaving;
                self.out -= 1;
                stats::count(Counter::UtcpGivenBack);
                self.depart(slot, s);
            }
            Came::Lost => {
                seated.stage = Stage::Leaving;
                self.out -= 1;
                stats::count(Counter::UtcpLost);
                self.break_off(slot, s);
            }
            Came::NoWay => {
                // (Nobody waits for it: that may take long.)
                device.uncount(slot);
                self.again(slot, NO_WAY_NS);
            }
            Came::Gone => {}
        }
        drop(before);
    }

    /// Goes on with one that is in the kernel, and leaves.
    fn depart(&mut self, slot: usize, s: &'static Socket) {
        let (device, channel) = (self.device, self.channel);
        let Some(seated) = self.seats.get_mut(slot) else { return };
        seated.stage = Stage::Leaving;
        if s.generation.load(Acquire) != seated.generation
            || !s.is(State::Attached)
            || device.is_gone(slot)
        {
            return;
        }
        let departure = seated.departure.get_or_insert_with(|| Departure::new(s));
        let (room, came_on) = (core::mem::take(&mut seated.room), s.came_on.load(Relaxed));
        // The far end has seen all that is said. (What it has seen then changes what is said.)
        let mut moved = Moved::Waits;
        for _ in 0..4 {
            let said = channel.words(slot, channel.side ^ 1).quiet[crate::channel::quiet::ACK]
                .load(Acquire);
            device.seat(slot).seen_epoch.store(s.published.epoch.load(Acquire), SeqCst);
            let epoch = device.seat(slot).seen_epoch.load(SeqCst);
            moved = departure.step((epoch, said), Peer::Lives);
            if moved != Moved::Waits {
                break;
            }
        }
        match moved {
            Moved::Waits => self.again(slot, AGAIN_NS),
            Moved::NoRoom => self.await_room(slot, room, s.came_on.load(Relaxed) != came_on),
            Moved::Broken => self.break_off(slot, s),
            Moved::Done => {
                let Some(departure) = seated.departure.take() else { return };
                let why = reason_of(device.seat(slot).leave.load(SeqCst));
                debug_log!("slot {slot}: back on the carrier ({})", why.name());
                if departure.conclude(channel, slot, why, false) {
                    self.release(slot);
                } else {
                    device.forget_leave(slot);
                }
            }
        }
    }

    /// Nothing more can be done for it: its close gives the slot back.
    fn break_off(&mut self, slot: usize, s: &'static Socket) {
        let device = self.device;
        let leave = &device.seat(slot).leave;
        leave.fetch_or(parting::GONE, SeqCst);
        s.trace_once(trace::Event::BrokenOff, 0);
        wait::prod(s);
        io::wake_leavers(s);
        device.uncount(slot);
        if let Some(departure) = self.seats.get_mut(slot).and_then(|s| s.departure.take()) {
            departure.give_up();
        }
    }

    /// Hears which ends are gone since the last time.
    pub(super) fn hear_released(&mut self) {
        let device = self.device;
        device.take_released(|slot| self.released(slot));
    }

    /// Our end of a slot is gone: what is out goes back, and the kernel ends it as it does.
    fn released(&mut self, slot: usize) {
        let Some(seated) = self.seats.get_mut(slot) else { return };
        let departure = seated.departure.take();
        if seated.stage == Stage::Out {
            seated.socket = None;
            seated.stage = Stage::Orphan;
            self.orphan(slot);
        } else {
            self.release(slot);
        }
        drop(departure);
    }

    fn orphan(&mut self, slot: usize) {
        let device = self.device;
        let back = {
            let (mut driver, now) = (device.take_turn(), sys::now_ns());
            let back = numbers::exclusively(|| driver.end(device, (slot, true), now));
            driver.serve(device, now);
            back
        };
        // (What the kernel did not take, its close ends in a reset.)
        let counter = match back.map(|back| (back.result, back.left)) {
            Some((Err(NotBack::NoWay(_)), _)) => {
                // (Nobody waits for it: that may take long.)
                device.uncount(slot);
                return self.again(slot, NO_WAY_NS);
            }
            Some((Ok(_), 0)) => Some(Counter::UtcpGivenBack),
            Some(_) => Some(Counter::UtcpLost),
            None => None,
        };
        self.out -= 1;
        device.seat(slot).moves.fetch_add(1, SeqCst);
        counter.into_iter().for_each(stats::count);
        self.release(slot);
    }
}
