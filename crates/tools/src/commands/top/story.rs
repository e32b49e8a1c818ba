//! One connection's trace, as it grows.

use super::super::trace::events;
use crate::segment::Process;
use crate::show::{address, one_line};
use crate::terminal;
use crate::trace::{self, Trace, Wanted};
use netacc_control::config::parse_rendered;
use netacc_control::stats::Connection;
use netacc_control::trace::{RingText, State, whole};
use std::net::SocketAddr;

/// A ring may begin that much before its connection, by clocks that differ.
const SLACK_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Story {
    pid: u32,
    /// Tells the process from another one that gets its number.
    started_unix_ns: u64,
    program: String,
    fd: u32,
    opened_unix_ns: u64,
    ends: [Option<SocketAddr>; 2],
    trace: Option<Trace>,
    ring: Option<RingText>,
    /// Which one of the trace's that is.
    place: usize,
    /// What was kept of it when it was in trouble.
    excerpts: Vec<RingText>,
    lines: Vec<String>,
    /// Why there are no lines.
    note: String,
    is_open: bool,
    /// Events below the last one that is shown; 0: the newest is at the bottom.
    up: usize,
}

impl Story {
    pub(super) fn new(process: &Process, connection: &Connection) -> Story {
        Story {
            pid: process.pid,
            started_unix_ns: process.header.started_unix_ns,
            program: one_line(&process.name),
            fd: connection.fd,
            opened_unix_ns: connection.opened_unix_ns,
            ends: [connection.local, connection.peer],
            trace: None,
            ring: None,
            place: 0,
            excerpts: Vec::new(),
            lines: Vec::new(),
            note: String::new(),
            is_open: true,
            up: 0,
        }
    }

    /// Reads what is new. `process`: as it was seen last, if it is still there.
    pub(super) fn look(&mut self, process: Option<&Process>) {
        let process = process.filter(|it| it.header.started_unix_ns == self.started_unix_ns);
        self.is_open = process.is_some_and(|process| {
            let identity = (self.fd, self.opened_unix_ns);
            process.connections.position(identity, 0).is_some()
        });
        let mut trace = match (self.trace.take(), process) {
            (None, Some(process)) => trace::of_process(process.pid),
            (trace, _) => trace,
        };
        if let Some(trace) = &mut trace {
            // (Of what cannot be read any more the last look is kept.)
            let _ = trace.look_again();
            if let Some(ring) = self.news(trace) {
                self.tell(trace, ring);
            }
        }
        self.note = self.reason(process, trace.as_ref());
        self.trace = trace;
    }

    /// The connection's ring, if it says something new. (No other one is read: ten thousand may be
    /// at work.)
    fn news(&mut self, trace: &Trace) -> Option<RingText> {
        if let Some(known) = &self.ring {
            let is_new = |ring: &RingText| ring.number == known.number && ring != known;
            return trace.ring(self.place).filter(is_new);
        }
        if !self.is_open {
            // (What has its descriptor and its addresses now is another one.)
            return None;
        }
        let mine = trace.open_rings().filter(|(_, ring)| self.is_mine(trace, ring));
        let (place, _) = mine.max_by_key(|(_, ring)| ring.number)?;
        self.place = place;
        trace.ring(place).filter(|ring| self.is_mine(trace, ring))
    }

    /// Whether a ring is the connection's: by its descriptor, and by its addresses or, where they
    /// are not known, by when it began.
    fn is_mine(&self, trace: &Trace, ring: &RingText) -> bool {
        let same = |(ours, its): (&Option<SocketAddr>, &Option<SocketAddr>)| {
            ours.zip(*its).map(|(ours, its)| ours == its)
        };
        let ends = [ring.local, ring.peer];
        let known: Vec<bool> = self.ends.iter().zip(&ends).filter_map(same).collect();
        let began = trace.head.unix_ns(ring.began_ns);
        ring.number != 0
            && ring.state == State::Open as u32
            && ring.fd == self.fd
            && match known.as_slice() {
                [] => began.saturating_add(SLACK_NS) >= self.opened_unix_ns,
                known => known.iter().all(|same| *same),
            }
    }

    fn tell(&mut self, trace: &Trace, ring: RingText) {
        // (Most have none, and the others get few: all rings are looked through for them.)
        if ring.excerpts as usize > self.excerpts.len() {
            self.excerpts = trace.excerpts(&ring);
        }
        let rings = std::iter::once(&ring).chain(&self.excerpts).cloned().collect();
        let all = whole(rings).into_iter().next();
        let lines = all.map_or_else(Vec::new, |all| events(trace, &all, &Wanted::default()));
        let was = std::mem::replace(&mut self.lines, lines);
        let before = self.ring.as_ref().map_or(0, |ring| ring.recorded);
        let more = usize::try_from(ring.recorded.saturating_sub(before)).unwrap_or(0);
        if self.up > 0 {
            let fixed = was.iter().zip(&self.lines).take_while(|(was, is)| was == is).count();
            self.up = scrolled(self.up, more, [was.len(), self.lines.len()], fixed);
        }
        self.ring = Some(ring);
    }

    /// Why there is nothing to show.
    fn reason(&self, process: Option<&Process>, trace: Option<&Trace>) -> String {
        let pid = self.pid;
        let Some(process) = process else {
            return format!(
                "The process has ended. What became of its connections, if it was killed: netacc \
                 trace show {pid}"
            );
        };
        let is_off = parse_rendered(&process.header.config)
            .any(|(name, value, _)| name == "NACC_TRACE" && value == "0");
        match trace {
            _ if is_off => format!(
                "The trace of this process is turned off. On again: netacc cfg set NACC_TRACE 1 -p \
                 {pid}"
            ),
            None => String::from(
                "No trace of this process may be read: it has one when a connection of its lives \
                 for more than a request, unless a rule has trace=0 for it, or its system calls are \
                 filtered.",
            ),
            Some(trace) => format!(
                "This connection has no events in the trace: it has not lived for more than a \
                 request yet, or there was no room for it (so many had none: {}).",
                trace.head.missed
            ),
        }
    }

    pub(super) fn title(&self) -> String {
        let is_closed = |ring: &RingText| ring.state != State::Open as u32;
        let state = match &self.trace {
            Some(trace) if !trace.is_live => trace::said(trace.state()),
            _ if !self.is_open || self.ring.as_ref().is_some_and(is_closed) => "closed",
            _ => "open",
        };
        let [local, peer] = self.ends.map(address);
        format!("{} {}, fd {}: {local} > {peer}, {state}", self.pid, self.program, self.fd)
    }

    /// Goes down by so many events.
    pub(super) fn scroll(&mut self, by: i64) {
        let up = i64::try_from(self.up).unwrap_or(0).saturating_sub(by);
        self.up = usize::try_from(up).unwrap_or(0).min(self.lines.len());
    }

    /// What fits into that room, the newest at the bottom.
    pub(super) fn rows(&mut self, width: usize, room: usize) -> Vec<String> {
        if self.lines.is_empty() {
            return folded(&self.note, width);
        }
        let all: Vec<Vec<String>> = self.lines.iter().map(|line| folded(line, width)).collect();
        let mut end = all.len() - self.up.min(all.len());
        let mut height = all.iter().take(end).map(Vec::len).sum::<usize>();
        while height < room && end < all.len() {
            height += all.get(end).map_or(0, Vec::len);
            end += 1;
        }
        self.up = all.len() - end;
        let rows = all.into_iter().take(end).flatten();
        rows.skip(height.saturating_sub(room)).collect()
    }
}

/// Who reads older events goes on to see them: how far up that is, of now so many lines, where so
/// many events are new. The first ones are `fixed`: they stay where they are. The others go up, and
/// the oldest of them out.
fn scrolled(up: usize, more: usize, [was, is]: [usize; 2], fixed: usize) -> usize {
    let end = was.saturating_sub(up);
    if end <= fixed {
        return is.saturating_sub(end);
    }
    // (Behind the line that says how many are not kept.)
    up.saturating_add(more).min(is.saturating_sub(fixed + 1))
}

/// A line in lines of at most so many columns.
fn folded(line: &str, width: usize) -> Vec<String> {
    terminal::fold(line.to_owned(), Some(width)).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of fd 3, with that many lines.
    fn story(lines: usize) -> Story {
        Story {
            pid: 1,
            started_unix_ns: 1,
            program: String::from("x"),
            fd: 3,
            opened_unix_ns: 1,
            ends: [None; 2],
            trace: None,
            ring: None,
            place: 0,
            excerpts: Vec::new(),
            lines: (0..lines).map(|line| line.to_string()).collect(),
            note: String::from("why there is nothing"),
            is_open: true,
            up: 0,
        }
    }

    #[test]
    fn the_newest_is_at_the_bottom_until_it_is_scrolled() {
        let mut story = story(10);
        assert_eq!(story.rows(20, 3), ["7", "8", "9"]);
        story.scroll(-1);
        assert_eq!(story.rows(20, 3), ["6", "7", "8"]);
        story.scroll(i64::MIN);
        assert_eq!(story.rows(20, 3), ["0", "1", "2"], "no further than the first page");
        story.scroll(1);
        assert_eq!(story.rows(20, 3), ["1", "2", "3"]);
        story.scroll(i64::MAX);
        assert_eq!(story.rows(20, 20).len(), 10);
        assert_eq!(story.rows(20, 3), ["7", "8", "9"]);
        assert!(story.rows(20, 0).is_empty());
        assert_eq!(self::story(0).rows(10, 3), ["why", "  there is", "  nothing"]);
    }

    #[test]
    fn who_reads_older_events_goes_on_to_see_them() {
        // Nothing is lost yet: each line stays where it is.
        assert_eq!(scrolled(5, 3, [20, 23], 23), 8);
        // 24 first ones, a line that says so, and the last 100.
        assert_eq!(scrolled(110, 7, [125, 125], 24), 110, "the first ones stay");
        assert_eq!(scrolled(30, 7, [125, 125], 24), 37, "the others go up");
        assert_eq!(scrolled(95, 50, [125, 125], 24), 100, "and out");
        assert_eq!(scrolled(20, 10, [120, 125], 24), 30, "the first ones that go out");
    }

    #[test]
    fn a_process_that_is_gone_has_no_open_connection() {
        let mut story = story(0);
        story.look(None);
        assert!(story.title().ends_with("fd 3: - > -, closed"), "{}", story.title());
        assert!(story.rows(200, 3)[0].contains("has ended"));
    }
}
