//! When may a handler of the application's run? Not while its thread is inside the library.
//!
//! A handler may do anything: send on the very connection that its thread is sending on, close it,
//! or leave by `siglongjmp`, an exception or a switch of stacks and never come back. In the kernel
//! that can happen to no call: a signal waits until the call is over. Here it is the same. While a
//! thread is in a *section* ([`enter`] to [`leave`]) what would interrupt it is put back: the
//! library's own handler, which stands in front of the application's ([`crate::faults`]), sends the
//! signal to the thread once more and blocks all until the section ends. Then no lock is held,
//! nothing is counted or announced that a jump would leave behind, and the kernel delivers it, as
//! the kernel does.
//!
//! A section does not wait with a signal put back. What may sleep for long goes through
//! [`waiting`], which does not begin then, and which the handler makes return; the call takes down
//! what it has set up, and ends as the kernel's would have: with what was moved so far, with EINTR,
//! or it begins once more behind the handler (`RESTART`).
//!
//! Where a signal comes as the fault of an instruction it is not put back. Signals whose handler
//! was set behind the library's back are not seen.
//!
//! `docs/design/signals.md` has the reasons.

use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicUsize, compiler_fence};
use libc::{siginfo_t, ucontext_t};

/// What a thread keeps. The handler runs in the same thread: no atomics are needed, only the order
/// of the instructions.
#[repr(C)]
struct Thread {
    /// 1 inside of a section. Written by [`enter`].
    inside: u32,
    unused: u32,
    /// The signal that was put back, with [`RESTARTS`] if its handler has SA_RESTART; 0: none.
    pending: u32,
    /// 1: cancellation is to be enabled when the section ends ([`puts_off_cancellation`]). (One
    /// load for both.)
    put_off: u32,
    /// The stack pointer where the section began. Written by [`enter`].
    stack: usize,
    /// What was blocked when the signal came.
    mask: u64,
    /// 1: somebody has cancelled it (`pthread_cancel`), and it has not heard of that yet.
    cancelled: u32,
    /// 1: it does not want to hear of that (PTHREAD_CANCEL_DISABLE).
    uncancellable: u32,
    /// 1: it ends at any instruction (PTHREAD_CANCEL_ASYNCHRONOUS).
    ends_anywhere: u32,
    /// For how many microseconds its waits may poll, by its own will, + 1; 0: it has none.
    poll: u32,
}

const RESTARTS: u32 = 1 << 8;
/// A section needs no more of the stack, by far.
const DEPTH: usize = 1 << 20;
/// A function's own frame.
const FRAME: usize = 1 << 12;

// Thread-local memory at a fixed distance from the thread pointer: no call, and no allocation in a
// handler. (The library is loaded with the program, never by dlopen.)
core::arch::global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 4",
    ".globl netacc_thread",
    ".hidden netacc_thread",
    ".type netacc_thread,@object",
    ".size netacc_thread, 48",
    "netacc_thread:",
    ".zero 48",
    ".text",
);
const _: () = assert!(size_of::<Thread>() <= 48);
const _: () = assert!(core::mem::offset_of!(Thread, cancelled) == 32);
const _: () = assert!(core::mem::offset_of!(Thread, uncancellable) == 36);

#[inline(always)]
fn thread() -> *mut Thread {
    let at: *mut Thread;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of a thread's control block is its own address; the distance is the
    // linker's.
    unsafe {
        core::arch::asm!("mov {0}, qword ptr fs:0", "add {0}, qword ptr [rip + netacc_thread@gottpoff]", out(reg) at, options(nostack, pure, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("adrp {1}, :gottprel:netacc_thread", "ldr {1}, [{1}, :gottprel_lo12:netacc_thread]", "mrs {0}, tpidr_el0", "add {0}, {0}, {1}",
            out(reg) at, out(reg) _, options(nostack, pure, readonly));
    }
    at
}

#[inline(always)]
fn stack_pointer() -> usize {
    let sp: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {0}, rsp", out(reg) sp, options(nostack, nomem, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("mov {0}, sp", out(reg) sp, options(nostack, nomem, preserves_flags));
    }
    sp
}

/// A section, which [`leave`] ends. (No destructor: what is delivered at its end may not come
/// back.)
#[must_use = "a section that is not left holds signals back for ever"]
pub(crate) struct Section {
    /// Another one, further up, is not over yet.
    nested: bool,
}

/// From here on no handler of the application's runs in this thread.
#[inline(always)]
pub(crate) fn enter() -> Section {
    let t = thread();
    // SAFETY: this thread's own memory.
    unsafe {
        if is_inside(t) && is_alive(t, stack_pointer()) {
            return Section { nested: true };
        }
        begin(t)
    }
}

/// As [`enter`], where the thread is in no section yet.
#[inline(always)]
pub(crate) fn enter_first() -> Option<Section> {
    let t = thread();
    // SAFETY: this thread's own memory.
    unsafe { if is_inside(t) { None } else { Some(begin(t)) } }
}

/// # Safety
/// `t` is this thread's.
#[inline(always)]
unsafe fn is_inside(t: *const Thread) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (&raw const (*t).inside).read_volatile() != 0 }
}

/// # Safety
/// `t` is this thread's, which is in no section.
#[inline(always)]
unsafe fn begin(t: *mut Thread) -> Section {
    // SAFETY: the caller's promise. A handler in between leaves it as it was, or finds a section
    // that has begun.
    unsafe {
        // First: a handler believes it if it finds the thread inside.
        (&raw mut (*t).stack).write_volatile(stack_pointer());
        compiler_fence(SeqCst);
        (&raw mut (*t).inside).write_volatile(1);
    }
    compiler_fence(SeqCst);
    Section { nested: false }
}

/// Here handlers run: the last that a call of the application's does in the library. True: not yet,
/// in another section further up.
#[inline(always)]
pub(crate) fn leave(section: Section) -> bool {
    if section.nested {
        return true;
    }
    let t = thread();
    compiler_fence(SeqCst);
    // SAFETY: this thread's own memory. A signal in between is not put back any more, or is seen by
    // the second line, which reads `put_off` as well.
    let pending = unsafe {
        (&raw mut (*t).inside).write_volatile(0);
        compiler_fence(SeqCst);
        (&raw const (*t).pending).cast::<u64>().read_volatile()
    };
    if pending != 0 {
        deliver();
    }
    false
}

/// Runs `f` in a section. What it returns must not need dropping.
#[inline(always)]
pub(crate) fn held<R>(f: impl FnOnce() -> R) -> R {
    let section = enter();
    let r = f();
    let _ = leave(section);
    r
}

/// Keeps handlers of the application's from running in this thread until [`go_on`]: a section does
/// so already; else its signals are blocked. (Whoever unblocks signals takes what the kernel has
/// meant for another thread, which has been woken for it and has not run yet: recalc_sigpending. A
/// program may go by that, as CPython does: only its first thread wakes up for a signal.)
///
/// In a section a handler that was set by a raw system call runs all the same, and may come back to
/// the lock that its thread has: locks in here are taken by `lock_unless_mine`.
pub(crate) fn hold_back() -> Option<u64> {
    let t = thread();
    // SAFETY: this thread's own memory.
    let holds = unsafe { is_inside(t) && is_alive(t, stack_pointer()) };
    (!holds).then(sys::hold_signals)
}

/// Undoes [`hold_back`].
pub(crate) fn go_on(held: Option<u64>) {
    if let Some(mask) = held {
        sys::restore_signals(mask);
    }
}

/// Whether the frame that has begun the section still is on the stack of who stands at `sp`. It is
/// not where a fault's handler has jumped out of it. (Nothing else can: only sections switch no
/// stacks, and none is left but by its end.)
///
/// # Safety
/// `t` is this thread's.
#[cold]
unsafe fn is_alive(t: *mut Thread, sp: usize) -> bool {
    // SAFETY: the caller's promise.
    let begin = unsafe { (&raw const (*t).stack).read_volatile() };
    sp <= begin.wrapping_add(FRAME) && begin.wrapping_sub(sp) as isize <= DEPTH as isize
}

/// A signal was put back: the call that waits is to end. Whether the kernel would begin it again.
pub(crate) fn pending() -> Option<Interrupt> {
    // SAFETY: this thread's own memory.
    let pending = unsafe { (&raw const (*thread()).pending).read_volatile() };
    (pending != 0).then_some(Interrupt { restarts: pending & RESTARTS != 0 })
}

/// The thread has been cancelled, and wants to hear of it: what waits is to end. The hook then ends
/// the thread.
pub(crate) fn is_cancelled() -> bool {
    let t = thread();
    // SAFETY: this thread's own memory.
    unsafe {
        (&raw const (*t).cancelled).read_volatile() != 0
            && (&raw const (*t).uncancellable).read_volatile() == 0
    }
}

/// The thread has been cancelled, and does not want to hear of it: what has interrupted it was
/// perhaps that alone.
pub(crate) fn is_cancelled_in_vain() -> bool {
    let t = thread();
    // SAFETY: this thread's own memory.
    unsafe {
        (&raw const (*t).cancelled).read_volatile() != 0
            && (&raw const (*t).uncancellable).read_volatile() != 0
    }
}

/// libc's signal for that has come, whose handler runs behind this. In a deferred cancellation it
/// does nothing; but the thread is not to go to sleep, nor back to it (the kernel may be about to
/// begin the call again).
///
/// # Safety
/// Called in the handler, with what the kernel gave it. True: libc's handler would end a thread
/// that ends at any instruction right here, in a section, so it runs when that is over.
pub(crate) unsafe fn cancel(
    signal: c_int,
    info: *const siginfo_t,
    context: *mut ucontext_t,
) -> bool {
    let t = thread();
    // SAFETY: this thread's own memory; what the kernel gave the handler.
    unsafe {
        if (&raw const (*t).ends_anywhere).read_volatile() != 0
            && (&raw const (*t).uncancellable).read_volatile() == 0
            && put_back(signal, info, context)
        {
            return true;
        }
    }
    // SAFETY: this thread's own memory, and the kernel's context, which it reads back when the
    // handler returns.
    unsafe {
        (&raw mut (*t).cancelled).write_volatile(1);
        let (pc, _) = registers(context);
        if is_cancelled() && about_to_wait(*pc) {
            *pc = waiting_refused as *const () as usize;
        }
    }
    false
}

/// Whether a thread there is about to make a system call that may sleep.
fn about_to_wait(pc: usize) -> bool {
    (waiting_start as *const () as usize..waiting_end as *const () as usize).contains(&pc)
}

/// The hook is about to look whether the thread is cancelled: what it does behind that may wait.
pub(crate) fn hears_of_cancellation() {
    if is_cancelled() {
        // SAFETY: this thread's own memory.
        unsafe { (&raw mut (*thread()).cancelled).write_volatile(0) };
    }
}

/// Whether the thread can be cancelled, by the application's will. (In a section it is the
/// library's.)
pub(crate) fn may_be_cancelled(may: bool) {
    let t = thread();
    // SAFETY: this thread's own memory.
    unsafe {
        if !is_inside(t) {
            (&raw mut (*t).uncancellable).write_volatile(u32::from(!may));
        }
    }
}

/// Whether the thread, once it is cancelled, ends at any instruction.
pub(crate) fn may_end_anywhere(may: bool) {
    // SAFETY: this thread's own memory.
    unsafe { (&raw mut (*thread()).ends_anywhere).write_volatile(u32::from(may)) };
}

/// For how many microseconds the thread's waits may poll, if it has said so itself. (A child that
/// it forks goes on with that, as its only thread; a new thread has said nothing.)
#[inline(always)]
pub(crate) fn poll_us() -> Option<u32> {
    // SAFETY: this thread's own memory.
    unsafe { (&raw const (*thread()).poll).read_volatile() }.checked_sub(1)
}

/// It says so, or not any more.
pub(crate) fn set_poll_us(us: Option<u32>) {
    let word = us.map_or(0, |us| us.saturating_add(1));
    // SAFETY: this thread's own memory.
    unsafe { (&raw mut (*thread()).poll).write_volatile(word) };
}

/// What has interrupted a call.
#[derive(Clone, Copy)]
pub(crate) struct Interrupt {
    /// Its handler has SA_RESTART.
    pub(crate) restarts: bool,
}

/// The section is over: the signal that was put back comes now.
#[cold]
#[inline(never)]
fn deliver() {
    let t = thread();
    // SAFETY: this thread's own memory; all signals that could change it are blocked.
    let (signal, mask, put_off) = unsafe {
        let signal = (&raw const (*t).pending).read_volatile() & (RESTARTS - 1);
        (&raw mut (*t).pending).write_volatile(0);
        (signal, (*t).mask, (&raw mut (*t).put_off).replace(0))
    };
    compiler_fence(SeqCst);
    if signal != 0 {
        // The handlers run in here, as at the end of any system call.
        sys::restore_signals(mask);
        let own = 1u64 << (signal.wrapping_sub(1) & 63);
        if mask & own != 0 {
            // It came while the call's own mask was in force (ppoll, pselect, epoll_pwait), which
            // let it through.
            sys::run_pending(mask & !own);
        }
    }
    if put_off != 0 {
        enable_cancellation();
    }
}

/// `pthread_setcancelstate(3)`.
pub(crate) type SetState = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
/// libc's.
static SET_STATE: AtomicUsize = AtomicUsize::new(0);

/// Cancellation is about to be enabled by that function, which would end a thread right there that
/// ends at any instruction and was cancelled. True: in a section, where the library itself had
/// disabled it around a provider's call: it is enabled when that is over.
pub(crate) fn puts_off_cancellation(set_state: SetState) -> bool {
    let t = thread();
    // SAFETY: this thread's own memory.
    unsafe {
        if (&raw const (*t).ends_anywhere).read_volatile() == 0
            || !is_inside(t)
            || !is_alive(t, stack_pointer())
        {
            return false;
        }
        SET_STATE.store(set_state as usize, Relaxed);
        (&raw mut (*t).put_off).write_volatile(1);
    }
    true
}

#[cold]
fn enable_cancellation() {
    const PTHREAD_CANCEL_ENABLE: c_int = 0;
    let set_state = SET_STATE.load(Relaxed);
    if set_state != 0 {
        // SAFETY: stored as such a function, which may not come back: no frame here has anything to
        // drop.
        unsafe {
            let set_state = core::mem::transmute::<usize, SetState>(set_state);
            set_state(PTHREAD_CANCEL_ENABLE, core::ptr::null_mut());
        }
    }
}

/// The library's handler was called. True: the thread is in a section, and has been made to end it
/// before it comes again.
///
/// # Safety
/// Called in a handler, with what the kernel gave it.
pub(crate) unsafe fn put_back(
    signal: c_int,
    info: *const siginfo_t,
    context: *mut ucontext_t,
) -> bool {
    let t = thread();
    // SAFETY: this thread's own memory, and the kernel's context, which it reads back when the
    // handler returns. Its mask has 64 bits.
    unsafe {
        if (&raw const (*t).inside).read_volatile() == 0 {
            return false;
        }
        let (pc, sp) = registers(context);
        if !is_alive(t, sp) {
            (&raw mut (*t).inside).write_volatile(0);
            return false;
        }
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        let blocked = mask.read_unaligned();
        // libc's own signal for cancellations counts among those that are never blocked.
        let own = if signal == sys::SIGCANCEL { sys::CANCELLATION } else { 0 };
        // One waits already, and all but faults are blocked. (If they are not, it was put back in a
        // handler that is not ours, such as that of libc's setuid, which has returned meanwhile:
        // what it had blocked is over, and it is put back once more.)
        let waits = (&raw const (*t).pending).read_volatile() != 0
            && (blocked | sys::UNBLOCKABLE) & !sys::CANCELLATION == !sys::FAULTS;
        if waits && own == 0 {
            return false;
        }
        // With it blocked, or it would come at once.
        let restarts = sys::signal_action(signal, None)
            .is_some_and(|now| now.flags & libc::SA_RESTART as usize != 0);
        let before = sys::hold_signals();
        if !sys::signal_self(signal, info) {
            // The queue of the user's signals is full: better now than never.
            sys::restore_signals(before);
            return false;
        }
        mask.write_unaligned(!sys::FAULTS | own | blocked & sys::CANCELLATION);
        if !waits {
            (*t).mask = blocked & !sys::LIBC_OWN;
            let flag = if restarts { RESTARTS } else { 0 };
            (&raw mut (*t).pending).write_volatile(signal as u32 | flag);
        }
        if about_to_wait(*pc) {
            *pc = waiting_refused as *const () as usize;
        }
    }
    true
}

/// # Safety
/// `context` is what the kernel gave a handler. The first is the place of the program counter.
#[cfg_attr(target_arch = "x86_64", expect(clippy::indexing_slicing, reason = "constants"))]
unsafe fn registers(context: *mut ucontext_t) -> (*mut usize, usize) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        return (
            (&raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]).cast(),
            (&raw const (*context).uc_mcontext.gregs[libc::REG_RSP as usize])
                .cast::<usize>()
                .read(),
        );
        #[cfg(target_arch = "aarch64")]
        return ((&raw mut (*context).uc_mcontext.pc).cast(), (*context).uc_mcontext.sp as usize);
    }
}

/// A system call that may sleep was not begun, because a signal waits or the thread is cancelled;
/// or the kernel would have begun it again behind the handler. (The kernel's own number for that,
/// which no program sees.)
pub(crate) const NOT_BEGUN: isize = -512;

// One system call; NOT_BEGUN where a signal was put back, or the thread is cancelled. Between the
// look and the `syscall` no signal gets lost: the handler moves whoever it finds in
// waiting_start..waiting_end to waiting_refused. Who is behind it has the kernel's answer.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl netacc_waiting",
    ".hidden netacc_waiting",
    ".type netacc_waiting,@function",
    ".globl netacc_waiting_start",
    ".hidden netacc_waiting_start",
    ".globl netacc_waiting_end",
    ".hidden netacc_waiting_end",
    ".globl netacc_waiting_refused",
    ".hidden netacc_waiting_refused",
    "netacc_waiting:",
    ".cfi_startproc",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, qword ptr [rsp + 8]",
    "mov rcx, qword ptr [rip + netacc_thread@gottpoff]",
    "netacc_waiting_start:",
    "cmp dword ptr fs:[rcx + 8], 0",
    "jne netacc_waiting_refused",
    // Cancelled, and not uncancellable.
    "cmp qword ptr fs:[rcx + 32], 1",
    "je netacc_waiting_refused",
    "syscall",
    "netacc_waiting_end:",
    "ret",
    "netacc_waiting_refused:",
    "mov rax, -512",
    "ret",
    ".cfi_endproc",
    ".size netacc_waiting, . - netacc_waiting",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl netacc_waiting",
    ".hidden netacc_waiting",
    ".type netacc_waiting,@function",
    ".globl netacc_waiting_start",
    ".hidden netacc_waiting_start",
    ".globl netacc_waiting_end",
    ".hidden netacc_waiting_end",
    ".globl netacc_waiting_refused",
    ".hidden netacc_waiting_refused",
    "netacc_waiting:",
    ".cfi_startproc",
    "mov x8, x0",
    "mov x0, x1",
    "mov x1, x2",
    "mov x2, x3",
    "mov x3, x4",
    "mov x4, x5",
    "mov x5, x6",
    "adrp x9, :gottprel:netacc_thread",
    "ldr x9, [x9, :gottprel_lo12:netacc_thread]",
    "mrs x10, tpidr_el0",
    "add x9, x9, x10",
    "netacc_waiting_start:",
    "ldr w10, [x9, #8]",
    "cbnz w10, netacc_waiting_refused",
    // Cancelled, and not uncancellable.
    "ldr x10, [x9, #32]",
    "cmp x10, #1",
    "b.eq netacc_waiting_refused",
    "svc 0",
    "netacc_waiting_end:",
    "ret",
    "netacc_waiting_refused:",
    "mov x0, #-512",
    "ret",
    ".cfi_endproc",
    ".size netacc_waiting, . - netacc_waiting",
);
const _: () = assert!(core::mem::offset_of!(Thread, pending) == 8);
const _: () = assert!(core::mem::offset_of!(Thread, put_off) == 12);

unsafe extern "C" {
    fn netacc_waiting(
        n: usize,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> isize;
    #[link_name = "netacc_waiting_start"]
    fn waiting_start();
    #[link_name = "netacc_waiting_end"]
    fn waiting_end();
    #[link_name = "netacc_waiting_refused"]
    fn waiting_refused();
}

/// A system call that may sleep. [`NOT_BEGUN`], or its result.
///
/// # Safety
/// As the system call itself demands of its arguments.
#[inline]
pub(crate) unsafe fn waiting(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe { netacc_waiting(n as usize, a, b, c, d, e, f) }
}

#[cfg(test)]
mod tests;
