//! Bytes as a packet that goes back to the kernel: no panic; what it makes of it is a packet of
//! that length with a right checksum, or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_tcp::wire::parse::{Checksums, packet};
use netacc_utcp::inject::complete;

fuzz_target!(|input: &[u8]| {
    let Ok(read) = packet(input, Checksums::Trusted) else { return };
    let (flow, segment, length) = (read.flow, read.segment, read.payload.len());
    let mut copy = input.to_vec();
    let whole = complete(&flow, &mut copy).expect("what can be read can be completed");
    // (The checksum of an IPv4 header is the kernel's to make.)
    let again = packet(whole, Checksums::Trusted).expect("it was read before");
    assert_eq!((again.flow, again.segment, again.payload.len()), (flow, segment, length));
    if flow.source.address.is_ipv6() {
        assert!(packet(whole, Checksums::Compare).is_ok());
    }
});
