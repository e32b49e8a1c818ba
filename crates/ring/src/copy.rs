//! Copies between memory of ours and a buffer that may be bad.
//!
//! A caller of `send` or `recv` may give any address: not mapped, not writable, or behind the end
//! of a file that was cut short. The kernel answers EFAULT. Here the copy is one function whose
//! instructions all lie in one range of addresses, as the kernel's own (its exception table): a
//! handler of SIGSEGV and SIGBUS that finds the program counter in [`fault_range`] sets it to
//! [`FaultRange::resume`], and the copy returns [`BadAddress`]. The function has no frame, so
//! nothing else has to be put right. Who installs no such handler is where it would be with
//! `memcpy`.
//!
//! Measured against glibc's `memcpy` in `docs/adr/0012-bad-addresses.md`.

/// A copy met an address that cannot be read or written. How many bytes were copied before is not
/// known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadAddress;

/// Where a fault is one of [`copy`]'s.
#[derive(Debug, Clone, Copy)]
pub struct FaultRange {
    /// The first instruction.
    pub start: usize,
    /// Behind the last one.
    pub end: usize,
    /// Where to go on.
    pub resume: usize,
}

/// Copies `len` bytes.
///
/// # Safety
/// Each of `src` and `dst` is valid for `len` bytes, or memory that belongs to no object of this
/// program's own: not mapped, protected, or what the caller of a system call has named. They do not
/// overlap. Where one can be bad, faults in [`fault_range`] are handled as said above.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), BadAddress> {
    #[cfg(not(any(miri, loom)))]
    {
        // SAFETY: the function copies exactly that, touches no other memory and keeps the calling
        // convention.
        let bad = unsafe { netacc_ring_copy(dst, src, len) };
        if bad == 0 { Ok(()) } else { Err(BadAddress) }
    }
    #[cfg(any(miri, loom))]
    {
        // SAFETY: both are valid where nothing can fault.
        unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
        Ok(())
    }
}

/// As [`copy`], for `words` words of 8 bytes, one by one. There is at least one.
///
/// # Safety
/// As for [`copy`], with `8 * words` bytes. Neither has to be aligned.
#[inline]
pub unsafe fn copy_words(dst: *mut u64, src: *const u64, words: usize) -> Result<(), BadAddress> {
    #[cfg(not(any(miri, loom)))]
    {
        // SAFETY: the function copies exactly that, touches no other memory and keeps the calling
        // convention.
        let bad = unsafe { netacc_ring_copy_words(dst, src, words) };
        if bad == 0 { Ok(()) } else { Err(BadAddress) }
    }
    #[cfg(any(miri, loom))]
    {
        // SAFETY: as above.
        unsafe { copy(dst.cast(), src.cast(), words.wrapping_mul(8)) }
    }
}

/// Stores two values from registers: to copy them from where they have just been stored, in pieces,
/// would wait for all stores before.
///
/// # Safety
/// As for [`copy`], for 4 bytes at `first` and 8 bytes at `second`. Neither has to be aligned.
#[inline]
pub unsafe fn store(first: *mut u32, a: u32, second: *mut u64, b: u64) -> Result<(), BadAddress> {
    #[cfg(not(any(miri, loom)))]
    {
        // SAFETY: the function stores exactly that, touches no other memory and keeps the calling
        // convention.
        let bad = unsafe { netacc_ring_copy_store(first, a, second, b) };
        if bad == 0 { Ok(()) } else { Err(BadAddress) }
    }
    #[cfg(any(miri, loom))]
    {
        // SAFETY: valid where nothing can fault.
        unsafe { first.write_unaligned(a) };
        // SAFETY: as above.
        unsafe { second.write_unaligned(b) };
        Ok(())
    }
}

/// Whether two bytes can be read and written: each is given the value that it has.
///
/// # Safety
/// As for [`copy`], for a byte at each of both addresses, which may be the same.
#[inline]
pub unsafe fn rewrite(first: *mut u8, last: *mut u8) -> Result<(), BadAddress> {
    #[cfg(not(any(miri, loom)))]
    {
        // SAFETY: the function changes nothing and keeps the calling convention.
        let bad = unsafe { netacc_ring_copy_rewrite(first, last) };
        if bad == 0 { Ok(()) } else { Err(BadAddress) }
    }
    #[cfg(any(miri, loom))]
    {
        let _ = (first, last);
        Ok(())
    }
}

/// The instructions of [`copy`] and its relatives.
#[must_use]
pub fn fault_range() -> FaultRange {
    #[cfg(not(any(miri, loom)))]
    {
        FaultRange {
            start: netacc_ring_copy as *const () as usize,
            end: netacc_ring_copy_fault as *const () as usize,
            resume: netacc_ring_copy_fault as *const () as usize,
        }
    }
    #[cfg(any(miri, loom))]
    {
        FaultRange { start: 0, end: 0, resume: 0 }
    }
}

/// Lets longer copies use what this processor is good at. Called once, or never.
pub fn tune() {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    set_rep_from(if has_fast_rep() { 2048 } else { usize::MAX });
}

/// Copies of so many bytes (at least 65) and more are left to `rep movsb`.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
pub(crate) fn set_rep_from(bytes: usize) {
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    // SAFETY: an aligned word of ours that is only ever used as a threshold.
    let rep = unsafe { AtomicUsize::from_ptr((&raw const netacc_ring_copy_rep_from).cast_mut()) };
    rep.store(bytes, Relaxed);
}

/// Enhanced `rep movsb` (leaf 7, EBX bit 9) that is worth its name. AMD's processors from Zen 3 on
/// have the bit, and copy a tenth as fast between addresses that are not alike in their low bits
/// (glibc's bug 30994).
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
pub(crate) fn has_fast_rep() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let leaf = __cpuid(0);
    let mut vendor = [0u8; 12];
    for (to, from) in vendor.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    &vendor == b"GenuineIntel" && leaf.eax >= 7 && __cpuid_count(7, 0).ebx & 1 << 9 != 0
}

#[cfg(not(any(miri, loom)))]
unsafe extern "C" {
    /// 0, or 1 after a fault.
    fn netacc_ring_copy(dst: *mut u8, src: *const u8, len: usize) -> u32;
    /// The same for words, of which there is at least one.
    fn netacc_ring_copy_words(dst: *mut u64, src: *const u64, words: usize) -> u32;
    fn netacc_ring_copy_store(first: *mut u32, a: u32, second: *mut u64, b: u64) -> u32;
    fn netacc_ring_copy_rewrite(first: *mut u8, last: *mut u8) -> u32;
    /// Not to be called: where a fault goes on. The last instructions of the above.
    fn netacc_ring_copy_fault();
    #[cfg(target_arch = "x86_64")]
    static netacc_ring_copy_rep_from: usize;
}

// Short copies load everything before they store anything, in pieces that overlap; longer ones go
// in blocks of 64 bytes, the last of which overlaps the one before and is loaded first. That is the
// best between two CPUs; the decision has the numbers.
#[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
core::arch::global_asm!(
    ".pushsection .data.netacc_ring_copy,\"aw\",@progbits",
    ".hidden netacc_ring_copy_rep_from",
    ".globl netacc_ring_copy_rep_from",
    ".p2align 3",
    "netacc_ring_copy_rep_from:",
    ".quad -1",
    ".popsection",
    ".pushsection .text.netacc_ring_copy,\"ax\",@progbits",
    ".hidden netacc_ring_copy",
    ".globl netacc_ring_copy",
    ".hidden netacc_ring_copy_words",
    ".globl netacc_ring_copy_words",
    ".hidden netacc_ring_copy_store",
    ".globl netacc_ring_copy_store",
    ".hidden netacc_ring_copy_rewrite",
    ".globl netacc_ring_copy_rewrite",
    ".hidden netacc_ring_copy_fault",
    ".globl netacc_ring_copy_fault",
    ".type netacc_ring_copy,@function",
    ".type netacc_ring_copy_words,@function",
    ".p2align 6",
    "netacc_ring_copy:",
    ".cfi_startproc",
    "cmp rdx, 16",
    "jb 20f",
    "cmp rdx, 32",
    "ja 30f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    // 33 to 64
    "30:",
    "cmp rdx, 64",
    "ja 40f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    // 65 and more
    "40:",
    "cmp rdx, [rip + netacc_ring_copy_rep_from]",
    "jae 80f",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "lea rcx, [rdi + rdx - 64]",
    "50:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, rcx",
    "jb 50b",
    "movups [rcx], xmm4",
    "movups [rcx + 16], xmm5",
    "movups [rcx + 32], xmm6",
    "movups [rcx + 48], xmm7",
    "xor eax, eax",
    "ret",
    // 8 to 15
    "20:",
    "cmp edx, 8",
    "jb 60f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    // 4 to 7
    "60:",
    "cmp edx, 4",
    "jb 70f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    // 0 to 3
    "70:",
    "test edx, edx",
    "je 72f",
    "movzx eax, byte ptr [rsi]",
    "movzx ecx, byte ptr [rsi + rdx - 1]",
    "cmp edx, 2",
    "jbe 71f",
    "movzx r8d, byte ptr [rsi + 1]",
    "mov [rdi + 1], r8b",
    "71:",
    "mov [rdi], al",
    "mov [rdi + rdx - 1], cl",
    "72:",
    "xor eax, eax",
    "ret",
    "80:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "netacc_ring_copy_words:",
    "dec rdx",
    "jle 111f",
    "110:",
    "mov rax, [rsi]",
    "mov rcx, [rsi + 8]",
    "mov [rdi], rax",
    "mov [rdi + 8], rcx",
    "add rsi, 16",
    "add rdi, 16",
    "sub rdx, 2",
    "jg 110b",
    "jl 112f",
    "111:",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "112:",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "netacc_ring_copy_store:",
    "mov [rdi], esi",
    "mov [rdx], rcx",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "netacc_ring_copy_rewrite:",
    "mov al, [rdi]",
    "mov [rdi], al",
    "mov al, [rsi]",
    "mov [rsi], al",
    "xor eax, eax",
    "ret",
    "netacc_ring_copy_fault:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size netacc_ring_copy, . - netacc_ring_copy",
    ".popsection",
);

#[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
core::arch::global_asm!(
    ".pushsection .text.netacc_ring_copy,\"ax\",@progbits",
    ".hidden netacc_ring_copy",
    ".globl netacc_ring_copy",
    ".hidden netacc_ring_copy_words",
    ".globl netacc_ring_copy_words",
    ".hidden netacc_ring_copy_store",
    ".globl netacc_ring_copy_store",
    ".hidden netacc_ring_copy_rewrite",
    ".globl netacc_ring_copy_rewrite",
    ".hidden netacc_ring_copy_fault",
    ".globl netacc_ring_copy_fault",
    ".type netacc_ring_copy,@function",
    ".type netacc_ring_copy_words,@function",
    ".p2align 6",
    "netacc_ring_copy:",
    ".cfi_startproc",
    "add x3, x1, x2",
    "add x4, x0, x2",
    "cmp x2, #16",
    "b.lo 20f",
    "cmp x2, #32",
    "b.hi 30f",
    "ldr q0, [x1]",
    "ldur q1, [x3, #-16]",
    "str q0, [x0]",
    "stur q1, [x4, #-16]",
    "mov w0, #0",
    "ret",
    // 33 to 64
    "30:",
    "cmp x2, #64",
    "b.hi 40f",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x3, #-32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x4, #-32]",
    "mov w0, #0",
    "ret",
    // 65 and more
    "40:",
    "ldp q4, q5, [x3, #-64]",
    "ldp q6, q7, [x3, #-32]",
    "sub x4, x4, #64",
    "50:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "cmp x0, x4",
    "b.lo 50b",
    "stp q4, q5, [x4]",
    "stp q6, q7, [x4, #32]",
    "mov w0, #0",
    "ret",
    // 8 to 15
    "20:",
    "tbz x2, #3, 60f",
    "ldr x5, [x1]",
    "ldur x6, [x3, #-8]",
    "str x5, [x0]",
    "stur x6, [x4, #-8]",
    "mov w0, #0",
    "ret",
    // 4 to 7
    "60:",
    "tbz x2, #2, 70f",
    "ldr w5, [x1]",
    "ldur w6, [x3, #-4]",
    "str w5, [x0]",
    "stur w6, [x4, #-4]",
    "mov w0, #0",
    "ret",
    // 0 to 3
    "70:",
    "cbz x2, 72f",
    "ldrb w5, [x1]",
    "ldurb w6, [x3, #-1]",
    "cmp x2, #2",
    "b.ls 71f",
    "ldrb w7, [x1, #1]",
    "strb w7, [x0, #1]",
    "71:",
    "strb w5, [x0]",
    "sturb w6, [x4, #-1]",
    "72:",
    "mov w0, #0",
    "ret",
    "netacc_ring_copy_words:",
    "80:",
    "ldr x5, [x1], #8",
    "str x5, [x0], #8",
    "subs x2, x2, #1",
    "b.ne 80b",
    "mov w0, #0",
    "ret",
    "netacc_ring_copy_store:",
    "str w1, [x0]",
    "str x3, [x2]",
    "mov w0, #0",
    "ret",
    "netacc_ring_copy_rewrite:",
    "ldrb w5, [x0]",
    "strb w5, [x0]",
    "ldrb w5, [x1]",
    "strb w5, [x1]",
    "mov w0, #0",
    "ret",
    "netacc_ring_copy_fault:",
    "mov w0, #1",
    "ret",
    ".cfi_endproc",
    ".size netacc_ring_copy, . - netacc_ring_copy",
    ".popsection",
);
