//! Checksummed streams over the network in memory, under each impairment alone and together.

use super::host::{MS, Setup, World};
use super::network::Impairment;
use super::random::Random;

/// The seed of the whole run, by which `tests/run-all` runs it again.
fn seed() -> u64 {
    std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// So many worlds, with a hint to which seed one was that failed.
fn worlds(name: &str, count: u64, setup: impl Fn(&mut Random) -> Setup) {
    struct Says<'a>(&'a str, u64, u64);
    impl Drop for Says<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::eprintln!("{}: world {} of seed {}", self.0, self.1, self.2);
            }
        }
    }
    for world in 0..count {
        let says = Says(name, world, seed());
        let mixed = seed().wrapping_mul(1_000_003) + world;
        let setup = setup(&mut Random::new(mixed));
        World::new(&setup, mixed).run(4_000_000 * MS);
        drop(says);
    }
}

fn both(setup: &mut Setup, change: impl Fn(&mut Impairment)) {
    change(&mut setup.there);
    change(&mut setup.back);
}

/// What the ends agreed on, and how their applications are, at random.
fn any(random: &mut Random) -> Setup {
    let mut setup = Setup {
        mss: [88, 536, 1448, 1460, 8948][random.below(5) as usize],
        run: [1, 5000, 60_000][random.below(3) as usize],
        stamps: random.below(3) > 0,
        scale: [0, 2, 7][random.below(3) as usize],
        ecn: random.below(3) == 0,
        v6: random.below(2) == 0,
        moody: random.below(4) > 0,
        capacity: [3000, 20_000, 100_000][random.below(3) as usize],
        ..Setup::default()
    };
    setup.bytes = [random.below(100_000), random.below(20_000)];
    if setup.mss == 88 {
        setup.bytes = setup.bytes.map(|bytes| bytes / 5);
    }
    let delay = [MS / 50, MS, 20 * MS][random.below(3) as usize];
    both(&mut setup, |does| does.delay = delay);
    both(&mut setup, |does| does.detour = 3 * delay);
    setup
}

#[test]
fn a_plain_network() {
    worlds("plain", 60, any);
}

#[test]
fn loss() {
    worlds("loss", 60, |random| {
        let mut setup = any(random);
        let loss = [1, 10, 50, 200][random.below(4) as usize];
        both(&mut setup, |does| does.loss = loss);
        setup
    });
}

#[test]
fn reordering() {
    worlds("reordering", 60, |random| {
        let mut setup = any(random);
        let reorder = 1 + random.below(500);
        both(&mut setup, |does| does.reorder = reorder);
        setup
    });
}

#[test]
fn duplicates() {
    worlds("duplicates", 60, |random| {
        let mut setup = any(random);
        let duplicate = 1 + random.below(500);
        both(&mut setup, |does| does.duplicate = duplicate);
        setup
    });
}

#[test]
fn corruption() {
    worlds("corruption", 60, |random| {
        let mut setup = any(random);
        let corrupt = 1 + random.below(100);
        both(&mut setup, |does| does.corrupt = corrupt);
        setup
    });
}

/// A bottleneck with a queue of few packets, that may mark them.
fn throttled(setup: &mut Setup, random: &mut Random) {
    let marks = random.below(2) == 0;
    let rate = [100, 1000, 20_000][random.below(3) as usize];
    let queue = 9100 + random.below(50_000);
    both(setup, |does| (does.rate, does.queue, does.marks) = (rate, queue, marks));
}

#[test]
fn a_bottleneck() {
    worlds("bottleneck", 60, |random| {
        let mut setup = any(random);
        throttled(&mut setup, random);
        setup
    });
}

fn everything(random: &mut Random) -> Setup {
    let mut setup = any(random);
    if random.below(2) == 0 {
        throttled(&mut setup, random);
    }
    let chances = [random.below(80), random.below(300), random.below(200), random.below(50)];
    let [loss, reorder, duplicate, corrupt] = chances;
    both(&mut setup, |does| {
        (does.loss, does.reorder) = (loss, reorder);
        (does.duplicate, does.corrupt) = (duplicate, corrupt);
    });
    setup
}

#[test]
fn everything_together() {
    worlds("everything", 150, everything);
}

/// With room to remember very little: less is known, and nothing wrong.
#[test]
fn everything_with_little_memory() {
    worlds("little memory", 80, |random| {
        let mut setup = everything(random);
        (setup.records, setup.ranges) = (1, 1 + random.below(3) as usize);
        setup
    });
}

/// Each end is given back and taken over again, at any moment.
#[test]
fn given_back_and_taken_over_again() {
    let mut takes = 0;
    for world in 0..60 {
        let mixed = seed().wrapping_mul(1_000_003) + world;
        let mut random = Random::new(mixed);
        let mut setup = if world % 2 == 0 { any(&mut random) } else { everything(&mut random) };
        setup.takes = [1, 20, 200][random.below(3) as usize];
        let mut world = World::new(&setup, mixed);
        world.run(40_000_000 * MS);
        takes += world.hosts.iter().map(|host| host.takes).sum::<u64>();
    }
    assert!(takes > 1000, "{takes}");
}

/// One direction, written and read as fast as can be: bytes of payload each second, the median of
/// some worlds that are the same each time.
fn speed(change: impl Fn(&mut Setup)) -> u64 {
    let mut setup = Setup { moody: false, capacity: 2_000_000, ..Setup::default() };
    setup.bytes = [8_000_000, 0];
    // 100 Mb/s, 20 ms there and back, a queue of the product of both.
    both(&mut setup, |does| {
        (does.rate, does.queue, does.delay) = (12_500, 250_000, 10 * MS);
        does.detour = 5 * MS;
    });
    (setup.records, setup.ranges) = (1024, 256);
    change(&mut setup);
    let mut speeds = [1, 2, 3, 4, 5, 6, 7].map(|seed| {
        let mut world = World::new(&setup, seed);
        let time = world.run(1_000_000 * MS);
        let figures = world.hosts[0].connection.figures();
        std::println!("{} ms, {:?}, {figures:?}", time / MS, world.links[0].told);
        8_000_000 * 1000 * MS / time
    });
    speeds.sort_unstable();
    std::println!("{speeds:?}");
    speeds[speeds.len() / 2]
}

/// Of 12.5 MB/s, 11.9 can be payload.
#[test]
fn a_link_is_filled() {
    assert!(speed(|_| {}) > 10_000_000);
}

/// The first segments that are late are taken for lost, which ends slow start, and that is not
/// undone (RFC 9438, 4.9, is not here). From then on reordering is known, and costs nothing.
#[test]
fn reordering_costs_slow_start_and_no_more() {
    assert!(speed(|setup| setup.there.reorder = 20) > 4_000_000);
}

/// sqrt(3/2) * MSS / (RTT * sqrt(p)), by Mathis et al. (1997), is 790 kB/s for Reno here; the
/// window that CUBIC keeps is at least that.
#[test]
fn loss_costs_no_more_than_a_reno_would_pay() {
    assert!(speed(|setup| setup.there.loss = 10) > 790_000);
}

/// Three of ten acknowledgements are lost.
#[test]
fn lost_acknowledgements_cost_little() {
    assert!(speed(|setup| setup.back.loss = 300) > 9_000_000);
}
