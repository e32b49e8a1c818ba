//! Jumps out of handlers.

use super::*;

/// glibc's sigjmp_buf, with room to spare.
#[repr(C, align(16))]
pub(super) struct JumpBuffer([u8; 512]);

pub(super) static mut BUFFER: JumpBuffer = JumpBuffer([0; 512]);
pub(super) static ARMED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn siglongjmp(buffer: *mut JumpBuffer, value: c_int) -> !;
}

pub(super) extern "C" fn jump(_: c_int) {
    if ARMED.swap(false, Relaxed) {
        // SAFETY: `catch` is on the stack, and what lies between has nothing to drop.
        unsafe { siglongjmp(&raw mut BUFFER, 1) }
    }
}

/// Runs `body`; true: a handler has jumped out of it. What returns twice is in assembly, so that
/// the compiler need not know.
pub(super) fn catch(body: &mut dyn FnMut(())) -> bool {
    type Body<'a> = &'a mut dyn FnMut(());
    extern "C" fn run(body: *mut c_void) {
        ARMED.store(true, Relaxed);
        // SAFETY: the caller's reference, which lives until `call` has returned.
        unsafe { (*body.cast::<Body<'_>>())(()) };
        ARMED.store(false, Relaxed);
    }
    let mut body = body;
    // SAFETY: one buffer, one thread; `run` is called once.
    unsafe { call(&raw mut BUFFER, run, (&raw mut body).cast()) != 0 }
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call(
    buffer: *mut JumpBuffer,
    run: extern "C" fn(*mut c_void),
    body: *mut c_void,
) -> c_int {
    core::arch::naked_asm!(
        "push rbx",
        "push r12",
        "sub rsp, 8",
        "mov rbx, rsi",
        "mov r12, rdx",
        "mov esi, 1",
        "call __sigsetjmp@PLT",
        "test eax, eax",
        "jne 2f",
        "mov rdi, r12",
        "call rbx",
        "xor eax, eax",
        "2: add rsp, 8",
        "pop r12",
        "pop rbx",
        "ret",
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call(
    buffer: *mut JumpBuffer,
    run: extern "C" fn(*mut c_void),
    body: *mut c_void,
) -> c_int {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x19, x20, [sp, #16]",
        "mov x29, sp",
        "mov x19, x1",
        "mov x20, x2",
        "mov w1, #1",
        "bl __sigsetjmp",
        "cbnz w0, 2f",
        "mov x0, x20",
        "blr x19",
        "mov w0, #0",
        "2: ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "ret",
    )
}
