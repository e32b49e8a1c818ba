//! Arbitrary bytes from a hostile peer of another host: never a panic, and one encoding for each
//! frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_proto::remote::{Frame, MAX_FRAME};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some(length)) = Frame::length(rest) {
        let Some((frame, behind)) = rest.split_at_checked(length) else { break };
        if let Ok(known) = Frame::decode(frame) {
            let mut out = [0; MAX_FRAME];
            let len = known.encode(&mut out);
            assert_eq!(&out[..len], frame);
        }
        rest = behind;
    }
});
