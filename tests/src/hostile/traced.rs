//! Peers that break the rules on live connections, many at once: what the victim's trace has of it
//! when the victim has ended in order.

use super::words::{
    Shared, ask_and_hear, dial_into_slot, layout, redis, sleep_after, until_written, wake_all,
};
use super::{ATTACKER, Place, THIRD, Test, Verdict, expect, patience};
use crate::sys::{self, Fd};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

pub const TESTS: &[Test] =
    &[Test { name: "traced/a-burst-that-ends-badly-is-kept", run: |place| burst(place, BURST) }];

/// As many as are kept, but for some (1024); more than the 512 of those that were only in trouble
/// and the last 256 of all together.
const BURST: usize = 1000;

/// The programs of this file's tests; false: not one of them.
pub fn part(words: &[&str]) -> bool {
    let ["write-tails", port, count] = *words else { return false };
    write_tails(port.parse().expect("a port"), count.parse().expect("a count"));
    true
}

/// `netacc trace WORDS`.
fn trace(place: &Place, words: &[&str]) -> String {
    let netacc = place.build.library.parent().expect("a directory").join("netacc");
    let output = Command::new(netacc).arg("trace").args(words).output().expect("netacc");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    said.chars().filter(|c| !c.is_whitespace()).collect()
}

fn burst(place: &Place, count: usize) -> Verdict {
    let (mut server, port) = redis(place)?;
    let mut attacker = place.start(ATTACKER, &["write-tails", &port, &count.to_string()]);
    until_written(&mut attacker)?;
    // Each of them is told of, and no other.
    let pid = server.pid().to_string();
    let seen = || trace(place, &["show", "-p", &pid, "--json"]);
    let badly = |said: &str| {
        let is_bad = |c: &&str| c.contains("\"event\":\"corrupt\"");
        said.split("\"number\":").skip(1).filter(is_bad).count()
    };
    let end = Instant::now() + patience();
    while badly(&seen()) < count && Instant::now() < end {
        sys::sleep_ms(20);
    }
    let live = badly(&seen());
    expect(live == count, || format!("{live} of {count} were told of"))?;
    // Others come and go behind them, in good order.
    let words = ["ask", &port, "PING\r\n", "+PONG\r\n", "200"];
    for _ in 0..10 {
        place.start(THIRD, &words).await_line("answered")?;
    }
    server.must_live("Redis")?;
    // It ends in order: nothing would be left of it otherwise.
    let _ = sys::kill(server.pid(), libc::SIGTERM);
    let ended = format!("\"pid\":{pid},");
    let state = || {
        let list = trace(place, &["list", "--json"]);
        let own = list.split('{').find(|one| one.contains(&ended)).map(str::to_owned);
        own.unwrap_or_default()
    };
    let end = Instant::now() + patience();
    while !state().contains("\"state\":\"exited\"") && Instant::now() < end {
        sys::sleep_ms(20);
    }
    let is = state();
    expect(is.contains("\"state\":\"exited\""), || format!("the trace of {pid}: {is}"))?;
    expect(is.contains(&format!("\"troubles\":{count}")), || format!("troubles: {is}"))?;
    let kept = badly(&seen());
    expect(kept == count, || format!("{kept} of {count} are kept"))
}

/// Connections on shared memory, all of which have sent more than a ring holds, by their words.
fn write_tails(port: u16, count: usize) {
    let mut exchange = ask_and_hear(b"PING\r\n", 7);
    let all: Vec<(Fd, Shared, usize)> = (0..count)
        .map(|made| {
            if made % 10 == 0 {
                println!("connections {made}");
            }
            dial_into_slot(port, &mut exchange)
        })
        .collect();
    for (_, channel, slot) in all {
        // (Its own direction: who accepts has the other one.)
        channel.slot_word(slot, 1, layout::TAIL).fetch_xor(1 << 32, SeqCst);
    }
    wake_all(0);
    sleep_after("written");
}
