//! Arbitrary bytes from a hostile peer, of this host or of another one: never a panic, and one
//! encoding for each message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netacc_proto::rendezvous::{MAX_MESSAGE, Message, Peers};

fn check(bytes: &[u8], peers: Peers) {
    if let Ok(message) = Message::decode(bytes, peers) {
        let mut out = [0; MAX_MESSAGE];
        let len = message.encode(&mut out);
        assert_eq!(&out[..len], bytes);
        if let Message::Offer(offer) = message {
            assert_eq!(offer.tuple.mirrored().mirrored(), offer.tuple);
            let _ = offer.fits(offer.token);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    check(bytes, Peers::OneHost);
    let mut rest = bytes;
    while let Ok(Some(length)) = Message::length(rest) {
        let Some((message, behind)) = rest.split_at_checked(length) else { break };
        check(message, Peers::TwoHosts);
        rest = behind;
    }
});
