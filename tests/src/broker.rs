//! What the processes of a scenario ask the runner: what `netacc_ss` shows of their connections.

use crate::runner::Mode;
use crate::ss::{Build, Connection};
use crate::sys;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// For how long something may come to be shown.
const PATIENCE: Duration = Duration::from_secs(8);

/// Answers the processes of one run.
pub struct Broker<'a> {
    build: &'a Build,
    mode: Mode,
    required: bool,
    first_asked: HashMap<(u16, u16), Instant>,
    first_shown: HashMap<String, Instant>,
    pub problems: Vec<String>,
    /// Why the scenario cannot be run on this machine, as it says itself.
    pub skipped: Option<String>,
    pub accelerated: bool,
    /// Whether short connections have left a carrier behind, and how many there were; and whether a
    /// connection of the scenario's has one.
    pub short_ones: Option<(bool, usize)>,
    pub took: bool,
}

impl<'a> Broker<'a> {
    pub fn new(build: &'a Build, mode: Mode, required: bool) -> Broker<'a> {
        let (first_asked, problems) = (HashMap::new(), Vec::new());
        Broker {
            build,
            mode,
            required,
            first_asked,
            first_shown: HashMap::new(),
            problems,
            skipped: None,
            accelerated: false,
            short_ones: None,
            took: false,
        }
    }

    /// To a message of one of them. `None`: there is none.
    pub fn answer(&mut self, message: &str) -> Option<String> {
        if let Some(why) = message.strip_prefix("X ") {
            self.skipped = Some(why.into());
            return None;
        }
        let fields: Vec<&str> = message.split(' ').collect();
        match fields[..] {
            ["W", pid, peer_pid, local, peer] => {
                let (local, peer) = (local.parse().unwrap_or(0), peer.parse().unwrap_or(0));
                Some(self.promoted(
                    pid.parse().unwrap_or(0),
                    peer_pid.parse().unwrap_or(0),
                    local,
                    peer,
                ))
            }
            // A connection is where its warm-up was to bring it.
            ["C"] => {
                self.accelerated = true;
                None
            }
            ["P", is_kept, made] => {
                self.short_ones = Some((is_kept == "1", made.parse().unwrap_or(0)));
                None
            }
            ["K"] => {
                self.took = true;
                None
            }
            ["H", pid, local, peer, count] => {
                let (local, peer) = (local.parse().unwrap_or(0), peer.parse().unwrap_or(0));
                let asked = *self.first_asked.entry((local, peer)).or_insert_with(Instant::now);
                let seen = self.build.connection(pid.parse().unwrap_or(0), local, peer);
                Some(self.patience(asked, count.parse().unwrap_or(1), &format!("{seen:?}")))
            }
            ["T", pid, local, peer] => Some(self.sends_fast(
                pid.parse().unwrap_or(0),
                local.parse().unwrap_or(0),
                peer.parse().unwrap_or(0),
            )),
            ["N", pid] => {
                let fast = self.count_fast(pid);
                self.accelerated |= fast > 0;
                Some(fast.to_string())
            }
            ["A", pid, peer_pid, count] => Some(self.all_promoted(pid, peer_pid, count)),
            ["S", pid, local, peer] => {
                if self.accelerated && self.mode != Mode::Starved {
                    let pid = pid.parse().unwrap_or(0);
                    match self.build.connection(
                        pid,
                        local.parse().unwrap_or(0),
                        peer.parse().unwrap_or(0),
                    ) {
                        Ok(c) if c.is_on(self.build.path) => {}
                        Ok(c) if self.mode == Mode::Early && c.has_not_gone_back() => {}
                        // It has filled small rings, and comes back with whole ones.
                        Ok(c) if c.has_outgrown_its_rings() => return Some("outgrown".into()),
                        Ok(c) => {
                            self.problems.push(format!("the connection left the fast path: {c:?}"))
                        }
                        Err(e) => self.problems.push(e),
                    }
                }
                Some("ok".into())
            }
            ["R", pid, local, peer, reasons] => {
                let wanted = reasons
                    .split(',')
                    .filter_map(|r| r.split_once('='))
                    .find(|(mode, _)| *mode == self.mode.name());
                if let Some((_, wanted)) = wanted {
                    self.shows(
                        pid.parse().unwrap_or(0),
                        local.parse().unwrap_or(0),
                        peer.parse().unwrap_or(0),
                        &format!("the reason {wanted:?}"),
                        |c| c.reason == wanted,
                    );
                }
                Some("ok".into())
            }
            ["L", pid] => {
                let may_look =
                    matches!(self.mode, Mode::ServerOnly | Mode::ClientOnly | Mode::Looks);
                let pid = pid.parse().unwrap_or(0);
                let counts = ["kernel_looks", "looks_won"].map(|name| self.build.count(pid, name));
                Some(match counts {
                    [Some(looks), Some(won)] if may_look => format!("{looks} {won}"),
                    _ => "none".into(),
                })
            }
            [kind @ ("B" | "D"), pid, local, peer, wanted] => {
                // (Over RDMA a connection that may stay on TCP may do so for a reason of its own.)
                if self.mode == Mode::Shm || (self.mode == Mode::Rdma && self.required) {
                    return Some(self.comes_to_show(
                        message,
                        (
                            pid.parse().unwrap_or(0),
                            local.parse().unwrap_or(0),
                            peer.parse().unwrap_or(0),
                        ),
                        &format!("on TCP with reason {wanted:?}"),
                        |c| {
                            let both = kind == "D" || c.rx_path == "tcp";
                            c.reason == wanted && c.tx_path == "tcp" && both
                        },
                    ));
                }
                Some("ok".into())
            }
            [kind @ ("G" | "O"), pid, local, peer, ""] => {
                let within =
                    matches!(self.mode, Mode::Early | Mode::New | Mode::Fast | Mode::Switch);
                if self.mode == Mode::Rdma || (kind == "O" && within) {
                    return Some(self.comes_to_show(
                        message,
                        (
                            pid.parse().unwrap_or(0),
                            local.parse().unwrap_or(0),
                            peer.parse().unwrap_or(0),
                        ),
                        "on TCP both ways",
                        // (The reason comes with the last step.)
                        |c| c.tx_path == "tcp" && c.rx_path == "tcp" && c.reason != "none",
                    ));
                }
                Some("ok".into())
            }
            _ => {
                self.problems.push(format!("unknown message {message:?}"));
                None
            }
        }
    }

    /// `netacc_ss` comes to show that of a connection.
    fn shows(
        &mut self,
        pid: i32,
        local: u16,
        peer: u16,
        what: &str,
        wanted: impl Fn(&Connection) -> bool,
    ) {
        if let Err(found) = self.await_shown((pid, local, peer), PATIENCE * sys::patience(), wanted)
        {
            self.problems.push(format!("not {what}: {found}"));
        }
    }

    /// As [`Self::shows`], asked again where it takes a while: the answer to `question`.
    fn comes_to_show(
        &mut self,
        question: &str,
        of: (i32, u16, u16),
        what: &str,
        wanted: impl Fn(&Connection) -> bool,
    ) -> String {
        let asked = *self.first_shown.entry(question.into()).or_insert_with(Instant::now);
        let shown = self.await_shown(of, Duration::from_secs(1), wanted);
        match shown {
            Err(_) if asked.elapsed() < PATIENCE * sys::patience() => return "no".into(),
            Err(found) => self.problems.push(format!("not {what}: {found}")),
            Ok(()) => {}
        }
        self.first_shown.remove(question);
        "ok".into()
    }

    /// `Err`: what it shows.
    fn await_shown(
        &self,
        (pid, local, peer): (i32, u16, u16),
        within: Duration,
        wanted: impl Fn(&Connection) -> bool,
    ) -> Result<(), String> {
        let end = Instant::now() + within;
        loop {
            let found = self.build.connection(pid, local, peer);
            if found.as_ref().is_ok_and(&wanted) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{found:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn promoted(&mut self, pid: i32, peer_pid: i32, local: u16, peer: u16) -> String {
        let asked = *self.first_asked.entry((local, peer)).or_insert_with(Instant::now);
        // The far end is asked when the near one has moved: where a process takes a while to start,
        // that is half the time.
        let moved =
            |c: &Result<Connection, String>| c.as_ref().is_ok_and(|c| c.is_on(self.build.path));
        let near = self.build.connection(pid, local, peer);
        let far = moved(&near).then(|| self.build.connection(peer_pid, peer, local));
        if far.as_ref().is_some_and(moved) {
            self.accelerated = true;
            return "yes".into();
        }
        self.patience(asked, 1, &format!("near {near:?}, far {far:?}"))
    }

    fn count_fast(&self, pid: &str) -> usize {
        let all = self.build.connections(pid.parse().unwrap_or(0)).unwrap_or_default();
        all.iter().filter(|c| c.is_on(self.build.path)).count()
    }

    /// As [`Self::promoted`], of so many connections of both processes.
    fn all_promoted(&mut self, pid: &str, peer_pid: &str, count: &str) -> String {
        let asked = *self.first_asked.entry((0, 0)).or_insert_with(Instant::now);
        let count = count.parse().unwrap_or(usize::MAX);
        let near = self.count_fast(pid);
        let far = if near >= count { self.count_fast(peer_pid) } else { 0 };
        if far >= count {
            self.accelerated = true;
            return "yes".into();
        }
        self.patience(asked, count, &format!("near {near}, far {far} of {count}"))
    }

    /// Whether the connection's sending direction has moved; of the other nothing is asked.
    fn sends_fast(&mut self, pid: i32, local: u16, peer: u16) -> String {
        let asked = *self.first_asked.entry((local, peer)).or_insert_with(Instant::now);
        let near = self.build.connection(pid, local, peer);
        if near.as_ref().is_ok_and(|c| c.tx_path == self.build.path.name()) {
            self.first_asked.remove(&(local, peer));
            self.accelerated = true;
            return "yes".into();
        }
        self.patience(asked, 1, &format!("sending {near:?}"))
    }

    /// The answer where it is not so, of so many connections: whether to ask again.
    fn patience(&mut self, asked: Instant, count: usize, seen: &str) -> String {
        let patience = sys::patience()
            * match self.mode {
                _ if self.required => Duration::from_secs(8),
                Mode::Starved => Duration::from_millis(100),
                _ if count > 1 => Duration::from_secs(2),
                // (It may be so for each of several connections.)
                _ => Duration::from_millis(300),
            };
        if asked.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(2));
            return "no".into();
        }
        if self.required {
            self.problems.push(format!("not promoted within {patience:?}: {seen}"));
        }
        "give up".into()
    }
}
