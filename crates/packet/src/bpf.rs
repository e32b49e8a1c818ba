//! `bpf(2)`, and programs as lists of instructions (RFC 9669). No compiler, no library.

use crate::sys::{Errno, Fd, checked, syscall};
use alloc::vec::Vec;
use core::ffi::c_int;

/// A register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct R(pub(crate) u8);

/// The result, and scratch.
pub(crate) const R0: R = R(0);
/// The first argument, and scratch.
pub(crate) const R1: R = R(1);
/// The others.
pub(crate) const R2: R = R(2);
pub(crate) const R3: R = R(3);
pub(crate) const R4: R = R(4);
pub(crate) const R5: R = R(5);
/// Kept by calls.
pub(crate) const R6: R = R(6);
pub(crate) const R7: R = R(7);
/// The end of the stack frame.
pub(crate) const R10: R = R(10);

/// How wide a load or store is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Width {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
    Double = 0x18,
}

/// A place that is jumped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(pub(crate) u8);

/// A program under construction. Jumps go forward only.
#[derive(Debug, Default)]
pub(crate) struct Program {
    instructions: Vec<[u8; 8]>,
    /// Jumps whose label has not been placed: where each stands.
    open: Vec<(Label, usize)>,
}

impl Program {
    fn push(&mut self, code: u8, (to, from): (R, R), offset: i16, value: i32) {
        let [o0, o1] = offset.to_ne_bytes();
        let [v0, v1, v2, v3] = value.to_ne_bytes();
        // (The order of the two halves is the machine's: both that are built for are little.)
        let registers = to.0 | from.0 << 4;
        self.instructions.push([code, registers, o0, o1, v0, v1, v2, v3]);
    }

    /// `to = from`.
    pub(crate) fn copy(&mut self, to: R, from: R) {
        self.push(0xbf, (to, from), 0, 0);
    }

    /// `to = value`.
    pub(crate) fn set(&mut self, to: R, value: i32) {
        self.push(0xb7, (to, R0), 0, value);
    }

    /// `to += value`.
    pub(crate) fn add(&mut self, to: R, value: i32) {
        self.push(0x07, (to, R0), 0, value);
    }

    /// `to &= value`.
    pub(crate) fn and(&mut self, to: R, value: i32) {
        self.push(0x57, (to, R0), 0, value);
    }

    /// `to = from[offset]`.
    pub(crate) fn load(&mut self, width: Width, to: R, (from, offset): (R, i16)) {
        self.push(0x61 | width as u8, (to, from), offset, 0);
    }

    /// `to[offset] = from`.
    pub(crate) fn store(&mut self, width: Width, (to, offset): (R, i16), from: R) {
        self.push(0x63 | width as u8, (to, from), offset, 0);
    }

    /// `to[offset] = value`.
    pub(crate) fn store_value(&mut self, width: Width, (to, offset): (R, i16), value: i32) {
        self.push(0x62 | width as u8, (to, R0), offset, value);
    }

    /// `to` = the map behind a descriptor.
    pub(crate) fn map(&mut self, to: R, fd: c_int) {
        const PSEUDO_MAP_FD: R = R(1);
        self.push(0x18, (to, PSEUDO_MAP_FD), 0, fd);
        self.push(0, (R0, R0), 0, 0);
    }

    /// Calls a helper.
    pub(crate) fn call(&mut self, helper: i32) {
        self.push(0x85, (R0, R0), 0, helper);
    }

    /// Goes on there.
    pub(crate) fn go(&mut self, label: Label) {
        self.jump(0x05, (R0, R0), 0, label);
    }

    /// Goes on there if `a == value`.
    pub(crate) fn if_is(&mut self, a: R, value: i32, label: Label) {
        self.jump(0x15, (a, R0), value, label);
    }

    /// Goes on there if `a != value`.
    pub(crate) fn unless_is(&mut self, a: R, value: i32, label: Label) {
        self.jump(0x55, (a, R0), value, label);
    }

    /// Goes on there if `a == b`.
    pub(crate) fn if_same(&mut self, a: R, b: R, label: Label) {
        self.jump(0x1d, (a, b), 0, label);
    }

    fn jump(&mut self, code: u8, registers: (R, R), value: i32, label: Label) {
        self.open.push((label, self.instructions.len()));
        self.push(code, registers, 0, value);
    }

    /// The jumps to this label arrive here.
    pub(crate) fn place(&mut self, label: Label) {
        let here = self.instructions.len();
        let instructions = &mut self.instructions;
        self.open.retain(|&(of, at)| {
            let distance = i16::try_from(here - at - 1).unwrap_or(i16::MAX).to_ne_bytes();
            match instructions.get_mut(at) {
                Some([_, _, o0, o1, ..]) if of == label => {
                    [*o0, *o1] = distance;
                    false
                }
                _ => true,
            }
        });
    }

    /// The program ends with this value.
    pub(crate) fn end(&mut self, value: i32) {
        self.set(R0, value);
        self.push(0x95, (R0, R0), 0, 0);
    }
}

/// What a program is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A filter of a socket.
    Filter = 1,
    /// Traffic control.
    Traffic = 3,
}

const COMMAND_MAP: i64 = 0;
const COMMAND_UPDATE: i64 = 2;
const COMMAND_DELETE: i64 = 3;
const COMMAND_LOAD: i64 = 5;
const COMMAND_LINK: i64 = 28;

/// `bpf(2)`; `attributes` is the beginning of `union bpf_attr`.
fn bpf(command: i64, attributes: &[u32]) -> isize {
    let (at, size) = (attributes.as_ptr() as usize, size_of_val(attributes));
    // SAFETY: the kernel reads the live slice. The addresses in it are of live memory, as each
    // caller says.
    unsafe { syscall(libc::SYS_bpf, [command as usize, at, size, 0, 0, 0]) }
}

/// An address, as two words of `union bpf_attr`.
fn address<T>(of: &[T]) -> [u32; 2] {
    let at = (of.as_ptr() as u64).to_ne_bytes();
    let [a, b, c, d, e, f, g, h] = at;
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// A hash map.
pub(crate) fn hash_map(key: usize, value: usize, capacity: u32) -> Result<Fd, Errno> {
    const HASH: u32 = 1;
    const NO_PREALLOCATION: u32 = 1;
    let sizes = [key, value].map(|size| u32::try_from(size).unwrap_or(0));
    let [key, value] = sizes;
    Fd::new(bpf(COMMAND_MAP, &[HASH, key, value, capacity, NO_PREALLOCATION]))
}

/// Puts an entry into a map, or changes it.
pub(crate) fn update(map: c_int, key: &[u8], value: &[u8]) -> Result<(), Errno> {
    let ([k0, k1], [v0, v1]) = (address(key), address(value));
    // (Both are as long as the map says; any flags are 0.)
    checked(bpf(COMMAND_UPDATE, &[map as u32, 0, k0, k1, v0, v1, 0, 0])).map(|_| ())
}

/// Takes an entry out of a map.
pub(crate) fn delete(map: c_int, key: &[u8]) -> Result<(), Errno> {
    let [k0, k1] = address(key);
    checked(bpf(COMMAND_DELETE, &[map as u32, 0, k0, k1, 0, 0, 0, 0])).map(|_| ())
}

/// Loads a program.
pub(crate) fn load(kind: Kind, program: &Program) -> Result<Fd, Errno> {
    const LICENCE: &[u8] = b"Apache-2.0\0";
    let [i0, i1] = address(&program.instructions);
    let [l0, l1] = address(LICENCE);
    let count = u32::try_from(program.instructions.len()).unwrap_or(0);
    // prog_type, insn_cnt, insns, license, log_level, log_size, log_buf, kern_version, prog_flags.
    Fd::new(bpf(COMMAND_LOAD, &[kind as u32, count, i0, i1, l0, l1, 0, 0, 0, 0, 0, 0]))
}

/// Attaches a program to a device, for as long as the descriptor lives.
pub(crate) fn link(program: &Fd, interface: u32, attach_type: u32) -> Result<Fd, Errno> {
    let attributes = [program.number() as u32, interface, attach_type, 0, 0, 0, 0, 0];
    Fd::new(bpf(COMMAND_LINK, &attributes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_arrive_where_their_label_is() {
        let mut program = Program::default();
        let (a, b) = (Label(0), Label(1));
        program.if_is(R1, 5, a);
        program.go(b);
        program.set(R2, 7);
        program.place(a);
        program.end(1);
        program.place(b);
        program.end(2);
        let offset = |at: usize| {
            i16::from_ne_bytes([program.instructions[at][2], program.instructions[at][3]])
        };
        assert_eq!((offset(0), offset(1)), (2, 3));
        assert!(program.open.is_empty());
        assert_eq!(program.instructions[0], [0x15, 1, 2, 0, 5, 0, 0, 0]);
    }
}
