//! The library run as a program: it says what it is, as libc does.
//!
//! A few instructions, because nothing is set up for more: the library names no dynamic linker
//! (`.interp`), so that the kernel maps it as it is, bound to nothing, and jumps to its entry point
//! (execve(2); load_elf_binary).

use core::arch::global_asm;

macro_rules! about {
    ($($instruction:literal),+) => {
        global_asm!(
            ".section .text.netacc_about, \"ax\", @progbits",
            ".globl netacc_about",
            ".hidden netacc_about",
            ".type netacc_about, @function",
            "netacc_about:",
            $($instruction,)+
            ".size netacc_about, . - netacc_about",
            // (Behind the code: in reach of its short addresses.)
            "2:",
            concat!(".ascii \"libnetacc-preload.so (netacc) ", env!("CARGO_PKG_VERSION"), "\\n\""),
            // (Nobody folds it: no line has more than 40 columns.)
            ".ascii \"To accelerate a program, start it with\\n\"",
            ".ascii \"netacc_run, or with this in LD_PRELOAD.\\n\"",
            "3:",
            ".text",
        );
    };
}

// write(1, text, length); exit_group(0).
#[cfg(target_arch = "x86_64")]
about!(
    "mov eax, 1",
    "mov edi, 1",
    "lea rsi, [rip + 2f]",
    "lea rdx, [rip + 3f]",
    "sub rdx, rsi",
    "syscall",
    "mov eax, 231",
    "xor edi, edi",
    "syscall",
    "ud2"
);

#[cfg(target_arch = "aarch64")]
about!(
    "mov x8, #64",
    "mov x0, #1",
    "adr x1, 2f",
    "adr x2, 3f",
    "sub x2, x2, x1",
    "svc #0",
    "mov x8, #94",
    "mov x0, #0",
    "svc #0",
    "udf #0"
);
