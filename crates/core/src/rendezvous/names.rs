//! The names of unix sockets by which processes of a host find each other.

use super::decimal_path;

/// `sockaddr_un` of an advert, and its length.
pub(crate) fn advert_name(port: u16, k: u8) -> ([u8; 48], usize) {
    let mut number = [0u8; 12];
    let n = decimal_path(b"", u32::from(port), &mut number);
    name_of(number.get(..n).unwrap_or(&[]), u32::from(k))
}

/// `sockaddr_un` of `\0netacc/1/WHAT/K`, and its length. (The unit tests have names of their own.)
pub(super) fn name_of(what: &[u8], k: u32) -> ([u8; 48], usize) {
    let mut name = [0u8; 48];
    let [a, b] = (libc::AF_UNIX as u16).to_ne_bytes();
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        for b in bytes {
            if let Some(to) = name.get_mut(at) {
                *to = *b;
                at += 1;
            }
        }
    };
    put(&[a, b, 0]);
    #[cfg(test)]
    put(crate::testing::room());
    let mut number = [0u8; 12];
    put(b"netacc/1/");
    put(what);
    put(b"/");
    let n = decimal_path(b"", k, &mut number);
    put(number.get(..n).unwrap_or(&[]));
    (name, at)
}
