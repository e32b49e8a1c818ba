//! Tables for people and JSON for programs. What JSON says is a contract; tables may change.

use crate::latencies::{self, Latencies};
use crate::memory::{self, Mappings};
use crate::processes::Found;
use crate::ruled::Rules;
use crate::segment::Process;
use crate::selection::Selection;
use crate::table::Table;
use crate::terminal::{self, COLUMNS};
use netacc_control::config::parse_rendered;
use netacc_control::stats::{COUNTERS, Channel, ChannelState, Connection, Counter, Path, Reason};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

/// What can be shown of a process; the words of `-s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Connections by path and by reason, and counters.
    Counts,
    /// Each open connection.
    Sockets,
    /// The configuration in effect.
    Config,
    /// Memory that is shared or registered.
    Memory,
    /// Channels and queue pairs.
    Channels,
}

impl Section {
    /// Every section, in the order of `all`.
    pub const ALL: [Section; 5] =
        [Section::Counts, Section::Sockets, Section::Config, Section::Memory, Section::Channels];

    /// The word of `-s`.
    pub fn word(self) -> &'static str {
        match self {
            Section::Counts => "cnt",
            Section::Sockets => "sock",
            Section::Config => "cfg",
            Section::Memory => "mem",
            Section::Channels => "qp",
        }
    }

    /// The sections that words ask for, each once, in their order. Other words do not count.
    pub fn list<'a>(words: impl Iterator<Item = &'a str>) -> Vec<Section> {
        let mut sections = Vec::new();
        for word in words {
            let meant = Section::ALL.into_iter().filter(|s| word == "all" || s.word() == word);
            for section in meant {
                if !sections.contains(&section) {
                    sections.push(section);
                }
            }
        }
        sections
    }
}

/// What of a process is shown, and how.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// In this order.
    pub sections: &'a [Section],
    /// Every detail, however wide that is.
    pub is_wide: bool,
    /// Of the terminal ([`terminal::columns`]); it does not count where every detail is shown.
    pub columns: Option<usize>,
    /// Of the connections.
    pub selection: &'a Selection,
}

/// The statistics as JSON: of one section its object, of several an object of these by their words.
pub fn json(process: &Process, view: &View<'_>) -> Value {
    match view.sections {
        [section] => section_json(process, *section, view),
        several => {
            let part = |s: &Section| (s.word().to_owned(), section_json(process, *s, view));
            Value::Object(several.iter().map(part).collect())
        }
    }
}

impl View<'_> {
    /// The columns that text has to fit.
    pub(crate) fn fits(&self) -> Option<usize> {
        self.columns.filter(|_| !self.is_wide)
    }
}

/// The statistics as tables, for that terminal.
pub fn text(process: &Process, view: &View<'_>) -> String {
    let part = |s: &Section| section_text(process, *s, view);
    let parts: Vec<String> = view.sections.iter().map(part).collect();
    terminal::fold(parts.join("\n"), view.fits())
}

pub(crate) fn section_json(process: &Process, section: Section, view: &View<'_>) -> Value {
    match section {
        Section::Counts => counts_json(process),
        Section::Sockets => json!({ "pid": process.pid, "sockets": sockets_json(process, view) }),
        Section::Config => json!({
            "pid": process.pid,
            "library_version": process.header.library.map(version),
            "protocol_version": process.header.protocol,
            "config": config_json(process),
        }),
        Section::Channels => json!({ "pid": process.pid, "channels": channels_json(process) }),
        Section::Memory => json!({
            "pid": process.pid,
            "channels": channels_json(process),
            "arena_bytes": memory(process, Path::Shm),
            "registered_bytes": memory(process, Path::Rdma),
            "mappings": mappings_json(process),
        }),
    }
}

pub(crate) fn section_text(process: &Process, section: Section, view: &View<'_>) -> String {
    match section {
        Section::Counts => counts_text(process, view),
        Section::Sockets if view.is_wide => sockets_text(process, view),
        Section::Sockets => short_sockets_text(process, view),
        Section::Config => config_text(process),
        Section::Channels => channels_text(process, view),
        Section::Memory => memory_text(process, view),
    }
}

fn counts_json(process: &Process) -> Value {
    let header = &process.header;
    let (tx_bytes, rx_bytes): (Vec<u64>, Vec<u64>) = bytes_by_path(process).into_iter().unzip();
    let totals = totals(process);
    let messages = |counter: Counter| totals.get(counter as usize);
    let all: Vec<_> = reasons(process).collect();
    let ever = all.iter().filter(|(_, _, total)| *total != 0);
    let reasons: Map<String, Value> =
        ever.map(|(code, _, total)| (reason_name(*code), json!(total))).collect();
    let open = all.iter().filter(|(_, open, _)| *open != 0);
    let open_reasons: Map<String, Value> =
        open.map(|(code, open, _)| (reason_name(*code), json!(open))).collect();
    let counters: Map<String, Value> = Counter::ALL
        .iter()
        .zip(totals)
        .map(|(counter, value)| (counter.name().to_owned(), json!(value)))
        .collect();
    json!({
        "pid": process.pid,
        "program": process.name,
        "library_version": header.library.map(version),
        "protocol_version": header.protocol,
        "connections_total": connections_total(process),
        "accelerated_total": accelerated_total(process),
        "open": by_path(&header.open_by_path),
        "total": by_path(&header.total_by_path),
        "tx_bytes": by_path(&tx_bytes),
        "rx_bytes": by_path(&rx_bytes),
        "tx_messages": messages(Counter::MessagesTx),
        "rx_messages": messages(Counter::MessagesRx),
        "reasons": reasons,
        "open_reasons": open_reasons,
        "counters": counters,
    })
}

fn by_path(values: &[u64]) -> Map<String, Value> {
    let pairs = Path::ALL.iter().zip(values);
    pairs.map(|(path, value)| (path.name().to_owned(), json!(value))).collect()
}

fn sockets_json(process: &Process, view: &View<'_>) -> Vec<Value> {
    let measured = Latencies::of(process.pid);
    let all = process.connections.all();
    let shown = view.selection.of(&all, measured.by(view.selection.order));
    let rules = Rules::of(process);
    shown.into_iter().map(|connection| socket_json(connection, &rules, &measured)).collect()
}

/// (There may be ten thousand: with room for all from the beginning it takes half the time.)
fn socket_json(connection: &Connection, rules: &Rules, measured: &Latencies) -> Value {
    let bytes = |bytes: &[u64], path: Path| {
        let all = bytes.get(path as usize).copied();
        Value::from(all.filter(|_| path != Path::Tcp || !connection.is_uncounted))
    };
    let (tx_ring, rx_ring) = (connection.tx_ring(), connection.rx_ring());
    let fields: [(&str, Value); 25] = [
        ("fd", connection.fd.into()),
        ("local", address(connection.local).into()),
        ("peer", address(connection.peer).into()),
        ("tx_path", path_name(connection.tx_path).into()),
        ("rx_path", path_name(connection.rx_path).into()),
        ("reason", reason_name(connection.reason).into()),
        ("rule", rules.name(connection).into()),
        ("tx_tcp_bytes", bytes(&connection.tx_bytes, Path::Tcp)),
        ("tx_shm_bytes", bytes(&connection.tx_bytes, Path::Shm)),
        ("rx_tcp_bytes", bytes(&connection.rx_bytes, Path::Tcp)),
        ("rx_shm_bytes", bytes(&connection.rx_bytes, Path::Shm)),
        ("tx_rdma_bytes", bytes(&connection.tx_bytes, Path::Rdma)),
        ("rx_rdma_bytes", bytes(&connection.rx_bytes, Path::Rdma)),
        ("tx_utcp_bytes", bytes(&connection.tx_bytes, Path::Utcp)),
        ("rx_utcp_bytes", bytes(&connection.rx_bytes, Path::Utcp)),
        ("tx_messages", connection.counted(connection.tx_messages).into()),
        ("rx_messages", connection.counted(connection.rx_messages).into()),
        ("tx_ring_used", tx_ring.map(|(used, _)| used).into()),
        ("tx_ring_bytes", tx_ring.map(|(_, bytes)| bytes).into()),
        ("rx_ring_used", rx_ring.map(|(used, _)| used).into()),
        ("rx_ring_bytes", rx_ring.map(|(_, bytes)| bytes).into()),
        ("promotions", connection.promotions.into()),
        ("demotions", connection.demotions.into()),
        ("peer_pid", connection.peer_pid.into()),
        ("opened_unix_ns", connection.opened_unix_ns.into()),
    ];
    let times = latencies::json(measured.find(connection));
    let mut socket = Map::with_capacity(fields.len() + times.len());
    let all = fields.into_iter().chain(times);
    socket.extend(all.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(socket)
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
            "peer_library": channel.library.map(version),
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

fn mappings_json(process: &Process) -> Vec<Value> {
    let mapping = |m: &Mappings| {
        json!({
            "kind": m.kind,
            "count": m.count,
            "reserved_bytes": m.reserved,
            "touched_bytes": m.touched,
            "locked_bytes": m.locked,
        })
    };
    mappings(process).iter().map(mapping).collect()
}

fn counts_text(process: &Process, view: &View<'_>) -> String {
    let header = &process.header;
    let total = connections_total(process);
    let accelerated = accelerated_total(process);
    let share = share(process).map_or_else(String::new, |share| format!(" ({share})"));
    let mut out = format!(
        "{}: {}, {accelerated} accelerated{share}\n",
        title(process),
        counted(total, "connection")
    );
    let _ = writeln!(out, "{}\n", versions(process));

    let mut paths = Table::new(&["Path", ">Open", ">Best-Ever", ">Tx-Bytes", ">Rx-Bytes"]);
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
    out += &paths.render(view.fits());
    let totals = totals(process);
    let messages = |counter: Counter| totals.get(counter as usize).copied().unwrap_or(0);
    let (tx, rx) = (messages(Counter::MessagesTx), messages(Counter::MessagesRx));
    let _ = writeln!(out, "\nMessages: {tx} sent, {rx} received");

    out.push('\n');
    out += &reasons_text(process, view);

    let mut hidden = 0;
    for (heading, is_rdma) in [("Counter", false), ("RDMA counter", true)] {
        let mut table = Table::new(&[heading, ">Value"]);
        let counters = Counter::ALL.iter().zip(totals);
        for (counter, value) in counters.filter(|(counter, _)| counter.is_rdma() == is_rdma) {
            if value == 0 && !view.is_wide {
                hidden += 1;
            } else {
                table.row([counter.name().to_owned(), value.to_string()]);
            }
        }
        out += &table.render_behind(view.fits());
    }
    if hidden > 0 {
        let _ = writeln!(out, "\n{hidden} more counters are 0: --wide shows them");
    }
    out
}

/// Open connections and all there have been, by reason, with its meaning.
fn reasons_text(process: &Process, view: &View<'_>) -> String {
    let mut table = Table::new(&["Reason", ">Open", ">Total", "Meaning"]);
    for (code, open, total) in reasons(process) {
        let meaning = Reason::from_code(code).map_or("", Reason::explanation);
        table.row([reason_name(code), open.to_string(), total.to_string(), meaning.to_owned()]);
    }
    table.render(if view.is_wide { None } else { view.columns.or(Some(COLUMNS)) })
}

/// What most look for first.
fn short_sockets_text(process: &Process, view: &View<'_>) -> String {
    let mut table = Table::new(&[">Fd", "Local", "Peer", "Path", "Reason", ">Sent", ">Received"]);
    let order = view.selection.order;
    let measured = Latencies::wanted(process.pid, order);
    let all = process.connections.all();
    let shown = view.selection.of(&all, measured.by(order));
    for connection in &shown {
        table.row([
            connection.fd.to_string(),
            address(connection.local),
            address(connection.peer),
            way(connection),
            reason_name(connection.reason),
            connection.sent().map_or_else(uncounted, size),
            connection.received().map_or_else(uncounted, size),
        ]);
    }
    format!("{}\n\n{}", open_connections(process, view, shown.len()), table.render(view.fits()))
}

fn open_connections(process: &Process, view: &View<'_>, shown: usize) -> String {
    let all = process.open.connections;
    let title = title(process);
    match view.selection.is_all() {
        true if all == 1 => format!("{title}: 1 open connection"),
        true => format!("{title}: {all} open connections"),
        false => format!("{title}: {shown} of {all} open connections"),
    }
}

/// The path of both directions, or of each.
pub(crate) fn way(connection: &Connection) -> String {
    let (tx, rx) = (path_name(connection.tx_path), path_name(connection.rx_path));
    if tx == rx { tx } else { format!("{tx}/{rx}") }
}

fn sockets_text(process: &Process, view: &View<'_>) -> String {
    let mut headings = vec![
        ">Fd",
        "Local",
        "Peer",
        ">Peer-Pid",
        "Tx-Path",
        "Rx-Path",
        "Reason",
        "Rule",
        ">Tx-Tcp",
        ">Tx-Shm",
        ">Tx-Rdma",
        ">Tx-Utcp",
        ">Rx-Tcp",
        ">Rx-Shm",
        ">Rx-Rdma",
        ">Rx-Utcp",
        ">Tx-Msgs",
        ">Rx-Msgs",
        ">Ring-Used",
        ">Promoted",
        ">Demoted",
        ">Age",
    ];
    let times = latencies::headings();
    headings.extend(times.iter().map(String::as_str));
    let mut table = Table::new(&headings);
    let (measured, rules) = (Latencies::of(process.pid), Rules::of(process));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let all = process.connections.all();
    let shown = view.selection.of(&all, measured.by(view.selection.order));
    for connection in &shown {
        let opened = Duration::from_nanos(connection.opened_unix_ns);
        let counted = |count: u64| {
            connection.counted(count).map_or_else(uncounted, |count| count.to_string())
        };
        let bytes = |bytes: &[u64], path: Path| {
            let bytes = bytes.get(path as usize).copied().unwrap_or(0);
            if path == Path::Tcp { counted(bytes) } else { bytes.to_string() }
        };
        let mut row = vec![
            connection.fd.to_string(),
            address(connection.local),
            address(connection.peer),
            pid(connection.peer_pid),
            path_name(connection.tx_path),
            path_name(connection.rx_path),
            reason_name(connection.reason),
            rules.name(connection).unwrap_or("-").to_owned(),
            bytes(&connection.tx_bytes, Path::Tcp),
            bytes(&connection.tx_bytes, Path::Shm),
            bytes(&connection.tx_bytes, Path::Rdma),
            bytes(&connection.tx_bytes, Path::Utcp),
            bytes(&connection.rx_bytes, Path::Tcp),
            bytes(&connection.rx_bytes, Path::Shm),
            bytes(&connection.rx_bytes, Path::Rdma),
            bytes(&connection.rx_bytes, Path::Utcp),
            counted(connection.tx_messages),
            counted(connection.rx_messages),
            ring_text(connection),
            connection.promotions.to_string(),
            connection.demotions.to_string(),
            if opened.is_zero() { String::from("-") } else { age(now.saturating_sub(opened)) },
        ];
        row.extend(latencies::cells(measured.find(connection)));
        table.row(row);
    }
    format!("{}\n\n{}", open_connections(process, view, shown.len()), table.render(view.fits()))
}

/// What is not counted is not 0.
pub(crate) fn uncounted() -> String {
    String::from("-")
}

/// How full the ring is that is known, and how large.
fn ring_text(connection: &Connection) -> String {
    let ring = connection.tx_ring().or_else(|| connection.rx_ring());
    ring.map_or_else(
        || String::from("-"),
        |(used, bytes)| format!("{}/{}", size(used.into()), size(bytes.into())),
    )
}

fn config_text(process: &Process) -> String {
    let config = printable(&process.header.config);
    format!("{}: configuration in effect\n{}\n\n{config}", title(process), versions(process))
}

fn channels_text(process: &Process, view: &View<'_>) -> String {
    let mut table = Table::new(&[
        "Path",
        "Peer",
        ">Peer-Pid",
        "State",
        ">Used",
        ">Slots",
        ">Pairs",
        ">Connections",
        ">Reserved",
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
            size(channel.arena_bytes),
        ]);
    }
    let count = counted(process.header.channels.len() as u64, "channel");
    format!("{}: {count}\n\n{}", title(process), table.render(view.fits()))
}

/// What the library has mapped in a process; nothing where it has ended.
fn mappings(process: &Process) -> Vec<Mappings> {
    memory::with_locked(process.pid).unwrap_or_default()
}

fn memory_text(process: &Process, view: &View<'_>) -> String {
    let mappings = mappings(process);
    let sum = |of: fn(&Mappings) -> u64| {
        size(mappings.iter().fold(0, |sum: u64, m| sum.saturating_add(of(m))))
    };
    let mut out = format!(
        "{}: {} reserved within the host, {} touched, {} locked; {} registered for RDMA\n\n",
        title(process),
        sum(|m| m.reserved),
        sum(|m| m.touched),
        sum(|m| m.locked),
        size(memory(process, Path::Rdma)),
    );
    let mut table = Table::new(&["Kind", ">Mappings", ">Reserved", ">Touched", ">Locked"]);
    for m in &mappings {
        table.row([
            m.kind.to_owned(),
            m.count.to_string(),
            size(m.reserved),
            size(m.touched),
            size(m.locked),
        ]);
    }
    out += &table.render(view.fits());
    let mut table = Table::new(&["Path", "Peer", ">Peer-Pid", "State", ">Reserved"]);
    for channel in &process.header.channels {
        table.row([
            channel.path.name().to_owned(),
            host(channel.peer),
            pid(channel.peer_pid),
            state_name(channel.state),
            size(channel.arena_bytes),
        ]);
    }
    out.push('\n');
    out + &table.render(view.fits())
}

/// Bytes for people, in binary units.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// So many of them, in words.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn title(process: &Process) -> String {
    format!("Process {} ({})", process.pid, one_line(&process.name))
}

/// The processes that have the library, as JSON.
pub fn processes_json(found: &[Found]) -> Value {
    let row = |found: &Found| match &found.process {
        Err(error) => json!({ "pid": found.pid, "problem": error.to_string() }),
        Ok(process) => {
            let (tx_bytes, rx_bytes): (Vec<u64>, Vec<u64>) =
                bytes_by_path(process).into_iter().unzip();
            json!({
                "pid": process.pid,
                "program": process.name,
                "uid": process.uid,
                "container": process.container,
                "library_version": process.header.library.map(version),
                "protocol_version": process.header.protocol,
                "library_replaced": process.is_library_replaced(),
                "library_older": process.is_library_older(),
                "uptime_s": process.uptime.map(|uptime| uptime.as_secs()),
                "connections_total": connections_total(process),
                "accelerated_total": accelerated_total(process),
                "open": by_path(&process.header.open_by_path),
                "tx_bytes": by_path(&tx_bytes),
                "rx_bytes": by_path(&rx_bytes),
            })
        }
    };
    Value::Array(found.iter().map(row).collect())
}

/// The processes that have the library, as a table for a terminal of so many columns
/// ([`terminal::columns`]); what is odd about one stands below it.
pub fn processes_text(found: &[Found], columns: Option<usize>) -> String {
    let mut table = Table::new(&PROCESS_COLUMNS);
    for process in found.iter().filter_map(|found| found.process.as_ref().ok()) {
        table.row(process_cells(process));
    }
    let notes = process_notes(found, true);
    let behind = if notes.is_empty() { "" } else { "\n" };
    terminal::fold(table.render(columns) + behind + &notes, columns)
}

/// The same with every column, however wide that is: also the bytes so far, by path.
pub fn wide_processes_text(found: &[Found]) -> String {
    let mut headings: Vec<String> = PROCESS_COLUMNS.map(str::to_owned).into();
    headings.push(String::from(">Protocol"));
    headings.extend(bytes_headings(""));
    headings.push(String::from("Container"));
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    for process in found.iter().filter_map(|found| found.process.as_ref().ok()) {
        let bytes = bytes_by_path(process);
        let mut row = Vec::from(process_cells(process));
        let protocol = process.header.protocol.map(|number| number.to_string());
        row.push(protocol.unwrap_or_else(|| String::from("-")));
        row.extend(bytes.iter().map(|(tx, _)| tx.to_string()));
        row.extend(bytes.iter().map(|(_, rx)| rx.to_string()));
        row.push(process.container.clone().unwrap_or_else(|| String::from("-")));
        table.row(row);
    }
    let notes = process_notes(found, false);
    let behind = if notes.is_empty() { "" } else { "\n" };
    table.render(None) + behind + &notes
}

const PROCESS_COLUMNS: [&str; 11] = [
    ">Pid", "Program", ">Uid", "Library", ">Uptime", ">Tcp", ">Shm", ">Rdma", ">Utcp", ">Total",
    ">Share",
];

/// Of the bytes that are sent and received on each path; `per`: in which time.
pub(crate) fn bytes_headings(per: &str) -> Vec<String> {
    let heading = |way: &str, path: Path| {
        let (first, rest) = path.name().split_at(1);
        format!(">{way}-{}{rest}{per}", first.to_ascii_uppercase())
    };
    let ways = ["Tx", "Rx"].into_iter();
    ways.flat_map(|way| Path::ALL.map(|path| heading(way, path))).collect()
}

fn process_cells(process: &Process) -> [String; PROCESS_COLUMNS.len()] {
    let header = &process.header;
    let [tcp, shm, rdma, utcp] = Path::ALL
        .map(|path| header.open_by_path.get(path as usize).copied().unwrap_or(0).to_string());
    [
        process.pid.to_string(),
        one_line(&process.name),
        process.uid.to_string(),
        header.library.map_or_else(|| String::from("-"), version),
        process.uptime.map_or_else(|| String::from("-"), age),
        tcp,
        shm,
        rdma,
        utcp,
        connections_total(process).to_string(),
        share(process).unwrap_or_else(|| String::from("-")),
    ]
}

/// What is odd about a process, and, where no column has it, its container.
fn process_notes(found: &[Found], says_container: bool) -> String {
    let mut notes = String::new();
    for found in found {
        let process = match &found.process {
            Ok(process) => process,
            Err(error) => {
                let _ = writeln!(notes, "{}: {error}", found.pid);
                continue;
            }
        };
        if let Some(container) = process.container.as_ref().filter(|_| says_container) {
            let _ = writeln!(notes, "{}: in container {container}", process.pid);
        }
        if process.is_library_replaced() {
            let _ = writeln!(
                notes,
                "{}: its library has been replaced since it started: start the program again to \
                 use the new one",
                process.pid
            );
        } else if process.is_library_older() {
            let _ = writeln!(
                notes,
                "{}: its library is older than these tools ({}): start the program again with \
                 the new one",
                process.pid,
                env!("CARGO_PKG_VERSION")
            );
        }
    }
    notes
}

/// Which library a process has, and by which version of their protocol it agrees with others.
fn versions(process: &Process) -> String {
    let unknown = || String::from("unknown");
    let library = process.header.library.map_or_else(unknown, version);
    let protocol = process.header.protocol.map_or_else(unknown, |number| number.to_string());
    let replaced =
        if process.is_library_replaced() { "; its file has been replaced since" } else { "" };
    format!("Library {library}, protocol {protocol}{replaced}")
}

pub(crate) fn version([major, minor, patch]: [u16; 3]) -> String {
    format!("{major}.{minor}.{patch}")
}

/// How long something has lasted, in its two largest units.
pub(crate) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if days > 0 => format!("{days}d{}h", hours % 24),
        () if hours > 0 => format!("{hours}h{}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

/// The accelerated part of all connections.
pub(crate) fn share(process: &Process) -> Option<String> {
    let total = connections_total(process);
    let accelerated = accelerated_total(process);
    (total != 0).then(|| format!("{:.1} %", accelerated as f64 * 100.0 / total as f64))
}

pub(crate) fn connections_total(process: &Process) -> u64 {
    let totals = process.header.total_by_path.iter();
    totals.fold(0, |sum, count| sum.saturating_add(*count))
}

pub(crate) fn accelerated_total(process: &Process) -> u64 {
    let totals = process.header.total_by_path.iter().skip(1);
    totals.fold(0, |sum, count| sum.saturating_add(*count))
}

/// Bytes sent and received on each path, also by the connections that are open.
pub(crate) fn bytes_by_path(process: &Process) -> [(u64, u64); Path::ALL.len()] {
    let totals = totals(process);
    let of = |counter: Counter| totals.get(counter as usize).copied().unwrap_or(0);
    Path::ALL.map(|path| (of(Counter::bytes_tx(path)), of(Counter::bytes_rx(path))))
}

/// Every counter, by code, with what the open connections have moved.
pub(crate) fn totals(process: &Process) -> [u64; COUNTERS] {
    process.header.totals(&process.open)
}

/// Memory of all channels on a path.
fn memory(process: &Process, path: Path) -> u64 {
    let channels = process.header.channels.iter();
    let channels = channels.filter(|channel| channel.path == path);
    channels.fold(0, |sum, channel| sum.saturating_add(channel.arena_bytes))
}

/// Of each reason that occurred its code, how many connections are open with it, and how many there
/// have been.
pub(crate) fn reasons(process: &Process) -> impl Iterator<Item = (u32, u64, u64)> {
    let reasons = (0u32..).zip(process.open.reasons).zip(process.header.reasons);
    let reasons = reasons.map(|((code, open), total)| (code, open, total));
    reasons.filter(|(_, open, total)| *open != 0 || *total != 0)
}

pub(crate) fn reason_name(code: u32) -> String {
    match Reason::from_code(code) {
        Some(reason) => reason.name().to_owned(),
        None => format!("unknown-{code}"),
    }
}

pub(crate) fn path_name(code: u32) -> String {
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

pub(crate) fn address(address: Option<SocketAddr>) -> String {
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
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

/// The same in one line: a name may have line feeds.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).replace('\n', "?")
}

/// A word of a command that somebody may paste: to a shell it is nothing but that word.
pub(crate) fn shell_word(text: &str) -> String {
    let line = one_line(text);
    shlex::try_quote(&line).map_or_else(|_| String::from("?"), Into::into)
}
