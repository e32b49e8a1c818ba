//! Devices: engine, channel and keeper of each.

use super::seats::{CONNECTIONS, Owned};
use crate::channel::{Channel, ChannelMem, producer_quiet, quiet};
use crate::log::{debug_log, warn_log};
use crate::path::Far;
use crate::socket::{Socket, State};
use crate::utcp_device::{self, Engine, News, UtcpDevice};
use crate::{keeper, numbers, sys};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use netacc_control::stats::Reason;
use netacc_packet::device::NoDevice;
use netacc_packet::rights;
use netacc_packet::route::Route;
use netacc_packet::steering::NoSteering;
use netacc_packet::{Device, sys::Fd};

/// Opens a device, and has a keeper started for it: without one nothing leaves the kernel.
pub(super) fn open(route: &Route) -> Result<Owned, Reason> {
    let mut engine = numbers::exclusively(|| engine(route))?;
    let link = start_keeper().ok_or(Reason::UtcpNoSupport)?;
    numbers::exclusively(|| engine.keep(link)).map_err(|errno| {
        warn_log!("utcp: no keeper, so connections stay on TCP: {errno:?}: is netacc installed?");
        Reason::UtcpNoSupport
    })?;
    engine.look_apart();
    let none = core::ptr::null_mut();
    let device = UtcpDevice::new(engine, route.interface, CONNECTIONS as usize, none, tell);
    let device = device.ok_or(Reason::NoMemory)?;
    let mem = sys::map_own(size_of::<ChannelMem>());
    if mem.is_null() {
        return Err(Reason::NoMemory);
    }
    // SAFETY: mapped just now, as large as that, and never taken away.
    let channel = unsafe { Channel::make(mem.cast(), 0, Far::Utcp(device)) };
    let channel = channel.ok_or(Reason::NoMemory)?;
    device.set_owner(channel.cast());
    // SAFETY: a channel that is never freed.
    let owned = Owned::new(device, unsafe { &*channel })?;
    if !utcp_device::add(device) {
        return Err(Reason::UtcpNoRoute);
    }
    debug_log!("utcp: device {} is open", route.interface);
    Ok(owned)
}

fn engine(route: &Route) -> Result<Engine, Reason> {
    let device = Device::open(route.interface, route.own, CONNECTIONS).map_err(|why| {
        warn_log!("utcp: device {} cannot be used: {why:?}", route.interface);
        match why {
            NoDevice::Privilege | NoDevice::Steering(NoSteering::Privilege) => {
                Reason::UtcpNoPrivilege
            }
            NoDevice::Steering(NoSteering::Interface) => Reason::UtcpNoRoute,
            NoDevice::Steering(_) | NoDevice::Packets(_) => Reason::UtcpNoSupport,
        }
    })?;
    let mut key = [0u8; 16];
    sys::random(&mut key);
    let [a, b] = [0, 8].map(|at| {
        let half = key.get(at..).and_then(|rest| rest.first_chunk::<8>());
        half.map_or(0, |half| u64::from_ne_bytes(*half))
    });
    Engine::new(device, route.interface, CONNECTIONS, [a, b]).ok_or(Reason::NoMemory)
}

/// There is news on a slot.
fn tell(owner: *mut (), slot: usize, news: News) {
    // SAFETY: null, or a channel that is never freed.
    let Some(channel) = (unsafe { owner.cast::<Channel>().as_ref() }) else { return };
    match news {
        News::Bytes => {
            let words = channel.words(slot, channel.side ^ 1);
            channel.announce_here(slot, &words.quiet[quiet::NOTIFY]);
        }
        News::Room => {
            let words = channel.words(slot, channel.side);
            channel.announce_here(slot, &words.producer_quiet[producer_quiet::NOTIFY]);
        }
        News::Happened(event, what) => {
            // (One that was closed while it was out may be another connection by now.)
            let is_on = |s: &&Socket| {
                s.is(State::Attached)
                    && s.slot.load(Relaxed) as usize == slot
                    && core::ptr::eq(s.channel.load(Acquire), channel)
            };
            if let Some(s) = Socket::on(channel, slot).filter(is_on) {
                s.trace(event, what);
            }
        }
    }
}

// ---- the keeper ---------------------------------------------------------------------------------

/// LD_PRELOAD, as the program was started with it.
static PRELOADED: (AtomicPtr<u8>, AtomicUsize) =
    (AtomicPtr::new(core::ptr::null_mut()), AtomicUsize::new(0));

pub(super) fn note_preloaded(text: &'static str) {
    PRELOADED.1.store(text.len(), Relaxed);
    PRELOADED.0.store(text.as_ptr().cast_mut(), Release);
}

fn preloaded() -> &'static [u8] {
    let (at, len) = (PRELOADED.0.load(Acquire), PRELOADED.1.load(Relaxed));
    if at.is_null() {
        return &[];
    }
    // SAFETY: of a text that lives for ever.
    unsafe { core::slice::from_raw_parts(at, len) }
}

/// The program `netacc`, which has the keeper: beside the library, or where packages put it.
fn program() -> Option<Vec<u8>> {
    const LIBRARY: [&[u8]; 2] = [b"libnetacc-preload.so", b"libnetacc_preload.so"];
    let folder = preloaded()
        .split(|c| matches!(c, b' ' | b':'))
        .find_map(|path| LIBRARY.iter().find_map(|name| path.strip_suffix(*name)))
        .filter(|folder| folder.first() == Some(&b'/'));
    let beside = folder.into_iter().flat_map(|folder| {
        [&b"netacc\0"[..], b"../bin/netacc\0", b"../../bin/netacc\0", b"../../../bin/netacc\0"]
            .map(|name| [folder, name].concat())
    });
    let usual = [&b"/usr/bin/netacc\0"[..], b"/usr/local/bin/netacc\0"].map(<[u8]>::to_vec);
    beside.chain(usual).find(|path| sys::is_executable(path))
}

/// What the keeper's process is started with. Never freed: that process reads it, when it gets to
/// that.
struct Start {
    program: Vec<u8>,
    link: c_int,
}

/// Its number there.
const LINK: c_int = 3;

/// Starts one, and returns our end of the link. (Whether it lives is seen when it is spoken to.)
fn start_keeper() -> Option<Fd> {
    let Some(program) = program() else {
        warn_log!("utcp: the program netacc is not found, so connections stay on TCP");
        return None;
    };
    let [ours, theirs] = numbers::exclusively(rights::link).ok()?;
    let start = Box::leak(Box::new(Start { program, link: theirs.number() }));
    keeper::spawn(become_keeper, core::ptr::from_ref(start) as usize).then_some(ours)
}

/// In a process of its own, whose memory is still the program's.
extern "C" fn become_keeper(start: usize) -> ! {
    // SAFETY: `start_keeper`'s, which is never freed.
    let start = unsafe { &*(start as *const Start) };
    let name = c"netacc".as_ptr();
    let command = c"utcp-keeper".as_ptr();
    let arguments: [*const c_char; 3] = [name, command, core::ptr::null()];
    keeper::become_program(&start.program, &arguments, (start.link, LINK))
}
