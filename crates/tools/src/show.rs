//! Tables for people and JSON for programs. What JSON says is a contract; tables may change.

use crate::segment::Process;
use netacc_control::config::parse_rendered;
use netacc_control::stats::{Channel, ChannelState, Connection, Counter, Path, Reason};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

/// The statistics as JSON; `what` is one of the words of `-s`.
pub fn json(process: &Process, what: &str) -> Value {
    match what {
        "sock" => json!({ "pid": process.pid, "sockets": sockets_json(process) }),
        "cfg" => json!({ "pid": process.pid, "config": config_json(process) }),
        "qp" => json!({ "pid": process.pid, "channels": channels_json(process) }),
        "mem" => json!({
            "pid": process.pid,
            "channels": channels_json(process),
            "arena_bytes": memory(process, Path::Shm),
            "registered_bytes": memory(process, Path::Rdma),
        }),
        "all" => {
            let parts = ["cnt", "sock", "cfg", "mem", "qp"];
            let parts = parts.map(|part| (part.to_owned(), json(process, part)));
            Value::Object(parts.into_iter().collect())
        }
        _ => counts_json(process),
    }
}

/// The statistics as tables.
pub fn text(process: &Process, what: &str) -> String {
    match what {
        "sock" => sockets_text(process),
        "cfg" => config_text(process),
        "qp" => channels_text(process),
        "mem" => memory_text(process),
        "all" => ["cnt", "sock", "cfg", "mem", "qp"].map(|part| text(process, part)).join("\n"),
        _ => counts_text(process),
    }
}

fn counts_json(process: &Process) -> Value {
    let header = &process.header;
    let by_path = |values: &[u64]| -> Map<String, Value> {
        let pairs = Path::ALL.iter().zip(values);
        pairs.map(|(path, value)| (path.name().to_owned(), json!(value))).collect()
    };
    let (tx_bytes, rx_bytes): (Vec<u64>, Vec<u64>) = bytes_by_path(process).into_iter().unzip();
    let reasons: Map<String, Value> =
        reasons(process).map(|(code, count)| (reason_name(code), json!(count))).collect();
    let counters: Map<String, Value> = Counter::ALL
        .iter()
        .zip(header.counters)
        .map(|(counter, value)| (counter.name().to_owned(), json!(value)))
        .collect();
    json!({
        "pid": process.pid,
        "connections_total": connections_total(process),
        "accelerated_total": accelerated_total(process),
        "open": by_path(&header.open_by_path),
        "total": by_path(&header.total_by_path),
        "tx_bytes": by_path(&tx_bytes),
        "rx_bytes": by_path(&rx_bytes),
        "reasons": reasons,
        "counters": counters,
    })
}

fn sockets_json(process: &Process) -> Vec<Value> {
    let socket = |connection: &Connection| {
        let bytes = |bytes: &[u64], path: Path| bytes.get(path as usize).copied();
        json!({
            "fd": connection.fd,
            "local": address(connection.local),
            "peer": address(connection.peer),
            "tx_path": path_name(connection.tx_path),
            "rx_path": path_name(connection.rx_path),
            "reason": reason_name(connection.reason),
            "tx_tcp_bytes": bytes(&connection.tx_bytes, Path::Tcp),
            "tx_shm_bytes": bytes(&connection.tx_bytes, Path::Shm),
            "rx_tcp_bytes": bytes(&connection.rx_bytes, Path::Tcp),
            "rx_shm_bytes": bytes(&connection.rx_bytes, Path::Shm),
            "tx_rdma_bytes": bytes(&connection.tx_bytes, Path::Rdma),
            "rx_rdma_bytes": bytes(&connection.rx_bytes, Path::Rdma),
            "promotions": connection.promotions,
            "demotions": connection.demotions,
            "peer_pid": connection.peer_pid,
        })
    };
    process.connections.iter().map(socket).collect()
}

fn config_json(process: &Process) -> Map<String, Value> {
    parse_rendered(&process.header.config)
        .map(|(key, value, origin)| (key.to_owned(), json!({ "value": value, "origin": origin })))
        .collect()
}

fn channels_json(process: &Process) -> Vec<Value> {
    let channel = |channel: &Channel| {
        json!({
            "path": channel.path.name(),
            "peer": host(channel.peer),
            "peer_pid": channel.peer_pid,
            "state": state_name(channel.state),
            "slots_used": channel.slots_used,
            "slots_total": channel.slots_total,
            "pairs": channel.pairs,
            "connections_total": channel.connections_total,
            "arena_bytes": channel.arena_bytes,
        })
    };
    process.header.channels.iter().map(channel).collect()
}

fn counts_text(process: &Process) -> String {
    let header = &process.header;
    let total = connections_total(process);
    let accelerated = accelerated_total(process);
    let share = if total == 0 {
        String::new()
    } else {
        format!(" ({:.1} %)", accelerated as f64 * 100.0 / total as f64)
    };
    let mut out =
        format!("{}: {total} connections, {accelerated} accelerated{share}\n\n", title(process));

    let mut paths = Table::new(&["Path", ">Open", ">Total", ">Tx-Bytes", ">Rx-Bytes"]);
    let bytes = bytes_by_path(process);
    for ((index, path), (tx, rx)) in Path::ALL.iter().enumerate().zip(bytes) {
        let value = |values: &[u64]| values.get(index).copied().unwrap_or(0).to_string();
        paths.row([
            path.name().to_owned(),
            value(&header.open_by_path),
            value(&header.total_by_path),
            tx.to_string(),
            rx.to_string(),
        ]);
    }
    out += &paths.render();

    let mut table = Table::new(&["Reason", ">Connections", "Meaning"]);
    for (code, count) in reasons(process) {
        let meaning = Reason::from_code(code).map_or("", Reason::explanation);
        table.row([reason_name(code), count.to_string(), meaning.to_owned()]);
    }
    out.push('\n');
    out += &table.render();

    for (heading, is_rdma) in [("Counter", false), ("RDMA counter", true)] {
        let mut table = Table::new(&[heading, ">Value"]);
        for (counter, value) in Counter::ALL.iter().zip(header.counters) {
            if counter.is_rdma() == is_rdma {
                table.row([counter.name().to_owned(), value.to_string()]);
            }
        }
        out.push('\n');
        out += &table.render();
    }
    out
}

fn sockets_text(process: &Process) -> String {
    let mut table = Table::new(&[
        ">Fd",
        "Local",
        "Peer",
        ">Peer-Pid",
        "Tx-Path",
        "Rx-Path",
        "Reason",
        ">Tx-Tcp",
        ">Tx-Shm",
        ">Tx-Rdma",
        ">Rx-Tcp",
        ">Rx-Shm",
        ">Rx-Rdma",
        ">Promoted",
        ">Demoted",
    ]);
    for connection in &process.connections {
        let bytes =
            |bytes: &[u64], path: Path| bytes.get(path as usize).copied().unwrap_or(0).to_string();
        table.row([
            connection.fd.to_string(),
            address(connection.local),
            address(connection.peer),
            pid(connection.peer_pid),
            path_name(connection.tx_path),
            path_name(connection.rx_path),
            reason_name(connection.reason),
            bytes(&connection.tx_bytes, Path::Tcp),
            bytes(&connection.tx_bytes, Path::Shm),
            bytes(&connection.tx_bytes, Path::Rdma),
            bytes(&connection.rx_bytes, Path::Tcp),
            bytes(&connection.rx_bytes, Path::Shm),
            bytes(&connection.rx_bytes, Path::Rdma),
            connection.promotions.to_string(),
            connection.demotions.to_string(),
        ]);
    }
    let count = process.connections.len();
    format!("{}: {count} open connections\n\n{}", title(process), table.render())
}

fn config_text(process: &Process) -> String {
    let config = printable(&process.header.config);
    format!("{}: configuration in effect\n\n{config}", title(process))
}

fn channels_text(process: &Process) -> String {
    let mut table = Table::new(&[
        "Path",
        "Peer",
        ">Peer-Pid",
        "State",
        ">Used",
        ">Slots",
        ">Pairs",
        ">Connections",
        ">Memory",
    ]);
    for channel in &process.header.channels {
        table.row([
            channel.path.name().to_owned(),
            host(channel.peer),
            pid(channel.peer_pid),
            state_name(channel.state),
            channel.slots_used.to_string(),
            channel.slots_total.to_string(),
            channel.pairs.to_string(),
            channel.connections_total.to_string(),
            channel.arena_bytes.to_string(),
        ]);
    }
    let count = process.header.channels.len();
    format!("{}: {count} channels\n\n{}", title(process), table.render())
}

fn memory_text(process: &Process) -> String {
    let mut table = Table::new(&["Path", "Peer", ">Peer-Pid", "State", ">Memory"]);
    for channel in &process.header.channels {
        table.row([
            channel.path.name().to_owned(),
            host(channel.peer),
            pid(channel.peer_pid),
            state_name(channel.state),
            channel.arena_bytes.to_string(),
        ]);
    }
    let (shared, registered) = (memory(process, Path::Shm), memory(process, Path::Rdma));
    format!(
        "{}: {shared} bytes shared with other processes, {registered} bytes registered for RDMA\n\n{}",
        title(process),
        table.render()
    )
}

fn title(process: &Process) -> String {
    format!("Process {} ({})", process.pid, printable(&process.name))
}

fn connections_total(process: &Process) -> u64 {
    let totals = process.header.total_by_path.iter();
    totals.fold(0, |sum, count| sum.saturating_add(*count))
}

fn accelerated_total(process: &Process) -> u64 {
    let totals = process.header.total_by_path.iter().skip(1);
    totals.fold(0, |sum, count| sum.saturating_add(*count))
}

/// Bytes sent and received on each path, also by the connections that are open.
fn bytes_by_path(process: &Process) -> [(u64, u64); Path::ALL.len()] {
    Path::ALL.map(|path| process.header.bytes(path, &process.connections))
}

/// Memory of all channels on a path.
fn memory(process: &Process, path: Path) -> u64 {
    let channels = process.header.channels.iter();
    let channels = channels.filter(|channel| channel.path == path);
    channels.fold(0, |sum, channel| sum.saturating_add(channel.arena_bytes))
}

/// Code and number of each reason that occurred.
fn reasons(process: &Process) -> impl Iterator<Item = (u32, u64)> + '_ {
    let reasons = (0u32..).zip(process.header.reasons);
    reasons.filter(|(_, count)| *count != 0)
}

fn reason_name(code: u32) -> String {
    match Reason::from_code(code) {
        Some(reason) => reason.name().to_owned(),
        None => format!("unknown-{code}"),
    }
}

fn path_name(code: u32) -> String {
    match Path::from_code(code) {
        Some(path) => path.name().to_owned(),
        None => format!("unknown-{code}"),
    }
}

fn state_name(code: u32) -> String {
    match ChannelState::from_code(code) {
        Some(state) => state.name().to_owned(),
        None => format!("unknown-{code}"),
    }
}

fn address(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| String::from("-"), |address| address.to_string())
}

fn host(host: Option<IpAddr>) -> String {
    host.map_or_else(|| String::from("-"), |host| host.to_string())
}

fn pid(pid: u32) -> String {
    match pid {
        0 => String::from("-"),
        pid => pid.to_string(),
    }
}

/// Text of another process must not drive our terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

/// Columns as wide as their widest cell. A heading that starts with `>` is aligned to the right.
struct Table {
    headings: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(headings: &[&str]) -> Table {
        Table {
            headings: headings.iter().map(|text| text.trim_start_matches('>').to_owned()).collect(),
            right: headings.iter().map(|text| text.starts_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    fn render(&self) -> String {
        let lines = || std::iter::once(&self.headings).chain(&self.rows);
        let mut widths = vec![0; self.headings.len()];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut out = String::new();
        for line in lines() {
            let mut text = String::new();
            for ((cell, width), right) in line.iter().zip(&widths).zip(&self.right) {
                let _ = if *right {
                    write!(text, "{cell:>width$}  ")
                } else {
                    write!(text, "{cell:<width$}  ")
                };
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }
}
