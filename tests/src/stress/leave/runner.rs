//! Starts the processes, and judges what the board says.

use super::board::{Board, patience_ms};
use super::plan::Plan;
use super::{CONNECTIONS, RING_UNIT};
use crate::runner::{library_env, own_program, switching_env};
use crate::ss::{Build, Connection, Path};
use crate::sys::{self, Fd};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One campaign.
pub struct Campaign {
    pub preload: bool,
    /// The library changes paths by itself as well.
    pub switch: bool,
    pub seed: u64,
    pub first: usize,
    pub batches: usize,
    /// This connection alone.
    pub only: Option<usize>,
}

impl Campaign {
    fn connections(&self, batch: usize) -> Vec<usize> {
        (batch * CONNECTIONS..(batch + 1) * CONNECTIONS)
            .filter(|&index| self.only.is_none_or(|only| only == index))
            .collect()
    }
}

struct Talker {
    name: &'static str,
    child: Child,
    control: Fd,
}

impl Talker {
    fn start(
        name: &'static str,
        args: &[&str],
        campaign: &Campaign,
        build: &Build,
        preload: bool,
    ) -> Talker {
        let [control, theirs] =
            sys::socketpair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC).expect("socketpair");
        let mut command = Command::new(own_program());
        command.args(["helper", "stress-end"]).args(args);
        // SAFETY: a new descriptor that nothing else owns.
        let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
        command.stdin(Stdio::from(theirs)).process_group(0);
        if campaign.switch && preload {
            switching_env(&mut command, build, campaign.seed + 1);
        } else {
            library_env(&mut command, build, preload);
        }
        command.env("NACC_SOR_MSG_SIZE", RING_UNIT.to_string());
        Talker { name, child: command.spawn().expect("start a process"), control }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn say(&self, text: &str) {
        let _ = sys::send(self.control, text.as_bytes(), libc::MSG_NOSIGNAL);
    }

    /// The next word; an error when the process has ended or is silent for too long.
    fn hear(&mut self) -> Result<String, String> {
        let deadline = Instant::now() + Duration::from_millis(2 * patience_ms() as u64);
        while sys::await_events(self.control, libc::POLLIN, 100) == 0 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the {} ended: {status}", self.name));
            }
            if Instant::now() > deadline {
                return Err(format!("the {} is silent", self.name));
            }
        }
        let mut buf = [0; 200];
        match sys::recv(self.control, &mut buf, 0) {
            Ok(n) if n > 0 => Ok(String::from_utf8_lossy(&buf[..n]).into_owned()),
            other => Err(format!("the {}: {other:?}", self.name)),
        }
    }

    fn end(mut self, problems: &mut Vec<String>) {
        let group = -self.pid();
        if !problems.is_empty() {
            let _ = sys::kill(group, libc::SIGKILL);
        }
        let _ = sys::close(self.control);
        let deadline = Instant::now() + sys::patience() * Duration::from_secs(10);
        while self.child.try_wait().is_ok_and(|end| end.is_none()) {
            if Instant::now() > deadline {
                problems.push(format!("the {} does not end", self.name));
                let _ = sys::kill(group, libc::SIGKILL);
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match self.child.wait() {
            Ok(status) if status.success() || !problems.is_empty() => {}
            other => problems.push(format!("the {} ended with {other:?}", self.name)),
        }
        // Whatever it left running belongs to its group.
        let _ = sys::kill(group, libc::SIGKILL);
    }
}

/// What a process has counted.
fn counter(build: &Build, pid: i32, name: &str) -> u64 {
    let output = Command::new(&build.netacc_ss)
        .args(["--json", "-s", "cnt", &pid.to_string()])
        .stdin(Stdio::null())
        .output();
    let text =
        output.map_or_else(|_| String::new(), |o| String::from_utf8_lossy(&o.stdout).into_owned());
    let quoted = format!("\"{name}\"");
    let rest = text.split_once(&quoted).map_or("", |(_, rest)| rest);
    let digits = rest.trim_start_matches([':', ' ']);
    digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())]
        .parse()
        .unwrap_or(0)
}

/// Runs a campaign; returns what is wrong, and a summary.
pub fn conduct(campaign: &Campaign, build: &Build) -> (Vec<String>, String) {
    let total = (campaign.first + campaign.batches) * CONNECTIONS;
    let path = std::env::temp_dir().join(format!("netacc-leave-{}", std::process::id()));
    let path = path.to_string_lossy().into_owned();
    let _ = std::fs::remove_file(&path);
    let board = Board::map(&path, total);
    let words = [campaign.seed.to_string(), path.clone(), total.to_string()];
    let [seed, path, total] = words.each_ref().map(String::as_str);
    let only = campaign.only.map_or("all".into(), |index| index.to_string());
    let span = [campaign.first.to_string(), campaign.batches.to_string(), only];
    let span = span.each_ref().map(String::as_str);
    let mut problems = Vec::new();
    let takers = ["first taker", "second taker"].map(|name| {
        // One that can read no ring even if it had one.
        let preload = campaign.preload && name == "first taker";
        Talker::start(name, &["leave-take", seed, path, total], campaign, build, preload)
    });
    let bells: Vec<Fd> = (0..4 * CONNECTIONS).map(|_| sys::eventfd(0)).collect();
    let passed = [&bells[..], &[takers[0].control, takers[1].control]].concat();
    let start = |name, tail: &[&str]| {
        let args = [&["leave", seed, path, total], &span[..], tail].concat();
        let talker = Talker::start(name, &args, campaign, build, campaign.preload);
        sys::send_fds(talker.control, b"bells", &passed).expect("sendmsg");
        talker
    };
    let mut server = start("server", &["listen"]);
    let addr = server.hear().unwrap_or_else(|e| {
        problems.push(e);
        String::new()
    });
    let addr = addr.trim_start_matches("addr ").to_string();
    let mut client = start("client", &["dial", &addr]);

    let mut sum = Sum::default();
    for batch in campaign.first..campaign.first + campaign.batches {
        if !problems.is_empty() {
            break;
        }
        let ends = [&mut client, &mut server];
        let promoted = conduct_batch(campaign, build, &board, ends, batch).unwrap_or_else(|e| {
            problems.push(format!("batch {batch}: {e}"));
            Vec::new()
        });
        for index in campaign.connections(batch) {
            let plan = Plan::new(campaign.seed, index);
            let may_break = campaign.preload && plan.may_break(campaign.switch);
            let (wrong, was_broken) = board.judge(index, may_break);
            sum.broken += usize::from(was_broken);
            sum.breakable += usize::from(may_break);
            sum.promoted += usize::from(promoted.contains(&index));
            sum.pull_backs += usize::from(promoted.contains(&index) && plan.pulls_back());
            if !wrong.is_empty() && board.has_begun(index) {
                problems.push(format!(
                    "--seed {} --batch {batch}, connection {index}:\n{}\n{}{plan:?}",
                    campaign.seed,
                    wrong.join("\n"),
                    board.describe(index)
                ));
            }
        }
        for &bell in &bells {
            let _ = sys::read(bell, &mut [0; 8]);
        }
        if batch + 1 < campaign.first + campaign.batches {
            client.say("next");
            server.say("next");
        }
    }
    let batches = campaign.first..campaign.first + campaign.batches;
    let all: usize = batches.map(|b| campaign.connections(b).len()).sum();
    let mut notes =
        format!("{all} connections, {} broken off of {} that may be", sum.broken, sum.breakable);
    if campaign.preload && problems.is_empty() {
        let pulled = [&client, &server].map(|t| counter(build, t.pid(), "pulled_back"));
        let pulled: u64 = pulled.iter().sum();
        notes.push_str(&format!(", {} promoted, {pulled} pull-backs", sum.promoted));
        if sum.promoted * 4 < all * 3 {
            problems.push("too few were promoted".into());
        }
        // The library's own switching may have emptied some of the rings before.
        let least = match campaign.switch {
            true => usize::from(sum.pull_backs > 8),
            false => sum.pull_backs,
        };
        if pulled < least as u64 {
            problems.push(format!("too few pull-backs: {pulled} of {least}"));
        }
    }
    client.say("next");
    server.say("next");
    for talker in [client, server].into_iter().chain(takers) {
        talker.end(&mut problems);
    }
    for bell in bells {
        let _ = sys::close(bell);
    }
    let _ = std::fs::remove_file(path);
    (problems, notes)
}

/// What a campaign adds up.
#[derive(Default)]
struct Sum {
    broken: usize,
    breakable: usize,
    promoted: usize,
    /// That have to happen, because a ring is full when its reader leaves.
    pull_backs: usize,
}

/// Returns the connections that were on the fast path before anybody left.
fn conduct_batch(
    campaign: &Campaign,
    build: &Build,
    board: &Board,
    ends: [&mut Talker; 2],
    batch: usize,
) -> Result<Vec<usize>, String> {
    let [client, server] = ends;
    for end in [&mut *client, &mut *server] {
        expect(end, "warm")?;
    }
    let all = campaign.connections(batch);
    let deadline = Instant::now() + sys::patience() * Duration::from_secs(5);
    let mut promoted = Vec::new();
    while campaign.preload && promoted.len() < all.len() && Instant::now() < deadline {
        let lists = [build.connections(client.pid())?, build.connections(server.pid())?];
        promoted = all
            .iter()
            .copied()
            .filter(|&index| is_promoted(campaign.switch, build.path, &lists, board.ports(index)))
            .collect();
    }
    client.say("go");
    server.say("go");
    for end in [&mut *client, &mut *server] {
        expect(end, "done")?;
    }
    // What takers have may take longer.
    let deadline = Instant::now() + Duration::from_millis(2 * patience_ms() as u64);
    while !all.iter().all(|&index| board.is_over(index)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(promoted)
}

/// As both processes see it. (The library's own switching never lets it stand still.)
fn is_promoted(switch: bool, path: Path, lists: &[Vec<Connection>; 2], ports: [u16; 2]) -> bool {
    let is_fast = |c: &Connection| {
        if switch { c.promotions > 1 } else { c.is_on(path) }
    };
    [0, 1].iter().all(|&side| {
        let [mine, theirs] = [ports[side], ports[1 - side]];
        lists[side].iter().any(|c| c.local_port == mine && c.peer_port == theirs && is_fast(c))
    })
}

fn expect(end: &mut Talker, word: &str) -> Result<(), String> {
    let heard = end.hear()?;
    if heard == word { Ok(()) } else { Err(format!("the {} said {heard:?}", end.name)) }
}
