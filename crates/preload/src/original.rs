//! The *next* symbols: where a hook goes with what is not ours.
//!
//! Every hook owns one [`Slot`], placed by the linker into one array. The constructor fills the
//! array by `dlsym(RTLD_NEXT)`. Until then a slot holds the address of a stub that looks its own
//! symbol up, stores it and jumps on with all arguments untouched; so the fast way has no "resolved
//! yet?" branch, and a call that comes before the constructor (another library's constructor, an
//! allocator that `dlsym` itself calls) works. Looking up twice is harmless: both find the same
//! address. There is no lock.
//!
//! The stubs and the hooks of C-variadic functions are written in assembly, because stable Rust can
//! neither define a variadic function nor promise a tail call.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A symbol's name and its next definition.
#[repr(C)]
pub(crate) struct Slot {
    /// The address to jump to: the next symbol's, or the stub's that will find it. Never null.
    next: AtomicPtr<c_void>,
    name: *const c_char,
}

// SAFETY: `name` points to a string literal; `next` is atomic.
unsafe impl Sync for Slot {}

impl Slot {
    /// A slot that `stub` serves until it is resolved.
    pub(crate) const fn new(name: &'static CStr, stub: extern "C" fn()) -> Slot {
        Slot { next: AtomicPtr::new(stub as *mut c_void), name: name.as_ptr() }
    }

    /// The address to call. Relaxed: the code behind every value that it ever holds is mapped
    /// before this library is.
    #[inline(always)]
    pub(crate) fn address(&self) -> *mut c_void {
        self.next.load(Relaxed)
    }

    /// Looks the symbol up and stores what was found. A symbol that libc lacks becomes a function
    /// that fails with ENOSYS.
    #[cold]
    pub(crate) fn resolve(&self) -> *mut c_void {
        // SAFETY: `name` is a C string; dlsym is thread-safe.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name) };
        let found = if found.is_null() { missing as *mut c_void } else { found };
        self.next.store(found, Relaxed);
        found
    }
}

// Every object with such a section has such bounds; these are nobody else's.
core::arch::global_asm!(".hidden __start_netacc_next", ".hidden __stop_netacc_next");

unsafe extern "C" {
    // The bounds of the section `netacc_next`, which holds nothing but slots; named so by the
    // linker.
    static __start_netacc_next: [Slot; 0];
    static __stop_netacc_next: [Slot; 0];
}

/// Resolves every slot (the constructor).
pub(crate) fn resolve_all() {
    let mut slot = (&raw const __start_netacc_next).cast::<Slot>();
    let end = (&raw const __stop_netacc_next).cast::<Slot>();
    let mut lacking = false;
    while slot < end {
        // SAFETY: `slot` lies between the bounds of an array of slots.
        let this = unsafe { &*slot };
        lacking |= core::ptr::eq(this.resolve(), missing as *mut c_void);
        slot = slot.wrapping_add(1);
    }
    if lacking {
        // SAFETY: thread-safe. A failed look-up leaves a message, which is not for the
        // application's next dlerror.
        unsafe { libc::dlerror() };
    }
}

/// Stands in for a symbol that this libc does not have.
extern "C" fn missing() -> isize {
    crate::errno::set(libc::ENOSYS);
    -1
}

/// What a stub calls: `slot` is its own.
pub(crate) extern "C" fn resolve_slot(slot: &Slot, _first: usize) -> *mut c_void {
    slot.resolve()
}

/// Calls a Rust function, then jumps to the address it returns with the caller's arguments restored
/// (integer and vector registers, and the stack, are as they came). x86-64: r11 = the slot, r10 =
/// the function; AArch64: x16 = the slot, x17 = the function. The function receives the slot and
/// the caller's first argument.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) extern "C" fn call_then_jump() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 192",
        "mov [rsp], rax",
        "mov [rsp + 8], rdi",
        "mov [rsp + 16], rsi",
        "mov [rsp + 24], rdx",
        "mov [rsp + 32], rcx",
        "mov [rsp + 40], r8",
        "mov [rsp + 48], r9",
        "movaps [rsp + 64], xmm0",
        "movaps [rsp + 80], xmm1",
        "movaps [rsp + 96], xmm2",
        "movaps [rsp + 112], xmm3",
        "movaps [rsp + 128], xmm4",
        "movaps [rsp + 144], xmm5",
        "movaps [rsp + 160], xmm6",
        "movaps [rsp + 176], xmm7",
        "mov rsi, rdi",
        "mov rdi, r11",
        "call r10",
        "mov r11, rax",
        "mov rax, [rsp]",
        "mov rdi, [rsp + 8]",
        "mov rsi, [rsp + 16]",
        "mov rdx, [rsp + 24]",
        "mov rcx, [rsp + 32]",
        "mov r8, [rsp + 40]",
        "mov r9, [rsp + 48]",
        "movaps xmm0, [rsp + 64]",
        "movaps xmm1, [rsp + 80]",
        "movaps xmm2, [rsp + 96]",
        "movaps xmm3, [rsp + 112]",
        "movaps xmm4, [rsp + 128]",
        "movaps xmm5, [rsp + 144]",
        "movaps xmm6, [rsp + 160]",
        "movaps xmm7, [rsp + 176]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "jmp r11",
        ".cfi_endproc",
    )
}

/// As on x86-64.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(crate) extern "C" fn call_then_jump() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-224]!",
        ".cfi_def_cfa_offset 224",
        ".cfi_offset x29, -224",
        ".cfi_offset x30, -216",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov x1, x0",
        "mov x0, x16",
        "blr x17",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldr x8, [sp, #80]",
        "ldp q0, q1, [sp, #96]",
        "ldp q2, q3, [sp, #128]",
        "ldp q4, q5, [sp, #160]",
        "ldp q6, q7, [sp, #192]",
        "ldp x29, x30, [sp], #224",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "br x16",
        ".cfi_endproc",
    )
}

/// The body of a naked function: calls `$function(slot, first argument)`, then jumps to the address
/// that it returns.
#[cfg(target_arch = "x86_64")]
macro_rules! call_then_jump {
    ($slot:path, $function:path) => {
        core::arch::naked_asm!(
            "lea r11, [rip + {slot}]",
            "lea r10, [rip + {function}]",
            "jmp {jump}",
            slot = sym $slot,
            function = sym $function,
            jump = sym $crate::original::call_then_jump,
        )
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! call_then_jump {
    ($slot:path, $function:path) => {
        core::arch::naked_asm!(
            "adrp x16, {slot}",
            "add x16, x16, :lo12:{slot}",
            "adrp x17, {function}",
            "add x17, x17, :lo12:{function}",
            "b {jump}",
            slot = sym $slot,
            function = sym $function,
            jump = sym $crate::original::call_then_jump,
        )
    };
}

/// A module with the slot of a symbol and the stub that resolves it.
macro_rules! slot {
    ($name:ident) => {
        #[allow(non_snake_case, reason = "libc's names")]
        pub(crate) mod $name {
            #[used]
            #[unsafe(link_section = "netacc_next")]
            pub(crate) static SLOT: $crate::original::Slot = $crate::original::Slot::new(
                match core::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
                stub,
            );

            #[unsafe(naked)]
            extern "C" fn stub() {
                call_then_jump!(SLOT, $crate::original::resolve_slot)
            }
        }
    };
}

/// Declares a hook: the exported symbol, its slot, and the check that libc declares it so.
///
/// - `fn name(args) -> ret = answer;`: the core's answer, or on [`netacc_core::api::PASS`] a jump
///   to the next symbol;
/// - `fn name(args) -> ret => answer;`: the same for a cancellation point;
/// - `fn name(args) -> ret |next| { body }`: the body calls `next` where it wants to;
/// - `unchecked fn …`: for symbols that the libc crate does not declare, or declares as variadic.
///
/// A thread that is cancelled inside the next symbol is unwound through the hook. So a hook holds
/// nothing over a call of `next` that needs dropping, and `next` has the type `extern "C"`: with
/// panic=abort the compiler puts a handler that aborts around every call of a C-unwind function, in
/// functions of that ABI too. Without handler the frame has its unwind table and no more, as a C
/// function's, and the call can be a jump.
macro_rules! hook {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $answer:expr;) => {
        const _: unsafe extern "C" fn($($ty),*) -> $ret = libc::$name;
        hook! { $(#[$meta])* unchecked fn $name($($arg: $ty),*) -> $ret = $answer; }
    };
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty => $answer:expr;) => {
        const _: unsafe extern "C" fn($($ty),*) -> $ret = libc::$name;
        hook! { $(#[$meta])* unchecked fn $name($($arg: $ty),*) -> $ret => $answer; }
    };
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty |$next:ident| $body:block) => {
        const _: unsafe extern "C" fn($($ty),*) -> $ret = libc::$name;
        hook! { $(#[$meta])* unchecked fn $name($($arg: $ty),*) -> $ret |$next| $body }
    };
    ($(#[$meta:meta])* unchecked fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $answer:expr;) => {
        hook! { @ ret $(#[$meta])* fn $name($($arg: $ty),*) -> $ret = $answer; }
    };
    ($(#[$meta:meta])* unchecked fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty => $answer:expr;) => {
        hook! { @ ret_at_point $(#[$meta])* fn $name($($arg: $ty),*) -> $ret = $answer; }
    };
    (@ $return:ident $(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $answer:expr;) => {
        slot!($name);
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "libc's names")]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            loop {
                // SAFETY: the arguments are the caller's, who answers for them as to libc.
                #[allow(unused_unsafe, reason = "some of the core's functions are safe")]
                let answer: netacc_core::api::Ret = unsafe { $answer };
                if answer > netacc_core::api::RESTART {
                    return $crate::errno::$return(answer) as $ret;
                }
                if answer == netacc_core::api::PASS {
                    let next = $name::SLOT.address();
                    // SAFETY: the slot holds a function of this signature.
                    let next: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { core::mem::transmute(next) };
                    // SAFETY: as above.
                    return unsafe { next($($arg),*) };
                }
                $crate::hooks::cancel::point();
            }
        }
    };
    ($(#[$meta:meta])* unchecked fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty |$next:ident| $body:block) => {
        slot!($name);
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "libc's names")]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            let $next = $name::SLOT.address();
            // SAFETY: the slot holds a function of this signature.
            let $next: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { core::mem::transmute($next) };
            // SAFETY: the arguments are the caller's, who answers for them as to libc.
            #[allow(unused_unsafe, reason = "some bodies do not call on")]
            unsafe {
                $body
            }
        }
    };
}

/// Declares the hook of a C-variadic symbol that is only watched: calls `$before(first argument)`,
/// then jumps to the next symbol with every argument, named or not, untouched.
macro_rules! watch {
    ($(#[$meta:meta])* fn $name:ident, $before:path) => {
        slot!($name);
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $name() {
            extern "C" fn before(slot: &$crate::original::Slot, first: usize) -> *mut core::ffi::c_void {
                $before(first);
                slot.address()
            }
            call_then_jump!($name::SLOT, before)
        }
    };
}
