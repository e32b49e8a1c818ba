//! What has changed between two looks at a process, and how fast.

use crate::latencies::Latencies;
use crate::segment::Process;
use crate::selection::{Selection, sum};
use crate::show::{
    Section, View, accelerated_total, address, bytes_by_path, bytes_headings, connections_total,
    counted, one_line, path_name, reason_name, share, size, title, totals, uncounted, way,
};
use crate::table::Table;
use crate::terminal;
use netacc_control::stats::{Connection, Counter, PATH_SLOTS, Path};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Two looks at one process.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The first one.
    pub before: &'a Process,
    /// The second one.
    pub after: &'a Process,
    /// The time between them.
    pub time: Duration,
}

impl Change<'_> {
    /// Whether it is one process, and not another one that got its number.
    pub fn is_of_one(&self) -> bool {
        self.before.header.started_unix_ns == self.after.header.started_unix_ns
    }

    fn rate(&self, amount: u64) -> f64 {
        amount as f64 / self.time.as_secs_f64().max(1e-3)
    }

    fn bytes_per_s(&self, amount: u64) -> String {
        format!("{}/s", size(self.rate(amount) as u64))
    }

    fn per_s(&self, amount: u64) -> String {
        format!("{:.1}", self.rate(amount))
    }

    fn new_connections(&self) -> u64 {
        connections_total(self.after).saturating_sub(connections_total(self.before))
    }

    /// Bytes sent and received meanwhile, by path.
    fn bytes(&self) -> [(u64, u64); Path::ALL.len()] {
        let (before, after) = (bytes_by_path(self.before), bytes_by_path(self.after));
        std::array::from_fn(|path| {
            let ((tx, rx), (tx_before, rx_before)) = (after[path], before[path]);
            (tx.saturating_sub(tx_before), rx.saturating_sub(rx_before))
        })
    }

    /// Bytes sent and received in a second, on all paths.
    pub(crate) fn bytes_per_second(&self) -> (f64, f64) {
        let bytes = self.bytes();
        let all = |of: fn(&(u64, u64)) -> u64| {
            self.rate(bytes.iter().map(of).fold(0, u64::saturating_add))
        };
        (all(|(tx, _)| *tx), all(|(_, rx)| *rx))
    }

    /// Connections that are new on each path.
    fn new_by_path(&self) -> [u64; Path::ALL.len()] {
        let of = |process: &Process, path: usize| {
            process.header.total_by_path.get(path).copied().unwrap_or(0)
        };
        // (A connection that was promoted left the count of the path where it began.)
        std::array::from_fn(|path| of(self.after, path).saturating_sub(of(self.before, path)))
    }

    /// Bytes that an open connection has sent and received meanwhile.
    pub(crate) fn bytes_of(&self, index: usize) -> (u64, u64) {
        let (all, before) = (&self.after.connections, &self.before.connections);
        let Some(is) = all.moved(index) else { return (0, 0) };
        let was = all.key(index).and_then(|key| before.position(key, index));
        let [tx_was, rx_was] = was.and_then(|at| before.moved(at)).unwrap_or_default();
        let since = |is: [u64; PATH_SLOTS], was: [u64; PATH_SLOTS]| {
            let changes = is.iter().zip(was).map(|(is, was)| is.saturating_sub(was));
            changes.fold(0, u64::saturating_add)
        };
        let [tx_is, rx_is] = is;
        (since(tx_is, tx_was), since(rx_is, rx_was))
    }

    /// The open connections, with the bytes of this time alone.
    fn connections(&self) -> Vec<Connection> {
        let before = &self.before.connections;
        let mut all = self.after.connections.all();
        for (index, is) in all.iter_mut().enumerate() {
            let was = before.position((is.fd, is.opened_unix_ns), index);
            let Some(was) = was.and_then(|at| before.get(at)) else { continue };
            let words = is.tx_bytes.iter_mut().zip(&was.tx_bytes);
            let words = words.chain(is.rx_bytes.iter_mut().zip(&was.rx_bytes));
            words.for_each(|(is, was)| *is = is.saturating_sub(*was));
            is.tx_messages = is.tx_messages.saturating_sub(was.tx_messages);
            is.rx_messages = is.rx_messages.saturating_sub(was.rx_messages);
        }
        all
    }

    /// The codes of reasons whose counts are others now, and by how much.
    fn reasons(&self) -> impl Iterator<Item = (u32, u64, i64)> {
        let counts = self.after.header.reasons.iter().zip(&self.before.header.reasons);
        (0u32..).zip(counts).filter(|(_, (is, was))| is != was).map(|(code, (is, was))| {
            let change = i64::try_from(i128::from(*is) - i128::from(*was)).unwrap_or(i64::MAX);
            (code, *is, change)
        })
    }

    fn counters(&self) -> impl Iterator<Item = (&'static Counter, u64)> {
        let counts = totals(self.after).into_iter().zip(totals(self.before));
        let changes = counts.map(|(is, was)| is.saturating_sub(was));
        Counter::ALL.iter().zip(changes).filter(|(_, change)| *change != 0)
    }
}

/// The change as tables; sections that have no rates are shown as they are.
pub fn text(change: &Change<'_>, view: &View<'_>) -> String {
    let part = |section: &Section| match section {
        Section::Counts => counts_text(change, view),
        Section::Sockets => sockets_text(change, view),
        other => crate::show::section_text(change.after, *other, view),
    };
    let all = view.sections.iter().map(part).collect::<Vec<_>>().join("\n");
    terminal::fold(all, view.fits())
}

fn counts_text(change: &Change<'_>, view: &View<'_>) -> String {
    let seconds = change.time.as_secs_f64();
    let accelerated =
        accelerated_total(change.after).saturating_sub(accelerated_total(change.before));
    let mut out = format!(
        "{}: in {seconds:.1} s {}, {accelerated} accelerated\n\n",
        title(change.after),
        counted(change.new_connections(), "new connection"),
    );
    let mut paths = Table::new(&["Path", ">Open", ">New/s", ">Sent", ">Received"]);
    let bytes = change.bytes();
    for (index, path) in Path::ALL.into_iter().enumerate() {
        let open = change.after.header.open_by_path.get(index).copied().unwrap_or(0);
        let (tx, rx) = bytes[index];
        paths.row([
            path.name().to_owned(),
            open.to_string(),
            change.per_s(change.new_by_path()[index]),
            change.bytes_per_s(tx),
            change.bytes_per_s(rx),
        ]);
    }
    out += &paths.render(view.fits());
    let mut table = Table::new(&["Reason", ">Connections", ">Change"]);
    for (code, count, difference) in change.reasons() {
        table.row([reason_name(code), count.to_string(), format!("{difference:+}")]);
    }
    out += &table.render_behind(view.fits());
    let mut table = Table::new(&["Counter", ">Change", ">Per-Second"]);
    for (counter, difference) in change.counters() {
        let per_s = change.per_s(difference);
        table.row([counter.name().to_owned(), format!("+{difference}"), per_s]);
    }
    out + &table.render_behind(view.fits())
}

fn sockets_text(change: &Change<'_>, view: &View<'_>) -> String {
    let mut table = Table::new(&[">Fd", "Local", "Peer", "Path", "Reason", ">Sent", ">Received"]);
    let connections = change.connections();
    let order = view.selection.order;
    let measured = Latencies::wanted(change.after.pid, order);
    let shown = view.selection.of(&connections, measured.by(order));
    for connection in &shown {
        table.row([
            connection.fd.to_string(),
            address(connection.local),
            address(connection.peer),
            way(connection),
            reason_name(connection.reason),
            connection.sent().map_or_else(uncounted, |bytes| change.bytes_per_s(bytes)),
            connection.received().map_or_else(uncounted, |bytes| change.bytes_per_s(bytes)),
        ]);
    }
    let (time, count, all) = (change.time.as_secs_f64(), shown.len(), connections.len());
    let head = format!("in {time:.1} s, {count} of {all} open connections");
    format!("{}: {head}\n\n{}", title(change.after), table.render(view.fits()))
}

/// The change as one object.
pub fn json(change: &Change<'_>, view: &View<'_>) -> Value {
    let part = |section: &Section| match section {
        Section::Counts => counts_json(change),
        Section::Sockets => sockets_json(change, view.selection),
        other => crate::show::section_json(change.after, *other, view),
    };
    let parts = view.sections.iter().map(|section| (section.word().to_owned(), part(section)));
    let mut all = Map::new();
    all.insert(String::from("pid"), json!(change.after.pid));
    all.insert(String::from("program"), json!(change.after.name));
    all.insert(String::from("seconds"), json!(change.time.as_secs_f64()));
    all.extend(parts);
    Value::Object(all)
}

fn counts_json(change: &Change<'_>) -> Value {
    let by_path = |of: &dyn Fn(usize) -> Value| -> Map<String, Value> {
        let paths = Path::ALL.iter().enumerate();
        paths.map(|(index, path)| (path.name().to_owned(), of(index))).collect()
    };
    let (bytes, new) = (change.bytes(), change.new_by_path());
    let reasons: Map<String, Value> = change
        .reasons()
        .map(|(code, _, difference)| (reason_name(code), json!(difference)))
        .collect();
    let counters: Map<String, Value> = change
        .counters()
        .map(|(counter, difference)| (counter.name().to_owned(), json!(difference)))
        .collect();
    json!({
        "new_connections": change.new_connections(),
        "new": by_path(&|path| json!(new[path])),
        "tx_bytes": by_path(&|path| json!(bytes[path].0)),
        "rx_bytes": by_path(&|path| json!(bytes[path].1)),
        "tx_bytes_per_s": by_path(&|path| json!(change.rate(bytes[path].0))),
        "rx_bytes_per_s": by_path(&|path| json!(change.rate(bytes[path].1))),
        "reasons": reasons,
        "counters": counters,
    })
}

fn sockets_json(change: &Change<'_>, selection: &Selection) -> Value {
    let connections = change.connections();
    let socket = |connection: &&Connection| {
        let messages = |count| connection.counted(count).map(|count| change.rate(count));
        json!({
            "fd": connection.fd,
            "local": address(connection.local),
            "peer": address(connection.peer),
            "tx_path": path_name(connection.tx_path),
            "rx_path": path_name(connection.rx_path),
            "reason": reason_name(connection.reason),
            "tx_bytes": connection.sent(),
            "rx_bytes": connection.received(),
            "tx_bytes_per_s": connection.sent().map(|bytes| change.rate(bytes)),
            "rx_bytes_per_s": connection.received().map(|bytes| change.rate(bytes)),
            "tx_messages_per_s": messages(connection.tx_messages),
            "rx_messages_per_s": messages(connection.rx_messages),
        })
    };
    let measured = Latencies::wanted(change.after.pid, selection.order);
    let shown = selection.of(&connections, measured.by(selection.order));
    Value::Array(shown.iter().map(socket).collect())
}

/// Several processes, a line each. Wide: by path, too.
pub fn processes_text(changes: &[Change<'_>], view: &View<'_>) -> String {
    let narrow = [">Pid", "Program", ">Open", ">New/s", ">Sent", ">Received", ">Share"];
    let mut headings: Vec<String> = narrow.map(str::to_owned).into();
    if view.is_wide {
        headings.extend(bytes_headings("/s"));
    }
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    for change in changes {
        let bytes = change.bytes();
        let (tx, rx) = bytes.iter().fold((0u64, 0u64), |(tx, rx), more| {
            (tx.saturating_add(more.0), rx.saturating_add(more.1))
        });
        let mut row = vec![
            change.after.pid.to_string(),
            one_line(&change.after.name),
            sum(&change.after.header.open_by_path).to_string(),
            change.per_s(change.new_connections()),
            change.bytes_per_s(tx),
            change.bytes_per_s(rx),
            share(change.after).unwrap_or_else(|| String::from("-")),
        ];
        if view.is_wide {
            row.extend(bytes.iter().map(|(tx, _)| change.bytes_per_s(*tx)));
            row.extend(bytes.iter().map(|(_, rx)| change.bytes_per_s(*rx)));
        }
        table.row(row);
    }
    table.render(view.fits())
}
