//! What `netacc top` knows: two looks at every process, and where in them the user is.

use super::story::Story;
use crate::latencies::{Latencies, Places, duration};
use crate::processes::{Found, Looks};
use crate::rates::Change;
use crate::segment::Process;
use crate::show::{
    accelerated_total, address, age, connections_total, one_line, reason_name, share, size,
    uncounted, version, way,
};
use netacc_control::stats::{Connection, Path};
use netacc_control::trace::Latency;
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

pub(super) const PROCESSES: [Column; 13] = [
    column(">Pid", 7, 0),
    column("Program", 15, 0),
    column(">Uid", 6, 8),
    column("Library", 8, 9),
    column(">Uptime", 7, 7),
    column(">Tcp", 5, 2),
    column(">Shm", 5, 0),
    column(">Rdma", 5, 3),
    column(">Utcp", 5, 4),
    column(">Share", 7, 1),
    column(">Sent/s", 11, 5),
    column(">Received/s", 11, 6),
    column("Container", 13, 10),
];

pub(super) const CONNECTIONS: [Column; 9] = [
    column(">Fd", 6, 1),
    column("Local", 21, 6),
    column("Peer", 21, 0),
    column("Path", 8, 0),
    // (A longer one has what is left.)
    column("Reason", 20, 2),
    column(">Sent/s", 10, 3),
    column(">Received/s", 10, 4),
    // (Of each answer 99 of 100 took no longer: where that is measured.)
    column(">Answer-p99", 10, 5),
    column(">Age", 7, 7),
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
    answers: Places,
    /// Of the process whose connections are shown, if it is this one: how long the answers of those
    /// that are seen take.
    measured: Option<(u32, Latencies)>,
    before: Option<Look>,
    now: Option<Look>,
    /// The process whose connections are shown.
    pub(super) pid: Option<u32>,
    /// The one of them whose trace is shown.
    pub(super) story: Option<Story>,
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

/// A row of a table: which one it is, and what rows are ordered by. (There may be ten thousand, of
/// which fifty are seen: [`App::cells`].)
pub(super) struct Row {
    /// Where it stands among the processes, or the connections of the one that is shown.
    index: usize,
    identity: Identity,
    sent: f64,
    received: f64,
    /// Where rows are ordered by it.
    name: String,
}

impl Row {
    fn traffic(&self) -> f64 {
        self.sent + self.received
    }
}

impl App {
    pub(super) fn new(pid: Option<u32>) -> App {
        App {
            looks: Looks::default(),
            answers: Places::default(),
            measured: None,
            before: None,
            now: None,
            pid,
            story: None,
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
        let mut answers = std::mem::take(&mut self.answers);
        if let Some(process) = self.shown() {
            answers.look(key(process));
        }
        self.answers = answers;
        self.look_closer();
    }

    /// Reads how long the answers of the connections in these rows take.
    pub(super) fn measure_rows(&mut self, rows: &[Row]) {
        let mut answers = std::mem::take(&mut self.answers);
        if let Some(process) = self.shown() {
            let all = rows.iter().filter_map(|row| process.connections.get(row.index));
            if let Some(measured) = answers.of(key(process), all) {
                self.measured = Some((process.pid, measured));
            }
        }
        self.answers = answers;
    }

    #[cfg(test)]
    pub(super) fn measure(&mut self, measured: Option<(u32, Latencies)>) {
        self.measured = measured;
    }

    /// Reads the trace that is shown.
    pub(super) fn look_closer(&mut self) {
        if let Some(mut story) = self.story.take() {
            story.look(self.shown());
            self.story = Some(story);
        }
    }

    pub(super) fn learn(&mut self, found: Vec<Found>, not_permitted: usize, at: Instant) {
        self.before = self.now.replace(Look { at, found, not_permitted });
    }

    /// Does it; true where the user wants to leave.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match (key, &mut self.story) {
            (Key::Back, Some(_)) => self.story = None,
            (Key::Move(by), Some(story)) => story.scroll(by),
            (Key::Enter | Key::Sort, Some(_)) => {}
            _ => return self.press_in_table(key),
        }
        false
    }

    fn press_in_table(&mut self, key: Key) -> bool {
        match key {
            Key::Quit => return true,
            Key::Back if self.pid.is_none() => return true,
            Key::Back => {
                (self.pid, self.at) = (None, None);
                self.row = self.row_outside;
            }
            Key::Enter if self.pid.is_none() => {
                if let Some(pid) = self.rows().get(self.row).map(|row| row.identity.0) {
                    self.row_outside = self.row;
                    (self.pid, self.at) = (Some(pid), None);
                    self.row = 0;
                }
            }
            Key::Enter => {
                let row = self.rows().into_iter().nth(self.row);
                let of = |process: &Process, row: Row| {
                    Some(Story::new(process, process.connections.get(row.index)?))
                };
                self.story = self.shown().zip(row).and_then(|(process, row)| of(process, row));
                self.look_closer();
            }
            Key::Move(by) => {
                let to = i64::try_from(self.row).unwrap_or(0).saturating_add(by);
                self.row = usize::try_from(to).unwrap_or(0);
                self.at = None;
            }
            Key::Sort => self.order = self.order.next(),
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Other => {}
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
        if let Some(story) = &self.story {
            return story.title();
        }
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
                    hidden => format!(", {hidden} that may not be looked at"),
                };
                format!("netacc: {processes} processes{hidden}")
            }
        }
    }

    /// The process whose connections are shown.
    fn shown(&self) -> Option<&Process> {
        self.all().find(|process| Some(process.pid) == self.pid)
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = match self.pid {
            Some(_) => self.connections(),
            None => self.all().enumerate().map(|of| self.process(of)).collect(),
        };
        match self.order {
            Order::Number => {}
            Order::Traffic => rows.sort_by(|a, b| b.traffic().total_cmp(&a.traffic())),
            Order::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        rows
    }

    fn process(&self, (index, process): (usize, &Process)) -> Row {
        let change = self.change(process);
        let (sent, received) = change.map_or((0.0, 0.0), |change| change.bytes_per_second());
        Row { index, identity: key(process), sent, received, name: one_line(&process.name) }
    }

    fn connections(&self) -> Vec<Row> {
        let Some(process) = self.shown() else { return Vec::new() };
        let change = self.change(process);
        let bytes = change.as_ref().map(Change::bytes_of_connections).unwrap_or_default();
        let seconds = change.map_or(1.0, |change| change.time.as_secs_f64().max(1e-3));
        let row = |(index, connection): (usize, &Connection)| {
            let (sent, received) = bytes.get(index).copied().unwrap_or_default();
            Row {
                index,
                identity: (connection.fd, connection.opened_unix_ns),
                sent: sent as f64 / seconds,
                received: received as f64 / seconds,
                name: match self.order {
                    Order::Name => address(connection.peer),
                    _ => String::new(),
                },
            }
        };
        process.connections.iter().enumerate().map(row).collect()
    }

    /// What stands in a row, column by column.
    pub(super) fn cells(&self, row: &Row) -> Vec<String> {
        let rates = [size(row.sent as u64), size(row.received as u64)];
        let cells = match self.pid {
            None => self.all().nth(row.index).map(|process| process_cells(process, rates)),
            Some(_) => {
                let all = self.shown().map_or(&[][..], |process| &process.connections);
                all.get(row.index).map(|it| connection_cells(it, rates, self.answer_p99(it)))
            }
        };
        cells.unwrap_or_default()
    }

    fn answer_p99(&self, connection: &Connection) -> Option<u64> {
        let (_, measured) = self.measured.as_ref().filter(|(pid, _)| Some(*pid) == self.pid)?;
        measured.quantile(connection, (Latency::Answer, 990))
    }
}

/// Which process it is, whoever had its number before.
fn key(process: &Process) -> (u32, u64) {
    (process.pid, process.header.started_unix_ns)
}

fn process_cells(process: &Process, [sent, received]: [String; 2]) -> Vec<String> {
    let open = |path: Path| {
        let open = process.header.open_by_path.get(path as usize);
        open.copied().unwrap_or(0).to_string()
    };
    let mark = if process.is_library_replaced() { "*" } else { "" };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| String::from("-"));
    vec![
        process.pid.to_string(),
        one_line(&process.name),
        process.uid.to_string(),
        format!("{}{mark}", or_dash(process.header.library.map(version))),
        or_dash(process.uptime.map(age)),
        open(Path::Tcp),
        open(Path::Shm),
        open(Path::Rdma),
        open(Path::Utcp),
        or_dash(share(process)),
        sent,
        received,
        or_dash(process.container.clone()),
    ]
}

fn connection_cells(
    connection: &Connection,
    [sent, received]: [String; 2],
    answer_p99: Option<u64>,
) -> Vec<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let opened = Duration::from_nanos(connection.opened_unix_ns);
    vec![
        connection.fd.to_string(),
        address(connection.local),
        address(connection.peer),
        way(connection),
        reason_name(connection.reason),
        connection.sent().map_or_else(uncounted, |_| sent),
        connection.received().map_or_else(uncounted, |_| received),
        answer_p99.map_or_else(|| String::from("-"), duration),
        if opened.is_zero() { String::from("-") } else { age(now.saturating_sub(opened)) },
    ]
}
