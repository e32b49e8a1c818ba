//! The library run as a program: it says what it is, as libc does.
//!
//! A few instructions, because nothing is set up for more: the dynamic linker, named in `.interp`,
//! has loaded the library as the main program, whose constructors it leaves to the program.

use core::arch::global_asm;

macro_rules! about {
    ($interpreter:literal, $($instruction:literal),+) => {
        global_asm!(
            // (R: the linker keeps them, although nothing refers to them.)
            ".section .interp, \"aR\", @progbits",
            concat!(".asciz \"", $interpreter, "\""),
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
            ".ascii \"To accelerate a program, start it with netacc_run, or with this in LD_PRELOAD.\\n\"",
            "3:",
            ".text",
        );
    };
}

// write(1, text, length); exit_group(0).
#[cfg(target_arch = "x86_64")]
about!(
    "/lib64/ld-linux-x86-64.so.2",
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
    "/lib/ld-linux-aarch64.so.1",
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
