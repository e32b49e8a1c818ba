//! The library's handler, in front of the application's handlers: for faults on addresses that the
//! application gave, and so that no handler runs inside of the library ([`crate::signals`]).
//!
//! The copies between rings and the application's buffers, and all that [`crate::user`] reads and
//! writes, are one function ([`netacc_ring::copy`]). The handler knows its instructions: a fault
//! there makes the copy return an error, and the call EFAULT. A signal that comes while its thread
//! is in the library comes once more at the end of the call. All else goes to the application's
//! disposition as if the library were not there:
//!
//! - its handler is *jumped* to, with the same arguments, stack, mask and flags, because the
//!   library's is installed with these; it returns to the kernel, not to us, and unwinders see no
//!   frame of ours;
//! - the default action is the kernel's: it is put back, and the instruction faults again (or the
//!   signal is sent again);
//! - `sigaction` and its relatives show and set the application's disposition ([`before_set`],
//!   [`after_set`], [`Shown`]).
//!
//! It is installed when the table gets its first entry ([`arm`]): of SIGSEGV and SIGBUS, and of all
//! signals for which the application has a handler. It stands aside while the application ignores
//! the signal (the kernel then discards what is sent, and exec hands that down), and for good when
//! somebody has replaced it past the hooks. Then, as in a thread that has blocked the signal, a bad
//! buffer is what it is to any function in user space; [`crate::user`] asks the kernel instead.
//!
//! `docs/adr/0012-bad-addresses.md` has the reasons and the numbers.

use crate::lock::{Guard, Mutex};
use crate::sys::{KernelSigaction, SIGCANCEL};
use crate::{process, signals, sys, trace};
use core::ffi::{c_int, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};
use libc::{siginfo_t, ucontext_t};

/// The handler was never installed for the signal.
const IDLE: u8 = 0;
/// It is what the kernel calls.
const ARMED: u8 = 1;
/// The application ignores the signal, or has no handler where none is needed.
const ASIDE: u8 = 2;
/// It was replaced by a system call that the hooks did not see.
const REPLACED: u8 = 3;

/// One signal.
struct Signal {
    /// Held with all signals blocked: whoever changes `state`, `handler` or `flags`, except a
    /// handler that is called once. How many of the application's calls are about to set the
    /// disposition, or have set it and not told.
    setting: Mutex<u32>,
    state: AtomicU8,
    /// The application's handler (SIG_DFL: 0) and flags. Its mask is in the kernel.
    handler: AtomicUsize,
    flags: AtomicUsize,
}

impl Signal {
    const fn new() -> Signal {
        Signal {
            setting: Mutex::new(0),
            state: AtomicU8::new(IDLE),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicUsize::new(0),
        }
    }
}

/// The lock of a signal's state, of which the holder is not interrupted.
struct Setting {
    calls: ManuallyDrop<Guard<'static, u32>>,
    mask: u64,
}

impl Setting {
    fn of(s: &'static Signal) -> Setting {
        let mask = sys::hold_signals();
        Setting { calls: ManuallyDrop::new(s.setting.lock()), mask }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        // SAFETY: dropped here alone.
        unsafe { ManuallyDrop::drop(&mut self.calls) };
        sys::restore_signals(self.mask);
    }
}

/// By number.
static SIGNALS: [Signal; 65] = [const { Signal::new() }; 65];
#[expect(clippy::indexing_slicing, reason = "checked by the compiler")]
static FAULTS: [&Signal; 2] = [&SIGNALS[libc::SIGSEGV as usize], &SIGNALS[libc::SIGBUS as usize]];
/// The handler was installed where it is to be.
static IS_ARMED: AtomicBool = AtomicBool::new(false);

const SA_RESTORER: usize = 0x0400_0000;
const SA_SIGINFO: usize = libc::SA_SIGINFO as usize;
const SA_RESETHAND: usize = libc::SA_RESETHAND as u32 as usize;
/// Our own, where the application has no handler whose flags count: on the thread's alternate stack
/// if it has one, and not one of those that interrupt calls for good ([`handler_restarts`]).
const OWN_FLAGS: usize = libc::SA_ONSTACK as usize | libc::SA_RESTART as usize;

/// Not of the two that nobody can handle, nor of the two that libc keeps for itself.
fn known(signal: c_int) -> Option<&'static Signal> {
    if matches!(signal, libc::SIGKILL | libc::SIGSTOP | 0 | SIGCANCEL | 33) {
        None
    } else {
        SIGNALS.get(usize::try_from(signal).ok()?)
    }
}

fn is_fault_signal(signal: c_int) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS)
}

fn entry_address() -> usize {
    entry as *const () as usize
}

/// Installs the handler, once per process. Async-signal-safe.
#[inline]
pub(crate) fn arm() {
    if !IS_ARMED.load(Acquire) {
        arm_slow();
    }
}

#[cold]
#[inline(never)]
fn arm_slow() {
    // (A vfork child has signal handlers of its own, and its parent's memory.)
    if !process::started() || process::in_vfork_child() {
        return;
    }
    netacc_ring::copy::tune();
    let mask = sys::hold_signals();
    // Before: who sets a disposition from here on tells.
    IS_ARMED.store(true, SeqCst);
    for signal in 1..=64 {
        if let Some(s) = known(signal) {
            let _setting = s.setting.lock();
            if s.state.load(Relaxed) == IDLE {
                install(s, signal);
            }
        }
    }
    sys::restore_signals(mask);
}

/// True: a fault in a copy is an error of the copy, unless this thread has blocked its signal.
#[inline]
pub(crate) fn are_caught() -> bool {
    FAULTS.iter().all(|s| s.state.load(Relaxed) == ARMED)
}

/// Puts the handler in the place of what the kernel has, which becomes what the application has.
/// The caller holds `setting`.
fn install(s: &Signal, signal: c_int) {
    // (A filter may forbid it: for good.)
    let Some(mut theirs) = sys::signal_action(signal, None) else {
        return s.state.store(REPLACED, Release);
    };
    for _ in 0..16 {
        if theirs.handler == entry_address() {
            break;
        }
        if theirs.handler == libc::SIG_IGN
            || (theirs.handler == libc::SIG_DFL && !is_fault_signal(signal))
        {
            s.state.store(ASIDE, Release);
            return;
        }
        s.flags.store(theirs.flags, Relaxed);
        s.handler.store(theirs.handler, Release);
        let Some(before) = sys::signal_action(signal, Some(&ours_for(&theirs))) else {
            return s.state.store(REPLACED, Release);
        };
        if before.handler == theirs.handler && before.flags == theirs.flags {
            break;
        }
        // Another thread has just changed it.
        theirs = before;
    }
    s.state.store(ARMED, Release);
}

/// Our handler under the flags and the mask of the application's.
fn ours_for(theirs: &KernelSigaction) -> KernelSigaction {
    let own = if theirs.handler == libc::SIG_DFL { OWN_FLAGS } else { 0 };
    // Its restorer marks the frame for unwinders.
    let restorer = if theirs.flags & SA_RESTORER != 0 { theirs.restorer } else { own_restorer() };
    let restores = if restorer != 0 { SA_RESTORER } else { 0 };
    KernelSigaction {
        handler: entry_address(),
        flags: (theirs.flags & !SA_RESETHAND) | SA_SIGINFO | restores | own,
        restorer,
        mask: theirs.mask,
    }
}

/// Where our handler returns to, if the application has given no place.
fn own_restorer() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        restorer as *const () as usize
    }
    // Other processors return by the kernel's own page.
    #[cfg(not(target_arch = "x86_64"))]
    {
        0
    }
}

/// The same instructions as in libc: debuggers know a signal's frame by them.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("mov rax, 15", "syscall")
}

/// What the kernel calls. `decide` says where to go on: back, or to the application's handler, by a
/// jump, with all as it was.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn entry(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    core::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "call {decide}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        decide = sym decide,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn entry(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {decide}",
        "mov x16, x0",
        "ldr x2, [sp, #32]",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #48",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "ret",
        decide = sym decide,
    )
}

/// The handler of SIGCANCEL is libc's.
static CANCELLATION: Signal = Signal::new();

/// Threads are cancelled: puts the handler in front of libc's, which has one by now, so that a
/// thread that is about to sleep does not, and no thread ends inside of the library
/// ([`signals::cancel`]). Returns the signal that also ends a sleep; `None`: libc has no handler
/// yet.
pub(crate) fn front_cancellation() -> Option<c_int> {
    let _setting = Setting::of(&CANCELLATION);
    let theirs = sys::signal_action(SIGCANCEL, None)?;
    // (Without a handler the signal would kill.)
    if theirs.handler <= libc::SIG_IGN {
        return None;
    }
    if theirs.handler != entry_address() {
        CANCELLATION.handler.store(theirs.handler, Release);
        sys::signal_action(SIGCANCEL, Some(&ours_for(&theirs)))?;
    }
    Some(SIGCANCEL)
}

/// 0: done. Otherwise the application's handler.
extern "C" fn decide(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) -> usize {
    if signal == SIGCANCEL {
        // SAFETY: what the kernel gave us.
        let put_back = unsafe { signals::cancel(signal, info, context) };
        return if put_back { 0 } else { CANCELLATION.handler.load(Acquire) };
    }
    let Some(s) = known(signal) else { return 0 };
    // SAFETY: the kernel's siginfo: the handler is installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    let faulted = is_fault(signal, code);
    if faulted {
        // SAFETY: the kernel's ucontext, which it reads back when the handler returns.
        let pc = unsafe { program_counter(context) };
        let range = netacc_ring::copy::fault_range();
        if (range.start..range.end).contains(pc) {
            *pc = range.resume;
            return 0;
        }
        // SAFETY: the kernel's siginfo, of a fault.
        let address = unsafe { (*info).si_addr() } as usize;
        if signal == libc::SIGBUS && trace::lost(address) {
            return 0;
        }
    }
    let mut handler = s.handler.load(Acquire);
    // SAFETY: what the kernel gave us.
    if !faulted && handler > libc::SIG_IGN && unsafe { signals::put_back(signal, info, context) } {
        return 0;
    }
    if handler > libc::SIG_IGN && s.flags.load(Relaxed) & SA_RESETHAND != 0 {
        handler = s
            .handler
            .compare_exchange(handler, libc::SIG_DFL, AcqRel, Acquire)
            .unwrap_or_else(|now| now);
    }
    if handler > libc::SIG_IGN {
        return handler;
    }
    let _ = sys::signal_action(
        signal,
        Some(&KernelSigaction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 }),
    );
    if !is_fault_signal(signal) {
        s.state.store(ASIDE, Release);
    }
    if !faulted {
        // It will not come by itself again.
        // SAFETY: the kernel's siginfo.
        let _ = unsafe { sys::signal_self(signal, info) };
    }
    0
}

/// The signal is the fault of the instruction that the thread stands on, and comes again if that is
/// run again.
fn is_fault(signal: c_int, code: c_int) -> bool {
    /// A memory error somewhere (asm-generic/siginfo.h).
    const BUS_MCEERR_AO: c_int = 5;
    /// A tag mismatch some instructions ago.
    const SEGV_MTEAERR: c_int = 8;
    let faults = matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP | libc::SIGSYS
    );
    faults
        && code > 0
        && !matches!((signal, code), (libc::SIGBUS, BUS_MCEERR_AO) | (libc::SIGSEGV, SEGV_MTEAERR))
}

/// # Safety
/// `context` is what the kernel gave the handler.
#[cfg_attr(target_arch = "x86_64", expect(clippy::indexing_slicing, reason = "a constant"))]
unsafe fn program_counter(context: *mut ucontext_t) -> &'static mut usize {
    // SAFETY: the caller's promise; the reference does not leave `decide`.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let pc = &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let pc = &raw mut (*context).uc_mcontext.pc;
        &mut *pc.cast::<usize>()
    }
}

// ---- the application's view ---------------------------------------------------------------------

/// A call is about to change the signal's disposition. [`after_set`] follows, whatever comes of it,
/// and is told whether this counts it.
pub(crate) fn before_set(signal: c_int) -> bool {
    // (Nothing of ours is installed: the usual program.)
    if !IS_ARMED.load(SeqCst) {
        return false;
    }
    let Some(s) = known(signal).filter(|_| !process::in_vfork_child()) else { return false };
    let mut setting = Setting::of(s);
    // Who has replaced the handler past us may call it (it was shown that one): it must not be put
    // in front of that again. While other calls are on their way it cannot be told from them.
    // (libc's `system` ignores two signals for a time.)
    let past_us = |now: KernelSigaction| {
        now.handler != entry_address() && (now.handler > libc::SIG_IGN || is_fault_signal(signal))
    };
    if **setting.calls == 0
        && s.state.load(Relaxed) == ARMED
        && sys::signal_action(signal, None).is_some_and(past_us)
    {
        s.state.store(REPLACED, Release);
    }
    **setting.calls += 1;
    true
}

/// It has, perhaps.
pub(crate) fn after_set(signal: c_int, counted: bool) {
    if !IS_ARMED.load(SeqCst) {
        return;
    }
    let Some(s) = known(signal).filter(|_| !process::in_vfork_child()) else { return };
    let mut setting = Setting::of(s);
    if counted {
        **setting.calls = setting.calls.saturating_sub(1);
    }
    if matches!(s.state.load(Relaxed), ARMED | ASIDE) {
        install(s, signal);
    }
}

/// The calls of other threads are not this process's.
pub(crate) fn after_fork_in_child() {
    let mask = sys::hold_signals();
    for s in &SIGNALS {
        *s.setting.lock() = 0;
    }
    sys::restore_signals(mask);
}

/// The application's handler and flags, where the kernel names ours.
pub(crate) struct Shown {
    pub(crate) handler: usize,
    pub(crate) flags: usize,
    pub(crate) has_restorer: bool,
}

/// What to show for `handler`. `None`: it is the application's own.
pub(crate) fn shown(signal: c_int, handler: usize) -> Option<Shown> {
    let s = known(signal).filter(|_| handler == entry_address())?;
    let flags = s.flags.load(Relaxed);
    Some(Shown { handler: s.handler.load(Acquire), flags, has_restorer: flags & SA_RESTORER != 0 })
}

/// True unless the signal has a handler that interrupts system calls for good (no SA_RESTART).
pub(crate) fn handler_restarts(signal: c_int) -> bool {
    let Some(now) = sys::signal_action(signal, None) else { return true };
    now.handler <= libc::SIG_IGN
        || now.flags & libc::SA_RESTART as usize != 0
        || stands_for_default(signal, now.handler)
}

/// The kernel names our handler, and the application has none.
pub(crate) fn stands_for_default(signal: c_int, handler: usize) -> bool {
    shown(signal, handler).is_some_and(|s| s.handler <= libc::SIG_IGN)
}
