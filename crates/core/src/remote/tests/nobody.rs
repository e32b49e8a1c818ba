//! Peers without the library: how often their ports are tried, and that connections there do not
//! wait for it.

use super::destinations::{TRIED, link_port};
use super::links::Phase;
use super::*;

const MS: u64 = 1_000_000;
/// For what the machine itself needs.
const SLACK_NS: u64 = 500 * MS;

/// Rounds of connects to the ports of the links.
struct Rounds {
    serial: u32,
    times: Vec<u64>,
    /// Another program's, at the first of these ports, and the connections that it has taken.
    foreign: c_int,
    taken: usize,
}

impl Rounds {
    fn look(&mut self, rig: &mut Rig) {
        rig.settle();
        let now = sys::now_ns();
        // Each connect that is begun has a link of its own.
        let serial = rig.remote(0).serial;
        let connects = serial - self.serial;
        assert!(connects == 0 || connects == u32::from(TRIED), "{connects} connects at a time");
        if connects > 0 {
            self.times.push(now);
        }
        self.serial = serial;
        // What the kernel has to say to them comes in its own time, before the clock goes on.
        let began = std::time::Instant::now();
        while rig.remote(0).links.iter().flatten().any(|l| l.phase != Phase::Gone)
            && began.elapsed().as_millis() < 900
        {
            let fd = if self.foreign >= 0 {
                sys::accept4(self.foreign, libc::SOCK_CLOEXEC) as c_int
            } else {
                -1
            };
            if fd >= 0 {
                let _ = sys::close(fd);
                self.taken += 1;
            } else {
                rig.wait(1_000_000);
            }
            rig.settle();
        }
    }

    /// A new connection is used until its reason is known: when that was.
    fn refused(&mut self, rig: &mut Rig, passes: bool) -> u64 {
        let i = rig.connect(0, 1);
        let mut calls = 0;
        loop {
            rig.chat(i);
            self.look(rig);
            if rig.conns[i][C].socket.is(crate::socket::State::Plain) {
                break;
            }
            calls += 1;
            assert!(calls < if passes { 200 } else { 6 }, "no verdict\n{}", rig.describe());
            // (Its calls are what takes note of the verdict.)
            if passes && rig.conns[i][C].socket.offered.load(Relaxed) == 0 {
                rig.pass();
                self.look(rig);
            }
        }
        assert_eq!(rig.reason(i, C), Reason::ListenerWithoutLibrary);
        let now = sys::now_ns();
        rig.drain(i);
        rig.close(i, C);
        rig.close(i, A);
        now
    }
}

#[test]
fn where_nobody_is_it_is_tried_more_and_more_rarely() {
    for foreign in [false, true] {
        let mut rig = Rig::new(Order::Prompt, Model::ROCE, 2);
        rig.kill(1);
        let to = rig.listen(1);
        let mut rounds =
            Rounds { serial: rig.remote(0).serial, times: Vec::new(), foreign: -1, taken: 0 };
        if foreign {
            rounds.foreign = links::tcp_socket(to.ip());
            assert!(
                links::bind(rounds.foreign, SocketAddr::new(to.ip(), link_port(to.port(), 0))) >= 0
            );
            assert!(sys::listen(rounds.foreign, 64) >= 0);
        }
        // The first one waits until all tries have failed.
        let mut known = rounds.refused(&mut rig, true);
        let gaps = |times: &[u64]| times.windows(2).map(|w| w[1] - w[0]).collect::<Vec<u64>>();
        let are = |gaps: &[u64], ms: &[u64]| {
            gaps.len() == ms.len()
                && gaps
                    .iter()
                    .zip(ms)
                    .all(|(g, ms)| (ms * MS - 50 * MS..ms * MS + SLACK_NS).contains(g))
        };
        assert!(
            are(&gaps(&rounds.times), &[100, 400, 1000, 3000, 5000]),
            "{:?}",
            gaps(&rounds.times)
        );
        for pause_s in [10, 20, 40, 80, 160, 300, 300] {
            rounds.times.clear();
            // Until then nothing is tried, and no connection waits.
            for ahead_ns in [pause_s * 500 * MS, pause_s * 1000 * MS - 3000 * MS] {
                testing::pass_ns((known + ahead_ns).saturating_sub(sys::now_ns()));
                rounds.look(&mut rig);
                rounds.refused(&mut rig, false);
                assert_eq!(rounds.times, [], "tried before {pause_s} s have passed");
            }
            testing::pass_ns((known + pause_s * 1000 * MS).saturating_sub(sys::now_ns()));
            rounds.look(&mut rig);
            assert_eq!(rounds.times, [], "tried for nobody");
            known = rounds.refused(&mut rig, true);
            assert!(
                are(&gaps(&rounds.times), &[1000]),
                "after {pause_s} s: {:?}",
                gaps(&rounds.times)
            );
        }
        assert_eq!(rounds.taken, if foreign { 6 + 7 * 2 } else { 0 });
        if foreign {
            close_own(rounds.foreign);
        }
        rig.finish();
    }
}
