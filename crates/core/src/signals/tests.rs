use super::*;
use crate::testing::alone_in_child;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

static RAN: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: c_int) {
    RAN.fetch_add(1, Relaxed);
}

fn blocked() -> u64 {
    let mask = sys::hold_signals();
    sys::restore_signals(mask);
    mask
}

#[test]
fn inside_of_a_section_no_signal_is_blocked() {
    assert!(alone_in_child(|| {
        let before = blocked();
        let section = enter();
        let held = hold_back();
        let mut fine = held.is_none() && blocked() == before;
        go_on(held);
        let _ = leave(section);
        let held = hold_back();
        fine &= held == Some(before) && blocked() != before;
        go_on(held);
        fine && blocked() == before
    }));
}

/// What the kernel gives a handler of `signal`, that has interrupted this thread at `pc` with
/// its stack at `sp`.
fn interrupted(signal: c_int, pc: usize, sp: usize) -> (siginfo_t, ucontext_t) {
    // SAFETY: integers and null pointers.
    let (mut info, mut context): (siginfo_t, ucontext_t) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    (info.si_signo, info.si_code) = (signal, libc::SI_QUEUE);
    #[cfg(target_arch = "x86_64")]
    {
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = sp as i64;
    }
    #[cfg(target_arch = "aarch64")]
    {
        context.uc_mcontext.sp = sp as u64;
    }
    // SAFETY: of the context above; the mask has room for 64 bits.
    unsafe {
        *registers(&mut context).0 = pc;
        (&raw mut context.uc_sigmask).cast::<u64>().write_unaligned(blocked());
    }
    (info, context)
}

/// As its handler would. The program counter behind it; `None`: the signal was not put back.
fn comes(signal: c_int, pc: usize, sp: usize) -> Option<usize> {
    let (info, mut context) = interrupted(signal, pc, sp);
    // SAFETY: as the kernel's.
    unsafe { put_back(signal, &info, &mut context).then(|| *registers(&mut context).0) }
}

fn handle(signal: c_int, flags: c_int) {
    // SAFETY: a handler that counts, for a signal that nothing else uses here.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (count as *const () as usize, flags);
        assert_eq!(libc::sigaction(signal, &action, core::ptr::null_mut()), 0);
    }
}

// In a child there are no other tests' threads and signals.
#[test]
fn a_signal_waits_for_the_end_of_the_outermost_section() {
    assert!(alone_in_child(|| {
        let (signal, before) = (libc::SIGRTMAX() - 4, blocked());
        let mut fine = comes(signal, 0, stack_pointer()).is_none();
        for (flags, restarts) in [(libc::SA_RESTART, true), (0, false)] {
            handle(signal, flags);
            RAN.store(0, Relaxed);
            let outer = enter();
            let inner = enter();
            fine &= comes(signal, 0, stack_pointer()).is_some() && RAN.load(Relaxed) == 0;
            fine &= pending().is_some_and(|p| p.restarts == restarts);
            // SAFETY: getpid(2).
            fine &= unsafe { waiting(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) } == NOT_BEGUN;
            fine &= leave(inner) && RAN.load(Relaxed) == 0;
            fine &= !leave(outer)
                && RAN.load(Relaxed) == 1
                && pending().is_none()
                && blocked() == before;
            // SAFETY: as above.
            fine &= unsafe { waiting(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) } > 0;
        }
        fine
    }));
}

/// The handler's own mask, which `put_back` finds in force, is over when the section is.
#[test]
fn behind_a_section_nothing_is_blocked_that_was_not() {
    assert!(alone_in_child(|| {
        let (signal, before) = (libc::SIGRTMAX() - 4, blocked());
        handle(signal, 0);
        let section = enter();
        let (info, mut context) = interrupted(signal, 0, stack_pointer());
        sys::restore_signals(before | 1 << (signal - 1) | 1 << (libc::SIGUSR1 - 1));
        // SAFETY: as the kernel's.
        let back = unsafe { put_back(signal, &info, &mut context) };
        // SAFETY: 64 bits, as above.
        let all = unsafe { (&raw const context.uc_sigmask).cast::<u64>().read_unaligned() }
            == !sys::FAULTS;
        let _ = leave(section);
        back && all && RAN.load(Relaxed) == 1 && blocked() == before
    }));
}

#[test]
fn who_is_about_to_sleep_does_not() {
    assert!(alone_in_child(|| {
        let signal = libc::SIGRTMAX() - 4;
        handle(signal, 0);
        let [start, end, refused] =
            [waiting_start, waiting_end, waiting_refused].map(|f| f as *const () as usize);
        let moved = |pc| {
            let section = enter();
            let at = comes(signal, pc, stack_pointer());
            let _ = leave(section);
            at
        };
        // Behind the call there is the kernel's answer.
        (start..end).all(|pc| moved(pc) == Some(refused))
            && [start - 1, end].iter().all(|pc| moved(*pc) == Some(*pc))
    }));
}

/// A fault's handler has jumped out: the thread stands above where the section began, or on
/// another stack.
#[test]
fn a_section_that_was_jumped_out_of_is_over() {
    assert!(alone_in_child(|| {
        let signal = libc::SIGRTMAX() - 4;
        handle(signal, 0);
        let begin = stack_pointer();
        let alive = |sp| {
            let section = enter();
            let back = comes(signal, 0, sp).is_some();
            !leave(section) && back
        };
        let over = |sp| {
            let _lost = enter();
            comes(signal, 0, sp).is_none() && enter_first().map(leave) == Some(false)
        };
        alive(begin)
            && alive(begin - DEPTH / 2)
            && over(begin + 4 * FRAME)
            && over(begin - 2 * DEPTH)
    }));
}

/// What comes though all is blocked cannot wait: it is such as no mask holds.
#[test]
fn one_signal_is_put_back_at_a_time() {
    assert!(alone_in_child(|| {
        let signal = libc::SIGRTMAX() - 4;
        handle(signal, 0);
        let section = enter();
        let first = comes(signal, 0, stack_pointer()).is_some();
        let second = |mask: u64| {
            let (info, mut context) = interrupted(signal, 0, stack_pointer());
            // SAFETY: 64 bits, as above; as the kernel's.
            unsafe {
                (&raw mut context.uc_sigmask).cast::<u64>().write_unaligned(mask);
                put_back(signal, &info, &mut context)
            }
        };
        let at_once = !second(!sys::FAULTS & !sys::UNBLOCKABLE);
        // (By a handler that is not ours, which was over before the section is.)
        let again = second(0);
        let _ = leave(section);
        first && at_once && again && RAN.load(Relaxed) == 2
    }));
}

#[test]
fn what_finds_no_room_in_the_queue_runs_at_once() {
    assert!(alone_in_child(|| {
        let (signal, before) = (libc::SIGRTMAX() - 4, blocked());
        handle(signal, 0);
        // SAFETY: setrlimit(2) of this process.
        let none = unsafe {
            libc::setrlimit(libc::RLIMIT_SIGPENDING, &libc::rlimit { rlim_cur: 0, rlim_max: 0 })
        } == 0;
        let section = enter();
        let now = comes(signal, 0, stack_pointer()).is_none();
        let open = blocked() == before;
        !leave(section) && none && now && open && RAN.load(Relaxed) == 0
    }));
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// How far the thread below has come: it is in the section; it may end that; it is about to; it is
/// behind it.
static STEP: AtomicU32 = AtomicU32::new(0);
const INSIDE: u32 = 1;
const MAY_END: u32 = 2;
const ENDS: u32 = 3;
const BEHIND: u32 = 4;

// (No frame of it has anything to drop.)
extern "C-unwind" fn in_a_section(_: *mut c_void) -> *mut c_void {
    may_end_anywhere(true);
    // SAFETY: the old kind is of no interest.
    unsafe { pthread_setcanceltype(1, core::ptr::null_mut()) };
    let section = enter();
    STEP.store(INSIDE, Relaxed);
    while STEP.load(Relaxed) == INSIDE {
        core::hint::spin_loop();
    }
    STEP.store(ENDS, Relaxed);
    let _ = leave(section);
    STEP.store(BEHIND, Relaxed);
    core::ptr::null_mut()
}

/// Also the first one that is cancelled, for which libc has no handler before.
#[test]
fn a_thread_that_ends_at_any_instruction_ends_behind_its_section() {
    crate::testing::init();
    assert!(alone_in_child(|| {
        crate::wait::looks::note_asynchronous();
        let mut fine = true;
        for _ in 0..3 {
            STEP.store(0, Relaxed);
            let mut thread = 0;
            // SAFETY: an entry that may unwind is called as any other; the thread is joined below.
            unsafe {
                let entry: extern "C" fn(*mut c_void) -> *mut c_void = core::mem::transmute(
                    in_a_section as extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                );
                let (attributes, argument) = (core::ptr::null(), core::ptr::null_mut());
                fine &= libc::pthread_create(&mut thread, attributes, entry, argument) == 0;
            }
            while STEP.load(Relaxed) != INSIDE {
                std::thread::yield_now();
            }
            // SAFETY: threads that nobody has joined.
            let mut cancel = |thread| _ = unsafe { pthread_cancel(thread) };
            crate::api::before_cancel(&mut cancel);
            cancel(thread);
            std::thread::sleep(std::time::Duration::from_millis(30));
            fine &= STEP.load(Relaxed) == INSIDE;
            STEP.store(MAY_END, Relaxed);
            // SAFETY: as above.
            fine &= unsafe { libc::pthread_join(thread, core::ptr::null_mut()) } == 0;
            fine &= STEP.load(Relaxed) == ENDS;
        }
        fine
    }));
}
