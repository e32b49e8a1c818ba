//! What mends a reason or a counter of one process: what is said of all that have it, and the
//! command for this one, with its number, its peer's, and its files.

use super::commands::{
    as_its_user, as_root, install_rdma_core, is_seen_from, list_of, netacc, raise, tool,
};
use super::remedy::{Command, Remedy, show};
use super::{look, process, rules};
use crate::segment::Process;
use crate::show::shell_word;
use netacc_control::config::{DEFAULT_FILE, Key, SYSLOG, file_of, parse_rendered, write_log_path};
use netacc_control::stats::{Connection, Counter, Reason};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;

/// What of a process its commands need.
#[derive(Debug)]
pub struct Of {
    pid: u32,
    /// What it has for a parameter; empty: the default is not known.
    config: String,
    /// It takes another value while it runs.
    hears: bool,
    /// Its log, which may be none, as it names it.
    log: String,
    /// Where that is seen from here, if it is a file of its user's: it may name any.
    log_file: Option<String>,
    /// Where the limit of its memory is.
    memory: Option<String>,
    /// What mends a rule of it.
    rule: Remedy,
}

impl Of {
    /// That of a process, whose effective user this is.
    pub fn new(process: &Process, user: u32) -> Of {
        let pid = process.pid;
        let config = process.header.config.clone();
        let path = value(&config, Key::LogPath).to_owned();
        let mut log = String::new();
        // (Writing into a string does not fail.)
        let _ = write_log_path(&mut log, &path, process.header.pid, user);
        let log_file = of_its_user(pid, &log);
        let hears = process.header.requests.is_some();
        let rule = rules::correct_of(process);
        Of { pid, config, hears, log, log_file, memory: memory(pid), rule }
    }

    /// What mends a reason; `one`: an open connection that has it.
    pub fn reason(&self, reason: Reason, one: Option<&Connection>) -> Remedy {
        match reason {
            // (What is said of all is to run this.)
            Reason::Rule => self.rule.clone(),
            _ => self.command(reason, one).with(reason.remedy()),
        }
    }

    /// What mends a counter that is not 0.
    pub fn counter(&self, counter: Counter) -> Remedy {
        let pid = self.pid;
        let line = match counter {
            Counter::AuthFailures | Counter::PeerCorrupt => self.read_log(),
            Counter::ChannelsFailed | Counter::UtcpLost => self.read_log(),
            Counter::RdmaPairsLost => format!("rdma link; rdma statistic; {}", self.read_log()),
            Counter::LogLinesDropped => list_of(pid, &self.log),
            _ => format!("{} -p {pid} -s cnt --wide", tool("netacc_ss")),
        };
        show(counter.remedy(), line)
    }

    fn command(&self, reason: Reason, one: Option<&Connection>) -> Command {
        match reason {
            Reason::NoDescriptor => raise(self.pid, "Max open files", "nofile", "65536"),
            Reason::MemlockLimit => raise(self.pid, "Max locked memory", "memlock", "unlimited"),
            Reason::DisabledByConfig => self.set(Key::AccelerateByDefault, "1"),
            Reason::SampledOut => self.set(Key::AcceleratePercent, "100"),
            Reason::PathsExcludeIt => self.set(Key::Paths, "shm,rdma"),
            Reason::IoUring => self.set(Key::IoUring, "0"),
            Reason::Rule => self.rule.command.clone(),
            Reason::ConfigUnreadable => {
                rules::readable(file_of(&self.config).unwrap_or(DEFAULT_FILE), self.pid)
            }
            Reason::RdmaCoreMissing => install_rdma_core(),
            _ => Command::Shows(self.line(reason, one)),
        }
    }

    /// What shows more of it.
    fn line(&self, reason: Reason, one: Option<&Connection>) -> String {
        let pid = self.pid;
        let (local, peer) = (one.and_then(|it| it.local), one.and_then(|it| it.peer));
        match reason {
            Reason::PeerRefused | Reason::PeerAskedForTcp => self.look_at_peer(one),
            Reason::ChannelFailed => match peer_of(one) {
                Some(peer) => {
                    let its = netacc(&format!("cfg get NACC_LOG_PATH -p {peer}"));
                    format!("{}; {its}", self.read_log())
                }
                None => self.read_log(),
            },
            Reason::PeerWithoutLibrary | Reason::NotClaimed => who_has(local, peer),
            Reason::ListenerWithoutLibrary => match peer {
                Some(peer) => netacc(&format!("doctor {}", shell_word(&peer.to_string()))),
                None => self.show(reason),
            },
            Reason::NotAuthenticated | Reason::RdmaRefused | Reason::Internal => self.read_log(),
            Reason::UtcpNoPrivilege | Reason::UtcpNoSupport => self.read_log(),
            Reason::RdmaLost => format!("rdma link; {}", self.read_log()),
            Reason::NoMemory => {
                let group = self.memory.as_deref().map(|file| format!(" {}", shell_word(file)));
                format!("cat /proc/{pid}/limits{}", group.unwrap_or_default())
            }
            Reason::ChannelFull => format!("{} -p {pid} -s qp", tool("netacc_ss")),
            Reason::VersionMismatch => netacc("ps"),
            Reason::NoRdmaDevice => String::from("rdma link; ip -brief address"),
            Reason::NotInReach => route(local, peer).unwrap_or_else(|| self.show(reason)),
            Reason::UtcpNoRoute => match route(local, peer) {
                Some(route) => format!("{route}; ip neigh"),
                None => self.show(reason),
            },
            Reason::PeerCorrupt => self.read_log(),
            _ => self.show(reason),
        }
    }

    /// Which connections have it.
    fn show(&self, reason: Reason) -> String {
        format!("{} -p {} --reason {} --wide", tool("netacc_ss"), self.pid, reason.name())
    }

    /// The end of its log.
    fn read_log(&self) -> String {
        match self.log.as_str() {
            "" => netacc(&format!("cfg get NACC_LOG_PATH -p {}", self.pid)),
            SYSLOG => as_root(&format!("journalctl -n 50 _PID={}", self.pid)),
            log => match &self.log_file {
                Some(file) => {
                    let tail = format!("tail -n 50 -- {}", shell_word(file));
                    format!("{} | cat -v", as_its_user(self.pid, &tail))
                }
                None => list_of(self.pid, log),
            },
        }
    }

    fn set(&self, key: Key, better: &str) -> Command {
        process::set((self.pid, self.hears), &self.config, key.name(), better).command
    }

    /// What the other end of a connection says.
    fn look_at_peer(&self, one: Option<&Connection>) -> String {
        let (local, peer) = (one.and_then(|it| it.local), one.and_then(|it| it.peer));
        let ss = tool("netacc_ss");
        match (peer_of(one), local) {
            (Some(pid), Some(local)) => format!("{ss} -p {pid} --port {}", local.port()),
            (Some(pid), None) => format!("{ss} -p {pid} -s sock"),
            (None, _) => who_has(local, peer),
        }
    }
}

/// The number of the process at its other end, if that is known.
fn peer_of(one: Option<&Connection>) -> Option<u32> {
    one.map(|it| it.peer_pid).filter(|pid| *pid != 0)
}

/// Which process of this host has the other end.
fn who_has(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> String {
    match (local, peer) {
        (Some(local), Some(peer)) => {
            let ends = format!("'sport = :{} and dport = :{}'", peer.port(), local.port());
            as_root(&format!("ss -tnp {ends}"))
        }
        _ => netacc("ps"),
    }
}

fn route(local: Option<SocketAddr>, peer: Option<SocketAddr>) -> Option<String> {
    Some(format!("ip route get {} from {}", peer?.ip(), local?.ip()))
}

/// Where a file is seen from here that a process names, if it is one of its user's.
fn of_its_user(pid: u32, file: &str) -> Option<String> {
    let place = if is_seen_from(pid) { String::new() } else { format!("/proc/{pid}/root") };
    let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let seen = format!("{place}{file}");
    let status = std::fs::symlink_metadata(&seen).ok()?;
    (file.starts_with('/') && status.is_file() && status.uid() == user).then_some(seen)
}

fn value(config: &str, key: Key) -> &str {
    let found = parse_rendered(config).find(|(name, ..)| *name == key.name());
    found.map_or(key.default_text(), |(_, value, _)| value)
}

/// The file with the limit of the memory of its control group, of the second version.
fn memory(pid: u32) -> Option<String> {
    let groups = look::file(format!("/proc/{pid}/cgroup"))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let file = format!("/sys/fs/cgroup{}/memory.max", group.trim_end_matches('/'));
    std::path::Path::new(&file).exists().then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_control::stats::RECORD_BYTES;

    fn of(hears: bool) -> Of {
        let log = String::from("/tmp/netacc-17.log");
        let memory = Some(String::from("/sys/fs/cgroup/a/memory.max"));
        let rule = Command::Opens(String::from("sudoedit /etc/netacc.conf")).with("correct it");
        Of { pid: 17, config: String::new(), hears, log_file: Some(log.clone()), log, memory, rule }
    }

    fn connection(peer_pid: u32) -> Connection {
        let none = Connection::read_closed(&[0; RECORD_BYTES]);
        Connection {
            peer_pid,
            local: Some(SocketAddr::from(([10, 0, 0, 1], 5000))),
            peer: Some(SocketAddr::from(([10, 0, 0, 2], 80))),
            ..none
        }
    }

    fn has_a_command(remedy: &Remedy) {
        // (Process 17 has no hard limit that root may raise everywhere.)
        let Some(line) = remedy.command.line() else {
            let why = remedy.command.why_none().unwrap();
            return assert!(why.contains("hard limit"), "{remedy:?}");
        };
        assert!(!remedy.text.is_empty() && shlex::split(line).is_some(), "{remedy:?}");
        // What is to be filled in would be left to the reader.
        assert!(!line.contains("PID") || line.contains("_PID="), "{remedy:?}");
        for text in [line, &remedy.text] {
            let blanks = ["PEER", "ADDRESS", "HOST:", "…"];
            assert!(!blanks.iter().any(|blank| text.contains(blank)), "{remedy:?}");
        }
    }

    #[test]
    fn every_reason_has_a_command_with_what_it_is_run_for() {
        for reason in Reason::ALL.iter().copied() {
            for one in [None, Some(connection(0)), Some(connection(4711))] {
                for hears in [false, true] {
                    let remedy = of(hears).reason(reason, one.as_ref());
                    has_a_command(&remedy);
                    assert!(!remedy.text.contains("with the number of the process"), "{remedy:?}");
                }
            }
        }
    }

    #[test]
    fn every_counter_has_a_command() {
        Counter::ALL.iter().for_each(|counter| has_a_command(&of(true).counter(*counter)));
    }

    /// What a process says of itself may be meant for whoever runs the command.
    #[test]
    fn a_file_of_a_process_is_one_word_of_a_command() {
        let file = "/tmp/a b;$(rm -r c)'d";
        let of = Of {
            log: file.into(),
            log_file: Some(file.into()),
            memory: Some(file.into()),
            ..of(true)
        };
        for (remedy, words) in [
            (
                of.reason(Reason::Internal, None),
                &["tail", "-n", "50", "--", file, "|", "cat", "-v"][..],
            ),
            (of.reason(Reason::NoMemory, None), &["cat", "/proc/17/limits", file]),
            (of.counter(Counter::LogLinesDropped), &["namei", "-l", "--", file]),
        ] {
            let line = remedy.command.line().unwrap();
            assert_eq!(shlex::split(line).unwrap(), words, "{line}");
        }
    }

    #[test]
    fn commands_name_the_process_its_peer_and_its_files() {
        let one = connection(4711);
        let away = connection(0);
        let of = of(true);
        for (reason, connection, does, line) in [
            (Reason::PeerRefused, Some(&one), "shows", "netacc_ss -p 4711 --port 5000"),
            (
                Reason::PeerAskedForTcp,
                Some(&away),
                "shows",
                "ss -tnp 'sport = :80 and dport = :5000'",
            ),
            (Reason::NotClaimed, Some(&away), "shows", "ss -tnp 'sport = :80 and dport = :5000'"),
            (Reason::ListenerWithoutLibrary, Some(&one), "shows", "netacc doctor 10.0.0.2:80"),
            (
                Reason::ChannelFailed,
                Some(&one),
                "shows",
                "tail -n 50 -- /tmp/netacc-17.log | cat -v; netacc cfg get NACC_LOG_PATH -p 4711",
            ),
            (Reason::NoMemory, None, "shows", "cat /proc/17/limits /sys/fs/cgroup/a/memory.max"),
            (Reason::ChannelFull, None, "shows", "netacc_ss -p 17 -s qp"),
            (
                Reason::DisabledByConfig,
                None,
                "mends",
                "netacc cfg set NACC_ENABLE_RDMA_DEFAULT 1 -p 17",
            ),
            (Reason::NotInReach, Some(&one), "shows", "ip route get 10.0.0.2 from 10.0.0.1"),
            (Reason::Splice, None, "shows", "netacc_ss -p 17 --reason splice --wide"),
            (Reason::Rule, None, "opens", "sudoedit /etc/netacc.conf"),
        ] {
            let command = of.reason(reason, connection).command;
            // (Who runs the tests may not be root.)
            let said = command.line().unwrap().trim_start_matches("sudo ");
            assert_eq!((command.does(), said), (Some(does), line));
        }
    }
}
