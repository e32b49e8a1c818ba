//! Both halves are shut down, and the descriptor is kept: what came before is read, what comes
//! behind that is answered by a reset.

use super::*;
use crate::socket::flag;

/// Ways to shut down both halves.
const SHUT_BOTH: [&[c_int]; 6] = [
    &[libc::SHUT_RDWR],
    &[libc::SHUT_RD, libc::SHUT_WR],
    &[libc::SHUT_WR, libc::SHUT_RD],
    &[libc::SHUT_WR, libc::SHUT_RDWR],
    &[libc::SHUT_RD, libc::SHUT_RDWR],
    &[libc::SHUT_WR, libc::SHUT_WR, libc::SHUT_RD],
];

impl Rig {
    fn shut_both(&mut self, i: usize, side: usize, ways: &[c_int]) {
        self.conns[i][side].shut = true;
        for how in ways {
            let turns = self.random.below(30);
            self.turns(turns);
            let e = &self.conns[i][side];
            if api::shutdown(e.fd, *how) == api::PASS {
                assert!(sys::shutdown(e.fd, *how) >= 0);
            }
        }
    }

    fn stands(&mut self, i: usize, side: usize, seed: u64) {
        if seed % 4 < 2 {
            self.promoted(i);
        } else {
            self.promoted_one_way(i, side);
        }
        self.drain(i);
    }
}

/// TCP answers what comes behind a shutdown of both halves with a reset, of both ends, and does not
/// wait for anybody to read.
#[test]
fn who_sends_to_a_peer_that_has_shut_down_both_halves_gets_an_error() {
    for model in MODELS {
        for seed in seeds(0..12) {
            let side = seed as usize % 2;
            let ways = SHUT_BOTH[seed as usize / 2 % 6];
            let mut rig = Rig::new(Order::Shuffled(seed), model, 2);
            // Without a reader there is soon no room.
            rig.listen(1);
            let at = rig.hosts[1].listener;
            assert!(sys::setsockopt(at, libc::SOL_SOCKET, libc::SO_RCVBUF, &4096) >= 0);
            let i = rig.connect(0, 1);
            rig.stands(i, side, seed);
            rig.shut_both(i, side, ways);
            let turns = rig.random.below(6);
            rig.turns(turns);
            // Most of it before it has heard.
            let fast = rig.conns[i][side ^ 1].socket.published.sends_fast();
            let before = rig.conns[i][side ^ 1].sent;
            while rig.send(i, side ^ 1, 60_000) > 0 {}
            let in_ring = fast && rig.conns[i][side ^ 1].sent > before;
            rig.until("a send fails", |r| {
                r.send(i, side ^ 1, 60_000);
                r.conns[i][side ^ 1].over.is_some()
            });
            let over = rig.conns[i][side ^ 1].over.map(|r| -r as c_int);
            // (The FIN has come before that.)
            assert_eq!(over, Some(libc::EPIPE), "{model:?} {seed}\n{}", rig.describe());
            rig.until("it is told here, too", |r| {
                r.receive(i, side, 1000);
                r.conns[i][side].over.is_some()
            });
            let end = &rig.conns[i][side];
            let told = (end.over, end.received);
            assert_eq!(told, (Some(-104), before), "{model:?} {seed}\n{}", rig.describe());
            let by_library = end.socket.has(flag::RESET);
            assert!(by_library || !in_ring, "{model:?} {seed}\n{}", rig.describe());
            rig.finish();
        }
    }
}
