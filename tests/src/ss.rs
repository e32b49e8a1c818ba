//! Reads a process's connections through `netacc_ss --json -s sock <pid>`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What the tests need of one connection's line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    pub local_port: u16,
    pub peer_port: u16,
    pub tx_path: String,
    pub rx_path: String,
    pub reason: String,
    pub tx_tcp_bytes: u64,
    pub tx_shm_bytes: u64,
    pub rx_shm_bytes: u64,
    pub tx_rdma_bytes: u64,
    pub promotions: u64,
    pub demotions: u64,
}

impl Connection {
    /// Both directions are on this path.
    pub fn is_on(&self, path: Path) -> bool {
        self.tx_path == path.name() && self.rx_path == path.name()
    }

    /// One of its directions has left TCP, and none has come back.
    pub fn has_not_gone_back(&self) -> bool {
        self.promotions > 0 && self.demotions == 0
    }

    /// Between hosts: one of its ends has filled small rings, and it waits for whole ones, or has
    /// them, and takes them with its next send.
    pub fn has_outgrown_its_rings(&self) -> bool {
        self.demotions > 0
            && self.tx_rdma_bytes > 0
            && matches!(&self.reason[..], "negotiating" | "agreed" | "peer-asked-for-tcp" | "none")
    }

    /// What this end has sent on this path.
    pub fn tx_bytes(&self, path: Path) -> u64 {
        match path {
            Path::Shm => self.tx_shm_bytes,
            Path::Rdma => self.tx_rdma_bytes,
        }
    }
}

/// The path that connections are to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    Shm,
    /// Also within a host: it needs an RDMA device, and [`crate::sys::home`] to be an address of
    /// it.
    Rdma,
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Path::Shm => "shm",
            Path::Rdma => "rdma",
        }
    }

    pub fn from_name(name: &str) -> Option<Path> {
        [Path::Shm, Path::Rdma].into_iter().find(|path| path.name() == name)
    }
}

/// Where the library and its tools are, and the path that processes with the library are to take.
#[derive(Clone, Debug)]
pub struct Build {
    pub library: PathBuf,
    /// The library with changes of path to order (tests/inject).
    pub switching: PathBuf,
    pub netacc_ss: PathBuf,
    pub path: Path,
    /// More of the environment of processes with the library.
    pub environment: Vec<(&'static str, String)>,
}

impl Build {
    /// `NETACC_LIB_DIR`, or `target/release` beside this package.
    pub fn find() -> Build {
        let dir = std::env::var_os("NETACC_LIB_DIR").map_or_else(
            || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release"),
            PathBuf::from,
        );
        let dir = dir.canonicalize().unwrap_or(dir);
        Build {
            library: dir.join("libnetacc_preload.so"),
            switching: dir.join("inject/libnetacc_preload.so"),
            netacc_ss: dir.join("netacc_ss"),
            path: Path::Shm,
            environment: Vec::new(),
        }
    }

    pub fn with_path(self, path: Path) -> Build {
        Build { path, ..self }
    }

    pub fn is_there(&self) -> bool {
        self.library.exists()
    }

    /// The connections of a process; an error message when the tool does not answer.
    pub fn connections(&self, pid: i32) -> Result<Vec<Connection>, String> {
        let output = Command::new(&self.netacc_ss)
            .args(["--json", "-s", "sock", &pid.to_string()])
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("netacc_ss: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!(
                "netacc_ss {pid}: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        Ok(parse(&text))
    }

    /// One of the counters of a process; `None`: it does not have the library.
    pub fn count(&self, pid: i32, name: &str) -> Option<u64> {
        let output = Command::new(&self.netacc_ss)
            .args(["--json", "-s", "cnt", &pid.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        output.status.success().then(|| number(&String::from_utf8_lossy(&output.stdout), name))
    }

    /// The connection of a process between two ports.
    pub fn connection(&self, pid: i32, local: u16, peer: u16) -> Result<Connection, String> {
        let list = self.connections(pid)?;
        list.iter()
            .find(|c| c.local_port == local && c.peer_port == peer)
            .cloned()
            .ok_or_else(|| format!("netacc_ss {pid}: no connection {local} to {peer} in {list:?}"))
    }
}

/// The objects of the `sockets` array. The objects are flat, so braces delimit them.
fn parse(json: &str) -> Vec<Connection> {
    let Some((_, rest)) = json.split_once("\"sockets\"") else {
        return Vec::new();
    };
    rest.split('{')
        .skip(1)
        .filter_map(|object| Some(connection(object.split_once('}')?.0)))
        .collect()
}

fn connection(object: &str) -> Connection {
    let port = |key| text(object, key).rsplit(':').next().and_then(|p| p.parse().ok()).unwrap_or(0);
    Connection {
        local_port: port("local"),
        peer_port: port("peer"),
        tx_path: text(object, "tx_path"),
        rx_path: text(object, "rx_path"),
        reason: text(object, "reason"),
        tx_tcp_bytes: number(object, "tx_tcp_bytes"),
        tx_shm_bytes: number(object, "tx_shm_bytes"),
        rx_shm_bytes: number(object, "rx_shm_bytes"),
        tx_rdma_bytes: number(object, "tx_rdma_bytes"),
        promotions: number(object, "promotions"),
        demotions: number(object, "demotions"),
    }
}

fn value<'a>(object: &'a str, key: &str) -> &'a str {
    let quoted = format!("\"{key}\"");
    object
        .split_once(&quoted)
        .map_or("", |(_, rest)| rest.trim_start().strip_prefix(':').unwrap_or(rest).trim_start())
}

fn text(object: &str, key: &str) -> String {
    value(object, key)
        .strip_prefix('"')
        .and_then(|v| v.split_once('"'))
        .map_or_else(String::new, |(v, _)| v.into())
}

fn number(object: &str, key: &str) -> u64 {
    let v = value(object, key);
    v[..v.find(|c: char| !c.is_ascii_digit()).unwrap_or(v.len())].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_is_parsed() {
        let json = r#"{"pid":7,"sockets":[
            {"fd":5,"local":"127.0.0.1:40000","peer":"127.0.0.1:6379","tx_path":"shm","rx_path": "tcp","reason":"x y",
             "tx_tcp_bytes":64,"tx_shm_bytes":1234,"rx_tcp_bytes":0,"rx_shm_bytes":9},
            {"fd":6,"local":"[::1]:1","peer":"[::1]:2","tx_path":"shm","rx_path":"shm","reason":""}]}"#;
        let list = parse(json);
        assert_eq!(list.len(), 2);
        assert_eq!((list[0].local_port, list[0].peer_port), (40000, 6379));
        assert_eq!((list[0].tx_shm_bytes, list[0].rx_shm_bytes), (1234, 9));
        assert!(!list[0].is_on(Path::Shm) && list[1].is_on(Path::Shm));
        assert_eq!((list[1].local_port, list[1].peer_port), (1, 2));
    }
}
