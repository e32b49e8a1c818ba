//! SHA-256 (FIPS 180-4), for what one end commits itself to before it hears the other.

/// The digest of some bytes.
#[must_use]
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = FIRST;
    let mut block = [0u8; 64];
    let (mut filled, mut length) = (0usize, 0u64);
    let ending = [0x80u8];
    for byte in parts.iter().copied().flatten().chain(&ending) {
        if let Some(to) = block.get_mut(filled) {
            *to = *byte;
        }
        filled = filled.wrapping_add(1);
        length = length.wrapping_add(8);
        if filled == block.len() {
            compress(&mut state, &block);
            (block, filled) = ([0; 64], 0);
        }
    }
    if filled > 56 {
        compress(&mut state, &block);
        block = [0; 64];
    }
    // (The ending is not counted.)
    let (_, last) = block.split_at_mut(56);
    last.copy_from_slice(&length.wrapping_sub(8).to_be_bytes());
    compress(&mut state, &block);
    let mut digest = [0u8; 32];
    for (to, word) in digest.chunks_exact_mut(4).zip(state) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn compress(state: &mut [u32; 8], block: &[u8; 64]) {
    // The last sixteen words of the schedule.
    let mut words = [0u32; 16];
    for (to, from) in words.iter_mut().zip(block.chunks_exact(4)) {
        *to = from.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for k in ROUNDS {
        let [w, w1, .., w14, _] = words;
        let w9 = words[9];
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let t1 =
            h.wrapping_add(s1).wrapping_add((e & f) ^ (!e & g)).wrapping_add(k).wrapping_add(w);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let t2 = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
        (h, g, f, e) = (g, f, e, d.wrapping_add(t1));
        (d, c, b, a) = (c, b, a, t1.wrapping_add(t2));
        let next = (w14.rotate_right(17) ^ w14.rotate_right(19) ^ w14 >> 10)
            .wrapping_add(w9)
            .wrapping_add(w1.rotate_right(7) ^ w1.rotate_right(18) ^ w1 >> 3)
            .wrapping_add(w);
        words.rotate_left(1);
        words[15] = next;
    }
    for (to, more) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *to = to.wrapping_add(more);
    }
}

const FIRST: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];
const ROUNDS: [u32; 64] = [
    0x428a_2f98,
    0x7137_4491,
    0xb5c0_fbcf,
    0xe9b5_dba5,
    0x3956_c25b,
    0x59f1_11f1,
    0x923f_82a4,
    0xab1c_5ed5,
    0xd807_aa98,
    0x1283_5b01,
    0x2431_85be,
    0x550c_7dc3,
    0x72be_5d74,
    0x80de_b1fe,
    0x9bdc_06a7,
    0xc19b_f174,
    0xe49b_69c1,
    0xefbe_4786,
    0x0fc1_9dc6,
    0x240c_a1cc,
    0x2de9_2c6f,
    0x4a74_84aa,
    0x5cb0_a9dc,
    0x76f9_88da,
    0x983e_5152,
    0xa831_c66d,
    0xb003_27c8,
    0xbf59_7fc7,
    0xc6e0_0bf3,
    0xd5a7_9147,
    0x06ca_6351,
    0x1429_2967,
    0x27b7_0a85,
    0x2e1b_2138,
    0x4d2c_6dfc,
    0x5338_0d13,
    0x650a_7354,
    0x766a_0abb,
    0x81c2_c92e,
    0x9272_2c85,
    0xa2bf_e8a1,
    0xa81a_664b,
    0xc24b_8b70,
    0xc76c_51a3,
    0xd192_e819,
    0xd699_0624,
    0xf40e_3585,
    0x106a_a070,
    0x19a4_c116,
    0x1e37_6c08,
    0x2748_774c,
    0x34b0_bcb5,
    0x391c_0cb3,
    0x4ed8_aa4a,
    0x5b9c_ca4f,
    0x682e_6ff3,
    0x748f_82ee,
    0x78a5_636f,
    0x84c8_7814,
    0x8cc7_0208,
    0x90be_fffa,
    0xa450_6ceb,
    0xbef9_a3f7,
    0xc671_78f2,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, string::String, vec};

    fn hex(parts: &[&[u8]]) -> String {
        sha256(parts).iter().map(|b| format!("{b:02x}")).collect()
    }

    /// FIPS 180-4's examples, and every place at which the padding can begin.
    #[test]
    fn digests_are_those_of_the_standard() {
        assert_eq!(hex(&[b""]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&[b"abc"]), abc);
        assert_eq!(hex(&[b"a", b"", b"bc"]), abc);
        assert_eq!(
            hex(&[b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"]),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        );
        assert_eq!(
            hex(&[&vec![b'a'; 1_000_000]]),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
        );
        let all: String = (0..130).map(|n| hex(&[&vec![n as u8; n]])).collect();
        assert_eq!(
            hex(&[all.as_bytes()]),
            "e108a5d0d82f909d2dfc8500881efeb1254cd3cedf04c1891665ab484c120788"
        );
    }
}
