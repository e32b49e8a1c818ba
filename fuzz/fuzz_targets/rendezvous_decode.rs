//! Arbitrary packets from a hostile peer: never a panic, and one encoding for each message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_proto::rendezvous::{MAX_MESSAGE, Message};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = Message::decode(bytes) {
        let mut out = [0; MAX_MESSAGE];
        let len = message.encode(&mut out);
        assert_eq!(&out[..len], bytes);
        if let Message::Offer(offer) = message {
            assert_eq!(offer.tuple.mirrored().mirrored(), offer.tuple);
            let _ = offer.fits(offer.token);
        }
    }
});
