//! Tables that fit the reader's terminal: what is too wide for one line goes on in further lines,
//! and nothing is left out.

use std::fmt::Write as _;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between two columns.
const GAP: usize = 2;
/// How far in a row goes on whose first column is too wide to be indented by.
const INDENT: usize = 4;
/// Sentences are not put into less.
const PROSE_MIN: usize = 20;

/// Columns as wide as their widest cell. A heading that starts with `>` is aligned to the right.
/// The first column says what a row is about.
#[derive(Debug)]
pub(crate) struct Table {
    headings: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

/// A line of a folded row: columns with their widths.
type Fold = Vec<(usize, usize)>;

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Table {
        Table {
            headings: headings.iter().map(|text| text.trim_start_matches('>').to_owned()).collect(),
            right: headings.iter().map(|text| text.starts_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// Behind an empty line; nothing where it has no rows.
    pub(crate) fn render_behind(&self, columns: Option<usize>) -> String {
        if self.rows.is_empty() { String::new() } else { format!("\n{}", self.render(columns)) }
    }

    /// No line has more columns than that, if any are given.
    pub(crate) fn render(&self, columns: Option<usize>) -> String {
        let widths = self.widths();
        let all: Fold = widths.iter().copied().enumerate().collect();
        let whole = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
        let (folds, indent) = match columns {
            Some(columns) if columns < whole => self.folds(&widths, columns),
            _ => (vec![all], 0),
        };
        let mut out = String::new();
        for row in std::iter::once(&self.headings).chain(&self.rows) {
            for (at, fold) in folds.iter().enumerate() {
                self.lines(&mut out, row, fold, if at == 0 { 0 } else { indent });
            }
        }
        out
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.headings.len()];
        for line in std::iter::once(&self.headings).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = columns_of(cell).max(*width);
            }
        }
        widths
    }

    /// The lines of a row, and how far all but the first are indented: as a rule so that the first
    /// column stands alone.
    fn folds(&self, widths: &[usize], columns: usize) -> (Vec<Fold>, usize) {
        let key = widths.first().copied().unwrap_or(0);
        let indent = if key <= columns / 3 { key + GAP } else { INDENT.min(columns / 3) };
        let mut folds: Vec<Fold> = Vec::new();
        let mut fold = Fold::new();
        let mut left = columns;
        for (column, width) in widths.iter().copied().enumerate() {
            let gap = if fold.is_empty() { 0 } else { GAP };
            let room = left.saturating_sub(gap);
            let is_last = column + 1 == widths.len();
            let is_begun = is_last && room >= PROSE_MIN && self.is_prose(column);
            if width > room && !fold.is_empty() && !is_begun {
                folds.push(std::mem::take(&mut fold));
                left = columns - indent;
                fold.push((column, width.min(left)));
                left -= width.min(left);
            } else {
                fold.push((column, width.min(room)));
                left = room.saturating_sub(width);
            }
        }
        folds.push(fold);
        (folds, indent)
    }

    /// Whether a column has sentences.
    fn is_prose(&self, column: usize) -> bool {
        self.rows.iter().filter_map(|row| row.get(column)).any(|cell| cell.contains(' '))
    }

    fn lines(&self, out: &mut String, row: &[String], fold: &Fold, indent: usize) {
        let cell = |column: usize| row.get(column).map_or("", String::as_str);
        let cells: Vec<(Vec<String>, usize, bool)> = fold
            .iter()
            .map(|(column, width)| {
                let is_right = self.right.get(*column).copied().unwrap_or(false);
                (wrapped(cell(*column), *width), *width, is_right)
            })
            .collect();
        let height = cells.iter().map(|(pieces, ..)| pieces.len()).max().unwrap_or(0);
        for at in 0..height {
            let mut line = " ".repeat(indent);
            for (pieces, width, is_right) in &cells {
                let piece = pieces.get(at).map_or("", String::as_str);
                let blanks = " ".repeat(width.saturating_sub(columns_of(piece)));
                let _ = if *is_right {
                    write!(line, "{blanks}{piece}  ")
                } else {
                    write!(line, "{piece}{blanks}  ")
                };
            }
            // (Of what is folded, what is empty takes no line.)
            if indent == 0 || !line.trim_end().is_empty() {
                out.push_str(line.trim_end());
                out.push('\n');
            }
        }
    }
}

/// How many columns a terminal shows text in: characters of East Asia, and emoji, take two, and
/// marks that stand on others none. (A control character, of which none gets here, counts one.)
pub(crate) fn columns_of(text: &str) -> usize {
    // (Nearly all text.)
    if text.is_ascii() { text.len() } else { text.width() }
}

/// A word in pieces of at most so many columns, or of one character that is wider.
fn pieces(word: &str, columns: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let (mut piece, mut used) = (String::new(), 0);
    for letter in word.chars() {
        let width = letter.width().unwrap_or(1);
        if used + width > columns && !piece.is_empty() {
            pieces.push(std::mem::take(&mut piece));
            used = 0;
        }
        piece.push(letter);
        used += width;
    }
    pieces.push(piece);
    pieces
}

/// Text in lines of at most so many columns, at least one: as it is where it fits, otherwise broken
/// at blanks, or wherever it must be.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    if columns_of(text) <= columns {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    let mut room = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = columns_of(word);
        match lines.last_mut() {
            Some(line) if length < room => {
                line.push(' ');
                line.push_str(word);
                room -= length + 1;
            }
            _ => {
                lines.extend(pieces(word, columns));
                room = columns.saturating_sub(lines.last().map_or(0, |line| columns_of(line)));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[">Fd", "Local", "Peer", "Path", "Reason", ">Sent"]);
        let long = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535";
        let row = ["7", "127.200.200.200:65535", long, "shm/tcp", "peer-without-library", "1 B"];
        table.row(row.map(str::to_owned));
        table
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_nothing_is_lost() {
        let table = table();
        let squeezed = |text: &str| text.split_whitespace().collect::<String>();
        let whole = table.render(None);
        assert_eq!(whole.lines().count(), 2);
        assert_eq!(table.render(Some(200)), whole);
        for columns in 20..=160 {
            let text = table.render(Some(columns));
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns}: {text}");
            assert_eq!(squeezed(&text).len(), squeezed(&whole).len(), "{columns}: {text}");
            assert_eq!(text.lines().filter(|line| line.starts_with(" 7")).count(), 1, "{text}");
        }
    }

    #[test]
    fn a_row_goes_on_beside_its_first_column() {
        let told = table().render(Some(60));
        let expected = "\
Fd  Local
    Peer                                            Path
    Reason                Sent
 7  127.200.200.200:65535
    [2001:db8:1111:2222:3333:4444:5555:6666]:65535  shm/tcp
    peer-without-library   1 B
";
        assert_eq!(told, expected);
    }

    #[test]
    fn sentences_stand_beside_what_they_explain_if_there_is_room() {
        let mut table = Table::new(&["Reason", ">Open", "Meaning"]);
        let meaning = "the other end has no library that it could agree with";
        table.row(["peer-without-library", "3", meaning].map(str::to_owned));
        let expected = "\
Reason                Open  Meaning
peer-without-library     3  the other end has no
                            library that it could
                            agree with
";
        assert_eq!(table.render(Some(50)), expected);
        let expected = "\
Reason                Open
    Meaning
peer-without-library     3
    the other end has no library that it
    could agree with
";
        assert_eq!(table.render(Some(40)), expected);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(["abc", "日本", "🦀x", "e\u{301}", "한"].map(columns_of), [3, 4, 3, 1, 2]);
        let mut table = Table::new(&["Program", ">Pid"]);
        for (name, pid) in [("データベース", "7"), ("redis", "4711"), ("🦀", "12")] {
            table.row([name.to_owned(), pid.to_owned()]);
        }
        let expected = "\
Program        Pid
データベース     7
redis         4711
🦀              12
";
        let text = table.render(None);
        assert_eq!(text, expected);
        let ends: Vec<usize> = text.lines().map(columns_of).collect();
        assert_eq!(ends, [18; 4]);
        for columns in 4..=20 {
            let text = table.render(Some(columns));
            assert!(text.lines().all(|line| columns_of(line) <= columns), "{columns}: {text}");
            let letters = text.chars().filter(|letter| !letter.is_whitespace()).count();
            assert_eq!(letters, expected.chars().filter(|c| !c.is_whitespace()).count());
        }
    }

    #[test]
    fn words_are_broken_where_they_must_be() {
        assert_eq!(wrapped("日本語 x", 4), ["日本", "語 x"]);
        assert_eq!(wrapped("日本語", 3), ["日", "本", "語"]);
        assert_eq!(wrapped("日x", 1), ["日", "x"]);
        assert_eq!(wrapped("a bc defghijk l", 4), ["a bc", "defg", "hijk", "l"]);
        assert_eq!(wrapped("abcdefghi j", 4), ["abcd", "efgh", "i j"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
