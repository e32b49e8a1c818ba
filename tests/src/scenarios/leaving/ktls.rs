//! kTLS: from a byte of the stream on the kernel makes records of what is sent, and bytes of the
//! records that come. None of them may be elsewhere then.

use super::{TCP_ULP, exchange};
use crate::ctx::{Ctx, await_bytes, recv_exact, send_all};
use crate::pattern::Pattern;
use crate::scenario::{Scenario, pair};
use crate::sys::{self, Fd, R};
use libc::{IPPROTO_TCP, SHUT_WR};

/// linux/tls.h, as are these
const SOL_TLS: i32 = 282;
const TLS_TX: i32 = 1;
const TLS_RX: i32 = 2;
const TLS_1_2: u16 = 0x303;
const AES_GCM_128: u16 = 51;
/// What a record of those has beside its bytes: a header, a nonce, a tag.
const AROUND: usize = 5 + 8 + 16;

/// Records that are unread when their receiver is given its keys, and the bytes in each.
const RECORDS: usize = 3;
const IN_EACH: usize = 1000;

pub(super) fn scenario() -> Scenario {
    pair(
        "leaving/ktls-with-keys",
        "both ends give the kernel keys (kTLS), with nothing unread, and with records unread that the peer's program had made: all are decrypted, both ways go on",
        |t| {
            if !has_ktls(t) {
                return;
            }
            between_exchanges(t, t.server());
            takes_over_the_unread(t, t.server());
            has_sent_records(t, t.server());
        },
        |t| {
            if !has_ktls(t) {
                return;
            }
            between_exchanges(t, t.client());
            has_sent_records(t, t.client());
            takes_over_the_unread(t, t.client());
        },
    )
    .demoted()
}

/// A connection that is no subject of the test: both ends are here, on TCP.
fn by_itself(t: &Ctx) -> [Fd; 2] {
    let listener = t.listener_on(sys::LOOPBACK);
    let addr = sys::getsockname(listener).expect("getsockname");
    let near = sys::socket(addr.family(), libc::SOCK_STREAM, 0).expect("socket");
    sys::connect(near, addr).expect("connect");
    let far = sys::accept(listener).expect("accept");
    sys::close(listener).expect("close");
    [near, far]
}

fn has_ktls(t: &Ctx) -> bool {
    let fds = by_itself(t);
    let said = set_ulp(fds[0]);
    for fd in fds {
        sys::close(fd).expect("close");
    }
    if said.is_err() {
        t.skip(&format!("no kTLS can be had here: {said:?}"));
    }
    said.is_ok()
}

fn set_ulp(fd: Fd) -> R {
    sys::setopt_bytes(fd, IPPROTO_TCP, TCP_ULP, b"tls")
}

/// Gives the kernel the one key of this test for a direction, from that record on.
fn set_key(fd: Fd, direction: i32, record: usize) -> R {
    let record = (record as u64).to_be_bytes();
    // struct tls12_crypto_info_aes_gcm_128
    let mut info = [TLS_1_2.to_ne_bytes(), AES_GCM_128.to_ne_bytes()].concat();
    for part in [&record[..], b"sixteen bytes...", b"salt", &record[..]] {
        info.extend_from_slice(part);
    }
    sys::setopt_bytes(fd, SOL_TLS, direction, &info)
}

/// The records that a program's own TLS would send, made by the kernel on another connection.
fn records(t: &Ctx, seed: u64) -> Vec<u8> {
    let [near, far] = by_itself(t);
    t.log("maker", (set_ulp(near), set_key(near, TLS_TX, 0)));
    for n in 0..RECORDS {
        send_all(near, &Pattern::new(seed).bytes((n * IN_EACH) as u64, IN_EACH));
    }
    let made = recv_exact(far, RECORDS * (IN_EACH + AROUND));
    for fd in [near, far] {
        sys::close(fd).expect("close");
    }
    made
}

fn ends(t: &Ctx, fd: Fd) {
    t.log("shutdown", sys::shutdown(fd, SHUT_WR));
    t.log("end", sys::recv(fd, &mut [0; 1], 0));
    t.log("close", sys::close(fd));
}

/// Both ends are given keys while nothing is under way.
fn between_exchanges(t: &Ctx, fd: Fd) {
    exchange(t, fd, 1);
    t.meet("exchanged");
    t.log("ulp", set_ulp(fd));
    t.log("keys", (set_key(fd, TLS_TX, 0), set_key(fd, TLS_RX, 0)));
    t.meet("keys");
    exchange(t, fd, 2);
    ends(t, fd);
}

/// An end that is given keys while records are unread.
fn takes_over_the_unread(t: &Ctx, fd: Fd) {
    await_bytes(fd, RECORDS * (IN_EACH + AROUND));
    t.log("ulp", set_ulp(fd));
    t.log("keys", (set_key(fd, TLS_RX, 0), set_key(fd, TLS_TX, 0)));
    t.drain(fd, 9, RECORDS * IN_EACH);
    t.went_back(fd, "socket-option");
    t.meet("keys");
    exchange(t, fd, 3);
    ends(t, fd);
}

/// Its peer: its program has made those records, and leaves the next ones to the kernel.
fn has_sent_records(t: &Ctx, fd: Fd) {
    send_all(fd, &records(t, 9));
    t.wait("keys");
    t.log("ulp", set_ulp(fd));
    t.log("keys", (set_key(fd, TLS_TX, RECORDS), set_key(fd, TLS_RX, 0)));
    t.tell("keys");
    exchange(t, fd, 3);
    ends(t, fd);
}
