//! What the compiler asks of a program without std: a panic handler, and the names that unwinding
//! code refers to.
//!
//! std is left out because it would bring symbols that are hooked (a backtrace opens and reads
//! files), thread-local destructors, a libgcc to load into every process, and a panic handler that
//! prints.

use core::panic::PanicInfo;

/// The library does not panic. If it does all the same, its state is not to be believed any more:
/// stop, silently.
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

// The precompiled `core` and `alloc` can unwind, and name these for it. Nothing unwinds here but a
// thread that is cancelled, which asks every frame's personality; "go on to the caller"
// (_URC_CONTINUE_UNWIND, 8) is the answer. Hidden: other libraries have symbols of these names.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    "mov eax, 8",
    "ret",
    ".hidden _Unwind_Resume",
    ".globl _Unwind_Resume",
    "_Unwind_Resume:",
    "ud2",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    "mov w0, #8",
    "ret",
    ".hidden _Unwind_Resume",
    ".globl _Unwind_Resume",
    "_Unwind_Resume:",
    "udf #0",
);
