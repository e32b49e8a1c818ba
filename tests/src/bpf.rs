//! A BPF map of sockets: the kernel is told by it to take what comes on one connection, and to send
//! it on another one. No call on the sockets themselves says so.

use crate::sys::{self, E, Fd};
use libc::c_long;

const BPF_MAP_CREATE: c_long = 0;
const BPF_MAP_UPDATE_ELEM: c_long = 2;
const BPF_PROG_LOAD: c_long = 5;
const BPF_PROG_ATTACH: c_long = 8;
const BPF_MAP_TYPE_SOCKMAP: u32 = 15;
const BPF_PROG_TYPE_SK_SKB: u32 = 14;
const BPF_SK_SKB_STREAM_VERDICT: u32 = 5;

/// Of `union bpf_attr`, what these commands use: 32-bit words, and pointers in two of them.
type Attr = [u32; 12];

fn bpf(command: c_long, attr: &mut Attr) -> Result<Fd, E> {
    // SAFETY: the attributes are of that size, and what they point to outlives the call.
    let r = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of::<Attr>()) };
    if r < 0 { Err(sys::errno()) } else { Ok(r as Fd) }
}

/// A pointer at an even word.
fn point(attr: &mut Attr, at: usize, to: *const u8) {
    let address = to as u64;
    let words: [u8; 8] = address.to_ne_bytes();
    attr[at] = u32::from_ne_bytes([words[0], words[1], words[2], words[3]]);
    attr[at + 1] = u32::from_ne_bytes([words[4], words[5], words[6], words[7]]);
}

/// One instruction: code, registers (the destination's in the low half), immediate value.
fn instruction(code: u8, registers: u8, value: i32) -> [u8; 8] {
    let v = value.to_ne_bytes();
    [code, registers, 0, 0, v[0], v[1], v[2], v[3]]
}

/// From now on the kernel sends on `to` what comes on `from`, and no call receives it. Both
/// returned descriptors have to stay. An error: the caller may not, or the kernel has none of this.
pub fn send_on(from: Fd, to: Fd) -> Result<[Fd; 2], E> {
    let mut attr: Attr = [0; 12];
    attr[..4].copy_from_slice(&[BPF_MAP_TYPE_SOCKMAP, 4, 4, 2]);
    let map = bpf(BPF_MAP_CREATE, &mut attr)?;
    // return bpf_sk_redirect_map(skb, map, 0, 0);
    let program = [
        instruction(0x18, 0x12, map),
        instruction(0, 0, 0),
        instruction(0xb7, 0x03, 0),
        instruction(0xb7, 0x04, 0),
        instruction(0x85, 0, 52),
        instruction(0x95, 0, 0),
    ];
    let mut attr: Attr = [0; 12];
    attr[..2].copy_from_slice(&[BPF_PROG_TYPE_SK_SKB, program.len() as u32]);
    point(&mut attr, 2, program.as_ptr().cast());
    point(&mut attr, 4, c"GPL".as_ptr().cast());
    let program = bpf(BPF_PROG_LOAD, &mut attr)?;
    let mut attr: Attr = [0; 12];
    attr[..3].copy_from_slice(&[map as u32, program as u32, BPF_SK_SKB_STREAM_VERDICT]);
    bpf(BPF_PROG_ATTACH, &mut attr)?;
    for (key, fd) in [(0u32, to), (1, from)] {
        let mut attr: Attr = [0; 12];
        attr[0] = map as u32;
        point(&mut attr, 2, (&raw const key).cast());
        point(&mut attr, 4, (&raw const fd).cast());
        bpf(BPF_MAP_UPDATE_ELEM, &mut attr)?;
    }
    Ok([map, program])
}
