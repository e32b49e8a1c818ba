//! What `netacc top` knows: two looks at every process, and where in them the user is.

use crate::processes::{Found, Looks};
use crate::rates::Change;
use crate::segment::Process;
use crate::selection::sum;
use crate::show::{
    accelerated_total, address, age, connections_total, one_line, reason_name, share, size,
    version, way,
};
use netacc_control::stats::{Connection, Path};
use std::time::{Duration, Instant, SystemTime};

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Back,
    Enter,
    Move(i64),
    Sort,
    Pause,
    Other,
}

/// A column: its heading (to the right: `>`), its least width, and how soon it is left out where
/// the terminal is narrow; 0 never.
pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) width: u16,
    pub(super) rank: u8,
}

const fn column(heading: &'static str, width: u16, rank: u8) -> Column {
    Column { heading, width, rank }
}

pub(super) const PROCESSES: [Column; 12] = [
    column(">Pid", 7, 0),
    column("Program", 15, 0),
    column(">Uid", 6, 7),
    column("Library", 8, 8),
    column(">Uptime", 7, 6),
    column(">Tcp", 6, 2),
    column(">Shm", 6, 0),
    column(">Rdma", 6, 3),
    column(">Share", 7, 1),
    column(">Sent/s", 11, 4),
    column(">Received/s", 11, 5),
    column("Container", 13, 9),
];

pub(super) const CONNECTIONS: [Column; 8] = [
    column(">Fd", 6, 1),
    column("Local", 21, 5),
    column("Peer", 21, 0),
    column("Path", 9, 0),
    column("Reason", 24, 2),
    column(">Sent/s", 11, 3),
    column(">Received/s", 11, 4),
    column(">Age", 7, 6),
];

/// What rows are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Number,
    Traffic,
    Name,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Order::Number => "number",
            Order::Traffic => "traffic",
            Order::Name => "name",
        }
    }

    fn next(self) -> Order {
        match self {
            Order::Number => Order::Traffic,
            Order::Traffic => Order::Name,
            Order::Name => Order::Number,
        }
    }
}

#[derive(Debug)]
struct Look {
    at: Instant,
    found: Vec<Found>,
    not_permitted: usize,
}

/// All that is known.
#[derive(Debug)]
pub(super) struct App {
    looks: Looks,
    before: Option<Look>,
    now: Option<Look>,
    /// The process whose connections are shown.
    pub(super) pid: Option<u32>,
    /// The row that the user is at.
    pub(super) row: usize,
    /// What stood there: the user stays at it where rows come, go and change their order.
    at: Option<Identity>,
    /// Of the process that was entered.
    row_outside: usize,
    pub(super) order: Order,
    pub(super) is_paused: bool,
}

/// Of a process its number, of a connection its descriptor, and since when.
type Identity = (u32, u64);

/// A row of a table, and what rows are ordered by.
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    identity: Identity,
    pid: u32,
    traffic: f64,
    name: String,
}

impl App {
    pub(super) fn new(pid: Option<u32>) -> App {
        App {
            looks: Looks::default(),
            before: None,
            now: None,
            pid,
            row: 0,
            at: None,
            row_outside: 0,
            order: Order::Number,
            is_paused: false,
        }
    }

    /// Looks at all processes.
    pub(super) fn look(&mut self) {
        if self.is_paused {
            return;
        }
        let (mut found, not_permitted) = self.looks.all();
        if let Some(shown) = found.iter_mut().find(|found| Some(found.pid) == self.pid)
            && let Ok(process) = &mut shown.process
        {
            process.complete();
        }
        self.learn(found, not_permitted, Instant::now());
    }

    pub(super) fn learn(&mut self, found: Vec<Found>, not_permitted: usize, at: Instant) {
        self.before = self.now.replace(Look { at, found, not_permitted });
    }

    /// Does it; true where the user wants to leave.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Quit => return true,
            Key::Back if self.pid.is_none() => return true,
            Key::Back => {
                (self.pid, self.at) = (None, None);
                self.row = self.row_outside;
            }
            Key::Enter if self.pid.is_none() => {
                if let Some(pid) = self.processes().get(self.row).map(|row| row.pid) {
                    self.row_outside = self.row;
                    (self.pid, self.at) = (Some(pid), None);
                    self.row = 0;
                }
            }
            Key::Move(by) => {
                let to = i64::try_from(self.row).unwrap_or(0).saturating_add(by);
                self.row = usize::try_from(to).unwrap_or(0);
                self.at = None;
            }
            Key::Sort => self.order = self.order.next(),
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Enter | Key::Other => {}
        }
        false
    }

    /// Finds the row that the user is at.
    pub(super) fn settle(&mut self, rows: &[Row]) {
        let of = |at: Identity| rows.iter().position(|row| row.identity == at);
        let row = self.at.and_then(of).unwrap_or(self.row);
        self.row = row.min(rows.len().saturating_sub(1));
        self.at = rows.get(self.row).map(|row| row.identity);
    }

    fn all(&self) -> impl Iterator<Item = &Process> {
        let found = self.now.iter().flat_map(|look| &look.found);
        found.filter_map(|found| found.process.as_ref().ok())
    }

    fn change<'a>(&'a self, after: &'a Process) -> Option<Change<'a>> {
        let (before, now) = (self.before.as_ref()?, self.now.as_ref()?);
        let found = before.found.iter().filter_map(|found| found.process.as_ref().ok());
        let before_it = found.into_iter().find(|process| process.pid == after.pid)?;
        let change =
            Change { before: before_it, after, time: now.at.saturating_duration_since(before.at) };
        change.is_of_one().then_some(change)
    }

    /// What stands above the table.
    pub(super) fn title(&self) -> String {
        match self.pid {
            Some(pid) => match self.all().find(|process| process.pid == pid) {
                Some(process) => format!(
                    "{pid} {}: {} open connections, {} of {} accelerated",
                    one_line(&process.name),
                    process.connections.len(),
                    accelerated_total(process),
                    connections_total(process)
                ),
                None => format!("{pid}: no process that may be read has the library"),
            },
            None => {
                let processes = self.all().count();
                let hidden = self.now.as_ref().map_or(0, |look| look.not_permitted);
                let hidden = match hidden {
                    0 => String::new(),
                    hidden => format!(", {hidden} of other users not shown"),
                };
                format!("netacc: {processes} processes{hidden}")
            }
        }
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = match self.pid {
            Some(pid) => self.connections(pid),
            None => self.processes(),
        };
        self.sort(&mut rows);
        rows
    }

    fn sort(&self, rows: &mut [Row]) {
        match self.order {
            Order::Number => {}
            Order::Traffic => rows.sort_by(|a, b| b.traffic.total_cmp(&a.traffic)),
            Order::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        }
    }

    fn processes(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.all().map(|process| self.process(process)).collect();
        self.sort(&mut rows);
        rows
    }

    fn process(&self, process: &Process) -> Row {
        let open = |path: Path| {
            let open = process.header.open_by_path.get(path as usize);
            open.copied().unwrap_or(0).to_string()
        };
        let (sent, received) =
            self.change(process).map_or((0.0, 0.0), |change| change.bytes_per_second());
        let mark = if process.is_library_replaced { "*" } else { "" };
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| String::from("-"));
        let name = one_line(&process.name);
        let cells = vec![
            process.pid.to_string(),
            name.clone(),
            process.uid.to_string(),
            format!("{}{mark}", or_dash(process.header.library.map(version))),
            or_dash(process.uptime.map(age)),
            open(Path::Tcp),
            open(Path::Shm),
            open(Path::Rdma),
            or_dash(share(process)),
            size(sent as u64),
            size(received as u64),
            or_dash(process.container.clone()),
        ];
        let identity = (process.pid, process.header.started_unix_ns);
        Row { cells, identity, pid: process.pid, traffic: sent + received, name }
    }

    fn connections(&self, pid: u32) -> Vec<Row> {
        let Some(process) = self.all().find(|process| process.pid == pid) else {
            return Vec::new();
        };
        let change = self.change(process);
        let changed = change.as_ref().map(Change::connections);
        let seconds = change.map_or(1.0, |change| change.time.as_secs_f64().max(1e-3));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let row = |(index, connection): (usize, &Connection)| {
            let bytes = changed.as_ref().and_then(|changed| changed.get(index));
            let rate = |of: fn(&Connection) -> &[u64]| {
                bytes.map_or(0.0, |connection| sum(of(connection)) as f64 / seconds)
            };
            let (sent, received) = (rate(|c| &c.tx_bytes), rate(|c| &c.rx_bytes));
            let opened = Duration::from_nanos(connection.opened_unix_ns);
            let peer = address(connection.peer);
            let cells = vec![
                connection.fd.to_string(),
                address(connection.local),
                peer.clone(),
                way(connection),
                reason_name(connection.reason),
                size(sent as u64),
                size(received as u64),
                if opened.is_zero() { String::from("-") } else { age(now.saturating_sub(opened)) },
            ];
            let identity = (connection.fd, connection.opened_unix_ns);
            Row { cells, identity, pid, traffic: sent + received, name: peer }
        };
        process.connections.iter().enumerate().map(row).collect()
    }
}
