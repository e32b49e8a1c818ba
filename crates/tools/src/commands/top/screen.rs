//! How it fits into a terminal: columns are left out, the last ones in rank first, until the rest
//! has room.

use super::app::{App, CONNECTIONS, Column, PROCESSES};
use crate::table::columns_of;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

/// Which columns have room, in their order.
fn fitting(columns: &[Column], width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| -> u16 {
        shown.iter().filter_map(|at| columns.get(*at)).map(|column| column.width + 1).sum()
    };
    while needed(&shown) > width.saturating_add(1) {
        let rank = |at: &usize| columns.get(*at).map_or(0, |column| column.rank);
        let Some(last) = shown.iter().copied().max_by_key(rank).filter(|at| rank(at) > 0) else {
            break;
        };
        shown.retain(|at| *at != last);
    }
    shown
}

/// One picture.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(app.title()).style(bold), top);
    frame.render_widget(Paragraph::new(help(app, bottom.width)), bottom);
    if let Some(story) = &mut app.story {
        let rows = story.rows(usize::from(middle.width), usize::from(middle.height));
        let lines: Vec<Line<'_>> = rows.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(lines), middle);
        return;
    }

    let columns: &[Column] = if app.pid.is_some() { &CONNECTIONS } else { &PROCESSES };
    let shown = fitting(columns, middle.width);
    let rows = app.rows();
    app.settle(&rows);
    let shown_columns = widths(shown.iter().filter_map(|at| columns.get(*at)), middle.width);
    // Those that have room below the head, to that of the user's.
    let room = usize::from(middle.height.saturating_sub(1));
    let first = app.row.saturating_sub(room.saturating_sub(1));
    let seen = rows.get(first..rows.len().min(first.saturating_add(room))).unwrap_or_default();
    app.measure_rows(seen);
    let mut lines = middle.rows();
    let mut put = |texts: &mut dyn Iterator<Item = &str>, style| {
        if let Some(line) = lines.next() {
            draw_line(frame.buffer_mut(), line, &shown_columns, texts, style);
        }
    };
    put(&mut shown_columns.iter().map(|(c, _)| c.heading.trim_start_matches('>')), reversed);
    for (row, cells) in (first..).zip(app.cells(seen)) {
        let style = if row == app.row { reversed } else { Style::new() };
        let cell = |at: &usize| cells.get(*at).map_or("", String::as_str);
        put(&mut shown.iter().map(cell), style);
    }
}

/// The columns with their widths: what of the terminal's is left goes to the texts.
fn widths<'a>(columns: impl Iterator<Item = &'a Column>, width: u16) -> Vec<(&'a Column, u16)> {
    let mut columns: Vec<_> = columns.map(|column| (column, column.width)).collect();
    let taken = columns.iter().fold(0u16, |sum, (_, width)| sum.saturating_add(width + 1));
    let mut left = width.saturating_add(1).saturating_sub(taken);
    let texts = columns.iter_mut().rev().filter(|(column, _)| !is_right(column));
    let mut texts: Vec<_> = texts.map(|(_, width)| width).collect();
    while let Some(width) = texts.pop() {
        let more = left.div_ceil(texts.len() as u16 + 1);
        *width += more;
        left -= more;
    }
    columns
}

fn is_right(column: &Column) -> bool {
    column.heading.starts_with('>')
}

/// (A table of ratatui's would solve equations for its columns, which takes longer than all else.)
fn draw_line(
    buffer: &mut Buffer,
    line: Rect,
    columns: &[(&Column, u16)],
    texts: &mut dyn Iterator<Item = &str>,
    style: Style,
) {
    buffer.set_style(line, style);
    let mut at = line.x;
    for ((column, width), text) in columns.iter().zip(texts) {
        let width = (*width).min(line.right().saturating_sub(at));
        let free = usize::from(width).saturating_sub(columns_of(text));
        let gap = if is_right(column) { free as u16 } else { 0 };
        buffer.set_stringn(at + gap, line.y, text, usize::from(width), style);
        at = at.saturating_add(width).saturating_add(1);
    }
}

/// As much of the help as has room.
fn help(app: &App, width: u16) -> String {
    let paused = if app.is_paused { "PAUSED, space goes on" } else { "space pauses" };
    let sorts = format!("s sorts: {}", app.order.word());
    let parts: &[&str] = match (&app.story, app.pid) {
        (Some(_), _) => &["q quits", "Esc back", "arrows scroll", paused],
        (None, Some(_)) => &["q quits", "Esc back", "Enter trace", &sorts, paused],
        (None, None) => &["q quits", "Enter connections", &sorts, paused, "* old library"],
    };
    let mut help = String::new();
    for part in parts {
        let gap = if help.is_empty() { "" } else { "  " };
        if help.len() + gap.len() + part.len() > usize::from(width) {
            break;
        }
        help = help + gap + part;
    }
    help
}

#[cfg(test)]
mod tests {
    use super::super::app::Key;
    use super::*;
    use crate::connections::Connections;
    use crate::hidden::Hides;
    use crate::latencies::Latencies;
    use crate::processes::Found;
    use crate::segment::{Known, Process};
    use netacc_control::stats::{
        COUNTER_SLOTS, ConnRecord, Connection, Path, REASON_SLOTS, RECORD_BYTES, Snapshot, Sums,
    };
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::io::Read;
    use std::mem::offset_of;
    use std::time::{Duration, Instant};

    /// The record of an open connection from 2001:db8::1 to 2001:db8::1234:5678.
    fn record(fd: u32, sent: u64) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut put = |at: usize, word: &[u8]| bytes[at..at + word.len()].copy_from_slice(word);
        for (at, word) in [
            (offset_of!(ConnRecord, state), 1),
            (offset_of!(ConnRecord, fd), fd),
            (offset_of!(ConnRecord, tx_path), 1),
            (offset_of!(ConnRecord, rx_path), 1),
            (offset_of!(ConnRecord, family), 10),
            (offset_of!(ConnRecord, local_port), 6379),
            (offset_of!(ConnRecord, peer_port), 40_000 + fd),
            (offset_of!(ConnRecord, promotions), 2),
            (offset_of!(ConnRecord, opened_unix_ns), 1),
        ] {
            put(at, &word.to_ne_bytes());
        }
        for (at, [high, low]) in [
            (offset_of!(ConnRecord, local_addr), [0x2001_0db8 << 32, 1]),
            (offset_of!(ConnRecord, peer_addr), [0x2001_0db8 << 32, 0x1234_5678]),
        ] {
            put(at, &u64::to_ne_bytes(high));
            put(at + 8, &u64::to_ne_bytes(low));
        }
        put(offset_of!(ConnRecord, tx_bytes) + 8 * Path::Shm as usize, &sent.to_ne_bytes());
        bytes
    }

    fn connection(fd: u32, sent: u64) -> Connection {
        Connection::read(&record(fd, sent)).unwrap()
    }

    fn process(pid: u32, name: &str, records: &[[u8; RECORD_BYTES]]) -> Found {
        let mut connections = Connections::default();
        let bytes = records.as_flattened();
        let mut from = bytes;
        connections.read(bytes.len(), |to| from.read_exact(to)).unwrap();
        connections.sort();
        let mut open = Sums::default();
        open.add(bytes);
        let header = Snapshot {
            pid,
            requests: None,
            answer: 0,
            started_unix_ns: 1,
            library: Some([0, 1, 0]),
            protocol: Some(11),
            conn_capacity: 8,
            conn_high_water: 8,
            open_by_path: [1, open.connections, 0, 345],
            total_by_path: [1, 9, 0, 0],
            reasons: [0; REASON_SLOTS],
            counters: [0; COUNTER_SLOTS],
            config: String::new(),
            channels: Vec::new(),
        };
        let process = Process {
            pid,
            name: name.to_owned(),
            uid: 105,
            uptime: Some(Duration::from_secs(3700)),
            container: None,
            known: Known::sample(pid == 2),
            header,
            open,
            connections,
        };
        Found { pid, process: Ok(process) }
    }

    /// Two looks, a second apart.
    fn app() -> App {
        let mut app = App::new(None);
        let begin = Instant::now();
        for (sent, at) in [(0, begin), (2 << 20, begin + Duration::from_secs(1))] {
            let records: Vec<_> =
                (3..200).map(|fd| record(fd, sent * u64::from(fd == 150))).collect();
            let found =
                vec![process(1, "redis\u{1b}[2J\nserver", &records), process(2, "idle", &[])];
            app.learn(found, 3, at);
        }
        app
    }

    fn picture(app: &mut App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |row: u16| (0..width).map(|x| buffer[(x, row)].symbol()).collect();
        (0..height).map(line).collect()
    }

    #[test]
    fn it_fits_every_terminal() {
        for width in (1..=250).step_by(9) {
            for height in [1, 2, 3, 10, 60] {
                let mut app = app();
                picture(&mut app, width, height);
                app.press(Key::Enter);
                app.press(Key::Move(i64::MAX));
                picture(&mut app, width, height);
            }
        }
        let mut app = app();
        let narrow = picture(&mut app, 40, 8).join("\n");
        for word in ["Pid", "Program", "Shm", "redis?[2J?", "197", "q quits"] {
            assert!(narrow.contains(word), "{word}: {narrow}");
        }
        assert!(!narrow.contains("Library"), "{narrow}");
        let usual = picture(&mut app, 80, 8).join("\n");
        for word in ["Shm", "Rdma", "Utcp", "345", "Share", "Sent/s", "Received/s"] {
            assert!(usual.contains(word), "{word}: {usual}");
        }
        let wide = picture(&mut app, 200, 8).join("\n");
        for word in
            ["3 that may not be looked at", "0.1.0*", "1h1m", "90.0 %", "2.0 MiB", "Container"]
        {
            assert!(wide.contains(word), "{word}: {wide}");
        }
    }

    #[test]
    fn processes_that_are_hidden_are_told_of_above_the_table() {
        let mut app = app();
        app.hides = None;
        assert!(!picture(&mut app, 100, 8)[0].contains("hidden"));
        app.hides = Some(Hides { hidepid: String::from("invisible") });
        let title = picture(&mut app, 100, 8)[0].clone();
        assert!(title.contains("looked at, others hidden (hidepid=invisible)"), "{title}");
    }

    #[test]
    fn what_is_left_of_a_line_goes_to_the_texts() {
        let of = |columns: &'static [Column], width| -> Vec<u16> {
            widths(columns.iter(), width).into_iter().map(|(_, width)| width).collect()
        };
        let needed: u16 = CONNECTIONS.iter().map(|column| column.width + 1).sum::<u16>() - 1;
        let least: Vec<u16> = CONNECTIONS.iter().map(|column| column.width).collect();
        assert_eq!(of(&CONNECTIONS, needed), least);
        assert_eq!(of(&CONNECTIONS, 1), least, "what has no room is cut off");
        // Local, Peer, Path, Reason.
        let more = of(&CONNECTIONS, needed + 6);
        let more: Vec<u16> = more.iter().zip(&least).map(|(is, least)| is - least).collect();
        assert_eq!(more, [0, 2, 2, 1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn keys_lead_from_a_process_to_its_connections_and_back() {
        let mut app = app();
        picture(&mut app, 80, 24);
        app.press(Key::Enter);
        let shown = picture(&mut app, 80, 24).join("\n");
        assert!(shown.contains("197 open connections, 9 of 10 accelerated"), "{shown}");
        assert!(shown.contains("[2001:db8::1234:5678]"), "{shown}");
        for word in ["Fd", "Peer", "Path", "Reason", "Sent/s", "Received/s"] {
            assert!(shown.contains(word), "{word}: {shown}");
        }
        assert!(!shown.contains("MiB"), "{shown}");
        // The one with traffic comes first.
        app.press(Key::Sort);
        let shown = picture(&mut app, 160, 24);
        assert!(shown[2].contains("2.0 MiB") && shown[2].contains(":40150"), "{shown:?}");
        app.press(Key::Move(i64::MAX));
        picture(&mut app, 80, 24);
        assert_eq!(app.row, 196);
        // Who is at a connection stays at it.
        app.press(Key::Move(i64::MIN));
        picture(&mut app, 80, 24);
        for (order, row) in [("name", 147), ("number", 147), ("traffic", 0)] {
            app.press(Key::Sort);
            picture(&mut app, 80, 24);
            assert_eq!((app.order.word(), app.row), (order, row));
        }
        assert!(!app.press(Key::Back));
        assert_eq!((app.pid, app.row), (None, 0));
        app.press(Key::Pause);
        assert!(picture(&mut app, 120, 24)[23].contains("PAUSED"));
        assert!(app.press(Key::Back));
    }

    #[test]
    fn answers_are_shown_where_they_are_measured() {
        let mut app = app();
        app.press(Key::Enter);
        app.measure(Some((1, Latencies::sample(&connection(5, 0)))));
        for width in [40, 57, 80, 100, 120, 160, 200] {
            let shown = picture(&mut app, width, 8);
            let is_there = shown[1].contains("Answer-p99");
            assert_eq!(is_there, width >= 100, "{shown:?}");
            // (Descriptors from 3 on: its row is the third.)
            assert_eq!(shown[4].contains(" 98.3 us"), is_there, "{shown:?}");
            assert!(shown[1].contains("Peer") && shown[1].contains("Path"), "{shown:?}");
        }
        // Of another process it says nothing.
        app.measure(Some((2, Latencies::sample(&connection(5, 0)))));
        assert!(!picture(&mut app, 200, 8)[4].contains("98.3 us"));
    }

    #[test]
    fn a_connection_leads_to_its_trace_and_back() {
        for width in (1..=250).step_by(41) {
            for height in [1, 2, 3, 10, 60] {
                let mut app = app();
                for key in [Key::Enter, Key::Move(5), Key::Enter] {
                    picture(&mut app, width, height);
                    app.press(key);
                }
                picture(&mut app, width, height);
                app.press(Key::Move(i64::MIN));
                app.press(Key::Sort);
                app.press(Key::Enter);
                let shown = picture(&mut app, width, height).join("\n");
                let is_whole = width >= 90 && height >= 10;
                for word in ["fd 8: [2001:db8::1]:6379 > [2001:db8::1234:5678]:40008", "Esc back"] {
                    assert!(!is_whole || shown.contains(word), "{word}: {shown}");
                }
                assert!(!app.press(Key::Back) && app.story.is_none());
                assert_eq!((app.pid, app.row, app.order.word()), (Some(1), 5, "number"));
                assert!(!app.press(Key::Back) && app.pid.is_none());
            }
        }
    }

    #[test]
    fn a_process_that_is_gone_is_said_to_be() {
        let mut app = app();
        app.press(Key::Enter);
        app.learn(Vec::new(), 0, Instant::now());
        let shown = picture(&mut app, 80, 24).join("\n");
        assert!(shown.contains("1: no process that may be read has the library"), "{shown}");
        assert!(!app.press(Key::Back));
        assert!(!app.press(Key::Enter));
        assert_eq!(app.pid, None);
    }
}
