//! Connections that are out of the kernel (`docs/design/utcp.md`), as data calls and waits know
//! them: the engine of each device, which plays the far end of their rings, and who drives it.
//!
//! Whoever has the *turn* of a device drives its engine: takes packets, and brings bytes between
//! the engine and the rings. A thread of the application's that waits or receives tries to have it;
//! what it wanted done it has marked ([`UtcpDevice::mark`]), and who has the turn looks at the
//! marks before it gives it up, and behind that. A send waits for the turn: what it has taken is
//! with the engine, and so with the keeper, before it returns. Who has the turn waits for no end's
//! lock, and makes no descriptor.
//!
//! A byte that was put into a ring stays there until the peer's TCP has it, and a byte that came
//! stays with the engine until the application has taken it from the ring. So the way back needs
//! nothing but the engine.

mod troubles;

use crate::lock::{Guard, Mutex};
use crate::slots::{SLOTS, parting};
use crate::trace::Event;
use crate::{process, sys};
use alloc::vec::Vec;
use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence,
};
use netacc_control::stats::Reason;
use netacc_packet::Device;
use netacc_ring::{Consumer, Producer, RingWords};
use netacc_utcp::{GivenBack, NotBack, Over};
use troubles::Troubles;

pub(crate) type Engine = netacc_utcp::Engine<Device>;

/// What is new on a slot, for whoever waits there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Bytes,
    Room,
    /// For its trace.
    Happened(Event, u64),
}

/// One connection, as everybody may see it.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Seat {
    /// As [`parting`] says it.
    pub(crate) leave: AtomicU32,
    /// The epoch of our announcement that the far end has heard of.
    pub(crate) seen_epoch: AtomicU32,
    /// Odd: the carrier is out, or on its way; counts how often it went, and came back.
    pub(crate) moves: AtomicU32,
}

/// What the engine has of a connection that is out.
pub(crate) struct Inner {
    /// Its number with the engine.
    number: u32,
    /// The ring that we send on, its words, and how many bytes behind its head are with the engine.
    out: Consumer,
    out_words: &'static RingWords,
    taken: u64,
    /// Bytes of the ring that the peer has.
    acknowledged: u64,
    /// What the engine had to send before the first byte of the ring.
    before: u64,
    /// The ring that we receive on, its words, how many of the engine's unread bytes are in it, and
    /// how far they were taken from there.
    inb: Producer,
    inb_words: &'static RingWords,
    shown: u64,
    read: u64,
    troubles: Troubles,
}

/// A device's engine, and its connections by their slots.
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    inner: Vec<Option<Inner>>,
    /// The slot of each of the engine's numbers.
    slots: Vec<u16>,
    /// When packets were last taken, in nanoseconds.
    turned_at: u64,
    /// When timers were last looked at ([`sys::ticks`]).
    looked_at: u64,
}

/// Who only sends takes packets so often.
const TURN_NS: u64 = 20_000;
/// Where no packet has come timers are looked at so often: a look that finds nothing has to be as
/// short as can be, because a thread that polls makes little else.
const LOOK_NS: u32 = 20_000;

/// What is left to do for a connection that is back.
pub(crate) struct Returned {
    pub(crate) result: Result<GivenBack, NotBack>,
    /// The last bytes of the ring that are not in the kernel.
    pub(crate) left: u64,
}

/// A device, with the channel of its connections.
pub(crate) struct UtcpDevice {
    seats: [Seat; SLOTS],
    /// Slots that somebody has put something into, or taken something from.
    marks: [AtomicU64; SLOTS / 64],
    marked: AtomicBool,
    /// Slots that the thread is to look at.
    dues: [AtomicU64; SLOTS / 64],
    /// Slots whose end of ours is gone: said without memory, as it must not be lost.
    released: [AtomicU64; SLOTS / 64],
    /// Slots that serve a connection.
    live: [AtomicU64; SLOTS / 64],
    turn: Mutex<Driver>,
    /// The channel, and how whoever waits on it is told.
    owner: AtomicPtr<()>,
    tell: fn(*mut (), usize, News),
    pub(crate) interface: u32,
    /// By which to wait for packets, and for changes of the kernel's tables.
    pub(crate) packets: c_int,
    pub(crate) tables: c_int,
    /// How often the engine was driven, by whoever.
    pub(crate) visits: AtomicU64,
}

/// So many a process has.
pub(crate) const DEVICES: usize = 4;
static LIST: [AtomicPtr<UtcpDevice>; DEVICES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; DEVICES];

/// Those of this process.
#[inline]
pub(crate) fn devices() -> impl Iterator<Item = &'static UtcpDevice> {
    // SAFETY: null, or a leaked box.
    LIST.iter().filter_map(|at| unsafe { at.load(Acquire).as_ref() })
}

/// One more. False: there are as many as there may be. The thread "netacc-utcp" only.
pub(crate) fn add(device: &'static UtcpDevice) -> bool {
    let free = LIST.iter().find(|at| at.load(Relaxed).is_null());
    free.map(|at| at.store(core::ptr::from_ref(device).cast_mut(), Release)).is_some()
}

/// A thread of the application's looks whether anything has come.
#[inline]
pub(crate) fn progress() {
    devices().for_each(|device| {
        device.drive();
    });
}

/// A thread of the application's is about to sleep. What comes wakes it by itself: it waits for the
/// device's packets, too ([`crate::wait`]). The timers are the thread's.
pub(crate) fn before_sleep() {
    progress();
}

impl UtcpDevice {
    pub(crate) fn new(
        engine: Engine,
        interface: u32,
        capacity: usize,
        owner: *mut (),
        tell: fn(*mut (), usize, News),
    ) -> Option<&'static UtcpDevice> {
        let [packets, tables] = {
            let mut all = engine.descriptors();
            [all.next().unwrap_or(-1), all.next().unwrap_or(-1)]
        };
        let (mut inner, mut slots) = (Vec::new(), Vec::new());
        inner.try_reserve_exact(SLOTS).ok()?;
        inner.resize_with(SLOTS, || None);
        slots.try_reserve_exact(capacity).ok()?;
        slots.resize(capacity, 0);
        let at =
            core::ptr::NonNull::new(sys::map_own(size_of::<UtcpDevice>()))?.cast::<UtcpDevice>();
        // SAFETY: fresh zeroed memory of that size, aligned to pages, which is never taken away;
        // all that is not written here may be zero.
        unsafe {
            let at = at.as_ptr();
            (&raw mut (*at).turn).write(Mutex::new(Driver::new(engine, inner, slots)));
            (&raw mut (*at).owner).write(AtomicPtr::new(owner));
            (&raw mut (*at).tell).write(tell);
            (&raw mut (*at).interface).write(interface);
            (&raw mut (*at).packets).write(packets);
            (&raw mut (*at).tables).write(tables);
            Some(&*at)
        }
    }

    pub(crate) fn set_owner(&self, owner: *mut ()) {
        self.owner.store(owner, Release);
    }

    #[expect(clippy::indexing_slicing, reason = "masked: SLOTS is a power of two")]
    pub(crate) fn seat(&self, slot: usize) -> &Seat {
        &self.seats[slot & (SLOTS - 1)]
    }

    /// The turn, as soon as nobody has it. The thread "netacc-utcp" only.
    pub(crate) fn take_turn(&self) -> Guard<'_, Driver> {
        self.turn.lock()
    }

    // ---- marks ----------------------------------------------------------------------------------

    fn mark(&self, slot: usize) {
        if let Some(word) = self.marks.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), SeqCst);
        }
        self.marked.store(true, SeqCst);
    }

    /// Calls `f` with each slot that was marked in these words.
    fn take(words: &[AtomicU64], mut f: impl FnMut(usize)) {
        for (i, word) in words.iter().enumerate().filter(|(_, w)| w.load(Relaxed) != 0) {
            let mut bits = word.swap(0, SeqCst);
            while bits != 0 {
                f(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// The thread is to look at a slot.
    pub(crate) fn is_due(&self, slot: usize) {
        if let Some(word) = self.dues.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), SeqCst);
        }
        wake();
    }

    /// Slots that the thread was to look at since the last time.
    pub(crate) fn take_dues(&self, f: impl FnMut(usize)) {
        Self::take(&self.dues, f);
    }

    /// Our end of a slot is no longer used: the thread is to take back what is out.
    pub(crate) fn is_released(&self, slot: usize) {
        if let Some(word) = self.released.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), SeqCst);
        }
        wake();
    }

    /// Slots that were released since the last time.
    pub(crate) fn take_released(&self, f: impl FnMut(usize)) {
        Self::take(&self.released, f);
    }

    /// A slot serves a connection from here on, or does not any more.
    pub(crate) fn set_live(&self, slot: usize, live: bool) {
        let Some(word) = self.live.get(slot / 64) else { return };
        if live {
            word.fetch_or(1 << (slot % 64), SeqCst);
        } else {
            word.fetch_and(!(1 << (slot % 64)), SeqCst);
        }
    }

    /// By which to wait for packets, if any can come for a connection; -1: none can.
    pub(crate) fn awaited_packets(&self) -> c_int {
        let is_live = self.live.iter().any(|word| word.load(SeqCst) != 0);
        if is_live { self.packets } else { -1 }
    }

    /// Its packets' descriptor said that it has failed, as when the device goes down. It says so
    /// until somebody asks for the error, and wakes whoever would sleep.
    #[cold]
    pub(crate) fn hear_failure(&self) {
        let mut error: c_int = 0;
        let _ = sys::getsockopt(self.packets, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }

    /// Calls `f` with each slot that serves a connection.
    pub(crate) fn each_live(&self, f: impl Fn(usize)) {
        for (i, word) in self.live.iter().enumerate() {
            let mut bits = word.load(SeqCst);
            while bits != 0 {
                f(i * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    // ---- the far end ----------------------------------------------------------------------------

    /// Bytes were put into a slot's ring: they are sent.
    pub(crate) fn kick(&self, slot: usize) {
        if self.seat(slot).moves.load(SeqCst) & 1 == 0 {
            // It is the kernel's still: what has changed is the thread's to see.
            return;
        }
        if let Some(mut driver) = self.turn.lock_unless_mine() {
            let now = sys::now_ns();
            driver.visit(self, slot, now);
            // (Who only sends drives the engine, too.)
            if now.saturating_sub(driver.turned_at) >= TURN_NS {
                driver.turn(self, now);
            } else {
                driver.serve(self, now);
            }
        } else {
            // A handler has interrupted this very thread in it.
            self.mark(slot);
        }
        self.serve_marks();
    }

    /// Bytes were taken from a slot's ring: they are not unread any more, should the process be
    /// killed, and their room is the peer's.
    pub(crate) fn consumed(&self, slot: usize) {
        if let Some(mut driver) = self.turn.try_lock() {
            driver.hear_read(self, slot);
        } else {
            self.mark(slot);
        }
        self.serve_marks();
    }

    /// An announcement, an acknowledgement or a request of ours has changed.
    pub(crate) fn words_changed(&self, slot: usize) {
        if self.seat(slot).moves.load(SeqCst) & 1 == 0 {
            self.is_due(slot);
        }
    }

    /// See [`crate::path::Far::demote`]. There is no way back for a while.
    pub(crate) fn demote(&self, slot: usize, why: Reason) {
        LEAVING.fetch_add(1, SeqCst);
        let wanted = (why as u32) << parting::REASON | parting::WANTED | parting::COUNTED;
        if self.seat(slot).leave.compare_exchange(0, wanted, SeqCst, Relaxed).is_err() {
            has_left();
        }
        self.is_due(slot);
    }

    /// See [`crate::path::Far::is_gone`].
    pub(crate) fn is_gone(&self, slot: usize) -> bool {
        self.seat(slot).leave.load(SeqCst) & parting::GONE != 0
    }

    /// A slot serves no connection any more.
    pub(crate) fn forget_leave(&self, slot: usize) {
        if self.seat(slot).leave.swap(0, SeqCst) & parting::COUNTED != 0 {
            has_left();
        }
    }

    /// Whoever waits for a slot to be left need not any more, although it stays as it is.
    pub(crate) fn uncount(&self, slot: usize) {
        if self.seat(slot).leave.fetch_and(!parting::COUNTED, SeqCst) & parting::COUNTED != 0 {
            has_left();
        }
    }

    // ---- the engine -----------------------------------------------------------------------------

    /// Serves what is marked, unless somebody else does.
    fn serve_marks(&self) {
        // Who gives the turn up looks once more: either that finds the mark, or this finds the turn
        // free.
        while self.marked.load(SeqCst) {
            let Some(mut driver) = self.turn.try_lock() else { return };
            driver.turn(self, sys::now_ns());
        }
        rouse();
    }

    /// Takes what has come, and serves what is marked, unless somebody else does. True: there was
    /// something.
    pub(crate) fn drive(&self) -> bool {
        let Some(mut driver) = self.turn.try_lock() else { return false };
        // (By who has the turn alone.)
        self.visits.store(self.visits.load(Relaxed).wrapping_add(1), Relaxed);
        let ticks = sys::ticks();
        let due = ticks.wrapping_sub(driver.looked_at) >= sys::ticks_of_ns(LOOK_NS)
            || driver.engine.has_packets()
            || self.marked.load(SeqCst);
        let busy = due && {
            driver.looked_at = ticks;
            driver.turn(self, sys::now_ns())
        };
        drop(driver);
        if self.marked.load(SeqCst) {
            self.serve_marks();
        }
        if busy {
            rouse();
        }
        busy
    }
}

impl Driver {
    const fn new(engine: Engine, inner: Vec<Option<Inner>>, slots: Vec<u16>) -> Driver {
        Driver { engine, inner, slots, turned_at: 0, looked_at: 0 }
    }

    /// A connection is out from here on, by its number with the engine; both rings are empty.
    pub(crate) fn begin(
        &mut self,
        slot: usize,
        number: u32,
        (out, out_words): (Consumer, &'static RingWords),
        (inb, inb_words): (Producer, &'static RingWords),
    ) {
        let before = self.engine.carried(number).map_or(0, |carried| carried.written());
        let inner = Inner {
            number,
            out,
            out_words,
            taken: 0,
            acknowledged: 0,
            before,
            inb,
            inb_words,
            shown: 0,
            read: 0,
            troubles: Troubles::default(),
        };
        if let Some(at) = self.inner.get_mut(slot) {
            *at = Some(inner);
        }
        if let Some(at) = self.slots.get_mut(number as usize) {
            *at = slot as u16;
        }
    }

    fn serve_marks(&mut self, device: &UtcpDevice, now: u64) {
        device.marked.store(false, SeqCst);
        UtcpDevice::take(&device.marks, |slot| self.visit(device, slot, now));
    }

    /// Takes packets, and does what is due. True: there was something.
    pub(crate) fn turn(&mut self, device: &UtcpDevice, now: u64) -> bool {
        self.turned_at = now;
        let has_taken = self.engine.take(now);
        self.serve(device, now) | has_taken
    }

    /// Does what the engine, a visit or others have left to do; whoever has the turn does so before
    /// it gives it up. True: there was something.
    pub(crate) fn serve(&mut self, device: &UtcpDevice, now: u64) -> bool {
        let mut busy = false;
        while let Some(number) = self.engine.next_news() {
            busy = true;
            if let Some(slot) = self.slots.get(number as usize).copied() {
                self.visit(device, slot.into(), now);
            }
        }
        if device.marked.load(SeqCst) {
            busy = true;
            self.serve_marks(device, now);
        }
        while let Some((number, over)) = self.engine.next_over() {
            if let Some(slot) = self.slots.get(number as usize).copied() {
                device.demote(slot.into(), why(over));
            }
        }
        busy
    }

    /// The application has taken bytes from a slot's ring. (Packets that have come meanwhile wait
    /// until somebody waits for them.)
    fn hear_read(&mut self, device: &UtcpDevice, slot: usize) {
        let Some(Some(inner)) = self.inner.get_mut(slot) else { return };
        let Some(carried) = self.engine.carried(inner.number) else { return };
        inner.hear_read(carried);
        // There is more than the ring had room for, or a window that is worth it is told at once.
        if carried.readable() > inner.shown || carried.connection().acknowledges() {
            let now = sys::now_ns();
            self.visit(device, slot, now);
            self.serve(device, now);
        }
    }

    /// Brings bytes between the engine and a slot's rings.
    pub(crate) fn visit(&mut self, device: &UtcpDevice, slot: usize, now: u64) {
        let Some(Some(inner)) = self.inner.get_mut(slot) else { return };
        let Some(carried) = self.engine.carried(inner.number) else { return };
        // First: its room goes out with what is sent.
        inner.hear_read(carried);
        loop {
            // (Of a ring of this process's own the words say the truth.)
            let there = inner.out.refresh().unwrap_or(0) as u64;
            let count = there.saturating_sub(inner.taken).min(carried.writable());
            if count == 0 {
                break;
            }
            let (out, mut at) = (&mut inner.out, inner.taken);
            carried.write_with(now, count, |parts| {
                for part in parts {
                    // SAFETY: a live slice.
                    let _ = unsafe { out.peek(at as usize, part.as_mut_ptr(), part.len()) };
                    at += part.len() as u64;
                }
            });
            inner.taken += count;
        }
        let number = inner.number;
        self.engine.after(number, now);
        let Some(Some(inner)) = self.inner.get_mut(slot) else { return };
        let Some(carried) = self.engine.carried(number) else { return };
        let tell = |news| (device.tell)(device.owner.load(Acquire), slot, news);
        if inner.show(carried) {
            tell(News::Bytes);
        }
        if inner.free(carried.connection().acknowledged()) {
            tell(News::Room);
        }
        if inner.troubles.is_due(carried.connection().counters(), now, false) {
            self.tell_troubles(device, slot, now);
        }
    }

    /// Tells its trace what has happened on a connection.
    #[cold]
    fn tell_troubles(&mut self, device: &UtcpDevice, slot: usize, now: u64) {
        let Some(Some(inner)) = self.inner.get_mut(slot) else { return };
        let Some(carried) = self.engine.carried(inner.number) else { return };
        let happened = |event, what| {
            (device.tell)(device.owner.load(Acquire), slot, News::Happened(event, what));
        };
        inner.troubles.tell(&carried.connection().figures(), now, happened);
    }

    /// Gives a connection back to the kernel. Whoever calls holds both of its ends, or these are no
    /// more (`abandoned`). `None`: it is not out.
    pub(crate) fn end(
        &mut self,
        device: &UtcpDevice,
        (slot, abandoned): (usize, bool),
        now: u64,
    ) -> Option<Returned> {
        self.visit(device, slot, now);
        let inner = self.inner.get_mut(slot)?.as_mut()?;
        let counters = self.engine.carried(inner.number).map(|c| *c.connection().counters());
        if counters.is_some_and(|counters| inner.troubles.is_due(&counters, now, true)) {
            self.tell_troubles(device, slot, now);
        }
        let inner = self.inner.get_mut(slot)?.as_mut()?;
        let rest = inner.out.refresh().map_or(0, |n| (n as u64).saturating_sub(inner.taken));
        if abandoned && let Some(carried) = self.engine.carried(inner.number) {
            carried.is_abandoned(rest > 0);
        }
        let result = self.engine.give_back(inner.number, now)?;
        if !matches!(result, Err(NotBack::NoWay(_))) {
            *self.inner.get_mut(slot)? = None;
        }
        let unsent = result.as_ref().map_or(0, |back| back.unsent.len() as u64);
        Some(Returned { result, left: rest + unsent })
    }
}

impl Inner {
    /// What the application has taken is not unread any more.
    fn hear_read(&mut self, carried: &mut netacc_utcp::carried::Carried) {
        let read = self.inb_words.head.load(Acquire);
        let count = read.wrapping_sub(self.read).min(self.shown);
        if count > 0 {
            carried.consumed(count);
            self.read = read;
            self.shown -= count;
        }
    }

    /// Puts what has come into the ring, as far as there is room. True: something.
    fn show(&mut self, carried: &netacc_utcp::carried::Carried) -> bool {
        let mut any = false;
        for part in carried.unread(self.shown) {
            // SAFETY: a live slice. (Of this process's own ring the words say the truth.)
            let put = unsafe { self.inb.write(part.as_ptr(), part.len()) }.unwrap_or(0);
            self.shown += put as u64;
            any |= put > 0;
            if put < part.len() {
                break;
            }
        }
        if any {
            let _ = self.inb.publish();
            fence(SeqCst);
        }
        any
    }

    /// What the peer has is room in the ring. True: somebody waits for that.
    fn free(&mut self, acknowledged: u64) -> bool {
        let most = self.acknowledged + self.taken;
        let acknowledged = acknowledged.saturating_sub(self.before).min(most);
        let count = acknowledged - self.acknowledged;
        if count == 0 {
            return false;
        }
        self.acknowledged = acknowledged;
        self.taken -= count;
        let _ = self.out.skip(count as usize);
        let _ = self.out.publish();
        fence(SeqCst);
        self.out_words.space_wanted.load(Relaxed) != 0
            && self.out_words.space_wanted.swap(0, SeqCst) != 0
    }
}

/// Why a connection goes back, for the operator.
fn why(over: Over) -> Reason {
    match over {
        Over::Tcp(_) | Over::Device(_) | Over::Rerouted => Reason::UtcpGivenBack,
        Over::NotKept => Reason::UtcpNoSupport,
    }
}

// ---- the thread, as others know it --------------------------------------------------------------

/// The process that it runs in; 0: none.
pub(crate) static RUNNING: AtomicU32 = AtomicU32::new(0);
pub(crate) static BELL: AtomicI32 = AtomicI32::new(-1);
/// It has not heard the bell yet.
pub(crate) static WOKEN: AtomicBool = AtomicBool::new(false);
/// It sleeps for long, and does not know of timers that were set since.
pub(crate) static ASLEEP: AtomicBool = AtomicBool::new(false);
/// Connections that are to go back; a futex.
pub(crate) static LEAVING: AtomicU32 = AtomicU32::new(0);
/// In a forked child: its parent's bell, and what it adds there.
static PARENTS: AtomicI32 = AtomicI32::new(-1);
pub(crate) const CHILD: u64 = 1 << 32;

pub(crate) fn is_running() -> bool {
    RUNNING.load(Acquire) == process::id()
}

/// Wakes the thread.
pub(crate) fn wake() {
    if is_running() && !WOKEN.swap(true, SeqCst) {
        let _ = sys::write(BELL.load(Acquire), &1u64.to_ne_bytes());
    }
}

/// Packets were sent, or have come: the thread is to look at the timers, if it does not do so by
/// itself.
fn rouse() {
    if ASLEEP.load(SeqCst) && ASLEEP.swap(false, SeqCst) {
        wake();
    }
}

fn has_left() {
    LEAVING.fetch_sub(1, SeqCst);
    sys::futex_wake(&LEAVING, i32::MAX, true);
}

/// In a forked child: the maker of a connection is to take it back.
pub(crate) fn call_back() {
    let bell = PARENTS.load(Acquire);
    if bell >= 0 {
        let _ = sys::write(bell, &CHILD.to_ne_bytes());
    }
}

/// In a forked child there is no such thread, and no engine. Returns what has become of the bell.
pub(crate) fn after_fork_in_child() {
    for at in &LIST {
        at.store(core::ptr::null_mut(), Release);
    }
    LEAVING.store(0, Relaxed);
    RUNNING.store(0, Release);
    WOKEN.store(false, Relaxed);
    ASLEEP.store(false, Relaxed);
    let bell = BELL.swap(-1, AcqRel);
    if bell >= 0 {
        let older = PARENTS.swap(bell, AcqRel);
        if older >= 0 {
            crate::fd_words::close_internal(older);
        }
    }
}
