//! Promotions that come to nothing: the connection is what it was before.

use super::*;
use crate::channel::quiet;
use crate::testing::Moment;
use core::sync::atomic::AtomicU64;
use netacc_proto::switchover::Ack;

impl Rig {
    /// The word by which the peer of `side` says whether that may promote.
    fn ack_for(&self, i: usize, side: usize) -> &'static AtomicU64 {
        let s = self.conns[i][side].socket;
        let channel = s.channel().unwrap();
        &channel.words(s.slot.load(Relaxed) as usize, channel.side).quiet[quiet::ACK]
    }

    /// What `side` receives is on the ring, what it sends is not, though its peer is ready for it.
    fn ready_to_promote(model: Model, side: usize) -> (Rig, usize) {
        let mut rig = Rig::new(Order::Prompt, model, 2);
        let i = rig.connect(0, 1);
        rig.promoted_one_way(i, side);
        rig.until("its peer is ready", |r| {
            let ack = Ack::from_words(r.ack_for(i, side).load(Acquire), 0);
            ack.armed && !ack.frozen
        });
        (rig, i)
    }

    /// Whether the end of the process would be one in order.
    fn ends_in_order(&self, i: usize, side: usize) -> bool {
        let mut linger = libc::linger { l_onoff: 1, l_linger: 1 };
        let fd = self.conns[i][side].fd;
        assert!(sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger) >= 0);
        linger.l_onoff == 0
    }
}

fn control(epoch: u32, frozen: bool) -> u64 {
    Ack { epoch, armed: !frozen, frozen, consumed: 0 }.control()
}

/// The receiver freezes just when the sender is promoted, which sends nothing by the ring, and is
/// killed before it is a candidate again. (Its kernel still had the order to reset the connection,
/// which throws away what the kernel has not sent.)
#[test]
fn who_dies_behind_a_withdrawn_promotion_ends_in_order() {
    for model in MODELS {
        for side in [C, A] {
            let (mut rig, i) = Rig::ready_to_promote(model, side);
            rig.send_on_carrier(i, side, 500);
            rig.drain(i);
            let s = rig.conns[i][side].socket;
            let ack = rig.ack_for(i, side);
            testing::just_before(Moment::Call(libc::SYS_setsockopt), move || {
                ack.store(control(0, true), Release);
            });
            assert_eq!(rig.send(i, side, 100), 0, "its peer has not heard of it");
            assert!(testing::was_there() && !s.published.sends_fast());
            assert!(rig.ends_in_order(i, side), "{model:?} {side}");
            rig.kill(rig.conns[i][side].host);
            rig.gets_all(i, side ^ 1, 30_000, &format!("{model:?} {side}"));
            rig.finish();
        }
    }
}

/// A word of the peer's that is of another time promotes nothing, and changes nothing.
#[test]
fn what_is_not_promoted_ends_in_order() {
    for model in MODELS {
        for side in [C, A] {
            let (mut rig, i) = Rig::ready_to_promote(model, side);
            let (s, ack) = (rig.conns[i][side].socket, rig.ack_for(i, side));
            let said = ack.swap(control(2, false), AcqRel);
            assert_eq!(rig.send(i, side, 100), 100);
            assert!(!s.published.sends_fast() && rig.ends_in_order(i, side), "{model:?} {side}");
            ack.store(said, Release);
            rig.drain(i);
            rig.finish();
        }
    }
}
