//! What `netacc top` knows: two looks at every process, and where in them the user is.

use super::story::Story;
use crate::hidden::{self, Hides};
use crate::latencies::{Latencies, Places, duration};
use crate::processes::{Found, Looks};
use crate::rates::Change;
use crate::segment::{self, Process};
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
    /// What `/proc` does not show.
    pub(super) hides: Option<Hides>,
    answers: Places,
    /// Of the process whose connections are shown, if it is this one: how long the answers of those
    /// that are seen take.
    measured: Option<(u32, Latencies)>,
    before: Option<Look>,
    now: Option<Look>,
    /// The process whose connections are shown.
    pub(super) pid: Option<u32>,
    /// When it was started, once that is known: another one may have its number later.
    started: Option<u64>,
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

/// A row of a table: which one it is. (There may be ten thousand, of which fifty are seen: what
/// stands in them [`App::cells`] says.)
pub(super) struct Row {
    /// Where it stands among the processes, or the connections of the one that is shown.
    index: usize,
    identity: Identity,
}

impl App {
    pub(super) fn new(pid: Option<u32>) -> App {
        App {
            looks: Looks::default(),
            hides: hidden::hides(),
            answers: Places::default(),
            measured: None,
            before: None,
            now: None,
            pid,
            started: None,
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
        if !self.is_paused {
            self.look_now();
        }
    }

    fn look_now(&mut self) {
        // (Of the others nobody sees the connections: that is megabytes not to be written.)
        let (mut found, not_permitted) = match self.pid {
            Some(pid) => self.looks.of(pid),
            None => self.looks.all(),
        };
        self.leave_out_another(&mut found);
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

    /// Not the process that has got the number of the one that is shown.
    fn leave_out_another(&mut self, found: &mut Vec<Found>) {
        let Some(pid) = self.pid else { return };
        let now = segment::started(pid);
        self.started = self.started.or(now);
        if self.started != now {
            found.retain(|found| found.pid != pid);
        }
    }

    /// Who comes from one process's connections and enters another's before the next look finds
    /// none: these were not read.
    fn look_where_none_was_read(&mut self) {
        let lacks = |it: &Process| it.connections.is_empty() && it.open.connections > 0;
        if self.shown().is_some_and(lacks) {
            self.look_now();
        }
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
        let old = self.before.take().into_iter().flat_map(|look| look.found);
        self.looks.give_back(old.filter_map(|found| found.process.ok()));
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
                (self.pid, self.started, self.at) = (None, None, None);
                self.row = self.row_outside;
            }
            Key::Enter if self.pid.is_none() => {
                if let Some(pid) = self.rows().get(self.row).map(|row| row.identity.0) {
                    self.row_outside = self.row;
                    (self.pid, self.started, self.at) = (Some(pid), None, None);
                    self.row = 0;
                    self.look_where_none_was_read();
                }
            }
            Key::Enter => {
                let row = self.rows().into_iter().nth(self.row);
                let of = |process: &Process, row: Row| {
                    Some(Story::new(process, &process.connections.get(row.index)?))
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
                let hides = self.hides.iter().map(|hides| format!(", others hidden ({hides})"));
                let hides = hides.collect::<String>();
                format!("netacc: {processes} processes{hidden}{hides}")
            }
        }
    }

    /// The process whose connections are shown.
    fn shown(&self) -> Option<&Process> {
        self.all().find(|process| Some(process.pid) == self.pid)
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let row = |(index, identity)| Row { index, identity };
        let mut rows: Vec<Row> = match self.pid {
            Some(_) => {
                let shown = self.shown().into_iter();
                shown.flat_map(|it| it.connections.keys()).enumerate().map(row).collect()
            }
            None => self.all().map(key).enumerate().map(row).collect(),
        };
        match self.order {
            Order::Number => {}
            // (Most sent and received first.)
            Order::Traffic => {
                let rates = self.rates();
                let of = |row: &Row| rates.get(row.index).map_or(0.0, |(tx, rx)| tx + rx);
                rows.sort_by(|a, b| of(b).total_cmp(&of(a)));
            }
            Order::Name => rows.sort_by_cached_key(|row| self.name(row)),
        }
        rows
    }

    /// What a row is ordered by where rows are by name.
    fn name(&self, row: &Row) -> String {
        match self.pid {
            None => self.all().nth(row.index).map(|process| one_line(&process.name)),
            Some(_) => self
                .shown()
                .and_then(|process| process.connections.get(row.index))
                .map(|connection| address(connection.peer)),
        }
        .unwrap_or_default()
    }

    /// Bytes that processes, or the connections of one, send and receive in a second, as they stand
    /// there.
    fn rates(&self) -> Vec<(f64, f64)> {
        match self.pid {
            None => self.all().map(|process| self.process_rate(process)).collect(),
            Some(_) => {
                let Some(process) = self.shown() else { return Vec::new() };
                let change = self.change(process);
                let all = 0..process.connections.len();
                all.map(|index| connection_rate(change.as_ref(), index)).collect()
            }
        }
    }

    fn process_rate(&self, process: &Process) -> (f64, f64) {
        self.change(process).map_or((0.0, 0.0), |change| change.bytes_per_second())
    }

    /// What stands in these rows, column by column.
    pub(super) fn cells(&self, rows: &[Row]) -> Vec<Vec<String>> {
        let text = |(sent, received): (f64, f64)| [size(sent as u64), size(received as u64)];
        if self.pid.is_none() {
            let all: Vec<&Process> = self.all().collect();
            let of = |row: &Row| all.get(row.index).copied();
            let cells = |process| process_cells(process, text(self.process_rate(process)));
            return rows.iter().map(|row| of(row).map(cells).unwrap_or_default()).collect();
        }
        let Some(process) = self.shown() else { return Vec::new() };
        let change = self.change(process);
        let cells = |row: &Row| {
            let connection = process.connections.get(row.index)?;
            let rates = text(connection_rate(change.as_ref(), row.index));
            Some(connection_cells(&connection, rates, self.answer_p99(&connection)))
        };
        rows.iter().map(|row| cells(row).unwrap_or_default()).collect()
    }

    fn answer_p99(&self, connection: &Connection) -> Option<u64> {
        let (_, measured) = self.measured.as_ref().filter(|(pid, _)| Some(*pid) == self.pid)?;
        measured.quantile(connection, (Latency::Answer, 990))
    }
}

/// Bytes that a connection sends and receives in a second.
fn connection_rate(change: Option<&Change<'_>>, index: usize) -> (f64, f64) {
    let Some(change) = change else { return (0.0, 0.0) };
    let ((sent, received), seconds) = (change.bytes_of(index), change.time.as_secs_f64().max(1e-3));
    (sent as f64 / seconds, received as f64 / seconds)
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
    let is_old = process.is_library_replaced() || process.is_library_older();
    let mark = if is_old { "*" } else { "" };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SegmentError;

    #[test]
    fn another_process_that_has_its_number_is_not_shown() {
        let own = std::process::id();
        let mut app = App::new(Some(own));
        let mut is_shown = |started: Option<u64>| {
            app.started = started.or(app.started);
            let mut found = vec![Found { pid: own, process: Err(SegmentError::NoSegment) }];
            app.leave_out_another(&mut found);
            !found.is_empty()
        };
        assert!(is_shown(None) && is_shown(None));
        assert!(!is_shown(Some(1)), "another time");
    }
}
